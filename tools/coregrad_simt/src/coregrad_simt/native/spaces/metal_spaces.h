// Metal's words in those of C++ for OpenCL, which has the same address spaces. For clang, which looks at
// a text and makes nothing of it.
#pragma once

#pragma OPENCL EXTENSION cl_khr_fp16 : enable  // half is a type in Metal

#define kernel __kernel
#define device __global
#define constant __constant
#define threadgroup __local
#define thread __private
#define double metal_has_no_double

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef uint uint2 __attribute__((ext_vector_type(2)));
typedef uint uint3 __attribute__((ext_vector_type(3)));
typedef int int2 __attribute__((ext_vector_type(2)));
typedef int int4 __attribute__((ext_vector_type(4)));
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
mem_flags operator|(mem_flags, mem_flags);
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);
template <class T>
T simd_sum(T);
template <class T>
T simd_max(T);
template <class T>
T simd_min(T);
template <class T>
T simd_shuffle_xor(T, ushort);
template <class T>
T simd_shuffle_down(T, ushort);
template <class T>
T simd_broadcast(T, ushort);
template <class To, class From>
To as_type(From);

#define SIMT_METAL                                                                          \
  float exp(float), exp2(float), log(float), log2(float), log10(float), sin(float);        \
  float cos(float), tan(float), asin(float), acos(float), atan(float), sinh(float);        \
  float cosh(float), tanh(float), sqrt(float), fabs(float), floor(float), ceil(float);     \
  float trunc(float), rint(float), round(float), rsqrt(float), fmax(float, float);         \
  float fmin(float, float), pow(float, float), fmod(float, float), atan2(float, float);    \
  float copysign(float, float);
SIMT_METAL
namespace precise {
SIMT_METAL
float divide(float, float);
}
namespace fast {
SIMT_METAL
}
float fma(float, float, float);
template <class T>
T min(T, T);
template <class T>
T max(T, T);
template <class T>
T clamp(T, T, T);
template <class T>
T abs(T);
template <class T>
T select(T, T, bool);
uint popcount(uint);
uint clz(uint);
uint mulhi(uint, uint);

}  // namespace metal

using metal::as_type;
