"""How a contraction is cut: which operand is the vector side, tile, panels, blocks of k, chunks.

The *vector* side is packed into panels, ``k`` x ``panel`` numbers, whose rows are vectors. The
*scalar* side is read one number at a time, where it stands (an ungated load at an even index) or
from a scratch copy of the region a block needs. Both roles are tried and the cheaper is taken;
costs are estimated cycles of one core. Pure arithmetic: no code is made here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd, inf, prod

from coregrad.dtypes import DType, float32, float64
from coregrad.ir.index import Var
from coregrad.ir.kernel import Contraction, Instr
from coregrad_cpu.llvm.contraction import operands, tree
from coregrad_cpu.llvm.contraction.cut import Cut
from coregrad_cpu.llvm.contraction.operands import Packed, Read, Slide
from coregrad_cpu.llvm.contraction.roles import separated
from coregrad_cpu.llvm.contraction.tree import Fragment

# Bytes of one chunk's scratch memory, on its thread's stack; together well within a 1 MiB
# second-level cache, beside the data that streams through it.
PANEL_BYTES = 224 << 10
COPY_BYTES = 160 << 10
SUMS_BYTES = 160 << 10
BLOCK = 512  # steps of k at a time, where k has to be cut
CHUNKS = 4  # per thread at least, so that none waits long for the others
PAGE, WAYS = 4096, 8  # of the first-level cache: lines a page apart share a set of 8
# Below these the generic loops were measured as fast or faster (products of 2 to 1024 elements a
# side, one thread), and they compile sooner: steps of k, multiply-adds of one product and of all,
# and rows of the scalar side where the other has to be transposed first.
LEAST_STEPS, LEAST_PRODUCT, LEAST_WORK, LEAST_ROWS = 12, 2048, 32768, 5


@dataclass(frozen=True)
class Machine:
    """What the plan needs to know of a processor."""

    vector_bytes: int
    registers: int
    threads: int

    def lanes(self, dtype: DType) -> int:
        """Elements of one vector register."""
        return self.vector_bytes // dtype.itemsize


@dataclass(frozen=True)
class Plan:
    """Every decision about one contraction. ``block`` is the region that one copy serves, whole
    tiles: where its axis is the one that tiles are cut from, it counts in tiles."""

    batch: tuple[Var, ...]
    packed: Packed
    read: Read
    tile: Cut
    block: Cut
    k: Cut
    vectors: int  # per row of a panel
    panels: int  # per chunk
    blocks: int  # per chunk: tiles, where nothing is copied
    lanes: int
    dtype: DType
    cost: float  # until all threads are done
    work: float = 0.0  # of one chunk

    @property
    def panel(self) -> int:
        """Elements of a panel's row."""
        return self.vectors * self.lanes

    @property
    def all_panels(self) -> int:
        """Panels of the vector side."""
        return -(-self.packed.width // self.panel)

    @property
    def last_panel(self) -> int:
        """Elements of the last panel."""
        return self.packed.width - (self.all_panels - 1) * self.panel

    @property
    def all_blocks(self) -> int:
        """Blocks (or tiles) of the scalar side."""
        return self.block.total if self.read.copied else self.tile.total

    @property
    def grid(self) -> tuple[int, int, int]:
        """Chunks: of the batch, the scalar side, the vector side."""
        return (
            prod(v.extent for v in self.batch),
            -(-self.all_blocks // self.blocks),
            -(-self.all_panels // self.panels),
        )

    @property
    def steps(self) -> int:
        """Most steps of k in one block."""
        return self.k.size * self.k.inner

    @property
    def rows(self) -> int:
        """Most elements of the scalar side in one tile."""
        return self.tile.size * self.tile.inner

    @property
    def trimmed(self) -> Slide | None:
        """The slide whose taps outside its support are left out, tile by tile."""
        slide = _trimmed(self.read, self.k.axes) if self.k.total == 1 else None
        if slide is None or self.tile.axes.index(slide.axis) > self.tile.at:
            return None
        return slide

    @property
    def tiles(self) -> int:
        """Most tiles in one block."""
        if not self.read.copied:
            return self.blocks
        if self.block.at == self.tile.at:
            return self.block.size
        between = self.tile.axes[self.block.at + 1 : self.tile.at]
        return self.block.size * _elements(between) * self.tile.pieces

    @property
    def sums_size(self) -> int:
        """Elements of the sums a chunk keeps: of all its tiles where k is cut, else of one."""
        tile = self.rows * self.panel
        if self.k.total == 1:
            return tile
        return tile * self.tiles * self.panels * (self.blocks if self.read.copied else 1)

    @property
    def copy_size(self) -> int:
        """Elements of one copy of the scalar side."""
        return self.copy_strides[1]

    @cached_property
    def copy_strides(self) -> tuple[dict[Var, int], int]:
        """Where a copy's elements stand."""
        return copy_strides(self.read, self.block, self.tile, self.k, self.lanes, self.dtype)


def choose(contraction: Contraction, machine: Machine) -> Plan | None:
    """The cheaper of the two ways to give the operands their roles; None to decline."""
    c = separated(contraction)
    dtype = c.acc.dtype
    if c.acc.kind != "add" or dtype not in (float32, float64):
        return None
    if min(_elements(c.m), _elements(c.n)) < 2:
        return None
    product = _elements(c.m) * _elements(c.n) * _elements(c.k)
    if _elements(c.k) < LEAST_STEPS or product < LEAST_PRODUCT:
        return None
    if product * _elements(c.batch) < LEAST_WORK:
        return None
    found = [
        plan
        for vector, vector_axes, scalar, scalar_axes in (
            (c.b, c.n, c.a, c.m),
            (c.a, c.m, c.b, c.n),
        )
        for plan in _plans(c, vector, vector_axes, scalar, scalar_axes, machine)
    ]
    best = min(found, key=lambda plan: plan.cost, default=None)
    if best is not None and best.packed.along_k and _elements(best.tile.axes) < LEAST_ROWS:
        return None
    return best


def _elements(axes: Sequence[Var]) -> int:
    return prod(v.extent for v in axes)


def _plans(
    c: Contraction,
    vector: Instr,
    vector_axes: tuple[Var, ...],
    scalar: Instr,
    scalar_axes: tuple[Var, ...],
    machine: Machine,
) -> Iterator[Plan]:
    dtype, lanes = c.acc.dtype, machine.lanes(c.acc.dtype)
    read = operands.read(scalar, scalar_axes, c.k, dtype)
    if not read.axes:
        return
    merged, axes = tree.merge(Fragment((vector,)), vector_axes)
    width = _elements(axes)
    tile, vectors, speed = _tile(read, c.k, width, lanes, machine.registers - 4, dtype)
    k = _cut_k(c.k, read, tile.size * tile.inner, vectors * lanes, dtype)
    packed = operands.packed(merged, axes, vector_axes, k, lanes)
    output = _output_cost(c, vector_axes)
    for block in _blocks(read, tile, k, lanes, dtype) if read.copied else [tile]:
        draft = Plan(c.batch, packed, read, tile, block, k, vectors, 1, 1, lanes, dtype, inf)
        plan = _chunked(draft, speed, output, machine)
        if plan.cost < inf:  # else its sums do not fit
            yield plan


# ---- tiles -------------------------------------------------------------------------------------


def _tile(
    read: Read, k: Sequence[Var], width: int, lanes: int, sums: int, dtype: DType
) -> tuple[Cut, int, float]:
    """The tile with the least work per step of k: its cut, its vectors, and that work in cycles."""
    best: tuple[Cut, int, float] | None = None
    need, slide = -(-width // lanes), _trimmed(read, k)
    for vectors in range(1, min(need, 6) + 1):
        panels = _panel_vectors(need, vectors)
        for cut in _cuts(read, sums // vectors, dtype):
            total = sum(_step_cost(rows, v) * n * m for rows, n in _rows(cut) for v, m in panels)
            total *= _share(cut, slide)
            if best is None or total < best[2]:
                best = cut, vectors, total
    assert best is not None
    return best


def _trimmed(read: Read, k: Sequence[Var]) -> Slide | None:
    """The slide over the first axis of k, if steps of k can be left out because of it."""
    for slide in read.slides:
        some = slide.low > 0 or slide.high < slide.total.extent - 1
        if slide.tap is k[0] and abs(slide.step) == 1 and some:
            return slide
    return None


def _share(cut: Cut, slide: Slide | None) -> float:
    """The share of k that tiles of this cut need."""
    if slide is None or cut.axes.index(slide.axis) > cut.at:
        return 1.0
    size = cut.size if cut.axes[cut.at] is slide.axis else 1
    starts = range(0, slide.axis.extent, size)
    used = [slide.used(i, min(size, slide.axis.extent - i)) for i in starts]
    return sum(used) / (len(used) * slide.tap.extent)


def _cuts(read: Read, most: int, dtype: DType) -> Iterator[Cut]:
    """Ways to cut tiles of at most ``most`` elements."""
    axes = read.axes
    for at in range(len(axes) - 1, -1, -1):
        inner = _elements(axes[at + 1 :])
        if inner > most:
            break
        limit = min(most // inner, _cache_rows(read, axes[at], dtype))
        for size in range(1, min(limit, axes[at].extent) + 1):
            balanced = -(-axes[at].extent // -(-axes[at].extent // size))
            if balanced == size:
                yield Cut(axes, at, size)


def _cache_rows(read: Read, axis: Var, dtype: DType) -> int:
    """How many rows fit the first-level cache at once: rows a page apart compete for 8 places."""
    if read.copied:
        return 1 << 30
    step = abs(read.root.attr[1].coefficient(axis) or 0) * dtype.itemsize
    return WAYS * (PAGE // gcd(PAGE, step)) if step >= 64 else 1 << 30


def _rows(cut: Cut) -> list[tuple[int, int]]:
    """(elements, how many) of the tiles of a cut."""
    large = (cut.size * cut.inner, cut.large * cut.outer)
    small = ((cut.size - 1) * cut.inner, (cut.pieces - cut.large) * cut.outer)
    return [large] if small[1] == 0 else [large, small]


def _panel_vectors(need: int, vectors: int) -> list[tuple[int, int]]:
    """(vectors, how many) of the panels."""
    whole, rest = divmod(need, vectors)
    return [(v, n) for v, n in ((vectors, whole), (rest, 1)) if v and n]


def _step_cost(rows: int, vectors: int) -> float:
    """Cycles per step of k: multiply-adds, at least 8 in flight, and a share of the loads."""
    return max(rows * vectors, 8) + 0.04 * rows + 0.3 * vectors


# ---- blocks of k and of the scalar side --------------------------------------------------------


def _cut_k(axes: tuple[Var, ...], read: Read, rows: int, panel: int, dtype: DType) -> Cut:
    """k whole if a panel of it fits, else in blocks of about BLOCK steps."""
    limit = PANEL_BYTES // (panel * dtype.itemsize)
    if read.copied:
        limit = min(limit, COPY_BYTES // (rows * dtype.itemsize))
    if _elements(axes) <= limit:
        return Cut(axes, 0, axes[0].extent)
    limit = min(limit, BLOCK)
    inner, at = 1, len(axes) - 1
    while at > 0 and inner * axes[at].extent <= limit:
        inner *= axes[at].extent
        at -= 1
    pieces = -(-axes[at].extent // max(1, limit // inner))
    return Cut(axes, at, -(-axes[at].extent // pieces))


def copy_counts(read: Read, block: Cut, tile: Cut, k: Cut) -> dict[Var, int]:
    """The variables a copy is made over, with how many values of each it holds at most."""
    counts: dict[Var, int] = {}
    for at, axis in enumerate(tile.axes):
        counts[axis] = 1 if at < block.at else axis.extent
    counts[tile.axes[block.at]] = block.size * (tile.size if block.at == tile.at else 1)
    for at, axis in enumerate(k.axes):
        counts[axis] = 1 if at < k.at else axis.extent
    counts[k.axes[k.at]] = k.size
    for slide in read.slides:
        a, t = counts.pop(slide.axis), counts.pop(slide.tap)
        counts[slide.total] = slide.scale * (a - 1) + abs(slide.step) * (t - 1) + 1
    return counts


def copy_strides(
    read: Read, block: Cut, tile: Cut, k: Cut, lanes: int, dtype: DType
) -> tuple[dict[Var, int], int]:
    """Where the elements of a copy stand, the contiguous variable last; and how many there are."""
    counts = copy_counts(read, block, tile, k)
    order = sorted(counts, key=lambda v: v is read.unit)
    strides: dict[Var, int] = {}
    size = 1
    for var in reversed(order):
        strides[var] = size
        size *= counts[var]
        if size > 1 and size * dtype.itemsize % PAGE == 0:
            size += lanes  # rows a page apart would compete for the cache
    for slide in read.slides:
        strides[slide.axis] = strides[slide.total] * slide.scale
        strides[slide.tap] = strides[slide.total] * slide.step
    return strides, size


def _blocks(read: Read, tile: Cut, k: Cut, lanes: int, dtype: DType) -> Iterator[Cut]:
    """Regions of the scalar side whose copy fits: the largest one for each axis to cut."""
    grouped = (*tile.axes[: tile.at], Var("tiles", tile.pieces), *tile.axes[tile.at + 1 :])
    for at in range(tile.at + 1):
        axes = grouped if at == tile.at else tile.axes
        size = axes[at].extent
        while True:
            block = Cut(axes, at, size)
            fits = (
                copy_strides(read, block, tile, k, lanes, dtype)[1] * dtype.itemsize <= COPY_BYTES
            )
            if fits or size == 1:
                break
            size = -(-size // 2)
        if fits:
            yield block


# ---- chunks ------------------------------------------------------------------------------------


def _output_cost(c: Contraction, vector_axes: Sequence[Var]) -> float:
    """Cycles per element of the result: more where its contiguous axis is not the vector side."""
    fragment, merged = tree.merge(tree.stores_fragment(c.stores), vector_axes)
    along = any(index.coefficient(merged[-1]) == 1 for index in fragment.targets)
    return 0.25 if along else 0.6


def _counts(total: int) -> list[int]:
    """How many of ``total`` a chunk may take: shares of it, and powers of two."""
    shares = {-(-total // n) for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)}
    return sorted(shares | {1 << i for i in range(total.bit_length() - 1)})


def _chunked(draft: Plan, speed: float, output: float, machine: Machine) -> Plan:
    """The plan with the numbers of panels and blocks per chunk that cost least."""
    item, best = draft.dtype.itemsize, draft
    panel_bytes = draft.steps * draft.panel * item
    copy = draft.read.cost * draft.copy_size if draft.read.copied else 0.0
    for panels in _counts(draft.all_panels):
        if panels > 1 and panels * panel_bytes > PANEL_BYTES:
            break
        for blocks in _counts(draft.all_blocks):
            plan = replace(draft, panels=panels, blocks=blocks)
            if draft.k.total > 1 and plan.sums_size * item > SUMS_BYTES:
                break
            work = _work(plan, speed, output, copy)
            cost = work * _waves(prod(plan.grid), machine.threads)
            if cost < best.cost:
                best = replace(plan, cost=cost, work=work)
    return best


def _waves(chunks: int, threads: int) -> float:
    """How often each thread takes a chunk, the waiting for the last one included."""
    waves = chunks / threads
    return waves + 0.5 if waves >= CHUNKS else -(-chunks // threads) + 0.25


def _work(plan: Plan, speed: float, output: float, copy: float) -> float:
    """Cycles of one chunk; ``copy`` are those of one copy of the scalar side."""
    steps = _elements(plan.k.axes)
    scalar = plan.blocks / plan.all_blocks
    vector = plan.panels / plan.all_panels
    results = plan.packed.width * _elements(plan.tile.axes) * scalar * vector
    tiles = plan.tile.total * scalar * plan.panels
    chunk = speed * steps * scalar * vector + output * results
    chunk += plan.packed.cost * steps * plan.panels * plan.panel
    chunk += 500 + 30 * tiles * plan.k.total
    if plan.k.total > 1:
        chunk += 0.2 * results * plan.k.total
    if plan.read.copied:
        chunk += copy * plan.k.total * plan.blocks
    return chunk
