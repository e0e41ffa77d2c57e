"""What changed against an earlier run. Times of two runs cannot be compared, ratios can."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NOTABLE = 1.15  # the factor from which a ratio has changed: memory-bound rows vary by a fifth


def last_run(folder: Path, report: dict[str, Any], itself: Path) -> dict[str, Any] | None:
    """The latest stored run on a machine of this kind that shares most columns, or None."""
    found = None
    for path in sorted(folder.glob("*.json")):
        if path.resolve() == itself.resolve():
            continue
        run = json.loads(path.read_text())
        if _kind(run) != _kind(report) or run.get("quick") or "workloads" not in run:
            continue
        columns = set(run.get("versions", run.get("libraries", {})))
        if len(columns & set(report["versions"])) > 1 and _later(run, found):
            found = {**run, "file": path.name}
    return found


def changed(earlier: dict[str, Any] | None, report: dict[str, Any]) -> dict[str, Any] | None:
    """The rows whose ratio to another library moved notably, and those that came or went."""
    if earlier is None:
        return None
    before = {w["name"]: w for w in earlier["workloads"]}
    now = {w["name"]: w for w in report["workloads"]}
    moved = []
    for name in [n for n in now if n in before]:
        for peer, ratio in now[name]["ratios"].items():
            old = before[name]["ratios"].get(peer)
            if old is None:
                continue
            factor = ratio["median"] / old["median"]
            if not 1 / NOTABLE < factor < NOTABLE:
                moved.append([name, peer, old["median"], ratio["median"]])
    return {
        "against": earlier["file"],
        "moved": moved,
        "new": [n for n in now if n not in before],
        "gone": [n for n in before if n not in now] if report["complete"] else [],
    }


def _kind(run: dict[str, Any]) -> tuple[Any, ...]:
    machine = run.get("machine", {})
    return tuple(machine.get(key) for key in ("processor", "cores", "threads", "system"))


def _later(run: dict[str, Any], found: dict[str, Any] | None) -> bool:
    return found is None or run["when"] >= found["when"]
