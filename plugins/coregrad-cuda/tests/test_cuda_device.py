"""The device itself: memory, launches, errors, replays, two GPUs, forks, tensors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from accelerators import DeviceTests, TensorTests, TimedTests

from coregrad import drivers, engine, plugins
from coregrad.activation import check_backend, check_device
from coregrad.dtypes import ALL
from coregrad.errors import BackendUnavailable, DeviceError, OutOfMemory, VerifyError

pytest.importorskip("coregrad_simt")

from coregrad_simt import report
from cuda_launching import launcher

from coregrad_cuda import driver
from coregrad_cuda.backend import Backend

pytestmark = pytest.mark.usefixtures("nothing_faulty")


class TestDevice(DeviceTests):
    launcher = launcher

    def test_an_error_of_the_driver_names_device_and_kernel(self, device: Any) -> None:
        super().test_an_error_of_the_driver_names_device_and_kernel(device)
        report.faults.clear()


class TestClock(TimedTests):
    launcher = launcher


def test_backend_and_device_meet_the_contract(device: Any) -> None:
    assert check_backend(Backend()) == []
    assert check_device(device) == []
    assert device.limits.dtypes == frozenset(ALL)
    assert device.limits.threads == 256
    assert device.limits.local_bytes == 49152
    assert "coregrad_simt" in device.title  # nobody takes this for a GPU


# ---- availability ------------------------------------------------------------------------------


def test_an_emulated_gpu_is_never_chosen_by_itself(
    emulation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Backend().rank() == "software"
    monkeypatch.setenv("COREGRAD_EMULATE", "metal")
    assert not drivers.is_emulated("cuda")


def test_without_a_gpu_the_reason_is_said(emulation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation, "count", 0)
    with pytest.raises(BackendUnavailable, match="cudaErrorNoDevice"):
        Backend().device_count()


def test_without_cupy_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COREGRAD_EMULATE", "")
    monkeypatch.setattr(drivers.importlib, "import_module", _raises(OSError("libcudart is broken")))
    with pytest.raises(BackendUnavailable, match="CuPy cannot be imported: libcudart is broken"):
        Backend().device_count()


def test_without_nvrtc_the_reason_is_said(emulation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc = driver.library().cuda.nvrtc
    monkeypatch.setattr(nvrtc, "getVersion", _raises(ImportError("libnvrtc.so.13: no such file")))
    with pytest.raises(BackendUnavailable, match=r"no NVRTC.*coregrad-cuda\[cuda13\]"):
        Backend().device_count()


def test_a_cupy_for_amd_is_refused(emulation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver.library().cuda.runtime, "is_hip", True)
    with pytest.raises(BackendUnavailable, match="install coregrad-opencl"):
        Backend().device_count()


def _raises(error: Exception) -> Any:
    def function(*_: Any) -> None:
        raise error

    return function


# ---- memory ------------------------------------------------------------------------------------


def test_a_large_copy_is_waited_for(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from coregrad_cuda import memory

    monkeypatch.setattr(memory, "LARGE", 100)
    TestDevice().test_bytes_come_back_as_they_went_in(device, 1000)


def test_what_the_pool_keeps_is_given_back_when_there_is_no_room(
    emulation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulation, "memory", 1 << 20)
    device = Backend().open_device(0)
    kept = [device.allocate(100_000) for _ in range(8)]
    for buffer in kept:
        device.free(buffer)
    del kept, buffer
    whole = device.allocate(900_000)  # fits only once the pieces are gone
    with pytest.raises(OutOfMemory, match=r"cuda \(Simulated.*allocating 900000 bytes"):
        device.allocate(900_000)
    device.free(whole)


def test_a_failed_allocation_is_tried_once_more(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, error = device._gpu._pool, device._gpu._cuda.memory.OutOfMemoryError
    real, asked = pool.malloc, []

    def malloc(size: int) -> Any:
        asked.append(size)
        if len(asked) == 1:
            raise error(size, 0)
        return real(size)

    monkeypatch.setattr(pool, "malloc", malloc)
    device.free(device.allocate(64))
    assert asked == [64, 64]


# ---- kernels -----------------------------------------------------------------------------------


def test_single_items_come_in_groups_that_keep_all_multiprocessors_busy(device: Any) -> None:
    case = launcher.case()
    compiled = device.compile(launcher.text_of(case.kernel, device))
    units = device._units
    for grid, threads in ((1, 32), (1000, 32), (units * 4 * 64, 64), (1 << 20, 256)):
        assert device._sizes(compiled, grid) == (-(-grid // threads), threads)
    with pytest.raises(DeviceError, match="groups; a launch has"):
        device._sizes(compiled, 1 << 50)


def test_groups_are_launched_as_they_are(device: Any) -> None:
    compiled = device.compile(launcher.text_of(launcher.case("group_sum").kernel, device))
    assert device._sizes(compiled, 1000)[0] == 1000


def test_the_compiler_is_asked_for_ieee_arithmetic(device: Any) -> None:
    assert "--ftz=false" in device.programs.options
    assert "--fmad=false" in device.programs.options
    assert device.programs.options[-1] == "--gpu-architecture=sm_90"


def test_a_gpu_newer_than_the_compiler_gets_intermediate_code(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device._gpu._cuda.nvrtc, "getSupportedArchs", lambda: (75, 80, 86))
    assert device._gpu.architecture == "compute_86"


# ---- replays -----------------------------------------------------------------------------------


def doubling(device: Any) -> Any:
    from kernels import Builder

    from coregrad.dtypes import float32

    b = Builder("double")
    x, out = b.param("x", float32, 40), b.param("out", float32, 40, "out")
    with b.loop(40, "grid") as i:
        value = b.load(x, i)
        b.store(out, i, b.op("add", value, value))
    return device.compile(launcher.text_of(b.kernel(), device))


def test_buffers_that_come_again_are_replayed_as_a_graph(device: Any) -> None:
    double = doubling(device)
    replay = device.replay([(double, [0, 1], 40), (double, [1, 3], 40)])  # slot 2 is nobody's
    sets = [[device.allocate(160) for _ in range(3)] for _ in range(3)]
    got = np.empty(40, np.float32)
    for turn in range(4):
        for x, middle, out in sets:
            data = np.random.default_rng(turn).standard_normal(40).astype(np.float32)
            device.copy_in(x, memoryview(data.view(np.uint8)))
            replay.run([x, middle, None, out])
            device.copy_out(out, memoryview(got.view(np.uint8)))
            assert np.array_equal(got, data * 4)
        assert replay.graphs == (0 if turn == 0 else 3)


def test_only_a_few_graphs_are_kept(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from coregrad_cuda import replay as module

    monkeypatch.setattr(module, "GRAPHS", 2)
    monkeypatch.setattr(module, "SETS", 3)
    replay = device.replay([(doubling(device), [0, 1], 40)])
    sets = [[device.allocate(160), device.allocate(160)] for _ in range(5)]
    for buffers in sets + sets + sets:
        device.copy_in(buffers[0], memoryview(bytes(160)))
        replay.run(buffers)
    assert replay.graphs == 0  # five sets in turn: each is forgotten before it comes again
    for buffers in [sets[0]] * 3 + [sets[1]] * 3 + [sets[2]] * 3:
        replay.run(buffers)
    assert replay.graphs == 2
    device.synchronize()


# ---- two GPUs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("opened", [False, True])
def test_bytes_go_from_one_gpu_to_the_other(emulation: Any, device: Any, opened: bool) -> None:
    other = Backend().open_device(1)
    emulation.devices[1].peers.clear()
    if opened:  # by somebody else
        emulation.devices[1].peers.add(0)
    assert other.name == "cuda:1"
    data = np.arange(1000, dtype=np.float32)
    source, target = device.allocate(4000), other.allocate(4000)
    device.copy_in(source, memoryview(data.view(np.uint8)))
    other.copy_peer(target, device, source, 4000)
    device.free(source)
    got = np.empty_like(data)
    other.copy_out(target, memoryview(got.view(np.uint8)))
    assert np.array_equal(got, data)
    assert emulation.devices[1].peers == {0}
    with pytest.raises(VerifyError, match="freed"):
        other.copy_peer(target, device, source, 4)


# ---- tensors -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def registry(emulation: Any) -> plugins.Registry:
    return plugins.Registry()


@pytest.fixture(params=["", "kernels"])
def name(
    registry: plugins.Registry, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> str:
    """The device's name for tensors; products by cuBLAS, and by the core's kernels."""
    monkeypatch.setenv("COREGRAD_CUDA_MATMUL", request.param)
    monkeypatch.setattr(plugins, "_registry", registry)
    monkeypatch.setattr(engine, "_plans", {})  # kernels of other devices, or made the other way
    return "cuda"


class TestTensors(TensorTests):
    @contextmanager
    def watched(self) -> Iterator[None]:
        """Kernels are launched, and products are cuBLAS's where they may be."""
        launches, products = report.launches(), report.counts["cublas: calls"]
        yield
        assert report.launches() > launches
        claimed = os.environ["COREGRAD_CUDA_MATMUL"] == ""
        assert (report.counts["cublas: calls"] > products) == claimed
