// CUDA's bfloat16, as far as kernels may use it.
#pragma once

struct __nv_bfloat16 {
  unsigned short bits;
};
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return {x}; }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
static inline float __bfloat162float(__nv_bfloat16 x) {
  return simt_bits<float>((unsigned)x.bits << 16);
}
static inline __nv_bfloat16 __float2bfloat16(float x) {
  const unsigned bits = simt_bits<unsigned>(x);
  if (isnan(x)) return {0x7fff};
  return {(unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
static inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __float2bfloat16(x); }
