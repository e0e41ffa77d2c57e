"""Zeros and their signs, infinities, NaN and subnormal numbers: what ordinary values never show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from coregrad.dtypes import DType
from coregrad_conformance.selftest.device import Change, Ref, changed, folded, recast, with_hook
from coregrad_conformance.selftest.fault import Fault

LEAST = {"float32": np.float32(2.0**-126), "float64": 2.0**-1022}  # the smallest normal numbers
INF, NAN, ZERO = np.float32(np.inf), np.float32(np.nan), np.float32(0)
HUGE = np.finfo(np.float32).max


def faults() -> Iterator[Fault]:
    """All of this file."""
    for op, name, says, change in VALUES:
        by = "special-values" if op in ("exp", "log", "sqrt", "trunc", "const", "sin") else ""
        yield Fault(f"special/{op}-{name}", "special values", op, "float32", says,
                    f"{op}/float32/{by or 'special-pairs'}",
                    changed(op, "float32", change))  # fmt: skip
    for kind, name, says, change in FOLDS:
        yield Fault(f"special/reduce-{kind}-{name}", "special values", "reduce", "float32", says,
                    f"reduce/{kind}/float32/special-values",
                    folded(kind, "float32", change))  # fmt: skip
    for op, dtype, name, says, by, change in FLUSHES:
        yield Fault(f"subnormals/{op}-{dtype}-{name}", "subnormals", op, dtype, says, by,
                    changed(op, dtype, change))  # fmt: skip
    for source, dtype, says, change in CASTS:
        yield Fault(f"subnormals/cast-{source}-{dtype}", "subnormals", "cast", dtype, says,
                    f"cast/{source}-to-{dtype}", recast(source, dtype, change))  # fmt: skip
    yield Fault("subnormals/load-float32", "subnormals", "load", "float32",
                "a load of float32 flushes subnormal numbers", "load/float32/gate",
                _flushed_loads)  # fmt: skip


def _signless(x: Any) -> Any:
    """-0.0 becomes 0.0."""
    return x + np.zeros((), x.dtype)


def _flushed(x: Any) -> Any:
    """Subnormal numbers become zeros of their sign."""
    least = LEAST[str(x.dtype)]
    return np.where(np.abs(x) < least, np.copysign(np.zeros((), x.dtype), x), x)


# ---- zeros, infinities, NaN --------------------------------------------------------------------

# fmt: off
VALUES: tuple[tuple[str, str, str, Change], ...] = (
    ("add", "negative-zero", "-0.0 + -0.0 is 0.0", lambda right, a, b: _signless(right)),
    ("add", "opposite-infinities", "inf - inf is 0",
     lambda right, a, b: np.where(np.isinf(a) & np.isinf(b) & (a != b), ZERO, right)),
    ("add", "nan-is-zero", "a NaN operand counts as 0",
     lambda right, a, b: np.where(np.isnan(a), b, right)),
    ("mul", "negative-zero", "a product that is -0.0 loses its sign",
     lambda right, a, b: _signless(right)),
    ("mul", "zero-times-infinity", "0 * inf is 0",
     lambda right, a, b: np.where(np.isnan(right) & ~np.isnan(a) & ~np.isnan(b), ZERO, right)),
    ("mul", "overflow-saturates", "a product that overflows is the largest number",
     lambda right, a, b: np.where(np.isinf(right) & np.isfinite(a) & np.isfinite(b),
                                  np.copysign(HUGE, right), right)),
    ("div", "by-zero", "x/0 is 0", lambda right, a, b: np.where(b == 0, ZERO, right)),
    ("div", "zero-by-zero", "0/0 is 0",
     lambda right, a, b: np.where((a == 0) & (b == 0), ZERO, right)),
    ("div", "sign-of-infinity", "x/-0.0 is an infinity of the sign of x",
     lambda right, a, b: np.where(b == 0, np.copysign(right, a), right)),
    ("div", "infinities", "inf/inf is 1",
     lambda right, a, b: np.where(np.isinf(a) & np.isinf(b), np.float32(1), right)),
    ("mod", "of-infinity", "the remainder of an infinity is 0",
     lambda right, a, b: np.where(np.isinf(a), ZERO, right)),
    ("mod", "by-infinity", "the remainder by an infinity is NaN",
     lambda right, a, b: np.where(np.isinf(b), NAN, right)),
    ("mod", "sign-of-zero", "a remainder that is 0 has no sign",
     lambda right, a, b: _signless(right)),
    ("mod", "sign-of-divisor", "a remainder has the sign of the divisor",
     lambda right, a, b: np.where((right != 0) & (np.sign(right) != np.sign(b)) & np.isfinite(b),
                                  right + b, right)),
    ("max", "skips-nan", "of a number and NaN the number is the larger one",
     lambda right, a, b: np.fmax(a, b)),
    ("max", "loses-second-nan", "a < b ? b : a, so that a NaN on the right is lost",
     lambda right, a, b: np.where(a < b, b, a)),
    ("max", "loses-first-nan", "a > b ? a : b, so that a NaN on the left is lost",
     lambda right, a, b: np.where(a > b, a, b)),
    ("max", "of-magnitudes", "the operand of larger magnitude is taken",
     lambda right, a, b: np.where(np.abs(a) > np.abs(b), a, b)),
    ("lt", "true-for-nan", "a < b is the opposite of a >= b, hence true with NaN",
     lambda right, a, b: ~(a >= b)),
    ("lt", "signed-zeros", "-0.0 is less than 0.0",
     lambda right, a, b: right | ((a == 0) & (b == 0) & np.signbit(a) & ~np.signbit(b))),
    ("lt", "infinity", "no number is less than infinity",
     lambda right, a, b: right & ~np.isposinf(b)),
    ("ne", "false-for-nan", "a != b is a < b or a > b, hence false with NaN",
     lambda right, a, b: (a < b) | (a > b)),
    ("ne", "by-bits", "numbers are compared as bits, so that 0.0 and -0.0 differ",
     lambda right, a, b: right | (np.signbit(a) != np.signbit(b))),
    ("exp", "of-minus-infinity", "exp(-inf) is NaN",
     lambda right, x: np.where(np.isneginf(x), NAN, right)),
    ("exp", "overflow-saturates", "exp of too much is the largest number",
     lambda right, x: np.where(np.isposinf(right), HUGE, right)),
    ("exp", "early-overflow", "exp is infinite from 88 on, which is 0.7 too early",
     lambda right, x: np.where(x > 88, INF, right)),
    ("exp", "of-nan", "exp(NaN) is 0", lambda right, x: np.where(np.isnan(x), ZERO, right)),
    ("log", "of-zero", "log(0) is the log of the smallest number",
     lambda right, x: np.where(x == 0, np.float32(-103.27893), right)),
    ("log", "of-negative", "log(x) is -inf for x < 0",
     lambda right, x: np.where(x < 0, -INF, right)),
    ("log", "of-negative-zero", "log(-0.0) is NaN",
     lambda right, x: np.where((x == 0) & np.signbit(x), NAN, right)),
    ("log", "of-infinity", "log(inf) is the log of the largest number",
     lambda right, x: np.where(np.isposinf(x), np.float32(88.72284), right)),
    ("sqrt", "of-negative-zero", "sqrt(-0.0) is 0.0", lambda right, x: _signless(right)),
    ("sqrt", "of-negative", "sqrt(x) is 0 for x < 0",
     lambda right, x: np.where(x < 0, ZERO, right)),
    ("sqrt", "of-infinity", "sqrt(inf) is NaN",
     lambda right, x: np.where(np.isinf(x), NAN, right)),
    ("trunc", "sign-of-zero", "trunc(-0.5) is 0.0", lambda right, x: _signless(right)),
    ("trunc", "of-infinity", "trunc(inf) is the largest number",
     lambda right, x: np.where(np.isinf(x), np.copysign(HUGE, x), right)),
    ("trunc", "of-nan", "trunc(NaN) is 0", lambda right, x: np.where(np.isnan(x), ZERO, right)),
    ("sin", "of-infinity", "sin(inf) is 0",
     lambda right, x, quarter: np.where(np.isinf(x), ZERO, right)),
    ("sin", "of-negative-zero", "sin(-0.0) is 0.0",
     lambda right, x, quarter: _signless(right)),
    ("where", "by-arithmetic", "c*a + (1-c)*b: what is not chosen poisons with NaN",
     lambda right, c, a, b: c * a + (1 - c) * b if np.size(c) > 1 else right),
    ("where", "negative-zero", "a chosen -0.0 loses its sign",
     lambda right, c, a, b: _signless(right)),
    ("const", "nan", "a literal NaN is written as 0",
     lambda right, value: np.nan_to_num(right, nan=0.0, posinf=np.inf, neginf=-np.inf)),
    ("const", "infinity", "a literal infinity is written as the largest number",
     lambda right, value: np.where(np.isinf(right), np.copysign(HUGE, right), right)),
    ("const", "negative-zero", "a literal -0.0 is written as 0.0",
     lambda right, value: _signless(right)),
    ("const", "six-digits", "a literal is written with six digits",
     lambda right, value: np.full_like(right, float(f"{value:.6g}"))),
)
FOLDS: tuple[tuple[str, str, str, Change], ...] = (
    ("max", "skips-nan", "a maximum skips NaN",
     lambda right, acc, value: np.where(np.isnan(right), ZERO, right)),
    ("max", "starts-at-lowest", "a maximum starts at the lowest number, not at -inf",
     lambda right, acc, value: np.maximum(right, -HUGE)),
    ("add", "infinities", "a sum that is NaN is 0",
     lambda right, acc, value: np.where(np.isnan(right), ZERO, right)),
    ("mul", "starts-at-zero-sign", "a product loses the sign of a zero or an infinity",
     lambda right, acc, value: np.where(np.isfinite(right) & (right != 0), right, np.abs(right))),
    ("argmax", "skips-nan", "the index of a maximum passes over NaN",
     lambda right, acc, value: _without_nan(right, value)),
)
FLUSHES: tuple[tuple[str, str, str, str, str, Change], ...] = (
    ("add", "float32", "results", "sums that are subnormal are flushed",
     "add/float32/special-pairs", lambda right, a, b: _flushed(right)),
    ("add", "float64", "operands", "subnormal operands of a sum count as 0",
     "add/float64/special-pairs", lambda right, a, b: _flushed(a) + _flushed(b)),
    ("mul", "float32", "results", "products that are subnormal are flushed",
     "mul/float32/special-pairs", lambda right, a, b: _flushed(right)),
    ("mul", "float32", "operands", "subnormal operands of a product count as 0",
     "mul/float32/special-pairs", lambda right, a, b: _flushed(a) * _flushed(b)),
    ("div", "float32", "results", "quotients that are subnormal are flushed",
     "div/float32/special-pairs", lambda right, a, b: _flushed(right)),
    ("div", "float32", "operands", "a subnormal divisor counts as 0",
     "div/float32/special-pairs", lambda right, a, b: a / _flushed(b)),
    ("mod", "float32", "results", "remainders that are subnormal are flushed",
     "mod/float32/special-pairs", lambda right, a, b: _flushed(right)),
    ("exp", "float32", "results", "exp underflows to 0 as soon as it is subnormal",
     "exp/float32/special-values", lambda right, x: _flushed(right)),
    ("exp", "float64", "results", "exp underflows to 0 as soon as it is subnormal",
     "exp/float64/special-values", lambda right, x: _flushed(right)),
    ("log", "float32", "operands", "the log of a subnormal number is that of 0",
     "log/float32/special-values", lambda right, x: np.where(_flushed(x) == 0, -INF, right)),
    ("sqrt", "float32", "operands", "the root of a subnormal number is 0",
     "sqrt/float32/special-values", lambda right, x: np.where(_flushed(x) == 0, x * 0, right)),
    ("sin", "float32", "results", "the sine of a subnormal number is 0",
     "sin/float32/special-values", lambda right, x, quarter: _flushed(right)),
    ("lt", "float32", "operands", "subnormal numbers are compared as 0",
     "lt/float32/special-pairs", lambda right, a, b: _flushed(a) < _flushed(b)),
    ("ne", "float32", "operands", "subnormal numbers are equal to 0",
     "ne/float32/special-pairs", lambda right, a, b: _flushed(a) != _flushed(b)),
    ("max", "float32", "results", "a maximum that is subnormal is flushed",
     "max/float32/special-pairs", lambda right, a, b: _flushed(right)),
    ("where", "float32", "results", "a chosen subnormal number is flushed",
     "where/float32/special-pairs", lambda right, c, a, b: _flushed(right)),
    ("const", "float32", "results", "a literal that is subnormal is written as 0",
     "const/float32/special-values", lambda right, value: _flushed(right)),
)
CASTS: tuple[tuple[str, str, str, Change], ...] = (
    ("float64", "float32", "float64 to float32 flushes what becomes subnormal",
     lambda right, x: _flushed(right)),
    ("float32", "float16", "float32 to float16 flushes what becomes subnormal",
     lambda right, x: np.where(np.abs(right) < np.float16(2.0**-14), right * np.float16(0), right)),
    ("float16", "float32", "float16 to float32 flushes subnormal float16",
     lambda right, x: np.where(np.abs(x) < np.float16(2.0**-14), right * ZERO, right)),
    ("float32", "bool", "a subnormal number is False", lambda right, x: _flushed(x) != 0),
    ("float32", "float64", "float32 to float64 flushes subnormal float32",
     lambda right, x: np.where(np.abs(x) < LEAST["float32"], right * 0, right)),
)
# fmt: on


def _without_nan(right: Any, value: Any) -> Any:
    numbers, places = right
    return numbers, np.where(np.isnan(numbers), np.zeros_like(places), places)


def _flushed_loads() -> type[Ref]:
    def hook(right: Any, buffer: Any, index: Any, stride: Any, gate: Any, dtype: DType) -> Any:
        return _flushed(right) if dtype.name == "float32" else right

    return with_hook("load", hook)
