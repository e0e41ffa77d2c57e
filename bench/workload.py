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
    build: Mapping[str, Callable[[Library], Step]]  # by column, else by name of library
    targets: Mapping[str, float] = field(default_factory=dict)  # column -> largest ours / theirs
    rtol: float = 1e-4
    atol: float = 1e-4
    calls: int = 4  # before timing; the third call of a capturing library is its first replay
    stateful: bool = False  # every call goes on where the last one stopped: compare all of them
    captured: bool = False  # compared with PyTorch by our captured time
    flops: float = 0.0  # of a step; with ``bytes`` they give the machine's limit
    bytes: float | None = None  # that a step must move; None: its inputs and results, 0: unknown
    cold: bool = False  # whether what it reads cannot stay in a cache, little as it is
    view: Callable[[Array], Array] | None = None  # what of a result is compared
    without: Mapping[str, str] = field(default_factory=dict)  # column -> why it is not run
    slow: Mapping[str, float] = field(default_factory=dict)  # column -> seconds until it is timed

    def __post_init__(self) -> None:
        _register(self)

    def builder(self, column: str, library: type[Library]) -> Callable[[Library], Step] | None:
        """What builds the step of a column, if it runs this workload."""
        if column in self.without:
            return None
        found = self.build.get(column)
        return found if found or library.special else self.build.get(library.name)


@dataclass(frozen=True)
class Fresh:
    """Work that is done once in a new interpreter.

    The seconds are those a program prints on its first line, or else its whole run minus that of
    ``baseline``. A second line, where there is one, is a result to be compared. Every run has
    empty caches, or with ``warm`` those that an earlier run filled.
    """

    name: str
    about: str
    programs: Mapping[str, str]  # by column
    baseline: str | None = None
    limit: float | None = None  # seconds coregrad may take
    warm: bool = False
    rounds: int | None = None
    rtol: float = 1e-4
    atol: float = 1e-4
    slow: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _register(self)


def operation(
    name: str,
    about: str,
    shapes: Sequence[tuple[int, ...]],
    compute: Compute,
    *,
    leaves: int = 0,
    make: Callable[[np.random.Generator], Sequence[Array]] | None = None,
    torch: Compute | None = None,
    tinygrad: Compute | None = None,
    out: Compute | None = None,
    **options: Any,
) -> Steady:
    """A function of a few tensors, made by ``make`` or filled with normal numbers.

    ``compute(library, *tensors)`` returns a tensor or a tuple of tensors. ``torch`` and
    ``tinygrad`` are other spellings; ``out`` is PyTorch's into reused memory. The first ``leaves``
    tensors require a gradient. ``options`` are the fields of :class:`Steady`.
    """
    spelled = {"coregrad": compute, "torch": torch or compute, "tinygrad": tinygrad or compute}
    if out is not None:
        spelled["torch-out"] = out

    def builder(function: Compute) -> Callable[[Library], Step]:
        def build(library: Library) -> Step:
            rng = np.random.default_rng(SEED)
            arrays = make(rng) if make else [rng.standard_normal(s, np.float32) for s in shapes]
            library.inputs = sum(a.nbytes for a in arrays)
            tensors = [library.tensor(a, i < leaves) for i, a in enumerate(arrays)]
            return library.stepper(function, tensors)

        return build

    build = {column: builder(function) for column, function in spelled.items()}
    return Steady(name=name, about=about, build=build, **options)


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
