"""Parts of buffers that lie elsewhere, are copies, or end with what they are part of."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from coregrad.hookspecs import Header
from coregrad_conformance.selftest.device import Device, Frame, Replay, with_device, with_frame
from coregrad_conformance.selftest.fault import Fault

ALIGNED = 256  # bytes: what many drivers ask of a sub-buffer's start
MIB = 1 << 20


def faults() -> Iterator[Fault]:
    """All of this file."""
    for name, kind, says, by, device in FAULTS:
        yield Fault(f"parts/{name}", kind, "", "", says, by, with_device(device))
    yield Fault("parts/store-to-whole", "strides and offsets", "", "",
                "a kernel that has two buffers stores to a part's buffer, not to the part",
                "parts/kernels/int32", with_frame(_StoresToWhole))  # fmt: skip


def _whole(buffer: Any) -> Any:
    """What a part is a part of; a buffer itself."""
    return buffer if buffer.base is None else buffer.base


# ---- where a part lies -------------------------------------------------------------------------


class _RoundedDown(Device):
    """A part begins at a multiple of what a driver asks for."""

    def part(self, buffer: Any, start: int, nbytes: int) -> Any:
        return super().part(buffer, start // ALIGNED * ALIGNED, nbytes)


class _FirstOnly(Device):
    """All parts of small buffers begin where the buffer does."""

    def part(self, buffer: Any, start: int, nbytes: int) -> Any:
        return super().part(buffer, 0 if buffer.size < 10_000 else start, nbytes)


class _TwentyBits(Device):
    """A start is a number of 20 bits."""

    def part(self, buffer: Any, start: int, nbytes: int) -> Any:
        return super().part(buffer, start % MIB, nbytes)


class _TwelveBits(Device):
    """A start in the last kilobyte of a page of 4096 bytes is one in the page before."""

    def part(self, buffer: Any, start: int, nbytes: int) -> Any:
        late = start >= 4096 and start % 4096 < 1024 and buffer.size == 5000
        return super().part(buffer, start - 4096 if late else start, nbytes)


# ---- whether it is there at all ----------------------------------------------------------------


class _Copied(Device):
    """A part is a copy."""

    def part(self, buffer: Any, start: int, nbytes: int) -> Any:
        return super().part(buffer, start, nbytes).copy()


class _CopiedWhereUneven(Device):
    """A part that does not begin where a driver likes is a copy."""

    def part(self, buffer: Any, start: int, nbytes: int) -> Any:
        found = super().part(buffer, start, nbytes)
        return found.copy() if start % ALIGNED else found


class _Cleared(Device):
    """A new part is empty, as if it had been asked for."""

    def part(self, buffer: Any, start: int, nbytes: int) -> Any:
        found = super().part(buffer, start, nbytes)
        found[:] = 0
        return found


class _PutOff(Device):
    """A copy to a part is put off until the part itself is read."""

    def copy_in(self, buffer: Any, data: memoryview) -> None:
        if buffer.base is None:
            super().copy_in(buffer, data)
        else:
            late = self.__dict__.setdefault("late", weakref.WeakValueDictionary())
            late[id(buffer)] = buffer
            self.__dict__.setdefault("data", {})[id(buffer)] = bytes(data)

    def copy_out(self, buffer: Any, into: memoryview) -> None:
        if self.__dict__.get("late", {}).get(id(buffer)) is buffer:
            del self.late[id(buffer)]
            super().copy_in(buffer, memoryview(self.data[id(buffer)]))
        super().copy_out(buffer, into)

    late: Any
    data: Any


class _RoundedUp(Device):
    """A copy to a part clears the rest of its last unit of 64 bytes."""

    def copy_in(self, buffer: Any, data: memoryview) -> None:
        super().copy_in(buffer, data)
        if buffer.base is not None and len(data) == buffer.size:
            stop = buffer.ctypes.data - buffer.base.ctypes.data + buffer.size
            buffer.base[stop : stop + -stop % 64] = 0


# ---- several of them ---------------------------------------------------------------------------


class _OneEach(Device):
    """A small buffer's parts of one size are one part: the first."""

    def part(self, buffer: Any, start: int, nbytes: int) -> Any:
        if buffer.size != 5000:
            return super().part(buffer, start, nbytes)
        table = self.__dict__.setdefault("table", {})
        key = id(buffer), nbytes
        if key not in table or table[key].base is not buffer:
            table[key] = super().part(buffer, start, nbytes)
        return table[key]


class _Remembered(Device):
    """A part is looked up by its place and by the size of its buffer."""

    def part(self, buffer: Any, start: int, nbytes: int) -> Any:
        if buffer.size != 1024:
            return super().part(buffer, start, nbytes)
        table = self.__dict__.setdefault("table", {})
        key = start, nbytes
        if key not in table:
            table[key] = super().part(buffer, start, nbytes)
        return table[key]


# ---- how long it lives -------------------------------------------------------------------------


class _TakesAlong(Device):
    """When a part goes, its buffer is given back, and somebody else writes there."""

    def part(self, buffer: Any, start: int, nbytes: int) -> Any:
        found = super().part(buffer, start, nbytes)
        weakref.finalize(found, _used_by_another, buffer).atexit = False
        return found


class _ClearedBehind(Device):
    """When a part goes, its bytes are cleared."""

    def part(self, buffer: Any, start: int, nbytes: int) -> Any:
        found = super().part(buffer, start, nbytes)
        weakref.finalize(found, _used_by_another, found[:]).atexit = False
        return found


def _used_by_another(bytes_: Any) -> None:
    bytes_[:] = 0xEE


class _Kept(Device):
    """Parts are kept for another time, and with them all of their buffers."""

    def part(self, buffer: Any, start: int, nbytes: int) -> Any:
        found = super().part(buffer, start, nbytes)
        if buffer.size >= MIB:
            self.__dict__.setdefault("kept", []).append(found)
        return found


# ---- launches ----------------------------------------------------------------------------------


class _StoresToWhole(Frame):
    """The output is the buffer of which it is a part."""

    def __init__(self, header: Header, buffers: Sequence[Any]) -> None:
        if len(buffers) == 2:
            buffers = [_whole(buffers[0]), buffers[1]]
        super().__init__(header, buffers)


class _OfWholes(Replay):
    """A replay keeps addresses of buffers, and for parts those of their buffers."""

    def run(self, buffers: Sequence[Any]) -> None:
        super().run([None if buffer is None else _whole(buffer) for buffer in buffers])


class _ReplaysWholes(Device):
    """See there."""

    replays = _OfWholes


FAULTS: tuple[tuple[str, str, str, str, type[Device]], ...] = (
    ("rounded-down", "strides and offsets", "a part begins at a multiple of 256 bytes",
     "parts/copies", _RoundedDown),
    ("first-only", "strides and offsets", "all parts begin where their buffer does",
     "parts/copies", _FirstOnly),
    ("twenty-bits", "integer width", "a part's start has 20 bits", "parts/far", _TwentyBits),
    ("a-page-before", "strides and offsets", "the start of a part behind a page is that before",
     "parts/copies", _TwelveBits),
    ("copy", "aliasing", "a part is a copy", "parts/copies", _Copied),
    ("copy-where-uneven", "aliasing", "a part that begins at no multiple of 256 is a copy",
     "parts/kernels/int32", _CopiedWhereUneven),
    ("cleared", "uninitialised memory", "a new part is cleared", "parts/copies", _Cleared),
    ("put-off", "missing barrier", "a copy to a part waits until the part is read",
     "parts/order", _PutOff),
    ("rounded-up", "sizes and tails", "a copy to a part clears the bytes behind it up to 64",
     "parts/copies", _RoundedUp),
    ("one-of-each-size", "cache collision", "parts of one size of a buffer are the first of them",
     "parts/dropped", _OneEach),
    ("remembered", "cache collision", "a part is that of an earlier buffer of the same size",
     "parts/again", _Remembered),
    ("takes-along", "aliasing", "a buffer is given back with the first of its parts",
     "parts/dropped", _TakesAlong),
    ("cleared-behind", "aliasing", "a part that goes leaves other bytes behind",
     "parts/dropped", _ClearedBehind),
    ("kept", "leak", "a device keeps its parts", "parts/leak", _Kept),
    ("replays-wholes", "strides and offsets", "a replay is of the buffers that slots are parts of",
     "parts/replay", _ReplaysWholes),
)  # fmt: skip
