"""A stricter metalcompute 0.2.9: its names and its limits, kernels executed on the CPU.

Launches have one dimension and whole groups, whose size only the kernel's attribute fixes; there
are no scalar arguments and no offsets; work is done when its handle, or a later one, is dropped.
"""

from __future__ import annotations

import ctypes
import operator
from collections import deque
from typing import Any, NamedTuple

from coregrad_simt import cuda, kernel, report, settings
from coregrad_simt.errors import CompileError, SimtError
from coregrad_simt.memory import Buffer as Memory
from coregrad_simt.metal import source

__all__ = ["Device", "error", "get_devices"]

WARP = 32
# Of a pipeline whose kernel does not pin it: no power of two, as on GPUs that lack registers.
UNPINNED = 832


class error(Exception):
    """Everything that goes wrong is one of these."""


class metalcompute_device(NamedTuple):
    """What is known about a device."""

    deviceName: str
    recommendedWorkingSetSize: int
    maxTransferRate: int
    hasUnifiedMemory: bool


def get_devices() -> tuple[metalcompute_device, ...]:
    count = settings.number("COREGRAD_SIMT_METAL_DEVICES", 1)
    return (metalcompute_device("Simulated Metal (coregrad_simt)", 8 << 30, 0, True),) * count


class Device:
    """A device, its queue of launches, and a fault that a dropped handle could not raise."""

    def __init__(self, index: int = -1, /) -> None:
        if index >= len(get_devices()) or not get_devices():
            raise error("Cannot create device")
        self._queue: deque[_Launch] = deque()
        self._fault: SimtError | None = None

    def __str__(self) -> str:
        return "metalcompute.Device(Simulated Metal (coregrad_simt))"

    def kernel(self, program: str, /) -> _Kernel:
        self._raise()
        return _Kernel(self, program)

    def buffer(self, length_or_buffer: Any, /) -> _Buffer:
        self._raise()
        return _buffer(self, length_or_buffer)

    def _raise(self) -> None:
        """Raise what happened in a launch whose handle was dropped."""
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    def _execute(self, last: _Launch) -> None:
        """Run what waits, in order, up to a launch."""
        while last in self._queue:
            try:
                self._queue.popleft().execute()
            except SimtError as fault:  # this is a destructor: the next call raises it
                self._fault = self._fault or fault
                self._queue.clear()


class _Kernel:
    """A compiled text."""

    def __init__(self, device: Device, program: str) -> None:
        if not isinstance(program, str):
            raise TypeError(f"a program is a str, not {type(program).__name__}")
        self._device = device
        try:
            self._functions = source.functions(settings.spoilt(program))
        except CompileError as problem:
            raise error(str(problem)) from None
        cuda.keep(program, "metal")

    def function(self, name: str, /) -> _Function:
        if name not in self._functions:
            raise error("Function not found")
        return _Function(self._device, self._functions[name])


class _Function:
    """A kernel. Calling it launches it and returns the handle."""

    def __init__(self, device: Device, function: source.Function) -> None:
        self._device, self._function = device, function

    def __call__(self, *arguments: Any) -> _Run:
        self._device._raise()
        return _Run(self._device, self._function, *arguments)


class _Buffer:
    """Memory of a device and the host; it has the buffer protocol, and nothing else."""

    _memory: Memory
    _device: Device

    def __len__(self) -> int:
        raise TypeError("object of type 'metalcompute.Buffer' has no len()")

    def __getitem__(self, index: Any) -> Any:
        raise TypeError("'metalcompute.Buffer' object is not subscriptable")

    def __setitem__(self, index: Any, value: Any) -> Any:
        raise TypeError("'metalcompute.Buffer' object does not support item assignment")


def _buffer(device: Device, given: Any) -> _Buffer:
    """A new buffer of a length, poisoned, or with a copy of what has the buffer protocol."""
    data = None
    try:
        data = memoryview(given)
    except TypeError:
        if isinstance(given, (bool, float)) or not hasattr(given, "__index__"):
            raise error("Unsupported input format") from None
    if data is not None and not data.c_contiguous:
        raise error("Unsupported input format")
    size = operator.index(given) if data is None else data.nbytes
    if size <= 0:
        raise error("Could not make buffer")
    memory = Memory(size)
    if data is not None:
        ctypes.memmove(memory.address, data.tobytes(), size)
    kind: Any = type("Buffer", (_Buffer, ctypes.c_ubyte * size), {})
    buffer: _Buffer = kind.from_address(memory.address)
    buffer._memory, buffer._device = memory, device
    return buffer


class _Launch:
    """What a handle waits for. It keeps the buffers alive, not the handle."""

    def __init__(self, it: kernel.Kernel, buffers: list[_Buffer], groups: int, size: int) -> None:
        self._kernel, self._buffers = it, buffers
        self._geometry = (groups, 1, 1), (size, 1, 1)

    def execute(self) -> None:
        memories = [buffer._memory for buffer in self._buffers]
        addresses = [memory.address for memory in memories]
        unique = list({id(memory): memory for memory in memories}.values())
        kernel.launch(self._kernel, addresses, unique, *self._geometry)


class _Run:
    """The handle of a launch. Dropping it waits for the launch and all before it."""

    _launch: _Launch | None = None

    def __init__(self, device: Device, function: source.Function, *arguments: Any) -> None:
        if len(arguments) < 2:
            raise error("Buffer not found")
        count, given = arguments[0], arguments[1:]
        if isinstance(count, bool) or not hasattr(count, "__index__"):
            raise error("First argument should be an integer kernel count")
        self._device, self._function = device, function
        size = function.pinned or settings.number("COREGRAD_SIMT_METAL_THREADS", UNPINNED)
        if size > source.THREADS or function.kernel.shared_bytes > source.SHARED_BYTES:
            raise error("Cannot create pipeline state")
        size = size // WARP * WARP
        if operator.index(count) <= 0 or size == 0:
            raise _fault(f"{function.kernel.name}: {count} threads in groups of {size}")
        groups = -(-operator.index(count) // size)
        buffers = [self._bound(i, buffer) for i, buffer in enumerate(given)]
        missing = set(function.buffers) - set(range(len(given)))
        if missing:
            raise _fault(f"{function.kernel.name}: buffer {min(missing)} is not given")
        self._launch = _Launch(function.kernel, buffers, groups, size)
        device._queue.append(self._launch)

    def _bound(self, index: int, given: Any) -> _Buffer:
        """A buffer, or for anything else a copy that lives as long as the launch."""
        name = f"{self._function.kernel.name}: buffer {index}"
        wanted = self._function.buffers.get(index)
        if wanted is None:
            raise _fault(f"{name} is given, the kernel has none of this index")
        buffer: _Buffer
        if isinstance(given, _Buffer):
            buffer = given
        else:
            if isinstance(given, (int, float)):
                raise _fault(f"{name}: the scalar {given!r} would be taken for a length")
            if wanted.writable:
                raise _fault(f"{name}: a copy is made of the argument, what is written is lost")
            buffer = _buffer(self._device, given)
        if buffer._device is not self._device:
            raise _fault(f"{name} belongs to another device")
        if buffer._memory.size < wanted.size:
            raise _fault(f"{name} has {buffer._memory.size} bytes, {wanted.size} are read")
        return buffer

    def __del__(self) -> None:
        if self._launch is not None:
            self._device._execute(self._launch)


def _fault(message: str) -> error:
    """A mistake that the real library does not notice; the report keeps it."""
    report.fault(message)
    return error(message)
