"""OpenCL C in the words of the C family.

One text serves every device: for one that computes in half, or whose functions are slow,
NATIVE_HALF or OWN_FUNCTIONS is defined when the text is built, and SIMULATOR for Oclgrind
(device.py).
"""

from __future__ import annotations

from dataclasses import replace

from coregrad.cstyle import FUNCTIONS, SHORT_NAMES, SHORT_SUFFIXES, Words, helper
from coregrad.dtypes import bfloat16, float16, float32, float64, int64, uint64

HALF = """\
#ifdef NATIVE_HALF
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
typedef half half_t;
#else
typedef float half_t;
#endif"""
NATIVE = {
    "unpack_half": "half_t unpack_half(ushort h) { return as_half(h); }",
    "pack_half": "ushort pack_half(half_t x) { return as_ushort(x); }",
    "round_half": "half_t round_half(float x) { return (half)x; }",
}
# The one place where a product and a sum may be one operation, if the device has it. (The function
# fma is exact everywhere, and a slow call where there is no such operation.)
MULTIPLY_ADD = """\
float multiply_add(float a, float b, float c) {
#pragma OPENCL FP_CONTRACT ON
  return a * b + c;
}"""
MULTIPLY_ADD_DOUBLE = """\
double multiply_add_double(double a, double b, double c) {
#pragma OPENCL FP_CONTRACT ON
  return a * b + c;
}"""
# Drivers for CPUs call a function for each exp and log, which keeps them from using vectors: PoCL
# 3.0 takes eleven times as long as with this text.
EXPONENTIAL = """\
#ifdef OWN_FUNCTIONS
float exponential(float x) {
  const float within = x > 89.0f ? 89.0f : x < -104.0f ? -104.0f : x;
  const float shifted = within * 0x1.715476p+0f + 0x1.8p+23f;
  const float n = shifted - 0x1.8p+23f;
  const float r = (within - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
  float series = 0x1.a01a02p-13f;
  series = series * r + 0x1.6c16c2p-10f;
  series = series * r + 0x1.111112p-7f;
  series = series * r + 0x1.555556p-5f;
  series = series * r + 0x1.555556p-3f;
  series = series * r + 0.5f;
  const float value = r * r * series + r + 1.0f;
  const int exponent = as_int(shifted) - as_int(0x1.8p+23f);
  const int half_exponent = exponent >> 1;
  const float first = as_float((uint)(half_exponent + 127) << 23);
  return value * first * as_float((uint)(exponent - half_exponent + 127) << 23);
}
#else
#define exponential exp
#endif"""
LOGARITHM = """\
#ifdef OWN_FUNCTIONS
float logarithm(float x) {
  const bool tiny = x < 0x1p-126f;
  const uint bits = as_uint(tiny ? x * 0x1p+24f : x) + (0x3f800000u - 0x3f3504f3u);
  const int exponent = (int)(bits >> 23) - (tiny ? 151 : 127);
  const float f = as_float((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  const float s = f / (f + 2.0f);
  const float z = s * s;
  const float series = ((z * 0x1.c71c72p-3f + 0x1.24924ap-2f) * z + 0x1.99999ap-2f) * z;
  const float rest = (series + 0x1.555556p-1f) * z;
  const float half_square = f * f * 0.5f;
  const float small = half_square - (s * (half_square + rest) + exponent * 0x1.7f7d1cp-20f);
  const float value = exponent * 0x1.62e4p-1f - (small - f);
  return x > 0.0f ? (x < INFINITY ? value : x) : x == 0.0f ? -INFINITY : NAN;
}
#else
#define logarithm log
#endif"""
# PoCL 3.0 makes a number of exp and trunc of a NaN that it knows when it compiles, and its exp of
# doubles is infinite from 709.4 on, where it should be so from 709.79 on: the square of exp(x/2)
# has twice the error, but no such end.
EXPONENTIAL_DOUBLE = """\
#ifdef OWN_FUNCTIONS
double exponential_double(double x) {
  const bool far = x > 708.0 || x < -707.0;
  const double value = exp(far ? x * 0.5 : x);
  return x == x ? (far ? value * value : value) : x;
}
#else
#define exponential_double exp
#endif"""
TRUNCATION_DOUBLE = """\
#ifdef OWN_FUNCTIONS
double truncation_double(double x) { return x == x ? trunc(x) : x; }
#else
#define truncation_double trunc
#endif"""

# Oclgrind 21.10 converts integers of 64 bits by way of double, and so rounds them twice: what is
# too long for a double is first shortened, with its last bit set if bits were lost.
FLOAT_OF_ULONG = """\
#ifdef SIMULATOR
float float_of_ulong(ulong x) {
  return x >> 53 ? (float)(x >> 11 | ((x & 0x7ff) != 0)) * 0x1p+11f : (float)x;
}
#else
#define float_of_ulong(x) ((float)(x))
#endif"""
FLOAT_OF_LONG = """\
#ifdef SIMULATOR
float float_of_long(long x) {
  const ulong size = x < 0 ? -(ulong)x : (ulong)x;
  const ulong shortened = size >> 11 | ((size & 0x7ff) != 0);
  const float value = size >> 53 ? (float)shortened * 0x1p+11f : (float)size;
  return x < 0 ? -value : value;
}
#else
#define float_of_long(x) ((float)(x))
#endif"""

_PLAIN = Words(
    types={
        **SHORT_NAMES,
        float16: "half_t",
        bfloat16: "float",
        float32: "float",
        float64: "double",
    },
    suffixes=SHORT_SUFFIXES,
    kernel="__kernel {bounds}void {name}({params})",
    bounds="__attribute__((reqd_work_group_size({threads}, 1, 1))) ",
    param="__global {const}{type} *restrict {name}",
    local="__local",
    group="get_group_id(0)",
    thread="get_local_id(0)",
    item="get_global_id(0)",
    barrier="barrier(CLK_LOCAL_MEM_FENCE)",
    bitcast="as_{type}({x})",
    infinity="INFINITY",
    functions={name: name for name in FUNCTIONS}
    | {
        "exp": "exponential",
        "log": "logarithm",
        "trunc": "truncation",
        "fma": "multiply_add",
    },
    doubles={
        "exp": "exponential_double",
        "log": "log",
        "trunc": "truncation_double",
        "fma": "multiply_add_double",
    },
    casts={(int64, float32): "float_of_long", (uint64, float32): "float_of_ulong"},
    pragmas={float64: "#pragma OPENCL EXTENSION cl_khr_fp64 : enable", float16: HALF},
    preamble="#pragma OPENCL FP_CONTRACT OFF",
)


def _either(flag: str, text: str, other: str) -> str:
    return f"#ifdef {flag}\n{text}\n#else\n{other}\n#endif"


WORDS = replace(
    _PLAIN,
    helpers={
        name: _either("NATIVE_HALF", text, helper(name, _PLAIN)) for name, text in NATIVE.items()
    }
    | {
        "multiply_add": MULTIPLY_ADD,
        "multiply_add_double": MULTIPLY_ADD_DOUBLE,
        "exponential": EXPONENTIAL,
        "logarithm": LOGARITHM,
        "truncation": _either(
            "OWN_FUNCTIONS", helper("truncation", _PLAIN), "#define truncation trunc"
        ),
        "exponential_double": EXPONENTIAL_DOUBLE,
        "truncation_double": TRUNCATION_DOUBLE,
        "float_of_long": FLOAT_OF_LONG,
        "float_of_ulong": FLOAT_OF_ULONG,
    },
)
