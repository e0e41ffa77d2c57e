"""An update may be written over the old value: only where nobody can ask for that any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coregrad import Tensor, dtypes, engine, jit, nn, no_grad, planner, plugins
from coregrad.errors import IndexRangeError
from coregrad.ir import inplace, kernel, ops
from coregrad.ir.index import Var, variable

pytest.importorskip("llvmlite")

MODES = {"plain": lambda function: function, "captured": jit}
Mode = Callable[[Callable[..., Any]], Callable[..., Any]]


@pytest.fixture(params=list(MODES.values()), ids=list(MODES))
def mode(request: pytest.FixtureRequest) -> Mode:
    """As it is, and captured."""
    return request.param


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small results are no exception here: plans are made anew, and none is kept."""
    monkeypatch.setattr(planner, "WORTH_ASKING", 0)
    monkeypatch.setattr(engine, "_plans", {})


class Memory:
    """Bytes that the CPU was asked for, and how many results took over old memory."""

    def __init__(self) -> None:
        self.asked = 0
        self.taken = 0


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    counts = Memory()
    device = plugins.open_device("cpu").device
    allocate, taken = device.allocate, engine.Storage.taken_from

    def counted(nbytes: int) -> Any:
        counts.asked += nbytes
        return allocate(nbytes)

    def taken_from(other: engine.Storage) -> engine.Storage:
        counts.taken += 1
        return taken(other)

    monkeypatch.setattr(device, "allocate", counted)
    monkeypatch.setattr(engine.Storage, "taken_from", taken_from)
    return counts


def values(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tensor(array: Any) -> Tensor:
    return Tensor(array, device="cpu")


# ---- memory is taken over ----------------------------------------------------------------------


def test_adam_over_ten_million_parameters_makes_no_second_copy(mode: Mode, memory: Memory) -> None:
    count = 10_000_000
    p = tensor(np.ones(count, np.float32)).requires_grad_(True)
    optim = nn.optim.Adam([p], lr=0.1)
    step = mode(optim.step)
    p.grad = tensor(np.full(count, 0.5, np.float32))
    step()  # a capture is made and the first results are laid out
    before = memory.asked
    for _ in range(3):
        step()
    assert memory.asked - before < 10_000, "bytes for three steps over 40 MB"
    np.testing.assert_allclose(p.detach()[:: count // 7].numpy(), 0.6, rtol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: nn.optim.SGD(p, lr=0.1),
        lambda p: nn.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: nn.optim.AdamW(p, lr=0.1),
        lambda p: nn.optim.RMSprop(p, lr=0.1, momentum=0.5),
    ],
    ids=["sgd", "momentum", "adamw", "rmsprop"],
)
def test_every_optimiser_writes_over_its_parameters_and_state(
    make: Callable[..., Any], mode: Mode, memory: Memory
) -> None:
    p = tensor(values(20_000)).requires_grad_(True)
    optim = make([p])
    step = mode(optim.step)
    p.grad = tensor(values(20_000, seed=1))
    step()
    before = memory.asked
    for _ in range(3):
        step()
    assert memory.asked - before < 4 * 20_000


def test_an_assigned_elementwise_value_takes_the_old_ones_place(mode: Mode, memory: Memory) -> None:
    a = values(20_000)
    x = tensor(a)

    @mode
    def step() -> None:
        x.assign((x * 2 + 1).exp().tanh())
        x.realize()

    for _ in range(4):
        step()
        a = np.tanh(np.exp(a.astype(np.float64) * 2 + 1))
    assert memory.taken >= 3
    np.testing.assert_allclose(x.numpy(), a, rtol=1e-5)


# ---- and never while somebody holds it ----------------------------------------------------------

HOLDS: dict[str, Callable[[Tensor], Any]] = {
    "the value": lambda x: x.detach(),
    "a view": lambda x: x.reshape(6, 4),
    "a slice": lambda x: x[1:3],
    "a pending result": lambda x: x * 3 + 1,
    "a pending sum": lambda x: x.sum(0),
    "a view of a pending result": lambda x: (x - 1).T,
    "a result that was computed": lambda x: (x * 3).realize(),
    "another name": lambda x: tensor(np.zeros((4, 6), np.float32)).assign(x),
    "a copy": lambda x: Tensor(x),
}


@pytest.mark.parametrize("hold", HOLDS.values(), ids=HOLDS)
@pytest.mark.parametrize("trained", [False, True], ids=["value", "parameter"])
def test_what_somebody_holds_keeps_its_value(
    hold: Callable[[Tensor], Any], trained: bool, mode: Mode
) -> None:
    start = values(4, 6)
    x = tensor(start)
    if trained:
        x.requires_grad_(True)

    @mode
    def step() -> None:
        with no_grad():
            x.assign(x * 0.5 - 1)
        x.realize()

    step()
    for _ in range(3):
        held = hold(x)
        wanted = hold(tensor(x.detach().numpy())).detach().numpy()
        before = x.detach().numpy()
        step()
        step()
        np.testing.assert_array_equal(held.detach().numpy(), wanted)
        np.testing.assert_array_equal(x.detach().numpy(), (before * 0.5 - 1) * 0.5 - 1)


def test_a_state_that_was_saved_stays_as_it_was(mode: Mode) -> None:
    net = nn.Linear(7, 5)
    optim = nn.optim.Adam(net.parameters(), lr=0.1)

    @mode
    def step(x: Tensor) -> Tensor:
        optim.zero_grad()
        loss = (net(x) ** 2).sum()
        loss.backward()
        optim.step()
        return loss

    x = tensor(values(3, 7))
    for _ in range(3):
        step(x)
        saved = {**net.state_dict(), **optim.state_dict()}
        copies = {name: t.detach().numpy() for name, t in saved.items()}
        step(x)
        step(x)
        for name, kept in saved.items():
            np.testing.assert_array_equal(kept.detach().numpy(), copies[name], err_msg=name)


def test_a_second_backward_sees_the_parameters_of_its_loss() -> None:
    w = tensor(values(40)).requires_grad_(True)
    optim = nn.optim.SGD([w], lr=0.1)
    for _ in range(3):
        optim.zero_grad()
        at = w.detach().numpy()
        loss = (w**3).sum()
        loss.backward()
        optim.step()
        w.grad = None
        loss.backward()
        assert w.grad is not None
        np.testing.assert_allclose(w.grad.numpy(), 3 * at.astype(np.float64) ** 2, rtol=1e-5)


def test_two_tensors_that_share_a_value_part_ways(mode: Mode) -> None:
    x = tensor(values(50))
    y = tensor(np.zeros(50, np.float32)).assign(x)
    y.realize()
    start = x.numpy()

    @mode
    def step() -> None:
        x.assign(x + 1)
        y.assign(y * 2)
        x.realize(y)

    for turn in range(1, 4):
        step()
        np.testing.assert_allclose(x.numpy(), start + turn, rtol=1e-6)
        np.testing.assert_allclose(y.numpy(), start * 2**turn, rtol=1e-6)


def test_tensors_may_change_places(mode: Mode) -> None:
    x, y = tensor(values(50)), tensor(values(50, seed=1))
    a, b = x.numpy(), y.numpy()

    @mode
    def step() -> None:
        old = x * 1
        x.assign(y * 1)
        y.assign(old)
        x.realize(y)

    for _ in range(4):
        step()
        a, b = b, a
        np.testing.assert_array_equal(x.numpy(), a)
        np.testing.assert_array_equal(y.numpy(), b)


def test_an_index_out_of_range_leaves_the_state_as_it_was() -> None:
    x, table = tensor(values(6)), tensor(values(4))

    @jit
    def step(i: Tensor) -> None:
        x.assign(x * 2 + table[i])

    step(tensor(np.zeros(6, np.int64)))
    before = x.numpy()
    with pytest.raises(IndexRangeError):
        step(tensor(np.full(6, 4)))
    np.testing.assert_array_equal(x.numpy(), before)
    step(tensor(np.zeros(6, np.int64)))
    np.testing.assert_allclose(x.numpy(), before * 2 + table.numpy()[0], rtol=1e-6)


def test_what_is_small_is_not_worth_asking(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "WORTH_ASKING", 4 * 100)
    for count, taken in ((99, False), (100, True)):
        x = tensor(values(count))
        memory.taken = 0
        x.assign(x * 2 - 1)
        x.realize()
        assert bool(memory.taken) is taken


# ---- updates that read elsewhere -----------------------------------------------------------------


def softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


UPDATES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "own": (lambda x, y: x * 0.5 + y, lambda x, y: x * 0.5 + y),
    "transposed": (lambda x, y: x.T + y, lambda x, y: x.T + y),
    "both ways": (lambda x, y: x + x.T - y, lambda x, y: x + x.T - y),
    "flipped": (lambda x, y: y - x.flip(0), lambda x, y: y - x[::-1]),
    "rows": (lambda x, y: x + y.sum(1).reshape(5, 1), lambda x, y: x + y.sum(1)[:, None]),
    "own sum": (lambda x, y: y - x.sum(0) * 0.1, lambda x, y: y - x.sum(0) * 0.1),
    "running": (lambda x, y: x.cumsum(0) * 0.3 + y, lambda x, y: x.cumsum(0) * 0.3 + y),
    "product": (lambda x, y: (x @ y) * 0.1 + x, lambda x, y: (x @ y) * 0.1 + x),
    "softmax": (lambda x, y: (x + y).softmax(1) + x, lambda x, y: softmax(x + y) + x),
    "shifted": (
        lambda x, y: x + x[1:].pad((0, 0, 0, 1)),
        lambda x, y: x + np.pad(x[1:], ((0, 1), (0, 0))),
    ),
}


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_updates_in_any_order_mean_what_numpy_says(data: st.DataObject) -> None:
    """Computed together, plain or captured, while old values are held or are not."""
    captured = data.draw(st.booleans(), "captured")
    names = st.sampled_from(sorted(UPDATES))
    program = data.draw(st.lists(st.tuples(names, st.integers(0, 2)), min_size=1, max_size=4))
    wide = [values(5, 5, seed=i).astype(np.float64) for i in range(3)]
    tensors = [tensor(w) for w in wide]

    def steps(x: list[Tensor]) -> None:
        for name, target in program:
            x[target].assign(UPDATES[name][0](x[target], x[(target + 1) % 3]))

    update = jit(steps) if captured else steps
    held: list[tuple[Tensor, Any]] = []
    for _ in range(3):
        for which in data.draw(st.sets(st.integers(0, 2)), "held"):
            held.append((tensors[which].detach(), wide[which]))
            held.append((tensors[which] - 1, wide[which] - 1))
        update(tensors)
        Tensor.realize(*tensors)
        for name, target in program:
            wide[target] = UPDATES[name][1](wide[target], wide[(target + 1) % 3])
    for found, wanted in (*held, *zip(tensors, wide, strict=True)):
        scale = max(1.0, np.abs(wanted).max())
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-5 * scale)


# ---- what a kernel allows ------------------------------------------------------------------------


def kernels_of(build: Callable[[Tensor, Tensor], Tensor]) -> list[kernel.Kernel]:
    """The kernels that an expression of two matrices is computed by."""
    found: list[kernel.Kernel] = []
    plain = inplace.overwritable

    def seen(made: kernel.Kernel) -> Any:
        found.append(made)
        return plain(made)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inplace, "overwritable", seen)
        build(tensor(values(17, 17)), tensor(values(17, 17, seed=1))).realize()
    return found


@pytest.mark.parametrize(
    ("build", "allowed"),
    [
        (lambda x, y: x * 1.25 + y, [2]),
        (lambda x, y: x * 1.25 + y.T, [1]),
        (lambda x, y: x + x.T * 1.25, [0]),
        (lambda x, y: (x * 1.25).sum(1), [0]),
        (lambda x, y: x * 1.25 - x.amax(1).reshape(17, 1), [0]),
        (lambda x, y: (x @ y) * 1.25, [0]),
        (lambda x, y: (x * 1.25).flip(0), [0]),
        (lambda x, y: x * 1.25 > y, [0]),
    ],
    ids=["own", "one of two", "own and another's", "sum", "row", "product", "flipped", "narrower"],
)
def test_only_elements_read_where_they_are_written_are_written_over(
    build: Callable[[Tensor, Tensor], Tensor], allowed: list[int]
) -> None:
    assert [
        sum(map(len, inplace.overwritable(made).values())) for made in kernels_of(build)
    ] == allowed


def copied(times: int, index: Any) -> kernel.Kernel:
    """out[index] = in[index] + 1, ``times`` over in a loop of its own, for each of 8 elements."""
    out, given = (kernel.Param(n, dtypes.float32, 8, n) for n in ("out", "in"))
    each, again = Var("i", 8), Var("r", times)
    load = kernel.Instr(ops.LOAD, dtypes.float32, attr=(given, index(each)))
    value = kernel.Instr(ops.ADD, dtypes.float32, (load, load))
    body: list[kernel.Stmt] = [load, value, kernel.Store(out, variable(each), value)]
    loop = kernel.Loop(each, "grid", [kernel.Loop(again, "serial", body)])
    return kernel.Kernel("copied", (out, given), [loop])


@pytest.mark.parametrize(
    ("made", "allowed"),
    [
        (copied(1, variable), 1),
        (copied(2, variable), 0),
        (copied(1, lambda v: variable(v) * -1 + 7), 0),
    ],
    ids=["once", "twice", "backwards"],
)
def test_a_store_that_is_repeated_would_read_what_it_wrote(
    made: kernel.Kernel, allowed: int
) -> None:
    assert sum(map(len, inplace.overwritable(made).values())) == allowed
