"""The device: memory that is reused, copies, and launches cut into chunks."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("llvmlite")

from coregrad.dtypes import ALL, float32, float64
from coregrad.errors import OutOfMemory, VerifyError
from coregrad.hookspecs import Header
from coregrad.ir.kernel import Param
from coregrad_cpu.llvm.arena import SLAB, Arena, Buffer, size_class
from coregrad_cpu.llvm.backend import Backend
from coregrad_cpu.llvm.device import CHUNK_WORK, Device, chunk_size
from coregrad_cpu.llvm.frame import hints


@pytest.fixture(scope="module")
def cpu() -> Iterator[Device]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COREGRAD_CACHE", "0")
        patch.setenv("COREGRAD_NUM_THREADS", "3")
        yield Backend().open_device(0)


# ---- memory ------------------------------------------------------------------------------------


@given(st.integers(1, 1 << 40))
def test_a_size_class_holds_the_size_and_wastes_little(nbytes: int) -> None:
    size = size_class(nbytes)
    assert nbytes <= size <= max(nbytes + 63, nbytes * 9 // 8)
    assert size % 64 == 0
    assert size_class(size) == size


@given(st.lists(st.integers(1, 1 << 18), min_size=1, max_size=30), st.randoms())
def test_blocks_are_aligned_and_never_overlap(sizes: list[int], random: object) -> None:
    arena = Arena()
    held: list[Buffer] = []
    for nbytes in sizes:
        held.append(arena.take(nbytes))
        if random.random() < 0.4:  # type: ignore[attr-defined]
            arena.give(held.pop(random.randrange(len(held))))  # type: ignore[attr-defined]
    spans = sorted((b.address, b.address + b.size) for b in held)
    assert all(start % 64 == 0 for start, _ in spans)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


@pytest.mark.parametrize("nbytes", [1, 4096, SLAB, 5 << 20])
def test_a_freed_block_is_used_again(nbytes: int) -> None:
    arena = Arena()
    first = arena.take(nbytes)
    address = first.address
    arena.give(first)
    assert arena.kept == size_class(nbytes)
    assert arena.take(nbytes).address == address
    assert arena.kept == 0


def test_large_blocks_go_back_to_the_system_when_too_much_is_kept() -> None:
    arena = Arena(total=64 << 20)
    blocks = [arena.take(4 << 20) for _ in range(6)]
    for block in blocks:
        arena.give(block)
    assert arena.kept <= arena.total // 4
    again = [arena.take(4 << 20) for _ in range(6)]
    for block in again:  # what was given back must not be handed out
        ctypes.memset(block.address, 1, block.size)


def test_freeing_twice_is_an_error() -> None:
    arena = Arena()
    block = arena.take(10)
    arena.give(block)
    with pytest.raises(VerifyError, match="freed before"):
        arena.give(block)


def test_more_than_the_machine_has_is_out_of_memory() -> None:
    with pytest.raises(OutOfMemory, match="bytes asked for"):
        Arena().take(1 << 60)
    with pytest.raises(OutOfMemory, match=r"no \d+ bytes left"):
        Arena(total=1 << 62).take(1 << 61)


def test_the_garbage_collector_may_free_while_memory_is_taken() -> None:
    arena = Arena()

    class Cycle:
        def __init__(self) -> None:
            self.me = self
            self.buffer = arena.take(100)

        def __del__(self) -> None:
            arena.give(self.buffer)

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(300):
            Cycle()
            arena.take(100)
    finally:
        gc.set_threshold(*threshold)


# ---- copies ------------------------------------------------------------------------------------


def test_copies_go_both_ways_and_a_view_is_the_memory_itself(cpu: Device) -> None:
    data = np.arange(1000, dtype=np.int32)
    data.flags.writeable = False
    buffer = cpu.allocate(data.nbytes)
    cpu.copy_in(buffer, memoryview(data.reshape(10, 100)))
    out = np.zeros_like(data)
    cpu.copy_out(buffer, memoryview(out))
    np.testing.assert_array_equal(out, data)
    seen = np.frombuffer(cpu.view(buffer, data.nbytes), np.int32)
    np.testing.assert_array_equal(seen, data)
    cpu.copy_in(buffer, memoryview(np.full(3, 7, np.int32)))
    assert seen[:4].tolist() == [7, 7, 7, 3]
    cpu.free(buffer)
    with pytest.raises(VerifyError):
        cpu.view(buffer, 4)


def test_a_copy_beyond_the_buffer_is_an_error(cpu: Device) -> None:
    buffer = cpu.allocate(64)
    with pytest.raises(VerifyError, match="128 bytes"):
        cpu.copy_in(buffer, memoryview(bytes(128)))
    cpu.free(buffer)


# ---- launches ----------------------------------------------------------------------------------


@given(
    grid=st.integers(1, 1 << 40),
    work=st.floats(0.01, 1e9),
    step=st.sampled_from([1, 64, 256]),
    threads=st.integers(1, 128),
)
def test_chunks_are_whole_steps_worth_their_cost(
    grid: int, work: float, step: int, threads: int
) -> None:
    size = chunk_size(grid, work, step, threads)
    if size >= grid:
        return
    assert threads > 1
    assert size % step == 0
    assert size * work >= CHUNK_WORK / 2 or size == step
    assert -(-grid // size) <= (8 if step * work < CHUNK_WORK else 64) * threads


@pytest.mark.parametrize("n", [1, 7, 64, 65, 4096, 99_999])
@pytest.mark.parametrize("lanes", [1, 8])
def test_results_do_not_depend_on_how_the_grid_is_cut(cpu: Device, n: int, lanes: int) -> None:
    params = (Param("o", float64, n, "out"), Param("x", float64, n, "in"))
    backend = Backend()
    frame = backend.begin_kernel(Header("k", params, n), None)
    for width, resume in ((lanes, False), (1, True)) if lanes > 1 else ((1, False),):
        for i in frame.loop("i", n, "grid", width, resume):
            x = backend.lower_load(frame, params[1], i, 1, None, float64, width)
            y = backend.lower_exp(frame, x, float64, width)
            backend.lower_store(frame, params[0], i, 1, y, None, float64, width)
    text = frame.finish()
    assert hints(text)["buffers"] == 2
    compiled = cpu.compile(text)
    assert cpu.compile(text) is compiled
    x = np.random.default_rng(n).standard_normal(n)
    buffers = [cpu.allocate(8 * n) for _ in range(2)]
    cpu.copy_in(buffers[1], memoryview(x))
    out = np.empty_like(x)
    cpu.launch(compiled, buffers, n)
    cpu.copy_out(buffers[0], memoryview(out))
    np.testing.assert_allclose(out, np.exp(x), rtol=1e-15)
    whole = np.empty_like(x)
    compiled.call(compiled.pointer, 0, n)
    cpu.copy_out(buffers[0], memoryview(whole))
    assert whole.tobytes() == out.tobytes()


@pytest.mark.parametrize("n", [100, 100_000])
def test_a_replay_runs_recorded_launches_in_order_and_takes_other_buffers(
    cpu: Device, n: int
) -> None:
    params = (Param("o", float32, n, "out"), Param("x", float32, n, "in"))
    backend = Backend()
    frame = backend.begin_kernel(Header("k", params, n), None)
    for i in frame.loop("i", n, "grid", 1, False):
        x = backend.lower_load(frame, params[1], i, 1, None, float32, 1)
        y = backend.lower_add(frame, x, x, float32, 1)
        backend.lower_store(frame, params[0], i, 1, y, None, float32, 1)
    double = cpu.compile(frame.finish())
    x, a, b, other = (cpu.allocate(4 * n) for _ in range(4))
    values = np.arange(n, dtype=np.float32)
    cpu.copy_in(x, memoryview(values))
    cpu.copy_in(other, memoryview(-values))
    replay = cpu.replay([(double, (1, 0), n), (double, (2, 1), n), (double, (1, 2), n)])
    out = np.empty_like(values)
    for source, sign in ((x, 1), (other, -1), (x, 1)):
        for _ in range(20):
            replay.run([source, a, b])
        cpu.copy_out(a, memoryview(out))
        np.testing.assert_array_equal(out, sign * 8 * values)


def test_a_wrong_number_of_buffers_is_an_error(cpu: Device) -> None:
    params = (Param("o", float32, 1, "out"),)
    backend = Backend()
    frame = backend.begin_kernel(Header("k", params, 1), None)
    zero = backend.lower_const(frame, 1.0, float32, 1)
    backend.lower_store(frame, params[0], "0", 1, zero, None, float32, 1)
    compiled = cpu.compile(frame.finish())
    with pytest.raises(ValueError, match="size"):
        cpu.launch(compiled, [], 1)


def test_a_text_without_hints_is_refused(cpu: Device) -> None:
    with pytest.raises(VerifyError, match="first line"):
        cpu.compile("define void @kernel(ptr %a, i64 %b, i64 %c) { ret void }")


def test_the_limits_are_those_of_a_cpu(cpu: Device) -> None:
    assert cpu.limits.dtypes == frozenset(ALL)
    assert cpu.limits.vector_bytes in (16, 32, 64)
    assert cpu.limits.host_memory
    assert cpu.limits.threads == 1
