"""The emulator reports what is wrong, and only that: one bug is planted in a right program each time.

Route A has to find all of them. Route B sees what NVIDIA's compiler left: arithmetic that C++ does
not define is defined in PTX, and what nobody uses is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from coregrad_simt import report
from coregrad_simt.errors import CompileError, Fault, MemoryFault, RaceFault
from coregrad_simt.fakes import cupy
from coregrad_simt.fakes.cupy.cuda.driver import CUDADriverError
from coregrad_simt.fakes.cupy.machine import machine

HEAD = """
extern "C" __global__ void __launch_bounds__(64) k(float* o, const float* x, const int* n) {
  __shared__ float s[64];
  const int t = threadIdx.x, i = blockIdx.x * 64 + t;
"""
FLOATS = np.arange(1, 129, dtype=np.float32)
NUMBERS = np.array([0, 32, -1, 2**31 - 1, -(2**31), 1000], np.int32)


@dataclass(frozen=True)
class Bug:
    """``body`` completes the kernel. ``message``: a part of what is reported; empty: a wrong result
    (NaN, or not the right kernel's). ``b``: whether route B finds it as well, and what it says if
    that is something else."""

    name: str
    body: str
    message: str
    error: type[Exception] = Fault
    b: bool = True
    b_message: str = ""


KERNEL_BUGS = [
    # memory
    Bug("a write one element beyond the end", "o[i + 1] = 1;", "beyond the end of buffer 0", MemoryFault),
    Bug("a write far beyond the end", "o[i + 100000] = 1;", "beyond the end", MemoryFault),
    Bug("a write before the start", "o[i - 1] = 1;", "before the start", MemoryFault),
    Bug("a read one element beyond the end", "o[i] = x[i + 1];", "beyond the end of buffer 1", MemoryFault),
    Bug("a read by threads that do not use it", "float v = ((volatile const float*)x)[i + (t > 62)]; if (t < 60) o[i] = v;", "beyond the end", MemoryFault),
    Bug("an index without bounds check", "o[i] = x[n[5] * t];", "beyond the end", MemoryFault),
    Bug("a write outside a shared array", "s[t + 1] = 1; __syncthreads(); o[i] = s[t];", "index outside an array", b_message="outside the arrays in shared memory"),
    Bug("a read outside a shared array", "s[t] = 1; __syncthreads(); o[i] = s[t + n[1]];", "index outside an array", b_message="outside the arrays in shared memory"),
    Bug("an index outside a private array", "float p[4]; for (int j = 0; j < 4; j++) p[j] = x[j]; o[i] = p[n[1] / 8 + t % 2];", "index outside an array", b=False),
    Bug("a misaligned vector", "if (t < 8) ((float4*)(o + 1))[t] = make_float4(1, 2, 3, 4);", "misaligned"),
    Bug("shared memory that nobody wrote", "if (t < 32) s[t] = 1; __syncthreads(); o[i] = s[t];", ""),
    Bug("a result that nobody wrote", "if (t < 63) o[i] = 1;", ""),
    Bug("a private variable that nobody wrote", "float v; if (n[1] == 99) v = 1; o[i] = v;", "", b=False),
    Bug("a private array that nobody wrote", "float p[64]; p[t] = 1; o[i] = p[n[5] % 64];", "", b=False),
    # threads
    Bug("a missing barrier", "s[t] = t; o[i] = s[63 - t];", "a race", RaceFault),
    Bug("a missing second barrier in a loop", "float a = 0; for (int j = 0; j < 3; j++) { s[t] = j + t; __syncthreads(); a += s[63 - t]; } o[i] = a;", "a race", RaceFault),
    Bug("two threads that write one element", "o[i / 2] = t;", "a race", RaceFault),
    Bug("a sum without atomics", "o[i] = 0; s[0] = 0; __syncthreads(); s[0] = s[0] * 2 + t; __syncthreads(); o[i] = s[0];", "a race", RaceFault),
    Bug("a race between blocks", "if (t == 0) o[0] = blockIdx.x; if (i) o[i] = 0;", "a race", RaceFault),
    Bug("a block that reads what another writes", "o[i] = t; o[i] += blockIdx.x ? o[i - 64] : 0;", "a race", RaceFault),
    Bug("a barrier in a branch", "if (t < 32) { s[t] = 1; __syncthreads(); } o[i] = s[t % 32];", "divergent barrier"),
    Bug("a return before a barrier", "if (t == 5) return; s[t] = 1; __syncthreads(); o[i] = s[6];", "has returned"),
    Bug("two barriers in two branches", "s[t] = 1; if (t & 1) { o[i] = 2; __syncthreads(); o[i] += s[0]; } else { __syncthreads(); o[i] = s[1] * 3; __syncthreads(); }", "divergent barrier"),
    Bug("a barrier a different number of times", "s[t] = 1; for (int j = 0; j < 2 + (t == 9); j++) __syncthreads(); o[i] = s[0];", "divergent barrier"),
    Bug("a shuffle that some lanes skip", "float v = t; if (t % 32 < 16) v += __shfl_xor_sync(~0u, v, 1); o[i] = v;", "lacks a lane"),
    Bug("a shuffle that reads an unnamed lane", "float v = t; if (t % 32 < 16) v += __shfl_sync(0xffffu, v, 20); o[i] = v;", "does not name"),
    Bug("a warp operation and a barrier", "if (t % 32) __syncthreads(); else __syncwarp(); o[i] = t;", "lacks a lane"),
    Bug("an endless loop", "volatile int* p = (volatile int*)n; while (p[0] == 0) {} o[i] = 1;", "endless loop"),
    # arithmetic that C++ does not define
    Bug("a shift by the width", "o[i] = 1 << n[1];", "shift", b=False),
    Bug("a shift by a negative count", "o[i] = 1u << n[2];", "shift", b=False),
    Bug("a float that no int holds", "o[i] = (int)(x[i] * 1e20f);", "conversion of a float", b=False),
    Bug("NaN to an int", "o[i] = (int)(x[i] / 0.0f - x[i] / 0.0f);", "conversion of a float", b=False),
    Bug("a division by zero", "o[i] = i / n[0];", "division by zero", b=False),
    Bug("a remainder by zero", "o[i] = i % n[0];", "division by zero", b=False),
    Bug("the smallest int divided by -1", "o[i] = n[4] / n[2];", "division by zero or overflow", b=False),
    Bug("a sum that overflows", "o[i] = n[3] + t + 1;", "overflow of a sum", b=False),
    Bug("an index that overflows", "o[((i + 3) * 1999999999) & 127] = 1;", "overflow of a product", b=False),
    Bug("a negation that overflows", "o[i] = -n[4];", "overflow of a negation", b=False),
    # what does not compile
    Bug("a name that does not exist", "o[i] = expff(x[i]);", "expff", CompileError),
    Bug("a missing semicolon", "o[i] = 1", "", CompileError),
    Bug("shared memory of a size that is not constant", "__shared__ float q[n[1]]; o[i] = q[0];", "", CompileError),
]  # fmt: skip
RIGHT = (
    "s[t] = x[i]; __syncthreads(); float v = s[63 - t]; v += __shfl_xor_sync(~0u, v, 1); o[i] = v;"
)


def text_of(body: str) -> str:
    return f"{HEAD}  {body}\n}}\n"


def execute(run: Callable[..., list[Any]], body: str, route: str) -> Any:
    poisoned = np.full(128, np.nan, np.float32)
    poisoned.view(np.uint32)[:] = 0xFFFFFFFF
    return run(text_of(body), poisoned, FLOATS, NUMBERS, route=route, grid=2)[0]


def test_the_right_kernel_reports_nothing(route: str, run: Callable[..., list[Any]]) -> None:
    got = execute(run, RIGHT, route)
    turned = FLOATS.reshape(2, 64)[:, ::-1].reshape(-1, 2)
    np.testing.assert_array_equal(got, np.repeat(turned.sum(1), 2))
    assert not report.faults
    assert report.launches() == 1


@pytest.mark.parametrize("bug", KERNEL_BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_reported(
    bug: Bug, route: str, run: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COREGRAD_SIMT_SECONDS", "1")
    if route == "b" and not bug.b:
        execute(run, bug.body, route)  # defined there, or removed
        assert not report.faults
        return
    if not bug.message and bug.error is Fault:  # what nobody wrote is NaN, or an absurd number
        got = execute(run, bug.body, route)
        assert np.isnan(got).any() or np.abs(got).max() > 1e30
        return
    message = bug.b_message if route == "b" and bug.b_message else bug.message
    with pytest.raises(bug.error, match=message or None):
        execute(run, bug.body, route)
    assert bool(report.faults) == (bug.error is not CompileError)


def test_a_fault_names_thread_block_and_line(run: Callable[..., list[Any]]) -> None:
    with pytest.raises(
        Fault, match=r"line 5, column \d+: shift .* thread \(0,0,0\) of block \(0,0,0\)"
    ):
        execute(run, "o[i] = 1 << n[1];", "a")


def test_the_process_survives_and_the_next_launch_is_right(
    route: str, run: Callable[..., list[Any]]
) -> None:
    for body in ("o[i - 100000] = 1;", "if (t) __syncthreads();"):
        with pytest.raises(Fault):
            execute(run, body, route)
    assert not np.isnan(execute(run, RIGHT, route)).any()


# ---- what the host does wrong --------------------------------------------------------------------

SCALED = """
extern "C" __global__ void __launch_bounds__(64) k(float* o, int n, float f) {
  const int i = blockIdx.x * 64 + threadIdx.x;
  if (i < n) o[i] = f;
}
"""


def function(text: str = SCALED) -> Any:
    return cupy.RawModule(code=text).get_function("k")


@pytest.fixture
def memory(route: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("COREGRAD_SIMT_ROUTE", route)
    return cupy.cuda.alloc(256)


def fill(memory: Any, *arguments: Any, grid: Any = (1,), block: Any = (64,)) -> None:
    given = arguments or (memory, np.int32(64), np.float32(2))
    function()(grid, block, given)
    cupy.cuda.Stream.null.synchronize()


def test_the_right_launch_reports_nothing(memory: Any) -> None:
    fill(memory)
    got = np.empty(64, np.float32)
    memory.copy_to_host(got.ctypes.data, 256)
    assert (got == 2).all()
    assert not report.faults


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("a float64 for a float", (None, np.int32(64), np.float64(2)), "argument 2: float64"),
        ("an int64 for an int", (None, np.int64(64), np.float32(2)), "argument 1: int64"),
        ("Python's int for an int", (None, 64, np.float32(2)), "argument 1: int64"),
        ("Python's float for a float", (None, np.int32(64), 2.0), "argument 2: float64"),
        ("a float for an int", (None, np.float32(64), np.float32(2)), "argument 1: float32"),
        ("a missing argument", (None, np.int32(64)), "2 arguments for 3 parameters"),
        ("an argument too many", (None, np.int32(64), np.float32(2), None), "4 arguments"),
        ("a number for a pointer", (np.float32(1), np.int32(64), np.float32(2)), "argument 0"),
        ("a pointer for a number", (None, None, np.float32(2)), "argument 1"),
        ("an address of no memory", (4096, np.int32(64), np.float32(2)), "no device memory"),
        ("a null pointer", (0, np.int32(64), np.float32(2)), "no device memory"),
    ],
)
def test_a_wrong_argument_is_reported(
    memory: Any, name: str, arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(Fault, match=message):
        fill(memory, *(memory if argument is None else argument for argument in arguments))
    assert report.faults


@pytest.mark.parametrize(
    ("grid", "block"),
    [((1,), (65,)), ((1,), (2048,)), ((0,), (64,)), ((1, 65536), (64,)), ((1,), (1, 1, 65))],
)
def test_an_impossible_size_is_refused(memory: Any, grid: Any, block: Any) -> None:
    with pytest.raises(CUDADriverError):
        fill(memory, grid=grid, block=block)


def test_memory_that_is_two_arguments_of_which_the_text_says_it_is_not(memory: Any) -> None:
    head = 'extern "C" __global__ void k(float* __restrict__ o, const float* __restrict__ x)'
    copying = function(head + " { o[threadIdx.x] = x[threadIdx.x ^ 1]; }")
    copying((1,), (64,), (memory, cupy.cuda.alloc(256)))
    with pytest.raises(Fault, match="arguments 0 and 1 are the same memory"):
        copying((1,), (64,), (memory, memory))


def test_too_much_shared_memory_is_refused(memory: Any) -> None:
    text = HEAD + "  __shared__ float q[12289]; q[t] = x[i]; __syncthreads(); o[i] = q[63 - t]; }"
    with pytest.raises(CUDADriverError, match="shared memory"):
        function(text)((1,), (64,), (memory, memory, memory))


def test_memory_that_was_freed_is_reported(memory: Any) -> None:
    address = cupy.cuda.alloc(256).ptr
    with pytest.raises(Fault, match="no device memory"):
        function()((1,), (64,), (address, np.int32(64), np.float32(2)))


def test_memory_of_another_device_is_reported(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COREGRAD_SIMT_CUDA_DEVICES", "2")
    machine.reset()
    near = cupy.cuda.alloc(256)
    with cupy.cuda.Device(1), pytest.raises(Fault, match="memory of device 0, run on 1"):
        function()((1,), (64,), (near, np.int32(64), np.float32(2)))


def test_a_result_read_too_early_is_reported(memory: Any) -> None:
    got = np.empty(64, np.float32)
    with cupy.cuda.Stream(non_blocking=True):
        function()((1,), (64,), (memory, np.int32(64), np.float32(2)))
        with pytest.raises(Fault, match="not synchronised"):
            memory.copy_to_host(got.ctypes.data, 256)


def test_a_corrupted_text_gives_another_result(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake computes nothing but what the text says."""
    monkeypatch.setenv("COREGRAD_SIMT_SPOIL", "o[i] = f;=>o[i] = f + 1.0f;")
    fill(memory)
    got = np.empty(64, np.float32)
    memory.copy_to_host(got.ctypes.data, 256)
    assert (got == 3).all()
