"""Code made without optimising: for little work, with the same bits, and made again when it is met
often."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from coregrad import Tensor, dtypes, jit
from coregrad.dtypes import DType, float32
from coregrad.hookspecs import Header
from coregrad.ir.kernel import Param
from coregrad_cpu.llvm import quick
from coregrad_cpu.llvm.backend import Backend
from coregrad_cpu.llvm.compiler import Compiler
from coregrad_cpu.llvm.device import Compiled, Device
from coregrad_cpu.llvm.frame import SMALL, hints
from coregrad_cpu.llvm.quick import Quick, suffices


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Device:
    """A device with a cache folder of its own."""
    monkeypatch.setenv("COREGRAD_CACHE", str(tmp_path))
    return Backend().open_device(0)


def doubling(n: int, summed: bool = False) -> str:
    """y = x + x, or the sum of it, over ``n`` elements."""
    params = (Param("o", float32, n, "out"), Param("x", float32, n, "in"))
    backend = Backend()
    frame = backend.begin_kernel(Header("k", params, n), None)
    for i in frame.loop("i", n, "grid", 1, False):
        x = backend.lower_load(frame, params[1], i, 1, None, float32, 1)
        if summed:
            y = backend.lower_reduce(frame, "add", x, x, float32, 1)
        else:
            y = backend.lower_add(frame, x, x, float32, 1)
        backend.lower_store(frame, params[0], i, 1, y, None, float32, 1)
    return frame.finish()


def test_little_work_without_sums_suffices() -> None:
    assert suffices(doubling(100))
    assert not suffices(doubling(100_000))
    assert not suffices(doubling(100, summed=True)), "the compiler may choose the order of a sum"
    known = hints(doubling(1000))
    assert (known["work"] * 1000 < SMALL) == bool(known.get("small"))


def run(cpu: Device, compiled: Compiled, n: int) -> Any:
    x, out = np.arange(n, dtype=np.float32), np.zeros(n, np.float32)
    buffers = [cpu.allocate(4 * n) for _ in range(2)]
    cpu.copy_in(buffers[1], memoryview(x))
    cpu.launch(compiled, buffers, n)
    cpu.copy_out(buffers[0], memoryview(out))
    return out


def test_a_kernel_that_is_met_often_is_optimised(cpu: Device) -> None:
    compiled = cpu.compile(doubling(100))
    first = compiled.address
    for turn in range(quick.OFTEN + 20):
        assert (compiled.address == first) == (turn < quick.OFTEN)
        np.testing.assert_array_equal(run(cpu, compiled, 100), 2 * np.arange(100))
    assert cpu.compiler.counts["compiled"] >= 1


def test_what_is_captured_is_optimised(cpu: Device) -> None:
    compiled = cpu.compile(doubling(100))
    first = compiled.address
    cpu.replay([(compiled, (0, 1), 100)])
    assert compiled.address != first


def test_both_kinds_are_kept_on_disk_and_the_better_one_is_taken(
    cpu: Device, tmp_path: Path
) -> None:
    text = doubling(100)
    cpu.compile(text)
    again = Backend().open_device(0)
    np.testing.assert_array_equal(run(again, again.compile(text), 100), 2 * np.arange(100))
    assert again._quick is not None
    assert (again._quick.counts["disk"], again._quick.counts["compiled"]) == (1, 0)
    cpu.compiler.address(text)
    better = Backend().open_device(0)
    np.testing.assert_array_equal(run(better, better.compile(text), 100), 2 * np.arange(100))
    assert better._quick is None


# ---- the same bits -------------------------------------------------------------------------------

FLOATS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: x + y * x - y,
    "div": lambda x, y: x / y,
    "mod": lambda x, y: x % y,
    "exp": lambda x, y: x.exp() + y.expm1(),
    "log": lambda x, y: x.abs().log() + y.abs().log1p(),
    "tanh": lambda x, y: x.tanh() - y.sigmoid(),
    "erf": lambda x, y: x.erf() + y.gelu(),
    "pow": lambda x, y: x.abs() ** y,
    "sqrt": lambda x, y: x.abs().sqrt() + y.floor() + x.round() + y.trunc(),
    "where": lambda x, y: x.where(x > y, y.clamp(-1, 1)),
    "max": lambda x, y: x.maximum(y).amax(1),
    "gather": lambda x, y: x.gather(1, (y.abs() * 4).clamp(0, 6).long()),
    "cast": lambda x, y: x.cast("int32") + y.cast("bool"),
}
INTEGERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: x + y * x - y,
    "div": lambda x, y: x // y,
    "mod": lambda x, y: x % y,
    "bits": lambda x, y: (x & y) | (x ^ 3),
    "shift": lambda x, y: (x << 2) + (y >> 1),
    "max": lambda x, y: x.maximum(y).amax(1),
    "less": lambda x, y: (x < y) | (x == 3),
    "cast": lambda x, y: x.cast("float32") / 3,
    "place": lambda x, y: x.flip(0).pad((1, 2)) + y.argmax(),
}
CASES = [
    *((dtype, name, f) for dtype in dtypes.ALL if dtype.is_float for name, f in FLOATS.items()),
    *(
        (dtype, name, f)
        for dtype in (dtypes.int8, dtypes.uint8, dtypes.int32, dtypes.int64)
        for name, f in INTEGERS.items()
    ),
]


class Both:
    """Launches that are carried out by both kinds of code and compared, bit for bit."""

    def __init__(self) -> None:
        self.full, self.quick = Compiler(None), Quick(None)
        self.compared = 0
        self.plain = Device.launch

    def launch(self, device: Device, compiled: Compiled, buffers: list[Any], grid: int) -> None:
        if quick.FREE.search(compiled.text):
            self.plain(device, compiled, buffers, grid)
            return
        before = [ctypes.string_at(b.address, b.size) for b in buffers]
        found = []
        for compiler in (self.quick, self.full):
            for buffer, content in zip(buffers, before, strict=True):
                ctypes.memmove(buffer.address, content, buffer.size)
            block = (ctypes.c_int64 * len(buffers))(*(b.address for b in buffers))
            kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
            iterations = compiled._grid or grid
            kind(compiler.address(compiled.text))(ctypes.addressof(block), 0, iterations)
            found.append([ctypes.string_at(b.address, b.size) for b in buffers])
        assert found[0] == found[1], compiled.text
        self.compared += 1


@pytest.fixture(scope="module")
def both() -> Both:
    return Both()


@pytest.mark.parametrize(
    ("dtype", "name", "function"), CASES, ids=[f"{d.name}-{n}" for d, n, _ in CASES]
)
def test_both_kinds_of_code_give_the_same_bits(
    dtype: DType,
    name: str,
    function: Callable[[Tensor, Tensor], Tensor],
    both: Both,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def launch(device: Device, compiled: Compiled, buffers: list[Any], grid: int) -> None:
        both.launch(device, compiled, buffers, grid)

    rng = np.random.default_rng(0)
    wide = rng.standard_normal((2, 5, 7)) * 4
    if dtype.is_float:
        wide.reshape(-1)[:8] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 88.9, -104.0]
    x, y = (Tensor(array, device="cpu").cast(dtype).realize() for array in wide)
    monkeypatch.setattr(Device, "launch", launch)
    compared = both.compared
    function(x, y).realize()
    assert both.compared > compared


def test_a_captured_function_gives_the_bits_of_the_function() -> None:
    x = Tensor(np.linspace(-9, 9, 50, dtype=np.float32), device="cpu")

    def function(x: Tensor) -> Tensor:
        return x.tanh() * x.exp() + x.sin()

    np.testing.assert_array_equal(jit(function)(x).numpy(), function(x).numpy())
