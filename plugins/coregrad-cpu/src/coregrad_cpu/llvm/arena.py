"""Host memory for buffers: 64-byte aligned, kept for reuse by size, huge pages for large ones.

Fresh memory costs a page fault per 4 KiB, which for large results takes longer than computing
them; so freed blocks are kept. It knows nothing of what the bytes mean.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import sys
import threading
from collections import deque
from dataclasses import dataclass

from coregrad.errors import OutOfMemory, VerifyError

ALIGNMENT = 64
SLAB = 1 << 20  # small blocks are cut from slabs of this size
HUGE_PAGE = 2 << 20
LARGER = 2  # times a size: a free block that large is used before the system is asked
# Freed memory kept for reuse; beyond it large blocks go back to the system.
KEEP_SHARE = 4  # one part in four of the machine's memory


@dataclass(eq=False)
class Buffer:
    """A block of host memory: ``address`` is 0 once it was freed."""

    address: int
    nbytes: int
    size: int


class Arena:
    """Blocks by size class, taken and given back."""

    def __init__(self, total: int | None = None) -> None:
        self.total = total or _physical_bytes()
        self.kept = 0
        self._returned: deque[tuple[int, int]] = deque()
        self._free: dict[int, list[int]] = {}
        self._maps: dict[int, mmap.mmap] = {}
        self._slabs: list[mmap.mmap] = []
        self._slab_next = self._slab_end = 0
        self.reset_lock()

    def reset_lock(self) -> None:
        """A new lock: in a forked child the old one may be held by a thread that is not there."""
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> Buffer:
        """A block of at least ``nbytes``, contents undefined."""
        size = size_class(nbytes)
        with self._lock:
            if self._returned:
                self._collect()
            free = self._free.get(size)
            if not free and size >= SLAB:
                size, free = self._larger(size)
            if free:
                self.kept -= size
                return Buffer(free.pop(), nbytes, size)
            address = self._cut(size) if size < SLAB else self._map(size)
        return Buffer(address, nbytes, size)

    def _larger(self, size: int) -> tuple[int, list[int]]:
        """A larger size of which blocks are free, which serve a large one just as well, and these.
        A step of training, whose tensors have a dozen sizes, then needs little more memory than it
        uses at a time. The size itself and no blocks where there are none."""
        larger = (s for s, free in self._free.items() if free and size < s <= LARGER * size)
        found = min(larger, default=size)
        return found, self._free.get(found, [])

    def give(self, buffer: Buffer) -> None:
        """Keep a block for reuse.

        The garbage collector may call this in the middle of any other method here, so it never
        waits for the lock: a block that cannot be filed at once is left for the next call.
        """
        address = buffer.address
        if not address:
            raise VerifyError("free: the buffer was freed before")
        buffer.address = 0
        self._returned.append((buffer.size, address))
        if self._lock.acquire(blocking=False):
            try:
                self._collect()
            finally:
                self._lock.release()

    def _collect(self) -> None:
        """File the blocks that came back; the lock is held."""
        returned, free = self._returned, self._free
        while returned:
            size, address = returned.popleft()
            if size not in free:
                free[size] = []
            free[size].append(address)
            self.kept += size
        if self.kept > self.total // KEEP_SHARE:
            self._release()

    def _cut(self, size: int) -> int:
        if self._slab_next + size > self._slab_end:
            slab = _new_map(SLAB)
            self._slabs.append(slab)
            self._slab_next = _address(slab)
            self._slab_end = self._slab_next + SLAB
        address, self._slab_next = self._slab_next, self._slab_next + size
        return address

    def _map(self, size: int) -> int:
        if size > self.total:
            raise OutOfMemory(
                f"allocate: {size} bytes asked for, the machine has {self.total}; "
                "use smaller tensors or batches"
            )
        try:
            return self._map_aligned(size)
        except (OSError, ValueError, OverflowError):
            self._release()
        try:
            return self._map_aligned(size)
        except (OSError, ValueError, OverflowError) as error:
            raise OutOfMemory(
                f"allocate: the system has no {size} bytes left ({error}); free tensors first"
            ) from error

    def _map_aligned(self, size: int) -> int:
        """Whole pages; large blocks start at a huge page's border, or the kernel would use none."""
        spare = HUGE_PAGE if size >= HUGE_PAGE else 0
        block = _new_map(size + spare)
        address = _address(block)
        if spare:
            address = -(-address // HUGE_PAGE) * HUGE_PAGE
        self._maps[address] = block
        return address

    def _release(self) -> None:
        """Give free large blocks back to the system."""
        for size in [size for size in self._free if size >= SLAB]:
            for address in self._free.pop(size):
                self._maps.pop(address).close()
                self.kept -= size


@functools.lru_cache(1024)
def size_class(nbytes: int) -> int:
    """``nbytes`` rounded up so that few sizes exist: at most an eighth is wasted.

    >>> [size_class(n) for n in (1, 64, 65, 1000, 1025, 1 << 20)]
    [64, 64, 128, 1024, 1152, 1048576]
    """
    step = max(ALIGNMENT, 1 << max(0, (nbytes - 1).bit_length() - 4))
    return -(-nbytes // step) * step


def _new_map(size: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    # Private: Python's default would share the memory with a forked child.
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without huge pages says no: the memory is as good, only slower.
        with contextlib.suppress(OSError):
            block.madvise(mmap.MADV_HUGEPAGE)
    return block


def _address(block: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(block))


def _physical_bytes() -> int:
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 1 << 36  # unknown: let the system refuse
