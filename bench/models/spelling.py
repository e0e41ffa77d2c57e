"""The few names that the libraries spell differently."""

from __future__ import annotations

from typing import Any

from libraries import Library


def gelu(library: Library, x: Any) -> Any:
    """gelu by tanh."""
    if library.name == "torch":
        return library.module.nn.functional.gelu(x, approximate="tanh")
    return x.gelu(approximate="tanh") if library.name == "coregrad" else x.gelu()


def max_pool(library: Library, x: Any, size: int, stride: int, padding: int) -> Any:
    """The largest of each window."""
    if library.name == "torch":
        return library.module.nn.functional.max_pool2d(x, size, stride, padding)
    return x.max_pool2d((size, size), stride=stride, padding=padding)


def batch_norm(library: Library, channels: int) -> Any:
    """A batch norm over (N, C, H, W)."""
    return library.module.nn.BatchNorm2d(channels)


def attention(library: Library, q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    """Attention of (..., L, E) to everything, or to what came before."""
    if library.name == "torch":
        return library.module.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return q.scaled_dot_product_attention(k, v, is_causal=causal)


def cross_entropy(library: Library, logits: Any, labels: Any) -> Any:
    """The mean loss of (N, C) logits and labels."""
    if library.name == "torch":
        return library.module.nn.functional.cross_entropy(logits, labels)
    if library.name == "tinygrad":
        return logits.sparse_categorical_crossentropy(labels)
    return logits.cross_entropy(labels)
