"""What the Metal backend says of itself; importing this loads no driver."""

import platform
import sys

from coregrad.hookspecs import CONTRACT_VERSION, BackendInfo

__version__ = "0.1.0"


def metal_info() -> BackendInfo:
    """Apple's GPUs. Elsewhere than on Apple silicon the rank is low, so that none is looked for."""
    apple = sys.platform == "darwin" and platform.machine() == "arm64"
    return BackendInfo(
        name="metal",
        contract=CONTRACT_VERSION,
        impl="coregrad_metal.backend:Backend",
        rank="gpu" if apple else "software",
        summary="Apple's GPUs, through metalcompute (experimental)",
        needs="a Mac with Apple silicon, macOS 14 or newer, Python older than 3.14, and "
        "metalcompute (pip install metalcompute)",
    )
