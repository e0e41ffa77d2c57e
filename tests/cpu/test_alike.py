"""Kernels that differ only in where they begin are one: written-out loops compile few kernels.

The oracle is NumPy. Kernels are counted where each is made into a step of a plan.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import coregrad
from coregrad import Tensor
from coregrad.ir.kernel import Kernel

cases = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def floats(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def recurrent(x: Any, w: Any, u: Any, tanh: Any) -> Any:
    """The states of a recurrent network, each from its input and the state before."""
    inputs = x @ w
    state, states = inputs[0] * 0, []
    for step in range(len(x)):
        state = tanh(inputs[step] + state @ u)
        states.append(state)
    return states


def check_recurrent(device: str, steps: int) -> None:
    x, w, u = floats(steps, 3, 5), floats(5, 8, seed=1) / 4, floats(8, 8, seed=2) / 4
    tensors = [Tensor(a, device=device) for a in (x, w, u)]
    states = coregrad.stack(recurrent(*tensors, Tensor.tanh))
    wanted = np.stack(recurrent(*(a.astype(np.float64) for a in (x, w, u)), np.tanh))
    np.testing.assert_allclose(states.numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_more_steps_of_a_recurrent_network_need_no_more_kernels(
    device: str, kernels: list[Kernel]
) -> None:
    check_recurrent(device, 16)
    few = len(kernels)
    kernels.clear()
    check_recurrent(device, 48)
    assert len(kernels) <= few + 2  # a level of joining the parts more


def test_devices_of_many_threads_read_the_places_too(grouped: str, kernels: list[Kernel]) -> None:
    check_recurrent(grouped, 12)
    assert len(kernels) <= 12


@pytest.mark.parametrize("device", ["cpu", "numpy"])  # whose kernels are compiled soon
@cases
@given(
    rows=st.integers(4, 7),
    columns=st.sampled_from([1, 3, 16, 33]),
    strides=st.lists(st.integers(0, 40), min_size=4, max_size=9),
    inner=st.integers(0, 2),
)
def test_sums_of_parts_at_any_places_are_right(
    device: str, rows: int, columns: int, strides: list[int], inner: int
) -> None:
    """Several places in one kernel, which move apart, and one that stays."""
    x, y = floats(rows + 41, columns + 2), floats(rows + 81, columns + 2, seed=1)
    tx, ty = Tensor(x, device=device) * 1, Tensor(y, device=device) * 1  # computed, not stored
    tx, ty = tx.contiguous(), ty.contiguous()

    def parts(a: Any, b: Any) -> Any:
        return [
            (a[s : s + rows, inner : inner + columns] * b[2 * s : 2 * s + rows, :columns]).sum(1)
            + b[:rows, 1]
            for s in strides
        ]

    found = coregrad.stack(parts(tx, ty)).numpy()
    wanted = np.stack(parts(x.astype(np.float64), y.astype(np.float64)))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_rows_looked_up_at_several_places_are_right(device: str, kernels: list[Kernel]) -> None:
    """Where a load tells the index of another, and both begin elsewhere."""
    table, index = floats(30, 8), np.arange(60).reshape(6, 10) * 7 % 30
    rows, numbers = Tensor(table, device=device) * 2, Tensor(index, device=device) * 1
    rows, numbers = rows.contiguous(), numbers.contiguous()
    found = coregrad.stack([rows[numbers[i]].sum(0).exp() for i in range(6)]).numpy()
    wanted = np.stack([np.exp((table[index[i]] * 2.0).sum(0)) for i in range(6)])
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


def test_products_of_parts_are_still_products(device: str, kernels: list[Kernel]) -> None:
    x, w = floats(6 * 32, 48), floats(48, 40, seed=1)
    left = (Tensor(x, device=device) * 1).contiguous()
    products = [left[32 * i : 32 * i + 32] @ Tensor(w, device=device) for i in range(6)]
    found = [p.numpy() for p in coregrad.realize(*products) or products]
    assert len([made for made in kernels if made.name.startswith("dot")]) == 1
    for i, product in enumerate(found):
        wanted = x[32 * i : 32 * i + 32].astype(np.float64) @ w
        np.testing.assert_allclose(product, wanted, rtol=1e-4, atol=1e-5)
