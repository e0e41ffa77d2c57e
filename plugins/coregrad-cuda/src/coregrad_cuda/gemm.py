"""Which contractions are products of matrices as cuBLAS knows them, and their launch.

Claimed is a plain product alone: operands that are loads along affine indices (as they are, or
16-bit floats widened to float32), one store of the sum (as it is, or rounded to the operands'
dtype), without gates. A fused prologue or epilogue, a padded operand, a product of overlapping
windows stays with the kernel that the core has laid out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from coregrad.dtypes import DType, bfloat16, float16, float32, float64
from coregrad.ir.index import Index, Var
from coregrad.ir.kernel import Contraction, Instr, Kernel, Param, Store
from coregrad.ir.ops import CAST, LOAD
from coregrad_cuda.driver import NORMAL, TRANSPOSED

LEAST = 8  # of m, n and k: a smaller product is no more work than a call of cuBLAS
MOST = 2**31 - 1  # cuBLAS's sizes are ints
HALVES = (float16, bfloat16)


@dataclass(frozen=True)
class Operand:
    """A matrix in a buffer, by columns. ``ld``: elements from a column to the next; ``step``: from
    a matrix to the next; ``turn``: whether it is transposed."""

    param: int
    offset: int
    turn: int
    ld: int
    step: int

    def __str__(self) -> str:
        turn = "^T" if self.turn else ""
        return f"param {self.param}{turn} + {self.offset}, ld {self.ld}, stride {self.step}"


@dataclass(frozen=True)
class Gemm:
    """C = op(A) op(B), ``count`` times, every matrix by columns."""

    name: str
    dtype: DType
    out: DType
    m: int
    n: int
    k: int
    count: int
    a: Operand
    b: Operand
    c: Operand
    compute: str  # what products are made and summed in: float32, float64 or tf32

    def __str__(self) -> str:
        size = f"{self.count} x ({self.m} x {self.n} x {self.k})"
        lines = [f"// coregrad kernel {self.name}: cuBLAS, {self.dtype.name} to {self.out.name}"]
        lines.append(f"// {size}, by columns")
        lines += [f"// {name}: {getattr(self, name)}" for name in "abc"]
        return "\n".join(lines)

    def numbers(self, addresses: Sequence[int]) -> list[int]:
        """What Driver.multiply takes, for buffers at these addresses."""
        out = [self.a.turn, self.b.turn, self.m, self.n, self.k]
        for operand, dtype in ((self.a, self.dtype), (self.b, self.dtype), (self.c, self.out)):
            address = addresses[operand.param] + operand.offset * dtype.itemsize
            out += [address, operand.ld, operand.step]
        return [*out, self.count]


@dataclass(frozen=True)
class _Access:
    """An affine access: its buffer, the constant, and the stride of each variable."""

    param: Param
    dtype: DType
    index: Index

    def strides(self, order: Sequence[Var]) -> list[int]:
        return [self.index.coefficient(var) or 0 for var in order]


def claimed(kernel: Kernel, tf32: bool = False) -> Gemm | None:
    """The kernel as a product of cuBLAS, if it is one. ``tf32``: float32's products may be made of
    their leading 11 bits, many times faster."""
    whole = kernel.contraction
    if whole is None or len(whole.stores) != 1:
        return None
    a, b, c = _loaded(whole.a), _loaded(whole.b), _stored(whole, whole.stores[0])
    if a is None or b is None or c is None or a.dtype is not b.dtype:
        return None
    if c.dtype not in (a.dtype, float32) or {a.param, b.param, c.param} != set(kernel.params):
        return None
    if c.param in (a.param, b.param):
        return None
    return _matched(kernel, whole, a, b, c, tf32)


def _loaded(value: Instr) -> _Access | None:
    """What an operand reads, if it is read as it is."""
    if value.op is CAST and value.attr in HALVES and value.dtype is float32:
        value = value.args[0]
        if value.dtype not in HALVES:
            return None
    elif value.dtype not in (float32, float64):
        return None
    if value.op is not LOAD or value.args or not isinstance(value.attr[0], Param):
        return None
    buffer, index = value.attr
    return _access(buffer, index)


def _stored(whole: Contraction, store: Store) -> _Access | None:
    """What is written, if it is the sum."""
    value = store.value
    if value.op is CAST and value.dtype in HALVES and value.attr is float32:
        value = value.args[0]
    if value is not whole.result or store.gate is not None or not isinstance(store.target, Param):
        return None
    return _access(store.target, store.index) if store.target.role == "out" else None


def _access(param: Param, index: Index) -> _Access | None:
    if not all(isinstance(atom, Var) for atom, _ in index.terms):
        return None
    return _Access(param, param.dtype, index)


def _matched(
    kernel: Kernel, whole: Contraction, a: _Access, b: _Access, c: _Access, tf32: bool
) -> Gemm | None:
    """The loops as one of each kind, and the strides as cuBLAS wants them."""
    batch, m = _merged(whole.batch, (c, a, b)), _merged(whole.m, (c, a))
    n, k = _merged(whole.n, (c, b)), _merged(whole.k, (a, b))
    if batch is None or m is None or n is None or k is None:
        return None
    if min(m[0], n[0], k[0]) < LEAST or max(m[0], n[0], k[0], batch[0]) > MOST:
        return None
    if m[1][0] == 1:  # by columns, as cuBLAS has it
        rows, columns, first, second = m, n, a, b
    elif n[1][0] == 1:  # by rows: the same memory is the transposed product by columns
        rows, columns, first, second = n, m, b, a
    else:
        return None
    k_first, k_second = (k[1][0], k[1][1]) if first is a else (k[1][1], k[1][0])
    step_first, step_second = (batch[1][1], batch[1][2])
    if first is b:
        step_first, step_second = step_second, step_first
    place = kernel.params.index
    left = _operand(place(first.param), first, rows, k[0], rows[1][1], k_first, step_first)
    right = _operand(
        place(second.param), second, (k[0], []), columns[0], k_second, columns[1][1], step_second
    )
    out = _operand(place(c.param), c, rows, columns[0], 1, columns[1][0], batch[1][0])
    if left is None or right is None or out is None or out.turn:
        return None
    if batch[0] > 1 and out.step < out.ld * (columns[0] - 1) + rows[0]:
        return None  # results of several products side by side, which cuBLAS does not speak of
    sizes = rows[0], columns[0], k[0], batch[0]
    wide = "float64" if a.dtype is float64 else "float32"
    compute = "tf32" if tf32 and a.dtype is float32 else wide
    return Gemm(kernel.name, a.dtype, c.dtype, *sizes, left, right, out, compute)


def _operand(
    param: int,
    access: _Access,
    rows: tuple[int, list[int]],
    columns: int,
    row_stride: int,
    column_stride: int,
    step: int,
) -> Operand | None:
    """A matrix of ``rows`` x ``columns`` elements with these strides, one of which is 1."""
    if row_stride == 1 and column_stride >= rows[0]:
        turn, ld = NORMAL, column_stride
    elif column_stride == 1 and row_stride >= columns:
        turn, ld = TRANSPOSED, row_stride
    else:
        return None
    if ld > MOST or step < 0:
        return None
    return Operand(param, access.index.const, turn, ld, step)


def _merged(variables: Sequence[Var], accesses: Sequence[_Access]) -> tuple[int, list[int]] | None:
    """Several loops as one that walks the same elements in each access: its extent and strides."""
    order = sorted(
        (v for v in variables if v.extent > 1),
        key=lambda v: [access.index.coefficient(v) or 0 for access in accesses],
    )
    if not order:
        return 1, [0] * len(accesses)
    for access in accesses:
        strides = access.strides(order)
        for i in range(1, len(order)):
            if strides[i] != strides[i - 1] * order[i - 1].extent:
                return None
    return math.prod(v.extent for v in order), [access.strides(order)[0] for access in accesses]
