"""cupy.cuda.memory: device memory, pointers into it, and the pool with its limit."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from coregrad_simt.fakes.cupy.cuda import runtime
from coregrad_simt.fakes.cupy.cuda.device import Device
from coregrad_simt.fakes.cupy.cuda.stream import Stream, get_current_stream
from coregrad_simt.fakes.cupy.machine import GRANULE, machine

__all__ = [
    "BaseMemory",
    "Memory",
    "MemoryPointer",
    "MemoryPool",
    "OutOfMemoryError",
    "UnownedMemory",
    "alloc",
    "get_allocator",
    "set_allocator",
]


class OutOfMemoryError(MemoryError):
    """There is no more memory, or not within the limit."""

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        text = f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes"
        super().__init__(text + (f", limit set to: {limit:,} bytes)." if limit else ")."))
        self._size, self._total, self._limit = size, total, limit


class BaseMemory:
    """Memory on a device."""

    ptr = 0
    size = 0
    device_id = -1

    @property
    def device(self) -> Device:
        return Device(self.device_id)


class Memory(BaseMemory):
    """Memory of its own; it is freed with the last reference."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.device_id = runtime.getDevice()
        queue = get_current_stream()._queue
        if queue.captured is not None and queue.mode != runtime.streamCaptureModeRelaxed:
            runtime.forbid_capture(queue)
        if size:
            allocation = machine.allocate(size, queue)
            self.ptr = allocation.buffer.address
            weakref.finalize(self, machine.release, allocation).atexit = False


class UnownedMemory(BaseMemory):
    """Somebody else's memory. ``owner`` is kept alive."""

    def __init__(self, ptr: int, size: int, owner: object, device_id: int = -1) -> None:
        runtime.memory_at(ptr, size, "UnownedMemory")
        self.ptr, self.size, self._owner = ptr, size, owner
        self.device_id = runtime.getDevice() if device_id < 0 else device_id


class MemoryPointer:
    """An address in a memory, which it keeps alive."""

    def __init__(self, mem: BaseMemory, offset: int) -> None:
        if not 0 <= offset <= mem.size:
            raise ValueError(f"an offset of {offset} in {mem.size} bytes")
        self.mem = mem
        self.ptr = mem.ptr + offset
        self.device_id = mem.device_id

    @property
    def device(self) -> Device:
        return self.mem.device

    def __int__(self) -> int:
        return self.ptr

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    def __sub__(self, offset: int) -> MemoryPointer:
        return self + -offset

    def copy_from_host(self, mem: Any, size: int) -> None:
        runtime.memcpy(self.ptr, _address(mem), size, runtime.memcpyHostToDevice)

    def copy_to_host(self, mem: Any, size: int) -> None:
        runtime.memcpy(_address(mem), self.ptr, size, runtime.memcpyDeviceToHost)

    def copy_from_host_async(self, mem: Any, size: int, stream: Stream | None = None) -> None:
        self._copy_async(self.ptr, _address(mem), size, runtime.memcpyHostToDevice, stream)

    def copy_to_host_async(self, mem: Any, size: int, stream: Stream | None = None) -> None:
        self._copy_async(_address(mem), self.ptr, size, runtime.memcpyDeviceToHost, stream)

    def copy_from_device(self, src: MemoryPointer, size: int) -> None:
        runtime.memcpy(self.ptr, src.ptr, size, runtime.memcpyDeviceToDevice)

    def copy_from_device_async(
        self, src: MemoryPointer, size: int, stream: Stream | None = None
    ) -> None:
        self._copy_async(self.ptr, src.ptr, size, runtime.memcpyDeviceToDevice, stream)

    def copy_from(self, mem: Any, size: int) -> None:
        if isinstance(mem, MemoryPointer):
            self.copy_from_device(mem, size)
        else:
            self.copy_from_host(mem, size)

    def copy_from_async(self, mem: Any, size: int, stream: Stream | None = None) -> None:
        if isinstance(mem, MemoryPointer):
            self.copy_from_device_async(mem, size, stream)
        else:
            self.copy_from_host_async(mem, size, stream)

    def memset(self, value: int, size: int) -> None:
        runtime.memset(self.ptr, value, size)

    def memset_async(self, value: int, size: int, stream: Stream | None = None) -> None:
        runtime.memsetAsync(self.ptr, value, size, (stream or get_current_stream()).ptr)

    def _copy_async(self, dst: int, src: int, size: int, kind: int, stream: Stream | None) -> None:
        runtime.memcpyAsync(dst, src, size, kind, (stream or get_current_stream()).ptr)


def _address(mem: Any) -> int:
    """A host address: an integer or a ctypes pointer. An array is none, also not for cupy."""
    value = getattr(mem, "value", mem)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"a host address is an integer or a ctypes.c_void_p, not {mem!r}")
    return value


class MemoryPool:
    """Counts as cupy's pool does, which keeps what is freed; each piece here is fresh, though, so
    that whoever relies on old contents or freed memory is found out."""

    def __init__(self, allocator: Callable[[int], MemoryPointer] | None = None) -> None:
        self._allocator = allocator
        self._used: Counter[int] = Counter()
        self._free: Counter[tuple[int, int]] = Counter()
        self._limits: dict[int, int] = {}

    def malloc(self, size: int) -> MemoryPointer:
        if size == 0:
            return MemoryPointer(Memory(0), 0)
        device = runtime.getDevice()
        rounded = -(-size // GRANULE) * GRANULE
        limit = self._limits.get(device, 0)
        if self._free[device, rounded]:
            self._free[device, rounded] -= 1
        elif self.total_bytes() + rounded > min(limit or machine.memory, machine.memory):
            self.free_all_blocks()
            if self.total_bytes() + rounded > min(limit or machine.memory, machine.memory):
                raise OutOfMemoryError(rounded, self.total_bytes(), limit)
        memory = Memory(size)
        self._used[device] += rounded
        weakref.finalize(memory, self._freed, device, rounded).atexit = False
        return MemoryPointer(memory, 0)

    def _freed(self, device: int, rounded: int) -> None:
        self._used[device] -= rounded
        self._free[device, rounded] += 1

    def free_all_blocks(self, stream: Stream | None = None) -> None:
        for key in [key for key in self._free if key[0] == runtime.getDevice()]:
            del self._free[key]

    def n_free_blocks(self) -> int:
        device = runtime.getDevice()
        return sum(n for (where, _), n in self._free.items() if where == device)

    def used_bytes(self) -> int:
        return self._used[runtime.getDevice()]

    def free_bytes(self) -> int:
        device = runtime.getDevice()
        return sum(size * n for (where, size), n in self._free.items() if where == device)

    def total_bytes(self) -> int:
        return self.used_bytes() + self.free_bytes()

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        if (size is None) == (fraction is None):
            raise ValueError("set_limit: give either size or fraction")
        limit = int(machine.memory * fraction) if fraction is not None else size
        self._limits[runtime.getDevice()] = limit or 0

    def get_limit(self) -> int:
        return self._limits.get(runtime.getDevice(), 0)


default_pool = MemoryPool()
_allocators: list[Callable[[int], MemoryPointer]] = []


def alloc(size: int) -> MemoryPointer:
    """Memory from the current allocator."""
    return get_allocator()(size)


def get_allocator() -> Callable[[int], MemoryPointer]:
    return _allocators[-1] if _allocators else default_pool.malloc


def set_allocator(allocator: Callable[[int], MemoryPointer] | None = None) -> None:
    _allocators[:] = [allocator] if allocator else [lambda size: MemoryPointer(Memory(size), 0)]
