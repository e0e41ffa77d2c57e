"""Time workloads in coregrad, PyTorch and tinygrad, side by side.

    python bench/run.py [--only NAME ...] [--columns coregrad,torch,...] [--quick] [--budget MIN]
    python bench/run.py --opencl

Every column has a process of its own per workload. Their results are compared first; only then
do they take turns (A B C A B C ...), and what counts is the median over the rounds of the ratio of
two times of one round: a machine that is slow for a minute is slow for all of them. A column that
fails, differs or takes too long says so in its row; the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import limits
import machine
import numpy as np
from changes import changed, last_run
from libraries import (
    COLUMNS,
    CPU,
    OPENCL,
    OURS,
    empty_caches,
    environment,
    installed,
    version_of,
)
from plot import draw
from table import show
from workload import Fresh, Steady, load

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
SETTLE = 0.02  # seconds between turns, in which the other's threads stop spinning
REFERENCE = "torch"  # whose results the others are compared with, where it runs
SHARE = 0.25  # of what is left of the budget that one slow column may take
GROUP = ("relu_chain_4096", "matmul_512", "softmax_1024", "mlp_step")  # those for OpenCL


class Failed(Exception):
    """A library could not run a workload; the message goes into its row."""


@dataclass
class Outcome:
    """What became of one library in one workload."""

    error: str | None = None
    skipped: str | None = None  # why it was not tried
    memory: float | None = None  # MiB at most, beyond what the import takes
    imported: float | None = None  # MiB after the import
    bytes: list[int] | None = None  # of inputs and of results
    rounds: list[float] = field(default_factory=list)  # the median of every round
    least: list[float] = field(default_factory=list)  # the minimum of every round
    calls: int = 0
    first: list[float] = field(default_factory=list)  # the calls before timing, compilation too
    kernels: int | None = None
    others: list[float] = field(default_factory=list)  # CPUs that other programs kept busy

    def record(self) -> dict[str, Any]:
        """As it stands in the JSON file."""
        if self.skipped is not None:
            return {"skipped": self.skipped}
        if self.error is not None:
            return {"error": self.error}
        return {
            "peak_mib": self.memory,
            "imported_mib": self.imported,
            "median_s": statistics.median(self.rounds) if self.rounds else None,
            "minimum_s": min(self.least, default=None),
            "rounds_s": self.rounds,
            "calls": self.calls,
            "first_calls_s": self.first,
            "kernels": self.kernels,
            "other_programs_cpus": statistics.median(self.others) if self.others else None,
        }


class Peer:
    """The process of one column for one workload."""

    def __init__(self, column: str, workload: str, options: Options) -> None:
        self.limit = min(options.limit, max(1.0, options.left()))
        command = [sys.executable, str(HERE / "worker.py"), column, workload, str(options.threads)]
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in close)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**options.variables, **COLUMNS[column].variables()},
            start_new_session=options.first,
        )
        if options.first:
            machine.go_first(self.process.pid)
        self.answers: Queue[str] = Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put("")

    def ask(self, **order: Any) -> dict[str, Any]:
        """Send an order and wait for its answer."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer that waits in the queue says why
        try:
            line = self.answers.get(timeout=self.limit)
        except Empty:
            raise Failed(f"no answer within {self.limit:.3g} s") from None
        if not line:
            raise Failed(f"the process ended with {self.process.wait()}: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def _last_words(self) -> str:
        self.log.seek(0)
        lines = self.log.read().strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self.log.close()


@dataclass
class Options:
    """What the command line says."""

    columns: list[str]
    rounds: int
    block: float
    threads: int
    limit: float
    first: bool
    variables: dict[str, str]
    end: float | None = None  # when the budget is used up

    def left(self) -> float:
        """Seconds left of the budget."""
        return float("inf") if self.end is None else self.end - time.monotonic()

    def refuses(self, slow: Mapping[str, float], column: str) -> str | None:
        """Why a slow column is left out, if it is."""
        needs = slow.get(column, 0.0)
        if needs <= SHARE * self.left():
            return None
        return f"needs about {needs:.0f} s before it can be timed, too much of the budget"


# ---- steady work -------------------------------------------------------------------------------


def run_steady(workload: Steady, options: Options) -> tuple[dict[str, Outcome], list[str]]:
    """The outcome of every column, and what was found different in the results."""
    names = [n for n in options.columns if workload.builder(n, COLUMNS[n])]
    outcomes = {n: Outcome(skipped=workload.without[n]) for n in options.columns
                if n in workload.without}  # fmt: skip
    outcomes |= {n: Outcome(skipped=options.refuses(workload.slow, n)) for n in names}
    names = [n for n in names if outcomes[n].skipped is None]
    peers: dict[str, Peer] = {}
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            files = {}
            for name in names:
                peers[name] = Peer(name, workload.name, options)
                files[name] = _check(peers[name], folder, outcomes[name])
            present = [n for n in names if outcomes[n].error is None]
            results = {n: [np.load(Path(folder, f)) for f in files[n]] for n in present}
        different = compare(results, outcomes, workload.rtol, workload.atol)
        present = [n for n in present if outcomes[n].error is None]
        for _ in range(options.rounds):
            for name in present:
                _time(peers[name], options.block, outcomes[name])
    finally:
        for peer in peers.values():
            peer.close()
    return outcomes, different


def _check(peer: Peer, folder: str, outcome: Outcome) -> list[str]:
    """Let a column run its first calls; the files that hold its results."""
    try:
        answer = peer.ask(do="check", folder=folder)
    except Failed as failure:
        outcome.error = str(failure)
        return []
    outcome.first = answer["first"]
    outcome.kernels = answer["kernels"]
    outcome.bytes = answer["bytes"]
    if outcome.kernels == 0:
        outcome.error = "nothing was computed: a step launched no kernel"
    return list(answer["files"])


def _time(peer: Peer, block: float, outcome: Outcome) -> None:
    if outcome.error is not None:
        return
    time.sleep(SETTLE)
    try:
        answer = peer.ask(do="time", budget=block, least=1)
    except Failed as failure:
        outcome.error = str(failure)
        return
    outcome.rounds.append(statistics.median(answer["seconds"]))
    outcome.least.append(min(answer["seconds"]))
    outcome.calls += len(answer["seconds"])
    outcome.others.append(answer["others"])
    outcome.memory, outcome.imported = answer["memory"], answer["imported"]


def compare(
    results: dict[str, list[Any]], outcomes: dict[str, Outcome], rtol: float, atol: float
) -> list[str]:
    """Compare all results with those of the reference; who differs is not timed."""
    different = []
    first = REFERENCE if REFERENCE in results else next(iter(results), "")
    for name in [n for n in results if n != first]:
        found = _difference(results[first], results[name], rtol, atol)
        if found is not None:
            different.append(f"{name} and {first}: {found}")
            outcomes[name].error = f"differs from {first}: {found}"
    return different


def _difference(a: list[Any], b: list[Any], rtol: float, atol: float) -> str | None:
    if len(a) != len(b):
        return f"{len(b)} results instead of {len(a)}"
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        if x.shape != y.shape:
            return f"result {i} has shape {y.shape} instead of {x.shape}"
        if not np.allclose(x, y, rtol=rtol, atol=atol):
            worst = float(np.nanmax(np.abs(x.astype(np.float64) - y)))
            return f"result {i} is off by up to {worst:.3g}"
    return None


# ---- work in a new interpreter -----------------------------------------------------------------


def run_fresh(workload: Fresh, options: Options) -> tuple[dict[str, Outcome], list[str]]:
    """The outcome of every column, and what was found different in the results."""
    names = [n for n in options.columns if n in workload.programs]
    outcomes = {n: Outcome(skipped=options.refuses(workload.slow, n)) for n in names}
    results: dict[str, list[Any]] = {}
    different: list[str] = []
    rounds = min(options.rounds, workload.rounds or options.rounds)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as shared:
        for round_ in range(rounds + 1):  # the first one fills the system's file cache
            for name in names:
                _fresh_round(workload, name, round_, shared, outcomes[name], results, options)
            if round_ == 0:
                different = compare(results, outcomes, workload.rtol, workload.atol)
    return outcomes, different


def _fresh_round(
    workload: Fresh,
    name: str,
    round_: int,
    shared: str,
    outcome: Outcome,
    results: dict[str, list[Any]],
    options: Options,
) -> None:
    if outcome.error is not None or outcome.skipped is not None:
        return
    variables = {**options.variables, **COLUMNS[name].variables()}
    folder = f"{shared}/{name}" if workload.warm else None
    try:
        baseline = 0.0
        if workload.baseline is not None:
            baseline, _ = _fresh(workload.baseline, variables, folder, options)
        seconds, result = _fresh(workload.programs[name], variables, folder, options)
    except Failed as failure:
        outcome.error = str(failure)
        return
    seconds -= baseline
    if round_ == 0:
        outcome.first.append(seconds)
        if result is not None:
            results[name] = [result]
        return
    outcome.rounds.append(seconds)
    outcome.least.append(seconds)
    outcome.calls += 1


def _fresh(
    program: str, variables: dict[str, str], shared: str | None, options: Options
) -> tuple[float, Any]:
    """Run a program with empty caches, or shared ones: its seconds, and a result if it has one."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        caches = shared or folder
        begun = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**variables, **empty_caches(caches), "BENCH": str(HERE)},
            cwd=folder,  # a folder called like a library must not be taken for it
            start_new_session=options.first,
        )
        if options.first:
            machine.go_first(process.pid)
        limit = min(options.limit, max(1.0, options.left()))
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise Failed(f"no end within {limit:.3g} s") from None
        wall = time.perf_counter() - begun
    if process.returncode != 0:
        raise Failed(err.strip().splitlines()[-1] if err.strip() else f"rc {process.returncode}")
    printed = out.splitlines()
    if not printed:
        return wall, None
    return float(printed[0]), np.array(json.loads(printed[1]))


# ---- the record --------------------------------------------------------------------------------


def record(
    workload: Steady | Fresh,
    outcomes: dict[str, Outcome],
    different: list[str],
    machine_limits: dict[str, Any],
) -> dict[str, Any]:
    """One workload as it stands in the JSON file."""
    made: dict[str, Any] = {
        "name": workload.name,
        "about": workload.about,
        "columns": {name: outcome.record() for name, outcome in outcomes.items()},
        "different": different,
        "tolerance": {"rtol": workload.rtol, "atol": workload.atol},
    }
    plain = next((outcomes[n] for n in OURS if n in outcomes), Outcome())
    jit = next((outcomes[n + "-jit"] for n in OURS if n + "-jit" in outcomes), Outcome())
    if isinstance(workload, Fresh):
        made["allowed_s"] = workload.limit
        if workload.limit is not None and plain.rounds:
            made["met"] = statistics.median(plain.rounds) <= workload.limit
        made["ratios"] = ratios(plain, plain, outcomes, False, {"best": None}, None)
        return made
    least = _limit_seconds(workload, outcomes, machine_limits)
    made["limit_s"] = least
    made["fraction"] = {
        name: least / statistics.median(outcome.rounds)
        for name, outcome in outcomes.items()
        if least is not None and outcome.rounds
    }
    made["captured"] = workload.captured
    made["ratios"] = ratios(plain, jit, outcomes, workload.captured, workload.targets, least)
    return made


def _limit_seconds(
    workload: Steady, outcomes: dict[str, Outcome], machine_limits: dict[str, Any]
) -> float | None:
    if workload.bytes is not None:
        read, written = workload.bytes / 2, workload.bytes / 2
        if workload.flops == 0 and workload.bytes == 0:
            return None
        return limits.seconds(machine_limits, workload.flops, read, written, workload.cold)
    moved = [o.bytes for o in outcomes.values() if o.bytes is not None]
    if not moved or not moved[0][0]:
        read = written = 0.0
    else:
        read, written = moved[0]
    return limits.seconds(machine_limits, workload.flops, read, written, workload.cold)


NEAR = 0.8  # fraction of the limit from which a row counts as met, whatever it is compared with


def ratios(
    plain: Outcome,
    jit: Outcome,
    outcomes: dict[str, Outcome],
    captured: bool,
    targets: Mapping[str, float | None],
    least: float | None,
) -> dict[str, Any]:
    """Our time over others': ``torch`` eager, ``best`` of PyTorch, tinygrad, each with its target.

    Against PyTorch eager counts our plain time, or the captured one in rows marked so; against the
    faster of eager and compiled, and against tinygrad, the captured one where there is one.
    """
    faster = jit if jit.rounds else plain
    made: dict[str, Any] = {}
    for name, theirs in outcomes.items():
        if name.startswith(OURS) or not theirs.rounds:
            continue
        ours = faster if captured or not name.startswith("torch") else plain
        if name == "torch-compile":
            ours = faster
        made[name] = _ratio(ours.rounds, theirs.rounds, targets.get(name))
    both = [outcomes[n].rounds for n in ("torch", "torch-compile") if n in outcomes]
    both = [rounds for rounds in both if rounds]
    if both:
        best = [min(times) for times in zip(*both, strict=False)]
        made["best"] = _ratio(faster.rounds, best, targets.get("best", 1.0))
    for name in ("tinygrad", "tinygrad-cl"):
        if made.get(name) and made[name]["target"] is None and least is not None:
            near = statistics.median(outcomes[name].rounds) <= 4 * least
            made[name] |= {"target": 0.7 if near else 0.25}
    for name, ratio in made.items():
        if ratio and ratio["target"] is not None:
            ours = plain if name == "torch" and not captured else faster
            used = statistics.median(ours.rounds)
            ratio["at_limit"] = least is not None and least / used >= NEAR
            ratio["met"] = ratio["median"] <= ratio["target"] or ratio["at_limit"]
    return {name: ratio for name, ratio in made.items() if ratio}


def _ratio(ours: list[float], theirs: list[float], target: float | None) -> dict[str, Any] | None:
    pairs = list(zip(ours, theirs, strict=False))
    if not pairs:
        return None
    return {
        "median": statistics.median(a / b for a, b in pairs),
        "of_minima": min(ours) / min(theirs),
        "target": target,
        "met": None,
    }


def measure(
    names: list[str],
    options: Options,
    machine_limits: dict[str, Any],
    made: list[dict[str, Any]],
    save: Callable[[], None],
) -> None:
    """Run the workloads one after the other; each one's result is told and saved at once."""
    registry = load()
    for name in names:
        workload = registry[name]
        begun = time.perf_counter()
        if options.left() <= 0:
            skipped = {c: Outcome(skipped="the budget is used up") for c in options.columns}
            made.append(record(workload, skipped, [], machine_limits))
            continue
        try:
            if isinstance(workload, Fresh):
                outcomes, different = run_fresh(workload, options)
            else:
                outcomes, different = run_steady(workload, options)
            made.append(record(workload, outcomes, different, machine_limits))
        except Exception as error:  # one row must not cost the others
            traceback.print_exc()
            broken = {c: Outcome(error=f"the runner failed: {error}") for c in options.columns}
            made.append(record(workload, broken, [], machine_limits))
        took = time.perf_counter() - begun
        told = ", ".join(_told(c, o) for c, o in made[-1]["columns"].items())
        print(f"{name} ({took:.0f} s): {told}", file=sys.stderr, flush=True)
        save()


def _told(column: str, outcome: dict[str, Any]) -> str:
    if "median_s" not in outcome:
        return f"{column} {'skipped' if 'skipped' in outcome else 'FAILED'}"
    seconds = outcome["median_s"]
    return f"{column} {seconds * 1e3:.4g} ms" if seconds is not None else f"{column} not timed"


# ---- the command -------------------------------------------------------------------------------


def parse(registry: dict[str, Any]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = ",".join(c.column for c in CPU)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="workloads (default: all)")
    parser.add_argument("--columns", help=f"default: {every}")
    parser.add_argument("--opencl", action="store_true", help="coregrad and tinygrad on OpenCL")
    parser.add_argument("--quick", action="store_true", help="one short round: does it work?")
    parser.add_argument("--budget", type=float, metavar="MINUTES", help="for the whole run")
    parser.add_argument("--rounds", type=int, default=7, help="turns (default: %(default)s)")
    parser.add_argument("--block", type=float, default=0.3, help="seconds of a turn")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--first", action="store_true", help="run before other programs (root)")
    parser.add_argument("--limit", type=float, default=300, help="seconds to wait for an answer")
    parser.add_argument("--json", type=Path, metavar="PATH", help="default: results/<time>.json")
    parser.add_argument("--list", action="store_true", help="name the workloads and stop")
    args = parser.parse_args()
    if args.columns is None:
        args.columns = ",".join(c.column for c in OPENCL) if args.opencl else every
    if args.only is None:
        args.only = list(GROUP) if args.opencl else list(registry)
    if args.quick:
        args.rounds, args.block = 1, 0.02
    for name in args.only:
        if name not in registry:
            parser.error(f"no workload {name!r}; choose from {', '.join(registry)}")
    for name in args.columns.split(","):
        if name not in COLUMNS:
            parser.error(f"no column {name!r}; choose from {', '.join(COLUMNS)}")
    return args


def main() -> int:
    registry = load()
    args = parse(registry)
    if args.list:
        for workload in registry.values():
            print(f"{workload.name:22} {workload.about}")
        return 0
    here, absent = installed(args.columns.split(","))
    now = datetime.now(timezone.utc)
    path = args.json or RESULTS / f"{now:%Y-%m-%d-%H%M}{'-opencl' if args.opencl else ''}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    workloads: list[dict[str, Any]] = []
    report: dict[str, Any] = {
        "machine": machine.describe(args.threads),
        "limits": limits.measure(args.threads),
        "versions": {name: version_of(name) for name in here},
        "not_installed": absent,
        "quick": args.quick,
        "complete": set(args.only) == set(registry),
        "rounds": args.rounds,
        "block_s": args.block,
        "ran_before_other_programs": args.first,
        "when": now.isoformat(timespec="seconds"),
        "workloads": workloads,
    }

    def save() -> None:
        path.write_text(json.dumps(report, indent=1) + "\n")

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as caches:
        variables = {**os.environ, **environment(args.threads), **empty_caches(caches)}
        if sys.dont_write_bytecode:  # or every import would compile anew
            variables |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": f"{caches}/pyc"}
        options = Options(
            columns=here,
            rounds=args.rounds,
            block=args.block,
            threads=args.threads,
            limit=args.limit,
            first=args.first,
            variables=variables,
            end=None if args.budget is None else time.monotonic() + 60 * args.budget,
        )
        measure(args.only, options, report["limits"], workloads, save)
    report["changes"] = changed(last_run(RESULTS, report, path), report)
    save()
    print(show(report))
    said = draw(report, path.with_suffix(".png"))
    if said:
        print(said)
    return 1 if any(_broken(w) for w in workloads) else 0


def _broken(workload: dict[str, Any]) -> bool:
    columns = workload["columns"]
    return any("error" in columns.get(n, {}) for ours in OURS for n in (ours, ours + "-jit"))


if __name__ == "__main__":
    sys.exit(main())
