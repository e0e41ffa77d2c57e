"""NVRTC, NVIDIA's compiler, from the wheel nvidia-cuda-nvrtc: needs neither a driver nor a GPU."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from coregrad_simt.errors import CompileError, MissingTool

PACKAGES = "cu13", "cuda_nvrtc"  # where the wheels for CUDA 13 and 12 put it, in nvidia/
COMPILATION = 6  # NVRTC_ERROR_COMPILATION: the log says more


def wheels() -> list[Path]:
    """The folders of NVIDIA's wheels."""
    spec = importlib.util.find_spec("nvidia")
    roots = spec.submodule_search_locations if spec else None
    return [Path(root) / name for root in roots or () for name in PACKAGES]


@functools.cache
def library() -> ctypes.CDLL:
    """The library, and the one that it looks for by itself. Raises MissingTool."""
    for folder in wheels():
        for path in sorted((folder / "lib").glob("libnvrtc.so.*")):
            for builtins in (folder / "lib").glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(path))
    raise MissingTool("NVRTC is not installed (nvidia-cuda-nvrtc==13.0.*)")


@functools.cache
def version() -> str:
    """Its version."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return f"{major.value}.{minor.value}"


def ptx(text: str, options: Sequence[str]) -> str:
    """The PTX of a text. Raises CompileError with the compiler's log."""
    return _compile(text, options, "PTX")[0].rstrip(b"\0").decode()


def cubin(text: str, options: Sequence[str]) -> bytes:
    """The machine code for an architecture such as sm_90."""
    return _compile(text, options, "CUBIN")[0]


def assembled(text: str, options: Sequence[str]) -> tuple[bytes, str]:
    """The machine code, and what NVRTC's own assembler says of it."""
    code, log = _compile(text, [*options, "--ptxas-options=-v"], "CUBIN", "ProgramLog")
    return code, log.rstrip(b"\0").decode()


def _compile(text: str, options: Sequence[str], *what: str) -> list[bytes]:
    nvrtc, program = library(), ctypes.c_void_p()
    source = text.encode()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernel.cu", 0, None, None))
    try:
        words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        status = nvrtc.nvrtcCompileProgram(program, len(options), words)
        if status == COMPILATION:
            raise CompileError(_read(program, "ProgramLog").rstrip(b"\0").decode())
        _check(status)
        return [_read(program, result) for result in what]
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _read(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(library(), f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    data = ctypes.create_string_buffer(size.value)
    _check(getattr(library(), f"nvrtcGet{what}")(program, data))
    return data.raw


def _check(status: int) -> None:
    if status:
        name = library().nvrtcGetErrorString
        name.restype = ctypes.c_char_p
        raise CompileError(name(status).decode())
