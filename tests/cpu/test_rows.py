"""Sums of rows that are wanted by others too, made in the kernel that walks the rows: the numbers
are those of NumPy in float64, and nothing is computed in the wrong order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coregrad import Tensor, dtypes, engine, grad, jit, nn
from coregrad.errors import IndexRangeError

pytest.importorskip("llvmlite")

Array = Any
FOLDS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "largest": (lambda x: x.amax(-1), lambda x: x.max(-1)),
    "total": (lambda x: x.sum(-1), lambda x: x.sum(-1)),
    "squares": (lambda x: (x * x).sum(-1), lambda x: (x * x).sum(-1)),
    "powers": (lambda x: x.exp().sum(-1), lambda x: np.exp(x).sum(-1)),
}
USES: dict[str, tuple[Callable[..., Tensor], Callable[..., Array]]] = {
    "shares": (lambda x, r: x.exp() / r, lambda x, r: np.exp(x) / r),
    "distances": (lambda x, r: x - r, lambda x, r: x - r),
    "both": (
        lambda x, r: (x - r) * (x * r.sin()).exp(),
        lambda x, r: (x - r) * np.exp(x * np.sin(r)),
    ),
}


@settings(max_examples=40, deadline=None)
@given(
    lead=st.sampled_from([(31,), (32,), (65,), (8, 4), (3, 40), (1, 32)]),
    length=st.sampled_from([1, 2, 7, 16, 100, 130]),
    folds=st.lists(st.sampled_from(sorted(FOLDS)), min_size=1, max_size=3, unique=True),
    uses=st.lists(st.sampled_from(sorted(USES)), min_size=1, max_size=2),
    later=st.booleans(),
    dtype=st.sampled_from([dtypes.float32, dtypes.float64]),
    captured=st.booleans(),
)
def test_rows_sums_and_what_is_made_of_them_are_numpys(
    lead: tuple[int, ...],
    length: int,
    folds: list[str],
    uses: list[str],
    later: bool,
    dtype: dtypes.DType,
    captured: bool,
) -> None:
    values = np.random.default_rng(length).uniform(-1, 1, (*lead, length)).astype(dtype.storage)
    other = np.random.default_rng(1).uniform(1, 2, lead).astype(dtype.storage)

    def program(x: Tensor, factor: Tensor) -> tuple[Tensor, ...]:
        sums = [FOLDS[name][0](x) for name in folds]
        rows = sums[0]
        for more in sums[1:]:
            rows = rows + more
        made = [USES[name][0](x, rows.unsqueeze(-1)) for name in uses]
        if later:  # needs the sums, and is needed by what is made of them
            between = (rows * factor).sum()
            made = [out + between for out in made]
        return (*sums, *made, rows.sum() * 2.0)

    x = values.astype(np.float64)
    sums = [FOLDS[name][1](x) for name in folds]
    rows = np.sum(sums, axis=0)
    made = [USES[name][1](x, rows[..., None]) for name in uses]
    if later:
        made = [out + (rows * other).sum() for out in made]
    run = jit(program) if captured else program
    for _ in range(2):
        got = run(Tensor(values), Tensor(other))
        Tensor.realize(*got)
        for mine, want in zip(got, [*sums, *made, rows.sum() * 2.0], strict=True):
            scale = max(1.0, float(np.abs(want).max()))
            bound = 1e-4 if dtype is dtypes.float32 else 1e-11
            np.testing.assert_allclose(mine.numpy() / scale, want / scale, atol=bound)


def loss_and_gradient(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    loss = x.cross_entropy(labels)
    (slope,) = grad(loss, [x])
    return loss, slope


def test_a_loss_and_its_gradient_walk_their_rows_in_one_kernel() -> None:
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((64, 200)).astype(np.float32), rng.integers(0, 200, 64)
    labels[3] = -100  # counts for nothing
    captured = jit(loss_and_gradient)
    for _ in range(2):
        engine.launches = []
        loss, slope = captured(Tensor(x, requires_grad=True), Tensor(labels))
        launched, engine.launches = engine.launches, None
        assert len([name for name in launched if "x200" in name or "r200" in name]) <= 1
    shifted = x.astype(np.float64) - x.max(1, keepdims=True)
    shares = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
    counted = labels != -100
    picked = shares[counted, labels[counted]]
    np.testing.assert_allclose(loss.numpy(), -np.log(picked).mean(), rtol=1e-5)
    shares[counted, labels[counted]] -= 1
    shares[~counted] = 0
    np.testing.assert_allclose(slope.numpy(), shares / counted.sum(), atol=1e-7)


def test_a_wrong_label_is_reported_by_the_kernel_that_keeps_a_row() -> None:
    x, labels = np.zeros((64, 200), np.float32), np.zeros(64, np.int64)
    captured = jit(loss_and_gradient)
    captured(Tensor(x, requires_grad=True), Tensor(labels))
    captured(Tensor(x, requires_grad=True), Tensor(labels))
    labels[63] = 200
    with pytest.raises(IndexRangeError, match="200"):
        captured(Tensor(x, requires_grad=True), Tensor(labels))


def test_a_layer_norms_training_step_gives_the_slopes_of_float64() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((40, 6, 48)).astype(np.float32)
    norm = nn.LayerNorm(48)
    t = Tensor(x, requires_grad=True)
    out = norm(t)
    mean, variance = t.mean(-1), t.var(-1, correction=0)
    (slope,) = grad((out * out * out).sum(), [t])
    Tensor.realize(out, mean, variance, slope)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    spread = np.sqrt(centred.var(-1, keepdims=True) + 1e-5)
    want = centred / spread
    np.testing.assert_allclose(out.numpy(), want, atol=1e-5)
    np.testing.assert_allclose(mean.numpy(), wide.mean(-1), atol=1e-6)
    np.testing.assert_allclose(variance.numpy(), wide.var(-1), rtol=1e-5)
    above = 3 * want * want
    inner = above - above.mean(-1, keepdims=True) - want * (above * want).mean(-1, keepdims=True)
    np.testing.assert_allclose(slope.numpy(), inner / spread, atol=1e-4)
