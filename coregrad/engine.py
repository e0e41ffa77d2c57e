"""realize: from graph nodes to values in a device's memory. The only owner of buffers.

An expression is looked up by its structure first: nodes in walk order, leaves numbered, float
constants left open. Only a structure never seen before is simplified, scheduled, lowered and
compiled; otherwise its kernels are launched on new buffers at once.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

import numpy as np

from coregrad import config, dtypes, plugins
from coregrad.dtypes import DType
from coregrad.errors import IndexRangeError, UnsupportedOp
from coregrad.ir import build, emit, graph, kernel, legalize, loops, ops, simplify, split, verify
from coregrad.ir.graph import Node
from coregrad.ir.schedule import Task, schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

PLANS = 4096  # structures whose kernels are kept; the oldest goes first
KEPT = frozenset((0.0, 1.0, -1.0, 0.5, 2.0))  # float constants that stay in the code


class Storage:
    """Bytes in a device's memory; given back when nobody holds it."""

    __slots__ = ("__weakref__", "_copies", "_device", "device", "nbytes", "raw")

    def __init__(self, device: str, nbytes: int):
        self.device = device
        self.nbytes = nbytes
        self._device = plugins.open_device(device).device
        self.raw = self._device.allocate(nbytes) if nbytes else None
        self._copies: dict[str, Storage] = {}

    def on(self, device: str) -> Storage:
        """These bytes in the memory of ``device``.

        A node without leaves (``arange(5) * 2``) is one node for the tensors of all devices: what
        one device has computed, a tensor of another may read.
        """
        if device == self.device:
            return self
        if device not in self._copies:
            made = self._copies[device] = Storage(device, self.nbytes)
            if self.nbytes:
                content = bytearray(self.nbytes)
                self._device.copy_out(self.raw, memoryview(content))
                made._device.copy_in(made.raw, memoryview(content))
        return self._copies[device]

    def __del__(self) -> None:
        if getattr(self, "raw", None) is not None:
            self._device.free(self.raw)

    def __repr__(self) -> str:
        return f"<{self.nbytes} bytes on {self.device}>"


class Owner(Protocol):
    """A tensor, as far as the engine knows it: a name for a node on a device."""

    @property
    def node(self) -> Node:
        """The graph node that is its value now."""

    @property
    def device(self) -> str:
        """The canonical name of its device."""


_lock = threading.RLock()
_plans: dict[tuple[Any, ...], _Entry] = {}
_owners: list[
    ref[Owner]
] = []  # tensors that may be waiting to be computed; dead ones are swept out
_swept = 0
launches: list[str] | None = None  # a list here records the name of every kernel launched


if hasattr(os, "register_at_fork"):
    # A fork waits until no thread computes: what a compiler had locked would stay so in the child.
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


# ---- what the user level calls -----------------------------------------------------------------


def watch(owner: Owner) -> None:
    """Compute this tensor too when something is realised that shares work with it."""
    _owners.append(ref(owner))
    if len(_owners) > _swept * 2 + 4096:
        with _lock:
            _waiting()


def _waiting() -> list[Owner]:
    """The watched tensors that are alive and not computed yet."""
    global _swept
    alive = [
        (r, owner) for r in _owners if (owner := r()) is not None and owner.node.buffer is None
    ]
    _owners[:] = [r for r, _ in alive]
    _swept = len(alive)
    return [owner for _, owner in alive]


def resolve(node: Node) -> Node:
    """The node without markers; its buffer, if it has been computed."""
    while node.buffer is None and node.op in ops.MARKERS:
        node = node.src[0]
    return node.buffer or node


def realize(nodes: Sequence[Node], device: str) -> None:
    """Compute ``nodes`` on ``device``; afterwards each has its ``buffer``.

    Raises IndexRangeError for an index out of range, and then computes nothing.
    """
    with _lock:
        wanted = [n for n in nodes if resolve(n).op is not ops.BUFFER]
        if wanted:
            _compute(wanted, device)
        for node in nodes:
            _settle(node)


def read(node: Node, device: str) -> NDArray[Any]:
    """The values of ``node`` as a fresh array of its stored dtype (bfloat16 as uint16)."""
    realize([node], device)
    storage = resolve(node).arg.on(device)
    out = np.empty(node.shape, node.dtype.storage)
    if out.size:
        plugins.open_device(device).device.copy_out(storage.raw, _bytes(out))
    return out


def from_host(array: NDArray[Any], dtype: DType, device: str) -> Node:
    """A node holding a copy of ``array``, whose NumPy dtype is the stored one of ``dtype``."""
    active = plugins.open_device(device)
    if dtype not in active.device.limits.dtypes:
        raise UnsupportedOp(
            f"{device} has no {dtype.name}; it has "
            f"{', '.join(d.name for d in dtypes.ALL if d in active.device.limits.dtypes)}"
        )
    data = np.ascontiguousarray(array, dtype.storage)
    storage = Storage(device, data.nbytes)
    if data.nbytes:
        active.device.copy_in(storage.raw, _bytes(data))
    return build.buffer(storage, dtype, array.shape)


def _bytes(array: NDArray[Any]) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


# ---- markers, copies, companions ---------------------------------------------------------------


def _settle(node: Node) -> None:
    """Let every marker over a computed node have its buffer, and forget what none needs again."""
    done = resolve(node)
    while node.buffer is None and node is not done:
        node.buffer = done
        inner = node.src[0]
        if node.op is ops.DETACH:  # no gradient passes: what is beneath will not be asked for
            graph.forget_sources(node)
        node = inner


_SPECIAL = frozenset((ops.BUFFER, ops.CONST, ops.CHECK, ops.COPY))


class _Expression:
    """The nodes under some roots that are still to be computed, and the key of their structure.

    Markers are left out: a node's sources here are what its sources resolve to. What may differ
    between expressions of one structure is kept beside the key: leaves, open constants, checks.
    """

    def __init__(self, device: str):
        self.order: list[Node] = []
        self.number: dict[Node, int] = {}
        self.sources: dict[Node, list[Node]] = {}
        self.leaves: dict[Any, int] = {}  # storages, each with its number
        self.floats: list[Node] = []
        self.checks: list[Node] = []
        self.copies: list[Node] = []
        self.key: list[Any] = [device, config.get("COREGRAD_FUSION")]

    def add(self, roots: Iterable[Node]) -> None:
        """Walk on from more (resolved) roots, sources before users, and describe each node."""
        number, sources, order, key = self.number, self.sources, self.order, self.key
        special, markers = _SPECIAL, ops.MARKERS
        stack = list(roots)
        while stack:
            node = stack[-1]
            if node in number:
                stack.pop()
                continue
            found = sources.get(node)
            if found is None and node.src:
                found = sources[node] = [
                    s if s.buffer is None and s.op not in markers else resolve(s) for s in node.src
                ]
                missing = [s for s in found if s not in number]
                if missing:
                    stack += missing
                    continue
            stack.pop()
            number[node] = len(order)
            order.append(node)
            arg = self._open(node) if node.op in special else node.arg
            key.append((node.op, arg, node.dtype, node.shape))
            if found:
                key += [number[s] for s in found]

    def _open(self, node: Node) -> Any:
        """Keep what may differ between expressions of one structure; what stands for it instead."""
        op, arg = node.op, node.arg
        if op is ops.BUFFER:
            return self.leaves.setdefault(arg, len(self.leaves))
        if op is ops.CONST:
            if node.dtype.is_float and _is_open(node):
                self.floats.append(node)
                return None
        elif op is ops.CHECK:
            self.checks.append(node)
            return arg[0]  # not where it was made
        elif op is ops.COPY:
            self.copies.append(node)
        return arg

    def finish(self, roots: Sequence[Node]) -> tuple[Any, ...]:
        """The key of the whole expression with these results."""
        return (*self.key, tuple(self.number[r] for r in roots))

    def sources_of(self, node: Node) -> Sequence[Node]:
        """The resolved sources of a node of the expression."""
        return self.sources.get(node, ())


def _transfer(copies: Iterable[Node]) -> None:
    """Carry out copies between devices, lowest first."""
    for node in copies:
        if node.buffer is None:
            source, target = node.arg
            node.buffer = from_host(read(node.src[0], source), node.dtype, target)


def _companions(expression: _Expression, roots: Sequence[Node], device: str) -> list[Owner]:
    """Live tensors still to be computed that share work with the expression.

    One outside it is taken along for any reduction that both need. One inside it, the row maximum
    of a softmax, say, would break the kernel that computes it in passing: it is taken along only if
    a matrix product or the like would have to be done again for it.
    """
    asked = set(roots)
    no_sum: set[Node] = set()
    no_product: set[Node] = set()
    found = []
    for owner in _waiting():
        root = resolve(owner.node)
        if root in asked or owner.device != device:
            continue
        if root in expression.number:
            wanted = _has_work(root, expression, _is_dear, no_product)
        else:
            wanted = _shares(root, expression, no_sum)
        if wanted:
            found.append(owner)
    return found


def _is_work(node: Node, expression: _Expression) -> bool:
    return node.op in (ops.REDUCE, ops.FOLD, ops.SCATTER)


def _is_dear(node: Node, expression: _Expression) -> bool:
    """Whether a node is a sum over products of repeated operands, a fold or a scatter."""
    if node.op is not ops.REDUCE or node.arg[0] != "add":
        return node.op in (ops.FOLD, ops.SCATTER)
    (product,) = expression.sources_of(node)
    factors = expression.sources_of(product)
    return product.op is ops.MUL and all(f.op is ops.EXPAND for f in factors)


def _shares(root: Node, expression: _Expression, barren: set[Node]) -> bool:
    """Whether a node uses a part of the expression that is worth sharing."""
    stack, seen = [root], {root}
    while stack:
        node = stack.pop()
        if node in expression.number:
            if _has_work(node, expression, _is_work, barren):
                return True
        elif node.op is ops.COPY:
            return False
        elif node.op is not ops.BUFFER:
            for source in map(resolve, node.src):
                if source not in seen:
                    seen.add(source)
                    stack.append(source)
    return False


def _has_work(
    root: Node,
    expression: _Expression,
    is_work: Callable[[Node, _Expression], bool],
    barren: set[Node],
) -> bool:
    """Whether such work stands in or under a node of the expression; where none does is kept."""
    stack, seen = [root], {root}
    while stack:
        node = stack.pop()
        if is_work(node, expression):
            return True
        for source in expression.sources_of(node):
            if source not in seen and source not in barren:
                seen.add(source)
                stack.append(source)
    barren |= seen
    return False


# ---- plans -------------------------------------------------------------------------------------


@dataclass(eq=False)
class Step:
    """One launch: what to launch, and where each argument comes from."""

    kernel: kernel.Kernel
    compiled: Any
    operands: list[int]  # slots
    frees: list[int] = field(default_factory=list)  # slots not needed afterwards
    work: int = 0
    moved: int = 0


@dataclass(eq=False)
class Plan:
    """The compiled form of a structure. Slots: leaves, then float blocks, then temporaries."""

    steps: list[Step]
    sizes: list[int]  # bytes of each temporary
    blocks: list[DType]  # dtypes of the float blocks
    results: list[int]  # the slot of each root
    error: int | None  # the slot of the error word


@dataclass(eq=False)
class _Entry:
    floats: tuple[float, ...]
    baked: Plan
    general: Plan | None = None


def _is_open(node: Node) -> bool:
    value = dtypes.from_bits(node.arg, node.dtype)
    return value not in KEPT and math.isfinite(value)


def _compute(nodes: Sequence[Node], device: str) -> None:
    roots = list(dict.fromkeys(resolve(n) for n in nodes))
    expression = _Expression(device)
    expression.add(roots)
    if expression.copies:
        _transfer(expression.copies)
        realize(nodes, device)  # copies have buffers now: look again
        return
    companions = _companions(expression, roots, device)
    if companions:
        roots = list(dict.fromkeys([*roots, *(resolve(o.node) for o in companions)]))
        expression.add(roots)
    key = expression.finish(roots)
    values = tuple(node.arg for node in expression.floats)
    entry = _plans.get(key)
    if entry is None:
        baked = _compile(expression, roots, device, open_floats=False)
        entry = _plans[key] = _Entry(values, baked)
        if len(_plans) > PLANS:
            del _plans[next(iter(_plans))]
    plan = entry.baked
    if values != entry.floats:
        if entry.general is None:
            entry.general = _compile(expression, roots, device, open_floats=True)
        plan = entry.general
    _run(plan, expression, roots, device)
    for owner in companions:
        _settle(owner.node)


def _compile(
    expression: _Expression, roots: Sequence[Node], device: str, open_floats: bool
) -> Plan:
    """Simplify, schedule, lower and compile an expression, whose leaves become slots."""
    active = plugins.open_device(device)
    limits = active.device.limits
    made: dict[Node, Node] = {}
    slots: dict[Any, int] = {}
    tokens: dict[int, _Slot] = {}
    blocks: list[DType] = []
    opened = _open_blocks(expression, blocks, slots, len(expression.leaves)) if open_floats else {}
    for node in expression.order:
        if 0 in node.shape:
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
            made[node] = graph.intern(node.op, src, node.arg, node.dtype, node.shape)
        if math.prod(node.shape) == 0:  # no memory: not even an empty buffer can be an argument
            made[node] = build.const(0, node.dtype, node.shape)
    targets = split.split(simplify.simplify([made[r] for r in roots]))
    verify.verify_graph(targets)
    checks = _check_numbers(expression, targets)
    if config.debug() >= 5:
        _print(graph.show(targets))
    viewed = [_unviewed(t) for t in targets]
    stored = [t for t in viewed if t.op is not ops.BUFFER and 0 not in t.shape]
    tasks = schedule(
        list(dict.fromkeys(stored)), limits, checks, config.get("COREGRAD_FUSION") != "0"
    )
    if config.debug() >= 5:
        for task in tasks:
            _print(f"{task.kernel.name}: {task.outputs} from {task.sources}")
    first = len(expression.leaves) + len(blocks)
    return _assemble(tasks, targets, slots, first, blocks, active)


class _Slot:
    """Stands for a leaf of the expression while it is compiled."""

    __slots__ = ("number",)

    def __init__(self, number: int):
        self.number = number

    def __repr__(self) -> str:
        return f"leaf {self.number}"


def _open_blocks(
    expression: _Expression, blocks: list[DType], slots: dict[Any, int], first: int
) -> dict[Node, Node]:
    """Open constants as elements of one small buffer per dtype."""
    out: dict[Node, Node] = {}
    for dtype in dict.fromkeys(node.dtype for node in expression.floats):
        members = [node for node in expression.floats if node.dtype is dtype]
        token = _Slot(first + len(blocks))
        slots[token] = token.number
        blocks.append(dtype)
        block = build.buffer(token, dtype, (len(members),))
        for i, node in enumerate(members):
            one = build.shrink(block, ((i, i + 1),))
            flat = build.reshape(one, (1,) * len(node.shape))
            out[node] = build.expand(flat, node.shape)
    return out


def _check_numbers(expression: _Expression, targets: Sequence[Node]) -> dict[Node, int]:
    """The number a kernel reports for each index check: its place in the walk, from 1."""
    places = {node.arg: i + 1 for i, node in enumerate(expression.checks)}
    return {n: places[n.arg] for n in graph.toposort(targets) if n.op is ops.CHECK}


def _unviewed(node: Node) -> Node:
    """The node whose buffer this one can simply share."""
    while node.op is ops.RESHAPE:
        node = node.src[0]
    return node


def _assemble(
    tasks: Sequence[Task],
    targets: Sequence[Node],
    slots: dict[Any, int],
    base: int,
    blocks: list[DType],
    active: plugins.Active,
) -> Plan:
    place: dict[Node, int] = {}
    sizes: list[int] = []
    error: int | None = None
    steps: list[Step] = []

    def slot(node: Node) -> int:
        if node.op is ops.BUFFER:
            return slots[node.arg]
        if node not in place:
            place[node] = base + len(sizes)
            sizes.append(math.prod(node.shape) * node.dtype.itemsize)
        return place[node]

    for task in tasks:
        if task.initial is not None:
            place[task.outputs[0]] = slot(task.initial)
        sources = iter(task.sources)
        outputs = iter(task.outputs)
        operands = []
        for param in task.kernel.params:
            if param.role == "error":
                if error is None:
                    error = base + len(sizes)
                    sizes.append(param.dtype.itemsize)
                operands.append(error)
            else:
                operands.append(slot(next(sources if param.role == "in" else outputs)))
        steps.append(_step(task.kernel, operands, active))
    results = [slot(_unviewed(t)) if math.prod(t.shape) else -1 for t in targets]
    _plan_frees(steps, base, {*results, error})
    return Plan(steps, sizes, blocks, results, error)


def _step(made: kernel.Kernel, operands: list[int], active: plugins.Active) -> Step:
    limits = active.device.limits
    made = legalize.legalize(made, active.hooks, limits)
    verify.verify_kernel(made)
    if config.debug() >= 3:
        _print(str(made))
    work = loops.float_operations(made.body)
    moved = sum(p.size * p.dtype.itemsize for p in made.params)
    if active.hooks.style == "eager":
        return Step(made, made, operands, work=work, moved=moved)
    program = emit.emit(made, active.backend, active.hooks, limits)
    debug = config.debug()
    if debug >= 4:
        _print(str(program))
    assembly = getattr(active.device, "assembly", None)  # optional: not every compiler can tell
    if debug >= 6 and assembly is not None:
        _print(assembly(program))
    return Step(made, active.device.compile(program), operands, work=work, moved=moved)


def _plan_frees(steps: Sequence[Step], base: int, kept: set[int | None]) -> None:
    """Let every step name the temporaries that no later step reads."""
    seen: set[int] = set()
    for step in reversed(steps):
        for slot in step.operands:
            if slot >= base and slot not in kept and slot not in seen:
                step.frees.append(slot)
            seen.add(slot)


# ---- running -----------------------------------------------------------------------------------


def _run(plan: Plan, expression: _Expression, roots: Sequence[Node], device: str) -> None:
    active = plugins.open_device(device)
    held: list[Storage | None] = [leaf.on(device) for leaf in expression.leaves]
    for dtype in plan.blocks:
        members = [node.arg for node in expression.floats if node.dtype is dtype]
        held.append(
            from_host(np.array(members, f"uint{dtype.bits}").view(dtype.storage), dtype, device).arg
        )
    base = len(held)
    held += [None] * len(plan.sizes)
    if plan.error is not None:
        word = held[plan.error] = Storage(device, 4)
        active.device.copy_in(word.raw, _bytes(np.zeros(1, np.int32)))
    debug = config.debug()
    for step in plan.steps:
        buffers = []
        for slot in step.operands:
            storage = held[slot]
            if storage is None:
                storage = held[slot] = Storage(device, plan.sizes[slot - base])
            buffers.append(storage.raw)
        _launch(step, buffers, active, debug)
        for slot in step.frees:
            held[slot] = None
    if plan.error is not None:
        _raise_index_errors(held[plan.error], expression, active)
    for root, slot in zip(roots, plan.results, strict=True):
        storage = held[slot] if slot >= 0 else Storage(device, 0)
        root.buffer = build.buffer(storage, root.dtype, root.shape)
    if debug >= 1:
        _print(f"{device}: {len(plan.steps)} kernels for {len(roots)} results")


def _launch(step: Step, buffers: list[Any], active: plugins.Active, debug: int) -> None:
    if launches is not None:
        launches.append(step.kernel.name)
    start = time.perf_counter() if debug >= 2 else 0.0
    if active.hooks.style == "eager":
        emit.emit(step.kernel, active.backend, active.hooks, active.device.limits, buffers)
    else:
        active.device.launch(step.compiled, buffers, step.kernel.grid)
    if debug >= 2:
        active.device.synchronize()
        took = max(time.perf_counter() - start, 1e-9)
        _print(
            f"{active.name:8} {step.kernel.name:32} {took * 1e6:10.1f} us "
            f"{step.work / took / 1e9:8.2f} GFLOP/s {step.moved / took / 1e9:8.2f} GB/s"
        )


def _raise_index_errors(
    word: Storage | None, expression: _Expression, active: plugins.Active
) -> None:
    assert word is not None
    out = np.zeros(1, np.int32)
    active.device.copy_out(word.raw, _bytes(out))
    if out[0]:
        length, made = expression.checks[int(out[0]) - 1].arg
        raise IndexRangeError(
            f"index: a value is outside [-{length}, {length}) for an axis of {length} elements; "
            f"the index was used at {made}"
        )


def _print(text: str) -> None:
    sys.stderr.write(text + "\n")
