"""Every environment variable coregrad reads, in one table; it never knows who asks."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from coregrad.errors import SettingError


@dataclass(frozen=True)
class Variable:
    """One environment variable: its name, what it is when unset, and what it does."""

    name: str
    default: str
    doc: str


# fmt: off
VARIABLES = {v.name: v for v in (
    Variable("DEBUG", "0", "1 a line per realize, 2 a line per kernel with its time, 3 kernel "
                           "IR, 4 generated source, 5 graph and schedule, 6 optimised code"),
    Variable("COREGRAD_DEVICE", "", "the default device, as NAME or NAME:INDEX, or a list "
                                    "with commas of which the first available one is taken"),
    Variable("COREGRAD_PLUGINS", "", "allow-list (cpu,opencl), deny-list (-cuda) or 'none'; "
                                     "checked before anything of a plugin is imported"),
    Variable("COREGRAD_NUM_THREADS", "", "threads of the CPU backend; unset: the CPUs this process "
                                         "may use"),
    Variable("COREGRAD_OPENCL_DEVICE", "", "which OpenCL device: a position in the list of all, or "
                                           "part of 'platform: device'; Oclgrind by name only"),
    Variable("COREGRAD_OPENCL_LIMITS", "", "'gpu': treat a CPU's OpenCL driver as a GPU: the same "
                                           "kernels, no more local memory"),
    Variable("COREGRAD_CUDA_MATMUL", "", "'tf32': cuBLAS may use the leading 11 bits of float32's "
                                         "factors; 'kernels': the core's kernels, not cuBLAS"),
    Variable("COREGRAD_EMULATE", "", "cuda,metal: devices whose kernels the development tool "
                                     "coregrad-simt runs on the CPU, slowly and strictly"),
    Variable("COREGRAD_CACHE", "", "folder of compiled kernels; unset: the user's cache folder; "
                                   "'0': no disk cache"),
    Variable("COREGRAD_DATA", "", "folder where datasets are looked for and kept"),
    Variable("COREGRAD_MNIST_URL", "", "base address the MNIST files are downloaded from"),
    Variable("COREGRAD_REQUIRE", "", "comma-separated devices whose absence fails the tests"),
    Variable("COREGRAD_FUSION", "1", "0 gives every reduction and element-wise op its own kernel"),
)}
# fmt: on


def get(name: str) -> str:
    """The value of a variable of the table, or its default."""
    return os.environ.get(name, VARIABLES[name].default)


def get_int(name: str) -> int:
    """The value as an integer; a clear error for anything else."""
    text = get(name)
    try:
        return int(text)
    except ValueError:
        raise SettingError(
            f"{name}={text!r} is not an integer; unset it or give a number"
        ) from None


def names(name: str) -> list[str]:
    """The value as names that commas part."""
    return [part.strip() for part in get(name).split(",") if part.strip()]


def debug() -> int:
    """The level of ``DEBUG``."""
    return get_int("DEBUG")


def cache_folder(backend: str = "") -> Path | None:
    """Where a backend keeps what it has compiled, or the folder of all of them; None for "0"."""
    chosen = get("COREGRAD_CACHE")
    if chosen:
        return None if chosen == "0" else Path(chosen).expanduser() / backend
    if sys.platform == "win32":
        root = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        root = "~/Library/Caches"
    else:
        root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "coregrad" / backend
