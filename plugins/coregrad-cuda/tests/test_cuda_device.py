"""The device itself: memory, launches, errors, replays, two GPUs, forks, tensors."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hook_cases import Case, cases, group_cases, problems

from coregrad import Tensor, TinyJit, engine, plugins
from coregrad.activation import check_backend, check_device
from coregrad.dtypes import ALL
from coregrad.errors import BackendUnavailable, CompileError, DeviceError, OutOfMemory, VerifyError

pytest.importorskip("coregrad_simt")

import cuda_launching as launching
from coregrad_simt import report

from coregrad_cuda import driver
from coregrad_cuda.backend import Backend


@pytest.fixture(autouse=True)
def _nothing_faulty() -> Iterator[None]:
    """Whatever a test does, no kernel touches what is not its own."""
    report.faults.clear()
    yield
    assert report.faults == []


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
    assert not driver.is_emulated()


def test_without_a_gpu_the_reason_is_said(emulation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation, "count", 0)
    with pytest.raises(BackendUnavailable, match="cudaErrorNoDevice"):
        Backend().device_count()


def test_without_cupy_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COREGRAD_EMULATE", "")
    monkeypatch.setattr(driver.importlib, "import_module", _raises(OSError("libcudart is broken")))
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


@pytest.mark.parametrize("size", [1, 3, 255, 256, 257, 100_003])
def test_bytes_come_back_as_they_went_in(device: Any, size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    buffer = device.allocate(size)
    device.copy_in(buffer, memoryview(data))
    want = data.copy()
    data[:] = 0  # the host may change what it gave, though the copy has not been made
    got = np.empty(size, np.uint8)
    device.copy_out(buffer, memoryview(got))
    device.free(buffer)
    assert np.array_equal(got, want)


def test_a_large_copy_is_waited_for(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from coregrad_cuda import memory

    monkeypatch.setattr(memory, "LARGE", 100)
    test_bytes_come_back_as_they_went_in(device, 1000)


def test_a_copy_that_leaves_the_buffer_is_refused(device: Any) -> None:
    buffer = device.allocate(256)
    with pytest.raises(VerifyError, match="copy: 300 bytes"):
        device.copy_in(buffer, memoryview(np.zeros(300, np.uint8)))
    device.free(buffer)
    with pytest.raises(VerifyError, match="freed"):
        device.copy_out(buffer, memoryview(np.zeros(1, np.uint8)))


def test_a_buffer_may_be_freed_while_a_launch_uses_it(device: Any) -> None:
    case = a_case()
    compiled = device.compile(launching.text_of(case.kernel, device))
    buffers = [device.allocate(p.size * p.dtype.itemsize) for p in case.kernel.params]
    for param, buffer in zip(case.kernel.params, buffers, strict=True):
        data = case.inputs.get(param.name, np.zeros(param.size, param.dtype.storage))
        device.copy_in(buffer, memoryview(data.view(np.uint8)))
    device.launch(compiled, buffers, case.kernel.grid)
    for buffer in buffers:
        device.free(buffer)
    device.synchronize()


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


def a_case(name: str = "arithmetic_float32") -> Case:
    return next(case for case in [*cases(ALL), *group_cases(ALL, 256)] if case.name == name)


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
    report.faults.clear()


def test_a_program_is_built_once(device: Any) -> None:
    text = launching.text_of(a_case().kernel, device)
    assert device.compile(text) is device.compile(text)


def test_single_items_come_in_groups_that_keep_all_multiprocessors_busy(device: Any) -> None:
    case = a_case()
    compiled = device.compile(launching.text_of(case.kernel, device))
    units = device._units
    for grid, threads in ((1, 32), (1000, 32), (units * 4 * 64, 64), (1 << 20, 256)):
        assert device._sizes(compiled, grid) == (-(-grid // threads), threads)
    with pytest.raises(DeviceError, match="groups; a launch has"):
        device._sizes(compiled, 1 << 50)


def test_groups_are_launched_as_they_are(device: Any) -> None:
    compiled = device.compile(launching.text_of(a_case("group_sum").kernel, device))
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


def test_threads_may_share_the_device(device: Any) -> None:
    tried = [a_case(name) for name in ("arithmetic_float32", "compare_int32", "reduce_float32")]
    wrong: list[str] = []

    def work(case: Case) -> None:
        for _ in range(5):
            wrong.extend(problems(case, launching.run(device, case)))

    workers = [threading.Thread(target=work, args=(case,)) for case in tried for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_launches_are_timed_by_the_device_when_debugging(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert device.elapsed() is None
    monkeypatch.setenv("DEBUG", "2")
    timed = Backend().open_device(0)
    assert timed.elapsed() is None
    launching.run(timed, a_case())
    assert 0 < timed.elapsed() < 60


# ---- replays -----------------------------------------------------------------------------------


def doubling(device: Any) -> Any:
    from kernels import Builder

    from coregrad.dtypes import float32

    b = Builder("double")
    x, out = b.param("x", float32, 40), b.param("out", float32, 40, "out")
    with b.loop(40, "grid") as i:
        value = b.load(x, i)
        b.store(out, i, b.op("add", value, value))
    return device.compile(launching.text_of(b.kernel(), device))


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


# ---- processes ---------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process")  # Python's own warning, that threads are lost
def test_a_forked_child_gets_an_error(device: Any) -> None:
    kept = device.allocate(64)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            device.synchronize()
            said = "nothing was raised"
        except DeviceError as error:
            said = str(error)
        device.free(kept)  # as the garbage collector may
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


@pytest.fixture(params=["", "kernels"])
def cuda(
    registry: plugins.Registry, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> str:
    """The device's name for tensors; products by cuBLAS, and by the core's kernels."""
    monkeypatch.setenv("COREGRAD_CUDA_MATMUL", request.param)
    monkeypatch.setattr(plugins, "_registry", registry)
    monkeypatch.setattr(engine, "_plans", {})  # kernels of other devices, or made the other way
    return "cuda"


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
def test_training_gives_the_numbers_of_the_cpu(cuda: str, jit: bool) -> None:
    launches, products = report.launches(), report.counts["cublas: calls"]
    for ours, theirs in zip(training(cuda, jit), training("cpu", jit), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert report.launches() > launches
    claimed = os.environ["COREGRAD_CUDA_MATMUL"] == ""
    assert (report.counts["cublas: calls"] > products) == claimed


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_floats_give_the_numbers_of_the_reference(cuda: str, dtype: str) -> None:
    def values(device: str) -> Any:
        x = Tensor(np.linspace(-4, 4, 33, dtype=np.float32), device=device).to(dtype)
        return ((x * x + 1).sqrt() / (x.exp() + 1)).float().numpy()

    tolerance = {"float16": 2e-3, "bfloat16": 2e-2, "float64": 1e-6}[dtype]
    np.testing.assert_allclose(values(cuda), values("numpy"), rtol=tolerance)


def test_random_numbers_are_those_of_every_device(cuda: str) -> None:
    def bits(device: str) -> Any:
        Tensor.manual_seed(3)
        return Tensor.rand(100, device=device).numpy()

    assert np.array_equal(bits(cuda), bits("numpy"))


def test_an_index_out_of_range_is_an_error(cuda: str) -> None:
    table = Tensor(np.arange(5, dtype=np.float32), device=cuda)
    index = Tensor(np.array([1, 7]), device=cuda) + 0
    with pytest.raises(IndexError, match=r"outside \[-5, 5\)"):
        table[index].numpy()
