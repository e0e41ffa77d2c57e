"""exp, log and sin of the LLVM backend against float64, decimal and exact integer arithmetic."""

from __future__ import annotations

import ctypes
import decimal
import functools
import math
import re

import numpy as np
import pytest

from coregrad.dtypes import bfloat16, float16, float32, float64
from coregrad.hookspecs import Header
from coregrad.ir.kernel import Param

pytest.importorskip("llvmlite")

from coregrad_cpu.llvm.backend import Backend
from coregrad_cpu.llvm.compiler import Compiler

LANES = 16
SAMPLES = 1 << 20
FUNCTIONS = ("exp", "log", "sin0", "sin1", "sin2", "sin3")
SINES = FUNCTIONS[2:]
REFERENCE = {
    "exp": np.exp,
    "log": np.log,
    "sin0": np.sin,
    "sin1": np.cos,
    "sin2": lambda x: -np.sin(x),
    "sin3": lambda x: -np.cos(x),
}
ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@functools.cache
def compiler():
    return Compiler(None)


@functools.cache
def program(name, dtype, lanes):
    """A kernel that applies one hook to as many elements as its chunk says."""
    backend = Backend()
    x, y = Param("x", dtype, 1 << 30, "in"), Param("y", dtype, 1 << 20, "out")
    frame = backend.begin_kernel(Header("test", (x, y), 1 << 20), None)
    for index in frame.loop("i0", 1 << 20, "grid", lanes, False):
        value = backend.lower_load(frame, x, index, 1, None, dtype, lanes)
        if name.startswith("sin"):
            value = backend.lower_sin(frame, value, int(name[3]), dtype, lanes)
        else:
            value = getattr(backend, f"lower_{name}")(frame, value, dtype, lanes)
        backend.lower_store(frame, y, index, 1, value, None, dtype, lanes)
    return frame.finish()


def evaluate(name, x, dtype=float32, lanes=LANES):
    kernel = ENTRY(compiler().address(program(name, dtype, lanes)))
    padded = np.concatenate([x, np.ones(-len(x) % lanes, x.dtype)])
    y = np.empty_like(padded)
    kernel((ctypes.c_void_p * 2)(padded.ctypes.data, y.ctypes.data), 0, len(padded))
    return y[: len(x)]


def ulps(y, exact, smallest=-126, digits=23):
    """Distance from the exact value in units of the format's last place there.

    Infinity counts as the power of two after the largest number, so that an exact value above the
    largest number may become either. Two NaNs are 0 apart; a NaN is infinitely far from a number.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        y = np.asarray(y, np.float64)
        top = np.ldexp(1.0, 2 - smallest)
        same = (np.isnan(y) & np.isnan(exact)) | (y == exact)
        near = np.isinf(y) & (exact * np.sign(y) >= top * (1 - 2.0 ** -(digits + 1)))
        exponent = np.frexp(np.where(np.isfinite(exact), exact, 1.0))[1] - 1
        place = np.ldexp(1.0, np.maximum(exponent, smallest) - digits)
        distance = np.abs(y - exact) / place
    return np.where(same | near, 0.0, np.where(np.isnan(distance), np.inf, distance))


def worst(name, x):
    with np.errstate(all="ignore"):
        exact = REFERENCE[name](x.astype(np.float64))
    distance = ulps(evaluate(name, x), exact)
    at = int(np.argmax(distance))
    return distance[at], f"{name}({x[at]!r}) is {distance[at]:.3f} ulp off"


def every_float_from(low, high):
    """All float32 between two numbers of one sign."""
    ends = sorted(int(np.float32(v).view(np.uint32)) for v in (low, high))
    return np.arange(ends[0], ends[1] + 1, dtype=np.uint32).view(np.float32)


def random_bits(seed, count=SAMPLES):
    bits = np.random.default_rng(seed).integers(0, 1 << 32, count, dtype=np.uint32)
    return bits.view(np.float32)


def uniform(low, high, seed, count=SAMPLES):
    return np.random.default_rng(seed).uniform(low, high, count).astype(np.float32)


@pytest.mark.parametrize(
    "x",
    [
        random_bits(1),
        uniform(-104, 89, 2),
        uniform(-1, 1, 3),
        every_float_from(88.7, 88.75),
        every_float_from(-87.5, -87.2),
        every_float_from(-103.9, -104.1),
    ],
    ids=["any", "range", "near-0", "overflow", "subnormal", "underflow"],
)
def test_exp_is_within_one_ulp(x):
    distance, message = worst("exp", x)
    assert distance <= 1.0, message


@pytest.mark.parametrize(
    "x",
    [
        random_bits(4),
        uniform(0.3, 3, 5),
        np.float32(1) + uniform(-1e-3, 1e-3, 6),
        every_float_from(0, 1e-40),
        every_float_from(1.17e-38, 1.18e-38),
        every_float_from(0.706, 0.708),
    ],
    ids=["any", "near-1", "at-1", "subnormal", "smallest-normal", "sqrt-half"],
)
def test_log_is_within_one_and_a_half_ulp(x):
    distance, message = worst("log", x)
    assert distance <= 1.5, message


@pytest.mark.parametrize("name", SINES)
def test_sin_and_cos_are_within_two_ulp_of_float64(name):
    for x in (uniform(-4, 4, 7), uniform(-(2**17), 2**17, 8), every_float_from(131071, 131080)):
        distance, message = worst(name, x)
        assert distance <= 2.0, message


@functools.cache
def half_pi(bits):
    """pi/2 as an integer number of 2**-bits, by Machin's formula."""
    one = 1 << (bits + 16)

    def arctan_of_inverse(n):
        total = term = one // n
        for k in range(3, bits, 2):
            term //= -(n * n)
            total += term // k
        return total

    return (16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239)) // 2 >> 16


def exact_sin(x, quarter):
    """sin(x + quarter*pi/2) with the argument reduced in integers of 460 bits."""
    bits = 460
    numerator, denominator = float(x).as_integer_ratio()
    scaled = (numerator << bits) // denominator
    turn = half_pi(bits)
    count = (2 * scaled + turn) // (2 * turn)
    rest = math.ldexp(float(scaled - count * turn), -bits)
    count = (count + quarter) % 4
    value = math.cos(rest) if count % 2 else math.sin(rest)
    return -value if count > 1 else value


def hard_arguments():
    """Floats next to multiples of pi/2, large ones, and random ones of every size."""
    rng = np.random.default_rng(9)
    turn = half_pi(460)
    multiples = [(int(k) * turn) >> 460 for k in 2.0 ** rng.uniform(0, 100, 500)]
    around = np.array(multiples, np.float64).astype(np.float32)
    sizes = np.ldexp(rng.uniform(1, 2, 2000), rng.integers(-30, 128, 2000)).astype(np.float32)
    # The float32 that comes closest to a multiple of pi/2, and the largest ones.
    known = np.array([16367173 * 2.0**72, 3.4028235e38, 1e9, 2**31, 131072, 131073], np.float32)
    x = np.concatenate([around, np.nextafter(around, np.float32(np.inf)), sizes, known])
    x = x[np.isfinite(x)]
    return np.concatenate([x, -x])


@pytest.mark.parametrize("name", SINES)
def test_any_finite_argument_of_sin_is_reduced_exactly(name):
    x = hard_arguments()
    exact = np.array([exact_sin(v, int(name[3])) for v in x])
    distance = ulps(evaluate(name, x), exact)
    at = int(np.argmax(distance))
    assert distance[at] <= 2.0, f"{name}({x[at]!r}) is {distance[at]:.3f} ulp off"


INF, NAN = math.inf, math.nan
SPECIAL = {
    "exp": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (NAN, NAN), (1e4, INF), (-1e4, 0.0)],
    "log": [
        (0.0, -INF),
        (-0.0, -INF),
        (1.0, 0.0),
        (INF, INF),
        (-INF, NAN),
        (NAN, NAN),
        (-1.0, NAN),
    ],
    "sin0": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (NAN, NAN)],
    "sin1": [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN), (NAN, NAN)],
    "sin2": [(INF, NAN), (-INF, NAN), (NAN, NAN)],
    "sin3": [(0.0, -1.0), (-0.0, -1.0), (INF, NAN), (-INF, NAN), (NAN, NAN)],
}


@pytest.mark.parametrize("lanes", [1, LANES])
@pytest.mark.parametrize("dtype", [float16, float32, float64], ids=lambda d: d.name)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(name, dtype, lanes):
    x, expected = np.array(SPECIAL[name], dtype.storage).T.copy()
    y = evaluate(name, x, dtype, lanes)
    np.testing.assert_array_equal(y, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(y[numbers]), np.signbit(expected[numbers]))


def test_the_smallest_results_of_sin_and_exp_are_subnormal():
    tiny = every_float_from(1e-45, 1e-42)
    np.testing.assert_array_equal(evaluate("sin0", tiny), tiny)
    np.testing.assert_array_equal(evaluate("sin0", -tiny), -tiny)
    assert evaluate("exp", np.float32([-103.9]))[0] == np.float32(1e-45)


@pytest.mark.parametrize("lanes", [2, 4, 8, 64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_lane_count_gives_the_same_bits(name, lanes):
    x = np.concatenate([random_bits(10, 4000), uniform(-100, 100, 11, 96)])
    one = evaluate(name, x, lanes=1)
    y = evaluate(name, x, lanes=lanes)
    numbers = ~np.isnan(one)
    np.testing.assert_array_equal(np.isnan(y), ~numbers)
    np.testing.assert_array_equal(y[numbers].view(np.uint32), one[numbers].view(np.uint32))


def test_a_huge_lane_leaves_its_neighbours_alone():
    alone = uniform(-10, 10, 12, LANES)
    expected = evaluate("sin0", alone)
    for lane in range(LANES):
        x = alone.copy()
        x[lane] = 1e30
        y = evaluate("sin0", x)
        assert y[lane] == np.float32(exact_sin(np.float32(1e30), 0))
        np.testing.assert_array_equal(np.delete(y, lane), np.delete(expected, lane))


def widened(stored, dtype):
    """The float64 values of float16 or bfloat16 bits."""
    with np.errstate(invalid="ignore"):  # signaling NaNs
        if dtype is float16:
            return stored.view(np.float16).astype(np.float64)
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda d: d.name)
def test_every_16_bit_float_is_rounded_once(dtype, name):
    bits = np.arange(1 << 16, dtype=np.uint16)
    x = widened(bits, dtype)
    y = widened(evaluate(name, bits.view(dtype.storage), dtype).view(np.uint16), dtype)
    with np.errstate(all="ignore"):
        exact = REFERENCE[name](x)
    distance = ulps(y, exact, *((-14, 10) if dtype is float16 else (-126, 7)))
    at = int(np.argmax(distance))
    # Half an ulp, and float32's own error on top where two results are almost equally near.
    assert distance[at] <= 0.502, f"{name}({x[at]!r}) is {distance[at]:.4f} ulp off"


def decimal_exp(x):
    return decimal.Decimal(x).exp()


def decimal_log(x):
    return decimal.Decimal(x).ln()


def double_ulps(y, exact):
    """The distance of a float64 from a decimal number."""
    place = math.ulp(float(exact)) if float(exact) else 5e-324
    return abs(float((decimal.Decimal(float(y)) - exact) / decimal.Decimal(place)))


@pytest.mark.parametrize(
    ("name", "reference", "ranges"),
    [
        ("exp", decimal_exp, [(-745, 709), (-1, 1), (-1e-3, 1e-3), (-745, -708)]),
        ("log", decimal_log, [(0.3, 3), (0.999, 1.001), (5e-324, 1e-309), (1e-9, 1e300)]),
    ],
)
def test_float64_exp_and_log_are_within_two_ulp(name, reference, ranges):
    for seed, (low, high) in enumerate(ranges):
        x = np.random.default_rng(seed).uniform(low, high, 1500)
        y = evaluate(name, x, float64, 8)
        with decimal.localcontext() as context:
            context.prec = 40
            distance = [double_ulps(b, reference(float(a))) for a, b in zip(x, y, strict=True)]
        at = int(np.argmax(distance))
        assert distance[at] <= 2.0, f"{name}({x[at]!r}) is {distance[at]:.3f} ulp off"


@pytest.mark.parametrize("name", SINES)
def test_float64_sin_is_the_c_librarys(name):
    x = np.concatenate([np.random.default_rng(13).uniform(-100, 100, 500), [2.0**26 - 1, 1e-300]])
    function = math.cos if int(name[3]) % 2 else math.sin
    sign = -1 if int(name[3]) > 1 else 1
    y = evaluate(name, x, float64, 4)
    np.testing.assert_allclose(y, [sign * function(v) for v in x], rtol=4e-16, atol=0)


def decimal_sin(x, quarter):
    """sin(x + quarter*pi/2) with 40 digits, the argument reduced in integers of 1300 bits."""
    bits = 1300
    numerator, denominator = x.as_integer_ratio()
    scaled, turn = (numerator << bits) // denominator, half_pi(bits)
    count = (2 * scaled + turn) // (2 * turn)
    rest = decimal.Decimal(scaled - count * turn) / decimal.Decimal(1 << bits)
    count = (count + quarter) % 4
    term = value = rest if count % 2 == 0 else decimal.Decimal(1)
    for n in range(1, 40, 2):  # the series of the sine or of the cosine
        k = n + 1 if count % 2 == 0 else n
        term = -term * rest * rest / (k * (k + 1))
        value += term
    return -value if count > 1 else value


# Of all float64 this one comes closest to a multiple of pi/2.
WORST = 6381956970095103 * 2.0**797
HUGE = (WORST, 2.0**26, 2.0**26 + 2.0**-26, 1e22, 1e300, 2.0**60, 1.7976931348623157e308)


@pytest.mark.parametrize("name", SINES)
def test_any_large_float64_is_reduced_exactly(name):
    rng = np.random.default_rng(17)
    sizes = np.ldexp(rng.uniform(1, 2, 300), rng.integers(24, 1024, 300))
    x = np.concatenate([HUGE, sizes])
    x = np.concatenate([x, -x])
    y = evaluate(name, x, float64, 4)
    with decimal.localcontext() as context:
        context.prec = 40
        pairs = zip(x.tolist(), y, strict=True)
        distance = [double_ulps(b, decimal_sin(a, int(name[3]))) for a, b in pairs]
    at = int(np.argmax(distance))
    assert distance[at] <= 2.0, f"{name}({x[at]!r}) is {distance[at]:.3f} ulp off"


def test_a_lane_of_float64_that_is_large_changes_no_other_lane():
    x = np.array([1.0, WORST, math.nan, -0.0, -math.inf, 2.0, -WORST, 1e300])
    apart = np.concatenate([evaluate("sin0", x[i : i + 1], float64, 1) for i in range(8)])
    np.testing.assert_array_equal(evaluate("sin0", x, float64, 8), apart)
    assert np.signbit(apart[3])


@pytest.mark.parametrize("dtype", [float32, float64], ids=lambda d: d.name)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_instruction_is_loosened_or_undefined_out_of_range(name, dtype):
    text = program(name, dtype, LANES)
    assert not re.search(r"\b(fast|nnan|ninf|nsz|arcp|contract|afn|reassoc)\b", text)
    assert not re.search(r"fpto[su]i|ldexp", text)
