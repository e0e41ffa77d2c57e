"""What networks are made of: products, convolutions, pooling, normalisation, attention, dropout.

Everything is a sum over products, a window or a reduction of nodes; the compiler recognises the
contractions by their shape (``sum(a * b)``), so nothing here names a matrix multiplication.
float16 and bfloat16 are multiplied and summed in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad import dtypes
from coregrad.api import threefry
from coregrad.api.base import TensorBase, broadcast_shapes, dim_or_axis, expand, promote
from coregrad.api.composed import composed
from coregrad.api.device import default_int
from coregrad.api.einsum import einsum
from coregrad.api.indexing import in_range
from coregrad.api.loss import Loss
from coregrad.api.reduction import (
    Axes,
    ValuesIndices,
    centred,
    kept_shape,
    mean_of,
    shift_of,
    spread,
    square,
    total,
    wide,
)
from coregrad.api.windows import (
    Sizes,
    at_chosen,
    average,
    border,
    convolve,
    convolve_transposed,
    flat_windows,
    largest,
    ones_inside,
    paddings,
    pool_paddings,
    sizes,
    to_chosen,
)
from coregrad.errors import CoregradError, DTypeError, IndexRangeError, ShapeError
from coregrad.ir import build
from coregrad.ir.graph import Node, Shape

if TYPE_CHECKING:
    from typing_extensions import Self

# The spacing of the numbers at 1: what PyTorch's rms_norm adds when it is given no eps.
_SPACING = {
    dtypes.float16: 2.0**-10,
    dtypes.bfloat16: 2.0**-7,
    dtypes.float32: 2.0**-23,
    dtypes.float64: 2.0**-52,
}


# ---- on nodes ----------------------------------------------------------------------------------


def matmul(a: Node, b: Node) -> Node:
    """(..., m, k) times (..., k, n): the sum over k of (..., m, 1, k) times (..., 1, n, k)."""
    rank = len(b.shape)
    b = build.permute(b, (*range(rank - 2), rank - 1, rank - 2))
    rows = build.reshape(a, (*a.shape[:-1], 1, a.shape[-1]))
    columns = build.reshape(b, (*b.shape[:-2], 1, *b.shape[-2:]))
    return contract_last(rows, columns)


def contract_last(a: Node, b: Node) -> Node:
    """sum(a * b) over the last axis: broadcast, of one dtype, rounded once to it."""
    shape = broadcast_shapes("contract", a.shape, b.shape)
    product = build.mul(expand(wide(a), shape), expand(wide(b), shape))
    return build.cast(total(product, (len(shape) - 1,)), a.dtype)


def normalised(x: Node, shifted: Node, var: Node, eps: float) -> Node:
    """``shifted / sqrt(var + eps)``, the division done once per variance."""
    deviation = build.sqrt(build.add(var, build.const_like(var, eps)))
    return build.mul(shifted, expand(build.div(build.const_like(var, 1), deviation), x.shape))


def along(vector: Node, shape: Shape, axis: int) -> Node:
    """A vector along one axis of ``shape``."""
    placed = tuple(n if i == axis else 1 for i, n in enumerate(shape))
    return build.expand(build.reshape(vector, placed), shape)


def varies(length: object) -> bool:
    """Whether the length of an axis is a variable."""
    return not isinstance(length, int)


# ---- on tensors --------------------------------------------------------------------------------

MATRICES = (TensorBase, np.ndarray)  # what @ takes; other types get their chance to answer


class Network(Loss):
    """Methods that layers are built from."""

    def _same(self, other: TensorBase) -> Self:
        """For the type checker: all operands are of the class that results have."""
        return other  # type: ignore[return-value]

    # ---- products ------------------------------------------------------------------------------

    @composed
    def matmul(self, other: Any) -> Self:
        """The matrix product, for all ranks from 1 on, batch axes broadcast; also ``a @ b``.

        A 1-d operand is a row on the left and a column on the right, and its axis is dropped from
        the result. Integers are multiplied exactly, wrapping around. Raises ShapeError, naming
        both shapes, if they do not fit.

        >>> (Tensor([[1, 2], [3, 4]]) @ Tensor([1, 10])).tolist()
        [21, 43]
        """
        right = self._target(other, "matmul")
        a, b = promote(self.node, right.node)
        if not a.shape or not b.shape or a.shape[-1] != b.shape[-2 if len(b.shape) > 1 else 0]:
            raise ShapeError(
                f"matmul: shapes {a.shape} and {b.shape} do not fit; the last axis of the left "
                "operand must be as long as the last but one (or only) axis of the right one"
            )
        if a.dtype is dtypes.bool_:
            raise DTypeError(
                "matmul: bools are not numbers; cast one operand, for example to int64"
            )
        rows = build.reshape(a, (1, *a.shape)) if len(a.shape) == 1 else a
        columns = build.reshape(b, (*b.shape, 1)) if len(b.shape) == 1 else b
        batch = broadcast_shapes("matmul", rows.shape[:-2], columns.shape[:-2])
        kept_rows = a.shape[-2:-1] if len(a.shape) > 1 else ()
        kept_columns = b.shape[-1:] if len(b.shape) > 1 else ()
        node = matmul(rows, columns)
        return self._make(build.reshape(node, (*batch, *kept_rows, *kept_columns)), right)

    def dot(self, other: Any) -> Self:
        """The same as :meth:`matmul`.

        >>> Tensor([1.0, 2.0]).dot(Tensor([3.0, 4.0])).item()
        11.0
        """
        return self.matmul(other)

    mm = matmul
    mv = matmul

    def __matmul__(self, other: Any) -> Self:
        return self.matmul(other) if isinstance(other, MATRICES) else NotImplemented

    def __rmatmul__(self, other: Any) -> Self:
        if not isinstance(other, MATRICES):
            return NotImplemented
        return self._same(self._target(other, "matmul")).matmul(self)

    def bmm(self, other: Any) -> Self:
        """The matrix products of two batches: (b, m, k) times (b, k, n).

        Raises ShapeError unless both have three axes and the same batch.

        >>> Tensor.ones(2, 3, 4).bmm(Tensor.ones(2, 4, 5)).shape
        (2, 3, 5)
        """
        right = self._target(other, "bmm")
        if self.ndim != 3 or right.ndim != 3 or self.shape[0] != right.shape[0]:
            raise ShapeError(
                f"bmm: shapes {self.shape} and {right.shape}; give (b, m, k) and (b, k, n), or use "
                "matmul, which broadcasts"
            )
        return self.matmul(right)

    def addmm(self, a: Any, b: Any, beta: float = 1, alpha: float = 1) -> Self:
        """``beta * self + alpha * (a @ b)``.

        >>> Tensor([1.0]).addmm(Tensor([[2.0]]), Tensor([[3.0]])).tolist()
        [[7.0]]
        """
        product = self._same(self._target(a, "addmm")).matmul(b)
        if alpha != 1:
            product = product * alpha
        return product + (self if beta == 1 else self * beta)

    def baddbmm(self, batch1: Any, batch2: Any, *, beta: float = 1, alpha: float = 1) -> Self:
        """``beta * self + alpha * (batch1 @ batch2)`` for batches (b, m, k) and (b, k, n).

        Raises ShapeError unless both have three axes and the same batch.

        >>> Tensor([1.0]).baddbmm(Tensor([[[2.0]]]), Tensor([[[3.0]]]), alpha=10).tolist()
        [[[61.0]]]
        """
        product = self._same(self._target(batch1, "baddbmm")).bmm(batch2)
        if alpha != 1:
            product = product * alpha
        return product + (self if beta == 1 else self * beta)

    def tensordot(self, other: Any, dims: Any = 2) -> Self:
        """Sums of products over ``dims``: that many last axes of this tensor and first axes of the
        other, or two lists that name the axes of each in the same order.

        The other axes of this tensor come first in the result, then those of the other. Raises
        ShapeError if the axes are not as many, or not as long.

        >>> Tensor.ones(2, 3, 4).tensordot(Tensor.ones(4, 3, 5), ([1, 2], [1, 0])).shape
        (2, 5)
        """
        right = self._same(self._target(other, "tensordot"))
        ours, theirs = self._contracted(right, dims)
        rows = [d for d in range(self.ndim) if d not in ours]
        columns = [d for d in range(right.ndim) if d not in theirs]
        kept = (*(self.shape[d] for d in rows), *(right.shape[d] for d in columns))
        length = math.prod(self.shape[d] for d in ours)
        height = math.prod(self.shape[d] for d in rows)
        width = math.prod(right.shape[d] for d in columns)
        left = self.permute(*rows, *ours).reshape(height, length)
        return left.matmul(right.permute(*theirs, *columns).reshape(length, width)).reshape(kept)

    def _contracted(self, right: Self, dims: Any) -> tuple[list[int], list[int]]:
        """The axes that tensordot sums over, of this tensor and of the other."""
        if isinstance(dims, int):
            if not 0 <= dims <= min(self.ndim, right.ndim):
                raise ShapeError(
                    f"tensordot: shapes {self.shape} and {right.shape} do not have {dims} axes "
                    "each; give fewer"
                )
            named = list(range(self.ndim - dims, self.ndim)), list(range(dims))
        else:
            pair = [[d] if isinstance(d, int) else list(d) for d in dims]
            named = pair[0], pair[1]
        ours = [self._dim("tensordot", d) for d in named[0]]
        theirs = [right._dim("tensordot", d) for d in named[1]]
        repeated = len(set(ours)) != len(ours) or len(set(theirs)) != len(theirs)
        if repeated or [self.shape[d] for d in ours] != [right.shape[d] for d in theirs]:
            raise ShapeError(
                f"tensordot: axes {named[0]} of shape {self.shape} and {named[1]} of shape "
                f"{right.shape} do not fit; name as many of each, of the same lengths, once"
            )
        return ours, theirs

    def outer(self, other: Any) -> Self:
        """All products of two vectors: (n,) and (m,) to (n, m).

        >>> Tensor([1, 2]).outer(Tensor([3, 4])).tolist()
        [[3, 4], [6, 8]]
        """
        right = self._same(self._target(other, "outer"))
        if self.ndim != 1 or right.ndim != 1:
            raise ShapeError(f"outer: shapes {self.shape} and {right.shape}; give two vectors")
        return self.reshape(self.shape[0], 1) * right.reshape(1, right.shape[0])

    @composed
    def linear(self, weight: TensorBase, bias: TensorBase | None = None) -> Self:
        """``self @ weight.T + bias``: (..., in) with weight (out, in), as in PyTorch.

        Raises ShapeError if the sizes do not fit.

        >>> Tensor([[1.0, 2.0]]).linear(Tensor([[3.0, 4.0]]), Tensor([0.5])).tolist()
        [[11.5]]
        """
        self._check_device("linear", weight)
        if weight.ndim != 2 or not self.ndim or self.shape[-1] != weight.shape[1]:
            raise ShapeError(
                f"linear: an input of shape {self.shape} does not fit a weight of shape "
                f"{weight.shape}, which must be (out, in)"
            )
        x, w = promote(self.node, weight.node)
        rows = build.reshape(x, (*x.shape[:-1], 1, x.shape[-1]))
        out = self._make(contract_last(rows, w), weight)
        return out if bias is None else out + bias

    @staticmethod
    def einsum(formula: str, *operands: Any) -> Any:
        """Sums of products by index letters: ``Tensor.einsum("ij,jk->ik", a, b)``.

        An ellipsis stands for axes that broadcast; axes of size 1 broadcast too; a letter twice in
        one operand takes the diagonal. Without ``->`` the letters that stand once are the result's,
        in alphabetical order. Operands are contracted from left to right. Raises ShapeError for
        a formula that does not fit the shapes.

        >>> Tensor.einsum("i,i->", Tensor([1.0, 2.0]), Tensor([3.0, 4.0])).item()
        11.0
        """
        listed = len(operands) == 1 and isinstance(operands[0], (list, tuple))
        tensors = list(operands[0] if listed else operands)
        if not tensors or not all(isinstance(t, TensorBase) for t in tensors):
            raise ShapeError(f"einsum: {formula!r} needs tensors to work on; give at least one")
        first: TensorBase = tensors[0]
        for other in tensors[1:]:
            first._check_device("einsum", other)
        node = einsum(formula, promote(*(t.node for t in tensors)))
        return first._make(node, *tensors[1:])

    def sequential(self, layers: Iterable[Callable[[Any], Any]]) -> Any:
        """The result of calling ``layers`` one after the other, starting with this tensor.

        >>> Tensor([-1.0, 2.0]).sequential([Tensor.relu, lambda x: x * 3]).tolist()
        [0.0, 6.0]
        """
        x: Any = self
        for layer in layers:
            x = layer(x)
        return x

    # ---- convolution ---------------------------------------------------------------------------

    @composed
    def conv2d(
        self,
        weight: TensorBase,
        bias: TensorBase | None = None,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
    ) -> Self:
        """Cross-correlation of (N, C, H, W) with a weight of shape (O, C/groups, KH, KW).

        ``padding`` is a size, one per axis, ``"same"`` (stride 1 only) or ``"valid"``. The batch
        axis may be missing. Raises ShapeError, naming both shapes, if they do not fit.

        >>> Tensor.ones(1, 1, 3, 3).conv2d(Tensor.ones(1, 1, 2, 2)).tolist()
        [[[[4.0, 4.0], [4.0, 4.0]]]]
        """
        return self._conv("conv2d", 2, weight, bias, stride, padding, dilation, groups)

    @composed
    def conv1d(
        self,
        weight: TensorBase,
        bias: TensorBase | None = None,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
    ) -> Self:
        """Cross-correlation of (N, C, L) with a weight of shape (O, C/groups, K).

        See :meth:`conv2d`.

        >>> Tensor([[[1.0, 2.0, 3.0]]]).conv1d(Tensor([[[1.0, 1.0]]])).tolist()
        [[[3.0, 5.0]]]
        """
        return self._conv("conv1d", 1, weight, bias, stride, padding, dilation, groups)

    def _conv(
        self,
        name: str,
        axes: int,
        weight: TensorBase,
        bias: TensorBase | None,
        stride: Sizes,
        padding: Sizes | str,
        dilation: Sizes,
        groups: int,
    ) -> Self:
        x, w = self._conv_operands(name, axes, weight, groups)
        if x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
            raise ShapeError(
                f"{name}: an input of shape {self.shape} does not fit a weight of shape "
                f"{weight.shape} with {groups} groups; the weight must be (O, C/groups, ...) and O "
                "divisible by groups"
            )
        steps = sizes(name, "stride", stride, axes)
        gaps = sizes(name, "dilation", dilation, axes)
        pads = paddings(name, padding, w.shape[2:], steps, gaps)
        node = convolve(name, x, w, steps, pads, gaps, groups)
        return self._with_bias(name, node, axes, weight, bias)

    def _conv_operands(
        self, name: str, axes: int, weight: TensorBase, groups: int
    ) -> tuple[Node, Node]:
        """Input (with a batch axis) and weight, of one dtype; their ranks checked."""
        self._check_device(name, weight)
        if weight.ndim != axes + 2 or self.ndim not in (axes + 1, axes + 2) or groups < 1:
            raise ShapeError(
                f"{name}: an input of shape {self.shape} and a weight of shape {weight.shape} with "
                f"{groups} groups; give an input of {axes + 2} axes (N, C, ...), a weight of as "
                "many, and at least one group"
            )
        x, w = promote(self.node, weight.node)
        return (build.reshape(x, (1, *x.shape)) if self.ndim == axes + 1 else x), w

    def _with_bias(
        self, name: str, node: Node, axes: int, weight: TensorBase, bias: TensorBase | None
    ) -> Self:
        if self.ndim == axes + 1:
            node = build.reshape(node, node.shape[1:])
        out = self._make(node, weight)
        if bias is None:
            return out
        width = node.shape[-axes - 1]
        if bias.shape != (width,):
            raise ShapeError(
                f"{name}: a bias of shape {bias.shape} does not fit {width} output channels"
            )
        return out + self._same(bias).reshape(width, *(1,) * axes)

    def conv_transpose2d(
        self,
        weight: TensorBase,
        bias: TensorBase | None = None,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        dilation: Sizes = 1,
    ) -> Self:
        """The adjoint of :meth:`conv2d`: (N, C, H, W) with a weight of shape (C, O/groups, KH, KW).

        Raises ShapeError if the shapes do not fit, or if ``output_padding`` is not smaller than
        stride or dilation.

        >>> Tensor([[[[1.0, 2.0]]]]).conv_transpose2d(Tensor([[[[1.0, 10.0]]]])).tolist()
        [[[[1.0, 12.0, 20.0]]]]
        """
        return self._conv_transposed(
            "conv_transpose2d", 2, weight, bias, stride, padding, output_padding, groups, dilation
        )

    def conv_transpose1d(
        self,
        weight: TensorBase,
        bias: TensorBase | None = None,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        dilation: Sizes = 1,
    ) -> Self:
        """The adjoint of :meth:`conv1d`: (N, C, L) with a weight of shape (C, O/groups, K).

        See :meth:`conv_transpose2d`.

        >>> Tensor([[[1.0, 2.0]]]).conv_transpose1d(Tensor([[[1.0, 10.0]]])).tolist()
        [[[1.0, 12.0, 20.0]]]
        """
        return self._conv_transposed(
            "conv_transpose1d", 1, weight, bias, stride, padding, output_padding, groups, dilation
        )

    def _conv_transposed(
        self,
        name: str,
        axes: int,
        weight: TensorBase,
        bias: TensorBase | None,
        stride: Sizes,
        padding: Sizes,
        output_padding: Sizes,
        groups: int,
        dilation: Sizes,
    ) -> Self:
        x, w = self._conv_operands(name, axes, weight, groups)
        if x.shape[1] != w.shape[0] or w.shape[0] % groups:
            raise ShapeError(
                f"{name}: an input of shape {self.shape} does not fit a weight of shape "
                f"{weight.shape} with {groups} groups; the weight must be (C, O/groups, ...)"
            )
        steps = sizes(name, "stride", stride, axes)
        gaps = sizes(name, "dilation", dilation, axes)
        pads = sizes(name, "padding", padding, axes, 0)
        extra = sizes(name, "output_padding", output_padding, axes, 0)
        if any(n and n >= max(s, d) for n, s, d in zip(extra, steps, gaps, strict=True)):
            raise ShapeError(
                f"{name}: output_padding {extra} must be smaller than stride {steps} or dilation "
                f"{gaps}"
            )
        node = convolve_transposed(x, w, steps, pads, extra, gaps, groups)
        return self._with_bias(name, node, axes, weight, bias)

    # ---- pooling -------------------------------------------------------------------------------

    @composed
    def max_pool2d(
        self,
        kernel_size: Sizes = 2,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        """The largest element of each window over the last two axes.

        ``stride`` defaults to the kernel. Padding counts as -inf. ``ceil_mode`` keeps incomplete
        last windows, except those that would start in the padding. The gradient goes to the first
        of equal elements. With ``return_indices`` the result is (values, where each one was in its
        flattened plane). Raises ShapeError for sizes that do not fit.

        >>> Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]).max_pool2d().tolist()
        [[[[4.0]]]]
        """
        return self._max_pool(
            "max_pool2d", 2, kernel_size, stride, padding, dilation, ceil_mode, return_indices
        )

    @composed
    def max_pool1d(
        self,
        kernel_size: Sizes = 2,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        """The largest element of each window over the last axis; see :meth:`max_pool2d`.

        >>> Tensor([[[1.0, 2.0, 4.0, 3.0]]]).max_pool1d().tolist()
        [[[2.0, 4.0]]]
        """
        return self._max_pool(
            "max_pool1d", 1, kernel_size, stride, padding, dilation, ceil_mode, return_indices
        )

    def _max_pool(
        self,
        name: str,
        axes: int,
        kernel_size: Sizes,
        stride: Sizes | None,
        padding: Sizes,
        dilation: Sizes,
        ceil_mode: bool,
        return_indices: bool,
    ) -> Any:
        plane = self._plane(name, axes)
        kernel = sizes(name, "kernel_size", kernel_size, axes)
        steps = kernel if stride is None else sizes(name, "stride", stride, axes)
        gaps = sizes(name, "dilation", dilation, axes)
        around = sizes(name, "padding", padding, axes, 0)
        pads = pool_paddings(name, plane, kernel, steps, around, gaps, ceil_mode)
        x = self.node
        taken = flat_windows(border(x, pads, x.dtype.min), kernel, steps, gaps)
        value, index = largest(taken)
        value = self._ruled(value, taken, lambda g: to_chosen(g, index, taken))
        if not return_indices:
            return self._make(value)
        numbers = build.reshape(build.iota(math.prod(plane), default_int(self.device)), plane)
        places = flat_windows(border(numbers, pads, -1), kernel, steps, gaps)
        found = at_chosen(index, expand(places, taken.shape))
        return ValuesIndices(self._make(value), self._make(found))

    @composed
    def avg_pool2d(
        self,
        kernel_size: Sizes = 2,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Self:
        """The mean of each window over the last two axes.

        ``stride`` defaults to the kernel. Padding counts as zeros, or not at all with
        ``count_include_pad=False``. ``ceil_mode`` is as in :meth:`max_pool2d`; what lies beyond the
        padding never counts. Raises ShapeError for sizes that do not fit, DTypeError for integers.

        >>> Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]).avg_pool2d().tolist()
        [[[[2.5]]]]
        """
        return self._avg_pool(
            "avg_pool2d", 2, kernel_size, stride, padding, ceil_mode, count_include_pad,
            divisor_override,
        )  # fmt: skip

    @composed
    def avg_pool1d(
        self,
        kernel_size: Sizes = 2,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Self:
        """The mean of each window over the last axis; see :meth:`avg_pool2d`.

        >>> Tensor([[[1.0, 2.0, 4.0, 3.0]]]).avg_pool1d().tolist()
        [[[1.5, 3.5]]]
        """
        return self._avg_pool(
            "avg_pool1d", 1, kernel_size, stride, padding, ceil_mode, count_include_pad, None
        )

    def _avg_pool(
        self,
        name: str,
        axes: int,
        kernel_size: Sizes,
        stride: Sizes | None,
        padding: Sizes,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Self:
        x = self._floating(name)
        plane = self._plane(name, axes)
        kernel = sizes(name, "kernel_size", kernel_size, axes)
        steps = kernel if stride is None else sizes(name, "stride", stride, axes)
        around = sizes(name, "padding", padding, axes, 0)
        pads = pool_paddings(name, plane, kernel, steps, around, (1,) * axes, ceil_mode)
        counted = plane
        outside = pads
        if count_include_pad:
            counted = tuple(
                n + low + min(high, low) for n, (low, high) in zip(plane, pads, strict=True)
            )
            outside = [(0, max(high - low, 0)) for low, high in pads]
        node = average(x, kernel, steps, pads, ones_inside(counted, outside), divisor_override)
        return self._make(node)

    def adaptive_avg_pool2d(self, output_size: Sizes) -> Self:
        """The means of ``output_size`` (nearly) equal parts of the last two axes.

        They are cut as PyTorch does it: part i of an axis of n elements goes from floor(i*n/size)
        to ceil((i+1)*n/size). Raises DTypeError for integers.

        >>> Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]).adaptive_avg_pool2d(1).tolist()
        [[[[2.5]]]]
        """
        self._floating("adaptive_avg_pool2d")
        plane = self._plane("adaptive_avg_pool2d")
        if 0 in plane:
            raise ShapeError(f"adaptive_avg_pool2d: shape {self.shape} has nothing to average")
        wanted = sizes("adaptive_avg_pool2d", "output_size", output_size, 2)
        if all(n % size == 0 for n, size in zip(plane, wanted, strict=True)):
            kernel = [n // size for n, size in zip(plane, wanted, strict=True)]
            return self.avg_pool2d(kernel)
        rows, columns = (self._parts(n, size) for n, size in zip(plane, wanted, strict=True))
        return rows.matmul(self.float_at_least()).matmul(columns.transpose(0, 1)).cast(self.dtype)

    def _parts(self, n: int, size: int) -> Self:
        """The (size, n) matrix that averages the parts of an axis."""
        matrix = np.zeros((size, n), "float64" if self.dtype is dtypes.float64 else "float32")
        for i in range(size):
            start, stop = i * n // size, -(-(i + 1) * n // size)
            matrix[i, start:stop] = 1.0 / (stop - start)
        return self._same(self._result(matrix.tolist(), device=self.device, requires_grad=False))

    def _plane(self, name: str, axes: int = 2) -> Shape:
        if self.ndim < axes:
            wanted = "two axes; give (N, C, H, W)" if axes == 2 else "axis; give (N, C, L)"
            raise ShapeError(f"{name}: shape {self.shape} has no {wanted}")
        return self.shape[-axes:]

    # ---- normalisation -------------------------------------------------------------------------

    @composed
    def batch_norm(
        self,
        mean: TensorBase,
        var: TensorBase,
        weight: TensorBase | None = None,
        bias: TensorBase | None = None,
        eps: float = 1e-5,
    ) -> Self:
        """(x - mean) / sqrt(var + eps) * weight + bias, all of them vectors along axis 1.

        Where the statistics come from is the caller's business: see :class:`coregrad.nn.BatchNorm`.
        Raises ShapeError if a vector does not fit.

        >>> Tensor([[1.0], [3.0]]).batch_norm(Tensor([2.0]), Tensor([1.0]), eps=0.0).tolist()
        [[-1.0], [1.0]]
        """
        self._floating("batch_norm")
        given = [t for t in (mean, var, weight, bias) if t is not None]
        if self.ndim < 2 or any(t.shape != self.shape[1:2] for t in given):
            raise ShapeError(
                f"batch_norm: vectors of shapes {[t.shape for t in given]} do not fit axis 1 of an "
                f"input of shape {self.shape}"
            )
        x = wide(self.node)
        at = [build.cast(t.node, x.dtype) for t in (mean, var)]
        shifted = build.sub(x, along(at[0], x.shape, 1))
        var_kept = build.reshape(at[1], kept_shape(x, (0, *range(2, self.ndim))))
        node = normalised(x, shifted, var_kept, eps)
        return self._affine(node, weight, bias, 1, mean, var)

    def _affine(
        self,
        node: Node,
        weight: TensorBase | None,
        bias: TensorBase | None,
        axis: int,
        *others: TensorBase,
    ) -> Self:
        """``node * weight + bias`` in this tensor's dtype, the vectors lying along ``axis`` (or,
        for -1, being as they are, along the last axes)."""
        used = list(others)
        for factor, make in ((weight, build.mul), (bias, build.add)):
            if factor is None:
                continue
            self._check_device("normalisation", factor)
            used.append(factor)
            vector = build.cast(factor.node, node.dtype)
            if axis >= 0:
                node = make(node, along(vector, node.shape, axis))
            else:
                node = make(node, expand(vector, node.shape))
        return self._make(build.cast(node, self.dtype), *used)

    @composed
    def layer_norm(
        self,
        normalized_shape: Sizes,
        weight: TensorBase | None = None,
        bias: TensorBase | None = None,
        eps: float = 1e-5,
    ) -> Self:
        """Zero mean and unit variance over the last axes, then ``* weight + bias``.

        Raises ShapeError if ``normalized_shape`` is not the end of the shape.

        >>> Tensor([1.0, 3.0]).layer_norm(2, eps=0.0).tolist()
        [-1.0, 1.0]
        """
        axes = self._last_axes("layer_norm", normalized_shape, weight, bias)
        x = wide(self._floating("layer_norm"))
        return self._affine(self._normalise(x, axes, eps), weight, bias, -1)

    def _last_axes(self, name: str, normalized: Sizes, *vectors: TensorBase | None) -> Axes:
        shape = (normalized,) if isinstance(normalized, int) else tuple(normalized)
        given = [t.shape for t in vectors if t is not None]
        if self.shape[self.ndim - len(shape) :] != shape or any(s != shape for s in given):
            raise ShapeError(
                f"{name}: normalized_shape {shape} with vectors of shapes {given} does not fit the "
                f"last axes of an input of shape {self.shape}"
            )
        return tuple(range(self.ndim - len(shape), self.ndim))

    def _normalise(self, x: Node, axes: Axes, eps: float) -> Node:
        var = self._make(x)._variance("norm", axes, 0.0)
        return normalised(x, centred(x, axes), build.reshape(var, kept_shape(x, axes)), eps)

    @composed
    def group_norm(
        self,
        num_groups: int,
        weight: TensorBase | None = None,
        bias: TensorBase | None = None,
        eps: float = 1e-5,
    ) -> Self:
        """Zero mean and unit variance over each group of channels (axis 1) and the axes after them.

        Raises ShapeError if the groups do not divide the channels.

        >>> Tensor([[1.0, 3.0, 10.0, 20.0]]).group_norm(2, eps=0.0).tolist()
        [[-1.0, 1.0, -1.0, 1.0]]
        """
        x = wide(self._floating("group_norm"))
        given = [t.shape for t in (weight, bias) if t is not None]
        fits = self.ndim >= 2 and num_groups in range(1, self.shape[1] + 1)
        fits = fits and self.shape[1] % num_groups == 0
        if not fits or any(s != self.shape[1:2] for s in given):
            raise ShapeError(
                f"group_norm: {num_groups} groups and vectors of shapes {given} do not fit axis 1 "
                f"of an input of shape {self.shape}"
            )
        rows = build.reshape(x, (x.shape[0], num_groups, math.prod(x.shape[1:]) // num_groups))
        node = build.reshape(self._normalise(rows, (2,), eps), x.shape)
        return self._affine(node, weight, bias, 1)

    @composed
    def rms_norm(
        self, normalized_shape: Sizes, weight: TensorBase | None = None, eps: float | None = None
    ) -> Self:
        """x / sqrt(mean(x**2) + eps) over the last axes, then ``* weight``.

        ``eps`` None is the spacing of the dtype's numbers at 1. Raises ShapeError if
        ``normalized_shape`` is not the end of the shape.

        >>> Tensor([3.0, -3.0]).rms_norm(2, eps=0.0).tolist()
        [1.0, -1.0]
        """
        axes = self._last_axes("rms_norm", normalized_shape, weight)
        x = wide(self._floating("rms_norm"))
        small = _SPACING[self.dtype] if eps is None else eps
        size = build.reshape(mean_of(square(x), axes), kept_shape(x, axes))
        return self._affine(normalised(x, x, size, small), weight, None, -1)

    # ---- lookup --------------------------------------------------------------------------------

    def embedding(self, weight: TensorBase, padding_idx: int | None = None) -> Self:
        """The rows of ``weight`` (n, d) that these integers of shape S name: (*S, d).

        Raises DTypeError unless the tensor holds integers, and IndexRangeError for one outside
        [-n, n): at the call if the integers can be looked at, else when the rows are computed.
        The row of ``padding_idx`` gets no gradient.

        >>> Tensor([1, 0]).embedding(Tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
        [[3.0, 4.0], [1.0, 2.0]]
        """
        self._check_device("embedding", weight)
        if not self.dtype.is_int or weight.ndim != 2:
            raise (ShapeError if self.dtype.is_int else DTypeError)(
                f"embedding: {self.dtype.name} indices into a weight of shape {weight.shape}; give "
                "integers and a weight of shape (n, d)"
            )
        rows = in_range("embedding", self, 0, weight.shape[0])
        found = self._make(build.gather(weight.node, rows), weight)
        if padding_idx is None:
            return found
        if padding_idx not in range(-weight.shape[0], weight.shape[0]):
            raise IndexRangeError(
                f"embedding: padding_idx {padding_idx} lies outside a table of {weight.shape[0]} "
                "vectors"
            )
        is_padding = self._make(rows).eq(padding_idx % weight.shape[0]).unsqueeze(-1)
        return self._same(found.detach()).where(is_padding, found)

    def one_hot(self, num_classes: int = -1) -> Self:
        """Integers of shape S to int64 zeros and ones of shape (*S, num_classes).

        Without ``num_classes`` the largest integer is read to count them. Raises DTypeError unless
        the tensor holds integers, and IndexRangeError for one outside [0, num_classes): at the call
        if the integers can be looked at, else when the result is computed.

        >>> Tensor([0, 2]).one_hot(3).tolist()
        [[1, 0, 0], [0, 0, 1]]
        """
        if not self.dtype.is_int:
            raise DTypeError(f"one_hot: {self.dtype.name} holds no class numbers; cast to int64")
        if num_classes < 0:
            num_classes = int(self.max().item()) + 1
        number = default_int(self.device)
        places, _ = self._classes("one_hot", self, num_classes, None)
        shape = (*self.shape, num_classes)
        classes = expand(build.iota(num_classes, number), shape)
        hits = build.eq(build.expand(build.reshape(places, (*self.shape, 1)), shape), classes)
        return self._make(build.cast(hits, number))

    # ---- directions and gates ------------------------------------------------------------------

    @composed
    @dim_or_axis
    def normalize(self, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Self:
        """Divided by the norm along ``dim``, or by ``eps`` where the norm is smaller.

        Raises DTypeError for integers.

        >>> Tensor([[3.0, 4.0]]).normalize().tolist()
        [[0.6000000238418579, 0.800000011920929]]
        """
        self._floating("normalize")
        x = self._same(self.float_at_least())
        return x.div(x.norm(p, dim, True).clamp(min=eps)).cast(self.dtype)

    @composed
    @dim_or_axis
    def cosine_similarity(self, other: Any, dim: int = 1, eps: float = 1e-8) -> Self:
        """The cosine of the angle between vectors along ``dim``, of shapes that broadcast.

        Norms below ``eps`` count as ``eps``. Raises DTypeError for integers.

        >>> Tensor([[1.0, 0.0]]).cosine_similarity(Tensor([[1.0, 1.0], [0.0, 2.0]])).tolist()
        [0.7071067690849304, 0.0]
        """
        right = self._same(self._target(other, "cosine_similarity"))
        x, y = promote(self.node, right.node)
        shape = broadcast_shapes("cosine_similarity", x.shape, y.shape)
        a = self._make(wide(expand(x, shape)), right)
        b = self._make(wide(expand(y, shape)), right)
        a._floating("cosine_similarity")
        lengths = a.norm(2, dim).clamp(min=eps) * b.norm(2, dim).clamp(min=eps)
        return (a * b).sum(dim).div(lengths).cast(x.dtype)

    @composed
    @dim_or_axis
    def glu(self, dim: int = -1) -> Self:
        """The first half along ``dim`` times the sigmoid of the second half.

        Raises ShapeError for an odd number of elements there, DTypeError for integers.

        >>> Tensor([3.0, 5.0, 0.0, 0.0]).glu().tolist()
        [1.5, 2.5]
        """
        self._floating("glu")
        axis = self._own_dim("glu", dim)
        length = self.shape[axis]
        if length % 2:
            raise ShapeError(
                f"glu: axis {dim} of shape {self.shape} has {length} elements, which cannot be "
                "halved; give an even number"
            )
        half = length // 2
        return self.narrow(axis, 0, half) * self.narrow(axis, half, half).sigmoid()

    # ---- attention and dropout -----------------------------------------------------------------

    def scaled_dot_product_attention(
        self,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Self:
        """softmax(q @ k.T * scale + mask) @ v for q (..., L, E), k (..., S, E) and v (..., S, V).

        A bool mask is True where attention is allowed; a float mask is added. ``is_causal`` allows
        position i to see positions 0 to i. ``scale`` defaults to 1/sqrt(E). A row in which nothing
        is allowed gives 0, with gradient 0. ``enable_gqa`` lets several heads of q (axis -3) share
        one of k and v. S may be a :class:`coregrad.Variable`, as in decoding with a cache; then
        there is no mask. Raises ShapeError if the shapes do not fit.

        >>> q = Tensor.ones(1, 2, 4)
        >>> q.scaled_dot_product_attention(q, q).tolist()
        [[[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]]
        """
        name = "scaled_dot_product_attention"
        attended = getattr(key, "_attended_by", None)
        if attended is not None:  # a key whose length varies
            out: Self = attended(self, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
            return out
        values = self._same(self._like(name, value))
        keys = self._same(self._like(name, key))
        if enable_gqa:
            keys, values = self._grouped(name, keys), self._grouped(name, values)
        lengths = [t.shape[-2] for t in (keys, values) if t.ndim > 1]
        known = not any(map(varies, lengths))  # of variables, the product compares them
        if len(lengths) < 2 or (known and lengths[0] != lengths[1]):
            raise ShapeError(
                f"{name}: a key of shape {keys.shape} does not fit a value of shape "
                f"{values.shape}; give one value for each key"
            )
        weights = self.attention_weights(keys, attn_mask, is_causal, scale)
        return weights.dropout(dropout_p).matmul(values)

    def attention_weights(
        self,
        key: Any,
        attn_mask: Any = None,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> Self:
        """softmax(q @ k.T * scale + mask): how much of each value every query takes, (..., L, S).

        Arguments and rules are those of :meth:`scaled_dot_product_attention`.

        >>> Tensor.ones(2, 4).attention_weights(Tensor.ones(2, 4), is_causal=True).tolist()
        [[1.0, 0.0], [0.5, 0.5]]
        """
        name = "scaled_dot_product_attention"
        if is_causal and attn_mask is not None:
            raise CoregradError(f"{name}: give attn_mask or is_causal, not both")
        keys = self._same(self._like(name, key))
        if self.ndim < 2 or keys.ndim < 2 or self.shape[-1] != keys.shape[-1]:
            raise ShapeError(
                f"{name}: a query of shape {self.shape} does not fit a key of shape {keys.shape}; "
                "their last axes must be equal"
            )
        factor = 1.0 / math.sqrt(self.shape[-1]) if scale is None else float(scale)
        if varies(keys.shape[-2]):
            if attn_mask is not None or is_causal:
                raise CoregradError(
                    f"{name}: keys of shape {keys.shape} are as many as may be seen; no mask fits"
                )
            return (self.matmul(keys.transpose(-2, -1)) * factor).softmax(-1)
        mask = None if attn_mask is None else self._same(self._like(name, attn_mask))
        if mask is not None:
            self._check_mask(name, mask, keys)
        return self._attention(keys, mask, is_causal, factor)

    def _check_mask(self, name: str, mask: Self, keys: Self) -> None:
        """Raise unless the mask can be broadcast to the scores."""
        scores = (self.shape[-2], keys.shape[-2])
        last = (1, 1, *mask.shape)[-2:]
        if any(n not in (1, wanted) for n, wanted in zip(last, scores, strict=True)):
            raise ShapeError(
                f"{name}: a mask of shape {mask.shape} does not fit scores of {scores[0]} queries "
                f"and {scores[1]} keys"
            )

    def _grouped(self, name: str, shared: Self) -> Self:
        """Keys or values with as many heads as the queries have, each repeated."""
        if self.ndim < 3 or shared.ndim < 3 or self.shape[-3] % shared.shape[-3]:
            raise ShapeError(
                f"{name}: queries of shape {self.shape} cannot share heads of shape "
                f"{shared.shape}; axis -3 of the queries must be a multiple of the other"
            )
        times = self.shape[-3] // shared.shape[-3]
        return shared if times == 1 else shared.repeat_interleave(times, -3)

    @composed
    def _attention(self, keys: Self, mask: Self | None, causal: bool, factor: float) -> Self:
        """How much of each value every query takes."""
        scores = self.float_at_least().matmul(keys.float_at_least().transpose(-2, -1)) * factor
        return scores._masked(mask, causal)._attended().cast(self.dtype)

    def _masked(self, mask: Self | None, causal: bool) -> Self:
        """Scores with -inf where attention is not allowed."""
        if causal:
            rows, columns = (build.iota(n, default_int(self.device)) for n in self.shape[-2:])
            seen = build.expand(build.reshape(rows, (*rows.shape, 1)), self.shape[-2:])
            ahead = build.lt(seen, expand(columns, self.shape[-2:]))
            return self.masked_fill(self._make(ahead), -math.inf)
        if mask is None:
            return self
        if mask.dtype is dtypes.bool_:
            return self.masked_fill(~mask, -math.inf)
        return self + mask.cast(self.dtype)

    def _attended(self) -> Self:
        """softmax along the last axis, 0 in rows that are -inf throughout."""
        x = self.node
        last = (self.ndim - 1,)
        powers = build.exp(build.sub(x, spread(shift_of(x, last), x, last)))
        sums = total(powers, last)
        nothing = build.eq(sums, build.const_like(sums, 0))
        safe = build.where(nothing, build.const_like(sums, 1), sums)
        return self._make(build.div(powers, spread(safe, x, last)))

    def dropout(self, p: float = 0.5, training: bool = True) -> Self:
        """Zeros with probability ``p``, the other elements scaled by 1/(1-p); only in training.

        The mask is drawn when this is called and is the same forwards and backwards. Raises
        CoregradError for a probability outside [0, 1].

        >>> Tensor([1.0, 2.0]).dropout(0.9, training=False).tolist()
        [1.0, 2.0]
        """
        if not 0.0 <= p <= 1.0:
            raise CoregradError(f"dropout: p is {p}; a probability lies between 0 and 1")
        if not training or p == 0.0:
            return self
        x = self._floating("dropout")
        zero = build.const_like(x, 0)
        if p == 1.0:
            nowhere = build.const(False, dtypes.bool_, x.shape)
            return self._make(build.where(nowhere, x, zero))
        key = threefry.GENERATOR.key_node(self.device)
        kept = threefry.chance(1.0 - p, x.shape, key)
        scaled = build.mul(x, build.const_like(x, 1.0 / (1.0 - p)))
        return self._make(build.where(kept, scaled, zero))
