"""Slices of stored data begin at numbers: one compiled kernel takes the part at every place.

The oracle is NumPy. What is compiled is counted where every structure's compilation passes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coregrad import Tensor, engine, jit, no_grad, planner
from coregrad.api.composed import composed
from coregrad.errors import ShapeError, VerifyError
from coregrad.ir import build, formula, ops
from coregrad.ir.graph import toposort
from coregrad.ir.kernel import Loop, walk
from coregrad.ir.simplify import simplify

cases = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
NEAR = ("cpu", "numpy")  # devices whose kernels for a hundred shapes are compiled soon


def floats(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ---- one compilation -----------------------------------------------------------------------------


def test_a_loop_over_minibatches_compiles_once(device: str, compiled: list[int]) -> None:
    x, w = floats(96, 12), floats(12, 20)
    data, weight = Tensor(x, device=device), Tensor(w, device=device)
    for i in range(0, 96, 16):
        y = (data[i : i + 16] @ weight).relu().numpy()
        np.testing.assert_allclose(y, np.maximum(x[i : i + 16] @ w, 0), rtol=1e-4, atol=1e-5)
        assert len(compiled) == 1


def test_the_arguments_of_a_captured_function_are_cut_by_one_kernel(
    device: str, compiled: list[int]
) -> None:
    x = floats(64, 6)
    data = Tensor(x, device=device)
    total = jit(lambda batch: (batch * batch).sum())
    counts = []
    for i in range(0, 64, 8):
        got = total(data[i : i + 8]).item()
        np.testing.assert_allclose(got, np.square(x[i : i + 8], dtype=np.float64).sum(), rtol=1e-5)
        counts.append(len(compiled))
    assert set(counts[1:]) == {counts[0]}
    assert total.captures == 1


def test_a_cache_is_written_at_every_position_by_one_kernel(
    device: str, compiled: list[int]
) -> None:
    cache, known = Tensor(np.zeros((2, 9, 3), np.float32), device=device), np.zeros((2, 9, 3))
    counts = []
    for i in range(9):
        new = floats(2, 1, 3, seed=i)
        cache[:, i : i + 1] = Tensor(new, device=device)
        known[:, i : i + 1] = new
        np.testing.assert_array_equal(cache.numpy(), known.astype(np.float32))
        counts.append(len(compiled))
    assert counts == [1] * 9


def test_rows_columns_and_strides_begin_anywhere_in_one_kernel(
    device: str, compiled: list[int]
) -> None:
    x = floats(12, 10)
    data = Tensor(x, device=device)
    for i in range(5):
        for part, wanted in (
            (data[i], x[i]),
            (data[-1 - i], x[-1 - i]),
            (data[:, i], x[:, i]),
            (data[i, i + 3], x[i, i + 3]),
            (data[i : i + 7 : 3], x[i : i + 7 : 3]),
            (data[i + 6 : i : -2], x[i + 6 : i : -2]),
            (data.T[i : i + 4, i:][:, :3], x.T[i : i + 4, i:][:, :3]),
            (data.narrow(1, i, 2), x[:, i : i + 2]),
        ):
            np.testing.assert_array_equal(part.numpy(), wanted)
        if i == 0:
            first = len(compiled)
        assert len(compiled) <= first + i  # the last but one has another shape each time


def test_parts_of_a_split_are_one_kernel(device: str, compiled: list[int]) -> None:
    x = floats(12, 4)
    for i, part in enumerate(Tensor(x, device=device).split(3)):
        np.testing.assert_array_equal((part + 1).numpy(), x[3 * i : 3 * i + 3] + 1)
    assert len(compiled) == 1


def test_a_training_step_on_slices_compiles_once(device: str, compiled: list[int]) -> None:
    """With a loss, a backward pass and an update."""
    x, w = floats(40, 5), floats(5, 1, seed=1)
    data, weight = Tensor(x, device=device), Tensor(w, device=device, requires_grad=True)
    counts = []
    for i in range(0, 40, 8):
        weight.grad = None
        (data[i : i + 8] @ weight).square().mean().backward()
        batch = x[i : i + 8].astype(np.float64)
        gradient = 2 / 8 * batch.T @ (batch @ w)
        np.testing.assert_allclose(weight.grad.numpy(), gradient, rtol=1e-4, atol=1e-5)
        with no_grad():
            weight.assign(weight - 0.1 * weight.grad)
        w = weight.numpy().astype(np.float64)
        counts.append(len(compiled))
    assert set(counts[1:]) == {counts[1]}  # the first step had no buffer of its own yet
    assert counts[1] <= 2 * counts[0]


def test_gradients_at_every_place_are_one_kernel(device: str, compiled: list[int]) -> None:
    x = floats(9, 4)
    for i in range(6):
        parameter = Tensor(x, device=device, requires_grad=True)
        parameter[i : i + 3, 1:3].pow(2).sum().backward()
        wanted = np.zeros_like(x)
        wanted[i : i + 3, 1:3] = 2 * x[i : i + 3, 1:3]
        np.testing.assert_allclose(parameter.grad.numpy(), wanted, rtol=1e-6)
    assert len(compiled) == 1


def test_the_start_is_a_parameter_and_lanes_stay_whole_vectors() -> None:
    """A slice of rows is read in vectors like the whole: no index is computed lane by lane."""
    made: list[Any] = []
    original = planner._step

    def shown(kernel: Any, *rest: Any) -> Any:
        made.append(kernel)
        return original(kernel, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_plans", {})
        patch.setattr(planner, "_step", shown)
        data = Tensor(floats(64, 32), device="cpu")
        (data[3:11] * 2).realize()
    (kernel,) = made
    loads = [s for s in walk(kernel.body) if getattr(s, "op", None) is ops.LOAD]
    (loop,) = [s for s in walk(kernel.body) if isinstance(s, Loop)]
    assert loop.lanes > 1
    assert [str(p.dtype.name) for p in kernel.params].count("int32") == 1
    assert all(load.attr[1].coefficient(loop.var) in (0, 1) for load in loads)


# ---- right on any shape --------------------------------------------------------------------------


@st.composite
def parts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """A shape and a key of numbers and slices for it."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    key: list[Any] = []
    for n in shape:
        if draw(st.booleans()):
            key.append(draw(st.integers(-n, n - 1)))
        else:
            ends = st.none() | st.integers(-n - 1, n + 1)
            key.append(slice(draw(ends), draw(ends), draw(st.sampled_from([None, 1, 2, -1, -3]))))
    return shape, tuple(key)


@pytest.mark.parametrize("device", NEAR)
@cases
@given(parts())
def test_any_part_is_numpys(device: str, case: tuple[tuple[int, ...], tuple[Any, ...]]) -> None:
    shape, key = case
    x = floats(*shape)
    np.testing.assert_array_equal(Tensor(x, device=device)[key].numpy(), x[key])


@pytest.mark.parametrize("device", NEAR)
@cases
@given(parts())
def test_any_part_is_written_like_numpys(
    device: str, case: tuple[tuple[int, ...], tuple[Any, ...]]
) -> None:
    shape, key = case
    known = floats(*shape)
    stored = Tensor(known, device=device)
    new = floats(*known[key].shape, seed=1)
    stored[key] = Tensor(new, device=device)
    stored[key] = stored[key] * 2  # a part that is not stored yet, of the same name
    known[key] = new
    known[key] *= 2
    np.testing.assert_array_equal(stored.numpy(), known)


@pytest.mark.parametrize("device", NEAR)
@cases
@given(parts())
def test_the_gradient_of_any_part_stands_in_its_place(
    device: str, case: tuple[tuple[int, ...], tuple[Any, ...]]
) -> None:
    shape, key = case
    x = floats(*shape)
    parameter = Tensor(x, device=device, requires_grad=True)
    seed = floats(*x[key].shape, seed=1)
    (parameter[key] * Tensor(seed, device=device)).sum().backward()
    wanted = np.zeros_like(x)
    wanted[key] = seed
    np.testing.assert_array_equal(parameter.grad.numpy(), wanted)


@pytest.mark.parametrize("place", [0, 5, 11])
def test_products_of_slices_on_devices_of_many_threads(grouped: str, place: int) -> None:
    x, w = floats(48, 33), floats(60, 33, seed=1)
    data, weight = Tensor(x, device=grouped), Tensor(w, device=grouped)
    got = (data[place : place + 32] @ weight[2 * place : 2 * place + 37].T).numpy()
    wanted = x[place : place + 32].astype(np.float64) @ w[2 * place : 2 * place + 37].T
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    got = data[place : place + 20].softmax(-1).sum(0).numpy()
    powers = np.exp(x[place : place + 20].astype(np.float64))
    np.testing.assert_allclose(got, (powers / powers.sum(-1, keepdims=True)).sum(0), rtol=1e-4)
    data[:, place : place + 3] = weight[:48, :3]
    x[:, place : place + 3] = w[:48, :3]
    np.testing.assert_array_equal(data.numpy(), x)


def test_a_product_with_an_updated_cache_reads_what_was_written(device: str) -> None:
    keys, q = floats(2, 24, 8), floats(2, 16, 8, seed=1)
    for i in (0, 7, 19):
        known = keys.copy()
        cache = Tensor(keys, device=device)
        cache[:, i : i + 5] = Tensor(q[:, :5], device=device)
        known[:, i : i + 5] = q[:, :5]
        got = (Tensor(q, device=device) @ cache.transpose(1, 2)).numpy()
        np.testing.assert_allclose(got, q @ known.swapaxes(1, 2), rtol=1e-4, atol=1e-4)


# ---- what stays as it was ------------------------------------------------------------------------


def test_a_slice_of_what_is_computed_is_known_to_the_compiler() -> None:
    x = Tensor(floats(6, 4), device="cpu")
    computed = (x + 1)[2:4]
    assert computed.node.op is ops.SHRINK
    assert x[2:4].node.op is ops.SLICE


@composed
def product_of_halves(x: Tensor) -> Tensor:
    return x[:2] * x[2:4]


def test_slices_inside_composed_functions_are_constants(device: str) -> None:
    x = floats(4, 3)
    y = product_of_halves(Tensor(x, device=device))
    assert y.node.op is ops.CALL
    (root,) = simplify([formula.expand(y.node.arg, [Tensor(x, requires_grad=False).node])])
    assert {node.op for node in toposort([root])} == {ops.MUL, ops.SHRINK, ops.BUFFER}
    np.testing.assert_array_equal(y.numpy(), x[:2] * x[2:])


def test_equal_slices_are_one_value() -> None:
    x = Tensor(floats(6, 4), device="cpu")
    assert x[2:4].node is x[2:4].node
    assert x[2:4].node is not x[3:5].node


def test_what_was_sliced_before_a_write_keeps_its_values(device: str) -> None:
    x = floats(6, 2)
    data = Tensor(x, device=device)
    before = data[1:3] * 1
    data[1:3] = 0.0
    np.testing.assert_array_equal(before.numpy(), x[1:3])
    assert data.numpy()[1:3].tolist() == [[0, 0], [0, 0]]


def test_numbers_that_are_kept_for_other_launches_do_not_pile_up(device: str) -> None:
    data = Tensor(floats(300), device=device)
    for i in range(290):
        data[i : i + 3].realize()
    assert len(engine._blocks) <= engine.BLOCKS


def test_a_block_that_would_leave_its_axis_is_refused() -> None:
    x = build.buffer("x", Tensor([1.0]).dtype, (8, 4))
    with pytest.raises(VerifyError, match=r"9 is not in 0 \.\. 4"):
        build.number(9, 4)
    with pytest.raises(ShapeError, match=r"5 elements from 0 \.\. 4 on do not lie inside axis 0"):
        build.slice_at(x, (0,), [build.number(1, 4)], [5])
    with pytest.raises(ShapeError, match="does not fit"):
        build.update_at(x, build.buffer("y", x.dtype, (2, 3)), (0,), [build.number(1, 6)])
