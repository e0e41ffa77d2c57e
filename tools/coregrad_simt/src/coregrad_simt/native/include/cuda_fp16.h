// CUDA's half precision, as far as kernels may use it.
#pragma once

struct __half {
  _Float16 value;
};
typedef __half half;
static inline __half __ushort_as_half(unsigned short x) { return simt_bits<__half>(x); }
static inline unsigned short __half_as_ushort(__half x) { return simt_bits<unsigned short>(x); }
static inline float __half2float(__half x) { return x.value; }
static inline __half __float2half(float x) { return {(_Float16)x}; }
static inline __half __float2half_rn(float x) { return {(_Float16)x}; }
static inline __half __hadd(__half x, __half y) { return {(_Float16)(x.value + y.value)}; }
static inline __half __hsub(__half x, __half y) { return {(_Float16)(x.value - y.value)}; }
static inline __half __hmul(__half x, __half y) { return {(_Float16)(x.value * y.value)}; }
