"""The command line: ``python -m coregrad`` or ``coregrad``; it does nothing the API could not."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from coregrad import doctor, new_backend, plugins
from coregrad.errors import CoregradError

COLUMNS = ("device", "plugin", "contract", "rank", "state", "detail")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (0: well, 1: a problem was found, 2: a wrong call)."""
    options = _parser().parse_args(arguments)
    if options.command == "devices":
        return show_devices(probe=options.probe, as_json=options.json)
    if options.command == "doctor":
        return show_health(as_json=options.json)
    return make_backend(options.name, Path(options.into), options.author, options.style)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="coregrad", description="coregrad's command line")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    devices = commands.add_parser("devices", help="list the installed backends and their states")
    devices.add_argument("--json", action="store_true", help="print JSON instead of a table")
    devices.add_argument(
        "--probe",
        action="store_true",
        help="open each device, in a process of its own: a crash or a hang becomes a row",
    )
    health = commands.add_parser(
        "doctor",
        help="look over the installation, and compute on every device",
        description="Exit code: 0 well, 1 something failed, 2 COREGRAD_DEVICE cannot be had.",
    )
    health.add_argument("--json", action="store_true", help="print JSON instead of lines")
    new = commands.add_parser(
        "new-backend",
        help="write the package of a new backend, which works from the first day",
        description="Writes the folder coregrad-NAME: a plugin whose kernels run as Python loops.",
    )
    new.add_argument("name", metavar="NAME", help="the device's name, like mychip")
    new.add_argument("--author", default="", help="like 'Ada L. <ada@example.org>'")
    new.add_argument("--into", default=".", metavar="DIR", help="where to put it (default: here)")
    new.add_argument(
        "--style",
        default="render",
        choices=new_backend.STYLES,
        help="render (default): for a device that compiles text; eager: for a library of arrays",
    )
    return parser


def show_devices(probe: bool, as_json: bool) -> int:
    """Print every backend. The exit code is 1 when a probe found none that works."""
    rows = plugins.describe(probe)
    default, reason = plugins.probe_default() if rows else ("", "")
    if as_json:
        print(json.dumps([_data(row, default) for row in rows], indent=2))
    elif not rows:
        print(plugins.NO_BACKEND)
    else:
        print(table(rows))
        print(f"default: {default} ({reason})" if default else f"default: none: {reason}")
    works = any(row.state == "active" for row in rows)
    return 1 if not rows or (probe and not works) else 0


def _data(row: plugins.Row, default: str) -> dict[str, object]:
    return {**asdict(row), "default": row.name == default.partition(":")[0]}


def show_health(as_json: bool) -> int:
    """Print what the doctor found; returns its exit code."""
    report = doctor.examine()
    print(json.dumps(report.data(), indent=2) if as_json else report)
    return report.exit


def make_backend(name: str, into: Path, author: str, style: str) -> int:
    """Write a new backend and say how to go on. The exit code is 2 when it cannot be written."""
    try:
        folder = new_backend.write(name, into, author, style)
    except CoregradError as error:
        print(f"coregrad: {error}", file=sys.stderr)
        return 2
    print(f"wrote {folder}, the device {name!r}. Go on with:")
    print(f"  python -m pip install -e {folder}")
    print("  python -m coregrad devices --probe")
    print(f"  python -m pytest {folder}      # needs pytest and coregrad-conformance")
    print(f"What to replace first stands in {folder / 'README.md'}.")
    return 0


def table(rows: Sequence[plugins.Row]) -> str:
    """The rows as aligned text, one line each; the last column takes what room it needs."""
    lines = [tuple(column.upper() for column in COLUMNS), *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)][:-1]
    return "\n".join(
        "  ".join([*(cell.ljust(w) for cell, w in zip(line, widths, strict=False)), line[-1]])
        for line in lines
    )


def _cells(row: plugins.Row) -> tuple[str, ...]:
    plugin = f"{row.distribution} {row.version}".strip()
    detail = " ".join(row.words.split())
    return (row.name, plugin, row.contract, row.rank, row.state, detail)
