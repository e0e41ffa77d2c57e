"""Whether each row, and each tolerance, is missed when it is gone. It changes the suite in memory.

Every row has a fault of its own (`pins`). Three things are shown with them: the row sees its fault;
no other row does; and with a tolerance ten times as wide some fault is no longer seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from coregrad.ir.ops import CAST, CONTRACT_OPS
from coregrad_conformance import oracle
from coregrad_conformance.row import Failure, Outcome, Row
from coregrad_conformance.selftest.pinning import DRAWN, drawn, sees
from coregrad_conformance.selftest.pins import Pin, Pinned
from coregrad_conformance.selftest.trial import DEAR
from coregrad_conformance.suite import draws, functions, gradients, programs, training
from coregrad_conformance.target import Target

WIDER = 10
SEEN = Outcome(1)
Undo = Callable[[], None]


def unpinned(rows: Sequence[Row], pins: dict[str, Pin]) -> list[str]:
    """Rows without a pin."""
    return [row.id for row in rows if row.id not in pins]


def gone(rows: Sequence[Row], pins: dict[str, Pin]) -> Iterator[str]:
    """Pins whose row is not there: their faults survive."""
    known = {row.id for row in rows}
    for pin in pins.values():
        if pin.row not in known:
            yield f"SURVIVES, as the row {pin.row} is gone: {pin.says or 'a fault of its own'}"


# ---- a row sees its own fault ------------------------------------------------------------------


def own(rows: Sequence[Row], pins: dict[str, Pin]) -> list[Row]:
    """The rows, each run with its fault: it passes if the row sees it."""
    return [replace(row, run=partial(_own, row, pins[row.id])) for row in rows if row.id in pins]


def _own(row: Row, pin: Pin, target: Target) -> Outcome:
    seen = sees(row, [pin], target) if pin.digest else drawn(row, target) is not None
    if not seen:
        raise Failure(f"SURVIVES: {pin.says or 'a wrong value that it asks for'}", "survivor")
    return SEEN


# ---- and no other row sees it ------------------------------------------------------------------


def rounds(pins: dict[str, Pin]) -> list[tuple[int, int]]:
    """Bit and value: of any two pins, one round has the first and not the second."""
    bits = max(1, (len(pins) - 1).bit_length())
    return [(bit, value) for bit in range(bits) for value in (0, 1)]


def group(rows: Sequence[Row], pins: dict[str, Pin], which: tuple[int, int]) -> list[Row]:
    """The rows, run with half of the faults at once: one passes if it sees its own or none."""
    bit, value = which
    numbered = [pin for pin in pins.values() if pin.digest]
    chosen = [pin for number, pin in enumerate(numbered) if number >> bit & 1 == value]
    mine = {pin.row for pin in chosen}
    tried = [row for row in rows if row.id not in DEAR and row.group != DRAWN]
    return [replace(row, run=partial(_among, row, chosen, row.id in mine)) for row in tried]


def _among(row: Row, chosen: Sequence[Pin], mine: bool, target: Target) -> Outcome:
    Pinned.set(chosen)
    try:
        row.run(target)
    except Failure as failure:
        if not mine:
            raise Failure(f"sees another row's fault: {failure}", "overlap") from failure
        return SEEN
    finally:
        Pinned.set(())
    if mine:
        raise Failure("does not see its fault among others", "survivor")
    return SEEN


# ---- wider tolerances --------------------------------------------------------------------------


@dataclass(frozen=True)
class Tolerance:
    """A number of the suite, or of the contract's table: how to widen it, and who relies on it."""

    name: str
    rows: str  # a pattern
    widen: Callable[[], Undo]


def tolerances() -> Iterator[Tolerance]:
    """All there are.

    Casts are compared exactly, whatever the table says. A sum of 16-bit floats is bounded within
    far less than half a unit of its result, so that ten times as much makes no difference.
    """
    for op in CONTRACT_OPS.values():
        for dtype in op.ulp if op is not CAST else ():
            widen = partial(_entry, op.ulp, dtype)
            yield Tolerance(f"contract: {op.name} of {dtype}", f"{op.name}/{dtype}/*", widen)
    for dtype in ("float32", "float64"):
        for kind in ("add", "mul"):
            yield Tolerance(
                f"bound of reduce {kind} of {dtype}", f"reduce/{kind}/{dtype}/*", _bound
            )
    for function in functions.FUNCTIONS:
        for dtype in ("float16", "bfloat16"):
            rows = f"functions/{function.name}/{dtype}"
            yield Tolerance(f"function {function.name} of {dtype}", rows,
                            partial(_constant, functions, "NARROW"))  # fmt: skip
        for dtype in ("float32", "float64"):
            rows = f"functions/{function.name}/{dtype}"
            yield Tolerance(f"function {function.name} of {dtype}", rows,
                            partial(_field, function, "ulp"))  # fmt: skip
    yield Tolerance("gradients", "gradients/*", partial(_constant, gradients, "NEAR"))
    yield Tolerance("smooth programs", "programs/smooth/*", _near)
    yield Tolerance("training", "training/*", _drift)
    for dtype, name in (("float32", "SINGLE"), ("float64", "DOUBLE")):
        rows = f"draws/normal/{dtype}"
        yield Tolerance(f"normal numbers of {dtype}", rows, partial(_constant, draws, name))


def _entry(table: dict[str, float], key: str) -> Undo:
    before = table[key]
    table[key] = before * WIDER
    return partial(table.__setitem__, key, before)


def _constant(module: Any, name: str) -> Undo:
    before = getattr(module, name)
    setattr(module, name, before * WIDER)
    return partial(setattr, module, name, before)


def _field(thing: object, name: str) -> Undo:
    """Of a frozen dataclass, which nobody else may change."""
    before = getattr(thing, name)
    object.__setattr__(thing, name, before * WIDER)
    return partial(object.__setattr__, thing, name, before)


def _bound() -> Undo:
    right = oracle.bounded

    def wide(exact: Any, size: Any, roundings: int, *rest: Any) -> oracle.Interval:
        return right(exact, size, roundings * WIDER, *rest)

    setattr(oracle, "bounded", wide)  # noqa: B010  (mypy: it is another function)
    return partial(setattr, oracle, "bounded", right)


def _near() -> Undo:
    """`programs.near` has its tolerance as a default."""
    before = programs.near.__defaults__
    assert before is not None
    programs.near.__defaults__ = (before[0] * WIDER,)
    return partial(setattr, programs.near, "__defaults__", before)


def _drift() -> Undo:
    first, drift = _constant(training, "FIRST"), _constant(training, "DRIFT")

    def undo() -> None:
        first()
        drift()

    return undo


def widened(rows: Sequence[Row], pins: dict[str, Pin]) -> list[Row]:
    """A row for each tolerance: it passes if a fault survives once the tolerance is wider."""
    made = []
    for tolerance in tolerances():
        about = [row for row in rows if fnmatchcase(row.id, tolerance.rows) and row.id in pins]
        if not about:  # deleted rows are told of elsewhere
            continue
        run = partial(_wider, tolerance, about, pins)
        made.append(Row(f"wider/{tolerance.name}", "standard", "sensitivity", run))
    return made


def _wider(
    tolerance: Tolerance, rows: Sequence[Row], pins: dict[str, Pin], target: Target
) -> Outcome:
    for row in rows:
        pin = pins[row.id] if pins[row.id].digest else drawn(row, target)
        undo = tolerance.widen()
        try:
            if pin is not None and not sees(row, [pin], target):
                return Outcome(1, detail=row.id)
        finally:
            undo()
    raise Failure(f"ten times as wide, and every fault of {tolerance.rows} is still seen", "wide")
