"""Gradients of tensors: which leaves receive one, and what they do with it.

The graph work is :mod:`coregrad.ir.autodiff`'s. Nothing is computed here: a gradient is a tensor
that is computed when somebody reads it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from coregrad.api.base import LeafTag, TensorBase
from coregrad.api.grad_mode import enable_grad
from coregrad.errors import DeviceError, DTypeError, GradientError, ShapeError
from coregrad.ir import autodiff, build
from coregrad.ir.graph import Node


def backward(root: TensorBase, gradient: Any = None, create_graph: bool = False) -> None:
    """Give every leaf under ``root`` that takes one its gradient, added to the one it has."""
    node = root.node
    seed = _seed("backward", root, gradient)
    tape = autodiff.Tape([node])
    takers = _takers(tape)
    wanted = [leaf for leaves in takers.values() for leaf in leaves]
    found = autodiff.gradients(node, seed, wanted, tape)
    for owner, leaves in takers.items():
        total = _total([found[leaf] for leaf in leaves if leaf in found])
        if total is None:
            total = build.const_like(leaves[0], 0)
        _receive(owner, total, create_graph)


def _seed(name: str, root: TensorBase, gradient: Any) -> Node:
    if not root.dtype.is_float:
        raise GradientError(
            f"{name}: the tensor is {root.dtype.name}; only a float tensor has a gradient"
        )
    if gradient is None:
        if root.numel() != 1:
            raise GradientError(
                f"{name}: the tensor has shape {root.shape}, not one element; give "
                "gradient=..., or sum it first"
            )
        return build.const_like(root.node, 1)
    given = root._like(name, gradient)
    if given.shape != root.shape or given.dtype is not root.dtype:
        raise (ShapeError if given.shape != root.shape else DTypeError)(
            f"{name}: the gradient is {given.dtype.name}{list(given.shape)}, the tensor "
            f"{root.dtype.name}{list(root.shape)}; they must be alike"
        )
    return given.node


def _takers(tape: autodiff.Tape) -> dict[TensorBase, list[Node]]:
    """The live tensors that take a gradient, each with its nodes on the tape: those that say True,
    or if there are none, those that do not say False."""
    owners: dict[TensorBase, list[Node]] = {}
    for leaf in tape.leaves():
        owner = leaf.arg.owner()
        if owner is not None and owner._history is None:
            owners.setdefault(owner, []).append(leaf)
    firm = {t: leaves for t, leaves in owners.items() if t._requires_grad is True}
    takers = firm or {t: leaves for t, leaves in owners.items() if t._requires_grad is None}
    if not takers:
        raise GradientError(
            "backward: no tensor under this one takes a gradient: all are gone, detached, made "
            "under no_grad, integers, or have requires_grad=False; make one with "
            "requires_grad=True"
        )
    return takers


def _total(nodes: Sequence[Node]) -> Node | None:
    return functools.reduce(build.add, nodes) if nodes else None


def _receive(owner: TensorBase, node: Node, create_graph: bool) -> None:
    flag = owner._requires_grad if create_graph else False
    new = owner._with(node if create_graph else build.detach(node), flag)
    for hook in owner._hooks:
        answer = hook(new)
        if answer is None:
            continue
        if answer.shape != owner.shape or answer.dtype is not owner.dtype:
            raise GradientError(
                f"register_hook: the hook made a gradient of {owner.dtype.name}{list(owner.shape)} "
                f"{answer.dtype.name}{list(answer.shape)}; return one like it"
            )
        new = answer
    if owner.grad is not None:
        _check_old(owner)
        new = owner.grad._make(build.add(owner.grad.node, new.node), new)
    owner.grad = new


def _check_old(owner: TensorBase) -> None:
    old = owner.grad
    assert old is not None
    if old.shape != owner.shape or old.dtype is not owner.dtype or old.device != owner.device:
        raise GradientError(
            f"backward: .grad is {old.dtype.name}{list(old.shape)} on {old.device!r}, its tensor "
            f"{owner.dtype.name}{list(owner.shape)} on {owner.device!r}; set .grad to None"
        )


# ---- as functions ------------------------------------------------------------------------------


def grad(target: Any, *args: Any, **kwargs: Any) -> Any:
    """The gradient of a function, or of tensors.

    ``grad(f, argnums=0)`` is the function that gives the gradient of ``f``, which must return one
    number, for the arguments ``argnums`` (an int or a tuple). It can be taken again.

    ``grad(outputs, inputs, grad_outputs=None, create_graph=False, allow_unused=False)`` is
    PyTorch's: a tuple with one gradient per input; ``.grad`` stays as it is. GradientError for an
    input that outputs do not depend on, unless ``allow_unused`` (it is None then).

    >>> from coregrad import Tensor
    >>> grad(lambda x: x ** 3)(Tensor(2.0)).item()
    12.0
    >>> grad(grad(lambda x: x ** 3))(Tensor(2.0)).item()
    12.0
    >>> x = Tensor(2.0, requires_grad=True)
    >>> [g.item() for g in grad(x * x, [x])]
    [4.0]
    """
    if callable(target):
        return _gradient_function(target, *args, **kwargs)
    return _gradient_of(target, *args, **kwargs)


def value_and_grad(function: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
    """Like ``grad(function, argnums)``, but its result is the pair (value, gradient).

    >>> from coregrad import Tensor
    >>> value, slope = value_and_grad(lambda x: x * x)(Tensor(3.0))
    >>> value.item(), slope.item()
    (9.0, 6.0)
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @functools.wraps(function)
    def both(*args: Any, **kwargs: Any) -> Any:
        with enable_grad():
            own, leaves = _as_leaves(args, numbers)
            value = function(*own, **kwargs)
            if not isinstance(value, TensorBase):
                raise GradientError(
                    f"grad: the function returned {type(value).__name__}, not a tensor"
                )
            found = autodiff.gradients(value.node, _seed("grad", value, None), leaves)
            slopes = []
            for number, leaf in zip(numbers, leaves, strict=True):
                node = found.get(leaf)
                zero = build.const_like(leaf, 0)
                slopes.append(own[number]._make(zero if node is None else node, value))
        return value, slopes[0] if isinstance(argnums, int) else tuple(slopes)

    return both


def _gradient_function(function: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
    both = value_and_grad(function, argnums)

    @functools.wraps(function)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        return both(*args, **kwargs)[1]

    return gradient


def _as_leaves(args: Sequence[Any], numbers: Sequence[int]) -> tuple[list[Any], list[Node]]:
    """The arguments, those of ``numbers`` as leaves of their own that pass gradients on."""
    own, leaves = list(args), []
    for number in numbers:
        given = own[number]
        if not isinstance(given, TensorBase):
            given = TensorBase._result(given)
        if not given.dtype.is_float:
            raise GradientError(
                f"grad: argument {number} is {given.dtype.name}; only floats have gradients"
            )
        inner = given._make(given.node)
        inner._requires_grad = True
        inner._tag = LeafTag(inner)
        inner._node = build.leaf(inner._node, inner._tag)
        own[number] = inner
        leaves.append(inner._node)
    return own, leaves


def _gradient_of(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Any, ...]:
    """PyTorch's form. ``retain_graph`` has no meaning: graphs stay while somebody holds them."""
    roots = [outputs] if isinstance(outputs, TensorBase) else list(outputs)
    wanted = [inputs] if isinstance(inputs, TensorBase) else list(inputs)
    seeds = [grad_outputs] if isinstance(grad_outputs, TensorBase) else grad_outputs
    seeds = [None] * len(roots) if seeds is None else list(seeds)
    if len(seeds) != len(roots):
        raise GradientError(f"grad: {len(seeds)} grad_outputs for {len(roots)} outputs")
    tape = autodiff.Tape([root.node for root in roots])
    nodes = _nodes_of(roots, wanted, tape.leaves())
    totals: list[list[Node]] = [[] for _ in wanted]
    for root, seed in zip(roots, seeds, strict=True):
        every = [n for own in nodes for n in own]
        found = autodiff.gradients(root.node, _seed("grad", root, seed), every, tape)
        for total, own in zip(totals, nodes, strict=True):
            total += [found[n] for n in own if n in found]
    return tuple(
        _answer(i, x, _total(total), create_graph, allow_unused)
        for i, (x, total) in enumerate(zip(wanted, totals, strict=True))
    )


def _nodes_of(
    roots: Sequence[TensorBase], wanted: Sequence[TensorBase], leaves: Sequence[Node]
) -> list[list[Node]]:
    """The nodes under ``roots``, whose ``leaves`` these are, that are each wanted tensor."""
    out = []
    for tensor in wanted:
        if any(r.device != tensor.device for r in roots) and not leaves:
            raise DeviceError("grad: inputs and outputs are on different devices")
        tag = tensor._tag
        out.append([n for n in leaves if n.arg is tag] if tag is not None else [tensor.node])
    return out


def _answer(
    number: int, tensor: TensorBase, node: Node | None, create_graph: bool, allow_unused: bool
) -> TensorBase | None:
    if node is None:
        if allow_unused:
            return None
        raise GradientError(
            f"grad: the outputs do not depend on input {number}; leave it out, or give "
            "allow_unused=True"
        )
    if create_graph:
        return tensor._make(node)
    return tensor._with(build.detach(node), False)
