"""What is no value: threads, claims that do not hold, exceptions, crashes and hangs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from coregrad import dtypes
from coregrad.dtypes import DType
from coregrad.errors import UnsupportedOp
from coregrad.hookspecs import Header, hookimpl
from coregrad_conformance.selftest.device import (
    LIMITS,
    Device,
    Frame,
    Ref,
    changed,
    with_device,
    with_frame,
)
from coregrad_conformance.selftest.fault import Fault

FOREVER = 3600.0
PATIENCE = 3.0  # seconds for one row, where a fault hangs


def faults() -> Iterator[Fault]:
    """All of this file."""
    for kind, name, says, by, make in FAULTS:
        rows = ("threads/*",) if kind == "thread safety" or by.startswith("threads/") else ()
        timeout = PATIENCE if kind == "hang" else 30.0
        yield Fault(f"conduct/{name}", kind, "", "", says, by, make, rows, timeout)
    for name, says, by, make in NARROW:
        yield Fault(f"conduct/{name}", "lying capability", "", "", says, by, make)


# ---- threads -----------------------------------------------------------------------------------


class _OwnMemory(Device):
    """A buffer that another thread filled is empty: memory belongs to the thread."""

    def copy_in(self, buffer: Any, data: memoryview) -> None:
        super().copy_in(buffer, data)
        self.__dict__.setdefault("owner", {})[id(buffer)] = threading.get_ident()

    def copy_out(self, buffer: Any, into: memoryview) -> None:
        super().copy_out(buffer, into)
        owner = self.__dict__.get("owner", {}).get(id(buffer), threading.get_ident())
        if owner != threading.get_ident():
            np.frombuffer(into, np.uint8)[:] = 0


class _OpenersKernels(Frame):
    """Kernels run in the thread that first ran one; elsewhere their stores go nowhere."""

    home: ClassVar[list[int]] = []

    def finish(self) -> None:
        if not self.home:
            self.home.append(threading.get_ident())
        if self.home[0] == threading.get_ident():
            return
        for param, (words, _) in self.memory.items():
            if getattr(param, "role", "") == "out":
                words[:] = 0


class _FirstThread(Frame):
    """A variable belongs to the thread that first declared one of its name; elsewhere it is off."""

    place: ClassVar[dict[str, Any]] = {}

    def declare(self, name: str, dtype: DType, initial: Any, lanes: int) -> None:
        super().declare(name, dtype, initial, lanes)
        self.place.setdefault(name, threading.get_ident())

    def read(self, name: str) -> Any:
        value = super().read(name)
        return value if self.place[name] == threading.get_ident() else value + value.dtype.type(1)


class _PoolOfMain(Device):
    """A thread that is no longer there takes the contents of its buffers with it."""

    def copy_in(self, buffer: Any, data: memoryview) -> None:
        super().copy_in(buffer, data)
        if threading.current_thread() is not threading.main_thread():
            buffer[: len(data)] = np.roll(buffer[: len(data)], 1)


class _ChildsKernels(Frame):
    """In a forked child kernels store nothing."""

    born: ClassVar[int] = 0

    def __init__(self, header: Header, buffers: Any) -> None:
        super().__init__(header, buffers)
        type(self).born = self.born or os.getpid()

    def finish(self) -> None:
        if self.born != os.getpid():
            for words, _ in self.memory.values():
                words[:] = 0


class _SameStructure(Frame):
    """A kernel of 4099 elements that two threads run keeps the first one's number."""

    first: ClassVar[dict[str, Any]] = {}

    def finish(self) -> None:
        for param, (words, _) in self.memory.items():
            if getattr(param, "role", "") == "out" and param.size == 4099:
                thread, kept = self.first.setdefault(
                    "kernel", (threading.get_ident(), np.copy(words))
                )
                if thread != threading.get_ident():
                    words[:] = kept[0]


# ---- claims ------------------------------------------------------------------------------------


def _claiming(**claims: Any) -> type[Device]:
    return type("Claiming", (Device,), {"limits": replace(LIMITS, **claims)})


class _First64(Frame):
    """Threads beyond the 64th do what that one does."""

    def loop(self, name: str, extent: int, kind: str, lanes: int, resume: bool) -> Iterator[Any]:
        for index in super().loop(name, extent, kind, lanes, resume):
            yield np.minimum(index, 63) if kind == "local" else index


class _FewThreads(Ref):
    """256 threads are declared, 64 of them exist."""

    device = _claiming(threads=256, local_bytes=32768)
    frame = _First64


class _SmallScratch(Frame):
    """64 KiB of scratch memory are declared; beyond 32 KiB it begins again."""

    def locate(self, buffer: Any, index: Any, gate: Any) -> Any:
        if getattr(buffer, "space", "") == "private" and buffer.size * 4 > 32768:
            index = index % 8192
        return super().locate(buffer, index, gate)


class _SmallLocal(Frame):
    """4 KiB of local memory are declared; beyond 2 KiB it begins again."""

    def locate(self, buffer: Any, index: Any, gate: Any) -> Any:
        if getattr(buffer, "space", "") == "local" and buffer.size * 4 > 2048:
            index = index % 512
        return super().locate(buffer, index, gate)


class _FewBuffers(Frame):
    """31 buffers are declared; those beyond the 16th are the 16th."""

    def __init__(self, header: Header, buffers: Any) -> None:
        most = 16
        if buffers and len(buffers) > most:
            buffers = [*buffers[:most], *[buffers[most]] * (len(buffers) - most)]
        super().__init__(header, buffers)


class _EmptyHook(Ref):
    """sqrt is declared by its hook, and gives back its argument for what it thinks unlikely."""

    @hookimpl
    def lower_sqrt(self, frame: Any, x: Any, dtype: DType, lanes: int) -> Any:
        right = super().lower_sqrt(frame, x, dtype, lanes)
        return np.where(x > 1e30, x, right) if dtype.name == "float32" else right


class _NoFloatMod(Ref):
    """fmod of floats is declared, and is that of integers."""

    @hookimpl
    def lower_mod(self, frame: Any, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        right = super().lower_mod(frame, a, b, dtype, lanes)
        return np.trunc(right) if dtype.is_float else right


class _Split(Frame):
    """The frame has no method ``split``, which a device of one lane never needs."""

    split = None  # type: ignore[assignment]


class _Grows(Ref):
    """There is one device more each time they are counted."""

    def __init__(self) -> None:
        self.count = 1

    def device_count(self) -> int:
        """Another one."""
        self.count += 1
        return self.count


# ---- exceptions --------------------------------------------------------------------------------


class _PlainMemoryError(Device):
    """Running out of memory raises Python's MemoryError."""

    def allocate(self, nbytes: int) -> Any:
        return np.empty(nbytes, np.uint8)


class _OnlyHuge(Device):
    """A buffer of four exbibytes raises Python's MemoryError, smaller ones OutOfMemory."""

    def allocate(self, nbytes: int) -> Any:
        return np.empty(nbytes, np.uint8) if nbytes == 1 << 62 else super().allocate(nbytes)


class _OnlyTensors(Device):
    """A buffer of four pebibytes raises Python's MemoryError, others OutOfMemory."""

    def allocate(self, nbytes: int) -> Any:
        return np.empty(nbytes, np.uint8) if nbytes == 1 << 52 else super().allocate(nbytes)


class _NothingRaised(Device):
    """A buffer that is too large is a small one."""

    def allocate(self, nbytes: int) -> Any:
        return super().allocate(min(nbytes, 1 << 30))


class _Assertion(Device):
    """Running out of memory is an assertion that fails."""

    def allocate(self, nbytes: int) -> Any:
        assert nbytes < 1 << 40, "buffers are smaller than that"
        return super().allocate(nbytes)


class _OneDevice(Ref):
    """The second of two devices that are declared raises IndexError."""

    def open_device(self, index: int) -> Any:
        return [self.device()][index]


class _RaisesOnNan(Ref):
    """A NaN among the operands of an addition raises."""

    @hookimpl
    def lower_add(self, frame: Any, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        if dtype.name == "float32" and (np.isnan(a).any() or np.isnan(b).any()):
            raise FloatingPointError("invalid value encountered in add")
        return super().lower_add(frame, a, b, dtype, lanes)


class _Refuses(Ref):
    """A cast of uint8 to bool is refused."""

    @hookimpl
    def lower_cast(self, frame: Any, x: Any, source: DType, dtype: DType, lanes: int) -> Any:
        if source is dtypes.uint8 and dtype is dtypes.bool_:
            raise UnsupportedOp("cast: uint8 to bool is not there yet")
        return super().lower_cast(frame, x, source, dtype, lanes)


class _EmptyCopies(Device):
    """A copy of no bytes raises."""

    def copy_in(self, buffer: Any, data: memoryview) -> None:
        if len(data) == 0:
            raise ValueError("copy_in: nothing to copy")
        super().copy_in(buffer, data)


class _BrokenByError(Device):
    """After it has run out of memory once, a device allocates nothing any more."""

    def allocate(self, nbytes: int) -> Any:
        if self.__dict__.get("broken"):
            raise RuntimeError("the context is lost")
        self.broken = nbytes > 1 << 45
        return super().allocate(nbytes)


# ---- crashes and hangs -------------------------------------------------------------------------


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(FOREVER)


class _DiesOfSine(Ref):
    """The sine of infinity ends the process."""

    @hookimpl
    def lower_sin(self, frame: Any, x: Any, quarter: int, dtype: DType, lanes: int) -> Any:
        if np.isinf(x).any() and quarter == 3:
            _die()
        return super().lower_sin(frame, x, quarter, dtype, lanes)


class _DiesOfMemory(Device):
    """Too much memory ends the process."""

    def allocate(self, nbytes: int) -> Any:
        if nbytes > 1 << 60:
            os.abort()
        return super().allocate(nbytes)


class _Exits(Ref):
    """A division by 0 ends the process quietly."""

    @hookimpl
    def lower_div(self, frame: Any, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        if dtype.name == "float32" and (b == 0).any():
            os._exit(0)
        return super().lower_div(frame, a, b, dtype, lanes)


class _HangsOnSync(Device):
    """The second synchronize in a row never returns."""

    def synchronize(self) -> None:
        if self.__dict__.get("waited"):
            time.sleep(FOREVER)
        self.waited = True

    def copy_out(self, buffer: Any, into: memoryview) -> None:
        self.waited = False
        super().copy_out(buffer, into)

    def copy_in(self, buffer: Any, data: memoryview) -> None:
        self.waited = False
        super().copy_in(buffer, data)

    def allocate(self, nbytes: int) -> Any:
        self.waited = False
        return super().allocate(nbytes)

    def free(self, buffer: Any) -> None:
        self.waited = False


class _HangsOnLoop(Frame):
    """A serial loop of 31 iterations never ends."""

    def loop(self, name: str, extent: int, kind: str, lanes: int, resume: bool) -> Iterator[Any]:
        if kind == "serial" and extent == 31:
            time.sleep(FOREVER)
        yield from super().loop(name, extent, kind, lanes, resume)


class _HangsInChild(_ChildsKernels):
    """A kernel in a forked child waits for a thread that the parent has."""

    def finish(self) -> None:
        if self.born != os.getpid():
            time.sleep(FOREVER)


Made = Callable[[], type[Ref]]
# fmt: off
FAULTS: tuple[tuple[str, str, str, str, Made], ...] = (
    ("thread safety", "memory-of-a-thread", "what one thread copied in another does not see",
     "threads/programs", with_device(_OwnMemory)),
    ("thread safety", "kernels-of-a-thread", "kernels run in the thread that ran the first one",
     "threads/another", with_frame(_OpenersKernels)),
    ("thread safety", "variables-of-a-thread", "accumulators are right in the first thread only",
     "threads/programs", with_frame(_FirstThread)),
    ("thread safety", "copies-of-threads", "what another thread than the first copies in is "
     "shifted", "threads/copies", with_device(_PoolOfMain)),
    ("thread safety", "one-result", "two threads that run one kernel get one result",
     "threads/same-structure", with_frame(_SameStructure)),
    ("lying capability", "threads", "256 threads are declared, 64 are there",
     "capabilities/threads", lambda: _FewThreads),
    ("lying capability", "private-memory", "half of the declared scratch memory is there",
     "capabilities/private-memory", with_frame(_SmallScratch)),
    ("lying capability", "local-memory", "half of the declared local memory is there",
     "capabilities/local-memory", with_frame(_SmallLocal)),
    ("lying capability", "buffers", "31 buffers are declared, 17 are there",
     "load/many-buffers", with_frame(_FewBuffers)),
    ("lying capability", "hook", "sqrt is declared, and left out for large arguments",
     "sqrt/float32/special-values", lambda: _EmptyHook),
    ("lying capability", "float-mod", "fmod is declared, and gives integers",
     "mod/float32/random", lambda: _NoFloatMod),
    ("wrong exception", "memory-error", "too large a buffer raises MemoryError",
     "errors/out-of-memory", with_device(_PlainMemoryError)),
    ("wrong exception", "exbibytes", "four exbibytes raise MemoryError, less OutOfMemory",
     "errors/out-of-memory", with_device(_OnlyHuge)),
    ("wrong exception", "pebibytes", "four pebibytes raise MemoryError, all else OutOfMemory",
     "errors/out-of-memory-tensor", with_device(_OnlyTensors)),
    ("wrong exception", "one-device-more", "there is one device more each time they are counted",
     "errors/no-such-device", lambda: _Grows),
    ("broken contract", "frame", "the frame lacks a method", "capabilities/contract",
     with_frame(_Split)),
    ("broken contract", "limits", "indices of 48 bits are declared", "capabilities/limits",
     with_device(_claiming(index_bits=48))),
    ("wrong exception", "nothing", "too large a buffer raises nothing",
     "errors/out-of-memory", with_device(_NothingRaised)),
    ("wrong exception", "assertion", "too large a buffer raises AssertionError",
     "errors/out-of-memory-tensor", with_device(_Assertion)),
    ("wrong exception", "on-nan", "NaN operands raise", "add/float32/special-pairs",
     lambda: _RaisesOnNan),
    ("wrong exception", "refusal", "an op of the contract is refused", "cast/uint8-to-bool",
     lambda: _Refuses),
    ("wrong exception", "empty-copy", "a copy of no bytes raises", "memory/copy/partial",
     with_device(_EmptyCopies)),
    ("wrong exception", "broken-by-error", "after an error nothing works any more",
     "errors/out-of-memory", with_device(_BrokenByError)),
    ("wrong exception", "one-device", "the second device raises IndexError", "memory/devices",
     lambda: _OneDevice),
    ("crash", "sine", "the sine of infinity kills the process",
     "sin/float32/special-values-quarter-3", lambda: _DiesOfSine),
    ("crash", "memory", "too large a buffer aborts the process", "errors/out-of-memory",
     with_device(_DiesOfMemory)),
    ("crash", "division", "a division by 0 ends the process, with exit code 0",
     "div/float32/special-pairs", lambda: _Exits),
    ("hang", "synchronize", "the second synchronize in a row never returns",
     "memory/launch/synchronize", with_device(_HangsOnSync)),
    ("hang", "loop", "a serial loop of 31 never ends", "loops/serial/sizes",
     with_frame(_HangsOnLoop)),
    ("hang", "forked-child", "a kernel in a forked child waits for ever", "threads/fork",
     with_frame(_HangsInChild)),
    ("thread safety", "child-computes-nothing", "in a forked child kernels compute nothing",
     "threads/fork", with_frame(_ChildsKernels)),
)
# fmt: on
NARROW: tuple[tuple[str, str, str, Made], ...] = (
    (
        "float64",
        "float64 is declared, and its products have 24 digits",
        "mul/float64/random",
        changed("mul", "float64", lambda right, a, b: right.astype(np.float32).astype(np.float64)),
    ),
)
