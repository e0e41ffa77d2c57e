"""Gradients through the device: of float32 programs against differences of float64 ones in NumPy.

A gradient is a program like any other; what it adds is the work of windows, scatters and masks
that run backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import coregrad as cg
from coregrad import Tensor
from coregrad_conformance import tables
from coregrad_conformance.row import Failure, Outcome, Row
from coregrad_conformance.suite.programs import near

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coregrad_conformance.target import Target

GROUP = "gradients"
STEP = 1e-5  # of the central differences, whose own error is then about 1e-9
NEAR = 2e-4  # of the largest slope
PLACES = np.array([2, 0, 2, 1])


@dataclass(frozen=True)
class Case:
    """A function of some arrays, written for tensors and for NumPy."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    ours: Callable[..., Tensor]
    reference: Callable[..., NDArray[Any]]
    positive: bool = False  # the arguments lie in 0.5 .. 2


def _softmax(x: NDArray[Any]) -> NDArray[Any]:
    powers = np.exp(x - x.max(-1, keepdims=True))
    shares: NDArray[Any] = powers / powers.sum(-1, keepdims=True)
    return shares


def _normalised(x: NDArray[Any]) -> NDArray[Any]:
    centred = x - x.mean(-1, keepdims=True)
    scaled: NDArray[Any] = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled


def _convolved(x: NDArray[Any], w: NDArray[Any], stride: int = 1, pad: int = 0) -> NDArray[Any]:
    """(N, C, H, W) with (O, C, KH, KW), by its definition."""
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    views = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))
    result: NDArray[Any] = np.einsum("nchwij,ocij->nohw", views[:, :, ::stride, ::stride], w)
    return result


def _pooled(x: NDArray[Any]) -> NDArray[Any]:
    n, c, h, w = x.shape
    result: NDArray[Any] = x.reshape(n, c, h // 2, 2, w // 2, 2).max((3, 5))
    return result


def _cross_entropy(x: NDArray[Any]) -> NDArray[Any]:
    chosen = _softmax(x)[np.arange(4), PLACES]
    loss: NDArray[Any] = -np.log(chosen).mean(keepdims=True)
    return loss


def _places(x: Tensor) -> Tensor:
    return Tensor(PLACES, device=x.device)


CASES = (
    Case("add-broadcast", ((3, 4), (4,)), lambda a, b: a + b * 2, lambda a, b: a + b * 2),
    Case("mul", ((3, 4), (3, 1)), lambda a, b: a * b, lambda a, b: a * b),
    Case("div", ((3, 4), (3, 4)), lambda a, b: a / b, lambda a, b: a / b, True),
    Case("pow", ((5,), (5,)), lambda a, b: a**b, lambda a, b: a**b, True),
    Case("exp", ((7,),), lambda x: x.exp(), np.exp),
    Case("log", ((7,),), lambda x: x.log(), np.log, True),
    Case("sin-cos", ((7,),), lambda x: x.sin() * x.cos(), lambda x: np.sin(x) * np.cos(x)),
    Case("sqrt", ((7,),), lambda x: x.sqrt(), np.sqrt, True),
    Case("tanh", ((7,),), lambda x: x.tanh(), np.tanh),
    Case("sigmoid", ((7,),), lambda x: x.sigmoid(), lambda x: 1 / (1 + np.exp(-x))),
    Case("relu", ((17,),), lambda x: x.relu(), lambda x: np.maximum(x, 0)),
    Case("maximum", ((9,), (9,)), cg.maximum, np.maximum),
    Case("where", ((9,), (9,)), lambda a, b: cg.where(a < b, a * a, b),
         lambda a, b: np.where(a < b, a * a, b)),
    Case("matmul", ((5, 7), (7, 3)), lambda a, b: a @ b, lambda a, b: a @ b),
    Case("matmul-batched", ((2, 3, 4), (2, 4, 5)), lambda a, b: a @ b, lambda a, b: a @ b),
    Case("mean-variance", ((4, 9),), lambda x: x.var(-1, correction=0) + x.mean(-1),
         lambda x: x.var(-1) + x.mean(-1)),
    Case("amax", ((4, 9),), lambda x: x.amax(-1), lambda x: x.max(-1)),
    Case("prod", ((4, 5),), lambda x: x.prod(-1), lambda x: x.prod(-1), True),
    Case("cumsum", ((3, 11),), lambda x: x.cumsum(-1), lambda x: x.cumsum(-1)),
    Case("softmax", ((4, 9),), lambda x: x.softmax(-1), _softmax),
    Case("layer-norm", ((4, 16),), lambda x: x.layer_norm((16,)), _normalised),
    Case("movement", ((4, 6),), lambda x: x.T.flip(0).pad((1, 2)).reshape(-1)[3:40:2],
         lambda x: np.pad(np.flip(x.T, 0), ((0, 0), (1, 2))).reshape(-1)[3:40:2]),
    Case("cat-stack", ((3, 2), (4, 2)), lambda a, b: cg.cat([a, b, a]) * cg.cat([b, a, a]),
         lambda a, b: np.concatenate([a, b, a]) * np.concatenate([b, a, a])),
    Case("gather-rows", ((3, 5),), lambda x: x[_places(x)] * 2, lambda x: x[PLACES] * 2),
    Case("scatter-add", ((3, 2), (4, 2)), lambda a, b: a.index_add(0, _places(a), b * b),
         lambda a, b: _added(a, b * b)),
    Case("convolution", ((2, 3, 6, 6), (4, 3, 3, 3)), lambda x, w: x.conv2d(w), _convolved),
    Case("convolution-strided", ((1, 2, 7, 7), (3, 2, 3, 3)),
         lambda x, w: x.conv2d(w, stride=2, padding=1), lambda x, w: _convolved(x, w, 2, 1)),
    Case("max-pool", ((2, 2, 4, 6),), lambda x: x.max_pool2d(2), _pooled),
    Case("cross-entropy", ((4, 3),), lambda x: x.cross_entropy(_places(x)).reshape(1),
         _cross_entropy),
)  # fmt: skip


def _added(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    out = a.copy()
    np.add.at(out, PLACES, b)
    return out


def rows() -> Iterator[Row]:
    """The rows of this file."""
    for case in CASES:
        summary = f"Value and gradient of {case.name}."
        yield Row(f"gradients/{case.name}", "standard", GROUP, partial(_check, case),
                  summary=summary)  # fmt: skip
    second = "The gradient of a gradient."
    yield Row("gradients/second-order", "standard", GROUP, _second, summary=second)


def _check(case: Case, target: Target) -> Outcome:
    rng = tables.generator(f"gradients/{case.name}")
    if case.positive:
        arrays = [rng.uniform(0.5, 2.0, shape) for shape in case.shapes]
    else:
        arrays = [rng.standard_normal(shape) for shape in case.shapes]
    arrays = [a.astype(np.float32).astype(np.float64) for a in arrays]
    want = case.reference(*arrays)
    weights = rng.standard_normal(want.shape).astype(np.float32).astype(np.float64)
    slopes = differences(case.reference, arrays, weights)
    return Outcome(_compare(case, arrays, want, weights, slopes, target.name))


def _compare(
    case: Case,
    arrays: Sequence[NDArray[Any]],
    want: NDArray[Any],
    weights: NDArray[Any],
    slopes: Sequence[NDArray[Any]],
    device: str,
) -> int:
    tensors = [Tensor(a.astype(np.float32), device=device, requires_grad=True) for a in arrays]
    result = case.ours(*tensors)
    compared = near(np.asarray(result.numpy()), want, f"{case.name}: value", NEAR)
    result.backward(Tensor(weights.astype(np.float32), device=device))
    for number, (tensor, slope) in enumerate(zip(tensors, slopes, strict=True)):
        if tensor.grad is None:
            raise Failure(f"{case.name}: argument {number} has no gradient")
        got = np.asarray(tensor.grad.numpy())
        compared += near(got, slope, f"{case.name}: gradient of argument {number}", NEAR)
    return compared


def differences(
    function: Callable[..., NDArray[Any]],
    arrays: Sequence[NDArray[Any]],
    weights: NDArray[Any],
) -> list[NDArray[Any]]:
    """d sum(weights * function(*arrays)) / d array for each array, by central differences."""
    points = [np.array(a, np.float64) for a in arrays]
    found = []
    for point in points:
        slopes = np.zeros_like(point)
        for place in np.ndindex(point.shape):
            middle = point[place]
            ends = []
            for offset in (STEP, -STEP):
                point[place] = middle + offset
                ends.append(float(np.sum(weights * function(*points))))
            point[place] = middle
            slopes[place] = (ends[0] - ends[1]) / (2 * STEP)
        found.append(slopes)
    return found


def _second(target: Target) -> Outcome:
    """Of sin(x) * x**2: both derivatives are known."""
    x = np.linspace(-2, 2, 17)
    tensor = Tensor(x.astype(np.float32), device=target.name, requires_grad=True)
    exact = x.astype(np.float32).astype(np.float64)
    value = (tensor.sin() * tensor * tensor).sum()
    (first,) = cg.grad(value, [tensor], create_graph=True)
    (second,) = cg.grad(first.sum(), [tensor])
    sine, cosine = np.sin(exact), np.cos(exact)
    want = [cosine * exact**2 + 2 * exact * sine, 4 * exact * cosine + (2 - exact**2) * sine]
    results = zip((first, second), want, strict=True)
    return Outcome(sum(near(np.asarray(g.numpy()), w, "derivative", NEAR) for g, w in results))
