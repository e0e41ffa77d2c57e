"""LLVM's words for types, constants and intrinsic names; it knows no kernel."""

from __future__ import annotations

import math
import struct

from coregrad.dtypes import (
    ALL,
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    to_bits,
)

# A bfloat16 value is carried as its bits (i16): LLVM turns `fptrunc ... to bfloat` into a library
# call on most CPUs, and into an instruction that flushes subnormals on those with AVX512-BF16.
SCALAR = {d: f"i{d.bits}" for d in ALL} | {
    bool_: "i1",
    float16: "half",
    bfloat16: "i16",
    float32: "float",
    float64: "double",
}
MANGLED = {"half": "f16", "float": "f32", "double": "f64"}


def type_of(dtype: DType, lanes: int) -> str:
    """The type of a value: ``float``, ``<16 x float>``."""
    return vector(SCALAR[dtype], lanes)


def vector(scalar: str, lanes: int) -> str:
    """``lanes`` of a scalar type; one lane is the scalar itself."""
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def stored(dtype: DType) -> str:
    """The type of one element in memory: bool takes a byte there."""
    return "i8" if dtype is bool_ else SCALAR[dtype]


def mangled(dtype: DType, lanes: int) -> str:
    """How intrinsic names spell the type: ``f32``, ``v16f32``, ``v8i64``."""
    return mangle(SCALAR[dtype], lanes)


def mangle(scalar: str, lanes: int) -> str:
    """The same for a scalar type's own name."""
    name = MANGLED.get(scalar, scalar)
    return name if lanes == 1 else f"v{lanes}{name}"


def constant(dtype: DType, value: float) -> str:
    """One constant operand, exact: floats are written as bits."""
    if dtype is bool_:
        return "true" if value else "false"
    if dtype is float16:
        return f"0xH{to_bits(value, dtype):04X}"
    if dtype in (float32, float64):
        number = math.nan if math.isnan(value) else float(value)
        return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
    if dtype is bfloat16:
        return str(to_bits(value, dtype))
    return str(int(value))


def splat(dtype: DType, lanes: int, value: float) -> str:
    """A constant operand with the same value in every lane."""
    return splat_text(SCALAR[dtype], lanes, constant(dtype, value))


def splat_text(scalar: str, lanes: int, text: str) -> str:
    """A scalar constant operand in every lane."""
    return text if lanes == 1 else f"splat ({scalar} {text})"
