"""Results that were computed without a GPU, by running PTX on a CPU, compared with a GPU's.

    COREGRAD_EMULATE=cuda COREGRAD_SIMT_ROUTE=b python bench/gpu/golden.py make
    python bench/gpu/golden.py check

Integers and bits must be equal; floats may differ by a few units of the last place where the GPU
approximates exp, sin and their like with other last bits, and by the order of a sum.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from coregrad import Tensor

os.environ["COREGRAD_CUDA_MATMUL"] = "kernels"
FILE = Path(__file__).with_name("golden.npz")
RNG = np.random.default_rng(11)
X = RNG.standard_normal((23, 70)).astype(np.float32)
W = RNG.standard_normal((70, 37)).astype(np.float32)
IMAGE = RNG.standard_normal((2, 3, 12, 12)).astype(np.float32)
FILTER = RNG.standard_normal((4, 3, 3, 3)).astype(np.float32)
WIDE = np.concatenate([X[:6].ravel() * 10.0**p for p in range(-8, 9, 4)]).astype(np.float32)
ULP = 8  # of float32 functions


def t(x: np.ndarray) -> Tensor:
    return Tensor(x, device="cuda")


def gradients() -> Tensor:
    w = Tensor(W, device="cuda", requires_grad=True)
    ((t(X) @ w).tanh().square().mean()).backward()
    return w.grad


def training() -> Tensor:
    w = Tensor(W * 0.1, device="cuda", requires_grad=True)
    losses = []
    for _ in range(4):
        w.grad = None
        loss = ((t(X) @ w).relu() - 1).square().mean()
        loss.backward()
        w.assign((w - w.grad * 0.5).detach())
        losses.append(loss.detach())
    return losses[0].stack(*losses[1:])


def bits() -> Tensor:
    Tensor.manual_seed(5)
    return Tensor.randint(0, 1 << 30, (500,), device="cuda")


# A name: what is computed, and how far a float may be off, in ulp of the largest result ("sum") or
# of each ("each").
CASES: dict[str, tuple[Callable[[], Tensor], str]] = {
    "random bits": (bits, "equal"),
    "chain": (lambda: (t(X) * 3 + 1).relu() - t(X), "equal"),
    "int64": (lambda: (t(X) * 1e6).long() * 7919 % 1000003, "equal"),
    "casts to float16": (lambda: t(WIDE).half().float(), "equal"),
    "casts to bfloat16": (lambda: t(WIDE).bfloat16().float(), "equal"),
    "casts to int8": (lambda: t(WIDE).to("int8"), "equal"),
    "division": (lambda: t(X) / (t(X) + 3), "equal"),
    "root": (lambda: t(WIDE).abs().sqrt(), "equal"),
    "argmax": (lambda: t(X).argmax(1), "equal"),
    "sort": (lambda: t(X).sort(1)[0], "equal"),
    "gather": (lambda: t(X)[t(np.arange(22, -1, -2)), 3:9], "equal"),
    "maxima": (lambda: t(X).amax(0), "equal"),
    "exp": (lambda: (t(WIDE).clip(-80, 80)).exp(), "each"),
    "log": (lambda: t(WIDE).abs().log(), "each"),
    "sin": (lambda: t(WIDE).sin(), "each"),
    "tanh": (lambda: t(X).tanh(), "each"),
    "gelu": (lambda: t(X).gelu(), "sum"),
    "softmax": (lambda: t(X).softmax(1), "sum"),
    "sums": (lambda: t(X).sum(0), "sum"),
    "running sums": (lambda: t(X).cumsum(1), "sum"),
    "product": (lambda: t(X) @ t(W), "sum"),
    "product of halves": (lambda: (t(X).half() @ t(W).half()).float(), "half"),
    "convolution": (lambda: t(IMAGE).conv2d(t(FILTER)), "sum"),
    "gradients": (gradients, "sum"),
    "training": (training, "sum"),
}
LIMITS = {"equal": 0.0, "each": ULP, "sum": 64.0, "half": 2.0**14}


def distance(got: np.ndarray, want: np.ndarray, kind: str) -> float:
    """In units of the last place of float32; infinite for what must be equal and is not."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return float("inf")
    same = (got == want) | ((got != got) & (want != want))
    if same.all():
        return 0.0
    if kind == "equal":
        return float("inf")
    size = np.abs(want) if kind == "each" else np.full(want.shape, np.abs(want).max())
    unit = np.spacing(np.maximum(size, np.finfo(np.float32).tiny).astype(np.float32))
    return float((np.abs(got.astype(np.float64) - want) / unit)[~same].max())


def main(what: str) -> int:
    if what == "make":
        np.savez_compressed(FILE, **{name: run().numpy() for name, (run, _) in CASES.items()})
        print(f"{len(CASES)} results, {FILE.stat().st_size} bytes")
        return 0
    wanted, wrong = np.load(FILE), 0
    for name, (run, kind) in CASES.items():
        off = distance(run().numpy(), wanted[name], kind)
        good = off <= LIMITS[kind]
        wrong += not good
        print(f"{name}: {'equal' if off == 0 else f'{off:.1f} ulp'}{'' if good else ' WRONG'}")
    print(f"{len(CASES) - wrong} of {len(CASES)} results hold")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
