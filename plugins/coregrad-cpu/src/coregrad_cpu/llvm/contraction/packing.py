"""Filling panels with the vector operand: k x panel numbers, each row made of whole vectors."""

from __future__ import annotations

from math import prod

from coregrad_cpu.llvm.contraction.arith import Operand
from coregrad_cpu.llvm.contraction.cut import power
from coregrad_cpu.llvm.contraction.writer import Span, Values, Writer


class Packing:
    """Writes the packing of panels."""

    def __init__(self, writer: Writer) -> None:
        self.w = writer
        plan = self.plan = writer.plan
        self.panels = writer.array(plan.panels * plan.steps * plan.panel)
        self.square = writer.array(plan.lanes * plan.lanes) if plan.packed.along_k else ""

    def start(self) -> None:
        """Once per kernel: rows of an incomplete square are multiplied, too; let them be 0."""
        if self.square and self.plan.packed.width % self.plan.lanes:
            for i in self.w.each(self.plan.lanes):
                row = self.w.at(self.square, self.w.do.mul(i, self.plan.lanes))
                self.w.store("zeroinitializer", self.plan.lanes, row)

    def panel(self, local: Operand) -> str:
        """The address of the chunk's panel number ``local``."""
        return self.w.at(self.panels, self.w.do.mul(local, self.plan.steps * self.plan.panel))

    def fill(self, panel: Operand, local: Operand, cut: Span) -> None:
        """Pack one panel for the stretch ``cut`` of k."""
        pack = self._along_k if self.plan.packed.along_k else self._along_side
        for width in self.w.widths(panel):
            pack(self.panel(local), self.w.do.mul(panel, self.plan.panel), width, cut)

    def _spans(self, cut: Span) -> list[Span]:
        """The (merged) axes of k within a block; the first contains the axis that is cut."""
        k, axes = self.plan.k, self.plan.packed.k
        spans = [Span(v, 0, v.extent, v.extent) for v in axes]
        if axes and cut.count != k.extent:
            inner = axes[0].extent // k.extent
            start, count = (self.w.do.mul(x, inner) for x in (cut.start, cut.count))
            spans[0] = Span(axes[0], start, count, cut.least * inner)
        assert prod(v.extent for v in axes) == k.extent * k.inner
        return spans

    def _along_side(self, target: str, first: Operand, width: int, cut: Span) -> None:
        w, plan, packed = self.w, self.plan, self.plan.packed
        do = w.do
        lanes = min(packed.lanes, power(width))
        spans = self._spans(cut)
        if width % plan.lanes:  # what stands behind the last element is multiplied, too
            for k, _ in w.walk(spans):
                end = do.add(do.mul(k, plan.panel), width // plan.lanes * plan.lanes)
                w.store("zeroinitializer", plan.lanes, w.at(target, end))

        def fill(k: Operand, group: Operand, values: Values) -> None:
            value = w.value(packed.root, values, lanes, packed.axes[-1])
            place = do.add(do.mul(k, plan.panel), group)
            w.store(value, lanes, w.at(target, place))

        if len(packed.axes) > 1:  # finding out where an element stands is dear: once for all k
            for group in w.cover(width, lanes):
                side = w.indices(packed.axes, do.add(first, group))
                for k, values in w.walk(spans):
                    fill(k, group, {**values, **side})
            return
        for k, values in w.walk(spans):
            for group in w.cover(width, lanes):
                fill(k, group, {**values, packed.axes[0]: do.add(first, group)})

    def _along_k(self, target: str, first: Operand, width: int, cut: Span) -> None:
        """Squares of lanes x lanes numbers are read row by row and stored column by column."""
        w, plan, packed = self.w, self.plan, self.plan.packed
        do = w.do
        *outer, inner = self._spans(cut)
        for around, values in w.walk(outer):
            for group in range(-(-width // plan.lanes)):
                rows = min(plan.lanes, width - group * plan.lanes)
                for k in w.cover(inner.count, packed.lanes):
                    at_k = {**values, inner.var: do.add(inner.start, k)}
                    for q in w.each(rows):
                        position = do.add(do.add(first, group * plan.lanes), q)
                        at = {**at_k, **w.indices(packed.axes, position)}
                        value = w.value(packed.root, at, packed.lanes, inner.var)
                        w.store(value, packed.lanes, w.at(self.square, do.mul(q, plan.lanes)))
                    place = do.add(do.mul(around, inner.count), k)
                    corner = do.add(do.mul(place, plan.panel), group * plan.lanes)
                    target_at = w.at(target, corner)
                    w.transpose(self.square, plan.lanes, target_at, plan.panel, packed.lanes)
