"""A stricter cupy: its names, kernels executed on the CPU, work that waits until it is waited for.

Only what a backend of fused kernels uses is here; what the real library does not have is not here
either (a test compares). What was executed is in ``coregrad_simt.report``.
"""

from __future__ import annotations

from coregrad_simt.fakes.cupy import cuda
from coregrad_simt.fakes.cupy.cuda.memory import MemoryPool, default_pool
from coregrad_simt.fakes.cupy.cuda.pinned_memory import PinnedMemoryPool
from coregrad_simt.fakes.cupy.raw import RawKernel, RawModule

__all__ = [
    "RawKernel",
    "RawModule",
    "cuda",
    "get_default_memory_pool",
    "get_default_pinned_memory_pool",
]
__version__ = "14.2.0+simt"

_pinned_pool = PinnedMemoryPool()


def get_default_memory_pool() -> MemoryPool:
    return default_pool


def get_default_pinned_memory_pool() -> PinnedMemoryPool:
    return _pinned_pool
