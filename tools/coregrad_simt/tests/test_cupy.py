"""The fake cupy keeps the real one's rules, more strictly: when work runs, what memory is whose."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from coregrad_simt import fakes, report
from coregrad_simt.errors import Fault
from coregrad_simt.fakes import cupy
from coregrad_simt.fakes.cupy.cuda.compiler import CompileException
from coregrad_simt.fakes.cupy.cuda.driver import CUDADriverError
from coregrad_simt.fakes.cupy.cuda.memory import OutOfMemoryError
from coregrad_simt.fakes.cupy.cuda.runtime import CUDARuntimeError
from coregrad_simt.fakes.cupy.machine import machine

cuda = cupy.cuda
ADD = """
extern "C" __global__ void __launch_bounds__(32) k(float* o, float f) {
  o[threadIdx.x] += f;
}
"""
SIZE = 128


def zeros() -> Any:
    memory = cuda.alloc(SIZE)
    memory.memset(0, SIZE)
    return memory


def value(memory: Any) -> float:
    got = np.empty(32, np.float32)
    memory.copy_to_host(got.ctypes.data, SIZE)
    assert (got == got[0]).all()
    return float(got[0])


@pytest.fixture
def add() -> Any:
    kernel = cupy.RawModule(code=ADD).get_function("k")

    def launch(memory: Any, number: float, stream: Any = None) -> None:
        kernel((1,), (32,), (memory, np.float32(number)), stream=stream)

    return launch


# ---- when work runs ------------------------------------------------------------------------------


def test_work_waits_until_its_stream_is_synchronised(add: Any) -> None:
    memory = zeros()
    add(memory, 1)
    assert report.launches() == 0
    cuda.Stream.null.synchronize()
    assert report.launches() == 1
    assert value(memory) == 1


def test_the_null_stream_and_a_blocking_stream_keep_their_common_order(add: Any) -> None:
    memory, stream = zeros(), cuda.Stream()
    add(memory, 1, stream)
    add(memory, 2)
    assert value(memory) == 3


def test_a_stream_does_not_wait_for_another_that_is_not_blocking(add: Any) -> None:
    stream, other = zeros(), cuda.Stream(non_blocking=True)
    add(stream, 1, other)
    cuda.Stream.null.synchronize()
    assert report.launches() == 0
    other.synchronize()
    assert value(stream) == 1


def test_a_stream_waits_for_anothers_event(add: Any) -> None:
    memory = zeros()
    first, second = cuda.Stream(non_blocking=True), cuda.Stream(non_blocking=True)
    add(memory, 1, first)
    event = first.record()
    add(memory, 10, first)
    second.wait_event(event)
    second.synchronize()
    assert report.launches() == 1, "what came after the event was not waited for"
    first.synchronize()
    assert value(memory) == 11


def test_an_event_is_done_when_it_is_reached_and_polling_ends(add: Any) -> None:
    memory, event = zeros(), cuda.Event()
    assert event.done
    add(memory, 1)
    event.record()
    assert [event.done, event.done] == [False, True]
    assert report.launches() == 1


def test_elapsed_time_needs_reached_events(add: Any) -> None:
    start, end = cuda.Event(), cuda.Event()
    start.record()
    add(zeros(), 1)
    end.record()
    with pytest.raises(CUDARuntimeError, match="NotReady"):
        cuda.get_elapsed_time(start, end)
    end.synchronize()
    assert cuda.get_elapsed_time(start, end) >= 0
    silent = cuda.Event(disable_timing=True)
    silent.record()
    silent.synchronize()
    with pytest.raises(CUDARuntimeError, match="InvalidResourceHandle"):
        cuda.get_elapsed_time(silent, end)


def test_a_stream_is_current_within_a_with(add: Any) -> None:
    stream = cuda.Stream(non_blocking=True)
    with stream:
        assert cuda.get_current_stream() == stream
        add(zeros(), 1)
    assert cuda.get_current_stream() == cuda.Stream.null
    cuda.Stream.null.synchronize()
    assert not stream.done
    cuda.Device().synchronize()
    assert stream.done


def test_a_fault_ends_what_waits_and_is_kept_in_the_report(add: Any) -> None:
    memory, good = cuda.alloc(SIZE // 2), zeros()
    add(memory, 1)
    add(good, 1)
    with pytest.raises(Fault, match="beyond the end"):
        cuda.Device().synchronize()
    assert report.launches() == 1
    assert len(report.faults) == 1
    cuda.Device().synchronize()


# ---- graphs --------------------------------------------------------------------------------------


def captured(add: Any, memory: Any, *numbers: float) -> Any:
    stream = cuda.Stream(non_blocking=True)
    stream.begin_capture()
    for number in numbers:
        add(memory, number, stream)
    assert stream.is_capturing()
    return stream.end_capture()


def test_a_graph_runs_what_was_captured_each_time(add: Any) -> None:
    memory = zeros()
    graph = captured(add, memory, 1, 10)
    assert value(memory) == 0
    stream = cuda.Stream(non_blocking=True)
    graph.launch(stream)
    graph.launch(stream)
    stream.synchronize()
    assert value(memory) == 22


def test_a_graph_whose_memory_was_freed_is_reported(add: Any) -> None:
    graph = captured(add, zeros(), 1)
    with pytest.raises(Fault, match="a graph uses memory that was freed"):
        graph.launch()


def test_waiting_for_a_stream_that_is_captured_ends_the_capture(add: Any) -> None:
    stream = cuda.Stream(non_blocking=True)
    stream.begin_capture()
    with pytest.raises(CUDARuntimeError, match="StreamCaptureUnsupported"):
        stream.synchronize()
    with pytest.raises(CUDARuntimeError, match="StreamCaptureInvalidated"):
        stream.end_capture()


def test_the_null_stream_cannot_be_captured() -> None:
    with pytest.raises(CUDARuntimeError, match="StreamCaptureUnsupported"):
        cuda.Stream.null.begin_capture()


def test_memory_cannot_be_made_in_a_global_capture() -> None:
    stream = cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture(cuda.runtime.streamCaptureModeGlobal)
        with pytest.raises(CUDARuntimeError, match="StreamCaptureUnsupported"):
            cuda.alloc(SIZE)


# ---- memory --------------------------------------------------------------------------------------


def test_new_memory_is_poisoned() -> None:
    got = np.zeros(16, np.float32)
    cuda.alloc(64).copy_to_host(got.ctypes.data, 64)
    assert np.isnan(got).all()


def test_a_pool_has_a_limit_and_counts_in_granules() -> None:
    pool = cuda.MemoryPool()
    pool.set_limit(2048)
    first, second = pool.malloc(1000), pool.malloc(513)
    assert (pool.used_bytes(), pool.total_bytes()) == (2048, 2048)
    with pytest.raises(OutOfMemoryError, match="Out of memory allocating 512 bytes"):
        pool.malloc(1)
    del first
    assert (pool.used_bytes(), pool.free_bytes(), pool.n_free_blocks()) == (1024, 1024, 1)
    third = pool.malloc(1024)
    assert pool.total_bytes() == 2048
    del second, third
    pool.free_all_blocks()
    assert pool.total_bytes() == 0


def test_the_devices_memory_is_a_limit_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COREGRAD_SIMT_CUDA_MEMORY", "4096")
    machine.reset()
    pool = cuda.MemoryPool()
    kept = pool.malloc(4096)
    assert cuda.runtime.memGetInfo() == (0, 4096)
    with pytest.raises(MemoryError):
        pool.malloc(1)
    assert kept.ptr % 16 == 0


def test_memory_may_be_dropped_while_its_own_stream_uses_it(add: Any) -> None:
    stream = cuda.Stream(non_blocking=True)
    with stream:
        memory = cuda.alloc(SIZE)
        memory.memset_async(0, SIZE)
        add(memory, 1)
        del memory
    stream.synchronize()
    assert not report.faults


def test_memory_dropped_while_another_stream_uses_it_is_reported(add: Any) -> None:
    memory, stream = zeros(), cuda.Stream(non_blocking=True)
    add(memory, 1, stream)
    del memory
    with pytest.raises(Fault, match="uses 128 bytes that were freed"):
        stream.synchronize()


def test_a_pointer_moves_and_stays_within_its_memory() -> None:
    memory = zeros()
    half = memory + 64
    assert int(half) == memory.ptr + 64
    assert half.mem is memory.mem
    with pytest.raises(ValueError, match="offset"):
        memory + SIZE + 1
    with pytest.raises(CUDARuntimeError, match="reach beyond"):
        half.copy_from_host(np.zeros(128, np.uint8).ctypes.data, 128)


def test_a_host_array_is_no_host_address() -> None:
    with pytest.raises(TypeError, match="host address"):
        zeros().copy_from_host(np.zeros(32, np.float32), SIZE)


def test_copies_move_bytes_when_their_stream_runs() -> None:
    source, target = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    first, second, stream = cuda.alloc(SIZE), cuda.alloc(SIZE), cuda.Stream(non_blocking=True)
    first.copy_from_host_async(ctypes.c_void_p(source.ctypes.data), SIZE, stream)
    second.copy_from_device_async(first, SIZE, stream)
    second.copy_to_host_async(target.ctypes.data, SIZE, stream)
    assert not target.any()
    stream.synchronize()
    assert (target == source).all()


def test_the_kind_of_a_copy_is_checked() -> None:
    memory, host = zeros(), np.zeros(32, np.float32)
    with pytest.raises(CUDARuntimeError, match="InvalidMemcpyDirection"):
        cuda.runtime.memcpy(memory.ptr, host.ctypes.data, SIZE, cuda.runtime.memcpyHostToHost)
    with pytest.raises(CUDARuntimeError, match="no device memory"):
        cuda.runtime.memcpy(host.ctypes.data, memory.ptr, SIZE, cuda.runtime.memcpyHostToDevice)


def test_pinned_memory_is_a_buffer() -> None:
    pinned = cuda.alloc_pinned_memory(SIZE)
    np.frombuffer(pinned, np.float32, 32)[:] = 7
    memory = zeros()
    memory.copy_from_host(pinned.ptr, SIZE)
    assert value(memory) == 7


# ---- devices -------------------------------------------------------------------------------------


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COREGRAD_SIMT_CUDA_DEVICES", "2")
    machine.reset()


def test_no_device_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COREGRAD_SIMT_CUDA_DEVICES", "0")
    machine.reset()
    assert not cuda.is_available()
    with pytest.raises(CUDARuntimeError, match="NoDevice") as found:
        cuda.runtime.getDeviceCount()
    assert found.value.status == 100


def test_a_device_that_is_not_there_is_refused_when_used() -> None:
    device = cuda.Device(3)
    with pytest.raises(CUDARuntimeError, match="InvalidDevice"):
        device.use()


def test_memory_and_streams_belong_to_the_current_device(two_devices: None, add: Any) -> None:
    with cuda.Device(1):
        memory = zeros()
        assert memory.device.id == 1
        add(memory, 1)
    cuda.Device(0).synchronize()
    assert report.launches() == 0
    with cuda.Device(1):
        assert value(memory) == 1
    assert cuda.Device().id == 0


def test_peers_copy_and_after_enabling_use_each_others_memory(two_devices: None, add: Any) -> None:
    near = zeros()
    add(near, 5)
    with cuda.Device(1):
        far = cuda.alloc(SIZE)
    cuda.Device(0).synchronize()
    cuda.runtime.memcpyPeerAsync(far.ptr, 1, near.ptr, 0, SIZE, 0)
    cuda.Device(0).synchronize()
    assert value(far) == 5
    assert cuda.runtime.deviceCanAccessPeer(0, 1)
    cuda.runtime.deviceEnablePeerAccess(1)
    add(far, 1)
    assert value(far) == 6
    with pytest.raises(CUDARuntimeError, match="PeerAccessAlreadyEnabled"):
        cuda.runtime.deviceEnablePeerAccess(1)


# ---- compiling -----------------------------------------------------------------------------------


def compile_text(text: str, *options: str) -> bytes:
    nvrtc = cuda.nvrtc
    program = nvrtc.createProgram(text, "k.cu", (), ())
    nvrtc.compileProgram(program, options)
    try:
        return bytes(nvrtc.getCUBIN(program))
    finally:
        nvrtc.destroyProgram(program)


def test_a_text_becomes_a_module_by_way_of_bytes() -> None:
    module = cuda.function.Module()
    module.load(compile_text(ADD, "--gpu-architecture=sm_90", "-fmad=false"))
    memory = zeros()
    module.get_function("k")((1,), (32,), (int(memory.ptr), np.float32(3)))
    assert value(memory) == 3
    with pytest.raises(CUDADriverError, match="NOT_FOUND"):
        module.get_function("other")


def test_a_cubin_needs_a_real_architecture_that_the_device_is_of() -> None:
    with pytest.raises(cuda.nvrtc.NVRTCError, match="INVALID_PROGRAM"):
        compile_text(ADD, "-arch=compute_90")
    with pytest.raises(cuda.nvrtc.NVRTCError, match="INVALID_OPTION"):
        compile_text(ADD, "-arch=sm_12")
    for other in ("sm_80", "sm_120"):
        with pytest.raises(CUDADriverError, match="NO_BINARY_FOR_GPU"):
            cuda.function.Module().load(compile_text(ADD, f"-arch={other}"))


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(cuda.nvrtc.NVRTCError, match="INVALID_OPTION"):
        compile_text(ADD, "-arch=sm_90", "--fast")


def test_bytes_that_are_no_cubin_are_refused() -> None:
    with pytest.raises(CUDADriverError, match="INVALID_IMAGE"):
        cuda.function.Module().load(b"\x7fELF")


def test_a_text_that_does_not_compile_leaves_a_log() -> None:
    nvrtc = cuda.nvrtc
    program = nvrtc.createProgram("extern int x", "k.cu", (), ())
    with pytest.raises(nvrtc.NVRTCError, match="COMPILATION"):
        nvrtc.compileProgram(program, ("-arch=sm_90",))
    assert "error" in nvrtc.getProgramLog(program)
    with pytest.raises(CompileException, match="error"):
        cupy.RawModule(code="extern int x").get_function("k")


def test_texts_are_kept_for_other_compilers(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COREGRAD_SIMT_TEXTS", str(tmp_path / "texts"))
    cupy.RawModule(code=ADD).compile()
    assert [path.read_text() for path in tmp_path.glob("texts/*.cu")] == [ADD]


# ---- taking the real one's place -----------------------------------------------------------------


PROGRAM = """
import os, subprocess, sys
import coregrad_simt
(fake,) = coregrad_simt.install_fakes("cupy")
import cupy, cupy.cuda.runtime
from cupy.cuda import stream
assert cupy is fake and cupy.cuda.runtime.getDeviceCount() == 1 and "simt" in cupy.__version__
try:
    import cupy.cuda.nvrtc
except ModuleNotFoundError:
    pass  # an attribute only, as in the real one
else:
    raise SystemExit("cupy.cuda.nvrtc can be imported")
inside = "import cupy; assert 'simt' in cupy.__version__, cupy.__file__"
raise SystemExit(subprocess.run([sys.executable, "-c", inside]).returncode)
"""


def test_import_cupy_finds_the_fake_here_and_in_children() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


def test_a_path_alone_is_enough() -> None:
    environment = {"PYTHONPATH": fakes.path("cupy"), "PATH": ""}
    program = "import cupy; assert 'simt' in cupy.__version__"
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def test_there_is_no_fake_of_everything() -> None:
    with pytest.raises(ValueError, match="cupy, metalcompute"):
        fakes.path("torch")
