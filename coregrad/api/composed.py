"""Functions of tensors that are written with others, made one node of the graph per call.

The first call for tensors of some shapes and dtypes runs the function on stand-ins and keeps what
it built as formulas; later calls only name these. So a function is written plainly, in terms of
others, and costs the same as a single op each time it is used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from coregrad.api.base import Flag, TensorBase, join
from coregrad.api.grad_mode import enable_grad
from coregrad.ir import formula
from coregrad.ir.graph import Node

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

FORMULAS = 4096  # sets of formulas that are kept; the oldest goes first
PLAIN = (int, bool, str, type(None))  # arguments that formulas may differ by

_Made = list[tuple[formula.Formula, tuple[int, ...]]]
_traced: dict[tuple[Any, ...], tuple[_Made, bool] | None] = {}
_UNKNOWN: Any = object()


def composed(function: F) -> F:
    """Make a function or method of tensors build one node per result.

    It must be pure: a result depends on nothing but its arguments (tensors, numbers, strings, None
    and tuples of integers), takes gradients through all float tensors among them, and does not
    look at values, draw random numbers, or check indices. Called with other arguments (lists), or
    where it makes tensors of numbers, it is the plain function.
    """

    @functools.wraps(function)
    def shorthand(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            names = tuple(kwargs)
            given = (*args, *kwargs.values())
        else:
            names, given = (), args
        key: list[Any] = [function, names]
        tensors: list[TensorBase] = []
        for value in given:
            if isinstance(value, TensorBase):
                node = value._node
                key += (node.dtype, node.shape, value.device)
                tensors.append(value)
            elif isinstance(value, float):
                key += (float, value.hex())  # 0.0 is not -0.0
            elif isinstance(value, tuple) and all(type(entry) is int for entry in value):
                key.append(value)
            elif isinstance(value, PLAIN):
                key += (type(value), value)
            else:
                return function(*args, **kwargs)
        full = tuple(key)
        made: tuple[_Made, bool] | None = _traced.get(full, _UNKNOWN)
        if made is _UNKNOWN:
            made = _traced[full] = _trace(function, args, kwargs, tensors)
            if len(_traced) > FORMULAS:
                del _traced[next(iter(_traced))]
        return function(*args, **kwargs) if made is None else _called(*made, tensors)

    return cast(F, shorthand)


def _trace(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    tensors: Sequence[TensorBase],
) -> tuple[_Made, bool] | None:
    """What the function builds, as formulas; and whether it gives several results. None if that
    holds values which are no argument's (a number that became a tensor): they may differ."""
    holes: list[Node] = []

    def stand_in(value: Any) -> Any:
        if not isinstance(value, TensorBase):
            return value
        node = formula.hole(len(holes), value._node)
        holes.append(node)
        return value._with(node, True)  # so that rules of gradients are part of the formulas

    with enable_grad():
        plain = [stand_in(value) for value in args]
        named = {name: stand_in(value) for name, value in kwargs.items()}
        result = function(*plain, **named)
    several = isinstance(result, tuple)
    results = [t._node for t in (result if several else (result,))]
    made = formula.close(function.__name__, holes, results)
    return None if made is None else (made, several)


def _called(made: _Made, several: bool, tensors: Sequence[TensorBase]) -> Any:
    """The results for these tensors."""
    first = tensors[0]
    nodes = [tensor.node for tensor in tensors]
    flag: Flag = first._requires_grad
    for other in tensors:
        if other._requires_grad is not flag:
            flag = join((flag, other._requires_grad))
    results = [
        first._with(formula.call(each, [nodes[i] for i in used]), flag) for each, used in made
    ]
    return tuple(results) if several else results[0]
