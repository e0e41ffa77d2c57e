"""`coregrad new-backend`: the package it writes, whole or not at all, and the names it refuses."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from coregrad import activation, cli, new_backend, plugins
from coregrad.errors import CoregradError
from coregrad.hookspecs import CONTRACT_VERSION, BackendInfo
from coregrad.ir.ops import CONTRACT_OPS

ROOT = Path(__file__).parents[2]
STYLES = pytest.mark.parametrize("style", new_backend.STYLES)


def files(folder: Path) -> dict[str, str]:
    """Every file of a folder, by its path there."""
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@STYLES
def test_the_package_is_written_as_files_of_that_name(tmp_path: Path, style: str) -> None:
    folder = new_backend.write("my_chip2", tmp_path, style=style)
    assert folder == tmp_path / "coregrad-my-chip2"
    assert os.listdir(tmp_path) == ["coregrad-my-chip2"]
    found = files(folder)
    assert set(found) == {
        ".github/workflows/conformance.yml",
        ".gitignore",
        "README.md",
        "pyproject.toml",
        "src/coregrad_my_chip2/__init__.py",
        "src/coregrad_my_chip2/arithmetic.py",
        "src/coregrad_my_chip2/backend.py",
        "src/coregrad_my_chip2/waivers.toml",
        "tests/test_conformance.py",
        "tests/test_light_import.py",
    }
    assert [path for path, text in found.items() if "mychip" in text] == []
    assert [path for path, text in found.items() if "AUTHOR" in text] == []


@STYLES
def test_the_project_file_offers_the_device(tmp_path: Path, style: str) -> None:
    folder = new_backend.write("my_chip", tmp_path, "Ada L. <ada@example.org>", style)
    table = tomllib.loads((folder / "pyproject.toml").read_text())
    project = table["project"]
    assert project["name"] == "coregrad-my-chip"
    assert project["authors"] == [{"name": "Ada L.", "email": "ada@example.org"}]
    assert project["dependencies"] == ["coregrad-core>=0.1,<0.2"]
    points = project["entry-points"][plugins.GROUP]
    assert points == {"my_chip": "coregrad_my_chip:backend_info"}
    wheel = table["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["packages"] == ["src/coregrad_my_chip"]
    assert tomllib.loads((folder / "src/coregrad_my_chip/waivers.toml").read_text()) == {}


@pytest.mark.parametrize(
    ("author", "expected"),
    [
        ("", None),
        ("Ada", {"name": "Ada"}),
        ('A "B" \\ Ö', {"name": 'A "B" \\ Ö'}),
        ("Ada Lovelace <a@b.c>", {"name": "Ada Lovelace", "email": "a@b.c"}),
    ],
)
def test_an_author_is_written_as_toml(
    tmp_path: Path, author: str, expected: dict[str, str] | None
) -> None:
    folder = new_backend.write("mychip", tmp_path, author)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project.get("authors", [None])[0] == expected


@STYLES
def test_the_written_backend_is_short_and_meets_the_contract_in_form(
    tmp_path: Path, style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = new_backend.write(f"form_{style}", tmp_path, style=style)
    monkeypatch.syspath_prepend(folder / "src")
    package = f"coregrad_form_{style}"
    info = __import__(package).backend_info()
    assert activation.check_info(info, f"form_{style}") == []
    assert info.contract == CONTRACT_VERSION
    assert f"{package}.backend" not in sys.modules
    backend, hooks = activation.load_backend(info)
    assert hooks.style == style
    assert sorted(hooks.functions) == sorted(CONTRACT_OPS)
    assert activation.check_device(backend.open_device(0)) == []
    for path in (folder / "src").rglob("*.py"):
        assert len(path.read_text().splitlines()) < 300


@STYLES
def test_the_written_backend_is_independent_of_numpy_and_of_other_backends(
    tmp_path: Path, style: str
) -> None:
    folder = new_backend.write("mychip", tmp_path, style=style)
    roots = set()
    for path in (folder / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                roots.add(node.module)
            elif isinstance(node, ast.Import):
                roots |= {alias.name for alias in node.names}
    allowed = {
        "__future__",
        "collections.abc",
        "coregrad",
        "coregrad.dtypes",
        "coregrad.errors",
        "coregrad.hookspecs",
        "coregrad.ir.kernel",
        "coregrad_mychip",
        "coregrad_mychip.arithmetic",
        "math",
        "struct",
        "typing",
    }
    assert roots <= allowed


@STYLES
def test_the_written_code_passes_our_own_checks(tmp_path: Path, style: str) -> None:
    folder = new_backend.write("mychip", tmp_path, style=style)
    settings = str(ROOT / "pyproject.toml")
    lint = ["ruff", "check", "--config", settings, "--ignore", "D", "--no-cache", "."]
    form = ["ruff", "format", "--config", settings, "--check", "--no-cache", "."]
    types = ["mypy", "--strict", "--config-file", "", "--cache-dir", str(tmp_path / "c"), "src"]
    for command in (lint, form, types):
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=folder,
            env=os.environ | {"MYPYPATH": os.pathsep.join(["src", str(ROOT)])},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "name",
    ["", "My", "my-chip", "my chip", "9lives", "_x", "x_", "a__b", "ä", "../x", "a/b", "x" * 17],
)
def test_what_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CoregradError, match="is no name for a device; take up to 16 lower-case"):
        new_backend.write(name, tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_name_the_kit_takes_is_one_the_contract_takes() -> None:
    for name in ("a", "x" * 16, "my_chip", "a1_b2"):
        assert new_backend.NAME.fullmatch(name)
        assert activation.NAME.fullmatch(name)
    assert new_backend.LONGEST == 16
    assert not activation.NAME.fullmatch("x" * 17)


@pytest.mark.parametrize("name", ["cpu", "numpy", "opencl", "cuda", "metal", "core", "conformance"])
def test_a_name_of_ours_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CoregradError, match=f"'{name}' is coregrad's own"):
        new_backend.write(name, tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_device_that_is_installed_is_refused(tmp_path: Path, plugin_registry: None) -> None:
    info = BackendInfo("mychip", CONTRACT_VERSION, "somewhere:Backend", "gpu")
    plugins.register(info, "acme-chips")
    with pytest.raises(CoregradError, match="acme-chips, which is installed, offers the device"):
        new_backend.write("mychip", tmp_path)
    plugins.unregister("mychip")
    plugins.register(info, "coregrad-mychip")  # an earlier one of the same name is no rival
    assert new_backend.write("mychip", tmp_path).is_dir()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    folder = new_backend.write("mychip", tmp_path)
    (folder / "README.md").write_text("mine")
    with pytest.raises(CoregradError, match=r"coregrad-mychip exists; remove it"):
        new_backend.write("mychip", tmp_path)
    assert (folder / "README.md").read_text() == "mine"
    with pytest.raises(CoregradError, match="is no folder; make it first"):
        new_backend.write("mychip", tmp_path / "missing")
    (tmp_path / "coregrad-other").symlink_to(tmp_path / "nowhere")
    with pytest.raises(CoregradError, match="exists"):
        new_backend.write("other", tmp_path)


def test_nothing_is_left_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    original = Path.write_text

    def failing(path: Path, *args: object, **kwargs: object) -> int:
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        written.append(path)
        return original(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "write_text", failing)
    with pytest.raises(CoregradError, match=r"cannot write .*No space left"):
        new_backend.write("mychip", tmp_path)
    assert len(written) == 3
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "author", ["Ada <no address>", "two\nlines", "<a@b.c>", "A <a@b.c> and more"]
)
def test_an_author_of_another_form_is_refused(tmp_path: Path, author: str) -> None:
    with pytest.raises(CoregradError, match=r"write it like 'Ada L\. <ada@x\.org>'"):
        new_backend.write("mychip", tmp_path, author)
    assert os.listdir(tmp_path) == []


def test_the_command_line_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["new-backend", "mychip", "--into", str(tmp_path), "--style", "eager"]) == 0
    said = capsys.readouterr().out
    assert f"pip install -e {tmp_path / 'coregrad-mychip'}" in said
    assert (
        'style = "eager"'
        in (tmp_path / "coregrad-mychip/src/coregrad_mychip/backend.py").read_text()
    )
    assert cli.main(["new-backend", "mychip", "--into", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("coregrad: new-backend: ")


def test_every_template_is_used_and_every_step_of_the_readme_is_there() -> None:
    folder = ROOT / "coregrad" / "scaffold"
    used = {
        f"{t.format(style=s)}.txt" for t in new_backend.FILES.values() for s in new_backend.STYLES
    }
    assert {path.name for path in folder.iterdir() if path.is_file()} == used
    steps = re.findall(
        r"^\d\. \*\*(.+?)\.\*\*", (folder / "README.md.txt").read_text(), re.MULTILINE
    )
    assert steps == ["Probe", "Memory", "Add", "25 ops", "Casts", "Compile cache", "Certificate"]
