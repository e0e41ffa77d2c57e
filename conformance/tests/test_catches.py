"""The suite catches what it should: the whole selftest, as anybody runs it.

A seeded fault or a mutant that survives fails it, and so does a row that no fault needs or a
tolerance that could be ten times as wide.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_suite_catches_every_fault_and_needs_every_row(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coregrad_conformance", "selftest", "--report", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
