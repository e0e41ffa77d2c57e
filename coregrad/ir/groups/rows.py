"""Reductions by work-groups: its threads walk a row together, then fold what each of them found.

Each loop of a grid iteration is shared out: thread ``t`` of ``T`` takes elements ``t``, ``t + T``,
``t + 2*T`` and so on, so that neighbouring threads read neighbouring elements. Beyond the last one
threads fold in the neutral element; no thread ever skips a barrier. Where neighbouring rows, not
neighbouring elements, are neighbours in memory, a group takes some rows at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from coregrad import dtypes
from coregrad.ir import ops
from coregrad.ir.groups.flat import nest
from coregrad.ir.groups.strides import is_near
from coregrad.ir.groups.writer import Copy, Writer
from coregrad.ir.index import Index, Var, unflatten
from coregrad.ir.kernel import (
    RESULT,
    Accumulator,
    Allocate,
    Array,
    Barrier,
    Declare,
    Instr,
    Kernel,
    Loop,
    Param,
    Stmt,
    Store,
    Update,
    walk,
)
from coregrad.ir.target import Limits

SHORT = 32  # elements of a row that one thread may as well walk alone
LONG = 128  # elements of a row worth a group where there are too few rows to fill a device
ROWS = 1024  # rows that fill a device with a thread each
SHARE = 8  # elements that each thread should find, so that folding is the smaller part
WIDTH = 32  # neighbouring rows that a group takes together: what a GPU reads at once
THREADS = 256  # of a group; larger ones wait longer at their barriers than they gain


def layout(kernel: Kernel, limits: Limits) -> Kernel | None:
    """The kernel with work-groups for its grid iterations, or None where that does not pay."""
    grid, body = _iteration(kernel)
    if kernel.params[0].role == "inout" or not _can_share(body):
        return None
    shape = _choose(body, grid, limits)
    if shape is None:
        return None
    made = _Group(kernel, grid, shape).kernel(body)
    return made if local_bytes(made) <= limits.local_bytes else None


@dataclass(frozen=True)
class Shape:
    """A group's threads: ``rows`` of them for each of ``columns`` neighbouring grid iterations."""

    rows: int
    columns: int

    @property
    def threads(self) -> int:
        return self.rows * self.columns


def local_bytes(kernel: Kernel) -> int:
    """Bytes of the memory that the threads of a group share."""
    arrays = [s.array for s in walk(kernel.body) if isinstance(s, Allocate)]
    return sum(a.size * a.dtype.itemsize for a in arrays if a.space == "local")


def _iteration(kernel: Kernel) -> tuple[Var, list[Stmt]]:
    """The grid variable, and all that one of its iterations computes."""
    grids = [s for s in kernel.body if isinstance(s, Loop) and s.kind == "grid"]
    if not grids:
        return Var("g", 1), kernel.body
    before = [s for s in kernel.body if s is not grids[0]]
    return grids[0].var, [*before, *grids[0].body]


def _can_share(body: Sequence[Stmt]) -> bool:
    """Whether every loop may be walked in any order, and only loops touch scratch memory."""
    if any(isinstance(s, Update) or (isinstance(s, Store) and _is_scratch(s)) for s in body):
        return False
    whole = {s.acc for s in body if isinstance(s, Declare)}
    loops = (s for s in body if isinstance(s, Loop))
    inside = (s for loop in loops for s in walk(loop.body) if isinstance(s, Instr))
    return not any(s.op is RESULT and s.attr[0] in whole for s in inside)


def _is_scratch(store: Store) -> bool:
    return isinstance(store.target, Array)


def _updated(loop: Loop) -> set[Accumulator]:
    """The accumulators that a loop leaves a result in."""
    inside = {s.acc for s in walk(loop.body) if isinstance(s, Declare)}
    return {s.acc for s in walk(loop.body) if isinstance(s, Update)} - inside


def _length(loop: Loop) -> int:
    return math.prod(one.var.extent for one in nest(loop)[0])


def _choose(body: Sequence[Stmt], grid: Var, limits: Limits) -> Shape | None:
    """The threads that a grid iteration is worth, or None where one will do."""
    length = max((_length(s) for s in body if isinstance(s, Loop) and _updated(s)), default=0)
    far = _far_steps(body, grid)
    few = grid.extent < ROWS and length >= LONG
    if length < SHORT or not (few or far[0] < far[1]):
        return None
    if far[0] <= far[1]:
        return Shape(_threads(grid.extent, length, limits), 1)
    # Neighbouring iterations read neighbouring elements, as in a sum of columns.
    most = most_threads(limits)
    columns = min(WIDTH, 1 << (grid.extent - 1).bit_length(), most // 2)
    scratch = any(isinstance(s, Allocate) for s in body)
    return None if scratch else Shape(most // columns, columns)


def _far_steps(body: Sequence[Stmt], grid: Var) -> tuple[int, int]:
    """How many loads of the reductions go far at a step along a row, and at one to the next row."""
    along = across = 0
    for loop in (s for s in body if isinstance(s, Loop) and _updated(s)):
        inner = nest(loop)[0][-1].var
        for index in _loads(loop):
            along += inner in index.vars and not is_near(index, inner)
            across += grid in index.vars and not is_near(index, grid)
    return along, across


def _loads(loop: Loop) -> Iterable[Index]:
    for stmt in walk(loop.body):
        if isinstance(stmt, Instr) and stmt.op is ops.LOAD and isinstance(stmt.attr[0], Param):
            yield stmt.attr[1]


def most_threads(limits: Limits) -> int:
    """The largest power of two that a group should have."""
    return min(THREADS, 1 << (limits.threads.bit_length() - 1))


def _threads(groups: int, length: int, limits: Limits) -> int:
    """A power of two: few elements for each thread where there are few groups."""
    most = most_threads(limits)
    share = SHARE if groups >= ROWS // 4 else 2
    threads = 2
    while 2 * threads <= most and (threads < SHORT or 2 * threads * share <= length):
        threads *= 2
    return threads


class _Group:
    """One kernel being laid out."""

    def __init__(self, kernel: Kernel, grid: Var, shape: Shape) -> None:
        self.old = kernel
        self.grid = grid
        self.shape = shape
        self.writer = Writer()
        self.arrays: dict[Array, Array] = {}
        self.parts: dict[Accumulator, list[Array]] = {}
        self.copy: Copy
        self.thread: Index
        self.row: Index  # the thread's number among those of its iteration
        self.column: Index

    def kernel(self, body: Sequence[Stmt]) -> Kernel:
        """The kernel whose groups each run ``body``, for one iteration or for several."""
        columns, extent = self.shape.columns, self.grid.extent
        groups = Var(self.grid.name, -(-extent // columns))
        with self.writer.group(groups, self.shape.threads) as (g, self.thread):
            self.row, self.column = self.thread // columns, self.thread % columns
            iteration = g * columns + self.column
            gate = self.writer.below(iteration, extent)
            values = {self.grid: iteration.assume(0, extent - 1)}
            self.copy = Copy(self.writer, values, gate, arrays=self.arrays)
            for stmt in body:
                self._statement(stmt)
        return Kernel(self.old.name, self.old.params, self.writer.body)

    def _statement(self, stmt: Stmt) -> None:
        if isinstance(stmt, Loop):
            self._share(stmt)
        elif isinstance(stmt, Allocate):
            old = stmt.array
            self.arrays[old] = self.writer.local(old.name, old.dtype, old.size)
        elif isinstance(stmt, Store):
            report = isinstance(stmt.target, Param) and stmt.target.role == "error"
            first = None if report else self.writer.below(self.thread, self.shape.columns)
            self.copy.store(stmt, first)
        elif isinstance(stmt, Instr) and stmt.op is RESULT:
            acc, part = stmt.attr
            self.copy.known[stmt] = self.writer.load(self.parts[acc][part], self.column)
        else:
            self.copy.block([stmt])

    def _share(self, loop: Loop) -> None:
        """Let every thread walk its part of a loop, then fold what the threads found."""
        loops, before, body = nest(loop)
        extents = [one.var.extent for one in loops]
        length = math.prod(extents)
        updated = _updated(loop)
        with self.writer.loop(Var(loop.var.name, -(-length // self.shape.rows))) as step:
            position = step * self.shape.rows + self.row
            gate = self.writer.both(self.copy.gate, self.writer.below(position, length))
            parts = unflatten(position.assume(0, length - 1), extents)
            values = dict(zip((one.var for one in loops), parts, strict=True))
            self.copy.inside(values, gate, frozenset(updated)).block([*before, *body])
        for update in (s for s in walk(loop.body) if isinstance(s, Update) and s.acc in updated):
            if update.acc not in self.parts:
                self._publish(update)
        if updated or any(isinstance(s, Store) and _is_scratch(s) for s in walk(loop.body)):
            self.writer.add(Barrier())
        for acc in self.parts:
            if acc in updated:
                self._fold(acc)

    def _publish(self, update: Update) -> None:
        """Store what each thread found where all can see it."""
        acc = update.acc
        names = (f"{acc.name}_all", f"{acc.name}_at")
        kinds = [acc.dtype] if len(update.values) == 1 else [acc.dtype, dtypes.int64]
        arrays = [
            self.writer.local(name, dtype, self.shape.threads)
            for name, dtype in zip(names, kinds, strict=False)
        ]
        self.parts[acc] = arrays
        for part, array in enumerate(arrays):
            value = self.writer.result(acc, part, array.dtype)
            self.writer.add(Store(array, self.thread, value))

    def _fold(self, acc: Accumulator) -> None:
        """A tree: half of the threads fold in what the other half left, then a quarter ..."""
        arrays = self.parts[acc]
        width = self.shape.threads // 2
        while width >= self.shape.columns:
            gate = self.writer.below(self.thread, width)
            near = self.thread.assume(0, width - 1)
            far = (self.thread + width).assume(width, 2 * width - 1)
            half = replace(acc, name=f"{acc.name}_{width}")
            self.writer.add(Declare(half))
            for at in (near, far):
                values = tuple(self.writer.load(array, at, gate) for array in arrays)
                self.writer.add(Update(half, values))
            for part, array in enumerate(arrays):
                value = self.writer.result(half, part, array.dtype)
                self.writer.add(Store(array, near, value, gate))
            self.writer.add(Barrier())
            width //= 2
