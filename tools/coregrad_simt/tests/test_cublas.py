"""The fake cuBLAS multiplies columns, checks every dimension, and refuses what cuBLAS refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coregrad_simt import report
from coregrad_simt.errors import Fault
from coregrad_simt.fakes import cupy

cuda, cublas = cupy.cuda, cupy.cuda.cublas
ONE, ZERO = np.ones(1, np.float32), np.zeros(1, np.float32)
KINDS = {
    "f4": cuda.runtime.CUDA_R_32F,
    "f8": cuda.runtime.CUDA_R_64F,
    "f2": cuda.runtime.CUDA_R_16F,
}
SIZES = st.integers(1, 9)


def put(array: Any) -> Any:
    memory = cuda.alloc(array.nbytes)
    memory.copy_from_host(array.ctypes.data, array.nbytes)
    return memory


def get(memory: Any, like: Any) -> Any:
    got = np.empty_like(like)
    memory.copy_to_host(got.ctypes.data, got.nbytes)
    return got


@settings(max_examples=40, deadline=None)
@given(
    SIZES,
    SIZES,
    SIZES,
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.sampled_from(list(KINDS)),
)
def test_row_major_products_by_exchanged_operands(
    m: int, n: int, k: int, count: int, turn_a: bool, turn_b: bool, kind: str
) -> None:
    rng = np.random.default_rng(m * 100 + n * 10 + k)
    a = rng.integers(-4, 5, (count, *((k, m) if turn_a else (m, k)))).astype(kind)
    b = rng.integers(-4, 5, (count, *((n, k) if turn_b else (k, n)))).astype(kind)
    c = np.zeros((count, m, n), kind)
    wide = np.float64 if kind == "f8" else np.float32
    one, zero = np.ones(1, wide), np.zeros(1, wide)
    a_memory, b_memory, c_memory = put(a), put(b), cuda.alloc(c.nbytes)
    code = KINDS[kind]
    compute = cublas.CUBLAS_COMPUTE_64F if kind == "f8" else cublas.CUBLAS_COMPUTE_32F
    cublas.gemmStridedBatchedEx(
        cuda.get_cublas_handle(), int(turn_b), int(turn_a), n, m, k,
        one.ctypes.data, b_memory.ptr, code, b.shape[2], k * n,
        a_memory.ptr, code, a.shape[2], m * k,
        zero.ctypes.data, c_memory.ptr, code, n, m * n, count, compute, cublas.CUBLAS_GEMM_DEFAULT,
    )  # fmt: skip
    want = (a.swapaxes(1, 2) if turn_a else a).astype("f8") @ (b.swapaxes(1, 2) if turn_b else b)
    np.testing.assert_array_equal(get(c_memory, c), want)


def test_bfloat16_is_rounded_to_nearest_even() -> None:
    a = np.array([0x3F80, 0x3B80], np.uint16)  # 1 + 2**-8: half way to the next number
    b = np.array([0x3F80, 0x3F80], np.uint16)
    c, code = np.zeros(1, np.uint16), cuda.runtime.CUDA_R_16BF
    a_memory, b_memory, c_memory = put(a), put(b), put(c)
    cublas.gemmEx(
        cuda.get_cublas_handle(), 0, 0, 1, 1, 2, ONE.ctypes.data, a_memory.ptr, code, 1,
        b_memory.ptr, code, 2, ZERO.ctypes.data, c_memory.ptr, code, 1,
        cublas.CUBLAS_COMPUTE_32F, -1,
    )  # fmt: skip
    assert get(c_memory, c)[0] == 0x3F80
    assert report.counts["cublas: calls"] == 1
    assert report.launches() == 0, "nothing of ours was executed"


def sgemm(
    a: Any, b: Any, c: Any, lda: int = 4, ldb: int = 3, ldc: int = 4, alpha: Any = None
) -> None:
    """C (4 x 2) = A (4 x 3) B (3 x 2), by columns."""
    cublas.sgemm(
        cuda.get_cublas_handle(), 0, 0, 4, 2, 3, alpha or ONE.ctypes.data, a.ptr, lda, b.ptr, ldb,
        ZERO.ctypes.data, c.ptr, ldc,
    )  # fmt: skip


@pytest.fixture
def matrices() -> Any:
    return tuple(put(np.ones(n, np.float32)) for n in (12, 6, 8))


@pytest.mark.parametrize("wrong", [{"lda": 3}, {"ldb": 2}, {"ldc": 3}])
def test_a_leading_dimension_below_the_rows_is_refused(matrices: Any, wrong: Any) -> None:
    with pytest.raises(cublas.CUBLASError, match="INVALID_VALUE"):
        sgemm(*matrices, **wrong)


def test_a_leading_dimension_that_reaches_outside_is_reported(matrices: Any) -> None:
    with pytest.raises(Fault, match="a reaches outside"):
        sgemm(*matrices, lda=5)


def test_exchanged_matrices_are_reported(matrices: Any) -> None:
    a, b, c = matrices
    with pytest.raises(Fault, match="reaches outside"):
        sgemm(b, a, c)


def test_a_factor_in_device_memory_is_reported(matrices: Any) -> None:
    with pytest.raises(Fault, match="alpha or beta is device memory"):
        sgemm(*matrices, alpha=matrices[0].ptr)


def test_a_product_waits_for_its_stream(matrices: Any) -> None:
    stream, handle = cuda.Stream(non_blocking=True), cublas.create()
    cublas.setStream(handle, stream.ptr)
    assert cublas.getStream(handle) == stream.ptr
    a, b, c = matrices
    cublas.sgemm(
        handle, 0, 0, 4, 2, 3, ONE.ctypes.data, a.ptr, 4, b.ptr, 3, ZERO.ctypes.data, c.ptr, 4
    )
    with pytest.raises(Fault, match="gemm waits in a stream"):
        get(c, np.zeros(8, np.float32))
    stream.synchronize()
    assert (get(c, np.zeros(8, np.float32)) == 3).all()
    cublas.destroy(handle)
    with pytest.raises(cublas.CUBLASError, match="NOT_INITIALIZED"):
        cublas.getStream(handle)


def test_types_that_cublas_does_not_multiply_are_refused(matrices: Any) -> None:
    a, b, c = matrices
    with pytest.raises(cublas.CUBLASError, match="NOT_SUPPORTED"):
        cublas.gemmEx(
            cuda.get_cublas_handle(), 0, 0, 1, 1, 1, ONE.ctypes.data, a.ptr, KINDS["f4"], 1,
            b.ptr, KINDS["f4"], 1, ZERO.ctypes.data, c.ptr, KINDS["f2"], 1,
            cublas.CUBLAS_COMPUTE_32F, -1,
        )  # fmt: skip
