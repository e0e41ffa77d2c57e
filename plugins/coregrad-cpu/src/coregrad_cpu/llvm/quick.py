"""Machine code without optimisation, for kernels whose whole work is too little to repay any.

The same instructions in the same order, so the same bits come out, in about a third of the time
that the optimising compiler takes. A kernel that is met again and again is compiled anew.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from coregrad_cpu.llvm import target
from coregrad_cpu.llvm.compiler import Compiler
from coregrad_cpu.llvm.frame import hints

# Launches after which a kernel is taken to be part of a loop, and optimised. Each has lost a few
# microseconds by then.
OFTEN = 50
# What leaves the order or the rounding of a sum to the compiler, and functions of a module's own.
FREE = re.compile(r"\b(reassoc|contract|noinline)\b")


def suffices(text: str) -> bool:
    """Whether a text may be left as it is: little work, and no freedom that optimising would use
    (it could give other bits)."""
    return bool(hints(text).get("small")) and not FREE.search(text)


class Quick(Compiler):
    """A compiler that does as little as it can; what it makes is kept in a folder of its own."""

    def __init__(self, folder: Path | None) -> None:
        super().__init__(None if folder is None else folder / "quick")

    def _new_machine(self, host: Any) -> Any:
        return host.create_target_machine(
            cpu=target.cpu(),
            features=target.feature_text(),
            opt=0,
            codemodel="jitdefault",
            jit=True,
        )
