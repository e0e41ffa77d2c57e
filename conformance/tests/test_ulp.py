"""Rounding and distance against what other people's code says: NumPy's float16, Fractions, math."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coregrad import dtypes
from coregrad.dtypes import FLOATS
from coregrad_conformance import ulp

NARROW = [d for d in FLOATS if d is not dtypes.float64]


@given(st.floats(allow_nan=False))
def test_rounding_to_float16_and_float32_is_that_of_numpy(x):
    with np.errstate(all="ignore"):
        for dtype in (dtypes.float16, dtypes.float32):
            want = np.array(x).astype(dtype.storage)
            got = ulp.nearest(np.array([x]), dtype)
            assert got[0] == want
            assert np.signbit(got[0]) == np.signbit(want)


@given(st.integers(0, 0x7F7F), st.floats(0, 1), st.sampled_from([1, -1]))
def test_rounding_to_bfloat16_takes_the_nearer_neighbour(word, share, sign):
    low, high = (ulp.decode(np.array([w], np.uint16), dtypes.bfloat16)[0] for w in (word, word + 1))
    high = high if math.isfinite(high) else 2.0**128
    x = low + (high - low) * share
    got = abs(ulp.nearest(np.array([sign * x]), dtypes.bfloat16)[0])
    got = got if math.isfinite(got) else 2.0**128
    below, above = Fraction(x) - Fraction(low), Fraction(high) - Fraction(x)
    if below == above:
        assert got == (low if word % 2 == 0 else high)
    else:
        assert got == (low if below < above else high)


@pytest.mark.parametrize("dtype", NARROW)
def test_what_float64_could_not_hold_decides_a_tie(dtype):
    half = ulp.FORMATS[dtype].epsilon / 2
    tie = np.array([1 + half])
    assert ulp.nearest(tie, dtype) == 1
    assert ulp.nearest(tie, dtype, np.array([1e-30])) == 1 + 2 * half
    assert ulp.nearest(-tie, dtype, np.array([-1e-30])) == -1 - 2 * half
    assert ulp.nearest(tie + 2 * half, dtype, np.array([-1e-30])) == 1 + 2 * half


@pytest.mark.parametrize("dtype", FLOATS)
def test_decoding_and_encoding_are_inverse(dtype):
    words = np.arange(0, 1 << 16, 7, dtype=np.uint16)
    if dtype.bits > 16:
        words = (words.astype(f"u{dtype.itemsize}") << (dtype.bits - 16)) | 5
    stored = words.view(dtype.storage)
    numbers = ulp.decode(stored, dtype)
    kept = ~np.isnan(numbers)
    back = ulp.encode(numbers, dtype)
    assert np.array_equal(back[kept].view(words.dtype), words[kept])


@pytest.mark.parametrize("dtype", FLOATS)
def test_neighbours_are_one_ulp_apart(dtype):
    form = ulp.FORMATS[dtype]
    exact = np.array([1.0, 1.5, 2.0**form.emin, form.smallest * 4, form.max])
    step = np.array([form.epsilon, form.epsilon, form.smallest, form.smallest, -(form.max % 1)])
    step[-1] = -(2.0 ** (form.emax - form.digits + 1))
    assert ulp.distance(exact + step, exact, dtype).tolist() == [1.0] * 5


def test_distance_counts_what_is_no_number_as_infinite():
    nan, inf = math.nan, math.inf
    got = np.array([nan, 1.0, nan, inf, -inf, 0.0, -0.0, 1e-40, inf])
    want = np.array([nan, nan, 1.0, inf, inf, -0.0, 0.0, 0.0, 1.0])
    off = ulp.distance(got, want, dtypes.float32)
    assert off[[0, 3]].tolist() == [0, 0]
    assert np.isinf(off[[1, 2, 4, 5, 6]]).all()
    assert 70000 < off[7] < 72000  # a subnormal number where zero is exact
    assert off[8] > 1e30


@pytest.mark.parametrize("dtype", FLOATS)
def test_an_overflow_counts_as_the_number_that_would_come_next(dtype):
    top = ulp.FORMATS[dtype].max
    step = 2.0 ** (ulp.FORMATS[dtype].emax - ulp.FORMATS[dtype].digits + 1)
    got = np.array([np.inf, -np.inf, np.inf])
    off = ulp.distance(got, np.array([top, -top, top - 3 * step]), dtype)
    assert off.tolist() == [1.0, 1.0, 4.0]


def test_limits_are_those_of_the_contract():
    assert ulp.limit("exp", dtypes.float32) == 4.0
    assert ulp.limit("div", dtypes.float16) == 1.0
    assert ulp.limit("add", dtypes.int32) == ulp.EXACT
