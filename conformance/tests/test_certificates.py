"""The certificates of coregrad's own backends, made as anybody makes them.

COREGRAD_CERTIFICATES names a folder that keeps what was written. A device that is missing skips
its rows, unless COREGRAD_REQUIRE names it. Those of emulated GPUs are in test_emulated_gpus.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coregrad import config, plugins
from coregrad.errors import CoregradError
from coregrad_conformance import report as reports
from coregrad_conformance.verify import verify

SAMPLES = Path(__file__).parents[2] / "docs" / "certificates"
REQUIRED = [name.strip() for name in config.get("COREGRAD_REQUIRE").split(",")]
# What the simulator looks for beside wrong values; the log must stay empty.
SIMULATOR = {
    "COREGRAD_OPENCL_DEVICE": "oclgrind",
    "OCLGRIND_DATA_RACES": "1",
    "OCLGRIND_UNINITIALIZED": "1",
    "OCLGRIND_MAX_ERRORS": "100000",
    "OCLGRIND_NUM_THREADS": "1",
}
GPU_LIKE = {"COREGRAD_OPENCL_DEVICE": "portable", "COREGRAD_OPENCL_LIMITS": "gpu"}
RUNS = {
    "numpy": ("numpy", "standard", {}),
    "cpu": ("cpu", "standard", {}),
    "opencl-pocl": ("opencl", "standard", GPU_LIKE),
    "opencl-oclgrind": ("opencl", "core", SIMULATOR),
}


def run(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coregrad_conformance", *arguments]
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )


def need(device: str) -> None:
    """Skip where the device is missing, or fail where it was promised."""
    try:
        plugins.open_device(device)
    except CoregradError as error:
        if device in REQUIRED:
            pytest.fail(f"COREGRAD_REQUIRE names {device}, but {error}", pytrace=False)
        pytest.skip(str(error))


@pytest.mark.parametrize("name", sorted(p.parent.name for p in SAMPLES.glob("*/report.json")))
def test_a_committed_sample_is_verified_by_the_suite_that_made_it(name: str) -> None:
    """A later suite has other rows; then the pages are those of the report all the same."""
    path = SAMPLES / name / "report.json"
    text = path.read_text(encoding="utf-8")
    for page in ("CERTIFICATE.md", "CERTIFICATE.html"):
        assert reports.sha256(text) in (path.parent / page).read_text(encoding="utf-8")
    problems = verify(path)
    if json.loads(text)["suite"]["sha256"] == reports.suite()["sha256"]:
        assert problems == []
    else:
        assert any(line.startswith("suite: its sha256") for line in problems)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_our_backend_is_certified(name: str, tmp_path: Path) -> None:
    device, level, environment = RUNS[name]
    need(device)
    log = tmp_path / "simulator.log"
    jobs = ["--jobs", "2"]
    if environment is SIMULATOR:  # every process of it begins the log anew
        environment, jobs = {**environment, "OCLGRIND_LOG": str(log)}, ["--jobs", "1"]
    kept = os.environ.get("COREGRAD_CERTIFICATES")
    folder = Path(kept) / name if kept else tmp_path / "out"
    done = run(["run", device, "--level", level, "--report", str(folder), *jobs], environment)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert (folder / "CERTIFICATE.md").exists()
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert report["waivers"] == []
    if environment.get("OCLGRIND_LOG"):
        assert log.read_text(encoding="utf-8") == ""
        statuses = {result["status"] for result in report["results"]}
        assert statuses == {"pass"}  # core on the simulator has no skips
    verified = run(["verify", str(folder / "report.json")], {})
    assert verified.returncode == 0, verified.stdout + verified.stderr
