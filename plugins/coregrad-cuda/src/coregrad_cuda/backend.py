"""The contract's door: which GPUs there are, the hooks in CUDA C++, and cuBLAS's claim."""

from __future__ import annotations

from typing import Any

from coregrad import config, drivers
from coregrad.cstyle import CStyle
from coregrad.errors import CoregradError
from coregrad.ir.kernel import Kernel
from coregrad_cuda import driver
from coregrad_cuda.device import Device
from coregrad_cuda.gemm import Gemm, claimed
from coregrad_cuda.words import CUDA

WAYS = ("", "tf32", "kernels")  # of COREGRAD_CUDA_MATMUL


class Backend(CStyle):
    """The hooks are the C family's; the devices CUDA's, in CUDA's order."""

    words = CUDA

    def device_count(self) -> int:
        """How many GPUs there are; raises BackendUnavailable with the reason for none."""
        return driver.device_count()

    def open_device(self, index: int) -> Device:
        """Open a GPU."""
        driver.device_count()  # says what is missing
        return Device(driver.Driver(index), f"cuda:{index}" if index else "cuda")

    def rank(self) -> str:
        """An emulated GPU is no reason to prefer this backend."""
        driver.device_count()
        return "software" if drivers.is_emulated("cuda") else "gpu"

    def contraction(self, kernel: Kernel, emitter: Any) -> Gemm | None:
        """A plain product of matrices, done by cuBLAS; None for any other kernel."""
        way = config.get("COREGRAD_CUDA_MATMUL")
        if way not in WAYS:
            raise CoregradError(
                f"COREGRAD_CUDA_MATMUL={way!r} is none of '' (cuBLAS), 'tf32' and 'kernels'"
            )
        if way == "kernels" or not driver.has_cublas():
            return None
        return claimed(kernel, tf32=way == "tf32")
