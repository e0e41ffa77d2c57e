"""Long graphs, many steps, threads, forks, pickles: what a program does to a library over a day."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

from coregrad import Device, Tensor, dtypes, engine, nn, no_grad, plugins
from coregrad.errors import BackendUnavailable
from coregrad.ir import graph


def run_python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own, which has to end well."""
    path = os.pathsep.join(p for p in sys.path if p)
    environment = {k: v for k, v in os.environ.items() if k not in ("DEBUG", "COREGRAD_DEVICE")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# ---- long graphs ---------------------------------------------------------------------------------

LONG = 10_000


def chain(x: Tensor, operations: int) -> Tensor:
    """y = y*a + b, over and over: as many operations as asked for."""
    for _ in range(operations // 2):
        x = x * 1.0001 + 0.0001
    return x


def test_a_chain_of_10000_operations_is_built_differentiated_run_and_freed(device: str) -> None:
    before = graph.alive()
    x = Tensor([0.5, 0.25], device=device, requires_grad=True)
    y = chain(x, LONG)
    y.sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), [1.0001 ** (LONG // 2)] * 2, rtol=1e-3)
    wide = np.array([0.5, 0.25])
    for _ in range(LONG // 2):
        wide = wide * 1.0001 + 0.0001
    np.testing.assert_allclose(y.detach().numpy(), wide, rtol=1e-3)
    del x, y
    gc.collect()
    assert graph.alive() < before + 1000


def test_a_graph_of_100000_operations_that_is_never_run_is_freed_without_recursion() -> None:
    before = graph.alive()
    x = chain(Tensor([1.0], device="numpy"), 100_000)
    assert graph.alive() >= before + 100_000
    del x
    gc.collect()
    assert graph.alive() < before + 1000


def calls_of(work: Callable[[], object]) -> int:
    """How many functions, Python's and C's, a piece of work calls: time that no clock disturbs."""
    count = 0
    graph.alive()  # no sweep over what earlier work left behind

    def observe(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        if event in ("call", "c_call"):
            count += 1

    sys.setprofile(observe)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def _built(device: str, n: int) -> None:
    chain(Tensor([0.5], device=device), n)


def _differentiated(device: str, n: int) -> None:
    x = Tensor([0.5], device=device, requires_grad=True)
    chain(x, n).sin().sum().backward()
    assert x.grad is not None
    x.grad.realize()


def _computed(device: str, n: int) -> None:
    chain(Tensor([0.5], device=device), n).realize()


def _doubled(device: str, n: int) -> None:
    """Every value is used twice: 2**n paths through n nodes."""
    x = Tensor([1.0], device=device, requires_grad=True)
    y = x
    for _ in range(n // 8):
        y = (y + y) * 0.5
    y.sum().backward()
    y.detach().realize()


def _left_waiting(device: str, n: int) -> None:
    """Something else is computed while each state of a long loop is still held."""
    states = [Tensor([0.5], device=device)]
    for _ in range(n):
        states.append(states[-1] * 0.5)
    Tensor([1.0], device=device).exp().realize()


@pytest.mark.parametrize("work", [_built, _differentiated, _computed, _doubled, _left_waiting])
def test_work_grows_linearly_with_the_number_of_operations(
    device: str, work: Callable[[str, int], None]
) -> None:
    work(device, 100)  # what happens once only
    counts = [calls_of(lambda n=n: work(device, n)) for n in (800, 1600)]  # type: ignore[misc]
    assert counts[0] > 800 // 8
    assert counts[1] < 2.4 * counts[0], counts


# ---- many steps ----------------------------------------------------------------------------------


def live_bytes() -> int:
    """Bytes of all buffers that are alive."""
    gc.collect()
    return sum(s.nbytes for s in gc.get_objects() if type(s) is engine.Storage)


def footprint() -> dict[str, int]:
    """What must not grow while a program repeats itself."""
    return {
        "bytes": live_bytes(),
        "nodes": graph.alive(),
        "plans": len(engine._plans),
        "tensors": sum(type(o) is Tensor for o in gc.get_objects()),
    }


def test_memory_does_not_grow_over_300_steps_of_training(device: str) -> None:
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((16, 8)).astype(np.float32)
    labels = rng.integers(0, 4, 16)
    Tensor.manual_seed(0)
    with Device(device):
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
        optimizer = nn.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        sizes = []
        for step in range(300):
            optimizer.zero_grad()
            loss = model(Tensor(inputs)).cross_entropy(Tensor(labels))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if step in (20, 299):
                sizes.append(footprint())
    assert losses[-1] < 0.5 * losses[0]
    early, late = sizes
    assert late["bytes"] <= early["bytes"]
    assert late["plans"] == early["plans"], "steps that are alike were compiled anew"
    assert late["nodes"] <= early["nodes"] + 50
    assert late["tensors"] <= early["tensors"] + 5


def test_a_running_total_keeps_no_graph(device: str) -> None:
    w = Tensor(np.ones(64, np.float32), device=device, requires_grad=True)
    total: Any = 0.0
    sizes = []
    for step in range(60):
        loss = (w * float(step)).sum()
        total += loss.data
        if step in (10, 59):
            sizes.append((live_bytes(), graph.alive()))
    assert float(total) == 64.0 * sum(range(60))
    assert not total.requires_grad
    assert sizes[1][0] <= sizes[0][0] + 1024
    assert sizes[1][1] <= sizes[0][1] + 200


def test_values_that_nobody_holds_are_given_back(device: str) -> None:
    before = live_bytes()
    x = Tensor(np.ones((256, 256), np.float32), device=device)
    y = (x @ x).relu().realize()
    assert live_bytes() >= before + 2 * x.nbytes
    del x, y
    assert live_bytes() <= before


# ---- reading in the middle -----------------------------------------------------------------------


def test_reading_inside_an_expression_changes_nothing_that_follows(device: str) -> None:
    values = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)

    def program(look: Callable[[Tensor], object]) -> list[Any]:
        x = Tensor(values, device=device, requires_grad=True)
        h = x * 2 + 1
        look(h)
        h = h.tanh()
        look(h)
        y = (h @ h.T).softmax(-1)
        look(y)
        y.square().sum().backward()
        look(x)
        assert x.grad is not None
        return [y.detach().numpy(), x.grad.numpy()]

    plain = program(lambda t: None)
    for look in (repr, str, lambda t: t.numpy(), lambda t: t.realize(), lambda t: t[0].tolist()):
        for found, wanted in zip(program(look), plain, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-7)


def test_numbers_are_formatted_as_python_formats_them(device: str) -> None:
    loss = Tensor([2.0, 4.5], device=device).mean()
    assert f"{loss:.4f}" == "3.2500"
    assert f"{loss.item():8.2e} {loss:>10.1f}|" == "3.25e+00        3.2|"
    assert f"{Tensor([3], device=device):04d}" == "0003"
    assert f"{loss}" == repr(loss)
    assert "%.3f" % loss == "3.250"  # noqa: UP031 (the old way works, too)
    assert round(float(loss), 1) == 3.2
    assert "3.25" in str(loss)


def test_a_printed_tensor_says_what_it_is(device: str) -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]], device=device, requires_grad=True)
    text = repr(x)
    assert text.startswith("Tensor([[1., 2.],")
    assert "float32" in text
    assert "requires_grad=True" in text
    assert len(repr(Tensor(np.zeros((1000, 1000), np.float32), device=device))) < 2000


# ---- threads -------------------------------------------------------------------------------------


def _in_threads(count: int, work: Callable[[int], None]) -> None:
    failures: list[BaseException] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            start.wait(timeout=60)
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive(), "a thread is stuck"
    if failures:
        raise failures[0]


def test_threads_compute_and_differentiate_side_by_side(device: str) -> None:
    def work(number: int) -> None:
        values = np.random.default_rng(number).standard_normal((24, 24)).astype(np.float32)
        for turn in range(6):
            x = Tensor(values, device=device, requires_grad=True)
            y = (x @ x.T) * (number + 1) + turn
            y.relu().sum().backward()
            wide = values.astype(np.float64)
            mask = ((wide @ wide.T) * (number + 1) + turn > 0).astype(np.float64)
            grad = (mask + mask.T) @ wide * (number + 1)
            assert x.grad is not None
            np.testing.assert_allclose(x.grad.numpy(), grad, rtol=1e-3, atol=1e-3)

    _in_threads(6, work)


def test_threads_that_read_one_pending_tensor_all_see_its_value(device: str) -> None:
    for _ in range(5):
        x = Tensor(np.arange(1000, dtype=np.float32), device=device)
        y = (x * 3 + 1).sqrt()
        seen: list[Any] = []
        _in_threads(6, lambda n, y=y, seen=seen: seen.append(y.numpy()))  # type: ignore[misc]
        assert len(seen) == 6
        for found in seen:
            np.testing.assert_allclose(found, np.sqrt(np.arange(1000) * 3 + 1.0), rtol=1e-6)


def test_no_grad_in_one_thread_is_no_concern_of_another(device: str) -> None:
    flags: dict[int, bool | None] = {}
    inside = threading.Barrier(2)

    def work(number: int) -> None:
        w = Tensor([1.0], device=device, requires_grad=True)
        if number:
            with no_grad():
                inside.wait(timeout=60)
                flags[number] = (w * 2).requires_grad
                inside.wait(timeout=60)
        else:
            inside.wait(timeout=60)
            flags[number] = (w * 2).requires_grad
            inside.wait(timeout=60)

    _in_threads(2, work)
    assert flags == {0: True, 1: False}


def test_a_default_device_in_one_thread_is_no_concern_of_another() -> None:
    names: dict[int, str] = {}
    inside = threading.Barrier(2)
    here = Device.DEFAULT

    def work(number: int) -> None:
        if number:
            with Device("numpy"):
                inside.wait(timeout=60)
                names[number] = Tensor([1.0]).device
                inside.wait(timeout=60)
        else:
            inside.wait(timeout=60)
            names[number] = Tensor([1.0]).device
            inside.wait(timeout=60)

    _in_threads(2, work)
    assert names == {0: here, 1: "numpy"}


# ---- forks ---------------------------------------------------------------------------------------

FORK = """
import os, sys, threading
import numpy as np
from coregrad import Tensor
from coregrad.errors import DeviceError
rng = np.random.default_rng(0)
big = rng.standard_normal((700, 700)).astype(np.float32)
x = Tensor(big, device=sys.argv[1] if len(sys.argv) > 1 else DEVICE)
before = (x @ x).relu().sum().item()
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        try:
            again = (x @ x).relu().sum().item()         # known kernels, old memory
            fresh = (Tensor(big, device=x.device) * 3 - 1).exp().sum(axis=0).numpy()
        except DeviceError:
            os._exit(4)
        good = again == before and np.allclose(fresh, np.exp(big * 3.0 - 1).sum(0), rtol=1e-3)
        os._exit(0 if good else 3)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
assert (x @ x).relu().sum().item() == before
print(codes)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_computes_after_its_parent_has(device: str) -> None:
    size = "700" if device != "numpy" else "40"  # the reference is slow
    done = run_python(FORK.replace("DEVICE", repr(device)).replace("700", size))
    assert done.stdout == f"{[_forked(device)] * 3}\n", done.stderr


def _forked(device: str) -> int:
    """How a forked child ends: 0 having computed, or 4 refused where no driver survives a fork."""
    return 0 if device in ("cpu", "numpy") else 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_while_another_thread_compiles_does_not_hang(device: str) -> None:
    code = f"""
import os, threading
from coregrad import Tensor
from coregrad.errors import DeviceError
x = Tensor([[1.0, 2.0], [3.0, 4.0]], device={device!r})
stop = threading.Event()
def busy():
    i = 0
    while not stop.is_set():                            # new kernels, hence a busy compiler
        i += 1
        y = x
        for bit in bin(i)[2:]:
            y = y * 2 if bit == "1" else y.exp()
        y.realize()
thread = threading.Thread(target=busy)
thread.start()
codes = []
for _ in range(8):
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if (x * 2).sum().item() == 20.0 else 3)
        except DeviceError:
            os._exit(4)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop.set()
thread.join()
print(set(codes))
"""
    done = run_python(code, COREGRAD_CACHE="0")
    assert done.stdout == f"{{{_forked(device)}}}\n", done.stderr


# ---- copies and pickles --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_a_pickled_tensor_comes_back_with_every_bit(device: str, dtype: dtypes.DType) -> None:
    x = Tensor(np.array([[0, 1, 1], [1, 0, 1]]), device=device).cast(dtype)
    back = pickle.loads(pickle.dumps(x))
    assert (back.dtype, back.shape, back.device) == (x.dtype, x.shape, x.device)
    np.testing.assert_array_equal(back.numpy(), x.numpy())


def test_a_pickle_keeps_nan_infinity_and_the_sign_of_zero(device: str) -> None:
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45], np.float32)
    back = pickle.loads(pickle.dumps(Tensor(values, device=device)))
    np.testing.assert_array_equal(back.numpy().view(np.uint32), values.view(np.uint32))


def test_a_pickle_keeps_the_flag_and_the_gradient_and_shares_nothing(device: str) -> None:
    w = Tensor([1.0, 2.0], device=device, requires_grad=True)
    (w * w).sum().backward()
    for back in (pickle.loads(pickle.dumps(w)), copy.deepcopy(w)):
        assert back.requires_grad is True
        assert back.grad is not None
        assert back.grad.tolist() == [2.0, 4.0]
        with no_grad():
            back.add_(1)
        assert w.tolist() == [1.0, 2.0]
        assert back.tolist() == [2.0, 3.0]


def test_a_pickle_of_a_pending_expression_holds_its_value(device: str) -> None:
    x = Tensor([1.0, 2.0], device=device)
    assert pickle.loads(pickle.dumps(x * 2 + 1)).tolist() == [3.0, 5.0]


def test_a_whole_model_and_its_optimizer_travel_to_another_process(device: str) -> None:
    Tensor.manual_seed(3)
    with Device(device):
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        x = Tensor([[1.0, -2.0, 0.5]])
        wanted = model(x).tolist()
        packed = pickle.dumps((model, x))
    code = f"import pickle; model, x = pickle.loads({packed!r}); print(model(x).tolist())"
    done = run_python(code)
    assert done.stdout.strip() == str(wanted), done.stderr
    again, _ = pickle.loads(packed)
    assert all(isinstance(p, nn.Parameter) for p in again.parameters())
    assert all(p.requires_grad for p in again.parameters())


# ---- devices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
@pytest.mark.parametrize("first", [True, False])
def test_tensors_made_alike_on_two_devices_are_two_tensors(device: str, first: bool) -> None:
    """Their expressions have no leaves, so they are one graph; their memory must not be one."""
    one, two = (device, "numpy") if first else ("numpy", device)
    a, b = (Tensor.arange(7, device=d) * 3 for d in (one, two))
    c, d = (Tensor.ones(3, device=d) for d in (one, two))
    a.realize(c)
    assert b.tolist() == (b + 0).tolist() == [0, 3, 6, 9, 12, 15, 18]
    assert (d * 2).tolist() == [2.0, 2.0, 2.0]
    v, w = (Tensor.zeros(4, device=d, requires_grad=True) for d in (one, two))
    for x in (v, w):
        (x.exp() * 2).sum().backward()
        assert x.grad is not None
        x.assign(x.detach() - x.grad)
        x.realize()
    assert v.tolist() == w.tolist() == (w + 0).tolist() == [-2.0] * 4
    assert (v.device, w.device) == (one, two)


@pytest.mark.parametrize("name", ["cuda", "opencl", "metal"])
def test_a_device_without_its_plugin_names_the_package_to_install(name: str) -> None:
    if any(row.name == name for row in plugins.describe()):
        pytest.skip(f"a plugin for {name} is installed")
    with pytest.raises(BackendUnavailable, match=f"pip install coregrad-{name}$"):
        Tensor([1.0], device="numpy").to(name)
    with pytest.raises(BackendUnavailable, match=f"pip install coregrad-{name}$"):
        Tensor([1.0], device=f"{name}:1")
    if name == "cuda":
        with pytest.raises(BackendUnavailable, match=r"pip install coregrad-cuda$"):
            Tensor([1.0], device="numpy").cuda()


def test_the_default_device_can_be_asked_for_from_the_command_line() -> None:
    done = run_python("from coregrad import Device; print(Device.DEFAULT)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in {row.name for row in plugins.describe()}
    chosen = run_python(
        "from coregrad import Device; print(Device.DEFAULT)", COREGRAD_DEVICE="numpy"
    )
    assert chosen.stdout == "numpy\n"


def test_importing_loads_no_driver_and_no_plugin() -> None:
    code = (
        "import sys, coregrad\n"
        "print([m for m in ('llvmlite', 'pluggy', 'coregrad_cpu', 'importlib.metadata')"
        " if m in sys.modules])"
    )
    done = run_python(code)
    assert done.stdout == "[]\n", done.stderr


def test_a_program_that_ends_in_the_middle_of_its_work_ends_well(device: str) -> None:
    code = (
        "from coregrad import Tensor\n"
        f"x = Tensor.ones(300, 300, device={device!r})\n"
        "y = (x @ x).realize()\n"
        "z = y * 2 + x  # never computed\n"
        "print('end')\n"
    )
    done = run_python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
