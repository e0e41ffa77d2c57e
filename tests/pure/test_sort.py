"""A sort written with other nodes, computed by the oracle: no device and no compiler takes part."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coregrad import dtypes
from coregrad.errors import DTypeError, ShapeError
from coregrad.ir import build, ops, sort, split
from coregrad.ir.graph import Node, toposort

INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
SIZES = [2, 3, 31, 32, 33, 64, 65, 100, 129]


def places(values: np.ndarray, count: int | None = None) -> np.ndarray:
    x = build.buffer(object(), dtypes.by_name(values.dtype.name), values.shape)
    made = sort.composed(build.argsort(x, count))
    assert all(node.op is not ops.ARGSORT for node in toposort([made]))
    return oracle.evaluate([made], {x.arg: values})[0]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 3),
    length=st.sampled_from(SIZES),
    dtype=st.sampled_from(INTS),
    high=st.sampled_from([2, 100]),
    seed=st.integers(0, 99),
    part=st.floats(0, 1),
)
def test_places_are_numpys_stable_ones(rows, length, dtype, high, seed, part) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, high, (rows, length)).astype(dtype)
    values[rng.random(values.shape) < 0.1] = np.iinfo(dtype).max  # as what fills rows up
    values[rng.random(values.shape) < 0.1] = np.iinfo(dtype).min
    count = max(1, int(part * length))
    want = np.argsort(values, -1, kind="stable")[:, :count]
    np.testing.assert_array_equal(places(values, count), want)


def test_more_than_two_axes_are_rows_of_the_last() -> None:
    values = np.random.default_rng(0).integers(0, 9, (2, 3, 40))
    np.testing.assert_array_equal(places(values), np.argsort(values, -1, kind="stable"))


def test_what_needs_no_sort_is_none() -> None:
    assert build.argsort(build.const(7, dtypes.int32, (3, 5))).op is ops.EXPAND
    assert build.argsort(build.buffer(object(), dtypes.int32, (4, 1))).op is not ops.ARGSORT


def test_only_integers_have_an_order_here() -> None:
    with pytest.raises(DTypeError, match="argsort: float32 is not an integer dtype"):
        build.argsort(build.buffer(object(), dtypes.float32, (4,)))
    with pytest.raises(ShapeError, match="argsort: a 0-d tensor"):
        build.argsort(build.buffer(object(), dtypes.int32, ()))
    with pytest.raises(ShapeError, match="argsort: 5 of the 4 elements"):
        build.argsort(build.buffer(object(), dtypes.int32, (4,)), 5)


@pytest.mark.parametrize("own", [True, False])
def test_a_device_is_asked_whether_it_sorts_itself(own: bool) -> None:
    x = build.buffer(object(), dtypes.int32, (2, 3, 100))
    asked: list[Node] = []

    def sorts(node: Node) -> bool:
        asked.append(node)
        return own

    (made,) = split.split([build.argsort(build.permute(x, (1, 0, 2)))], sorts)
    assert [node.arg for node in asked] == [100]
    sorting = [node for node in toposort([made]) if node.op is ops.ARGSORT]
    assert [node.shape for node in sorting] == ([(6, 100)] if own else [])
    assert made.shape == (3, 2, 100)
