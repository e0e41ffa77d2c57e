"""What a backend or a device may offer beyond what it must: what it then says or does is right.

A device without one of these does the same the plain way, so that every row compares values.
Sorts, loops that end early, hooks that may be left out and limits have rows of their own.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad import activation, dtypes
from coregrad.ir.kernel import Kernel
from coregrad_conformance import oracle, tables
from coregrad_conformance.builder import Builder
from coregrad_conformance.row import Failure, Outcome, Row
from coregrad_conformance.target import Target, bytes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

GROUP = "optional"
INT = dtypes.int32
N = 515
SLACK = 1.05  # two clocks need not agree to the last digit
MOMENT = 1e-3  # seconds, which the coarser of two clocks may be off


def rows() -> Iterator[Row]:
    """The rows of this file."""
    yield _row("words", _words, "Rank, title and assembly are what they have to be.")
    yield _row("elapsed", _elapsed, "A launch takes no longer than the wait for it, in seconds.")
    yield _row("overwrite", _overwrite, "A kernel whose output is one of its inputs.")
    yield _row("replay", _replay, "Launches carried out as one, on ever other buffers.")
    yield _row("replay-apart", _apart, "Several replays, one of them of a kernel of the other.")


def _row(name: str, run: Callable[[Target], Outcome], summary: str) -> Row:
    return Row(f"optional/{name}", "core", GROUP, run, summary=summary)


# ---- words -------------------------------------------------------------------------------------


def _words(target: Target) -> Outcome:
    active = target.active
    ask = getattr(active.backend, "rank", None)
    ranks = [active.info.rank] if ask is None else [ask(), ask()]
    if ranks[0] not in activation.RANKS or len(set(ranks)) != 1:
        raise Failure(f"rank() answers {ranks}; one of {', '.join(activation.RANKS)} it must be")
    title = getattr(active.device, "title", "a device")
    if not isinstance(title, str) or not title.strip():
        raise Failure(f"the title is {title!r}, not a text")
    assembly = getattr(active.device, "assembly", None)
    if assembly is not None:
        text = assembly(target.program(_line("assembled", 3)))
        if not isinstance(text, str) or not text.strip():
            raise Failure(f"assembly() gave {type(text).__name__}, not a text")
    return Outcome(3)


# ---- time --------------------------------------------------------------------------------------


def _elapsed(target: Target) -> Outcome:
    """By a device that is opened anew, as some measure only where DEBUG was set by then."""
    with _debugging():
        index = int(target.name.partition(":")[2] or 0)
        device = target.active.backend.open_device(index)
    timed = Opened(target, device)
    elapsed = getattr(device, "elapsed", lambda: None)
    x = _data("elapsed")
    buffers, compared = _Buffers(timed, [x, np.zeros_like(x)]), 0
    compiled, grid = timed.compiled(_line("timed", 7)), N
    try:
        for _ in range(5):
            device.synchronize()
            began = time.perf_counter()
            timed.launch(compiled, [buffers.raw[1], buffers.raw[0]], grid)
            device.synchronize()
            waited = time.perf_counter() - began
            took = elapsed()
            if took is not None:
                _require_possible(took, waited)
            compared += 1
        compared += buffers.check(1, x * 7, "what was timed")
    finally:
        buffers.free()
    return Outcome(compared)


def _require_possible(took: Any, waited: float) -> None:
    if not isinstance(took, (int, float)) or not math.isfinite(took) or took < 0:
        raise Failure(f"elapsed() gave {took!r}; seconds as a number, or None")
    if took > waited * SLACK + MOMENT:
        raise Failure(f"elapsed() gave {took} s for a launch that was over after {waited} s")


class Opened(Target):
    """The target's backend with another device."""

    def __init__(self, target: Target, device: Any) -> None:
        self.active = replace(target.active, device=device)


@contextmanager
def _debugging() -> Iterator[None]:
    before = os.environ.get("DEBUG")
    os.environ["DEBUG"] = "2"
    try:
        yield
    finally:
        if before is None:
            del os.environ["DEBUG"]
        else:
            os.environ["DEBUG"] = before


# ---- one buffer for two ------------------------------------------------------------------------


def _overwrite(target: Target) -> Outcome:
    """Both roles in one buffer where the device says that it may be; else in two."""
    may_overwrite = getattr(target.active.device, "may_overwrite", None)
    compared = 0
    for kind in ("grid", "serial"):
        for lanes in sorted({1, target.lanes}):
            kernel = _line(f"over_{kind}_x{lanes}", -5, kind, lanes)
            compiled, x = target.compiled(kernel), _data("overwrite")
            eager = target.active.hooks.style == "eager"
            one = may_overwrite is not None and not eager and may_overwrite(compiled)
            buffers = _Buffers(target, [x, np.zeros_like(x)])
            try:
                into = buffers.raw[0 if one else 1]
                for _ in range(3):
                    target.launch(compiled, [into, buffers.raw[0]], kernel.grid)
                times = 3 if one else 1
                compared += buffers.check(0 if one else 1, x * (-5) ** times, "the output")
            finally:
                buffers.free()
    return Outcome(compared)


# ---- replays -----------------------------------------------------------------------------------


def _replay(target: Target) -> Outcome:
    """b = 3*a; c = b + a; d = 3*c, then b = 3*d: every order, slot and buffer counts."""
    triple, add = target.compiled(_line("tripled", 3)), target.compiled(_sum("added"))
    launches = [
        (triple, [1, 0], N),
        (add, [2, 1, 0], N),
        (triple, [4, 2], N),
        (triple, [1, 4], N),
    ]
    run, compared = replayed(target, launches), 0
    held = [_Buffers(target, [_data(f"replay {k}"), *_blanks(4)]) for k in range(3)]
    try:
        for k in (0, 1, 0, 2, 1):
            run([*held[k].raw[:3], None, held[k].raw[4]])  # a slot that no launch uses
        for k in range(3):
            x = _data(f"replay {k}")
            for slot, times in ((0, 1), (1, 36), (2, 4), (4, 12)):
                compared += held[k].check(slot, x * times, f"buffer {slot} of replay {k}")
    finally:
        for buffers in held:
            buffers.free()
    return Outcome(compared)


def _apart(target: Target) -> Outcome:
    """Two replays of one kernel with other slots, launched in turn, and one that is dropped."""
    kernel = _line("apart", 11)
    compiled = target.compiled(kernel)
    forth = replayed(target, [(compiled, [1, 0], kernel.grid)])
    back = replayed(target, [(compiled, [0, 1], kernel.grid)])
    x = _data("apart")
    buffers, dropped = _Buffers(target, [x, *_blanks(1)]), replayed(target, [])
    try:
        dropped([])
        del dropped
        for run in (forth, back, forth):
            run(buffers.raw)
        compared = buffers.check(0, x * 121, "the first buffer")
        compared += buffers.check(1, x * 1331, "the second buffer")
        target.launch(compiled, [buffers.raw[1], buffers.raw[0]], kernel.grid)
        compared += buffers.check(1, x * 1331, "after a plain launch")
    finally:
        buffers.free()
    return Outcome(compared)


def replayed(target: Target, launches: list[Any]) -> Callable[[list[Any]], None]:
    """The launches as a function of all buffers, by the device's own way if it has one."""
    replay = getattr(target.active.device, "replay", None)
    if replay is not None:
        run: Callable[[list[Any]], None] = replay(launches).run
        return run

    def one_by_one(buffers: list[Any]) -> None:
        for compiled, slots, grid in launches:
            target.launch(compiled, [buffers[slot] for slot in slots], grid)

    return one_by_one


# ---- kernels and buffers -----------------------------------------------------------------------


def _data(name: str) -> NDArray[Any]:
    return tables.bits(tables.generator(f"optional/{name}"), INT, N)


def _blanks(count: int) -> list[NDArray[Any]]:
    return [np.zeros(N, np.int32)] * count


def _line(name: str, factor: int, kind: str = "grid", lanes: int = 1) -> Kernel:
    build = Builder(name)
    out, source = build.out(INT, N), build.into(INT, N)
    with build.loop(N, kind, lanes) as i:
        value = build.op("mul", build.load(source, i), build.const(factor, INT))
        build.store(out, i, value)
    return build.kernel()


def _sum(name: str) -> Kernel:
    build = Builder(name)
    out, a, b = build.out(INT, N), build.into(INT, N), build.into(INT, N)
    with build.loop(N, "grid") as i:
        build.store(out, i, build.op("add", build.load(a, i), build.load(b, i)))
    return build.kernel()


class _Buffers:
    """Device memory filled with arrays."""

    def __init__(self, target: Target, arrays: list[NDArray[Any]]) -> None:
        self.device = target.active.device
        self.raw = [self.device.allocate(x.nbytes) for x in arrays]
        for raw, x in zip(self.raw, arrays, strict=True):
            self.device.copy_in(raw, bytes_of(x))

    def check(self, at: int, want: NDArray[Any], what: str) -> int:
        """Compare a buffer's content."""
        got = np.zeros_like(want)
        self.device.copy_out(self.raw[at], bytes_of(got))
        try:
            return oracle.compare(got, oracle.Expected(want), INT).compared
        except Failure as failure:
            raise Failure(f"{what}: {failure}") from None

    def free(self) -> None:
        """Give the memory back."""
        for raw in self.raw:
            self.device.free(raw)
