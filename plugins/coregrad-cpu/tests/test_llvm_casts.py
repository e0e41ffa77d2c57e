"""Every cast and bitcast of the LLVM backend against exact rational arithmetic."""

from __future__ import annotations

import ctypes
import functools
import math
from fractions import Fraction

import numpy as np
import pytest

from coregrad.dtypes import ALL, FLOATS, bfloat16, bool_, float16, float32, float64
from coregrad.hookspecs import Header
from coregrad.ir.kernel import Param

pytest.importorskip("llvmlite")

from coregrad_cpu.llvm.backend import Backend
from coregrad_cpu.llvm.compiler import Compiler

# Significant bits and the exponent of the smallest normal number.
FORMATS = {float16: (11, -14), bfloat16: (8, -126), float32: (24, -126), float64: (53, -1022)}
ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
LANES = [1, 16]


@functools.cache
def compiler():
    return Compiler(None)


@functools.cache
def address(source, lanes, hook):
    """A kernel with one output for each dtype that the source can become."""
    backend = Backend()
    targets = targets_of(source, hook)
    x = Param("x", source, 1 << 16, "in")
    outputs = [Param(f"y{i}", dtype, 1 << 16, "out") for i, dtype in enumerate(targets)]
    frame = backend.begin_kernel(Header("test", (x, *outputs), 1 << 16), None)
    for index in frame.loop("i0", 1 << 16, "grid", lanes, False):
        value = backend.lower_load(frame, x, index, 1, None, source, lanes)
        for y in outputs:
            result = getattr(backend, hook)(frame, value, source, y.dtype, lanes)
            backend.lower_store(frame, y, index, 1, result, None, y.dtype, lanes)
    return compiler().address(frame.finish())


def targets_of(source, hook):
    if hook == "lower_cast":
        return ALL
    return [d for d in ALL if d.bits == source.bits]


def convert(stored, source, lanes, hook):
    """The stored elements as every dtype they can become: a dict of stored arrays."""
    padded = np.concatenate([stored, np.zeros(-len(stored) % lanes, stored.dtype)])
    results = {d: np.zeros(len(padded), d.storage) for d in targets_of(source, hook)}
    arrays = [padded, *results.values()]
    addresses = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
    ENTRY(address(source, lanes, hook))(addresses, 0, len(padded))
    return {dtype: result[: len(stored)] for dtype, result in results.items()}


def numbers(stored, dtype):
    """Stored elements as exact Python numbers."""
    if dtype is bfloat16:
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.tolist()


def rounded(value, dtype):
    """A Fraction as a float of the format, to nearest, ties to even."""
    if value == 0:
        return 0.0
    digits, smallest = FORMATS[dtype]
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, smallest) - digits + 1)
    nearest = round(size / unit) * unit  # Python rounds a Fraction's ties to even
    if nearest >= Fraction(2) ** (2 - smallest):
        return math.copysign(math.inf, value)
    return math.copysign(float(nearest), value)


def cast(value, source, dtype):
    """What the contract says of one number."""
    if dtype is bool_:
        return value != 0
    if dtype.is_float:
        if not source.is_float:
            return rounded(Fraction(value), dtype)
        if value == 0 or not math.isfinite(value):
            return value
        return rounded(Fraction(value), dtype)
    if source.is_float:
        if math.isnan(value):
            return 0
        if math.isinf(value):
            return dtype.max if value > 0 else dtype.min
        return min(max(math.trunc(value), dtype.min), dtype.max)
    wrapped = int(value) % (1 << dtype.bits)
    return wrapped - (1 << dtype.bits) if wrapped > dtype.max else wrapped


def samples(dtype):
    """Stored elements: special ones, ones near every format's edges and ties, and random ones."""
    rng = np.random.default_rng(dtype.bits)
    if dtype is bool_:
        return np.array([False, True])
    if dtype.bits == 8:
        return np.arange(256, dtype=np.uint8).view(dtype.storage)
    random = rng.integers(0, 1 << dtype.bits, 1500, dtype=f"uint{dtype.bits}")
    if dtype.is_int:
        edges = [sign * v for v in integer_edges() for sign in (1, -1)]
        kept = [v for v in edges if dtype.min <= v <= dtype.max]
        return np.concatenate([random.view(dtype.storage), np.array(kept, dtype.storage)])
    edges = np.array([sign * v for v in float_edges() for sign in (1, -1)])
    sizes = np.ldexp(rng.uniform(-1, 1, 1000), rng.integers(-30, 70, 1000))
    edges = np.concatenate([edges, sizes])
    with np.errstate(over="ignore"):
        if dtype is not bfloat16:
            return np.concatenate([random.view(dtype.storage), edges.astype(dtype.storage)])
        single = edges.astype(np.float32)
    return np.concatenate([random, (single.view(np.uint32) >> 16).astype(np.uint16)])


def integer_edges():
    """Powers of two and their neighbours, and near-ties of every float format at every size."""
    yield 0
    for exponent in range(64):
        yield from ((1 << exponent) + d for d in (-1, 0, 1))
        for digits, _ in FORMATS.values():
            if exponent > digits:
                half = 1 << (exponent - digits)
                for odd in (0, 1):
                    tie = (1 << exponent) + half + odd * 2 * half
                    yield from (tie - 1, tie, tie + 1)


def float_edges():
    """Ends of the integer types, near-ties in every float format, ends of the formats."""
    yield from (0.0, 0.5, 1.0, 1.5, 2.5, math.inf, math.nan, 5e-324, 1.7976931348623157e308)
    for bits in (7, 8, 15, 16, 31, 32, 63, 64):
        edge = 2.0**bits
        yield from (edge, edge - 1, edge - 0.5, edge + 1)
        yield from (math.nextafter(edge, 0), math.nextafter(edge, math.inf))
        yield float(np.nextafter(np.float32(edge), np.float32(0)))
    for digits, smallest in FORMATS.values():
        for exponent in (smallest, smallest - 3, smallest - digits, -3, 0, 5, 1 - smallest):
            unit = 2.0 ** max(max(exponent, smallest) - digits + 1, -1074)
            for steps in (0.25, 0.5, 1, 1.5, 2.5, (2.0**digits) - 0.5, 2.0 ** (digits - 1) + 0.5):
                tie = steps * unit
                yield from (tie, math.nextafter(tie, 0), math.nextafter(tie, math.inf))
                yield from (tie * (1 - 2.0**-30), tie * (1 + 2.0**-30), tie * (1 + 2.0**-24))


@functools.cache
def inputs(dtype):
    stored = samples(dtype)
    with np.errstate(invalid="ignore"):
        return stored, numbers(stored, dtype)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("source", ALL, ids=lambda d: d.name)
def test_a_cast_gives_what_exact_arithmetic_gives(source, lanes):
    stored, values = inputs(source)
    for dtype, result in convert(stored, source, lanes, "lower_cast").items():
        with np.errstate(invalid="ignore"):
            results = numbers(result, dtype)
        wrong = [
            f"{source.name} {value!r} to {dtype.name}: {actual!r}, not {expected!r}"
            for value, actual in zip(values, results, strict=True)
            if not same(actual, expected := cast(value, source, dtype))
        ]
        assert not wrong, f"{len(wrong)} of {len(values)}: {wrong[:5]}"


def same(actual, expected):
    """Equal, with the sign of zero; NaN is NaN."""
    if isinstance(expected, float) and math.isnan(expected):
        return math.isnan(actual)
    return actual == expected and math.copysign(1, actual) == math.copysign(1, expected)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("source", [d for d in ALL if d is not bool_], ids=lambda d: d.name)
def test_a_bitcast_keeps_every_bit(source, lanes):
    stored, _ = inputs(source)
    word = f"uint{source.bits}"
    bits = stored.view(word)
    for dtype, result in convert(stored, source, lanes, "lower_bitcast").items():
        expected = bits != 0 if dtype is bool_ else bits
        actual = result if dtype is bool_ else result.view(word)
        np.testing.assert_array_equal(actual, expected, err_msg=f"{source.name} to {dtype.name}")


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_the_samples_reach_ties_subnormals_and_overflow_of(dtype):
    """The tables above are worth something only if they meet what is difficult."""
    digits, smallest = FORMATS[dtype]
    if dtype is float64:
        integers = [v for v in integer_edges() if v.bit_length() > digits]
        assert any(Fraction(rounded(Fraction(v), dtype)) != v for v in integers)
        return
    _, values = inputs(float64)
    finite = [Fraction(v) for v in values if math.isfinite(v) and v != 0]
    results = [rounded(v, dtype) for v in finite]
    assert any(abs(r) == math.inf for r in results)
    assert any(0 < abs(r) < 2.0**smallest for r in results)
    if dtype is not float32:
        singles = [Fraction(s) if math.isfinite(s := rounded(v, float32)) else v for v in finite]
        assert any(rounded(v, dtype) != r for v, r in zip(singles, results, strict=True))
