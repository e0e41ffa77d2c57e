"""Layers, optimisers, state and datasets: networks, written with the public names of the tensor."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from coregrad.nn import functional, init, optim, state
from coregrad.nn.activations import (
    CELU,
    ELU,
    GELU,
    SELU,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Softsign,
    Tanh,
)
from coregrad.nn.attention import (
    MultiheadAttention,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from coregrad.nn.layers import (
    AdaptiveAvgPool2d,
    AvgPool1d,
    AvgPool2d,
    BatchNorm,
    BatchNorm1d,
    BatchNorm2d,
    Conv1d,
    Conv2d,
    ConvTranspose1d,
    ConvTranspose2d,
    Dropout,
    Embedding,
    Flatten,
    GroupNorm,
    Identity,
    InstanceNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    LayerNorm,
    Linear,
    MaxPool1d,
    MaxPool2d,
    ModuleList,
    RMSNorm,
    Sequential,
    Unflatten,
)
from coregrad.nn.losses import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)
from coregrad.nn.module import Module
from coregrad.nn.parameter import Parameter
from coregrad.nn.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell

if TYPE_CHECKING:
    from coregrad.nn import datasets

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GRU",
    "LSTM",
    "RNN",
    "SELU",
    "AdaptiveAvgPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "BatchNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv1d",
    "Conv2d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Flatten",
    "GRUCell",
    "GroupNorm",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "HuberLoss",
    "Identity",
    "InstanceNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "KLDivLoss",
    "L1Loss",
    "LSTMCell",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSigmoid",
    "LogSoftmax",
    "MSELoss",
    "MaxPool1d",
    "MaxPool2d",
    "Mish",
    "Module",
    "ModuleList",
    "MultiheadAttention",
    "NLLLoss",
    "PReLU",
    "Parameter",
    "RMSNorm",
    "RNNCell",
    "ReLU",
    "ReLU6",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "Softmax",
    "Softplus",
    "Softsign",
    "Tanh",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "Unflatten",
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
