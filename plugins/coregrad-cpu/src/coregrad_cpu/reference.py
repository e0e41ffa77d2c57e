"""The device `numpy`: the contract in plain NumPy. Read this first when you write a backend.

Style eager: a hook computes at once, on arrays. A loop is an axis of these arrays (its depth is
the axis's number), so that one call of a hook runs the op for all iterations. It is the slow and
strict one: it raises on any access outside a buffer, and is never chosen before another device.

Beside it: `formats.py` rounds and converts numbers, `folds.py` reduces, `turns.py` is sin,
`memory.py` is the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from coregrad.dtypes import DType, bfloat16, bool_
from coregrad.errors import UnsupportedOp, VerifyError
from coregrad.hookspecs import Frame, Header, hookimpl
from coregrad.ir.kernel import Array, Param
from coregrad_cpu.folds import fold, fold_argmax
from coregrad_cpu.formats import computed, computed_wide, converted, held, packed, unpacked
from coregrad_cpu.memory import ReferenceDevice
from coregrad_cpu.turns import turned

RANK = 16  # axes of every value: the deepest nest of loops (NumPy itself allows 32)
BLOCK = 1 << 20  # elements of a value at most: a few megabytes; loops beyond that run in Python


class ReferenceFrame:
    """The open loops, as sizes of axes; the variables; and the memory of each buffer and array."""

    def __init__(self, header: Header, buffers: Sequence[Any]) -> None:
        self.sizes: list[int] = []
        self.variables: dict[str, Any] = {}
        self.memory: dict[Param | Array, tuple[Any, Any]] = {}  # flat elements, where ours begin
        for param, raw in zip(header.params, buffers, strict=True):
            words = raw[: param.size * param.dtype.itemsize].view(param.dtype.storage)
            self.memory[param] = words, 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a value that depends on every open loop."""
        return (*self.sizes, *(1 for _ in range(RANK - len(self.sizes))))

    def loop(self, name: str, extent: int, kind: str, lanes: int, resume: bool) -> Iterator[Any]:
        axis = len(self.sizes)
        if axis == RANK:
            raise UnsupportedOp(f"loop {name}: the numpy device nests at most {RANK} loops")
        block = max(1, BLOCK // max(1, prod(self.sizes)))
        for start in range(0, extent, block):
            stop = min(start + block, extent)
            self.sizes.append(stop - start)
            yield np.arange(start, stop).reshape([-1 if i == axis else 1 for i in range(RANK)])
            self.sizes.pop()

    def loop_until(
        self, name: str, extent: int, limit: Any, lanes: int, resume: bool
    ) -> Iterator[Any]:
        """Optional: up to the largest limit that any iteration of the open loops has."""
        return self.loop(name, min(extent, int(np.max(limit))), "serial", lanes, resume)

    def declare(self, name: str, dtype: DType, initial: Any, lanes: int) -> None:
        self.variables[name] = np.broadcast_to(initial, self.shape)

    def read(self, name: str) -> Any:
        return self.variables[name]

    def assign(self, name: str, value: Any) -> None:
        self.variables[name] = value

    def allocate(self, array: Array) -> None:
        """One array per iteration of the open loops; the contents are all ones (NaN or -1)."""
        count = prod(self.sizes)
        raw = np.full(max(1, count * array.size) * array.dtype.itemsize, 255, np.uint8)
        begins = np.arange(count).reshape(self.shape) * array.size
        self.memory[array] = raw.view(array.dtype.storage), begins

    def barrier(self) -> None:
        """Nothing to do: each statement runs for all iterations before the next one does."""

    def broadcast(self, value: Any, dtype: DType, lanes: int) -> Any:
        return np.broadcast_to(value, self.shape)

    def ramp(self, base: Any, stride: int, dtype: DType, lanes: int) -> Any:
        return base

    def split(self, value: Any, dtype: DType, lanes: int) -> tuple[Any, Any]:
        raise UnsupportedOp("split: values of the numpy device have one lane")

    def finish(self) -> None:
        """Nothing is left to run."""

    def locate(self, buffer: Param | Array, index: Any, gate: Any) -> tuple[Any, Any]:
        """The memory and the positions in it; those the gate excludes are moved inside."""
        words, begins = self.memory[buffer]
        if gate is not None:
            index = np.where(gate, index, 0)
        allowed = max(buffer.size, 1) if gate is not None else buffer.size
        if np.size(index) and not (np.min(index) >= 0 and np.max(index) < allowed):
            raise VerifyError(
                f"{buffer.name}: index {np.min(index)} .. {np.max(index)} leaves its "
                f"{buffer.size} elements; the kernel that accesses it is wrong"
            )
        return words, begins + index


class Backend:
    """The hooks. A value has one lane: ``stride`` and ``lanes`` matter to devices with vectors."""

    style = "eager"

    def device_count(self) -> int:
        return 1

    def open_device(self, index: int) -> ReferenceDevice:
        return ReferenceDevice()

    def begin_kernel(self, header: Header, buffers: Sequence[Any] | None) -> ReferenceFrame:
        return ReferenceFrame(header, buffers or ())

    @hookimpl
    def lower_load(
        self,
        frame: ReferenceFrame,
        buffer: Param | Array,
        index: Any,
        stride: int | None,
        gate: Any | None,
        dtype: DType,
        lanes: int,
    ) -> Any:
        words, at = frame.locate(buffer, index, gate)
        if words.size == 0:  # every gate is false, or locate would have raised
            return np.zeros(np.shape(at), held(dtype))
        value = words[at]
        value = unpacked(value) if dtype is bfloat16 else value
        return value if gate is None else np.where(gate, value, np.zeros((), held(dtype)))

    @hookimpl
    def lower_store(
        self,
        frame: ReferenceFrame,
        buffer: Param | Array,
        index: Any,
        stride: int | None,
        value: Any,
        gate: Any | None,
        dtype: DType,
        lanes: int,
    ) -> None:
        words, at = frame.locate(buffer, index, gate)
        value = packed(value) if dtype is bfloat16 else value
        at, value, mask = np.broadcast_arrays(at, value, True if gate is None else gate)
        words[at[mask]] = value[mask]  # in the order of the loops: the last iteration wins

    @hookimpl
    def lower_const(self, frame: Frame, value: float, dtype: DType, lanes: int) -> Any:
        return np.full((1,) * RANK, value, held(dtype))

    @hookimpl
    def lower_reduce(
        self, frame: Frame, kind: str, accumulator: Any, value: Any, dtype: DType, lanes: int
    ) -> Any:
        if kind == "argmax":
            return fold_argmax(accumulator, value)
        return computed(fold, dtype, kind, accumulator, value)

    @hookimpl
    def lower_cast(self, frame: Frame, x: Any, source: DType, dtype: DType, lanes: int) -> Any:
        return converted(x, source, dtype)

    @hookimpl
    def lower_bitcast(self, frame: Frame, x: Any, source: DType, dtype: DType, lanes: int) -> Any:
        bits = packed(x) if source is bfloat16 else np.ascontiguousarray(x)
        bits = bits.reshape(np.shape(x))
        return unpacked(bits.view(np.uint16)) if dtype is bfloat16 else bits.view(dtype.storage)

    @hookimpl
    def lower_exp(self, frame: Frame, x: Any, dtype: DType, lanes: int) -> Any:
        return computed_wide(np.exp, dtype, x)

    @hookimpl
    def lower_log(self, frame: Frame, x: Any, dtype: DType, lanes: int) -> Any:
        return computed_wide(np.log, dtype, x)

    @hookimpl
    def lower_sin(self, frame: Frame, x: Any, quarter: int, dtype: DType, lanes: int) -> Any:
        return computed_wide(partial(turned, quarter=quarter), dtype, x)

    @hookimpl
    def lower_sqrt(self, frame: Frame, x: Any, dtype: DType, lanes: int) -> Any:
        return computed_wide(np.sqrt, dtype, x)

    @hookimpl
    def lower_trunc(self, frame: Frame, x: Any, dtype: DType, lanes: int) -> Any:
        return computed(np.trunc, dtype, x)

    @hookimpl
    def lower_add(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        return computed(np.add, dtype, a, b)

    @hookimpl
    def lower_mul(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        return computed(np.multiply, dtype, a, b)

    @hookimpl
    def lower_div(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        return computed(np.divide, dtype, a, b)

    @hookimpl
    def lower_idiv(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        return (a - np.fmod(a, b)) // b  # exact, hence rounded in neither direction

    @hookimpl
    def lower_mod(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        return computed(np.fmod, dtype, a, b)

    @hookimpl
    def lower_max(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        return computed(np.maximum, dtype, a, b)

    @hookimpl
    def lower_lt(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        return computed(np.less, bool_, a, b)

    @hookimpl
    def lower_ne(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        return computed(np.not_equal, bool_, a, b)

    @hookimpl
    def lower_and(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        return a & b

    @hookimpl
    def lower_or(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        return a | b

    @hookimpl
    def lower_xor(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        return a ^ b

    @hookimpl
    def lower_shl(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        return a << b

    @hookimpl
    def lower_shr(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        return a >> b

    @hookimpl
    def lower_where(
        self, frame: Frame, condition: Any, a: Any, b: Any, dtype: DType, lanes: int
    ) -> Any:
        return np.where(condition, a, b)
