"""The CUDA devices of these tests: emulated ones, whose kernels run on the CPU.

The fake of CuPy is coregrad-simt's (tools/coregrad_simt), which needs g++. Without them the tests
are skipped, with the reason; where COREGRAD_REQUIRE names cuda they fail instead.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from cuda_launching import missing


@pytest.fixture(scope="module")
def emulation() -> Iterator[Any]:
    """The fake of CuPy, with two GPUs and no cache, for the tests of one file."""
    try:
        from coregrad_simt.fakes.cupy.machine import machine
    except ImportError as error:
        missing(f"coregrad-simt is not installed: {error}")
    if shutil.which("g++") is None:
        missing("g++ is not installed, which compiles the kernels of emulated GPUs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COREGRAD_EMULATE", "cuda")
        patch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # the fake puts itself there
        patch.setattr(sys, "path", [*sys.path])
        patch.setenv("COREGRAD_CACHE", "0")
        patch.setenv("COREGRAD_SIMT_CUDA_DEVICES", "2")
        machine.reset()
        yield machine
    machine.reset()
    for name in [name for name in sys.modules if name.partition(".")[0] == "cupy"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def device(emulation: Any) -> Any:
    """The first GPU."""
    from coregrad_cuda.backend import Backend

    return Backend().open_device(0)
