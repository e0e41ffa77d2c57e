"""Every VJP row against central differences in float64, to second order, and the walk itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import evaluate

from coregrad import dtypes
from coregrad.dtypes import bfloat16, bool_, float16, float32, float64, int32, int64
from coregrad.errors import DTypeError, GradientError, ShapeError
from coregrad.ir import build, ops
from coregrad.ir.autodiff import VJPS, Tape, gradients
from coregrad.ir.graph import Node, toposort

Array = np.ndarray[Any, np.dtype[Any]]
Function = Callable[..., Node]


def arange(*shape: int, start: float = 0.3, step: float = 0.37) -> Array:
    """Distinct numbers in no order, far from each other's value."""
    count = math.prod(shape)
    return (start + step * ((np.arange(count) * 7) % max(count, 1))).reshape(shape)


def index(*numbers: int) -> Node:
    """A constant index, made of shifted constants so that no buffer is needed."""
    return build.cat([build.const(n, int64, (1,)) for n in numbers], 0)


class ProductRule:
    """The gradient of ``x * y``, as a user would write it."""

    def __init__(self, x: Node, y: Node) -> None:
        self.x, self.y = x, y

    def vjp(self, gradient: Node) -> Sequence[Node | None]:
        return build.mul(gradient, self.y), build.mul(gradient, self.x)


def custom_product(x: Node, y: Node) -> Node:
    return build.custom(build.mul(x, y), (x, y), ProductRule(x, y))


def gt(x: Node, value: float) -> Node:
    return build.lt(build.const_like(x, value), x)


# fmt: off
CASES: dict[str, tuple[Function, Sequence[Array]]] = {
    "reduce_add": (lambda x: build.reduce("add", x, (0, 2)), [arange(2, 3, 4)]),
    "reduce_max": (lambda x: build.reduce("max", x, (1,)), [arange(3, 4)]),
    "reduce_mul": (lambda x: build.reduce("mul", x, (0, 2)), [arange(3, 2, 3)]),
    "reduce_mul_of_one": (lambda x: build.reduce("mul", x, (0,)), [arange(1, 2)]),
    "reduce_mul_of_8": (lambda x: build.reduce("mul", x, (0,)), [arange(8)]),
    "cast": (lambda x: build.cast(build.cast(x, float32), float64), [arange(3)]),
    "exp": (build.exp, [arange(4, start=-1)]),
    "log": (build.log, [arange(4)]),
    "sin": (build.sin, [arange(5)]),
    "cos": (lambda x: build.sin(x, 1), [arange(5)]),
    "sin_by_three_quarters": (lambda x: build.sin(x, 3), [arange(5)]),
    "sqrt": (build.sqrt, [arange(4)]),
    "add": (build.add, [arange(4), arange(4, start=2)]),
    "add_to_itself": (lambda x: build.add(x, x), [arange(4)]),
    "mul": (build.mul, [arange(4), arange(4, start=-0.7)]),
    "square": (lambda x: build.mul(x, x), [arange(4)]),
    "div": (build.div, [arange(4), arange(4, start=-0.2)]),
    "mod": (build.mod, [arange(4, start=5, step=1.1), arange(4, start=-2.1, step=0.3)]),
    "max": (build.maximum, [arange(5), arange(5, start=1.7, step=-0.2)]),
    "min": (build.minimum, [arange(5), arange(5, start=1.7, step=-0.2)]),
    "where": (lambda x, y: build.where(gt(x, 1.0), x, y), [arange(5), arange(5, start=4)]),
    "reshape": (lambda x: build.reshape(x, (3, 2)), [arange(2, 3)]),
    "permute": (lambda x: build.permute(x, (2, 0, 1)), [arange(2, 3, 4)]),
    "expand": (lambda x: build.expand(x, (2, 3, 4)), [arange(2, 1, 4)]),
    "pad": (lambda x: build.pad(x, ((1, 2), (0, 1)), 5.0), [arange(2, 3)]),
    "shrink": (lambda x: build.shrink(x, ((1, 3), (0, 2))), [arange(4, 3)]),
    "flip": (lambda x: build.flip(x, (0, 2)), [arange(2, 3, 4)]),
    "window": (lambda x: build.window(x, 0, 3, 2, 2), [arange(9, 2)]),
    "fold": (lambda x: build.fold(x, 1, 9, 2, 2), [arange(2, 3, 3)]),
    "scan": (lambda x: build.scan("add", x, 1), [arange(2, 3, 2)]),
    "slice": (lambda x: build.slice_at(x, (0, 2), [build.number(1, 2), build.number(2, 2)], (2, 1)),
              [arange(4, 2, 3)]),
    "update": (lambda x, y: build.update_at(x, y, (1,), [build.number(2, 3)]),
               [arange(2, 5), arange(2, 2)]),
    "cat": (lambda x, y: build.cat([x, y, x], 1), [arange(2, 3), arange(2, 1)]),
    "gather": (lambda x: build.gather(x, build.reshape(index(2, 0, 2, 2), (2, 2))), [arange(3, 2)]),
    "scatter_add": (lambda x, y: build.scatter(x, index(2, 0, 2), y, "add"),
                    [arange(4, 2), arange(3, 2)]),
    "scatter_set": (lambda x, y: build.scatter(x, index(2, 0, 2), y, "set"),
                    [arange(4, 2), arange(3, 2)]),
    "contiguous": (lambda x: build.contiguous(build.add(x, x)), [arange(3)]),
    "copy": (lambda x: build.copy(x, "cpu", "cuda:0"), [arange(3)]),
    "leaf": (lambda x: build.leaf(x, "tag"), [arange(3)]),
    "custom": (custom_product, [arange(3), arange(3, start=-1)]),
    "softmax": (lambda x: build.div(build.exp(x), build.expand(build.reshape(
                    build.reduce("add", build.exp(x), (1,)), (2, 1)), (2, 3))), [arange(2, 3)]),
}
# fmt: on


def inputs_of(arrays: Sequence[Array]) -> tuple[list[Node], dict[Any, Array]]:
    nodes = [build.buffer(f"x{i}", float64, a.shape) for i, a in enumerate(arrays)]
    return nodes, {f"x{i}": a.astype(np.float64) for i, a in enumerate(arrays)}


def weights(shape: tuple[int, ...]) -> Array:
    """A seed whose elements all differ."""
    return arange(*shape, start=0.6, step=0.21)


def weighted_sum(y: Node, values: Mapping[Any, Array], seed: Array) -> float:
    return float(np.sum(evaluate([y], values, wide=True)[0] * seed))


def numerical(y: Node, values: dict[Any, Array], key: str, seed: Array) -> Array:
    """Central differences of ``sum(y * seed)`` in each element of the buffer ``key``."""
    step = 2.0**-17  # error about step**2, rounding about 2**-53/step
    found = np.zeros_like(values[key])
    for place in np.ndindex(found.shape):
        ends = []
        for sign in (1, -1):
            moved = values[key].copy()
            moved[place] += sign * step
            ends.append(weighted_sum(y, {**values, key: moved}, seed))
        found[place] = (ends[0] - ends[1]) / (2 * step)
    return found


def check_gradients(y: Node, xs: Sequence[Node], values: dict[Any, Array]) -> list[Node]:
    """Compare with numerical gradients; returns the gradients."""
    seed = weights(y.shape)
    seed_node = build.buffer("outer seed", float64, y.shape)
    found = gradients(y, seed_node, xs)
    given = {**values, "outer seed": seed}
    zero = [np.zeros(x.shape) for x in xs]
    made = [x for x in xs if x in found]
    results = dict(zip(made, evaluate([found[x] for x in made], given, wide=True), strict=True))
    for x, nothing in zip(xs, zero, strict=True):
        expected = numerical(y, given, x.arg, seed)
        np.testing.assert_allclose(results.get(x, nothing), expected, rtol=2e-6, atol=2e-6)
        if x in found:
            assert (found[x].shape, found[x].dtype) == (x.shape, x.dtype)
    return [found[x] for x in made]


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_the_numerical_one(name: str) -> None:
    function, arrays = CASES[name]
    xs, values = inputs_of(arrays)
    check_gradients(function(*xs), xs, values)


@pytest.mark.parametrize("name", CASES)
def test_the_second_derivative_is_the_numerical_one(name: str) -> None:
    function, arrays = CASES[name]
    xs, values = inputs_of(arrays)
    y = function(*(build.sin(x) for x in xs))  # so that linear ops have a second derivative too
    if name in ("log", "sqrt"):
        y = function(*(build.exp(x) for x in xs))
    values["seed"] = weights(y.shape)
    seed = build.buffer("seed", float64, y.shape)
    first = gradients(y, seed, xs)
    for x in xs:
        check_gradients(first[x], [*xs, seed], values)


def test_every_graph_op_has_a_vjp_row_and_nothing_else_has() -> None:
    in_graphs = [op for op in ops.OPS.values() if op not in (ops.LOAD, ops.STORE)]
    assert [op.name for op in in_graphs if op not in VJPS] == []
    assert [op.name for op in VJPS if op not in in_graphs] == []


def test_every_vjp_row_is_checked_numerically() -> None:
    checked = set()
    for function, arrays in CASES.values():
        xs, _ = inputs_of(arrays)
        checked |= {node.op for node in toposort([function(*xs)])}
    assert [op.name for op, row in VJPS.items() if row is not None and op not in checked] == []
    kinds = {function(*inputs_of(arrays)[0]).arg[0] for name, (function, arrays) in CASES.items()
             if name.startswith("reduce")}  # fmt: skip
    assert kinds == set(ops.REDUCE_KINDS) - {"argmax"}


# ---- corners -----------------------------------------------------------------------------------


def gradient_at(function: Callable[[Node], Node], values: Sequence[float]) -> list[float]:
    """The gradient of ``sum(function(x))`` at a vector."""
    x = build.buffer("x", float64, (len(values),))
    y = function(x)
    found = gradients(y, build.const_like(y, 1), [x])[x]
    result: list[float] = evaluate([found], {"x": np.array(values, np.float64)})[0].tolist()
    return result


def safe_log(x: Node) -> Node:
    return build.where(gt(x, 0), build.log(x), build.mul(x, build.const_like(x, 2)))


def safe_sqrt(x: Node) -> Node:
    return build.where(gt(x, 0), build.sqrt(x), x)


def safe_reciprocal(x: Node) -> Node:
    return build.where(build.ne(x, build.const_like(x, 0)), build.div(build.const_like(x, 1), x), x)


def capped_exp(x: Node) -> Node:
    return build.where(gt(x, 0), x, build.exp(x))


def safe_mod(x: Node) -> Node:
    return build.where(gt(x, 0), build.mod(build.const_like(x, 7), x), x)


def bounded_sin(x: Node) -> Node:
    return build.where(build.lt(x, build.const_like(x, math.inf)), build.sin(x), x)


def test_the_branch_not_taken_stays_silent_where_its_derivative_is_infinite() -> None:
    assert gradient_at(safe_log, [0.0, -1.0, 4.0, -0.0]) == [2.0, 2.0, 0.25, 2.0]
    assert gradient_at(safe_sqrt, [0.0, -1.0, 4.0]) == [1.0, 1.0, 0.25]
    assert gradient_at(safe_reciprocal, [0.0, 2.0]) == [1.0, -0.25]
    assert gradient_at(capped_exp, [1e4, 0.0]) == [1.0, 1.0]
    assert gradient_at(safe_mod, [0.0, 2.0]) == [1.0, -3.0]
    assert gradient_at(bounded_sin, [math.inf, 0.0]) == [1.0, 1.0]


def test_the_branch_not_taken_stays_silent_in_second_derivatives_too() -> None:
    def slope(function: Callable[[Node], Node]) -> Callable[[Node], Node]:
        def derivative(x: Node) -> Node:
            y = function(x)
            return gradients(y, build.const_like(y, 1), [x])[x]

        return derivative

    assert gradient_at(slope(safe_log), [0.0, 2.0]) == [0.0, -0.25]
    assert gradient_at(slope(safe_sqrt), [0.0, -3.0, 4.0]) == [0.0, 0.0, -1 / 32]
    assert gradient_at(slope(safe_reciprocal), [0.0, 2.0]) == [0.0, 0.25]
    assert gradient_at(slope(capped_exp), [1e4, 0.0]) == [0.0, 1.0]


def test_a_first_derivative_of_0_does_not_silence_the_second() -> None:
    def square_of_log(x: Node) -> Node:
        return build.mul(build.log(x), build.log(x))

    def slope(x: Node) -> Node:
        y = square_of_log(x)
        return gradients(y, build.const_like(y, 1), [x])[x]

    assert gradient_at(slope, [1.0]) == [2.0]


def test_an_infinite_derivative_that_counts_is_infinite() -> None:
    assert gradient_at(build.sqrt, [0.0]) == [math.inf]
    assert gradient_at(build.log, [0.0]) == [math.inf]
    assert math.isnan(gradient_at(build.sqrt, [-1.0])[0])


def product(x: Node) -> Node:
    return build.reduce("mul", x, (0,))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([2.0, 0.0, 5.0], [0.0, 10.0, 0.0]),
        ([0.0, 0.0, 5.0], [0.0, 0.0, 0.0]),
        ([3.0], [1.0]),
        ([2.0, 3.0, 5.0, 7.0, 11.0], [1155.0, 770.0, 462.0, 330.0, 210.0]),
    ],
)
def test_the_gradient_of_a_product_is_right_with_zeros(
    values: list[float], expected: list[float]
) -> None:
    assert gradient_at(product, values) == expected


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=20))
@settings(deadline=None)
def test_each_factor_receives_the_product_of_the_others(factors: list[int]) -> None:
    expected = [math.prod(factors[:i] + factors[i + 1 :]) for i in range(len(factors))]
    assert gradient_at(product, [float(f) for f in factors]) == expected


def test_a_product_over_nothing_has_an_empty_gradient() -> None:
    x = build.buffer("x", float32, (2, 0))
    y = build.reduce("mul", x, (1,))
    assert gradients(y, build.const_like(y, 1), [x])[x].shape == (2, 0)


def test_the_largest_elements_share_the_gradient_evenly() -> None:
    def largest(x: Node) -> Node:
        return build.reduce("max", x, (0,))

    assert gradient_at(largest, [1.0, 3.0, 3.0, 2.0]) == [0.0, 0.5, 0.5, 0.0]
    assert gradient_at(largest, [math.inf, 1.0]) == [1.0, 0.0]
    assert gradient_at(largest, [1.0, math.nan, 3.0, math.nan]) == [0.0, 0.5, 0.0, 0.5]


def test_ties_are_counted_in_float32_for_the_small_floats() -> None:
    for dtype in (float16, bfloat16):
        x = build.buffer("x", dtype, (4096,))
        y = build.reduce("max", x, (0,))
        found = gradients(y, build.const_like(y, 1), [x])[x]
        assert found.dtype is dtype
        (result,) = evaluate([found], {"x": np.ones(4096, np.float32)})
        assert set(result.tolist()) == {1 / 4096}


def test_equal_operands_of_maximum_receive_half_each() -> None:
    def against_two(x: Node) -> Node:
        return build.maximum(x, build.const_like(x, 2))

    assert gradient_at(against_two, [1.0, 2.0, 3.0, math.nan]) == [0.0, 0.5, 1.0, 1.0]


def test_a_row_that_is_overwritten_by_a_later_one_has_no_gradient() -> None:
    base, value = build.buffer("b", float32, (3, 2)), build.buffer("v", float32, (3, 2))
    y = build.scatter(base, index(1, 2, 1), value, "set")
    found = gradients(y, build.const_like(y, 1), [base, value])
    got_base, got_value = evaluate([found[base], found[value]])
    assert got_base.tolist() == [[1, 1], [0, 0], [0, 0]]
    assert got_value.tolist() == [[0, 0], [1, 1], [1, 1]]


def test_an_element_gathered_twice_receives_both_gradients() -> None:
    def thrice(x: Node) -> Node:
        return build.gather(x, index(1, 1, 0, 1))

    assert gradient_at(thrice, [5.0, 6.0, 7.0]) == [1.0, 3.0, 0.0]


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("name", [name for name in CASES if name != "cast"])
def test_a_gradient_has_its_inputs_dtype_and_shape(name: str, dtype: dtypes.DType) -> None:
    function, arrays = CASES[name]
    xs = [build.buffer(f"x{i}", dtype, a.shape) for i, a in enumerate(arrays)]
    y = function(*xs)
    for x, found in gradients(y, build.const_like(y, 1), xs).items():
        assert (found.dtype, found.shape) == (dtype, x.shape)


# ---- the walk ----------------------------------------------------------------------------------


def scalar(name: str) -> Node:
    return build.buffer(name, float32, ())


def one(x: Node) -> Node:
    return build.const_like(x, 1)


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=lambda d: d.name)
def test_the_gradient_of_a_cast_is_cast_back(dtype: dtypes.DType) -> None:
    x = build.buffer("x", dtype, (2,))
    y = build.exp(build.cast(x, float64))
    assert gradients(y, build.const_like(y, 1), [x])[x].dtype is dtype


def test_the_root_itself_receives_the_seed() -> None:
    x = scalar("x")
    assert gradients(x, one(x), [x]) == {x: one(x)}


def test_a_leaf_can_be_wanted_and_passes_the_gradient_on() -> None:
    x = scalar("x")
    leaf = build.leaf(x, "tag")
    y = build.mul(leaf, leaf)
    found = gradients(y, one(y), [leaf, x])
    assert found[leaf] is found[x]


def test_two_leaves_of_one_value_have_gradients_of_their_own() -> None:
    x = scalar("x")
    a, b = build.leaf(x, "a"), build.leaf(x, "b")
    y = build.add(a, build.mul(b, build.const_like(b, 3)))
    found = gradients(y, one(y), [a, b])
    assert [v.item() for v in evaluate([found[a], found[b]])] == [1.0, 3.0]


def test_nothing_passes_a_detach_or_an_integer() -> None:
    x = scalar("x")
    detached = build.mul(build.detach(x), build.const_like(x, 2))
    counted = build.cast(build.cast(x, int32), float32)
    compared = build.cast(gt(x, 0), float32)
    bits = build.bitcast(build.bitcast(x, int32), float32)
    for y in (detached, counted, compared, bits, build.trunc(x)):
        assert gradients(y, one(y), [x]) == {}


def test_what_the_result_does_not_depend_on_is_missing_from_the_answer() -> None:
    x, z = scalar("x"), scalar("z")
    y = build.exp(x)
    assert gradients(y, one(y), [z]) == {}


def test_only_paths_to_what_is_wanted_are_walked() -> None:
    class Forbidden:
        def vjp(self, gradient: Node) -> Sequence[Node | None]:
            raise AssertionError("nobody wants a gradient from here")

    x, z = scalar("x"), scalar("z")
    elsewhere = build.custom(build.exp(z), (z,), Forbidden())
    y = build.mul(build.exp(x), elsewhere)
    assert set(gradients(y, one(y), [x])) == {x}


def test_a_wanted_node_in_the_middle_does_not_end_the_walk() -> None:
    x = scalar("x")
    middle = build.mul(x, build.const_like(x, 3))
    y = build.mul(middle, build.const_like(x, 5))
    found = gradients(y, one(y), [middle, x])
    assert [v.item() for v in evaluate([found[middle], found[x]])] == [5.0, 15.0]


def test_a_computed_node_does_not_end_the_walk() -> None:
    x = scalar("x")
    middle = build.exp(x)
    middle.buffer = scalar("computed")
    y = build.exp(middle)
    y.buffer = scalar("computed too")
    assert x in gradients(y, one(y), [x])


def test_a_custom_rule_replaces_the_gradient_of_what_it_marks() -> None:
    class Tenfold:
        def vjp(self, gradient: Node) -> Sequence[Node | None]:
            return build.mul(gradient, build.const_like(gradient, 10)), None

    x, z = scalar("x"), scalar("z")
    y = build.custom(build.mul(x, z), (x, z), Tenfold())
    found = gradients(y, one(y), [x, z])
    assert set(found) == {x}
    assert evaluate([found[x]])[0] == 10


def test_a_custom_rule_with_a_wrong_answer_is_told_so() -> None:
    class Rule:
        def __init__(self, *answers: Node | None) -> None:
            self.answers = answers

        def vjp(self, gradient: Node) -> Sequence[Node | None]:
            return self.answers

    x = build.buffer("x", float32, (2,))

    def ask(*answers: Node | None) -> None:
        y = build.custom(build.exp(x), (x,), Rule(*answers))
        gradients(y, one(y), [x])

    with pytest.raises(GradientError, match=r"2 gradients for 1 inputs; return one per input"):
        ask(x, x)
    with pytest.raises(
        GradientError,
        match=r"input 0 is float32 of shape \(2,\), its gradient float32 of shape \(3,\)",
    ):
        ask(build.const(1, float32, (3,)))
    with pytest.raises(GradientError, match=r"its gradient float64 of shape \(2,\)"):
        ask(build.const(1, float64, (2,)))


def test_a_copy_to_another_device_sends_its_gradient_back() -> None:
    x = scalar("x")
    y = build.copy(x, "cpu", "cuda:1")
    found = gradients(y, one(y), [x])[x]
    assert (found.op, found.arg) == (ops.COPY, ("cuda:1", "cpu"))


def test_a_result_without_a_gradient_is_refused() -> None:
    x = build.buffer("x", int64, (2,))
    with pytest.raises(GradientError, match="the result is int64; only a float result"):
        gradients(x, x, [x])
    flag = build.buffer("f", bool_, ())
    with pytest.raises(GradientError, match="the result is bool"):
        gradients(flag, flag, [flag])


def test_a_seed_that_does_not_fit_is_refused() -> None:
    x = build.buffer("x", float32, (2, 3))
    with pytest.raises(ShapeError, match=r"gradient has shape \(3, 2\), the result \(2, 3\)"):
        gradients(x, build.const(1, float32, (3, 2)), [x])
    with pytest.raises(DTypeError, match=r"gradient is float64, the result float32; cast"):
        gradients(x, build.const(1, float64, (2, 3)), [x])


def chain(length: int) -> int:
    """Nodes of a chain of ``length`` steps with its gradient."""
    x = scalar("x")
    y = x
    for _ in range(length):
        y = build.mul(build.sin(y), build.const_like(y, 0.5))
    found = gradients(y, one(y), [x])[x]
    return len(toposort([found, y]))


def test_a_chain_of_ten_thousand_ops_has_a_gradient_of_proportional_size() -> None:
    short, long = chain(500), chain(5000)
    assert long < 10.1 * short
    assert chain(10_000) - long == pytest.approx(long - chain(0), rel=0.01)


def test_a_value_used_many_times_is_walked_once() -> None:
    x = scalar("x")
    y = x
    for _ in range(200):  # 2**200 paths
        y = build.add(y, y)
    found = gradients(y, one(y), [x])[x]
    assert len(toposort([found])) < 500
    assert evaluate([found], wide=True)[0] == 2.0**200


def test_a_tape_of_several_roots_gives_each_root_its_own_gradients() -> None:
    x, y = (build.leaf(build.buffer(name, float32, (3,)), name) for name in "xy")
    shared = build.mul(x, y)
    roots = [build.exp(shared), build.mul(shared, x), build.sin(y)]
    tape = Tape(roots)
    assert set(tape.leaves()) == {x, y}
    for root in roots:
        seed = build.const_like(root, 1)
        assert gradients(root, seed, [x, y], tape) == gradients(root, seed, [x, y])
    assert x not in gradients(roots[2], build.const_like(roots[2], 1), [x, y], tape)
