"""Route B: NVIDIA's own compiler makes PTX, which is translated to C++ and runs on the fibers.

It shows what CUDA really computes, and that NVIDIA's compiler accepts the text; what that compiler
removes or defines (a dead read outside, a shift by 32) it cannot see. Route A does.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coregrad_simt import compiler, report
from coregrad_simt.cuda import nvrtc
from coregrad_simt.cuda.ptx.translate import translate
from coregrad_simt.errors import CompileError, UnsupportedPTX
from coregrad_simt.kernel import Kernel, Parameter, parameters, shared_memory

ROUTE = "cuda-b"
# Integers wrap in PTX. Half precision comes from the CPU's own instructions or from libgcc.
FLAGS = (*compiler.STRICT, "-ftrivial-auto-var-init=pattern", "-fwrapv")
SIGNATURE = r"__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?{name}\s*\(([^)]*)\)"


def kernels(text: str, options: Sequence[str]) -> dict[str, Kernel]:
    """Compile a text and return its kernels by name. Raises CompileError or UnsupportedPTX."""
    options = [_virtual(option) for option in options]
    name = compiler.key("ptx", nvrtc.version(), _translator(), text, *options)
    made = compiler.remembered(name, lambda: _translated(text, options))
    path = _object(made["text"])
    report.compiled(ROUTE, path.stem)
    library = compiler.load(path)
    return {
        kernel: Kernel(
            name=kernel,
            route=ROUTE,
            library=library,
            parameters=_kinds(text, kernel, parameters(library, kernel)),
            fibers=made["waits"],
            threads=threads,
            shared=shared_memory(library),
        )
        for kernel, threads in made["kernels"].items()
    }


def instructions(text: str, options: Sequence[str] = ()) -> frozenset[str]:
    """The PTX instructions of a text."""
    return translate(nvrtc.ptx(text, [_virtual(option) for option in options])).used


def _object(text: str) -> Path:
    """The translation compiled. That it is not accepted is never the fault of the kernel's text."""
    try:
        return compiler.shared_object(text, FLAGS)
    except CompileError as error:
        raise UnsupportedPTX(f"the translation does not compile: {error}") from None


def _translated(text: str, options: Sequence[str]) -> dict[str, Any]:
    made = translate(nvrtc.ptx(text, options))
    return {"text": made.text, "kernels": made.kernels, "waits": made.waits}


def _virtual(option: str) -> str:
    """PTX is asked for a virtual architecture; a cubin for a real one."""
    return option.replace("sm_", "compute_") if "arch" in option else option


@functools.cache
def _translator() -> str:
    """A digest of the translation itself."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def _kinds(text: str, name: str, found: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    """PTX says only how wide a parameter is; the text says what it is."""
    signature = re.search(SIGNATURE.format(name=re.escape(name)), text)
    declared = [part for part in signature[1].split(",") if part.strip()] if signature else []
    if len(declared) != len(found):
        return tuple(Parameter(p.size, "w") for p in found)
    kinds = map(_kind, declared)
    return tuple(Parameter(p.size, kind) for p, kind in zip(found, kinds, strict=True))


def _kind(declaration: str) -> str:
    """What a parameter's declaration says.

    >>> [_kind(text) for text in ("const float* x", "long long n", "bool b", "unsigned n")]
    ['c', 'i', 'b', 'u']
    """
    words = re.findall(r"\w+", declaration)
    if "*" in declaration:
        return "c" if words[0] == "const" else "p"
    if words[0] == "const":
        words = words[1:]
    kinds = {"float": "f", "double": "f", "bool": "b", "unsigned": "u"}
    return kinds.get(words[0], "i")
