"""The device itself: memory, launches, errors, threads, forks."""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
from hook_cases import Case, cases, problems

from coregrad import Tensor, plugins
from coregrad.activation import check_device
from coregrad.dtypes import ALL
from coregrad.errors import CompileError, DeviceError, OutOfMemory, VerifyError

pytest.importorskip("pyopencl")

import opencl_launching as launching
import pyopencl as cl

from coregrad_opencl.memory import Pool


def test_the_device_meets_the_contract(device: Any) -> None:
    assert check_device(device) == []
    assert device.limits.dtypes == frozenset(ALL)
    assert device.limits.threads == 256
    assert device.limits.local_bytes == 32768
    assert not device.limits.host_memory


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


def test_a_copy_of_a_part_leaves_the_rest(device: Any) -> None:
    buffer = device.allocate(64)
    device.copy_in(buffer, memoryview(np.arange(64, dtype=np.uint8)))
    device.copy_in(buffer, memoryview(np.full(10, 99, np.uint8)))
    got = np.empty(64, np.uint8)
    device.copy_out(buffer, memoryview(got))
    assert got.tolist() == [99] * 10 + list(range(10, 64))


def test_a_copy_that_leaves_the_buffer_is_refused(device: Any) -> None:
    buffer = device.allocate(256)
    with pytest.raises(VerifyError, match="copy: 300 bytes"):
        device.copy_in(buffer, memoryview(np.zeros(300, np.uint8)))
    device.free(buffer)
    with pytest.raises(VerifyError, match="freed"):
        device.copy_out(buffer, memoryview(np.zeros(1, np.uint8)))


def test_a_freed_buffer_is_used_again_for_its_size(device: Any) -> None:
    first = device.allocate(5000)
    raw = first.raw
    device.free(first)
    assert device.allocate(5100).raw is raw
    assert device.allocate(5000).raw is not raw


def test_what_is_kept_is_given_back_when_there_is_no_room() -> None:
    """A driver with room for 1000 bytes, which it gets back when buffers are forgotten."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    waited = []

    class Block:
        def __init__(self, size: int) -> None:
            if sum(block.size for block in alive) + size > 1000:
                raise OutOfMemory("full")
            self.size = size
            alive.add(self)

    pool = Pool(Block, lambda: waited.append(True), 1 << 20)
    pool.give(pool.take(512))
    second = pool.take(768)  # does not fit beside the kept one
    assert waited == [True]
    with pytest.raises(OutOfMemory):
        pool.take(512)
    assert second.raw in alive


def test_more_than_the_device_has_is_out_of_memory(device: Any) -> None:
    with pytest.raises(OutOfMemory, match=r"opencl \(Portable.* driver .*: allocating"):
        device.allocate(1 << 50)


def test_too_much_freed_memory_is_given_back() -> None:
    pool = Pool(bytearray, lambda: None, 1024)
    for buffer in [pool.take(512) for _ in range(4)]:
        pool.give(buffer)
    pool.take(256)
    assert pool.kept == 0


# ---- kernels -----------------------------------------------------------------------------------


def a_case(name: str = "arithmetic_float32") -> Case:
    return next(case for case in cases(ALL) if case.name == name)


def test_a_text_that_the_compiler_refuses_names_device_driver_and_kernel(device: Any) -> None:
    text = launching.text_of(a_case().kernel, device)
    broken = text.replace("x0[i1]", "x0[nowhere]", 1)
    with pytest.raises(CompileError) as caught:
        device.compile(broken)
    said = str(caught.value)
    assert "Portable Computing Language" in said
    assert device._found.device.driver_version in said
    assert "kernel arithmetic_float32" in said
    assert "nowhere" in said  # the compiler's words


def test_an_error_of_the_driver_names_device_and_kernel(device: Any) -> None:
    compiled = device.compile(launching.text_of(a_case().kernel, device))
    with pytest.raises(DeviceError, match="kernel arithmetic_float32") as caught:
        device.launch(compiled, [], 10)  # without its arguments
    assert device.title in str(caught.value)
    assert isinstance(caught.value.__cause__, cl.Error)


def test_a_program_is_built_once(device: Any) -> None:
    text = launching.text_of(a_case().kernel, device)
    assert device.compile(text) is device.compile(text)


def test_threads_may_share_the_device(device: Any) -> None:
    tried = [a_case(name) for name in ("arithmetic_float32", "compare_int32", "reduce_float32")]
    wrong: list[str] = []

    def work(case: Case) -> None:
        for _ in range(20):
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
    timed = launching.BACKEND.open_device(0)
    assert timed.elapsed() is None
    launching.run(timed, a_case())
    assert 0 < timed.elapsed() < 60


# ---- processes ---------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process")  # Python's own warning, that threads are lost
def test_a_forked_child_gets_an_error_instead_of_hanging(device: Any) -> None:
    kept = device.allocate(64)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            device.synchronize()
            said = "nothing was raised"
        except DeviceError as error:
            said = str(error)
        device.free(kept)  # as the garbage collector may, and must not hang either
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


@pytest.fixture
def opencl(device: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of PoCL for tensors."""
    monkeypatch.setenv("COREGRAD_OPENCL_DEVICE", "Portable Computing Language")
    monkeypatch.setenv("COREGRAD_OPENCL_LIMITS", "gpu")
    monkeypatch.setattr(plugins, "_registry", plugins.Registry())
    return "opencl"


def training(device: str) -> list[Any]:
    """Three steps of a small network by hand: losses, then the weights."""
    rng = np.random.default_rng(1)
    x = Tensor(rng.standard_normal((16, 10), np.float32), device=device)
    labels = Tensor(rng.integers(0, 4, 16), device=device)
    shapes = ((10, 12), (12,), (12, 4), (4,))
    weights = [
        Tensor(rng.standard_normal(s, np.float32) * 0.3, device=device, requires_grad=True)
        for s in shapes
    ]
    losses = []
    for _ in range(3):
        w1, b1, w2, b2 = weights
        hidden = (x @ w1 + b1).relu()
        scores = hidden @ w2 + b2
        loss = -(scores.log_softmax(1)[Tensor.arange(16, device=device), labels]).mean()
        loss.backward()
        losses.append(loss.item())
        weights = [(w - w.grad * 0.1).detach().requires_grad_(True) for w in weights]
    return [np.array(losses), *(w.numpy() for w in weights)]


def test_training_gives_the_numbers_of_the_reference(opencl: str) -> None:
    for ours, theirs in zip(training(opencl), training("numpy"), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_floats_give_the_numbers_of_the_reference(opencl: str, dtype: str) -> None:
    def values(device: str) -> Any:
        x = Tensor(np.linspace(-4, 4, 33, dtype=np.float32), device=device).to(dtype)
        return ((x * x + 1).sqrt() / (x.exp() + 1)).float().numpy()

    tolerance = {"float16": 2e-3, "bfloat16": 2e-2, "float64": 1e-6}[dtype]
    np.testing.assert_allclose(values(opencl), values("numpy"), rtol=tolerance)


def test_random_numbers_are_those_of_every_device(opencl: str) -> None:
    def bits(device: str) -> Any:
        Tensor.manual_seed(3)
        return Tensor.rand(100, device=device).numpy()

    assert np.array_equal(bits(opencl), bits("numpy"))


def test_an_index_out_of_range_is_an_error(opencl: str) -> None:
    table = Tensor(np.arange(5, dtype=np.float32), device=opencl)
    index = Tensor(np.array([1, 7]), device=opencl) + 0
    with pytest.raises(IndexError, match=r"outside \[-5, 5\)"):
        table[index].numpy()
