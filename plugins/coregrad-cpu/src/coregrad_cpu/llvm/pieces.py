"""A module's text cut at the functions that are never inlined, which many modules have in common.

The micro-kernels of a contraction depend on how operands stand in memory, not on how many rows
there are: compiled once, they serve every shape, and only the loops around them are compiled anew.
Nothing is compiled here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

BEGIN = re.compile(r"^define internal (\w+) @(\w+)\((.*)\) noinline #0 \{$", re.MULTILINE)
END = "\n}\n"
KEPT = 256  # functions whose modules are remembered


@dataclass(frozen=True)
class Piece:
    """A function as a module of its own, under a name that says what is in it, and the types of
    its parameters."""

    name: str
    text: str
    kinds: str


_known: dict[tuple[str, str], Piece] = {}  # by the function's text and the module's attributes


def cut(text: str, named: Callable[[str], str]) -> tuple[str, list[Piece]]:
    """The text with such functions only declared, and these. ``named`` gives a text a short name
    that no other text has."""
    found = _begins(text)
    if not found:
        return text, []
    attributes = text[text.rindex("\nattributes") + 1 :].splitlines()[0]
    rest, at = "", 0
    pieces: list[Piece] = []
    for begin in found:
        end = text.index(END, begin.end()) + len(END)
        pieces.append(_piece(begin, text[begin.start() : end], text, attributes, named))
        rest += text[at : begin.start()] + f"declare {begin[1]} @{begin[2]}({pieces[-1].kinds})\n"
        at = end
    rest += text[at:]
    for begin, piece in zip(found, pieces, strict=True):
        rest = rest.replace(f"@{begin[2]}(", f"@{piece.name}(")
    return rest, pieces


def _begins(text: str) -> list[re.Match[str]]:
    """Where such functions begin. Texts are long, and most of them have none."""
    found = []
    at = text.find("\ndefine internal ")
    while at >= 0:
        begin = BEGIN.match(text, at + 1)
        if begin is not None:
            found.append(begin)
        at = text.find("\ndefine internal ", at + 1)
    return found


def _piece(
    begin: re.Match[str], body: str, text: str, attributes: str, named: Callable[[str], str]
) -> Piece:
    piece = _known.get((body, attributes))
    if piece is not None:
        return piece
    result, old, parameters = begin.groups()
    lines = text[: begin.start()].splitlines()
    declared = [d for d in lines if d.startswith("declare ") and _name_of(d) in body]
    name = f"{old}_{named(body + attributes)}"
    public = body.replace(f"define internal {result} @{old}(", f"define {result} @{name}(", 1)
    kinds = ", ".join(p.split()[0] for p in parameters.split(", "))
    piece = Piece(name, "\n".join([*declared, public + attributes, ""]), kinds)
    if len(_known) >= KEPT:
        _known.clear()
    _known[body, attributes] = piece
    return piece


def _name_of(declaration: str) -> str:
    """``@name(`` of a declared function."""
    begin = declaration.index("@")
    return declaration[begin : declaration.index("(", begin) + 1]
