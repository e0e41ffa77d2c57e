"""exp, log and sin as IR: polynomials on whole vectors, the same results at every lane count.

Only float32 and float64 come here (backend.py widens the 16-bit formats first). Nothing in this
file carries a fast-math flag, reads memory on the usual path, or converts a float to an integer:
adding 1.5 * 2**23 (2**52) rounds, and leaves the integer in the low bits of the sum.

Coefficients are minimax fits (Remez, relative error of the whole function), rounded one after the
other, each time fitting the rest anew; the comments give the error that is left. Largest errors,
of every float32: exp 0.90 ulp, log 0.93, sin and cos 1.56 (any finite argument). Of 10**6 random
float64: exp 0.85, log 0.80; sin is the C library's, of arguments that are reduced here if large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from coregrad.dtypes import DType, float32, float64, from_bits, int32, int64, to_bits
from coregrad_cpu import turns
from coregrad_cpu.llvm import target, words
from coregrad_cpu.llvm.frame import Frame


@dataclass(frozen=True)
class Format:
    """Where a float format keeps its bits, and the constants that depend on it.

    ``exp_range``: below it exp rounds to 0, above it to infinity. ``ln2``: a part with so many
    trailing zeros that its product with an exponent is exact, and the rest.
    """

    bits: DType
    mantissa: int
    bias: int
    exp_range: tuple[float, float]
    ln2: tuple[float, float]
    exp: tuple[float, ...]
    log: tuple[float, ...]

    @property
    def rounder(self) -> float:
        """Adding this rounds to an integer, kept in the low bits."""
        return 1.5 * 2.0**self.mantissa


# exp: (e**f - 1 - f) / f**2 for abs(f) <= ln(2)/2, error 2**-28.2 and 2**-60.8.
# log, float32: (log(1 + f) - f + f**2/2) / f**3 for 1 + f from sqrt(1/2) to sqrt(2), 2**-27.2.
# log, float64: (log((1 + s)/(1 - s)) - 2*s) / s**3 as a function of s**2, same range, 2**-59.3.
FORMATS = {
    float32: Format(
        bits=int32,
        mantissa=23,
        bias=127,
        exp_range=(-104.5, 89.0),
        ln2=(0.693115234375, 3.194618329871446e-05),
        exp=(
            0.4999999403953552, 0.16666516661643982, 0.04166810214519501, 0.00836916547268629,
            0.0013838002923876047,
        ),
        log=(
            0.3333333134651184, -0.250008225440979, 0.20001260936260223, -0.1662333458662033,
            0.14200948178768158, -0.13159455358982086, 0.12766222655773163, -0.07641644775867462,
        ),
    ),
    float64: Format(
        bits=int64,
        mantissa=52,
        bias=1023,
        exp_range=(-746.0, 710.0),
        ln2=(0.6931471804855391, 7.440617110012397e-11),
        exp=(
            0.5, 0.16666666666666674, 0.04166666666666597, 0.00833333333332447,
            0.0013888888889446167, 0.00019841269878119057, 2.4801585964210562e-05,
            2.7557252190749957e-06, 2.755854914753371e-07, 2.5106434850731576e-08,
            2.0505541598342926e-09,
        ),
        log=(
            0.666666666666671, 0.3999999999954254, 0.28571428718512565, 0.22222200720449084,
            0.1818346384801862, 0.15316407945626986, 0.14774032472448564,
        ),
    ),
}  # fmt: skip

# (sin(r) - r) / r**3 and (cos(r) - 1) / r**2 as functions of r**2, abs(r) <= pi/4 + 0.005, where
# the roundings below can leave it; errors 2**-27.8 and 2**-32.8.
SIN = (-0.16666653752326965, 0.008332106284797192, -0.00019507882825564593)
COS = (-0.5, 0.04166664555668831, -0.0013887302484363317, 2.4430977646261454e-05)
# pi/2 in three parts of 24 bits. Up to LARGE the first fused step is exact, and all that the parts
# leave out is below 2**-55.
HALF_PI = (1.570796251296997, 7.549789415861596e-08, 5.390302529957765e-15)
LARGE = 2.0**17

# Payne and Hanek's reduction ("Radian reduction for trigonometric functions", SIGNUM Newsletter
# 18, 1983) in wide integers. x = m * 2**e with e up to 104, so 230 bits of 2/pi are enough. Shifted
# right by 104 - e (the exponent field is e + 150), their low 128 bits times m are x * 2/pi modulo
# 4, in units of 2**-126 and right to 2**-102; what is cut off above are whole turns.
TWO_OVER_PI = int("28BE60DB9391054A7F09D5F47D4D377036D8A5664F10E4107F9458EAF7", 16)
REDUCE_LARGE = f"""\
define internal void @reduce_large(ptr %x, ptr %reduced, ptr %quadrant, i64 %n) #0 noinline cold {{
entry:
  br label %lane
lane:
  %i = phi i64 [ 0, %entry ], [ %next, %latch ]
  %xi = getelementptr i32, ptr %x, i64 %i
  %bits = load i32, ptr %xi, align 4
  %magnitude = and i32 %bits, {0x7FFFFFFF}
  %above = sub i32 %magnitude, {to_bits(LARGE, float32)}
  %large = icmp ult i32 %above, {0x7F800000 - to_bits(LARGE, float32)}
  br i1 %large, label %reduce, label %latch
reduce:
  %exponent = lshr i32 %magnitude, 23
  %fraction = and i32 %magnitude, {0x7FFFFF}
  %m = or i32 %fraction, {0x800000}
  %distance = sub i32 254, %exponent
  %shift = zext i32 %distance to i256
  %shifted = lshr i256 {TWO_OVER_PI}, %shift
  %window = trunc i256 %shifted to i128
  %wide = zext i32 %m to i128
  %turns = mul i128 %window, %wide
  %rounded = add i128 %turns, {1 << 125}
  %nearest = lshr i128 %rounded, 126
  %whole = shl i128 %nearest, 126
  %rest = sub i128 %turns, %whole
  %high = lshr i128 %rest, 64
  %top = trunc i128 %high to i64
  %scaled = sitofp i64 %top to double
  %radians = fmul double %scaled, {words.constant(float64, math.pi / 2 * 2.0**-62)}
  %opposite = fneg double %radians
  %count = trunc i128 %nearest to i32
  %back = sub i32 0, %count
  %negative = icmp slt i32 %bits, 0
  %signed = select i1 %negative, double %opposite, double %radians
  %turned = select i1 %negative, i32 %back, i32 %count
  %result = fptrunc double %signed to float
  %ri = getelementptr float, ptr %reduced, i64 %i
  store float %result, ptr %ri, align 4
  %qi = getelementptr i32, ptr %quadrant, i64 %i
  store i32 %turned, ptr %qi, align 4
  br label %latch
latch:
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %lane, label %done
done:
  ret void
}}"""


# The same for float64, whose C libraries are 8 ulp off at the worst argument (glibc, 2**849). x is
# m * 2**e with e from -26 to 971. Bits of 2/pi from the place 2**(1 - e) on, 192 of them, times m
# are x * 2/pi modulo 4 in units of 2**-190, right to 2**-137, and no float64 is nearer than 2**-61
# to a multiple of pi/2. The rest is taken with all its leading bits: it may be that small.
LARGE64 = 2.0**26
TURN_BITS = 1216  # of which the first 32 are zeros: for them shift is 994 - e
TWO_OVER_PI64 = [
    turns.TWO_OVER_PI >> at & 0xFFFFFFFFFFFFFFFF for at in range(0, TURN_BITS + 64, 64)
]
TURNS = f"""\
@two_over_pi = internal constant [{len(TWO_OVER_PI64)} x i64] [
  {", ".join(f"i64 {word}" for word in TWO_OVER_PI64)}
], align 64"""
SIN_LARGE = f"""\
define internal void @sin_large(ptr %x, ptr %y, i64 %quarter, i64 %n) #0 noinline cold {{
entry:
  br label %lane
lane:
  %i = phi i64 [ 0, %entry ], [ %next, %latch ]
  %xi = getelementptr i64, ptr %x, i64 %i
  %bits = load i64, ptr %xi, align 8
  %magnitude = and i64 %bits, {(1 << 63) - 1}
  %above = sub i64 %magnitude, {to_bits(LARGE64, float64)}
  %large = icmp ult i64 %above, {to_bits(math.inf, float64) - to_bits(LARGE64, float64)}
  br i1 %large, label %reduce, label %latch
reduce:
  %exponent = lshr i64 %magnitude, 52
  %fraction = and i64 %magnitude, {(1 << 52) - 1}
  %m = or i64 %fraction, {1 << 52}
  %distance = sub i64 {994 + 1075}, %exponent
  %byte = lshr i64 %distance, 3
  %place = getelementptr i8, ptr @two_over_pi, i64 %byte
  %stretch = load i256, ptr %place, align 1
  %bit = and i64 %distance, 7
  %shift = zext i64 %bit to i256
  %shifted = lshr i256 %stretch, %shift
  %window = trunc i256 %shifted to i192
  %wide = zext i64 %m to i192
  %turns = mul i192 %window, %wide
  %rounded = add i192 %turns, {1 << 189}
  %nearest = lshr i192 %rounded, 190
  %whole = shl i192 %nearest, 190
  %rest = sub i192 %turns, %whole
  %below = icmp slt i192 %rest, 0
  %minus = sub i192 0, %rest
  %length = select i1 %below, i192 %minus, i192 %rest
  %zeros = call i192 @llvm.ctlz.i192(i192 %length, i1 false)
  %normal = shl i192 %length, %zeros
  %high = lshr i192 %normal, 128
  %top = trunc i192 %high to i64
  %leading = uitofp i64 %top to double
  %scaled = fmul double %leading, {words.constant(float64, math.pi / 2 * 2.0**-62)}
  %small = trunc i192 %zeros to i64
  %power = sub i64 1023, %small
  %powerbits = shl i64 %power, 52
  %unit = bitcast i64 %powerbits to double
  %radians = fmul double %scaled, %unit
  %negative = icmp slt i64 %bits, 0
  %flipped = xor i1 %negative, %below
  %opposite = fneg double %radians
  %reduced = select i1 %flipped, double %opposite, double %radians
  %count = trunc i192 %nearest to i64
  %back = sub i64 0, %count
  %signed = select i1 %negative, i64 %back, i64 %count
  %total = add i64 %signed, %quarter
  %odd = trunc i64 %total to i1
  %sine = call double @llvm.sin.f64(double %reduced)
  %cosine = call double @llvm.cos.f64(double %reduced)
  %value = select i1 %odd, double %cosine, double %sine
  %half = and i64 %total, 2
  %lower = icmp ne i64 %half, 0
  %mirrored = fneg double %value
  %result = select i1 %lower, double %mirrored, double %value
  %yi = getelementptr double, ptr %y, i64 %i
  store double %result, ptr %yi, align 8
  br label %latch
latch:
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %lane, label %done
done:
  ret void
}}"""


class Vector:
    """Instructions on ``lanes`` values of one float dtype, their bits and their tests."""

    def __init__(self, frame: Frame, dtype: DType, lanes: int) -> None:
        self.frame = frame
        self.dtype = dtype
        self.lanes = lanes
        self.format = FORMATS[dtype]
        self.type = frame.type(dtype, lanes)
        self.bits_type = frame.type(self.format.bits, lanes)
        self.test_type = words.vector("i1", lanes)
        self.mangled = words.mangled(dtype, lanes)

    def constant(self, value: float) -> str:
        rounded = from_bits(to_bits(value, self.dtype), self.dtype)
        return self.frame.splat(self.dtype, self.lanes, rounded)

    def float_op(self, op: str, a: str, b: str) -> str:
        """fadd, fsub, fmul or fdiv."""
        return self.frame.op(f"{op} {self.type} {a}, {b}")

    def bit_op(self, op: str, a: str, b: int | str) -> str:
        """An instruction on bits; a Python int is a constant."""
        other = self.frame.splat(self.format.bits, self.lanes, b) if isinstance(b, int) else b
        return self.frame.op(f"{op} {self.bits_type} {a}, {other}")

    def multiply_add(self, a: str, b: str, c: str, name: str = "llvm.fmuladd") -> str:
        """``a*b + c``, rounded once if the CPU has such an instruction; llvm.fma always is."""
        operands = [(self.type, a), (self.type, b), (self.type, c)]
        return self.frame.call(self.type, f"{name}.{self.mangled}", *operands)

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """Horner's scheme; the coefficients begin with the constant term."""
        result = self.constant(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.multiply_add(result, x, self.constant(coefficient))
        return result

    def test(self, predicate: str, a: str, b: float) -> str:
        return self.frame.op(f"fcmp {predicate} {self.type} {a}, {self.constant(b)}")

    def select(self, test: str, a: str, b: str) -> str:
        return self.frame.op(f"select {self.test_type} {test}, {self.type} {a}, {self.type} {b}")

    def bits(self, x: str) -> str:
        return self.frame.op(f"bitcast {self.type} {x} to {self.bits_type}")

    def from_bits(self, x: str) -> str:
        return self.frame.op(f"bitcast {self.bits_type} {x} to {self.type}")


def emit_exp(frame: Frame, x: str, dtype: DType, lanes: int) -> str:
    """e**x = 2**n * e**f with n the integer nearest to x/ln(2) (Cody and Waite)."""
    v = Vector(frame, dtype, lanes)
    low, high = v.format.exp_range
    # "x where it is not below", so that NaN stays.
    x = v.select(v.test("olt", x, low), v.constant(low), x)
    x = v.select(v.test("ogt", x, high), v.constant(high), x)
    # 2**n is split into 2**(n >> 1) * 2**(n - (n >> 1)): neither leaves the range of exponents,
    # and only the last product rounds, to a subnormal or to infinity. With twice the bias added
    # to the rounding constant, both halves come out of the sum's bits with the bias in place.
    shift = v.format.rounder + 2 * v.format.bias
    total = v.multiply_add(x, v.constant(1 / math.log(2)), v.constant(shift))
    n = v.float_op("fsub", total, v.constant(shift))
    f = v.multiply_add(n, v.constant(-v.format.ln2[0]), x)
    f = v.multiply_add(n, v.constant(-v.format.ln2[1]), f)
    power = v.polynomial(f, (1.0, 1.0, *v.format.exp))
    if dtype is float32 and lanes == 16 and target.vector_bytes() == 64:
        return _scaled(frame, power, n)
    exponents = v.bits(total)
    half = v.bit_op("lshr", exponents, 1)
    first = v.from_bits(v.bit_op("shl", half, v.format.mantissa))
    rest = v.bit_op("sub", exponents, half)
    second = v.from_bits(v.bit_op("shl", rest, v.format.mantissa))
    return v.float_op("fmul", v.float_op("fmul", power, first), second)


def _scaled(frame: Frame, power: str, n: str) -> str:
    """power * 2**n rounded once, by the instruction AVX-512 has for it: the bits are the same as
    those of the two products, in a quarter of the time."""
    vector = "<16 x float>"
    arguments = [(vector, power), (vector, n), (vector, "zeroinitializer"), ("i16", "-1")]
    return frame.call(vector, "llvm.x86.avx512.mask.scalef.ps.512", *arguments, ("i32", "4"))


def emit_log(frame: Frame, x: str, dtype: DType, lanes: int) -> str:
    """log(x) = k*ln(2) + log(m) where x = 2**k * m and m lies between sqrt(1/2) and sqrt(2)."""
    v = Vector(frame, dtype, lanes)
    k, f = _exponent_and_rest(v, x)
    series = _log_float32 if dtype is float32 else _log_float64
    result = series(v, k, f)
    # x itself for infinity and NaN, then the two cases below the domain.
    result = v.select(v.test("olt", x, math.inf), result, x)
    result = v.select(v.test("olt", x, 0.0), v.constant(math.nan), result)
    return v.select(v.test("oeq", x, 0.0), v.constant(-math.inf), result)


def _exponent_and_rest(v: Vector, x: str) -> tuple[str, str]:
    """k and m - 1; subnormals are scaled up first."""
    mantissa, bias = v.format.mantissa, v.format.bias
    small = v.test("olt", x, 2.0 ** (1 - bias))
    scaled = v.float_op("fmul", x, v.constant(2.0**mantissa))
    # Subtracting the bits of sqrt(1/2) makes the exponent field tick over there instead of at 1.
    middle = to_bits(math.sqrt(0.5), v.dtype)
    zero = bias << mantissa
    moved = v.bit_op("add", v.bits(v.select(small, scaled, x)), zero - middle)
    biased = v.bit_op("lshr", moved, mantissa)
    # An integer below 2**mantissa becomes a float by way of the bits of 2**mantissa + integer.
    offset = 2.0**mantissa
    count = v.from_bits(v.bit_op("or", biased, to_bits(offset, v.dtype)))
    excess = v.select(small, v.constant(offset + bias + mantissa), v.constant(offset + bias))
    low = v.bit_op("and", moved, (1 << mantissa) - 1)
    m = v.from_bits(v.bit_op("add", low, middle))
    return v.float_op("fsub", count, excess), v.float_op("fsub", m, v.constant(1.0))


def _log_float32(v: Vector, k: str, f: str) -> str:
    """f - f**2/2 + f**3*P(f), the small terms first."""
    tail = v.polynomial(f, (-0.5, *v.format.log))
    tail = v.float_op("fmul", v.float_op("fmul", f, f), tail)
    low = v.multiply_add(k, v.constant(v.format.ln2[1]), tail)
    return v.multiply_add(k, v.constant(v.format.ln2[0]), v.float_op("fadd", low, f))


def _log_float64(v: Vector, k: str, f: str) -> str:
    """With s = f/(2 + f): log(1 + f) = 2*s + s**3*P(s**2), and 2*s = f - f**2/2 + s*f**2/2."""
    s = v.float_op("fdiv", f, v.float_op("fadd", f, v.constant(2.0)))
    z = v.float_op("fmul", s, s)
    tail = v.float_op("fmul", z, v.polynomial(z, v.format.log))
    half_square = v.float_op("fmul", v.float_op("fmul", f, f), v.constant(0.5))
    low = v.float_op("fmul", s, v.float_op("fadd", half_square, tail))
    low = v.multiply_add(k, v.constant(v.format.ln2[1]), low)
    rest = v.float_op("fsub", f, v.float_op("fsub", half_square, low))
    return v.multiply_add(k, v.constant(v.format.ln2[0]), rest)


def emit_sin(frame: Frame, x: str, quarter: int, dtype: DType, lanes: int) -> str:
    """sin(x + quarter*pi/2), where quarter is 0 to 3."""
    if dtype is float64:
        return _sin_float64(frame, x, quarter, lanes)
    v = Vector(frame, dtype, lanes)
    reduced, quadrant = _reduce(v, x)
    if quarter:
        quadrant = v.bit_op("add", quadrant, quarter)
    square = v.float_op("fmul", reduced, reduced)
    cube = v.float_op("fmul", square, reduced)
    sine = v.multiply_add(cube, v.polynomial(square, SIN), reduced)
    cosine = v.multiply_add(square, v.polynomial(square, COS), v.constant(1.0))
    odd = frame.op(f"trunc {v.bits_type} {quadrant} to {v.test_type}")
    sign = v.bit_op("shl", v.bit_op("lshr", quadrant, 1), 31)
    result = v.from_bits(v.bit_op("xor", v.bits(v.select(odd, cosine, sine)), sign))
    if quarter == 0:  # the sign of zero
        result = v.select(v.test("oeq", x, 0.0), x, result)
    return result


def _reduce(v: Vector, x: str) -> tuple[str, str]:
    """x minus the nearest multiple of pi/2, and that multiple's number (its low bits count)."""
    total = v.multiply_add(x, v.constant(2 / math.pi), v.constant(v.format.rounder))
    n = v.float_op("fsub", total, v.constant(v.format.rounder))
    reduced = x
    for part in HALF_PI:
        reduced = v.multiply_add(n, v.constant(-part), reduced, "llvm.fma")
    return _reduce_large(v, x, reduced, v.bits(total))


def _reduce_large(v: Vector, x: str, reduced: str, quadrant: str) -> tuple[str, str]:
    """The same two, put right by a call where a lane is finite and beyond LARGE."""
    frame = v.frame
    frame.function(REDUCE_LARGE)
    large = _is_large(v, x, LARGE)
    usual = frame.block
    for _ in frame.condition(large):
        slots = [frame.entry(f"alloca {kind}") for kind in (v.type, v.type, v.bits_type)]
        frame.line(f"store {v.type} {x}, ptr {slots[0]}")
        frame.line(f"store {v.type} {reduced}, ptr {slots[1]}")
        frame.line(f"store {v.bits_type} {quadrant}, ptr {slots[2]}")
        pointers = ", ".join(f"ptr {slot}" for slot in slots)
        frame.line(f"call void @reduce_large({pointers}, i64 {v.lanes})")
        repaired = frame.op(f"load {v.type}, ptr {slots[1]}")
        renumbered = frame.op(f"load {v.bits_type}, ptr {slots[2]}")
        rare = frame.block
    return (
        frame.op(f"phi {v.type} [ {reduced}, %{usual} ], [ {repaired}, %{rare} ]"),
        frame.op(f"phi {v.bits_type} [ {quadrant}, %{usual} ], [ {renumbered}, %{rare} ]"),
    )


def _sin_float64(frame: Frame, x: str, quarter: int, lanes: int) -> str:
    """The C library's, lane by lane, and another one where a lane is large."""
    v = Vector(frame, float64, lanes)
    name = f"llvm.{'cos' if quarter % 2 else 'sin'}.{v.mangled}"
    frame.charge(20 * lanes)
    result = frame.call(v.type, name, (v.type, x))
    if quarter > 1:
        result = frame.op(f"fneg {v.type} {result}")
    return _sin_large(v, x, result, quarter)


def _sin_large(v: Vector, x: str, result: str, quarter: int) -> str:
    """The result, put right by a call where a lane of ``x`` is finite and beyond LARGE64."""
    frame = v.frame
    for signature in ("double @llvm.sin.f64(double)", "double @llvm.cos.f64(double)"):
        frame.declare_intrinsic(signature)
    frame.declare_intrinsic("i192 @llvm.ctlz.i192(i192, i1)")
    frame.constant_data(TURNS)
    frame.function(SIN_LARGE)
    large = _is_large(v, x, LARGE64)
    usual = frame.block
    for _ in frame.condition(large):
        slots = [frame.entry(f"alloca {v.type}") for _ in range(2)]
        frame.line(f"store {v.type} {x}, ptr {slots[0]}")
        frame.line(f"store {v.type} {result}, ptr {slots[1]}")
        frame.line(
            f"call void @sin_large(ptr {slots[0]}, ptr {slots[1]}, i64 {quarter}, i64 {v.lanes})"
        )
        repaired = frame.op(f"load {v.type}, ptr {slots[1]}")
        rare = frame.block
    return frame.op(f"phi {v.type} [ {result}, %{usual} ], [ {repaired}, %{rare} ]")


def _is_large(v: Vector, x: str, limit: float) -> str:
    """Whether a lane is finite and at least ``limit``."""
    frame, bits = v.frame, v.format.bits
    infinity, least = to_bits(math.inf, v.dtype), to_bits(limit, v.dtype)
    magnitude = v.bit_op("and", v.bits(x), (1 << (bits.bits - 1)) - 1)
    above = v.bit_op("sub", magnitude, least)
    span = frame.splat(bits, v.lanes, infinity - least)
    large = frame.op(f"icmp ult {v.bits_type} {above}, {span}")
    if v.lanes == 1:
        return large
    return frame.call("i1", f"llvm.vector.reduce.or.v{v.lanes}i1", (v.test_type, large))
