"""One work-item per grid iteration: the loops over the outputs become one loop, shared out whole.

A device without vectors wants every output as an iteration of its own, so that neighbouring
work-items touch neighbouring elements. No statement is added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from coregrad.ir.groups.writer import Copy, Writer
from coregrad.ir.index import Var, unflatten
from coregrad.ir.kernel import Instr, Kernel, Loop, Stmt
from coregrad.ir.lower import ORDERED


def layout(kernel: Kernel) -> Kernel:
    """The kernel with the loops that stand directly inside its grid loop joined to it."""
    outer = [s for s in kernel.body if isinstance(s, Loop)]
    if len(outer) != 1 or outer[0].kind != "grid":
        return kernel
    loops, before, body = nest(outer[0])
    if len(loops) == 1:
        return kernel
    extents = [loop.var.extent for loop in loops]
    writer = Writer()
    copy = Copy(writer)
    copy.block([s for s in kernel.body if s is not outer[0]])
    with writer.loop(Var("g", math.prod(extents)), "grid") as position:
        parts = unflatten(position, extents)
        values = dict(zip((loop.var for loop in loops), parts, strict=True))
        copy.inside(values, None, frozenset()).block([*before, *body])
    return Kernel(kernel.name, kernel.params, writer.body)


def nest(loop: Loop) -> tuple[list[Loop], list[Instr], Sequence[Stmt]]:
    """Loops that contain only each other and values, those values, and the innermost body.

    A loop whose iterations have an order, as a scatter's, is no part of it.
    """
    loops, before = [loop], list[Instr]()
    body = loop.body
    while body and isinstance(body[-1], Loop) and body[-1].var.name != ORDERED:
        values = [s for s in body[:-1] if isinstance(s, Instr)]
        if len(values) < len(body) - 1:
            break
        before += values
        loops.append(body[-1])
        body = body[-1].body
    return loops, before, body
