"""Which inputs a kernel could write its outputs over: it reads them element by element, and only
where it writes.

It says what would be right for the kernel; whether anybody still needs an input, the engine knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coregrad.ir import ops
from coregrad.ir.index import Var
from coregrad.ir.kernel import Instr, Kernel, Loop, Param, Stmt, Store, walk


def overwritable(kernel: Kernel) -> dict[Param, list[Param]]:
    """For each output the inputs that could be one buffer with it, and the kernel means the same.

    Every load of such an input stands before the output's only store, in the same block and at the
    same index, which differs in every iteration of the loops around them: an iteration reads its
    element before it writes it, and no other one reads it.
    """
    if kernel.contraction is not None or kernel.sort is not None:
        return {}  # a backend may do these in an order of its own
    stores: dict[Param, list[Store]] = {}
    loads: dict[Param, list[Instr]] = {}
    for stmt in walk(kernel.body):
        if isinstance(stmt, Store) and isinstance(stmt.target, Param):
            stores.setdefault(stmt.target, []).append(stmt)
        elif isinstance(stmt, Instr) and stmt.op is ops.LOAD and isinstance(stmt.attr[0], Param):
            loads.setdefault(stmt.attr[0], []).append(stmt)
    found = {}
    for block, around in _blocks(kernel.body, frozenset()):
        for place, stmt in enumerate(block):
            if not isinstance(stmt, Store) or not around <= stmt.index.vars:
                continue
            if stores.get(stmt.target) == [stmt]:  # type: ignore[arg-type]
                before = {s for s in block[:place] if isinstance(s, Instr)}
                found[stmt.target] = [
                    p for p, own in loads.items() if _fits(p, stmt) and _only(own, stmt, before)
                ]
    return {p: inputs for p, inputs in found.items() if isinstance(p, Param) and inputs}


def _fits(param: Param, store: Store) -> bool:
    """Whether the roles, dtypes and sizes of an input and of the store's output allow it."""
    out = store.target
    alike = (param.dtype, param.size) == (out.dtype, out.size)
    return alike and param.role == "in" and isinstance(out, Param) and out.role == "out"


def _only(loads: Sequence[Instr], store: Store, before: set[Instr]) -> bool:
    """Whether all of an input's loads stand before the store and have its index."""
    return store.gate is None and all(
        load in before and load.attr[1] == store.index for load in loads
    )


def _blocks(
    body: list[Stmt], around: frozenset[Var]
) -> Iterator[tuple[list[Stmt], frozenset[Var]]]:
    """Every block, with the variables of the loops around it that run more than once."""
    yield body, around
    for stmt in body:
        if isinstance(stmt, Loop):
            yield from _blocks(stmt.body, around | {stmt.var} if stmt.var.extent > 1 else around)
