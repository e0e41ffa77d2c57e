"""Methods that move elements without computing: shapes, orders, borders, joins, cuts.

None of them makes a view: a result is a value of its own, whatever its source becomes later.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from coregrad import dtypes, engine
from coregrad.api import host
from coregrad.api.base import TensorBase, broadcast_shapes, dim_or_axis, promote, require_tensor
from coregrad.api.base import expand as expand_node
from coregrad.api.elementwise import Elementwise
from coregrad.dtypes import DType
from coregrad.errors import IndexRangeError, ShapeError
from coregrad.ir import build, ops
from coregrad.ir.graph import Node, Shape

if TYPE_CHECKING:
    from typing_extensions import Self


def sizes(name: str, given: Sequence[Any]) -> Shape:
    """Sizes given one by one or as one sequence, as ints."""
    if len(given) == 1 and not _is_int(given[0]):
        given = given[0]
    try:
        return tuple(operator.index(n) for n in given)
    except TypeError:
        raise TypeError(f"{name}: sizes must be ints, not {given!r}") from None


def position(name: str, index: Any, axis: int, shape: Shape) -> int:
    """An index counted from 0. IndexRangeError where the axis does not have it."""
    if not hasattr(index, "__index__"):
        raise TypeError(f"{name}: {index!r} is no index; give an int")
    place = operator.index(index)
    if not -shape[axis] <= place < shape[axis]:
        raise IndexRangeError(
            f"{name}: index {place} is outside axis {axis} of shape {shape}, which has "
            f"{shape[axis]} elements"
        )
    return place % shape[axis]


def _is_int(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, (list, tuple))


class Movement(Elementwise):
    """Shapes and orders of elements."""

    def _own_dim(self, name: str, dim: int) -> int:
        """An axis counted from 0, of which there must be one."""
        if not self.ndim:
            raise ShapeError(f"{name}: a 0-d tensor has no axis {dim}; give it one with reshape")
        return self._dim(name, dim)

    # ---- shapes --------------------------------------------------------------------------------

    def reshape(self, *shape: Any) -> Self:
        """The same elements in row-major order; one size may be -1. ShapeError if they do not fit.

        >>> Tensor([1, 2, 3, 4]).reshape(2, -1).tolist()
        [[1, 2], [3, 4]]
        """
        wanted = self._inferred("reshape", sizes("reshape", shape))
        return self._make(build.reshape(self.node, wanted))

    def _inferred(self, name: str, shape: Shape) -> Shape:
        if -1 not in shape:
            return shape
        known = math.prod(n for n in shape if n != -1)
        total = self.numel()
        if shape.count(-1) > 1 or known == 0 or total % known:
            raise ShapeError(
                f"{name}: no size in place of -1 makes {shape} hold the {total} elements of shape "
                f"{self.shape}; leave one size open and make the others divide {total}"
            )
        return tuple(total // known if n == -1 else n for n in shape)

    def view(self, *shape: Any) -> Self:
        """:meth:`reshape`, or with a dtype :meth:`bitcast`.

        >>> Tensor([1.0]).view("int32").tolist()
        [1065353216]
        """
        if len(shape) == 1 and isinstance(shape[0], (str, DType)):
            return self.bitcast(host.as_dtype(shape[0]))
        return self.reshape(*shape)

    def reshape_as(self, other: TensorBase) -> Self:
        """:meth:`reshape` to the shape of ``other``.

        >>> Tensor([1, 2]).reshape_as(Tensor([[0], [0]])).tolist()
        [[1], [2]]
        """
        return self.reshape(other.shape)

    view_as = reshape_as

    @dim_or_axis
    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """The axes from ``start_dim`` to ``end_dim`` as one.

        >>> Tensor([[1, 2], [3, 4]]).flatten().tolist()
        [1, 2, 3, 4]
        """
        first, last = self._dim("flatten", start_dim), self._dim("flatten", end_dim)
        if first > last:
            raise ShapeError(f"flatten: start_dim {start_dim} lies behind end_dim {end_dim}")
        shape = self.shape
        merged = math.prod(shape[first : last + 1])
        return self._make(build.reshape(self.node, (*shape[:first], merged, *shape[last + 1 :])))

    ravel = flatten

    @dim_or_axis
    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        """One axis as several; one size may be -1.

        >>> Tensor([1, 2, 3, 4]).unflatten(0, (2, -1)).tolist()
        [[1, 2], [3, 4]]
        """
        axis = self._own_dim("unflatten", dim)
        shape = self.shape
        known = math.prod(n for n in sizes if n != -1)
        parts = tuple(shape[axis] // known if n == -1 and known else n for n in sizes)
        if math.prod(parts) != shape[axis]:
            raise ShapeError(
                f"unflatten: axis {dim} of shape {shape} has {shape[axis]} elements, which "
                f"{tuple(sizes)} do not make"
            )
        return self._make(build.reshape(self.node, (*shape[:axis], *parts, *shape[axis + 1 :])))

    @dim_or_axis
    def unsqueeze(self, dim: int) -> Self:
        """A new axis of size 1 before axis ``dim``.

        >>> Tensor([1, 2]).unsqueeze(1).tolist()
        [[1], [2]]
        """
        axis = self._dim("unsqueeze", dim, extra=1)
        return self._make(build.reshape(self.node, (*self.shape[:axis], 1, *self.shape[axis:])))

    @dim_or_axis
    def squeeze(self, dim: int | Sequence[int] | None = None) -> Self:
        """Without axes of size 1: all of them, or those named (others stay as they are).

        >>> Tensor([[[1], [2]]]).squeeze().tolist()
        [1, 2]
        """
        if dim is None:
            axes = set(range(self.ndim))
        else:
            named = [dim] if isinstance(dim, int) else dim
            axes = {self._dim("squeeze", d) for d in named}
        shape = tuple(n for i, n in enumerate(self.shape) if n != 1 or i not in axes)
        return self._make(build.reshape(self.node, shape))

    def expand(self, *shape: Any) -> Self:
        """Axes of size 1 repeated, new axes in front; -1 keeps a size. ShapeError if they misfit.

        >>> Tensor([[1], [2]]).expand(2, 3).tolist()
        [[1, 1, 1], [2, 2, 2]]
        """
        wanted = sizes("expand", shape)
        new = len(wanted) - self.ndim
        own = (1,) * new + self.shape
        if new < 0 or -1 in wanted[:new]:
            raise ShapeError(
                f"expand: shape {self.shape} cannot be expanded to {wanted}; name every axis, new "
                "ones in front with their sizes"
            )
        full = tuple(n if m == -1 else m for n, m in zip(own, wanted, strict=True))
        return self._make(build.expand(build.reshape(self.node, own), full))

    broadcast_to = expand

    def expand_as(self, other: TensorBase) -> Self:
        """:meth:`expand` to the shape of ``other``.

        >>> Tensor([7]).expand_as(Tensor([0, 0])).tolist()
        [7, 7]
        """
        return self.expand(other.shape)

    # ---- orders --------------------------------------------------------------------------------

    @dim_or_axis
    def permute(self, *dims: Any) -> Self:
        """The axes in another order. ShapeError unless each is named once.

        >>> Tensor([[1, 2], [3, 4]]).permute(1, 0).tolist()
        [[1, 3], [2, 4]]
        """
        order = [self._dim("permute", d) for d in sizes("permute", dims)]
        return self._make(build.permute(self.node, order))

    def transpose(self, dim0: int = 1, dim1: int = 0) -> Self:
        """Two axes exchanged.

        >>> Tensor([[1, 2], [3, 4]]).transpose(0, 1).tolist()
        [[1, 3], [2, 4]]
        """
        first, second = self._dim("transpose", dim0), self._dim("transpose", dim1)
        order = list(range(self.ndim))
        if order:
            order[first], order[second] = second, first
        return self._make(build.permute(self.node, order))

    swapaxes = transpose
    swapdims = transpose

    def t(self) -> Self:
        """A matrix transposed; tensors of fewer axes stay. ShapeError for more than two axes.

        >>> Tensor([[1, 2], [3, 4]]).t().tolist()
        [[1, 3], [2, 4]]
        """
        if self.ndim > 2:
            raise ShapeError(f"t: shape {self.shape} has more than two axes; use mT or permute")
        return self._make(build.permute(self.node, tuple(reversed(range(self.ndim)))))

    @property
    def T(self) -> Self:  # noqa: N802 (PyTorch's name)
        """All axes in reverse order.

        >>> Tensor([[1, 2], [3, 4]]).T.tolist()
        [[1, 3], [2, 4]]
        """
        return self._make(build.permute(self.node, tuple(reversed(range(self.ndim)))))

    @property
    def mT(self) -> Self:  # noqa: N802 (PyTorch's name)
        """The last two axes exchanged. ShapeError for fewer than two.

        >>> Tensor([[[1, 2], [3, 4]]]).mT.tolist()
        [[[1, 3], [2, 4]]]
        """
        if self.ndim < 2:
            raise ShapeError(f"mT: shape {self.shape} has fewer than two axes; use unsqueeze")
        return self.transpose(-2, -1)

    def movedim(self, source: int | Sequence[int], destination: int | Sequence[int]) -> Self:
        """Axes moved to other places, the rest in their order.

        >>> Tensor([[[1, 2, 3]]]).movedim(2, 0).shape
        (3, 1, 1)
        """
        old = [source] if isinstance(source, int) else list(source)
        new = [destination] if isinstance(destination, int) else list(destination)
        old = [self._dim("movedim", d) for d in old]
        new = [self._dim("movedim", d) for d in new]
        if len(old) != len(new) or len(set(old)) != len(old) or len(set(new)) != len(new):
            raise ShapeError(f"movedim: {source} cannot move to {destination}; pair different axes")
        order = [d for d in range(self.ndim) if d not in old]
        for place, axis in sorted(zip(new, old, strict=True)):
            order.insert(place, axis)
        return self._make(build.permute(self.node, order))

    moveaxis = movedim

    @dim_or_axis
    def flip(self, *dims: Any) -> Self:
        """Axes reversed.

        >>> Tensor([1, 2, 3]).flip(0).tolist()
        [3, 2, 1]
        """
        axes = [self._dim("flip", d) for d in sizes("flip", dims)]
        return self._make(build.flip(self.node, axes))

    @dim_or_axis
    def roll(self, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Self:
        """Elements moved along axes, those that leave at one end entering at the other.

        >>> Tensor([1, 2, 3]).roll(1).tolist()
        [3, 1, 2]
        """
        if dims is None:
            return self.flatten().roll(shifts, 0).reshape(self.shape)
        steps = [shifts] if isinstance(shifts, int) else list(shifts)
        axes = [dims] if isinstance(dims, int) else list(dims)
        if len(steps) != len(axes):
            raise ShapeError(f"roll: {len(steps)} shifts for {len(axes)} axes; give one for each")
        node = self.node
        for step, dim in zip(steps, axes, strict=True):
            node = _rolled(node, step, self._own_dim("roll", dim))
        return self._make(node)

    # ---- cuts ----------------------------------------------------------------------------------

    def shrink(self, ranges: Sequence[tuple[int, int] | None]) -> Self:
        """The block from start to stop of each axis; None keeps an axis.

        >>> Tensor([[1, 2, 3], [4, 5, 6]]).shrink((None, (1, 3))).tolist()
        [[2, 3], [5, 6]]
        """
        if len(ranges) != self.ndim:
            raise ShapeError(
                f"shrink: {len(ranges)} ranges for shape {self.shape}; give one per axis"
            )
        pairs = [(0, n) if r is None else r for r, n in zip(ranges, self.shape, strict=True)]
        return self._make(build.shrink(self.node, pairs))

    @dim_or_axis
    def narrow(self, dim: int, start: int, length: int) -> Self:
        """``length`` elements of an axis from ``start`` on.

        >>> Tensor([1, 2, 3, 4]).narrow(0, 1, 2).tolist()
        [2, 3]
        """
        axis = self._own_dim("narrow", dim)
        size = self.shape[axis]
        begin = start + size if start < 0 else start
        if not 0 <= begin <= begin + length <= size:
            raise ShapeError(
                f"narrow: {length} elements from {start} on do not lie inside axis {axis} of shape "
                f"{self.shape}; start is at most {size} and start + length, too"
            )
        return self._make(_part(self.node, axis, begin, begin + length))

    @dim_or_axis
    def select(self, dim: int, index: int) -> Self:
        """One element of an axis, which is gone.

        >>> Tensor([[1, 2], [3, 4]]).select(1, 0).tolist()
        [1, 3]
        """
        axis = self._own_dim("select", dim)
        place = position("select", index, axis, self.shape)
        shape = (*self.shape[:axis], *self.shape[axis + 1 :])
        return self._make(build.reshape(_part(self.node, axis, place, place + 1), shape))

    @dim_or_axis
    def split(self, split_size: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """Parts of a size (the last may be smaller), or of the given sizes.

        >>> [part.tolist() for part in Tensor([1, 2, 3, 4, 5]).split(2)]
        [[1, 2], [3, 4], [5]]
        """
        axis = self._own_dim("split", dim)
        total = self.shape[axis]
        if isinstance(split_size, int):
            if split_size < 1:
                raise ShapeError(f"split: parts of {split_size} elements; give a size of 1 or more")
            count = max(-(-total // split_size), 1)
            parts = [min(split_size, total - i * split_size) for i in range(count)]
        else:
            parts = list(split_size)
        if sum(parts) != total or min(parts, default=0) < 0:
            raise ShapeError(
                f"split: sizes {parts} do not add up to the {total} elements of axis {dim}"
            )
        out, start = [], 0
        for n in parts:
            out.append(self._make(_part(self.node, axis, start, start + n)))
            start += n
        return tuple(out)

    @dim_or_axis
    def chunk(self, chunks: int, dim: int = 0) -> tuple[Self, ...]:
        """At most ``chunks`` parts of equal size (the last may be smaller).

        >>> [part.tolist() for part in Tensor([1, 2, 3, 4, 5]).chunk(2)]
        [[1, 2, 3], [4, 5]]
        """
        if chunks < 1:
            raise ShapeError(f"chunk: {chunks} parts; give 1 or more")
        total = self.shape[self._own_dim("chunk", dim)]
        return self.split(max(-(-total // chunks), 1), dim=dim)

    @dim_or_axis
    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """Every element of an axis, which is gone.

        >>> [part.tolist() for part in Tensor([[1, 2], [3, 4]]).unbind(1)]
        [[1, 3], [2, 4]]
        """
        axis = self._own_dim("unbind", dim)
        return tuple(self.select(axis, i) for i in range(self.shape[axis]))

    @dim_or_axis
    def unfold(self, dim: int, size: int, step: int) -> Self:
        """Windows of ``size`` elements every ``step``, as a new last axis.

        >>> Tensor([1, 2, 3, 4]).unfold(0, 2, 1).tolist()
        [[1, 2], [2, 3], [3, 4]]
        """
        axis = self._own_dim("unfold", dim)
        length = self.shape[axis]
        if not 1 <= size <= length or step < 1:
            raise ShapeError(
                f"unfold: windows of {size} every {step} do not fit axis {axis} of shape "
                f"{self.shape}; the size runs from 1 to {length}, the step from 1 on"
            )
        return self._make(build.window(self.node, axis, size, step))

    @dim_or_axis
    def diff(
        self,
        n: int = 1,
        dim: int = -1,
        prepend: TensorBase | None = None,
        append: TensorBase | None = None,
    ) -> Self:
        """Each element less the one before it along ``dim``, ``n`` times over.

        ``prepend`` and ``append`` are put before and after the elements first. Of bools it says
        where neighbours differ. Raises ShapeError for a negative ``n``.

        >>> Tensor([1, 4, 9, 16]).diff().tolist(), Tensor([1, 4, 9, 16]).diff(2).tolist()
        ([3, 5, 7], [2, 2])
        """
        axis = self._own_dim("diff", dim)
        if n < 0:
            raise ShapeError(f"diff: n is {n}; it must be at least 0")
        x: Any = self
        if prepend is not None:
            before: Any = prepend
            x = before.cat(x, dim=axis)
        if append is not None:
            x = x.cat(append, dim=axis)
        for _ in range(n):
            rest = max(x.shape[axis] - 1, 0)
            later, earlier = x.narrow(axis, x.shape[axis] - rest, rest), x.narrow(axis, 0, rest)
            x = later.ne(earlier) if self.dtype is dtypes.bool_ else later - earlier
        return x  # type: ignore[no-any-return]

    @dim_or_axis
    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Self:
        """The diagonal of two axes, as a new last axis.

        >>> Tensor([[1, 2], [3, 4]]).diagonal().tolist()
        [1, 4]
        """
        first, second = self._dim("diagonal", dim1), self._dim("diagonal", dim2)
        if first == second:
            raise ShapeError(f"diagonal: dim1 and dim2 are both {dim1}; name two axes")
        rest = [d for d in range(self.ndim) if d not in (first, second)]
        node = build.permute(self.node, (*rest, first, second))
        rows, columns = node.shape[-2:]
        top, left = max(-offset, 0), max(offset, 0)
        length = max(min(rows - top, columns - left), 0)
        node = _cut(node, len(rest), min(top, rows), min(top, rows) + length)
        node = _cut(node, len(rest) + 1, min(left, columns), min(left, columns) + length)
        return self._make(_main_diagonal(node))

    def diag(self, diagonal: int = 0) -> Self:
        """A matrix with this vector on a diagonal, or the diagonal of this matrix.

        >>> Tensor([1, 2]).diag().tolist()
        [[1, 0], [0, 2]]
        """
        if self.ndim == 2:
            return self.diagonal(diagonal)
        if self.ndim != 1:
            raise ShapeError(f"diag: shape {self.shape} is neither a vector nor a matrix")
        size = self.shape[0] + abs(diagonal)
        before = max(-diagonal, 0)
        column = build.pad(self.node, ((before, max(diagonal, 0)),))
        square = expand_node(build.reshape(column, (size, 1)), (size, size))
        mask = build.eq(*_rows_and_columns(size, size, diagonal))
        return self._make(build.where(mask, square, build.const_like(square, 0)))

    def tril(self, diagonal: int = 0) -> Self:
        """The lower triangle of the last two axes, up to a diagonal; 0 above.

        >>> Tensor([[1, 2], [3, 4]]).tril().tolist()
        [[1, 0], [3, 4]]
        """
        return self._triangle("tril", diagonal, lower=True)

    def triu(self, diagonal: int = 0) -> Self:
        """The upper triangle of the last two axes, from a diagonal on; 0 below.

        >>> Tensor([[1, 2], [3, 4]]).triu(1).tolist()
        [[0, 2], [0, 0]]
        """
        return self._triangle("triu", diagonal, lower=False)

    def _triangle(self, name: str, diagonal: int, lower: bool) -> Self:
        if self.ndim < 2:
            raise ShapeError(f"{name}: shape {self.shape} has fewer than two axes")
        height, width = self.shape[-2:]
        rows, columns = _rows_and_columns(height, width, diagonal)
        kept = build.le(columns, rows) if lower else build.le(rows, columns)
        node = self.node
        return self._make(
            build.where(expand_node(kept, node.shape), node, build.const_like(node, 0))
        )

    # ---- borders and joins ---------------------------------------------------------------------

    def pad(self, padding: Any, mode: str = "constant", value: float = 0) -> Self:
        """A border around the last axes; ``padding`` is PyTorch's: (left, right, top, bottom, ...),
        the last axis first. Negative sizes cut. One int stands for both sides of the last axis.

        ``mode`` "constant" fills with ``value``; "reflect", "replicate" and "circular" repeat what
        is inside. Raises ShapeError where the border does not fit.

        >>> Tensor([[1, 2]]).pad((1, 0, 0, 1)).tolist()
        [[0, 1, 2], [0, 0, 0]]
        """
        widths = self._widths(padding)
        if mode == "constant":
            return self._make(_pad_constant(self.node, widths, value))
        if mode not in BORDERS:
            raise ValueError(f"pad: mode {mode!r}; use 'constant' or one of {sorted(BORDERS)}")
        node = self.node
        for axis, (before, after) in enumerate(widths):
            node = _pad_inside(node, axis, before, after, mode)
        return self._make(node)

    def _widths(self, padding: Any) -> list[tuple[int, int]]:
        flat = (padding, padding) if _is_int(padding) else tuple(operator.index(n) for n in padding)
        if len(flat) % 2 or len(flat) > 2 * self.ndim:
            raise ShapeError(
                f"pad: {len(flat)} sizes for shape {self.shape}; give a pair per axis, the last "
                "axis first"
            )
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        pairs += [(0, 0)] * (self.ndim - len(pairs))
        return pairs[::-1]

    def repeat(self, *repeats: Any) -> Self:
        """The whole tensor repeated along each axis; new axes in front.

        >>> Tensor([1, 2]).repeat(2, 2).tolist()
        [[1, 2, 1, 2], [1, 2, 1, 2]]
        """
        counts = sizes("repeat", repeats)
        if len(counts) < self.ndim or min(counts, default=0) < 0:
            raise ShapeError(
                f"repeat: {counts} for shape {self.shape}; give a count >= 0 for every axis"
            )
        shape = (1,) * (len(counts) - self.ndim) + self.shape
        return self._make(_repeated(build.reshape(self.node, shape), counts))

    def tile(self, *dims: Any) -> Self:
        """NumPy's :meth:`repeat`: axes that are not named are repeated once.

        >>> Tensor([[1, 2]]).tile(2).tolist()
        [[1, 2, 1, 2]]
        """
        counts = sizes("tile", dims)
        return self.repeat((1,) * (self.ndim - len(counts)) + counts)

    @dim_or_axis
    def repeat_interleave(self, repeats: int, dim: int | None = None) -> Self:
        """Every element of an axis (or of the flattened tensor) repeated in place.

        >>> Tensor([1, 2]).repeat_interleave(2).tolist()
        [1, 1, 2, 2]
        """
        if not _is_int(repeats) or repeats < 0:
            raise TypeError(f"repeat_interleave: repeats must be an int >= 0, not {repeats!r}")
        x = self.flatten() if dim is None else self
        axis = 0 if dim is None else self._dim("repeat_interleave", dim)
        shape, count = x.shape, operator.index(repeats)
        node = build.reshape(x.node, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
        node = build.expand(node, (*shape[: axis + 1], count, *shape[axis + 1 :]))
        merged = shape[axis] * count
        return self._make(build.reshape(node, (*shape[:axis], merged, *shape[axis + 1 :])))

    @dim_or_axis
    def cat(self, *others: TensorBase, dim: int = 0) -> Self:
        """This tensor and others one after the other along an axis; dtypes are promoted.

        ``coregrad.cat([a, b], dim)`` is the same. ShapeError unless all other axes are equal.

        >>> Tensor([1, 2]).cat(Tensor([3])).tolist()
        [1, 2, 3]
        """
        require_tensor("cat", self, "coregrad.cat([a, b])")
        for other in others:
            self._check_device("cat", other)
        axis = self._dim("cat", dim)
        nodes = promote(self.node, *(o.node for o in others))
        return self._make(build.cat(nodes, axis), *others)

    @dim_or_axis
    def stack(self, *others: TensorBase, dim: int = 0) -> Self:
        """This tensor and others side by side along a new axis.

        ``coregrad.stack([a, b], dim)`` is the same. ShapeError unless all shapes are equal.

        >>> Tensor([1, 2]).stack(Tensor([3, 4]), dim=1).tolist()
        [[1, 3], [2, 4]]
        """
        require_tensor("stack", self, "coregrad.stack([a, b])")
        for other in others:
            self._check_device("stack", other)
            if other.shape != self.shape:
                raise ShapeError(
                    f"stack: shapes {self.shape} and {other.shape} differ; use cat, or reshape one"
                )
        axis = self._dim("stack", dim, extra=1)
        shape = (*self.shape[:axis], 1, *self.shape[axis:])
        nodes = promote(self.node, *(o.node for o in others))
        return self._make(build.cat([build.reshape(n, shape) for n in nodes], axis), *others)

    def meshgrid(self, *others: TensorBase, indexing: str = "ij") -> tuple[Self, ...]:
        """Vectors expanded against each other: the coordinates of a grid.

        >>> [g.tolist() for g in Tensor([1, 2]).meshgrid(Tensor([3, 4]))]
        [[[1, 1], [2, 2]], [[3, 4], [3, 4]]]
        """
        if indexing not in ("ij", "xy"):
            raise ValueError(f"meshgrid: indexing {indexing!r}; use 'ij' or 'xy'")
        vectors: list[TensorBase] = [self, *others]
        for vector in vectors:
            require_tensor("meshgrid", vector, "coregrad.meshgrid(a, b)")
        rank = len(vectors)
        places = list(range(rank))
        if indexing == "xy" and rank > 1:
            places[0], places[1] = 1, 0
        columns = []
        for vector, place in zip(vectors, places, strict=True):
            shape = [1] * rank
            shape[place] = vector.numel()
            columns.append(build.reshape(vector.node, shape))
        full = broadcast_shapes("meshgrid", *(c.shape for c in columns))
        return tuple(self._make(expand_node(c, full), *others) for c in columns)


# ---- on nodes ------------------------------------------------------------------------------------


# What a tensor may be seen through and still be known as stored. (Updates of what is stored end
# in the same memory.)
_VIEWS = frozenset(
    (ops.RESHAPE, ops.PERMUTE, ops.EXPAND, ops.FLIP, ops.SHRINK, ops.SLICE, ops.UPDATE)
)
_VIEWED = 80  # views that are looked through


def is_stored(node: Node) -> bool:
    """Whether a node is data in memory, seen as it is or through views."""
    for _ in range(_VIEWED):
        node = engine.resolve(node)
        if node.op not in _VIEWS:
            break
        node = node.src[0]
    return node.op is ops.BUFFER


def block(
    node: Node,
    ranges: Sequence[tuple[int, int]],
    numbers: Mapping[int, Node] = MappingProxyType({}),
) -> Node:
    """The part ``ranges[i]`` = (start, stop) of each axis; on axes in ``numbers`` as much from
    there on. Of stored data the starts are numbers: the part at another place is taken by the same
    kernel."""
    sizes = [(stop - start, n) for (start, stop), n in zip(ranges, node.shape, strict=True)]
    axes = [axis for axis, (length, n) in enumerate(sizes) if length < n]
    if not axes or any(length == 0 for length, _ in sizes) or not is_stored(node):
        fixed = [(0, n) if a in numbers else ranges[a] for a, n in enumerate(node.shape)]
        node = build.shrink(node, fixed)
        axes = [axis for axis in axes if axis in numbers]
    if not axes:
        return node
    bounds = [sizes[a][1] - sizes[a][0] for a in axes]
    starts = [
        numbers[a] if a in numbers else build.number(ranges[a][0], bound)
        for a, bound in zip(axes, bounds, strict=True)
    ]
    return build.slice_at(node, axes, starts, [sizes[a][0] for a in axes])


def _part(x: Node, axis: int, start: int, stop: int) -> Node:
    """The part of an axis that a user names; see :func:`block`."""
    return block(x, _ranges(x, axis, start, stop))


def _cut(x: Node, axis: int, start: int, stop: int) -> Node:
    """The part of an axis where an operation always has it."""
    return build.shrink(x, _ranges(x, axis, start, stop))


def _ranges(x: Node, axis: int, start: int, stop: int) -> list[tuple[int, int]]:
    ranges = [(0, n) for n in x.shape]
    ranges[axis] = (start, stop)
    return ranges


def _rolled(x: Node, step: int, axis: int) -> Node:
    length = x.shape[axis]
    cut = -step % length if length else 0
    if cut == 0:
        return x
    return build.cat([_cut(x, axis, cut, length), _cut(x, axis, 0, cut)], axis)


def _repeated(x: Node, counts: Shape) -> Node:
    paired = [size for n in x.shape for size in (1, n)]
    grown = [size for c, n in zip(counts, x.shape, strict=True) for size in (c, n)]
    merged = [c * n for c, n in zip(counts, x.shape, strict=True)]
    return build.reshape(build.expand(build.reshape(x, paired), grown), merged)


def _main_diagonal(x: Node) -> Node:
    """Of two last axes of one size n: with n more elements at the end, a row of n + 1 begins at
    every element of the diagonal."""
    *rest, n = x.shape[:-1]
    flat = build.reshape(x, (*rest, n * n))
    longer = build.pad(flat, (*((0, 0) for _ in rest), (0, n)))
    rows = build.reshape(longer, (*rest, n, n + 1))
    return build.reshape(_cut(rows, len(rest) + 1, 0, 1), (*rest, n))


def _rows_and_columns(rows: int, columns: int, diagonal: int) -> tuple[Node, Node]:
    """Row + diagonal and column of every element of a matrix."""
    down = build.add(build.iota(rows, dtypes.int32), build.const(diagonal, dtypes.int32, (rows,)))
    across = build.iota(columns, dtypes.int32)
    shape = (rows, columns)
    return expand_node(build.reshape(down, (rows, 1)), shape), expand_node(across, shape)


def _pad_constant(x: Node, widths: Sequence[tuple[int, int]], value: float) -> Node:
    """Negative widths cut."""
    for axis, (before, after) in enumerate(widths):
        if x.shape[axis] + before + after < 0:
            raise ShapeError(
                f"pad: {(before, after)} cuts more than the {x.shape[axis]} elements of axis {axis}"
            )
    kept = [(max(-b, 0), n - max(-a, 0)) for n, (b, a) in zip(x.shape, widths, strict=True)]
    grown = [(max(b, 0), max(a, 0)) for b, a in widths]
    if 0 in x.shape:  # a border of nothing
        shape = [n + before + after for n, (before, after) in zip(x.shape, widths, strict=True)]
        return build.const(value, x.dtype, tuple(shape))
    if any(lo > hi for lo, hi in kept):  # one side cuts into what the other side adds
        return _shifted(x, widths, value)
    return build.pad(build.shrink(x, kept), grown, value)


def _shifted(x: Node, widths: Sequence[tuple[int, int]], value: float) -> Node:
    grown = build.pad(x, [(max(b, 0), max(a, 0)) for b, a in widths], value)
    kept = [(max(-b, 0), n - max(-a, 0)) for n, (b, a) in zip(grown.shape, widths, strict=True)]
    return build.shrink(grown, kept)


BORDERS = frozenset(("reflect", "replicate", "circular"))


def _pad_inside(x: Node, axis: int, before: int, after: int, mode: str) -> Node:
    """A border made of what is inside, along one axis."""
    n = x.shape[axis]
    most = {"reflect": n - 1, "circular": n, "replicate": before + after if n else 0}[mode]
    if before < 0 or after < 0 or max(before, after) > most:
        raise ShapeError(
            f"pad: a {mode} border of {(before, after)} does not fit axis {axis} of shape "
            f"{x.shape}; use sizes from 0 to {most}"
        )
    left = _border(x, axis, before, mode, first=True)
    right = _border(x, axis, after, mode, first=False)
    return build.cat([left, x, right], axis)


def _border(x: Node, axis: int, width: int, mode: str, first: bool) -> Node:
    n = x.shape[axis]
    if mode == "circular":
        return _cut(x, axis, n - width, n) if first else _cut(x, axis, 0, width)
    if mode == "reflect":
        inside = _cut(x, axis, 1, 1 + width) if first else _cut(x, axis, n - 1 - width, n - 1)
        return build.flip(inside, (axis,))
    edge = _cut(x, axis, 0, 1) if first else _cut(x, axis, n - 1, n)
    shape = list(x.shape)
    shape[axis] = width
    return build.expand(edge, shape)
