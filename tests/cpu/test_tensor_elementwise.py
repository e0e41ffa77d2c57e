"""Element-wise methods against NumPy and exact integers: values, digits, corners, gradients."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numeric import check

import coregrad as cg
from coregrad import Tensor, dtypes
from coregrad.errors import DTypeError

NAN, INF = math.nan, math.inf
few = settings(max_examples=60, deadline=None)
INTS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]


def same(got, want):
    """Equal bit for bit, but for NaN, whose bits do not matter."""
    got, want = np.asarray(got), np.asarray(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(got, want)
    if got.dtype.kind == "f":
        number = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


# ---- promotion -----------------------------------------------------------------------------------

# What PyTorch 2 answers for torch.result_type.
PROMOTIONS = [
    (("int64", 1), ("float16", 1), "float16"),
    (("uint8", 1), ("int8", 1), "int16"),
    (("float16", 1), ("bfloat16", 1), "float32"),
    (("bool", 1), ("uint8", 1), "uint8"),
    (("int32", 1), ("int64", 0), "int32"),
    (("float32", 1), ("float64", 0), "float32"),
    (("int32", 1), ("float64", 0), "float64"),
    (("float16", 0), ("int64", 1), "float16"),
    (("bool", 1), ("int64", 0), "int64"),
    (("int8", 0), ("int64", 0), "int64"),
    (("uint8", 1), ("int64", 0), "uint8"),
    (("float64", 0), ("float16", 0), "float64"),
]
NUMBERS = [
    ("int32", 2, "int32"),
    ("int32", 2.0, "float32"),
    ("float16", 2.0, "float16"),
    ("bool", 2, "int64"),
    ("bool", 2.0, "float32"),
    ("bool", True, "bool"),
    ("float64", 2, "float64"),
    ("uint8", True, "uint8"),
    ("bfloat16", 2.5, "bfloat16"),
    ("int64", np.float32(2), "float32"),
    ("int8", np.int64(2), "int8"),
]


@pytest.mark.parametrize(("a", "b", "want"), PROMOTIONS, ids=str)
def test_two_tensors_are_promoted_as_in_pytorch(a, b, want):
    left = Tensor.ones((2,) * a[1], dtype=a[0])
    right = Tensor.ones((2,) * b[1], dtype=b[0])
    for x, y in ((left, right), (right, left)):
        assert x.mul(y).dtype.name == want
        assert cg.maximum(x, y).dtype.name == want
        assert x.where(Tensor(True), y).dtype.name == want


@pytest.mark.parametrize(("dtype", "number", "want"), NUMBERS, ids=str)
def test_numbers_are_promoted_as_in_pytorch(dtype, number, want):
    x = Tensor.ones(2, dtype=dtype)
    assert (x * number).dtype.name == want
    assert (number * x).dtype.name == want


def test_an_integer_tensor_divided_is_float32():
    for dtype in INTS:
        assert (Tensor([7], dtype=dtype) / 2).dtype is dtypes.float32
    assert (Tensor([7]) / Tensor([2])).tolist() == [3.5]
    assert (1 / Tensor([4], dtype="int8")).tolist() == [0.25]


def test_large_python_ints_meet_floats_as_the_numbers_they_are():
    x = Tensor([0.0, 1.0])
    assert (x + 2**66).tolist() == [2.0**66] * 2
    assert (x * 2**2000).tolist()[1] == INF


# ---- arithmetic ----------------------------------------------------------------------------------

ARITHMETIC = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
}


def pairs_of(dtype):
    info = np.iinfo(dtype)
    numbers = [info.min, info.min + 1, -3, -1, 0, 1, 2, 7, info.max - 1, info.max]
    kept = [n for n in dict.fromkeys(numbers) if info.min <= n <= info.max]
    grid = np.array(list(itertools.product(kept, kept)), dtype)
    return grid[:, 0], grid[:, 1]


@pytest.mark.parametrize("dtype", INTS)
def test_integer_arithmetic_wraps_like_numpy(dtype, device):
    a, b = pairs_of(dtype)
    x, y = Tensor(a, device=device), Tensor(b, device=device)
    for name, reference in ARITHMETIC.items():
        same(getattr(x, name)(y).numpy(), reference(a, b))
    same((-x).numpy(), -a)
    same((~x).numpy(), ~a)
    same(x.abs().numpy(), np.abs(a))
    same(x.sign().numpy(), np.sign(a))


def exact_floor(a, b):
    return 0 if b == 0 else a // b


def exact_mod(a, b):
    return 0 if b == 0 else a % b


def wrapped(values, dtype):
    bits = np.iinfo(dtype).bits
    return np.array([v % (1 << bits) for v in values], f"uint{bits}").view(dtype)


@pytest.mark.parametrize("dtype", INTS)
def test_integer_division_rounds_down_and_by_zero_is_zero(dtype, device):
    a, b = pairs_of(dtype)
    x, y = Tensor(a, device=device), Tensor(b, device=device)
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    same((x // y).numpy(), wrapped([exact_floor(*p) for p in pairs], dtype))
    same((x % y).numpy(), wrapped([exact_mod(*p) for p in pairs], dtype))
    quotient, rest = divmod(x, y)
    same((quotient * y + rest).numpy()[b != 0], a[b != 0])
    cut = [0 if q == 0 else abs(p) // abs(q) * (1 if p * q > 0 else -1) for p, q in pairs]
    same(x.div(y, rounding_mode="trunc").numpy(), wrapped(cut, dtype))


@given(st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), min_size=8, max_size=8))
@few
def test_float_remainder_and_floor_division_are_numpys(pairs):
    a, b = np.array(pairs, np.float32).T
    with np.errstate(all="ignore"):
        rest = np.remainder(a, b)
        quotient = np.floor_divide(a, b)
    x, y = Tensor(a, device="numpy"), Tensor(b, device="numpy")
    np.testing.assert_array_equal((x % y).numpy(), rest)
    np.testing.assert_array_equal((x // y).numpy(), quotient)


def test_shifts_beyond_the_width_lose_everything_but_the_sign(device):
    a, counts = np.array([-5, 5, -1, 3], np.int32), np.array([1, 31, 32, 100], np.int32)
    x, n = Tensor(a, device=device), Tensor(counts, device=device)
    assert (x >> n).tolist() == [-3, 0, -1, 0]
    assert (x << n).tolist() == [-10, -(2**31), 0, 0]
    assert (1 << Tensor([0, 4], device=device)).tolist() == [1, 16]


def test_bools_add_and_multiply_like_logic():
    a, b = Tensor([True, True, False]), Tensor([True, False, False])
    for result, want in ((a + b, [True, True, False]), (a * b, [True, False, False])):
        assert result.dtype is dtypes.bool_
        assert result.tolist() == want
    assert (a ^ b).tolist() == [False, True, False]
    assert (~a).tolist() == [False, False, True]


def test_nothing_is_folded_that_ieee_keeps(device):
    x = Tensor([NAN, INF, -INF, 2.0, -0.0], device=device)
    same((x * 0).numpy(), np.array([NAN, NAN, NAN, 0, -0.0], np.float32))
    same((x - x).numpy(), np.array([NAN, NAN, NAN, 0, 0], np.float32))
    same((x / x).numpy(), np.array([NAN, NAN, NAN, 1, NAN], np.float32))
    same((x + 0).numpy(), np.array([NAN, INF, -INF, 2, 0], np.float32))
    same((-x).numpy(), np.array([NAN, -INF, INF, -2, 0], np.float32))


# ---- comparisons ---------------------------------------------------------------------------------


def test_comparisons_with_nan_are_ieees(device):
    a = np.array([1, NAN, 1, INF, -0.0], np.float32)
    b = np.array([NAN, NAN, 1, INF, 0.0], np.float32)
    x, y = Tensor(a, device=device), Tensor(b, device=device)
    for ours, theirs in (
        (x == y, a == b),
        (x != y, a != b),
        (x < y, a < b),
        (x <= y, a <= b),
        (x > y, a > b),
        (x >= y, a >= b),
    ):
        same(ours.numpy(), theirs)


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("number", [-(2**70), -(2**63) - 1, -129, -1, 256, 2**40, 2**64, 2**70])
def test_integers_are_compared_with_any_python_int_rightly(dtype, number):
    info = np.iinfo(dtype)
    values = [info.min, 0, info.max]
    x = Tensor(np.array(values, dtype))
    assert (x < number).tolist() == [v < number for v in values]
    assert (x >= number).tolist() == [v >= number for v in values]
    assert (x == number).tolist() == [v == number for v in values]
    assert (number != x).tolist() == [number != v for v in values]
    assert (number > x).tolist() == [number > v for v in values]


def test_other_types_get_their_turn():
    class Other:
        def __radd__(self, other):
            return "radd"

    x = Tensor([1.0])
    assert x + Other() == "radd"
    assert (x == None) is False  # noqa: E711
    assert (x != "text") is True
    assert len({x: 1, Tensor([1.0]): 2}) == 2


# ---- rounding ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_rounding_is_exact_and_keeps_signs(dtype, device):
    halves = [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 3.5, 1022.5, 1e4, 4e4, INF]
    values = np.array([*halves, *(-v for v in halves), NAN], dtype)
    x = Tensor(values, device=device)
    same(x.floor().numpy(), np.floor(values))
    same(x.ceil().numpy(), np.ceil(values))
    same(x.trunc().numpy(), np.trunc(values))
    same(x.round().numpy(), np.rint(values))
    same(x.abs().numpy(), np.abs(values))


def test_rounding_of_large_and_integer_tensors():
    big = np.array([2.0**23 - 0.5, 2.0**23 + 1, 2.0**31 + 256, 3e38], np.float32)
    same(Tensor(big).round().numpy(), np.rint(big))
    assert Tensor([1, 2]).floor().dtype is dtypes.int64
    assert Tensor([1.25, 3.75]).round(decimals=1).tolist() == pytest.approx([1.2, 3.8])


# ---- digits --------------------------------------------------------------------------------------


def spread(low, high, count=400, seed=0):
    return np.exp(np.random.default_rng(seed).uniform(math.log(low), math.log(high), count))


def both(values):
    return np.concatenate([values, -values])


def normal_distribution(x):
    return 0.5 * math.erfc(-x / math.sqrt(2))


# name: (reference in float64, arguments, allowed error in units of the last place of float32)
DIGITS = {
    "exp": (math.exp, np.linspace(-87, 88, 700), 2),
    "exp2": (lambda x: 2.0**x, np.linspace(-149, 127.9, 900), 2),
    "expm1": (math.expm1, both(spread(1e-20, 80)), 3),
    "log": (math.log, spread(1e-38, 1e38), 2),
    "log2": (math.log2, np.r_[spread(1e-44, 1e38), spread(0.5, 2)], 3),
    "log10": (math.log10, np.r_[spread(1e-38, 1e38), spread(0.5, 2)], 3),
    "log1p": (math.log1p, np.r_[spread(1e-20, 1e30), -spread(1e-20, 0.99)], 3),
    "sqrt": (math.sqrt, spread(1e-38, 1e38), 1),
    "rsqrt": (lambda x: 1 / math.sqrt(x), spread(1e-38, 1e38), 2),
    "sin": (math.sin, both(spread(1e-5, 1e5)), 3),
    "cos": (math.cos, both(spread(1e-5, 1e5)), 3),
    "tan": (math.tan, both(spread(1e-5, 1e4)), 5),
    "asin": (math.asin, both(spread(1e-10, 1)), 4),
    "acos": (math.acos, both(spread(1e-10, 1)), 4),
    "atan": (math.atan, both(spread(1e-20, 1e20)), 3),
    "sinh": (math.sinh, both(spread(1e-20, 89)), 4),
    "cosh": (math.cosh, both(spread(1e-5, 89)), 4),
    "tanh": (math.tanh, both(spread(1e-20, 20)), 3),
    "asinh": (math.asinh, both(spread(1e-20, 1e38)), 4),
    "acosh": (math.acosh, 1 + spread(1e-6, 1e38), 4),
    "atanh": (math.atanh, both(spread(1e-20, 0.999)), 4),
    "sigmoid": (lambda x: 1 / (1 + math.exp(-x)), both(spread(1e-5, 100)), 4),
    "erf": (math.erf, both(spread(1e-20, 6)), 4),
    "erfc": (math.erfc, both(spread(1e-5, 9.5)), 6),
    "softplus": (lambda x: math.log1p(math.exp(x)), both(spread(1e-5, 80)), 4),
    "gelu": (lambda x: x * normal_distribution(x), both(spread(1e-10, 12)), 6),
    "silu": (lambda x: x / (1 + math.exp(-x)), both(spread(1e-10, 80)), 4),
}


def worst_error(got, want, dtype):
    """In units of the last place of the true value (of the smallest normal number below that)."""
    unit = np.spacing(np.maximum(np.abs(want), np.finfo(dtype).tiny).astype(dtype))
    with np.errstate(over="ignore"):
        finite = np.isfinite(want.astype(dtype))
    return np.max(np.abs(got.astype(np.float64) - want)[finite] / unit[finite], initial=0)


@pytest.mark.parametrize("name", DIGITS)
def test_digits_in_float32(name, device):
    reference, arguments, allowed = DIGITS[name]
    x = arguments.astype(np.float32)
    want = np.array([reference(v) for v in x.astype(np.float64).tolist()])
    got = getattr(Tensor(x, device=device), name)().numpy()
    assert got.dtype == np.float32
    assert worst_error(got, want, np.float32) <= allowed


@pytest.mark.parametrize("name", DIGITS)
def test_digits_in_float64(name):
    reference, arguments, allowed = DIGITS[name]
    if name == "gelu":
        arguments = arguments[np.abs(arguments) < 2]  # beyond, x/sqrt(2) costs the reference digits
    want = np.array([reference(v) for v in arguments.tolist()])
    got = getattr(Tensor(arguments), name)().numpy()
    error = np.max(np.abs(got - want) / np.spacing(np.maximum(np.abs(want), 1e-300)))
    assert error <= allowed + 3  # the reference is rounded too


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["exp2", "tanh", "sigmoid", "gelu", "softplus", "erf", "log1p"])
def test_half_precision_is_rounded_once(name, dtype):
    reference, _, _ = DIGITS[name]
    x = Tensor(np.linspace(0.1, 5, 99, dtype=np.float32)).cast(dtype)
    values = x.numpy().astype(np.float64)
    want = np.array([reference(v) for v in values.tolist()])
    got = getattr(x, name)()
    assert got.dtype.name == dtype
    digits = 11 if dtype == "float16" else 8
    np.testing.assert_allclose(
        got.numpy().astype(np.float64), want, rtol=0.51 * 2.0 ** (1 - digits)
    )


def test_powers_of_two_are_exact(device):
    exponents = np.arange(-149, 128)
    with np.errstate(all="ignore"):
        powers = np.ldexp(np.float32(1), exponents)
    same(Tensor(exponents.astype(np.float32), device=device).exp2().numpy(), powers)
    same(Tensor(powers, device=device).log2().numpy(), exponents.astype(np.float32))
    same((2 ** Tensor(exponents.astype(np.float32), device=device)).numpy(), powers)


SPECIAL = {
    "exp2": ([-INF, INF, NAN, 200, -200, 0], [0, INF, NAN, INF, 0, 1]),
    "expm1": ([-INF, INF, NAN, -0.0, -200], [-1, INF, NAN, -0.0, -1]),
    "log2": ([0, -0.0, -1, INF, NAN, 1e-45], [-INF, -INF, NAN, INF, NAN, -149]),
    "log10": ([0, -1, INF, NAN, 1], [-INF, NAN, INF, NAN, 0]),
    "log1p": ([-1, -2, INF, NAN, -0.0], [-INF, NAN, INF, NAN, -0.0]),
    "tanh": ([-INF, INF, NAN, -0.0, 100], [-1, 1, NAN, -0.0, 1]),
    "sigmoid": ([-INF, INF, NAN, -200, 200], [0, 1, NAN, 0, 1]),
    "erf": ([-INF, INF, NAN, -0.0], [-1, 1, NAN, -0.0]),
    "erfc": ([-INF, INF, NAN, 0], [2, 0, NAN, 1]),
    "atan": ([-INF, INF, NAN, -0.0], [-math.pi / 2, math.pi / 2, NAN, -0.0]),
    "asin": ([2, NAN, 1, -1], [NAN, NAN, math.pi / 2, -math.pi / 2]),
    "acos": ([2, NAN, 1, -1], [NAN, NAN, 0, math.pi]),
    "sinh": ([-INF, INF, NAN, -0.0], [-INF, INF, NAN, -0.0]),
    "cosh": ([-INF, INF, NAN, 0], [INF, INF, NAN, 1]),
    "asinh": ([-INF, INF, NAN, -0.0], [-INF, INF, NAN, -0.0]),
    "acosh": ([0, INF, NAN, 1], [NAN, INF, NAN, 0]),
    "atanh": ([-1, 1, 2, NAN, -0.0], [-INF, INF, NAN, NAN, -0.0]),
    "softplus": ([-INF, INF, NAN, 1000, -1000], [0, INF, NAN, 1000, 0]),
    "relu": ([-INF, INF, NAN, -1], [0, INF, NAN, 0]),
    "sign": ([-INF, INF, NAN, 0], [-1, 1, NAN, 0]),
    "sqrt": ([-1, INF, NAN, -0.0], [NAN, INF, NAN, -0.0]),
    "rsqrt": ([0, INF, NAN, -1], [INF, 0, NAN, NAN]),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(name, dtype, device):
    arguments, want = SPECIAL[name]
    got = getattr(Tensor(np.array(arguments, dtype), device=device), name)().numpy()
    if dtype == "float64" and name == "log2":
        want = [*want[:-1], math.log2(1e-45)]
    if name == "exp2" and dtype == "float64":
        want = [0, INF, NAN, 2.0**200, 2.0**-200, 1]
    if name in ("sigmoid", "softplus", "expm1", "relu") and dtype == "float64":
        got, want = got.astype(np.float32), np.array(want, np.float32)  # e**-200 is not 0 here
        np.testing.assert_allclose(got, want)
        return
    same(got, np.array(want, dtype))


# ---- powers --------------------------------------------------------------------------------------

ODD_ONES = [
    -INF,
    -3.0,
    -2.5,
    -2.0,
    -1.0,
    -0.5,
    -0.0,
    0.0,
    0.5,
    1.0,
    2.0,
    2.5,
    3.0,
    INF,
    NAN,
    1e30,
    -1e30,
    1e-30,
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_powers_of_special_values_are_cs(dtype, device):
    grid = np.array(list(itertools.product(ODD_ONES, ODD_ONES)), dtype)
    with np.errstate(all="ignore"):
        want = np.power(grid[:, 0], grid[:, 1])
    got = (Tensor(grid[:, 0], device=device) ** Tensor(grid[:, 1], device=device)).numpy()
    np.testing.assert_allclose(got, want, rtol=4 * np.finfo(dtype).eps)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 0.5, 5, 2.5, -0.5, INF, NAN])
def test_powers_by_a_number_are_the_same(exponent):
    x = np.array(ODD_ONES, np.float32)
    with np.errstate(all="ignore"):
        want = np.power(x, np.full_like(x, exponent))  # an array: NumPy takes sqrt for a scalar
    got = (Tensor(x) ** exponent).numpy()
    np.testing.assert_allclose(got, want, rtol=5e-7)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


def test_powers_have_their_digits(device):
    r = np.random.default_rng(0)
    x = np.exp(r.uniform(-12, 12, 3000)).astype(np.float32)
    y = r.uniform(-7, 7, 3000).astype(np.float32)
    want = np.power(x.astype(np.float64), y.astype(np.float64))
    got = (Tensor(x, device=device) ** Tensor(y, device=device)).numpy()
    assert worst_error(got, want, np.float32) <= 2


def test_whole_powers_are_exact_where_the_result_is_a_float32():
    cases = [(b, n) for b in range(2, 40) for n in range(1, 25) if b**n < 2**24]
    base = np.array([b for b, _ in cases], np.float32)
    exponent = np.array([n for _, n in cases], np.float32)
    want = [float(b**n) for b, n in cases]
    assert (Tensor(base) ** Tensor(exponent)).tolist() == want
    for n in (2, 3, 5, 7):
        assert (Tensor(base) ** n).numpy()[base**n < 2**24].tolist() == [
            float(b**n) for b in base.astype(int).tolist() if b**n < 2**24
        ]


@pytest.mark.parametrize("dtype", INTS)
def test_integer_powers_wrap(dtype):
    base = np.array([0, 1, 2, 3, 5, 7, 100], dtype)
    for n in (0, 1, 2, 5, 13):
        exact = wrapped([int(b) ** n for b in base], dtype)
        same((Tensor(base) ** n).numpy(), exact)
        same((Tensor(base) ** Tensor(np.full(7, n, dtype))).numpy(), exact)
    if dtype.startswith("int"):
        small = np.array([-1, 1, 2, 0], dtype)
        assert (Tensor(small) ** Tensor(np.array([-3, -3, -1, -1], dtype))).tolist() == [
            -1,
            1,
            0,
            0,
        ]


# ---- choices -------------------------------------------------------------------------------------


def test_maximum_minimum_and_clamp_keep_nan(device):
    a = np.array([1, NAN, 3, -INF, INF], np.float32)
    b = np.array([2, 1, NAN, 0, NAN], np.float32)
    x, y = Tensor(a, device=device), Tensor(b, device=device)
    same(x.maximum(y).numpy(), np.maximum(a, b))
    same(x.minimum(y).numpy(), np.minimum(a, b))
    same(x.clamp(-1, 2).numpy(), np.clip(a, np.float32(-1), np.float32(2)))
    assert Tensor([1, 5, 9]).clamp(min=2, max=6).tolist() == [2, 5, 6]
    assert Tensor([1, 5, 9]).clamp(6, 2).tolist() == [2, 2, 2]
    assert Tensor([1, 5, 9]).clip(max=Tensor([0, 9, 3])).tolist() == [0, 5, 3]


def test_where_chooses_and_broadcasts():
    c = Tensor([[True], [False]])
    assert cg.where(c, Tensor([1, 2]), 9).tolist() == [[1, 2], [9, 9]]
    assert cg.where(c, 1.0, 0.0).dtype is dtypes.float32
    assert cg.where(c, 2, Tensor([0.5])).tolist() == [[2.0], [0.5]]
    assert [t.tolist() for t in cg.where(Tensor([False, True]))] == [[1]]


def test_lerp_meets_both_ends_exactly():
    a, b = np.array([1e8, -3], np.float32), np.array([1, 7], np.float32)
    same(Tensor(a).lerp(Tensor(b), 1.0).numpy(), b)
    same(Tensor(a).lerp(Tensor(b), 0.0).numpy(), a)
    same(Tensor(a).lerp(Tensor(b), Tensor([0.0, 1.0])).numpy(), np.array([1e8, 7], np.float32))


def test_nan_to_num_fill_and_classes():
    x = Tensor([NAN, INF, -INF, 1.0])
    assert x.nan_to_num().tolist() == [0, np.finfo("f").max, -np.finfo("f").max, 1]
    assert x.nan_to_num(1, 2, 3).tolist() == [1, 2, 3, 1]
    assert x.isnan().tolist() == [True, False, False, False]
    assert x.isinf().tolist() == [False, True, True, False]
    assert x.isfinite().tolist() == [False, False, False, True]
    assert Tensor([1]).isfinite().tolist() == [True]
    assert x.masked_fill(x.isnan(), 5).tolist() == [5, INF, -INF, 1]
    assert cg.allclose(x, x, equal_nan=True)
    assert not cg.allclose(x, x)


def test_angles_and_signs_of_two_numbers():
    y = np.array([0.0, -0.0, 1, -1, INF, 1, -2, 0.0, -0.0], np.float32)
    x = np.array([1.0, -1, 0, 0, -INF, -INF, -3, -0.0, -0.0], np.float32)
    np.testing.assert_allclose(Tensor(y).atan2(Tensor(x)).numpy(), np.arctan2(y, x), rtol=3e-7)
    same(Tensor(y).copysign(Tensor(x)).numpy(), np.copysign(y, x))


# ---- activations ---------------------------------------------------------------------------------

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "hardtanh": lambda x: np.clip(x, -1, 1),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "celu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "selu": lambda x: (
        1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0)))
    ),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "swish": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * np.vectorize(normal_distribution)(x),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "logsigmoid": lambda x: -np.log1p(np.exp(-x)),
    "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "softsign": lambda x: x / (1 + np.abs(x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "square": np.square,
    "abs": np.abs,
    "reciprocal": lambda x: 1 / x,
    "erf": np.vectorize(math.erf),
    "erfc": np.vectorize(math.erfc),
}
POSITIVE = {
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: x**-0.5,
}
POINTS = np.array([-2.7, -1.3, -0.9, -0.4, 0.3, 0.8, 1.2, 2.6], np.float32)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_functions_and_their_gradients(name):
    check(lambda x: getattr(x, name)(), ACTIVATIONS[name], POINTS)


@pytest.mark.parametrize("name", POSITIVE)
def test_functions_of_positive_numbers_and_their_gradients(name):
    check(lambda x: getattr(x, name)(), POSITIVE[name], np.abs(POINTS))


@pytest.mark.parametrize(
    ("name", "reference", "points"),
    [
        ("asin", np.arcsin, POINTS / 3),
        ("acos", np.arccos, POINTS / 3),
        ("atanh", np.arctanh, POINTS / 3),
        ("acosh", np.arccosh, np.abs(POINTS) + 1),
    ],
)
def test_functions_of_bounded_numbers_and_their_gradients(name, reference, points):
    check(lambda x: getattr(x, name)(), reference, points)


def test_activations_with_parameters():
    x = np.array([-3.0, -0.5, 0.5, 3.0], np.float32)
    check(lambda t: t.leaky_relu(0.3), lambda a: np.where(a > 0, a, 0.3 * a), x)
    check(lambda t: t.elu(0.5), lambda a: np.where(a > 0, a, 0.5 * np.expm1(np.minimum(a, 0))), x)
    check(lambda t: t.softplus(2.0), lambda a: np.log1p(np.exp(2 * a)) / 2, x)
    check(lambda t: t.hardtanh(-2, 1), lambda a: np.clip(a, -2, 1), x)

    def approximate(a):
        return 0.5 * a * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)))

    check(lambda t: t.gelu(approximate="tanh"), approximate, x)


BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "pow": lambda a, b: np.abs(a) ** b,
    "atan2": np.arctan2,
    "logaddexp": np.logaddexp,
    "fmod": np.fmod,
    "remainder": np.remainder,
}


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_numbers_and_both_gradients(name):
    a, b = POINTS.reshape(2, 4), np.array([1.7, -0.6, 2.2, -1.1], np.float32)
    if name == "pow":
        a = np.abs(a)
    check(lambda x, y: getattr(x, name)(y), BINARY[name], a, b)


def test_gradients_far_out_are_finite():
    far = [-200.0, -95.0, 95.0, 200.0]
    for name, want in (
        ("sigmoid", [0, 0, 0, 0]),
        ("tanh", [0] * 4),
        ("softplus", [0, 0, 1, 1]),
        ("gelu", [0, 0, 1, 1]),
        ("silu", [0, 0, 1, 1]),
        ("elu", [0, 0, 1, 1]),
        ("mish", [0, 0, 1, 1]),
    ):
        x = Tensor(far, requires_grad=True)
        getattr(x, name)().sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), want, atol=1e-6, err_msg=name)


def test_gradients_at_the_bends_are_pytorchs():
    for name, at, want in (
        ("relu", 0.0, 0.0),
        ("abs", 0.0, 0.0),
        ("relu6", 6.0, 0.0),
        ("leaky_relu", 0.0, 0.01),
    ):
        x = Tensor([at], requires_grad=True)
        getattr(x, name)().sum().backward()
        assert x.grad.tolist() == [np.float32(want)]
    x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    x.clamp(1, 2).sum().backward()
    assert x.grad.tolist() == [1, 1, 0]


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5, 0.5, -1, 2.5])
def test_gradients_of_powers_by_a_number(exponent):
    x = np.array([0.5, 1.0, 2.0, 3.5], np.float32)
    check(lambda t: t**exponent, lambda a: a**exponent, x)


def test_gradients_of_powers_at_zero():
    x = Tensor([0.0, 0.0], requires_grad=True)
    y = Tensor([2.0, 0.0], requires_grad=True)
    (x**y).sum().backward()
    assert x.grad.tolist() == [0, 0]
    assert y.grad.tolist() == [0, 0]


# ---- in place ------------------------------------------------------------------------------------


def test_in_place_methods_return_the_tensor_with_its_new_value():
    x = Tensor([4.0, 9.0])
    assert x.add_(1) is x
    assert x.sub_(2).mul_(3).div_(2).tolist() == [4.5, 12.0]
    assert x.pow_(2).clamp_(max=100).tolist() == [20.25, 100]
    assert x.fill_(3).tolist() == [3, 3]
    assert x.copy_(Tensor([1, 2])).tolist() == [1, 2]
    assert x.lerp_(Tensor([3.0, 4.0]), 0.5).masked_fill_(Tensor([True, False]), 9).tolist() == [
        9,
        3,
    ]
    assert x.zero_().tolist() == [0, 0]
    assert x.fill_(Tensor(2.0)).tolist() == [2, 2]
    n = Tensor([7, 8])
    n //= 2
    n %= 3
    assert n.tolist() == [0, 1]


def test_in_place_results_are_cast_back_within_their_kind():
    x = Tensor([1.0], dtype="float16")
    x += Tensor([1.0], dtype="float64")
    assert x.dtype is dtypes.float16
    n = Tensor([100], dtype="int8")
    n += Tensor([100], dtype="int64")
    assert (n.dtype, n.tolist()) == (dtypes.int8, [-56])
    with pytest.raises(DTypeError):
        n /= 2
