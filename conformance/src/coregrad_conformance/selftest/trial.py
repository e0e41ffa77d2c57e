"""One faulty backend against rows: what saw it. It never decides which faults there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from coregrad_conformance import runner
from coregrad_conformance.result import Result
from coregrad_conformance.row import LEVELS, Row
from coregrad_conformance.selftest.device import NAME
from coregrad_conformance.selftest.fault import Fault

SHARE = 0.9  # of the rows it is run on that a fault must pass: it is to be one fault, not a ruin
# Kinds of failures that are a value compared: guard bytes, and what a forked child compared, too.
VALUES = ("value", "memory", "fork")
MAKERS = "coregrad_conformance.selftest.makers"
# Rows that take longer than a hundred others: they are run for the faults that are about them, and
# count as not passed elsewhere.
DEAR = (
    *("memory/leak/buffers", "memory/leak/launches", "tensors/long-chain"),
    "load/beyond-32-bits",  # it has buffers of 4 GiB
)


@dataclass(frozen=True)
class Verdict:
    """What became of one fault. ``wrong`` says why it does not count, and is empty if it does."""

    id: str
    kind: str
    op: str
    dtype: str
    says: str
    passed: int = 0  # rows of the level that is run, and those about it
    rows: int = 0  # all of those
    killers: tuple[str, ...] = ()
    how: str = ""
    seconds: float = 0.0
    wrong: str = ""
    first: str = field(default="", compare=False)  # what the first killer said

    def data(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "id": self.id, "class": self.kind, "op": self.op, "dtype": self.dtype,
            "says": self.says, "passed": self.passed, "of": self.rows,
            "killed_by": list(self.killers), "how": self.how, "first": self.first,
            "wrong": self.wrong, "seconds": self.seconds,
        }  # fmt: skip


def rows_for(fault: Fault, rows: Sequence[Row], level: str = LEVELS[0]) -> list[Row]:
    """The level, and what lies beyond it and is about the fault."""
    return [row for row in rows if _concerns(fault, row, level)]


def _concerns(fault: Fault, row: Row, level: str) -> bool:
    if row.id == fault.by:
        return True
    if row.id in DEAR:
        return fault.kind == "leak"
    if is_within(row, level) or any(fnmatchcase(row.id, pattern) for pattern in fault.rows):
        return True
    return bool(fault.op) and (row.op, row.dtype) == (fault.op, fault.dtype)


def is_within(row: Row, level: str) -> bool:
    """Whether a level contains the row."""
    return LEVELS.index(row.level) <= LEVELS.index(level)


def attempt(
    factory: str,
    argument: str,
    rows: Sequence[Row],
    timeout: float,
    until: Callable[[Result], bool] | None = None,
) -> runner.Run:
    """Run rows on the backend that a function of `makers` makes. Raises runner.Lost."""
    spec = runner.Spec(NAME, f"{MAKERS}:{factory}", argument)
    options = runner.Options(timeout=timeout, launch="fork", sync=False, until=until)
    return runner.run(rows, spec, options)


def judge(fault: Fault, rows: Sequence[Row], level: str = LEVELS[0]) -> Verdict:
    """Run a seeded fault on a level's rows and on those about it, of all that there are."""
    about = (fault.id, fault.kind, fault.op, fault.dtype, fault.says)
    chosen = rows_for(fault, rows, level)
    counted = {row.id for row in chosen} | {row.id for row in rows if is_within(row, level)}
    try:
        run = attempt("seeded", fault.id, chosen, fault.timeout)
    except runner.Lost as error:
        return Verdict(*about, wrong=f"the backend cannot be opened: {error}")
    killers = [result for result in run.results if not result.ok]
    passed = sum(result.ok for result in run.results)
    return Verdict(
        *about,
        passed,
        len(counted),
        tuple(result.id for result in killers),
        ", ".join(sorted({result.exception or result.kind for result in killers})),
        run.seconds,
        _objection(fault, killers, passed / len(counted)),
        killers[0].detail if killers else "",
    )


def _objection(fault: Fault, killers: Sequence[Result], share: float) -> str:
    """Why a fault does not count."""
    if not killers:
        return "SURVIVES: no row sees it"
    kinds = {result.id: result.kind for result in killers}
    if fault.by not in kinds:
        return f"SURVIVES {fault.by}, the row that has to see it"
    if fault.by_value and kinds[fault.by] not in VALUES:
        return f"no value that {fault.by} has compared differs"
    if share < SHARE:
        return f"passes only {share:.0%} of the rows it is run on, {SHARE:.0%} are needed to count"
    return ""
