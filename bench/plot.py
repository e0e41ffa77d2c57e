"""The report of a run as a picture: ratios to other libraries, and fractions of the limit."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

SHOWN = {  # ratio -> (label, colour)
    "torch": ("of PyTorch eager", "#ee6c4d"),
    "best": ("of PyTorch's faster, eager or compiled", "#3d5a80"),
    "tinygrad": ("of tinygrad", "#8ab17d"),
    "tinygrad-cl": ("of tinygrad on OpenCL", "#8ab17d"),
}


def draw(report: dict[str, Any], path: Path) -> str | None:
    """Write the picture; a sentence if it cannot be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        return "no picture: matplotlib is not installed (bench/requirements.txt)"
    rows = [w for w in report["workloads"] if w["ratios"] or w.get("fraction")][::-1]
    if not rows:
        return "no picture: nothing was timed"
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    plt = importlib.import_module("matplotlib.pyplot")
    height = 1.5 + 0.22 * len(rows)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(12, height), sharey=True, width_ratios=(2, 1), layout="constrained"
    )
    for key, (label, colour) in SHOWN.items():
        points = [(w["ratios"][key]["median"], i) for i, w in enumerate(rows) if key in w["ratios"]]
        if points:
            left.scatter(*zip(*points, strict=True), label=label, color=colour, s=18, zorder=3)
    left.axvline(1.0, color="black", linewidth=0.8)
    left.set_xscale("log")
    left.set_xlabel("coregrad's time as a fraction (left of the line: faster)")
    left.set_yticks(range(len(rows)), [w["name"] for w in rows], fontsize=7)
    left.set_ylim(-1, len(rows))
    left.grid(alpha=0.3)
    if left.get_legend_handles_labels()[0]:
        figure.legend(fontsize=7, loc="outside lower left", ncols=len(SHOWN))
    right.barh(range(len(rows)), [_fraction(w) for w in rows], color="#98c1d9")
    right.axvline(1.0, color="black", linewidth=0.8)
    right.set_xlabel("fraction of the machine's limit")
    right.grid(alpha=0.3, axis="x")
    machine = report["machine"]
    figure.suptitle(
        f"{machine['processor']}, {machine['threads']} threads, {report['when'][:10]}", fontsize=9
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return None


def _fraction(workload: dict[str, Any]) -> float:
    """Ours, captured or not, whichever is nearer to the limit."""
    found = workload.get("fraction", {})
    return max((f for name, f in found.items() if name.startswith("coregrad")), default=0.0)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        source = Path(name)
        said = draw(json.loads(source.read_text()), source.with_suffix(".png"))
        print(said or source.with_suffix(".png"))
