"""Contractions without local memory: one work-item computes a small block of the output.

The block's sums are as many accumulators, each its own variable, so that a compiler keeps them in
registers; operands come from the caches. On a CPU this is what a hand-written kernel does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from coregrad import dtypes
from coregrad.ir import ops
from coregrad.ir.groups.strides import walks
from coregrad.ir.groups.writer import Copy, Writer
from coregrad.ir.index import Index, Var, constant, unflatten
from coregrad.ir.kernel import (
    Accumulator,
    Array,
    Contraction,
    Declare,
    Instr,
    Kernel,
    Store,
    Update,
)
from coregrad.ir.target import Limits

ROWS = 4  # a block of 4 x 16 fills the vector registers of a CPU, and needs few loads
WIDTHS = {16: 1.0, 8: 0.75, 4: 0.5}  # columns of a block, and about how fast it is (measured)
SCATTERED = 0.6  # the speed of columns that are far apart in memory
DEPTH = 16  # steps of the sum that operands are computed ahead for, at most
ENOUGH = 64  # work-items that keep every core busy
TERMS = 4  # products that a sum needs to be worth a block


def oriented(whole: Contraction) -> Contraction:
    """The contraction with the operand that neighbouring outputs share named ``a``."""
    index = whole.stores[0].index
    if any(index.coefficient(var) == 1 for var in whole.m):
        return replace(whole, m=whole.n, n=whole.m, a=whole.b, b=whole.a)
    return whole


def layout(whole: Contraction, kernel: Kernel, limits: Limits) -> Kernel | None:
    """The kernel with one work-item per block of outputs, or None where that does not pay."""
    if math.prod(v.extent for v in whole.k) < TERMS:
        return None
    whole, sides = _sides(whole)
    if sides[0].size * sides[1].size == 1:
        return None
    writer = Writer()
    outer = [*whole.batch, *whole.n, *whole.m]  # neighbouring items share the columns they read
    sizes = {v: v.extent for v in outer} | {side.var: side.blocks for side in sides}
    with writer.loop(Var("g", math.prod(sizes.values())), "grid") as g:
        at = dict(zip(outer, unflatten(g, list(sizes.values())), strict=True))
        sums = _sums(writer, whole, at, sides)
        _finish(writer, whole, at, sides, sums)
    return Kernel(kernel.name, kernel.params, writer.body)


@dataclass(frozen=True)
class _Side:
    """How an axis is cut into blocks. The last one begins early enough to be as long as the others:
    it computes some outputs that the one before stores, and no load needs a gate."""

    var: Var
    size: int

    @property
    def blocks(self) -> int:
        return -(-self.var.extent // self.size)

    @property
    def waste(self) -> float:
        """Elements computed for each one that is stored."""
        return self.blocks * self.size / self.var.extent

    def position(self, block: Index, inner: Index) -> Index:
        """Where the element ``inner`` of a block stands."""
        ahead = self.blocks * self.size - self.var.extent
        start = block * self.size
        if ahead:
            start = start - (block // (self.blocks - 1)) * ahead
        last = self.var.extent - self.size
        return (start + inner).assume(inner.lo, last + inner.hi)

    def is_new(self, writer: Writer, block: Index, position: Index) -> Instr | None:
        """The gate that no other block stores the element; None where that is known."""
        if self.blocks * self.size == self.var.extent:
            return None
        return writer.less(block * self.size - 1, position)


def _sums(
    writer: Writer, whole: Contraction, at: Mapping[Var, Index], sides: tuple[_Side, _Side]
) -> Array:
    """Compute the sums of a block, and gather them in an array.

    Its stores are neighbours: from there a compiler finds the vectors in the loop before.
    """
    acc = declared(writer, whole.acc, sides[0].size, sides[1].size)
    down, across = sides
    *outer, last = whole.k
    gates = _outer_gates(whole, frozenset((down.var, across.var, last)))
    vectors = walks(whole.b, across.var)
    operands = _Operand(down, whole.a, True, gates), _Operand(across, whole.b, vectors, gates)
    depth = _depth(last.extent) if any(one.is_staged for one in operands) else 1
    for one in operands:
        one.allocate(writer, depth)
    with ExitStack() as loops:
        steps = [(v, loops.enter_context(writer.loop(v))) for v in outer]
        at = {**at, **dict(steps)}
        steps_of_last = Var(last.name, last.extent // depth)
        limit = _limit(writer, [Copy(writer, at).value(gate) for gate in gates], steps_of_last)
        step = loops.enter_context(writer.loop(steps_of_last, limit=limit))
        for one in operands:
            one.fill(writer, {**at, last: step * depth}, last, depth)
        with writer.loop(Var("k", depth)) as k:
            found = [one.values(writer, {**at, last: step * depth + k}, k) for one in operands]
            multiply(writer, acc, *found)
    flat = [one for row in acc for one in row]
    block = writer.private("block", whole.acc.dtype, len(flat))
    for place, total in enumerate(flat):
        writer.add(Store(block, constant(place), writer.result(total)))
    return block


def _outer_gates(whole: Contraction, inner: frozenset[Var]) -> list[Instr]:
    """Gates of both operands that are the same for all of a block and of its innermost loop, as
    where a filter's tap meets no element. (A gate of one operand alone leaves zeros, which times
    infinity is NaN.)"""
    gates = [set(one.args) if one.op is ops.LOAD else set() for one in (whole.a, whole.b)]
    return [gate for gate in gates[0] & gates[1] if not gate.vars & inner]


def _limit(writer: Writer, gates: Sequence[Instr], loop: Var) -> Instr | None:
    """Where the loop ends: at once, if a gate does not hold."""
    if not gates:
        return None
    ends = (writer.const(n, dtypes.int64) for n in (loop.extent, 0))
    gate = writer.both(*gates)
    assert gate is not None
    return writer.instr(ops.WHERE, dtypes.int64, (gate, *ends))


@dataclass(eq=False)
class _Operand:
    """One operand of a block's products. What is more than a load is computed ahead for some steps
    of the sum: between the products its branches would keep a compiler from using vectors."""

    side: _Side
    value: Instr
    is_handy: bool  # no need to gather it from far apart
    settled: Sequence[Instr]  # gates that hold wherever it is looked at
    stage: Array | None = None

    @property
    def is_staged(self) -> bool:
        is_load = self.value.op is ops.LOAD and all(g in self.settled for g in self.value.args)
        return not (self.is_handy and is_load)

    def allocate(self, writer: Writer, depth: int) -> None:
        if self.is_staged:
            self.stage = writer.private(
                f"stage_{self.side.var.name}", self.value.dtype, depth * self.side.size
            )

    def fill(self, writer: Writer, at: Mapping[Var, Index], last: Var, depth: int) -> None:
        if self.stage is None:
            return
        with writer.loop(Var("y", depth)) as y, writer.loop(Var("z", self.side.size)) as z:
            found = self._one(writer, {**at, last: at[last] + y}, z)
            writer.add(Store(self.stage, y * self.side.size + z, found))

    def values(self, writer: Writer, at: Mapping[Var, Index], k: Index) -> list[Instr]:
        """The values at one step of the sum."""
        size = self.side.size
        if self.stage is None:
            return [self._one(writer, at, constant(i)) for i in range(size)]
        return [writer.load(self.stage, k * size + i) for i in range(size)]

    def _one(self, writer: Writer, at: Mapping[Var, Index], inner: Index) -> Instr:
        position = self.side.position(at[self.side.var], inner)
        return Copy(writer, {**at, self.side.var: position}).value(self.value)


def _depth(extent: int) -> int:
    """Steps of a sum that operands are computed ahead for: a divisor of the extent."""
    return max(d for d in range(1, DEPTH + 1) if extent % d == 0)


def _finish(
    writer: Writer, whole: Contraction, at: Mapping[Var, Index], sides: tuple[_Side, _Side],
    sums: Array,
) -> None:  # fmt: skip
    """Store what is computed from each sum."""
    m, n = sides
    with writer.loop(Var("m", m.size)) as i, writer.loop(Var("n", n.size)) as j:
        row, column = m.position(at[m.var], i), n.position(at[n.var], j)
        gates = m.is_new(writer, at[m.var], row), n.is_new(writer, at[n.var], column)
        copy = Copy(writer, {**at, m.var: row, n.var: column}, writer.both(*gates))
        copy.known[whole.result] = writer.load(sums, i * n.size + j)
        for store in whole.stores:
            copy.store(store)


def declared(writer: Writer, acc: Accumulator, rows: int, columns: int) -> list[list[Accumulator]]:
    """An accumulator for each output of a block."""
    sums = [[replace(acc, name=f"{acc.name}_{i}_{j}") for j in range(columns)] for i in range(rows)]
    for one in (s for row in sums for s in row):
        writer.add(Declare(one))
    return sums


def multiply(
    writer: Writer, sums: list[list[Accumulator]], lefts: list[Instr], rights: list[Instr]
) -> None:
    """Add all products of a column and a row to the sums."""
    for row, left in zip(sums, lefts, strict=True):
        for acc, right in zip(row, rights, strict=True):
            product = writer.instr(ops.MUL, left.dtype, (left, right))
            writer.add(Update(acc, (product,)))


def _sides(whole: Contraction) -> tuple[Contraction, tuple[_Side, _Side]]:
    """Along which axes blocks are cut, and how large: columns where they fill vectors best, rows
    along the longest axis of the other operand; smaller blocks where there are few outputs."""
    whole = oriented(whole)
    turned = replace(whole, m=whole.n, n=whole.m, a=whole.b, b=whole.a)
    ranked = [(_speed(one.b, var), one, var) for one in (turned, whole) for var in one.n]
    _, whole, across = max(reversed(ranked), key=lambda choice: choice[0])
    down = max(reversed(whole.m), key=lambda var: min(var.extent, ROWS))
    rows, columns = min(ROWS, down.extent), _columns(across.extent)
    outputs = math.prod(v.extent for v in (*whole.batch, *whole.m, *whole.n))
    while outputs < ENOUGH * rows * columns and rows * columns > 1:
        rows, columns = (rows // 2, columns) if rows > 1 else (1, columns // 2)
    return whole, (_Side(down, rows), _Side(across, columns))


def _columns(extent: int) -> int:
    """The width of a block that wastes least, narrower ones being slower."""
    wide = [n for n in WIDTHS if n <= extent]
    return max(wide, key=lambda n: WIDTHS[n] / _Side(Var("", extent), n).waste) if wide else extent


def _speed(value: Instr, var: Var) -> float:
    """About how fast blocks with their columns along ``var`` are, 1 being the best."""
    width = _columns(var.extent)
    near = 1.0 if walks(value, var) else SCATTERED
    return near * WIDTHS.get(width, width / 32) / _Side(var, width).waste
