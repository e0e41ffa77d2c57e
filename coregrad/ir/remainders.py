"""Windows that are added back at a stride, as windows at every place: one set for each remainder.

A position ``p = s*q + r`` of an axis gets only the taps ``k = s*j + r`` of windows ``s`` apart:
those of window ``q - j``. So the taps are laid out by ``r`` and ``j``, folded along ``j`` at a
stride of 1, and what ``q`` and ``r`` number are neighbours. No tap is looked at that has no term
there, and no index is divided. (The gradient of a strided convolution, Dumoulin and Visin, "A guide
to convolution arithmetic for deep learning", 2016, section 4.)
"""

from __future__ import annotations

from collections.abc import Mapping

from coregrad.ir import build, ops
from coregrad.ir.graph import Node


def apart(node: Node, done: Mapping[Node, Node]) -> Node | None:
    """A fold, or what is left of folds when their borders are cut off, made so; None for others.

    ``done`` are the sources as they will be.
    """
    ranges = node.arg if node.op is ops.SHRINK else tuple((0, size) for size in node.shape)
    folds, inner = [], node.src[0] if node.op is ops.SHRINK else node
    while _overlaps_at_a_stride(inner):
        folds.append(inner)
        inner = inner.src[0]
    if not folds:
        return None
    out = done[inner]
    rest = list(ranges)
    for fold in reversed(folds):
        axis = fold.arg[0]
        out = _by_remainder(out, axis, fold.arg[2], *ranges[axis])
        rest[axis] = 0, out.shape[axis]
    return build.shrink(out, tuple(rest))


def _overlaps_at_a_stride(node: Node) -> bool:
    if node.op is not ops.FOLD:
        return False
    _, _, stride, dilation = node.arg
    return bool(1 < stride < node.src[0].shape[-1] and dilation == 1)


def _by_remainder(x: Node, axis: int, stride: int, start: int, stop: int) -> Node:
    """Elements ``start`` to ``stop`` of the fold of ``x`` into ``axis``."""
    front = -start % stride  # taps before the first, so that remainders count from ``start``
    each = -(-(front + x.shape[-1]) // stride)
    x = _padded(x, len(x.shape) - 1, front, each * stride)
    x = build.reshape(x, (*x.shape[:-1], each, stride))
    last = len(x.shape) - 1
    x = build.permute(x, (*range(axis + 1), last, *range(axis + 1, last)))
    x = build.fold(x, axis, x.shape[axis] + each - 1)
    first, count = (start + front) // stride, -(-(stop - start) // stride)
    x = _padded(x, axis, 0, max(x.shape[axis], first + count))
    x = _part(x, axis, first, first + count)
    x = build.reshape(x, (*x.shape[:axis], count * stride, *x.shape[axis + 2 :]))
    return _part(x, axis, 0, stop - start)


def _padded(x: Node, axis: int, before: int, total: int) -> Node:
    after = total - before - x.shape[axis]
    if not before and not after:
        return x
    return build.pad(
        x, tuple((before, after) if a == axis else (0, 0) for a in range(len(x.shape)))
    )


def _part(x: Node, axis: int, start: int, stop: int) -> Node:
    ranges = [(0, size) for size in x.shape]
    ranges[axis] = start, stop
    return build.shrink(x, tuple(ranges))
