"""Training steps: forward, backward and the optimiser on batches that come from the host.

All libraries start from the same weights and see the same batches, so their losses must agree.
The loss is read after every step, as a user's loop does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from libraries import Library
from models import lstm, mnist, perceptron, resnet
from models.spelling import cross_entropy
from models.weights import equal_start
from workload import SEED, Array, Results, Steady, Step

LEARNING_RATE = 0.001
COMPARED = 10  # losses of an epoch that are compared: rounding grows with every step of training
Batch = tuple[Array, Array]
Prepare = Callable[[Any], Any]


def images(count: int, size: int, shape: tuple[int, ...]) -> list[Batch]:
    """Images of bytes like MNIST's (four pixels of five are 0), and the labels of ten classes."""
    rng = np.random.default_rng(SEED)
    made = []
    for _ in range(count):
        x = rng.integers(0, 256, (size, *shape), np.uint8)
        x[rng.random(x.shape) < 0.8] = 0
        made.append((x, rng.integers(0, 10, size)))
    return made


def noise(count: int, shape: tuple[int, ...], labels: int, classes: int) -> list[Batch]:
    """Normal numbers, and labels."""
    rng = np.random.default_rng(SEED)
    return [
        (rng.standard_normal(shape, np.float32), rng.integers(0, classes, labels))
        for _ in range(count)
    ]


def bytes_to_floats(x: Any) -> Any:
    return x.float() / 255


def as_it_is(x: Any) -> Any:
    return x


# ---- one step in each library ------------------------------------------------------------------


def coregrad_step(library: Library, model: Any, optim: Any, prepare: Prepare) -> Any:
    Tensor = library.module.Tensor

    @library.captured
    def train(x: Any, y: Any) -> Any:
        optim.zero_grad()
        loss = cross_entropy(library, model(prepare(x)), y)
        loss.backward()
        optim.step()
        return loss.detach()

    return lambda x, y: float(train(Tensor(x), Tensor(y)).item())


def torch_step(library: Library, model: Any, optim: Any, prepare: Prepare) -> Any:
    torch = library.module

    @library.captured
    def forward(x: Any, y: Any) -> Any:
        return cross_entropy(library, model(prepare(x)), y)

    def train(x: Array, y: Array) -> float:
        optim.zero_grad()
        loss = forward(torch.from_numpy(x), torch.from_numpy(y))
        loss.backward()
        optim.step()
        return float(loss.item())

    return train


def tinygrad_step(library: Library, model: Any, optim: Any, prepare: Prepare) -> Any:
    tinygrad = library.module

    @tinygrad.TinyJit
    def train(x: Any, y: Any) -> Any:
        with tinygrad.Context(TRAINING=1):
            optim.zero_grad()
            loss = cross_entropy(library, model(prepare(x)), y).backward()
            return loss.realize(*optim.schedule_step())

    return lambda x, y: float(train(library.tensor(x), library.tensor(y)).item())


STEPS = {"coregrad": coregrad_step, "torch": torch_step, "tinygrad": tinygrad_step}


def adam(library: Library, model: Any) -> Any:
    """Adam; with the compiled PyTorch, whose user would ask for it, the fused one."""
    options = {"fused": True} if library.column == "torch-compile" else {}
    return _optimisers(library).Adam(_parameters(library, model), lr=LEARNING_RATE, **options)


def momentum(library: Library, model: Any) -> Any:
    """SGD with momentum."""
    return _optimisers(library).SGD(_parameters(library, model), lr=LEARNING_RATE, momentum=0.9)


def _optimisers(library: Library) -> Any:
    return library.module.optim if library.name == "torch" else library.module.nn.optim


def _parameters(library: Library, model: Any) -> Any:
    if library.name == "tinygrad":
        return library.module.nn.state.get_parameters(model)
    return list(model.parameters())


# ---- the workloads -----------------------------------------------------------------------------


def steps(
    make: Callable[[Library], Any],
    data: Callable[[], Sequence[Batch]],
    prepare: Prepare = as_it_is,
    optimiser: Callable[[Library, Any], Any] = adam,
) -> dict[str, Any]:
    """For every library: a step of the benchmark is one training step per batch."""

    def build(library: Library) -> Step:
        model = equal_start(library, make(library))
        train = STEPS[library.name](library, model, optimiser(library, model), prepare)
        batches = data()

        def step() -> Results:
            return [np.array([train(x, y) for x, y in batches][:COMPARED])]

        return step

    return dict.fromkeys(STEPS, build)


Steady(
    name="mlp_epoch",
    about="an epoch of a perceptron 784-128-64-10, 235 batches of 256, Adam",
    build=steps(perceptron.perceptron, lambda: images(235, 256, (784,)), bytes_to_floats),
    targets={"torch": 0.55},
    flops=235 * 3 * perceptron.products(256),
    rtol=1e-3,
    calls=1,
    stateful=True,
    bytes=0.0,
)
Steady(
    name="mlp_step",
    about="ten training steps of the same perceptron",
    build=steps(perceptron.perceptron, lambda: images(10, 256, (784,)), bytes_to_floats),
    flops=10 * 3 * perceptron.products(256),
    rtol=1e-3,
    calls=4,
    stateful=True,
    bytes=0.0,
)
Steady(
    name="mnist_step",
    about="a step of beautiful_mnist's network, batch 512, Adam",
    build=steps(mnist.mnist, lambda: images(1, 512, (1, 28, 28)), bytes_to_floats),
    targets={"torch": 0.7},
    flops=3 * 2.0 * 512 * mnist.PRODUCTS,
    rtol=1e-2,
    calls=4,
    stateful=True,
    bytes=0.0,
    slow={"tinygrad": 40.0, "torch-compile": 25.0},
)
Steady(
    name="resnet50_step",
    about="a training step of ResNet-50, batch 8 of 224 x 224, SGD with momentum",
    build=steps(resnet.resnet50, lambda: noise(1, (8, 3, 224, 224), 8, 1000), optimiser=momentum),
    targets={"torch": 0.95},
    flops=3 * 2.0 * 8 * resnet.PRODUCTS,
    rtol=2e-2,
    atol=2e-2,
    calls=3,
    stateful=True,
    bytes=0.0,
    slow={"tinygrad": 180.0, "torch-compile": 120.0},
)
Steady(
    name="lstm_400_step",
    about=f"a training step of an LSTM of {lstm.STEPS} steps, batch {lstm.BATCH}, Adam",
    build=steps(
        lstm.lstm,
        lambda: noise(1, (lstm.STEPS, lstm.BATCH, lstm.INPUTS), lstm.BATCH, lstm.CLASSES),
    ),
    flops=3 * lstm.products(),
    rtol=1e-3,
    calls=3,
    stateful=True,
    bytes=0.0,
    without={"tinygrad": "400 unrolled steps; its compile time grows with the square of a chain"},
    slow={"coregrad": 120.0, "coregrad-jit": 120.0, "torch-compile": 60.0},
)
