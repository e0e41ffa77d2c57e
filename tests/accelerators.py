"""Test support: what the tests of OpenCL, CUDA and Metal have in common.

:class:`Launcher` runs kernels written by hand on a device. The classes of tests are inherited by
those of a backend, which say what its ``launcher`` is and bring the fixtures that they name.
"""

from __future__ import annotations

import importlib
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hook_cases import Case, cases, group_cases, problems
from kernels import hooks_of

from coregrad import Tensor, TinyJit, config
from coregrad.binaries import DIGEST, MAGIC, Binaries
from coregrad.dtypes import ALL, DType
from coregrad.errors import CompileError, DeviceError, VerifyError
from coregrad.ir.emit import emit
from coregrad.ir.kernel import Kernel

THREADS = 256  # of the cases' work-groups, which every GPU has
# A case for launches that fail: a driver may remember arguments that a kernel was given before.
NEVER_LAUNCHED = "bits_uint16"


# ---- what is there -----------------------------------------------------------------------------


def demanded(device: str) -> bool:
    """Whether COREGRAD_REQUIRE names a device, or its emulation: ``emulated-cuda``, say."""
    return bool({device, f"emulated-{device}"} & set(config.names("COREGRAD_REQUIRE")))


def missing(device: str, reason: str) -> None:
    """Skip a test, or fail it where its device is demanded."""
    if demanded(device):
        pytest.fail(f"COREGRAD_REQUIRE names {device}, but {reason}", pytrace=False)
    pytest.skip(reason)


def require(device: str, module: str) -> None:
    """An error where the device is demanded and the module is not there: else every file of tests
    would be skipped for want of it."""
    if demanded(device):
        importlib.import_module(module)


@contextmanager
def emulated(device: str, library: str) -> Iterator[pytest.MonkeyPatch]:
    """The fake of a driver's library, whose kernels run on the CPU, and an environment that asks
    for it."""
    try:
        from coregrad_simt import fakes
    except ImportError as error:
        missing(device, f"coregrad-simt is not installed: {error}")
    if shutil.which("g++") is None:
        missing(device, "g++ is not installed, which compiles the kernels of emulated GPUs")
    with pytest.MonkeyPatch.context() as patch, fakes.offered(library):
        patch.setenv("COREGRAD_EMULATE", device)
        patch.setenv("COREGRAD_CACHE", "0")
        yield patch


# ---- kernels -----------------------------------------------------------------------------------


class Launcher:
    """Runs the cases of tests/hook_cases.py with a backend's hooks on one of its devices."""

    def __init__(
        self, backend: Any, dtypes: Sequence[DType] = ALL, lacking: tuple[str, ...] = ()
    ) -> None:
        self.backend = backend
        self.hooks = hooks_of(backend)
        self.dtypes = dtypes
        self._lacking = lacking

    @cached_property
    def cases(self) -> list[Case]:
        """All cases, and again those with groups, as large as they may be."""
        return [*cases(self.dtypes, self._lacking), *group_cases(self.dtypes, THREADS)]

    def case(self, name: str = "arithmetic_float32") -> Case:
        """The first case of a name."""
        return next(case for case in self.cases if case.name == name)

    def text_of(self, kernel: Kernel, device: Any) -> str:
        """A kernel's text for a device."""
        text: str = emit(kernel, self.backend, self.hooks, device.limits)
        return text

    def run(self, device: Any, case: Case) -> dict[str, Any]:
        """What the outputs of a case hold after a launch, in stored form."""
        kernel = case.kernel
        compiled = device.compile(self.text_of(kernel, device))
        buffers = []
        for param in kernel.params:
            data = case.inputs.get(param.name)
            if data is None:
                data = np.full(param.size * param.dtype.itemsize, 0xCD, np.uint8)
            data = np.ascontiguousarray(data).view(np.uint8)
            buffers.append(device.allocate(data.nbytes))
            device.copy_in(buffers[-1], memoryview(data))
        device.launch(compiled, buffers, kernel.grid)
        out = {}
        for param, buffer in zip(kernel.params, buffers, strict=True):
            if param.role != "in":
                raw = np.empty(param.size * param.dtype.itemsize, np.uint8)
                device.copy_out(buffer, memoryview(raw))
                out[param.name] = raw.view(param.dtype.storage)
            device.free(buffer)
        return out


# ---- a device ----------------------------------------------------------------------------------


class DeviceTests:
    """Memory, launches, errors, threads and forks of the fixture ``device``."""

    launcher: Launcher

    @pytest.mark.parametrize("size", [1, 3, 255, 256, 257, 100_003])
    def test_bytes_come_back_as_they_went_in(self, device: Any, size: int) -> None:
        data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
        buffer = device.allocate(size)
        device.copy_in(buffer, memoryview(data))
        want = data.copy()
        data[:] = 0  # the host may change what it gave
        got = np.empty(size, np.uint8)
        device.copy_out(buffer, memoryview(got))
        device.free(buffer)
        assert np.array_equal(got, want)

    def test_a_copy_of_a_part_leaves_the_rest(self, device: Any) -> None:
        buffer = device.allocate(64)
        device.copy_in(buffer, memoryview(np.arange(64, dtype=np.uint8)))
        device.copy_in(buffer, memoryview(np.full(10, 99, np.uint8)))
        got = np.empty(64, np.uint8)
        device.copy_out(buffer, memoryview(got))
        device.free(buffer)
        assert got.tolist() == [99] * 10 + list(range(10, 64))

    def test_a_copy_that_leaves_the_buffer_is_refused(self, device: Any) -> None:
        buffer = device.allocate(256)
        with pytest.raises(VerifyError, match="copy: 300 bytes"):
            device.copy_in(buffer, memoryview(np.zeros(300, np.uint8)))
        device.free(buffer)
        with pytest.raises(VerifyError, match="freed"):
            device.copy_out(buffer, memoryview(np.zeros(1, np.uint8)))

    def test_a_buffer_may_be_freed_while_a_launch_uses_it(self, device: Any) -> None:
        case = self.launcher.case()
        compiled = device.compile(self.launcher.text_of(case.kernel, device))
        buffers = [device.allocate(p.size * p.dtype.itemsize) for p in case.kernel.params]
        for param, buffer in zip(case.kernel.params, buffers, strict=True):
            data = case.inputs.get(param.name, np.zeros(param.size, param.dtype.storage))
            device.copy_in(buffer, memoryview(data.view(np.uint8)))
        device.launch(compiled, buffers, case.kernel.grid)
        for buffer in buffers:
            device.free(buffer)
        device.synchronize()

    def test_a_text_that_the_compiler_refuses_names_device_and_kernel(self, device: Any) -> None:
        text = self.launcher.text_of(self.launcher.case().kernel, device)
        broken = text.replace("x0[i1]", "x0[nowhere]", 1)
        assert broken != text
        with pytest.raises(CompileError) as caught:
            device.compile(broken)
        said = str(caught.value)
        assert device.title in said
        assert "kernel arithmetic_float32" in said
        assert "nowhere" in said  # the compiler's words

    def test_an_error_of_the_driver_names_device_and_kernel(self, device: Any) -> None:
        case = self.launcher.case(NEVER_LAUNCHED)
        compiled = device.compile(self.launcher.text_of(case.kernel, device))
        with pytest.raises(DeviceError, match=f"kernel {case.name}") as caught:
            device.launch(compiled, [], 10)  # without its arguments
        assert device.title in str(caught.value)
        assert caught.value.__cause__ is not None

    def test_a_program_is_built_once(self, device: Any) -> None:
        text = self.launcher.text_of(self.launcher.case().kernel, device)
        assert device.compile(text) is device.compile(text)

    def test_threads_may_share_the_device(self, device: Any) -> None:
        names = ("arithmetic_float32", "compare_int32", "reduce_float32")
        tried = [self.launcher.case(name) for name in names]
        wrong: list[str] = []

        def work(case: Case) -> None:
            for _ in range(10):
                wrong.extend(problems(case, self.launcher.run(device, case)))

        workers = [threading.Thread(target=work, args=(case,)) for case in tried for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not wrong

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
    @pytest.mark.filterwarnings("ignore:This process")  # Python's own, that threads are lost
    def test_a_forked_child_gets_an_error_instead_of_hanging(self, device: Any) -> None:
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
        device.free(kept)
        assert device.title in said
        assert "forked" in said
        assert "spawn" in said


class TimedTests:
    """A device with a clock of its own."""

    launcher: Launcher

    def test_launches_are_timed_by_the_device_when_debugging(
        self, device: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert device.elapsed() is None
        monkeypatch.setenv("DEBUG", "2")
        timed = self.launcher.backend.open_device(0)
        assert timed.elapsed() is None
        self.launcher.run(timed, self.launcher.case())
        assert 0 < timed.elapsed() < 60


# ---- tensors -----------------------------------------------------------------------------------


class TensorTests:
    """Tensors on the device that the fixture ``name`` names; ``device`` is one like it."""

    def watched(self) -> AbstractContextManager[None]:
        """What a backend looks at while a network is trained."""
        return nullcontext()

    @pytest.mark.parametrize("jit", [False, True])
    def test_training_gives_the_numbers_of_the_reference(self, name: str, jit: bool) -> None:
        with self.watched():
            ours = training(name, jit)
        for mine, theirs in zip(ours, training("numpy", jit), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)

    def test_other_floats_give_the_numbers_of_the_reference(self, name: str, device: Any) -> None:
        def values(where: str, dtype: str) -> Any:
            x = Tensor(np.linspace(-4, 4, 33, dtype=np.float32), device=where).to(dtype)
            return ((x * x + 1).sqrt() / (x.exp() + 1)).float().numpy()

        tolerances = {"float16": 2e-3, "bfloat16": 2e-2, "float64": 1e-6}
        have = {dtype.name for dtype in device.limits.dtypes}
        assert {"float16", "bfloat16"} <= have
        for dtype in sorted(have & set(tolerances)):
            found, want = values(name, dtype), values("numpy", dtype)
            np.testing.assert_allclose(found, want, rtol=tolerances[dtype], err_msg=dtype)

    def test_random_numbers_are_those_of_every_device(self, name: str) -> None:
        def bits(where: str) -> Any:
            Tensor.manual_seed(3)
            return Tensor.rand(100, device=where).numpy()

        assert np.array_equal(bits(name), bits("numpy"))

    def test_an_index_out_of_range_is_an_error(self, name: str) -> None:
        table = Tensor(np.arange(5, dtype=np.float32), device=name)
        index = Tensor(np.array([1, 7]), device=name) + 0
        with pytest.raises(IndexError, match=r"outside \[-5, 5\)"):
            table[index].numpy()


def training(device: str, jit: bool) -> list[Any]:
    """Five steps of a network of three layers, which learns something: losses, then the weights."""
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
            w.assign((w - w.grad * 0.1).detach())
        return loss

    step = TinyJit(step) if jit else step
    losses = [step().item() for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.95 * losses[0]
    return [np.array(losses), *(w.numpy() for w in weights)]


# ---- compiled kernels on disk ------------------------------------------------------------------


class CacheTests:
    """The binaries of a backend: used again, and never trusted. ``folder`` is theirs in the cache;
    the fixture ``device`` sees to it that devices can be opened."""

    launcher: Launcher
    folder: str

    @pytest.fixture
    def kept(self, device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """An empty folder; devices opened in the test use it."""
        monkeypatch.setenv("COREGRAD_CACHE", str(tmp_path))
        return tmp_path / self.folder

    def counted(self) -> dict[str, int]:
        """How a device that has just been opened comes by the program."""
        case = self.launcher.case("arithmetic_int32")
        fresh = self.launcher.backend.open_device(0)
        assert not problems(case, self.launcher.run(fresh, case))
        return dict(fresh.programs.counts)

    def test_the_second_process_finds_what_the_first_built(self, kept: Path) -> None:
        assert self.counted() == {"built": 1}
        assert len(list(kept.glob("*.bin"))) == 1
        assert not list(kept.glob("*.tmp"))
        assert self.counted() == {"disk": 1}

    @pytest.mark.parametrize("damage", ["cut", "changed", "empty", "other"])
    def test_a_damaged_file_is_built_again(self, kept: Path, damage: str) -> None:
        self.counted()
        (file,) = kept.glob("*.bin")
        data = bytearray(file.read_bytes())
        if damage == "changed":
            data[len(MAGIC) + DIGEST + 5] ^= 1
        broken = {"cut": data[:100], "changed": data, "empty": b"", "other": b"x" * 99}
        file.write_bytes(broken[damage])
        assert self.counted() == {"damaged": 1, "built": 1}
        assert self.counted() == {"disk": 1}

    def test_a_binary_that_the_driver_refuses_is_built_again(self, kept: Path) -> None:
        """Whole, and yet none of this driver's."""
        self.counted()
        (file,) = kept.glob("*.bin")
        Binaries(kept, "").write(file.stem, b"not a program")
        assert self.counted() == {"refused": 1, "built": 1}
        assert self.counted() == {"disk": 1}

    def test_a_folder_that_cannot_be_written_costs_a_build_and_no_more(self, kept: Path) -> None:
        kept.parent.mkdir(exist_ok=True)
        kept.write_bytes(b"a file where the folder should be")
        assert self.counted() == {"built": 1, "unwritable": 1}

    def test_without_a_cache_nothing_is_written(
        self, kept: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COREGRAD_CACHE", "0")
        assert self.counted() == {"built": 1}
        assert not kept.exists()
