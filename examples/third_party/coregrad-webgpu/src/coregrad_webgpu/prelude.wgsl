// What WGSL does not have: 64-bit integers as pairs (low, high) of words, the 16-bit floats by
// their bits, and floats whose NaN, infinities and saturation are those of IEEE 754 and of the
// contract. A kernel gets the functions that it calls.
//
// WGSL lets a compiler reassociate and fuse operations on floats, and assume away NaN; Mesa makes
// (x + c) - c to x. The contract forbids it. So every result passes as an integer through an
// exclusive or with `zero`, a word that is 0 whenever a kernel runs, which no compiler knows.

// ---- floats ----

fn keep(x: f32) -> f32 {
  return bitcast<f32>(bitcast<u32>(x) ^ zero);
}

fn bits_f32(bits: u32) -> f32 { // what has no literal, and zeros: x + 0 and x * 0 are no x and no 0
  return bitcast<f32>(bits ^ zero);
}

fn nan(x: f32) -> bool { // by its bits: a compiler may assume that x == x
  return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn lt_f32(a: f32, b: f32) -> bool {
  return a < b && !nan(a) && !nan(b);
}

fn ne_f32(a: f32, b: f32) -> bool {
  return a != b || nan(a) || nan(b);
}

fn max_f32(a: f32, b: f32) -> f32 {
  return select(select(b, a, b < a || nan(a)), b, nan(b));
}

fn sqrt_f32(x: f32) -> f32 { // of a negative number WGSL leaves it open
  if (nan(x) || x == 0.0) { return x; }
  if (x < 0.0) { return bits_f32(0x7fc00000u); }
  return sqrt(x);
}

fn true_f32(x: f32) -> bool {
  return (bitcast<u32>(x) & 0x7fffffffu) != 0u;
}

// ---- 16-bit floats: values are f32 that such a float can hold ----

fn bits_of_float16(x: f32) -> u32 {
  let word = bitcast<u32>(x);
  let sign = (word >> 16u) & 0x8000u;
  let size = word & 0x7fffffffu;
  if (size > 0x7f800000u) { return sign | 0x7e00u; }
  if (size >= 0x477ff000u) { return sign | 0x7c00u; } // 65520 and above
  if (size >= 0x38800000u) { // 2^-14 and above: a normal number
    return sign | ((size - 0x38000000u + 0xfffu + ((size >> 13u) & 1u)) >> 13u);
  }
  if (size <= 0x33000000u) { return sign; } // up to 2^-25, half of the smallest
  let mantissa = (size & 0x7fffffu) | 0x800000u;
  let shift = 126u - (size >> 23u); // to units of 2^-24
  let rest = mantissa & ((1u << shift) - 1u);
  let whole = mantissa >> shift;
  let half = 1u << (shift - 1u);
  return sign | (whole + u32(rest > half || (rest == half && (whole & 1u) == 1u)));
}

fn float16_of_bits(half: u32) -> f32 {
  let sign = (half & 0x8000u) << 16u;
  let size = half & 0x7fffu;
  if (size >= 0x7c00u) { return bits_f32(sign | 0x7f800000u | ((size & 0x3ffu) << 13u)); }
  if (size >= 0x400u) { return bits_f32(sign | ((size << 13u) + 0x38000000u)); }
  return bits_f32(sign | bitcast<u32>(f32(size) * 5.9604644775390625e-8)); // 2^-24
}

fn bits_of_bfloat16(x: f32) -> u32 {
  let word = bitcast<u32>(x);
  if (nan(x)) { return 0x7fc0u; }
  return (word + 0x7fffu + ((word >> 16u) & 1u)) >> 16u;
}

fn bfloat16_of_bits(half: u32) -> f32 {
  return bits_f32(half << 16u);
}

fn round_float16(x: f32) -> f32 {
  return float16_of_bits(bits_of_float16(x));
}

fn round_bfloat16(x: f32) -> f32 {
  return bfloat16_of_bits(bits_of_bfloat16(x));
}

// ---- floats to integers: towards zero, saturated, NaN to 0 ----

fn int32_of_f32(x: f32) -> i32 {
  if (nan(x)) { return 0; }
  if (x >= 2147483648.0) { return 2147483647; }
  if (x < -2147483648.0) { return -2147483647 - 1; }
  return i32(x);
}

fn uint32_of_f32(x: f32) -> u32 {
  if (nan(x) || x <= 0.0) { return 0u; }
  if (x >= 4294967296.0) { return 0xffffffffu; }
  return u32(x);
}

fn uint64_of_f32(x: f32) -> vec2<u32> {
  if (nan(x) || x < 1.0) { return vec2<u32>(0u, 0u); }
  let word = bitcast<u32>(x);
  let exponent = (word >> 23u) - 127u;
  if (exponent >= 64u) { return vec2<u32>(0xffffffffu, 0xffffffffu); }
  let mantissa = vec2<u32>((word & 0x7fffffu) | 0x800000u, 0u);
  if (exponent >= 23u) { return shl_u64(mantissa, exponent - 23u); }
  return shr_u64(mantissa, 23u - exponent);
}

fn int64_of_f32(x: f32) -> vec2<u32> {
  if (nan(x)) { return vec2<u32>(0u, 0u); }
  if (x >= 9223372036854775808.0) { return vec2<u32>(0xffffffffu, 0x7fffffffu); }
  if (x < -9223372036854775808.0) { return vec2<u32>(0u, 0x80000000u); }
  if (x < 0.0) { return neg_u64(uint64_of_f32(-x)); }
  return uint64_of_f32(x);
}

// ---- 64-bit integers to f32: rounded to nearest even, or (to be rounded once more) to odd ----

fn f32_of_uint64(x: vec2<u32>, odd: bool) -> f32 {
  if ((x.x | x.y) == 0u) { return 0.0; }
  let zeros = select(countLeadingZeros(x.y), 32u + countLeadingZeros(x.x), x.y == 0u);
  let top = shl_u64(x, zeros); // the highest bit is set
  let half = (top.y & 0x80u) != 0u;
  let more = (top.y & 0x7fu) != 0u || top.x != 0u; // than half a unit, or than nothing
  let mantissa = top.y >> 8u;
  let up = half && (more || (mantissa & 1u) == 1u);
  let rounded = select(mantissa + u32(up), mantissa | u32(half || more), odd);
  return bits_f32(((189u - zeros) << 23u) + rounded); // 127 + 63 less the mantissa's own bit
}

fn f32_of_int64(x: vec2<u32>, odd: bool) -> f32 {
  if ((x.y >> 31u) == 0u) { return f32_of_uint64(x, odd); }
  return -f32_of_uint64(neg_u64(x), odd);
}

// ---- 64-bit integers ----

fn add_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + u32(low < a.x));
}

fn neg_u64(a: vec2<u32>) -> vec2<u32> {
  return add_u64(~a, vec2<u32>(1u, 0u));
}

fn mul_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let a0 = a.x & 0xffffu;
  let a1 = a.x >> 16u;
  let b0 = b.x & 0xffffu;
  let b1 = b.x >> 16u;
  let middle = a1 * b0 + ((a0 * b0) >> 16u);
  let other = a0 * b1 + (middle & 0xffffu);
  let high = a1 * b1 + (middle >> 16u) + (other >> 16u);
  return vec2<u32>(a.x * b.x, high + a.x * b.y + a.y * b.x);
}

fn shl_u64(a: vec2<u32>, n: u32) -> vec2<u32> {
  if (n == 0u) { return a; }
  if (n >= 32u) { return vec2<u32>(0u, a.x << (n - 32u)); }
  return vec2<u32>(a.x << n, (a.y << n) | (a.x >> (32u - n)));
}

fn shr_u64(a: vec2<u32>, n: u32) -> vec2<u32> {
  if (n == 0u) { return a; }
  if (n >= 32u) { return vec2<u32>(a.y >> (n - 32u), 0u); }
  return vec2<u32>((a.x >> n) | (a.y << (32u - n)), a.y >> n);
}

fn shr_i64(a: vec2<u32>, n: u32) -> vec2<u32> {
  if ((a.y >> 31u) == 0u) { return shr_u64(a, n); }
  return ~shr_u64(~a, n);
}

fn lt_u64(a: vec2<u32>, b: vec2<u32>) -> bool {
  return a.y < b.y || (a.y == b.y && a.x < b.x);
}

fn lt_i64(a: vec2<u32>, b: vec2<u32>) -> bool {
  let sign = vec2<u32>(0u, 0x80000000u);
  return lt_u64(a ^ sign, b ^ sign);
}

fn divide_u64(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> { // quotient, remainder
  if ((a.y | b.y) == 0u) { return vec4<u32>(a.x / b.x, 0u, a.x % b.x, 0u); }
  var quotient = vec2<u32>(0u, 0u);
  var rest = vec2<u32>(0u, 0u);
  for (var i = 0u; i < 64u; i++) { // schoolbook, a bit at a time
    let word = select(a.x, a.y, i < 32u);
    let carry = (rest.y >> 31u) == 1u;
    rest = shl_u64(rest, 1u) | vec2<u32>((word >> (31u - (i & 31u))) & 1u, 0u);
    quotient = shl_u64(quotient, 1u);
    if (carry || !lt_u64(rest, b)) {
      rest = add_u64(rest, neg_u64(b));
      quotient.x |= 1u;
    }
  }
  return vec4<u32>(quotient, rest);
}

fn size_i64(a: vec2<u32>) -> vec2<u32> {
  return select(a, neg_u64(a), (a.y >> 31u) == 1u);
}

fn idiv_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return divide_u64(a, b).xy;
}

fn mod_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return divide_u64(a, b).zw;
}

fn idiv_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let quotient = idiv_u64(size_i64(a), size_i64(b));
  return select(quotient, neg_u64(quotient), ((a.y ^ b.y) >> 31u) == 1u);
}

fn mod_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let rest = mod_u64(size_i64(a), size_i64(b));
  return select(rest, neg_u64(rest), (a.y >> 31u) == 1u);
}
