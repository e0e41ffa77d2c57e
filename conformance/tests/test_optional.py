"""Rows about what a device may offer, on ones that offer it and do it wrong.

Those that a device of style eager can have are seeded in the selftest; these need a compiler.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from coregrad_conformance.row import Failure, Row
from coregrad_conformance.rows import all_rows
from coregrad_conformance.target import Target
from coregrad_cpu.llvm.device import Device, Replay

right_part = Device.part


def named(name: str) -> Row:
    return next(row for row in all_rows("standard") if row.id == name)


@pytest.mark.parametrize("name", ["may_overwrite", "replay", "sort", "assembly", "part"])
def test_a_device_that_offers_less_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Device, name)
    target = Target("cpu")
    for row in all_rows("core"):
        if row.id == "parts/tensors":
            continue  # its plans, which are kept, are those of a device that has parts
        if row.group in ("optional", "parts", "captured") or row.id == "sorting/int32/keys":
            assert row.run(target).compared > 0, row.id


def test_a_device_that_never_had_parts_passes() -> None:
    target = Target("numpy")
    assert not hasattr(target.active.device, "part")
    for row in all_rows("core"):
        if row.group == "parts":
            assert row.run(target).compared > 0, row.id


def test_a_device_that_clears_outputs_first_may_not_say_that_inputs_may_be_outputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = Device.launch

    def launch(self: Device, compiled: Any, buffers: Sequence[Any], grid: int) -> None:
        kept = [buffers[0]] if len(buffers) == 2 else []
        for buffer in kept:
            self.copy_in(buffer, memoryview(np.zeros(4, np.uint8)))
        right(self, compiled, buffers, grid)

    monkeypatch.setattr(Device, "launch", launch)
    with pytest.raises(Failure, match="the output"):
        named("optional/overwrite").run(Target("cpu"))
    monkeypatch.setattr(Device, "may_overwrite", lambda self, compiled: False)
    assert named("optional/overwrite").run(Target("cpu")).compared > 0


def test_a_replay_that_keeps_its_first_buffers_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Replay.run

    def run(self: Replay, buffers: Sequence[Any]) -> None:
        self.first = getattr(self, "first", buffers)  # type: ignore[attr-defined]
        right(self, self.first)  # type: ignore[attr-defined]

    monkeypatch.setattr(Replay, "run", run)
    with pytest.raises(Failure, match="element"):
        named("optional/replay").run(Target("cpu"))


@pytest.mark.parametrize("seconds", [5000.0, -1.0, float("nan"), "1 us"])
def test_a_clock_that_cannot_be_right_is_seen(
    seconds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "elapsed", lambda self: seconds, raising=False)
    with pytest.raises(Failure, match="elapsed"):
        named("optional/elapsed").run(Target("cpu"))


def test_a_part_that_takes_its_buffer_along_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "part", _Sharing.part)
    with pytest.raises(Failure, match="without its part"):
        named("parts/dropped").run(Target("cpu"))


class _Sharing(Device):
    """Its parts write over their bytes when they go."""

    def part(self, buffer: Any, start: int, nbytes: int) -> Any:
        made = right_part(self, buffer, start, nbytes)
        zeros = memoryview(np.zeros(nbytes, np.uint8))
        weakref.finalize(made, self.copy_in, right_part(self, buffer, start, nbytes), zeros)
        return made
