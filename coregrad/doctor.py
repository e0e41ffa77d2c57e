"""Look over an installation: whose it is, what it needs, every plugin; it never repairs anything.

Each plugin is tried in a process of its own with a time limit: a crash or a hang is one row of the
report. What can be said of an installation that cannot be imported is in `_coregrad_boot`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import _coregrad_boot
from coregrad import config, plugins
from coregrad.errors import CoregradError
from coregrad.ir.contract import contract_table

__all__ = ["Check", "Report", "examine"]

SMOKE = "coregrad.smoke:answer"
EMULATION = "COREGRAD_SIMT_"  # variables of the development tool that COREGRAD_EMULATE asks for
STATUS = {
    "active": "ok",
    "blocked": "skip",
    "unavailable": "warn",
    "conflict": "warn",
    "incompatible": "fail",
    "failed": "fail",
}


@dataclass(frozen=True)
class Check:
    """One row: status is ok, warn, fail or skip; ``fix`` says what to do."""

    subject: str
    status: str
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class Report:
    """Every row, and the exit code: 0 well, 1 something failed, 2 no device that was asked for."""

    checks: list[Check]
    exit: int

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return self.exit == 0

    def data(self) -> dict[str, object]:
        """For JSON."""
        return {"ok": self.ok, "exit": self.exit, "checks": [asdict(c) for c in self.checks]}

    def __str__(self) -> str:
        return _coregrad_boot.show([asdict(check) for check in self.checks])


def examine() -> Report:
    """Run every check. Takes as long as the plugins take to open, and 20 s for one that hangs."""
    checks = [Check(**row) for row in _coregrad_boot.installation()]
    checks += [_contract(), *_environment(), _cache(), _threads()]
    devices = list(_plugins())
    chosen = _default(devices)
    checks += [*devices, chosen]
    if chosen.status == "fail" and config.get("COREGRAD_DEVICE").strip():
        return Report(checks, 2)
    return Report(checks, int(any(check.status == "fail" for check in checks)))


def _contract() -> Check:
    table = contract_table()
    version = ".".join(map(str, table["version"]))
    return Check("contract", "ok", f"{version}, {len(table['ops'])} ops, sha256 {table['sha256']}")


def _environment() -> Iterator[Check]:
    """What is set, and what looks like a variable of ours and is none."""
    ours = {name: value for name, value in os.environ.items() if name.startswith("COREGRAD_")}
    words = " ".join(f"{name}={ours[name]}" for name in sorted(ours) if name in config.VARIABLES)
    yield Check("environment", "ok", words or "no variable of coregrad is set")
    for name in sorted(set(ours) - set(config.VARIABLES)):
        if name.startswith(EMULATION):
            continue
        yield Check("environment", "warn", f"{name} is no variable of coregrad", f"unset {name}")


def _cache() -> Check:
    folder = config.cache_folder()
    if folder is None:
        return Check("cache", "ok", "no disk cache, as COREGRAD_CACHE=0 says")
    there = next((f for f in (folder, *folder.parents) if f.exists()), Path(folder.anchor))
    try:
        with tempfile.TemporaryFile(dir=there):
            return Check("cache", "ok", str(folder))
    except OSError as error:
        words = f"{folder} cannot be written ({error}): every process compiles its kernels anew"
        return Check("cache", "warn", words, "set COREGRAD_CACHE to a folder that can, or to 0")


def _threads() -> Check:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if not config.get("COREGRAD_NUM_THREADS"):
        return Check("threads", "ok", f"{usable}, the processors this process may use")
    try:
        chosen = config.get_int("COREGRAD_NUM_THREADS")
    except CoregradError as error:
        return Check("threads", "fail", str(error))
    words = f"{chosen}, as COREGRAD_NUM_THREADS says; this process may use {usable} processors"
    if chosen < 1:
        return Check("threads", "fail", words, "give 1 or more, or unset it")
    return Check("threads", "warn" if chosen > (usable or 1) else "ok", words)


def _plugins() -> Iterator[Check]:
    rows = plugins.describe(probe=True, question=SMOKE)
    if not rows:
        yield Check("devices", "fail", "no backend is installed", "pip install coregrad-cpu")
    for row in rows:
        title = " ".join((row.distribution, row.version)).strip()
        said = [f"contract {row.contract}" if row.contract else "", row.rank]
        known = ", ".join(word for word in said if word)
        detail = f"{title} ({known})" if known else title
        words = " ".join(row.words.split())
        status = STATUS[row.state]
        yield Check(f"device {row.name}", status, f"{detail}, {row.state}: {words}", _fix(row))


def _fix(row: plugins.Row) -> str:
    if row.state not in ("failed", "incompatible") or row.name == plugins.UNREADABLE:
        return ""
    return f"upgrade or uninstall {row.distribution}, or set COREGRAD_PLUGINS=-{row.name}"


def _default(devices: list[Check]) -> Check:
    """What a program gets that names no device; that it has to name one is no failure."""
    name, reason = plugins.probe_default()
    if name:
        return Check("default", "ok", f"{name} ({reason})")
    words = " ".join(reason.split())
    works = {check.subject for check in devices if check.status == "ok"}
    named = [one for one in plugins.named_only() if f"device {one}" in works]
    if named and not config.get("COREGRAD_DEVICE").strip():
        return Check("default", "warn", words, f"set COREGRAD_DEVICE={named[0]}")
    return Check("default", "fail", words)
