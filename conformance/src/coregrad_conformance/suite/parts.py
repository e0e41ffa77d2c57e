"""Parts of buffers (`Device.part`): the same bytes under two handles, wherever they are written.

A device without the method is looked at as it is: the core copies there. What is expected is a
host array of which the parts are slices.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad import Tensor, cat, dtypes
from coregrad.dtypes import DType
from coregrad.ir.kernel import Kernel
from coregrad_conformance import tables
from coregrad_conformance.builder import Builder
from coregrad_conformance.row import Failure, Outcome, Row
from coregrad_conformance.suite.memory import MIB, steady
from coregrad_conformance.suite.optional import replayed
from coregrad_conformance.suite.tensors import equal
from coregrad_conformance.target import Target, bytes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

GROUP = "parts"
UNIT = 64  # bytes: every part begins at a multiple of them
SIZE = 5000  # bytes of a whole: no multiple of anything that devices like
STARTS = (0, 64, 128, 192, 256, 320, 960, 1024, 1088, 4032, 4096, 4160)
SIZES = (1, 3, 4, 31, 64, 65, 256, 260, 836)
PAUSE = 1 << 13  # elements of a launch that may still be running when the next call comes


def rows() -> Iterator[Row]:
    """The rows of this file."""
    yield _row("copies", _copies, "What is copied to a buffer is in its parts, and the reverse.")
    yield _row("far", _far, "Parts that begin beyond a mebibyte, and one that is all there is.")
    for dtype in (dtypes.int32, dtypes.uint8):
        yield _row(f"kernels/{dtype.name}", partial(_kernels, dtype),
                   "Kernels from part to part leave all other bytes as they were.",
                   dtype)  # fmt: skip
    yield _row("order", _order, "Launches and copies by both handles, without waiting.")
    yield _row("dropped", _dropped, "Parts that are forgotten take nothing with them.")
    yield _row("again", _again, "Parts of buffers of one size, each freed before the next.")
    yield _row("replay", _replay, "Launches carried out as one, on parts of ever other buffers.")
    yield _row("leak", _leak, "A part does not keep its buffer's memory.")
    summary = "Tensors that are computed in place, and read there."
    yield Row("parts/tensors", "core", GROUP, _tensors, summary=summary)


def _row(
    name: str, run: Callable[[Target], Outcome], summary: str, dtype: DType | None = None
) -> Row:
    about = "" if dtype is None else dtype.name
    return Row(f"parts/{name}", "core", GROUP, partial(_looked_at, name, run), "", about, summary)


def _looked_at(name: str, run: Callable[[Target], Outcome], target: Target) -> Outcome:
    if getattr(target.active.device, "part", None) is not None:
        return run(target)
    plain = _Bytes.new(target, tables.bits(tables.generator(f"parts/{name}"), dtypes.uint8, 64))
    compared = plain.check("a buffer")
    plain.free()
    return Outcome(compared, detail="the device has no parts")


# ---- bytes under a handle ----------------------------------------------------------------------


@dataclass
class _Bytes:
    """Device memory, and what is to be in it: of a part, a slice of what is to be in the whole."""

    device: Any
    raw: Any
    want: NDArray[np.uint8]

    @classmethod
    def new(cls, target: Target, content: NDArray[np.uint8]) -> _Bytes:
        """A new buffer."""
        device = target.active.device
        made = cls(device, device.allocate(content.size), content.copy())
        device.copy_in(made.raw, bytes_of(content))
        return made

    def part(self, start: int, nbytes: int) -> _Bytes:
        """Some of these bytes."""
        raw = self.device.part(self.raw, start, nbytes)
        return replace(self, raw=raw, want=self.want[start : start + nbytes])

    def write(self, content: NDArray[np.uint8]) -> None:
        """Copy bytes to the start."""
        self.device.copy_in(self.raw, bytes_of(content))
        self.want[: content.size] = content

    def check(self, what: str) -> int:
        """How many bytes were compared."""
        got = np.full_like(self.want, 0x33)
        self.device.copy_out(self.raw, bytes_of(got))
        wrong = np.flatnonzero(got != self.want)
        if wrong.size:
            at = int(wrong[0])
            have, want = int(got[at]), int(self.want[at])
            raise Failure(f"{what}: byte {at} is {have:#x}, expected {want:#x}", "memory")
        return got.size

    def free(self) -> None:
        """Give the memory back. Parts are never given back."""
        self.device.free(self.raw)


def _drawn(name: str, n: int) -> NDArray[np.uint8]:
    return tables.bits(tables.generator(f"parts/{name}"), dtypes.uint8, n)


def _places(size: int) -> list[tuple[int, int]]:
    """Every start with every size that fits, and with all that is left."""
    found = [(start, n) for start in STARTS for n in SIZES if start + n <= size]
    return found + [(start, size - start) for start in STARTS]


# ---- copies ------------------------------------------------------------------------------------


def _copies(target: Target) -> Outcome:
    """All parts are there at once, and overlap; each is written in turn, as a whole and in part."""
    whole = _Bytes.new(target, _drawn("copies", SIZE))
    parts = [whole.part(*place) for place in _places(SIZE)]
    compared = sum(part.check("a new part") for part in parts)
    for k, part in enumerate(parts):
        part.write(_drawn(f"copies/{k}", max(1, part.want.size - k % 3)))
        compared += whole.check(f"the buffer after its part at {_places(SIZE)[k]} was written")
        compared += parts[k * 7 % len(parts)].check("another part after that")
    whole.write(_drawn("copies/whole", SIZE - 3))
    compared += sum(part.check("a part after its buffer was written") for part in parts)
    whole.free()
    return Outcome(compared)


def _far(target: Target) -> Outcome:
    compared = 0
    for size in (1, UNIT, 2 * MIB + 3):
        whole = _Bytes.new(target, _drawn(f"far/{size}", size))
        starts = [s for s in (0, MIB - UNIT, MIB, MIB + UNIT, 2 * MIB) if s < size]
        parts = [whole.part(start, size - start) for start in starts]
        for part in parts:
            part.write(_drawn(f"far/{size}/{part.want.size}", min(part.want.size, 2 * UNIT)))
        compared += sum(part.check(f"a part of {size} bytes") for part in parts)
        compared += whole.check(f"a buffer of {size} bytes")
        whole.free()
    return Outcome(compared)


# ---- kernels -----------------------------------------------------------------------------------


def _line(name: str, dtype: DType, n: int, kind: str = "grid", lanes: int = 1) -> Kernel:
    """out = 3*in + 5."""
    build = Builder(name)
    out, source = build.out(dtype, n), build.into(dtype, n)
    with build.loop(n, kind, lanes) as i:
        tripled = build.op("mul", build.load(source, i), build.const(3, dtype))
        build.store(out, i, build.op("add", tripled, build.const(5, dtype)))
    return build.kernel()


def _computed(out: _Bytes, source: _Bytes, dtype: DType, n: int) -> None:
    """What the kernel does, on what is expected."""
    nbytes = n * dtype.itemsize
    word = np.dtype(f"u{dtype.itemsize}")
    x = source.want[:nbytes].copy().view(word).astype(np.uint64)
    out.want[:nbytes] = (x * 3 + 5).astype(word).view(np.uint8)


def _kernels(dtype: DType, target: Target) -> Outcome:
    """From one part to another, from a part to the buffer's start, and from there to a part."""
    compared = 0
    name = f"kernels/{dtype.name}"
    lanes = max(1, target.limits.vector_bytes // dtype.itemsize)
    for kind, width in dict.fromkeys([("grid", 1), ("serial", 1), ("grid", lanes)]):
        for n in (1, 16, 37, 129):
            launch = target.prepare(_line(f"part_{kind}_x{width}_{n}", dtype, n, kind, width))
            whole = _Bytes.new(target, _drawn(f"{name}/{kind}/{width}/{n}", SIZE))
            nbytes = n * dtype.itemsize
            step = math.ceil(nbytes / UNIT) * UNIT  # as close as parts can be
            low, high, end = (whole.part(step * k, nbytes) for k in (1, 2, 4))
            for out, source in ((high, low), (end, high), (whole, end), (low, whole)):
                launch([out.raw, source.raw])
                _computed(out, source, dtype, n)
                compared += whole.check(f"a buffer, {n} elements of a part of which were computed")
                compared += out.check("what was computed")
            whole.free()
    return Outcome(compared)


def _order(target: Target) -> Outcome:
    """A device that keeps launches in order by their handles has to know that these are one."""
    compared, n = 0, PAUSE
    launch = target.prepare(_line("part_order", dtypes.int32, n))
    for turn in range(4):
        whole = _Bytes.new(target, _drawn(f"order/{turn}", 12 * n))
        low, middle, high = (whole.part(4 * n * k, 4 * n) for k in range(3))
        for out, source in ((middle, whole), (high, middle), (whole, high), (middle, low)):
            launch([out.raw, source.raw])
            _computed(out, source, dtypes.int32, n)
        low.write(_drawn(f"order/{turn}/later", 4 * n))
        launch([high.raw, whole.raw])
        _computed(high, low, dtypes.int32, n)
        whole.write(_drawn(f"order/{turn}/last", 4 * n))
        compared += high.check("the last part") + middle.check("the part in the middle")
        compared += whole.check("the buffer")
        whole.free()
    return Outcome(compared)


# ---- how long they live ------------------------------------------------------------------------


def _dropped(target: Target) -> Outcome:
    """A launch may still be using a part when its handle goes."""
    compared = 0
    launch = target.prepare(_line("part_dropped", dtypes.int32, 32))
    whole = _Bytes.new(target, _drawn("dropped", SIZE))
    parts = [whole.part(128 * k, 128) for k in range(32)]
    for k in (3, 0, 31):
        launch([parts[k].raw, parts[k - 1].raw])
        _computed(parts[k], parts[k - 1], dtypes.int32, 32)
        parts[k] = whole
        gc.collect()
        others = [_Bytes.new(target, np.full(n, 0xC3, np.uint8)) for n in (128, SIZE)]
        compared += whole.check(f"the buffer without its part {k}")
        compared += sum(part.check(f"a part without its part {k}") for part in parts)
        compared += sum(other.check("a buffer beside it") for other in others)
        for other in others:
            other.free()
        parts[k] = whole.part(128 * k, 128)
        compared += parts[k].check("a part that is made once more")
    whole.free()
    return Outcome(compared)


def _again(target: Target) -> Outcome:
    """Two buffers at a time, so that the memory of one may be had again and is not the other's."""
    compared = 0
    launch = target.prepare(_line("part_again", dtypes.int32, 64))
    for turn in range(12):
        pair = [_Bytes.new(target, _drawn(f"again/{turn}/{k}", 1024)) for k in range(2)]
        low, high = pair[0].part(256, 256), pair[1].part(256, 256)
        launch([high.raw, low.raw])
        _computed(high, low, dtypes.int32, 64)
        compared += sum(b.check(f"one of two buffers, turn {turn}") for b in (*pair, low, high))
        for whole in pair:
            whole.free()
    return Outcome(compared)


def _replay(target: Target) -> Outcome:
    """Two steps between three parts, and one from there to a buffer of its own."""
    n = 48
    compiled = target.compiled(_line("part_replay", dtypes.int32, n))
    steps = [(1, 0), (2, 1), (3, 2), (0, 3)]
    run, compared = replayed(target, [(compiled, list(slots), n) for slots in steps]), 0
    for turn in range(4):
        whole = _Bytes.new(target, _drawn(f"replay/{turn}", SIZE))
        other = _Bytes.new(target, _drawn(f"replay/{turn}/other", 4 * n))
        slots = [*(whole.part(64 * turn + 256 * k, 4 * n) for k in (1, 2, 4)), other]
        run([slot.raw for slot in slots])
        for out, source in steps:
            _computed(slots[out], slots[source], dtypes.int32, n)
        compared += sum(b.check(f"after the replay, turn {turn}") for b in (whole, *slots))
        whole.free()
        other.free()
    return Outcome(compared)


def _leak(target: Target) -> Outcome:
    """As `memory/leak/buffers`, with parts of each buffer that was freed."""
    few = _drawn("leak", 4096)

    def once() -> None:
        whole = _Bytes.new(target, few)
        large = replace(whole, raw=whole.device.allocate(16 * MIB), want=np.zeros(16 * MIB, "u1"))
        for k in range(8):
            large.part(MIB * k + UNIT, MIB).write(few)
        whole.part(UNIT, 64).check("a part")
        large.free()
        whole.free()

    return steady(once, rounds=40, allowed=64 * MIB)


# ---- by tensors --------------------------------------------------------------------------------


def _tensors(target: Target) -> Outcome:
    """What the core lets lie in parts: operands of wide concatenations, and rows of a buffer."""
    compared = 0
    for width in (16, 48, 400):
        x = tables.bits(tables.generator(f"parts/tensors/{width}"), dtypes.int32, 12 * width)
        table = x.reshape(12, width).astype(np.int64)
        device = Tensor(x.reshape(12, width), device=target.name)
        state, want = device[0:1], table[0:1]
        states, wants = [], []
        for k in range(1, 12):
            state, want = state * 3 + device[k : k + 1].contiguous(), want * 3 + table[k : k + 1]
            states.append(state)
            wants.append(want)
        both = [cat(states, 0), cat(states[:-1], 0) + 1]
        right = [np.concatenate(wants), np.concatenate(wants[:-1]) + 1]
        for got, exact in zip(both, right, strict=True):
            stored = _wrapped(exact)
            compared += equal(got.numpy(), stored, f"rows of {width} one behind the other")
    return Outcome(compared)


def _wrapped(exact: NDArray[np.int64]) -> NDArray[np.int32]:
    return (exact & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
