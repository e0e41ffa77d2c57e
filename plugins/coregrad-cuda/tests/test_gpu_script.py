"""The parts of bench/gpu.sh, which is for the day a GPU is there, tried on an emulated one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_launching import missing

pytest.importorskip("coregrad_simt")

from coregrad_simt.cuda import nvrtc
from coregrad_simt.errors import MissingTool

BENCH = Path(__file__).parents[3] / "bench"


def route() -> str:
    """The way by which the kept results were made, where it can be had."""
    try:
        nvrtc.library()
    except MissingTool:
        return "a"
    return "b"


def script(name: str, *arguments: object) -> str:
    """Run a part of it, as gpu.sh does; returns what it prints."""
    if shutil.which("g++") is None:
        missing("g++ is not installed, which compiles the kernels of emulated GPUs")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("COREGRAD_", "PYTHONPATH"))}
    kept |= {k: v for k, v in os.environ.items() if k == "COREGRAD_SIMT_CACHE"}
    asked = {"COREGRAD_EMULATE": "cuda", "COREGRAD_DEVICE": "cuda", "COREGRAD_CACHE": "0"}
    command = [sys.executable, str(BENCH / "gpu" / name), *map(str, arguments)]
    done = subprocess.run(
        command,
        env=kept | asked | {"COREGRAD_SIMT_ROUTE": route()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("arguments", "kernels"), [((), 6), (("three",), 3)])
def test_the_first_kernels_hold(arguments: tuple[str, ...], kernels: int) -> None:
    said = script("smoke.py", *arguments).splitlines()
    assert "Simulated GPU" in said[0]
    assert len(said) == 1 + kernels


def test_the_results_that_were_kept_are_those_of_today() -> None:
    said = script("golden.py", "check").splitlines()
    count = len(said) - 1
    assert count >= 25
    assert said[-1] == f"{count} of {count} results hold"


def test_every_part_is_timed(tmp_path: Path) -> None:
    script("timings.py", tmp_path / "timings.json")
    found = json.loads((tmp_path / "timings.json").read_text())
    assert found["copy_gigabytes_per_second"] > 0
    assert {"chain 64x64", "softmax 64x64"} <= set(found["elements"])
    assert all(row["of_copy"] > 0 for row in found["elements"].values())
    assert found["product 1024"]["kernels"]["of_cublas"] > 0
    assert found["training"]["kernels"] > 5
    assert found["training"]["busy_share"] > 0


def test_what_the_steps_left_becomes_one_file(tmp_path: Path) -> None:
    (tmp_path / "steps.txt").write_text("machine 127 0\nsmoke 0 3\nstandard skipped 0\n")
    (tmp_path / "smoke.txt").write_text("all is well\n")
    said = script("summary.py", tmp_path, tmp_path / "gpu.json")
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert json.loads(said) == found
    assert found["held"] == ["smoke"]
    assert found["failed"] == ["machine", "standard"]
    assert found["steps"]["smoke"] == {"exit": 0, "seconds": 3, "printed": ["all is well"]}
    assert found["core"] is found["standard"] is found["timings"] is None
    assert found["emulated"]


def test_the_script_is_bash_and_names_files_that_are_there() -> None:
    text = (BENCH / "gpu.sh").read_text()
    bash = shutil.which("bash")
    if bash is not None:
        subprocess.run([bash, "-n", str(BENCH / "gpu.sh")], check=True)
    named = [word for word in text.replace('"', " ").split() if word.endswith(".py")]
    files = {word.removeprefix("$root/").removeprefix("bench/gpu/") for word in named}
    for name in files:
        path = Path(name.removeprefix("bench/gpu/"))
        assert (BENCH / "gpu" / path).exists() or (BENCH.parent / path).exists(), name
    assert len(files) >= 5
