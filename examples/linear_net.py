"""A network without a framework around it: a plain class, two weights, an optimiser.

Run it with ``python examples/linear_net.py``. It trains on the real MNIST digits for a moment and
exits with an error below 90 % test accuracy.
"""

import sys
from pathlib import Path

from coregrad import Tensor, nn

DATA = Path(__file__).resolve().parent / "data" / "mnist"
TARGET = 0.90
STEPS = 400
BATCH = 128


class LinearNet:
    def __init__(self):
        self.l1 = Tensor.kaiming_uniform(784, 128)
        self.l2 = Tensor.kaiming_uniform(128, 10)

    def __call__(self, x: Tensor) -> Tensor:
        return x.flatten(1).dot(self.l1).relu().dot(self.l2)


def main():
    Tensor.manual_seed(1)
    X_train, Y_train, X_test, Y_test = nn.datasets.mnist(DATA)
    model = LinearNet()
    optim = nn.optim.Adam([model.l1, model.l2], lr=0.001)

    for _ in range(STEPS):
        batch = Tensor.randint(BATCH, high=X_train.shape[0])
        x, y = X_train[batch].float() / 255, Y_train[batch]
        optim.zero_grad()
        loss = model(x).sparse_categorical_crossentropy(y)
        loss.backward()
        optim.step()

    guess = model(X_test.float() / 255).argmax(1)
    accuracy = (guess == Y_test).float().mean().item()
    print(f"loss {loss.item():.4f}, test accuracy {accuracy:.2%} (target {TARGET:.0%})")
    return 0 if accuracy >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
