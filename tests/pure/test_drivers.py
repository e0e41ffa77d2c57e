"""A driver's library is the real one, the fake that was asked for, or a reason; and a forked child
is told what to do."""

from __future__ import annotations

import json
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from coregrad import config, drivers
from coregrad.errors import BackendUnavailable, DeviceError


@pytest.mark.parametrize(
    ("text", "names"),
    [("", []), ("cuda", ["cuda"]), (" metal , cuda,", ["metal", "cuda"]), (",", [])],
)
def test_a_list_is_read_with_its_spaces(
    text: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COREGRAD_EMULATE", text)
    assert config.names("COREGRAD_EMULATE") == names
    assert drivers.is_emulated("cuda") == ("cuda" in names)
    assert not drivers.is_emulated("cud")


def test_a_library_is_the_module_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COREGRAD_EMULATE", "another")
    assert drivers.library("chip", "json", "JSON") is json


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules that the emulator was asked for; it has one fake."""
    asked: list[str] = []
    module: Any = ModuleType("coregrad_simt")

    def install_fakes(name: str) -> list[Any]:
        asked.append(name)
        return [SimpleNamespace(fake=name)]

    module.install_fakes = install_fakes
    monkeypatch.setitem(sys.modules, "coregrad_simt", module)
    monkeypatch.setenv("COREGRAD_EMULATE", "chip")
    return asked


def test_the_library_of_an_emulated_device_is_a_fake(emulator: list[str]) -> None:
    assert drivers.library("chip", "json", "JSON").fake == "json"
    assert drivers.library("another", "json", "JSON") is json
    assert emulator == ["json"]


@pytest.mark.parametrize("error", [OSError("no libchip.so.3"), ModuleNotFoundError("No module")])
def test_why_a_library_is_not_there_is_said(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str) -> None:
        raise error

    monkeypatch.setenv("COREGRAD_EMULATE", "")
    monkeypatch.setattr(drivers.importlib, "import_module", broken)
    with pytest.raises(BackendUnavailable) as caught:
        drivers.library("chip", "pychip", "PyChip")
    assert str(caught.value) == f"chip: PyChip cannot be imported: {error}"
    assert caught.value.__cause__ is error


def test_only_the_process_that_opened_a_device_may_use_it() -> None:
    drivers.require_own_process(os.getpid(), "chip (Chip 3)", "ChipDriver")
    with pytest.raises(DeviceError, match="forked") as caught:
        drivers.require_own_process(os.getpid() + 1, "chip (Chip 3)", "ChipDriver")
    said = str(caught.value)
    assert said.startswith("chip (Chip 3): ")
    assert "ChipDriver does not survive" in said
    assert "spawn" in said
