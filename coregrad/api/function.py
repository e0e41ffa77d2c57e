"""Operations with a gradient of their own: subclass :class:`Function`, call ``apply``."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Sequence
from typing import Any

from coregrad.api.base import TensorBase
from coregrad.api.grad_mode import enable_grad, no_grad
from coregrad.errors import GradientError
from coregrad.ir import build
from coregrad.ir.graph import Node


class Function:
    """An operation whose gradient the user writes. Two styles are understood.

    Instance style: ``forward(self, x, y)`` keeps what it needs on ``self``, ``backward(self, g)``
    returns a gradient per argument (a tensor, or a tuple). PyTorch's: both are static methods and
    get a ``ctx`` first, with ``ctx.save_for_backward(...)`` and ``ctx.saved_tensors``.

    ``forward`` runs under ``no_grad``. Gradients of gradients work, for ``backward`` is made of
    tensor operations. A wrong number or shape of gradients raises GradientError in ``backward()``.

    >>> from coregrad import Tensor
    >>> class Double(Function):
    ...     def forward(self, x):
    ...         return x * 2
    ...     def backward(self, gradient):
    ...         return gradient * 2
    >>> x = Tensor([1.0], requires_grad=True)
    >>> Double.apply(x).sum().backward()
    >>> x.grad.tolist()
    [2.0]
    """

    saved_tensors: tuple[Any, ...] = ()
    needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors for ``backward``, which finds them in ``saved_tensors``.

        >>> ctx = Function()
        >>> ctx.save_for_backward(1, 2)
        >>> ctx.saved_tensors
        (1, 2)
        """
        self.saved_tensors = tensors

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run ``forward`` on the arguments; its results have this function's gradient.

        >>> class Same(Function):
        ...     def forward(self, x):
        ...         return x
        ...     def backward(self, gradient):
        ...         return gradient
        >>> from coregrad import Tensor
        >>> Same.apply(Tensor([1.0])).tolist()
        [1.0]
        """
        context = cls()
        places = [i for i, a in enumerate(args) if _is_float(a)]
        context.needs_input_grad = tuple(
            _is_float(a) and a._requires_grad is not False for a in args
        )
        with no_grad():
            made = _call(context, "forward", *args)
        outputs = made if isinstance(made, tuple) else (made,)
        for output in outputs:
            if not isinstance(output, TensorBase):
                raise TypeError(
                    f"{cls.__name__}.forward: returned {type(output).__name__}; return a tensor or "
                    "a tuple of tensors"
                )
        wrapped = _wrap(context, args, places, outputs)
        return wrapped if isinstance(made, tuple) else wrapped[0]


def _is_float(value: Any) -> bool:
    return isinstance(value, TensorBase) and value.dtype.is_float


def _call(context: Function, name: str, *args: Any) -> Any:
    """Call a method of either style."""
    method = getattr(type(context), name, None)
    if method is None:
        raise NotImplementedError(f"{type(context).__name__}: define {name}")
    static = isinstance(inspect.getattr_static(type(context), name), staticmethod)
    return method(context, *args) if static else getattr(context, name)(*args)


def _wrap(
    context: Function, args: Sequence[Any], places: Sequence[int], outputs: Sequence[TensorBase]
) -> tuple[TensorBase, ...]:
    inputs = [args[i] for i in places]
    if not inputs:
        return tuple(outputs)
    rule = _Backward(context, len(args), tuple(places), outputs)
    wrapped = []
    for i, output in enumerate(outputs):
        if not output.dtype.is_float:
            wrapped.append(output)
            continue
        node = build.custom(output.node, [x.node for x in inputs], _Rule(rule, i))
        rule.nodes[i] = weakref.ref(node)
        wrapped.append(output._make(node, *inputs))
    return tuple(wrapped)


class _Backward:
    """What the results of one ``apply`` share.

    Results that ``forward`` kept (as attributes, or saved) must be the wrapped ones in
    ``backward``, or gradients of gradients would miss them. They are held weakly, so that a result
    does not keep itself alive.
    """

    def __init__(
        self,
        context: Function,
        arguments: int,
        places: tuple[int, ...],
        outputs: Sequence[TensorBase],
    ) -> None:
        self.context = context
        self.arguments = arguments
        self.places = places
        self.nodes: dict[int, weakref.ref[Node]] = {}
        self.likeness = [_Likeness(o) for o in outputs]
        number = {id(o): i for i, o in enumerate(outputs)}
        self.kept = {k: number[id(v)] for k, v in vars(context).items() if id(v) in number}
        for name in self.kept:
            delattr(context, name)
        self.saved = {
            n: number[id(v)] for n, v in enumerate(context.saved_tensors) if id(v) in number
        }
        context.saved_tensors = tuple(
            None if n in self.saved else v for n, v in enumerate(context.saved_tensors)
        )

    def gradients(self, number: int, gradient: Node) -> list[Node | None]:
        """What ``backward`` says where output ``number`` receives a gradient."""
        self._restore()
        seeds = [like.zeros() for like in self.likeness]
        seeds[number] = self.likeness[number].tensor(gradient)
        with enable_grad():
            answer = _call(self.context, "backward", *seeds)
        self._remove()
        answers = answer if isinstance(answer, tuple) else (answer,)
        if len(answers) == self.arguments:
            answers = tuple(answers[i] for i in self.places)
        if len(answers) != len(self.places):
            raise GradientError(
                f"{type(self.context).__name__}.backward: returned {len(answers)} gradients for "
                f"{self.arguments} arguments; return one per argument, None where there is none"
            )
        return [None if a is None else a.node for a in answers]

    def _restore(self) -> None:
        for name, i in self.kept.items():
            setattr(self.context, name, self._output(i))
        self.context.saved_tensors = tuple(
            self._output(self.saved[n]) if n in self.saved else v
            for n, v in enumerate(self.context.saved_tensors)
        )

    def _remove(self) -> None:
        for name in self.kept:
            delattr(self.context, name)
        self.context.saved_tensors = tuple(
            None if n in self.saved else v for n, v in enumerate(self.context.saved_tensors)
        )

    def _output(self, number: int) -> TensorBase:
        node = self.nodes[number]()
        assert node is not None, "a gradient came from a node that is gone"
        return self.likeness[number].tensor(node)


class _Likeness:
    """Enough of an output to make tensors like it, without holding its value."""

    def __init__(self, output: TensorBase) -> None:
        self.shape = output.shape
        self.dtype = output.dtype
        self.template = output._with(build.const(0, output.dtype, ()), False)

    def zeros(self) -> TensorBase:
        """A gradient of nothing."""
        return self.tensor(build.const(0, self.dtype, self.shape))

    def tensor(self, node: Node) -> TensorBase:
        """A node as a tensor that gradients pass through."""
        return self.template._with(node, None)


class _Rule:
    """The gradient rule of one output."""

    def __init__(self, backward: _Backward, number: int) -> None:
        self.backward = backward
        self.number = number

    def __repr__(self) -> str:
        return type(self.backward.context).__name__

    def vjp(self, gradient: Node) -> Sequence[Node | None]:
        """One gradient per float input."""
        return self.backward.gradients(self.number, gradient)
