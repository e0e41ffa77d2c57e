"""The CPU as the contract's Device: memory, compiled kernels, launches cut into chunks."""

from __future__ import annotations

import atexit
import ctypes
import os
import weakref
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from coregrad.dtypes import ALL, DType
from coregrad.errors import VerifyError
from coregrad.hookspecs import Limits
from coregrad_cpu.llvm import quick, sorting, target
from coregrad_cpu.llvm.arena import Arena, Buffer
from coregrad_cpu.llvm.compiler import Compiler, cache_folder
from coregrad_cpu.llvm.frame import hints
from coregrad_cpu.llvm.pool import Pool, Record, RunList
from coregrad_cpu.llvm.processors import thread_count
from coregrad_cpu.llvm.quick import Quick

Launch: TypeAlias = "tuple[Compiled, Sequence[int], int]"  # a kernel, its buffers' numbers, grid

# The least work of a chunk, in instructions: some microseconds, several times what handing a
# chunk to another thread costs.
CHUNK_WORK = 16384
# Chunks per thread at most. Fewer and the last one is waited for; more only cost claims.
CHUNKS_PER_THREAD = 8
FINE_CHUNKS_PER_THREAD = 64


class Compiled:
    """A kernel's machine code, its argument block, and a run list per grid it was launched with.

    A text of several phases is several launches, one after the other.
    """

    def __init__(self, text: str, compiler: Compiler, pool: Pool) -> None:
        known = hints(text)
        self.text = text
        self._use(compiler)
        self.arguments = (ctypes.c_int64 * max(1, int(known["buffers"])))()
        self.buffers = int(known["buffers"])
        self.pointer = ctypes.addressof(self.arguments)
        self._step = int(known["step"])
        self._work = known["work"]
        self._grid = int(known.get("grid", 0))
        self._pool = pool
        self.launches_left: int | None = None  # before code that was made in haste is made again

    def _use(self, compiler: Compiler) -> None:
        phases = sorting.phases(self.text)
        self._phases = [(compiler.address(self.text, name), grid) for name, grid in phases]
        self.address = self._phases[0][0] if phases else compiler.address(self.text)
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self.call = kind(self.address)
        self._plans: dict[int, tuple[Record, RunList]] = {}

    def optimise(self, compiler: Compiler) -> None:
        """From now on be the code that this compiler makes; the old one stays loaded."""
        self.launches_left = None
        self._use(compiler)

    def records(self, arguments: int, grid: int) -> list[Record]:
        """A launch over ``grid`` iterations with the buffer addresses found at ``arguments``."""
        if self._phases:
            return [Record(address, arguments, own, 1) for address, own in self._phases]
        iterations = self._grid or grid
        size = chunk_size(iterations, self._work, self._step, self._pool.threads)
        return [Record(self.address, arguments, iterations, size)]

    def plan(self, grid: int) -> tuple[Record, RunList]:
        """A launch with the kernel's own argument block, kept for ever: see pool.py on records.
        The first record, and all of them."""
        plan = self._plans.get(grid)
        if plan is None:
            records = self.records(self.pointer, grid)
            plan = self._plans[grid] = records[0], RunList(records)
            self._pool.keep(plan[1])
        return plan


class Replay:
    """Launches recorded once, which one native call carries out in order on any buffers."""

    def __init__(self, pool: Pool, launches: Sequence[Launch]) -> None:
        self._pool = pool
        self._slots = np.array([slot for _, slots, _ in launches for slot in slots], np.intp)
        memory = np.zeros(len(self._slots) + 1, np.int64)
        self._arguments = memory[:-1]
        address, records = memory.ctypes.data, list[Record]()
        for compiled, slots, grid in launches:
            records += compiled.records(address, grid)
            address += 8 * len(slots)
        self._runlist = RunList(records)

    def __del__(self) -> None:
        self._pool.bury(self._runlist)

    def run(self, buffers: Sequence[Buffer | None]) -> None:
        """Carry out every launch; ``buffers`` are what the launches' slots number."""
        addresses = np.array([0 if b is None else b.address for b in buffers], np.int64)
        with self._pool.lock:
            addresses.take(self._slots, out=self._arguments, mode="clip")
            self._pool.run(self._runlist)


class Device:
    """This machine's processor. Launches are finished when they return."""

    def __init__(self, name: str = "cpu") -> None:
        self.name = name
        self.limits = Limits(
            dtypes=frozenset(ALL),
            vector_bytes=target.vector_bytes(),
            max_buffers=127,
            host_memory=True,
        )
        self.compiler = Compiler(cache_folder())
        self._quick: Quick | None = None
        self.threads = thread_count()
        self.pool = Pool(self.compiler, self.threads)
        self.arena = Arena()
        self._compiled: dict[str, Compiled] = {}
        self.fingerprint = f"{self.compiler.version}/{self.threads} threads"
        _at_fork_and_exit(self)

    def allocate(self, nbytes: int) -> Buffer:
        """A buffer of at least ``nbytes``, aligned to 64 bytes."""
        return self.arena.take(nbytes)

    def free(self, buffer: Buffer) -> None:
        """Give a buffer back."""
        self.arena.give(buffer)

    def part(self, buffer: Buffer, start: int, nbytes: int) -> Buffer:
        """Some bytes of a buffer as a buffer, which is not given back."""
        return Buffer(buffer.address + start, nbytes, nbytes)

    def copy_in(self, buffer: Buffer, data: memoryview) -> None:
        """Copy host bytes to the start of the buffer."""
        if data.nbytes:
            self.view(buffer, data.nbytes)[:] = data.cast("B")

    def copy_out(self, buffer: Buffer, into: memoryview) -> None:
        """Copy the start of the buffer to host bytes."""
        if into.nbytes:
            into.cast("B")[:] = self.view(buffer, into.nbytes)

    def view(self, buffer: Buffer, nbytes: int) -> memoryview:
        """The buffer's first bytes themselves, not a copy; valid until the buffer is freed."""
        if not buffer.address or nbytes > buffer.size:
            raise VerifyError(f"view: {nbytes} bytes of a buffer of {buffer.size} (0: freed)")
        return memoryview((ctypes.c_char * nbytes).from_address(buffer.address)).cast("B")

    def compile(self, program: str) -> Compiled:
        """Machine code for a finished frame's text."""
        found = self._compiled.get(program)
        if found is None:
            compiler = self._compiler_of(program)
            found = self._compiled[program] = Compiled(program, compiler, self.pool)
            if compiler is not self.compiler:
                found.launches_left = quick.OFTEN
        return found

    def _compiler_of(self, program: str) -> Compiler:
        """The one that optimises, unless that is not worth while and has not been done before."""
        if not quick.suffices(program) or self.compiler.knows(program):
            return self.compiler
        if self._quick is None:
            self._quick = Quick(cache_folder())
        return self._quick

    def sort(self, dtype: DType, rows: int, length: int, count: int) -> tuple[str, int] | None:
        """A program that sorts rows (see :class:`coregrad.hookspecs.Device`) and the bytes of
        scratch memory that it needs."""
        made = sorting.program(dtype, rows, length, count, self.threads)
        return None if made is None else (made.text, made.scratch)

    def assembly(self, program: str) -> str:
        """The machine code of a text, as DEBUG=6 shows it: as it is when it is compiled now."""
        return self._compiler_of(program).assembly(program)

    def launch(self, compiled: Compiled, buffers: Sequence[Buffer], grid: int) -> None:
        """Run a kernel: on this thread if it is small, else shared out in chunks."""
        if compiled.launches_left is not None:
            self._count(compiled)
        record, runlist = compiled.plan(grid)
        with self.pool.lock:
            compiled.arguments[: compiled.buffers] = [buffer.address for buffer in buffers]
            if runlist.length == 1 and record.chunks == 1:  # one call less than the pool's way
                compiled.call(compiled.pointer, 0, record.grid)
            else:
                self.pool.run(runlist)

    def _count(self, compiled: Compiled) -> None:
        assert compiled.launches_left is not None
        compiled.launches_left -= 1
        if compiled.launches_left <= 0:
            compiled.optimise(self.compiler)

    def may_overwrite(self, compiled: Compiled) -> bool:
        """Whether an output may be the buffer of an input that is read at the same index only:
        always, since no text promises LLVM that buffers are apart."""
        return True

    def replay(self, launches: Sequence[Launch]) -> Replay:
        """These launches, of numbered buffers, as an object that runs all in one native call."""
        for compiled, _, _ in launches:
            if compiled.launches_left is not None:  # what is captured will be run often
                compiled.optimise(self.compiler)
        return Replay(self.pool, launches)

    def synchronize(self) -> None:
        """Nothing is pending: launches return when they are done."""


def chunk_size(grid: int, work: float, step: int, threads: int) -> int:
    """Iterations per chunk: a multiple of ``step``, whole work for one thread if there is little.

    Where single steps are work enough, chunks are small, so that threads end together.

    >>> chunk_size(1000, 1.0, 64, 8), chunk_size(1 << 20, 1.0, 64, 2), chunk_size(44, 1e6, 1, 4)
    (1000, 65536, 1)
    """
    most = threads * (CHUNKS_PER_THREAD if step * work < CHUNK_WORK else FINE_CHUNKS_PER_THREAD)
    chunks = min(int(grid * work / CHUNK_WORK), most)
    if threads == 1 or chunks < 2:
        return grid
    return -(-grid // (chunks * step)) * step


def _at_fork_and_exit(device: Device) -> None:
    """A forked child has no workers and unknown locks; at exit workers end before their code."""
    alive = weakref.ref(device)

    def in_child() -> None:
        found = alive()
        if found is not None:
            found.arena.reset_lock()
            found.compiler.reset_lock()
            if found._quick is not None:
                found._quick.reset_lock()

    def at_exit() -> None:
        found = alive()
        if found is not None:
            found.pool.stop()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=in_child)
    atexit.register(at_exit)
