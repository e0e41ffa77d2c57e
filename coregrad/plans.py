"""Plans on disk: what the compiler made of a large expression, kept for the next process.

Who meets the expression again needs none of the passes, only the device's own compiler, which
keeps what it makes as well. A plan is named by the hash of all it depends on: the graph, the
device, and the sources of core and backend, so that who changes a pass never gets what the old one
made. It knows no pass.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coregrad import config, plan
from coregrad.binaries import Binaries
from coregrad.dtypes import DType
from coregrad.ir import ops
from coregrad.ir.graph import Node, toposort
from coregrad.plan import Plan
from coregrad.plugins import Active

LARGE = 64  # nodes of an expression, a formula being one, whose passes take 50 ms and more


class Plans:
    """The plans of one device; ``counts`` tells how often: read, written, damaged, unwritable."""

    def __init__(self, active: Active) -> None:
        self._active = active
        self._binaries = Binaries(config.cache_folder("plans"), _about(active))
        self.counts = self._binaries.counts

    def key(
        self,
        roots: Sequence[Node],
        slots: Mapping[Any, int],
        blocks: Sequence[DType],
        checks: Mapping[Any, int],
    ) -> str:
        """The name of an expression's plan; its leaves and checks are known by their numbers."""
        number: dict[Node, int] = {}
        lines = [repr((len(slots), blocks))]
        for node in toposort(roots):
            arg = node.arg
            if node.op is ops.BUFFER:
                arg = slots[arg]
            elif node.op is ops.CHECK:
                arg = arg[0], checks[arg]
            number[node] = len(number)
            src = [number[s] for s in node.src]
            lines.append(f"{node.op.name} {src} {_described(arg)} {node.dtype.name} {node.shape}")
        lines.append(repr([number[root] for root in roots]))
        return self._binaries.key("\n".join(lines))

    def read(self, key: str) -> Plan | None:
        """The plan of this name, if there is one."""
        data = self._binaries.read(key)
        if data is None:
            return None
        self.counts["read"] += 1
        return plan.from_bytes(data, self._active.device.compile)

    def write(self, key: str, made: Plan) -> None:
        """Keep a plan, if other processes can use it."""
        if made.is_text:
            self._binaries.write(key, plan.to_bytes(made))
            self.counts["written"] += 1


def of(active: Active, size: int) -> Plans | None:
    """The plans of a device that says what its texts depend on; None for expressions of few nodes,
    while nothing is kept, and where the passes are to be shown at work."""
    told = getattr(active.device, "fingerprint", None)  # optional
    shown = config.debug() >= 3
    if size < LARGE or told is None or shown or config.cache_folder("plans") is None:
        return None
    return Plans(active)


def _described(arg: Any) -> str:
    """An argument of a node as text, the same in every process."""
    if isinstance(arg, tuple):
        return f"({' '.join(map(_described, arg))})"
    if arg is None or isinstance(arg, (int, float, str, DType)):
        return repr(arg)
    raise TypeError(f"plans: {type(arg).__name__} is no argument of a node that is known here")


def _about(active: Active) -> str:
    """All that texts depend on besides the graph."""
    limits = active.device.limits
    known = sorted(f"{name}={value!r}" for name, value in vars(limits).items() if name != "dtypes")
    package = type(active.backend).__module__.partition(".")[0]
    return "\n".join(
        (
            *known,
            repr(sorted(d.name for d in limits.dtypes)),
            config.get("COREGRAD_FUSION"),
            active.device.fingerprint,  # type: ignore[attr-defined]
            _sources("coregrad"),
            _sources(package),
        )
    )


@functools.cache
def _sources(package: str) -> str:
    """What tells one state of a package's sources from another: names, sizes and times."""
    told = sys.modules[package].__file__
    assert told is not None
    folder = Path(told).parent
    files = sorted(folder.rglob("*.py"))
    states = [(path.relative_to(folder).as_posix(), path.stat()) for path in files]
    return repr([(name, state.st_size, state.st_mtime_ns) for name, state in states])
