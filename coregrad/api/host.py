"""Between Python data and the bytes of a tensor: what a list or an array means; no tensors here.

Values are never changed silently: a number that does not fit its dtype, a ragged list, text and
complex numbers are errors.
"""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from coregrad import dtypes
from coregrad.dtypes import DType
from coregrad.errors import DTypeError, ShapeError

Array = np.ndarray[Any, np.dtype[Any]]
_BY_STORAGE = {np.dtype(d.storage): d for d in dtypes.ALL if d is not dtypes.bfloat16}
_PYTHON = (bool, int, float)


def as_dtype(dtype: Any) -> DType:
    """What a user calls a dtype: ours, its name, a Python type, or NumPy's.

    >>> as_dtype("half"), as_dtype(int), as_dtype(np.uint8)
    (coregrad.float16, coregrad.int64, coregrad.uint8)
    """
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, str):
        return dtypes.by_name(dtype)
    if dtype in _PYTHON:
        return {bool: dtypes.bool_, int: dtypes.int64, float: dtypes.float32}[dtype]
    try:
        return _BY_STORAGE[np.dtype(dtype)]
    except (TypeError, KeyError):
        raise DTypeError(
            f"dtype: {dtype!r} is none; choose one of {', '.join(d.name for d in dtypes.ALL)}"
        ) from None


def to_array(data: Any, dtype: DType | None, integer: DType) -> tuple[Array, DType]:
    """``data`` as an array of a dtype's stored elements. Without a ``dtype``, arrays keep theirs,
    Python floats become float32 and Python ints ``integer``."""
    array = _array(data, dtype)
    if dtype is None:
        dtype = _natural(data, array, integer)
    return store(array, dtype), dtype


def store(array: Array, dtype: DType) -> Array:
    """``array`` converted to stored elements of ``dtype``; numbers that do not fit are errors."""
    if dtype.is_int:
        _check_fit(array, dtype)
    if dtype is dtypes.bfloat16:
        return _bfloat16_bits(array.astype(np.float32))
    with np.errstate(over="ignore"):  # too large for a float is infinity, as IEEE 754 says
        return array.astype(dtype.storage, copy=False)


def load(array: Array, dtype: DType) -> Array:
    """Stored elements as an array a user can read: bfloat16 comes as float32."""
    if dtype is dtypes.bfloat16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


def _array(data: Any, dtype: DType | None) -> Array:
    try:
        array = np.asarray(data)
    except ValueError as error:
        raise ShapeError(
            f"Tensor: the data is ragged ({error}); give every row the same length"
        ) from None
    except OverflowError as error:
        raise DTypeError(f"Tensor: {error}; integers must fit 64 bits") from None
    if array.dtype.kind in "biuf":
        return array
    if array.dtype.kind == "O":
        if dtype is not None and dtype.is_float and all(type(n) is int for n in array.flat):
            return array.astype(np.float64)
        raise DTypeError(_why_object(array))
    raise DTypeError(
        f"Tensor: {_shown(data)} has NumPy dtype {array.dtype}, not numbers; "
        "convert it to bool, integer or float first"
    )


def _why_object(array: Array) -> str:
    for item in array.flat:
        if not isinstance(item, numbers.Number):
            return (
                f"Tensor: the data holds {_shown(item)} of type {type(item).__name__}; "
                "give numbers, or nested lists of numbers"
            )
    return "Tensor: the data holds integers beyond 64 bits; give floats, or a float dtype's array"


def _shown(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 40 else text[:37] + "..."


def _natural(data: Any, array: Array, integer: DType) -> DType:
    """The dtype of data whose dtype nobody gave."""
    if hasattr(data, "dtype") or _holds_arrays(data):
        found = _BY_STORAGE.get(array.dtype.newbyteorder("="))
        if found is None:
            raise DTypeError(
                f"Tensor: NumPy dtype {array.dtype} has no counterpart; convert it, for example "
                "with array.astype('float64')"
            )
        return found
    if array.dtype.kind == "b":
        return dtypes.bool_
    if array.dtype.kind == "f" and not _mixed_integers(data, array):
        return dtypes.float32
    return integer


def _holds_arrays(data: Any) -> bool:
    """Whether a (nested) list holds arrays or tensors, whose dtype then counts."""
    while isinstance(data, (list, tuple)) and data:
        data = data[0]
    return hasattr(data, "dtype")


def _mixed_integers(data: Any, array: Array) -> bool:
    """NumPy turns a list of Python ints into floats when no 64-bit type holds them all."""
    if array.size == 0 or hasattr(data, "__array__") or not np.abs(array).max() >= 2.0**63:
        return False
    return all(type(item) is int for item in np.array(data, dtype=object).flat)


def _check_fit(array: Array, dtype: DType) -> None:
    if array.size == 0 or array.dtype == np.dtype(dtype.storage) or array.dtype.kind == "b":
        return
    if array.dtype.kind == "f":
        array = np.trunc(array)
    low, high = array.min(), array.max()  # NaN in either fails the comparison below
    if not (int_or_nan(low) >= dtype.min and int_or_nan(high) <= dtype.max):
        wrong = low if not int_or_nan(low) >= dtype.min else high
        raise DTypeError(
            f"Tensor: {wrong} does not fit {dtype.name} ({dtype.min} .. {dtype.max}); "
            "choose a wider dtype"
        )


def int_or_nan(value: Any) -> int | float:
    """A NumPy number as an exact Python one."""
    number = value.item()
    return int(number) if np.isfinite(number) else float(number)


def _bfloat16_bits(array: Array) -> Array:
    """float32 rounded to nearest even in the upper 16 bits; NaN stays NaN."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(array), np.uint32(0x7FC0), rounded).astype(np.uint16)
