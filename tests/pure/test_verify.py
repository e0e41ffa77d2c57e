"""Illegal programs: each breaks one rule, and the message names what breaks it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kernels import Builder

from coregrad.dtypes import bool_, float16, float32, float64, int32, int64, uint8
from coregrad.errors import VerifyError
from coregrad.ir import build, ops
from coregrad.ir.graph import Node, intern
from coregrad.ir.index import Var, variable
from coregrad.ir.kernel import (
    RESULT,
    Accumulator,
    Array,
    Declare,
    Instr,
    Kernel,
    Loop,
    Param,
    Store,
    Update,
)
from coregrad.ir.verify import verify_graph, verify_kernel

# ---- kernels -----------------------------------------------------------------------------------


def copy(n: int = 8, lanes: int = 1) -> tuple[Builder, Loop]:
    """``out[i] = x[i]``, and its loop, for a test to spoil."""
    b = Builder("copy")
    out, x = b.param("out", float32, n, "out"), b.param("x", float32, n)
    with b.loop(n, "grid", lanes) as i:
        b.store(out, i, b.load(x, i))
    (loop,) = (s for s in b.body if isinstance(s, Loop))
    return b, loop


def row_sum() -> tuple[Builder, Loop]:
    """``out[i] = sum(x[i])`` with all its statements in the grid loop."""
    b = Builder("row_sum")
    out, x = b.param("out", float32, 4, "out"), b.param("x", float32, 20)
    with b.loop(4, "grid") as i:
        acc = b.acc("add", float32)
        with b.loop(5, "serial", 4) as r:
            b.update(acc, b.load(x, i * 5 + r))
        b.store(out, i, b.result(acc, used=[i]))
    (loop,) = (s for s in b.body if isinstance(s, Loop))
    return b, loop


def refused(b: Builder | Kernel, message: str) -> None:
    kernel = b.kernel() if isinstance(b, Builder) else b
    with pytest.raises(VerifyError, match=message):
        verify_kernel(kernel)


def test_legal_kernels_pass() -> None:
    verify_kernel(copy()[0].kernel())
    verify_kernel(copy(lanes=4)[0].kernel())
    verify_kernel(row_sum()[0].kernel())


def test_a_value_is_defined_before_it_is_used() -> None:
    b, loop = copy()
    loop.body.reverse()
    refused(b, r"kernel copy: store out\[i1\]: its value <load float32> is not defined here")


def test_a_value_of_an_inner_block_is_unknown_outside() -> None:
    b, loop = copy()
    value = loop.body[0]
    out = b.param("scalar", float32, 1, "out")
    assert isinstance(value, Instr)
    b.store(out, 0, value)
    refused(b, r"store scalar\[0\]: its value .* is not defined here")


def test_a_value_depends_on_bound_variables_only() -> None:
    b, loop = copy()
    b.body.insert(0, loop.body.pop(0))
    refused(b, r"load x\[i1\]: depends on i1, not bound")


def test_a_value_says_all_variables_it_depends_on() -> None:
    b = Builder()
    x = b.param("x", float32, 4)
    with b.loop(4, "grid") as i:
        b.add(Instr(ops.LOAD, float32, (), (x, i), frozenset()))
    refused(b, "depends on more variables than it says")
    b = Builder()
    x = b.param("x", float32, 4)
    with b.loop(4, "grid") as i:
        b.add(Instr(ops.EXP, float32, (b.load(x, i),), None, frozenset()))
    refused(b, "<exp float32>: its operands depend on i1 too")


@pytest.mark.parametrize("offset", [-1, 1])
def test_an_access_without_a_gate_stays_inside(offset: int) -> None:
    b = Builder()
    out, x = b.param("out", float32, 4, "out"), b.param("x", float32, 4)
    with b.loop(4, "grid") as i:
        b.store(out, i, b.load(x, i + offset))
    refused(b, r"load x.*: index -?\d \.\. \d leaves its 4 elements")
    b = Builder()
    out, x = b.param("out", float32, 4, "out"), b.param("x", float32, 4)
    with b.loop(4, "grid") as i:
        b.store(out, i + offset, b.load(x, i))
    refused(b, r"store out.*: index -?\d \.\. \d leaves its 4 elements")


def test_a_gated_access_may_point_outside() -> None:
    b = Builder()
    out, x = b.param("out", float32, 4, "out"), b.param("x", float32, 4)
    limit = b.const(3, int64)
    with b.loop(4, "grid") as i:
        b.store(out, i, b.load(x, i + 1, b.op("lt", b.index(i), limit)))
    verify_kernel(b.kernel())


def test_a_gate_is_bool() -> None:
    b = Builder()
    x = b.param("x", float32, 4)
    with b.loop(4, "grid") as i:
        b.load(x, i, b.index(i))
    refused(b, "its gate has dtype int64")


def test_only_buffers_of_the_kernel_are_accessed() -> None:
    b = Builder()
    with b.loop(4, "grid") as i:
        b.load(Param("stranger", float32, 4, "in"), i)
    refused(b, "stranger is not known here")


def test_inputs_are_not_written_and_outputs_not_read() -> None:
    b = Builder()
    x = b.param("x", float32, 4)
    with b.loop(4, "grid") as i:
        b.store(x, i, b.load(x, i))
    refused(b, "only read is stored to")
    b = Builder()
    x = b.param("x", float32, 4, "out")
    with b.loop(4, "grid") as i:
        b.store(x, i, b.load(x, i))
    refused(b, "only written is loaded")
    b = Builder()
    x = b.param("x", float32, 4, "inout")
    with b.loop(4, "grid") as i:
        b.store(x, i, b.load(x, i))
    verify_kernel(b.kernel())


def test_every_output_is_stored_to() -> None:
    b, _ = copy()
    b.param("forgotten", float32, 8, "out")
    refused(b, "forgotten is never stored to")


def test_parameters_are_named_apart_and_have_a_role() -> None:
    b, _ = copy()
    b.param("x", float32, 8)
    refused(b, "two parameters have one name")
    b, _ = copy()
    b.param("y", float32, 8, "output")
    refused(b, "the role 'output'")
    b, _ = copy()
    b.param("e", int32, 2, "error")
    refused(b, "an error parameter is one int32")


def test_iterations_of_the_grid_do_not_share_an_address() -> None:
    b = Builder()
    out, x = b.param("out", float32, 1, "out"), b.param("x", float32, 4)
    with b.loop(4, "grid") as i:
        b.store(out, 0, b.load(x, i))
    refused(b, r"store out\[0\]: all iterations of i1 store to one address")


def test_an_error_word_is_shared() -> None:
    b = Builder()
    error = b.param("error", int32, 1, "error")
    number, limit = b.const(3, int32), b.const(2, int64)
    with b.loop(4, "grid", 4) as i:
        b.store(error, 0, number, b.op("lt", b.index(i), limit))
    verify_kernel(b.kernel())


def test_one_thread_of_a_work_group_may_be_chosen_by_a_gate() -> None:
    def build_kernel(gated: bool) -> Kernel:
        b = Builder()
        out, x = b.param("out", float32, 4, "out"), b.param("x", float32, 4)
        one = b.const(1, int64)
        with b.loop(4, "grid") as i, b.loop(8, "local") as t:
            gate = b.op("lt", b.index(t), one) if gated else None
            b.store(out, i, b.load(x, i), gate)
        return b.kernel()

    verify_kernel(build_kernel(gated=True))
    refused(build_kernel(gated=False), "all iterations of i2 store to one address")


def test_the_grid_is_one_outermost_loop() -> None:
    b = Builder()
    with b.loop(2), b.loop(3, "grid"):
        b.const(1, int32)
    refused(b, "grid loop i2 is inside another loop")
    b = Builder()
    for _ in range(2):
        with b.loop(2, "grid"):
            b.const(1, int32)
    refused(b, "2 grid loops")


def test_loops_have_a_kind_a_variable_and_lanes_of_their_own() -> None:
    b, loop = copy()
    loop.kind = "parallel"
    refused(b, "loop i1 is of kind 'parallel'")
    b, loop = copy()
    loop.lanes = 6
    refused(b, "loop i1: 6 lanes")
    b = Builder()
    with b.loop(8, "grid", 4), b.loop(8, "serial", 4):
        b.const(1, int32)
    refused(b, "loop i2 has lanes inside a loop with lanes")
    var = Var("twice", 3)
    refused(Kernel("k", (), [Loop(var, "serial", [Loop(var, "serial")])]), "over the same variable")


def test_ops_have_the_dtypes_of_their_row() -> None:
    b = Builder()
    x, y = b.const(1, float32), b.const(1, float64)
    for make, message in (
        (lambda: b.op("add", x, y), "operand dtypes float32, float64 differ"),
        (lambda: b.op("and", x, x), "float32 is outside its domain: bits"),
        (lambda: b.op("exp", x, dtype=float64), "dtype float64, not float32"),
        (lambda: b.op("lt", x, x, dtype=float32), "dtype float32, not bool"),
        (lambda: b.op("add", x), "1 operands, not 2"),
        (lambda: b.op("where", x, x, x), "the condition is not bool"),
        (lambda: b.bitcast(x, int64), "int64 is not as wide as float32"),
        (lambda: b.op("cast", x, dtype=int32, attr=float64), "its source dtype is not"),
        (lambda: b.op("sin", x, attr=4), "quarter 4"),
        (lambda: b.add(Instr(ops.RESHAPE, float32, (x,))), "no op of the scalar level"),
        (lambda: b.add(Instr(ops.CONST, uint8, (), 256)), "bits 256 do not fit"),
    ):
        make()
        refused(b, message)
        b.body.pop()


def test_accumulators_are_declared_updated_and_read_in_this_order() -> None:
    b, loop = row_sum()
    declare = loop.body.pop(0)
    refused(b, "update a2: not declared here")
    loop.body += [declare]
    refused(b, "update a2: not declared here")
    b, loop = row_sum()
    loop.body.append(loop.body[1])
    refused(b, "update a2: updated after its result was read")
    b, loop = row_sum()
    del loop.body[1]
    refused(b, "accumulator a2 has not been updated")
    b, loop = row_sum()
    loop.body.insert(0, loop.body[0])
    refused(b, "declare a2: declared twice")
    b, loop = row_sum()
    name = loop.body[0].acc.name
    loop.body.insert(0, Declare(Accumulator(name, "add", float32)))
    refused(b, "declare a2: another accumulator of this name is in use")


def test_an_accumulator_is_not_shared_by_parallel_iterations() -> None:
    b = Builder()
    x = b.param("x", float32, 4)
    acc = b.acc("add", float32)
    with b.loop(4, "grid") as i:
        b.update(acc, b.load(x, i))
    refused(b, "updated by all iterations of a parallel loop at once")


def test_a_running_result_is_read_in_a_serial_loop_without_lanes() -> None:
    def scan(lanes: int) -> Kernel:
        b = Builder()
        out, x = b.param("out", float32, 4, "out"), b.param("x", float32, 4)
        acc = b.acc("add", float32)
        with b.loop(4, "serial", lanes) as i:
            b.update(acc, b.load(x, i))
            b.store(out, i, b.result(acc, used=[i]))
        return b.kernel()

    verify_kernel(scan(1))
    refused(scan(4), "accumulator a1 is read inside a parallel loop")


def test_accumulators_have_the_contracts_dtype() -> None:
    def declared(kind: str, dtype: object) -> Kernel:
        return Kernel("k", (), [Declare(Accumulator("a", kind, dtype))])  # type: ignore[arg-type]

    refused(declared("add", float16), "float16 accumulates in float32")
    refused(declared("mul", uint8), "uint8 accumulates in uint32")
    refused(declared("add", bool_), "an accumulator of bool")
    refused(declared("mean", float32), "kind 'mean'")
    verify_kernel(declared("max", float16))


def test_updates_have_the_accumulators_dtype_and_number() -> None:
    one, two = Instr(ops.CONST, float32, (), 0), Instr(ops.CONST, int64, (), 0)
    acc = Accumulator("a", "argmax", float32)
    refused(Kernel("k", (), [one, Declare(acc), Update(acc, (one,))]), "1 values, not 2")
    refused(Kernel("k", (), [one, Declare(acc), Update(acc, (one, one))]), "index is no integer")
    body = [one, two, Declare(acc), Update(acc, (two, two))]
    refused(Kernel("k", (), body), "a value of dtype int64, not float32")
    right = [one, two, Declare(acc), Update(acc, (one, two))]
    verify_kernel(Kernel("k", (), right))
    bad = Instr(RESULT, float32, (), (acc, 1))
    refused(Kernel("k", (), [*right, bad]), "dtype float32")


def test_stores_have_the_buffers_dtype() -> None:
    out = Param("out", float32, 1, "out")
    value = Instr(ops.CONST, float64, (), 0)
    store = Store(out, variable(Var("one", 1)), value)
    refused(Kernel("k", (out,), [value, store]), "a value of dtype float64, not float32")


def test_barriers_belong_in_a_work_group() -> None:
    b = Builder()
    with b.loop(4, "grid"):
        b.barrier()
    refused(b, "barrier: there is no work-group here")
    b = Builder()
    with b.loop(4, "grid"), b.loop(4, "local", 4):
        b.barrier()
    refused(b, "barrier: inside a loop with lanes")
    b = Builder()
    with b.loop(4, "grid"), b.loop(4, "local"):
        b.barrier()
    verify_kernel(b.kernel())


def test_scratch_memory_is_private_or_local_and_has_no_lanes() -> None:
    b = Builder()
    b.array("a", float32, 4, "global")
    refused(b, "allocate a: space 'global'")
    b = Builder()
    with b.loop(4, "grid", 4):
        b.array("a", float32, 4)
    refused(b, "allocate a: one array for all lanes")
    b = Builder()
    with b.loop(4, "grid") as i:
        b.load(Array("a", float32, 4), i)
    refused(b, "a is not known here")


def test_a_loaded_index_is_an_integer_of_this_block() -> None:
    b = Builder()
    x = b.param("x", float32, 4)
    with b.loop(4, "grid") as i:
        b.load(x, b.opaque(b.load(x, i), 0, 3))
    refused(b, "in its index is no integer")
    b = Builder()
    x, k = b.param("x", float32, 4), b.param("k", int64, 4)
    with b.loop(4, "grid") as i:
        place = b.opaque(Instr(ops.LOAD, int64, (), (k, i), i.vars), 0, 3)
        b.load(x, place)
    refused(b, "in its index is not defined here")


# ---- graphs ------------------------------------------------------------------------------------


def node(op: ops.Op, *src: Node, arg: object = None, dtype=float32, shape=(2, 3)) -> Node:  # type: ignore[no-untyped-def]
    return intern(op, src, arg, dtype, shape)


X = build.const(1, float32, (2, 3))
Y = build.const(1, float64, (2, 3))
K = build.const(1, int64, (4,))
ILLEGAL: list[tuple[str, Callable[[], Node], str]] = [
    ("dtypes", lambda: node(ops.ADD, X, Y), "operand dtypes float32, float64 differ"),
    ("shapes", lambda: node(ops.ADD, X, build.const(1, float32, (3,))), "source shapes"),
    ("domain", lambda: node(ops.SHL, X, X), "outside its domain: int"),
    ("result", lambda: node(ops.LT, X, X), "dtype float32, not bool"),
    ("sources", lambda: node(ops.EXP, X, X), "2 operands, not 1"),
    ("level", lambda: node(ops.LOAD, X), "no op of the tensor level"),
    ("const", lambda: node(ops.CONST, arg=1 << 40), "bits do not fit"),
    ("iota", lambda: node(ops.IOTA), "float32 is no integer dtype"),
    ("reshape", lambda: node(ops.RESHAPE, X, arg=(7,), shape=(7,)), r"from \(2, 3\) to \(7,\)"),
    ("reshaped", lambda: node(ops.RESHAPE, X, arg=(6,), shape=(7,)), r"shape \(7,\), not \(6,\)"),
    ("permute", lambda: node(ops.PERMUTE, X, arg=(0, 0)), "order"),
    ("expand", lambda: node(ops.EXPAND, X, arg=(4, 3), shape=(4, 3)), "from"),
    ("pad", lambda: node(ops.PAD, X, arg=(((1, 1),), 0)), "widths"),
    ("shrink", lambda: node(ops.SHRINK, X, arg=((0, 9), (0, 3)), shape=(9, 3)), "ranges"),
    ("flip", lambda: node(ops.FLIP, X, arg=(5,)), "axes"),
    ("window", lambda: node(ops.WINDOW, X, arg=(1, 9, 1, 1), shape=(2, 1, 9)), "of shape"),
    ("fold", lambda: node(ops.FOLD, X, arg=(0, 9, 1, 1), shape=(9,)), "of shape"),
    ("cat", lambda: node(ops.CAT, X, Y, arg=0, shape=(4, 3)), "a part has dtype float64"),
    ("cat axis", lambda: node(ops.CAT, X, K, arg=0, shape=(6, 3)), "the parts do not fit"),
    ("reduce", lambda: node(ops.REDUCE, X, arg=("add", (2,)), shape=(2, 3)), "axes"),
    ("kind", lambda: node(ops.REDUCE, X, arg=("mean", (1,)), shape=(2,)), "kind 'mean'"),
    ("argmax", lambda: node(ops.REDUCE, X, arg=("argmax", (1,)), shape=(2,)), "an index of dtype"),
    ("gather", lambda: node(ops.GATHER, X, X, shape=(2, 3, 3)), "an integer index"),
    ("scatter", lambda: node(ops.SCATTER, X, K, X, arg="add"), "the value does not fit"),
    ("argsort", lambda: node(ops.ARGSORT, X, arg=3, dtype=int64), "float32 to int64"),
    ("places", lambda: node(ops.ARGSORT, K, arg=9, dtype=int64), "9 places of shape"),
    ("check", lambda: node(ops.CHECK, X), "float32 is no integer dtype"),
    ("kept dtype", lambda: node(ops.CONTIGUOUS, X, dtype=float64), "dtype float64, not float32"),
]


@pytest.mark.parametrize(("name", "make", "message"), ILLEGAL, ids=[row[0] for row in ILLEGAL])
def test_an_illegal_node_is_refused(name: str, make: Callable[[], Node], message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify_graph([make()])


def test_the_illegal_node_is_named_also_deep_inside() -> None:
    bad = node(ops.PERMUTE, X, arg=(0, 0))
    with pytest.raises(VerifyError, match=r"<permute float32\[2, 3\]> of \(<const float32"):
        verify_graph([build.exp(build.exp(bad))])


def test_legal_graphs_pass_however_deep() -> None:
    x = build.buffer(object(), float32, (2, 3))
    total = x
    for _ in range(10_000):
        total = build.add(total, x)
    picked = build.gather(x, build.check(build.iota(2), 2, "here"))
    parts = [
        build.reduce("argmax", total, (1,)),
        build.fold(build.window(total, 1, 2), 1, 3),
        build.scatter(x, build.iota(2), picked, "add"),
        build.cat([x, build.pad(x, ((1, 0), (0, 0)))], 0),
        build.where(build.lt(x, total), x, build.flip(total, (0,))),
        build.shrink(build.expand(build.reshape(x, (1, 6)), (4, 6)), ((1, 3), (0, 6))),
        build.cast(build.permute(build.sin(x, 1), (1, 0)), uint8),
    ]
    verify_graph(parts)


def test_what_has_been_computed_is_not_looked_into() -> None:
    bad = node(ops.PERMUTE, X, arg=(1, 1))
    done = build.exp(bad)
    done.buffer = build.buffer(object(), float32, (2, 3))
    try:
        verify_graph([build.log(done)])
    finally:
        done.buffer = None
