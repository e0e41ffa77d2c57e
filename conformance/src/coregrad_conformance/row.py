"""What a row of the suite is, and how one ends; it knows no row and no device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coregrad_conformance.target import Target

LEVELS = ("core", "standard", "extended")  # each contains those before it


@dataclass(frozen=True)
class Outcome:
    """Of a row that passed: how many values were compared, and the worst distance seen, in ulp."""

    compared: int
    ulp: float | None = None
    worst: str = ""  # the input that gave it
    detail: str = ""


class Failure(Exception):
    """A value differs from the oracle's, or a rule of the contract is broken.

    ``kind`` is "value", "memory" (bytes that a kernel must not touch), "leak", "exception" (of the
    wrong class, or none) or "capability".
    """

    def __init__(self, message: str, kind: str = "value") -> None:
        super().__init__(message)
        self.kind = kind


class Unsupported(Exception):
    """A capability that the device declares it lacks, and was seen to refuse."""


@dataclass(frozen=True)
class Row:
    """One thing that is checked. The id is exact and stable: waivers and certificates name it."""

    id: str  # "add/float32/special-pairs": what it is about first
    level: str
    group: str  # the noun of the suite's file
    run: Callable[[Target], Outcome]
    op: str = ""  # of the contract, where the row is about one
    dtype: str = ""
    summary: str = ""  # one sentence
