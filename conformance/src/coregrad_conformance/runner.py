"""Run rows in processes that may crash or hang, and go on; it never runs a row itself.

A worker (`worker`) writes a line when a row begins and one when it ends. When the process dies, or
a row takes too long, the row that was running gets that as its end and another process goes on
with the next. Processes are isolated (`isolation`), or forked from this one, which is fast and is
for the suite's tests of itself only.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from coregrad_conformance import emulation, isolation
from coregrad_conformance.result import Result, ended, loaded
from coregrad_conformance.row import LEVELS, Row
from coregrad_conformance.worker import Request, Spec, serve

__all__ = ["Lost", "Options", "Run", "Session", "Spec", "run"]

POLL = 0.01  # seconds between two looks at the workers
OPENING = 60.0  # seconds at least for the first line: some drivers compile when they are opened
GRACE = 10.0  # seconds for a worker that is done to be gone
GIVE_UP = 20  # deaths of a run after which the remaining rows are not tried
OUTPUT = 65536  # bytes of a dead worker's output that are looked at
LOG = 1000  # characters of it that are told
EMULATION = "emulation.jsonl"


class Lost(Exception):
    """The device could not be opened, or a worker died when no row was running."""

    def __init__(self, reason: str, exception: str = "") -> None:
        super().__init__(reason)
        self.exception = exception  # the class of what opening raised

    @property
    def absent(self) -> bool:
        """Whether there is no such device here, which is no fault of the backend."""
        return self.exception in ("DeviceError", "BackendUnavailable")


@dataclass(frozen=True)
class Options:
    """How rows are run. ``timeout`` is for one row, in seconds. ``launch`` is "process" or "fork".

    ``seen`` is told each result as its row ends; ``until`` ends the run when it says yes to one.
    """

    timeout: float = 120.0
    jobs: int = 1
    launch: str = "process"
    sync: bool = True
    seen: Callable[[Result], None] | None = None
    until: Callable[[Result], bool] | None = None


@dataclass(frozen=True)
class Run:
    """What came out: the device, and the results in the order of the rows."""

    device: dict[str, Any]
    results: list[Result]
    seconds: float
    emulated: emulation.Tally | None = None


def run(rows: Sequence[Row], spec: Spec, options: Options | None = None) -> Run:
    """Run all ``rows`` on the backend of ``spec``. Raises Lost."""
    began = time.perf_counter()
    session = Session(rows, spec, options or Options())
    found = {}
    for result in session:
        found[result.id] = result
        if session.options.seen is not None:
            session.options.seen(result)
    results = [found[row.id] for row in rows if row.id in found]
    seconds = round(time.perf_counter() - began, 3)
    return Run(session.device, results, seconds, session.emulated)


class Session:
    """A run as an iterator of results, in the order in which rows end."""

    def __init__(self, rows: Sequence[Row], spec: Spec, options: Options) -> None:
        self.rows, self.spec, self.options = list(rows), spec, options
        self.device: dict[str, Any] = {}
        self.emulated: emulation.Tally | None = None  # when the run is over

    def __iter__(self) -> Generator[Result, None, None]:
        with tempfile.TemporaryDirectory(prefix="coregrad-conformance-") as folder:
            count = max(1, min(self.options.jobs, len(self.rows)))
            jobs = [
                Job(self.rows[i::count], self.spec, self.options, Path(folder, str(i)))
                for i in range(count)
            ]
            try:
                yield from self._drive(jobs)
            finally:
                for job in jobs:
                    job.stop()
                self._count(Path(folder, EMULATION))

    def _count(self, journal: Path) -> None:
        """What the workers have done, if their device was emulated."""
        if emulation.is_asked(self.spec.name, os.environ):
            self.emulated = emulation.tally(journal)
            emulation.hand_on(journal)

    def _drive(self, jobs: list[Job]) -> Iterator[Result]:
        until = self.options.until
        while any(not job.over for job in jobs):
            found = [result for job in jobs if not job.over for result in job.step()]
            self.device = self.device or next((job.device for job in jobs if job.device), {})
            for result in found:
                yield result
                if until is not None and until(result):
                    return
            if not found:
                time.sleep(POLL)


class Process(Protocol):
    """What a job needs of its worker."""

    def poll(self) -> int | None:
        """The exit code (negative: a signal), or None while it runs."""

    def kill(self) -> None:
        """End it and what it has started."""


@dataclass
class Job:
    """Rows that run one after the other, in one worker after another."""

    rows: Sequence[Row]
    spec: Spec
    options: Options
    folder: Path
    device: dict[str, Any] = field(default_factory=dict)
    over: bool = False
    started: int = 0
    deaths: int = 0
    hopeless: bool = False
    running: str = ""
    since: float = 0.0
    opened: bool = False
    process: Process | None = None

    def __post_init__(self) -> None:
        self.left = {row.id: row for row in self.rows}
        self.over = not self.left
        self.offset = 0
        (self.folder / "cwd").mkdir(parents=True)

    @property
    def journal(self) -> Path:
        """The file that the present worker writes."""
        return self.folder / f"journal-{self.started}.jsonl"

    @property
    def log(self) -> Path:
        """What the present worker prints."""
        return self.folder / f"output-{self.started}.txt"

    def step(self) -> list[Result]:
        """Look at the worker once; returns the ends that it has written since."""
        if self.process is None:
            self.process = self._start()
            return []
        code = self.process.poll()  # before reading: what it wrote until then will be read
        results, done = self._read()
        if done:
            self.over = True
        elif code is not None:
            results += self._died("crash", _ending(code))
        elif time.monotonic() - self.since > self._limit():
            self.process.kill()
            results += self._died("timeout", f"no end within {self._limit():g} s")
        return results

    def stop(self) -> None:
        """End the worker, if there is one."""
        if self.process is None:
            return
        end = time.monotonic() + (GRACE if self.over else 0.0)
        while self.process.poll() is None and time.monotonic() < end:
            time.sleep(POLL)
        self.process.kill()

    def _start(self) -> Process:
        self.started += 1
        self.offset, self.running, self.opened = 0, "", False
        self.since = time.monotonic()
        rows = list(self.left.values())
        level = max((row.level for row in rows), key=LEVELS.index)
        request = Request(self.spec, level, tuple(self.left), str(self.journal), self.options.sync)
        self.journal.touch()
        if self.options.launch == "fork":
            return Forked(self, lambda: serve(request, rows))
        return Spawned(self, request)

    def _limit(self) -> float:
        return self.options.timeout if self.running else max(self.options.timeout, OPENING)

    def _read(self) -> tuple[list[Result], bool]:
        """The ends in the journal's new lines, and whether it says that all is done."""
        results, done = [], False
        with self.journal.open("rb") as file:
            file.seek(self.offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]  # the last line may still be in the making
        self.offset += len(whole)
        for line in whole.splitlines():
            entry = json.loads(line)
            self.since = time.monotonic()
            if "unopened" in entry:
                self._refuse(entry["unopened"], entry["exception"])
            elif "opened" in entry:
                self.device, self.opened = entry["opened"], True
            elif "start" in entry:
                self.running = entry["start"]
            elif "end" in entry:
                self.running = ""
                del self.left[entry["end"]["id"]]
                results.append(loaded(entry["end"]))
            else:
                done = True
        return results, done

    def _refuse(self, reason: str, exception: str) -> None:
        if self.deaths == 0:
            raise Lost(reason, exception)
        self.hopeless = True  # it opened before the last crash, and now it does not

    def _died(self, status: str, how: str) -> list[Result]:
        """The worker is gone: the row that ran has ended, and another worker goes on."""
        words = _tail(self.log)
        detail = f"{how}\n{words}".strip()
        if not self.opened and self.deaths == 0:
            raise Lost(f"the device could not be opened: {detail}")
        if not self.left:
            raise Lost(f"the worker died after its last row: {detail}")
        row = self.left.pop(self.running or next(iter(self.left)))
        results = [ended(row, status, kind=status, detail=detail)]
        self.process = None
        self.deaths += 1
        if self.hopeless or self.deaths >= GIVE_UP:
            results += self._give_up(status)
        self.over = not self.left
        return results

    def _give_up(self, status: str) -> list[Result]:
        why = "not run: the backend crashed or hung too often, or could not be opened again"
        lost = [ended(row, status, kind=status, detail=why) for row in self.left.values()]
        self.left.clear()
        return lost


class Spawned:
    """A worker in an isolated Python."""

    def __init__(self, job: Job, request: Request) -> None:
        path = job.folder / "request.json"
        path.write_text(request.text(), encoding="utf-8")
        with job.log.open("wb") as log:
            self.process = subprocess.Popen(
                isolation.command("coregrad_conformance.worker", [str(path)]),
                cwd=job.folder / "cwd",
                env={
                    **isolation.environment(job.folder / "kernels"),
                    emulation.JOURNAL: str(job.folder.parent / EMULATION),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def poll(self) -> int | None:
        """See Process."""
        return self.process.poll()

    def kill(self) -> None:
        """See Process."""
        if os.name == "posix":
            _kill_group(self.process.pid)
        self.process.kill()
        self.process.wait()


class Forked:
    """A worker that is a copy of this process: it has imported everything already."""

    def __init__(self, job: Job, work: Callable[[], None]) -> None:
        self.code: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        with job.log.open("wb") as log:
            self.pid = os.fork()
            if self.pid == 0:
                _be_child(job.folder, log, work)

    def poll(self) -> int | None:
        """See Process."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def kill(self) -> None:
        """See Process."""
        _kill_group(self.pid)
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)  # it may not have made its own group yet
            _, status = os.waitpid(self.pid, 0)
            self.code = os.waitstatus_to_exitcode(status)


def _be_child(folder: Path, log: IO[bytes], work: Callable[[], None]) -> None:
    """The forked process's life. It never returns into the code of its parent."""
    code = 70
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        sys.stdout = sys.stderr = os.fdopen(1, "w", closefd=False)
        os.chdir(folder / "cwd")
        kept = isolation.environment(folder / "kernels")
        os.environ.clear()
        os.environ.update(kept)
        warnings.simplefilter("default")  # a test's "error" would change what rows do
        work()
        code = 0
    finally:
        os._exit(code)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # gone, or (macOS) all of it is a zombie
        return


def _tail(log: Path) -> str:
    """The last that a worker printed: of a crash the beginning of Python's stack."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - OUTPUT))
        text = file.read().decode("utf-8", "replace")
    _, mark, stack = text.rpartition("Fatal Python error")
    return (mark + stack[:LOG] if mark else text[-LOG:]).strip()


def _ending(code: int) -> str:
    if code >= 0:
        return f"the process ended with exit code {code}"
    try:
        return f"the process was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"the process was ended by signal {-code}"
