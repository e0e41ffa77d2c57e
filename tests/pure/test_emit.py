"""The emitter, on kernels made by hand and a backend that runs vectors and checks every operand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import LIMITS, Builder, LaneBackend, hooks_of, run

from coregrad import dtypes
from coregrad.dtypes import float32, int32, int64
from coregrad.hookspecs import Header
from coregrad.ir.emit import Bindings, Emitter, is_injective, is_ordered
from coregrad.ir.index import Index, Var, constant, variable
from coregrad.ir.kernel import INDEX, RESULT, Accumulator, Instr, Kernel, Loop, Store

LANES = (1, 4, 8)
rng = np.random.default_rng(1)


def lanes_of(
    kernel: Kernel, inputs: dict[str, object]
) -> tuple[dict[str, np.ndarray], LaneBackend]:
    backend = LaneBackend()
    return run(kernel, inputs, backend), backend


def floats(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("n", [1, 3, 4, 8, 29, 32])
def test_a_loop_with_lanes_runs_whole_vectors_and_then_the_rest(n: int, lanes: int) -> None:
    b = Builder()
    out = b.param("o", float32, n, "out")
    x, y = b.param("x", float32, n), b.param("y", float32, n)
    three = b.const(3, float32)
    with b.loop(n, "grid", lanes) as i:
        product = b.op("mul", b.load(x, i), three)
        b.store(out, i, b.op("add", product, b.load(y, i)))
    xs, ys = floats(n), floats(n)
    got, backend = lanes_of(b.kernel(), {"x": xs, "y": ys})
    np.testing.assert_array_equal(got["o"], xs * np.float32(3) + ys)
    widths = Counter(width for _, _, width in backend.frame.loads)
    vectors = n // lanes if lanes > 1 else 0
    assert widths == Counter({lanes: 2 * vectors} if vectors else {}) + Counter(
        {1: 2 * (n - vectors * lanes)}
    )


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("n", [1, 5, 16, 21])
@pytest.mark.parametrize("kind", ["add", "mul", "max"])
def test_a_reduction_with_lanes_is_folded_by_halves_and_with_the_rest(
    kind: str, n: int, lanes: int
) -> None:
    b = Builder()
    out, x = b.param("o", int32, 3, "out"), b.param("x", int32, 3 * n)
    with b.loop(3, "grid") as i:
        acc = b.acc(kind, int32)
        with b.loop(n, "serial", lanes) as r:
            b.update(acc, b.load(x, i * n + r))
        b.store(out, i, b.result(acc, used=[i]))
    xs = rng.integers(-50, 50, (3, n)).astype(np.int32)
    got, _ = lanes_of(b.kernel(), {"x": xs})
    fold = {"add": np.add, "mul": np.multiply, "max": np.maximum}[kind]
    np.testing.assert_array_equal(got["o"], fold.reduce(xs, axis=1, dtype=np.int32))


@pytest.mark.parametrize("lanes", LANES)
def test_a_value_that_does_not_depend_on_the_reduced_variable_counts_each_time(lanes: int) -> None:
    b = Builder()
    out, x = b.param("o", int32, 1, "out"), b.param("x", int32, 1)
    value = b.load(x, 0)
    acc = b.acc("add", int32)
    with b.loop(11, "serial", lanes):
        b.update(acc, value)
    b.store(out, 0, b.result(acc))
    got, _ = lanes_of(b.kernel(), {"x": [7]})
    assert got["o"].tolist() == [77]


@pytest.mark.parametrize("lanes", LANES)
def test_a_column_sum_has_lanes_in_its_outer_loop(lanes: int) -> None:
    rows, columns = 5, 13
    b = Builder()
    out, x = b.param("o", float32, columns, "out"), b.param("x", float32, rows * columns)
    with b.loop(columns, "grid", lanes) as j:
        acc = b.acc("add", float32)
        with b.loop(rows) as r:
            b.update(acc, b.load(x, r * columns + j))
        b.store(out, j, b.result(acc, used=[j]))
    xs = rng.integers(-9, 9, (rows, columns)).astype(np.float32)
    got, backend = lanes_of(b.kernel(), {"x": xs})
    np.testing.assert_array_equal(got["o"], xs.sum(0))
    assert {stride for _, stride, width in backend.frame.loads if width > 1} <= {1}


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize(
    "row",
    [
        [1.0, 3, 3, 2, 0, 3, 1, 1, 3],
        [-np.inf] * 9,
        [1, np.nan, 5, np.nan, 9, np.inf, 0, 0, 0],
        [0, 1, 2, 3, 4, 5, 6, 7, 8],
        [-0.0, 0.0, -0.0, -1, -1, -1, -1, -1, 0.0],
    ],
)
def test_argmax_is_the_first_of_the_largest_and_a_nan_is_larger(
    row: list[float], lanes: int
) -> None:
    b = Builder()
    out, x = b.param("o", int64, 1, "out"), b.param("x", float32, 9)
    top = b.param("m", float32, 1, "out")
    acc = b.acc("argmax", float32)
    with b.loop(9, "serial", lanes) as r:
        b.update(acc, b.load(x, r), b.index(r))
    b.store(top, 0, b.result(acc, 0))
    b.store(out, 0, b.result(acc, 1))
    got, _ = lanes_of(b.kernel(), {"x": row})
    assert got["o"][0] == np.argmax(row)
    np.testing.assert_array_equal(got["m"], np.max(row))


@pytest.mark.parametrize("lanes", LANES)
def test_softmax_reads_two_results_in_a_third_loop(lanes: int) -> None:
    rows, n = 3, 11
    b = Builder("softmax")
    out, x = b.param("o", float32, rows * n, "out"), b.param("x", float32, rows * n)
    minus_one = b.const(-1, float32)
    with b.loop(rows, "grid") as i:
        largest = b.acc("max", float32)
        with b.loop(n, "serial", lanes) as r:
            b.update(largest, b.load(x, i * n + r))
        top = b.op("mul", b.result(largest, used=[i]), minus_one)
        total = b.acc("add", float32)
        with b.loop(n, "serial", lanes) as r:
            b.update(total, b.op("exp", b.op("add", b.load(x, i * n + r), top)))
        denominator = b.result(total, used=[i])
        with b.loop(n, "serial", lanes) as j:
            power = b.op("exp", b.op("add", b.load(x, i * n + j), top))
            b.store(out, i * n + j, b.op("div", power, denominator))
    xs = floats(rows, n)
    got, _ = lanes_of(b.kernel(), {"x": xs})
    e = np.exp(xs.astype(np.float64) - xs.max(1, keepdims=True))
    np.testing.assert_allclose(got["o"].reshape(rows, n), e / e.sum(1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("lanes", LANES)
def test_a_gated_load_touches_nothing_outside(lanes: int) -> None:
    n, before = 9, 3
    b = Builder()
    out, x = b.param("o", float32, n + 2 * before, "out"), b.param("x", float32, n)
    low, high = b.const(before - 1, int64), b.const(n + before, int64)
    with b.loop(n + 2 * before, "grid", lanes) as i:
        position = b.index(i)
        gate = b.op("and", b.op("lt", low, position), b.op("lt", position, high))
        b.store(out, i, b.load(x, i - before, gate))
    xs = floats(n)
    got, _ = lanes_of(b.kernel(), {"x": xs})
    np.testing.assert_array_equal(got["o"], np.pad(xs, before))


@pytest.mark.parametrize("lanes", LANES)
def test_a_laned_gate_on_a_uniform_address_gives_lanes(lanes: int) -> None:
    b = Builder()
    out, x = b.param("o", float32, 10, "out"), b.param("x", float32, 1)
    four = b.const(4, int64)
    with b.loop(10, "grid", lanes) as i:
        b.store(out, i, b.load(x, 0, b.op("lt", b.index(i), four)))
    got, _ = lanes_of(b.kernel(), {"x": [2.5]})
    np.testing.assert_array_equal(got["o"], [2.5] * 4 + [0] * 6)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("index_dtype", [int32, int64], ids=str)
def test_a_loaded_index_is_a_vector_of_indices(index_dtype: dtypes.DType, lanes: int) -> None:
    n, width = 11, 5
    b = Builder()
    out, x = b.param("o", float32, n * width, "out"), b.param("x", float32, 7 * width)
    places = b.param("k", index_dtype, n)
    with b.loop(n * width, "grid", lanes) as i:
        place = b.opaque(b.load(places, i // width), 0, 6)
        b.store(out, i, b.load(x, place * width + i % width))
    xs, ks = floats(7, width), rng.integers(0, 7, n)
    got, _ = lanes_of(b.kernel(), {"x": xs, "k": ks})
    np.testing.assert_array_equal(got["o"].reshape(n, width), xs[ks])


@pytest.mark.parametrize("lanes", LANES)
def test_a_gated_error_word_is_stored_from_lanes(lanes: int) -> None:
    b = Builder()
    error, x = b.param("e", int32, 1, "error"), b.param("x", int32, 13)
    limit, number = b.const(10, int32), b.const(41, int32)
    with b.loop(13, "grid", lanes) as i:
        b.store(error, 0, number, b.op("lt", limit, b.load(x, i)))
    assert lanes_of(b.kernel(), {"x": np.arange(13) % 10})[0]["e"].tolist() == [0]
    assert lanes_of(b.kernel(), {"x": np.arange(13)})[0]["e"].tolist() == [41]


@pytest.mark.parametrize("lanes", LANES)
def test_a_row_kept_in_scratch_memory_is_written_and_read_in_lanes(lanes: int) -> None:
    rows, n = 3, 13
    b = Builder()
    out, x = b.param("o", float32, rows * n, "out"), b.param("x", float32, rows * n)
    with b.loop(rows, "grid") as i:
        row = b.array("row", float32, n)
        acc = b.acc("add", float32)
        with b.loop(n, "serial", lanes) as r:
            doubled = b.op("add", b.load(x, i * n + r), b.load(x, i * n + r))
            b.store(row, r, doubled)
            b.update(acc, doubled)
        total = b.result(acc, used=[i])
        with b.loop(n, "serial", lanes) as j:
            b.store(out, i * n + j, b.op("add", b.load(row, j), total))
    xs = rng.integers(-9, 9, (rows, n)).astype(np.float32)
    got, _ = lanes_of(b.kernel(), {"x": xs})
    want = 2 * xs + 2 * xs.sum(1, keepdims=True)
    np.testing.assert_array_equal(got["o"].reshape(rows, n), want)


def test_a_repeated_row_is_read_contiguously_when_vectors_do_not_straddle_it() -> None:
    b = Builder()
    out, bias = b.param("o", float32, 96, "out"), b.param("b", float32, 16)
    scale = b.param("s", float32, 6)
    with b.loop(96, "grid", 8) as i:
        b.store(out, i, b.op("mul", b.load(bias, i % 16), b.load(scale, i // 16)))
    bs, ss = floats(16), floats(6)
    got, backend = lanes_of(b.kernel(), {"b": bs, "s": ss})
    np.testing.assert_array_equal(got["o"].reshape(6, 16), bs * ss[:, None])
    assert set(backend.frame.loads) == {("b", 1, 8), ("s", 0, 1)}


def test_a_row_that_vectors_straddle_is_read_element_by_element() -> None:
    b = Builder()
    out, bias = b.param("o", float32, 96, "out"), b.param("b", float32, 12)
    with b.loop(96, "grid", 8) as i:
        b.store(out, i, b.load(bias, i % 12))
    bs = floats(12)
    got, backend = lanes_of(b.kernel(), {"b": bs})
    np.testing.assert_array_equal(got["o"], np.tile(bs, 8))
    assert set(backend.frame.loads) == {("b", None, 8)}


def test_index_arithmetic_of_outer_loops_stays_outside_the_inner_one() -> None:
    b = Builder()
    out, x = b.param("o", float32, 2, "out"), b.param("x", float32, 2 * 7 * 50)
    with b.loop(2, "grid") as i:
        acc = b.acc("add", float32)
        with b.loop(7) as j, b.loop(50) as k:
            b.update(acc, b.load(x, i * 350 + j * 50 + k))
        b.store(out, i, b.result(acc, used=[i]))
    xs = rng.integers(0, 9, (2, 350)).astype(np.float32)
    got, backend = lanes_of(b.kernel(), {"x": xs})
    np.testing.assert_array_equal(got["o"], xs.sum(1))
    assert backend.frame.calls["mul"] == 2 + 2 * 7
    assert backend.frame.calls["add"] == 2 * 7 + 2 * 7 * 50


@st.composite
def positions(draw: st.DrawFn) -> tuple[list[Var], Index]:
    """A random index of two variables, with divisions, remainders and negative parts."""
    loops = [Var("i", draw(st.integers(2, 9))), Var("j", draw(st.integers(2, 17)))]
    index = constant(draw(st.integers(-40, 40)))
    for _ in range(draw(st.integers(1, 4))):
        index = index + variable(draw(st.sampled_from(loops))) * draw(st.integers(-7, 7))
        step = draw(st.sampled_from(["none", "div", "mod"]))
        d = draw(st.sampled_from([2, 3, 4, 5, 8, 12, 16]))
        index = index // d if step == "div" else index % d if step == "mod" else index
    return loops, index


@given(positions(), st.sampled_from(LANES), st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_index_has_its_exact_value_in_every_lane(
    case: tuple[list[Var], Index], lanes: int, inner: bool
) -> None:
    (i, j), index = case
    b = Builder()
    out = b.param("o", int64, i.extent * j.extent, "out")
    value = Instr(INDEX, int64, (), index, index.vars)
    place = variable(i) * j.extent + variable(j)
    inside = Loop(j, "serial", [value, Store(out, place, value)], lanes if inner else 1)
    b.add(Loop(i, "grid", [inside], 1 if inner else lanes))
    got, _ = lanes_of(b.kernel(), {})
    want = [index.evaluate({i: a, j: c}) for a in range(i.extent) for c in range(j.extent)]
    assert got["o"].tolist() == want


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_fragment_is_evaluated_anywhere_with_given_values(lanes: int) -> None:
    b = Builder()
    x, out = b.param("x", float32, 40), b.param("o", float32, 40, "out")
    row, column = Var("m", 4), Var("n", 10)
    acc = Accumulator("sum", "add", float32)
    result = Instr(RESULT, float32, (), (acc, 0), frozenset((row, column)))
    place = variable(row) * 10 + variable(column)
    value = b.op("add", b.op("mul", result, b.const(2, float32)), b.load(x, place))
    backend = LaneBackend()
    xs = floats(40)
    outs = np.zeros(40, np.float32)
    kernel = b.kernel()
    buffers = [xs.view(np.uint8), outs.view(np.uint8)]
    frame = backend.begin_kernel(Header("f", kernel.params, 1), buffers)
    emitter = Emitter(hooks_of(backend), frame, LIMITS)
    sums = np.arange(lanes, dtype=np.float32)
    bindings = Bindings(
        {row: np.array([2]), column: np.array([5])}, column, {result: (sums, lanes > 1)}
    )
    got = emitter.value(value, bindings, lanes)
    np.testing.assert_array_equal(got, sums * 2 + xs[25 : 25 + lanes])
    emitter.store(Store(out, place, value), bindings, lanes)
    np.testing.assert_array_equal(outs[25 : 25 + lanes], got)
    assert not outs[:25].any()
    assert not outs[25 + lanes :].any()
    assert list(bindings.values) == [result]  # a later call may stand in another block


def test_a_uniform_fragment_is_spread_over_the_lanes() -> None:
    b = Builder()
    x = b.param("x", float32, 3)
    value = b.load(x, 1)
    backend = LaneBackend()
    frame = backend.begin_kernel(Header("f", b.kernel().params, 1), [floats(3).view(np.uint8)])
    got = Emitter(hooks_of(backend), frame, LIMITS).value(value, Bindings({}), 4)
    assert got.shape == (4,)


def test_a_chain_of_ten_thousand_instructions_is_no_recursion() -> None:
    b = Builder()
    x = b.param("x", int32, 1)
    value = b.load(x, 0)
    for _ in range(10_000):
        value = b.op("xor", value, value)
    backend = LaneBackend()
    frame = backend.begin_kernel(
        Header("f", b.kernel().params, 1), [np.array([5], np.int32).view(np.uint8)]
    )
    assert Emitter(hooks_of(backend), frame, LIMITS).value(value, Bindings({}), 1).tolist() == [0]


# ---- what a backend of style eager asks --------------------------------------------------------


def test_a_running_sum_is_ordered_and_a_sum_is_not() -> None:
    b = Builder()
    out, x = b.param("o", float32, 5, "out"), b.param("x", float32, 5)
    acc = b.acc("add", float32)
    with b.loop(5) as r:
        b.update(acc, b.load(x, r))
        b.store(out, r, b.result(acc, used=[r]))
    (loop,) = (s for s in b.body if isinstance(s, Loop))
    assert is_ordered(loop)
    loop.body.pop()
    loop.body.pop()
    assert not is_ordered(loop)


@pytest.mark.parametrize(("offset", "ordered"), [(0, False), (1, True), (8, False)])
def test_a_loop_that_reads_what_another_iteration_wrote_is_ordered(
    offset: int, ordered: bool
) -> None:
    b = Builder()
    x = b.param("x", float32, 16, "inout")
    with b.loop(8) as i:
        b.store(x, i, b.load(x, i + offset))
    (loop,) = (s for s in b.body if isinstance(s, Loop))
    assert is_ordered(loop) is ordered


def test_a_grid_loop_is_never_ordered() -> None:
    b = Builder()
    x = b.param("x", float32, 16, "inout")
    with b.loop(8, "grid") as i:
        b.store(x, i * 2, b.load(x, i * 2))
    (loop,) = (s for s in b.body if isinstance(s, Loop))
    assert not is_ordered(loop)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(-12, 12)), min_size=1, max_size=3))
def test_an_injective_index_never_repeats(terms: list[tuple[int, int]]) -> None:
    loops = [Var(f"v{n}", extent) for n, (extent, _) in enumerate(terms)]
    index = constant(0)
    for var, (_, c) in zip(loops, terms, strict=True):
        index = index + variable(var) * c
    values = [0]
    for extent, c in terms:
        values = [v + c * k for v in values for k in range(extent)]
    if is_injective(index, loops):
        assert len(set(values)) == len(values)
    if len(loops) == 1:
        assert is_injective(index, loops) == (len(set(values)) == len(values))
