"""The convolutional network of examples/beautiful_mnist.py."""

from __future__ import annotations

from typing import Any

from libraries import Library

from models.spelling import batch_norm, max_pool

PRODUCTS = (  # per image: output channels and plane, times inputs of one output
    32 * 24 * 24 * 25 + 32 * 20 * 20 * 32 * 25 + 64 * 8 * 8 * 32 * 9 + 64 * 6 * 6 * 64 * 9 + 5760
)


def mnist(library: Library) -> Any:
    """(N, 1, 28, 28) to ten logits."""
    nn = library.module.nn

    class Convolutional(library.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 32, 5), nn.Conv2d(32, 32, 5)
            self.bn1 = batch_norm(library, 32)
            self.conv3, self.conv4 = nn.Conv2d(32, 64, 3), nn.Conv2d(64, 64, 3)
            self.bn2 = batch_norm(library, 64)
            self.last = nn.Linear(576, 10)

        def forward(self, x: Any) -> Any:
            x = self.conv2(self.conv1(x).relu()).relu()
            x = max_pool(library, self.bn1(x), 2, 2, 0)
            x = self.conv4(self.conv3(x).relu()).relu()
            x = max_pool(library, self.bn2(x), 2, 2, 0)
            return self.last(x.flatten(1))

    return Convolutional()
