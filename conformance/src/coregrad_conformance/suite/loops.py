"""Loops: every kind, every size around whole vectors and work-groups, lanes, and work-groups.

The kernels store ``3*x + i``, so that an iteration that is lost, done twice or given another's
index shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad import dtypes
from coregrad.dtypes import DType
from coregrad.ir.index import Index
from coregrad.ir.kernel import Instr, Kernel
from coregrad_conformance import oracle, tables
from coregrad_conformance.builder import Builder
from coregrad_conformance.row import Outcome, Row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coregrad_conformance.target import Target

GROUP = "loops"
INT = dtypes.int32
HUGE = (1 << 20) + 5  # iterations of a grid: more than one dimension of work-groups of 16 may have
BYTES = dtypes.uint8  # their stores share a word with a neighbour's


def rows() -> Iterator[Row]:
    """The rows of this file."""
    for n in tables.SIZES:
        yield _row(f"grid/{n}", partial(_sized, "grid", n), f"A grid of {n} iterations.")
    for n in tables.LARGE:
        run = partial(_sized, "grid", n)
        yield _row(f"grid/{n}", run, f"A grid of {n} iterations.", "standard")
    yield _row("grid/huge", partial(_sized, "grid", HUGE), "A million iterations.", "standard")
    for name, work, summary in WORK_GROUPS:
        yield _row(f"work-group/{name}", work, summary)
    yield _row("serial/sizes", _serial_sizes, "Serial loops of all sizes.")
    yield _row("unroll/sizes", _unroll_sizes, "Unrolled loops.")
    yield _row("lanes/widths", _widths, "Every number of lanes that the core may choose.")
    yield _row("nested", _nested, "A grid, a serial and an unrolled loop inside one another.")
    yield _row("siblings", _siblings, "Loops one after the other, the second reads the first's.")
    yield _row("no-loop", _no_loop, "Statements outside any loop.")
    yield _row("bytes", _bytes, "Neighbouring bytes stored by different iterations.")


def _row(name: str, run: Any, summary: str, level: str = "core") -> Row:
    return Row(f"loops/{name}", level, GROUP, run, summary=summary)


# ---- one loop ----------------------------------------------------------------------------------


def _marked(build: Builder, x: Instr, i: Index) -> Instr:
    """3*x + i."""
    three = build.op("mul", x, build.const(3, INT))
    return build.op("add", three, build.index(i, INT))


def _line(name: str, n: int, kind: str, lanes: int) -> Kernel:
    build = Builder(f"{name}_{kind}_{n}_x{lanes}")
    out, source = build.out(INT, n), build.into(INT, n)
    with build.loop(n, kind, lanes) as i:
        build.store(out, i, _marked(build, build.load(source, i), i))
    return build.kernel()


def _data(name: str, n: int, dtype: DType = INT) -> NDArray[Any]:
    return tables.bits(tables.generator(name), dtype, n)


def _want(x: NDArray[Any]) -> oracle.Expected:
    exact = 3 * x.astype(np.int64) + np.arange(x.size)
    return oracle.Expected((exact & 0xFFFFFFFF).astype(np.uint32).view(np.int32))


def _check_line(target: Target, kind: str, n: int, lanes: int) -> int:
    x = _data("loops", n)
    (got,) = target.run_kernel(_line("line", n, kind, lanes), [x])
    return oracle.compare(got, _want(x), INT).compared


def _sized(kind: str, n: int, target: Target) -> Outcome:
    return Outcome(sum(_check_line(target, kind, n, lanes) for lanes in {1, target.lanes}))


def _serial_sizes(target: Target) -> Outcome:
    sizes = (1, 3, 4, 5, 31, 33, 257)
    return Outcome(sum(_check_line(target, "serial", n, target.lanes) for n in sizes))


def _unroll_sizes(target: Target) -> Outcome:
    return Outcome(sum(_check_line(target, "unroll", n, 1) for n in (1, 2, 3, 4, 8, 17)))


def _widths(target: Target) -> Outcome:
    """Powers of two up to the four vectors that a cheap reduction takes, over 8 to 64 bits."""
    compared = 0
    lanes = 1
    while lanes == 1 or (target.lanes > 1 and lanes <= target.lanes * 4):
        compared += _check_line(target, "serial", 4 * target.lanes * 3 + 3, lanes)
        lanes *= 2
    return Outcome(compared)


# ---- several loops -----------------------------------------------------------------------------


def _nested(target: Target) -> Outcome:
    a, b, c = 5, 7, 3
    x = _data("nested", a * b * c)
    build = Builder("nested_loops")
    out, source = build.out(INT, x.size), build.into(INT, x.size)
    with build.loop(a, "grid") as i, build.loop(b, "serial") as j, build.loop(c, "unroll") as k:
        place = (i * b + j) * c + k
        build.store(out, place, _marked(build, build.load(source, place), place))
    (got,) = target.run_kernel(build.kernel(), [x])
    return oracle.compare(got, _want(x), INT)


def _siblings(target: Target) -> Outcome:
    n = 67
    x = _data("siblings", n)
    build = Builder("siblings")
    out = build.out(INT, n)
    between = build.out(INT, n, "inout")
    source = build.into(INT, n)
    with build.loop(n, "serial", target.lanes) as i:
        build.store(between, i, _marked(build, build.load(source, i), i))
    with build.loop(n, "serial", target.lanes) as i:
        build.store(out, i, build.load(between, i * -1 + (n - 1)))
    first, second = target.run_kernel(build.kernel(), [np.zeros_like(x), x])
    backwards = oracle.Expected(_want(x).values[::-1])
    oracle.compare(second, _want(x), INT)
    return Outcome(oracle.compare(first, backwards, INT).compared * 2)


def _no_loop(target: Target) -> Outcome:
    x = np.array([5, -7], np.int32)
    build = Builder("no_loop")
    out, source = build.out(INT, 2), build.into(INT, 2)
    total = build.op("add", build.load(source, 0), build.load(source, 1))
    build.store(out, 1, total)
    build.store(out, 0, build.op("mul", total, build.const(-9, INT)))
    (got,) = target.run_kernel(build.kernel(), [x])
    return oracle.compare(got, oracle.integers([18, -2], INT), INT)


def _bytes(target: Target) -> Outcome:
    n = 1021
    x = _data("bytes", n, BYTES)
    build = Builder("bytes")
    out, source = build.out(BYTES, n), build.into(BYTES, n)
    with build.loop(n, "grid") as i:
        build.store(out, i, build.op("xor", build.load(source, i), build.const(0x5A, BYTES)))
    (got,) = target.run_kernel(build.kernel(), [x])
    return oracle.compare(got, oracle.integers([int(v) ^ 0x5A for v in x], BYTES), BYTES)


# ---- work-groups -------------------------------------------------------------------------------
# A device with one thread per work-group is never given one: there the same is done by one thread.


def _group_sizes(target: Target) -> list[int]:
    """Small, no power of two, and the largest that there is room for."""
    limits = target.limits
    if limits.threads == 1:
        return [1]
    most = min(limits.threads, limits.local_bytes // 8)
    return sorted({min(n, most) for n in (2, 3, 32, most)})


def _space(target: Target) -> str:
    return "local" if target.limits.threads > 1 else "private"


def _reversal(target: Target) -> Outcome:
    """Each thread reads what another one stored, twice over, so that both barriers are needed."""
    return Outcome(sum(_reverse(target, n) for n in _group_sizes(target)))


def _reverse(target: Target, n: int) -> int:
    groups, turns = 9, 3
    x = _data("reversal", groups * turns * n)
    build = Builder(f"reversal_{n}")
    out, source = build.out(INT, x.size), build.into(INT, x.size)
    with build.loop(groups, "grid") as g:
        shared = build.array(INT, n, _space(target))
        with build.loop(n, "local" if n > 1 else "serial") as t, build.loop(turns) as turn:
            place = (g * turns + turn) * n
            build.store(shared, t, build.load(source, place + t))
            if n > 1:
                build.barrier()
            build.store(out, place + t, build.load(shared, t * -1 + (n - 1)))
            if n > 1:
                build.barrier()
    (got,) = target.run_kernel(build.kernel(), [x])
    want = oracle.Expected(x.reshape(-1, n)[:, ::-1].ravel())
    return oracle.compare(got, want, INT).compared


def _tree(target: Target) -> Outcome:
    """Partial sums of every thread, added up in local memory by halves."""
    most = _group_sizes(target)[-1]
    n = 1 << (most.bit_length() - 1)
    groups, each = 5, 7
    x = _data("tree", groups * each * n)
    build = Builder(f"tree_{n}")
    out, source = build.out(INT, groups), build.into(INT, x.size)
    with build.loop(groups, "grid") as g:
        shared = build.array(INT, n, _space(target))
        with build.loop(n, "local" if n > 1 else "serial") as t:
            _partial_sum(build, shared, source, g * (each * n) + t, t, each, n)
            _halve(build, shared, t, n)
            first = build.op("lt", build.index(t, INT), build.const(1, INT))
            build.store(out, g + t * groups, build.load(shared, 0), gate=first)
    (got,) = target.run_kernel(build.kernel(), [x])
    totals = [sum(row) for row in x.reshape(groups, -1).tolist()]
    return oracle.compare(got, oracle.integers(totals, INT), INT)


def _partial_sum(
    build: Builder, shared: Any, source: Any, start: Index, t: Index, each: int, n: int
) -> None:
    acc = build.accumulator("add", INT)
    with build.loop(each) as j:
        build.update(acc, build.load(source, start + j * n))
    build.store(shared, t, build.result(acc, start, t))


def _halve(build: Builder, shared: Any, t: Index, n: int) -> None:
    while n > 1:
        build.barrier()
        n //= 2
        low = build.op("lt", build.index(t, INT), build.const(n, INT))
        other = build.load(shared, t + n, gate=low)
        total = build.op("add", build.load(shared, t), other)
        build.store(shared, t, total, gate=low)
    if t.terms:
        build.barrier()


def _tile(target: Target) -> Outcome:
    """A tile transposed through local memory: loads along rows, stores along rows."""
    limits = target.limits
    side = max(s for s in (1, 2, 4, 8, 16) if s * s <= max(1, limits.threads))
    across, down = 3, 2
    width, height = across * side, down * side
    x = _data("tile", width * height)
    build = Builder(f"tile_{side}")
    out, source = build.out(INT, x.size), build.into(INT, x.size)
    with build.loop(across * down, "grid") as g:
        shared = build.array(INT, side * side, _space(target))
        with build.loop(side * side, "local" if side > 1 else "serial") as t:
            row, column = g // across, g % across
            y, z = t // side, t % side
            build.store(shared, t, build.load(source, (row * side + y) * width + column * side + z))
            if side > 1:
                build.barrier()
            value = build.load(shared, z * side + y)
            build.store(out, (column * side + y) * height + row * side + z, value)
    (got,) = target.run_kernel(build.kernel(), [x])
    want = oracle.Expected(x.reshape(height, width).T.ravel())
    return oracle.compare(got, want, INT)


WORK_GROUPS = (
    ("reversal", _reversal, "Threads read what others stored, turn after turn."),
    ("tree", _tree, "A sum in local memory, halved between barriers."),
    ("tile", _tile, "A tile transposed through local memory."),
)
