"""Loops with a limit, from which on nothing they do counts: a frame may end them there.

A frame without ``loop_until`` runs them to their extent, and all that lies beyond is masked, so
that it passes as well. What shows is an end that comes too early, for whatever limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad import Tensor, Variable, dtypes, jit
from coregrad.ir.index import Index
from coregrad.ir.kernel import Instr, Kernel
from coregrad_conformance import oracle, tables
from coregrad_conformance.builder import Builder
from coregrad_conformance.row import Outcome, Row
from coregrad_conformance.suite.tensors import equal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coregrad_conformance.target import Target

GROUP = "ends"
INT, WIDE = dtypes.int32, dtypes.int64
LEAST = -(1 << 31)
NEUTRAL = {"add": 0, "max": LEAST, "argmax": LEAST}
LARGEST, SMALLEST = (1 << 63) - 1, -(1 << 63)
# Those that 32 bits, with a sign or without, hold as a small number, as none, or as a negative one;
# and those to which nothing can be added, or from which nothing can be taken away.
EXTREME = (
    *(1 << 31, (1 << 31) + 1, (1 << 32) - 1, 1 << 32, (1 << 32) + 3, (1 << 33) + 1, 1 << 62),
    *(-(1 << 31), -(1 << 31) - 1, -(1 << 32), -(1 << 32) + 5, -(1 << 62)),
    *(LARGEST, LARGEST - 1, LARGEST - 15, SMALLEST, SMALLEST + 1, SMALLEST + 15),
)


def rows() -> Iterator[Row]:
    """The rows of this file."""
    for kind, name in (("add", "sums"), ("max", "maxima"), ("argmax", "argmaxima")):
        summary = f"{name} over loops with a limit of every kind, another one for each row."
        yield _row(name, partial(_folds, kind), summary.capitalize())
    yield _row("one-limit", _one_limit, "A limit that is the same for all rows, launch by launch.")
    yield _row("stores", _stores, "What is stored before a limit is there, and nothing from it on.")
    yield _row("gate", _gate, "A limit that is either the extent or 0, as a gate of loads says.")
    yield _row("nested", _nested, "A limit that depends on the loop around it, which has one too.")
    yield _row("siblings", _siblings, "Loops one after the other, each with a limit of its own.")
    yield _row("masked-tensor", _masked, "Folds of tensors whose rest is masked by a number.")
    yield _row("variable-tensor", _variable, "Folds of parts of a tensor in a captured program.")


def _row(name: str, run: Callable[[Target], Outcome], summary: str) -> Row:
    return Row(f"ends/{name}", "core", GROUP, run, summary=summary)


def limits(n: int, step: int) -> list[int]:
    """What a limit of a loop over ``n``, ``step`` at a time, may be: all that is special."""
    whole = n // step * step
    around = (0, 4, 8, 16, step, 2 * step, n // 2, whole, n)
    near = {place + by for place in around for by in (-1, 0, 1)}
    return sorted({*near, -n, 2 * n, *EXTREME})


def _shapes(target: Target) -> list[tuple[int, int]]:
    """Lanes and extents: whole steps, a rest, and less than a step."""
    widths = sorted({1, target.lanes, target.lanes * 4 if target.lanes > 1 else 1})
    found = [(lanes, n) for lanes in widths for n in (12 * lanes, 12 * lanes + lanes // 2 + 1)]
    least = [(widths[-1], widths[-1] - 1)] if widths[-1] > 1 else []
    return [*found, (1, 19), *least]


def _kept(values: Any, limit: int) -> Any:
    """What lies before a limit."""
    return values[: max(0, min(limit, len(values)))]


def _is_before(build: Builder, i: Index, limit: Instr) -> Instr:
    return build.op("lt", build.index(i, WIDE), limit)


def _masked_load(build: Builder, source: Any, place: Index, inside: Instr, kind: str) -> Instr:
    loaded = build.load(source, place)
    return build.op("where", inside, loaded, build.const(NEUTRAL[kind], INT))


# ---- one loop ----------------------------------------------------------------------------------


def _folds(kind: str, target: Target) -> Outcome:
    """Each limit in a launch of its own, and all in one, where a frame of style eager goes by the
    largest. Maxima are those of growing numbers, so that the last one that counts shows."""
    compared = 0
    for lanes, n in _shapes(target):
        x = tables.bits(tables.generator(f"ends/{kind}"), INT, n)
        x = x if kind == "add" else np.sort(x)
        chosen = limits(n, lanes)
        alone = chosen if kind == "add" else [-1, 0, 1, 2, n // 2, n - 1, n, *EXTREME[-6:]]
        fold = partial(_check_fold, kind, x, lanes, target)
        compared += fold([[limit, min(limit, n) // 2] for limit in alone])
        compared += fold([chosen])
    return Outcome(compared)


def _check_fold(
    kind: str, x: NDArray[Any], lanes: int, target: Target, launches: list[list[int]]
) -> int:
    run = target.runner(_fold(kind, x.size, lanes, len(launches[0])))
    dtype = WIDE if kind == "argmax" else INT
    compared = 0
    for ends in launches:
        given = np.array(ends, np.int64)
        want = [_folded(kind, _kept(x.tolist(), end)) for end in ends]
        (got,) = run(x, given)
        compared += oracle.compare(got, oracle.integers(want, dtype), dtype, [given]).compared
    return compared


def _folded(kind: str, kept: list[int]) -> int:
    if kind == "add":
        return sum(kept)
    if kind == "max":
        return max(kept, default=LEAST)
    return oracle.first_largest(kept) if kept else 0


def _fold(kind: str, n: int, lanes: int, count: int) -> Kernel:
    """out[r] = fold(x[:limits[r]]); an argmax has no answer for nothing, and gets one element."""
    build = Builder(f"until_{kind}_{n}_x{lanes}")
    out = build.out(WIDE if kind == "argmax" else INT, count)
    source, ends = build.into(INT, n), build.into(WIDE, count)
    with build.loop(count, "grid") as r:
        end = limit = build.load(ends, r)
        if kind == "argmax":
            end = build.op("max", limit, build.const(1, WIDE))
        acc = build.accumulator(kind, INT)
        with build.loop(n, "serial", lanes, end) as i:
            value = _masked_load(build, source, i, _is_before(build, i, limit), kind)
            build.update(acc, value, *([build.index(i)] if kind == "argmax" else []))
        build.store(out, r, build.result(acc, r, part=int(kind == "argmax")))
    return build.kernel()


def _one_limit(target: Target) -> Outcome:
    count, n, lanes = 3, 8 * target.lanes + 5, target.lanes
    x = tables.bits(tables.generator("ends/one"), INT, count * n)
    build = Builder("until_one")
    out, source, ends = build.out(INT, count), build.into(INT, x.size), build.into(WIDE, 1)
    limit = build.load(ends, 0)
    with build.loop(count, "grid") as r:
        acc = build.accumulator("add", INT)
        with build.loop(n, "serial", lanes, limit) as i:
            inside = _is_before(build, i, limit)
            build.update(acc, _masked_load(build, source, r * n + i, inside, "add"))
        build.store(out, r, build.result(acc, r))
    run, compared = target.runner(build.kernel()), 0
    for end in (n, 1, n - 1, 0, lanes, -1, LARGEST, (1 << 32) + 2, SMALLEST, n - 2):
        (got,) = run(x, np.array([end], np.int64))
        want = [sum(_kept(row, end)) for row in x.reshape(count, n).tolist()]
        compared += oracle.compare(got, oracle.integers(want, INT), INT).compared
    return Outcome(compared)


def _stores(target: Target) -> Outcome:
    """A kernel's outputs hold -1 everywhere before it runs."""
    n, lanes = 8 * target.lanes + 5, target.lanes
    chosen = limits(n, lanes)
    build = Builder("until_stores")
    out = build.out(INT, len(chosen) * n)
    source, ends = build.into(INT, n), build.into(WIDE, len(chosen))
    with build.loop(len(chosen), "grid") as r:
        limit = build.load(ends, r)
        with build.loop(n, "serial", lanes, limit) as i:
            value = build.op("xor", build.load(source, i), build.index(r, INT))
            build.store(out, r * n + i, value, gate=_is_before(build, i, limit))
    x = np.abs(tables.bits(tables.generator("ends/stores"), INT, n) // 2)
    (got,) = target.run_kernel(build.kernel(), [x, np.array(chosen, np.int64)])
    numbers = x.tolist()
    want = [v ^ r if i < end else -1 for r, end in enumerate(chosen) for i, v in enumerate(numbers)]
    return oracle.compare(got, oracle.integers(want, INT), INT)


def _gate(target: Target) -> Outcome:
    """In such a loop of one lane the core leaves the gate out: where it is false nothing runs."""
    count, n = 7, 4 * target.lanes + 3
    x = tables.bits(tables.generator("ends/gate"), INT, count * n) | 1
    flags = np.array([1, 0, 5, -1, 0, 1 << 30, -(1 << 31)], np.int32)
    compared = 0
    for lanes in sorted({1, target.lanes}):
        build = Builder(f"until_gate_x{lanes}")
        out, source, given = build.out(INT, count), build.into(INT, x.size), build.into(INT, count)
        with build.loop(count, "grid") as r:
            gate = build.op("lt", build.const(0, INT), build.load(given, r))
            whole, none = build.const(n, WIDE), build.const(0, WIDE)
            limit = build.op("where", gate, whole, none)
            acc = build.accumulator("add", INT)
            with build.loop(n, "serial", lanes, limit) as i:
                build.update(acc, build.load(source, r * n + i, gate=gate))
            build.store(out, r, build.result(acc, r))
        (got,) = target.run_kernel(build.kernel(), [x, flags])
        pairs = zip(x.reshape(count, n).tolist(), flags.tolist(), strict=True)
        want = [sum(row) if flag > 0 else 0 for row, flag in pairs]
        compared += oracle.compare(got, oracle.integers(want, INT), INT).compared
    return Outcome(compared)


# ---- several loops -----------------------------------------------------------------------------


def _nested(target: Target) -> Outcome:
    """Of a matrix what is left of and below a diagonal, up to a row: i < limit and j < i - 2."""
    down, across, lanes = 11, 2 * target.lanes + 11, target.lanes
    x = tables.bits(tables.generator("ends/nested"), INT, down * across)
    build = Builder("until_nested")
    out, source, ends = build.out(INT, 2), build.into(INT, x.size), build.into(WIDE, 2)
    with build.loop(2, "grid") as r:
        limit = build.load(ends, r)
        acc = build.accumulator("add", INT)
        with build.loop(down, limit=limit) as i:
            above = _is_before(build, i, limit)
            inner = build.index(i - 2, WIDE)
            with build.loop(across, "serial", lanes, inner) as j:
                inside = build.op("and", above, _is_before(build, j, inner))
                build.update(acc, _masked_load(build, source, i * across + j, inside, "add"))
        build.store(out, r, build.result(acc, r))
    run, matrix, compared = target.runner(build.kernel()), x.reshape(down, across).tolist(), 0
    for end in (down, down - 1, 6, 1, 0, -4, LARGEST, SMALLEST, (1 << 32) + 7):
        (got,) = run(x, np.array([end, end // 2], np.int64))
        want = [_left_below(matrix, limit) for limit in (end, end // 2)]
        compared += oracle.compare(got, oracle.integers(want, INT), INT).compared
    return Outcome(compared)


def _left_below(matrix: list[list[int]], limit: int) -> int:
    return sum(sum(_kept(row, i - 2)) for i, row in enumerate(_kept(matrix, limit)))


def _siblings(target: Target) -> Outcome:
    """Three sums: up to one limit, up to another one, and of everything."""
    n, lanes = 4 * target.lanes + 3, target.lanes
    x = tables.bits(tables.generator("ends/siblings"), INT, n)
    build = Builder("until_siblings")
    out, source, ends = build.out(INT, 3), build.into(INT, n), build.into(WIDE, 2)
    for k in range(3):
        limit = build.load(ends, k) if k < 2 else None
        acc = build.accumulator("add", INT)
        with build.loop(n, "serial", lanes, limit) as i:
            value = build.load(source, i)
            if limit is not None:
                value = _masked_load(build, source, i, _is_before(build, i, limit), "add")
            build.update(acc, value)
        build.store(out, k, build.result(acc))
    run, numbers, compared = target.runner(build.kernel()), x.tolist(), 0
    for first in (-1, 2, n - 1, LARGEST):
        for second in (0, lanes, n):
            (got,) = run(x, np.array([first, second]))
            want = [sum(_kept(numbers, end)) for end in (first, second, n)]
            compared += oracle.compare(got, oracle.integers(want, INT), INT).compared
    return Outcome(compared)


# ---- by tensors --------------------------------------------------------------------------------


def _whole_numbers(name: str, *shape: int) -> NDArray[Any]:
    """Growing along each row, small enough that float32 adds them up exactly in any order."""
    drawn = tables.generator(name).integers(-999, 1000, shape)
    return np.sort(drawn, axis=-1).astype(np.float32)


def _masked(target: Target) -> Outcome:
    """What lies beyond is NaN, which no fold may meet."""
    count, n = 3, 4 * target.lanes + 3
    x = _whole_numbers("ends/masked", count, n)
    compared = 0
    for end in (0, 2, target.lanes, n - 1, n + 7, -3):
        spoilt = np.where(np.arange(n) < end, x, np.float32(np.nan))
        limit = Tensor(end, device=target.name).realize()  # a number that kernels are given
        inside = Tensor.arange(n, device=target.name) < limit
        values = Tensor(spoilt, device=target.name)
        kept = _kept(x.T, end).T
        got = values.where(inside, 0.0).sum(-1).numpy()
        compared += equal(got, kept.sum(-1), f"sums of {end}")
        got = values.where(inside, -float("inf")).amax(-1).numpy()
        compared += equal(got, kept.max(-1, initial=-np.inf), f"maxima of {end}")
    return Outcome(compared)


def _variable(target: Target) -> Outcome:
    """One program for every length, which is told to it launch by launch."""
    count, n = 3, 4 * target.lanes + 3
    x = _whole_numbers("ends/variable", count, n)
    values = Tensor(x, device=target.name)
    length = Variable("n", 1, n)

    @jit
    def folds(k: Any) -> tuple[Tensor, Tensor]:
        return values[:, :k].sum(-1), values[:, :k].argmax(-1)

    compared = 0
    for k in (2, 1, n, 3, n - 1, min(n, target.lanes + 1)):
        sums, places = folds(length.bind(k))
        compared += equal(sums.numpy(), x[:, :k].sum(-1), f"sums of {k}")
        first = [oracle.first_largest(row) for row in x[:, :k].tolist()]
        compared += equal(places.numpy(), np.array(first), f"places of {k}")
    return Outcome(compared)
