"""Floats as their formats define them: decoding, rounding once, and distance in ulp.

Distance is OpenCL's measure: the difference from the exact value, in units of the last place of
that value in its dtype; 0 where the result is the exact value correctly rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad import dtypes
from coregrad.ir.ops import CONTRACT_OPS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coregrad.dtypes import DType

EXACT = 0.5  # the limit of ops that are correctly rounded


@dataclass(frozen=True)
class Format:
    """An IEEE 754 format: digits of the significand, smallest and largest normal exponent."""

    digits: int
    emin: int
    emax: int

    @property
    def max(self) -> float:
        """The largest finite number."""
        return float(np.ldexp(2.0 - 2.0 ** (1 - self.digits), self.emax))

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next number."""
        return 2.0 ** (1 - self.digits)

    @property
    def smallest(self) -> float:
        """The smallest positive number, a subnormal one."""
        return float(np.ldexp(1.0, self.emin - self.digits + 1))


FORMATS = {
    dtypes.float16: Format(11, -14, 15),
    dtypes.bfloat16: Format(8, -126, 127),
    dtypes.float32: Format(24, -126, 127),
    dtypes.float64: Format(53, -1022, 1023),
}


def limit(op: str, dtype: DType) -> float:
    """The contract's tolerance; ops that name none, and integers, are exact."""
    return CONTRACT_OPS[op].ulp.get(dtype.name, EXACT)


def decode(stored: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """Stored floats as float64, exactly; anything else as it is."""
    if dtype is dtypes.bfloat16:
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    if not dtype.is_float:
        return stored
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN
        return stored.astype(np.float64)


def encode(numbers: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """Numbers of ``dtype`` (see `nearest`), given as float64, as they are stored."""
    with np.errstate(all="ignore"):
        if dtype is dtypes.bfloat16:
            words = np.asarray(numbers, np.float32).view(np.uint32) >> 16
            return np.where(np.isnan(numbers), 0x7FC0, words).astype(np.uint16)
        return np.asarray(numbers).astype(dtype.storage)


def quantum(x: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """The unit in the last place that a finite ``x`` has in ``dtype``."""
    form = FORMATS[dtype]
    _, exponent = np.frexp(x)  # 0.5 <= fraction < 1: ilogb is one less
    place = np.where(x == 0, form.emin, np.clip(exponent - 1, form.emin, form.emax))
    unit: NDArray[Any] = np.ldexp(1.0, place - form.digits + 1)
    return unit


def nearest(x: NDArray[Any], dtype: DType, rest: NDArray[Any] | None = None) -> NDArray[Any]:
    """``x`` + ``rest`` rounded to nearest even once, as float64.

    ``rest`` is what float64 could not hold of the exact number: it decides between two neighbours
    that are equally near to ``x``.
    """
    x = np.asarray(x, np.float64)
    if dtype is dtypes.float64:
        return x
    with np.errstate(all="ignore"):
        unit = quantum(np.where(np.isfinite(x), x, 1.0), dtype)
        steps = x / unit
        whole = np.rint(steps)
        if rest is not None:
            below = np.floor(steps)
            tied = (steps - below == 0.5) & (rest != 0)
            whole = np.where(tied, below + (rest > 0), whole)
        value = np.copysign(whole * unit, x)
        rounded: NDArray[Any] = np.where(
            np.abs(value) > FORMATS[dtype].max, np.copysign(np.inf, x), value
        )
        return rounded


def distance(
    got: NDArray[Any], exact: NDArray[Any], dtype: DType, rest: NDArray[Any] | None = None
) -> NDArray[Any]:
    """How far each ``got`` (float64 numbers of ``dtype``) is from ``exact`` + ``rest``, in ulp.

    Infinite where one is NaN and the other is not, where an infinity is missed (an overflow counts
    as the number that would come next), and where a zero has the wrong sign.
    """
    with np.errstate(all="ignore"):
        rounded = nearest(exact, dtype, rest)
        same = (got == rounded) & (np.signbit(got) == np.signbit(rounded))
        same |= np.isnan(got) & np.isnan(rounded)
        target = np.where(np.isfinite(exact), exact, 1.0)
        gap = np.where(np.isfinite(got), got, target) - target
        if rest is not None:
            gap = gap - rest
        off = np.abs(gap) / quantum(target, dtype)
        # Halved, as twice the largest power of two is no float64.
        missing = np.ldexp(1.0, FORMATS[dtype].emax) - np.abs(target) / 2
        off = np.where(np.isinf(got), missing / (quantum(target, dtype) / 2), off)
        wrong = np.isnan(got) | ~np.isfinite(exact)
        wrong |= (got == 0) & (np.signbit(got) != np.signbit(exact))
        wrong |= np.isinf(got) & (np.signbit(got) != np.signbit(exact))
        return np.where(same, 0.0, np.where(wrong, np.inf, off))
