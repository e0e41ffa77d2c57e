"""Programs written for PyTorch or in tinygrad's style, as their users write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import coregrad.nn.optim as optim
from coregrad import Device, Function, Tensor, nn
from coregrad.errors import BackendUnavailable
from coregrad.nn import Linear, Sequential


def test_the_first_lines_of_a_quick_start() -> None:
    x = Tensor.eye(3).clone()
    y = Tensor([[2.0, 0, -2.0]])
    y.matmul(x).sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), [[2, 2, 2], [0, 0, 0], [-2, -2, -2]])


def test_moving_between_devices() -> None:
    t = Tensor([1, 2, 3])
    assert t.cpu().tolist() == [1, 2, 3]
    assert t.to(Device.DEFAULT).tolist() == [1, 2, 3]
    with pytest.raises(BackendUnavailable, match="pip install coregrad-cuda"):
        t.cuda()


class Net(nn.Module):
    def __init__(self) -> None:
        self.layers: list[Any] = [Linear(784, 128), Tensor.relu, Linear(128, 10)]

    def forward(self, x: Tensor) -> Tensor:
        return x.sequential(self.layers)


def test_layers_in_a_list_have_parameters() -> None:
    assert [p.shape for p in Net().parameters()] == [(128, 784), (128,), (10, 128), (10,)]
    assert len(nn.state.get_parameters(Sequential(Linear(4, 3), Linear(3, 2)))) == 4


def test_a_loop_that_adds_up_losses() -> None:
    net = Net()
    steps = optim.SGD(net.parameters(), lr=0.1)
    x, labels = Tensor.randn(8, 784), Tensor(np.arange(8))
    total: Any = 0.0
    for _ in range(5):
        steps.zero_grad()
        loss = net(x).sparse_categorical_crossentropy(labels)
        loss.backward()
        steps.step()
        total += loss.data
    assert float(f"{total:.4f}") > 0


class Add(Function):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.shapes = x.shape, y.shape
        return x + y

    def backward(self, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        assert self.shapes[0] == grad_output.shape
        return grad_output, grad_output * 2  # wrong on purpose: the rule is the user's


def test_a_function_in_instance_style_decides_its_own_gradient() -> None:
    a, b = Tensor([1.0, 2.0], requires_grad=True), Tensor([3.0, 4.0], requires_grad=True)
    out = Add.apply(a, b)
    out.sum().backward()
    assert out.tolist() == [4.0, 6.0]
    assert a.grad is not None
    assert b.grad is not None
    assert a.grad.tolist() == [1.0, 1.0]
    assert b.grad.tolist() == [2.0, 2.0]


class LayerNorm(Function):
    """Normalised rows with weight and bias, and their gradient by hand."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        self.scale = ((x - mean) ** 2).mean(-1, keepdim=True).add(1e-5).rsqrt()
        self.normal = (x - mean) * self.scale
        self.weight = weight
        return self.normal * weight + bias

    def backward(self, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        g = grad_output * self.weight
        along = (g * self.normal).mean(-1, keepdim=True)
        x = (g - g.mean(-1, keepdim=True) - self.normal * along) * self.scale
        return x, (grad_output * self.normal).sum(0), grad_output.sum(0)


def test_a_users_layer_norm_equals_ours_and_the_numerical_gradient() -> None:
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(s) for s in ((5, 7), (7,), (7,))]
    seed = rng.standard_normal((5, 7))
    mine = [Tensor(v.astype(np.float32), requires_grad=True) for v in values]
    out = LayerNorm.apply(*mine)
    out.backward(Tensor(seed.astype(np.float32)))

    ours = nn.LayerNorm(7)
    ours.weight.assign(mine[1].detach())
    ours.bias.assign(mine[2].detach())
    x = Tensor(values[0].astype(np.float32), requires_grad=True)
    wanted = ours(x)
    wanted.backward(Tensor(seed.astype(np.float32)))
    np.testing.assert_allclose(out.numpy(), wanted.numpy(), atol=1e-4)
    for a, b in zip(mine, (x, ours.weight, ours.bias), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), atol=1e-4)

    def loss(x: Any, weight: Any, bias: Any) -> float:
        centred = x - x.mean(-1, keepdims=True)
        normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return float(((normal * weight + bias) * seed).sum())

    for which, a in enumerate(mine):
        slopes = np.zeros_like(values[which])
        for at in np.ndindex(*slopes.shape):
            moved = [v.copy() for v in values]
            moved[which][at] += 1e-5
            up = loss(*moved)
            moved[which][at] -= 2e-5
            slopes[at] = (up - loss(*moved)) / 2e-5
        assert a.grad is not None
        np.testing.assert_allclose(a.grad.numpy(), slopes, rtol=1e-4, atol=1e-4)
