"""How the device `numpy` folds the iterations of its loops, which are axes, into an accumulator."""

from __future__ import annotations

from typing import Any

import numpy as np

UFUNCS: dict[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum}


def fold(kind: str, accumulator: Any, value: Any) -> Any:
    """The accumulator with ``value`` folded into it along every axis that it lacks."""
    ufunc = UFUNCS[kind]
    rows = _rows(value, accumulator)  # contiguous rows, which NumPy sums pairwise
    folded = ufunc.reduce(rows, axis=-1, dtype=rows.dtype).reshape(accumulator.shape)
    return ufunc(accumulator, folded)


def fold_argmax(accumulator: tuple[Any, Any], value: tuple[Any, Any]) -> tuple[Any, Any]:
    """The first index among the largest; among NaNs if there are any."""
    shape = accumulator[0].shape
    numbers, indices = (
        np.concatenate([a.reshape(-1, 1), _rows(v, a)], axis=1)
        for a, v in zip(accumulator, value, strict=True)
    )
    with np.errstate(all="ignore"):
        best = np.maximum.reduce(numbers, axis=1, keepdims=True)  # NaN if one is NaN
        hit = (numbers == best) | ((best != best) & (numbers != numbers))
    first = np.where(hit, indices, np.iinfo(indices.dtype).max).min(axis=1)
    return best.reshape(shape), first.reshape(shape)


def _rows(value: Any, accumulator: Any) -> Any:
    """``value`` with what is folded into one element of the accumulator as its last axis."""
    shapes = enumerate(zip(value.shape, accumulator.shape, strict=True))
    folded = [axis for axis, (size, kept) in shapes if kept == 1 and size > 1]
    kept = [axis for axis in range(value.ndim) if axis not in folded]
    rows = value.transpose(*kept, *folded).reshape(accumulator.size, -1)
    return np.ascontiguousarray(rows)
