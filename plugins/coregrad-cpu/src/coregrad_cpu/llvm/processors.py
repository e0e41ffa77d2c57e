"""How many threads to use: what the user says, else the processors this process may use.

A container, a service manager or a batch system often gives a process fewer processors than the
machine has: by a list of those it may run on, or by a quota of time per period (a cgroup).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from coregrad import config
from coregrad.errors import SettingError

MOST = 1024  # more threads than any machine serves well: a mistake of the user
CGROUPS = Path("/sys/fs/cgroup")  # where Linux shows them: the root of ours, in a container
OWN_CGROUPS = Path("/proc/self/cgroup")  # in which of them this process is: cgroups(7)


def thread_count() -> int:
    """Threads to use: COREGRAD_NUM_THREADS, else the CPUs this process may use."""
    if config.get("COREGRAD_NUM_THREADS"):
        chosen = config.get_int("COREGRAD_NUM_THREADS")
        if not 1 <= chosen <= MOST:
            raise SettingError(
                f"COREGRAD_NUM_THREADS={chosen}; give a number from 1 to {MOST}, or unset it"
            )
        return chosen
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, quota(CGROUPS, OWN_CGROUPS))))


def quota(cgroups: Path, own: Path) -> float:
    """CPUs' worth of time that this process may use; infinity without a limit.

    A limit of any group around the process holds, so the least one counts.
    """
    limits = [math.inf]
    for folder in _groups(cgroups, own):
        limits += [_share(_words(folder / "cpu.max"))]  # version 2
        old = [_words(folder / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
        limits += [_share([*old[0], *old[1]])]  # version 1
    return min(limits)


def _groups(cgroups: Path, own: Path) -> Iterator[Path]:
    """The folders of the groups around this process that may limit its CPUs, outermost first."""
    yield cgroups
    yield cgroups / "cpu"
    for line in _lines(own):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        folder = cgroups / controllers
        for part in Path(path).parts:
            folder = folder if part in ("/", "..") else folder / part
            yield folder


def _share(words: list[str]) -> float:
    """Quota through period; no quota is `max`, -1 or no file."""
    try:
        allowed, period = (float(word) for word in words)
    except ValueError:
        return math.inf
    return allowed / period if allowed > 0 and period > 0 else math.inf


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []  # not this version of cgroups, or not Linux
