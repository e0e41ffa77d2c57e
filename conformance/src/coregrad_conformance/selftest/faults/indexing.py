"""Loads and stores that walk a buffer in another way, gates that are not obeyed, aliases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from coregrad_conformance.selftest.device import Access, Step, loads, stores
from coregrad_conformance.selftest.fault import Fault
from coregrad_conformance.selftest.faults.loops import late

Walk = Callable[[Any, Any, Any], Any]  # buffer, index, gate: another index
Change = Callable[[Access, Step], Any]


def faults() -> Iterator[Fault]:
    """All of this file."""
    for op, name, says, by, walk in WALKS:
        yield _fault("strides", op, "", name, says, by, _elsewhere(walk))
    for op, dtype, name, says, by, change in GATES:
        yield _fault("gates", op, dtype, name, says, by, change)
    for op, name, says, by, change in ALIASES:
        yield _fault("aliasing", op, "", name, says, by, change)


def _fault(about: str, op: str, dtype: str, name: str, says: str, by: str, change: Change) -> Fault:
    kind = "aliasing" if about == "aliasing" else "strides and offsets"
    make = (loads if op == "load" else stores)(change)
    return Fault(f"{about}/{op}-{name}", kind, op, dtype, says, by, make)


def _elsewhere(walk: Walk) -> Change:
    return lambda at, go: go(replace(at, index=walk(at.buffer, at.index, at.gate)))


# ---- walks -------------------------------------------------------------------------------------


def _goes_by(index: Any, step: int) -> bool:
    """Whether the positions are a walk of one step, of more than two elements."""
    places = np.ravel(index)
    return places.size > 2 and bool((np.diff(places) == step).all())


def _in_32_bits(buffer: Any, index: Any, gate: Any) -> Any:
    return np.asarray(index, np.int64) & 0xFFFFFFFF if buffer.size > 1 << 32 else index


def _first(index: Any) -> Any:
    return np.ravel(index)[0]


def _count(index: Any) -> Any:
    return np.arange(np.size(index)).reshape(np.shape(index))


def _by(step: int, change: Callable[[Any], Any]) -> Walk:
    return lambda buffer, index, gate: change(index) if _goes_by(index, step) else index


def _offset_lost(buffer: Any, index: Any, gate: Any) -> Any:
    """A contiguous walk that begins at 7 begins at 0."""
    return index - 7 if gate is None and _goes_by(index, 1) and _first(index) == 7 else index


def _repeated(buffer: Any, index: Any, gate: Any) -> Any:
    """Positions that repeat every 7 or 16 are taken for the first of them."""
    places = np.ravel(index)
    repeats = places.size > 90 and bool((places[16:] == places[:-16]).all())
    return np.minimum(index, 7) if repeats and places.max() == 15 else index


def _computed_byte(buffer: Any, index: Any, gate: Any) -> Any:
    """Positions beyond 127 wrap where a buffer has 256 elements and the walk is irregular."""
    irregular = np.size(index) > 90 and len(np.unique(np.diff(np.ravel(index)))) > 20
    return index & 127 if buffer.size == 256 and irregular else index


# fmt: off
WALKS: tuple[tuple[str, str, str, str, Walk], ...] = (
    ("load", "in-32-bits", "the upper bits of a load's address are lost", "load/beyond-32-bits",
     _in_32_bits),
    ("store", "in-32-bits", "the upper bits of a store's address are lost", "load/beyond-32-bits",
     _in_32_bits),
    ("load", "stride-2", "a load by twos is a load by ones", "load/walk/stride-2",
     _by(2, lambda i: _first(i) + _count(i))),
    ("load", "stride-3", "a load by threes starts one too early", "load/walk/stride-3",
     _by(3, lambda i: np.maximum(i - 1, 0))),
    ("load", "stride-17", "a load by seventeens is a load by sixteens", "load/walk/stride-17",
     _by(17, lambda i: _first(i) + 16 * _count(i))),
    ("load", "backwards", "a load backwards goes forwards", "load/walk/backwards",
     _by(-1, lambda i: _first(i) - np.size(i) + 1 + _count(i))),
    ("load", "backwards-by-2", "a load backwards by twos is one by ones",
     "load/walk/backwards-by-2", _by(-2, lambda i: _first(i) - _count(i))),
    ("load", "offset", "a load that begins at 7 begins at 0", "load/walk/offset", _offset_lost),
    ("load", "remainder", "a load that repeats itself every 16 repeats the first 8",
     "load/walk/remainder-16", _repeated),
    ("load", "byte-index", "computed positions are kept in 7 bits",
     "load/int32/computed-index", _computed_byte),
    ("store", "stride-2", "a store by twos is a store by ones", "store/walk/stride-2",
     _by(2, lambda i: _first(i) + _count(i))),
    ("store", "stride-3", "a store by threes starts one too late", "store/walk/stride-3",
     _by(3, lambda i: i + 1)),
    ("store", "stride-17", "a store by seventeens starts at 0", "store/walk/stride-17",
     _by(17, lambda i: i - _first(i))),
    ("store", "backwards", "a store backwards goes forwards", "store/walk/backwards",
     _by(-1, lambda i: _first(i) - np.size(i) + 1 + _count(i))),
    ("store", "backwards-by-2", "a store backwards by twos starts one too early",
     "store/walk/backwards-by-2", _by(-2, lambda i: i - 1)),
    ("store", "offset", "a store that begins at 7 begins at 0", "store/walk/offset",
     _offset_lost),
)
# fmt: on


# ---- gates -------------------------------------------------------------------------------------


def _clamped(at: Access, load: Step) -> Any:
    if at.gate is None or at.dtype.name != "uint8" or at.buffer.size == 0:
        return load(at)
    return load(replace(at, index=np.clip(at.index, 0, at.buffer.size - 1), gate=None))


def _left_over(at: Access, load: Step) -> Any:
    right = load(at)
    if at.gate is None or at.dtype.name != "float32":
        return right
    flat, open_ = np.ravel(right), np.ravel(np.broadcast_to(at.gate, np.shape(right)))
    last = np.maximum.accumulate(np.where(open_, np.arange(flat.size), -1))
    return np.where(last < 0, flat, flat[last]).reshape(np.shape(right))


def _poison(at: Access, load: Step) -> Any:
    right = load(at)
    if at.gate is None or at.dtype.name != "int32":
        return right
    return np.where(at.gate, right, np.int32(-1))


def _to_first(at: Access, store: Step) -> None:
    if at.gate is not None and at.dtype.name == "int64":
        at = replace(at, index=np.where(at.gate, at.index, 0), gate=None)
    store(at)


def _zeros(at: Access, store: Step) -> None:
    fits = np.min(at.index) >= 0 and np.max(at.index) < at.buffer.size
    if at.gate is not None and at.dtype.name == "int32" and fits:
        at = replace(at, value=np.where(at.gate, at.value, 0), gate=None)
    store(at)


def _far_touched(at: Access, load: Step) -> Any:
    """Positions are kept in 32 bits; the gate is believed to hold wherever these are inside."""
    if at.gate is None or np.size(at.index) == 0 or np.max(np.abs(at.index)) < 2**32:
        return load(at)
    near = at.index.astype(np.int32).astype(np.int64)
    return load(replace(at, index=near, gate=(near >= 0) & (near < at.buffer.size)))


# fmt: off
GATES: tuple[tuple[str, str, str, str, str, Change], ...] = (
    ("load", "uint8", "clamped", "where the gate is false, a load of uint8 gives the nearest "
     "element, not 0", "load/uint8/gate", _clamped),
    ("load", "float32", "left-over", "where the gate is false, a load of float32 gives the last "
     "element loaded", "load/float32/gate", _left_over),
    ("load", "int32", "poison", "where the gate is false, a load of int32 gives -1",
     "load/int32/gate", _poison),
    ("load", "int32", "far", "gated positions are kept in 32 bits", "load/gate/far", _far_touched),
    ("store", "int64", "to-first", "where the gate is false, a store of int64 goes to the first "
     "element", "store/int64/gate", _to_first),
    ("store", "int32", "zeros", "where the gate is false, a store of int32 stores 0",
     "memory/launch/untouched", _zeros),
)
# fmt: on


# ---- aliases -----------------------------------------------------------------------------------


def _inout(buffer: Any) -> bool:
    return getattr(buffer, "role", "") == "inout"


def _out_of_step(at: Access, load: Step) -> Any:
    others = [words for buffer, (words, _) in at.frame.memory.items() if buffer is not at.buffer]
    shared = any(np.shares_memory(at.words, other) for other in others)
    return np.roll(load(at), 1) if shared and at.buffer.size > 1 else load(at)


def _clobbers(at: Access, load: Step) -> Any:
    value = load(at)
    if at.dtype.name == "uint32" and at.buffer.size == 1023:
        at.words[-1] = 0
    return value


def _accumulates(at: Access, store: Step) -> None:
    if _inout(at.buffer) and at.dtype.name == "int32" and at.gate is None:
        before = at.words[np.broadcast_to(at.index, np.broadcast_shapes(
            np.shape(at.index), np.shape(at.value)))]  # fmt: skip
        at = replace(at, value=at.value + before)
    store(at)


def _whole_words(at: Access, store: Step) -> None:
    store(at)
    if at.dtype.name == "uint8" and at.buffer.size == 1021:
        at.words[3::4] = at.words[2::4][: at.words[3::4].size]


def _first_wins(at: Access, store: Step) -> None:
    """Only of single stores, as in a serial loop, to a buffer that is also read."""
    seen = at.frame.__dict__.setdefault("seen", set())
    if _inout(at.buffer) and np.size(at.index) == 1 and at.buffer.size < 10:
        place = (at.buffer, int(np.ravel(at.index)[0]))
        if place in seen:
            return
        seen.add(place)
    store(at)


def _behind_the_end(at: Access, store: Step) -> None:
    """The last one of a whole vector of four is stored even where the buffer has ended."""
    store(at)
    raw = at.words.base
    if at.dtype.name == "int32" and at.buffer.size == 1023 and raw is not None:
        behind = at.words.nbytes
        raw[behind : behind + 4] = 0


ALIASES: tuple[tuple[str, str, str, str, Change], ...] = (
    ("load", "one-buffer-twice", "two inputs that are one buffer are read out of step",
     "memory/launch/same-buffer-twice", _out_of_step),
    ("load", "clobbers-input", "the last element of an input of 1023 uint32 is overwritten once it "
     "has been read", "add/uint32/random", _clobbers),
    ("store", "read-back-late", "a kernel reads a buffer that it writes as it was one store before",
     "loops/siblings", late(lambda at: _inout(at.buffer))),
    ("store", "accumulates", "a store adds to what is there, where the buffer is also read",
     "store/inout", _accumulates),
    ("store", "whole-words", "a store of bytes writes whole words, so that neighbours are lost",
     "loops/bytes", _whole_words),
    ("store", "first-wins", "of several stores to one place the first one lasts", "store/order",
     _first_wins),
    ("store", "behind-the-end", "a store of 1023 int32 fills the last vector of four",
     "add/int32/random", _behind_the_end),
)  # fmt: skip
