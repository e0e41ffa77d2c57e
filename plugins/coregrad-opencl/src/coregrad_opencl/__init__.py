"""What the OpenCL backend says of itself; importing this loads no driver."""

from coregrad.hookspecs import CONTRACT_VERSION, BackendInfo

__version__ = "0.1.0"


def opencl_info() -> BackendInfo:
    """Any OpenCL device. The rank is that of a computer whose only OpenCL device is its CPU."""
    return BackendInfo(
        name="opencl",
        contract=CONTRACT_VERSION,
        impl="coregrad_opencl.backend:Backend",
        rank="software",
        summary="OpenCL devices, through pyopencl",
        needs="pyopencl (pip install pyopencl) and an OpenCL driver; the driver comes with that of "
        "a GPU, and pip install pocl-binary-distribution brings one for the CPU",
    )
