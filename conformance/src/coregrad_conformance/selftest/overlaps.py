"""The rows that have no fault of their own, each with the reason why; a person has read them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
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
