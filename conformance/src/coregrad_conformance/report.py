"""A run as one JSON file: what ran where, every row's end, and what follows from them.

What follows (``counts``, ``max_ulp`` and ``verdict``) is a function of the rest, `derived`, so
that a reader can compute it again (`verify`). Nothing here runs a row.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from coregrad.ir.contract import contract_table
from coregrad_conformance import emulation, isolation, provenance, rows
from coregrad_conformance.assessment import Assessment, package_of
from coregrad_conformance.result import STATUSES, Result, loaded
from coregrad_conformance.row import LEVELS, Row
from coregrad_conformance.runner import Options, Spec

SCHEMA = "coregrad-conformance-report/1"
NAME = "report.json"
LIBRARIES = ("numpy", "pluggy", "hypothesis", "mpmath")
SEED = 0  # rows draw the same values in each run


def build(
    found: Assessment, spec: Spec, options: Options, command: Sequence[str] = ()
) -> dict[str, Any]:
    """The report of an assessment."""
    device = found.run.device
    report = {
        "schema": SCHEMA,
        "verdict": {},
        "level": found.level,
        "only": found.only,
        "internal": spec.internal,
        "started": found.started.isoformat(timespec="seconds"),
        "seconds": found.run.seconds,
        "command": list(command),
        "timeout": options.timeout,
        "jobs": options.jobs,
        "seed": SEED,
        "contract": contract(),
        "suite": suite(),
        "core": provenance.origin("coregrad-core", "coregrad").data(),
        "backend": backend(spec.name, device),
        "device": {key: device[key] for key in ("name", "title", "driver", "limits", "hooks")},
        "host": host(),
        "environment": isolation.recorded(),
        "emulated": found.run.emulated and found.run.emulated.data(),
        "expected": expected(rows.all_rows(found.level)),
        "counts": {},
        "max_ulp": {},
        "waivers": [waiver.data() for waiver in found.waived.used],
        "notes": found.waived.notes,
        "problems": found.waived.problems,
        "results": [result.data() for result in found.waived.results],
    }
    return report | derived(report)


def contract() -> dict[str, str]:
    """The contract's version and hash."""
    table = contract_table()
    return {"version": ".".join(map(str, table["version"])), "sha256": table["sha256"]}


def suite() -> dict[str, str]:
    """This package as it is installed."""
    return provenance.origin("coregrad-conformance", "coregrad_conformance").data()


def backend(name: str, device: Mapping[str, Any]) -> dict[str, Any]:
    """The plugin: its distribution, the files of its package, and how it is found."""
    package = package_of(dict(device))
    origin = provenance.origin(device["distribution"], package)
    return {
        "name": name.partition(":")[0].lower(),
        "entry_point": provenance.entry_point(origin.distribution, name.partition(":")[0].lower()),
        "contract": device["contract"],
        "style": device["style"],
        "rank": device["rank"],
        "summary": device["summary"],
        **origin.data(),
    }


def host() -> dict[str, Any]:
    """The machine and the libraries; nothing that names its owner."""
    return {
        "system": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        **{name: metadata.version(name) for name in LIBRARIES},
    }


def expected(level_rows: Iterable[Row]) -> dict[str, int]:
    """How many rows each level has of its own."""
    return dict(Counter(row.level for row in level_rows))


# --- what follows from the results ---


def results_of(report: Mapping[str, Any]) -> list[Result]:
    """The rows' ends. Raises TypeError or KeyError for what is no report."""
    return [loaded(data) for data in report["results"]]


def derived(report: Mapping[str, Any]) -> dict[str, Any]:
    """``counts``, ``max_ulp`` and ``verdict``, from the rest of the report."""
    found = results_of(report)
    return {
        "counts": counts(found),
        "max_ulp": max_ulp(found),
        "verdict": verdict(report, found),
    }


def counts(found: Iterable[Result]) -> dict[str, dict[str, int]]:
    """Rows of each level by status."""
    table: dict[str, Counter[str]] = {}
    for result in found:
        table.setdefault(result.level, Counter())[result.status] += 1
    return {
        level: {status: table[level][status] for status in STATUSES if table[level][status]}
        for level in LEVELS
        if level in table
    }


def max_ulp(found: Iterable[Result]) -> dict[str, dict[str, dict[str, Any]]]:
    """The worst distance of each op and dtype, with the row and the input it came from."""
    worst: dict[str, dict[str, dict[str, Any]]] = {}
    for result in found:
        if not result.op or not result.dtype or result.ulp is None:
            continue
        by_dtype = worst.setdefault(result.op, {})
        known = by_dtype.get(result.dtype)
        if known is None or result.ulp > known["ulp"]:
            entry = {"ulp": result.ulp, "row": result.id, "input": result.worst}
            by_dtype[result.dtype] = entry
    return worst


def verdict(report: Mapping[str, Any], found: Sequence[Result]) -> dict[str, Any]:
    """Whether the level is met, and whether the report may say *certified*."""
    levels = {level: not list(_faults(report, found, level)) for level in report["expected"]}
    reasons = [line for level in report["expected"] for line in _faults(report, found, level)]
    reasons += emulation.reasons(report.get("emulated"))
    passed = not reasons and not report["problems"]
    provisional = _blemishes(report)
    return {
        "passed": passed,
        "certified": passed and not report["only"] and not provisional,
        "filtered": bool(report["only"]),
        "provisional": provisional,
        "levels": levels,
        "reasons": reasons,
    }


def _faults(report: Mapping[str, Any], found: Sequence[Result], level: str) -> Iterator[str]:
    """Why ``level`` itself (without those below) is not met."""
    own = [result for result in found if result.level == level]
    bad = Counter(result.status for result in own if not result.ok)
    yield from (f"{level}: {count} {status}" for status, count in sorted(bad.items()))
    missing = report["expected"][level] - len(own)
    if missing and not report["only"]:
        yield f"{level}: {missing} of {report['expected'][level]} rows have no result"
    if not found:
        yield f"{level}: no row was run"
    absent = [result.id for result in own if result.status == "unsupported"]
    if absent and level == "core":  # what a device may lack is of a higher level
        yield f"core: {len(absent)} rows unsupported, the first is {absent[0]}"


def _blemishes(report: Mapping[str, Any]) -> list[str]:
    """Why the report is provisional: no hardware, or files that are not of a released wheel."""
    found = [] if report.get("emulated") is None else [emulation.MARK]
    for part in ("suite", "core", "backend"):
        origin = provenance.Origin(
            **{key: report[part][key] for key in provenance.Origin.__dataclass_fields__}
        )
        if origin.blemish:
            found.append(origin.blemish)
    if report["internal"]:
        found.append("the backend or the rows were made for a test of the suite itself")
    return found


# --- as a file ---


def text(report: Mapping[str, Any]) -> str:
    """As JSON, one result a line, so that two reports can be compared by eye."""
    mark = "\0results\0"
    head = json.dumps({**report, "results": mark}, indent=1, ensure_ascii=False)
    lines = [json.dumps(data, ensure_ascii=False) for data in report["results"]]
    return head.replace(json.dumps(mark), "[\n" + ",\n".join(lines) + "\n]") + "\n"


def sha256(content: str) -> str:
    """The hash of a file with this text."""
    return hashlib.sha256(content.encode()).hexdigest()


def write(path: Path, content: str) -> None:
    """Write a file as a whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)  # mkstemp makes files that their owner alone can read
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
