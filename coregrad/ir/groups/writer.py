"""A kernel being written anew: instructions are copied with their loop variables replaced.

An equal instruction is written once, in the outermost open block where its variables are bound.
What reads scratch memory or an accumulator stays where it is written: it may change. This room
knows nothing of why a kernel is laid out one way or another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from coregrad import dtypes
from coregrad.dtypes import DType, to_bits
from coregrad.ir import ops
from coregrad.ir.index import Atom, Index, Opaque, Var, constant, variable
from coregrad.ir.kernel import (
    INDEX,
    RESULT,
    Accumulator,
    Allocate,
    Array,
    Barrier,
    Declare,
    Instr,
    Loop,
    Param,
    Stmt,
    Store,
    Update,
    conjuncts,
)
from coregrad.ir.legalize import needs
from coregrad.ir.ops import Op


@dataclass(eq=False)
class _Block:
    """A loop body being filled, and the variables bound in it."""

    body: list[Stmt]
    vars: frozenset[Var]
    made: dict[tuple[Any, ...], Instr] = field(default_factory=dict)


class Writer:
    """The statements of a kernel, written in order; loops are opened and closed."""

    def __init__(self) -> None:
        self.body: list[Stmt] = []
        self._blocks = [_Block(self.body, frozenset())]
        self._floor = 0  # nothing is written further out than this block

    @contextmanager
    def loop(self, var: Var, kind: str = "serial", limit: Instr | None = None) -> Iterator[Index]:
        """Write the body of a loop, whose index is given. A serial loop of one step is none."""
        if var.extent == 1 and kind not in ("grid", "local") and limit is None:
            yield constant(0)
            return
        made = Loop(var, kind, limit=limit)
        self._blocks.append(_Block(made.body, self._blocks[-1].vars | {var}))
        yield variable(var)
        self._blocks.pop()
        self._blocks[-1].body.append(made)

    @contextmanager
    def group(self, grid: Var, threads: int) -> Iterator[tuple[Index, Index]]:
        """Write what the threads of a work-group do, given the group's number and the thread's."""
        with self.loop(grid, "grid") as g, self.loop(Var("t", threads), "local") as t:
            self._floor = 2
            yield g, t
            self._floor = 0

    def add(self, stmt: Declare | Update | Store | Allocate | Barrier) -> None:
        """Append a statement to the innermost block."""
        self._blocks[-1].body.append(stmt)

    def local(self, name: str, dtype: DType, size: int) -> Array:
        """Memory that the threads of a work-group share."""
        made = Array(name, dtype, size, "local")
        self._blocks[1].body.append(Allocate(made))
        return made

    def private(self, name: str, dtype: DType, size: int) -> Array:
        """Memory of one thread, for the rest of the innermost block."""
        made = Array(name, dtype, size)
        self.add(Allocate(made))
        return made

    # ---- values ----------------------------------------------------------------------------

    def instr(self, op: Op, dtype: DType, args: tuple[Instr, ...] = (), attr: Any = None) -> Instr:
        """A value, in the outermost block where it can be computed."""
        used = frozenset[Var]().union(*(a.vars for a in args), _own_vars(op, attr))
        block = next(b for b in self._blocks[self._floor :] if used <= b.vars)
        key = (op, dtype, attr, *args)
        if key not in block.made:
            block.made[key] = Instr(op, dtype, args, attr, used)
            block.body.append(block.made[key])
        return block.made[key]

    def here(self, op: Op, dtype: DType, args: tuple[Instr, ...], attr: Any) -> Instr:
        """A value that is only right at this place of the program."""
        block = self._blocks[-1]
        made = Instr(op, dtype, args, attr, block.vars)
        block.body.append(made)
        return made

    def load(self, buffer: Param | Array, index: Index, gate: Instr | None = None) -> Instr:
        """An element of a buffer, or 0 where the gate does not hold."""
        args = () if gate is None else (gate,)
        write = self.here if isinstance(buffer, Array) else self.instr
        return write(ops.LOAD, buffer.dtype, args, (buffer, index))

    def result(self, acc: Accumulator, part: int = 0, dtype: DType | None = None) -> Instr:
        """What an accumulator holds here."""
        return self.here(RESULT, dtype or acc.dtype, (), (acc, part))

    def const(self, value: float, dtype: DType) -> Instr:
        """A number."""
        return self.instr(ops.CONST, dtype, (), to_bits(value, dtype))

    def index(self, index: Index, dtype: DType = dtypes.int64) -> Instr:
        """An index as a value."""
        if index.is_const and dtype.min <= index.const <= dtype.max:
            return self.const(index.const, dtype)
        return self.instr(INDEX, dtype, (), index)

    def below(self, index: Index, bound: int) -> Instr | None:
        """The gate ``index < bound``; None where that is known."""
        return None if index.hi < bound else self.less(index, constant(bound))

    def less(self, a: Index, b: Index) -> Instr:
        """The gate ``a < b``."""
        return self.instr(ops.LT, dtypes.bool_, (self.index(a), self.index(b)))

    def both(self, *gates: Instr | None) -> Instr | None:
        """The conjunction of gates; None is true."""
        total: Instr | None = None
        for gate in gates:
            if total is None or gate is None or gate in conjuncts(total):
                total = total or gate
            else:
                total = self.instr(ops.AND, dtypes.bool_, (total, gate))
        return total

    def where(self, gate: Instr | None, value: Instr, other: float) -> Instr:
        """``value`` where the gate holds. A load under that gate is 0 elsewhere by itself."""
        if gate is None:
            return value
        gated = value.op is ops.LOAD and any(conjuncts(gate) <= conjuncts(a) for a in value.args)
        if gated and other == 0:
            return value
        args = (gate, value, self.const(other, value.dtype))
        return self.instr(ops.WHERE, value.dtype, args)


def _own_vars(op: Op, attr: Any) -> frozenset[Var]:
    if op is ops.LOAD:
        used: frozenset[Var] = attr[1].vars
        return used
    return attr.vars if op is INDEX else frozenset()


@dataclass(eq=False)
class Copy:
    """Copies instructions and statements, loop variables being replaced by ``values``.

    Every access is made under ``gate``; an update of an accumulator in ``masked`` folds its
    neutral element where the gate does not hold. ``known`` says what instructions became.
    """

    writer: Writer
    values: Mapping[Var, Index] = field(default_factory=dict)
    gate: Instr | None = None
    known: dict[Instr, Instr] = field(default_factory=dict)
    arrays: Mapping[Array, Array] = field(default_factory=dict)
    masked: frozenset[Accumulator] = frozenset()
    _opaques: dict[Opaque, Atom] = field(default_factory=dict)

    def inside(
        self, values: Mapping[Var, Index], gate: Instr | None, masked: frozenset[Accumulator]
    ) -> Copy:
        """A copy that knows all that this one knows, with more variables replaced."""
        known, arrays = dict(self.known), self.arrays
        return Copy(self.writer, {**self.values, **values}, gate, known, arrays, masked)

    def value(self, root: Instr) -> Instr:
        """The copy of a value and of all it is computed from; iterative."""
        stack = [root]
        while stack:
            instr = stack[-1]
            missing = [n for n in needs(instr) if n not in self.known]
            if instr in self.known:
                stack.pop()
            elif missing:
                stack += missing
            else:
                self.known[stack.pop()] = self._one(instr)
        return self.known[root]

    def _one(self, instr: Instr) -> Instr:
        args = tuple(self.known[a] for a in instr.args)
        attr = instr.attr
        if instr.op is ops.LOAD:
            buffer, index = attr
            gate = self.writer.both(*args, self.gate)
            return self.writer.load(self.arrays.get(buffer, buffer), self.index(index), gate)
        if instr.op is RESULT:
            return self.writer.result(attr[0], attr[1], instr.dtype)
        if instr.op is INDEX:
            return self.writer.index(self.index(attr), instr.dtype)
        return self.writer.instr(instr.op, instr.dtype, args, attr)

    def index(self, index: Index) -> Index:
        """The index with variables replaced, also inside the values that it computes. What a gate
        told of its range stays true under that gate."""
        if not index.vars & self.values.keys() and not index.computed():
            return index
        return index.rebuilt(self._leaf)

    def _leaf(self, atom: Var | Opaque) -> Index:
        if isinstance(atom, Var):
            return self.values.get(atom) or variable(atom)
        if atom not in self._opaques:
            value = self.value(atom.value)
            self._opaques[atom] = Opaque(atom.name, value, atom.range, value.vars)
        return variable(self._opaques[atom])

    def block(self, body: Sequence[Stmt]) -> None:
        """Copy statements. (Their nesting is that of loops, a few at most.)"""
        for stmt in body:
            if isinstance(stmt, Instr):
                self.known[stmt] = self._one(stmt)
            elif isinstance(stmt, Loop):
                limit = None if stmt.limit is None else self.value(stmt.limit)
                with self.writer.loop(stmt.var, stmt.kind, limit):
                    self.block(stmt.body)
            elif isinstance(stmt, Store):
                self.store(stmt)
            elif isinstance(stmt, Update):
                self._update(stmt)
            else:
                self.writer.add(stmt)

    def store(self, store: Store, also: Instr | None = None) -> None:
        """Copy a store, under one more gate."""
        gate = self.writer.both(store.gate and self.value(store.gate), self.gate, also)
        target = store.target
        if isinstance(target, Array):
            target = self.arrays.get(target, target)
        self.writer.add(Store(target, self.index(store.index), self.value(store.value), gate))

    def _update(self, update: Update) -> None:
        values = [self.known[v] for v in update.values]
        if update.acc in self.masked:
            neutral = (neutral_of(update.acc), values[-1].dtype.max)
            values = [
                self.writer.where(self.gate, v, other)
                for v, other in zip(values, neutral, strict=False)
            ]
        self.writer.add(Update(update.acc, tuple(values)))


def neutral_of(acc: Accumulator) -> float:
    """What changes nothing when it is folded into an accumulator."""
    if acc.kind == "add":
        return 0
    return 1 if acc.kind == "mul" else acc.dtype.min
