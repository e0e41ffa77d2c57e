"""A sort written with other nodes, for devices that have none of their own: blocks, then merges.

A block is sorted by counting: the place of an element is the number of those that go before it.
Sorted runs are merged in pairs, each element of the result finding by itself, with a binary
search, which of the two runs it comes from. Everything is a gather; no two threads write to one
place, and equal elements keep their order. Only the part that is asked for is merged on.
"""

from __future__ import annotations

import math

from coregrad import dtypes
from coregrad.dtypes import DType
from coregrad.ir import build
from coregrad.ir.graph import Node

BLOCK = 32  # elements that are sorted by counting: some thousand comparisons, all independent


def composed(node: Node) -> Node:
    """The value of an argsort node, made of other nodes."""
    x, count = node.src[0], node.arg
    length = x.shape[-1]
    rows = math.prod(x.shape[:-1])
    keys = build.contiguous(build.reshape(x, (rows, length)))
    if length <= BLOCK:
        places = build.shrink(_by_ranks(keys), ((0, rows), (0, count)))
    else:
        places = _merge_sorted(keys, count)
    return build.reshape(build.cast(places, node.dtype), node.shape)


def _by_ranks(keys: Node) -> Node:
    """Where each place of the sorted rows is filled from, as int32."""
    rows, length = keys.shape
    square = (rows, length, length)
    mine = build.expand(build.reshape(keys, (rows, length, 1)), square)
    other = build.expand(build.reshape(keys, (rows, 1, length)), square)
    i, j = _numbers(square, 1, dtypes.int32), _numbers(square, 2, dtypes.int32)
    before = build.where(build.lt(j, i), build.le(other, mine), build.lt(other, mine))
    ranks = build.contiguous(build.reduce("add", build.cast(before, dtypes.int32), (2,)))
    rank = build.expand(build.reshape(ranks, (rows, 1, length)), square)
    hit = build.where(build.eq(rank, i), j, build.const_like(j, 0))
    return build.reduce("add", hit, (2,))


def _numbers(shape: tuple[int, ...], axis: int, dtype: DType) -> Node:
    """The index along ``axis``, in each place of ``shape``."""
    line = tuple(n if a == axis else 1 for a, n in enumerate(shape))
    return build.expand(build.reshape(build.iota(shape[axis], dtype), line), shape)


def _merge_sorted(keys: Node, count: int) -> Node:
    """The first ``count`` places of each sorted row. Rows are filled up with the largest key: it
    stands behind equal ones, so none of what is added comes among the first."""
    rows, length = keys.shape
    blocks = 1 << (math.ceil(length / BLOCK) - 1).bit_length()
    size = blocks * BLOCK
    number = dtypes.int32 if rows * size <= dtypes.int32.max else dtypes.int64
    keys = build.pad(keys, ((0, 0), (0, size - length)), keys.dtype.max)
    keys = build.contiguous(build.reshape(keys, (rows * blocks, BLOCK)))
    order = build.cast(build.contiguous(_by_ranks(keys)), number)
    start = build.mul(_numbers(order.shape, 0, number), build.const_like(order, BLOCK))
    source = build.add(start, order)
    row = build.const_like(source, size)
    runs = _picked(keys, source), build.contiguous(build.mod(source, row))
    kept = max(BLOCK, 1 << (count - 1).bit_length())
    while runs[0].shape[0] > rows:
        source = _merged(runs[0], kept, number)
        runs = _picked(runs[0], source), _picked(runs[1], source)
    return build.shrink(runs[1], ((0, rows), (0, count)))


def _picked(x: Node, source: Node) -> Node:
    """The elements of ``x``, flattened, that ``source`` names."""
    return build.contiguous(build.gather(build.reshape(x, (math.prod(x.shape),)), source))


def _merged(keys: Node, kept: int, number: DType) -> Node:
    """Where (in all of ``keys``) each element of every two neighbouring runs, merged, comes from.

    Of the first k elements of a merged pair, i come from the left run. That is the largest i for
    which the last of these is not above the first that the right run would have to give instead:
    found from the highest bit down.
    """
    runs, run = keys.shape
    shape = (runs // 2, min(2 * run, kept))
    flat = build.reshape(keys, (runs * run,))

    def every(value: int) -> Node:
        return build.const(value, number, shape)

    def key(place: Node, inside: Node) -> Node:
        return build.gather(flat, build.where(inside, place, every(0)))

    k = _numbers(shape, 1, number)
    left = build.mul(_numbers(shape, 0, number), every(2 * run))  # where the left run starts
    right = build.add(left, every(run))
    most = build.minimum(k, every(run))
    i = build.maximum(build.sub(k, every(run)), every(0))
    step = run
    while step:
        more = build.add(i, every(step))
        inside = build.le(more, most)
        last = key(build.sub(build.add(left, more), every(1)), inside)
        first = key(build.add(right, build.sub(k, more)), inside)
        i = build.where(build.and_(inside, build.le(last, first)), more, i)
        step //= 2
    j = build.sub(k, i)
    some_left, some_right = build.lt(i, every(run)), build.lt(j, every(run))
    mine, other = build.add(left, i), build.add(right, j)
    not_above = build.le(key(mine, some_left), key(other, some_right))
    from_left = build.and_(some_left, build.or_(build.invert(some_right), not_above))
    return build.contiguous(build.where(from_left, mine, other))
