"""Sorts of a device's own that lose the order of equals, a sign, a pass, a row or a place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from coregrad.dtypes import DType
from coregrad_conformance.selftest.device import Device, Ref, Sort, with_device
from coregrad_conformance.selftest.fault import Fault

Order = Callable[[Sort, Any], Any]
WIDTH = 1024  # elements of a block


def faults() -> Iterator[Fault]:
    """All of this file."""
    for name, kind, dtype, says, by, order in ORDERS:
        yield Fault(f"sorting/{name}", kind, "", dtype, says, f"sorting/{by}",
                    _with_order(order))  # fmt: skip
    for name, kind, says, by, make in DEVICES:
        yield Fault(f"sorting/{name}", kind, "", "", says, f"sorting/{by}", make)


def _with_order(order: Order) -> Callable[[], type[Ref]]:
    program = type("Faulty", (Sort,), {"order": order})
    return with_device(type("FaultyDevice", (Device,), {"sorts": program}))


def _by(keys: Any) -> Any:
    return np.argsort(keys, axis=-1, kind="stable")


def _only(dtype: str, wrong: Order) -> Order:
    """Wrong for one dtype."""

    def order(self: Sort, keys: Any) -> Any:
        return wrong(self, keys) if self.dtype.name == dtype else _by(keys)

    return order


def _unstable(self: Sort, keys: Any) -> Any:
    """Equal keys come backwards."""
    turned = np.argsort(keys[:, ::-1], axis=-1, kind="stable")
    return self.length - 1 - turned


def _unstable_far(self: Sort, keys: Any) -> Any:
    """The same of rows that are merged from several blocks."""
    return _unstable(self, keys) if self.length > WIDTH else _by(keys)


def _as_bits(self: Sort, keys: Any) -> Any:
    return _by(keys.view(f"u{keys.dtype.itemsize}"))


def _as_signed(self: Sort, keys: Any) -> Any:
    return _by(keys.view(f"i{keys.dtype.itemsize}"))


def _low_half(self: Sort, keys: Any) -> Any:
    return _by(keys & np.array(0xFFFFFFFF, keys.dtype))


def _without_byte(byte: int) -> Order:
    """A pass that is left out: that byte does not count."""

    def order(self: Sort, keys: Any) -> Any:
        word = keys.view(f"u{keys.dtype.itemsize}")
        sign = np.array(0 if self.dtype.kind == "uint" else 1 << (self.dtype.bits - 1), np.uint64)
        kept = np.array(~(0xFF << 8 * byte) & (1 << self.dtype.bits) - 1, np.uint64)
        return _by((word ^ sign.astype(word.dtype)) & kept.astype(word.dtype))

    return order


def _in_float32(self: Sort, keys: Any) -> Any:
    return _by(keys.astype(np.float32))


def _in_double(self: Sort, keys: Any) -> Any:
    return _by(keys.astype(np.float64))


def _by_difference(self: Sort, keys: Any) -> Any:
    """As a comparison whose difference wraps does: numbers more than 2**31 apart change places."""
    middle = np.array(1 << 30, keys.dtype)
    return _by(keys - middle)


def _backwards(self: Sort, keys: Any) -> Any:
    return _by(-keys.astype(np.int64)) if self.count < self.length else _by(keys)


def _first_row(self: Sort, keys: Any) -> Any:
    """Every row is in the order of the first."""
    return np.broadcast_to(_by(keys[:1]), keys.shape)


def _last_row(self: Sort, keys: Any) -> Any:
    found = _by(keys)
    if self.rows > 1:
        found[-1] = np.arange(self.length)
    return found


def _last_left(self: Sort, keys: Any) -> Any:
    """What is left behind whole pairs of keys keeps its place."""
    found = _by(keys)
    if self.length % 2 and self.length > 30:
        found[:, :-1] = np.argsort(keys[:, :-1], axis=-1, kind="stable")
        found[:, -1] = self.length - 1
    return found


def _blocks(self: Sort, keys: Any) -> Any:
    """Blocks are sorted, and never merged."""
    parts = [_by(keys[:, at : at + 65536]) + at for at in range(0, self.length, 65536)]
    return np.concatenate(parts, -1)


def _short_places(self: Sort, keys: Any) -> Any:
    return _by(keys) & 0xFFFF


def _largest_last(self: Sort, keys: Any) -> Any:
    """A filler of the largest number stands before a key that is as large."""
    found = _by(keys)
    top = keys == np.iinfo(keys.dtype).max
    lost = top.sum(-1) > 1
    found[lost] = _unstable(self, keys[lost])
    return found


def _all_equal(self: Sort, keys: Any) -> Any:
    """A row that is in order is thought to be done, and one that is backwards to be turned."""
    turned = (keys[:, 1:] <= keys[:, :-1]).all(-1)
    found = _by(keys)
    found[turned] = np.arange(self.length)[::-1]
    return found


class _Longer(Sort):
    """All places are written where few are asked for."""

    def run(self, places: Any, keys: Any, scratch: Any) -> None:
        super().run(places, keys, scratch)
        if self.count < self.length:
            places[self.rows * self.count * 4 :][:4] = 0


class _InPlace(Sort):
    """The keys are sorted, too."""

    def run(self, places: Any, keys: Any, scratch: Any) -> None:
        super().run(places, keys, scratch)
        size = self.rows * self.length * self.dtype.itemsize
        keys[:size].view(self.dtype.storage).reshape(self.rows, self.length).sort(-1)


class _Transposed(Sort):
    """The places of the first of every row come first."""

    def run(self, places: Any, keys: Any, scratch: Any) -> None:
        super().run(places, keys, scratch)
        used = places[: self.rows * self.count * 4].view(np.int32)
        used[:] = used.reshape(self.rows, self.count).T.reshape(-1)


class _Counting(Sort):
    """Its scratch memory has to hold zeros: that it is cleared by the allocator is hoped."""

    def run(self, places: Any, keys: Any, scratch: Any) -> None:
        super().run(places, keys, scratch)
        if self.count > 1:
            places[:4].view(np.int32)[:] ^= np.int32(scratch[0] & 1)


class _Beyond(Sort):
    """More scratch memory is written than was asked for."""

    def run(self, places: Any, keys: Any, scratch: Any) -> None:
        super().run(places, keys, scratch)
        scratch[Device.scratch : Device.scratch + 1] = 0


class _Remembering(Device):
    """A program is known by its sizes and by how wide the keys are."""

    known: dict[Any, Any] = {}  # noqa: RUF012  (that it is shared is the fault)

    def sort(self, dtype: DType, rows: int, length: int, count: int) -> Any:
        made = super().sort(dtype, rows, length, count)
        return self.known.setdefault((dtype.itemsize, rows, length, count), made)


class _Nothing(Device):
    """It says that it needs no scratch memory."""

    scratch = 0


def _with(program: type[Sort]) -> Callable[[], type[Ref]]:
    return with_device(type("FaultyDevice", (Device,), {"sorts": program}))


# fmt: off
ORDERS: tuple[tuple[str, str, str, str, str, Order], ...] = (
    ("unstable", "accumulator", "", "equal keys come backwards", "int32/keys", _unstable),
    ("unstable-merges", "accumulator", "", "equal keys of rows beyond 1024 come backwards",
     "int32/many-keys", _unstable_far),
    ("in-order-turned", "accumulator", "", "a row that only falls or stays is turned around",
     "uint8/keys", _all_equal),
    ("filler-first", "special values", "", "of keys as large as the filler the last comes first",
     "int64/keys", _largest_last),
    ("int32-as-bits", "integer sign", "int32", "int32 keys are sorted without their sign",
     "int32/keys", _only("int32", _as_bits)),
    ("int8-as-bits", "integer sign", "int8", "int8 keys are sorted without their sign",
     "int8/keys", _only("int8", _as_bits)),
    ("int16-as-bits", "integer sign", "int16", "int16 keys are sorted without their sign",
     "int16/keys", _only("int16", _as_bits)),
    ("int64-as-bits", "integer sign", "int64", "int64 keys are sorted without their sign",
     "int64/keys", _only("int64", _as_bits)),
    ("uint8-signed", "integer sign", "uint8", "uint8 keys are sorted as signed ones",
     "uint8/keys", _only("uint8", _as_signed)),
    ("uint16-signed", "integer sign", "uint16", "uint16 keys are sorted as signed ones",
     "uint16/keys", _only("uint16", _as_signed)),
    ("uint32-signed", "integer sign", "uint32", "uint32 keys are sorted as signed ones",
     "uint32/keys", _only("uint32", _as_signed)),
    ("uint64-signed", "integer sign", "uint64", "uint64 keys are sorted as signed ones",
     "uint64/keys", _only("uint64", _as_signed)),
    ("int64-low-half", "integer width", "int64", "of int64 keys the lower 32 bits count",
     "int64/keys", _only("int64", _low_half)),
    ("int32-without-top", "integer width", "int32", "the highest byte of int32 keys has no pass",
     "int32/keys", _only("int32", _without_byte(3))),
    ("uint32-without-second", "integer width", "uint32", "the second byte of uint32 has no pass",
     "uint32/keys", _only("uint32", _without_byte(1))),
    ("uint64-without-fifth", "integer width", "uint64", "the fifth byte of uint64 has no pass",
     "uint64/keys", _only("uint64", _without_byte(4))),
    ("int64-without-lowest", "integer width", "int64", "the lowest byte of int64 has no pass",
     "int64/keys", _only("int64", _without_byte(0))),
    ("int32-in-float32", "integer width", "int32", "int32 keys are compared as float32",
     "int32/keys", _only("int32", _in_float32)),
    ("int64-in-double", "integer width", "int64", "int64 keys are compared as float64",
     "int64/keys", _only("int64", _in_double)),
    ("by-difference", "integer width", "int32", "int32 keys are compared by differences that wrap",
     "int32/keys", _only("int32", _by_difference)),
    ("few-are-largest", "accumulator", "", "where few are asked for the largest are given",
     "int32/keys", _backwards),
    ("first-rows", "strides and offsets", "", "every row is given the order of the first",
     "int32/keys", _first_row),
    ("last-row", "sizes and tails", "", "the last of several rows is left as it was",
     "uint32/keys", _last_row),
    ("odd-one-left", "sizes and tails", "", "of an odd number of keys the last stays last",
     "int64/keys", _last_left),
    ("blocks", "sizes and tails", "", "rows beyond 65536 are sorted in blocks only",
     "int32/many-keys", _blocks),
    ("short-places", "integer width", "", "a place has 16 bits", "int64/many-keys", _short_places),
)
DEVICES: tuple[tuple[str, str, str, str, Callable[[], type[Ref]]], ...] = (
    ("more-places", "aliasing", "a place beyond those that were asked for is written",
     "int32/keys", _with(_Longer)),
    ("keys-too", "aliasing", "the keys are sorted where they stand", "int32/keys",
     _with(_InPlace)),
    ("transposed", "strides and offsets", "the places of several rows lie column by column",
     "int32/keys", _with(_Transposed)),
    ("scratch-of-zeros", "uninitialised memory", "scratch memory is relied on to be zeros",
     "int32/keys", _with(_Counting)),
    ("scratch-beyond", "aliasing", "scratch memory is overrun by a byte", "int32/keys",
     _with(_Beyond)),
    ("one-program", "cache collision", "keys of one width are sorted by one program",
     "int32/keys", with_device(_Remembering)),
    ("no-scratch", "broken contract", "no scratch memory is asked for", "int32/keys",
     with_device(_Nothing)),
)
# fmt: on
