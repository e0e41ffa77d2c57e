"""Learning rates that follow a formula: each sets the public ``lr`` of an optimiser, nothing else.

The rate after ``n`` calls of ``step`` is a formula of ``n`` and of the rate that the optimiser had
when the scheduler was made, as in PyTorch. A rate that is assigned in between lasts until the next
call. Call ``step`` after the optimiser's, outside what ``@jit`` captures.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from coregrad.errors import CoregradError, DataError


class _HasRate(Protocol):
    """What a scheduler asks of an optimiser."""

    lr: float


class LRScheduler:
    """What all schedulers share: the rate at the start, and how often ``step`` was called.

    A subclass says in :meth:`_rate` what the rate is.
    """

    def __init__(self, optimizer: _HasRate) -> None:
        self.optimizer = optimizer
        self.base_lr = float(optimizer.lr)
        self.last_epoch = 0
        optimizer.lr = self._rate()

    def step(self) -> None:
        """Count one step (an epoch, or a batch) and give the optimiser its new rate."""
        self.last_epoch += 1
        self.optimizer.lr = self._rate()

    def get_last_lr(self) -> list[float]:
        """The rate that was set last, in a list, as PyTorch gives one rate per group."""
        return [self._rate()]

    def state_dict(self) -> dict[str, float]:
        """What :meth:`load_state_dict` needs to go on from here."""
        return {"base_lr": self.base_lr, "last_epoch": self.last_epoch}

    def load_state_dict(self, state_dict: Mapping[str, float]) -> None:
        """Go on from a saved state, and give the optimiser that rate.

        Raises DataError unless the names are those of :meth:`state_dict`.
        """
        if set(state_dict) != {"base_lr", "last_epoch"}:
            raise DataError(
                f"{type(self).__name__}.load_state_dict: the state has {sorted(state_dict)}; give "
                "base_lr and last_epoch, as state_dict() does"
            )
        self.base_lr = float(state_dict["base_lr"])
        self.last_epoch = int(state_dict["last_epoch"])
        self.optimizer.lr = self._rate()

    def _rate(self) -> float:
        """The rate after ``last_epoch`` steps."""
        name = type(self).__name__
        raise CoregradError(f"{name}: a scheduler must define _rate")


class LambdaLR(LRScheduler):
    """The rate at the start times ``lr_lambda(n)``.

    >>> from coregrad import nn
    >>> optim = nn.optim.SGD([Tensor([1.0])], lr=0.5)
    >>> LambdaLR(optim, lambda n: 1 / (n + 1)).step()
    >>> optim.lr
    0.25
    """

    def __init__(self, optimizer: _HasRate, lr_lambda: Callable[[int], float]) -> None:
        if not callable(lr_lambda):
            raise CoregradError(
                f"LambdaLR: lr_lambda is a {type(lr_lambda).__name__}; give a function of the "
                "number of steps"
            )
        self.lr_lambda = lr_lambda
        super().__init__(optimizer)

    def _rate(self) -> float:
        return self.base_lr * float(self.lr_lambda(self.last_epoch))


class StepLR(LRScheduler):
    """Times ``gamma`` every ``step_size`` steps.

    >>> from coregrad import nn
    >>> optim = nn.optim.SGD([Tensor([1.0])], lr=1.0)
    >>> scheduler = StepLR(optim, step_size=2, gamma=0.5)
    >>> [(scheduler.step(), optim.lr)[1] for _ in range(4)]
    [1.0, 0.5, 0.5, 0.25]
    """

    def __init__(self, optimizer: _HasRate, step_size: int, gamma: float = 0.1) -> None:
        self.step_size = _at_least_one("StepLR", "step_size", step_size)
        self.gamma = _factor("StepLR", "gamma", gamma)
        super().__init__(optimizer)

    def _rate(self) -> float:
        return self.base_lr * self.gamma ** (self.last_epoch // self.step_size)


class MultiStepLR(LRScheduler):
    """Times ``gamma`` at each of the ``milestones``, numbers of steps in any order.

    >>> from coregrad import nn
    >>> optim = nn.optim.SGD([Tensor([1.0])], lr=1.0)
    >>> scheduler = MultiStepLR(optim, milestones=[1, 3], gamma=0.5)
    >>> [(scheduler.step(), optim.lr)[1] for _ in range(4)]
    [0.5, 0.5, 0.25, 0.25]
    """

    def __init__(self, optimizer: _HasRate, milestones: Iterable[int], gamma: float = 0.1) -> None:
        self.milestones = sorted(milestones)
        self.gamma = _factor("MultiStepLR", "gamma", gamma)
        super().__init__(optimizer)

    def _rate(self) -> float:
        return self.base_lr * self.gamma ** bisect_right(self.milestones, self.last_epoch)


class ExponentialLR(LRScheduler):
    """Times ``gamma`` at every step.

    >>> from coregrad import nn
    >>> optim = nn.optim.SGD([Tensor([1.0])], lr=1.0)
    >>> ExponentialLR(optim, gamma=0.5).step()
    >>> optim.lr
    0.5
    """

    def __init__(self, optimizer: _HasRate, gamma: float) -> None:
        self.gamma = _factor("ExponentialLR", "gamma", gamma)
        super().__init__(optimizer)

    def _rate(self) -> float:
        return self.base_lr * float(self.gamma**self.last_epoch)


class LinearLR(LRScheduler):
    """From ``start_factor`` to ``end_factor`` times the rate, in ``total_iters`` equal steps.

    >>> from coregrad import nn
    >>> optim = nn.optim.SGD([Tensor([1.0])], lr=1.0)
    >>> scheduler = LinearLR(optim, start_factor=0.5, total_iters=2)
    >>> [optim.lr, *((scheduler.step(), optim.lr)[1] for _ in range(3))]
    [0.5, 0.75, 1.0, 1.0]
    """

    def __init__(
        self,
        optimizer: _HasRate,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
    ) -> None:
        self.start_factor = _factor("LinearLR", "start_factor", start_factor)
        self.end_factor = _factor("LinearLR", "end_factor", end_factor)
        self.total_iters = _at_least_one("LinearLR", "total_iters", total_iters)
        super().__init__(optimizer)

    def _rate(self) -> float:
        share = min(self.last_epoch, self.total_iters) / self.total_iters
        return self.base_lr * (self.start_factor + (self.end_factor - self.start_factor) * share)


class CosineAnnealingLR(LRScheduler):
    """Down to ``eta_min`` in ``T_max`` steps along half a cosine, and up again after them.

    I. Loshchilov, F. Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017.

    >>> from coregrad import nn
    >>> optim = nn.optim.SGD([Tensor([1.0])], lr=1.0)
    >>> scheduler = CosineAnnealingLR(optim, T_max=2)
    >>> [round((scheduler.step(), optim.lr)[1], 6) for _ in range(2)]
    [0.5, 0.0]
    """

    def __init__(
        self,
        optimizer: _HasRate,
        T_max: int,  # noqa: N803 (PyTorch's name)
        eta_min: float = 0.0,
    ) -> None:
        self.T_max = _at_least_one("CosineAnnealingLR", "T_max", T_max)
        self.eta_min = _factor("CosineAnnealingLR", "eta_min", eta_min)
        super().__init__(optimizer)

    def _rate(self) -> float:
        share = (1.0 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2.0
        return self.eta_min + (self.base_lr - self.eta_min) * share


def _at_least_one(name: str, what: str, value: int) -> int:
    if not isinstance(value, int) or value < 1:
        raise CoregradError(f"{name}: {what} is {value!r}; give an integer from 1 on")
    return value


def _factor(name: str, what: str, value: float) -> float:
    if not isinstance(value, (int, float)) or not 0.0 <= value < math.inf:
        raise CoregradError(f"{name}: {what} is {value!r}; give a finite number >= 0")
    return float(value)
