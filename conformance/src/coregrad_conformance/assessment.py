"""A backend against the rows of a level: which run, what came out, and what waivers excuse."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from coregrad_conformance import provenance, rows, runner, waivers
from coregrad_conformance.result import Result
from coregrad_conformance.row import LEVELS, Row
from coregrad_conformance.waivers import Waived


@dataclass(frozen=True)
class Assessment:
    """What a report is made of. ``only`` is the pattern the rows were chosen by, if any."""

    level: str
    only: str
    started: datetime.datetime
    run: runner.Run
    waived: Waived


def selected(level: str, only: str = "") -> list[Row]:
    """The rows of a level whose ids match a pattern. Raises ValueError for an unknown level."""
    found = rows.all_rows(level)
    return [row for row in found if fnmatchcase(row.id, only)] if only else found


def assess(
    spec: runner.Spec, level: str, only: str = "", options: runner.Options | None = None
) -> Assessment:
    """Run and excuse. Raises `runner.Lost` when the device cannot be opened."""
    started = datetime.datetime.now(datetime.timezone.utc)
    run = runner.run(selected(level, only), spec, options)
    return Assessment(level, only, started, run, excused(run.results, run.device, started))


def excused(results: list[Result], device: dict[str, Any], started: datetime.datetime) -> Waived:
    """The results after the waivers that lie in the plugin's package."""
    found, problems = waivers.load(waiver_file(device)) if device else ([], [])
    known = {row.id: row for row in rows.all_rows(LEVELS[-1])}
    after = waivers.apply(results, found, device, known, started.date())
    return Waived(after.results, after.used, after.notes, problems + after.problems)


def waiver_file(device: dict[str, Any]) -> Path:
    """Where the plugin keeps its waivers, whether the file is there or not."""
    folder = provenance.folder_of(package_of(device))
    return (folder or Path()) / waivers.FILE


def package_of(device: dict[str, Any]) -> str:
    """The top-level package that holds the backend's class."""
    package: str = device["impl"].partition(":")[0].partition(".")[0]
    return package


def check(name: str, level: str, *, only: str, jobs: int) -> list[dict[str, Any]]:
    """See `coregrad_conformance.check`."""
    found = assess(runner.Spec(name), level, only, runner.Options(jobs=jobs, sync=False))
    if found.waived.problems:
        raise ValueError("\n  - ".join(["the plugin's waivers:", *found.waived.problems]))
    defaults = {"op": "", "dtype": "", "detail": ""}
    return [defaults | r.data() | {"ok": r.ok} for r in found.waived.results]
