"""The cache of machine code: used again, and never trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from accelerators import CacheTests

pytest.importorskip("coregrad_simt")

from cuda_launching import launcher


class TestCache(CacheTests):
    launcher = launcher
    folder = "cuda"

    def test_other_options_are_another_program(
        self, kept: Path, monkeypatch: pytest.MonkeyPatch, emulation: Any
    ) -> None:
        self.counted()
        monkeypatch.setattr(emulation, "architecture", 80)
        assert self.counted() == {"built": 1}
        assert len(list(kept.glob("*.bin"))) == 2
