// The CUDA C++ that generated kernels may use, for g++. A name that is missing here does not compile.
//
// Approximations (__expf and its like) are missing on purpose: the CPU would compute something else.
#pragma once
#include "simt.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __constant__ const
#define __shared__ SIMT_SHARED
#define __align__(n) alignas(n)

#define threadIdx (simt_here.thread_index)
#define blockIdx (simt_here.block_index)
#define blockDim (simt_here.block_size)
#define gridDim (simt_here.grid_size)
static const int warpSize = 32;

// ---- barriers and warps ----------------------------------------------------------------------

#define __syncthreads() simt_block_barrier(__LINE__, __COUNTER__)
#define __syncwarp(...) simt_warp_barrier(simt_mask(__VA_ARGS__), __LINE__, __COUNTER__)
#define __shfl_sync(...) simt_shuffle_from(__LINE__, __COUNTER__, __VA_ARGS__)
#define __shfl_up_sync(...) simt_shuffle_up(__LINE__, __COUNTER__, __VA_ARGS__)
#define __shfl_down_sync(...) simt_shuffle_down(__LINE__, __COUNTER__, __VA_ARGS__)
#define __shfl_xor_sync(...) simt_shuffle_xor(__LINE__, __COUNTER__, __VA_ARGS__)
#define __ballot_sync(mask, x) simt_ballot(mask, (x) != 0, __LINE__, __COUNTER__)
#define __any_sync(mask, x) (__ballot_sync(mask, x) != 0)
#define __all_sync(mask, x) (__ballot_sync(mask, !(x)) == 0)

static inline unsigned simt_mask(unsigned mask = ~0u) { return mask; }

template <class T>
static inline T simt_shuffle(unsigned line, unsigned site, unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= sizeof(simt_word), "a lane offers at most 64 bits");
  simt_word word = 0;
  __builtin_memcpy(&word, &value, sizeof value);
  word = simt_exchange(mask, word, source & 31, line, site);
  __builtin_memcpy(&value, &word, sizeof value);
  return value;
}
// A lane whose source lies outside its segment of `width` lanes reads its own value.
template <class T>
static inline T simt_shuffle_from(unsigned line, unsigned site, unsigned mask, T value, int source,
                                  int width = 32) {
  const int first = int(simt_lane()) & ~(width - 1);
  return simt_shuffle(line, site, mask, value, first | (source & (width - 1)));
}
template <class T>
static inline T simt_shuffle_up(unsigned line, unsigned site, unsigned mask, T value,
                                unsigned delta, int width = 32) {
  const int lane = simt_lane(), other = lane - int(delta), first = lane & ~(width - 1);
  return simt_shuffle(line, site, mask, value, other < first ? lane : other);
}
template <class T>
static inline T simt_shuffle_down(unsigned line, unsigned site, unsigned mask, T value,
                                  unsigned delta, int width = 32) {
  const int lane = simt_lane(), other = lane + int(delta), last = lane | (width - 1);
  return simt_shuffle(line, site, mask, value, other > last ? lane : other);
}
template <class T>
static inline T simt_shuffle_xor(unsigned line, unsigned site, unsigned mask, T value, int bits,
                                 int width = 32) {
  const int lane = simt_lane(), other = lane ^ bits, last = lane | (width - 1);
  return simt_shuffle(line, site, mask, value, other > last ? lane : other);
}

// Memory is sequentially consistent here: threads change places only where they wait.
static inline void __threadfence() {}
static inline void __threadfence_block() {}

// ---- atomics ---------------------------------------------------------------------------------

#define SIMT_ATOMIC(name, result)              \
  template <class T>                           \
  static inline T name(T* address, T value) {  \
    const T old = *address;                    \
    *address = result;                         \
    return old;                                \
  }
SIMT_ATOMIC(atomicAdd, old + value)
SIMT_ATOMIC(atomicMin, old < value ? old : value)
SIMT_ATOMIC(atomicMax, old > value ? old : value)
SIMT_ATOMIC(atomicAnd, old & value)
SIMT_ATOMIC(atomicOr, old | value)
SIMT_ATOMIC(atomicXor, old ^ value)
SIMT_ATOMIC(atomicExch, value)
template <class T>
static inline T atomicCAS(T* address, T expected, T value) {
  const T old = *address;
  if (old == expected) *address = value;
  return old;
}

template <class T>
static inline T __ldg(const T* address) {
  return *address;
}

// ---- numbers ---------------------------------------------------------------------------------

// f(float), f(double) and ff(float), as CUDA has them.
#define SIMT_MATH1(name)                                                       \
  static inline float name##f(float x) { return __builtin_##name##f(x); }      \
  static inline float name(float x) { return __builtin_##name##f(x); }         \
  static inline double name(double x) { return __builtin_##name(x); }
#define SIMT_MATH2(name)                                                                  \
  static inline float name##f(float x, float y) { return __builtin_##name##f(x, y); }     \
  static inline float name(float x, float y) { return __builtin_##name##f(x, y); }        \
  static inline double name(double x, double y) { return __builtin_##name(x, y); }
SIMT_MATH1(exp)
SIMT_MATH1(exp2)
SIMT_MATH1(expm1)
SIMT_MATH1(log)
SIMT_MATH1(log2)
SIMT_MATH1(log10)
SIMT_MATH1(log1p)
SIMT_MATH1(sin)
SIMT_MATH1(cos)
SIMT_MATH1(tan)
SIMT_MATH1(asin)
SIMT_MATH1(acos)
SIMT_MATH1(atan)
SIMT_MATH1(sinh)
SIMT_MATH1(cosh)
SIMT_MATH1(tanh)
SIMT_MATH1(erf)
SIMT_MATH1(erfc)
SIMT_MATH1(sqrt)
SIMT_MATH1(fabs)
SIMT_MATH1(floor)
SIMT_MATH1(ceil)
SIMT_MATH1(trunc)
SIMT_MATH1(rint)
SIMT_MATH1(round)
SIMT_MATH2(pow)
SIMT_MATH2(fmod)
SIMT_MATH2(fmin)
SIMT_MATH2(fmax)
SIMT_MATH2(atan2)
SIMT_MATH2(hypot)
SIMT_MATH2(copysign)
SIMT_MATH2(nextafter)

static inline float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static inline double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
static inline float ldexpf(float x, int n) { return __builtin_ldexpf(x, n); }
static inline double ldexp(double x, int n) { return __builtin_ldexp(x, n); }
static inline float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
static inline bool isnan(float x) { return __builtin_isnan(x); }
static inline bool isnan(double x) { return __builtin_isnan(x); }
static inline bool isinf(float x) { return __builtin_isinf(x); }
static inline bool isinf(double x) { return __builtin_isinf(x); }
static inline bool isfinite(float x) { return __builtin_isfinite(x); }
static inline bool isfinite(double x) { return __builtin_isfinite(x); }

// Rounded as their name says, and not contracted; nothing is contracted here.
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
static inline float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static inline double __dadd_rn(double x, double y) { return x + y; }
static inline double __dsub_rn(double x, double y) { return x - y; }
static inline double __dmul_rn(double x, double y) { return x * y; }
static inline double __ddiv_rn(double x, double y) { return x / y; }
static inline double __dsqrt_rn(double x) { return __builtin_sqrt(x); }
static inline double __fma_rn(double x, double y, double z) { return __builtin_fma(x, y, z); }

static inline int __float_as_int(float x) { return simt_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return simt_bits<unsigned>(x); }
static inline float __int_as_float(int x) { return simt_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return simt_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return simt_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return simt_bits<double>(x); }

template <class T>
static inline T min(T x, T y) {
  return y < x ? y : x;
}
template <class T>
static inline T max(T x, T y) {
  return x < y ? y : x;
}
static inline int abs(int x) { return x < 0 ? -x : x; }
static inline long long llabs(long long x) { return x < 0 ? -x : x; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __mulhi(int x, int y) { return int((long long)x * y >> 32); }
static inline unsigned __umulhi(unsigned x, unsigned y) {
  return unsigned((unsigned long long)x * y >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return (unsigned long long)((unsigned __int128)x * y >> 64);
}

// ---- vectors ---------------------------------------------------------------------------------

#define SIMT_VECTORS(type, name)                                                      \
  struct alignas(2 * sizeof(type)) name##2 {                                          \
    type x, y;                                                                        \
  };                                                                                  \
  struct alignas(4 * sizeof(type) < 16 ? 4 * sizeof(type) : 16) name##4 {             \
    type x, y, z, w;                                                                  \
  };                                                                                  \
  static inline name##2 make_##name##2(type x, type y) { return {x, y}; }             \
  static inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
SIMT_VECTORS(float, float)
SIMT_VECTORS(double, double)
SIMT_VECTORS(int, int)
SIMT_VECTORS(unsigned, uint)
SIMT_VECTORS(short, short)
SIMT_VECTORS(unsigned short, ushort)
SIMT_VECTORS(signed char, char)
SIMT_VECTORS(unsigned char, uchar)
