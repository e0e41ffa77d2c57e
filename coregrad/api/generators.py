"""Random generators and iterators outside the graph: whether anybody drew from them.

What a function draws while it is captured would come back in every replay. States are looked at and
never set: a generator stays where the function left it. Clocks and files, and iterators that hide
where they are, show no state, and are not watched.
"""

from __future__ import annotations

import itertools
import operator
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

SCALARS = (bool, int, float, complex, str, bytes, type(None))
# Their iterators tell how much is left.
COUNTED: tuple[Any, ...] = ([], (), {}, {}.values(), {}.items(), set(), "", range(0))

# How many of its 624 words NumPy's Mersenne twister counts as used before anybody draws: 623 or
# 624, by the way it was seeded (numpy/random/_mt19937.pyx).
UNUSED = (623, 624)


class Watch:
    """The states of the shared generators, and of what ``found`` names, as they are now."""

    def __init__(self, found: list[tuple[str, Any]]) -> None:
        self._found = [(path, value, state(value)) for path, value in found]
        self._shared = [(path, look, look()) for path, look in SHARED.items()]

    def drawn(self) -> Iterator[tuple[str, bool]]:
        """The names of what was drawn from since, and whether everybody shares it."""
        for path, value, before in self._found:
            if state(value) != before:
                yield path, False
        for path, look, before in self._shared:
            now = look()
            if now != before and not (before is None and _is_new()):
                yield path, True


def is_drawn(value: Any) -> bool:
    """Whether a value is a generator or an iterator that shows its state.

    >>> is_drawn(random.Random(0)), is_drawn(iter([1, 2])), is_drawn([1, 2])
    (True, True, False)
    """
    return _look(value) is not None


def state(value: Any) -> Any:
    """A generator's or iterator's state, to be compared; None for other values.

    >>> numbers = itertools.count()
    >>> before = state(numbers)
    >>> before == state(numbers), next(numbers), before == state(numbers)
    (True, 0, False)
    """
    look = _look(value)
    return None if look is None else look(value)


def _look(value: Any) -> Callable[[Any], Any] | None:
    for kinds, look in LOOKS:
        if isinstance(value, kinds):
            return look
    return _numpy if type(value).__module__.startswith("numpy.random") else None


def _frozen(value: Any) -> Any:
    """NumPy's description of a state, with bytes instead of arrays, which do not compare."""
    if isinstance(value, dict):
        return tuple((key, _frozen(item)) for key, item in value.items())
    return value.tobytes() if isinstance(value, np.ndarray) else value


def _python(value: random.Random) -> Any:
    # The system's own generator has no state.
    return None if isinstance(value, random.SystemRandom) else value.getstate()


def _numpy(value: Any) -> Any:
    """The state of what NumPy's module for random numbers made: that is slow to import, so that
    its classes are not asked for."""
    if hasattr(value, "bit_generator"):  # a Generator
        return _frozen(value.bit_generator.state)
    if hasattr(value, "get_state"):  # a RandomState
        return _frozen(value.get_state(legacy=False))
    return _frozen(getattr(value, "state", None))  # a BitGenerator


def _suspended(value: types.GeneratorType[Any, Any, Any]) -> Any:
    """Where a generator function stands, and what its variables are."""
    frame = value.gi_frame
    if frame is None:
        return "finished"
    names = dict(frame.f_locals)
    return frame.f_lasti, {k: v if isinstance(v, SCALARS) else id(v) for k, v in names.items()}


def _inner(value: Any) -> Any:
    """The states of the iterators that one takes its items from."""
    return tuple(item if isinstance(item, int) else state(item) for item in value.__reduce__()[1])


def _shared_numpy() -> Any:
    """The state behind the functions of ``numpy.random``; None where nobody has imported it."""
    if "numpy.random" not in sys.modules:
        return None
    return _frozen(np.random.get_state(legacy=False))


def _is_new() -> bool:
    """Whether nobody has drawn from ``numpy.random`` since it was imported."""
    state_now: Any = np.random.get_state(legacy=False)
    return state_now["state"]["pos"] in UNUSED


# What a module shares with everybody who imports it.
SHARED: dict[str, Callable[[], Any]] = {
    "random": random.getstate,
    "numpy.random": _shared_numpy,
}

LOOKS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (random.Random, _python),
    (itertools.count, repr),
    (types.GeneratorType, _suspended),
    ((enumerate, zip, map, filter), _inner),
    (tuple(type(iter(kind)) for kind in COUNTED), operator.length_hint),
)
