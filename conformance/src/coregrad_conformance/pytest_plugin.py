"""The options by which ``pytest --pyargs coregrad_conformance`` is told its backend.

pytest imports this in every project of an environment that has the suite installed: it uses the
standard library alone, and does nothing but define the options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options; without the first one the suite's tests are skipped."""
    group = parser.getgroup("coregrad-conformance")
    group.addoption(
        "--coregrad-backend",
        metavar="NAME",
        default="",
        help="the coregrad device that 'pytest --pyargs coregrad_conformance' checks",
    )
    group.addoption(
        "--coregrad-level",
        metavar="LEVEL",
        default="core",
        help="core (the default), standard or extended",
    )
    group.addoption(
        "--coregrad-timeout",
        metavar="SECONDS",
        type=float,
        default=120.0,
        help="how long one row may take",
    )


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Which backend is checked."""
    name = config.getoption("--coregrad-backend")
    if not name:
        return []
    level = config.getoption("--coregrad-level")
    return [f"coregrad-conformance: {name}, level {level} (a run of pytest is no certificate)"]
