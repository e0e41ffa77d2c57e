"""The CPU's sorts, each program by itself, against NumPy's stable argsort."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from coregrad.dtypes import by_name
from coregrad_cpu.llvm import sorting
from coregrad_cpu.llvm.backend import Backend
from coregrad_cpu.llvm.device import Device
from coregrad_cpu.llvm.sorting.few import few
from coregrad_cpu.llvm.sorting.radix import long_rows, many_rows
from coregrad_cpu.llvm.sorting.short import short
from coregrad_cpu.llvm.sorting.text import Program

INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
GUARD = 64  # bytes behind each buffer that no program may touch

Maker = Callable[[int, int, int, str], Program]

PROGRAMS: dict[str, tuple[Maker, tuple[int, ...]]] = {
    "short": (
        lambda rows, n, count, dtype: short(by_name(dtype), rows, n, count),
        (16, 17, 31, 32, 33, 70, 128),
    ),
    "few": (
        lambda rows, n, count, dtype: few(by_name(dtype), rows, n, count),
        (16, 33, 64, 65, 1000),
    ),
    "rows": (
        lambda rows, n, count, dtype: many_rows(by_name(dtype), rows, n, count, min(rows, 4)),
        (2, 100, 257, 3000),
    ),
    "long": (
        lambda rows, n, count, dtype: long_rows(by_name(dtype), rows, n, count, 6),
        (2, 6, 100, 4001),
    ),
}


@pytest.fixture(scope="module")
def cpu() -> Iterator[Device]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COREGRAD_CACHE", "0")
        patch.setenv("COREGRAD_NUM_THREADS", "3")
        device = Backend().open_device(0)
        yield device
        device.pool.stop()  # before its code goes with it


def samples(dtype: str, rows: int, length: int) -> Iterator[np.ndarray]:
    info = np.iinfo(dtype)
    rng = np.random.default_rng(length)
    yield rng.integers(info.min, info.max, (rows, length), dtype=dtype, endpoint=True)
    yield rng.integers(0, 3, (rows, length), dtype=dtype)
    mixed = rng.integers(0, 2, (rows, length)).astype(bool)
    yield np.where(mixed, info.min, info.max).astype(dtype)
    yield np.zeros((rows, length), dtype)
    yield np.arange(rows * length).reshape(rows, length)[:, ::-1].astype(dtype)


def run(cpu: Device, program: Program, keys: np.ndarray, count: int) -> np.ndarray:
    """The places; what lies behind the buffers is looked at."""
    sizes = (keys.shape[0] * count * 4, keys.nbytes, program.scratch)
    buffers = [cpu.allocate(size + GUARD) for size in sizes]
    for buffer, size in zip(buffers, sizes, strict=True):
        cpu.view(buffer, size + GUARD)[:] = b"\x5a" * (size + GUARD)
    cpu.copy_in(buffers[1], memoryview(np.ascontiguousarray(keys)))
    cpu.launch(cpu.compile(program.text), buffers, 1)
    for buffer, size in zip(buffers, sizes, strict=True):
        assert bytes(cpu.view(buffer, size + GUARD)[size:]) == b"\x5a" * GUARD
    out = np.empty((keys.shape[0], count), np.int32)
    cpu.copy_out(buffers[0], memoryview(out))
    for buffer in buffers:
        cpu.free(buffer)
    return out


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_finds_the_stable_places(cpu: Device, name: str, dtype: str) -> None:
    make, lengths = PROGRAMS[name]
    for length in lengths:
        for count in sorted({1, min(9, length), length if name != "few" else length // 2}):
            program = make(5, length, count, dtype)
            for keys in samples(dtype, 5, length):
                want = np.argsort(keys, -1, kind="stable")[:, :count]
                np.testing.assert_array_equal(run(cpu, program, keys, count), want)


@pytest.mark.parametrize(
    ("rows", "length", "count", "words"),
    [
        (9, 15, 15, None),
        (0, 100, 100, None),
        (9, 100, 100, "@ranks("),
        (9, 100, 1, "@offer("),
        (9, 1000, 10, "@offer("),
        (9, 1000, 65, "@row("),
        (1, 100_000, 100_000, "; phase fill_block_0"),
        (50, 100_000, 100_000, "@row("),
    ],
)
def test_the_program_is_chosen_by_size(
    rows: int, length: int, count: int, words: str | None
) -> None:
    made = sorting.program(by_name("int32"), rows, length, count, 2)
    if words is None:
        assert made is None
    else:
        assert made is not None
        assert words in made.text
        assert made.scratch > 0


def test_one_thread_needs_no_blocks() -> None:
    made = sorting.program(by_name("int32"), 1, 100_000, 100_000, 1)
    assert made is not None
    assert sorting.phases(made.text) == []


def test_a_long_sort_is_replayed_on_other_buffers(cpu: Device) -> None:
    program = long_rows(by_name("int32"), 1, 5000, 5000, 6)
    compiled = cpu.compile(program.text)
    keys, out, scratch, again = (
        cpu.allocate(size) for size in (20_000, 20_000, program.scratch, 20_000)
    )
    replay = cpu.replay([(compiled, (1, 0, 2), 1), (compiled, (3, 1, 2), 1)])
    for seed in range(3):
        values = np.random.default_rng(seed).integers(-99, 99, 5000, dtype=np.int32)
        cpu.copy_in(keys, memoryview(values))
        for _ in range(20):
            replay.run([keys, out, scratch, again])
        order = np.argsort(values, kind="stable")
        for buffer, want in ((out, order), (again, np.argsort(order))):
            found = np.empty(5000, np.int32)
            cpu.copy_out(buffer, memoryview(found))
            np.testing.assert_array_equal(found, want)
