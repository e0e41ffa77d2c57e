// What the C++ that is made from PTX calls. PTX_SHARED_BYTES and PTX_WITHIN come before it.
//
// Registers are unsigned integers; as_f32 and its like read them, bits_of makes them.
#pragma once
#include "simt.h"

typedef bool pred;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;
typedef signed char s8;
typedef short s16;
typedef int s32;
typedef long s64;
typedef _Float16 f16;

#define PTX_INLINE static inline __attribute__((always_inline))

// ---- bits and floats -------------------------------------------------------------------------

PTX_INLINE float as_f32(u32 x) { return __builtin_bit_cast(float, x); }
PTX_INLINE double as_f64(u64 x) { return __builtin_bit_cast(double, x); }
PTX_INLINE u32 bits_of(float x) { return __builtin_bit_cast(u32, x); }
PTX_INLINE u64 bits_of(double x) { return __builtin_bit_cast(u64, x); }

// Rounded so that rounding once more, to half the digits or fewer, gives what rounding once gives.
static inline float rounded_to_odd(double x) {
  const float near = float(x);
  const u32 bits = bits_of(near);
  if (double(near) == x || x != x || bits & 1) return near;
  const bool outwards = __builtin_fabs(double(near)) > __builtin_fabs(x);
  return as_f32(outwards ? bits - 1 : bits + 1);
}

struct bf16 {
  u16 word;
  bf16() = default;
  bf16(float x) {
    const u32 bits = bits_of(x);
    word = x != x ? 0x7fff : u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
  operator float() const { return as_f32(u32(word) << 16); }
};
PTX_INLINE f16 as_f16(u16 x) { return __builtin_bit_cast(f16, x); }
PTX_INLINE bf16 as_bf16(u16 x) { return __builtin_bit_cast(bf16, x); }
PTX_INLINE u16 bits_of(f16 x) { return __builtin_bit_cast(u16, x); }
PTX_INLINE u16 bits_of(bf16 x) { return x.word; }

template <class Half>
static inline Half narrowed(double x) {
  return Half(rounded_to_odd(x));
}
template <class Half, class I>
static inline Half half_of_integer(I x) {
  if (sizeof(I) < 8) return Half(rounded_to_odd(double(x)));
  const s64 high = s64(x) >> 12 << 12;  // exact as a double; what is left decides nothing but ties
  return Half(rounded_to_odd(double(high) + (s64(x) != high ? 1 : 0)));
}

PTX_INLINE float flushed(float x) {
  return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x;
}
template <class T>
PTX_INLINE T clamped(T x) {
  return x > T(0) ? (x < T(1) ? x : T(1)) : T(0);  // NaN becomes 0
}
template <class T>
PTX_INLINE bool unordered(T a, T b) {
  return a != a || b != b;
}

// The larger or smaller; of a number and NaN the number; -0 is smaller than +0.
template <class T>
static inline T lesser(T a, T b) {
  if (a != a) return b;
  if (b != b) return a;
  if (a == b) return simt_kind<T> == 'f' && 1.0 / double(a) < 0 ? a : b;
  return a < b ? a : b;
}
template <class T>
static inline T greater(T a, T b) {
  if (a != a) return b;
  if (b != b) return a;
  if (a == b) return simt_kind<T> == 'f' && 1.0 / double(a) < 0 ? b : a;
  return a > b ? a : b;
}
template <class T>
static inline T lesser_nan(T a, T b) {
  return unordered(a, b) ? T(__builtin_nanf("")) : lesser<T>(a, b);
}
template <class T>
static inline T greater_nan(T a, T b) {
  return unordered(a, b) ? T(__builtin_nanf("")) : greater<T>(a, b);
}

// a * b + c, rounded once. The product of two halves is exact in double.
template <class Half>
static inline Half fused_half(Half a, Half b, Half c) {
  return narrowed<Half>(double(float(a)) * double(float(b)) + double(float(c)));
}
// Rounded down, up, to zero: the product is exact in double, and of the sum we know what is lost.
static inline float directed(double sum, double lost, int direction) {
  float near = float(sum);
  const double beyond = double(near) - sum;
  const bool above = beyond > 0 || (beyond == 0 && lost < 0);
  const bool below = beyond < 0 || (beyond == 0 && lost > 0);
  const bool down = direction < 0 || (direction == 0 && sum > 0);
  if (down && above) near = __builtin_nextafterf(near, -__builtin_inff());
  if (!down && below) near = __builtin_nextafterf(near, __builtin_inff());
  return near;
}
static inline float fused_directed(float a, float b, float c, int direction) {
  const double product = double(a) * double(b), sum = product + c;
  const double part = sum - product;
  const double lost = (product - (sum - part)) + (c - part);
  return directed(sum, lost, direction);
}
PTX_INLINE float fused_rm(float a, float b, float c) { return fused_directed(a, b, c, -1); }
PTX_INLINE float fused_rp(float a, float b, float c) { return fused_directed(a, b, c, 1); }
PTX_INLINE float fused_rz(float a, float b, float c) { return fused_directed(a, b, c, 0); }
PTX_INLINE float directed_rm(double x) { return directed(x, 0, -1); }
PTX_INLINE float directed_rp(double x) { return directed(x, 0, 1); }
PTX_INLINE float directed_rz(double x) { return directed(x, 0, 0); }

// rcp.approx.ftz.f64 keeps the upper 32 bits.
PTX_INLINE double coarse_reciprocal(double x) {
  return as_f64(bits_of(1.0 / as_f64(bits_of(x) & ~0xfffffffful)) & ~0xfffffffful);
}

// ---- integers --------------------------------------------------------------------------------

template <class T>
struct wide;
template <>
struct wide<u32> {
  typedef u64 type;
};
template <>
struct wide<s32> {
  typedef s64 type;
};
template <>
struct wide<u64> {
  typedef unsigned __int128 type;
};
template <>
struct wide<s64> {
  typedef __int128 type;
};
template <>
struct wide<u16> {
  typedef u32 type;
};
template <>
struct wide<s16> {
  typedef s32 type;
};

template <class T>
PTX_INLINE T high(T a, T b) {
  return T((typename wide<T>::type)a * b >> (8 * sizeof(T)));
}
template <class T>
PTX_INLINE T add_carry(T a, T b, unsigned in, unsigned& out) {
  const typename wide<T>::type sum = (typename wide<T>::type)a + b + in;
  out = unsigned(sum >> (8 * sizeof(T)));
  return T(sum);
}
template <class T>
PTX_INLINE T add_carry(T a, T b, unsigned in) {
  return a + b + in;
}
template <class T>
PTX_INLINE T sub_carry(T a, T b, unsigned in, unsigned& out) {
  out = (typename wide<T>::type)a < (typename wide<T>::type)b + in;
  return a - b - in;
}
template <class T>
PTX_INLINE T sub_carry(T a, T b, unsigned in) {
  return a - b - in;
}
template <class A, class B>
static inline u32 byte_products(u32 a, u32 b) {
  s32 sum = 0;
  for (int i = 0; i < 32; i += 8) sum += s32(A(a >> i)) * s32(B(b >> i));
  return u32(sum);
}
template <class A, class B>
static inline u32 word_products(u32 a, u32 b) {
  return u32(s32(A(a)) * s32(B(b)) + s32(A(a >> 16)) * s32(B(b >> 8)));
}
// What PTX leaves open (division by zero) an NVIDIA GPU answers with all bits set.
template <class T>
static inline T quotient(T a, T b) {
  if (b == 0) return T(-1);
  return T(-1) < T(0) && b == T(-1) ? T(0 - u64(a)) : T(a / b);
}
template <class T>
static inline T remainder(T a, T b) {
  if (b == 0) return a;
  return T(-1) < T(0) && b == T(-1) ? T(0) : T(a % b);
}
// Counts beyond the width shift everything out.
template <class T>
PTX_INLINE T shifted_left(T a, u32 count) {
  return count >= 8 * sizeof(T) ? T(0) : T(a << count);
}
template <class T>
PTX_INLINE T shifted_right(T a, u32 count) {
  if (count < 8 * sizeof(T)) return T(a >> count);
  return a < 0 ? T(-1) : T(0);
}
template <class T>
static inline T extracted(T a, u32 start, u32 length) {
  const u32 width = 8 * sizeof(T);
  if (length == 0) return 0;
  const u32 last = start + length - 1 < width ? start + length - 1 : width - 1;
  const bool sign = T(-1) < T(0) && (a >> last & 1);
  const T field = shifted_right<T>(a, start);
  if (length >= width || start >= width) return start >= width ? (sign ? T(-1) : T(0)) : field;
  const T mask = T((T(1) << length) - 1);
  return sign ? T(field | ~mask) : T(field & mask);
}
template <class T>
static inline T inserted(T a, T b, u32 start, u32 length) {
  const T ones = length >= 8 * sizeof(T) ? T(~T(0)) : T((T(1) << length) - 1);
  const T mask = shifted_left<T>(ones, start);
  return T((shifted_left<T>(a, start) & mask) | (b & ~mask));
}
template <class T>
static inline T reversed(T x) {
  T result = 0;
  for (unsigned i = 0; i < 8 * sizeof(T); i++) result = T(result << 1 | (x >> i & 1));
  return result;
}
static inline u32 permuted(u32 low, u32 high, u32 selector) {
  const u64 bytes = u64(high) << 32 | low;
  u32 result = 0;
  for (int i = 0; i < 4; i++) {
    const u32 which = selector >> 4 * i & 15;
    u32 byte = u32(bytes >> 8 * (which & 7)) & 255;
    if (which & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << 8 * i;
  }
  return result;
}
// A whole number as an integer, at most the largest; `top` is what NaN becomes: the top bit, or 0.
template <class I>
static inline I saturated(double x, bool top) {
  constexpr int width = 8 * sizeof(I);
  constexpr bool sign = I(-1) < I(0);
  const I smallest = sign ? I(u64(1) << (width - 1)) : I(0);
  if (x != x) return top ? I(u64(1) << (width - 1)) : I(0);
  if (x <= (sign ? -__builtin_ldexp(1.0, width - 1) : 0.0)) return smallest;
  if (x >= __builtin_ldexp(1.0, sign ? width - 1 : width)) return I(~smallest);
  return I(x);
}
template <class To, class From>
static inline To limited(From x) {
  constexpr int width = 8 * sizeof(To);
  constexpr bool sign = To(-1) < To(0);
  const __int128 least = sign ? -(__int128(1) << (width - 1)) : 0;
  const __int128 most = (__int128(1) << (sign ? width - 1 : width)) - 1;
  const __int128 value = x;
  return To(value < least ? least : value > most ? most : value);
}

// ---- memory ----------------------------------------------------------------------------------

// An address in shared memory is an offset, so that one that lies in no array is found.
#if PTX_SHARED_BYTES
alignas(128) SIMT_SHARED u8 ptx_shared[PTX_SHARED_BYTES];
PTX_INLINE u64 shared_base() { return (u64)ptx_shared; }
#else
PTX_INLINE u64 shared_base() { return 0; }
#endif

PTX_INLINE u64 aligned(u64 address, u64 size) {
  if (address % size) simt_fail("misaligned address");
  return address;
}
PTX_INLINE u64 shared_at(u64 offset, u64 size) {
  if (!PTX_WITHIN(offset, size)) simt_fail("an access outside the arrays in shared memory");
  return shared_base() + aligned(offset, size);
}
template <class T>
PTX_INLINE T loaded(u64 address) {
  T value;
  __builtin_memcpy(&value, (const void*)address, sizeof value);
  return value;
}
// Happens even if nobody uses what is read.
template <class T>
PTX_INLINE T loaded_volatile(u64 address) {
  T value = loaded<T>(address);
  asm volatile("" : "+m"(value));
  return value;
}
template <class T>
PTX_INLINE void stored(u64 address, T value) {
  __builtin_memcpy((void*)address, &value, sizeof value);
}

// ---- warps -----------------------------------------------------------------------------------

// `clamp` holds the segment in its second byte and the last lane (the first, going up) in its first.
static inline u32 shuffle(u32 value, int source, bool inside_, u32 mask, bool& inside, u32 line) {
  inside = inside_;
  return u32(simt_exchange(mask, value, inside_ ? source : simt_lane(), line, line));
}
#define PTX_SEGMENT                                                      \
  const int lane = simt_lane(), segment = clamp >> 8 & 31;               \
  const int last = (lane & segment) | (clamp & 31 & ~segment);           \
  const int first = lane & segment;
static inline u32 shuffle_up(u32 value, u32 by, u32 clamp, u32 mask, bool& inside, u32 line) {
  PTX_SEGMENT
  (void)first;
  const int source = lane - int(by & 31);
  return shuffle(value, source, source >= last, mask, inside, line);
}
static inline u32 shuffle_down(u32 value, u32 by, u32 clamp, u32 mask, bool& inside, u32 line) {
  PTX_SEGMENT
  (void)first;
  const int source = lane + int(by & 31);
  return shuffle(value, source, source <= last, mask, inside, line);
}
static inline u32 shuffle_bfly(u32 value, u32 by, u32 clamp, u32 mask, bool& inside, u32 line) {
  PTX_SEGMENT
  (void)first;
  const int source = lane ^ int(by & 31);
  return shuffle(value, source, source <= last, mask, inside, line);
}
static inline u32 shuffle_idx(u32 value, u32 from, u32 clamp, u32 mask, bool& inside, u32 line) {
  PTX_SEGMENT
  const int source = first | (int(from & 31) & ~segment);
  return shuffle(value, source, source <= last, mask, inside, line);
}

// ---- operands of PTX within a CUDA text (assembly.py) -----------------------------------------

template <class Word, class T>
PTX_INLINE Word operand_bits(T value) {
  static_assert(sizeof(T) == sizeof(Word), "an operand of a size that its constraint does not have");
  return __builtin_bit_cast(Word, value);
}
template <class T, class Word>
PTX_INLINE void set_operand(T& target, Word word) {
  static_assert(sizeof(T) == sizeof(Word), "an operand of a size that its constraint does not have");
  target = __builtin_bit_cast(T, word);
}
