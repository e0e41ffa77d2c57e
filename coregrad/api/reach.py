"""What a function can reach besides its arguments, and whether it is still the same.

From its closure, the globals it names, the objects and functions found there, everything that
could steer it is noted: numbers, strings, the shape of containers, and which object stands where.
It computes nothing and never calls what it finds.
"""

from __future__ import annotations

import dis
import operator
import types
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

SCALARS = (bool, int, float, complex, str, bytes, type(None))
OURS = "coregrad"  # the library's own functions are not looked into
MISSING = object()


class Guard:
    """What the places of one holder (a list, a dict, a closure's cell) held.

    ``is_whole`` says that it may get no other places; ``form`` is what a place is called.
    """

    __slots__ = ("fetch", "form", "holder", "keys", "length", "path", "was")

    def __init__(
        self, path: str, holder: Any, keys: Sequence[Any], form: str, is_whole: bool
    ) -> None:
        self.path = path
        self.holder = holder
        self.keys = keys
        self.form = form
        self.length = len(holder) if is_whole else None
        self.was = self.look(holder)
        self.fetch = self._fetcher()

    def look(self, holder: Any) -> tuple[Any, ...]:
        """What stands in the places now."""
        return tuple([_look(holder, key) for key in self.keys])

    def _fetcher(self) -> Callable[[Any], tuple[Any, ...]]:
        """The same in one step, for each call of a captured function looks at everything. It may
        raise where something is missing, and gives what is alone twice, which makes it a tuple."""
        keys = list(self.keys) * (2 if len(self.keys) == 1 else 1)
        if type(self.holder) in (dict, list, tuple) and keys:
            return operator.itemgetter(*keys)
        if isinstance(self.holder, types.CellType) and self.was[0] is not MISSING:
            return operator.attrgetter("cell_contents", "cell_contents")
        return self.look

    def changes(self) -> Iterator[tuple[str, Any]]:
        """The places that hold something else now, and what."""
        if self.length is not None and len(self.holder) != self.length:
            yield f"the length of {self.path}", len(self.holder)
        for place, now, was in zip(self.places(), self.look(self.holder), self.was, strict=True):
            if not _alike(now, was):
                yield place, now

    def places(self) -> list[str]:
        """What users call the places."""
        return [self.path + self.form.format(key) for key in self.keys]


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
        self._sized = [guard.holder for guard in self.guards if guard.length is not None]
        self._lengths = [guard.length for guard in self.guards if guard.length is not None]
        self._fetches = [(guard.fetch, guard.holder) for guard in self.guards if guard.keys]
        self._was = [value for fetch, holder in self._fetches for value in fetch(holder)]

    def is_same(self) -> bool:
        """Whether every place holds what it held."""
        if list(map(len, self._sized)) != self._lengths:
            return False
        try:
            now = [fetch(holder) for fetch, holder in self._fetches]
        except (LookupError, ValueError):  # something is gone; a cell is empty
            return False
        same = all(map(operator.is_, chain.from_iterable(now), self._was))
        return same or next(self.changes(), None) is None

    def changes(self) -> Iterator[tuple[str, Any]]:
        """The places that hold something else now, and what."""
        for guard in self.guards:
            yield from guard.changes()

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
            return self._note(path, value, range(len(value)), "[{}]")
        if isinstance(value, dict):
            return self._note(path, value, list(value), "[{!r}]")
        if isinstance(value, types.FunctionType):
            return self._function(path, value)
        if isinstance(value, types.MethodType):
            return [(path, value.__func__), (f"{path}.__self__", value.__self__)]
        if isinstance(value, (types.BuiltinMethodType, types.MethodWrapperType)):
            return [(f"{path}.__self__", value.__self__)]
        return self._object(path, value)

    def _note(
        self, path: str, holder: Any, keys: Sequence[Any], form: str, is_whole: bool = True
    ) -> list[tuple[str, Any]]:
        guard = Guard(path, holder, keys, form, is_whole)
        self.guards.append(guard)
        return list(zip(guard.places(), guard.was, strict=True))

    def _function(self, path: str, function: types.FunctionType) -> list[tuple[str, Any]]:
        if function.__module__ is None or function.__module__.split(".")[0] == OURS:
            return []
        found = []
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            found += self._note(name, cell, [None], "", is_whole=False)
        names = [n for n in _global_names(function.__code__) if n in function.__globals__]
        found += self._note("", function.__globals__, names, "{}", is_whole=False)
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
        found = self._note(path, attributes, names, ".{}")
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


def _look(holder: Any, key: Any) -> Any:
    """What stands in a place now."""
    if isinstance(holder, types.CellType):
        try:
            return holder.cell_contents
        except ValueError:  # not assigned yet
            return MISSING
    if isinstance(holder, dict):
        return holder.get(key, MISSING)
    return holder[key] if key < len(holder) else MISSING
