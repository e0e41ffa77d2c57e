"""The words in which the languages of the C family differ, and how a number is written exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from coregrad.dtypes import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    to_bits,
    uint8,
    uint16,
    uint32,
    uint64,
)

HALVES = (float16, bfloat16)  # stored as 16-bit words, computed in float32, rounded after each op
# What most languages have, and call by these names for doubles at least.
FUNCTIONS = ("exp", "log", "sin", "cos", "sqrt", "trunc", "fmod")
# Integers as OpenCL C and Metal call them, and literals where a long has 64 bits.
SHORT_NAMES: Mapping[DType, str] = {
    bool_: "bool",
    uint8: "uchar",
    uint16: "ushort",
    uint32: "uint",
    uint64: "ulong",
    int8: "char",
    int16: "short",
    int32: "int",
    int64: "long",
}
SHORT_SUFFIXES: Mapping[DType, str] = {float32: "f", uint32: "u", int64: "L", uint64: "UL"}


@dataclass(frozen=True)
class Words:
    """One language. Fields in braces are filled in; what is left empty the language does not need.

    ``types``: the C type of a dtype's values (of float16 and bfloat16: what holds one).
    ``suffixes``: of literals. ``kernel``: what stands before a kernel's body, from {bounds},
    {name} and {params}; ``bounds``: the promise to launch groups of {threads}.
    ``param``: a buffer argument, from {const}, {type} and {name}, and its {position}.
    ``local``: what makes an array the work-group's. ``function``: before a helper's result type.
    ``group``, ``thread``, ``item``: the numbers of the work-group, of the thread within it, and of
    the thread among all. ``items``: where the language promises a group's size for every kernel,
    how many single items a group has at most; all of a group's run, whether the grid has them or
    not. ``warp``: the least threads of a group, where fewer cannot be had.
    ``bitcast``: {x} of type {source} read as {type}; ``bitcasts``: for a pair of dtypes, what is
    written instead. ``decimal``: floats are never written in hexadecimal. ``nan``: whether {x} is
    NaN; empty: its bits are looked at. ``ieee`` is false where the compiler assumes that there is
    no NaN: comparisons then look at the bits as well. ``infinity``: a float literal, or empty.
    ``functions``: what float32 calls for exp, log, sin with cos, sqrt, trunc, fmod, and fma; a
    function that is not there is a hook that the backend leaves out (fmod: `Limits.float_mod`);
    also divide, where the operator / is not good enough.
    ``doubles``: the same for float64, where the names differ. ``helpers``: texts that replace
    those of routines.py, by name. ``casts``: functions for conversions from one dtype to another
    that a C cast may get wrong. ``pragmas``: for a dtype, what must stand at the top.
    """

    types: Mapping[DType, str]
    kernel: str
    item: str
    bitcast: str
    suffixes: Mapping[DType, str] = field(default_factory=dict)
    bounds: str = ""
    param: str = "{const}{type} *{name}"
    local: str = ""
    function: str = ""
    group: str = ""
    thread: str = ""
    items: int = 0
    warp: int = 1
    barrier: str = ""
    bitcasts: Mapping[tuple[DType, DType], str] = field(default_factory=dict)
    decimal: bool = False
    nan: str = ""
    infinity: str = ""
    ieee: bool = True
    functions: Mapping[str, str] = field(default_factory=dict)
    doubles: Mapping[str, str] = field(default_factory=dict)
    helpers: Mapping[str, str] = field(default_factory=dict)
    casts: Mapping[tuple[DType, DType], str] = field(default_factory=dict)
    pragmas: Mapping[DType, str] = field(default_factory=dict)
    preamble: str = ""

    def stored(self, dtype: DType) -> str:
        """The C type of one element in memory: bool is a byte, 16-bit floats are words."""
        if dtype is bool_:
            return self.types[uint8]
        return self.types[uint16 if dtype in HALVES else dtype]

    def call(self, function: str, dtype: DType) -> str:
        """The name of a function of ``dtype``; float16 and bfloat16 use float32's."""
        doubles = self.doubles if dtype is float64 else {}
        return doubles.get(function, self.functions[function])

    def bits(self, x: str, source: DType, dtype: DType) -> str:
        """The bits of ``x`` read as another type of the same width."""
        text = self.bitcasts.get((source, dtype), self.bitcast)
        return text.format(x=x, source=self.types[source], type=self.types[dtype])

    def literal(self, value: float, dtype: DType) -> str:
        """A number, exactly. float16 and bfloat16 are written as the float32 they are held in."""
        if dtype is bool_:
            return "1" if value else "0"
        if not dtype.is_float:
            return self._integer(int(value), dtype)
        wide = float64 if dtype is float64 else float32
        if not math.isfinite(value):
            return self._special(value, wide)
        digits = repr(float(value)) if self.decimal else _decimal(float(value))
        return digits + self.suffixes.get(wide, "")

    def _integer(self, value: int, dtype: DType) -> str:
        wide = dtype if dtype.bits >= 32 else int32
        suffix = self.suffixes.get(wide, "")
        if value == wide.min < 0:  # C has no negative literals, and this one's size does not fit
            return f"(-{-(value + 1)}{suffix} - 1)"
        return f"{value}{suffix}"

    def _special(self, value: float, dtype: DType) -> str:
        if self.infinity and math.isinf(value) and dtype is float32:
            return self.infinity if value > 0 else f"-{self.infinity}"
        word = uint64 if dtype is float64 else uint32
        digits = f"{to_bits(value, dtype):#x}{self.suffixes.get(word, '')}"
        return self.bits(digits, word, dtype)


def _decimal(value: float) -> str:
    """In decimal where a short text is the very number, else in hexadecimal.

    >>> _decimal(0.5), _decimal(-0.0), _decimal(1e30), _decimal(0.1)
    ('0.5', '-0.0', '0x1.93e5939a08ceap+99', '0x1.999999999999ap-4')
    """
    if value == 0.0 or (abs(value) < 1e7 and value == round(value * 1024) / 1024):
        return repr(value)
    return _hexadecimal(value)


def _hexadecimal(value: float) -> str:
    mantissa, _, exponent = value.hex().partition("p")
    mantissa = mantissa.rstrip("0") if "." in mantissa else mantissa
    return f"{mantissa.rstrip('.')}p{exponent}"
