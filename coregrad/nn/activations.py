"""Activations as modules: each stands for one function of the tensor and adds nothing to it."""

from __future__ import annotations

from coregrad.api.tensor import Tensor
from coregrad.dtypes import DType
from coregrad.errors import ShapeError
from coregrad.nn.module import Module
from coregrad.nn.parameter import filled, positive


class _Activation(Module):
    """A function of the tensor, with the numbers it takes as attributes of these names."""

    function = "relu"
    numbers: tuple[str, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        """Any shape to the same shape."""
        options = {name: getattr(self, name) for name in self.numbers}
        made: Tensor = getattr(x, self.function)(**options)
        return made

    def extra_repr(self) -> str:
        """The numbers."""
        return ", ".join(f"{name}={getattr(self, name)}" for name in self.numbers)


class ReLU(_Activation):
    """max(x, 0); NaN stays."""


class ReLU6(_Activation):
    """min(max(x, 0), 6)."""

    function = "relu6"


class SELU(_Activation):
    """Klambauer et al., "Self-Normalizing Neural Networks", 2017."""

    function = "selu"


class SiLU(_Activation):
    """``x * sigmoid(x)``, also called swish."""

    function = "silu"


class Mish(_Activation):
    """``x * tanh(softplus(x))``."""

    function = "mish"


class Sigmoid(_Activation):
    """1 / (1 + exp(-x))."""

    function = "sigmoid"


class LogSigmoid(_Activation):
    """log(sigmoid(x)), without overflow."""

    function = "logsigmoid"


class Tanh(_Activation):
    """Hyperbolic tangent."""

    function = "tanh"


class Softsign(_Activation):
    """x / (1 + abs(x))."""

    function = "softsign"


class Hardsigmoid(_Activation):
    """min(max(x / 6 + 1/2, 0), 1)."""

    function = "hardsigmoid"


class Hardswish(_Activation):
    """``x * hardsigmoid(x)``."""

    function = "hardswish"


class GELU(_Activation):
    """x times the normal distribution function of x; ``approximate`` is "none" or "tanh"."""

    function = "gelu"
    numbers = ("approximate",)

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate


class LeakyReLU(_Activation):
    """x, and ``negative_slope * x`` below 0.

    >>> LeakyReLU(0.5)(Tensor([-2.0, 2.0])).tolist()
    [-1.0, 2.0]
    """

    function = "leaky_relu"
    numbers = ("negative_slope",)

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = negative_slope


class ELU(_Activation):
    """x, and ``alpha * (exp(x) - 1)`` below 0."""

    function = "elu"
    numbers = ("alpha",)

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha


class CELU(_Activation):
    """x, and ``alpha * (exp(x / alpha) - 1)`` below 0."""

    function = "celu"
    numbers = ("alpha",)

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha


class Softplus(_Activation):
    """log(1 + exp(beta * x)) / beta, and x where beta * x exceeds ``threshold``."""

    function = "softplus"
    numbers = ("beta", "threshold")

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self.beta = beta
        self.threshold = threshold


class Hardtanh(_Activation):
    """x within ``min_val`` and ``max_val``."""

    function = "hardtanh"
    numbers = ("min_val", "max_val")

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        self.min_val = min_val
        self.max_val = max_val


class Softmax(_Activation):
    """exp(x) divided by its sum along an axis."""

    function = "softmax"
    numbers = ("dim",)

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim


class LogSoftmax(_Activation):
    """log(softmax(x)) along an axis, without overflow."""

    function = "log_softmax"
    numbers = ("dim",)

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim


class PReLU(Module):
    """x, and ``weight * x`` below 0; one weight for all, or one per channel (axis 1).

    >>> PReLU()(Tensor([-4.0, 4.0])).tolist()
    [-1.0, 4.0]
    """

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        positive("PReLU", num_parameters=num_parameters)
        self.num_parameters = num_parameters
        self.weight = filled(num_parameters, value=init, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Any shape to the same shape."""
        slope: Tensor = self.weight
        if self.num_parameters > 1:
            if x.ndim < 2 or x.shape[1] != self.num_parameters:
                raise ShapeError(
                    f"PReLU: an input of shape {x.shape} does not have {self.num_parameters} "
                    "channels on axis 1"
                )
            slope = slope.reshape(self.num_parameters, *(1,) * (x.ndim - 2))
        return x.where(x > 0.0, slope * x)

    def extra_repr(self) -> str:
        """The number of weights."""
        return f"num_parameters={self.num_parameters}"
