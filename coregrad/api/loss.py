"""Losses: how far a prediction is from what was wanted, as one number or one per element.

Every loss takes ``reduction``: "mean", "sum" or "none". float16 and bfloat16 are reduced in
float32. Values are selected, never multiplied by 0 or 1, so that a probability of 0 where nothing
is wanted does not turn a loss into NaN.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

from coregrad.api.base import TensorBase
from coregrad.api.composed import composed
from coregrad.api.device import default_int
from coregrad.api.indexing import caller, known_values
from coregrad.api.reduction import chosen, total, wide
from coregrad.api.sorting import Sorting
from coregrad.errors import CoregradError, IndexRangeError, ShapeError
from coregrad.ir import build, ops
from coregrad.ir.graph import Node

if TYPE_CHECKING:
    from typing_extensions import Self

L = TypeVar("L", bound="Loss")

IGNORED = -100  # PyTorch's label for "no loss here"


class Loss(Sorting):
    """Methods that compare a tensor of predictions with one of targets."""

    # ---- classification ------------------------------------------------------------------------

    def cross_entropy(
        self,
        target: Any,
        weight: TensorBase | None = None,
        ignore_index: int = IGNORED,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Self:
        """Cross entropy of logits (N, C, ...) and integer labels (N, ...), or (C,) and 0-d.

        Labels equal to ``ignore_index`` do not count. ``weight`` has one factor per class, and the
        mean is then the weighted one. A floating target of the logits' shape holds probabilities.

        Raises ShapeError if the shapes do not fit and IndexRangeError for a label outside [0, C):
        at the call if the labels can be looked at, else when the loss is computed.

        >>> Tensor([[0.0, 0.0]]).cross_entropy(Tensor([1])).item()
        0.6931471824645996
        """
        if not 0.0 <= label_smoothing <= 1.0:
            raise CoregradError(
                f"cross_entropy: label_smoothing is {label_smoothing}; it lies between 0 and 1"
            )
        self._floating("cross_entropy")
        wanted = self._target(target)
        self._class_axis("cross_entropy")
        if wanted.dtype.is_float:
            return self._soft_cross_entropy(wanted, weight, reduction, label_smoothing)
        places, no_ignored = self._labels("cross_entropy", wanted, ignore_index)
        ignored = None if no_ignored else ignore_index
        return self._label_loss(
            "cross_entropy", wanted, places, weight, ignored, reduction, label_smoothing
        )

    def sparse_categorical_crossentropy(
        self, target: Any, ignore_index: int = IGNORED, label_smoothing: float = 0.0
    ) -> Self:
        """:meth:`cross_entropy` of logits and integer labels under its other common name.

        >>> Tensor([[0.0, 0.0]]).sparse_categorical_crossentropy(Tensor([0])).item()
        0.6931471824645996
        """
        return self.cross_entropy(
            target, ignore_index=ignore_index, label_smoothing=label_smoothing
        )

    def nll_loss(
        self,
        target: Any,
        weight: TensorBase | None = None,
        ignore_index: int = IGNORED,
        reduction: str = "mean",
    ) -> Self:
        """Negative log-likelihood: :meth:`cross_entropy` of what is log-probabilities already.

        >>> Tensor([[-0.5, -1.0]]).nll_loss(Tensor([1])).item()
        1.0
        """
        self._floating("nll_loss")
        wanted = self._target(target)
        places, no_ignored = self._labels("nll_loss", wanted, ignore_index)
        ignored = None if no_ignored else ignore_index
        return self._label_loss("nll_loss", wanted, places, weight, ignored, reduction, 0.0)

    @composed
    def _label_loss(
        self,
        name: str,
        labels: TensorBase,
        places: TensorBase,
        weight: TensorBase | None,
        ignore: int | None,
        reduction: str,
        smoothing: float,
    ) -> Self:
        logs = self._make(wide(self.node))
        if name == "cross_entropy":
            logs = logs.log_softmax(self._class_axis(name))
        loss = logs._labelled(name, labels, places, weight, ignore, reduction, smoothing)
        return loss.cast(self.dtype)

    @composed
    def _soft_cross_entropy(
        self, wanted: TensorBase, weight: TensorBase | None, reduction: str, smoothing: float
    ) -> Self:
        logs = self._make(wide(self.node)).log_softmax(self._class_axis("cross_entropy"))
        return logs._soft(wanted, weight, reduction, smoothing).cast(self.dtype)

    def _target(self, target: Any, name: str = "loss") -> TensorBase:
        if isinstance(target, TensorBase):
            self._check_device(name, target)
            return target
        return self._result(target, device=self.device, requires_grad=False)

    def _class_axis(self, name: str) -> int:
        if not self.ndim:
            raise ShapeError(f"{name}: a 0-d tensor has no axis of classes; give (N, C, ...)")
        return 0 if self.ndim == 1 else 1

    def _labels(self, name: str, labels: TensorBase, ignore: int) -> tuple[TensorBase, bool]:
        """Integer labels, checked, each as the number of a class; and whether none is ignored."""
        axis = self._class_axis(name)
        if labels.shape != (*self.shape[:axis], *self.shape[axis + 1 :]):
            raise ShapeError(
                f"{name}: logits of shape {self.shape} do not fit labels of shape {labels.shape}; "
                "labels have the logits' shape without the axis of classes"
            )
        places, none_ignored = self._classes(name, labels, self.shape[axis], ignore)
        return self._with(places, False), none_ignored

    def _labelled(
        self,
        name: str,
        target: TensorBase,
        places: TensorBase,
        weight: TensorBase | None,
        ignore: int | None,
        reduction: str,
        smoothing: float,
    ) -> Self:
        """The loss of log-probabilities and integer labels, which ``places`` holds checked."""
        logs = self.node
        axis = self._class_axis(name)
        classes = logs.shape[axis]
        hit = chosen(places.node, logs, axis)
        zero = build.const_like(logs, 0)
        picked = total(build.where(hit, logs, zero), (axis,))
        factors = None
        if weight is not None:
            factors = _class_weights(name, weight, logs, axis)
            per_label = total(build.where(hit, factors, zero), (axis,))
            picked = build.mul(picked, per_label)
        loss = build.neg(picked)
        if smoothing:
            weighted = logs if factors is None else build.mul(logs, factors)
            spread_out = build.neg(total(weighted, (axis,)))
            loss = build.add(
                build.mul(loss, build.const_like(loss, 1.0 - smoothing)),
                build.mul(spread_out, build.const_like(loss, smoothing / classes)),
            )
        share = build.const_like(loss, 1) if weight is None else per_label
        if ignore is not None:
            labels = build.cast(target.node, default_int(self.device))
            ignored = build.eq(labels, build.const_like(labels, ignore))
            nothing = build.const_like(loss, 0)
            loss = build.where(ignored, nothing, loss)
            share = build.where(ignored, nothing, share)
        return self._weighted_mean(name, loss, share, reduction)

    def _classes(
        self, name: str, labels: TensorBase, classes: int, ignore: int | None
    ) -> tuple[Node, bool]:
        """Labels that are known to lie in [0, classes), or are checked when they are computed; and
        whether it is known that none is to be ignored. A negative label is made too large on
        purpose: unlike an index it does not count from the end.
        """
        node = build.cast(labels.node, default_int(self.device))
        known = known_values(labels.node, self.device)
        if known is None:
            negative = build.lt(node, build.const_like(node, 0))
            odd = build.where(negative, build.const_like(node, classes), node)
            if ignore is not None:
                ignored = build.eq(node, build.const_like(node, ignore))
                odd = build.where(ignored, build.const_like(node, 0), odd)
            return build.check(odd, classes, caller()), ignore is None
        inside = bool(known.size) and known.min() >= 0 and known.max() < classes
        if inside and (ignore is None or not 0 <= ignore < classes):
            return node, True
        wrong = known[((known < 0) | (known >= classes)) & (known != ignore)]
        if wrong.size:
            raise IndexRangeError(
                f"{name}: label {wrong.flat[0]} is none of {classes} classes; labels run from 0 to "
                f"{classes - 1}"
            )
        return node, False

    def _soft(
        self, target: TensorBase, weight: TensorBase | None, reduction: str, smoothing: float
    ) -> Self:
        """The loss of log-probabilities and wanted probabilities, the mean being over samples."""
        logs = self.node
        axis = self._class_axis("cross_entropy")
        if target.shape != logs.shape:
            raise ShapeError(
                f"cross_entropy: logits of shape {logs.shape} do not fit probabilities of shape "
                f"{target.shape}; give probabilities of the same shape, or integer labels"
            )
        wanted = build.cast(target.node, logs.dtype)
        if smoothing:
            wanted = build.add(
                build.mul(wanted, build.const_like(wanted, 1.0 - smoothing)),
                build.const_like(wanted, smoothing / logs.shape[axis]),
            )
        if weight is not None:
            wanted = build.mul(wanted, _class_weights("cross_entropy", weight, logs, axis))
        zero = build.const_like(logs, 0)
        terms = build.where(build.eq(wanted, zero), zero, build.mul(wanted, logs))
        loss = self._make(build.neg(total(terms, (axis,))), target)
        return _reduced("cross_entropy", loss, reduction)

    def _weighted_mean(self, name: str, loss: Node, share: Node, reduction: str) -> Self:
        if reduction != "mean":
            return _reduced(name, self._make(loss), reduction)
        axes = tuple(range(len(loss.shape)))
        if share.op is ops.CONST:  # every label counts once
            share = build.const(math.prod(share.shape), share.dtype)
        else:
            share = total(share, axes)
        return self._make(build.div(total(loss, axes), share))

    @composed
    def binary_cross_entropy(
        self, target: Any, weight: Any = None, reduction: str = "mean"
    ) -> Self:
        """Cross entropy of probabilities and wanted probabilities, elementwise.

        Logarithms are kept at -100 or above, as in PyTorch. Raises ShapeError unless both shapes
        are equal.

        >>> Tensor([0.5]).binary_cross_entropy(Tensor([1.0])).item()
        0.6931471824645996
        """
        wanted = self._same_shape("binary_cross_entropy", target)
        x = self.float_at_least()
        found, missed = x.log().clamp(min=-100.0), (1 - x).log().clamp(min=-100.0)
        loss = -(wanted * found + (1 - wanted) * missed)
        if weight is not None:
            loss = loss * weight
        return _reduced("binary_cross_entropy", loss, reduction).cast(self.dtype)

    @composed
    def binary_cross_entropy_with_logits(
        self, target: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None
    ) -> Self:
        """:meth:`binary_cross_entropy` of ``sigmoid(self)``, without overflow or loss of digits.

        Raises ShapeError unless both shapes are equal.

        >>> Tensor([1000.0, -1000.0]).binary_cross_entropy_with_logits(Tensor([1.0, 0.0])).item()
        0.0
        """
        wanted = self._same_shape("binary_cross_entropy_with_logits", target)
        x = self.float_at_least()
        # log(1 + exp(-x)) = max(-x, 0) + log1p(exp(-|x|)); ties in max share the gradient, so
        # that the derivative at 0 is sigmoid(0) - target.
        below = (-x).maximum(x * 0) + (-x.abs()).exp().log1p()
        if pos_weight is None:
            loss = (1 - wanted) * x + below
        else:
            loss = (1 - wanted) * x + ((pos_weight - 1) * wanted + 1) * below
        if weight is not None:
            loss = loss * weight
        return _reduced("binary_cross_entropy_with_logits", loss, reduction).cast(self.dtype)

    # ---- regression ----------------------------------------------------------------------------

    @composed
    def mse_loss(self, target: Any, reduction: str = "mean") -> Self:
        """(x - target)**2. Raises ShapeError unless both shapes are equal.

        >>> Tensor([1.0, 3.0]).mse_loss(Tensor([1.0, 1.0])).item()
        2.0
        """
        difference = self - self._same_shape("mse_loss", target)
        return _reduced("mse_loss", difference * difference, reduction)

    @composed
    def l1_loss(self, target: Any, reduction: str = "mean") -> Self:
        """abs(x - target). Raises ShapeError unless both shapes are equal.

        >>> Tensor([1.0, 3.0]).l1_loss(Tensor([1.0, 1.0])).item()
        1.0
        """
        difference = self - self._same_shape("l1_loss", target)
        return _reduced("l1_loss", difference.abs(), reduction)

    @composed
    def huber_loss(self, target: Any, reduction: str = "mean", delta: float = 1.0) -> Self:
        """d**2/2 up to abs(d) = ``delta``, then the line that goes on from there.

        >>> Tensor([0.0, 3.0]).huber_loss(Tensor([1.0, 1.0]), reduction="none").tolist()
        [0.5, 1.5]
        """
        if not delta > 0:
            raise CoregradError(f"huber_loss: delta is {delta}; it must be above 0")
        size = (self - self._same_shape("huber_loss", target)).abs()
        loss = (size * size * 0.5).where(size < delta, (size - 0.5 * delta) * delta)
        return _reduced("huber_loss", loss, reduction)

    @composed
    def smooth_l1_loss(self, target: Any, reduction: str = "mean", beta: float = 1.0) -> Self:
        """:meth:`huber_loss` divided by ``beta``; :meth:`l1_loss` for beta 0.

        >>> Tensor([0.0, 3.0]).smooth_l1_loss(Tensor([1.0, 1.0]), reduction="none").tolist()
        [0.5, 1.5]
        """
        if beta == 0:
            return self.l1_loss(target, reduction)
        size = (self - self._same_shape("smooth_l1_loss", target)).abs()
        loss = (size * size * (0.5 / beta)).where(size < beta, size - 0.5 * beta)
        return _reduced("smooth_l1_loss", loss, reduction)

    @composed
    def kl_div(self, target: Any, reduction: str = "mean", log_target: bool = False) -> Self:
        """target * (log(target) - x) of log-probabilities x; 0 where the target is 0.

        ``reduction`` may also be "batchmean": the sum divided by the size of axis 0.

        >>> Tensor([0.0]).kl_div(Tensor([1.0])).item()
        0.0
        """
        wanted = self._same_shape("kl_div", target)
        if log_target:
            loss = wanted.exp() * (wanted - self)
        else:
            absent = wanted.eq(0)
            logs = wanted.masked_fill(absent, 1.0).log()
            loss = (wanted * (logs - self)).masked_fill(absent, 0.0)
        if reduction == "batchmean":
            return loss.sum() / self.shape[0]
        return _reduced("kl_div", loss, reduction)

    def float_at_least(self) -> Self:
        """This tensor in the dtype its sums run in: float32 for float16 and bfloat16.

        >>> Tensor([1.0]).half().float_at_least().dtype
        coregrad.float32
        """
        return self._make(wide(self.node))

    def _same_shape(self, name: str, target: Any) -> Self:
        """The target as a tensor; predictions and targets that broadcast are a mistake."""
        wanted: Any = self._target(target)
        if wanted.shape != self.shape:
            raise ShapeError(
                f"{name}: predictions of shape {self.shape} and targets of shape {wanted.shape} "
                "differ; reshape one of them"
            )
        return wanted  # type: ignore[no-any-return]


# ---- small pieces ------------------------------------------------------------------------------


def _reduced(name: str, loss: L, reduction: str) -> L:
    if reduction == "mean":
        return loss.mean()
    if reduction == "sum":
        return loss.sum()
    if reduction == "none":
        return loss
    raise CoregradError(f"{name}: reduction {reduction!r} is neither 'mean', 'sum' nor 'none'")


def _class_weights(name: str, weight: TensorBase, logs: Node, axis: int) -> Node:
    if weight.shape != (logs.shape[axis],):
        raise ShapeError(
            f"{name}: a weight of shape {weight.shape} does not fit {logs.shape[axis]} classes; "
            "give one number per class"
        )
    placed = tuple(n if a == axis else 1 for a, n in enumerate(logs.shape))
    node = build.cast(build.detach(weight.node), logs.dtype)
    return build.expand(build.reshape(node, placed), logs.shape)
