"""scripts/start.py: what it decides and says; the installation itself is what .ci/run runs."""

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "start.py"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, with an environment folder of its own that does not exist yet."""
    spec = importlib.util.spec_from_file_location("start", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "VENV", tmp_path / "an environment")
    return module


def without(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """As if this Python lacked these modules."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in modules else find(name)
    )


def test_an_old_python_is_told_to_step_aside(
    start: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["start.py", "test"])
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    with pytest.raises(SystemExit) as caught:
        start.main()
    assert caught.value.code == 1
    assert "needs 3.10 or newer" in capsys.readouterr().err
    assert not start.VENV.exists()


def test_an_old_python_can_read_the_script() -> None:
    tree = ast.parse(SCRIPT.read_text(), feature_version=(3, 8))
    futures = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    assert [alias.name for n in futures for alias in n.names] == ["annotations"]


@pytest.mark.parametrize("missing", [("venv",), ("ensurepip", "pip")])
def test_a_python_that_cannot_make_environments_names_the_package_to_install(
    start: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    missing: tuple[str, ...],
) -> None:
    without(monkeypatch, *missing)
    with pytest.raises(SystemExit):
        start.make_environment()
    said = capsys.readouterr().err
    assert missing[-1] in said
    assert "sudo apt install python3-venv" in said


def test_an_environment_that_is_missing_or_was_moved_does_not_work(
    start: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert not start.environment_works()
    monkeypatch.setattr(start, "environment_python", lambda: Path(sys.executable))
    assert not start.environment_works()  # it is the Python of another folder
    monkeypatch.setattr(start, "VENV", Path(sys.prefix))
    assert start.environment_works()


def test_what_leads_python_or_pip_elsewhere_is_left_out(
    start: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in start.UNWANTED:
        monkeypatch.setenv(name, "elsewhere")
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    environment = start.environment()
    assert not set(start.UNWANTED) & set(environment)
    assert environment["PIP_INDEX_URL"] == "https://mirror.example/simple"
    assert environment["PATH"]


def test_the_installation_is_repeated_when_what_decides_it_changes(
    start: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(start, "pip_install", lambda *arguments: calls.append(arguments))
    start.VENV.mkdir()
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("tqdm\n")
    start.install("mnist", requirements)
    first = len(calls)
    assert first == 2
    start.install("mnist", requirements)
    assert len(calls) == first
    requirements.write_text("tqdm>=4\n")
    start.install("mnist", requirements)
    assert len(calls) == 2 * first


def test_a_failed_check_fails_the_command_after_the_tests_have_run(
    start: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def run_python(*arguments: str) -> int:
        ran.append(" ".join(arguments))
        return 1 if arguments[1] == "mypy" else 0

    monkeypatch.setattr(start, "run_python", run_python)
    assert start.run_tests(["-q"]) == 1
    assert ran[:3] == ["-m ruff check .", "-m ruff format --check .", "-m mypy"]
    assert "lint_imports" in ran[3]
    assert ran[4:] == ["-m pytest -n auto --maxprocesses 8 --dist loadfile -q"]
    assert capsys.readouterr().err.splitlines()[-1] == "failed before the tests: mypy"
    monkeypatch.setattr(start, "run_python", lambda *arguments: 0)
    assert start.run_tests([]) == 0
