"""The seeded faults, one noun per file; each is a way in which a real backend has been wrong."""

from __future__ import annotations

from coregrad_conformance.selftest.fault import CLASSES, Fault
from coregrad_conformance.selftest.faults import (
    casts,
    conduct,
    ends,
    folds,
    indexing,
    integers,
    loops,
    memory,
    optional,
    parts,
    precision,
    sorting,
    special,
)

FILES = (
    precision,
    special,
    integers,
    casts,
    loops,
    ends,
    indexing,
    folds,
    sorting,
    memory,
    optional,
    parts,
    conduct,
)


def all_faults() -> list[Fault]:
    """Every seeded fault.

    >>> len(all_faults()) >= 120
    True
    """
    found = [fault for file in FILES for fault in file.faults()]
    seen: set[str] = set()
    for fault in found:
        if fault.id in seen or fault.kind not in CLASSES:
            raise ValueError(
                f"the fault {fault.id!r} ({fault.kind}) is there twice, or of no class"
            )
        seen.add(fault.id)
    return found
