"""The fakes and how they take the place of the real libraries.

A folder of this package holds a package named ``cupy`` (or ``metalcompute``) that turns into the
fake when it is imported. Put first on the path it hides the real one, here and, by PYTHONPATH, in
the processes that are started from here.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

PATHS = Path(__file__).parent / "path"
# The modules that `import a.b` finds. The real cupy's other modules are attributes only.
MODULES = {
    "cupy": (
        *("", ".cuda", ".cuda.compiler", ".cuda.device", ".cuda.function", ".cuda.graph"),
        *(".cuda.memory", ".cuda.pinned_memory", ".cuda.runtime", ".cuda.stream"),
    ),
    "metalcompute": ("",),
}


def path(name: str) -> str:
    """The folder that makes ``import name`` find the fake.

    >>> path("cupy").endswith("cupy")
    True
    """
    if name not in MODULES:
        raise ValueError(f"there are fakes of {', '.join(MODULES)}, not of {name!r}")
    return str(PATHS / name)


def install(name: str) -> ModuleType:
    """Make ``import name`` find the fake in this process and in those it starts."""
    folder = path(name)
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    if folder not in inherited:
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *inherited])
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return become(name)


def become(name: str) -> ModuleType:
    """Put the fake's modules where the real ones would be."""
    real = sys.modules.get(name)
    if real is not None and "coregrad_simt" not in (real.__file__ or ""):
        raise RuntimeError(f"{name}: the real one is imported already; install the fake first")
    fake = importlib.import_module(f"coregrad_simt.fakes.{name}")
    for suffix in MODULES[name]:
        module = importlib.import_module(fake.__name__ + suffix)
        sys.modules[name + suffix] = module
        if hasattr(module, "__path__"):
            module.__path__ = []  # nothing else is found there
    return fake


@contextmanager
def offered(name: str) -> Iterator[None]:
    """Inside, whoever asks for the fake can have it; afterwards all is as it was.

    The real library is set aside where it was imported before, and the path, ``PYTHONPATH`` and
    the imported modules are restored. A class or function taken from the fake outlives this.
    """
    inherited, searched, real = os.environ.get("PYTHONPATH"), [*sys.path], forget(name)
    try:
        yield
    finally:
        forget(name)
        sys.modules.update(real)
        sys.path[:] = searched
        if inherited is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = inherited


def forget(name: str) -> dict[str, ModuleType]:
    """Take what is imported as ``name`` out of the imported modules, and return it."""
    names = [module for module in sys.modules if module.partition(".")[0] == name]
    return {module: sys.modules.pop(module) for module in names}
