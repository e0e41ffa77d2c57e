"""Launches recorded once, replayed on any buffers; as a CUDA graph where the buffers come again.

A graph knows addresses. A training step meets few different sets of them, since the pool hands out
what was given back: a set that comes for the second time is captured, and from then on one call
launches all its kernels. CuPy has no way to give a graph other addresses.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from coregrad_cuda.driver import Driver
from coregrad_cuda.memory import Buffer

Launch: TypeAlias = "tuple[Any, Sequence[int], int]"  # compiled, its buffers' numbers, grid
GRAPHS = 8  # kept at most
SETS = 64  # of addresses that are remembered without a graph


class Replay:
    """What a device's ``replay`` returns. ``launch`` queues one kernel; ``guard`` makes what holds
    the device's lock and turns its errors into coregrad's."""

    def __init__(
        self,
        driver: Driver,
        launches: Sequence[Launch],
        launch: Callable[[Any, Sequence[int], int], None],
        guard: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._driver = driver
        self._guard = guard
        self._launches = [(it, tuple(slots), grid) for it, slots, grid in launches]
        self._used = sorted({slot for _, slots, _ in self._launches for slot in slots})
        self._launch = launch
        self._seen: OrderedDict[tuple[int, ...], None] = OrderedDict()
        self._graphs: OrderedDict[tuple[int, ...], Any] = OrderedDict()

    @property
    def graphs(self) -> int:
        """How many sets of buffers have a graph."""
        return len(self._graphs)

    def run(self, buffers: Sequence[Buffer | None]) -> None:
        """Carry out every launch; ``buffers`` are what the launches' slots number."""
        with self._guard():
            self._run([0 if buffer is None else buffer.address for buffer in buffers])

    def _run(self, addresses: Sequence[int]) -> None:
        key = tuple(addresses[slot] for slot in self._used)
        graph = self._graphs.get(key)
        if graph is None and key in self._seen:
            del self._seen[key]
            graph = self._driver.capture(lambda: self._queue(addresses))
            self._graphs[key] = graph
            if len(self._graphs) > GRAPHS:
                self._graphs.popitem(last=False)
        if graph is not None:
            self._graphs.move_to_end(key)
            self._driver.replay(graph)
            return
        self._queue(addresses)
        self._seen[key] = None
        if len(self._seen) > SETS:
            self._seen.popitem(last=False)

    def _queue(self, addresses: Sequence[int]) -> None:
        for compiled, slots, grid in self._launches:
            self._launch(compiled, [addresses[slot] for slot in slots], grid)
