"""PTX that stands in a CUDA text (``asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(y));``), for route A.

Each statement is replaced by its translation, by the table that route B uses; lines stay in place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from coregrad_simt.cuda.ptx.scope import Register, Scope
from coregrad_simt.cuda.ptx.translate import fragment
from coregrad_simt.errors import UnsupportedPTX

START = re.compile(r"\b(?:asm|__asm__)\s*(?:volatile|__volatile__)?\s*\(")
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
OPERAND = re.compile(r'\s*"([=+]?)([hrlfd])"\s*\((.*)\)\s*', re.S)
CONSTRAINTS = {"h": "b16", "r": "b32", "l": "b64", "f": "f32", "d": "f64"}
WORDS = {"h": "u16", "r": "u32", "l": "u64", "f": "u32", "d": "u64"}
HEADER = '#define PTX_SHARED_BYTES 0\n#define PTX_WITHIN(offset, size) false\n#include "ptx.h"\n'


@dataclass(frozen=True)
class Operand:
    """``"=f"(expression)``"""

    direction: str
    constraint: str
    expression: str


def has_assembly(text: str) -> bool:
    """Whether there is any."""
    return START.search(text) is not None


def without_assembly(text: str) -> str:
    """The text with each statement translated. Raises UnsupportedPTX."""
    pieces, position = [], 0
    while found := START.search(text, position):
        end = _closing(text, found.end())
        pieces.append(text[position : found.start()])
        line = text.count("\n", 0, found.start()) + 1
        pieces.append(_translated(text[found.end() : end], line))
        pieces.append("\n" * text.count("\n", found.start(), end))
        position = end + 1
    return "".join([*pieces, text[position:]])


def _closing(text: str, position: int) -> int:
    """Where the parenthesis closes that was opened before ``position``."""
    depth = 1
    while depth:
        string = STRING.match(text, position)
        if string:
            position = string.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        position += 1
    return position - 1


def _translated(inside: str, line: int) -> str:
    """One statement, from what stands between its parentheses."""
    strings = []
    while found := STRING.match(inside.lstrip()):
        strings.append(found[1].encode().decode("unicode_escape"))
        inside = inside.lstrip()[found.end() :]
    operands = [_operand(part) for part in _operands(inside)]
    scope, before, after = Scope({}), [], []
    for i, it in enumerate(operands):
        own = f"operand_{i}"
        scope.declare(f"%{i}", Register(own, CONSTRAINTS[it.constraint]))
        word = WORDS[it.constraint]
        start = f" = operand_bits<{word}>({it.expression})" if it.direction != "=" else ""
        before.append(f"{word} {own}{start};")
        if it.direction:
            after.append(f"set_operand({it.expression}, {own});")
    body = fragment("".join(strings).replace("%%", "%"), scope, line)
    return " ".join(["{", *before, *body, *after, "}"])


def _operands(text: str) -> list[str]:
    """Outputs, then inputs; what a statement changes otherwise does not matter here."""
    parts: list[str] = []
    section, start, depth, position = 0, 0, 0, 0
    while position <= len(text):
        string = STRING.match(text, position)
        sign = text[position : position + 1]
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if not string and depth == 0 and sign in (":", ",", ""):
            if section in (1, 2) and text[start:position].strip():
                parts.append(text[start:position])
            section += sign == ":"
            start = position + 1
        position = string.end() if string else position + 1
    return parts


def _operand(text: str) -> Operand:
    found = OPERAND.fullmatch(text)
    if found is None:
        raise UnsupportedPTX(f"the operand {text.strip()} of an asm statement")
    return Operand(found[1], found[2], found[3])
