"""One group of nodes to scalar instructions: a tensor is a function of its indices.

Evaluation starts at an output element ``out[i, j]`` and asks each node for its value at an index
tuple: movement ops only change the tuple, element-wise ops ask their sources, a reduction makes
fresh loop variables. The result is a graph of instructions, each knowing the loop variables it
depends on; :mod:`place` puts them into loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coregrad import dtypes
from coregrad.dtypes import DType, to_bits
from coregrad.ir import ops
from coregrad.ir.graph import Node
from coregrad.ir.index import (
    Index,
    Opaque,
    Var,
    constant,
    flatten,
    reshape,
    unflatten,
    variable,
)
from coregrad.ir.kernel import (
    INDEX,
    RESULT,
    Accumulator,
    Array,
    Instr,
    Param,
    Store,
)
from coregrad.ir.ops import Op
from coregrad.ir.pick import Pick, pick

Indices = tuple[Index, ...]
Request = tuple[Node, Indices, Instr | None]
Visit = Generator[Request, Instr, Instr]


DEAR = frozenset((ops.EXP, ops.LOG, ops.SIN, ops.DIV, ops.SQRT))
ORDERED = "s"  # the name of a loop variable whose iterations have an order
ABREAST = 4  # rows that one iteration of a scan takes: an addition's latency, in additions
TERMS = 64  # that a position is taken apart into: more are no sum of one index per axis
TUPLES = 4  # index tuples under which one kernel asks for a node before it gets a buffer


class NeedsBuffer(Exception):
    """Raised while evaluating: the kernel asks for this node in too many places."""

    def __init__(self, node: Node):
        super().__init__(node)
        self.node = node


@dataclass(eq=False)
class Reduction:
    """A sum, product or maximum being built: what is folded, over which variables, from where."""

    node: Node
    acc: Accumulator
    vars: tuple[Var, ...]
    axes: tuple[int, ...]  # sizes of the axes it was made for; merged sums add variables, not axes
    values: tuple[Instr, ...] = ()
    free: frozenset[Var] = frozenset()
    result: Instr | None = None


@dataclass(frozen=True)
class RowCache:
    """A costly value that a reduction computes all along a row, and that is wanted there again.

    The loop of the reduce node ``by`` stores it into a scratch array; elsewhere it is loaded by the
    output variable called ``loaded`` (variables are made anew by each evaluation).
    """

    node: Node
    by: Node
    loaded: str
    length: int


@dataclass(frozen=True)
class Plan:
    """How loops are laid over the axes of the outputs and of each reduction.

    A *group* is a run of axes walked by one variable (or, where ``split``, by two). ``order``
    lists the output groups from outermost to innermost; the first ``grid`` of them are walked by
    one variable, taken apart by division. Empty: one variable per axis, in the axes' order.
    Reductions are known by their node; those with one number in ``shared`` run in one loop nest.
    """

    domain: tuple[tuple[int, ...], ...] = ()  # sizes that each output axis is taken apart into
    groups: tuple[tuple[int, ...], ...] = ()
    reduce_groups: Mapping[Node, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    shared: Mapping[Node, int] = field(default_factory=dict)
    order: tuple[int, ...] = ()
    grid: int = 1
    split: int = 0  # the innermost group walks blocks of this many elements
    tile: tuple[int, int] | None = None  # the two innermost groups walk tiles of this size
    columns: tuple[int, int] | None = None  # of a flat scatter: how many, how many of them abreast
    rows: tuple[RowCache, ...] = ()


@dataclass(eq=False)
class Row:
    """A scratch array: filled by a reduction's loop, read by instructions that come after it."""

    array: Array
    cache: RowCache
    store: Store | None = None


@dataclass(eq=False)
class Evaluation:
    """What evaluating the outputs of a kernel found."""

    params: list[Param] = field(default_factory=list)
    sources: list[Node] = field(default_factory=list)  # the node behind each input parameter
    domain: tuple[tuple[int, ...], ...] = ()  # the plan's
    output_vars: list[Var] = field(default_factory=list)  # outermost first
    group_vars: list[Var] = field(default_factory=list)  # one per output group (before order)
    stores: list[Store] = field(default_factory=list)
    error_stores: list[Store] = field(default_factory=list)
    reductions: list[Reduction] = field(default_factory=list)
    requests: dict[Node, dict[Indices, Instr]] = field(default_factory=dict)
    passed: set[Node] = field(default_factory=set)  # sums and views that became part of a sum
    rows: list[Row] = field(default_factory=list)
    running: dict[Accumulator, Store] = field(default_factory=dict)  # inside a reduction's loop
    instrs: list[Instr] = field(default_factory=list)


class Evaluator:
    """Evaluates nodes at index tuples; memoised, iterative, one per kernel."""

    def __init__(
        self,
        buffered: Callable[[Node], bool],
        plan: Plan,
        checks: Mapping[Node, int],
        outputs: Sequence[Node] = (),
    ):
        self.found = Evaluation()
        self.buffered = buffered
        self.plan = plan
        self.checks = checks
        self._memo: dict[Request, Instr] = {}
        self._consed: dict[tuple[Any, ...], Instr] = {}
        self._params: dict[Node, Param] = {}
        self._positions: dict[tuple[Indices, tuple[int, ...]], Index] = {}
        self._error: Param | None = None
        self._valid: dict[Instr, Instr] = {}  # checked index -> where it is in range
        self._outputs = frozenset(outputs)
        self._nests: dict[int, tuple[Var, ...]] = {}
        self._rows = {
            cache.node: Row(Array(f"row{i}", cache.node.dtype, cache.length), cache)
            for i, cache in enumerate(plan.rows)
        }
        self.found.rows = list(self._rows.values())

    # ---- instructions ----------------------------------------------------------------------

    def instr(
        self,
        op: Op,
        dtype: DType,
        args: tuple[Instr, ...] = (),
        attr: Any = None,
        within: frozenset[Var] = frozenset(),
    ) -> Instr:
        """The instruction with these fields; equal ones are one object. It stays inside the loops
        of ``within``, also if it uses none of their variables."""
        key = (op, dtype, attr, *map(id, args))
        known = self._consed.get(key)
        if known is not None:
            return known
        used = within.union(*(a.vars for a in args))
        if op is ops.LOAD:
            used |= attr[1].vars
        elif op is INDEX:
            used |= attr.vars
        made = Instr(op, dtype, args, attr, used)
        self._consed[key] = made
        self.found.instrs.append(made)
        return made

    def const(self, value: float, dtype: DType) -> Instr:
        """A number."""
        return self.instr(ops.CONST, dtype, (), to_bits(value, dtype))

    def index(self, index: Index, dtype: DType = dtypes.int64) -> Instr:
        """An index expression as a value."""
        if index.is_const and dtype.min <= index.const <= dtype.max:
            return self.const(index.const, dtype)
        return self.instr(INDEX, dtype, (), index)

    def both(self, a: Instr | None, b: Instr | None) -> Instr | None:
        """The conjunction of two gates; None is true."""
        if a is None or b is None or a is b:
            return a or b
        return self.instr(ops.AND, dtypes.bool_, (a, b))

    def inside(self, index: Index, length: int) -> Instr | None:
        """The gate ``0 <= index < length``, as far as it is not known to hold; asked of as few
        variables as tell."""
        rows = index // length
        if rows.vars < index.vars:
            index, length = rows, 1
        low = high = None
        if index.lo < 0:
            low = self.instr(
                ops.LT, dtypes.bool_, (self.const(-1, dtypes.int64), self.index(index))
            )
        if index.hi >= length:
            high = self.instr(
                ops.LT, dtypes.bool_, (self.index(index), self.const(length, dtypes.int64))
            )
        return self.both(low, high)

    def where(self, gate: Instr | None, value: Instr, other: Instr) -> Instr:
        """``value`` where the gate holds. A load that the gate guards is 0 elsewhere by itself."""
        if gate is None or value is other:
            return value
        zero = other.op is ops.CONST and other.attr == 0
        if zero and value.op is ops.LOAD and value.args and _implies(value.args[0], gate):
            return value
        return self.instr(ops.WHERE, value.dtype, (gate, value, other))

    def load(self, node: Node, indices: Indices, gate: Instr | None) -> Instr:
        """An element of a node that has a buffer."""
        param = self._params.get(node)
        if param is None:
            size = math.prod(node.shape)
            name = f"in{len(self.found.params)}"
            param = self._params[node] = Param(name, node.dtype, size, "in")
            self.found.params.append(param)
            self.found.sources.append(node)
        place = indices, node.shape
        position = self._positions.get(place)
        if position is None:
            position = self._positions[place] = flatten(*place)
        return self.instr(
            ops.LOAD, node.dtype, (gate,) if gate is not None else (), (param, position)
        )

    # ---- evaluation ------------------------------------------------------------------------

    def value(self, node: Node, indices: Indices, gate: Instr | None = None) -> Instr:
        """The value of ``node`` at ``indices``; only meaningful where ``gate`` holds."""
        answer: Instr | None = None
        pending: list[tuple[Request, Visit]] = []
        wanted: Request = (node, indices, gate)
        while True:
            answer = self._memo.get(wanted) or self._at_once(*wanted)
            if answer is None:
                pending.append((wanted, self._visit(*wanted)))
            while pending:
                request, visit = pending[-1]
                try:
                    wanted = next(visit) if answer is None else visit.send(answer)
                    break
                except StopIteration as done:
                    answer = done.value
                pending.pop()
                assert answer is not None
                self._remember(request, answer)
            else:
                assert answer is not None
                return answer

    def _remember(self, request: Request, answer: Instr) -> None:
        node, indices, _ = request
        self._memo[request] = answer
        asked = self.found.requests.setdefault(node, {})
        asked[indices] = answer
        if len(asked) > TUPLES and node.op not in ops.MOVEMENT and node.op is not ops.SLICE:
            raise NeedsBuffer(node)

    def _at_once(self, node: Node, indices: Indices, gate: Instr | None) -> Instr | None:
        """The value of a node that needs no other node's."""
        if node.op is ops.BUFFER or (self.buffered(node) and node not in self._outputs):
            return self.load(node, indices, gate)
        if node.op is ops.CONST:
            return self.instr(ops.CONST, node.dtype, (), node.arg)
        if node.op is ops.IOTA:
            return self.index(indices[0], node.dtype)
        row = self._rows.get(node)
        if row is not None and not self._fills(row, indices):
            return self._row_load(row, indices)
        return None

    def _visit(self, node: Node, indices: Indices, gate: Instr | None) -> Visit:
        value = yield from _RULES[node.op](self, node, indices, gate)
        row = self._rows.get(node)
        if row is not None:
            row.store = Store(row.array, variable(self._stored(row)[0]), value)
        return value

    def _stored(self, row: Row) -> tuple[Var, ...]:
        """The loop variable that a row is filled along, once the nest of its reduction (which
        others may share) has begun."""
        by = row.cache.by
        nest = self._nests.get(self.plan.shared.get(by, -1))
        if nest is not None:
            return nest[:1]
        return tuple(r.vars[0] for r in self.found.reductions if r.node is by)

    def _fills(self, row: Row, indices: Indices) -> bool:
        return any(v in index.vars for v in self._stored(row) for index in indices)

    def _row_load(self, row: Row, indices: Indices) -> Instr:
        used = {v.name: v for index in indices for v in index.vars}
        at = variable(used[row.cache.loaded])
        made = Instr(ops.LOAD, row.array.dtype, (), (row.array, at), frozenset(used.values()))
        self.found.instrs.append(made)
        return made

    def output(self, node: Node, param: Param, indices: Indices) -> None:
        """Store ``node`` element by element."""
        value = self.value(node, indices)
        self.found.stores.append(Store(param, flatten(indices, node.shape), value))

    def error_param(self) -> Param:
        """The kernel's error word."""
        if self._error is None:
            self._error = Param("error", dtypes.int32, 1, "error")
        return self._error

    def check(self, node: Node, index: Instr, gate: Instr | None) -> Instr:
        """A checked index: counted from 0, its validity remembered, a violation reported."""
        length = node.arg[0]
        dtype = index.dtype
        if dtype.max < length:
            index, dtype = self.instr(ops.CAST, dtypes.int64, (index,), index.dtype), dtypes.int64
        if dtype.kind == "int":
            zero = self.const(0, dtype)
            negative = self.instr(ops.LT, dtypes.bool_, (index, zero))
            wrapped = self.instr(ops.ADD, dtype, (index, self.const(length, dtype)))
            fixed = self.instr(ops.WHERE, dtype, (negative, wrapped, index))
            low = self.instr(ops.LT, dtypes.bool_, (self.const(-1, dtype), fixed))
            high = self.instr(ops.LT, dtypes.bool_, (fixed, self.const(length, dtype)))
            valid = self.instr(ops.AND, dtypes.bool_, (low, high))
        else:
            fixed = index
            valid = self.instr(ops.LT, dtypes.bool_, (index, self.const(length, dtype)))
        # What is computed from a wrong index, maybe in another kernel, must be an address, too.
        fixed = self.instr(ops.WHERE, dtype, (valid, fixed, self.const(0, dtype)))
        wrong = self.instr(ops.XOR, dtypes.bool_, (valid, self.const(True, dtypes.bool_)))
        code = self.const(self.checks[node], dtypes.int32)
        report = self.both(gate, wrong)
        self.found.error_stores.append(Store(self.error_param(), constant(0), code, report))
        if dtype is not node.dtype:
            fixed = self.instr(ops.CAST, node.dtype, (fixed,), dtype)
        self._valid[fixed] = valid
        return fixed

    def as_index(self, value: Instr, length: int) -> tuple[Index, Instr | None]:
        """An integer value as an index in 0 .. length - 1, and where it is valid (None: always)."""
        if value.op is INDEX:
            return value.attr, None
        if value.op is ops.CONST:
            return constant(int(dtypes.from_bits(value.attr, value.dtype))), None
        atom = Opaque(f"v{len(self._consed)}", value, (0, max(length - 1, 0)), value.vars)
        key = ("opaque", value, length)
        known = self._consed.setdefault(key, atom)  # type: ignore[arg-type]
        return variable(known), self._valid.get(value)  # type: ignore[arg-type]

    # ---- reductions ------------------------------------------------------------------------

    def fresh_vars(self, node: Node, shape: Sequence[int]) -> tuple[tuple[Var, ...], Indices]:
        """Loop variables over ``shape``, merged as the plan says, and the index on each axis."""
        groups = self.plan.reduce_groups.get(node) or tuple((axis,) for axis in range(len(shape)))
        nest = self.plan.shared.get(node)
        if nest is not None and nest in self._nests:
            return self._nests[nest], _spread(self._nests[nest], groups, shape)
        number = len(self.found.reductions)
        made = tuple(
            Var(f"r{number}{chr(97 + i) if len(groups) > 1 else ''}", _extent(shape, group))
            for i, group in enumerate(groups)
        )
        if nest is not None:
            self._nests[nest] = made
        return made, _spread(made, groups, shape)

    def reduction(
        self, node: Node, kind: str, dtype: DType, shape: Sequence[int]
    ) -> tuple[Reduction, Indices]:
        """Start a reduction over fresh variables; its place in the list is its number."""
        used, indices = self.fresh_vars(node, shape)
        acc = Accumulator(f"a{len(self.found.reductions)}", kind, dtypes.accumulator(dtype))
        made = Reduction(node, acc, used, tuple(shape))
        self.found.reductions.append(made)
        return made, indices

    def finish(self, made: Reduction, values: tuple[Instr, ...], dtype: DType) -> Instr:
        """The result of a reduction, back in ``dtype``."""
        acc = made.acc
        value = values[0]
        if value.dtype is not acc.dtype:
            value = self.instr(ops.CAST, acc.dtype, (value,), value.dtype)
        made.values = (value, *values[1:])
        free = frozenset().union(*(v.vars for v in made.values)) - frozenset(made.vars)
        made.free = free
        part = 1 if acc.kind == "argmax" else 0
        result_dtype = dtypes.int64 if part else acc.dtype
        result = Instr(RESULT, result_dtype, (), (acc, part), free)
        self.found.instrs.append(result)
        made.result = result
        if result.dtype is dtype:
            return result
        return self.instr(ops.CAST, dtype, (result,), result.dtype)


def _implies(gate: Instr, wanted: Instr) -> bool:
    """Whether ``gate`` is a conjunction that contains every part of ``wanted``."""
    return _conjuncts(wanted) <= _conjuncts(gate)


def _conjuncts(gate: Instr) -> set[Instr]:
    parts, stack = set(), [gate]
    while stack:
        one = stack.pop()
        if one.op is ops.AND:
            stack += one.args
        else:
            parts.add(one)
    return parts


def _extent(shape: Sequence[int], group: Sequence[int]) -> int:
    return math.prod(shape[axis] for axis in group)


def _spread(used: Sequence[Var], groups: Sequence[Sequence[int]], shape: Sequence[int]) -> Indices:
    """The index on every axis, from one variable per group of axes."""
    out: dict[int, Index] = {}
    for var, group in zip(used, groups, strict=True):
        parts = unflatten(variable(var), [shape[axis] for axis in group])
        out.update(zip(group, parts, strict=True))
    return tuple(out[axis] for axis in range(len(shape)))


# ---- one rule per op ---------------------------------------------------------------------------


def _elementwise(e: Evaluator, node: Node, indices: Indices, gate: Instr | None) -> Visit:
    args = []
    for source in node.src:
        args.append((yield source, indices, gate))
    attr = node.arg
    if node.op in (ops.CAST, ops.BITCAST):
        attr = node.src[0].dtype
    return e.instr(node.op, node.dtype, tuple(args), attr)


def _moved(node: Node, indices: Indices) -> Indices:
    """Where a movement op (pad apart) reads its source."""
    return _MOVES[node.op](node, indices)


def _movement(e: Evaluator, node: Node, indices: Indices, gate: Instr | None) -> Visit:
    return (yield node.src[0], _moved(node, indices), gate)


def _same(e: Evaluator, node: Node, indices: Indices, gate: Instr | None) -> Visit:
    return (yield node.src[0], indices, gate)


def _permuted(node: Node, indices: Indices) -> Indices:
    out = [constant(0)] * len(indices)
    for position, axis in enumerate(node.arg):
        out[axis] = indices[position]
    return tuple(out)


def _windowed(node: Node, indices: Indices) -> Indices:
    axis, _, stride, dilation = node.arg
    inner = indices[axis] * stride + indices[-1] * dilation
    return (*indices[:axis], inner, *indices[axis + 1 : -1])


_MOVES: dict[Op, Callable[[Node, Indices], Indices]] = {
    ops.RESHAPE: lambda n, at: reshape(at, n.shape, n.src[0].shape),
    ops.PERMUTE: _permuted,
    ops.EXPAND: lambda n, at: tuple(
        i if size == n.shape[axis] else constant(0)
        for axis, (i, size) in enumerate(zip(at, n.src[0].shape, strict=True))
    ),
    ops.SHRINK: lambda n, at: tuple(i + lo for i, (lo, _) in zip(at, n.arg, strict=True)),
    ops.FLIP: lambda n, at: tuple(
        constant(n.shape[axis] - 1) - i if axis in n.arg else i for axis, i in enumerate(at)
    ),
    ops.WINDOW: _windowed,
}


def _pad(e: Evaluator, node: Node, indices: Indices, gate: Instr | None) -> Visit:
    border = e.instr(ops.CONST, node.dtype, (), node.arg[1])
    if not _meets(node, indices):
        return border
    at, inside = _within(e, node, indices)
    value = yield node.src[0], at, e.both(gate, inside)
    return e.where(inside, value, border)


def _meets(node: Node, indices: Indices) -> bool:
    """Whether any of the elements that are looked at lies inside the borders of a pad."""
    return all(
        index.hi >= before and index.lo < before + length
        for index, (before, _), length in zip(indices, node.arg[0], node.src[0].shape, strict=True)
    )


def _within(e: Evaluator, node: Node, indices: Indices) -> tuple[Indices, Instr | None]:
    """Where a pad reads its source, and where there is something to read."""
    inside: Instr | None = None
    moved = []
    for index, (before, _), length in zip(indices, node.arg[0], node.src[0].shape, strict=True):
        shifted = index - before
        inside = e.both(inside, e.inside(shifted, length))
        moved.append(shifted.assume(0, length - 1))
    return tuple(moved), inside


def _cat(e: Evaluator, node: Node, indices: Indices, gate: Instr | None) -> Visit:
    axis = node.arg
    index = indices[axis]
    start = 0
    parts: list[tuple[Instr | None, Instr]] = []
    for part in node.src:
        length = part.shape[axis]
        shifted = index - start
        start += length
        if shifted.hi < 0 or shifted.lo >= length:
            continue
        inside = e.inside(shifted, length)
        at = (*indices[:axis], shifted.assume(0, length - 1), *indices[axis + 1 :])
        value = yield part, at, e.both(gate, inside)
        parts.append((inside, value))
    result = parts[-1][1]
    for inside, value in reversed(parts[:-1]):
        result = (
            value if inside is None else e.instr(ops.WHERE, node.dtype, (inside, value, result))
        )
    return result


def _start(e: Evaluator, node: Node, axis: int, start: Instr, length: int) -> Index:
    """A number from which on ``length`` elements lie inside an axis."""
    return e.as_index(start, node.shape[axis] - length + 1)[0]


def _slice(e: Evaluator, node: Node, indices: Indices, gate: Instr | None) -> Visit:
    x, *starts = node.src
    at = list(indices)
    for axis, length, number in zip(*node.arg, starts, strict=True):
        start = yield number, (), None
        at[axis] = at[axis] + _start(e, x, axis, start, length)
    return (yield x, tuple(at), gate)


def _update(e: Evaluator, node: Node, indices: Indices, gate: Instr | None) -> Visit:
    base, value, *starts = node.src
    at = list(indices)
    inside: Instr | None = None
    for axis, number in zip(node.arg, starts, strict=True):
        length = value.shape[axis]
        start = yield number, (), None
        shifted = at[axis] - _start(e, base, axis, start, length)
        inside = e.both(inside, e.inside(shifted, length))
        at[axis] = shifted.assume(0, length - 1)
    new = yield value, tuple(at), e.both(gate, inside)
    if inside is None:
        return new
    old = yield base, indices, gate
    return e.instr(ops.WHERE, node.dtype, (inside, new, old))


def _gather(e: Evaluator, node: Node, indices: Indices, gate: Instr | None) -> Visit:
    x, index = node.src
    rank = len(index.shape)
    value = yield index, indices[:rank], gate
    position, valid = e.as_index(value, x.shape[0])
    return (yield x, (position, *indices[rank:]), e.both(gate, valid))


def _check(e: Evaluator, node: Node, indices: Indices, gate: Instr | None) -> Visit:
    value = yield node.src[0], indices, gate
    return e.check(node, value, gate)


def _reduce(e: Evaluator, node: Node, indices: Indices, gate: Instr | None) -> Visit:
    kind, axes = node.arg
    source = node.src[0]
    picked = pick(node)
    if picked is not None:
        return (yield from _picked(e, picked, indices, gate))
    made, inner = e.reduction(node, kind, source.dtype, [source.shape[a] for a in axes])
    at = _insert(indices, axes, inner)
    if kind == "add":
        value = yield from _summand(e, made, source, at, gate)
        return e.finish(made, (value,), node.dtype)
    value = yield source, at, gate
    values = (value, e.index(inner[0])) if kind == "argmax" else (value,)
    return e.finish(made, values, node.dtype)


def _picked(e: Evaluator, picked: Pick, indices: Indices, gate: Instr | None) -> Visit:
    """The one element of a sum that is not 0."""
    axis, length = picked.axis, picked.value.shape[picked.axis]
    number = yield picked.number, _insert(indices, (axis,), (constant(0),)), gate
    low, high = e.const(-1, number.dtype), e.const(length, number.dtype)
    above = e.instr(ops.LT, dtypes.bool_, (low, number))
    inside = e.both(above, e.instr(ops.LT, dtypes.bool_, (number, high)))
    position = e.as_index(number, length)[0].assume(0, length - 1)
    at = _insert(indices, (axis,), (position,))
    value = yield picked.value, at, e.both(gate, inside)
    if picked.factor is not None:
        factor = yield picked.factor, at, gate
        value = e.instr(ops.MUL, value.dtype, (value, factor))
    zero = e.const(0, value.dtype)
    return e.instr(ops.ADD, value.dtype, (e.where(inside, value, zero), zero))


def _insert(indices: Indices, axes: Sequence[int], inner: Indices) -> Indices:
    rest = iter(indices)
    among = dict(zip(axes, inner, strict=True))
    total = len(indices) + len(axes)
    return tuple(among[a] if a in among else next(rest) for a in range(total))


def _fold(e: Evaluator, node: Node, indices: Indices, gate: Instr | None) -> Visit:
    source = node.src[0]
    if is_disjoint(node):
        at, inside = _only_window(e, node, indices)
        value = yield source, at, e.both(gate, inside)
        return e.where(inside, value, e.const(0, node.dtype))
    made, inner = e.reduction(node, "add", node.dtype, source.shape[-1:])
    at, inside = _window_of(e, node, indices, inner[0])
    value = yield from _summand(e, made, source, at, gate, inside)
    return e.finish(made, (value,), node.dtype)


def is_disjoint(node: Node) -> bool:
    """Whether the windows of a fold do not overlap: each element gets at most one term."""
    _, _, stride, dilation = node.arg
    return bool(node.src[0].shape[-1] <= stride and dilation == 1)


def _only_window(e: Evaluator, node: Node, indices: Indices) -> tuple[Indices, Instr | None]:
    axis, _, stride, _ = node.arg
    source = node.src[0]
    position = indices[axis]
    which, tap = position // stride, position % stride
    inside = e.both(e.inside(which, source.shape[axis]), e.inside(tap, source.shape[-1]))
    which = which.assume(0, source.shape[axis] - 1)
    tap = tap.assume(0, source.shape[-1] - 1)
    return (*indices[:axis], which, *indices[axis + 1 :], tap), inside


def _window_of(
    e: Evaluator, node: Node, indices: Indices, tap: Index
) -> tuple[Indices, Instr | None]:
    """The window that covers a position with its tap number ``tap``, and where there is one."""
    axis, _, stride, dilation = node.arg
    source = node.src[0]
    start = indices[axis] - tap * dilation
    inside = e.inside(start, (source.shape[axis] - 1) * stride + 1)
    if stride > 1:
        zero = e.const(0, dtypes.int64)
        off = e.instr(ops.NE, dtypes.bool_, (e.index(start % stride), zero))
        even = e.instr(ops.XOR, dtypes.bool_, (off, e.const(True, dtypes.bool_)))
        inside = e.both(inside, even)
    which = (start.assume(0, (source.shape[axis] - 1) * stride) // stride).assume(
        0, source.shape[axis] - 1
    )
    return (*indices[:axis], which, *indices[axis + 1 :], tap), inside


def _summand(
    e: Evaluator, made: Reduction, node: Node, at: Indices, gate: Instr | None,
    inside: Instr | None = None,
) -> Visit:  # fmt: skip
    """What a sum adds up. Sums directly inside it, also below movement ops, join it: their
    variables are added to its own, and where a term does not exist it is 0."""
    while not e.buffered(node):
        e.found.passed.add(node)
        if node.op in _MOVES:
            at = _moved(node, at)
            node = node.src[0]
        elif node.op is ops.REDUCE and node.arg[0] == "add" and pick(node) is None:
            inner = _more_vars(made, [node.src[0].shape[a] for a in node.arg[1]])
            at = _insert(at, node.arg[1], inner)
            node = node.src[0]
        elif node.op is ops.PAD and node.arg[1] == 0 and _meets(node, at):
            at, also = _within(e, node, at)
            inside = e.both(inside, also)
            node = node.src[0]
        elif node.op is ops.FOLD and not is_disjoint(node):
            inner = _more_vars(made, node.src[0].shape[-1:])
            at, also = _window_of(e, node, at, inner[0])
            inside = e.both(inside, also)
            node = node.src[0]
        else:
            break
    value = yield node, at, e.both(gate, inside)
    return _masked_term(e, value, inside)


def _more_vars(made: Reduction, shape: Sequence[int]) -> Indices:
    extra = tuple(
        Var(f"{made.acc.name.replace('a', 'r')}{chr(97 + len(made.vars) + i)}", size)
        for i, size in enumerate(shape)
    )
    made.vars = (*made.vars, *extra)
    return tuple(variable(v) for v in extra)


def _masked_term(e: Evaluator, value: Instr, inside: Instr | None) -> Instr:
    """``value`` where inside, else 0. Of a product both factors are masked, as 0*0 is exactly 0."""
    if inside is None:
        return value
    zero = e.const(0, value.dtype)
    if value.op is ops.MUL:
        a, b = (e.where(inside, factor, zero) for factor in value.args)
        return e.instr(ops.MUL, value.dtype, (a, b))
    return e.where(inside, value, zero)


_RULES: dict[Op, Callable[[Evaluator, Node, Indices, Instr | None], Visit]] = {
    ops.PAD: _pad,
    ops.CAT: _cat,
    ops.SLICE: _slice,
    ops.UPDATE: _update,
    ops.GATHER: _gather,
    ops.CHECK: _check,
    ops.REDUCE: _reduce,
    ops.FOLD: _fold,
    ops.CONTIGUOUS: _same,
    **dict.fromkeys(ops.ELEMENTWISE, _elementwise),
    **dict.fromkeys(ops.MOVEMENT - {ops.PAD}, _movement),
}


# ---- evaluating a whole group ------------------------------------------------------------------


def evaluate(
    outputs: Sequence[Node],
    buffered: Callable[[Node], bool],
    plan: Plan,
    checks: Mapping[Node, int],
) -> Evaluation:
    """Evaluate outputs of one shape, that of the first, over one set of loop variables; and others
    with an element for each of its rows (or planes), whose shape are the first of its axes."""
    e = Evaluator(buffered, plan, checks, outputs)
    shape = outputs[0].shape
    indices = _output_indices(e.found, shape, plan)
    for number, node in enumerate(outputs):
        param = Param(f"out{number}", node.dtype, math.prod(node.shape), "out")
        e.found.params.append(param)
        e.output(node, param, indices[: len(node.shape)])
    if e.found.error_stores:
        e.found.params.append(e.error_param())
    return e.found


def evaluate_scatter(
    node: Node, buffered: Callable[[Node], bool], plan: Plan, checks: Mapping[Node, int]
) -> Evaluation:
    """Evaluate the writes of a scatter: a serial loop over the index inside loops over the rest.

    The first parameter is the base's own buffer, updated in place. No two iterations of the outer
    loops write to one address, and the inner loop keeps the order of the source. What the loop has
    written so far is read inside it, even where the address is the same every time.
    """
    e = Evaluator(buffered, plan, checks)
    _, index, value = node.src
    param = Param("out0", node.dtype, math.prod(node.shape), "inout")
    e.found.params.append(param)
    columns = _output_indices(e.found, node.shape[1:], plan)
    at = _ordered_index(e.found, index.shape[0], plan)
    chosen = e.value(index, (at,))
    position, valid = e.as_index(chosen, node.shape[0])
    if not columns:
        position = _terms(e, chosen, node.shape[0])
    target = flatten((position, *columns), node.shape).assume(0, param.size - 1)
    new = e.value(value, (at, *columns), valid)
    if node.arg == "add":
        gate = (valid,) if valid else ()
        old = e.instr(ops.LOAD, node.dtype, gate, (param, target), within=at.vars)
        new = e.instr(ops.ADD, node.dtype, (old, new))
    e.found.stores.append(Store(param, target, new, valid))
    if e.found.error_stores:
        e.found.params.append(e.error_param())
    return e.found


def _ordered_index(found: Evaluation, count: int, plan: Plan) -> Index:
    """Which value of a scatter an iteration takes: one after the other, or, of rows whose columns
    never meet, a block of columns, in it row after row, and in each row the block's columns."""
    if plan.columns is None:
        row = Var(ORDERED, count)
        found.output_vars.append(row)
        return variable(row)
    width, abreast = plan.columns
    block, row = Var("i0", width // abreast), Var(ORDERED, count // width)
    column = Var("i1", abreast)
    found.output_vars += [v for v in (block, row, column) if v.extent > 1 or v is row]
    return variable(row) * width + variable(block) * abreast + variable(column)


def _terms(e: Evaluator, position: Instr, length: int) -> Index:
    """A position that was computed as a sum, as an index with these terms: what is known of them
    tells which positions differ. It lies in the target, so that no part of it wraps around."""
    total, stack = constant(0), [(position, 1)]
    for _ in range(TERMS):
        if not stack:
            return total
        value, factor = stack.pop()
        if value.op is ops.ADD:
            stack += [(arg, factor) for arg in value.args]
        elif value.op is ops.MUL and value.args[1].op is ops.CONST:
            number, _ = e.as_index(value.args[1], length)
            stack.append((value.args[0], factor * number.const))
        else:
            total = total + e.as_index(value, length)[0] * factor
    return e.as_index(position, length)[0]


def evaluate_scan(
    node: Node, buffered: Callable[[Node], bool], plan: Plan, checks: Mapping[Node, int]
) -> Evaluation:
    """Evaluate a scan of (outer, length, inner): rows in parallel, each in order.

    Neighbouring rows are ``inner`` ones, which lanes can share. Where there are none, an iteration
    takes several rows: the additions of one wait for each other, those of several do not.
    """
    e = Evaluator(buffered, plan, checks)
    kind, _ = node.arg
    outer, length, inner = node.shape
    param = Param("out0", node.dtype, math.prod(node.shape), "out")
    e.found.params.append(param)
    abreast = ABREAST if inner == 1 and outer % ABREAST == 0 else 1
    row, place, step = Var("g", outer // abreast), Var("i", inner), Var(ORDERED, length)
    e.found.output_vars = e.found.group_vars = [v for v in (row, place) if v.extent > 1]
    around = frozenset(e.found.output_vars)
    i = variable(place) if inner > 1 else constant(0)
    for j in range(abreast):
        o = variable(row) * abreast + j if row.extent > 1 else constant(j)
        value = e.value(node.src[0], (o, variable(step), i))
        acc = Accumulator(f"a{len(e.found.reductions)}", kind, node.dtype)
        reduction = Reduction(node, acc, (step,), (length,), (value,), around)
        reduction.result = e.instr(RESULT, node.dtype, (), (acc, 0), around | {step})
        e.found.reductions.append(reduction)
        target = flatten((o, variable(step), i), node.shape)
        e.found.running[acc] = Store(param, target, reduction.result)
    if e.found.error_stores:
        e.found.params.append(e.error_param())
    return e.found


def evaluate_argsort(node: Node) -> Evaluation:
    """What a sort that the device does itself writes and reads; it has no loops."""
    keys = node.src[0]
    while keys.op is ops.RESHAPE:
        keys = keys.src[0]
    found = Evaluation(sources=[keys])
    found.params = [
        Param("out0", node.dtype, math.prod(node.shape), "out"),
        Param("in0", keys.dtype, math.prod(keys.shape), "in"),
    ]
    return found


def _output_indices(found: Evaluation, axes: Sequence[int], plan: Plan) -> Indices:
    """The index along every output axis, made of the variables of the loops that walk them."""
    domain = plan.domain or tuple((extent,) for extent in axes)
    found.domain = plan.domain
    indices = iter(_walked(found, [extent for parts in domain for extent in parts], plan))
    return tuple(flatten([next(indices) for _ in parts], parts) for parts in domain)


def _walked(found: Evaluation, shape: Sequence[int], plan: Plan) -> Indices:
    groups = plan.groups or tuple((axis,) for axis in range(len(shape)))
    order = plan.order or tuple(range(len(groups)))
    extents = [_extent(shape, group) for group in groups]
    walked: dict[int, Index] = {}
    found.group_vars = [Var(f"i{number}", extent) for number, extent in enumerate(extents)]
    if plan.grid > 1:
        together = order[: plan.grid]
        grid = Var("g", math.prod(extents[g] for g in together))
        parts = unflatten(variable(grid), [extents[g] for g in together])
        walked.update(zip(together, parts, strict=True))
        found.output_vars.append(grid)
        order = order[plan.grid :]
    if plan.tile is not None:
        sides = dict(zip(order[-2:], plan.tile, strict=True))
        within = {n: Var(f"i{n}", side) for n, side in sides.items()}
        tiles = {n: Var(f"i{n}o", extents[n] // side) for n, side in sides.items()}
        leading = [found.group_vars[n] for n in order[:-2]]
        found.output_vars += [*leading, *tiles.values(), *within.values()]
        walked.update({n: variable(found.group_vars[n]) for n in order[:-2]})
        walked.update({n: variable(tiles[n]) * v.extent + variable(v) for n, v in within.items()})
        order = ()
    for number in order:
        var = found.group_vars[number]
        if plan.split and number == order[-1]:
            outer = Var(f"i{number}o", var.extent // plan.split)
            inner = Var(f"i{number}", plan.split)
            walked[number] = variable(outer) * plan.split + variable(inner)
            found.output_vars += [outer, inner]
        else:
            walked[number] = variable(var)
            found.output_vars.append(var)
    found.output_vars = [v for v in found.output_vars if v.extent != 1]
    out: dict[int, Index] = {}
    for number, group in enumerate(groups):
        parts = unflatten(walked[number], [shape[axis] for axis in group])
        out.update(zip(group, parts, strict=True))
    return tuple(out[axis] for axis in range(len(shape)))
