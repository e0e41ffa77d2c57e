"""How the device `numpy` holds numbers, and how it rounds and converts them; no loops, no memory.

Values are arrays of the dtype's storage. bfloat16, which NumPy lacks, is stored as 16-bit words
and held as the float32 numbers that fit it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from coregrad.dtypes import DType, bfloat16, bool_, float32, float64


def held(dtype: DType) -> np.dtype[Any]:
    """The NumPy dtype that values of ``dtype`` are held in."""
    return np.dtype("float32" if dtype is bfloat16 else dtype.storage)


def packed(x: Any) -> Any:
    """The stored 16 bits of bfloat16 numbers: float32 rounded to nearest even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    upper = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), 0x7FC0, upper).astype(np.uint16)


def unpacked(words: Any) -> Any:
    """The float32 numbers that stored bfloat16 words stand for."""
    return (np.asarray(words).astype(np.uint32) << 16).view(np.float32)


def rounded(x: Any, dtype: DType) -> Any:
    """``x`` as held for ``dtype``. Going from float64 to bfloat16 rounds once, not twice."""
    if dtype is not bfloat16:
        return np.asarray(x).astype(held(dtype), copy=False)
    single = np.asarray(x).astype(np.float32)
    if np.asarray(x).dtype == np.float64:
        single = _odd(single, x)
    return unpacked(packed(single))


def computed(function: Callable[..., Any], dtype: DType, *arguments: Any) -> Any:
    """``function(*arguments)`` rounded to ``dtype``. Infinity and NaN are answers, not warnings."""
    with np.errstate(all="ignore"):
        return rounded(function(*arguments), dtype)


def computed_wide(function: Callable[[Any], Any], dtype: DType, x: Any) -> Any:
    """A function of narrower floats is computed in float64: within half an ulp and a trifle."""
    return computed(lambda narrow: function(narrow.astype(np.float64)), dtype, x)


def converted(x: Any, source: DType, dtype: DType) -> Any:
    """The numbers ``x`` of dtype ``source`` as ``dtype``, as the contract's ``cast`` has it."""
    with np.errstate(all="ignore"):
        if dtype is bool_:
            return x != 0
        if source.is_float and dtype.is_int:
            return _float_to_int(x.astype(np.float64), dtype)
        if not source.is_float and dtype.is_float:
            return _int_to_float(x, dtype)
        return rounded(x, dtype)


def _odd(single: Any, x: Any) -> Any:
    """Of the two float32 around an inexact float64 the odd one, from which rounding on is exact
    (Boldo and Melquiond, "When double rounding is odd", 2005)."""
    even = (single.view(np.uint32) & 1) == 0
    towards = np.where(single < x, np.inf, -np.inf).astype(np.float32)
    inexact = (single != x) & ~np.isnan(x)
    return np.where(inexact & even, np.nextafter(single, towards), single)


def _float_to_int(x: Any, dtype: DType) -> Any:
    """Truncated and saturated, NaN to 0. (float64 holds every float; dtype.max + 1 is exact.)"""
    whole = np.trunc(x)
    above, below = whole >= float(dtype.max + 1), whole < float(dtype.min)
    inside = np.where(above | below | np.isnan(x), 0.0, whole).astype(held(dtype))
    low, high = held(dtype).type(dtype.min), held(dtype).type(dtype.max)
    return np.where(above, high, np.where(below, low, inside))


def _int_to_float(x: Any, dtype: DType) -> Any:
    """Rounded once. float32 and float64 are NumPy's own; the 16-bit ones go by way of float64."""
    if dtype in (float32, float64) or x.dtype == np.bool_:
        return x.astype(held(dtype))
    wide = x.astype(np.float64)
    if x.dtype.itemsize == 8:  # too wide for float64: keep what is lost as one last odd bit
        odd = ((x >> 12) | ((x & 0xFFF) != 0)).astype(np.float64) * 4096.0
        wide = np.where(np.abs(wide) > 2.0**52, odd, wide)
    return rounded(wide, dtype)
