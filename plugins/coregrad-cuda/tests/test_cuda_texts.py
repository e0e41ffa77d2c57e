"""The texts: CUDA C++ that reads like a program, and that NVIDIA's compiler takes for every GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cuda_launching import missing
from hook_cases import cases, group_cases
from kernels import Builder, hooks_of

from coregrad.cstyle import CStyle, geometry
from coregrad.dtypes import ALL, bfloat16, float16, float32, int64
from coregrad.hookspecs import Limits
from coregrad.ir.emit import emit
from coregrad.ir.kernel import Kernel
from coregrad_cuda.driver import IEEE
from coregrad_cuda.words import CUDA, HIP

LIMITS = Limits(dtypes=frozenset(ALL), threads=256)
ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_120")


class NoDevice:
    def device_count(self) -> int:
        return 0

    def open_device(self, index: int) -> Any:
        raise NotImplementedError


class Cuda(NoDevice, CStyle):
    words = CUDA


class Hip(NoDevice, CStyle):
    words = HIP


def text_of(kernel: Kernel, backend: Any = None) -> str:
    backend = backend or Cuda()
    text: str = emit(kernel, backend, hooks_of(backend), LIMITS)
    return text


def all_texts(backend: Any = None) -> list[str]:
    return [text_of(case.kernel, backend) for case in [*cases(ALL), *group_cases(ALL, 256)]]


# ---- what they look like -----------------------------------------------------------------------

SUM = """\
// coregrad kernel sums: grid 100, threads 0

extern "C" __global__ void __launch_bounds__(256) sums(const float *__restrict__ x, \
float *__restrict__ out) {
  const int i1 = (int)((long long)blockIdx.x * blockDim.x + threadIdx.x);
  if (i1 < 100) {
    float a2 = 0.0f;
    const int v1 = i1 * 8;
    for (int i3 = 0; i3 < 8; i3++) {
      a2 = fmaf(x[v1 + i3], 2.5f, a2);
    }
    out[i1] = a2;
  }
}
"""


def sums(rows: int) -> Kernel:
    b = Builder("sums")
    x, out = b.param("x", float32, rows * 8), b.param("out", float32, rows, "out")
    with b.loop(rows, "grid") as i:
        acc = b.acc("add", float32)
        with b.loop(8) as j:
            b.update(acc, b.op("mul", b.load(x, i * 8 + j), b.const(2.5, float32)))
        b.store(out, i, b.result(acc, used=[i]))
    return b.kernel()


def test_a_kernel_reads_like_a_program() -> None:
    assert text_of(sums(100)) == SUM


def test_a_grid_of_whole_groups_needs_no_test() -> None:
    text = text_of(sums(512))
    assert "if (" not in text
    assert geometry(text).exact
    assert "if (i1 < 1000)" in text_of(sums(1000))  # though groups of 250 would do


def test_one_thread_runs_a_kernel_without_a_grid() -> None:
    b = Builder("one")
    out = b.param("out", int64, 1, "out")
    b.store(out, 0, b.const(7, int64))
    text = text_of(b.kernel())
    assert "if (((long long)blockIdx.x * blockDim.x + threadIdx.x) == 0) {\n    out[0] = 7" in text


def test_an_index_beyond_32_bits_is_computed_in_64() -> None:
    b = Builder("wide")
    x, out = b.param("x", float32, 1 << 33), b.param("out", float32, 1 << 33, "out")
    with b.loop(1 << 33, "grid") as i:
        b.store(out, i, b.load(x, i))
    text = text_of(b.kernel())
    assert "const long long i1 = (long long)((long long)blockIdx.x * blockDim.x" in text


@pytest.mark.parametrize("dtype", [float16, bfloat16])
def test_halves_are_converted_without_headers(dtype: Any) -> None:
    b = Builder("halves")
    x, out = b.param("x", dtype, 32), b.param("out", dtype, 32, "out")
    with b.loop(32, "grid") as i:
        value = b.load(x, i)
        b.store(out, i, b.op("add", value, value))
    text = text_of(b.kernel())
    assert "#include" not in text
    assert {float16: "cvt.rn.f16.f32", bfloat16: "cvt.rn.bf16.f32"}[dtype] in text


# ---- compilers ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nvrtc() -> Any:
    """NVIDIA's compiler, which needs no GPU."""
    try:
        from coregrad_simt.cuda import nvrtc
    except ImportError as error:
        missing(f"coregrad-simt is not installed: {error}")
    from coregrad_simt.errors import MissingTool

    try:
        nvrtc.library()
    except MissingTool as error:
        missing(f"NVRTC is not installed (nvidia-cuda-nvrtc): {error}")
    return nvrtc


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvrtc_takes_every_text(nvrtc: Any, architecture: str) -> None:
    options = (*IEEE, f"--gpu-architecture={architecture}")
    for text in all_texts():
        assert nvrtc.cubin(text, options).startswith(b"\x7fELF")


REAL = """
import sys
from types import SimpleNamespace
try:
    import cupy
    cupy.cuda.nvrtc.getVersion()
except Exception as error:
    print("absent", error)
    sys.exit()
from coregrad_cuda.driver import IEEE, Driver
gpu = SimpleNamespace(_cuda=cupy.cuda, architecture="sm_80")
options = (*IEEE, "--gpu-architecture=sm_80")
print(Driver.compiled(gpu, sys.argv[1], options)[:4])
try:
    Driver.compiled(gpu, "nonsense", options)
except ValueError as error:
    print(error)
"""


def test_cupys_own_nvrtc_is_asked_rightly(nvrtc: Any) -> None:
    """It works without a GPU, in a process where the fake has not taken CuPy's place."""
    environment = {name: x for name, x in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", REAL, text_of(sums(100))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    if done.stdout.startswith("absent"):
        pytest.skip(f"CuPy is not here: {done.stdout.splitlines()[0]}")
    lines = done.stdout.splitlines()
    assert lines[0] == r"b'\x7fELF'"
    assert "NVRTC_ERROR_COMPILATION" in lines[1]
    assert "nonsense" in done.stdout


@pytest.mark.slow
def test_hipcc_takes_every_text(tmp_path: Path) -> None:
    """AMD's compiler, for a GPU of 2021. Nothing of coregrad runs the result."""
    hipcc = shutil.which("hipcc")
    if hipcc is None:
        pytest.skip("hipcc is not installed")
    source = tmp_path / "kernels.hip"
    for number, text in enumerate(all_texts(Hip())):
        name = geometry(text).name
        source.write_text(text.replace(f" {name}(", f" {name}_{number}("))
        command = [hipcc, "--genco", "--offload-arch=gfx90a", "-ffp-contract=off"]
        done = subprocess.run(
            [*command, str(source), "-o", str(tmp_path / "out")], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
