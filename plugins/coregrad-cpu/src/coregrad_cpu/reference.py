"""The device `numpy`: the contract in plain NumPy. Read this first when you write a backend.

Style eager: a hook computes at once, on arrays. A loop is an axis of these arrays (its depth is
the axis's number), so that one call of a hook runs the op for all iterations. It is the slow and
strict one: it raises on any access outside a buffer, and is never chosen before another device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from coregrad import dtypes
from coregrad.dtypes import ALL, DType, bfloat16
from coregrad.errors import OutOfMemory, UnsupportedOp, VerifyError
from coregrad.hookspecs import Header, Limits, hookimpl
from coregrad.ir.kernel import Array, Param

RANK = 16  # axes of every value: the deepest nest of loops (NumPy itself allows 32)
BLOCK = 1 << 20  # elements of a value at most: a few megabytes; loops beyond that run in Python


# ---- how values are held -----------------------------------------------------------------------
# As arrays of the dtype's storage, but bfloat16 as float32 numbers that fit bfloat16.


def held(dtype: DType) -> np.dtype[Any]:
    """The NumPy dtype that values of ``dtype`` are held in."""
    return np.dtype("float32" if dtype is bfloat16 else dtype.storage)


def rounded(x: Any, dtype: DType) -> Any:
    """``x`` as held for ``dtype``. Going from float64 to bfloat16 rounds once, not twice."""
    if dtype is not bfloat16:
        return np.asarray(x).astype(held(dtype), copy=False)
    single = np.asarray(x).astype(np.float32)
    if np.asarray(x).dtype == np.float64:
        single = _odd(single, x)
    return unpacked(packed(single))


def _odd(single: Any, x: Any) -> Any:
    """Of the two float32 around an inexact float64 the odd one, from which rounding on is exact
    (Boldo and Melquiond, "When double rounding is odd", 2005)."""
    even = (single.view(np.uint32) & 1) == 0
    towards = np.where(single < x, np.inf, -np.inf).astype(np.float32)
    inexact = (single != x) & ~np.isnan(x)
    return np.where(inexact & even, np.nextafter(single, towards), single)


def packed(x: Any) -> Any:
    """The stored 16 bits of bfloat16 numbers: float32 rounded to nearest even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    upper = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), 0x7FC0, upper).astype(np.uint16)


def unpacked(words: Any) -> Any:
    """The float32 numbers that stored bfloat16 words stand for."""
    return (np.asarray(words).astype(np.uint32) << 16).view(np.float32)


def _quiet() -> np.errstate:
    return np.errstate(all="ignore")  # IEEE's answer, infinity or NaN, is the contract's


# ---- the frame ---------------------------------------------------------------------------------


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


# ---- the 25 hooks ------------------------------------------------------------------------------


class Backend:
    """The hooks of the device `numpy`."""

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
    def lower_const(self, frame: ReferenceFrame, value: float, dtype: DType, lanes: int) -> Any:
        return np.full((1,) * RANK, value, held(dtype))

    @hookimpl
    def lower_reduce(
        self,
        frame: ReferenceFrame,
        kind: str,
        accumulator: Any,
        value: Any,
        dtype: DType,
        lanes: int,
    ) -> Any:
        if kind == "argmax":
            return _fold_argmax(accumulator, value)
        ufunc: Any = {"add": np.add, "mul": np.multiply, "max": np.maximum}[kind]
        rows = _rows(value, accumulator)  # contiguous rows, which NumPy sums pairwise
        with _quiet():
            folded = ufunc.reduce(rows, axis=-1, dtype=rows.dtype).reshape(accumulator.shape)
            return rounded(ufunc(accumulator, folded), dtype)

    @hookimpl
    def lower_cast(
        self, frame: ReferenceFrame, x: Any, source: DType, dtype: DType, lanes: int
    ) -> Any:
        with _quiet():
            if dtype is dtypes.bool_:
                return x != 0
            if source.is_float and dtype.is_int:
                return _float_to_int(x.astype(np.float64), dtype)
            if not source.is_float and dtype.is_float:
                return _int_to_float(x, dtype)
            return rounded(x, dtype)

    @hookimpl
    def lower_bitcast(
        self, frame: ReferenceFrame, x: Any, source: DType, dtype: DType, lanes: int
    ) -> Any:
        bits = packed(x) if source is bfloat16 else np.ascontiguousarray(x)
        bits = bits.reshape(np.shape(x))
        return unpacked(bits.view(np.uint16)) if dtype is bfloat16 else bits.view(dtype.storage)

    @hookimpl
    def lower_exp(self, frame: ReferenceFrame, x: Any, dtype: DType, lanes: int) -> Any:
        return _in_float64(np.exp, x, dtype)

    @hookimpl
    def lower_log(self, frame: ReferenceFrame, x: Any, dtype: DType, lanes: int) -> Any:
        return _in_float64(np.log, x, dtype)

    @hookimpl
    def lower_sin(
        self, frame: ReferenceFrame, x: Any, quarter: int, dtype: DType, lanes: int
    ) -> Any:
        value = _in_float64(np.cos if quarter % 2 else np.sin, x, dtype)
        return -value if quarter >= 2 else value

    @hookimpl
    def lower_sqrt(self, frame: ReferenceFrame, x: Any, dtype: DType, lanes: int) -> Any:
        return _in_float64(np.sqrt, x, dtype)

    @hookimpl
    def lower_trunc(self, frame: ReferenceFrame, x: Any, dtype: DType, lanes: int) -> Any:
        with _quiet():
            return np.trunc(x)

    @hookimpl
    def lower_add(self, frame: ReferenceFrame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        with _quiet():
            return rounded(a + b, dtype)

    @hookimpl
    def lower_mul(self, frame: ReferenceFrame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        with _quiet():
            return rounded(a * b, dtype)

    @hookimpl
    def lower_div(self, frame: ReferenceFrame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        with _quiet():
            return rounded(a / b, dtype)

    @hookimpl
    def lower_idiv(self, frame: ReferenceFrame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        return (a - np.fmod(a, b)) // b  # exact, hence rounded in neither direction

    @hookimpl
    def lower_mod(self, frame: ReferenceFrame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        with _quiet():
            return np.fmod(a, b)

    @hookimpl
    def lower_max(self, frame: ReferenceFrame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        with _quiet():
            return np.maximum(a, b)

    @hookimpl
    def lower_lt(self, frame: ReferenceFrame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        with _quiet():
            return np.less(a, b)

    @hookimpl
    def lower_ne(self, frame: ReferenceFrame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        with _quiet():
            return np.not_equal(a, b)

    @hookimpl
    def lower_and(self, frame: ReferenceFrame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        return a & b

    @hookimpl
    def lower_or(self, frame: ReferenceFrame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        return a | b

    @hookimpl
    def lower_xor(self, frame: ReferenceFrame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        return a ^ b

    @hookimpl
    def lower_shl(self, frame: ReferenceFrame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        return a << b

    @hookimpl
    def lower_shr(self, frame: ReferenceFrame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        return a >> b

    @hookimpl
    def lower_where(
        self, frame: ReferenceFrame, condition: Any, a: Any, b: Any, dtype: DType, lanes: int
    ) -> Any:
        return np.where(condition, a, b)


# ---- what needs more than a line ---------------------------------------------------------------


def _in_float64(function: Callable[[Any], Any], x: Any, dtype: DType) -> Any:
    """A function of narrower floats is computed in float64: within half an ulp and a trifle."""
    with _quiet():
        return rounded(function(x.astype(np.float64)), dtype)


def _rows(value: Any, accumulator: Any) -> Any:
    """``value`` with what is folded into one element of the accumulator as its last axis."""
    shapes = enumerate(zip(value.shape, accumulator.shape, strict=True))
    folded = [axis for axis, (size, kept) in shapes if kept == 1 and size > 1]
    kept = [axis for axis in range(value.ndim) if axis not in folded]
    rows = value.transpose(*kept, *folded).reshape(accumulator.size, -1)
    return np.ascontiguousarray(rows)


def _fold_argmax(accumulator: tuple[Any, Any], value: tuple[Any, Any]) -> tuple[Any, Any]:
    """The first index among the largest; among NaNs if there are any."""
    shape = accumulator[0].shape
    numbers, indices = (
        np.concatenate([a.reshape(-1, 1), _rows(v, a)], axis=1)
        for a, v in zip(accumulator, value, strict=True)
    )
    with _quiet():
        best = np.maximum.reduce(numbers, axis=1, keepdims=True)  # NaN if one is NaN
        hit = (numbers == best) | ((best != best) & (numbers != numbers))
    first = np.where(hit, indices, np.iinfo(indices.dtype).max).min(axis=1)
    return best.reshape(shape), first.reshape(shape)


def _float_to_int(x: Any, dtype: DType) -> Any:
    """Truncated and saturated, NaN to 0. (float64 holds every float; dtype.max + 1 is exact.)"""
    whole = np.trunc(x)
    above, below = whole >= float(dtype.max + 1), whole < float(dtype.min)
    inside = np.where(above | below | np.isnan(x), 0.0, whole).astype(held(dtype))
    low, high = held(dtype).type(dtype.min), held(dtype).type(dtype.max)
    return np.where(above, high, np.where(below, low, inside))


def _int_to_float(x: Any, dtype: DType) -> Any:
    """Rounded once. float32 and float64 are NumPy's own; the 16-bit ones go by way of float64."""
    if dtype in (dtypes.float32, dtypes.float64) or x.dtype == np.bool_:
        return x.astype(held(dtype))
    wide = x.astype(np.float64)
    if x.dtype.itemsize == 8:  # too wide for float64: keep what is lost as one last odd bit
        odd = ((x >> 12) | ((x & 0xFFF) != 0)).astype(np.float64) * 4096.0
        wide = np.where(np.abs(wide) > 2.0**52, odd, wide)
    return rounded(wide, dtype)


# ---- the device --------------------------------------------------------------------------------


class ReferenceDevice:
    """Memory is NumPy arrays of bytes. A kernel runs while it is emitted: nothing is launched."""

    name = "numpy"
    limits = Limits(dtypes=frozenset(ALL), host_memory=True)

    def allocate(self, nbytes: int) -> Any:
        try:
            return np.empty(nbytes, np.uint8)
        except MemoryError as error:
            raise OutOfMemory(f"numpy: no room for {nbytes} bytes") from error

    def free(self, buffer: Any) -> None:
        """The array goes when its last user lets go of it."""

    def copy_in(self, buffer: Any, data: memoryview) -> None:
        source = np.frombuffer(data, np.uint8)
        buffer[: source.size] = source

    def copy_out(self, buffer: Any, into: memoryview) -> None:
        target = np.frombuffer(into, np.uint8)
        target[:] = buffer[: target.size]

    def compile(self, program: Any) -> Any:
        return program

    def launch(self, compiled: Any, buffers: Sequence[Any], grid: int) -> None:
        raise UnsupportedOp("launch: the numpy device has run a kernel once it is emitted")

    def synchronize(self) -> None:
        """Every call has finished when it returns."""
