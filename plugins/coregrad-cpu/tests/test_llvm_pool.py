"""The thread pool and the run list: order, sharing out, forks, many Python threads, exit."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from coregrad_cpu.llvm.compiler import Compiler
from coregrad_cpu.llvm.pool import Pool, Record, RunList

# args[0] points to a counter per iteration, args[1] to the sum of all iterations.
COUNT = """
define void @kernel(ptr %args, i64 %chunk0, i64 %chunk1) {
entry:
  %counters = load ptr, ptr %args
  %sum.p = getelementptr ptr, ptr %args, i64 1
  %sum = load ptr, ptr %sum.p
  br label %head
head:
  %i = phi i64 [ %chunk0, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %chunk1
  br i1 %more, label %body, label %done
body:
  %c = getelementptr i64, ptr %counters, i64 %i
  %old = load i64, ptr %c
  %new = add i64 %old, 1
  store i64 %new, ptr %c
  %all = atomicrmw add ptr %sum, i64 %i seq_cst
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}
"""
# y[i] = 2*x[i] + 1, so that the order of many of them shows in the result.
STEP = """
define void @kernel(ptr %args, i64 %chunk0, i64 %chunk1) {
entry:
  %y = load ptr, ptr %args
  br label %head
head:
  %i = phi i64 [ %chunk0, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %chunk1
  br i1 %more, label %body, label %done
body:
  ; reads the mirrored element of the other half: every chunk needs what other chunks wrote before
  %other.p = getelementptr ptr, ptr %args, i64 1
  %x = load ptr, ptr %other.p
  %mirror = sub i64 1023, %i
  %from = getelementptr i64, ptr %x, i64 %mirror
  %v = load i64, ptr %from
  %double = shl i64 %v, 1
  %result = add i64 %double, 1
  %to = getelementptr i64, ptr %y, i64 %i
  store i64 %result, ptr %to
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}
"""
COMPILER = Compiler(None)


@pytest.fixture(params=[(1, True), (2, True), (5, True), (3, False)], ids=str)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """Pools of several sizes, with and without waiting in native code."""
    threads, native = request.param
    pool = Pool(COMPILER, threads, native_wait=native and sys.platform.startswith("linux"))
    yield pool
    pool.stop()


def arguments(*arrays: np.ndarray) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(arrays))(*(a.ctypes.data for a in arrays))


@pytest.mark.parametrize(("grid", "chunk"), [(1, 1), (10, 3), (1000, 7), (1000, 1000), (64, 1)])
def test_every_iteration_runs_once(pool: Pool, grid: int, chunk: int) -> None:
    counters, total = np.zeros(grid, np.int64), np.zeros(1, np.int64)
    block = arguments(counters, total)
    runlist = RunList([Record(COMPILER.address(COUNT), ctypes.addressof(block), grid, chunk)])
    for _ in range(50):
        with pool.lock:
            pool.run(runlist)
    assert (counters == 50).all()
    assert total[0] == 50 * grid * (grid - 1) // 2


def test_a_record_begins_when_all_before_it_have_ended(pool: Pool) -> None:
    a, b = np.zeros(1024, np.int64), np.zeros(1024, np.int64)
    forth, back = arguments(b, a), arguments(a, b)
    function = COMPILER.address(STEP)
    pair = [Record(function, ctypes.addressof(block), 1024, 37) for block in (forth, back)]
    runlist = RunList(pair * 15)
    for _ in range(40):
        a[:] = 0
        with pool.lock:
            pool.run(runlist)
        assert (a == 2**30 - 1).all()


def test_workers_sleep_and_wake_again(pool: Pool) -> None:
    counters, total = np.zeros(100, np.int64), np.zeros(1, np.int64)
    block = arguments(counters, total)
    runlist = RunList([Record(COMPILER.address(COUNT), ctypes.addressof(block), 100, 5)])
    for _ in range(5):
        with pool.lock:
            pool.run(runlist)
        time.sleep(0.01)
    before = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before < 0.1, "idle workers must not spin"
    with pool.lock:
        pool.run(runlist)
    assert (counters == 6).all()


def test_buried_lists_go_when_nobody_can_look_at_them(pool: Pool) -> None:
    total = np.zeros(1, np.int64)
    counters = np.zeros(200, np.int64)
    block = arguments(counters, total)
    alive = []
    for _ in range(300):
        runlist = RunList([Record(COMPILER.address(COUNT), ctypes.addressof(block), 200, 9)] * 3)
        with pool.lock:
            pool.run(runlist)
        pool.bury(runlist)
        alive.append(weakref.ref(runlist))
        del runlist
    assert (counters == 900).all()
    assert alive[-1]() is not None
    deadline = time.monotonic() + 20
    while any(list_() is not None for list_ in alive[:-1]) and time.monotonic() < deadline:
        with pool.lock:
            pool.run(RunList([]))
    assert not [list_ for list_ in alive[:-1] if list_() is not None]


def test_many_python_threads_may_launch(pool: Pool) -> None:
    grid = 500
    function = COMPILER.address(COUNT)
    results = []

    def work() -> None:
        counters, total = np.zeros(grid, np.int64), np.zeros(1, np.int64)
        block = arguments(counters, total)
        runlist = RunList([Record(function, ctypes.addressof(block), grid, 11)])
        for _ in range(100):
            with pool.lock:
                pool.run(runlist)
        results.append((counters == 100).all())
        pool.bury(runlist)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert results == [True] * 6


def test_a_stopped_pool_still_runs_on_the_calling_thread() -> None:
    pool = Pool(COMPILER, 4)
    counters, total = np.zeros(30, np.int64), np.zeros(1, np.int64)
    block = arguments(counters, total)
    runlist = RunList([Record(COMPILER.address(COUNT), ctypes.addressof(block), 30, 2)])
    for stop in (False, True, False):
        if stop:
            pool.stop()
        with pool.lock:
            pool.run(runlist)
    assert (counters == 3).all()
    assert not [t for t in threading.enumerate() if t in pool._crew.workers]


PROGRAM = """
import os, sys, threading
import numpy as np
from coregrad_cpu.llvm.backend import Backend
from coregrad.dtypes import float32
from coregrad.hookspecs import Header
from coregrad.ir.kernel import Param
b = Backend()
n = 1 << 17
params = (Param("o", float32, n, "out"), Param("x", float32, n, "in"))
frame = b.begin_kernel(Header("k", params, n), None)
for i in frame.loop("i", n, "grid", 8, False):
    x = b.lower_load(frame, params[1], i, 1, None, float32, 8)
    for _ in range(8):
        x = b.lower_add(frame, x, x, float32, 8)
    b.lower_store(frame, params[0], i, 1, x, None, float32, 8)
device = b.open_device(0)
kernel = device.compile(frame.finish())
record, _ = kernel.plan(n)
assert record.chunks > 4 or device.threads == 1, record.chunks

def check(seed):
    x = np.random.default_rng(seed).standard_normal(n).astype(np.float32)
    out, buffers = np.empty_like(x), [device.allocate(4 * n) for _ in range(2)]
    device.copy_in(buffers[1], memoryview(x))
    device.launch(kernel, buffers, n)
    device.copy_out(buffers[0], memoryview(out))
    for buffer in buffers:
        device.free(buffer)
    assert (out == x * 256).all()
"""
FORK = """
for i in range(6):
    check(i)
stop = False
def busy():
    while not stop:
        check(99)
thread = threading.Thread(target=busy)
thread.start()
for i in range(6):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            check(i)
            check(i + 1)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
stop = True
thread.join()
check(5)
print("well")
"""
THREADS = """
errors = []
def many(k):
    try:
        for i in range(6):
            check(100 * k + i)
    except BaseException as error:
        errors.append(error)
threads = [threading.Thread(target=many, args=(k,)) for k in range(6)]
[t.start() for t in threads]
[t.join() for t in threads]
assert not errors, errors
print("well")
"""
EXIT = """
check(0)
print("well")
"""


@pytest.mark.parametrize("threads", ["1", "2", "6"])
@pytest.mark.parametrize("program", [FORK, THREADS, EXIT], ids=["fork", "threads", "exit"])
def test_a_process_ends_well(program: str, threads: str) -> None:
    if program is FORK and not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    environment = {**os.environ, "COREGRAD_NUM_THREADS": threads, "COREGRAD_CACHE": "0"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM + program],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "well", "")
