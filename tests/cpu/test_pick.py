"""Sums over a choice by number: the element itself, whatever stands beside it, or 0."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coregrad import Tensor, dtypes, engine
from coregrad.ir import build
from coregrad.ir.graph import Node

SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.5, -3e37], np.float32)


def chosen(number: Node, value: Node, axis: int, swapped: bool = False) -> Node:
    """``where(count == number, value, 0)`` with the count along ``axis``."""
    shape = value.shape
    alone = tuple(n if a == axis else 1 for a, n in enumerate(shape))
    count = build.expand(build.reshape(build.iota(shape[axis], number.dtype), alone), shape)
    ones = tuple(1 if a == axis else n for a, n in enumerate(shape))
    wanted = build.expand(build.reshape(number, ones), shape)
    differs = build.ne(wanted, count) if swapped else build.ne(count, wanted)
    return build.where(differs, build.const_like(value, 0), value)


def put(array: np.ndarray, dtype: dtypes.DType) -> Node:
    return engine.from_host(array, dtype, "cpu")


@settings(deadline=None)
@given(
    st.lists(st.integers(2, 5), min_size=1, max_size=3),
    st.data(),
    st.sampled_from([dtypes.int32, dtypes.int64]),
)
def test_what_is_picked_is_the_element_or_nothing(
    shape: list[int], data: st.DataObject, dtype: dtypes.DType
) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    rest = [n for a, n in enumerate(shape) if a != axis]
    size = shape[axis]
    drawn = data.draw(
        st.lists(st.integers(-2, size + 1), min_size=(n := int(np.prod(rest))), max_size=n)
    )
    number = np.array(drawn, dtype.storage).reshape(rest)
    value = SPECIAL[np.arange(np.prod(shape)) * 5 % 7].reshape(shape)
    masked = chosen(put(number, dtype), put(value, dtypes.float32), axis, data.draw(st.booleans()))
    picked = build.reduce("add", masked, (axis,))
    scaled = build.reduce("add", build.mul(masked, build.const_like(masked, -2.0)), (axis,))
    engine.realize([picked, scaled], "cpu")
    inside = (number >= 0) & (number < size)
    at = np.expand_dims(np.where(inside, number, 0), axis)
    want = np.where(inside, np.take_along_axis(value, at, axis).squeeze(axis), 0) + np.float32(0)
    for got, expected in ((picked, want), (scaled, want * np.float32(-2) + np.float32(0))):
        found = engine.read(got, "cpu")
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected) & ~np.isnan(expected))


def test_the_label_is_picked_without_a_loop_over_the_classes() -> None:
    scores = Tensor(
        np.random.default_rng(0).standard_normal((64, 400), np.float32), requires_grad=True
    )
    labels = Tensor(np.arange(64) * 6)
    loss = scores.cross_entropy(labels)
    loss.backward()
    engine.launches = []
    try:
        engine.realize([loss.node, scores.grad.node], "cpu")
        names = engine.launches
    finally:
        engine.launches = None
    assert sum("r400" in name for name in names) == 1, names


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_and_its_gradient_are_those_of_float64(reduction: str) -> None:
    rng = np.random.default_rng(1)
    x, labels = rng.standard_normal((33, 70)), rng.integers(0, 70, 33)
    labels[5] = -100
    scores = Tensor(x.astype(np.float32), requires_grad=True)
    loss = scores.cross_entropy(Tensor(labels), reduction=reduction, ignore_index=-100)
    loss.sum().backward()
    kept = labels != -100
    log_sum = np.log(np.exp(x).sum(1))
    rows = np.where(kept, log_sum - x[np.arange(33), np.where(kept, labels, 0)], 0)
    want = {"mean": rows.sum() / kept.sum(), "sum": rows.sum(), "none": rows}[reduction]
    np.testing.assert_allclose(loss.numpy(), want, rtol=2e-6, atol=1e-6)
    gradient = np.exp(x - log_sum[:, None]) - (np.arange(70) == labels[:, None])
    gradient *= kept[:, None] / (kept.sum() if reduction == "mean" else 1)
    np.testing.assert_allclose(scores.grad.numpy(), gradient, rtol=1e-4, atol=1e-6)
