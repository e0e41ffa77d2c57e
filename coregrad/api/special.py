"""Functions whose digits need care, as graphs of primitive ops; it knows nodes and no tensors.

Each function takes a float node and returns one of the same dtype. float16 and bfloat16 are
computed in float32 and rounded once. Where the graph works on bits, or where its own derivative
would lose digits, the gradient is a rule (:class:`Slope`) instead.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coregrad import dtypes
from coregrad.dtypes import DType
from coregrad.errors import DTypeError
from coregrad.ir import build, ops
from coregrad.ir.graph import Node

Function = Callable[[Node], Node]


# ---- words of the trade --------------------------------------------------------------------------


def floating(x: Node) -> Node:
    """``x``, or its values as float32 where it is no float."""
    return x if x.dtype.is_float else build.cast(x, dtypes.float32)


def _k(x: Node, value: float) -> Node:
    return build.const_like(x, value)


def _add(x: Node, value: float) -> Node:
    return build.add(x, build.const_like(x, value))


def _mul(x: Node, value: float) -> Node:
    return build.mul(x, build.const_like(x, value))


def _lt(x: Node, value: float) -> Node:
    return build.lt(x, build.const_like(x, value))


def _gt(x: Node, value: float) -> Node:
    return build.lt(build.const_like(x, value), x)


def _is(x: Node, value: float) -> Node:
    return build.eq(x, build.const_like(x, value))


def _wide(function: Function) -> Function:
    """``function``, which wants float32 or float64, for every float dtype."""

    @functools.wraps(function)
    def widened(x: Node) -> Node:
        if x.dtype.bits >= 32:
            return function(x)
        return build.cast(function(build.cast(x, dtypes.float32)), x.dtype)

    return widened


def _wide_pair(function: Callable[[Node, Node], Node]) -> Callable[[Node, Node], Node]:
    """:func:`_wide` for a function of two numbers of one dtype."""

    @functools.wraps(function)
    def widened(a: Node, b: Node) -> Node:
        a, b = floating(a), floating(b)
        if a.dtype.bits >= 32:
            return function(a, b)
        wide = function(build.cast(a, dtypes.float32), build.cast(b, dtypes.float32))
        return build.cast(wide, a.dtype)

    return widened


@dataclass(frozen=True)
class Slope:
    """The gradient rule of a function of one number: ``g * derivative(x)``.

    As everywhere in coregrad, an infinite derivative counts as 0 where ``g`` is 0.
    """

    x: Node
    derivative: Function

    def vjp(self, gradient: Node) -> Sequence[Node]:
        """The gradient for ``x``."""
        return (_counted(gradient, self.derivative(self.x)),)


def _counted(gradient: Node, slope: Node) -> Node:
    """The product, in which an infinite slope counts as 0 where the gradient is 0."""
    counts = build.or_(build.ne(gradient, _k(gradient, 0)), isfinite(slope))
    return build.mul(gradient, build.where(counts, slope, _k(slope, 0)))


def _with_slope(function: Function, derivative: Function) -> Function:
    """``function`` with its gradient given by ``derivative``."""

    @functools.wraps(function)
    def made(x: Node) -> Node:
        return build.custom(function(x), (x,), Slope(x, derivative))

    return made


# ---- bits of a float -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """How a float dtype is stored, and how long its polynomials must be."""

    integer: DType
    digits: int  # bits of the stored mantissa
    bias: int
    tiny: float  # smallest normal number
    low: int  # mantissa bits cleared by :func:`_head`, so that products of heads are exact


LAYOUTS = {
    dtypes.float16: Layout(dtypes.int16, 10, 15, 2.0**-14, 6),
    dtypes.bfloat16: Layout(dtypes.int16, 7, 127, 2.0**-126, 4),
    dtypes.float32: Layout(dtypes.int32, 23, 127, 2.0**-126, 12),
    dtypes.float64: Layout(dtypes.int64, 52, 1023, 2.0**-1022, 27),
}


def largest(dtype: DType) -> float:
    """The largest finite number of a float dtype."""
    form = LAYOUTS[dtype]
    return (2.0 - 2.0**-form.digits) * 2.0**form.bias


def _bits(x: Node) -> Node:
    return build.bitcast(x, LAYOUTS[x.dtype].integer)


def _clear_sign(x: Node) -> Node:
    bits = _bits(x)
    return build.bitcast(build.and_(bits, _k(bits, bits.dtype.max)), x.dtype)


def _signed_like(magnitude: Node, sign_of: Node) -> Node:
    """The magnitude, which has no sign, with another number's sign bit, also that of -0.0."""
    bits, signs = _bits(magnitude), _bits(sign_of)
    taken = build.and_(signs, _k(bits, bits.dtype.min))
    return build.bitcast(build.or_(bits, taken), magnitude.dtype)


def _head(x: Node) -> Node:
    """``x`` with the lower half of its mantissa cleared: a product of two heads is exact."""
    bits = _bits(x)
    return build.bitcast(build.and_(bits, _k(bits, -(1 << LAYOUTS[x.dtype].low))), x.dtype)


def _power_of_two(n: Node, dtype: DType) -> Node:
    """2 to the integer ``n``, which must give a normal number."""
    form = LAYOUTS[dtype]
    return build.bitcast(build.shl(_add(n, form.bias), _k(n, form.digits)), dtype)


def _scaled(x: Node, n: Node) -> Node:
    """``x * 2**n`` rounded once, also where the result is subnormal or infinite."""
    half = build.shr(n, _k(n, 1))
    rest = build.sub(n, half)
    first = build.mul(x, _power_of_two(half, x.dtype))
    return build.mul(first, _power_of_two(rest, x.dtype))


def _parted(x: Node) -> tuple[Node, Node]:
    """(m, e) with ``x = m * 2**e`` and m in [sqrt(1/2), sqrt(2)), for positive finite x."""
    form = LAYOUTS[x.dtype]
    up = form.digits + 1
    small = _lt(x, form.tiny)
    bits = _bits(build.where(small, _mul(x, 2.0**up), x))
    # Count from sqrt(1/2): what lies in one octave above it has one exponent.
    root = dtypes.to_bits(math.sqrt(0.5), x.dtype)
    exponent = build.shr(_add(bits, -root), _k(bits, form.digits))
    mantissa = build.sub(bits, build.shl(exponent, _k(bits, form.digits)))
    lifted = build.where(small, _k(exponent, up), _k(exponent, 0))
    return build.bitcast(mantissa, x.dtype), build.cast(build.sub(exponent, lifted), x.dtype)


def _polynomial(x: Node, coefficients: Sequence[float]) -> Node:
    """``c[0] + c[1]*x + c[2]*x**2 ...`` by Horner's rule."""
    total = _k(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = _add(build.mul(total, x), c)
    return total


def _taylor(short: int, long: int, term: Callable[[int], float]) -> dict[DType, list[float]]:
    return {
        dtypes.float32: [term(n) for n in range(short)],
        dtypes.float64: [term(n) for n in range(long)],
    }


# ---- classes of numbers --------------------------------------------------------------------------


def isinf(x: Node) -> Node:
    """True for both infinities."""
    if not x.dtype.is_float:
        return build.const(False, dtypes.bool_, x.shape)
    return _is(_clear_sign(x), math.inf)


def isfinite(x: Node) -> Node:
    """True for numbers that are neither infinite nor NaN."""
    if not x.dtype.is_float:
        return build.const(True, dtypes.bool_, x.shape)
    return _lt(_clear_sign(x), math.inf)


def sign(x: Node) -> Node:
    """-1, 0, 1; NaN stays."""
    if x.dtype in (dtypes.bool_,) or x.dtype.kind == "uint":
        return build.cast(build.ne(x, _k(x, 0)), x.dtype)
    below = build.where(_lt(x, 0), _k(x, -1), _k(x, 0))
    out = build.where(_gt(x, 0), _k(x, 1), below)
    return build.where(build.ne(x, x), x, out) if x.dtype.is_float else out


_absolute_float = _with_slope(_clear_sign, sign)


def absolute(x: Node) -> Node:
    """Magnitude; the smallest integer stays as it is."""
    if x.dtype.is_float:
        return _absolute_float(x)
    if x.dtype.kind != "int":
        return x
    return build.where(_lt(x, 0), build.neg(x), x)


def copysign(a: Node, b: Node) -> Node:
    """The magnitude of ``a`` with the sign of ``b``."""
    a, b = floating(a), floating(b)
    same = build.eq(_is_negative(a), _is_negative(b))
    return build.where(same, a, build.neg(a))


def _is_negative(x: Node) -> Node:
    bits = _bits(x)
    return build.lt(bits, _k(bits, 0))


# ---- whole numbers -------------------------------------------------------------------------------


def trunc(x: Node) -> Node:
    """Towards zero."""
    return build.trunc(x) if x.dtype.is_float else x


def floor(x: Node) -> Node:
    """Down."""
    if not x.dtype.is_float:
        return x
    t = build.trunc(x)
    return build.where(build.lt(x, t), _add(t, -1), t)


def ceil(x: Node) -> Node:
    """Up."""
    if not x.dtype.is_float:
        return x
    t = build.trunc(x)
    return build.where(build.lt(t, x), _add(t, 1), t)


def round_half_even(x: Node) -> Node:
    """To the nearest; halves to the even neighbour."""
    if not x.dtype.is_float:
        return x
    t = build.trunc(x)
    rest = _clear_sign(build.sub(x, t))
    odd = build.ne(_mul(build.trunc(_mul(t, 0.5)), 2), t)
    away = build.or_(_gt(rest, 0.5), build.and_(_is(rest, 0.5), odd))
    step = _signed_like(_k(x, 1), x)
    return build.where(away, build.add(t, step), t)


def remainder(a: Node, b: Node) -> Node:
    """With the sign of ``b``, exactly; integers: 0 where b is 0."""
    if a.dtype is dtypes.bool_:
        raise DTypeError("remainder: bool tensors have no remainder; cast them to an integer dtype")
    rest = build.mod(a, b)
    if a.dtype.kind == "uint":
        return rest
    zero = _k(rest, 0)
    opposite = build.ne(build.lt(rest, zero), build.lt(b, zero))
    wrong = build.and_(build.ne(rest, zero), opposite)
    return build.where(wrong, build.add(rest, b), rest)


def floor_divide(a: Node, b: Node) -> Node:
    """The quotient rounded down; integers: 0 where b is 0."""
    if a.dtype is dtypes.bool_:
        raise DTypeError("floor_divide: bool tensors have no quotient; cast them to integers")
    if a.dtype.is_float:
        return _floor_divide_floats(a, b)
    quotient = build.idiv(a, b)
    if a.dtype.kind == "uint":
        return quotient
    zero = _k(a, 0)
    opposite = build.ne(build.lt(a, zero), build.lt(b, zero))
    inexact = build.ne(build.mod(a, b), zero)
    return build.where(build.and_(opposite, inexact), _add(quotient, -1), quotient)


@_wide_pair
def _floor_divide_floats(a: Node, b: Node) -> Node:
    """(a - fmod) / b is a whole number up to rounding; division by 0 is IEEE's.

    The remainder that is taken off has the sign of ``a``: the one that % gives is infinite for
    -1 // inf, which is -1 as in Python.
    """
    rest, zero = build.mod(a, b), _k(a, 0)
    whole = round_half_even(build.div(build.sub(a, rest), b))
    opposite = build.ne(build.lt(rest, zero), build.lt(b, zero))
    below = build.and_(build.ne(rest, zero), opposite)
    whole = build.where(below, _add(whole, -1), whole)
    by_zero = _is(b, 0)
    return build.where(by_zero, build.div(a, b), _signed_zero(whole, a, b))


def _signed_zero(whole: Node, a: Node, b: Node) -> Node:
    """A quotient of 0 has the sign of a/b."""
    return build.where(_is(whole, 0), _mul(build.div(a, b), 0), whole)


# ---- roots and trigonometry ----------------------------------------------------------------------


def reciprocal(x: Node) -> Node:
    """1/x."""
    return build.div(_k(x, 1), x)


@_wide
def rsqrt(x: Node) -> Node:
    """1/sqrt(x)."""
    return build.div(_k(x, 1), build.sqrt(x))


def cos(x: Node) -> Node:
    """Cosine."""
    return build.sin(x, 1)


@_wide
def tan(x: Node) -> Node:
    """Tangent."""
    return build.div(build.sin(x), build.sin(x, 1))


# atan(r)/r = 1 + z*P(z) with z = r*r for |r| <= tan(pi/8): minimax fits of degree 4 and 11,
# computed with mpmath.chebyfit (errors 1.6e-8 and 1.2e-18 of P).
# fmt: off
ATAN = {
    dtypes.float32: [
        -0.33333331761168519851, 0.19999540483648963445, -0.14263955597984639199,
        0.10743731490791083043, -0.064519282081217487578,
    ],
    dtypes.float64: [
        -0.33333333333333333217, 0.19999999999999804526, -0.14285714285659827606,
        0.11111111105155446565, -0.090909087535008768442, 0.076922963750321423991,
        -0.066664248857382553335, 0.058789289978347751327, -0.052304542706502445183,
        0.045515932206265491692, -0.034570561981427746881, 0.01628575685522102829,
    ],
}
# fmt: on


def _two_parts(value: float, dtype: DType) -> tuple[float, float]:
    """``value`` as head + tail, both in ``dtype`` (the tail is 0 for float64)."""
    head = float(dtypes.from_bits(dtypes.to_bits(value, dtype), dtype))
    return head, value - head


def _atan_value(x: Node) -> Node:
    """Reduced to |r| <= tan(pi/8) by atan(a) = pi/4 + atan((a-1)/(a+1)) = pi/2 - atan(1/a)."""
    a = _clear_sign(x)
    large, middle = _gt(a, 1 + math.sqrt(2)), _gt(a, math.sqrt(2) - 1)
    top = build.where(large, _k(a, -1), build.where(middle, _add(a, -1), a))
    bottom = build.where(large, a, build.where(middle, _add(a, 1), _k(a, 1)))
    r = build.div(top, bottom)
    z = build.mul(r, r)
    small = build.mul(r, build.mul(z, _polynomial(z, ATAN[x.dtype])))
    (h2, l2), (h4, l4) = _two_parts(math.pi / 2, x.dtype), _two_parts(math.pi / 4, x.dtype)
    if x.dtype is dtypes.float64:
        l2, l4 = 6.123233995736766e-17, 3.061616997868383e-17  # pi/2 and pi/4 minus their doubles
    head = build.where(large, _k(a, h2), build.where(middle, _k(a, h4), _k(a, 0)))
    tail = build.where(large, _k(a, l2), build.where(middle, _k(a, l4), _k(a, 0)))
    return _signed_like(build.add(head, build.add(r, build.add(small, tail))), x)


def _atan_slope(x: Node) -> Node:
    """Far out x*x is infinite, and the slope rightly 0."""
    return build.div(_k(x, 1), _add(build.mul(x, x), 1))


atan = _wide(_with_slope(_atan_value, _atan_slope))


def _half_circle(x: Node) -> Node:
    """sqrt(1 - x*x) without cancellation."""
    return build.sqrt(build.mul(_add(x, 1), _add(build.neg(x), 1)))


def _asin_value(x: Node) -> Node:
    return _atan_value(build.div(x, _half_circle(x)))


asin = _wide(_with_slope(_asin_value, lambda x: build.div(_k(x, 1), _half_circle(x))))


def _acos_value(x: Node) -> Node:
    ratio = build.div(_add(build.neg(x), 1), _add(x, 1))
    return _mul(_atan_value(build.sqrt(ratio)), 2)


acos = _wide(_with_slope(_acos_value, lambda x: build.div(_k(x, -1), _half_circle(x))))


@_wide_pair
def atan2(y: Node, x: Node) -> Node:
    """The angle of the point (x, y)."""
    both = build.and_(isinf(y), isinf(x))
    one = _k(x, 1)
    top = build.where(both, copysign(one, y), y)
    ratio = build.div(top, build.where(both, copysign(one, x), x))
    origin = build.and_(_is(x, 0), _is(y, 0))
    angle = build.where(origin, _mul(y, 0), atan(ratio))  # keeps the sign of y
    turned = build.add(angle, copysign(_k(y, math.pi), y))
    turned = build.where(origin, copysign(_k(y, math.pi), y), turned)
    return build.where(_is_negative(x), turned, angle)


# ---- exponentials --------------------------------------------------------------------------------


def _exp2_value(x: Node) -> Node:
    """2**n * exp(f*ln2) with n the nearest integer: exact where f is 0."""
    form = LAYOUTS[x.dtype]
    reach = form.bias + form.digits + 20.0
    held = build.minimum(build.maximum(x, _k(x, -reach)), _k(x, reach))  # keeps NaN
    n = floor(_add(held, 0.5))
    f = build.sub(held, n)
    whole = build.where(_is(f, 0), _k(x, 1), build.exp(_mul(f, math.log(2))))
    return _scaled(whole, build.cast(n, form.integer))


exp2: Function = _wide(_with_slope(_exp2_value, lambda x: _mul(exp2(x), math.log(2))))


EXPM1 = _taylor(11, 17, lambda n: 1 / math.factorial(n + 1))  # up to 0.7: below half an ulp


def _expm1_value(x: Node) -> Node:
    """A Taylor series near 0, where exp(x) - 1 would cancel."""
    inside = _lt(_clear_sign(x), 0.7)
    r = build.where(inside, x, _k(x, 0))
    series = build.add(r, build.mul(r, build.mul(r, _polynomial(r, EXPM1[x.dtype][1:]))))
    near = build.where(_is(r, 0), r, series)  # keeps -0.0
    return build.where(inside, near, _add(build.exp(x), -1))


expm1 = _wide(_with_slope(_expm1_value, build.exp))


# tanh(a)/a = 1 + z*P(z) with z = a*a for a <= 0.625: minimax fits by mpmath.chebyfit (errors 5e-8
# and 2e-19 of P).
# fmt: off
TANH = {
    dtypes.float32: [
        -0.33333328944134254064, 0.13332769736310944912, -0.053850909578512033985,
        0.020997178999069499397, -0.0060967141659022471849,
    ],
    dtypes.float64: [
        -0.33333333333333333319, 0.13333333333333320761, -0.053968253968235901344,
        0.021869488535133222007, -0.0088632354998019925673, 0.0035921275075992522056,
        -0.001455828399830324392, 0.00058998181583882213229, -0.00023888944636750770128,
        0.000096041091570252524451, -0.000037081069215426053172, 0.000012209921790147650115,
        -2.4388316314658990141e-6,
    ],
}
# fmt: on


def _tanh_value(x: Node) -> Node:
    """A series near 0, and (1 - e)/(1 + e) with e = exp(-2|x|) beyond."""
    a = _clear_sign(x)
    z = build.mul(a, a)
    near = build.add(a, build.mul(a, build.mul(z, _polynomial(z, TANH[x.dtype]))))
    e = build.exp(_mul(a, -2))
    far = build.div(_add(build.neg(e), 1), _add(e, 1))
    return _signed_like(build.where(_lt(a, 0.625), near, far), x)


def _tanh_slope(x: Node) -> Node:
    """4*sigmoid(2x)*sigmoid(-2x): keeps its digits where tanh is almost 1."""
    return _mul(_sigmoid_slope(_mul(x, 2)), 4)


tanh = _wide(_with_slope(_tanh_value, _tanh_slope))


def _sinh_value(x: Node) -> Node:
    """(e + e/(e+1))/2 with e = expm1; half an exponential where that would overflow."""
    a = _clear_sign(x)
    e = _expm1_value(a)
    near = _mul(build.add(e, build.div(e, _add(e, 1))), 0.5)
    return _signed_like(build.where(_overflows(a), _half_exp(a), near), x)


def _cosh_value(x: Node) -> Node:
    a = _clear_sign(x)
    e = build.exp(a)
    near = _mul(build.add(e, build.div(_k(e, 1), e)), 0.5)
    return build.where(_overflows(a), _half_exp(a), near)


def _overflows(a: Node) -> Node:
    return _gt(a, math.log(largest(a.dtype)) - 1)


def _half_exp(a: Node) -> Node:
    """exp(a)/2 where exp(a) itself is too large."""
    root = build.exp(_mul(a, 0.5))
    return build.mul(_mul(root, 0.5), root)


sinh: Function = _wide(_with_slope(_sinh_value, lambda x: cosh(x)))
cosh: Function = _wide(_with_slope(_cosh_value, lambda x: sinh(x)))


def _falling_exp(x: Node) -> Node:
    """exp(-|x|), never too large."""
    return build.exp(build.neg(absolute(x)))


def _sigmoid_value(x: Node) -> Node:
    e = _falling_exp(x)
    top = build.where(_lt(x, 0), e, _k(x, 1))
    return build.div(top, _add(e, 1))


def _sigmoid_slope(x: Node) -> Node:
    """e/(1+e)**2 with e = exp(-|x|): no difference of almost equal numbers."""
    e = _falling_exp(x)
    share = build.div(_k(e, 1), _add(e, 1))
    return build.mul(build.mul(e, share), share)


sigmoid = _wide(_with_slope(_sigmoid_value, _sigmoid_slope))


@_wide
def silu(x: Node) -> Node:
    """x*sigmoid(x)."""
    return build.mul(x, sigmoid(x))


# ---- logarithms ----------------------------------------------------------------------------------


def _log2_value(x: Node) -> Node:
    """exponent + log(mantissa)/ln2: exact for powers of two."""
    usable = build.and_(_gt(x, 0), _lt(x, math.inf))
    m, e = _parted(build.where(usable, x, _k(x, 1)))
    head, tail = _two_parts(1 / math.log(2), x.dtype)
    log = build.log(m)
    part = build.add(_mul(log, head), _mul(log, tail))
    whole = build.add(e, build.where(_is(m, 1), _k(x, 0), part))
    return build.where(usable, whole, build.log(x))


log2 = _wide(_with_slope(_log2_value, lambda x: build.div(_k(x, 1 / math.log(2)), x)))


def _log10_value(x: Node) -> Node:
    """log(x)/ln10, the constant in two parts; infinities have no parts."""
    head, tail = _two_parts(1 / math.log(10), x.dtype)
    log = build.log(x)
    both = build.add(_mul(log, head), _mul(log, tail))
    return build.where(isfinite(log), both, log)


log10 = _wide(_with_slope(_log10_value, lambda x: build.div(_k(x, 1 / math.log(10)), x)))


def _log1p_value(x: Node) -> Node:
    """log(u) plus what rounding took from u = 1 + x, divided by u."""
    u = _add(x, 1)
    usable = build.and_(isfinite(u), build.ne(x, _k(x, 0)))
    lost = build.sub(x, _add(u, -1))
    whole = build.add(build.log(u), build.div(lost, u))
    whole = build.where(_is(u, 0), build.log(u), whole)
    return build.where(usable, whole, x)


log1p = _wide(_with_slope(_log1p_value, lambda x: build.div(_k(x, 1), _add(x, 1))))


def _softplus_value(x: Node) -> Node:
    return build.add(build.maximum(x, _k(x, 0)), _log1p_value(_falling_exp(x)))


softplus = _wide(_with_slope(_softplus_value, lambda x: sigmoid(x)))


@_wide_pair
def logaddexp(a: Node, b: Node) -> Node:
    """max + log(1 + exp(-|a - b|)); equal infinities have no difference.

    The larger one is chosen, not computed as b + (a - b), which loses its digits when b is far
    away; and the sign of the gap is chosen, as the kink of |gap| has no second derivative.
    """
    same = build.and_(build.eq(a, b), isinf(a))
    gap = build.sub(build.where(same, _k(a, 0), a), build.where(same, _k(b, 0), b))
    above = _gt(gap, 0)
    larger = build.where(above, a, b)
    tail = softplus(build.where(above, build.neg(gap), gap))
    return build.where(same, a, build.add(larger, tail))


def _asinh_value(x: Node) -> Node:
    """log1p(a + a*a/(1 + sqrt(a*a + 1))); log(2a) where a*a would overflow."""
    a = _clear_sign(x)
    far = _gt(a, math.sqrt(largest(a.dtype)) / 2)
    near = build.where(far, _k(a, 0), a)
    square = build.mul(near, near)
    rest = build.div(square, _add(build.sqrt(_add(square, 1)), 1))
    out = build.where(far, _add(build.log(a), math.log(2)), _log1p_value(build.add(near, rest)))
    return _signed_like(out, x)


def _hypotenuse(x: Node) -> Node:
    """sqrt(x*x + 1) without overflow."""
    a = _clear_sign(x)
    far = _gt(a, math.sqrt(largest(a.dtype)) / 2)
    near = build.where(far, _k(a, 0), a)
    return build.where(far, a, build.sqrt(_add(build.mul(near, near), 1)))


def _acosh_value(x: Node) -> Node:
    """log1p(t + sqrt(t*(t + 2))) with t = x - 1; log(2x) far out."""
    far = _gt(x, math.sqrt(largest(x.dtype)) / 2)
    t = _add(build.where(far, _k(x, 1), x), -1)
    near = _log1p_value(build.add(t, build.sqrt(build.mul(t, _add(t, 2)))))
    return build.where(far, _add(build.log(x), math.log(2)), near)


def _acosh_slope(x: Node) -> Node:
    root = build.mul(build.sqrt(_add(x, -1)), build.sqrt(_add(x, 1)))
    return build.div(_k(x, 1), root)


def _atanh_value(x: Node) -> Node:
    a = _clear_sign(x)
    ratio = build.div(_mul(a, 2), _add(build.neg(a), 1))
    return _signed_like(_mul(_log1p_value(ratio), 0.5), x)


def _atanh_slope(x: Node) -> Node:
    return build.div(_k(x, 1), build.mul(_add(x, 1), _add(build.neg(x), 1)))


asinh = _wide(_with_slope(_asinh_value, lambda x: build.div(_k(x, 1), _hypotenuse(x))))
acosh = _wide(_with_slope(_acosh_value, _acosh_slope))
atanh = _wide(_with_slope(_atanh_value, _atanh_slope))


# ---- powers --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Power:
    """The gradient rule of ``x ** y``, for ``x`` and, unless ``y`` is a constant, for ``y``."""

    x: Node
    y: Node

    def vjp(self, gradient: Node) -> Sequence[Node]:
        """y * x**(y-1), and x**y * log(x), both 0 where the power does not change."""
        x, y = self.x, self.y
        known = _number(y)
        rest = power(x, _add(y, -1)) if known is None else constant_power(x, known - 1)
        slopes = [build.where(_is(y, 0), _k(y, 0), build.mul(y, rest))]
        if known is None:
            flat = build.and_(_is(x, 0), build.le(_k(y, 0), y))
            safe = build.where(flat, _k(x, 1), x)
            slopes.append(build.mul(power(x, y), build.log(safe)))
        return [_counted(gradient, slope) for slope in slopes]


def _number(x: Node) -> float | None:
    """The number a constant node holds."""
    return float(dtypes.from_bits(x.arg, x.dtype)) if x.op is ops.CONST else None


def constant_power(x: Node, exponent: float) -> Node:
    """``x ** exponent`` for a number: products for small whole ones, a root for 0.5."""
    if not x.dtype.is_float:
        return _whole_power(x, int(exponent))
    if exponent in PRODUCTS:
        return _products(x, int(exponent))
    if exponent == 0.5:
        return _root(x)
    return power(x, _k(x, exponent))


PRODUCTS = (1, 2, 3, 4, -1, -2)  # beyond these, products lose more digits than :func:`power`


def _whole_power(x: Node, n: int) -> Node:
    if n < 0:
        raise DTypeError(
            f"pow: an integer tensor to the power {n} is no integer; cast it to a float dtype"
        )
    return _repeated(x, n) if n else _k(x, 1)


def _repeated(x: Node, n: int) -> Node:
    """x to the power n >= 1 by squaring."""
    total = None
    while n:
        if n & 1:
            total = x if total is None else build.mul(total, x)
        n >>= 1
        if n:
            x = build.mul(x, x)
    assert total is not None
    return total


def _products(x: Node, n: int) -> Node:
    def made(x: Node) -> Node:
        whole = _repeated(x, abs(n))
        return whole if n > 0 else reciprocal(whole)

    return _wide(made)(x)


def _root(x: Node) -> Node:
    """C's pow(x, 0.5): +0 for -0.0 and inf for -inf, unlike sqrt."""
    return build.where(_is(x, -math.inf), _k(x, math.inf), _add(build.sqrt(x), 0.0))


def power(x: Node, y: Node) -> Node:
    """``x ** y`` with C's special cases; integers wrap."""
    if x.dtype is dtypes.bool_:
        raise DTypeError("pow: bool tensors have no power; cast them to an integer dtype")
    if not x.dtype.is_float:
        return _integer_power(x, y)
    if x.dtype.bits < 32:
        wide = power(build.cast(x, dtypes.float32), build.cast(y, dtypes.float32))
        return build.cast(wide, x.dtype)
    if _number(x) == 2:
        return exp2(y)
    inputs = (x,) if _number(y) is not None else (x, y)
    return build.custom(_power_value(x, y), inputs, Power(x, y))


def _integer_power(x: Node, y: Node) -> Node:
    """By squaring, one bit of the exponent at a time; 0 for negative ones, but of 1 and -1."""
    total, square, rest = _k(x, 1), x, y
    for _ in range(x.dtype.bits - (x.dtype.kind == "int")):
        odd = build.ne(build.and_(rest, _k(rest, 1)), _k(rest, 0))
        total = build.where(odd, build.mul(total, square), total)
        square = build.mul(square, square)
        rest = build.shr(rest, _k(rest, 1))
    if x.dtype.kind == "uint":
        return total
    odd = build.ne(build.and_(y, _k(y, 1)), _k(y, 0))
    minus = build.where(odd, _k(x, -1), _k(x, 1))
    inverse = build.where(_is(x, 1), _k(x, 1), build.where(_is(x, -1), minus, _k(x, 0)))
    return build.where(_lt(y, 0), inverse, total)


def _power_value(x: Node, y: Node) -> Node:
    a = _clear_sign(x)
    plain = build.and_(_gt(a, 0), _lt(a, math.inf))
    positive = _positive_power(build.where(plain, a, _k(a, 1)), y)
    falls = _lt(y, 0)
    at_zero = build.where(falls, _k(y, math.inf), _k(y, 0))
    at_end = build.where(falls, _k(y, 0), _k(y, math.inf))
    size = build.where(plain, positive, build.where(_is(a, 0), at_zero, at_end))
    whole = build.eq(build.trunc(y), y)
    odd = build.and_(whole, build.ne(_mul(build.trunc(_mul(y, 0.5)), 2), y))
    size = build.where(build.and_(_is_negative(x), odd), build.neg(size), size)
    undefined = build.and_(build.and_(_lt(x, 0), plain), build.invert(whole))
    undefined = build.or_(undefined, build.or_(build.ne(x, x), build.ne(y, y)))
    out = build.where(undefined, _k(x, math.nan), size)
    return build.where(build.or_(_is(x, 1), _is(y, 0)), _k(x, 1), out)


# atanh(s)/s = 1 + z/3 + z*z*P(z) with z = s*s for |s| <= 0.1716: minimax fits by mpmath.chebyfit
# (errors 5e-10 and 1e-18 of P). Taylor's series of (exp(z) - 1 - z)/z**2 for |z| <= ln2 / 2.
ATANH = {
    dtypes.float32: [
        0.19999999952073879235, 0.14285766231795754568, 0.11102344705432882624,
        0.095612151991789768398,
    ],
    dtypes.float64: [
        0.19999999999999999907, 0.14285714285714688893, 0.11111111110824410689,
        0.09090909168496284822, 0.076922973958811729546, 0.06667406985646106729,
        0.058529940782480892145, 0.058628856109269567078,
    ],
}  # fmt: skip
EXP_TAIL = _taylor(8, 14, lambda n: 1 / math.factorial(n + 2))


def _positive_power(a: Node, y: Node) -> Node:
    """``a ** y`` for positive finite a: 2**(y*log2(a)) with the logarithm in two parts.

    The product may reach 1100, so its logarithm needs about ten more bits than the result has.
    Heads have at most half of the mantissa's bits: their products are exact.
    """
    high, low = _log2_parts(a)
    limit = 2.0**40 if a.dtype is dtypes.float32 else 2.0**70  # enough for a = 1 + one ulp
    y = build.minimum(build.maximum(y, _k(y, -limit)), _k(y, limit))
    y_high = _head(y)
    p_high = build.mul(y_high, high)
    p_low = build.add(build.mul(build.sub(y, y_high), high), build.mul(y, low))
    return _exp2_of_parts(p_high, p_low)


def _log2_parts(a: Node) -> tuple[Node, Node]:
    """log2(a) as head + tail: e + (2/ln2)*(s + s**3/3 + ...) with s = (m-1)/(m+1)."""
    m, e = _parted(a)
    top, bottom = _add(m, -1), _add(m, 1)
    missing = build.sub(m, _add(bottom, -1))  # what rounding took from m + 1
    s = build.div(top, bottom)
    s_high, bottom_high = _head(s), _head(bottom)
    rest = build.sub(top, build.mul(s_high, bottom_high))
    bottom_low = build.add(build.sub(bottom, bottom_high), missing)
    s_low = build.div(build.sub(rest, build.mul(s_high, bottom_low)), bottom)
    # 3*atanh(s)/s = t = 3 + z + 3*z*z*P(z), of which 3 + (head of s)**2 is exact
    z = build.mul(s, s)
    square = build.mul(s_high, s_high)
    series = build.mul(build.mul(z, z), _mul(_polynomial(z, ATANH[a.dtype]), 3))
    rest = build.add(build.mul(s_low, build.add(s_high, s)), series)
    t_high = _head(build.add(_add(square, 3), rest))
    t_low = build.sub(rest, build.sub(_add(t_high, -3), square))
    product = build.mul(s_high, t_high)
    rest = build.add(build.mul(s_low, t_high), build.mul(t_low, s))
    p_high = _head(build.add(product, rest))
    p_low = build.sub(rest, build.sub(p_high, product))
    c_high, c_low = _head_and_tail(TWO_THIRDS_LOG2E, a.dtype)
    z_high = _mul(p_high, c_high)
    z_low = build.add(_mul(p_high, c_low), _mul(p_low, c_high + c_low))
    high = _head(build.add(e, build.add(z_high, z_low)))
    return high, build.sub(z_low, build.sub(build.sub(high, e), z_high))


PLACES = 10**35
TWO_THIRDS_LOG2E = 96179669392597560490865471253988825  # 2/(3 ln 2), times PLACES
LN2 = 69314718055994530941723212145817657  # ln 2, times PLACES


def _head_and_tail(value: int, dtype: DType) -> tuple[float, float]:
    """The constant ``value / PLACES`` as head (half of the mantissa's bits) and tail."""
    form = LAYOUTS[dtype]
    bits = dtypes.to_bits(value / PLACES, dtype) & -(1 << form.low)
    head = float(dtypes.from_bits(bits, dtype))
    above, below = head.as_integer_ratio()
    return head, (value * below - above * PLACES) / (PLACES * below)


def _exp2_of_parts(high: Node, low: Node) -> Node:
    """2**(high + low), with one rounding that counts."""
    form = LAYOUTS[high.dtype]
    reach = form.bias + form.digits + 20.0
    total = build.add(high, low)
    beyond = build.invert(_lt(_clear_sign(total), reach))
    end = _signed_like(_k(total, reach), total)
    high, low = build.where(beyond, end, high), build.where(beyond, _k(low, 0), low)
    n = floor(_add(build.add(high, low), 0.5))
    part = build.sub(high, n)
    f = build.add(part, low)
    f_high = _head(f)
    f_low = build.sub(low, build.sub(f_high, part))
    c_high, c_low = _head_and_tail(LN2, high.dtype)
    product = _mul(f_high, c_high)
    rest = build.add(_mul(f_low, c_high + c_low), _mul(f_high, c_low))
    z = build.add(product, rest)
    lost = build.sub(rest, build.sub(z, product))
    curve = build.mul(build.mul(z, z), _polynomial(z, EXP_TAIL[z.dtype]))
    small = build.add(curve, build.add(lost, build.mul(lost, z)))
    return _scaled(_add(build.add(z, small), 1), build.cast(n, form.integer))


# ---- the normal distribution ---------------------------------------------------------------------

# erf(x) = x*P(x*x) for |x| <= 1, and (1 + 2x)*exp(x*x)*erfc(x) = Q((x - k)/(x + k)) with k = 3.75
# for x >= 0.7 (the form is Shepherd and Laframboise's, 1981): minimax fits by mpmath.chebyfit, with
# relative errors below 1e-9 and 1e-20 (P), 8e-9 and 2e-18 (Q).
# fmt: off
ERF = {
    dtypes.float32: [
        1.1283791670615434152, -0.37612638468028710398, 0.1128378249523684454,
        -0.026865430727670242894, 0.0052210318078580227973, -0.00084840804055351062944,
        0.00011265959025606608973, -9.6670445714869964151e-6,
    ],
    dtypes.float64: [
        1.1283791670955125739, -0.37612638903183752379, 0.11283791670955120236,
        -0.026866170645129840806, 0.0052239776254232983087, -0.00085483270219348295955,
        0.0001205533290288873541, -0.000014925647567519332125, 1.6462045441468418937e-6,
        -1.6364642158167615302e-7, 1.4792401209404813002e-8, -1.2164560057283450081e-9,
        8.7090451290531066896e-11, -4.2309458242953378173e-12,
    ],
}
TAIL = {
    dtypes.float32: [
        1.2375126303417033179, -0.14024069986703967697, 0.0035855242844605904875,
        0.082281696074619005299, -0.10880598739671612254, 0.09223704537486543636,
        -0.058692453295323894032, 0.028717911582748682763, -0.0096491450627396149409,
        0.0010431471216720502795,
    ],
    dtypes.float64: [
        1.2375126308378275813, -0.14024059858554706057, 0.0035854154854639171223,
        0.082276738490157430885, -0.10880393014172680474, 0.092304321159912132159,
        -0.058693398589897653419, 0.028362277427372426032, -0.0097465795589076372324,
        0.0017556257666199915739, 0.00029371370990948693064, -0.00029015353573263988496,
        0.000051648671890903687504, 0.000022382044359643300741, -0.000011442009437293699016,
        -9.679174008331601849e-7, 1.745310629753779093e-6, -6.6127037627562541389e-8,
        -2.4743360854196345854e-7, 3.100522175022331628e-8, 2.7436661752211279081e-8,
        -6.3367296639690998642e-9,
    ],
}
# fmt: on
CENTRE = 3.75


def _near_erf(x: Node) -> Node:
    return build.mul(x, _polynomial(build.mul(x, x), ERF[x.dtype]))


def _tail_factor(a: Node) -> Node:
    """exp(a*a)*erfc(a) for a >= 0.7."""
    t = build.div(_add(a, -CENTRE), _add(a, CENTRE))
    return build.div(_polynomial(t, TAIL[a.dtype]), _add(_mul(a, 2), 1))


def _falling_square(a: Node, factor: float) -> Node:
    """exp(-factor*a*a), factor a power of two: what is lost in rounding the square is made good."""
    head = _head(a)
    main = _mul(build.mul(head, head), -factor)  # exact
    rest = _mul(build.mul(build.sub(a, head), build.add(a, head)), -factor)
    square = build.add(main, rest)
    lost = build.sub(rest, build.sub(square, main))
    power = build.exp(square)
    return build.add(power, build.mul(power, lost))


def _far(a: Node, end: float) -> Node:
    """``a`` held to where results are 0 anyway, and away from infinity."""
    return build.minimum(a, _k(a, end))


def _erf_value(x: Node) -> Node:
    a = _clear_sign(x)
    far = _far(build.maximum(a, _k(a, 1)), 27.5)
    tail = build.mul(_tail_factor(far), build.exp(build.neg(build.mul(far, far))))
    return build.where(_lt(a, 1), _near_erf(x), _signed_like(_add(build.neg(tail), 1), x))


def _erfc_value(x: Node) -> Node:
    a = _clear_sign(x)
    far = _far(build.maximum(a, _k(a, 0.7)), 27.5)
    tail = build.mul(_tail_factor(far), _falling_square(far, 1.0))
    outside = build.where(_lt(x, 0), _add(build.neg(tail), 2), tail)
    return build.where(_lt(a, 0.7), _add(build.neg(_near_erf(x)), 1), outside)


def _bell(x: Node) -> Node:
    return _mul(build.exp(build.neg(build.mul(x, x))), 2 / math.sqrt(math.pi))


erf = _wide(_with_slope(_erf_value, _bell))
erfc = _wide(_with_slope(_erfc_value, lambda x: build.neg(_bell(x))))


def _normal(x: Node) -> Node:
    """Phi(x), the normal distribution function, accurate in its lower tail."""
    root = math.sqrt(0.5)
    a = _clear_sign(x)
    far = _far(build.maximum(a, _k(a, 1)), 39.0)
    tail = _mul(build.mul(_tail_factor(_mul(far, root)), _falling_square(far, 0.5)), 0.5)
    outside = build.where(_lt(x, 0), tail, _add(build.neg(tail), 1))
    inside = _add(_mul(_near_erf(_mul(x, root)), 0.5), 0.5)
    return build.where(_lt(a, 1), inside, outside)


def _gelu_value(x: Node) -> Node:
    return build.mul(x, _normal(x))


def _gelu_slope(x: Node) -> Node:
    """Phi(x) + x*phi(x)."""
    density = _mul(build.exp(_mul(build.mul(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
    return build.add(normal(x), build.mul(x, density))


def _density(x: Node) -> Node:
    return _mul(build.exp(_mul(build.mul(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))


normal = _wide(_with_slope(_normal, _density))
gelu = _wide(_with_slope(_gelu_value, _gelu_slope))


@_wide
def gelu_tanh(x: Node) -> Node:
    """0.5*x*(1 + tanh(u)) is x*sigmoid(2u), which keeps its digits in the lower tail."""
    cube = build.mul(build.mul(x, x), x)
    u = _mul(build.add(x, _mul(cube, 0.044715)), 2 * math.sqrt(2 / math.pi))
    return build.mul(x, sigmoid(u))


# ---- bends ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gate:
    """The gradient rule of a piecewise linear function: ``g`` where ``open(x)``, else 0."""

    x: Node
    lo: float
    hi: float

    def vjp(self, gradient: Node) -> Sequence[Node]:
        """The gradient for ``x``."""
        inside = _gt(self.x, self.lo)
        if self.hi != math.inf:
            inside = build.and_(inside, _lt(self.x, self.hi))
        return (build.where(inside, gradient, _k(gradient, 0)),)


def relu(x: Node) -> Node:
    """max(x, 0)."""
    if x.dtype is dtypes.bool_:
        raise DTypeError("relu: bool is no number dtype; cast the tensor first")
    value = build.maximum(x, _k(x, 0))
    return build.custom(value, (x,), Gate(x, 0.0, math.inf)) if x.dtype.is_float else value


def hardtanh(x: Node, lo: float, hi: float) -> Node:
    """Moved into [lo, hi]."""
    value = at_most(at_least(x, _k(x, lo)), _k(x, hi))
    return build.custom(value, (x,), Gate(x, lo, hi))


def at_least(x: Node, bound: Node) -> Node:
    """max(x, bound) whose gradient passes to x where they are equal."""
    return build.where(build.lt(x, bound), bound, x)


def at_most(x: Node, bound: Node) -> Node:
    """min(x, bound) whose gradient passes to x where they are equal."""
    return build.where(build.lt(bound, x), bound, x)
