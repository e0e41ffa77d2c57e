"""Instructions to a kernel: each is put into the outermost loop where its variables are bound.

A loop over the outputs is opened per output variable; a reduction's loops stand where the values it
depends on are known. Hoisting loop-invariant work needs no pass of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from coregrad.ir import ops
from coregrad.ir.ends import Ends, inner_values
from coregrad.ir.index import Var
from coregrad.ir.kernel import (
    RESULT,
    Allocate,
    Contraction,
    Declare,
    Instr,
    Kernel,
    Loop,
    Stmt,
    Store,
    Update,
)
from coregrad.ir.lower import Evaluation, Reduction


@dataclass(eq=False)
class _Scope:
    """A loop body being filled; ``depth`` counts the loops around it."""

    body: list[Stmt]
    depth: int


def place(found: Evaluation, name: str) -> Kernel:
    """Put every instruction into the outermost loop where its variables are bound."""
    root = _Scope([], 0)
    scopes: dict[Var, _Scope] = {}
    scope = root
    chain: list[tuple[_Scope, Loop]] = []
    for var in found.output_vars:
        loop = Loop(var, "serial")
        chain.append((scope, loop))
        scope = scopes[var] = _Scope(loop.body, scope.depth + 1)
    innermost = scope
    nests = _nests(found.reductions)
    by_acc = {r.acc: nest for nest in nests for r in nest}
    entered: dict[int, list[tuple[_Scope, Loop]]] = {}

    def scope_of(used: Iterable[Var]) -> _Scope:
        best = root
        for var in used:
            if var not in scopes:
                enter(owner[var])
            if scopes[var].depth > best.depth:
                best = scopes[var]
        return best

    owner = {var: nest for nest in nests for r in nest for var in r.vars}

    def enter(nest: list[Reduction]) -> None:
        inner = scope_of(frozenset().union(*(r.free for r in nest)))
        loops = entered[id(nest)] = []
        for var in nest[0].vars:
            loop = Loop(var, "serial")
            loops.append((inner, loop))
            inner = scopes[var] = _Scope(loop.body, inner.depth + 1)

    done: set[int] = set()

    def close(nest: list[Reduction]) -> None:
        done.add(id(nest))
        if id(nest) not in entered:
            enter(nest)
        loops = entered[id(nest)]
        outer = loops[0][0]
        for row in found.rows:
            if filled[row.array] in nest and row.store is not None:
                outer.body.append(Allocate(row.array))
                loops[-1][1].body.append(row.store)
        for r in nest:
            outer.body.append(Declare(r.acc))
            loops[-1][1].body.append(Update(r.acc, r.values))
            if r.acc in found.running and r.result is not None:
                loops[-1][1].body += [r.result, found.running[r.acc]]
        for var, limit in ends.of(nest).items():
            for instr in limit:
                scope_of(instr.vars).body.append(instr)
            next(loop for _, loop in loops if loop.var is var).limit = limit[-1]
        for around, loop in reversed(loops[1:]):
            around.body.append(loop)
        outer.body.append(loops[0][1])

    made_by = {r.node: r for r in found.reductions}
    filled = {row.array: made_by[row.cache.by] for row in found.rows}

    ends = Ends(found)

    def sources(instr: Instr) -> list[Instr]:
        if instr.op is RESULT:
            nest = by_acc[instr.attr[0]]
            return [*(v for r in nest for v in r.values), *ends.gates(nest)]
        after = (
            [filled[instr.attr[0]].result]
            if instr.op is ops.LOAD and instr.attr[0] in filled
            else []
        )
        return [*instr.args, *inner_values(instr), *(r for r in after if r is not None)]

    stores = [*found.error_stores, *found.stores]
    running = [r for r in found.reductions if r.acc in found.running]
    stores += [replace(found.running[r.acc], value=r.values[0]) for r in running]
    for instr in _ordered(stores, sources):
        if instr.op is RESULT:
            nest = by_acc[instr.attr[0]]
            if id(nest) not in done:
                close(nest)
            entered[id(nest)][0][0].body.append(instr)
        else:
            scope_of(instr.vars).body.append(instr)
    for nest in nests:
        if nest[0].acc in found.running:
            close(nest)
    for store in found.error_stores:
        gate = store.gate
        assert gate is not None
        scope_of(gate.vars).body.append(store)
    for store in found.stores:
        whole = store.target.size == found.stores[0].target.size
        (innermost if whole else scope_of(store.index.vars)).body.append(store)
    for around, loop in reversed(chain):
        around.body.append(loop)
    return Kernel(name, tuple(found.params), root.body)


def _nests(reductions: Sequence[Reduction]) -> list[list[Reduction]]:
    """Reductions that share their variables run in one loop nest."""
    by_vars: dict[tuple[Var, ...], list[Reduction]] = {}
    for r in reductions:
        by_vars.setdefault(r.vars, []).append(r)
    return list(by_vars.values())


def _ordered(stores: Sequence[Store], sources: Callable[[Instr], list[Instr]]) -> list[Instr]:
    """All instructions that the stores need, operands first; iterative."""
    roots: list[Instr] = []
    for store in stores:
        roots += [store.value, *store.index.computed()]
        if store.gate is not None:
            roots.append(store.gate)
    order: list[Instr] = []
    seen: set[Instr] = set()
    stack: list[tuple[Instr, list[Instr]]] = []
    for root in roots:
        if root not in seen:
            seen.add(root)
            stack.append((root, sources(root)))
        while stack:
            instr, rest = stack[-1]
            while rest and rest[0] in seen:
                rest.pop(0)
            if rest:
                child = rest.pop(0)
                seen.add(child)
                stack.append((child, sources(child)))
            else:
                order.append(instr)
                stack.pop()
    return order


# ---- contractions ------------------------------------------------------------------------------


def contraction(found: Evaluation) -> Contraction | None:
    """The kernel as a sum over a product of two operands, if it is one (see kernel.Contraction)."""
    if len(found.reductions) != 1 or found.error_stores or found.running:
        return None
    r = found.reductions[0]
    value = r.values[0]
    if value.op is ops.CAST and value.args[0].op is ops.MUL:
        return None
    if r.acc.kind != "add" or value.op is not ops.MUL or r.result is None:
        return None
    a, b = value.args
    outs = [v for v in found.output_vars if v in r.free]
    if len(outs) != len(found.output_vars):
        return None
    if not all(v in a.vars and v in b.vars for v in r.vars if v.extent > 1):
        return None
    batch = tuple(v for v in outs if v in a.vars and v in b.vars)
    m = tuple(v for v in outs if v in a.vars and v not in b.vars)
    n = tuple(v for v in outs if v in b.vars and v not in a.vars)
    if not m or not n:
        return None
    k = tuple(v for v in r.vars if v.extent > 1)
    if not k:
        return None
    return Contraction(batch, m, n, k, a, b, r.acc, r.result, tuple(found.stores))
