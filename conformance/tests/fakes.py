"""Rows and backends made for the tests of the runner: each ends in its own way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coregrad.hookspecs import BackendInfo, hookimpl
from coregrad_conformance.row import Failure, Outcome, Row, Unsupported
from coregrad_conformance.rows import all_rows
from coregrad_conformance.target import Target
from coregrad_cpu import numpy_info
from coregrad_cpu.reference import Backend, ReferenceDevice

HERE = str(Path(__file__).parent)
ENDS: dict[str, str] = {}  # what each row ends as


def row(status: str) -> Callable[[Callable[[Target], Any]], Callable[[Target], Any]]:
    def register(run: Callable[[Target], Any]) -> Callable[[Target], Any]:
        ENDS[f"fake/{run.__name__}".replace("_", "-")] = status
        RUNS.append(run)
        return run

    return register


RUNS: list[Callable[[Target], Any]] = []


@row("pass")
def good(target: Target) -> Outcome:
    return Outcome(3, 0.25, "x=1.5")


@row("pass")
def noisy(target: Target) -> Outcome:
    sys.stdout.write('{"start": "nonsense"}\n')
    sys.stderr.write("\0not JSON")
    os.write(1, b"\xff\xfe")
    return Outcome(1)


@row("fail")
def wrong(target: Target) -> Outcome:
    raise Failure("element 3 of 1.5: got 2.0, expected 1.0")


@row("fail")
def leaking(target: Target) -> Outcome:
    raise Failure("12 buffers are still held", "leak")


@row("fail")
def raising(target: Target) -> Outcome:
    return Outcome(int(np.array([], dtype=int)[3]))


@row("fail")
def leaving(target: Target) -> Outcome:
    raise SystemExit(0)


@row("fail")
def interrupting(target: Target) -> Outcome:
    raise KeyboardInterrupt


@row("unsupported")
def lacking(target: Target) -> Outcome:
    raise Unsupported("float16 is not there, and a tensor of it is refused")


@row("error")
def idle(target: Target) -> Outcome:
    return Outcome(0)


@row("error")
def returning_nothing(target: Target) -> None:
    return None


@row("pass")
def infinite(target: Target) -> Outcome:
    return Outcome(1, float("inf"))


@row("crash")
def crashing(target: Target) -> Outcome:
    os.kill(os.getpid(), signal.SIGSEGV)
    return Outcome(1)


@row("crash")
def exiting(target: Target) -> Outcome:
    os._exit(0)


@row("timeout")
def hanging(target: Target) -> Outcome:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    time.sleep(300)
    return Outcome(1)


@row("pass")
def last(target: Target) -> Outcome:
    return Outcome(1, detail="\n".join(sorted(os.environ)) + f"\ncwd {os.listdir()}")


def rows(level: str = "core") -> list[Row]:
    return [Row(name, "core", "fakes", run) for name, run in zip(ENDS, RUNS, strict=True)]


def quick(level: str = "core") -> list[Row]:
    """Those that end by themselves."""
    return [row for row in rows() if ENDS[row.id] not in ("crash", "timeout")]


def crashes(level: str = "core") -> list[Row]:
    return [Row(f"fake/crash-{i}", "core", "fakes", exiting) for i in range(6)]


def named(level: str = "core") -> list[Row]:
    """Rows about ops, to have a matrix: one each of the first op of every group of the suite."""
    return [replace(row, run=good) for row in all_rows(level)][:40]


# --- backends ---


class OffByOne(Backend):
    """Adds wrongly, by one unit in the last place, to numbers above ``limit``."""

    def __init__(self, limit: float = 1e300) -> None:
        self.limit = limit

    @hookimpl
    def lower_add(self, frame: Any, a: Any, b: Any, dtype: Any, lanes: int) -> Any:
        value = super().lower_add(frame, a, b, dtype, lanes)
        if not dtype.is_float:
            return value
        return np.where(value > self.limit, np.nextafter(value, np.inf), value)


class Fragile(Backend):
    """Opens once per machine: not when the file of its name is there already."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def open_device(self, index: int) -> ReferenceDevice:
        if self.path.exists():
            raise RuntimeError("the device is wedged")
        self.path.touch()
        return ReferenceDevice()


class Dying(Backend):
    def open_device(self, index: int) -> ReferenceDevice:
        os.kill(os.getpid(), signal.SIGKILL)
        return ReferenceDevice()


def reference() -> tuple[BackendInfo, type[Backend]]:
    return numpy_info(), Backend


def off_by_one(limit: str) -> tuple[BackendInfo, Backend]:
    return numpy_info(), OffByOne(float(limit))


def fragile(path: str) -> tuple[BackendInfo, Backend]:
    return numpy_info(), Fragile(path)


def dying() -> tuple[BackendInfo, type[Backend]]:
    return numpy_info(), Dying


def broken() -> tuple[BackendInfo, Any]:
    return numpy_info(), object()
