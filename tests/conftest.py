"""Fixtures of all tests: the devices they run on, and a plugin registry of their own.

COREGRAD_REQUIRE names devices that must be there: their absence fails tests that would otherwise
be skipped. A device named there that is not one of ours is tested as well. ``emulated-cuda`` names
what emulates a device, which has tests of its own (accelerators.py).
"""

import pytest

from coregrad import config, plugins
from coregrad.errors import BackendUnavailable

collect_ignore = ["zoo", "cases_adapter.py"]  # broken on purpose; needs COREGRAD_CASES

REQUIRED = [n for n in config.names("COREGRAD_REQUIRE") if not n.startswith("emulated-")]
DEVICES = list(dict.fromkeys(["cpu", "numpy", *REQUIRED]))


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """The name of each device in turn; a missing one skips the test, or fails it if required."""
    name: str = request.param
    try:
        return plugins.open_device(name).name
    except BackendUnavailable as error:
        if name in REQUIRED:
            pytest.fail(f"COREGRAD_REQUIRE names {name}, but {error}", pytrace=False)
        pytest.skip(str(error))


@pytest.fixture
def plugin_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that has looked up nothing yet, for this test alone."""
    monkeypatch.setattr(plugins, "_registry", plugins.Registry())


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--update-golden`` writes the golden files that the tests then compare with."""
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden")
