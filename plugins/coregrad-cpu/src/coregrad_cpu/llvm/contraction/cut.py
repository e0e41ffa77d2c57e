"""An axis cut into nearly equal pieces: how tiles, blocks and chunks are laid over a side."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from coregrad.ir.index import Var


@dataclass(frozen=True)
class Cut:
    """One of ``axes`` cut into pieces of ``size`` or, the last ones, one less.

    The axes after it are whole, those before it are walked one by one.
    """

    axes: tuple[Var, ...]
    at: int
    size: int

    @property
    def extent(self) -> int:
        """Of the axis that is cut."""
        return self.axes[self.at].extent

    @cached_property
    def inner(self) -> int:
        """Elements per step of the cut axis."""
        return prod(v.extent for v in self.axes[self.at + 1 :])

    @cached_property
    def outer(self) -> int:
        """Combinations of the axes before the cut one."""
        return prod(v.extent for v in self.axes[: self.at])

    @property
    def pieces(self) -> int:
        """Pieces of the cut axis."""
        return -(-self.extent // self.size)

    @property
    def large(self) -> int:
        """How many of the pieces have ``size`` steps."""
        return self.extent - self.pieces * (self.size - 1)

    @cached_property
    def total(self) -> int:
        """Pieces in all."""
        return self.outer * self.pieces

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that occur."""
        return (self.size,) if self.large == self.pieces else (self.size, self.size - 1)


def power(n: int) -> int:
    """The largest power of two not above ``n``."""
    return 1 << (n.bit_length() - 1)
