"""Which device is the default on a computer with several: real choices between fake GPUs.

The fakes of CuPy and metalcompute stand where the real libraries would, and nobody has asked for an
emulation: for coregrad this is a computer with NVIDIA's and Apple's GPUs at once. Each choice is
made by a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import pytest
from cuda_launching import missing

pytest.importorskip("coregrad_simt")

COMPUTER = """
import dataclasses, json, os, sys
import coregrad_cuda, coregrad_metal, coregrad_simt

def there(function):
    return lambda: dataclasses.replace(function(), rank="gpu")  # as where the driver's files are

if "COREGRAD_EMULATE" not in os.environ:
    coregrad_simt.install_fakes("cupy", "metalcompute")
    coregrad_cuda.cuda_info = there(coregrad_cuda.cuda_info)
    coregrad_metal.metal_info = there(coregrad_metal.metal_info)
from coregrad import Device, Tensor
from coregrad_simt import report

made = Tensor([1.0, 2.0]) * 3
answer = {"default": str(Device.DEFAULT), "device": str(made.device), "values": made.tolist()}
with Device("numpy"):
    answer["scope"] = str(Device.DEFAULT)
answer["launches"] = report.launches()
print(json.dumps(answer))
"""


def asked(**environment: str) -> tuple[dict[str, Any], str]:
    """What a process on such a computer answers, and what it says on stderr."""
    if shutil.which("g++") is None:
        missing("g++ is not installed, which compiles the kernels of emulated GPUs")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("COREGRAD_", "PYTHONPATH"))}
    cache = {k: v for k, v in os.environ.items() if k in ("COREGRAD_CACHE", "COREGRAD_SIMT_CACHE")}
    done = subprocess.run(
        [sys.executable, "-c", COMPUTER],
        env=kept | cache | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found, done.stderr


def test_of_two_gpus_cuda_is_the_default_and_computes() -> None:
    found, said = asked()
    assert found["default"] == found["device"] == "cuda"
    assert found["values"] == [3.0, 6.0]
    assert found["launches"] > 0
    assert found["scope"] == "numpy"
    assert said == ""


@pytest.mark.parametrize(
    ("environment", "default"),
    [
        ({"COREGRAD_PLUGINS": "-coregrad-cuda"}, "metal"),
        ({"COREGRAD_DEVICE": "metal"}, "metal"),
        ({"COREGRAD_DEVICE": "cuda:1,metal", "COREGRAD_SIMT_CUDA_DEVICES": "2"}, "cuda:1"),
        ({"COREGRAD_DEVICE": "cuda:1,metal"}, "metal"),  # there is one GPU of NVIDIA's
        ({"COREGRAD_DEVICE": "cpu"}, "cpu"),
        ({"COREGRAD_EMULATE": "cuda,metal"}, "cpu"),  # emulated ones are for who names them
        ({"COREGRAD_EMULATE": "cuda,metal", "COREGRAD_DEVICE": "cuda"}, "cuda"),
    ],
    ids=lambda value: " ".join(map("=".join, value.items())) if isinstance(value, dict) else value,
)
def test_what_was_asked_for_decides(environment: dict[str, str], default: str) -> None:
    found, said = asked(**environment)
    assert found["default"] == found["device"] == default
    assert found["values"] == [3.0, 6.0]
    assert (found["launches"] > 0) == (default not in ("cpu", "numpy"))
    assert said == ""


def test_a_gpu_that_is_gone_is_named_and_the_next_best_is_used() -> None:
    found, said = asked(COREGRAD_SIMT_CUDA_DEVICES="0")
    assert found["default"] == found["device"] == "metal"
    assert found["values"] == [3.0, 6.0]
    assert said.count("\n") == 1
    assert "using metal, as cuda" in said
    found, said = asked(COREGRAD_SIMT_CUDA_DEVICES="0", COREGRAD_SIMT_METAL_DEVICES="0")
    assert found["default"] == found["device"] == "cpu"
    assert said.count("\n") == 1
    assert "using cpu, as cuda" in said
