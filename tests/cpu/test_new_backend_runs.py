"""What `coregrad new-backend` writes is installed by pip, computes, and passes level core."""

import json
import os
from pathlib import Path

import pytest
from installed import CPU, ROOT, Environment

from coregrad import new_backend

CONFORMANCE = ROOT / "conformance" / "src"
# Metadata of these may lie where the environment's NumPy comes from.
OTHERS = {"COREGRAD_PLUGINS": "-cpu,-numpy,-opencl,-cuda,-metal"}
PROGRAMS = """
import numpy as np
from coregrad import Tensor, dtypes, plugins

def values(device):
    rng = np.random.default_rng(0)
    a = Tensor(rng.normal(size=(7, 13)).astype(np.float32), device=device, requires_grad=True)
    b = Tensor(rng.normal(size=(13, 5)).astype(np.float32), device=device, requires_grad=True)
    product = a @ b
    (product.softmax(1) * product).sum().backward()
    yield product
    yield from (a.grad, b.grad, a.argmax(1), a.cumsum(1), a.pad((1, 2, 0, 3)))
    yield (a.amax(0) + 3).log()
    yield a[Tensor([3, -1, 2], device=device)]
    numbers = Tensor(rng.integers(-300, 300, size=40), device=device)
    for dtype in dtypes.ALL:
        cast = numbers.cast(dtype)
        yield cast.cast(dtypes.float64)
        if dtype.is_float:
            yield (cast / 7).sin().cast(dtypes.float64)
            yield (cast / 70).exp().cast(dtypes.float64)

for number, (one, other) in enumerate(zip(values("mychip"), values("numpy"), strict=True)):
    assert one.device == "mychip"
    np.testing.assert_allclose(one.numpy(), other.numpy(), 1e-5, 1e-6, err_msg=str(number))
print(number + 1)
"""


@pytest.fixture(scope="module", params=new_backend.STYLES)
def plugin(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Environment, Path]:
    """A new backend, and an environment in which it is installed."""
    folder = tmp_path_factory.mktemp(request.param)
    there = Environment(folder / "env")
    for path in (ROOT, CPU, CONFORMANCE):
        there.add_path(path)
    project = new_backend.write("mychip", folder, "Ada L. <ada@example.org>", request.param)
    there.install(project)
    return there, project


def test_it_is_listed_and_tried(plugin: tuple[Environment, Path]) -> None:
    there, _ = plugin
    allowed = {"COREGRAD_PLUGINS": "mychip,numpy"}
    done = there.run("-m", "coregrad", "devices", "--probe", "--json", **allowed)
    row = next(row for row in json.loads(done.stdout) if row["name"] == "mychip")
    assert (row["state"], row["distribution"], row["version"]) == (
        "active",
        "coregrad-mychip",
        "0.1.0",
    )
    done = there.run("-m", "coregrad", "doctor", "--json", COREGRAD_DEVICE="mychip", **allowed)
    checks = {check["subject"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["device mychip"]["status"] == "ok"
    assert checks["default"]["detail"].startswith("mychip ")


def test_programs_give_what_the_reference_gives(plugin: tuple[Environment, Path]) -> None:
    there, _ = plugin
    done = there.run("-c", PROGRAMS)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 8 + 13 + 2 * 4


def test_its_light_module_is_light(plugin: tuple[Environment, Path]) -> None:
    there, project = plugin
    done = there.run("-m", "pytest", "-q", "tests/test_light_import.py", cwd=project)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_its_own_tests_can_be_narrowed_to_one_op(plugin: tuple[Environment, Path]) -> None:
    there, project = plugin
    arguments = ["-m", "pytest", "-q", "-k", "trunc", "-p", "no:cacheprovider", "tests"]
    done = there.run(*arguments, cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "failed" not in done.stdout


@pytest.fixture(scope="module")
def alone(
    plugin: tuple[Environment, Path], tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """An environment that has the core, the suite and the new backend, and no other one."""
    _, project = plugin
    there = Environment(tmp_path_factory.mktemp("alone") / "env")
    for path in (ROOT, CONFORMANCE):
        there.add_path(path)
    there.install(project)
    missing = there.run("-c", "import coregrad_cpu")
    assert "ModuleNotFoundError" in missing.stderr
    return there


def test_without_another_backend_it_is_well_and_waits_to_be_named(alone: Environment) -> None:
    done = alone.run("-m", "coregrad", "doctor", "--json", **OTHERS)
    assert done.returncode == 0, done.stdout + done.stderr
    checks = {check["subject"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["device mychip"]["status"] == "ok"
    assert checks["default"]["status"] == "warn"
    assert checks["default"]["fix"] == "set COREGRAD_DEVICE=mychip"
    program = "import coregrad; print(coregrad.Tensor([2.0]).device)"
    done = alone.run("-c", program, **OTHERS)
    assert "mychip is installed" in done.stderr
    assert "set COREGRAD_DEVICE=mychip" in done.stderr
    done = alone.run("-c", program, COREGRAD_DEVICE="mychip", **OTHERS)
    assert done.stdout == "mychip\n", done.stderr


def test_it_passes_level_core_on_the_first_day(alone: Environment, tmp_path: Path) -> None:
    arguments = ["run", "mychip", "--level", "core", "--report", str(tmp_path)]
    done = alone.run("-m", "coregrad_conformance", *arguments, **OTHERS)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    ends = {row["id"]: row["status"] for row in report["results"]}
    assert len(ends) > 200
    assert {status for status in ends.values() if status != "pass"} == set()
    assert {"report.json", "CERTIFICATE.md"} <= set(os.listdir(tmp_path))
