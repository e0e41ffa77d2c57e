"""Which adapters wgpu-py finds, and which of them are worth opening; it opens none."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import wgpu
from coregrad.errors import BackendUnavailable

ORDER = ("DiscreteGPU", "IntegratedGPU", "Unknown", "CPU")


@lru_cache(maxsize=1)
def adapters() -> tuple[Any, ...]:
    """The adapters, GPUs first. Raises BackendUnavailable, with the reason, where there is none.

    OpenGL is what a driver offers besides its better interface: it is left out where any other
    is there, as one GPU would otherwise be two devices.
    """
    try:
        found = wgpu.gpu.enumerate_adapters_sync()
    except RuntimeError as error:
        raise BackendUnavailable(f"webgpu: wgpu-py {wgpu.__version__}: {error}") from error
    better = [a for a in found if a.info["backend_type"] != "OpenGL"]
    usable = sorted(better or found, key=_place)
    if not usable:
        raise BackendUnavailable(
            f"webgpu: wgpu-py {wgpu.__version__} finds no adapter; install a driver for Vulkan, "
            "Metal or Direct3D 12 (on Linux without a GPU: Mesa's lavapipe)"
        )
    return tuple(usable)


def is_software(adapter: Any) -> bool:
    """Whether the CPU does what a GPU should."""
    return bool(adapter.info["adapter_type"] == "CPU")


def title(adapter: Any) -> str:
    """The adapter's name, its interface and its driver, for people and for certificates."""
    info = adapter.info
    return f"{info['device']}, {info['backend_type']}, {info['description']}".strip(", ")


def _place(adapter: Any) -> int:
    kind = adapter.info["adapter_type"]
    return ORDER.index(kind) if kind in ORDER else ORDER.index("Unknown")
