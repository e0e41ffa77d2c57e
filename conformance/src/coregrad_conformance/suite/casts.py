"""Casts between every two dtypes, and bits read as another dtype of the same width.

A row's values are those at which this cast tends to fail: the ends of the target and what lies
beyond, ties of both parities, numbers near a tie that rounding twice gets wrong; and random ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad import dtypes
from coregrad.dtypes import ALL, DType
from coregrad_conformance import oracle, tables, ulp
from coregrad_conformance.builder import Builder, mapped
from coregrad_conformance.row import Failure, Outcome, Row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coregrad_conformance.target import Target

GROUP = "casts"
RANDOM = 255
BETWEEN = (  # what is rounded, and by what
    (dtypes.int32, dtypes.float32),
    (dtypes.int64, dtypes.float32),
    (dtypes.int64, dtypes.float64),
    (dtypes.float64, dtypes.float32),
    (dtypes.float32, dtypes.float16),
    (dtypes.float32, dtypes.bfloat16),
)
BITS = (
    (dtypes.float32, dtypes.int32),
    (dtypes.float64, dtypes.int64),
    (dtypes.float16, dtypes.int16),
    (dtypes.bfloat16, dtypes.int16),
)


def rows() -> Iterator[Row]:
    """The rows of this file."""
    for source in ALL:
        for dtype in ALL:
            if source is dtype:
                continue
            yield _row("cast", source, dtype, _cast)
            if source.bits == dtype.bits:
                yield _row("bitcast", source, dtype, _bitcast)
    for source, between in BETWEEN:
        name = f"cast/{source.name}-to-{between.name}-and-back"
        summary = f"{source.name} by way of {between.name}: its rounding must not be left out."
        run = partial(_there_and_back, source, between)
        level = tables.level(source, between)
        yield Row(name, level, GROUP, run, "cast", source.name, summary)
    for source, bits in BITS:
        name = f"bitcast/{source.name}-summed"
        summary = f"Sums over the bits of {source.name}: one value for each element."
        run = partial(_summed, source, bits)
        level = tables.level(source, bits)
        yield Row(name, level, GROUP, run, "bitcast", bits.name, summary)


def _row(op: str, source: DType, dtype: DType, run: Any) -> Row:
    name = f"{op}/{source.name}-to-{dtype.name}"
    summary = f"{op} of {source.name} to {dtype.name}: its edges and random values."
    level = tables.level(source, dtype)
    return Row(name, level, GROUP, partial(run, source, dtype), op, dtype.name, summary)


def _cast(source: DType, dtype: DType, target: Target) -> Outcome:
    rng = tables.generator(f"cast/{source.name}/{dtype.name}")
    x = np.concatenate([tables.cast_inputs(source, dtype), tables.mixed(rng, source, RANDOM)])
    expected = oracle.cast(x, source, dtype)
    compared = 0
    for got in _results(target, "cast", source, dtype, x):
        compared += oracle.compare(got, expected, dtype, [ulp.decode(x, source)]).compared
    return Outcome(compared, 0.0 if dtype.is_float else None)


def _results(
    target: Target, op: str, source: DType, dtype: DType, x: NDArray[Any]
) -> Iterator[NDArray[Any]]:
    target.require(source, dtype)
    for lanes in sorted({1, target.lanes}):
        name = f"{op}_{source.name}_{dtype.name}_x{lanes}"
        kernel = mapped(name, op, [source], dtype, x.size, "grid", lanes, source)
        yield from target.run_kernel(kernel, [x])


def _bitcast(source: DType, dtype: DType, target: Target) -> Outcome:
    rng = tables.generator(f"bitcast/{source.name}/{dtype.name}")
    x = np.concatenate([tables.specials(source), tables.bits(rng, source, RANDOM)])
    if dtype is dtypes.bool_:
        x = (x & 1).astype(x.dtype)  # no other bits are a bool
    want = oracle.bitcast(x, source, dtype)
    free = _is_nan(x, source) | _is_nan(want, dtype)  # a NaN may have any payload, either way
    for got in _results(target, "bitcast", source, dtype, x):
        as_source = oracle.bitcast(got, dtype, source)
        still = _is_nan(as_source, source) | _is_nan(got, dtype)
        right = np.where(free, still, _same_bits(got, want))
        if not right.all():
            at = int(np.flatnonzero(~right)[0])
            raise Failure(f"element {at} of {x[at]!r}: got {got[at]!r}, expected {want[at]!r}")
    return Outcome(x.size)


def _there_and_back(source: DType, between: DType, target: Target) -> Outcome:
    target.require(source, between)
    rng = tables.generator(f"cast/{source.name}/{between.name}/back")
    x = np.concatenate([tables.cast_inputs(source, between), tables.mixed(rng, source, RANDOM)])
    rounded = oracle.cast(x, source, between)
    stored = ulp.encode(ulp.nearest(rounded.values, between, rounded.rest), between)
    expected = oracle.cast(stored, between, source)
    compared = 0
    for lanes in sorted({1, target.lanes}):
        build = Builder(f"cast_{source.name}_{between.name}_back_x{lanes}")
        out, held = build.out(source, x.size), build.into(source, x.size)
        with build.loop(x.size, "grid", lanes) as i:
            build.store(out, i, build.cast(build.cast(build.load(held, i), between), source))
        (got,) = target.run_kernel(build.kernel(), [x])
        compared += oracle.compare(got, expected, source, [ulp.decode(x, source)]).compared
    return Outcome(compared, 0.0 if source.is_float else None)


def _summed(source: DType, bits: DType, target: Target) -> Outcome:
    """Of numbers without NaN, whose bits may be any."""
    target.require(source, bits)
    total, rows, n = dtypes.int64, 3, 67
    x = tables.between(tables.generator(f"bits/{source.name}"), source, rows * n, -8.0, 8.0)
    sums = oracle.bitcast(x, source, bits).reshape(rows, n).tolist()
    expected = oracle.integers([sum(row) for row in sums], total)
    compared = 0
    for lanes in sorted({1, target.lanes}):
        build = Builder(f"bits_{source.name}_x{lanes}")
        out, held = build.out(total, rows), build.into(source, rows * n)
        with build.loop(rows, "grid") as r:
            acc = build.accumulator("add", total)
            with build.loop(n, "serial", lanes) as j:
                value = build.load(held, r * n + j)
                value = build.op("bitcast", value, dtype=bits, attr=source)
                build.update(acc, value if bits is total else build.cast(value, total))
            build.store(out, r, build.result(acc, r))
        (got,) = target.run_kernel(build.kernel(), [x])
        compared += oracle.compare(got, expected, total).compared
    return Outcome(compared)


def _is_nan(x: NDArray[Any], dtype: DType) -> NDArray[Any]:
    return np.isnan(ulp.decode(x, dtype)) if dtype.is_float else np.zeros(x.shape, bool)


def _same_bits(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    words = f"u{a.dtype.itemsize}"
    same: NDArray[Any] = a.view(words) == b.view(words)
    return same
