"""The report of a run as text: a row per workload, times, ratios and their targets."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

OURS = ("coregrad", "coregrad-opencl")
BUSY = 0.2  # CPUs kept busy by other programs from which times are worth a warning
RATIOS = ("torch", "best", "torch-out", "tinygrad", "tinygrad-cl")  # those with a column


def show(report: dict[str, Any]) -> str:
    """The machine, the table, and below it what went wrong and what changed."""
    machine, limits = report["machine"], report["limits"]
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    lines = [
        f"{machine['processor']}, {machine['threads']} threads of {machine['cores']} cores, "
        f"{machine['system']}, Python {machine['python']}",
        f"limits: {limits['flops'] / 1e9:.0f} GFLOP/s; GB/s copied {limits['copy'] / 1e9:.0f}, "
        f"read {limits['read'] / 1e9:.0f}, in the cache {limits['cache'] / 1e9:.0f} "
        f"({limits['by']})",
        f"{versions}; medians of {report['rounds']} rounds",
        "",
        *_aligned(_table(report)),
        "",
        "peak memory beyond the import (MiB), and seconds of the first call:",
        "",
        *_aligned(_first(report)),
    ]
    notes = [note for w in report["workloads"] for note in _notes(w)]
    if report["not_installed"]:
        notes.append(f"not installed: {', '.join(report['not_installed'])}")
    busy = [c for w in report["workloads"] if (c := _other_programs(w)) is not None]
    if busy and max(busy) > BUSY:
        notes.append(f"other programs kept up to {max(busy):.1f} CPUs busy: times are too long")
    notes += _changes(report.get("changes"))
    return "\n".join([*lines, "", *notes] if notes else lines)


def _table(report: dict[str, Any]) -> list[list[str]]:
    names = list(report["versions"])
    rows = report["workloads"]
    peers = [p for p in RATIOS if any(p in w["ratios"] for w in rows)]
    head = ["workload", *names]
    for peer in peers:
        head += [f"/ {peer}", "target"]
    return [[*head, "limit", "of it", ""], *(_row(w, names, peers) for w in rows)]


def _row(workload: dict[str, Any], names: list[str], peers: list[str]) -> list[str]:
    row = [workload["name"]]
    for name in names:
        row.append(_cell(workload["columns"].get(name)))
    for peer in peers:
        ratio = workload["ratios"].get(peer)
        row.append(f"{ratio['median']:.2f}" if ratio else "-")
        row.append(f"{ratio['target']:.2f}" if ratio and ratio["target"] is not None else "")
    limit = workload.get("limit_s", workload.get("allowed_s"))
    ours = [f for n, f in workload.get("fraction", {}).items() if n.startswith(OURS)]
    fraction = f"{max(ours):.0%}" if ours else ""
    return [*row, _time(limit) if limit is not None else "", fraction, verdict(workload)]


def _cell(outcome: dict[str, Any] | None) -> str:
    if outcome is None or "skipped" in outcome:
        return "-"
    return "failed" if "error" in outcome else _time(outcome["median_s"])


def verdict(workload: dict[str, Any]) -> str:
    """One word on our result: met, limit (above a target, but as fast as the machine allows),
    missed, failed, different, or nothing."""
    for name, outcome in workload["columns"].items():
        if name.startswith(OURS) and "error" in outcome:
            return "DIFFERENT" if outcome["error"].startswith("differs") else "FAILED"
    ratios = workload["ratios"].values()
    met = [r["met"] for r in ratios] + [workload.get("met")]
    if False in met:
        return "missed"
    if any(r["met"] and r["median"] > r["target"] for r in ratios):
        return "limit"
    return "met" if True in met else ""


def _first(report: dict[str, Any]) -> list[list[str]]:
    names = list(report["versions"])
    head = ["workload", *(f"{name} {what}" for name in names for what in ("MiB", "s"))]
    rows = [head]
    for workload in report["workloads"]:
        row = [workload["name"]]
        for name in names:
            outcome = workload["columns"].get(name, {})
            memory, first = outcome.get("peak_mib"), outcome.get("first_calls_s")
            row.append("-" if memory is None else f"{memory:.0f}")
            row.append(f"{first[0]:.3g}" if first else "-")
        if any(cell != "-" for cell in row[1:]):
            rows.append(row)
    return rows


def _notes(workload: dict[str, Any]) -> list[str]:
    """Errors, differences and what was left out, one a line."""
    notes = []
    for name, outcome in workload["columns"].items():
        if "error" in outcome:
            notes.append(f"{workload['name']}: {name} failed: {outcome['error']}")
        elif "skipped" in outcome:
            notes.append(f"{workload['name']}: {name} left out: {outcome['skipped']}")
    return notes


def _changes(changes: dict[str, Any] | None) -> list[str]:
    if changes is None:
        return ["no earlier run on a machine of this kind to compare with"]
    lines = [f"against {changes['against']}:"]
    for name, peer, before, now in changes["moved"]:
        better = "better" if now < before else "worse"
        lines.append(f"  {name} / {peer}: {before:.2f} -> {now:.2f}, {better}")
    if not changes["moved"]:
        lines.append("  no ratio moved by more than its noise")
    for what in ("new", "gone"):
        if changes[what]:
            lines.append(f"  {what}: {', '.join(changes[what])}")
    return lines


def _other_programs(workload: dict[str, Any]) -> float | None:
    seen = [o.get("other_programs_cpus") for o in workload["columns"].values()]
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
