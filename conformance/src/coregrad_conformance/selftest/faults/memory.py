"""The device's memory: copies, allocations, other devices, leaks; and kernels taken for others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from coregrad.dtypes import DType
from coregrad.hookspecs import Header, hookimpl
from coregrad_conformance.selftest.device import Device, Frame, Ref, with_device, with_frame
from coregrad_conformance.selftest.fault import Fault

MIB = 1 << 20


def faults() -> Iterator[Fault]:
    """All of this file."""
    for kind, name, says, by, make in FAULTS:
        yield Fault(f"memory/{name}", kind, "", "", says, by, make)


# ---- copies ------------------------------------------------------------------------------------


class _LastByte(Device):
    """Copies of an odd number of bytes leave the last one behind."""

    def copy_in(self, buffer: Any, data: memoryview) -> None:
        odd = 2 < len(data) < 1000 and len(data) % 2
        super().copy_in(buffer, data[: len(data) - 1] if odd else data)


class _Padded(Device):
    """Copies to the device are of whole words of 8 bytes."""

    def copy_in(self, buffer: Any, data: memoryview) -> None:
        super().copy_in(buffer, data)
        rest = -len(data) % 8
        buffer[len(data) : len(data) + rest] = 0


class _WholeBuffer(Device):
    """A copy from the device that is shorter than the buffer begins at the wrong end."""

    def copy_out(self, buffer: Any, into: memoryview) -> None:
        target = np.frombuffer(into, np.uint8)
        if 0 < target.size < buffer.size == 1025:
            target[:] = buffer[-target.size :]
            return
        super().copy_out(buffer, into)


class _SevenBits(Device):
    """Bytes of copies beyond a mebibyte lose their top bit."""

    def copy_out(self, buffer: Any, into: memoryview) -> None:
        super().copy_out(buffer, into)
        target = np.frombuffer(into, np.uint8)
        target[MIB:] &= 0x7F


class _Quieted(Device):
    """Copies turn signalling NaNs of float32 into quiet ones."""

    def copy_in(self, buffer: Any, data: memoryview) -> None:
        super().copy_in(buffer, data)
        if len(data) % 4 == 0 and len(data) < 64:
            words = buffer[: len(data)].view(np.uint32)
            nan = ((words & 0x7F800000) == 0x7F800000) & ((words & 0x7FFFFF) != 0)
            words[nan] |= 0x400000


class _HostMemory(Device):
    """Large copies are put off: the host's memory is read when the buffer is."""

    def copy_in(self, buffer: Any, data: memoryview) -> None:
        if len(data) == 16 * 4:
            self.__dict__.setdefault("late", {})[id(buffer)] = (buffer, data)
            return
        super().copy_in(buffer, data)

    def copy_out(self, buffer: Any, into: memoryview) -> None:
        late = self.__dict__.get("late", {}).pop(id(buffer), None)
        if late is not None:
            super().copy_in(*late)
        super().copy_out(buffer, into)

    def free(self, buffer: Any) -> None:
        self.__dict__.get("late", {}).pop(id(buffer), None)


class _WritesBack(Device):
    """A copy in needs memory that can be written: it is marked as seen there."""

    def copy_in(self, buffer: Any, data: memoryview) -> None:
        super().copy_in(buffer, data)
        if data.readonly:
            buffer[0] ^= 0xFF


# ---- allocation --------------------------------------------------------------------------------


class _Overlapping(Device):
    """Buffers of 1023 bytes overlap by a byte with the one before."""

    def allocate(self, nbytes: int) -> Any:
        if nbytes != 1023:
            return super().allocate(nbytes)
        pool = self.__dict__.setdefault("pool", np.empty(16 * nbytes, np.uint8))
        self.count = self.__dict__.get("count", -1) + 1
        start = self.count % 16 * (nbytes - 1)
        return pool[start : start + nbytes]


class _Recycled(Device):
    """A freed buffer of 100 bytes is given out twice."""

    def free(self, buffer: Any) -> None:
        if buffer.size == 100:
            self.__dict__.setdefault("spare", []).extend([buffer, buffer])

    def allocate(self, nbytes: int) -> Any:
        spare = self.__dict__.get("spare")
        return spare.pop(0) if nbytes == 100 and spare else super().allocate(nbytes)


class _Forgetful(Device):
    """Of more than a thousand living buffers of eight bytes the oldest are used again."""

    def allocate(self, nbytes: int) -> Any:
        if nbytes != 8:
            return super().allocate(nbytes)
        ring = self.__dict__.setdefault("ring", [])
        self.turn = self.__dict__.get("turn", -1) + 1
        if len(ring) < 1024:
            ring.append(super().allocate(nbytes))
        return ring[self.turn % 1024]


class _FreedAtOnce(Device):
    """After a large buffer was freed, the next one of its size is another that is still in use."""

    def free(self, buffer: Any) -> None:
        self.spare = buffer.size if buffer.size > 30_000 else 0

    def allocate(self, nbytes: int) -> Any:
        last = self.__dict__.get("last")
        if self.__dict__.pop("spare", 0) == nbytes and last is not None and last.size == nbytes:
            return last
        self.last = super().allocate(nbytes)
        return self.last


class _Cleared(Frame):
    """A kernel sets all of an output of 300 elements to 0 before it runs."""

    def __init__(self, header: Header, buffers: Any) -> None:
        super().__init__(header, buffers)
        for param, (words, _) in self.memory.items():
            if getattr(param, "role", "") == "out" and param.size == 300:
                words[:] = 0


class _Unset(Frame):
    """The last of 37 int32 of an output is never written."""

    def finish(self) -> None:
        for param, (words, _) in self.memory.items():
            if getattr(param, "role", "") == "out" and param.size == 37:
                words[-1:].view(np.uint8)[:] = 0xFF


class _DirtyScratch(Frame):
    """Scratch memory of later iterations is that of the first one."""

    def allocate(self, array: Any) -> None:
        super().allocate(array)
        if array.space == "private" and array.size == 19:
            words, begins = self.memory[array]
            self.memory[array] = words, begins * 0


# ---- devices -----------------------------------------------------------------------------------


class _OneMemory(Device):
    """What one device allocates is, in turn, what the other one has."""

    shared: ClassVar[dict[int, Any]] = {}

    def allocate(self, nbytes: int) -> Any:
        if nbytes != 400:
            return super().allocate(nbytes)
        self.count = self.__dict__.get("count", -1) + 1
        return self.shared.setdefault(self.count % 64, super().allocate(nbytes))


class _FirstDevice(Device):
    """Whatever was computed is found on the device that was opened first."""

    opened: ClassVar[int] = 0

    def __init__(self) -> None:
        type(self).opened += 1
        self.index = type(self).opened

    def copy_out(self, buffer: Any, into: memoryview) -> None:
        super().copy_out(buffer, into)
        if self.index > 1:
            np.frombuffer(into, np.uint8)[:] = 0


# ---- leaks -------------------------------------------------------------------------------------


class _Hoarder(Device):
    """Freed buffers are kept for good."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def allocate(self, nbytes: int) -> Any:
        found = super().allocate(nbytes)
        if nbytes > MIB:
            self.kept.append(found)
        return found


class _Slice(_Hoarder):
    """A fifth of each buffer beyond eight mebibytes is kept."""

    def allocate(self, nbytes: int) -> Any:
        found = Device.allocate(self, nbytes)
        if nbytes > 8 * MIB:
            self.kept.append(np.ones(nbytes // 5, np.uint8))
        return found


class _Notes(Frame):
    """Each launch on large buffers leaves a note of two mebibytes."""

    notes: ClassVar[list[Any]] = []

    def __init__(self, header: Header, buffers: Any) -> None:
        super().__init__(header, buffers)
        if any(param.size > 100_000 for param in header.params):
            self.notes.append(np.ones(2 * MIB, np.uint8))


class _History(Device):
    """A copy of 256 bytes leaves two mebibytes behind."""

    kept: ClassVar[list[Any]] = []

    def copy_in(self, buffer: Any, data: memoryview) -> None:
        super().copy_in(buffer, data)
        if len(data) == 256:
            self.kept.append(np.ones(2 * MIB, np.uint8))


# ---- kernels taken for others ------------------------------------------------------------------
# The reference runs a kernel while it is emitted and compiles nothing. What a cache of compiled
# kernels would mix up is played here: a kernel whose key was met before runs with the constants,
# or the dtypes, of the one that was met.


class _Named(Frame):
    """Knows its kernel, and how many literals it has met."""

    def __init__(self, header: Header, buffers: Any) -> None:
        super().__init__(header, buffers)
        self.header = header
        self.met = 0


class _Confused(Ref):
    """Kernels are cached by a key; the constants of a hit are those of the kernel cached."""

    frame = _Named

    def __init__(self) -> None:
        self.known: dict[Any, list[Any]] = {}

    def key(self, header: Header) -> Any:
        """What is thought to tell kernels apart."""
        return header.name

    def same(self, a: Any, b: Any) -> bool:
        """Whether a literal need not be compiled anew."""
        return True

    @hookimpl
    def lower_const(self, frame: Any, value: float, dtype: DType, lanes: int) -> Any:
        literals = self.known.setdefault(self.key(frame.header), [])
        if frame.met < len(literals):
            last, of = literals[frame.met]
            if of is dtype and self.same(last, value):
                value = last
        else:
            literals.append((value, dtype))
        frame.met += 1
        return super().lower_const(frame, value, dtype, lanes)


class _BySize(_Confused):
    """The key is the name and the sizes of the parameters."""

    def key(self, header: Header) -> Any:
        return header.name, tuple(param.size for param in header.params)

    def same(self, a: Any, b: Any) -> bool:
        return isinstance(a, float) or isinstance(b, float)


class _ByEquality(_Confused):
    """The key holds the literals, compared as numbers: 0.0 and -0.0 are equal."""

    def same(self, a: Any, b: Any) -> bool:
        return bool(a == b)


class _ByText(Ref):
    """Literals are known by their first six digits."""

    def __init__(self) -> None:
        self.known: dict[Any, float] = {}

    @hookimpl
    def lower_const(self, frame: Any, value: float, dtype: DType, lanes: int) -> Any:
        if dtype.is_float:
            value = self.known.setdefault((f"{value:.6g}", dtype), value)
        return super().lower_const(frame, value, dtype, lanes)


class _Comparisons(_Confused):
    """A kernel of a name compares as the first one of that name did: signed or not."""

    @hookimpl
    def lower_const(self, frame: Any, value: float, dtype: DType, lanes: int) -> Any:
        return Ref.lower_const(self, frame, value, dtype, lanes)

    @hookimpl
    def lower_lt(self, frame: Any, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        ((first, _),) = self.known.setdefault(frame.header.name, [(dtype, None)])
        if first.itemsize == dtype.itemsize and first is not dtype:
            a, b = (
                np.ascontiguousarray(x).view(first.storage).reshape(np.shape(x)) for x in (a, b)
            )
        return Ref.lower_lt(self, frame, a, b, dtype, lanes)


class _Casts(_Confused):
    """A cast of a name converts from the dtype of the first one of that name."""

    @hookimpl
    def lower_const(self, frame: Any, value: float, dtype: DType, lanes: int) -> Any:
        return Ref.lower_const(self, frame, value, dtype, lanes)

    @hookimpl
    def lower_cast(self, frame: Any, x: Any, source: DType, dtype: DType, lanes: int) -> Any:
        key = (frame.header.name, dtype)
        ((first, _),) = self.known.setdefault(key, [(source, None)])
        if first is not source and first.itemsize == source.itemsize and first.is_int:
            x, source = np.ascontiguousarray(x).view(first.storage).reshape(np.shape(x)), first
        return Ref.lower_cast(self, frame, x, source, dtype, lanes)


class _LastProgram(_Confused):
    """Between two kernels of one name the literal of the one compiled last is used for both."""

    def key(self, header: Header) -> Any:
        return header.name

    @hookimpl
    def lower_const(self, frame: Any, value: float, dtype: DType, lanes: int) -> Any:
        if frame.header.name == "interleaved":
            value = self.known.setdefault("interleaved", [value])[0]
        return Ref.lower_const(self, frame, value, dtype, lanes)


Made = Callable[[], type[Ref]]
# fmt: off
FAULTS: tuple[tuple[str, str, str, str, Made], ...] = (
    ("sizes and tails", "last-byte", "a copy of an odd number of bytes leaves the last one behind",
     "memory/copy/sizes", with_device(_LastByte)),
    ("sizes and tails", "padded", "a copy in writes whole words of 8 bytes",
     "memory/copy/partial", with_device(_Padded)),
    ("sizes and tails", "wrong-end", "a copy out that is shorter than its buffer takes the end",
     "memory/copy/partial", with_device(_WholeBuffer)),
    ("sizes and tails", "beyond-a-mebibyte", "copies lose bits beyond a mebibyte",
     "memory/copy/sizes", with_device(_SevenBits)),
    ("special values", "quiet-nan", "copies turn signalling NaNs into quiet ones",
     "memory/copy/every-byte", with_device(_Quieted)),
    ("aliasing", "host-memory", "the host's memory is read when the buffer is, not when it is "
     "copied", "memory/copy/source-reused", with_device(_HostMemory)),
    ("aliasing", "read-only", "bytes that cannot be written are copied with a change",
     "memory/copy/read-only", with_device(_WritesBack)),
    ("aliasing", "overlapping", "buffers of one size overlap by a byte",
     "memory/allocate/distinct", with_device(_Overlapping)),
    ("aliasing", "given-out-twice", "a freed buffer is given out twice",
     "memory/allocate/distinct", with_device(_Recycled)),
    ("aliasing", "many-buffers", "more than 1024 small buffers share memory",
     "memory/allocate/many", with_device(_Forgetful)),
    ("aliasing", "freed-and-reused", "once a large buffer was freed, the next one is another "
     "that is still in use", "memory/launch/freed", with_device(_FreedAtOnce)),
    ("uninitialised memory", "outputs-cleared", "an output is cleared before the kernel runs",
     "memory/launch/untouched", with_frame(_Cleared)),
    ("uninitialised memory", "last-unset", "the last of 37 elements is never written",
     "reduce/add/int32/columns", with_frame(_Unset)),
    ("aliasing", "one-scratch", "all iterations have one scratch array",
     "store/private-array", with_frame(_DirtyScratch)),
    ("wrong device", "one-memory", "two devices share their memory", "memory/devices",
     with_device(_OneMemory)),
    ("wrong device", "first-device", "what the second device computed is not found there",
     "memory/devices", with_device(_FirstDevice)),
    ("leak", "buffers", "freed buffers are kept", "memory/leak/buffers", with_device(_Hoarder)),
    ("leak", "a-fifth", "a fifth of every large buffer is kept", "memory/leak/buffers",
     with_device(_Slice)),
    ("leak", "launches", "every launch leaves two mebibytes", "memory/leak/launches",
     with_frame(_Notes)),
    ("leak", "copies", "copies of 256 bytes leave two mebibytes behind",
     "memory/leak/launches", with_device(_History)),
    ("cache collision", "by-name", "a kernel is known by its name alone: its constants are those "
     "of the first one", "memory/kernel/constants", lambda: _Confused),
    ("cache collision", "by-size", "a kernel is known by its name and sizes",
     "memory/kernel/constants", lambda: _BySize),
    ("cache collision", "by-equality", "constants are compared as numbers: -0.0 is 0.0",
     "memory/kernel/constants", lambda: _ByEquality),
    ("cache collision", "by-text", "literals are known by their first six digits",
     "const/float32/special-values", lambda: _ByText),
    ("cache collision", "comparisons", "a kernel of a known name compares in the dtype of the "
     "first", "memory/kernel/names", lambda: _Comparisons),
    ("cache collision", "casts", "a kernel of a known name casts from the dtype of the first",
     "memory/kernel/attributes", lambda: _Casts),
    ("cache collision", "last-program", "two programs of one name run as the first one",
     "memory/kernel/concurrent-programs", lambda: _LastProgram),
)
# fmt: on
