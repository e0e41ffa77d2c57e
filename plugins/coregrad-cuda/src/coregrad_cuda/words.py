"""CUDA C++ in the words of the C family, and HIP's, which differ in how 16-bit floats are made.

No header is included: NVRTC's wheel has none, and a text without them compiles in half the time.
"""

from __future__ import annotations

from dataclasses import replace

from coregrad.cstyle import FUNCTIONS, Words, helper
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
    uint8,
    uint16,
    uint32,
    uint64,
)

THREADS = 256  # of a group: every GPU runs several such groups on each of its processors at once

_BITS: dict[tuple[DType, DType], str] = {
    (float32, int32): "__float_as_int({x})",
    (float32, uint32): "__float_as_uint({x})",
    (int32, float32): "__int_as_float({x})",
    (uint32, float32): "__uint_as_float({x})",
    (float64, int64): "__double_as_longlong({x})",
    (float64, uint64): "(unsigned long long)__double_as_longlong({x})",
    (int64, float64): "__longlong_as_double({x})",
    (uint64, float64): "__longlong_as_double((long long)({x}))",
}

_PLAIN = Words(
    types={
        bool_: "bool",
        uint8: "unsigned char",
        uint16: "unsigned short",
        uint32: "unsigned int",
        uint64: "unsigned long long",
        int8: "signed char",
        int16: "short",
        int32: "int",
        int64: "long long",
        float16: "float",
        bfloat16: "float",
        float32: "float",
        float64: "double",
    },
    suffixes={float32: "f", uint32: "u", int64: "LL", uint64: "ULL"},
    kernel='extern "C" __global__ void {bounds}{name}({params})',
    bounds="__launch_bounds__({threads}) ",
    param="{const}{type} *__restrict__ {name}",
    local="__shared__",
    function="__device__ inline",
    group="blockIdx.x",
    thread="threadIdx.x",
    item="((long long)blockIdx.x * blockDim.x + threadIdx.x)",
    items=THREADS,
    barrier="__syncthreads()",
    bitcast="({type})({x})",  # of integers; the others are in the table
    bitcasts=_BITS,
    functions={name: f"{name}f" for name in FUNCTIONS} | {"fma": "fmaf"},
    doubles={name: name for name in FUNCTIONS} | {"fma": "fma"},
)

# Conversions of the hardware. They round as the contract wants, and keep subnormal numbers.
_UNPACK_HALF = """\
__device__ inline float unpack_half(unsigned short h) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
  return x;
}"""
_PACK_HALF = """\
__device__ inline unsigned short pack_half(float x) {
  unsigned short h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
}"""
_ROUND_HALF = """\
__device__ inline float round_half(float x) {
  unsigned short h;
  float rounded;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  asm("cvt.f32.f16 %0, %1;" : "=f"(rounded) : "h"(h));
  return rounded;
}"""
_ROUND_BFLOAT16 = """\
#if __CUDA_ARCH__ >= 800
__device__ inline float round_bfloat16(float x) {
  unsigned short h;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return __uint_as_float((unsigned int)h << 16);
}
#else
@
#endif"""

CUDA = replace(
    _PLAIN,
    helpers={
        "unpack_half": _UNPACK_HALF,
        "pack_half": _PACK_HALF,
        "round_half": _ROUND_HALF,
        "round_bfloat16": _ROUND_BFLOAT16.replace("@", helper("round_bfloat16", _PLAIN)),
    },
)

# HIP's compiler is clang, to which a half is a type. Nothing of coregrad runs these texts: AMD's
# GPUs are served by coregrad-opencl. A test compiles them where hipcc is installed.
HIP = replace(
    _PLAIN,
    preamble="#include <hip/hip_runtime.h>",
    helpers={
        "unpack_half": """\
__device__ inline float unpack_half(unsigned short h) {
  return (float)__builtin_bit_cast(_Float16, h);
}""",
        "pack_half": """\
__device__ inline unsigned short pack_half(float x) {
  return __builtin_bit_cast(unsigned short, (_Float16)x);
}""",
        "round_half": """\
__device__ inline float round_half(float x) {
  return (float)(_Float16)x;
}""",
    },
)
