"""A multi-layer perceptron (784-128-64-10) on MNIST: 97 % after five epochs, or an error.

Run it with ``python examples/mnist_mlp.py``; it needs tqdm (``examples/requirements.txt``).
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

from coregrad import Tensor, nn, no_grad

DATA = Path(__file__).resolve().parent / "data" / "mnist"
TARGET = 0.97
MEAN, DEVIATION = 33.3, 78.6  # of the training images' grey values


class MLP(nn.Module):
    def __init__(self):
        self.layers = [
            nn.Linear(784, 128),
            Tensor.relu,
            nn.Linear(128, 64),
            Tensor.relu,
            nn.Linear(64, 10),
        ]

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).sequential(self.layers)


def standardised(images):
    return (images.float() - MEAN) / DEVIATION


def train_epoch(model, optim, X, Y, batch, order, label, rates):
    losses = []
    starts = range(0, len(order) - batch + 1, batch)
    with tqdm(starts, desc=label, unit="batch") as bar:
        for start in bar:
            chosen = order[start : start + batch]
            x, y = standardised(Tensor(X[chosen])), Tensor(Y[chosen])
            optim.lr = next(rates)
            optim.zero_grad()
            loss = model(x).cross_entropy(y)
            loss.backward()
            optim.step()
            losses.append(loss.item())
            bar.set_postfix(loss=f"{losses[-1]:.3f}")
    return float(np.mean(losses))


def accuracy(model, X, Y):
    with no_grad():
        guess = model(standardised(X)).argmax(1)
        return (guess == Y).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=0.003, help="at the first step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", default=DATA, help="folder with the four MNIST files")
    args = parser.parse_args()

    Tensor.manual_seed(args.seed)
    shuffle = np.random.default_rng(args.seed)
    X_train, Y_train, X_test, Y_test = nn.datasets.mnist(args.data)
    X, Y = X_train.numpy(), Y_train.numpy()
    model = MLP()
    optim = nn.optim.Adam(model.parameters(), lr=args.lr)
    steps = args.epochs * (len(X) // args.batch)
    rates = iter(args.lr * (1 - step / steps) for step in range(steps))  # falls to 0 along a line

    started = time.perf_counter()
    reached = 0.0
    for epoch in range(args.epochs):
        order = shuffle.permutation(len(X))
        label = f"epoch {epoch + 1}/{args.epochs}"
        loss = train_epoch(model, optim, X, Y, args.batch, order, label, rates)
        reached = accuracy(model, X_test, Y_test)
        print(f"{label}: mean loss {loss:.4f}, test accuracy {reached:.2%}")
    print(f"{time.perf_counter() - started:.1f} s on {X_test.device}")

    if reached < TARGET:
        print(f"below the target of {TARGET:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
