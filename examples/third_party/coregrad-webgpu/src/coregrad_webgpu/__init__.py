"""What coregrad-webgpu says of itself. This module is light: it imports no driver."""

from coregrad.hookspecs import BackendInfo

__version__ = "0.1.0"


def backend_info() -> BackendInfo:
    """The device `webgpu`; its code is imported when somebody uses it."""
    return BackendInfo(
        name="webgpu",
        contract=(1, 0),  # the contract this plugin was written for, not the one installed
        impl="coregrad_webgpu.backend:Backend",
        rank="gpu",  # Backend.rank says "software" where only a CPU runs WebGPU
        summary="WebGPU, through wgpu-py: Vulkan, Metal, Direct3D 12 or OpenGL",
        needs="python -m pip install wgpu, and a driver (on Linux without a GPU: Mesa's lavapipe)",
    )
