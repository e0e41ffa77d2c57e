"""Casts between the 13 dtypes, exactly as the contract says and without library calls."""

from __future__ import annotations

from coregrad.dtypes import DType, bfloat16, bool_, float16, float32, float64
from coregrad_cpu.llvm.frame import Frame
from coregrad_cpu.llvm.words import SCALAR, mangled, splat_text, vector

HALVES = (float16, bfloat16)


def cast(frame: Frame, x: str, source: DType, dtype: DType, lanes: int) -> str:
    """``x`` as ``dtype``."""
    if source is dtype:
        return x
    if dtype is bool_:
        return _to_bool(frame, x, source, lanes)
    if source is bool_:
        return _from_bool(frame, x, dtype, lanes)
    if not source.is_float:
        return _from_int(frame, x, source, dtype, lanes)
    if source in HALVES:
        x, source = widen(frame, x, source, lanes), float32
    if not dtype.is_float:
        return _saturate(frame, x, source, dtype, lanes)
    return _float_to_float(frame, x, source, dtype, lanes)


def widen(frame: Frame, x: str, dtype: DType, lanes: int) -> str:
    """A float16 or bfloat16 as the float32 of the same value; other dtypes as they are."""
    single = frame.type(float32, lanes)
    if dtype is float16:
        return frame.op(f"fpext {frame.type(float16, lanes)} {x} to {single}")
    if dtype is not bfloat16:
        return x
    word = vector("i32", lanes)
    bits = frame.op(f"zext {frame.type(bfloat16, lanes)} {x} to {word}")
    bits = frame.op(f"shl {word} {bits}, {splat_text('i32', lanes, '16')}")
    return frame.op(f"bitcast {word} {bits} to {single}")


def narrow(frame: Frame, x: str, dtype: DType, lanes: int) -> str:
    """The float32 ``x`` rounded to float16 or bfloat16; other dtypes have it as it is."""
    single = frame.type(float32, lanes)
    if dtype is float16:
        return frame.op(f"fptrunc {single} {x} to {frame.type(float16, lanes)}")
    if dtype is not bfloat16:
        return x
    # Round to nearest even on the bits: add half of the last kept place, minus one if that is even.
    word, short = vector("i32", lanes), frame.type(bfloat16, lanes)
    sixteen = splat_text("i32", lanes, "16")
    bits = frame.op(f"bitcast {single} {x} to {word}")
    last = frame.op(f"lshr {word} {bits}, {sixteen}")
    last = frame.op(f"and {word} {last}, {splat_text('i32', lanes, '1')}")
    rounded = frame.op(f"add {word} {bits}, {splat_text('i32', lanes, str(0x7FFF))}")
    rounded = frame.op(f"add {word} {rounded}, {last}")
    rounded = frame.op(f"lshr {word} {rounded}, {sixteen}")
    rounded = frame.op(f"trunc {word} {rounded} to {short}")
    nan = frame.op(f"fcmp uno {single} {x}, {x}")
    quiet = splat_text("i16", lanes, str(0x7FC0))
    return frame.op(f"select {vector('i1', lanes)} {nan}, {short} {quiet}, {short} {rounded}")


def _to_bool(frame: Frame, x: str, source: DType, lanes: int) -> str:
    if not source.is_float:
        return frame.op(f"icmp ne {frame.type(source, lanes)} {x}, {frame.splat(source, lanes, 0)}")
    x = widen(frame, x, source, lanes)
    wide = float32 if source in HALVES else source
    return frame.op(f"fcmp une {frame.type(wide, lanes)} {x}, {frame.splat(wide, lanes, 0.0)}")


def _from_bool(frame: Frame, x: str, dtype: DType, lanes: int) -> str:
    kind, mask = frame.type(dtype, lanes), vector("i1", lanes)
    if not dtype.is_float:
        return frame.op(f"zext {mask} {x} to {kind}")
    one, zero = frame.splat(dtype, lanes, 1.0), frame.splat(dtype, lanes, 0.0)
    return frame.op(f"select {mask} {x}, {kind} {one}, {kind} {zero}")


def _from_int(frame: Frame, x: str, source: DType, dtype: DType, lanes: int) -> str:
    signed = source.kind == "int"
    old, new = frame.type(source, lanes), frame.type(dtype, lanes)
    if not dtype.is_float:
        if source.bits == dtype.bits:
            return x
        wider = "sext" if signed else "zext"
        return frame.op(f"{'trunc' if dtype.bits < source.bits else wider} {old} {x} to {new}")
    convert = "sitofp" if signed else "uitofp"
    if dtype in (float32, float64):
        return frame.op(f"{convert} {old} {x} to {new}")
    if dtype is float16 or source.bits <= 16:
        # Exact in float32, or so large that both roundings give infinity.
        single = frame.op(f"{convert} {old} {x} to {frame.type(float32, lanes)}")
        return narrow(frame, single, dtype, lanes)
    if source.bits == 64:
        x = _fit_double(frame, x, signed, lanes)
    double = frame.op(f"{convert} {old} {x} to {frame.type(float64, lanes)}")
    return narrow(frame, _round_to_odd(frame, double, lanes), dtype, lanes)


def _fit_double(frame: Frame, x: str, signed: bool, lanes: int) -> str:
    """A 64-bit integer that rounds to bfloat16 as ``x`` does and is exact in float64.

    From 2^53 on, the low 12 bits can only break ties: their being non-zero moves to bit 11.
    """
    word, mask = vector("i64", lanes), vector("i1", lanes)
    low = frame.op(f"and {word} {x}, {splat_text('i64', lanes, '4095')}")
    some = frame.op(f"icmp ne {word} {low}, {splat_text('i64', lanes, '0')}")
    sticky = frame.op(
        f"select {mask} {some}, {word} {splat_text('i64', lanes, '2048')}, "
        f"{word} {splat_text('i64', lanes, '0')}"
    )
    high = frame.op(f"and {word} {x}, {splat_text('i64', lanes, '-4096')}")
    fitted = frame.op(f"or {word} {high}, {sticky}")
    if signed:  # -2^53 <= x < 2^53 is x + 2^53 < 2^54, unsigned
        shifted = frame.op(f"add {word} {x}, {splat_text('i64', lanes, str(1 << 53))}")
        small = frame.op(f"icmp ult {word} {shifted}, {splat_text('i64', lanes, str(1 << 54))}")
    else:
        small = frame.op(f"icmp ult {word} {x}, {splat_text('i64', lanes, str(1 << 53))}")
    return frame.op(f"select {mask} {small}, {word} {x}, {word} {fitted}")


def _saturate(frame: Frame, x: str, source: DType, dtype: DType, lanes: int) -> str:
    """Float to int: truncated, clamped to the ends, NaN to 0."""
    name = f"llvm.fpto{'s' if dtype.kind == 'int' else 'u'}i.sat"
    suffix = f"{mangled(dtype, lanes)}.{mangled(source, lanes)}"
    return frame.call(frame.type(dtype, lanes), f"{name}.{suffix}", (frame.type(source, lanes), x))


def _float_to_float(frame: Frame, x: str, source: DType, dtype: DType, lanes: int) -> str:
    if source is float32 and dtype is float64:
        return frame.op(f"fpext {frame.type(source, lanes)} {x} to {frame.type(dtype, lanes)}")
    if source is float64 and dtype is float32:
        return frame.op(f"fptrunc {frame.type(source, lanes)} {x} to {frame.type(dtype, lanes)}")
    if source is float64:
        x = _round_to_odd(frame, x, lanes)
    return narrow(frame, x, dtype, lanes)


def _round_to_odd(frame: Frame, x: str, lanes: int) -> str:
    """The float64 ``x`` as a float32 whose last bit is set where ``x`` was not exact.

    Rounding that once more, to at most 22 bits, gives what rounding ``x`` directly would give
    (Boldo and Melquiond, "When double rounding is odd", 2005).
    """
    double, single = frame.type(float64, lanes), frame.type(float32, lanes)
    word, mask = vector("i32", lanes), vector("i1", lanes)
    near = frame.op(f"fptrunc {double} {x} to {single}")
    back = frame.op(f"fpext {single} {near} to {double}")
    inexact = frame.op(f"fcmp one {double} {back}, {x}")
    too_large = frame.op(
        f"fcmp ogt {double} {_absolute(frame, back, lanes)}, {_absolute(frame, x, lanes)}"
    )
    bits = frame.op(f"bitcast {single} {near} to {word}")
    bits = frame.op(f"sub {word} {bits}, {frame.op(f'zext {mask} {too_large} to {word}')}")
    bits = frame.op(f"or {word} {bits}, {frame.op(f'zext {mask} {inexact} to {word}')}")
    return frame.op(f"bitcast {word} {bits} to {single}")


def _absolute(frame: Frame, x: str, lanes: int) -> str:
    kind = frame.type(float64, lanes)
    return frame.call(kind, f"llvm.fabs.{mangled(float64, lanes)}", (kind, x))


def bitcast(frame: Frame, x: str, source: DType, dtype: DType, lanes: int) -> str:
    """The bits of ``x`` as ``dtype``, which has the same width; bool counts as its stored byte."""
    old, new = frame.type(source, lanes), frame.type(dtype, lanes)
    if old == new:
        return x
    if source is bool_:
        return frame.op(f"zext {old} {x} to {new}")
    if dtype is bool_:
        return frame.op(f"icmp ne {old} {x}, {splat_text(SCALAR[source], lanes, '0')}")
    return frame.op(f"bitcast {old} {x} to {new}")
