"""A compiled kernel and how it is executed: in several orders that must agree bit for bit."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coregrad_simt import compiler, report, settings
from coregrad_simt.errors import Fault, MemoryFault, RaceFault
from coregrad_simt.memory import Buffer

TEXT, MEMORY = 1001, 1002  # what simt_run returns (fibers.h)
MOST_PARAMETERS = 256
RANDOM_SEEDS = 1 << 20


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel. ``kind``: p a pointer, c one to constants, f a float, i or u an
    integer, b a bool, w a word of unknown meaning, s anything else."""

    size: int
    kind: str

    def __str__(self) -> str:
        words = {"p": "a pointer", "c": "a pointer to constants", "f": "a float", "b": "a bool"}
        words |= {"i": "a signed integer", "u": "an unsigned integer", "w": "a word"}
        return f"{words.get(self.kind, 'a structure')} of {self.size} bytes"


@dataclass(frozen=True)
class Kernel:
    """A kernel of a loaded library. ``fibers``: whether its threads wait for each other;
    ``threads``: the most that a block may have; ``shared``: the address range of its shared
    memory; ``flush``: whether denormals are taken for zero."""

    name: str
    route: str
    library: ctypes.CDLL
    parameters: tuple[Parameter, ...]
    fibers: bool
    threads: int
    shared: tuple[int, int]
    flush: bool = False

    @property
    def shared_bytes(self) -> int:
        """The size of its shared memory."""
        return self.shared[1] - self.shared[0]


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
    before = [buffer.data.copy() for buffer in buffers] if len(orders) > 1 else []
    first: list[Any] = []
    for order in orders:
        if first:
            for buffer, data in zip(buffers, before, strict=True):
                buffer.data[:] = data
        _once(kernel, arguments, buffers, geometry, order)
        if not first:
            first = [b.data if order == orders[-1] else b.data.copy() for b in buffers]
            continue
        for i, buffer in enumerate(buffers):
            if not np.array_equal(first[i], buffer.data):
                where = int(np.flatnonzero(first[i] != buffer.data)[0])
                raise RaceFault(
                    f"{kernel.name}: buffer {i} of the arguments differs at byte {where} when "
                    f"threads and blocks run in {order} order: a race"
                )


def _once(
    kernel: Kernel,
    arguments: Sequence[Any],
    buffers: Sequence[Buffer],
    geometry: Sequence[int],
    order: str,
) -> None:
    runtime = compiler.runtime()
    number = settings.ORDERS[order]
    if order == "random":  # another one each time, and the same ones in each run
        number += report.launches() % RANDOM_SEEDS
    addresses = [a if isinstance(a, int) else ctypes.addressof(a) for a in arguments]
    reason = runtime.simt_run(
        getattr(kernel.library, f"simt_body_{kernel.name}"),
        (ctypes.c_void_p * max(1, len(addresses)))(*addresses),
        (ctypes.c_uint * 6)(*geometry),
        *(ctypes.c_void_p(end) for end in kernel.shared),
        int(kernel.fibers),
        ctypes.c_uint(number),
        int(kernel.flush),
        ctypes.c_uint(settings.seconds()),
    )
    if reason:
        message = f"{kernel.name}: {runtime.simt_message().decode()}"
        if reason == MEMORY:
            raise MemoryFault(message + _where(runtime.simt_fault_address() or 0, buffers))
        raise Fault(message)
    for i, buffer in enumerate(buffers):
        buffer.check(f"{kernel.name}, buffer {i} of the arguments")


def _where(address: int, buffers: Sequence[Buffer]) -> str:
    """A memory fault's place as seen from the buffer next to it."""
    for i, buffer in enumerate(buffers):
        distance = buffer.distance(address)
        if distance is not None:
            side = "beyond the end" if distance >= 0 else "before the start"
            return f": {abs(distance)} bytes {side} of buffer {i} of the arguments"
    return f": address {address:#x}, near none of the buffers"
