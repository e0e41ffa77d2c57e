"""The convolutional example begins on OpenCL as on the CPU. (docs/backends.md: where it ends.)"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
FIRST_STEPS = """
import beautiful_mnist as example
from coregrad import Tensor, nn

Tensor.manual_seed(1)
X, Y, *_ = nn.datasets.mnist(example.DATA)
model = example.Model()
optim = nn.optim.Adam(model.parameters(), lr=0.003)
for _ in range(2):
    print(repr(example.train_step(model, optim, X, Y, 64)))
"""


def losses(device: str) -> list[float]:
    """Of two steps of the example, with batches of 64."""
    settings = {"COREGRAD_DEVICE": device, "COREGRAD_OPENCL_DEVICE": "portable"}
    command = [sys.executable, "-c", FIRST_STEPS]
    environment = {**os.environ, **settings, "PYTHONPATH": str(EXAMPLES)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()]


@pytest.mark.slow
def test_the_convolutional_example_has_the_losses_of_the_cpu(platforms: list[str]) -> None:
    (first, second), (ours, then) = losses("opencl"), losses("cpu")
    assert first == pytest.approx(ours, rel=1e-5)
    assert second == pytest.approx(then, rel=1e-3)  # Adam's first step turns on signs of gradients
    assert second < first
