"""Compiled kernels on disk: found again, never trusted, and no reason for an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coregrad import binaries, config
from coregrad.binaries import Binaries

CODE = bytes(range(256)) * 3


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, str]:
    """A folder with one binary, and its key."""
    writer = Binaries(tmp_path, "1.0")
    key = writer.key("text")
    writer.write(key, CODE)
    return tmp_path, key


def test_a_binary_is_found_by_whoever_looks_next(kept: tuple[Path, str]) -> None:
    folder, key = kept
    reader = Binaries(folder, "1.0")
    assert reader.key("text") == key
    assert reader.read(key) == CODE
    assert reader.read(reader.key("another text")) is None
    assert not reader.counts
    assert [file.suffix for file in folder.iterdir()] == [".bin"]


@pytest.mark.parametrize("code", [b"", b"\n", binaries.MAGIC])
def test_any_bytes_come_back_as_they_were(tmp_path: Path, code: bytes) -> None:
    some = Binaries(tmp_path, "1.0")
    some.write(some.key(""), code)
    assert some.read(some.key("")) == code


def test_the_key_holds_text_and_version() -> None:
    texts, versions = ("", "a", "b", "a\n"), ("", "1.0", "1.1")
    keys = {Binaries(None, version).key(text) for text in texts for version in versions}
    assert len(keys) == len(texts) * len(versions)
    assert all(key.isalnum() for key in keys)  # it names a file


@given(position=st.integers(0, len(binaries.MAGIC) + binaries.DIGEST + len(CODE) - 1))
def test_a_single_changed_bit_is_noticed_wherever_it_is(
    position: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    some = Binaries(tmp_path_factory.mktemp("binaries"), "1.0")
    some.write("key", CODE)
    assert some.folder is not None
    file = some.folder / "key.bin"
    data = bytearray(file.read_bytes())
    data[position] ^= 1 << position % 8
    file.write_bytes(data)
    assert some.read("key") is None
    assert some.counts == {"damaged": 1}


@pytest.mark.parametrize("damage", ["cut", "short", "empty", "longer", "foreign"])
def test_a_damaged_file_is_counted_and_may_be_written_again(
    kept: tuple[Path, str], damage: str
) -> None:
    folder, key = kept
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(
        {
            "cut": whole[:-1],
            "short": whole[:20],
            "empty": b"",
            "longer": whole + b"x",
            "foreign": b"no binary of ours",
        }[damage]
    )
    some = Binaries(folder, "1.0")
    assert some.read(key) is None
    assert some.counts == {"damaged": 1}
    some.write(key, CODE)
    assert some.read(key) == CODE
    assert file.read_bytes() == whole


def test_a_file_that_cannot_be_read_is_none(kept: tuple[Path, str]) -> None:
    folder, key = kept
    (file,) = folder.iterdir()
    file.unlink()
    file.mkdir()
    assert Binaries(folder, "1.0").read(key) is None


def test_a_folder_that_cannot_be_made_is_counted(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder should be")
    some = Binaries(blocked / "cache", "1.0")
    some.write("key", CODE)
    assert some.read("key") is None
    assert some.counts == {"unwritable": 1}


def test_a_full_disk_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: object, destination: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    some = Binaries(tmp_path, "1.0")
    some.write("key", CODE)
    assert some.counts == {"unwritable": 1}
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    some = Binaries(None, "1.0")
    some.write("key", CODE)
    assert some.read("key") is None
    assert not some.counts
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="rights there are no bits")
def test_a_new_folder_is_its_owners_alone(tmp_path: Path) -> None:
    """What is in it is run: nobody else may write there."""
    some = Binaries(tmp_path / "made" / "here", "1.0")
    some.write("key", CODE)
    assert (tmp_path / "made" / "here").stat().st_mode & 0o077 == 0


RACE = """
import sys
from pathlib import Path
from coregrad.binaries import Binaries
some = Binaries(Path(sys.argv[1]), "1.0")
for turn in range(200):
    key = some.key(str(turn % 5))
    found = some.read(key)
    assert found is None or found == key.encode() * 1000
    some.write(key, key.encode() * 1000)
print(dict(some.counts))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a file that is being read keeps its place")
def test_processes_that_write_the_same_files_never_see_half_of_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RACE, str(tmp_path)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in started:
        printed, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert printed.strip() == "{}"
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".bin"] * 5


def test_each_backend_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COREGRAD_CACHE", str(tmp_path))
    assert config.cache_folder() == tmp_path
    assert config.cache_folder("cpu") == tmp_path / "cpu"
    monkeypatch.setenv("COREGRAD_CACHE", "0")
    assert config.cache_folder() is None
    assert config.cache_folder("cpu") is None
    monkeypatch.delenv("COREGRAD_CACHE")
    folder = config.cache_folder("opencl")
    assert folder is not None
    assert folder.parts[-2:] == ("coregrad", "opencl")
    assert folder.is_absolute()
