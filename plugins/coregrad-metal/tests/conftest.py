"""The Metal device of these tests: an emulated one, whose kernels run on the CPU.

The fake of metalcompute is coregrad-simt's (tools/coregrad_simt), which needs g++. Without them the
tests are skipped, with the reason; where COREGRAD_REQUIRE names metal they fail instead.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from metal_launching import missing


@pytest.fixture(scope="module")
def emulation() -> Iterator[Any]:
    """The fake of metalcompute, for the tests of one file."""
    try:
        from coregrad_simt import fakes, report
    except ImportError as error:
        missing(f"coregrad-simt is not installed: {error}")
    if shutil.which("g++") is None:
        missing("g++ is not installed, which compiles the kernels of emulated GPUs")
    with pytest.MonkeyPatch.context() as patch, fakes.offered("metalcompute"):
        patch.setenv("COREGRAD_EMULATE", "metal")
        yield report


@pytest.fixture(scope="module")
def device(emulation: Any) -> Any:
    """The GPU."""
    from coregrad_metal.backend import Backend

    return Backend().open_device(0)
