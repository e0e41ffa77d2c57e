"""The oracles against third parties (Fractions, mpmath) and cases by hand; and that they object."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coregrad import dtypes
from coregrad.dtypes import FLOATS, INTS, float16, float32, float64, int8, int32
from coregrad_conformance import oracle, tables, ulp
from coregrad_conformance.oracle import Expected
from coregrad_conformance.row import Failure

singles = st.floats(width=32, allow_nan=False, allow_infinity=False)


def one(op, dtype, *numbers, attr=None):
    operands = [np.array([n], dtype.storage) for n in numbers]
    return oracle.elementwise(op, dtype, operands, attr).values[0]


@given(singles, singles)
def test_float32_arithmetic_is_the_exact_result_rounded_once(a, b):
    for op, exact in (("add", Fraction(a) + Fraction(b)), ("mul", Fraction(a) * Fraction(b))):
        value = ulp.nearest(np.array([one(op, float32, a, b)]), float32)[0]
        if math.isfinite(value):
            assert abs(Fraction(value) - exact) <= Fraction(float(ulp.quantum(value, float32))) / 2


def test_special_values_of_the_functions():
    inf, nan = math.inf, math.nan
    assert one("exp", float32, -inf) == 0
    assert one("exp", float32, 1e30) == inf
    assert one("log", float32, -0.0) == -inf
    assert math.isnan(one("log", float32, -1))
    assert math.isnan(one("sin", float32, inf, attr=1))
    assert one("sin", float32, 0.0, attr=1) == 1
    assert one("sin", float32, 0.0, attr=3) == -1
    assert math.copysign(1, one("sqrt", float32, -0.0)) == -1
    assert math.copysign(1, one("trunc", float32, -0.5)) == -1
    assert math.isnan(one("max", float32, nan, 1.0))
    assert math.isnan(one("mod", float32, 1.0, 0.0))
    assert one("mod", float32, -5.5, 2.0) == -1.5
    assert one("mod", float32, 5.0, inf) == 5


def test_integers_wrap_and_truncate():
    assert one("add", int8, 127, 1) == -128
    assert one("mul", int32, 1 << 20, 1 << 12) == 0
    assert one("idiv", int32, -7, 2) == -3
    assert one("mod", int32, -7, 2) == -1
    assert one("shr", int32, -8, 1) == -4
    assert one("shl", int8, 1, 7) == -128


def test_float64_functions_agree_with_mpmath_at_many_digits():
    x = np.array([0.1, 1e-8, 700.0, 5.319372648326541e255])
    with mpmath.workprec(3000):
        want = mpmath.cos(mpmath.mpf(float(x[3])))
        got = oracle.elementwise("sin", float64, [x], 1)
        assert (
            abs(got.values[3] + mpmath.mpf(got.rest[3]) - want) < abs(want) * mpmath.mpf(2) ** -100
        )


@pytest.mark.parametrize("source", FLOATS)
def test_floats_to_integers_saturate(source):
    x = tables.numbers(np.array([math.nan, math.inf, -math.inf, 300.7, -0.9, -129]), source)
    assert oracle.cast(x, source, int8).values.tolist() == [0, 127, -128, 127, 0, -128]
    assert oracle.cast(x, source, dtypes.uint8).values[[1, 2, 4]].tolist() == [255, 0, 0]


def test_integers_to_floats_are_rounded_once():
    tie = (1 << 62) + (1 << 38)  # halfway between two float32
    x = np.array([tie - 1, tie, tie + 1])
    expected = oracle.cast(x, dtypes.int64, float32)
    got = ulp.nearest(expected.values, float32, expected.rest)
    assert got.tolist() == [2.0**62, 2.0**62, 2.0**62 + 2.0**39]


def test_a_sum_may_be_taken_in_any_order():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((50, 100)).astype(np.float32)
    interval = oracle.sums(rows.astype(np.float64), float32, float32)
    for order in range(5):
        shuffled = np.random.default_rng(order).permuted(rows, axis=1)
        totals = np.zeros(50, np.float32)
        for column in shuffled.T:
            totals = totals + column
        oracle.within(totals, interval, float32)


def test_a_sum_in_float16_is_found():
    rows = np.full((1, 1025), 0.5)
    rows[0, 0] = 4096
    interval = oracle.sums(rows, float32, float16)
    oracle.within(np.array([4608], np.float16), interval, float16)
    with pytest.raises(Failure, match="exactly 4608"):
        oracle.within(np.array([4096], np.float16), interval, float16)


def test_sums_with_infinities_are_those_of_addition():
    rows = np.array([[1, math.inf], [math.inf, -math.inf], [math.nan, 1]])
    interval = oracle.sums(rows, float32, float32)
    oracle.within(np.array([np.inf, np.nan, np.nan], np.float32), interval, float32)
    with pytest.raises(Failure):
        oracle.within(np.array([np.inf, np.inf, np.nan], np.float32), interval, float32)


def test_the_first_largest_is_a_nan_if_there_is_one():
    assert oracle.first_largest([1.0, math.nan, 3.0, math.nan]) == 1
    assert oracle.first_largest([-math.inf, -math.inf]) == 0
    assert oracle.first_largest([1.0, 3.0, 3.0]) == 1


def test_a_failure_names_the_element_its_operands_and_the_distance():
    got = np.array([1, 2, 3 + 2.0**-19], np.float32)
    expected = Expected(np.array([1.0, 2, 3]))
    with pytest.raises(Failure, match=r"element 2 of 7\.0: got .*expected .*1 of 3.*8\.0+ ulp"):
        oracle.compare(got, expected, float32, [np.array([5.0, 6, 7])], 4.0)
    outcome = oracle.compare(got, expected, float32, [np.array([5.0, 6, 7])], 9.0)
    assert outcome.compared == 3
    assert outcome.ulp == 8
    assert outcome.worst == "7.0"


def test_zeros_may_differ_in_sign_only_where_that_is_free():
    got = np.array([0.0], np.float32)
    minus = np.array([-0.0])
    with pytest.raises(Failure):
        oracle.compare(got, Expected(minus), float32)
    assert oracle.compare(got, Expected(minus, either_zero=np.array([True])), float32).ulp == 0


def test_a_bool_is_a_byte_of_0_or_1():
    expected = Expected(np.array([True, False]))
    oracle.compare(np.array([1, 0], np.uint8).view(bool), expected, dtypes.bool_)
    with pytest.raises(Failure):
        oracle.compare(np.array([2, 0], np.uint8).view(bool), expected, dtypes.bool_)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS])
def test_special_values_are_32(dtype):
    values = tables.specials(dtype)
    assert values.size == 32
    if not dtype.is_float:
        assert {int(dtype.min), int(dtype.max), 0, 1} <= set(values.tolist())


def test_ties_lie_halfway():
    for dtype in (float16, dtypes.bfloat16, float32):
        ties = np.array(tables._ties(dtype)[:10])
        unit = ulp.quantum(ties, dtype)
        assert ((ties / unit) % 1 == 0.5).all()
