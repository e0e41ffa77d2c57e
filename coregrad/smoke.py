"""Compute something small on one plugin's device, in a process of its own; it never chooses one."""

from __future__ import annotations

import time
from dataclasses import asdict, replace

from coregrad import Tensor, plugins, probe
from coregrad.errors import CoregradError

__all__ = ["answer"]

EXPECTED = 28.0  # of `_total`, which every float dtype holds exactly


def answer(name: str, distribution: str) -> None:
    """Open the device, try its memory, compute a sum on it, and answer with the row."""
    row = plugins.try_out(name, distribution)
    if row.state == "active":
        row = _computed(row)
    probe.answer(asdict(row))


def _computed(row: plugins.Row) -> plugins.Row:
    start = time.perf_counter()
    try:
        found = _total(row.name)
    except CoregradError as error:
        return replace(row, state="failed", reason=f"a small sum: {error}")
    if found != EXPECTED:
        return replace(row, state="failed", reason=f"a sum is {found}, it should be {EXPECTED}")
    took = (time.perf_counter() - start) * 1e3
    return replace(row, summary=f"{row.summary}; computed a sum in {took:.0f} ms")


def _total(device: str) -> float:
    """The sum of 2x + 1 over 1, 3 and 8.5."""
    x = Tensor([1.0, 3.0, 8.5], device=device)
    return float((x * 2.0 + 1.0).sum().item())
