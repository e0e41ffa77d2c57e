"""Oracles in float64 NumPy: numerical gradients, and plain loops for windows. Nothing of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
STEP = 1e-5


def gradients(
    function: Callable[..., Array], arrays: Sequence[Array], weights: Array | None = None
) -> list[Array]:
    """d sum(weights * function(*arrays)) / d array, for each array, by central differences."""
    points = [np.array(a, np.float64) for a in arrays]
    scale = 1.0 if weights is None else weights

    def value() -> float:
        return float(np.sum(scale * function(*points)))

    out = []
    for point in points:
        slopes = np.zeros_like(point)
        for place in np.ndindex(point.shape):
            middle = point[place]
            point[place] = middle + STEP
            above = value()
            point[place] = middle - STEP
            below = value()
            point[place] = middle
            slopes[place] = (above - below) / (2 * STEP)
        out.append(slopes)
    return out


def check(
    ours: Callable[..., Any],
    reference: Callable[..., Array],
    *arrays: Array,
    tolerance: float = 2e-5,
    gradient_tolerance: float = 2e-4,
) -> None:
    """``ours`` on tensors against ``reference`` in float64: value, and gradient for every array."""
    from coregrad import Tensor

    tensors = [Tensor(a, requires_grad=True) for a in arrays]
    result = ours(*tensors)
    want = np.asarray(reference(*(np.array(a, np.float64) for a in arrays)))
    got = result.numpy()
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    weights = np.random.default_rng(0).standard_normal(want.shape)
    result.backward(Tensor(weights.astype(got.dtype)))
    for tensor, slopes in zip(tensors, gradients(reference, arrays, weights), strict=True):
        assert tensor.grad is not None
        np.testing.assert_allclose(
            tensor.grad.numpy(), slopes, rtol=gradient_tolerance, atol=gradient_tolerance
        )


# ---- windows -----------------------------------------------------------------------------------


def convolution(
    x: Array, w: Array, stride: Sequence[int], pads: Sequence[tuple[int, int]],
    dilation: Sequence[int], groups: int,
) -> Array:  # fmt: skip
    """(N, C, H, W) with (O, C/groups, KH, KW), element by element."""
    x = np.pad(x, [(0, 0), (0, 0), *pads])
    n, c, h, width = x.shape
    o, depth, kh, kw = w.shape
    out_h = (h - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    out_w = (width - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    out = np.zeros((n, o, out_h, out_w))
    for channel in range(o):
        first = channel // (o // groups) * depth
        part = x[:, first : first + depth]
        for i in range(kh):
            for j in range(kw):
                rows = np.arange(out_h) * stride[0] + i * dilation[0]
                columns = np.arange(out_w) * stride[1] + j * dilation[1]
                taken = part[:, :, rows][:, :, :, columns]
                out[:, channel] += np.einsum("nchw,c->nhw", taken, w[channel, :, i, j])
    assert c == depth * groups
    return out


def pool_counts(n: int, size: int, step: int, pad: int, gap: int, up: bool) -> int:
    """How many windows PyTorch's documentation says there are along an axis."""
    room = n + 2 * pad - gap * (size - 1) - 1
    count = (-(-room // step) if up else room // step) + 1
    if up and (count - 1) * step >= n + pad:
        count -= 1
    return count


def pooled(
    x: Array, size: Sequence[int], step: Sequence[int], pad: Sequence[int], gap: Sequence[int],
    up: bool, fold: Callable[[Array], float],
) -> Array:  # fmt: skip
    """``fold`` of the elements, without padding, of every window over the last two axes."""
    counts = [pool_counts(x.shape[2 + a], size[a], step[a], pad[a], gap[a], up) for a in (0, 1)]
    out = np.zeros((*x.shape[:2], *counts))
    for place in np.ndindex(out.shape):
        places = []
        for axis in (0, 1):
            start = place[2 + axis] * step[axis] - pad[axis]
            inside = [start + k * gap[axis] for k in range(size[axis])]
            places.append([p for p in inside if 0 <= p < x.shape[2 + axis]])
        out[place] = fold(x[place[0], place[1]][np.ix_(*places)])
    return out
