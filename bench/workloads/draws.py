"""Random numbers. Every library draws others: what is compared are their moments."""

from typing import Any

import numpy as np
from libraries import Library
from workload import Array, operation

SHAPE = (2048, 2048)


def moments(values: Array) -> Array:
    """Mean, spread and tails, to the three digits that four million draws determine."""
    return np.array([values.mean(), values.std(), np.quantile(values, 0.1), np.median(values)])


DRAWN = {"view": moments, "rtol": 0.0, "atol": 5e-3, "bytes": 4.0 * 2048 * 2048}


def drawn(kind: str) -> Any:
    return lambda lib, _: getattr(lib.module, kind)(*SHAPE)


def by_method(kind: str) -> Any:
    return lambda lib, _: getattr(lib.module.Tensor, kind)(*SHAPE)


for kind, about in (("rand", "uniform"), ("randn", "normal")):
    operation(
        f"{about}_2048",
        f"{about} numbers, 2048 x 2048",
        [(1,)],
        by_method(kind),
        torch=drawn(kind),
        **DRAWN,
    )


def dropped(_: Library, x: Any) -> Any:
    return x.dropout(0.5)


def tinygrad_dropped(lib: Library, x: Any) -> Any:
    with lib.module.Context(TRAINING=1):
        return x.dropout(0.5)


operation(
    "dropout_2048",
    "dropout by half, 2048 x 2048",
    [SHAPE],
    dropped,
    torch=lambda lib, x: lib.module.nn.functional.dropout(x, 0.5),
    tinygrad=tinygrad_dropped,
    view=moments,
    rtol=0.0,
    atol=5e-3,
)
