"""Sorts: by the device's own program, where it offers one (``Device.sort``), and by tensors.

Keys are integers. Which stand where in order is exact, and equal ones keep their order, so that
there is one right answer; the oracle is NumPy's stable sort.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad import Tensor, dtypes
from coregrad.dtypes import INTS, DType
from coregrad_conformance import oracle, tables
from coregrad_conformance.row import Failure, Outcome, Row
from coregrad_conformance.suite.tensors import equal
from coregrad_conformance.target import GUARD, GUARD_BYTES, POISON, Target, bytes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

GROUP = "sorting"
PLACES = dtypes.int32
Shape = tuple[int, int, int]  # rows, length, how many of each row are asked for
# One element, two, one row and many, lengths around vectors and blocks, all and few of a row.
SMALL: tuple[Shape, ...] = (
    *((1, 1, 1), (1, 2, 2), (1, 2, 1), (5, 3, 3), (1, 31, 31), (3, 33, 33), (2, 64, 7)),
    *((1, 257, 257), (3, 257, 1), (2, 259, 258), (1, 1025, 1025), (1, 1025, 16), (130, 7, 4)),
)
LARGER: tuple[Shape, ...] = (
    *((1, 4099, 4099), (3, 4099, 100), (1, 65537, 65537), (2, 70_001, 5), (1030, 65, 65)),
    (1, 200_007, 150_000),
)
BY_TENSORS: tuple[tuple[int, int], ...] = ((1, 1), (3, 67))


def rows() -> Iterator[Row]:
    """The rows of this file."""
    for dtype in INTS:
        level = tables.level(dtype)
        yield _row(dtype, "keys", partial(_keys, dtype, SMALL), level,
                   "The device's own sort of keys of every kind, if it has one.")  # fmt: skip
        yield _row(dtype, "many-keys", partial(_keys, dtype, LARGER), "standard",
                   "The same of long rows and of many rows.")  # fmt: skip
        written = "core" if dtype is dtypes.int32 else "standard"  # a few dozen kernels each
        yield _row(dtype, "tensor", partial(_tensor, dtype), written, "Tensors in order.")
    summary = "NaN last, zeros of both signs equal, equal numbers in their order."
    yield _row(dtypes.float32, "tensor", _floats, "core", summary)
    empty = "Sorts of no rows, of no elements, and of a number."
    yield Row("sorting/empty", "core", GROUP, _empty, summary=empty)


def _row(dtype: DType, name: str, run: Any, level: str, summary: str) -> Row:
    return Row(f"sorting/{dtype.name}/{name}", level, GROUP, run, "", dtype.name, summary)


# ---- keys --------------------------------------------------------------------------------------


def _kinds(dtype: DType, rows: int, length: int) -> Iterator[NDArray[Any]]:
    """Keys that tell sorts apart: of all bits; special ones; few, hence equal ones; in order and
    backwards; and those that differ in one byte only, which a sort by bytes has a pass for."""
    rng = tables.generator(f"sorting/{dtype.name}/{rows}/{length}")
    shape = rows, length
    drawn = tables.bits(rng, dtype, rows * length).reshape(shape)
    yield drawn
    yield rng.choice(tables.specials(dtype), shape)
    yield rng.integers(0, 3, shape).astype(dtype.storage)
    yield np.sort(drawn, -1)
    yield np.sort(drawn, -1)[:, ::-1].copy()
    word = f"u{dtype.itemsize}"
    for byte in range(dtype.itemsize):
        mask = np.array(0xFF << 8 * byte, np.uint64).astype(word)
        yield (drawn.view(word) & mask).view(dtype.storage)


def _order(keys: NDArray[Any], count: int) -> NDArray[Any]:
    """Where the smallest stand, by row."""
    return np.argsort(keys, axis=-1, kind="stable")[:, :count]


# ---- the device's own --------------------------------------------------------------------------


def _keys(dtype: DType, shapes: Sequence[Shape], target: Target) -> Outcome:
    """Where the device has no sort, or not this one, the core's way is another row's business;
    then the keys are looked at as they are."""
    target.require(dtype)
    compared, offered = 0, 0
    for rows, length, count in shapes:
        sort = getattr(target.active.device, "sort", None)
        found = None if sort is None else sort(dtype, rows, length, count)
        if found is None:
            compared += _come_back(target, dtype, rows * length)
            continue
        offered += 1
        compared += _sorted(target, found, dtype, (rows, length, count))
    return Outcome(compared, detail=f"{offered} of {len(shapes)} sorts are the device's own")


def _come_back(target: Target, dtype: DType, n: int) -> int:
    x = tables.bits(tables.generator("sorting"), dtype, min(n, 64))
    return equal(Tensor(x, device=target.name).numpy(), x, "keys that nobody sorts")


def _sorted(target: Target, found: tuple[Any, int], dtype: DType, shape: Shape) -> int:
    """One program on ever other keys, its scratch memory as the last launch has left it."""
    rows, length, count = shape
    program, scratch = found
    if not isinstance(scratch, int) or scratch < 1:
        raise Failure(f"{scratch!r} bytes of scratch memory; at least 1", "capability")
    device = target.active.device
    compiled, compared = device.compile(program), 0
    kept = Guarded(target, np.full(scratch, POISON, np.uint8))
    try:
        for keys in _kinds(dtype, rows, length):
            got = _launched(target, compiled, keys, count, kept)
            want = oracle.Expected(_order(keys, count).astype(np.int32).reshape(-1))
            compared += oracle.compare(got, want, PLACES).compared
    finally:
        kept.free()
    return compared


def _launched(
    target: Target, compiled: Any, keys: NDArray[Any], count: int, scratch: Guarded
) -> NDArray[Any]:
    device = target.active.device
    places = Guarded(target, np.full(len(keys) * count * 4, POISON, np.uint8))
    given = Guarded(target, keys.reshape(-1).view(np.uint8))
    try:
        device.launch(compiled, [places.raw, given.raw, scratch.raw], 1)
        got = places.content("places").view(np.int32)
        scratch.content("scratch memory")
        if not np.array_equal(given.content("keys"), given.before):
            raise Failure("the keys were overwritten", "memory")
    finally:
        places.free()
        given.free()
    return got


class Guarded:
    """Device memory with guard bytes behind it."""

    def __init__(self, target: Target, before: NDArray[np.uint8]) -> None:
        self.device = target.active.device
        self.before = before
        guard = np.full(GUARD_BYTES, GUARD, np.uint8)
        self.raw = self.device.allocate(before.size + GUARD_BYTES)
        self.device.copy_in(self.raw, bytes_of(np.concatenate([before, guard])))

    def content(self, what: str) -> NDArray[np.uint8]:
        """The bytes as they are now; raises Failure where those behind have changed."""
        after = np.zeros(self.before.size + GUARD_BYTES, np.uint8)
        self.device.copy_out(self.raw, bytes_of(after))
        if (after[self.before.size :] != GUARD).any():
            raise Failure(f"bytes behind the {what} were overwritten", "memory")
        return after[: self.before.size].copy()

    def free(self) -> None:
        """Give the memory back."""
        self.device.free(self.raw)


# ---- by tensors --------------------------------------------------------------------------------


def _tensor(dtype: DType, target: Target) -> Outcome:
    """In order, backwards, and the first few, by whichever way the core takes."""
    target.require(dtype)
    compared = 0
    for rows, length in BY_TENSORS:
        few = max(1, length // 3)
        for keys in list(_kinds(dtype, rows, length))[:3]:
            x, order = Tensor(keys, device=target.name), _order(keys, length)
            compared += equal(x.argsort(-1).numpy(), order, f"{length} in order")
            # Backwards: of a row that is turned around the last of equals comes first.
            back = length - 1 - _order(keys[:, ::-1], length)[:, ::-1]
            found = x.sort(-1, descending=True)
            compared += equal(found.indices.numpy(), back, f"{length} backwards")
            compared += equal(found.values.numpy(), np.sort(keys, -1)[:, ::-1], "their values")
            first = x.topk(few, largest=False)
            compared += equal(first.indices.numpy(), order[:, :few], f"the first {few}")
    return Outcome(compared)


def _floats(target: Target) -> Outcome:
    """NumPy puts NaN last as well, and finds zeros equal."""
    compared = 0
    for rows, length in BY_TENSORS:
        rng = tables.generator(f"sorting/floats/{length}")
        special = rng.choice(tables.specials(dtypes.float32), (rows, length))
        drawn = tables.bits(rng, dtypes.float32, rows * length).reshape(rows, length)
        for values in (special, drawn):
            order = np.argsort(values, axis=-1, kind="stable")
            got = Tensor(values, device=target.name).argsort(-1).numpy()
            compared += equal(got, order, f"{length} numbers")
    return Outcome(compared)


def _empty(target: Target) -> Outcome:
    compared = 0
    for shape in ((0, 5), (3, 0), (0, 0)):
        x = Tensor(np.zeros(shape, np.int32), device=target.name)
        compared += equal(x.argsort(-1).numpy(), np.zeros(shape), f"of the shape {shape}")
    number = Tensor(np.array(7, np.int32), device=target.name)
    compared += equal(number.sort().values.numpy(), np.array(7), "a number")
    return Outcome(compared + equal(number.argsort().numpy(), np.array(0), "its place"))
