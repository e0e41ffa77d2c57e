"""The innermost loop: a tile of sums held in registers, as the text of one LLVM function.

A tile has ``rows`` x ``vectors`` accumulators. Each step of k loads the vectors from a packed
panel, reads one number per row and multiplies it into every vector. Rows are read where they are,
at constant distances (``rows``) from one address that moves with k. The function knows no buffer,
no prologue and no epilogue.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from coregrad.dtypes import DType
from coregrad_cpu.llvm import words

UNROLL = 4  # steps of k per loop iteration: hides the loop's own instructions
MAX_BODY = 144  # multiply-adds in one unrolled body, beyond which unrolling only costs compile time


@dataclass(frozen=True)
class Tile:
    """One micro-kernel: where its rows stand, how many vectors they meet, how k moves them.

    ``step`` is the distance between neighbours in k, or None where a table of int32 lists the
    distance of every k from the start.
    """

    rows: tuple[int, ...]
    vectors: int
    lanes: int
    dtype: DType
    step: int | None
    width: int  # elements from one k to the next in the panel

    @property
    def unroll(self) -> int:
        """Steps of k per iteration of the main loop."""
        return max(1, min(UNROLL, MAX_BODY // (len(self.rows) * self.vectors)))


@functools.lru_cache(maxsize=256)  # many shapes are cut into the same tiles
def text(name: str, tile: Tile) -> str:
    """``void @name(i64 count, ptr rows, ptr table, ptr panel, ptr sums, i1 more)``.

    ``sums`` receives the accumulators, row by row; with ``more`` they start from what is there.
    """
    return "\n".join(_Writer(name, tile).lines) + "\n"


class _Writer:
    def __init__(self, name: str, tile: Tile) -> None:
        self.tile = tile
        self.scalar = words.type_of(tile.dtype, 1)
        self.vector = words.type_of(tile.dtype, tile.lanes)
        self.fma = f"@llvm.fmuladd.{words.mangled(tile.dtype, tile.lanes)}"
        self.count = 0
        self.lines = [
            f"define internal void @{name}(i64 %count, ptr noalias readonly %rows, "
            "ptr noalias readonly %table, ptr noalias readonly %panel, ptr noalias %sums, "
            "i1 %more) noinline #0 {",
            "entry:",
        ]
        self._write()
        self.lines.append("}")

    def op(self, text: str) -> str:
        self.count += 1
        self.lines.append(f"  %t{self.count} = {text}")
        return f"%t{self.count}"

    def line(self, text: str) -> None:
        self.lines.append("  " + text)

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def at(self, pointer: str, offset: int | str) -> str:
        if offset == 0:
            return pointer
        return self.op(f"getelementptr inbounds {self.scalar}, ptr {pointer}, i64 {offset}")

    def _write(self) -> None:
        tile = self.tile
        sums = [self.at("%sums", i * tile.lanes) for i in range(len(tile.rows) * tile.vectors)]
        self.line("br i1 %more, label %resume, label %start")
        self.label("resume")
        kept = [self.op(f"load {self.vector}, ptr {p}, align 64") for p in sums]
        self.line("br label %start")
        self.label("start")
        first = [self._phi("zeroinitializer", "entry", k, "resume") for k in kept]
        whole = "%count"
        if tile.unroll > 1:
            whole = self.op(f"and i64 %count, {-tile.unroll}")
        some = self.op(f"icmp sgt i64 {whole}, 0")
        self.line(f"br i1 {some}, label %main, label %rest")
        main = self._loop("main", "start", "0", first, tile.unroll, whole)
        self.line("br label %rest")
        self.label("rest")
        last = [self._phi(a, "start", b, "leave_main") for a, b in zip(first, main, strict=True)]
        if tile.unroll > 1:
            left = self.op(f"icmp slt i64 {whole}, %count")
            self.line(f"br i1 {left}, label %single, label %done")
            single = self._loop("single", "rest", whole, last, 1, "%count")
            self.line("br label %done")
            self.label("done")
            last = [
                self._phi(a, "rest", b, "leave_single") for a, b in zip(last, single, strict=True)
            ]
        for pointer, value in zip(sums, last, strict=True):
            self.line(f"store {self.vector} {value}, ptr {pointer}, align 64")
        self.line("ret void")

    def _phi(self, a: str, at: str, b: str, bt: str) -> str:
        return self.op(f"phi {self.vector} [ {a}, %{at} ], [ {b}, %{bt} ]")

    def _loop(
        self, name: str, before: str, start: str, values: list[str], unroll: int, stop: str
    ) -> list[str]:
        """Steps of k from ``start`` to ``stop``; ends in its own block, falling out of it."""
        self.label(name)
        k, following = f"%k_{name}", f"%n_{name}"
        self.line(f"{k} = phi i64 [ {start}, %{before} ], [ {following}, %{name} ]")
        names = [f"%a_{name}_{i}" for i in range(len(values))]
        ends = [f"%e_{name}_{i}" for i in range(len(values))]
        for a, e, v in zip(names, ends, values, strict=True):
            self.line(f"{a} = phi {self.vector} [ {v}, %{before} ], [ {e}, %{name} ]")
        panel = self.at("%panel", self.op(f"mul i64 {k}, {self.tile.width}"))
        current = names
        for step, rows in enumerate(self._rows(k, unroll)):
            current = self._step(rows, self.at(panel, step * self.tile.width), current)
        for e, value in zip(ends, current, strict=True):
            self.line(f"{e} = bitcast {self.vector} {value} to {self.vector}")
        self.line(f"{following} = add nuw nsw i64 {k}, {unroll}")
        more = self.op(f"icmp slt i64 {following}, {stop}")
        self.line(f"br i1 {more}, label %{name}, label %leave_{name}")
        self.label(f"leave_{name}")
        return ends

    def _rows(self, k: str, unroll: int) -> Iterator[str]:
        """The address of the rows for each of the next steps."""
        step = self.tile.step
        if step is not None:
            base = self.at("%rows", self.op(f"mul i64 {k}, {step}"))
            yield from (self.at(base, i * step) for i in range(unroll))
            return
        entry = self.op(f"getelementptr inbounds i32, ptr %table, i64 {k}")
        for i in range(unroll):
            place = self.op(f"getelementptr inbounds i32, ptr {entry}, i64 {i}") if i else entry
            distance = self.op(f"load i32, ptr {place}, align 4")
            yield self.at("%rows", self.op(f"sext i32 {distance} to i64"))

    def _step(self, rows: str, panel: str, sums: list[str]) -> list[str]:
        tile = self.tile
        vectors = [
            self.op(f"load {self.vector}, ptr {self.at(panel, j * tile.lanes)}, align 64")
            for j in range(tile.vectors)
        ]
        size = tile.dtype.itemsize
        made = []
        for i, offset in enumerate(tile.rows):
            number = self.op(f"load {self.scalar}, ptr {self.at(rows, offset)}, align {size}")
            one = self.op(f"insertelement {self.vector} poison, {self.scalar} {number}, i64 0")
            spread = self.op(
                f"shufflevector {self.vector} {one}, {self.vector} poison, "
                f"<{tile.lanes} x i32> zeroinitializer"
            )
            for j, vector in enumerate(vectors):
                total = sums[i * tile.vectors + j]
                operands = ", ".join(f"{self.vector} {v}" for v in (spread, vector, total))
                made.append(self.op(f"call {self.vector} {self.fma}({operands})"))
        return made
