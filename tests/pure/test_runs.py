"""Which nodes lie inside the buffers of others: no device is needed."""

from __future__ import annotations

import pytest
from programs import source

from coregrad import dtypes
from coregrad.ir import build, ops, split
from coregrad.ir.graph import Node, toposort
from coregrad.ir.runs import Places, Run, Runs
from coregrad.ir.schedule import schedule
from coregrad.ir.target import Limits

LIMITS = Limits(frozenset(dtypes.ALL), vector_bytes=64)
STEPS = 6
ROW = (1, 16)  # 64 bytes


def found(*roots: Node) -> tuple[list[Node], Places]:
    runs = Runs()
    targets = split.split(roots, runs=runs)
    return targets, runs.places()


def stored(targets: list[Node], places: Places) -> list[Node]:
    """What kernels store, in order."""
    made = schedule(targets, LIMITS, {}, places=places)
    return [output for task in made for output in task.outputs]


def chain(shape: tuple[int, ...] = ROW, steps: int = STEPS) -> list[Node]:
    """Values that are each computed from the one before."""
    out = []
    state = source("x", *shape)
    for _ in range(steps):
        state = build.contiguous(build.exp(state))
        out.append(state)
    return out


def user(node: Node) -> Node:
    """Something that is computed from all of a node."""
    return build.reduce("max", node, tuple(range(len(node.shape))))


def test_parts_are_computed_in_the_whole_and_no_kernel_copies_them() -> None:
    targets, places = found(user(build.cat(chain(), 0)))
    made = stored(targets, places)
    assert len(made) == STEPS + 1
    (run,) = {run for run, _ in places.within.values()}
    assert isinstance(run, Run)
    starts = [places.within[node][1] for node in made[:-1]]
    assert starts == [16 * i for i in range(STEPS)]


def test_a_kernel_that_reads_the_whole_runs_after_those_of_all_parts() -> None:
    made = stored(*found(user(build.cat(chain()[::-1], 0))))
    assert made[-1].op is ops.REDUCE


def test_all_states_and_all_but_the_last_share_one_run() -> None:
    states = chain()
    targets, places = found(user(build.cat(states, 0)), user(build.cat(states[:-1], 0)))
    assert len(stored(targets, places)) == STEPS + 2
    assert len({run for run, _ in places.within.values()}) == 1


def test_a_run_grows_at_both_ends() -> None:
    states = chain(steps=9)
    cats = [build.cat(states[low : low + 5], 0) for low in (2, 4, 0)]
    targets, places = found(*map(user, cats))
    assert len(stored(targets, places)) == 9 + 3
    (run,) = {run for run, _ in places.within.values()}
    assert isinstance(run, Run)
    assert run.nodes == stored(targets, places)[:9]


@pytest.mark.parametrize(
    "second",
    [
        lambda states: states[::-1],
        lambda states: [states[-1], *states[:-1]],
        lambda states: [*states[:3], *states[4:], states[3]],
        lambda states: [states[2], *states[3:], *states[:2]],
    ],
)
def test_an_order_that_contradicts_the_first_one_is_copied(second: object) -> None:
    states = chain()
    other = build.cat(second(states), 0)  # type: ignore[operator]
    targets, places = found(user(build.cat(states, 0)), user(other))
    wholes = [node for node in places.made_by if node.op is ops.CAT]
    assert len(wholes) == 1
    assert len(stored(targets, places)) > STEPS + 2


def test_a_part_that_stands_twice_is_copied_once() -> None:
    states = chain()
    targets, places = found(user(build.cat([*states, states[0]], 0)))
    assert len(stored(targets, places)) == STEPS + 2


def test_a_result_has_a_buffer_of_its_own() -> None:
    states = chain()
    targets, places = found(user(build.cat(states, 0)), states[2])
    assert targets[1] not in places.within
    assert len(stored(targets, places)) == STEPS + 2


def test_a_result_that_is_part_of_a_longer_run_is_copied() -> None:
    states = chain()
    targets, places = found(user(build.cat(states, 0)), build.cat(states[:-1], 0))
    assert targets[1] not in places.within
    targets, places = found(user(build.cat(states, 0)), build.cat(states, 0))
    assert targets[1] in places.within


@pytest.mark.parametrize("shape", [(1, 3), (1, 15)])
def test_parts_that_would_begin_anywhere_are_copied(shape: tuple[int, ...]) -> None:
    assert not found(user(build.cat(chain(shape), 0)))[1].within


def test_parts_side_by_side_along_a_later_axis_are_copied() -> None:
    assert not found(user(build.cat(chain((2, 16)), 1)))[1].within
    assert found(user(build.cat(chain((1, 16)), 1)))[1].within


def test_parts_that_have_buffers_already_are_copied() -> None:
    leaves = [source(f"x{i}", *ROW) for i in range(STEPS)]
    assert not found(user(build.cat(leaves, 0)))[1].within


def rows(x: Node, count: int = STEPS) -> list[Node]:
    """The contiguous rows of a matrix."""
    width = x.shape[1]
    return [build.contiguous(build.shrink(x, ((i, i + 1), (0, width)))) for i in range(count)]


def test_contiguous_rows_of_a_buffer_are_read_where_they_are() -> None:
    x = source("x", STEPS, 16)
    targets, places = found(*(user(build.exp(row)) for row in rows(x)))
    assert len(stored(targets, places)) == STEPS
    assert sorted(start for _, start in places.within.values()) == [16 * i for i in range(STEPS)]
    assert {owner for owner, _ in places.within.values()} == {x}


def test_what_rows_are_taken_of_is_computed_once() -> None:
    x = build.exp(source("x", STEPS, 16))
    targets, places = found(*(user(row) for row in rows(x)))
    made = stored(targets, places)
    assert len(made) == STEPS + 1
    assert made[0] is x


def test_rows_that_are_results_or_few_or_not_aligned_are_copied() -> None:
    x = source("x", STEPS, 16)
    assert not found(*rows(x))[1].within
    assert not found(*(user(row) for row in rows(x, 4)))[1].within
    narrow = source("y", STEPS, 3)
    starts = [start for _, start in found(*map(user, rows(narrow)))[1].within.values()]
    assert not starts


def test_columns_are_copied() -> None:
    x = source("x", 16, STEPS)
    columns = [build.contiguous(build.shrink(x, ((0, 16), (i, i + 1)))) for i in range(STEPS)]
    assert not found(*map(user, columns))[1].within


def test_rows_of_a_whole_lie_in_its_run() -> None:
    whole = build.contiguous(build.reshape(build.cat(chain(), 0), (STEPS * 16,)))
    made = [build.contiguous(build.shrink(whole, ((16 * i, 16 * i + 16),))) for i in range(STEPS)]
    targets, places = found(*(user(build.exp(row)) for row in made))
    assert not [n for n in toposort(targets) if n.op is ops.CAT and n not in places.within]


def test_what_a_scatter_writes_over_is_no_part() -> None:
    index = source("i", 1, dtype=dtypes.int32)
    parts = [
        build.scatter(build.exp(source(f"x{i}", *ROW)), index, source("v", *ROW), "add")
        for i in range(STEPS)
    ]
    assert not found(user(build.cat(parts, 0)))[1].within
