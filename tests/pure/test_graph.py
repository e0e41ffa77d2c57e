"""Nodes: interned where they are pure, walked without recursion, printed line by line."""

from __future__ import annotations

import gc
import math
import weakref

import pytest

from coregrad.dtypes import float32, float64, int64
from coregrad.ir import build, graph, ops
from coregrad.ir.graph import Node, show, toposort


def buffer(name: str) -> Node:
    return build.buffer(name, float32, (2,))


def test_the_same_op_on_the_same_sources_is_the_same_node() -> None:
    x = buffer("x")
    assert build.exp(x) is build.exp(x)
    assert build.add(x, build.exp(x)) is build.add(x, build.exp(x))
    assert build.add(x, build.exp(x)) is not build.add(build.exp(x), x)


def test_constants_are_told_apart_by_dtype_bits_and_shape() -> None:
    made = [
        build.const(0.0, float32),
        build.const(-0.0, float32),
        build.const(0.0, float64),
        build.const(0, int64),
        build.const(0.0, float32, (1,)),
        build.const(1.0, float32),
    ]
    assert len(set(made)) == len(made)
    assert build.const(0, float32) is build.const(0.0, float32)
    assert build.const(math.nan, float32) is build.const(math.nan, float32)


def test_what_has_an_identity_of_its_own_is_told_apart_by_it() -> None:
    x = build.const(0.0, float32, (2,))
    first, second = object(), object()
    assert build.leaf(x, first) is not build.leaf(x, second)
    assert build.leaf(x, first) is build.leaf(x, first)
    assert build.buffer(first, float32, (2,)) is not build.buffer(second, float32, (2,))
    assert build.custom(x, (x,), first) is not build.custom(x, (x,), second)


class Alike:
    """Equal to all of its kind."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike)

    def __hash__(self) -> int:
        return 1


def test_memory_and_leaves_are_told_apart_by_identity_where_they_are_equal() -> None:
    x = build.const(0.0, float32, (2,))
    first, second = Alike(), Alike()
    assert build.buffer(first, float32, (2,)) is not build.buffer(second, float32, (2,))
    assert build.leaf(x, first) is not build.leaf(x, second)
    assert build.buffer(first, float32, (2,)) is build.buffer(first, float32, (2,))


class Memory:
    """What a buffer node stands for."""


def test_the_table_of_nodes_keeps_nothing_alive() -> None:
    memory = Memory()
    x = build.buffer(memory, float32, (3,))
    y = build.exp(x)
    kept = weakref.ref(memory), weakref.ref(x), weakref.ref(y)
    del memory, x, y
    gc.collect()
    assert [r() for r in kept] == [None, None, None]


def test_the_table_of_nodes_does_not_grow_with_what_is_gone() -> None:
    x = buffer("x")
    before = graph.alive()
    for i in range(50_000):
        build.add(x, build.const(float(i), float32, x.shape))
    assert len(graph._interned) < 2 * before + 10_000


def test_a_sweep_bears_nodes_that_go_while_it_runs() -> None:
    before = graph.alive()
    for i in range(30_000):
        buffer(f"gone {i}")  # in cycles, so that only the collector frees them
        cycle: list[object] = [build.leaf(buffer("x"), object())]
        cycle.append(cycle)
        build.add(buffer("y"), build.const(float(i), float32, buffer("y").shape))
    gc.collect()
    assert graph.alive() <= before + 8


def test_toposort_gives_sources_first_and_each_node_once() -> None:
    x, y = buffer("x"), buffer("y")
    total = build.add(build.mul(x, y), build.mul(x, x))
    other = build.exp(x)
    order = toposort([total, other, total])
    assert len(order) == len(set(order)) == 6
    for node in order:
        assert all(order.index(source) < order.index(node) for source in node.src)


def test_toposort_can_be_told_where_to_stop() -> None:
    x = buffer("x")
    middle = build.exp(x)
    top = build.exp(middle)
    assert toposort([top], lambda n: () if n is middle else n.src) == [middle, top]


def test_a_chain_of_a_hundred_thousand_ops_is_built_walked_printed_and_freed() -> None:
    x = buffer("x")
    y = x
    for _ in range(100_000):
        y = build.sin(y)
    assert len(toposort([y])) == 100_001
    assert show([y]).count("\n") == 100_000
    del y
    gc.collect()


def test_the_text_of_a_graph_names_each_node_once() -> None:
    x = build.buffer("x", float32, (2, 3))
    y = build.reduce("add", build.mul(x, x), (1,))
    assert show([y]).splitlines() == [
        "%0: float32[2,3] = buffer(x)",
        "%1: float32[2,3] = mul(%0, %0)",
        "%2: float32[2] = reduce(%1, ('add', (1,)))",
    ]
    assert repr(y) == "<reduce float32[2]>"


def test_a_node_takes_no_attributes_of_strangers() -> None:
    with pytest.raises(AttributeError):
        buffer("x").colour = "red"  # type: ignore[attr-defined]


def test_the_table_of_ops_has_25_rows_of_contract() -> None:
    assert len(ops.CONTRACT_OPS) == 25
    assert not ops.CONTRACT_OPS.keys() & ops.GRAPH_OPS.keys()
    assert all(op.summary for op in ops.OPS.values())
