"""What a CUDA text says of its kernels before their bodies: the block's size, the parameters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coregrad_simt.kernel import Parameter

KERNEL = re.compile(
    r"__global__\s+void\s+(?:__launch_bounds__\s*\(([^)]*)\)\s*)?(\w+)\s*\(([^)]*)\)"
)
MOST_THREADS = 1024
KINDS = {"float": "f", "double": "f", "bool": "b", "unsigned": "u"}


@dataclass(frozen=True)
class Signature:
    """A kernel's head. ``threads``: the most that a block may have; ``declared``: the parameters as
    they are written."""

    threads: int
    declared: tuple[str, ...]

    def applied(self, found: Sequence[Parameter]) -> tuple[Parameter, ...]:
        """Parameters of known sizes, with what the text says of each."""
        if len(found) != len(self.declared):
            return tuple(found)
        pairs = zip(found, self.declared, strict=True)
        return tuple(replace(p, kind=kind(text), alone="__restrict__" in text) for p, text in pairs)


def signatures(text: str) -> dict[str, Signature]:
    """Every kernel's, by name."""
    return {
        found[2]: Signature(_threads(found[1]), tuple(filter(str.strip, found[3].split(","))))
        for found in KERNEL.finditer(text)
    }


def _threads(bounds: str | None) -> int:
    """What __launch_bounds__ promises; a number, in generated text."""
    first = (bounds or "").partition(",")[0].strip()
    return int(first) if first.isdigit() else MOST_THREADS


def kind(declaration: str) -> str:
    """The kind of a parameter (kernel.py) by its declaration.

    >>> [kind(text) for text in ("const float* x", "long long n", "bool b", "const unsigned n")]
    ['c', 'i', 'b', 'u']
    """
    words = re.findall(r"\w+", declaration)
    if "*" in declaration:
        return "c" if words[0] == "const" else "p"
    return KINDS.get(words[1 if words[0] == "const" else 0], "i")
