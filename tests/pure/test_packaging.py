"""What is published: names, versions, the contents of wheels, and no word that may not be there."""

import email
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from coregrad import config

ROOT = Path(__file__).parents[2]
PROJECTS = {"coregrad-core": ROOT, "coregrad-cpu": ROOT / "plugins" / "coregrad-cpu"}
SKIPPED = {".git", ".venv", "dist", "build", "__pycache__", ".hypothesis"}
TEXT = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".cfg", ".ini", ".sh", ".json", ".html", ""}
# `coregrad` as a whole requirement: on PyPI that name is a stranger's.
ALONE = r"(?<![\w./-])coregrad(?:\[[^\]]*\])?(?![\w./-])"
INSTALL = re.compile(rf"\b(?:pip3?|uv|poetry|conda)\s+(?:install|add)\b[^\n`;&|,]*?{ALONE}")
# Folders of one machine; nobody else has them.
MACHINE = re.compile(r"(?<![\w.])/(?:work|opt|home|root|Users)/\w")


def text_files() -> Iterator[Path]:
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [f for f in folders if f not in SKIPPED and not f.endswith("_cache")]
        for name in names:
            path = Path(folder, name)
            if path.suffix in TEXT and path.stat().st_size < 1_000_000:
                yield path


FILES = sorted(text_files())


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def project(name: str) -> dict[str, object]:
    with open(PROJECTS[name] / "pyproject.toml", "rb") as file:
        table: dict[str, object] = tomllib.load(file)["project"]
    return table


def requirements() -> Iterator[tuple[str, str]]:
    """Every requirement that the repository states, with the file it is in."""
    for path in FILES:
        if path.name == "pyproject.toml":
            table = tomllib.loads(read(path))
            groups = [table["project"].get("dependencies", []), table["build-system"]["requires"]]
            groups += table["project"].get("optional-dependencies", {}).values()
            yield from ((str(path), line) for group in groups for line in group)
        elif re.fullmatch(r"requirements.*\.txt", path.name):
            lines = (line.partition("#")[0].strip() for line in read(path).splitlines())
            yield from ((str(path), line) for line in lines if line)


def test_the_patterns_find_what_they_are_for() -> None:
    name = "coregrad"
    for line in (
        f"pip install {name}",
        f"python -m pip install -U {name}[cpu] numpy",
        f"uv add {name}",
        f"pip install -e {name}",
        f"pip3 install numpy {name}",
    ):
        assert INSTALL.search(line), line
    for line in (
        f"pip install {name}-cpu",
        f"pip install -e . -e plugins/{name}-cpu",
        f"pip uninstall {name}",
        f"pip install ./{name}",
        f"pip install {name}-core, imported as {name}",
    ):
        assert not INSTALL.search(line), line
    assert MACHINE.search("see /" + "work/shared")
    assert not MACHINE.search("https://example.org/" + "work/x")


def test_no_text_installs_the_strangers_package() -> None:
    found = {str(path.relative_to(ROOT)): INSTALL.findall(read(path)) for path in FILES}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_no_requirement_is_the_strangers_package() -> None:
    stated = list(requirements())
    assert any(line.startswith("numpy") for _, line in stated)
    names = [(path, re.split(r"[\s\[<>=!~;(@]", line)[0].lower()) for path, line in stated]
    assert [entry for entry in names if entry[1] == "coregrad"] == []


def test_no_file_names_a_folder_of_one_machine() -> None:
    found = {str(path.relative_to(ROOT)): MACHINE.findall(read(path)) for path in FILES}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_all_distributions_have_one_version() -> None:
    versions = {project(name)["version"] for name in PROJECTS}
    assert len(versions) == 1
    source = read(ROOT / "plugins/coregrad-cpu/src/coregrad_cpu/__init__.py")
    assert f'__version__ = "{versions.pop()}"' in source


def test_core_needs_numpy_and_pluggy_and_nothing_else() -> None:
    names = [re.match(r"[\w-]+", line)[0] for line in project("coregrad-core")["dependencies"]]
    assert names == ["numpy", "pluggy"]


def test_every_environment_variable_is_documented() -> None:
    readme = read(ROOT / "README.md")
    assert [name for name in config.VARIABLES if f"`{name}`" not in readme] == []


def test_every_environment_variable_that_is_read_is_in_the_table() -> None:
    sources = [path for path in FILES if path.suffix == ".py" and "tests" not in path.parts]
    read_names = {
        name for path in sources for name in re.findall(r"\bCOREGRAD_[A-Z_]+\b", read(path))
    }
    emulation = {name for name in read_names if name.startswith("COREGRAD_SIMT_")}
    assert read_names - emulation <= set(config.VARIABLES)
    page = read(ROOT / "tools" / "coregrad_simt" / "README.md")
    assert [name for name in emulation if f"`{name}" not in page] == []


# --- the wheels ---


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both distributions, built as they would be published: source archive, then wheel from it."""
    folder = tmp_path_factory.mktemp("wheels")
    built = {}
    for name, source in PROJECTS.items():
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)]
        environment = os.environ | {"PYTHONWARNINGS": "ignore"}
        done = subprocess.run(
            [*command, str(source)], capture_output=True, text=True, check=False, env=environment
        )
        assert done.returncode == 0, done.stdout + done.stderr
        built[name] = next(folder.glob(f"{name.replace('-', '_')}-*.whl"))
    return built


@pytest.fixture(scope="module")
def installed(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the wheels hold, as if pip had put it there."""
    folder = tmp_path_factory.mktemp("site")
    for path in wheels.values():
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(folder)
    return folder


def run_at(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with a folder as the first place where packages are looked for."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("COREGRAD_")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=clean | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_core_wheel_holds_the_package_and_its_door(wheels: dict[str, Path]) -> None:
    names = zipfile.ZipFile(wheels["coregrad-core"]).namelist()
    assert {name.partition("/")[0] for name in names} == {
        "coregrad",
        "_coregrad_boot.py",
        f"{wheels['coregrad-core'].name.split('-py3')[0]}.dist-info",
    }
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "coregrad").rglob("*.py")}
    assert sources <= {name.replace("/", os.sep) for name in names}
    assert "coregrad/py.typed" in names


def test_the_cpu_wheel_holds_its_package_alone(wheels: dict[str, Path]) -> None:
    names = zipfile.ZipFile(wheels["coregrad-cpu"]).namelist()
    assert {name.partition("/")[0] for name in names} == {
        "coregrad_cpu",
        f"{wheels['coregrad-cpu'].name.split('-py3')[0]}.dist-info",
    }
    assert "coregrad_cpu/py.typed" in names


def test_the_core_source_archive_leaves_the_plugins_out(wheels: dict[str, Path]) -> None:
    import tarfile

    archive = next(wheels["coregrad-core"].parent.glob("coregrad_core-*.tar.gz"))
    with tarfile.open(archive) as file:
        tops = {name.split("/")[1] for name in file.getnames() if "/" in name}
    assert tops == {
        "coregrad",
        "_coregrad_boot.py",
        "README.md",
        "LICENSE",
        "pyproject.toml",
        "PKG-INFO",
        ".gitignore",
    }


@pytest.mark.parametrize("name", sorted(PROJECTS))
def test_a_wheel_states_its_licence_and_its_python(wheels: dict[str, Path], name: str) -> None:
    with zipfile.ZipFile(wheels[name]) as wheel:
        path = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(wheel.read(path))
        licences = [n for n in wheel.namelist() if n.endswith("licenses/LICENSE")]
    assert metadata["Name"] == name
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Requires-Python"] == ">=3.10"
    assert len(licences) == 1


def test_installed_wheels_offer_their_devices(installed: Path) -> None:
    done = run_at(installed, "-m", "coregrad", "devices")
    assert (done.returncode, done.stderr) == (0, "")
    names = [line.split()[0] for line in done.stdout.splitlines()[1:]]
    assert {"cpu", "numpy"} <= set(names)
    where = run_at(installed, "-c", "import coregrad; print(coregrad.__file__)")
    assert str(installed) in where.stdout


def test_the_console_script_opens_its_door(installed: Path) -> None:
    code = "import sys, _coregrad_boot; sys.argv = ['coregrad', 'devices']; "
    done = run_at(installed, "-c", code + "sys.exit(_coregrad_boot.main())")
    assert (done.returncode, done.stderr) == (0, "")
    assert "coregrad-cpu" in done.stdout


@pytest.mark.parametrize("damage", ["installed", "shadowed", "removed"])
def test_the_console_script_notices_a_strangers_package(
    installed: Path, tmp_path: Path, damage: str
) -> None:
    boot = (installed / "_coregrad_boot.py").read_text()
    (tmp_path / "_coregrad_boot.py").write_text(boot)
    package = tmp_path / "coregrad"
    package.mkdir()
    if damage != "removed":
        (package / "__init__.py").write_text("class Value: pass\n")
    if damage == "installed":
        info = tmp_path / "coregrad-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: coregrad\nVersion: 0.1.0\n")
    elif damage == "removed":  # uninstalling the stranger's has deleted our __init__.py
        (package / "cli.py").write_text((installed / "coregrad" / "cli.py").read_text())
    code = "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; "
    code += f"sys.path[:0] = [{str(tmp_path)!r}]; import _coregrad_boot; "
    done = run_at(tmp_path, "-S", "-c", code + "sys.exit(_coregrad_boot.main())")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "coregrad" in done.stderr
    assert "uninstall --yes coregrad coregrad-core" in done.stderr
    assert "--force-reinstall coregrad-core" in done.stderr
