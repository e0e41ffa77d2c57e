"""PTX's text as data: kernels and functions with their statements, variables, blocks. It knows the
form of a statement, not what any means."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from coregrad_simt.cuda.ptx import types
from coregrad_simt.errors import UnsupportedPTX

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
FUNCTION = re.compile(
    r"(?:\.(?:visible|weak|extern)\s+)?\.(entry|func)\s*(?:\(([^)]*)\)\s*)?([\w$]+)\s*"
    r"(?:\(([^)]*)\))?([^{;]*)([{;])"
)
VARIABLE = re.compile(
    r"\.(global|const|shared|local)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$%]+)"
    r"(?:\[(\d*)\])?\s*(?:=\s*(.*))?",
    re.S,
)
PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(.*?)([\w$]+)(?:\[(\d+)\])?$", re.S
)
THREADS = re.compile(r"\.(?:maxntid|reqntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")
LABEL = re.compile(r"([$\w]+)\s*:(?!:)")
GUARD = re.compile(r"@(!?)([%\w$]+)\s+")
OPCODE = re.compile(r"[\w.:]+")
SEPARATOR = re.compile(r",(?![^{]*\})(?![^(]*\))")


@dataclass(frozen=True)
class Variable:
    """An array of bytes in a state space; ``values`` are its initial elements, as written."""

    space: str
    name: str
    type: str
    count: int
    alignment: int
    values: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """In bytes."""
        return self.count * types.size(self.type)


@dataclass(frozen=True)
class Parameter:
    """A parameter, or a slot for the argument of a call."""

    name: str
    type: str
    count: int = 1
    array: bool = False

    @property
    def size(self) -> int:
        """In bytes."""
        return self.count * types.size(self.type)


@dataclass(frozen=True)
class Instruction:
    """``opcode.modifiers.types operands``, under a guard that may be empty."""

    text: str
    line: int
    opcode: str
    modifiers: tuple[str, ...]
    types: tuple[str, ...]
    operands: tuple[str, ...]
    guard: str = ""

    @property
    def type(self) -> str:
        """The last type: that of the operation."""
        if not self.types:
            raise UnsupportedPTX(f"{self.text}: no type")
        return self.types[-1]

    @property
    def name(self) -> str:
        """What it is without operands."""
        return ".".join((self.opcode, *self.modifiers, *self.types))

    def has(self, modifier: str) -> bool:
        """Whether the modifier is there."""
        return modifier in self.modifiers


@dataclass(frozen=True)
class Registers:
    """A declaration of registers."""

    type: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Label:
    """A place that branches go to."""

    name: str


@dataclass(frozen=True)
class Brace:
    """The start (or end) of a block."""

    opens: bool


Statement = Instruction | Registers | Variable | Parameter | Label | Brace


@dataclass(frozen=True)
class Function:
    """A kernel (``entry``) or a function that others call."""

    name: str
    entry: bool
    results: tuple[Parameter, ...]
    parameters: tuple[Parameter, ...]
    threads: int
    body: tuple[Statement, ...]


@dataclass
class Module:
    """What a text holds."""

    functions: list[Function] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)


def module(text: str) -> Module:
    """Take a text apart. Raises UnsupportedPTX."""
    text = COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    result = Module()
    outside, position = [], 0
    while found := FUNCTION.search(text, position):
        outside.append(text[position : found.start()])
        position = found.end()
        if found[6] == ";":
            continue  # a declaration
        end = _closing(text, position)
        line = text.count("\n", 0, position) + 1
        result.functions.append(
            Function(
                name=found[3],
                entry=found[1] == "entry",
                results=parameters(found[2] or ""),
                parameters=parameters(found[4] or ""),
                threads=_threads(found[5]),
                body=tuple(statements(text[position:end], line)),
            )
        )
        position = end + 1
    outside.append(text[position:])
    for piece in "".join(outside).split(";"):
        if any(f".{space} " in piece for space in ("global", "const", "shared")):
            start = min(i for i in map(piece.find, (".global", ".const", ".shared")) if i >= 0)
            result.variables.append(variable(piece[start:].strip()))
    return result


def _closing(text: str, position: int) -> int:
    """Where the block ends that was opened before ``position``."""
    depth = 1
    for found in re.compile(r"[{}]").finditer(text, position):
        depth += 1 if found[0] == "{" else -1
        if depth == 0:
            return found.start()
    raise UnsupportedPTX("a block is not closed")


def _threads(attributes: str) -> int:
    found = THREADS.search(attributes)
    if found is None:
        return 1024
    x, y, z = (int(n or 1) for n in found.groups())
    return x * y * z


def parameters(text: str) -> tuple[Parameter, ...]:
    """The parameters between two parentheses."""
    return tuple(parameter(part.strip()) for part in text.split(",") if part.strip())


def parameter(text: str) -> Parameter:
    """A parameter's declaration."""
    found = PARAMETER.fullmatch(text)
    if found is None or not types.is_type(found[2]):
        raise UnsupportedPTX(f"the parameter {text!r}")
    return Parameter(found[4], found[2], int(found[5] or 1), array=found[5] is not None)


def variable(text: str) -> Variable:
    """A variable's declaration."""
    found = VARIABLE.fullmatch(text)
    if found is None or not types.is_type(found[3]) or found[5] == "":
        raise UnsupportedPTX(f"the variable {text!r}")
    values = (found[6] or "").strip("{} \n")
    return Variable(
        space=found[1],
        name=found[4],
        type=found[3],
        count=int(found[5] or 1),
        alignment=int(found[2] or types.size(found[3])),
        values=tuple(value.strip() for value in values.split(",") if value.strip()),
    )


def statements(text: str, line: int) -> Iterator[Statement]:
    """The statements of a function's body, whose first line has number ``line``."""
    position = 0
    while True:
        start = re.compile(r"\s*").match(text, position)
        assert start is not None
        line += text.count("\n", position, start.end())
        position = start.end()
        if position == len(text):
            return
        label = LABEL.match(text, position)
        if text[position] in "{}":
            yield Brace(text[position] == "{")
            end = position + 1
        elif label:
            yield Label(label[1])
            end = label.end()
        else:
            end = text.index(";", position) + 1
            yield from statement(" ".join(text[position : end - 1].split()), line)
        line += text.count("\n", position, end)
        position = end


def statement(text: str, line: int) -> Iterator[Statement]:
    """One statement that ends with a semicolon."""
    if not text or text.split()[0] in (".pragma", ".loc", ".file"):
        return
    if text.startswith(".reg"):
        yield registers(text)
    elif text.startswith(".param"):
        yield parameter(text)
    elif text.startswith("."):
        yield variable(text)
    else:
        yield instruction(text, line)


def registers(text: str) -> Registers:
    """``.reg .f32 %f<4>`` declares %f0 to %f3."""
    _, kind, rest = text.split(None, 2)
    kind = kind.lstrip(".")
    if not types.is_type(kind):
        raise UnsupportedPTX(text)
    names: list[str] = []
    for name in (part.strip() for part in rest.split(",")):
        many = re.fullmatch(r"(.+)<(\d+)>", name)
        names += [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]
    return Registers(kind, tuple(names))


def instruction(text: str, line: int) -> Instruction:
    """An instruction."""
    guard = GUARD.match(text)
    rest = text[guard.end() :] if guard else text
    name = OPCODE.match(rest)
    if name is None:
        raise UnsupportedPTX(text)
    opcode, *parts = name[0].split(".")
    operands = rest[name.end() :].strip()
    return Instruction(
        text=text,
        line=line,
        opcode=opcode,
        modifiers=tuple(part for part in parts if not types.is_type(part)),
        types=tuple(part for part in parts if types.is_type(part)),
        operands=tuple(part.strip() for part in SEPARATOR.split(operands)) if operands else (),
        guard=guard[1] + guard[2] if guard else "",
    )
