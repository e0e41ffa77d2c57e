"""What the names of a function stand for, block by block, and operands as C++ expressions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from coregrad_simt.cuda.ptx import types
from coregrad_simt.errors import UnsupportedPTX

SPECIAL = {
    "tid": "simt_here.thread_index",
    "ntid": "simt_here.block_size",
    "ctaid": "simt_here.block_index",
    "nctaid": "simt_here.grid_size",
}
INTEGER = re.compile(r"(-?)(0[xX][0-9a-fA-F]+|\d+)U?")
SINGLE, DOUBLE = re.compile(r"0[fF]([0-9a-fA-F]{8})"), re.compile(r"0[dD]([0-9a-fA-F]{16})")
ADDRESS = re.compile(r"\[\s*([%$\w.]+)\s*(?:\+\s*(-?\w+)\s*)?\]")


@dataclass(frozen=True)
class Register:
    """A register: its C++ name and its declared type."""

    name: str
    type: str


@dataclass(frozen=True)
class Place:
    """Memory that has a name: its address, as a C++ expression, and its state space."""

    address: str
    space: str


class Scope:
    """Names, those of inner blocks before those of outer ones."""

    def __init__(self, places: dict[str, Place]) -> None:
        self._blocks: list[dict[str, Register | Place]] = [dict(places)]

    def open(self) -> None:
        """A block starts."""
        self._blocks.append({})

    def close(self) -> None:
        """A block ends."""
        self._blocks.pop()

    def declare(self, name: str, meaning: Register | Place) -> None:
        """A name of this block."""
        self._blocks[-1][name] = meaning

    def find(self, name: str) -> Register | Place:
        """What a name stands for."""
        for block in reversed(self._blocks):
            if name in block:
                return block[name]
        raise UnsupportedPTX(f"the operand {name!r}")

    def register(self, name: str) -> Register:
        """The register of this name."""
        found = self.find(name.strip())
        if not isinstance(found, Register):
            raise UnsupportedPTX(f"{name!r} is no register")
        return found

    # -- operands ----------------------------------------------------------------------------------

    def read(self, operand: str, kind: str) -> str:
        """An operand as a value of a type."""
        operand = operand.strip()
        if kind == "pred" and operand.startswith("!"):
            return f"!{self.read(operand[1:], kind)}"
        literal = _literal(operand, kind) or _special(operand, kind)
        if literal:
            return literal
        found = self.find(operand)
        if isinstance(found, Place):
            return f"({types.VALUES[kind]})({found.address})"
        if (kind == "pred") != (found.type == "pred") or types.size(kind) > types.size(found.type):
            raise UnsupportedPTX(f"{operand} is a {found.type}, read as {kind}")
        if kind in types.FLOATS:
            return f"as_{kind}({found.name})"
        return found.name if found.type == "pred" else f"({types.VALUES[kind]}){found.name}"

    def write(self, operand: str, kind: str, expression: str) -> str:
        """A statement that gives a register a value of a type; a wider one is extended."""
        if operand.strip() == "_":
            return f"(void)({expression});"
        found = self.register(operand)
        if (kind == "pred") != (found.type == "pred") or types.size(kind) > types.size(found.type):
            raise UnsupportedPTX(f"{operand} is a {found.type}, written as {kind}")
        if kind in types.FLOATS:
            return f"{found.name} = bits_of(({types.VALUES[kind]})({expression}));"
        return f"{found.name} = ({types.VALUES[kind]})({expression});"

    def address(self, operand: str) -> tuple[str, str]:
        """``[name+offset]`` as an address, and the state space if the name says it."""
        found = ADDRESS.fullmatch(operand.strip())
        if found is None:
            raise UnsupportedPTX(f"the address {operand!r}")
        meaning = self.find(found[1])
        offset = int(found[2] or "0", 0)
        base = meaning.address if isinstance(meaning, Place) else f"(u64){meaning.name}"
        space = meaning.space if isinstance(meaning, Place) else ""
        return (f"({base} + {offset}l)" if offset else base), space


def _literal(operand: str, kind: str) -> str:
    single, double, integer = (p.fullmatch(operand) for p in (SINGLE, DOUBLE, INTEGER))
    if single or double:
        float_type, digits = ("f32", f"0x{single[1]}u") if single else ("f64", f"0x{operand[2:]}ul")
        return f"as_{kind}({digits})" if kind == float_type else f"({types.VALUES[kind]}){digits}"
    if integer is None:
        return ""
    word = f"0x{int(integer[2], 0) & (1 << 64) - 1:x}ul"
    word = f"-{word}" if integer[1] else word
    if kind in ("f16", "bf16"):  # 16-bit floats are written as their bits
        return f"as_{kind}((u16){word})"
    if kind in types.FLOATS:
        raise UnsupportedPTX(f"the number {operand} as {kind}")
    return f"({types.VALUES[kind]})({word})"


def _special(operand: str, kind: str) -> str:
    name, _, part = operand.partition(".")
    if name.startswith("%") and name[1:] in SPECIAL and part in ("x", "y", "z"):
        return f"({types.VALUES[kind]}){SPECIAL[name[1:]]}.{part}"
    if operand == "%laneid":
        return f"({types.VALUES[kind]})simt_lane()"
    return f"({types.VALUES[kind]})32" if operand == "WARP_SZ" else ""
