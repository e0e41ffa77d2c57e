"""The Metal Shading Language in the words of the C family.

The texts are plain C++14 for version 2.3 of the language, which metalcompute asks for, with
fast-math on, which cannot be switched off: so NaN is looked for in the bits, and what a compiler
may rearrange for its speed (rounding by adding and subtracting, say) is written with integers.
"""

from __future__ import annotations

from coregrad.cstyle import SHORT_NAMES, SHORT_SUFFIXES, Words
from coregrad.dtypes import bfloat16, float16, float32

THREADS = 256  # of a group of single items, pinned: metalcompute takes as many as a kernel admits
SIMD = 32  # threads that run as one; a group has a multiple of that

# Halves are a type of the language, and converting to one rounds to nearest even.
_UNPACK_HALF = "inline half unpack_half(ushort h) { return as_type<half>(h); }"
_PACK_HALF = "inline ushort pack_half(half x) { return as_type<ushort>(x); }"
_ROUND_HALF = "inline half round_half(float x) { return (half)x; }"

WORDS = Words(
    types={
        **SHORT_NAMES,
        float16: "half",
        bfloat16: "float",
        float32: "float",
    },
    suffixes=SHORT_SUFFIXES,
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
        "trunc": "truncation",  # fast-math's knows no -0.0, nor what is too large for an int
        "divide": "precise::divide",
        "fma": "fma",
    },
    helpers={
        "unpack_half": _UNPACK_HALF,
        "pack_half": _PACK_HALF,
        "round_half": _ROUND_HALF,
    },
    preamble="#include <metal_stdlib>\nusing namespace metal;\n#pragma clang fp contract(off)",
)
