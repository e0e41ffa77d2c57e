"""Conversions between dtypes, and between 16-bit floats and the float32 they are computed in."""

from __future__ import annotations

from coregrad.cstyle.frame import Frame
from coregrad.cstyle.value import Value, fits
from coregrad.cstyle.words import HALVES
from coregrad.dtypes import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint16,
    uint32,
    uint64,
)

SHORT = {float16: "half", bfloat16: "bfloat16"}  # as the helpers are called


def rounded(text: str, dtype: DType) -> str:
    """An expression of floats, rounded to its dtype if that is narrower than float32."""
    return f"round_{SHORT[dtype]}({text})" if dtype in HALVES else text


def unpacked(text: str, dtype: DType) -> str:
    """A stored element as a value."""
    if dtype is bool_:
        return f"{text} != 0"
    return f"unpack_{SHORT[dtype]}({text})" if dtype in HALVES else text


def packed(text: str, dtype: DType) -> str:
    """A value as a stored element."""
    return f"pack_{SHORT[dtype]}({text})" if dtype in HALVES else text


def widened(frame: Frame, x: Value, dtype: DType) -> str:
    """A float as float32 or float64, in which functions are computed."""
    return f"({frame.words.types[float32]}){x}" if dtype in HALVES else x.text


def cast(frame: Frame, x: Value, source: DType, dtype: DType) -> Value:
    """See lower_cast."""
    if source is dtype:
        return x
    if x.bounds is not None and dtype in (int32, int64) and fits(x.bounds, dtype):
        return x
    if dtype is bool_:
        return frame.value(_is_not_zero(frame, x, source), bool_)
    if dtype.is_float:
        return frame.value(_to_float(frame, x, source, dtype), dtype)
    if source.is_float:
        return frame.value(_float_to_int(frame, x, source, dtype), dtype)
    return frame.value(f"({frame.words.types[dtype]}){x}", dtype)


def bitcast(frame: Frame, x: Value, source: DType, dtype: DType) -> Value:
    """See lower_bitcast. Between integers of one width a conversion is the same."""
    words, text = frame.words, frame.full(x, source)
    if source in HALVES:
        text, source = packed(text, source), uint16
    target = uint16 if dtype in HALVES else dtype
    if source.is_float or target.is_float:
        text = words.bits(text, source, target)
    elif target is not source:
        text = f"({words.types[target]}){text}"
    return frame.value(unpacked(text, dtype) if dtype in HALVES else text, dtype)


def _is_not_zero(frame: Frame, x: Value, source: DType) -> str:
    """True for NaN, which a compiler that knows no NaN sees only in the bits."""
    if not source.is_float:
        return f"{x} != 0"
    if frame.words.ieee:
        return f"{x} != {frame.words.literal(0.0, source)}"
    word = uint64 if source is float64 else uint32
    bits = frame.words.bits(widened(frame, x, source), float64 if word is uint64 else float32, word)
    mask = f"{(1 << (word.bits - 1)) - 1:#x}{frame.words.suffixes.get(word, '')}"
    return f"({bits} & {mask}) != 0"


def _to_float(frame: Frame, x: Value, source: DType, dtype: DType) -> str:
    if dtype not in HALVES:
        function = frame.words.casts.get((source, dtype))
        return f"{function}({x})" if function else f"({frame.words.types[dtype]}){x}"
    if source is float64:
        return rounded(f"odd_of_double({x})", dtype)
    if dtype is bfloat16 and source.bits >= 32 and source.is_int:  # float32 would round it first
        return rounded(_odd_of_integer(frame, x, source), dtype)
    return rounded(f"({frame.words.types[float32]}){x}", dtype)


def _odd_of_integer(frame: Frame, x: Value, source: DType) -> str:
    word = frame.words.types[uint64]
    if source.kind == "uint":
        return f"odd_of_ulong({x})"
    return f"{x} < 0 ? -odd_of_ulong(-({word}){x}) : odd_of_ulong({x})"


def _float_to_int(frame: Frame, x: Value, source: DType, dtype: DType) -> str:
    """Only a number that fits is converted: C does not say what becomes of others."""
    words = frame.words
    wide = float64 if source is float64 else float32
    low, high = words.literal(dtype.min, dtype), words.literal(dtype.max, dtype)
    above = words.literal(float(dtype.max + 1), wide)
    below = words.literal(float(dtype.min), wide)
    value = x.text if source not in HALVES else f"({words.types[float32]}){x}"
    number = f"({words.types[dtype]}){value}"
    return (
        f"{is_nan(frame, x, source)} ? 0 : {value} >= {above} ? {high} : "
        f"{value} < {below} ? {low} : {number}"
    )


def is_nan(frame: Frame, x: Value, dtype: DType) -> str:
    """A test for NaN."""
    text = widened(frame, x, dtype)
    if frame.words.nan:
        return frame.words.nan.format(x=text)
    return f"is_nan_double({text})" if dtype is float64 else f"is_nan({text})"
