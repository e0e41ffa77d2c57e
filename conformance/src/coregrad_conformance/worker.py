"""The process in which rows run. It may crash or hang at any moment: each end is written at once.

It writes one JSON object per line: ``opened`` or ``unopened`` first, then ``start`` and ``end`` of
each row, and ``done``. It never judges the whole; its parent (`runner`) does not trust it to live.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coregrad import plugins
from coregrad.errors import DeviceError
from coregrad_conformance.result import Result, ended
from coregrad_conformance.row import Failure, Outcome, Row, Unsupported
from coregrad_conformance.target import Target

if TYPE_CHECKING:
    from coregrad.hookspecs import Backend

CRASHES = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT")
NO_VALUES = ("errors", "capabilities")  # groups whose rows may compare no value


@dataclass(frozen=True)
class Spec:
    """The backend under test: an installed one by its name.

    The rest is for this package's own tests and never part of a certificate. ``factory`` is the
    "module:function" that makes a backend (called with ``argument`` unless that is empty) and
    returns (BackendInfo, backend); ``rows`` the one that lists the rows of a level; ``path`` what
    is added to the worker's import path.
    """

    name: str
    factory: str = ""
    argument: str = ""
    rows: str = "coregrad_conformance.rows:all_rows"
    path: tuple[str, ...] = ()

    @property
    def internal(self) -> bool:
        """Whether this is anything else than an installed backend against the suite's rows."""
        return self != Spec(self.name)


@dataclass(frozen=True)
class Request:
    """What a worker is asked for. ``sync``: each line reaches the disk before the next row."""

    spec: Spec
    level: str
    ids: tuple[str, ...]
    journal: str
    sync: bool = True

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


def main(arguments: Sequence[str]) -> int:
    """Serve the request in the file that the one argument names."""
    data = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    spec = data.pop("spec")
    spec["path"] = tuple(spec["path"])
    request = Request(Spec(**spec), **data)
    sys.path.extend(request.spec.path)
    serve(request, chosen(request))
    os._exit(0)  # at once: drivers also crash while Python shuts down


def chosen(request: Request) -> list[Row]:
    """The rows asked for, in the order asked for."""
    known = {row.id: row for row in resolve(request.spec.rows)(request.level)}
    return [known[name] for name in request.ids]


def resolve(name: str) -> Any:
    """The object that "module:attribute" names."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def serve(request: Request, rows: Sequence[Row]) -> None:
    """Open the device and run the rows; every end is in the journal before the next begins."""
    crash_plainly()
    with Path(request.journal).open("a", encoding="utf-8") as file:

        def say(sync: bool = False, **line: Any) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()
            if sync and request.sync:
                os.fsync(file.fileno())

        try:
            target = open_target(request.spec)
            about = describe(target)
        except (Exception, SystemExit) as error:
            words = str(error) if isinstance(error, DeviceError) else reason(error)
            say(unopened=words, exception=type(error).__name__)
            return
        say(opened=about)
        for row in rows:
            say(start=row.id)
            say(end=asdict(measure(row, target)), sync=True)
        say(done=True)


def crash_plainly() -> None:
    """A crash prints every thread's stack and ends the process.

    A process that was forked has the handlers of the libraries its parent had loaded: a compiler's
    may swallow the signal.
    """
    faulthandler.disable()
    for name in CRASHES:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    faulthandler.enable(all_threads=True)


def open_target(spec: Spec) -> Target:
    """The device under test."""
    if spec.factory:
        hand_over(spec)
    return Target(spec.name)


_handed: list[Backend] = []


def hand_over(spec: Spec) -> None:
    """Offer the backend that the factory makes, in this process only, under the spec's name."""
    factory = resolve(spec.factory)
    info, backend = factory(spec.argument) if spec.argument else factory()
    _handed.append(backend() if isinstance(backend, type) else backend)
    impl = f"{__name__}:handed"
    plugins.register(replace(info, name=spec.name, impl=impl), "coregrad-conformance (internal)")


def handed() -> Backend:
    """What `plugins` calls to get the backend that was handed over last."""
    return _handed[-1]


def describe(target: Target) -> dict[str, Any]:
    """The device and the plugin behind it, for the report."""
    limits = asdict(target.limits)
    limits["dtypes"] = sorted(dtype.name for dtype in target.limits.dtypes)
    device, info = target.active.device, target.active.info
    base = target.name.partition(":")[0]
    offers = [row for row in plugins.describe() if row.name == base and row.state == "active"]
    return {
        "name": target.name,
        "title": str(device.name),
        "driver": str(getattr(device, "driver", "") or getattr(device, "title", "")),
        "limits": limits,
        "hooks": sorted(target.active.hooks.functions),
        "style": target.active.hooks.style,
        "rank": info.rank,
        "summary": info.summary,
        "contract": ".".join(map(str, info.contract)),
        "impl": info.impl,
        "distribution": offers[0].distribution,
        "version": offers[0].version,
    }


def measure(row: Row, target: Target) -> Result:
    """Run one row; whatever it raises is its result."""
    began = time.perf_counter()
    try:
        status, found = judged(row, row.run(target))
    except Unsupported as answer:
        status, found = "unsupported", {"detail": str(answer)}
    except Failure as failure:
        found = {"kind": failure.kind, "detail": str(failure)}
        status, found["ulp"] = "fail", getattr(failure, "ulp", None)
    except BaseException as error:  # SystemExit and KeyboardInterrupt of a backend included
        status = "fail"
        found = {"kind": "exception", "exception": type(error).__name__, "detail": reason(error)}
    return ended(row, status, seconds=time.perf_counter() - began, **found)


def judged(row: Row, outcome: Any) -> tuple[str, dict[str, Any]]:
    """A row that returned: passed, unless it has compared nothing."""
    if not isinstance(outcome, Outcome):
        return "error", {"detail": f"the row returned {outcome!r}; it must return an Outcome"}
    if outcome.compared <= 0 and row.group not in NO_VALUES:
        return "error", {"detail": "the row compared no value"}
    found = {"compared": outcome.compared, "ulp": outcome.ulp, "worst": outcome.worst}
    return "pass", found | {"detail": outcome.detail}


def reason(error: BaseException) -> str:
    """The exception and where it came from, without folders of this machine."""
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    places = [f"  {Path(f.filename).name}:{f.lineno} in {f.name}: {f.line}" for f in frames]
    return "\n".join([f"{type(error).__name__}: {error}", *reversed(places)])
