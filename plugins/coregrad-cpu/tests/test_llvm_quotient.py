"""Division by a divisor that all lanes share gives every bit of the division it replaces.

The oracle is NumPy's division, which is the processor's. Run once, outside these tests: all 2**23
mantissas of a float32 divisor with the 64 dividends each that come closest to a tie.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coregrad.dtypes import float16, float32, float64, int64
from coregrad.hookspecs import Header
from coregrad.ir.kernel import Param

pytest.importorskip("llvmlite")

from coregrad_cpu.llvm.backend import Backend
from coregrad_cpu.llvm.compiler import Compiler

ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
NUMBERS = {float32: np.float32, float64: np.float64}
WORDS = {float32: np.uint32, float64: np.uint64}
PRECISION = {float32: 24, float64: 53}
BOTH = pytest.mark.parametrize("dtype", [float32, float64], ids=str)
COLUMNS = 64
rng = np.random.default_rng(13)


@functools.cache
def compiler():
    return Compiler(None)


@functools.cache
def program(dtype, lanes, inside=False, spread=True):
    """Rows of dividends by one divisor each, which is read before the row or again and again."""
    backend = Backend()
    x, d, y = (Param(name, dtype, 1 << 30, "in") for name in "xdy")
    frame = backend.begin_kernel(Header("test", (x, d, y), 1 << 20), None)
    for row in frame.loop("i0", 1 << 20, "grid", 1, False):
        first = backend.lower_mul(frame, row, str(COLUMNS), int64, 1)
        divisor = backend.lower_load(frame, d, row, 0, None, dtype, 1)
        for column in frame.loop("i1", COLUMNS, "serial", lanes, False):
            if inside:
                divisor = backend.lower_load(frame, d, row, 0, None, dtype, 1)
            at = backend.lower_add(frame, first, column, int64, 1)
            a = backend.lower_load(frame, x, at, 1, None, dtype, lanes)
            b = frame.broadcast(divisor, dtype, lanes) if spread else a
            quotient = backend.lower_div(frame, a, b, dtype, lanes)
            backend.lower_store(frame, y, at, 1, quotient, None, dtype, lanes)
    return frame.finish()


def same_as_division(x, d, dtype, lanes=16, inside=False):
    """``x[i] / d[i]``, a row of COLUMNS dividends at a time, bit by bit."""
    x, d = np.ascontiguousarray(x, NUMBERS[dtype]), np.ascontiguousarray(d, NUMBERS[dtype])
    assert x.shape == (*d.shape, COLUMNS)
    got = np.empty_like(x)
    kernel = ENTRY(compiler().address(program(dtype, lanes, inside)))
    kernel((ctypes.c_void_p * 3)(x.ctypes.data, d.ctypes.data, got.ctypes.data), 0, len(d))
    with np.errstate(all="ignore"):
        want = x / d[:, None]
    word = WORDS[dtype]
    equal = (got.view(word) == want.view(word)) | (np.isnan(got) & np.isnan(want))
    row, column = np.unravel_index(np.argmin(equal), equal.shape)
    assert equal.all(), (x[row, column], d[row], got[row, column], want[row, column])


def ends(dtype):
    """Zeros, subnormals, infinity, NaN, and numbers around the ends of what is multiplied."""
    number = NUMBERS[dtype]
    about = np.finfo(number)
    at = {float32: (-126, -63, -32, -31, 32, 33, 65), float64: (-511, -256, -255, 256, 257, 513)}
    powers = np.ldexp(number(1), np.array(at[dtype]))
    tiny = about.smallest_subnormal
    few = [0, tiny, 3 * tiny, 5 * tiny, about.tiny, about.max, np.inf, np.nan, 1, 3, 10, 0.1]
    values = np.array(few, number)
    values = np.concatenate([values, np.nextafter(powers, number(0)), powers, powers * number(1.5)])
    return np.concatenate([values, -values])


def hardest(divisor, dtype):
    """COLUMNS dividends whose quotients by an odd integer come as close to a tie as any do.

    Such a quotient is nearly m / 2**s, m having one bit too many and divisor * m = x * 2**s + c
    with a small c; so m is c / divisor modulo 2**s.
    """
    p = PRECISION[dtype]
    found = []
    sizes = itertools.count(1, 2)
    while len(found) < COLUMNS:
        size = next(sizes)
        for c, s in itertools.product((size, -size), (p, p + 1)):
            m = c * pow(divisor, -1, 1 << s) % (1 << s)
            m += (1 << p) * (s == p)
            x = (m * divisor - c) >> s
            if m >= 1 << p and 1 << (p - 1) <= x < 1 << p:
                found.append(x)
    return found[:COLUMNS]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("lanes", [2, 4, 8, 16, 64])
@BOTH
def test_special_values_divide_as_ieee_says(dtype, lanes, inside):
    values = ends(dtype)
    x = np.resize(values, (len(values), 2 * COLUMNS)).reshape(-1, COLUMNS)
    same_as_division(x, np.repeat(values, 2), dtype, lanes, inside)


@pytest.mark.parametrize("special", [0.0, -0.0, 1e-40, np.inf, np.nan])
@BOTH
def test_one_special_lane_spoils_no_other(dtype, special):
    x = rng.standard_normal((COLUMNS, COLUMNS))
    np.fill_diagonal(x, special)
    same_as_division(x, rng.standard_normal(COLUMNS), dtype)


@BOTH
def test_quotients_closest_to_a_tie_are_rounded_correctly(dtype):
    p = PRECISION[dtype]
    few = [(1 << p) - 1, (1 << p) - 3, (1 << p - 1) + 1, (1 << p - 1) + 3]
    some = [int(d) | 1 for d in rng.integers(1 << p - 1, 1 << p, 2000)]
    x = np.array([hardest(d, dtype) for d in few + some], NUMBERS[dtype])
    same_as_division(x, np.array(few + some), dtype)


@pytest.mark.parametrize("exact", [False, True])
@BOTH
def test_dividends_and_divisors_of_every_size_divide_exactly(dtype, exact):
    """Exact quotients, of twenty bits, become ties where they are subnormal."""
    powers = {float32: np.arange(-149, 128), float64: np.arange(-1074, 1024)}[dtype]
    width = -(-len(powers) // COLUMNS) * COLUMNS
    x, d = rng.uniform(1, 1.999, (len(powers), width)), rng.uniform(1, 1.999, len(powers))
    if exact:
        d = rng.choice([1.25, 1.5, 1.625, 1.75], len(powers))
        x = 2 * np.frexp(d[:, None] * rng.integers(1, 1 << 20, x.shape))[0]
    x = np.ldexp(x.astype(NUMBERS[dtype]), np.resize(powers, width)).reshape(-1, COLUMNS)
    d = np.ldexp(d.astype(NUMBERS[dtype]), powers)
    same_as_division(x, np.repeat(d, width // COLUMNS), dtype)


@pytest.mark.parametrize("divisor", [3.0, 2.0 - 2.0**-23, 1.0 + 2.0**-23, 1.4142135, 0.1])
def test_every_mantissa_is_divided_exactly(divisor):
    x = np.arange(1 << 23, 1 << 24, dtype=np.float32).reshape(-1, COLUMNS)
    same_as_division(x, np.full(len(x), divisor), float32)


@given(st.data(), st.sampled_from([float32, float64]), st.sampled_from([2, 8, 16]))
@settings(deadline=None)
def test_any_bits_divide_as_the_processor_divides_them(data, dtype, lanes):
    bits = st.integers(0, 2**dtype.bits - 1)
    x = np.array(data.draw(st.lists(bits, min_size=1, max_size=8)), WORDS[dtype])
    d = np.array([data.draw(bits)], WORDS[dtype])
    same_as_division(
        np.resize(x.view(NUMBERS[dtype]), (1, COLUMNS)), d.view(NUMBERS[dtype]), dtype, lanes
    )


@BOTH
def test_random_bits_divide_as_the_processor_divides_them(dtype):
    words, rows = WORDS[dtype], 1 << 12
    draw = functools.partial(rng.integers, 0, 2**dtype.bits, dtype=words)
    x, d = draw((rows, COLUMNS)).view(NUMBERS[dtype]), draw(rows).view(NUMBERS[dtype])
    same_as_division(x, d, dtype)
    same_as_division(rng.standard_normal(x.shape), rng.standard_normal(d.shape), dtype)


@pytest.mark.parametrize("inside", [False, True])
def test_the_reciprocal_stands_before_the_loop_if_the_divisor_does(inside):
    text = program(float32, 16, inside)
    row, column = (found.start() for found in re.finditer("phi i64", text[: text.index("fneg")]))
    assert row < text.index("fdiv float ") < text.index("fdiv <16 x float>")
    assert (column < text.index("fdiv float ")) == inside


def test_a_divisor_of_its_own_in_every_lane_is_divided_by():
    assert "llvm.fma" not in program(float32, 16, spread=False)


def test_half_precision_divides_in_float32():
    assert "llvm.fma" not in program(float16, 16)
