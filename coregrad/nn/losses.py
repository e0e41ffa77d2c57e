"""Losses as modules: each stands for one method of the tensor and holds what it is called with."""

from __future__ import annotations

from coregrad.api.tensor import Tensor
from coregrad.nn.module import Module


class _Loss(Module):
    def __init__(self, reduction: str = "mean") -> None:
        self.reduction = reduction

    def extra_repr(self) -> str:
        """The reduction."""
        return f"reduction={self.reduction!r}"


def _fixed(weight: Tensor | None) -> Tensor | None:
    """A weight that is saved with the model and not trained."""
    return None if weight is None else weight.detach().requires_grad_(False)


class CrossEntropyLoss(Module):
    """Cross entropy of logits and class labels; see :meth:`Tensor.cross_entropy`."""

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        self.weight = _fixed(weight)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """(N, C, ...) logits and (N, ...) labels to a loss."""
        return logits.cross_entropy(
            target, self.weight, self.ignore_index, self.reduction, self.label_smoothing
        )


class NLLLoss(Module):
    """Minus the log-probability of the labels; see :meth:`Tensor.nll_loss`."""

    def __init__(
        self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        self.weight = _fixed(weight)
        self.ignore_index = ignore_index
        self.reduction = reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """(N, C, ...) log-probabilities and (N, ...) labels to a loss."""
        return x.nll_loss(target, self.weight, self.ignore_index, self.reduction)


class BCELoss(_Loss):
    """Cross entropy of probabilities and targets between 0 and 1."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape to a loss."""
        return x.binary_cross_entropy(target, reduction=self.reduction)


class BCEWithLogitsLoss(Module):
    """Cross entropy of logits and targets between 0 and 1, without overflow."""

    def __init__(self, reduction: str = "mean", pos_weight: Tensor | None = None) -> None:
        self.reduction = reduction
        self.pos_weight = _fixed(pos_weight)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape to a loss."""
        return x.binary_cross_entropy_with_logits(
            target, reduction=self.reduction, pos_weight=self.pos_weight
        )


class MSELoss(_Loss):
    """Mean squared error."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape to a loss."""
        return x.mse_loss(target, self.reduction)


class L1Loss(_Loss):
    """Mean absolute error."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape to a loss."""
        return x.l1_loss(target, self.reduction)


class HuberLoss(Module):
    """Half the square, and linear beyond ``delta``."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        self.reduction = reduction
        self.delta = delta

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape to a loss."""
        return x.huber_loss(target, self.reduction, self.delta)


class SmoothL1Loss(Module):
    """The Huber loss divided by its threshold ``beta``."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        self.reduction = reduction
        self.beta = beta

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape to a loss."""
        return x.smooth_l1_loss(target, self.reduction, self.beta)


class KLDivLoss(Module):
    """The Kullback-Leibler divergence from log-probabilities to targets; see `Tensor.kl_div`."""

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        self.reduction = reduction
        self.log_target = log_target

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape to a loss."""
        return x.kl_div(target, self.reduction, self.log_target)
