"""How far a step of a loop leads in memory; it chooses no layout."""

from __future__ import annotations

from collections.abc import Iterator

from coregrad.ir import ops
from coregrad.ir.index import Index, Var
from coregrad.ir.kernel import Instr, Param
from coregrad.ir.legalize import needs


def is_near(index: Index, var: Var) -> bool:
    """Whether a step of ``var`` leads to the same element or a neighbour."""
    step = index.coefficient(var)
    if step is None:  # behind a division: as it is at the beginning
        if index.computed():
            return False
        origin = dict.fromkeys(index.vars, 0)
        step = index.evaluate({**origin, var: 1}) - index.evaluate(origin)
    return abs(step) <= 1


def loads(root: Instr) -> Iterator[Index]:
    """The indices of the buffers' elements that a value is computed from."""
    seen, stack = set[Instr](), [root]
    while stack:
        instr = stack.pop()
        if instr in seen:
            continue
        seen.add(instr)
        if instr.op is ops.LOAD and isinstance(instr.attr[0], Param):
            yield instr.attr[1]
        stack += needs(instr)


def walks(root: Instr, var: Var) -> bool:
    """Whether all that a value reads lies side by side along ``var``."""
    return all(is_near(index, var) for index in loads(root) if var in index.vars)
