"""The runtime's two ways of switching, PTX that is not known, the assembler, the report."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coregrad_simt import __main__ as command
from coregrad_simt import compiler, cuda, fakes, memory, report, settings
from coregrad_simt.cuda import assembly, ptx, ptxas, signature
from coregrad_simt.cuda.ptx import types
from coregrad_simt.cuda.ptx.translate import translate
from coregrad_simt.errors import CompileError, MemoryFault, SettingError, UnsupportedPTX

ROWS = """
extern "C" __global__ void __launch_bounds__(64) k(float* o, const float* x) {
  __shared__ float s[64];
  const int t = threadIdx.x;
  s[t] = x[blockIdx.x * 64 + t];
  __syncthreads();
  for (int n = 32; n > 0; n >>= 1) {
    if (t < n) s[t] += s[t + n];
    __syncthreads();
  }
  if (t == 0) o[blockIdx.x] = s[0];
}
"""

# ---- the runtime ---------------------------------------------------------------------------------

UCONTEXT = """
import sys, numpy as np, ctypes
from coregrad_simt.cuda import source
from coregrad_simt.errors import Fault
from coregrad_simt.kernel import launch
from coregrad_simt.memory import Buffer
text = sys.stdin.read()
def run(text):
    o, x = Buffer(8), Buffer(512)
    x.data.view(np.float32)[:] = 1
    values = [ctypes.c_void_p(b.address) for b in (o, x)]
    launch(source.kernels(text)["k"], values, [o, x], (2, 1, 1), (64, 1, 1))
    return o.data.view(np.float32).tolist()
assert run(text) == [64, 64]
try:
    run(text.replace("    __syncthreads();", "    if (t < n) __syncthreads();"))
except Fault as error:
    assert "divergent barrier" in str(error)
else:
    raise SystemExit("the divergent barrier was not found")
"""


@pytest.mark.parametrize("flags", ["", "-DSIMT_UCONTEXT"])
def test_both_ways_of_switching_fibers_work(flags: str) -> None:
    environment = {**os.environ, "COREGRAD_SIMT_RUNTIME_FLAGS": flags}
    program = [sys.executable, "-c", UCONTEXT]
    subprocess.run(program, input=ROWS, text=True, check=True, env=environment)


def test_threads_of_the_host_take_turns(run: Callable[..., list[Any]]) -> None:
    x = np.arange(128, dtype=np.float32)
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(5):
            got = run(ROWS, np.zeros(2, np.float32), x, grid=2)[0]
            wrong.extend(got[got != x.reshape(2, 64).sum(1)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert report.launches() == 20


def test_a_write_next_to_a_buffer_is_found_by_its_canary() -> None:
    buffer = memory.Buffer(20)
    memory._bytes_at(buffer.address, 24)[21] = 0
    with pytest.raises(MemoryFault, match=r"x: a write beyond the end of 20 bytes, at \+1"):
        buffer.check("x")
    memory._bytes_at(buffer.address - 4, 4)[2] = 0
    with pytest.raises(MemoryFault, match=r"x: a write before the start of 20 bytes, at -2"):
        buffer.check("x")
    buffer.check("x")


def test_an_order_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COREGRAD_SIMT_ORDERS", "forward,sideways")
    with pytest.raises(SettingError, match="sideways"):
        settings.orders()


def test_compiled_texts_are_kept_by_text_and_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COREGRAD_SIMT_CACHE", str(tmp_path))
    first = compiler.shared_object("int x;", ["-O1"])
    assert compiler.shared_object("int x;", ["-O1"]) == first
    assert compiler.shared_object("int x;", ["-O2"]) != first
    assert compiler.shared_object("int y;", ["-O1"]) != first
    assert len(list(tmp_path.iterdir())) == 3


def test_two_switches_of_the_report_count_launches_and_executions(
    run: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.ones(64, np.float32)
    run(ROWS, np.zeros(1, np.float32), x)
    monkeypatch.setenv("COREGRAD_SIMT_ORDERS", "forward")
    run(ROWS, np.zeros(1, np.float32), x)
    assert report.counts["cuda-a: programs made ready"] == 1
    assert report.counts["cuda-a: kernels launched"] == 2
    assert report.counts["cuda-a: executions"] == 4


# ---- PTX that is not known -----------------------------------------------------------------------

PTX = """
.version 9.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 k_param_0)
{{
  .reg .b32 %r<4>;
  .reg .f32 %f<4>;
  {}
  ret;
}}
"""


@pytest.mark.parametrize(
    "instruction",
    [
        "frobnicate.s32 %r1, %r2, %r3;",
        "add.rm.f64 %f1, %f2, %f3;",
        "add.sat.s32 %r1, %r2, %r3;",
        "mul.sideways.s32 %r1, %r2, %r3;",
        "mov.u32 %r1, %clock;",
        "bar.sync 1, 64;",
        "mov.b32 %r1, %r99;",
        "ld.global.surprise.f32 %f1, [%r1];",
        "wmma.load.a.sync.aligned.m16n16k16.global.row.f16 {%r1}, [%r2];",
        "cvt.rn.f16.f64 %r1, %f1;",
    ],
)
def test_an_unknown_instruction_is_refused_and_named(instruction: str) -> None:
    with pytest.raises(UnsupportedPTX) as found:
        translate(PTX.format(instruction))
    assert "line 9" in str(found.value)
    assert instruction.split()[0] in str(found.value)


def test_assembly_that_is_not_known_is_refused() -> None:
    with pytest.raises(UnsupportedPTX, match="membrane"):
        assembly.without_assembly('asm volatile("membrane.sync %0;" : "=r"(x));')


def test_assembly_keeps_the_lines() -> None:
    statement = 'asm("mov.u32 %0, %1;"\n : "=r"(x)\n : "r"(7));'
    text = f"int f() {{\n  int x;\n  {statement}\n  return x;\n}}\n"
    translated = assembly.without_assembly(text)
    assert translated.splitlines()[5] == "  return x;"
    assert "asm" not in translated


def test_the_instructions_of_a_text_are_known(has_nvrtc: None) -> None:
    assert "bar.sync" in ptx.instructions(ROWS)


# ---- the assembler -------------------------------------------------------------------------------


def spilling(count: int) -> str:
    """A kernel with that many values alive at a time."""
    names = [f"v{i}" for i in range(count)]
    loads = "\n".join(
        f"  float {name} = x[{i} * 64 + threadIdx.x];" for i, name in enumerate(names)
    )
    loop = " ".join(
        f"{a} = {a} * {b} + n;" for a, b in zip(names, names[1:] + names[:1], strict=True)
    )
    return f"""
extern "C" __global__ void __launch_bounds__(64) k(float* o, const float* x, int n) {{
{loads}
  for (int i = 0; i < n; i++) {{ {loop} }}
  o[threadIdx.x] = {" + ".join(names)};
}}
"""


@pytest.mark.parametrize("architecture", ptxas.ARCHITECTURES)
def test_a_kernels_resources_on_each_architecture(has_ptxas: None, architecture: str) -> None:
    assert len(ptxas.cubin(ROWS, architecture)) > 1000
    found = ptxas.resources(ROWS, architecture)["k"]
    assert found.shared == 256
    assert 0 < found.registers < 64
    assert not found.spills


def test_spilled_registers_are_seen(has_ptxas: None) -> None:
    assert not ptxas.resources(spilling(16), "sm_90")["k"].spills
    assert ptxas.resources(spilling(300), "sm_90")["k"].spills


def test_a_text_that_nvidia_does_not_accept(has_nvrtc: None) -> None:
    with pytest.raises(CompileError, match="undefined"):
        ptxas.cubin('extern "C" __global__ void k(int* o) { o[0] = unknown; }', "sm_90")


@pytest.mark.parametrize("module", [cuda, signature, types, fakes], ids=lambda m: m.__name__)
def test_the_examples_in_docstrings(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


# ---- the command line ----------------------------------------------------------------------------


def test_a_report_adds_up_processes_and_fails_without_a_launch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report"
    assert command.main(["report", str(path)]) == 1
    program = "from coregrad_simt import report; report.launched('metal', 3)"
    environment = {**os.environ, "COREGRAD_SIMT_REPORT": str(path)}
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program], check=True, env=environment)
    assert command.main(["report", str(path)]) == 0
    assert "metal: kernels launched: 2" in capsys.readouterr().out
    program = "from coregrad_simt import report; report.fault('k: a race')"
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
    assert command.main(["report", str(path)]) == 1
    assert "fault: k: a race" in capsys.readouterr().out


def test_every_text_that_was_met_is_assembled(
    has_ptxas: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["cubins", str(tmp_path)]) == 1, "there is none"
    (tmp_path / "rows.cu").write_text(ROWS)
    assert command.main(["cubins", str(tmp_path), "--arch", "sm_90"]) == 0
    assert "sm_90: 1 kernels" in capsys.readouterr().out
    (tmp_path / "spilling.cu").write_text(spilling(300))
    assert command.main(["cubins", str(tmp_path), "--arch", "sm_90"]) == 1
    assert "k for sm_90: Resources(registers=" in capsys.readouterr().out
    tiled = ["cubins", str(tmp_path), "--arch", "sm_90", "--tiled"]
    assert command.main(tiled) == 0
    said = capsys.readouterr().out
    assert "; 1 (k) spill" in said
    assert "sm_90: 1 of them with shared memory" in said


def test_a_text_that_is_at_fault_is_named_and_spoils_no_other(
    has_nvrtc: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.cu").write_text(ROWS)
    (tmp_path / "wrong.cu").write_text(ROWS.replace("s[0]", "unknown"))
    assert command.main(["cubins", str(tmp_path), "--arch", "sm_80"]) == 1
    said = capsys.readouterr().out
    assert "wrong.cu for sm_80:" in said
    assert 'identifier "unknown" is undefined' in said
    assert "sm_80: 1 kernels" in said


def test_a_tiled_kernel_that_spills_or_takes_too_much_is_wrong(
    has_nvrtc: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiled = spilling(300).replace("{\n", "{\n  __shared__ float s[64]; s[threadIdx.x] = n;\n", 1)
    (tmp_path / "spilling.cu").write_text(
        tiled.replace("o[threadIdx.x] =", "o[threadIdx.x] = s[1] +")
    )
    assert command.main(["cubins", str(tmp_path), "--arch", "sm_90", "--tiled"]) == 1
    assert "spill_stores=" in capsys.readouterr().out
    (tmp_path / "spilling.cu").write_text(ROWS.replace("s[64]", "s[12289]"))
    assert command.main(["cubins", str(tmp_path), "--arch", "sm_90", "--tiled"]) == 1


@pytest.mark.parametrize("architecture", ptxas.ARCHITECTURES)
def test_kernels_compiled_together_use_what_they_use_alone(
    has_ptxas: None, architecture: str
) -> None:
    """And NVRTC says of them what ptxas does."""
    texts = [ROWS, spilling(16), spilling(300)]
    together = ptxas.batched(texts, architecture)
    assert together == [ptxas.resources(text, architecture) for text in texts]


def test_a_path_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["path", "cupy"]) == 0
    assert (Path(capsys.readouterr().out.strip()) / "cupy" / "__init__.py").exists()
