"""Functions that a kernel's text may call: the 16-bit floats, NaN by its bits, rounding to odd, and
truncation, for languages whose own will not do (a word for "trunc" then names it).

They use integers and float32 alone, so that one text serves every language; a language with better
ways replaces them (``Words.helpers``). A kernel carries only those that it calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from coregrad.cstyle.words import Words
from coregrad.dtypes import bool_, float32, float64, int32, uint16, uint32, uint64


def needed(body: str, words: Words) -> list[str]:
    """The texts of the helpers that ``body`` calls, each after those it calls itself."""
    known = [*HELPERS, *(name for name in words.helpers if name not in HELPERS)]
    wanted: dict[str, str] = {}
    texts = [body]
    while texts:
        text = texts.pop()
        for name in known:
            if name not in wanted and re.search(rf"\b{name}\b", text):
                wanted[name] = words.helpers.get(name) or helper(name, words)
                texts.append(wanted[name])
    return [wanted[name] for name in known if name in wanted]


def helper(name: str, words: Words) -> str:
    """The text of a helper in a language that has no better one."""
    return HELPERS[name](Spelling(words))


class Spelling:
    """Short names for what the helpers are written in."""

    def __init__(self, words: Words) -> None:
        types = words.types
        self.words = words
        self.bool, self.float, self.int = types[bool_], types[float32], types[int32]
        self.uint, self.ushort = types[uint32], types[uint16]
        self.ulong, self.double = types.get(uint64, ""), types.get(float64, "")
        self.u = words.suffixes.get(uint32, "")
        self.f = words.suffixes.get(float32, "")

    def function(self, result: str, name: str, argument: str, *body: str) -> str:
        """A definition."""
        start = f"{self.words.function} " if self.words.function else ""
        lines = "".join(f"  {line}\n" for line in body)
        return f"{start}{result} {name}({argument}) {{\n{lines}}}"

    def as_uint(self, x: str) -> str:
        """The bits of a float."""
        return self.words.bits(x, float32, uint32)

    def as_float(self, x: str) -> str:
        """The float of some bits."""
        return self.words.bits(x, uint32, float32)


def _is_nan(s: Spelling) -> str:
    bits = s.as_uint("x")
    return s.function(
        s.bool, "is_nan", f"{s.float} x", f"return ({bits} & 0x7fffffff{s.u}) > 0x7f800000{s.u};"
    )


def _is_nan_double(s: Spelling) -> str:
    bits = s.words.bits("x", float64, uint64)
    u = s.words.suffixes.get(uint64, "")
    test = f"return ({bits} & 0x7fffffffffffffff{u}) > 0x7ff0000000000000{u};"
    return s.function(s.bool, "is_nan_double", f"{s.double} x", test)


def _unpack_half(s: Spelling) -> str:
    """Below 2**-14 a float16 is a multiple of 2**-24."""
    return s.function(
        s.float,
        "unpack_half",
        f"{s.ushort} h",
        f"const {s.uint} size = h & 0x7fff{s.u};",
        f"const {s.uint} sign = ({s.uint})(h & 0x8000{s.u}) << 16;",
        f"const {s.uint} bias = size < 0x7c00{s.u} ? 0x38000000{s.u} : 0x70000000{s.u};",
        f"const {s.float} small = ({s.float})size * 0x1p-24{s.f};",
        f"const {s.uint} bits = size < 0x400{s.u} ? {s.as_uint('small')} : (size << 13) + bias;",
        f"return {s.as_float('bits | sign')};",
    )


def _pack_half(s: Spelling) -> str:
    """Exact: the value is a float16's already."""
    return s.function(
        s.ushort,
        "pack_half",
        f"{s.float} x",
        f"const {s.uint} bits = {s.as_uint('x')};",
        f"const {s.uint} size = bits & 0x7fffffff{s.u};",
        f"const {s.uint} sign = bits >> 16 & 0x8000{s.u};",
        f"if (size >= 0x7f800000{s.u}) {{",
        f"  return ({s.ushort})(sign | (size > 0x7f800000{s.u} ? 0x7e00{s.u} : 0x7c00{s.u}));",
        "}",
        f"if (size >= 0x38800000{s.u}) {{",
        f"  return ({s.ushort})(sign | (size - 0x38000000{s.u}) >> 13);",
        "}",
        f"return ({s.ushort})(sign | ({s.uint})({s.as_float('size')} * 0x1p24{s.f}));",
    )


def _round_half(s: Spelling) -> str:
    """To nearest even: 10 bits of mantissa, or a multiple of 2**-24 below 2**-14 (adding 1/2, whose
    last bit is worth that, rounds to one); from 65520 on infinity."""
    half, small = f"0.5{s.f}", s.as_uint("small")
    return s.function(
        s.float,
        "round_half",
        f"{s.float} x",
        f"const {s.uint} bits = {s.as_uint('x')};",
        f"const {s.uint} size = bits & 0x7fffffff{s.u};",
        f"const {s.uint} sign = bits ^ size;",
        f"if (size > 0x7f800000{s.u}) {{",
        "  return x;",
        "}",
        f"if (size >= 0x477ff000{s.u}) {{",
        f"  return {s.as_float(f'0x7f800000{s.u} | sign')};",
        "}",
        f"if (size < 0x38800000{s.u}) {{",
        f"  const {s.float} small = ({s.as_float('size')} + {half}) - {half};",
        f"  return {s.as_float(small + ' | sign')};",
        "}",
        f"const {s.uint} rounded = (size + 0xfff{s.u} + (size >> 13 & 1{s.u})) & 0xffffe000{s.u};",
        f"return {s.as_float('rounded | sign')};",
    )


def _unpack_bfloat16(s: Spelling) -> str:
    word = f"({s.uint})h << 16"
    return s.function(s.float, "unpack_bfloat16", f"{s.ushort} h", f"return {s.as_float(word)};")


def _pack_bfloat16(s: Spelling) -> str:
    """Exact: the value is a bfloat16's already."""
    word = f"({s.ushort})({s.as_uint('x')} >> 16)"
    return s.function(s.ushort, "pack_bfloat16", f"{s.float} x", f"return {word};")


def _round_bfloat16(s: Spelling) -> str:
    """To nearest even: the upper 16 bits; a NaN gets its quiet bit, lest it end up as infinity."""
    return s.function(
        s.float,
        "round_bfloat16",
        f"{s.float} x",
        f"const {s.uint} bits = {s.as_uint('x')};",
        f"const {s.uint} odd = bits >> 16 & 1{s.u};",
        f"const {s.bool} nan = (bits & 0x7fffffff{s.u}) > 0x7f800000{s.u};",
        f"const {s.uint} near = nan ? bits | 0x400000{s.u} : bits + 0x7fff{s.u} + odd;",
        f"return {s.as_float(f'near & 0xffff0000{s.u}')};",
    )


def _odd_of_double(s: Spelling) -> str:
    """The float32 next to a double whose last bit is odd where they differ: rounding it further is
    then the same as rounding once (Boldo and Melquiond, "When double rounding is odd", 2005)."""
    return s.function(
        s.float,
        "odd_of_double",
        f"{s.double} x",
        f"const {s.float} near = ({s.float})x;",
        f"const {s.double} back = ({s.double})near;",
        f"const {s.uint} bits = {s.as_uint('near')};",
        "if (back == x || x != x || (bits & 1" + s.u + ")) {",
        "  return near;",
        "}",
        "const " + s.bool + " inwards = x < 0 ? back < x : back > x;",
        f"return {s.as_float(f'inwards ? bits - 1{s.u} : bits + 1{s.u}')};",
    )


def _odd_of_ulong(s: Spelling) -> str:
    """As odd_of_double. At least 14 leading bits are kept, and whether others were set: 24 bits at
    most, so that the conversion is exact."""
    return s.function(
        s.float,
        "odd_of_ulong",
        f"{s.ulong} x",
        f"{s.float} scale = 1.0{s.f};",
        "if (x >> 44) {",
        "  x = x >> 20 | ((x & 0xfffff) != 0);",
        f"  scale = 0x1p20{s.f};",
        "}",
        "if (x >> 34) {",
        "  x = x >> 10 | ((x & 0x3ff) != 0);",
        f"  scale *= 0x1p10{s.f};",
        "}",
        "if (x >> 24) {",
        "  x = x >> 10 | ((x & 0x3ff) != 0);",
        f"  scale *= 0x1p10{s.f};",
        "}",
        f"return ({s.float})x * scale;",
    )


def _truncation(s: Spelling) -> str:
    """By bits: it keeps -0.0, and asks no compiler what NaN or a large number is as an integer."""
    return s.function(
        s.float,
        "truncation",
        f"{s.float} x",
        f"const {s.uint} bits = {s.as_uint('x')};",
        f"const {s.uint} exponent = bits >> 23 & 0xff{s.u};",
        f"const {s.uint} places = exponent < 127{s.u} ? 0{s.u} : exponent - 127{s.u};",
        f"const {s.uint} lost = 0x7fffff{s.u} >> (places < 23{s.u} ? places : 23{s.u});",
        f"const {s.uint} sign = bits & 0x80000000{s.u};",
        f"return {s.as_float(f'exponent < 127{s.u} ? sign : bits & ~lost')};",
    )


HELPERS: dict[str, Callable[[Spelling], str]] = {
    "is_nan": _is_nan,
    "is_nan_double": _is_nan_double,
    "unpack_half": _unpack_half,
    "pack_half": _pack_half,
    "round_half": _round_half,
    "unpack_bfloat16": _unpack_bfloat16,
    "pack_bfloat16": _pack_bfloat16,
    "round_bfloat16": _round_bfloat16,
    "odd_of_double": _odd_of_double,
    "odd_of_ulong": _odd_of_ulong,
    "truncation": _truncation,
}
