"""What is promised of threads, shown in processes of their own: forks, idleness, drops, limits."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llvmlite")

from coregrad.errors import CoregradError
from coregrad_cpu.llvm.processors import quota, thread_count

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def run_python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own, whose threads are more than this machine's CPUs."""
    environment = {k: v for k, v in os.environ.items() if k not in ("DEBUG", "COREGRAD_DEVICE")}
    variables = {"COREGRAD_NUM_THREADS": "4", **variables}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def ends_well(code: str, **variables: str) -> None:
    done = run_python(code, **variables)
    assert (done.returncode, done.stdout.strip()) == (0, "well"), done.stderr


# ---- forks -------------------------------------------------------------------------------------

# A step whose kernels are large enough to be shared out, and what NumPy says of it.
STEP = """
import multiprocessing, os, threading
import numpy as np
from coregrad import Device, Tensor, jit
from coregrad.plugins import open_device
a = np.random.default_rng(0).standard_normal((400, 400)).astype(np.float32)
x = Tensor(a, device="cpu")
def step(x):
    return (x @ x).relu().sum(), (x * 3 - 1).exp().sum(axis=0)
captured = jit(step)
wide = a.astype(np.float64)
want = np.maximum(wide @ wide, 0).sum(), np.exp(wide * 3 - 1).sum(0)
def check():
    for function in (step, captured):
        for found, wanted in zip(function(x), want):
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4)
def workers():
    return sum(t.name.startswith("coregrad-cpu") for t in threading.enumerate())
def in_child(work):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
"""

NESTED = """
check()
assert workers() == open_device("cpu").device.threads - 1
def grandchild():
    check()
    assert workers() == open_device("cpu").device.threads - 1
def child():
    assert workers() == 0                   # the parent's are not here
    check()
    in_child(grandchild)
    check()
for _ in range(3):
    in_child(child)
check()
print("well")
"""

POOL = """
check()
def work(number):
    check()
    return float((Tensor(np.full((300, 300), number, np.float32)) @ Tensor.ones(300, 300)).sum().item())
with multiprocessing.get_context("fork").Pool(3) as pool:
    found = pool.map(work, range(6))
assert found == [300.0 ** 3 * n for n in range(6)], found
check()
print("well")
"""  # noqa: E501

BUSY = """
check()
stop = threading.Event()
def busy():
    while not stop.is_set():
        check()
threads = [threading.Thread(target=busy) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(5):
    in_child(check)
stop.set()
for thread in threads:
    thread.join()
check()
print("well")
"""


@needs_fork
@pytest.mark.parametrize("program", [NESTED, POOL, BUSY], ids=["nested", "pool", "busy"])
def test_a_forked_child_computes_what_its_parent_does_plain_and_captured(program: str) -> None:
    ends_well(STEP + program)


# ---- Python threads ----------------------------------------------------------------------------

MIXED = """
import threading
import numpy as np
from coregrad import Tensor, jit, nn
shared = jit(lambda x: (x @ x.T).relu().sum(1))
net = nn.Linear(64, 64)
failures, turns = [], []
def realize(k):
    a = np.random.default_rng(k).standard_normal((200, 300)).astype(np.float32)
    for i in range(12):
        found = (Tensor(a) * (k + 1.5 + i)).exp().sum(0).log().numpy()
        np.testing.assert_allclose(found, np.log(np.exp(a * (k + 1.5 + i)).sum(0)), rtol=1e-3)
def replay(k):
    a = np.random.default_rng(k).standard_normal((128, 200)).astype(np.float32)
    want = np.maximum(a @ a.T, 0).sum(1)
    for i in range(12):
        np.testing.assert_allclose(shared(Tensor(a)).numpy(), want, rtol=1e-3)
def compiling(k):
    for i in range(6):                          # shapes that no one has met
        n = 1000 * (k + 1) + i
        found = (Tensor(np.full((2, n), 2, np.float32)) + 1).sum(1).tolist()
        assert found == [3.0 * n] * 2, found
def capturing(k):
    a = np.random.default_rng(k).standard_normal((5, 64)).astype(np.float32)
    for i in range(3):
        step = jit(lambda x: net(x) * (k + 1.0))
        found, plain = step(Tensor(a)).numpy(), (net(Tensor(a)) * (k + 1.0)).detach().numpy()
        np.testing.assert_allclose(found, plain, rtol=1e-4, atol=1e-5)
def run(k):
    try:
        (realize, replay, compiling, capturing)[k % 4](k)
        turns.append(k)
    except BaseException as error:
        failures.append(error)
threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(60)
assert not failures, failures
assert sorted(turns) == list(range(8)), f"stuck: {turns}"
print("well")
"""


def test_eight_threads_realise_replay_compile_and_capture_without_a_deadlock() -> None:
    ends_well(MIXED, COREGRAD_CACHE="0")


# ---- idleness ----------------------------------------------------------------------------------

IDLE = """
import threading, time
import numpy as np
from coregrad import Tensor, jit
f = jit(lambda x: (x @ x).relu().sum())
x = Tensor(np.ones((500, 500), np.float32), device="cpu")
for _ in range(3):
    f(x).item()
    (x * 2).sum(0).numpy()
assert sum(t.name.startswith("coregrad-cpu") for t in threading.enumerate()) == 3
for _ in range(10):                             # workers look around for a while before they sleep
    before = time.process_time()                # CPU time of all threads
    time.sleep(1)
    used = time.process_time() - before
    if used < 0.01:
        break
else:
    raise AssertionError(f"{used} s of CPU time in a second without work")
assert f(x).item() == 500.0**3
print("well")
"""


def test_workers_of_an_idle_process_use_no_processor() -> None:
    ends_well(IDLE)


# ---- devices that go ---------------------------------------------------------------------------

DROP = """
import gc, threading
import numpy as np
from coregrad.dtypes import float32
from coregrad.hookspecs import Header
from coregrad.ir.kernel import Param
from coregrad_cpu.llvm.backend import Backend
from coregrad_cpu.llvm import device as room
b = Backend()
n = 1 << 16
params = (Param("o", float32, n, "out"), Param("x", float32, n, "in"))
frame = b.begin_kernel(Header("k", params, n), None)
for i in frame.loop("i", n, "grid", 8, False):
    x = b.lower_load(frame, params[1], i, 1, None, float32, 8)
    for _ in range(8):
        x = b.lower_add(frame, x, x, float32, 8)
    b.lower_store(frame, params[0], i, 1, x, None, float32, 8)
text = frame.finish()
x = np.arange(n, dtype=np.float32)
if not NATIVE:
    made = room.Pool
    room.Pool = lambda compiler, threads: made(compiler, threads, native_wait=False)
def work(device, replayed):
    kernel, buffers = device.compile(text), [device.allocate(4 * n) for _ in range(2)]
    device.copy_in(buffers[1], memoryview(x))
    assert kernel.plan(n)[0].chunks > 1
    if replayed:
        device.replay([(kernel, (0, 1), n)] * 3).run(buffers)
    else:
        device.launch(kernel, buffers, n)
    out = np.empty_like(x)
    device.copy_out(buffers[0], memoryview(out))
    assert (out == x * 256).all()
def count():
    return sum(t.name.startswith("coregrad-cpu") for t in threading.enumerate())
for turn in range(40):
    device = b.open_device(0)
    for _ in range(3):
        work(device, turn % 2)
    del device                                  # while its workers look for more
    gc.collect()
workers = [t for t in threading.enumerate() if t.name.startswith("coregrad-cpu")]
for worker in workers:
    worker.join(30)
assert count() == 0, "workers of dropped devices live on"
last = b.open_device(0)
work(last, False)
assert count() == 3
if KEPT:                                        # until the interpreter takes it down
    import sys
    sys.kept = last
print("well")
"""


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "dropped"])
@pytest.mark.parametrize("native", [True, False], ids=["futex", "portable"])
def test_a_dropped_device_ends_its_workers_before_its_code_goes(native: bool, kept: bool) -> None:
    done = run_python(f"NATIVE, KEPT = {native}, {kept}\n{DROP}", COREGRAD_CACHE="0")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "well", "")


# ---- how many ----------------------------------------------------------------------------------

HOW_MANY = """
import threading
import numpy as np
from coregrad import Tensor
a = np.random.default_rng(0).standard_normal((300, 300)).astype(np.float32)
x = Tensor(a, device="cpu")
np.testing.assert_allclose((x @ x).sum(0).numpy(), (a @ a).sum(0), rtol=1e-2, atol=1e-2)
print(1 + sum(t.name.startswith("coregrad-cpu") for t in threading.enumerate()))
"""


@pytest.mark.parametrize("threads", [1, 2, 2 * (os.cpu_count() or 1) + 3])
def test_the_variable_says_how_many_threads_compute(threads: int) -> None:
    done = run_python(HOW_MANY, COREGRAD_NUM_THREADS=str(threads))
    assert done.stdout == f"{threads}\n", done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "COREGRAD_NUM_THREADS=0; give a number from 1"),
        ("-3", "COREGRAD_NUM_THREADS=-3; give a number from 1"),
        ("1000000", "COREGRAD_NUM_THREADS=1000000; give a number from 1"),
        ("two", "COREGRAD_NUM_THREADS='two' is not an integer"),
        ("1.5", "COREGRAD_NUM_THREADS='1.5' is not an integer"),
    ],
)
def test_a_number_of_threads_that_makes_no_sense_is_an_error(
    text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COREGRAD_NUM_THREADS", text)
    with pytest.raises(CoregradError, match=message):
        thread_count()


def test_the_device_says_so_too() -> None:
    for device in ("cpu", ""):  # named, and chosen: no other one is taken instead
        done = run_python(HOW_MANY, COREGRAD_NUM_THREADS="many", COREGRAD_DEVICE=device)
        assert done.returncode != 0
        assert "SettingError: COREGRAD_NUM_THREADS='many' is not an integer" in done.stderr


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_a_process_that_may_use_one_cpu_uses_one_thread() -> None:
    one = "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    done = run_python(one + HOW_MANY, COREGRAD_NUM_THREADS="")
    assert done.stdout == "1\n", done.stderr


# ---- containers --------------------------------------------------------------------------------


@pytest.fixture
def groups(tmp_path: Path) -> tuple[Path, Path]:
    """Where cgroups would be, and what says in which of them this process is."""
    (tmp_path / "cgroup").mkdir()
    return tmp_path / "cgroup", tmp_path / "own"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_cgroups_there_is_no_quota(groups: tuple[Path, Path]) -> None:
    assert quota(*groups) == math.inf


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("max 100000", math.inf), ("150000 100000", 1.5), ("20000 100000", 0.2), ("", math.inf)],
)
def test_a_container_of_version_2_says_its_quota(
    groups: tuple[Path, Path], text: str, cpus: float
) -> None:
    write(groups[0] / "cpu.max", text + "\n")
    write(groups[1], "0::/\n")
    assert quota(*groups) == cpus


@pytest.mark.parametrize(("allowed", "cpus"), [("-1", math.inf), ("250000", 2.5)])
def test_a_container_of_version_1_says_its_quota(
    groups: tuple[Path, Path], allowed: str, cpus: float
) -> None:
    write(groups[0] / "cpu" / "cpu.cfs_quota_us", allowed + "\n")
    write(groups[0] / "cpu" / "cpu.cfs_period_us", "100000\n")
    assert quota(*groups) == cpus


def test_the_least_quota_around_the_process_holds(groups: tuple[Path, Path]) -> None:
    write(groups[1], "0::/user/job/step\n")
    write(groups[0] / "user" / "cpu.max", "400000 100000\n")
    write(groups[0] / "user" / "job" / "cpu.max", "300000 100000\n")
    write(groups[0] / "user" / "job" / "step" / "cpu.max", "max 100000\n")
    write(groups[0] / "other" / "cpu.max", "100000 100000\n")
    assert quota(*groups) == 3.0


def test_the_groups_of_version_1_are_found_among_those_of_other_resources(
    groups: tuple[Path, Path],
) -> None:
    write(groups[1], "4:memory:/small\n2:cpu,cpuacct:/job\n0::/\n")
    for folder, allowed in (("memory/small", "1"), ("cpu,cpuacct/job", "200000")):
        write(groups[0] / folder / "cpu.cfs_quota_us", allowed + "\n")
        write(groups[0] / folder / "cpu.cfs_period_us", "100000\n")
    assert quota(*groups) == 2.0


def test_half_a_cpu_is_one_thread(
    groups: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COREGRAD_NUM_THREADS", raising=False)
    monkeypatch.setattr("coregrad_cpu.llvm.processors.CGROUPS", groups[0])
    assert 1 <= thread_count() <= (os.cpu_count() or 1)
    write(groups[0] / "cpu.max", "50000 100000\n")
    assert thread_count() == 1
