"""Convolutions and pooling, forwards and with all gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from libraries import Library
from workload import Array, operation

SHAPES = {  # name -> images, weights, padding
    "conv_1x32_k5": ((64, 1, 28, 28), (32, 1, 5, 5), 0),
    "conv_32x32_k5": ((64, 32, 24, 24), (32, 32, 5, 5), 0),
    "conv_64x64_k3": ((32, 64, 56, 56), (64, 64, 3, 3), 1),
}
ALONE = "a convolution alone has nothing that compiling could fuse"


def forward(padding: int) -> Callable[..., Any]:
    return lambda _, x, w, b: x.conv2d(w, b, padding=padding)


def torch_forward(padding: int) -> Callable[..., Any]:
    return lambda lib, x, w, b: lib.module.nn.functional.conv2d(x, w, b, padding=padding)


def with_gradients(run: Callable[..., Any]) -> Callable[..., Any]:
    def compute(lib: Library, x: Any, w: Any, b: Any, g: Any) -> Any:
        return lib.gradients((run(lib, x, w, b) * g).sum(), [x, w, b])

    return compute


def torch_gradients(padding: int) -> Callable[..., Any]:
    def compute(lib: Library, x: Any, w: Any, b: Any, g: Any) -> Any:
        made = torch_forward(padding)(lib, x, w, b)
        return lib.module.autograd.grad(made, [x, w, b], g)

    return compute


def inputs(x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...] | None) -> Any:
    def make(rng: np.random.Generator) -> list[Array]:
        scale = np.float32(1 / math.sqrt(math.prod(w[1:])))
        arrays = [rng.standard_normal(s, np.float32) for s in (x, w, (w[0],))]
        arrays[1] *= scale
        return arrays if y is None else [*arrays, rng.standard_normal(y, np.float32)]

    return make


for name, (x, w, padding) in SHAPES.items():
    side = x[2] + 2 * padding - w[2] + 1
    y = (x[0], w[0], side, side)
    flops = 2.0 * math.prod(y) * math.prod(w[1:])
    what = f"{w[2]} x {w[3]} convolution, {x[0]} images of {x[1]} x {x[2]} x {x[3]} to {w[0]}"
    operation(
        f"{name}_forward",
        what,
        [],
        forward(padding),
        make=inputs(x, w, None),
        torch=torch_forward(padding),
        targets={"torch": 1.0},
        flops=flops,
        rtol=1e-3,
        atol=1e-3,
        without={"torch-compile": ALONE},
    )
    operation(
        f"{name}_gradients",
        f"{what}, with the gradients of images, weights and bias",
        [],
        with_gradients(forward(padding)),
        make=inputs(x, w, y),
        torch=torch_gradients(padding),
        leaves=3,
        targets={"torch": 1.0},
        flops=3 * flops,
        rtol=1e-3,
        atol=3e-2,  # a weight's gradient is a sum of up to 100,000 products
        without={"torch-compile": ALONE},
        slow={"tinygrad": 12.0},
    )

PLANES = (64, 32, 48, 48)
operation(
    "max_pool",
    "the largest of 2 x 2, 64 x 32 x 48 x 48",
    [PLANES],
    lambda _, x: x.max_pool2d(2),
    torch=lambda lib, x: lib.module.nn.functional.max_pool2d(x, 2),
    tinygrad=lambda _, x: x.max_pool2d((2, 2)),
)
operation(
    "avg_pool",
    "the mean of 3 x 3 with stride 2 and padding 1, 64 x 32 x 48 x 48",
    [PLANES],
    lambda _, x: x.avg_pool2d(3, 2, 1),
    torch=lambda lib, x: lib.module.nn.functional.avg_pool2d(x, 3, 2, 1),
    tinygrad=lambda _, x: x.avg_pool2d((3, 3), 2, padding=1),
)
operation(
    "max_pool_gradient",
    "the largest of 2 x 2 and the gradient, 64 x 32 x 48 x 48",
    [PLANES, (64, 32, 24, 24)],
    lambda lib, x, g: lib.gradients((x.max_pool2d(2) * g).sum(), [x]),
    leaves=1,
    torch=lambda lib, x, g: lib.module.autograd.grad(
        lib.module.nn.functional.max_pool2d(x, 2), [x], g
    ),
    tinygrad=lambda lib, x, g: lib.gradients((x.max_pool2d((2, 2)) * g).sum(), [x]),
)
