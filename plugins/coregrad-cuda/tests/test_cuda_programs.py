"""The cache of machine code: used again, and never trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hook_cases import cases, problems

from coregrad.dtypes import ALL

pytest.importorskip("coregrad_simt")

import cuda_launching as launching

from coregrad_cuda.programs import DIGEST, MAGIC

CASE = next(case for case in cases(ALL) if case.name == "arithmetic_int32")


@pytest.fixture
def folder(device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; devices opened in the test use it."""
    monkeypatch.setenv("COREGRAD_CACHE", str(tmp_path))
    return tmp_path / "cuda"


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


def test_code_that_the_driver_refuses_is_built_again(folder: Path) -> None:
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


def test_other_options_are_another_program(
    folder: Path, monkeypatch: pytest.MonkeyPatch, emulation: Any
) -> None:
    counted()
    monkeypatch.setattr(emulation, "architecture", 80)
    assert counted() == {"built": 1}
    assert len(list(folder.glob("*.bin"))) == 2
