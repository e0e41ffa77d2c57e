"""What networks are made of: contractions, convolutions, pooling, normalisation, losses, attention.

Everything is a sum over products, a window or a reduction of nodes; the compiler recognises the
contractions by their shape (``sum(a * b)``), so nothing here names a matrix multiplication.
float16 and bfloat16 are multiplied and summed in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad import dtypes
from coregrad.api import threefry
from coregrad.api.base import TensorBase, broadcast_shapes, dim_or_axis, expand, promote
from coregrad.api.device import default_int
from coregrad.api.einsum import einsum
from coregrad.api.reduction import (
    Axes,
    Reduction,
    chosen,
    centred,
    log_sum_exp,
    mean_of,
    scaled,
    shift_of,
    spread,
    square,
    total,
    wide,
)
from coregrad.dtypes import DType
from coregrad.errors import CoregradError, DTypeError, IndexRangeError, ShapeError
from coregrad.ir import build
from coregrad.ir.graph import Node, Shape

if TYPE_CHECKING:
    from typing_extensions import Self

Sizes = int | Sequence[int]
Pair = tuple[int, int]
REDUCTIONS = ("mean", "sum", "none")


# ---- on nodes ----------------------------------------------------------------------------------


def contract(a: Node, b: Node, axes: Axes) -> Node:
    """sum(a * b) over ``axes``: of equal dtypes, broadcast, rounded once to their dtype."""
    shape = broadcast_shapes("contract", a.shape, b.shape)
    product = build.mul(expand(wide(a), shape), expand(wide(b), shape))
    return build.cast(total(product, axes), a.dtype)


def matmul(a: Node, b: Node) -> Node:
    """(..., m, k) times (..., k, n)."""
    rank = len(b.shape)
    b = build.permute(b, (*range(rank - 2), rank - 1, rank - 2))
    rows = build.reshape(a, (*a.shape[:-1], 1, a.shape[-1]))
    columns = build.reshape(b, (*b.shape[:-2], 1, *b.shape[-2:]))
    return contract(rows, columns, (max(len(rows.shape), len(columns.shape)) - 1,))


def windows(x: Node, first: int, kernel: Shape, stride: Shape, dilation: Shape) -> Node:
    """Windows over the axes from ``first`` on, the kernel's axes coming last, in their order."""
    for i, (size, step, gap) in enumerate(zip(kernel, stride, dilation, strict=True)):
        x = build.window(x, first + i, size, step, gap)
    return x


def border(x: Node, pads: Sequence[Pair], value: float = 0) -> Node:
    """The last axes padded."""
    return build.pad(x, [(0, 0)] * (len(x.shape) - len(pads)) + list(pads), value)


def channels(x: Node, shape: Shape, axis: int) -> Node:
    """A vector along one axis of ``shape``."""
    placed = tuple(n if i == axis else 1 for i, n in enumerate(shape))
    return build.expand(build.reshape(x, placed), shape)


def normalised(x: Node, mean: Node, var: Node, eps: float) -> Node:
    """(x - mean) / sqrt(var + eps), the root taken once per mean; all three of one rank."""
    scale = build.div(
        build.const_like(var, 1), build.sqrt(build.add(var, build.const_like(var, eps)))
    )
    shifted = build.sub(x, build.expand(mean, x.shape))
    return build.mul(shifted, build.expand(scale, x.shape))


# ---- sizes -------------------------------------------------------------------------------------


def _sizes(name: str, what: str, value: Sizes, axes: int, least: int = 1) -> Shape:
    sizes = (value,) * axes if isinstance(value, int) else tuple(value)
    if len(sizes) == 1:
        sizes *= axes
    if len(sizes) != axes or any(n < least for n in sizes):
        raise ShapeError(
            f"{name}: {what} {value} does not fit {axes} axes; give a number >= {least}, or {axes}"
        )
    return sizes


def _paddings(
    name: str, padding: Sizes | str, kernel: Shape, stride: Shape, dilation: Shape
) -> list[Pair]:
    if not isinstance(padding, str):
        return [(n, n) for n in _sizes(name, "padding", padding, len(kernel), 0)]
    if padding == "valid":
        return [(0, 0)] * len(kernel)
    if padding != "same":
        raise ShapeError(f"{name}: padding {padding!r} is neither 'same', 'valid' nor a size")
    if any(n != 1 for n in stride):
        raise ShapeError(f"{name}: padding 'same' needs stride 1, not {stride}; give sizes instead")
    spans = [gap * (size - 1) for size, gap in zip(kernel, dilation, strict=True)]
    return [(span // 2, span - span // 2) for span in spans]


def _pooled_paddings(
    name: str, shape: Shape, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape, up: bool
) -> list[Pair]:
    """(before, after) so that the windows are those PyTorch takes: with ``up`` (ceil_mode) a last,
    incomplete window too, unless it would start in the padding after the data."""
    pads = []
    for n, size, step, pad, gap in zip(shape, kernel, stride, padding, dilation, strict=True):
        if pad > size // 2:
            raise ShapeError(
                f"{name}: padding {pad} is more than half of the kernel size {size}; a window "
                "could lie in the padding alone"
            )
        span = gap * (size - 1) + 1
        room = n + 2 * pad - span
        if room < 0:
            raise ShapeError(
                f"{name}: a window spanning {span} does not fit {n} elements padded by {pad}"
            )
        count = (room + (step - 1 if up else 0)) // step + 1
        if up and (count - 1) * step >= n + pad:
            count -= 1
        pads.append((pad, max((count - 1) * step + span - n - pad, 0)))
    return pads


# ---- on tensors --------------------------------------------------------------------------------


class Network(Reduction):
    """Methods that layers are built from."""

    # ---- products ------------------------------------------------------------------------------

    def matmul(self, other: Any) -> Self:
        """The matrix product, for all ranks from 1 on, batch axes broadcast; also ``a @ b``.

        A 1-d operand is a row on the left and a column on the right, and its axis is dropped from
        the result. Integers are multiplied exactly, wrapping around. Raises ShapeError, naming
        both shapes, if they do not fit.

        >>> (Tensor([[1, 2], [3, 4]]) @ Tensor([1, 10])).tolist()
        [21, 43]
        """
        right = self._like("matmul", other)
        a, b = promote(self.node, right.node)
        if not a.shape or not b.shape or a.shape[-1] != b.shape[-2 if len(b.shape) > 1 else 0]:
            raise ShapeError(
                f"matmul: shapes {a.shape} and {b.shape} do not fit; the last axis of the left "
                "operand must be as long as the last but one (or only) axis of the right one"
            )
        rows = build.reshape(a, (1, *a.shape)) if len(a.shape) == 1 else a
        columns = build.reshape(b, (*b.shape, 1)) if len(b.shape) == 1 else b
        broadcast_shapes("matmul", rows.shape[:-2], columns.shape[:-2])
        node = matmul(rows, columns)
        if len(b.shape) == 1:
            node = build.reshape(node, node.shape[:-1])
        if len(a.shape) == 1:
            cut = len(node.shape) - (1 if len(b.shape) == 1 else 2)
            node = build.reshape(node, (*node.shape[:cut], *node.shape[cut + 1 :]))
        return self._make(node, right)

    def dot(self, other: Any) -> Self:
        """The same as :meth:`matmul`.

        >>> Tensor([1.0, 2.0]).dot(Tensor([3.0, 4.0])).item()
        11.0
        """
        return self.matmul(other)

    mm = matmul
    mv = matmul

    def __matmul__(self, other: Any) -> Self:
        return self.matmul(other)

    def __rmatmul__(self, other: Any) -> Self:
        left = self._made(other)
        return left.matmul(self)

    def _made(self, other: Any) -> Self:
        """Host data as a tensor on this device."""
        made: Self = self._result(other, device=self.device)  # type: ignore[assignment]
        return made

    def bmm(self, other: Any) -> Self:
        """The matrix products of two batches: (b, m, k) times (b, k, n).

        Raises ShapeError unless both have three axes and the same batch.

        >>> Tensor.ones(2, 3, 4).bmm(Tensor.ones(2, 4, 5)).shape
        (2, 3, 5)
        """
        right = self._like("bmm", other)
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
        product = self._as_self(self._like("addmm", a)).matmul(b)
        if alpha != 1:
            product = product * alpha
        return product + (self if beta == 1 else self * beta)

    def _as_self(self, other: TensorBase) -> Self:
        """For the type checker: every tensor is of the class that results have."""
        return other  # type: ignore[return-value]

    def outer(self, other: Any) -> Self:
        """All products of two vectors: (n,) and (m,) to (n, m).

        >>> Tensor([1, 2]).outer(Tensor([3, 4])).tolist()
        [[3, 4], [6, 8]]
        """
        right = self._as_self(self._like("outer", other))
        if self.ndim != 1 or right.ndim != 1:
            raise ShapeError(f"outer: shapes {self.shape} and {right.shape}; give two vectors")
        return self.reshape(self.shape[0], 1) * right.reshape(1, right.shape[0])

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
        out = self._make(contract(rows, w, (len(rows.shape) - 1,)), weight)
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
        tensors: list[Any] = list(
            operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
        )
        if not tensors or not all(isinstance(t, Network) for t in tensors):
            raise ShapeError(f"einsum: {formula!r} needs tensors to work on; give at least one")
        first: Network = tensors[0]
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

    def conv1d(
        self,
        weight: TensorBase,
        bias: TensorBase | None = None,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
    ) -> Self:
        """Cross-correlation of (N, C, L) with a weight of shape (O, C/groups, K); as :meth:`conv2d`.

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
        if self.ndim == axes + 1:
            batch = self.reshape(1, *self.shape)
            return batch._conv(
                name, axes, weight, bias, stride, padding, dilation, groups
            ).reshape(*self._conv_unbatched_shape)
        self._check_conv(name, axes, weight, bias, groups, weight.shape[1:2], weight.shape[:1])
        kernel = weight.shape[2:]
        steps = _sizes(name, "stride", stride, axes)
        gaps = _sizes(name, "dilation", dilation, axes)
        pads = _paddings(name, padding, kernel, steps, gaps)
        x, w = promote(self.node, weight.node)
        x = border(x, pads)
        spans = [gap * (size - 1) + 1 for size, gap in zip(kernel, gaps, strict=True)]
        if any(span > n for span, n in zip(spans, x.shape[2:], strict=True)):
            raise ShapeError(
                f"{name}: a kernel of shape {kernel} with dilation {gaps} spans {tuple(spans)}, more "
                f"than the padded input's {x.shape[2:]} (input {self.shape}); pad more"
            )
        x = windows(x, 2, kernel, steps, gaps)
        node = _convolve(x, w, groups, axes)
        return self._plus_channels(node, weight, bias)
