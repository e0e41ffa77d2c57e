"""How much was really executed: a run in which nothing was launched has proven nothing.

The numbers of this process are in ``counts``. If COREGRAD_SIMT_REPORT names a file, every process
also appends to it what it does, when it does it: one that is killed has reported all the same.
``python -m coregrad_simt report FILE`` adds it up.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

counts: Counter[str] = Counter()
faults: list[str] = []
_seen: set[str] = set()


def compiled(route: str, key: str) -> None:
    """A program was made ready; each is counted once, wherever its machine code came from."""
    if key not in _seen:
        _seen.add(key)
        _count({f"{route}: programs made ready": 1})


def launched(route: str, orders: int) -> None:
    """A kernel was executed, in a number of orders."""
    _count({f"{route}: kernels launched": 1, f"{route}: executions": orders})


def called(library: str) -> None:
    """A library's function was computed by NumPy: nothing of ours was executed."""
    _count({f"{library}: calls": 1})


def fault(message: str) -> None:
    """A kernel did what it must not do. Whoever swallows the exception does not hide this."""
    faults.append(message)
    _append({"fault": message})


def _count(numbers: dict[str, int]) -> None:
    counts.update(numbers)
    _append(numbers)


def _append(entry: dict[str, Any]) -> None:
    """One write of one line: processes do it at the same time."""
    path = os.environ.get("COREGRAD_SIMT_REPORT")
    if path:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, json.dumps(entry).encode() + b"\n")
        os.close(file)


def launches() -> int:
    """How many kernels were launched in this process."""
    return total(counts)


def total(numbers: Counter[str]) -> int:
    """How many kernels were launched, by all routes together."""
    return sum(n for name, n in numbers.items() if name.endswith("kernels launched"))


def text(numbers: Counter[str], problems: Iterable[str] = ()) -> str:
    """The report, a line per number and per fault."""
    lines = [f"{name}: {numbers[name]}" for name in sorted(numbers)]
    lines += [f"fault: {problem}" for problem in problems]
    return "\n".join(lines or ["nothing was executed"])


def read(path: Path) -> tuple[Counter[str], list[str]]:
    """The sum of what the processes of a run have appended to a file."""
    numbers: Counter[str] = Counter()
    problems: list[str] = []
    for line in path.read_text().splitlines() if path.exists() else []:
        entry = json.loads(line)
        if "fault" in entry:
            problems.append(entry["fault"])
        else:
            numbers.update(entry)
    return numbers, problems


def reset() -> None:
    """Forget everything, as a test does."""
    counts.clear()
    faults.clear()
    _seen.clear()
