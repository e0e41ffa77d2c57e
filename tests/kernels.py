"""Test support: kernels written by hand, and a strict backend with lanes to run them on.

:class:`Builder` appends statements in the order of its calls; :func:`run` executes a kernel on any
backend whose hooks compute at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from coregrad import dtypes
from coregrad.dtypes import ALL, DType, from_bits, to_bits
from coregrad.hookspecs import Header, Hooks, Limits
from coregrad.ir.emit import emit
from coregrad.ir.index import Index, Opaque, Var, constant, variable
from coregrad.ir.kernel import (
    INDEX,
    RESULT,
    Accumulator,
    Allocate,
    Array,
    Barrier,
    Declare,
    Instr,
    Kernel,
    Loop,
    Param,
    Stmt,
    Store,
    Update,
)
from coregrad.ir.ops import CONST, LOAD, OPS
from coregrad_cpu import formats, reference

LIMITS = Limits(dtypes=frozenset(ALL), host_memory=True)


class Builder:
    """A kernel under construction."""

    def __init__(self, name: str = "test") -> None:
        self.name = name
        self.params: list[Param] = []
        self.body: list[Stmt] = []
        self.blocks: list[list[Stmt]] = [self.body]
        self.count = 0

    def param(self, name: str, dtype: DType, size: int, role: str = "in") -> Param:
        self.params.append(Param(name, dtype, size, role))
        return self.params[-1]

    @contextmanager
    def loop(self, extent: int, kind: str = "serial", lanes: int = 1) -> Iterator[Index]:
        self.count += 1
        var = Var(f"i{self.count}", extent)
        loop = Loop(var, kind, [], lanes)
        self.blocks[-1].append(loop)
        self.blocks.append(loop.body)
        # Not `variable(var)`, which is the constant 0 for an extent of 1.
        yield Index(((var, 1),), 0, 0, max(extent - 1, 0), frozenset((var,)))
        self.blocks.pop()

    def add(self, stmt: Stmt) -> Any:
        self.blocks[-1].append(stmt)
        return stmt

    def const(self, value: float, dtype: DType) -> Instr:
        return self.add(Instr(CONST, dtype, (), to_bits(value, dtype)))

    def load(self, buffer: Param | Array, index: Index | int, gate: Instr | None = None) -> Instr:
        index = constant(index) if isinstance(index, int) else index
        args = () if gate is None else (gate,)
        used = index.vars.union(*(a.vars for a in args))
        return self.add(Instr(LOAD, buffer.dtype, args, (buffer, index), used))

    def op(self, name: str, *args: Instr, dtype: DType | None = None, attr: Any = None) -> Instr:
        op = OPS[name]
        if dtype is None:
            dtype = dtypes.bool_ if op.result == "bool" else args[-1].dtype
        used = frozenset[Var]().union(*(a.vars for a in args))
        return self.add(Instr(op, dtype, args, attr, used))

    def cast(self, x: Instr, dtype: DType) -> Instr:
        return self.op("cast", x, dtype=dtype, attr=x.dtype)

    def bitcast(self, x: Instr, dtype: DType) -> Instr:
        return self.op("bitcast", x, dtype=dtype, attr=x.dtype)

    def index(self, index: Index, dtype: DType = dtypes.int64) -> Instr:
        return self.add(Instr(INDEX, dtype, (), index, index.vars))

    def opaque(self, value: Instr, lo: int, hi: int) -> Index:
        self.count += 1
        return variable(Opaque(f"o{self.count}", value, (lo, hi), value.vars))

    def acc(self, kind: str, dtype: DType) -> Accumulator:
        self.count += 1
        acc = Accumulator(f"a{self.count}", kind, dtype)
        self.add(Declare(acc))
        return acc

    def update(self, acc: Accumulator, *values: Instr) -> None:
        self.add(Update(acc, values))

    def result(self, acc: Accumulator, part: int = 0, used: Sequence[Index] = ()) -> Instr:
        dtype = dtypes.int64 if part else acc.dtype
        variables = frozenset[Var]().union(*(i.vars for i in used))
        return self.add(Instr(RESULT, dtype, (), (acc, part), variables))

    def store(
        self, target: Param | Array, index: Index | int, value: Instr, gate: Instr | None = None
    ) -> None:
        index = constant(index) if isinstance(index, int) else index
        self.add(Store(target, index, value, gate))

    def array(self, name: str, dtype: DType, size: int, space: str = "private") -> Array:
        array = Array(name, dtype, size, space)
        self.add(Allocate(array))
        return array

    def barrier(self) -> None:
        self.add(Barrier())

    def kernel(self) -> Kernel:
        return Kernel(self.name, tuple(self.params), self.body)


# ---- running -----------------------------------------------------------------------------------


def to_stored(array: Any, dtype: DType) -> Any:
    """Numbers as they are stored (bfloat16: 16-bit words)."""
    if dtype is dtypes.bfloat16:
        return formats.packed(np.asarray(array, np.float32))
    return np.asarray(array, dtype.storage)


def from_stored(array: Any, dtype: DType) -> Any:
    """The numbers that stored elements stand for."""
    return formats.unpacked(array) if dtype is dtypes.bfloat16 else array


def hooks_of(backend: Any, style: str | None = None) -> Hooks:
    """The frozen hooks of a backend instance."""
    names = [name for name in dir(backend) if name.startswith("lower_")]
    table = {name.removeprefix("lower_"): getattr(backend, name) for name in names}
    return Hooks(style or backend.style, table)


def run(
    kernel: Kernel,
    inputs: Mapping[str, Any],
    backend: Any | None = None,
    hooks: Hooks | None = None,
) -> dict[str, Any]:
    """The contents of every parameter that is written, after one launch (stored form)."""
    backend = backend or reference.Backend()
    buffers = {}
    for param in kernel.params:
        raw = np.full(max(1, param.size) * param.dtype.itemsize, 0xCD, np.uint8)
        if param.role == "error":
            raw[:] = 0
        if param.name in inputs:
            flat = to_stored(inputs[param.name], param.dtype).ravel()
            raw = np.frombuffer(bytearray(flat.tobytes()), np.uint8)
        buffers[param] = raw
    emit(kernel, backend, hooks or hooks_of(backend), LIMITS, list(buffers.values()))
    return {
        p.name: buffers[p][: p.size * p.dtype.itemsize].view(p.dtype.storage)
        for p in kernel.params
        if p.role != "in"
    }


# ---- a strict backend with lanes ---------------------------------------------------------------


class LaneFrame:
    """Runs loops step by step; a value is an array of exactly as many elements as it has lanes."""

    def __init__(self, header: Header, buffers: Sequence[Any]) -> None:
        self.memory: dict[Any, Any] = {
            p: raw[: p.size * p.dtype.itemsize].view(p.dtype.storage)
            for p, raw in zip(header.params, buffers, strict=True)
        }
        self.variables: dict[str, tuple[Any, int]] = {}
        self.ended: dict[str, int] = {}
        self.open: list[str] = []
        self.loads: list[tuple[str, int | None, int]] = []
        self.calls: dict[str, int] = {}

    def loop(self, name: str, extent: int, kind: str, lanes: int, resume: bool) -> Iterator[Any]:
        start = self.ended.pop(name) if resume else 0
        self.open.append(name)
        while start + lanes <= extent:
            yield np.array([start])
            start += lanes
        self.open.pop()
        self.ended[name] = start

    def declare(self, name: str, dtype: DType, initial: Any, lanes: int) -> None:
        assert initial.shape == (1,)
        self.variables[name] = np.repeat(initial, lanes), lanes

    def read(self, name: str) -> Any:
        return self.variables[name][0]

    def assign(self, name: str, value: Any) -> None:
        lanes = self.variables[name][1]
        assert value.shape == (lanes,)
        self.variables[name] = value, lanes

    def allocate(self, array: Array) -> None:
        raw = np.full(array.size * array.dtype.itemsize, 255, np.uint8)
        self.memory[array] = raw.view(array.dtype.storage)

    def barrier(self) -> None:
        pass

    def broadcast(self, value: Any, dtype: DType, lanes: int) -> Any:
        assert value.shape == (1,)
        return np.repeat(value, lanes)

    def ramp(self, base: Any, stride: int, dtype: DType, lanes: int) -> Any:
        assert base.shape == (1,)
        return base + stride * np.arange(lanes)

    def split(self, value: Any, dtype: DType, lanes: int) -> tuple[Any, Any]:
        assert value.shape == (lanes,)
        assert lanes % 2 == 0
        return value[: lanes // 2], value[lanes // 2 :]

    def finish(self) -> None:
        pass

    def positions(self, buffer: Any, index: Any, stride: int | None, gate: Any, lanes: int) -> Any:
        if stride is None:
            assert index.shape == (lanes,)
        else:
            assert index.shape == (1,)
            index = index + stride * np.arange(lanes)
        if gate is not None:
            assert gate.shape == (lanes,)
            assert gate.dtype == np.bool_
            index = index[gate]
        assert (index >= 0).all(), buffer.name
        assert (index < buffer.size).all(), buffer.name
        return index


class LaneBackend:
    """The reference's arithmetic on vectors of ``lanes`` elements, checking every operand."""

    style = "render"

    def __init__(self) -> None:
        self.frame: LaneFrame

    def begin_kernel(self, header: Header, buffers: Sequence[Any] | None) -> LaneFrame:
        self.frame = LaneFrame(header, buffers or ())
        return self.frame

    def lower_load(self, frame, buffer, index, stride, gate, dtype, lanes):  # type: ignore[no-untyped-def]
        frame.loads.append((buffer.name, stride, lanes))
        at = frame.positions(buffer, index, stride, gate, lanes)
        value = np.zeros(lanes, buffer.dtype.storage)
        value[slice(None) if gate is None else gate] = frame.memory[buffer][at]
        return from_stored(value, dtype)

    def lower_store(self, frame, buffer, index, stride, value, gate, dtype, lanes):  # type: ignore[no-untyped-def]
        assert value.shape == (lanes,)
        at = frame.positions(buffer, index, stride, gate, lanes)
        frame.memory[buffer][at] = to_stored(value if gate is None else value[gate], dtype)

    def lower_const(self, frame, value, dtype, lanes):  # type: ignore[no-untyped-def]
        return np.full(lanes, value, formats.held(dtype))

    def lower_reduce(self, frame, kind, accumulator, value, dtype, lanes):  # type: ignore[no-untyped-def]
        for operand in (*accumulator, *value) if kind == "argmax" else (accumulator, value):
            assert operand.shape == (lanes,)
        return reference.Backend().lower_reduce(frame, kind, accumulator, value, dtype, lanes)


def _strict(name: str) -> Callable[..., Any]:
    method = getattr(reference.Backend(), f"lower_{name}")

    def checked(self: LaneBackend, frame: LaneFrame, *args: Any) -> Any:
        *operands, lanes = args
        for operand in operands:
            assert not isinstance(operand, np.ndarray) or operand.shape == (lanes,), name
        frame.calls[name] = frame.calls.get(name, 0) + 1
        value = method(frame, *args)
        assert value.shape == (lanes,)
        return value

    return checked


for _name in OPS:
    if hasattr(reference.Backend, f"lower_{_name}") and not hasattr(LaneBackend, f"lower_{_name}"):
        setattr(LaneBackend, f"lower_{_name}", _strict(_name))


def numbers(bits: Sequence[int], dtype: DType) -> list[Any]:
    """The numbers with these stored bits."""
    return [from_bits(b, dtype) for b in bits]
