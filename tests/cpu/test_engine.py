"""realize on real devices: values against the NumPy interpreter, and what the engine keeps."""

from __future__ import annotations

import gc
import itertools
import weakref
from typing import Any

import numpy as np
import oracle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import convolution, layer_norm, matmul, relu, softmax, spread

from coregrad import Tensor, dtypes, engine, nn, planner, realize
from coregrad.dtypes import DType
from coregrad.errors import IndexRangeError
from coregrad.expression import Expression
from coregrad.ir import build, ops
from coregrad.ir.graph import Node


class Values:
    """Host arrays on a device, and what the interpreter needs to know of them."""

    def __init__(self, device: str, seed: int = 0):
        self.device = device
        self.rng = np.random.default_rng(seed)
        self.known: dict[Any, np.ndarray[Any, Any]] = {}

    def put(self, array: np.ndarray[Any, Any], dtype: DType) -> Node:
        node = engine.from_host(array.astype(dtype.storage), dtype, self.device)
        self.known[node.arg] = array.astype(dtype.storage)
        return node

    def normal(self, *shape: int, dtype: DType = dtypes.float32) -> Node:
        return self.put(self.rng.standard_normal(shape), dtype)

    def integers(self, low: int, high: int, *shape: int, dtype: DType = dtypes.int64) -> Node:
        return self.put(self.rng.integers(low, high, shape), dtype)

    def check(self, *roots: Node, exact: bool = False) -> int:
        """Compare with the interpreter; the number of kernels launched."""
        with Launched() as names:
            engine.realize(roots, self.device)
        wanted = oracle.evaluate(roots, self.known, wide=not exact)
        for root, want in zip(roots, wanted, strict=True):
            got = oracle.decode(engine.read(root, self.device), root.dtype)
            if exact or not root.dtype.is_float:
                np.testing.assert_array_equal(got, want)
            else:
                np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
        return len(names)


class Launched:
    """The names of the kernels launched inside the block."""

    def __enter__(self) -> list[str]:
        engine.launches = []
        return engine.launches

    def __exit__(self, *_: object) -> None:
        engine.launches = None


def test_softmax_and_layer_norm_are_one_launch_each(device: str) -> None:
    v = Values(device)
    assert v.check(softmax(v.normal(40, 65))) == 1
    assert v.check(layer_norm(v.normal(33, 100))) == 1


def test_a_costly_row_kept_in_scratch_memory_is_the_same_row(device: str) -> None:
    v = Values(device)
    for columns in (1, 15, 16, 17, 1000):
        v.check(softmax(v.normal(8, columns)))


def test_matmul_convolution_and_their_epilogues(device: str) -> None:
    v = Values(device)
    assert v.check(relu(matmul(v.normal(33, 20), v.normal(20, 47)))) == 1
    assert v.check(convolution(v.normal(3, 5, 9, 8), v.normal(7, 5, 3, 3), padding=1)) == 1
    assert v.check(convolution(v.normal(3, 5, 9, 8), v.normal(7, 5, 2, 3), stride=2)) == 1


def test_a_sum_of_a_million_and_of_a_prime_number_of_elements(device: str) -> None:
    v = Values(device)
    for size in (1 << 20, 100003):
        x = v.normal(size)
        engine.realize([total := build.reduce("add", x, (0,))], device)
        exact = v.known[x.arg].astype(np.float64).sum()
        assert abs(engine.read(total, device) - exact) < 1e-2


def test_sums_of_few_columns_do_not_lose_small_terms(device: str) -> None:
    x = engine.from_host(np.ones((1 << 18, 2), np.float16), dtypes.float16, device)
    engine.realize([mean := build.reduce("add", build.cast(x, dtypes.float32), (0,))], device)
    np.testing.assert_array_equal(engine.read(mean, device), [1 << 18, 1 << 18])


def test_fold_is_the_adjoint_for_every_stride_and_dilation(device: str) -> None:
    v = Values(device)
    for size, stride, dilation in itertools.product((1, 2, 3), (1, 2, 3), (1, 2)):
        length = 11
        count = (length - dilation * (size - 1) - 1) // stride + 1
        v.check(build.fold(v.normal(2, count, size), 1, length, stride, dilation))


@st.composite
def strided_folds(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[int, int, int, int]]]:
    """The shape of windows along two axes; and for each the length, stride, start and stop."""
    shape, cuts = [draw(st.integers(1, 3))], []
    for _ in range(2):
        taps, stride, count = (draw(st.integers(1, most)) for most in (5, 4, 5))
        length = (count - 1) * stride + taps + draw(st.integers(0, stride - 1))
        start = draw(st.integers(0, length - 1))
        cuts.append((length, stride, start, draw(st.integers(start + 1, length))))
        shape += [count, taps]
    return tuple(shape), cuts


@settings(deadline=None)
@given(strided_folds())
def test_strided_windows_added_back_with_their_borders_cut_off(
    made: tuple[tuple[int, ...], list[tuple[int, int, int, int]]],
) -> None:
    (batch, rows, high, columns, wide), cuts = made
    v = Values("cpu")
    x = v.normal(batch, rows, columns, high, wide)
    (height, down, top, bottom), (width, right, first, last) = cuts
    whole = build.fold(build.fold(x, 2, width, right), 1, height, down)
    kernel = v.normal(rows, high)  # a product, as in the gradient of a convolution
    spread_out = spread(kernel, x.shape, (0, 2, 4))
    product = build.fold(build.fold(build.mul(x, spread_out), 2, width, right), 1, height, down)
    ranges = ((0, batch), (top, bottom), (first, last))
    v.check(build.shrink(whole, ranges), build.shrink(product, ranges), whole)


def test_scatter_leaves_its_base_alone_and_adds_in_source_order(device: str) -> None:
    v = Values(device)
    base, index = v.normal(10, 3), v.integers(0, 10, 25)
    v.check(
        build.scatter(base, index, v.normal(25, 3), "add"),
        build.scatter(base, index, v.normal(25, 3), "set"),
        build.neg(base),
        exact=True,
    )


def test_scatter_into_a_vector(device: str) -> None:
    v = Values(device)
    base = build.const(0.0, dtypes.float32, (7,))
    v.check(build.scatter(base, v.integers(0, 7, 40), v.normal(40), "add"), exact=True)


def test_an_index_out_of_range_raises_and_computes_nothing(device: str) -> None:
    v = Values(device)
    table, wrong = v.normal(5, 4), v.put(np.array([0, 5]), dtypes.int64)
    out = build.gather(table, build.check(wrong, 5, "model.py:7"))
    for _ in range(2):  # also when the plan is known
        with pytest.raises(IndexRangeError, match=r"\[-5, 5\).*model\.py:7"):
            engine.realize([out], device)
    assert out.buffer is None
    right = v.put(np.array([-1, 4]), dtypes.int64)
    v.check(build.gather(table, build.sub(build.check(right, 5, "x"), build.const_like(right, 0))))


def test_a_long_chain_is_built_run_and_freed_in_linear_time(device: str) -> None:
    counts = []
    for length in (1000, 10000):
        x = engine.from_host(np.zeros(4, np.float32), dtypes.float32, device)
        for i in range(length):
            x = build.add(x, build.const(float(i % 7), dtypes.float32, (4,)))
        with Launched() as names:
            engine.realize([x], device)
        counts.append(len(names))
        assert engine.read(x, device)[0] == sum(float(i % 7) for i in range(length))
    assert counts[1] <= 11 * counts[0]


def test_the_second_expression_of_a_structure_is_not_compiled_again(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []
    original = planner.compile_expression
    monkeypatch.setattr(
        planner, "compile_expression", lambda *a, **k: (compiled.append(1), original(*a, **k))[1]
    )
    v = Values(device)
    for number in (0.3, 0.7, 0.9, 1.7):
        x = v.normal(6, 5)
        v.check(build.add(build.mul(x, build.const_like(x, number)), x), exact=True)
    assert len(compiled) == 2  # once with the number inside, once with it as an argument


def test_signed_zero_and_nan_constants_stay_what_they_are(device: str) -> None:
    v = Values(device)
    x = v.put(np.array([-0.0, 0.0, 1.0]), dtypes.float32)
    for number in (-0.0, 0.0, float("nan"), float("inf")):
        v.check(build.add(x, build.const_like(x, number)), exact=True)


def test_the_same_buffer_twice_is_not_two_buffers(device: str) -> None:
    v = Values(device)
    a, b = v.normal(9), v.normal(9)
    v.check(build.add(build.mul(a, a), a), exact=True)
    v.check(build.add(build.mul(a, b), a), exact=True)


def test_empty_tensors_need_no_kernel(device: str) -> None:
    v = Values(device)
    empty = v.normal(0, 3)
    assert v.check(build.exp(empty)) == 0
    v.check(build.reduce("add", empty, (0,)), build.cat([empty, v.normal(2, 3)], 0))


def test_a_cat_of_many_parts(device: str) -> None:
    v = Values(device)
    v.check(build.cat([v.normal(n, 2) for n in (1, 2, 3, 1, 4, 2, 1, 1, 1)], 0), exact=True)


class Waiting:
    def __init__(self, node: Node, device: str):
        self.node = self.unreported = node
        self.device = device


def test_a_watched_tensor_that_shares_work_is_computed_too(device: str) -> None:
    v = Values(device)
    total = build.reduce("add", v.normal(8, 8), (1,))
    beside = Waiting(build.neg(total), device)
    apart = Waiting(build.exp(v.normal(3)), device)
    engine.watch(beside)
    engine.watch(apart)
    engine.realize([build.exp(total)], device)
    assert beside.node.buffer is not None
    assert apart.node.buffer is None


def test_markers_over_a_value_share_its_buffer_and_detach_forgets_its_sources(device: str) -> None:
    v = Values(device)
    inner = build.exp(v.normal(4))
    marked = build.leaf(build.detach(inner), object())
    engine.realize([marked], device)
    assert marked.buffer is inner.buffer is not None
    assert marked.src[0].src == ()


def test_buffers_are_given_back_when_nobody_holds_them(device: str) -> None:
    v = Values(device)
    node = build.exp(v.normal(100))
    engine.realize([node], device)
    storage = weakref.ref(engine.resolve(node).arg)
    del node
    gc.collect()
    assert storage() is None


# ---- random programs ---------------------------------------------------------------------------

EXACT = (ops.ADD, ops.MUL, ops.MAX, ops.LT, ops.NE, ops.WHERE)


@st.composite
def programs(draw: st.DrawFn, values: Values) -> list[Node]:
    """One or two outputs of a random graph over small float32 arrays."""
    nodes = [
        values.normal(*draw(st.sampled_from([(4, 6), (6,), (3, 4, 6), (1, 6)]))) for _ in range(3)
    ]
    for _ in range(draw(st.integers(2, 14))):
        nodes.append(draw(steps(draw(st.sampled_from(nodes)), nodes)))
    return [nodes[-1], draw(st.sampled_from(nodes[3:]))]


@st.composite
def steps(draw: st.DrawFn, x: Node, nodes: list[Node]) -> Node:
    rank = len(x.shape)
    kind = draw(st.sampled_from(["binary", "unary", "movement", "reduce", "spread", "cat", "fold"]))
    if kind == "binary":
        same = [n for n in nodes if n.shape == x.shape]
        y = draw(st.sampled_from(same))
        make = draw(st.sampled_from([build.add, build.mul, build.maximum, build.sub, pick]))
        return make(x, y)
    if kind == "unary":
        return draw(st.sampled_from([build.neg, relu, negative_to_zero]))(x)
    if kind == "reduce" and rank:
        axes = draw(st.sets(st.integers(0, rank - 1), min_size=1))
        if 0 in x.shape:
            return x
        return build.reduce(draw(st.sampled_from(["add", "max"])), x, tuple(axes))
    if kind == "spread":
        axis = draw(st.integers(0, rank))
        shape = (*x.shape[:axis], draw(st.integers(1, 3)), *x.shape[axis:])
        return spread(x, shape, (axis,)) if rank < 4 else x
    if kind == "cat" and rank:
        return (
            build.cat([x, x], draw(st.integers(0, rank - 1)))
            if rank and oracle_size(x) < 500
            else x
        )
    if kind == "fold" and rank and x.shape[0] >= 2 and rank < 4:
        stride, size = draw(st.integers(1, 2)), draw(st.integers(1, 2))
        taps = build.window(x, 0, size, stride)
        return build.fold(taps, 0, x.shape[0], stride)
    return draw(moves(x))


@st.composite
def moves(draw: st.DrawFn, x: Node) -> Node:
    rank = len(x.shape)
    kind = draw(st.sampled_from(["permute", "flip", "pad", "shrink", "flatten", "window"]))
    if not rank or kind == "flatten":
        return build.reshape(x, (oracle_size(x),))
    axis = draw(st.integers(0, rank - 1))
    if kind == "permute":
        return build.permute(x, draw(st.permutations(range(rank))))
    if kind == "flip":
        return build.flip(x, (axis,))
    if kind == "pad":
        widths = [(0, 0)] * rank
        widths[axis] = (draw(st.integers(0, 2)), draw(st.integers(0, 2)))
        return (
            build.pad(x, widths, draw(st.sampled_from([0.0, 1.5]))) if oracle_size(x) < 500 else x
        )
    ranges = [(0, n) for n in x.shape]
    if kind == "shrink" and x.shape[axis] > 1:
        ranges[axis] = (draw(st.integers(0, 1)), x.shape[axis] - draw(st.integers(0, 1)))
        return build.shrink(x, ranges) if ranges[axis][0] < ranges[axis][1] else x
    if kind == "window" and x.shape[axis] >= 2 and rank < 4:
        return build.window(x, axis, 2, draw(st.integers(1, 2)))
    return x


def oracle_size(x: Node) -> int:
    return int(np.prod(x.shape))


def pick(a: Node, b: Node) -> Node:
    return build.where(build.lt(a, b), a, build.neg(b))


def negative_to_zero(x: Node) -> Node:
    return build.where(build.lt(x, build.const_like(x, 0)), build.const_like(x, 0), x)


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_random_programs_mean_what_the_interpreter_says(device: str, data: st.DataObject) -> None:
    values = Values(device, 1)
    roots = data.draw(programs(values))
    engine.realize(roots, device)
    for root, want in zip(roots, oracle.evaluate(roots, values.known, wide=True), strict=True):
        scale = max(1.0, float(np.abs(want).max(initial=0)))
        np.testing.assert_allclose(engine.read(root, device), want, rtol=1e-5, atol=2e-5 * scale)


def test_a_computed_detach_is_not_found_again_under_a_reused_identity(device: str) -> None:
    v = Values(device)
    x = v.normal(4)
    for i in range(200):  # nodes die and new ones take their addresses
        marked = build.detach(build.add(x, build.const(float(i), dtypes.float32, (4,))))
        engine.realize([marked], device)
        np.testing.assert_array_equal(engine.read(marked, device), v.known[x.arg] + np.float32(i))


def test_concatenations_of_two_and_of_three_parts_are_two_structures(device: str) -> None:
    v = Values(device)
    a, b, c = v.normal(2, 3), v.normal(2, 3), v.normal(1, 3)
    v.check(build.cat([a, b, c], 0), exact=True)
    v.check(build.cat([a, v.normal(3, 3)], 0), exact=True)
    v.check(build.cat([v.normal(3, 3), a], 0), exact=True)


def test_statistics_updated_in_place_are_computed_with_the_step_they_come_from(device: str) -> None:
    layer = nn.BatchNorm(3)
    x = Tensor(np.random.default_rng(0).standard_normal((8, 3, 4, 4)), device=device).float()
    layer.to(device)
    for _ in range(3):
        layer(x).sum().realize()
        with Launched() as names:
            layer.running_mean.numpy()
            layer.running_var.numpy()
        assert names == []


def test_tensors_that_are_updated_again_and_again_are_watched_once(device: str) -> None:
    weights = [Tensor(np.ones((4, 3), np.float32), device=device) for _ in range(5)]
    for _ in range(50):
        for w in weights:
            w.assign(w * 0.5 + 1.0)
        engine.realize([w.node for w in weights], device)
        assert len(engine._owners) <= 30


def test_a_constant_that_somebody_computed_is_still_a_constant_for_others(device: str) -> None:
    """Such nodes are shared by all: a kernel would load what it can have for nothing."""
    held = [Tensor(0.0, device=device), Tensor(1.5, device=device), Tensor.arange(7, device=device)]
    realize(*held)
    assert all(engine.resolve(t.node).op is ops.BUFFER for t in held)
    x = Tensor(np.linspace(-1, 1, 7, dtype=np.float32), device=device)
    y = x.maximum(0.0) * 1.5 + Tensor.arange(7, device=device)
    expression = Expression(device)
    expression.add([engine.resolve(y.node)])
    assert len(expression.leaves) == 1
    wanted = np.maximum(np.linspace(-1, 1, 7, dtype=np.float32), 0) * np.float32(1.5) + np.arange(7)
    np.testing.assert_array_equal(y.numpy(), wanted.astype(np.float32))
    assert [t.numpy().tolist() for t in held] == [0.0, 1.5, list(range(7))]
