"""Gradients as graphs: a row per op and one walk backwards; it builds nodes, computing nothing.

A row is the op's vector-Jacobian product: ``row(g, node, i)`` is the gradient that source ``i`` of
``node`` receives when ``node`` receives ``g``. Rows use the checked constructors only, so a
gradient is a graph like any other, with gradients of its own.

Two rules hold for every row. A formula never divides by the node's value (a product's gradient is
right when factors are zero). And where ``g`` is exactly 0 an infinite derivative counts as 0, so
that the branch ``where`` did not take stays silent: ``where(x > 0, log(x), 2*x)`` has gradient 2
at 0. The derivative itself is replaced there, never the product: a product masked by ``g == 0``
would be constant in ``g``, and second derivatives would be wrong wherever a first one is 0.
(Only a product keeps 0 * inf: a choice between its factors would hide contractions.)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

from coregrad import dtypes
from coregrad.errors import DTypeError, GradientError, ShapeError, VerifyError
from coregrad.ir import build, formula, ops
from coregrad.ir.graph import Node, toposort
from coregrad.ir.ops import Op
from coregrad.ir.together import MANY, added_together

VJP: TypeAlias = Callable[[Node, Node, int], Node]


class Rule(Protocol):
    """What the ``arg`` of a custom node offers."""

    def vjp(self, gradient: Node) -> Sequence[Node | None]:
        """One gradient per input of the custom node, None for an input that has none."""


def _zeros(x: Node) -> Node:
    return build.const_like(x, 0)


# ---- element-wise ------------------------------------------------------------------------------


def _where_it_counts(g: Node, usable: Node, x: Node, neutral: float) -> Node:
    """``x``, but ``neutral`` where it is not ``usable`` and ``g`` is 0 anyway."""
    counts = build.or_(build.ne(g, _zeros(g)), usable)
    return build.where(counts, x, build.const_like(x, neutral))


def _divisor(g: Node, x: Node) -> Node:
    """``x`` to divide ``g`` by: 0/0 and 0/NaN become 0/1."""
    zero = _zeros(x)
    usable = build.or_(build.lt(x, zero), build.lt(zero, x))
    return _where_it_counts(g, usable, x, 1)


def _times(g: Node, slope: Node) -> Node:
    """``g * slope``, with 0 for 0 * inf and 0 * NaN. (No slope in this file is -inf.)"""
    finite = build.lt(slope, build.const_like(slope, math.inf))
    return build.mul(g, _where_it_counts(g, finite, slope, 0))


def _sqrt(g: Node, node: Node, i: int) -> Node:
    positive = build.lt(_zeros(node), node)  # neither 0 nor NaN
    root = _where_it_counts(g, positive, node, 1)
    return build.div(g, build.add(root, root))


def _div(g: Node, node: Node, i: int) -> Node:
    a, b = node.src
    divisor = _divisor(g, b)
    share = build.div(g, divisor)
    return share if i == 0 else build.neg(build.mul(share, build.div(a, divisor)))


def _mod(g: Node, node: Node, i: int) -> Node:
    """Of ``a - b*trunc(a/b)``, where trunc is flat."""
    if i == 0:
        return g
    a, b = node.src
    quotient = build.trunc(build.div(a, _divisor(g, b)))
    return build.neg(build.mul(g, quotient))


def _max(g: Node, node: Node, i: int) -> Node:
    """To the larger operand, in halves to equal ones, to both if either is NaN (like PyTorch)."""
    mine, other = node.src[i], node.src[1 - i]
    half = build.mul(g, build.const_like(g, 0.5))
    kept = build.where(build.ne(mine, other), g, half)
    return build.where(build.lt(mine, other), _zeros(g), kept)


def _where(g: Node, node: Node, i: int) -> Node:
    kept = (g, _zeros(g)) if i == 1 else (_zeros(g), g)
    return build.where(node.src[0], *kept)


# ---- reductions --------------------------------------------------------------------------------


def _reduce(g: Node, node: Node, i: int) -> Node:
    kind, axes = node.arg
    return _REDUCTIONS[kind](g, node, axes)


def _spread(g: Node, x: Node, axes: tuple[int, ...]) -> Node:
    """``g`` repeated along the axes of ``x`` that were reduced."""
    kept = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))
    return build.expand(build.reshape(g, kept), x.shape)


def _reduce_add(g: Node, node: Node, axes: tuple[int, ...]) -> Node:
    return _spread(g, node.src[0], axes)


def _reduce_max(g: Node, node: Node, axes: tuple[int, ...]) -> Node:
    """In equal parts to all that are as large as the result; to the NaNs if it is NaN."""
    x = node.src[0]
    chosen = build.or_(build.eq(x, _spread(node, x, axes)), build.ne(x, x))
    wide = dtypes.accumulator(x.dtype)  # float16 cannot count beyond 2048
    count = build.reduce("add", build.cast(chosen, wide), axes)
    share = build.cast(build.div(build.cast(g, wide), count), x.dtype)
    return build.where(chosen, _spread(share, x, axes), _zeros(x))


def _reduce_mul(g: Node, node: Node, axes: tuple[int, ...]) -> Node:
    """Each factor receives ``g`` times the product of all the others."""
    x = node.src[0]
    if 0 in x.shape:
        return _zeros(x)
    wide = dtypes.accumulator(x.dtype)
    kept = tuple(axis for axis in range(len(x.shape)) if axis not in axes)
    order = (*kept, *axes)
    rows = build.permute(build.cast(x, wide), order)
    factors = build.reshape(rows, (*node.shape, math.prod(x.shape[a] for a in axes)))
    others = build.reshape(_products_of_others(factors), rows.shape)
    others = build.permute(others, _inverse(order))
    return build.cast(build.mul(_spread(build.cast(g, wide), x, axes), others), x.dtype)


def _products_of_others(x: Node) -> Node:
    """For each element of the last axis the product of all the others, without a division.

    A binary tree: going up, each level holds the products of pairs; going down, everything but
    me is everything but my pair times my sibling. About three products per element.
    """
    rest, length = x.shape[:-1], x.shape[-1]
    depth = (length - 1).bit_length()
    border = ((0, 0),) * len(rest)
    levels = [build.pad(x, (*border, (0, 2**depth - length)), 1)]
    for height in range(depth, 0, -1):
        pairs = build.reshape(levels[-1], (*rest, 2 ** (height - 1), 2))
        levels.append(build.reduce("mul", pairs, (len(rest) + 1,)))
    others = build.const(1, x.dtype, (*rest, 1))
    for height, level in enumerate(reversed(levels[:-1])):
        shape = (*rest, 2**height, 2)
        siblings = build.flip(build.reshape(level, shape), (len(rest) + 1,))
        outside = build.expand(build.reshape(others, (*rest, 2**height, 1)), shape)
        others = build.reshape(build.mul(outside, siblings), (*rest, 2 ** (height + 1)))
    return build.shrink(others, (*((0, n) for n in rest), (0, length)))


_REDUCTIONS: dict[str, Callable[[Node, Node, tuple[int, ...]], Node]] = {
    "add": _reduce_add,
    "mul": _reduce_mul,
    "max": _reduce_max,  # argmax is an integer: the walk never comes there
}


def _scan(g: Node, node: Node, i: int) -> Node:
    """Of a running sum: element i has gone into all results from i on."""
    kind, axis = node.arg
    if kind != "add":
        raise GradientError(f"scan: a running {kind} has no rule of its own; give it one (custom)")
    return build.flip(build.scan("add", build.flip(g, (axis,)), axis), (axis,))


# ---- movement ----------------------------------------------------------------------------------


def _inverse(axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(axes.index(axis) for axis in range(len(axes)))


def _permute(g: Node, node: Node, i: int) -> Node:
    return build.permute(g, _inverse(node.arg))


def _expand(g: Node, node: Node, i: int) -> Node:
    x = node.src[0]
    grown = tuple(a for a, (n, m) in enumerate(zip(x.shape, node.shape, strict=True)) if n != m)
    return build.reshape(build.reduce("add", g, grown), x.shape)


def _pad(g: Node, node: Node, i: int) -> Node:
    widths, _ = node.arg
    inside = ((lo, lo + n) for (lo, _), n in zip(widths, node.src[0].shape, strict=True))
    return build.shrink(g, tuple(inside))


def _shrink(g: Node, node: Node, i: int) -> Node:
    cut = ((lo, n - hi) for (lo, hi), n in zip(node.arg, node.src[0].shape, strict=True))
    return build.pad(g, tuple(cut))


def _window(g: Node, node: Node, i: int) -> Node:
    axis, _, stride, dilation = node.arg
    return build.fold(g, axis, node.src[0].shape[axis], stride, dilation)


def _fold(g: Node, node: Node, i: int) -> Node:
    axis, _, stride, dilation = node.arg
    return build.window(g, axis, node.src[0].shape[-1], stride, dilation)


def _cat_gradients(g: Node, node: Node, active: set[Node]) -> Iterator[tuple[int, Node]]:
    """To each part its block."""
    axis = node.arg
    ranges = [(0, n) for n in node.shape]
    end = 0
    for i, part in enumerate(node.src):
        start, end = end, end + part.shape[axis]
        if part in active:
            ranges[axis] = (start, end)
            yield i, build.shrink(g, ranges)


def _slice(g: Node, node: Node, i: int) -> Node:
    x, *starts = node.src
    return build.update_at(_zeros(x), g, node.arg[0], starts)


def _update(g: Node, node: Node, i: int) -> Node:
    _, value, *starts = node.src
    if i == 0:
        return build.update_at(g, _zeros(value), node.arg, starts)
    return build.slice_at(g, node.arg, starts, [value.shape[axis] for axis in node.arg])


# ---- data-dependent ----------------------------------------------------------------------------


def _gather(g: Node, node: Node, i: int) -> Node:
    x, index = node.src
    count = math.prod(index.shape)
    rows = build.reshape(g, (count, *x.shape[1:]))
    return build.scatter(_zeros(x), build.reshape(index, (count,)), rows, "add")


def _scatter(g: Node, node: Node, i: int) -> Node:
    _, index, value = node.src
    if i == 0:
        return g if node.arg == "add" else build.scatter(g, index, _zeros(value), "set")
    rows = build.gather(g, index)
    if node.arg == "add":
        return rows
    survives = build.reshape(_last_writes(node), (value.shape[0],) + (1,) * (len(value.shape) - 1))
    return build.where(build.expand(survives, value.shape), rows, _zeros(value))


def _last_writes(node: Node) -> Node:
    """Whether each row of a scatter's value is the last one set in its place: a bool per row."""
    base, index, value = node.src
    number = build.iota(value.shape[0], dtypes.int32)
    owners = build.const(0, dtypes.int32, (base.shape[0],))
    owners = build.scatter(owners, index, number, "set")
    return build.eq(build.gather(owners, index), number)


def _copy(g: Node, node: Node, i: int) -> Node:
    source, device = node.arg
    return build.copy(g, device, source)


# ---- the table ---------------------------------------------------------------------------------

# None: no gradient passes. Sources, and results that are integers, bools or piecewise constant.
# fmt: off
VJPS: dict[Op, VJP | None] = {
    ops.CONST:      None,
    ops.IOTA:       None,
    ops.NUMBER:     None,
    ops.BUFFER:     None,
    ops.REDUCE:     _reduce,
    ops.CAST:       lambda g, node, i: build.cast(g, node.src[0].dtype),
    ops.BITCAST:    None,
    ops.EXP:        lambda g, node, i: _times(g, node),
    ops.LOG:        lambda g, node, i: build.div(g, _divisor(g, node.src[0])),
    ops.SIN:        lambda g, node, i: _times(g, build.sin(node.src[0], node.arg + 1)),
    ops.SQRT:       _sqrt,
    ops.TRUNC:      None,
    ops.ADD:        lambda g, node, i: g,
    ops.MUL:        lambda g, node, i: build.mul(g, node.src[1 - i]),
    ops.DIV:        _div,
    ops.IDIV:       None,
    ops.MOD:        _mod,
    ops.MAX:        _max,
    ops.LT:         None,
    ops.NE:         None,
    ops.AND:        None,
    ops.OR:         None,
    ops.XOR:        None,
    ops.SHL:        None,
    ops.SHR:        None,
    ops.WHERE:      _where,
    ops.RESHAPE:    lambda g, node, i: build.reshape(g, node.src[0].shape),
    ops.PERMUTE:    _permute,
    ops.EXPAND:     _expand,
    ops.PAD:        _pad,
    ops.SHRINK:     _shrink,
    ops.FLIP:       lambda g, node, i: build.flip(g, node.arg),
    ops.WINDOW:     _window,
    ops.FOLD:       _fold,
    ops.CAT:        None,  # all parts at once: see _shares
    ops.SCAN:       _scan,
    ops.ARGSORT:    None,
    ops.SLICE:      _slice,
    ops.UPDATE:     _update,
    ops.GATHER:     _gather,
    ops.SCATTER:    _scatter,
    ops.CHECK:      None,
    ops.CONTIGUOUS: lambda g, node, i: g,
    ops.COPY:       _copy,
    ops.LEAF:       lambda g, node, i: g,
    ops.DETACH:     None,
    ops.CUSTOM:     None,  # its rule is the user's: see _shares
    ops.CALL:       None,  # has several results: see _shares
}
# fmt: on


# ---- the walk ----------------------------------------------------------------------------------


class Tape:
    """The nodes under some roots that a gradient may reach, sources before users."""

    def __init__(self, roots: Iterable[Node]) -> None:
        self.sources: dict[Node, tuple[Node, ...]] = {}  # of each, where a gradient passes on to
        self.order = toposort(roots, self._note)

    def _note(self, node: Node) -> tuple[Node, ...]:
        found = self.sources[node] = _differentiable(node)
        return found

    def leaves(self) -> list[Node]:
        """The nodes that are tensors of their own."""
        return [n for n in self.order if n.op is ops.LEAF and n.dtype.is_float]


def gradients(
    root: Node, seed: Node, wanted: Iterable[Node], tape: Tape | None = None
) -> dict[Node, Node]:
    """The gradient of ``sum(root * seed)`` for each of ``wanted`` that ``root`` depends on.

    A wanted node that no gradient reaches is missing from the result. ``tape`` may be one of more
    roots than this.
    """
    _check_seed(root, seed)
    tape = tape or Tape([root])
    targets = set(wanted)
    active: set[Node] = set()
    for node in tape.order:
        if node in targets or not active.isdisjoint(tape.sources[node]):
            active.add(node)
    received = {root: [seed]}
    found: dict[Node, Node] = {}
    for node in reversed(tape.order):
        if node not in active or node not in received:
            continue
        g = _total(received.pop(node))
        if node in targets:
            found[node] = g
        sources = tape.sources[node] if node.op is ops.LEAF else node.src
        for i, share in _shares(g, node, sources, active):
            received.setdefault(sources[i], []).append(share)
    return found


def _total(shares: Sequence[Node]) -> Node:
    """The sum of what a node receives.

    Many blocks that lie apart, as from the steps of a recurrent network, are put side by side:
    padded to full length and added, every one of them would cost as much as all. Many sums of one
    form, as for the weights of such a network, are one sum.
    """
    if len(shares) == 1:
        return shares[0]
    if len(shares) > MANY:
        shares = added_together(shares)
        placed = [(share, _placed(share)) for share in shares]
        for axis in dict.fromkeys(place[0] for _, place in placed if place is not None):
            blocks = {share: place[1:] for share, place in placed if place and place[0] == axis}
            joined = _side_by_side(axis, blocks) if len(blocks) > MANY else None
            if joined is not None:
                shares = [joined, *(share for share in shares if share not in blocks)]
    return functools.reduce(build.add, shares)


def _placed(share: Node) -> tuple[int, int, Node] | None:
    """(axis, start, block) of a block among zeros that is shorter along one axis only."""
    if share.op is ops.PAD and share.arg[1] == _zeros(share).arg:
        before = [(axis, low) for axis, (low, high) in enumerate(share.arg[0]) if low or high]
        return (*before[0], share.src[0]) if len(before) == 1 else None
    if share.op is ops.UPDATE and len(share.arg) == 1:
        base, block, start = share.src
        if base is _zeros(base) and start.op is ops.NUMBER:
            return share.arg[0], start.arg[0], block
    return None


def _side_by_side(axis: int, blocks: dict[Node, tuple[int, Node]]) -> Node | None:
    """Blocks of one whole with zeros between them; None where two of them overlap."""
    whole = next(iter(blocks))
    parts: list[Node] = []
    end = 0
    for start, block in sorted(blocks.values(), key=lambda one: one[0]):
        if start < end:
            return None
        parts += (_gap(whole, axis, start - end), block)
        end = start + block.shape[axis]
    parts.append(_gap(whole, axis, whole.shape[axis] - end))
    return build.cat([part for part in parts if part.shape[axis]], axis)


def _gap(whole: Node, axis: int, length: int) -> Node:
    return build.const(0, whole.dtype, (*whole.shape[:axis], length, *whole.shape[axis + 1 :]))


def _check_seed(root: Node, seed: Node) -> None:
    if not root.dtype.is_float:
        raise GradientError(
            f"backward: the result is {root.dtype.name}; only a float result has a gradient"
        )
    if seed.shape != root.shape:
        raise ShapeError(
            f"backward: the gradient has shape {seed.shape}, the result {root.shape}; "
            "give a gradient of the result's shape"
        )
    if seed.dtype is not root.dtype:
        raise DTypeError(
            f"backward: the gradient is {seed.dtype.name}, the result {root.dtype.name}; "
            "cast the gradient"
        )


_FLAT = {op for op, row in VJPS.items() if row is None} - {ops.CUSTOM, ops.CALL, ops.CAT}


def _differentiable(node: Node) -> tuple[Node, ...]:
    """The sources a gradient may pass on to."""
    op = node.op
    if op in _FLAT or not node.dtype.is_float:
        return ()
    sources = node.src
    if op is ops.LEAF:
        sources = _origin(node)
    elif op is ops.CUSTOM:  # not its first source, whose own gradient the rule replaces
        sources = sources[1:]
    return tuple([source for source in sources if source.dtype.is_float])


def _origin(leaf: Node) -> tuple[Node, ...]:
    """The source of a leaf. One whose value has been computed stands on a buffer; if its tag
    still knows what that was computed from (``tag.history()``), the gradient goes there."""
    history = getattr(leaf.arg, "history", None)
    computed = history() if history is not None else None
    return leaf.src if computed is None else (computed,)


def _shares(
    g: Node, node: Node, sources: Sequence[Node], active: set[Node]
) -> Iterator[tuple[int, Node]]:
    """(i, gradient) for each of the ``sources`` of ``node`` that a wanted node lies under."""
    if node.op is ops.CUSTOM:
        pairs = _custom_gradients(g, node)
        yield from ((i, share) for i, share in pairs if node.src[i] in active)
        return
    if node.op is ops.CALL:
        yield from _call_gradients(g, node, active)
        return
    if node.op is ops.CAT:
        yield from _cat_gradients(g, node, active)
        return
    row = VJPS[node.op]
    if row is None:
        return
    for i, source in enumerate(sources):
        if source in active and source.dtype.is_float:
            yield i, row(g, node, i)


def _custom_gradients(g: Node, node: Node) -> list[tuple[int, Node]]:
    """What a custom rule says, checked: it is the user's code."""
    inputs = node.src[1:]
    answers = tuple(node.arg.vjp(g))
    if len(answers) != len(inputs):
        raise GradientError(
            f"custom gradient: {len(answers)} gradients for {len(inputs)} inputs; "
            "return one per input, None for an input without a gradient"
        )
    pairs = []
    for i, (answer, x) in enumerate(zip(answers, inputs, strict=True), start=1):
        if answer is None:
            continue
        if answer.shape != x.shape or answer.dtype is not x.dtype:
            raise GradientError(
                f"custom gradient: input {i - 1} is {x.dtype.name} of shape {x.shape}, its "
                f"gradient {answer.dtype.name} of shape {answer.shape}; return one like the input"
            )
        pairs.append((i, answer))
    return pairs


def _call_gradients(g: Node, node: Node, active: set[Node]) -> Iterator[tuple[int, Node]]:
    """The gradients of a call are calls of formulas too, found once for every formula."""
    made: formula.Formula = node.arg
    wanted = tuple([i for i, s in enumerate(node.src) if s in active and s.dtype.is_float])
    derivatives = made.derivatives.get(wanted)
    if derivatives is None:
        derivatives = made.derivatives[wanted] = _derivatives(made, wanted)
    given = (*node.src, node, g)
    for i, derivative, used in derivatives:
        yield i, formula.call(derivative, [given[j] for j in used])


def _derivatives(
    made: formula.Formula, wanted: Sequence[int]
) -> list[tuple[int, formula.Formula, tuple[int, ...]]]:
    """For each wanted argument that the result depends on: its number, the formula of its
    gradient, and what this takes of the arguments, the result and the result's gradient."""
    result, parameters = made.result, made.parameters
    value = formula.hole(len(parameters), result)
    seed = formula.hole(len(parameters) + 1, result)
    found = gradients(result, seed, [parameters[i] for i in wanted])
    reached = [i for i in wanted if parameters[i] in found]
    # What is computed from the result itself takes the result, which may be known by then.
    shares = formula.replace([found[parameters[i]] for i in reached], result, value)
    closed = formula.close(f"{made.name}'", (*parameters, value, seed), shares)
    if closed is None:
        raise VerifyError(f"{made.name}: its gradient depends on values that are no argument's")
    return [(i, *pair) for i, pair in zip(reached, closed, strict=True)]
