"""One WebGPU device: its memory, its kernels, and the launches that wait to be submitted.

It asks for no more than every implementation of WebGPU grants, except for the size of buffers.
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import wgpu
from coregrad.errors import CompileError, DeviceError, OutOfMemory
from coregrad.hookspecs import Limits

from coregrad_webgpu import driver, wgsl

GROUPS = 65535  # work-groups along one dimension of a launch
PORTABLE = {  # WebGPU's defaults, as WGSL programs may assume them everywhere
    "max-storage-buffers-per-shader-stage": 8,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
    "max-compute-workgroup-storage-size": 16384,
    "max-compute-workgroups-per-dimension": GROUPS,
}
GROWN = ("max-storage-buffer-binding-size", "max-buffer-size")  # as much as there is
BATCH = 128  # launches per submit: enough to hide its cost, so few that the GPU starts early
KEPT_BYTES = 1 << 29  # of free buffers, kept for reuse
WRITTEN_BYTES = 1 << 25  # copied in, before we wait: until then the driver keeps its own copies
KEPT_GROUPS = 4096  # bind groups: a training step's launches repeat those of the step before


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory of the device; ``nbytes`` were asked for, ``size`` is what there is."""

    raw: Any
    nbytes: int
    size: int


@dataclass(frozen=True, eq=False)
class Kernel:
    """A pipeline, the layout of its buffers, and the grid iterations that a group runs."""

    pipeline: Any
    layout: Any
    each: int


class Device:
    """A device of wgpu-py. Launches collect in a command encoder until somebody has to wait."""

    def __init__(self, adapter: Any, index: int) -> None:
        limits = PORTABLE | {name: adapter.limits[name] for name in GROWN}
        self.name = f"webgpu:{index}" if index else "webgpu"
        self.title = f"{driver.title(adapter)}, wgpu-py {wgpu.__version__}"
        self.limits = Limits(
            dtypes=wgsl.DTYPES,
            max_buffers=PORTABLE["max-storage-buffers-per-shader-stage"],
            threads=PORTABLE["max-compute-invocations-per-workgroup"],
            local_bytes=PORTABLE["max-compute-workgroup-storage-size"],
            private_bytes=2048,  # a GPU keeps more than its registers hold in slow memory
            index_bits=32,
            float_mod=False,
        )
        try:
            self._gpu = adapter.request_device_sync(required_limits=limits)
        except RuntimeError as error:
            raise DeviceError(f"{self.title}: cannot be opened: {error}") from error
        self._largest = min(limits[name] for name in GROWN) // 4 * 4  # in words
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._freed: deque[Buffer] = deque()  # `free` may come in the middle of anything
        self._pool: dict[int, list[Any]] = {}
        self._pooled = 0
        self._word = self._create(4)
        self._written = 0  # bytes of copies in that the driver may still hold
        self._pass: Any = None
        self._encoder: Any = None
        self._waiting: list[Buffer] = []  # of the launches not submitted, one entry per argument
        self._launches = 0
        self._layouts: dict[tuple[bool, ...], Any] = {}
        self._kernels: dict[str, Kernel] = {}
        self._groups: dict[tuple[Any, ...], Any] = {}

    @contextmanager
    def _driver(self, doing: str) -> Iterator[None]:
        """The lock, in the process that opened the device, and the driver's errors as ours."""
        if os.getpid() != self._process:
            raise DeviceError(
                f"{self.name}: {doing} in a forked child of the process that opened the device; "
                "start processes with multiprocessing's 'spawn'"
            )
        with self._lock:
            try:
                yield
            except wgpu.GPUError as error:
                raise DeviceError(f"{self.title}: {doing}: {error}") from error

    # ---- memory --------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> Buffer:
        size = min(_rounded(nbytes), self._largest)
        if size < nbytes:
            raise OutOfMemory(
                f"{self.name}: {nbytes} bytes; one buffer of {self.title} holds {self._largest}"
            )
        with self._driver(f"allocate {nbytes} bytes"):
            self._file_freed()
            if self._pool.get(size):
                self._pooled -= size
                return Buffer(self._pool[size].pop(), nbytes, size)
            try:
                return Buffer(self._create(size), nbytes, size)
            except (wgpu.GPUOutOfMemoryError, wgpu.GPUInternalError):
                self._drop_pool()
            try:
                return Buffer(self._create(size), nbytes, size)
            except (wgpu.GPUOutOfMemoryError, wgpu.GPUInternalError) as error:
                raise OutOfMemory(
                    f"{self.name}: no room for {nbytes} bytes on {self.title}: {error}"
                ) from error

    def free(self, buffer: Buffer) -> None:
        self._freed.append(buffer)  # no lock: the garbage collector may be the caller

    def copy_in(self, buffer: Buffer, data: memoryview) -> None:
        data = data.cast("B")
        with self._driver(f"copy in {data.nbytes} bytes"):
            if any(b.raw is buffer.raw for b in self._waiting):
                self._submit()  # a write overtakes what is not submitted
            whole = data.nbytes // 4 * 4
            if whole:
                self._gpu.queue.write_buffer(buffer.raw, 0, data[:whole])
                self._written += whole
            if whole < data.nbytes:  # the device writes words: keep the last one's other bytes
                last = bytearray(self._read(buffer, whole, 4))
                last[: data.nbytes - whole] = data[whole:]
                self._gpu.queue.write_buffer(buffer.raw, whole, last)
            if self._written > WRITTEN_BYTES:
                self._wait()

    def copy_out(self, buffer: Buffer, into: memoryview) -> None:
        into = into.cast("B")
        with self._driver(f"copy out {into.nbytes} bytes"):
            into[:] = self._read(buffer, 0, -(-into.nbytes // 4) * 4)[: into.nbytes]

    def _read(self, buffer: Buffer, start: int, nbytes: int) -> memoryview:
        self._submit()
        return memoryview(self._gpu.queue.read_buffer(buffer.raw, start, nbytes)).cast("B")

    def _create(self, size: int) -> Any:
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        return self._gpu.create_buffer(size=size, usage=usage)

    def _file_freed(self) -> None:
        """Free buffers go to the pool at once: commands run in order, so later users wait."""
        while self._freed:
            buffer = self._freed.popleft()
            self._pool.setdefault(buffer.size, []).append(buffer.raw)
            self._pooled += buffer.size
        if self._pooled > KEPT_BYTES:
            self._drop_pool()

    def _drop_pool(self) -> None:
        self._submit()
        self._groups.clear()  # they hold buffers
        self._pool.clear()
        self._pooled = 0

    # ---- kernels -------------------------------------------------------------------------------

    def compile(self, program: str) -> Kernel:
        # Nothing is kept on disk: WebGPU hands out no machine code, and drivers keep their own.
        with self._driver("compile"):
            if program not in self._kernels:
                self._kernels[program] = self._build(program)
            return self._kernels[program]

    def _build(self, program: str) -> Kernel:
        writable = tuple(a == "read_write" for a in re.findall(r"var<storage, (\w+)>", program))
        layout = self._layout(writable)
        each = re.match(r"// \w+: (\d+) per group", program)
        assert each is not None, program
        try:
            pipeline = self._gpu.create_compute_pipeline(
                layout=self._gpu.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={"module": self._gpu.create_shader_module(code=program)},
            )
        except (wgpu.GPUError, wgpu.GPUPipelineError) as error:
            raise CompileError(f"{self.title}: {error}\n{program}") from error
        return Kernel(pipeline, layout, int(each[1]))

    def _layout(self, writable: tuple[bool, ...]) -> Any:
        """One object per sequence of buffer kinds, so that kernels share their bind groups."""
        if writable not in self._layouts:
            kinds = ["storage" if w else "read-only-storage" for w in writable]
            entries = [
                {"binding": i, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
                for i, kind in enumerate(kinds)
            ]
            self._layouts[writable] = self._gpu.create_bind_group_layout(entries=entries)
        return self._layouts[writable]

    # ---- launches ------------------------------------------------------------------------------

    def launch(self, compiled: Kernel, buffers: Sequence[Buffer], grid: int) -> None:
        groups = -(-grid // compiled.each)
        with self._driver(f"launch over {grid}"):
            bound = self._bind(compiled.layout, buffers)
            if self._pass is None:
                self._encoder = self._gpu.create_command_encoder()
                self._pass = self._encoder.begin_compute_pass()
            self._pass.set_pipeline(compiled.pipeline)
            self._pass.set_bind_group(0, bound)
            self._pass.dispatch_workgroups(min(groups, GROUPS), -(-groups // GROUPS))
            self._waiting += buffers
            self._launches += 1
            if self._launches >= BATCH:
                self._submit()

    def synchronize(self) -> None:
        with self._driver("synchronize"):
            self._wait()

    def _wait(self) -> None:
        self._submit()
        self._gpu.queue.read_buffer(self._word)  # as wgpu-py 0.32's own waiting raises TypeError
        self._written = 0

    def _bind(self, layout: Any, buffers: Sequence[Buffer]) -> Any:
        key = (id(layout), *[id(b.raw) for b in buffers])  # both live as long as the group
        if key not in self._groups:
            if len(self._groups) >= KEPT_GROUPS:
                self._groups.clear()
            entries = [
                {"binding": i, "resource": {"buffer": b.raw, "offset": 0, "size": b.size}}
                for i, b in enumerate(buffers)
            ]
            group = self._gpu.create_bind_group(layout=layout, entries=entries)
            self._groups[key] = group, [b.raw for b in buffers]
        return self._groups[key][0]

    def _submit(self) -> None:
        if self._pass is None:
            return
        waiting, encoder = self._pass, self._encoder
        self._pass = self._encoder = None
        self._waiting, self._launches = [], 0
        waiting.end()
        self._gpu.queue.submit([encoder.finish()])


def _rounded(nbytes: int) -> int:
    """A size that others will ask for too: at most a quarter is given away."""
    step = max(256, 1 << max(0, nbytes.bit_length() - 3))
    return -(-nbytes // step) * step
