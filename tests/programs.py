"""Small graphs with a meaning, for the compiler's tests: softmax, matmul, convolution ..."""

from __future__ import annotations

from collections.abc import Sequence

from coregrad import dtypes
from coregrad.dtypes import DType
from coregrad.ir import build
from coregrad.ir.graph import Node


class Name:
    """A storage that stands for nothing but itself."""

    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return self.name


def source(name: str, *shape: int, dtype: DType = dtypes.float32) -> Node:
    return build.buffer(Name(name), dtype, shape)


def spread(x: Node, shape: Sequence[int], axes: Sequence[int]) -> Node:
    """``x`` along the given new axes of ``shape``."""
    shape = tuple(shape)
    return build.expand(
        build.reshape(x, tuple(1 if a in axes else n for a, n in enumerate(shape))), shape
    )


def softmax(x: Node) -> Node:
    last = len(x.shape) - 1
    largest = spread(build.reduce("max", x, (last,)), x.shape, (last,))
    powers = build.exp(build.sub(x, largest))
    return build.div(powers, spread(build.reduce("add", powers, (last,)), x.shape, (last,)))


def layer_norm(x: Node) -> Node:
    rows, columns = x.shape
    share = build.const(1 / columns, x.dtype, (rows,))
    mean = build.mul(build.reduce("add", x, (1,)), share)
    centred = build.sub(x, spread(mean, x.shape, (1,)))
    variance = build.mul(build.reduce("add", build.mul(centred, centred), (1,)), share)
    deviation = build.sqrt(build.add(variance, build.const(1e-5, x.dtype, (rows,))))
    return build.div(centred, spread(deviation, x.shape, (1,)))


def matmul(a: Node, b: Node) -> Node:
    """The product of matrices, or of batches of them."""
    (*batch, m, k), n = a.shape, b.shape[-1]
    shape = (*batch, m, k, n)
    left = build.expand(build.reshape(a, (*batch, m, k, 1)), shape)
    right = build.expand(build.reshape(b, (*batch, 1, k, n)), shape)
    return build.reduce("add", build.mul(left, right), (len(batch) + 1,))


def convolution(x: Node, w: Node, padding: int = 0, stride: int = 1) -> Node:
    widths = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    high = build.window(build.pad(x, widths), 2, w.shape[2], stride)
    taps = build.window(high, 3, w.shape[3], stride)
    n, c, h, v = taps.shape[:4]
    whole = (n, w.shape[0], c, h, v, *w.shape[2:])
    left = spread(taps, whole, (1,))
    right = spread(w, whole, (0, 3, 4))
    return build.reduce("add", build.mul(left, right), (2, 5, 6))


def relu(x: Node) -> Node:
    return build.maximum(x, build.const_like(x, 0))
