"""What a kernel computes, without the names of its nodes: where it was met before, it is known.

The steps of a recurrent network, the layers of a transformer and the parameters of an optimiser
ask for the same kernels over other nodes. What was found out about one group of outputs holds for
every group of the same outline, with the nodes exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coregrad.ir import ops
from coregrad.ir.graph import Node, toposort
from coregrad.ir.kernel import Kernel
from coregrad.ir.lower import Evaluation, NeedsBuffer
from coregrad.ir.pick import asked_for

_TELLING = frozenset((ops.CONST, ops.CHECK, ops.NUMBER))  # their heads leave out the argument


@dataclass(eq=False)
class Known:
    """What was found out about the ``nodes`` of an outline, those that it names in their order."""

    nodes: list[Node]
    found: Evaluation | None = None
    wanted: Node | None = None  # which node had better have a buffer, and nothing was found
    against: set[Node] | None = None
    kernel: Kernel | None = None
    read: list[int] = field(default_factory=list)  # the places of the nodes that it reads


@dataclass(eq=False)
class Outline:
    """A group's nodes, and what is known of nodes like them."""

    nodes: list[Node]
    known: Known
    _exchanged: dict[Node, Node] = field(default_factory=dict)

    def here(self, nodes: Iterable[Node]) -> list[Node]:
        """The nodes in the places of those that are known."""
        if self.nodes is self.known.nodes:
            return list(nodes)
        if not self._exchanged:
            self._exchanged = dict(zip(self.known.nodes, self.nodes, strict=True))
        return [self._exchanged[node] for node in nodes]

    def keep_kernel(self, kernel: Kernel, sources: Sequence[Node]) -> None:
        """The kernel that computes nodes like these."""
        place = {node: i for i, node in enumerate(self.nodes)}
        self.known.kernel = kernel
        self.known.read = [place[node] for node in sources]

    def kernel(self) -> tuple[Kernel, list[Node]] | None:
        """The kernel that is known, and what it reads here."""
        if self.known.kernel is None:
            return None
        return self.known.kernel, [self.nodes[i] for i in self.known.read]

    def found(self) -> Evaluation | None:
        """The evaluation that is known, of these nodes; None if none is. Raises NeedsBuffer if
        that is what came of it."""
        known = self.known
        if known.wanted is not None:
            raise NeedsBuffer(*self.here([known.wanted]))
        if known.found is None or self.nodes is known.nodes:
            return known.found
        own = known.found
        reduced = self.here(r.node for r in own.reductions)
        return replace(
            own,
            sources=self.here(own.sources),
            requests=dict(zip(self.here(own.requests), own.requests.values(), strict=True)),
            reductions=[replace(r, node=n) for r, n in zip(own.reductions, reduced, strict=True)],
        )


class Outlines:
    """Everything that is known."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Known] = {}

    def of(
        self,
        outputs: Sequence[Node],
        has_buffer: Callable[[Node], bool],
        checks: Mapping[Node, int],
    ) -> Outline:
        """The outline of what is computed for these outputs, down to the nodes with buffers."""
        computed = set(outputs)

        def sources(node: Node) -> tuple[Node, ...]:
            return () if has_buffer(node) and node not in computed else asked_for(node)

        nodes = toposort(outputs, sources)
        number = {node: i for i, node in enumerate(nodes)}
        key: list[Any] = [number[node] for node in outputs]
        for node in nodes:
            if has_buffer(node) and node not in computed:
                key.append((node.dtype, node.shape))
                continue
            if node.op in _TELLING:
                key.append((node.arg, checks.get(node)))
            key.append((node.head, *[number[s] for s in asked_for(node)]))
        known = self._known.setdefault(tuple(key), Known(nodes))
        return Outline(known.nodes if nodes == known.nodes else nodes, known)
