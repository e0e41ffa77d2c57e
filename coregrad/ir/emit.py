"""Walk a kernel, or a fragment of one, through a backend's hooks; it never knows which backend.

The 25 hooks are the only way a kernel becomes code. What the walk adds to the kernel's statements
is index arithmetic (int64, each piece emitted in the outermost block where it can stand) and lanes:
a loop with lanes is emitted twice, once for whole vectors and once for the rest, and a value has
lanes only if it depends on that loop's variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from coregrad import dtypes
from coregrad.dtypes import DType, from_bits
from coregrad.errors import VerifyError
from coregrad.ir.index import Atom, Index, Opaque, Quotient, Remainder, Var
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
    conjuncts,
    walk,
)
from coregrad.ir.legalize import needs
from coregrad.ir.ops import CONST, LOAD, WHERE
from coregrad.ir.target import Frame, Header, Hooks, Limits

Value: TypeAlias = tuple[Any, bool]  # a backend's value, and whether it has lanes
Term: TypeAlias = tuple[Atom, int]
UNBOUND = 1 << 30  # the depth of what no open block knows yet


class Beginner(Protocol):
    """What is asked of a backend besides its hooks (and, optionally, ``contraction``)."""

    def begin_kernel(self, header: Header, buffers: Sequence[Any] | None) -> Frame:
        """Start a kernel."""


def emit(
    kernel: Kernel,
    backend: Beginner,
    hooks: Hooks,
    limits: Limits,
    buffers: Sequence[Any] | None = None,
) -> Any:
    """The backend's program for ``kernel``; a backend of style eager has run it on ``buffers``."""
    header = Header(kernel.name, kernel.params, kernel.grid)
    frame = backend.begin_kernel(header, buffers)
    emitter = Emitter(hooks, frame, limits)
    claim = getattr(backend, "contraction", None)
    if kernel.contraction is not None and claim is not None:
        program = claim(kernel, emitter)
        if program is not None:
            return program
    emitter.kernel(kernel)
    return frame.finish()


@dataclass(eq=False)
class Bindings:
    """What is known at one place of a kernel.

    ``indices`` gives loop variables their index, an int64 value with one lane. At most one
    variable, ``laned``, grows by 1 per lane: its index is that of lane 0, and ``aligned`` says
    that this is always a multiple of the lanes. ``values`` holds what instructions evaluate to,
    with whether it has lanes: put a contraction's sum there under its RESULT. ``holds`` are gates
    that are known to hold.
    """

    indices: dict[Var, Any]
    laned: Var | None = None
    values: dict[Instr, Value] = field(default_factory=dict)
    aligned: bool = False
    lanes: int = 1
    outer: Bindings | None = None
    depth: int = 0
    parts: dict[Any, Any] = field(default_factory=dict)  # pieces of index arithmetic, spread values
    holds: frozenset[Instr] = frozenset()

    def inside(self, indices: dict[Var, Any], lanes: int | None = None) -> Bindings:
        """The bindings of a block within this one."""
        return Bindings(
            indices,
            self.laned,
            aligned=self.aligned,
            lanes=self.lanes if lanes is None else lanes,
            outer=self,
            depth=self.depth + 1,
            holds=self.holds,
        )

    def chain(self) -> Iterator[Bindings]:
        """This block and those around it."""
        at: Bindings | None = self
        while at is not None:
            yield at
            at = at.outer

    def value(self, instr: Instr) -> Value | None:
        """What ``instr`` was evaluated to, here or further out."""
        at: Bindings | None = self
        while at is not None:
            if instr in at.values:
                return at.values[instr]
            at = at.outer
        return None

    def part(self, key: Any) -> Any:
        """What was emitted under ``key``, here or further out; None if nothing was."""
        at: Bindings | None = self
        while at is not None:
            if key in at.parts:
                return at.parts[key]
            at = at.outer
        return None

    def index(self, var: Var) -> Any:
        """The index of a loop variable."""
        for at in self.chain():
            if var in at.indices:
                return at.indices[var]
        raise VerifyError(f"emit: loop variable {var.name} has no value here")

    def level(self, atom: Atom) -> int:
        """The depth of the outermost block where ``atom`` can be computed, or UNBOUND."""
        if isinstance(atom, Var):
            return next((at.depth for at in self.chain() if atom in at.indices), UNBOUND)
        if isinstance(atom, Opaque):
            return next((at.depth for at in self.chain() if atom.value in at.values), UNBOUND)
        return max((self.level(inner) for inner, _ in atom.x.terms), default=0)


class Emitter:
    """Emits kernels and fragments into one frame."""

    def __init__(self, hooks: Hooks, frame: Frame, limits: Limits) -> None:
        self.hooks = hooks
        self.frame = frame
        self.limits = limits
        self.index_dtype = dtypes.int64 if limits.index_bits == 64 else dtypes.int32
        self._plan: dict[Accumulator, _Plan] = {}
        self._variables: dict[Accumulator, list[_Variable]] = {}
        self._declared: dict[Accumulator, int] = {}  # lanes of the block that declares it
        self._statements: dict[type, Callable[[Any, Bindings], None]] = {
            Instr: self._instr,
            Loop: self._loop,
            Declare: self._declare,
            Update: self._update,
            Store: self._store,
            Allocate: self._allocate,
            Barrier: self._barrier,
        }

    def kernel(self, kernel: Kernel) -> None:
        """Emit every statement of ``kernel``."""
        self._plan = _plans(kernel.body)
        self._block(kernel.body, Bindings({}))

    def value(self, instr: Instr, bindings: Bindings, lanes: int) -> Any:
        """Evaluate ``instr`` and all it needs at the current position: a value of ``lanes`` lanes.

        Nothing is remembered from one call to the next, so a caller may stand in another block.
        """
        at = bindings.inside({}, lanes)
        self._evaluate(instr, at)
        return self._spread(instr, at)

    def store(self, store: Store, bindings: Bindings, lanes: int) -> None:
        """Emit a store, and all its value, index and gate need, at the current position."""
        self._store(store, bindings.inside({}, lanes))

    # ---- statements ----------------------------------------------------------------------------

    def _block(self, body: list[Stmt], at: Bindings) -> None:
        for stmt in body:
            self._statements[type(stmt)](stmt, at)

    def _instr(self, instr: Instr, at: Bindings) -> None:
        if instr.op is not CONST:  # constants are emitted where they are used
            self._evaluate(instr, at)

    def _loop(self, loop: Loop, at: Bindings) -> None:
        for index in _indices(loop):
            self._hoist(index, at)
        if self.hooks.style == "eager" and is_ordered(loop):
            for i in range(loop.var.extent):
                self._block(loop.body, at.inside({loop.var: self._const(i, at)}))
            return
        for lanes, resume in _passes(loop):
            for index in self._iterations(loop, lanes, resume, at):
                inner = at.inside({loop.var: index})
                inner.holds |= self._entered(loop, at)
                if lanes > 1:
                    inner.laned, inner.lanes, inner.aligned = loop.var, lanes, True
                self._block(loop.body, inner)

    def _entered(self, loop: Loop, at: Bindings) -> frozenset[Instr]:
        """The gates that hold inside a loop, which ends before it begins where they do not."""
        limit = loop.limit
        if limit is None or limit.op is not WHERE or self.hooks.style == "eager":
            return frozenset()
        gate, _, otherwise = limit.args
        ends_at_once = otherwise.op is CONST and otherwise.attr == 0
        exact = loop.lanes == 1 and at.lanes == 1 and hasattr(self.frame, "loop_until")
        return frozenset(conjuncts(gate)) if exact and ends_at_once else frozenset()

    def _iterations(self, loop: Loop, lanes: int, resume: bool, at: Bindings) -> Iterator[Any]:
        """The loop's indices; only those before its limit, where the frame can end a loop early
        and the limit is one number here."""
        name, extent = loop.var.name, loop.var.extent
        until = getattr(self.frame, "loop_until", None)
        if loop.limit is not None and until is not None:
            limit, laned = self._evaluate(loop.limit, at)
            if not laned:
                return until(name, extent, limit, lanes, resume)  # type: ignore[no-any-return]
        return self.frame.loop(name, extent, loop.kind, lanes, resume)

    def _declare(self, declare: Declare, at: Bindings) -> None:
        acc = declare.acc
        plan = self._plan.get(acc, _Plan())
        widths = [at.lanes] if at.lanes > 1 else sorted(plan.widths, reverse=True) or [1]
        self._variables[acc], self._declared[acc] = [], at.lanes
        for width in widths:
            name = acc.name if width == at.lanes else f"{acc.name}_x{width}"
            variable = _Variable(width, [(name, acc.dtype)])
            value = self._constant(_neutral(acc), acc.dtype, 1)
            self.frame.declare(name, acc.dtype, value, width)
            if acc.kind == "argmax":
                # An index after all others, so that the first element wins, be it -inf.
                last = self._constant(plan.index.max, plan.index, 1)
                self.frame.declare(f"{name}_index", plan.index, last, width)
                variable.parts.append((f"{name}_index", plan.index))
            self._variables[acc].append(variable)

    def _update(self, update: Update, at: Bindings) -> None:
        acc = update.acc
        variable = next(v for v in self._variables[acc] if v.lanes == at.lanes)
        values = []
        for instr in update.values:
            self._evaluate(instr, at)
            value = self._spread(instr, at)
            if self.hooks.style == "eager":  # counts once per iteration, also where it is constant
                value = self.frame.broadcast(value, instr.dtype, 1)
            values.append(value)
        folded = self._fold(acc, self._read(variable), values, at.lanes)
        for (name, _), value in zip(variable.parts, folded, strict=True):
            self.frame.assign(name, value)
        at.parts.pop(acc, None)

    def _store(self, store: Store, at: Bindings) -> None:
        _, value_laned = self._evaluate(store.value, at)
        gate_laned = store.gate is not None and self._evaluate(store.gate, at)[1]
        index, stride = self._index(store.index, at)
        lanes = at.lanes if value_laned or gate_laned or stride != 0 else 1
        value = self._spread(store.value, at) if lanes > 1 else self._evaluate(store.value, at)[0]
        gate = None
        if store.gate is not None:
            gate = self._spread(store.gate, at) if lanes > 1 else self._evaluate(store.gate, at)[0]
        dtype = store.target.dtype
        self.hooks["store"](self.frame, store.target, index, stride, value, gate, dtype, lanes)

    def _allocate(self, allocate: Allocate, at: Bindings) -> None:
        self.frame.allocate(allocate.array)

    def _barrier(self, barrier: Barrier, at: Bindings) -> None:
        self.frame.barrier()

    # ---- values --------------------------------------------------------------------------------

    def _evaluate(self, root: Instr, at: Bindings) -> Value:
        stack = [root]
        while stack:
            instr = stack[-1]
            if at.value(instr) is not None:
                stack.pop()
                continue
            missing = [needed for needed in needs(instr) if at.value(needed) is None]
            if missing:
                stack += missing
                continue
            at.values[instr] = self._emit(instr, at)
            stack.pop()
        found = at.value(root)
        assert found is not None
        return found

    def _emit(self, instr: Instr, at: Bindings) -> Value:
        """One instruction, all it needs having been emitted."""
        if instr.op is CONST:
            return self._constant(from_bits(instr.attr, instr.dtype), instr.dtype, 1), False
        if instr.op is LOAD:
            return self._load(instr, at)
        if instr.op is INDEX:
            return self._visible_index(instr, at)
        if instr.op is RESULT:
            return self._result(instr, at)
        laned = any(self._evaluate(a, at)[1] for a in instr.args)
        lanes = at.lanes if laned else 1
        args = [self._spread(a, at) if laned else self._evaluate(a, at)[0] for a in instr.args]
        if instr.attr is not None:  # the source dtype of a cast, the quarter of a sine
            args.append(instr.attr)
        dtype = instr.args[0].dtype if instr.op.result == "bool" else instr.dtype
        return self._hook(instr.op.name, *args, dtype, lanes), laned

    def _load(self, instr: Instr, at: Bindings) -> Value:
        buffer, position = instr.attr
        index, stride = self._index(position, at)
        gate, laned = None, stride != 0
        if instr.args and not conjuncts(instr.args[0]) <= at.holds:
            gate, gate_laned = self._evaluate(instr.args[0], at)
            laned = laned or gate_laned
            if laned:
                gate = self._spread(instr.args[0], at)
        lanes = at.lanes if laned else 1
        return self._hook("load", buffer, index, stride, gate, instr.dtype, lanes), laned

    def _visible_index(self, instr: Instr, at: Bindings) -> Value:
        value, stride = self._index(instr.attr, at)
        laned = stride != 0
        lanes = at.lanes if laned else 1
        if stride:
            value = self.frame.ramp(value, stride, self.index_dtype, lanes)
        if instr.dtype is not self.index_dtype:
            value = self._hook("cast", value, self.index_dtype, instr.dtype, lanes)
        return value, laned

    def _result(self, instr: Instr, at: Bindings) -> Value:
        acc, part = instr.attr
        folded = at.parts.get(acc)
        if folded is None:
            folded = at.parts[acc] = self._total(acc)
        return folded[part], self._declared[acc] > 1

    def _total(self, acc: Accumulator) -> list[Any]:
        """An accumulator's variables, folded into one of as many lanes as its own block has."""
        total: list[Any] | None = None
        for variable in self._variables[acc]:
            values, lanes = self._read(variable), variable.lanes
            while lanes > self._declared[acc]:
                halves = [
                    self.frame.split(value, dtype, lanes)
                    for value, (_, dtype) in zip(values, variable.parts, strict=True)
                ]
                lanes //= 2
                lower, upper = [h[0] for h in halves], [h[1] for h in halves]
                values = self._fold(acc, lower, upper, lanes)
            total = values if total is None else self._fold(acc, total, values, lanes)
        assert total is not None
        return total

    def _read(self, variable: _Variable) -> list[Any]:
        return [self.frame.read(name) for name, _ in variable.parts]

    def _fold(self, acc: Accumulator, total: list[Any], values: list[Any], lanes: int) -> list[Any]:
        if acc.kind == "argmax":
            pair = self._hook("reduce", "argmax", tuple(total), tuple(values), acc.dtype, lanes)
            return list(pair)
        return [self._hook("reduce", acc.kind, total[0], values[0], acc.dtype, lanes)]

    def _spread(self, instr: Instr, at: Bindings) -> Any:
        """The value of an evaluated instruction in every lane."""
        value, laned = self._evaluate(instr, at)
        if laned or at.lanes == 1:
            return value
        if instr.op is CONST:
            return self._constant(from_bits(instr.attr, instr.dtype), instr.dtype, at.lanes)
        found = at.part(instr)
        if found is None:
            found = at.parts[instr] = self.frame.broadcast(value, instr.dtype, at.lanes)
        return found

    def _constant(self, value: float, dtype: DType, lanes: int) -> Any:
        return self._hook("const", value, dtype, lanes)

    def _hook(self, op: str, *args: Any) -> Any:
        return self.hooks[op](self.frame, *args)

    # ---- index arithmetic ----------------------------------------------------------------------

    def _index(self, index: Index, at: Bindings) -> tuple[Any, int | None]:
        """The value in lane 0 and its growth per lane, or a value of its own per lane and None."""
        linear: list[tuple[Term, Any]] = []
        vectors: list[Any] = []
        step = 0
        for atom, c in _outer_first(index, at):
            value, atom_step = self._atom(atom, at)
            if atom_step is None:
                vectors.append(self._times(value, c, at.lanes))
            else:
                linear.append(((atom, c), value))
                step += c * atom_step
        base = self._sum(linear, index.const, at)
        if not vectors:
            return base, step
        total = self._in_lanes(base, step, at)
        for vector in vectors:
            total = self._hook("add", total, vector, self.index_dtype, at.lanes)
        return total, None

    def _sum(self, terms: list[tuple[Term, Any]], const: int, at: Bindings) -> Any:
        """The sum of one-lane terms; sums over the outer terms alone may have been hoisted."""
        if not terms:
            return self._const(const, at)
        total: Any = None
        key: tuple[Term, ...] = ()
        for term, value in terms:
            key = (*key, term)
            found = at.part(key)
            if found is None:
                found = self._times(value, term[1], 1)
                if total is not None:
                    found = self._hook("add", total, found, self.index_dtype, 1)
                at.parts[key] = found
            total = found
        if const == 0:
            return total
        return self._hook("add", total, self._const(const, at), self.index_dtype, 1)

    def _times(self, value: Any, c: int, lanes: int) -> Any:
        if c == 1:
            return value
        factor = self._constant(c, self.index_dtype, lanes)
        return self._hook("mul", value, factor, self.index_dtype, lanes)

    def _atom(self, atom: Atom, at: Bindings) -> tuple[Any, int | None]:
        if isinstance(atom, Var):
            return at.index(atom), int(atom is at.laned and at.lanes > 1)
        found: tuple[Any, int | None] | None = at.part(atom)
        if found is None:
            if isinstance(atom, Opaque):
                found = self._opaque(atom, at)
            else:
                found = self._division(atom, at)
            at.parts[atom] = found
        return found

    def _opaque(self, atom: Opaque, at: Bindings) -> tuple[Any, int | None]:
        value, laned = self._evaluate(atom.value, at)
        source: DType = atom.value.dtype
        if source is not self.index_dtype:
            lanes = at.lanes if laned else 1
            value = self._hook("cast", value, source, self.index_dtype, lanes)
        return value, None if laned else 0

    def _division(self, atom: Quotient | Remainder, at: Bindings) -> tuple[Any, int | None]:
        x, step = self._index(atom.x, at)
        if step == 0:
            return self._divided(atom, x, 1), 0
        if step is not None and _one_block(atom, step, at):
            return self._divided(atom, x, 1), step if isinstance(atom, Remainder) else 0
        return self._divided(atom, self._in_lanes(x, step, at), at.lanes), None

    def _divided(self, atom: Quotient | Remainder, x: Any, lanes: int) -> Any:
        """Rounded down, whereas idiv and mod round towards zero."""
        if isinstance(atom, Quotient):
            return self._quotient(atom, x, lanes)
        return self._remainder(atom, x, lanes)

    def _quotient(self, atom: Quotient, x: Any, lanes: int) -> Any:
        dtype, d = self.index_dtype, atom.divisor
        if d & (d - 1) == 0:
            shift = self._constant(d.bit_length() - 1, dtype, lanes)
            return self._hook("shr", x, shift, dtype, lanes)
        divisor = self._constant(d, dtype, lanes)
        quotient = self._hook("idiv", x, divisor, dtype, lanes)
        if atom.x.lo >= 0:
            return quotient
        minus_one = self._constant(-1, dtype, lanes)
        lower = self._hook("add", quotient, minus_one, dtype, lanes)
        negative = self._negative(self._hook("mod", x, divisor, dtype, lanes), lanes)
        return self._hook("where", negative, lower, quotient, dtype, lanes)

    def _remainder(self, atom: Remainder, x: Any, lanes: int) -> Any:
        dtype, d = self.index_dtype, atom.divisor
        if d & (d - 1) == 0:
            return self._hook("and", x, self._constant(d - 1, dtype, lanes), dtype, lanes)
        divisor = self._constant(d, dtype, lanes)
        rest = self._hook("mod", x, divisor, dtype, lanes)
        if atom.x.lo >= 0:
            return rest
        positive = self._hook("add", rest, divisor, dtype, lanes)
        return self._hook("where", self._negative(rest, lanes), positive, rest, dtype, lanes)

    def _negative(self, x: Any, lanes: int) -> Any:
        zero = self._constant(0, self.index_dtype, lanes)
        return self._hook("lt", x, zero, self.index_dtype, lanes)

    def _in_lanes(self, base: Any, step: int | None, at: Bindings) -> Any:
        if step is None:
            return base
        if step == 0:
            return self.frame.broadcast(base, self.index_dtype, at.lanes)
        return self.frame.ramp(base, step, self.index_dtype, at.lanes)

    def _const(self, value: int, at: Bindings) -> Any:
        found = at.part(value)
        if found is None:
            found = at.parts[value] = self._constant(value, self.index_dtype, 1)
        return found

    def _hoist(self, index: Index, at: Bindings) -> None:
        """Before a loop: emit what its indices need that does not depend on the loop."""
        linear: list[tuple[Term, Any]] = []
        for atom, c in _outer_first(index, at):
            if at.level(atom) == UNBOUND:
                if isinstance(atom, Quotient | Remainder):
                    self._hoist(atom.x, at)
                continue
            value, step = self._atom(atom, at)
            if step is not None:
                linear.append(((atom, c), value))
        if linear:
            self._sum(linear, 0, at)


# ---- what the walk asks of a kernel ------------------------------------------------------------


@dataclass
class _Variable:
    """A variable of the frame that holds (some lanes of) an accumulator: its names and dtypes."""

    lanes: int
    parts: list[tuple[str, DType]]


@dataclass
class _Plan:
    """How an accumulator is updated within the block that declares it."""

    widths: set[int] = field(default_factory=set)
    index: DType = dtypes.int64  # of argmax


def _plans(body: list[Stmt]) -> dict[Accumulator, _Plan]:
    plans: dict[Accumulator, _Plan] = {}

    def visit(block: list[Stmt], widths: dict[Accumulator, tuple[int, ...]]) -> None:
        known = dict(widths)  # accumulators declared so far: the lanes they are updated with here
        for stmt in block:
            if isinstance(stmt, Declare):
                known[stmt.acc] = (1,)
                plans[stmt.acc] = _Plan()
            elif isinstance(stmt, Update):
                plans[stmt.acc].widths.update(known[stmt.acc])
                if stmt.acc.kind == "argmax":
                    plans[stmt.acc].index = stmt.values[1].dtype
            elif isinstance(stmt, Loop):
                lanes = tuple(lanes for lanes, _ in _passes(stmt))
                visit(stmt.body, known if lanes == (1,) else dict.fromkeys(known, lanes))

    visit(body, {})
    return plans


def _passes(loop: Loop) -> list[tuple[int, bool]]:
    """(lanes, resume) of each time a loop is opened. A device cuts a grid loop at multiples of 64,
    so that there too only an extent that is no multiple of the lanes leaves a rest."""
    if loop.lanes == 1 or loop.var.extent < loop.lanes:
        return [(1, False)]
    if loop.var.extent % loop.lanes == 0:
        return [(loop.lanes, False)]
    return [(loop.lanes, False), (1, True)]


def _neutral(acc: Accumulator) -> float:
    if acc.kind == "add":
        return 0
    if acc.kind == "mul":
        return 1
    return acc.dtype.min


def _one_block(atom: Quotient | Remainder, step: int, at: Bindings) -> bool:
    """Do all lanes have one quotient? They do where vectors never straddle a multiple of the
    divisor, so that ``x[i % 64]`` with 16 lanes is a contiguous load."""
    if not at.aligned or at.laned is None or step < 1 or atom.x.coefficient(at.laned) != step:
        return False
    unit = step * at.lanes
    others = [c for inner, c in atom.x.terms if inner is not at.laned]
    return all(n % unit == 0 for n in (atom.divisor, atom.x.const, *others))


def _outer_first(index: Index, at: Bindings) -> list[Term]:
    """The terms, those of outer blocks first: a sum over them can be reused further in."""
    if len(index.terms) < 2:
        return list(index.terms)
    return sorted(index.terms, key=lambda term: at.level(term[0]))


def _indices(loop: Loop) -> Iterator[Index]:
    """Every index within a loop."""
    for stmt in walk(loop.body):
        if isinstance(stmt, Store):
            yield stmt.index
        elif isinstance(stmt, Instr) and stmt.op is LOAD:
            yield stmt.attr[1]
        elif isinstance(stmt, Instr) and stmt.op is INDEX:
            yield stmt.attr


# ---- which loops a backend of style eager must run one iteration at a time ---------------------


def is_ordered(loop: Loop) -> bool:
    """Does an iteration see what an earlier one left: a running sum, or memory written before?

    Grid and local loops are parallel by their kind. The answer may be True needlessly.
    """
    if loop.kind in ("grid", "local"):
        return False
    inside = set(walk(loop.body))
    declared = {stmt.acc for stmt in inside if isinstance(stmt, Declare)}
    for stmt in inside:
        if isinstance(stmt, Instr) and stmt.op is RESULT and stmt.attr[0] not in declared:
            return True
    own = {stmt.array for stmt in inside if isinstance(stmt, Allocate)}
    stores: dict[Param | Array, list[tuple[Index, frozenset[Var]]]] = {}
    loads: dict[Param | Array, list[Index]] = {}
    _accesses(loop, frozenset(), stores, loads)
    for target, writes in stores.items():
        if target in own:
            continue
        reads = loads.get(target, [])
        if not reads and len(writes) == 1:
            continue
        if not _independent(writes, reads):
            return True
    return False


def _accesses(
    loop: Loop,
    around: frozenset[Var],
    stores: dict[Param | Array, list[tuple[Index, frozenset[Var]]]],
    loads: dict[Param | Array, list[Index]],
) -> None:
    around |= {loop.var}
    for stmt in loop.body:
        if isinstance(stmt, Loop):
            _accesses(stmt, around, stores, loads)
        elif isinstance(stmt, Store):
            stores.setdefault(stmt.target, []).append((stmt.index, around))
        elif isinstance(stmt, Instr) and stmt.op is LOAD:
            loads.setdefault(stmt.attr[0], []).append(stmt.attr[1])


def _independent(writes: list[tuple[Index, frozenset[Var]]], reads: list[Index]) -> bool:
    """Does every iteration write its own element, and touch none that another one writes?"""
    for index, loops in writes:
        if not is_injective(index, loops):
            return False
        for other in [*reads, *(w for w, _ in writes)]:
            same = (other.terms, other.const) == (index.terms, index.const)
            if not same and other.lo <= index.hi and index.lo <= other.hi:
                return False
    return True


def is_injective(index: Index, loops: Iterable[Var]) -> bool:
    """Does every combination of values of these loop variables give another index? (False: maybe.)

    Sufficient: each appears alone, and its coefficient exceeds what the smaller ones sum up to.
    """
    coefficients = []
    for var in loops:
        if var.extent == 1:
            continue
        c = index.coefficient(var)
        if not c:
            return False
        coefficients.append((abs(c), var.extent))
    reach = 0
    for c, extent in sorted(coefficients):
        if c <= reach:
            return False
        reach += c * (extent - 1)
    return True
