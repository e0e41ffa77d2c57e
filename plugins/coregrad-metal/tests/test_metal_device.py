"""The device itself: memory, launches, errors, forks, tensors, and the text of kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from accelerators import DeviceTests, TensorTests
from hook_cases import Case, group_cases, problems
from kernels import Builder

from coregrad import Tensor, drivers, engine, plugins
from coregrad.activation import check_backend, check_device
from coregrad.dtypes import float32
from coregrad.errors import (
    BackendUnavailable,
    DeviceError,
    OutOfMemory,
    UnsupportedOp,
)
from coregrad.ir.kernel import Kernel

pytest.importorskip("coregrad_simt")

from coregrad_simt import report
from metal_launching import launcher

from coregrad_metal import driver
from coregrad_metal.backend import Backend

pytestmark = pytest.mark.usefixtures("nothing_faulty")


class TestDevice(DeviceTests):
    launcher = launcher

    def test_an_error_of_the_driver_names_device_and_kernel(self, device: Any) -> None:
        super().test_an_error_of_the_driver_names_device_and_kernel(device)
        compiled = device.compile(launcher.text_of(launcher.case().kernel, device))
        with pytest.raises(DeviceError, match="threads; a launch has 4294967295"):
            device.launch(compiled, [], 1 << 32)
        report.faults.clear()


def test_backend_and_device_meet_the_contract(device: Any) -> None:
    assert check_backend(Backend()) == []
    assert check_device(device) == []
    assert device.limits.dtypes == frozenset(launcher.dtypes)
    assert device.limits.max_buffers == 31
    assert device.limits.local_bytes == 32768
    assert not device.limits.float_mod
    assert "coregrad_simt" in device.title  # nobody takes this for a GPU
    assert "experimental" in device.title


# ---- availability ------------------------------------------------------------------------------


def test_an_emulated_gpu_is_never_chosen_by_itself(
    emulation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Backend().rank() == "software"
    monkeypatch.setenv("COREGRAD_EMULATE", "cuda")
    assert not drivers.is_emulated("metal")


def test_without_metalcompute_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COREGRAD_EMULATE", "")

    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(drivers.importlib, "import_module", absent)
    with pytest.raises(BackendUnavailable, match="No module named 'metalcompute'"):
        Backend().device_count()


def test_without_a_gpu_the_reason_is_said(emulation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver.library(), "get_devices", lambda: ())
    with pytest.raises(BackendUnavailable, match="no GPU that Metal knows"):
        Backend().device_count()


# ---- memory ------------------------------------------------------------------------------------


def test_host_bytes_wait_for_the_kernels_that_use_their_buffer(device: Any) -> None:
    """Also those of the buffer's earlier owner: the memory is one."""
    double = device.compile(launcher.text_of(doubling(), device))
    x, out = device.allocate(5000), device.allocate(5000)
    device.copy_in(x, memoryview(np.full(40, 3, np.float32).view(np.uint8)))
    device.launch(double, [x, out], 40)
    device.free(x)
    again = device.allocate(5000)
    assert again.busy
    device.copy_in(again, memoryview(np.full(40, 9, np.float32).view(np.uint8)))
    got = np.empty(40, np.float32)
    device.copy_out(out, memoryview(got.view(np.uint8)))
    assert (got == 6).all()


def test_more_than_the_device_has_is_out_of_memory(device: Any) -> None:
    with pytest.raises(OutOfMemory, match="the GPU's share of memory"):
        device.allocate(1 << 50)


# ---- kernels -----------------------------------------------------------------------------------


def doubling() -> Kernel:
    b = Builder("double")
    x, out = b.param("x", float32, 40), b.param("out", float32, 40, "out")
    with b.loop(40, "grid") as i:
        value = b.load(x, i)
        b.store(out, i, b.op("add", value, value))
    return b.kernel()


DOUBLE = """\
// coregrad kernel double_: grid 40, threads 0
#include <metal_stdlib>
using namespace metal;
#pragma clang fp contract(off)

[[max_total_threads_per_threadgroup(256)]] kernel void double_(\
device const float *x [[buffer(0)]], device float *out [[buffer(1)]], \
uint item_id [[thread_position_in_grid]], \
uint group_id [[threadgroup_position_in_grid]], uint thread_id [[thread_position_in_threadgroup]]) {
  const int i1 = (int)item_id;
  if (i1 < 40) {
    const float v1 = x[i1];
    out[i1] = v1 + v1;
  }
}
"""


def test_a_kernel_reads_like_a_program(device: Any) -> None:
    assert launcher.text_of(doubling(), device) == DOUBLE


@pytest.mark.parametrize("threads", [8, 16, 32, 64])
def test_groups_of_few_threads_are_filled_up(device: Any, threads: int) -> None:
    """A group cannot have fewer threads than run as one; those beyond store nothing."""
    for case in group_cases(launcher.dtypes, threads):
        text = launcher.text_of(case.kernel, device)
        own = int(text.partition("threads ")[2].split()[0])
        assert f"threadgroup({max(32, own)})" in text
        assert ("runs" in text) == (own < 32)
        assert problems(case, launcher.run(device, case)) == []


def test_floats_are_written_in_decimal(device: Any) -> None:
    b = Builder("constants")
    out = b.param("out", float32, 3, "out")
    for i, value in enumerate((0.1, 1e-45, 1e30)):
        b.store(out, i, b.const(float(np.float32(value)), float32))
    text = launcher.text_of(b.kernel(), device)
    assert "0x" not in text
    case = Case("constants", b.kernel())
    got = launcher.run(device, case)["out"]
    assert np.array_equal(got, np.array([0.1, 1e-45, 1e30], np.float32))


def test_launches_are_not_left_unawaited_for_ever(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "PENDING", 3)
    device.synchronize()
    double = device.compile(launcher.text_of(doubling(), device))
    x, out = device.allocate(160), device.allocate(160)
    device.copy_in(x, memoryview(bytes(160)))
    pending = []
    for _ in range(8):
        device.launch(double, [x, out], 40)
        pending.append(device._gpu.pending)
    assert pending == [1, 2, 3, 1, 2, 3, 1, 2]
    device.synchronize()
    assert device._gpu.pending == 0


@pytest.mark.slow
def test_every_pointer_has_the_right_address_space(device: Any) -> None:
    """By clang, which has the same address spaces in another language."""
    from coregrad_simt.errors import MissingTool
    from coregrad_simt.metal import spaces

    if shutil.which("clang") is None and "COREGRAD_SIMT_CLANG" not in os.environ:
        pytest.skip("clang is not installed")
    for case in [*launcher.cases, *group_cases(launcher.dtypes, 16)]:
        try:
            spaces.check(launcher.text_of(case.kernel, device))
        except MissingTool as error:
            pytest.skip(str(error))


# ---- tensors -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def registry(emulation: Any) -> plugins.Registry:
    return plugins.Registry()


@pytest.fixture
def name(registry: plugins.Registry, monkeypatch: pytest.MonkeyPatch) -> str:
    """The device's name for tensors."""
    monkeypatch.setattr(plugins, "_registry", registry)
    monkeypatch.setattr(engine, "_plans", {})  # kernels of other devices
    return "metal"


class TestTensors(TensorTests):
    @contextmanager
    def watched(self) -> Iterator[None]:
        """Kernels are launched."""
        launches = report.launches()
        yield
        assert report.launches() > launches


def test_float64_is_refused_where_a_tensor_of_it_is_made(name: str) -> None:
    with pytest.raises(UnsupportedOp, match="no float64"):
        Tensor(np.zeros(3), device=name, dtype="float64")


def test_a_remainder_of_floats_is_exact_though_metal_has_none(name: str) -> None:
    x = np.array([5.5, -5.5, 1e20, 7.0], np.float32)
    got = Tensor(x, device=name).fmod(Tensor(np.float32(3.7), device=name)).numpy()
    assert np.array_equal(got, np.fmod(x, np.float32(3.7)))


# ---- the self-check ----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_self_check_says_what_was_run_and_what_failed(emulation: Any) -> None:
    command = [sys.executable, "-m", "coregrad_metal.selfcheck", "--only", "add/*"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Simulated Metal (coregrad_simt)" in done.stdout
    assert "emulated" in done.stdout
    assert "rows passed" in done.stdout


def test_the_self_check_says_why_there_is_no_device() -> None:
    environment = {name: x for name, x in os.environ.items() if name != "COREGRAD_EMULATE"}
    command = [sys.executable, "-m", "coregrad_metal.selfcheck"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode != 0
    assert "metalcompute" in done.stdout + done.stderr
