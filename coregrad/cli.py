"""The command line: ``python -m coregrad`` or ``coregrad``; it does nothing the API could not."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from coregrad import plugins

COLUMNS = ("device", "plugin", "contract", "rank", "state", "detail")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (0: well, 1: a problem was found)."""
    parser = argparse.ArgumentParser(prog="coregrad", description="coregrad's command line")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    devices = commands.add_parser("devices", help="list the installed backends and their states")
    devices.add_argument("--json", action="store_true", help="print JSON instead of a table")
    devices.add_argument(
        "--probe",
        action="store_true",
        help="open each device, in a process of its own: a crash or a hang becomes a row",
    )
    options = parser.parse_args(arguments)
    return show_devices(probe=options.probe, as_json=options.json)


def show_devices(probe: bool, as_json: bool) -> int:
    """Print every backend. The exit code is 1 when a probe found none that works."""
    rows = plugins.describe(probe)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    elif not rows:
        print(plugins.NO_BACKEND)
    else:
        print(table(rows))
    works = any(row.state == "active" for row in rows)
    return 1 if not rows or (probe and not works) else 0


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
    detail = " ".join((row.reason or row.summary).split())
    return (row.name, plugin, row.contract, row.rank, row.state, detail)
