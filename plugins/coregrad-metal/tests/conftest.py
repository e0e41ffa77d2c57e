"""The Metal device of these tests: an emulated one, whose kernels run on the CPU.

The fake of metalcompute is coregrad-simt's (tools/coregrad_simt), which needs g++. Without them the
tests are skipped, with the reason; where COREGRAD_REQUIRE names emulated-metal they fail instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from accelerators import emulated
from metal_launching import launcher


@pytest.fixture(scope="module")
def emulation() -> Iterator[Any]:
    """The fake of metalcompute, for the tests of one file."""
    with emulated("metal", "metalcompute"):
        from coregrad_simt import report

        yield report


@pytest.fixture(scope="module")
def device(emulation: Any) -> Any:
    """The GPU."""
    return launcher.backend.open_device(0)


@pytest.fixture
def nothing_faulty() -> Iterator[None]:
    """Whatever a test does, no kernel touches what is not its own."""
    from coregrad_simt import report

    report.faults.clear()
    yield
    assert report.faults == []
