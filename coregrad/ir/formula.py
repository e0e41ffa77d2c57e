"""A formula: an expression written once in holes, and used as one node wherever it is met again.

``softmax`` is some ten nodes each time it is called; as a formula it is one ``call`` node, whose
argument knows the ten. Building, walking and differentiating a graph of calls is what keeps an
uncaptured training loop cheap; the planner expands calls before any other pass, so that kernels
are the same as without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coregrad.ir import build, ops
from coregrad.ir.graph import Node, intern, toposort


class Hole:
    """Stands for a formula's argument: the identity of a buffer that nobody fills."""

    __slots__ = ("position",)

    def __init__(self, position: int) -> None:
        self.position = position

    def __repr__(self) -> str:
        return f"hole {self.position}"


class Formula:
    """One result as an expression of ``parameters``: buffer nodes, each with a Hole.

    Equality is identity. ``derivatives`` is the differentiating pass's own memory.
    """

    __slots__ = ("_answers", "derivatives", "name", "parameters", "result")

    def __init__(self, name: str, parameters: Sequence[Node], result: Node) -> None:
        self.name = name
        self.parameters = tuple(parameters)
        self.result = result
        self.derivatives: dict[Any, Any] = {}
        self._answers: dict[Any, bool] = {}

    def __repr__(self) -> str:
        return self.name

    def has(self, condition: Callable[[Node], bool]) -> bool:
        """Whether ``condition`` holds for a node of the expression."""
        if condition not in self._answers:
            self._answers[condition] = any(map(condition, toposort([self.result])))
        return self._answers[condition]


def hole(position: int, like: Node) -> Node:
    """A node for a formula's parameter, with the dtype and shape of ``like``."""
    return build.buffer(Hole(position), like.dtype, like.shape)


def close(
    name: str, holes: Sequence[Node], results: Sequence[Node]
) -> list[tuple[Formula, tuple[int, ...]]] | None:
    """Each result as a formula, and the positions of the holes it really uses.

    None if one holds values of its own, which later calls would share: a tensor from outside, or
    one made of a number, or a drawn one.
    """
    made = []
    for i, result in enumerate(results):
        below = set(toposort([result]))
        if any(n.op is ops.BUFFER and n not in holes for n in below):
            return None
        used = tuple(i for i, node in enumerate(holes) if node in below)
        title = name if len(results) == 1 else f"{name}.{i}"
        made.append((Formula(title, [holes[i] for i in used], result), used))
    return made


def call(formula: Formula, arguments: Sequence[Node]) -> Node:
    """The formula's value for ``arguments``, which are like its parameters."""
    result = formula.result
    if result.op is ops.BUFFER:
        return arguments[0]
    return intern(ops.CALL, tuple(arguments), formula, result.dtype, result.shape)


def expand(formula: Formula, arguments: Sequence[Node]) -> Node:
    """The formula's expression with ``arguments`` in its holes; without calls and markers."""
    made = dict(zip(formula.parameters, arguments, strict=True))
    for node in toposort([formula.result]):
        if node in made:
            continue
        src = tuple(made[s] for s in node.src)
        if node.op in ops.MARKERS:
            made[node] = src[0]
        elif node.op is ops.CALL:
            made[node] = expand(node.arg, src)
        else:
            made[node] = intern(node.op, src, node.arg, node.dtype, node.shape)
    return made[formula.result]


def replace(roots: Sequence[Node], old: Node, new: Node) -> list[Node]:
    """The roots with one node replaced wherever it is used."""
    made = {old: new}
    for node in toposort(roots):
        if node not in made:
            src = tuple(made[s] for s in node.src)
            same = src == node.src
            made[node] = node if same else intern(node.op, src, node.arg, node.dtype, node.shape)
    return [made[root] for root in roots]
