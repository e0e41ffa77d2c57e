"""One GPU as the contract's Device: memory that the host shares, programs, launches in order."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from coregrad import drivers
from coregrad.buffers import Buffer, Pool
from coregrad.cstyle import Geometry, geometry
from coregrad.dtypes import ALL, float64
from coregrad.errors import CompileError, DeviceError, VerifyError
from coregrad.hookspecs import Limits
from coregrad_metal.driver import Driver
from coregrad_metal.words import SIMD, THREADS

MAX_BUFFERS = 31  # of a kernel (Metal Feature Set Tables)
LOCAL_BYTES = 32 << 10  # of a group
PRIVATE_BYTES = 1024  # of a thread: more would keep most of the GPU's threads from running
KEEP_SHARE = 4  # of freed memory one part in four of what the GPU may use is kept for reuse
MOST_THREADS = 2**32 - 1  # of a launch: a thread's number has 32 bits


class Program:
    """A kernel ready to be launched."""

    def __init__(self, function: Any, shape: Geometry) -> None:
        self.function = function
        self.name = shape.name
        # Threads of each iteration of the grid.
        self.each = max(SIMD, shape.threads) if shape.threads else 1


class Device:
    """A GPU."""

    def __init__(self, driver: Driver, name: str) -> None:
        self.name = name
        self.driver = driver.name
        self.title = f"{name} ({driver.name}, experimental)"
        self.limits = Limits(
            dtypes=frozenset(ALL) - {float64},
            max_buffers=MAX_BUFFERS,
            threads=THREADS,
            local_bytes=LOCAL_BYTES,
            private_bytes=PRIVATE_BYTES,
            float_mod=False,  # Metal's fmod is a division, a truncation and a product
        )
        self._gpu = driver
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._programs: dict[str, Program] = {}
        self._used: list[Buffer] = []  # by launches that were not awaited
        most = driver.memory // KEEP_SHARE
        self.pool = Pool(driver.buffer, self._wait, most, oldest_first=True)

    # -- memory --------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> Buffer:
        """A buffer of at least ``nbytes``."""
        self._require_own_process()
        with self._lock, self._gpu.errors(self.title, f"allocating {nbytes} bytes"):
            return self.pool.take(nbytes)

    def free(self, buffer: Buffer) -> None:
        """Give a buffer back."""
        self.pool.give(buffer)

    def copy_in(self, buffer: Buffer, data: memoryview) -> None:
        """Copy host bytes to the start of the buffer."""
        self._copy(buffer, data, inwards=True)

    def copy_out(self, buffer: Buffer, into: memoryview) -> None:
        """Copy the start of the buffer to host bytes."""
        self._copy(buffer, into, inwards=False)

    def _copy(self, buffer: Buffer, host: memoryview, inwards: bool) -> None:
        """The memory is the host's as well; but no kernel may be at work on it."""
        self._require_own_process()
        array = np.frombuffer(host.cast("B"), np.uint8)
        if not array.size:
            return
        if buffer.raw is None or array.size > buffer.size:
            raise VerifyError(f"copy: {array.size} bytes of a buffer of {buffer.size} (or freed)")
        with self._lock, self._gpu.errors(self.title, f"copying {array.size} bytes"):
            if buffer.busy:
                self._wait()
                buffer.busy = False
            memory = self._gpu.view(buffer.raw)[: array.size]
            if inwards:
                memory[:] = array
            else:
                array[:] = memory

    # -- kernels -------------------------------------------------------------------------------

    def compile(self, program: str) -> Program:
        """The program of a finished frame's text."""
        self._require_own_process()
        with self._lock:
            found = self._programs.get(program)
            if found is None:
                found = self._programs[program] = self._compiled(program)
            return found

    def _compiled(self, text: str) -> Program:
        shape = geometry(text)
        try:
            return Program(self._gpu.function(text, shape.name), shape)
        except ValueError as error:
            raise CompileError(f"{self.title}: kernel {shape.name}: {error}\n{text}") from error

    def launch(self, compiled: Program, buffers: Sequence[Buffer], grid: int) -> None:
        """Start a kernel over its grid."""
        self._require_own_process()
        count = grid * compiled.each
        if count > MOST_THREADS - THREADS:
            raise DeviceError(f"{compiled.name}: {count} threads; a launch has {MOST_THREADS}")
        with self._lock, self._gpu.errors(self.title, f"kernel {compiled.name}"):
            self._gpu.launch(compiled.function, count, [buffer.raw for buffer in buffers])
            for buffer in buffers:
                buffer.busy = True
            self._used += buffers

    def synchronize(self) -> None:
        """Return when every launch so far has finished."""
        self._require_own_process()
        with self._lock, self._gpu.errors(self.title, "waiting"):
            self._wait()

    def _wait(self) -> None:
        self._gpu.synchronize()
        for buffer in self._used:
            buffer.busy = False
        self._used.clear()

    def _require_own_process(self) -> None:
        """Metal does not work in a forked child."""
        drivers.require_own_process(self._pid, self.title, "Metal")
