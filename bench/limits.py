"""What the machine can do at most, measured in each run and without coregrad.

``limits.c`` is compiled with the system's C compiler. Where there is none, NumPy stands in: its
matrix product for arithmetic, its copy for memory.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
CACHED = 24 * 2**20  # bytes up to which a step's memory is taken to stay in the cache
ROUNDS = 3  # of all measurements: what a machine shares with others comes and goes
FLAGS = ["-O3", "-march=native", "-ffp-contract=fast", "-pthread"]


def measure(threads: int) -> dict[str, Any]:
    """``flops``, and bytes per second: ``copy``, ``read`` from memory, copied in the ``cache``.
    The best that was seen of each."""
    compiler = next((c for c in ("clang", "gcc", "cc") if shutil.which(c)), None)
    if compiler is not None:
        with tempfile.TemporaryDirectory() as folder:
            program = str(Path(folder, "limits"))
            build = [compiler, *FLAGS, str(HERE / "limits.c"), "-o", program]
            made = subprocess.run(build, capture_output=True, text=True)
            if made.returncode == 0:
                command = [program, str(threads)]
                runs = [subprocess.run(command, capture_output=True) for _ in range(ROUNDS)]
                told = [json.loads(run.stdout) for run in runs if run.returncode == 0]
                if told:
                    best = {name: max(each[name] for each in told) for name in told[0]}
                    return {**best, "by": f"limits.c, {compiler}"}
    return {**_with_numpy(threads), "by": "numpy"}


def _with_numpy(threads: int) -> dict[str, float]:
    a, b = np.ones((2, 1024, 1024), np.float32)
    large, small = np.ones((2, 2**24), np.float32), np.ones((2, 2**19), np.float32)
    return {
        "flops": 2 * 1024**3 / _fastest(lambda: a @ b),
        "copy": 2 * large[0].nbytes / _fastest(lambda: _copy(large, threads, 1)),
        "read": large[0].nbytes / _fastest(lambda: large[0].max()),
        "cache": 200 * small[0].nbytes / _fastest(lambda: _copy(small, threads, 100)),
    }


def _copy(pair: Any, threads: int, repeats: int) -> None:
    def run(to: Any, source: Any) -> None:
        for _ in range(repeats):
            np.copyto(to, source)

    halves = zip(*(np.array_split(each, threads) for each in pair), strict=True)
    workers = [threading.Thread(target=run, args=half) for half in halves]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _fastest(work: Callable[[], Any]) -> float:
    times = []
    for _ in range(7):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def seconds(
    limits: dict[str, Any], flops: float, read: float, written: float, cold: bool = False
) -> float | None:
    """The least time for so much arithmetic and memory; None where nothing is known of it. What is
    ``cold`` comes from memory, however little it is."""
    moved = read + written
    if not flops and not moved:
        return None
    small = moved <= CACHED and not cold
    kind = "cache" if small else "copy" if written > 0.1 * moved else "read"
    least: float = max(flops / limits["flops"], moved / limits[kind])
    return least
