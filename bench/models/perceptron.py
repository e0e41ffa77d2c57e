"""784-128-64-10, as in examples/mnist_mlp.py."""

from __future__ import annotations

import itertools
from typing import Any

from libraries import Library

SIZES = (784, 128, 64, 10)


def perceptron(library: Library) -> Any:
    """(N, 784) to ten logits."""
    nn = library.module.nn

    class Perceptron(library.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.l1 = nn.Linear(784, 128)
            self.l2 = nn.Linear(128, 64)
            self.l3 = nn.Linear(64, 10)

        def forward(self, x: Any) -> Any:
            return self.l3(self.l2(self.l1(x).relu()).relu())

    return Perceptron()


def products(batch: int) -> float:
    """Floating-point operations of one pass."""
    return 2.0 * batch * sum(a * b for a, b in itertools.pairwise(SIZES))
