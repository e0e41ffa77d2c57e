"""Numbers known when a kernel is compiled: each must arrive bit for bit, in every lane."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad.dtypes import ALL, DType, from_bits
from coregrad.ir.kernel import Kernel
from coregrad_conformance import oracle, tables, ulp
from coregrad_conformance.builder import Builder
from coregrad_conformance.row import Outcome, Row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coregrad_conformance.target import Target

GROUP = "constants"
REPEATS = 17  # iterations of the loop: whole vectors of 16 lanes, and a rest
RANDOM = 16


def rows() -> Iterator[Row]:
    """The rows of this file."""
    for dtype in ALL:
        summary = f"Literals of {dtype.name}: its special values, and random ones."
        run = partial(_literals, dtype)
        level = tables.level(dtype)
        name = f"const/{dtype.name}/special-values"
        yield Row(name, level, GROUP, run, "const", dtype.name, summary)


def _literals(dtype: DType, target: Target) -> Outcome:
    target.require(dtype)
    rng = tables.generator(f"const/{dtype.name}")
    values = np.concatenate([tables.specials(dtype), tables.mixed(rng, dtype, RANDOM)])
    expected = oracle.Expected(ulp.decode(np.tile(values, REPEATS), dtype))
    compared = 0
    for lanes in sorted({1, target.lanes}):
        (got,) = target.run_kernel(_kernel(values, dtype, lanes), [])
        compared += oracle.compare(got, expected, dtype).compared
    return Outcome(compared, 0.0 if dtype.is_float else None)


def _kernel(values: NDArray[Any], dtype: DType, lanes: int) -> Kernel:
    build = Builder(f"const_{dtype.name}_x{lanes}")
    out = build.out(dtype, values.size * REPEATS)
    words = values.view(f"u{dtype.itemsize}").tolist()
    with build.loop(REPEATS, "grid", lanes) as i:
        for k, word in enumerate(words):
            value = build.const(from_bits(word, dtype), dtype)
            build.store(out, i * values.size + k, value)
    return build.kernel()
