"""NVIDIA's assembler: whether a text becomes machine code for an architecture, and what it takes.

NVRTC alone makes a cubin, and says how many registers a kernel uses, how much shared memory, and
how much it spills; so does ptxas, from the wheel nvidia-cuda-nvcc, by itself. Nothing is executed.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coregrad_simt import compiler
from coregrad_simt.cuda import nvrtc
from coregrad_simt.errors import CompileError, MissingTool

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_120")
KERNEL = re.compile(r"Compiling entry function '([^']+)'.*?(?=Compiling entry function|\Z)", re.S)
# In a batch: namespace t12_ of the text, then the kernel's name with its length before it.
MANGLED = re.compile(r"_ZN\d+t(\d+)_(\d+)(\w+)")
ELF = b"\x7fELF"
NUMBERS = {
    "registers": r"Used (\d+) registers",
    "shared": r"(\d+) bytes smem",
    "stack": r"(\d+) bytes stack frame",
    "spill_stores": r"(\d+) bytes spill stores",
    "spill_loads": r"(\d+) bytes spill loads",
}


@dataclass(frozen=True)
class Resources:
    """What a thread of a kernel uses; ``shared`` is the block's. All but registers in bytes."""

    registers: int
    shared: int
    stack: int
    spill_stores: int
    spill_loads: int

    @property
    def spills(self) -> bool:
        """Whether registers did not suffice."""
        return self.spill_stores + self.spill_loads > 0


@functools.cache
def assembler() -> str:
    """Where ptxas is. Raises MissingTool."""
    for folder in nvrtc.wheels():
        path = folder / "bin" / "ptxas"
        if path.exists():
            return str(path)
    path_found = shutil.which("ptxas")
    if path_found is None:
        raise MissingTool("ptxas is not installed (nvidia-cuda-nvcc==13.0.*)")
    return path_found


def cubin(text: str, architecture: str, options: Sequence[str] = ()) -> bytes:
    """The machine code that NVRTC makes of a text. Raises CompileError."""
    return nvrtc.cubin(text, [f"--gpu-architecture={architecture}", *options])


def resources(text: str, architecture: str, options: Sequence[str] = ()) -> dict[str, Resources]:
    """What each kernel of a text uses. Raises CompileError."""
    key = compiler.key("ptxas", nvrtc.version(), assembler(), text, architecture, *options)
    made = compiler.remembered(key, lambda: _assembled(text, architecture, options))
    return {name: Resources(**numbers) for name, numbers in made.items()}


def batched(
    texts: Sequence[str], architecture: str, options: Sequence[str] = ()
) -> list[dict[str, Resources]]:
    """What each kernel of each text uses, all compiled at once by NVRTC, whose start costs as much
    as ten small kernels. Raises CompileError if one of the texts is at fault."""
    key = compiler.key("batch", nvrtc.version(), architecture, *options, *texts)
    made = compiler.remembered(key, lambda: _batch(texts, architecture, options))
    found: list[dict[str, Resources]] = [{} for _ in texts]
    for index, name, numbers in made["kernels"]:
        found[index][name] = Resources(**numbers)
    return found


def together(texts: Sequence[str]) -> str:
    """Texts as one, each in a namespace of its own, so that equal names do no harm."""
    parts = [text.replace('extern "C" ', "") for text in texts]
    return "\n".join(f"namespace t{i}_ {{\n{part}\n}}" for i, part in enumerate(parts))


def _batch(texts: Sequence[str], architecture: str, options: Sequence[str]) -> dict[str, Any]:
    wanted = [f"--gpu-architecture={architecture}", *options]
    code, log = nvrtc.assembled(together(texts), wanted)
    if not code.startswith(ELF):
        raise CompileError(f"no machine code for {architecture}")
    kernels = []
    for found in KERNEL.finditer(log):
        mangled = MANGLED.match(found[1])
        if mangled is None:
            raise CompileError(f"{found[1]} is the name of no kernel in a batch")
        kernels.append((int(mangled[1]), mangled[3][: int(mangled[2])], asdict(_numbers(found[0]))))
    return {"kernels": kernels}


def _assembled(text: str, architecture: str, options: Sequence[str]) -> dict[str, dict[str, int]]:
    virtual = architecture.replace("sm_", "compute_")
    ptx = nvrtc.ptx(text, [f"--gpu-architecture={virtual}", *options])
    command = [assembler(), f"-arch={architecture}", "-v", "-o", "/dev/null", "/dev/stdin"]
    done = subprocess.run(command, input=ptx, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(done.stderr)
    return {found[1]: asdict(_numbers(found[0])) for found in KERNEL.finditer(done.stderr)}


def _numbers(text: str) -> Resources:
    found = {name: re.search(pattern, text) for name, pattern in NUMBERS.items()}
    return Resources(**{name: int(match[1]) if match else 0 for name, match in found.items()})


def texts(folder: Path) -> dict[str, str]:
    """The CUDA texts that a run has met (COREGRAD_SIMT_TEXTS), by the names of their files."""
    return {path.name: path.read_text() for path in sorted(folder.glob("*.cu"))}
