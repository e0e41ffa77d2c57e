"""Graph to graph, before scheduling: what one kernel would do badly is cut into several.

Large reductions with few results become two (partial results, then their sum), with blocks set by
size and never by the number of threads; wide concatenations become trees; long element-wise chains
get a buffer now and then; a scatter gets a base of its own; windows that are added back at a stride
are sorted by remainder. A cut is a ``contiguous`` node, which always has a buffer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from coregrad import dtypes
from coregrad.dtypes import DType
from coregrad.ir import build, ops, remainders, sort
from coregrad.ir.graph import Node, intern, toposort
from coregrad.ir.pick import pick
from coregrad.ir.runs import Runs, bare

BLOCK = 4096  # elements that one partial result takes in
FEW = 1024  # results that are enough to share out among threads
LONG = 1 << 16  # elements that no single running sum should take in, for accuracy
ROWS = 16  # rows that a sum of columns adds up at a time
MORE_ROWS = 48  # the same of rows that lie in a cache: their partial sums are fewer to add up
FAR = 1 << 18  # elements that no longer lie in the nearest caches
FARTHEST = 1 << 22  # elements that may lie in no cache
PARTS = 4  # parts of a concatenation that one kernel may choose among
SCANNED = 2048  # elements of a block that is scanned in one go
ROWS_ENOUGH = 64  # rows that keep every thread busy without blocks
TERMS = 4  # products that a sum needs to be treated as a contraction
DEPTH = 128  # element-wise ops in a row before the chain is cut


def split(
    roots: Sequence[Node],
    sorts: Callable[[Node], bool] = lambda _: False,
    runs: Runs | None = None,
) -> list[Node]:
    """The same values with large reductions, wide concatenations and long chains cut up, and with
    sorts written out, except those of which ``sorts`` says that the device does them itself.
    Concatenations whose parts find places in ``runs`` stay whole."""
    done: dict[Node, Node] = {}
    kept = {bare(root) for root in roots}
    depth: dict[Node, int] = {}
    for node in toposort(roots):
        src = tuple(done[s] for s in node.src)
        made = node if src == node.src else intern(node.op, src, node.arg, node.dtype, node.shape)
        if made.op is ops.REDUCE:
            made = _split_reduction(made)
        elif made.op in (ops.FOLD, ops.SHRINK):
            made = remainders.apart(node, done) or made
        elif made.op is ops.SCAN:
            made = _split_scan(made)
        elif made.op is ops.ARGSORT:
            made = _rows_to_sort(made) if sorts(made) else sort.composed(made)
        elif made.op is ops.CAT and len(src) > PARTS:
            whole = runs.whole(made) if runs is not None else None
            made = whole or _cat_tree(src, made.arg)
        elif made.op is ops.CONTIGUOUS and runs is not None:
            runs.row(made)
        elif made.op is ops.SCATTER:
            made = _own_base(made)
        depth[made] = (
            0
            if made.op in _CUTS
            else 1 + max((depth[s] for s in made.src if s in depth), default=0)
        )
        if depth[made] > DEPTH and made.op in ops.ELEMENTWISE and not _is_product(made):
            made = build.contiguous(made)
            depth[made] = 0
        if runs is not None and node in kept:
            runs.keep(made)
        done[node] = made
    made_of = [done[root] for root in roots]
    return made_of if runs is None else runs.finish(made_of)


_CUTS = frozenset(
    (ops.BUFFER, ops.CONST, ops.IOTA, ops.CONTIGUOUS, ops.SCATTER, ops.SCAN, ops.REDUCE)
)


def neutral(kind: str, dtype: DType) -> int | float:
    """What changes nothing when it is folded into a reduction of this kind."""
    if kind == "max":
        return dtype.min
    return 1 if kind == "mul" else 0


def _split_reduction(node: Node) -> Node:
    kind, axes = node.arg
    x = node.src[0]
    length = math.prod(x.shape[a] for a in axes)
    results = math.prod(node.shape)
    if length == 0:
        return build.const(neutral(kind, node.dtype), node.dtype, node.shape)
    if kind == "argmax":
        return _first_of_largest(node)
    if pick(node) is not None:
        return node
    if length >= 4 * ROWS and length * results >= FAR and not is_product_sum(node):
        if _walks_columns(x, axes):
            return _two_stages(x, kind, axes, _row_blocks(length, results))
        if len(axes) == 1 and _lies_in_columns(x, axes[0]):
            (axis,) = axes
            others = (a for a in range(len(x.shape)) if a != axis)
            x = build.permute(x, (axis, *others))
            return _two_stages(x, kind, (0,), _row_blocks(length, results))
    worth = length >= 2 * BLOCK and results < FEW and length * results >= 8 * BLOCK
    if worth or (length >= LONG and kind == "add"):
        return _two_stages(x, kind, axes, max(2, min(512, length // BLOCK)))
    return node


def _first_of_largest(node: Node) -> Node:
    """An argmax of short rows as the first place of their maximum, or of a NaN: two walks over a
    row that lies in the nearest cache by then, with 32-bit places, which take half the time of
    one with pairs of a value and a 64-bit place."""
    (axis,) = node.arg[1]
    (x,) = node.src
    length = x.shape[axis]
    rows = axis == len(x.shape) - 1 and ROWS <= length <= BLOCK and x.dtype.itemsize <= 4
    if not rows or math.prod(node.shape) < ROWS_ENOUGH:
        return node
    kept = (*x.shape[:-1], 1)
    largest = build.expand(build.reshape(build.reduce("max", x, (axis,)), kept), x.shape)
    other = build.lt(x, largest)
    if x.dtype.is_float:
        other = build.or_(other, build.and_(build.ne(largest, largest), build.eq(x, x)))
    places = build.mul(build.iota(length, dtypes.int32), build.const(-1, dtypes.int32, (length,)))
    places = build.expand(build.reshape(places, (*[1] * axis, length)), x.shape)
    first = build.reduce(
        "max", build.where(other, build.const_like(places, -length), places), (axis,)
    )
    return build.cast(build.neg(first), node.dtype)


def _row_blocks(length: int, results: int) -> int:
    """How many blocks of rows a sum of columns is cut into."""
    rows = ROWS if length * results >= FARTHEST else MORE_ROWS
    return max(4, length // rows)


def _walks_columns(x: Node, axes: Sequence[int]) -> bool:
    """Whether neighbouring elements belong to different results, as in a sum of columns. One
    result then reads far apart; a few rows at a time are read as they lie."""
    last = len(x.shape) - 1
    return last not in axes and x.shape[last] >= 64


def _lies_in_columns(x: Node, summed: int) -> bool:
    """The same of values that stand otherwise in memory: a matrix of which a product with a vector
    adds up the rows."""
    axis = _neighbours(x)
    return axis is not None and axis != summed and x.shape[axis] >= 64


def _neighbours(x: Node) -> int | None:
    """The axis along which the elements of a stored matrix stand side by side, as far as an
    expression of one such and of repeated values is easily followed down to it."""
    axes = list(range(len(x.shape)))  # for each axis of the node, which one of x it is
    node = x
    while node.op is not ops.BUFFER:
        below = [s for s in node.src if s.op not in (ops.EXPAND, ops.CONST)]
        if len(below) != 1:
            return None
        if node.op is ops.PERMUTE:
            axes = [axis for _, axis in sorted(zip(node.arg, axes, strict=True))]
        elif node.op is ops.RESHAPE:
            kept = [a for a, n in zip(axes, node.shape, strict=True) if n != 1]
            if [n for n in node.shape if n != 1] != [n for n in below[0].shape if n != 1]:
                return None
            left = iter(kept)
            axes = [next(left) if n != 1 else -1 for n in below[0].shape]
        elif node.op not in ops.ELEMENTWISE and node.op is not ops.CONTIGUOUS:
            return None
        (node,) = below
    wide = [a for a, n in zip(axes, node.shape, strict=True) if n != 1]
    return wide[-1] if wide else None


def _two_stages(x: Node, kind: str, axes: Sequence[int], wanted: int) -> Node:
    axis = next(a for a in axes if x.shape[a] > 1)
    size = x.shape[axis]
    blocks = _blocks(size, wanted)
    per_block = -(-size // blocks)
    if per_block * blocks != size:
        widths = [(0, 0)] * len(x.shape)
        widths[axis] = (0, per_block * blocks - size)
        x = build.pad(x, widths, neutral(kind, x.dtype))
    x = build.reshape(x, (*x.shape[:axis], blocks, per_block, *x.shape[axis + 1 :]))
    inner = tuple(a + 1 if a >= axis else a for a in axes)
    dtype = x.dtype
    wide = dtypes.accumulator(dtype)
    if dtype.is_float and wide is not dtype:  # partial sums stay in the accumulator's dtype
        x = build.cast(x, wide)
    partial = build.contiguous(build.reduce(kind, x, inner))
    position = axis - sum(a < axis for a in axes)
    return build.cast(_split_reduction(build.reduce(kind, partial, (position,))), dtype)


def _blocks(size: int, wanted: int) -> int:
    """How many blocks to cut ``size`` into: a divisor near ``wanted`` if there is one."""
    if size <= wanted:
        return size
    near = [b for b in range(max(2, wanted // 2), min(size, 2 * wanted) + 1) if size % b == 0]
    return min(near, key=lambda b: abs(b - wanted)) if near else wanted


def _split_scan(node: Node) -> Node:
    """A scan as (outer, length, inner) along the middle axis; a long one of few rows by blocks.

    Blocks are scanned side by side, then their totals, which are joined to what follows them.
    """
    kind, axis = node.arg
    shape = node.shape
    outer, length, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    x = build.reshape(node.src[0], (outer, length, inner))
    if outer * inner >= ROWS_ENOUGH or length < 4 * SCANNED:
        return build.reshape(_scanned(kind, x), shape)
    blocks = -(-length // SCANNED)
    x = build.pad(x, ((0, 0), (0, blocks * SCANNED - length), (0, 0)), neutral(kind, node.dtype))
    within = _scanned(kind, build.reshape(x, (outer * blocks, SCANNED, inner)))
    rows = build.reshape(within, (outer, blocks, SCANNED, inner))
    ends = ((0, outer), (0, blocks), (SCANNED - 1, SCANNED), (0, inner))
    totals = build.reshape(build.shrink(rows, ends), (outer, blocks, inner))
    totals = _split_scan(build.scan(kind, totals, 1))
    before = build.pad(totals, ((0, 0), (1, 0), (0, 0)), neutral(kind, node.dtype))
    before = build.shrink(before, ((0, outer), (0, blocks), (0, inner)))
    before = build.expand(build.reshape(before, (outer, blocks, 1, inner)), rows.shape)
    joined = build.reshape(_JOINS[kind](before, rows), (outer, blocks * SCANNED, inner))
    return build.reshape(build.shrink(joined, ((0, outer), (0, length), (0, inner))), shape)


def _scanned(kind: str, x: Node) -> Node:
    return intern(ops.SCAN, (x,), (kind, 1), x.dtype, x.shape)


_JOINS = {"add": build.add, "mul": build.mul, "max": build.maximum}


def _rows_to_sort(node: Node) -> Node:
    """A sort that the device does itself: of rows that lie in memory, one after the other."""
    x = node.src[0]
    length = x.shape[-1]
    rows = math.prod(x.shape[:-1])
    while x.op is ops.RESHAPE:
        x = x.src[0]
    keys = build.reshape(build.contiguous(x), (rows, length))
    made = intern(ops.ARGSORT, (keys,), node.arg, node.dtype, (rows, node.arg))
    return build.reshape(made, node.shape)


def _own_base(node: Node) -> Node:
    """A scatter writes into its base's buffer: give it one that nobody else has."""
    base, index, value = node.src
    own = intern(ops.CONTIGUOUS, (base,), object(), base.dtype, base.shape)
    return intern(ops.SCATTER, (own, index, value), node.arg, node.dtype, node.shape)


def _cat_tree(parts: Sequence[Node], axis: int) -> Node:
    while len(parts) > PARTS:
        groups = [parts[i : i + PARTS] for i in range(0, len(parts), PARTS)]
        parts = [build.contiguous(build.cat(g, axis)) if len(g) > 1 else g[0] for g in groups]
    return build.cat(parts, axis)


def _is_product(node: Node) -> bool:
    """Whether a node multiplies each with each, which only the sum over it should be made of."""
    return node.op is ops.MUL and all(s.op is ops.EXPAND for s in node.src)


def is_product_sum(node: Node) -> bool:
    """Whether a node is a contraction by its looks: a sum over the product of two tensors, each
    repeated along an axis of the other. It will want a kernel of its own."""
    if node.op is not ops.REDUCE or node.arg[0] != "add" or node.src[0].op is not ops.MUL:
        return False
    product = node.src[0]
    axes = set(range(len(product.shape))) - set(node.arg[1])
    a, b = (_repeated_axes(s) & axes for s in product.src)
    summed = math.prod(product.shape[axis] for axis in node.arg[1])
    return bool(a - b) and bool(b - a) and summed >= TERMS


def _repeated_axes(node: Node) -> set[int]:
    if node.op is not ops.EXPAND:
        return set()
    sizes = zip(node.src[0].shape, node.shape, strict=True)
    return {axis for axis, (before, after) in enumerate(sizes) if before != after}
