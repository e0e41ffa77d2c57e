"""Kernels written by hand, statement by statement, as the rows need them; nothing runs here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from coregrad import dtypes
from coregrad.dtypes import DType, to_bits
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

S = TypeVar("S", bound=Stmt)


class Builder:
    """A kernel under construction: every call appends to the block that is open."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._params: list[Param] = []
        self._body: list[Stmt] = []
        self._blocks = [self._body]
        self._named = 0

    def kernel(self) -> Kernel:
        """What has been built."""
        return Kernel(self.name, tuple(self._params), self._body)

    def out(self, dtype: DType, size: int, role: str = "out") -> Param:
        """A parameter that is written."""
        return self._param(role, dtype, size)

    def into(self, dtype: DType, size: int) -> Param:
        """A parameter that is read."""
        return self._param("in", dtype, size)

    def _param(self, role: str, dtype: DType, size: int) -> Param:
        self._params.append(Param(f"{role}{len(self._params)}", dtype, size, role))
        return self._params[-1]

    def array(self, dtype: DType, size: int, space: str = "private") -> Array:
        """Scratch memory."""
        array = Array(self._name("s"), dtype, size, space)
        self._add(Allocate(array))
        return array

    @contextmanager
    def loop(
        self, extent: int, kind: str = "serial", lanes: int = 1, limit: Instr | None = None
    ) -> Iterator[Index]:
        """An open loop; its index is usable inside the ``with`` block."""
        var = Var(self._name("i"), extent)
        loop = self._add(Loop(var, kind, [], lanes, limit))
        self._blocks.append(loop.body)
        yield variable(var)
        self._blocks.pop()

    def barrier(self) -> None:
        """A meeting of the work-group."""
        self._add(Barrier())

    # ---- values --------------------------------------------------------------------------------

    def const(self, value: float, dtype: DType) -> Instr:
        """A number."""
        return self._add(Instr(CONST, dtype, (), to_bits(value, dtype)))

    def load(self, source: Param | Array, index: Index | int, gate: Instr | None = None) -> Instr:
        """``source[index]``, or 0 where the gate is false."""
        index = constant(index) if isinstance(index, int) else index
        gates = () if gate is None else (gate,)
        used = _vars(gates) | index.vars
        return self._add(Instr(LOAD, source.dtype, gates, (source, index), used))

    def op(self, name: str, *args: Instr, dtype: DType | None = None, attr: Any = None) -> Instr:
        """One op of the contract; the dtype of the last operand unless the op says otherwise."""
        op = OPS[name]
        if dtype is None:
            dtype = dtypes.bool_ if op.result == "bool" else args[-1].dtype
        return self._add(Instr(op, dtype, args, attr, _vars(args)))

    def cast(self, x: Instr, dtype: DType) -> Instr:
        """``x`` as another dtype."""
        return self.op("cast", x, dtype=dtype, attr=x.dtype)

    def index(self, index: Index, dtype: DType = dtypes.int64) -> Instr:
        """A loop index as a value."""
        return self._add(Instr(INDEX, dtype, (), index, index.vars))

    def computed(self, value: Instr, lo: int, hi: int) -> Index:
        """An integer value, known to lie in ``lo .. hi``, as an index."""
        return variable(Opaque(self._name("o"), value, (lo, hi), value.vars))

    # ---- effects -------------------------------------------------------------------------------

    def store(
        self, target: Param | Array, index: Index | int, value: Instr, gate: Instr | None = None
    ) -> None:
        """``target[index] = value`` where the gate holds."""
        index = constant(index) if isinstance(index, int) else index
        self._add(Store(target, index, value, gate))

    def accumulator(self, kind: str, dtype: DType) -> Accumulator:
        """A variable that holds the neutral element of ``kind``."""
        acc = Accumulator(self._name("a"), kind, dtype)
        self._add(Declare(acc))
        return acc

    def update(self, acc: Accumulator, *values: Instr) -> None:
        """Fold values in."""
        self._add(Update(acc, values))

    def result(self, acc: Accumulator, *around: Index, part: int = 0) -> Instr:
        """The variable after its loops; ``around`` are the indices of the loops it stands in."""
        used = frozenset[Var]().union(*(index.vars for index in around))
        dtype = dtypes.int64 if part else acc.dtype
        return self._add(Instr(RESULT, dtype, (), (acc, part), used))

    def _add(self, stmt: S) -> S:
        self._blocks[-1].append(stmt)
        return stmt

    def _name(self, letter: str) -> str:
        self._named += 1
        return f"{letter}{self._named}"


def _vars(values: Sequence[Instr]) -> frozenset[Var]:
    return frozenset[Var]().union(*(value.vars for value in values))


def mapped(
    name: str,
    op: str,
    sources: Sequence[DType],
    result: DType,
    n: int,
    kind: str = "grid",
    lanes: int = 1,
    attr: Any = None,
) -> Kernel:
    """``out[i] = op(in1[i], ...)`` for n elements."""
    build = Builder(name)
    out = build.out(result, n)
    params = [build.into(dtype, n) for dtype in sources]
    with build.loop(n, kind, lanes) as i:
        build.store(
            out, i, build.op(op, *(build.load(p, i) for p in params), dtype=result, attr=attr)
        )
    return build.kernel()
