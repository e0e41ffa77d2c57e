"""Constructors: the shapes and values they promise, and the words they refuse with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import evaluate, held

from coregrad import dtypes
from coregrad.dtypes import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint32,
)
from coregrad.errors import DTypeError, ShapeError
from coregrad.ir import build, ops
from coregrad.ir.graph import Node

INTS = pytest.mark.parametrize("dtype", dtypes.INTS, ids=lambda d: d.name)


def x(*shape: int, dtype: DType = float32, name: str = "x") -> Node:
    return build.buffer(name, dtype, shape)


# ---- errors: what the values were, and what to do ----------------------------------------------

# fmt: off
REFUSED: dict[str, tuple[Callable[[], Node], type[Exception], str]] = {
    "add of two shapes": (lambda: build.add(x(2, 3), x(3, 2)), ShapeError,
        "add: shapes (2, 3) and (3, 2) differ; expand the operands to one shape"),
    "add of two dtypes": (lambda: build.add(x(2), x(2, dtype=int32)), DTypeError,
        "add: dtypes float32, int32 differ; cast the operands to one dtype"),
    "add of bools": (lambda: build.add(x(2, dtype=bool_), x(2, dtype=bool_)), DTypeError,
        "add: bool is not a number dtype; cast the tensor first"),
    "neg of a bool": (lambda: build.neg(x(2, dtype=bool_)), DTypeError,
        "mul: bool is not a number dtype; cast the tensor first"),
    "exp of ints": (lambda: build.exp(x(2, dtype=int64)), DTypeError,
        "exp: int64 is not a float dtype; cast the tensor first"),
    "div of ints": (lambda: build.div(x(2, dtype=int64), x(2, dtype=int64)), DTypeError,
        "div: int64 is not a float dtype; cast the tensor first"),
    "idiv of floats": (lambda: build.idiv(x(2), x(2)), DTypeError,
        "idiv: float32 is not an integer dtype; cast the tensor first"),
    "idiv of two shapes": (lambda: build.idiv(x(2, dtype=int8), x(3, dtype=int8)), ShapeError,
        "idiv: shapes (2,) and (3,) differ; expand the operands to one shape"),
    "mod of two dtypes": (lambda: build.mod(x(2, dtype=int8), x(2, dtype=int16)), DTypeError,
        "mod: dtypes int8, int16 differ; cast the operands to one dtype"),
    "and of floats": (lambda: build.and_(x(2), x(2)), DTypeError,
        "and: float32 is not an integer dtype or bool; cast the tensor first"),
    "shl by another dtype": (lambda: build.shl(x(2, dtype=int32), x(2, dtype=uint8)), DTypeError,
        "shl: dtypes int32, uint8 differ; cast the operands to one dtype"),
    "shl by a bool": (lambda: build.shl(x(2, dtype=int32), x(2, dtype=bool_)), DTypeError,
        "shl: dtypes int32, bool differ; cast the operands to one dtype"),
    "shr of floats": (lambda: build.shr(x(2), x(2)), DTypeError,
        "shr: float32 is not an integer dtype; cast the tensor first"),
    "where on a number": (lambda: build.where(x(2), x(2), x(2)), DTypeError,
        "where: the condition is float32, not bool; compare it with 0"),
    "where of two dtypes": (lambda: build.where(
        x(2, dtype=bool_), x(2), x(2, dtype=int8)), DTypeError,
        "where: dtypes float32, int8 differ; cast the operands to one dtype"),
    "where of three shapes": (lambda: build.where(x(2, dtype=bool_), x(2), x(3)), ShapeError,
        "where: shapes (2,) and (2,) and (3,) differ; expand the operands to one shape"),
    "bitcast to another width": (lambda: build.bitcast(x(2), float64), DTypeError,
        "bitcast: float32 and float64 are not interchangeable bit patterns; use cast"),
    "bitcast of bool": (lambda: build.bitcast(x(2, dtype=bool_), uint8), DTypeError,
        "bitcast: bool and uint8 are not interchangeable"),
    "a number too large": (lambda: build.const(300, uint8), DTypeError,
        "300 does not fit uint8 (0 .. 255); cast the tensor to a wider dtype first"),
    "half an integer": (lambda: build.const_like(x(2, dtype=int8), 0.5), DTypeError,
        "0.5 does not fit int8 (-128 .. 127)"),
    "iota of floats": (lambda: build.iota(3, float32), DTypeError,
        "iota: float32 is no integer dtype; cast the result instead"),
    "reduce over an axis twice": (lambda: build.reduce("add", x(2, 3), (1, 1)), ShapeError,
        "add: axes (1, 1) do not fit a tensor of shape (2, 3)"),
    "reduce over a missing axis": (lambda: build.reduce("max", x(2, 3), (2,)), ShapeError,
        "max: axes (2,) do not fit a tensor of shape (2, 3)"),
    "max of nothing": (lambda: build.reduce("max", x(2, 0), (1,)), ShapeError,
        "max: axis of size 0 in shape (2, 0) has no largest element"),
    "argmax over two axes": (lambda: build.reduce("argmax", x(2, 3), (0, 1)), ShapeError,
        "argmax: one axis at a time, not (0, 1); flatten the tensor first"),
    "sum of bools": (lambda: build.reduce("add", x(2, dtype=bool_), (0,)), DTypeError,
        "reduce: bool is not a number dtype; cast the tensor first"),
    "reshape to another size": (lambda: build.reshape(x(2, 3), (4,)), ShapeError,
        "reshape: shape (2, 3) has 6 elements, (4,) 4; give a shape with as many"),
    "reshape to negative sizes": (lambda: build.reshape(x(2, 3), (-2, -3)), ShapeError,
        "reshape: shape (2, 3) has 6 elements, (-2, -3) 6"),
    "permute without an axis": (lambda: build.permute(x(2, 3), (0, 0)), ShapeError,
        "permute: (0, 0) is no order of the 2 axes of shape (2, 3); name each axis once"),
    "expand of a size 2": (lambda: build.expand(x(2, 1), (4, 3)), ShapeError,
        "expand: shape (2, 1) cannot be expanded to (4, 3); only axes of size 1 can grow"),
    "expand to more axes": (lambda: build.expand(x(1), (4, 3)), ShapeError,
        "expand: shape (1,) cannot be expanded to (4, 3)"),
    "pad by less than nothing": (lambda: build.pad(x(2), ((-1, 0),)), ShapeError,
        "pad: widths ((-1, 0),) do not fit shape (2,); one pair of sizes >= 0 per axis"),
    "pad of an axis too many": (lambda: build.pad(x(2), ((0, 0), (1, 1))), ShapeError,
        "pad: widths ((0, 0), (1, 1)) do not fit shape (2,)"),
    "pad with a number that does not fit": (lambda: build.pad(
        x(2, dtype=uint8), ((0, 1),), -1), DTypeError,
        "-1 does not fit uint8"),
    "shrink beyond the end": (lambda: build.shrink(x(3), ((1, 4),)), ShapeError,
        "shrink: ranges ((1, 4),) do not lie inside shape (3,)"),
    "shrink backwards": (lambda: build.shrink(x(3), ((2, 1),)), ShapeError,
        "shrink: ranges ((2, 1),) do not lie inside shape (3,)"),
    "flip of a missing axis": (lambda: build.flip(x(3), (1,)), ShapeError,
        "flip: axes (1,) do not fit a tensor of shape (3,)"),
    "window wider than its axis": (lambda: build.window(x(4), 0, 3, 1, 2), ShapeError,
        "window: 3 taps with dilation 2 span 5 elements, stride 1, but axis 0 of shape (4,) has 4"),
    "window of stride 0": (lambda: build.window(x(4), 0, 3, 0), ShapeError, "stride 0"),
    "fold of what is no window": (lambda: build.fold(x(3, 2), 0, 5), ShapeError,
        "fold: shape (3, 2) is no window (axis 0, stride 1, dilation 1) of an axis of 5 elements"),
    "fold of a scalar": (lambda: build.fold(x(), 0, 5), ShapeError, "fold: axes (0,) do not fit"),
    "fold of bools": (lambda: build.fold(x(3, 2, dtype=bool_), 0, 4), DTypeError,
        "fold: bool is not a number dtype"),
    "cat of nothing": (lambda: build.cat([], 0), ShapeError,
        "cat: no tensors were given; pass at least one"),
    "cat of two dtypes": (lambda: build.cat([x(2), x(2, dtype=int8)], 0), DTypeError,
        "cat: dtypes float32 and int8 differ; cast the tensors to one dtype"),
    "cat of two heights": (lambda: build.cat([x(2, 3), x(3, 3)], 1), ShapeError,
        "cat: shapes (2, 3) and (3, 3) differ outside axis 1"),
    "cat of two ranks": (lambda: build.cat([x(2, 3), x(2)], 0), ShapeError,
        "cat: shapes (2, 3) and (2,) differ outside axis 0"),
    "an index of floats": (lambda: build.check(x(2), 4, "here"), DTypeError,
        "index: float32 is no integer dtype; cast the index to int64"),
    "gather by floats": (lambda: build.gather(x(2), x(2)), DTypeError,
        "gather: float32 is no integer dtype; cast the index to int64"),
    "gather from a scalar": (lambda: build.gather(x(), x(2, dtype=int32)), ShapeError,
        "gather: a 0-d tensor has no axis to index"),
    "scatter by floats": (lambda: build.scatter(x(4), x(2), x(2), "add"), DTypeError,
        "scatter: float32 is no integer dtype; cast the index to int64"),
    "scatter into a scalar": (lambda: build.scatter(
        x(), x(2, dtype=int32), x(2), "add"), ShapeError,
        "scatter: a 0-d tensor has no axis to index"),
    "scatter of a wrong shape": (lambda: build.scatter(
        x(4, 3), x(2, dtype=int32), x(2, 4), "set"), ShapeError,
        "scatter: value of shape (2, 4) does not fit index (2,) into (4, 3)"),
    "scatter of another dtype": (lambda: build.scatter(
        x(4), x(2, dtype=int32), x(2, dtype=int8), "set"), DTypeError,
        "scatter: dtypes float32 and int8 differ; cast the value"),
    "scatter adding bools": (lambda: build.scatter(
        x(4, dtype=bool_), x(2, dtype=int32), x(2, dtype=bool_), "add"), DTypeError,
        "scatter: bool is not a number dtype"),
}
# fmt: on


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_refused_with_the_values_and_the_way_out(name: str) -> None:
    make, error, words = REFUSED[name]
    with pytest.raises(error) as caught:
        make()
    assert words in str(caught.value)


# ---- exact compositions ------------------------------------------------------------------------


def edges(dtype: DType) -> list[int]:
    return sorted({0, 1, 2, 3, 5, 64, max(dtype.min, -1), max(dtype.min, -3), dtype.min,
                   dtype.max, dtype.max - 1})  # fmt: skip


def pairs(dtype: DType) -> tuple[list[tuple[int, int]], dict[str, np.ndarray]]:
    both = list(itertools.product(edges(dtype), repeat=2))
    columns = np.array(both, dtype.storage).T
    return both, {"a": columns[0].copy(), "b": columns[1].copy()}


def wrapped(value: int, dtype: DType) -> int:
    value %= 1 << dtype.bits
    return value - (1 << dtype.bits) if value > dtype.max else value


def check_pairs(
    dtype: DType, op: Callable[[Node, Node], Node], expected: Callable[[int, int], int]
) -> None:
    """``op`` on all pairs of edges, both as tensors and with each edge as a constant."""
    both, values = pairs(dtype)
    n = len(both)
    a, b = x(n, dtype=dtype, name="a"), x(n, dtype=dtype, name="b")
    (result,) = evaluate([op(a, b)], values)
    assert result.tolist() == [expected(p, q) for p, q in both]
    for edge in edges(dtype):
        (result,) = evaluate([op(a, build.const_like(a, edge))], values)
        assert result.tolist() == [expected(p, edge) for p, _ in both]


def truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


@INTS
def test_integer_division_truncates_wraps_and_gives_0_for_a_divisor_of_0(dtype: DType) -> None:
    check_pairs(dtype, build.idiv, lambda a, b: wrapped(truncated(a, b), dtype) if b else 0)
    check_pairs(dtype, build.mod, lambda a, b: a - b * truncated(a, b) if b else 0)


@INTS
def test_shifts_by_the_width_or_more_leave_nothing_or_the_sign(dtype: DType) -> None:
    def left(a: int, b: int) -> int:
        return wrapped(a << b, dtype) if 0 <= b < dtype.bits else 0

    def right(a: int, b: int) -> int:
        return a >> b if 0 <= b < dtype.bits else (-1 if a < 0 else 0)

    check_pairs(dtype, build.shl, left)
    check_pairs(dtype, build.shr, right)


@INTS
def test_integer_compositions_are_exact(dtype: DType) -> None:
    check_pairs(dtype, build.sub, lambda a, b: wrapped(a - b, dtype))
    check_pairs(dtype, build.minimum, min)
    check_pairs(dtype, build.maximum, max)
    check_pairs(dtype, build.le, lambda a, b: a <= b)
    check_pairs(dtype, build.eq, lambda a, b: a == b)
    check_pairs(dtype, lambda a, b: build.neg(a), lambda a, b: wrapped(-a, dtype))
    check_pairs(dtype, lambda a, b: build.invert(a), lambda a, b: wrapped(~a, dtype))


FLOATS = np.array([0.0, -0.0, 1.5, -2.5, math.inf, -math.inf, math.nan])


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=lambda d: d.name)
def test_float_compositions_agree_with_ieee(dtype: DType) -> None:
    left, right = (g.ravel() for g in np.meshgrid(FLOATS, FLOATS))
    values = {"a": left, "b": right}
    n = len(left)
    a, b = x(n, dtype=dtype, name="a"), x(n, dtype=dtype, name="b")
    p, q = left.astype(held(dtype)), right.astype(held(dtype))
    with np.errstate(all="ignore"):
        for made, expected in [
            (build.sub(a, b), p - q),
            (build.le(a, b), p <= q),
            (build.eq(a, b), p == q),
            (build.minimum(a, b), np.minimum(p, q)),
            (build.mod(a, b), np.fmod(p, q)),
        ]:
            np.testing.assert_array_equal(evaluate([made], values)[0], expected)
    negated = evaluate([build.neg(a)], values)[0]
    known = ~np.isnan(p)
    assert np.array_equal(np.signbit(negated)[known], ~np.signbit(p)[known])


def test_a_logical_not_is_invert() -> None:
    values = {"x": np.array([True, False])}
    assert evaluate([build.invert(x(2, dtype=bool_))], values)[0].tolist() == [False, True]


# ---- shapes ------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    length=st.integers(1, 12), size=st.integers(1, 4), stride=st.integers(1, 3),
    dilation=st.integers(1, 3),
)  # fmt: skip
def test_a_window_has_a_place_wherever_it_fits(
    length: int, size: int, stride: int, dilation: int
) -> None:
    starts = [s for s in range(0, length, stride) if s + dilation * (size - 1) < length]
    if not starts:
        return
    made = build.window(x(2, length), 1, size, stride, dilation)
    assert made.shape == (2, len(starts), size)
    back = build.fold(made, 1, length, stride, dilation)
    assert back.shape == (2, length)
    ones = {"x": np.ones((2, length), np.float32)}
    covered = [
        sum(p - s in range(0, dilation * size, dilation) for s in starts) for p in range(length)
    ]
    assert evaluate([back], ones)[0].tolist() == [covered, covered]


def test_reductions_drop_their_axes_and_argmax_counts_in_int64() -> None:
    t = x(2, 3, 4, dtype=float16)
    assert build.reduce("add", t, (2, 0)).shape == (3,)
    assert build.reduce("add", t, (2, 0)) is build.reduce("add", t, (0, 2))
    assert build.reduce("add", t, (0,)).dtype is float16
    index = build.reduce("argmax", t, (1,))
    assert (index.shape, index.dtype) == ((2, 4), int64)
    assert build.reduce("max", t, ()) is t


def test_comparisons_are_bools_and_casts_are_what_they_say() -> None:
    t = x(2)
    assert build.lt(t, t).dtype is bool_
    assert build.cast(t, bfloat16).dtype is bfloat16
    assert build.bitcast(t, uint32).dtype is uint32
    assert build.cast(t, float32) is t
    assert build.bitcast(t, float32) is t


# ---- simplifications on the spot ---------------------------------------------------------------


def test_movement_that_does_nothing_makes_no_node() -> None:
    t = x(2, 3)
    for same in (
        build.reshape(t, (2, 3)),
        build.permute(t, (0, 1)),
        build.expand(t, (2, 3)),
        build.pad(t, ((0, 0), (0, 0))),
        build.shrink(t, ((0, 2), (0, 3))),
        build.flip(t, ()),
        build.cat([t], 0),
        build.cat([t, x(0, 3)], 0),
        build.contiguous(t),
        build.permute(build.permute(t, (1, 0)), (1, 0)),
        build.reshape(build.reshape(t, (6,)), (2, 3)),
    ):
        assert same is t


def test_a_moved_constant_is_a_constant() -> None:
    t = build.const(2.5, float32, (1, 4))
    for made in (
        build.reshape(t, (4,)),
        build.permute(t, (1, 0)),
        build.expand(t, (3, 4)),
        build.pad(t, ((1, 0), (0, 0)), 2.5),
        build.shrink(t, ((0, 1), (1, 3))),
        build.flip(t, (1,)),
        build.window(t, 1, 2),
    ):
        assert made is build.const(2.5, float32, made.shape)
    assert build.pad(t, ((1, 0), (0, 0)), 0).op is ops.PAD


def test_movement_does_not_merge_past_a_node_that_was_computed() -> None:
    expensive = build.exp(x(2, 3))
    row = build.exp(x(1, 3))
    for inner, again in (
        (build.reshape(expensive, (6,)), lambda n: build.reshape(n, (3, 2))),
        (build.permute(expensive, (1, 0)), lambda n: build.permute(n, (1, 0))),
        (
            build.expand(build.reshape(row, (1, 1, 3)), (1, 2, 3)),
            lambda n: build.expand(n, (4, 2, 3)),
        ),
    ):
        assert again(inner).src[0] is inner.src[0] or again(inner) is inner.src[0]
        inner.buffer = x(*inner.shape, name="computed")
        assert again(inner).src == (inner,)


def test_a_known_divisor_or_count_needs_no_guard() -> None:
    t = x(2, dtype=int32)
    assert build.idiv(t, build.const_like(t, 3)).op is ops.IDIV
    assert build.mod(t, build.const_like(t, 3)).op is ops.MOD
    assert build.shl(t, build.const_like(t, 31)).op is ops.SHL
    assert build.shl(t, build.const_like(t, 32)).op is ops.WHERE


def test_a_narrow_index_is_widened_where_it_could_not_be_counted_from_0() -> None:
    t = x(2, dtype=int8)
    assert build.check(t, 128, "here").dtype is int8
    made = build.check(t, 200, "here")
    assert made.dtype is int32
    assert evaluate([made], {"x": np.array([-1, 5], np.int8)})[0].tolist() == [199, 5]
    assert build.check(t, 2**40, "here").dtype is int64
    assert build.check(x(2, dtype=uint8), 300, "here").dtype is uint8


def test_the_quarter_of_sin_counts_modulo_a_full_turn() -> None:
    assert build.sin(x(2), 5) is build.sin(x(2), 1)
    assert build.sin(x(2), 4) is build.sin(x(2))
