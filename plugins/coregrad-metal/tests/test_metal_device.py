"""The device itself: memory, launches, errors, forks, tensors, and the text of kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hook_cases import Case, cases, group_cases, problems
from kernels import Builder

from coregrad import Tensor, TinyJit, engine, plugins
from coregrad.activation import check_backend, check_device
from coregrad.dtypes import ALL, float32, float64
from coregrad.errors import (
    BackendUnavailable,
    CompileError,
    DeviceError,
    OutOfMemory,
    UnsupportedOp,
    VerifyError,
)
from coregrad.ir.kernel import Kernel

pytest.importorskip("coregrad_simt")

import metal_launching as launching
from coregrad_simt import report

from coregrad_metal import driver
from coregrad_metal.backend import Backend
from coregrad_metal.memory import Pool

HAVE = [dtype for dtype in ALL if dtype is not float64]


@pytest.fixture(autouse=True)
def _nothing_faulty() -> Iterator[None]:
    """Whatever a test does, no kernel touches what is not its own."""
    report.faults.clear()
    yield
    assert report.faults == []


def a_case(name: str = "arithmetic_float32") -> Case:
    found = [*cases(HAVE, lacking=("fmod",)), *group_cases(HAVE, 256)]
    return next(case for case in found if case.name == name)


def test_backend_and_device_meet_the_contract(device: Any) -> None:
    assert check_backend(Backend()) == []
    assert check_device(device) == []
    assert device.limits.dtypes == frozenset(HAVE)
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
    assert not driver.is_emulated()


def test_without_metalcompute_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COREGRAD_EMULATE", "")

    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(driver.importlib, "import_module", absent)
    with pytest.raises(BackendUnavailable, match="No module named 'metalcompute'"):
        Backend().device_count()


def test_without_a_gpu_the_reason_is_said(emulation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver.library(), "get_devices", lambda: ())
    with pytest.raises(BackendUnavailable, match="no GPU that Metal knows"):
        Backend().device_count()


# ---- memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 255, 256, 257, 100_003])
def test_bytes_come_back_as_they_went_in(device: Any, size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    buffer = device.allocate(size)
    device.copy_in(buffer, memoryview(data))
    want = data.copy()
    data[:] = 0  # the host may change what it gave
    got = np.empty(size, np.uint8)
    device.copy_out(buffer, memoryview(got))
    device.free(buffer)
    assert np.array_equal(got, want)


def test_a_copy_that_leaves_the_buffer_is_refused(device: Any) -> None:
    buffer = device.allocate(256)
    with pytest.raises(VerifyError, match="copy: 300 bytes"):
        device.copy_in(buffer, memoryview(np.zeros(300, np.uint8)))
    device.free(buffer)
    with pytest.raises(VerifyError, match="freed"):
        device.copy_out(buffer, memoryview(np.zeros(1, np.uint8)))


def test_host_bytes_wait_for_the_kernels_that_use_their_buffer(device: Any) -> None:
    """Also those of the buffer's earlier owner: the memory is one."""
    double = device.compile(launching.text_of(doubling(), device))
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


def test_what_is_kept_is_given_back_when_there_is_no_room() -> None:
    """A driver with room for one buffer at a time, as it turns out."""
    waited, refused = [], [False]

    def make(size: int) -> bytearray:
        if refused[0]:
            refused[0] = False
            raise OutOfMemory("full")
        return bytearray(size)

    pool = Pool(make, lambda: waited.append(1), 1 << 20)
    refused[0] = True
    with pytest.raises(OutOfMemory):
        pool.take(512)  # nothing is kept
    pool.give(pool.take(512))
    refused[0] = True
    assert pool.take(768).raw is not None
    assert waited
    assert pool.kept == 0


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
    assert launching.text_of(doubling(), device) == DOUBLE


@pytest.mark.parametrize("threads", [8, 16, 32, 64])
def test_groups_of_few_threads_are_filled_up(device: Any, threads: int) -> None:
    """A group cannot have fewer threads than run as one; those beyond store nothing."""
    for case in group_cases(HAVE, threads):
        text = launching.text_of(case.kernel, device)
        own = int(text.partition("threads ")[2].split()[0])
        assert f"threadgroup({max(32, own)})" in text
        assert ("runs" in text) == (own < 32)
        assert problems(case, launching.run(device, case)) == []


def test_floats_are_written_in_decimal(device: Any) -> None:
    b = Builder("constants")
    out = b.param("out", float32, 3, "out")
    for i, value in enumerate((0.1, 1e-45, 1e30)):
        b.store(out, i, b.const(float(np.float32(value)), float32))
    text = launching.text_of(b.kernel(), device)
    assert "0x" not in text
    case = Case("constants", b.kernel())
    got = launching.run(device, case)["out"]
    assert np.array_equal(got, np.array([0.1, 1e-45, 1e30], np.float32))


def test_a_text_that_the_compiler_refuses_names_device_and_kernel(device: Any) -> None:
    text = launching.text_of(a_case().kernel, device)
    with pytest.raises(CompileError) as caught:
        device.compile(text.replace("x0[i1]", "x0[nowhere]", 1))
    said = str(caught.value)
    assert device.title in said
    assert "kernel arithmetic_float32" in said
    assert "nowhere" in said  # the compiler's words


def test_an_error_of_the_driver_names_device_and_kernel(device: Any) -> None:
    compiled = device.compile(launching.text_of(a_case().kernel, device))
    with pytest.raises(DeviceError, match="kernel arithmetic_float32") as caught:
        device.launch(compiled, [], 10)  # without its arguments
    assert device.title in str(caught.value)
    with pytest.raises(DeviceError, match="threads; a launch has 4294967295"):
        device.launch(compiled, [], 1 << 32)
    report.faults.clear()


def test_a_program_is_built_once(device: Any) -> None:
    text = launching.text_of(a_case().kernel, device)
    assert device.compile(text) is device.compile(text)


def test_launches_are_not_left_unawaited_for_ever(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "PENDING", 3)
    device.synchronize()
    double = device.compile(launching.text_of(doubling(), device))
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
    for case in [*cases(HAVE, lacking=("fmod",)), *group_cases(HAVE, 16)]:
        try:
            spaces.check(launching.text_of(case.kernel, device))
        except MissingTool as error:
            pytest.skip(str(error))


# ---- processes ---------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process")  # Python's own warning, that threads are lost
def test_a_forked_child_gets_an_error(device: Any) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            device.synchronize()
            said = "nothing was raised"
        except DeviceError as error:
            said = str(error)
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    deadline = time.monotonic() + 60
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        time.sleep(0.01)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    assert "forked" in said
    assert "spawn" in said


# ---- tensors -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def registry(emulation: Any) -> plugins.Registry:
    return plugins.Registry()


@pytest.fixture
def metal(registry: plugins.Registry, monkeypatch: pytest.MonkeyPatch) -> str:
    """The device's name for tensors."""
    monkeypatch.setattr(plugins, "_registry", registry)
    monkeypatch.setattr(engine, "_plans", {})  # kernels of other devices
    return "metal"


def training(device: str, jit: bool) -> list[Any]:
    """Steps of a network of three layers: losses, then the weights."""
    rng = np.random.default_rng(1)
    x = Tensor(rng.standard_normal((16, 10), np.float32), device=device)
    labels = Tensor(rng.integers(0, 9, 16), device=device)
    shapes = ((10, 16), (16,), (16, 12), (12,), (12, 9), (9,))
    weights = [
        Tensor(rng.standard_normal(s, np.float32) * 0.3, device=device, requires_grad=True)
        for s in shapes
    ]

    def step() -> Any:
        w1, b1, w2, b2, w3, b3 = weights
        hidden = ((x @ w1 + b1).relu() @ w2 + b2).tanh()
        scores = hidden @ w3 + b3
        loss = -(scores.log_softmax(1)[Tensor.arange(16, device=device), labels]).mean()
        for w in weights:
            w.grad = None
        loss.backward()
        for w in weights:
            w.data.sub_(w.grad * 0.1)
        return loss

    step = TinyJit(step) if jit else step
    losses = [step().item() for _ in range(5)]
    return [np.array(losses), *(w.numpy() for w in weights)]


@pytest.mark.parametrize("jit", [False, True])
def test_training_gives_the_numbers_of_the_cpu(metal: str, jit: bool) -> None:
    launches = report.launches()
    for ours, theirs in zip(training(metal, jit), training("cpu", jit), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert report.launches() > launches


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_other_floats_give_the_numbers_of_the_reference(metal: str, dtype: str) -> None:
    def values(device: str) -> Any:
        x = Tensor(np.linspace(-4, 4, 33, dtype=np.float32), device=device).to(dtype)
        return ((x * x + 1).sqrt() / (x.exp() + 1)).float().numpy()

    tolerance = {"float16": 2e-3, "bfloat16": 2e-2}[dtype]
    np.testing.assert_allclose(values(metal), values("numpy"), rtol=tolerance)


def test_float64_is_refused_where_a_tensor_of_it_is_made(metal: str) -> None:
    with pytest.raises(UnsupportedOp, match="no float64"):
        Tensor(np.zeros(3), device=metal, dtype="float64")


def test_a_remainder_of_floats_is_exact_though_metal_has_none(metal: str) -> None:
    x = np.array([5.5, -5.5, 1e20, 7.0], np.float32)
    got = Tensor(x, device=metal).fmod(Tensor(np.float32(3.7), device=metal)).numpy()
    assert np.array_equal(got, np.fmod(x, np.float32(3.7)))


def test_an_index_out_of_range_is_an_error(metal: str) -> None:
    table = Tensor(np.arange(5, dtype=np.float32), device=metal)
    index = Tensor(np.array([1, 7]), device=metal) + 0
    with pytest.raises(IndexError, match=r"outside \[-5, 5\)"):
        table[index].numpy()


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
