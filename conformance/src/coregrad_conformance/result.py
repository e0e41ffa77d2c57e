"""How one row ended, as plain data; it never says what that means for the whole."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from coregrad_conformance.row import Row

STATUSES = ("pass", "unsupported", "waived", "fail", "crash", "timeout", "xpass", "error")
GOOD = ("pass", "unsupported", "waived")
WAIVABLE = ("fail", "crash", "timeout")
DETAIL = 1500  # characters: a report of a thousand failing rows stays far below 5 MB


@dataclass(frozen=True)
class Result:
    """One row's end. ``kind`` says how it failed: see `coregrad_conformance.row.Failure`."""

    id: str
    level: str
    group: str
    status: str
    op: str = ""
    dtype: str = ""
    seconds: float = 0.0
    compared: int = 0
    ulp: float | None = None
    worst: str = ""
    detail: str = ""
    kind: str = ""
    exception: str = ""  # the class, where one was raised

    @property
    def ok(self) -> bool:
        """Whether this row stands in nobody's way."""
        return self.status in GOOD

    def data(self) -> dict[str, Any]:
        """For JSON: what is as it is by default is left out."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.default is MISSING or getattr(self, field.name) != field.default
        }


def ended(row: Row, status: str, **found: Any) -> Result:
    """``row`` with its end."""
    if found.get("ulp") is not None and not math.isfinite(found["ulp"]):
        found["ulp"] = None  # JSON has no infinity; the detail tells
    for key in ("detail", "worst"):
        found[key] = short(str(found.get(key, "")))
    found["seconds"] = round(float(found.get("seconds", 0.0)), 4)
    return Result(row.id, row.level, row.group, status, row.op, row.dtype, **found)


def restated(result: Result, status: str, note: str) -> Result:
    """The same end seen otherwise, with the reason before the detail."""
    return replace(result, status=status, detail=short(f"{note}\n{result.detail}".strip()))


def short(text: str) -> str:
    """A text cut in its middle: how it begins and how it ends are what one needs."""
    if len(text) <= DETAIL:
        return text
    half = DETAIL // 2
    return f"{text[:half]}\n[...]\n{text[-half:]}"


def loaded(data: dict[str, Any]) -> Result:
    """The inverse of `Result.data`. Raises TypeError for what is none."""
    return Result(**data)
