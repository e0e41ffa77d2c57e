"""What a seeded fault is, and which classes there are; the faults themselves are in `faults`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coregrad_conformance.selftest.device import Ref

# Each class, and whether it must be killed by a value that a row compares.
CLASSES = {
    "precision": True,
    "limit": True,  # just beyond a tolerance
    "special values": True,
    "subnormals": True,
    "integer width": True,
    "integer sign": True,
    "cast rounding": True,
    "sizes and tails": True,
    "strides and offsets": True,
    "aliasing": True,
    "uninitialised memory": True,
    "missing barrier": True,
    "accumulator": True,
    "cache collision": True,
    "thread safety": True,
    "wrong device": True,
    "lying capability": True,
    "broken contract": False,
    "leak": False,
    "wrong exception": False,
    "crash": False,
    "hang": False,
}


@dataclass(frozen=True)
class Fault:
    """A backend that is wrong in one way. ``make`` builds it in the worker's process.

    ``by`` is the row that must see it. ``rows`` are patterns of rows beyond level core that are
    run as well: those of its op and dtype are anyway.
    """

    id: str
    kind: str  # one of CLASSES
    op: str
    dtype: str
    says: str  # one sentence
    by: str
    make: Callable[[], type[Ref]]
    rows: tuple[str, ...] = ()
    timeout: float = 30.0

    @property
    def by_value(self) -> bool:
        """Whether only a compared value counts as its end."""
        return CLASSES[self.kind]
