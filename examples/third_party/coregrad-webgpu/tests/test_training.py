"""A small network learns on the device as it does on the CPU."""

import numpy as np
import pytest
from coregrad import Device, Tensor, nn

STEPS = 5


class Net:
    def __init__(self):
        self.convolution = nn.Conv2d(1, 4, 3)
        self.hidden = nn.Linear(4 * 3 * 3, 16)
        self.out = nn.Linear(16, 10)

    def __call__(self, x):
        x = self.convolution(x).relu().max_pool2d(2)
        return self.out(self.hidden(x.reshape(x.shape[0], -1)).relu())


def losses(device):
    rng = np.random.default_rng(0)
    images, labels = rng.standard_normal((16, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, 16)
    with Device(device):
        Tensor.manual_seed(1)
        net = Net()
        layers = (net.convolution, net.hidden, net.out)
        optim = nn.optim.Adam([p for layer in layers for p in layer.parameters()], lr=0.01)
        x, y = Tensor(images), Tensor(labels)
        found = []
        for _ in range(STEPS):
            loss = net(x).cross_entropy(y)
            optim.zero_grad()
            loss.backward()
            optim.step()
            found.append(loss.item())
    return np.array(found)


def test_three_layers_have_the_losses_of_the_cpu(device):
    pytest.importorskip("coregrad_cpu")
    want = losses("cpu")
    assert want[-1] < 0.9 * want[0]
    np.testing.assert_allclose(losses("webgpu"), want, rtol=1e-5)
