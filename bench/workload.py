"""What a benchmark is. It knows no library and measures nothing.

A file in ``workloads/`` makes benchmarks with :func:`operation`, :class:`Steady` or :class:`Fresh`;
all of them land in ``REGISTRY``, in the order in which the files and the lines stand.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from libraries import Library

SEED = 1234

Array = NDArray[Any]
Results = Sequence[Any]  # tensors of the library, arrays or numbers
Step = Callable[[], Results]
Compute = Callable[..., Any]

REGISTRY: dict[str, Steady | Fresh] = {}


@dataclass(frozen=True)
class Steady:
    """Work that is repeated in one process until its time no longer changes.

    ``build(library)`` makes the inputs, the same ones in every library, and returns the step: a
    function without arguments that does one unit of work and returns its results, computed.
    """

    name: str
    about: str
    build: Mapping[str, Callable[[Library], Step]]  # by name of library
    targets: Mapping[str, float] = field(default_factory=dict)  # peer -> largest ours / theirs
    rtol: float = 1e-4
    atol: float = 1e-4
    calls: int = 4  # before timing; the third call of a capturing library is its first replay
    stateful: bool = False  # every call goes on where the last one stopped: compare all of them

    def __post_init__(self) -> None:
        _register(self)


@dataclass(frozen=True)
class Fresh:
    """Work that is done once in a new interpreter.

    The seconds are those a program prints on its first line, or else its whole run minus that of
    ``baseline``. A second line, where there is one, is a result to be compared. Every run has
    empty caches.
    """

    name: str
    about: str
    programs: Mapping[str, str]  # by name of library
    baseline: str | None = None
    limit: float | None = None  # seconds coregrad may take
    rtol: float = 1e-4
    atol: float = 1e-4

    def __post_init__(self) -> None:
        _register(self)


def operation(
    name: str,
    about: str,
    shapes: Sequence[tuple[int, ...]],
    compute: Compute,
    *,
    targets: Mapping[str, float] | None = None,
    leaves: int = 0,
    make: Callable[[np.random.Generator], Sequence[Array]] | None = None,
    rtol: float = 1e-4,
    atol: float = 1e-4,
    **special: Compute,
) -> Steady:
    """A function of a few tensors, made by ``make`` or filled with normal numbers.

    ``compute(library, *tensors)`` returns a tensor or a tuple of tensors; ``special`` holds other
    spellings by name of library (``torch=...``). The first ``leaves`` tensors require a gradient.
    """
    spelled = {"coregrad": compute, "torch": compute, "tinygrad": compute, **special}

    def builder(function: Compute) -> Callable[[Library], Step]:
        def build(library: Library) -> Step:
            rng = np.random.default_rng(SEED)
            arrays = make(rng) if make else [rng.standard_normal(s, np.float32) for s in shapes]
            tensors = [library.tensor(a, i < leaves) for i, a in enumerate(arrays)]
            return library.stepper(function, tensors)

        return build

    return Steady(
        name=name,
        about=about,
        build={library: builder(function) for library, function in spelled.items()},
        targets=targets or {},
        rtol=rtol,
        atol=atol,
    )


def load() -> dict[str, Steady | Fresh]:
    """Import every file in ``workloads/``; all benchmarks by name."""
    package = importlib.import_module("workloads")
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
        importlib.import_module(f"workloads.{module.name}")
    return REGISTRY


def _register(made: Steady | Fresh) -> None:
    if made.name in REGISTRY:
        raise ValueError(f"two workloads are called {made.name}")
    REGISTRY[made.name] = made
