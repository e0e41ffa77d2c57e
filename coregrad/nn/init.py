"""Fills existing tensors with starting values, under PyTorch's names; it makes no tensor itself."""

from __future__ import annotations

import math

from coregrad.api.grad_mode import no_grad
from coregrad.api.tensor import Tensor
from coregrad.errors import CoregradError, ShapeError

# The recommended gains of PyTorch's table (torch.nn.init.calculate_gain).
_GAINS = {
    "linear": 1.0,
    "conv1d": 1.0,
    "conv2d": 1.0,
    "sigmoid": 1.0,
    "tanh": 5.0 / 3.0,
    "relu": math.sqrt(2.0),
    "selu": 0.75,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """By how much a non-linearity shrinks what passes through it; ``param`` is leaky_relu's slope.

    >>> calculate_gain("linear")
    1.0
    """
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        return math.sqrt(2.0 / (1.0 + slope * slope))
    if nonlinearity not in _GAINS:
        raise CoregradError(
            f"calculate_gain: {nonlinearity!r} is unknown; choose one of: leaky_relu, "
            f"{', '.join(_GAINS)}"
        )
    return _GAINS[nonlinearity]


def fans(tensor: Tensor) -> tuple[int, int]:
    """(fan-in, fan-out) of a weight of shape (out, in, *kernel).

    >>> fans(Tensor.zeros(8, 4, 3, 3))
    (36, 72)
    """
    if tensor.ndim < 2:
        raise ShapeError(f"init: shape {tensor.shape} has no fan-in; it needs two axes or more")
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def zeros_(tensor: Tensor) -> Tensor:
    """All zeros."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """All ones."""
    return constant_(tensor, 1.0)


def constant_(tensor: Tensor, value: float) -> Tensor:
    """``value`` everywhere."""
    return _fill(tensor, Tensor.full(tensor.shape, value, dtype=tensor.dtype, device=tensor.device))


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Uniform in [a, b)."""
    drawn = Tensor.uniform(*tensor.shape, low=a, high=b, dtype=tensor.dtype, device=tensor.device)
    return _fill(tensor, drawn)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Normal with the given mean and standard deviation."""
    drawn = Tensor.normal(
        *tensor.shape, mean=mean, std=std, dtype=tensor.dtype, device=tensor.device
    )
    return _fill(tensor, drawn)


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Glorot and Bengio (2010): uniform, variance 2 / (fan-in + fan-out)."""
    bound = gain * math.sqrt(6.0 / sum(fans(tensor)))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Glorot and Bengio (2010): normal, variance 2 / (fan-in + fan-out)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(fans(tensor))))


def kaiming_uniform_(
    tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Tensor:
    """He et al. (2015): uniform, variance gain**2 / fan; ``a`` is leaky_relu's slope."""
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(
    tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Tensor:
    """He et al. (2015): normal, variance gain**2 / fan; ``a`` is leaky_relu's slope."""
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity))


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise CoregradError(f"kaiming: mode {mode!r} is neither 'fan_in' nor 'fan_out'")
    fan = fans(tensor)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)


def _fill(tensor: Tensor, value: Tensor) -> Tensor:
    with no_grad():
        return tensor.assign(value)
