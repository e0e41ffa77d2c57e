"""Stable sorts of rows of integers: where the smallest elements of each row stand.

Four programs in LLVM IR, chosen by size: `short.py` (by counting), `few.py` (the few smallest, in
one pass over the row), and the two of `radix.py`. They know nothing of floats, tensors or threads.
"""

from __future__ import annotations

import re

from coregrad.dtypes import DType
from coregrad_cpu.llvm.sorting import radix
from coregrad_cpu.llvm.sorting.few import few
from coregrad_cpu.llvm.sorting.short import LEAST, short
from coregrad_cpu.llvm.sorting.text import Program

# Sizes were measured with two threads of a Zen 4 processor.
SHORT = 128  # elements of a row up to which counting is faster than sorting by bytes
FEW = 64  # smallest elements that are kept in order while a row is read
FEW_WORTH = 640  # comparisons of counting that take as long as keeping one element in order
LONG = 1 << 16  # elements of a row that are worth several threads
WORKERS = 8  # pieces of work per thread that rows are dealt out in
BLOCKS = 2  # blocks per thread of a long row


def program(dtype: DType, rows: int, length: int, count: int, threads: int) -> Program | None:
    """The program that finds where the ``count`` smallest of each row stand. Its buffers: int32
    places out, keys in, scratch. None for rows so short that the core's own form, which counts
    too, is as fast."""
    if length < LEAST or not rows or not count:
        return None
    if count <= FEW and 4 * count <= length and length * length > FEW_WORTH * (count + 1):
        return few(dtype, rows, length, count)
    if length <= SHORT:
        return short(dtype, rows, length, count)
    if threads > 1 and length >= LONG and rows < 2 * threads:
        return radix.long_rows(dtype, rows, length, count, BLOCKS * threads)
    return radix.many_rows(dtype, rows, length, count, min(rows, WORKERS * threads))


def phases(text: str) -> list[tuple[str, int]]:
    """The functions of a text that are launched one after the other, each with its grid; none for
    a text of one kernel."""
    if "\n; phase " not in text:  # the texts of kernels are long
        return []
    found = re.findall(r"^; phase (\w+) (\d+)$", text, re.MULTILINE)
    return [(name, int(grid)) for name, grid in found]
