"""Texts of sorts with marks in them (``$KEY``, ``$LENGTH``), and what is put in their place.

An element on its way through a radix sort is a *word*: for keys of 32 bits and less one i64, the
key above its place; for keys of 64 bits a pair of i64. The sign bit of signed keys is flipped, so
that bytes are in order. Places are read from the low half of a word, which comes first in memory
on every processor that there are wheels of LLVM for.
"""

from __future__ import annotations

from dataclasses import dataclass

from coregrad.dtypes import DType

LANES = 32  # elements that are compared at once


@dataclass(frozen=True)
class Program:
    """A program's text, and the bytes of scratch memory that a launch of it needs."""

    text: str
    scratch: int


BUFFERS = """
  %out = load ptr, ptr %args
  %keys.p = getelementptr ptr, ptr %args, i64 1
  %keys = load ptr, ptr %keys.p
  %scratch.p = getelementptr ptr, ptr %args, i64 2
  %scratch = load ptr, ptr %scratch.p
"""


COUNTED = """
$HEAD {
entry:
  %i.p = alloca i64
  store i64 %begin, ptr %i.p
  $ENTRY
  br label %test
test:
  %i = load i64, ptr %i.p
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %leave
body:
  $BODY
  %next = add i64 %i, 1
  store i64 %next, ptr %i.p
  br label %test
leave:
  ret void
}
"""


def counted(head: str, body: str, entry: str = "") -> str:
    """A function that does ``body`` for each ``%i`` from its argument ``%begin`` up to ``%end``,
    and once before ``entry``. They may use all names but those above; a body of several blocks ends
    in one that goes on here."""
    return filled(COUNTED, HEAD=head.strip(), ENTRY=entry.strip(), BODY=body.strip())


def headed(text: str, grid: int, work: float) -> str:
    """A text with the line of hints that a device looks for: ``work`` instructions for each of
    ``grid`` iterations."""
    return f"; coregrad buffers=3 step=1 work={work:.1f} grid={grid}\n{text}"


def filled(text: str, **values: int | str) -> str:
    """A text with marks of its own put in."""
    for mark, value in values.items():
        text = text.replace(f"${mark}", str(value))
    return text


def written(text: str, dtype: DType, length: int, count: int, lanes: int = LANES) -> str:
    """A text with everything put in that depends on the dtype and the size of a row."""
    bits = dtype.bits
    own = f"i{bits}"
    signed = dtype.kind == "int"
    return filled(
        text,
        BUFFERS=BUFFERS.strip(),
        KEY=own,
        BIAS=-(1 << (bits - 1)) if signed else 0,
        LENGTH=length,
        COUNT_LESS=count - 1,
        COUNT=count,
        LANES=lanes,
        NUMBERS=", ".join(f"i32 {lane}" for lane in range(lanes)),
        ALIGN=dtype.itemsize,
        LT="slt" if signed else "ult",
        LE="sle" if signed else "ule",
        **(_pairs() if bits > 32 else _single(bits)),
    )


def _pairs() -> dict[str, str]:
    """Words of keys of 64 bits."""
    return {
        "WORD": "<2 x i64>",
        "WIDEN": "add i64 %key.own, 0",
        "PACK": "%both = insertelement <2 x i64> poison, i64 %key, i64 0\n"
        "  %word = insertelement <2 x i64> %both, i64 %i, i64 1",
        "FIRST": "extractelement <2 x i64> %word, i64 0",
        "PLACE": "8",
        "LOW": "0",
        "HIGH": "64",
    }


def _single(bits: int) -> dict[str, str]:
    """Words of keys of at most 32 bits."""
    return {
        "WORD": "i64",
        "WIDEN": f"zext i{bits} %key.own to i64",
        "PACK": "%up = shl i64 %key, 32\n  %word = or i64 %up, %i",
        "FIRST": "add i64 %word, 0",
        "PLACE": "0",
        "LOW": "32",
        "HIGH": str(32 + bits),
    }
