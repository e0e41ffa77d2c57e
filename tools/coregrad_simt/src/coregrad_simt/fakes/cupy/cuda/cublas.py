"""cupy.cuda.cublas: products of matrices, column by column, every dimension checked.

NumPy computes them, in the type that cuBLAS accumulates in: no generated text is executed here, and
the report counts these calls apart.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from coregrad_simt import report
from coregrad_simt.fakes.cupy.cuda import runtime
from coregrad_simt.fakes.cupy.cuda.device import CUBLAS_HANDLE
from coregrad_simt.fakes.cupy.machine import Allocation, Queue, machine, report_fault
from coregrad_simt.fakes.cupy.statuses import CUBLAS

__all__ = [
    "CUBLAS_COMPUTE_32F",
    "CUBLAS_COMPUTE_32F_FAST_TF32",
    "CUBLAS_COMPUTE_32F_PEDANTIC",
    "CUBLAS_COMPUTE_64F",
    "CUBLAS_DEFAULT_MATH",
    "CUBLAS_GEMM_DEFAULT",
    "CUBLAS_GEMM_DFALT",
    "CUBLAS_OP_N",
    "CUBLAS_OP_T",
    "CUBLAS_POINTER_MODE_HOST",
    "CUBLASError",
    "create",
    "destroy",
    "dgemm",
    "gemmEx",
    "gemmStridedBatchedEx",
    "getMathMode",
    "getPointerMode",
    "getStream",
    "getVersion",
    "setMathMode",
    "setPointerMode",
    "setStream",
    "sgemm",
    "sgemmStridedBatched",
]

CUBLAS_OP_N, CUBLAS_OP_T = 0, 1
CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_PEDANTIC, CUBLAS_COMPUTE_64F = 68, 69, 70
CUBLAS_COMPUTE_32F_FAST_TF32 = 77
CUBLAS_GEMM_DEFAULT = CUBLAS_GEMM_DFALT = -1
CUBLAS_POINTER_MODE_HOST = CUBLAS_DEFAULT_MATH = 0
MATH_MODES = {0, 1, 2, 3}
KINDS = (runtime.CUDA_R_32F, runtime.CUDA_R_64F, runtime.CUDA_R_16F, runtime.CUDA_R_16BF)
F32, F64, F16, BF16 = KINDS
TYPES: dict[int, Any] = {
    F32: np.dtype(np.float32),
    F64: np.dtype(np.float64),
    F16: np.dtype(np.float16),
    BF16: np.dtype(np.uint16),  # its bits
}
# What cuBLAS multiplies: the types of A and B, and of C, and what it may compute them in.
FLOATS = (CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_PEDANTIC, CUBLAS_COMPUTE_32F_FAST_TF32)
PRODUCTS: dict[tuple[int, int], tuple[int, ...]] = {
    (F32, F32): FLOATS,
    (F16, F16): FLOATS,
    (F16, F32): FLOATS,
    (BF16, BF16): FLOATS,
    (BF16, F32): FLOATS,
    (F64, F64): (CUBLAS_COMPUTE_64F,),
}


class CUBLASError(RuntimeError):
    """An error of cuBLAS, by its number."""

    def __init__(self, status: int, detail: str = "") -> None:
        self.status = status
        super().__init__(CUBLAS[status] + (f" ({detail})" if detail else ""))


@dataclass
class _Handle:
    device: int
    stream: int = 0
    math: int = 0


_handles: dict[int, _Handle] = {}


def _find(handle: int) -> _Handle:
    device = handle - CUBLAS_HANDLE
    if handle not in _handles and 0 <= device < machine.count:
        _handles[handle] = _Handle(device)
    if handle not in _handles:
        raise CUBLASError(1, f"handle {handle:#x}")
    return _handles[handle]


def create() -> int:
    handle = 0xC0B1A5 + len(_handles)
    _handles[handle] = _Handle(runtime.getDevice())
    return handle


def destroy(handle: int) -> None:
    _find(handle)
    del _handles[handle]


def getVersion(handle: int) -> int:
    _find(handle)
    return 130000


def setStream(handle: int, stream: int) -> None:
    runtime.queue_of(stream)
    _find(handle).stream = stream


def getStream(handle: int) -> int:
    return _find(handle).stream


def setMathMode(handle: int, mode: int) -> None:
    if mode not in MATH_MODES:
        raise CUBLASError(7, f"math mode {mode}")
    _find(handle).math = mode


def getMathMode(handle: int) -> int:
    return _find(handle).math


def setPointerMode(handle: int, mode: int) -> None:
    _find(handle)
    if mode != CUBLAS_POINTER_MODE_HOST:
        raise NotImplementedError("the fake reads alpha and beta on the host only")


def getPointerMode(handle: int) -> int:
    _find(handle)
    return CUBLAS_POINTER_MODE_HOST


# ---- the products --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Matrix:
    """``rows`` x ``columns`` elements, a column after every ``ld`` elements, ``count`` times."""

    name: str
    address: int
    kind: int
    rows: int
    columns: int
    ld: int
    stride: int
    count: int

    def memory(self, device: int) -> Allocation:
        """Where it lies. Raises what cuBLAS raises, or a fault if it reaches outside."""
        if self.ld < max(1, self.rows):
            raise CUBLASError(7, f"ld{self.name} is {self.ld}, there are {self.rows} rows")
        size = TYPES[self.kind].itemsize
        last = (self.count - 1) * self.stride + (self.columns - 1) * self.ld + self.rows
        allocation = machine.find(self.address)
        end = allocation.buffer.address + allocation.buffer.size if allocation else 0
        if allocation is None or allocation.device != device:
            raise report_fault(f"gemm: {self.name} is no memory of device {device}")
        if self.address + last * size > end or self.address % size:
            raise report_fault(f"gemm: {self.name} reaches outside its memory, or is misaligned")
        return allocation

    def array(self) -> Any:
        """It as an array: batch, row, column."""
        kind = TYPES[self.kind]
        last = (self.count - 1) * self.stride + (self.columns - 1) * self.ld + self.rows
        memory: Any = (ctypes.c_uint8 * (last * kind.itemsize)).from_address(self.address)
        flat = np.frombuffer(memory, kind)
        steps = tuple(n * kind.itemsize for n in (self.stride, 1, self.ld))
        shape = self.count, self.rows, self.columns
        return np.lib.stride_tricks.as_strided(flat, shape, steps)


def gemmStridedBatchedEx(
    handle: int, transa: int, transb: int, m: int, n: int, k: int,
    alpha: int, A: int, Atype: int, lda: int, strideA: int,
    B: int, Btype: int, ldb: int, strideB: int,
    beta: int, C: int, Ctype: int, ldc: int, strideC: int,
    batchCount: int, computeType: int, algo: int,
) -> None:  # fmt: skip
    if min(m, n, k, batchCount) < 0 or {transa, transb} - {CUBLAS_OP_N, CUBLAS_OP_T}:
        raise CUBLASError(7, f"{transa, transb, m, n, k, batchCount}")
    if Atype != Btype or computeType not in PRODUCTS.get((Atype, Ctype), ()):
        raise CUBLASError(15, f"types {Atype, Btype, Ctype} computed in {computeType}")
    state = _find(handle)
    queue = runtime.queue_of(state.stream)
    if queue.device != runtime.getDevice() or queue.device != state.device:
        raise CUBLASError(7, "the handle's stream is another device's")
    if 0 in (m, n, batchCount):
        return
    a_rows, a_columns = (k, m) if transa else (m, k)
    b_rows, b_columns = (n, k) if transb else (k, n)
    a = _Matrix("a", A, Atype, a_rows, a_columns, lda, strideA, batchCount)
    b = _Matrix("b", B, Btype, b_rows, b_columns, ldb, strideB, batchCount)
    c = _Matrix("c", C, Ctype, m, n, ldc, strideC, batchCount)
    if batchCount > 1 and strideC < ldc * (n - 1) + m:
        raise CUBLASError(7, f"strideC {strideC}: the results overlap")
    wide = np.float64 if computeType == CUBLAS_COMPUTE_64F else np.float32
    factors = _host(alpha, wide), _host(beta, wide)
    _multiply(queue, a, b, c, bool(transa), bool(transb), factors, wide)


def _multiply(
    queue: Queue,
    a: _Matrix,
    b: _Matrix,
    c: _Matrix,
    turn_a: bool,
    turn_b: bool,
    factors: tuple[Any, Any],
    wide: Any,
) -> None:
    uses = [matrix.memory(queue.device) for matrix in (a, b, c)]
    alpha, beta = factors

    def run(_: Any) -> None:
        report.called("cublas")
        left, right = _widened(a, wide), _widened(b, wide)
        left = left.swapaxes(1, 2) if turn_a else left
        right = right.swapaxes(1, 2) if turn_b else right
        result = alpha * np.matmul(left, right)
        if beta:  # C is not read otherwise, so that a NaN in it does not matter
            result = result + beta * _widened(c, wide)
        _narrowed(c, result)

    queue.push("gemm", run, uses)


def _host(address: int, kind: Any) -> Any:
    """A scalar on the host."""
    if machine.find(int(address)):
        raise report_fault("gemm: alpha or beta is device memory; the pointer mode is host")
    return np.frombuffer(ctypes.string_at(int(address), np.dtype(kind).itemsize), kind)[0]


def _widened(matrix: _Matrix, wide: Any) -> Any:
    array = matrix.array()
    if matrix.kind == BF16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(wide)


def _narrowed(matrix: _Matrix, result: Any) -> None:
    if matrix.kind != BF16:
        with np.errstate(over="ignore"):
            matrix.array()[...] = result
        return
    bits = np.ascontiguousarray(result, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    matrix.array()[...] = np.where(np.isnan(result), 0x7FFF, rounded).astype(np.uint16)


def gemmEx(
    handle: int, transa: int, transb: int, m: int, n: int, k: int,
    alpha: int, A: int, Atype: int, lda: int, B: int, Btype: int, ldb: int,
    beta: int, C: int, Ctype: int, ldc: int, computeType: int, algo: int,
) -> None:  # fmt: skip
    gemmStridedBatchedEx(
        handle, transa, transb, m, n, k, alpha, A, Atype, lda, 0, B, Btype, ldb, 0,
        beta, C, Ctype, ldc, 0, 1, computeType, algo,
    )  # fmt: skip


def sgemmStridedBatched(
    handle: int, transa: int, transb: int, m: int, n: int, k: int,
    alpha: int, A: int, lda: int, strideA: int, B: int, ldb: int, strideB: int,
    beta: int, C: int, ldc: int, strideC: int, batchCount: int,
) -> None:  # fmt: skip
    gemmStridedBatchedEx(
        handle, transa, transb, m, n, k, alpha, A, F32, lda, strideA, B, F32, ldb, strideB,
        beta, C, F32, ldc, strideC, batchCount, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT,
    )  # fmt: skip


def sgemm(
    handle: int, transa: int, transb: int, m: int, n: int, k: int,
    alpha: int, A: int, lda: int, B: int, ldb: int, beta: int, C: int, ldc: int,
) -> None:  # fmt: skip
    sgemmStridedBatched(
        handle, transa, transb, m, n, k, alpha, A, lda, 0, B, ldb, 0, beta, C, ldc, 0, 1
    )


def dgemm(
    handle: int, transa: int, transb: int, m: int, n: int, k: int,
    alpha: int, A: int, lda: int, B: int, ldb: int, beta: int, C: int, ldc: int,
) -> None:  # fmt: skip
    gemmStridedBatchedEx(
        handle, transa, transb, m, n, k, alpha, A, F64, lda, 0, B, F64, ldb, 0,
        beta, C, F64, ldc, 0, 1, CUBLAS_COMPUTE_64F, CUBLAS_GEMM_DEFAULT,
    )  # fmt: skip
