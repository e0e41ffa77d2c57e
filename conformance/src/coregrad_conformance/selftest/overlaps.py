"""The rows that have no fault of their own, each with the reason why; a person has read them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_name("overlaps.toml")


@dataclass(frozen=True)
class Overlap:
    """A row whose absence no fault of the reference would tell."""

    row: str
    reason: str


def load() -> list[Overlap]:
    """The reviewed list."""
    entries: list[Mapping[str, Any]] = tomllib.loads(FILE.read_text(encoding="utf-8"))["overlap"]
    return [Overlap(**entry) for entry in entries]


def stale(rows: Collection[str], pinned: Collection[str]) -> Iterator[str]:
    """Entries that say nothing any more."""
    for overlap in load():
        if overlap.row not in rows:
            yield f"{FILE.name}: there is no row {overlap.row}; remove it"
        elif overlap.row in pinned:
            yield f"{FILE.name}: {overlap.row} has a fault of its own; remove it"
