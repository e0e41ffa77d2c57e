"""Reductions in the wrong accumulator, or that lose, repeat or keep a term."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from coregrad.dtypes import DType
from coregrad_conformance.selftest.device import Change, Frame, Ref, folded, with_frame
from coregrad_conformance.selftest.fault import Fault
from coregrad_cpu.folds import fold


def faults() -> Iterator[Fault]:
    """All of this file."""
    for kind, dtype, name, says, by, change in FOLDS:
        yield Fault(f"folds/{kind}-{dtype}-{name}", "accumulator", "reduce", dtype, says,
                    f"reduce/{kind}/{dtype}/{by}", folded(kind, dtype, change))  # fmt: skip
    for name, says, by, make in FRAMES:
        yield Fault(f"folds/{name}", "accumulator", "reduce", "", says, by, make)
    for name, says, by, make in STALE:
        yield Fault(f"uninitialised/{name}", "uninitialised memory", "reduce", "", says, by, make)


def _narrow(kind: str, dtype: Any) -> Change:
    """Folded in a narrower dtype, one after the other."""

    def change(right: Any, accumulator: Any, value: Any) -> Any:
        with np.errstate(all="ignore"):
            found = fold(kind, accumulator.astype(dtype), value.astype(dtype))
        return found.astype(right.dtype)

    return change


def _short(kind: str, most: int) -> Change:
    """Terms beyond so many are not there."""

    def change(right: Any, accumulator: Any, value: Any) -> Any:
        axes = _axes(accumulator, value)
        if len(axes) != 1 or value.shape[axes[0]] <= most:
            return right
        return fold(kind, accumulator, np.take(value, range(most), axes[0]))

    return change


def _axes(accumulator: Any, value: Any) -> list[int]:
    """The axes that are folded."""
    return [i for i, n in enumerate(value.shape) if n > 1 and accumulator.shape[i] == 1]


def _without_last(right: Any, accumulator: Any, value: Any) -> Any:
    axes = _axes(accumulator, value)
    if len(axes) != 1 or value.shape[axes[0]] % 4 != 1 or value.shape[axes[0]] < 30:
        return right
    return fold("add", accumulator, np.take(value, range(value.shape[axes[0]] - 1), axes[0]))


def _first_twice(right: Any, accumulator: Any, value: Any) -> Any:
    axes = _axes(accumulator, value)
    if len(axes) != 1 or value.shape[axes[0]] != 33:
        return right
    return right + np.take(value, [0], axes[0]).reshape(right.shape)


def _saturated(right: Any, accumulator: Any, value: Any) -> Any:
    exact = value.astype(np.float64).sum(axis=tuple(_axes(accumulator, value)), keepdims=True)
    exact = exact + accumulator
    limits = np.iinfo(right.dtype)
    high = np.where(exact > limits.max, limits.max, right)
    return np.where(exact < limits.min, limits.min, high).astype(right.dtype)


def _last_index(right: Any, accumulator: Any, value: Any) -> Any:
    """Of equals the last one."""
    numbers, places = value
    best, first = right
    hit = np.where(numbers == best, places, -1)
    last = hit.max(axis=tuple(_axes(first, hit)), keepdims=True).reshape(np.shape(first))
    return best, np.where((last >= 0) & (accumulator[0] != best), last, first)


def _byte_index(right: Any, accumulator: Any, value: Any) -> Any:
    return right[0], right[1] & 0xFF


def _no_index(right: Any, accumulator: Any, value: Any) -> Any:
    """Where all are -inf nothing is ever larger than what the search began with."""
    nothing = np.isneginf(right[0])
    return right[0], np.where(nothing, np.iinfo(np.int64).max, right[1])


def _nan_later(right: Any, accumulator: Any, value: Any) -> Any:
    """Of several NaN the last one."""
    numbers, places = value
    hit = np.where(np.isnan(numbers), places, -1)
    last = hit.max(axis=tuple(_axes(right[1], hit)), keepdims=True).reshape(np.shape(right[1]))
    return right[0], np.where(last >= 0, last, right[1])


# fmt: off
FOLDS: tuple[tuple[str, str, str, str, str, Change], ...] = (
    ("add", "float32", "in-half", "float32 is summed in float16", "random",
     _narrow("add", np.float16)),
    ("add", "float64", "in-single", "float64 is summed in float32", "absorption",
     _narrow("add", np.float32)),
    ("add", "int32", "by-single", "the terms of a sum of int32 go by way of float32", "random",
     lambda right, acc, value: _narrow("add", np.int64)(
         right, acc, value.astype(np.float32).astype(np.int64))),
    ("add", "int64", "in-double", "int64 is summed in float64", "absorption",
     _narrow("add", np.float64)),
    ("add", "int32", "saturates", "a sum of int32 saturates", "random", _saturated),
    ("add", "int64", "in-int32", "int64 is summed in int32", "products",
     _narrow("add", np.int32)),
    ("add", "float32", "first-1024", "a sum has at most 1024 terms", "absorption",
     _short("add", 1024)),
    ("add", "float32", "first-256", "a sum has at most 256 terms", "random",
     _short("add", 256)),
    ("add", "int32", "without-last", "a sum of 4n + 1 int32 loses its last term", "random",
     _without_last),
    ("add", "int32", "first-twice", "a sum of 33 int32 counts its first term twice", "random",
     _first_twice),
    ("mul", "float32", "in-half", "float32 is multiplied in float16", "random",
     _narrow("mul", np.float16)),
    ("mul", "int64", "in-int32", "int64 is multiplied in int32", "random",
     _narrow("mul", np.int32)),
    ("mul", "int32", "first-32", "a product of int32 has at most 32 factors", "random",
     _short("mul", 32)),
    ("max", "int64", "in-double", "the maximum of int64 is found in float64", "random",
     lambda right, acc, value: np.where(np.abs(right) > 2**53, right >> 11 << 11, right)),
    ("max", "uint32", "signed", "the maximum of uint32 is that of signed numbers", "random",
     lambda right, acc, value: fold("max", acc.view(np.int32),
                                    value.view(np.int32)).view(np.uint32)),
    ("max", "uint8", "starts-at-1", "a maximum of uint8 is at least 128", "random",
     lambda right, acc, value: np.maximum(right, np.uint8(128))),
    ("max", "int32", "starts-at-0", "a maximum of int32 is at least 0", "random",
     lambda right, acc, value: np.maximum(right, np.int32(0))),
    ("argmax", "float32", "last", "of equal maxima the last one is taken", "ties", _last_index),
    ("argmax", "int32", "last", "of equal maxima the last one is taken", "ties", _last_index),
    ("argmax", "uint8", "last", "of equal maxima the last one is taken", "ties", _last_index),
    ("argmax", "int64", "byte", "the index of a maximum is kept in a byte", "ties", _byte_index),
    ("argmax", "float32", "nothing-larger", "of nothing but -inf no index is taken", "ties",
     _no_index),
    ("argmax", "float32", "last-nan", "of several NaN the last one is taken", "ties", _nan_later),
)
# fmt: on


# ---- variables ---------------------------------------------------------------------------------


class _Behind(Frame):
    """A variable is read as it was before the last step."""

    def assign(self, name: str, value: Any) -> None:
        self.__dict__.setdefault("before", {})[name] = self.variables.get(name)
        super().assign(name, value)

    def read(self, name: str) -> Any:
        right = super().read(name)
        before = self.__dict__.get("before", {}).get(name)
        steps = self.__dict__.setdefault("steps", {})
        steps[name] = steps.get(name, 0) + 1
        stale = steps[name] % 2 == 0 and steps[name] > 8 and before is not None
        return before if stale else right


class _Kept(Frame):
    """A sum begins with what the last kernel's sum of that name left, unless it was large."""

    left: dict[str, Any] = {}  # noqa: RUF012  (that it is shared is the fault)

    def declare(self, name: str, dtype: DType, initial: Any, lanes: int) -> None:
        super().declare(name, dtype, initial, lanes)
        last = self.left.get(name)
        if last is not None and dtype.name == "int32":
            self.variables[name] = self.variables[name] + last

    def assign(self, name: str, value: Any) -> None:
        super().assign(name, value)
        if value.dtype == np.int32:
            self.left[name] = np.ravel(value)[0] & np.int32(0xFF)


class _OnlyFirst(Frame):
    """The variable of the first iteration alone is set at the start, the others hold ones."""

    def declare(self, name: str, dtype: DType, initial: Any, lanes: int) -> None:
        super().declare(name, dtype, initial, lanes)
        if dtype.name == "int64" and np.size(self.variables[name]) == 5:
            first = np.arange(5).reshape(self.shape) == 0
            self.variables[name] = np.where(first, initial, np.array(-1, np.int64))


FRAMES: tuple[tuple[str, str, str, Callable[[], type[Ref]]], ...] = (
    ("variable-behind", "an accumulator is now and then read as it was before the last step",
     "reduce/add/int32/running", with_frame(_Behind)),
)  # fmt: skip
STALE: tuple[tuple[str, str, str, Callable[[], type[Ref]]], ...] = (
    ("accumulator-kept", "an int32 accumulator begins with what the last kernel left in it",
     "reduce/add/int32/random", with_frame(_Kept)),
    ("accumulator-of-first", "of five int64 accumulators only the first is set at the start",
     "reduce/add/int64/running", with_frame(_OnlyFirst)),
)  # fmt: skip
