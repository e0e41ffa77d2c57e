"""Optimisers: one lazy update per parameter, all of a step computed together.

What changes from step to step (learning rate, bias corrections) lives in 0-d tensors, so that the
graph of a step looks the same every time and is scheduled and compiled once. float16 and bfloat16
parameters keep their state in float32, since 1e-8 and 0.001 * g**2 vanish in half precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np

from coregrad import dtypes
from coregrad.api.composed import composed
from coregrad.api.device import Device
from coregrad.api.grad_mode import no_grad
from coregrad.api.tensor import Tensor
from coregrad.dtypes import DType
from coregrad.errors import CoregradError, DataError, DTypeError, GradientError, ShapeError
from coregrad.nn import lr_scheduler

__all__ = [
    "SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "clip_grad_norm_", "clip_grad_value_",
    "lr_scheduler",
]  # fmt: skip

Betas: TypeAlias = tuple[float, float]
Numbers: TypeAlias = tuple[Tensor, ...]  # of one step
_Alike: TypeAlias = dict[tuple[str, DType], Numbers]


class _Setting:
    """A number of an optimiser. It may be changed at any time, and is checked when it is given."""

    def __init__(self, is_signed: bool = False) -> None:
        self._is_signed = is_signed

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, optimizer: Optimizer | None, owner: type) -> Any:
        return self if optimizer is None else vars(optimizer)[self._name]

    def __set__(self, optimizer: Optimizer, value: float) -> None:
        kind = type(optimizer).__name__
        check = _finite if self._is_signed else _not_negative
        vars(optimizer)[self._name] = check(self._name, value, kind)


class Optimizer:
    """What all optimisers share: a checked list of parameters, a learning rate, named state.

    A subclass makes its state in ``__init__`` with :meth:`_zeros` and :meth:`_scalar`, says in
    :meth:`_kept` which of it belongs to one parameter, and in :meth:`_update` how that moves.
    """

    uncaptured: ClassVar = ("_lr",)  # what @jit need not watch: its tensor says the same

    def __init__(self, params: Iterable[Tensor], lr: float) -> None:
        self.params = _checked(params, type(self).__name__)
        # Computed before the first step, which then looks like all others.
        Tensor.realize(*self.params)
        self._lr = _not_negative("lr", lr, type(self).__name__)
        self._state: dict[str, Tensor] = {}
        self._lr_tensor = self._scalar("lr", self._lr)

    # ---- the learning rate ---------------------------------------------------------------------

    @property
    def lr(self) -> float:
        """The learning rate; assign to it at any time."""
        return self._lr

    @lr.setter
    def lr(self, value: float) -> None:
        self._lr = _not_negative("lr", value, type(self).__name__)
        self._lr_tensor.assign(_number(self._lr, self._lr_tensor.device))

    # ---- state ---------------------------------------------------------------------------------

    def _scalar(self, name: str, value: float, precise: bool = False) -> Tensor:
        """A 0-d tensor of the state; ``precise`` ones are float64 where the device has it."""
        tensor = _number(value, self.params[0].device)
        if precise and dtypes.float64 in Device[tensor.device].device.limits.dtypes:
            tensor = tensor.double()
        self._state[name] = tensor
        return tensor

    def _zeros(self, name: str) -> list[Tensor]:
        """One tensor of zeros per parameter, in the dtype its state is kept in."""
        made = [
            Tensor(np.zeros(p.shape, np.float32), _work_dtype(p), p.device, requires_grad=False)
            for p in self.params
        ]
        self._state |= {f"{name}.{i}": tensor for i, tensor in enumerate(made)}
        return made

    def state_dict(self) -> dict[str, Tensor]:
        """The state by name (positions stand for parameters): save it with the model's."""
        return {name: tensor.detach() for name, tensor in self._state.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over a state saved from an optimiser of the same kind over the same parameters.

        Raises DataError for missing or unexpected names, ShapeError for shapes that differ.
        """
        if set(state) != set(self._state):
            odd = sorted(set(state) ^ set(self._state))
            raise DataError(
                f"{type(self).__name__}.load_state_dict: {', '.join(odd)} are not on both sides; "
                "load a state of the same optimiser over the same parameters"
            )
        for name, own in self._state.items():
            if tuple(own.shape) != tuple(state[name].shape):
                raise ShapeError(
                    f"{type(self).__name__}.load_state_dict: {name} is {own.shape} here and "
                    f"{state[name].shape} in the state; the parameters differ"
                )
        for name, own in self._state.items():
            own.assign(state[name].detach().to(own.device).cast(own.dtype))
        self._lr = float(self._lr_tensor.item())

    # ---- stepping ------------------------------------------------------------------------------

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for p in self.params:
            p.grad = None

    def step(self) -> None:
        """Move every parameter that has a gradient; all of it is computed in one go.

        Raises GradientError if no parameter has a gradient: ``backward`` was not called.
        """
        moving = [i for i, p in enumerate(self.params) if p.grad is not None]
        if not moving:
            raise GradientError(
                f"{type(self).__name__}.step: no parameter has a gradient; call backward() on a "
                "loss that depends on them first"
            )
        with no_grad():
            touched, numbers = self._begin()
            alike: _Alike = {}
            for i in moving:
                touched += self._move(i, _numbers_like(self.params[i], numbers, alike))
        Tensor.realize(*touched)

    def _move(self, i: int, numbers: Numbers) -> list[Tensor]:
        """Update parameter i and its state; every tensor that was written."""
        p = self.params[i]
        assert p.grad is not None
        written = [p, *self._kept(i)]
        for tensor, value in zip(written, self._update(i, p, p.grad, numbers), strict=True):
            tensor.assign(value)
        return written

    def _begin(self) -> tuple[list[Tensor], Numbers]:
        """Advance what is common to all parameters: every tensor that is to be computed, and the
        step's 0-d tensors that every update needs."""
        return [], (self._lr_tensor,)

    def _kept(self, i: int) -> list[Tensor]:
        """The state of parameter i."""
        return []

    def _update(self, i: int, p: Tensor, grad: Tensor, numbers: Numbers) -> tuple[Tensor, ...]:
        """The new values of parameter i and of its state."""
        raise CoregradError(f"{type(self).__name__}: an optimiser must define _update")


def _numbers_like(p: Tensor, numbers: Numbers, alike: _Alike) -> Numbers:
    """The step's numbers in the dtype p is updated in, and on its device; made once for each."""
    kind = (p.device, _work_dtype(p))
    if kind not in alike:
        alike[kind] = tuple(n.to(p.device).cast(kind[1]) for n in numbers)
    return alike[kind]


class SGD(Optimizer):
    """Stochastic gradient descent with optional momentum, as PyTorch's.

    Example::

        optim = nn.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)

    Momentum and dampening may be changed later, but not from 0, where nothing is kept for them.
    """

    momentum = _Setting()
    dampening = _Setting(is_signed=True)
    weight_decay = _Setting()

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.001,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(params, lr)
        self.momentum = momentum
        self.dampening = dampening
        self.weight_decay = weight_decay
        self.nesterov = nesterov
        self._check_nesterov()
        self._velocity = self._zeros("velocity") if momentum else []
        # 1 until a parameter's first step, whose velocity is the undamped gradient.
        damped = bool(momentum and dampening)
        self._fresh = [self._scalar(f"fresh.{i}", 1.0) for i in range(len(self.params) * damped)]

    def _check_nesterov(self) -> None:
        if self.nesterov and (not self.momentum or self.dampening):
            raise CoregradError(
                f"SGD: nesterov needs momentum > 0 and dampening 0, not {self.momentum} and "
                f"{self.dampening}"
            )

    def _begin(self) -> tuple[list[Tensor], Numbers]:
        self._check_nesterov()
        _check_kept(self, "momentum", self._velocity)
        if self.momentum:
            _check_kept(self, "dampening", self._fresh)
        return super()._begin()

    def _kept(self, i: int) -> list[Tensor]:
        if not self.momentum:
            return []
        return [state[i] for state in (self._velocity, self._fresh) if state]

    def _update(self, i: int, p: Tensor, grad: Tensor, numbers: Numbers) -> tuple[Tensor, ...]:
        (lr,) = numbers
        if not self.momentum:
            return (_sgd(p, grad, lr, self.weight_decay),)
        fresh = self._fresh[i] if self._fresh else None
        return _momentum(
            p, grad, lr, self._velocity[i], fresh,
            self.weight_decay, self.momentum, self.dampening, self.nesterov,
        )  # fmt: skip


@composed
def _sgd(p: Tensor, grad: Tensor, lr: Tensor, weight_decay: float) -> Tensor:
    value, grad = _working(p, grad)
    if weight_decay:
        grad = grad + value * weight_decay
    return (value - grad * lr).cast(p.dtype)


@composed
def _momentum(
    p: Tensor,
    grad: Tensor,
    lr: Tensor,
    velocity: Tensor,
    fresh: Tensor | None,
    weight_decay: float,
    momentum: float,
    dampening: float,
    nesterov: bool,
) -> tuple[Tensor, ...]:
    """The new parameter and velocity, and 0 for ``fresh`` if it is given."""
    value, grad = _working(p, grad)
    if weight_decay:
        grad = grad + value * weight_decay
    pushed = grad
    if fresh is not None:
        pushed = grad * ((1.0 - dampening) + fresh * dampening).to(p.device).cast(grad.dtype)
    velocity = velocity * momentum + pushed
    change = grad + velocity * momentum if nesterov else velocity
    moved = (value - change * lr).cast(p.dtype)
    return (moved, velocity) if fresh is None else (moved, velocity, fresh * 0.0)


class Adam(Optimizer):
    """Adam: D. P. Kingma, J. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015.

    ``weight_decay`` adds to the gradient, as in PyTorch's Adam; see :class:`AdamW`.

    Example::

        optim = nn.optim.Adam(model.parameters(), lr=0.001)
    """

    decoupled = False
    eps = _Setting()
    weight_decay = _Setting()

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.001,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr)
        self.betas = betas
        self.eps = eps
        self.weight_decay = weight_decay
        self._bias = [self._scalar(f"bias{i}", 0.0, precise=True) for i in (1, 2)]
        self._mean = self._zeros("mean")
        self._square = self._zeros("square")

    @property
    def betas(self) -> Betas:
        """How slowly the two running means move; assign a pair of numbers to it at any time."""
        return self._betas

    @betas.setter
    def betas(self, value: Betas) -> None:
        name = type(self).__name__
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            raise CoregradError(f"{name}: betas is {value!r}; give two numbers in [0, 1)")
        first, second = (_not_negative("betas", b, name) for b in value)
        if max(first, second) >= 1.0:
            raise CoregradError(f"{name}: betas {value} must both be in [0, 1)")
        self._betas = (first, second)

    def _begin(self) -> tuple[list[Tensor], Numbers]:
        c1, c2 = self._bias
        *bias, scale, eps = _adam_numbers(c1, c2, self._lr_tensor, *self.betas, self.eps)
        c1.assign(bias[0])
        c2.assign(bias[1])
        return [c1, c2, scale, eps], (self._lr_tensor, scale, eps)

    def _kept(self, i: int) -> list[Tensor]:
        return [self._mean[i], self._square[i]]

    def _update(self, i: int, p: Tensor, grad: Tensor, numbers: Numbers) -> tuple[Tensor, ...]:
        lr, scale, eps = numbers
        return _adam(
            p, grad, self._mean[i], self._square[i], lr, scale, eps,
            *self.betas, self.weight_decay, self.decoupled,
        )  # fmt: skip


@composed
def _adam_numbers(
    c1: Tensor, c2: Tensor, lr: Tensor, beta1: float, beta2: float, eps: float
) -> tuple[Tensor, ...]:
    """The new bias corrections and the step's two numbers. With c = 1 - beta**t the update
    -lr * (m/c1) / (sqrt(v/c2) + eps) is ``scale * m / (sqrt(v) + eps2)`` for
    scale = -lr*sqrt(c2)/c1 and eps2 = eps*sqrt(c2): five operations per element. c itself follows
    c = beta*c + (1 - beta), from 0: the difference 1 - beta**t would lose digits while t is small.
    """
    c1 = c1 * beta1 + (1.0 - beta1)
    c2 = c2 * beta2 + (1.0 - beta2)
    root = c2.sqrt()
    return c1, c2, (-lr * root / c1).contiguous(), (root * eps).contiguous()


@composed
def _adam(
    p: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    lr: Tensor,
    scale: Tensor,
    eps: Tensor,
    beta1: float,
    beta2: float,
    weight_decay: float,
    decoupled: bool,
) -> tuple[Tensor, ...]:
    """The new parameter and the new running means of the gradient and of its square."""
    value, grad = _working(p, grad)
    if weight_decay and decoupled:
        value = value - value * (lr * weight_decay)
    elif weight_decay:
        grad = grad + value * weight_decay
    mean = mean * beta1 + grad * (1.0 - beta1)
    square = square * beta2 + grad * grad * (1.0 - beta2)
    return (value + mean / (square.sqrt() + eps) * scale).cast(p.dtype), mean, square


class AdamW(Adam):
    """Adam whose weight decay acts on the parameter, not on the gradient.

    I. Loshchilov, F. Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.

    Example::

        optim = nn.optim.AdamW(model.parameters(), lr=0.001, weight_decay=0.01)
    """

    decoupled = True

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.001,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)


class RMSprop(Optimizer):
    """Gradients divided by a running average of their size, as PyTorch's (not centred).

    Example::

        optim = nn.optim.RMSprop(model.parameters(), lr=0.01)
    """

    alpha = _Setting()
    eps = _Setting()
    weight_decay = _Setting()
    momentum = _Setting()

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.01,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
    ) -> None:
        super().__init__(params, lr)
        self.alpha = alpha
        self.eps = eps
        self.weight_decay = weight_decay
        self.momentum = momentum
        self._square = self._zeros("square")
        self._velocity = self._zeros("velocity") if momentum else []

    def _begin(self) -> tuple[list[Tensor], Numbers]:
        _check_kept(self, "momentum", self._velocity)
        return super()._begin()

    def _kept(self, i: int) -> list[Tensor]:
        return [state[i] for state in (self._square, self._velocity) if state]

    def _update(self, i: int, p: Tensor, grad: Tensor, numbers: Numbers) -> tuple[Tensor, ...]:
        (lr,) = numbers
        velocity = self._velocity[i] if self._velocity else None
        return _rmsprop(
            p, grad, lr, self._square[i], velocity,
            self.alpha, self.eps, self.weight_decay, self.momentum,
        )  # fmt: skip


@composed
def _rmsprop(
    p: Tensor,
    grad: Tensor,
    lr: Tensor,
    square: Tensor,
    velocity: Tensor | None,
    alpha: float,
    eps: float,
    weight_decay: float,
    momentum: float,
) -> tuple[Tensor, ...]:
    """The new parameter, the new mean of squares and, where it is given, the new velocity."""
    value, grad = _working(p, grad)
    if weight_decay:
        grad = grad + value * weight_decay
    square = square * alpha + grad * grad * (1.0 - alpha)
    change = grad / (square.sqrt() + eps)
    if velocity is None:
        return (value - change * lr).cast(p.dtype), square
    velocity = velocity * momentum + change
    return (value - velocity * lr).cast(p.dtype), square, velocity


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0
) -> Tensor:
    """Scale the gradients so that their norm, taken together, is at most ``max_norm``.

    Returns the norm before scaling, a 0-d tensor. Parameters without a gradient are skipped.

    >>> p = Tensor([0.0, 0.0], requires_grad=True)
    >>> (p * Tensor([3.0, 4.0])).sum().backward()
    >>> clip_grad_norm_([p], 1.0).item()
    5.0
    """
    wanted = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    having = [p for p in wanted if p.grad is not None]
    grads = [p.grad for p in having if p.grad is not None]
    limit = _not_negative("max_norm", max_norm, "clip_grad_norm_")
    if not having:
        return _number(0.0, None)
    with no_grad():
        norms = [_norm(g, norm_type).to(having[0].device) for g in grads]
        total = Tensor.stack(*norms).norm(norm_type) if len(norms) > 1 else norms[0]
        # PyTorch's 1e-6 keeps a norm of 0 from dividing.
        share = (limit / (total + 1e-6)).clamp(max=1.0)
        for p, g in zip(having, grads, strict=True):
            p.grad = (g * _like(share, g)).detach()
    return total


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Move every element of the gradients into [-clip_value, clip_value].

    Parameters without a gradient are skipped.

    >>> p = Tensor([0.0, 0.0], requires_grad=True)
    >>> (p * Tensor([3.0, -0.5])).sum().backward()
    >>> clip_grad_value_([p], 1.0)
    >>> p.grad.tolist()
    [1.0, -0.5]
    """
    limit = _not_negative("clip_value", clip_value, "clip_grad_value_")
    for p in [parameters] if isinstance(parameters, Tensor) else list(parameters):
        if p.grad is not None:
            p.grad = p.grad.detach().clamp(-limit, limit)


# ---- small pieces ------------------------------------------------------------------------------


def _norm(grad: Tensor, order: float) -> Tensor:
    return grad.cast(_work_dtype(grad)).norm(order)


def _checked(params: Iterable[Tensor], name: str) -> list[Tensor]:
    if isinstance(params, Tensor):
        raise CoregradError(f"{name}: params is one tensor; give a list of tensors")
    found = list(params)
    if not found:
        raise CoregradError(f"{name}: the list of parameters is empty; give model.parameters()")
    for i, p in enumerate(found):
        if not isinstance(p, Tensor):
            raise CoregradError(
                f"{name}: parameter {i} is a {type(p).__name__}, not a Tensor; pass tensors"
            )
        if not p.dtype.is_float:
            raise DTypeError(
                f"{name}: parameter {i} of shape {p.shape} is {p.dtype.name}; only floating "
                "tensors have gradients"
            )
    if len({id(p) for p in found}) != len(found):
        raise CoregradError(f"{name}: a parameter stands twice in the list; name each once")
    for p in found:
        if p.requires_grad is None:
            p.requires_grad_(True)
    return found


def _finite(what: str, value: float, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise CoregradError(f"{name}: {what} is {value!r}; it must be a number") from error
    if not math.isfinite(number):
        raise CoregradError(f"{name}: {what} is {value}; it must be a finite number")
    return number


def _not_negative(what: str, value: float, name: str) -> float:
    number = _finite(what, value, name)
    if number < 0.0:
        raise CoregradError(f"{name}: {what} is {value}; it must be a finite number >= 0")
    return number


def _check_kept(optimizer: Optimizer, name: str, state: list[Tensor]) -> None:
    """Raise unless there is the state that a setting needs: one that was 0 before has none."""
    value = getattr(optimizer, name)
    if value and not state:
        kind = type(optimizer).__name__
        raise CoregradError(
            f"{kind}.step: {name} was changed to {value}, but the optimiser was made without it "
            f"and keeps nothing for it; make a new one with {name}={value}"
        )


def _working(p: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """A parameter and its gradient in the dtype the update is computed in."""
    work = _work_dtype(p)
    return p.cast(work), grad.cast(work)


def _work_dtype(p: Tensor) -> DType:
    return dtypes.float32 if p.dtype in (dtypes.float16, dtypes.bfloat16) else p.dtype


def _number(value: float, device: str | None) -> Tensor:
    return Tensor(value, dtype=dtypes.float32, device=device, requires_grad=False)


def _like(scalar: Tensor, p: Tensor) -> Tensor:
    """A 0-d tensor of the state in the dtype, and on the device, of ``p``."""
    return scalar.to(p.device).cast(p.dtype)
