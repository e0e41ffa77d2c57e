"""g++, and the folder where its results are kept, by text, flags, headers and compiler.

What is found there is exactly what would be made again. It never decides what a text means.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from coregrad_simt import settings
from coregrad_simt.errors import CompileError, MissingTool

NATIVE = Path(__file__).parent / "native"
OLDEST = 12  # of g++: -ftrivial-auto-var-init
CHECKS = (
    "bounds-strict,shift,integer-divide-by-zero,float-cast-overflow,signed-integer-overflow,"
    "alignment,null,bool,return"
)
# IEEE arithmetic, nothing contracted, no assumption that pointers of two types differ (GPU code
# reads bits through them).
STRICT = ("-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-math-errno")
CHECKED = (f"-fsanitize={CHECKS}", "-fno-sanitize-recover=all")
# Private memory starts as 0xFE. Redundant loads are kept: g++ 12 removes them as if a variable that
# nobody wrote had any value it likes.
POISONED = ("-ftrivial-auto-var-init=pattern", "-fno-tree-fre")
KERNEL = (
    *("-std=c++17", "-fPIC", "-shared", "-pipe", "-w", "-fno-exceptions", "-fno-rtti"),
    *("-nostdlib", "-Wl,-Bsymbolic"),  # neither g++'s own checks' library nor start files
    *("-I", str(NATIVE), "-I", str(NATIVE / "include")),
)
LIBRARIES = ("-lm", "-lgcc")
RUNTIME = ("-O2", "-std=c++17", "-fPIC", "-shared", "-Wall", "-Wextra")


@functools.cache
def version(command: str) -> str:
    """What the compiler calls itself."""
    try:
        found = subprocess.run([command, "-dumpfullversion"], capture_output=True, text=True)
    except FileNotFoundError:
        raise MissingTool(f"{command} is not installed; it compiles the kernels") from None
    if int(found.stdout.partition(".")[0] or 0) < OLDEST:
        raise MissingTool(f"{command} is {found.stdout.strip()}; version {OLDEST} is needed")
    return found.stdout.strip()


@functools.cache
def headers() -> bytes:
    """A digest of everything a text may include."""
    files = sorted(path for path in NATIVE.rglob("*") if path.is_file())
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).digest()


def key(*parts: str) -> str:
    """A name for what follows from ``parts``, the headers and the compiler."""
    digest = hashlib.sha256(headers())
    for part in (version(settings.compiler()), *parts):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:32]


def shared_object(text: str, flags: Sequence[str]) -> Path:
    """Compile a kernel's text, or find what was compiled earlier. Raises CompileError."""
    arguments = [*KERNEL, *flags]
    path = settings.cache() / f"{key(text, *map(str, flags))}.so"
    if not path.exists():
        compile_to(path, [*arguments, "-x", "c++", "-", *LIBRARIES], text)
    return path


def compile_to(path: Path, arguments: Sequence[str], text: str) -> None:
    """Run the compiler; the result appears at once and whole."""
    version(settings.compiler())
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    command = [settings.compiler(), *arguments, "-o", str(temporary)]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        temporary.unlink(missing_ok=True)
        raise CompileError(done.stderr.strip())
    temporary.replace(path)


def remembered(name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``make`` returned when it was first called for ``name``."""
    path = settings.cache() / f"{name}.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    except FileNotFoundError:
        made = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(made))
    temporary.replace(path)
    return made


@functools.cache
def runtime() -> ctypes.CDLL:
    """The fiber scheduler, loaded so that kernels find its functions."""
    sources = [str(NATIVE / name) for name in ("fibers.cpp", "undefined.cpp")]
    flags = os.environ.get("COREGRAD_SIMT_RUNTIME_FLAGS", "").split()
    path = settings.cache() / f"runtime-{key(*RUNTIME, *flags)}.so"
    if not path.exists():
        compile_to(path, [*RUNTIME, *flags, *sources], "")
    library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    library.simt_message.restype = ctypes.c_char_p
    library.simt_fault_address.restype = ctypes.c_void_p
    return library


def load(path: Path) -> ctypes.CDLL:
    """A compiled text."""
    runtime()
    return ctypes.CDLL(str(path))
