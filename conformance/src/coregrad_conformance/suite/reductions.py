"""The reduce op and the accumulators around it.

Sums and products of floats are held to what any order of the additions can give; integers wrap;
max and argmax are exact. float16, bfloat16 and narrow integers accumulate as the contract says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad import dtypes
from coregrad.dtypes import FLOATS, INTS, DType, accumulator
from coregrad.ir.index import Index
from coregrad.ir.kernel import Instr, Kernel, Param
from coregrad_conformance import oracle, tables, ulp
from coregrad_conformance.builder import Builder
from coregrad_conformance.row import Outcome, Row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coregrad_conformance.target import Target

GROUP = "reductions"
NUMBERS = (*INTS, *FLOATS)
LENGTHS = (1, 33, 257)  # as many buffers as every device takes, outputs included
ROWS = 3
LONG = 1025
HUGE = (1 << 20) + 5


def rows() -> Iterator[Row]:
    """The rows of this file."""
    for dtype in NUMBERS:
        for kind in ("add", "mul", "max", "argmax"):
            yield _row(kind, dtype, "random", partial(_random, kind, dtype))
        yield _row("argmax", dtype, "ties", partial(_ties, dtype))
        yield _row("add", dtype, "absorption", partial(_absorption, dtype))
        yield _row("add", dtype, "products", partial(_products, dtype))
    for dtype in FLOATS:
        for kind in ("add", "mul", "max", "argmax"):
            yield _row(kind, dtype, "special-values", partial(_specials, kind, dtype))
    for dtype in (dtypes.float32, dtypes.int32, dtypes.int64, dtypes.float64):
        yield _row("add", dtype, "columns", partial(_columns, dtype))
        yield _row("add", dtype, "nested", partial(_nested, dtype))
        yield _row("add", dtype, "running", partial(_running, dtype))
    shared = "Sum, maximum and its index in one loop, then a second loop that uses the maximum."
    yield Row("reduce/shared-nest", "core", GROUP, _shared, "reduce", "float32", shared)
    whole = "A reduction over everything, outside any grid."
    yield Row("reduce/whole", "core", GROUP, _whole, "reduce", "float32", whole)
    long = "Sums of 65537 float32 within the bound of any order."
    yield Row("reduce/add/float32/long", "standard", GROUP, _long, "reduce", "float32", long)
    huge = "A million sums of two int32, and one sum of a million."
    yield Row("reduce/add/int32/huge", "standard", GROUP, _huge, "reduce", "int32", huge)


def _row(kind: str, dtype: DType, name: str, run: Any) -> Row:
    summary = f"reduce {kind} of {dtype.name}: {name.replace('-', ' ')}."
    id_ = f"reduce/{kind}/{dtype.name}/{name}"
    return Row(id_, tables.level(dtype), GROUP, run, "reduce", dtype.name, summary)


# ---- kernels -----------------------------------------------------------------------------------


def _by_rows(kind: str, dtype: DType, count: int, lengths: Sequence[int], lanes: int) -> Kernel:
    """For matrices of so many rows: out[r] = reduce(in[r, :]); for argmax the index as int64."""
    build = Builder(f"reduce_{kind}_{dtype.name}_{count}x{'_'.join(map(str, lengths))}_x{lanes}")
    result = dtypes.int64 if kind == "argmax" else dtype
    outs = [build.out(result, count) for _ in lengths]
    sources = [build.into(dtype, count * length) for length in lengths]
    with build.loop(count, "grid") as r:
        for out, source, length in zip(outs, sources, lengths, strict=True):
            build.store(out, r, _by_row(build, kind, source, r, length, lanes))
    return build.kernel()


def _by_row(build: Builder, kind: str, source: Param, r: Index, length: int, lanes: int) -> Instr:
    dtype = source.dtype
    inner = dtype if kind in ("max", "argmax") else accumulator(dtype)
    acc = build.accumulator(kind, inner)
    with build.loop(length, "serial", lanes) as j:
        value = _as(build, build.load(source, r * length + j), inner)
        build.update(acc, value, *([build.index(j)] if kind == "argmax" else []))
    result = build.result(acc, r, part=int(kind == "argmax"))
    return result if kind == "argmax" else _as(build, result, dtype)


def _as(build: Builder, value: Instr, dtype: DType) -> Instr:
    return value if value.dtype is dtype else build.cast(value, dtype)


def _lanes(target: Target) -> list[int]:
    """One lane, the device's, and the several vectors that a cheap reduction takes at a time."""
    return sorted({1, target.lanes, target.lanes * 4 if target.lanes > 1 else 1})


# ---- rows of a matrix --------------------------------------------------------------------------


def _random(kind: str, dtype: DType, target: Target) -> Outcome:
    target.require(dtype)
    rng = tables.generator(f"reduce/{kind}/{dtype.name}")
    matrices = [_draw(rng, kind, dtype, ROWS * n).reshape(ROWS, n) for n in LENGTHS]
    return _together([_check(target, kind, dtype, matrices, n) for n in _lanes(target)])


def _draw(rng: np.random.Generator, kind: str, dtype: DType, n: int) -> NDArray[Any]:
    if not dtype.is_float:
        drawn = tables.bits(rng, dtype, n)
        return drawn | np.array(1, drawn.dtype) if kind == "mul" else drawn
    if kind == "mul":  # so near 1 that 257 of them neither over- nor underflow
        near = np.exp(rng.standard_normal(n) * 0.05) * rng.choice([-1.0, 1.0], n)
        return tables.numbers(near, dtype)
    return tables.numbers(rng.standard_normal(n) * 8, dtype)


def _check(
    target: Target, kind: str, dtype: DType, matrices: Sequence[NDArray[Any]], lanes: int
) -> Outcome:
    lengths = [x.shape[1] for x in matrices]
    kernel = _by_rows(kind, dtype, len(matrices[0]), lengths, lanes)
    results = target.run_kernel(kernel, matrices)
    pairs = zip(results, matrices, strict=True)
    return _together([_judge(kind, dtype, got, x) for got, x in pairs])


def _judge(kind: str, dtype: DType, got: NDArray[Any], x: NDArray[Any]) -> Outcome:
    numbers = ulp.decode(x, dtype)
    if kind == "argmax":
        first = [oracle.first_largest(row) for row in numbers.tolist()]
        return oracle.compare(got, oracle.integers(first, dtypes.int64), dtypes.int64)
    if kind == "max":
        return oracle.compare(got, _maxima(numbers, dtype), dtype)
    if not dtype.is_float:
        folded = [_fold(kind, row) for row in numbers.tolist()]
        return oracle.compare(got, oracle.integers(folded, dtype), dtype)
    bound = oracle.sums if kind == "add" else oracle.products
    return oracle.within(got, bound(numbers, accumulator(dtype), dtype), dtype)


def _maxima(numbers: NDArray[Any], dtype: DType) -> oracle.Expected:
    found = [row[oracle.first_largest(row)] for row in numbers.tolist()]
    if not dtype.is_float:
        return oracle.integers(found, dtype)
    values = np.array(found, np.float64)
    return oracle.Expected(values, either_zero=values == 0)


def _fold(kind: str, row: list[int]) -> int:
    total = 0 if kind == "add" else 1
    for value in row:
        total = total + value if kind == "add" else total * value
    return total


def _together(outcomes: list[Outcome]) -> Outcome:
    worst = [o.ulp for o in outcomes if o.ulp is not None]
    return Outcome(sum(o.compared for o in outcomes), max(worst, default=None))


def _specials(kind: str, dtype: DType, target: Target) -> Outcome:
    """Infinities, NaN at the start, in the middle and at the end, signed zeros, only -inf."""
    target.require(dtype)
    inf, nan = float("inf"), float("nan")
    table = np.ones((9, 37))
    table[0, 0] = table[1, 18] = table[2, 36] = nan
    table[3, 5] = inf
    table[4, 30] = -inf
    table[5, 3], table[5, 33] = inf, -inf
    table[6] = -inf
    table[7] = -0.0
    table[8, 7], table[8, 20] = nan, inf
    x = tables.numbers(table, dtype)
    return _together([_check(target, kind, dtype, [x], lanes) for lanes in _lanes(target)])


def _ties(dtype: DType, target: Target) -> Outcome:
    """The first of equals, wherever they fall among the lanes, and the only one of the smallest."""
    target.require(dtype)
    rng = tables.generator(f"reduce/ties/{dtype.name}")
    length = 259
    table = rng.integers(0, 3, (8, length)).astype(dtype.storage)
    table[0] = 0
    table[1, -1] = 3
    table[2, 0] = table[2, -1] = 3
    x = tables.numbers(table.astype(np.float64), dtype) if dtype.is_float else table
    if dtype.is_float:
        x[3] = tables.numbers(np.array([-np.inf]), dtype)
        x[4, [7, 100]] = tables.numbers(np.array([np.nan]), dtype)
    else:
        x[3] = dtype.min
    return _together([_check(target, "argmax", dtype, [x], lanes) for lanes in _lanes(target)])


def _absorption(dtype: DType, target: Target) -> Outcome:
    """Sums that are exact where they are accumulated, and lost in anything narrower."""
    target.require(dtype)
    table = np.ones((4, LONG))
    if dtype.is_float:
        # Small ones vanish beside the large one in half (float64: in float32) precision.
        table *= 0.5
        large = {16: 2.0**12, 32: 2.0**13, 64: 2.0**40}[dtype.bits]
    else:
        large = {8: 100.0, 16: 30000.0, 32: 2.0**30, 64: 2.0**60}[dtype.bits]
    table[0, 0] = table[1, LONG // 2] = table[2, -1] = large
    x = tables.numbers(table, dtype) if dtype.is_float else table.astype(dtype.storage)
    return _together([_check(target, "add", dtype, [x], lanes) for lanes in _lanes(target)])


def _products(dtype: DType, target: Target) -> Outcome:
    """Sums over products, whose rounding may be left out."""
    target.require(dtype)
    rng = tables.generator(f"reduce/products/{dtype.name}")
    n = 129
    a, b = (_draw(rng, "add", dtype, ROWS * n).reshape(ROWS, n) for _ in range(2))
    outcomes = []
    for lanes in _lanes(target):
        (got,) = target.run_kernel(_dot(dtype, n, lanes), [a, b])
        outcomes.append(_check_dot(got, a, b, dtype))
    return _together(outcomes)


def _dot(dtype: DType, n: int, lanes: int) -> Kernel:
    build = Builder(f"dot_{dtype.name}_{n}_x{lanes}")
    out = build.out(dtype, ROWS)
    sources = [build.into(dtype, ROWS * n) for _ in range(2)]
    inner = accumulator(dtype)
    with build.loop(ROWS, "grid") as r:
        acc = build.accumulator("add", inner)
        with build.loop(n, "serial", lanes) as j:
            a, b = (_as(build, build.load(s, r * n + j), inner) for s in sources)
            build.update(acc, build.op("mul", a, b))
        build.store(out, r, _as(build, build.result(acc, r), dtype))
    return build.kernel()


def _check_dot(got: NDArray[Any], a: NDArray[Any], b: NDArray[Any], dtype: DType) -> Outcome:
    x, y = ulp.decode(a, dtype), ulp.decode(b, dtype)
    if dtype.is_float:
        return oracle.dots(got, x, y, accumulator(dtype), dtype)
    pairs = zip(x.tolist(), y.tolist(), strict=True)
    sums = [sum(p * q for p, q in zip(left, right, strict=True)) for left, right in pairs]
    return oracle.compare(got, oracle.integers(sums, dtype), dtype)


# ---- other nests -------------------------------------------------------------------------------


def _columns(dtype: DType, target: Target) -> Outcome:
    """Lanes along the outputs, the reduction's own loop inside."""
    target.require(dtype)
    rng = tables.generator(f"reduce/columns/{dtype.name}")
    length, count = 19, 37
    x = _draw(rng, "add", dtype, length * count).reshape(length, count)
    build = Builder(f"columns_{dtype.name}")
    out = build.out(dtype, count)
    source = build.into(dtype, length * count)
    with build.loop(count, "grid", target.lanes) as c:
        acc = build.accumulator("add", dtype)
        with build.loop(length) as r:
            build.update(acc, build.load(source, r * count + c))
        build.store(out, c, build.result(acc, c))
    (got,) = target.run_kernel(build.kernel(), [x])
    return _sums(got, x.T, dtype)


def _nested(dtype: DType, target: Target) -> Outcome:
    """One accumulator over two loops, of which the inner one is unrolled or has lanes."""
    target.require(dtype)
    rng = tables.generator(f"reduce/nested/{dtype.name}")
    count, outer = 3, 5
    outcomes = []
    for inner, kind, lanes in ((4, "unroll", 1), (3, "unroll", 1), (37, "serial", target.lanes)):
        x = _draw(rng, "add", dtype, count * outer * inner).reshape(count, -1)
        build = Builder(f"nested_{dtype.name}_{inner}")
        out = build.out(dtype, count)
        source = build.into(dtype, x.size)
        with build.loop(count, "grid") as r:
            acc = build.accumulator("add", dtype)
            with build.loop(outer) as j, build.loop(inner, kind, lanes) as k:
                build.update(acc, build.load(source, (r * outer + j) * inner + k))
            build.store(out, r, build.result(acc, r))
        (got,) = target.run_kernel(build.kernel(), [x])
        outcomes.append(_sums(got, x, dtype))
    return _together(outcomes)


def _running(dtype: DType, target: Target) -> Outcome:
    """An accumulator that is read after every step."""
    target.require(dtype)
    rng = tables.generator(f"reduce/running/{dtype.name}")
    count, length = 5, 23
    x = _draw(rng, "add", dtype, count * length).reshape(count, length)
    build = Builder(f"running_{dtype.name}")
    out = build.out(dtype, x.size)
    source = build.into(dtype, x.size)
    with build.loop(count, "grid") as r:
        acc = build.accumulator("add", dtype)
        with build.loop(length) as j:
            build.update(acc, build.load(source, r * length + j))
            build.store(out, r * length + j, build.result(acc, r, j))
    (got,) = target.run_kernel(build.kernel(), [x])
    got = got.reshape(count, length)
    return _together([_sums(got[:, j], x[:, : j + 1], dtype) for j in range(length)])


def _sums(got: NDArray[Any], x: NDArray[Any], dtype: DType) -> Outcome:
    numbers = ulp.decode(x, dtype)
    if dtype.is_float:
        return oracle.within(got, oracle.sums(numbers, dtype, dtype), dtype)
    totals = [sum(row) for row in numbers.tolist()]
    return oracle.compare(got, oracle.integers(totals, dtype), dtype)


def _shared(target: Target) -> Outcome:
    dtype = dtypes.float32
    rng = tables.generator("reduce/shared")
    count, n = 5, 67
    x = _draw(rng, "add", dtype, count * n).reshape(count, n)
    outcomes = []
    for lanes in sorted({1, target.lanes}):
        total, largest, place, above = target.run_kernel(_shared_kernel(count, n, lanes), [x])
        numbers = ulp.decode(x, dtype)
        first = [oracle.first_largest(row) for row in numbers.tolist()]
        gaps = numbers - numbers.max(axis=1, keepdims=True)
        outcomes += [
            _sums(total, x, dtype),
            oracle.compare(largest, _maxima(numbers, dtype), dtype),
            oracle.compare(place, oracle.integers(first, dtypes.int64), dtypes.int64),
            oracle.within(above, oracle.sums(gaps, dtype, dtype, extra=1), dtype),
        ]
    return _together(outcomes)


def _shared_kernel(count: int, n: int, lanes: int) -> Kernel:
    dtype = dtypes.float32
    build = Builder(f"shared_x{lanes}")
    outs = [build.out(d, count) for d in (dtype, dtype, dtypes.int64, dtype)]
    source = build.into(dtype, count * n)
    with build.loop(count, "grid") as r:
        kinds = [(k, build.accumulator(k, dtype)) for k in ("add", "max", "argmax")]
        with build.loop(n, "serial", lanes) as j:
            value = build.load(source, r * n + j)
            for kind, acc in kinds:
                build.update(acc, value, *([build.index(j)] if kind == "argmax" else []))
        results = [build.result(acc, r, part=int(kind == "argmax")) for kind, acc in kinds]
        minus = build.op("mul", results[1], build.const(-1.0, dtype))
        gap = build.accumulator("add", dtype)
        with build.loop(n, "serial", lanes) as j:
            build.update(gap, build.op("add", build.load(source, r * n + j), minus))
        for out, result in zip(outs, [*results, build.result(gap, r)], strict=True):
            build.store(out, r, result)
    return build.kernel()


def _whole(target: Target) -> Outcome:
    dtype = dtypes.float32
    rng = tables.generator("reduce/whole")
    outcomes = []
    for n in (1, 7, 1025):
        x = _draw(rng, "add", dtype, n).reshape(1, n)
        build = Builder(f"whole_{n}")
        out = build.out(dtype, 1)
        source = build.into(dtype, n)
        acc = build.accumulator("add", dtype)
        with build.loop(n, "serial", target.lanes) as j:
            build.update(acc, build.load(source, j))
        build.store(out, 0, build.result(acc))
        (got,) = target.run_kernel(build.kernel(), [x])
        outcomes.append(_sums(got, x, dtype))
    return _together(outcomes)


def _long(target: Target) -> Outcome:
    dtype = dtypes.float32
    rng = tables.generator("reduce/long")
    outcomes = []
    for n in tables.LARGE:
        x = _draw(rng, "add", dtype, 2 * n).reshape(2, n)
        for lanes in _lanes(target):
            outcomes.append(_check(target, "add", dtype, [x], lanes))
    return _together(outcomes)


def _huge(target: Target) -> Outcome:
    dtype, n = dtypes.int32, HUGE
    x = tables.bits(tables.generator("reduce/huge"), dtype, 2 * n)
    compared = 0
    for count, length in ((n, 2), (1, n)):
        part = x[: count * length].reshape(count, length)
        (got,) = target.run_kernel(_by_rows("add", dtype, count, (length,), target.lanes), [part])
        totals = part.astype(np.int64).sum(axis=1)
        wrapped = (totals & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
        compared += oracle.compare(got, oracle.Expected(wrapped), dtype).compared
    return Outcome(compared)
