"""The two operands, as a plan sees them: how each is laid out, read, and what that costs.

Costs are estimated cycles of one core per element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod

from coregrad.dtypes import DType
from coregrad.ir.index import Index, Var
from coregrad.ir.kernel import Instr
from coregrad.ir.ops import CONST, LOAD
from coregrad_cpu.llvm.contraction import tree
from coregrad_cpu.llvm.contraction.cut import Cut, power
from coregrad_cpu.llvm.contraction.tree import Fragment

STRIDED = 1.5  # cycles of loading one number that is not next to the one before
TRANSPOSED = 0.4  # cycles per number turned around in registers
SHORTEST = 4  # numbers in a row that are worth transposing


@dataclass(frozen=True)
class Slide:
    """An axis and a step of k of which the scalar operand sees only ``scale*axis + step*tap``.

    The operand is 0 unless the total, which counts from ``origin``, lies in ``low .. high``.
    """

    axis: Var
    tap: Var
    total: Var
    scale: int
    step: int
    origin: int
    low: int
    high: int

    def used(self, first: int, count: int) -> int:
        """How many taps may count for a stretch of the axis."""
        low = self.low - self.scale * (first + count - 1) - self.origin
        high = self.high - self.scale * first - self.origin
        if self.step < 0:
            low, high = -high, -low
        return max(0, min(high, self.tap.extent - 1) - max(low, 0) + 1)


@dataclass(frozen=True)
class Packed:
    """The vector operand: its tree over merged axes, and how a panel is filled."""

    root: Instr
    axes: tuple[Var, ...]
    k: tuple[Var, ...]  # the axes of k from the cut one on, merged
    along_k: bool  # lanes run along the last axis of k, and are transposed; else along the side
    lanes: int
    cost: float  # cycles per element
    originals: tuple[Var, ...]  # the contraction's axes that ``axes`` were merged from

    @cached_property
    def width(self) -> int:
        """Elements of the side."""
        return prod(v.extent for v in self.axes)


@dataclass(frozen=True)
class Read:
    """The scalar operand: where ``copied``, its tree is over the slides' totals."""

    root: Instr
    axes: tuple[Var, ...]
    originals: tuple[Var, ...]  # the contraction's axes that ``axes`` were merged from
    copied: bool
    slides: tuple[Slide, ...] = ()
    unit: Var | None = None  # lanes of the copying run along it
    cost: float = 0.0  # cycles per element copied


# ---- the scalar operand ------------------------------------------------------------------------


def read(root: Instr, axes: tuple[Var, ...], k: Sequence[Var], dtype: DType) -> Read:
    """The scalar operand: in place if it can be, else copied over as few axes as possible."""
    bare = tree.bare_load(root)
    if bare is not None and bare[0].dtype is dtype:
        merged, joined = tree.merge(Fragment((root,)), axes)
        found = tree.bare_load(merged.roots[0])
        assert found is not None
        if tree.strides(found[1], (*joined, *k)) is not None:
            return Read(merged.roots[0], joined, axes, False)
    fragment, slides = Fragment((root,)), []
    left = list(axes)
    for tap in k:
        for axis in left:
            slid = tree.slide(fragment, axis, tap)
            if slid is not None:
                fragment, total, scale, step, origin = slid
                low, high = tree.support(fragment.roots[0], total)
                slides.append(Slide(axis, tap, total, scale, step, origin, low, high))
                left.remove(axis)
                break
    fragment, joined = _merge_runs(fragment, axes, left)
    dims = [*joined, *(v for v in k if v not in {s.tap for s in slides})]
    dims = [v for v in dims if v in left or v not in axes] + [s.total for s in slides]
    unit = max(dims, key=lambda v: (_unit(fragment, v), v.extent))
    cost = _evaluation_cost(fragment, unit, min(16, unit.extent))
    return Read(fragment.roots[0], joined, axes, True, tuple(slides), unit, cost)


def _merge_runs(
    fragment: Fragment, axes: Sequence[Var], mergeable: Sequence[Var]
) -> tuple[Fragment, tuple[Var, ...]]:
    """Merge neighbouring axes, leaving alone those the tree no longer mentions."""
    joined: list[Var] = []
    run: list[Var] = []
    for axis in [*axes, None]:
        if axis is not None and axis in mergeable:
            run.append(axis)
            continue
        fragment, merged = tree.merge(fragment, run)
        joined += merged
        run = []
        if axis is not None and axis.extent > 1:
            joined.append(axis)
    mergeable[:] = [v for v in joined if v in mergeable or v not in axes]  # type: ignore[index]
    return fragment, tuple(joined)


# ---- the vector operand ------------------------------------------------------------------------


def packed(
    fragment: Fragment, axes: tuple[Var, ...], originals: tuple[Var, ...], k: Cut, lanes: int
) -> Packed:
    """The vector operand, with the lanes along whichever axis is contiguous in memory."""
    fragment, inner = tree.merge(fragment, k.axes[k.at :])
    width = prod(v.extent for v in axes)
    side, last = axes[-1], inner[-1] if inner else None
    along_k = (
        last is not None
        and _least(k, last) >= SHORTEST
        and _unit(fragment, last) > _unit(fragment, side)
    )
    if along_k:
        assert last is not None
        least = _least(k, last)
        pack_lanes = power(min(lanes, least))
        cost = TRANSPOSED * lanes / pack_lanes + _evaluation_cost(fragment, last, pack_lanes)
    else:
        pack_lanes = power(min(lanes, width)) if len(axes) == 1 else gcd(lanes, side.extent)
        cost = _evaluation_cost(fragment, side, pack_lanes)
    return Packed(fragment.roots[0], axes, inner, along_k, pack_lanes, cost, originals)


def _least(k: Cut, last: Var) -> int:
    """The fewest positions of the last (merged) axis of k within one block."""
    if last.extent == k.extent * k.inner:
        return min(k.sizes) * k.inner
    return last.extent


# ---- costs -------------------------------------------------------------------------------------


def _unit(fragment: Fragment, var: Var) -> float:
    """The share of loads that walk memory in order (or stand still) as ``var`` grows."""
    loads = [i for i in tree.walk(fragment.roots) if i.op is LOAD]
    if not loads:
        return 1.0
    good = sum(_step(load.attr[1], var) in (0, 1, -1) for load in loads)
    moving = any(_step(load.attr[1], var) for load in loads)
    return good / len(loads) if moving else 0.0


def _step(index: Index, var: Var) -> int | None:
    return index.coefficient(var)


def _evaluation_cost(fragment: Fragment, var: Var, lanes: int) -> float:
    """Cycles per element of evaluating a tree with lanes along ``var``."""
    cost = 2.0 / lanes
    for instr in tree.walk(fragment.roots):
        if instr.op is CONST:
            continue
        cost += 1.0 / lanes
        if instr.op is LOAD and _step(instr.attr[1], var) not in (0, 1, -1):
            cost += STRIDED
    return cost
