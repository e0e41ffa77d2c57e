"""Finding a pin for each row: what does it ask for that no other row does, and how wrong must that
be for the row to see it? It never changes a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad_conformance.row import Failure, Row, Unsupported
from coregrad_conformance.selftest.digests import Asked, described
from coregrad_conformance.selftest.pins import Pin, Pinned
from coregrad_conformance.target import Target

if TYPE_CHECKING:
    from numpy.typing import NDArray

Key = tuple[str, str, str]
OWN = "the row's own op"
# Where to look first. Functions, gradients and training start from numbers that are drawn alike
# everywhere; what comes after the first loads depends on the last bit of NumPy's exp.
ORDER: dict[str, tuple[str, ...]] = {
    "elementwise": (OWN, "kernel"),
    "casts": (OWN,),
    "constants": (OWN,),
    "reductions": ("reduce",),
    "indexing": (OWN, "store", "load"),
    "functions": ("load",),
    "gradients": ("load",),
    "training": ("load",),
    "tensors": ("load", "store"),
    "draws": ("xor", "add", "load"),
    "expressions": ("load",),
    "capabilities": ("load", "store"),
}
NARROW = ("float16", "bfloat16")  # a step of their arguments is too large; their results agree
OTHERS = ("store", "load", "reduce", "copy_out")  # then whatever it is, and whole kernels last
TOLERANT = ("reductions", "functions", "gradients", "training", "tensors", "capabilities")
DRAWN = "programs"  # their values depend on the version of Hypothesis
TRIED, EACH = 18, 3  # candidates of a row, and of one kind of call
LADDER = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, *(int(1.5**k) for k in range(9, 40)))


@dataclass
class Trace:
    """What one row has asked for."""

    row: Row
    found: dict[Key, NDArray[np.uint64]] = field(default_factory=dict)

    def candidates(self, mine: Callable[[Any], Any]) -> list[tuple[Key, int]]:
        """Digests that satisfy ``mine``, the best ones first."""
        first = ORDER.get(self.row.group, ())
        if self.row.group == "functions" and self.row.dtype in NARROW:
            first = ("store",)
        order = [*first, *OTHERS]
        keys = sorted(self.found, key=lambda key: self._rank(key, order))  # stable: first come
        chosen: list[tuple[Key, int]] = []
        for key in keys:
            alone = np.sort(self.found[key][mine(self.found[key])])
            chosen += [(key, int(digest)) for digest in alone[:EACH]]
            if len(chosen) >= TRIED:
                break
        return chosen[:TRIED]

    def _rank(self, key: Key, order: Sequence[str]) -> int:
        op, dtype, _ = key
        if OWN in order and (op, dtype) == (self.row.op, self.row.dtype or dtype):
            return -1
        if op in order:
            return order.index(op)
        return len(order) + (op == "kernel")


def traced(row: Row, target: Target) -> Trace | None:
    """What ``row`` asks for; None where it does not pass."""
    heard: dict[Key, list[NDArray[np.uint64]]] = {}

    def listen(call: Asked) -> None:
        heard.setdefault(call.key, []).append(np.unique(call.digests()))

    Pinned.listen = listen
    try:
        row.run(target)
    except (Failure, Unsupported):
        return None
    finally:
        Pinned.listen = None
    return Trace(row, {key: np.unique(np.concatenate(v)) for key, v in heard.items()})


def alone(traces: Sequence[Trace]) -> NDArray[np.uint64]:
    """The digests that one row alone asks for, sorted."""
    each = [np.unique(np.concatenate([*trace.found.values()])) for trace in traces if trace.found]
    numbers, counts = np.unique(np.concatenate(each), return_counts=True)
    once: NDArray[np.uint64] = numbers[counts == 1]
    return once


def within(numbers: NDArray[np.uint64], digests: Any) -> Any:
    """Which of the digests are among the sorted numbers."""
    at = np.minimum(np.searchsorted(numbers, digests), numbers.size - 1)
    return numbers[at] == digests


def pin(trace: Trace, mine: NDArray[np.uint64], target: Target) -> Pin | None:
    """The best pin for a row. One that is seen from some steps on only guards a tolerance too,
    and so does a result that is stored: a step of it is not ten times what is allowed."""
    best: Pin | None = None
    for key, digest in trace.candidates(lambda digests: within(mine, digests)):
        found = smallest(trace.row, Pin(trace.row.id, *key, f"{digest:016x}"), target)
        if found is None:
            continue
        if best is None or found.steps > 1:
            best = found
        if found.steps > 1 or not is_tolerant(trace.row) or key[0] == "store":
            break
    return best and replace(best, says=sentence(trace.row, best, target))


def is_tolerant(row: Row) -> bool:
    """Whether its values may be off by more than what its op's own limit allows."""
    return row.group in TOLERANT and "int" not in row.dtype


def smallest(row: Row, pin: Pin, target: Target) -> Pin | None:
    """With the fewest steps that the row sees; None where it sees none."""
    ladder = LADDER if is_tolerant(row) or "float" in pin.dtype else (1, 64, 1 << 20)
    for steps in ladder:
        wrong = replace(pin, steps=steps)
        if sees(row, [wrong], target):
            return wrong
    return None


def sees(row: Row, pins: Sequence[Pin], target: Target) -> bool:
    """Whether the row fails, by a value, where these pins are set."""
    Pinned.set(pins)
    try:
        row.run(target)
    except Failure as failure:
        return failure.kind in ("value", "memory", "fork")
    except Exception:  # an index that leaves its buffer, say: no value was compared
        return False
    finally:
        Pinned.set(())
    return False


def sentence(row: Row, pin: Pin, target: Target) -> str:
    """What is wrong, with the operands."""
    words: list[str] = []

    def listen(call: Asked) -> None:
        if call.key == pin.key and not words:
            at = np.flatnonzero(call.digests().reshape(-1) == np.uint64(pin.number))
            if at.size:
                words.append(", ".join(described(call, int(at[0]))))

    Pinned.listen = listen
    try:
        row.run(target)
    finally:
        Pinned.listen = None
    about = f" ({pin.about})" if pin.about else ""
    operands = words[0] if words else "?"
    return f"{pin.op} of {pin.dtype}{about} at {operands} is off by {pin.steps}"


def all_pins(
    rows: Sequence[Row], known: Mapping[str, Pin], target: Target, say: Callable[[str], None]
) -> Iterator[Pin]:
    """A pin for each row that can have one; those ``known`` that still do are kept."""
    traces = [trace for row in rows if (trace := traced(row, target)) is not None]
    mine = alone(traces)
    say(f"{len(traces)} rows, {mine.size} values that one row alone asks for")
    for trace in traces:
        if trace.row.group == DRAWN:
            yield Pin(trace.row.id)
            continue
        found = known.get(trace.row.id)
        if found is None or not _holds(trace, found, mine, target):
            found = pin(trace, mine, target)
            say(f"{trace.row.id}: {found.says if found else 'no pin'}")
        if found is not None:
            yield found


def _holds(trace: Trace, pin: Pin, mine: NDArray[np.uint64], target: Target) -> bool:
    """Whether the row, and no other one, asks for this, and sees it."""
    if not pin.digest or pin.key not in trace.found:
        return False
    asked = within(trace.found[pin.key], np.uint64(pin.number))
    return bool(asked and within(mine, np.uint64(pin.number))) and sees(trace.row, [pin], target)


def drawn(row: Row, target: Target) -> Pin | None:
    """A pin for a row whose values are drawn by Hypothesis, made when it is needed."""
    trace = traced(row, target)
    if trace is None:
        return None
    for key, digest in trace.candidates(lambda digests: np.ones(digests.shape, bool)):
        found = smallest(row, Pin(row.id, *key, f"{digest:016x}"), target)
        if found is not None:
            return found
    return None
