"""What the CUDA backend says of itself; importing this loads no driver."""

import os
import sys
from pathlib import Path

from coregrad.hookspecs import CONTRACT_VERSION, BackendInfo

__version__ = "0.1.0"


# What is there where NVIDIA's driver is: on Linux, in Windows' Linux, on Tegra boards.
DEVICE_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-ctrl-gpu", "/dev/nvgpu")


def has_driver() -> bool:
    """Whether this computer seems to have NVIDIA's driver; nothing is loaded to find out."""
    if sys.platform == "win32":
        return Path(os.environ.get("SYSTEMROOT", "C:/Windows"), "System32", "nvcuda.dll").exists()
    return any(Path(name).exists() for name in DEVICE_FILES)


def cuda_info() -> BackendInfo:
    """NVIDIA's GPUs. Where there is no driver the rank is low, so that none is looked for."""
    return BackendInfo(
        name="cuda",
        contract=CONTRACT_VERSION,
        impl="coregrad_cuda.backend:Backend",
        rank="gpu" if has_driver() else "software",
        summary="NVIDIA GPUs, through CuPy",
        needs="an NVIDIA GPU with its driver, and CuPy: pip install coregrad-cuda[cuda13], or "
        "coregrad-cuda[cuda12] where the driver is for CUDA 12",
    )
