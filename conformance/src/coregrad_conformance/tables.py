"""The values and sizes that rows are made of: data, and how it becomes arrays; no judgement."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad import dtypes
from coregrad_conformance import ulp
from coregrad_conformance.ulp import FORMATS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coregrad.dtypes import DType

# What every backend must have; the others may be absent, and are checked at the standard level.
CORE = (
    dtypes.bool_,
    dtypes.uint8,
    dtypes.int32,
    dtypes.uint32,
    dtypes.int64,
    dtypes.float32,
)

# Around whole vectors and work-groups, and where a loop of 4, 32 or 256 leaves a rest.
SIZES = (1, 3, 4, 5, 31, 32, 33, 255, 256, 257, 1023, 1025)
LARGE = (4099, 65537)  # standard: beyond any one work-group, beyond 16 bits


def level(*used: DType) -> str:
    """The level at which rows about these dtypes belong."""
    return "core" if all(dtype in CORE for dtype in used) else "standard"


# ---- special values ----------------------------------------------------------------------------
# 32 of each dtype, so that all pairs are 1024 elements.


@cache
def specials(dtype: DType) -> NDArray[Any]:
    """The 32 special values of a dtype (bool: 2), as stored elements."""
    if dtype is dtypes.bool_:
        return np.array([False, True])
    if dtype.is_float:
        return ulp.encode(np.array(_special_floats(dtype)), dtype)
    return np.array(_special_integers(dtype), dtype.storage)


def _special_floats(dtype: DType) -> list[float]:
    form = FORMATS[dtype]
    eps, tiny, huge = form.epsilon, form.smallest, form.max
    normal = 2.0**form.emin
    whole = 2.0**form.digits  # from here on odd integers are missing
    positive = [
        0.0,
        float("inf"),
        tiny,
        normal - tiny,  # the largest subnormal
        normal,
        huge,
        1.0,
        1.0 + eps,
        1.0 - eps / 2,
        2.0,
        0.5,
        3.0,
        1.0 + 2 * eps,
        whole,
        whole - 1.0,
    ]
    return [*positive, *(-x for x in positive), float("nan"), 10.0]


def _special_integers(dtype: DType) -> list[int]:
    bits = dtype.bits
    half, quarter = 1 << (bits - 1), 1 << (bits // 2)
    if dtype.kind == "uint":
        top = 2 * half - 1
        return [
            *range(12),
            *(half - 2, half - 1, half, half + 1, half + 2),
            *(quarter - 1, quarter, quarter + 1),
            *(top, top - 1, top - 2, top - 3, top // 3, top // 5, top // 7),
            *(half >> 1, (half >> 1) - 1, (half >> 1) + 1, 100, 85),
        ]
    low, top = -half, half - 1
    return [
        *range(-6, 7),
        *(low, low + 1, low + 2, top, top - 1, top - 2),
        *(quarter - 1, quarter, quarter + 1, -quarter, -quarter - 1, -quarter + 1),
        *(half >> 1, -(half >> 1), top // 3, low // 3, top // 7, 100, -100),
    ]


def pairs(left: NDArray[Any], right: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Every element of one with every element of the other."""
    return np.repeat(left, right.size), np.tile(right, left.size)


# ---- random values -----------------------------------------------------------------------------


def generator(name: str) -> np.random.Generator:
    """Random numbers that depend on a row's name alone."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def bits(rng: np.random.Generator, dtype: DType, n: int) -> NDArray[Any]:
    """Elements with random bits."""
    if dtype is dtypes.bool_:
        return rng.integers(0, 2, n).astype(bool)
    raw = rng.integers(0, 256, n * dtype.itemsize, np.uint8)
    return raw.view(dtype.storage)


def mixed(rng: np.random.Generator, dtype: DType, n: int) -> NDArray[Any]:
    """Floats: half random bits, half of ordinary size, in random order. Others: random bits."""
    drawn = bits(rng, dtype, n)
    if not dtype.is_float:
        return drawn
    ordinary = numbers(rng.standard_normal(n) * 8, dtype)
    return np.where(rng.integers(0, 2, n) == 0, drawn, ordinary)


def numbers(values: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """float64 numbers rounded to a float dtype, as stored elements."""
    return ulp.encode(ulp.nearest(values, dtype), dtype)


def between(
    rng: np.random.Generator, dtype: DType, n: int, low: float, high: float
) -> NDArray[Any]:
    """Floats evenly spread over a range."""
    return numbers(rng.uniform(low, high, n), dtype)


# Where a function of one float has its interesting values; most random bits overflow exp.
def _exp_domain(rng: np.random.Generator, dtype: DType, n: int) -> NDArray[Any]:
    form = FORMATS[dtype]
    low = (form.emin - form.digits - 2) * np.log(2)
    high = (form.emax + 2) * np.log(2)
    wide = between(rng, dtype, n, low, high)
    near = between(rng, dtype, n, -1.0, 1.0)
    return np.where(np.arange(n) % 3 == 0, near, wide)


def _log_domain(rng: np.random.Generator, dtype: DType, n: int) -> NDArray[Any]:
    any_size = ulp.encode(np.abs(ulp.decode(bits(rng, dtype, n), dtype)), dtype)
    near_one = between(rng, dtype, n, 0.7, 1.5)
    return np.where(np.arange(n) % 2 == 0, any_size, near_one)


def _sin_domain(rng: np.random.Generator, dtype: DType, n: int) -> NDArray[Any]:
    any_size = bits(rng, dtype, n)
    turns = rng.integers(-400, 400, n) * (np.pi / 2)
    near_zeros = numbers(turns + rng.standard_normal(n) * 1e-3, dtype)
    small = between(rng, dtype, n, -10.0, 10.0)
    return np.choose(np.arange(n) % 3, [any_size, near_zeros, small])


def _trunc_domain(rng: np.random.Generator, dtype: DType, n: int) -> NDArray[Any]:
    halves = numbers(rng.integers(-512, 512, n) / 4, dtype)
    return np.where(np.arange(n) % 2 == 0, halves, mixed(rng, dtype, n))


DOMAINS: dict[str, Callable[[np.random.Generator, Any, int], Any]] = {
    "exp": _exp_domain,
    "log": _log_domain,
    "sin": _sin_domain,
    "sqrt": _log_domain,
    "trunc": _trunc_domain,
}


@cache
def edges(op: str, dtype: DType) -> NDArray[Any]:
    """Arguments at which a function of one float tends to fail, as stored elements."""
    form = FORMATS[dtype]
    values = EDGES[op](form)
    found = ulp.nearest(np.array(values, np.float64), dtype)
    with np.errstate(all="ignore"):
        step = ulp.quantum(np.where(np.isfinite(found), found, 1.0), dtype)
        around = np.concatenate([found, found - step, found + step])
    return numbers(around, dtype)


def _exp_edges(form: ulp.Format) -> list[float]:
    over = form.emax * np.log(2) + np.log(2.0 - form.epsilon)
    under = (form.emin - form.digits + 1) * np.log(2)
    gradual = form.emin * np.log(2)
    near = [form.epsilon, -form.epsilon, form.epsilon / 4, -form.epsilon / 4]
    return [over, under, under - np.log(2), gradual, *near, np.log(2), -np.log(2), 1.0, -1.0]


def _log_edges(form: ulp.Format) -> list[float]:
    return [1.0, 1.0 + form.epsilon * 3, 1.0 - form.epsilon * 3, 2.0**0.5, 0.5**0.5, 2.0, np.e,
            2.0**form.emin, form.smallest * 5, form.max]  # fmt: skip


def _sin_edges(form: ulp.Format) -> list[float]:
    quarters = [k * np.pi / 2 for k in (1, 2, 3, 4, 5, 6, 7, 8, 100, 355, 1000)]
    eighths = [k * np.pi / 4 for k in (1, 3, 5, 7, 9)]
    huge = [2.0**k for k in (10, 15, 24, 27, 31, 33, 53, 64, 100) if k <= form.emax]
    worst = [SIN_WORST[dtypes.float32]] if form.emax >= 127 else []
    return [*quarters, *eighths, *huge, *worst, form.smallest, 2.0**form.emin, form.max]


# Of all numbers of the dtype these lie nearest to a multiple of pi/2 (Muller, Elementary Functions,
# 2016, table 11.1). C libraries that were measured miss the second by 8 ulp: it has a row of its
# own at the extended level.
SIN_WORST = {dtypes.float32: 16367173 * 2.0**72, dtypes.float64: 6381956970095103 * 2.0**797}


def _sqrt_edges(form: ulp.Format) -> list[float]:
    return [2.0, 3.0, 4.0, 9.0, 0.25, 1.0, form.smallest, form.smallest * 3, 2.0**form.emin,
            form.max, form.max / 2, 2.0 ** (form.emin + 1)]  # fmt: skip


def _trunc_edges(form: ulp.Format) -> list[float]:
    whole = 2.0 ** (form.digits - 1)
    past = [2.0**31, 2.0**32, 2.0**63, 2.0**64]
    positive = [0.5, 1.5, 2.5, 1.0, 2.0, whole, whole / 2 + 0.5, whole * 2, *past]
    return [x for p in positive for x in (p, -p) if p <= form.max]


EDGES: dict[str, Callable[[ulp.Format], list[float]]] = {
    "exp": _exp_edges,
    "log": _log_edges,
    "sin": _sin_edges,
    "sqrt": _sqrt_edges,
    "trunc": _trunc_edges,
}


# ---- casts -------------------------------------------------------------------------------------


@cache
def cast_inputs(source: DType, dtype: DType) -> NDArray[Any]:
    """Elements of ``source`` at which a cast to ``dtype`` tends to fail."""
    if source is dtypes.bool_:
        return specials(source)
    if source.is_float:
        found = _floats_to(source, dtype)
    else:
        found = _integers_to(source, dtype)
    return np.concatenate([specials(source), found])


def _floats_to(source: DType, dtype: DType) -> NDArray[Any]:
    if dtype.is_float:
        values = [x for p in _ties(dtype) for x in (p, -p)]
    elif dtype is dtypes.bool_:
        values = [0.25, -0.25, FORMATS[source].smallest * 2]
    else:
        low, high = float(dtype.min), float(int(dtype.max) + 1)
        ends = [low, low - 0.5, low - 1, low + 0.5, high, high - 0.5, high - 1, high + 1]
        ends += [high * 2, high * 256, low * 2 - 1, high / 2, -high / 2]
        values = [*ends, 0.5, -0.5, 0.9, -0.9, 1.5, -1.5, 2.5, 126.7, -126.7, 254.9, 1e6, -1e6]
    near = ulp.nearest(np.array(values, np.float64), source)
    with np.errstate(all="ignore"):
        step = ulp.quantum(np.where(np.isfinite(near), near, 1.0), source)
        around = np.concatenate([near, near - step, near + step])
    return numbers(around, source)


def _ties(dtype: DType) -> list[float]:
    """Halfway cases of both parities, among normal and subnormal numbers, and at the overflow.

    The nearest ones on either side are the ones that rounding by way of a third format gets wrong.
    """
    form = FORMATS[dtype]
    if dtype is dtypes.float64:
        return [0.1, form.max]
    half = form.epsilon / 2
    normal = [1 + half, 1 + 3 * half, 1 + 5 * half, 2 - half, 2 - 3 * half]
    ties = [*normal, *(x * 2.0**9 for x in normal), *(x * 2.0**-9 for x in normal)]
    ties += [form.smallest * k / 2 for k in (1, 3, 5, 7, 9)]
    ties += [2.0**form.emin - form.smallest / 2, 2.0**form.emin + form.smallest / 2]
    ties += [form.max * (1 + form.epsilon / 4), form.max + 2.0 ** (form.emax - form.digits)]
    # Near enough to a tie that rounding to the next wider format first lands on the tie, and three
    # quarters of a unit of that format away, where stepping back towards zero does.
    near = (23.4, 26, 40, 50)
    traps = [x * (1 + s * 2.0**-k) for x in normal for k in near for s in (1, -1)]
    return [*ties, *traps, form.max, form.max * 2, form.smallest / 4]


def _integers_to(source: DType, dtype: DType) -> NDArray[Any]:
    values = [255, 256, 257, -255, -256, 65535, 65536, 65537, 0x1234567890ABCDEF]
    if dtype.is_float:
        values = _integer_ties(FORMATS[dtype].digits)
    else:
        values += [int(dtype.max), int(dtype.max) + 1, int(dtype.min), int(dtype.min) - 1]
    low, high = int(source.min), int(source.max)
    inside = [v for v in dict.fromkeys(values) if low <= v <= high]
    return np.array(inside, source.storage)


def _integer_ties(digits: int) -> list[int]:
    """Halfway between two numbers of so many digits, and the integers next to that."""
    values = []
    for k in range(digits, 64):
        half = 1 << (k - digits)  # of the unit in the last place of numbers from 2**k on
        for odd in (1, 3):
            tie = (1 << k) + odd * half
            values += [tie, tie - 1, tie + 1, -tie, 1 - tie]
    return values
