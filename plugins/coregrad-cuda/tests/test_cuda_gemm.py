"""Products of matrices claimed for cuBLAS: which are, and that they are what they seem."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coregrad import dtypes
from coregrad.dtypes import ALL, DType, bfloat16, float16, float32, float64
from coregrad.errors import CoregradError
from coregrad.hookspecs import Limits
from coregrad.ir import build
from coregrad.ir.graph import Node
from coregrad.ir.kernel import Kernel
from coregrad.ir.schedule import schedule
from coregrad.ir.split import split

pytest.importorskip("coregrad_simt")

from coregrad_simt import report

from coregrad_cuda.backend import Backend
from coregrad_cuda.gemm import Gemm, claimed

LIMITS = Limits(frozenset(ALL))
pytestmark = pytest.mark.usefixtures("nothing_faulty")


def einsum(formula: str, sizes: dict[str, int], a: Node, b: Node) -> Node:
    """A sum over a product, as a graph."""
    inputs, out = formula.split("->")
    left, right = inputs.split(",")
    letters = out + "".join(c for c in dict.fromkeys(left + right) if c not in out)

    def spread(x: Node, names: str) -> Node:
        order = sorted(range(len(names)), key=lambda i: letters.index(names[i]))
        x = build.permute(x, tuple(order))
        x = build.reshape(x, tuple(sizes[c] if c in names else 1 for c in letters))
        return build.expand(x, tuple(sizes[c] for c in letters))

    product = build.mul(spread(a, left), spread(b, right))
    return build.reduce("add", product, tuple(range(len(out), len(letters))))


def matrix(name: str, letters: str, sizes: dict[str, int], dtype: DType = float32) -> Node:
    return build.buffer(name, dtype, tuple(sizes[c] for c in letters))


def kernel_of(node: Node) -> Kernel:
    (task,) = schedule(split([node]), LIMITS, {})
    return task.kernel


def product(formula: str, dtype: DType = float32, **sizes: int) -> Kernel:
    left, right = formula.split("->")[0].split(",")
    a, b = matrix("a", left, sizes, dtype), matrix("b", right, sizes, dtype)
    return kernel_of(einsum(formula, sizes, a, b))


SIZES = {"m": 12, "n": 20, "k": 9, "b": 3, "c": 4}
# Every layout of the operands and of the result, with and without batches.
FORMULAS = [
    *(f"{a},{b}->{c}" for a in ("mk", "km") for b in ("kn", "nk") for c in ("mn", "nm")),
    *(f"{a},{b}->bmn" for a in ("bmk", "bkm", "mbk") for b in ("bkn", "bnk", "kbn")),
    "bcmk,kn->bcmn",
    "bcmk,bckn->bcmn",
    "mbk,nk->mbn",
    "mbc,bcn->mn",
    "bmk,cnk->bmcn",
]
# Products that are several matrices or none: the kernel does them.
OTHERS = {
    "bmk,kn->mbn": "rows of several matrices",
    "mk,ckn->cmn": "columns of several matrices",
    "cmk,ckn->mcn": "results side by side",
}


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_claimed_product_is_the_product(device: Any, formula: str) -> None:
    sizes = {c: SIZES[c] for c in formula if c in SIZES}
    gemm = claimed(product(formula, **sizes))
    assert gemm is not None
    left, right = formula.split("->")[0].split(",")
    rng = np.random.default_rng(1)
    values = [
        rng.integers(-9, 9, [sizes[c] for c in names]).astype(np.float32) for names in (left, right)
    ]
    got = launched(device, gemm, values, np.float32)
    want = np.einsum(formula, *values)
    assert np.array_equal(got.reshape(want.shape), want)


def launched(device: Any, gemm: Gemm, values: list[Any], out: Any) -> Any:
    """The result of a claimed product, which counts as one call of cuBLAS."""
    calls = report.counts["cublas: calls"]
    count = gemm.count * gemm.m * gemm.n
    result = np.empty(count, out)
    buffers = [device.allocate(result.nbytes), *(device.allocate(v.nbytes) for v in values)]
    for buffer, value in zip(buffers[1:], values, strict=True):
        device.copy_in(buffer, memoryview(np.ascontiguousarray(value).view(np.uint8).reshape(-1)))
    device.launch(device.compile(gemm), buffers, 1)
    device.copy_out(buffers[0], memoryview(result.view(np.uint8)))
    assert report.counts["cublas: calls"] == calls + 1
    return result


@settings(max_examples=25, deadline=None)
@given(st.integers(8, 40), st.integers(8, 40), st.integers(8, 40), st.sampled_from(FORMULAS[:8]))
def test_products_of_any_size_are_claimed(m: int, n: int, k: int, formula: str) -> None:
    gemm = claimed(product(formula, m=m, n=n, k=k))
    assert gemm is not None
    assert {gemm.m, gemm.n} == {m, n}
    assert gemm.k == k


def widened_product(dtype: DType, back: bool) -> Kernel:
    """A product of 16-bit matrices, summed in float32; rounded at the end, or not."""
    sizes = {"m": 16, "n": 8, "k": 24}
    a, b = (build.cast(matrix(x, y, sizes, dtype), float32) for x, y in (("a", "mk"), ("b", "kn")))
    total = einsum("mk,kn->mn", sizes, a, b)
    return kernel_of(build.cast(total, dtype) if back else total)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("dtype", [float16, bfloat16])
def test_half_precision_is_summed_in_float32(device: Any, dtype: DType, back: bool) -> None:
    from hook_cases import rounded, widened

    gemm = claimed(widened_product(dtype, back))
    assert gemm is not None
    assert (gemm.dtype, gemm.out, gemm.compute) == (dtype, dtype if back else float32, "float32")
    rng = np.random.default_rng(2)
    a, b = (rounded(rng.standard_normal(s), dtype) for s in ((16, 24), (24, 8)))
    out = gemm.out
    got = widened(launched(device, gemm, [a, b], out.storage), out).astype(np.float64)
    want = widened(a, dtype).astype(np.float64) @ widened(b, dtype).astype(np.float64)
    tolerance = {float16: 1e-3, bfloat16: 8e-3, float32: 1e-5}[out]
    np.testing.assert_allclose(got, want.ravel(), rtol=tolerance, atol=tolerance)


def test_float64_is_summed_in_float64(device: Any) -> None:
    gemm = claimed(product("mk,kn->mn", float64, m=8, n=8, k=8))
    assert gemm is not None
    assert gemm.compute == "float64"
    values = [np.full((8, 8), 1 + 1e-12), np.full((8, 8), 1.0)]
    got = launched(device, gemm, values, np.float64)
    assert np.allclose(got, 8 + 8e-12, rtol=0, atol=1e-14)


# ---- what is not claimed -----------------------------------------------------------------------


def refused() -> Iterator[tuple[str, Kernel]]:
    sizes = {"m": 16, "n": 16, "k": 16}
    a, b = matrix("a", "mk", sizes), matrix("b", "kn", sizes)
    plain = einsum("mk,kn->mn", sizes, a, b)
    for formula, what in OTHERS.items():
        yield what, product(formula, **{c: SIZES[c] for c in formula if c in SIZES})
    yield "an epilogue", kernel_of(build.exp(plain))
    yield "another operand's epilogue", kernel_of(build.add(plain, matrix("c", "mn", sizes)))
    yield "a prologue", kernel_of(einsum("mk,kn->mn", sizes, build.exp(a), b))
    small = build.buffer("a", float32, (14, 16))
    padded = build.pad(small, ((1, 1), (0, 0)))
    yield "a padded operand", kernel_of(einsum("mk,kn->mn", sizes, padded, b))
    yield "integers", product("mk,kn->mn", dtypes.int32, m=16, n=16, k=16)
    yield "a product rounded before it is summed", product("mk,kn->mn", float16, m=16, n=16, k=16)
    yield "few columns", product("mk,kn->mn", m=100, n=2, k=100)
    yield "a short sum", product("mk,kn->mn", m=100, n=100, k=2)
    widened = build.cast(matrix("a", "mk", sizes, dtypes.int32), float32)
    yield "widened integers", kernel_of(einsum("mk,kn->mn", sizes, widened, b))
    halves = build.cast(matrix("a", "mk", sizes, float16), float32)
    yield "two dtypes", kernel_of(einsum("mk,kn->mn", sizes, halves, b))
    other = build.cast(plain, float16)
    yield "a sum of float32 stored as float16", kernel_of(other)


@pytest.mark.parametrize(("what", "kernel"), list(refused()), ids=[name for name, _ in refused()])
def test_what_is_no_plain_product_is_left_to_the_kernel(what: str, kernel: Kernel) -> None:
    assert claimed(kernel) is None


def test_overlapping_windows_are_left_to_the_kernel() -> None:
    """A convolution of one dimension: neighbouring rows share their elements."""
    x = build.buffer("x", float32, (40,))
    windows = build.window(x, 0, 9)
    sizes = {"m": windows.shape[0], "n": 16, "k": 9}
    node = einsum("mk,kn->mn", sizes, windows, matrix("w", "kn", sizes))
    kernel = kernel_of(node)
    assert kernel.contraction is not None
    assert claimed(kernel) is None


# ---- the backend's answer ----------------------------------------------------------------------


def test_the_environment_chooses_the_way(emulation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, backend = product("mk,kn->mn", m=16, n=16, k=16), Backend()
    ways = {}
    for way in ("", "tf32", "kernels"):
        monkeypatch.setenv("COREGRAD_CUDA_MATMUL", way)
        gemm = backend.contraction(kernel, None)
        ways[way] = gemm and gemm.compute
    assert ways == {"": "float32", "tf32": "tf32", "kernels": None}
    monkeypatch.setenv("COREGRAD_CUDA_MATMUL", "fast")
    with pytest.raises(CoregradError, match="COREGRAD_CUDA_MATMUL='fast' is none of"):
        backend.contraction(kernel, None)


def test_without_cublas_the_kernel_stays(emulation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from coregrad_cuda import driver

    monkeypatch.delattr(driver.library().cuda, "cublas")
    assert not driver.has_cublas()
    assert Backend().contraction(product("mk,kn->mn", m=16, n=16, k=16), None) is None


def test_a_claimed_product_says_what_it_is() -> None:
    assert str(claimed(product("mk,nk->mn", m=16, n=24, k=32))) == (
        "// coregrad kernel dot_16x24_k32: cuBLAS, float32 to float32\n"
        "// 1 x (24 x 16 x 32), by columns\n"
        "// a: param 2^T + 0, ld 32, stride 0\n"
        "// b: param 1 + 0, ld 32, stride 0\n"
        "// c: param 0 + 0, ld 24, stride 0"
    )
