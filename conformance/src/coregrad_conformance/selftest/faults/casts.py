"""Casts that round, saturate or extend in another way, and bits that are taken for numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from coregrad import dtypes
from coregrad_conformance.selftest.device import Change, recast, retyped
from coregrad_conformance.selftest.fault import Fault
from coregrad_cpu.formats import packed, rounded, unpacked

KINDS = {"rounding": "cast rounding", "width": "integer width", "sign": "integer sign"}


def faults() -> Iterator[Fault]:
    """All of this file."""
    for kind, source, target, name, says, change in CASTS:
        yield Fault(f"casts/{source}-{target}-{name}", KINDS[kind], "cast", target,
                    f"{source} to {target}: {says}", f"cast/{source}-to-{target}",
                    recast(source, target, change))  # fmt: skip
    for source, target, says, change in BITS:
        yield Fault(f"casts/bits-{source}-{target}", "special values", "bitcast", target,
                    f"bits of {source} as {target}: {says}", f"bitcast/{source}-to-{target}",
                    retyped(source, target, change))  # fmt: skip


def _single(x: Any) -> Any:
    return np.asarray(x).astype(np.float32)


def _double(x: Any) -> Any:
    return np.asarray(x).astype(np.float64)


def _chopped(right: Any, exact: Any) -> Any:
    """Rounded towards zero instead of to the nearest."""
    too_far = np.abs(_double(right)) > np.abs(exact)
    return np.where(too_far & np.isfinite(right), np.nextafter(right, right.dtype.type(0)), right)


def _wrapped(x: Any, dtype: Any) -> Any:
    """The low bits of the integer part; 0 for what has none."""
    whole = np.where(np.abs(x) < 2.0**62, np.trunc(np.nan_to_num(x)), 0.0)
    return whole.astype(np.int64).astype(dtype)


def _bfloat_chopped(x: Any) -> Any:
    words = np.ascontiguousarray(_single(x)).view(np.uint32) >> 16 << 16
    return np.where(np.isnan(x), np.float32(np.nan), words.view(np.float32).reshape(np.shape(x)))


def _finite(right: Any, x: Any) -> Any:
    largest = np.finfo(right.dtype).max
    return np.where(np.isinf(right) & np.isfinite(x), np.copysign(largest, right), right)


# fmt: off
CASTS: tuple[tuple[str, str, str, str, str, Change], ...] = (
    ("rounding", "float32", "int32", "nearest", "rounds to the nearest",
     lambda right, x: np.where(np.abs(x) < 2.0**22, np.rint(np.nan_to_num(x)), right)
     .astype(np.int32)),
    ("rounding", "float32", "int32", "down", "rounds down",
     lambda right, x: np.where((x < 0) & (x > -(2.0**22)) & (x != np.trunc(x)),
                               right - np.int32(1), right)),
    ("rounding", "float32", "int32", "indefinite", "what is too large becomes the smallest number",
     lambda right, x: np.where(x >= 2.0**31, np.int32(-(2**31)), right)),
    ("rounding", "float32", "int32", "nan", "NaN becomes the smallest number",
     lambda right, x: np.where(np.isnan(x), np.int32(-(2**31)), right)),
    ("width", "float32", "uint8", "wraps", "wraps instead of saturating",
     lambda right, x: _wrapped(x, np.uint8)),
    ("sign", "float32", "uint8", "negative", "negative numbers wrap",
     lambda right, x: np.where(x < 0, _wrapped(x, np.uint8), right)),
    ("sign", "float32", "uint32", "negative", "negative numbers wrap",
     lambda right, x: np.where(x < 0, _wrapped(x, np.uint32), right)),
    ("width", "float32", "uint32", "by-int32", "goes by way of int32, which saturates",
     lambda right, x: np.minimum(right, np.uint32(2**31 - 1))),
    ("width", "float32", "int64", "by-int32", "goes by way of int32, which saturates",
     lambda right, x: np.clip(right, -(2**31), 2**31 - 1)),
    ("rounding", "float32", "int64", "one-too-far", "saturates one power of two too early",
     lambda right, x: np.where(x >= 2.0**62, np.int64(2**63 - 1), right)),
    ("rounding", "float32", "bool", "by-int", "goes by way of an integer: 0.5 is False",
     lambda right, x: np.trunc(np.nan_to_num(x)) != 0),
    ("rounding", "float32", "bool", "nan", "NaN is False",
     lambda right, x: right & ~np.isnan(x)),
    ("rounding", "int32", "float32", "chopped", "rounds towards zero",
     lambda right, x: _chopped(right, _double(x))),
    ("rounding", "uint32", "float32", "chopped", "rounds towards zero",
     lambda right, x: _chopped(right, _double(x))),
    ("sign", "uint32", "float32", "signed", "taken for signed numbers",
     lambda right, x: _single(x.view(np.int32))),
    ("sign", "uint8", "float32", "signed", "taken for signed numbers",
     lambda right, x: _single(x.view(np.int8))),
    ("rounding", "int64", "float32", "twice", "rounds twice, by way of float64",
     lambda right, x: _single(_double(x))),
    ("rounding", "int64", "bfloat16", "twice", "rounds twice, by way of float32",
     lambda right, x: rounded(_single(x), dtypes.bfloat16)),
    ("rounding", "uint64", "float64", "signed", "taken for signed numbers",
     lambda right, x: _double(x.view(np.int64))),
    ("rounding", "int64", "float64", "chopped", "the bits beyond 53 are dropped",
     lambda right, x: np.where(np.abs(right) > 2.0**60, _double(x >> 11 << 11), right)),
    ("rounding", "float64", "float32", "chopped", "rounds towards zero",
     lambda right, x: _chopped(right, x)),
    ("rounding", "float64", "float32", "overflow", "what is too large becomes the largest number",
     _finite),
    ("rounding", "float64", "float16", "twice", "rounds twice, by way of float32",
     lambda right, x: _single(x).astype(np.float16)),
    ("rounding", "float64", "bfloat16", "twice", "rounds twice, by way of float32",
     lambda right, x: unpacked(packed(_single(x)))),
    ("rounding", "float32", "bfloat16", "chopped", "rounds towards zero",
     lambda right, x: _bfloat_chopped(x)),
    ("rounding", "float32", "bfloat16", "half-up", "rounds ties away from zero",
     lambda right, x: _bfloat_chopped(_ties_up(x))),
    ("rounding", "float32", "float16", "overflow", "what is too large becomes the largest number",
     _finite),
    ("rounding", "float32", "float16", "chopped", "rounds towards zero",
     lambda right, x: _chopped(right, _double(x))),
    ("rounding", "int32", "bfloat16", "twice", "rounds twice, by way of float32",
     lambda right, x: rounded(_single(x), dtypes.bfloat16)),
    ("sign", "int32", "int64", "zero-extended", "zero-extended",
     lambda right, x: x.view(np.uint32).astype(np.int64)),
    ("sign", "uint32", "int64", "sign-extended", "sign-extended",
     lambda right, x: x.view(np.int32).astype(np.int64)),
    ("sign", "uint8", "int32", "sign-extended", "sign-extended",
     lambda right, x: x.view(np.int8).astype(np.int32)),
    ("width", "int64", "int32", "saturates", "saturates instead of wrapping",
     lambda right, x: np.clip(x, -(2**31), 2**31 - 1).astype(np.int32)),
    ("width", "int64", "uint8", "saturates", "saturates instead of wrapping",
     lambda right, x: np.clip(x, 0, 255).astype(np.uint8)),
    ("width", "int32", "uint8", "saturates", "saturates instead of wrapping",
     lambda right, x: np.clip(x, 0, 255).astype(np.uint8)),
    ("width", "int64", "bool", "low-word", "the lower half alone is looked at",
     lambda right, x: (x & 0xFFFFFFFF) != 0),
    ("width", "int32", "bool", "low-byte", "the lowest byte alone is looked at",
     lambda right, x: (x & 0xFF) != 0),
    ("width", "uint8", "bool", "low-bit", "the lowest bit alone is looked at",
     lambda right, x: (x & 1) != 0),
    ("sign", "bool", "int32", "all-ones", "True becomes -1", lambda right, x: -right),
    ("width", "bool", "uint8", "all-ones", "True becomes 255",
     lambda right, x: right * np.uint8(255)),
)
BITS: tuple[tuple[str, str, str, Change], ...] = (
    ("float32", "int32", "the numbers are converted",
     lambda right, x: np.where(np.abs(x) < 2.0**30, np.nan_to_num(x), 0).astype(np.int32)),
    ("int32", "float32", "the numbers are converted", lambda right, x: _single(x)),
    ("uint32", "float32", "subnormal numbers are flushed",
     lambda right, x: np.where(np.abs(right) < np.float32(2.0**-126), right * np.float32(0),
                               right)),
    ("int32", "uint32", "negative numbers saturate",
     lambda right, x: np.maximum(x, 0).astype(np.uint32)),
)
# fmt: on


def _ties_up(x: Any) -> Any:
    """Numbers to which half a unit of bfloat16 has been added in magnitude."""
    bits = np.ascontiguousarray(_single(x)).view(np.uint32)
    finite = np.isfinite(x)
    moved = np.where(finite, bits + 0x8000, bits).astype(np.uint32)
    return moved.view(np.float32).reshape(np.shape(x))
