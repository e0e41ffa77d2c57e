"""Times on the GPU: copies, element-wise chains, softmax, products beside cuBLAS, a training step.

A number is the best of a few rounds; each round waits for the GPU at its end. Fractions say how
near a result is to what the GPU can do at all: of the bandwidth of a copy, or of cuBLAS's speed for
the same product. torch is timed beside where it is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from coregrad import Tensor, TinyJit, engine, plugins

SMALL = bool(os.environ.get("COREGRAD_EMULATE"))  # a trial of this script, without a GPU
ROUNDS = 2 if SMALL else 5
SECONDS = 0.0 if SMALL else 0.15  # of a round


def best(call: Callable[[], Any], wait: Callable[[], None]) -> float:
    """Seconds of one call, when many are given without waiting in between."""
    for _ in range(4):  # compile, capture, fill pools
        kept = call()
    wait()
    times = []
    for _ in range(ROUNDS):
        count, began = 0, time.perf_counter()
        while count == 0 or time.perf_counter() - began < SECONDS:
            for _ in range(1 if SMALL else 5):
                kept = call()
                count += 1
        wait()
        times.append((time.perf_counter() - began) / count)
    del kept
    return min(times)


class Ours:
    """coregrad on the device."""

    def __init__(self) -> None:
        self.device: Any = plugins.open_device("cuda").device

    def wait(self) -> None:
        self.device.synchronize()

    def time(self, function: Callable[..., Tensor], *inputs: np.ndarray) -> float:
        tensors = [Tensor(x, device="cuda") for x in inputs]
        captured = TinyJit(function)
        return best(lambda: captured(*tensors).realize(), self.wait)


def torch_time(function: Callable[..., Any], *inputs: np.ndarray) -> float | None:
    """The same in torch, if it is there and has the GPU."""
    if SMALL or importlib.util.find_spec("torch") is None:
        return None
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return None
    torch.backends.cuda.matmul.allow_tf32 = False
    tensors = [torch.from_numpy(x).cuda() for x in inputs]
    return best(lambda: function(*tensors), torch.cuda.synchronize)


def copy_bandwidth(ours: Ours, size: int) -> float:
    """Bytes per second that a copy within the GPU's memory reads and writes."""
    driver = ours.device._gpu
    runtime, stream = driver._runtime, driver._stream.ptr
    a, b = (ours.device.allocate(size) for _ in range(2))
    kind = runtime.memcpyDeviceToDevice
    seconds = best(lambda: runtime.memcpyAsync(b.address, a.address, size, kind, stream), ours.wait)
    return 2 * size / seconds


def elements(ours: Ours, copy: float, n: int) -> dict[str, Any]:
    x = np.random.default_rng(0).standard_normal((n, n)).astype(np.float32)
    out = {}
    for name, function, moved in (
        ("chain", lambda a: ((a * 2 + 1).relu() * a - 3).exp(), 2),
        ("softmax", lambda a: a.softmax(1), 2),
        ("sum of rows", lambda a: a.sum(1), 1),
        ("sum of columns", lambda a: a.sum(0), 1),
        ("layer norm", lambda a: (a - a.mean(1, True)) / (a.var(1, keepdim=True) + 1e-5).sqrt(), 2),
    ):
        seconds = ours.time(function, x)
        row: dict[str, Any] = {"seconds": seconds}
        row["of_copy"] = moved * x.nbytes / seconds / copy
        if name in ("softmax", "sum of rows", "sum of columns"):
            call = {"softmax": lambda a: a.softmax(1), "sum of rows": lambda a: a.sum(1),
                    "sum of columns": lambda a: a.sum(0)}[name]  # fmt: skip
            row["torch_seconds"] = torch_time(call, x)
        out[f"{name} {n}x{n}"] = row
    return out


def products(ours: Ours, n: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((n, n)).astype(np.float32) for _ in range(2))
    out: dict[str, Any] = {}
    for way in ("", "kernels", "tf32"):
        os.environ["COREGRAD_CUDA_MATMUL"] = way
        engine._plans.clear()  # how a product is made is decided when it is compiled
        seconds = ours.time(lambda a, b: a @ b, x, y)
        out[way or "cublas"] = {"seconds": seconds, "tflops": 2 * n**3 / seconds / 1e12}
    os.environ["COREGRAD_CUDA_MATMUL"] = ""
    engine._plans.clear()
    for way in ("kernels", "tf32"):
        out[way]["of_cublas"] = out["cublas"]["seconds"] / out[way]["seconds"]
    out["torch_seconds"] = torch_time(lambda a, b: a @ b, x, y)
    return out


def training(ours: Ours, batch: int, width: int) -> dict[str, Any]:
    """A step of a network of three layers: all of it, and how long kernels are at work in it."""
    rng = np.random.default_rng(0)
    x = Tensor(rng.standard_normal((batch, 784)).astype(np.float32), device="cuda")
    labels = Tensor(rng.integers(0, 10, batch), device="cuda")
    places = Tensor.arange(batch, device="cuda")
    shapes = ((784, width), (width, width), (width, 10))
    weights = [
        Tensor(rng.standard_normal(s).astype(np.float32) * 0.05, device="cuda", requires_grad=True)
        for s in shapes
    ]

    @TinyJit
    def step() -> Tensor:
        a, b, c = weights
        scores = ((x @ a).relu() @ b).relu() @ c
        loss = -(scores.log_softmax(1)[places, labels]).mean()
        for w in weights:
            w.grad = None
        loss.backward()
        for w in weights:
            w.assign((w - w.grad * 0.01).detach())
        return loss

    wall = best(step, ours.wait)
    busy, kernels = kernel_seconds(ours, step)
    found = {"seconds": wall, "kernels": kernels, "kernel_seconds": busy, "busy_share": busy / wall}
    return found | {"loss": step().item()}


def kernel_seconds(ours: Ours, step: Callable[[], Any]) -> tuple[float, int]:
    """What the launches of one step take by the GPU's clock, each on its own."""
    device, times = ours.device, []
    plain = device.launch

    def launch(*arguments: Any) -> None:
        plain(*arguments)
        times.append(device.elapsed())

    device.launch, device._timed, engine.launches = launch, True, []
    try:
        step()
    finally:
        del device.launch
        device._timed, engine.launches = False, None
    return sum(times), len(times)


def main(path: str) -> None:
    ours = Ours()
    n = 64 if SMALL else 4096
    copy = copy_bandwidth(ours, 4 * n * n * (1 if SMALL else 4))
    found: dict[str, Any] = {"device": ours.device.title, "emulated": SMALL}
    found["copy_gigabytes_per_second"] = copy / 1e9
    parts = {
        "elements": lambda: elements(ours, copy, n),
        f"product {n}": lambda: products(ours, n),
        "product 1024": lambda: products(ours, 32 if SMALL else 1024),
        "training": lambda: training(ours, 16 if SMALL else 512, 16 if SMALL else 1024),
    }
    for name, part in parts.items():
        found[name] = part()
        with open(path, "w") as file:  # after each part: a time limit may end the next
            json.dump(found, file, indent=1)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(sys.argv[1])
