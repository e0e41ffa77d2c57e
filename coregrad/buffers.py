"""A device's buffers, kept for reuse by size: fresh memory is dear on every device.

For devices whose launches happen in order, so that a kernel that still uses a buffer is done before
the next owner's. It never knows what the bytes mean, nor where they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from coregrad.errors import OutOfMemory

SMALLEST = 256  # bytes; drivers align to about that anyway, and some have no buffer of none


class Buffer:
    """A block of memory: ``raw`` is the driver's, and None once it was freed.

    ``busy`` says that a launch may be using it, of this owner or of an earlier one. The pool sets
    it for a buffer that comes again; the rest is up to the device, if it asks at all.
    """

    __slots__ = ("busy", "raw", "size")

    def __init__(self, raw: Any, size: int, busy: bool = False) -> None:
        self.raw = raw
        self.size = size
        self.busy = busy


def size_class(nbytes: int, step: int = SMALLEST) -> int:
    """``nbytes`` rounded up, by ``step`` at least, so that few sizes exist: at most an eighth of a
    large buffer is wasted.

    >>> [size_class(n) for n in (1, 300, 1000, 1025, 1 << 20)]
    [256, 512, 1024, 1280, 1048576]
    """
    step = max(step, 1 << max(0, (nbytes - 1).bit_length() - 4))
    return -(-nbytes // step) * step


class Pool:
    """Buffers by size class, for one caller at a time.

    ``make`` asks the driver for one of some size and raises OutOfMemory, ``wait`` returns when the
    device is idle. When more than ``most`` bytes are kept for reuse, all of them are given back.
    ``sizes`` rounds sizes up. With ``oldest_first`` the buffer that was freed first comes again
    first, whose launches are the likeliest to be done, and not the last one, which caches know.

    >>> pool = Pool(bytearray, wait=lambda: None, most=1 << 20)
    >>> pool.give(pool.take(1000))
    >>> pool.kept, pool.take(1024).busy, pool.kept
    (0, True, 0)
    """

    def __init__(
        self,
        make: Callable[[int], Any],
        wait: Callable[[], None],
        most: int,
        *,
        sizes: Callable[[int], int] = size_class,
        oldest_first: bool = False,
    ) -> None:
        self._make = make
        self._wait = wait
        self._most = most
        self._sizes = sizes
        self._next: Callable[[deque[Any]], Any] = deque.popleft if oldest_first else deque.pop
        self.kept = 0
        self._returned: deque[Buffer] = deque()
        self._free: dict[int, deque[Any]] = {}

    def take(self, nbytes: int) -> Buffer:
        """A buffer of at least ``nbytes``; what is kept is given back first if there is no room."""
        size = self._sizes(nbytes)
        self._collect()
        kept = self._free.get(size)
        if kept:
            self.kept -= size
            return Buffer(self._next(kept), size, busy=True)
        try:
            return Buffer(self._make(size), size)
        except OutOfMemory:
            if not self.kept:
                raise
            self.release()
        return Buffer(self._make(size), size)

    def give(self, buffer: Buffer) -> None:
        """Keep a buffer for reuse; one that was freed before is left alone.

        The garbage collector may call this in the middle of any other method, so all it does is
        append; the buffer is filed by the next call of `take`.
        """
        raw, buffer.raw = buffer.raw, None
        if raw is not None:
            self._returned.append(Buffer(raw, buffer.size))

    def release(self) -> None:
        """Give what is kept back to the driver, once no launch can be using it."""
        self._wait()
        self._returned.clear()
        self._free.clear()
        self.kept = 0

    def _collect(self) -> None:
        while self._returned:
            buffer = self._returned.popleft()
            self._free.setdefault(buffer.size, deque()).append(buffer.raw)
            self.kept += buffer.size
        if self.kept > self._most:
            self.release()
