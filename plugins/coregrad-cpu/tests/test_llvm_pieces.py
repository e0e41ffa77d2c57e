"""Functions that many modules have in common are compiled once, for all shapes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from coregrad import Tensor, engine, planner, plugins
from coregrad_cpu.llvm import pieces
from coregrad_cpu.llvm.compiler import Compiler

TEXT = """\
; a comment
declare double @llvm.fabs.f64(double)
declare double @llvm.sqrt.f64(double)
define internal void @root(ptr noalias %x, i64 %count) noinline #0 {
entry:
  %a = load double, ptr %x
  %b = call double @llvm.sqrt.f64(double %a)
  store double %b, ptr %x
  ret void
}
define internal void @plain(ptr %x) #0 {
entry:
  call void @root(ptr %x, i64 2)
  ret void
}
define void @kernel(ptr %x, i64 %a, i64 %b) #0 {
entry:
  call void @root(ptr %x, i64 1)
  call void @plain(ptr %x)
  ret void
}
attributes #0 = { nounwind }
"""


def named(text: str) -> str:
    return f"{len(text)}"


def test_a_function_that_is_never_inlined_becomes_a_module() -> None:
    rest, (piece,) = pieces.cut(TEXT, named)
    assert piece.name.startswith("root_")
    assert piece.text.startswith("declare double @llvm.sqrt.f64(double)\ndefine void @root_")
    assert piece.text.endswith("attributes #0 = { nounwind }\n")
    assert f"declare void @{piece.name}(ptr, i64)\n" in rest
    assert rest.count(f"call void @{piece.name}(") == 2
    assert "define internal void @plain" in rest
    assert "@root(" not in rest


def test_a_text_without_such_functions_stays_as_it_is() -> None:
    text = TEXT.replace(" noinline", "")
    assert pieces.cut(text, named) == (text, [])


def test_modules_share_what_is_in_both_and_nothing_else(tmp_path: Path) -> None:
    compiler = Compiler(tmp_path)
    compiler.address(TEXT)
    assert compiler.counts["compiled"] == 2
    other = TEXT.replace("i64 1)", "i64 3)")
    assert compiler.address(other) != compiler.address(TEXT)
    assert compiler.counts["compiled"] == 3
    compiler.address(TEXT.replace("sqrt.f64(double %a)", "fabs.f64(double %a)"))
    assert compiler.counts["compiled"] == 5
    again = Compiler(tmp_path)
    again.address(other)
    assert dict(again.counts) == {"disk": 2}


def test_new_shapes_of_a_product_share_their_tiles_and_are_shown_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts: list[str] = []
    original = planner._rendered

    def seen(made: Any, text: str, *rest: Any) -> Any:
        texts.append(text)
        return original(made, text, *rest)

    monkeypatch.setattr(engine, "_plans", {})
    monkeypatch.setattr(planner, "_rendered", seen)
    rng = np.random.default_rng(0)
    w = rng.standard_normal((96, 128)).astype(np.float32)
    weight = Tensor(w, device="cpu")
    for rows in range(64, 84):
        x = rng.standard_normal((rows, 96)).astype(np.float32)
        got = (Tensor(x, device="cpu") @ weight).numpy()
        np.testing.assert_allclose(got, x.astype(np.float64) @ w, rtol=1e-4, atol=1e-4)
    assert len(texts) == 20
    assert all("define internal void @tile_" in text for text in texts)
    compiler = plugins.open_device("cpu").device.compiler
    used = [piece for text in texts for piece in pieces.cut(text, compiler.key)[1]]
    assert len({piece.name for piece in used}) * 2 < len(used)
    rests = [pieces.cut(text, compiler.key)[0] for text in texts]
    assert sum(map(len, rests)) * 2 < sum(map(len, texts))


STALE = """
import sys
import subprocess
import ctypes
import sys
from pathlib import Path
from coregrad_cpu.llvm import pieces
from coregrad_cpu.llvm.compiler import Compiler

text, folder, suffix = Path(sys.argv[1]).read_text(), Path(sys.argv[2]), sys.argv[3]
cut = pieces.cut
pieces.cut = lambda text, named: cut(text, lambda body: named(body) + suffix)
compiler = Compiler(folder)
word, number = ctypes.c_int64, ctypes.c_double(16.0)
function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, word, word)(compiler.address(text))
function(ctypes.addressof(number), 0, 1)
assert number.value == 2.0
"""


def test_code_on_disk_asks_for_no_function_by_a_name_of_another_version(tmp_path: Path) -> None:
    """Where a function is missing the process ends."""
    (tmp_path / "text").write_text(TEXT)
    for suffix in ("old", "new"):
        command = [sys.executable, "-c", STALE, str(tmp_path / "text"), str(tmp_path), suffix]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
