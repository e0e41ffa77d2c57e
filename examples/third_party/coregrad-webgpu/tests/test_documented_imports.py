"""A plugin may import what docs/authoring.md names, and nothing else of coregrad."""

import ast
from pathlib import Path

import coregrad_webgpu

NAMED = {
    "coregrad",  # for `from coregrad import dtypes`
    "coregrad.config",
    "coregrad.dtypes",
    "coregrad.errors",
    "coregrad.hookspecs",
    "coregrad.ir.kernel",
}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            if node.module == "coregrad":
                yield from (f"coregrad.{name.name}" for name in node.names)


def test_the_plugin_imports_only_what_the_guide_names():
    files = list(Path(coregrad_webgpu.__file__).parent.glob("*.py"))
    assert len(files) == 5
    found = {name for path in files for name in imported(path) if name.split(".")[0] == "coregrad"}
    assert "coregrad.hookspecs" in found
    assert found <= NAMED
