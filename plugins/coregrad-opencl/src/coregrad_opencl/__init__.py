"""What the OpenCL backend says of itself; importing this loads no driver."""

import sys
from pathlib import Path

from coregrad.hookspecs import CONTRACT_VERSION, BackendInfo

__version__ = "0.1.0"


def opencl_info() -> BackendInfo:
    """Any OpenCL device. Where there may be a GPU, ``Backend.rank`` asks the driver."""
    return BackendInfo(
        name="opencl",
        contract=CONTRACT_VERSION,
        impl="coregrad_opencl.backend:Backend",
        rank="gpu" if _may_have_a_gpu() else "software",
        summary="OpenCL devices, through pyopencl",
        needs="pyopencl (pip install pyopencl) and an OpenCL driver; the driver comes with that of "
        "a GPU, and pip install pocl-binary-distribution brings one for the CPU",
    )


def _may_have_a_gpu() -> bool:
    """Whether this computer may have a GPU, as far as can be told without a driver: Linux has a
    file for each."""
    if not sys.platform.startswith("linux"):
        return True
    devices = Path("/dev")
    known = (devices / "nvidiactl", devices / "kfd")
    return any(path.exists() for path in known) or any(devices.glob("dri/renderD*"))
