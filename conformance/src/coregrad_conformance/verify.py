"""Compute again what a report states; it believes nothing but the rows' ends.

Whether these are true, only running the rows again can tell.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from coregrad.ir.ops import CONTRACT_OPS
from coregrad_conformance import emulation, publication, rows
from coregrad_conformance import report as reports
from coregrad_conformance.result import STATUSES, Result
from coregrad_conformance.row import LEVELS, Row
from coregrad_conformance.waivers import Waiver, admissible, misfits
from coregrad_conformance.worker import NO_VALUES

SAMPLE = 3  # ids named in a line


class Unreadable(Exception):
    """The file is no report that this version can read."""


def load(path: Path) -> dict[str, Any]:
    """The report in a file. Raises Unreadable with the reason."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Unreadable(f"{path}: {error}") from error
    if not isinstance(report, dict) or report.get("schema") != reports.SCHEMA:
        raise Unreadable(f"{path}: its schema is not {reports.SCHEMA}")
    return report


def verify(path: Path) -> list[str]:
    """Everything in a report, and in the pages beside it, that does not follow from its rows."""
    report = load(path)
    try:
        return [*_contents(report), *_pages(path, report)]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise Unreadable(f"{path}: {type(error).__name__}: {error}") from error


def _contents(report: Mapping[str, Any]) -> Iterator[str]:
    yield from _versions(report)
    yield from _emulation(report)
    known = {row.id: row for row in rows.all_rows(LEVELS[-1])}
    found = reports.results_of(report)
    yield from _coverage(report, found)
    for result in found:
        if result.id in known:
            yield from _row(result, known[result.id])
    yield from _waivers(report, found, known)
    for key, value in reports.derived(report).items():
        if value != report[key]:
            yield f"{key}: stated is not what follows from the rows"


def _versions(report: Mapping[str, Any]) -> Iterator[str]:
    ours = reports.contract()
    if report["contract"] != ours:
        yield f"contract: the report's is {report['contract']}, the installed core's is {ours}"
    suite = reports.suite()
    for key in ("version", "sha256"):
        if report["suite"][key] != suite[key]:
            yield (
                f"suite: its {key} is {report['suite'][key]}, the installed one's {suite[key]}; "
                "verify with the version that made the report"
            )


def _emulation(report: Mapping[str, Any]) -> Iterator[str]:
    asked = emulation.is_asked(report["device"]["name"], report["environment"])
    if asked != (report.get("emulated") is not None):
        said = "has none" if asked else "has an emulation's numbers"
        yield f"emulated: by its environment it is {asked}, and the report {said}"


def _coverage(report: Mapping[str, Any], found: list[Result]) -> Iterator[str]:
    wanted = rows.all_rows(report["level"])
    if report["expected"] != reports.expected(wanted):
        yield f"expected: {report['expected']} is not {reports.expected(wanted)}"
    ids = Counter(result.id for result in found)
    twice = [name for name, count in ids.items() if count > 1]
    unknown = sorted(set(ids) - {row.id for row in wanted})
    missing = [] if report["only"] else sorted({row.id for row in wanted} - set(ids))
    for words, names in (("twice", twice), ("unknown", unknown), ("missing", missing)):
        if names:
            yield f"results: {len(names)} rows are {words}: {', '.join(names[:SAMPLE])} ..."


def _row(result: Result, row: Row) -> Iterator[str]:
    for key in ("level", "group", "op", "dtype"):
        if getattr(result, key) != getattr(row, key):
            yield f"{row.id}: its {key} is {getattr(row, key)!r}, not {getattr(result, key)!r}"
    if result.status not in STATUSES:
        yield f"{row.id}: the status {result.status!r} is unknown"
    if result.status != "pass":
        return
    if result.compared <= 0 and row.group not in NO_VALUES:
        yield f"{row.id}: passed without comparing a value"
    limit = CONTRACT_OPS[row.op].ulp.get(row.dtype) if row.op in ELEMENTWISE else None
    if limit is not None and result.ulp is not None and result.ulp > limit:
        yield f"{row.id}: passed at {result.ulp} ulp, where the contract allows {limit}"


# Their distance is measured in ulp of one result; a reduction has a bound of its own.
ELEMENTWISE = tuple(name for name in CONTRACT_OPS if name not in ("reduce", "load", "store"))


def _waivers(
    report: Mapping[str, Any], found: list[Result], known: Mapping[str, Row]
) -> Iterator[str]:
    stated = {}
    for data in report["waivers"]:
        entry = {**data, "expires": datetime.date.fromisoformat(data["expires"])}
        yield from (f"waiver {data['id']}: {line}" for line in misfits(entry))
        stated[data["id"]] = Waiver(**{**entry, "devices": tuple(entry.get("devices", ()))})
    started = datetime.datetime.fromisoformat(report["started"]).date()
    problems = admissible(found, list(stated.values()), known, started)
    yield from (line for line in problems if line not in report["problems"])
    for result in found:
        if result.status == "waived" and not _excused(result, stated.get(result.id), started):
            yield f"{result.id}: waived, but no waiver in the report excuses it"


def _excused(result: Result, waiver: Waiver | None, today: datetime.date) -> bool:
    return waiver is not None and waiver.expires >= today and waiver.excuses(result)


def _pages(path: Path, report: Mapping[str, Any]) -> Iterator[str]:
    """The pages beside the report are exactly those it makes."""
    wanted = publication.pages(report, reports.sha256(path.read_text(encoding="utf-8")))
    for name in (*publication.PAGES, publication.BADGE):
        page = path.parent / name
        if not page.exists():
            continue
        if name not in wanted:
            yield f"{name}: this report has no such page"
        elif page.read_text(encoding="utf-8") != wanted[name]:
            yield f"{name}: it is not the page of this report"


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Rows whose status differs, rows in one report only, and worst errors that changed."""
    before, after = ({r.id: r for r in reports.results_of(report)} for report in (old, new))
    lines = [f"- {name}: {before[name].status}" for name in before if name not in after]
    lines += [f"+ {name}: {after[name].status}" for name in after if name not in before]
    for name in before:
        if name in after and before[name].status != after[name].status:
            lines.append(f"! {name}: {before[name].status} -> {after[name].status}")
    return lines + list(_worse(old["max_ulp"], new["max_ulp"]))


def _worse(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for op in sorted({*old, *new}):
        was, now = old.get(op, {}), new.get(op, {})
        for dtype in sorted({*was, *now}):
            a, b = (table.get(dtype, {}).get("ulp") for table in (was, now))
            if a != b:
                yield f"~ {op} {dtype}: {a} -> {b} ulp"
