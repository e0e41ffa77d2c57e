"""CUDA on the CPU: the text by g++ (route A, source), or NVIDIA's PTX translated (route B, ptx)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from coregrad_simt import settings
from coregrad_simt.cuda import ptx, source
from coregrad_simt.kernel import Kernel

ARCHITECTURE = "--gpu-architecture", "-arch", "--gpu-architecture=", "-arch="
DEFAULT_ARCHITECTURE = "compute_75"  # NVRTC 13's own


def kernels(text: str, options: Sequence[str]) -> dict[str, Kernel]:
    """The kernels of a text, by the route that the environment asks for. Raises CompileError."""
    compiled = ptx.kernels if settings.route() == "b" else source.kernels
    found = compiled(settings.spoilt(text), tuple(options))
    keep(text, "cu")
    return found


def keep(text: str, suffix: str) -> None:
    """Write a text where COREGRAD_SIMT_TEXTS asks for it, for other compilers to look at."""
    folder = settings.folder("COREGRAD_SIMT_TEXTS")
    if folder is not None:
        name = hashlib.sha256(text.encode()).hexdigest()[:24]
        path = folder / f"{name}.{suffix}"
        if not path.exists():
            path.write_text(text)


def architecture(options: Sequence[str]) -> str:
    """What the options compile for.

    >>> architecture(["-arch=sm_90", "-fmad=false"])
    'sm_90'
    """
    for option, following in zip(options, [*options[1:], ""], strict=True):
        if option in ARCHITECTURE:
            return following
        for name in ARCHITECTURE:
            if name.endswith("=") and option.startswith(name):
                return option[len(name) :]
    return DEFAULT_ARCHITECTURE
