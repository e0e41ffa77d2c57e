"""Buffers, and host bytes on their way to the GPU."""

from __future__ import annotations

import ctypes
from collections import deque
from typing import Any

from coregrad_cuda.driver import Driver

LARGE = 16 << 20  # bytes from which on a copy is waited for rather than copied once more


class Buffer:
    """A block of the GPU's memory; ``raw`` is None and ``address`` 0 once it was freed."""

    __slots__ = ("address", "raw", "size")

    def __init__(self, raw: Any, size: int) -> None:
        self.raw = raw
        self.address = int(raw.ptr)
        self.size = size

    def free(self) -> None:
        """Let go of the memory, which CuPy's pool then has. The garbage collector may call this at
        any moment; the pool is made for that."""
        self.address, self.raw = 0, None


class Staging:
    """Copies of host bytes in pinned memory, kept until the GPU has fetched them: so the host may
    change its bytes at once, and nobody waits."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._pending: deque[tuple[Any, Any]] = deque()

    def copy_in(self, target: int, host: int, nbytes: int) -> None:
        """Queue a copy of bytes that may change from now on."""
        if nbytes >= LARGE:
            self._driver.copy_in(target, host, nbytes)
            self._driver.synchronize()
            return
        while self._pending and self._pending[0][0].done:
            self._pending.popleft()
        pinned = self._driver.pinned(nbytes)
        ctypes.memmove(int(pinned.ptr), host, nbytes)
        self._driver.copy_in(target, int(pinned.ptr), nbytes)
        self._pending.append((self._driver.mark(), pinned))

    def clear(self) -> None:
        """Forget all copies: the stream was waited for."""
        self._pending.clear()
