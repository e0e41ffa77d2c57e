"""PTX into C++ that runs on the fibers. What the instructions mean is in instructions.py."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from coregrad_simt.cuda.ptx import instructions, parse, types
from coregrad_simt.cuda.ptx.scope import Place, Register, Scope
from coregrad_simt.errors import UnsupportedPTX

GAP = 64  # bytes between two arrays of shared memory: who leaves one does not reach the next


@dataclass(frozen=True)
class Translation:
    """The C++ text; what it holds: ``kernels`` with the most threads of a block; ``waits``: whether
    threads meet; ``shared_bytes``: how large the shared arrays are; ``used``: the names of the
    instructions met."""

    text: str
    kernels: dict[str, int]
    waits: bool
    shared_bytes: int
    used: frozenset[str]


def translate(ptx: str) -> Translation:
    """Raises UnsupportedPTX."""
    return _Translator(parse.module(ptx)).translation()


def fragment(text: str, scope: Scope, line: int) -> list[str]:
    """A few statements in a given scope, as C++. Raises UnsupportedPTX."""
    translator = _Translator(parse.Module())
    return translator.lines(parse.statements(text, line), scope, entry=True)


class _Translator:
    def __init__(self, module: parse.Module) -> None:
        self._module = module
        self._places: dict[str, Place] = {}
        self._shared: list[tuple[int, int]] = []  # where arrays lie: offset and size
        self._used: set[str] = set()
        self._waits = False

    def translation(self) -> Translation:
        variables = [self._variable(variable) for variable in self._module.variables]
        functions = [f for f in self._module.functions if not f.entry]
        kernels = [f for f in self._module.functions if f.entry]
        bodies = [self._function(function) for function in (*functions, *kernels)]
        return Translation(
            text="\n".join(
                [
                    *self._shared_memory(),
                    '#include "ptx.h"',
                    *variables,
                    *(f"{self._head(function)};" for function in functions),
                    *bodies,
                    *(f"SIMT_KERNEL_AS({k.name}, kernel_{k.name})" for k in kernels),
                    "SIMT_MODULE\n",
                ]
            ),
            kernels={kernel.name: kernel.threads for kernel in kernels},
            waits=self._waits,
            shared_bytes=sum(size for _, size in self._shared),
            used=frozenset(self._used),
        )

    # -- variables --------------------------------------------------------------------------------

    def _variable(self, it: parse.Variable) -> str:
        """A variable of the module."""
        if it.space == "shared":
            self._places[it.name] = self._share(it)
            return ""
        name = f"global_{it.name.replace('$', '_')}"
        self._places[it.name] = Place(f"(u64){name}", it.space)
        element = types.VALUES[it.type]
        if it.type in types.FLOATS and it.values:
            raise UnsupportedPTX(f"the variable {it.name} has floats for initial values")
        values = ", ".join(f"({element}){value}" for value in it.values)
        return f"alignas({it.alignment}) static {element} {name}[{it.count}] = {{{values}}};"

    def _share(self, it: parse.Variable) -> Place:
        """Room for an array in shared memory."""
        end = self._shared[-1][0] + self._shared[-1][1] + GAP if self._shared else GAP
        offset = -(-end // max(it.alignment, 16)) * max(it.alignment, 16)
        self._shared.append((offset, it.size))
        return Place(f"{offset}ul", "shared")

    def _shared_memory(self) -> list[str]:
        """Its size, and a test whether an access lies within one of its arrays."""
        total = self._shared[-1][0] + self._shared[-1][1] if self._shared else 0
        tests = [f"((offset) - {start}ul <= {size}ul - (size))" for start, size in self._shared]
        tests = [f"((size) <= {s[1]}ul && {t})" for s, t in zip(self._shared, tests, strict=True)]
        return [
            f"#define PTX_SHARED_BYTES {total}",
            f"#define PTX_WITHIN(offset, size) ({' || '.join(tests) or 'false'})",
        ]

    # -- functions --------------------------------------------------------------------------------

    def _head(self, it: parse.Function) -> str:
        if it.entry:
            slots = [f"{_parameter_type(p)} {_parameter(p)}" for p in it.parameters]
            return f"static void kernel_{it.name}({', '.join(slots)})"
        slots = [f"u64 {_parameter(p)}" for p in (*it.results, *it.parameters)]
        return f"static void {instructions.function_name(it.name)}({', '.join(slots)})"

    def _function(self, it: parse.Function) -> str:
        scope = Scope(self._places)
        for parameter in (*it.results, *it.parameters):
            name = _parameter(parameter)
            scope.declare(parameter.name, Place(f"(u64)&{name}" if it.entry else name, "param"))
        return "\n".join([f"{self._head(it)} {{", *self.lines(it.body, scope, it.entry), "}"])

    def lines(self, body: Iterable[parse.Statement], scope: Scope, entry: bool) -> list[str]:
        """Statements as C++. What is declared outside all blocks stands first: no jump may pass a
        declaration."""
        top, lines = ["unsigned carry;"], []
        depth = 0
        for number, statement in enumerate(body):
            match statement:
                case parse.Brace(opens=True):
                    scope.open()
                    depth += 1
                    lines.append("{")
                case parse.Brace():
                    scope.close()
                    depth -= 1
                    lines.append("}")
                case parse.Label():
                    lines.append(f"{instructions.label(statement.name)}:;")
                case parse.Registers():
                    (lines if depth else top).append(_registers(statement, scope, number))
                case parse.Variable():
                    top.append(self._local(statement, scope))
                case parse.Parameter():
                    lines.append(_slot(statement, scope, number))
                case parse.Instruction():
                    lines.append(self._instruction(statement, scope, entry))
        return [*top, *lines]

    def _local(self, it: parse.Variable, scope: Scope) -> str:
        """An array of a function's own, or shared memory that only it uses."""
        if it.space == "shared":
            scope.declare(it.name, self._share(it))
            return ""
        if it.space != "local" or it.values:
            raise UnsupportedPTX(f"the variable {it.name} in a function")
        name = f"local_{it.name.replace('$', '_')}"
        scope.declare(it.name, Place(f"(u64){name}", "local"))
        return f"alignas({max(it.alignment, 16)}) u8 {name}[{it.size}];"

    def _instruction(self, it: parse.Instruction, scope: Scope, entry: bool) -> str:
        if it.opcode == "exit" and not entry:
            raise UnsupportedPTX("exit in a function")
        self._used.add(it.name)
        if it.opcode == "bar" and it.has("warp"):
            self._waits = True
            return instructions.WARP_BARRIER.write(it, scope)
        text = instructions.translate(it, scope)
        self._waits |= instructions.TABLE[it.opcode].waits
        return text


def _parameter(it: parse.Parameter) -> str:
    return f"param_{it.name.replace('$', '_')}"


def _parameter_type(it: parse.Parameter) -> str:
    if it.array:
        raise UnsupportedPTX(f"the parameter {it.name} is a structure")
    return types.VALUES[it.type]


def _registers(it: parse.Registers, scope: Scope, number: int) -> str:
    """Their declaration. Inner blocks may have registers of the same names."""
    names = []
    for name in it.names:
        own = re.sub(r"\W", "_", name) + f"_{number}"
        scope.declare(name, Register(own, it.type))
        names.append(own)
    return f"{types.storage(it.type)} {', '.join(names)};"


def _slot(it: parse.Parameter, scope: Scope, number: int) -> str:
    """Room for an argument of a call."""
    own = f"slot_{it.name.replace('$', '_')}_{number}"
    scope.declare(it.name, Place(f"(u64){own}", "param"))
    return f"alignas(16) u8 {own}[{max(it.size, 8)}];"
