"""Layers: modules that hold weights, and modules that stand for one function of the tensor.

Starting values are PyTorch's. A layer never knows what it is used in; the arithmetic is the
tensor's own (`coregrad/api/network.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from coregrad import dtypes
from coregrad.api.tensor import Tensor
from coregrad.dtypes import DType
from coregrad.errors import CoregradError, IndexRangeError, ShapeError
from coregrad.nn.module import Module
from coregrad.nn.parameter import Parameter, drawn, filled, positive

Sizes = int | Sequence[int]


def _state(values: NDArray[Any], dtype: DType, device: str | None) -> Tensor:
    return Tensor(values, dtype=dtype, device=device, requires_grad=False)


def _tuple(value: Sizes, axes: int) -> tuple[int, ...]:
    return (value,) * axes if isinstance(value, int) else tuple(value)


# ---- linear maps -------------------------------------------------------------------------------


class Linear(Module):
    """``x @ weight.T + bias``: (..., in_features) to (..., out_features).

    >>> Linear(3, 2)(Tensor.ones(5, 3)).shape
    (5, 2)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        positive("Linear", in_features=in_features, out_features=out_features)
        self.in_features = in_features
        self.out_features = out_features
        bound = 1.0 / math.sqrt(in_features)
        self.weight = drawn(out_features, in_features, bound=bound, device=device, dtype=dtype)
        self.bias = drawn(out_features, bound=bound, device=device, dtype=dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features)."""
        return x.linear(self.weight, self.bias)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class _Conv(Module):
    """What the convolutions share: sizes, weight of shape (out, in/groups, *kernel), bias."""

    axes = 0
    transposed = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        name = type(self).__name__
        positive(name, in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ShapeError(
                f"{name}: {groups} groups do not divide {in_channels} and {out_channels} channels"
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = _tuple(kernel_size, self.axes)
        positive(name, kernel_size=min(self.kernel_size))
        self.stride = _tuple(stride, self.axes)
        self.padding = padding if isinstance(padding, str) else _tuple(padding, self.axes)
        self.dilation = _tuple(dilation, self.axes)
        self.groups = groups
        channels = (out_channels, in_channels // groups)
        if self.transposed:
            channels = (in_channels, out_channels // groups)
        bound = 1.0 / math.sqrt(channels[1] * math.prod(self.kernel_size))
        self.weight = drawn(*channels, *self.kernel_size, bound=bound, device=device, dtype=dtype)
        self.bias = drawn(out_channels, bound=bound, device=device, dtype=dtype) if bias else None

    def extra_repr(self) -> str:
        """The sizes."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"groups={self.groups}, bias={self.bias is not None}"
        )


class Conv1d(_Conv):
    """Convolution over (N, C, L); see :meth:`Tensor.conv1d`.

    >>> Conv1d(3, 8, kernel_size=3)(Tensor.ones(2, 3, 10)).shape
    (2, 8, 8)
    """

    axes = 1

    def forward(self, x: Tensor) -> Tensor:
        """(N, in_channels, L) to (N, out_channels, L')."""
        return x.conv1d(
            self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )


class Conv2d(_Conv):
    """Convolution over (N, C, H, W); see :meth:`Tensor.conv2d`.

    >>> Conv2d(3, 8, kernel_size=3, padding="same")(Tensor.ones(2, 3, 5, 7)).shape
    (2, 8, 5, 7)
    """

    axes = 2

    def forward(self, x: Tensor) -> Tensor:
        """(N, in_channels, H, W) to (N, out_channels, H', W')."""
        return x.conv2d(
            self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )


class _ConvTranspose(_Conv):
    """What the transposed convolutions share: PyTorch's order of arguments."""

    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            device, dtype,
        )  # fmt: skip
        self.output_padding = _tuple(output_padding, self.axes)


class ConvTranspose1d(_ConvTranspose):
    """The adjoint of a convolution, over (N, C, L); see :meth:`Tensor.conv_transpose1d`.

    >>> ConvTranspose1d(8, 3, kernel_size=2, stride=2)(Tensor.ones(2, 8, 5)).shape
    (2, 3, 10)
    """

    axes = 1

    def forward(self, x: Tensor) -> Tensor:
        """(N, in_channels, L) to (N, out_channels, L')."""
        assert not isinstance(self.padding, str)
        return x.conv_transpose1d(
            self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups,
            self.dilation,
        )  # fmt: skip


class ConvTranspose2d(_ConvTranspose):
    """The adjoint of a convolution, over (N, C, H, W); see :meth:`Tensor.conv_transpose2d`.

    >>> ConvTranspose2d(8, 3, kernel_size=2, stride=2)(Tensor.ones(2, 8, 5, 7)).shape
    (2, 3, 10, 14)
    """

    axes = 2

    def forward(self, x: Tensor) -> Tensor:
        """(N, in_channels, H, W) to (N, out_channels, H', W')."""
        assert not isinstance(self.padding, str)
        return x.conv_transpose2d(
            self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups,
            self.dilation,
        )  # fmt: skip


class Embedding(Module):
    """A table of vectors, looked up by integer indices.

    The vector of ``padding_idx`` starts as zeros and gets no gradient. Raises IndexRangeError if it
    lies outside the table.

    >>> Embedding(10, 4)(Tensor([[1, 2, 9]])).shape
    (1, 3, 4)
    >>> Embedding(10, 2, padding_idx=-1)(Tensor([9])).tolist()
    [[0.0, 0.0]]
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        positive("Embedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx: int | None = None
        table = Tensor.randn(num_embeddings, embedding_dim, device=device, dtype=dtype)
        if padding_idx is not None:
            if padding_idx not in range(-num_embeddings, num_embeddings):
                raise IndexRangeError(
                    f"Embedding: padding_idx {padding_idx} lies outside a table of "
                    f"{num_embeddings} vectors"
                )
            self.padding_idx = padding_idx % num_embeddings
            rows = Tensor.arange(num_embeddings, device=device).unsqueeze(1)
            table = table.masked_fill(rows == self.padding_idx, 0.0)
        self.weight = Parameter(table)

    def forward(self, indices: Tensor) -> Tensor:
        """Indices of shape S to vectors of shape (*S, embedding_dim)."""
        return indices.embedding(self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{self.num_embeddings}, {self.embedding_dim}"


# ---- normalisation -----------------------------------------------------------------------------


class BatchNorm(Module):
    """Normalises every channel (axis 1) over the batch and all other axes.

    In training it uses the batch's mean and biased variance and moves ``running_mean`` and
    ``running_var`` (unbiased) towards them by ``momentum`` (None: the plain average of all batches
    so far); in evaluation it uses the running ones. One value per channel has no variance and
    raises ShapeError in training.

    >>> bn = BatchNorm(3)
    >>> bn(Tensor.ones(4, 3, 2, 2)).shape, bn.num_batches_tracked.item()
    ((4, 3, 2, 2), 1)
    """

    ranks: ClassVar[tuple[int, ...]] = ()  # what an input may have; any if empty

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        positive(type(self).__name__, num_features=num_features)
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        if affine:
            self.weight = filled(num_features, value=1.0, device=device, dtype=dtype)
            self.bias = filled(num_features, value=0.0, device=device, dtype=dtype)
        self.running_mean: Tensor | None = None
        self.running_var: Tensor | None = None
        self.num_batches_tracked: Tensor | None = None
        if track_running_stats:
            # Data rather than constants, so that the first step looks like all others.
            kind = dtype or dtypes.float32
            self.running_mean = _state(np.zeros(num_features), kind, device)
            self.running_var = _state(np.ones(num_features), kind, device)
            self.num_batches_tracked = Tensor(0, device=device, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, ...) to the same shape."""
        self._check_rank(x)
        if x.ndim < 2 or x.shape[1] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__}: an input of shape {x.shape} does not have "
                f"{self.num_features} channels on axis 1"
            )
        mean, var = self._statistics(x)
        return x.batch_norm(mean, var, self.weight, self.bias, self.eps)

    def _check_rank(self, x: Tensor) -> None:
        if self.ranks and x.ndim not in self.ranks:
            allowed = " or ".join(map(str, self.ranks))
            raise ShapeError(
                f"{type(self).__name__}: an input of shape {x.shape} has {x.ndim} axes, not "
                f"{allowed}; reshape it, or use the layer for its rank"
            )

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance to normalise with; in training the running ones move."""
        if not self.training and self.running_mean is not None:
            assert self.running_var is not None
            return self.running_mean, self.running_var
        count = x.numel() // x.shape[1]
        if self.training and count < 2:
            raise ShapeError(
                f"{type(self).__name__}: an input of shape {x.shape} has {count} value per "
                "channel, which has no variance; train on larger batches, or call eval()"
            )
        axes = tuple(axis for axis in range(x.ndim) if axis != 1)
        var, mean = x.float_at_least().var_mean(axes, correction=0)
        if self.training and self.running_mean is not None:
            self._track(mean.detach(), var.detach() * (count / (count - 1)))
        return mean, var

    def _track(self, mean: Tensor, var: Tensor) -> None:
        """Move the running statistics in place, so that a captured step moves them too."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        seen = self.num_batches_tracked
        seen.assign(seen + 1)
        for running, now in ((self.running_mean, mean), (self.running_var, var)):
            now = now.cast(running.dtype)
            if self.momentum is None:
                running.assign(running + (now - running) / seen.cast(running.dtype))
            else:
                running.assign(running * (1.0 - self.momentum) + now * self.momentum)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


class BatchNorm1d(BatchNorm):
    """:class:`BatchNorm` for (N, C) and (N, C, L); ShapeError for other ranks."""

    ranks = (2, 3)


class BatchNorm2d(BatchNorm):
    """:class:`BatchNorm` for (N, C, H, W); ShapeError for other ranks."""

    ranks = (4,)


class LayerNorm(Module):
    """Normalises over the last axes.

    >>> LayerNorm(4)(Tensor([[1.0, 2.0, 3.0, 4.0]])).mean().abs().item() < 1e-6
    True
    """

    def __init__(
        self,
        normalized_shape: Sizes,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        self.normalized_shape = _tuple(normalized_shape, 1)
        self.eps = eps
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        if elementwise_affine:
            sizes = self.normalized_shape
            self.weight = filled(*sizes, value=1.0, device=device, dtype=dtype)
            if bias:
                self.bias = filled(*sizes, value=0.0, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(..., *normalized_shape) to the same shape."""
        return x.layer_norm(self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{self.normalized_shape}, eps={self.eps}"


class GroupNorm(Module):
    """Normalises over groups of channels (axis 1) and all axes after them, for each sample.

    >>> GroupNorm(2, 4)(Tensor.ones(3, 4, 5)).shape
    (3, 4, 5)
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        positive("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        if num_channels % num_groups:
            raise ShapeError(
                f"GroupNorm: {num_groups} groups do not divide {num_channels} channels"
            )
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        if affine:
            self.weight = filled(num_channels, value=1.0, device=device, dtype=dtype)
            self.bias = filled(num_channels, value=0.0, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, ...) to the same shape."""
        return x.group_norm(self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}"


class InstanceNorm(BatchNorm):
    """Normalises every channel (axis 1) of every sample over the axes after it.

    With ``track_running_stats`` it moves running statistics in training, as :class:`BatchNorm`
    does, and uses them in evaluation. One value per channel and sample has no variance and raises
    ShapeError, except where running statistics are used.

    >>> InstanceNorm(3)(Tensor.ones(4, 3, 2, 2)).shape
    (4, 3, 2, 2)
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, ...) to the same shape."""
        self._check_rank(x)
        name = type(self).__name__
        if x.ndim < 3 or x.shape[1] != self.num_features:
            raise ShapeError(
                f"{name}: an input of shape {x.shape} does not have {self.num_features} channels "
                "on axis 1 and an axis after it"
            )
        if not self.training and self.running_mean is not None:
            assert self.running_var is not None
            return x.batch_norm(
                self.running_mean, self.running_var, self.weight, self.bias, self.eps
            )
        count = x.numel() // (x.shape[0] * x.shape[1]) if x.shape[0] else 0
        if count < 2:
            raise ShapeError(
                f"{name}: an input of shape {x.shape} has {count} value per channel and sample, "
                "which has no variance"
            )
        if self.training and self.running_mean is not None:
            axes = tuple(range(2, x.ndim))
            var, mean = x.detach().float_at_least().var_mean(axes, correction=1)
            self._track(mean.mean(0), var.mean(0))
        return x.group_norm(self.num_features, self.weight, self.bias, self.eps)


class InstanceNorm1d(InstanceNorm):
    """:class:`InstanceNorm` for (N, C, L); ShapeError for other ranks."""

    ranks = (3,)


class InstanceNorm2d(InstanceNorm):
    """:class:`InstanceNorm` for (N, C, H, W); ShapeError for other ranks."""

    ranks = (4,)


class RMSNorm(Module):
    """Divides by the root of the mean square over the last axes.

    ``eps`` None is the machine epsilon of the input's dtype, as in PyTorch.

    >>> RMSNorm(2)(Tensor([[3.0, 3.0]])).round(decimals=3).tolist()
    [[1.0, 1.0]]
    """

    def __init__(
        self,
        normalized_shape: Sizes,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        self.normalized_shape = _tuple(normalized_shape, 1)
        self.eps = eps
        self.weight: Tensor | None = None
        if elementwise_affine:
            self.weight = filled(*self.normalized_shape, value=1.0, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(..., *normalized_shape) to the same shape."""
        return x.rms_norm(self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{self.normalized_shape}, eps={self.eps}"


# ---- containers --------------------------------------------------------------------------------


class Sequential(Module):
    """Modules and functions one after the other.

    >>> net = Sequential(Linear(3, 4), Tensor.relu, Linear(4, 2))
    >>> net(Tensor.ones(1, 3)).shape, len(net), [name for name, _ in net.named_parameters()]
    ((1, 2), 3, ['0.weight', '0.bias', '2.weight', '2.bias'])
    """

    def __init__(self, *layers: Callable[[Tensor], Tensor]) -> None:
        for i, layer in enumerate(layers):
            if not callable(layer):
                raise CoregradError(
                    f"Sequential: layer {i} is a {type(layer).__name__}, which cannot be called; "
                    "give modules and functions"
                )
        # One attribute per position, so that the names are PyTorch's: "0.weight".
        vars(self).update({str(i): layer for i, layer in enumerate(layers)})

    @property
    def layers(self) -> list[Callable[[Tensor], Tensor]]:
        """The layers in order."""
        return [layer for name, layer in vars(self).items() if name.isdigit()]

    def forward(self, x: Tensor) -> Tensor:
        """Through all layers."""
        for layer in self.layers:
            x = layer(x)
        return x

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: int) -> Callable[[Tensor], Tensor]:
        return self.layers[index]

    def __iter__(self) -> Iterator[Callable[[Tensor], Tensor]]:
        return iter(self.layers)


class ModuleList(Module):
    """Modules in a list; it computes nothing. (Plain lists are found as well.)

    >>> parts = ModuleList([Linear(2, 3), Linear(3, 4)])
    >>> len(parts), [name for name, _ in parts[1:].named_parameters()]
    (2, ['0.weight', '0.bias'])
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        self.extend(modules)

    def append(self, module: Module) -> ModuleList:
        """Add one module at the end; returns the list."""
        return self.extend([module])

    def extend(self, modules: Iterable[Module]) -> ModuleList:
        """Add modules at the end; returns the list."""
        start = len(self)
        vars(self).update({str(start + i): module for i, module in enumerate(modules)})
        return self

    def _items(self) -> list[Module]:
        return [module for name, module in vars(self).items() if name.isdigit()]

    def __len__(self) -> int:
        return len(self._items())

    def __getitem__(self, index: int | slice) -> Any:
        found = self._items()[index]
        return ModuleList(found) if isinstance(found, list) else found

    def __iter__(self) -> Iterator[Module]:
        return iter(self._items())


# ---- functions as modules ----------------------------------------------------------------------


class Identity(Module):
    """Returns its input."""

    def forward(self, x: Tensor) -> Tensor:
        """``x``."""
        return x


class Flatten(Module):
    """Axes ``start_dim`` to ``end_dim`` in one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return x.flatten(self.start_dim, self.end_dim)


class Unflatten(Module):
    """Axis ``dim`` as several, of ``unflattened_size``; see :meth:`Tensor.unflatten`.

    >>> Unflatten(1, (2, -1))(Tensor.ones(5, 6)).shape
    (5, 2, 3)
    """

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        self.dim = dim
        self.unflattened_size = tuple(unflattened_size)

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return x.unflatten(self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        """The axis and its sizes."""
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class Dropout(Module):
    """In training zeroes each element with probability ``p`` and scales the others by 1/(1-p)."""

    def __init__(self, p: float = 0.5) -> None:
        if not 0.0 <= p <= 1.0:
            raise CoregradError(f"Dropout: p is {p}; a probability lies between 0 and 1")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return x.dropout(self.p, training=self.training)

    def extra_repr(self) -> str:
        """The probability."""
        return f"p={self.p}"


class _MaxPool(Module):
    """What the layers of maximum pooling share: their sizes."""

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> None:
        self.options: dict[str, Any] = {
            "kernel_size": kernel_size,
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "ceil_mode": ceil_mode,
        }

    def extra_repr(self) -> str:
        """The sizes."""
        return ", ".join(f"{name}={value}" for name, value in self.options.items())


class MaxPool1d(_MaxPool):
    """The largest value of each window; see :meth:`Tensor.max_pool1d`."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, L) to (N, C, L')."""
        pooled: Tensor = x.max_pool1d(**self.options)
        return pooled


class MaxPool2d(_MaxPool):
    """The largest value of each window; see :meth:`Tensor.max_pool2d`."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C, H', W')."""
        pooled: Tensor = x.max_pool2d(**self.options)
        return pooled


class _AvgPool(Module):
    """What the layers of average pooling share: their sizes."""

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        self.options: dict[str, Any] = {
            "kernel_size": kernel_size,
            "stride": stride,
            "padding": padding,
            "ceil_mode": ceil_mode,
            "count_include_pad": count_include_pad,
        }

    def extra_repr(self) -> str:
        """The sizes."""
        return ", ".join(f"{name}={value}" for name, value in self.options.items())


class AvgPool1d(_AvgPool):
    """The mean of each window; see :meth:`Tensor.avg_pool1d`."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, L) to (N, C, L')."""
        return x.avg_pool1d(**self.options)


class AvgPool2d(_AvgPool):
    """The mean of each window; see :meth:`Tensor.avg_pool2d`."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C, H', W')."""
        return x.avg_pool2d(**self.options)


class AdaptiveAvgPool2d(Module):
    """The means of ``output_size`` nearly equal parts; see :meth:`Tensor.adaptive_avg_pool2d`."""

    def __init__(self, output_size: Sizes) -> None:
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C, *output_size)."""
        return x.adaptive_avg_pool2d(self.output_size)

    def extra_repr(self) -> str:
        """The size."""
        return f"{self.output_size}"
