"""Reductions against NumPy in float64: values, gradients, dtypes, corners and errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numeric import check

from coregrad import Tensor, dtypes, engine
from coregrad.errors import DTypeError, ShapeError

NAN, INF = math.nan, math.inf
few = settings(max_examples=25, deadline=None)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def lse(x, axis, keepdims=False):
    m = x.max(axis, keepdims=True)
    out = np.log(np.exp(x - m).sum(axis, keepdims=True)) + m
    return out if keepdims else out.squeeze(axis)


REDUCTIONS = {
    "sum": np.sum,
    "mean": np.mean,
    "prod": np.prod,
    "amax": np.max,
    "amin": np.min,
    "logsumexp": lse,
    "var": lambda x, axis, keepdims=False: x.var(axis, ddof=1, keepdims=keepdims),
    "std": lambda x, axis, keepdims=False: x.std(axis, ddof=1, keepdims=keepdims),
}


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [0, -1, (0, 2), (-1, 1)], ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_and_their_gradients_agree_with_numpy(name, dim, keepdim):
    check(
        lambda x: getattr(x, name)(dim, keepdim=keepdim),
        lambda x: REDUCTIONS[name](x, dim, keepdims=keepdim),
        normal(3, 4, 2),
    )


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "max", "min", "var", "std", "norm"])
def test_reductions_without_an_axis_take_all(name):
    reference = {
        "max": np.max,
        "min": np.min,
        "norm": lambda x, axis: np.sqrt((x * x).sum()),
        **REDUCTIONS,
    }
    check(lambda x: getattr(x, name)(), lambda x: reference[name](x, None), normal(3, 5))


@given(
    shape=st.lists(st.integers(0, 5), min_size=0, max_size=4),
    data=st.data(),
    name=st.sampled_from(["sum", "prod", "any", "all", "count_nonzero"]),
    dtype=st.sampled_from(["int64", "int8", "uint8", "bool"]),
)
@few
def test_exact_reductions_agree_with_numpy_on_any_shape_and_axes(shape, data, name, dtype):
    axes = tuple(data.draw(st.sets(st.integers(0, len(shape) - 1)))) if shape else ()
    array = np.random.default_rng(len(shape)).integers(0, 3, shape).astype(dtype)
    given_axes = axes or None
    got = getattr(Tensor(array), name)(given_axes).numpy()
    wide = array.astype(np.int64)
    reference = {"sum": np.sum, "prod": np.prod, "any": np.any, "all": np.all}
    want = reference.get(name, np.count_nonzero)(wide, axis=given_axes)
    np.testing.assert_array_equal(got, want)
    assert got.dtype == (np.bool_ if name in ("any", "all") else np.int64)


def test_axis_and_keepdims_are_other_words_for_dim_and_keepdim():
    x = Tensor(normal(2, 3))
    assert x.sum(axis=1, keepdims=True).shape == (2, 1)
    with pytest.raises(TypeError, match="not both"):
        x.sum(dim=1, axis=1)


def test_integers_and_bools_are_summed_as_int64():
    assert Tensor(np.full(300, 255, np.uint8)).sum().item() == 300 * 255
    assert Tensor([True, True]).sum().dtype is dtypes.int64
    assert Tensor([1, 2]).sum(dtype="float32").dtype is dtypes.float32


def test_half_sums_and_means_accumulate_in_float32():
    ones = Tensor(np.ones(5000, np.float16))
    assert ones.sum().item() == 5000.0
    assert ones.mean().item() == 1.0
    many = Tensor(np.ones(100_000, np.float16))
    assert many.mean().item() == 1.0
    assert math.isinf(many.sum().item())  # 100000 is beyond float16
    assert Tensor(np.full(4096, 200.0, np.float16)).norm().item() == 12800.0
    assert Tensor(np.full(9, 300.0, np.float16)).var().item() == 0.0


def test_the_mean_of_integers_is_an_error_that_names_the_cure():
    with pytest.raises(DTypeError, match=r"int64.*float"):
        Tensor([1, 2]).mean()
    assert Tensor([1, 2]).mean(dtype="float32").item() == 1.5


def test_reductions_of_nothing():
    empty = Tensor(np.zeros((0, 3), np.float32))
    assert empty.sum(0).tolist() == [0.0, 0.0, 0.0]
    assert empty.prod(0).tolist() == [1.0, 1.0, 1.0]
    assert math.isnan(empty.mean().item())
    assert empty.any().item() is False
    assert empty.all().item() is True
    assert empty.amax(1).shape == (0,)
    assert empty.logsumexp(0).tolist() == [-INF] * 3
    assert empty.softmax(0).shape == empty.cumsum(0).shape == (0, 3)
    for name in ("amax", "amin", "max", "min", "argmax", "argmin"):
        with pytest.raises(ShapeError, match="no element"):
            getattr(empty, name)(0)


@pytest.mark.parametrize("name", ["sum", "amax", "argmax", "softmax", "cumsum"])
def test_an_axis_that_is_not_there_is_an_error_with_the_shape(name):
    with pytest.raises(ShapeError, match=r"axis 2.*\(2, 3\)"):
        getattr(Tensor(normal(2, 3)), name)(2)


def test_naming_an_axis_twice_is_an_error():
    with pytest.raises(ShapeError, match="twice"):
        Tensor(normal(2, 3)).sum((0, -2))


# ---- extremes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["max", "min"])
def test_max_and_min_along_an_axis_give_the_first_of_equals(name):
    array = np.array([[1, 3, 3, 0], [2, 2, 2, 2], [-1, -1, -5, -5]])
    found = getattr(Tensor(array), name)(1)
    np.testing.assert_array_equal(found.values.numpy(), getattr(array, name)(1))
    np.testing.assert_array_equal(found.indices.numpy(), getattr(array, "arg" + name)(1))
    assert found.indices.dtype is dtypes.int64
    values, indices = getattr(Tensor(array), name)(0, keepdim=True)
    assert values.shape == indices.shape == (1, 4)


@few
@given(
    rows=st.sampled_from([1, 63, 64, 200]),
    length=st.sampled_from([1, 15, 16, 17, 100, 4096, 4097]),
    dtype=st.sampled_from(
        [dtypes.float32, dtypes.float16, dtypes.int32, dtypes.uint8, dtypes.int8]
    ),
    values=st.lists(
        st.sampled_from([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0]), min_size=1, max_size=4
    ),
    seed=st.integers(0, 9),
    computed=st.booleans(),
)
def test_the_first_of_the_largest_wins_in_rows_of_any_length(
    rows: int, length: int, dtype: dtypes.DType, values: list[float], seed: int, computed: bool
) -> None:
    """Short rows are walked twice, others once: a NaN is the largest, -0 is 0, ties go first."""
    if not dtype.is_float:
        values = [dtype.min, dtype.max, 0, 1]
    x = np.random.default_rng(seed).choice(np.array(values, dtype.storage), (rows, length))
    t = Tensor(x)
    if computed and dtype.is_float:
        x, t = x + x, t + t
    np.testing.assert_array_equal(t.argmax(1).numpy(), x.argmax(1))
    np.testing.assert_array_equal(t.argmin(1).numpy(), x.argmin(1))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int64", "uint64", "bool", "float16"])
@pytest.mark.parametrize("name", ["amax", "amin", "argmax", "argmin"])
def test_extremes_of_every_kind_of_dtype(name, dtype):
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    if dtype not in ("bool", "float16"):
        info = np.iinfo(dtype)
        array = np.array([[info.min, info.max, 3], [3, info.max, info.min]], dtype)
    want = getattr(array, {"amax": "max", "amin": "min"}.get(name, name))(1)
    np.testing.assert_array_equal(getattr(Tensor(array), name)(1).numpy(), want)


def test_nan_wins_every_extreme_and_the_first_one_is_named():
    x = Tensor([1.0, NAN, INF, NAN])
    assert math.isnan(x.max().item())
    assert math.isnan(x.amin().item())
    assert x.argmax().item() == 1
    assert x.argmin().item() == 1
    assert x.max(0).indices.item() == 1
    assert Tensor([-INF, -INF]).argmax().item() == 0
    assert Tensor([-INF, -INF]).max().item() == -INF


@pytest.mark.parametrize(("name", "first"), [("max", [0.0, 1.0, 0.0]), ("min", [0.0, 1.0, 0.0])])
def test_the_gradient_of_max_along_an_axis_goes_to_the_one_chosen(name, first):
    sign = 1.0 if name == "max" else -1.0
    x = Tensor(sign * np.array([1.0, 2.0, 2.0], np.float32), requires_grad=True)
    getattr(x, name)(0).values.backward()
    assert x.grad.tolist() == first


@pytest.mark.parametrize("name", ["amax", "amin", "max", "min"])
def test_the_gradient_of_an_extreme_of_all_is_shared_by_ties(name):
    x = Tensor([2.0, 2.0, 2.0, 2.0], requires_grad=True)
    getattr(x, name)().backward()
    assert x.grad.tolist() == [0.25] * 4


def test_max_of_two_tensors_is_elementwise():
    assert Tensor([1.0, 5.0]).max(Tensor([3.0, 2.0])).tolist() == [3.0, 5.0]


# ---- moments and norms -------------------------------------------------------------------------


@pytest.mark.parametrize("correction", [0, 1, 2.5])
def test_corrections_of_the_variance(correction):
    x = normal(3, 6)
    want = ((x - x.mean(1, keepdims=True)) ** 2).sum(1) / (6 - correction)
    np.testing.assert_allclose(Tensor(x).var(1, correction=correction).numpy(), want, rtol=1e-5)


def test_unbiased_is_another_word_for_a_correction_of_1():
    x = Tensor(normal(5))
    assert x.var(unbiased=False).item() == x.var(correction=0).item()
    assert x.var(unbiased=True).item() == x.var().item()
    with pytest.raises(TypeError, match="not both"):
        x.var(unbiased=True, correction=0)


def test_the_variance_of_far_off_values_keeps_its_digits():
    x = np.float32(1e4) + normal(1000)
    want = x.astype(np.float64).var(ddof=1)
    assert Tensor(x).var().item() == pytest.approx(want, rel=1e-4)


def test_the_variance_of_one_number_is_nan_or_zero_by_its_correction():
    assert math.isnan(Tensor([3.0]).var().item())
    assert Tensor([3.0]).var(correction=0).item() == 0.0


@pytest.mark.parametrize("name", ["std", "norm"])
def test_gradients_at_zero_are_zero_and_not_nan(name):
    value = 0.0 if name == "norm" else 3.0
    x = Tensor([value, value], requires_grad=True)
    result = getattr(x, name)()
    result.backward()
    assert result.item() == 0.0
    assert x.grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("p", [1, 2, 3, 0.5, INF, -INF])
def test_norms_of_every_order(p):
    check(
        lambda x: x.norm(p, dim=1),
        lambda x: np.linalg.norm(x, p, axis=1),
        normal(3, 4, seed=2),
        gradient_tolerance=1e-3,
    )


def test_the_norm_of_order_0_counts():
    assert Tensor([0.0, 2.0, NAN]).norm(0).item() == 2.0


@pytest.mark.parametrize("p", [0.5, 3])
def test_norms_with_zeros_have_finite_gradients(p):
    x = Tensor([0.0, 2.0], requires_grad=True)
    x.norm(p).backward()
    np.testing.assert_allclose(x.grad.numpy(), [0.0, 1.0], rtol=1e-5)


# ---- softmax -----------------------------------------------------------------------------------


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax_and_log_softmax(dim):
    x = normal(3, 4) * 3
    check(lambda t: t.softmax(dim), lambda a: softmax(a, dim), x)
    check(lambda t: t.log_softmax(dim), lambda a: np.log(softmax(a, dim)), x)


def test_softmax_of_large_numbers_does_not_overflow():
    assert Tensor([1e30, 1e30]).softmax(0).tolist() == [0.5, 0.5]
    assert Tensor([1e4, 0.0]).log_softmax(0).tolist() == [0.0, -1e4]
    half = Tensor(np.zeros(100_000, np.float16)).softmax(0)
    assert half.numpy()[0] == np.float16(1e-5)


def test_a_masked_row_is_nan_in_softmax_and_does_not_touch_other_rows():
    x = Tensor([[-INF, -INF], [0.0, -INF]], requires_grad=True)
    got = x.softmax(1).numpy()
    assert np.isnan(got[0]).all()
    assert got[1].tolist() == [1.0, 0.0]
    x.softmax(1)[1].sum().backward()
    assert x.grad.numpy()[1].tolist() == [0.0, 0.0]


def test_logsumexp_guards_rows_of_minus_infinity_in_value_and_gradient():
    x = Tensor([[-INF, -INF], [0.0, -INF], [INF, 0.0]], requires_grad=True)
    got = x.logsumexp(1)
    assert got.tolist() == [-INF, 0.0, INF]
    got[:2].sum().backward()
    assert x.grad.numpy()[:2].tolist() == [[0.0, 0.0], [1.0, 0.0]]


# ---- running reductions ------------------------------------------------------------------------


@few
@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=4).map(tuple),
    data=st.data(),
    kind=st.sampled_from(["cumsum", "cumprod", "cummax", "cummin"]),
    dtype=st.sampled_from(["int64", "int32", "uint8", "float32", "float64"]),
)
def test_running_reductions_along_any_axis_are_numpys(shape, data, kind, dtype):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    draw = np.random.default_rng(math.prod(shape))
    array = draw.integers(0, 5, shape).astype(dtype)
    got = getattr(Tensor(array), kind)(axis)
    ufunc = {
        "cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum,
    }[kind]  # fmt: skip
    wide = "int64" if kind in ("cumsum", "cumprod") and array.dtype.kind in "iu" else None
    want = ufunc.accumulate(array, axis, dtype=wide)
    got = got if kind in ("cumsum", "cumprod") else got.values
    np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize("shape", [(8191,), (8192,), (20001,), (3, 9000), (9000, 3), (2, 9000, 2)])
def test_long_running_sums_go_by_blocks(shape, device):
    array = np.random.default_rng(1).integers(-9, 9, shape)
    axis = int(np.argmax(shape))
    got = Tensor(array, device=device).cumsum(axis)
    np.testing.assert_array_equal(got.numpy(), array.cumsum(axis))


def test_long_running_sums_of_floats_stay_accurate():
    array = np.random.default_rng(2).normal(size=1 << 18).astype("float32")
    got = Tensor(array).cumsum(0).numpy().astype("float64")
    exact = array.astype("float64").cumsum()
    assert np.abs(got - exact).max() <= 1e-6 * np.abs(array.astype("float64")).sum()


def test_a_running_sum_of_a_computed_tensor_is_one_kernel(monkeypatch):
    x = Tensor(np.ones((64, 32), "float32"), device="cpu")
    monkeypatch.setattr(engine, "launches", [])
    (x * 2 + 1).cumsum(1).realize()
    assert engine.launches == ["scan_64x32x1"]


@pytest.mark.parametrize("length", [0, 1, 2, 31, 32, 33, 65, 1025])
def test_running_sums_of_integers_are_exact_at_every_length(length):
    array = np.random.default_rng(length).integers(-9, 9, (2, length))
    np.testing.assert_array_equal(Tensor(array).cumsum(1).numpy(), array.cumsum(1))
    np.testing.assert_array_equal(Tensor(array.T.copy()).cumsum(0).numpy(), array.T.cumsum(0))


@pytest.mark.parametrize("length", [3, 40])
def test_running_reductions_and_their_gradients(length):
    x = normal(length, 2) * 0.5 + 1
    check(lambda t: t.cumsum(0), lambda a: a.cumsum(0), x)
    check(lambda t: t.cumprod(0), lambda a: a.cumprod(0), x, gradient_tolerance=2e-3)
    check(lambda t: t.logcumsumexp(0), lambda a: np.logaddexp.accumulate(a, 0), x)
    check(lambda t: t.cummax(0).values, lambda a: np.maximum.accumulate(a, 0), x)


def test_running_products_have_the_right_gradient_at_zero():
    x = Tensor([2.0, 0.0, 3.0], requires_grad=True)
    x.cumprod(0).sum().backward()
    assert x.grad.tolist() == [1.0, 8.0, 0.0]


def test_running_extremes_name_the_last_of_equals_and_keep_nan():
    x = Tensor([1.0, 3.0, 2.0, 3.0, NAN, 9.0])
    values, indices = x.cummax(0)
    assert indices.tolist() == [0, 1, 1, 3, 4, 4]
    assert values.tolist()[:4] == [1.0, 3.0, 3.0, 3.0]
    assert np.isnan(values.numpy()[4:]).all()
    long = np.random.default_rng(0).integers(0, 50, 100)
    low, where = Tensor(long).cummin(0)
    np.testing.assert_array_equal(low.numpy(), np.minimum.accumulate(long))
    np.testing.assert_array_equal(long[where.numpy()], low.numpy())


def test_a_log_of_running_sums_starts_from_minus_infinity():
    assert Tensor([-INF, -INF, 0.0]).logcumsumexp(0).tolist() == [-INF, -INF, 0.0]


@pytest.mark.parametrize("rows", [3, 8])
def test_running_sums_of_what_a_row_s_sum_is_part_of(rows):
    x = np.random.default_rng(0).standard_normal((rows, 4, 6))
    centred = Tensor(x) - Tensor(x).mean(2, keepdim=True)
    want = (x - x.mean(2, keepdims=True)).cumsum(1)
    np.testing.assert_allclose(centred.cumsum(1).numpy(), want, atol=1e-14)
    shares = np.exp(x) / np.exp(x).sum(2, keepdims=True)
    np.testing.assert_allclose(Tensor(x).softmax(2).cumsum(2).numpy(), shares.cumsum(2), atol=1e-14)
    np.testing.assert_allclose(Tensor(x).softmax(2).cumsum(0).numpy(), shares.cumsum(0), atol=1e-14)
