"""What is known of one group of outputs serves others like it: no device is needed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import layer_norm, matmul, relu, softmax, source

from coregrad import dtypes
from coregrad.ir import build, outline, split
from coregrad.ir.graph import Node
from coregrad.ir.schedule import Task, schedule
from coregrad.ir.target import Limits

LIMITS = Limits(frozenset(dtypes.ALL), vector_bytes=64)
Step = Callable[[Node, Node], Node]


def tasks(*roots: Node) -> list[Task]:
    return schedule(split.split(roots), LIMITS, {})


def alone(monkeypatch: pytest.MonkeyPatch, roots: list[Node]) -> list[Task]:
    """The tasks if nothing is ever known."""
    with monkeypatch.context() as patch:
        patch.setattr(outline.Outline, "found", lambda self: None)
        patch.setattr(outline.Outline, "kernel", lambda self: None)
        return tasks(*roots)


STEPS: dict[str, Step] = {
    "product": lambda h, w: relu(matmul(h, w)),
    "softmax": lambda h, w: matmul(softmax(h), w),
    "norm": lambda h, w: build.add(layer_norm(h), w),
    "turned": lambda h, w: build.mul(build.permute(h, (1, 0)), build.exp(w)),
    "twice": lambda h, w: build.add(matmul(h, w), matmul(w, h)),
}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=2, max_size=6), st.booleans())
def test_kernels_and_what_they_read_are_the_same_as_if_nothing_were_known(
    names: list[str], one_weight: bool
) -> None:
    h = source("x", 16, 16)
    outputs = []
    for number, name in enumerate(names):
        h = build.contiguous(STEPS[name](h, source("w" if one_weight else f"w{number}", 16, 16)))
        outputs.append(h)
    with pytest.MonkeyPatch.context() as patch:
        wanted = alone(patch, outputs)
    made = tasks(*outputs)
    assert [t.outputs for t in made] == [t.outputs for t in wanted]
    assert [t.sources for t in made] == [t.sources for t in wanted]
    assert [str(t.kernel) for t in made] == [str(t.kernel) for t in wanted]


def test_alike_steps_are_evaluated_once() -> None:
    h = source("x", 16, 16)
    outputs = []
    for number in range(6):
        h = build.contiguous(relu(matmul(h, source(f"w{number}", 16, 16))))
        outputs.append(h)
    made = tasks(*outputs)
    assert len(made) == 6
    assert len({task.kernel for task in made}) == 1
    assert [task.sources[0] for task in made[1:]] == outputs[:-1]


@pytest.mark.parametrize("other", [2.0, -0.0, 0.0])
def test_constants_are_part_of_the_outline(other: float) -> None:
    def times(x: Node, number: float) -> Node:
        return build.contiguous(build.mul(build.exp(x), build.const_like(x, number)))

    first, second = times(source("a", 64), 3.0), times(source("b", 32, 2), other)
    third = times(source("c", 64), other)
    texts = [str(task.kernel) for task in tasks(first, second, third)]
    assert len(set(texts)) > 1


def test_which_argument_stands_where_is_part_of_the_outline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = source("a", 16, 16), source("b", 16, 16)
    roots = [build.contiguous(matmul(x, y)) for x, y in ((a, b), (a, a), (b, a))]
    made, wanted = tasks(*roots), alone(monkeypatch, roots)
    assert [(t.outputs, t.sources) for t in made] == [(t.outputs, t.sources) for t in wanted]
    assert [str(t.kernel) for t in made] == [str(t.kernel) for t in wanted]
