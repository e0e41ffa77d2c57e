"""One GPU as the contract's Device: memory, programs, launches, all in one stream."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from coregrad import config, drivers
from coregrad.dtypes import ALL
from coregrad.errors import DeviceError, VerifyError
from coregrad.hookspecs import Limits
from coregrad_cuda.driver import Driver
from coregrad_cuda.gemm import Gemm
from coregrad_cuda.memory import Buffer, Staging
from coregrad_cuda.programs import Program, Programs
from coregrad_cuda.replay import Launch, Replay
from coregrad_cuda.words import THREADS

LOCAL_BYTES = 48 << 10  # what a block has on every GPU without asking for more
# Of one grid iteration. The driver sets memory aside for as many iterations as the GPU can hold at
# a time, some hundred thousand, as soon as one kernel needs it.
PRIVATE_BYTES = 1024
WARP = 32  # threads that run as one
GROUPS = 4  # per multiprocessor, where there is work enough: fewer leave some idle at the end
MOST_GROUPS = 2**31 - 1  # of a launch in one dimension


class Device:
    """A GPU with its one stream."""

    def __init__(self, driver: Driver, name: str) -> None:
        self.name = name
        properties = driver.properties
        self.driver = f"{driver.name}, {driver.versions}"
        self.title = f"{name} ({self.driver})"
        self.limits = Limits(
            dtypes=frozenset(ALL),
            max_buffers=127,  # a kernel's arguments are 4096 bytes at most
            threads=min(THREADS, int(properties["maxThreadsPerBlock"])),
            local_bytes=min(LOCAL_BYTES, int(properties["sharedMemPerBlock"])),
            private_bytes=PRIVATE_BYTES,
        )
        self._gpu = driver
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._units = int(properties["multiProcessorCount"])
        self._staging = Staging(driver)
        self._timed = config.debug() >= 2
        self._marks: tuple[Any, Any] | None = None
        self.programs = Programs(driver, self.title, config.cache_folder("cuda"))

    # -- memory --------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> Buffer:
        """A buffer of at least ``nbytes``."""
        self._require_own_process()
        with self._lock, self._gpu.errors(self.title, f"allocating {nbytes} bytes"):
            return Buffer(self._gpu.allocate(nbytes), nbytes)

    def free(self, buffer: Buffer) -> None:
        """Give a buffer back."""
        buffer.free()

    def copy_in(self, buffer: Buffer, data: memoryview) -> None:
        """Copy host bytes to the start of the buffer."""
        host = self._checked(buffer, data)
        if host.size:
            with self._lock, self._gpu.errors(self.title, f"copying {host.size} bytes"):
                self._staging.copy_in(buffer.address, host.ctypes.data, host.size)

    def copy_out(self, buffer: Buffer, into: memoryview) -> None:
        """Copy the start of the buffer to host bytes."""
        host = self._checked(buffer, into)
        if host.size:
            with self._lock, self._gpu.errors(self.title, f"copying {host.size} bytes"):
                self._gpu.copy_out(host.ctypes.data, buffer.address, host.size)
                self._wait()

    def copy_peer(self, buffer: Buffer, source: Device, content: Buffer, nbytes: int) -> None:
        """Copy bytes from another GPU's buffer, past the host where the GPUs can; done when it
        returns."""
        self._require_own_process()
        for side in (buffer, content):
            if not side.address or nbytes > side.size:
                raise VerifyError(f"copy: {nbytes} bytes of a buffer of {side.size} (or freed)")
        first, second = sorted((self, source), key=lambda device: device.name)
        with first._lock, second._lock, self._gpu.errors(self.title, f"copying {nbytes} bytes"):
            self._gpu.copy_peer(buffer.address, source._gpu, content.address, nbytes)
            self._wait()  # the other GPU knows nothing of this stream, and may reuse its memory

    def _checked(self, buffer: Buffer, host: memoryview) -> Any:
        self._require_own_process()
        array = np.frombuffer(host.cast("B"), np.uint8)
        if array.size and (not buffer.address or array.size > buffer.size):
            raise VerifyError(f"copy: {array.size} bytes of a buffer of {buffer.size} (or freed)")
        return array

    # -- kernels -------------------------------------------------------------------------------

    def compile(self, program: str | Gemm) -> Program | Gemm:
        """The program of a finished frame's text; a product is cuBLAS's already."""
        self._require_own_process()
        if isinstance(program, Gemm):
            return program
        with self._lock:
            return self.programs.program(program)

    def launch(self, compiled: Program | Gemm, buffers: Sequence[Buffer], grid: int) -> None:
        """Queue a kernel over its grid."""
        self._require_own_process()
        addresses = [buffer.address for buffer in buffers]
        with self._lock, self._gpu.errors(self.title, f"kernel {compiled.name}"):
            if not self._timed:
                self._queue(compiled, addresses, grid)
                return
            first = self._gpu.mark()
            self._queue(compiled, addresses, grid)
            self._marks = first, self._gpu.mark()

    def _queue(self, compiled: Program | Gemm, addresses: Sequence[int], grid: int) -> None:
        if isinstance(compiled, Gemm):
            dtypes = compiled.dtype.name, compiled.out.name
            self._gpu.multiply(dtypes, compiled.compute, compiled.numbers(addresses))
            return
        groups, threads = compiled.sizes.get(grid) or self._sizes(compiled, grid)
        self._gpu.launch(compiled.function, groups, threads, addresses)

    def _sizes(self, compiled: Program, grid: int) -> tuple[int, int]:
        """Groups, and threads of each. Independent items come in groups of many, but such that
        there are several groups for each multiprocessor."""
        groups, threads = grid, compiled.shape.threads
        if not threads:
            threads = WARP
            while threads < THREADS and grid >= 2 * threads * GROUPS * self._units:
                threads *= 2
            groups = -(-grid // threads)
        if groups > MOST_GROUPS:
            raise DeviceError(f"{compiled.name}: {groups} groups; a launch has {MOST_GROUPS}")
        compiled.sizes[grid] = groups, threads
        return groups, threads

    def replay(self, launches: Sequence[Launch]) -> Replay:
        """These launches, of numbered buffers, as an object that carries them all out."""
        return Replay(self._gpu, launches, self._queue, self._replaying)

    @contextmanager
    def _replaying(self) -> Iterator[None]:
        self._require_own_process()
        with self._lock, self._gpu.errors(self.title, "replaying"):
            yield

    def synchronize(self) -> None:
        """Return when every launch so far has finished."""
        self._require_own_process()
        with self._lock, self._gpu.errors(self.title, "waiting"):
            self._wait()

    def _wait(self) -> None:
        self._gpu.synchronize()
        self._staging.clear()

    def elapsed(self) -> float | None:
        """Seconds that the last launch took, by the GPU's clock; None unless DEBUG was 2 or more
        when the device was opened."""
        if self._marks is None:
            return None
        with self._lock, self._gpu.errors(self.title, "timing"):
            return self._gpu.seconds(*self._marks)

    def _require_own_process(self) -> None:
        """CUDA does not work in a forked child: every call fails, or hangs."""
        drivers.require_own_process(self._pid, self.title, "CUDA")
