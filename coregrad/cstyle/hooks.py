"""The 25 hooks of the contract in the C family; what differs between languages is in `words`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coregrad.cstyle.cast import (
    bitcast,
    cast,
    is_nan,
    packed,
    rounded,
    unpacked,
    widened,
)
from coregrad.cstyle.frame import Frame
from coregrad.cstyle.value import Value, computed
from coregrad.cstyle.words import HALVES, Words
from coregrad.dtypes import DType, bool_, int32, int64, uint32, uint64
from coregrad.hookspecs import Header, hookimpl
from coregrad.ir.kernel import Array, Param


class CStyle:
    """The hooks. A subclass sets ``words``; the functions these lack are hooks that it lacks."""

    style = "render"
    words: Words

    def __init_subclass__(cls) -> None:
        for name, hook in OPTIONAL.items():
            if name in cls.words.functions:
                setattr(cls, f"lower_{name}", hook)

    def begin_kernel(self, header: Header, buffers: Sequence[Any] | None) -> Frame:
        """Start a kernel's text."""
        return Frame(header, self.words)

    # -- memory --------------------------------------------------------------------------------

    @hookimpl
    def lower_load(
        self,
        frame: Frame,
        buffer: Param | Array,
        index: Value,
        stride: int | None,
        gate: Value | None,
        dtype: DType,
        lanes: int,
    ) -> Value:
        text = unpacked(frame.element(buffer.name, index), dtype)
        if gate is not None:  # C computes one side alone
            text = f"{gate} ? {text} : {frame.words.literal(0, dtype)}"
        return frame.value(text, dtype)

    @hookimpl
    def lower_store(
        self,
        frame: Frame,
        buffer: Param | Array,
        index: Value,
        stride: int | None,
        value: Value,
        gate: Value | None,
        dtype: DType,
        lanes: int,
    ) -> None:
        text = f"{frame.element(buffer.name, index)} = {packed(value.text, dtype)};"
        frame.store(text, buffer.space if isinstance(buffer, Array) else "", gate)

    @hookimpl
    def lower_const(self, frame: Frame, value: float, dtype: DType, lanes: int) -> Value:
        if dtype in (int32, int64):
            return frame.integer(int(value))
        return Value(frame.words.literal(value, dtype))

    # -- reductions ----------------------------------------------------------------------------

    @hookimpl
    def lower_reduce(
        self, frame: Frame, kind: str, accumulator: Any, value: Any, dtype: DType, lanes: int
    ) -> Any:
        if kind == "argmax":
            return _argmax(frame, accumulator, value, dtype)
        if kind == "max":
            return _max(frame, accumulator, value, dtype)
        if kind == "mul":
            return _arithmetic(frame, "mul", accumulator, value, dtype)
        factors = frame.factors(value)
        if factors is not None and "fma" in frame.words.functions:
            # The contract's one licence: a product may be fused with the sum that it feeds.
            call = frame.words.call("fma", dtype)
            return frame.value(f"{call}({factors[0]}, {factors[1]}, {accumulator})", dtype)
        return _arithmetic(frame, "add", accumulator, value, dtype)

    # -- conversions ---------------------------------------------------------------------------

    @hookimpl
    def lower_cast(self, frame: Frame, x: Value, source: DType, dtype: DType, lanes: int) -> Value:
        return cast(frame, x, source, dtype)

    @hookimpl
    def lower_bitcast(
        self, frame: Frame, x: Value, source: DType, dtype: DType, lanes: int
    ) -> Value:
        return bitcast(frame, x, source, dtype)

    # -- arithmetic ----------------------------------------------------------------------------

    @hookimpl
    def lower_add(self, frame: Frame, a: Value, b: Value, dtype: DType, lanes: int) -> Value:
        return _arithmetic(frame, "add", a, b, dtype)

    @hookimpl
    def lower_mul(self, frame: Frame, a: Value, b: Value, dtype: DType, lanes: int) -> Value:
        return _arithmetic(frame, "mul", a, b, dtype)

    @hookimpl
    def lower_div(self, frame: Frame, a: Value, b: Value, dtype: DType, lanes: int) -> Value:
        text = f"{a} / {b}"
        if "divide" in frame.words.functions:
            sides = (widened(frame, x, dtype) for x in (a, b))
            text = f"{frame.words.call('divide', dtype)}({', '.join(sides)})"
        return frame.value(rounded(text, dtype), dtype)

    @hookimpl
    def lower_idiv(self, frame: Frame, a: Value, b: Value, dtype: DType, lanes: int) -> Value:
        return _exact(frame, "idiv", "/", a, b, dtype)

    @hookimpl
    def lower_mod(self, frame: Frame, a: Value, b: Value, dtype: DType, lanes: int) -> Value:
        if not dtype.is_float:
            return _exact(frame, "mod", "%", a, b, dtype)
        call = frame.words.call("fmod", dtype)
        a_text, b_text = widened(frame, a, dtype), widened(frame, b, dtype)
        return frame.value(rounded(f"{call}({a_text}, {b_text})", dtype), dtype)

    @hookimpl
    def lower_max(self, frame: Frame, a: Value, b: Value, dtype: DType, lanes: int) -> Value:
        return _max(frame, a, b, dtype)

    # -- comparisons, bits and selection -------------------------------------------------------

    @hookimpl
    def lower_lt(self, frame: Frame, a: Value, b: Value, dtype: DType, lanes: int) -> Value:
        ordered = _unless_nan(frame, a, b, dtype, "!", " && ")
        return frame.value(f"{ordered}{a} < {b}", bool_)

    @hookimpl
    def lower_ne(self, frame: Frame, a: Value, b: Value, dtype: DType, lanes: int) -> Value:
        unordered = _unless_nan(frame, a, b, dtype, "", " || ")
        return frame.value(f"{unordered}{a} != {b}", bool_)

    @hookimpl
    def lower_and(self, frame: Frame, a: Value, b: Value, dtype: DType, lanes: int) -> Value:
        return _exact(frame, "and", "&", a, b, dtype)

    @hookimpl
    def lower_or(self, frame: Frame, a: Value, b: Value, dtype: DType, lanes: int) -> Value:
        return _exact(frame, "or", "|", a, b, dtype)

    @hookimpl
    def lower_xor(self, frame: Frame, a: Value, b: Value, dtype: DType, lanes: int) -> Value:
        return _exact(frame, "xor", "^", a, b, dtype)

    @hookimpl
    def lower_shl(self, frame: Frame, a: Value, b: Value, dtype: DType, lanes: int) -> Value:
        word = _unsigned(frame, a, dtype)
        return frame.value(_signed(frame, f"{word} << {b}", dtype), dtype)

    @hookimpl
    def lower_shr(self, frame: Frame, a: Value, b: Value, dtype: DType, lanes: int) -> Value:
        return _exact(frame, "shr", ">>", a, b, dtype)

    @hookimpl
    def lower_where(
        self, frame: Frame, condition: Value, a: Value, b: Value, dtype: DType, lanes: int
    ) -> Value:
        return _choice(frame, condition.text, "where", a, b, dtype)


# ---- the hooks that a language may lack --------------------------------------------------------


@hookimpl
def lower_exp(self: CStyle, frame: Frame, x: Value, dtype: DType, lanes: int) -> Value:
    return _function(frame, "exp", x, dtype)


@hookimpl
def lower_log(self: CStyle, frame: Frame, x: Value, dtype: DType, lanes: int) -> Value:
    return _function(frame, "log", x, dtype)


@hookimpl
def lower_sin(
    self: CStyle, frame: Frame, x: Value, quarter: int, dtype: DType, lanes: int
) -> Value:
    return _function(frame, "cos" if quarter % 2 else "sin", x, dtype, "-" if quarter >= 2 else "")


@hookimpl
def lower_sqrt(self: CStyle, frame: Frame, x: Value, dtype: DType, lanes: int) -> Value:
    return _function(frame, "sqrt", x, dtype)


@hookimpl
def lower_trunc(self: CStyle, frame: Frame, x: Value, dtype: DType, lanes: int) -> Value:
    return _function(frame, "trunc", x, dtype)


OPTIONAL: dict[str, Callable[..., Value]] = {
    "exp": lower_exp,
    "log": lower_log,
    "sin": lower_sin,
    "sqrt": lower_sqrt,
    "trunc": lower_trunc,
}


def _function(frame: Frame, name: str, x: Value, dtype: DType, sign: str = "") -> Value:
    """A function of the language, for the 16-bit floats in float32."""
    call = f"{sign}{frame.words.call(name, dtype)}({widened(frame, x, dtype)})"
    return frame.value(rounded(call, dtype), dtype)


# ---- what several hooks share ------------------------------------------------------------------


def _arithmetic(frame: Frame, op: str, a: Value, b: Value, dtype: DType) -> Value:
    """A sum or a product. Signed integers are computed in unsigned ones, where C lets them wrap;
    with bounds nothing can overflow."""
    sign = {"add": "+", "mul": "*"}[op]
    if dtype.is_float:
        text = rounded(f"{a} {sign} {b}", dtype)
        if op == "mul" and dtype not in HALVES:
            return frame.product(a, b, text, dtype)
        return frame.value(text, dtype)
    bounds = computed(op, a, b, dtype)
    neutral = 0 if op == "add" else 1
    if bounds is not None and neutral in (a.constant, b.constant):
        return b if a.constant == neutral else a
    if bounds is None:
        text = f"{_unsigned(frame, a, dtype)} {sign} {_unsigned(frame, b, dtype)}"
        return frame.value(_signed(frame, text, dtype), dtype)
    text = _within(frame, sign, a, b, bounds)
    if op == "add" and b.constant is not None:
        return frame.sum(a, b.constant, text, bounds)
    return frame.value(text, dtype, bounds)


def _within(frame: Frame, sign: str, a: Value, b: Value, bounds: tuple[int, int]) -> str:
    """An operation whose result needs 64 bits although its operands may not."""
    left = frame.full(a, int64) if not -(1 << 31) <= bounds[0] <= bounds[1] < 1 << 31 else a.text
    right = b
    if sign == "+" and right.constant is not None and right.constant < 0:
        return f"{left} - {-right.constant}"
    return f"{left} {sign} {right}"


def _exact(frame: Frame, op: str, sign: str, a: Value, b: Value, dtype: DType) -> Value:
    """An operation on integers or bools that cannot overflow: the core guards its operands."""
    bounds = computed(op, a, b, dtype)
    if bounds is not None:
        return frame.value(f"{a} {sign} {b}", dtype, bounds)
    return frame.value(f"{frame.full(a, dtype)} {sign} {frame.full(b, dtype)}", dtype)


def _unsigned(frame: Frame, x: Value, dtype: DType) -> str:
    """An integer as an unsigned one of at least 32 bits (C would compute narrower ones in int)."""
    if dtype in (uint32, uint64):
        return x.text
    word = uint64 if dtype.bits == 64 else uint32
    if x.constant is not None:
        return frame.words.literal(x.constant % (1 << word.bits), word)
    return f"({frame.words.types[word]}){x}"


def _signed(frame: Frame, text: str, dtype: DType) -> str:
    """The low bits of an unsigned integer in the dtype's own type."""
    return text if dtype in (uint32, uint64) else f"({frame.words.types[dtype]})({text})"


def _choice(frame: Frame, condition: str, op: str, a: Value, b: Value, dtype: DType) -> Value:
    bounds = computed(op, a, b, dtype)
    if bounds is not None:
        return frame.value(f"{condition} ? {a} : {b}", dtype, bounds)
    return frame.value(f"{condition} ? {frame.full(a, dtype)} : {frame.full(b, dtype)}", dtype)


def _is_number(x: Value) -> bool:
    """Whether a float is a literal; NaN and infinity are not written as one."""
    return x.text.lstrip("-")[:1].isdigit()


def _max(frame: Frame, a: Value, b: Value, dtype: DType) -> Value:
    larger = f"{a} > {b}"
    if not dtype.is_float:
        return _choice(frame, larger, "max", a, b, dtype)
    if frame.words.ieee:  # no comparison with NaN is true: a NaN in b is what is left
        nan = "" if _is_number(a) else f" || {is_nan(frame, a, dtype)}"
        return frame.value(f"{larger}{nan} ? {a} : {b}", dtype)
    first = f"{is_nan(frame, a, dtype)} ? {a} : "
    return frame.value(f"{first}{is_nan(frame, b, dtype)} || !({larger}) ? {b} : {a}", dtype)


def _unless_nan(frame: Frame, a: Value, b: Value, dtype: DType, sign: str, joint: str) -> str:
    """Tests of both operands, for a compiler that gets comparisons with NaN wrong."""
    if frame.words.ieee or not dtype.is_float:
        return ""
    return "".join(f"{sign}{is_nan(frame, x, dtype)}{joint}" for x in (a, b))


def _argmax(
    frame: Frame, accumulator: tuple[Value, Value], candidate: tuple[Value, Value], dtype: DType
) -> tuple[Value, Value]:
    """The pair that wins: larger, or NaN; of equals the smaller index."""
    (best, best_index), (value, index) = accumulator, candidate
    larger, same = f"{value} > {best}", f"{value} == {best}"
    if dtype.is_float:
        settled = frame.value(is_nan(frame, best, dtype), bool_)
        nan = frame.value(is_nan(frame, value, dtype), bool_)
        larger = f"!{settled} && ({nan} || {larger})"
        same = f"{settled} ? {nan} : !{nan} && {same}"
    wins = frame.value(f"{larger} || (({same}) && {index} < {best_index})", bool_)
    return (
        frame.value(f"{wins} ? {value} : {best}", dtype),
        frame.value(f"{wins} ? {index} : {best_index}", int64),
    )
