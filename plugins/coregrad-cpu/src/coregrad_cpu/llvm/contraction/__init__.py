"""Sums over products of two operands, as register-tiled kernels: the door of this package."""

from __future__ import annotations

from coregrad.ir.emit import Emitter
from coregrad.ir.kernel import Kernel
from coregrad_cpu.llvm.contraction.plan import Machine, choose
from coregrad_cpu.llvm.contraction.program import Program
from coregrad_cpu.llvm.frame import Frame

__all__ = ["Machine", "contraction"]


def contraction(kernel: Kernel, emitter: Emitter, machine: Machine) -> str | None:
    """The text of a tiled kernel for ``kernel.contraction``, written into the emitter's frame;
    None, with the frame untouched, where the generic loops should run instead."""
    if kernel.contraction is None:
        return None
    plan = choose(kernel.contraction, machine)
    if plan is None:
        return None
    frame = emitter.frame
    assert isinstance(frame, Frame)
    Program(kernel.contraction, plan, emitter, frame).write()
    return frame.finish()
