"""One column and one workload in a process of its own, driven by run.py through JSON lines.

``check`` runs the first calls and writes their results to a folder; ``time`` repeats the step for
a while and answers with the seconds of every call; the end of the input ends the process.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
import traceback
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from libraries import COLUMNS, Library
from workload import Results, Steady, Step, load


class Worker:
    """A library, a workload and the step built from them."""

    def __init__(self, column: str, workload: str, threads: int) -> None:
        made = load()[workload]
        assert isinstance(made, Steady)
        self.workload = made
        self.library: Library = COLUMNS[column](threads)
        builder = made.builder(column, COLUMNS[column])
        assert builder is not None
        self.imported = peak_memory()
        self.step: Step = builder(self.library)

    def check(self, folder: str) -> dict[str, Any]:
        """Run the first calls; their seconds, and the files that hold their results."""
        seconds, files = [], []
        last = self.workload.calls - 1
        written = 0
        for call in range(self.workload.calls):
            start = time.perf_counter()
            results = self.step()
            seconds.append(time.perf_counter() - start)
            if call in (0, last) or self.workload.stateful:
                saved, written = self._save(results, Path(folder), call)
                files += saved
            del results  # what is still held need not be computed again
        return {
            "version": self.library.version(),
            "first": seconds,
            "files": files,
            "kernels": self.library.kernels(self.step),
            "bytes": [self.library.inputs, written],
            **self.memory(),
        }

    def _save(self, results: Results, folder: Path, call: int) -> tuple[list[str], int]:
        """The names of the files, and the size of the results."""
        names, size = [], 0
        for i, result in enumerate(results):
            names.append(f"{self.library.column}-{call}-{i}.npy")
            array = self.library.array(result)
            size += array.nbytes
            view = self.workload.view
            np.save(folder / names[-1], array if view is None else view(array))
        return names, size

    def time(self, budget: float, least: int) -> dict[str, Any]:
        """The seconds of every call until the budget is used up."""
        gc.collect()
        seconds: list[float] = []
        clock = time.perf_counter
        busy, own, begun = _busy_cpus(), time.process_time(), clock()
        end = begun + budget
        while True:
            start = clock()
            self.step()
            now = clock()
            seconds.append(now - start)
            if now > end and len(seconds) >= least:
                break
        wall = clock() - begun
        others = (_busy_cpus() - busy - (time.process_time() - own)) / wall
        return {"seconds": seconds, "others": max(0.0, others), **self.memory()}

    def memory(self) -> dict[str, float]:
        """The largest memory so far beyond that after the import, and the latter; in MiB."""
        return {"memory": peak_memory() - self.imported, "imported": self.imported}


def peak_memory() -> float:
    """The largest resident memory of this process so far, in MiB.

    Linux's own count, since getrusage there starts from the peak of the process that forked.
    """
    try:
        with open("/proc/self/status") as file:
            found = next(line for line in file if line.startswith("VmHWM"))
        return int(found.split()[1]) / 1024
    except (OSError, StopIteration):
        unit = 2**20 if sys.platform == "darwin" else 2**10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def _busy_cpus() -> float:
    """CPU seconds that the whole machine has spent since it started; 0 where nobody tells."""
    try:
        with open("/proc/stat") as file:
            ticks = [int(word) for word in file.readline().split()[1:]]
    except OSError:
        return 0.0
    user, nice, system, _idle, _wait, irq, softirq = ticks[:7]
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _serve(worker: Worker, replies: TextIO) -> None:
    for line in sys.stdin:
        order = json.loads(line)
        answer = (
            worker.check(order["folder"])
            if order["do"] == "check"
            else worker.time(order["budget"], order["least"])
        )
        _reply(replies, answer)


def _reply(replies: TextIO, answer: dict[str, Any]) -> None:
    replies.write(json.dumps(answer) + "\n")
    replies.flush()


def main() -> int:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    column, workload, threads = sys.argv[1:]
    try:
        _serve(Worker(column, workload, int(threads)), replies)
    except Exception as error:  # the runner reports it in the row of this library
        traceback.print_exc()
        text = str(error).strip().splitlines()
        _reply(replies, {"error": f"{type(error).__name__}: {text[0] if text else ''}"})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
