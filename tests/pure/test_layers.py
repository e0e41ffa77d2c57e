"""The rooms: imports point downwards, as pyproject.toml says, and stand at the top of files."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = sorted((ROOT / "coregrad").rglob("*.py"))
# The rooms that may import late: the registry (see there), and none else.
LATE = {"plugins.py"}


def test_imports_keep_the_layer_contracts() -> None:
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout


def late_imports(path: Path) -> list[int]:
    """The lines of the imports that are inside functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [
        n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    inside = [n for function in functions for n in ast.walk(function)]
    return sorted({n.lineno for n in inside if isinstance(n, (ast.Import, ast.ImportFrom))})


@pytest.mark.parametrize("path", CORE, ids=lambda p: str(p.relative_to(ROOT / "coregrad")))
def test_a_room_imports_at_the_top_of_its_file(path: Path) -> None:
    found = late_imports(path)
    assert bool(found) == (path.name in LATE)


@pytest.mark.parametrize("path", CORE, ids=lambda p: str(p.relative_to(ROOT / "coregrad")))
def test_a_room_says_what_it_is_for(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert text is not None
    assert len(text) > 20


@pytest.mark.parametrize("name", ["utils", "util", "helpers", "helper", "common", "misc"])
def test_there_is_no_room_for_everything(name: str) -> None:
    places = [*CORE, *(ROOT / "plugins").rglob("*.py")]
    assert [path for path in places if path.stem == name or path.parent.name == name] == []
