"""Small training runs, step by step against float64 NumPy that does its own calculus.

Starting weights and data are made in NumPy, so that the two runs begin alike; a loss that drifts
by more than a thousandth at any step fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import coregrad as cg
from coregrad import Tensor, nn
from coregrad_conformance import tables
from coregrad_conformance.row import Failure, Outcome, Row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coregrad_conformance.target import Target

    Arrays = list[NDArray[Any]]
    Loss = Callable[[list[Tensor]], Tensor]
    Exact = Callable[[Arrays], tuple[float, Arrays]]

GROUP = "training"
DRIFT = 1e-3
FIRST = 1e-5  # nothing has accumulated yet at the first step


def rows() -> Iterator[Row]:
    """The rows of this file."""
    for name, run, summary in (
        ("linear-regression", _linear, "Least squares by gradient descent."),
        ("two-layers", _two_layers, "Two layers with tanh on two spirals, with momentum."),
        ("convolution", _convolution, "Convolution, ReLU, mean and cross-entropy."),
        ("adam", _adam, "Adam on the two layers."),
        ("same-seed", _same_seed, "The same seed gives the same first loss, bit for bit."),
    ):
        yield Row(f"training/{name}", "standard", GROUP, run, summary=summary)


# ---- runs --------------------------------------------------------------------------------------


def _train(
    target: Target,
    start: Arrays,
    loss: Loss,
    exact: Exact,
    optimiser: Callable[[list[Tensor]], Any],
    update: Callable[[Arrays, Arrays], Arrays],
    steps: int,
) -> Outcome:
    tensors = [Tensor(p.astype(np.float32), device=target.name, requires_grad=True) for p in start]
    weights = [p.astype(np.float32).astype(np.float64) for p in start]
    opt = optimiser(tensors)
    first = 0.0
    for step in range(steps):
        opt.zero_grad()
        got = loss(tensors)
        got.backward()
        want, slopes = exact(weights)
        _close(got.item(), want, DRIFT if step else FIRST, f"loss of step {step}")
        first = first or want
        opt.step()
        weights = update(weights, slopes)
    if want > 0.7 * first:
        raise AssertionError(f"this run does not train: {first} to {want}")
    compared = steps + sum(_same(t, w) for t, w in zip(tensors, weights, strict=True))
    return Outcome(compared, detail=f"loss {first:.4f} to {want:.4f}")


def _close(got: float, want: float, tolerance: float, what: str) -> None:
    if not abs(got - want) <= tolerance * abs(want):
        raise Failure(f"{what} is {got!r}, expected {want!r}")


def _same(tensor: Tensor, want: NDArray[Any]) -> int:
    got = np.asarray(tensor.numpy())
    off = np.abs(got - want).max()
    if not off <= DRIFT * max(1.0, np.abs(want).max()):
        raise Failure(f"a trained weight of shape {got.shape} is off by {off:.2e}")
    return got.size


def _descent(rate: float) -> Callable[[Arrays, Arrays], Arrays]:
    return lambda weights, slopes: [w - rate * g for w, g in zip(weights, slopes, strict=True)]


class _Momentum:
    """v = 0.9*v + g; w = w - rate*v."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.velocities: Arrays = []

    def __call__(self, weights: Arrays, slopes: Arrays) -> Arrays:
        before = self.velocities or [np.zeros_like(g) for g in slopes]
        self.velocities = [0.9 * v + g for v, g in zip(before, slopes, strict=True)]
        return [w - self.rate * v for w, v in zip(weights, self.velocities, strict=True)]


class _Adam:
    """D. P. Kingma, J. Ba, "Adam: A Method for Stochastic Optimization", 2015, algorithm 1."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.steps = 0
        self.means: Arrays = []
        self.squares: Arrays = []

    def __call__(self, weights: Arrays, slopes: Arrays) -> Arrays:
        self.steps += 1
        means = self.means or [np.zeros_like(g) for g in slopes]
        squares = self.squares or [np.zeros_like(g) for g in slopes]
        self.means = [0.9 * m + 0.1 * g for m, g in zip(means, slopes, strict=True)]
        self.squares = [0.999 * v + 0.001 * g * g for v, g in zip(squares, slopes, strict=True)]
        first, second = 1 - 0.9**self.steps, 1 - 0.999**self.steps
        return [
            w - self.rate * (m / first) / (np.sqrt(v / second) + 1e-8)
            for w, m, v in zip(weights, self.means, self.squares, strict=True)
        ]


# ---- a line ------------------------------------------------------------------------------------


def _linear(target: Target) -> Outcome:
    rng = tables.generator("training/linear")
    x = rng.standard_normal((64, 5)).astype(np.float32)
    y = (x @ rng.standard_normal((5, 1)) + 0.1 * rng.standard_normal((64, 1))).astype(np.float32)
    inputs, labels = Tensor(x, device=target.name), Tensor(y, device=target.name)

    def loss(p: list[Tensor]) -> Tensor:
        return (inputs @ p[0] + p[1]).mse_loss(labels)

    def exact(p: Arrays) -> tuple[float, Arrays]:
        error = x @ p[0] + p[1] - y.astype(np.float64)
        scale = 2 / error.size
        return float(np.mean(error**2)), [scale * x.T @ error, scale * error.sum(0)]

    start = [np.zeros((5, 1)), np.zeros(1)]

    def optimiser(p: list[Tensor]) -> Any:
        return nn.optim.SGD(p, lr=0.1)

    return _train(target, start, loss, exact, optimiser, _descent(0.1), 25)


# ---- two layers --------------------------------------------------------------------------------


def _spirals(rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    turn = rng.uniform(0.5, 3.0, 96)
    label = np.arange(96) % 2
    angle = 2 * turn + np.pi * label
    points = np.stack([turn * np.cos(angle), turn * np.sin(angle)], 1)
    return points.astype(np.float32), label


def _log_softmax(z: NDArray[Any]) -> NDArray[Any]:
    z = z - z.max(1, keepdims=True)
    result: NDArray[Any] = z - np.log(np.exp(z).sum(1, keepdims=True))
    return result


def _classified(z: NDArray[Any], label: NDArray[Any]) -> tuple[float, NDArray[Any]]:
    """The mean cross-entropy and its slope."""
    logs = _log_softmax(z)
    n = len(label)
    slope = np.exp(logs)
    slope[np.arange(n), label] -= 1
    return float(-logs[np.arange(n), label].mean()), slope / n


class _Layers:
    """tanh(x @ a + b) @ c + d, cross-entropy; its loss on tensors, and loss and slopes in NumPy."""

    def __init__(self, target: Target) -> None:
        rng = tables.generator("training/two-layers")
        self.x, self.label = _spirals(rng)
        self.start = [rng.standard_normal((2, 16)), np.zeros(16),
                      rng.standard_normal((16, 2)) * 0.3, np.zeros(2)]  # fmt: skip
        self.inputs = Tensor(self.x, device=target.name)
        self.labels = Tensor(self.label, device=target.name)

    def loss(self, p: list[Tensor]) -> Tensor:
        return ((self.inputs @ p[0] + p[1]).tanh() @ p[2] + p[3]).cross_entropy(self.labels)

    def exact(self, p: Arrays) -> tuple[float, Arrays]:
        hidden = np.tanh(self.x @ p[0] + p[1])
        loss, slope = _classified(hidden @ p[2] + p[3], self.label)
        back = slope @ p[2].T * (1 - hidden**2)
        return loss, [self.x.T @ back, back.sum(0), hidden.T @ slope, slope.sum(0)]


def _two_layers(target: Target) -> Outcome:
    run = _Layers(target)

    def optimiser(p: list[Tensor]) -> Any:
        return nn.optim.SGD(p, lr=0.2, momentum=0.9)

    return _train(target, run.start, run.loss, run.exact, optimiser, _Momentum(0.2), 30)


def _adam(target: Target) -> Outcome:
    run = _Layers(target)

    def optimiser(p: list[Tensor]) -> Any:
        return nn.optim.Adam(p, lr=0.05)

    return _train(target, run.start, run.loss, run.exact, optimiser, _Adam(0.05), 30)


# ---- a convolution -----------------------------------------------------------------------------


def _convolution(target: Target) -> Outcome:
    """Bars that stand or lie, in noise."""
    rng = tables.generator("training/convolution")
    x, label = _bars(rng)
    inputs, labels = Tensor(x, device=target.name), Tensor(label, device=target.name)
    views = np.lib.stride_tricks.sliding_window_view(x[:, 0].astype(np.float64), (3, 3), (1, 2))
    patches = views.reshape(len(x), -1, 9)

    def loss(p: list[Tensor]) -> Tensor:
        features = inputs.conv2d(p[0], p[1]).relu().mean((2, 3))
        return (features @ p[2] + p[3]).cross_entropy(labels)

    def exact(p: Arrays) -> tuple[float, Arrays]:
        raised = patches @ p[0].reshape(6, 9).T + p[1]
        features = np.maximum(raised, 0).mean(1)
        value, slope = _classified(features @ p[2] + p[3], label)
        back = (raised > 0) * (slope @ p[2].T)[:, None] / raised.shape[1]
        kernel = np.einsum("npk,npo->ok", patches, back).reshape(6, 1, 3, 3)
        return value, [kernel, back.sum((0, 1)), features.T @ slope, slope.sum(0)]

    start = [rng.standard_normal((6, 1, 3, 3)) * 0.5, rng.standard_normal(6) * 0.1,
             rng.standard_normal((6, 2)), np.zeros(2)]  # fmt: skip

    def optimiser(p: list[Tensor]) -> Any:
        return nn.optim.SGD(p, lr=0.5)

    return _train(target, start, loss, exact, optimiser, _descent(0.5), 25)


def _bars(rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    label = np.arange(24) % 2
    x = rng.standard_normal((24, 1, 8, 8)) * 0.3
    for image, lying, place in zip(x[:, 0], label, rng.integers(1, 7, 24), strict=True):
        image[(place, slice(None)) if lying else (slice(None), place)] += 2
    return x.astype(np.float32), label


# ---- the library's own start -------------------------------------------------------------------


def _same_seed(target: Target) -> Outcome:
    """The first loss of a model that is made twice; and from its weights by NumPy."""
    rng = tables.generator("training/same-seed")
    x, label = rng.standard_normal((10, 7)).astype(np.float32), rng.integers(0, 3, 10)
    losses = [_first_loss(target, x, label) for _ in range(2)]
    (one, weights), (two, _) = losses
    if one != two:
        raise Failure(f"with the same seed the first loss was {one!r} and {two!r}")
    a, b, c, d = weights
    hidden = np.maximum(x @ a.T + b, 0)
    want, _ = _classified(hidden @ c.T + d, label)
    _close(one, want, FIRST, "the first loss")
    return Outcome(2, detail=f"first loss {one:.6f}")


def _first_loss(
    target: Target, x: NDArray[Any], label: NDArray[Any]
) -> tuple[float, Sequence[NDArray[Any]]]:
    cg.manual_seed(5)
    with cg.Device(target.name):
        model = nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 3))
        loss = model(Tensor(x)).cross_entropy(Tensor(label)).item()
        weights = [np.asarray(p.numpy(), np.float64) for p in model.parameters()]
    return loss, weights
