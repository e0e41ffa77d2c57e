"""A device's buffers, kept for reuse by size; safe as all commands run in one queue, in order.

It knows nothing of what the bytes mean.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from coregrad.errors import OutOfMemory

SMALLEST = 256  # bytes; drivers align to about that anyway


class Buffer:
    """A block of the device's memory; ``raw`` is None once it was freed."""

    __slots__ = ("raw", "size")

    def __init__(self, raw: Any, size: int) -> None:
        self.raw = raw
        self.size = size


class Pool:
    """Buffers by size class, for one caller at a time.

    ``make`` asks the driver for one, ``wait`` returns when the device is idle. When more than
    ``most`` bytes are kept for reuse, all of them are given back. ``sizes`` rounds sizes up.
    """

    def __init__(
        self,
        make: Callable[[int], Any],
        wait: Callable[[], None],
        most: int,
        sizes: Callable[[int], int] | None = None,
    ) -> None:
        self._make = make
        self._wait = wait
        self._most = most
        self._sizes = sizes or size_class
        self.kept = 0
        self._returned: deque[Buffer] = deque()
        self._free: dict[int, list[Any]] = {}

    def take(self, nbytes: int) -> Buffer:
        """A buffer of at least ``nbytes``; what is kept is given back first if there is no room."""
        size = self._sizes(nbytes)
        self._collect()
        kept = self._free.get(size)
        if kept:
            self.kept -= size
            return Buffer(kept.pop(), size)
        try:
            return Buffer(self._make(size), size)
        except OutOfMemory:
            if not self.kept:
                raise
            self.release()
        return Buffer(self._make(size), size)

    def give(self, buffer: Buffer) -> None:
        """Keep a buffer for reuse.

        The garbage collector may call this in the middle of any other method, so all it does is
        append; the buffer is filed by the next call of `take`.
        """
        raw, buffer.raw = buffer.raw, None
        if raw is not None:
            self._returned.append(Buffer(raw, buffer.size))

    def release(self) -> None:
        """Give what is kept back to the driver, once no queued kernel can be using it."""
        self._wait()
        self._returned.clear()
        self._free.clear()
        self.kept = 0

    def _collect(self) -> None:
        while self._returned:
            buffer = self._returned.popleft()
            self._free.setdefault(buffer.size, []).append(buffer.raw)
            self.kept += buffer.size
        if self.kept > self._most:
            self.release()


def size_class(nbytes: int) -> int:
    """``nbytes`` rounded up so that few sizes exist: at most an eighth is wasted.

    >>> [size_class(n) for n in (1, 300, 1000, 1025, 1 << 20)]
    [256, 512, 1024, 1280, 1048576]
    """
    step = max(SMALLEST, 1 << max(0, (nbytes - 1).bit_length() - 4))
    return -(-nbytes // step) * step
