"""Where the scalar operand's numbers stand, for a tile and for every step of k.

They are read in place or from a copy; either way an element moves by a fixed distance per step of
each axis. Steps of k follow each other evenly, or a table lists their distances.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from coregrad.dtypes import int64
from coregrad.ir.kernel import INDEX, Instr
from coregrad_cpu.llvm.contraction import tree
from coregrad_cpu.llvm.contraction.arith import Operand
from coregrad_cpu.llvm.contraction.copying import Copying
from coregrad_cpu.llvm.contraction.writer import Span, Values, Writer


@dataclass(frozen=True)
class Call:
    """What a micro-kernel is called with: how many steps of k, and where its numbers begin."""

    steps: Operand
    rows: str
    table: str
    panel: str


class Scalar:
    """Writes addresses of the scalar operand."""

    def __init__(self, writer: Writer, copying: Copying | None) -> None:
        self.w = writer
        plan = self.plan = writer.plan
        self.copying = copying
        if copying is None:
            source = tree.bare_load(plan.read.root)
            assert source is not None
            self._param, self._index = source
            found = tree.strides(self._index, (*plan.tile.axes, *plan.k.axes))
            assert found is not None
            self.strides = found
        else:
            self.strides = copying.strides
        self.step = self._even_step()
        self.table = "null"
        if self.step is None:
            self.table = writer.frame.entry(f"alloca [{plan.steps} x i32], align 64")

    def _even_step(self) -> int | None:
        """The distance from each k to the next within a block, if it is always the same."""
        axes = self.plan.k.axes[self.plan.k.at :]
        for outer, inner in itertools.pairwise(axes):
            if self.strides[outer] != self.strides[inner] * inner.extent:
                return None
        return self.strides[axes[-1]]

    def start(self) -> None:
        """Once per kernel: the distance of every k in a block from the first one."""
        if self.step is not None:
            return
        w, do, k = self.w, self.w.do, self.plan.k
        counts = [k.size, *(v.extent for v in k.axes[k.at + 1 :])]
        spans = [Span(v, 0, n, n) for v, n in zip(k.axes[k.at :], counts, strict=True)]
        for place, values in w.walk(spans):
            distance: Operand = 0
            for span in spans:
                distance = do.add(distance, do.mul(values[span.var], self.strides[span.var]))
            narrow = w.frame.op(f"trunc i64 {distance} to i32")
            w.frame.line(f"store i32 {narrow}, ptr {do.at(self.table, place, 'i32')}, align 4")

    def offsets(self, size: int) -> tuple[int, ...]:
        """How far the elements of a tile of ``size`` steps stand from its first one."""
        tile = self.plan.tile
        found = [0]
        counts = [size, *(v.extent for v in tile.axes[tile.at + 1 :])]
        for var, count in zip(tile.axes[tile.at :], counts, strict=True):
            found = [offset + i * self.strides[var] for offset in found for i in range(count)]
        return tuple(found)

    def call(self, values: Values, size: Operand, cut: Span, starts: Values, panel: str) -> Call:
        """The micro-kernel's work for a tile at ``values``, ``size`` steps long.

        ``cut`` is the stretch of k; ``starts`` are the indices from which a copy counts.
        """
        rows = self._first(values, cut, starts)
        steps = self.w.do.mul(cut.count, self.plan.k.inner)
        return self._trimmed(Call(steps, rows, self.table, panel), values, size)

    def _first(self, values: Values, cut: Span, starts: Values) -> str:
        """The address of the tile's first element at the stretch's first k."""
        plan, do, tile = self.plan, self.w.do, self.plan.tile
        if self.copying is not None:
            place: Operand = 0
            for slide in plan.read.slides:
                place = do.add(place, do.mul(starts[slide.total], self.strides[slide.total]))
            for at, var in enumerate(tile.axes[: tile.at + 1]):
                moved = do.sub(values[var], starts[var]) if at >= plan.block.at else 0
                place = do.add(place, do.mul(moved, self.strides[var]))
            return self.w.at(self.copying.copy, place)
        inner = (*tile.axes[tile.at + 1 :], *plan.k.axes[plan.k.at + 1 :])
        at_first: Values = {**dict.fromkeys(inner, 0), **values, cut.var: cut.start}
        whole = Instr(INDEX, int64, (), self._index, self._index.vars)
        place = self.w.emitter.value(whole, self.w.bindings(at_first), 1)
        return self.w.at(self.w.frame.names[self._param.name], place)

    def _trimmed(self, call: Call, values: Values, size: Operand) -> Call:
        """The same without the steps of k whose number is 0 for every element of the tile."""
        plan, do, slide = self.plan, self.w.do, self.plan.trimmed
        if slide is None:
            return call
        first = do.add(do.mul(values[slide.axis], slide.scale), slide.origin)
        count = size if plan.tile.axes[plan.tile.at] is slide.axis else 1
        last = do.add(first, do.mul(do.sub(count, 1), slide.scale))
        if slide.step > 0:
            low, high = do.sub(slide.low, last), do.sub(slide.high, first)
        else:
            low, high = do.sub(first, slide.high), do.sub(last, slide.low)
        low = do.max(low, 0)
        high = do.min(high, slide.tap.extent - 1)
        used = do.max(do.sub(do.add(high, 1), low), 0)
        skipped = do.mul(low, plan.k.inner)
        rows, table = call.rows, call.table
        if self.step is not None:
            rows = self.w.at(rows, do.mul(low, self.strides[slide.tap]))
        else:
            table = do.at(table, skipped, "i32")
        panel = self.w.at(call.panel, do.mul(skipped, plan.panel))
        return Call(do.mul(used, plan.k.inner), rows, table, panel)
