"""The thread pool and the run-list interpreter, in native code: many launches in one call.

A run list is an array of records; a record is a kernel, its arguments and how its grid is cut into
chunks. Threads claim chunks one at a time. It knows no kernel language and owns no buffer.

What makes it safe, in the order it was learned:

* the barrier after a record counts finished *chunks*, so that nobody waits for a thread that has
  claimed nothing (on a busy machine a thread may be away for a millisecond);
* the claim and done words carry the run's generation in their upper half: a late thread sees a
  foreign tag and leaves;
* a record never changes once a list has been submitted, except for the contents of its arguments;
* the last reference to a list is dropped by :meth:`Pool.bury`, when no thread can look at it.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import sys
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from coregrad import config
from coregrad.errors import CoregradError
from coregrad_cpu.llvm import target
from coregrad_cpu.llvm.compiler import Compiler

# Slots of the pool's memory, 8 bytes each; what threads poll stands on a cache line of its own.
GENERATION, LIST, LENGTH, SLEEPERS, FUTEX, STOP, SPIN, INSIDE = 0, 8, 9, 16, 24, 32, 33, 40
POOL_SLOTS = 48
# Slots of a record. The claim word has a line of its own too.
FUNCTION, ARGUMENTS, CHUNKS, CHUNK, GRID, CLAIM, DONE = 0, 1, 2, 3, 4, 8, 9
RECORD_SLOTS = 16
# How often an idle thread looks before it sleeps: about a millisecond, longer than the pause
# between two launches of a training step. Asleep, it would cost every launch 30 us: a matrix
# product of 256x784x128 took 1.4 times as long with 3,000.
SPINS = 50_000

FUTEX_CALLS = {"x86_64": 202, "amd64": 202, "aarch64": 98, "arm64": 98}

INTERPRETER = """
declare i32 @$YIELD()
$DECLARE

define internal void @runlist(ptr %list, i64 %n, i64 %generation) {
entry:
  %tag = and i64 %generation, 4294967295
  %empty = icmp eq i64 %n, 0
  br i1 %empty, label %leave, label %record
record:
  %i = phi i64 [ 0, %entry ], [ %i.next, %next ]
  %offset = mul i64 %i, 16
  %r = getelementptr i64, ptr %list, i64 %offset
  %fn = load ptr, ptr %r
  %args.p = getelementptr i64, ptr %r, i64 1
  %args = load ptr, ptr %args.p
  %chunks.p = getelementptr i64, ptr %r, i64 2
  %chunks = load i64, ptr %chunks.p
  %chunk.p = getelementptr i64, ptr %r, i64 3
  %chunk = load i64, ptr %chunk.p
  %grid.p = getelementptr i64, ptr %r, i64 4
  %grid = load i64, ptr %grid.p
  %claim.p = getelementptr i64, ptr %r, i64 8
  %done.p = getelementptr i64, ptr %r, i64 9
  br label %claim
claim:
  %c = load atomic i64, ptr %claim.p acquire, align 8
  %c.tag = lshr i64 %c, 32
  %ours = icmp eq i64 %c.tag, %tag
  br i1 %ours, label %look, label %leave
look:
  %number = and i64 %c, 4294967295
  %left = icmp slt i64 %number, %chunks
  br i1 %left, label %try, label %wait
try:
  %c.next = add i64 %c, 1
  %pair = cmpxchg ptr %claim.p, i64 %c, i64 %c.next acq_rel monotonic
  %won = extractvalue { i64, i1 } %pair, 1
  br i1 %won, label %run, label %claim
run:
  %begin = mul i64 %number, %chunk
  %end.full = add i64 %begin, %chunk
  %partial = icmp sgt i64 %end.full, %grid
  %end = select i1 %partial, i64 %grid, i64 %end.full
  call void %fn(ptr %args, i64 %begin, i64 %end)
  %counted = atomicrmw add ptr %done.p, i64 1 acq_rel
  br label %claim
wait:
  %k = phi i64 [ 0, %look ], [ %k.next, %again ]
  %d = load atomic i64, ptr %done.p acquire, align 8
  %d.tag = lshr i64 %d, 32
  %current = icmp eq i64 %d.tag, %tag
  br i1 %current, label %count, label %leave
count:
  %finished = and i64 %d, 4294967295
  %all = icmp sge i64 %finished, %chunks
  br i1 %all, label %next, label %spin
spin:
  $PAUSE
  %k.next = add i64 %k, 1
  %rest = and i64 %k.next, 511
  %tired = icmp eq i64 %rest, 0
  br i1 %tired, label %yield, label %again
yield:
  %ignored = call i32 @$YIELD()
  br label %again
again:
  br label %wait
next:
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %n
  br i1 %more, label %record, label %leave
leave:
  ret void
}

; Take part in the current run; the generation that was seen.
define i64 @help(ptr %pool) {
entry:
  %inside.p = getelementptr i64, ptr %pool, i64 40
  %list.p = getelementptr i64, ptr %pool, i64 8
  %n.p = getelementptr i64, ptr %pool, i64 9
  %in = atomicrmw add ptr %inside.p, i64 1 seq_cst
  %g = load atomic i64, ptr %pool seq_cst, align 8
  %list = load atomic ptr, ptr %list.p acquire, align 8
  %n = load atomic i64, ptr %n.p acquire, align 8
  %g.again = load atomic i64, ptr %pool seq_cst, align 8
  %consistent = icmp eq i64 %g, %g.again
  br i1 %consistent, label %run, label %leave
run:
  call void @runlist(ptr %list, i64 %n, i64 %g)
  br label %leave
leave:
  %out = atomicrmw sub ptr %inside.p, i64 1 seq_cst
  ret i64 %g
}

; Tag the records with a new generation and make the list the current one.
define void @publish(ptr %pool, ptr %list, i64 %n) {
entry:
  %g.old = load atomic i64, ptr %pool monotonic, align 8
  %g = add i64 %g.old, 1
  %tag = shl i64 %g, 32
  %empty = icmp eq i64 %n, 0
  br i1 %empty, label %announce, label %each
each:
  %i = phi i64 [ 0, %entry ], [ %i.next, %each ]
  %offset = mul i64 %i, 16
  %r = getelementptr i64, ptr %list, i64 %offset
  %claim.p = getelementptr i64, ptr %r, i64 8
  %done.p = getelementptr i64, ptr %r, i64 9
  store atomic i64 %tag, ptr %done.p release, align 8
  store atomic i64 %tag, ptr %claim.p release, align 8
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %n
  br i1 %more, label %each, label %announce
announce:
  %list.p = getelementptr i64, ptr %pool, i64 8
  %n.p = getelementptr i64, ptr %pool, i64 9
  store atomic ptr %list, ptr %list.p release, align 8
  store atomic i64 %n, ptr %n.p release, align 8
  store atomic i64 %g, ptr %pool seq_cst, align 8
  ret void
}
"""

# With a futex, waiting and waking stay in native code as well.
FUTEX_PART = """
declare i64 @syscall(i64, ...)

define void @wake(ptr %pool) {
entry:
  %sleepers.p = getelementptr i64, ptr %pool, i64 16
  %sleepers = load atomic i64, ptr %sleepers.p seq_cst, align 8
  %any = icmp sgt i64 %sleepers, 0
  br i1 %any, label %call, label %leave
call:
  %futex.p = getelementptr i64, ptr %pool, i64 24
  %old = atomicrmw add ptr %futex.p, i64 1 seq_cst
  ; FUTEX_WAKE | FUTEX_PRIVATE_FLAG, everybody
  %r = call i64 (i64, ...) @syscall(
    i64 $FUTEX, ptr %futex.p, i32 129, i64 2147483647, i64 0, i64 0, i64 0)
  br label %leave
leave:
  ret void
}

define void @submit(ptr %pool, ptr %list, i64 %n) {
  call void @publish(ptr %pool, ptr %list, i64 %n)
  call void @wake(ptr %pool)
  %g = call i64 @help(ptr %pool)
  ret void
}

define void @worker(ptr %pool) {
entry:
  %sleepers.p = getelementptr i64, ptr %pool, i64 16
  %futex.p = getelementptr i64, ptr %pool, i64 24
  %stop.p = getelementptr i64, ptr %pool, i64 32
  %spin.p = getelementptr i64, ptr %pool, i64 33
  br label %outer
outer:
  %seen = phi i64 [ 0, %entry ], [ %ran, %awake ]
  ; looked at after taking part: the run just seen may have been the one that announces the stop
  %stop = load atomic i64, ptr %stop.p acquire, align 8
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %leave, label %begin
begin:
  %limit = load i64, ptr %spin.p
  br label %watch
watch:
  %k = phi i64 [ 0, %begin ], [ %k.next, %spin ]
  %g = load atomic i64, ptr %pool acquire, align 8
  %fresh = icmp ne i64 %g, %seen
  br i1 %fresh, label %awake, label %idle
idle:
  %k.next = add i64 %k, 1
  %patient = icmp slt i64 %k.next, %limit
  br i1 %patient, label %spin, label %bed
spin:
  $PAUSE
  br label %watch
bed:
  %in = atomicrmw add ptr %sleepers.p, i64 1 seq_cst
  br label %sleep
sleep:
  %ticket = load atomic i64, ptr %futex.p seq_cst, align 8
  %g.now = load atomic i64, ptr %pool seq_cst, align 8
  %fresh.now = icmp ne i64 %g.now, %seen
  br i1 %fresh.now, label %rise, label %lie
lie:
  ; FUTEX_WAIT | FUTEX_PRIVATE_FLAG, no timeout
  %r = call i64 (i64, ...) @syscall(
    i64 $FUTEX, ptr %futex.p, i32 128, i64 %ticket, i64 0, i64 0, i64 0)
  br label %sleep
rise:
  %out = atomicrmw sub ptr %sleepers.p, i64 1 seq_cst
  br label %awake
awake:
  %ran = call i64 @help(ptr %pool)
  br label %outer
leave:
  ret void
}
"""


def thread_count() -> int:
    """Threads to use: COREGRAD_NUM_THREADS, else the CPUs this process may use."""
    if config.get("COREGRAD_NUM_THREADS"):
        chosen = config.get_int("COREGRAD_NUM_THREADS")
        if chosen < 1:
            raise CoregradError(f"COREGRAD_NUM_THREADS={chosen}; give 1 or more, or unset it")
        return chosen
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, _cgroup_cpus())))


def _cgroup_cpus() -> float:
    """CPUs a container may use, from its quota; infinity without one."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return math.inf if quota == "max" else float(quota) / float(period)
    except (OSError, ValueError):
        pass  # no cgroup v2 here
    try:
        root = Path("/sys/fs/cgroup/cpu")
        allowed = float((root / "cpu.cfs_quota_us").read_text())
        return (
            allowed / float((root / "cpu.cfs_period_us").read_text()) if allowed > 0 else math.inf
        )
    except (OSError, ValueError):
        return math.inf  # no cgroup v1 either


class Record:
    """One launch of a run list: a function, its argument block and the chunks of its grid."""

    def __init__(self, function: int, arguments: int, grid: int, chunk: int) -> None:
        self.chunks = max(1, -(-grid // chunk))
        self.grid = grid
        self.words: list[ctypes.c_int64 | int] = [function, arguments, self.chunks, chunk, grid]


class RunList:
    """Records in native memory. It does not own what the arguments point to."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.length = len(records)
        self._memory = (ctypes.c_int64 * (RECORD_SLOTS * (self.length + 1)))()
        self.address = -(-ctypes.addressof(self._memory) // 128) * 128
        slots = (ctypes.c_int64 * (RECORD_SLOTS * self.length)).from_address(self.address)
        for i, record in enumerate(records):
            at = i * RECORD_SLOTS
            slots[at : at + len(record.words)] = record.words


class Pool:
    """``threads`` - 1 native workers and the calling thread. One run at a time: hold ``lock``."""

    def __init__(self, compiler: Compiler, threads: int, native_wait: bool | None = None) -> None:
        self.threads = threads
        machine = platform.machine().lower()
        can_wait = sys.platform.startswith("linux") and machine in FUTEX_CALLS
        self._native_wait = can_wait if native_wait is None else native_wait
        text = program(self._native_wait)
        pointer, word = ctypes.c_void_p, ctypes.c_int64
        start = compiler.address
        self._help = ctypes.CFUNCTYPE(word, pointer)(start(text, "help"))
        self._publish = ctypes.CFUNCTYPE(None, pointer, pointer, word)(start(text, "publish"))
        if self._native_wait:
            self._wake = ctypes.CFUNCTYPE(None, pointer)(start(text, "wake"))
            self._submit = ctypes.CFUNCTYPE(None, pointer, pointer, word)(start(text, "submit"))
            self._worker = ctypes.CFUNCTYPE(None, pointer)(start(text, "worker"))
        self._reset()
        if hasattr(os, "register_at_fork"):
            alive = weakref.ref(self)
            os.register_at_fork(after_in_child=lambda: _reset_in_child(alive))

    def _reset(self) -> None:
        """A pool without workers; in a forked child the parent's workers do not exist."""
        self.lock = threading.Lock()
        self._condition = threading.Condition()
        self._workers: list[threading.Thread] = []
        self._buried: deque[RunList] = deque()
        self._memory = (ctypes.c_int64 * (POOL_SLOTS + 8))()
        self._address = -(-ctypes.addressof(self._memory) // 64) * 64
        self._slots = (ctypes.c_int64 * POOL_SLOTS).from_address(self._address)
        self._slots[SPIN] = SPINS
        self._stopped = False

    def run(self, runlist: RunList) -> None:
        """Carry out every record in order. The caller holds ``lock`` and the buffers."""
        if len(self._workers) < self.threads - 1 and not self._stopped:
            self._start()
        buried = len(self._buried)
        if self._native_wait:
            self._submit(self._address, runlist.address, runlist.length)
        else:
            self._publish(self._address, runlist.address, runlist.length)
            with self._condition:
                self._condition.notify_all()
            self._help(self._address)
        if buried and not self._slots[INSIDE]:  # whoever looked at an older list has left
            for _ in range(buried):
                self._buried.popleft()

    def bury(self, runlist: RunList) -> None:
        """Let a list go once no thread can look at it any more. Never waits: see Arena.give."""
        self._buried.append(runlist)

    def stop(self) -> None:
        """End the workers; later runs use the calling thread alone."""
        with self.lock:
            self._stopped = True
            workers, self._workers = self._workers, []
            self._slots[STOP] = 1
            self._publish(self._address, self._address, 0)
            if self._native_wait:
                self._wake(self._address)
            with self._condition:
                self._condition.notify_all()
        for worker in workers:
            worker.join()

    def _start(self) -> None:
        for number in range(len(self._workers) + 1, self.threads):
            # Daemon threads: the process may end while they sleep in native code.
            name = f"coregrad-cpu-{number}"
            if self._native_wait:
                thread = threading.Thread(
                    target=self._worker, args=(self._address,), name=name, daemon=True
                )
            else:
                thread = threading.Thread(target=self._wait_and_help, name=name, daemon=True)
            thread.start()
            self._workers.append(thread)

    def _wait_and_help(self) -> None:
        """A worker where native code has nothing portable to wait on."""
        seen = 0
        while not self._slots[STOP]:
            seen = self._help(self._address)
            with self._condition:
                while self._slots[GENERATION] == seen and not self._slots[STOP]:
                    self._condition.wait()


def program(native_wait: bool) -> str:
    """The pool's IR for this machine."""
    if target.is_x86():
        declare, pause = "declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"
    elif target.is_arm():
        declare, pause = (
            "declare void @llvm.aarch64.hint(i32)",
            "call void @llvm.aarch64.hint(i32 1)",
        )
    else:
        declare, pause = "", 'call void asm sideeffect "", "~{memory}"()'
    text = INTERPRETER + (FUTEX_PART if native_wait else "")
    give_way = "SwitchToThread" if sys.platform == "win32" else "sched_yield"
    number = FUTEX_CALLS.get(platform.machine().lower(), 0)
    for mark, value in (
        ("$DECLARE", declare),
        ("$PAUSE", pause),
        ("$YIELD", give_way),
        ("$FUTEX", str(number)),
    ):
        text = text.replace(mark, value)
    return text


def _reset_in_child(pool: weakref.ref[Pool]) -> None:
    alive = pool()
    if alive is not None:
        alive._reset()
