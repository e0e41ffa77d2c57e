"""cupy.cuda, as far as a backend needs it."""

from __future__ import annotations

from coregrad_simt.fakes.cupy.cuda import (
    compiler,
    cublas,
    device,
    driver,
    function,
    graph,
    memory,
    nvrtc,
    pinned_memory,
    runtime,
    stream,
)
from coregrad_simt.fakes.cupy.cuda.device import Device, get_cublas_handle, get_device_id
from coregrad_simt.fakes.cupy.cuda.function import Function, Module
from coregrad_simt.fakes.cupy.cuda.graph import Graph
from coregrad_simt.fakes.cupy.cuda.memory import (
    BaseMemory,
    Memory,
    MemoryPointer,
    MemoryPool,
    UnownedMemory,
    alloc,
    get_allocator,
    set_allocator,
)
from coregrad_simt.fakes.cupy.cuda.pinned_memory import (
    PinnedMemory,
    PinnedMemoryPointer,
    PinnedMemoryPool,
    alloc_pinned_memory,
)
from coregrad_simt.fakes.cupy.cuda.stream import (
    Event,
    Stream,
    get_current_stream,
    get_elapsed_time,
)
from coregrad_simt.fakes.cupy.machine import machine

__all__ = [
    "BaseMemory",
    "Device",
    "Event",
    "Function",
    "Graph",
    "Memory",
    "MemoryPointer",
    "MemoryPool",
    "Module",
    "PinnedMemory",
    "PinnedMemoryPointer",
    "PinnedMemoryPool",
    "Stream",
    "UnownedMemory",
    "alloc",
    "alloc_pinned_memory",
    "compiler",
    "cublas",
    "device",
    "driver",
    "function",
    "get_allocator",
    "get_cublas_handle",
    "get_current_stream",
    "get_device_id",
    "get_elapsed_time",
    "graph",
    "is_available",
    "memory",
    "nvrtc",
    "pinned_memory",
    "runtime",
    "set_allocator",
    "stream",
]


def is_available() -> bool:
    return machine.count > 0
