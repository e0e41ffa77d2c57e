"""The mutants that were read by a person and found to change nothing that the contract promises."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coregrad_conformance.selftest.mutants import Mutant

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_name("equivalents.toml")
FIELDS = ("id", "line", "becomes", "reason")


@dataclass(frozen=True)
class Equivalent:
    """One entry: which mutant, the source line it was read on, what it makes of it, and why."""

    id: str
    line: str
    becomes: str
    reason: str


def load(text: str | None = None) -> list[Equivalent]:
    """The reviewed list. Raises ValueError for an entry that lacks something."""
    content = FILE.read_text(encoding="utf-8") if text is None else text
    entries: list[Mapping[str, Any]] = tomllib.loads(content).get("equivalent", [])
    for entry in entries:
        if sorted(entry) != sorted(FIELDS) or not all(str(entry[key]).strip() for key in FIELDS):
            raise ValueError(f"{FILE.name}: {dict(entry)}: an entry has {', '.join(FIELDS)}")
    return [Equivalent(**entry) for entry in entries]


def stale(entries: Iterable[Equivalent], mutants: Iterable[Mutant]) -> Iterator[str]:
    """What no longer matches the source."""
    known = {mutant.id: mutant for mutant in mutants}
    seen: set[str] = set()
    for entry in entries:
        mutant = known.get(entry.id)
        if entry.id in seen:
            yield f"{FILE.name}: {entry.id} is listed twice"
        elif mutant is None:
            yield f"{FILE.name}: there is no mutant {entry.id}; remove it"
        elif (mutant.text, mutant.becomes) != (entry.line, entry.becomes):
            yield f"{FILE.name}: {entry.id} is another mutant now; read it again: {mutant.words}"
        seen.add(entry.id)
