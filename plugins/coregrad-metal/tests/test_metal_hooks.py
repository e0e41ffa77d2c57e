"""Every hook and dtype, and kernels with work-groups, against NumPy; nothing faulty on the way."""

from __future__ import annotations

from typing import Any

import pytest
from hook_cases import Case, cases, group_cases, problems

from coregrad.dtypes import ALL, float64

pytest.importorskip("coregrad_simt")

import metal_launching as launching
from coregrad_simt import report

HAVE = [dtype for dtype in ALL if dtype is not float64]
CASES = [*cases(HAVE, lacking=("fmod",)), *group_cases(HAVE, 256)]


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{case.name}" for i, case in enumerate(CASES)])
def test_a_kernel_computes_what_numpy_does(device: Any, case: Case) -> None:
    before = report.launches()
    assert problems(case, launching.run(device, case)) == []
    assert report.launches() == before + 1
    assert report.faults == []
