"""Kernels for devices of many threads: a placed kernel becomes one that work-groups share.

There are two shapes. In the first, one work-item runs one iteration of the grid loop (:mod:`flat`;
:mod:`registers` for contractions). In the second, a work-group does: a ``local`` loop of its
threads contains all statements, with local arrays and barriers between them (:mod:`rows` for
reductions, :mod:`tiles` for contractions). Where local memory is ordinary memory, as in a CPU's
OpenCL, contractions leave their operands in the caches; where there is none, so does everything.
"""

from __future__ import annotations

from dataclasses import replace

from coregrad.ir.groups import flat, registers, rows, tiles
from coregrad.ir.kernel import Kernel
from coregrad.ir.target import Limits

__all__ = ["keeps_rows", "layout", "row_limits"]


def layout(kernel: Kernel, limits: Limits) -> Kernel:
    """The kernel as a device with ``limits.threads`` threads per work-group runs it best."""
    if limits.threads < 2:
        return kernel
    laid: Kernel | None = None
    if kernel.contraction is not None:
        tiled = limits.fast_local and limits.local_bytes
        lay = tiles.layout if tiled else registers.layout
        laid = lay(kernel.contraction, kernel, limits)
    if laid is not None:
        return laid
    whole = flat.layout(kernel)
    shared = rows.layout(whole, limits) if limits.local_bytes else None
    return shared or whole


def row_limits(limits: Limits) -> Limits:
    """How much scratch memory the rows of a kernel may take: half of a work-group's, where it has
    some, the rest being for what its threads exchange."""
    if limits.threads < 2 or not limits.local_bytes:
        return limits
    return replace(limits, private_bytes=limits.local_bytes // 2)


def keeps_rows(kernel: Kernel, limits: Limits) -> bool:
    """Whether the rows that ``kernel`` caches find room: in a device's private memory, or in local
    memory where work-groups will share each row."""
    if limits.threads < 2 or not limits.local_bytes:
        return True
    return rows.layout(flat.layout(kernel), limits) is not None
