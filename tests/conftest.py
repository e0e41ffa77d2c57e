"""Fixtures of all tests: the devices they run on, and a plugin registry of their own.

COREGRAD_REQUIRE names devices that must be there: their absence fails a test that would otherwise
be skipped.
"""

import pytest

from coregrad import config, plugins
from coregrad.errors import BackendUnavailable

collect_ignore = ["zoo"]  # broken on purpose; loaded by the tests of plugins

DEVICES = ("cpu", "numpy")


def required() -> set[str]:
    """The devices that COREGRAD_REQUIRE names."""
    return {name.strip() for name in config.get("COREGRAD_REQUIRE").split(",") if name.strip()}


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """The name of each device in turn; a missing one skips the test, or fails it if required."""
    name: str = request.param
    try:
        return plugins.open_device(name).name
    except BackendUnavailable as error:
        if name in required():
            pytest.fail(f"COREGRAD_REQUIRE names {name}, but {error}", pytrace=False)
        pytest.skip(str(error))


@pytest.fixture
def plugin_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that has looked up nothing yet, for this test alone."""
    monkeypatch.setattr(plugins, "_registry", plugins.Registry())


def pytest_sessionstart() -> None:
    """Refuse a required device that no test knows: a typing error there would require nothing."""
    unknown = required() - set(DEVICES)
    if unknown:
        raise pytest.UsageError(f"COREGRAD_REQUIRE names unknown devices: {', '.join(unknown)}")
