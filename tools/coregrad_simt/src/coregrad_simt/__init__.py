"""Runs coregrad's GPU kernels on a CPU, strictly, beneath fakes of cupy and metalcompute."""

from __future__ import annotations

from types import ModuleType

from coregrad_simt import fakes

__all__ = ["install_fakes"]


def install_fakes(*names: str) -> tuple[ModuleType, ...]:
    """Make ``import cupy`` or ``import metalcompute`` find the fake, in this process and in those
    it starts. The real one must not have been imported::

        (cupy,) = install_fakes("cupy")
    """
    return tuple(fakes.install(name) for name in names)
