"""The report of a run as text: a row per workload, times, ratios and their targets."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

OURS = "coregrad"
BUSY = 0.2  # CPUs kept busy by other programs from which times are worth a warning


def show(report: dict[str, Any]) -> str:
    """The machine, the table, and below it what went wrong."""
    machine = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in report["libraries"].items())
    lines = [
        f"{machine['processor']}, {machine['threads']} threads of {machine['cores']} cores, "
        f"{machine['system']}, Python {machine['python']}",
        f"{versions}; medians of {report['rounds']} rounds",
        "",
        *_aligned(_table(report)),
    ]
    notes = [note for w in report["workloads"] for note in _notes(w)]
    if report["not_installed"]:
        notes.append(f"not installed: {', '.join(report['not_installed'])}")
    busy = [c for w in report["workloads"] if (c := _other_programs(w)) is not None]
    if busy and max(busy) > BUSY:
        notes.append(f"other programs kept up to {max(busy):.1f} CPUs busy: times are too long")
    return "\n".join([*lines, "", *notes] if notes else lines)


def _table(report: dict[str, Any]) -> list[list[str]]:
    names = list(report["libraries"])
    peers = [n for n in names if n != OURS]
    head = ["workload", *names]
    for peer in peers:
        head += [f"/ {peer}", "target"]
    return [[*head, "limit", ""], *(_row(w, names, peers) for w in report["workloads"])]


def _row(workload: dict[str, Any], names: list[str], peers: list[str]) -> list[str]:
    row = [workload["name"]]
    for name in names:
        row.append(_time(workload["libraries"].get(name, {}).get("median_s")))
    for peer in peers:
        ratio = workload["ratios"].get(peer)
        row.append(f"{ratio['median']:.2f}" if ratio else "-")
        row.append(f"{ratio['target']:.2f}" if ratio and ratio["target"] is not None else "")
    limit = workload.get("limit_s")
    return [*row, _time(limit) if limit is not None else "", _verdict(workload)]


def _verdict(workload: dict[str, Any]) -> str:
    if workload["different"]:
        return "DIFFERENT"
    if "error" in workload["libraries"].get(OURS, {}):
        return "FAILED"
    met = [r["met"] for r in workload["ratios"].values()] + [workload.get("met")]
    if False in met:
        return "missed"
    return "met" if True in met else ""


def _notes(workload: dict[str, Any]) -> list[str]:
    """Errors and differences, one a line."""
    notes = [f"{workload['name']}: {text}" for text in workload["different"]]
    for name, outcome in workload["libraries"].items():
        if "error" in outcome:
            notes.append(f"{workload['name']}: {name} failed: {outcome['error']}")
    return notes


def _other_programs(workload: dict[str, Any]) -> float | None:
    seen = [o.get("other_programs_cpus") for o in workload["libraries"].values()]
    return max((c for c in seen if c is not None), default=None)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.2g} us"


def _aligned(table: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(show(json.loads(Path(path).read_text())))
