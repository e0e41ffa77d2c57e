"""The Tensor: all families of methods under one name, and ``backward``."""

from __future__ import annotations

from typing import Any

from coregrad.api import gradient as gradients
from coregrad.api.base import TensorBase
from coregrad.api.random import Random


class Tensor(Random):
    """An n-dimensional array of one dtype on one device, computed when it is read.

    ``Tensor(data, dtype=None, device=None, requires_grad=None)`` copies numbers, nested lists,
    NumPy arrays or another tensor. Python floats become float32, ints int64; arrays keep their
    dtype. Raises ShapeError for ragged lists, DTypeError for what are no numbers or do not fit.

    A tensor is a value with a name: in-place methods and ``t[i] = v`` give the name a new value,
    and nothing that was built from the old one changes. Gradients pass through that where a tensor
    with ``requires_grad=True`` takes part; otherwise the new value has no history.

    >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> y = x * 10
    >>> x[0] = 0
    >>> x.tolist(), y.tolist()
    ([[0.0, 0.0], [3.0, 4.0]], [[10.0, 20.0], [30.0, 40.0]])
    """

    def backward(
        self, gradient: Any = None, retain_graph: bool | None = None, create_graph: bool = False
    ) -> None:
        """Add to ``.grad`` of every tensor below its gradient; builds graphs, computes nothing.

        Tensors with ``requires_grad=True`` receive one; if there are none, every floating tensor
        that was made from data (or by a creation function) and does not say False. ``gradient`` is
        needed unless there is one element. ``retain_graph`` has no meaning: graphs stay while
        somebody holds them. Raises GradientError where nothing takes a gradient.

        >>> x = Tensor([1.0, 2.0], requires_grad=True)
        >>> (x * x).sum().backward()
        >>> x.grad.tolist()
        [2.0, 4.0]
        """
        gradients.backward(self, gradient, create_graph)

    def __contains__(self, element: Any) -> bool:
        return bool((self == element).numpy().any())


TensorBase._result = Tensor
