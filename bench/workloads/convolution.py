"""Convolution and its two gradients."""

from typing import Any

from libraries import Library
from workload import operation

X, W, Y = (64, 32, 24, 24), (32, 32, 5, 5), (64, 32, 20, 20)


def forward(_: Library, x: Any, w: Any) -> Any:
    return x.conv2d(w)


def torch_forward(lib: Library, x: Any, w: Any) -> Any:
    return lib.module.nn.functional.conv2d(x, w)


def backward(lib: Library, x: Any, w: Any, g: Any) -> Any:
    return lib.gradients((x.conv2d(w) * g).sum(), [x, w])


def torch_backward(lib: Library, x: Any, w: Any, g: Any) -> Any:
    return lib.gradients((torch_forward(lib, x, w) * g).sum(), [x, w])


operation(
    "conv_forward",
    "5 x 5 convolution, 64 images of 32 x 24 x 24 to 32 channels",
    [X, W],
    forward,
    torch=torch_forward,
    atol=1e-3,
)
operation(
    "conv_gradients",
    "its forward and both gradients",
    [X, W, Y],
    backward,
    leaves=2,
    torch=torch_backward,
    rtol=1e-3,
    atol=2e-2,  # a weight's gradient is a sum of 25,600 products
)
