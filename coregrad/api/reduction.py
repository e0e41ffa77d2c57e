"""Reductions: sums, extremes, moments, norms, softmax and running sums, built from nodes.

Sums of float16 and bfloat16 accumulate in float32 (the contract's rule); where a formula goes on
after the sum (mean, variance, norm, softmax) it does so in float32 and is rounded once, at the end.
Nothing here divides by a value that may be 0 or subtracts two infinities to get a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from coregrad import dtypes
from coregrad.api import host
from coregrad.api.base import TensorBase, dim_or_axis
from coregrad.api.composed import composed
from coregrad.api.device import default_int
from coregrad.api.grad_mode import enabled_flag
from coregrad.api.indexing import Indexing
from coregrad.errors import DTypeError, ShapeError
from coregrad.ir import autodiff, build
from coregrad.ir.graph import Node

if TYPE_CHECKING:
    from typing_extensions import Self

Dims = int | Sequence[int] | None
Axes = tuple[int, ...]
BLOCK = 32  # elements of a running sum that are added up directly; longer ones go by blocks


class ValuesIndices(NamedTuple):
    """What ``max(dim)``, ``min(dim)`` and ``cummax`` return: the values, and where they stood."""

    values: Any
    indices: Any


@dataclass(frozen=True, eq=False)
class Gradient:
    """The rule of a custom node with one input: its gradient is ``formula(gradient)``."""

    formula: Callable[[Node], Node]

    def vjp(self, gradient: Node) -> Sequence[Node | None]:
        """What :mod:`coregrad.ir.autodiff` asks."""
        return (self.formula(gradient),)


# ---- on nodes ----------------------------------------------------------------------------------


def spread(reduced: Node, x: Node, axes: Axes) -> Node:
    """A reduced node repeated along the axes that were reduced."""
    return build.expand(build.reshape(reduced, kept_shape(x, axes)), x.shape)


def kept_shape(x: Node, axes: Axes) -> tuple[int, ...]:
    """The shape of ``x`` with 1 in the place of each of ``axes``."""
    return tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))


def count_of(x: Node, axes: Axes) -> int:
    """How many elements are folded into one."""
    return math.prod(x.shape[axis] for axis in axes)


def wide(x: Node) -> Node:
    """``x`` in the dtype its sums run in: float32 for float16 and bfloat16."""
    return build.cast(x, dtypes.accumulator(x.dtype)) if x.dtype.is_float else x


def total(x: Node, axes: Axes) -> Node:
    """The sum."""
    return build.reduce("add", x, axes)


def scaled(x: Node, divisor: float) -> Node:
    """``x / divisor``; divided, not multiplied by a rounded reciprocal."""
    return build.div(x, build.const_like(x, divisor))


def mean_of(x: Node, axes: Axes) -> Node:
    """The mean; NaN of nothing."""
    return scaled(total(x, axes), count_of(x, axes))


def centred(x: Node, axes: Axes) -> Node:
    """``x`` minus its mean."""
    return build.sub(x, spread(mean_of(x, axes), x, axes))


def square(x: Node) -> Node:
    """``x * x``."""
    return build.mul(x, x)


def shift_of(x: Node, axes: Axes) -> Node:
    """The largest finite element, or 0: what ``exp`` can be shifted by without changing a ratio.

    It takes no gradient, since what it is used for does not depend on it."""
    largest = build.reduce("max", build.detach(x), axes)
    zero = build.const_like(largest, 0)
    finite = build.lt(build.mul(largest, zero), build.const_like(largest, 1))  # inf*0 is NaN
    return build.where(finite, largest, zero)


def log_sum_exp(x: Node, axes: Axes) -> Node:
    """log(sum(exp(x))); -inf where all of x is (or nothing at all), with gradient 0."""
    if count_of(x, axes) == 0:
        kept = tuple(n for axis, n in enumerate(x.shape) if axis not in axes)
        return build.const(-math.inf, x.dtype, kept)
    shift = shift_of(x, axes)
    sums = total(build.exp(build.sub(x, spread(shift, x, axes))), axes)
    empty = build.eq(sums, build.const_like(sums, 0))
    logs = build.log(build.where(empty, build.const_like(sums, 1), sums))
    return build.where(empty, build.const_like(sums, -math.inf), build.add(logs, shift))


def root(x: Node) -> Node:
    """The square root, whose gradient at 0 is taken to be 0."""
    zero = build.const_like(x, 0)
    nothing = build.eq(x, zero)
    return build.where(nothing, zero, build.sqrt(build.where(nothing, build.const_like(x, 1), x)))


def ordered(x: Node) -> Node:
    """``x`` as a number: a bool as uint8."""
    return build.cast(x, dtypes.uint8) if x.dtype is dtypes.bool_ else x


def opposite(x: Node) -> Node:
    """An order-reversing bijection that is its own inverse: -x of floats, ~x of integers."""
    return build.neg(x) if x.dtype.is_float else build.invert(x)


def chosen(index: Node, x: Node, axis: int) -> Node:
    """Where an element of ``x`` is the one that ``index`` (reduced along ``axis``) names."""
    places = build.iota(x.shape[axis], index.dtype)
    shape = tuple(n if a == axis else 1 for a, n in enumerate(x.shape))
    return build.eq(build.expand(build.reshape(places, shape), x.shape), spread(index, x, (axis,)))


def running(
    x: Node, fold: Callable[[Node], Node], join: Callable[[Node, Node], Node], neutral: float
) -> Node:
    """The running reduction along the last axis. ``fold`` reduces a last axis, ``join`` two nodes.

    Blocks of :data:`BLOCK` elements are folded directly; the blocks' totals are run over in turn,
    so that n elements cost about 33 n steps and a few kernels, and float sums stay accurate.
    """
    levels: list[tuple[Node, int]] = []
    while x.shape[-1] > BLOCK:
        length = x.shape[-1]
        blocks = -(-length // BLOCK)
        padded = build.pad(x, _border(x, 0, blocks * BLOCK - length), neutral)
        rows = build.reshape(padded, (*x.shape[:-1], blocks, BLOCK))
        inner = build.contiguous(_prefixes(rows, fold, neutral))
        levels.append((inner, length))
        x = build.reshape(build.shrink(inner, _block(inner, BLOCK - 1, BLOCK)), rows.shape[:-1])
    result = _prefixes(x, fold, neutral)
    for inner, length in reversed(levels):
        earlier = build.pad(result, _border(result, 1, 0), neutral)
        earlier = build.shrink(earlier, _block(earlier, 0, inner.shape[-2]))
        offsets = build.expand(build.reshape(earlier, (*earlier.shape, 1)), inner.shape)
        joined = join(offsets, inner)
        flat = build.reshape(joined, (*inner.shape[:-2], inner.shape[-2] * BLOCK))
        result = build.shrink(flat, _block(flat, 0, length))
    return result


def _prefixes(x: Node, fold: Callable[[Node], Node], neutral: float) -> Node:
    """Element i of the last axis is ``fold`` of elements 0 to i: the direct way."""
    length = x.shape[-1]
    padded = build.pad(x, _border(x, length - 1, 0), neutral)
    return fold(build.window(padded, len(x.shape) - 1, length))


def _border(x: Node, before: int, after: int) -> list[tuple[int, int]]:
    return [(0, 0)] * (len(x.shape) - 1) + [(before, after)]


def _block(x: Node, start: int, stop: int) -> list[tuple[int, int]]:
    return [(0, n) for n in x.shape[:-1]] + [(start, stop)]


def _fold_last(kind: str) -> Callable[[Node], Node]:
    return lambda x: build.reduce(kind, x, (len(x.shape) - 1,))


def _log_add_exp(a: Node, b: Node) -> Node:
    pair = [build.reshape(x, (*x.shape, 1)) for x in (a, b)]
    return log_sum_exp(build.cat(pair, len(a.shape)), (len(a.shape),))


# ---- on tensors --------------------------------------------------------------------------------


class Reduction(Indexing):
    """Methods that fold axes away. ``dim`` is an axis, several, or None for all of them."""

    def _axes(self, name: str, dim: Dims) -> Axes:
        named = tuple(dim) if isinstance(dim, (tuple, list)) else (dim,)
        if dim is None or not named:
            return tuple(range(self.ndim))
        axes = tuple(sorted(self._dim(name, d) for d in named))
        if len(set(axes)) != len(axes):
            raise ShapeError(f"{name}: axes {named} of shape {self.shape} name one axis twice")
        return tuple(axis for axis in axes if axis < self.ndim)

    def _floating(self, name: str) -> Node:
        node = self.node
        if not node.dtype.is_float:
            raise DTypeError(
                f"{name}: {node.dtype.name} is no floating dtype; cast the tensor first, for "
                "example with .float()"
            )
        return node

    def _reduced(self, node: Node, axes: Axes, keepdim: bool) -> Self:
        """A tensor of a reduced node, the axes kept as 1 if asked for."""
        return self._make(build.reshape(node, kept_shape(self._node, axes)) if keepdim else node)

    def _rounded(self, node: Node, axes: Axes, keepdim: bool) -> Self:
        """The same, back in this tensor's dtype."""
        return self._reduced(build.cast(node, self.dtype), axes, keepdim)

    def _ruled(self, value: Node, x: Node, formula: Callable[[Node], Node]) -> Node:
        """``value``, whose gradient for ``x`` is ``formula(gradient)``."""
        if self._requires_grad is False or not enabled_flag.get() or not x.dtype.is_float:
            return value
        return build.custom(value, (x,), Gradient(formula))

    # ---- sums ----------------------------------------------------------------------------------

    @dim_or_axis
    def sum(self, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Self:
        """The sum over ``dim``. Bools and integers are summed as int64 unless ``dtype`` is given.

        Raises ShapeError for an axis the tensor does not have. The sum of nothing is 0.

        >>> Tensor([[1.0, 2.0], [3.0, 4.0]]).sum(1).tolist()
        [3.0, 7.0]
        """
        axes = self._axes("sum", dim)
        return self._reduced(total(self._summable(dtype), axes), axes, keepdim)

    def trace(self) -> Self:
        """The sum of a matrix's diagonal; ShapeError unless there are two axes.

        >>> Tensor([[1, 2], [3, 4]]).trace().item()
        5
        """
        if self.ndim != 2:
            raise ShapeError(f"trace: shape {self.shape} is no matrix; give two axes")
        return self.diagonal().sum()

    def _summable(self, dtype: Any) -> Node:
        node = self.node
        if dtype is not None:
            return build.cast(node, host.as_dtype(dtype))
        if node.dtype.is_float or node.dtype is dtypes.uint64:
            return node
        return build.cast(node, default_int(self.device))

    @dim_or_axis
    def prod(self, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Self:
        """The product over ``dim``. Bools and integers multiply as int64 unless ``dtype`` is given.

        Its gradient is right where factors are 0. The product of nothing is 1.

        >>> Tensor([2.0, 3.0, 4.0]).prod().item()
        24.0
        """
        axes = self._axes("prod", dim)
        return self._reduced(build.reduce("mul", self._summable(dtype), axes), axes, keepdim)

    @composed
    @dim_or_axis
    def mean(self, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Self:
        """The mean over ``dim``, computed in float32 for float16 and bfloat16.

        Raises DTypeError for integers, as PyTorch does: cast first, or give ``dtype``. The mean of
        nothing is NaN.

        >>> Tensor([[1.0, 2.0], [3.0, 4.0]]).mean(0).tolist()
        [2.0, 3.0]
        """
        if dtype is not None:
            return self.to(host.as_dtype(dtype)).mean(dim, keepdim)
        axes = self._axes("mean", dim)
        return self._rounded(mean_of(wide(self._floating("mean")), axes), axes, keepdim)

    @dim_or_axis
    def count_nonzero(self, dim: Dims = None) -> Self:
        """How many elements over ``dim`` are not 0 (NaN is not), as int64.

        >>> Tensor([[0, 3], [4, 5]]).count_nonzero(0).tolist()
        [1, 2]
        """
        axes = self._axes("count_nonzero", dim)
        node = self.node
        hits = build.cast(build.ne(node, build.const_like(node, 0)), default_int(self.device))
        return self._make(total(hits, axes))

    # ---- extremes ------------------------------------------------------------------------------

    @dim_or_axis
    def amax(self, dim: Dims = None, keepdim: bool = False) -> Self:
        """The largest element over ``dim``; NaN if there is one. Ties share the gradient evenly.

        Raises ShapeError where there is no element.

        >>> Tensor([[1, 5], [7, 2]]).amax(0).tolist()
        [7, 5]
        """
        return self._extreme("amax", dim, keepdim, lambda x: x)

    @dim_or_axis
    def amin(self, dim: Dims = None, keepdim: bool = False) -> Self:
        """The smallest element over ``dim``; NaN if there is one. Ties share the gradient evenly.

        Raises ShapeError where there is no element.

        >>> Tensor([[1, 5], [7, 2]]).amin(0).tolist()
        [1, 2]
        """
        return self._extreme("amin", dim, keepdim, opposite)

    def _extreme(self, name: str, dim: Dims, keepdim: bool, turned: Callable[[Node], Node]) -> Self:
        axes = self._axes(name, dim)
        self._check_not_empty(name, axes)
        x = turned(ordered(self.node))
        return self._rounded(turned(build.reduce("max", x, axes)), axes, keepdim)

    def _check_not_empty(self, name: str, axes: Axes) -> None:
        if any(self.shape[axis] == 0 for axis in axes):
            raise ShapeError(
                f"{name}: shape {self.shape} has no element along axes {axes}; there is no extreme "
                "of nothing"
            )

    @dim_or_axis
    def max(self, dim: Any = None, keepdim: bool = False) -> Any:
        """Without ``dim`` the largest element; with one axis (values, indices) along it.

        Of equals the first counts; NaN is the largest. The gradient of ``max(dim)`` goes to the one
        element chosen, that of ``max()`` in equal parts to all that are as large. Given a tensor,
        it is :meth:`maximum`. Raises ShapeError where there is no element.

        >>> Tensor([[1, 5], [7, 2]]).max(1).indices.tolist()
        [1, 0]
        """
        if isinstance(dim, TensorBase):
            return self.maximum(dim)
        return self._extremum("max", dim, keepdim, lambda x: x)

    @dim_or_axis
    def min(self, dim: Any = None, keepdim: bool = False) -> Any:
        """Without ``dim`` the smallest element; with one axis (values, indices) along it.

        Ties, NaN, gradients and errors are as in :meth:`max`.

        >>> Tensor([[1, 5], [7, 2]]).min(1).values.tolist()
        [1, 2]
        """
        if isinstance(dim, TensorBase):
            return self.minimum(dim)
        return self._extremum("min", dim, keepdim, opposite)

    def _extremum(self, name: str, dim: Any, keepdim: bool, turned: Callable[[Node], Node]) -> Any:
        if dim is None:
            return self._extreme(name, None, keepdim, turned)
        if isinstance(dim, (tuple, list)):
            raise ShapeError(f"{name}: {dim} is not one axis; a{name} takes several")
        axes = self._axes(name, dim)
        self._check_not_empty(name, axes)
        if not axes:
            return ValuesIndices(self._make(self.node), self._make(self._index_of_scalar()))
        x = self.node
        index = build.reduce("argmax", turned(ordered(x)), axes)
        value = turned(build.reduce("max", turned(ordered(x)), axes))

        def formula(g: Node) -> Node:
            picked = chosen(index, x, axes[0])
            return build.where(picked, spread(g, x, axes), build.const_like(x, 0))

        value = self._ruled(build.cast(value, x.dtype), x, formula)
        found = build.cast(index, default_int(self.device))
        return ValuesIndices(
            self._reduced(value, axes, keepdim), self._reduced(found, axes, keepdim)
        )

    def _index_of_scalar(self) -> Node:
        return build.const(0, default_int(self.device))

    @dim_or_axis
    def argmax(self, dim: int | None = None, keepdim: bool = False) -> Self:
        """Where the largest element is (int64): along ``dim``, or in the flattened tensor.

        Of equals the first counts; the first NaN counts as the largest. Raises ShapeError where
        there is no element.

        >>> Tensor([[1, 5], [7, 2]]).argmax(1).tolist()
        [1, 0]
        """
        return self._place("argmax", dim, keepdim, lambda x: x)

    @dim_or_axis
    def argmin(self, dim: int | None = None, keepdim: bool = False) -> Self:
        """Where the smallest element is (int64): along ``dim``, or in the flattened tensor.

        Of equals the first counts; the first NaN counts as the smallest. Raises ShapeError where
        there is no element.

        >>> Tensor([[1, 5], [7, 2]]).argmin(1).tolist()
        [0, 1]
        """
        return self._place("argmin", dim, keepdim, opposite)

    def _place(
        self, name: str, dim: int | None, keepdim: bool, turned: Callable[[Node], Node]
    ) -> Self:
        axes = self._axes(name, dim)
        self._check_not_empty(name, axes)
        if not axes:
            return self._make(self._index_of_scalar())
        x = turned(ordered(self.node))
        if dim is None:
            x = build.reshape(x, (self.numel(),))
        index = build.reduce("argmax", x, axes if dim is not None else (0,))
        return self._reduced(build.cast(index, default_int(self.device)), axes, keepdim)

    @dim_or_axis
    def any(self, dim: Dims = None, keepdim: bool = False) -> Self:
        """Whether any element over ``dim`` is not 0; False for no element.

        >>> Tensor([[False, True], [False, False]]).any(1).tolist()
        [True, False]
        """
        axes = self._axes("any", dim)
        return self._reduced(_any(self.node, axes), axes, keepdim)

    @dim_or_axis
    def all(self, dim: Dims = None, keepdim: bool = False) -> Self:
        """Whether all elements over ``dim`` are not 0; True for no element.

        >>> Tensor([[True, True], [False, True]]).all(1).tolist()
        [True, False]
        """
        axes = self._axes("all", dim)
        truths = build.cast(self.node, dtypes.bool_)
        return self._reduced(build.invert(_any(build.invert(truths), axes)), axes, keepdim)

    # ---- moments and norms ---------------------------------------------------------------------

    @composed
    @dim_or_axis
    def var(
        self,
        dim: Dims = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        correction: float | None = None,
    ) -> Self:
        """The variance over ``dim``, from the squares of what is left after taking off the mean.

        The sum of squares is divided by n - ``correction`` (1 by default; ``unbiased=False`` is
        another word for 0), and by 0 if that is negative. Raises DTypeError for integers.

        >>> Tensor([1.0, 2.0, 3.0, 4.0]).var(correction=0).item()
        1.25
        """
        axes = self._axes("var", dim)
        node = self._variance("var", axes, _correction(unbiased, correction))
        return self._rounded(node, axes, keepdim)

    @composed
    @dim_or_axis
    def std(
        self,
        dim: Dims = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        correction: float | None = None,
    ) -> Self:
        """The square root of :meth:`var`; its gradient is 0 where it is 0.

        >>> Tensor([1.0, 3.0]).std(correction=0).item()
        1.0
        """
        axes = self._axes("std", dim)
        node = self._variance("std", axes, _correction(unbiased, correction))
        return self._rounded(root(node), axes, keepdim)

    @dim_or_axis
    def var_mean(
        self,
        dim: Dims = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        correction: float | None = None,
    ) -> tuple[Self, Self]:
        """(variance, mean) over ``dim``; see :meth:`var`.

        >>> [t.item() for t in Tensor([1.0, 3.0]).var_mean()]
        [2.0, 2.0]
        """
        return self.var(dim, unbiased, keepdim, correction), self.mean(dim, keepdim)

    @dim_or_axis
    def std_mean(
        self,
        dim: Dims = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        correction: float | None = None,
    ) -> tuple[Self, Self]:
        """(standard deviation, mean) over ``dim``; see :meth:`std`.

        >>> [t.item() for t in Tensor([1.0, 3.0]).std_mean(correction=0)]
        [1.0, 2.0]
        """
        return self.std(dim, unbiased, keepdim, correction), self.mean(dim, keepdim)

    def _variance(self, name: str, axes: Axes, correction: float) -> Node:
        """The variance in the wide dtype. By its rule the gradient is one product: what passes
        through the mean adds up to zero, and would cost another reduction to find out."""
        x = wide(self._floating(name))
        divisor = max(count_of(x, axes) - correction, 0.0)
        value = scaled(total(square(centred(x, axes)), axes), divisor)

        def formula(g: Node) -> Node:
            share = scaled(build.mul(g, build.const_like(g, 2)), divisor)
            return build.mul(spread(share, x, axes), centred(x, axes))

        return self._ruled(value, x, formula)

    @dim_or_axis
    def norm(self, p: float | str | None = 2, dim: Dims = None, keepdim: bool = False) -> Self:
        """The vector norm over ``dim``: (sum of abs(x)**p)**(1/p), for any p, inf and 0 included.

        The gradient where the norm is 0 is 0. Raises DTypeError for integers.

        >>> Tensor([3.0, 4.0]).norm().item()
        5.0
        """
        axes = self._axes("norm", dim)
        order = 2.0 if p is None or p == "fro" else float(p)
        x = wide(self._floating("norm"))
        if order == 2:
            node = root(total(square(x), axes))
        else:
            node = self._make(x)._power_norm(order, axes)
        return self._rounded(node, axes, keepdim)

    def _power_norm(self, p: float, axes: Axes) -> Node:
        sizes = self.abs()
        if math.isinf(p):
            return (sizes.amax(axes) if p > 0 else sizes.amin(axes)).node
        if p == 0:
            return build.cast(self.count_nonzero(axes).node, self.dtype)
        if p == 1:
            return total(sizes.node, axes)
        x = sizes.node
        zero = build.eq(x, build.const_like(x, 0))
        one = build.const_like(x, 1)
        powers = self._make(build.where(zero, one, x)).pow(p).node
        nothing = build.const_like(x, 0 if p > 0 else math.inf)
        sums = total(build.where(zero, nothing, powers), axes)
        empty = build.eq(sums, build.const_like(sums, 0))
        roots = self._make(build.where(empty, build.const_like(sums, 1), sums)).pow(1 / p).node
        return build.where(empty, build.const_like(sums, 0 if p > 0 else math.inf), roots)

    # ---- softmax and its kin -------------------------------------------------------------------

    @composed
    @dim_or_axis
    def logsumexp(self, dim: Dims = None, keepdim: bool = False) -> Self:
        """log(sum(exp(x))) over ``dim`` without overflow; -inf, with gradient 0, where all x are.

        Raises DTypeError for integers.

        >>> Tensor([1000.0, 0.0]).logsumexp(0).item()
        1000.0
        """
        axes = self._axes("logsumexp", dim)
        return self._rounded(log_sum_exp(wide(self._floating("logsumexp")), axes), axes, keepdim)

    @composed
    @dim_or_axis
    def softmax(self, dim: int | None = -1, dtype: Any = None) -> Self:
        """exp(x) / sum(exp(x)) along ``dim``; NaN, as in PyTorch, where all x are -inf.

        Raises DTypeError for integers unless ``dtype`` is given.

        >>> Tensor([0.0, 0.0]).softmax(0).tolist()
        [0.5, 0.5]
        """
        if dtype is not None:
            return self.to(host.as_dtype(dtype)).softmax(dim)
        axes = self._axes("softmax", -1 if dim is None else dim)
        x = wide(self._floating("softmax"))
        powers = build.exp(_shifted(x, axes))
        sums = spread(total(powers, axes), x, axes)
        return self._make(build.cast(build.div(powers, sums), self.dtype))

    @composed
    @dim_or_axis
    def log_softmax(self, dim: int | None = -1, dtype: Any = None) -> Self:
        """log(softmax(x)) along ``dim``, accurate also where softmax rounds to 0 or 1.

        Raises DTypeError for integers unless ``dtype`` is given.

        >>> Tensor([0.0, -200.0]).log_softmax(0).tolist()
        [0.0, -200.0]
        """
        if dtype is not None:
            return self.to(host.as_dtype(dtype)).log_softmax(dim)
        axes = self._axes("log_softmax", -1 if dim is None else dim)
        x = _shifted(wide(self._floating("log_softmax")), axes)
        sums = build.log(total(build.exp(x), axes))
        return self._make(build.cast(build.sub(x, spread(sums, x, axes)), self.dtype))

    # ---- running reductions --------------------------------------------------------------------

    @dim_or_axis
    def cumsum(self, dim: int = 0, dtype: Any = None) -> Self:
        """The sums of the first 1, 2, 3 ... elements along ``dim``; bools and integers as int64.

        >>> Tensor([1, 2, 3]).cumsum(0).tolist()
        [1, 3, 6]
        """
        x = self._summable(dtype)
        return self._scan("cumsum", dim, x, "add")

    @dim_or_axis
    def cumprod(self, dim: int = 0, dtype: Any = None) -> Self:
        """The products of the first 1, 2, 3 ... elements along ``dim``; integers as int64.

        Its gradient is right where factors are 0.

        >>> Tensor([1, 2, 3, 4]).cumprod(0).tolist()
        [1, 2, 6, 24]
        """
        x = self._summable(dtype)
        return self._scan("cumprod", dim, x, "mul")

    @dim_or_axis
    def logcumsumexp(self, dim: int = 0) -> Self:
        """The logsumexp of the first 1, 2, 3 ... elements along ``dim``.

        >>> Tensor([0.0, 0.0]).logcumsumexp(0).exp().round(decimals=4).tolist()
        [1.0, 2.0]
        """
        x = self._floating("logcumsumexp")

        def fold(rows: Node) -> Node:
            return log_sum_exp(rows, (len(rows.shape) - 1,))

        return self._run("logcumsumexp", dim, x, fold, _log_add_exp, -math.inf)

    @dim_or_axis
    def cummax(self, dim: int = 0) -> ValuesIndices:
        """(values, indices) of the largest element so far along ``dim``; of equals the last.

        Equal largest elements share the gradient. A NaN stays once it was met.

        >>> Tensor([1, 3, 2, 3]).cummax(0).indices.tolist()
        [0, 1, 1, 3]
        """
        return self._cumulative_extreme("cummax", dim, lambda x: x)

    @dim_or_axis
    def cummin(self, dim: int = 0) -> ValuesIndices:
        """(values, indices) of the smallest element so far along ``dim``; as :meth:`cummax`.

        >>> Tensor([3, 1, 2, 1]).cummin(0).values.tolist()
        [3, 1, 1, 1]
        """
        return self._cumulative_extreme("cummin", dim, opposite)

    def _cumulative_extreme(
        self, name: str, dim: int, turned: Callable[[Node], Node]
    ) -> ValuesIndices:
        axis = self._dim(name, dim)
        x = turned(ordered(self.node))
        values = self._scan(name, dim, x, "max")
        best = values.node
        number = default_int(self.device)
        if not x.shape:
            return ValuesIndices(self._make(self.node), self._make(self._index_of_scalar()))
        shape = tuple(n if a == axis else 1 for a, n in enumerate(x.shape))
        places = build.expand(build.reshape(build.iota(x.shape[axis], number), shape), x.shape)
        new = build.or_(build.eq(x, best), build.ne(x, x))
        hits = build.where(new, places, build.const_like(places, -1))
        indices = self._scan(name, dim, hits, "max")
        return ValuesIndices(self._make(build.cast(turned(best), self.dtype)), indices)

    def _scan(self, name: str, dim: int, x: Node, kind: str) -> Self:
        """The running sum, product or maximum of ``x`` (this tensor's node, prepared)."""
        axis = self._dim(name, dim)
        if not x.shape or 0 in x.shape:
            return self._make(x)
        value = build.cast(build.scan(kind, wide(x), axis), x.dtype)
        if kind == "add" or not x.dtype.is_float:
            return self._make(value)
        join, neutral = (build.mul, 1) if kind == "mul" else (build.maximum, x.dtype.min)

        def gradient(g: Node) -> Node:
            """That of the running product or maximum written with reductions."""
            composed = self._run(name, dim, x, _fold_last(kind), join, neutral).node
            return autodiff.gradients(composed, g, [x])[x]

        return self._make(self._ruled(value, x, gradient))

    def _run(
        self,
        name: str,
        dim: int,
        x: Node,
        fold: Callable[[Node], Node],
        join: Callable[[Node, Node], Node],
        neutral: float,
    ) -> Self:
        """A running reduction of ``x`` (this tensor's node, prepared) along ``dim``."""
        axis = self._dim(name, dim)
        if not x.shape or 0 in x.shape:
            return self._make(x)
        order = (*(a for a in range(len(x.shape)) if a != axis), axis)
        inverse = tuple(order.index(a) for a in range(len(order)))
        rows = running(wide(build.permute(x, order)), fold, join, neutral)
        return self._make(build.cast(build.permute(rows, inverse), x.dtype))


def _any(x: Node, axes: Axes) -> Node:
    truths = build.cast(build.cast(x, dtypes.bool_), dtypes.uint8)
    if count_of(x, axes) == 0:
        kept = tuple(n for axis, n in enumerate(x.shape) if axis not in axes)
        return build.const(False, dtypes.bool_, kept)
    return build.cast(build.reduce("max", truths, axes), dtypes.bool_)


def _shifted(x: Node, axes: Axes) -> Node:
    """``x`` minus its largest element, which takes no gradient: nothing depends on it."""
    if count_of(x, axes) == 0:
        return x
    return build.sub(x, spread(build.reduce("max", build.detach(x), axes), x, axes))


def _correction(unbiased: bool | None, correction: float | None) -> float:
    if unbiased is not None and correction is not None:
        raise TypeError("var: give unbiased or correction, not both")
    if unbiased is not None:
        return float(unbiased)
    return 1.0 if correction is None else float(correction)
