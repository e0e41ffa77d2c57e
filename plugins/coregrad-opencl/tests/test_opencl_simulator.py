"""The same kernels on Oclgrind, which reports races, accesses outside and uninitialised memory.

It runs in processes of its own: it takes its settings when it is loaded, and one thread at a time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = Path(__file__).parents[3] / "tests"


def simulate(what: str, folder: Path) -> tuple[str, str]:
    """Run the cases, or a planted fault, on Oclgrind: what was printed and what it reported."""
    log = folder / "oclgrind.log"
    environment = {
        **os.environ,
        "COREGRAD_OPENCL_DEVICE": "oclgrind",
        "OCLGRIND_DATA_RACES": "1",
        "OCLGRIND_UNINITIALIZED": "1",
        "OCLGRIND_MAX_ERRORS": "100000",  # the default cuts reports off silently
        "OCLGRIND_NUM_THREADS": "1",  # its own, which make the order of reports a matter of chance
        "OCLGRIND_LOG": str(log),
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(HERE)]),
    }
    command = [sys.executable, str(HERE / "opencl_launching.py"), what]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, log.read_text(encoding="utf-8")


def test_every_kernel_is_right_and_nothing_is_reported(simulator: str, tmp_path: Path) -> None:
    printed, log = simulate("cases", tmp_path)
    assert "Oclgrind Simulator" in printed
    assert "cases" in printed
    assert log == ""


@pytest.mark.parametrize(
    ("fault", "report"),
    [
        ("race", "data race"),
        ("outside", "Invalid read"),
        ("uninitialised", "Uninitialized value"),
    ],
)
def test_a_planted_fault_is_reported(
    simulator: str, tmp_path: Path, fault: str, report: str
) -> None:
    assert report in simulate(f"planted_{fault}", tmp_path)[1]
