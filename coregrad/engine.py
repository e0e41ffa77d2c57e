"""realize: from graph nodes to values in a device's memory. The only owner of buffers.

An expression is looked up by its structure first: nodes in walk order, leaves numbered, float
constants and numbers left open. Only a structure never seen before is simplified, scheduled,
lowered and compiled; otherwise its kernels are launched on new buffers at once.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

import numpy as np

from coregrad import config, dtypes, holders, plugins
from coregrad.dtypes import DType
from coregrad.errors import CaptureError, IndexRangeError, UnsupportedOp
from coregrad.expression import Expression, resolve
from coregrad.ir import build, graph, ops
from coregrad.ir.formula import Hole
from coregrad.ir.graph import Node

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coregrad.plan import Plan, Step

__all__ = ["Owner", "Storage", "from_host", "launches", "read", "realize", "resolve", "watch"]

PLANS = 4096  # structures whose kernels are kept; the oldest goes first
BLOCKS = 64  # blocks of numbers that are kept: those of a short loop that runs again


class Storage:
    """Bytes in a device's memory; given back when nobody holds it."""

    __slots__ = ("__weakref__", "_copies", "_device", "_owner", "device", "nbytes", "raw")

    def __init__(self, active: plugins.Active, nbytes: int):
        self.raw: Any = None  # also if there is no memory left
        self._owner: Storage | None = None
        self._copies: dict[str, Storage] | None = None
        self._device = active.device
        self.device = active.name
        self.nbytes = nbytes
        if nbytes:
            self.raw = active.device.allocate(nbytes)

    @classmethod
    def part_of(cls, owner: Storage, start: int, nbytes: int) -> Storage:
        """Bytes of another storage, which stays as long as they do."""
        made = cls.__new__(cls)
        made.device, made.nbytes, made._device = owner.device, nbytes, owner._device
        made._copies, made._owner = None, owner
        made.raw = owner._device.part(owner.raw, start, nbytes)  # type: ignore[attr-defined]
        return made

    @classmethod
    def taken_from(cls, other: Storage) -> Storage:
        """The memory of another storage, which nobody may use any more."""
        made = cls.__new__(cls)
        made.device, made.nbytes, made._device = other.device, other.nbytes, other._device
        made.raw, other.raw = other.raw, None
        made._copies = made._owner = None
        return made

    def on(self, device: str) -> Storage:
        """These bytes in the memory of ``device``.

        A node without leaves (``arange(5) * 2``) is one node for the tensors of all devices: what
        one device has computed, a tensor of another may read.
        """
        if device == self.device:
            return self
        if self._copies is None:
            self._copies = {}
        if device not in self._copies:
            made = self._copies[device] = Storage(plugins.open_device(device), self.nbytes)
            if self.nbytes:
                content = bytearray(self.nbytes)
                self._device.copy_out(self.raw, memoryview(content))
                made._device.copy_in(made.raw, memoryview(content))
        return self._copies[device]

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._owner is None and self.raw is not None and not is_ending():
            self._device.free(self.raw)  # at the end of the process all memory goes by itself

    def __repr__(self) -> str:
        return f"<{self.nbytes} bytes on {self.device}>"


class Owner(Protocol):
    """A tensor, as far as the engine knows it: a name for a node on a device."""

    @property
    def node(self) -> Node:
        """The graph node that is its value now."""

    @property
    def unreported(self) -> Node:
        """The same, looked at by the engine: a function that is being captured does not use it."""

    @property
    def device(self) -> str:
        """The canonical name of its device."""


lock = threading.RLock()
_plans: dict[tuple[Any, ...], _Entry] = {}
_blocks: dict[tuple[str, DType, tuple[int, ...]], Storage] = {}
_owners: list[
    ref[Owner]
] = []  # tensors that may be waiting to be computed; dead ones are swept out
_swept = 0
launches: list[str] | None = None  # a list here records the name of every kernel launched


if hasattr(os, "register_at_fork"):
    # A fork waits until no thread computes: what a compiler had locked would stay so in the child.
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )


# ---- what the user level calls -----------------------------------------------------------------


def watch(owner: Owner) -> None:
    """Compute this tensor too when something is realised that shares work with it."""
    _owners.append(ref(owner))
    if len(_owners) > _swept * 2 + 4096:
        with lock:
            _waiting()


def _waiting() -> list[tuple[Owner, Node]]:
    """The watched tensors that are alive and not computed yet, each once and with the node to be
    computed for it; others are forgotten."""
    global _swept
    waiting: dict[int, tuple[ref[Owner], Owner, Node]] = {}
    for reference in _owners:
        owner = reference()
        if owner is not None:
            root = resolve(owner.unreported)
            if root.op is not ops.BUFFER:
                waiting[id(owner)] = reference, owner, root
    _owners[:] = [reference for reference, _, _ in waiting.values()]
    _swept = len(_owners)
    return [(owner, root) for _, owner, root in waiting.values()]


def realize(nodes: Sequence[Node], device: str) -> None:
    """Compute ``nodes`` on ``device``; afterwards each has its ``buffer``.

    Raises IndexRangeError for an index out of range, and then computes nothing.
    """
    with lock:
        wanted = [n for n in nodes if resolve(n).op is not ops.BUFFER]
        if wanted:
            _compute(wanted, device)
        for node in nodes:
            if node.buffer is None:
                _settle(node)


def _known(leaves: Iterable[Any]) -> None:
    """A value that stands for an argument of a captured function has no bytes."""
    for leaf in leaves:
        if isinstance(leaf, Hole):
            raise CaptureError(
                "jit: the function looks at a value while it is captured, which no replay could "
                "repeat; return the tensor and look at it outside, or use where() to choose"
            )


def read(node: Node, device: str) -> NDArray[Any]:
    """The values of ``node`` as a fresh array of its stored dtype (bfloat16 as uint16)."""
    out = np.empty(node.shape, node.dtype.storage)
    with lock:
        realize([node], device)
        _known([resolve(node).arg])
        storage = resolve(node).arg.on(device)
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
    with lock:
        storage = Storage(active, data.nbytes)
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


def _transfer(copies: Iterable[Node]) -> None:
    """Carry out copies between devices, lowest first."""
    for node in copies:
        if node.buffer is None:
            source, target = node.arg
            node.buffer = from_host(read(node.src[0], source), node.dtype, target)


def _companions(expression: Expression, roots: Sequence[Node], device: str) -> list[Owner]:
    """Live tensors still to be computed that share work with the expression.

    One outside it is taken along for any reduction that both need. One inside it, the row maximum
    of a softmax, say, would break the kernel that computes it in passing: it is taken along only if
    a matrix product or the like would have to be done again for it.
    """
    asked = set(roots)
    others = [(o, root) for o, root in _waiting() if root not in asked and o.device == device]
    if not others or not any(map(_is_work, expression.order)):
        return []
    no_sum: set[Node] = set()
    no_product: set[Node] = set()
    apart: set[Node] = set()
    found = []
    for owner, root in others:
        if root in expression.number:
            wanted = _has_work(root, expression, _is_dear, no_product)
        else:
            wanted = _shares(root, expression, no_sum, apart)
        if wanted:
            found.append(owner)
    return found


def _is_work(node: Node) -> bool:
    if node.op is ops.CALL:
        return bool(node.arg.has(_is_work))
    return node.op in (ops.REDUCE, ops.FOLD, ops.SCATTER, ops.ARGSORT)


def _is_dear(node: Node) -> bool:
    """Whether a node is a sum over products of repeated operands, a fold, a scatter or a sort."""
    if node.op is ops.CALL:
        return bool(node.arg.has(_is_dear))
    if node.op is not ops.REDUCE or node.arg[0] != "add":
        return node.op in (ops.FOLD, ops.SCATTER, ops.ARGSORT)
    product = resolve(node.src[0])
    return product.op is ops.MUL and all(resolve(f).op is ops.EXPAND for f in product.src)


def _shares(root: Node, expression: Expression, barren: set[Node], apart: set[Node]) -> bool:
    """Whether a node uses a part of the expression that is worth sharing; what stands ``apart``
    from it is kept, or each of the states of a long loop would be walked down to the first."""
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
                if source not in seen and source not in apart:
                    seen.add(source)
                    stack.append(source)
    apart |= seen
    return False


def _has_work(
    root: Node,
    expression: Expression,
    is_work: Callable[[Node], bool],
    barren: set[Node],
) -> bool:
    """Whether such work stands in or under a node of the expression; where none does is kept."""
    stack, seen = [root], {root}
    while stack:
        node = stack.pop()
        if is_work(node):
            return True
        for source in expression.sources_of(node):
            if source not in seen and source not in barren:
                seen.add(source)
                stack.append(source)
    barren |= seen
    return False


# ---- plans -------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Entry:
    floats: tuple[float, ...]
    baked: Plan
    general: Plan | None = None


def _compile(expression: Expression, roots: Sequence[Node], device: str, open_floats: bool) -> Plan:
    """The compiler is loaded when there is something to compile, not by ``import coregrad``."""
    planner = importlib.import_module("coregrad.planner")
    plan: Plan = planner.compile_expression(expression, roots, device, open_floats)
    return plan


def _compute(nodes: Sequence[Node], device: str) -> None:
    roots = list(dict.fromkeys(map(resolve, nodes)))
    expression = Expression(device)
    expression.add(roots)
    companions = [] if expression.copies else _companions(expression, roots, device)
    if companions:
        roots = list(dict.fromkeys([*roots, *(resolve(o.node) for o in companions)]))
        expression.add(roots)
    if expression.copies:
        _transfer(expression.copies)
        realize(nodes, device)  # copies have buffers now: look again
        return
    _known(expression.leaves)
    plan, blocks = planned(expression, roots, device)
    spare: frozenset[int] = frozenset()
    if plan.donors:
        tops = [*nodes, *(owner.node for owner in companions)]
        spare = holders.spare_leaves(tops, roots, expression)
    _run(plan, blocks, expression, roots, device, spare)
    for owner in companions:
        _settle(owner.node)


def planned(
    expression: Expression, roots: Sequence[Node], device: str
) -> tuple[Plan, list[Storage]]:
    """The plan for an expression, known or made now, and the blocks of numbers that it reads."""
    key = expression.finish(roots)
    values = tuple([node.arg for node in expression.floats])
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
    if len(plan.stored) < len(plan.tables):
        plan.stored = [_in_memory(t.numbers, t.dtype, device) for t in plan.tables]
    return plan, [_block(expression, dtype, device) for dtype in plan.blocks] + plan.stored


def _block(expression: Expression, dtype: DType, device: str) -> Storage:
    """The numbers (or open constants) of a dtype in a device's memory, in walk order. No kernel
    writes to a block, so that one may serve many launches."""
    if dtype.is_float:
        bits = tuple(node.arg for node in expression.floats if node.dtype is dtype)
    else:
        bits = tuple(node.arg[0] for node in expression.numbers if node.dtype is dtype)
    key = device, dtype, bits
    found = _blocks.get(key)
    if found is None or found._device is not plugins.open_device(device).device:
        found = _blocks[key] = _in_memory(bits, dtype, device)
        if len(_blocks) > BLOCKS:
            del _blocks[next(iter(_blocks))]
    return found


def _in_memory(bits: Sequence[int], dtype: DType, device: str) -> Storage:
    words = np.array(bits, f"uint{dtype.bits}")
    made = Storage(plugins.open_device(device), words.nbytes)
    made._device.copy_in(made.raw, _bytes(words))
    return made


# ---- running -----------------------------------------------------------------------------------


def _run(
    plan: Plan,
    blocks: Sequence[Storage],
    expression: Expression,
    roots: Sequence[Node],
    device: str,
    spare: frozenset[int],
) -> None:
    active = plugins.open_device(device)
    donors = donations(plan, spare) if spare else {}
    held: list[Storage | None] = [leaf.on(device) for leaf in expression.leaves]
    held += blocks
    base = len(held)
    held += [None] * len(plan.sizes)
    if plan.error is not None:
        clear_error(plan, held, active)
    debug = config.debug()
    for step in plan.steps:
        buffers = []
        for slot in step.operands:
            storage = held[slot]
            if storage is None:
                if slot in donors:
                    storage = take_over(held, slot, donors[slot])
                elif slot in plan.parts:
                    storage = _part(plan, held, slot, base, active)
                else:
                    storage = held[slot] = Storage(active, plan.sizes[slot - base])
            buffers.append(storage.raw)
        launch(step, buffers, active, debug)
        for slot in step.frees:
            held[slot] = None
    if plan.error is not None:
        raise_index_errors(plan, held, expression, active)
    for root, slot in zip(roots, plan.results, strict=True):
        storage = held[slot] if slot >= 0 else Storage(active, 0)
        root.buffer = build.buffer(storage, root.dtype, root.shape)
    if debug >= 1:
        _print(f"{device}: {len(plan.steps)} kernels for {len(roots)} results")


def _part(
    plan: Plan, held: list[Storage | None], slot: int, base: int, active: plugins.Active
) -> Storage:
    """The storage of a slot inside another one."""
    owner, start = plan.parts[slot]
    whole = held[owner]
    if whole is None:
        whole = held[owner] = Storage(active, plan.sizes[owner - base])
    made = held[slot] = Storage.part_of(whole, start, plan.sizes[slot - base])
    return made


def donations(plan: Plan, spare: frozenset[int]) -> dict[int, int]:
    """Which leaf's memory each result takes over, of the leaves that nobody needs any more."""
    left = set(spare)
    out: dict[int, int] = {}
    for slot, leaves in plan.donors.items():
        found = next((leaf for leaf in leaves if leaf in left), None)
        if found is not None:
            out[slot] = found
            left.remove(found)
    return out


def take_over(held: list[Storage | None], slot: int, leaf: int) -> Storage:
    """Let a result have the memory of a leaf; its kernel reads the leaf from there."""
    donor = held[leaf]
    assert donor is not None
    made = held[slot] = held[leaf] = Storage.taken_from(donor)
    return made


def launch(step: Step, buffers: list[Any], active: plugins.Active, debug: int) -> None:
    """Start one kernel of a plan; with DEBUG=2, time it."""
    if launches is not None:
        launches.append(step.name)
    start = time.perf_counter() if debug >= 2 else 0.0
    if step.eager:
        step.compiled(buffers)
    else:
        active.device.launch(step.compiled, buffers, step.grid)
    if debug >= 2:
        active.device.synchronize()
        clock = getattr(active.device, "elapsed", None)  # optional: not every device has a clock
        told = None if clock is None or step.eager else clock()
        took = max(time.perf_counter() - start if told is None else told, 1e-9)
        _print(
            f"{active.name:8} {step.name:32} {took * 1e6:10.1f} us "
            f"{step.work / took / 1e9:8.2f} GFLOP/s {step.moved / took / 1e9:8.2f} GB/s"
        )


def clear_error(plan: Plan, held: list[Storage | None], active: plugins.Active) -> None:
    """Give a plan that checks indices an error word, which is 0."""
    assert plan.error is not None
    word = held[plan.error] = Storage(active, 4)
    active.device.copy_in(word.raw, _bytes(np.zeros(1, np.int32)))


def raise_index_errors(
    plan: Plan, held: Sequence[Storage | None], expression: Expression, active: plugins.Active
) -> None:
    """Raise IndexRangeError for what a kernel of a plan that checks indices reported."""
    assert plan.error is not None
    word = held[plan.error]
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
