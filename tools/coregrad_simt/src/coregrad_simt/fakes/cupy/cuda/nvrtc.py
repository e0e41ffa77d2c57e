"""cupy.cuda.nvrtc: compiles a text by route A or B.

What it calls a cubin holds the text, not machine code: loading it in another process compiles the
text again. Whether NVIDIA's assembler accepts it is asked elsewhere (``coregrad_simt.cuda.ptxas``).
"""

from __future__ import annotations

import itertools
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from coregrad_simt import cuda
from coregrad_simt.errors import CompileError
from coregrad_simt.fakes.cupy.statuses import NVRTC
from coregrad_simt.kernel import Kernel

__all__ = [
    "NVRTCError",
    "compileProgram",
    "createProgram",
    "destroyProgram",
    "getCUBIN",
    "getPTX",
    "getProgramLog",
    "getSupportedArchs",
    "getVersion",
]

MAGIC = b"coregrad_simt cubin\0"
ARCHITECTURES = (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)  # of NVRTC 13.0
VERSION = (13, 0)
# Of NVRTC's options those that change nothing that only NVIDIA's compiler could tell.
OPTION = re.compile(
    r"-?-(gpu-architecture|arch)=\w+|-?-(std|ftz|fmad|prec-div|prec-sqrt|maxrregcount)=[\w+]+"
    r"|-?-(generate-line-info|lineinfo|restrict|device-as-default-execution-space|default-device)"
    r"|-D\w+(=.*)?|-I.+"
)


class NVRTCError(RuntimeError):
    """An error of NVRTC, by its number."""

    def __init__(self, status: int, detail: str = "") -> None:
        self.status = status
        super().__init__(NVRTC[status] + (f": {detail}" if detail else ""))


@dataclass
class _Program:
    text: str
    name: str
    options: tuple[str, ...] = ()
    log: str = ""
    architecture: str = ""
    kernels: dict[str, Kernel] = field(default_factory=dict)


_programs: dict[int, _Program] = {}
_handles = itertools.count(1)


def getVersion() -> tuple[int, int]:
    return VERSION


def getSupportedArchs() -> tuple[int, ...]:
    return ARCHITECTURES


def createProgram(src: str, name: str, headers: Sequence[str], include_names: Sequence[str]) -> int:
    if headers or include_names:
        raise NVRTCError(3, "the fake takes no headers in memory")
    handle = next(_handles)
    _programs[handle] = _Program(src, name)
    return handle


def destroyProgram(prog: int) -> None:
    _find(prog)
    del _programs[prog]


def compileProgram(prog: int, options: Sequence[str]) -> None:
    program = _find(prog)
    program.options = tuple(options)
    for option in program.options:
        if not OPTION.fullmatch(option):
            raise NVRTCError(5, option)
    program.architecture = _architecture(program.options)
    try:
        program.kernels = cuda.kernels(program.text, program.options)
    except CompileError as error:
        program.log = str(error)
        raise NVRTCError(6) from None


def getProgramLog(prog: int) -> str:
    return _find(prog).log


def getCUBIN(prog: int) -> bytes:
    """Only where the architecture is a real one (sm_90, not compute_90), as NVRTC has it."""
    program = _find(prog)
    if not program.kernels or not program.architecture.startswith("sm_"):
        raise NVRTCError(4, f"a cubin for {program.architecture or 'a program not compiled'}")
    return packed(program.text, program.options)


def getPTX(prog: int) -> bytes:
    program = _find(prog)
    if not program.kernels:
        raise NVRTCError(4, "the program is not compiled")
    return packed(program.text, program.options)


def packed(text: str, options: Sequence[str]) -> bytes:
    """What passes for machine code."""
    word = json.dumps({"text": text, "options": list(options)})
    return MAGIC + zlib.compress(word.encode())


def unpacked(cubin: bytes) -> tuple[str, tuple[str, ...], str]:
    """Text, options and architecture. Raises ValueError."""
    if not cubin.startswith(MAGIC):
        raise ValueError("not made by this fake")
    word: dict[str, Any] = json.loads(zlib.decompress(cubin[len(MAGIC) :]))
    options = tuple(word["options"])
    return word["text"], options, _architecture(options)


def _find(prog: int) -> _Program:
    try:
        return _programs[prog]
    except KeyError:
        raise NVRTCError(4, f"no program {prog}") from None


def _architecture(options: Sequence[str]) -> str:
    names = cuda.architecture(options)
    number = names.partition("_")[2].rstrip("af")
    if not number.isdigit() or int(number) not in ARCHITECTURES:
        raise NVRTCError(5, f"--gpu-architecture={names}")
    return names
