"""Numbers and their bits against NumPy and exact fractions; promotion against PyTorch's table."""

import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coregrad import dtypes
from coregrad.dtypes import (
    ALL,
    FLOATS,
    INTS,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    from_bits,
    int64,
    promote,
    to_bits,
    uint64,
)
from coregrad.errors import DTypeError

by_dtype = pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
any_number = st.floats() | st.integers(-(2**70), 2**70) | st.integers(-(2**1030), 2**1030)


def nearest(value: float, dtype: dtypes.DType) -> float:
    """``value`` rounded to nearest even by exact arithmetic on fractions."""
    if value != value or value in (math.inf, -math.inf) or value == 0:
        return float(value)
    digits, low = {
        "float16": (11, -24), "bfloat16": (8, -133), "float32": (24, -149), "float64": (53, -1074),
    }[dtype.name]  # fmt: skip
    top = {"float16": 16}.get(dtype.name, 1024 if dtype is float64 else 128)
    exact = abs(Fraction(value))
    exponent = exact.numerator.bit_length() - exact.denominator.bit_length()
    exponent -= exact < Fraction(2) ** exponent
    unit = Fraction(2) ** max(exponent - digits + 1, low)
    rounded = round(exact / unit) * unit  # round() of a Fraction rounds halves to even
    result = math.inf if rounded >= Fraction(2) ** top else float(rounded)
    return -result if value < 0 else result


@by_dtype
def test_bits_survive_the_way_through_a_python_number(dtype: dtypes.DType) -> None:
    samples = {0, 1, (1 << dtype.bits) - 1, 1 << (dtype.bits - 1), 0x3C00, 0x7F, 0x1234}
    for bits in samples if dtype is not bool_ else {0, 1}:
        bits &= (1 << dtype.bits) - 1
        value = from_bits(bits, dtype)
        if value == value:
            assert to_bits(value, dtype) == bits


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@settings(deadline=None)
@given(value=any_number)
def test_every_number_is_rounded_to_the_nearest_with_ties_to_even(
    dtype: dtypes.DType, value: float
) -> None:
    got, want = from_bits(to_bits(value, dtype), dtype), nearest(value, dtype)
    assert (math.isnan(got) and math.isnan(want)) or (
        got == want and math.copysign(1, got) == math.copysign(1, want)
    )


def test_a_double_just_above_a_tie_rounds_up_to_bfloat16() -> None:
    tie = 1 + 2.0**-8
    assert from_bits(to_bits(tie, bfloat16), bfloat16) == 1.0
    assert from_bits(to_bits(tie + 2.0**-40, bfloat16), bfloat16) == 1 + 2.0**-7
    assert from_bits(to_bits(2**60 + 2**52 + 1, bfloat16), bfloat16) == 2**60 + 2**53


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_nan_and_infinity_stay_what_they_are(dtype: dtypes.DType) -> None:
    assert math.isnan(from_bits(to_bits(math.nan, dtype), dtype))
    assert from_bits(to_bits(math.inf, dtype), dtype) == math.inf
    assert from_bits(to_bits(-math.inf, dtype), dtype) == -math.inf
    assert to_bits(-0.0, dtype) == 1 << (dtype.bits - 1)


@pytest.mark.parametrize("dtype", [float16, float32, float64], ids=lambda d: d.name)
@settings(deadline=None)
@given(bits=st.integers(0, 2**64 - 1))
def test_bits_mean_what_numpy_says(dtype: dtypes.DType, bits: int) -> None:
    bits &= (1 << dtype.bits) - 1
    word = np.array(bits, np.uint64).astype(f"uint{dtype.bits}")
    np.testing.assert_equal(from_bits(bits, dtype), float(word.view(dtype.storage)))


@pytest.mark.parametrize("dtype", INTS, ids=lambda d: d.name)
def test_a_number_outside_an_integer_dtype_is_refused(dtype: dtypes.DType) -> None:
    info = np.iinfo(dtype.storage)
    assert (dtype.min, dtype.max) == (info.min, info.max)
    assert from_bits(to_bits(dtype.min, dtype), dtype) == info.min
    for value in (info.max + 1, info.min - 1, 0.5, math.nan, math.inf):
        with pytest.raises(DTypeError, match=rf"does not fit {dtype.name} \({info.min} \.\. "):
            to_bits(value, dtype)


def test_promotion_is_symmetric_and_follows_numpy_except_for_floats_with_integers() -> None:
    for a in ALL:
        for b in ALL:
            if {a.name, b.name} & {"bfloat16"} or uint64 in (a, b):
                continue
            assert promote(a, b) is promote(b, a)
            if a.is_float == b.is_float:
                want = np.promote_types(a.storage, b.storage).name
            else:
                want = a.name if a.is_float else b.name  # PyTorch: the float's own width stays
            assert promote(a, b).name == want


def test_promotion_of_the_special_pairs_is_pytorchs() -> None:
    assert promote(bfloat16, float16) is float32
    assert promote(bfloat16, int64) is bfloat16
    assert promote(bfloat16, float64) is float64
    assert promote(uint64, bool_) is uint64
    with pytest.raises(DTypeError, match=r"int64 and uint64 have no common integer type; cast"):
        promote(uint64, int64)


@by_dtype
def test_a_dtype_keeps_its_identity_through_pickle_and_names(dtype: dtypes.DType) -> None:
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert dtypes.by_name(dtype.name) is dtype
    assert dtype.itemsize == np.dtype(dtype.storage).itemsize


def test_an_unknown_dtype_name_lists_the_known_ones() -> None:
    with pytest.raises(DTypeError, match=r"'float8' is unknown; choose one of: bool, uint8"):
        dtypes.by_name("float8")


def test_small_floats_and_integers_accumulate_in_wider_dtypes() -> None:
    names = {d.name: dtypes.accumulator(d).name for d in ALL if dtypes.accumulator(d) is not d}
    assert names == {
        "float16": "float32", "bfloat16": "float32",
        "int8": "int32", "int16": "int32", "uint8": "uint32", "uint16": "uint32",
    }  # fmt: skip
