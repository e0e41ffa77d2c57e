"""Brackets: reading and writing parts of a tensor by numbers, slices, masks and index tensors.

A key is taken apart once (:func:`parse`). Numbers and slices become movement ops; index tensors
become one gather or scatter over the axes they name. Writing gives the name a new value. An index
that is known on the host is checked at the call, any other one when it is computed.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from coregrad import dtypes, engine
from coregrad.api import capture
from coregrad.api.base import TensorBase, broadcast_shapes, dim_or_axis
from coregrad.api.base import expand as expand_node
from coregrad.api.device import default_int, host_memory
from coregrad.api.host import Array
from coregrad.api.movement import Movement, block, is_stored, position
from coregrad.api.variable import BoundVariable
from coregrad.dtypes import DType
from coregrad.errors import DTypeError, IndexRangeError, ShapeError
from coregrad.ir import build, ops
from coregrad.ir.graph import Node, Shape

if TYPE_CHECKING:
    from typing_extensions import Self

WHOLE = slice(None)


# ---- taking a key apart --------------------------------------------------------------------------


@dataclass(frozen=True)
class Span:
    """What a number or slice takes of one axis: ``count`` elements from ``start`` by ``step``, or
    from ``number`` on, where that is a variable's value."""

    start: int
    count: int
    step: int
    number: Node | None = None

    @property
    def low(self) -> int:
        """The smallest element taken."""
        return self.start if self.step > 0 else self.start + (self.count - 1) * self.step

    @property
    def stride(self) -> int:
        """The distance of two elements."""
        return abs(self.step)


@dataclass
class Key:
    """A key, for a tensor of one shape.

    ``spans`` has one entry per axis. ``basic`` is the shape after numbers, slices and None;
    ``tensors`` maps axes of that shape to index tensors, ``partial`` to how many of their elements
    are there.
    """

    spans: list[Span] = field(default_factory=list)
    basic: list[int] = field(default_factory=list)
    tensors: dict[int, TensorBase] = field(default_factory=dict)
    partial: dict[int, BoundVariable] = field(default_factory=dict)

    @property
    def numbers(self) -> dict[int, Node]:
        """Where spans start that start at a variable."""
        return {a: span.number for a, span in enumerate(self.spans) if span.number is not None}

    def take(self, length: int, span: Span | None = None, keep: bool = True) -> None:
        """Use up one axis of the source."""
        span = Span(0, length, 1) if span is None else span
        self.spans.append(span)
        if keep:
            self.basic.append(span.count)


def parse(x: TensorBase, key: Any) -> Key:
    """The key's items laid against the axes of ``x``."""
    items = [_item(x, i) for i in (key if isinstance(key, tuple) else (key,))]
    used = sum(_axes_used(i) for i in items)
    dots = [n for n, i in enumerate(items) if i is Ellipsis]
    if len(dots) > 1 or used > x.ndim:
        reason = "has more than one ..." if len(dots) > 1 else f"names {used} axes"
        raise IndexRangeError(f"index: the key {reason}, the tensor has shape {x.shape}")
    missing = [WHOLE] * (x.ndim - used)
    place = dots[0] if dots else len(items)
    items[place : place + 1] = missing
    out = Key()
    for item in items:
        _lay(x, out, item)
    return out


def _item(x: TensorBase, item: Any) -> Any:
    """Lists and arrays become tensors; everything else is checked."""
    if item is None or item is Ellipsis or isinstance(item, (slice, TensorBase, BoundVariable)):
        return item
    if isinstance(item, (bool, np.bool_)):
        raise IndexRangeError(
            "index: True and False index nothing here; use a mask or unsqueeze(0)"
        )
    if isinstance(item, (int, np.integer)):
        return int(item)
    if isinstance(item, (list, tuple, range, np.ndarray)):
        array = np.asarray(item)
        if array.size == 0:
            array = array.astype(np.int64)
        return TensorBase(array, device=x.device, requires_grad=False)
    if hasattr(item, "__index__"):
        return operator.index(item)
    raise TypeError(
        f"index: {type(item).__name__} is no index; use ints, slices, None, ..., lists or tensors"
    )


def _axes_used(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    if isinstance(item, TensorBase) and item.dtype is dtypes.bool_:
        return item.ndim
    return 1


def _lay(x: TensorBase, key: Key, item: Any) -> None:
    axis = len(key.spans)
    if item is None:
        key.basic.append(1)
        return
    if isinstance(item, TensorBase):
        _lay_tensor(x, key, item)
        return
    length = x.shape[axis]
    if isinstance(item, BoundVariable):
        key.take(length, _from_variable(item, 1, axis, length), keep=False)
    elif isinstance(item, slice):
        if isinstance(item.start, BoundVariable) or isinstance(item.stop, BoundVariable):
            key.take(length, _variable_span(key, item, axis, length))
        else:
            key.take(length, _span(item, length))
    else:
        key.take(length, Span(position("index", item, axis, x.shape), 1, 1), keep=False)


def _span(item: slice, length: int) -> Span:
    if item.step == 0:
        raise ShapeError("index: a slice with step 0 goes nowhere; use 1, 2, ... or -1")
    try:
        start, stop, step = item.indices(length)
    except TypeError:
        raise TypeError(f"index: a slice takes ints or None, not {item}") from None
    return Span(start, len(range(start, stop, step)), step)


def _from_variable(start: BoundVariable, count: int, axis: int, length: int) -> Span:
    if start.low < 0 or start.high + count > length:
        raise IndexRangeError(
            f"index: {count} elements from {start} on, which is {start.low} to {start.high}, do "
            f"not lie inside axis {axis} of {length} elements"
        )
    return Span(0, count, 1, start.node())


def _variable_span(key: Key, item: slice, axis: int, length: int) -> Span:
    """A slice whose start or length is a variable: one of the two."""
    start, stop = item.start, item.stop
    if item.step not in (None, 1):
        raise ShapeError(f"index: a slice that ends or starts at a variable has step {item.step}")
    if isinstance(start, BoundVariable):
        if not isinstance(stop, BoundVariable) or (stop.variable, stop.given) != (
            start.variable,
            start.given,
        ):
            raise ShapeError(
                f"index: a slice from {start} to {stop} has no length that is known; let it end at "
                f"{start} + a number"
            )
        if stop.shift <= start.shift:
            raise ShapeError(f"index: a slice from {start} to {stop} is empty")
        return _from_variable(start, stop.shift - start.shift, axis, length)
    first = 0 if start is None else operator.index(start)
    count = stop - first
    if first < 0 or count.low < 1 or stop.high > length:
        raise IndexRangeError(
            f"index: a slice from {first} to {stop}, which is {stop.low} to {stop.high}, does not "
            f"take 1 element or more of axis {axis} of {length} elements"
        )
    key.partial[len(key.basic)] = count
    return Span(first, count.high, 1)


def _lay_tensor(x: TensorBase, key: Key, item: TensorBase) -> None:
    axis = len(key.spans)
    if item.dtype is not dtypes.bool_:
        if not item.dtype.is_int:
            raise DTypeError(
                f"index: a {item.dtype.name} tensor is no index; cast it to int64, or compare it "
                "to make a mask"
            )
        key.tensors[len(key.basic)] = item
        key.take(x.shape[axis])
        return
    if not item.ndim:
        raise ShapeError("index: a 0-d mask has no axis; use where(), or `if` on its value")
    if item.shape != x.shape[axis : axis + item.ndim]:
        raise ShapeError(
            f"index: a mask of shape {item.shape} does not fit shape {x.shape} from axis {axis} on"
        )
    for places in np.nonzero(item.numpy()):
        key.tensors[len(key.basic)] = TensorBase(places, device=x.device, requires_grad=False)
        key.take(x.shape[len(key.spans)])


# ---- index tensors -------------------------------------------------------------------------------


def caller() -> str:
    """File and line of the user's code that led here."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] == "coregrad":
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def in_range(name: str, index: TensorBase, axis: int, length: int) -> Node:
    """The index counted from 0. IndexRangeError outside [-length, length): at the call if the
    values can be looked at, else when they are computed."""
    node = index.node
    if not node.dtype.is_int:
        raise DTypeError(
            f"{name}: a {node.dtype.name} tensor is no index; cast it to int64, or compare it to "
            "make a mask"
        )
    known = known_range(node, index.device)
    if known is None:
        return build.check(node, length, caller())
    low, high = known
    if low < -length or high >= length:
        wrong = low if low < -length else high
        raise IndexRangeError(
            f"{name}: index {wrong} is outside axis {axis} of size {length}; "
            f"use {-length} to {length - 1}"
        )
    if low >= 0:
        return node
    moved = build.add(node, build.const_like(node, length))
    return build.where(build.lt(node, build.const_like(node, 0)), moved, node)


def known_range(node: Node, device: str) -> tuple[int, int] | None:
    """The smallest and the largest of :func:`known_values`. They are looked at once: what a buffer
    node holds stays while there is the node, and a large index takes longer to look at than to
    use."""
    found = engine.resolve(node)
    known = _ranges.get(found)
    if known is not None and not is_captured():
        return known
    values = known_values(node, device)
    if values is None:
        return None
    known = (int(values.min()), int(values.max())) if values.size else (0, -1)
    if found.op is ops.BUFFER:
        _ranges[found] = known
    return known


_ranges: WeakKeyDictionary[Node, tuple[int, int]] = WeakKeyDictionary()


def is_captured() -> bool:
    """Whether what is called now will be replayed, with other values."""
    return capture.recorder is not None and capture.recorder.is_here()


def known_values(node: Node, device: str) -> Array | None:
    """The values of a node that are on the host already, and will not be others in a replay."""
    if is_captured():
        return None
    found = engine.resolve(node)
    if found.op is ops.CONST:
        return np.asarray(
            [dtypes.from_bits(found.arg, found.dtype)] if math.prod(node.shape) else []
        )
    if found.op is ops.BUFFER and host_memory(device):
        return engine.read(found, device)
    return None


def flat_positions(indices: Sequence[Node], shape: Sequence[int], dtype: DType) -> Node:
    """Row-major positions in a tensor of ``shape`` of elements given by one index per axis."""
    if len(indices) == 1:
        return indices[0]
    total = None
    for index, length in zip(indices, shape, strict=True):
        index = build.cast(index, dtype)
        if total is None:
            total = index
        else:
            total = build.add(build.mul(total, build.const_like(total, length)), index)
    assert total is not None
    return total


@dataclass(frozen=True)
class Lookup:
    """Index tensors over some axes of a node: the axes brought to the front and made one."""

    order: tuple[int, ...]  # the axes in the order: indexed ones, then the others
    indexed: Shape  # sizes of the indexed axes
    others: Shape  # sizes of the other axes
    index: Node  # positions in the one axis, in the shape the indices broadcast to
    place: int  # where the axes of the index stand in the result

    def rows(self, node: Node) -> Node:
        """The node with the indexed axes as one in front."""
        return build.reshape(
            build.permute(node, self.order), (math.prod(self.indexed), *self.others)
        )

    def back(self, rows: Node) -> Node:
        """The inverse of :meth:`rows`."""
        apart = build.reshape(rows, (*self.indexed, *self.others))
        return build.permute(apart, _inverse(self.order))

    def result_order(self) -> tuple[int, ...]:
        """How the axes of ``gather(rows, index)`` make those of the result."""
        rank = len(self.index.shape)
        index_axes = range(rank)
        others = [rank + i for i in range(len(self.others))]
        return (*others[: self.place], *index_axes, *others[self.place :])


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(order.index(axis) for axis in range(len(order)))


def lookup(x: TensorBase, shape: Shape, tensors: dict[int, TensorBase]) -> Lookup:
    """The index tensors over a node of this shape, made one."""
    axes = tuple(tensors)
    for tensor in tensors.values():
        x._check_device("index", tensor)
    full = broadcast_shapes("index", *(t.shape for t in tensors.values()))
    nodes = [expand_node(in_range("index", t, axis, shape[axis]), full)
             for axis, t in tensors.items()]  # fmt: skip
    rest = tuple(a for a in range(len(shape)) if a not in tensors)
    indexed = tuple(shape[a] for a in axes)
    index = flat_positions(nodes, indexed, default_int(x.device))
    adjacent = axes == tuple(range(axes[0], axes[-1] + 1))
    others = tuple(shape[a] for a in rest)
    return Lookup((*axes, *rest), indexed, others, index, axes[0] if adjacent else 0)


# ---- numbers and slices on nodes -----------------------------------------------------------------


def cut(node: Node, key: Key) -> Node:
    """The part that numbers and slices take, in the shape ``key.basic``."""
    ranges, backward = [], []
    for axis, span in enumerate(key.spans):
        last = span.low + (span.count - 1) * span.stride + 1 if span.count else span.low
        ranges.append((span.low, last) if span.count else (0, 0))
        if span.step < 0 and span.count > 1:
            backward.append(axis)
    node = block(node, ranges, key.numbers)
    node = build.flip(node, backward) if backward else node
    for axis, span in enumerate(key.spans):
        if span.stride > 1 and span.count > 1:
            strided = build.window(node, axis, 1, span.stride)
            node = build.reshape(strided, strided.shape[:-1])
    return build.reshape(node, key.basic)


def put(value: Node, key: Key, shape: Shape, filler: float) -> Node:
    """The inverse of :func:`cut`: ``value`` in its place in a tensor of ``shape`` of ``filler``."""
    node = build.reshape(value, [span.count for span in key.spans])
    backward = [a for a, span in enumerate(key.spans) if span.step < 0 and span.count > 1]
    node = build.flip(node, backward) if backward else node
    for axis, span in enumerate(key.spans):
        if span.stride > 1 and span.count > 1:
            node = _spread(node, axis, span.stride, filler)
    ends = [(span.low if span.count else 0) for span in key.spans]
    widths = [(lo, n - lo - m) for lo, n, m in zip(ends, shape, node.shape, strict=True)]
    return build.pad(node, widths, filler)


def written(node: Node, new: Node, key: Key) -> Node:
    """``node`` with ``new`` in the place that numbers and slices name. Into stored data it is
    written at starts that are numbers: another place needs no other kernel."""
    even = all(span.count and (span.step == 1 or span.count == 1) for span in key.spans)
    axes = [a for a, span in enumerate(key.spans) if span.count < node.shape[a]]
    numbers = key.numbers
    if numbers and not even:
        raise ShapeError("setitem: beside a variable, slices with other steps than 1 do not work")
    if even and axes and (numbers or is_stored(node)):
        starts = [
            numbers[a]
            if a in numbers
            else build.number(key.spans[a].low, node.shape[a] - key.spans[a].count)
            for a in axes
        ]
        value = build.reshape(new, [span.count for span in key.spans])
        return build.update_at(node, value, axes, starts)
    mask = put(build.const(True, dtypes.bool_, new.shape), key, node.shape, False)
    return build.where(mask, put(new, key, node.shape, 0), node)


def _spread(node: Node, axis: int, stride: int, filler: float) -> Node:
    """``stride - 1`` fillers between the elements of an axis."""
    count = node.shape[axis]
    before, after = node.shape[:axis], node.shape[axis + 1 :]
    wide = build.reshape(node, (*before, count, 1, *after))
    widths = [(0, 0)] * len(wide.shape)
    widths[axis + 1] = (0, stride - 1)
    wide = build.reshape(build.pad(wide, widths, filler), (*before, count * stride, *after))
    ranges = [(0, n) for n in wide.shape]
    ranges[axis] = (0, (count - 1) * stride + 1)
    return build.shrink(wide, ranges)


def _fitted(name: str, value: Node, shape: Shape) -> Node:
    """A value broadcast to the shape that is written; axes of size 1 in front may be dropped."""
    while len(value.shape) > len(shape) and value.shape[0] == 1:
        value = build.reshape(value, value.shape[1:])
    fits = len(value.shape) <= len(shape) and all(
        n in (1, m) for n, m in zip(value.shape[::-1], shape[::-1], strict=False)
    )
    if not fits:
        raise ShapeError(
            f"{name}: a value of shape {value.shape} does not fit the part of shape {shape} that "
            "it is written to"
        )
    return expand_node(value, shape)


# ---- the methods ---------------------------------------------------------------------------------


class Indexing(Movement):
    """``t[...]``, ``t[...] = v``, gather, scatter and their relatives."""

    def __getitem__(self, key: Any) -> Self:
        if type(key) is int and self._node.shape:
            return self.select(0, key)
        parsed = parse(self, key)
        node = cut(self.node, parsed)
        if parsed.tensors:
            found = lookup(self, node.shape, parsed.tensors)
            rows = build.gather(found.rows(node), found.index)
            node = build.permute(rows, found.result_order())
        if parsed.partial:
            return self._partially(node, parsed)
        return self._make(node)

    def _partially(self, node: Node, parsed: Key) -> Self:
        """A part whose length is a variable."""
        if parsed.tensors:
            raise ShapeError("index: a length that varies does not go with index tensors")
        made: Self = self._partial(self._make(node), parsed.partial)
        return made

    def __setitem__(self, key: Any, value: Any) -> None:
        given = self._value(value)
        if isinstance(key, TensorBase) and key.dtype is dtypes.bool_ and given.numel() == 1:
            self._set_where(key, given)
            return
        parsed = parse(self, key)
        if parsed.partial:
            raise ShapeError(
                "setitem: the part that is written has a length that varies; write a fixed number "
                "of elements at a place that varies, as in x[n : n + 1] = value"
            )
        node = self.node
        part = tuple(parsed.basic)
        if parsed.tensors:
            new = self._scattered(cut(node, parsed), parsed, given)
        else:
            new = _fitted("setitem", given.node, part)
        if part != node.shape or any(s.step < 0 or s.stride > 1 for s in parsed.spans):
            new = written(node, new, parsed)
        self._update("setitem", build.reshape(new, node.shape), given)

    def _value(self, value: Any) -> TensorBase:
        """What is written, in this tensor's dtype: tensors are cast, Python numbers must fit."""
        if isinstance(value, TensorBase):
            self._check_device("setitem", value)
            return value._make(build.cast(value.node, self.dtype))
        if isinstance(value, (int, float)):
            return self._with(build.const(value, self.dtype, ()), False)
        return self._given("setitem", value)

    def _set_where(self, mask: TensorBase, value: TensorBase) -> None:
        """One number where a mask holds needs no positions."""
        self._check_device("setitem", mask)
        if mask.shape != self.shape[: mask.ndim]:
            raise ShapeError(
                f"setitem: a mask of shape {mask.shape} does not fit a tensor of shape {self.shape}"
            )
        node = self.node
        wide = build.reshape(mask.node, mask.shape + (1,) * (self.ndim - mask.ndim))
        number = expand_node(build.reshape(value.node, ()), node.shape)
        self._update("setitem", build.where(expand_node(wide, node.shape), number, node), value)

    def _scattered(self, node: Node, key: Key, value: TensorBase) -> Node:
        found = lookup(self, node.shape, key.tensors)
        order = found.result_order()
        rows_shape = found.index.shape + found.others
        fitted = _fitted("setitem", value.node, tuple(rows_shape[a] for a in order))
        rows = build.permute(fitted, _inverse(order))
        count = math.prod(found.index.shape)
        written = build.scatter(
            found.rows(node),
            build.reshape(found.index, (count,)),
            build.reshape(rows, (count, *found.others)),
            "set",
        )
        return found.back(written)

    def __iter__(self) -> Iterator[Self]:
        if not self.shape:
            raise TypeError("iter: a 0-d tensor has no elements to go through; read it with item()")
        return (self.select(0, i) for i in range(self.shape[0]))

    # ---- PyTorch's functions -------------------------------------------------------------------

    @dim_or_axis
    def gather(self, dim: int, index: TensorBase) -> Self:
        """``out[i][j] = self[index[i][j]][j]`` for dim 0, and so on: one element per index.

        Raises IndexRangeError for an index out of range, ShapeError if axes do not fit.

        >>> Tensor([[1, 2], [3, 4]]).gather(1, Tensor([[1], [0]])).tolist()
        [[2], [3]]
        """
        places = self._places("gather", dim, index)
        flat = build.reshape(self.node, (self.numel(),))
        return self._make(build.gather(flat, places))

    def _places(self, name: str, dim: int, index: TensorBase) -> Node:
        """Row-major positions of the elements that an index along ``dim`` names."""
        axis = self._dim(name, dim)
        self._check_device(name, index)
        shape = self.shape or (1,)
        rank_fits = max(index.ndim, 1) == len(shape)
        if not rank_fits or any(
            m > n for i, (m, n) in enumerate(zip(index.shape, shape, strict=False)) if i != axis
        ):
            raise ShapeError(
                f"{name}: an index of shape {index.shape} does not fit shape {self.shape} along "
                f"axis {dim}; other axes must not be longer than the tensor's"
            )
        dtype = default_int(self.device)
        wanted = in_range(name, index, axis, shape[axis])
        indices = []
        for i, _ in enumerate(index.shape or (1,)):
            if i == axis:
                indices.append(wanted)
            else:
                column = [1] * index.ndim
                column[i] = index.shape[i]
                numbers = build.reshape(build.iota(index.shape[i], dtype), column)
                indices.append(expand_node(numbers, index.shape))
        return flat_positions(indices, shape, dtype)

    @dim_or_axis
    def scatter(self, dim: int, index: TensorBase, src: Any, reduce: str | None = None) -> Self:
        """``out[index[i][j]][j] = src[i][j]`` for dim 0, and so on; the last one stays.

        ``src`` is a tensor or a number; ``reduce`` may be "add" or "multiply".

        >>> Tensor([0, 0, 0]).scatter(0, Tensor([2, 0]), Tensor([5, 6])).tolist()
        [6, 0, 5]
        """
        if reduce == "multiply":
            return self.scatter_reduce(dim, index, self._source(index, src), "prod")
        if reduce not in (None, "add"):
            raise ValueError(f"scatter: reduce={reduce!r}; use None, 'add' or 'multiply'")
        kind = "set" if reduce is None else "add"
        return self._scatter("scatter", kind, dim, index, self._source(index, src))

    @dim_or_axis
    def scatter_add(self, dim: int, index: TensorBase, src: TensorBase) -> Self:
        """``out[index[i][j]][j] += src[i][j]`` for dim 0, and so on, the same every time.

        >>> Tensor([0, 0]).scatter_add(0, Tensor([1, 1, 0]), Tensor([1, 2, 4])).tolist()
        [4, 3]
        """
        return self._scatter("scatter_add", "add", dim, index, src)

    def _source(self, index: TensorBase, src: Any) -> TensorBase:
        if isinstance(src, TensorBase):
            return src
        return self._with(build.const(src, self.dtype, index.shape), False)

    def _scatter(self, name: str, kind: str, dim: int, index: TensorBase, src: TensorBase) -> Self:
        places = self._places(name, dim, index)
        value = _covered(name, self, index, src)
        count = index.numel()
        made = build.scatter(
            build.reshape(self.node, (self.numel(),)),
            build.reshape(places, (count,)),
            build.reshape(value, (count,)),
            kind,
        )
        return self._make(build.reshape(made, self.shape), src)

    @dim_or_axis
    def scatter_reduce(
        self, dim: int, index: TensorBase, src: TensorBase, reduce: str, include_self: bool = True
    ) -> Self:
        """Fold ``src`` into the elements that ``index`` names: "sum", "prod", "mean", "amax",
        "amin". Without ``include_self`` the elements that something is folded into start anew.

        >>> x = Tensor([1.0, 1.0])
        >>> x.scatter_reduce(0, Tensor([1, 1]), Tensor([3.0, 5.0]), "amax").tolist()
        [1.0, 5.0]
        """
        if reduce not in FOLDS:
            raise ValueError(f"scatter_reduce: reduce={reduce!r}; use one of {sorted(FOLDS)}")
        ones = build.const(1, self.dtype, index.shape)
        zero = self._with(build.const(0, self.dtype, self.shape), False)
        hits = zero._scatter("scatter_reduce", "add", dim, index, self._with(ones, False))
        base = self
        if not include_self:
            base = base.masked_fill(hits > 0, FOLDS[reduce](self.dtype))
        if reduce in ("sum", "mean"):
            total = base._scatter("scatter_reduce", "add", dim, index, src)
            if reduce == "sum":
                return total
            count = (hits + int(include_self)).clamp(min=1)
            return total / count if self.dtype.is_float else total // count
        return base._folded(dim, index, src, reduce)

    def _folded(self, dim: int, index: TensorBase, src: TensorBase, reduce: str) -> Self:
        """Each element looks at all of ``src``: n*k steps, but any fold and no order to mind."""
        axis = self._dim("scatter_reduce", dim)
        places = in_range("scatter_reduce", index, axis, self.shape[axis])
        value = _covered("scatter_reduce", self, index, src)
        length = self.shape[axis]
        shape = (*index.shape[:axis], length, *index.shape[axis:])
        rank = len(shape)
        numbers = build.reshape(
            build.iota(length, places.dtype), [length if i == axis else 1 for i in range(rank)]
        )
        apart = (*index.shape[:axis], 1, *index.shape[axis:])
        mine = build.eq(
            expand_node(numbers, shape), build.expand(build.reshape(places, apart), shape)
        )
        wide = build.expand(build.reshape(value, apart), shape)
        neutral = build.const(FOLDS[reduce](self.dtype), self.dtype, shape)
        chosen = build.where(mine, wide, neutral)
        node, join = _fold(chosen, axis + 1, reduce)
        border = [(0, n - m) for n, m in zip(self.shape, node.shape, strict=True)]
        whole = build.pad(node, border, FOLDS[reduce](self.dtype))
        return self._make(join(self.node, whole), src)

    @dim_or_axis
    def index_select(self, dim: int, index: TensorBase) -> Self:
        """The elements of an axis that a vector of indices names.

        >>> Tensor([[1, 2], [3, 4]]).index_select(1, Tensor([1, 1])).tolist()
        [[2, 2], [4, 4]]
        """
        axis = self._dim("index_select", dim)
        self._check_device("index_select", index)
        if index.ndim > 1:
            raise ShapeError(f"index_select: the index has shape {index.shape}; give a vector")
        return self[(WHOLE,) * axis + (index.reshape(-1),)]  # type: ignore[attr-defined]

    @dim_or_axis
    def take_along_dim(self, indices: TensorBase, dim: int | None = None) -> Self:
        """:meth:`gather` whose other axes are broadcast; without ``dim``, of the flattened tensor.

        >>> Tensor([[1, 2], [3, 4]]).take_along_dim(Tensor([[1], [0]]), 1).tolist()
        [[2], [3]]
        """
        if dim is None:
            return self.flatten().gather(0, indices.flatten())  # type: ignore[attr-defined]
        axis = self._own_dim("take_along_dim", dim)
        one = (*self.shape[:axis], 1, *self.shape[axis + 1 :])
        two = (*indices.shape[:axis], 1, *indices.shape[axis + 1 :])
        common = list(broadcast_shapes("take_along_dim", one, two))
        common[axis] = self.shape[axis]
        source = self.expand(*common)
        common[axis] = indices.shape[axis]
        return source.gather(axis, indices.expand(*common))  # type: ignore[attr-defined]

    def masked_select(self, mask: TensorBase) -> Self:
        """The elements where a mask holds, as a vector. Reads the mask: its shape depends on it.

        >>> Tensor([1, 2, 3]).masked_select(Tensor([True, False, True])).tolist()
        [1, 3]
        """
        self._check_device("masked_select", mask)
        if mask.dtype is not dtypes.bool_:
            raise DTypeError(f"masked_select: the mask is {mask.dtype.name}, not bool; compare it")
        shape = broadcast_shapes("masked_select", self.shape, mask.shape)
        return self.expand(shape).flatten()[mask.expand(shape).flatten()]  # type: ignore[attr-defined]

    def nonzero(self, as_tuple: bool = False) -> Any:
        """Where elements are not 0: a row of indices per element, or with ``as_tuple`` a vector per
        axis. Reads the tensor: its shape depends on it.

        >>> Tensor([[0, 1], [2, 0]]).nonzero().tolist()
        [[0, 1], [1, 0]]
        """
        places = np.argwhere(self.numpy())
        return tuple(map(self._host, places.T)) if as_tuple else self._host(places)

    def _host(self, array: Array) -> Self:
        """Integers of the host as a tensor beside this one."""
        dtype = default_int(self.device)
        return self._with(engine.from_host(array.astype(dtype.storage), dtype, self.device), False)

    @dim_or_axis
    def index_add(self, dim: int, index: TensorBase, source: TensorBase) -> Self:
        """The slices of ``source`` added to those that a vector of indices names.

        >>> Tensor([0, 0]).index_add(0, Tensor([1, 1]), Tensor([3, 4])).tolist()
        [0, 7]
        """
        axis = self._dim("index_add", dim)
        if source.dtype is not self.dtype:
            raise DTypeError(
                f"index_add: the source is {source.dtype.name}, the tensor {self.dtype.name}; "
                "cast one of them"
            )
        found = lookup(self, self.shape, {axis: index})
        order = found.result_order()
        rows = build.permute(_fitted("index_add", source.node, tuple(
            (found.index.shape + found.others)[a] for a in order)), _inverse(order))  # fmt: skip
        made = build.scatter(found.rows(self.node), found.index, rows, "add")
        return self._make(found.back(made), source)

    def scatter_(self, dim: int, index: TensorBase, src: Any) -> Self:
        """:meth:`scatter` in place.

        >>> Tensor([0, 0]).scatter_(0, Tensor([1]), 5).tolist()
        [0, 5]
        """
        made = self.scatter(dim, index, src)
        return self._update("scatter_", made.node, self._source(index, src))

    def scatter_add_(self, dim: int, index: TensorBase, src: TensorBase) -> Self:
        """:meth:`scatter_add` in place.

        >>> Tensor([0, 0]).scatter_add_(0, Tensor([1]), Tensor([5])).tolist()
        [0, 5]
        """
        return self._update("scatter_add_", self.scatter_add(dim, index, src).node, src)


FOLDS: dict[str, Callable[[DType], float]] = {
    "sum": lambda dtype: 0,
    "mean": lambda dtype: 0,
    "prod": lambda dtype: 1,
    "amax": lambda dtype: dtype.min,
    "amin": lambda dtype: dtype.max,
}


def _fold(x: Node, axis: int, reduce: str) -> tuple[Node, Callable[[Node, Node], Node]]:
    """``x`` folded along an axis, and how the result joins what was there."""
    if reduce == "prod":
        return build.reduce("mul", x, (axis,)), build.mul
    if x.shape[axis] == 0:
        shape = (*x.shape[:axis], *x.shape[axis + 1 :])
        node = build.const(FOLDS[reduce](x.dtype), x.dtype, shape)
    elif reduce == "amax":
        node = build.reduce("max", x, (axis,))
    else:
        flip = build.neg if x.dtype.is_float else build.invert
        node = flip(build.reduce("max", flip(x), (axis,)))
    return node, build.maximum if reduce == "amax" else build.minimum


def _covered(name: str, x: TensorBase, index: TensorBase, src: TensorBase) -> Node:
    """The part of ``src`` that the index covers, of the dtype of ``x``."""
    x._check_device(name, src)
    if src.dtype is not x.dtype:
        raise DTypeError(
            f"{name}: the source is {src.dtype.name}, the tensor {x.dtype.name}; cast one of them"
        )
    if src.ndim != index.ndim or any(m > n for m, n in zip(index.shape, src.shape, strict=True)):
        raise ShapeError(
            f"{name}: an index of shape {index.shape} does not fit a source of shape {src.shape}"
        )
    return build.shrink(src.node, [(0, n) for n in index.shape])
