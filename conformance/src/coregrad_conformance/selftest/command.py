"""``coregrad-conformance selftest``: what the suite would let pass.

Exit codes: 0 if every fault was caught, 1 if something survives, 2 if it cannot be run here.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from coregrad import Tensor, jit
from coregrad_conformance import rows, runner
from coregrad_conformance.row import LEVELS, Row
from coregrad_conformance.selftest import (
    equivalents,
    overlaps,
    pinning,
    pins,
    sensitivity,
    summary,
    trial,
)
from coregrad_conformance.selftest.fault import Fault
from coregrad_conformance.selftest.faults import all_faults
from coregrad_conformance.selftest.mutants import Mutant, all_mutants
from coregrad_conformance.worker import Spec, open_target

LEVEL = "extended"  # every row there is has a fault of its own
EVERYTHING = "*"
STAGES = ("faults", "mutants", "rows")
PATIENCE = 60.0  # seconds for one row: two processes may share a slow core with others
MUTANT_PATIENCE = 10.0
CHUNKS = 8  # jobs that the rows' own faults are cut into
# Groups that say the same of a hook, once more and slowly; the mutants are spared these.
SLOW = ("programs", "functions", "draws", "gradients", "training", "threads")
# Where the mutants of a file are likely to be seen.
NEAR = {
    "formats": ("casts", "elementwise", "constants"),
    "folds": ("reductions",),
    "turns": ("elementwise",),
}
Job = tuple[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the selftest; returns the exit code."""
    options = parser().parse_args(sys.argv[1:] if arguments is None else list(arguments))
    if not hasattr(os, "fork"):
        say("selftest: needs a system that can fork")
        return 2
    if options.repin:
        return repin()
    if options.only != EVERYTHING and not any(chosen(options)):
        say(f"selftest: no fault or mutant of these stages matches {options.only!r}")
        return 2
    began = time.perf_counter()
    suite = rows.all_rows(LEVEL)
    found = Found(suite)
    problems = found.run(options)
    report = summary.report(found, problems, time.perf_counter() - began)
    options.report.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1) + "\n"
    (options.report / "selftest.json").write_text(text, encoding="utf-8")
    say(summary.table(report))
    return 1 if problems else 0


def parser() -> argparse.ArgumentParser:
    """The options."""
    top = argparse.ArgumentParser(
        prog="coregrad-conformance selftest",
        description="Put faults into a reference backend, and see whether the suite notices.",
    )
    top.add_argument("--only", default=EVERYTHING, help="a pattern for ids of faults and mutants")
    top.add_argument("--stage", choices=STAGES, action="append", help="leave the others out")
    top.add_argument(
        "--level",
        choices=LEVELS,
        default=LEVELS[0],
        help="run every seeded fault on all rows of this level (core), besides those about it; it "
        "has to pass nine in ten of them",
    )
    top.add_argument("--jobs", type=int, default=2, help="processes (2)")
    top.add_argument("--report", type=Path, default=Path(), help="folder of selftest.json (here)")
    top.add_argument(
        "--sensitivity",
        action="store_true",
        help="also show, for the rows of all levels, that no other row sees a row's own fault, "
        "and run the mutants that are listed as equivalent on all of them",
    )
    top.add_argument(
        "--repin",
        action="store_true",
        help="after rows have changed: find them faults of their own, and write pins.json",
    )
    return top


def say(text: str) -> None:
    """To the terminal."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def chosen(options: argparse.Namespace) -> tuple[list[Fault], list[Mutant]]:
    """The faults and the mutants that the stages and the pattern ask for."""
    stages = options.stage or STAGES
    faults = all_faults() if "faults" in stages else []
    mutants = all_mutants() if "mutants" in stages else []
    return (
        [fault for fault in faults if fnmatchcase(fault.id, options.only)],
        [mutant for mutant in mutants if fnmatchcase(mutant.id, options.only)],
    )


# ---- jobs --------------------------------------------------------------------------------------


@dataclass
class Found:
    """What came out, by stage."""

    suite: list[Row]
    verdicts: list[trial.Verdict] = field(default_factory=list)
    mutants: list[tuple[Mutant, str, str]] = field(default_factory=list)  # killer, how
    listed: dict[str, str] = field(default_factory=dict)  # id of an equivalent mutant: reason
    checks: dict[str, list[tuple[str, bool, str]]] = field(default_factory=dict)
    pins: dict[str, pins.Pin] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)  # row: what holds it, where no pin does
    spared: set[str] = field(default_factory=set)  # mutants that run on level core only
    level: str = LEVELS[0]  # the seeded faults run on

    def run(self, options: argparse.Namespace) -> list[str]:
        """All jobs; returns what is wrong."""
        warm()
        self.pins, self.level = pins.load(), options.level
        if not options.sensitivity:
            self.spared = {entry.id for entry in equivalents.load()}
        stages = options.stage or STAGES
        jobs = list(self.jobs(stages, options))
        for done, (job, outcome) in enumerate(self.outcomes(jobs, options.jobs), 1):
            self.take(job, outcome)
            progress(done, len(jobs))
        return list(self.problems(stages, options))

    def outcomes(self, jobs: Sequence[Job], processes: int) -> Iterator[tuple[Job, Any]]:
        """The jobs and what came out, in whatever order."""
        work = Work(self.suite, self.pins, self.spared, self.level)
        if processes == 1:
            yield from map(work, jobs)
            return
        with multiprocessing.get_context("fork").Pool(processes, _WORKS.append, (work,)) as pool:
            yield from pool.imap_unordered(_do, jobs)

    def jobs(self, stages: Sequence[str], options: argparse.Namespace) -> Iterator[Job]:
        """The long ones first."""
        yield "sound", None
        if "rows" in stages:
            if options.sensitivity:
                yield from (("group", (LEVEL, which)) for which in sensitivity.rounds(self.pins))
            yield "wider", None
            yield from (("own", k) for k in range(CHUNKS))
            yield from (("group", ("core", which)) for which in self.core_rounds())
        faults, mutants = chosen(options)
        faults.sort(key=lambda fault: fault.kind not in ("hang", "leak"))
        yield from (("fault", fault.id) for fault in faults)
        yield from (("mutant", mutant.id) for mutant in mutants)

    def core_rounds(self) -> list[tuple[int, int]]:
        """The rounds in which each row of level core is told from each other one."""
        return sensitivity.rounds(within_core(self.pins, self.suite))

    def take(self, job: Job, outcome: Any) -> None:
        """One job's outcome."""
        stage, _ = job
        if stage == "fault":
            self.verdicts.append(outcome)
        elif stage == "mutant":
            self.mutants.append(outcome)
        else:
            self.checks.setdefault(stage, []).extend(outcome)

    # ---- judging -------------------------------------------------------------------------------

    def problems(self, stages: Sequence[str], options: argparse.Namespace) -> Iterator[str]:
        """Everything that is not as it has to be."""
        for name, fine, detail in self.checks.get("sound", []):
            if not fine:
                yield f"the reference without a fault fails {name}: {detail}"
        if "faults" in stages:
            yield from (f"fault {v.id}: {v.wrong}" for v in self.verdicts if v.wrong)
        if "mutants" in stages:
            yield from self.mutant_problems()
        if "rows" in stages:
            yield from self.row_problems("faults" in stages and options.only == EVERYTHING)

    def mutant_problems(self) -> Iterator[str]:
        """Survivors, and entries of the list that are none."""
        entries = equivalents.load()
        yield from equivalents.stale(entries, all_mutants())
        self.listed = {entry.id: entry.reason for entry in entries}
        for mutant, killer, how in self.mutants:
            if not killer and mutant.id not in self.listed:
                yield f"mutant {mutant.id} SURVIVES: {mutant.words}"
            if killer and mutant.id in self.listed:
                yield f"mutant {mutant.id} is listed as equivalent, but {killer} sees it: {how}"

    def row_problems(self, complete: bool) -> Iterator[str]:
        """Rows that nothing would miss; tolerances that nobody guards."""
        yield from sensitivity.gone(self.suite, self.pins)
        for stage in ("own", "group", "wider"):
            for name, fine, detail in self.checks.get(stage, []):
                if not fine:
                    yield f"{name}: {detail}"
        yield from overlaps.stale([row.id for row in self.suite], self.pins)
        self.held = self.holders()
        if complete:
            for name in sensitivity.unpinned(self.suite, self.pins):
                if name not in self.held:
                    yield f"row {name}: nothing but this row's absence would tell; pin it"

    def holders(self) -> dict[str, str]:
        """For rows without a pin: a seeded fault that they alone see, or why there is none."""
        found = {overlap.row: overlap.reason for overlap in overlaps.load()}
        alone = [v for v in self.verdicts if len(v.killers) == 1]
        found |= {verdict.killers[0]: verdict.id for verdict in alone}
        return {row: why for row, why in found.items() if row not in self.pins}


def within_core(known: dict[str, pins.Pin], suite: Sequence[Row]) -> dict[str, pins.Pin]:
    """The pins of rows of level core."""
    core = {row.id for row in suite if row.level == "core"}
    return {name: pin for name, pin in known.items() if name in core}


def progress(done: int, total: int) -> None:
    """One line that counts, on a terminal only."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{done}/{total} " + ("\n" if done == total else ""))
        sys.stderr.flush()


def warm() -> None:
    """Import what workers would all import again, and build what does not change."""
    for name in ("coregrad.planner", trial.MAKERS):
        importlib.import_module(name)
    x = Tensor([[1.0, 2.0], [3.0, 4.0]], device="numpy")
    (x.argsort() * 2).sum().numpy()
    jit(lambda y: y @ y)(x).numpy()
    all_mutants()


class Work:
    """What a process of the pool does with a job."""

    def __init__(
        self,
        suite: Sequence[Row],
        known: dict[str, pins.Pin],
        listed: Collection[str] = (),
        level: str = LEVELS[0],
    ) -> None:
        self.names = [row.id for row in suite]
        self.pins = known
        self.listed = listed
        self.level = level

    def __call__(self, job: Job) -> tuple[Job, Any]:
        """The job, and what came out."""
        stage, what = job
        table = {row.id: row for row in rows.all_rows(LEVEL)}
        suite = [table[name] for name in self.names]
        function: Callable[..., Any] = getattr(self, stage)
        return job, function(suite, what)

    def sound(self, suite: list[Row], what: None) -> list[tuple[str, bool, str]]:
        """The reference as it is."""
        return checked("sound", suite)

    def fault(self, suite: list[Row], name: str) -> trial.Verdict:
        """One seeded fault."""
        return trial.judge(next(f for f in all_faults() if f.id == name), suite, self.level)

    def mutant(self, suite: list[Row], name: str) -> tuple[Mutant, str, str]:
        """One mutant, until a row sees it."""
        chosen = next(mutant for mutant in all_mutants() if mutant.id == name)
        tried = [row for row in suite if row.group not in SLOW and row.id not in trial.DEAR]
        if name in self.listed:  # it was seen to survive them all when it was listed
            tried = [row for row in tried if row.level == "core"]
        tried.sort(key=lambda row: order(chosen.file, row))
        try:
            run = trial.attempt("mutant", name, tried, MUTANT_PATIENCE, lambda end: not end.ok)
        except runner.Lost as error:
            return chosen, "opening the device", str(error)
        killer = next((result for result in run.results if not result.ok), None)
        return (chosen, killer.id, killer.detail) if killer else (chosen, "", "")

    def own(self, suite: list[Row], chunk: int) -> list[tuple[str, bool, str]]:
        """Rows and their own faults."""
        return checked("pinned", sensitivity.own(suite, self.pins)[chunk::CHUNKS])

    def group(self, suite: list[Row], what: tuple[str, Any]) -> list[tuple[str, bool, str]]:
        """Half of the faults at once."""
        level, which = what
        known = self.pins
        if level == "core":
            suite = [row for row in suite if row.level == "core"]
            known = within_core(known, suite)
        return checked("pinned", sensitivity.group(suite, known, which))

    def wider(self, suite: list[Row], what: None) -> list[tuple[str, bool, str]]:
        """Tolerances."""
        return checked("pinned", sensitivity.widened(suite, self.pins))


def order(file: str, row: Row) -> tuple[bool, bool, bool]:
    """Rows that are likely to see a mutant of a file come first."""
    near = row.group in NEAR.get(file, ()) and not row.id.endswith("/dense")
    return not near, row.level != "core", row.id.endswith("/dense")


_WORKS: list[Work] = []  # in a process of the pool: its one


def _do(job: Job) -> tuple[Job, Any]:
    return _WORKS[0](job)


def checked(factory: str, chosen: Sequence[Row]) -> list[tuple[str, bool, str]]:
    """Each row's id, whether it passed, and what it said."""
    run = trial.attempt(factory, "", chosen, PATIENCE)
    return [(result.id, result.ok, result.detail) for result in run.results]


# ---- pins --------------------------------------------------------------------------------------


def repin() -> int:
    """Bring `pins.json` to what the suite is now."""
    target = open_target(Spec("ref", f"{trial.MAKERS}:pinned"))
    suite = rows.all_rows(LEVEL)
    found = list(pinning.all_pins(suite, pins.load(), target, say))
    pins.save(found)
    say(f"{len(found)} of {len(suite)} rows have a fault of their own: {pins.FILE.name}")
    return 0
