"""Kernels that differ only in where they begin to read and write: one kernel for all of them.

Written out step by step, a recurrent network has a kernel per step, each reading its input at
another place of the same memory. From a few of one kind on, the places become numbers that the
kernel loads from a small table of its own: one text, compiled once. Nothing else changes, and what
is the same for all stays a constant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coregrad import dtypes
from coregrad.dtypes import DType
from coregrad.ir import ops
from coregrad.ir.index import Index, Opaque, Var, constant, variable
from coregrad.ir.kernel import (
    INDEX,
    Contraction,
    Instr,
    Kernel,
    Loop,
    Param,
    Stmt,
    Store,
    Update,
    show,
    walk,
)

FEW = 4  # kernels of one kind that are worth a table


@dataclass(frozen=True)
class Table:
    """The numbers of one launch: what its kernel's last parameter holds."""

    numbers: tuple[int, ...]
    dtype: DType


def alike(kernels: Sequence[Kernel], most: int) -> list[tuple[Kernel, Table | None]]:
    """For each kernel the one to run in its place, and its table; equal ones get one object.

    A kernel with ``most`` parameters stays as it is.
    """
    out: list[tuple[Kernel, Table | None]] = [(made, None) for made in kernels]
    outlines = [_outline(made) for made in kernels]
    frequent = Counter(outlines)
    kinds: dict[str, list[int]] = {}
    places: dict[int, tuple[int, ...]] = {}
    for position, made in enumerate(kernels):
        if frequent[outlines[position]] > 1:
            kind, places[position] = _read(made)
            kinds.setdefault(kind, []).append(position)
    for members in kinds.values():
        first = kernels[members[0]]
        columns = list(zip(*(places[m] for m in members), strict=True))
        if all(len(set(column)) == 1 for column in columns):
            shared: list[tuple[Kernel, Table | None]] = [(first, None)] * len(members)
        elif len(members) >= FEW and len(first.params) < most:
            shared = [*_with_tables(first, columns)]
        else:
            continue
        for member, one in zip(members, shared, strict=True):
            out[member] = one
    return out


def _outline(kernel: Kernel) -> tuple[Any, ...]:
    """What is quickly compared: kernels that differ in it differ."""
    params = tuple((p.name, p.dtype, p.size, p.role) for p in kernel.params)
    return kernel.name, params, sum(1 for _ in walk(kernel.body))


def _read(kernel: Kernel) -> tuple[str, tuple[int, ...]]:
    """The kernel as text without the constants of its places, and these constants, in order."""
    places: list[int] = []
    ranges: list[tuple[int, int]] = []  # a gate's, perhaps

    def without(index: Index) -> Index:
        places.append(index.const)
        ranges.append((index.lo - index.const, index.hi - index.const))
        return index - index.const

    made = _Copy(without).kernel(kernel)
    text = [show(made), str(kernel.work), str(ranges)]
    if made.contraction is not None:
        text.append(_shown(made.contraction, made.params))
    return "\n".join(text), tuple(places)


def _shown(whole: Contraction, params: tuple[Param, ...]) -> str:
    """A contraction as text."""
    body: list[Stmt] = []
    known: set[Instr] = set()

    def add(value: Instr) -> None:
        if value not in known:
            known.add(value)
            for inner in (*value.args, *_computed(value)):
                add(inner)
            body.append(value)

    values = [store.value for store in whole.stores]
    values += [store.gate for store in whole.stores if store.gate is not None]
    values += [v for store in whole.stores for v in store.index.computed()]
    for value in (whole.a, whole.b, whole.result, *values):
        add(value)
    loops = [[v.name for v in some] for some in (whole.batch, whole.m, whole.n, whole.k)]
    return show(Kernel(str(loops), params, [*body, *whole.stores]))


def _computed(value: Instr) -> list[Instr]:
    """The values inside of where a load or an index looks."""
    if value.op is INDEX:
        index: Index = value.attr
    elif value.op is ops.LOAD:
        index = value.attr[1]
    else:
        return []
    return index.computed()


def _with_tables(
    first: Kernel, columns: Sequence[tuple[int, ...]]
) -> list[tuple[Kernel, Table | None]]:
    """The kernel for all launches, made of the first one's, with each launch's table.

    A column holds what one place of the text is in each launch.
    """
    rises = [tuple(place - min(column) for place in column) for column in columns]
    distinct = [rise for rise in dict.fromkeys(rises) if any(rise)]
    most = max(map(max, distinct))
    dtype = dtypes.int32 if most <= dtypes.int32.max else dtypes.int64
    table = Param(f"in{len(first.params)}", dtype, len(distinct), "in")
    starts: dict[tuple[int, ...], Index] = {}
    loads: list[Stmt] = []
    for number, rise in enumerate(distinct):
        load = Instr(ops.LOAD, dtype, (), (table, constant(number)))
        loads.append(load)
        starts[rise] = variable(Opaque(f"start{number}", load, (0, max(rise)), frozenset()))
    lowest = map(min, columns)
    shifts = iter([starts.get(r, constant(0)) + n for r, n in zip(rises, lowest, strict=True)])

    def moved(index: Index) -> Index:
        shift = next(shifts)
        low, high = index.lo - index.const, index.hi - index.const
        return (index - index.const + shift).assume(low + shift.lo, high + shift.hi)

    made = _Copy(moved).kernel(first)
    made.params = (*made.params, table)
    _entry(made)[:0] = loads
    rows = zip(*distinct, strict=True)
    return [(made, Table(row, dtype)) for row in rows]


def _entry(kernel: Kernel) -> list[Stmt]:
    """Where a kernel's values may begin: in a work-group they belong to its threads."""
    for outer in (s for s in kernel.body if isinstance(s, Loop) and s.kind == "grid"):
        for inner in (s for s in outer.body if isinstance(s, Loop) and s.kind == "local"):
            return inner.body
    return kernel.body


class _Copy:
    """Copies a kernel; ``place`` says for each load and store, in order, where the copy's looks."""

    def __init__(self, place: Callable[[Index], Index]) -> None:
        self._place = place
        self._known: dict[Instr, Instr] = {}
        self._opaque: dict[Opaque, Opaque] = {}

    def kernel(self, old: Kernel) -> Kernel:
        body = self._block(old.body)
        whole = old.contraction
        if whole is not None:
            whole = replace(
                whole,
                a=self._value(whole.a),
                b=self._value(whole.b),
                result=self._value(whole.result),
                stores=tuple(map(self._store, whole.stores)),
            )
        return replace(old, body=body, contraction=whole)

    def _block(self, body: Sequence[Stmt]) -> list[Stmt]:
        return [self._statement(stmt) for stmt in body]

    def _statement(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, Instr):
            return self._value(stmt)
        if isinstance(stmt, Store):
            return self._store(stmt)
        if isinstance(stmt, Update):
            return replace(stmt, values=tuple(map(self._value, stmt.values)))
        if isinstance(stmt, Loop):
            limit = None if stmt.limit is None else self._value(stmt.limit)
            return replace(stmt, body=self._block(stmt.body), limit=limit)
        return stmt

    def _store(self, old: Store) -> Store:
        gate = None if old.gate is None else self._value(old.gate)
        index = self._place(self._index(old.index))
        return replace(old, index=index, value=self._value(old.value), gate=gate)

    def _value(self, old: Instr) -> Instr:
        if old not in self._known:
            attr = old.attr
            if old.op is ops.LOAD:
                attr = attr[0], self._place(self._index(attr[1]))
            elif old.op is INDEX:
                attr = self._index(attr)
            args = tuple(map(self._value, old.args))
            self._known[old] = replace(old, args=args, attr=attr)
        return self._known[old]

    def _index(self, old: Index) -> Index:
        """The same index, of the copies of what it is computed from."""
        if not old.computed():
            return old
        return old.rebuilt(self._leaf)

    def _leaf(self, old: Var | Opaque) -> Index:
        if isinstance(old, Var):
            return variable(old)
        if old not in self._opaque:
            self._opaque[old] = replace(old, value=self._value(old.value))
        return variable(self._opaque[old])
