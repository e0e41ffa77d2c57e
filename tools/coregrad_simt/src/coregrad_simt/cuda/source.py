"""Route A: generated CUDA C++ compiled by g++, undefined behaviour trapped.

It sees what C++ leaves undefined, which NVIDIA's compiler defines or removes; it does not tell
whether that compiler accepts the text (route B does).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from coregrad_simt import compiler, report
from coregrad_simt.cuda import assembly
from coregrad_simt.cuda.signature import signatures
from coregrad_simt.kernel import Kernel, parameters, shared_memory

ROUTE = "cuda-a"
WAITING = re.compile(r"\b__(syncthreads|syncwarp|shfl\w*_sync|ballot_sync|any_sync|all_sync)\b")
FLAGS = (*compiler.STRICT, *compiler.CHECKED, *compiler.POISONED)


def kernels(text: str, options: Sequence[str] = ()) -> dict[str, Kernel]:
    """Compile a text and return its kernels by name. Raises CompileError."""
    defines = [option for option in options if option.startswith("-D")]
    heads = signatures(text)
    path = compiler.shared_object(_complete(text, list(heads)), (*FLAGS, *defines))
    report.compiled(ROUTE, path.stem)
    library = compiler.load(path)
    begin, end = shared_memory(library)
    return {
        name: Kernel(
            name=name,
            route=ROUTE,
            library=library,
            parameters=head.applied(parameters(library, name)),
            fibers=WAITING.search(text) is not None,
            threads=head.threads,
            shared=(begin, end),
            shared_bytes=end - begin,
        )
        for name, head in heads.items()
    }


def _complete(text: str, names: list[str]) -> str:
    """The text between the header and what the host calls."""
    below = "\n".join([*(f"SIMT_KERNEL({name})" for name in names), "SIMT_MODULE"])
    above = '#include "cuda.h"\n'
    if assembly.has_assembly(text):
        above += assembly.HEADER
        text = assembly.without_assembly(text)
    return f'{above}#line 1 "kernel.cu"\n{text}\n{below}\n'
