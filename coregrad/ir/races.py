"""Proofs that no two threads of a work-group touch one element between two barriers, both reading
apart. It looks at index expressions and gates alone; what it cannot prove it reports.

Two accesses are harmless if they are one expression that differs for each thread, so that each
keeps to its own elements, or if their ranges, as far as gates tell them, do not meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

from coregrad.dtypes import from_bits
from coregrad.ir import ops
from coregrad.ir.index import Atom, Index, Quotient, Remainder, Var, variable
from coregrad.ir.kernel import INDEX, Array, Barrier, Instr, Loop, Stmt, Store

Range = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Access:
    """A load or store of a local array; ``free``: loops that run on without a barrier."""

    array: Array
    index: Index
    writes: bool
    range: Range
    free: frozenset[Var]


def find_race(threads: Loop) -> str:
    """Two accesses in the body of a local loop that may meet, in words; empty if there are none."""
    walk = _Walk(frozenset((threads.var,)))
    walk.block(threads.body, walk.threads, {})
    walk.barrier()
    return walk.found


@dataclass(eq=False)
class _Walk:
    """One way through the statements, remembering accesses since the last barrier."""

    threads: frozenset[Var]
    since: list[Access] = field(default_factory=list)
    found: str = ""

    def block(
        self, body: Sequence[Stmt], free: frozenset[Var], renamed: Mapping[Var, Index]
    ) -> None:
        for stmt in body:
            if isinstance(stmt, Barrier):
                self.barrier()
            elif isinstance(stmt, Loop):
                self._loop(stmt, free, renamed)
            elif isinstance(stmt, Store):
                self._access(stmt.target, stmt.index, stmt.gate, True, free, renamed)
            elif isinstance(stmt, Instr) and stmt.op is ops.LOAD:
                array, index = stmt.attr
                gate = stmt.args[0] if stmt.args else None
                self._access(array, index, gate, False, free, renamed)

    def _loop(self, loop: Loop, free: frozenset[Var], renamed: Mapping[Var, Index]) -> None:
        if not _has_barrier(loop):
            self.block(loop.body, free | {loop.var}, renamed)
            return
        # What follows its last barrier meets what precedes the first one a step later.
        for turn in range(min(2, loop.var.extent)):
            step = Var(f"{loop.var.name}.{turn}", loop.var.extent)
            self.block(loop.body, free, {**renamed, loop.var: variable(step)})

    def _access(
        self, array: object, index: Index, gate: Instr | None, writes: bool,
        free: frozenset[Var], renamed: Mapping[Var, Index],
    ) -> None:  # fmt: skip
        if not isinstance(array, Array) or array.space != "local":
            return
        bounds = _bounds(gate)
        low, high = _range(index, bounds)
        here = index.substitute(renamed)
        self.since.append(Access(array, here, writes, (low, high), free))

    def barrier(self) -> None:
        """Compare all that happened since the last one."""
        for a, b in combinations_with_replacement(self.since, 2):
            if a.array is b.array and (a.writes or b.writes) and not self._apart(a, b):
                self.found = self.found or (
                    f"two threads may touch one element of {a.array.name} between barriers: "
                    f"[{a.index}] and [{b.index}]"
                )
        self.since.clear()

    def _apart(self, a: Access, b: Access) -> bool:
        if a.range[1] < b.range[0] or b.range[1] < a.range[0]:
            return True
        same = (a.index.terms, a.index.const) == (b.index.terms, b.index.const)
        return same and self.threads <= determined(a.index, a.free | b.free)


def _has_barrier(loop: Loop) -> bool:
    return any(
        isinstance(s, Barrier) or (isinstance(s, Loop) and _has_barrier(s)) for s in loop.body
    )


# ---- what equal values of an index say about its variables ---------------------------------------


def determined(index: Index, varying: frozenset[Var]) -> frozenset[Var]:
    """The variables among ``varying`` that are the same wherever the index has one value, all
    others being fixed. (It may leave some out.)

    The terms are read as digits: if each coefficient exceeds what all smaller terms sum up to, the
    value tells every term. A quotient and a remainder of one dividend tell the dividend.
    """
    terms = [(atom, abs(c)) for atom, c in index.terms if atom.vars & varying]
    reach = 0
    for atom, c in sorted(terms, key=lambda term: term[1]):
        if c <= reach:
            return frozenset()
        low, high = atom.range
        reach += c * (high - low)
    atoms = [atom for atom, _ in terms]
    told = {atom for atom in atoms if isinstance(atom, Var)}
    for whole in _dividends(atoms):
        told |= determined(whole, varying)
    return frozenset(told)


def _dividends(atoms: Iterable[Atom]) -> list[Index]:
    """What is divided with both its quotient and its remainder among the atoms."""
    kinds: dict[tuple[Index, int], set[type]] = {}
    for atom in atoms:
        if isinstance(atom, Quotient | Remainder):
            kinds.setdefault((atom.x, atom.divisor), set()).add(type(atom))
    return [x for (x, _), found in kinds.items() if len(found) == 2]


# ---- what a gate says about variables ------------------------------------------------------------


def _bounds(gate: Instr | None) -> dict[Var, Range]:
    """The ranges of single variables, as the conjuncts of a gate tell them."""
    out: dict[Var, Range] = {}
    stack = [gate] if gate is not None else []
    while stack:
        one = stack.pop()
        if one.op is ops.AND:
            stack += one.args
        elif one.op is ops.LT:
            a, b = one.args
            if a.op is INDEX and b.op is ops.CONST:
                _narrow(out, a.attr, high=int(from_bits(b.attr, b.dtype)) - 1)
            elif a.op is ops.CONST and b.op is INDEX:
                _narrow(out, b.attr, low=int(from_bits(a.attr, a.dtype)) + 1)
    return out


def _narrow(
    out: dict[Var, Range], index: Index, low: int | None = None, high: int | None = None
) -> None:
    if len(index.terms) != 1 or index.terms[0][1] != 1:
        return
    var = index.terms[0][0]
    if not isinstance(var, Var):
        return
    least, most = out.get(var, var.range)
    if low is not None:
        least = max(least, low - index.const)
    if high is not None:
        most = min(most, high - index.const)
    out[var] = least, max(least, most)


def _range(index: Index, bounds: Mapping[Var, Range]) -> Range:
    """Smallest and largest value, with what is known of its variables and of itself."""
    low = high = index.const
    for atom, c in index.terms:
        ends = bounds.get(atom, atom.range) if isinstance(atom, Var) else atom.range
        low += c * (ends[0] if c > 0 else ends[1])
        high += c * (ends[1] if c > 0 else ends[0])
    return max(low, index.lo), min(high, index.hi)
