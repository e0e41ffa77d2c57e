"""What the steps of bench/gpu.sh have left in a folder, as one JSON object: printed, and kept."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

SHOWN = 20  # failed rows of a report
LINES = 40  # of what a step printed


def main(log: Path, result: Path) -> None:
    steps: dict[str, Any] = {}
    for line in (log / "steps.txt").read_text().splitlines():
        name, code, seconds = line.split()
        steps[name] = {"exit": None if code == "skipped" else int(code), "seconds": int(seconds)}
        text = log / f"{name}.txt"
        if text.exists():
            steps[name]["printed"] = text.read_text(errors="replace").splitlines()[-LINES:]
    timings = log / "timings.json"
    found = {
        "python": platform.python_version(),
        "emulated": bool(os.environ.get("COREGRAD_EMULATE")),
        "seconds": sum(step["seconds"] for step in steps.values()),
        "held": [name for name, step in steps.items() if step["exit"] == 0],
        "failed": [name for name, step in steps.items() if step["exit"] != 0],
        "core": conformance(log / "core" / "report.json"),
        "standard": conformance(log / "standard" / "report.json"),
        "timings": json.loads(timings.read_text()) if timings.exists() else None,
        "steps": steps,
    }
    result.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))
    print(result, file=sys.stderr)


def conformance(path: Path) -> dict[str, Any] | None:
    """The verdict, how many rows ended in which way, those that failed, and the worst distances."""
    if not path.exists():
        return None
    report = json.loads(path.read_text())
    failed = [row for row in report["results"] if row["status"] not in ("pass", "unsupported")]
    return {
        "level": report["level"],
        "device": report["device"]["driver"],
        "passed": report["verdict"]["passed"],
        "counts": report["counts"],
        "failed": [f"{row['id']}: {row['detail'][:200]}" for row in failed[:SHOWN]],
        "max_ulp": {
            op: {dtype: worst["ulp"] for dtype, worst in by_dtype.items()}
            for op, by_dtype in report["max_ulp"].items()
        },
        "contract": report["contract"]["sha256"],
        "seconds": report["seconds"],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
