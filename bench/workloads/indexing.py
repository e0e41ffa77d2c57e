"""Rows and elements by index: looked up, added up, and running sums."""

from typing import Any

import numpy as np
from libraries import Library
from workload import Array, operation

WORDS, WIDTH, TOKENS = 50257, 768, 4096


def table(rng: np.random.Generator) -> list[Array]:
    return [rng.standard_normal((WORDS, WIDTH), np.float32), rng.integers(0, WORDS, TOKENS)]


def table_and_gradient(rng: np.random.Generator) -> list[Array]:
    return [*table(rng), rng.standard_normal((TOKENS, WIDTH), np.float32)]


def embedded(_: Library, w: Any, i: Any) -> Any:
    return i.embedding(w)


def torch_embedded(lib: Library, w: Any, i: Any) -> Any:
    return lib.module.nn.functional.embedding(i, w)


def gradient(look_up: Any) -> Any:
    return lambda lib, w, i, g: lib.gradients((look_up(lib, w, i) * g).sum(), [w])


operation(
    "embedding",
    f"{TOKENS} rows of {WORDS} x {WIDTH}",
    [],
    embedded,
    make=table,
    torch=torch_embedded,
    tinygrad=lambda _, w, i: w[i],
    targets={"torch": 0.5},
    bytes=2.0 * TOKENS * WIDTH * 4,
    cold=True,  # rows here and there in 154 MB
)
operation(
    "embedding_gradient",
    f"{TOKENS} rows of {WORDS} x {WIDTH} and the gradient of the table",
    [],
    gradient(embedded),
    make=table_and_gradient,
    leaves=1,
    torch=gradient(torch_embedded),
    tinygrad=gradient(lambda _, w, i: w[i]),
    targets={"torch": 0.5},
    bytes=(2.0 * TOKENS + WORDS) * WIDTH * 4,
    slow={"tinygrad": 200.0},
)


def rows(rng: np.random.Generator) -> list[Array]:
    return [rng.standard_normal((1000, 1000), np.float32), rng.integers(0, 1000, 1000)]


def places(rng: np.random.Generator) -> list[Array]:
    return [rng.standard_normal((1000, 1000), np.float32), rng.integers(0, 1000, (1000, 1000))]


operation(
    "gather_rows",
    "1000 rows of 1000 x 1000",
    [],
    lambda _, x, i: x[i],
    make=rows,
    targets={"torch": 0.5},
)
operation(
    "gather_axis1",
    "gather along axis 1, 1000 x 1000",
    [],
    lambda _, x, i: x.gather(1, i),
    make=places,
)


def summands(rng: np.random.Generator) -> list[Array]:
    return [
        np.zeros((10000, 64), np.float32),
        rng.integers(0, 10000, (100000, 64)),
        rng.standard_normal((100000, 64), np.float32),
    ]


operation(
    "scatter_add",
    "6.4 million numbers added into 10,000 x 64",
    [],
    lambda _, x, i, y: x.scatter_add(0, i, y),
    make=summands,
    tinygrad=lambda _, x, i, y: x.scatter_reduce(0, i, y, "sum"),
    atol=1e-3,
    without={"tinygrad": "its one-hot sum would take 10,000 times the memory of the result"},
)
operation(
    "cumsum_1024",
    "running sums of rows, 1024 x 1024",
    [(1024, 1024)],
    lambda _, x: x.cumsum(1),
    targets={"torch": 0.5},
    rtol=1e-3,
    atol=1e-3,
)
