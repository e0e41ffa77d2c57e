"""The epilogue: a tile of sums handed to the kernel's stores, whole vectors at a time."""

from __future__ import annotations

from math import gcd

from coregrad.ir.index import Var
from coregrad.ir.kernel import Contraction, Param, Store
from coregrad_cpu.llvm import words
from coregrad_cpu.llvm.contraction import tree
from coregrad_cpu.llvm.contraction.arith import Operand
from coregrad_cpu.llvm.contraction.cut import power
from coregrad_cpu.llvm.contraction.plan import Plan
from coregrad_cpu.llvm.contraction.writer import Values, Writer


class Output:
    """The stores, over axes merged as far as they allow."""

    def __init__(self, c: Contraction, plan: Plan) -> None:
        fragment = tree.stores_fragment(c.stores)
        fragment, self.vector_axes = tree.merge(fragment, plan.packed.originals)
        fragment, self.scalar_axes = tree.merge(fragment, plan.read.originals)
        self.stores: tuple[Store, ...] = tree.with_fragment(c.stores, fragment)
        steps = [
            fragment.targets[0].coefficient(axes[-1])
            for axes in (self.vector_axes, self.scalar_axes)
        ]
        self.along_vector = steps[0] == 1 or steps[1] != 1
        # An element that is read and written must be stored exactly once.
        self.once = any(isinstance(s.target, Param) and s.target.role == "inout" for s in c.stores)

    def vector_lanes(self, width: int, lanes: int) -> int:
        """Lanes along the vector side, for a panel of this width."""
        if len(self.vector_axes) > 1:
            return gcd(lanes, self.vector_axes[-1].extent)
        return gcd(lanes, width) if self.once else min(lanes, power(width))

    def scalar_lanes(self, plan: Plan) -> int:
        """Lanes along the scalar side, for every tile."""
        inner = plan.tile.inner
        counts = [size * inner for size in plan.tile.sizes]
        if len(self.scalar_axes) == 1 and not self.once:
            return min(plan.lanes, power(min(counts)))
        whole = plan.tile.extent * inner
        return gcd(plan.lanes, self.scalar_axes[-1].extent, whole, *counts)


class Epilogue:
    """Writes the storing of tiles. ``start`` and ``first`` are the tile's positions on the scalar
    and the vector side; a row of sums is as long as the panel's vectors."""

    def __init__(self, contraction: Contraction, writer: Writer) -> None:
        self.w = writer
        plan = self.plan = writer.plan
        self.result = contraction.result
        self.output = Output(contraction, plan)
        self.height = -(-plan.rows // plan.lanes) * plan.lanes
        self.columns = "" if self.output.along_vector else writer.array(plan.lanes * self.height)

    def write(self, sums: str, start: Operand, rows: Operand, first: Operand, width: int) -> None:
        """Store one tile, lanes along whichever side is contiguous in the first output."""
        if self.output.along_vector:
            self._store_rows(sums, start, rows, first, width)
        else:
            self._store_columns(sums, start, rows, first, width)

    def _store_rows(
        self, sums: str, start: Operand, rows: Operand, first: Operand, width: int
    ) -> None:
        w, plan, do = self.w, self.plan, self.w.do
        line = -(-width // plan.lanes) * plan.lanes
        lanes = self.output.vector_lanes(width, plan.lanes)
        axes = self.output.vector_axes

        def put(i: Operand, group: Operand, vector: Values) -> None:
            source = w.at(sums, do.add(do.mul(i, line), group))
            scalar = w.indices(self.output.scalar_axes, do.add(start, i))
            self._store_sums(source, {**scalar, **vector}, lanes, axes[-1])

        if len(axes) > 1 and len(self.output.scalar_axes) == 1:
            for group in w.cover(width, lanes):
                vector = w.indices(axes, do.add(first, group))
                for i in w.each(rows):
                    put(i, group, vector)
            return
        for i in w.each(rows):
            for group in w.cover(width, lanes):
                put(i, group, w.indices(axes, do.add(first, group)))

    def _store_columns(
        self, sums: str, start: Operand, rows: Operand, first: Operand, width: int
    ) -> None:
        w, plan, do = self.w, self.plan, self.w.do
        line = -(-width // plan.lanes) * plan.lanes
        lanes = self.output.scalar_lanes(plan)
        for group in range(0, width, plan.lanes):
            self._turn(w.at(sums, group), line)
            for q in w.each(min(plan.lanes, width - group)):
                vector = w.indices(self.output.vector_axes, do.add(do.add(first, group), q))
                column = w.at(self.columns, do.mul(q, self.height))
                for i in w.cover(rows, lanes):
                    scalar = w.indices(self.output.scalar_axes, do.add(start, i))
                    source = w.at(column, i)
                    self._store_sums(
                        source, {**vector, **scalar}, lanes, self.output.scalar_axes[-1]
                    )

    def _turn(self, sums: str, line: int) -> None:
        """Transpose one vector's width of the tile into ``columns``."""
        lanes = self.plan.lanes
        for top in range(0, self.height, lanes):
            source, target = self.w.at(sums, top * line), self.w.at(self.columns, top)
            self.w.transpose(source, line, target, self.height, lanes)

    def _store_sums(self, source: str, values: Values, lanes: int, laned: Var) -> None:
        kind = words.type_of(self.plan.dtype, lanes)
        total = self.w.frame.op(f"load {kind}, ptr {source}, align {self.plan.dtype.itemsize}")
        bindings = self.w.bindings(values, laned if lanes > 1 else None)
        bindings.values[self.result] = total, lanes > 1
        for store in self.output.stores:
            self.w.emitter.store(store, bindings, lanes)
