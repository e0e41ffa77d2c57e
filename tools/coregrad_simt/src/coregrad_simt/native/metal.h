// The Metal Shading Language that generated kernels may use, for g++. A name that is missing here does
// not compile. source.py has replaced the word `threadgroup` where it declares an array.
#pragma once
#include "simt.h"

#define kernel
#define device
#define thread
#define constant const
#define double metal_has_no_double

typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned char uchar;
typedef unsigned long ulong;
typedef _Float16 half;
struct uint2 {
  uint x, y;
};
struct uint3 {
  uint x, y, z;
};
struct int2 {
  int x, y;
};
struct int4 {
  int x, y, z, w;
};

static const float INFINITY = __builtin_inff();
static const float NAN = __builtin_nanf("");

#define threadgroup_barrier(flags) simt_block_barrier(metal::simt_flags(flags, __LINE__), __COUNTER__)
#define simdgroup_barrier(flags) simt_warp_barrier(~0u, metal::simt_flags(flags, __LINE__), __COUNTER__)
#define simd_sum(x) metal::simt_reduced<'+'>(x, __LINE__, __COUNTER__)
#define simd_max(x) metal::simt_reduced<'>'>(x, __LINE__, __COUNTER__)
#define simd_min(x) metal::simt_reduced<'<'>(x, __LINE__, __COUNTER__)
#define simd_shuffle_xor(x, bits) metal::simt_shuffle(x, simt_lane() ^ (bits), __LINE__, __COUNTER__)
#define simd_shuffle_down(x, by) metal::simt_down(x, by, __LINE__, __COUNTER__)
#define simd_broadcast(x, lane) metal::simt_shuffle(x, lane, __LINE__, __COUNTER__)

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
static inline mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
// A barrier that orders no memory is no barrier for what threads tell each other.
static inline unsigned simt_flags(mem_flags flags, unsigned line) {
  if (flags == mem_flags::mem_none) simt_fail("a barrier with mem_none");
  return line;
}

template <class T>
static inline T simt_shuffle(T value, unsigned source, unsigned line, unsigned site) {
  simt_word word = 0;
  __builtin_memcpy(&word, &value, sizeof value);
  word = simt_exchange(~0u, word, source & 31, line, site);
  __builtin_memcpy(&value, &word, sizeof value);
  return value;
}
template <class T>
static inline T simt_down(T value, unsigned by, unsigned line, unsigned site) {
  const unsigned source = simt_lane() + by;
  return simt_shuffle(value, source < 32 ? source : simt_lane(), line, site);
}
template <char how, class T>
static inline T simt_reduced(T value, unsigned line, unsigned site) {
  for (unsigned bits = 16; bits; bits >>= 1) {
    const T other = simt_shuffle(value, simt_lane() ^ bits, line, site);
    value = how == '+' ? T(value + other) : (how == '>' ? other > value : other < value) ? other : value;
  }
  return value;
}

template <class To, class From>
static inline To as_type(From from) {
  return simt_bits<To>(from);
}

#define SIMT_METAL1(name) static inline float name(float x) { return __builtin_##name##f(x); }
#define SIMT_METAL2(name) \
  static inline float name(float x, float y) { return __builtin_##name##f(x, y); }
#define SIMT_METAL                                                                             \
  SIMT_METAL1(exp) SIMT_METAL1(exp2) SIMT_METAL1(log) SIMT_METAL1(log2) SIMT_METAL1(log10)     \
  SIMT_METAL1(sin) SIMT_METAL1(cos) SIMT_METAL1(tan) SIMT_METAL1(asin) SIMT_METAL1(acos)       \
  SIMT_METAL1(atan) SIMT_METAL1(sinh) SIMT_METAL1(cosh) SIMT_METAL1(tanh) SIMT_METAL1(sqrt)    \
  SIMT_METAL1(fabs) SIMT_METAL1(floor) SIMT_METAL1(ceil) SIMT_METAL1(trunc) SIMT_METAL1(rint)  \
  SIMT_METAL1(round) SIMT_METAL2(fmax) SIMT_METAL2(fmin) SIMT_METAL2(pow) SIMT_METAL2(fmod)    \
  SIMT_METAL2(atan2) SIMT_METAL2(copysign)                                                     \
  static inline float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
SIMT_METAL
namespace precise {
SIMT_METAL
static inline float divide(float x, float y) { return x / y; }
}
namespace fast {
SIMT_METAL
}
static inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }

// Fast-math is always on in metalcompute: what asks for NaN or infinity may be optimised away.
template <class T>
void isnan(T) = delete;
template <class T>
void isinf(T) = delete;
template <class T>
void isfinite(T) = delete;

template <class T>
static inline T min(T x, T y) {
  return y < x ? y : x;
}
template <class T>
static inline T max(T x, T y) {
  return x < y ? y : x;
}
template <class T>
static inline T clamp(T x, T low, T high) {
  return min(max(x, low), high);
}
template <class T>
static inline T abs(T x) {
  return x < 0 ? -x : x;
}
template <class T>
static inline T select(T no, T yes, bool condition) {
  return condition ? yes : no;
}
static inline uint popcount(uint x) { return __builtin_popcount(x); }
static inline uint clz(uint x) { return x ? __builtin_clz(x) : 32; }
static inline uint mulhi(uint x, uint y) { return uint((ulong)x * y >> 32); }

}  // namespace metal

using metal::as_type;
