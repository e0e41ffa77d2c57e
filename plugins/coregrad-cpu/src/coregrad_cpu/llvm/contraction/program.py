"""A planned contraction as a kernel: one grid iteration per chunk.

One chunk does this, for its share of the batch, the scalar and the vector side::

    for each block of k:
        pack the panels                  packing.py: the vector operand, its prologue included
        for each block of the scalar side:
            copy it                      copying.py, where it cannot be read in place (scalar.py)
            for each panel, for each tile:
                call the micro-kernel    microkernel.py
                store the tile           epilogue.py, after the last block of k

Operands and stores are emitted through the emitter, hence through the backend's hooks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from coregrad.ir.emit import Emitter
from coregrad.ir.index import Var
from coregrad.ir.kernel import Contraction
from coregrad_cpu.llvm import words
from coregrad_cpu.llvm.contraction import microkernel
from coregrad_cpu.llvm.contraction.arith import Operand
from coregrad_cpu.llvm.contraction.copying import Copying
from coregrad_cpu.llvm.contraction.epilogue import Epilogue
from coregrad_cpu.llvm.contraction.packing import Packing
from coregrad_cpu.llvm.contraction.plan import Plan
from coregrad_cpu.llvm.contraction.scalar import Call, Scalar
from coregrad_cpu.llvm.contraction.writer import Span, Values, Writer
from coregrad_cpu.llvm.frame import Frame

INSTRUCTIONS = 2.0  # per cycle, for the frame's estimate of a chunk's work


@dataclass(frozen=True)
class _Share:
    """Where a chunk stands: its panels, and the block of k it is at."""

    panel0: Operand
    panel1: Operand
    number: Operand  # of the block of k
    cut: Span


class Program:
    """Writes one contraction into a frame."""

    def __init__(
        self, contraction: Contraction, plan: Plan, emitter: Emitter, frame: Frame
    ) -> None:
        self.plan = plan
        self.frame = frame
        self.w = Writer(plan, emitter, frame)
        self.do = self.w.do
        self.packing = Packing(self.w)
        self.copying = Copying(self.w) if plan.read.copied else None
        self.scalar = Scalar(self.w, self.copying)
        self.epilogue = Epilogue(contraction, self.w)
        # Transposing reads whole squares, also where a tile has fewer rows.
        self.sums = self.w.array(plan.sums_size + plan.lanes * plan.panel)

    def write(self) -> None:
        """The whole kernel."""
        plan, do = self.plan, self.do
        _, scalars, vectors = plan.grid
        self.packing.start()
        self.scalar.start()
        for chunk in self.frame.count("%chunk0", "%chunk1"):
            rest, v = do.divmod(chunk, vectors)
            b, s = do.divmod(rest, scalars)
            self.w.values = self.w.indices(plan.batch, b)
            self._chunk(do.mul(s, plan.blocks), do.mul(v, plan.panels))
        self.frame.grid = prod(plan.grid)
        self.frame.step = 1
        self.frame.work = INSTRUCTIONS * plan.work

    def _chunk(self, block0: Operand, panel0: Operand) -> None:
        w, plan, do = self.w, self.plan, self.do
        panel1 = do.min(do.add(panel0, plan.panels), plan.all_panels)
        block1 = do.min(do.add(block0, plan.blocks), plan.all_blocks)
        batch = w.values
        for number in w.each(plan.k.total):
            outer, start, size = w.piece(plan.k, number)
            w.values = {**batch, **outer}
            cut = Span(plan.k.axes[plan.k.at], start, size, min(plan.k.sizes))
            share = _Share(panel0, panel1, number, cut)
            for panel in self.frame.count(panel0, panel1):
                self.packing.fill(panel, do.sub(panel, panel0), cut)
            if self.copying is None:
                self._tiles(share, block0, block1, 0, {})
                continue
            for block in self.frame.count(block0, block1):
                self._block(share, block, do.sub(block, block0), self.copying)
        w.values = batch

    def _block(self, share: _Share, block: Operand, local: Operand, copying: Copying) -> None:
        """One region of the scalar side: copy it, then work on its tiles."""
        w, do, tile, cut = self.w, self.do, self.plan.tile, self.plan.block
        values, number, count = w.piece(cut, block)
        if cut.at == tile.at:  # counted in tiles
            start, _ = w.stretch(tile, number)
            end, _ = w.stretch(tile, do.add(number, count))
            least = min(cut.sizes) * min(tile.sizes)
            middle = Span(tile.axes[cut.at], start, do.sub(end, start), least)
            between = 1
        else:
            middle = Span(tile.axes[cut.at], number, count, min(cut.sizes))
            between = prod(v.extent for v in tile.axes[cut.at + 1 : tile.at]) * tile.pieces
        before = [Span(v, values[v], 1, 1) for v in tile.axes[: cut.at]]
        after = [Span(v, 0, v.extent, v.extent) for v in tile.axes[cut.at + 1 :]]
        starts = copying.fill([*before, middle, *after], share.cut)
        outer = self._position(values, tile.axes[: cut.at])
        first = do.mul(do.add(do.mul(outer, cut.extent), number), between)
        stop = do.add(first, do.mul(count, between))
        self._tiles(share, first, stop, do.mul(local, self.plan.tiles), starts)

    def _position(self, values: Values, axes: Sequence[Var]) -> Operand:
        """The row-major position of an element on some axes."""
        position: Operand = 0
        for var in axes:
            position = self.do.add(self.do.mul(position, var.extent), values[var])
        return position

    def _tiles(
        self, share: _Share, first: Operand, stop: Operand, kept: Operand, starts: Values
    ) -> None:
        """Every tile of a stretch with every panel of the chunk; ``kept`` tiles came before."""
        w, plan, do = self.w, self.plan, self.do
        cut_axis = plan.tile.axes[plan.tile.at]
        for panel in self.frame.count(share.panel0, share.panel1):
            local = do.sub(panel, share.panel0)
            source = self.packing.panel(local)
            for width in w.widths(panel):
                for tile in self.frame.count(first, stop):
                    values, start, size = w.piece(plan.tile, tile)
                    values[cut_axis] = start
                    sums = self._sums(do.add(kept, do.sub(tile, first)), local)
                    call = self.scalar.call(values, size, share.cut, starts, source)
                    self._multiply(share, call, sums, size, width)
                    self._store(share, sums, values, size, panel, width)

    def _sums(self, tile: Operand, panel: Operand) -> str:
        """Where a tile's sums are kept: each has its own place if k comes in several blocks."""
        plan, do = self.plan, self.do
        if plan.k.total == 1:
            return self.sums
        place = do.add(do.mul(tile, plan.panels), panel)
        return self.w.at(self.sums, do.mul(place, plan.rows * plan.panel))

    def _multiply(self, share: _Share, call: Call, sums: str, size: Operand, width: int) -> None:
        """Call the micro-kernel for this tile's size."""
        plan, more = self.plan, "false"
        if plan.k.total > 1:
            more = self.frame.op(f"icmp ne i64 {share.number}, 0")
        arguments = (
            f"i64 {call.steps}, ptr {call.rows}, ptr {call.table}, ptr {call.panel}, "
            f"ptr {sums}, i1 {more}"
        )
        vectors = -(-width // plan.lanes)
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
        """The name of the micro-kernel for tiles of ``size`` steps, made when first asked for."""
        plan, vector = self.plan, self.w.vector
        tile = microkernel.Tile(
            self.scalar.offsets(size), vectors, plan.lanes, plan.dtype, self.scalar.step, plan.panel
        )
        name = f"tile_{len(tile.rows)}x{vectors}"
        suffix = words.mangled(plan.dtype, plan.lanes)
        self.frame.declare_intrinsic(
            f"{vector} @llvm.fmuladd.{suffix}({vector}, {vector}, {vector})"
        )
        self.frame.function(microkernel.text(name, tile))
        return f"@{name}"

    def _store(
        self, share: _Share, sums: str, values: Values, size: Operand, panel: Operand, width: int
    ) -> None:
        """After the last block of k: hand the sums to the stores."""
        plan, do = self.plan, self.do
        start = do.mul(self._position(values, plan.tile.axes[: plan.tile.at + 1]), plan.tile.inner)
        rows = do.mul(size, plan.tile.inner)
        first = do.mul(panel, plan.panel)
        if plan.k.total == 1:
            self.epilogue.write(sums, start, rows, first, width)
            return
        last = self.frame.op(f"icmp eq i64 {share.number}, {plan.k.total - 1}")
        for _ in self.frame.condition(last):
            self.epilogue.write(sums, start, rows, first, width)
