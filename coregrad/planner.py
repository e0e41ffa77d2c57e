"""From an expression to a plan: every pass of the compiler, in order. It owns no buffer.

The engine loads this room when the first structure has to be compiled.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from coregrad import config, dtypes, plans, plugins
from coregrad.dtypes import DType
from coregrad.expression import Expression
from coregrad.ir import (
    build,
    emit,
    formula,
    graph,
    inplace,
    kernel,
    legalize,
    loops,
    ops,
    runs,
    simplify,
    split,
    verify,
)
from coregrad.ir.alike import Table, alike
from coregrad.ir.graph import Node
from coregrad.ir.schedule import Task, schedule
from coregrad.plan import Plan, Step

# A result of fewer bytes gets new memory: to ask who holds the old one would cost more.
WORTH_ASKING = 1 << 16


def compile_expression(
    expression: Expression, roots: Sequence[Node], device: str, open_floats: bool
) -> Plan:
    """Simplify, schedule, lower and compile an expression, whose leaves become slots."""
    with _no_collection():
        return _compiled(expression, roots, device, open_floats)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Compiling makes many objects, most of which are needed to its end: to look for garbage after
    every few hundred takes a tenth of the time. What goes round in cycles, a few megabytes for the
    largest graphs, can wait."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _compiled(
    expression: Expression, roots: Sequence[Node], device: str, open_floats: bool
) -> Plan:
    active = plugins.open_device(device)
    limits = active.device.limits
    made: dict[Node, Node] = {}
    slots: dict[Any, int] = {}
    tokens: dict[int, _Slot] = {}
    blocks: list[DType] = []
    left_open = [*expression.numbers, *(expression.floats if open_floats else ())]
    opened = _open_blocks(left_open, blocks, slots, len(expression.leaves))
    for node in expression.order:
        if 0 in node.shape:  # no memory: not even an empty buffer can be an argument
            made[node] = build.const(0, node.dtype, node.shape)
        elif node.op is ops.BUFFER:
            slot = expression.leaves[node.arg]
            token = tokens.setdefault(slot, _Slot(slot))
            slots[token] = slot
            made[node] = build.buffer(token, node.dtype, node.shape)
        elif node in opened:
            made[node] = opened[node]
        else:
            src = tuple(made[s] for s in expression.sources_of(node))
            if node.op is ops.CALL:
                made[node] = formula.expand(node.arg, src)
            else:
                made[node] = graph.intern(node.op, src, node.arg, node.dtype, node.shape)
    wanted = [made[root] for root in roots]
    numbers = {node.arg: i + 1 for i, node in enumerate(expression.checks)}
    kept = plans.of(active, len(expression.order))
    key = "" if kept is None else kept.key(wanted, slots, blocks, numbers)
    known = None if kept is None else kept.read(key)
    if known is not None:
        return known
    found = runs.Runs() if hasattr(active.device, "part") else None
    targets = split.split(simplify.simplify(wanted), functools.partial(_sorts, active), found)
    places = runs.Places() if found is None else found.places()
    verify.verify_graph(targets)
    checks = {n: numbers[n.arg] for n in graph.toposort(targets) if n.op is ops.CHECK}
    if config.debug() >= 5:
        _print(graph.show(targets))
    viewed = [runs.bare(t) for t in targets]
    stored = [t for t in viewed if t.op is not ops.BUFFER and 0 not in t.shape]
    fusion = config.get("COREGRAD_FUSION") != "0"
    tasks = schedule(list(dict.fromkeys(stored)), limits, checks, fusion, places)
    if config.debug() >= 5:
        for task in tasks:
            _print(f"{task.kernel.name}: {task.outputs} from {task.sources}")
    made_alike = alike([task.kernel for task in tasks], limits.max_buffers)
    for task, (shared, _) in zip(tasks, made_alike, strict=True):
        task.kernel = shared
    first = len(expression.leaves) + len(blocks)
    tables = [table for _, table in made_alike]
    plan = _assemble(tasks, tables, targets, slots, first, blocks, places, active)
    if kept is not None:
        kept.write(key, plan)
    return plan


class _Slot:
    """Stands for a leaf of the expression while it is compiled."""

    __slots__ = ("number",)

    def __init__(self, number: int):
        self.number = number

    def __repr__(self) -> str:
        return f"leaf {self.number}"


def _open_blocks(
    left_open: Sequence[Node], blocks: list[DType], slots: dict[Any, int], first: int
) -> dict[Node, Node]:
    """Numbers and open constants as elements of one small buffer per dtype."""
    out: dict[Node, Node] = {}
    for dtype in dict.fromkeys(node.dtype for node in left_open):
        members = [node for node in left_open if node.dtype is dtype]
        token = _Slot(first + len(blocks))
        slots[token] = token.number
        blocks.append(dtype)
        block = build.buffer(token, dtype, (len(members),))
        for i, node in enumerate(members):
            one = build.shrink(block, ((i, i + 1),))
            flat = build.reshape(one, (1,) * len(node.shape))
            out[node] = build.expand(flat, node.shape)
    return out


def _assemble(
    tasks: Sequence[Task],
    tables: Sequence[Table | None],
    targets: Sequence[Node],
    slots: dict[Any, int],
    first: int,
    blocks: list[DType],
    places: runs.Places,
    active: plugins.Active,
) -> Plan:
    kept = list(dict.fromkeys(table for table in tables if table is not None))
    table_slots = {table: first + i for i, table in enumerate(kept)}
    base = first + len(kept)
    known: dict[kernel.Kernel, Step] = {}
    place: dict[Node, int] = {}
    run_slots: dict[runs.Run, int] = {}
    sizes: list[int] = []
    parts: dict[int, tuple[int, int]] = {}
    error: int | None = None
    steps: list[Step] = []

    def new_slot(nbytes: int) -> int:
        sizes.append(nbytes)
        return base + len(sizes) - 1

    def slot(node: Node) -> int:
        if node.op is ops.BUFFER:
            return slots[node.arg]
        if node not in place:
            nbytes = math.prod(node.shape) * node.dtype.itemsize
            place[node] = inside(node, nbytes) if node in places.within else new_slot(nbytes)
        return place[node]

    def inside(node: Node, nbytes: int) -> int:
        outer, start = places.within[node]
        if isinstance(outer, runs.Run):
            if outer not in run_slots:
                run_slots[outer] = new_slot(outer.size * node.dtype.itemsize)
            whole = run_slots[outer]
            if nbytes == outer.size * node.dtype.itemsize:
                return whole
        else:
            whole = slot(outer)
        owner, before = parts.get(whole, (whole, 0))
        made = new_slot(nbytes)
        parts[made] = owner, before + start * node.dtype.itemsize
        return made

    for task, table in zip(tasks, tables, strict=True):
        if task.initial is not None:
            place[task.outputs[0]] = slot(task.initial)
        sources = iter(task.sources)
        outputs = iter(task.outputs)
        operands: list[int] = []
        params = task.kernel.params if table is None else task.kernel.params[:-1]
        for param in params:
            if param.role == "error":
                if error is None:
                    error = new_slot(param.dtype.itemsize)
                operands.append(error)
            else:
                operands.append(slot(next(sources if param.role == "in" else outputs)))
        if table is not None:
            operands.append(table_slots[table])
        if task.kernel.sort is not None:
            program, scratch = _own_sort(task.kernel.sort, active)
            operands.append(new_slot(scratch))
            _show_kernel(task.kernel)
            steps.append(_rendered(task.kernel, program, operands, active))
        else:
            if task.kernel not in known:
                known[task.kernel] = _step(task.kernel, operands, active)
            steps.append(replace(known[task.kernel], operands=operands, frees=[]))
    results = [slot(runs.bare(t)) if math.prod(t.shape) else -1 for t in targets]
    _plan_frees(steps, base, {*results, error}, parts)
    leaves = first - len(blocks)
    donors = {} if error is not None else _donors(tasks, steps, results, leaves, parts, active)
    return Plan(steps, sizes, blocks, results, error, donors, kept, parts)


def _step(made: kernel.Kernel, operands: list[int], active: plugins.Active) -> Step:
    limits = active.device.limits
    made = legalize.legalize(made, active.hooks, limits)
    verify.verify_kernel(made, limits)
    _show_kernel(made)
    if active.hooks.style == "eager":
        run = functools.partial(_run_eagerly, made, active)
        work, moved = _counts(made)
        return Step(made.name, 1, None, run, True, operands, work=work, moved=moved)
    program = emit.emit(made, active.backend, active.hooks, limits)
    return _rendered(made, program, operands, active)


def _rendered(
    made: kernel.Kernel, program: Any, operands: list[int], active: plugins.Active
) -> Step:
    """The step of a kernel whose program is there."""
    debug = config.debug()
    if debug >= 4:
        _print(str(program))
    assembly = getattr(active.device, "assembly", None)  # optional: not every compiler can tell
    if debug >= 6 and assembly is not None:
        _print(assembly(program))
    compiled = active.device.compile(program)
    work, moved = _counts(made)
    return Step(made.name, made.grid, program, compiled, False, operands, work=work, moved=moved)


def _show_kernel(made: kernel.Kernel) -> None:
    if config.debug() >= 3:
        _print(str(made))


def _counts(made: kernel.Kernel) -> tuple[int, int]:
    """What DEBUG=2 divides by the time: floating-point operations, and bytes of the buffers."""
    moved = sum(p.size * p.dtype.itemsize for p in made.params)
    return loops.float_operations(made) if made.work is None else made.work, moved


def _own_sort(wanted: kernel.Sort, active: plugins.Active) -> Any:
    """The device's program for a sort and the bytes of scratch memory it needs, or None."""
    sort = getattr(active.device, "sort", None)
    return None if sort is None else sort(wanted.dtype, wanted.rows, wanted.length, wanted.count)


def _sorts(active: plugins.Active, node: Node) -> bool:
    """Whether the device does this argsort itself."""
    x = node.src[0]
    wanted = kernel.Sort(x.dtype, math.prod(x.shape[:-1]), x.shape[-1], node.arg)
    return node.dtype is dtypes.int32 and _own_sort(wanted, active) is not None


def _run_eagerly(made: kernel.Kernel, active: plugins.Active, buffers: Sequence[Any]) -> None:
    emit.emit(made, active.backend, active.hooks, active.device.limits, buffers)


def _plan_frees(
    steps: Sequence[Step],
    base: int,
    kept: set[int | None],
    parts: Mapping[int, tuple[int, int]],
) -> None:
    """Let every step name the temporaries that no later step reads."""
    seen: set[int] = set()
    for step in reversed(steps):
        for slot in _with_owners(step.operands, parts):
            if slot >= base and slot not in kept and slot not in seen:
                step.frees.append(slot)
            seen.add(slot)


def _with_owners(slots: Sequence[int], parts: Mapping[int, tuple[int, int]]) -> list[int]:
    """The slots, and those that they lie inside."""
    return [*slots, *(parts[slot][0] for slot in slots if slot in parts)]


def _donors(
    tasks: Sequence[Task],
    steps: Sequence[Step],
    results: Sequence[int],
    leaves: int,
    parts: Mapping[int, tuple[int, int]],
    active: Any,
) -> dict[int, list[int]]:
    """For each large result the leaves whose memory its kernel could write it to, being the last to
    read them.

    None where indices are checked: an index out of range must leave everything as it was.
    """
    may_overwrite = getattr(active.device, "may_overwrite", None)
    used = [_with_owners(step.operands, parts) for step in steps]
    last = {slot: number for number, slots in enumerate(used) for slot in slots}
    out: dict[int, list[int]] = {}
    for number, (task, step) in enumerate(zip(tasks, steps, strict=True)):
        if may_overwrite is None or step.eager or not may_overwrite(step.compiled):
            continue
        slots = dict(zip(task.kernel.params, step.operands, strict=False))  # a sort has one more
        for param, inputs in inplace.overwritable(task.kernel).items():
            able = [
                slots[p]
                for p in inputs
                if slots[p] < leaves
                and last[slots[p]] == number
                and used[number].count(slots[p]) == 1
                and slots[p] not in results
            ]
            large = param.size * param.dtype.itemsize >= WORTH_ASKING
            if able and large and slots[param] in results:
                out[slots[param]] = able
    return out


def _print(text: str) -> None:
    sys.stderr.write(text + "\n")
