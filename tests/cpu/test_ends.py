"""Loops that end where a mask leaves nothing to fold: never a value that another loop would give.

The oracle is NumPy. Whether a loop has a limit is read off the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coregrad import Tensor, dtypes, plugins
from coregrad.errors import VerifyError
from coregrad.ir import build, split
from coregrad.ir.graph import Node
from coregrad.ir.groups import layout
from coregrad.ir.kernel import Kernel, Loop, walk
from coregrad.ir.schedule import schedule
from coregrad.ir.target import Limits
from coregrad.ir.verify import verify_kernel

INF = float("inf")
cases = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


NEAR = ("cpu", "numpy")  # devices whose kernels for some hundred shapes are compiled soon


def shares(device: str) -> bool:
    """Whether threads share a row on this device: its loops are then laid out anew, without end."""
    return plugins.open_device(device).device.limits.threads > 1


def floats(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def limits(kernels: Sequence[Kernel]) -> list[Loop]:
    """The loops that may end early."""
    loops = (s for k in kernels for s in walk(k.body) if isinstance(s, Loop))
    return [loop for loop in loops if loop.limit is not None]


def kept(x: Tensor, n: Tensor, value: float, shift: int = 0, dtype: Any = "int64") -> Tensor:
    """``x`` where the place along the last axis is below ``n``."""
    places = Tensor.arange(x.shape[-1], device=x.device).cast(dtype) + shift
    return x.where(places < n, value)


FOLDS: dict[str, tuple[float, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "sum": (0.0, lambda x: x.sum(-1), lambda x: x.sum(-1)),
    "prod": (1.0, lambda x: x.prod(-1), lambda x: x.prod(-1)),
    "amax": (-INF, lambda x: x.amax(-1), lambda x: x.max(-1, initial=-np.inf)),
    "argmax": (-INF, lambda x: x.argmax(-1), lambda x: x.argmax(-1) if x.shape[-1] else 0),
}


@pytest.mark.parametrize("device", NEAR)
@pytest.mark.parametrize("name", FOLDS)
@cases
@given(length=st.integers(2, 150), n=st.integers(-3, 160), rows=st.integers(1, 4), data=st.data())
def test_a_masked_fold_is_the_fold_of_what_is_kept(
    device: str, name: str, length: int, n: int, rows: int, data: st.DataObject
) -> None:
    neutral, ours, numpys = FOLDS[name]
    shift = data.draw(st.sampled_from([0, 1, -2]))
    x = floats(rows, length) * np.float32(0.5)
    end = Tensor(n, device=device).realize()
    got = ours(kept(Tensor(x, device=device), end, neutral, shift)).numpy()
    there = x[:, : max(0, min(length, n - shift))].astype(np.float64)
    np.testing.assert_allclose(got, np.broadcast_to(numpys(there), rows), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", FOLDS)
def test_such_a_loop_has_a_limit(device: str, kernels: list[Kernel], name: str) -> None:
    neutral, ours, _ = FOLDS[name]
    n = Tensor(5, device=device).realize()
    ours(kept(Tensor(floats(3, 40), device=device), n, neutral)).realize()
    assert shares(device) or len(limits(kernels)) == 1


def test_a_product_ends_where_both_factors_are_masked(device: str, kernels: list[Kernel]) -> None:
    a, b = floats(4, 50), floats(50, 3, seed=1)
    a[:, 20:], b[20:] = np.nan, np.inf
    n = Tensor(20, device=device).realize()
    rows = kept(Tensor(a, device=device), n, 0.0)
    columns = kept(Tensor(b.T.copy(), device=device), n, 0.0)
    kernels.clear()
    got = (rows @ columns.T).numpy()
    np.testing.assert_allclose(got, a[:, :20] @ b[:20], rtol=1e-4, atol=1e-5)
    assert shares(device) or len(limits(kernels)) == 1


def test_zero_times_infinity_is_still_nan(device: str, kernels: list[Kernel]) -> None:
    """With one factor masked the other one counts: no loop may end early."""
    a, b = floats(4, 50), floats(50, 3, seed=1)
    b[30] = np.inf
    n = Tensor(20, device=device).realize()
    got = (kept(Tensor(a, device=device), n, 0.0) @ Tensor(b, device=device)).numpy()
    assert np.isnan(got).all()
    assert limits(kernels) == []


def test_a_mask_with_another_value_is_no_end(device: str, kernels: list[Kernel]) -> None:
    x = floats(3, 40)
    n = Tensor(5, device=device).realize()
    got = kept(Tensor(x, device=device), n, 2.0).sum(-1).numpy()
    np.testing.assert_allclose(got, x[:, :5].sum(-1) + 70, rtol=1e-5)
    assert limits(kernels) == []


def test_results_that_nobody_looks_at_are_not_summed(device: str, kernels: list[Kernel]) -> None:
    a, b = floats(2, 30), floats(2, 12, 30, seed=1)
    n = Tensor(4, device=device).realize()
    products = (Tensor(a, device=device).unsqueeze(1) * Tensor(b, device=device)).sum(-1)
    got = kept(products, n, -1.0).numpy()
    wanted = np.einsum("ij,ikj->ik", a, b)
    wanted[:, 4:] = -1
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    assert shares(device) or len(limits(kernels)) == 1


def test_a_result_that_is_used_without_the_mask_too_is_summed(
    device: str, kernels: list[Kernel]
) -> None:
    x = floats(2, 12, 30)
    n = Tensor(4, device=device).realize()
    total = Tensor(x, device=device).sum(-1)
    got = (kept(total, n, 0.0) + total).numpy()
    wanted = x.sum(-1)
    wanted[:, :4] *= 2
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    assert limits(kernels) == []


@pytest.mark.parametrize("n", [2**63 - 1, -(2**63), 2**62])
def test_ends_beyond_all_indices_wrap_nowhere(device: str, n: int) -> None:
    x = floats(3, 70)
    for shift in (0, -2, 3):
        end = Tensor(n, device=device).realize()
        got = kept(Tensor(x, device=device), end, 0.0, shift).sum(-1).numpy()
        np.testing.assert_allclose(got, x.sum(-1) if n > 0 else np.zeros(3), rtol=1e-4, atol=1e-5)


def test_ends_of_narrow_and_unsigned_dtypes(device: str) -> None:
    x = floats(2, 300)
    for dtype, n in (("int8", 100), ("uint8", 200), ("uint64", 2**64 - 1), ("int16", 7)):
        end = Tensor(np.array(n, dtype), device=device).realize()
        places = np.arange(300).astype(dtype)
        got = kept(Tensor(x, device=device), end, 0.0, dtype=dtype).sum(-1).numpy()
        wanted = np.where(places < np.array(n, dtype), x, 0).sum(-1)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", [0, 1, 17, 1000, 1024])
def test_sums_of_columns_in_blocks_of_rows_end_too(
    device: str, kernels: list[Kernel], n: int
) -> None:
    x = floats(1024, 300)
    x[n:] = np.nan
    end = Tensor(n, device=device).realize()
    there = Tensor.arange(1024, device=device).reshape(1024, 1) < end
    got = Tensor(x, device=device).where(there, 0.0).sum(0).numpy()
    np.testing.assert_allclose(got, x[:n].astype(np.float64).sum(0), rtol=1e-3, atol=1e-4)
    assert shares(device) or [loop.var.extent < 1024 for loop in limits(kernels)] == [True]


def test_powers_kept_in_a_row_that_ends_are_read_no_further(
    device: str, kernels: list[Kernel]
) -> None:
    """The sum of powers and their product with something else, both up to n."""
    x, y = floats(3, 40), floats(3, 40, seed=1)
    for n in (1, 7, 16, 40):
        end = Tensor(n, device=device).realize()
        data, other = Tensor(x, device=device), Tensor(y, device=device)
        top = kept(data, end, -INF).amax(-1, True)
        powers = kept((data - top).exp(), end, 0.0)
        got = (kept(powers / powers.sum(-1, True), end, 0.0) * kept(other, end, 0.0)).sum(-1)
        p = np.exp(x[:, :n].astype(np.float64))
        wanted = (p / p.sum(-1, keepdims=True) * y[:, :n]).sum(-1)
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=1e-5)
    assert shares(device) or len(limits(kernels)) >= 2


def test_softmax_that_keeps_its_powers_fills_all_of_its_row(device: str) -> None:
    x = floats(3, 40)
    n = Tensor(9, device=device).realize()
    got = kept(Tensor(x, device=device), n, -INF).softmax(-1).numpy()
    powers = np.exp(x[:, :9].astype(np.float64))
    np.testing.assert_allclose(got[:, :9], powers / powers.sum(-1, keepdims=True), rtol=1e-5)
    assert (got[:, 9:] == 0).all()


# ---- as data -------------------------------------------------------------------------------------


def masked_sum(rows: int, length: int) -> Node:
    """The sum along rows of what stands before a number that is loaded."""
    x = build.buffer("x", dtypes.float32, (rows, length))
    n = build.expand(build.buffer("n", dtypes.int32, (1,)), (length,))
    there = build.lt(build.iota(length, dtypes.int32), n)
    there = build.expand(build.reshape(there, (1, length)), (rows, length))
    return build.reduce("add", build.where(there, x, build.const_like(x, 0)), (1,))


def kernel_of(root: Node, device: Limits) -> Kernel:
    (task,) = schedule(split.split([root]), device, {})
    verify_kernel(task.kernel, device)
    return task.kernel


SIMPLE = Limits(frozenset(dtypes.ALL))


def test_a_kernel_prints_where_its_loops_may_end() -> None:
    kernel = kernel_of(masked_sum(4, 100), SIMPLE)
    assert "for r0 in 100 until %2:" in str(kernel)
    assert "%2 = cast int32 int64 %0" in str(kernel)


def test_devices_of_many_threads_keep_the_limit_of_loops_that_one_of_them_walks() -> None:
    kernel = kernel_of(masked_sum(1000, 20), Limits(frozenset(dtypes.ALL), threads=256))
    (loop,) = limits([layout(kernel, Limits(frozenset(dtypes.ALL), threads=256))])
    assert loop.var.extent == 20


def test_a_limit_that_is_not_there_or_no_int64_is_refused() -> None:
    kernel = kernel_of(masked_sum(4, 100), SIMPLE)
    (loop,) = limits([kernel])
    (load, *_) = [s for s in kernel.body if getattr(s, "op", None) is not None]
    loop.limit, right = load, loop.limit
    with pytest.raises(VerifyError, match="limit of dtype int32"):
        verify_kernel(kernel)
    kernel.body.remove(right)
    loop.limit = right
    with pytest.raises(VerifyError, match="the limit of loop r0 is not defined here"):
        verify_kernel(kernel)
