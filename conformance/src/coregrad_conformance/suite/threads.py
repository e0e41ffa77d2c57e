"""Several threads, and a forked child: values must be right, and nothing may hang."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad import Tensor, dtypes
from coregrad.errors import DeviceError
from coregrad_conformance import oracle, tables
from coregrad_conformance.builder import Builder
from coregrad_conformance.row import Failure, Outcome, Row

if TYPE_CHECKING:
    from coregrad.ir.kernel import Kernel
    from coregrad_conformance.target import Target

GROUP = "threads"
INT = dtypes.int32
THREADS = 6
ROUNDS = 12
SECONDS = 60.0  # until a thread or a child counts as hanging


def rows() -> Iterator[Row]:
    """The rows of this file."""
    for name, run, summary in (
        ("another", _another, "A thread uses the device that another one opened."),
        ("programs", _programs, "Threads compute programs of their own at the same time."),
        ("same-structure", _same_structure, "Threads compute one structure on data of their own."),
        ("compile", _compile, "Threads compile kernels of one name at the same time."),
        ("copies", _copies, "Threads make, copy and drop tensors at the same time."),
        ("shared-input", _shared, "Threads read one tensor that none has computed yet."),
        ("fork", _fork, "A forked child computes, or says that it cannot; it does not hang."),
    ):
        yield Row(f"threads/{name}", "standard", GROUP, run, summary=summary)


def _together(works: list[Callable[[], int]]) -> Outcome:
    """Run all at once; the first exception of any is raised here."""
    barrier = threading.Barrier(len(works))
    counts: list[int] = []
    errors: list[BaseException] = []

    def work(function: Callable[[], int]) -> None:
        barrier.wait()
        try:
            counts.append(function())
        except BaseException as error:  # carried over to the thread that waits
            errors.append(error)

    threads = [threading.Thread(target=work, args=(w,), daemon=True) for w in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    if any(thread.is_alive() for thread in threads):
        raise Failure(f"a thread was not done after {SECONDS:.0f} s", "hang")
    if errors:
        raise errors[0]
    return Outcome(sum(counts))


def _adding(name: str, n: int, number: int) -> Kernel:
    build = Builder(name)
    out, source = build.out(INT, n), build.into(INT, n)
    with build.loop(n, "grid") as i:
        build.store(out, i, build.op("add", build.load(source, i), build.const(number, INT)))
    return build.kernel()


def _check_kernel(target: Target, kernel: Kernel, number: int, seed: str) -> int:
    x = tables.bits(tables.generator(seed), INT, kernel.params[0].size)
    (got,) = target.run_kernel(kernel, [x])
    want = oracle.integers([int(v) + number for v in x], INT)
    return oracle.compare(got, want, INT).compared


def _another(target: Target) -> Outcome:
    """Compiled and launched in turn by other threads, one at a time."""
    total = 0
    for i in range(4):
        kernel = _adding(f"another_{i % 2}", 257, i % 2)

        def work(kernel: Kernel = kernel, i: int = i) -> int:
            return _check_kernel(target, kernel, i % 2, f"another/{i}")

        total += _together([work]).compared + work()
    return Outcome(total)


def _programs(target: Target) -> Outcome:
    """Each thread's program has another shape and other numbers: one that sees another's fails."""

    def work(number: int) -> int:
        compared = 0
        rng = np.random.default_rng(number)
        for turn in range(ROUNDS):
            n = 31 + number * 7 + turn % 3
            a, b = (rng.integers(-1000, 1000, (n, 5)).astype(np.int32) for _ in range(2))
            x, y = Tensor(a, device=target.name), Tensor(b, device=target.name)
            got = ((x * y + number).sum(0) + x.amax(0)).numpy()
            want = (a * b + number).sum(0) + a.max(0)
            compared += _equal(got, want)
        return compared

    return _together([lambda k=k: work(k) for k in range(THREADS)])  # type: ignore[misc]


def _equal(got: Any, want: Any) -> int:
    if not np.array_equal(got, want):
        at = int(np.flatnonzero(np.ravel(got != want))[0])
        raise Failure(f"element {at} is {np.ravel(got)[at]}, expected {np.ravel(want)[at]}")
    return int(np.size(want))


def _same_structure(target: Target) -> Outcome:
    """One plan and one compiled kernel, used from all sides."""

    def work(number: int) -> int:
        compared = 0
        for turn in range(ROUNDS * 2):
            a = np.full(4099, number * 100 + turn, np.int32) + np.arange(4099, dtype=np.int32)
            x = Tensor(a, device=target.name)
            compared += _equal((x * 3 - 7).numpy(), a * 3 - 7)
        return compared

    return _together([lambda k=k: work(k) for k in range(THREADS)])  # type: ignore[misc]


def _compile(target: Target) -> Outcome:
    """Through the engine, whose kernels are named by shape: constants make the difference."""

    def work(number: int) -> int:
        compared = 0
        for turn in range(3):
            constant = number * 3 + turn + 3
            a = np.arange(65, dtype=np.int32)
            x = Tensor(a, device=target.name)
            compared += _equal(
                (x * constant + (x ^ constant)).numpy(), a * constant + (a ^ constant)
            )
        return compared

    return _together([lambda k=k: work(k) for k in range(THREADS)])  # type: ignore[misc]


def _copies(target: Target) -> Outcome:
    def work(number: int) -> int:
        compared = 0
        rng = np.random.default_rng(number)
        kept: list[tuple[Tensor, Any]] = []
        for _ in range(ROUNDS * 4):
            a = rng.integers(0, 255, int(rng.integers(1, 5000))).astype(np.uint8)
            kept.append((Tensor(a, device=target.name), a))
            if len(kept) > 5:
                x, want = kept.pop(int(rng.integers(0, 5)))
                compared += _equal(x.numpy(), want)
        return compared

    return _together([lambda k=k: work(k) for k in range(THREADS)])  # type: ignore[misc]


def _shared(target: Target) -> Outcome:
    """Whoever comes first computes it; all see the same."""
    a = np.arange(4099, dtype=np.int32)
    x = Tensor(a, device=target.name)
    once = x * 5 + 1
    want = a * 5 + 1

    def work(number: int) -> int:
        compared = _equal((once + number).numpy(), want + number)
        return compared + _equal(once.numpy(), want)

    return _together([lambda k=k: work(k) for k in range(THREADS)])  # type: ignore[misc]


# ---- fork --------------------------------------------------------------------------------------

RIGHT, WRONG, REFUSED, OTHER = 0, 3, 4, 5  # exit statuses of the child


def _fork(target: Target) -> Outcome:
    if not hasattr(os, "fork"):
        return Outcome(0, detail="this system does not fork")
    kernel = _adding("fork", 65, 9)
    # The device is in use when the process forks: what is compared is the parent's values.
    count = _check_kernel(target, kernel, 9, "fork")
    child = os.fork()
    if child == 0:
        os._exit(_in_child(target, kernel))
    status = _wait(child)
    if status == REFUSED:
        return Outcome(count, detail="a forked child is refused with a DeviceError")
    if status != RIGHT:
        raise Failure(f"a forked child ended with status {status}", "fork")
    return Outcome(2 * count, detail="a forked child computes")


def _in_child(target: Target, kernel: Kernel) -> int:
    try:
        _check_kernel(target, kernel, 9, "fork")
    except Failure:
        return WRONG
    except DeviceError:
        return REFUSED
    except BaseException:  # told to the parent by the status
        return OTHER
    return RIGHT


def _wait(child: int) -> int:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise Failure(f"a forked child hangs (longer than {SECONDS:.0f} s)", "hang")
