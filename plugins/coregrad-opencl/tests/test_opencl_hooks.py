"""Every hook on PoCL, all dtypes, special values, and kernels with work-groups, against NumPy."""

from __future__ import annotations

from typing import Any

import pytest
from hook_cases import Case, cases, group_cases, problems

from coregrad.dtypes import ALL

pytest.importorskip("pyopencl")

from opencl_launching import launcher

CASES = {case.name: case for case in cases(ALL)}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_kernel_computes_what_the_contract_says(device: Any, case: Case) -> None:
    assert not problems(case, launcher.run(device, case))


def test_groups_of_as_many_threads_as_a_gpu_has(device: Any) -> None:
    assert device.limits.threads == 256
    for case in group_cases(ALL, 256):
        assert not problems(case, launcher.run(device, case))
