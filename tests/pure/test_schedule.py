"""What is fused with what, and how the kernels look: no device is needed."""

import math
from pathlib import Path
from typing import Any

import pytest
from programs import convolution, layer_norm, matmul, relu, softmax, source, spread

from coregrad import dtypes
from coregrad.ir import build, ops, split
from coregrad.ir.autodiff import gradients
from coregrad.ir.graph import Node, toposort
from coregrad.ir.kernel import Instr, Loop, walk
from coregrad.ir.schedule import Scheduler, Task, schedule
from coregrad.ir.target import Limits
from coregrad.ir.verify import verify_kernel

GOLDEN = Path(__file__).parent.parent / "golden" / "kernels"
VECTORS = Limits(frozenset(dtypes.ALL), vector_bytes=64)
SCALARS = Limits(frozenset(dtypes.ALL))


def tasks(*roots: Node, limits: Limits = VECTORS, fusion: bool = True) -> list[Task]:
    return schedule(split.split(roots), limits, {}, fusion)


def weighted(x: Node) -> Node:
    return relu(build.add(build.mul(x, build.const_like(x, 2)), build.const_like(x, 1)))


PROGRAMS = {
    "chain": lambda: [weighted(source("x", 64, 32))],
    "softmax": lambda: [softmax(source("x", 64, 48))],
    "layer_norm": lambda: [layer_norm(source("x", 64, 48))],
    "matmul": lambda: [matmul(source("a", 32, 16), source("b", 16, 48))],
    "convolution": lambda: [
        relu(convolution(source("x", 4, 3, 12, 12), source("w", 8, 3, 3, 3), 1))
    ],
    "bias": lambda: [
        build.add(source("x", 8, 4, 6, 6), spread(source("b", 4), (8, 4, 6, 6), (0, 2, 3)))
    ],
    "column_sum": lambda: [build.reduce("add", source("x", 100, 256), (0,))],
    "max_pool": lambda: [
        build.reduce(
            "max", build.window(build.window(source("x", 2, 3, 8, 8), 2, 2, 2), 3, 2, 2), (4, 5)
        )
    ],
    "argmax": lambda: [build.reduce("argmax", source("x", 16, 100), (1,))],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_one_kernel_with_the_text_of_its_golden_file(
    name: str, request: pytest.FixtureRequest
) -> None:
    made = tasks(*PROGRAMS[name]())
    assert len(made) == 1
    text = str(made[0].kernel) + "\n"
    path = GOLDEN / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", ["chain", "softmax", "layer_norm"])
def test_without_fusion_there_are_more_kernels(name: str) -> None:
    roots = PROGRAMS[name]()
    assert len(tasks(*roots, fusion=False)) > len(tasks(*roots))


def test_matmul_spelt_with_reshape_mul_and_sum_is_the_same_kernel() -> None:
    a, b = source("a", 32, 16), source("b", 16, 48)
    left = build.expand(build.reshape(a, (32, 1, 16)), (32, 48, 16))
    right = build.expand(build.reshape(build.permute(b, (1, 0)), (1, 48, 16)), (32, 48, 16))
    spelt = build.reduce("add", build.mul(left, right), (2,))
    assert str(tasks(spelt)[0].kernel) == str(tasks(matmul(a, b))[0].kernel)


def test_matmul_is_a_contraction_with_its_epilogue_and_prologue_inside() -> None:
    a, b = source("a", 32, 16), source("b", 16, 48)
    (task,) = tasks(weighted(matmul(relu(a), b)))
    whole = task.kernel.contraction
    assert whole is not None
    assert [v.extent for v in whole.m] == [32]
    assert [v.extent for v in whole.n] == [48]
    assert [v.extent for v in whole.k] == [16]
    assert {whole.a.op.name, whole.b.op.name} == {"max", "load"}


@pytest.mark.parametrize("limits", [VECTORS, SCALARS])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_the_operands_of_a_product_count_once_for_each_of_their_elements(
    limits: Limits, batch: tuple[int, ...]
) -> None:
    m, k, n = 20, 30, 70
    products, size = math.prod(batch), (*batch, m, k)
    a, b = source("a", *size), source("b", *batch, k, n)
    left = build.mul(build.exp(a), build.const_like(a, 3))  # two operations
    (plain,) = tasks(matmul(a, b), limits=limits)
    (task,) = tasks(build.exp(matmul(left, build.exp(b))), limits=limits)
    assert plain.kernel.contraction is not None
    assert task.kernel.contraction is not None
    assert plain.kernel.work == products * 2 * m * n * k
    assert task.kernel.work == products * (2 * m * n * k + 2 * m * k + k * n + m * n)


def test_other_sums_count_what_their_loops_carry_out() -> None:
    a = source("a", 20, 30)
    (task,) = tasks(build.reduce("add", build.exp(a), (1,)))
    assert task.kernel.contraction is None
    assert task.kernel.work == 2 * 20 * 30


def test_the_gradient_of_a_padded_convolution_is_a_contraction() -> None:
    x, w = source("x", 2, 3, 9, 9), source("w", 4, 3, 3, 3)
    grad = source("g", 2, 4, 9, 9)
    whole = (2, 4, 3, 9, 9, 3, 3)
    taps = build.mul(spread(grad, whole, (2, 5, 6)), spread(w, whole, (0, 3, 4)))
    summed = build.reduce("add", taps, (1,))
    high = build.fold(build.permute(summed, (0, 1, 2, 3, 4, 5)), 3, 11)
    low = build.fold(high, 2, 11)
    (task,) = tasks(build.shrink(low, ((0, 2), (0, 3), (1, 10), (1, 10))))
    assert task.kernel.contraction is not None
    assert x.shape == task.outputs[0].shape


def test_heads_that_stand_beside_each_other_in_the_result_are_a_batch_of_products() -> None:
    scores, values = source("s", 12, 128, 128), source("v", 12, 128, 64)
    heads = build.permute(matmul(scores, values), (1, 0, 2))
    (task,) = tasks(weighted(build.reshape(heads, (128, 768))))
    whole = task.kernel.contraction
    assert whole is not None
    sizes = [[v.extent for v in some] for some in (whole.batch, whole.m, whole.n, whole.k)]
    assert sizes == [[12], [128], [64], [128]]


def test_parts_of_one_length_are_chosen_between_once_for_each() -> None:
    (task,) = tasks(build.cat([source(name, 8, 256) for name in "abc"], 1))
    inner = [s for s in walk(task.kernel.body) if isinstance(s, Loop)][-1]
    assert inner.var.extent == 256
    assert not any(isinstance(s, Instr) and s.op is ops.LT for s in inner.body)


def most_at_once(made: list[Task]) -> int:
    """The most elements of computed values that are alive at a time; results stay to the end."""
    last = {node: i for i, task in enumerate(made) for node in task.sources}
    alive: set[Node] = set()
    most = 0
    for i, task in enumerate(made):
        alive |= set(task.outputs)
        most = max(most, sum(math.prod(node.shape) for node in alive))
        alive -= {node for node in task.sources if last[node] == i}
    return most


def test_the_gradient_of_a_weight_runs_where_it_lets_go_of_what_its_layer_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers, rows, width = 6, 512, 16
    weights = [source(f"w{i}", width, width) for i in range(layers)]
    x = source("x", rows, width)
    for w in weights:
        x = relu(matmul(x, w))
    slopes = gradients(x, build.const_like(x, 1), weights)
    roots = [slopes[w] for w in weights]
    early = tasks(*roots)
    monkeypatch.setattr("coregrad.ir.schedule._early", lambda made, kept: list(made))
    assert most_at_once(early) <= (layers + 2) * rows * width
    assert most_at_once(tasks(*roots)) > (layers + 4) * rows * width


def test_a_product_does_not_find_errors() -> None:
    table, index = source("t", 100, 32), build.buffer("i", dtypes.int64, (64,))
    rows = build.gather(table, build.check(index, 100, "here"))
    product = matmul(build.mul(rows, rows), source("w", 32, 48))
    check = next(n for n in toposort([product]) if n.op is ops.CHECK)
    made = schedule(split.split([product]), VECTORS, {check: 1})
    assert [task.kernel.contraction is not None for task in made] == [False, True]


def test_what_varies_by_row_only_makes_no_value_dear() -> None:
    """Both kernels normalise; no normalised value is stored between them."""
    x, scale = source("x", 64, 256), source("s", 64, 1)
    per_row = build.div(build.exp(build.sin(build.exp(scale))), scale)
    normal = build.mul(x, build.expand(per_row, x.shape))
    total = build.reduce("add", build.exp(normal), (0,))
    made = tasks(build.add(normal, source("y", 64, 256)), build.sqrt(total))
    assert all(normal not in task.outputs for task in made)


def test_a_product_computes_no_mean_that_its_operand_is_made_of() -> None:
    x, w = source("x", 128, 768), source("w", 768, 96)
    made = tasks(matmul(layer_norm(x), w))
    assert made[-1].kernel.contraction is not None
    rows = sum(task.kernel.contraction is None for task in made)
    assert rows == len(made) - 1


def test_mean_and_variance_of_the_columns_share_kernels() -> None:
    x = source("x", 64, 128)
    total = build.reduce("add", x, (0,))
    squares = build.reduce("add", build.mul(x, x), (0,))
    (task,) = tasks(total, squares)
    loops = [s for s in walk(task.kernel.body) if isinstance(s, Loop)]
    assert len(task.outputs) == 2
    assert len(loops) == 2  # one over columns, one over rows with two accumulators


def test_an_optimiser_step_is_one_kernel_with_three_outputs() -> None:
    p, g, m, v = (source(n, 30, 20) for n in "pgmv")
    m1 = build.add(build.mul(m, build.const_like(m, 0.9)), g)
    v1 = build.add(build.mul(v, build.const_like(v, 0.9)), build.mul(g, g))
    p1 = build.sub(p, build.div(m1, build.sqrt(v1)))
    (task,) = tasks(p1, m1, v1)
    assert set(task.outputs) == {p1, m1, v1}


def test_a_large_sum_has_two_kernels_with_blocks_set_by_size() -> None:
    first, last = tasks(build.reduce("add", source("x", 1 << 20), (0,)))
    assert first.kernel.grid >= 64
    assert last.sources == first.outputs


@pytest.mark.parametrize(
    ("shape", "blocks", "lanes"),
    [((768, 3072), 16, 128), ((4096, 4096), 256, 64), ((768, 512), 16, 128)],
)
def test_rows_in_a_cache_are_added_up_more_at_a_time_and_in_longer_pieces(
    shape: tuple[int, int], blocks: int, lanes: int
) -> None:
    first, second, *_ = tasks(build.reduce("add", source("x", *shape), (0,)))
    widths = [s.lanes for s in walk(first.kernel.body) if isinstance(s, Loop)]
    assert (first.kernel.grid, max(widths)) == (blocks, lanes)
    assert second.sources == first.outputs


def test_a_costly_value_that_a_window_repeats_gets_a_buffer() -> None:
    x, w = source("x", 4, 3, 32, 32), source("w", 8, 3, 5, 5)
    heavy = build.exp(build.div(x, build.const_like(x, 3)))
    assert next(t.outputs for t in tasks(convolution(heavy, w))) == [heavy]


def test_repeated_doubling_does_not_blow_up() -> None:
    x = source("x", 4096)
    for step in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048):
        shifted = build.pad(build.shrink(x, ((0, 4096 - step),)), ((step, 0),))
        x = build.add(x, shifted)
    made = tasks(x)
    assert 3 <= len(made) <= 12
    assert sum(len(list(walk(t.kernel.body))) for t in made) < 1000


def test_a_long_chain_is_cut_into_kernels_of_bounded_size() -> None:
    x = source("x", 8)
    for i in range(2000):
        x = build.add(x, build.const(float(i), dtypes.float32, (8,)))
    made = tasks(x)
    assert 10 < len(made) < 30
    assert max(len(list(walk(t.kernel.body))) for t in made) < 500


def test_a_kernel_keeps_to_the_devices_number_of_buffers() -> None:
    total = source("x0", 64)
    for i in range(1, 40):
        total = build.add(total, source(f"x{i}", 64))
    made = tasks(total, limits=Limits(frozenset(dtypes.ALL), max_buffers=8))
    assert all(len(t.kernel.params) <= 8 for t in made)


def test_a_device_without_lanes_gets_none() -> None:
    for name in PROGRAMS:
        for task in tasks(*PROGRAMS[name](), limits=SCALARS):
            assert all(s.lanes == 1 for s in walk(task.kernel.body) if isinstance(s, Loop))


def added_to_columns(width: int) -> Node:
    """Values added into rows of ``width`` columns, each into its own, at places one array gives."""
    rows = build.mul(
        places := source("i", 40, width, dtype=dtypes.int64), build.const_like(places, width)
    )
    column = spread(build.iota(width, dtypes.int64), (40, width), (0,))
    where = build.reshape(build.add(rows, column), (40 * width,))
    value = build.reshape(source("v", 40, width), (40 * width,))
    return build.scatter(source("x", 9 * width), where, value, "add")


def test_a_scatters_columns_are_shared_out_in_lines_and_its_rows_keep_their_order() -> None:
    for limits, width, wanted in (
        (VECTORS, 64, [("i0", 4, "grid"), ("s", 40, "serial"), ("i1", 16, "serial")]),
        (VECTORS, 512, [("i0", 4, "grid"), ("s", 40, "serial"), ("i1", 128, "serial")]),
        (VECTORS, 31, [("s", 40 * 31, "serial")]),
        (SCALARS, 64, [("i0", 64, "grid"), ("s", 40, "serial")]),
        (SCALARS, 1, [("s", 40, "serial")]),
    ):
        *_, made = tasks(added_to_columns(width), limits=limits)
        verify_kernel(made.kernel)
        loops = [s for s in walk(made.kernel.body) if isinstance(s, Loop)]
        assert [(s.var.name, s.var.extent, s.kind) for s in loops] == wanted


def test_rows_whose_index_is_checked_are_added_in_lanes_too() -> None:
    index = build.check(source("i", 40, dtype=dtypes.int64), 9, "here")
    node = build.scatter(source("x", 9, 64), index, source("v", 40, 64), "add")
    *_, task = schedule(split.split([node]), VECTORS, {index: 1})
    verify_kernel(task.kernel)
    assert any(p.role == "error" for p in task.kernel.params)
    outer = next(s for s in task.kernel.body if isinstance(s, Loop))
    assert (outer.var.extent, outer.lanes) == (64, 16)


def test_places_that_may_meet_are_taken_one_after_the_other() -> None:
    near = source("i", 40 * 64, dtype=dtypes.int64)
    column = build.reshape(spread(build.iota(64, dtypes.int64), (40, 64), (0,)), (40 * 64,))
    for where in (build.add(near, column), build.add(build.add(near, near), column), near):
        scatter = build.scatter(source("x", 999), where, source("v", 40 * 64), "add")
        *_, made = tasks(scatter, limits=SCALARS)
        loops = [s for s in walk(made.kernel.body) if isinstance(s, Loop)]
        assert [(s.var.name, s.var.extent) for s in loops] == [("s", 40 * 64)]


def test_reductions_that_need_each_other_crosswise_do_not_share_a_loop() -> None:
    x, y = source("x", 8, 16), source("y", 8, 16)
    top = build.reduce("max", x, (1,))
    total = build.reduce("add", y, (1,))
    after_top = build.reduce("add", build.exp(build.sub(x, spread(top, x.shape, (1,)))), (1,))
    after_total = build.reduce("max", build.mul(y, spread(total, y.shape, (1,))), (1,))
    (task,) = tasks(build.add(after_top, after_total))
    verify_kernel(task.kernel)


def recurrent(steps: int) -> Node:
    """A cell's states, each made from the one before and read by two kernels."""
    weights, state, memory = source("w", 16, 16), source("h", 4, 16), source("c", 4, 16)
    states = []
    for _ in range(steps):
        gate = build.exp(build.exp(matmul(state, weights)))
        memory = build.add(build.mul(gate, memory), build.exp(gate))
        state = build.mul(gate, build.exp(build.exp(memory)))
        states.append(build.reshape(state, (1, 4, 16)))
    return build.cat(states, 0)


def test_the_work_of_scheduling_a_recurrent_network_grows_with_its_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evaluate = Scheduler._evaluate
    seen: list[int] = []

    def counted(self: Scheduler, *args: Any) -> Any:
        found = evaluate(self, *args)
        seen.append(len(found.instrs))
        return found

    monkeypatch.setattr(Scheduler, "_evaluate", counted)
    kernels = len(tasks(recurrent(10)))
    instructions = sum(seen)
    seen.clear()
    assert len(tasks(recurrent(40))) <= 4.5 * kernels
    assert sum(seen) <= 4.5 * instructions
