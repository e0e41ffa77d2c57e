"""The commands whose outcome must not depend on the user's environment: ``run`` and a rerun.

Their processes are isolated ones (`isolation`); in any other this module ends the process.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from coregrad_conformance import assessment, certificate, isolation, publication, report, runner
from coregrad_conformance.cli import FAILED, MISUSED, PASSED, Misuse, carry_out, parser, say
from coregrad_conformance.result import Result

NEWLINE = "\n"


def main(arguments: Sequence[str]) -> int:
    """Carry out ``run`` or ``verify --rerun``; returns the exit code."""
    isolation.demand()
    options = parser().parse_args(arguments)
    if options.command == "run":
        options.call = run_rows
    else:
        options.rerun = rerun
    return carry_out(options, arguments)


def run_rows(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Check a backend; see ``run --help``."""
    total = len(assessment.selected(options.level, options.only))
    if total == 0:
        raise Misuse(f"no row of level {options.level} matches {options.only!r}")
    if options.report is not None:
        options.report.mkdir(parents=True, exist_ok=True)
        publication.retract(options.report)  # a run that dies leaves no older certificate behind
    spec = runner.Spec(options.name)
    progress = Progress(total)
    settings = runner.Options(timeout=options.timeout, jobs=options.jobs, seen=progress.seen)
    try:
        found = assessment.assess(spec, options.level, options.only, settings)
    except runner.Lost as error:
        say(f"coregrad-conformance: {options.name}: {error}")
        return MISUSED if error.absent else FAILED
    finally:
        progress.clear()
    result = report.build(found, spec, settings, ["coregrad-conformance", *arguments])
    print(certificate.summary(result))
    if options.report is not None:
        for path in publication.publish(options.report, result):
            print(f"  {path}")
    if result["problems"]:
        return MISUSED
    return PASSED if result["verdict"]["passed"] else FAILED


class Progress:
    """A line that counts, where somebody watches; and every row that does not pass."""

    def __init__(self, total: int) -> None:
        self.total, self.count = total, 0
        self.watched = sys.stderr.isatty()

    def seen(self, result: Result) -> None:
        """A row has ended."""
        self.count += 1
        if result.status not in ("pass", "unsupported"):
            self.clear()
            say(f"{result.status} {result.id}: {result.detail.partition(NEWLINE)[0]}")
        if self.watched:
            sys.stderr.write(f"\r{self.count}/{self.total} {result.id[:60]:60}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Make room for a line."""
        if self.watched:
            sys.stderr.write("\r" + " " * 80 + "\r")


def rerun(stated: Mapping[str, Any]) -> list[str]:
    """The rows whose status is another one when they are run here and now."""
    settings = runner.Options(timeout=stated["timeout"], jobs=stated["jobs"])
    spec = runner.Spec(stated["device"]["name"])
    try:
        found = assessment.assess(spec, stated["level"], stated["only"], settings)
    except runner.Lost as error:
        raise Misuse(f"{spec.name}: {error}") from error
    now = {result.id: result.status for result in found.waived.results}
    return [
        f"{was.id}: the report says {was.status}, running it here gives {now.get(was.id)}"
        for was in report.results_of(stated)
        if now.get(was.id) != was.status
    ]
