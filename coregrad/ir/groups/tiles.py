"""Contractions through local memory: a work-group computes a tile of the output.

The operands' tiles for some steps of the sum are loaded by all threads together, each element once
(prologues, padding and all); then every thread adds products to a block of sums of its own. Its
rows and columns are spread over the tile, so that neighbouring threads read neighbouring elements
of local memory and write neighbouring outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from coregrad.ir.groups.registers import TERMS, declared, multiply, oriented
from coregrad.ir.groups.rows import most_threads
from coregrad.ir.groups.strides import loads, walks
from coregrad.ir.groups.writer import Copy, Writer
from coregrad.ir.index import Index, Var, unflatten
from coregrad.ir.kernel import Accumulator, Array, Barrier, Contraction, Instr, Kernel, Store
from coregrad.ir.target import Limits

SIDE = 16  # threads along each side of a tile, and steps of the sum that a tile spans
BLOCK = 4  # rows and columns of a thread's block: 64 x 64 tiles load each element for 64 products
FEW = 32  # tiles that leave a device with nothing to do: smaller ones are better then
DEEP = 512  # terms of a sum that is better shared by a group when there are few outputs


@dataclass(frozen=True)
class Shape:
    """Threads along the rows and columns of a tile, what each of them computes, steps loaded."""

    threads_m: int
    threads_n: int
    rows: int
    columns: int
    depth: int

    @property
    def threads(self) -> int:
        return self.threads_m * self.threads_n

    @property
    def m(self) -> int:
        return self.threads_m * self.rows

    @property
    def n(self) -> int:
        return self.threads_n * self.columns

    def bytes(self, whole: Contraction) -> int:
        """Local memory that the two operands' tiles take."""
        a, b = whole.a.dtype.itemsize, whole.b.dtype.itemsize
        return self.depth * ((self.m + 1) * a + (self.n + 1) * b)


def layout(whole: Contraction, kernel: Kernel, limits: Limits) -> Kernel | None:
    """The kernel with one work-group per tile, or None where another layout is better."""
    whole = oriented(whole)
    shape = _choose(whole, limits)
    return None if shape is None else _Tiles(whole, kernel, shape).kernel()


def _sizes(whole: Contraction) -> tuple[int, int, int, int]:
    """How many batches, rows, columns and terms there are."""
    sides = whole.batch, whole.m, whole.n, whole.k
    batch, m, n, k = (math.prod(v.extent for v in side) for side in sides)
    return batch, m, n, k


def _choose(whole: Contraction, limits: Limits) -> Shape | None:
    """The largest tile that finds room and leaves enough groups for a device."""
    batch, m, n, k = _sizes(whole)
    if k < TERMS:
        return None
    block = 2 * BLOCK
    tiles, fits = 0, False
    while block > 1 and not (fits and tiles >= FEW):
        block //= 2
        shape = _fit(m, n, k, block, limits)
        tiles = batch * -(-m // shape.m) * -(-n // shape.n)
        fits = shape.bytes(whole) <= limits.local_bytes
    if not fits or (tiles < 4 and k >= DEEP) or shape.threads < 2:
        return None
    return shape


def _fit(m: int, n: int, k: int, block: int, limits: Limits) -> Shape:
    """A tile no larger than the output, of no more threads than the device has."""
    most = most_threads(limits)
    across = min(SIDE, _power_below(math.isqrt(most)))
    rows = _power_below(max(1, min(block, m // across)))
    threads_m = min(across, _power_above(m))
    threads_n = min(_power_above(n), most // threads_m, max(across, 64 // threads_m))
    columns = _power_below(max(1, min(block, n // threads_n)))
    depth = min(SIDE, _power_above(k))
    return Shape(threads_m, threads_n, rows, columns, depth)


def _power_above(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _power_below(n: int) -> int:
    return 1 << (n.bit_length() - 1)


@dataclass(eq=False)
class _Tiles:
    """One kernel being laid out."""

    whole: Contraction
    old: Kernel
    shape: Shape

    def kernel(self) -> Kernel:
        """The kernel whose groups each compute a tile."""
        whole, shape = self.whole, self.shape
        _, m_size, n_size, k_size = _sizes(whole)
        outer = [v.extent for v in whole.batch]
        tiles = [*outer, -(-m_size // shape.m), -(-n_size // shape.n)]
        self.writer = writer = Writer()
        with writer.group(Var("g", math.prod(tiles)), shape.threads) as (g, self.thread):
            *batch, tile_m, tile_n = unflatten(g, tiles)
            self.batch = dict(zip(whole.batch, batch, strict=True))
            a = self._array("a", whole.a, shape.m)
            b = self._array("b", whole.b, shape.n)
            sums = declared(writer, whole.acc, shape.rows, shape.columns)
            with writer.loop(Var("k", -(-k_size // shape.depth))) as step:
                self._fill(a, whole.a, whole.m, tile_m * shape.m, m_size, step, shape.m)
                self._fill(b, whole.b, whole.n, tile_n * shape.n, n_size, step, shape.n)
                writer.add(Barrier())
                self._multiply(a, b, sums)
                writer.add(Barrier())
            self._store(tile_m * shape.m, tile_n * shape.n, sums)
        return Kernel(self.old.name, self.old.params, writer.body)

    def _array(self, name: str, value: Instr, width: int) -> Array:
        # One element more per row: threads that fill a column then meet no memory bank twice.
        return self.writer.local(name, value.dtype, self.shape.depth * (width + 1))

    def _place(self, k: Index, at: Index, width: int) -> Index:
        return k * (width + 1) + at

    def _fill(
        self, array: Array, value: Instr, side: Sequence[Var], base: Index, size: int,
        step: Index, width: int,
    ) -> None:  # fmt: skip
        """Load a tile of one operand, every thread its share; what does not exist becomes 0."""
        writer, depth, threads = self.writer, self.shape.depth, self.shape.threads
        k_size = _sizes(self.whole)[3]
        count = depth * width
        with writer.loop(Var(f"{array.name}e", -(-count // threads)), "unroll") as e:
            element = e * threads + self.thread
            within = writer.below(element, count)
            element = element.assume(0, count - 1)
            if _along(value, self.whole.k[-1], side[-1]):
                at, k = element // depth, element % depth
            else:
                k, at = element // width, element % width
            position, term = base + at, step * depth + k
            gate = writer.both(within, writer.below(position, size), writer.below(term, k_size))
            values = self._values(side, position, size) | self._values(self.whole.k, term, k_size)
            found = Copy(writer, {**self.batch, **values}, gate).value(value)
            found = writer.where(gate, found, 0)
            writer.add(Store(array, self._place(k, at, width), found, within))

    def _values(self, side: Sequence[Var], position: Index, size: int) -> dict[Var, Index]:
        parts = unflatten(position.assume(0, size - 1), [v.extent for v in side])
        return dict(zip(side, parts, strict=True))

    def _rows(self) -> list[Index]:
        """Where the rows of a thread's block stand in the tile."""
        first = self.thread // self.shape.threads_n
        return [first + i * self.shape.threads_m for i in range(self.shape.rows)]

    def _columns(self) -> list[Index]:
        first = self.thread % self.shape.threads_n
        return [first + j * self.shape.threads_n for j in range(self.shape.columns)]

    def _multiply(self, a: Array, b: Array, sums: list[list[Accumulator]]) -> None:
        writer, shape = self.writer, self.shape
        with writer.loop(Var("kk", shape.depth)) as k:
            lefts = [writer.load(a, self._place(k, i, shape.m)) for i in self._rows()]
            rights = [writer.load(b, self._place(k, j, shape.n)) for j in self._columns()]
            multiply(writer, sums, lefts, rights)

    def _store(self, base_m: Index, base_n: Index, sums: list[list[Accumulator]]) -> None:
        whole, (_, m_size, n_size, _) = self.whole, _sizes(self.whole)
        for row, i in zip(sums, self._rows(), strict=True):
            m = base_m + i
            for acc, j in zip(row, self._columns(), strict=True):
                n = base_n + j
                gate = self.writer.both(self.writer.below(m, m_size), self.writer.below(n, n_size))
                values = self._values(whole.m, m, m_size) | self._values(whole.n, n, n_size)
                copy = Copy(self.writer, {**self.batch, **values}, gate)
                copy.known[whole.result] = self.writer.result(acc)
                for store in whole.stores:
                    copy.store(store)


def _along(value: Instr, k: Var, side: Var) -> bool:
    """Whether neighbouring terms of the sum are neighbours in memory, rather than rows are."""
    return walks(value, k) and (not walks(value, side) or not _reads(value, side))


def _reads(value: Instr, var: Var) -> bool:
    return any(var in index.vars for index in loads(value))
