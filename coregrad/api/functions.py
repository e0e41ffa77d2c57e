"""The tensor's methods as functions, PyTorch's way: ``coregrad.exp(x)`` is ``x.exp()``.

Most are the methods themselves under another door. What takes a sequence of tensors, or starts
from no tensor, is written out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coregrad.api.base import broadcast_shapes, require_tensor
from coregrad.api.tensor import Tensor
from coregrad.errors import DTypeError, ShapeError

# fmt: off
full, zeros, ones, empty = Tensor.full, Tensor.zeros, Tensor.ones, Tensor.empty
arange, linspace, eye, from_numpy = Tensor.arange, Tensor.linspace, Tensor.eye, Tensor.from_numpy
zeros_like, ones_like, empty_like = Tensor.zeros_like, Tensor.ones_like, Tensor.empty_like
full_like, rand_like, randn_like = Tensor.full_like, Tensor.rand_like, Tensor.randn_like
rand, randn, randint, randperm = Tensor.rand, Tensor.randn, Tensor.randint, Tensor.randperm
manual_seed, multinomial, bernoulli = Tensor.manual_seed, Tensor.multinomial, Tensor.bernoulli

add, sub, mul, div, pow = Tensor.add, Tensor.sub, Tensor.mul, Tensor.div, Tensor.pow
floor_divide, remainder, fmod = Tensor.floor_divide, Tensor.remainder, Tensor.fmod
maximum, minimum, clamp, lerp = Tensor.maximum, Tensor.minimum, Tensor.clamp, Tensor.lerp
neg, abs, sign, square, sqrt = Tensor.neg, Tensor.abs, Tensor.sign, Tensor.square, Tensor.sqrt
rsqrt, reciprocal, exp, exp2 = Tensor.rsqrt, Tensor.reciprocal, Tensor.exp, Tensor.exp2
expm1, log, log2, log10, log1p = Tensor.expm1, Tensor.log, Tensor.log2, Tensor.log10, Tensor.log1p
sin, cos, tan, asin, acos = Tensor.sin, Tensor.cos, Tensor.tan, Tensor.asin, Tensor.acos
atan, atan2, sinh, cosh, tanh = Tensor.atan, Tensor.atan2, Tensor.sinh, Tensor.cosh, Tensor.tanh
asinh, acosh, atanh, erf, erfc = Tensor.asinh, Tensor.acosh, Tensor.atanh, Tensor.erf, Tensor.erfc
floor, ceil, round, trunc = Tensor.floor, Tensor.ceil, Tensor.round, Tensor.trunc
eq, ne, lt, le, gt, ge = Tensor.eq, Tensor.ne, Tensor.lt, Tensor.le, Tensor.gt, Tensor.ge
isnan, isinf, isfinite, isclose = Tensor.isnan, Tensor.isinf, Tensor.isfinite, Tensor.isclose
logical_and, logical_or = Tensor.logical_and, Tensor.logical_or
logical_not, logical_xor = Tensor.logical_not, Tensor.logical_xor
nan_to_num, logaddexp, masked_fill = Tensor.nan_to_num, Tensor.logaddexp, Tensor.masked_fill
relu, sigmoid, logsigmoid = Tensor.relu, Tensor.sigmoid, Tensor.logsigmoid
softmax, log_softmax, logsumexp = Tensor.softmax, Tensor.log_softmax, Tensor.logsumexp

reshape, permute, transpose, flip = Tensor.reshape, Tensor.permute, Tensor.transpose, Tensor.flip
squeeze, unsqueeze, flatten, roll = Tensor.squeeze, Tensor.unsqueeze, Tensor.flatten, Tensor.roll
movedim, swapaxes, tile, narrow = Tensor.movedim, Tensor.transpose, Tensor.tile, Tensor.narrow
broadcast_to, split, chunk, unbind = Tensor.expand, Tensor.split, Tensor.chunk, Tensor.unbind
tril, triu, diag, diagonal = Tensor.tril, Tensor.triu, Tensor.diag, Tensor.diagonal
repeat_interleave, select, nonzero = Tensor.repeat_interleave, Tensor.select, Tensor.nonzero
gather, scatter, scatter_add = Tensor.gather, Tensor.scatter, Tensor.scatter_add
scatter_reduce, index_select = Tensor.scatter_reduce, Tensor.index_select
take_along_dim, masked_select = Tensor.take_along_dim, Tensor.masked_select

sum, prod, mean, amax, amin = Tensor.sum, Tensor.prod, Tensor.mean, Tensor.amax, Tensor.amin
max, min, argmax, argmin = Tensor.max, Tensor.min, Tensor.argmax, Tensor.argmin
any, all, var, std, norm = Tensor.any, Tensor.all, Tensor.var, Tensor.std, Tensor.norm
cumsum, cumprod, cummax, cummin = Tensor.cumsum, Tensor.cumprod, Tensor.cummax, Tensor.cummin
logcumsumexp, count_nonzero = Tensor.logcumsumexp, Tensor.count_nonzero
sort, argsort, msort, topk = Tensor.sort, Tensor.argsort, Tensor.msort, Tensor.topk
kthvalue, median, nanmedian = Tensor.kthvalue, Tensor.median, Tensor.nanmedian
quantile, nanquantile, unique = Tensor.quantile, Tensor.nanquantile, Tensor.unique
unique_consecutive, searchsorted = Tensor.unique_consecutive, Tensor.searchsorted
bucketize = Tensor.bucketize
matmul, bmm, outer, einsum = Tensor.matmul, Tensor.bmm, Tensor.outer, Tensor.einsum
dot, addmm, baddbmm, tensordot = Tensor.dot, Tensor.addmm, Tensor.baddbmm, Tensor.tensordot
addcmul, addcdiv, clip = Tensor.addcmul, Tensor.addcdiv, Tensor.clamp
diff, trace, cosine_similarity = Tensor.diff, Tensor.trace, Tensor.cosine_similarity
# fmt: on


def tensor(
    data: Any, dtype: Any = None, device: Any = None, requires_grad: bool | None = None
) -> Tensor:
    """A tensor with a copy of numbers, nested lists or an array, PyTorch's ``torch.tensor``.

    >>> tensor([[1, 2]]).shape
    (1, 2)
    """
    return Tensor(data, dtype, device, requires_grad)


def cat(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Tensors one after the other along an axis. ShapeError unless all other axes are equal.

    >>> cat([Tensor([1, 2]), Tensor([3])]).tolist()
    [1, 2, 3]
    """
    first, *rest = _some("cat", tensors)
    return first.cat(*rest, dim=dim if axis is None else axis)


def stack(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Tensors of one shape side by side along a new axis.

    >>> stack([Tensor([1, 2]), Tensor([3, 4])]).tolist()
    [[1, 2], [3, 4]]
    """
    first, *rest = _some("stack", tensors)
    return first.stack(*rest, dim=dim if axis is None else axis)


def _some(name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    try:
        found = list(tensors)
    except TypeError:
        raise DTypeError(
            f"{name}: {type(tensors).__name__} is no list; write coregrad.{name}([a, b])"
        ) from None
    if not found:
        raise ShapeError(f"{name}: no tensors; give at least one")
    for item in found:
        if not isinstance(item, Tensor):
            raise TypeError(f"{name}: {type(item).__name__} is no tensor; give a list of tensors")
    return found


def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """``input`` where the condition holds, else ``other``; with a condition alone, where it holds.

    Both may be tensors or numbers. Raises DTypeError unless the condition is bool.

    >>> where(Tensor([True, False]), 1.0, Tensor([5.0, 6.0])).tolist()
    [1.0, 6.0]
    """
    if not isinstance(input, Tensor):
        require_tensor("where", condition, "coregrad.where(Tensor(condition), a, b)")
    if input is None and other is None:
        return condition.nonzero(as_tuple=True)
    if isinstance(input, Tensor):
        return input.where(condition, other)
    if isinstance(other, Tensor):
        return other.where(condition.logical_not(), input)
    chosen = Tensor(input, device=condition.device, requires_grad=False)
    return chosen.where(condition, Tensor(other, device=condition.device, requires_grad=False))


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Vectors expanded against each other: the coordinates of a grid.

    >>> [g.tolist() for g in meshgrid(Tensor([1, 2]), Tensor([3, 4]))]
    [[[1, 1], [2, 2]], [[3, 4], [3, 4]]]
    """
    vectors = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    first, *rest = _some("meshgrid", vectors)
    return first.meshgrid(*rest, indexing=indexing)


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors expanded to their common shape.

    >>> [t.shape for t in broadcast_tensors(Tensor([[1], [2]]), Tensor([3, 4]))]
    [(2, 2), (2, 2)]
    """
    for tensor in tensors:
        require_tensor("broadcast_tensors", tensor, "coregrad.broadcast_tensors(a, b)")
    shape = broadcast_shapes("broadcast_tensors", *(t.shape for t in tensors))
    return tuple(t.expand(shape) for t in tensors)


def allclose(
    input: Tensor,
    other: Tensor,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> bool:
    """Whether all elements are close: ``|input - other| <= atol + rtol * |other|``.

    >>> allclose(Tensor([1.0]), Tensor([1.000001]))
    True
    """
    return bool(input.isclose(other, rtol, atol, equal_nan).all())


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape and equal elements.

    >>> equal(Tensor([1, 2]), Tensor([1, 2])), equal(Tensor([1]), Tensor([1, 1]))
    (True, False)
    """
    return input.shape == other.shape and bool((input == other).all())


def is_tensor(value: object) -> bool:
    """Whether ``value`` is a tensor.

    >>> is_tensor(Tensor(1.0)), is_tensor(1.0)
    (True, False)
    """
    return isinstance(value, Tensor)


def numel(input: Tensor) -> int:
    """How many elements there are.

    >>> numel(Tensor([[1, 2]]))
    2
    """
    return input.numel()


def realize(*tensors: Tensor) -> None:
    """Compute tensors now, together, so that what they share is computed once.

    >>> x = Tensor([1.0, 2.0])
    >>> realize(x + 1, x * 2)
    """
    if tensors:
        require_tensor("realize", tensors[0], "coregrad.realize(a, b)")
        tensors[0].realize(*tensors[1:])
