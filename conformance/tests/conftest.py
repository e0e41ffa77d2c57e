"""What the tests of the suite share: one run of the device numpy at level core."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def core_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `coregrad-conformance run numpy` has written; not to be changed."""
    folder = tmp_path_factory.mktemp("core_run")
    command = [sys.executable, "-m", "coregrad_conformance", "run", "numpy", "--report"]
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder
