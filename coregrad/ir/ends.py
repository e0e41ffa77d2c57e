"""Where loops of reductions may end early, because a mask leaves nothing to fold from there on.

``where(index < n, x, 0)`` summed over the index adds zeros from n on. Where n is a number that a
kernel is given, its loop ends there, and the cost of a sum over what is there of a long buffer
follows n. Nothing here changes a value: a loop that runs on is as right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coregrad import dtypes
from coregrad.ir import ops
from coregrad.ir.graph import Node
from coregrad.ir.index import Index, Var, variable
from coregrad.ir.kernel import INDEX, RESULT, Accumulator, Instr
from coregrad.ir.lower import Evaluation, Reduction
from coregrad.ir.ops import Op

NOTHING: frozenset[Instr] = frozenset()


class Ends:
    """What a kernel's masks say of its reductions. ``nest`` are reductions of one loop nest."""

    def __init__(self, found: Evaluation) -> None:
        masks = [] if found.running else [i for i in found.instrs if _is_mask(i)]
        self._order = masks
        self._wanted = _wanted(found) if masks else {}
        self._rows: dict[Node, list[Instr]] = {}  # what is read of the row that a reduction fills
        for row in found.rows:
            reads = [i for i in found.instrs if i.op is ops.LOAD and i.attr[0] is row.array]
            self._rows.setdefault(row.cache.by, []).extend(reads)

    def gates(self, nest: Sequence[Reduction]) -> list[Instr]:
        """Masks outside of which nobody looks at the results, known before the loops begin."""
        if not self._order:
            return []
        if any(r.node in self._rows for r in nest):
            return []
        common = frozenset.intersection(*(self._wanted.get(r.result, NOTHING) for r in nest))  # type: ignore[arg-type]
        free = frozenset[Var].intersection(*(r.free for r in nest))
        return [c for c in self._order if c in common and c.vars <= free]

    def of(self, nest: Sequence[Reduction]) -> dict[Var, list[Instr]]:
        """The instructions that compute where a loop may end, by its variable; the last one is the
        limit."""
        if not self._order:
            return {}
        used = nest[0].vars
        folded = frozenset.intersection(*(_folded(r) for r in nest))
        ends: dict[Var, list[Instr]] = {}
        for mask in self.gates(nest):
            whole, none = _const(used[0].extent), _const(0)
            end = [whole, none, _made(ops.WHERE, (mask, whole, none))]
            ends[used[0]] = _smaller(ends.get(used[0]), end)
        for mask in (c for c in self._order if c in folded):
            index, bound = mask.args[0].attr, mask.args[1]
            for var in used:
                rest = variable(var) - index  # of what is left for the variable below the bound
                room = rest.hi <= 0 or bound.dtype is not dtypes.int64  # in which no sum wraps
                alone = index.coefficient(var) == 1 and rest.vars.isdisjoint(used)
                if alone and room and self._leaves_enough(nest, mask):
                    ends[var] = _smaller(ends.get(var), _shifted(bound, rest))
        if any(r.acc.kind == "argmax" for r in nest):  # which has no answer for nothing
            one = _const(1)
            ends = {v: [*end, one, _made(ops.MAX, (end[-1], one))] for v, end in ends.items()}
        return ends

    def _leaves_enough(self, nest: Sequence[Reduction], mask: Instr) -> bool:
        """Whether of the rows that a nest fills only what the mask keeps is looked at."""
        reads = [read for r in nest for read in self._rows.get(r.node, ())]
        return all(
            any(_is_alike(c, read.attr[1], mask) for c in self._wanted.get(read, ()))
            for read in reads
        )


def _is_alike(condition: Instr, place: Index, mask: Instr) -> bool:
    """Whether a condition says of ``place`` what the mask says of a loop's variable."""
    if not _is_mask(condition):
        return False
    index, own = condition.args[0].attr, mask.args[0].attr
    same = condition.args[1] is mask.args[1] and index.const == own.const
    return same and len(own.terms) == 1 and index.terms == place.terms and place.const == 0


def inner_values(instr: Instr) -> list[Instr]:
    """The values that an instruction's index expressions contain."""
    index = instr.attr[1] if instr.op is ops.LOAD else instr.attr
    found: list[Instr] = index.computed() if instr.op in (ops.LOAD, INDEX) else []
    return found


def _is_mask(instr: Instr) -> bool:
    """Whether this is ``index < n`` with an n that is loaded once in a kernel."""
    if instr.op is not ops.LT:
        return False
    index, bound = instr.args
    if index.op is not INDEX or index.attr.is_const or not _is_given(bound):
        return False
    dtype = bound.dtype  # in which nothing may have wrapped, nor may the bound as an int64
    fits = dtype.min <= index.attr.lo and index.attr.hi <= dtype.max
    return fits and dtype is not dtypes.uint64


def _is_given(bound: Instr) -> bool:
    stack, loads = [bound], 0
    while stack:
        instr = stack.pop()
        if instr.vars or instr.op is RESULT:
            return False
        loads += instr.op is ops.LOAD
        stack += [*instr.args, *inner_values(instr)]
    return loads > 0


def _parts(condition: Instr) -> Iterable[Instr]:
    """The conditions that a conjunction is made of."""
    stack = [condition]
    while stack:
        one = stack.pop()
        if one.op is ops.AND:
            stack += one.args
        else:
            yield one


def _wanted(found: Evaluation) -> dict[Instr, frozenset[Instr]]:
    """For each value the conditions outside of which nobody looks at it."""
    wanted: dict[Instr, frozenset[Instr]] = {}

    def want(value: Instr, where: frozenset[Instr]) -> None:
        wanted[value] = wanted[value] & where if value in wanted else where

    values = {r.acc: r.values for r in found.reductions}
    filled = [row.store for row in found.rows if row.store is not None]
    for store in (*found.stores, *found.error_stores, *filled):
        for value in (store.value, store.gate, *store.index.computed()):
            if value is not None:
                want(value, NOTHING)
    for instr in reversed(found.instrs):  # users come after what they use
        where = wanted.get(instr)
        if where is None:
            continue
        for i, value in enumerate(instr.args):
            chosen = instr.op is ops.WHERE and i == 1
            want(value, where.union(_parts(instr.args[0])) if chosen else where)
        for value in inner_values(instr):
            want(value, where)
        if instr.op is RESULT:
            acc: Accumulator = instr.attr[0]
            for value in values[acc]:
                want(value, where)
    return wanted


def _folded(r: Reduction) -> frozenset[Instr]:
    """Conditions outside of which a reduction folds its neutral element."""
    value = r.values[0]
    found = _kept(value, r)
    if value.op is ops.MUL and r.acc.kind == "add":  # 0 * x may be NaN: both factors are 0
        found |= _kept(value.args[0], r) & _kept(value.args[1], r)
    return found


def _kept(value: Instr, r: Reduction) -> frozenset[Instr]:
    """Conditions outside of which a value is the neutral element of a reduction."""
    found: list[Instr] = []
    while True:
        if value.op is ops.WHERE and _is_neutral(value.args[2], r):
            found += _parts(value.args[0])
            value = value.args[1]
        elif value.op is ops.CAST and value.dtype.is_float and value.attr.is_float:
            value = value.args[0]
        else:
            break
    if value.op is ops.LOAD and value.args and r.acc.kind == "add":
        found += _parts(value.args[0])
    return frozenset(found)


def _is_neutral(instr: Instr, r: Reduction) -> bool:
    if instr.op is not ops.CONST or not (instr.dtype.is_float or instr.dtype is r.acc.dtype):
        return False
    neutral = {"add": 0, "mul": 1}.get(r.acc.kind, instr.dtype.min)
    return bool(dtypes.from_bits(instr.attr, instr.dtype) == neutral)


# ---- instructions --------------------------------------------------------------------------------


def _const(value: int) -> Instr:
    return Instr(ops.CONST, dtypes.int64, (), dtypes.to_bits(value, dtypes.int64))


def _made(op: Op, args: tuple[Instr, ...]) -> Instr:
    dtype = dtypes.bool_ if op is ops.LT else dtypes.int64
    return Instr(op, dtype, args, None, frozenset[Var]().union(*(a.vars for a in args)))


def _shifted(bound: Instr, shift: Index) -> list[Instr]:
    """``bound + shift`` as an int64."""
    made: list[Instr] = []
    if bound.dtype is not dtypes.int64:
        bound = Instr(ops.CAST, dtypes.int64, (bound,), bound.dtype)
        made.append(bound)
    if made and shift.is_const and shift.const == 0:
        return made
    amount = Instr(INDEX, dtypes.int64, (), shift, shift.vars)
    if shift.is_const:
        amount = _const(shift.const)
    return [*made, amount, _made(ops.ADD, (bound, amount))]


def _smaller(a: list[Instr] | None, b: list[Instr]) -> list[Instr]:
    if a is None:
        return b
    less = _made(ops.LT, (a[-1], b[-1]))
    return [*a, *b, less, _made(ops.WHERE, (less, a[-1], b[-1]))]
