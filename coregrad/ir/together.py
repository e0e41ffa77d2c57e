"""Many shares of one gradient that are sums of the same form, added up as one sum.

A weight that every step of a recurrent network uses receives a product of small matrices from each
step. Their sum is one product over all steps, and sums of columns are one sum: the operands are
put side by side, and the reduction takes in one axis more. It only builds nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from coregrad.ir import build, formula, ops
from coregrad.ir.graph import Node, Shape

MANY = 4  # shares that may as well be added one by one
LARGE = 1 << 17  # elements of an operand beyond which a share is work enough by itself

_MOVES = frozenset((ops.RESHAPE, ops.PERMUTE, ops.EXPAND))


@dataclass(eq=False)
class _Form:
    """How a share is computed, read from the top: ``above`` and then ``reduction`` (if any) act on
    what is made of operands: each goes through its moves; two are multiplied and go through
    ``between``."""

    above: list[Node]
    reduction: Node | None
    between: list[Node]
    moves: list[list[Node]]

    def key(self) -> tuple[object, ...]:
        """Equal for shares of like operands that can be added up as one."""
        parts = [self.above, [self.reduction] if self.reduction else [], self.between, *self.moves]
        return tuple(tuple((n.op, n.arg, n.shape) for n in part) for part in parts)


@dataclass(eq=False)
class _Group:
    """Shares that can be added up as one, each with its operands."""

    form: _Form
    operands: dict[Node, Sequence[Node]]


def added_together(shares: Sequence[Node]) -> list[Node]:
    """As many shares or fewer, with the same sum."""
    groups: dict[tuple[object, ...], _Group] = {}
    called: dict[formula.Formula, tuple[_Group, list[int]] | None] = {}
    for share in shares:
        if share.op is ops.CALL:
            if share.arg not in called:
                called[share.arg] = _read_formula(share.arg, groups)
            known = called[share.arg]
            if known is not None:
                group, places = known
                group.operands[share] = [share.src[place] for place in places]
        elif (read := _read(share, groups)) is not None:
            group, operands = read
            group.operands[share] = operands
    out = list(shares)
    for group in groups.values():
        alike = [share for share in out if share in group.operands]
        if len(alike) > MANY:
            # A gradient is walked from the last step to the first: begin with the first step.
            total = _sum(group.form, [group.operands[share] for share in reversed(alike)])
            out = [share for share in out if share not in group.operands] + [total]
    return out


def _read_formula(
    made: formula.Formula, groups: dict[tuple[object, ...], _Group]
) -> tuple[_Group, list[int]] | None:
    """The group for calls of a formula, and which arguments are the operands."""
    read = _read(made.result, groups)
    if read is None or not set(read[1]) <= set(made.parameters):
        return None
    return read[0], [made.parameters.index(operand) for operand in read[1]]


def _read(
    share: Node, groups: dict[tuple[object, ...], _Group]
) -> tuple[_Group, Sequence[Node]] | None:
    """The group for a share and its operands; None if it is no such sum, or a large one."""
    path: list[Node] = []
    node = share
    while node.op in _MOVES or (node.op is ops.REDUCE and node.arg[0] == "add"):
        path.append(node)
        node = node.src[0]
    sums = [i for i, step in enumerate(path) if step.op is ops.REDUCE]
    outer = node.op is ops.MUL and any(s.op is ops.EXPAND for s in node.src)
    if not sums and not outer:
        return None
    cut = sums[-1] if sums else len(path)
    above, rest = path[:cut], path[cut:]
    reduction = rest.pop(0) if rest else None
    operands = [node]
    form = _Form(above, reduction, [], [rest])
    if outer:
        read = [_moved(source) for source in node.src]
        operands = [operand for _, operand in read]
        form = _Form(above, reduction, rest, [moves for moves, _ in read])
    if any(math.prod(o.shape) > LARGE for o in operands):
        return None
    key = form.key(), tuple((o.dtype, o.shape) for o in operands)
    return groups.setdefault(key, _Group(form, {})), operands


def _moved(node: Node) -> tuple[list[Node], Node]:
    """The moves that a value has gone through, the last one first, and the value."""
    moves = []
    while node.op in _MOVES:
        moves.append(node)
        node = node.src[0]
    return moves, node


def _sum(form: _Form, operands: Sequence[Sequence[Node]]) -> Node:
    lead = (len(operands),)
    sides = [
        _along(moves, _side_by_side([own[i] for own in operands]), lead)
        for i, moves in enumerate(form.moves)
    ]
    value = sides[0]
    if len(sides) == 2:
        value = _along(form.between, build.mul(*sides), lead)
    axes = form.reduction.arg[1] if form.reduction is not None else ()
    total = build.reduce("add", value, (0, *(axis + 1 for axis in axes)))
    return _along(form.above, total, ())


def _side_by_side(operands: Sequence[Node]) -> Node:
    """The operands along a new first axis."""
    first = operands[0]
    rows = [build.reshape(operand, (1, *first.shape)) for operand in operands]
    if all(operand is first for operand in operands):
        return build.expand(rows[0], (len(rows), *first.shape))
    return build.cat(rows, 0)


def _along(steps: Sequence[Node], x: Node, lead: Shape) -> Node:
    """What these steps, the last one first, make of ``x``, whose ``lead`` axes they leave alone."""
    more = len(lead)
    for step in reversed(steps):
        if step.op is ops.RESHAPE:
            x = build.reshape(x, (*lead, *step.shape))
        elif step.op is ops.PERMUTE:
            x = build.permute(x, (*range(more), *(axis + more for axis in step.arg)))
        elif step.op is ops.EXPAND:
            x = build.expand(x, (*lead, *step.shape))
        else:
            x = build.reduce("add", x, [axis + more for axis in step.arg[1]])
    return x
