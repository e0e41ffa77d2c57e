"""What coregrad's own backends say of themselves; importing this loads neither LLVM nor NumPy."""

from coregrad.hookspecs import CONTRACT_VERSION, BackendInfo

__version__ = "0.1.0"


def cpu_info() -> BackendInfo:
    """The CPU through LLVM: compiled, vectorised and threaded kernels."""
    return BackendInfo(
        name="cpu",
        contract=CONTRACT_VERSION,
        impl="coregrad_cpu.llvm.backend:Backend",
        rank="cpu",
        summary="the CPU, through LLVM",
        needs="llvmlite (pip install llvmlite); where it has no wheel, use the device 'numpy'",
    )


def numpy_info() -> BackendInfo:
    """The reference: every op computed by NumPy, slow and easy to check."""
    return BackendInfo(
        name="numpy",
        contract=CONTRACT_VERSION,
        impl="coregrad_cpu.reference:Backend",
        rank="reference",
        summary="the CPU, through NumPy; the reference for all others",
    )
