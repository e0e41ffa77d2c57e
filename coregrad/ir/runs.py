"""Which nodes lie inside the buffers of others, so that nothing has to be copied.

The parts of a wide concatenation along the first axis are computed where the whole has them, and
rows of a buffer that a contiguous node asks for are read where they are. That takes a device whose
buffers have parts that are buffers. Parts of several concatenations in the same order (all states
of a network, and all but the last) share one run. It knows no kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from coregrad.ir import build, ops
from coregrad.ir.graph import Node, intern

ALIGNMENT = 64  # bytes: the widest vector, and what stores past the cache want
MANY = 4  # rows of a buffer that may as well be copied


@dataclass(eq=False)
class Run:
    """A buffer that is several nodes', one after the other; none is the buffer's own."""

    nodes: list[Node]

    @property
    def size(self) -> int:
        """In elements."""
        return sum(math.prod(node.shape) for node in self.nodes)


@dataclass(eq=False)
class Places:
    """``within``: the buffer of which a node is a part, and the element it begins at.
    ``made_by``: for nodes that no kernel computes, those that are there when they are."""

    within: dict[Node, tuple[Node | Run, int]] = field(default_factory=dict)
    made_by: dict[Node, list[Node]] = field(default_factory=dict)

    @property
    def buffered(self) -> set[Node]:
        """The nodes that must have buffers."""
        outer = {place for place, _ in self.within.values() if isinstance(place, Node)}
        return self.within.keys() | self.made_by.keys() | outer


class Runs:
    """Finds such nodes while a graph is walked upwards; :meth:`places` is the result."""

    def __init__(self) -> None:
        self._kept: set[Node] = set()
        self._run: dict[Node, Run] = {}
        self._position: dict[Node, int] = {}
        self._wholes: dict[Node, list[Node]] = {}
        self._rows: dict[Node, tuple[Node, int]] = {}

    def keep(self, node: Node) -> None:
        """A result: its buffer is to be its own."""
        self._kept.add(bare(node))

    def whole(self, cat: Node) -> Node | None:
        """The concatenation with parts that can lie in its buffer, if that is worth while."""
        if any(n != 1 for n in cat.shape[: cat.arg]):
            return None
        sources: list[Node] = []
        seen: set[Node] = set()
        for part in cat.src:
            if math.prod(part.shape) * part.dtype.itemsize % ALIGNMENT:
                return None
            if bare(part) in seen or not self._may_lie_inside(bare(part)):
                part = _copied(part)
            seen.add(bare(part))
            sources.append(part)
        copies = sum(a is not b for a, b in zip(sources, cat.src, strict=True))
        parts = [bare(part) for part in sources]
        if 2 * copies > len(parts) or not self._join(parts):
            return None
        made = build.cat(sources, cat.arg)
        self._wholes[made] = parts
        return made

    def _may_lie_inside(self, node: Node) -> bool:
        elsewhere = node in self._kept or node in self._wholes or node in self._rows
        return not elsewhere and node.op not in _FIXED

    def _join(self, parts: Sequence[Node]) -> bool:
        """Let the parts follow each other; False if some of them are followed by others already."""
        runs = [(run, list(some)) for run, some in groupby(parts, self._run_of)]
        if len({run for run, _ in runs}) < len(runs):
            return False
        for number, (run, some) in enumerate(runs):
            first = self._position.get(some[0], 0)
            if run.nodes[first : first + len(some)] != some:
                return False
            is_first, is_last = number == 0, number == len(runs) - 1
            if (first and not is_first) or (first + len(some) < len(run.nodes) and not is_last):
                return False
        joined = Run([node for run, _ in runs for node in run.nodes])
        for position, node in enumerate(joined.nodes):
            self._run[node] = joined
            self._position[node] = position
        return True

    def _run_of(self, node: Node) -> Run:
        if node not in self._run:
            self._run[node] = Run([node])
        return self._run[node]

    def row(self, node: Node) -> None:
        """Look at a contiguous node: rows of a buffer, one after the other, are there already."""
        x = bare(node.src[0])
        if node.arg is not None or x.op is not ops.SHRINK:
            return
        outer = x.src[0]
        start = _beginning(outer, x.arg)
        owner = bare(outer)
        fits = start is not None and start * node.dtype.itemsize % ALIGNMENT == 0
        if start is not None and fits and owner.op not in (ops.CONST, ops.IOTA):
            self._rows[node] = owner, start

    def finish(self, roots: Sequence[Node]) -> list[Node]:
        """The results, each with a buffer of its own."""
        out = []
        for root in roots:
            parts = self._wholes.get(bare(root))
            shared = parts is not None and len(self._run[parts[0]].nodes) > len(parts)
            out.append(_copied(root) if shared else root)
        return out

    def places(self) -> Places:
        """Where the nodes lie."""
        out = Places()
        for parts in self._wholes.values():
            run = self._run[parts[0]]
            start = 0
            for node in run.nodes:
                out.within[node] = run, start
                start += math.prod(node.shape)
        for whole, parts in self._wholes.items():
            out.within[whole] = out.within[parts[0]]
            out.made_by[whole] = parts
        counts: dict[Node, int] = {}
        for owner, _ in self._rows.values():
            counts[owner] = counts.get(owner, 0) + 1
        for node, (owner, start) in self._rows.items():
            if counts[owner] > MANY and node not in self._kept and node not in out.within:
                out.within[node] = owner, start
                out.made_by[node] = [owner]
        return out


# Nodes whose buffers are somebody else's, or that have none; a device may sort where it likes.
_FIXED = frozenset((ops.BUFFER, ops.CONST, ops.IOTA, ops.NUMBER, ops.SCATTER, ops.ARGSORT))


def bare(node: Node) -> Node:
    """The node whose buffer this one can simply share."""
    while node.op is ops.RESHAPE:
        node = node.src[0]
    return node


def _copied(node: Node) -> Node:
    """The same in a buffer that nobody else has."""
    return intern(ops.CONTIGUOUS, (node,), object(), node.dtype, node.shape)


def _beginning(x: Node, ranges: Sequence[tuple[int, int]]) -> int | None:
    """The element of ``x`` at which a block begins; None if its elements do not stand together."""
    start, stride = 0, 1
    whole = True  # whether all axes behind this one are taken as they are
    for (low, high), length in zip(reversed(ranges), reversed(x.shape), strict=True):
        if not whole and high - low > 1:
            return None
        whole = whole and high - low == length
        start += low * stride
        stride *= length
    return start
