"""The fixture `device`: absent devices skip tests, unless COREGRAD_REQUIRE names them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
EMULATED = """
import accelerators

def test_with_an_emulation():
    with accelerators.emulated("metal", "metalcompute"):
        pass
"""
PROGRAM = "def test_with_a_device(device):\n    assert device in ('cpu', 'numpy', 'healthy')\n"


@pytest.mark.parametrize(
    ("required", "plugins", "closing"),
    [
        ("", "none", "2 skipped"),
        ("numpy", "none", "1 skipped, 1 error"),
        ("cpu, numpy", "none", "2 errors"),
        ("metal", "none", "2 skipped, 1 error"),
        ("a typing error", "none", "2 skipped, 1 error"),
        ("healthy", "healthy", "1 passed, 2 skipped"),
        ("emulated-metal", "none", "2 skipped"),  # no device for these tests, but one for its own
    ],
)
def test_a_missing_device_skips_and_a_required_one_fails(
    tmp_path: Path, required: str, plugins: str, closing: str
) -> None:
    info = tmp_path / "acme_healthy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-healthy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[coregrad.backends]\nhealthy = zoo_healthy:healthy_info\n"
    )
    (tmp_path / "test_it.py").write_text(PROGRAM)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    paths = [str(TESTS), str(TESTS / "zoo"), str(tmp_path), *sys.path]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        env=os.environ
        | {"COREGRAD_REQUIRE": required, "COREGRAD_PLUGINS": plugins}
        | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1].startswith(closing), done.stdout


@pytest.mark.parametrize(
    ("required", "closing"), [("", "1 skipped"), ("numpy", "1 skipped"), ("emulated-metal", "1 f")]
)
def test_an_emulation_without_its_compiler_skips_and_a_required_one_fails(
    tmp_path: Path, required: str, closing: str
) -> None:
    (tmp_path / "test_it.py").write_text(EMULATED)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    paths = [str(TESTS), str(TESTS / "zoo"), str(tmp_path), *sys.path]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        env=os.environ
        | {"COREGRAD_REQUIRE": required, "PYTHONPATH": os.pathsep.join(paths)}
        | {"PATH": ""},  # no g++ there
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1].startswith(closing), done.stdout
