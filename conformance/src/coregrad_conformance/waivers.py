"""What a plugin admits: rows that fail on it, each with a reason and a date; it excuses no more.

``waivers.toml`` lies beside the plugin's ``__init__.py``, hence in its wheel::

    [[waiver]]
    id = "sin/float64/random"          # one row, exactly
    kind = "driver-bug"                # or notyet, never
    raises = "ulp<=12"                 # or the kind of failure, or an exception's class
    reason = "the driver's sin reduces its argument with 64 bits of pi"
    url = "https://example.org/bugs/1"
    expires = 2026-12-31               # within twelve months

``backend``, ``devices``, ``driver`` and ``contract`` narrow it to one of the plugin's backends, to
devices and drivers of exactly these names, and to one version of the contract.

A waiver is strict: when its row passes, the run fails until the waiver is removed. No row of level
core can be waived, nor more than one in a hundred of a level.
"""

from __future__ import annotations

import datetime
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from coregrad_conformance.result import WAIVABLE, Result, restated
from coregrad_conformance.row import Row

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "waivers.toml"
KINDS = ("driver-bug", "notyet", "never")
TEXTS = ("id", "kind", "raises", "reason", "url", "driver", "contract", "backend")
REQUIRED = ("id", "kind", "raises", "reason", "url", "expires")
DAYS = 366
ULP = re.compile(r"ulp<=(\d+(?:\.\d+)?)")
PERCENT = 1


@dataclass(frozen=True)
class Waiver:
    """One admitted failure; see the module."""

    id: str
    kind: str
    raises: str
    reason: str
    url: str
    expires: datetime.date
    driver: str = ""
    contract: str = ""
    backend: str = ""
    devices: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        """For JSON."""
        kept = {name: value for name, value in asdict(self).items() if value}
        return kept | {"expires": self.expires.isoformat()}

    def excuses(self, result: Result) -> bool:
        """Whether the row failed in the way that is admitted."""
        limit = ULP.fullmatch(self.raises)
        if limit is not None:
            return result.ulp is not None and result.ulp <= float(limit[1])
        return bool(self.raises) and self.raises in (result.kind, result.exception)

    def concerns(self, device: Mapping[str, Any]) -> bool:
        """Whether it is about this backend, device, driver and contract."""
        names = (device["name"], device["title"])
        return (
            self.backend in ("", device["name"].partition(":")[0])
            and self.driver in ("", device["driver"])
            and self.contract in ("", device["contract"])
            and (not self.devices or any(name in self.devices for name in names))
        )


@dataclass(frozen=True)
class Waived:
    """Results after the waivers: what was used, what only deserves a note, and what is wrong."""

    results: list[Result]
    used: list[Waiver]
    notes: list[str]
    problems: list[str]


def load(path: Path) -> tuple[list[Waiver], list[str]]:
    """The waivers of a file and everything that is wrong with it; no file, no waivers."""
    if not path.is_file():
        return [], []
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return [], [f"{FILE}: {error}"]
    entries = table.pop("waiver", [])
    problems = [f"{FILE}: {key!r} is unknown; a file holds [[waiver]] tables" for key in table]
    if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        return [], [*problems, f"{FILE}: 'waiver' must be an array of tables: [[waiver]]"]
    found = []
    for entry in entries:
        wrong = list(misfits(entry))
        problems += [f"{FILE}: {entry.get('id', '(no id)')}: {line}" for line in wrong]
        if not wrong:
            found.append(read(entry))
    return found, problems


def read(entry: Mapping[str, Any]) -> Waiver:
    """A waiver from a table without misfits."""
    return Waiver(**{**entry, "devices": tuple(entry.get("devices", ()))})


def misfits(entry: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with one table, its date aside."""
    known = {field.name for field in fields(Waiver)}
    yield from (f"{key!r} is unknown" for key in entry if key not in known)
    for key in REQUIRED:
        if not entry.get(key):
            yield f"{key!r} is missing"
    for key in TEXTS:
        if not isinstance(entry.get(key, ""), str):
            yield f"{key!r} must be text"
    if entry.get("kind") and entry["kind"] not in KINDS:
        yield f"kind {entry['kind']!r} is unknown; choose one of: {', '.join(KINDS)}"
    if isinstance(entry.get("url"), str) and not entry["url"].startswith("https://"):
        yield "'url' must begin with https://"
    expires = entry.get("expires")
    if expires and (type(expires) is not datetime.date):
        yield "'expires' must be a date: 2026-12-31, without quotes"
    devices = entry.get("devices", [])
    if not isinstance(devices, list) or not all(isinstance(name, str) for name in devices):
        yield "'devices' must be an array of names"


def apply(
    results: Sequence[Result],
    waivers: Sequence[Waiver],
    device: Mapping[str, Any],
    known: Mapping[str, Row],
    today: datetime.date,
) -> Waived:
    """Excuse what is admitted. ``known`` are the rows of all levels."""
    expired = [w for w in waivers if w.expires < today]
    notes = [f"the waiver of {w.id} expired on {w.expires} and is ignored" for w in expired]
    current = {w.id: w for w in waivers if w.expires >= today and w.concerns(device)}
    after = [_excused(result, current.get(result.id)) for result in results]
    used = [current[result.id] for result in after if result.status in ("waived", "xpass")]
    return Waived(after, used, notes, admissible(after, waivers, known, today))


def admissible(
    results: Sequence[Result],
    waivers: Sequence[Waiver],
    known: Mapping[str, Row],
    today: datetime.date,
) -> list[str]:
    """What is wrong with the waivers as a whole."""
    return [*_illegal(waivers, known, today), *_too_many(results, known)]


def _illegal(
    waivers: Sequence[Waiver], known: Mapping[str, Row], today: datetime.date
) -> Iterator[str]:
    latest = today + datetime.timedelta(days=DAYS)
    seen: set[tuple[str, ...]] = set()
    for waiver in waivers:
        row = known.get(waiver.id)
        key = (waiver.id, waiver.backend, waiver.driver, waiver.contract, *waiver.devices)
        if row is None:
            yield f"waiver {waiver.id}: there is no such row; remove it"
        elif row.level == "core":
            yield f"waiver {waiver.id}: it is of level core, where nothing can be waived"
        if waiver.expires > latest:
            yield f"waiver {waiver.id}: it expires on {waiver.expires}, in more than a year"
        if key in seen:
            yield f"waiver {waiver.id}: it is stated twice"
        seen.add(key)


def _excused(result: Result, waiver: Waiver | None) -> Result:
    if waiver is None or result.level == "core":
        return result
    if result.status == "pass":
        return restated(result, "xpass", "it passes, but is waived; remove the waiver")
    if result.status not in WAIVABLE:
        return result
    if not waiver.excuses(result):
        return restated(result, result.status, f"its waiver admits {waiver.raises}, not this")
    return restated(result, "waived", f"waived ({waiver.kind}): {waiver.reason}")


def _too_many(results: Iterable[Result], known: Mapping[str, Row]) -> Iterator[str]:
    waived = Counter(result.level for result in results if result.status == "waived")
    total = Counter(row.level for row in known.values())
    for level, count in waived.items():
        if count * 100 > PERCENT * total[level]:
            yield (
                f"{count} of the {total[level]} rows of level {level} are waived; "
                f"at most {PERCENT} % may be"
            )
