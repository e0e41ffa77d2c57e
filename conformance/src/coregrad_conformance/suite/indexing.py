"""Loads and stores: strides, offsets, divisions, gates, computed indices, scratch memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad import dtypes
from coregrad.dtypes import ALL, DType
from coregrad.errors import OutOfMemory
from coregrad.ir.index import Index, constant
from coregrad_conformance import oracle, tables, ulp
from coregrad_conformance.builder import Builder
from coregrad_conformance.row import Failure, Outcome, Row, Unsupported
from coregrad_conformance.target import POISON, bytes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coregrad.ir.kernel import Kernel
    from coregrad_conformance.target import Target

GROUP = "indexing"
INT = dtypes.int32
N = 101  # iterations: whole vectors and a rest
# How a loop of n iterations walks a buffer: elements it needs, and the position of iteration i.
WALKS: dict[str, tuple[int, Any]] = {
    "forwards": (N, lambda i: i),
    "one-element": (1, lambda i: constant(0)),
    "stride-2": (2 * N, lambda i: i * 2 + 1),
    "stride-3": (3 * N, lambda i: i * 3),
    "stride-17": (17 * N, lambda i: i * 17 + 5),
    "backwards": (N, lambda i: i * -1 + (N - 1)),
    "backwards-by-2": (2 * N, lambda i: i * -2 + (2 * N - 1)),
    "offset": (N + 7, lambda i: i + 7),
    "quotient": (N, lambda i: i // 3),
    "remainder": (N, lambda i: i % 7),
    "remainder-16": (N, lambda i: i % 16),
    "below-zero": (N, lambda i: (i - 50) // 7 + 8),
    "below-zero-remainder": (N, lambda i: (i - 50) % 9),
    "transposed": (N, lambda i: (i % 10) * 10 + i // 10),
}
STORED = ("forwards", "stride-2", "stride-3", "stride-17", "backwards", "backwards-by-2", "offset")


def rows() -> Iterator[Row]:
    """The rows of this file."""
    for walk in WALKS:
        yield _row("load", f"load/walk/{walk}", partial(_load_walk, walk), f"Loads {walk}.")
    for walk in STORED:
        run = partial(_store_walk, walk)
        yield _row("store", f"store/walk/{walk}", run, f"Stores {walk}; what lies between stays.")
    for dtype in ALL:
        yield _dtype_row("load", dtype, "layout", _layout)
        yield _dtype_row("load", dtype, "gate", _gated_load)
        yield _dtype_row("load", dtype, "gather", _gather)
        yield _dtype_row("store", dtype, "gate", _gated_store)
        yield _dtype_row("store", dtype, "scatter", _scatter)
    for dtype in (d for d in ALL if d.is_int):
        yield _dtype_row("load", dtype, "computed-index", _computed_index)
    yield _row("load", "load/gate/never", _never, "A gate that is false everywhere.")
    yield _row("load", "load/gate/far", _far, "Gated addresses very far outside.")
    yield _row("store", "store/inout", _inout, "A buffer that is read and written in place.")
    yield _row("store", "store/order", _order, "A serial loop's later store wins.")
    yield _row("store", "store/error-word", _error_word, "The error parameter.")
    yield _row("store", "store/private-array", _private, "Scratch memory of each iteration.")
    summary = "Scratch memory of each iteration of two loops."
    yield _row("store", "store/private-array-nested", _private_nested, summary)
    yield _row("load", "load/index-value", _index_value, "Indices as values of each integer dtype.")
    yield _row("load", "load/many-buffers", _many, "As many buffers as the device takes.")
    large = "Elements of a buffer beyond what 31 and 32 bits can address."
    yield Row("load/beyond-32-bits", "extended", GROUP, _beyond, "load", "uint8", large)


def _row(op: str, name: str, run: Any, summary: str) -> Row:
    return Row(name, "core", GROUP, run, op, summary=summary)


def _dtype_row(op: str, dtype: DType, name: str, run: Any) -> Row:
    id_ = f"{op}/{dtype.name}/{name}"
    summary = f"{op} of {dtype.name}: {name}."
    return Row(id_, tables.level(dtype), GROUP, partial(run, dtype), op, dtype.name, summary)


def _data(name: str, n: int, dtype: DType = INT) -> NDArray[Any]:
    return tables.bits(tables.generator(name), dtype, n)


def _positions(walk: Any, n: int = N) -> list[int]:
    """Where iteration i goes, by Python's own integers."""
    return [walk(_Number(i)).value for i in range(n)]


class _Number:
    """An integer that is computed with as an index is; division rounds down."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __add__(self, other: _Number | int) -> _Number:
        return _Number(self.value + (other.value if isinstance(other, _Number) else other))

    def __sub__(self, other: int) -> _Number:
        return _Number(self.value - other)

    def __mul__(self, factor: int) -> _Number:
        return _Number(self.value * factor)

    def __floordiv__(self, divisor: int) -> _Number:
        return _Number(self.value // divisor)

    def __mod__(self, divisor: int) -> _Number:
        return _Number(self.value % divisor)


# ---- walks -------------------------------------------------------------------------------------


def _load_walk(name: str, target: Target) -> Outcome:
    size, walk = WALKS[name]
    x = _data(f"load/{name}", size)
    places = [0] * N if name == "one-element" else _positions(walk)
    compared = 0
    for lanes in sorted({1, target.lanes}):
        build = Builder(f"load_{name.replace('-', '_')}_x{lanes}")
        out, source = build.out(INT, N), build.into(INT, size)
        with build.loop(N, "grid", lanes) as i:
            value = build.load(source, walk(i))
            build.store(out, i, build.op("add", value, build.const(1, INT)))
        (got,) = target.run_kernel(build.kernel(), [x])
        want = oracle.integers([int(x[p]) + 1 for p in places], INT)
        compared += oracle.compare(got, want, INT).compared
    return Outcome(compared)


def _store_walk(name: str, target: Target) -> Outcome:
    size, walk = WALKS[name]
    x = _data(f"store/{name}", N)
    want = np.full(size * 4, POISON, np.uint8).view(np.int32)
    want[_positions(walk)] = x
    compared = 0
    for lanes in sorted({1, target.lanes}):
        build = Builder(f"store_{name.replace('-', '_')}_x{lanes}")
        out, source = build.out(INT, size), build.into(INT, N)
        with build.loop(N, "grid", lanes) as i:
            build.store(out, walk(i), build.load(source, i))
        (got,) = target.run_kernel(build.kernel(), [x])
        compared += oracle.compare(got, oracle.Expected(want), INT).compared
    return Outcome(compared)


# ---- per dtype ---------------------------------------------------------------------------------


def _layout(dtype: DType, target: Target) -> Outcome:
    """Values land where the dtype's size says: a strided copy, as bits, NaN payloads apart."""
    target.require(dtype)
    x = _data(f"layout/{dtype.name}", 3 * N, dtype)
    compared = 0
    for lanes in sorted({1, target.lanes}):
        build = Builder(f"layout_{dtype.name}_x{lanes}")
        out, source = build.out(dtype, 2 * N), build.into(dtype, 3 * N)
        with build.loop(N, "grid", lanes) as i:
            build.store(out, i * 2, build.load(source, i * 3 + 2))
            build.store(out, i * 2 + 1, build.load(source, i + N))
        (got,) = target.run_kernel(build.kernel(), [x])
        want = np.stack([x[2::3], x[N : 2 * N]], 1).ravel()
        compared += oracle.compare(got, _as_expected(want, dtype), dtype).compared
    return Outcome(compared)


def _as_expected(stored: NDArray[Any], dtype: DType) -> oracle.Expected:
    return oracle.Expected(ulp.decode(stored, dtype))


def _inside(build: Builder, i: Index, low: int, high: int) -> Any:
    """The gate low <= i < high."""
    value = build.index(i, INT)
    above = build.op("lt", build.const(low - 1, INT), value)
    return build.op("and", above, build.op("lt", value, build.const(high, INT)))


def _gated_load(dtype: DType, target: Target) -> Outcome:
    """A padded row: the addresses of the border lie before and behind the buffer."""
    target.require(dtype)
    pad, size = 37, 29
    x = _data(f"gate/{dtype.name}", size, dtype)
    total = size + 2 * pad
    want = np.zeros(total, dtype.storage)
    want[pad : pad + size] = x
    compared = 0
    for lanes in sorted({1, target.lanes}):
        build = Builder(f"pad_{dtype.name}_x{lanes}")
        out, source = build.out(dtype, total), build.into(dtype, size)
        with build.loop(total, "grid", lanes) as i:
            gate = _inside(build, i, pad, pad + size)
            build.store(out, i, build.load(source, i - pad, gate))
        (got,) = target.run_kernel(build.kernel(), [x])
        compared += oracle.compare(got, _as_expected(want, dtype), dtype).compared
    return Outcome(compared)


def _gated_store(dtype: DType, target: Target) -> Outcome:
    """Only a stretch of the iterations stores; the others' addresses lie outside the buffer."""
    target.require(dtype)
    pad, size = 37, 29
    x = _data(f"store/gate/{dtype.name}", size + 2 * pad, dtype)
    compared = 0
    for lanes in sorted({1, target.lanes}):
        build = Builder(f"crop_{dtype.name}_x{lanes}")
        out, source = build.out(dtype, size), build.into(dtype, x.size)
        with build.loop(x.size, "grid", lanes) as i:
            gate = _inside(build, i, pad, pad + size)
            build.store(out, i - pad, build.load(source, i), gate)
        (got,) = target.run_kernel(build.kernel(), [x])
        want = _as_expected(x[pad : pad + size], dtype)
        compared += oracle.compare(got, want, dtype).compared
    return Outcome(compared)


def _gather(dtype: DType, target: Target) -> Outcome:
    """Elements at loaded int32 positions, some of them gated away."""
    target.require(dtype)
    rng = tables.generator(f"gather/{dtype.name}")
    size = 53
    x = tables.bits(rng, dtype, size)
    places = rng.integers(-5, size + 5, N).astype(np.int32)
    inside = (places >= 0) & (places < size)
    want = np.where(inside, x[np.clip(places, 0, size - 1)], np.zeros(1, x.dtype))
    compared = 0
    for lanes in sorted({1, target.lanes}):
        build = Builder(f"gather_{dtype.name}_x{lanes}")
        out, source, at = build.out(dtype, N), build.into(dtype, size), build.into(INT, N)
        with build.loop(N, "grid", lanes) as i:
            place = build.load(at, i)
            low = build.op("lt", build.const(-1, INT), place)
            gate = build.op("and", low, build.op("lt", place, build.const(size, INT)))
            value = build.load(source, build.computed(place, -5, size + 4), gate)
            build.store(out, i, value)
        (got,) = target.run_kernel(build.kernel(), [x, places])
        compared += oracle.compare(got, _as_expected(want, dtype), dtype).compared
    return Outcome(compared)


def _scatter(dtype: DType, target: Target) -> Outcome:
    """Elements stored at loaded positions, no two of them alike."""
    target.require(dtype)
    rng = tables.generator(f"scatter/{dtype.name}")
    x = tables.bits(rng, dtype, N)
    places = rng.permutation(2 * N)[:N].astype(np.int32)
    want = tables.bits(rng, dtype, 2 * N)
    before = want.copy()
    want[places] = x
    build = Builder(f"scatter_{dtype.name}")
    out = build.out(dtype, 2 * N, "inout")
    source, at = build.into(dtype, N), build.into(INT, N)
    with build.loop(N, "serial", target.lanes) as i:
        place = build.computed(build.load(at, i), 0, 2 * N - 1)
        build.store(out, place, build.load(source, i))
    (got,) = target.run_kernel(build.kernel(), [before, x, places])
    return oracle.compare(got, _as_expected(want, dtype), dtype)


def _computed_index(dtype: DType, target: Target) -> Outcome:
    """An index of this dtype in the middle of index arithmetic."""
    target.require(dtype)
    rng = tables.generator(f"index/{dtype.name}")
    x = _data("index/values", 256)
    places = rng.integers(0, 120, N).astype(dtype.storage)
    compared = 0
    for lanes in sorted({1, target.lanes}):
        build = Builder(f"index_{dtype.name}_x{lanes}")
        out, source, at = build.out(INT, N), build.into(INT, 256), build.into(dtype, N)
        with build.loop(N, "grid", lanes) as i:
            place = build.computed(build.load(at, i), 0, 119)
            build.store(out, i, build.load(source, place * 2 + i % 8 + 3))
        (got,) = target.run_kernel(build.kernel(), [x, places])
        want = x[places.astype(np.int64) * 2 + np.arange(N) % 8 + 3]
        compared += oracle.compare(got, oracle.Expected(want), INT).compared
    return Outcome(compared)


# ---- gates, arrays, parameters -----------------------------------------------------------------


def _never(target: Target) -> Outcome:
    build = Builder("never")
    out, source = build.out(INT, N), build.into(INT, 1)
    with build.loop(N, "grid", target.lanes) as i:
        no = build.op("lt", build.index(i, INT), build.const(0, INT))
        build.store(out, i, build.load(source, i + 1, no))
    (got,) = target.run_kernel(build.kernel(), [np.array([7], np.int32)])
    return oracle.compare(got, oracle.integers([0] * N, INT), INT)


def _far(target: Target) -> Outcome:
    """A terabyte before and behind the buffer (within 32 bits of index where it has no more)."""
    reach = 1 << (40 if target.limits.index_bits == 64 else 24)
    x = _data("far", 4)
    want = oracle.integers([int(x[2]) if i == 50 else 0 for i in range(N)], INT)
    compared = 0
    for lanes in sorted({1, target.lanes}):
        build = Builder(f"far_x{lanes}")
        out, source = build.out(INT, N), build.into(INT, 4)
        with build.loop(N, "grid", lanes) as i:
            only = _inside(build, i, 50, 51)
            build.store(out, i, build.load(source, i * reach - (50 * reach - 2), only))
        (got,) = target.run_kernel(build.kernel(), [x])
        compared += oracle.compare(got, want, INT).compared
    return Outcome(compared)


def _inout(target: Target) -> Outcome:
    x, y = _data("inout", N), _data("inout/added", N)
    build = Builder("inout")
    both = build.out(INT, N, "inout")
    source = build.into(INT, N)
    with build.loop(N, "grid", target.lanes) as i:
        build.store(both, i, build.op("add", build.load(both, i), build.load(source, i)))
    (got,) = target.run_kernel(build.kernel(), [x, y])
    want = oracle.integers([int(a) + int(b) for a, b in zip(x, y, strict=True)], INT)
    return oracle.compare(got, want, INT)


def _order(target: Target) -> Outcome:
    """Many iterations store to few places; a running sum through memory besides."""
    x = _data("order", N)
    places = tables.generator("order").integers(0, 7, N).astype(np.int32)
    build = Builder("order")
    last = build.out(INT, 7, "inout")
    total = build.out(INT, 7, "inout")
    source, at = build.into(INT, N), build.into(INT, N)
    with build.loop(N) as i:
        place = build.computed(build.load(at, i), 0, 6)
        value = build.load(source, i)
        build.store(last, place, value)
        build.store(total, place, build.op("add", build.load(total, place), value))
    empty = np.zeros(7, np.int32)
    got_last, got_total = target.run_kernel(build.kernel(), [empty, empty, x, places])
    latest, sums = [0] * 7, [0] * 7
    for place, value in zip(places.tolist(), x.tolist(), strict=True):
        latest[place] = value
        sums[place] += value
    oracle.compare(got_last, oracle.integers(latest, INT), INT)
    return oracle.compare(got_total, oracle.integers(sums, INT), INT)


def _error_word(target: Target) -> Outcome:
    """Stays 0 where no iteration objects; holds the number where some do."""
    x = np.arange(N, dtype=np.int32)
    for bound, wanted in ((N, 0), (60, 5)):
        build = Builder(f"error_{bound}")
        out, source = build.out(INT, N), build.into(INT, N)
        word = build.out(INT, 1, "error")
        with build.loop(N, "grid") as i:
            value = build.load(source, i)
            wrong = build.op("lt", build.const(bound, INT), value)
            build.store(word, 0, build.const(5, INT), wrong)
            build.store(out, i, value)
        got, error = target.run_kernel(build.kernel(), [x])
        if error[0] != wanted:
            raise Failure(f"the error word is {error[0]}, expected {wanted}")
        oracle.compare(got, oracle.Expected(x), INT)
    return Outcome(2 * N + 2)


def _private(target: Target) -> Outcome:
    """Every iteration fills its own scratch memory and reads it in another order."""
    count, length = 33, 19
    x = _data("private", count * length)
    build = Builder("private")
    out, source = build.out(INT, x.size), build.into(INT, x.size)
    with build.loop(count, "grid") as r:
        scratch = build.array(INT, length)
        with build.loop(length) as j:
            build.store(scratch, j * -1 + (length - 1), build.load(source, r * length + j))
        with build.loop(length) as j:
            build.store(out, r * length + j, build.load(scratch, j))
    (got,) = target.run_kernel(build.kernel(), [x])
    return oracle.compare(got, oracle.Expected(x.reshape(count, -1)[:, ::-1].ravel()), INT)


def _private_nested(target: Target) -> Outcome:
    """The inner loop's iterations each fill their own and read it in another order."""
    outer, inner, length = 5, 4, 7
    x = _data("private/nested", outer * inner * length)
    build = Builder("private_nested")
    out, source = build.out(INT, x.size), build.into(INT, x.size)
    with build.loop(outer, "grid") as r, build.loop(inner) as c:
        scratch = build.array(INT, length)
        place = (r * inner + c) * length
        with build.loop(length) as j:
            build.store(scratch, j * -1 + (length - 1), build.load(source, place + j))
        with build.loop(length) as j:
            build.store(out, place + j, build.load(scratch, j))
    (got,) = target.run_kernel(build.kernel(), [x])
    return oracle.compare(got, oracle.Expected(x.reshape(-1, length)[:, ::-1].ravel()), INT)


def _index_value(target: Target) -> Outcome:
    used = [d for d in (dtypes.uint8, INT, dtypes.uint32, dtypes.int64) if target.supports(d)]
    compared = 0
    for lanes in sorted({1, target.lanes}):
        build = Builder(f"index_value_x{lanes}")
        outs = [build.out(dtype, N * 3) for dtype in used]
        with build.loop(3, "grid") as r, build.loop(N, "serial", lanes) as i:
            for out in outs:
                build.store(out, r * N + i, build.index(i * 5 + r - 2, out.dtype))
        results = target.run_kernel(build.kernel(), [])
        for dtype, got in zip(used, results, strict=True):
            want = oracle.integers([i * 5 + r - 2 for r in range(3) for i in range(N)], dtype)
            compared += oracle.compare(got, want, dtype).compared
    return Outcome(compared)


def _many(target: Target) -> Outcome:
    count = min(target.limits.max_buffers, 128)
    x = _data("many", count * N).reshape(count, N)
    build = Builder(f"many_{count}")
    out = build.out(INT, N)
    sources = [build.into(INT, N) for _ in range(count - 1)]
    with build.loop(N, "grid", target.lanes) as i:
        total = build.load(sources[0], i)
        for source in sources[1:]:
            tripled = build.op("mul", total, build.const(3, INT))
            total = build.op("add", tripled, build.load(source, i))
        build.store(out, i, total)
    (got,) = target.run_kernel(build.kernel(), list(x[:-1]))
    want = [0] * N
    for row in x[:-1].tolist():
        want = [3 * w + v for w, v in zip(want, row, strict=True)]
    return oracle.compare(got, oracle.integers(want, INT), INT)


def _beyond(target: Target) -> Outcome:
    """Other values at 0, 2**31 and 2**32: addresses that lose their upper bits store over them."""
    if target.limits.index_bits < 64:
        raise Unsupported("the device declares 32-bit indices")
    device, byte, each, parts = target.active.device, dtypes.uint8, 32, 3
    size = (parts - 1 << 31) + each
    writing = _regions("beyond_write", (size, each * parts), parts, each)
    reading = _regions("beyond_read", (each * parts, size), parts, each)
    x = _data("beyond", each * parts, byte)
    try:
        large = device.allocate(size)
    except OutOfMemory as error:
        raise Unsupported(f"no room for a buffer of 4 GiB: {error}") from None
    small = device.allocate(x.size)
    got = np.zeros_like(x)
    try:
        device.copy_in(small, bytes_of(x))
        target.prepare(writing)([large, small])
        device.copy_in(small, bytes_of(got))
        target.prepare(reading)([small, large])
        device.copy_out(small, bytes_of(got))
    finally:
        device.free(small)
        device.free(large)
    return oracle.compare(got, oracle.Expected(x), byte)


def _regions(name: str, sizes: tuple[int, int], parts: int, each: int) -> Kernel:
    """Copies stretches that lie 2**31 apart in the larger buffer, side by side in the other."""
    build = Builder(name)
    out, source = build.out(dtypes.uint8, sizes[0]), build.into(dtypes.uint8, sizes[1])
    with build.loop(parts, "grid") as part, build.loop(each) as i:
        far, close = part * (1 << 31) + i, part * each + i
        places = (far, close) if sizes[0] > sizes[1] else (close, far)
        build.store(out, places[0], build.load(source, places[1]))
    return build.kernel()
