"""Every name that the fake cupy offers is the real one's, so that the fake cannot drift.

The real cupy can be imported without a GPU; that happens in another process, as it cannot be in one
with the fake.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from coregrad_simt import fakes
from coregrad_simt.fakes import cupy

# Attributes that the real classes have on their objects only.
ON_OBJECTS = {
    "cuda.Stream.ptr", "cuda.Stream.is_non_blocking", "cuda.stream.Stream.ptr",
    "cuda.stream.Stream.is_non_blocking",
}  # fmt: skip

LOOK_UP = """
import importlib, json, sys, inspect
import cupy
def found(name):
    at = cupy
    for part in name.split("."):
        at = getattr(at, part)
    return at
def signature(at):
    doc = (getattr(at, "__doc__", None) or "").splitlines()
    try:
        return str(inspect.signature(at))
    except (TypeError, ValueError):
        return doc[0] if doc else ""
missing, signatures = [], {}
for name in json.load(sys.stdin):
    try:
        signatures[name] = signature(found(name))
    except AttributeError:
        missing.append(name)
    except ImportError:  # the name is there, the library behind it is not
        signatures[name] = ""
json.dump({"missing": missing, "signatures": signatures, "version": cupy.__version__}, sys.stdout)
"""


def offered(module: ModuleType, prefix: str = "") -> list[str]:
    """The dotted names of a module, its classes and its modules."""
    names = []
    for name in module.__all__:
        at = getattr(module, name)
        names.append(prefix + name)
        if isinstance(at, ModuleType):
            names += offered(at, f"{prefix}{name}.")
        elif inspect.isclass(at) and not issubclass(at, BaseException):
            public = [n for n in vars(at) if not n.startswith("_")]
            names += [f"{prefix}{name}.{attribute}" for attribute in public]
    return names


@pytest.fixture(scope="module")
def real() -> Any:
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("cupy is not installed (cupy-cuda13x)")
    names = [name for name in offered(cupy) if ".cublas." not in name and name not in ON_OBJECTS]
    done = subprocess.run(
        [sys.executable, "-c", LOOK_UP],
        input=json.dumps(names),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_the_fake_offers_many_names() -> None:
    assert len(offered(cupy)) > 200


def test_every_name_exists_in_the_real_cupy(real: Any) -> None:
    assert real["missing"] == []


def test_every_name_of_cublas_is_in_the_real_extension(real: Any) -> None:
    """Importing it needs libcublas, which is large; its file holds the names it defines."""
    root = importlib.util.find_spec("cupy_backends")
    assert root is not None
    (folder,) = root.submodule_search_locations or ()
    (path,) = Path(folder).glob("cuda/libs/cublas.*.so")
    data = path.read_bytes()
    names = [name for name in cupy.cuda.cublas.__all__ if name.encode() not in data]
    assert names == []


@pytest.mark.parametrize(
    "name",
    [
        "cuda.Stream", "cuda.Event", "cuda.MemoryPointer.copy_from_host_async",
        "cuda.MemoryPointer.copy_to_host_async", "cuda.MemoryPointer.copy_from_device_async",
        "cuda.MemoryPool.set_limit", "cuda.function.Module.load",
        "cuda.function.Function.linear_launch",
        "cuda.nvrtc.createProgram", "cuda.nvrtc.compileProgram", "cuda.runtime.memcpyAsync",
        "cuda.runtime.memcpyPeerAsync", "cuda.runtime.deviceCanAccessPeer",
        "cuda.graph.Graph.launch",
    ],
)  # fmt: skip
def test_parameters_have_the_real_ones_names_and_order(real: Any, name: str) -> None:
    """Cython writes them into the first line of the docstring."""
    at: Any = cupy
    for part in name.split("."):
        at = getattr(at, part)
    ours = [p for p in inspect.signature(at).parameters if p != "self"]
    text = real["signatures"][name]
    inside = text[text.index("(") + 1 : text.rindex(")")]
    theirs = [part.split("=")[0].split()[-1] for part in inside.split(",")]
    assert [word for word in theirs if word not in ("self", "*", "/")] == ours


def test_modules_that_can_be_imported_can_be_in_the_real_cupy(real: Any) -> None:
    names = ["cupy" + suffix for suffix in fakes.MODULES["cupy"]]
    program = "import importlib, sys; [importlib.import_module(n) for n in sys.argv[1:]]"
    subprocess.run([sys.executable, "-c", program, *names], check=True)
