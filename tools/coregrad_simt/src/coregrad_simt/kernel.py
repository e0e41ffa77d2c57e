"""A compiled kernel and how it is executed: in several orders that must agree bit for bit."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coregrad_simt import compiler, report, settings
from coregrad_simt.errors import Fault, MemoryFault, RaceFault
from coregrad_simt.memory import Buffer

MEMORY = 1002  # what simt_run returns for a memory fault (fibers.h)
MOST_PARAMETERS = 256
RANDOM_SEEDS = 1 << 20


_one_at_a_time = threading.Lock()  # another launch must not see what is tried in between


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel. ``kind``: p a pointer, c one to constants, f a float, i or u an
    integer, b a bool, w a word of unknown meaning, s anything else. ``alone``: a pointer of which
    the text says (__restrict__) that nothing else points there."""

    size: int
    kind: str
    alone: bool = False

    def __str__(self) -> str:
        words = {"p": "a pointer", "c": "a pointer to constants", "f": "a float", "b": "a bool"}
        words |= {"i": "a signed integer", "u": "an unsigned integer", "w": "a word"}
        return f"{words.get(self.kind, 'a structure')} of {self.size} bytes"


@dataclass(frozen=True)
class Kernel:
    """A kernel of a loaded library. ``fibers``: whether its threads wait for each other;
    ``threads``: the most that a block may have; ``shared``: the address range of its shared
    memory, ``shared_bytes`` of it its own; ``flush``: whether denormals are taken for zero."""

    name: str
    route: str
    library: ctypes.CDLL
    parameters: tuple[Parameter, ...]
    fibers: bool
    threads: int
    shared: tuple[int, int]
    shared_bytes: int
    flush: bool = False


def shared_memory(library: ctypes.CDLL) -> tuple[int, int]:
    """Where a library's shared memory lies."""
    begin, end = ctypes.c_void_p(), ctypes.c_void_p()
    library.simt_shared_memory(ctypes.byref(begin), ctypes.byref(end))
    return begin.value or 0, end.value or 0


def parameters(library: ctypes.CDLL, name: str) -> tuple[Parameter, ...]:
    """What a library says about a kernel's parameters."""
    words = (ctypes.c_int * MOST_PARAMETERS)()
    count = getattr(library, f"simt_parameters_{name}")(words)
    return tuple(Parameter(word & 0xFFFF, chr(word >> 16)) for word in words[:count])


def launch(
    kernel: Kernel,
    arguments: Sequence[Any],
    buffers: Sequence[Buffer],
    grid: Sequence[int],
    block: Sequence[int],
) -> None:
    """Execute a kernel. ``arguments`` are ctypes objects, or for Metal addresses; ``buffers`` what
    it may write. Raises a Fault, which the report also keeps."""
    orders = settings.orders()
    report.launched(kernel.route, len(orders))
    try:
        with _one_at_a_time:
            _in_all_orders(kernel, arguments, buffers, (*grid, *block), orders)
    except Fault as error:
        report.fault(str(error))
        raise


def _in_all_orders(
    kernel: Kernel,
    arguments: Sequence[Any],
    buffers: Sequence[Buffer],
    geometry: Sequence[int],
    orders: Sequence[str],
) -> None:
    call = _Call(kernel, arguments, geometry)
    before = [buffer.data.copy() for buffer in buffers] if len(orders) > 1 else []
    first: list[Any] = []
    for order in orders:
        for buffer, data in zip(buffers, before if first else (), strict=False):
            buffer.data[:] = data
        call.run(order, buffers)
        for i, (buffer, data) in enumerate(zip(buffers, first, strict=False)):
            if not np.array_equal(data, buffer.data):
                where = int(np.flatnonzero(data != buffer.data)[0])
                raise RaceFault(
                    f"{kernel.name}: buffer {i} of the arguments differs at byte {where} when "
                    f"threads and blocks run in {order} order: a race"
                )
        if not first and len(orders) > 1:
            first = [buffer.data.copy() for buffer in buffers]
    for i, buffer in enumerate(buffers):
        buffer.check(f"{kernel.name}, buffer {i} of the arguments")


class _Call:
    """A call of the runtime; only the order differs from one execution to the next."""

    def __init__(self, kernel: Kernel, arguments: Sequence[Any], geometry: Sequence[int]) -> None:
        addresses = [a if isinstance(a, int) else ctypes.addressof(a) for a in arguments]
        self._kept = arguments
        self._name = kernel.name
        self._before: tuple[Any, ...] = (
            getattr(kernel.library, f"simt_body_{kernel.name}"),
            (ctypes.c_void_p * max(1, len(addresses)))(*addresses),
            (ctypes.c_uint * 6)(*geometry),
            *(ctypes.c_void_p(end) for end in kernel.shared),
            int(kernel.fibers),
        )
        self._after = int(kernel.flush), ctypes.c_uint(settings.seconds())

    def run(self, order: str, buffers: Sequence[Buffer]) -> None:
        """Execute the kernel once. Raises a Fault."""
        runtime = compiler.runtime()
        number = settings.ORDERS[order]
        if order == "random":  # another one each time, and the same ones in each run
            number += report.launches() % RANDOM_SEEDS
        reason = runtime.simt_run(*self._before, ctypes.c_uint(number), *self._after)
        if not reason:
            return
        message = f"{self._name}: {runtime.simt_message().decode()}"
        if reason == MEMORY:
            raise MemoryFault(message + _where(runtime.simt_fault_address() or 0, buffers))
        raise Fault(message)


def _where(address: int, buffers: Sequence[Buffer]) -> str:
    """A memory fault's place as seen from the buffer next to it."""
    for i, buffer in enumerate(buffers):
        distance = buffer.distance(address)
        if distance is not None:
            side = "beyond the end" if distance >= 0 else "before the start"
            return f": {abs(distance)} bytes {side} of buffer {i} of the arguments"
    return f": address {address:#x}, near none of the buffers"
