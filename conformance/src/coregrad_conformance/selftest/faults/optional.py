"""Wrong answers where none was asked for: clocks, replays, ranks, products claimed as a whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from coregrad.dtypes import DType
from coregrad.hookspecs import hookimpl
from coregrad_conformance.selftest.device import Device, Ref, Replay, launched, with_device
from coregrad_conformance.selftest.fault import Fault
from coregrad_cpu import reference

Launch = tuple[Any, Sequence[int], int]


def faults() -> Iterator[Fault]:
    """All of this file."""
    for name, kind, says, by, replay in REPLAYS:
        yield Fault(f"optional/replay-{name}", kind, "", "", says, by,
                    _device({"replays": replay}))  # fmt: skip
    for name, says, elapsed in CLOCKS:
        yield Fault(f"optional/elapsed-{name}", "lying capability", "", "", says,
                    "optional/elapsed", _device({"elapsed": elapsed}))  # fmt: skip
    for name, says, make in WORDS:
        yield Fault(f"optional/{name}", "lying capability", "", "", says, "optional/words", make)
    for name, kind, says, by, backend in CLAIMS:
        yield Fault(f"optional/contraction-{name}", kind, "", "", says, by,
                    partial(_claiming, backend))  # fmt: skip


def _claiming(backend: type[Ref]) -> type[Ref]:
    return backend


def _device(members: dict[str, Any]) -> Callable[[], type[Ref]]:
    return with_device(type("FaultyDevice", (Device,), members))


# ---- replays -----------------------------------------------------------------------------------


class _Frozen(Replay):
    """The buffers of the first run are those of all."""

    first: Any = None

    def run(self, buffers: Sequence[Any]) -> None:
        self.first = self.first or list(buffers)
        super().run(self.first)


class _HalfFrozen(Replay):
    """The first buffer of all is looked up once."""

    first: Any = None

    def run(self, buffers: Sequence[Any]) -> None:
        if len(buffers):
            self.first = buffers[0] if self.first is None else self.first
            buffers = [self.first, *buffers[1:]]
        super().run(buffers)


class _WithoutLast(Replay):
    """Of several launches the last is left out."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        super().__init__(launches if len(launches) < 3 else launches[:-1])


class _Unordered(Replay):
    """Launches of one kernel are put together, whatever stands between them."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        first = {id(compiled): at for at, (compiled, _, _) in reversed([*enumerate(launches)])}
        super().__init__(sorted(launches, key=lambda launch: first[id(launch[0])]))


class _Once(Replay):
    """A kernel that occurs twice is launched once."""

    def run(self, buffers: Sequence[Any]) -> None:
        done: set[int] = set()
        for compiled, slots, _ in self.launches:
            if id(compiled) not in done:
                launched(compiled, [buffers[slot] for slot in slots])
            done.add(id(compiled))


class _Renumbered(Replay):
    """Slots count the buffers that are there."""

    def run(self, buffers: Sequence[Any]) -> None:
        there = [buffer for buffer in buffers if buffer is not None]
        for compiled, slots, _ in self.launches:
            launched(compiled, [there[slot % len(there)] for slot in slots])


class _OneTable(Replay):
    """All replays of a kernel share the table of its arguments, which the last made fills."""

    tables: dict[Any, Any] = {}  # noqa: RUF012  (that it is shared is the fault)

    def __init__(self, launches: Sequence[Launch]) -> None:
        super().__init__(launches)
        if len(launches) == 1:
            self.tables[launches[0][0]] = list(launches)

    def run(self, buffers: Sequence[Any]) -> None:
        if len(self.launches) == 1:
            self.launches = self.tables[self.launches[0][0]]
        super().run(buffers)


class _EveryOther(Replay):
    """Every third run finds that nothing has changed."""

    runs = 0

    def run(self, buffers: Sequence[Any]) -> None:
        self.runs += 1
        if self.runs % 3:
            super().run(buffers)


REPLAYS: tuple[tuple[str, str, str, str, type[Replay]], ...] = (
    ("frozen", "cache collision", "a replay always runs on the buffers of its first run",
     "captured/again", _Frozen),
    ("half-frozen", "cache collision", "the first buffer of a replay stays that of its first run",
     "optional/replay", _HalfFrozen),
    ("without-last", "sizes and tails", "a replay of three launches or more leaves out the last",
     "captured/again", _WithoutLast),
    ("unordered", "missing barrier", "launches of one kernel are brought together",
     "optional/replay", _Unordered),
    ("once", "cache collision", "a kernel that a replay has twice is launched once",
     "optional/replay", _Once),
    ("renumbered", "strides and offsets", "slots without a buffer are not counted",
     "optional/replay", _Renumbered),
    ("one-table", "cache collision", "replays of one kernel share their arguments",
     "optional/replay-apart", _OneTable),
    ("every-third", "uninitialised memory", "every third run of a replay does nothing",
     "captured/state", _EveryOther),
)  # fmt: skip


# ---- clocks and words --------------------------------------------------------------------------


def _since_start(self: Any) -> float:
    return time.perf_counter()


CLOCKS: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("nanoseconds", "a time is told in nanoseconds", lambda self: 5e4),
    ("negative", "a time is negative", lambda self: -1e-6),
    ("nan", "a time is NaN", lambda self: float("nan")),
    ("text", "a time is a text", lambda self: "12 us"),
    ("since-start", "a time is counted from when the clock began", _since_start),
)


class _Undecided(Ref):
    """Its rank is another one each time."""

    asked = 0

    def rank(self) -> str:
        self.asked += 1
        return ("reference", "gpu")[self.asked % 2]


WORDS: tuple[tuple[str, str, Callable[[], type[Ref]]], ...] = (
    ("rank-changes", "a backend's rank is another one each time", lambda: _Undecided),
    ("title-number", "a device's title is a number", _device({"title": 3})),
    ("assembly-bytes", "assembly() gives bytes",
     _device({"assembly": lambda self, program: b"\x90"})),
)  # fmt: skip


# ---- products as a whole -----------------------------------------------------------------------


class _Claiming(Ref):
    """It claims every contraction, and runs the kernel as any other, but for a flag."""

    claimed = False

    def contraction(self, kernel: Any, emitter: Any) -> str:
        self.claimed = True
        try:
            emitter.kernel(kernel)
        finally:
            self.claimed = False
        return "run"


class _Narrow(_Claiming):
    """Factors and sums have the 11 bits of float16."""

    @hookimpl
    def lower_reduce(
        self, frame: Any, kind: str, accumulator: Any, value: Any, dtype: DType, lanes: int
    ) -> Any:
        if self.claimed and dtype.name == "float32":
            with np.errstate(all="ignore"):
                value = value.astype(np.float16).astype(value.dtype)
        return reference.Backend.lower_reduce(self, frame, kind, accumulator, value, dtype, lanes)


class _Single(_Claiming):
    """Sums of float64 are sums of float32."""

    @hookimpl
    def lower_reduce(
        self, frame: Any, kind: str, accumulator: Any, value: Any, dtype: DType, lanes: int
    ) -> Any:
        if self.claimed and dtype.name == "float64":
            value = value.astype(np.float32).astype(np.float64)
        return reference.Backend.lower_reduce(self, frame, kind, accumulator, value, dtype, lanes)


class _WithoutRest(_Claiming):
    """Of the terms in a tile the first four count."""

    @hookimpl
    def lower_reduce(
        self, frame: Any, kind: str, accumulator: Any, value: Any, dtype: DType, lanes: int
    ) -> Any:
        if self.claimed and dtype.name == "float32":
            folded = [i for i, n in enumerate(value.shape) if n > 4 and accumulator.shape[i] == 1]
            for axis in folded[-1:]:
                value = np.take(value, range(4), axis)
        return reference.Backend.lower_reduce(self, frame, kind, accumulator, value, dtype, lanes)


class _WithoutEpilogue(_Claiming):
    """What is added to a product's result is left out."""

    @hookimpl
    def lower_add(self, frame: Any, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        right = reference.Backend.lower_add(self, frame, a, b, dtype, lanes)
        return a + np.zeros_like(right) if self.claimed else right


CLAIMS: tuple[tuple[str, str, str, str, type[Ref]], ...] = (
    ("narrow", "precision", "products of float32 have 11 bits", "tensors/float32/matmul-small",
     _Narrow),
    ("single", "precision", "sums of products of float64 are those of float32",
     "tensors/float64/matmul-small", _Single),
    ("without-rest", "sizes and tails", "of a product's terms each tile counts four",
     "tensors/float32/matmul-small", _WithoutRest),
    ("without-epilogue", "accumulator", "what is added to a product is left out",
     "tensors/matmul-transposed", _WithoutEpilogue),
)  # fmt: skip
