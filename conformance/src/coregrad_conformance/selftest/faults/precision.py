"""Floats that are not precise enough: computed in something narrower, or by a formula that loses.

The faults of class "limit" are off by a little more than the contract allows, 1.2 to 2 times where
the format has room for that: they are what keeps each tolerance from being widened unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from coregrad import dtypes
from coregrad.dtypes import FLOATS, DType
from coregrad.hookspecs import hookimpl
from coregrad_conformance import ulp
from coregrad_conformance.selftest.device import Change, Ref, changed, recast
from coregrad_conformance.selftest.fault import Fault
from coregrad_cpu.formats import held, rounded

NARROWER = {"float32": np.float16, "float64": np.float32}
FUNCTIONS: dict[str, Any] = {
    "add": np.add,
    "mul": np.multiply,
    "div": np.divide,
    "mod": np.fmod,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "sin": lambda x, quarter: np.sin(x + x.dtype.type(quarter * np.pi / 2)),
}
LIMITED = ("add", "mul", "div", "mod", "max", "exp", "log", "sin", "sqrt", "trunc")
LOG2_E = np.float32(1.4426950408889634)


def faults() -> Iterator[Fault]:
    """All of this file."""
    for op in FUNCTIONS:
        for name, narrow in NARROWER.items():
            yield _narrow(op, name, narrow)
    for op in LIMITED:
        for dtype in FLOATS:
            yield _beyond(op, dtype)
    for source, target in (("float64", "float32"), ("float32", "float16"), ("int64", "float32")):
        yield _cast_beyond(source, target)
    for op, name, says, by, change in FORMULAS:
        yield Fault(f"precision/{op}-{name}", "precision", op, "float32", says,
                    f"{op}/float32/{by}", changed(op, "float32", change))  # fmt: skip
    says = "of a huge argument next to a multiple of pi/2 the last digits are lost"
    yield Fault("precision/sin-of-worst", "precision", "sin", "float64", says,
                "sin/float64/worst-case",
                changed("sin", "float64", _without_last_digits))  # fmt: skip
    yield Fault(
        "precision/mul-add-fused",
        "precision",
        "mul",
        "float32",
        "a product keeps its extra digits for the addition that follows: one rounding, not two",
        "expressions/mul-add/float32",
        lambda: _Fused,
    )


def _without_last_digits(right: Any, x: Any, quarter: int) -> Any:
    near = (np.abs(right) < 2.0**-50) & (np.abs(x) > 2.0**500)
    return np.where(near, right * (1 + 2.0**-49), right)


def _narrow(op: str, name: str, narrow: Any) -> Fault:
    function = FUNCTIONS[op]

    def change(right: Any, *operands: Any) -> Any:
        numbers = [x.astype(narrow) if np.ndim(x) else x for x in operands]
        return function(*numbers).astype(right.dtype)

    says = f"{op} of {name} is computed in {np.dtype(narrow).name}"
    by = f"{op}/{name}/random"
    return Fault(f"precision/{op}-{name}-narrow", "precision", op, name, says, by,
                 changed(op, name, change))  # fmt: skip


# ---- just beyond the limit ---------------------------------------------------------------------


def steps_beyond(limit: float) -> int:
    """By how many numbers a value that is within half an ulp has to be moved to miss the limit."""
    return 1 if limit == ulp.EXACT else int(np.ceil(limit * 1.25 + 0.5))


def moved(x: Any, dtype: DType, steps: int) -> Any:
    """Finite numbers moved away from zero by so many; the largest ones stay."""
    word = f"u{held(dtype).itemsize}"
    one = 1 << 16 if dtype is dtypes.bfloat16 else 1  # the lower half of its words is empty
    bits = np.ascontiguousarray(x).view(word).reshape(np.shape(x))
    far = (bits + np.array(steps * one, word)).view(x.dtype)
    return np.where(np.isfinite(far) & np.isfinite(x), far, x)


def _beyond(op: str, dtype: DType) -> Fault:
    limit = ulp.limit(op, dtype)
    steps = steps_beyond(limit)

    def change(right: Any, first: Any, *others: Any) -> Any:
        """About one result in eight is off."""
        word = f"u{held(dtype).itemsize}"
        shape = np.shape(right)
        bits = np.ascontiguousarray(np.broadcast_to(right, shape)).view(word).reshape(shape)
        unit = 16 if dtype is dtypes.bfloat16 else 0
        chosen = ((bits >> np.array(unit, word)) & np.array(7, word)) == 5
        return np.where(chosen, moved(right, dtype, steps), right)

    says = f"{op} of {dtype.name} misses now and then by {steps} ulp; {limit} are allowed"
    by = f"{op}/{dtype.name}/random"
    return Fault(f"limit/{op}-{dtype.name}", "limit", op, dtype.name, says, by,
                 changed(op, dtype.name, change))  # fmt: skip


def _cast_beyond(source: str, target: str) -> Fault:
    dtype = next(d for d in FLOATS if d.name == target)

    def change(right: Any, x: Any) -> Any:
        return moved(right, dtype, 1)

    says = f"{source} to {target} gives the number after the right one"
    return Fault(f"limit/cast-{source}-{target}", "limit", "cast", target, says,
                 f"cast/{source}-to-{target}", recast(source, target, change))  # fmt: skip


# ---- formulas that lose digits -----------------------------------------------------------------


def _single(x: Any) -> Any:
    return np.asarray(x).astype(np.float32)


def _reduced(right: Any, x: Any, quarter: int) -> Any:
    """Cody and Waite's reduction with a pi of float32: good for small arguments only."""
    turns = np.rint(x * np.float32(2 / np.pi))
    rest = x - turns * np.float32(np.pi / 2)
    phase = np.nan_to_num(turns).astype(np.float64) * (np.pi / 2) + quarter * (np.pi / 2)
    return np.where(np.isfinite(x), _single(np.sin(rest + phase)), right)


def _seventeen_bits(right: Any, x: Any, quarter: int) -> Any:
    return np.where(np.abs(x) > 2.0**17, np.float32(0.5), right)


FORMULAS: tuple[tuple[str, str, str, str, Change], ...] = (
    (
        "div",
        "by-reciprocal",
        "a quotient is the dividend times the rounded reciprocal, which may overflow",
        "special-pairs",
        lambda right, a, b: a * (np.float32(1) / b),
    ),
    (
        "exp",
        "by-exp2",
        "exp(x) is 2 to the rounded x/ln 2, so that large results lose digits",
        "random",
        lambda right, x: np.exp2(x * LOG2_E),
    ),
    (
        "exp",
        "series",
        "exp(x) is 1 + x + x*x/2 for small x, of which too many count as small",
        "random",
        lambda right, x: np.where(np.abs(x) < 0.03, 1 + x + x * x / 2, right),
    ),
    (
        "log",
        "near-one",
        "log goes by way of a square root, whose rounding is all that is left near 1",
        "random",
        lambda right, x: 2 * np.log(np.sqrt(x)),
    ),
    (
        "log",
        "of-subnormals",
        "log scales subnormal numbers up and forgets to take the scale off again",
        "special-values",
        lambda right, x: np.where((x > 0) & (x < 2.0**-126), right + np.float32(15.9), right),
    ),
    (
        "sqrt",
        "by-logarithm",
        "a square root is exp(log(x)/2)",
        "random",
        lambda right, x: np.where(x > 0, np.exp(np.float32(0.5) * np.log(x)), right),
    ),
    (
        "sin",
        "reduced-in-single",
        "a sine's argument is reduced with a pi of 24 bits",
        "random",
        _reduced,
    ),
    (
        "sin",
        "large-arguments",
        "a sine of more than 2 to the 17 is given up",
        "special-values",
        _seventeen_bits,
    ),
    (
        "sin",
        "quarter-added",
        "a cosine is the sine of the rounded sum of the argument and pi/2",
        "random-quarter-1",
        lambda right, x, quarter: np.sin(x + np.float32(quarter * np.pi / 2)) if quarter else right,
    ),
    (
        "mod",
        "by-quotient",
        "a remainder is a - trunc(a/b)*b, which is nothing like exact for large quotients",
        "random",
        lambda right, a, b: a - np.trunc(a / b) * b,
    ),
    (
        "trunc",
        "by-int32",
        "trunc goes by way of int32, so that larger numbers come back as its smallest",
        "special-values",
        lambda right, x: np.where(np.abs(x) < 2.0**31, right, np.float32(-(2.0**31))),
    ),
    (
        "trunc",
        "to-nearest",
        "trunc rounds to the nearest integer",
        "random",
        lambda right, x: np.rint(x),
    ),
    ("trunc", "down", "trunc rounds down", "random", lambda right, x: np.floor(x)),
)


class _Fused(Ref):
    """A product of float32 stays in float64 until another op or a store rounds it."""

    @hookimpl
    def lower_mul(self, frame: Any, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        if dtype is not dtypes.float32:
            return super().lower_mul(frame, a, b, dtype, lanes)
        with np.errstate(all="ignore"):
            return np.multiply(a, b, dtype=np.float64)

    @hookimpl
    def lower_bitcast(self, frame: Any, x: Any, source: DType, dtype: DType, lanes: int) -> Any:
        return super().lower_bitcast(frame, rounded(x, source), source, dtype, lanes)
