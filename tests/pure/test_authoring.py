"""docs/authoring.md: its code runs, and what it lists of the contract is the contract.

``--update-golden`` writes the lists anew.
"""

import dataclasses
import doctest
import inspect
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coregrad import activation, errors, hookspecs, new_backend, plugins
from coregrad.hookspecs import Backend, BackendInfo, BackendSpec, Device, Frame, Limits
from coregrad.ir import emit
from coregrad.ir.ops import CONTRACT_OPS, Op

ROOT = Path(__file__).parents[2]
PATH = ROOT / "docs" / "authoring.md"
PAGE = PATH.read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PART = re.compile(r"<!-- generated: (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)
WIDTH = 120  # of a line of the page
DOMAINS = {
    "any": "all dtypes",
    "number": "integers and floats",
    "float": "floats",
    "int": "integers",
    "bits": "integers and bool",
}


# --- the lists ---


def markdown(text: str) -> str:
    """A docstring as Markdown."""
    return inspect.cleandoc(text).replace("``", "`").replace("*not touched*", "_not touched_")


def signature(owner: type, name: str) -> str:
    parameters = list(inspect.signature(getattr(owner, name)).parameters)[1:]
    return f"`{name}({', '.join(parameters)})`"


def error_bound(op: Op) -> str:
    """The allowed error, with the dtypes that share one together."""
    by_bound: dict[float, list[str]] = {}
    for dtype, bound in op.ulp.items():
        by_bound.setdefault(bound, []).append(dtype)
    if set(by_bound) == {0.5}:
        return "correctly rounded"
    return ", ".join(f"≤ {bound:g} ulp ({', '.join(d)})" for bound, d in by_bound.items())


def hooks() -> Iterator[str]:
    for op in CONTRACT_OPS.values():
        name = f"lower_{op.name}"
        notes = [signature(BackendSpec, name), DOMAINS[op.domain]]
        if op.ulp:
            notes.append(error_bound(op))
        if op.name in activation.OPTIONAL:
            notes.append("may be left out")
        text = markdown(getattr(BackendSpec, name).__doc__)
        line = " · ".join(notes)
        if len(line) > WIDTH:
            line = " ·\n".join((notes[0], " · ".join(notes[1:])))
        yield f"### {op.name}\n\n{line}\n\n{text}\n"


def methods(owner: type) -> Iterator[str]:
    for name, member in vars(owner).items():
        if not name.startswith("_") and inspect.isfunction(member):
            text = " ".join(markdown(member.__doc__ or "").split())
            yield f"- {signature(owner, name)}: {text}"


PARTS = {
    "backend": lambda: "\n".join(methods(Backend)),
    "hooks": lambda: "\n".join(hooks()).rstrip(),
    "frame": lambda: "\n".join(methods(Frame)),
    "device": lambda: "\n".join(methods(Device)),
    "optional": lambda: ", ".join(f"`{op}`" for op in CONTRACT_OPS if op in activation.OPTIONAL),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_list_is_the_contracts(part: str, request: pytest.FixtureRequest) -> None:
    expected = f"\n{PARTS[part]()}\n\n"
    if request.config.getoption("update_golden"):
        page = PATH.read_text(encoding="utf-8")
        new = PART.sub(lambda m: m[0].replace(m[2], expected) if m[1] == part else m[0], page)
        if not dict(PART.findall(page))[part]:
            mark = f"<!-- generated: {part} -->\n"
            new = page.replace(mark, mark + expected)
        PATH.write_text(new, encoding="utf-8")
        return
    assert dict(PART.findall(PAGE))[part] == expected


def test_every_list_is_generated() -> None:
    assert [name for name, _ in PART.findall(PAGE)] == list(PARTS)
    listed = re.findall(r"^### (\w+)$", PAGE, re.MULTILINE)
    assert listed == list(CONTRACT_OPS)


# --- what is said elsewhere on the page ---


def test_every_error_of_a_device_is_explained() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    of_devices = {
        name for name in errors.__all__ if issubclass(getattr(errors, name), errors.DeviceError)
    }
    assert of_devices <= rows


def test_every_limit_is_explained_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S*) ?\| [`\w]", PAGE, re.MULTILINE))
    for field in dataclasses.fields(Limits):
        default = "" if field.default is dataclasses.MISSING else repr(field.default)
        assert rows[field.name] == default


def test_every_rank_and_style_is_explained() -> None:
    for word in (*activation.RANKS, *activation.STYLES):
        assert f"`{word}`" in PAGE
    assert {f"`{style}`" for style in new_backend.STYLES} <= set(PAGE.split())


def test_every_field_of_the_info_is_shown() -> None:
    for field in dataclasses.fields(BackendInfo):
        assert f"{field.name}=" in PAGE


def test_the_versions_are_todays() -> None:
    major, minor = hookspecs.CONTRACT_VERSION
    assert f"now {major}.{minor}." in PAGE
    assert f"contract=({major}, {minor})" in PAGE


def test_the_modules_a_backend_may_import_are_those_that_ours_do() -> None:
    allowed = set(re.findall(r"`(coregrad\.[\w.]+)`", PAGE.split("A backend may import")[1]))
    allowed |= {"coregrad"}
    for source in (ROOT / "coregrad" / "scaffold").glob("*.py.txt"):
        found = set(re.findall(r"^from (coregrad[\w.]*) import", source.read_text(), re.MULTILINE))
        assert {name for name in found if "mychip" not in name} <= allowed, source


# --- the examples ---


def run_example(text: str, names: dict[str, object]) -> int:
    """Run an example as a doctest, in this namespace; returns how many lines of it were tried."""
    test = doctest.DocTestParser().get_doctest(text, {}, PATH.name, str(PATH), 0)
    test.globs = names
    result = doctest.DocTestRunner().run(test, clear_globs=False)
    assert result.failed == 0
    return result.attempted


def test_the_kits_text_on_the_page_is_what_the_kit_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = new_backend.write("page", tmp_path)
    monkeypatch.syspath_prepend(folder / "src")
    backend, functions = activation.load_backend(__import__("coregrad_page").backend_info())
    names: dict[str, Any] = {}
    run_example(next(text for kind, text in FENCE.findall(PAGE) if kind == "pycon"), names)
    text = emit.emit(names["task"].kernel, backend, functions, names["limits"])
    assert [shown for kind, shown in FENCE.findall(PAGE) if kind == "text"] == [text]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_code_on_the_page_runs(plugin_registry: None, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("authoring_page")
    monkeypatch.setitem(sys.modules, "authoring_page", module)
    tried = 0
    for kind, text in FENCE.findall(PAGE):
        if kind == "python":
            exec(compile(text, str(PATH), "exec"), vars(module))
        elif kind == "pycon":
            tried += run_example(text, vars(module))
    assert tried > 10
    assert activation.check_backend(vars(module)["Backend"]()) == []
    assert plugins.open_device("plainc").name == "plainc"


def test_the_commands_on_the_page_are_commands() -> None:
    for command in re.findall(r"python -m (coregrad [\w-]+)", PAGE):
        done = subprocess.run(
            [sys.executable, "-m", *command.split(), "--help"],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
        assert done.returncode == 0, command


# --- docs/backends.md ---

BACKENDS = (ROOT / "docs" / "backends.md").read_text(encoding="utf-8")


def lines(*patterns: str) -> int:
    """The lines of all files that match."""
    paths = {path for pattern in patterns for path in ROOT.glob(pattern)}
    assert paths
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def test_the_sizes_on_the_page_are_about_right() -> None:
    opencl = "plugins/coregrad-opencl/src/coregrad_opencl"
    cpu = "plugins/coregrad-cpu/src/coregrad_cpu"
    sizes = [
        lines("coregrad/cstyle/*.py"),
        lines(f"{opencl}/*.py"),
        lines(f"{opencl}/backend.py", f"{opencl}/words.py"),
        lines(*(f"{cpu}/{name}.py" for name in ("reference", "folds", "formats", "memory"))),
        lines(f"{cpu}/llvm/**/*.py"),
        lines("coregrad/scaffold/backend_render.py.txt", "coregrad/scaffold/arithmetic.py.txt"),
    ]
    stated = [int(number) for number in re.findall(r"\| (\d+) \|$", BACKENDS, re.MULTILINE)]
    assert len(stated) == len(sizes)
    for said, size in zip(stated, sizes, strict=True):
        assert 0.8 * size < said < 1.25 * size, f"docs/backends.md says {said}; it is {size}"


def test_every_reserved_device_is_on_the_page() -> None:
    for name, distribution in plugins.OFFICIAL.items():
        assert f"`{name}`" in BACKENDS
        offered = (ROOT / "plugins" / distribution).is_dir()
        assert (f"| `{name}` | {distribution} |" in BACKENDS) == offered
