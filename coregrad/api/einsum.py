"""Einstein's summation on nodes: letters are axes, those missing in the result are summed over."""

from __future__ import annotations

from collections.abc import Sequence

from coregrad.api.base import expand
from coregrad.api.reduction import total, wide
from coregrad.errors import ShapeError
from coregrad.ir import build
from coregrad.ir.graph import Node

# One label per axis: a letter, or "...3" for the third axis, from the right, of the ellipsis.
Labels = tuple[str, ...]
Labelled = tuple[Labels, Node]


def einsum(formula: str, operands: Sequence[Node]) -> Node:
    """The sum of products that ``formula`` describes, operands being contracted left to right."""
    terms, result = _parse(formula, [len(node.shape) for node in operands])
    sizes = _sizes(formula, terms, operands, result)
    labelled = [_diagonals(*pair) for pair in zip(terms, operands, strict=True)]
    dtype = operands[0].dtype
    done = labelled[0]
    for i, other in enumerate(labelled[1:], start=1):
        needed = set(result).union(*(labels for labels, _ in labelled[i + 1 :]))
        left = _without(done, needed | set(other[0]))
        right = _without(other, needed | set(done[0]))
        done = _product(left, right, needed)
    labels, node = _without(done, set(result))
    node = build.permute(node, tuple(labels.index(label) for label in result))
    node = expand(node, tuple(sizes[label] for label in result))
    return build.cast(node, dtype)


# ---- the formula -------------------------------------------------------------------------------


def _parse(formula: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    text = formula.replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(ranks):
        raise ShapeError(
            f"einsum: {formula!r} names {len(parts)} operands, {len(ranks)} were given"
        )
    terms = [_labels(formula, part, rank) for part, rank in zip(parts, ranks, strict=True)]
    dots = max((sum(label[0] == "." for label in term) for term in terms), default=0)
    ellipsis = tuple(f"...{i}" for i in reversed(range(dots)))
    if not arrow:
        letters = "".join(label for term in terms for label in term if label[0] != ".")
        return terms, (*ellipsis, *sorted(c for c in set(letters) if letters.count(c) == 1))
    result = _result(formula, right, ellipsis)
    known = {label for term in terms for label in term}
    for label in result:
        if label not in known and label not in ellipsis:
            raise ShapeError(f"einsum: {label!r} stands in the result of {formula!r} only")
    if len(set(result)) != len(result):
        raise ShapeError(f"einsum: the result of {formula!r} names an axis twice")
    return terms, result


def _labels(formula: str, part: str, rank: int) -> Labels:
    before, dots, after = part.partition("...")
    letters = before + after
    hidden = rank - len(letters)
    if not all(c.isalpha() for c in letters) or hidden < 0 or (hidden and not dots):
        raise ShapeError(
            f"einsum: {part!r} of {formula!r} does not name the {rank} axes of its operand; use "
            "one letter per axis, and ... for axes that broadcast"
        )
    return (*before, *(f"...{i}" for i in reversed(range(hidden))), *after)


def _result(formula: str, right: str, ellipsis: Labels) -> Labels:
    before, dots, after = right.partition("...")
    if not all(c.isalpha() for c in before + after):
        raise ShapeError(f"einsum: the result {right!r} of {formula!r} is not letters and one ...")
    return (*before, *(ellipsis if dots else ()), *after)


def _sizes(
    formula: str, terms: Sequence[Labels], operands: Sequence[Node], result: Labels
) -> dict[str, int]:
    """The size of each label: axes of size 1 broadcast."""
    sizes: dict[str, int] = {}
    for labels, node in zip(terms, operands, strict=True):
        for label, n in zip(labels, node.shape, strict=True):
            known = sizes.get(label, 1)
            if known != n and 1 not in (known, n):
                name = "the axes under the ellipsis" if label[0] == "." else f"axis {label!r}"
                shapes = " and ".join(str(x.shape) for x in operands)
                raise ShapeError(
                    f"einsum: {name} of {formula!r} is both {known} and {n} long in shapes {shapes}"
                )
            sizes[label] = n if known == 1 else known
    return sizes


# ---- the arithmetic ----------------------------------------------------------------------------


def _diagonals(labels: Labels, node: Node) -> Labelled:
    """Letters that stand twice reduced to one: element i of an (n, n) plane is i*(n + 1)."""
    while len(set(labels)) < len(labels):
        double = next(label for label in labels if labels.count(label) > 1)
        first = labels.index(double)
        second = labels.index(double, first + 1)
        n = node.shape[first]
        if node.shape[second] != n:
            raise ShapeError(f"einsum: the diagonal {double!r} of shape {node.shape} is not square")
        rest = tuple(i for i in range(len(labels)) if i not in (first, second))
        node = build.permute(node, (*rest, first, second))
        labels = (*(labels[i] for i in rest), double)
        if n == 0:
            node = build.reshape(node, (*node.shape[:-2], 0))
            continue
        flat = build.reshape(node, (*node.shape[:-2], n * n))
        picked = build.window(flat, len(rest), 1, n + 1)
        node = build.reshape(picked, picked.shape[:-1])
    return labels, node


def _without(operand: Labelled, needed: set[str]) -> Labelled:
    """Labels that nobody needs any more are summed over."""
    labels, node = operand
    axes = tuple(i for i, label in enumerate(labels) if label not in needed)
    kept = tuple(label for label in labels if label in needed)
    return kept, total(wide(node), axes) if axes else node


def _product(a: Labelled, b: Labelled, needed: set[str]) -> Labelled:
    """The product over all labels of both, summed over those that nobody needs any more."""
    union = (*a[0], *(label for label in b[0] if label not in a[0]))
    kept = [label for label in union if label in needed]
    gone = [label for label in union if label not in needed]
    order = (*kept, *gone)
    left, right = _aligned(a, order), _aligned(b, order)
    shape = tuple(m if n == 1 else n for n, m in zip(left.shape, right.shape, strict=True))
    product = build.mul(expand(wide(left), shape), expand(wide(right), shape))
    axes = tuple(range(len(kept), len(order)))
    return tuple(kept), total(product, axes) if axes else product


def _aligned(operand: Labelled, order: Labels) -> Node:
    """The axes in this order, those it lacks with size 1."""
    labels, node = operand
    present = [label for label in order if label in labels]
    node = build.permute(node, tuple(labels.index(label) for label in present))
    sizes = dict(zip(present, node.shape, strict=True))
    return build.reshape(node, tuple(sizes.get(label, 1) for label in order))
