"""Checked constructors of graph nodes: every shape and dtype error starts here, at the call.

Element-wise constructors want equal shapes and dtypes: broadcasting and promotion are the user
level's business. Small exact simplifications that make graphs shorter are done on the spot, but
never past a node that has been computed: beneath it the work would be done again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from coregrad import dtypes
from coregrad.dtypes import DType, to_bits
from coregrad.errors import DTypeError, ShapeError, VerifyError
from coregrad.ir import ops
from coregrad.ir.graph import Node, Shape, intern
from coregrad.ir.ops import Op

Ranges = tuple[tuple[int, int], ...]


# ---- sources -----------------------------------------------------------------------------------


def const(value: float, dtype: DType, shape: Shape = ()) -> Node:
    """A number in every element. Its key is (dtype, bits): 0.0 and -0.0 are two constants."""
    return intern(ops.CONST, (), to_bits(value, dtype), dtype, shape)


def const_like(x: Node, value: float) -> Node:
    """``value`` with the shape and dtype of ``x``."""
    return intern(ops.CONST, (), to_bits(value, x.dtype), x.dtype, x.shape)


def iota(length: int, dtype: DType = dtypes.int64) -> Node:
    """0, 1, ..., length - 1."""
    if not dtype.is_int:
        raise DTypeError(f"iota: {dtype.name} is no integer dtype; cast the result instead")
    return intern(ops.IOTA, (), None, dtype, (length,))


def buffer(storage: Any, dtype: DType, shape: Shape) -> Node:
    """Values in memory. ``storage`` is the engine's; its identity is the node's."""
    return intern(ops.BUFFER, (), storage, dtype, shape)


def number(value: int, bound: int) -> Node:
    """An integer in 0 .. bound. Kernels leave it open: another value needs no other kernel."""
    if not 0 <= value <= bound:
        raise VerifyError(f"number: {value} is not in 0 .. {bound}")
    dtype = dtypes.int32 if bound <= dtypes.int32.max else dtypes.int64
    return intern(ops.NUMBER, (), (value, bound), dtype, ())


# ---- element-wise ------------------------------------------------------------------------------


def alu(op: Op, *src: Node, arg: Any = None) -> Node:
    """An element-wise op on operands of one shape and (the condition of where apart) one dtype."""
    operands = src[1:] if op is ops.WHERE else src
    shape, dtype = operands[0].shape, operands[0].dtype
    for other in src:
        if other.shape != shape:
            raise ShapeError(
                f"{op}: shapes {_all_shapes(src)} differ; expand the operands to one shape"
            )
    for other in operands:
        if other.dtype is not dtype:
            names = ", ".join(n.dtype.name for n in operands)
            raise DTypeError(f"{op}: dtypes {names} differ; cast the operands to one dtype")
    _check_domain(op, dtype)
    if op is ops.WHERE and src[0].dtype is not dtypes.bool_:
        raise DTypeError(
            f"where: the condition is {src[0].dtype.name}, not bool; compare it with 0"
        )
    return intern(op, src, arg, dtypes.bool_ if op.result == "bool" else dtype, shape)


def _all_shapes(nodes: Sequence[Node]) -> str:
    return " and ".join(str(n.shape) for n in nodes)


DOMAINS: dict[str, frozenset[DType]] = {
    "any": frozenset(dtypes.ALL),
    "number": frozenset(d for d in dtypes.ALL if d is not dtypes.bool_),
    "float": frozenset(d for d in dtypes.ALL if d.is_float),
    "int": frozenset(d for d in dtypes.ALL if d.is_int),
    "bits": frozenset(d for d in dtypes.ALL if not d.is_float),
}


def _check_domain(op: Op, dtype: DType, domain: str = "") -> None:
    domain = domain or op.domain
    if dtype not in DOMAINS[domain]:
        wanted = {"number": "a number dtype", "float": "a float dtype", "int": "an integer dtype",
                  "bits": "an integer dtype or bool"}[domain]  # fmt: skip
        raise DTypeError(f"{op}: {dtype.name} is not {wanted}; cast the tensor first")


def cast(x: Node, dtype: DType) -> Node:
    """``x`` converted to ``dtype`` (contract, op ``cast``)."""
    if x.dtype is dtype:
        return x
    return intern(ops.CAST, (x,), None, dtype, x.shape)


def bitcast(x: Node, dtype: DType) -> Node:
    """The bits of ``x`` as ``dtype``, which must be as wide."""
    if x.dtype is dtype:
        return x
    if x.dtype.bits != dtype.bits or dtypes.bool_ in (x.dtype, dtype):
        raise DTypeError(
            f"bitcast: {x.dtype.name} and {dtype.name} are not interchangeable bit patterns; "
            "use cast to convert values"
        )
    return intern(ops.BITCAST, (x,), None, dtype, x.shape)


def exp(x: Node) -> Node:
    """e to the x."""
    return alu(ops.EXP, x)


def log(x: Node) -> Node:
    """Natural logarithm."""
    return alu(ops.LOG, x)


def sin(x: Node, quarter: int = 0) -> Node:
    """sin(x + quarter*pi/2)."""
    return alu(ops.SIN, x, arg=quarter % 4)


def sqrt(x: Node) -> Node:
    """Square root."""
    return alu(ops.SQRT, x)


def trunc(x: Node) -> Node:
    """Rounded towards zero."""
    return alu(ops.TRUNC, x)


def add(a: Node, b: Node) -> Node:
    """Sum."""
    return alu(ops.ADD, a, b)


def mul(a: Node, b: Node) -> Node:
    """Product."""
    return alu(ops.MUL, a, b)


def neg(x: Node) -> Node:
    """``-x``, exactly: also for zeros, infinities and the smallest integer."""
    return mul(x, const_like(x, -1)) if x.dtype.kind != "uint" else add(invert(x), const_like(x, 1))


def sub(a: Node, b: Node) -> Node:
    """``a - b``: a + (-b), which rounds the same."""
    return add(a, neg(b))


def div(a: Node, b: Node) -> Node:
    """Quotient of floats."""
    return alu(ops.DIV, a, b)


def idiv(a: Node, b: Node) -> Node:
    """Integer quotient rounded towards zero; 0 for b = 0, wrapping for the smallest int by -1."""
    safe, usable = _guard_divisor(a, b)
    quotient = alu(ops.IDIV, a, safe)
    if usable is None:
        return quotient
    if a.dtype.kind == "int":
        quotient = where(eq(b, const_like(b, -1)), neg(a), quotient)
    return where(usable, quotient, const_like(a, 0))


def mod(a: Node, b: Node) -> Node:
    """Remainder with the sign of ``a``; for integers 0 where b = 0."""
    if a.dtype.is_float:
        return alu(ops.MOD, a, b)
    safe, usable = _guard_divisor(a, b)
    remainder = alu(ops.MOD, a, safe)
    if usable is None:
        return remainder
    return where(eq(safe, b), remainder, const_like(a, 0))


def _guard_divisor(a: Node, b: Node) -> tuple[Node, Node | None]:
    """A divisor that no device traps on, and where the quotient counts (None: everywhere)."""
    if a.dtype is not b.dtype or not a.dtype.is_int:
        return b, None  # alu raises the right error
    if b.op is ops.CONST and dtypes.from_bits(b.arg, b.dtype) not in (0, -1):
        return b, None
    one = const_like(b, 1)
    usable = ne(b, const_like(b, 0))
    safe = where(usable, b, one)
    if b.dtype.kind == "int":
        safe = where(eq(b, const_like(b, -1)), one, safe)
    return safe, usable


def maximum(a: Node, b: Node) -> Node:
    """The larger; NaN if either is NaN."""
    return alu(ops.MAX, a, b)


def minimum(a: Node, b: Node) -> Node:
    """The smaller; NaN if either is NaN."""
    if a.dtype.is_float:
        return neg(maximum(neg(a), neg(b)))
    return invert(maximum(invert(a), invert(b)))


def lt(a: Node, b: Node) -> Node:
    """``a < b``."""
    return alu(ops.LT, a, b)


def ne(a: Node, b: Node) -> Node:
    """``a != b``."""
    return alu(ops.NE, a, b)


def eq(a: Node, b: Node) -> Node:
    """``a == b``."""
    return invert(ne(a, b))


def le(a: Node, b: Node) -> Node:
    """``a <= b``."""
    if a.dtype.is_float:
        return or_(lt(a, b), eq(a, b))
    return invert(lt(b, a))


def and_(a: Node, b: Node) -> Node:
    """Bitwise and."""
    return alu(ops.AND, a, b)


def or_(a: Node, b: Node) -> Node:
    """Bitwise or."""
    return alu(ops.OR, a, b)


def xor(a: Node, b: Node) -> Node:
    """Bitwise exclusive or."""
    return alu(ops.XOR, a, b)


def invert(x: Node) -> Node:
    """Bitwise not; logical not of bool."""
    ones = x.dtype.max if x.dtype.kind in ("uint", "bool") else -1
    return xor(x, const_like(x, ones))


def shl(a: Node, b: Node) -> Node:
    """``a << b``; 0 for counts of the width or more."""
    return _guarded_shift(ops.SHL, a, b)


def shr(a: Node, b: Node) -> Node:
    """``a >> b``; the sign (or 0) for counts of the width or more."""
    return _guarded_shift(ops.SHR, a, b)


def _guarded_shift(op: Op, a: Node, b: Node) -> Node:
    width = a.dtype.bits
    if a.dtype is not b.dtype or not a.dtype.is_int:
        return alu(op, a, b)  # raises the right error
    if b.op is ops.CONST and 0 <= dtypes.from_bits(b.arg, b.dtype) < width:
        return alu(op, a, b)
    inside = lt(bitcast(b, _unsigned(b.dtype)), const(width, _unsigned(b.dtype), b.shape))
    if op is ops.SHR and a.dtype.kind == "int":
        return alu(op, a, where(inside, b, const_like(b, width - 1)))
    return where(inside, alu(op, a, where(inside, b, const_like(b, 0))), const_like(a, 0))


def _unsigned(dtype: DType) -> DType:
    return dtypes.by_name(f"uint{dtype.bits}")


def where(condition: Node, a: Node, b: Node) -> Node:
    """``a`` where the condition holds, else ``b``."""
    return alu(ops.WHERE, condition, a, b)


# ---- reductions --------------------------------------------------------------------------------


def reduce(kind: str, x: Node, axes: Sequence[int]) -> Node:
    """Fold the axes away with add, mul, max, or argmax (int64 index along one axis).

    The accumulator's dtype is the contract's (float32 for float16 and bfloat16).
    """
    axes = tuple(sorted(axes))
    _check_axes(kind, x, axes)
    if kind in ("max", "argmax") and any(x.shape[a] == 0 for a in axes):
        raise ShapeError(f"{kind}: axis of size 0 in shape {x.shape} has no largest element")
    if kind == "argmax" and len(axes) != 1:
        raise ShapeError(f"argmax: one axis at a time, not {axes}; flatten the tensor first")
    _check_domain(ops.REDUCE, x.dtype)
    if not axes:
        return x
    shape = tuple(n for i, n in enumerate(x.shape) if i not in axes)
    dtype = dtypes.int64 if kind == "argmax" else x.dtype
    return intern(ops.REDUCE, (x,), (kind, axes), dtype, shape)


def scan(kind: str, x: Node, axis: int) -> Node:
    """The running sum, product or maximum (``kind``) along one axis: element i folds 0 to i."""
    if kind not in ops.SCAN_KINDS:
        raise VerifyError(f"scan: kind {kind!r} is none of {', '.join(ops.SCAN_KINDS)}")
    _check_axes("scan", x, (axis,))
    _check_domain(ops.SCAN, x.dtype)
    return x if x.shape[axis] <= 1 else intern(ops.SCAN, (x,), (kind, axis), x.dtype, x.shape)


def argsort(x: Node, count: int | None = None) -> Node:
    """Where the ``count`` smallest elements of each row (along the last axis) stand, the smallest
    first and equal ones in their order; all of them without ``count``. ``x`` holds integers: what
    else has an order is mapped to them first."""
    _check_domain(ops.ARGSORT, x.dtype)
    if not x.shape:
        raise ShapeError("argsort: a 0-d tensor has no axis to sort along")
    length = x.shape[-1]
    count = length if count is None else count
    if not 0 <= count <= length:
        raise ShapeError(f"argsort: {count} of the {length} elements of a row of shape {x.shape}")
    dtype = dtypes.int32 if length <= dtypes.int32.max else dtypes.int64
    shape = (*x.shape[:-1], count)
    if length <= 1 or x.op is ops.CONST:
        places = iota(count, dtype)
        return expand(reshape(places, (1,) * (len(shape) - 1) + (count,)), shape)
    return intern(ops.ARGSORT, (x,), count, dtype, shape)


def _check_axes(name: str, x: Node, axes: Sequence[int]) -> None:
    if len(set(axes)) != len(axes) or any(not 0 <= a < len(x.shape) for a in axes):
        raise ShapeError(f"{name}: axes {tuple(axes)} do not fit a tensor of shape {x.shape}")


# ---- movement ----------------------------------------------------------------------------------


def reshape(x: Node, shape: Sequence[int]) -> Node:
    """The same elements, in row-major order, in another shape."""
    shape = tuple(shape)
    if shape == x.shape:
        return x
    if math.prod(shape) != math.prod(x.shape) or any(n < 0 for n in shape):
        raise ShapeError(
            f"reshape: shape {x.shape} has {math.prod(x.shape)} elements, {shape} "
            f"{math.prod(shape)}; give a shape with as many"
        )
    if x.op is ops.RESHAPE and x.buffer is None:
        return reshape(x.src[0], shape)
    if x.op is ops.CONST:
        return intern(ops.CONST, (), x.arg, x.dtype, shape)
    return intern(ops.RESHAPE, (x,), shape, x.dtype, shape)


def permute(x: Node, axes: Sequence[int]) -> Node:
    """Axes in another order: axis i of the result is axis ``axes[i]`` of x."""
    axes = tuple(axes)
    if sorted(axes) != list(range(len(x.shape))):
        raise ShapeError(
            f"permute: {axes} is no order of the {len(x.shape)} axes of shape {x.shape}; "
            "name each axis once"
        )
    if axes == tuple(range(len(axes))):
        return x
    if x.op is ops.PERMUTE and x.buffer is None:
        return permute(x.src[0], tuple(x.arg[a] for a in axes))
    shape = tuple(x.shape[a] for a in axes)
    if x.op is ops.CONST:
        return intern(ops.CONST, (), x.arg, x.dtype, shape)
    return intern(ops.PERMUTE, (x,), axes, x.dtype, shape)


def expand(x: Node, shape: Sequence[int]) -> Node:
    """Axes of size 1 repeated to the given sizes (as many axes as before)."""
    shape = tuple(shape)
    if shape == x.shape:
        return x
    fits = len(shape) == len(x.shape) and all(
        n == m or n == 1 for n, m in zip(x.shape, shape, strict=True)
    )
    if not fits or any(m < 0 for m in shape):
        raise ShapeError(
            f"expand: shape {x.shape} cannot be expanded to {shape}; only axes of size 1 can grow"
        )
    if x.op is ops.CONST:
        return intern(ops.CONST, (), x.arg, x.dtype, shape)
    if x.op is ops.EXPAND and x.buffer is None:
        return expand(x.src[0], shape)
    return intern(ops.EXPAND, (x,), shape, x.dtype, shape)


def pad(x: Node, widths: Sequence[tuple[int, int]], value: float = 0) -> Node:
    """``widths[i]`` = (before, after) elements of ``value`` around axis i."""
    pairs: Ranges = tuple((int(lo), int(hi)) for lo, hi in widths)
    if len(pairs) != len(x.shape) or any(lo < 0 or hi < 0 for lo, hi in pairs):
        raise ShapeError(
            f"pad: widths {pairs} do not fit shape {x.shape}; one pair of sizes >= 0 per axis"
        )
    if all(pair == (0, 0) for pair in pairs):
        return x
    shape = tuple(n + lo + hi for n, (lo, hi) in zip(x.shape, pairs, strict=True))
    bits = to_bits(value, x.dtype)
    if x.op is ops.CONST and x.arg == bits:
        return intern(ops.CONST, (), bits, x.dtype, shape)
    return intern(ops.PAD, (x,), (pairs, bits), x.dtype, shape)


def shrink(x: Node, ranges: Sequence[tuple[int, int]]) -> Node:
    """The block ``ranges[i]`` = (start, stop) of each axis."""
    pairs: Ranges = tuple((int(lo), int(hi)) for lo, hi in ranges)
    if len(pairs) != len(x.shape) or any(
        not 0 <= lo <= hi <= n for (lo, hi), n in zip(pairs, x.shape, strict=True)
    ):
        raise ShapeError(f"shrink: ranges {pairs} do not lie inside shape {x.shape}")
    shape = tuple(hi - lo for lo, hi in pairs)
    if shape == x.shape:
        return x
    if x.op is ops.CONST:
        return intern(ops.CONST, (), x.arg, x.dtype, shape)
    return intern(ops.SHRINK, (x,), pairs, x.dtype, shape)


def flip(x: Node, axes: Sequence[int]) -> Node:
    """The axes reversed."""
    axes = tuple(sorted(axes))
    _check_axes("flip", x, axes)
    if x.op is ops.CONST or all(x.shape[a] == 1 for a in axes):
        return x
    return intern(ops.FLIP, (x,), axes, x.dtype, x.shape)


def window(x: Node, axis: int, size: int, stride: int = 1, dilation: int = 1) -> Node:
    """Sliding windows: ``out[..o.., k] = x[..o*stride + k*dilation..]``, k a new last axis."""
    _check_axes("window", x, (axis,))
    span = dilation * (size - 1) + 1
    if size < 1 or stride < 1 or dilation < 1 or span > x.shape[axis]:
        raise ShapeError(
            f"window: {size} taps with dilation {dilation} span {span} elements, stride {stride}, "
            f"but axis {axis} of shape {x.shape} has {x.shape[axis]}; "
            "pad it or use a smaller window"
        )
    count = (x.shape[axis] - span) // stride + 1
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :], size)
    if x.op is ops.CONST:
        return intern(ops.CONST, (), x.arg, x.dtype, shape)
    return intern(ops.WINDOW, (x,), (axis, size, stride, dilation), x.dtype, shape)


def fold(x: Node, axis: int, length: int, stride: int = 1, dilation: int = 1) -> Node:
    """The adjoint of :func:`window`: windows added back into an axis of ``length`` elements."""
    _check_axes("fold", x, (axis,))
    _check_domain(ops.FOLD, x.dtype)
    span = dilation * (x.shape[-1] - 1) + 1
    if (
        len(x.shape) < 2
        or axis == len(x.shape) - 1
        or span > length
        or ((length - span) // stride + 1 != x.shape[axis])
    ):
        raise ShapeError(
            f"fold: shape {x.shape} is no window (axis {axis}, stride {stride}, dilation "
            f"{dilation}) of an axis of {length} elements"
        )
    shape = (*x.shape[:axis], length, *x.shape[axis + 1 : -1])
    return intern(ops.FOLD, (x,), (axis, length, stride, dilation), x.dtype, shape)


def cat(parts: Sequence[Node], axis: int) -> Node:
    """Tensors of one dtype, equal in all other axes, one after the other along ``axis``."""
    if not parts:
        raise ShapeError("cat: no tensors were given; pass at least one")
    first = parts[0]
    _check_axes("cat", first, (axis,))
    for part in parts:
        if part.dtype is not first.dtype:
            raise DTypeError(
                f"cat: dtypes {first.dtype.name} and {part.dtype.name} differ; "
                "cast the tensors to one dtype"
            )
        if _outside(part, axis) != _outside(first, axis):
            raise ShapeError(
                f"cat: shapes {first.shape} and {part.shape} differ outside axis {axis}"
            )
    filled = tuple(p for p in parts if p.shape[axis])
    if len(filled) < 2:
        return filled[0] if filled else first
    total = sum(p.shape[axis] for p in filled)
    shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
    return intern(ops.CAT, filled, axis, first.dtype, shape)


def _outside(x: Node, axis: int) -> tuple[Shape, Shape]:
    return x.shape[:axis], x.shape[axis + 1 :]


# ---- movement by numbers -----------------------------------------------------------------------


def slice_at(x: Node, axes: Sequence[int], starts: Sequence[Node], lengths: Sequence[int]) -> Node:
    """The block of ``lengths[i]`` elements from ``starts[i]`` on, a number node, of axis
    ``axes[i]``; all of the other axes."""
    axes, lengths = tuple(axes), tuple(lengths)
    shape = list(x.shape)
    for axis, length in zip(axes, lengths, strict=True):
        shape[axis] = length
    _check_starts("slice", x.shape, axes, starts, shape)
    if x.op is ops.CONST:
        return intern(ops.CONST, (), x.arg, x.dtype, tuple(shape))
    return intern(ops.SLICE, (x, *starts), (axes, lengths), x.dtype, tuple(shape))


def update_at(base: Node, value: Node, axes: Sequence[int], starts: Sequence[Node]) -> Node:
    """``base`` with ``value`` in place of the block that :func:`slice_at` would take."""
    axes = tuple(axes)
    if value.dtype is not base.dtype:
        raise DTypeError(
            f"update: dtypes {base.dtype.name} and {value.dtype.name} differ; "
            "cast the value to the base's dtype"
        )
    _check_starts("update", base.shape, axes, starts, value.shape)
    return intern(ops.UPDATE, (base, value, *starts), axes, base.dtype, base.shape)


def _check_starts(
    name: str, whole: Shape, axes: Sequence[int], starts: Sequence[Node], block: Sequence[int]
) -> None:
    others = [n for axis, n in enumerate(whole) if axis not in axes]
    if len(block) != len(whole) or others != [n for a, n in enumerate(block) if a not in axes]:
        raise ShapeError(f"{name}: a block of shape {tuple(block)} does not fit shape {whole}")
    for axis, start in zip(axes, starts, strict=True):
        bound = start.arg[1] if start.op is ops.NUMBER else 0
        if not 0 <= bound <= whole[axis] - block[axis]:
            raise ShapeError(
                f"{name}: {block[axis]} elements from 0 .. {bound} on do not lie inside axis "
                f"{axis} of shape {whole}"
            )


# ---- data-dependent ----------------------------------------------------------------------------


def check(index: Node, length: int, where_made: str) -> Node:
    """The index counted from 0 (negative ones from the end); outside [-length, length) it is an
    error at the next synchronisation, whose message says ``where_made``. An index too narrow to
    be counted so (-1 of 200, in int8) is widened."""
    if not index.dtype.is_int:
        raise DTypeError(f"index: {index.dtype.name} is no integer dtype; cast the index to int64")
    if index.dtype.kind == "int" and length - 1 > index.dtype.max:
        index = cast(index, dtypes.int32 if length - 1 <= dtypes.int32.max else dtypes.int64)
    return intern(ops.CHECK, (index,), (length, where_made), index.dtype, index.shape)


def gather(x: Node, index: Node) -> Node:
    """``x[index]`` along axis 0; shape ``index.shape + x.shape[1:]``. Indices must be in range:
    pass them through :func:`check` unless they are so by construction."""
    if not index.dtype.is_int:
        raise DTypeError(f"gather: {index.dtype.name} is no integer dtype; cast the index to int64")
    if not x.shape:
        raise ShapeError("gather: a 0-d tensor has no axis to index")
    return intern(ops.GATHER, (x, index), None, x.dtype, index.shape + x.shape[1:])


def scatter(base: Node, index: Node, value: Node, kind: str) -> Node:
    """``base`` with ``base[index[i]]`` set to ``value[i]`` (kind "set": the last one stays) or
    increased by it (kind "add"), in source order; the same answer every time."""
    if not index.dtype.is_int:
        raise DTypeError(
            f"scatter: {index.dtype.name} is no integer dtype; cast the index to int64"
        )
    if not base.shape:
        raise ShapeError("scatter: a 0-d tensor has no axis to index")
    if len(index.shape) != 1 or value.shape != index.shape + base.shape[1:]:
        raise ShapeError(
            f"scatter: value of shape {value.shape} does not fit index {index.shape} into "
            f"{base.shape}"
        )
    if value.dtype is not base.dtype:
        raise DTypeError(
            f"scatter: dtypes {base.dtype.name} and {value.dtype.name} differ; "
            "cast the value to the base's dtype"
        )
    if kind == "add":
        _check_domain(ops.SCATTER, base.dtype, "number")
    return intern(ops.SCATTER, (base, index, value), kind, base.dtype, base.shape)


# ---- boundaries and markers --------------------------------------------------------------------


def contiguous(x: Node) -> Node:
    """``x`` in a buffer of its own."""
    if x.op in (ops.CONTIGUOUS, ops.BUFFER):
        return x
    return intern(ops.CONTIGUOUS, (x,), None, x.dtype, x.shape)


def copy(x: Node, source: str, device: str) -> Node:
    """``x`` (on device ``source``) on another device."""
    return intern(ops.COPY, (x,), (source, device), x.dtype, x.shape)


def leaf(x: Node, tag: object) -> Node:
    """Marks ``x`` as a tensor of its own, which may receive a gradient; ``tag`` is its identity."""
    return intern(ops.LEAF, (x,), tag, x.dtype, x.shape)


def detach(x: Node) -> Node:
    """``x``, through which no gradient passes."""
    if x.op is ops.DETACH:
        return x
    return intern(ops.DETACH, (x,), None, x.dtype, x.shape)


def custom(x: Node, inputs: Sequence[Node], rule: object) -> Node:
    """``x``, whose gradient for each of ``inputs`` comes from ``rule.vjp(gradient)``."""
    return intern(ops.CUSTOM, (x, *inputs), rule, x.dtype, x.shape)
