"""The documents say what is there: their examples run, every module and variable is named."""

import doctest
import re
from pathlib import Path

import pytest

from coregrad import config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
MODULES = sorted(
    path.relative_to(ROOT / "coregrad").as_posix()
    for path in (ROOT / "coregrad").rglob("*.py")
    if path.name != "__init__.py"
)


@pytest.mark.parametrize("module", MODULES)
def test_the_architecture_names_every_module(module: str) -> None:
    assert re.search(rf"(?<![\w/]){re.escape(module)}", PAGE), f"ARCHITECTURE.md lacks {module}"


def test_the_architecture_names_no_module_that_is_gone() -> None:
    named = set(re.findall(r"`((?:api|ir|nn)/\w+\.py)`", PAGE))
    assert named <= set(MODULES), named - set(MODULES)


def test_the_walk_in_the_architecture_runs() -> None:
    failed, tried = doctest.testfile(str(ROOT / "ARCHITECTURE.md"), module_relative=False)
    assert tried > 5
    assert failed == 0


@pytest.mark.parametrize("name", config.VARIABLES)
def test_the_readme_documents_every_variable(name: str) -> None:
    assert f"`{name}`" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_links_between_documents_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = [int(p.name[:4]) for p in sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))
