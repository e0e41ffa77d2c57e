"""Order against NumPy's stable argsort: every dtype, axis and corner, on every device."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numeric import check

import coregrad as cg
from coregrad import Tensor, dtypes, engine
from coregrad.errors import CaptureError, ShapeError, UnsupportedOp

NAN, INF = math.nan, math.inf
INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
few = settings(max_examples=25, deadline=None)
shapes = st.lists(st.integers(0, 6), min_size=1, max_size=3).map(tuple)
LENGTHS = [2, 15, 16, 17, 31, 32, 33, 64, 65, 100, 128, 129, 200, 257, 1000]


def _enough(length: int, dtype: str, device: str) -> None:
    """A driver that takes a second to compile a kernel sorts some lengths of two dtypes."""
    if device not in ("cpu", "numpy") and (dtype not in ("float32", "int64") or length > 300):
        pytest.skip("the composed sort is the numpy device's, and compiling it takes long here")


def sample(dtype: str, shape, seed: int, device: str):
    """Many equal elements, and the corners of the dtype: a tensor, and float64 or ints of it."""
    rng = np.random.default_rng(seed)
    kind = dtypes.by_name(dtype)
    if not kind.is_float:
        info = np.iinfo(dtype) if kind.is_int else None
        values = rng.integers(0, 2 if info is None else 5, shape).astype(dtype)
        if info is not None:
            corner = rng.random(shape) < 0.2
            values = np.where(corner, rng.choice([info.min, info.max], shape), values)
            values = values.astype(dtype)
        return Tensor(values, device=device), values
    values = rng.integers(-3, 4, shape) * 0.5
    special = rng.choice([NAN, INF, -INF, -0.0, 0.0], shape)
    values = np.where(rng.random(shape) < 0.3, special, values)
    return Tensor(values, dtype=kind, device=device, requires_grad=False), values


def order_of(values, axis: int, descending: bool):
    """Where sorted elements stand: by the value, NaN largest, equal ones in their order."""
    if values.dtype.kind == "f":
        ranks = np.unique(values + 0.0, equal_nan=True, return_inverse=True)[1]
    else:
        ranks = np.unique(values, return_inverse=True)[1]
    ranks = ranks.reshape(values.shape).astype(np.int64)
    return np.argsort(-ranks if descending else ranks, axis, kind="stable")


def values_of(tensor) -> np.ndarray:
    return (tensor.float() if tensor.dtype.is_float else tensor).numpy()


def assert_sorted_like(pair, values, order, axis: int) -> None:
    np.testing.assert_array_equal(pair.indices.numpy(), order)
    assert pair.indices.dtype is dtypes.int64
    want = np.take_along_axis(values, order, axis)
    got = values_of(pair.values)
    np.testing.assert_array_equal(got, want.astype(got.dtype))
    if want.dtype.kind == "f":
        number = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


@pytest.mark.parametrize("dtype", [*INTS, *FLOATS, "bool"])
@few
@given(shape=shapes, seed=st.integers(0, 99), descending=st.booleans(), data=st.data())
def test_a_sort_is_numpys_stable_one(dtype, shape, seed, descending, data) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    device = data.draw(st.sampled_from(["cpu", "numpy"]))
    tensor, values = sample(dtype, shape, seed, device)
    pair = tensor.sort(axis, descending)
    assert pair.values.dtype is tensor.dtype
    assert_sorted_like(pair, values, order_of(values, axis, descending), axis)


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
@pytest.mark.parametrize("length", LENGTHS)
def test_rows_of_every_length_are_sorted(length, dtype, device) -> None:
    _enough(length, dtype, device)
    tensor, values = sample(dtype, (3, length), length, device)
    for descending in (False, True):
        order = order_of(values, -1, descending)
        assert_sorted_like(tensor.sort(-1, descending), values, order, -1)


@pytest.mark.parametrize("dtype", ["float32", "int64", "int16"])
@pytest.mark.parametrize("shape", [(65536,), (100_001,), (2, 70_000)])
def test_long_rows_are_sorted(shape, dtype) -> None:
    tensor, values = sample(dtype, shape, 1, "cpu")
    assert_sorted_like(tensor.sort(), values, order_of(values, -1, False), -1)
    distinct = np.random.default_rng(2).permutation(math.prod(shape)).reshape(shape)
    if dtype != "int16":
        moved = (distinct - 50_000).astype(dtype)
        np.testing.assert_array_equal(Tensor(moved).argsort().numpy(), np.argsort(moved))


@pytest.mark.parametrize(
    "make",
    [
        lambda n: np.arange(n),
        lambda n: np.arange(n)[::-1],
        lambda n: np.zeros(n),
        lambda n: np.arange(n) % 2,
        lambda n: np.arange(n) << 24,
    ],
    ids=["rising", "falling", "equal", "two values", "high bytes"],
)
@pytest.mark.parametrize("length", [40, 300, 66_000])
def test_patterns_that_sorts_trip_over(make, length) -> None:
    values = make(length).astype(np.int64)
    np.testing.assert_array_equal(
        Tensor(values).argsort().numpy(), np.argsort(values, kind="stable")
    )


def test_numbers_and_nothing_are_sorted_too(device) -> None:
    assert Tensor(3.0, device=device).sort().values.item() == 3.0
    assert Tensor(3.0, device=device).argsort(0).item() == 0
    assert Tensor([[7]], device=device).sort(0).indices.tolist() == [[0]]
    empty = Tensor.zeros(2, 0, device=device).sort()
    assert (empty.values.shape, empty.indices.shape) == ((2, 0), (2, 0))
    assert Tensor.zeros(0, 3, device=device).argsort().shape == (0, 3)
    assert Tensor.full((4,), NAN, device=device).argsort().tolist() == [0, 1, 2, 3]


def test_zeros_of_both_signs_keep_their_order(device) -> None:
    pair = Tensor([0.0, -0.0, 0.0, -1.0, -0.0], device=device).sort()
    assert pair.indices.tolist() == [3, 0, 1, 2, 4]
    assert np.signbit(pair.values.numpy()).tolist() == [True, False, True, False, True]


def test_what_is_computed_and_moved_can_be_sorted(device) -> None:
    values = np.random.default_rng(5).permutation(60).reshape(3, 4, 5).astype(np.float32)
    x = Tensor(values, device=device)
    got = (x.permute(2, 0, 1) * 2 - 1)[1:].flip(1).sort(1).values
    want = np.sort(np.flip((values.transpose(2, 0, 1) * 2 - 1)[1:], 1), 1)
    np.testing.assert_array_equal(got.numpy(), want)


def test_a_sort_of_the_cpu_is_one_launch_between_two_kernels(monkeypatch) -> None:
    x = Tensor(np.random.default_rng(0).normal(size=(64, 300)).astype("float32"), device="cpu")
    monkeypatch.setattr(engine, "launches", [])
    pair = x.sort()
    cg.realize(pair.values, pair.indices)
    assert engine.launches == ["map_64x300", "argsort_64x300", "map_64x300"]


def test_indices_that_are_read_after_the_values_are_not_sorted_again(monkeypatch) -> None:
    x = Tensor(np.random.default_rng(0).normal(size=(8, 300)).astype("float32"), device="cpu")
    monkeypatch.setattr(engine, "launches", [])
    pair = x.sort()
    pair.values.numpy()
    pair.indices.numpy()
    assert [name for name in engine.launches if name.startswith("argsort")] == ["argsort_8x300"]


@pytest.mark.parametrize("length", [10, 300])
def test_a_captured_sort_is_replayed_on_other_values(length, device) -> None:
    @cg.jit
    def step(x):
        pair = x.sort(descending=True)
        return pair.values, pair.indices, x.topk(3).values

    for seed in range(5):
        x = np.random.default_rng(seed).integers(0, 9, (4, length)).astype(np.float32)
        values, indices, top = step(Tensor(x, device=device))
        order = order_of(x, -1, True)
        want = np.take_along_axis(x, order, -1)
        np.testing.assert_array_equal(indices.numpy(), order)
        np.testing.assert_array_equal(values.numpy(), want)
        np.testing.assert_array_equal(top.numpy(), want[:, :3])


# ---- the k largest -----------------------------------------------------------------------------


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bfloat16"])
@pytest.mark.parametrize(
    ("length", "k"), [(5, 5), (30, 1), (33, 3), (100, 10), (100, 60), (1000, 10), (1000, 300)]
)
def test_topk_is_the_beginning_of_a_sort(length, k, dtype, largest, device) -> None:
    _enough(length, dtype, device)
    tensor, values = sample(dtype, (2, length), k, device)
    order = order_of(values, -1, largest)[:, :k]
    assert_sorted_like(tensor.topk(k, largest=largest), values, order, -1)


def test_topk_works_along_any_axis_and_may_be_empty(device) -> None:
    x = Tensor([[1, 9], [5, 3], [7, 2]], device=device)
    assert x.topk(2, 0).values.tolist() == [[7, 9], [5, 3]]
    assert x.topk(2, dim=0, largest=False).indices.tolist() == [[0, 2], [1, 1]]
    assert x.topk(0).values.shape == (3, 0)
    assert Tensor(4, device=device).topk(1).values.item() == 4


def test_topk_of_falling_and_of_equal_elements_is_right() -> None:
    falling = np.arange(5000)[::-1].copy()
    assert Tensor(falling).topk(3, largest=False).indices.tolist() == [4999, 4998, 4997]
    assert Tensor.zeros(5000).topk(3).indices.tolist() == [0, 1, 2]
    same = Tensor(np.ones(5000, np.float32)).topk(40)
    assert same.indices.tolist() == list(range(40))


# ---- places in the order -----------------------------------------------------------------------


@few
@given(
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=2).map(tuple),
    seed=st.integers(0, 99),
    keepdim=st.booleans(),
)
def test_medians_and_kth_values_are_elements_of_the_order(shape, seed, keepdim) -> None:
    tensor, values = sample("float32", shape, seed, "cpu")
    length = shape[-1]
    ordered = np.sort(values, -1)
    middle = np.where(np.isnan(ordered[..., -1]), NAN, ordered[..., (length - 1) // 2])
    numbers = np.maximum((~np.isnan(values)).sum(-1) - 1, 0) // 2
    among = np.take_along_axis(ordered, numbers[..., None], -1)[..., 0]
    k = seed % length + 1
    for pair, want in (
        (tensor.median(-1, keepdim), middle),
        (tensor.nanmedian(-1, keepdim), among),
        (tensor.kthvalue(k, -1, keepdim), ordered[..., k - 1]),
    ):
        want = want[..., None] if keepdim else want
        np.testing.assert_array_equal(pair.values.numpy(), want.astype(np.float32))
        places = pair.indices.numpy() if keepdim else pair.indices.numpy()[..., None]
        found = np.take_along_axis(values, places, -1)
        np.testing.assert_array_equal(found if keepdim else found[..., 0], want)


def test_a_median_without_an_axis_is_one_number() -> None:
    assert Tensor([[4, 1], [3, 2]]).median().item() == 2
    assert math.isnan(Tensor([1.0, NAN]).median().item())
    assert Tensor([NAN, 5.0, NAN]).nanmedian().item() == 5.0
    assert math.isnan(Tensor([NAN, NAN]).nanmedian().item())


@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "nearest", "midpoint"])
@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("keepdim", [False, True])
def test_quantiles_are_numpys(interpolation, dim, keepdim) -> None:
    values = np.random.default_rng(3).normal(size=(7, 12))
    q = np.array([0.0, 0.1, 0.5, 0.77, 1.0])
    x = Tensor(values)
    got = x.quantile(Tensor(q), dim, keepdim, interpolation).numpy()
    want = np.quantile(values, q, dim, keepdims=keepdim, method=interpolation)
    np.testing.assert_allclose(got, want, rtol=1e-12)
    one = x.quantile(0.3, dim, keepdim, interpolation).numpy()
    want = np.quantile(values, 0.3, dim, keepdims=keepdim, method=interpolation)
    np.testing.assert_allclose(one, want, rtol=1e-12)


def test_quantiles_with_nan_and_infinity() -> None:
    x = Tensor([[1.0, NAN, 3.0], [INF, INF, 0.0], [NAN, NAN, NAN]])
    np.testing.assert_array_equal(x.quantile(0.5, 1).numpy(), [NAN, INF, NAN])
    np.testing.assert_array_equal(x.nanquantile(0.5, 1).numpy(), [2.0, INF, NAN])
    assert Tensor([1.0, 2.0]).half().quantile(0.5).dtype is dtypes.float16


# ---- equal elements ----------------------------------------------------------------------------


@few
@given(seed=st.integers(0, 99), size=st.integers(0, 200), high=st.integers(1, 50))
def test_unique_elements_are_numpys(seed, size, high) -> None:
    values = np.random.default_rng(seed).integers(-high, high, size)
    got = Tensor(values, dtype="int64").unique(return_inverse=True, return_counts=True)
    want = np.unique(values, return_inverse=True, return_counts=True)
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs)


def test_unique_keeps_shapes_signs_and_every_nan(device) -> None:
    x = Tensor([[0.0, NAN], [-0.0, NAN], [-1.0, 2.0]], device=device)
    values, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    np.testing.assert_array_equal(values.numpy(), np.array([-1, 0, 2, NAN, NAN], np.float32))
    assert inverse.tolist() == [[1, 3], [1, 4], [0, 2]]
    assert counts.tolist() == [1, 2, 1, 1, 1]
    assert Tensor([True, False, True], device=device).unique().tolist() == [False, True]
    runs = Tensor([2, 2, 1, 1, 2], device=device).unique_consecutive(True, True)
    assert [t.tolist() for t in runs] == [[2, 1, 2], [0, 0, 1, 1, 2], [2, 2, 1]]


def test_unique_in_a_captured_function_is_refused() -> None:
    @cg.jit
    def step(x):
        return x.unique()

    with pytest.raises(CaptureError, match="looks at a value"):
        step(Tensor([1, 2, 1]) + 0)


# ---- binary search -----------------------------------------------------------------------------


@few
@given(
    length=st.integers(1, 70),
    seed=st.integers(0, 99),
    right=st.booleans(),
    dtype=st.sampled_from(["float32", "int64", "uint8"]),
)
def test_searchsorted_is_numpys(length, seed, right, dtype) -> None:
    rng = np.random.default_rng(seed)
    keys = np.sort(rng.integers(0, 9, length)).astype(dtype)
    values = rng.integers(0, 10, (3, 4)).astype(dtype)
    got = Tensor(keys).searchsorted(Tensor(values), right=right)
    want = np.searchsorted(keys, values, "right" if right else "left")
    np.testing.assert_array_equal(got.numpy(), want)
    bucket = Tensor(values).bucketize(Tensor(keys), right=right, out_int32=True)
    assert bucket.dtype is dtypes.int32
    np.testing.assert_array_equal(bucket.numpy(), want)


def test_searchsorted_in_rows_and_through_a_sorter(device) -> None:
    rows = Tensor([[1.0, 3.0, 5.0], [2.0, 2.0, 9.0]], device=device)
    wanted = Tensor([[3.0, 6.0], [2.0, 10.0]], device=device)
    assert rows.searchsorted(wanted).tolist() == [[1, 3], [0, 3]]
    assert rows.searchsorted(wanted, side="right").tolist() == [[2, 3], [2, 3]]
    mixed = Tensor([5, 1, 3], device=device)
    assert mixed.searchsorted(Tensor([4], device=device), sorter=mixed.argsort()).tolist() == [2]
    assert Tensor([1, 2], device=device).searchsorted(1.5).item() == 1


# ---- gradients ---------------------------------------------------------------------------------


def distinct(*shape):
    rng = np.random.default_rng(math.prod(shape))
    return rng.permutation(math.prod(shape)).reshape(shape).astype(np.float32) * 0.1


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize("dim", [0, -1])
def test_the_gradient_of_a_sort_goes_where_the_value_came_from(shape, dim) -> None:
    check(lambda x: x.sort(dim).values, lambda x: np.sort(x, dim), distinct(*shape))
    check(
        lambda x: x.sort(dim, descending=True).values,
        lambda x: -np.sort(-x, dim),
        distinct(*shape),
    )
    check(lambda x: x.topk(2, dim).values, lambda x: np.flip(
        np.take(np.sort(x, dim), [-2, -1], dim), dim), distinct(*shape))  # fmt: skip


def test_the_gradients_of_medians_and_quantiles() -> None:
    x = distinct(4, 6)
    check(lambda t: t.kthvalue(3, 1).values, lambda a: np.sort(a, 1)[:, 2], x)
    check(lambda t: t.median(1).values, lambda a: np.sort(a, 1)[:, 2], x)
    check(lambda t: t.median(), lambda a: np.sort(a.ravel())[11], x)
    check(lambda t: t.nanmedian(0).values, lambda a: np.sort(a, 0)[1], x)
    check(lambda t: t.quantile(0.4, 1), lambda a: np.quantile(a, 0.4, 1), x)
    check(lambda t: t.unique(), lambda a: np.sort(a.ravel()), x)


def test_of_equal_elements_only_the_chosen_one_gets_the_gradient() -> None:
    x = Tensor([2.0, 2.0, 1.0], requires_grad=True)
    x.topk(1).values.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 0.0, 0.0]


# ---- errors ------------------------------------------------------------------------------------


def test_mistakes_are_named_at_the_call() -> None:
    x = Tensor([[1.0, 2.0, 3.0]])
    with pytest.raises(ShapeError, match=r"sort: axis 2 of a tensor of shape \(1, 3\)"):
        x.sort(2)
    with pytest.raises(ShapeError, match=r"topk: k is 4, but axis -1 .* use 0 to 3"):
        x.topk(4)
    with pytest.raises(ShapeError, match="kthvalue: k is 0"):
        x.kthvalue(0)
    with pytest.raises(TypeError, match=r"topk: k must be an int, not 1\.5"):
        x.topk(1.5)
    with pytest.raises(ShapeError, match=r"median: shape .* has no element"):
        Tensor.zeros(2, 0).median(1)
    with pytest.raises(ValueError, match=r"quantile: q is 1\.5"):
        x.quantile(1.5)
    with pytest.raises(ValueError, match="interpolation 'cubic'"):
        x.quantile(0.5, interpolation="cubic")
    with pytest.raises(UnsupportedOp, match="unique: slices along dim"):
        x.unique(dim=0)
    with pytest.raises(ShapeError, match=r"searchsorted: values of shape \(2, 1\)"):
        x.searchsorted(Tensor([[1.0], [2.0]]))
    with pytest.raises(ValueError, match="side is 'middle'"):
        x[0].searchsorted(1.0, side="middle")
