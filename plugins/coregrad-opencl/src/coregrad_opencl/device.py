"""One OpenCL device as the contract's Device: memory, programs, launches, all in one queue."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from coregrad import config, drivers
from coregrad.buffers import Buffer, Pool
from coregrad.dtypes import ALL, float64
from coregrad.errors import VerifyError
from coregrad.hookspecs import Limits
from coregrad_opencl.driver import Found, errors_of
from coregrad_opencl.programs import Program, Programs

THREADS = 256  # every GPU has groups of that many
LOCAL_BYTES = 32768  # what a GPU has at least (OpenCL 1.2, CL_DEVICE_LOCAL_MEM_SIZE)
KEEP_SHARE = 4  # of freed memory one part in four of the device's is kept for reuse
POINTER = 8  # bytes of a buffer argument
GROUPS = 4  # per compute unit, where there is work enough: fewer leave units idle at the end

# Each device has a lock, as a kernel's arguments are state of the driver's object. Oclgrind
# computes wrongly or crashes when two threads call it at all: its devices share this one.
_simulator = threading.RLock()


class Device:
    """A device with its context and its one in-order queue."""

    def __init__(self, found: Found, name: str) -> None:
        cl_device = found.device
        self.name = name
        self.title = f"{name} ({found.title}, driver {cl_device.driver_version})"
        self.limits = limits(found)
        self._found = found
        self._pid = os.getpid()
        self._lock = _simulator if found.is_simulator else threading.RLock()
        self._units = cl_device.max_compute_units
        self._smallest = 1 if found.is_cpu else 32  # threads of a group that run as one
        self._mapped = is_mapped(found)
        self._timed = config.debug() >= 2
        with self._lock, errors_of(self.title, "opening"):
            self._context = cl.Context([cl_device])
            timing = {"properties": cl.command_queue_properties.PROFILING_ENABLE}
            self._queue = cl.CommandQueue(
                self._context, cl_device, **(timing if self._timed else {})
            )
        self._last: Any = None
        room = cl_device.global_mem_size
        if found.is_simulator:  # exact sizes, as it is there to see what is outside
            self.pool = Pool(self._new_buffer, self.synchronize, room, sizes=int)
        else:
            self.pool = Pool(self._new_buffer, self.synchronize, room // KEEP_SHARE)
        folder = None if found.is_simulator else config.cache_folder("opencl")
        self.programs = Programs(self._context, found, options(found), self.title, folder)

    # -- memory --------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> Buffer:
        """A buffer of at least ``nbytes``."""
        self._require_own_process()
        with self._lock:
            return self.pool.take(nbytes)

    def _new_buffer(self, size: int) -> cl.Buffer:
        with errors_of(self.title, f"allocating {size} bytes"):
            return cl.Buffer(self._context, cl.mem_flags.READ_WRITE, size)

    def free(self, buffer: Buffer) -> None:
        """Give a buffer back."""
        self.pool.give(buffer)

    def copy_in(self, buffer: Buffer, data: memoryview) -> None:
        """Copy host bytes to the start of the buffer; done when it returns."""
        self._require_own_process()
        if data.nbytes:
            self._copy(buffer, np.frombuffer(data.cast("B"), np.uint8), cl.map_flags.WRITE)

    def copy_out(self, buffer: Buffer, into: memoryview) -> None:
        """Copy the start of the buffer to host bytes."""
        self._require_own_process()
        if into.nbytes:
            self._copy(buffer, np.frombuffer(into.cast("B"), np.uint8), cl.map_flags.READ)

    def _copy(self, buffer: Buffer, host: Any, direction: cl.map_flags) -> None:
        if buffer.raw is None or host.size > buffer.size:
            raise VerifyError(f"copy: {host.size} bytes of a buffer of {buffer.size} (or freed)")
        inwards = direction == cl.map_flags.WRITE
        with self._lock, errors_of(self.title, f"copying {host.size} bytes"):
            if self._mapped:  # the buffer is host memory: look at it there
                self._copy_mapped(buffer, host, direction)
            elif inwards:
                cl.enqueue_copy(
                    self._queue, buffer.raw, self._whole(buffer, host), is_blocking=True
                )
            else:
                cl.enqueue_copy(self._queue, host, buffer.raw, is_blocking=True)

    def _whole(self, buffer: Buffer, host: Any) -> Any:
        """The bytes to write. Oclgrind takes what kernels store behind the end of the last write
        for uninitialised, also in a buffer that is made later in its place: write all of it."""
        if not self._found.is_simulator or host.size == buffer.size:
            return host
        content = np.empty(buffer.size, np.uint8)
        cl.enqueue_copy(self._queue, content, buffer.raw, is_blocking=True)
        content[: host.size] = host
        return content

    def _copy_mapped(self, buffer: Buffer, host: Any, direction: cl.map_flags) -> None:
        mapped, _ = cl.enqueue_map_buffer(
            self._queue, buffer.raw, direction, 0, host.shape, host.dtype, is_blocking=True
        )
        try:
            if direction == cl.map_flags.WRITE:
                mapped[:] = host
            else:
                host[:] = mapped
        finally:
            mapped.base.release(self._queue)

    # -- kernels -------------------------------------------------------------------------------

    def compile(self, program: str) -> Program:
        """The program of a finished frame's text."""
        self._require_own_process()
        with self._lock:
            return self.programs.program(program)

    def launch(self, compiled: Program, buffers: Sequence[Buffer], grid: int) -> None:
        """Queue a kernel over its grid."""
        self._require_own_process()
        with self._lock, errors_of(self.title, f"kernel {compiled.name}"):
            try:
                self._enqueue(compiled, buffers, grid)
            except cl.MemoryError:  # some drivers make memory only when a kernel first needs it
                self.pool.release()
                self._enqueue(compiled, buffers, grid)

    def _enqueue(self, compiled: Program, buffers: Sequence[Buffer], grid: int) -> None:
        total, threads = compiled.sizes.get(grid) or self._sizes(compiled, grid)
        for position, buffer in enumerate(buffers):
            compiled.kernel.set_arg(position, buffer.raw)
        self._last = cl.enqueue_nd_range_kernel(self._queue, compiled.kernel, (total,), (threads,))

    def _sizes(self, compiled: Program, grid: int) -> tuple[int, int]:
        """Threads in all and of a group. Independent items come in groups of many, but such that
        there are several groups for each unit."""
        threads = compiled.shape.threads
        if not threads:
            wanted = max(self._smallest, grid // (GROUPS * self._units))
            sizes = compiled.shape.sizes(min(self.limits.threads, compiled.most))
            threads = min(sizes, key=lambda size: max(size, wanted) / min(size, wanted))
        groups = grid if compiled.shape.threads else -(-grid // threads)
        compiled.sizes[grid] = groups * threads, threads
        return compiled.sizes[grid]

    def synchronize(self) -> None:
        """Return when every launch so far has finished."""
        self._require_own_process()
        with self._lock, errors_of(self.title, "waiting"):
            self._queue.finish()

    def elapsed(self) -> float | None:
        """Seconds that the last launch took, by the device's clock; None unless DEBUG was 2 or
        more when the device was opened."""
        if not self._timed or self._last is None:
            return None
        with self._lock, errors_of(self.title, "timing"):
            self._last.wait()
            return float(self._last.profile.end - self._last.profile.start) * 1e-9

    def _require_own_process(self) -> None:
        """No OpenCL driver works in a forked child: calls hang there, for good."""
        drivers.require_own_process(self._pid, self.title, "OpenCL")


def is_mapped(found: Found) -> bool:
    """Whether buffers are host memory, to be looked at where they are. Oclgrind keeps all it maps,
    and does not see what is written there."""
    return not found.is_simulator and (found.is_cpu or bool(found.device.host_unified_memory))


def limits(found: Found) -> Limits:
    """What a device can hold. With COREGRAD_OPENCL_LIMITS=gpu a CPU is treated as a GPU: it takes
    no more local memory than one has, and the kernels made for it are those made for a GPU."""
    device = found.device
    as_gpu = config.get("COREGRAD_OPENCL_LIMITS") == "gpu"
    lacking = set() if device.double_fp_config else {float64}
    local = device.local_mem_size
    return Limits(
        dtypes=frozenset(ALL) - lacking,
        max_buffers=min(127, device.max_parameter_size // POINTER),
        threads=min(THREADS, device.max_work_group_size),
        local_bytes=min(local, LOCAL_BYTES) if as_gpu else local,
        host_memory=is_mapped(found) and not as_gpu,
        fast_local=as_gpu or device.local_mem_type == cl.device_local_mem_type.LOCAL,
    )


def options(found: Found) -> list[str]:
    """How texts are built: with IEEE's rules, and with what this device does natively."""
    device = found.device
    config_ = cl.device_fp_config
    out = ["-cl-std=CL1.2"]
    if found.is_simulator:
        # Optimised code would hide what the simulator should see.
        out += ["-cl-opt-disable", "-DSIMULATOR"]
    if device.single_fp_config & config_.CORRECTLY_ROUNDED_DIVIDE_SQRT:
        out.append("-cl-fp32-correctly-rounded-divide-sqrt")
    if found.is_cpu:
        out.append("-DOWN_FUNCTIONS")
    if "cl_khr_fp16" in device.extensions.split() and _is_ieee(device.half_fp_config):
        out.append("-DNATIVE_HALF")
    return out


def _is_ieee(abilities: int) -> bool:
    """Whether halves are rounded to nearest and not flushed to zero."""
    wanted = cl.device_fp_config.DENORM | cl.device_fp_config.ROUND_TO_NEAREST
    return abilities & wanted == wanted
