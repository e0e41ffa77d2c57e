"""A program, not a test: five steps of a network of three layers on the device that it is given.

It prints the losses as JSON. Run beside coregrad's tests on devices that need a process, or an
environment, of their own.
"""

from __future__ import annotations

import json
import sys

import numpy as np

from coregrad import Device, Tensor, nn

STEPS = 5


class Net:
    """A convolution and two layers without one."""

    def __init__(self) -> None:
        self.convolution = nn.Conv2d(1, 4, 3)
        self.hidden = nn.Linear(4 * 3 * 3, 16)
        self.out = nn.Linear(16, 10)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.convolution(x).relu().max_pool2d(2)
        return self.out(self.hidden(x.reshape(x.shape[0], -1)).tanh())

    def parameters(self) -> list[Tensor]:
        """What the optimiser writes."""
        return [p for x in (self.convolution, self.hidden, self.out) for p in x.parameters()]


def losses(device: str) -> list[float]:
    """The loss of each step."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((16, 1, 8, 8)).astype(np.float32)
    labels = rng.integers(0, 10, 16)
    with Device(device):
        Tensor.manual_seed(1)
        net = Net()
        optim = nn.optim.Adam(net.parameters(), lr=0.01)
        x, y = Tensor(images), Tensor(labels)
        found = []
        for _ in range(STEPS):
            loss = net(x).cross_entropy(y)
            optim.zero_grad()
            loss.backward()
            optim.step()
            found.append(loss.item())
    return found


if __name__ == "__main__":
    json.dump(losses(sys.argv[1]), sys.stdout)
