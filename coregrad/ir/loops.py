"""How a kernel's loops are laid out: merged, ordered, shared out, and walked in lanes.

Before the kernel is placed, :func:`plan` looks at its index expressions: axes that are always
walked together become one loop, loops that reductions need come first, the outermost ones are
joined into the grid. Afterwards :func:`assign` marks the grid loop and chooses, for every nest, the
loop whose lanes cost least.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from coregrad.dtypes import from_bits
from coregrad.ir import ends, lower, ops, place
from coregrad.ir.graph import Node
from coregrad.ir.index import Index, Opaque, Quotient, Remainder, Var, variable
from coregrad.ir.kernel import (
    INDEX,
    RESULT,
    Allocate,
    Contraction,
    Declare,
    Instr,
    Kernel,
    Loop,
    Param,
    Stmt,
    Store,
    Update,
    walk,
)
from coregrad.ir.lower import Evaluation, Plan, Reduction
from coregrad.ir.split import FARTHEST
from coregrad.ir.target import Limits

ENOUGH = 64  # iterations of the grid loop that keep every thread busy
BLOCK = 4096  # iterations that a split-off inner loop should have
TILE = (64, 16)  # of a transposed copy: 16 rows of the source stay in the nearest cache
LINE = 16  # elements that a line of a cache holds, for most dtypes
HALF_PAGE = 2048  # bytes
PIECES = 4  # of a row that threads share
UNROLL = 4  # vectors per step of a cheap reduction, to hide the latency of its addition
PARTS = 16  # of an axis that a kernel chooses between, at most
PIECE = 8  # the same of columns: two lines of each row more gain nothing, four less cost 15 %


# ---- before placement --------------------------------------------------------------------------


def plan(found: Evaluation, limits: Limits) -> Plan:
    """The layout for a kernel that was evaluated with one loop per axis."""
    uses = _index_uses(found)
    scatter = found.params[0].role == "inout"
    groups = _merge(found.group_vars, uses, [r.free for r in found.reductions])
    extents = [math.prod(found.group_vars[a].extent for a in g) for g in groups]
    reduce_groups = _reduce_groups(found, uses)
    merged = Plan(found.domain, groups, reduce_groups, shared=_shared(found, reduce_groups))
    order = _order(found, groups)
    whole = place.contraction(found)
    if scatter:
        return replace(merged, order=order, columns=_columns(found, limits))
    if found.running or whole is not None or not groups:
        return replace(merged, order=order)
    tile = _tile(found, order, limits)
    if tile is not None:
        return replace(merged, order=order, tile=tile)
    grid = _grid(found, groups, order, limits)
    split = 0
    rest = [extents[g] for g in order[grid:]]
    if (
        len(rest) == 1
        and math.prod(extents[g] for g in order[:grid]) < ENOUGH
        and not found.reductions
    ):
        split = _divisor_near(rest[0], BLOCK)
    return replace(merged, order=order, grid=grid, split=split)


def domain(found: Evaluation) -> tuple[tuple[int, ...], ...]:
    """Sizes to take every output axis apart into, where that makes a better kernel; else nothing.

    Where a sum of products takes indices along an axis apart by division (the heads of an attention
    stand beside each other in its result, the groups of a convolution in its channels), each part
    is a product of matrices in loops of its own. Where a kernel chooses by an axis' index between
    parts of one length (a concatenation), the choice is not made for each element.
    """
    if found.domain:
        return ()
    cuts: dict[Index, set[int]] = {variable(var): set() for var in found.group_vars}
    if any(r.acc.kind == "add" and r.values[0].op is ops.MUL for r in found.reductions):
        for index in _index_uses(found):
            for atom, _ in index.terms:
                if isinstance(atom, Quotient | Remainder) and atom.x in cuts:
                    cuts[atom.x].add(atom.divisor)
    elif not found.reductions:
        for var in found.group_vars:
            cuts[variable(var)] = _part(var, found.instrs)
    if not any(cuts.values()):
        return ()
    return tuple(_cut(var.extent, cuts[variable(var)]) for var in found.group_vars)


def _part(var: Var, instrs: Iterable[Instr]) -> set[int]:
    """The length of equal parts of an axis that comparisons of its index tell apart, if each is
    worth a loop of its own."""
    bounds = set()
    for instr in instrs:
        if instr.op is ops.LT:
            low, high = instr.args
            if low.op is INDEX and high.op is ops.CONST and low.attr.terms == ((var, 1),):
                bounds.add(from_bits(high.attr, high.dtype) - low.attr.const)
            elif high.op is INDEX and low.op is ops.CONST and high.attr.terms == ((var, 1),):
                bounds.add(from_bits(low.attr, low.dtype) + 1 - high.attr.const)
    length = math.gcd(var.extent, *(int(b) for b in bounds if 0 < b < var.extent))
    return {length} if length >= LINE * PIECES and length * PARTS >= var.extent > length else set()


def _cut(extent: int, divisors: Iterable[int]) -> tuple[int, ...]:
    """An extent as a product, so that each divisor is that of the last few factors.

    >>> _cut(768, {64}), _cut(60, {12, 4, 7})
    ((12, 64), (5, 3, 4))
    """
    sizes = []
    for divisor in sorted(divisors, reverse=True):
        if divisor < extent and extent % divisor == 0:
            sizes.append(extent // divisor)
            extent = divisor
    return (*sizes, extent)


def _index_uses(found: Evaluation) -> list[Index]:
    """Every index expression of the kernel, those inside divisions and gates included."""
    stack = [i.attr for i in found.instrs if i.op is INDEX]
    stack += [i.attr[1] for i in found.instrs if i.op is ops.LOAD]
    stack += [s.index for s in found.stores]
    out = []
    while stack:
        index = stack.pop()
        out.append(index)
        for atom, _ in index.terms:
            if isinstance(atom, Quotient | Remainder):
                stack.append(atom.x)
    return out


def _merge(
    used: Sequence[Var], uses: Sequence[Index], frees: Sequence[frozenset[Var]]
) -> tuple[tuple[int, ...], ...]:
    """Runs of neighbouring axes that every index expression walks as one."""
    groups: list[list[int]] = []
    for axis, var in enumerate(used):
        if groups and _as_one(used[groups[-1][0] : axis], var, uses, frees):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return tuple(tuple(g) for g in groups)


def _as_one(
    before: Sequence[Var], var: Var, uses: Sequence[Index], frees: Sequence[frozenset[Var]]
) -> bool:
    if var.extent == 1 or all(v.extent == 1 for v in before):
        return True
    last = next(v for v in reversed(before) if v.extent > 1)
    if any((last in free) != (var in free) for free in frees):
        return False
    for index in uses:
        outer, inner = index.coefficient(last), index.coefficient(var)
        if outer is None or inner is None or outer != inner * var.extent:
            return False
    return True


def _reduce_groups(
    found: Evaluation, uses: Sequence[Index]
) -> dict[Node, tuple[tuple[int, ...], ...]]:
    frees = [r.free for r in found.reductions]
    return {r.node: _merge(r.vars[: len(r.axes)], uses, frees) for r in found.reductions}


def _shared(
    found: Evaluation, groups: Mapping[Node, tuple[tuple[int, ...], ...]]
) -> dict[Node, int]:
    """Reductions of the same place and range that do not need each other: one number for each
    set of them, which then runs in one loop nest."""
    nodes = [r.node for r in found.reductions]
    if len(set(nodes)) != len(nodes):
        return {}
    needs = _needs(found.reductions)
    nests = [[j] for j in range(len(nodes))]
    for j, r in enumerate(found.reductions):
        for nest in nests[:j]:
            if not nest:
                continue
            first = found.reductions[nest[0]]
            if groups[first.node] == groups[r.node] and _same_nest(first, r):
                joined = [n for n in nests if n is not nest and n != [j]] + [[*nest, j]]
                if _can_be_ordered(joined, needs):
                    nest.append(j)
                    nests[j] = []
                    break
    return {nodes[j]: number for number, nest in enumerate(nests) for j in nest}


def _can_be_ordered(nests: Sequence[Sequence[int]], needs: Sequence[set[int]]) -> bool:
    """Whether the nests can run one after the other, each after those it needs."""
    left = [set(nest) for nest in nests if nest]
    wanted = [set().union(*(needs[j] for j in nest)) for nest in left]
    done: set[int] = set()
    while left:
        ready = [i for i, want in enumerate(wanted) if want <= done]
        if not ready:
            return False
        done |= set().union(*(left[i] for i in ready))
        left = [nest for i, nest in enumerate(left) if i not in ready]
        wanted = [want for i, want in enumerate(wanted) if i not in ready]
    return True


def _same_nest(a: Reduction, b: Reduction) -> bool:
    same = [v.extent for v in a.vars] == [v.extent for v in b.vars]
    whole = len(a.vars) == len(a.axes) and len(b.vars) == len(b.axes)
    return same and whole and a.free == b.free


def _needs(reductions: Sequence[Reduction]) -> list[set[int]]:
    """For each reduction, those whose result its values depend on."""
    number = {r.acc: i for i, r in enumerate(reductions)}
    out = []
    for r in reductions:
        found: set[int] = set()
        seen: set[Instr] = set()
        stack = list(r.values)
        while stack:
            instr = stack.pop()
            if instr in seen:
                continue
            seen.add(instr)
            if instr.op is RESULT:
                other = number[instr.attr[0]]
                found.add(other)
                stack += reductions[other].values
            stack += [*instr.args, *ends.inner_values(instr)]
        out.append(found)
    return out


def _order(found: Evaluation, groups: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Output groups, those first that the most reductions depend on."""

    def rank(number: int) -> int:
        used = {found.group_vars[axis] for axis in groups[number]}
        return -sum(bool(used & r.free) for r in found.reductions)

    return tuple(sorted(range(len(groups)), key=rank))


def _columns(found: Evaluation, limits: Limits) -> tuple[int, int] | None:
    """How many columns the rows of a flat scatter have, and how many of them are walked abreast.

    Where a value's place is its column and something that no column is far from, values of
    different columns never meet, and have no order among each other. A vector machine takes a line
    of its cache at a time, others a column. Rows half a page apart are left in longer pieces: where
    two addresses differ by pages, a load waits for a store that has nothing to do with it.
    """
    if found.group_vars or found.reductions:
        return None
    (row,) = found.output_vars
    (store,) = found.stores
    width = others = 0
    for atom, step in store.index.terms:
        if not width and step == 1 and isinstance(atom, Remainder) and atom.x == variable(row):
            width = atom.divisor
        else:
            others = math.gcd(others, step)
    if not 0 < width <= others:
        return None
    wanted = LINE if others * store.target.dtype.itemsize % HALF_PAGE else width // PIECES
    abreast = _divisor_near(width, wanted) if limits.vector_bytes else 1
    return (width, abreast) if abreast and row.extent % width == 0 else None


def _grid(
    found: Evaluation,
    groups: Sequence[Sequence[int]],
    order: Sequence[int],
    limits: Limits,
) -> int:
    """How many of the outermost groups one grid variable walks."""

    def users(number: int) -> int:
        used = {found.group_vars[axis] for axis in groups[number]}
        return sum(bool(used & r.free) for r in found.reductions)

    leading = (
        sum(users(g) == len(found.reductions) for g in order) if found.reductions else len(order)
    )
    if leading < len(order):
        return max(leading, 1)
    if len(order) > 1 and (not found.reductions or _lanes_along(found, groups[order[-1]], limits)):
        return len(order) - 1
    return len(order)


def _tile(found: Evaluation, order: Sequence[int], limits: Limits) -> tuple[int, int] | None:
    """The sides of a tile for a copy that reads along one axis and writes along another.

    Walked row by row it would fetch every line of memory again for each of its elements.
    """
    if found.reductions or found.error_stores or len(order) < 2 or not limits.vector_bytes:
        return None
    row, column = (found.group_vars[number] for number in order[-2:])
    loads = [i.attr[1] for i in found.instrs if i.op is ops.LOAD]
    across = [i for i in loads if i.coefficient(row) == 1 and i.coefficient(column) not in (0, 1)]
    sides = _divisor_near(row.extent, TILE[0]), _divisor_near(column.extent, TILE[1])
    return sides if across and all(sides) else None


def _lanes_along(found: Evaluation, group: Sequence[int], limits: Limits) -> bool:
    """Whether the innermost output loop is a better vector than the reductions' own loops."""
    if not limits.vector_bytes:
        return False
    last = next(
        (found.group_vars[a] for a in reversed(group) if found.group_vars[a].extent > 1), None
    )
    if last is None or last.extent < 4:
        return False
    inner = [r.vars[-1] for r in found.reductions if r.vars[-1].extent > 1]
    loads = [i.attr[1] for i in found.instrs if i.op is ops.LOAD]
    along = sum(_stride_cost(index, last) for index in loads)
    across = sum(
        min((_stride_cost(index, v) for v in inner if v in index.vars), default=1)
        for index in loads
    )
    short = all(v.extent < 8 for v in inner)
    return along <= across or (short and along <= 4 * across)


def _stride_cost(index: Index, var: Var) -> int:
    step = index.coefficient(var)
    return 1 if step in (0, 1) else 8


def _divisor_near(n: int, wanted: int) -> int:
    """A divisor of ``n`` between wanted/4 and 4*wanted, or 0."""
    if n < 2 * wanted:
        return 0
    near = [d for d in range(wanted // 4, 4 * wanted + 1) if n % d == 0]
    return min(near, key=lambda d: abs(d - wanted)) if near else 0


def row_caches(found: Evaluation, kernel: Kernel, limits: Limits) -> tuple[lower.RowCache, ...]:
    """Costly values that the kernel computes twice along a row and could keep in scratch memory."""
    if not found.reductions or not found.output_vars or found.running:
        return ()
    if any(
        s.lanes > 1 and any(isinstance(t, Loop) for t in s.body)
        for s in walk(kernel.body)
        if isinstance(s, Loop)
    ):
        return ()  # lanes run across rows: each would need a row of its own
    room = limits.private_bytes
    out: list[lower.RowCache] = []
    dear = _dear(found.instrs)
    for node, asked in found.requests.items():
        if node.op not in ops.ELEMENTWISE or not all(i in dear for i in asked.values()):
            continue
        cache = _row_cache(found, node, list(asked))
        if cache is not None and cache.length * node.dtype.itemsize <= room:
            room -= cache.length * node.dtype.itemsize
            out.append(cache)
    nested = {s for cache in out for s in cache.node.src}
    return tuple(c for c in out if c.node not in nested)


def _dear(instrs: Sequence[Instr]) -> set[Instr]:
    """Values with an exponential or the like in them."""
    out: set[Instr] = set()
    for instr in instrs:
        if instr.op in lower.DEAR or any(a in out for a in instr.args):
            out.add(instr)
    return out


def _row_cache(
    found: Evaluation, node: Node, asked: Sequence[lower.Indices]
) -> lower.RowCache | None:
    if len(asked) != 2:
        return None
    outs = frozenset(found.output_vars)
    for here, there in (asked, asked[::-1]):
        used = frozenset().union(*(i.vars for i in here))
        again = frozenset().union(*(i.vars for i in there))
        for r in found.reductions:
            fresh = again - used
            if len(r.vars) != 1 or r.vars[0] not in used or len(fresh) != 1 or not r.free <= outs:
                continue
            (var,) = fresh
            stored = r.vars[0]
            same = tuple(i.substitute({stored: variable(var)}) for i in here) == tuple(there)
            if same and var in outs and var not in r.free and var.extent == stored.extent:
                return lower.RowCache(node, r.node, var.name, stored.extent)
    return None


def name(found: Evaluation, output: Node) -> str:
    """A telling name: what is done, over which output shape and how many summed elements."""
    shape = "x".join(map(str, output.shape)) or "scalar"
    if output.op in (ops.SCATTER, ops.SCAN, ops.ARGSORT):
        return f"{output.op}_{shape}"
    if place.contraction(found) is not None:
        return f"dot_{shape}_k{math.prod(v.extent for v in found.reductions[0].vars)}"
    if not found.reductions:
        return f"map_{shape}"
    kinds = "_".join(dict.fromkeys(r.acc.kind for r in found.reductions))
    return f"{kinds}_{shape}_r{max(math.prod(v.extent for v in r.vars) for r in found.reductions)}"


# ---- after placement ---------------------------------------------------------------------------


def assign(kernel: Kernel, limits: Limits) -> None:
    """Mark the grid loop and the vector loops of a placed kernel, in place."""
    loops = [s for s in kernel.body if isinstance(s, Loop)]
    serial = kernel.params[0].role == "inout" and len(loops) == 1 and _is_ordered(loops[0])
    reductions = any(isinstance(s, Declare) for s in kernel.body)
    if len(loops) == 1 and not serial and not reductions:
        loops[0].kind = "grid"
    if limits.vector_bytes:
        for loop in loops:
            if not (serial and _is_ordered(loop)):
                _choose(loop, limits)


def _choose(loop: Loop, limits: Limits) -> float:
    """Give lanes to this loop or to loops inside it, whichever costs less; return the cost."""
    inner = [s for s in loop.body if isinstance(s, Loop)]
    base = max(1, limits.vector_bytes // 4)
    scalar = sum(_cost(s, None, 1) for s in loop.body if not isinstance(s, Loop))
    split = loop.var.extent * (scalar + sum(_choose(s, limits) for s in inner))
    best, lanes = _along(loop, loop.var, base, _vectors(loop, inner[-1] if inner else loop))
    if lanes == 1 or (inner and split <= best) or _forbidden(loop):
        return split
    loop.lanes = lanes
    for s in walk(loop.body):
        if isinstance(s, Loop):
            s.lanes = 1
    return best


def _forbidden(loop: Loop) -> bool:
    """Lanes may not run along the order of a scatter or scan, nor share the array of one row."""
    if _is_ordered(loop) or any(isinstance(s, Allocate) for s in walk(loop.body)):
        return True
    ordered = [s for s in loop.body if isinstance(s, Loop) and _is_ordered(s)]
    stores = [s for inner in ordered for s in inner.body if isinstance(s, Store)]
    return any(_is_shared(s, loop.var) for s in stores)


def _is_shared(store: Store, var: Var) -> bool:
    """Whether lanes along a variable would store to one element. All that is wrong with a row's
    index, they may all say."""
    same = store.gate is not None and var not in store.gate.vars and var not in store.value.vars
    if isinstance(store.target, Param) and store.target.role == "error" and same:
        return False
    return store.index.coefficient(var) != 1


def _is_ordered(loop: Loop) -> bool:
    """Whether this is the loop along a scatter's index or a scan's axis, whose order counts."""
    return loop.var.name == lower.ORDERED


def _vectors(loop: Loop, innermost: Loop) -> int:
    """Vectors per step of a cheap reduction. A sum of columns inside a block of rows, which a cache
    holds, takes longer pieces of each row; the grid's own loop is cut at fewer elements."""
    if not _is_cheap_reduction(innermost):
        return 1
    sums = sum(isinstance(s, Update) for s in innermost.body)
    across = loop is not innermost and loop.kind != "grid" and sums == 1
    return PIECE if across and _reads_little(innermost) else UNROLL


def _reads_little(loop: Loop) -> bool:
    """Whether all that is loaded in the loop may lie in a cache."""
    loads = [s for s in loop.body if isinstance(s, Instr) and s.op is ops.LOAD]
    return all(s.attr[0].size < FARTHEST for s in loads)


def _is_cheap_reduction(loop: Loop) -> bool:
    """A plain sum, product or maximum of few operations: worth several accumulators."""
    instrs = [s for s in loop.body if isinstance(s, Instr)]
    updates = [s for s in loop.body if isinstance(s, Update)]
    dear = any(i.op in lower.DEAR for i in instrs)
    return (
        bool(updates)
        and not dear
        and len(instrs) <= 10
        and all(len(u.values) == 1 for u in updates)
    )


def _along(loop: Loop, var: Var, base: int, vectors: int) -> tuple[float, int]:
    """The cheapest number of lanes for ``var``, at most so many vectors, and what it costs."""
    several = {n for n in (vectors, UNROLL) if 1 < n <= vectors}
    choices = [base * n for n in sorted(several, reverse=True) if var.extent >= 2 * base * n]
    choices += [base >> i for i in range(base.bit_length() - 1)]
    one = sum(_cost_inside(s, var, 1) for s in loop.body)
    best = (var.extent * one, 1)
    for lanes in choices:
        steps, rest = divmod(var.extent, lanes)
        registers = max(1, lanes // base)
        step = sum(_cost_inside(s, var, lanes) for s in loop.body) * (
            0.8 * registers if registers > 1 else 1
        )
        cost = steps * step + rest * one
        if steps and cost < best[0]:
            best = (cost, lanes)
    return best


def _cost_inside(stmt: Stmt, var: Var, lanes: int) -> float:
    if isinstance(stmt, Loop):
        return stmt.var.extent * sum(_cost_inside(s, var, lanes) for s in stmt.body)
    return _cost(stmt, var, lanes)


def _cost(stmt: Stmt, var: Var | None, lanes: int) -> float:
    """About how many instructions a statement takes when ``var`` advances by lanes."""
    if isinstance(stmt, Store):
        return 1.2 * _access(stmt.index, var, lanes)
    if isinstance(stmt, Instr) and stmt.op is ops.LOAD:
        return _access(stmt.attr[1], var, lanes)
    if isinstance(stmt, Instr) and stmt.op in lower.DEAR:
        return 8.0
    return 1.0


def _access(index: Index, var: Var | None, lanes: int) -> float:
    if var is None or lanes == 1:
        return 1.0
    step = index.coefficient(var)
    if any(isinstance(atom, Opaque) and var in atom.vars for atom, _ in index.terms):
        return 2.0 * lanes
    if step == 0:
        return 0.5
    if step == 1:
        return 1.0
    return (1.2 if step is not None and abs(step) < LINE else 1.6) * lanes


def float_operations(kernel: Kernel) -> int:
    """Arithmetic on floats that one launch carries out, each op counted once.

    What the operands of a contraction are made of counts once for each of their elements, as if
    they were packed, however often the body goes there: once for each column of a product.
    """
    return _operations(kernel.body, 1, _elements(kernel.contraction))


def _operations(body: Iterable[Stmt], times: int, most: Mapping[Instr, int]) -> int:
    total = 0
    for stmt in body:
        if isinstance(stmt, Loop):
            total += _operations(stmt.body, times * stmt.var.extent, most)
        elif isinstance(stmt, Update):
            total += times * stmt.acc.dtype.is_float
        elif isinstance(stmt, Instr) and stmt.dtype.is_float and stmt.op in _ARITHMETIC:
            total += min(times, most.get(stmt, times))
    return total


def _elements(whole: Contraction | None) -> dict[Instr, int]:
    """How many elements the operand has that an instruction belongs to."""
    found: dict[Instr, int] = {}
    if whole is None:
        return found
    for operand, own in ((whole.a, whole.m), (whole.b, whole.n)):
        count = math.prod(var.extent for var in (*whole.batch, *own, *whole.k))
        stack = [operand]
        while stack:
            instr = stack.pop()
            if instr not in found:
                found[instr] = count
                stack += instr.args
    return found


_ARITHMETIC = ops.UNARY_MATH | {ops.ADD, ops.MUL, ops.DIV, ops.MOD, ops.MAX}
