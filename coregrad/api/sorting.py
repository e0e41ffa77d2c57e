"""Order: sort, the k largest, medians and quantiles, unique elements, binary search.

All of them rest on one node, ``argsort``, which knows integers only: every other dtype is mapped
to integers of the same order first. NaN is the largest number, 0.0 and -0.0 are equal, and equal
elements keep their order, on every device. Gradients go to the one element that was chosen.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad import dtypes
from coregrad.api.base import TensorBase, dim_or_axis, promote
from coregrad.api.device import default_int, supported
from coregrad.api.reduction import Reduction, ValuesIndices, ordered, wide
from coregrad.errors import ShapeError, UnsupportedOp
from coregrad.ir import build
from coregrad.ir.graph import Node

if TYPE_CHECKING:
    from typing_extensions import Self

INTERPOLATIONS = ("linear", "lower", "higher", "nearest", "midpoint")


# ---- on nodes ----------------------------------------------------------------------------------


def keys_of(x: Node, device: str, descending: bool = False) -> Node:
    """Integers that are in the order of the elements: NaN largest, 0.0 and -0.0 the same.

    The bits of a float, read as a signed integer, are in order from 0 up; the more bits a negative
    one has set, the smaller it is, so all but the sign are inverted.
    """
    x = build.detach(x) if x.dtype.is_float else ordered(x)
    keys = _float_keys(x, device) if x.dtype.is_float else x
    return build.invert(keys) if descending else keys


def _float_keys(x: Node, device: str) -> Node:
    if dtypes.by_name(f"int{x.dtype.bits}") not in supported(device):
        x = build.cast(x, dtypes.float32)
    whole = dtypes.by_name(f"int{x.dtype.bits}")
    zero, none = build.const_like(x, 0), build.const(0, whole, x.shape)
    bits = build.bitcast(build.where(build.eq(x, zero), zero, x), whole)
    rest = build.const(whole.max, whole, x.shape)
    keys = build.where(build.lt(bits, none), build.xor(bits, rest), bits)
    return build.where(build.ne(x, x), rest, keys)


def picked(rows: Node, places: Node) -> Node:
    """``rows[..., places[..., i]]``: elements of each row by their place in it."""
    lead, length = rows.shape[:-1], rows.shape[-1]
    number = dtypes.int32 if math.prod(rows.shape) <= dtypes.int32.max else dtypes.int64
    flat = build.add(row_starts(lead, length, places.shape, number), build.cast(places, number))
    return build.gather(build.reshape(rows, (math.prod(rows.shape),)), flat)


def row_starts(
    lead: tuple[int, ...], length: int, shape: tuple[int, ...], number: dtypes.DType
) -> Node:
    """Where each row begins in the flattened rows of ``length``, repeated to ``shape``."""
    line = build.iota(math.prod(lead), number)
    starts = build.mul(line, build.const_like(line, length))
    apart = build.reshape(starts, lead + (1,) * (len(shape) - len(lead)))
    return build.expand(apart, shape)


def bounds(keys: Node, values: Node, right: bool) -> Node:
    """For each of ``values`` (..., m) how many of the sorted ``keys`` (..., n) go before it: those
    that are smaller, with ``right`` also the equal ones. A binary search from the highest bit."""
    lead, length = keys.shape[:-1], keys.shape[-1]
    number = dtypes.int32 if math.prod(keys.shape) <= dtypes.int32.max else dtypes.int64
    starts = row_starts(lead, length, values.shape, number)
    flat = build.reshape(keys, (math.prod(keys.shape),))
    found = build.const(0, number, values.shape)
    before = build.le if right else build.lt
    for step in (1 << bit for bit in reversed(range(length.bit_length()))):
        more = build.add(found, build.const_like(found, step))
        inside = build.lt(more, build.const_like(found, length + 1))
        last = build.sub(build.add(starts, more), build.const_like(found, 1))
        key = build.gather(flat, build.where(inside, last, build.const_like(last, 0)))
        found = build.where(build.and_(inside, before(key, values)), more, found)
    return found


def is_nan(x: Node) -> Node:
    """Where an element is NaN."""
    return build.ne(x, x)


def _order(rank: int, axis: int) -> tuple[int, ...]:
    """The axes with one of them last."""
    return (*(a for a in range(rank) if a != axis), axis)


def _back(rows: Node, axis: int) -> Node:
    """Rows whose last axis was ``axis``, with the axes in their old order."""
    order = _order(len(rows.shape), axis)
    return build.permute(rows, tuple(order.index(a) for a in range(len(order))))


# ---- on tensors --------------------------------------------------------------------------------


class Sorting(Reduction):
    """Methods that put elements in order, or find their place in one."""

    def _rows(self, name: str, dim: int) -> tuple[Node, int]:
        """This tensor's node with the axis ``dim`` last, and the axis; a number is a row of one."""
        axis = self._dim(name, dim)
        node = self.node
        if not node.shape:
            return build.reshape(node, (1,)), 0
        return build.permute(node, _order(len(node.shape), axis)), axis

    def _first(self, rows: Node, descending: bool = False, count: int | None = None) -> Node:
        """Where the first ``count`` of each sorted row stand."""
        return build.argsort(keys_of(rows, self.device, descending), count)

    def _pair(self, rows: Node, places: Node, axis: int) -> ValuesIndices:
        """(values, indices) for some places of each row, the axes in their old order."""
        values, indices = picked(rows, places), build.cast(places, default_int(self.device))
        pair = (_back(x, axis) if self.ndim else build.reshape(x, ()) for x in (values, indices))
        return ValuesIndices(*(self._make(x) for x in pair))

    def _element(self, rows: Node, place: Node, axis: int, keepdim: bool) -> ValuesIndices:
        """(value, index) of one place per row, the axis dropped unless it is kept."""
        values, indices = picked(rows, place), build.cast(place, default_int(self.device))
        axes = (axis,) if self.ndim else ()
        pair = (build.reshape(x, x.shape[:-1]) for x in (values, indices))
        return ValuesIndices(*(self._reduced(x, axes, keepdim) for x in pair))

    # ---- sorting -------------------------------------------------------------------------------

    @dim_or_axis
    def sort(self, dim: int = -1, descending: bool = False, stable: bool = True) -> ValuesIndices:
        """(values, indices) along ``dim`` in order. NaN counts as the largest number.

        Equal elements keep their order, also descending; ``stable=False`` changes nothing. The
        gradient of a value goes to the element that it was. Raises ShapeError for an axis the
        tensor does not have.

        >>> Tensor([3.0, 1.0, 2.0]).sort().values.tolist()
        [1.0, 2.0, 3.0]
        >>> Tensor([[0, 1], [1, 0]]).sort(0, descending=True).indices.tolist()
        [[1, 0], [0, 1]]
        """
        rows, axis = self._rows("sort", dim)
        return self._pair(rows, self._first(rows, descending), axis)

    @dim_or_axis
    def argsort(self, dim: int = -1, descending: bool = False, stable: bool = True) -> Self:
        """Where the elements along ``dim`` stand, in the order of :meth:`sort`, as int64.

        >>> Tensor([3.0, 1.0, 2.0]).argsort().tolist()
        [1, 2, 0]
        """
        indices: Self = self.sort(dim, descending, stable).indices
        return indices

    def msort(self) -> Self:
        """The values of :meth:`sort` along the first axis.

        >>> Tensor([[2, 1], [1, 3]]).msort().tolist()
        [[1, 1], [2, 3]]
        """
        values: Self = self.sort(0).values
        return values

    @dim_or_axis
    def topk(
        self, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
    ) -> ValuesIndices:
        """(values, indices) of the ``k`` largest (or smallest) along ``dim``, the first one first.

        Of equals the earlier counts; NaN is the largest. They come sorted in any case. For a
        small ``k`` it costs less than a sort. Raises ShapeError for a ``k`` that the axis does
        not have.

        >>> top = Tensor([1.0, 4.0, 2.0, 3.0]).topk(2)
        >>> top.values.tolist(), top.indices.tolist()
        ([4.0, 3.0], [1, 3])
        """
        rows, axis = self._rows("topk", dim)
        self._check_count("topk", k, 0, rows, dim)
        return self._pair(rows, self._first(rows, largest, k), axis)

    def _check_count(self, name: str, k: int, least: int, rows: Node, dim: int) -> None:
        if not isinstance(k, (int, np.integer)):
            raise TypeError(f"{name}: k must be an int, not {k!r}")
        if not least <= k <= rows.shape[-1]:
            raise ShapeError(
                f"{name}: k is {k}, but axis {dim} of shape {self.shape} has {rows.shape[-1]} "
                f"elements; use {least} to {rows.shape[-1]}"
            )

    # ---- elements by their place in the order --------------------------------------------------

    @dim_or_axis
    def kthvalue(self, k: int, dim: int = -1, keepdim: bool = False) -> ValuesIndices:
        """(value, index) of the ``k``-th smallest along ``dim``, counted from 1.

        >>> Tensor([5.0, 1.0, 3.0]).kthvalue(2).values.item()
        3.0
        """
        rows, axis = self._rows("kthvalue", dim)
        self._check_count("kthvalue", k, 1, rows, dim)
        places = self._first(rows, count=k)
        return self._element(rows, _column(places, k - 1), axis, keepdim)

    @dim_or_axis
    def median(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """Without ``dim`` the middle element; with it (values, indices) of those along it.

        Of two middle ones it is the lower. NaN if there is one. Raises ShapeError where there is
        no element.

        >>> Tensor([4.0, 1.0, 3.0, 2.0]).median().item()
        2.0
        """
        if dim is None:
            return self.flatten().median(0).values
        rows, axis = self._rows("median", dim)
        self._check_not_empty("median", (axis,) if self.ndim else ())
        middle = (rows.shape[-1] - 1) // 2
        place = _column(self._first(rows, count=middle + 1), middle)
        if rows.dtype.is_float:
            row = len(rows.shape) - 1
            odd = build.reduce("max", build.cast(is_nan(rows), dtypes.uint8), (row,))
            first = build.cast(build.reduce("argmax", build.detach(rows), (row,)), place.dtype)
            some = build.reshape(build.ne(odd, build.const_like(odd, 0)), place.shape)
            place = build.where(some, build.reshape(first, place.shape), place)
        return self._element(rows, place, axis, keepdim)

    @dim_or_axis
    def nanmedian(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """:meth:`median` of what is no NaN; NaN where nothing else is.

        >>> Tensor([1.0, math.nan, 3.0, 2.0]).nanmedian().item()
        2.0
        """
        if dim is None:
            return self.flatten().nanmedian(0).values
        rows, axis = self._rows("nanmedian", dim)
        self._check_not_empty("nanmedian", (axis,) if self.ndim else ())
        middle = _last_number(rows)
        half = build.shr(middle, build.const_like(middle, 1))
        return self._element(rows, picked(self._first(rows), half), axis, keepdim)

    @dim_or_axis
    def quantile(
        self,
        q: Any,
        dim: int | None = None,
        keepdim: bool = False,
        interpolation: str = "linear",
    ) -> Self:
        """What the fraction ``q`` (a number, or a vector of them) of the elements lies below.

        Between two elements it is interpolated: "linear", "lower", "higher", "nearest" or
        "midpoint". Several ``q`` make a first axis. NaN if there is one. Raises DTypeError for
        integers, ShapeError where there is no element.

        >>> Tensor([0.0, 1.0, 2.0, 3.0]).quantile(0.5).item()
        1.5
        >>> Tensor([0.0, 1.0, 2.0, 3.0]).quantile(Tensor([0.0, 1.0])).tolist()
        [0.0, 3.0]
        """
        return self._quantile("quantile", q, dim, keepdim, interpolation, skip_nan=False)

    @dim_or_axis
    def nanquantile(
        self,
        q: Any,
        dim: int | None = None,
        keepdim: bool = False,
        interpolation: str = "linear",
    ) -> Self:
        """:meth:`quantile` of what is no NaN; NaN where nothing else is.

        >>> Tensor([0.0, math.nan, 1.0]).nanquantile(0.5).item()
        0.5
        """
        return self._quantile("nanquantile", q, dim, keepdim, interpolation, skip_nan=True)

    def _quantile(
        self,
        name: str,
        q: Any,
        dim: int | None,
        keepdim: bool,
        interpolation: str,
        skip_nan: bool,
    ) -> Self:
        if interpolation not in INTERPOLATIONS:
            raise ValueError(
                f"{name}: interpolation {interpolation!r} is none of {', '.join(INTERPOLATIONS)}"
            )
        self._floating(name)
        source = self.flatten() if dim is None else self
        rows, axis = source._rows(name, -1 if dim is None else dim)
        source._check_not_empty(name, (axis,) if source.ndim else ())
        rows = wide(rows)
        fractions, single = self._fractions(name, q, rows)
        found = source._at_fractions(rows, fractions, interpolation, skip_nan)
        lead = found.shape[:-1]
        found = build.permute(found, (len(lead), *range(len(lead))))
        if keepdim:
            axes = range(self.ndim) if dim is None else (axis,)
            kept = tuple(1 if a in axes else n for a, n in enumerate(self.shape))
            found = build.reshape(found, (found.shape[0], *kept))
        if single:
            found = build.reshape(found, found.shape[1:])
        return self._make(build.cast(found, self.dtype))

    def _fractions(self, name: str, q: Any, rows: Node) -> tuple[Node, bool]:
        """The fractions as a vector of the rows' dtype, and whether it was one number."""
        if not isinstance(q, TensorBase):
            values = np.asarray(q, np.float64)
            if not ((values >= 0) & (values <= 1)).all():
                raise ValueError(f"{name}: q is {q}; it lies between 0 and 1")
            q = TensorBase(values, device=self.device, requires_grad=False)
        self._check_device(name, q)
        if q.ndim > 1:
            raise ShapeError(f"{name}: q has shape {q.shape}; give a number or a vector")
        node = build.cast(build.detach(q.node), rows.dtype)
        return build.reshape(node, (math.prod(node.shape),)), not q.ndim

    def _at_fractions(
        self, rows: Node, fractions: Node, interpolation: str, skip_nan: bool
    ) -> Node:
        """(..., number of fractions): the values there in each sorted row."""
        lead, length = rows.shape[:-1], rows.shape[-1]
        shape = (*lead, fractions.shape[0])
        line = build.reshape(fractions, (1,) * len(lead) + fractions.shape)
        last = build.const(length - 1, dtypes.int32, (*lead, 1))
        if skip_nan:
            last = _last_number(rows)
        last = build.expand(build.cast(last, rows.dtype), shape)
        place = build.mul(build.expand(line, shape), last)
        low = build.trunc(place)
        share = build.sub(place, low)
        order = self._first(rows)
        a = picked(rows, picked(order, build.cast(low, order.dtype)))
        above = build.lt(build.const_like(share, 0), share)
        high = build.where(above, build.add(low, build.const_like(low, 1)), low)
        b = picked(rows, picked(order, build.cast(high, order.dtype)))
        found = _between(a, b, share, low, interpolation)
        if skip_nan:
            return found
        odd = build.reduce("max", build.cast(is_nan(rows), dtypes.uint8), (len(lead),))
        some = build.ne(odd, build.const_like(odd, 0))
        some = build.expand(build.reshape(some, (*lead, 1)), shape)
        return build.where(some, build.const_like(found, math.nan), found)

    # ---- equal elements ------------------------------------------------------------------------

    @dim_or_axis
    def unique(
        self,
        sorted: bool = True,
        return_inverse: bool = False,
        return_counts: bool = False,
        dim: int | None = None,
    ) -> Any:
        """The different elements in order; if asked for, also where each element of this tensor
        is among them, and how often each occurs: a tuple then. Every NaN is different.

        Reads the tensor: the shape of the result depends on it. Only for all elements together:
        raises UnsupportedOp for ``dim``.

        >>> Tensor([2, 1, 2]).unique().tolist()
        [1, 2]
        >>> [t.tolist() for t in Tensor([2, 1, 2]).unique(return_inverse=True, return_counts=True)]
        [[1, 2], [1, 0, 1], [1, 2]]
        """
        if dim is not None:
            raise UnsupportedOp("unique: slices along dim are not compared; leave dim out")
        flat = self.flatten()
        order = build.contiguous(flat._first(flat.node))
        return self._groups(picked(flat.node, order), order, return_inverse, return_counts)

    def unique_consecutive(self, return_inverse: bool = False, return_counts: bool = False) -> Any:
        """The flattened elements without those that are equal to the one before; the rest as in
        :meth:`unique`.

        >>> Tensor([1, 1, 2, 1]).unique_consecutive().tolist()
        [1, 2, 1]
        """
        flat = self.flatten().node
        order = build.iota(flat.shape[0], dtypes.int32)
        return self._groups(flat, order, return_inverse, return_counts)

    def _groups(self, values: Node, order: Node, inverse: bool, counts: bool) -> Any:
        """The first of each run of equal ``values``; ``order`` says where they came from."""
        size = values.shape[0]
        number = default_int(self.device)
        groups = self._make(_group_numbers(values, order.dtype))
        ordering, values_of = self._make(order), self._make(values)
        groups.realize(ordering, values_of)
        several = int(groups[-1].item()) + 1 if size else 0
        wanted = build.iota(several, order.dtype)
        starts = bounds(groups.node, wanted, right=False)
        results = [values_of._make(build.gather(values_of.node, starts))] if size else [values_of]
        if inverse:
            nothing = build.const(0, number, (size,))
            places = build.cast(groups.node, number)
            spread = build.scatter(nothing, ordering.node, places, "set")
            results.append(self._make(build.reshape(spread, self.shape)))
        if counts:
            ends = bounds(groups.node, wanted, right=True)
            results.append(self._make(build.cast(build.sub(ends, starts), number)))
        return results[0] if len(results) == 1 else tuple(results)

    # ---- places in a sorted tensor -------------------------------------------------------------

    def searchsorted(
        self,
        values: Any,
        *,
        out_int32: bool = False,
        right: bool = False,
        side: str | None = None,
        sorter: TensorBase | None = None,
    ) -> Self:
        """Where ``values`` would have to be put into this sorted tensor (last axis) to keep it so.

        Before equal elements, or with ``right`` (``side="right"``) behind them. A vector serves
        values of any shape; otherwise all axes but the last must be those of ``values``.
        ``sorter`` is the argsort of a tensor that is not sorted. Raises ShapeError if they do not
        fit.

        >>> Tensor([1.0, 3.0, 5.0]).searchsorted(Tensor([3.0, 6.0])).tolist()
        [1, 3]
        >>> Tensor([1, 3, 5]).searchsorted(3, right=True).item()
        2
        """
        if side not in (None, "left", "right"):
            raise ValueError(f"searchsorted: side is {side!r}; use 'left' or 'right'")
        if side == "left" and right:
            raise ValueError("searchsorted: side='left' and right=True; give one of them")
        wanted = self._like("searchsorted", values)
        keys = self.node
        if sorter is not None:
            keys = self.gather(-1, sorter).node
        if not keys.shape or (len(keys.shape) > 1 and keys.shape[:-1] != wanted.shape[:-1]):
            raise ShapeError(
                f"searchsorted: values of shape {wanted.shape} do not fit a sorted tensor of shape "
                f"{keys.shape}; give a vector, or equal axes but the last"
            )
        keys, node = promote(keys, wanted.node)
        flat = node if len(keys.shape) > 1 else build.reshape(node, (math.prod(node.shape),))
        device, after = self.device, right or side == "right"
        found = bounds(keys_of(keys, device), keys_of(flat, device), after)
        dtype = dtypes.int32 if out_int32 else default_int(device)
        return self._make(build.cast(build.reshape(found, node.shape), dtype))

    def bucketize(
        self, boundaries: TensorBase, *, out_int32: bool = False, right: bool = False
    ) -> Self:
        """For each element the number of the bucket between sorted ``boundaries`` it falls into.

        Bucket i holds boundaries[i-1] < x <= boundaries[i]; with ``right``, boundaries[i-1] <= x <
        boundaries[i].

        >>> Tensor([1.0, 2.0, 9.0]).bucketize(Tensor([2.0, 4.0])).tolist()
        [0, 0, 2]
        """
        self._check_device("bucketize", boundaries)
        if boundaries.ndim != 1:
            raise ShapeError(f"bucketize: boundaries of shape {boundaries.shape}; give a vector")
        sorted_ones = self._with(boundaries.node, False)
        return sorted_ones.searchsorted(self, out_int32=out_int32, right=right)


def _column(places: Node, number: int) -> Node:
    """One place of each row, as a row of one."""
    ranges = [(0, n) for n in places.shape[:-1]]
    return build.shrink(places, (*ranges, (number, number + 1)))


def _last_number(rows: Node) -> Node:
    """Where in each sorted row the last element stands that is no NaN (0 if there is none), int32,
    as a row of one."""
    kept = (*rows.shape[:-1], 1)
    if not rows.dtype.is_float:
        return build.const(rows.shape[-1] - 1, dtypes.int32, kept)
    numbers = build.cast(build.eq(rows, rows), dtypes.int32)
    count = build.reshape(build.reduce("add", numbers, (len(rows.shape) - 1,)), kept)
    return build.maximum(build.sub(count, build.const_like(count, 1)), build.const_like(count, 0))


def _between(a: Node, b: Node, share: Node, low: Node, interpolation: str) -> Node:
    """A value between two neighbours; where they are equal, that is it (also infinity)."""
    half = build.const_like(share, 0.5)
    if interpolation == "lower":
        return a
    if interpolation == "higher":
        return b
    if interpolation == "nearest":  # of halves to the even place, as rounding does
        two = build.const_like(low, 2)
        odd = build.ne(build.mul(build.trunc(build.div(low, two)), two), low)
        up = build.or_(build.lt(half, share), build.and_(build.eq(share, half), odd))
        return build.where(up, b, a)
    between = build.lt(build.const_like(share, 0), share)
    weight = build.where(between, half, share) if interpolation == "midpoint" else share
    rest = build.sub(build.const_like(weight, 1), weight)
    mixed = build.add(build.mul(a, rest), build.mul(b, weight))
    return build.where(build.eq(a, b), a, mixed)


def _group_numbers(values: Node, number: dtypes.DType) -> Node:
    """The number of the run of equal elements that each element belongs to, counted from 0."""
    size = values.shape[0]
    if size < 2:
        return build.const(0, number, (size,))
    now, earlier = build.shrink(values, ((1, size),)), build.shrink(values, ((0, size - 1),))
    new = build.cast(build.ne(now, earlier), number)
    return build.scan("add", build.pad(new, ((1, 0),)), 0)
