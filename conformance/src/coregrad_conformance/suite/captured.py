"""Captured functions on the device: their kernels replayed on ever other values.

Whole numbers all through, so that every result is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

import coregrad as cg
from coregrad import Tensor, Variable, jit
from coregrad_conformance import tables
from coregrad_conformance.row import Failure, Outcome, Row
from coregrad_conformance.suite.tensors import equal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coregrad_conformance.target import Target

GROUP = "captured"
ROUNDS = 4
LARGE = 20_011  # elements of a tensor whose memory its next value may take over


def rows() -> Iterator[Row]:
    """The rows of this file."""
    yield _row("again", _again, "A chain of kernels on other values; what it gave before stays.")
    yield _row("state", _state, "Tensors that each call changes, and that change in between.")
    yield _row("in-turn", _in_turn, "Two captures of one function, of another shape each.")
    yield _row("variable", _variable, "A write at a place that each call is told.")
    yield _row("index-error", _index_error, "An index that only a replay finds out of range.")
    large = "Large tensors changed in place, step by step, while one old value is held."
    yield Row("captured/large-state", "standard", GROUP, _large, summary=large)


def _row(name: str, run: Callable[[Target], Outcome], summary: str) -> Row:
    return Row(f"captured/{name}", "core", GROUP, run, summary=summary)


def _drawn(name: str, *shape: int) -> NDArray[Any]:
    n = int(np.prod(shape))
    return tables.bits(tables.generator(f"captured/{name}"), cg.int32, n).reshape(shape)


def _chain(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Several kernels, as sums and what follows them never share one."""
    centred = x - x.sum(1, keepdim=True)
    product = centred * y.amax(0)
    return product.sum(0), centred.contiguous() ^ y


def _chain_wanted(x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    with np.errstate(over="ignore"):
        centred = x - x.sum(1, keepdims=True, dtype=np.int64)  # as sums of integers are
        return (centred * y.max(0)).sum(0), centred ^ y


def _again(target: Target) -> Outcome:
    captured = jit(_chain)
    given = [(_drawn(f"x{k}", 7, 33), _drawn(f"y{k}", 7, 33)) for k in range(ROUNDS)]
    results = [captured(*(Tensor(v, device=target.name) for v in pair)) for pair in given]
    compared = 0
    for k, (pair, found) in enumerate(zip(given, results, strict=True)):
        for got, want in zip(found, _chain_wanted(*pair), strict=True):
            compared += equal(got.numpy(), want, f"call {k}")
    return Outcome(compared)


def _state(target: Target) -> Outcome:
    start = _drawn("state", 65)
    state, sums = (
        Tensor(start, device=target.name),
        Tensor(np.zeros(1, np.int32), device=target.name),
    )

    @jit
    def step(x: Tensor) -> Tensor:
        state.assign(state * 3 + x)
        sums.assign(sums + state.sum())
        return state ^ x

    want, total, compared = start, np.zeros(1, np.int32), 0
    for k in range(ROUNDS):
        x = _drawn(f"state{k}", 65)
        got = step(Tensor(x, device=target.name))
        want = want * 3 + x
        total = total + want.sum(dtype=np.int32)
        compared += equal(got.numpy(), want ^ x, f"the result of call {k}")
        compared += equal(state.numpy(), want, f"the state after call {k}")
        if k == 2:  # from outside
            want = want ^ 5
            state.assign(state ^ 5)
    return Outcome(compared + equal(sums.numpy(), total, "the sums"))


def _in_turn(target: Target) -> Outcome:
    captured, compared = jit(_chain), 0
    for k in range(ROUNDS):
        for shape in ((3, 31), (5, 4)):
            x, y = _drawn(f"turn-x{k}", *shape), _drawn(f"turn-y{k}", *shape)
            found = captured(Tensor(x, device=target.name), Tensor(y, device=target.name))
            for got, want in zip(found, _chain_wanted(x, y), strict=True):
                compared += equal(got.numpy(), want, f"call {k} of {shape}")
    return Outcome(compared)


def _variable(target: Target) -> Outcome:
    length = 13
    place = Variable("place", 0, length - 1)
    row = Tensor(np.zeros((2, length), np.int32), device=target.name)

    @jit
    def write(x: Tensor, n: Any) -> Tensor:
        row[:, n : n + 1] = x
        return row[:, : n + 1].sum(1)

    want, compared = np.zeros((2, length), np.int32), 0
    for n in (0, 3, length - 1, 1, 4):
        x = _drawn(f"place{n}", 2, 1)
        want[:, n : n + 1] = x
        got = write(Tensor(x, device=target.name), place.bind(n))
        compared += equal(got.numpy(), want[:, : n + 1].sum(1, dtype=np.int64), f"up to {n}")
    return Outcome(compared + equal(row.numpy(), want, "all that was written"))


def _index_error(target: Target) -> Outcome:
    table = _drawn("table", 9)
    rows_ = Tensor(table, device=target.name)
    picked = jit(lambda places: rows_[places] + 1)
    compared = 0
    for places in ([0, 8, -9], [3, 3, 3], [0, 9, 0], [-9, 8, 0], [-10, 0, 0]):
        fits = all(-9 <= place < 9 for place in places)
        try:
            got = picked(Tensor(np.array(places, np.int64), device=target.name)).numpy()
        except cg.errors.IndexRangeError:
            if fits:
                raise Failure(f"the indices {places} were refused", "exception") from None
            compared += 1
            continue
        if not fits:
            raise Failure(f"the indices {places} of 9 elements raised nothing", "exception")
        compared += equal(got, table[places] + 1, f"the elements {places}")
    return Outcome(compared)


def _large(target: Target) -> Outcome:
    """By a captured step and by a plain one."""
    compared = 0
    for captured in (True, False):
        start = _drawn("large", LARGE)
        value = Tensor(start, device=target.name)
        mean = Tensor(np.zeros(LARGE, np.int32), device=target.name)

        def step(x: Tensor, value: Tensor = value, mean: Tensor = mean) -> None:
            mean.assign(mean * 5 + x)
            value.assign(value - mean)

        run = jit(step) if captured else step
        want, trend, held = start, np.zeros(LARGE, np.int32), None
        for k in range(ROUNDS):
            x = _drawn(f"large{k}", LARGE)
            run(Tensor(x, device=target.name))
            trend = trend * 5 + x
            want = want - trend
            if k == 1:  # somebody still wants this one
                held, before = value ^ 0, want
                held.realize()
        assert held is not None
        compared += equal(value.numpy(), want, "the value")
        compared += equal(mean.numpy(), trend, "the trend")
        compared += equal(held.numpy(), before, "the value that was held")
    return Outcome(compared)
