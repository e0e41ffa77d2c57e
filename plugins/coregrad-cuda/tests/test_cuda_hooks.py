"""Every hook and dtype, and kernels with work-groups, against NumPy; nothing faulty on the way."""

from __future__ import annotations

from typing import Any

import pytest
from hook_cases import Case, cases, group_cases, problems

from coregrad.dtypes import ALL

pytest.importorskip("coregrad_simt")

import cuda_launching as launching
from coregrad_simt import report

CASES = [*cases(ALL), *group_cases(ALL, 256)]


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{case.name}" for i, case in enumerate(CASES)])
def test_a_kernel_computes_what_numpy_does(device: Any, case: Case) -> None:
    before = report.launches()
    assert problems(case, launching.run(device, case)) == []
    assert report.launches() == before + 1
    assert report.faults == []
