"""Training steps of networks made at random: the loss and its slope are right however it is fused.

The step as a whole (loss, gradients, update) is one graph, with all that its parts share. Its slope
along a random direction is checked against a difference of losses, in float64.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coregrad import Tensor, cat, engine, no_grad, stack

BATCH, TIME, WIDTH = 3, 4, 6
STEP = 1e-5


@dataclass
class Parameters:
    """Numbers of a network, made where they are first asked for; the same ones every time."""

    seed: int
    made: list[Tensor] = field(default_factory=list)
    used: int = 0

    def __call__(self, *shape: int) -> Tensor:
        if self.used == len(self.made):
            drawn = np.random.default_rng((self.seed, self.used)).standard_normal(shape) * 0.5
            self.made.append(Tensor(drawn, requires_grad=True))
        self.used += 1
        return self.made[self.used - 1]


Layer = Callable[[Tensor, Parameters], Tensor]  # of values [BATCH, TIME, WIDTH]


def linear(x: Tensor, p: Parameters) -> Tensor:
    return x @ p(WIDTH, WIDTH) + p(WIDTH)


def wide(x: Tensor, p: Parameters) -> Tensor:
    return (x @ p(WIDTH, 4 * WIDTH)).gelu() @ p(4 * WIDTH, WIDTH)


def norm(x: Tensor, p: Parameters) -> Tensor:
    return x.layer_norm((WIDTH,), p(WIDTH), p(WIDTH))


def over_the_batch(x: Tensor, p: Parameters) -> Tensor:
    mean, variance = x.mean((0, 1)), x.var((0, 1), correction=0)
    return (x - mean) / (variance + 1e-3).sqrt() * p(WIDTH)


def attention(x: Tensor, p: Parameters) -> Tensor:
    joined = (x @ p(WIDTH, 3 * WIDTH)).reshape(BATCH, TIME, 3, 2, WIDTH // 2)
    q, k, v = (joined[:, :, i].transpose(1, 2) for i in range(3))
    scores = (q @ k.transpose(2, 3) * 0.5).softmax(-1)
    return x + (scores @ v).transpose(1, 2).reshape(BATCH, TIME, WIDTH) @ p(WIDTH, WIDTH)


def strided(x: Tensor, p: Parameters) -> Tensor:
    y = x.reshape(BATCH, 1, TIME, WIDTH).conv2d(p(2, 1, 3, 3), stride=2, padding=1)
    z = y.conv_transpose2d(p(2, 1, 2, 2), stride=2)
    return x + z.reshape(BATCH, TIME, WIDTH)


def grouped(x: Tensor, p: Parameters) -> Tensor:
    y = x.transpose(1, 2).conv1d(p(WIDTH, WIDTH // 2, 3), p(WIDTH), padding=1, groups=2)
    return y.transpose(1, 2)


def pooled(x: Tensor, p: Parameters) -> Tensor:
    y = x.reshape(BATCH, 1, TIME, WIDTH).max_pool2d(3, stride=2, padding=1)
    return x * p(WIDTH) + y.sum((1, 2, 3)).reshape(BATCH, 1, 1)


def recurrent(x: Tensor, p: Parameters) -> Tensor:
    inner, outer = p(WIDTH, WIDTH), p(WIDTH, WIDTH)
    state, states = x[:, 0] * 0, []
    for i in range(TIME):
        state = (x[:, i] @ outer + state @ inner).tanh()
        states.append(state)
    return stack(states, dim=1)


def gated(x: Tensor, p: Parameters) -> Tensor:
    a, b = (x @ p(WIDTH, 2 * WIDTH)).chunk(2, -1)
    return a.sigmoid() * b


def shifted(x: Tensor, p: Parameters) -> Tensor:
    return cat([x[:, 1:], x[:, :1] * p(WIDTH)], dim=1)


def looked_up(x: Tensor, p: Parameters) -> Tensor:
    places = Tensor(np.arange(BATCH * TIME).reshape(BATCH, TIME) * 5 % 7)
    return x + places.embedding(p(7, WIDTH))


def summed(x: Tensor, p: Parameters) -> Tensor:
    return x.cumsum(1) * p(WIDTH)


LAYERS = [
    linear, wide, norm, over_the_batch, attention, strided, grouped, pooled, recurrent, gated,
    shifted, looked_up, summed,
]  # fmt: skip


def loss_of(layers: list[Layer], p: Parameters, x: Tensor, labelled: bool) -> Tensor:
    p.used = 0
    for layer in layers:
        x = layer(x, p)
    scores = x.mean(1) @ p(WIDTH, 5)
    if labelled:
        return scores.cross_entropy(Tensor(np.arange(BATCH) * 2))
    return (scores * scores).sum()


def losses(layers: list[Layer], seed: int, labelled: bool) -> tuple[float, list, list, list]:
    """The loss, the gradients, the parameters before and after a step."""
    p = Parameters(seed)
    x = Tensor(np.random.default_rng(seed).standard_normal((BATCH, TIME, WIDTH)))
    loss = loss_of(layers, p, x, labelled)
    loss.backward()
    before = [w.numpy() for w in p.made]
    with no_grad():
        for w in p.made:
            assert w.grad is not None
            w.sub_(w.grad * 0.1)
    engine.realize([loss.node, *(w.node for w in p.made)], "cpu")
    after = [w.numpy() for w in p.made]
    return loss.item(), [w.grad.numpy() for w in p.made], before, after


@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.sampled_from(LAYERS), min_size=1, max_size=5),
    st.integers(0, 99),
    st.booleans(),
)
def test_a_training_step_has_the_slope_of_its_loss(
    monkeypatch: pytest.MonkeyPatch, layers: list[Layer], seed: int, labelled: bool
) -> None:
    loss, gradients, before, after = losses(layers, seed, labelled)
    for w, g, new in zip(before, gradients, after, strict=True):
        np.testing.assert_allclose(new, w - 0.1 * g, rtol=1e-12, atol=1e-14)
    rng = np.random.default_rng(seed + 1)
    directions = [rng.standard_normal(w.shape) for w in before]
    x = Tensor(np.random.default_rng(seed).standard_normal((BATCH, TIME, WIDTH)))
    monkeypatch.setenv("COREGRAD_FUSION", "0")
    there = []
    for side in (0, STEP, -STEP):
        moved = [Tensor(w + side * d) for w, d in zip(before, directions, strict=True)]
        there.append(loss_of(layers, Parameters(seed, moved), x, labelled).item())
    monkeypatch.setenv("COREGRAD_FUSION", "1")
    np.testing.assert_allclose(loss, there[0], rtol=1e-10)
    slope = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
    scale = abs(slope) + sum(
        float(np.abs(g * d).sum()) for g, d in zip(gradients, directions, strict=True)
    )
    assert abs((there[1] - there[2]) / (2 * STEP) - slope) <= 1e-5 * scale + 1e-8
