"""A planned contraction as a kernel: chunks, packing, copying, tiles and the epilogue.

One chunk does this, for its share of the batch, the scalar and the vector side::

    for each block of k:
        pack the panels                  the vector operand, its prologue included
        for each block of the scalar side:
            copy it                      the scalar operand, where it cannot be read in place
            for each panel, for each tile:
                call the micro-kernel
                store the tile           the epilogue, after the last block of k

Operands and stores are emitted through the emitter, hence through the backend's hooks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod

from coregrad.dtypes import int64
from coregrad.ir.emit import Bindings, Emitter
from coregrad.ir.index import Index, Var
from coregrad.ir.kernel import INDEX, Contraction, Instr, Param, Store
from coregrad.ir.ops import CAST

from coregrad_cpu.llvm import words
from coregrad_cpu.llvm.contraction import microkernel, tree, turn
from coregrad_cpu.llvm.contraction.arith import Arith, Operand
from coregrad_cpu.llvm.contraction.microkernel import Tile
from coregrad_cpu.llvm.contraction.plan import Cut, Plan, power
from coregrad_cpu.llvm.frame import Frame

Values = dict[Var, Operand]


@dataclass(frozen=True)
class Span:
    """A stretch of an axis: its first index and how many, at least ``least``."""

    var: Var
    start: Operand
    count: Operand
    least: int


@dataclass(frozen=True)
class _Call:
    """What a micro-kernel is called with."""

    steps: Operand
    rows: str
    table: str
    panel: str


class _Output:
    """The stores, over axes merged as far as they allow."""

    def __init__(self, c: Contraction, plan: Plan) -> None:
        fragment = tree.stores_fragment(c.stores)
        fragment, self.vector_axes = tree.merge(fragment, plan.packed.originals)
        fragment, self.scalar_axes = tree.merge(fragment, plan.read.originals)
        self.stores: tuple[Store, ...] = tree.with_fragment(c.stores, fragment)
        steps = [fragment.targets[0].coefficient(axes[-1]) for axes in (self.vector_axes, self.scalar_axes)]
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


class Program:
    """Writes one contraction into a frame."""

    def __init__(self, contraction: Contraction, plan: Plan, emitter: Emitter, frame: Frame) -> None:
        self.c = contraction
        self.plan = plan
        self.emitter = emitter
        self.frame = frame
        self.do = Arith(frame)
        self.scalar = words.type_of(plan.dtype, 1)
        self.vector = words.type_of(plan.dtype, plan.lanes)
        self.output = _Output(contraction, plan)
        self.values: Values = {}  # batch and outer axes of k: what all trees may use
        self._strides, self._source = self._scalar_strides()

    def write(self) -> None:
        """The whole kernel, one grid iteration per chunk."""
        plan, do = self.plan, self.do
        batch, scalars, vectors = plan.grid
        total = batch * scalars * vectors
        self._allocate()
        self._clear_square()
        self._fill_table()
        for chunk in self.frame.count("%chunk0", "%chunk1"):
            rest, v = do.divmod(chunk, vectors)
            b, s = do.divmod(rest, scalars)
            extents = [var.extent for var in plan.batch]
            self.values = dict(zip(plan.batch, do.unflatten(b, extents), strict=True))
            self._chunk(do.mul(s, plan.blocks), do.mul(v, plan.panels))
        self.frame.grid = total
        self.frame.step = 1
        self.frame.work = 2.0 * plan.cost * 2 / total

    # ---- scratch memory ----------------------------------------------------------------------

    def _allocate(self) -> None:
        plan = self.plan
        self.panels = self._array(plan.panels * plan.steps * plan.panel)
        # Transposing reads whole squares, also where a tile has fewer rows.
        self.sums = self._array(plan.sums_size + plan.lanes * plan.panel)
        self.turn = self._array(plan.lanes * plan.lanes * -(-plan.rows // plan.lanes))
        self.copy = self._array(plan.copy_size) if plan.read.copied else ""
        self.table = "null"
        if self._step() is None:
            self.table = self.frame.entry(f"alloca [{plan.steps} x i32], align 64")

    def _array(self, size: int) -> str:
        return self.frame.entry(f"alloca [{size} x {self.scalar}], align 64")

    def _clear_square(self) -> None:
        """Rows of an incomplete square are packed and multiplied, too: they had better be 0."""
        if self.plan.packed.along_k and self.plan.packed.width % self.plan.lanes:
            for i in self._each(self.plan.lanes):
                row = self._turn_at(i, self.plan.lanes)
                self._store("zeroinitializer", self.plan.lanes, row)

    # ---- the scalar operand's layout -----------------------------------------------------------

    def _scalar_strides(self) -> tuple[dict[Var, int], tuple[Param, Index] | None]:
        """How far its element moves per step of each axis; its buffer, where read in place."""
        plan = self.plan
        if plan.read.copied:
            return plan.copy_strides[0], None
        source = tree.bare_load(plan.read.root)
        assert source is not None
        found = tree.strides(source[1], (*plan.tile.axes, *plan.k.axes))
        assert found is not None
        return found, source

    def _step(self) -> int | None:
        """The even distance from each k to the next within a block, if there is one."""
        axes = self.plan.k.axes[self.plan.k.at :]
        for outer, inner in zip(axes, axes[1:], strict=False):
            if self._strides[outer] != self._strides[inner] * inner.extent:
                return None
        return self._strides[axes[-1]]

    def _fill_table(self) -> None:
        """The distance of every k in a block from the first one."""
        if self.table == "null":
            return
        k = self.plan.k
        counts = [k.size, *(v.extent for v in k.axes[k.at + 1 :])]
        spans = [Span(v, 0, n, n) for v, n in zip(k.axes[k.at :], counts, strict=True)]
        for place, values in self._walk(spans):
            distance: Operand = 0
            for span in spans:
                distance = self.do.add(distance, self.do.mul(values[span.var], self._strides[span.var]))
            at = self.do.at(self.table, place, "i32")
            narrow = self.frame.op(f"trunc i64 {distance} to i32")
            self.frame.line(f"store i32 {narrow}, ptr {at}, align 4")

    # ---- loops ---------------------------------------------------------------------------------

    def _walk(self, spans: Sequence[Span]) -> Iterator[tuple[Operand, Values]]:
        """Every combination, row-major: its position among them, and the indices."""
        if not spans:
            yield 0, {}
            return
        for outer, values in self._walk(spans[:-1]):
            span = spans[-1]
            for i in self._each(span.count):
                position = self.do.add(self.do.mul(outer, span.count), i)
                yield position, {**values, span.var: self.do.add(span.start, i)}

    def _each(self, count: Operand) -> Iterator[Operand]:
        if count == 1:
            yield 0
            return
        yield from self.frame.count(0, count)

    def _cover(self, count: Operand, lanes: int) -> Iterator[Operand]:
        """Starts of groups of ``lanes`` that cover 0 .. count - 1; the last may overlap."""
        if isinstance(count, int) and count % lanes == 0:
            if count == lanes:
                yield 0
            else:
                yield from self.frame.count(0, count, lanes)
            return
        last = self.do.sub(count, lanes)
        for group in self._each(self.do.ceildiv(count, lanes)):
            yield self.do.min(self.do.mul(group, lanes), last)

    def _piece(self, cut: Cut, number: Operand) -> tuple[Values, Operand, Operand]:
        """Piece ``number`` of a cut: the axes before it, its start and its size."""
        outer, piece = self.do.divmod(number, cut.pieces)
        before = cut.axes[: cut.at]
        values = dict(zip(before, self.do.unflatten(outer, [v.extent for v in before]), strict=True))
        start, size = self._stretch(cut, piece)
        return values, start, size

    def _stretch(self, cut: Cut, piece: Operand) -> tuple[Operand, Operand]:
        """Start and size of a piece of the cut axis."""
        if cut.large == cut.pieces:
            return self.do.mul(piece, cut.size), cut.size
        start = self.do.add(self.do.mul(piece, cut.size - 1), self.do.min(piece, cut.large))
        more = self.frame.op(f"zext i1 {self.do.less(piece, cut.large)} to i64")
        return start, self.do.add(more, cut.size - 1)

    # ---- one chunk -----------------------------------------------------------------------------

    def _chunk(self, block0: Operand, panel0: Operand) -> None:
        plan, do = self.plan, self.do
        panel1 = do.min(do.add(panel0, plan.panels), plan.all_panels)
        block1 = do.min(do.add(block0, plan.blocks), plan.all_blocks)
        outside = self.values
        for number in self._each(plan.k.total):
            outer, start, size = self._piece(plan.k, number)
            self.values = {**outside, **outer}
            axis = plan.k.axes[plan.k.at]
            span = Span(axis, start, size, min(plan.k.sizes))
            for panel in self._from(panel0, panel1):
                self._pack(panel, do.sub(panel, panel0), span)
            if plan.read.copied:
                for block in self._from(block0, block1):
                    self._copied_block(block, do.sub(block, block0), panel0, panel1, span, number)
            else:
                self._tiles(block0, block1, 0, panel0, panel1, span, number, {})
        self.values = outside

    def _from(self, start: Operand, stop: Operand) -> Iterator[Operand]:
        yield from self.frame.count(start, stop)

    def _k_spans(self, axes: Sequence[Var], cut: Span) -> list[Span]:
        """The (merged) axes of k within a block; the first contains the axis that is cut."""
        k = self.plan.k
        whole = prod(v.extent for v in k.axes[k.at :])
        spans = [Span(v, 0, v.extent, v.extent) for v in axes]
        if axes and cut.count != k.extent:
            inner = axes[0].extent // k.extent
            scaled = [self.do.mul(x, inner) for x in (cut.start, cut.count)]
            spans[0] = Span(axes[0], scaled[0], scaled[1], cut.least * inner)
        assert prod(v.extent for v in axes) == whole
        return spans

    def _bindings(self, values: Mapping[Var, Operand], laned: Var | None = None) -> Bindings:
        known = {var: str(value) for var, value in {**self.values, **values}.items()}
        return Bindings(known, laned)

    def _value(self, root: Instr, values: Mapping[Var, Operand], lanes: int, laned: Var | None) -> str:
        """An operand's value in the accumulator's dtype."""
        if root.dtype is not self.plan.dtype:
            root = Instr(CAST, self.plan.dtype, (root,), root.dtype, root.vars)
        laned = laned if lanes > 1 else None
        value: str = self.emitter.value(root, self._bindings(values, laned), lanes)
        return value

    def _store(self, value: str, lanes: int, pointer: str) -> None:
        kind, align = words.type_of(self.plan.dtype, lanes), self.plan.dtype.itemsize
        self.frame.line(f"store {kind} {value}, ptr {pointer}, align {align}")

    # ---- packing the vector operand --------------------------------------------------------------

    def _pack(self, panel: Operand, local: Operand, cut: Span) -> None:
        """Fill one panel: k x panel numbers."""
        plan = self.plan
        target = self.do.at(self.panels, self.do.mul(local, plan.steps * plan.panel), self.scalar)
        for width in self._widths(panel):
            fill = self._pack_along_k if plan.packed.along_k else self._pack_along_side
            fill(target, self.do.mul(panel, plan.panel), width, cut)

    def _widths(self, panel: Operand) -> Iterator[int]:
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

    def _pack_along_side(self, target: str, first: Operand, width: int, cut: Span) -> None:
        plan, packed, do = self.plan, self.plan.packed, self.do
        lanes = min(packed.lanes, power(width))
        spans = self._k_spans(packed.k, cut)
        if width % plan.lanes:  # what stands behind the last element is multiplied, too
            for k, _ in self._walk(spans):
                end = do.add(do.mul(k, plan.panel), width // plan.lanes * plan.lanes)
                self._store("zeroinitializer", plan.lanes, do.at(target, end, self.scalar))

        def fill(k: Operand, group: Operand, values: Values) -> None:
            value = self._value(packed.root, values, lanes, packed.axes[-1])
            place = do.add(do.mul(k, plan.panel), group)
            self._store(value, lanes, do.at(target, place, self.scalar))

        if len(packed.axes) > 1:  # finding out where an element stands is dear: once for all k
            for group in self._cover(width, lanes):
                side = self._indices(packed.axes, do.add(first, group))
                for k, values in self._walk(spans):
                    fill(k, group, {**values, **side})
            return
        for k, values in self._walk(spans):
            for group in self._cover(width, lanes):
                fill(k, group, {**values, packed.axes[0]: do.add(first, group)})

    def _pack_along_k(self, target: str, first: Operand, width: int, cut: Span) -> None:
        """Squares of lanes x lanes numbers are read row by row and stored column by column."""
        plan, packed, do = self.plan, self.plan.packed, self.do
        *outer, inner = self._k_spans(packed.k, cut)
        for around, values in self._walk(outer):
            for group in range(-(-width // plan.lanes)):
                rows = min(plan.lanes, width - group * plan.lanes)
                for k in self._cover(inner.count, packed.lanes):
                    at_k = {**values, inner.var: do.add(inner.start, k)}
                    for q in self._each(rows):
                        position = do.add(do.add(first, group * plan.lanes), q)
                        at = {**at_k, **self._indices(packed.axes, position)}
                        value = self._value(packed.root, at, packed.lanes, inner.var)
                        self._store(value, packed.lanes, self._turn_at(q, plan.lanes))
                    place = do.add(do.mul(around, inner.count), k)
                    corner = do.add(do.mul(place, plan.panel), group * plan.lanes)
                    target_at = do.at(target, corner, self.scalar)
                    self._transpose(self.turn, plan.lanes, target_at, plan.panel, packed.lanes)

    def _turn_at(self, row: Operand, width: int) -> str:
        return self.do.at(self.turn, self.do.mul(row, width), self.scalar)

    def _transpose(self, source: str, step: int, target: str, stride: int, columns: int) -> None:
        """Turn a square of numbers around; every row is aligned."""
        lanes = self.plan.lanes
        name = f"turn_{columns}"
        self.frame.function(turn.text(name, self.plan.dtype, lanes, columns))
        self.frame.line(f"call void @{name}(ptr {source}, i64 {step}, ptr {target}, i64 {stride})")

    # ---- copying the scalar operand --------------------------------------------------------------

    def _copied_block(
        self, block: Operand, local: Operand, panel0: Operand, panel1: Operand, cut: Span, number: Operand
    ) -> None:
        """One region of the scalar side: evaluate it, then work on its tiles."""
        plan, do = self.plan, self.do
        tile = plan.tile
        if plan.block.at == tile.at:
            values, group, count = self._piece(plan.block, block)
            start, _ = self._stretch(tile, group)
            end, _ = self._stretch(tile, do.add(group, count))
            size = do.sub(end, start)
            least = min(plan.block.sizes) * min(tile.sizes)
            between = 1
        else:
            values, start, size = self._piece(plan.block, block)
            group, count, least = start, size, min(plan.block.sizes)
            between = prod(v.extent for v in tile.axes[plan.block.at + 1 : tile.at]) * tile.pieces
        at = plan.block.at
        spans = [Span(v, values[v], 1, 1) for v in tile.axes[:at]]
        spans.append(Span(tile.axes[at], start, size, least))
        spans += [Span(v, 0, v.extent, v.extent) for v in tile.axes[at + 1 :]]
        starts = self._evaluate_copy(spans, cut)
        outer = self._outer_number(values, tile.axes[:at])
        first = do.mul(do.add(do.mul(outer, plan.block.extent), group), between)
        stop = do.add(first, do.mul(count, between))
        self._tiles(first, stop, do.mul(local, plan.tiles), panel0, panel1, cut, number, starts)

    def _outer_number(self, values: Values, axes: Sequence[Var]) -> Operand:
        number: Operand = 0
        for var in axes:
            number = self.do.add(self.do.mul(number, var.extent), values[var])
        return number

    def _evaluate_copy(self, spans: Sequence[Span], cut: Span) -> Values:
        """Fill the copy; gives the first index of each axis, from which its places count."""
        plan, do = self.plan, self.do
        k = plan.k
        region = {span.var: span for span in spans}
        for at, var in enumerate(k.axes):
            if at < k.at:
                region[var] = Span(var, self.values[var], 1, 1)
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
            region[slide.total] = Span(slide.total, do.add(low, slide.origin), do.add(count, 1), least)
            # Steps backwards count from the far end: the element of the first tap.
            back = do.mul(do.sub(tap.count, 1), -slide.step) if slide.step < 0 else 0
            starts[slide.total] = back
        self._fill_copy(list(region.values()))
        return starts

    def _fill_copy(self, spans: list[Span]) -> None:
        plan, do = self.plan, self.do
        strides = self._strides
        spans.sort(key=lambda span: -strides[span.var])
        inner = next(span for span in spans if span.var is plan.read.unit)
        spans.remove(inner)
        lanes = min(plan.lanes, 1 << (inner.least.bit_length() - 1))
        for place, values in self._places(spans):
            for i in self._cover(inner.count, lanes):
                at = {**values, inner.var: do.add(inner.start, i)}
                value = self._value(plan.read.root, at, lanes, inner.var)
                self._store(value, lanes, do.at(self.copy, do.add(place, i), self.scalar))

    def _places(self, spans: Sequence[Span]) -> Iterator[tuple[Operand, Values]]:
        """Every combination: its place in the copy, and the indices."""
        if not spans:
            yield 0, {}
            return
        *outer, span = spans
        for place, values in self._places(outer):
            for i in self._each(span.count):
                moved = self.do.add(place, self.do.mul(i, self._strides[span.var]))
                yield moved, {**values, span.var: self.do.add(span.start, i)}

    # ---- tiles -----------------------------------------------------------------------------------

    def _tiles(
        self,
        first: Operand,
        stop: Operand,
        kept: Operand,
        panel0: Operand,
        panel1: Operand,
        cut: Span,
        number: Operand,
        starts: Values,
    ) -> None:
        """Every tile of a stretch with every panel of the chunk; ``kept`` tiles came before."""
        plan, do = self.plan, self.do
        for panel in self._from(panel0, panel1):
            local = do.sub(panel, panel0)
            source = do.at(self.panels, do.mul(local, plan.steps * plan.panel), self.scalar)
            for width in self._widths(panel):
                for tile in self._from(first, stop):
                    values, start, size = self._piece(plan.tile, tile)
                    values[plan.tile.axes[plan.tile.at]] = start
                    sums = self.sums
                    if plan.k.total > 1:
                        place = do.add(kept, do.sub(tile, first))
                        place = do.add(do.mul(place, plan.panels), local)
                        sums = do.at(self.sums, do.mul(place, plan.rows * plan.panel), self.scalar)
                    rows = self._rows_at(values, cut, starts)
                    call = self._trim(_Call(do.mul(cut.count, plan.k.inner), rows, self.table, source), values, size)
                    self._multiply(call, sums, size, width, number)
                    self._finish(number, sums, values, size, do.mul(panel, plan.panel), width)

    def _rows_at(self, values: Values, cut: Span, starts: Values) -> str:
        """The address of the tile's first element at the block's first k."""
        plan, do = self.plan, self.do
        if self._source is None:
            place: Operand = 0
            for slide in plan.read.slides:
                place = do.add(place, do.mul(starts[slide.total], self._strides[slide.total]))
            for at, var in enumerate(plan.tile.axes[: plan.tile.at + 1]):
                moved = do.sub(values[var], starts[var]) if at >= plan.block.at else 0
                place = do.add(place, do.mul(moved, self._strides[var]))
            return do.at(self.copy, place, self.scalar)
        param, index = self._source
        k = plan.k
        inner = {v: 0 for v in (*plan.tile.axes[plan.tile.at + 1 :], *k.axes[k.at + 1 :])}
        at_first: Values = {**inner, **values, cut.var: cut.start}
        whole = Instr(INDEX, int64, (), index, index.vars)
        place = self.emitter.value(whole, self._bindings(at_first), 1)
        return do.at(self.frame.names[param.name], place, self.scalar)

    def _trim(self, call: _Call, values: Values, size: Operand) -> _Call:
        """The same without the steps of k whose number is 0 for every element of the tile."""
        plan, do, slide = self.plan, self.do, self.plan.trimmed
        if slide is None:
            return call
        place = plan.tile.axes.index(slide.axis)
        if place > plan.tile.at:
            return call
        first = do.add(do.mul(values[slide.axis], slide.scale), slide.origin)
        count = size if place == plan.tile.at else 1
        last = do.add(first, do.mul(do.sub(count, 1), slide.scale))
        low, high = do.sub(slide.low, last), do.sub(slide.high, first)
        if slide.step < 0:
            low, high = do.sub(first, slide.high), do.sub(last, slide.low)
        low = do.max(low, 0)
        used = do.max(do.sub(do.add(do.min(high, slide.tap.extent - 1), 1), low), 0)
        skipped = do.mul(low, plan.k.inner)
        rows, table = call.rows, call.table
        if table == "null":
            rows = do.at(rows, do.mul(low, self._strides[slide.tap]), self.scalar)
        else:
            table = do.at(table, skipped, "i32")
        source = do.at(call.panel, do.mul(skipped, plan.panel), self.scalar)
        return _Call(do.mul(used, plan.k.inner), rows, table, source)

    def _multiply(
        self, call: _Call, sums: str, size: Operand, width: int, number: Operand
    ) -> None:
        """Call the micro-kernel for this tile's size."""
        plan = self.plan
        more = "false"
        if plan.k.total > 1:
            more = self.frame.op(f"icmp ne i64 {number}, 0")
        vectors = -(-width // plan.lanes)
        arguments = (
            f"i64 {call.steps}, ptr {call.rows}, ptr {call.table}, ptr {call.panel}, "
            f"ptr {sums}, i1 {more}"
        )
        large, *small = (self._micro(n, vectors) for n in plan.tile.sizes)
        if not small:
            self.frame.line(f"call void {large}({arguments})")
            return
        is_large = self.frame.op(f"icmp eq i64 {size}, {plan.tile.size}")
        for _ in self.frame.condition(is_large):
            self.frame.line(f"call void {large}({arguments})")
        is_small = self.frame.op(f"xor i1 {is_large}, true")
        for _ in self.frame.condition(is_small):
            self.frame.line(f"call void {small[0]}({arguments})")

    def _micro(self, size: int, vectors: int) -> str:
        """The name of the micro-kernel for tiles of ``size`` steps, which is made when first asked."""
        plan = self.plan
        rows = plan.read.rows(Cut(plan.tile.axes, plan.tile.at, size), self._strides)
        tile = Tile(rows, vectors, plan.lanes, plan.dtype, self._step(), plan.panel)
        name = f"tile_{len(rows)}x{vectors}"
        self.frame.declare_intrinsic(
            f"{self.vector} @llvm.fmuladd.{words.mangled(plan.dtype, plan.lanes)}"
            f"({', '.join([self.vector] * 3)})"
        )
        self.frame.function(microkernel.text(name, tile))
        return f"@{name}"

    # ---- the epilogue ------------------------------------------------------------------------------

    def _finish(
        self, number: Operand, sums: str, values: Values, size: Operand, first: Operand, width: int
    ) -> None:
        """After the last block of k: hand the sums to the stores."""
        plan = self.plan
        if plan.k.total == 1:
            self._epilogue(sums, values, size, first, width)
            return
        last = self.frame.op(f"icmp eq i64 {number}, {plan.k.total - 1}")
        for _ in self.frame.condition(last):
            self._epilogue(sums, values, size, first, width)

    def _epilogue(
        self, sums: str, values: Values, size: Operand, first: Operand, width: int
    ) -> None:
        """Store one tile, lanes along whichever side is contiguous in the first output."""
        plan, do = self.plan, self.do
        position: Operand = self._outer_number(values, plan.tile.axes[: plan.tile.at + 1])
        start = do.mul(position, plan.tile.inner)
        rows = do.mul(size, plan.tile.inner)
        if self.output.along_vector:
            self._store_rows(sums, start, rows, first, width)
        else:
            self._store_columns(sums, start, rows, first, width)

    def _store_rows(
        self, sums: str, start: Operand, rows: Operand, first: Operand, width: int
    ) -> None:
        plan, do = self.plan, self.do
        line = -(-width // plan.lanes) * plan.lanes
        lanes = self.output.vector_lanes(width, plan.lanes)
        axes = self.output.vector_axes

        def put(i: Operand, group: Operand, vector: Values) -> None:
            source = do.at(sums, do.add(do.mul(i, line), group), self.scalar)
            scalar = self._indices(self.output.scalar_axes, do.add(start, i))
            self._store_sums(source, {**scalar, **vector}, lanes, axes[-1])

        if len(axes) > 1 and len(self.output.scalar_axes) == 1:
            for group in self._cover(width, lanes):
                vector = self._indices(axes, do.add(first, group))
                for i in self._each(rows):
                    put(i, group, vector)
            return
        for i in self._each(rows):
            for group in self._cover(width, lanes):
                put(i, group, self._indices(axes, do.add(first, group)))

    def _store_columns(
        self, sums: str, start: Operand, rows: Operand, first: Operand, width: int
    ) -> None:
        plan, do = self.plan, self.do
        line = -(-width // plan.lanes) * plan.lanes
        height = -(-plan.rows // plan.lanes) * plan.lanes
        lanes = self.output.scalar_lanes(plan)
        for group in range(0, width, plan.lanes):
            self._turn_sums(do.at(sums, group, self.scalar), line, height)
            for q in self._each(min(plan.lanes, width - group)):
                vector = self._indices(self.output.vector_axes, do.add(do.add(first, group), q))
                column = self._turn_at(q, height)
                for i in self._cover(rows, lanes):
                    scalar = self._indices(self.output.scalar_axes, do.add(start, i))
                    source = do.at(column, i, self.scalar)
                    self._store_sums(source, {**vector, **scalar}, lanes, self.output.scalar_axes[-1])

    def _turn_sums(self, sums: str, line: int, height: int) -> None:
        """Transpose one vector's width of the tile into ``turn``."""
        plan = self.plan
        for top in range(0, height, plan.lanes):
            source = self.do.at(sums, top * line, self.scalar)
            target = self.do.at(self.turn, top, self.scalar)
            self._transpose(source, line, target, height, plan.lanes)

    def _indices(self, axes: Sequence[Var], position: Operand) -> Values:
        indices = self.do.unflatten(position, [v.extent for v in axes])
        return dict(zip(axes, indices, strict=True))

    def _store_sums(self, source: str, values: Values, lanes: int, laned: Var) -> None:
        kind = words.type_of(self.plan.dtype, lanes)
        total = self.frame.op(f"load {kind}, ptr {source}, align {self.plan.dtype.itemsize}")
        bindings = self._bindings(values, laned if lanes > 1 else None)
        bindings.values[self.c.result] = total, lanes > 1
        for store in self.output.stores:
            self.emitter.store(store, bindings, lanes)
