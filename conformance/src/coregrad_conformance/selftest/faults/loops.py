"""Loops that lose or repeat iterations, work-groups whose barriers do nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from coregrad.ir.kernel import Array
from coregrad_conformance.selftest.device import Access, Frame, Ref, Step, stores, with_frame
from coregrad_conformance.selftest.fault import Fault

Extent = Callable[[int, str], int]
Index = Callable[[Any, int, str], Any]


def faults() -> Iterator[Fault]:
    """All of this file."""
    for name, says, by, rows, extent in SHORTER:
        yield Fault(f"sizes/{name}", "sizes and tails", "", "", says, by,
                    _with_extent(extent), rows)  # fmt: skip
    for name, says, by, index in ELSEWHERE:
        yield Fault(f"sizes/{name}", "sizes and tails", "", "", says, by,
                    _with_index(index))  # fmt: skip
    for name, says, by, make in GROUPS:
        yield Fault(f"barrier/{name}", "missing barrier", "", "", says, by, make)


def _with_extent(change: Extent) -> Callable[[], type[Ref]]:
    class Shorter(Frame):
        def loop(
            self, name: str, extent: int, kind: str, lanes: int, resume: bool
        ) -> Iterator[Any]:
            return super().loop(name, change(extent, kind), kind, lanes, resume)

    return with_frame(Shorter)


def _with_index(change: Index) -> Callable[[], type[Ref]]:
    class Elsewhere(Frame):
        def loop(
            self, name: str, extent: int, kind: str, lanes: int, resume: bool
        ) -> Iterator[Any]:
            for index in super().loop(name, extent, kind, lanes, resume):
                yield change(index, extent, kind)

    return with_frame(Elsewhere)


# fmt: off
SHORTER: tuple[tuple[str, str, str, tuple[str, ...], Extent], ...] = (
    ("tail-of-4", "a grid of up to 32 loses what is left beyond whole fours", "loops/grid/31", (),
     lambda n, kind: n // 4 * 4 if kind == "grid" and 4 < n < 32 else n),
    ("tail-of-32", "a grid of 33 loses what is left beyond whole work-groups of 32",
     "loops/grid/33", (), lambda n, kind: n // 32 * 32 if kind == "grid" and n == 33 else n),
    ("tail-of-256", "a grid of 257 loses its last iteration", "loops/grid/257", (),
     lambda n, kind: 256 if kind == "grid" and n == 257 else n),
    ("last-of-5", "a grid of 5 loses its last iteration", "loops/grid/5", (),
     lambda n, kind: 4 if kind == "grid" and n == 5 else n),
    ("at-most-1024", "a grid has at most 1024 iterations", "loops/grid/1025", (),
     lambda n, kind: min(n, 1024) if kind == "grid" and n < 2000 else n),
    ("byte-counter", "a serial loop counts in a byte", "loops/serial/sizes", (),
     lambda n, kind: n % 256 if kind == "serial" and 256 < n < 259 else n),
    ("at-most-4096", "a grid has at most 4096 iterations", "loops/grid/4099", ("loops/*",),
     lambda n, kind: min(n, 4096) if kind == "grid" else n),
    ("at-most-65536", "a grid has at most 65536 iterations", "loops/grid/65537", ("loops/*",),
     lambda n, kind: min(n, 65536) if kind == "grid" and n < 100_000 else n),
    ("one-dimension", "a grid has at most 65536 work-groups of 8", "loops/grid/huge", ("loops/*",),
     lambda n, kind: min(n, 8 * 65536) if kind == "grid" else n),
    ("unroll-by-8", "an unrolled loop has at most 8 iterations", "loops/unroll/sizes", (),
     lambda n, kind: min(n, 8) if kind == "unroll" else n),
    ("odd-unroll", "an unrolled loop of 3 is one of 2", "loops/nested", (),
     lambda n, kind: 2 if kind == "unroll" and n == 3 else n),
)
ELSEWHERE: tuple[tuple[str, str, str, Index], ...] = (
    ("wraps-at-1024", "a grid's index wraps at 1024", "loops/grid/1025",
     lambda i, n, kind: i & 1023 if kind == "grid" else i),
    ("block-twice", "the rest of a grid beyond whole fours is the last whole four once more",
     "loops/grid/255", lambda i, n, kind: np.where(i >= n // 4 * 4, i - 4, i)
     if kind == "grid" and n == 255 else i),
    ("rest-starts-at-0", "the rest of a grid of 32 begins at 0 again", "loops/grid/32",
     lambda i, n, kind: i % 16 if kind == "grid" and n == 32 else i),
)
# fmt: on


# ---- work-groups -------------------------------------------------------------------------------


def late(when: Callable[[Access], bool]) -> Callable[[Access, Step], None]:
    """Stores that become visible with the next store, or when the kernel ends; see it stale."""

    def change(at: Access, store: Step) -> None:
        at.frame.finish()  # what has been waiting
        if not when(at):
            store(at)
            return
        waiting = replace(at, value=np.copy(at.value))

        def finish() -> None:
            del at.frame.finish
            store(waiting)

        at.frame.finish = finish

    return change


def _local(at: Access) -> bool:
    return isinstance(at.buffer, Array) and at.buffer.space == "local"


def _local_again(at: Access) -> bool:
    """Not the first local store of a kernel."""
    if not _local(at):
        return False
    first = "begun" not in at.frame.__dict__
    at.frame.begun = True
    return not first


class _OneArray(Frame):
    """Local memory is one array for all work-groups, not one for each."""

    def allocate(self, array: Array) -> None:
        super().allocate(array)
        if array.space == "local":
            words, begins = self.memory[array]
            self.memory[array] = words, np.zeros_like(begins)


class _FourThreads(Frame):
    """Threads beyond the fourth do the work of the first ones."""

    def loop(self, name: str, extent: int, kind: str, lanes: int, resume: bool) -> Iterator[Any]:
        for index in super().loop(name, extent, kind, lanes, resume):
            yield index % 4 if kind == "local" else index


GROUPS: tuple[tuple[str, str, str, Callable[[], type[Ref]]], ...] = (
    (
        "ignored",
        "what threads store to local memory is seen one store too late",
        "loops/work-group/reversal",
        stores(late(_local)),
    ),
    (
        "later-ones-ignored",
        "the first barrier of a kernel waits, the later ones do not",
        "loops/work-group/tree",
        stores(late(_local_again)),
    ),
    (
        "one-array-for-all",
        "all work-groups share one local array",
        "loops/work-group/reversal",
        with_frame(_OneArray),
    ),
    (
        "threads-beyond-4",
        "threads beyond the fourth do not run",
        "loops/work-group/reversal",
        with_frame(_FourThreads),
    ),
)
