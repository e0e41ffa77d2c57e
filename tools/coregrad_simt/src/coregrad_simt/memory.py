"""Buffers that tell when somebody reads or writes outside them.

Each starts as 0xFF everywhere (a NaN, or -1), ends where a range of addresses begins that nobody
may touch, and has canaries in what alignment leaves on its sides.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from typing import Any

import numpy as np

from coregrad_simt.errors import MemoryFault, SimtError

GUARD = 16 << 20  # bytes on each side that fault
ALIGNMENT = 16  # of a buffer's start; the widest access of a thread
POISON = 0xFF
CANARY = 64  # bytes before a buffer
PROTECT_NONE, PROTECT_BOTH = 0, mmap.PROT_READ | mmap.PROT_WRITE
NO_RESERVE = 0x4000  # MAP_NORESERVE; the mmap module has it only from Python 3.13 on
FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Buffer:
    """``size`` bytes at ``address``; ``data`` is an array of them."""

    def __init__(self, size: int) -> None:
        self.size = size
        room = -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
        inner = -(-(room + CANARY) // mmap.PAGESIZE) * mmap.PAGESIZE
        base: int | None = _libc.mmap(None, inner + 2 * GUARD, PROTECT_NONE, FLAGS, -1, 0)
        if base is None or base == ctypes.c_void_p(-1).value:
            raise SimtError(f"buffer: no address space for {size} bytes")
        self.low, self.high = base + GUARD, base + GUARD + inner
        _libc.mprotect(self.low, inner, PROTECT_BOTH)
        self._finalizer = weakref.finalize(self, _libc.munmap, base, inner + 2 * GUARD)
        self._finalizer.atexit = False  # the process is over, and others may still be using it
        self.address = self.high - room
        whole = _bytes_at(self.low, inner)
        whole[:] = POISON
        start = self.address - self.low
        self._before, self._after = whole[start - CANARY : start], whole[start + size :]
        self.data = whole[start : start + size]

    def holds(self, address: int) -> bool:
        """Whether an address lies within."""
        return self.address <= address < self.address + max(self.size, 1)

    def distance(self, address: int) -> int | None:
        """How many bytes beyond the end (or, below zero, before the start) an address lies; None if
        it is further away than this buffer's guards."""
        if address >= self.address + self.size and address < self.high + GUARD:
            return address - (self.address + self.size)
        if self.low - GUARD <= address < self.address:
            return address - self.address
        return None

    def check(self, name: str) -> None:
        """Raise MemoryFault if the canaries have been overwritten, after restoring them."""
        for side, what in ((self._before, "before the start"), (self._after, "beyond the end")):
            if side.tobytes().count(POISON) == side.size:
                continue
            changed = np.flatnonzero(side != POISON)
            side[:] = POISON
            where = changed[0] if side is self._after else changed[-1] - CANARY
            raise MemoryFault(f"{name}: a write {what} of {self.size} bytes, at {where:+d}")

    def close(self) -> None:
        """Give the memory back now; whoever touches it afterwards faults."""
        self._finalizer()


def _bytes_at(address: int, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    memory: Any = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(memory, np.uint8)
