"""Value trees looked at as functions of loop variables; nothing here emits code.

A contraction's operands and stores are trees of :class:`Instr`. What can be done with one depends
only on the index expressions inside: which variables may be merged into one long axis, and which
pairs of variables occur only as a sum (the pixel and the tap of a convolution).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from coregrad.dtypes import from_bits
from coregrad.ir import index as ix
from coregrad.ir.index import Index, Var
from coregrad.ir.kernel import INDEX, Instr, Param, Store
from coregrad.ir.ops import AND, CONST, LOAD, LT, WHERE


def walk(roots: Iterable[Instr]) -> Iterator[Instr]:
    """Every value under ``roots`` once, operands first (opaque indices included); iterative."""
    seen: set[Instr] = set()
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        instr, ready = stack.pop()
        if ready:
            yield instr
        elif instr not in seen:
            seen.add(instr)
            stack.append((instr, True))
            stack += [(child, False) for child in reversed(operands(instr)) if child not in seen]


def operands(instr: Instr) -> list[Instr]:
    """The values an instruction needs, those inside its index included."""
    index = index_of(instr)
    return [*instr.args, *(index.computed() if index is not None else ())]


def index_of(instr: Instr) -> Index | None:
    """The index expression of a load or an index value."""
    found: Index | None = None
    if instr.op is LOAD:
        found = instr.attr[1]
    elif instr.op is INDEX:
        found = instr.attr
    return found


@dataclass(frozen=True)
class Fragment:
    """Value trees with the indices they are used at: an operand, or the stores of a kernel."""

    roots: tuple[Instr, ...]
    targets: tuple[Index, ...] = ()

    def indices(self) -> Iterator[Index]:
        """Every index expression."""
        yield from self.targets
        for instr in walk(self.roots):
            index = index_of(instr)
            if index is not None:
                yield index

    def rewrite(self, change: Callable[[Index], Index]) -> Fragment | None:
        """The same trees with other indices; None where an index depends on values that are loaded
        anew in some loop (a slice's start is not: it is one number for the whole kernel)."""
        if any(value.vars for index in self.indices() for value in index.computed()):
            return None
        made: dict[Instr, Instr] = {}
        for instr in walk(self.roots):
            made[instr] = _rebuild(instr, made, change)
        return Fragment(tuple(made[r] for r in self.roots), tuple(map(change, self.targets)))


def _rebuild(instr: Instr, made: Mapping[Instr, Instr], change: Callable[[Index], Index]) -> Instr:
    args = tuple(made[a] for a in instr.args)
    attr: Any = instr.attr
    index = index_of(instr)
    if index is not None:
        index = change(index)
        attr = (attr[0], index) if instr.op is LOAD else index
    if index == index_of(instr) and args == instr.args:
        return instr
    free = frozenset().union(*(a.vars for a in args), index.vars if index is not None else ())
    return replace(instr, args=args, attr=attr, vars=free)


def merge(fragment: Fragment, axes: Sequence[Var]) -> tuple[Fragment, tuple[Var, ...]]:
    """Join neighbouring axes wherever the trees see only their row-major position.

    The merged variable's value is the position; the order of positions never changes.
    """
    merged = [axis for axis in axes if axis.extent > 1]
    at = len(merged) - 2
    while at >= 0:
        outer, inner = merged[at], merged[at + 1]
        at -= 1
        if any(_apart(index, outer, inner) for index in fragment.indices()):
            continue
        joined = Var(f"{outer.name}_{inner.name}", outer.extent * inner.extent)
        position = ix.variable(joined)
        values = {outer: position // inner.extent, inner: position % inner.extent}
        changed = fragment.rewrite(lambda index, v=values: index.substitute(v))  # type: ignore[misc]
        if changed is not None and all(_even(index, joined) for index in changed.indices()):
            fragment = changed
            merged[at + 1 : at + 3] = [joined]
    return fragment, tuple(merged)


def _apart(index: Index, outer: Var, inner: Var) -> bool:
    """Whether two axes are seen for certain to be no row-major position: a cheap look."""
    long, short = index.coefficient(outer), index.coefficient(inner)
    return long is not None and short is not None and long != short * inner.extent


def _even(index: Index, var: Var) -> bool:
    return index.coefficient(var) is not None


def slide(fragment: Fragment, axis: Var, tap: Var) -> tuple[Fragment, Var, int, int, int] | None:
    """Replace ``axis`` and ``tap`` by their sum, where the trees see nothing else of them.

    Gives the trees as a function of ``total = scale*axis + step*tap + origin`` >= 0, with that
    variable and the three numbers; None where there is no such form, or nothing to gain from it.
    """
    ratio: tuple[int, int] | None = None
    for index in fragment.indices():
        a, b = index.coefficient(axis), index.coefficient(tap)
        if a is None or b is None:
            return None
        if a == 0 and b == 0:
            continue
        if a == 0 or b == 0:
            return None
        unit = gcd(a, b) * (1 if a > 0 else -1)
        if ratio not in (None, (a // unit, b // unit)):
            return None
        ratio = a // unit, b // unit
    if ratio is None:
        return None
    scale, step = ratio
    origin = -step * (tap.extent - 1) if step < 0 else 0
    extent = scale * (axis.extent - 1) + abs(step) * (tap.extent - 1) + 1
    if extent >= axis.extent * tap.extent:  # no two pairs have one sum
        return None
    total = Var(f"{axis.name}_{tap.name}", extent)

    def change(index: Index) -> Index:
        unit = (index.coefficient(axis) or 0) // scale
        if unit == 0:
            return index
        rest = index.substitute({axis: ix.constant(0), tap: ix.constant(0)})
        return rest + (ix.variable(total) - origin) * unit

    changed = fragment.rewrite(change)
    return None if changed is None else (changed, total, scale, step, origin)


def bare_load(tree: Instr) -> tuple[Param, Index] | None:
    """The buffer and index of a tree that is one ungated load of a parameter."""
    if tree.op is not LOAD or tree.args or not isinstance(tree.attr[0], Param):
        return None
    return tree.attr[0], tree.attr[1]


def strides(index: Index, axes: Iterable[Var]) -> dict[Var, int] | None:
    """How much the index grows per step of each axis; None unless it is affine in all of them."""
    found: dict[Var, int] = {}
    for axis in axes:
        step = index.coefficient(axis)
        if step is None:
            return None
        found[axis] = step
    return found


def stores_fragment(stores: Sequence[Store]) -> Fragment:
    """The stores of a kernel as one fragment: value, then gate where there is one."""
    roots: list[Instr] = []
    for store in stores:
        roots.append(store.value)
        if store.gate is not None:
            roots.append(store.gate)
    return Fragment(tuple(roots), tuple(s.index for s in stores))


def with_fragment(stores: Sequence[Store], fragment: Fragment) -> tuple[Store, ...]:
    """The stores with the trees and indices of a rewritten fragment."""
    roots = iter(fragment.roots)
    made = []
    for store, index in zip(stores, fragment.targets, strict=True):
        value = next(roots)
        gate = next(roots) if store.gate is not None else None
        made.append(Store(store.target, index, value, gate))
    return tuple(made)


def support(root: Instr, var: Var) -> tuple[int, int]:
    """The values of ``var`` outside which a gate makes the tree 0 (the whole range: not known)."""
    low, high = 0, var.extent - 1
    for index, least, most in ranges(conditions(gate(root))):
        if index.terms == ((var, 1),):
            low, high = max(low, least - index.const), min(high, most - index.const)
    return low, high


def ranges(conditions: Iterable[Instr]) -> list[tuple[Index, int, int]]:
    """The index expressions that conditions compare with numbers, each with the smallest and the
    largest value that it has where they hold."""
    found: dict[Index, tuple[int, int]] = {}
    for condition in conditions:
        if condition.op is not LT:
            continue
        left, right = condition.args
        if right.op is INDEX and left.op is CONST:
            index, least = right.attr, int(from_bits(left.attr, left.dtype)) + 1
            low, high = found.get(index, (index.lo, index.hi))
            found[index] = max(low, least), high
        if left.op is INDEX and right.op is CONST:
            index, most = left.attr, int(from_bits(right.attr, right.dtype)) - 1
            low, high = found.get(index, (index.lo, index.hi))
            found[index] = low, min(high, most)
    return [(index, *bounds) for index, bounds in found.items()]


def gate(root: Instr) -> Instr | None:
    """The condition outside of which a tree is 0, if it has one."""
    if root.op is LOAD and root.args:
        return root.args[0]
    if root.op is WHERE and root.args[2].op is CONST and root.args[2].attr == 0:
        return root.args[0]
    return None


def conditions(gate: Instr | None) -> list[Instr]:
    """The parts of a conjunction, each once."""
    found: dict[Instr, None] = {}
    stack = [] if gate is None else [gate]
    while stack:
        one = stack.pop()
        if one.op is AND:
            stack += one.args
        else:
            found[one] = None
    return list(found)
