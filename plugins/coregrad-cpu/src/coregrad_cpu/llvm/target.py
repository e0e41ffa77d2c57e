"""This machine as LLVM sees it: CPU, features, vector width, and whether kernels can run here."""

from __future__ import annotations

import functools
import importlib.util
import platform
from typing import Any

from coregrad.errors import BackendUnavailable

# Below this x86-64 level, fma and float16 conversions become library calls that do not exist here,
# and the fma of one lane at a time was measured 25 times slower.
NEEDED_X86 = ("avx2", "fma", "f16c", "bmi2")


@functools.cache
def binding() -> Any:
    """llvmlite's binding, ready for use; BackendUnavailable says how to get it."""
    if importlib.util.find_spec("llvmlite") is None:
        raise BackendUnavailable(
            "cpu: llvmlite is not installed; run `python -m pip install llvmlite`, "
            "or use device 'numpy'"
        )
    import llvmlite.binding as llvm  # a driver: imported when the device is first used

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    return llvm


def require() -> None:
    """Raise BackendUnavailable unless kernels can be compiled and run here."""
    binding()
    if is_x86() and (missing := [f for f in NEEDED_X86 if not features().get(f)]):
        raise BackendUnavailable(
            f"cpu: this processor lacks {', '.join(missing)} (x86-64-v3); use device 'numpy'"
        )


def is_x86() -> bool:
    """True on 64-bit x86."""
    return platform.machine().lower() in ("x86_64", "amd64")


def is_arm() -> bool:
    """True on 64-bit ARM."""
    return platform.machine().lower() in ("aarch64", "arm64")


@functools.cache
def cpu() -> str:
    """LLVM's name of the processor."""
    name: str = binding().get_host_cpu_name()
    return name


@functools.cache
def features() -> dict[str, bool]:
    """The processor's features; empty where LLVM cannot tell (the CPU's name then decides)."""
    return dict(binding().get_host_cpu_features())


@functools.cache
def feature_text() -> str:
    """The features as a target machine takes them, in a fixed order."""
    return ",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(features().items()))


@functools.cache
def vector_bytes() -> int:
    """Bytes of the vector registers kernels should use."""
    if features().get("avx512f") and features().get("avx512vl") and features().get("avx512bw"):
        return 64
    return 32 if is_x86() else 16


@functools.cache
def attributes() -> str:
    """Function attributes of every kernel: LLVM prefers 256 bits on some CPUs that have 512."""
    return f'"prefer-vector-width"="{vector_bytes() * 8}" '
