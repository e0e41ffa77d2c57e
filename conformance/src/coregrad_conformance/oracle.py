"""What the contract's ops give, independently of every backend and of the core's own arithmetic.

Integers are Python integers, wrapped explicitly. Narrow floats are computed in float64 with the C
library's functions; float64 with mpmath where one operation of the host is not the exact answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mpmath
import numpy as np

from coregrad import dtypes
from coregrad_conformance import ulp
from coregrad_conformance.row import Failure, Outcome

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coregrad.dtypes import DType

DIGITS = 160  # bits that mpmath works with: three times those of float64


@dataclass(frozen=True)
class Expected:
    """The exact results: stored elements for integers and bools, float64 numbers for floats.

    ``rest`` is what float64 cannot hold of them. Where ``either_zero`` holds, both zeros are right.
    """

    values: NDArray[Any]
    rest: NDArray[Any] | None = None
    either_zero: NDArray[Any] | None = None


# ---- comparing ---------------------------------------------------------------------------------


def compare(
    got: NDArray[Any],
    expected: Expected,
    dtype: DType,
    operands: Sequence[NDArray[Any]] = (),
    allowed: float = ulp.EXACT,
) -> Outcome:
    """``got`` (stored elements) against the oracle; raises Failure with the worst element."""
    if dtype.is_float:
        return _compare_floats(got, expected, dtype, operands, allowed)
    wrong = got != expected.values
    if dtype is dtypes.bool_:  # a byte, which is 0 or 1
        wrong = got.view(np.uint8) != expected.values.astype(np.uint8)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise Failure(_words(at, got, expected.values, operands, int(wrong.sum())))
    return Outcome(got.size)


def _compare_floats(
    got: NDArray[Any],
    expected: Expected,
    dtype: DType,
    operands: Sequence[NDArray[Any]],
    allowed: float,
) -> Outcome:
    numbers, values = ulp.decode(got, dtype), expected.values
    if expected.either_zero is not None:
        either = expected.either_zero & (values == 0) & (numbers == 0)
        numbers, values = np.where(either, 0.0, numbers), np.where(either, 0.0, values)
    off = ulp.distance(numbers, values, dtype, expected.rest)
    at = int(np.argmax(off)) if off.size else 0
    bad = off > (0.0 if allowed == ulp.EXACT else allowed)
    if bad.any():
        words = _words(at, numbers, expected.values, operands, int(bad.sum()))
        raise Failure(f"{words}; {off[at]:.3f} ulp off, allowed are {allowed}")
    worst = float(off[at]) if off.size else 0.0
    return Outcome(got.size, worst, _inputs(at, operands) if worst else "")


def _words(
    at: int, got: NDArray[Any], want: NDArray[Any], operands: Sequence[NDArray[Any]], count: int
) -> str:
    inputs = _inputs(at, operands)
    place = f"element {at}" + (f" of {inputs}" if inputs else "")
    numbers = f"got {got[at].item()!r}, expected {want[at].item()!r}"
    return f"{place}: {numbers}; {count} of {got.size} are wrong"


def _inputs(at: int, operands: Sequence[NDArray[Any]]) -> str:
    return ", ".join(repr(operand[at].item()) for operand in operands)


# ---- element-wise ------------------------------------------------------------------------------


def elementwise(
    op: str, dtype: DType, operands: Sequence[NDArray[Any]], attr: Any = None
) -> Expected:
    """The results of an op on stored operands of ``dtype`` (``where``: after its condition)."""
    if op == "where":
        condition, a, b = operands
        pairs = zip(condition.tolist(), range(a.size), strict=True)
        picked = np.array([(a if c else b)[i] for c, i in pairs], a.dtype)
        return Expected(ulp.decode(picked, dtype))
    numbers = [ulp.decode(x, dtype).tolist() for x in operands]
    if op == "lt":
        return Expected(np.array([a < b for a, b in zip(*numbers, strict=True)], bool))
    if op == "ne":
        return Expected(np.array([a != b for a, b in zip(*numbers, strict=True)], bool))
    if dtype.is_float:
        return _float_op(op, dtype, numbers, attr)
    function = INTEGER[op]
    return integers([function(*values) for values in zip(*numbers, strict=True)], dtype)


def integers(values: Sequence[int], dtype: DType) -> Expected:
    """Python integers, wrapped to the width of ``dtype``."""
    return Expected(np.array([wrapped(int(v), dtype) for v in values], dtype.storage))


def wrapped(value: int, dtype: DType) -> int:
    """The integer of ``dtype`` with the low bits of ``value``.

    >>> wrapped(200, dtypes.int8), wrapped(-1, dtypes.uint16)
    (-56, 65535)
    """
    if dtype is dtypes.bool_:
        return int(value != 0)
    value %= 1 << dtype.bits
    return value - (1 << dtype.bits) if value > dtype.max else value


def truncated(a: int, b: int) -> int:
    """The quotient rounded towards zero.

    >>> truncated(-7, 2), truncated(7, -2)
    (-3, -3)
    """
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


INTEGER: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "idiv": truncated,
    "mod": lambda a, b: a - truncated(a, b) * b,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
}


def _float_op(op: str, dtype: DType, numbers: list[list[float]], attr: Any) -> Expected:
    if op in ("exp", "log", "sin") and dtype is dtypes.float64:
        return _precise(op, numbers[0], attr)
    if op == "sin":
        values = np.array([_turned(x, attr) for x in numbers[0]])
        return Expected(values, either_zero=np.full(values.shape, attr == 2))
    if op in ARITHMETIC:
        # float64 has more than twice the digits of the narrower ones (and 2 more), so that rounding
        # its result again is rounding once (Figueroa 1995).
        with np.errstate(all="ignore"):
            return Expected(ARITHMETIC[op](*(np.array(n, np.float64) for n in numbers)))
    values = np.array([FLOAT[op](*x) for x in zip(*numbers, strict=True)], np.float64)
    return Expected(values, either_zero=np.full(values.shape, op == "max"))


ARITHMETIC: dict[str, Any] = {"add": np.add, "mul": np.multiply, "div": np.divide}


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _log(x: float) -> float:
    if x == 0:
        return -math.inf
    return math.nan if x < 0 else math.log(x)


def _sqrt(x: float) -> float:
    return math.nan if x < 0 else math.sqrt(x)


def _trunc(x: float) -> float:
    return math.copysign(float(math.trunc(x)), x) if math.isfinite(x) else x


def _mod(a: float, b: float) -> float:
    if math.isinf(a) or b == 0 or math.isnan(a) or math.isnan(b):
        return math.nan
    return math.fmod(a, b)


def _max(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


def _turned(x: float, quarter: int) -> float:
    """sin(x + quarter*pi/2)."""
    if not math.isfinite(x):
        return math.nan
    value = math.cos(x) if quarter % 2 else math.sin(x)
    return -value if quarter >= 2 else value


FLOAT: dict[str, Callable[..., float]] = {
    "exp": _exp,
    "log": _log,
    "sqrt": _sqrt,
    "trunc": _trunc,
    "mod": _mod,
    "max": _max,
}


def _precise(op: str, xs: Sequence[float], quarter: int | None) -> Expected:
    """exp, log or sin of float64, to three times its digits, as float64 and what is left of it."""
    functions: dict[str, Callable[[float], float]] = {
        "exp": _exp,
        "log": _log,
        "sin": lambda x: _turned(x, quarter or 0),
    }
    special = functions[op]
    values = np.empty(len(xs))
    rest = np.zeros(len(xs))
    with mpmath.workprec(DIGITS):
        for i, x in enumerate(xs):
            values[i] = special(x)
            if math.isfinite(values[i]) and values[i] != 0:
                values[i], rest[i] = split(_exact(op, x, quarter))
    return Expected(values, rest, np.full(len(xs), quarter == 2))


def _exact(op: str, x: float, quarter: int | None) -> mpmath.mpf:
    if op == "exp":
        return mpmath.exp(mpmath.mpf(x))
    if op == "log":
        return mpmath.log(mpmath.mpf(x))
    value = mpmath.cos(mpmath.mpf(x)) if quarter in (1, 3) else mpmath.sin(mpmath.mpf(x))
    return -value if quarter in (2, 3) else value


def split(exact: mpmath.mpf) -> tuple[float, float]:
    """A number of many digits as the nearest float64 and what is left of it."""
    value = float(exact)
    if math.isinf(value):
        return value, 0.0
    return value, float(exact - mpmath.mpf(value))


# ---- casts -------------------------------------------------------------------------------------


def cast(stored: NDArray[Any], source: DType, dtype: DType) -> Expected:
    """Stored elements of ``source`` as ``dtype``."""
    numbers = ulp.decode(stored, source).tolist()
    if dtype is dtypes.bool_:
        return Expected(np.array([x != 0 for x in numbers], bool))
    if dtype.is_float:
        values = np.array([float(x) for x in numbers], np.float64)
        if source.is_float:
            return Expected(values)
        left = [x - int(v) for x, v in zip(numbers, values.tolist(), strict=True)]
        return Expected(values, np.array(left, np.float64))
    if source.is_float:
        return integers([_saturated(x, dtype) for x in numbers], dtype)
    return integers(numbers, dtype)


def _saturated(x: float, dtype: DType) -> int:
    if math.isnan(x):
        return 0
    low, high = int(dtype.min), int(dtype.max)
    if math.isinf(x):
        return high if x > 0 else low
    return max(low, min(high, math.trunc(x)))


def bitcast(stored: NDArray[Any], source: DType, dtype: DType) -> NDArray[Any]:
    """The same bytes, as stored elements of ``dtype``."""
    return np.frombuffer(stored.tobytes(), dtype.storage)


# ---- reductions --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interval:
    """The results that some order of a sum can give, as float64 numbers of the dtype."""

    low: NDArray[Any]
    high: NDArray[Any]
    exact: NDArray[Any]


def sums(rows: NDArray[Any], accumulating: DType, dtype: DType, extra: int = 0) -> Interval:
    """The sum of each row (float64 numbers), accumulated in one dtype and rounded to another.

    Any order of n - 1 additions is within g*sum|x| for g = (n-1)u/(1 - (n-1)u) (Higham 2002, 4.4);
    ``extra`` are roundings that each term went through before.
    """
    exact = np.array([_fsum(row) for row in rows.tolist()])
    size = np.array([_fsum([abs(x) for x in row]) for row in rows.tolist()])
    return bounded(exact, size, rows.shape[1] - 1 + extra, accumulating, dtype)


def dots(
    got: NDArray[Any], a: NDArray[Any], b: NDArray[Any], accumulating: DType, dtype: DType
) -> Outcome:
    """``got`` against the sum over a*b of each row (float64 numbers), the products rounded or not.

    The products are exact in three times the digits of float64.
    """
    with mpmath.workprec(DIGITS):
        terms = [
            [mpmath.mpf(x) * y for x, y in zip(left, right, strict=True)]
            for left, right in zip(a.tolist(), b.tolist(), strict=True)
        ]
        exact = np.array([float(mpmath.fsum(row)) for row in terms])
        size = np.array([float(mpmath.fsum(row, absolute=True)) for row in terms])
    return within(got, bounded(exact, size, a.shape[1], accumulating, dtype), dtype)


def bounded(
    exact: NDArray[Any], size: NDArray[Any], roundings: int, accumulating: DType, dtype: DType
) -> Interval:
    """What so many roundings of terms of this total size can make of the exact result."""
    unit = max(roundings, 0) * ulp.FORMATS[accumulating].epsilon / 2
    with np.errstate(all="ignore"):
        reach = size * (unit / (1 - unit))
        reach = np.where(np.isfinite(exact) & (reach > 0), reach, 0.0)
        low, high = ulp.nearest(exact - reach, dtype), ulp.nearest(exact + reach, dtype)
    return Interval(low, high, exact)


def _fsum(values: Sequence[float]) -> float:
    """The exact sum, rounded once; NaN and infinities as addition gives them."""
    if all(math.isfinite(v) for v in values):
        return math.fsum(values)
    total = 0.0
    for value in values:
        if not math.isfinite(value):
            total += value
    return total


def products(rows: NDArray[Any], accumulating: DType, dtype: DType) -> Interval:
    """The product of each row, where nothing over- or underflows on the way."""
    with mpmath.workprec(DIGITS):
        exact = np.array([float(mpmath.fprod(row)) for row in rows.tolist()])
    return bounded(exact, np.abs(exact), rows.shape[1] - 1, accumulating, dtype)


def within(got: NDArray[Any], interval: Interval, dtype: DType) -> Outcome:
    """``got`` (stored elements) against the results that some order can give."""
    numbers = ulp.decode(got, dtype)
    with np.errstate(all="ignore"):
        fits = (interval.low <= numbers) & (numbers <= interval.high)
    fits |= np.isnan(numbers) & np.isnan(interval.exact)
    if not fits.all():
        at = int(np.flatnonzero(~fits)[0])
        number, low, high, exact = (
            a.reshape(-1)[at].item()
            for a in np.broadcast_arrays(numbers, interval.low, interval.high, interval.exact)
        )
        raise Failure(
            f"element {at}: got {number!r}, expected {low!r} .. {high!r} (exactly {exact!r}); "
            f"{int((~fits).sum())} of {got.size} are wrong"
        )
    return Outcome(got.size)


def first_largest(values: Sequence[float]) -> int:
    """The index of the first NaN, or of the first of the largest."""
    for i, value in enumerate(values):
        if value != value:
            return i
    return values.index(max(values))
