"""The cache of built programs: used again, and never trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hook_cases import cases, problems

from coregrad.dtypes import ALL

pytest.importorskip("pyopencl")

import opencl_launching as launching

from coregrad_opencl.programs import DIGEST, MAGIC

CASE = next(case for case in cases(ALL) if case.name == "arithmetic_int32")


@pytest.fixture
def folder(device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; devices opened in the test use it."""
    monkeypatch.setenv("COREGRAD_CACHE", str(tmp_path))
    monkeypatch.setenv("COREGRAD_OPENCL_DEVICE", "Portable Computing Language")
    return tmp_path / "opencl"


def counted() -> dict[str, int]:
    """How a device that has just been opened comes by the program."""
    fresh = launching.BACKEND.open_device(0)
    assert not problems(CASE, launching.run(fresh, CASE))
    return dict(fresh.programs.counts)


def test_the_second_process_finds_what_the_first_built(folder: Path) -> None:
    assert counted() == {"built": 1}
    assert len(list(folder.glob("*.bin"))) == 1
    assert not list(folder.glob("*.tmp"))
    assert counted() == {"disk": 1}


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "other"])
def test_a_damaged_file_is_built_again(folder: Path, damage: str) -> None:
    counted()
    (file,) = folder.glob("*.bin")
    data = bytearray(file.read_bytes())
    if damage == "changed":
        data[len(MAGIC) + DIGEST + 5] ^= 1
    file.write_bytes({"cut": data[:100], "changed": data, "empty": b"", "other": b"x" * 99}[damage])
    assert counted() == {"damaged": 1, "built": 1}
    assert counted() == {"disk": 1}


def test_a_binary_that_the_driver_refuses_is_built_again(folder: Path) -> None:
    """Whole, and yet none of this driver's."""
    import hashlib

    counted()
    (file,) = folder.glob("*.bin")
    alien = b"not a program"
    file.write_bytes(MAGIC + hashlib.blake2b(alien, digest_size=DIGEST).digest() + alien)
    assert counted() == {"refused": 1, "built": 1}
    assert counted() == {"disk": 1}


def test_a_folder_that_cannot_be_written_costs_a_build_and_no_more(folder: Path) -> None:
    folder.parent.mkdir(exist_ok=True)
    folder.write_bytes(b"a file where the folder should be")
    assert counted() == {"built": 1, "unwritable": 1}


def test_without_a_cache_nothing_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COREGRAD_CACHE", "0")
    assert counted() == {"built": 1}
    assert not folder.exists()


def test_other_options_are_another_program(folder: Path) -> None:
    counted()
    fresh = launching.BACKEND.open_device(0)
    fresh.programs._options.append("-DANOTHER")
    fresh.programs._version += "-DANOTHER"
    launching.run(fresh, CASE)
    assert dict(fresh.programs.counts) == {"built": 1}


def test_pocl_keeps_kernels_with_barriers_itself(folder: Path) -> None:
    case = next(case for case in cases(ALL) if case.name == "group_sum")
    fresh = launching.BACKEND.open_device(0)
    assert not problems(case, launching.run(fresh, case))
    assert dict(fresh.programs.counts) == {"built": 1}
    assert not folder.exists()
