"""Layers, optimisers, state and datasets: networks, written with the public names of the tensor."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from coregrad.nn import init, optim, state
from coregrad.nn.layers import (
    GELU,
    AvgPool2d,
    BatchNorm,
    BatchNorm1d,
    BatchNorm2d,
    Conv1d,
    Conv2d,
    ConvTranspose2d,
    CrossEntropyLoss,
    Dropout,
    Embedding,
    Flatten,
    GroupNorm,
    Identity,
    LayerNorm,
    Linear,
    MaxPool2d,
    MSELoss,
    ReLU,
    RMSNorm,
    Sequential,
    Sigmoid,
    Softmax,
    Tanh,
)
from coregrad.nn.module import Module
from coregrad.nn.parameter import Parameter

if TYPE_CHECKING:
    from coregrad.nn import datasets

__all__ = [
    "GELU",
    "AvgPool2d",
    "BatchNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv1d",
    "Conv2d",
    "ConvTranspose2d",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Flatten",
    "GroupNorm",
    "Identity",
    "LayerNorm",
    "Linear",
    "MSELoss",
    "MaxPool2d",
    "Module",
    "Parameter",
    "RMSNorm",
    "ReLU",
    "Sequential",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "datasets",
    "functional",
    "init",
    "optim",
    "state",
]


def __getattr__(name: str) -> ModuleType:
    """Load ``nn.datasets`` when it is first used: what downloads is slow to import."""
    if name == "datasets":
        return importlib.import_module("coregrad.nn.datasets")
    raise AttributeError(f"module 'coregrad.nn' has no attribute {name!r}")
