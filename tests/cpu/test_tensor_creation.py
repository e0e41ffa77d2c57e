"""How tensors are made, read, shown, moved between dtypes and devices, copied and pickled."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import coregrad as cg
from coregrad import Device, Tensor, dtypes
from coregrad.errors import DTypeError, ShapeError, UnsupportedOp

few = settings(max_examples=40, deadline=None)
NUMPY_NAMES = ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
               "float16", "float32", "float64"]  # fmt: skip


def random_array(dtype, shape, seed=0):
    r = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return r.standard_normal(shape).astype(dtype)
    if dtype == "bool":
        return r.integers(0, 2, shape).astype(bool)
    info = np.iinfo(dtype)
    return r.integers(info.min, info.max, shape, dtype, endpoint=True)


# ---- data ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", NUMPY_NAMES)
def test_arrays_keep_their_dtype_and_values(dtype, device):
    array = random_array(dtype, (3, 5))
    tensor = Tensor(array, device=device)
    assert tensor.dtype.name == dtype
    got = tensor.numpy()
    assert got.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (1, "int64"), (1.5, "float32"), (True, "bool"), ([1, 2], "int64"), ([1, 2.5], "float32"),
        ([True, False], "bool"), ([], "float32"), ([[], []], "float32"), (np.float64(1), "float64"),
        ([np.float64(1)], "float64"), (2**40, "int64"), (range(3), "int64"), ((1.0,), "float32"),
        ([True, 2], "int64"),
    ],
    ids=repr,
)  # fmt: skip
def test_python_data_has_the_dtype_that_pytorch_gives_it(data, dtype):
    assert Tensor(data).dtype.name == dtype
    assert Tensor(data).shape == np.shape(data)


def test_tensors_inside_lists_keep_their_dtype():
    made = Tensor([Tensor([1, 2], dtype="int16"), Tensor([3, 4], dtype="int16")])
    assert made.dtype is dtypes.int16
    assert made.tolist() == [[1, 2], [3, 4]]


def test_a_tensor_from_a_tensor_is_a_copy_without_history():
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = Tensor(x * 2, dtype="float64")
    assert (y.dtype, y.requires_grad) == (dtypes.float64, None)
    assert y.tolist() == [2.0, 4.0]


def test_host_arrays_are_copied():
    array = np.ones(3, np.float32)
    tensor = Tensor(array)
    array[:] = 7
    assert tensor.tolist() == [1, 1, 1]
    tensor.numpy()[:] = 9
    assert tensor.tolist() == [1, 1, 1]


@pytest.mark.parametrize("turn", [lambda a: a.T, lambda a: a[::-1], lambda a: a[:, ::-2],
                                  np.asfortranarray, lambda a: np.broadcast_to(a[:1], (3, 6)),
                                  lambda a: a.astype(">f4")])  # fmt: skip
def test_arrays_of_any_layout_come_in_right(turn):
    array = turn(np.arange(24, dtype=np.float32).reshape(4, 6))
    np.testing.assert_array_equal(Tensor(array).numpy(), array)


@few
@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)))
def test_what_goes_in_comes_out(array):
    tensor = Tensor(array, device="numpy")
    assert tensor.shape == array.shape
    np.testing.assert_array_equal(tensor.numpy(), array)
    np.testing.assert_array_equal(np.array(tensor.tolist(), np.float32).reshape(array.shape), array)


@pytest.mark.parametrize(
    ("data", "dtype", "error", "word"),
    [
        ([300], "uint8", DTypeError, "300"),
        ([-1], "uint16", DTypeError, "-1"),
        ([300.7], "int8", DTypeError, "300"),
        ([math.nan], "int32", DTypeError, "nan"),
        ([math.inf], "int64", DTypeError, "inf"),
        (np.array([2**40]), "int32", DTypeError, "1099511627776"),
        ([2**63], None, DTypeError, "int64"),
        ([2**63, -1], None, DTypeError, "int64"),
        ([2**70], None, DTypeError, "64 bits"),
        ("text", None, DTypeError, "text"),
        (["a"], None, DTypeError, "not numbers"),
        ([None], None, DTypeError, "NoneType"),
        (None, None, DTypeError, "NoneType"),
        ({1: 2}, None, DTypeError, "dict"),
        ([1j], None, DTypeError, "complex128"),
        ([[1, 2], [3]], None, ShapeError, "ragged"),
        ([1.0], "float31", DTypeError, "float31"),
    ],
    ids=repr,
)
def test_data_that_does_not_fit_is_an_error_at_the_call(data, dtype, error, word):
    with pytest.raises(error, match=word.replace("(", r"\(")):
        Tensor(data, dtype=dtype)


def test_a_float_truncates_to_an_integer_that_fits():
    assert Tensor([1.9, -1.9], dtype="int8").tolist() == [1, -1]
    assert Tensor([2**63], dtype="uint64").tolist() == [2**63]
    assert Tensor([2**70], dtype="float32").tolist() == [2.0**70]


def test_numbers_too_large_for_a_float_are_infinite():
    assert Tensor([1e10, -1e10], dtype="float16").tolist() == [math.inf, -math.inf]


def test_bfloat16_rounds_to_nearest_even():
    values = np.array(
        [70000, 1.00390625, 1.01171875, 3.3895314e38, -1, 1e-40, math.inf], np.float32
    )
    bits = values.view(np.uint32).astype(np.uint64)
    bits[np.isfinite(values)] += 0x7FFF + ((bits[np.isfinite(values)] >> 16) & 1)
    want = ((bits >> 16) << 16).astype(np.uint32).view(np.float32)
    np.testing.assert_array_equal(Tensor(values, dtype="bfloat16").numpy(), want)
    np.testing.assert_array_equal(Tensor(values).bfloat16().float().numpy(), want)
    assert math.isnan(Tensor([math.nan], dtype="bfloat16").item())


# ---- creation functions --------------------------------------------------------------------------


def test_constants_have_their_shape_dtype_and_value():
    assert Tensor.zeros(2, 3).tolist() == [[0.0] * 3] * 2
    assert Tensor.ones((2,), dtype="int8").tolist() == [1, 1]
    assert Tensor.full((2,), 3).dtype is dtypes.int64
    assert Tensor.full((2,), 0.5).dtype is dtypes.float32
    assert Tensor.full((), True).dtype is dtypes.bool_
    assert Tensor.zeros(()).shape == ()
    assert Tensor.empty(0, 3).shape == (0, 3)
    assert Tensor([1, 2]).zeros_like().dtype is dtypes.int64
    assert cg.ones_like(Tensor([1.0]), dtype="int32").dtype is dtypes.int32
    assert math.copysign(1, Tensor.full((1,), -0.0).item()) == -1


@given(st.integers(-20, 20), st.integers(-20, 20), st.integers(-5, 5).filter(bool))
@few
def test_arange_of_integers_is_pythons_range(start, end, step):
    if (end - start) * step < 0:
        with pytest.raises(ValueError, match="step"):
            Tensor.arange(start, end, step, device="numpy")
        return
    made = Tensor.arange(start, end, step, device="numpy")
    assert made.dtype is dtypes.int64
    assert made.tolist() == list(range(start, end, step))


def test_arange_of_floats_does_not_drift():
    made = Tensor.arange(0, 100, 0.1)
    want = (np.arange(1000) * 0.1).astype(np.float32)
    np.testing.assert_array_equal(made.numpy(), want)
    assert Tensor.arange(5, dtype="float32").tolist() == [0, 1, 2, 3, 4]
    assert Tensor.arange(250, 256, dtype="uint8").tolist() == [250, 251, 252, 253, 254, 255]
    assert Tensor.arange(2**40, 2**40 + 2).tolist() == [2**40, 2**40 + 1]


@pytest.mark.parametrize(("start", "end", "steps"), [(0, 1, 5), (3, -2, 7), (0, 10, 1), (1, 2, 0)])
def test_linspace_reaches_both_ends(start, end, steps):
    np.testing.assert_allclose(
        Tensor.linspace(start, end, steps).numpy(), np.linspace(start, end, steps), rtol=1e-6
    )


def test_eye_is_an_identity_matrix(device):
    np.testing.assert_array_equal(Tensor.eye(3, 4, device=device).numpy(), np.eye(3, 4))
    assert Tensor.eye(2, dtype="int64").dtype is dtypes.int64


def test_numbers_that_do_not_fit_a_creation_function_are_errors():
    with pytest.raises(DTypeError, match="300"):
        Tensor.full((2,), 300, dtype="uint8")
    with pytest.raises(DTypeError, match="uint8"):
        Tensor.arange(300, dtype="uint8")
    with pytest.raises(ShapeError, match="negative"):
        Tensor.zeros(-1)
    with pytest.raises(TypeError, match="ints"):
        Tensor.zeros(1.5)


# ---- reading -------------------------------------------------------------------------------------


def test_what_a_tensor_says_of_itself():
    x = Tensor([[1.0, 2.0, 3.0]])
    assert (x.shape, x.ndim, x.dim(), x.numel(), len(x)) == ((1, 3), 2, 2, 3, 1)
    assert (x.size(), x.size(1), x.size(dim=-1), x.nbytes, x.element_size()) == (
        (1, 3),
        3,
        3,
        12,
        4,
    )
    assert (x.is_floating_point(), x.int().is_floating_point()) == (True, False)
    assert x.device == Device.DEFAULT


def test_one_element_is_a_python_number():
    assert (int(Tensor([2.7])), float(Tensor(2)), bool(Tensor([[0.0]]))) == (2, 2.0, False)
    assert [10, 20, 30][Tensor(1)] == 20
    assert f"{Tensor(1.23456):.2f}" == "1.23"
    assert f"{Tensor([7]):03d}" == "007"
    assert math.isnan(Tensor(math.nan).item())
    assert isinstance(Tensor([1]).item(), int)


def test_many_elements_are_not_one_number():
    for read in (bool, int, float, Tensor.item, lambda t: [0][t]):
        with pytest.raises((ShapeError, TypeError), match=r"\(2,\)|float32"):
            read(Tensor([1.0, 2.0]))
    with pytest.raises(TypeError, match="0-d"):
        len(Tensor(1.0))
    with pytest.raises(TypeError, match="0-d"):
        list(Tensor(1.0))


def test_repr_shows_values_dtype_and_device_and_stays_short():
    assert repr(Tensor([1.0, 2.0], device="cpu")) == "Tensor([1., 2.], dtype=float32, device=cpu)"
    assert "requires_grad=True" in repr(Tensor([1.0], requires_grad=True))
    text = repr(Tensor.zeros(1000, 1000))
    assert "..." in text
    assert len(text) < 2000
    assert repr(Tensor(5, device="cpu")) == "Tensor(5, dtype=int64, device=cpu)"


def test_containment_looks_at_values():
    assert 2 in Tensor([1, 2])
    assert 3 not in Tensor([1, 2])


def test_numpy_understands_tensors():
    x = Tensor([1.0, 2.0])
    assert np.asarray(x).dtype == np.float32
    assert np.asarray(x, np.float64).dtype == np.float64
    for result in (np.float32(2) * x, np.array([2.0, 2.0], np.float32) * x, np.float64(2) * x):
        assert isinstance(result, Tensor)
        assert result.tolist() == [2, 4]
        assert result.dtype is dtypes.float32
    assert (x + np.ones(2)).dtype is dtypes.float64


def test_data_is_computed_and_has_no_history():
    w = Tensor([1.0], requires_grad=True)
    assert (w * 2).data.requires_grad is False
    assert (w * 2).data.tolist() == [2.0]
    w.data = Tensor([5.0])
    assert w.tolist() == [5.0]
    assert w.requires_grad is True


# ---- dtypes and devices --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float", "double", "half", "bfloat16", "int", "long", "short",
                                  "byte", "bool"])  # fmt: skip
def test_short_names_cast(name):
    want = {"float": "float32", "double": "float64", "half": "float16", "int": "int32",
            "long": "int64", "short": "int16", "byte": "uint8"}.get(name, name)  # fmt: skip
    cast = getattr(Tensor([1.5, 0.0]), name)()
    assert cast.dtype.name == want
    assert cast.float().tolist()[1] == 0.0


def test_casts_follow_the_contract():
    x = Tensor([math.nan, math.inf, -math.inf, 1.9, -1.9, 3e9])
    assert x.int().tolist() == [0, 2**31 - 1, -(2**31), 1, -1, 2**31 - 1]
    assert x.bool().tolist() == [True] * 6
    assert Tensor([300, -1]).byte().tolist() == [44, 255]
    assert Tensor([True, False]).float().tolist() == [1.0, 0.0]


def test_to_takes_a_dtype_a_device_or_a_tensor():
    x = Tensor([1.5])
    assert x.to("float16").dtype is dtypes.float16
    assert x.to(dtypes.int32).dtype is dtypes.int32
    assert x.to("numpy").device == "numpy"
    moved = x.to("numpy", dtypes.float64)
    assert (moved.device, moved.dtype, moved.tolist()) == ("numpy", dtypes.float64, [1.5])
    assert x.to(moved).device == "numpy"
    assert x.to(x.device) is x
    assert x.type_as(Tensor([1])).dtype is dtypes.int64
    assert moved.cpu().device == "cpu"


def test_a_gradient_returns_over_a_copy_between_devices():
    x = Tensor([1.0, 2.0], device="cpu", requires_grad=True)
    (x.to("numpy") * 3).sum().backward()
    assert x.grad.device == "cpu"
    assert x.grad.tolist() == [3.0, 3.0]


def test_bits_can_be_read_as_another_dtype():
    x = Tensor([1.0, -2.0])
    assert x.view("int32").tolist() == [1065353216, -1073741824]
    assert x.bitcast(cg.uint32).bitcast(cg.float32).tolist() == [1.0, -2.0]
    with pytest.raises(DTypeError, match="bitcast"):
        x.bitcast("int64")


def test_the_default_device_can_be_set_and_scoped():
    before = Device.DEFAULT
    with Device("numpy"):
        assert Tensor([1.0]).device == "numpy"
        with Device("cpu"):
            assert Tensor([1.0]).device == "cpu"
        assert Device.DEFAULT == "numpy"
    assert before == Device.DEFAULT
    Device.DEFAULT = "numpy"
    try:
        assert Tensor.zeros(1).device == "numpy"
    finally:
        Device.DEFAULT = None
    assert before == Device.DEFAULT
    assert Device["cpu"].name == "cpu"
    assert Device.canonicalize("CPU:0") == "cpu"


def test_a_dtype_the_device_lacks_is_an_error_at_creation(monkeypatch):
    few_dtypes = frozenset((dtypes.float32, dtypes.int32, dtypes.bool_))
    monkeypatch.setattr("coregrad.api.device.supported", lambda device: few_dtypes)
    for make in (
        lambda: Tensor([1.0], dtype="float64", device="cpu"),
        lambda: Tensor(np.ones(2), device="cpu"),
        lambda: Tensor.zeros(2, dtype="float64", device="cpu"),
        lambda: Tensor([1.0], device="cpu").double(),
        lambda: Tensor([1.0], device="cpu").to("float64"),
    ):
        with pytest.raises(UnsupportedOp, match=r"'cpu'.*float64"):
            make()
    assert Tensor([1, 2]).dtype is dtypes.int32
    assert Tensor.arange(3).dtype is dtypes.int32
    with pytest.raises(DTypeError, match="int32"):
        Tensor([2**40])


# ---- copies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int64"])
def test_pickles_keep_values_dtype_flag_and_gradient(dtype):
    x = Tensor([0.0, 1.0, 2.0]).cast(dtype)
    again = pickle.loads(pickle.dumps(x))
    assert again.dtype is x.dtype
    assert again.tolist() == x.tolist()
    w = Tensor([1.0], requires_grad=True)
    (w * 3).sum().backward()
    again = pickle.loads(pickle.dumps(w))
    assert (again.requires_grad, again.grad.tolist()) == (True, [3.0])


def test_deepcopies_are_leaves_of_their_own():
    w = Tensor([1.0, 2.0], requires_grad=True)
    twin = copy.deepcopy({"w": w})["w"]
    twin.data = Tensor([5.0, 6.0])
    assert w.tolist() == [1.0, 2.0]
    (twin * 2).sum().backward()
    assert w.grad is None
    assert twin.grad.tolist() == [2.0, 2.0]
    assert copy.copy(w).tolist() == [1.0, 2.0]
