"""Sums along every axis, extremes, softmax, normalisation and the loss of a classifier."""

from typing import Any

import numpy as np
from libraries import Library
from workload import operation

ROWS = (4096, 1024)

operation(
    "sum_all_4096",
    "sum of all, 4096 x 4096",
    [(4096, 4096)],
    lambda _, x: x.sum(),
    atol=0.5,  # of 16.8 million normal numbers, whose sum is of the order of 4096
)
operation(
    "sum_all",
    "sum of all, 4096 x 1024",
    [ROWS],
    lambda _, x: x.sum(),
    atol=0.2,
)
operation(
    "sum_axis0",
    "sum over axis 0, 4096 x 1024",
    [ROWS],
    lambda _, x: x.sum(0),
    targets={"torch": 0.4},
    atol=1e-3,
)
operation(
    "sum_axis1",
    "sum over axis 1, 4096 x 1024",
    [ROWS],
    lambda _, x: x.sum(1),
    atol=1e-3,
)
operation(
    "sum_middle",
    "sum over axis 1 of 64 x 128 x 512",
    [(64, 128, 512)],
    lambda _, x: x.sum(1),
    atol=1e-3,
)
operation(
    "sum_outer",
    "sum over axes 0 and 2 of 64 x 128 x 512",
    [(64, 128, 512)],
    lambda _, x: x.sum((0, 2)),
    atol=5e-2,
)
operation(
    "mean_axis1",
    "mean over axis 1, 4096 x 1024",
    [ROWS],
    lambda _, x: x.mean(1),
)
operation(
    "max_all",
    "largest of all, 4096 x 1024",
    [ROWS],
    lambda _, x: x.max(),
)
operation(
    "max_axis0",
    "largest of each column, 4096 x 1024",
    [ROWS],
    lambda _, x: x.amax(0),
    tinygrad=lambda _, x: x.max(0),
)
operation(
    "max_axis1",
    "largest of each row, 4096 x 1024",
    [ROWS],
    lambda _, x: x.amax(1),
    tinygrad=lambda _, x: x.max(1),
)
operation(
    "argmax_axis0",
    "place of the largest of each column, 4096 x 1024",
    [ROWS],
    lambda _, x: x.argmax(0),
)
operation(
    "argmax_axis1",
    "place of the largest of each row, 4096 x 1024",
    [ROWS],
    lambda _, x: x.argmax(1),
    targets={"torch": 0.2},
)
operation(
    "var_axis0",
    "variance of each column, 4096 x 1024",
    [ROWS],
    lambda _, x: x.var(0),
)
operation(
    "var_axis1",
    "variance of each row, 4096 x 1024",
    [ROWS],
    lambda _, x: x.var(1),
    targets={"torch": 0.1},
)
operation(
    "softmax_1024",
    "softmax over rows, 1024 x 1024",
    [(1024, 1024)],
    lambda _, x: x.softmax(-1),
    targets={"torch": 0.6},
)
operation(
    "log_softmax_1024",
    "log_softmax over rows, 1024 x 1024",
    [(1024, 1024)],
    lambda _, x: x.log_softmax(-1),
)
operation(
    "logsumexp",
    "logsumexp over rows, 4096 x 1024",
    [ROWS],
    lambda _, x: x.logsumexp(1),
    targets={"torch": 0.3},
)
operation(
    "layer_norm",
    "layer norm over rows with weight and bias, 4096 x 1024",
    [ROWS, (1024,), (1024,)],
    lambda _, x, w, b: x.layer_norm(1024, w, b),
    torch=lambda lib, x, w, b: lib.module.nn.functional.layer_norm(x, (1024,), w, b),
    tinygrad=lambda _, x, w, b: x.layernorm(eps=1e-5) * w + b,
    targets={"torch": 0.55},
)


def classes(rng: np.random.Generator) -> list[Any]:
    return [rng.standard_normal((1024, 1000), np.float32), rng.integers(0, 1000, 1024)]


def loss(lib: Library, x: Any, y: Any) -> Any:
    value = x.cross_entropy(y)
    return value, *lib.gradients(value, [x])


def torch_loss(lib: Library, x: Any, y: Any) -> Any:
    value = lib.module.nn.functional.cross_entropy(x, y)
    return value, *lib.gradients(value, [x])


def tinygrad_loss(lib: Library, x: Any, y: Any) -> Any:
    value = x.sparse_categorical_crossentropy(y)
    return value, *lib.gradients(value, [x])


operation(
    "cross_entropy",
    "loss of 1024 samples of 1000 classes, and its gradient",
    [],
    loss,
    make=classes,
    leaves=1,
    torch=torch_loss,
    tinygrad=tinygrad_loss,
    targets={"torch": 0.25},
)
