"""Order: whole sorts, places, and the few largest."""

from typing import Any

import numpy as np
from workload import operation

MILLION = 1 << 20


def distinct(*shape: int) -> Any:
    """Different numbers in random order: there is one right answer for the places."""
    return lambda rng: [
        np.stack([rng.permutation(shape[-1]) for _ in range(shape[0])])
        .astype(np.float32)
        .reshape(shape)
        / np.float32(shape[-1])
    ]


def sorted_pair(_: Any, x: Any) -> Any:
    """(values, places) along the last axis."""
    return tuple(x.sort(-1))


operation(
    "sort_1024",
    "sort of rows, values and places, 1024 x 1024",
    [(1024, 1024)],
    sorted_pair,
    targets={"torch": 0.7},
    bytes=0.0,
    make=distinct(1024, 1024),
)
operation(
    "argsort_1024",
    "argsort of rows, 1024 x 1024",
    [(1024, 1024)],
    lambda _, x: x.argsort(-1),
    targets={"torch": 0.7},
    bytes=0.0,
    make=distinct(1024, 1024),
)
operation(
    "sort_1M",
    "sort of a vector, values and places, 1,048,576 elements",
    [(1, MILLION)],
    sorted_pair,
    targets={"torch": 0.7},
    bytes=0.0,
    make=distinct(1, MILLION),
)
operation(
    "topk10_1024",
    "the ten largest of each row, 1024 x 1024",
    [(1024, 1024)],
    lambda _, x: tuple(x.topk(10, -1)),
    targets={"torch": 1.0},
    make=distinct(1024, 1024),
)
