"""Rewrite the ops that a backend leaves out into ops that it has; it never knows which backend.

exp, log, sin, sqrt, trunc and the float form of mod are written with additions, products, bit
operations and selections, within the contract's errors and with its special values. float16 and
bfloat16 go by way of float32. No branch is taken: every lane computes every case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

from coregrad import dtypes
from coregrad.dtypes import DType, to_bits
from coregrad.ir import ops
from coregrad.ir.index import Atom, Index, Opaque, Quotient, Remainder, Var
from coregrad.ir.kernel import INDEX, Contraction, Instr, Kernel, Loop, Stmt, Store, Update, walk
from coregrad.ir.ops import Op
from coregrad.ir.target import Hooks, Limits


def legalize(kernel: Kernel, hooks: Hooks, limits: Limits) -> Kernel:
    """The kernel without the optional ops that the backend lacks."""
    lacking = {op for op in REWRITES if op.name not in hooks}
    if not limits.float_mod:
        lacking.add(ops.MOD)
    if not any(_is_lacking(stmt, lacking) for stmt in walk(kernel.body)):
        return kernel
    return _Rewriter(lacking).kernel(kernel)


def _is_lacking(stmt: Stmt, lacking: Iterable[Op]) -> bool:
    return isinstance(stmt, Instr) and stmt.op in lacking and stmt.dtype.is_float


# ---- the walk ----------------------------------------------------------------------------------


class _Rewriter:
    """Rebuilds a kernel; an instruction whose operands have changed is a new instruction."""

    def __init__(self, lacking: set[Op]) -> None:
        self.lacking = lacking
        self.code = _Code()
        self.new: dict[Instr, Instr] = {}
        self.opaques: dict[Opaque, Opaque] = {}  # one for one: atoms are compared by identity
        self.stores: dict[Store, Store] = {}

    def kernel(self, kernel: Kernel) -> Kernel:
        body = self._block(kernel.body)
        contraction = kernel.contraction and self._contraction(kernel.contraction)
        body = [*self.code.constants.values(), *body]
        return replace(kernel, body=body, contraction=contraction)

    def _block(self, body: list[Stmt]) -> list[Stmt]:
        out: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, Instr):
                self._instr(stmt)
                out += self.code.made
                self.code.made.clear()
            elif isinstance(stmt, Loop):
                limit = stmt.limit and self.new[stmt.limit]
                out.append(replace(stmt, body=self._block(stmt.body), limit=limit))
            elif isinstance(stmt, Update):
                out.append(Update(stmt.acc, tuple(self.new[v] for v in stmt.values)))
            elif isinstance(stmt, Store):
                out.append(self._store(stmt))
            else:
                out.append(stmt)
        return out

    def _instr(self, instr: Instr) -> None:
        """Append to the code what computes ``instr``, whose operands are there."""
        args = tuple(self.new[a] for a in instr.args)
        if _is_lacking(instr, self.lacking):
            values = [_Value(self.code, a) for a in args]
            self.new[instr] = _rewrite(instr, values).instr
            return
        attr = instr.attr
        if instr.op is ops.LOAD:
            index = self._index(attr[1])
            attr = attr if index is attr[1] else (attr[0], index)
        elif instr.op is INDEX:
            attr = self._index(attr)
        same = args == instr.args and attr is instr.attr
        made = instr if same else Instr(instr.op, instr.dtype, args, attr, instr.vars)
        self.new[instr] = made
        self.code.made.append(made)

    def _store(self, store: Store) -> Store:
        gate = store.gate and self.new[store.gate]
        made = Store(store.target, self._index(store.index), self.new[store.value], gate)
        self.stores[store] = made
        return made

    def _index(self, index: Index) -> Index:
        terms = tuple((self._atom(atom), c) for atom, c in index.terms)
        return index if terms == index.terms else replace(index, terms=terms)

    def _atom(self, atom: Atom) -> Atom:
        if isinstance(atom, Quotient | Remainder):
            x = self._index(atom.x)
            return atom if x is atom.x else replace(atom, x=x)
        if isinstance(atom, Opaque) and self.new[atom.value] is not atom.value:
            if atom not in self.opaques:
                self.opaques[atom] = replace(atom, value=self.new[atom.value])
            return self.opaques[atom]
        return atom

    def _contraction(self, whole: Contraction) -> Contraction:
        """Its operands and stores are value trees, which need not be statements: the body may be
        laid out for work-groups."""
        stored = [n for s in whole.stores for n in (s.value, s.gate, *s.index.computed()) if n]
        for root in (whole.a, whole.b, whole.result, *stored):
            self._tree(root)
        return replace(
            whole,
            a=self.new[whole.a],
            b=self.new[whole.b],
            result=self.new[whole.result],
            stores=tuple(self.stores.get(s) or self._store(s) for s in whole.stores),
        )

    def _tree(self, root: Instr) -> None:
        stack = [root]
        while stack:
            instr = stack[-1]
            missing = [] if instr in self.new else [n for n in needs(instr) if n not in self.new]
            if missing:
                stack += missing
                continue
            stack.pop()
            if instr not in self.new:
                self._instr(instr)
                self.code.made.clear()


def needs(instr: Instr) -> list[Instr]:
    """What must be computed before ``instr``: its operands, and the values in its index."""
    if instr.op is ops.LOAD:
        return [*instr.args, *instr.attr[1].computed()]
    if instr.op is INDEX:
        return list(instr.attr.computed())
    return list(instr.args)


# ---- scalar code, written with operators -------------------------------------------------------


class _Code:
    """Instructions in the order in which they were made; constants apart, each once."""

    def __init__(self) -> None:
        self.made: list[Instr] = []
        self.constants: dict[tuple[DType, int], Instr] = {}

    def const(self, value: float, dtype: DType) -> _Value:
        bits = to_bits(value, dtype)
        if (dtype, bits) not in self.constants:
            self.constants[dtype, bits] = Instr(ops.CONST, dtype, (), bits)
        return _Value(self, self.constants[dtype, bits])

    def op(self, op: Op, *args: _Value, dtype: DType, attr: DType | None = None) -> _Value:
        instrs = tuple(a.instr for a in args)
        used = frozenset[Var]().union(*(i.vars for i in instrs))
        self.made.append(Instr(op, dtype, instrs, attr, used))
        return _Value(self, self.made[-1])


@dataclass(frozen=True)
class _Value:
    """An instruction that can be computed with; Python numbers take the dtype of the other side."""

    code: _Code
    instr: Instr

    @property
    def dtype(self) -> DType:
        return self.instr.dtype

    def const(self, value: float) -> _Value:
        """A number of this value's dtype; negative integers wrap around for unsigned ones."""
        if self.dtype.kind == "uint":
            value = int(value) % (1 << self.dtype.bits)
        return self.code.const(value, self.dtype)

    def _binary(self, op: Op, other: _Value | float) -> _Value:
        other = other if isinstance(other, _Value) else self.const(other)
        dtype = dtypes.bool_ if op.result == "bool" else self.dtype
        return self.code.op(op, self, other, dtype=dtype)

    def __add__(self, other: _Value | float) -> _Value:
        return self._binary(ops.ADD, other)

    def __sub__(self, other: _Value | float) -> _Value:
        return self + (-other if isinstance(other, _Value) else self.const(-other))

    def __neg__(self) -> _Value:
        return self * -1

    def __mul__(self, other: _Value | float) -> _Value:
        return self._binary(ops.MUL, other)

    def __truediv__(self, other: _Value | float) -> _Value:
        return self._binary(ops.DIV, other)

    def __mod__(self, other: _Value | float) -> _Value:
        return self._binary(ops.MOD, other)

    def __lt__(self, other: _Value | float) -> _Value:
        return self._binary(ops.LT, other)

    def __and__(self, other: _Value | float) -> _Value:
        return self._binary(ops.AND, other)

    def __or__(self, other: _Value | float) -> _Value:
        return self._binary(ops.OR, other)

    def __xor__(self, other: _Value | float) -> _Value:
        return self._binary(ops.XOR, other)

    def __lshift__(self, other: _Value | float) -> _Value:
        return self._binary(ops.SHL, other)

    def __rshift__(self, other: _Value | float) -> _Value:
        return self._binary(ops.SHR, other)

    def ne(self, other: _Value | float) -> _Value:
        return self._binary(ops.NE, other)

    def max(self, other: _Value | float) -> _Value:
        return self._binary(ops.MAX, other)

    def where(self, a: _Value, b: _Value | float) -> _Value:
        """``a`` where this condition holds, else ``b``."""
        b = b if isinstance(b, _Value) else a.const(b)
        return self.code.op(ops.WHERE, self, a, b, dtype=a.dtype)

    def cast(self, dtype: DType) -> _Value:
        if dtype is self.dtype:
            return self
        return self.code.op(ops.CAST, self, dtype=dtype, attr=self.dtype)

    def bits(self, dtype: DType) -> _Value:
        return self.code.op(ops.BITCAST, self, dtype=dtype, attr=self.dtype)


@dataclass(frozen=True)
class _Format:
    """The layout of an IEEE format, and integers as wide."""

    real: DType
    word: DType
    integer: DType
    mantissa: int  # stored bits
    bias: int

    @property
    def width(self) -> int:
        return self.real.bits

    @property
    def sign(self) -> int:
        return 1 << (self.width - 1)

    @property
    def fields(self) -> int:
        """The mask of the exponent field, once shifted down."""
        return 2 * self.bias + 1

    @property
    def fraction(self) -> int:
        """The mask of the stored mantissa."""
        return (1 << self.mantissa) - 1

    def exponent(self, bits: _Value) -> _Value:
        """The exponent field of an unsigned word."""
        return bits >> self.mantissa & self.fields

    def power(self, n: _Value) -> _Value:
        """2 to the n (an int), for n that gives a normal number."""
        return (n + self.bias << self.mantissa).bits(self.real)


SINGLE = _Format(dtypes.float32, dtypes.uint32, dtypes.int32, 23, 127)
DOUBLE = _Format(dtypes.float64, dtypes.uint64, dtypes.int64, 52, 1023)


def _rewrite(instr: Instr, args: list[_Value]) -> _Value:
    """What computes ``instr`` on ``args``; the 16-bit formats are widened and rounded back."""
    form = DOUBLE if instr.dtype is dtypes.float64 else SINGLE
    wide = [a.cast(form.real) for a in args]
    rule = REWRITES.get(instr.op)
    if rule is None:
        return _fmod(form, *wide).cast(instr.dtype)
    if instr.op is ops.SIN:
        return _sin(form, wide[0], instr.attr).cast(instr.dtype)
    return rule(form, wide[0]).cast(instr.dtype)


# ---- the functions -----------------------------------------------------------------------------


def _polynomial(x: _Value, coefficients: list[float]) -> _Value:
    """c0 + c1*x + c2*x*x ..., by Horner's rule."""
    total = x.const(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * x + c
    return total


def _trunc(form: _Format, x: _Value) -> _Value:
    """Clear the bits that are worth less than 1."""
    bits = x.bits(form.word)
    field = form.exponent(bits)
    below_one = field < form.bias
    whole = field.const(form.bias + form.mantissa - 1) < field  # infinity and NaN included
    places = field.const(form.bias + form.mantissa) - field  # after the binary point
    count = (below_one | whole).where(field.const(0), places)
    kept = bits >> count << count
    return below_one.where(bits & form.sign, kept).bits(form.real)


LN2 = math.log(2)
# ln 2 beyond double precision: fdlibm's e_exp.c gives it as a number of 33 bits and the rest.
LN2_DOUBLE = (6.93147180369123816490e-01, 1.90821492927058770002e-10)


def _ln2(form: _Format) -> tuple[float, float]:
    """ln 2 as a short number, whose product with any exponent is exact, and the rest."""
    if form is DOUBLE:
        return LN2_DOUBLE
    short = round(LN2 * 2**15) / 2**15
    return short, LN2 - short


def _exp(form: _Format, x: _Value) -> _Value:
    """x = n*ln2 + r with |r| <= ln2/2; Taylor's series for exp(r); then two factors 2**(n/2), so
    that the last product overflows or loses bits exactly where the result does."""
    high, low = _ln2(form)
    top = (form.bias + 2) * LN2
    bottom = -(form.bias + form.mantissa + 2) * LN2
    x = -(-x.max(bottom)).max(-top)
    magic = 1.5 * 2.0**form.mantissa  # adding it leaves an integer in the low bits
    shifted = x * (1 / LN2) + magic
    n = shifted - magic
    r = (x - n * high) - n * low
    terms = 7 if form is SINGLE else 13
    series = _polynomial(r, [1 / math.factorial(k) for k in range(2, terms + 1)])
    value = r * r * series + r + 1.0
    exponent = n.cast(form.integer)
    half = exponent >> 1
    return value * form.power(half) * form.power(exponent - half)


def _log(form: _Format, x: _Value) -> _Value:
    """x = 2**e * (1 + f) with 1 + f from sqrt(1/2) to sqrt(2); log(1 + f) by s = f / (2 + f), as in
    fdlibm's e_log.c, with the series of atanh."""
    high, low = _ln2(form)
    tiny = x < 2.0 ** (1 - form.bias)
    scaled = tiny.where(x * 2.0 ** (form.mantissa + 1), x)
    root_half = to_bits(math.sqrt(0.5), form.real)
    one = to_bits(1.0, form.real)
    bits = scaled.bits(form.word) + (one - root_half)
    lost = tiny.where(bits.const(form.mantissa + 1), 0)
    exponent = (form.exponent(bits) - lost).bits(form.integer) - form.bias
    f = ((bits & form.fraction) + root_half).bits(form.real) - 1.0
    s = f / (f + 2.0)
    z = s * s
    terms = 4 if form is SINGLE else 10
    rest = z * _polynomial(z, [2 / (2 * k + 3) for k in range(terms)])
    half_square = f * f * 0.5
    e = exponent.cast(form.real)
    small = half_square - (s * (half_square + rest) + e * low)
    value = e * high - (small - f)
    value = x.ne(math.inf).where(value, math.inf)
    value = x.ne(0.0).where(value, -math.inf)
    return ((x < 0.0) | x.ne(x)).where(x.const(math.nan), value)


def _sqrt(form: _Format, x: _Value) -> _Value:
    """x = m * 4**k with 1 <= m < 4; Heron's rule from half the exponent, then one correction with
    the exact error of the square (Dekker 1971), which leaves little more than half an ulp."""
    tiny = x < 2.0 ** (1 - form.bias)
    shift = form.mantissa + 1 & ~1
    bits = tiny.where(x * 2.0**shift, x).bits(form.word)
    exponent = form.exponent(bits).bits(form.integer) - form.bias
    k = exponent >> 1
    field = (exponent - k * 2 + form.bias).bits(form.word)
    m = (bits & form.fraction | field << form.mantissa).bits(form.real)
    one = to_bits(1.0, form.real)
    y = ((m.bits(form.word) + one) >> 1).bits(form.real)  # within 6 %
    for _ in range(3 if form is SINGLE else 4):
        y = (y + m / y) * 0.5
    square, error = _exact_square(form, y)
    y = y + ((m - square) - error) / (y * 2.0)
    k = tiny.where(k - shift // 2, k)
    value = y * form.power(k)
    value = (x.ne(0.0) & x.ne(math.inf)).where(value, x)
    return ((x < 0.0) | x.ne(x)).where(x.const(math.nan), value)


def _exact_square(form: _Format, y: _Value) -> tuple[_Value, _Value]:
    """The rounded square, and what it lacks: y is cut into halves whose products are exact."""
    mask = -1 << (form.mantissa + 2) // 2
    high = (y.bits(form.word) & mask).bits(form.real)
    low = y - high
    square = y * y
    return square, ((high * high - square) + high * low * 2.0) + low * low


@cache
def _two_over_pi(words: int, width: int) -> list[int]:
    """The first binary digits of 2/pi, most significant word first; pi by Machin's formula."""
    digits = words * width + 64

    def arctan_of_inverse(n: int) -> int:
        total, power, k = 0, (1 << digits) // n, 1
        while power:
            total += power // k if k % 4 == 1 else -(power // k)
            power //= n * n
            k += 2
        return total

    pi = 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))
    value = (1 << (2 * digits + 1)) // pi >> (digits - words * width)
    return [value >> (width * k) & (1 << width) - 1 for k in reversed(range(words))]


def _wide_product(a: _Value, b: _Value) -> tuple[_Value, _Value]:
    """The upper and the lower word of a product of two unsigned words, by halves."""
    half = a.dtype.bits // 2
    mask = (1 << half) - 1
    a1, a0, b1, b0 = a >> half, a & mask, b >> half, b & mask
    low, high = a0 * b0, a1 * b1
    cross = a1 * b0 + (low >> half)
    cross_low = a0 * b1 + (cross & mask)
    return high + (cross >> half) + (cross_low >> half), a * b


def _quadrant(form: _Format, size: _Value) -> tuple[_Value, _Value]:
    """For size >= 1/2: the multiple of pi/2 next to it (its two low bits, unsigned), and the rest.

    Payne and Hanek, "Radian reduction for trigonometric functions" (1983): only three words of
    2/pi matter; products of the mantissa with digits before them are whole turns, and those after
    them are too small. The product is a fixed-point number of two words, two bits before the point.
    """
    width, bits = form.width, size.bits(form.word)
    leading = bits & form.fraction | 1 << form.mantissa
    mantissa = leading << (width - 1 - form.mantissa)
    # size = mantissa * 2**(field - bias - width + 1). Two words of zeros stand before the digits.
    start = form.exponent(bits) + (width - 1 - form.bias)
    digits = [0, 0, *_two_over_pi(form.bias // width + 4, width)]
    word, offset = start >> width.bit_length() - 1, start & width - 1
    last = (form.bias + width - 1) // width
    chosen = []
    for k in range(4):
        value = start.const(digits[k])
        for first in range(1, last + 1):
            value = word.ne(first).where(value, digits[first + k])
        chosen.append(value)
    inside = offset.ne(0)
    rest = inside.where(offset.const(width) - offset, 1)
    w0, w1, w2 = (a << offset | inside.where(b >> rest, 0) for a, b in pairwise(chosen))
    high1, low1 = _wide_product(mantissa, w1)
    high2, _ = _wide_product(mantissa, w2)
    low = low1 + high2
    high = mantissa * w0 + high1 + (low < low1).cast(form.word)
    quadrant = (high + (1 << width - 3)) >> width - 2
    signed = (high - (quadrant << width - 2)).bits(form.integer)
    upper = signed.cast(form.real)
    lower = (signed - upper.cast(form.integer)).cast(form.real)
    turns = upper + (lower + low.cast(form.real) * 2.0**-width)
    return quadrant, turns * (math.pi / 2 * 2.0 ** (2 - width))


def _sin(form: _Format, x: _Value, quarter: int) -> _Value:
    """sin(q*pi/2 + t) is sin or cos of t, or minus that; |t| <= pi/4, by Taylor's series."""
    bits = x.bits(form.word)
    size = (bits & form.sign - 1).bits(form.real)
    near = size < 0.5
    quadrant, rest = _quadrant(form, size)
    quadrant, rest = near.where(quadrant.const(0), quadrant), near.where(size, rest)
    negative = (bits >> form.width - 1).ne(0)
    quadrant = negative.where(-quadrant, quadrant) + quarter
    t = negative.where(-rest, rest)
    z = t * t
    terms = 5 if form is SINGLE else 9
    sines = [(-1) ** k / math.factorial(2 * k + 1) for k in range(1, terms)]
    cosines = [(-1) ** k / math.factorial(2 * k) for k in range(2, terms + 1)]
    sine = (near & (size < 2.0**-30)).where(t, t * z * _polynomial(z, sines) + t)  # keeps -0.0
    half = z * 0.5
    about = -half + 1.0
    cosine = about + (((-about + 1.0) - half) + z * z * _polynomial(z, cosines))
    value = (quadrant & 1).ne(0).where(cosine, sine)
    value = (quadrant & 2).ne(0).where(-value, value)
    finite = form.exponent(bits) < form.fields
    return finite.where(value, math.nan)


def _fmod(form: _Format, a: _Value, b: _Value) -> _Value:
    """Long division of the mantissas in integers: as many digits at a time as a word has room for.

    a = ma * 2**ea and b = mb * 2**eb give the remainder of ma * 2**(ea - eb) by mb, times 2**eb.
    """
    signless = form.sign - 1
    wa, wb = a.bits(form.word) & signless, b.bits(form.word) & signless
    (ma, ea), (mb, eb) = _parts(form, wa), _parts(form, wb)
    larger = eb < ea
    digits = larger.where(ea - eb, 0)
    divisor = mb.ne(0).where(mb, 1)
    step = form.width - form.mantissa - 1
    rest = ma % divisor
    for _ in range(-(-2 * form.bias // step)):
        enough = digits.const(step) < digits
        now = enough.where(digits.const(step), digits)
        rest = (rest << now) % divisor
        digits = digits - now
    # rest * 2**(eb - bias - mantissa) is exact, but the power may be too small for one factor.
    exponent = eb.bits(form.integer) - form.bias - form.mantissa
    lowest = 1 - form.bias
    first = exponent.max(lowest)
    size = rest.cast(form.real) * form.power(first) * form.power(exponent - first)
    size = (ea < eb).where(a, size)
    signed = size.bits(form.word) & signless | a.bits(form.word) & form.sign
    infinite = form.fields << form.mantissa
    defined = (wa < infinite) & (wb < infinite + 1) & wb.ne(0)
    return defined.where(signed.bits(form.real), math.nan)


def _parts(form: _Format, word: _Value) -> tuple[_Value, _Value]:
    """Mantissa with its leading bit, and exponent field; subnormals are of exponent 1 without."""
    field = form.exponent(word)
    normal = field.ne(0)
    fraction = word & form.fraction
    return normal.where(fraction | 1 << form.mantissa, fraction), normal.where(field, 1)


# By op, what computes it in a format. sin also takes its quarter, mod two operands.
REWRITES: dict[Op, Callable[..., _Value]] = {
    ops.EXP: _exp,
    ops.LOG: _log,
    ops.SIN: _sin,
    ops.SQRT: _sqrt,
    ops.TRUNC: _trunc,
}
