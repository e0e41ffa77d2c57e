"""The backend that faults are put into: the reference, as a device with more to get wrong.

It is NumPy's reference with two devices and with work-groups of eight threads, so that rows about
either see something. It is handed to workers and never registered for users.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import numpy as np

from coregrad.dtypes import DType
from coregrad.hookspecs import CONTRACT_VERSION, BackendInfo, Header, hookimpl
from coregrad.ir.kernel import Array, Param
from coregrad_cpu import memory, reference

NAME = "ref"
THREADS = 8
LOCAL_BYTES = 4096
SHORT = 3  # a row of fewer elements is not sorted here
LIMITS = replace(memory.ReferenceDevice.limits, threads=THREADS, local_bytes=LOCAL_BYTES)
Change = Callable[..., Any]


@dataclass(frozen=True)
class Sort:
    """A program that sorts; a fault changes how."""

    dtype: DType
    rows: int
    length: int
    count: int

    def order(self, keys: Any) -> Any:
        """Where in each row the keys stand, the smallest first."""
        return np.argsort(keys, axis=-1, kind="stable")

    def run(self, places: Any, keys: Any, scratch: Any) -> None:
        """On buffers of bytes."""
        size = self.rows * self.length * self.dtype.itemsize
        table = keys[:size].view(self.dtype.storage).reshape(self.rows, self.length)
        found = self.order(table)[:, : self.count].astype(np.int32)
        places[: found.size * 4] = found.reshape(-1).view(np.uint8)


class Replay:
    """Launches to carry out as one; a fault changes which, and on what."""

    def __init__(self, launches: Sequence[tuple[Any, Sequence[int], int]]) -> None:
        self.launches = list(launches)

    def run(self, buffers: Sequence[Any]) -> None:
        """On buffers that the launches' slots number."""
        for compiled, slots, _ in self.launches:
            launched(compiled, [buffers[slot] for slot in slots])


def launched(compiled: Any, buffers: Sequence[Any]) -> None:
    """One launch: a sort, or a function that emits a kernel once more."""
    if isinstance(compiled, Sort):
        compiled.run(*buffers)
    else:
        compiled(buffers)


class Device(memory.ReferenceDevice):
    """The reference's memory, with room for work-groups, and with what a device may offer."""

    limits = LIMITS
    title: Any = "a device that faults are put into"
    sorts: type[Sort] = Sort
    replays: type[Replay] = Replay
    scratch = 1

    def sort(self, dtype: DType, rows: int, length: int, count: int) -> tuple[Sort, int] | None:
        """See the contract. Short rows are left to the core."""
        return None if length < SHORT else (self.sorts(dtype, rows, length, count), self.scratch)

    def replay(self, launches: Sequence[tuple[Any, Sequence[int], int]]) -> Replay:
        """See the contract."""
        return self.replays(launches)

    def part(self, buffer: Any, start: int, nbytes: int) -> Any:
        """See the contract."""
        return buffer[start : start + nbytes]

    def elapsed(self) -> Any:
        """See the contract. There is no clock."""
        return None

    def launch(self, compiled: Sort, buffers: Sequence[Any], grid: int) -> None:
        """Only sorts are launched: all else runs while it is emitted."""
        launched(compiled, buffers)


class Frame(reference.ReferenceFrame):
    """The reference's loops."""


class Ref(reference.Backend):
    """A fault replaces ``device`` or ``frame``, or overrides a hook."""

    device: type[memory.ReferenceDevice] = Device
    frame: type[reference.ReferenceFrame] = Frame

    def device_count(self) -> int:
        """Two, so that one can be taken for the other."""
        return 2

    def open_device(self, index: int) -> memory.ReferenceDevice:
        """A new one; the registry asks once for each index."""
        return self.device()

    def begin_kernel(self, header: Header, buffers: Sequence[Any] | None) -> Any:
        """See the contract."""
        return self.frame(header, buffers or ())


def info() -> BackendInfo:
    """What is said of it."""
    impl = f"{__name__}:Ref"
    return BackendInfo(NAME, CONTRACT_VERSION, impl, "reference", "the suite's test of itself")


def sound() -> tuple[BackendInfo, type[Ref]]:
    """The backend without a fault, as a worker takes it."""
    return info(), Ref


# ---- putting a fault in ------------------------------------------------------------------------


def with_hook(op: str, hook: Change) -> type[Ref]:
    """The backend with another hook: ``hook(right, *operands, dtype)`` gives the value.

    ``right`` is the reference's own value, computed before. A cast's operands are the value and
    its source dtype, a sine's the value and the quarter, a reduction's the kind, the accumulator
    and the value, a constant's the number.
    """
    name = f"lower_{op}"
    original = getattr(reference.Backend, name)

    @wraps(original)  # its signature and its mark are checked when a backend is activated
    def lowered(self: Ref, frame: Any, *given: Any) -> Any:
        *operands, dtype, _ = given
        right = original(self, frame, *given)
        with np.errstate(all="ignore"):
            return hook(right, *operands, dtype)

    return type("Faulty", (Ref,), {name: lowered})


def changed(op: str, names: str, change: Change) -> Callable[[], type[Ref]]:
    """A maker of backends that are wrong in one op, for these dtypes (a space between two).

    ``change(right, *operands)`` gives the wrong value.
    """

    def hook(right: Any, *given: Any) -> Any:
        *operands, dtype = given
        return change(right, *operands) if dtype.name in names.split() else right

    return lambda: with_hook(op, hook)


def recast(source: str, target: str, change: Change) -> Callable[[], type[Ref]]:
    """The same for casts from ``source`` to ``target``: ``change(right, x)``."""
    return _conversion("cast", source, target, change)


def retyped(source: str, target: str, change: Change) -> Callable[[], type[Ref]]:
    """The same for bits read as another dtype."""
    return _conversion("bitcast", source, target, change)


def _conversion(op: str, source: str, target: str, change: Change) -> Callable[[], type[Ref]]:
    def hook(right: Any, x: Any, before: DType, after: DType) -> Any:
        meant = before.name in source.split() and after.name in target.split()
        return change(right, x) if meant else right

    return lambda: with_hook(op, hook)


def folded(kind: str, names: str, change: Change) -> Callable[[], type[Ref]]:
    """The same for reductions of one kind: ``change(right, accumulator, value)``."""

    def hook(right: Any, what: str, accumulator: Any, value: Any, dtype: DType) -> Any:
        meant = what == kind and dtype.name in names.split()
        return change(right, accumulator, value) if meant else right

    return lambda: with_hook("reduce", hook)


@dataclass
class Access:
    """A load or a store, as its hook was asked for it."""

    frame: Any
    buffer: Param | Array
    index: Any
    gate: Any
    dtype: DType
    value: Any = None

    @property
    def words(self) -> Any:
        """The memory of the buffer."""
        return self.frame.memory[self.buffer][0]


Step = Callable[[Access], Any]


def loads(change: Callable[[Access, Step], Any]) -> Callable[[], type[Ref]]:
    """A maker of backends whose loads give ``change(access, load)``; load(access) is right."""

    class Loading(Ref):
        @hookimpl
        def lower_load(
            self,
            frame: Any,
            buffer: Param | Array,
            index: Any,
            stride: int | None,
            gate: Any | None,
            dtype: DType,
            lanes: int,
        ) -> Any:
            def load(a: Access) -> Any:
                return reference.Backend.lower_load(
                    self, a.frame, a.buffer, a.index, stride, a.gate, a.dtype, lanes
                )

            return change(Access(frame, buffer, index, gate, dtype), load)

    return lambda: Loading


def stores(change: Callable[[Access, Step], Any]) -> Callable[[], type[Ref]]:
    """A maker of backends whose stores do ``change(access, store)``; store(access) is right."""

    class Storing(Ref):
        @hookimpl
        def lower_store(
            self,
            frame: Any,
            buffer: Param | Array,
            index: Any,
            stride: int | None,
            value: Any,
            gate: Any | None,
            dtype: DType,
            lanes: int,
        ) -> None:
            def store(a: Access) -> None:
                reference.Backend.lower_store(
                    self, a.frame, a.buffer, a.index, stride, a.value, a.gate, a.dtype, lanes
                )

            change(Access(frame, buffer, index, gate, dtype, value), store)

    return lambda: Storing


def with_frame(frame: type[reference.ReferenceFrame]) -> Callable[[], type[Ref]]:
    """A maker of backends with other loops."""
    return lambda: type("Faulty", (Ref,), {"frame": frame})


def with_device(device: type[memory.ReferenceDevice]) -> Callable[[], type[Ref]]:
    """A maker of backends with another device."""
    return lambda: type("Faulty", (Ref,), {"device": device})
