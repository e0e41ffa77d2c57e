"""What tests of the compiler share: what is compiled while a test runs, and devices of threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from workgroups import NAMES, Groups64, Registers, register

from coregrad import engine, planner, plugins
from coregrad.ir.kernel import Kernel


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for every structure that is compiled; none is known at the start."""
    seen: list[int] = []
    original = planner.compile_expression

    def counted(*args: Any, **kwargs: Any) -> Any:
        seen.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(engine, "_plans", {})
    monkeypatch.setattr(planner, "compile_expression", counted)
    return seen


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """Every kernel that is compiled from here on; none is known at the start."""
    made: list[Kernel] = []
    original = planner._step

    def shown(kernel: Kernel, *rest: Any) -> Any:
        made.append(kernel)
        return original(kernel, *rest)

    monkeypatch.setattr(engine, "_plans", {})
    monkeypatch.setattr(planner, "_step", shown)
    return made


@pytest.fixture(params=[NAMES[Groups64], NAMES[Registers]])
def grouped(request: pytest.FixtureRequest) -> Iterator[str]:
    """Devices of many threads, with and without local memory."""
    register()
    yield request.param
    for name in NAMES.values():
        plugins.unregister(name)
