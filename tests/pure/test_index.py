"""Index arithmetic against brute force: every value of every variable, in Python's own integers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coregrad.ir.index import (
    Index,
    Opaque,
    Quotient,
    Remainder,
    Var,
    constant,
    flatten,
    reshape,
    unflatten,
    variable,
)

Values = Mapping[Var, int]
Case = tuple[Index, Callable[[Values], int]]  # an expression, and what it should be


def points(variables: Sequence[Var]) -> Iterator[dict[Var, int]]:
    """All assignments of values to variables."""
    for numbers in itertools.product(*(range(v.extent) for v in variables)):
        yield dict(zip(variables, numbers, strict=True))


@st.composite
def expressions(draw: st.DrawFn) -> tuple[list[Var], Case]:
    """Up to three variables and a random nest of +, -, *, // and %."""
    extents = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    variables = [Var(f"v{i}", n) for i, n in enumerate(extents)]
    start: list[Case] = [(variable(v), lambda at, v=v: at[v]) for v in variables]
    cases = [*start, (constant(3), lambda at: 3)]
    for _ in range(draw(st.integers(1, 7))):
        (a, f), (b, h) = draw(st.sampled_from(cases)), draw(st.sampled_from(cases))
        k, m = (draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 5])) for _ in "km")
        cases.append(
            draw(
                st.sampled_from(
                    [
                        (a + b, lambda at, f=f, h=h: f(at) + h(at)),
                        (a - b, lambda at, f=f, h=h: f(at) - h(at)),
                        (a + k, lambda at, f=f, k=k: f(at) + k),
                        (a * k, lambda at, f=f, k=k: f(at) * k),
                        (a * -k, lambda at, f=f, k=k: f(at) * -k),
                        (a // k, lambda at, f=f, k=k: f(at) // k),
                        (a % k, lambda at, f=f, k=k: f(at) % k),
                        (a * k + b, lambda at, f=f, h=h, k=k: f(at) * k + h(at)),
                        ((a * k - b) // m, lambda at, f=f, h=h, k=k, m=m: (f(at) * k - h(at)) // m),
                        ((a * k - b) % m, lambda at, f=f, h=h, k=k, m=m: (f(at) * k - h(at)) % m),
                    ]
                )
            )
        )
    return variables, cases[-1]


@settings(max_examples=600, deadline=None)
@given(expressions())
def test_an_expression_has_the_value_of_its_parts_everywhere(case: tuple[list[Var], Case]) -> None:
    variables, (index, expected) = case
    for at in points(variables):
        value = index.evaluate(at)
        assert value == expected(at)
        assert index.lo <= value <= index.hi
    assert index.vars <= set(variables)
    assert index.is_const == (not index.terms)


@settings(deadline=None)
@given(expressions())
def test_a_coefficient_is_the_step_everywhere(case: tuple[list[Var], Case]) -> None:
    variables, (index, expected) = case
    for var in variables:
        step = index.coefficient(var)
        if step is None:
            continue
        for at in points(variables):
            if at[var] + 1 < var.extent:
                assert expected({**at, var: at[var] + 1}) - expected(at) == step


@settings(deadline=None)
@given(expressions(), expressions())
def test_substitution_is_evaluation_at_the_replacement(
    case: tuple[list[Var], Case], inner: tuple[list[Var], Case]
) -> None:
    variables, (index, expected) = case
    others, (replacement, value) = inner
    target, rest = variables[0], variables[1:2]
    replaced = index.substitute({target: replacement % target.extent})
    for at in points([*rest, *others]):
        full = {**dict.fromkeys(variables[2:], 0), **at}
        there = {**full, target: value(full) % target.extent}
        assert replaced.evaluate(full) == expected(there)


@settings(deadline=None)
@given(expressions(), st.integers(-9, 40), st.integers(0, 20), st.sampled_from([2, 3, 4, 6, 12]))
def test_what_a_gate_promises_is_used_only_where_the_gate_holds(
    case: tuple[list[Var], Case], lo: int, width: int, d: int
) -> None:
    variables, (index, expected) = case
    known = index.assume(lo, lo + width)
    quotient, remainder = known // d, known % d
    both = quotient * d + remainder
    for at in points(variables):
        value = expected(at)
        assert known.evaluate(at) == value
        if lo <= value <= lo + width:
            assert known.lo <= value <= known.hi
            assert quotient.evaluate(at) == value // d
            assert remainder.evaluate(at) == value % d
            assert both.evaluate(at) == value


def test_every_small_affine_index_is_divided_rightly() -> None:
    i, j = Var("i", 3), Var("j", 4)
    steps = (-8, -4, -3, -1, 0, 1, 2, 4, 6)
    for a, b, c in itertools.product(steps, steps, (-5, 0, 3)):
        index = variable(i) * a + variable(j) * b + c
        for d in (2, 3, 4, 8, 12):
            quotient, remainder = index // d, index % d
            for at in points([i, j]):
                value = a * at[i] + b * at[j] + c
                assert quotient.evaluate(at) == value // d
                assert remainder.evaluate(at) == value % d


def test_a_gate_outside_the_range_promises_nothing() -> None:
    index = variable(Var("i", 4))
    assert index.assume(7, 9) is index


shapes = st.lists(st.integers(1, 4), max_size=4).map(tuple)


def axes_of(shape: Sequence[int]) -> tuple[list[Var], tuple[Index, ...]]:
    variables = [Var(f"i{axis}", n) for axis, n in enumerate(shape)]
    return variables, tuple(variable(v) for v in variables)


@settings(deadline=None)
@given(shapes)
def test_unflatten_undoes_flatten_without_any_division(shape: tuple[int, ...]) -> None:
    _, indices = axes_of(shape)
    assert unflatten(flatten(indices, shape), shape) == indices


@settings(deadline=None)
@given(shapes)
def test_flatten_counts_in_row_major_order(shape: tuple[int, ...]) -> None:
    variables, indices = axes_of(shape)
    position = flatten(indices, shape)
    counted = [position.evaluate(at) for at in points(variables)]
    assert counted == list(range(math.prod(shape)))


@settings(deadline=None)
@given(shapes)
def test_flatten_undoes_unflatten(shape: tuple[int, ...]) -> None:
    position = variable(Var("p", math.prod(shape)))
    assert flatten(unflatten(position, shape), shape) == position


@st.composite
def two_shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes with the same number of elements."""

    def one(factors: Sequence[int]) -> tuple[int, ...]:
        shape = [1] * draw(st.integers(1, 5))
        for factor in factors:
            shape[draw(st.integers(0, len(shape) - 1))] *= factor
        return tuple(shape)

    factors = draw(st.lists(st.sampled_from([2, 2, 3]), max_size=5))
    return one(factors), one(factors)


@settings(deadline=None)
@given(two_shapes())
def test_reshape_finds_the_element_that_numpy_finds(
    pair: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    shape, source = pair
    variables, indices = axes_of(shape)
    there = reshape(indices, shape, source)
    assert len(there) == len(source)
    expected = np.arange(math.prod(source)).reshape(shape)
    stored = np.arange(math.prod(source)).reshape(source)
    for at in points(variables):
        here = tuple(at[v] for v in variables)
        place = tuple(index.evaluate(at) for index in there)
        assert all(0 <= p < n for p, n in zip(place, source, strict=True))
        assert stored[place] == expected[here]


@settings(deadline=None)
@given(two_shapes())
def test_reshape_there_and_back_is_nothing(pair: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    shape, source = pair
    _, indices = axes_of(shape)
    assert reshape(reshape(indices, shape, source), source, shape) == indices


@pytest.mark.parametrize(
    ("shape", "source"),
    [((0, 3), (0,)), ((0,), (3, 0)), ((2, 0, 1), (0, 5)), ((1,), ()), ((), (1, 1)), ((), ())],
)
def test_reshape_of_nothing_or_of_one_element_has_an_index_per_axis(
    shape: tuple[int, ...], source: tuple[int, ...]
) -> None:
    _, indices = axes_of(shape)
    assert len(reshape(indices, shape, source)) == len(source)


def test_merging_and_splitting_axes_needs_no_division_where_none_is_due() -> None:
    i, j, k = (variable(Var(name, n)) for name, n in (("i", 6), ("j", 4), ("k", 5)))
    assert reshape((i, j, k), (6, 4, 5), (24, 5)) == (i * 4 + j, k)
    merged = variable(Var("m", 24))
    assert str(reshape((merged,), (24,), (6, 4))[1]) == "m%4"
    assert reshape((merged * 4 + j,), (96,), (24, 4)) == (merged, j)


def test_quotient_and_remainder_join_to_the_whole() -> None:
    x = variable(Var("x", 100))
    assert (x // 8) * 8 + x % 8 == x
    assert (x // 8) * 24 + (x % 8) * 3 + 1 == x * 3 + 1
    assert (x // 4) // 6 == x // 24
    assert (x % 24) // 4 == (x // 4) % 6
    assert (x * 8 + 3) // 8 == x
    assert (x * 8 + 3) % 4 == constant(3)


def test_order_of_terms_does_not_matter() -> None:
    x, y = variable(Var("x", 9)), variable(Var("y", 9))
    assert x * 2 + y == y + x * 2
    assert (x + y) % 4 == (y + x) % 4
    assert hash(x + y) == hash(y + x)
    assert x - x == constant(0)


def test_a_loop_of_one_iteration_is_the_constant_0() -> None:
    assert variable(Var("i", 1)) == constant(0)


@pytest.mark.parametrize("d", [0, -2])
def test_division_by_zero_or_less_is_refused(d: int) -> None:
    x = variable(Var("x", 9))
    with pytest.raises(ValueError, match=rf"index division by {d}: the divisor must be positive"):
        x // d
    with pytest.raises(ValueError, match=rf"index remainder by {d}: the divisor must be positive"):
        x % d


def test_a_loaded_index_is_an_atom_with_a_range() -> None:
    i = Var("i", 4)
    loaded = Opaque("n0", object(), (0, 9), frozenset((i,)))
    index = variable(loaded) * 3 + variable(i)
    assert (index.lo, index.hi) == (0, 30)
    assert index.vars == {i}
    assert index.coefficient(i) is None
    assert (variable(loaded) * 3 + 2) % 3 == constant(2)
    assert index.show({loaded.value: "%7"}) == "i + 3*%7"
    with pytest.raises(ValueError, match="n0 is computed by the kernel"):
        index.evaluate({i: 0})


def test_the_text_of_an_index_reads_like_arithmetic() -> None:
    i, j = variable(Var("i", 12)), variable(Var("j", 5))
    assert str(i * 5 + j - 3) == "5*i + j - 3"
    assert str((i * 5 + j) // 7) == "(5*i + j)//7"
    assert str((i + j) % 4 * 2 + 1) == "2*((i + j)%4) + 1"
    assert str(constant(0)) == "0"


def test_ranges_of_quotient_and_remainder_round_down() -> None:
    x = variable(Var("x", 10)) - 5
    assert Quotient(x, 3).range == (-2, 1)
    assert Remainder(x, 3).range == (0, 2)
