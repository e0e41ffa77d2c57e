"""Route B: NVIDIA's own compiler makes PTX, which is translated to C++ and runs on the fibers.

It shows what CUDA really computes, and that NVIDIA's compiler accepts the text; what that compiler
removes or defines (a dead read outside, a shift by 32) it cannot see. Route A does.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coregrad_simt import compiler, report
from coregrad_simt.cuda import nvrtc
from coregrad_simt.cuda.ptx.translate import translate
from coregrad_simt.cuda.signature import signatures
from coregrad_simt.errors import CompileError, UnsupportedPTX
from coregrad_simt.kernel import Kernel, parameters, shared_memory

ROUTE = "cuda-b"
# Integers wrap in PTX. Half precision comes from the CPU's own instructions or from libgcc.
FLAGS = (*compiler.STRICT, "-ftrivial-auto-var-init=pattern", "-fwrapv")


def kernels(text: str, options: Sequence[str]) -> dict[str, Kernel]:
    """Compile a text and return its kernels by name. Raises CompileError or UnsupportedPTX."""
    options = [_virtual(option) for option in options]
    name = compiler.key("ptx", nvrtc.version(), _translator(), text, *options)
    made = compiler.remembered(name, lambda: _translated(text, options))
    path = _object(made["text"])
    report.compiled(ROUTE, path.stem)
    library = compiler.load(path)
    heads = signatures(text)
    return {
        kernel: Kernel(
            name=kernel,
            route=ROUTE,
            library=library,
            # PTX says only how wide a parameter is.
            parameters=heads[kernel].applied(parameters(library, kernel)),
            fibers=made["waits"],
            threads=threads,
            shared=shared_memory(library),
            shared_bytes=made["shared_bytes"],
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
    return {
        "text": made.text,
        "kernels": made.kernels,
        "waits": made.waits,
        "shared_bytes": made.shared_bytes,
    }


def _virtual(option: str) -> str:
    """PTX is asked for a virtual architecture; a cubin for a real one."""
    return option.replace("sm_", "compute_") if "arch" in option else option


@functools.cache
def _translator() -> str:
    """A digest of the translation itself."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
