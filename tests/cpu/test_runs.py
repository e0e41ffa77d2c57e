"""Parts that are computed inside the whole, rows that are read where they are, and sums over many
steps that are one sum: the numbers are those of NumPy, and nobody's values change."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coregrad import Tensor, dtypes, engine, grad, jit, nn, plan, planner
from coregrad.api.functions import cat, stack

pytest.importorskip("llvmlite")

MODES = {"plain": lambda function: function, "captured": jit}
Mode = Callable[[Callable[..., Any]], Callable[..., Any]]


@pytest.fixture(params=list(MODES.values()), ids=list(MODES))
def mode(request: pytest.FixtureRequest) -> Mode:
    """As it is, and captured."""
    return request.param


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def states(x: Tensor, steps: int) -> list[Tensor]:
    """Values that are each computed from the one before, with a kernel of its own."""
    out = []
    for _ in range(steps):
        x = (x * 0.5 + 1.0).contiguous()
        out.append(x)
    return out


def expected(x: Any, steps: int) -> list[Any]:
    out = []
    for _ in range(steps):
        x = x * np.float32(0.5) + np.float32(1.0)
        out.append(x)
    return out


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.sampled_from([64, 128, 192, 1, 100]), min_size=2, max_size=6),
    rows=st.integers(1, 5),
    axis=st.integers(0, 2),
    border=st.sampled_from([(0, 0), (64, 0), (128, 64), (3, 61)]),
    cut=st.sampled_from([0, 64, 7]),
)
def test_parts_of_any_lengths_stand_beside_each_other(
    lengths: list[int], rows: int, axis: int, border: tuple[int, int], cut: int
) -> None:
    """Where all lengths have a common divisor, a kernel chooses once for many elements."""
    shapes = [[rows, 2, 3] for _ in lengths]
    for shape, length in zip(shapes, lengths, strict=True):
        shape[axis] = length
    parts = [numbers(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    borders = [(0, 0)] * 3
    borders[axis] = border
    whole = np.pad(np.concatenate(parts, axis), borders, constant_values=2)
    want = np.take(whole, range(cut, whole.shape[axis]), axis) * np.float32(3)
    padding = [side for before, after in borders[::-1] for side in (before, after)]
    got = cat([Tensor(part) for part in parts], axis).pad(padding, value=2.0)
    got = got.narrow(axis, cut, want.shape[axis]) * 3
    np.testing.assert_array_equal(got.numpy(), want)


@settings(max_examples=15, deadline=None)
@given(
    width=st.integers(1, 40),
    steps=st.integers(5, 9),
    pieces=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 9)), min_size=1, max_size=3),
    turned=st.booleans(),
    captured=st.booleans(),
)
def test_any_concatenations_of_steps_hold_what_the_steps_do(
    width: int, steps: int, pieces: list[tuple[int, int]], turned: bool, captured: bool
) -> None:
    pieces = [(low % steps, low % steps + 1 + high % steps) for low, high in pieces]

    def compute(x: Tensor) -> list[Tensor]:
        made = states(x, steps)
        out = [stack(made[low:high]) for low, high in pieces]
        if turned:
            out.append(stack(made[::-1]))
        return [whole * 2.0 for whole in out] + [out[0], made[-1]]

    x = numbers(width)
    wanted = expected(x, steps)
    wholes = [np.stack(wanted[low:high]) for low, high in pieces]
    if turned:
        wholes.append(np.stack(wanted[::-1]))
    function = jit(compute) if captured else compute
    for _ in range(3 if captured else 1):
        given_back = function(Tensor(x))
        for got, want in zip(
            given_back, [w * 2 for w in wholes] + [wholes[0], wanted[-1]], strict=True
        ):
            np.testing.assert_array_equal(got.numpy(), want)


def test_results_of_a_replay_are_not_overwritten_by_the_next_one(mode: Mode) -> None:
    def compute(x: Tensor) -> tuple[Tensor, Tensor]:
        made = states(x, 8)
        return stack(made), stack(made[1:]).sum(0)

    function = mode(compute)
    kept = [(x, *function(Tensor(x))) for x in (numbers(16, seed=i) for i in range(4))]
    for x, whole, total in kept:
        np.testing.assert_array_equal(whole.numpy(), np.stack(expected(x, 8)))
        np.testing.assert_allclose(total.numpy(), np.sum(expected(x, 8)[1:], 0), rtol=1e-6)


def test_a_row_is_read_before_its_matrix_is_written_over(
    mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "WORTH_ASKING", 0)
    monkeypatch.setattr(engine, "_plans", {})
    table = Tensor(numbers(8, 16))
    start = table.numpy().copy()

    def step() -> Tensor:
        rows = [row.contiguous() for row in table.unbind(0)]
        total = rows[0]
        for row in rows[1:]:
            total = (total * 0.5 + row).contiguous()
        table.assign(table * 2.0 + total)
        return total

    function = mode(step)
    for _ in range(4):
        total = start[0]
        for row in start[1:]:
            total = total * np.float32(0.5) + row
        np.testing.assert_array_equal(function().numpy(), total)
        start = start * np.float32(2) + total
        np.testing.assert_array_equal(table.numpy(), start)


def test_parts_of_a_concatenation_need_no_copies(mode: Mode) -> None:
    def compute(x: Tensor) -> Tensor:
        made = [x]
        for _ in range(40):
            made.append((made[-1] @ x).contiguous())
        return cat(made[1:]).max()

    function = mode(compute)
    x = Tensor(numbers(16, 16) / 8)
    for _ in range(2):
        function(x)
    engine.launches = []
    try:
        function(x).realize()
        launched = list(engine.launches)
    finally:
        engine.launches = None
    assert len(launched) <= 42, launched


# ---- sums over many steps ----------------------------------------------------------------------


def walked(x: Tensor, weight: Tensor, bias: Tensor, steps: int) -> Tensor:
    h = x
    total = x.sum() * 0.0
    for _ in range(steps):
        h = ((h @ weight + bias) * 0.25).contiguous()
        total = total + (h * h).sum()
    return total


def slopes(x: Any, weight: Any, bias: Any, steps: int) -> tuple[Any, Any]:
    """The gradients of the weight and the bias in float64, by hand."""
    x, weight, bias = (a.astype(np.float64) for a in (x, weight, bias))
    seen = [x]
    for _ in range(steps):
        seen.append((seen[-1] @ weight + bias) * 0.25)
    of_weight, of_bias = np.zeros_like(weight), np.zeros_like(bias)
    g = np.zeros_like(x)
    for before, after in reversed(list(pairwise(seen))):
        g = (g + 2 * after) * 0.25
        of_weight += before.T @ g
        of_bias += g.sum(0)
        g = g @ weight.T
    return of_weight, of_bias


@settings(max_examples=8, deadline=None)
@given(
    batch=st.sampled_from([1, 2, 3, 16]),
    width=st.sampled_from([1, 3, 16]),
    steps=st.sampled_from([1, 4, 5, 7]),
)
def test_a_weight_of_many_steps_has_the_gradient_of_all(batch: int, width: int, steps: int) -> None:
    x, weight, bias = numbers(batch, width), numbers(width, width), numbers(width)
    w, b = Tensor(weight, requires_grad=True), Tensor(bias, requires_grad=True)
    walked(Tensor(x), w, b, steps).backward()
    assert w.grad is not None
    assert b.grad is not None
    of_weight, of_bias = slopes(x, weight, bias, steps)
    scale = max(1.0, np.abs(of_weight).max(), np.abs(of_bias).max())
    np.testing.assert_allclose(w.grad.numpy() / scale, of_weight / scale, atol=2e-6)
    np.testing.assert_allclose(b.grad.numpy() / scale, of_bias / scale, atol=2e-6)


def test_the_gradient_of_a_weight_is_one_product_over_all_steps() -> None:
    steps = 24
    w, b = Tensor(numbers(16, 16) / 4, requires_grad=True), Tensor(numbers(16), requires_grad=True)
    walked(Tensor(numbers(8, 16)), w, b, steps).backward()
    assert w.grad is not None
    engine.launches = []
    try:
        w.grad.realize()
        launched = list(engine.launches)
    finally:
        engine.launches = None
    products = [name for name in launched if name.startswith("dot_16x16_k")]
    assert products == [f"dot_16x16_k{8 * steps}"]


def test_second_gradients_pass_through_sums_over_many_steps() -> None:
    """d/dw of (d/dw of the sum over t of (c_t w)^2)^2, by hand."""
    factors = numbers(6)
    w = Tensor(np.array([[0.5]], np.float32), requires_grad=True)
    total = Tensor.zeros(1, 1)
    for factor in factors:
        h = Tensor(np.array([[factor]], np.float32)) @ w
        total = total + h * h
    (first,) = grad(total.sum(), w, create_graph=True)
    (second,) = grad((first * first).sum(), w)
    squares = float((factors.astype(np.float64) ** 2).sum())
    assert second.item() == pytest.approx(2 * (2 * squares * 0.5) * 2 * squares, rel=1e-5)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float64])
def test_sums_over_many_steps_keep_their_dtype(dtype: dtypes.DType) -> None:
    w = Tensor(np.eye(4, dtype=np.float32), dtype=dtype, requires_grad=True)
    h = Tensor(np.ones((2, 4), np.float32), dtype=dtype)
    for _ in range(6):
        h = h @ w
    h.sum().backward()
    assert w.grad is not None
    assert w.grad.dtype is dtype
    np.testing.assert_array_equal(w.grad.cast(dtypes.float32).numpy(), np.full((4, 4), 12.0))


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one-way", "both-ways"])
def test_a_recurrent_layer_has_the_gradients_of_its_steps_one_by_one(
    kind: Any, bidirectional: bool, mode: Mode
) -> None:
    """The layer over all steps, and over the steps in two halves that hand the state on."""
    layer = kind(16, 16, bidirectional=bidirectional)
    x = Tensor(numbers(8, 4, 16))

    def both(x: Tensor) -> list[Tensor]:
        for parameter in layer.parameters():
            parameter.grad = None
        output, state = layer(x)
        last = state[0] if isinstance(state, tuple) else state
        ((output * output).sum() + last.sum()).backward()
        return [output, *(p.grad for p in layer.parameters())]

    captured = mode(both)
    for _ in range(2):
        got = captured(x)
    for parameter, gradient in zip(layer.parameters(), got[1:], strict=True):
        step = 1e-2
        direction = numbers(*parameter.shape, seed=7)
        direction /= np.linalg.norm(direction)
        start = parameter.numpy().copy()

        def loss(at: Any, parameter: Tensor = parameter) -> float:
            parameter.assign(Tensor(at.astype(np.float32)))
            output, state = layer(x)
            last = state[0] if isinstance(state, tuple) else state
            return float(((output * output).sum() + last.sum()).item())

        slope = (loss(start + step * direction) - loss(start - step * direction)) / (2 * step)
        parameter.assign(Tensor(start))
        found = float((gradient.numpy() * direction).sum())
        assert found == pytest.approx(slope, rel=0.03, abs=0.03)


def test_a_plan_with_parts_is_the_same_from_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_plans", {})
    stack(states(Tensor(numbers(16)), 8)).sum().item()
    plans = [entry.baked for entry in engine._plans.values() if entry.baked.parts]
    assert plans
    for made in plans:
        again = plan.from_bytes(plan.to_bytes(made), lambda text: text)
        assert again.parts == made.parts
        assert again.sizes == made.sizes
