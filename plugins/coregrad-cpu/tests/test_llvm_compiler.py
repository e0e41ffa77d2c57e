"""The compiler and its disk cache: hits, damage, read-only folders, races between processes."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llvmlite")

from coregrad.errors import BackendUnavailable, CompileError
from coregrad_cpu.llvm import target
from coregrad_cpu.llvm.compiler import Compiler, cache_folder


def text(value: int) -> str:
    """A module whose function returns ``value``."""
    return f"define i64 @kernel() {{\n  ret i64 {value}\n}}\n"


def call(compiler: Compiler, value: int) -> int:
    result: int = ctypes.CFUNCTYPE(ctypes.c_int64)(compiler.address(text(value)))()
    return result


def test_a_text_is_compiled_once_and_then_found_in_memory_and_on_disk(tmp_path: Path) -> None:
    first = Compiler(tmp_path)
    assert call(first, 41) == 41
    assert call(first, 41) == 41
    assert first.counts == {"compiled": 1, "memory": 1}
    second = Compiler(tmp_path)
    assert call(second, 41) == 41
    assert second.counts == {"disk": 1}


def test_texts_that_differ_live_side_by_side_under_one_name(tmp_path: Path) -> None:
    compiler = Compiler(tmp_path)
    assert [call(compiler, v) for v in (1, 2, 3, 2, 1)] == [1, 2, 3, 2, 1]
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "foreign"])
def test_a_damaged_file_is_compiled_again_and_repaired(tmp_path: Path, damage: str) -> None:
    assert call(Compiler(tmp_path), 7) == 7
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    broken = {
        "truncate": whole[:-1],
        "flip": whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:],
        "empty": b"",
        "foreign": b"not machine code",
    }[damage]
    file.write_bytes(broken)
    again = Compiler(tmp_path)
    assert call(again, 7) == 7
    assert again.counts == {"damaged": 1, "compiled": 1}
    assert file.read_bytes() == whole


def test_a_folder_that_cannot_be_written_only_costs_time(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder should be")
    compiler = Compiler(blocked / "cache")
    assert call(compiler, 5) == 5
    assert compiler.counts == {"compiled": 1, "unwritable": 1}


def test_no_temporary_file_stays_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(source: object, destination: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full_disk)
    compiler = Compiler(tmp_path)
    assert call(compiler, 6) == 6
    assert compiler.counts["unwritable"] == 1
    assert list(tmp_path.iterdir()) == []


RACE = """
import ctypes, sys
from pathlib import Path
from coregrad_cpu.llvm.compiler import Compiler
compiler = Compiler(Path(sys.argv[1]))
for v in range(40):
    code = f"define i64 @kernel() {{ ret i64 {v} }}"
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(compiler.address(code))() == v
print(compiler.counts["damaged"], compiler.counts["unwritable"])
"""


def test_two_processes_may_write_the_same_files(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for process in processes:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert output.split() == ["0", "0"]
    assert len(list(tmp_path.glob("*.bin"))) == 40
    assert not list(tmp_path.glob("*.tmp"))


def test_the_key_holds_text_and_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Compiler(None)
    assert here.key(text(1)) != here.key(text(2))
    monkeypatch.setattr(target, "feature_text", lambda: "-avx512f,-avx2")
    assert Compiler(None).key(text(1)) != here.key(text(1))


def test_a_refused_text_is_an_error_with_llvms_words_and_the_text() -> None:
    with pytest.raises(CompileError, match="expected instruction opcode") as caught:
        Compiler(None).address("define void @kernel() {\n  nonsense\n}\n")
    assert "nonsense" in str(caught.value)


def test_the_assembly_is_that_of_the_text() -> None:
    assert "ret" in Compiler(None).assembly(text(3))


def test_the_cache_folder_follows_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COREGRAD_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path / "cpu"
    monkeypatch.setenv("COREGRAD_CACHE", "0")
    assert cache_folder() is None
    monkeypatch.delenv("COREGRAD_CACHE")
    folder = cache_folder()
    assert folder is not None
    assert folder.parts[-2:] == ("coregrad", "cpu")
    assert folder.is_absolute()


def test_without_llvmlite_the_reason_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    target.binding.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BackendUnavailable, match="pip install llvmlite"):
        target.require()
    target.binding.cache_clear()


def test_an_old_processor_is_refused_with_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "is_x86", lambda: True)
    monkeypatch.setattr(target, "features", lambda: {"avx2": False, "fma": True, "f16c": True})
    with pytest.raises(BackendUnavailable, match="avx2, bmi2"):
        target.require()
