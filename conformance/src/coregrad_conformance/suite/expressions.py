"""Two or three ops in one kernel, where a compiler that takes liberties gives itself away.

Products fused into sums, sums taken in another order, 16-bit floats kept in 32 bits, integers that
C would widen, signed overflow taken for impossible. The oracle rounds, or wraps, after each op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad.dtypes import FLOATS, INTS, DType
from coregrad.ir.kernel import Instr
from coregrad_conformance import oracle, tables, ulp
from coregrad_conformance.builder import Builder
from coregrad_conformance.row import Outcome, Row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coregrad_conformance.target import Target

GROUP = "expressions"
PAIRS = 24  # special values of each operand
RANDOM = 447
Apply = Callable[..., Any]  # op, operands: what the op gives
Constant = Callable[[float], Any]


@dataclass(frozen=True)
class Expression:
    """How an expression of three operands is put together of ops, and what it would catch."""

    name: str
    made: Callable[[Apply, Constant, Any, Any, Any], Any]
    catches: str


def _contracted(op: Apply, k: Constant, a: Any, b: Any, c: Any) -> Any:
    return op("add", op("mul", a, b), c)


def _minus(op: Apply, k: Constant, a: Any, b: Any) -> Any:
    return op("add", a, op("mul", b, k(-1)))


FLOATING = (
    Expression("mul-add", _contracted, "a product fused into a sum"),
    Expression(
        "mul-sub-mul",
        lambda op, k, a, b, c: _minus(op, k, op("mul", a, b), op("mul", a, b)),
        "one of two equal products fused into their difference",
    ),
    Expression(
        "sum-of-three",
        lambda op, k, a, b, c: op("add", op("add", a, b), c),
        "a sum in another order, or in more digits",
    ),
    Expression(
        "sum-minus-first",
        lambda op, k, a, b, c: _minus(op, k, op("add", a, b), a),
        "a sum that is undone on paper",
    ),
    Expression(
        "product-of-three",
        lambda op, k, a, b, c: op("mul", op("mul", a, b), c),
        "a product in another order, or with a wider exponent",
    ),
    Expression(
        "times-zero", lambda op, k, a, b, c: op("mul", a, k(0)), "a factor of 0 that hides a NaN"
    ),
    Expression(
        "plus-zero", lambda op, k, a, b, c: op("add", a, k(0)), "a 0 added that is left out"
    ),
    Expression(
        "self-difference",
        lambda op, k, a, b, c: _minus(op, k, a, a),
        "a difference that is NaN for infinities",
    ),
    Expression(
        "compared-sum",
        lambda op, k, a, b, c: op("where", op("lt", op("add", a, b), a), b, c),
        "a comparison that is moved across a sum",
    ),
    Expression(
        "not-a-number",
        lambda op, k, a, b, c: op("where", op("ne", a, a), b, c),
        "a test for NaN that is left out",
    ),
)
WHOLE = (
    Expression(
        "add-shift",
        lambda op, k, a, b, c: op("shr", op("add", a, b), k(1)),
        "a sum that is widened before it is shifted",
    ),
    Expression(
        "mul-shift",
        lambda op, k, a, b, c: op("shr", op("mul", a, b), k(3)),
        "a product that is widened, or signed overflow",
    ),
    Expression(
        "next-is-less",
        lambda op, k, a, b, c: op("where", op("lt", op("add", a, k(1)), a), b, c),
        "signed overflow that is taken for impossible",
    ),
    Expression(
        "double-halve",
        lambda op, k, a, b, c: op("idiv", op("mul", a, k(2)), k(2)),
        "a division that undoes a product on paper",
    ),
    Expression(
        "there-and-back",
        lambda op, k, a, b, c: op("shr", op("shl", a, k(5)), k(5)),
        "bits shifted out that come back",
    ),
    Expression(
        "remainder-of-sum",
        lambda op, k, a, b, c: op("mod", op("add", a, b), k(7)),
        "a remainder of a sum that was not wrapped",
    ),
)


def rows() -> Iterator[Row]:
    """The rows of this file."""
    for kinds, dtypes in ((FLOATING, FLOATS), (WHOLE, INTS)):
        for expression in kinds:
            for dtype in dtypes:
                name = f"expressions/{expression.name}/{dtype.name}"
                run = partial(_run, expression, dtype)
                summary = f"{expression.name} of {dtype.name} finds {expression.catches}."
                level = tables.level(dtype)
                yield Row(name, level, GROUP, run, dtype=dtype.name, summary=summary)


def _run(expression: Expression, dtype: DType, target: Target) -> Outcome:
    target.require(dtype)
    operands = _operands(expression, dtype)
    n = operands[0].size
    want = oracle.Expected(ulp.decode(_by_oracle(expression, dtype, operands), dtype))
    compared = 0
    for lanes in sorted({1, target.lanes}):
        build = Builder(f"{expression.name.replace('-', '_')}_{dtype.name}_x{lanes}")
        out, sources = build.out(dtype, n), [build.into(dtype, n) for _ in range(3)]
        with build.loop(n, "grid", lanes) as i:
            values = [build.load(source, i) for source in sources]
            build.store(out, i, _in_kernel(expression, build, dtype, values))
        (got,) = target.run_kernel(build.kernel(), operands)
        shown = [ulp.decode(x, dtype) for x in operands]
        compared += oracle.compare(got, want, dtype, shown).compared
    return Outcome(compared, 0.0 if dtype.is_float else None)


def _operands(expression: Expression, dtype: DType) -> list[NDArray[Any]]:
    """Pairs of special values with a third that keeps changing, and random ones of like size."""
    rng = tables.generator(f"expressions/{expression.name}/{dtype.name}")
    special = tables.specials(dtype)
    a, b = tables.pairs(special[:PAIRS], special[-PAIRS:])
    c = special[rng.integers(0, special.size, a.size)]
    drawn = [tables.mixed(rng, dtype, RANDOM) for _ in range(3)]
    if dtype.is_float:
        near = rng.standard_normal((3, RANDOM))
        drawn = list(tables.numbers(near, dtype))
        # c near -a*b, where the rounding of the product is all that is left of the sum
        half = RANDOM // 2
        product = ulp.decode(drawn[0], dtype) * ulp.decode(drawn[1], dtype)
        drawn[2][:half] = tables.numbers(-product, dtype)[:half]
    return [np.concatenate(pair) for pair in zip((a, b, c), drawn, strict=True)]


def _in_kernel(expression: Expression, build: Builder, dtype: DType, values: list[Instr]) -> Instr:
    made: Instr = expression.made(build.op, lambda number: _constant(build, dtype, number), *values)
    return made


def _constant(build: Builder, dtype: DType, number: float) -> Instr:
    return build.const(number, dtype)


def _by_oracle(expression: Expression, dtype: DType, operands: list[NDArray[Any]]) -> NDArray[Any]:
    """Op by op, each result rounded to stored elements."""

    def op(name: str, *args: NDArray[Any]) -> NDArray[Any]:
        values = oracle.elementwise(name, dtype, args).values
        if name in ("lt", "ne"):
            return values
        return tables.numbers(values, dtype) if dtype.is_float else values

    def constant(number: float) -> NDArray[Any]:
        values = np.full(operands[0].size, number)
        return tables.numbers(values, dtype) if dtype.is_float else values.astype(dtype.storage)

    made: NDArray[Any] = expression.made(op, constant, *operands)
    return made
