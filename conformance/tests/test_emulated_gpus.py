"""GPUs that are not here: their texts executed on the CPU, and seen by NVIDIA's compiler and clang.

Each run is made once, and what follows looks at the texts that it met. What it proves and what not
stands in docs/backends.md. COREGRAD_CERTIFICATES names a folder that keeps what was written.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from coregrad import config
from coregrad_conformance import certificate, emulation

if "emulated-" not in config.get("COREGRAD_REQUIRE"):  # else whatever is missing is an error
    pytest.importorskip("coregrad_simt", reason="GPUs are emulated by tools/coregrad_simt")
if shutil.which("g++") is None:
    if "emulated-" in config.get("COREGRAD_REQUIRE"):
        pytest.fail("COREGRAD_REQUIRE names emulated GPUs, but there is no g++", pytrace=False)
    pytest.skip("g++ is not installed, which compiles emulated kernels", allow_module_level=True)

from coregrad_simt.cuda import nvrtc
from coregrad_simt.errors import MissingTool

from coregrad_cuda.driver import IEEE

TRAINING = Path(__file__).with_name("training.py")
# Of a device: how its text is executed, and the level.
RUNS = {
    "cuda-source": ("cuda", "core", {"COREGRAD_SIMT_ROUTE": "a"}),
    "cuda-ptx": ("cuda", "standard", {"COREGRAD_SIMT_ROUTE": "b"}),
    "metal": ("metal", "standard", {}),
}
TRAINED = {**RUNS, "metal-fast-math": ("metal", "core", {"COREGRAD_SIMT_FAST": "1"})}
# Rows that fast-math may break: subnormal numbers, signs of zeros, infinities, the order of sums.
FAST = (
    *("*/float32/special-*", "*/float32/random", "expressions/*/float32"),
    *("capabilities/composed/*/float32", "memory/kernel/constants", "sorting/float32/tensor"),
)
MISSING = 3  # the exit code of `python -m coregrad_simt` without the compiler it needs
Made = Callable[[str], "Run"]


@dataclass(frozen=True)
class Run:
    """A conformance run of an emulated device, and the folder of all texts that it met."""

    done: subprocess.CompletedProcess[str]
    folder: Path
    texts: Path

    @property
    def report(self) -> dict[str, Any]:
        """What it wrote."""
        found: dict[str, Any] = json.loads((self.folder / "report.json").read_text("utf-8"))
        return found


def python(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run this Python, with an environment that nobody has emulated anything in."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("COREGRAD_", "PYTHONPATH"))}
    kept = {k: v for k, v in os.environ.items() if k == "COREGRAD_SIMT_CACHE"}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, env=clean | kept | environment, capture_output=True, text=True, check=False
    )


def missing(device: str, reason: str) -> NoReturn:
    """Skip a test, or fail it where COREGRAD_REQUIRE names the emulation of its device."""
    if f"emulated-{device}" in config.names("COREGRAD_REQUIRE"):
        pytest.fail(f"COREGRAD_REQUIRE names emulated-{device}, but {reason}", pytrace=False)
    pytest.skip(reason)


def variables(name: str) -> dict[str, str]:
    """What makes a device an emulated one."""
    device, _, route = TRAINED[name]
    if name == "cuda-ptx":
        try:
            nvrtc.library()
        except MissingTool as error:
            missing(device, str(error))
    return {"COREGRAD_EMULATE": device, **route}


def conformance(name: str, folder: Path, *options: str, level: str = "", **more: str) -> Run:
    """A run of the suite on an emulated device, at its level if no other is asked for."""
    device = RUNS[name][0]
    level = level or RUNS[name][1]
    texts = folder / "texts"
    kept = os.environ.get("COREGRAD_CERTIFICATES")
    whole = kept and not (options or more)
    out = Path(kept) / f"{name}-emulated" if kept and whole else folder / "out"
    command = ["-m", "coregrad_conformance", "run", device, "--level", level, "--jobs", "2"]
    environment = {**variables(name), "COREGRAD_SIMT_TEXTS": str(texts), **more}
    return Run(python(*command, "--report", out, *options, **environment), out, texts)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The run of a name, made when it is first asked for."""
    made: dict[str, Run] = {}

    def of(name: str) -> Run:
        if name not in made:
            made[name] = conformance(name, tmp_path_factory.mktemp(name))
        return made[name]

    return of


def lines(record: Callable[[str, object], None], name: str, text: str) -> None:
    """Show a text at the end of all tests (conftest.py)."""
    record("shown", "\n".join(f"{name}: {line.strip()}" for line in text.splitlines()))


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_an_emulated_gpu_passes_and_says_that_it_is_none(
    run: Made, name: str, record_property: Callable[[str, object], None]
) -> None:
    made = run(name)
    assert made.done.returncode == 0, made.done.stdout[-4000:] + made.done.stderr[-2000:]
    report = made.report
    assert report["waivers"] == []
    assert emulation.launches(report["emulated"]) > 500
    assert not report["emulated"]["faults"]
    assert not report["verdict"]["certified"]
    assert emulation.MARK in report["verdict"]["provisional"]
    for page in ("CERTIFICATE.md", "CERTIFICATE.html"):
        assert certificate.EMULATED in (made.folder / page).read_text("utf-8")
    verified = python("-m", "coregrad_conformance", "verify", made.folder / "report.json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    told = made.done.stdout.splitlines()
    wanted = ("emulation:", "core:", "standard:")
    lines(record_property, name, "\n".join(x for x in told if x.strip().startswith(wanted)))


@pytest.mark.slow
def test_every_cuda_text_is_machine_code_for_every_gpu(
    run: Made, record_property: Callable[[str, object], None]
) -> None:
    """Of the whole level standard; no kernel with shared memory spills, or has too much of it."""
    options = [f"--option={option}" for option in IEEE]
    texts = run("cuda-ptx").texts
    done = python("-m", "coregrad_simt", "cubins", texts, "--tiled", *options)
    if done.returncode == MISSING:
        missing("cuda", done.stdout.strip())
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    told = done.stdout.splitlines()
    for architecture in ("sm_75", "sm_80", "sm_90", "sm_120"):
        counts = [int(x.split()[1]) for x in told if x.startswith(f"{architecture}: ")]
        assert counts[0] == len(list(texts.glob("*.cu"))) > 1000
        assert counts[1] > 30  # with shared memory
    lines(record_property, "cubins", done.stdout)


@pytest.mark.slow
def test_fast_math_breaks_nothing_but_the_edges_of_float32(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """metalcompute cannot do without; docs/backends.md says what that means."""
    made = conformance("metal", tmp_path, level="core", COREGRAD_SIMT_FAST="1")
    bad = [row["id"] for row in made.report["results"] if row["status"] != "pass"]
    known = [name for name in bad for pattern in FAST if fnmatchcase(name, pattern)]
    assert bad == known
    assert 0 < len(bad) < 40
    assert not made.report["emulated"]["faults"]
    lines(record_property, "metal, fast-math", f"{len(bad)} rows of core fail, as known")


@pytest.mark.slow
def test_every_metal_text_has_the_right_address_spaces(
    run: Made, record_property: Callable[[str, object], None]
) -> None:
    done = python("-m", "coregrad_simt", "spaces", run("metal").texts)
    if done.returncode == MISSING:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    lines(record_property, "metal", done.stdout)


@pytest.mark.parametrize("name", RUNS)
def test_a_line_of_text_that_is_spoilt_makes_the_run_red(name: str, tmp_path: Path) -> None:
    """By values that were compared: nothing but the text decides what is computed."""
    chosen = ("--only", "add/float32/*")
    intact = conformance(name, tmp_path / "intact", *chosen)
    assert intact.done.returncode == 0, intact.done.stdout + intact.done.stderr
    spoilt = conformance(
        name, tmp_path / "spoilt", *chosen, COREGRAD_SIMT_SPOIL="in1[i1] + in2=>in1[i1] - in2"
    )
    assert spoilt.done.returncode == 1, spoilt.done.stdout + spoilt.done.stderr
    for row in intact.report["results"]:
        assert row["status"] == "pass"
    for row in spoilt.report["results"]:
        assert (row["status"], row["kind"]) in (("fail", "value"), ("fail", "ulp")), row
    assert not spoilt.report["emulated"]["faults"]


def test_a_run_that_launches_nothing_proves_nothing(tmp_path: Path) -> None:
    """Though its one row passes, which needs no kernel."""
    made = conformance("metal", tmp_path, "--only", "capabilities/limits")
    assert [row["status"] for row in made.report["results"]] == ["pass"]
    assert made.done.returncode == 1
    assert "no kernel was launched" in made.done.stdout
    assert "no kernel was launched" in (made.folder / "REPORT.md").read_text("utf-8")


@pytest.mark.parametrize("name", TRAINED)
def test_three_layers_have_the_losses_of_the_cpu(name: str, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    told = python(TRAINING, TRAINED[name][0], COREGRAD_SIMT_REPORT=str(journal), **variables(name))
    assert told.returncode == 0, told.stderr
    want = json.loads(python(TRAINING, "cpu").stdout)
    assert want[-1] < 0.9 * want[0]
    np.testing.assert_allclose(json.loads(told.stdout), want, rtol=1e-5)
    seen = emulation.tally(journal)
    assert emulation.launches(seen.data()) > 100
    assert seen.faults == []
