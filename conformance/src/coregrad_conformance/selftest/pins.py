"""For each row a fault of its own: one value, asked for in this row alone, that comes out wrong.

A pin is a row, an op, and the digest of the operands at which the op is wrong, by as little as the
row can see. It is what notices that a row has been deleted, that a value has left a table, or that
a tolerance has been widened. `pins.json` holds them; ``selftest --repin`` makes it anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

from coregrad.dtypes import DType, uint8
from coregrad.hookspecs import BackendInfo, Header
from coregrad.ir.ops import CONTRACT_OPS
from coregrad_conformance.selftest.device import Device, Frame, Ref, info
from coregrad_conformance.selftest.digests import Asked, asked, changed, compiled, copied
from coregrad_cpu.reference import Backend

FILE = Path(__file__).with_name("pins.json")


@dataclass(frozen=True)
class Pin:
    """``op`` of ``dtype`` is off by ``steps`` where the operands have this digest.

    A pin without a digest is found when it is needed: the row's values depend on the version of
    Hypothesis.
    """

    row: str
    op: str = ""
    dtype: str = ""
    about: str = ""
    digest: str = ""
    steps: int = 0
    says: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """Which calls it may be about."""
        return self.op, self.dtype, self.about

    @property
    def number(self) -> int:
        """The digest."""
        return int(self.digest, 16)


def load() -> dict[str, Pin]:
    """The pins by row."""
    entries = json.loads(FILE.read_text(encoding="utf-8"))
    return {entry["row"]: Pin(**entry) for entry in entries}


def save(pins: Iterable[Pin]) -> None:
    """One line for each, so that a change can be reviewed."""
    kept = [{k: v for k, v in asdict(pin).items() if v} for pin in pins]
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in kept)
    FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


# ---- the backend -------------------------------------------------------------------------------

Table = Mapping[tuple[str, str, str], tuple[Any, Any]]  # key: sorted digests, and steps


class Kinds(Frame):
    """Loops that know their kinds, and the kernel's name."""

    def __init__(self, header: Header, buffers: Any) -> None:
        super().__init__(header, buffers)
        self.kernel = header.name
        self.kinds: list[str] = []

    def loop(self, name: str, extent: int, kind: str, lanes: int, resume: bool) -> Iterator[Any]:
        """See the contract."""
        for index in super().loop(name, extent, kind, lanes, resume):
            self.kinds.append(kind)
            yield index
            self.kinds.pop()


class Copies(Device):
    """A copy to the host is wrong in its last byte where a pin says so."""

    def copy_out(self, buffer: Any, into: memoryview) -> None:
        """See the contract."""
        super().copy_out(buffer, into)
        call = copied(into)
        if Pinned.hears(call.key) and len(into):
            target = np.frombuffer(into, np.uint8)[-1:]
            target[:] = Pinned.spoilt(target, call, uint8)


class Pinned(Ref):
    """Wrong at the pins that are set; every call can be listened to."""

    device = Copies
    frame = Kinds
    table: Table = {}  # noqa: RUF012
    listen: Any = None  # a function of each call and its value, or None

    @classmethod
    def set(cls, pins: Iterable[Pin]) -> None:
        """Be wrong at these from now on."""
        found: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
        for pin in pins:
            found.setdefault(pin.key, []).append((pin.number, pin.steps))
        cls.table = {key: _columns(sorted(entries)) for key, entries in found.items()}

    @classmethod
    def hears(cls, key: tuple[str, str, str]) -> bool:
        """Whether a call has to be looked at."""
        return cls.listen is not None or key in cls.table

    @classmethod
    def spoilt(cls, right: Any, call: Asked, dtype: DType) -> Any:
        """The value, wrong where a pin says so; and whoever listens is told of the call."""
        if cls.listen is not None:
            cls.listen(call)
        return _spoilt(right, call, dtype, *cls.table[call.key]) if call.key in cls.table else right


def _columns(entries: list[tuple[int, int]]) -> tuple[Any, Any]:
    return np.array([d for d, _ in entries], np.uint64), np.array([s for _, s in entries])


def pinned() -> tuple[BackendInfo, type[Ref]]:
    """The backend, as a worker takes it."""
    return info(), Pinned


def _hook(op: str) -> Any:
    original = getattr(Backend, f"lower_{op}")

    @wraps(original)
    def lowered(self: Pinned, frame: Any, *given: Any) -> Any:
        right = original(self, frame, *given)
        call = asked(op, given, right, "+".join(frame.kinds))
        return Pinned.spoilt(right, call, given[-2]) if Pinned.hears(call.key) else right

    return lowered


def _store(original: Any) -> Any:
    @wraps(original)
    def lowered(
        self: Pinned, frame: Any, buffer: Any, index: Any, stride: Any, value: Any, *rest: Any
    ) -> None:
        given = (buffer, index, stride, value, *rest)
        call = asked("store", given, None, "+".join(frame.kinds))
        for which in (call, compiled(call, frame.kernel)):
            if Pinned.hears(which.key):
                value = Pinned.spoilt(value, which, rest[-2])
        original(self, frame, buffer, index, stride, value, *rest)

    return lowered


def _spoilt(right: Any, call: Asked, dtype: DType, numbers: Any, steps: Any) -> Any:
    digests = call.digests()
    at = np.minimum(np.searchsorted(numbers, digests), numbers.size - 1)
    hit = numbers[at] == digests
    if not hit.any():
        return right
    if isinstance(right, tuple):  # an argmax: its index
        number, place = right
        return number, np.where(hit.reshape(np.shape(place)), place + 1, place)
    wide = np.broadcast_to(right, np.broadcast_shapes(np.shape(right), hit.shape))
    found = wide.copy()
    for count in np.unique(steps[at][hit]):
        chosen = hit & (steps[at] == count)
        found[np.broadcast_to(chosen, found.shape)] = changed(
            wide[np.broadcast_to(chosen, found.shape)], dtype, int(count)
        )
    return found


for _op in CONTRACT_OPS:
    _name = f"lower_{_op}"
    setattr(Pinned, _name, _store(getattr(Backend, _name)) if _op == "store" else _hook(_op))
