"""What a function can reach besides its arguments, and whether it is still the same.

From its closure, the globals it names, the objects and functions found there, everything that
could steer it is noted: numbers, strings, the shape of containers, and which object stands where.
It computes nothing and never calls what it finds.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Iterator
from typing import Any

SCALARS = (bool, int, float, complex, str, bytes, type(None))
OURS = "coregrad"  # the library's own functions are not looked into
MISSING = object()

# A place, who holds it, how to look there, the key to look under, and what was found.
Guard = tuple[str, Any, Callable[[Any, Any], Any], Any, Any]


class Reach:
    """Everything that some functions and objects reach, as it is now.

    ``is_leaf`` says what is not looked into, however it is made (tensors), and ``is_drawn`` what
    moves on when it is used (random generators, iterators).
    """

    def __init__(
        self,
        roots: dict[str, Any],
        is_leaf: Callable[[Any], bool],
        is_drawn: Callable[[Any], bool],
    ) -> None:
        self.guards: list[Guard] = []
        self.leaves: list[Any] = []
        self.drawn: list[tuple[str, Any]] = []
        self._is_leaf = is_leaf
        self._is_drawn = is_drawn
        self._seen: dict[int, Any] = {}
        stack = list(roots.items())
        while stack:
            path, value = stack.pop()
            stack += self._enter(path, value)

    def is_same(self) -> bool:
        """Whether every place holds what it held."""
        return all(_alike(look(holder, key), was) for _, holder, look, key, was in self.guards)

    def changes(self) -> Iterator[tuple[str, Any]]:
        """The places that hold something else now, and what."""
        for path, holder, look, key, was in self.guards:
            now = look(holder, key)
            if not _alike(now, was):
                yield path, now

    # ---- looking around ------------------------------------------------------------------------

    def _enter(self, path: str, value: Any) -> list[tuple[str, Any]]:
        """Note what stands in ``value``; what is to be looked into next."""
        if isinstance(value, SCALARS) or id(value) in self._seen:
            return []
        self._seen[id(value)] = value
        if self._is_leaf(value):
            self.leaves.append(value)
            return []
        if self._is_drawn(value):
            self.drawn.append((path, value))
            return []
        if isinstance(value, (list, tuple)):
            return self._note(path, value, _item, range(len(value)), "[{}]")
        if isinstance(value, dict):
            return self._note(path, value, _entry, list(value), "[{!r}]")
        if isinstance(value, types.FunctionType):
            return self._function(path, value)
        if isinstance(value, types.MethodType):
            return [(path, value.__func__), (f"{path}.__self__", value.__self__)]
        if isinstance(value, (types.BuiltinMethodType, types.MethodWrapperType)):
            return [(f"{path}.__self__", value.__self__)]
        return self._object(path, value)

    def _note(
        self, path: str, holder: Any, look: Callable[[Any, Any], Any], keys: Any, form: str
    ) -> list[tuple[str, Any]]:
        if look is not _global:
            self.guards.append((f"the length of {path}", holder, _length, None, len(holder)))
        found = []
        for key in keys:
            place, value = path + form.format(key), look(holder, key)
            self.guards.append((place, holder, look, key, value))
            found.append((place, value))
        return found

    def _function(self, path: str, function: types.FunctionType) -> list[tuple[str, Any]]:
        if function.__module__ is None or function.__module__.split(".")[0] == OURS:
            return []
        found = []
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            value = _content(cell, None)
            self.guards.append((name, cell, _content, None, value))
            found.append((name, value))
        names = [n for n in _global_names(function.__code__) if n in function.__globals__]
        found += self._note("", function.__globals__, _global, names, "{}")
        return [*found, ("its defaults", function.__defaults__ or ())]

    def _object(self, path: str, value: Any) -> list[tuple[str, Any]]:
        kind = value.__class__  # of what a weak reference stands for
        if isinstance(value, (type, types.ModuleType)) or kind.__module__ == "builtins":
            return []
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict):
            return []
        apart = getattr(kind, "uncaptured", ())
        names = [name for name in attributes if name not in apart]
        found = self._note(path, attributes, _entry, names, ".{}")
        methods = (getattr(kind, name, None) for name in ("__call__", "forward"))
        return found + [(path, m) for m in methods if isinstance(m, types.FunctionType)]


def _global_names(code: types.CodeType) -> list[str]:
    """The names that a function, and those defined in it, may look up in its module."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    own = [i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    return list(dict.fromkeys([*own, *(n for c in inner for n in _global_names(c))]))


def _alike(now: Any, was: Any) -> bool:
    if now is was:
        return True
    return type(now) is type(was) and isinstance(now, SCALARS) and bool(now == was)


def _item(holder: Any, key: Any) -> Any:
    return holder[key] if key < len(holder) else MISSING


def _entry(holder: Any, key: Any) -> Any:
    return holder.get(key, MISSING)


def _global(holder: Any, key: Any) -> Any:
    return holder.get(key, MISSING)


def _length(holder: Any, key: Any) -> int:
    return len(holder)


def _content(cell: Any, key: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return MISSING
