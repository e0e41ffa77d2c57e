"""The scalar operand where it cannot be read in place: a region of it in scratch memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coregrad_cpu.llvm.contraction.arith import Operand
from coregrad_cpu.llvm.contraction.cut import power
from coregrad_cpu.llvm.contraction.writer import Span, Values, Writer


class Copying:
    """Writes the copying of regions."""

    def __init__(self, writer: Writer) -> None:
        self.w = writer
        self.plan = writer.plan
        self.strides, size = self.plan.copy_strides
        self.copy = writer.array(size)

    def fill(self, spans: Sequence[Span], cut: Span) -> Values:
        """Evaluate a region of the scalar side for the stretch ``cut`` of k.

        Gives the first index of each axis, from which the copy's places count.
        """
        plan, do = self.plan, self.w.do
        k = plan.k
        region = {span.var: span for span in spans}
        for at, var in enumerate(k.axes):
            if at < k.at:
                region[var] = Span(var, self.w.values[var], 1, 1)
            else:
                region[var] = cut if at == k.at else Span(var, 0, var.extent, var.extent)
        starts = {var: span.start for var, span in region.items()}
        for slide in plan.read.slides:
            axis, tap = region.pop(slide.axis), region.pop(slide.tap)
            tap_low = tap.start if slide.step > 0 else do.add(do.add(tap.start, tap.count), -1)
            low = do.add(do.mul(axis.start, slide.scale), do.mul(tap_low, slide.step))
            count = do.mul(do.sub(axis.count, 1), slide.scale)
            count = do.add(count, do.mul(do.sub(tap.count, 1), abs(slide.step)))
            least = slide.scale * (axis.least - 1) + abs(slide.step) * (tap.least - 1) + 1
            region[slide.total] = Span(
                slide.total, do.add(low, slide.origin), do.add(count, 1), least
            )
            # Steps backwards count from the far end: the element of the first tap.
            back = do.mul(do.sub(tap.count, 1), -slide.step) if slide.step < 0 else 0
            starts[slide.total] = back
        self._evaluate(list(region.values()))
        return starts

    def _evaluate(self, spans: list[Span]) -> None:
        plan, do = self.plan, self.w.do
        strides = self.strides
        spans.sort(key=lambda span: -strides[span.var])
        inner = next(span for span in spans if span.var is plan.read.unit)
        spans.remove(inner)
        lanes = min(plan.lanes, power(inner.least))
        for place, values in self._places(spans):
            for i in self.w.cover(inner.count, lanes):
                at = {**values, inner.var: do.add(inner.start, i)}
                value = self.w.value(plan.read.root, at, lanes, inner.var)
                self.w.store(value, lanes, self.w.at(self.copy, do.add(place, i)))

    def _places(self, spans: Sequence[Span]) -> Iterator[tuple[Operand, Values]]:
        """Every combination: its place in the copy, and the indices."""
        if not spans:
            yield 0, {}
            return
        *outer, span = spans
        for place, values in self._places(outer):
            for i in self.w.each(span.count):
                moved = self.w.do.add(place, self.w.do.mul(i, self.strides[span.var]))
                yield moved, {**values, span.var: self.w.do.add(span.start, i)}
