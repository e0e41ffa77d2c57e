"""A device for the tests that need one: without it they are skipped, or fail if asked to."""

import os

import pytest
from coregrad.errors import BackendUnavailable

from coregrad_webgpu.backend import Backend


@pytest.fixture(scope="session")
def device():
    try:
        return Backend().open_device(0)
    except BackendUnavailable as error:
        if "webgpu" in os.environ.get("COREGRAD_REQUIRE", "").split(","):
            raise
        pytest.skip(str(error))
