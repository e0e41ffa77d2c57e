"""Parameter, a tensor that an optimiser moves, and the rule for which tensors are such."""

from __future__ import annotations

from typing import Any

from coregrad.api.tensor import Tensor


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
