"""LLVM IR text under construction: operands, blocks, loops and reduction variables of one kernel.

An operand is a string, ``%v7`` or a constant; its type is known to whoever asks for an instruction.
The class never decides what an op means (backend.py) nor how the text is compiled (compiler.py).

The builder, for everything that writes IR::

    y = frame.op(f"fadd float {x}, {x}")              # appends "%v7 = fadd float ...", gives "%v7"
    frame.line("store float %v7, ptr %p, align 4")    # an instruction without a result
    frame.type(float32, 16)                           # "<16 x float>"
    frame.splat(float32, 16, 0.5)                     # "splat (float 0x3FE0000000000000)"
    frame.call("float", "llvm.sqrt.f32", ("float", x))      # declares the function, then calls it
    frame.declare_intrinsic("float @llvm.fabs.f32(float)")
    for i in frame.count("0", "%n", 4): ...           # i = 0, 4, ... while i + 4 <= n
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from coregrad.dtypes import DType
from coregrad.errors import VerifyError
from coregrad.hookspecs import Header
from coregrad.ir.kernel import Array
from coregrad_cpu.llvm import words

# Every kernel has this name and signature, so that equal programs have equal texts.
ENTRY = "void @kernel(ptr %args, i64 %chunk0, i64 %chunk1)"
CHUNK = 64  # a grid loop with lanes is cut at multiples of this many elements
SMALL = 16384  # instructions of a whole launch that take less time than a few of compiling
ZERO = "@zero"  # where a gated-off load reads its 0
ZEROS = 64  # bytes that stand there


class Frame:
    """One kernel: a builder, and the contract's frame on top of it.

    ``work`` estimates the instructions of one grid iteration and ``step`` is the multiple at which
    the grid may be cut; both, with ``grid`` where the program's own grid is not the header's, are
    written into the text's first line, from which the device divides a launch into chunks, and
    with them whether the whole launch is ``small``.
    """

    def __init__(self, header: Header, attributes: str = "") -> None:
        self.header = header
        self.grid: int | None = None
        self.work = 0.0
        self.step = 1
        self.attributes = attributes
        self.block = "entry"
        self.names = {p.name: f"%b{i}" for i, p in enumerate(header.params)}
        self.grid_index: str | None = None
        self.streams = False
        self._lines: list[str] = []
        self._entry: list[str] = []
        self._declared: set[str] = set()
        self._globals: set[str] = set()
        self._functions: list[str] = []
        self._variables: dict[str, tuple[str, str]] = {}
        self._ends: dict[str, int | str] = {}
        self._products: dict[str, tuple[list[str], int]] = {}
        self._scalars: dict[str, str] = {}
        self._multiples: dict[str, int] = {}
        self._depths: dict[str, int] = {}  # loops open when a value was made
        self._loops: list[int] = []  # the line before which each open loop begins
        self._ahead: dict[int, list[str]] = {}  # what was put there later
        self._weight = 1.0
        self._count = 0

    # -- the builder ---------------------------------------------------------------------------

    def fresh(self, prefix: str) -> str:
        """A name that nothing else in this kernel has."""
        self._count += 1
        return f"{prefix}{self._count}"

    def line(self, text: str) -> None:
        """Append an instruction that has no result."""
        self._lines.append("  " + text)

    def op(self, text: str) -> str:
        """Append an instruction; the operand that names its result."""
        name = self.fresh("%v")
        if text.startswith("fmul "):
            self._products[name] = self._lines, len(self._lines)
        self._lines.append(f"  {name} = {text}")
        self._depths[name] = len(self._loops)
        self.work += self._weight
        return name

    def allow_fusion(self, value: str) -> None:
        """If ``value`` is a product, let the sum it is added to absorb it: both must agree."""
        if value in self._products:
            lines, at = self._products.pop(value)
            lines[at] = lines[at].replace("= fmul ", "= fmul contract ", 1)

    def multiple(self, value: str) -> int:
        """A number that an i64 is surely a multiple of; 0 is one of every number."""
        return abs(int(value)) if _is_number(value) else self._multiples.get(value, 1)

    def note_multiple(self, value: str, of: int) -> None:
        """Tell what an i64 is a multiple of, for :meth:`multiple`."""
        self._multiples[value] = of

    def charge(self, instructions: float) -> None:
        """Count instructions that the text does not show (a library call, a slow access)."""
        self.work += self._weight * instructions

    def entry(self, text: str, prefix: str = "%a") -> str:
        """Append an instruction to the function's first block: where stack memory belongs."""
        name = self.fresh(prefix)
        self._entry.append(f"  {name} = {text}")
        return name

    def ahead(self, value: str) -> Iterator[None]:
        """``for _ in frame.ahead(x):`` writes the body before the innermost loop, if ``x`` is known
        there: for what depends on nothing else. (LLVM itself hoists only what it thinks dear.)"""
        if self._depths.get(value, len(self._loops)) >= len(self._loops):
            yield
            return
        here, self._lines = self._lines, self._ahead.setdefault(self._loops[-1], [])
        yield
        self._lines = here

    def label(self, name: str) -> None:
        """Begin a basic block; the one before must have been ended by a branch."""
        self._lines.append(f"{name}:")
        self.block = name

    def type(self, dtype: DType, lanes: int) -> str:
        """The LLVM type of a value."""
        return words.type_of(dtype, lanes)

    def splat(self, dtype: DType, lanes: int, value: float) -> str:
        """A constant operand."""
        return words.splat(dtype, lanes, value)

    def declare_intrinsic(self, signature: str) -> None:
        """Declare a function once: ``"float @llvm.fabs.f32(float)"``."""
        self._declared.add(signature)

    def call(self, result: str, name: str, *arguments: tuple[str, str], flags: str = "") -> str:
        """Declare and call a function; an argument is (type, operand)."""
        types = ", ".join(kind for kind, _ in arguments)
        self.declare_intrinsic(f"{result} @{name}({types})")
        operands = ", ".join(f"{kind} {operand}" for kind, operand in arguments)
        text = f"call {flags} {result} @{name}({operands})".replace("  ", " ")
        if result != "void":
            return self.op(text)
        self.line(text)
        return ""

    def constant_data(self, text: str) -> None:
        """Add a module-level definition: ``"@zero = internal constant ..."``."""
        self._globals.add(text)

    def function(self, text: str) -> None:
        """Add a whole function definition to the module (a micro-kernel to call)."""
        if text not in self._functions:
            self._functions.append(text)

    def count(self, start: int | str, stop: int | str, step: int = 1) -> Iterator[str]:
        """A loop over ``start, start + step, ...`` while a whole step fits below ``stop``.

        It is tested at the bottom, behind a guard where it may run zero times. :meth:`after`
        tells where it ended.
        """
        yield from self._count_from(self.fresh("loop"), start, stop, step)

    def _count_from(self, name: str, start: int | str, stop: int | str, step: int) -> Iterator[str]:
        self._ends[name] = start
        known = isinstance(start, int) and isinstance(stop, int)
        if isinstance(start, int) and isinstance(stop, int) and start + step > stop:
            return
        head, latch, done = (self.fresh(p) for p in ("body", "latch", "done"))
        before = self.block
        self._loops.append(len(self._lines))
        if known:
            self.line(f"br label %{head}")
        else:
            first = self.op(f"add i64 {start}, {step}")
            enough = self.op(f"icmp sle i64 {first}, {stop}")
            self.line(f"br i1 {enough}, label %{head}, label %{done}")
        self.label(head)
        index, following = self.fresh("%i"), self.fresh("%n")
        self.line(f"{index} = phi i64 [ {start}, %{before} ], [ {following}, %{latch} ]")
        self.note_multiple(index, math.gcd(self.multiple(str(start)), step))
        yield index
        self._loops.pop()
        self.line(f"br label %{latch}")
        self.label(latch)
        self.line(f"{following} = add nuw nsw i64 {index}, {step}")
        if step == 1:
            more = self.op(f"icmp slt i64 {following}, {stop}")
        else:
            more = self.op(
                f"icmp sle i64 {self.op(f'add nuw nsw i64 {following}, {step}')}, {stop}"
            )
        self.line(f"br i1 {more}, label %{head}, label %{done}")
        self.label(done)
        self._ends[name] = following
        if not known:
            end = f"phi i64 [ {start}, %{before} ], [ {following}, %{latch} ]"
            self._ends[name] = self.op(end)

    def condition(self, condition: str) -> Iterator[None]:
        """``for _ in frame.condition(c):`` writes the body behind a branch on the i1 ``c``."""
        then, done = self.fresh("then"), self.fresh("done")
        self.line(f"br i1 {condition}, label %{then}, label %{done}")
        self.label(then)
        yield
        self.line(f"br label %{done}")
        self.label(done)

    # -- the contract's frame ------------------------------------------------------------------

    def loop(self, name: str, extent: int, kind: str, lanes: int, resume: bool) -> Iterator[str]:
        """Open a loop, yield its index, close it when resumed."""
        if kind == "grid":
            yield from self._grid_loop(name, extent, lanes, resume)
            return
        start = self._ends[name] if resume else 0
        if kind == "unroll" and isinstance(start, int):
            self._ends[name] = start + (extent - start) // lanes * lanes
            yield from (str(i) for i in range(start, extent - lanes + 1, lanes))
            return
        left = extent - start if isinstance(start, int) else extent
        outside, self._weight = self._weight, self._weight * (left // lanes)
        yield from self._count_from(name, start, extent, lanes)
        if not resume:
            self._ends[name] = extent // lanes * lanes  # known without asking the loop
        self._weight = outside

    def loop_until(
        self, name: str, extent: int, limit: str, lanes: int, resume: bool
    ) -> Iterator[str]:
        """A serial loop that ends with the step that reaches ``limit``."""
        whole = extent // lanes * lanes
        stop = self.call("i64", "llvm.smin.i64", ("i64", limit), ("i64", str(extent)))
        if lanes > 1:
            stop = self.op(f"and i64 {self.op(f'add i64 {stop}, {lanes - 1}')}, {-lanes}")
            stop = self.call("i64", "llvm.smin.i64", ("i64", stop), ("i64", str(whole)))
        start = self._ends[name] if resume else 0
        outside, self._weight = self._weight, self._weight * max(1, extent // lanes)
        yield from self._count_from(name, start, stop, lanes)
        self._ends[name] = whole
        self._weight = outside

    def _grid_loop(self, name: str, extent: int, lanes: int, resume: bool) -> Iterator[str]:
        """Chunks are cut at multiples of ``step``, so only the last one has a remainder."""
        if lanes > 1:
            self.step = max(self.step, CHUNK, lanes)
            self.note_multiple("%chunk0", CHUNK)
        if (resume and self._ends[name] == extent) or extent < lanes:
            self._ends[name] = "%chunk0"
            return
        start = self._ends[name] if resume else "%chunk0"
        remains = resume and start != "%chunk0"
        outside, self._weight = self._weight, 0.0 if remains else 1.0 / lanes
        for index in self._count_from(name, start, "%chunk1", lanes):
            self.grid_index = index
            yield index
        self.grid_index = None
        self._weight = outside
        if extent % lanes == 0:
            self._ends[name] = extent

    def declare(self, name: str, dtype: DType, initial: str, lanes: int) -> None:
        """Make a variable; ``initial`` has one lane. The sroa pass puts it into registers."""
        kind = self.type(dtype, lanes)
        address = self.entry(f"alloca {kind}", "%var")
        self._variables[name] = address, kind
        self.assign(name, self.broadcast(initial, dtype, lanes))

    def read(self, name: str) -> str:
        """The variable's value here."""
        address, kind = self._variables[name]
        return self.op(f"load {kind}, ptr {address}")

    def assign(self, name: str, value: str) -> None:
        """Give the variable a new value."""
        address, kind = self._variables[name]
        self.line(f"store {kind} {value}, ptr {address}")

    def allocate(self, array: Array) -> None:
        """Scratch memory: on the stack of the thread that runs the grid iteration."""
        size = max(array.size, 1)
        self.names[array.name] = self.entry(
            f"alloca [{size} x {words.stored(array.dtype)}], align 64"
        )

    def barrier(self) -> None:
        """Nothing to wait for: a work-group here is one thread."""

    def broadcast(self, value: str, dtype: DType, lanes: int) -> str:
        """A one-lane value in every lane."""
        if lanes == 1:
            return value
        scalar, kind = words.SCALAR[dtype], self.type(dtype, lanes)
        if not value.startswith("%"):
            return words.splat_text(scalar, lanes, value)
        first = self.op(f"insertelement {kind} poison, {scalar} {value}, i64 0")
        spread = self.shuffle(first, "poison", kind, [0] * lanes)
        self._scalars[spread] = value
        return spread

    def scalar(self, value: str) -> str | None:
        """The one-lane value that :meth:`broadcast` spread to make this one, if it did."""
        return self._scalars.get(value)

    def ramp(self, base: str, stride: int, dtype: DType, lanes: int) -> str:
        """base, base + stride, base + 2*stride ...: an integer in every lane."""
        if lanes == 1:
            return base
        scalar, kind = words.SCALAR[dtype], self.type(dtype, lanes)
        steps = ", ".join(
            f"{scalar} {_wrapped(lane * stride, dtype.bits)}" for lane in range(lanes)
        )
        return self.op(f"add {kind} {self.broadcast(base, dtype, lanes)}, <{steps}>")

    def split(self, value: str, dtype: DType, lanes: int) -> tuple[str, str]:
        """The lower and the upper half of the lanes."""
        kind, half = self.type(dtype, lanes), lanes // 2
        if half == 1:
            return self.extract(value, kind, 0), self.extract(value, kind, 1)
        low = self.shuffle(value, "poison", kind, list(range(half)))
        return low, self.shuffle(value, "poison", kind, list(range(half, lanes)))

    def extract(self, value: str, kind: str, lane: int) -> str:
        """One lane of a vector of type ``kind``."""
        return self.op(f"extractelement {kind} {value}, i64 {lane}")

    def shuffle(self, a: str, b: str, kind: str, lanes: Sequence[int]) -> str:
        """Lanes picked from the two vectors; zeroinitializer for lane 0 everywhere."""
        picks = ", ".join(f"i32 {lane}" for lane in lanes)
        mask = f"<{picks}>" if any(lanes) else "zeroinitializer"
        return self.op(f"shufflevector {kind} {a}, {kind} {b}, <{len(lanes)} x i32> {mask}")

    def zero(self) -> str:
        """The address of :data:`ZEROS` zero bytes."""
        self.constant_data(f"{ZERO} = internal constant [{ZEROS} x i8] zeroinitializer, align 64")
        return ZERO

    def finish(self) -> str:
        """The module's text: what is printed, hashed and compiled."""
        grid = "" if self.grid is None else f" grid={self.grid}"
        buffers = len(self.header.params)
        iterations = self.header.grid if self.grid is None else self.grid
        small = " small=1" if self.work * iterations < SMALL else ""
        parts = [
            f"; coregrad buffers={buffers} step={self.step} work={self.work:.4g}{grid}{small}",
            *sorted(self._globals),
            *sorted(f"declare {signature}" for signature in self._declared),
            *self._functions,
            f"define {ENTRY} #0 {{",
            "entry:",
            *self._load_arguments(),
            *self._entry,
            *self._body(),
            *self._fence(),
            "  ret void",
            "}",
            f"attributes #0 = {{ nounwind {self.attributes}}}",
            "!0 = !{i32 1}",
        ]
        return "\n".join(parts) + "\n"

    def _load_arguments(self) -> Iterator[str]:
        """Buffer addresses carry no alias facts: nothing here moves accesses across each other."""
        for i in range(len(self.header.params)):
            yield f"  %p{i} = getelementptr ptr, ptr %args, i64 {i}"
            yield f"  %b{i} = load ptr, ptr %p{i}, align 8"

    def _body(self) -> Iterator[str]:
        for number, line in enumerate(self._lines):
            yield from self._ahead.get(number, ())
            yield line

    def _fence(self) -> Iterator[str]:
        """Streaming stores are weakly ordered: order them before the chunk counts as done."""
        if self.streams:
            yield "  fence seq_cst"


def _is_number(value: str) -> bool:
    return value.removeprefix("-").isdigit()


def hints(text: str) -> dict[str, float]:
    """What the first line of a finished text says: buffers, step, work, maybe grid and small."""
    first = text.partition("\n")[0]
    if not first.startswith("; coregrad "):
        raise VerifyError(
            "compile: the program is not a finished frame; its first line lacks hints"
        )
    return {key: float(value) for key, value in re.findall(r"(\w+)=([0-9.e+]+)", first)}


def _wrapped(value: int, bits: int) -> int:
    """A value as LLVM accepts it for a signed integer of this width."""
    half = 1 << (bits - 1)
    return (value + half) % (2 * half) - half
