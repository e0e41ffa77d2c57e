"""Kernels for devices of many threads: right on every size, free of races, and of the agreed shape.

They run on NumPy devices with the limits of a GPU, whose frame checks all accesses between
barriers (see workgroups.py). The oracle is float64 NumPy.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import Builder, run
from programs import convolution, layer_norm, matmul, relu, softmax, source, spread
from workgroups import NAMES, Alone, CheckedBackend, Groups256, Race, Registers, register

from coregrad import Tensor, manual_seed, nn, plugins
from coregrad.dtypes import bfloat16, float16, float32, float64, int8, int32, int64
from coregrad.errors import VerifyError
from coregrad.ir import build, ops, split
from coregrad.ir.graph import Node
from coregrad.ir.groups import layout
from coregrad.ir.index import Var, variable
from coregrad.ir.kernel import Allocate, Barrier, Instr, Kernel, Loop, Store, walk
from coregrad.ir.legalize import legalize
from coregrad.ir.races import determined, find_race
from coregrad.ir.schedule import schedule
from coregrad.ir.simplify import simplify
from coregrad.ir.target import Hooks, Limits
from coregrad.ir.verify import verify_kernel
from coregrad.nn import functional

SIZES = st.sampled_from([1, 2, 3, 5, 31, 32, 33, 64, 100, 257, 1025])
LIMITS = Groups256.limits
rng = np.random.default_rng(7)
cases = settings(max_examples=12, deadline=None)


@pytest.fixture(scope="module", params=NAMES.values())
def grouped(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of each device in turn."""
    register()
    yield request.param
    for name in NAMES.values():
        plugins.unregister(name)


def kernels(*roots: Node, limits: Limits = LIMITS) -> list[Kernel]:
    """What a device with these limits is given."""
    return [t.kernel for t in schedule(split.split(simplify(roots)), limits, {})]


def one(root: Node, limits: Limits = LIMITS) -> Kernel:
    (kernel,) = kernels(root, limits=limits)
    verify_kernel(kernel, limits)
    return kernel


def threads(kernel: Kernel) -> int:
    """Threads of the kernel's groups; 0 where every work-item is alone."""
    found = [s.var.extent for s in walk(kernel.body) if isinstance(s, Loop) and s.kind == "local"]
    return found[0] if found else 0


def floats(*shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def close(got: Tensor, want: Any, terms: int = 1) -> None:
    """Equal up to what summing ``terms`` numbers of about 1 in float32 may lose."""
    assert got.shape == np.shape(want)
    bound = 1e-5 * (1 + math.sqrt(terms))
    np.testing.assert_allclose(
        got.numpy(), want, rtol=1e-4, atol=bound * max(1, np.abs(want).max())
    )


# ---- values ------------------------------------------------------------------------------------


@given(rows=SIZES, columns=SIZES, axis=st.sampled_from([0, 1, (0, 1)]))
@cases
def test_reductions_over_any_axis(grouped: str, rows: int, columns: int, axis: Any) -> None:
    x = floats(rows, columns)
    x[rng.integers(rows), rng.integers(columns)] = np.inf if rows % 2 else -9
    t = Tensor(x, device=grouped)
    count = rows * columns if isinstance(axis, tuple) else x.shape[axis]
    np.testing.assert_array_equal(t.amax(axis).numpy(), x.max(axis))
    finite = np.clip(x, -9, 9)
    close(Tensor(finite, device=grouped).sum(axis), finite.astype(np.float64).sum(axis), count)
    if isinstance(axis, int):
        np.testing.assert_array_equal(t.argmax(axis).numpy(), x.argmax(axis))
        near_one = np.exp2(np.round(finite / 3))  # powers of two: products are exact
        product = Tensor(near_one, device=grouped).prod(axis).numpy()
        np.testing.assert_array_equal(product, near_one.prod(axis, dtype=np.float32))


@given(outer=st.sampled_from([1, 3, 7]), middle=SIZES, inner=st.sampled_from([1, 2, 5, 40]))
@cases
def test_reductions_over_several_axes_and_a_middle_one(
    grouped: str, outer: int, middle: int, inner: int
) -> None:
    x = rng.integers(-99, 99, (outer, middle, inner))
    t = Tensor(x, device=grouped)
    np.testing.assert_array_equal(t.sum(1).numpy(), x.sum(1))
    np.testing.assert_array_equal(t.sum((0, 2)).numpy(), x.sum((0, 2)))
    np.testing.assert_array_equal(t.sum((0, 1)).numpy(), x.sum((0, 1)))


@pytest.mark.parametrize("dtype", [float16, bfloat16, float64, int8, int32, int64], ids=str)
def test_sums_and_maxima_of_every_width(grouped: str, dtype: Any) -> None:
    x = rng.integers(-3, 4, (5, 300))
    t = Tensor(x, device=grouped, dtype=dtype)
    np.testing.assert_array_equal(np.float64(t.amax(1).numpy()), x.max(1))
    np.testing.assert_array_equal(np.float64(t.sum(1).numpy()), x.sum(1))
    np.testing.assert_array_equal(t.argmax(1).numpy(), x.argmax(1))


@pytest.mark.parametrize("row", [[-np.inf] * 300, [1, np.nan, 5, np.nan] * 70, [2.0] * 257])
def test_argmax_of_a_group_is_the_first_and_a_nan_is_larger(grouped: str, row: list[float]) -> None:
    assert Tensor([row], device=grouped).argmax(1).tolist() == [np.argmax(row)]


@given(rows=st.sampled_from([1, 3, 33]), columns=SIZES)
@cases
def test_softmax_and_layer_norm_and_what_is_subtracted_from_all(
    grouped: str, rows: int, columns: int
) -> None:
    x = floats(rows, columns)
    t, wide = Tensor(x, device=grouped, requires_grad=True), x.astype(np.float64)
    powers = np.exp(wide - wide.max(1, keepdims=True))
    shares = powers / powers.sum(1, keepdims=True)
    close(t.softmax(1), shares)
    close(t.log_softmax(1), np.log(shares))
    centred = wide - wide.mean(1, keepdims=True)
    close(
        functional.layer_norm(t, (columns,)),
        centred / np.sqrt(wide.var(1, keepdims=True) + 1e-5),
        columns,
    )
    close(t - t.mean(), wide - wide.mean(), columns)
    weights = floats(rows, columns)
    (t.softmax(1) * Tensor(weights, device=grouped)).sum().backward()
    assert t.grad is not None
    want = shares * (weights - (weights * shares).sum(1, keepdims=True))
    close(t.grad, want, columns)


@given(m=SIZES, k=SIZES, n=SIZES, kind=st.sampled_from(["plain", "transposed", "fused"]))
@cases
def test_products_of_matrices_and_their_gradients(
    grouped: str, m: int, k: int, n: int, kind: str
) -> None:
    m, n = min(m, 130), min(n, 130)
    a, b, bias = floats(m, k), floats(k, n), floats(n)
    left, right = (Tensor(x, device=grouped, requires_grad=True) for x in (a, b))
    x, y = a.astype(np.float64), b.astype(np.float64)
    if kind == "transposed":
        right = Tensor(np.ascontiguousarray(b.T), device=grouped, requires_grad=True)
        product = left @ right.T
    elif kind == "fused":
        product = (left.relu() @ right + Tensor(bias, device=grouped)).relu()
        x = np.maximum(x, 0)
    else:
        product = left @ right
    want = x @ y if kind != "fused" else np.maximum(x @ y + bias, 0)
    close(product, want, k)
    weights = floats(m, n)
    (product * Tensor(weights, device=grouped)).sum().backward()
    assert left.grad is not None
    assert right.grad is not None
    above = weights * (product.numpy() > 0) if kind == "fused" else weights
    close(left.grad, above @ y.T * (a > 0 if kind == "fused" else 1), n)
    down = x.T @ above
    close(right.grad, down.T if kind == "transposed" else down, m)


@given(batch=st.sampled_from([1, 2, 5]), m=SIZES, k=SIZES, n=SIZES)
@cases
def test_batches_of_products(grouped: str, batch: int, m: int, k: int, n: int) -> None:
    m, n = min(m, 70), min(n, 70)
    a, b = floats(batch, m, k), floats(batch, k, n)
    got = Tensor(a, device=grouped) @ Tensor(b, device=grouped)
    close(got, a.astype(np.float64) @ b, k)


def test_a_product_whose_operand_is_looked_up(grouped: str) -> None:
    table, index, weights = floats(50, 40), rng.integers(0, 50, 70), floats(40, 30)
    rows = Tensor(table, device=grouped)[Tensor(index, device=grouped)]
    close(rows @ Tensor(weights, device=grouped), table[index].astype(np.float64) @ weights, 40)


def convolved(x: Any, w: Any, stride: int, padding: int, groups: int) -> tuple[Any, Any]:
    """The convolution, and what each tap sees: [batch, group, channel, tap, tap, row, column]."""
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2))
    (count, channels), (out, _, high, wide) = x.shape[:2], w.shape
    rows = (x.shape[2] - high) // stride + 1
    columns = (x.shape[3] - wide) // stride + 1
    seen = np.zeros((count, channels, high, wide, rows, columns))
    for i in range(high):
        for j in range(wide):
            last = i + stride * (rows - 1) + 1, j + stride * (columns - 1) + 1
            seen[:, :, i, j] = x[:, :, i : last[0] : stride, j : last[1] : stride]
    parts = seen.reshape(count, groups, channels // groups, high, wide, rows, columns)
    taps = w.reshape(groups, out // groups, *w.shape[1:])
    return np.einsum("bgcijrs,gocij->bgors", parts, taps).reshape(count, out, rows, columns), parts


@given(
    size=st.sampled_from([5, 8, 13]), taps=st.sampled_from([1, 2, 3]), stride=st.integers(1, 3),
    padding=st.integers(0, 2), groups=st.sampled_from([1, 2]), out=st.sampled_from([2, 6, 34]),
)  # fmt: skip
@settings(max_examples=8, deadline=None)
def test_convolutions_and_both_gradients(
    grouped: str, size: int, taps: int, stride: int, padding: int, groups: int, out: int
) -> None:
    x, w = floats(3, 4, size, size + 1), floats(out, 4 // groups, taps, taps)
    t, u = (Tensor(a, device=grouped, requires_grad=True) for a in (x, w))
    got = functional.conv2d(t, u, stride=stride, padding=padding, groups=groups)
    want, parts = convolved(x, w, stride, padding, groups)
    close(got, want, 36)
    weights = floats(*want.shape)
    (got * Tensor(weights, device=grouped)).sum().backward()
    assert t.grad is not None
    assert u.grad is not None
    above = weights.reshape(3, groups, out // groups, *want.shape[2:])
    close(u.grad, np.einsum("bgors,bgcijrs->gocij", above, parts).reshape(w.shape), above[0].size)
    rows, columns = want.shape[2:]
    down = np.zeros((3, groups, 4 // groups, size + 2 * padding, size + 1 + 2 * padding))
    for i in range(taps):
        for j in range(taps):
            tap = w.reshape(groups, out // groups, 4 // groups, taps, taps)[..., i, j]
            last = i + stride * (rows - 1) + 1, j + stride * (columns - 1) + 1
            place = down[..., i : last[0] : stride, j : last[1] : stride]
            place += np.einsum("bgors,goc->bgcrs", above, tap)
    inner = slice(padding, size + padding), slice(padding, size + 1 + padding)
    close(t.grad, down[..., inner[0], inner[1]].reshape(x.shape), out * taps * taps)


def test_an_index_that_is_out_of_range_is_reported(grouped: str) -> None:
    table, index = Tensor(floats(50, 300), device=grouped), np.array([3, 50, 7])
    with pytest.raises(IndexError):
        table[Tensor(index, device=grouped)].sum(1).numpy()


# ---- programs ----------------------------------------------------------------------------------


def trained(device: str, make: Any, x: Any, labels: Any, steps: int) -> list[float]:
    """The losses of some steps."""
    manual_seed(3)
    model = make().to(device)
    optimizer = nn.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(
            model(Tensor(x, device=device)), Tensor(labels, device=device)
        )
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def perceptron() -> Any:
    return nn.Sequential(nn.Linear(50, 70), nn.ReLU(), nn.LayerNorm(70), nn.Linear(70, 10))


def convolutional() -> Any:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 9, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(9 * 4 * 4, 10),
    )  # fmt: skip


@pytest.mark.parametrize(("make", "shape"), [(perceptron, (50,)), (convolutional, (1, 12, 12))])
def test_training_takes_the_steps_that_it_takes_elsewhere(
    grouped: str, make: Any, shape: tuple[int, ...]
) -> None:
    x, labels = floats(33, *shape), rng.integers(0, 10, 33)
    plain, here = (trained(d, make, x, labels, 4) for d in ("numpy", grouped))
    np.testing.assert_allclose(here, plain, rtol=2e-4)
    assert here[-1] < here[0]


# ---- shapes ------------------------------------------------------------------------------------


def columns_sum(rows: int, columns: int) -> Node:
    return build.reduce("add", source("x", rows, columns), (0,))


@pytest.mark.parametrize(
    ("program", "wanted"),
    [
        (softmax(source("x", 1024, 1024)), 128),
        (softmax(source("x", 8, 1024)), 256),
        (layer_norm(source("x", 64, 300)), 128),
        (build.reduce("add", source("x", 3000), (0,)), 256),
        (build.reduce("argmax", source("x", 64, 100), (1,)), 32),
        (columns_sum(60, 5000), 0),
        (columns_sum(4000, 10), 256),
        (columns_sum(300, 40), 256),
        (build.reduce("add", source("x", 5000, 8), (1,)), 0),
        (relu(source("x", 300, 70)), 0),
        (matmul(source("a", 512, 512), source("b", 512, 512)), 256),
        (matmul(source("a", 2, 64), source("b", 64, 5000)), 64),
        (relu(convolution(source("x", 2, 4, 9, 9), source("w", 8, 4, 3, 3), 1)), 128),
        (matmul(source("a", 64, 2), source("b", 2, 64)), 0),
    ],
    ids=lambda p: str(getattr(p, "shape", p)),
)
def test_a_group_is_used_where_it_pays(program: Node, wanted: int) -> None:
    kernel = one(program)
    assert threads(kernel) == wanted
    assert kernel.body[-1].kind == "grid"
    contraction = len(kernel.params) == 3
    assert threads(one(program, Registers.limits)) == (0 if contraction else wanted)
    alone = one(program, Alone.limits)
    assert threads(alone) == 0
    assert not any(isinstance(s, Barrier) for s in walk(alone.body))


def test_a_group_has_a_power_of_two_of_threads_whatever_the_device_has() -> None:
    for limits in (replace(LIMITS, threads=100), replace(LIMITS, threads=3)):
        for program in (softmax(source("x", 8, 999)), columns_sum(300, 40)):
            count = threads(one(program, limits))
            assert count == {100: 64, 3: 2}[limits.threads]


def test_element_wise_kernels_have_an_iteration_per_element() -> None:
    kernel = one(build.add(source("x", 64, 100), spread(source("y", 100), (64, 100), (0,))))
    assert kernel.grid == 6400
    assert [s for s in walk(kernel.body) if isinstance(s, Loop)] == [kernel.body[-1]]


def test_a_device_of_single_threads_gets_the_kernels_it_always_got() -> None:
    plain = replace(LIMITS, threads=1)
    for program in (
        softmax(source("x", 64, 100)),
        matmul(source("a", 64, 64), source("b", 64, 64)),
    ):
        (kernel,) = kernels(program, limits=plain)
        assert layout(kernel, plain) is kernel


def local_arrays(kernel: Kernel) -> list[str]:
    return [s.array.name for s in walk(kernel.body) if isinstance(s, Allocate)]


def test_a_row_is_kept_in_local_memory_while_there_is_room() -> None:
    assert "row0" in local_arrays(one(softmax(source("x", 64, 1000))))
    assert "row0" not in local_arrays(one(softmax(source("x", 64, 8000))))


def test_a_tile_takes_no_more_local_memory_than_there_is() -> None:
    program = matmul(source("a", 512, 512), source("b", 512, 512))
    assert threads(one(program, replace(LIMITS, local_bytes=4096))) == 256
    assert threads(one(program, replace(LIMITS, local_bytes=64))) == 0


# ---- races -------------------------------------------------------------------------------------


def without(kernel: Kernel, number: int) -> Kernel:
    """The kernel without one of its barriers."""
    body = copy.copy(kernel.body)
    left = [number]

    def strip(block: Sequence[Any]) -> list[Any]:
        out = []
        for stmt in block:
            left[0] -= isinstance(stmt, Barrier)
            if isinstance(stmt, Loop):
                out.append(Loop(stmt.var, stmt.kind, strip(stmt.body), stmt.lanes))
            elif not (isinstance(stmt, Barrier) and left[0] == -1):
                out.append(stmt)
        return out

    return Kernel(kernel.name, kernel.params, strip(body))


def barriers(kernel: Kernel) -> int:
    return sum(isinstance(s, Barrier) for s in walk(kernel.body))


def checked(kernel: Kernel) -> None:
    run(kernel, {p.name: floats(p.size) for p in kernel.params if p.role == "in"}, CheckedBackend())


@pytest.mark.parametrize(
    "program",
    [
        softmax(source("x", 3, 100)),
        build.reduce("argmax", source("x", 3, 100), (1,)),
        matmul(source("a", 40, 37), source("b", 37, 30)),
    ],
    ids=["softmax", "argmax", "matmul"],
)
def test_a_barrier_that_is_missing_is_found_by_proof_and_by_trial(program: Node) -> None:
    kernel = one(program)
    checked(kernel)
    assert barriers(kernel)
    for number in range(barriers(kernel)):
        spoiled = without(kernel, number)
        assert barriers(spoiled) == barriers(kernel) - 1
        with pytest.raises(VerifyError, match="two threads may touch one element of"):
            verify_kernel(spoiled)
        with pytest.raises(Race):
            checked(spoiled)


@given(
    extents=st.lists(st.sampled_from([2, 3, 4, 8, 16]), min_size=1, max_size=2),
    divisor=st.sampled_from([2, 3, 4, 8]), scale=st.integers(1, 20), offset=st.integers(-3, 3),
    form=st.sampled_from(["linear", "transposed", "quotient", "remainder"]),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_what_an_index_determines_it_determines(
    extents: list[int], divisor: int, scale: int, offset: int, form: str
) -> None:
    loops = [Var(f"v{i}", n) for i, n in enumerate(extents)]
    whole = variable(loops[0])
    if len(loops) > 1:
        whole = whole * extents[1] + variable(loops[1])
    index = {
        "linear": whole * scale,
        "transposed": whole % divisor * scale + whole // divisor,
        "quotient": whole // divisor * scale,
        "remainder": whole % divisor * scale,
    }[form] + offset
    told = determined(index, frozenset(loops))
    first, second = extents[0], (extents[1] if len(loops) > 1 else 1)
    places = [(i, j) for i in range(first) for j in range(second)]
    by_value: dict[int, set[tuple[int, ...]]] = {}
    for place in places:
        values = dict(zip(loops, place, strict=False))
        kept = tuple(values[v] for v in loops if v in told)
        by_value.setdefault(index.evaluate(values), set()).add(kept)
    assert all(len(kept) == 1 for kept in by_value.values())
    if form == "linear" or (form == "transposed" and scale > whole.hi // divisor):
        assert told == set(loops)


def group(b: Builder) -> Any:
    """An output and an input of 32 elements, for four groups of eight threads."""
    return b.param("out", float32, 32, "out"), b.param("x", float32, 32)


def refused(b: Builder, message: str, limits: Limits | None = None) -> None:
    with pytest.raises(VerifyError, match=message):
        verify_kernel(b.kernel(), limits)


def test_two_threads_may_read_but_not_write_one_element() -> None:
    for store, load, race in (("t", "t", ""), ("t", "0", "race"), ("t//2", "t//2", "race")):
        b = Builder()
        out, x = group(b)
        with b.loop(4, "grid") as i:
            shared = b.array("shared", float32, 16, "local")
            with b.loop(8, "local") as t:
                at = {"t": t, "0": t * 0, "t//2": t // 2}
                b.store(shared, at[store], b.load(x, i * 8 + t))
                b.store(out, i * 8 + t, b.load(shared, at[load]))
        if race:
            refused(b, r"two threads may touch one element of shared between barriers")
        else:
            verify_kernel(b.kernel())


def test_a_loop_meets_its_own_next_turn() -> None:
    def turns(at_the_end: bool) -> Builder:
        b = Builder()
        out, x = group(b)
        with b.loop(4, "grid") as i:
            shared = b.array("shared", float32, 8, "local")
            with b.loop(8, "local") as t, b.loop(3) as k:
                b.store(shared, t, b.load(x, t + k))
                b.barrier()
                b.store(out, i * 8 + t, b.load(shared, t * -1 + 7))
                if at_the_end:
                    b.barrier()
        return b

    verify_kernel(turns(True).kernel())
    refused(turns(False), r"\[-1\*i2 \+ 7\] and \[i2\]")


def test_a_gate_tells_threads_apart() -> None:
    for bound, right in ((4, True), (5, False)):
        b = Builder()
        out, x = group(b)
        with b.loop(4, "grid") as i:
            shared = b.array("shared", float32, 16, "local")
            with b.loop(8, "local") as t:
                b.store(shared, t, b.load(x, i * 8 + t))
                b.barrier()
                low = b.op("lt", b.index(t), b.const(bound, int64))
                b.store(shared, t, b.load(shared, t + 4, low), low)
                b.store(out, i * 8 + t, b.load(x, i * 8 + t))
        if right:
            verify_kernel(b.kernel())
        else:
            refused(b, "two threads may touch")


def test_a_group_takes_what_the_device_has() -> None:
    b = Builder()
    out, x = group(b)
    with b.loop(4, "grid") as i:
        shared = b.array("shared", float32, 16, "local")
        with b.loop(8, "local") as t:
            b.store(shared, t, b.load(x, i * 8 + t))
            b.store(out, i * 8 + t, b.load(shared, t))
    verify_kernel(b.kernel(), LIMITS)
    refused(b, "8 threads; the device has 4", replace(LIMITS, threads=4))
    refused(b, "64 bytes of local memory; the device has 63", replace(LIMITS, local_bytes=63))


def test_a_group_has_one_local_loop_with_all_statements_in_it() -> None:
    b = Builder()
    with b.loop(4, "grid"), b.loop(2), b.loop(8, "local"):
        b.barrier()
    refused(b, "local loop i3 is not directly in the grid loop")
    b = Builder()
    with b.loop(4, "grid"):
        for _ in range(2):
            with b.loop(8, "local"):
                b.barrier()
    refused(b, "2 local loops")
    b = Builder()
    out, x = group(b)
    with b.loop(4, "grid") as i:
        b.store(out, i, b.load(x, i))
        with b.loop(8, "local"):
            b.barrier()
    refused(b, r"load x\[i1\] stands beside the local loop")
    b = Builder()
    with b.loop(4, "grid"), b.loop(8, "local"):
        b.array("shared", float32, 16, "local")
    refused(b, "allocate shared: local memory that does not belong to a group")


def test_a_race_is_looked_for_in_the_local_loop_only() -> None:
    b = Builder()
    with b.loop(8, "local") as t:
        b.store(b.array("mine", float32, 4), t * 0, b.const(1, float32))
    (loop,) = b.body
    assert isinstance(loop, Loop)
    assert isinstance(loop.body[-1], Store)
    assert find_race(loop) == ""


def test_what_a_backend_lacks_is_written_out_in_a_contraction_too() -> None:
    hooks = {name: CheckedBackend.lower_add for name in ops.CONTRACT_OPS if name != "exp"}
    program = build.exp(matmul(source("a", 64, 64), source("b", 64, 64)))
    for limits in (LIMITS, Registers.limits, Alone.limits):
        kernel = one(program, limits)
        assert kernel.contraction is not None
        made = legalize(kernel, Hooks("render", hooks), limits)
        verify_kernel(made, limits)
        assert made.contraction is not None
        stack = [s for s in walk(made.body) if isinstance(s, Instr)]
        stack += [s.value for s in made.contraction.stores]
        assert len(stack) > 10
        while stack:
            instr = stack.pop()
            assert instr.op is not ops.EXP
            stack += instr.args
