"""The tensors of a model by name: collected, exchanged, loaded.

A *model* is any object: a Module, a bare class with tensors in its attributes, a list, a dict.
Names are attribute names, positions and keys joined by dots, as in PyTorch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from coregrad.api.tensor import Tensor
from coregrad.errors import CoregradError, DataError, ShapeError
from coregrad.nn.parameter import is_parameter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coregrad.nn.safetensors import safe_load, safe_save

__all__ = [
    "children", "get_parameters", "get_state_dict", "load_state_dict", "named_tensors",
    "replace_tensors", "safe_load", "safe_save",
]  # fmt: skip

# ---- names -------------------------------------------------------------------------------------


def named_tensors(model: object, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor under ``model`` with its name, in the order of the attributes.

    Looks into attributes, lists, tuples and dicts. A tensor met twice (tied weights) appears
    under each of its names; an object met again on its own path is not entered twice.
    """
    yield from _walk(model, prefix, ())


def _walk(thing: object, name: str, path: tuple[object, ...]) -> Iterator[tuple[str, Tensor]]:
    if isinstance(thing, Tensor):
        yield name, thing
        return
    if any(thing is outer for outer in path):
        return
    for key, child in children(thing):
        yield from _walk(child, f"{name}.{key}" if name else key, (*path, thing))


def children(thing: object) -> Iterator[tuple[str, object]]:
    """What ``thing`` holds, by name: items of a list, tuple or dict, else attributes."""
    if isinstance(thing, list | tuple):
        yield from ((str(i), child) for i, child in enumerate(thing))
    elif isinstance(thing, dict):
        yield from ((str(key), child) for key, child in thing.items())
    elif hasattr(thing, "__dict__") and not isinstance(thing, type) and not _is_function(thing):
        yield from vars(thing).items()


def _is_function(thing: object) -> bool:
    """Functions and methods: they have a ``__dict__``, but what they hold is not the model's."""
    return hasattr(thing, "__code__") or hasattr(thing, "__func__")


def replace_tensors(model: object, new: Callable[[Tensor], Tensor]) -> None:
    """Put ``new(tensor)`` in the place of every tensor under ``model``.

    Raises CoregradError for a tensor in a tuple, which cannot be changed.
    """
    seen: set[int] = set()
    stack: list[object] = [model]
    while stack:
        holder = stack.pop()
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        inner = list(children(holder))
        stack.extend(child for _, child in inner if not isinstance(child, Tensor))
        found = [(key, child) for key, child in inner if isinstance(child, Tensor)]
        if found and isinstance(holder, tuple):
            raise CoregradError(f"module: a tuple holds {len(found)} tensors; use a list instead")
        for key, tensor in found:
            _set_child(holder, key, new(tensor))


def _set_child(holder: object, name: str, tensor: Tensor) -> None:
    """Undo what :func:`children` does to a key."""
    if isinstance(holder, list):
        holder[int(name)] = tensor
    elif isinstance(holder, dict):
        key = next(key for key in holder if str(key) == name)
        holder[key] = tensor
    else:
        vars(holder)[name] = tensor


def get_state_dict(model: object, prefix: str = "") -> dict[str, Tensor]:
    """Every tensor under ``model`` by name, parameters and others alike.

    >>> class Net:
    ...     def __init__(self):
    ...         self.layers = [Tensor.zeros(2, 3), Tensor.zeros(3)]
    >>> {name: t.shape for name, t in get_state_dict(Net()).items()}
    {'layers.0': (2, 3), 'layers.1': (3,)}
    """
    return dict(named_tensors(model, prefix))


def get_parameters(model: object) -> list[Tensor]:
    """The tensors under ``model`` that train: floating, and ``requires_grad`` is not False.

    Each tensor appears once, also if it has two names.

    >>> class Net:
    ...     def __init__(self):
    ...         self.weight = Tensor.zeros(2, 3)
    ...         self.steps = Tensor(0)
    >>> len(get_parameters(Net()))
    1
    """
    found = {id(t): t for _, t in named_tensors(model) if is_parameter(t)}
    return list(found.values())


def load_state_dict(
    model: object, state: Mapping[str, Tensor | NDArray[Any]], strict: bool = True
) -> None:
    """Give every tensor under ``model`` the value of its name in ``state``.

    Values are converted to the dtype and device of the tensor they go to. With ``strict`` the
    names must be the same on both sides; without it, only names on both sides are loaded. Nothing
    is changed if anything does not fit.

    Raises DataError naming missing and unexpected names, ShapeError naming wrong shapes.

    >>> class Net:
    ...     def __init__(self):
    ...         self.weight = Tensor.zeros(2)
    >>> net = Net()
    >>> load_state_dict(net, {"weight": Tensor([1.0, 2.0])})
    >>> net.weight.tolist()
    [1.0, 2.0]
    """
    own = get_state_dict(model)
    if strict:
        _check_names(own, state)
    shared = [name for name in own if name in state]
    wrong = [
        f"{name} is {tuple(own[name].shape)} in the model, {tuple(state[name].shape)} in the state"
        for name in shared
        if tuple(own[name].shape) != tuple(state[name].shape)
    ]
    if wrong:
        raise ShapeError(
            f"load_state_dict: {'; '.join(wrong)}; build the model with the sizes it was saved with"
        )
    for name in shared:
        target = own[name]
        value = state[name]
        source = value if isinstance(value, Tensor) else Tensor(value, device=target.device)
        target.assign(source.detach().to(target.device).cast(target.dtype))


def _check_names(own: Mapping[str, object], state: Mapping[str, object]) -> None:
    missing = [name for name in own if name not in state]
    unexpected = [name for name in state if name not in own]
    if not missing and not unexpected:
        return
    parts = []
    if missing:
        parts.append(f"missing in the state: {', '.join(missing)}")
    if unexpected:
        parts.append(f"not in the model: {', '.join(unexpected)}")
    raise DataError(
        f"load_state_dict: {'; '.join(parts)}; correct the names, or pass strict=False to load "
        "those on both sides"
    )


def __getattr__(name: str) -> Any:
    """Load ``safe_save`` and ``safe_load`` when they are first used."""
    if name in ("safe_load", "safe_save"):
        return getattr(importlib.import_module("coregrad.nn.safetensors"), name)
    raise AttributeError(f"module 'coregrad.nn.state' has no attribute {name!r}")
