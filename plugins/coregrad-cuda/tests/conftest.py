"""The CUDA devices of these tests: emulated ones, whose kernels run on the CPU.

The fake of CuPy is coregrad-simt's (tools/coregrad_simt), which needs g++. Without them the tests
are skipped, with the reason; where COREGRAD_REQUIRE names emulated-cuda they fail instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from accelerators import emulated
from cuda_launching import launcher


@pytest.fixture(scope="module")
def emulation() -> Iterator[Any]:
    """The fake of CuPy, with two GPUs and no cache, for the tests of one file."""
    with emulated("cuda", "cupy") as patch:
        from coregrad_simt.fakes.cupy.machine import machine

        patch.setenv("COREGRAD_SIMT_CUDA_DEVICES", "2")
        machine.reset()
        yield machine
        machine.reset()


@pytest.fixture(scope="module")
def device(emulation: Any) -> Any:
    """The first GPU."""
    return launcher.backend.open_device(0)


@pytest.fixture
def nothing_faulty() -> Iterator[None]:
    """Whatever a test does, no kernel touches what is not its own."""
    from coregrad_simt import report

    report.faults.clear()
    yield
    assert report.faults == []
