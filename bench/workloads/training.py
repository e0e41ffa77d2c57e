"""Training steps: forward, backward and Adam on batches that come from the host as bytes.

All libraries start from the same weights and see the same batches, so their losses must agree.
The loop is each library's plain one: the loss is read after every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from libraries import Library
from workload import SEED, Array, Results, Steady, Step

LEARNING_RATE = 0.001
COMPARED = 10  # losses of an epoch that are compared: rounding grows with every step of training
Batch = tuple[Array, Array]
Train = Callable[[Array, Array], float]  # one step on one batch; the loss
Network = Callable[[Any], list[Any]]  # the layers, made of a library's module


# ---- the same numbers for all ------------------------------------------------------------------


def batches(count: int, size: int, shape: tuple[int, ...]) -> list[Batch]:
    """Images of bytes like MNIST's (four pixels of five are 0), and the labels of ten classes."""
    rng = np.random.default_rng(SEED)
    made = []
    for _ in range(count):
        images = rng.integers(0, 256, (size, *shape), np.uint8)
        images[rng.random(images.shape) < 0.8] = 0
        made.append((images, rng.integers(0, 10, size)))
    return made


def start(shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[Array, Array]]:
    """The weight and bias of every layer, uniform within 1 / sqrt(inputs)."""
    rng = np.random.default_rng(SEED + 1)
    for shape in shapes:
        bound = 1 / math.sqrt(math.prod(shape[1:]))
        weight = rng.uniform(-bound, bound, shape).astype(np.float32)
        yield weight, rng.uniform(-bound, bound, shape[0]).astype(np.float32)


def weighted(layers: Sequence[Any]) -> list[Any]:
    """The layers that start from random numbers: all with a matrix or more for a weight."""
    return [layer for layer in layers if hasattr(layer, "weight") and len(layer.weight.shape) > 1]


def shapes_of(layers: Sequence[Any]) -> list[tuple[int, ...]]:
    return [tuple(layer.weight.shape) for layer in layers]


# ---- one step in each library ------------------------------------------------------------------


def with_coregrad(library: Library, network: Network) -> Train:
    coregrad = library.module
    Tensor, nn = coregrad.Tensor, coregrad.nn

    class Model(nn.Module):
        def __init__(self) -> None:
            self.layers = network(library)

        def forward(self, x: Any) -> Any:
            return x.sequential(self.layers)

    model = Model()
    with coregrad.no_grad():
        layers = weighted(model.layers)
        for layer, (weight, bias) in zip(layers, start(shapes_of(layers)), strict=True):
            layer.weight.assign(Tensor(weight))
            layer.bias.assign(Tensor(bias))
    optim = nn.optim.Adam(model.parameters(), lr=LEARNING_RATE)

    def train(images: Array, labels: Array) -> float:
        optim.zero_grad()
        loss = model(Tensor(images).float() / 255).cross_entropy(Tensor(labels))
        loss.backward()
        optim.step()
        return float(loss.item())

    return train


def with_torch(library: Library, network: Network) -> Train:
    torch = library.module
    model = torch.nn.Sequential(*network(library))
    with torch.no_grad():
        layers = weighted(model)
        for layer, (weight, bias) in zip(layers, start(shapes_of(layers)), strict=True):
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
    optim = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

    def train(images: Array, labels: Array) -> float:
        optim.zero_grad()
        x, y = torch.from_numpy(images).float() / 255, torch.from_numpy(labels)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optim.step()
        return float(loss.item())

    return train


def with_tinygrad(library: Library, network: Network) -> Train:
    tinygrad = library.module
    Tensor, nn = tinygrad.Tensor, tinygrad.nn
    layers = network(library)
    trained = weighted(layers)
    for layer, (weight, bias) in zip(trained, start(shapes_of(trained)), strict=True):
        layer.weight.assign(Tensor(weight)).realize()
        layer.bias.assign(Tensor(bias)).realize()
    optim = nn.optim.Adam(nn.state.get_parameters(layers), lr=LEARNING_RATE)

    @tinygrad.TinyJit
    def captured(x: Any, y: Any) -> Any:
        with tinygrad.Context(TRAINING=1):
            optim.zero_grad()
            out = (x.float() / 255).sequential(layers)
            loss = out.sparse_categorical_crossentropy(y).backward()
            return loss.realize(*optim.schedule_step())

    def train(images: Array, labels: Array) -> float:
        return float(captured(Tensor(images).realize(), Tensor(labels).realize()).item())

    return train


TRAINERS = {"coregrad": with_coregrad, "torch": with_torch, "tinygrad": with_tinygrad}


# ---- the networks ------------------------------------------------------------------------------


def perceptron(library: Library) -> list[Any]:
    """784-128-64-10, as in examples/mnist_mlp.py."""
    nn, relu = library.module.nn, activation(library)
    return [nn.Linear(784, 128), relu, nn.Linear(128, 64), relu, nn.Linear(64, 10)]


def convolutional(library: Library) -> list[Any]:
    """The network of examples/beautiful_mnist.py."""
    nn, relu = library.module.nn, activation(library)
    if library.name == "torch":
        norm, pool, flat = nn.BatchNorm2d, nn.MaxPool2d(2), nn.Flatten(1)
    else:
        norm, pool, flat = nn.BatchNorm, library.module.Tensor.max_pool2d, flatten
    return [
        nn.Conv2d(1, 32, 5), relu,
        nn.Conv2d(32, 32, 5), relu,
        norm(32), pool,
        nn.Conv2d(32, 64, 3), relu,
        nn.Conv2d(64, 64, 3), relu,
        norm(64), pool,
        flat, nn.Linear(576, 10),
    ]  # fmt: skip


def activation(library: Library) -> Any:
    return library.module.nn.ReLU() if library.name == "torch" else library.module.Tensor.relu


def flatten(x: Any) -> Any:
    return x.flatten(1)


# ---- the workloads -----------------------------------------------------------------------------


def epochs(network: Network, steps: int, size: int, shape: tuple[int, ...]) -> dict[str, Any]:
    """For every library: a step of the benchmark is ``steps`` training steps, one per batch."""

    def builder(trainer: Callable[[Library, Network], Train]) -> Callable[[Library], Step]:
        def build(library: Library) -> Step:
            train = trainer(library, network)
            data = batches(steps, size, shape)

            def step() -> Results:
                return [[train(images, labels) for images, labels in data][:COMPARED]]

            return step

        return build

    return {name: builder(trainer) for name, trainer in TRAINERS.items()}


Steady(
    name="mlp_epoch",
    about="an epoch of a perceptron 784-128-64-10, 235 batches of 256, Adam",
    build=epochs(perceptron, 235, 256, (784,)),
    targets={"torch": 1.3},
    rtol=1e-3,
    calls=1,
    stateful=True,
)
Steady(
    name="mnist_step",
    about="a step of beautiful_mnist's network, batch 512, Adam",
    build=epochs(convolutional, 1, 512, (1, 28, 28)),
    targets={"torch": 2.5, "tinygrad": 0.4},
    rtol=1e-2,
    calls=4,
    stateful=True,
)
