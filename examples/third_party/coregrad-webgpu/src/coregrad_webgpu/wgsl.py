"""The words of WGSL: types, literals, conversions, and the functions of `prelude.wgsl`.

Text in, text out; it knows neither a kernel nor a device.
"""

from __future__ import annotations

import re
from importlib import resources

from coregrad import dtypes
from coregrad.dtypes import DType

HALVES = (dtypes.float16, dtypes.bfloat16)  # computed in f32 and rounded after each operation
PAIRS = (dtypes.int64, dtypes.uint64)  # vec2<u32>: the low word, the high one
DTYPES = frozenset(dtypes.ALL) - {dtypes.float64}
NORMAL = 2.0**-126  # what is smaller is written by its bits: a literal might be flushed


def word(dtype: DType) -> str:
    """The WGSL type of a value of ``dtype``."""
    if dtype in PAIRS:
        return "vec2<u32>"
    return {"bool": "bool", "int": "i32", "uint": "u32", "float": "f32"}[dtype.kind]


def packed(dtype: DType) -> bool:
    """Whether buffers hold several elements in one 32-bit word."""
    return dtype.bits < 32


def element(dtype: DType) -> str:
    """The WGSL type of what a buffer of ``dtype`` is an array of."""
    return "u32" if packed(dtype) else word(dtype)


def literal(value: float, dtype: DType) -> str:
    """The Python number ``value`` as an expression of type ``word(dtype)``."""
    if dtype is dtypes.bool_:
        return "true" if value else "false"
    if dtype.is_float:
        number = float(value)
        if NORMAL <= abs(number) < float("inf"):
            return f"f32({number!r})"
        return f"bits_f32({dtypes.to_bits(number, dtypes.float32):#x}u)"
    if dtype in PAIRS:
        bits = dtypes.to_bits(value, dtype)
        return f"vec2<u32>({bits & 0xFFFFFFFF}u, {bits >> 32}u)"
    return f"{word(dtype)}({int(value)})"


def fit(x: str, dtype: DType) -> str:
    """A result as its dtype has it: wrapped, rounded, or kept from being computed otherwise."""
    if dtype in HALVES:
        return f"round_{dtype.name}({x})"
    if dtype is dtypes.float32:
        return f"keep({x})"
    if dtype.is_int and packed(dtype):
        return f"extractBits({x}, 0u, {dtype.bits}u)"  # copies the sign of an i32
    return x


def to_bits(x: str, dtype: DType) -> str:
    """The stored bits of ``x``, of 32 bits or fewer, as an u32."""
    if dtype in HALVES:
        return f"bits_of_{dtype.name}({x})"
    if dtype is dtypes.bool_:
        return f"u32({x})"
    text = f"bitcast<u32>({x})"
    return f"extractBits({text}, 0u, {dtype.bits}u)" if packed(dtype) else text


def from_bits(bits: str, dtype: DType) -> str:
    """The value whose stored bits are ``bits``, an u32 without higher bits."""
    if dtype in HALVES:
        return f"{dtype.name}_of_bits({bits})"
    if dtype is dtypes.bool_:
        return f"{bits} != 0u"
    text = f"bitcast<{word(dtype)}>({bits})"
    return fit(text, dtype) if packed(dtype) else text


def truth(x: str, source: DType) -> str:
    """``x != 0``."""
    if source is dtypes.bool_:
        return x
    if source in PAIRS:
        return f"({x}.x | {x}.y) != 0u"
    return f"true_f32({x})" if source.is_float else f"{x} != {word(source)}(0)"


def cast(x: str, source: DType, dtype: DType) -> str:
    """``x`` as the contract's cast has it."""
    if dtype is dtypes.bool_:
        return truth(x, source)
    if source is dtypes.bool_:
        return f"select({literal(0, dtype)}, {literal(1, dtype)}, {x})"
    if dtype.is_float:
        text = _to_float(x, source, dtype)
        return text if dtype is dtypes.float32 else fit(text, dtype)
    if source.is_float:
        return _saturate(x, dtype)
    if dtype in PAIRS:
        return _widen(x, source)
    return fit(f"{word(dtype)}({x}.x)" if source in PAIRS else f"{word(dtype)}({x})", dtype)


def _to_float(x: str, source: DType, dtype: DType) -> str:
    if source.is_float:
        return x
    once_more = dtype is dtypes.bfloat16 and source.bits >= 32  # 24 bits, then 8: not twice
    if source.bits == 64 or once_more:
        name = "f32_of_int64" if source.kind == "int" else "f32_of_uint64"
        return f"{name}({_widen(x, source)}, {'true' if once_more else 'false'})"
    return f"f32({x})"


def _saturate(x: str, dtype: DType) -> str:
    if dtype.bits >= 32:
        return f"{dtype.name}_of_f32({x})"
    wide = f"{'int32' if dtype.kind == 'int' else 'uint32'}_of_f32({x})"
    return f"clamp({wide}, {literal(dtype.min, dtype)}, {literal(dtype.max, dtype)})"


def _widen(x: str, source: DType) -> str:
    if source in PAIRS:
        return x
    if source.kind == "uint":
        return f"vec2<u32>({x}, 0u)"
    return f"bitcast<vec2<u32>>(vec2<i32>({x}, {x} >> 31u))"


def prelude(body: str) -> str:
    """The functions of `prelude.wgsl` that ``body`` calls, and those that they call."""
    wanted: set[str] = set()
    open_ = _called(body)
    while open_:
        wanted |= open_
        open_ = set().union(*(_called(FUNCTIONS[name]) for name in open_)) - wanted
    return "".join(text + "\n" for name, text in FUNCTIONS.items() if name in wanted)


def _read() -> dict[str, str]:
    text = resources.files(__package__).joinpath("prelude.wgsl").read_text("utf-8")
    return {found[2]: found[1] for found in re.finditer(r"(?ms)^(fn (\w+).*?^}\n)", text)}


def _called(text: str) -> set[str]:
    return FUNCTIONS.keys() & re.findall(r"(\w+)\(", text)


FUNCTIONS = _read()
