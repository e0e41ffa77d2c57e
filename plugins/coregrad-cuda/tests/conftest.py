"""The CUDA devices of these tests: emulated ones, whose kernels run on the CPU.

The fake of CuPy is coregrad-simt's (tools/coregrad_simt), which needs g++. Without them the tests
are skipped, with the reason; where COREGRAD_REQUIRE names cuda they fail instead.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from cuda_launching import missing


@pytest.fixture(scope="module")
def emulation() -> Iterator[Any]:
    """The fake of CuPy, with two GPUs and no cache, for the tests of one file."""
    try:
        from coregrad_simt import fakes
        from coregrad_simt.fakes.cupy.machine import machine
    except ImportError as error:
        missing(f"coregrad-simt is not installed: {error}")
    if shutil.which("g++") is None:
        missing("g++ is not installed, which compiles the kernels of emulated GPUs")
    with pytest.MonkeyPatch.context() as patch, fakes.offered("cupy"):
        patch.setenv("COREGRAD_EMULATE", "cuda")
        patch.setenv("COREGRAD_CACHE", "0")
        patch.setenv("COREGRAD_SIMT_CUDA_DEVICES", "2")
        machine.reset()
        yield machine
        machine.reset()


@pytest.fixture(scope="module")
def device(emulation: Any) -> Any:
    """The first GPU."""
    from coregrad_cuda.backend import Backend

    return Backend().open_device(0)
