"""What is legal at each level, as tables and one walk per level; it never repairs anything.

A VerifyError is a bug of coregrad or of a backend, never a user's mistake: those are raised by
:mod:`coregrad.ir.build` at the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

from coregrad import dtypes
from coregrad.dtypes import DType, accumulator
from coregrad.errors import VerifyError
from coregrad.ir import ops
from coregrad.ir.build import DOMAINS
from coregrad.ir.graph import Node, Shape, toposort
from coregrad.ir.index import Index, Opaque, Quotient, Remainder, Var
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
    walk,
)
from coregrad.ir.ops import Op
from coregrad.ir.races import find_race
from coregrad.ir.target import Limits


def _require(condition: object, problem: str) -> None:
    if not condition:
        raise VerifyError(problem)


def _check_op(op: Op, operands: list[DType], result: DType, attr: object) -> None:
    """What holds for an element-wise op at both levels: operand dtypes, attributes, result."""
    _require(len(operands) == len(op.args), f"{len(operands)} operands, not {len(op.args)}")
    values = operands[1:] if op is ops.WHERE else operands
    names = ", ".join(d.name for d in operands)
    _require(all(d is values[0] for d in values), f"operand dtypes {names} differ")
    fits = values[0] in DOMAINS[op.domain]
    _require(fits, f"{values[0].name} is outside its domain: {op.domain}")
    _require(op is not ops.WHERE or operands[0] is dtypes.bool_, "the condition is not bool")
    if op is ops.BITCAST:
        _require(values[0].bits == result.bits, f"{result.name} is not as wide as {names}")
    if op is ops.SIN:
        _require(attr in (0, 1, 2, 3), f"quarter {attr} is not 0, 1, 2 or 3")
    if op.result == "attr":
        return
    wanted = dtypes.bool_ if op.result == "bool" else values[0]
    _require(result is wanted, f"dtype {result.name}, not {wanted.name}")


# ---- the tensor level --------------------------------------------------------------------------


def verify_graph(roots: Iterable[Node]) -> None:
    """Raise VerifyError at the first node that breaks a rule of the tensor level."""
    for node in toposort(roots, lambda n: () if n.buffer is not None else n.src):
        try:
            _verify_node(node)
        except VerifyError as problem:
            sources = ", ".join(map(repr, node.src))
            raise VerifyError(f"{node!r} of ({sources}), arg {node.arg!r}: {problem}") from None


def _verify_node(node: Node) -> None:
    op, src = node.op, node.src
    _require(op in SHAPES or op in ops.ELEMENTWISE, "no op of the tensor level")
    _require(all(type(n) is int and n >= 0 for n in node.shape), "its shape is no tuple of sizes")
    if node.buffer is not None:
        _require(node.buffer.op is ops.BUFFER, "its buffer is no buffer node")
        return
    if op in ops.ELEMENTWISE:
        _check_op(op, [s.dtype for s in src], node.dtype, node.arg)
        _require(all(s.shape == node.shape for s in src), f"source shapes {[s.shape for s in src]}")
        return
    wanted = 1 if op is ops.REDUCE else len(op.args)  # the contract's reduce has two operands
    several = op in (ops.CAT, ops.CUSTOM, ops.SLICE, ops.UPDATE)
    if op is ops.CALL:
        wanted = len(node.arg.parameters)
    _require(len(src) >= 1 if several else len(src) == wanted, f"{len(src)} sources")
    shape = SHAPES[op](node)
    _require(shape == node.shape, f"shape {node.shape}, not {shape}")
    if op is ops.REDUCE and node.arg[0] == "argmax":
        _require(node.dtype.is_int, f"an index of dtype {node.dtype.name}")
    elif src and op not in (ops.CALL, ops.ARGSORT):
        _require(node.dtype is src[0].dtype, f"dtype {node.dtype.name}, not {src[0].dtype.name}")


def _const_shape(n: Node) -> Shape:
    _require(type(n.arg) is int and 0 <= n.arg < 1 << n.dtype.bits, "its bits do not fit its dtype")
    return n.shape


def _iota_shape(n: Node) -> Shape:
    _require(n.dtype.is_int, f"{n.dtype.name} is no integer dtype")
    _require(len(n.shape) == 1, "it has one axis")
    return n.shape


def _reduce_shape(n: Node) -> Shape:
    kind, axes = n.arg
    x = n.src[0]
    _require(kind in ops.REDUCE_KINDS, f"kind {kind!r}")
    _require(axes == tuple(sorted(set(axes))) and axes, f"axes {axes}")
    _require(axes[0] >= 0 and axes[-1] < len(x.shape), f"axes {axes} of shape {x.shape}")
    _require(kind != "argmax" or len(axes) == 1, f"argmax over the axes {axes}")
    _require(x.dtype is not dtypes.bool_, "a reduction of bool")
    return tuple(size for axis, size in enumerate(x.shape) if axis not in axes)


def _scan_shape(n: Node) -> Shape:
    kind, axis = n.arg
    _require(kind in ops.SCAN_KINDS, f"kind {kind!r}")
    _require(0 <= axis < len(n.src[0].shape), f"axis {axis} of shape {n.src[0].shape}")
    _require(n.dtype is not dtypes.bool_, "a scan of bool")
    return n.src[0].shape


def _argsort_shape(n: Node) -> Shape:
    x = n.src[0]
    _require(x.dtype.is_int and n.dtype.is_int, f"{x.dtype.name} to {n.dtype.name}")
    _require(x.shape and 0 <= n.arg <= x.shape[-1], f"{n.arg} places of shape {x.shape}")
    return (*x.shape[:-1], n.arg)


def _reshape_shape(n: Node) -> Shape:
    _require(math.prod(n.arg) == math.prod(n.src[0].shape), f"from {n.src[0].shape} to {n.arg}")
    return tuple(n.arg)


def _permute_shape(n: Node) -> Shape:
    _require(sorted(n.arg) == list(range(len(n.src[0].shape))), f"order {n.arg}")
    return tuple(n.src[0].shape[axis] for axis in n.arg)


def _expand_shape(n: Node) -> Shape:
    old = n.src[0].shape
    fits = len(old) == len(n.arg) and all(a in (1, b) for a, b in zip(old, n.arg, strict=False))
    _require(fits, f"from {old} to {n.arg}")
    return tuple(n.arg)


def _pad_shape(n: Node) -> Shape:
    widths, _ = n.arg
    old = n.src[0].shape
    _require(len(widths) == len(old) and all(min(w) >= 0 for w in widths), f"widths {widths}")
    return tuple(size + lo + hi for size, (lo, hi) in zip(old, widths, strict=True))


def _shrink_shape(n: Node) -> Shape:
    old = n.src[0].shape
    inside = len(n.arg) == len(old) and all(
        0 <= lo <= hi <= size for (lo, hi), size in zip(n.arg, old, strict=False)
    )
    _require(inside, f"ranges {n.arg} of shape {old}")
    return tuple(hi - lo for lo, hi in n.arg)


def _flip_shape(n: Node) -> Shape:
    _require(all(0 <= axis < len(n.shape) for axis in n.arg), f"axes {n.arg}")
    return n.src[0].shape


def _window_shape(n: Node) -> Shape:
    axis, size, stride, dilation = n.arg
    old = n.src[0].shape
    span = dilation * (size - 1) + 1
    _require(min(size, stride, dilation) >= 1 and span <= old[axis], f"{n.arg} of shape {old}")
    return (*old[:axis], (old[axis] - span) // stride + 1, *old[axis + 1 :], size)


def _fold_shape(n: Node) -> Shape:
    axis, length, stride, dilation = n.arg
    old = n.src[0].shape
    span = dilation * (old[-1] - 1) + 1
    fits = span <= length and (length - span) // stride + 1 == old[axis]
    _require(fits, f"{n.arg} of shape {old}")
    return (*old[:axis], length, *old[axis + 1 : -1])


def _cat_shape(n: Node) -> Shape:
    first = n.src[0].shape
    for part in n.src:
        outside = part.shape[: n.arg], part.shape[n.arg + 1 :]
        _require(outside == (first[: n.arg], first[n.arg + 1 :]), "the parts do not fit")
        _require(part.dtype is n.dtype, f"a part has dtype {part.dtype.name}")
    return (*first[: n.arg], sum(part.shape[n.arg] for part in n.src), *first[n.arg + 1 :])


def _gather_shape(n: Node) -> Shape:
    x, index = n.src
    _require(index.dtype.is_int and x.shape, "it needs an axis and an integer index")
    return index.shape + x.shape[1:]


def _scatter_shape(n: Node) -> Shape:
    base, index, value = n.src
    _require(n.arg in ("set", "add"), f"kind {n.arg!r}")
    _require(index.dtype.is_int and len(index.shape) == 1, "the index is one axis of integers")
    _require(value.shape == index.shape + base.shape[1:], "the value does not fit")
    _require(value.dtype is base.dtype, f"the value has dtype {value.dtype.name}")
    return base.shape


def _slice_shape(n: Node) -> Shape:
    x, *starts = n.src
    axes, lengths = n.arg
    _require(axes and len(axes) == len(lengths) == len(starts), f"{len(starts)} starts, {n.arg}")
    shape = list(x.shape)
    for axis, length in zip(axes, lengths, strict=True):
        _require(0 < length <= x.shape[axis], f"{length} elements of axis {axis} of {x.shape}")
        shape[axis] = length
    _require(all(s.dtype.is_int and not s.shape for s in starts), "a start is no single integer")
    return tuple(shape)


def _update_shape(n: Node) -> Shape:
    base, value, *starts = n.src
    _require(n.arg and len(n.arg) == len(starts), f"{len(starts)} starts for axes {n.arg}")
    fits = len(value.shape) == len(base.shape) and all(
        0 < size <= whole if axis in n.arg else size == whole
        for axis, (size, whole) in enumerate(zip(value.shape, base.shape, strict=True))
    )
    _require(fits, f"{value.shape} into {base.shape}")
    _require(value.dtype is base.dtype, f"the value has dtype {value.dtype.name}")
    _require(all(s.dtype.is_int and not s.shape for s in starts), "a start is no single integer")
    return base.shape


def _check_shape(n: Node) -> Shape:
    _require(n.dtype.is_int, f"{n.dtype.name} is no integer dtype")
    return n.src[0].shape


def _same_shape(n: Node) -> Shape:
    return n.src[0].shape


# What the shape of a node must be, given its sources and its argument.
SHAPES: dict[Op, Callable[[Node], Shape]] = {
    ops.CONST: _const_shape,
    ops.IOTA: _iota_shape,
    ops.BUFFER: lambda n: n.shape,
    ops.REDUCE: _reduce_shape,
    ops.SCAN: _scan_shape,
    ops.ARGSORT: _argsort_shape,
    ops.RESHAPE: _reshape_shape,
    ops.PERMUTE: _permute_shape,
    ops.EXPAND: _expand_shape,
    ops.PAD: _pad_shape,
    ops.SHRINK: _shrink_shape,
    ops.FLIP: _flip_shape,
    ops.WINDOW: _window_shape,
    ops.FOLD: _fold_shape,
    ops.CAT: _cat_shape,
    ops.NUMBER: lambda n: (),
    ops.SLICE: _slice_shape,
    ops.UPDATE: _update_shape,
    ops.GATHER: _gather_shape,
    ops.SCATTER: _scatter_shape,
    ops.CHECK: _check_shape,
    ops.CONTIGUOUS: _same_shape,
    ops.COPY: _same_shape,
    ops.LEAF: _same_shape,
    ops.DETACH: _same_shape,
    ops.CUSTOM: _same_shape,
    ops.CALL: lambda n: n.arg.result.shape,
}


# ---- the scalar level --------------------------------------------------------------------------

LOOP_KINDS = ("grid", "local", "serial", "unroll")
ROLES = ("out", "in", "inout", "error")


@dataclass
class _Scope:
    """What is known in a block: its loops and whatever was defined so far, here or further out."""

    loops: tuple[Loop, ...]
    known: set[object] = field(default_factory=set)  # Instrs, Params, Arrays, Accumulators
    declared_at: dict[Accumulator, int] = field(default_factory=dict)  # loops around the Declare
    updated: set[Accumulator] = field(default_factory=set)
    read: set[Accumulator] = field(default_factory=set)

    def inside(self, loop: Loop) -> _Scope:
        return _Scope(
            (*self.loops, loop),
            set(self.known),
            dict(self.declared_at),
            set(self.updated),
            set(self.read),
        )

    @cached_property
    def vars(self) -> frozenset[Var]:
        return frozenset(loop.var for loop in self.loops)

    @property
    def laned(self) -> Loop | None:
        return next((loop for loop in self.loops if loop.lanes > 1), None)


def verify_kernel(kernel: Kernel, limits: Limits | None = None) -> None:
    """Raise VerifyError at the first statement that breaks a rule of the scalar level, or where a
    work-group takes more than a device's ``limits`` allow."""
    try:
        _verify_params(kernel)
        _verify_block(kernel.body, _Scope((), set(kernel.params)))
        _verify_group(kernel, limits)
        stored = {stmt.target for stmt in walk(kernel.body) if isinstance(stmt, Store)}
        for param in kernel.params:
            _require(param.role != "out" or param in stored, f"{param.name} is never stored to")
    except VerifyError as problem:
        raise VerifyError(f"kernel {kernel.name}: {problem}") from None


def _verify_params(kernel: Kernel) -> None:
    names = [p.name for p in kernel.params]
    _require(len(set(names)) == len(names), f"two parameters have one name: {names}")
    for param in kernel.params:
        _require(param.role in ROLES, f"{param.name} has the role {param.role!r}")
        if param.role == "error":
            word = param.dtype is dtypes.int32 and param.size == 1
            _require(word, f"{param.name}: an error parameter is one int32")
    grids = [s for s in walk(kernel.body) if isinstance(s, Loop) and s.kind == "grid"]
    _require(len(grids) <= 1, f"{len(grids)} grid loops")


def _verify_group(kernel: Kernel, limits: Limits | None) -> None:
    """A work-group's statements all stand in its local loop, and its threads do not race."""
    inside = list(walk(kernel.body))
    threads = [s for s in inside if isinstance(s, Loop) and s.kind == "local"]
    if not threads:
        return
    _require(len(threads) == 1, f"{len(threads)} local loops")
    outside = [s for s in inside if s not in set(walk(threads[0].body)) and s is not threads[0]]
    for stmt in outside:
        rest = isinstance(stmt, Loop | Allocate) or (
            isinstance(stmt, Instr) and stmt.op is ops.CONST
        )
        _require(rest, f"{_describe(stmt)} stands beside the local loop, not in it")
    race = find_race(threads[0])
    _require(not race, race)
    if limits is not None:
        wanted, arrays = (
            threads[0].var.extent,
            [s.array for s in outside if isinstance(s, Allocate)],
        )
        _require(wanted <= limits.threads, f"{wanted} threads; the device has {limits.threads}")
        size = sum(a.size * a.dtype.itemsize for a in arrays if a.space == "local")
        room = limits.local_bytes
        _require(size <= room, f"{size} bytes of local memory; the device has {room}")


def _verify_block(body: list[Stmt], scope: _Scope) -> None:
    for stmt in body:
        try:
            STATEMENTS[type(stmt)](stmt, scope)
        except VerifyError as problem:
            if isinstance(stmt, Loop):  # the problem names the statement inside
                raise
            raise VerifyError(f"{_describe(stmt)}: {problem}") from None
        if isinstance(stmt, Loop):
            inner = scope.inside(stmt)
            _verify_block(stmt.body, inner)
            scope.updated |= inner.updated


def _describe(stmt: Stmt) -> str:
    """A statement by itself, without the numbers that a printed kernel gives to values."""
    if isinstance(stmt, Store):
        return f"store {stmt.target.name}[{stmt.index}]"
    if isinstance(stmt, Declare | Update):
        return f"{type(stmt).__name__.lower()} {stmt.acc.name}"
    if isinstance(stmt, Allocate):
        return f"allocate {stmt.array.name}"
    if isinstance(stmt, Instr) and stmt.op is ops.LOAD:
        return f"load {stmt.attr[0].name}[{stmt.attr[1]}]"
    return repr(stmt) if isinstance(stmt, Instr) else type(stmt).__name__.lower()


def _loop(loop: Loop, scope: _Scope) -> None:
    name = f"loop {loop.var.name}"
    _require(loop.kind in LOOP_KINDS, f"{name} is of kind {loop.kind!r}")
    _require(loop.kind != "grid" or not scope.loops, f"grid {name} is inside another loop")
    in_grid = [around.kind for around in scope.loops] == ["grid"]
    _require(loop.kind != "local" or in_grid, f"local {name} is not directly in the grid loop")
    _require(loop.var not in scope.vars, f"{name} is inside a loop over the same variable")
    _require(loop.lanes >= 1 and loop.lanes & (loop.lanes - 1) == 0, f"{name}: {loop.lanes} lanes")
    limit = loop.limit
    if limit is not None:
        _require(limit in scope.known, f"the limit of {name} is not defined here")
        _require(limit.dtype is dtypes.int64, f"{name} has a limit of dtype {limit.dtype.name}")
        _require(loop.kind == "serial", f"{name}, of kind {loop.kind!r}, has a limit")
    several = loop.lanes > 1 and scope.laned is not None
    _require(not several, f"{name} has lanes inside a loop with lanes")


def _instr(instr: Instr, scope: _Scope) -> None:
    if not instr.vars <= scope.vars:
        raise VerifyError(f"depends on {_names(instr.vars - scope.vars)}, not bound")
    for arg in instr.args:
        if arg not in scope.known:
            raise VerifyError(f"its operand {arg!r} is not defined here")
    if instr.op in INSTRS:
        INSTRS[instr.op](instr, scope)
    else:
        _require(instr.op in ops.ELEMENTWISE, "no op of the scalar level")
        _check_op(instr.op, [a.dtype for a in instr.args], instr.dtype, instr.attr)
        if instr.op in (ops.CAST, ops.BITCAST):
            _require(instr.attr is instr.args[0].dtype, f"its source dtype is not {instr.attr}")
    for arg in instr.args:
        if not arg.vars <= instr.vars:
            raise VerifyError(f"its operands depend on {_names(arg.vars - instr.vars)} too")
    scope.known.add(instr)


def _const(instr: Instr, scope: _Scope) -> None:
    _require(0 <= instr.attr < 1 << instr.dtype.bits, f"bits {instr.attr} do not fit its dtype")


def _load(instr: Instr, scope: _Scope) -> None:
    buffer, index = instr.attr
    _require(instr.dtype is buffer.dtype, f"dtype {instr.dtype.name}, not {buffer.dtype.name}")
    readable = not isinstance(buffer, Param) or buffer.role in ("in", "inout")
    _require(readable, "a parameter that is only written is loaded")
    _require(len(instr.args) <= 1, f"{len(instr.args)} gates")
    _access(buffer, index, instr.args[0] if instr.args else None, scope)
    _require(index.vars <= instr.vars, "its index depends on more variables than it says")


def _index_value(instr: Instr, scope: _Scope) -> None:
    _require(instr.dtype.is_int, f"an index of dtype {instr.dtype.name}")
    _index(instr.attr, scope)
    _require(instr.attr.vars <= instr.vars, "it depends on more variables than it says")


def _result(instr: Instr, scope: _Scope) -> None:
    acc, part = instr.attr
    _require(acc in scope.known, f"accumulator {acc.name} is not declared here")
    _require(acc in scope.updated, f"accumulator {acc.name} has not been updated")
    _require(part == 0 or (part == 1 and acc.kind == "argmax"), f"part {part} of a {acc.kind}")
    right = instr.dtype.is_int if part else instr.dtype is acc.dtype
    _require(right, f"dtype {instr.dtype.name}")
    between = scope.loops[scope.declared_at[acc] :]
    running = all(loop.kind in ("serial", "unroll") and loop.lanes == 1 for loop in between)
    _require(running, f"accumulator {acc.name} is read inside a parallel loop")
    if not between:
        scope.read.add(acc)


def _declare(declare: Declare, scope: _Scope) -> None:
    acc = declare.acc
    _require(acc not in scope.known, "declared twice")
    alone = all(other.name != acc.name for other in scope.declared_at)
    _require(alone, "another accumulator of this name is in use")
    _require(acc.kind in ops.REDUCE_KINDS, f"kind {acc.kind!r}")
    _require(acc.dtype is not dtypes.bool_, "an accumulator of bool")
    exact = acc.kind in ("max", "argmax") or accumulator(acc.dtype) is acc.dtype
    _require(exact, f"{acc.dtype.name} accumulates in {accumulator(acc.dtype).name}")
    scope.known.add(acc)
    scope.declared_at[acc] = len(scope.loops)


def _update(update: Update, scope: _Scope) -> None:
    acc = update.acc
    _require(acc in scope.known, "not declared here")
    _require(acc not in scope.read, "updated after its result was read")
    wanted = 2 if acc.kind == "argmax" else 1
    _require(len(update.values) == wanted, f"{len(update.values)} values, not {wanted}")
    for value in update.values:
        _require(value in scope.known, f"its value {value!r} is not defined here")
    got = update.values[0].dtype
    _require(got is acc.dtype, f"a value of dtype {got.name}, not {acc.dtype.name}")
    _require(wanted == 1 or update.values[1].dtype.is_int, "its index is no integer")
    between = scope.loops[scope.declared_at[acc] :]
    alone = all(loop.kind in ("serial", "unroll") for loop in between)
    _require(alone, "updated by all iterations of a parallel loop at once")
    scope.updated.add(acc)


def _store(store: Store, scope: _Scope) -> None:
    target, index, gate = store.target, store.index, store.gate
    writable = not isinstance(target, Param) or target.role != "in"
    _require(writable, "a parameter that is only read is stored to")
    _require(store.value in scope.known, f"its value {store.value!r} is not defined here")
    right = store.value.dtype is target.dtype
    _require(right, f"a value of dtype {store.value.dtype.name}, not {target.dtype.name}")
    _access(target, index, gate, scope)
    if isinstance(target, Param) and target.role == "error":
        return  # any of the iterations that found an error may say so
    chosen = index.vars | (gate.vars if gate is not None else frozenset())
    for loop in scope.loops:
        if loop.var.extent == 1 or not _shares(target, loop):
            continue
        alone = loop.var in (index.vars if loop.lanes > 1 else chosen)
        _require(alone, f"all iterations of {loop.var.name} store to one address")


def _shares(target: Param | Array, loop: Loop) -> bool:
    """Do iterations of ``loop`` that may run at the same time see one ``target``?"""
    if loop.lanes > 1:
        return True
    if isinstance(target, Array):
        return loop.kind == "local" and target.space == "local"
    return loop.kind in ("grid", "local")


def _allocate(allocate: Allocate, scope: _Scope) -> None:
    array = allocate.array
    _require(array.space in ("private", "local"), f"space {array.space!r}")
    _require(array.size > 0, "no elements")
    _require(scope.laned is None, "one array for all lanes")
    in_grid = [loop.kind for loop in scope.loops] == ["grid"]
    _require(array.space != "local" or in_grid, "local memory that does not belong to a group")
    scope.known.add(array)


def _barrier(barrier: Barrier, scope: _Scope) -> None:
    local = any(loop.kind == "local" for loop in scope.loops)
    _require(local, "there is no work-group here")
    _require(scope.laned is None, "inside a loop with lanes")


def _access(buffer: Param | Array, index: Index, gate: Instr | None, scope: _Scope) -> None:
    _require(buffer in scope.known, f"{buffer.name} is not known here")
    _index(index, scope)
    if gate is not None:
        _require(gate in scope.known, f"its gate {gate!r} is not defined here")
        _require(gate.dtype is dtypes.bool_, f"its gate has dtype {gate.dtype.name}")
        return
    inside = index.lo >= 0 and index.hi < buffer.size
    _require(inside, f"index {index.lo} .. {index.hi} leaves its {buffer.size} elements")


def _index(index: Index, scope: _Scope) -> None:
    if not index.vars <= scope.vars:
        raise VerifyError(f"its index needs {_names(index.vars - scope.vars)}")
    for atom, _ in index.terms:
        if isinstance(atom, Opaque):
            _require(atom.value in scope.known, f"{atom.name} in its index is not defined here")
            _require(atom.value.dtype.is_int, f"{atom.name} in its index is no integer")
        elif isinstance(atom, Quotient | Remainder):
            _index(atom.x, scope)


def _names(variables: Iterable[Var]) -> str:
    return ", ".join(sorted(var.name for var in variables))


INSTRS: dict[Op, Callable[[Instr, _Scope], None]] = {
    ops.CONST: _const,
    ops.LOAD: _load,
    INDEX: _index_value,
    RESULT: _result,
}
STATEMENTS: dict[type, Callable[..., None]] = {
    Loop: _loop,
    Instr: _instr,
    Declare: _declare,
    Update: _update,
    Store: _store,
    Allocate: _allocate,
    Barrier: _barrier,
}
