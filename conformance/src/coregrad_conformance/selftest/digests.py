"""What a backend is asked for, as numbers: one digest per element of every value a hook makes.

Two rows that never ask for the same digest cannot see each other's faults.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coregrad.dtypes import DType

# The constants of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
# OOPSLA 2014, figure 16), which mixes 64 bits well enough to tell millions of values apart.
STEP = np.uint64(0x9E3779B97F4A7C15)
FIRST = np.uint64(0xBF58476D1CE4E5B9)
SECOND = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True)
class Asked:
    """One call of a hook, whatever the op: its name, what it is about, and operands to tell apart.

    ``operands`` are arrays of one shape, that of the value which is to be made.
    """

    op: str
    dtype: str
    about: str  # a cast's source, a sine's quarter, a reduction's kind, a buffer's size and loops
    operands: tuple[Any, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        """What calls have in common that may share a pin."""
        return self.op, self.dtype, self.about

    def digests(self) -> NDArray[np.uint64]:
        """One number for each element."""
        seed = zlib.crc32("/".join(self.key).encode())
        mixed: Any = np.uint64(seed)
        with np.errstate(over="ignore"):
            for operand in np.broadcast_arrays(*self.operands) if self.operands else ():
                mixed = mix(mixed ^ words(operand)) + STEP
        return np.asarray(mix(mixed))


def mix(x: Any) -> Any:
    """64 bits, thoroughly shuffled."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * FIRST
        x = (x ^ (x >> np.uint64(27))) * SECOND
        return x ^ (x >> np.uint64(31))


def words(x: Any) -> NDArray[np.uint64]:
    """The bits of each element as a number of 64; every NaN has the same."""
    x = np.asarray(x)
    if x.dtype.kind == "f":
        x = np.where(np.isnan(x), x.dtype.type(np.nan), x)
    shape = x.shape
    plain = np.ascontiguousarray(x).reshape(-1)
    return plain.view(f"u{plain.dtype.itemsize}").astype(np.uint64).reshape(shape)


def folded(values: Any, axes: Sequence[int]) -> NDArray[np.uint64]:
    """One number for all that is folded into one element, of which the order matters."""
    with np.errstate(over="ignore"):
        places = np.zeros((), np.uint64)
        for axis in axes:
            n = values.shape[axis]
            steps = np.arange(n, dtype=np.uint64).reshape([-1 if i == axis else 1
                                                          for i in range(values.ndim)])  # fmt: skip
            places = places * np.uint64(n) + steps
        total: Any = mix(words(values) + places * STEP).sum(axis=tuple(axes), keepdims=True,
                                                            dtype=np.uint64)  # fmt: skip
        return np.asarray(total)


def axes_of(accumulator: Any, value: Any) -> list[int]:
    """The axes that a reduction folds."""
    pairs = zip(value.shape, accumulator.shape, strict=True)
    return [axis for axis, (size, kept) in enumerate(pairs) if kept == 1 and size > 1]


# ---- calls of hooks ----------------------------------------------------------------------------


def asked(op: str, given: Sequence[Any], right: Any, loops: str = "") -> Asked:
    """A call of the reference's hook: its arguments after the frame, and the value it gave.

    ``loops`` are the kinds of loops that it stands in.
    """
    *operands, dtype, _ = given
    name: str = dtype.name
    if op in ("load", "store"):
        return _access(op, operands, name, right, loops)
    if op == "reduce":
        return _reduction(operands, name)
    if op == "const":
        return Asked(op, name, "", (right,))
    if op in ("cast", "bitcast"):
        return Asked(op, name, operands[1].name, (operands[0],))
    if op == "sin":
        return Asked(op, name, str(operands[1]), (operands[0],))
    return Asked(op, name, "", tuple(operands))


def _access(op: str, operands: Sequence[Any], dtype: str, right: Any, loops: str) -> Asked:
    """Position and value. A gated access counts like any other."""
    buffer, index = operands[0], operands[1]
    value = right if op == "load" else operands[3]
    return Asked(op, dtype, f"{buffer.size}, {loops}", (index, value))


def _reduction(operands: Sequence[Any], dtype: str) -> Asked:
    kind, accumulator, value = operands
    if kind == "argmax":
        accumulator, value = accumulator[0], value[0]
    axes = axes_of(accumulator, value)
    count = int(np.prod([value.shape[axis] for axis in axes], dtype=np.int64))
    terms = folded(value, axes) if axes else words(value)
    return Asked("reduce", dtype, f"{kind} {count}", (accumulator, terms))


def copied(data: Any) -> Asked:
    """A copy to the host: its bytes as one operand."""
    content = np.array([zlib.crc32(data)], np.uint32)
    return Asked("copy_out", "bytes", str(len(data)), (content,))


def compiled(store: Asked, kernel: str) -> Asked:
    """A store as something that one kernel does."""
    return Asked("kernel", store.dtype, f"{kernel}, {store.about}", store.operands)


def described(call: Asked, at: int) -> Iterator[str]:
    """The operands of one element, for people."""
    for operand in np.broadcast_arrays(*call.operands) if call.operands else ():
        yield repr(operand.reshape(-1)[at].item())


def changed(x: Any, dtype: DType, steps: int) -> Any:
    """Another value of the dtype: so many numbers further from zero, or nearer to it at the end."""
    if x.dtype == np.bool_:
        return ~x
    if x.dtype.kind in "iu":
        return x + np.array(steps, np.int64).astype(x.dtype)
    unit = 1 << 16 if dtype.name == "bfloat16" else 1  # held as float32, the lower half empty
    word = np.dtype(f"u{x.dtype.itemsize}")
    bits = np.ascontiguousarray(x).view(word).reshape(np.shape(x))
    with np.errstate(over="ignore"):
        further = (bits + np.array(steps * unit, word)).view(x.dtype)
        nearer = (bits - np.array(steps * unit, word)).view(x.dtype)
    same = np.isfinite(further) & (np.signbit(further) == np.signbit(x))
    moved = np.where(same, further, nearer)
    return np.where(np.isfinite(x) & np.isfinite(moved), moved, x.dtype.type(1.5))
