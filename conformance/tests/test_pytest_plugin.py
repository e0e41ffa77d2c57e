"""The pytest plugin: nothing in other projects, and the runner's results when it is asked."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import coregrad_conformance
from coregrad_conformance.runner import Lost


def pytest_run(cwd: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def test_importing_the_plugin_loads_the_standard_library_alone() -> None:
    code = (
        "import sys; before = set(sys.modules); import coregrad_conformance.pytest_plugin; "
        "print(*sorted({m.partition('.')[0] for m in set(sys.modules) - before}))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "coregrad_conformance" in loaded
    assert loaded - set(sys.stdlib_module_names) == {"coregrad_conformance"}


def test_another_project_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("def test_one():\n    assert True\n")
    done = pytest_run(tmp_path, "-q")
    assert "1 passed" in done.stdout
    assert "coregrad" not in done.stdout


def test_without_a_backend_everything_is_skipped(tmp_path: Path) -> None:
    done = pytest_run(tmp_path, "-q", "--pyargs", "coregrad_conformance.test_conformance")
    assert done.returncode == 0
    assert re.search(r"^2 skipped", done.stdout.splitlines()[-1])


def test_each_row_is_a_test_that_ends_as_in_the_runner(tmp_path: Path, core_run: Path) -> None:
    done = pytest_run(
        tmp_path, "-v", "--pyargs", "coregrad_conformance", "--coregrad-backend", "numpy"
    )
    assert "a run of pytest is no certificate" in done.stdout
    ended = dict(re.findall(r"::test_row\[(\S+)\] (\w+)", done.stdout))
    words = {"PASSED": "pass", "SKIPPED": "unsupported", "XFAIL": "waived", "FAILED": "fail"}
    report = json.loads((core_run / "report.json").read_text())
    assert {name: words[word] for name, word in ended.items()} == {
        result["id"]: result["status"] for result in report["results"]
    }


def test_only_the_chosen_rows_run(tmp_path: Path) -> None:
    arguments = ("--pyargs", "coregrad_conformance", "--coregrad-backend", "numpy")
    done = pytest_run(tmp_path, "-q", *arguments, "-k", "test_row and xor")
    assert done.returncode == 0, done.stdout
    assert re.search(r"\d+ passed, \d+ deselected", done.stdout)


def test_a_device_that_is_not_there_ends_the_run(tmp_path: Path) -> None:
    arguments = ("--pyargs", "coregrad_conformance", "--coregrad-backend", "nosuchchip")
    done = pytest_run(tmp_path, "-q", *arguments)
    assert done.returncode == 2
    assert "choose one of" in done.stdout


def test_an_unknown_level_is_said(tmp_path: Path) -> None:
    arguments = ("--pyargs", "coregrad_conformance", "--coregrad-backend", "numpy")
    done = pytest_run(tmp_path, "-q", *arguments, "--coregrad-level", "gold")
    assert done.returncode != 0
    assert "choose one of: core" in done.stdout + done.stderr


# --- check, for an author's own tests ---


def test_check_gives_a_dict_per_row() -> None:
    found = coregrad_conformance.check("numpy", only="xor/*")
    assert len(found) > 3
    for row in found:
        assert row["id"].startswith("xor/")
        assert row["ok"]
        assert row["status"] == "pass"
        assert row["detail"] == ""
        json.dumps(row)


def test_check_of_a_device_that_is_not_there_says_why() -> None:
    with pytest.raises(Lost, match="choose one of"):
        coregrad_conformance.check("nosuchchip")


def test_check_of_an_unknown_level_says_which_there_are() -> None:
    with pytest.raises(ValueError, match="choose one of: core"):
        coregrad_conformance.check("numpy", level="gold")


def test_check_can_parametrise_tests(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "import pytest\n"
        "from coregrad_conformance import check\n"
        "ROWS = check('numpy', only='xor/*')\n"
        "@pytest.mark.parametrize('row', ROWS, ids=lambda row: row['id'])\n"
        "def test_conformance(row):\n"
        "    assert row['ok'], row['detail']\n"
    )
    done = pytest_run(tmp_path, "-q", "-k", "int32")
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout
