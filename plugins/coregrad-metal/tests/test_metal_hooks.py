"""Every hook and dtype, and kernels with work-groups, against NumPy; nothing faulty on the way."""

from __future__ import annotations

from typing import Any

import pytest
from hook_cases import Case, problems

pytest.importorskip("coregrad_simt")

from coregrad_simt import report
from metal_launching import launcher

CASES = launcher.cases


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{case.name}" for i, case in enumerate(CASES)])
def test_a_kernel_computes_what_numpy_does(device: Any, case: Case) -> None:
    before = report.launches()
    assert problems(case, launcher.run(device, case)) == []
    assert report.launches() == before + 1
    assert report.faults == []
