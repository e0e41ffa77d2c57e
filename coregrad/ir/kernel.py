"""The scalar level: what a backend sees. Loops, loads, scalars, stores; no tensor, no shape.

A kernel is a list of statements. A value is an :class:`Instr`; it stands in the block of the
innermost loop it depends on, so that printing a kernel shows what is computed how often::

    kernel softmax_4x8 (out0: float32[32], in1: float32[32])
      for i0 in 4 grid:
        acc a0: float32 = max
        for r1 in 8 x8:
          %0 = load in1[8*i0 + r1]
          a0 max= %0
        ...
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from coregrad.dtypes import DType, from_bits
from coregrad.ir.index import Index, Var
from coregrad.ir.ops import AND, CONST, LOAD, Op


@dataclass(frozen=True, eq=False)
class Param:
    """A buffer argument; ``role`` is out, in, inout (a scatter's target) or error (one int32)."""

    name: str
    dtype: DType
    size: int
    role: str


@dataclass(frozen=True, eq=False)
class Array:
    """Scratch memory of one grid iteration (space "private") or one work-group ("local")."""

    name: str
    dtype: DType
    size: int
    space: str = "private"


@dataclass(frozen=True, eq=False)
class Accumulator:
    """A variable that a reduction updates. For ``argmax`` it is a pair: value and int64 index."""

    name: str
    kind: str
    dtype: DType


# Pseudo-ops: values that are no contract op of their own. INDEX is index arithmetic made visible
# (emitted through add, mul, idiv, mod); RESULT reads an accumulator after its loops.
INDEX = Op("index", ())
RESULT = Op("result", ())


@dataclass(frozen=True, eq=False)
class Instr:
    """A scalar value.

    ``attr`` by op: const: the bits; load: (Param | Array, Index); index: Index;
    result: (Accumulator, 0 or 1); cast, bitcast: the source dtype; sin: the quarter.
    A load's only argument is its gate, if it has one.
    """

    op: Op
    dtype: DType
    args: tuple[Instr, ...] = ()
    attr: Any = None
    vars: frozenset[Var] = frozenset()

    def __repr__(self) -> str:
        return f"<{self.op} {self.dtype.name}>"


@dataclass(eq=False)
class Loop:
    """``for var in range(var.extent)``; kind grid, local, serial or unroll; ``lanes`` at a time.

    ``limit`` is an int64 that is known before the loop: iterations from there on change nothing,
    and may be left out.
    """

    var: Var
    kind: str
    body: list[Stmt] = field(default_factory=list)
    lanes: int = 1
    limit: Instr | None = None


@dataclass(frozen=True, eq=False)
class Declare:
    """Make the accumulator, holding its kind's neutral element."""

    acc: Accumulator


@dataclass(frozen=True, eq=False)
class Update:
    """Fold ``values`` (two for argmax: value and index) into the accumulator."""

    acc: Accumulator
    values: tuple[Instr, ...]


@dataclass(frozen=True, eq=False)
class Store:
    """``target[index] = value`` where ``gate`` holds."""

    target: Param | Array
    index: Index
    value: Instr
    gate: Instr | None = None


@dataclass(frozen=True, eq=False)
class Allocate:
    """Make scratch memory for the rest of the enclosing block."""

    array: Array


@dataclass(frozen=True, eq=False)
class Barrier:
    """All threads of the work-group have arrived, and see each other's local memory."""


Stmt: TypeAlias = Instr | Loop | Declare | Update | Store | Allocate | Barrier


@dataclass(frozen=True, eq=False)
class Contraction:
    """A kernel that is a sum over a product: ``acc += a * b``; offered to backends as a whole.

    ``m`` loops occur in ``a`` only, ``n`` in ``b`` only, ``batch`` in both and in the output,
    ``k`` is summed. ``a`` and ``b`` are value trees (the fused prologues) in these variables;
    ``acc`` is the sum, whose RESULT the stores in ``stores`` use (the fused epilogue).
    """

    batch: tuple[Var, ...]
    m: tuple[Var, ...]
    n: tuple[Var, ...]
    k: tuple[Var, ...]
    a: Instr
    b: Instr
    acc: Accumulator
    result: Instr
    stores: tuple[Store, ...]


@dataclass(frozen=True)
class Sort:
    """A kernel that the device has itself: for each of ``rows`` rows of ``length`` integers of
    ``dtype``, where the ``count`` smallest stand, in order and equal ones as they come."""

    dtype: DType
    rows: int
    length: int
    count: int


@dataclass(eq=False)
class Kernel:
    """A program for one launch. ``grid`` is the number of iterations of its grid loop (1: none)."""

    name: str
    params: tuple[Param, ...]
    body: list[Stmt]
    contraction: Contraction | None = None
    sort: Sort | None = None  # then there is no body
    work: int | None = None  # operations on floats, where the body is not the place to count them

    @property
    def grid(self) -> int:
        """Iterations of the grid loop, which a device may share out among its threads."""
        for stmt in self.body:
            if isinstance(stmt, Loop) and stmt.kind == "grid":
                return stmt.var.extent
        return 1

    def __str__(self) -> str:
        return show(self)


def walk(body: list[Stmt]) -> Iterator[Stmt]:
    """Every statement, outer ones first."""
    for stmt in body:
        yield stmt
        if isinstance(stmt, Loop):
            yield from walk(stmt.body)


def conjuncts(gate: Instr) -> set[Instr]:
    """The gates that hold where a gate holds: what it is the conjunction of."""
    parts, stack = set(), [gate]
    while stack:
        one = stack.pop()
        if one.op is AND:
            stack += one.args
        else:
            parts.add(one)
    return parts


def show(kernel: Kernel) -> str:
    """The kernel as text; equal text means an equal program."""
    params = ", ".join(
        f"{p.name}: {p.dtype.name}[{p.size}]{' ' + p.role if p.role in ('inout', 'error') else ''}"
        for p in kernel.params
    )
    names: dict[Instr, str] = {}
    lines = [f"kernel {kernel.name} ({params})"]
    if kernel.sort is not None:
        sort = kernel.sort
        lines.append(f"  the device's sort: {sort.count} of {sort.length}, {sort.rows} rows")
    _show_block(kernel.body, "  ", names, lines)
    return "\n".join(lines)


def _show_block(body: list[Stmt], pad: str, names: dict[Instr, str], lines: list[str]) -> None:
    for stmt in body:
        if isinstance(stmt, Loop):
            lanes = f" x{stmt.lanes}" if stmt.lanes > 1 else ""
            kind = "" if stmt.kind == "serial" else f" {stmt.kind}"
            until = "" if stmt.limit is None else f" until {names[stmt.limit]}"
            lines.append(f"{pad}for {stmt.var.name} in {stmt.var.extent}{until}{kind}{lanes}:")
            _show_block(stmt.body, pad + "  ", names, lines)
        else:
            lines.append(pad + _show_stmt(stmt, names))


def _show_stmt(stmt: Stmt, names: dict[Instr, str]) -> str:
    if isinstance(stmt, Instr):
        names[stmt] = f"%{len(names)}"
        return f"{names[stmt]} = {_show_value(stmt, names)}"
    if isinstance(stmt, Declare):
        return f"acc {stmt.acc.name}: {stmt.acc.dtype.name} = {stmt.acc.kind}"
    if isinstance(stmt, Update):
        return f"{stmt.acc.name} {stmt.acc.kind}= {', '.join(names[v] for v in stmt.values)}"
    if isinstance(stmt, Store):
        gate = f" if {names[stmt.gate]}" if stmt.gate else ""
        index = stmt.index.show(names)
        return f"store {stmt.target.name}[{index}] = {names[stmt.value]}{gate}"
    if isinstance(stmt, Allocate):
        array = stmt.array
        return f"{array.space} {array.name}: {array.dtype.name}[{array.size}]"
    return "barrier"


def _show_value(instr: Instr, names: dict[Instr, str]) -> str:
    args = ", ".join(names[a] for a in instr.args)
    if instr.op is CONST:
        return f"const {from_bits(instr.attr, instr.dtype)} {instr.dtype.name}"
    if instr.op is LOAD:
        buffer, index = instr.attr
        gate = f" if {args}" if args else ""
        return f"load {buffer.name}[{index.show(names)}]{gate}"
    if instr.op is INDEX:
        return f"index {instr.attr.show(names)}"
    if instr.op is RESULT:
        acc, part = instr.attr
        return f"result {acc.name}{'.index' if part else ''}"
    attr = "" if instr.attr is None else f" {getattr(instr.attr, 'name', instr.attr)}"
    suffix = f" {instr.dtype.name}" if instr.op.result == "attr" else ""
    return f"{instr.op}{attr}{suffix} {args}"
