"""The cache of built programs: used again, and never trusted."""

from __future__ import annotations

from pathlib import Path

import pytest
from accelerators import CacheTests
from hook_cases import problems

pytest.importorskip("pyopencl")

from opencl_launching import launcher


class TestCache(CacheTests):
    launcher = launcher
    folder = "opencl"

    def test_other_options_are_another_program(self, kept: Path) -> None:
        self.counted()
        fresh = launcher.backend.open_device(0)
        fresh.programs._options.append("-DANOTHER")
        fresh.programs._binaries.version += "-DANOTHER"
        launcher.run(fresh, launcher.case("arithmetic_int32"))
        assert dict(fresh.programs.counts) == {"built": 1}
        assert len(list(kept.glob("*.bin"))) == 2

    def test_pocl_keeps_kernels_with_barriers_itself(self, kept: Path) -> None:
        case = launcher.case("group_sum")
        fresh = launcher.backend.open_device(0)
        assert not problems(case, launcher.run(fresh, case))
        assert dict(fresh.programs.counts) == {"built": 1}
        assert not kept.exists()
