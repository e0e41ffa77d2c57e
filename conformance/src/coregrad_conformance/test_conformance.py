"""``pytest --pyargs coregrad_conformance --coregrad-backend NAME``: one test per row.

The rows run where those of ``coregrad-conformance run`` do, in an isolated process that may crash
or hang, and what comes out is the same. It is no certificate: pytest can be told to leave out or
reinterpret tests, and only ``run`` writes one.
"""

from __future__ import annotations

import datetime
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

import pytest

from coregrad_conformance import assessment, runner
from coregrad_conformance.result import Result
from coregrad_conformance.row import LEVELS
from coregrad_conformance.waivers import Waived


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test per row of the level; none without a backend."""
    if "row_id" not in metafunc.fixturenames:
        return
    level = metafunc.config.getoption("--coregrad-level")
    if level not in LEVELS:
        raise pytest.UsageError(f"--coregrad-level {level}: choose one of: {', '.join(LEVELS)}")
    chosen = metafunc.config.getoption("--coregrad-backend")
    ids = [row.id for row in assessment.selected(level)] if chosen else []
    metafunc.parametrize("row_id", ids, ids=str)


@dataclass
class Stream:
    """Results in the order in which rows end; each test takes its own."""

    session: runner.Session
    coming: Generator[Result, None, None]
    found: dict[str, Result] = field(default_factory=dict)
    started: datetime.datetime = field(
        default_factory=lambda: datetime.datetime.now(datetime.timezone.utc)
    )

    def get(self, row_id: str) -> Result:
        """The result of a row, waivers applied; waits for it."""
        while row_id not in self.found:
            try:
                result = next(self.coming)
            except runner.Lost as error:
                pytest.exit(f"{self.session.spec.name}: {error}", returncode=2)
            self.found[result.id] = result
        return self.judged([self.found[row_id]]).results[0]

    def judged(self, results: list[Result]) -> Waived:
        """Results after the plugin's waivers."""
        return assessment.excused(results, self.session.device, self.started)


@pytest.fixture(scope="session")
def conformance_stream(request: pytest.FixtureRequest) -> Iterator[Stream]:
    """The run of all rows whose tests were selected."""
    config = request.config
    wanted = {
        item.callspec.params["row_id"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.name.startswith("test_row[")
    }
    level = config.getoption("--coregrad-level")
    rows = [row for row in assessment.selected(level) if row.id in wanted]
    options = runner.Options(timeout=config.getoption("--coregrad-timeout"), sync=False)
    session = runner.Session(rows, runner.Spec(config.getoption("--coregrad-backend")), options)
    coming = session.__iter__()
    yield Stream(session, coming)
    coming.close()


def test_row(row_id: str, conformance_stream: Stream) -> None:
    """One row of the suite."""
    result = conformance_stream.get(row_id)
    if result.status == "unsupported":
        pytest.skip(result.detail)
    if result.status == "waived":
        pytest.xfail(result.detail)
    if not result.ok:
        pytest.fail(f"{result.status} ({result.kind}): {result.detail}", pytrace=False)


def test_waivers(request: pytest.FixtureRequest) -> None:
    """The plugin's waivers are legal: see `coregrad_conformance.waivers`."""
    if not request.config.getoption("--coregrad-backend"):
        pytest.skip("no --coregrad-backend")
    stream: Stream = request.getfixturevalue("conformance_stream")
    if not stream.found:
        pytest.skip("no row was run")
    assert stream.judged(list(stream.found.values())).problems == []
