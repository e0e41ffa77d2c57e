"""The same start for all libraries: numbers drawn by name and shape, in a fixed order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from libraries import Library
from workload import SEED, Array


def equal_start(library: Library, model: Any) -> Any:
    """Give the model the weights that a model of this shape has in every library; returns it.

    Matrices and more are uniform within 1/sqrt(inputs), as are the biases beside them; the vectors
    of norms stay at ones and zeros.
    """
    weights = drawn(library.shapes(model))
    return library.load(model, weights)


def drawn(shapes: dict[str, tuple[int, ...]]) -> dict[str, Array]:
    """Values for these names; the order in which they are listed does not matter."""
    made: dict[str, Array] = {}
    for name, shape in sorted(shapes.items()):
        owner = shapes.get(name.replace("bias", "weight"), shape)
        if len(owner) < 2:
            continue  # a norm
        bound = 1 / math.sqrt(math.prod(owner[1:]))
        # One generator per name: another library may have more or fewer names.
        rng = np.random.default_rng([SEED, *name.encode()])
        made[name] = rng.uniform(-bound, bound, shape).astype(np.float32)
    return made
