"""Who still holds a value: references counted against those that are known to go.

Memory may be written over only if nobody can ask for what it held. Python knows how many
references there are to an object; where it does not, somebody always holds it. This room knows no
device and changes nothing.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from coregrad import dtypes
from coregrad.expression import Expression
from coregrad.ir import build, ops
from coregrad.ir.graph import Node

_count = getattr(sys, "getrefcount", None)  # not every Python counts


def references(things: Sequence[Any]) -> list[int]:
    """How many references there are to each thing of a list, apart from the list's."""
    if _count is None:
        return [sys.maxsize for _ in things]
    return [_count(things[i]) - _asking for i in range(len(things))]


def _of_a_buffer() -> int:
    memory = object()
    node = build.buffer(memory, dtypes.bool_, ())
    held = [memory]
    del memory
    return references(held)[0] * (node.arg is held[0])


# What asking itself holds, the list and the call, varies from one Python to the next; and a buffer
# node holds its memory by more than its argument.
_asking = 0
_asking = references([object()])[0]
_OF_A_BUFFER = _of_a_buffer()


def only_holder(owner: Any, others: int) -> bool:
    """Whether nobody but ``owner._node``, a computed value, and ``others`` more hold its memory."""
    node = owner._node
    chain, known, shortcuts = [node], [1], 0
    while node.op in ops.MARKERS:
        shortcuts += node.buffer is not None
        node = node.src[0] if node.src else node.buffer
        chain.append(node)
        known.append(1)
    if node.op is not ops.BUFFER:
        return False
    if shortcuts:  # markers that were settled point to the value, the last of them perhaps only so
        known[-1] = shortcuts + bool(chain[-2].src)
    memory = [node.arg]
    del node
    return references(chain) == known and references(memory)[0] == _OF_A_BUFFER + others


def spare_leaves(
    tops: Sequence[Node], roots: Sequence[Node], expression: Expression
) -> frozenset[int]:
    """The leaves of an expression that nobody can ask for once it has been computed, by number.

    ``tops`` are the nodes of the tensors that want to be computed, ``roots`` what they resolve to.
    A tensor that detaches its value lets the graph beneath go when that is there; all others, and
    whoever else holds a node of it, may ask again for what stands under it.
    """
    if not any(_let_go_by(top) for top in tops):
        return frozenset()
    known = _known_references(tops, roots, expression)
    nodes = list(known)
    found = references(nodes)
    known_here = 1  # the key
    exempt = {node for top in tops for node in _let_go_by(top)}
    held = [
        node
        for node, count in zip(nodes, found, strict=True)
        if count != known[node] + known_here and node not in exempt
    ]
    held += [top for top in tops if top not in exempt]
    needed = set(_under(held))
    memory = Counter(node.arg for node in nodes if node.op is ops.BUFFER)
    needed_memory = {node.arg for node in needed if node.op is ops.BUFFER}
    leaves = list(expression.leaves)
    counts = references(leaves)
    # The memory is a key of the expression's leaves, and of the counter, too.
    return frozenset(
        i
        for i, leaf in enumerate(leaves)
        if leaf.device == expression.device
        and leaf not in needed_memory
        and counts[i] == memory[leaf] * _OF_A_BUFFER + 2
    )


def _let_go_by(top: Node) -> list[Node]:
    """The markers down to the one that detaches; none if there is no such."""
    chain = [top]
    while chain[-1].op in ops.MARKERS and chain[-1].op is not ops.DETACH:
        chain.append(chain[-1].src[0])
    return chain if chain[-1].op is ops.DETACH else []


def _below(node: Node) -> Sequence[Node]:
    """The nodes that a node holds, as far as an expression looks."""
    if node.buffer is None:
        return node.src
    return (node.buffer, *node.src) if node.op in ops.MARKERS else (node.buffer,)


def _under(nodes: Sequence[Node]) -> Iterator[Node]:
    """These nodes and all that they hold, each once."""
    stack, seen = list(nodes), set(nodes)
    while stack:
        node = stack.pop()
        yield node
        for below in _below(node):
            if below not in seen:
                seen.add(below)
                stack.append(below)


def _known_references(
    tops: Sequence[Node], roots: Sequence[Node], expression: Expression
) -> dict[Node, int]:
    """For every node under ``tops``, the references from other ones of them and from the
    expression's description."""
    known = dict.fromkeys(tops, 0)
    stack = list(known)
    while stack:
        for below in _below(stack.pop()):
            if below in known:
                known[below] += 1
            else:
                known[below] = 1
                stack.append(below)
    lists: list[Any] = [expression.order, expression.number, expression.sources, roots]
    lists += [expression.floats, expression.numbers, expression.checks, expression.copies]
    for nodes in (*lists, *expression.sources.values()):
        for node in nodes:
            if node in known:
                known[node] += 1
    return known
