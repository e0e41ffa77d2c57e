"""int64 arithmetic on operands that may be known numbers: folded here, else written as IR."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeAlias

from coregrad_cpu.llvm.frame import Frame

Operand: TypeAlias = "int | str"


class Arith:
    """Writes index arithmetic into a frame; Python ints stay Python ints as long as possible."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def add(self, a: Operand, b: Operand) -> Operand:
        """a + b"""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if a == 0 or b == 0:
            return b if a == 0 else a
        return self.frame.op(f"add nsw i64 {a}, {b}")

    def sub(self, a: Operand, b: Operand) -> Operand:
        """a - b"""
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return a if b == 0 else self.frame.op(f"sub nsw i64 {a}, {b}")

    def mul(self, a: Operand, b: Operand) -> Operand:
        """a * b"""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if a == 0 or b == 0:
            return 0
        if a == 1 or b == 1:
            return b if a == 1 else a
        return self.frame.op(f"mul nsw i64 {a}, {b}")

    def min(self, a: Operand, b: Operand) -> Operand:
        """The smaller."""
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return self.frame.call("i64", "llvm.smin.i64", ("i64", str(a)), ("i64", str(b)))

    def max(self, a: Operand, b: Operand) -> Operand:
        """The larger."""
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return self.frame.call("i64", "llvm.smax.i64", ("i64", str(a)), ("i64", str(b)))

    def divmod(self, a: Operand, b: int) -> tuple[Operand, Operand]:
        """a // b and a % b for a >= 0."""
        if isinstance(a, int):
            return divmod(a, b)
        if b == 1:
            return a, 0
        return self.frame.op(f"udiv i64 {a}, {b}"), self.frame.op(f"urem i64 {a}, {b}")

    def ceildiv(self, a: Operand, b: int) -> Operand:
        """a // b, rounded up."""
        return self.divmod(self.add(a, b - 1), b)[0]

    def unflatten(self, position: Operand, extents: Sequence[int]) -> list[Operand]:
        """The index on each axis of the element at a row-major position."""
        found: list[Operand] = []
        for at in range(len(extents)):
            inner = prod(extents[at + 1 :])
            if at + 1 == len(extents):
                found.append(position)
                break
            index, position = self.divmod(position, inner)
            found.append(index)
        return found

    def less(self, a: Operand, b: Operand) -> str:
        """The i1 a < b."""
        if isinstance(a, int) and isinstance(b, int):
            return "true" if a < b else "false"
        return self.frame.op(f"icmp slt i64 {a}, {b}")

    def at(self, pointer: str, offset: Operand, scalar: str) -> str:
        """The address ``offset`` elements behind ``pointer``."""
        if offset == 0:
            return pointer
        return self.frame.op(f"getelementptr {scalar}, ptr {pointer}, i64 {offset}")
