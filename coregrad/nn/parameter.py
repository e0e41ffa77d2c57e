"""Parameter, a tensor that an optimiser moves; which tensors are such, and how layers make them."""

from __future__ import annotations

from typing import Any

from coregrad import dtypes
from coregrad.api.tensor import Tensor
from coregrad.dtypes import DType
from coregrad.errors import ShapeError


class Parameter(Tensor):
    """A floating tensor of its own with ``requires_grad=True``; results made from it are Tensors.

    >>> Parameter(Tensor.zeros(2)).requires_grad
    True
    """

    def __init__(
        self,
        data: Any,
        requires_grad: bool = True,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        where = data.device if device is None and isinstance(data, Tensor) else device
        super().__init__(data, dtype=dtype, device=where, requires_grad=requires_grad)


def is_parameter(tensor: Tensor) -> bool:
    """Whether a model trains this tensor: a Parameter (also a frozen one), or a floating tensor of
    its own that nobody froze.

    >>> is_parameter(Tensor([1.0])), is_parameter(Tensor([1]))
    (True, False)
    """
    if isinstance(tensor, Parameter):
        return True
    return tensor.dtype.is_float and tensor.requires_grad is not False and tensor.is_leaf


def drawn(*shape: int, bound: float, device: str | None, dtype: DType | None) -> Parameter:
    """A parameter of uniform numbers between ``-bound`` and ``bound``."""
    return Parameter(Tensor.uniform(*shape, low=-bound, high=bound, device=device, dtype=dtype))


def filled(*shape: int, value: float, device: str | None, dtype: DType | None) -> Parameter:
    """A parameter of one number."""
    return Parameter(Tensor.full(shape, value, device=device, dtype=dtype or dtypes.float32))


def positive(layer: str, **sizes: int) -> None:
    """Raise ShapeError, naming the layer and the size, unless all sizes are at least 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ShapeError(f"{layer}: {name} is {size}; it must be at least 1")
