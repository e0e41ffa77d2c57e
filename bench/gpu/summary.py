"""What the steps of bench/gpu.sh left in their folder, as one JSON object: printed, and kept."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any

SHOWN = 20  # failed rows of a report


def main(folder: Path) -> None:
    steps: dict[str, Any] = {}
    for line in (folder / "steps.txt").read_text().splitlines():
        name, code, seconds = line.split()
        steps[name] = {"exit": None if code == "skipped" else int(code), "seconds": int(seconds)}
    found: dict[str, Any] = {"python": platform.python_version(), "steps": steps}
    for name in ("smoke", "golden"):
        text = folder / f"{name}.txt"
        found[name] = text.read_text().splitlines()[-30:] if text.exists() else None
    for level in ("core", "standard"):
        found[level] = conformance(folder / level / "report.json")
    timings = folder / "timings.json"
    found["timings"] = json.loads(timings.read_text()) if timings.exists() else None
    (folder / "summary.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))


def conformance(path: Path) -> dict[str, Any] | None:
    """How many rows ended in which way, and those that failed."""
    if not path.exists():
        return None
    report = json.loads(path.read_text())
    counts: dict[str, int] = {}
    for row in report["results"]:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    failed = [row for row in report["results"] if row["status"] not in ("pass", "unsupported")]
    return {
        "device": report["device"]["driver"],
        "counts": counts,
        "failed": [f"{row['id']}: {row['detail'][:200]}" for row in failed[:SHOWN]],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
