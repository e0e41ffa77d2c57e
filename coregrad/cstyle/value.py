"""A value of a kernel's text, and the exact bounds of the integers that count through memory.

Index arithmetic is int64 by contract. Where the bounds show that 32 bits are enough, the text
computes in `int`: dividing and comparing those is several times cheaper on most devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from coregrad.dtypes import DType, int32, int64

Bounds: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class Value:
    """A name or a literal. ``bounds`` are the smallest and largest integer it can be, if known.

    A value with bounds is of C type `int` if that holds them, whatever its dtype.
    """

    text: str
    bounds: Bounds | None = None

    @property
    def constant(self) -> int | None:
        """The integer that this is, if it is known."""
        if self.bounds is None or self.bounds[0] != self.bounds[1]:
            return None
        return self.bounds[0]

    def __str__(self) -> str:
        return self.text


def fits(bounds: Bounds, dtype: DType) -> bool:
    """Whether an integer dtype holds both ends."""
    return dtype.min <= bounds[0] and bounds[1] <= dtype.max


def narrow(bounds: Bounds) -> DType:
    """The dtype whose C type values of these bounds have."""
    return int32 if fits(bounds, int32) else int64


def computed(op: str, a: Value, b: Value, dtype: DType) -> Bounds | None:
    """The bounds of ``a op b``, or None: unknown, or possibly outside the dtype.

    >>> computed("mul", Value("i", (0, 9)), Value("8", (8, 8)), int64)
    (0, 72)
    """
    if dtype not in (int32, int64) or a.bounds is None or b.bounds is None or op not in RULES:
        return None
    found = RULES[op](a.bounds, b.bounds)
    return found if found is not None and fits(found, dtype) else None


def _add(a: Bounds, b: Bounds) -> Bounds | None:
    return a[0] + b[0], a[1] + b[1]


def _mul(a: Bounds, b: Bounds) -> Bounds | None:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _idiv(a: Bounds, b: Bounds) -> Bounds | None:
    if b[0] != b[1] or b[0] <= 0:
        return None
    return _truncated(a[0], b[0]), _truncated(a[1], b[0])


def _mod(a: Bounds, b: Bounds) -> Bounds | None:
    if b[0] != b[1] or b[0] <= 0:
        return None
    return max(a[0], 1 - b[0]) if a[0] < 0 else 0, min(max(a[1], 0), b[0] - 1)


def _shr(a: Bounds, b: Bounds) -> Bounds | None:
    if b[0] != b[1] or not 0 <= b[0] < 32:  # a count of 32 is none of a narrow value's
        return None
    return a[0] >> b[0], a[1] >> b[0]


def _and(a: Bounds, b: Bounds) -> Bounds | None:
    return (0, b[1]) if b[0] == b[1] and b[0] >= 0 else None


def _where(a: Bounds, b: Bounds) -> Bounds | None:
    return min(a[0], b[0]), max(a[1], b[1])


def _max(a: Bounds, b: Bounds) -> Bounds | None:
    return max(a[0], b[0]), max(a[1], b[1])


RULES: dict[str, Callable[[Bounds, Bounds], Bounds | None]] = {
    "add": _add,
    "mul": _mul,
    "idiv": _idiv,
    "mod": _mod,
    "shr": _shr,
    "and": _and,
    "where": _where,
    "max": _max,
}


def _truncated(x: int, divisor: int) -> int:
    return abs(x) // divisor * (1 if x >= 0 else -1)
