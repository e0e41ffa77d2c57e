"""A square of numbers transposed in registers, as the text of one LLVM function."""

from __future__ import annotations

import functools

from coregrad.dtypes import DType
from coregrad_cpu.llvm import words


@functools.cache
def text(name: str, dtype: DType, lanes: int, columns: int) -> str:
    """``void @name(ptr from, i64 step, ptr to, i64 stride)``: ``lanes`` rows of ``lanes`` numbers,
    ``step`` apart, of which the first ``columns`` columns are written as rows ``stride`` apart.
    """
    scalar, vector = words.type_of(dtype, 1), words.type_of(dtype, lanes)
    align = f"align {lanes * dtype.itemsize}"
    lines = [
        f"define internal void @{name}(ptr noalias readonly %from, i64 %step, "
        "ptr noalias %to, i64 %stride) noinline #0 {"
    ]
    for i in range(lanes):
        lines.append(f"  %o{i} = mul i64 %step, {i}")
        lines.append(f"  %p{i} = getelementptr {scalar}, ptr %from, i64 %o{i}")
        lines.append(f"  %r0_{i} = load {vector}, ptr %p{i}, {align}")
    done = _exchange(lines, vector, lanes)
    for i in range(columns):
        lines.append(f"  %s{i} = mul i64 %stride, {i}")
        lines.append(f"  %q{i} = getelementptr {scalar}, ptr %to, i64 %s{i}")
        lines.append(f"  store {vector} %r{done}_{i}, ptr %q{i}, {align}")
    lines += ["  ret void", "}"]
    return "\n".join(lines) + "\n"


def _exchange(lines: list[str], vector: str, lanes: int) -> int:
    """log2(lanes) rounds: blocks of half, a quarter, ... the size are exchanged between rows."""
    done, distance = 0, lanes // 2
    while distance:
        low = [j if not j & distance else lanes + j - distance for j in range(lanes)]
        high = [j + distance if not j & distance else lanes + j for j in range(lanes)]
        for i in range(lanes):
            a, b = i & ~distance, i | distance
            picks = ", ".join(f"i32 {j}" for j in (high if i & distance else low))
            lines.append(
                f"  %r{done + 1}_{i} = shufflevector {vector} %r{done}_{a}, {vector} %r{done}_{b}, "
                f"<{lanes} x i32> <{picks}>"
            )
        done, distance = done + 1, distance // 2
    return done
