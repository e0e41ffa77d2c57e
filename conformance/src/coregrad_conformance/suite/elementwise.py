"""Each op that works element by element, one op per kernel, against the oracle.

``special-pairs`` (``special-values`` for one operand) are the table's values, ``random`` is drawn
over the op's domain with a rest behind the last whole vector, ``dense`` (standard) looks for the
worst error: of the 16-bit floats at every number there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad import dtypes
from coregrad.dtypes import ALL, FLOATS, DType
from coregrad.ir import ops
from coregrad.ir.ops import Op
from coregrad_conformance import oracle, tables, ulp
from coregrad_conformance.builder import mapped
from coregrad_conformance.row import Outcome, Row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coregrad_conformance.target import Target

GROUP = "elementwise"
DOMAINS = {
    "any": ALL,
    "number": tuple(d for d in ALL if d is not dtypes.bool_),
    "float": FLOATS,
    "int": tuple(d for d in ALL if d.is_int),
    "bits": tuple(d for d in ALL if not d.is_float),
}
PAIRS = tuple(op for op in ops.CONTRACT_OPS.values() if op.args == ops.TWO)
UNARY = (ops.EXP, ops.LOG, ops.SIN, ops.SQRT, ops.TRUNC)
GUARDED = (ops.IDIV, ops.MOD)  # of integers: the core never divides by 0, nor MIN by -1
SHIFTS = (ops.SHL, ops.SHR)
RANDOM = 1023  # odd, and one short of whole vectors and work-groups


def rows() -> Iterator[Row]:
    """The rows of this file."""
    for op in PAIRS:
        for dtype in DOMAINS[op.domain]:
            yield from _binary(op, dtype)
    for dtype in ALL:
        yield _row("where", dtype, "special-pairs", partial(_where, dtype))
    for op in UNARY:
        for dtype in FLOATS:
            yield from _unary(op, dtype)
    yield _row("sin", dtypes.float64, "worst-case", _worst_case, "extended")


def _row(op: str, dtype: DType, name: str, run: Any, level: str = "", summary: str = "") -> Row:
    level = level or tables.level(dtype)
    summary = summary or f"{op} of {dtype.name}: {name.replace('-', ' ')}."
    return Row(f"{op}/{dtype.name}/{name}", level, GROUP, run, op, dtype.name, summary)


# ---- two operands ------------------------------------------------------------------------------


def _binary(op: Op, dtype: DType) -> Iterator[Row]:
    yield _row(op.name, dtype, "special-pairs", partial(_special_pairs, op, dtype))
    if dtype is not dtypes.bool_:
        yield _row(op.name, dtype, "random", partial(_random_pairs, op, dtype))


def _special_pairs(op: Op, dtype: DType, target: Target) -> Outcome:
    values = tables.specials(dtype)
    if op in SHIFTS:
        counts = np.arange(dtype.bits).astype(dtype.storage)
        operands = tables.pairs(values[:: max(1, dtype.bits // 32)], counts)
    else:
        operands = tables.pairs(values, values)
    return check(target, op, dtype, _allowed_operands(op, dtype, operands), "serial")


def _random_pairs(op: Op, dtype: DType, target: Target) -> Outcome:
    rng = tables.generator(f"{op.name}/{dtype.name}/random")
    a, b = tables.mixed(rng, dtype, RANDOM), tables.mixed(rng, dtype, RANDOM)
    if op in SHIFTS:
        b = rng.integers(0, dtype.bits, RANDOM).astype(dtype.storage)
    elif op in (ops.LT, ops.NE, ops.MAX):
        b = np.where(rng.integers(0, 4, RANDOM) == 0, a, b)  # equal ones are rare otherwise
    elif op in GUARDED and dtype.is_int:
        # Quotients of random bits are nearly all 0: make divisors of every length.
        b = b >> rng.integers(0, dtype.bits, RANDOM).astype(dtype.storage)
        b = np.where((b == 0) | (b == -1 if dtype.kind == "int" else False), 7, b).astype(a.dtype)
    return check(target, op, dtype, (a, b), "grid")


def _allowed_operands(
    op: Op, dtype: DType, operands: Sequence[NDArray[Any]]
) -> Sequence[NDArray[Any]]:
    if op not in GUARDED or dtype.is_float:
        return operands
    a, b = operands
    kept = b != 0
    if dtype.kind == "int":
        kept &= ~((a == int(dtype.min)) & (b == -1))
    return a[kept], b[kept]


def _where(dtype: DType, target: Target) -> Outcome:
    target.require(dtype)
    a, b = tables.pairs(tables.specials(dtype), tables.specials(dtype))
    condition = tables.bits(tables.generator(f"where/{dtype.name}"), dtypes.bool_, a.size)
    return check(target, ops.WHERE, dtype, (condition, a, b), "grid")


# ---- one operand -------------------------------------------------------------------------------


def _unary(op: Op, dtype: DType) -> Iterator[Row]:
    quarters = range(4) if op is ops.SIN else (None,)
    for quarter in quarters:
        suffix = f"-quarter-{quarter}" if quarter else ""
        run = partial(_special_values, op, dtype, quarter)
        yield _row(op.name, dtype, f"special-values{suffix}", run)
        run = partial(_random_values, op, dtype, quarter)
        yield _row(op.name, dtype, f"random{suffix}", run)
    if op is not ops.TRUNC:
        yield _row(op.name, dtype, "dense", partial(_dense, op, dtype), "standard")


def _special_values(op: Op, dtype: DType, quarter: int | None, target: Target) -> Outcome:
    values = np.concatenate([tables.specials(dtype), tables.edges(op.name, dtype)])
    return check(target, op, dtype, (values,), "serial", quarter)


def _random_values(op: Op, dtype: DType, quarter: int | None, target: Target) -> Outcome:
    rng = tables.generator(f"{op.name}/{dtype.name}/random/{quarter}")
    return check(target, op, dtype, (tables.DOMAINS[op.name](rng, dtype, RANDOM),), "grid", quarter)


def _dense(op: Op, dtype: DType, target: Target) -> Outcome:
    if dtype.bits == 16:
        values = np.arange(1 << 16, dtype=np.uint16).view(dtype.storage)
    else:
        rng = tables.generator(f"{op.name}/{dtype.name}/dense")
        count = tables.LARGE[dtype is dtypes.float32]  # the float64 oracle takes its time
        values = tables.DOMAINS[op.name](rng, dtype, count)
    return check(target, op, dtype, (values,), "grid", 0 if op is ops.SIN else None)


def _worst_case(target: Target) -> Outcome:
    values = np.array([tables.SIN_WORST[dtypes.float64]])
    return check(target, ops.SIN, dtypes.float64, (values,), "serial", 1)


# ---- running -----------------------------------------------------------------------------------


def check(
    target: Target,
    op: Op,
    dtype: DType,
    operands: Sequence[NDArray[Any]],
    kind: str,
    attr: Any = None,
) -> Outcome:
    """One op on all its operands at once, in a loop of one lane and one of the device's lanes."""
    target.require(dtype)
    result = dtypes.bool_ if op.result == "bool" else dtype
    sources = [dtype for _ in operands]
    values = list(operands)
    if op is ops.WHERE:
        sources[0] = dtypes.bool_
    expected = oracle.elementwise(op.name, dtype, values, attr)
    n = operands[0].size
    outcomes = []
    for lanes in sorted({1, target.lanes}):
        name = f"{op.name}_{dtype.name}_{n}_x{lanes}"
        kernel = mapped(name, op.name, sources, result, n, kind, lanes, attr)
        (got,) = target.run_kernel(kernel, operands)
        shown = [ulp.decode(x, d) for x, d in zip(operands, sources, strict=True)]
        outcomes.append(oracle.compare(got, expected, result, shown, ulp.limit(op.name, dtype)))
    worst = max(outcomes, key=lambda o: o.ulp or 0.0)
    return Outcome(sum(o.compared for o in outcomes), worst.ulp, worst.worst)
