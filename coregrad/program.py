"""A program: an expression planned once, whose leaves may be other buffers in every run.

What ``@jit`` replays. Temporaries lie in one arena, packed by lifetime; results are fresh buffers,
which nobody else holds. Where the device can, a run is one call into native code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from coregrad import config, engine, plugins
from coregrad.engine import Storage
from coregrad.errors import UnsupportedOp
from coregrad.expression import Expression, resolve
from coregrad.ir.graph import Node

if TYPE_CHECKING:
    from coregrad.plan import Plan

ALIGNMENT = 64  # bytes: a cache line, and the widest vector


class Program:
    """The kernels for some roots. ``leaves`` are what it reads, in the order :meth:`run` wants."""

    def __init__(self, roots: Sequence[Node], device: str) -> None:
        self.device = device
        self.roots = list(dict.fromkeys(resolve(root) for root in roots))
        self.expression = Expression(device)
        self.expression.add(self.roots)
        if self.expression.copies:
            raise UnsupportedOp(f"program: a copy between devices cannot be replayed on {device}")
        self.leaves: list[Any] = list(self.expression.leaves)
        self.plan, self._blocks = engine.planned(self.expression, self.roots, device)
        self._active = plugins.open_device(device)
        self._base = len(self.leaves) + len(self._blocks)
        self._layout = _Layout(self.plan, self._base)
        self._arena: dict[int, Storage] | None = None
        self._replay: Any = None

    @property
    def kernels(self) -> int:
        """Launches of one run."""
        return len(self.plan.steps)

    @property
    def arena_bytes(self) -> int:
        """Bytes that the temporaries take, all together."""
        return sum(self._layout.sizes)

    @property
    def donors(self) -> frozenset[int]:
        """The leaves, by number, whose memory a result could take over."""
        return frozenset(leaf for leaves in self.plan.donors.values() for leaf in leaves)

    def run(self, leaves: Sequence[Storage], spare: frozenset[int] = frozenset()) -> list[Storage]:
        """One buffer per root, computed from these leaves. Nobody may need the ``spare`` ones any
        more: results are written over them where that is right.

        Raises IndexRangeError for an index out of range.
        """
        with engine.lock:
            return self._run(leaves, spare)

    def _run(self, leaves: Sequence[Storage], spare: frozenset[int]) -> list[Storage]:
        plan, device = self.plan, self.device
        held: list[Storage | None] = [
            leaf if leaf.device == device else leaf.on(device) for leaf in leaves
        ]
        held += self._blocks
        held += [None] * len(plan.sizes)
        if self._arena is None:
            self._arena = self._temporaries()
        for slot, storage in self._arena.items():
            held[slot] = storage
        donors = engine.donations(plan, spare) if spare else {}
        for slot in self._layout.fresh:
            if slot not in donors:
                held[slot] = Storage(self._active, plan.sizes[slot - self._base])
        for slot, leaf in donors.items():
            engine.take_over(held, slot, leaf)
        for slot in self._layout.parts:
            held[slot] = self._part(held[plan.parts[slot][0]], slot)
        if plan.error is not None:
            engine.clear_error(plan, held, self._active)
        self._launch(held)
        if plan.error is not None:
            engine.raise_index_errors(plan, held, self.expression, self._active)
        return [self._result(held, slot) for slot in plan.results]

    def _temporaries(self) -> dict[int, Storage]:
        """The storage of every slot that is the same in all runs."""
        arena = [Storage(self._active, size) for size in self._layout.sizes]
        out = {slot: arena[place] for slot, place in self._layout.places.items()}
        inside = {s: owner for s, (owner, _) in self.plan.parts.items() if owner in out}
        return out | {slot: self._part(out[owner], slot) for slot, owner in inside.items()}

    def _part(self, owner: Storage | None, slot: int) -> Storage:
        assert owner is not None
        size = self.plan.sizes[slot - self._base]
        return Storage.part_of(owner, self.plan.parts[slot][1], size)

    def _result(self, held: Sequence[Storage | None], slot: int) -> Storage:
        found = held[slot] if slot >= 0 else Storage(self._active, 0)
        assert found is not None
        return found

    def _launch(self, held: Sequence[Storage | None]) -> None:
        debug = config.debug()
        replay = getattr(self._active.device, "replay", None)
        if replay is None or debug >= 2 or engine.launches is not None:
            for step in self.plan.steps:
                buffers = [_raw(held[slot]) for slot in step.operands]
                engine.launch(step, buffers, self._active, debug)
            return
        if self._replay is None:
            steps = self.plan.steps
            self._replay = replay([(s.compiled, s.operands, s.grid) for s in steps])
        self._replay.run([None if s is None else s.raw for s in held])


def _raw(storage: Storage | None) -> Any:
    assert storage is not None
    return storage.raw


class _Layout:
    """Where the temporaries of a plan lie: buffers that several share whose lives do not overlap.

    A temporary takes the smallest free buffer that is large enough, or lets the largest free one
    grow, or gets a new one.
    """

    def __init__(self, plan: Plan, base: int) -> None:
        self.sizes: list[int] = []
        self.places: dict[int, int] = {}
        self.fresh: list[int] = []  # slots that results need: never shared
        self.parts: list[int] = []  # slots inside others that differ from run to run
        kept = {*plan.results, plan.error}
        free: list[int] = []
        for step in plan.steps:
            owners = [plan.parts[slot][0] if slot in plan.parts else slot for slot in step.operands]
            for slot in dict.fromkeys(owners):
                if slot < base or slot in self.places or slot in self.fresh:
                    continue
                if slot in kept:
                    self.fresh.append(slot)
                else:
                    self.places[slot] = self._take(free, plan.sizes[slot - base])
            free += [self.places[slot] for slot in step.frees if slot in self.places]
        self.parts = [slot for slot, (owner, _) in plan.parts.items() if owner not in self.places]

    def _take(self, free: list[int], size: int) -> int:
        size = -(-size // ALIGNMENT) * ALIGNMENT
        fitting = [place for place in free if self.sizes[place] >= size]
        if fitting:
            place = min(fitting, key=lambda p: self.sizes[p])
        elif free:
            place = max(free, key=lambda p: self.sizes[p])
        else:
            self.sizes.append(size)
            return len(self.sizes) - 1
        free.remove(place)
        self.sizes[place] = max(self.sizes[place], size)
        return place
