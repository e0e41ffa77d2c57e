"""What is promised of memory, read in processes of their own: nothing grows, peaks stay low."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llvmlite")

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="this system does not tell a process's memory"
)


def run_python(code: str, *arguments: str) -> str:
    """What a program prints in a process of its own, which has to end well."""
    environment = {k: v for k, v in os.environ.items() if k not in ("DEBUG", "COREGRAD_DEVICE")}
    environment |= {
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "COREGRAD_CACHE": "0",
        "COREGRAD_NUM_THREADS": "2",
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- nothing grows -----------------------------------------------------------------------------

TRAINING = """
import gc, sys, threading
import numpy as np
from coregrad import Device, Tensor, engine, jit, nn
from coregrad.api import composed
from coregrad.ir import graph
from coregrad.plugins import open_device
from coregrad_cpu.llvm.device import Device as Cpu, Replay
from coregrad_cpu.llvm.pool import Pool

calls = {"launches": 0, "replays": 0, "native": 0}
def counted(owner, method, name):
    plain = getattr(owner, method)
    def call(*arguments):
        calls[name] += 1
        return plain(*arguments)
    setattr(owner, method, call)
counted(Cpu, "launch", "launches")
counted(Replay, "run", "replays")
counted(Pool, "run", "native")

def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * 4096
def footprint():
    gc.collect()
    objects = gc.get_objects()
    device = open_device("cpu").device
    return {
        "buffers": sum(isinstance(o, engine.Storage) for o in objects),
        "bytes": sum(o.nbytes for o in objects if isinstance(o, engine.Storage)),
        "tensors": sum(isinstance(o, Tensor) for o in objects),
        "nodes": graph.alive(),
        "heads": len(graph._heads),
        "plans": len(engine._plans),
        "formulas": len(composed._traced),
        "kernels": len(device._compiled),
        "run lists": len(device.pool._crew.kept),
        "free blocks": sum(map(len, device.arena._free.values())),
        "free bytes": device.arena.kept,
        "slabs": len(device.arena._slabs),
        "threads": threading.active_count(),
    }

captured = sys.argv[1] == "captured"
rng = np.random.default_rng(0)
x, y = rng.standard_normal((4, 8)).astype(np.float32), rng.integers(0, 3, 4)
Tensor.manual_seed(0)
with Device("cpu"):
    net = nn.Sequential(nn.Linear(8, 8), Tensor.relu, nn.Linear(8, 3))
    optim = nn.optim.Adam(net.parameters(), lr=1e-3)
    def step(x, y):
        optim.zero_grad()
        loss = net(x).cross_entropy(y)
        loss.backward()
        optim.step()
        return loss
    if captured:
        step = jit(step)
    losses = []
    for i in range(1, 10_001):
        losses.append(step(Tensor(x), Tensor(y)).item())
        if i == 100:
            early = footprint()
            for name in calls:
                calls[name] = 0
            before = resident()
after, late = resident(), footprint()
assert losses[-1] < 0.1 * losses[0], (losses[0], losses[-1])
assert late == early, {k: (early[k], late[k]) for k in early if early[k] != late[k]}
assert after <= 1.01 * before, f"{before} bytes after 100 steps, {after} after 10,000"
if captured:
    assert step.captures == 1
    assert calls == {"launches": 0, "replays": 9_900, "native": 9_900}, calls
    assert step.kernels > 5
else:
    assert calls["replays"] == 0, calls
    assert calls["launches"] % 9_900 == 0, calls
print("well")
"""


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "captured"])
def test_nothing_grows_over_10000_steps_of_training(kind: str) -> None:
    """And a captured step, its optimiser included, is one call into native code."""
    assert run_python(TRAINING, kind) == "well\n"


# ---- the peak of a training step -----------------------------------------------------------------

PEAK = """
import sys
import numpy as np
def memory(name):
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(name)))
rng = np.random.default_rng(0)
x = rng.standard_normal((512, 1, 28, 28)).astype(np.float32)
y = rng.integers(0, 10, 512)
if sys.argv[1] == "torch":
    import torch
    from torch import nn
    torch.set_num_threads(2)
    net = nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.ReLU(), nn.Conv2d(32, 32, 5), nn.ReLU(),
        nn.BatchNorm2d(32), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
        nn.BatchNorm2d(64), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(576, 10),
    )
    optim = torch.optim.Adam(net.parameters())
    def step(x, y):
        optim.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optim.step()
        return loss
    X, Y = torch.tensor(x), torch.tensor(y)
else:
    from coregrad import Device, Tensor, jit, nn
    Device.DEFAULT = "cpu"
    net = nn.Sequential(
        nn.Conv2d(1, 32, 5), Tensor.relu, nn.Conv2d(32, 32, 5), Tensor.relu,
        nn.BatchNorm(32), Tensor.max_pool2d,
        nn.Conv2d(32, 64, 3), Tensor.relu, nn.Conv2d(64, 64, 3), Tensor.relu,
        nn.BatchNorm(64), Tensor.max_pool2d, lambda x: x.flatten(1), nn.Linear(576, 10),
    )
    optim = nn.optim.Adam(net.parameters())
    def step(x, y):
        optim.zero_grad()
        loss = net(x).cross_entropy(y)
        loss.backward()
        optim.step()
        return loss
    if sys.argv[1] == "captured":
        step = jit(step)
    X, Y = Tensor(x), Tensor(y)
before = memory("VmRSS")
for _ in range(3):
    step(X, Y).item()
print(memory("VmHWM") - before)
"""


@needs_proc
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_a_convolutional_training_step_needs_no_more_memory_than_pytorchs() -> None:
    torch, plain, captured = (int(run_python(PEAK, k)) for k in ("torch", "plain", "captured"))
    assert plain <= torch
    assert captured <= torch
