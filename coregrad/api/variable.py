"""Variables: integers that one compiled program takes anew in every call. No tensor is made here.

A number that a captured function is given is part of its capture. A :class:`Variable` is not: what
it is bound to is read by the kernels. It may say where a slice begins, how long it is, and stand in
arithmetic with tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coregrad import dtypes
from coregrad.api import capture
from coregrad.errors import CaptureError, IndexRangeError
from coregrad.ir import build
from coregrad.ir.graph import Node


@dataclass(frozen=True)
class Variable:
    """An integer from ``low`` to ``high``, both included, under a name.

    ``Variable("n", 1, 1024).bind(7)`` is 7 in this call and may be another number in the next: a
    function captured by ``@jit`` with it serves them all. Raises IndexRangeError for a range that
    is empty or begins below 0, and for a value outside it.

    >>> from coregrad import Tensor, Variable, jit
    >>> n = Variable("n", 1, 4)
    >>> @jit
    ... def first(x, n):
    ...     return x[:n].sum() * n
    >>> x = Tensor([1.0, 2.0, 3.0, 4.0])
    >>> [first(x, n.bind(i)).item() for i in (1, 2, 4)], first.captures
    ([1.0, 6.0, 40.0], 1)
    """

    name: str
    low: int
    high: int

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= dtypes.int32.max:
            raise IndexRangeError(
                f"Variable: {self.name} from {self.low} to {self.high}; begin at 0 or more and end "
                "where it begins or later"
            )

    def bind(self, value: int) -> BoundVariable:
        """The variable with a value, to be passed to a function or used in an expression.

        >>> Variable("n", 1, 8).bind(3) + 1
        n + 1
        """
        if not self.low <= value <= self.high:
            raise IndexRangeError(
                f"bind: {value} is no value of {self.name}, which goes from {self.low} to "
                f"{self.high}"
            )
        return BoundVariable(self, int(value))


@dataclass(frozen=True, eq=False)
class BoundVariable:
    """A variable with a value, and what has been added to it."""

    variable: Variable
    given: int
    shift: int = 0

    @property
    def value(self) -> int:
        """The number that it is now. In a captured function it is not to be looked at."""
        if capture.recorder is not None and capture.recorder.is_here():
            raise CaptureError(
                f"jit: the function looks at the value of {self}, which is another one in the next "
                "call; use it in slices and with tensors"
            )
        return self.given + self.shift

    @property
    def low(self) -> int:
        """The smallest value that it can have."""
        return self.variable.low + self.shift

    @property
    def high(self) -> int:
        """The largest value that it can have."""
        return self.variable.high + self.shift

    def node(self) -> Node:
        """The number as a 0-d integer."""
        if capture.recorder is not None and capture.recorder.is_here():
            made = capture.recorder.variable(self.variable)
        else:
            made = build.number(self.given, self.variable.high)
        return made if self.shift == 0 else build.add(made, build.const_like(made, self.shift))

    def _beside(self, tensor: Any) -> Any:
        """A 0-d tensor like this one."""
        if isinstance(tensor, (int, float)) or not hasattr(tensor, "_with"):
            return NotImplemented
        return tensor._with(self.node(), False)

    def __index__(self) -> int:
        return self.value

    def __repr__(self) -> str:
        if self.shift == 0:
            return self.variable.name
        sign = "+" if self.shift > 0 else "-"
        return f"{self.variable.name} {sign} {abs(self.shift)}"

    # ---- arithmetic ----------------------------------------------------------------------------

    def __eq__(self, other: Any) -> Any:
        if isinstance(other, BoundVariable):
            return self._key == other._key
        own = self._beside(other)
        return own if own is NotImplemented else own == other

    def __ne__(self, other: Any) -> Any:
        same = self == other
        return not same if isinstance(same, bool) else same.logical_not()

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[Any, ...]:
        return self.variable, self.given, self.shift

    def __add__(self, other: Any) -> Any:
        if isinstance(other, int):
            return BoundVariable(self.variable, self.given, self.shift + other)
        own = self._beside(other)
        return own if own is NotImplemented else own + other

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, int):
            return self + -other
        own = self._beside(other)
        return own if own is NotImplemented else own - other

    def __rsub__(self, other: Any) -> Any:
        own = self._beside(other)
        return own if own is NotImplemented else other - own

    def __mul__(self, other: Any) -> Any:
        own = self._beside(other)
        return own if own is NotImplemented else own * other

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        own = self._beside(other)
        return own if own is NotImplemented else own / other

    def __rtruediv__(self, other: Any) -> Any:
        own = self._beside(other)
        return own if own is NotImplemented else other / own

    def __lt__(self, other: Any) -> Any:
        own = self._beside(other)
        return own if own is NotImplemented else own < other

    def __le__(self, other: Any) -> Any:
        own = self._beside(other)
        return own if own is NotImplemented else own <= other

    def __gt__(self, other: Any) -> Any:
        own = self._beside(other)
        return own if own is NotImplemented else own > other

    def __ge__(self, other: Any) -> Any:
        own = self._beside(other)
        return own if own is NotImplemented else own >= other
