"""Write what rows compute, and what has to come out, as files: for runners that are no Python.

Only the rows that apply one op to given values can be written so: those of `GROUPS`,
but `JUDGED_APART`. The folder
holds ``index.json``, and for each op a file ``OP.npz`` (a zip of arrays in NumPy's format) or
``OP.json`` with the same arrays. Elements are as a device stores them: bfloat16 as 16-bit words, a
bool as a byte. In JSON every element is its bit pattern, as an unsigned integer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad.dtypes import ALL
from coregrad.hookspecs import Limits
from coregrad_conformance import oracle, report, ulp
from coregrad_conformance.row import Outcome, Row
from coregrad_conformance.target import Target

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coregrad.dtypes import DType
    from coregrad.ir.kernel import Kernel

SCHEMA = "coregrad-conformance-vectors/1"
GROUPS = ("elementwise", "casts", "constants")
JUDGED_APART = ("bitcast",)  # its rows compare bits by themselves
FORMATS = ("npz", "json")
TOLERANCE = (
    "ulp of the correctly rounded result, which is what is given; NaN equals any NaN; where "
    "'either_zero' is true, both zeros are right"
)


@dataclass
class Vector:
    """One kernel, its inputs and what it must give."""

    kernel: Kernel
    inputs: Sequence[NDArray[Any]]
    expected: NDArray[Any] | None = None
    either_zero: NDArray[Any] | None = None
    tolerance: float = 0.0

    def arrays(self) -> dict[str, NDArray[Any]]:
        """By their names in the file."""
        found = {f"in{i}": array for i, array in enumerate(self.inputs)}
        assert self.expected is not None
        found["out"] = self.expected
        if self.either_zero is not None:
            found["either_zero"] = self.either_zero
        return found


class Tape(Target):
    """A device that runs nothing: it keeps the kernels it is given, and their inputs."""

    name = "tape"
    limits = Limits(dtypes=frozenset(ALL))
    lanes = 1

    def __init__(self) -> None:
        self.vectors: list[Vector] = []

    def run_kernel(self, kernel: Kernel, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Keep both; what it returns is of the right size and means nothing."""
        self.vectors.append(Vector(kernel, [np.ascontiguousarray(x) for x in inputs]))
        outs = [param for param in kernel.params if param.role != "in"]
        return [np.zeros(param.size, param.dtype.storage) for param in outs]

    def keep(self, expected: oracle.Expected, dtype: DType, allowed: float) -> None:
        """What the last kernel must give."""
        vector = self.vectors[-1]
        values = expected.values
        if dtype.is_float:
            values = ulp.encode(ulp.nearest(values, dtype, expected.rest), dtype)
        vector.expected = np.asarray(values, dtype.storage)
        vector.either_zero = expected.either_zero
        vector.tolerance = 0.0 if allowed == ulp.EXACT else allowed


@dataclass
class Files:
    """What has been written so far, by op."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    arrays: dict[str, dict[str, NDArray[Any]]] = field(default_factory=dict)

    def add(self, row: Row, number: int, vector: Vector) -> None:
        """One vector of a row."""
        key = f"{row.id}#{number}".replace("/", ".")
        arrays = vector.arrays()
        for name, array in arrays.items():
            self.arrays.setdefault(row.op, {})[f"{key}.{name}"] = array
        params = [
            {"name": p.name, "dtype": p.dtype.name, "size": p.size, "role": p.role}
            for p in vector.kernel.params
        ]
        self.entries.append(
            {
                "row": row.id,
                "level": row.level,
                "op": row.op,
                "dtype": row.dtype,
                "params": params,
                "kernel": str(vector.kernel),
                "arrays": {name: f"{key}.{name}" for name in arrays},
                "tolerance": vector.tolerance,
            }
        )


def write(folder: Path, rows: Sequence[Row], form: str = "npz") -> int:
    """Write the vectors of ``rows`` into a folder that exists; returns how many there are."""
    files = Files()
    for row in rows:
        if row.group in GROUPS and row.op not in JUDGED_APART:
            for number, vector in enumerate(recorded(row)):
                files.add(row, number, vector)
    for op, arrays in files.arrays.items():
        if form == "npz":
            _save(folder / f"{op}.npz", arrays)
        else:
            words = {name: _words(array) for name, array in arrays.items()}
            report.write(folder / f"{op}.json", json.dumps(words) + "\n")
    index = {
        "schema": SCHEMA,
        "contract": report.contract(),
        "suite": report.suite(),
        "format": form,
        "tolerance": TOLERANCE,
        "vectors": files.entries,
    }
    report.write(folder / "index.json", json.dumps(index, indent=1) + "\n")
    return len(files.entries)


def _save(path: Path, arrays: dict[str, Any]) -> None:
    np.savez_compressed(path, **arrays)


def recorded(row: Row) -> list[Vector]:
    """The kernels of a row, with the oracle's results."""
    tape = Tape()
    with _comparing(tape):
        row.run(tape)
    return [vector for vector in tape.vectors if vector.expected is not None]


@contextmanager
def _comparing(tape: Tape) -> Iterator[None]:
    """For a while, the oracle tells the tape what it expects instead of judging."""

    def compare(
        got: NDArray[Any],
        expected: oracle.Expected,
        dtype: DType,
        operands: Sequence[NDArray[Any]] = (),
        allowed: float = ulp.EXACT,
    ) -> Outcome:
        tape.keep(expected, dtype, allowed)
        return Outcome(got.size)

    true: Callable[..., Outcome] = oracle.compare
    oracle.compare = compare
    try:
        yield
    finally:
        oracle.compare = true


def _words(array: NDArray[Any]) -> list[int]:
    """Bit patterns, as JSON numbers: exact below 2**53, and exact integers beyond in any case."""
    flat = np.ascontiguousarray(array)
    words: list[int] = flat.view(f"u{flat.dtype.itemsize}").tolist()
    return words
