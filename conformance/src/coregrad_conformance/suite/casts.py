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
from coregrad_conformance.builder import mapped
from coregrad_conformance.row import Failure, Outcome, Row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coregrad_conformance.target import Target

GROUP = "casts"
RANDOM = 255


def rows() -> Iterator[Row]:
    """The rows of this file."""
    for source in ALL:
        for dtype in ALL:
            if source is dtype:
                continue
            yield _row("cast", source, dtype, _cast)
            if source.bits == dtype.bits:
                yield _row("bitcast", source, dtype, _bitcast)


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


def _is_nan(x: NDArray[Any], dtype: DType) -> NDArray[Any]:
    return np.isnan(ulp.decode(x, dtype)) if dtype.is_float else np.zeros(x.shape, bool)


def _same_bits(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    words = f"u{a.dtype.itemsize}"
    same: NDArray[Any] = a.view(words) == b.view(words)
    return same
