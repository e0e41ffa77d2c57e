"""Every row of the suite, by level; it never runs one."""

from __future__ import annotations

from functools import cache

from coregrad_conformance.row import LEVELS, Failure, Outcome, Row, Unsupported
from coregrad_conformance.suite import GROUPS

__all__ = ["LEVELS", "Failure", "Outcome", "Row", "Unsupported", "all_rows"]


def all_rows(level: str = "core") -> list[Row]:
    """The rows of ``level``, foundations first; a level contains those below it.

    >>> rows = all_rows("core")
    >>> len({row.id for row in rows}) == len(rows)
    True
    """
    if level not in LEVELS:
        raise ValueError(f"level {level!r} is unknown; choose one of: {', '.join(LEVELS)}")
    wanted = LEVELS[: LEVELS.index(level) + 1]
    return [row for row in _rows() if row.level in wanted]


@cache
def _rows() -> tuple[Row, ...]:
    rows = [row for group in GROUPS for row in group.rows()]
    seen: set[str] = set()
    for row in rows:
        if row.id in seen:
            raise ValueError(f"two rows have the id {row.id!r}")
        seen.add(row.id)
    return tuple(rows)
