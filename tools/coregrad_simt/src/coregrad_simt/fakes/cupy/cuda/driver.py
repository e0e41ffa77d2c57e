"""cupy.cuda.driver: the errors of modules and launches."""

from __future__ import annotations

from coregrad_simt.fakes.cupy.statuses import DRIVER

__all__ = ["CUDADriverError"]


class CUDADriverError(RuntimeError):
    """An error of the CUDA driver, by its number."""

    def __init__(self, status: int, detail: str = "") -> None:
        self.status = status
        super().__init__(DRIVER[status] + (f" ({detail})" if detail else ""))
