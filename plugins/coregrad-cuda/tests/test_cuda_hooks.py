"""Every hook and dtype, and kernels with work-groups, against NumPy; nothing faulty on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hook_cases import Bench, Case, problems

from coregrad.dtypes import bfloat16, int64, uint64
from coregrad.errors import DeviceError

pytest.importorskip("coregrad_simt")

from coregrad_simt import report
from cuda_launching import launcher

CASES = launcher.cases


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{case.name}" for i, case in enumerate(CASES)])
def test_a_kernel_computes_what_numpy_does(device: Any, case: Case) -> None:
    before = report.launches()
    assert problems(case, launcher.run(device, case)) == []
    assert report.launches() == before + 1
    assert report.faults == []


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("arithmetic_float32", "add[i1] = v1 + v2", "add[i1] = v1 - v2", "add["),
        ("group_sum", "__syncthreads();\n  const bool", "const bool", "race"),
        ("group_sum", "float tile[256]", "float tile[255]", "index outside an array"),
    ],
)
def test_what_is_executed_is_the_text(
    device: Any, name: str, old: str, new: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line is changed on its way to the compiler, and the result or the emulation tells."""
    compiled = device._gpu.compiled

    def corrupted(text: str, options: Any) -> bytes:
        assert old in text
        return compiled(text.replace(old, new, 1), options)

    monkeypatch.setattr(device._gpu, "compiled", corrupted)
    monkeypatch.setattr(device.programs, "_programs", {})
    case = next(case for case in CASES[::-1] if case.name == name)
    try:
        found = problems(case, launcher.run(device, case))
    except DeviceError as error:
        found = [str(error)]
    assert said in "".join(found)
    report.faults.clear()


@pytest.mark.parametrize("source", [int64, uint64])
def test_long_integers_are_rounded_to_bfloat16_once(device: Any, source: Any) -> None:
    """Halfway between two bfloat16s, but for one bit, which may lie anywhere below."""
    values = [
        (1 << top) + (1 << (top - 8)) + more
        for top in range(8, source.bits - 1)
        for more in (0, 1, 1 << (top // 2 - 4))
        if more < 1 << (top - 8) or not more
    ]
    exact = [_nearest_bfloat16(value) for value in values]
    bench = Bench(f"cast_{source.name}", (source, np.array(values, source.storage)))
    words = (np.array(exact, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    bench.want("o", bfloat16, words, lambda b, x: b.cast(x, bfloat16))
    case = bench.done()
    assert problems(case, launcher.run(device, case)) == []


def _nearest_bfloat16(value: int) -> float:
    """Eight bits of an integer, rounded to nearest even by integers alone."""
    excess = max(value.bit_length() - 8, 0)
    kept, rest = value >> excess, value & ((1 << excess) - 1)
    half = 1 << excess >> 1
    up = excess and (rest > half or (rest == half and kept & 1))
    return float((kept + bool(up)) << excess)
