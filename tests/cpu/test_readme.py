"""The README's programs run and print what it says they print."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from coregrad import plugins

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)


def programs(name: str) -> list[tuple[str, str]]:
    """The programs of a page, each with the output that follows it."""
    return BLOCK.findall((ROOT / name).read_text(encoding="utf-8"))


def run(program: str, device: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"COREGRAD_DEVICE": device, "DEBUG": "0"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_readme_shows_a_program() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(programs("README.md")) >= 1
    assert text.count("```python") == len(programs("README.md"))


@pytest.mark.parametrize(("program", "output"), programs("README.md"), ids=lambda text: text[:6])
def test_a_program_in_the_readme_prints_what_it_says(
    program: str, output: str, device: str
) -> None:
    done = run(program, device)
    assert done.returncode == 0, done.stderr
    assert done.stdout == output


def test_the_files_that_the_readme_names_exist() -> None:
    for page in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
        named = re.findall(r"`((?:coregrad|scripts|tests|bench|examples|plugins)/[\w/.-]*)`", text)
        assert [path for path in links + named if not (ROOT / path).exists()] == []


def test_the_backend_in_contributing_describes_itself() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    program = re.search(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert program is not None
    names: dict[str, object] = {}
    exec(program[1], names)
    info = names["mychip_info"]()  # type: ignore[operator]
    assert plugins._activation().check_info(info, "mychip") == []
