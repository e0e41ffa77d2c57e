"""The runner of small inputs from public bug reports, where COREGRAD_CASES names its folder.

What it finds is also looked for, kind by kind, in test_public_reports, which needs no runner.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ADAPTER = Path(__file__).parent.parent / "cases_adapter.py"
FOLDER = os.environ.get("COREGRAD_CASES", "")
PATIENCE = 900  # seconds for all cases; they take about 15
TIMED = ("perf", "memory")  # their limits are absolute: one failure is no evidence

# Cases about what coregrad does not have. A feature that comes takes its line away.
NOT_THERE = {"onnx_small_model": "ONNX importer"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER, reason="COREGRAD_CASES does not name the folder of the runner"),
]


def run(report: Path, only: str = "") -> dict[str, dict[str, str]]:
    command = [sys.executable, "run.py", f"{ADAPTER}:Coregrad", "--json", str(report), "-k", only]
    ran = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return {case["id"]: case for case in json.loads(report.read_text())["cases"]}


def status(case: dict[str, str]) -> str:
    """The runner's word; a case that cannot make its input without the onnx package is not run."""
    lacks_onnx = case["kind"] == "onnx" and "No module named 'onnx'" in case["msg"]
    return "n/a" if lacks_onnx else case["status"]


def test_every_case_passes_or_is_about_something_coregrad_does_not_have(tmp_path: Path) -> None:
    found = run(tmp_path / "all.json")
    again = [i for i, case in found.items() if case["kind"] in TIMED and status(case) == "fail"]
    if again:
        found |= run(tmp_path / "again.json", ",".join(again))
    wrong = {
        name: f"{case['status']}: {case['msg']}"
        for name, case in found.items()
        if status(case) not in ("pass", "n/a")
    }
    assert not wrong
    assert {name for name, case in found.items() if status(case) == "n/a"} == set(NOT_THERE)
