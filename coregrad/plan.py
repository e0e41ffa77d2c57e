"""A plan: the compiled form of an expression, as launches and the slots they take; also as bytes.

Slots number buffers: the expression's leaves, then blocks of numbers and tables, then temporaries.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from coregrad import dtypes
from coregrad.dtypes import DType
from coregrad.ir.alike import Table


@dataclass(eq=False)
class Step:
    """One launch: what to launch, and where each argument comes from. ``program`` is what the
    hooks made, ``compiled`` the device's form of it, or for a device of style eager a function of
    the buffers."""

    name: str
    grid: int
    program: Any
    compiled: Any
    eager: bool
    operands: list[int]  # slots
    frees: list[int] = field(default_factory=list)  # slots not needed afterwards
    work: int = 0
    moved: int = 0


@dataclass(eq=False)
class Plan:
    """The compiled form of a structure."""

    steps: list[Step]
    sizes: list[int]  # bytes of each temporary
    blocks: list[DType]  # dtypes of the blocks of numbers and open constants
    results: list[int]  # the slot of each root
    error: int | None  # the slot of the error word
    donors: dict[int, list[int]]  # results, and leaves whose memory each could take over
    tables: list[Table]  # of the kernels that serve several places
    parts: dict[int, tuple[int, int]]  # slots inside others, and the byte they begin at
    stored: list[Any] = field(default_factory=list)  # the tables in memory; the engine's

    @property
    def is_text(self) -> bool:
        """Whether all programs are texts, from which any process can compile them."""
        return all(isinstance(step.program, str) for step in self.steps)


def to_bytes(plan: Plan) -> bytes:
    """A plan whose programs are texts, each written once."""
    texts = list(dict.fromkeys(step.program for step in plan.steps))
    number = {text: i for i, text in enumerate(texts)}
    return json.dumps(
        {
            "texts": texts,
            "steps": [
                [s.name, s.grid, number[s.program], s.operands, s.frees, s.work, s.moved]
                for s in plan.steps
            ],
            "sizes": plan.sizes,
            "blocks": [dtype.name for dtype in plan.blocks],
            "results": plan.results,
            "error": plan.error,
            "donors": list(plan.donors.items()),
            "tables": [[table.dtype.name, table.numbers] for table in plan.tables],
            "parts": [[slot, *place] for slot, place in plan.parts.items()],
        }
    ).encode()


def from_bytes(data: bytes, compile_text: Callable[[str], Any]) -> Plan:
    """The plan again, its texts compiled."""
    told = json.loads(data)
    compiled = [compile_text(text) for text in told["texts"]]
    steps = [
        Step(name, grid, told["texts"][i], compiled[i], False, operands, frees, work, moved)
        for name, grid, i, operands, frees, work, moved in told["steps"]
    ]
    return Plan(
        steps,
        told["sizes"],
        [dtypes.by_name(name) for name in told["blocks"]],
        told["results"],
        told["error"],
        dict(told["donors"]),
        [Table(tuple(numbers), dtypes.by_name(name)) for name, numbers in told["tables"]],
        {slot: (owner, start) for slot, owner, start in told["parts"]},
    )
