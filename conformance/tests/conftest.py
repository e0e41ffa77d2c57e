"""What the tests of the suite share: one run of the device numpy at level core.

And what tests have recorded as "shown" is printed at the end of all: numbers that a person should
see although everything passed.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what was recorded, in whichever process the test ran."""
    ended = [report for found in terminalreporter.stats.values() for report in found]
    shown = [
        str(value)
        for report in ended
        for name, value in getattr(report, "user_properties", ())
        if name == "shown" and report.when == "call"
    ]
    if shown:
        terminalreporter.section("GPUs that are emulated, and drivers for the CPU")
        terminalreporter.line("\n".join(shown))


@pytest.fixture(scope="session")
def core_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `coregrad-conformance run numpy` has written; not to be changed."""
    folder = tmp_path_factory.mktemp("core_run")
    command = [sys.executable, "-m", "coregrad_conformance", "run", "numpy", "--report"]
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder
