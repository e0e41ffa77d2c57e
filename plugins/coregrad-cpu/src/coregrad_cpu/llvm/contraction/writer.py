"""What every part of a contraction's kernel writes with: loops, values, scratch memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from coregrad.ir.emit import Bindings, Emitter
from coregrad.ir.index import Var
from coregrad.ir.kernel import Instr
from coregrad.ir.ops import CAST
from coregrad_cpu.llvm import words
from coregrad_cpu.llvm.contraction import turn
from coregrad_cpu.llvm.contraction.arith import Arith, Operand
from coregrad_cpu.llvm.contraction.cut import Cut
from coregrad_cpu.llvm.contraction.plan import Plan
from coregrad_cpu.llvm.frame import Frame

Values = dict[Var, Operand]


@dataclass(frozen=True)
class Span:
    """A stretch of an axis: its first index and how many, at least ``least``."""

    var: Var
    start: Operand
    count: Operand
    least: int


class Writer:
    """Writes into one frame. ``values`` are the indices that all trees may use where it stands:
    those of the batch and of the outer axes of k."""

    def __init__(self, plan: Plan, emitter: Emitter, frame: Frame) -> None:
        self.plan = plan
        self.emitter = emitter
        self.frame = frame
        self.do = Arith(frame)
        self.scalar = words.type_of(plan.dtype, 1)
        self.vector = words.type_of(plan.dtype, plan.lanes)
        self.values: Values = {}

    # ---- loops ---------------------------------------------------------------------------------

    def walk(self, spans: Sequence[Span]) -> Iterator[tuple[Operand, Values]]:
        """Every combination, row-major: its position among them, and the indices."""
        if not spans:
            yield 0, {}
            return
        for outer, values in self.walk(spans[:-1]):
            span = spans[-1]
            for i in self.each(span.count):
                position = self.do.add(self.do.mul(outer, span.count), i)
                yield position, {**values, span.var: self.do.add(span.start, i)}

    def each(self, count: Operand) -> Iterator[Operand]:
        if count == 1:
            yield 0
            return
        yield from self.frame.count(0, count)

    def cover(self, count: Operand, lanes: int) -> Iterator[Operand]:
        """Starts of groups of ``lanes`` that cover 0 .. count - 1; the last may overlap."""
        if isinstance(count, int) and count % lanes == 0:
            if count == lanes:
                yield 0
            else:
                yield from self.frame.count(0, count, lanes)
            return
        last = self.do.sub(count, lanes)
        for group in self.each(self.do.ceildiv(count, lanes)):
            yield self.do.min(self.do.mul(group, lanes), last)

    def piece(self, cut: Cut, number: Operand) -> tuple[Values, Operand, Operand]:
        """Piece ``number`` of a cut: the axes before it, its start and its size."""
        outer, piece = self.do.divmod(number, cut.pieces)
        before = cut.axes[: cut.at]
        values = dict(
            zip(before, self.do.unflatten(outer, [v.extent for v in before]), strict=True)
        )
        start, size = self.stretch(cut, piece)
        return values, start, size

    def stretch(self, cut: Cut, piece: Operand) -> tuple[Operand, Operand]:
        """Start and size of a piece of the cut axis."""
        if cut.large == cut.pieces:
            return self.do.mul(piece, cut.size), cut.size
        start = self.do.add(self.do.mul(piece, cut.size - 1), self.do.min(piece, cut.large))
        more = self.frame.op(f"zext i1 {self.do.less(piece, cut.large)} to i64")
        return start, self.do.add(more, cut.size - 1)

    def widths(self, panel: Operand) -> Iterator[int]:
        """The body for a full panel and, where it is narrower, for the last one."""
        plan = self.plan
        if plan.all_panels == 1 or plan.last_panel == plan.panel:
            yield plan.last_panel
            return
        full = self.do.less(panel, plan.all_panels - 1)
        for _ in self.frame.condition(full):
            yield plan.panel
        last = self.frame.op(f"xor i1 {full}, true")
        for _ in self.frame.condition(last):
            yield plan.last_panel

    def indices(self, axes: Sequence[Var], position: Operand) -> Values:
        """The index on each axis of the element at a row-major position."""
        found = self.do.unflatten(position, [v.extent for v in axes])
        return dict(zip(axes, found, strict=True))

    # ---- values and memory -----------------------------------------------------------------------

    def bindings(self, values: Mapping[Var, Operand], laned: Var | None = None) -> Bindings:
        """What the emitter has to know here."""
        known = {var: str(value) for var, value in {**self.values, **values}.items()}
        return Bindings(known, laned)

    def value(
        self, root: Instr, values: Mapping[Var, Operand], lanes: int, laned: Var | None
    ) -> str:
        """An operand's value in the accumulator's dtype."""
        if root.dtype is not self.plan.dtype:
            root = Instr(CAST, self.plan.dtype, (root,), root.dtype, root.vars)
        bindings = self.bindings(values, laned if lanes > 1 else None)
        value: str = self.emitter.value(root, bindings, lanes)
        return value

    def array(self, size: int) -> str:
        """Scratch memory for ``size`` numbers."""
        return self.frame.entry(f"alloca [{size} x {self.scalar}], align 64")

    def at(self, pointer: str, offset: Operand) -> str:
        """The address of the number ``offset`` behind ``pointer``."""
        return self.do.at(pointer, offset, self.scalar)

    def store(self, value: str, lanes: int, pointer: str) -> None:
        """Store numbers in scratch memory."""
        kind, align = words.type_of(self.plan.dtype, lanes), self.plan.dtype.itemsize
        self.frame.line(f"store {kind} {value}, ptr {pointer}, align {align}")

    def transpose(self, source: str, step: int, target: str, stride: int, columns: int) -> None:
        """Turn a square of numbers around; every row is aligned."""
        lanes = self.plan.lanes
        name = f"turn_{columns}"
        self.frame.function(turn.text(name, self.plan.dtype, lanes, columns))
        self.frame.line(f"call void @{name}(ptr {source}, i64 {step}, ptr {target}, i64 {stride})")
