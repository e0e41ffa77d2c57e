"""The Metal Shading Language in the words of the C family.

The texts are plain C++14 for version 2.3 of the language, which metalcompute asks for, with
fast-math on, which cannot be switched off: so NaN is looked for in the bits, and what a compiler
may rearrange for its speed (rounding by adding and subtracting, say) is written with integers.
"""

from __future__ import annotations

from coregrad.cstyle import Words
from coregrad.dtypes import (
    bfloat16,
    bool_,
    float16,
    float32,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)

THREADS = 256  # of a group of single items, pinned: metalcompute takes as many as a kernel admits
SIMD = 32  # threads that run as one; a group has a multiple of that

# Halves are a type of the language, and converting to one rounds to nearest even.
_UNPACK_HALF = "inline half unpack_half(ushort h) { return as_type<half>(h); }"
_PACK_HALF = "inline ushort pack_half(half x) { return as_type<ushort>(x); }"
_ROUND_HALF = "inline half round_half(float x) { return (half)x; }"
# By bits, as fast-math knows no -0.0, and no number that is too large for an int.
_TRUNCATION = """\
inline float truncation(float x) {
  const uint bits = as_type<uint>(x);
  const uint exponent = bits >> 23 & 0xffu;
  const uint places = exponent < 127u ? 0u : exponent - 127u;
  const uint kept = bits & ~(0x7fffffu >> (places < 23u ? places : 23u));
  return as_type<float>(exponent < 127u ? bits & 0x80000000u : kept);
}"""

WORDS = Words(
    types={
        bool_: "bool",
        uint8: "uchar",
        uint16: "ushort",
        uint32: "uint",
        uint64: "ulong",
        int8: "char",
        int16: "short",
        int32: "int",
        int64: "long",
        float16: "half",
        bfloat16: "float",
        float32: "float",
    },
    suffixes={float32: "f", uint32: "u", int64: "L", uint64: "UL"},
    kernel="{bounds}kernel void {name}({params}, uint item_id [[thread_position_in_grid]], "
    "uint group_id [[threadgroup_position_in_grid]], "
    "uint thread_id [[thread_position_in_threadgroup]])",
    bounds="[[max_total_threads_per_threadgroup({threads})]] ",
    param="device {const}{type} *{name} [[buffer({position})]]",
    local="threadgroup",
    function="inline",
    group="group_id",
    thread="thread_id",
    item="item_id",
    items=THREADS,
    warp=SIMD,
    barrier="threadgroup_barrier(mem_flags::mem_threadgroup)",
    bitcast="as_type<{type}>({x})",
    decimal=True,
    ieee=False,
    functions={
        "exp": "precise::exp",
        "log": "precise::log",
        "sin": "precise::sin",
        "cos": "precise::cos",
        "sqrt": "precise::sqrt",
        "trunc": "truncation",
        "divide": "precise::divide",
        "fma": "fma",
    },
    helpers={
        "unpack_half": _UNPACK_HALF,
        "pack_half": _PACK_HALF,
        "round_half": _ROUND_HALF,
        "truncation": _TRUNCATION,
    },
    preamble="#include <metal_stdlib>\nusing namespace metal;\n#pragma clang fp contract(off)",
)
