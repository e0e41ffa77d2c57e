"""cupy.cuda.pinned_memory: host memory that a device may read by itself."""

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["PinnedMemory", "PinnedMemoryPointer", "PinnedMemoryPool", "alloc_pinned_memory"]


class PinnedMemory:
    """Host memory; the fake's is ordinary."""

    def __init__(self, size: int, flags: int = 0) -> None:
        self.size = size
        self._bytes = (ctypes.c_uint8 * max(size, 1))()
        ctypes.memset(self._bytes, 0xFF, max(size, 1))
        self.ptr = ctypes.addressof(self._bytes)


def _pointer_to(mem: PinnedMemory) -> PinnedMemoryPointer:
    """A ctypes array over the memory, so that it has the buffer protocol, as cupy's pointer."""
    kind: Any = type("PinnedMemoryPointer", (PinnedMemoryPointer, ctypes.c_uint8 * mem.size), {})
    pointer: PinnedMemoryPointer = kind.from_buffer(mem._bytes)
    pointer.mem, pointer.ptr = mem, mem.ptr
    return pointer


class PinnedMemoryPointer:
    """An address in pinned memory; it has the buffer protocol."""

    mem: PinnedMemory
    ptr: int

    def size(self) -> int:
        return self.mem.size


class PinnedMemoryPool:
    """Hands out pinned memory."""

    def malloc(self, size: int) -> PinnedMemoryPointer:
        return _pointer_to(PinnedMemory(size))

    def free_all_blocks(self) -> None:
        pass

    def n_free_blocks(self) -> int:
        return 0


def alloc_pinned_memory(size: int) -> PinnedMemoryPointer:
    return PinnedMemoryPool().malloc(size)
