"""What the compiler knows of a device: its limits, its frozen hooks, a kernel under construction.

These are the parts of the contract that passes see; `coregrad/hookspecs.py` shows them beside the
25 hooks and is what a backend imports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from coregrad.dtypes import DType
from coregrad.ir.kernel import Array, Param


@dataclass(frozen=True)
class Limits:
    """What a device can hold. Scheduling obeys these; nothing else is assumed of a device.

    ``vector_bytes``: bytes of one vector register, 0 for a device without explicit lanes.
    ``dtypes``: what values may be; a dtype not listed raises when a tensor of it is made.
    ``max_buffers``: buffer arguments of one kernel. ``threads``, ``local_bytes``: of a work-group.
    ``fast_local``: local memory is faster than buffers are; false for a CPU, which caches both.
    ``private_bytes``: scratch of one grid iteration. ``host_memory``: buffers are host memory.
    ``float_mod``: lower_mod also takes floats; where it does not, the core writes fmod itself.
    """

    dtypes: frozenset[DType]
    vector_bytes: int = 0
    max_buffers: int = 31
    threads: int = 1
    local_bytes: int = 0
    private_bytes: int = 65536
    index_bits: int = 64
    host_memory: bool = False
    float_mod: bool = True
    fast_local: bool = True


@dataclass(frozen=True)
class Header:
    """What is known of a kernel before its body: ``grid`` is the extent of its grid loop, or 1."""

    name: str
    params: tuple[Param, ...]
    grid: int


class Frame(Protocol):
    """A kernel under construction: its loops, its reduction variables and its scratch memory.

    Optional: ``loop_until(name, extent, limit, lanes, resume)`` is ``loop`` of kind serial that
    ends at ``limit``, an int64 value with one lane (eager: an array, whose largest element counts).
    It may be anything: negative, or far beyond the extent. Nothing that stands in the loop changes
    anything from the limit on, so that a loop with lanes may end with a whole step; one without
    ends right there, since the core leaves out gates that hold before it. Resumed, it goes on
    behind the last whole step of the extent. Without the method such loops run to their extent.
    """

    def loop(self, name: str, extent: int, kind: str, lanes: int, resume: bool) -> Iterator[Any]:
        """Open a loop, yield its index (an int64 value, lanes 1), close it when resumed.

        ``kind`` is "grid" (iterations are independent and shared out over launches or threads;
        at most one per kernel), "local", "serial" or "unroll". With ``lanes`` > 1 the index
        advances by that many and the loop stops before an incomplete step; the same loop is
        then opened once more with ``lanes`` 1 and ``resume`` true, to run from where the other
        one ended. An eager frame yields once per block of iterations, the index being an array
        along an axis of its own.
        """

    def declare(self, name: str, dtype: DType, initial: Any, lanes: int) -> None:
        """Make a variable that a reduction updates. ``initial`` has one lane: spread it."""

    def read(self, name: str) -> Any:
        """The variable's value here."""

    def assign(self, name: str, value: Any) -> None:
        """Give the variable a new value."""

    def allocate(self, array: Array) -> None:
        """Make scratch memory, uninitialised, for the rest of the enclosing loop."""

    def barrier(self) -> None:
        """Wait for all threads of the work-group; their local stores are then visible."""

    def broadcast(self, value: Any, dtype: DType, lanes: int) -> Any:
        """A one-lane value in every lane. (Eager: at the full shape of the open loops.)"""

    def ramp(self, base: Any, stride: int, dtype: DType, lanes: int) -> Any:
        """base, base + stride, base + 2*stride ...: an integer in every lane."""

    def split(self, value: Any, dtype: DType, lanes: int) -> tuple[Any, Any]:
        """The lower and the upper half of the lanes, each with half as many (lanes is even)."""

    def finish(self) -> Any:
        """The program. Style render: the text that DEBUG=4 prints and ``Device.compile`` takes."""


@dataclass(frozen=True)
class Hooks:
    """A backend's hooks frozen to bare functions, by op name; an op it lacks is missing."""

    style: str
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def __getitem__(self, op: str) -> Callable[..., Any]:
        return self.functions[op]

    def __contains__(self, op: str) -> bool:
        return op in self.functions
