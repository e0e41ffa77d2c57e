"""Methods that work element by element, and Python's operators; shapes change by broadcasting only.

Promotion is PyTorch's. Functions whose digits need care live in :mod:`coregrad.api.special`.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from coregrad import dtypes
from coregrad.api import special
from coregrad.api.base import TensorBase, broadcast, expand, promote, require_tensor
from coregrad.api.casting import Casting
from coregrad.api.composed import composed
from coregrad.errors import DTypeError, ShapeError
from coregrad.ir import build
from coregrad.ir.graph import Node

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T", bound=TensorBase)
P = ParamSpec("P")
Make = Callable[[Node, Node], Node]
OPERANDS = (TensorBase, int, float, np.ndarray, np.generic)


# ---- what two nodes of one shape and dtype make --------------------------------------------------


def _add(a: Node, b: Node) -> Node:
    return build.or_(a, b) if a.dtype is dtypes.bool_ else build.add(a, b)


def _mul(a: Node, b: Node) -> Node:
    return build.and_(a, b) if a.dtype is dtypes.bool_ else build.mul(a, b)


def _sub(a: Node, b: Node) -> Node:
    if a.dtype is dtypes.bool_:
        raise DTypeError("sub: bool tensors have no difference; use ^ or logical_xor")
    return build.sub(a, b)


def _true_div(a: Node, b: Node) -> Node:
    return build.div(special.floating(a), special.floating(b))


def _floor_div(a: Node, b: Node) -> Node:
    return special.floor_divide(a, b)


def _trunc_div(a: Node, b: Node) -> Node:
    return build.trunc(build.div(a, b)) if a.dtype.is_float else build.idiv(a, b)


def _maximum(a: Node, b: Node) -> Node:
    return build.or_(a, b) if a.dtype is dtypes.bool_ else build.maximum(a, b)


def _minimum(a: Node, b: Node) -> Node:
    return build.and_(a, b) if a.dtype is dtypes.bool_ else build.minimum(a, b)


def _gt(a: Node, b: Node) -> Node:
    return build.lt(b, a)


def _ge(a: Node, b: Node) -> Node:
    return build.le(b, a)


COMPARISONS: dict[str, tuple[Make, Callable[[Any, Any], bool]]] = {
    "eq": (build.eq, operator.eq),
    "ne": (build.ne, operator.ne),
    "lt": (build.lt, operator.lt),
    "le": (build.le, operator.le),
    "gt": (_gt, operator.gt),
    "ge": (_ge, operator.ge),
}


def _operator(name: str, make: Make, swapped: bool = False) -> Callable[[T, Any], T]:
    """Python's operator ``name``; other types get their chance to answer."""

    def method(self: T, other: Any) -> T:
        if not isinstance(other, OPERANDS):
            return NotImplemented  # type: ignore[no-any-return]
        return self._binary(name, make, other, swapped)

    return method


def _comparison(name: str) -> Callable[[T, Any], T]:
    """Python's comparison ``name``."""

    def method(self: T, other: Any) -> T:
        if not isinstance(other, OPERANDS):
            return NotImplemented  # type: ignore[no-any-return]
        return _compare(self, name, other)

    return method


def _compare(x: T, name: str, other: Any) -> T:
    """A comparison. A Python int outside the dtype is compared as the number that it is."""
    make, python = COMPARISONS[name]
    dtype = x._node.dtype
    whole = not dtype.is_float and isinstance(other, (int, np.integer))
    if whole and not dtype.min <= other <= dtype.max:
        answer = python(0, int(other))  # every value of the dtype lies on 0's side of it
        return x._with(build.const(answer, dtypes.bool_, x.shape), False)
    return x._binary(name, make, other)


def _in_place(name: str) -> Callable[[T, Any], T]:
    """Python's in-place operator: gives the name on the left a new value."""

    def method(self: T, other: Any) -> T:
        if not isinstance(other, OPERANDS):
            return NotImplemented  # type: ignore[no-any-return]
        self._is_data = False  # Python binds the result to the name or attribute on the left
        result: T = getattr(self, name)(other)
        return result

    return method


def _rounded_once(method: Callable[Concatenate[T, P], T]) -> Callable[Concatenate[T, P], T]:
    """For functions made of several operations: those of 16-bit floats run in float32, so that
    only the result is rounded."""

    @functools.wraps(method)
    def widened(self: T, /, *args: P.args, **kwargs: P.kwargs) -> T:
        dtype = self._node.dtype
        if not dtype.is_float or dtype.bits >= 32:
            return method(self, *args, **kwargs)
        wide = self._make(build.cast(self.node, dtypes.float32))
        result = method(wide, *args, **kwargs)
        return result._make(build.cast(result.node, dtype))

    return widened


def _tensors(*values: Any) -> list[TensorBase]:
    return [v for v in values if isinstance(v, TensorBase)]


class Elementwise(Casting):
    """Arithmetic, comparisons, logic, functions of one number, activations."""

    # ---- arithmetic --------------------------------------------------------------------------

    def add(self, other: Any, *, alpha: float = 1) -> Self:
        """``self + alpha * other``, broadcast and promoted.

        >>> Tensor([1, 2]).add(Tensor([[10], [20]])).tolist()
        [[11, 12], [21, 22]]
        """
        return self._binary("add", _add, _scaled(other, alpha))

    def sub(self, other: Any, *, alpha: float = 1) -> Self:
        """``self - alpha * other``, broadcast and promoted.

        >>> Tensor([1.5, 2.0]).sub(1).tolist()
        [0.5, 1.0]
        """
        return self._binary("sub", _sub, _scaled(other, alpha))

    def mul(self, other: Any) -> Self:
        """``self * other``, broadcast and promoted. Integers wrap.

        >>> Tensor([1, 2]).mul(2.5).tolist()
        [2.5, 5.0]
        """
        return self._binary("mul", _mul, other)

    def div(self, other: Any, *, rounding_mode: str | None = None) -> Self:
        """``self / other``; integers become float32 unless ``rounding_mode`` is "floor" or "trunc".

        An integer divided by 0 with rounding is 0.

        >>> Tensor([7, -7]).div(2).tolist()
        [3.5, -3.5]
        >>> Tensor([7, -7]).div(2, rounding_mode="trunc").tolist()
        [3, -3]
        """
        modes: dict[str | None, Make] = {None: _true_div, "floor": _floor_div, "trunc": _trunc_div}
        if rounding_mode not in modes:
            raise ValueError(f"div: rounding_mode {rounding_mode!r}; use None, 'floor' or 'trunc'")
        return self._binary("div", modes[rounding_mode], other)

    def floor_divide(self, other: Any) -> Self:
        """``self // other``, rounded down as Python does; 0 where an integer is divided by 0.

        >>> Tensor([7, -7]).floor_divide(2).tolist()
        [3, -4]
        """
        return self._binary("floor_divide", _floor_div, other)

    def remainder(self, other: Any) -> Self:
        """``self % other`` with the sign of ``other``; 0 where an integer is divided by 0.

        >>> Tensor([7, -7]).remainder(4).tolist()
        [3, 1]
        """
        return self._binary("remainder", special.remainder, other)

    def fmod(self, other: Any) -> Self:
        """The remainder with the sign of ``self``, C's ``fmod``.

        >>> Tensor([7.5, -7.5]).fmod(2).tolist()
        [1.5, -1.5]
        """
        return self._binary("fmod", build.mod, other)

    def pow(self, exponent: Any) -> Self:
        """``self ** exponent``: exact for small integer exponents, C's rules for special cases.

        Integers wrap. Raises DTypeError for an integer tensor with a negative Python exponent.

        >>> Tensor([2.0, 3.0]).pow(3).tolist()
        [8.0, 27.0]
        """
        if isinstance(exponent, (int, float)) and not isinstance(exponent, bool):
            return self._power(exponent)
        return self._binary("pow", special.power, exponent)

    def _power(self, exponent: float) -> Self:
        node = self.node
        if node.dtype is dtypes.bool_ or (not node.dtype.is_float and isinstance(exponent, float)):
            return self._binary("pow", special.power, exponent)
        return self._with(special.constant_power(node, exponent), self._requires_grad)

    def __pow__(self, other: Any) -> Self:
        return self.pow(other) if isinstance(other, OPERANDS) else NotImplemented

    def __divmod__(self, other: Any) -> tuple[Self, Self]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Self, Self]:
        return other // self, other % self

    def __neg__(self) -> Self:
        return self.neg()

    def __pos__(self) -> Self:
        return self

    def __abs__(self) -> Self:
        return self.abs()

    def __invert__(self) -> Self:
        return self.bitwise_not()

    # fmt: off
    __add__ = _operator("add", _add)
    __radd__ = _operator("add", _add, swapped=True)
    __sub__ = _operator("sub", _sub)
    __rsub__ = _operator("sub", _sub, swapped=True)
    __mul__ = _operator("mul", _mul)
    __rmul__ = _operator("mul", _mul, swapped=True)
    __truediv__ = _operator("div", _true_div)
    __rtruediv__ = _operator("div", _true_div, swapped=True)
    __floordiv__ = _operator("floor_divide", _floor_div)
    __rfloordiv__ = _operator("floor_divide", _floor_div, swapped=True)
    __mod__ = _operator("remainder", special.remainder)
    __rmod__ = _operator("remainder", special.remainder, swapped=True)
    __rpow__ = _operator("pow", special.power, swapped=True)
    __and__ = _operator("bitwise_and", build.and_)
    __rand__ = _operator("bitwise_and", build.and_, swapped=True)
    __or__ = _operator("bitwise_or", build.or_)
    __ror__ = _operator("bitwise_or", build.or_, swapped=True)
    __xor__ = _operator("bitwise_xor", build.xor)
    __rxor__ = _operator("bitwise_xor", build.xor, swapped=True)
    __lshift__ = _operator("bitwise_left_shift", build.shl)
    __rlshift__ = _operator("bitwise_left_shift", build.shl, swapped=True)
    __rshift__ = _operator("bitwise_right_shift", build.shr)
    __rrshift__ = _operator("bitwise_right_shift", build.shr, swapped=True)
    __lt__ = _comparison("lt")
    __le__ = _comparison("le")
    __gt__ = _comparison("gt")
    __ge__ = _comparison("ge")
    __eq__ = _comparison("eq")  # type: ignore[assignment]
    __ne__ = _comparison("ne")  # type: ignore[assignment]
    __hash__ = TensorBase.__hash__
    __iadd__ = _in_place("add_")
    __isub__ = _in_place("sub_")
    __imul__ = _in_place("mul_")
    __itruediv__ = _in_place("div_")
    __ifloordiv__ = _in_place("floor_divide_")
    __imod__ = _in_place("remainder_")
    __ipow__ = _in_place("pow_")
    # fmt: on

    def neg(self) -> Self:
        """``-self``.

        >>> Tensor([1, -2]).neg().tolist()
        [-1, 2]
        """
        if self.dtype is dtypes.bool_:
            raise DTypeError("neg: bool tensors have no negative; use ~ or logical_not")
        return self._make(build.neg(self.node))

    # ---- comparisons and logic ---------------------------------------------------------------

    def eq(self, other: Any) -> Self:
        """``self == other`` as bools; False for NaN.

        >>> Tensor([1, 2]).eq(2).tolist()
        [False, True]
        """
        return _compare(self, "eq", other)

    def ne(self, other: Any) -> Self:
        """``self != other`` as bools; True for NaN.

        >>> Tensor([1, 2]).ne(2).tolist()
        [True, False]
        """
        return _compare(self, "ne", other)

    def lt(self, other: Any) -> Self:
        """``self < other`` as bools. A Python int is compared as the number it is.

        >>> Tensor([0, 255], dtype="uint8").lt(256).tolist()
        [True, True]
        """
        return _compare(self, "lt", other)

    def le(self, other: Any) -> Self:
        """``self <= other`` as bools.

        >>> Tensor([1, 2, 3]).le(2).tolist()
        [True, True, False]
        """
        return _compare(self, "le", other)

    def gt(self, other: Any) -> Self:
        """``self > other`` as bools.

        >>> Tensor([1, 2, 3]).gt(2).tolist()
        [False, False, True]
        """
        return _compare(self, "gt", other)

    def ge(self, other: Any) -> Self:
        """``self >= other`` as bools.

        >>> Tensor([1, 2, 3]).ge(2).tolist()
        [False, True, True]
        """
        return _compare(self, "ge", other)

    def logical_not(self) -> Self:
        """True where an element is zero.

        >>> Tensor([0, 2]).logical_not().tolist()
        [True, False]
        """
        return self._make(build.invert(build.cast(self.node, dtypes.bool_)))

    def logical_and(self, other: Any) -> Self:
        """True where both are not zero.

        >>> Tensor([0, 1, 2]).logical_and(Tensor([1, 0, 3])).tolist()
        [False, False, True]
        """
        return self._logical("logical_and", build.and_, other)

    def logical_or(self, other: Any) -> Self:
        """True where one is not zero.

        >>> Tensor([0, 1, 0]).logical_or(Tensor([0, 0, 3])).tolist()
        [False, True, True]
        """
        return self._logical("logical_or", build.or_, other)

    def logical_xor(self, other: Any) -> Self:
        """True where exactly one is not zero.

        >>> Tensor([0, 1, 2]).logical_xor(Tensor([0, 0, 3])).tolist()
        [False, True, False]
        """
        return self._logical("logical_xor", build.xor, other)

    def _logical(self, name: str, make: Make, other: Any) -> Self:
        right = build.cast(self._like(name, other).node, dtypes.bool_)
        a, b = broadcast(name, build.cast(self.node, dtypes.bool_), right)
        return self._with(make(a, b), False)

    def bitwise_not(self) -> Self:
        """Every bit flipped; logical not of bools.

        >>> Tensor([0, 5]).bitwise_not().tolist()
        [-1, -6]
        """
        return self._make(build.invert(self.node))

    def bitwise_and(self, other: Any) -> Self:
        """``self & other`` of integers or bools.

        >>> Tensor([6, 5]).bitwise_and(3).tolist()
        [2, 1]
        """
        return self._binary("bitwise_and", build.and_, other)

    def bitwise_or(self, other: Any) -> Self:
        """``self | other`` of integers or bools.

        >>> Tensor([6, 5]).bitwise_or(1).tolist()
        [7, 5]
        """
        return self._binary("bitwise_or", build.or_, other)

    def bitwise_xor(self, other: Any) -> Self:
        """``self ^ other`` of integers or bools.

        >>> Tensor([6, 5]).bitwise_xor(1).tolist()
        [7, 4]
        """
        return self._binary("bitwise_xor", build.xor, other)

    def bitwise_left_shift(self, other: Any) -> Self:
        """``self << other``; 0 for counts of the dtype's width or more.

        >>> Tensor([1, 3]).bitwise_left_shift(2).tolist()
        [4, 12]
        """
        return self._binary("bitwise_left_shift", build.shl, other)

    def bitwise_right_shift(self, other: Any) -> Self:
        """``self >> other``; signed integers keep their sign.

        >>> Tensor([8, -8]).bitwise_right_shift(2).tolist()
        [2, -2]
        """
        return self._binary("bitwise_right_shift", build.shr, other)

    def isnan(self) -> Self:
        """True where an element is NaN.

        >>> Tensor([1.0, float("nan")]).isnan().tolist()
        [False, True]
        """
        return self._make(build.ne(self.node, self.node))

    def isinf(self) -> Self:
        """True where an element is infinite.

        >>> Tensor([1.0, float("-inf")]).isinf().tolist()
        [False, True]
        """
        return self._make(special.isinf(self.node))

    def isfinite(self) -> Self:
        """True where an element is neither infinite nor NaN.

        >>> Tensor([1.0, float("inf"), float("nan")]).isfinite().tolist()
        [True, False, False]
        """
        return self._make(special.isfinite(self.node))

    def isclose(
        self, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> Self:
        """True where ``|self - other| <= atol + rtol * |other|``.

        >>> Tensor([1.0, 2.0]).isclose(Tensor([1.000001, 2.1])).tolist()
        [True, False]
        """
        right = self._make(self._like("isclose", other).node)
        near = ((self - right).abs() <= atol + rtol * right.abs()) & right.isfinite()
        same = near | (self == right)
        return same | (self.isnan() & right.isnan()) if equal_nan else same

    # ---- functions of one number -------------------------------------------------------------

    def _float_unary(self, function: Callable[[Node], Node]) -> Self:
        """A function of floats; integers and bools become float32 first."""
        return self._make(function(special.floating(self.node)))

    def exp(self) -> Self:
        """e to the power of each element.

        >>> Tensor([0.0, 1.0]).exp().round(decimals=3).tolist()
        [1.0, 2.7179999351501465]
        """
        return self._float_unary(build.exp)

    @composed
    def exp2(self) -> Self:
        """2 to the power of each element; exact for integers.

        >>> Tensor([0.0, 3.0, -1.0]).exp2().tolist()
        [1.0, 8.0, 0.5]
        """
        return self._float_unary(special.exp2)

    @composed
    def expm1(self) -> Self:
        """``exp(x) - 1``, accurate near 0.

        >>> Tensor([0.0, 1e-10]).expm1().tolist() == Tensor([0.0, 1e-10]).tolist()
        True
        """
        return self._float_unary(special.expm1)

    def log(self) -> Self:
        """Natural logarithm; -inf at 0, NaN below.

        >>> Tensor([1.0, 0.0]).log().tolist()
        [0.0, -inf]
        """
        return self._float_unary(build.log)

    @composed
    def log2(self) -> Self:
        """Logarithm to base 2; exact for powers of two.

        >>> Tensor([8.0, 0.5]).log2().tolist()
        [3.0, -1.0]
        """
        return self._float_unary(special.log2)

    @composed
    def log10(self) -> Self:
        """Logarithm to base 10.

        >>> Tensor([1.0, 100.0]).log10().tolist()
        [0.0, 2.0]
        """
        return self._float_unary(special.log10)

    @composed
    def log1p(self) -> Self:
        """``log(1 + x)``, accurate near 0.

        >>> Tensor([0.0, -1.0]).log1p().tolist()
        [0.0, -inf]
        """
        return self._float_unary(special.log1p)

    def sqrt(self) -> Self:
        """Square root; NaN below 0.

        >>> Tensor([4.0, 9.0]).sqrt().tolist()
        [2.0, 3.0]
        """
        return self._float_unary(build.sqrt)

    def rsqrt(self) -> Self:
        """``1 / sqrt(x)``.

        >>> Tensor([4.0]).rsqrt().tolist()
        [0.5]
        """
        return self._float_unary(special.rsqrt)

    def reciprocal(self) -> Self:
        """``1 / x``.

        >>> Tensor([4, 2]).reciprocal().tolist()
        [0.25, 0.5]
        """
        return self._float_unary(special.reciprocal)

    def square(self) -> Self:
        """``x * x``.

        >>> Tensor([3, -2]).square().tolist()
        [9, 4]
        """
        return self._make(_mul(self.node, self.node))

    def sin(self) -> Self:
        """Sine of radians.

        >>> Tensor([0.0]).sin().tolist()
        [0.0]
        """
        return self._float_unary(build.sin)

    def cos(self) -> Self:
        """Cosine of radians.

        >>> Tensor([0.0]).cos().tolist()
        [1.0]
        """
        return self._float_unary(special.cos)

    @composed
    def tan(self) -> Self:
        """Tangent of radians.

        >>> Tensor([0.0]).tan().tolist()
        [0.0]
        """
        return self._float_unary(special.tan)

    @composed
    def asin(self) -> Self:
        """The angle in [-pi/2, pi/2] with this sine; NaN outside [-1, 1].

        >>> Tensor([0.0, 2.0]).asin().tolist()
        [0.0, nan]
        """
        return self._float_unary(special.asin)

    @composed
    def acos(self) -> Self:
        """The angle in [0, pi] with this cosine; NaN outside [-1, 1].

        >>> Tensor([1.0]).acos().tolist()
        [0.0]
        """
        return self._float_unary(special.acos)

    @composed
    def atan(self) -> Self:
        """The angle in [-pi/2, pi/2] with this tangent.

        >>> Tensor([0.0]).atan().tolist()
        [0.0]
        """
        return self._float_unary(special.atan)

    @composed
    def sinh(self) -> Self:
        """Hyperbolic sine, accurate near 0.

        >>> Tensor([0.0]).sinh().tolist()
        [0.0]
        """
        return self._float_unary(special.sinh)

    @composed
    def cosh(self) -> Self:
        """Hyperbolic cosine.

        >>> Tensor([0.0]).cosh().tolist()
        [1.0]
        """
        return self._float_unary(special.cosh)

    @composed
    def tanh(self) -> Self:
        """Hyperbolic tangent, accurate near 0.

        >>> Tensor([0.0, 100.0]).tanh().tolist()
        [0.0, 1.0]
        """
        return self._float_unary(special.tanh)

    def asinh(self) -> Self:
        """The number with this hyperbolic sine.

        >>> Tensor([0.0]).asinh().tolist()
        [0.0]
        """
        return self._float_unary(special.asinh)

    def acosh(self) -> Self:
        """The number >= 0 with this hyperbolic cosine; NaN below 1.

        >>> Tensor([1.0]).acosh().tolist()
        [0.0]
        """
        return self._float_unary(special.acosh)

    def atanh(self) -> Self:
        """The number with this hyperbolic tangent; NaN outside [-1, 1].

        >>> Tensor([0.0, 1.0]).atanh().tolist()
        [0.0, inf]
        """
        return self._float_unary(special.atanh)

    @composed
    def sigmoid(self) -> Self:
        """``1 / (1 + exp(-x))``.

        >>> Tensor([0.0, -200.0]).sigmoid().tolist()
        [0.5, 0.0]
        """
        return self._float_unary(special.sigmoid)

    @composed
    def erf(self) -> Self:
        """The error function.

        >>> Tensor([0.0, 9.0]).erf().tolist()
        [0.0, 1.0]
        """
        return self._float_unary(special.erf)

    def erfc(self) -> Self:
        """``1 - erf(x)``, accurate in its tail.

        >>> Tensor([0.0, -9.0]).erfc().tolist()
        [1.0, 2.0]
        """
        return self._float_unary(special.erfc)

    @composed
    def abs(self) -> Self:
        """Magnitude; the gradient at 0 is 0.

        >>> Tensor([-1.5, 2.0]).abs().tolist()
        [1.5, 2.0]
        """
        return self._make(special.absolute(self.node))

    def sign(self) -> Self:
        """-1, 0 or 1; NaN stays NaN.

        >>> Tensor([-3.0, 0.0, 2.0]).sign().tolist()
        [-1.0, 0.0, 1.0]
        """
        return self._make(special.sign(self.node))

    def copysign(self, other: Any) -> Self:
        """The magnitude of ``self`` with the sign of ``other``.

        >>> Tensor([1.0, -2.0]).copysign(-1.0).tolist()
        [-1.0, -2.0]
        """
        return self._binary("copysign", special.copysign, other)

    def floor(self) -> Self:
        """The largest integer that is not above.

        >>> Tensor([1.5, -1.5]).floor().tolist()
        [1.0, -2.0]
        """
        return self._make(special.floor(self.node))

    def ceil(self) -> Self:
        """The smallest integer that is not below.

        >>> Tensor([1.5, -1.5]).ceil().tolist()
        [2.0, -1.0]
        """
        return self._make(special.ceil(self.node))

    def trunc(self) -> Self:
        """Rounded towards zero.

        >>> Tensor([1.5, -1.5]).trunc().tolist()
        [1.0, -1.0]
        """
        return self._make(special.trunc(self.node))

    def round(self, decimals: int = 0) -> Self:
        """Rounded to the nearest integer (or decimal place), halves to even.

        >>> Tensor([0.5, 1.5, 2.5]).round().tolist()
        [0.0, 2.0, 2.0]
        """
        if decimals == 0 or not self.dtype.is_float:
            return self._make(special.round_half_even(self.node))
        scale = 10.0 ** abs(decimals)
        if decimals > 0:
            return (self * scale).round() / scale
        return (self / scale).round() * scale

    # ---- two or more operands ----------------------------------------------------------------

    def maximum(self, other: Any) -> Self:
        """The larger of each pair; NaN if either is NaN.

        >>> Tensor([1, 5]).maximum(3).tolist()
        [3, 5]
        """
        return self._binary("maximum", _maximum, other)

    def minimum(self, other: Any) -> Self:
        """The smaller of each pair; NaN if either is NaN.

        >>> Tensor([1, 5]).minimum(3).tolist()
        [1, 3]
        """
        return self._binary("minimum", _minimum, other)

    def clamp(self, min: Any = None, max: Any = None) -> Self:
        """Moved into [min, max]; NaN stays, the gradient passes where nothing was moved.

        >>> Tensor([-1.0, 0.5, 7.0]).clamp(0, 1).tolist()
        [0.0, 0.5, 1.0]
        """
        if min is None and max is None:
            raise ValueError("clamp: give min, max or both")
        x = self
        if min is not None:
            x = x._binary("clamp", special.at_least, min)
        if max is not None:
            x = x._binary("clamp", special.at_most, max)
        return x

    clip = clamp

    def lerp(self, end: Any, weight: Any) -> Self:
        """``self + weight * (end - self)``, exactly ``end`` at weight 1.

        >>> Tensor([0.0, 10.0]).lerp(Tensor([10.0, 20.0]), 0.5).tolist()
        [5.0, 15.0]
        """
        right = self._make(self._like("lerp", end).node, *_tensors(end))
        part = self._make(self._like("lerp", weight).node, *_tensors(weight))
        step = right - self
        near_start, near_end = self + step * part, right - step * (1 - part)
        if isinstance(weight, TensorBase):
            return near_start.where(part.abs() < 0.5, near_end)
        return near_start if abs(weight) < 0.5 else near_end

    def addcmul(self, tensor1: Any, tensor2: Any, *, value: float = 1) -> Self:
        """``self + value * tensor1 * tensor2``.

        >>> Tensor([1.0]).addcmul(Tensor([2.0]), Tensor([3.0]), value=10).tolist()
        [61.0]
        """
        factor: Any = self._like("addcmul", tensor1)
        return self.add(factor.mul(tensor2), alpha=value)

    def addcdiv(self, tensor1: Any, tensor2: Any, *, value: float = 1) -> Self:
        """``self + value * tensor1 / tensor2``.

        >>> Tensor([1.0]).addcdiv(Tensor([3.0]), Tensor([2.0]), value=10).tolist()
        [16.0]
        """
        dividend: Any = self._like("addcdiv", tensor1)
        return self.add(dividend.div(tensor2), alpha=value)

    def where(self, condition: Any, other: Any) -> Self:
        """``self`` where the condition holds, else ``other``: PyTorch's argument order.

        Raises DTypeError unless the condition is bool.

        >>> Tensor([1, 2]).where(Tensor([True, False]), 0).tolist()
        [1, 0]
        """
        require_tensor("where", self, "coregrad.where(condition, a, b)")
        return self._select("where", condition, self, other)

    def masked_fill(self, mask: Any, value: Any) -> Self:
        """``value`` where the mask holds, else ``self``.

        >>> Tensor([1, 2]).masked_fill(Tensor([True, False]), 0).tolist()
        [0, 2]
        """
        given = self._like("masked_fill", value)
        chosen = self._make(build.cast(given.node, self.dtype), *_tensors(value))
        return self._select("masked_fill", mask, chosen, self)

    def _select(self, name: str, condition: Any, a: TensorBase, b: Any) -> Self:
        mask = self._like(name, condition)
        if mask.dtype is not dtypes.bool_:
            raise DTypeError(
                f"{name}: the condition is {mask.dtype.name}, not bool; compare it with 0 first. "
                "The order is x.where(condition, other) or coregrad.where(condition, x, other)"
            )
        right = a._like(name, b)
        values = promote(a.node, right.node)
        return self._make(build.where(*broadcast(name, mask.node, *values)), a, right)

    def nan_to_num(
        self, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
    ) -> Self:
        """NaN and infinities replaced (by the dtype's largest finite numbers unless given).

        >>> Tensor([float("nan"), float("inf")]).nan_to_num(posinf=9).tolist()
        [0.0, 9.0]
        """
        if not self.dtype.is_float:
            return self
        largest = special.largest(self.dtype)
        x = self.masked_fill(self.isnan(), nan)
        x = x.masked_fill(self.eq(math.inf), largest if posinf is None else posinf)
        return x.masked_fill(self.eq(-math.inf), -largest if neginf is None else neginf)

    def logaddexp(self, other: Any) -> Self:
        """``log(exp(self) + exp(other))`` without overflow.

        >>> Tensor([1000.0]).logaddexp(Tensor([-1000.0])).tolist()
        [1000.0]
        """
        return self._binary("logaddexp", special.logaddexp, other)

    def atan2(self, other: Any) -> Self:
        """The angle of the point (other, self), in [-pi, pi].

        >>> Tensor([0.0]).atan2(Tensor([1.0])).tolist()
        [0.0]
        """
        return self._binary("atan2", special.atan2, other)

    # ---- activations -------------------------------------------------------------------------

    @composed
    def relu(self) -> Self:
        """``max(x, 0)``; NaN stays, the gradient at 0 is 0.

        >>> Tensor([-1.0, 2.0]).relu().tolist()
        [0.0, 2.0]
        """
        return self._make(special.relu(self.node))

    def relu6(self) -> Self:
        """``min(max(x, 0), 6)``.

        >>> Tensor([-1.0, 2.0, 9.0]).relu6().tolist()
        [0.0, 2.0, 6.0]
        """
        return self.hardtanh(0.0, 6.0)

    def hardtanh(self, min_val: float = -1.0, max_val: float = 1.0) -> Self:
        """Moved into [min_val, max_val]; no gradient passes at the ends.

        >>> Tensor([-3.0, 0.5]).hardtanh().tolist()
        [-1.0, 0.5]
        """
        return self._float_unary(lambda x: special.hardtanh(x, min_val, max_val))

    @composed
    def leaky_relu(self, negative_slope: float = 0.01) -> Self:
        """``x`` above 0, else ``negative_slope * x``.

        >>> Tensor([-2.0, 2.0]).leaky_relu(0.5).tolist()
        [-1.0, 2.0]
        """
        return self.where(self > 0, self * negative_slope)

    @composed
    @_rounded_once
    def elu(self, alpha: float = 1.0) -> Self:
        """``x`` above 0, else ``alpha * (exp(x) - 1)``.

        >>> Tensor([2.0, -100.0]).elu().tolist()
        [2.0, -1.0]
        """
        return self.where(self > 0, alpha * self.clamp(max=0).expm1())

    @_rounded_once
    def celu(self, alpha: float = 1.0) -> Self:
        """``x`` above 0, else ``alpha * (exp(x / alpha) - 1)``.

        >>> Tensor([2.0, -100.0]).celu(2.0).tolist()
        [2.0, -2.0]
        """
        return self.where(self > 0, alpha * (self.clamp(max=0) / alpha).expm1())

    @composed
    @_rounded_once
    def selu(self) -> Self:
        """The self-normalising unit (Klambauer et al. 2017).

        >>> Tensor([0.0]).selu().tolist()
        [0.0]
        """
        alpha, scale = 1.6732632423543772, 1.0507009873554805  # section 2 of the paper
        return scale * self.elu(alpha)

    @composed
    def silu(self) -> Self:
        """``x * sigmoid(x)``.

        >>> Tensor([0.0]).silu().tolist()
        [0.0]
        """
        return self._float_unary(special.silu)

    swish = silu

    @composed
    def gelu(self, approximate: str = "none") -> Self:
        """``x * Phi(x)``, Phi the normal distribution; accurate in both tails.

        ``approximate="tanh"`` is the formula of the paper (Hendrycks and Gimpel 2016).

        >>> Tensor([0.0, 100.0]).gelu().tolist()
        [0.0, 100.0]
        """
        if approximate not in ("none", "tanh"):
            raise ValueError(f"gelu: approximate={approximate!r}; use 'none' or 'tanh'")
        return self._float_unary(special.gelu if approximate == "none" else special.gelu_tanh)

    @composed
    def softplus(self, beta: float = 1.0, threshold: float = 20.0) -> Self:
        """``log(1 + exp(beta*x)) / beta``, and x itself where ``beta*x > threshold``.

        >>> Tensor([1000.0, -1000.0]).softplus().tolist()
        [1000.0, 0.0]
        """
        scaled = self if beta == 1 else self * beta
        smooth = scaled._float_unary(special.softplus)
        smooth = smooth if beta == 1 else smooth / beta
        return smooth if threshold >= 20 else self.where(scaled > threshold, smooth)

    @composed
    @_rounded_once
    def mish(self) -> Self:
        """``x * tanh(softplus(x))``.

        >>> Tensor([0.0]).mish().tolist()
        [0.0]
        """
        return self * self.softplus().tanh()

    @composed
    def logsigmoid(self) -> Self:
        """``log(sigmoid(x))`` without overflow.

        >>> Tensor([-1000.0]).logsigmoid().tolist()
        [-1000.0]
        """
        return -((-self).softplus())

    @_rounded_once
    def hardsigmoid(self) -> Self:
        """``relu6(x + 3) / 6``.

        >>> Tensor([0.0, 9.0]).hardsigmoid().tolist()
        [0.5, 1.0]
        """
        return (self + 3).relu6() / 6

    @composed
    @_rounded_once
    def hardswish(self) -> Self:
        """``x * relu6(x + 3) / 6``.

        >>> Tensor([3.0, -4.0]).hardswish().tolist()
        [3.0, -0.0]
        """
        return self * self.hardsigmoid()

    @composed
    @_rounded_once
    def softsign(self) -> Self:
        """``x / (1 + |x|)``.

        >>> Tensor([1.0]).softsign().tolist()
        [0.5]
        """
        return self / (1 + self.abs())

    # ---- in place: a new value for this name -------------------------------------------------

    def _in_place(self, name: str, result: TensorBase, *values: Any) -> Self:
        """Take a result as the new value, cast back within its kind (float, int, bool)."""
        node = result.node
        if node.dtype is not self.dtype:
            widens = node.dtype.is_float and not self.dtype.is_float
            if widens or self.dtype is dtypes.bool_:
                raise DTypeError(
                    f"{name}: the result is {node.dtype.name}, which the {self.dtype.name} tensor "
                    "cannot hold; cast the tensor first, or do not work in place"
                )
            node = build.cast(node, self.dtype)
        return self._update(name, node, *_tensors(*values))

    def add_(self, other: Any, *, alpha: float = 1) -> Self:
        """:meth:`add` in place: gives this name a new value; nothing built earlier changes.

        >>> x = Tensor([1.0, 2.0])
        >>> x.add_(1).tolist()
        [2.0, 3.0]
        """
        return self._in_place("add_", self.add(other, alpha=alpha), other)

    def sub_(self, other: Any, *, alpha: float = 1) -> Self:
        """:meth:`sub` in place.

        >>> Tensor([1.0, 2.0]).sub_(1).tolist()
        [0.0, 1.0]
        """
        return self._in_place("sub_", self.sub(other, alpha=alpha), other)

    def mul_(self, other: Any) -> Self:
        """:meth:`mul` in place.

        >>> Tensor([1.0, 2.0]).mul_(3).tolist()
        [3.0, 6.0]
        """
        return self._in_place("mul_", self.mul(other), other)

    def div_(self, other: Any) -> Self:
        """:meth:`div` in place; DTypeError for an integer tensor.

        >>> Tensor([1.0, 2.0]).div_(2).tolist()
        [0.5, 1.0]
        """
        return self._in_place("div_", self.div(other), other)

    def floor_divide_(self, other: Any) -> Self:
        """:meth:`floor_divide` in place.

        >>> Tensor([7]).floor_divide_(2).tolist()
        [3]
        """
        return self._in_place("floor_divide_", self.floor_divide(other), other)

    def remainder_(self, other: Any) -> Self:
        """:meth:`remainder` in place.

        >>> Tensor([7]).remainder_(4).tolist()
        [3]
        """
        return self._in_place("remainder_", self.remainder(other), other)

    def pow_(self, exponent: Any) -> Self:
        """:meth:`pow` in place.

        >>> Tensor([3.0]).pow_(2).tolist()
        [9.0]
        """
        return self._in_place("pow_", self.pow(exponent), exponent)

    def sqrt_(self) -> Self:
        """:meth:`sqrt` in place; DTypeError for an integer tensor.

        >>> Tensor([9.0]).sqrt_().tolist()
        [3.0]
        """
        return self._in_place("sqrt_", self.sqrt())

    def exp_(self) -> Self:
        """:meth:`exp` in place; DTypeError for an integer tensor.

        >>> Tensor([0.0]).exp_().tolist()
        [1.0]
        """
        return self._in_place("exp_", self.exp())

    def neg_(self) -> Self:
        """:meth:`neg` in place.

        >>> Tensor([1.0]).neg_().tolist()
        [-1.0]
        """
        return self._in_place("neg_", self.neg())

    def clamp_(self, min: Any = None, max: Any = None) -> Self:
        """:meth:`clamp` in place.

        >>> Tensor([3.0]).clamp_(max=2).tolist()
        [2.0]
        """
        return self._in_place("clamp_", self.clamp(min, max), min, max)

    def lerp_(self, end: Any, weight: Any) -> Self:
        """:meth:`lerp` in place.

        >>> Tensor([0.0]).lerp_(Tensor([4.0]), 0.25).tolist()
        [1.0]
        """
        return self._in_place("lerp_", self.lerp(end, weight), end, weight)

    def masked_fill_(self, mask: Any, value: Any) -> Self:
        """:meth:`masked_fill` in place.

        >>> Tensor([1.0, 2.0]).masked_fill_(Tensor([True, False]), 0).tolist()
        [0.0, 2.0]
        """
        return self._in_place("masked_fill_", self.masked_fill(mask, value), value)

    def fill_(self, value: Any) -> Self:
        """Every element becomes ``value``, a number or a 0-d tensor.

        >>> Tensor([1.0, 2.0]).fill_(3).tolist()
        [3.0, 3.0]
        """
        given = self._like("fill_", value)
        if given.shape:
            raise ShapeError(
                f"fill_: the value has shape {given.shape}; give a number or a 0-d tensor, or use "
                "copy_"
            )
        number = build.cast(given.node, self.dtype)
        return self._update("fill_", expand(number, self.shape), *_tensors(value))

    def zero_(self) -> Self:
        """Every element becomes 0.

        >>> Tensor([1.0, 2.0]).zero_().tolist()
        [0.0, 0.0]
        """
        return self._update("zero_", build.const_like(self.node, 0))

    def copy_(self, source: Any) -> Self:
        """Take the values of ``source``, cast to this dtype; the shape must be the same.

        Gradients pass to ``source``, unlike with :meth:`assign`. ShapeError if shapes differ.

        >>> Tensor([1.0, 2.0]).copy_(Tensor([3, 4])).tolist()
        [3.0, 4.0]
        """
        given = source if isinstance(source, TensorBase) else self._given("copy_", source)
        return self._update("copy_", build.cast(given.to(self.device).node, self.dtype),
                            given.to(self.device))  # fmt: skip


def _scaled(other: Any, alpha: float) -> Any:
    return other if alpha == 1 else other * alpha
