"""Which axes belong to which operand, once each keeps of a mask that both carry its own part.

The gradient of a convolution sums only windows that exist: both factors of its products are masked
with one gate, so that where it is false 0 * 0 is added. Seen through the mask, the weight depends
on the pixel, and every pixel would be a product of its own. So a condition is left to the factor
that depends on it: the other one adds 0 * its value instead, which is the same for every finite
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from coregrad.dtypes import bool_
from coregrad.ir import index as ix
from coregrad.ir.index import Index, Var
from coregrad.ir.kernel import Contraction, Instr
from coregrad.ir.ops import AND, LOAD
from coregrad_cpu.llvm.contraction import tree


def separated(c: Contraction) -> Contraction:
    """The contraction with fewer batch axes, where an operand depends on one by its mask alone."""
    a, b = _without(c.a, c.b), _without(c.b, c.a)
    pairs = [(c.a, b), (a, c.b)]
    if _all_kept(c, a, b):
        pairs.append((a, b))
    best = c
    for left, right in pairs:
        if not all(v in left.vars and v in right.vars for v in c.k):
            continue
        outs = (*c.batch, *c.m, *c.n)
        batch = tuple(v for v in outs if v in left.vars and v in right.vars)
        if len(batch) < len(best.batch):
            m = tuple(v for v in outs if v not in right.vars)
            n = tuple(v for v in outs if v not in left.vars)
            best = replace(c, batch=batch, m=_ordered(m, c), n=_ordered(n, c), a=left, b=right)
    return best


def _all_kept(c: Contraction, a: Instr, b: Instr) -> bool:
    """Whether each condition of the operands is left to one of them at least."""
    kept = {*tree.conditions(tree.gate(a)), *tree.conditions(tree.gate(b))}
    return kept.issuperset(tree.conditions(tree.gate(c.a)) + tree.conditions(tree.gate(c.b)))


def _ordered(axes: tuple[Var, ...], c: Contraction) -> tuple[Var, ...]:
    """Axes in the order of the first output's memory, largest steps first."""
    index = c.stores[0].index
    return tuple(sorted(axes, key=lambda v: -abs(index.coefficient(v) or 0)))


def _without(load: Instr, other: Instr) -> Instr:
    """A load without the conditions that mask ``other`` too and tell nothing of its own place, if
    it stays inside its buffer."""
    if load.op is not LOAD or not load.args:
        return load
    buffer, index = load.attr
    shared = tree.conditions(tree.gate(other))
    given = tree.conditions(load.args[0])
    kept = [g for g in given if g not in shared or _tells_of(g, index)]
    if len(kept) == len(given) or not _is_inside(index, buffer.size, kept):
        return load
    gates = (reduce(_both, kept),) if kept else ()
    used = index.vars.union(*(gate.vars for gate in gates))
    return Instr(LOAD, load.dtype, gates, load.attr, used)


def _both(a: Instr, b: Instr) -> Instr:
    return Instr(AND, bool_, (a, b), None, a.vars | b.vars)


def _tells_of(condition: Instr, index: Index) -> bool:
    return bool(condition.vars) and condition.vars <= index.vars


def _is_inside(index: Index, size: int, kept: Sequence[Instr]) -> bool:
    """Is every position in the buffer, where these conditions hold and whatever others say?"""
    low = high = 0
    for part, least, most in tree.ranges(kept):
        times = _factor(index, part)
        index = index - part * times
        low += min(times * least, times * most)
        high += max(times * least, times * most)
    if not all(isinstance(atom, Var) for atom, _ in index.terms):
        return False
    total = ix.constant(index.const)
    for atom, factor in index.terms:
        total = total + ix.variable(atom) * factor
    return total.lo + low >= 0 and total.hi + high < size


def _factor(index: Index, part: Index) -> int:
    """How often a sum contains another one, 0 if it does not."""
    atom, one = part.terms[0]
    times, rest = divmod(dict(index.terms).get(atom, 0), one)
    left = index - part * times
    return times if not rest and left.vars.isdisjoint(part.vars) else 0
