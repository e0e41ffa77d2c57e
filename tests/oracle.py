"""What a graph means, in NumPy: an interpreter of nodes that shares no code with the compiler.

:func:`evaluate` computes every node of a graph by the definition of its op, with NumPy alone. It
rounds after each op, as the contract demands. It never realises anything: buffers are given by
the caller, ``node.buffer`` is ignored, and markers are the identity.

bfloat16, which NumPy lacks, is held as float32 arrays whose values are bfloat16 numbers; a given
uint16 array is taken as bit patterns. With ``wide=True`` all floats are float64 and nothing is
rounded in between: the reference for tolerances and for numerical gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from coregrad import dtypes
from coregrad.dtypes import DType
from coregrad.ir import ops
from coregrad.ir.graph import Node, toposort

Array = np.ndarray[Any, np.dtype[Any]]
Row = Callable[..., Array]


def evaluate(
    roots: Sequence[Node], values: Mapping[Any, Array] | None = None, wide: bool = False
) -> list[Array]:
    """The value of each root. ``values`` maps the storage of each buffer node to its array."""
    done: dict[Node, Array] = {}
    with np.errstate(all="ignore"):
        for node in toposort(roots):
            if node.op is ops.BUFFER:
                result = decode(np.asarray((values or {})[node.arg]), node.dtype, wide)
            else:
                result = np.asarray(ROWS[node.op](node, wide, *(done[s] for s in node.src)))
            assert result.shape == node.shape, (node, result.shape)
            assert result.dtype == held(node.dtype, wide), (node, result.dtype)
            done[node] = result
    return [done[root] for root in roots]


def held(dtype: DType, wide: bool = False) -> np.dtype[Any]:
    """The NumPy dtype in which values of ``dtype`` are held."""
    if dtype.is_float and wide:
        return np.dtype("float64")
    return np.dtype("float32" if dtype is dtypes.bfloat16 else dtype.storage)


def decode(array: Array, dtype: DType, wide: bool = False) -> Array:
    """A host array (bfloat16 also as uint16 bit patterns) as values of ``dtype``."""
    if dtype is dtypes.bfloat16 and array.dtype == np.uint16:
        array = from_bfloat16_bits(array)
    return rounded(array, dtype, wide)


def rounded(array: Array, dtype: DType, wide: bool = False) -> Array:
    """Floats rounded to nearest even in ``dtype``; integers wrapped; bools as they are."""
    if dtype is dtypes.bfloat16 and not wide:
        return from_bfloat16_bits(bfloat16_bits(array))
    return np.asarray(array).astype(held(dtype, wide))


def bfloat16_bits(array: Array) -> Array:
    """Floats rounded to nearest even, as the uint16 bit patterns of bfloat16."""
    exact = np.asarray(array)
    single = exact.astype(np.float32)
    if exact.dtype == np.float64:  # round to odd first: rounding twice is then the same as once
        back = single.astype(np.float64)
        even = (single.view(np.uint32) & 1) == 0
        toward = np.where(back < exact, np.float32(np.inf), np.float32(-np.inf))
        single = np.where((back != exact) & even, np.nextafter(single, toward), single)
    word = single.view(np.uint32)
    bits = ((word + 0x7FFF + ((word >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(single), np.uint16(0x7FC0), bits)


def from_bfloat16_bits(bits: Array) -> Array:
    """The float32 values of uint16 bit patterns."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def same(a: Array, b: Array) -> bool:
    """Equal bit for bit, any NaN being equal to any other NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    both_nan = np.isnan(a) & np.isnan(b)
    return bool(np.all(both_nan | ((a == b) & (np.signbit(a) == np.signbit(b)))))


# ---- sources -----------------------------------------------------------------------------------


def _const(node: Node, wide: bool) -> Array:
    value = dtypes.from_bits(node.arg, node.dtype)
    return np.full(node.shape, value, held(node.dtype, wide))


def _iota(node: Node, wide: bool) -> Array:
    return np.arange(node.shape[0]).astype(held(node.dtype))


# ---- element-wise ------------------------------------------------------------------------------


def _cast(node: Node, wide: bool, x: Array) -> Array:
    source, target = node.src[0].dtype, node.dtype
    if target is dtypes.bool_:
        return x != 0
    if source.is_float and target.is_int:
        return _saturate(x.astype(np.float64), target)
    if source.is_int and target is dtypes.bfloat16 and not wide:
        return rounded(_odd_float32(x), target)
    return rounded(x, target, wide)


def _saturate(x: Array, target: DType) -> Array:
    whole = np.trunc(np.where(np.isnan(x), 0.0, x))
    above = whole >= float(target.max) + (target.bits < 64)  # 2.0**63 and 2.0**64 are beyond
    below = whole <= float(target.min)
    inside = np.where(above | below, 0.0, whole).astype(target.storage)
    top, bottom = np.array(target.max, target.storage), np.array(target.min, target.storage)
    return np.where(above, top, np.where(below, bottom, inside))


def _odd_float32(x: Array) -> Array:
    """Integers as 24-bit floats rounded to odd, so that rounding them once more is exact."""

    def one(value: int) -> float:
        excess = max(0, abs(value).bit_length() - 24)
        kept = abs(value) >> excess
        kept |= (kept << excess) != abs(value)
        return float(kept << excess) * (-1 if value < 0 else 1)

    flat = [one(int(v)) for v in x.ravel()]
    return np.array(flat, np.float32).reshape(x.shape)


def _bitcast(node: Node, wide: bool, x: Array) -> Array:
    source, target = node.src[0].dtype, node.dtype
    x = np.ascontiguousarray(rounded(x, source)).reshape(x.shape)
    bits = bfloat16_bits(x) if source is dtypes.bfloat16 else x
    if target is dtypes.bfloat16:
        return decode(bits.view(np.uint16), target, wide)
    return rounded(bits.view(held(target)), target, wide)


def _precise(function: Callable[[Array], Array]) -> Row:
    """A function of floats computed in float64, then rounded once."""
    return lambda node, wide, x: rounded(function(x.astype(np.float64)), node.dtype, wide)


def _sin(node: Node, wide: bool, x: Array) -> Array:
    precise = x.astype(np.float64)
    turned = (np.sin(precise), np.cos(precise), -np.sin(precise), -np.cos(precise))
    return rounded(turned[node.arg], node.dtype, wide)


def _binary(function: Callable[[Array, Array], Array]) -> Row:
    """A NumPy function applied in the node's dtype (bfloat16: in float32, then rounded)."""
    return lambda node, wide, a, b: rounded(function(a, b), node.dtype, wide)


def _compare(function: Callable[[Array, Array], Array]) -> Row:
    return lambda node, wide, a, b: function(a, b)


def _idiv(node: Node, wide: bool, a: Array, b: Array) -> Array:
    divisor = np.where(b == 0, np.ones_like(b), b)
    down = a // divisor
    upward = (down * divisor != a) & ((a < 0) != (divisor < 0))
    quotient = (down + upward.astype(a.dtype)).astype(a.dtype)
    return np.where(b == 0, np.zeros_like(a), quotient)


def _mod(node: Node, wide: bool, a: Array, b: Array) -> Array:
    if node.dtype.is_float:
        return rounded(np.fmod(a, b), node.dtype, wide)
    remainder = a - _idiv(node, wide, a, b) * b
    return np.where(b == 0, np.zeros_like(a), remainder).astype(a.dtype)


def _where(node: Node, wide: bool, condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition, a, b)


# ---- reductions --------------------------------------------------------------------------------


def _accumulating(dtype: DType, wide: bool) -> np.dtype[Any]:
    """float16 and bfloat16 add up in float32, everything else in its own dtype."""
    return held(dtypes.float32 if dtype.bits == 16 and dtype.is_float else dtype, wide)


def _reduce(node: Node, wide: bool, x: Array) -> Array:
    kind, axes = node.arg
    if kind == "argmax":
        return np.argmax(x, axis=axes[0]).astype(np.int64)  # the first NaN, else the first largest
    if kind == "max":
        return np.asarray(np.maximum.reduce(x, axis=axes))
    function, start = (np.add, 0) if kind == "add" else (np.multiply, 1)
    total = function.reduce(x, axis=axes, dtype=_accumulating(node.dtype, wide), initial=start)
    return rounded(np.asarray(total), node.dtype, wide)


# ---- movement ----------------------------------------------------------------------------------


def _pad(node: Node, wide: bool, x: Array) -> Array:
    widths, bits = node.arg
    value = dtypes.from_bits(bits, node.dtype)
    return np.pad(x, widths, constant_values=np.array(value, x.dtype)) if widths else x


def _shrink(node: Node, wide: bool, x: Array) -> Array:
    return x[tuple(slice(lo, hi) for lo, hi in node.arg)]


def _number(node: Node, wide: bool) -> Array:
    return np.array(node.arg[0], held(node.dtype))


def _taken(axes: Sequence[int], starts: Sequence[Array], shape: Sequence[int]) -> Any:
    """The key of a block of ``shape`` that starts at ``starts`` on ``axes``."""
    key = [slice(None)] * len(shape)
    for axis, start in zip(axes, starts, strict=True):
        key[axis] = slice(int(start), int(start) + shape[axis])
    return tuple(key)


def _slice(node: Node, wide: bool, x: Array, *starts: Array) -> Array:
    return x[_taken(node.arg[0], starts, node.shape)]


def _update(node: Node, wide: bool, base: Array, value: Array, *starts: Array) -> Array:
    out = base.copy()
    out[_taken(node.arg, starts, value.shape)] = value
    return out


def _window(node: Node, wide: bool, x: Array) -> Array:
    axis, size, stride, dilation = node.arg
    starts = np.arange(node.shape[axis]) * stride
    places = starts[:, None] + np.arange(size) * dilation
    return np.moveaxis(np.take(x, places, axis), axis + 1, -1)


def _fold(node: Node, wide: bool, x: Array) -> Array:
    axis, length, stride, dilation = node.arg
    moved = np.moveaxis(x, axis, 0).astype(_accumulating(node.dtype, wide))
    total = np.zeros((length, *moved.shape[1:-1]), moved.dtype)
    places = np.arange(moved.shape[0]) * stride
    for k in range(moved.shape[-1]):
        total[places + k * dilation] += moved[..., k]
    return rounded(np.moveaxis(total, 0, axis), node.dtype, wide)


# ---- data-dependent ----------------------------------------------------------------------------


def _check(node: Node, wide: bool, index: Array) -> Array:
    length, _ = node.arg
    for value in index.ravel():
        if not -length <= int(value) < length:
            raise IndexError(f"index {value} is out of range for an axis of size {length}")
    return np.where(index < 0, index + np.array(length).astype(index.dtype), index)


def _gather(node: Node, wide: bool, x: Array, index: Array) -> Array:
    return x[_places(index, x.shape[0])]


def _places(index: Array, length: int) -> Array:
    places = index.astype(np.int64)
    if places.size and not (places.min() >= 0 and places.max() < length):
        raise IndexError(f"an unchecked index lies outside an axis of size {length}")
    return places


def _scatter(node: Node, wide: bool, base: Array, index: Array, value: Array) -> Array:
    places = _places(index, base.shape[0])
    if node.arg == "set":
        out = base.copy()
        for i, place in enumerate(places):
            out[place] = value[i]
        return out
    total = base.astype(_accumulating(node.dtype, wide))
    np.add.at(total, places, value.astype(total.dtype))
    return rounded(total, node.dtype, wide)


def _same(node: Node, wide: bool, x: Array, *inputs: Array) -> Array:
    return x


def _scan(node: Node, wide: bool, x: Array) -> Array:
    kind, axis = node.arg
    ufunc = {"add": np.add, "mul": np.multiply, "max": np.maximum}[kind]
    return ufunc.accumulate(x, axis, dtype=x.dtype)


def _argsort(node: Node, wide: bool, x: Array) -> Array:
    return np.argsort(x, axis=-1, kind="stable")[..., : node.arg].astype(held(node.dtype))


ROWS: dict[ops.Op, Row] = {
    ops.CONST: _const,
    ops.NUMBER: _number,
    ops.IOTA: _iota,
    ops.CAST: _cast,
    ops.BITCAST: _bitcast,
    ops.EXP: _precise(np.exp),
    ops.LOG: _precise(np.log),
    ops.SIN: _sin,
    ops.SQRT: _precise(np.sqrt),
    ops.TRUNC: _precise(np.trunc),
    ops.ADD: _binary(np.add),
    ops.MUL: _binary(np.multiply),
    ops.DIV: _binary(np.divide),
    ops.IDIV: _idiv,
    ops.MOD: _mod,
    ops.MAX: _binary(np.maximum),
    ops.LT: _compare(np.less),
    ops.NE: _compare(np.not_equal),
    ops.AND: _binary(np.bitwise_and),
    ops.OR: _binary(np.bitwise_or),
    ops.XOR: _binary(np.bitwise_xor),
    ops.SHL: _binary(np.left_shift),
    ops.SHR: _binary(np.right_shift),
    ops.WHERE: _where,
    ops.REDUCE: _reduce,
    ops.RESHAPE: lambda node, wide, x: x.reshape(node.shape),
    ops.PERMUTE: lambda node, wide, x: x.transpose(node.arg),
    ops.EXPAND: lambda node, wide, x: np.broadcast_to(x, node.shape),
    ops.PAD: _pad,
    ops.SHRINK: _shrink,
    ops.SLICE: _slice,
    ops.UPDATE: _update,
    ops.FLIP: lambda node, wide, x: np.flip(x, node.arg),
    ops.WINDOW: _window,
    ops.FOLD: _fold,
    ops.SCAN: _scan,
    ops.ARGSORT: _argsort,
    ops.CAT: lambda node, wide, *parts: np.concatenate(parts, node.arg),
    ops.CHECK: _check,
    ops.GATHER: _gather,
    ops.SCATTER: _scatter,
    ops.CONTIGUOUS: _same,
    ops.COPY: _same,
    ops.LEAF: _same,
    ops.DETACH: _same,
    ops.CUSTOM: _same,
}
