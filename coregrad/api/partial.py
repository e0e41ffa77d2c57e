"""Tensors of which, along some axes, only the first n elements are there, n being a variable.

Beneath is a whole tensor of the largest size. What it holds beyond n is anything: whatever folds
elements replaces those by what changes nothing, and the loops of kernels end at n. Only what is
written here works on such tensors; everything else raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coregrad import dtypes
from coregrad.api import capture, host
from coregrad.api.base import TensorBase
from coregrad.api.tensor import Tensor
from coregrad.api.variable import BoundVariable
from coregrad.dtypes import DType
from coregrad.errors import CaptureError, ShapeError
from coregrad.ir import build

Counts = dict[int, BoundVariable]


def _pointwise(name: str) -> Callable[..., Any]:
    """The method of tensors, on what is there."""
    plain = getattr(Tensor, name)

    def method(self: Any, *operands: Any) -> Any:
        counts = _joined(name.strip("_"), (self, *operands))
        result = plain(self._whole, *map(_whole_of, operands))
        return result if result is NotImplemented else _partial(result, counts)

    method.__name__ = name
    method.__doc__ = f"``Tensor.{name}`` of the elements that are there."
    return method


class PartialTensor(Tensor):
    """What ``x[:n]`` is, where n is a variable. Its shape names the variable.

    It takes arithmetic, ``@`` with tensors and others of its kind, ``softmax``, ``log_softmax``,
    (as key and value) ``scaled_dot_product_attention``,
    ``sum``, ``mean``, ``amax``, ``amin``, ``argmax``, the pointwise functions, and ``transpose``,
    ``permute``, ``unsqueeze``. Folding the varying axis away gives a plain tensor. ``numpy()`` and
    ``tolist()`` give the elements that are there. Everything else raises ShapeError.

    >>> from coregrad import Variable
    >>> n = Variable("n", 1, 4).bind(2)
    >>> x = Tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])[:, :n]
    >>> x.shape, (x * 10).tolist(), x.sum(1).tolist()
    ((2, n), [[10.0, 20.0], [50.0, 60.0]], [3.0, 11.0])
    """

    _whole: Tensor
    _counts: Counts

    # ---- what it is ----------------------------------------------------------------------------

    @property
    def _node(self) -> Any:  # type: ignore[override]
        raise ShapeError(
            f"a tensor of shape {self.shape}, whose length varies, cannot be used here; fold the "
            "varying axis first (softmax, @, sum, mean, amax, argmax), or use arithmetic"
        )

    @property
    def node(self) -> Any:
        """Raises ShapeError: there is no node of this shape."""
        return self._node

    @property
    def shape(self) -> Any:
        """The size of every axis; a variable where it varies.

        >>> from coregrad import Variable
        >>> Tensor([1, 2, 3])[: Variable("n", 1, 3).bind(2)].shape
        (n,)
        """
        return tuple(self._counts.get(a, n) for a, n in enumerate(self._whole.shape))

    @property
    def dtype(self) -> DType:
        """The number format of every element.

        >>> from coregrad import Variable
        >>> Tensor([1.0, 2.0])[: Variable("n", 1, 2).bind(1)].dtype
        coregrad.float32
        """
        return self._whole.dtype

    @property
    def ndim(self) -> int:
        """How many axes there are.

        >>> from coregrad import Variable
        >>> Tensor([1.0, 2.0])[: Variable("n", 1, 2).bind(1)].ndim
        1
        """
        return self._whole.ndim

    def dim(self) -> int:
        """PyTorch's other name for :attr:`ndim`.

        >>> from coregrad import Variable
        >>> Tensor([1.0, 2.0])[: Variable("n", 1, 2).bind(1)].dim()
        1
        """
        return self._whole.ndim

    def realize(self, *others: TensorBase) -> Any:
        """Compute the whole now.

        >>> from coregrad import Variable
        >>> Tensor([1.0, 2.0])[: Variable("n", 1, 2).bind(1)].realize().tolist()
        [1.0]
        """
        self._whole.realize(*others)
        return self

    def numpy(self) -> host.Array:
        """The elements that are there, as a NumPy array. CaptureError in a captured function.

        >>> from coregrad import Variable
        >>> Tensor([1.0, 2.0])[: Variable("n", 1, 2).bind(1)].numpy()
        array([1.], dtype=float32)
        """
        if capture.recorder is not None and capture.recorder.is_here():
            raise CaptureError(
                "jit: the function looks at a value while it is captured, which no replay could "
                "repeat; return a tensor and look at it outside"
            )
        ends = (self._counts[a].value if a in self._counts else None for a in range(self.ndim))
        return self._whole.numpy()[tuple(slice(end) for end in ends)]

    def __len__(self) -> int:
        raise ShapeError(f"len: the axes of shape {self.shape} vary; use .shape")

    def __getitem__(self, key: Any) -> Any:
        raise ShapeError(
            f"index: a tensor of shape {self.shape}, whose length varies, has no parts; take them "
            "before, as in x[2, :n]"
        )

    def __setitem__(self, key: Any, value: Any) -> None:
        raise ShapeError(
            f"setitem: a tensor of shape {self.shape}, whose length varies, is not written to; "
            "write to what it is a part of"
        )

    # ---- masks ---------------------------------------------------------------------------------

    def _there(self, value: float, axes: Sequence[int]) -> Tensor:
        """The whole with ``value`` beyond what is there along these axes."""
        whole = self._whole
        for axis in axes:
            if axis in self._counts:
                whole = _where_there(whole, axis, self._counts[axis], value)
        return whole

    def _axes_of(self, name: str, dim: Any) -> list[int]:
        if dim is None:
            return list(range(self.ndim))
        named = dim if isinstance(dim, (tuple, list)) else (dim,)
        return [self._whole._dim(name, d) for d in named]

    def _left(self, axes: Sequence[int], keepdim: bool) -> Counts:
        """The counts of what is left when axes have been folded."""
        kept = [a for a in range(self.ndim) if a not in axes]
        places = kept if keepdim else range(len(kept))
        return {p: self._counts[a] for p, a in zip(places, kept, strict=True) if a in self._counts}

    def _fold_there(self, name: str, neutral: float, dim: Any, keepdim: bool) -> Any:
        axes = self._axes_of(name, dim)
        result = getattr(self._there(neutral, axes), name)(dim, keepdim)
        return _partial(result, self._left(axes, keepdim))

    # ---- element by element --------------------------------------------------------------------

    __add__ = _pointwise("__add__")
    __radd__ = _pointwise("__radd__")
    __sub__ = _pointwise("__sub__")
    __rsub__ = _pointwise("__rsub__")
    __mul__ = _pointwise("__mul__")
    __rmul__ = _pointwise("__rmul__")
    __truediv__ = _pointwise("__truediv__")
    __rtruediv__ = _pointwise("__rtruediv__")
    __neg__ = _pointwise("__neg__")
    __pow__ = _pointwise("__pow__")
    __rpow__ = _pointwise("__rpow__")
    __lt__ = _pointwise("__lt__")
    __le__ = _pointwise("__le__")
    __gt__ = _pointwise("__gt__")
    __ge__ = _pointwise("__ge__")
    exp = _pointwise("exp")
    log = _pointwise("log")
    sqrt = _pointwise("sqrt")
    tanh = _pointwise("tanh")
    sigmoid = _pointwise("sigmoid")
    relu = _pointwise("relu")
    gelu = _pointwise("gelu")
    abs = _pointwise("abs")
    square = _pointwise("square")
    float = _pointwise("float")
    float_at_least = _pointwise("float_at_least")

    # ---- folding -------------------------------------------------------------------------------

    def sum(self, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
        """The sum over ``dim`` of what is there.

        >>> from coregrad import Variable
        >>> Tensor([1.0, 2.0, 4.0])[: Variable("n", 1, 3).bind(2)].sum().item()
        3.0
        """
        own = self if dtype is None else self.cast(dtype)
        return own._fold_there("sum", 0, dim, keepdim)

    def mean(self, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
        """The mean over ``dim`` of what is there.

        >>> from coregrad import Variable
        >>> Tensor([1.0, 3.0, 4.0])[: Variable("n", 1, 3).bind(2)].mean().item()
        2.0
        """
        axes = self._axes_of("mean", dim)
        total = self.sum(dim, keepdim, dtype)
        for axis in axes:
            size = self.shape[axis]
            total = total / size
        return total

    def amax(self, dim: Any = None, keepdim: bool = False) -> Any:
        """The largest over ``dim`` of what is there.

        >>> from coregrad import Variable
        >>> Tensor([1.0, 3.0, 4.0])[: Variable("n", 1, 3).bind(2)].amax().item()
        3.0
        """
        return self._fold_there("amax", self.dtype.min, dim, keepdim)

    def amin(self, dim: Any = None, keepdim: bool = False) -> Any:
        """The smallest over ``dim`` of what is there.

        >>> from coregrad import Variable
        >>> Tensor([3.0, 1.0, 0.0])[: Variable("n", 1, 3).bind(2)].amin().item()
        1.0
        """
        return self._fold_there("amin", self.dtype.max, dim, keepdim)

    def argmax(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """Where the largest along ``dim`` is, of what is there.

        >>> from coregrad import Variable
        >>> Tensor([1.0, 3.0, 4.0])[: Variable("n", 1, 3).bind(2)].argmax(0).item()
        1
        """
        if dim is None and self.ndim > 1:
            raise ShapeError(f"argmax: name the axis of shape {self.shape}: dim=...")
        return self._fold_there("argmax", self.dtype.min, 0 if dim is None else dim, keepdim)

    def softmax(self, dim: int | None = -1, dtype: Any = None) -> Any:
        """exp(x) / sum(exp(x)) along ``dim`` of what is there.

        >>> from coregrad import Variable
        >>> Tensor([1.0, 1.0, 9.0])[: Variable("n", 1, 3).bind(2)].softmax().tolist()
        [0.5, 0.5]
        """
        powers, axis = self._powers("softmax", dim, dtype)[1:]
        return powers / powers.sum(axis, True)

    def log_softmax(self, dim: int | None = -1, dtype: Any = None) -> Any:
        """log(softmax(x)) along ``dim`` of what is there.

        >>> from coregrad import Variable
        >>> Tensor([0.0, 0.0, 9.0])[: Variable("n", 1, 3).bind(1)].log_softmax().tolist()
        [0.0]
        """
        shifted, powers, axis = self._powers("log_softmax", dim, dtype)
        return shifted - powers.sum(axis, True).log()

    def _powers(self, name: str, dim: int | None, dtype: Any) -> Any:
        own = self if dtype is None else self.cast(dtype)
        axis = self._whole._dim(name, -1 if dim is None else dim)
        shifted = own - own.amax(axis, True).detach()
        powers = shifted.exp()
        return shifted, _partial(powers._there(0, [axis]), powers._counts), axis

    # ---- products ------------------------------------------------------------------------------

    def __matmul__(self, other: Any) -> Any:
        return _product(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return _product(other, self)

    def matmul(self, other: Any) -> Any:
        """The matrix product; along the axis that is summed only what is there counts.

        >>> from coregrad import Variable
        >>> n = Variable("n", 1, 3).bind(2)
        >>> a, b = Tensor([[1.0, 2.0, 9.0]])[:, :n], Tensor([[1.0], [10.0], [9.0]])[:n]
        >>> a.matmul(b).tolist()
        [[21.0]]
        """
        return _product(self, other)

    def _attended_by(
        self, query: Any, value: Any, mask: Any, dropout: Any, causal: bool, scale: Any, gqa: bool
    ) -> Any:
        """Attention to these keys, of which only so many are there."""
        if mask is not None or dropout or causal or gqa:
            raise ShapeError(
                f"scaled_dot_product_attention: keys of shape {self.shape}, whose number varies, "
                "take no attn_mask, dropout_p, is_causal or enable_gqa; write the steps out"
            )
        factor = query.shape[-1] ** -0.5 if scale is None else float(scale)
        scores = query.float_at_least() @ self.float_at_least().transpose(-2, -1) * factor
        return scores.softmax(-1).cast(query.dtype) @ value

    # ---- shapes --------------------------------------------------------------------------------

    def permute(self, *dims: Any) -> Any:
        """The axes in another order.

        >>> from coregrad import Variable
        >>> Tensor([[1, 2], [3, 4]])[: Variable("n", 1, 2).bind(1)].permute(1, 0).tolist()
        [[1], [2]]
        """
        named = dims[0] if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
        order = [self._whole._dim("permute", d) for d in named]
        counts = {p: self._counts[a] for p, a in enumerate(order) if a in self._counts}
        return _partial(self._whole.permute(*order), counts)

    def transpose(self, dim0: int = 1, dim1: int = 0) -> Any:
        """Two axes exchanged.

        >>> from coregrad import Variable
        >>> Tensor([[1, 2], [3, 4]])[: Variable("n", 1, 2).bind(1)].transpose(0, 1).shape
        (2, n)
        """
        order = list(range(self.ndim))
        a, b = (self._whole._dim("transpose", d) for d in (dim0, dim1))
        order[a], order[b] = order[b], order[a]
        return self.permute(*order)

    swapaxes = transpose

    @property
    def T(self) -> Any:  # noqa: N802
        """The axes in reverse order.

        >>> from coregrad import Variable
        >>> Tensor([[1, 2], [3, 4]])[: Variable("n", 1, 2).bind(1)].T.shape
        (2, n)
        """
        return self.permute(*reversed(range(self.ndim)))

    def unsqueeze(self, dim: int) -> Any:
        """A new axis of size 1 before axis ``dim``.

        >>> from coregrad import Variable
        >>> Tensor([1, 2])[: Variable("n", 1, 2).bind(1)].unsqueeze(0).shape
        (1, n)
        """
        axis = self._whole._dim("unsqueeze", dim, extra=1)
        counts = {a + (a >= axis): count for a, count in self._counts.items()}
        return _partial(self._whole.unsqueeze(axis), counts)

    def detach(self) -> Any:
        """The same value, through which no gradient passes.

        >>> from coregrad import Variable
        >>> Tensor([1.0, 2.0])[: Variable("n", 1, 2).bind(1)].detach().tolist()
        [1.0]
        """
        return _partial(self._whole.detach(), self._counts)

    def cast(self, dtype: Any) -> Any:
        """Converted to another dtype.

        >>> from coregrad import Variable
        >>> Tensor([1.5, 2.0])[: Variable("n", 1, 2).bind(1)].cast("int32").tolist()
        [1]
        """
        return _partial(self._whole.cast(dtype), self._counts)


def _partial(whole: Tensor, counts: Counts) -> Any:
    """The tensor of which only so many elements are there; the whole, if all are."""
    if not counts:
        return whole
    made: PartialTensor = object.__new__(PartialTensor)
    made._whole, made._counts = whole, dict(counts)
    made.device, made._requires_grad = whole.device, whole._requires_grad
    return made


def _where_there(whole: Tensor, axis: int, count: BoundVariable, value: float) -> Tensor:
    """The whole with ``value`` from ``count`` on along an axis."""
    node = whole.node
    column = tuple(n if a == axis else 1 for a, n in enumerate(node.shape))
    places = build.reshape(build.iota(node.shape[axis], dtypes.int32), column)
    end = build.expand(build.reshape(count.node(), (1,) * len(column)), column)
    there = build.expand(build.lt(places, end), node.shape)
    return whole._make(build.where(there, node, build.const_like(node, value)))


def _joined(name: str, operands: Sequence[Any]) -> Counts:
    """The counts of a result of operands that are broadcast."""
    tensors = [o for o in operands if isinstance(o, TensorBase)]
    rank = max(t.ndim for t in tensors)
    counts: Counts = {}
    for tensor in tensors:
        if isinstance(tensor, PartialTensor):
            counts |= {a + rank - tensor.ndim: n for a, n in tensor._counts.items()}
    for tensor in tensors:
        for axis, size in enumerate(tensor.shape, rank - tensor.ndim):
            if axis in counts and size != counts[axis] and not _is_one(size):
                shapes = " and ".join(str(t.shape) for t in tensors)
                raise ShapeError(
                    f"{name}: shapes {shapes} do not broadcast; a length that varies goes with "
                    "itself and with 1"
                )
    return counts


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _whole_of(operand: Any) -> Any:
    return operand._whole if isinstance(operand, PartialTensor) else operand


def _product(a: Any, b: Any) -> Any:
    if not isinstance(a, TensorBase) or not isinstance(b, TensorBase):
        return NotImplemented
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise ShapeError(
            f"matmul: shapes {a.shape} and {b.shape} do not fit; where a length varies, operands "
            "have 2 axes or more, and those that are summed are of one length"
        )
    rank = max(a.ndim, b.ndim)
    counts: Counts = {}
    for tensor, own in ((a, -2), (b, -1)):
        if not isinstance(tensor, PartialTensor):
            continue
        last = tensor.ndim
        if any(axis < last - 2 for axis in tensor._counts):
            raise ShapeError(f"matmul: a batch axis of shape {tensor.shape} varies; permute it")
        if last + own in tensor._counts:
            counts[rank + own] = tensor._counts[last + own]
    left: Any = a._there(0, [a.ndim - 1]) if isinstance(a, PartialTensor) else a
    right: Any = b._there(0, [b.ndim - 2]) if isinstance(b, PartialTensor) else b
    made = _partial(left.matmul(right), counts)
    # What is not there is not computed: a loop under a mask ends at once.
    return _partial(made._there(0, list(counts)), counts) if counts else made


TensorBase._partial = staticmethod(_partial)
