"""The tensor level: an immutable graph of interned nodes; it knows no device, computes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar
from weakref import ref

from coregrad.dtypes import DType
from coregrad.ir.ops import OPS, Op

Shape = tuple[int, ...]
T = TypeVar("T")


class Node:
    """One operation on whole tensors. Build nodes with :mod:`coregrad.ir.build`, which checks them.

    Pure nodes are interned: the same op on the same sources is the same object, so equality is
    identity. Nodes with an identity of their own (buffer, leaf, custom) carry it in ``arg``.
    ``buffer`` is set once by the engine, when the value has been computed: a buffer node.
    ``head`` is a number for op, argument, dtype and shape together (the argument left out where it
    is an identity, a place or a constant): what nodes of one structure have in common.
    """

    __slots__ = ("__weakref__", "arg", "buffer", "dtype", "head", "op", "shape", "src")

    op: Op
    src: tuple[Node, ...]
    arg: Any
    dtype: DType
    shape: Shape
    head: int
    buffer: Node | None

    def __repr__(self) -> str:
        return f"<{self.op} {self.dtype.name}{list(self.shape)}>"


_interned: dict[tuple[Any, ...], ref[Node]] = {}
# Arguments that are compared by identity: the keys of these nodes name them as they name sources,
# and hold on to neither.
_BY_IDENTITY = frozenset((OPS["buffer"], OPS["leaf"]))
# What the arguments of these hold on to (tensors) must go when the node goes; the keys of others
# may stay until the next sweep.
_OWN = frozenset((OPS["custom"], OPS["contiguous"]))
# Not part of the head.
_ARGUMENT_APART = _OWN | {OPS[name] for name in ("const", "check", "copy", "number")}
_heads: dict[tuple[Any, ...], int] = {}
_numbers = itertools.count()
HEADS = 1 << 16  # heads that are kept; beyond that all are numbered anew
_swept = 0  # entries that were alive at the last sweep
SWEEP = 2048  # dead keys that may gather, half a megabyte; a sweep costs 0.1 us for each of them


class _Entry(ref[Node]):
    """A weak reference that takes its key out of the table when the node goes."""

    __slots__ = ("key",)

    key: tuple[Any, ...]


def _dropped(entry: _Entry) -> None:
    if _interned.get(entry.key) is entry:
        del _interned[entry.key]


def alive() -> int:
    """How many nodes there are. Forgets the keys of those that are gone."""
    global _swept
    for key in list(_interned):  # keys only: collecting garbage takes entries out meanwhile
        entry = _interned.get(key)
        if entry is not None and entry() is None:
            _interned.pop(key, None)
    _swept = len(_interned)
    return _swept


def _new_head(key: tuple[Any, ...]) -> int:
    if len(_heads) >= HEADS:
        _heads.clear()
    number = _heads[key] = next(_numbers)
    return number


def intern(op: Op, src: tuple[Node, ...], arg: Any, dtype: DType, shape: Shape) -> Node:
    """The node with these fields. Sources are compared by identity, ``arg`` by equality (that of
    a buffer or leaf by identity, too)."""
    apart = within = None
    if op in _BY_IDENTITY:
        apart = id(arg)
    elif op in _ARGUMENT_APART:
        apart = arg
    else:
        within = arg
    kind = (op, within, dtype, shape)
    head = _heads.get(kind)
    if head is None:
        head = _new_head(kind)
    key: tuple[Any, ...]
    if len(src) == 1:  # most nodes have one source or two: a loop would cost more than the rest
        key = (head, apart, id(src[0]))
    elif len(src) == 2:
        key = (head, apart, id(src[0]), id(src[1]))
    else:
        key = (head, apart, *map(id, src))
    entry = _interned.get(key)
    if entry is not None:
        found = entry()
        if found is not None:
            return found
    made = Node.__new__(Node)
    made.op = op
    made.src = src
    made.arg = arg
    made.dtype = dtype
    made.shape = shape
    made.head = head
    made.buffer = None
    if op in _OWN:
        entry = _interned[key] = _Entry(made, _dropped)
        entry.key = key
        return made
    _interned[key] = ref(made)
    if len(_interned) > 2 * _swept + SWEEP:
        alive()
    return made


def forget_sources(node: Node) -> None:
    """Let a computed node, of one source and without an argument, go of what is beneath it.

    It leaves the table too: a key names sources by identity, and theirs may be another node's soon.
    """
    _interned.pop((node.head, None, id(node.src[0])), None)
    node.src = ()


def _sources(node: Any) -> Any:
    return node.src


def toposort(roots: Iterable[T], sources: Callable[[T], Iterable[T]] = _sources) -> list[T]:
    """Every node (or whatever has ``sources``) under ``roots``, sources before users, each once;
    iterative, linear time."""
    order: list[T] = []
    seen: set[T] = set()
    stack: list[tuple[T, Iterator[T]]] = []
    for root in roots:
        if root in seen:
            continue
        seen.add(root)
        stack.append((root, iter(sources(root))))
        while stack:
            node, rest = stack[-1]
            for child in rest:
                if child not in seen:
                    seen.add(child)
                    stack.append((child, iter(sources(child))))
                    break
            else:
                order.append(node)
                stack.pop()
    return order


def show(roots: Iterable[Node]) -> str:
    """The graph as text, one line per node, sources first."""
    names: dict[Node, str] = {}
    lines = []
    for node in toposort(roots):
        names[node] = f"%{len(names)}"
        parts = [names[s] for s in node.src]
        if node.arg is not None:
            parts.append(str(node.arg))
        shape = ",".join(map(str, node.shape))
        lines.append(f"{names[node]}: {node.dtype.name}[{shape}] = {node.op}({', '.join(parts)})")
    return "\n".join(lines)
