"""Loops that end before their limit: a limit misread, rounded, or taken from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from coregrad_conformance.selftest.device import Frame, with_frame
from coregrad_conformance.selftest.fault import Fault

STEP = 4  # iterations that these frames run at a time, as one that has vectors does
Change = Callable[[Any, int], Any]


def faults() -> Iterator[Fault]:
    """All of this file."""
    for name, says, by, change in MISREAD:
        yield Fault(f"ends/{name}", "sizes and tails", "", "", says, by,
                    with_frame(_with_limit(change)))  # fmt: skip
    for name, says, by, frame in FRAMES:
        yield Fault(f"ends/{name}", "sizes and tails", "", "", says, by, with_frame(frame))


def _with_limit(change: Change) -> type[Frame]:
    class Misread(Frame):
        def loop_until(
            self, name: str, extent: int, limit: Any, lanes: int, resume: bool
        ) -> Iterator[Any]:
            with np.errstate(all="ignore"):
                wrong = np.asarray(change(np.asarray(limit), extent), np.int64)
            return super().loop_until(name, extent, wrong, lanes, resume)

    return Misread


def _rounded_up(limit: Any, extent: int) -> Any:
    """As bit patterns, so that the largest ones wrap."""
    return (limit + np.int64(STEP - 1)) & np.int64(-STEP)


# fmt: off
MISREAD: tuple[tuple[str, str, str, Change], ...] = (
    ("one-early", "a loop with a limit ends one iteration before it", "ends/sums",
     lambda limit, n: limit - 1),
    ("one-early-inside", "a loop ends one iteration before a limit that is below its extent",
     "ends/maxima", lambda limit, n: np.where(limit < n, limit - 1, limit)),
    ("last-lost", "a loop whose limit is its extent loses its last iteration", "ends/argmaxima",
     lambda limit, n: np.where(limit == n, n - 1, limit)),
    ("beyond-is-none", "a limit beyond the extent is taken for none at all", "ends/siblings",
     lambda limit, n: np.where(limit > n, 0, limit)),
    ("step-early", "of a limit only whole fours are run", "ends/sums",
     lambda limit, n: limit // STEP * STEP),
    ("at-most-half", "a limit beyond half of the extent is taken for half of it", "ends/nested",
     lambda limit, n: np.minimum(limit, n // 2)),
    ("one-is-none", "a limit of 1 runs nothing", "ends/argmaxima",
     lambda limit, n: np.where(limit == 1, 0, limit)),
    ("in-int32", "a limit is cut to 32 bits with a sign", "ends/one-limit",
     lambda limit, n: limit.astype(np.int32)),
    ("in-uint32", "a limit is cut to 32 bits without a sign", "ends/sums",
     lambda limit, n: limit & 0xFFFFFFFF),
    ("in-uint8", "a limit is cut to a byte", "ends/one-limit", lambda limit, n: limit & 0xFF),
    ("in-float32", "a limit goes by way of float32, and INT64_MAX comes out negative",
     "ends/maxima", lambda limit, n: limit.astype(np.float32).astype(np.int64)),
    ("rounding-wraps", "a limit is rounded up to whole fours before it is compared with the extent",
     "ends/one-limit", _rounded_up),
    ("first-rows", "the limit of the first row is that of all", "ends/sums",
     lambda limit, n: np.ravel(limit)[0]),
    ("last-rows", "the limit of the last row is that of all", "ends/gate",
     lambda limit, n: np.ravel(limit)[-1]),
    ("smallest", "the smallest limit of all rows is that of all", "ends/nested",
     lambda limit, n: np.min(limit)),
)
# fmt: on


# ---- what goes on behind whole steps -----------------------------------------------------------


class _RestAnew(Frame):
    """What is left beyond whole fours begins at 0 again."""

    def loop_until(
        self, name: str, extent: int, limit: Any, lanes: int, resume: bool
    ) -> Iterator[Any]:
        stop = max(0, min(extent, int(np.max(limit))))
        yield from self.loop(name, stop // STEP * STEP, "serial", lanes, resume)
        yield from self.loop(name, stop % STEP, "serial", lanes, resume)


class _StepTwice(Frame):
    """What is left beyond whole fours is the last whole four once more."""

    def loop_until(
        self, name: str, extent: int, limit: Any, lanes: int, resume: bool
    ) -> Iterator[Any]:
        stop = max(0, min(extent, int(np.max(limit))))
        for index in self.loop(name, stop, "serial", lanes, resume):
            late = (index >= stop // STEP * STEP) & (stop >= STEP)
            yield np.where(late, index - STEP, index)


class _Remembered(Frame):
    """A loop ends where one of its name and extent ended before, in this kernel or another."""

    ends: dict[tuple[str, int], Any] = {}  # noqa: RUF012  (that it is shared is the fault)

    def loop_until(
        self, name: str, extent: int, limit: Any, lanes: int, resume: bool
    ) -> Iterator[Any]:
        first = self.ends.setdefault((name, extent), np.max(limit))
        return super().loop_until(name, extent, first, lanes, resume)


class _NestShares(Frame):
    """A loop within one that has a limit is given that limit."""

    def __init__(self, header: Any, buffers: Any) -> None:
        super().__init__(header, buffers)
        self.around: list[Any] = []

    def loop_until(
        self, name: str, extent: int, limit: Any, lanes: int, resume: bool
    ) -> Iterator[Any]:
        limit = np.minimum(limit, np.max(self.around[-1]) // 2) if self.around else limit
        self.around.append(limit)
        yield from super().loop_until(name, extent, limit, lanes, resume)
        self.around.pop()


FRAMES: tuple[tuple[str, str, str, type[Frame]], ...] = (
    ("rest-anew", "the rest of a loop with a limit begins at 0 again", "ends/sums", _RestAnew),
    ("step-twice", "the rest of a loop with a limit is its last four once more", "ends/sums",
     _StepTwice),
    ("remembered", "a loop ends where one of its name and extent has ended before",
     "ends/sums", _Remembered),
    ("nest-shares", "a loop within one that has a limit ends at half of that", "ends/nested",
     _NestShares),
)  # fmt: skip
