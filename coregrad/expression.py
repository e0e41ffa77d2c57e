"""An expression: what is still to be computed under some results, and the key of its structure.

Nodes are taken in walk order, their leaves numbered, float constants and numbers left open: two
expressions with one key are computed by the same kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from coregrad import config, dtypes
from coregrad.ir import ops
from coregrad.ir.graph import Node

KEPT = frozenset((0.0, 1.0, -1.0, 0.5, 2.0))  # float constants that stay in the code


def resolve(node: Node) -> Node:
    """The node without markers; its buffer, if it has been computed."""
    while node.buffer is None and node.op in ops.MARKERS:
        node = node.src[0]
    return node.buffer or node


_FREE = frozenset((ops.CONST, ops.IOTA))
_BARE = _FREE | {ops.BUFFER}


def shared(node: Node) -> Node | None:
    """The constant or count that a node is, perhaps under markers; None if it is another.

    Everybody's are one node, and they cost less than a load. Somebody may have computed them, on
    any device; others do without that buffer, so that their kernels have the form they always have.
    """
    while node.op in ops.MARKERS and node.src:
        node = node.src[0]
    return node if node.op in _FREE else None


def standing(node: Node) -> Node:
    """What an expression takes for a source: the constant or count that it is, or its value."""
    inner = node
    while inner.op in ops.MARKERS and inner.src:
        inner = inner.src[0]
    return inner if inner.op in _BARE else resolve(node)


_SPECIAL = frozenset((ops.BUFFER, ops.CONST, ops.NUMBER, ops.CHECK, ops.COPY, ops.CAT))


class Expression:
    """The nodes under some roots that are still to be computed, and the key of their structure.

    Markers are left out: a node's sources here are what its sources resolve to. What may differ
    between expressions of one structure is kept beside the key: leaves, open constants, numbers,
    checks.
    """

    def __init__(self, device: str):
        self.device = device
        self.order: list[Node] = []
        self.number: dict[Node, int] = {}
        self.sources: dict[Node, list[Node]] = {}
        self.leaves: dict[Any, int] = {}  # storages, each with its number
        self.floats: list[Node] = []
        self.numbers: list[Node] = []
        self.checks: list[Node] = []
        self.copies: list[Node] = []
        self.key: list[Any] = [device, config.get("COREGRAD_FUSION")]

    def add(self, roots: Iterable[Node]) -> None:
        """Walk on from more (resolved) roots, sources before users, and describe each node."""
        number, sources, order, key = self.number, self.sources, self.order, self.key
        special, markers = _SPECIAL, ops.MARKERS
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node in number:
                continue
            found = sources.get(node)
            if found is None and node.src:
                found = sources[node] = [
                    s if s.buffer is None and s.op not in markers else standing(s) for s in node.src
                ]
                missing = [s for s in found if s not in number]
                if missing:
                    stack.append(node)
                    stack += missing
                    continue
            number[node] = len(order)
            order.append(node)
            key.append(node.head)
            if node.op in special:
                key.append(self._open(node))
            if found:
                key += [number[s] for s in found]

    def _open(self, node: Node) -> Any:
        """Keep what may differ between expressions of one structure; what stands for it instead."""
        op, arg = node.op, node.arg
        if op is ops.BUFFER:
            return self.leaves.setdefault(arg, len(self.leaves))
        if op is ops.CAT:  # how many sources follow; every other op has a fixed number
            return len(node.src)
        if op is ops.CONST:
            if node.dtype.is_float and _is_open(node):
                self.floats.append(node)
                return None
        elif op is ops.NUMBER:
            self.numbers.append(node)
            return arg[1]
        elif op is ops.CHECK:
            self.checks.append(node)
            return arg[0]  # not where it was made
        elif op is ops.COPY:
            self.copies.append(node)
        return arg

    def finish(self, roots: Sequence[Node]) -> tuple[Any, ...]:
        """The key of the whole expression with these results."""
        return (*self.key, tuple([self.number[r] for r in roots]))

    def sources_of(self, node: Node) -> Sequence[Node]:
        """The resolved sources of a node of the expression."""
        return self.sources.get(node, ())


def _is_open(node: Node) -> bool:
    value = dtypes.from_bits(node.arg, node.dtype)
    return value not in KEPT and math.isfinite(value)
