"""Time workloads in coregrad, PyTorch (eager) and tinygrad (TinyJit), side by side.

    python bench/run.py [--only NAME ...] [--libraries coregrad,torch,tinygrad] [--rounds N]

Every library has a process of its own per workload. Their results are compared first; only then
do they take turns (A B C A B C ...), and what counts is the median over the rounds of the ratio of
two times of one round: a machine that is slow for a minute is slow for all of them.
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
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import machine
import numpy as np
from libraries import LIBRARIES, empty_caches, environment, installed, version_of
from table import show
from workload import Fresh, Steady, load

HERE = Path(__file__).resolve().parent
OURS = "coregrad"
SETTLE = 0.02  # seconds between turns, in which the other's threads stop spinning


class Failed(Exception):
    """A library could not run a workload; the message goes into its row."""


@dataclass
class Outcome:
    """What became of one library in one workload."""

    error: str | None = None
    rounds: list[float] = field(default_factory=list)  # the median of every round
    least: list[float] = field(default_factory=list)  # the minimum of every round
    calls: int = 0
    first: list[float] = field(default_factory=list)  # the calls before timing, compilation too
    kernels: int | None = None
    others: list[float] = field(default_factory=list)  # CPUs that other programs kept busy

    def record(self) -> dict[str, Any]:
        """As it stands in the JSON file."""
        if self.error is not None:
            return {"error": self.error}
        return {
            "median_s": statistics.median(self.rounds) if self.rounds else None,
            "minimum_s": min(self.least, default=None),
            "rounds_s": self.rounds,
            "calls": self.calls,
            "first_calls_s": self.first,
            "kernels": self.kernels,
            "other_programs_cpus": statistics.median(self.others) if self.others else None,
        }


class Peer:
    """The process of one library for one workload."""

    def __init__(self, library: str, workload: str, options: Options) -> None:
        self.limit = options.limit
        command = [sys.executable, str(HERE / "worker.py"), library, workload, str(options.threads)]
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in close)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=options.variables,
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
            raise Failed(f"no answer within {self.limit:g} s") from None
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

    libraries: list[str]
    rounds: int
    block: float
    threads: int
    limit: float
    first: bool
    variables: dict[str, str]


# ---- steady work -------------------------------------------------------------------------------


def run_steady(workload: Steady, options: Options) -> tuple[dict[str, Outcome], list[str]]:
    """The outcome of every library, and what was found different in the results."""
    names = [n for n in options.libraries if n in workload.build]
    outcomes = {name: Outcome() for name in names}
    peers: dict[str, Peer] = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            files = {}
            for name in names:
                peers[name] = Peer(name, workload.name, options)
                files[name] = _check(peers[name], folder, outcomes[name])
            present = [n for n in names if outcomes[n].error is None]
            results = {n: [np.load(Path(folder, f)) for f in files[n]] for n in present}
        different = compare(results, workload.rtol, workload.atol)
        if not different:
            for _ in range(options.rounds):
                for name in present:
                    _time(peers[name], options.block, outcomes[name])
    finally:
        for peer in peers.values():
            peer.close()
    return outcomes, different


def _check(peer: Peer, folder: str, outcome: Outcome) -> list[str]:
    """Let a library run its first calls; the files that hold its results."""
    try:
        answer = peer.ask(do="check", folder=folder)
    except Failed as failure:
        outcome.error = str(failure)
        return []
    outcome.first = answer["first"]
    outcome.kernels = answer["kernels"]
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


def compare(results: dict[str, list[Any]], rtol: float, atol: float) -> list[str]:
    """What differs between the results of the first library and those of each other."""
    different = []
    first, *others = results or [""]
    for name in others:
        pairs = list(zip(results[first], results[name], strict=False))
        if len(results[first]) != len(results[name]):
            different.append(f"{first} has {len(results[first])} results, {name} {len(pairs)}")
        for i, (a, b) in enumerate(pairs):
            if a.shape != b.shape:
                different.append(f"result {i}: {first} has shape {a.shape}, {name} {b.shape}")
            elif not np.allclose(a, b, rtol=rtol, atol=atol):
                worst = float(np.nanmax(np.abs(a - b)))
                different.append(f"result {i}: {first} and {name} differ by up to {worst:.3g}")
    return different


# ---- work in a new interpreter -----------------------------------------------------------------


def run_fresh(workload: Fresh, options: Options) -> tuple[dict[str, Outcome], list[str]]:
    """The outcome of every library, and what was found different in the results."""
    names = [n for n in options.libraries if n in workload.programs]
    outcomes = {name: Outcome() for name in names}
    results: dict[str, list[Any]] = {}
    for round_ in range(options.rounds + 1):  # the first one fills the system's file cache
        baseline = 0.0
        if workload.baseline is not None:
            baseline, _ = _fresh(workload.baseline, options)
        for name in names:
            outcome = outcomes[name]
            if outcome.error is not None:
                continue
            try:
                seconds, result = _fresh(workload.programs[name], options)
            except Failed as failure:
                outcome.error = str(failure)
                continue
            if round_ == 0:
                outcome.first.append(seconds - baseline)
                if result is not None:
                    results[name] = [result]
                continue
            outcome.rounds.append(seconds - baseline)
            outcome.least.append(seconds - baseline)
            outcome.calls += 1
        if round_ == 0 and (different := compare(results, workload.rtol, workload.atol)):
            return outcomes, different
    return outcomes, []


def _fresh(program: str, options: Options) -> tuple[float, Any]:
    """Run a program with empty caches: its seconds, and its result if it prints one."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**options.variables, **empty_caches(folder)},
            cwd=folder,  # a folder called like a library must not be taken for it
            start_new_session=options.first,
        )
        if options.first:
            machine.go_first(process.pid)
        try:
            out, err = process.communicate(timeout=options.limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise Failed(f"no end within {options.limit:g} s") from None
        wall = time.perf_counter() - begun
    if process.returncode != 0:
        raise Failed(err.strip().splitlines()[-1] if err.strip() else f"rc {process.returncode}")
    printed = out.splitlines()
    if not printed:
        return wall, None
    return float(printed[0]), np.array(json.loads(printed[1]))


# ---- the record --------------------------------------------------------------------------------


def record(
    workload: Steady | Fresh, outcomes: dict[str, Outcome], different: list[str]
) -> dict[str, Any]:
    """One workload as it stands in the JSON file."""
    agree = [n for n, o in outcomes.items() if o.error is None and not different]
    if isinstance(workload, Fresh) and workload.baseline is not None:  # programs without results
        agree = []
    made: dict[str, Any] = {
        "name": workload.name,
        "about": workload.about,
        "libraries": {name: outcome.record() for name, outcome in outcomes.items()},
        "agree": agree if len(agree) > 1 else [],
        "different": different,
        "ratios": {},
    }
    ours = outcomes.get(OURS)
    if isinstance(workload, Fresh):
        made["limit_s"] = workload.limit
        if workload.limit is not None and ours is not None and ours.rounds:
            made["met"] = statistics.median(ours.rounds) <= workload.limit
        targets = {}
    else:
        targets = dict(workload.targets)
    for name, theirs in outcomes.items():
        if name == OURS or ours is None or not ours.rounds or not theirs.rounds:
            continue
        pairs = zip(ours.rounds, theirs.rounds, strict=False)
        ratio = statistics.median(a / b for a, b in pairs)
        target = targets.get(name)
        made["ratios"][name] = {
            "median": ratio,
            "of_minima": min(ours.least) / min(theirs.least),
            "target": target,
            "met": None if target is None else ratio <= target,
        }
    return made


def measure(names: list[str], options: Options) -> list[dict[str, Any]]:
    """Run the workloads one after the other, telling each one's result at once."""
    registry = load()
    made = []
    for name in names:
        workload = registry[name]
        begun = time.perf_counter()
        if isinstance(workload, Fresh):
            outcomes, different = run_fresh(workload, options)
        else:
            outcomes, different = run_steady(workload, options)
        made.append(record(workload, outcomes, different))
        took = time.perf_counter() - begun
        print(f"{name}: {took:.1f} s", file=sys.stderr)
    return made


def parse(registry: dict[str, Steady | Fresh]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="workloads (default: all)")
    parser.add_argument("--libraries", default=",".join(LIBRARIES), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=7, help="turns (default: %(default)s)")
    parser.add_argument("--block", type=float, default=0.3, help="seconds of a turn")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--first", action="store_true", help="run before other programs (root)")
    parser.add_argument("--limit", type=float, default=300, help="seconds to wait for an answer")
    parser.add_argument("--json", type=Path, metavar="PATH", help="default: results/<time>.json")
    parser.add_argument("--list", action="store_true", help="name the workloads and stop")
    args = parser.parse_args()
    for name in args.only or ():
        if name not in registry:
            parser.error(f"no workload {name!r}; choose from {', '.join(registry)}")
    for name in args.libraries.split(","):
        if name not in LIBRARIES:
            parser.error(f"no library {name!r}; choose from {', '.join(LIBRARIES)}")
    return args


def main() -> int:
    registry = load()
    args = parse(registry)
    if args.list:
        for workload in registry.values():
            print(f"{workload.name:22} {workload.about}")
        return 0
    here, absent = installed(args.libraries.split(","))
    with tempfile.TemporaryDirectory() as caches:
        variables = {**os.environ, **environment(args.threads), **empty_caches(caches)}
        if sys.dont_write_bytecode:  # or every import would compile anew
            variables |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": f"{caches}/pyc"}
        options = Options(
            libraries=here,
            rounds=args.rounds,
            block=args.block,
            threads=args.threads,
            limit=args.limit,
            first=args.first,
            variables=variables,
        )
        workloads = measure(args.only or list(registry), options)
    report = {
        "machine": machine.describe(args.threads),
        "libraries": {name: version_of(name) for name in here},
        "not_installed": absent,
        "rounds": args.rounds,
        "block_s": args.block,
        "ran_before_other_programs": args.first,
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "workloads": workloads,
    }
    path = args.json or HERE / "results" / f"{datetime.now(timezone.utc):%Y-%m-%d-%H%M}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(show(report))
    broken = [w["name"] for w in workloads if w["different"] or _failed(w)]
    return 1 if broken else 0


def _failed(workload: dict[str, Any]) -> bool:
    return "error" in workload["libraries"].get(OURS, {})


if __name__ == "__main__":
    sys.exit(main())
