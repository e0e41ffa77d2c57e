"""Sums that keep one element: ``where(count == y, f, 0)`` summed along the count is ``f`` at ``y``.

So is a label's logarithm picked in a cross entropy, and so its gradient is spread again. What is
added besides is 0, and ``0 + f`` is ``f`` (and 0 for -0), so that no loop is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from coregrad import dtypes
from coregrad.ir import ops
from coregrad.ir.graph import Node

INTEGERS = (dtypes.int32, dtypes.int64)  # in which no count below 2**31 has wrapped


@dataclass(frozen=True)
class Pick:
    """The element of ``value`` whose number along ``axis`` is ``number``, or 0 if there is none,
    times ``factor``."""

    axis: int
    number: Node
    value: Node
    factor: Node | None = None


def pick(node: Node) -> Pick | None:
    """A reduction as a pick, if it is one."""
    if node.op is not ops.REDUCE or node.arg[0] != "add" or len(node.arg[1]) != 1:
        return None
    (axis,) = node.arg[1]
    chosen, factor = _factored(node.src[0])
    if chosen.op is not ops.WHERE or not 1 < chosen.shape[axis] <= dtypes.int32.max:
        return None
    differs, other, value = chosen.src
    if differs.op is not ops.NE or other.op is not ops.CONST or other.arg != 0:
        return None
    for count, number in (differs.src, differs.src[::-1]):
        if _counts(count, axis) and _is_repeated(number, axis):
            return Pick(axis, number, value, factor)
    return None


def asked_for(node: Node) -> tuple[Node, ...]:
    """The nodes whose elements an element of this one is made of: its sources, but of a pick the
    parts that are left, also where what stood between them has a buffer."""
    found = pick(node)
    if found is None:
        return node.src
    parts = (found.number, found.value)
    return parts if found.factor is None else (*parts, found.factor)


def _factored(node: Node) -> tuple[Node, Node | None]:
    """A product with a finite constant as the other factor and it: where that is 0 the product is
    0, or -0, which adds nothing either."""
    if node.op is ops.MUL:
        for value, factor in (node.src, node.src[::-1]):
            if factor.op is ops.CONST and math.isfinite(dtypes.from_bits(factor.arg, factor.dtype)):
                return value, factor
    return node, None


def _counts(node: Node, axis: int) -> bool:
    """Whether each element is its own number along an axis."""
    if node.dtype not in INTEGERS:
        return False
    if node.op is ops.EXPAND and node.src[0].shape[axis] == node.shape[axis]:
        node = node.src[0]
    alone = all(size == 1 for other, size in enumerate(node.shape) if other != axis)
    while node.op is ops.RESHAPE:
        node = node.src[0]
    return alone and node.op is ops.IOTA


def _is_repeated(node: Node, axis: int) -> bool:
    return node.op is ops.EXPAND and node.src[0].shape[axis] == 1
