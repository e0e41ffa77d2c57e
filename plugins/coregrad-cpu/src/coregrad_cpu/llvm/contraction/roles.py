"""Which axes belong to which operand, once a mask that both carry is left to one of them.

The gradient of a convolution sums only windows that exist: both factors of its products are masked
with one gate, so that where it is false 0 * 0 is added. Seen through the mask, the weight depends
on the pixel, and every pixel would be a product of its own. Dropping the weight's mask adds
0 * weight instead, which is the same for every finite weight.
"""

from __future__ import annotations

from dataclasses import replace

from coregrad.ir import index as ix
from coregrad.ir.index import Index, Var
from coregrad.ir.kernel import Contraction, Instr
from coregrad.ir.ops import LOAD
from coregrad_cpu.llvm.contraction import tree


def separated(c: Contraction) -> Contraction:
    """The contraction with fewer batch axes, where an operand depends on one by its mask alone."""
    a = _unmasked(c.a, c.b)
    b = _unmasked(c.b, c.a)
    for left, right in ((c.a, b), (a, c.b)):
        if not all(v in left.vars and v in right.vars for v in c.k):
            continue
        outs = (*c.batch, *c.m, *c.n)
        batch = tuple(v for v in outs if v in left.vars and v in right.vars)
        if len(batch) < len(c.batch):
            m = tuple(v for v in outs if v not in right.vars)
            n = tuple(v for v in outs if v not in left.vars)
            return replace(c, batch=batch, m=_ordered(m, c), n=_ordered(n, c), a=left, b=right)
    return c


def _ordered(axes: tuple[Var, ...], c: Contraction) -> tuple[Var, ...]:
    """Axes in the order of the first output's memory, largest steps first."""
    index = c.stores[0].index
    return tuple(sorted(axes, key=lambda v: -abs(index.coefficient(v) or 0)))


def _unmasked(load: Instr, other: Instr) -> Instr:
    """A load without the conditions that mask ``other`` too, if it stays inside its buffer."""
    if load.op is not LOAD or not load.args:
        return load
    buffer, index = load.attr
    shared = tree.conditions(tree.gate(other))
    left = [g for g in tree.conditions(load.args[0]) if g not in shared]
    if left or not _is_inside(index, buffer.size):
        return load
    return Instr(LOAD, load.dtype, (), load.attr, index.vars)


def _is_inside(index: Index, size: int) -> bool:
    """Is every position in the buffer, whatever a gate may have promised?"""
    if not all(isinstance(atom, Var) for atom, _ in index.terms):
        return False
    total = ix.constant(index.const)
    for atom, factor in index.terms:
        total = total + ix.variable(atom) * factor
    return total.lo >= 0 and total.hi < size
