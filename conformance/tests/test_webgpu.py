"""The example plugin of a stranger, examples/third_party/coregrad-webgpu, on a driver for the CPU.

It is installed from its folder into an environment of its own, so that no other test meets the
device. Needs wgpu-py, and Mesa's lavapipe or another driver; where they are missing the tests are
skipped, with the reason. Where lavapipe is installed and is not found, they fail.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import ROOT, SOURCES, Place

EXAMPLE = ROOT / "examples" / "third_party" / "coregrad-webgpu"
TRAINING = Path(__file__).with_name("training.py")
DRIVERS = Path("/usr/share/vulkan/icd.d")  # where Debian's package says what it has installed
ASK = """
import sys, warnings
warnings.simplefilter("ignore")
from coregrad_webgpu import driver
print(driver.title(driver.adapters()[0]))
"""


def missing(reason: str) -> None:
    pytest.skip(f"webgpu was not tried: {reason}")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """An environment with the plugin, as pip installs it; other packages are this one's."""
    if sys.version_info < (3, 11):
        missing("it needs Python 3.11 or newer")
    if importlib.util.find_spec("wgpu") is None:
        missing("wgpu is not installed")
    made = Place(tmp_path_factory.mktemp("webgpu") / "venv", *SOURCES)
    pip = [sys.executable, "-m", "pip", "--python", str(made.python), "install", "--quiet"]
    alone = ["--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*pip, *alone, str(EXAMPLE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = made.run("-c", ASK, env=quiet())
    if found.returncode != 0:
        reason = found.stderr.strip().splitlines()[-1]
        assert not list(DRIVERS.glob("lvp_icd*.json")), f"lavapipe is installed, and yet: {reason}"
        missing(reason)
    return made


def quiet() -> dict[str, str]:
    """Drivers complain where nobody has said which folder is for sockets; no test's variables."""
    unset = dict.fromkeys(("COREGRAD_DEVICE", "COREGRAD_EMULATE", "COREGRAD_PLUGINS"), "")
    return {"XDG_RUNTIME_DIR": os.environ.get("XDG_RUNTIME_DIR", "/tmp"), **unset}


@pytest.mark.slow
def test_the_example_passes_the_level_core(
    place: Place, tmp_path: Path, record_property: Any
) -> None:
    kept = os.environ.get("COREGRAD_CERTIFICATES")
    out = Path(kept) / "webgpu" if kept else tmp_path / "out"
    wanted = ("run", "webgpu", "--level", "core", "--jobs", "2", "--report", out)
    done = place.conformance(*wanted, env=quiet())
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    report = json.loads((out / "report.json").read_text("utf-8"))
    assert report["waivers"] == []
    assert report["emulated"] is None  # it is the driver that runs on the CPU
    assert report["backend"]["state"] == "wheel"
    driver, core = report["device"]["driver"], report["counts"]["core"]
    record_property("shown", f"webgpu: {core['pass']} rows of core passed on {driver}")


@pytest.mark.slow
def test_the_examples_own_tests_pass(place: Place) -> None:
    """All but the rows of the suite, which were just run."""
    options = ("-q", "-p", "no:cacheprovider", "--ignore", "tests/test_conformance.py")
    required = {**quiet(), "COREGRAD_REQUIRE": "webgpu"}
    done = place.run("-m", "pytest", *options, cwd=EXAMPLE, env=required)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1]


def test_three_layers_have_the_losses_of_the_cpu(place: Place) -> None:
    told = place.run(TRAINING, "webgpu", env=quiet())
    assert told.returncode == 0, told.stderr
    want = json.loads(place.run(TRAINING, "cpu", env=quiet()).stdout)
    np.testing.assert_allclose(json.loads(told.stdout), want, rtol=1e-5)


def test_a_device_that_was_installed_is_nobodys_default(place: Place) -> None:
    """A stranger's plugin is there for who names it."""
    code = "import coregrad; print(coregrad.Device.DEFAULT)"
    assert place.run("-c", code, env=quiet()).stdout.strip() == "cpu"
    named = place.run("-c", code, env={**quiet(), "COREGRAD_DEVICE": "webgpu"})
    assert named.stdout.strip() == "webgpu"
