"""Rows about loops with a limit, on frames that end them rightly, wrongly, and not at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from coregrad_conformance.row import Failure
from coregrad_conformance.rows import all_rows
from coregrad_conformance.target import Target
from coregrad_cpu.llvm.frame import Frame
from coregrad_cpu.reference import ReferenceFrame

ROWS = [row for row in all_rows("core") if row.group == "ends"]
GATE = next(row for row in ROWS if row.id == "ends/gate")


@pytest.mark.parametrize(("device", "frame"), [("numpy", ReferenceFrame), ("cpu", Frame)])
def test_a_frame_that_ends_no_loop_early_passes(
    device: str, frame: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(frame, "loop_until")
    for row in ROWS:
        assert row.run(Target(device)).compared > 0, row.id


def test_a_text_whose_loop_runs_beyond_its_limit_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the limit is one of two numbers the core relies on the end, and leaves a gate out."""

    def loop_until(
        self: Frame, name: str, extent: int, limit: str, lanes: int, resume: bool
    ) -> Iterator[str]:
        return self.loop(name, extent, "serial", lanes, resume)

    monkeypatch.setattr(Frame, "loop_until", loop_until)
    with pytest.raises(Failure, match="element"):
        GATE.run(Target("cpu"))


def test_a_limit_of_0_that_is_taken_for_none_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Frame.loop_until

    def loop_until(
        self: Frame, name: str, extent: int, limit: str, lanes: int, resume: bool
    ) -> Iterator[str]:
        is_none = self.op(f"icmp eq i64 {limit}, 0")
        wrong = self.op(f"select i1 {is_none}, i64 {extent}, i64 {limit}")
        return right(self, name, extent, wrong, lanes, resume)

    monkeypatch.setattr(Frame, "loop_until", loop_until)
    with pytest.raises(Failure, match="element"):
        GATE.run(Target("cpu"))
