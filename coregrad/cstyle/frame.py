"""A kernel's text under construction: named values, loops, variables, arrays; then one tidy text.

A value is a name and each op is a line that defines one. When the text is finished, values that
nobody uses are dropped, and a value used once, by the very next line, is written into that line:
nothing stands between the two, so nothing changes. It never decides what an op means (hooks.py).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from coregrad.cstyle import routines
from coregrad.cstyle.value import Bounds, Value, narrow
from coregrad.cstyle.words import Words
from coregrad.dtypes import DType, bool_, int64
from coregrad.errors import CompileError, UnsupportedOp, VerifyError
from coregrad.hookspecs import Header
from coregrad.ir.kernel import Array

WIDTH = 96  # columns of a line that values are written into
# What C, OpenCL C, CUDA C++ or Metal keep for themselves, of the words that a kernel, a buffer or a
# loop could be called by.
RESERVED = frozenset(
    """auto bool break case catch char class const constant continue default delete device do double
    else enum event extern false float for global goto half if image inline int kernel local long
    main matrix namespace new not operator or and xor private public register restrict return
    sampler shared short signed sizeof static struct switch template texture this thread threadgroup
    true try typedef union unsigned using vector virtual void volatile while uchar ushort uint ulong
    exp log sin cos sqrt trunc fmod fma""".split()  # noqa: SIM905
)
NAME = re.compile(r"\bv\d+\b")
ELEMENT = re.compile(r"\(\w+ \+ \w+\)\[\d+\]")
PRODUCT = re.compile(r"[\w.]+ \* -?[\w.]+")
FIRST_LINE = re.compile(r"// coregrad kernel (\w+): grid (\d+), threads (\d+)( exact)?\n")
MOST, FEWEST = 256, 64  # threads of a group: every GPU has the first, below the second it idles


@dataclass(frozen=True)
class Geometry:
    """How a text is launched: as ``grid`` groups of ``threads``; with ``threads`` 0 as that many
    single items, in groups of any size. If it is ``exact`` no item may be launched beyond the grid,
    so that the groups' size divides it; else the text itself skips those."""

    name: str
    grid: int
    threads: int
    exact: bool

    def sizes(self, most: int) -> list[int]:
        """The sizes that groups of single items may have, smallest first.

        >>> Geometry("map_60", 60, 0, True).sizes(16)
        [1, 2, 3, 4, 5, 6, 10, 12, 15]
        """
        some = range(1, max(1, min(most, self.grid)) + 1)
        return [n for n in some if (self.grid % n == 0 if self.exact else n & (n - 1) == 0)]


def geometry(text: str) -> Geometry:
    """What the first line of a finished text says.

    >>> geometry("// coregrad kernel map_8: grid 8, threads 0\\n...")
    Geometry(name='map_8', grid=8, threads=0, exact=False)
    """
    found = FIRST_LINE.match(text)
    if found is None:
        raise CompileError("compile: the text's first line does not say how it is launched")
    return Geometry(found[1], int(found[2]), int(found[3]), bool(found[4]))


def splits(extent: int) -> bool:
    """Whether a grid can be cut into groups of one good size. Else its last group is incomplete and
    every item has to be asked whether it is within; that question alone keeps compilers for CPUs
    from using vectors (PoCL 3.0: a sixth of the speed).

    >>> splits(60000), splits(97), splits(1009)
    (True, True, False)
    """
    return extent <= MOST or any(extent % size == 0 for size in range(FEWEST, MOST + 1))


@dataclass
class Line:
    """A line of the body; if ``name`` is set it defines that value, which is pure."""

    text: str
    name: str = ""
    type: str = ""

    def __str__(self) -> str:
        return f"const {self.type} {self.name} = {self.text};" if self.name else self.text


class Frame:
    """One kernel. ``words`` are the language's."""

    def __init__(self, header: Header, words: Words) -> None:
        self.header = header
        self.words = words
        self.threads = 0
        self._runs = ""  # whether a thread is one of the kernel's, where a group has more
        self._exact = True
        self._lines: list[Line] = []
        self._names: set[str] = set()
        self._variables: dict[str, tuple[str, DType]] = {}
        self._buffers = {p.name: self._unique(p.name) for p in header.params}
        self._products: dict[str, tuple[str, str]] = {}
        self._distances: dict[str, tuple[str, int]] = {}
        self._grid: Line | None = None
        self._count = 0

    # -- lines ---------------------------------------------------------------------------------

    def value(self, text: str, dtype: DType, bounds: Bounds | None = None) -> Value:
        """Define a value: a name for what ``text`` computes from names and literals."""
        if bounds is not None and bounds[0] == bounds[1]:
            return self.integer(bounds[0])
        self._count += 1
        name = f"v{self._count}"
        kind = self.words.types[dtype if bounds is None else narrow(bounds)]
        self._lines.append(Line(text, name, kind))
        return Value(name, bounds)

    def integer(self, number: int) -> Value:
        """A known integer."""
        bounds = number, number
        return Value(self.words.literal(number, narrow(bounds)), bounds)

    def line(self, text: str) -> None:
        """Append a statement."""
        self._lines.append(Line(text))

    def full(self, value: Value, dtype: DType) -> str:
        """The value in its dtype's own C type; one with bounds may be narrower."""
        if value.bounds is None or narrow(value.bounds) is dtype:
            return value.text
        if value.constant is not None:
            return self.words.literal(value.constant, dtype)
        return f"({self.words.types[dtype]}){value.text}"

    def product(self, a: Value, b: Value, text: str, dtype: DType) -> Value:
        """Define a product of floats, whose factors a sum may ask for."""
        made = self.value(text, dtype)
        self._products[made.text] = a.text, b.text
        return made

    def factors(self, value: Value) -> tuple[str, str] | None:
        """What a value is the product of."""
        return self._products.get(value.text)

    def place(self, buffer: str) -> str:
        """What the text calls a buffer or an array."""
        return self._buffers[buffer]

    def sum(self, a: Value, constant: int, text: str, bounds: Bounds) -> Value:
        """Define ``a`` plus a constant, which `element` may ask for."""
        made = self.value(text, int64, bounds)
        assert a.bounds is not None
        if a.bounds[0] >= 0 and constant > 0:  # what is before an element is within its buffer, too
            self._distances[made.text] = a.text, constant
        return made

    def element(self, buffer: str, index: Value) -> str:
        """An element of a buffer or an array.

        ``(x + i)[1]`` says that it is the neighbour of ``x[i]``. In ``x[i + 1]`` the sum is one of
        32 bits, and compilers for CPUs no longer see that: no vectors, a third of the speed (a
        convolution on PoCL 7).
        """
        name = self.place(buffer)
        if index.text in self._distances:
            start, distance = self._distances[index.text]
            return f"({name} + {start})[{distance}]"
        return f"{name}[{index}]"

    def _unique(self, name: str) -> str:
        """A name that stands for nothing else here; loops that are unrolled declare one often."""
        own = name if not NAME.fullmatch(name) and name not in RESERVED else f"{name}_"
        count = 1
        while own in self._names:
            count += 1
            own = f"{name}_{count}"
        self._names.add(own)
        return own

    # -- the contract's frame ------------------------------------------------------------------

    def loop(self, name: str, extent: int, kind: str, lanes: int, resume: bool) -> Iterator[Value]:
        """Open a loop, yield its index, close it when resumed."""
        self._require(lanes == 1 and not resume, f"loop {name}: values have one lane")
        if kind == "unroll":
            yield from map(self.integer, range(extent))
            return
        index = Value(self._unique(name), (0, max(extent - 1, 0)))
        if kind == "grid":
            self._open_grid(index, extent)
        elif kind == "local":
            self._open_local(index, extent)
        else:
            word = self._type(index)
            self.line(f"for ({word} {index} = 0; {index} < {extent}; {index}++) {{")
        yield index
        if kind == "serial" or (kind == "grid" and not self._exact):
            self.line("}")
            self._names.discard(index.text)

    def loop_until(
        self, name: str, extent: int, limit: Value, lanes: int, resume: bool
    ) -> Iterator[Value]:
        """A serial loop that ends at ``limit``, if that comes first."""
        self._require(lanes == 1 and not resume, f"loop {name}: values have one lane")
        index = Value(self._unique(name), (0, max(extent - 1, 0)))
        word = self._type(index)
        self.line(
            f"for ({word} {index} = 0; {index} < {extent} && {index} < {limit}; {index}++) {{"
        )
        yield index
        self.line("}")
        self._names.discard(index.text)

    def _open_grid(self, index: Value, extent: int) -> None:
        """Whether groups or single items walk the grid is known once the frame is finished."""
        word = self._type(index)
        self._require(self._grid is None, f"loop {index}: a kernel has one grid loop")
        self.line(f"const {word} {index} = ({word}){self.words.item};")
        self._grid = self._lines[-1]
        items = self.words.items
        self._exact = extent % items == 0 if items else splits(extent)
        if not self._exact:
            self.line(f"if ({index} < {extent}) {{")

    def _open_local(self, index: Value, extent: int) -> None:
        self._require(self._grid is not None, f"loop {index}: no grid loop around a local one")
        self._require(not self.threads, f"loop {index}: a kernel has one local loop")
        assert self._grid is not None
        self.threads = extent
        self._grid.text = self._grid.text.replace(self.words.item, self.words.group)
        if not self._exact:  # a number of groups is always exact
            del self._lines[self._lines.index(self._grid) + 1]
            self._exact = True
        word = self._type(index)
        if extent >= self.words.warp:
            self.line(f"const {word} {index} = ({word}){self.words.thread};")
            return
        # Threads that the kernel has not asked for do what its last one does, and store nothing.
        self._runs = self._unique("runs")
        thread = self.words.thread
        self.line(f"const {self.words.types[bool_]} {self._runs} = {thread} < {extent};")
        self.line(f"const {word} {index} = {self._runs} ? ({word}){thread} : {extent - 1};")

    def _type(self, index: Value) -> str:
        assert index.bounds is not None
        return self.words.types[narrow(index.bounds)]

    def declare(self, name: str, dtype: DType, initial: Value, lanes: int) -> None:
        """Make a variable that a reduction updates."""
        own = self._unique(name)
        self._variables[name] = own, dtype
        self.line(f"{self.words.types[dtype]} {own} = {initial};")

    def read(self, name: str) -> Value:
        """The variable's value here."""
        return self.value(*self._variables[name])

    def assign(self, name: str, value: Value) -> None:
        """Give the variable a new value."""
        self.line(f"{self._variables[name][0]} = {value};")

    def allocate(self, array: Array) -> None:
        """Scratch memory of a thread, or of its group."""
        own = self._buffers[array.name] = self._unique(array.name)
        word = f"{self.words.local} " if array.space == "local" else ""
        self.line(f"{word}{self.words.stored(array.dtype)} {own}[{max(array.size, 1)}];")

    def store(self, text: str, space: str, gate: Value | None) -> None:
        """Append a store into memory of a space ("private": the thread's own)."""
        runs = self._runs if space != "private" else ""
        conditions = " && ".join(filter(None, (runs, gate.text if gate else "")))
        if not conditions:
            self.line(text)
            return
        self.line(f"if ({conditions}) {{")
        self.line(text)
        self.line("}")

    def barrier(self) -> None:
        """Wait for the work-group."""
        self.line(f"{self.words.barrier};")

    def broadcast(self, value: Value, dtype: DType, lanes: int) -> Value:
        """A one-lane value in every lane, of which there is one."""
        return value

    def ramp(self, base: Value, stride: int, dtype: DType, lanes: int) -> Value:
        """The lane's integer."""
        return base

    def split(self, value: Value, dtype: DType, lanes: int) -> tuple[Value, Value]:
        """There are no lanes to split."""
        raise UnsupportedOp("split: values of the C family have one lane")

    def finish(self) -> str:
        """The whole text, from which a device makes a program."""
        header, words = self.header, self.words
        lines = [str(line) for line in _tidy(self._lines)]
        if self._grid is None and words.items:  # one item runs a kernel without a grid
            lines = [f"if ({words.item} == 0) {{", *lines, "}"]
            self._exact = False
        body = "\n".join(_indented(lines))
        params = ", ".join(self._param(i) for i in range(len(header.params)))
        threads = max(self.threads, words.warp) if self.threads else words.items
        bounds = words.bounds.format(threads=threads) if threads else ""
        name = _identifier(header.name)
        opening = words.kernel.format(bounds=bounds, name=name, params=params)
        used = routines.needed(body, words)
        pragmas = [
            text
            for dtype, text in words.pragmas.items()
            if any(re.search(rf"\b{words.types[dtype]}\b", t) for t in (opening, body, *used))
        ]
        exact = " exact" if self._exact else ""
        first = f"// coregrad kernel {name}: grid {header.grid}, threads {self.threads}{exact}"
        top = [first, *([words.preamble] if words.preamble else []), *pragmas]
        return "\n\n".join(["\n".join(top), *used, f"{opening} {{\n{body}\n}}\n"])

    def _param(self, position: int) -> str:
        param, words = self.header.params[position], self.words
        const = "const " if param.role == "in" else ""
        kind = words.stored(param.dtype)
        return words.param.format(
            const=const, type=kind, name=self.place(param.name), position=position
        )

    def _require(self, holds: bool, problem: str) -> None:
        if not holds:
            raise VerifyError(f"{self.header.name}: {problem}")


def _identifier(name: str) -> str:
    """A kernel's name as C can have it."""
    plain = re.sub(r"\W", "_", name)
    return f"{plain}_" if plain in RESERVED or not plain.isidentifier() else plain


# ---- the text ----------------------------------------------------------------------------------


def _tidy(lines: list[Line]) -> list[Line]:
    """Without values that nobody uses, and with those written in place that the next line uses."""
    uses: Counter[str] = Counter()
    kept: list[Line] = []
    for line in reversed(lines):
        if line.name and not uses[line.name]:
            continue
        uses.update(NAME.findall(line.text))
        kept.append(line)
    out: list[Line] = []
    for line in reversed(kept):
        made = Line(line.text, line.name, line.type)
        while out and out[-1].name:
            text = _written_in(made.text, out[-1], uses[out[-1].name])
            if text is None or len(text) > WIDTH:
                break
            made.text = text
            out.pop()
        out.append(made)
    return out


def _written_in(text: str, line: Line, uses: int) -> str | None:
    """``text`` with the value of the line before, if all its uses are here and it is written once
    or short; else None."""
    places = [m.span() for m in re.finditer(rf"\b{line.name}\b", text)]
    if len(places) != uses or (uses > 1 and not line.text.isidentifier()):
        return None
    for start, end in reversed(places):
        text = _put(text[:start], line.text, text[end:])
    return text


def _put(before: str, expression: str, after: str) -> str:
    """An expression between two texts, in parentheses if need be."""
    alone = before.endswith(("(", "[", ", ", " = ")) or not before
    alone = alone and (not after or after[0] in "]),;")
    term = before.endswith(("(", "[", " + ", " = ")) or not before
    term = term and (not after or after.startswith((" + ", "]", ")", ",", ";")))
    if alone or _is_simple(expression) or (term and PRODUCT.fullmatch(expression)):
        return before + expression + after
    return f"{before}({expression}){after}"


def _is_simple(expression: str) -> bool:
    """Whether an expression is a name, a number, a call or an element."""
    if ELEMENT.fullmatch(expression):
        return True
    found = re.match(r"[\w.]+", expression)
    if found is None:
        return False
    rest = expression[found.end() :]
    if not rest:
        return True
    closing = {"(": ")", "[": "]"}.get(rest[0])
    if closing is None:
        return False
    depth = 0
    for i, sign in enumerate(rest):
        depth += (sign == rest[0]) - (sign == closing)
        if depth == 0:
            return i == len(rest) - 1
    return False


def _indented(lines: list[str]) -> Iterator[str]:
    depth = 1
    for line in lines:
        depth -= line.startswith("}")
        yield "  " * depth + line
        depth += line.endswith("{")
