"""``python -m coregrad_metal.selfcheck``: does this backend keep the contract on this Mac?

It runs the conformance suite's level core and prints what its authors would like to know, who have
no Mac. It judges nothing itself.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from coregrad import drivers
from coregrad.errors import BackendUnavailable
from coregrad_metal import driver

DISTRIBUTIONS = ("coregrad-core", "coregrad-metal", "coregrad-conformance", "metalcompute", "numpy")
SHOWN = 200  # characters of a failed row's detail


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; returns the exit code: 0 if every row passed."""
    parser = argparse.ArgumentParser(prog="coregrad_metal.selfcheck", description=__doc__)
    parser.add_argument("--level", default="core", choices=("core", "standard", "extended"))
    parser.add_argument("--only", default="", metavar="GLOB", help="rows whose ids match")
    parser.add_argument("--report", type=Path, metavar="DIR", help="where the report is kept")
    options = parser.parse_args(arguments)
    problem = _problem()
    if problem:
        _say(problem)
        return 2
    with tempfile.TemporaryDirectory(prefix="coregrad-metal-") as folder:
        return _check(options, options.report or Path(folder))


def _problem() -> str:
    """Why nothing can be checked here."""
    try:
        driver.devices()
    except BackendUnavailable as error:
        return str(error)
    try:
        metadata.version("coregrad-conformance")
    except metadata.PackageNotFoundError:
        return "the conformance suite is not installed: pip install coregrad-conformance"
    return ""


def _check(options: argparse.Namespace, folder: Path) -> int:
    command = [sys.executable, "-m", "coregrad_conformance", "run", "metal"]
    command += ["--level", options.level, "--report", str(folder)]
    if options.only:
        command += ["--only", options.only]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    found = folder / "report.json"
    if not found.exists():
        _say(done.stdout)
        return done.returncode or 1
    report = json.loads(found.read_text(encoding="utf-8"))
    _say("\n".join(["", "---- please report what stands between these lines ----"]))
    _say("\n".join(summary(report)))
    _say("---- with the file report.json, if you gave --report ----")
    return done.returncode


def summary(report: dict[str, Any]) -> Iterator[str]:
    """What matters of a report, a line each."""
    results = report["results"]
    counts = Counter(row["status"] for row in results)
    part = ", some rows of it" if report["only"] else ""
    yield f"coregrad-metal self-check, level {report['level']}{part}"
    yield f"device: {report['device']['driver']}"
    if drivers.is_emulated("metal"):
        yield "emulated: nothing here ran on a GPU (COREGRAD_EMULATE)"
    yield f"system: {platform.platform()}, {platform.machine()}, macOS {platform.mac_ver()[0]}"
    yield f"Python {platform.python_version()}, {', '.join(_versions())}"
    yield f"{counts['pass']} of {len(results)} rows passed, {report['seconds']:.0f} s"
    for status, count in sorted(counts.items()):
        if status not in ("pass", "unsupported"):
            yield f"{status}: {count}"
    for row in results:
        if row["status"] not in ("pass", "unsupported"):
            detail = str(row["detail"]).partition("\n")[0][:SHOWN]
            yield f"  {row['status']} {row['id']}: {detail}"


def _versions() -> Iterator[str]:
    for name in DISTRIBUTIONS:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            yield f"no {name}"


def _say(text: str) -> None:
    sys.stdout.write(text.rstrip() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
