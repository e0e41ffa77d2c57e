"""The thread pool and the run-list interpreter, in native code: many launches in one call.

A run list is an array of records; a record is a kernel, its arguments and how its grid is cut into
chunks. Threads claim chunks one at a time. It knows no kernel language and owns no buffer.

What makes it safe, in the order it was learned:

* the barrier after a record counts finished *chunks*, so that nobody waits for a thread that has
  claimed nothing (on a busy machine a thread may be away for a millisecond);
* the claim and done words carry the run's generation in their upper half: a late thread sees a
  foreign tag and leaves;
* a record never changes once a list has been submitted, except for the contents of its arguments;
* the last reference to a list is dropped by :meth:`Pool.bury`, when no thread can look at it;
* each worker itself holds what it looks at, memory, lists and code: a pool that is dropped tells
  its workers to end, and the last of them to leave native code lets all of it go.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
import weakref
from collections import deque
from collections.abc import Sequence

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
BURIED = 64  # lists to let go that call for a run of all threads, after which nobody looks at them

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

; A list whose records have one chunk each: there is nothing to share, so nobody is told.
define void @alone(ptr %list, i64 %n) {
entry:
  %empty = icmp eq i64 %n, 0
  br i1 %empty, label %leave, label %record
record:
  %i = phi i64 [ 0, %entry ], [ %i.next, %record ]
  %offset = mul i64 %i, 16
  %r = getelementptr i64, ptr %list, i64 %offset
  %fn = load ptr, ptr %r
  %args.p = getelementptr i64, ptr %r, i64 1
  %args = load ptr, ptr %args.p
  %grid.p = getelementptr i64, ptr %r, i64 4
  %grid = load i64, ptr %grid.p
  call void %fn(ptr %args, i64 0, i64 %grid)
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
        self.is_shared = not records or any(record.chunks > 1 for record in records)
        self._memory = (ctypes.c_int64 * (RECORD_SLOTS * (self.length + 1)))()
        self.address = -(-ctypes.addressof(self._memory) // 128) * 128
        slots = (ctypes.c_int64 * (RECORD_SLOTS * self.length)).from_address(self.address)
        for i, record in enumerate(records):
            at = i * RECORD_SLOTS
            slots[at : at + len(record.words)] = record.words


class _Crew:
    """The workers of a pool, and what they look at: words in memory, run lists, native code.

    Every worker holds its crew, so that none of it goes while one of them may still look.
    """

    def __init__(self, compiler: Compiler, native_wait: bool, kept: list[RunList]) -> None:
        self.compiler = compiler  # owns the code
        self.kept = kept
        self.buried: deque[RunList] = deque()
        self.native_wait = native_wait
        self.condition = threading.Condition()
        self.workers: list[threading.Thread] = []
        self._memory = (ctypes.c_int64 * (POOL_SLOTS + 8))()
        self.address = -(-ctypes.addressof(self._memory) // 64) * 64
        self.slots = (ctypes.c_int64 * POOL_SLOTS).from_address(self.address)
        self.slots[SPIN] = SPINS
        text = program(native_wait)
        pointer, word = ctypes.c_void_p, ctypes.c_int64
        start = compiler.address
        self.alone = ctypes.CFUNCTYPE(None, pointer, word)(start(text, "alone"))
        self.help = ctypes.CFUNCTYPE(word, pointer)(start(text, "help"))
        self.publish = ctypes.CFUNCTYPE(None, pointer, pointer, word)(start(text, "publish"))
        if native_wait:
            self.wake = ctypes.CFUNCTYPE(None, pointer)(start(text, "wake"))
            self.submit = ctypes.CFUNCTYPE(None, pointer, pointer, word)(start(text, "submit"))
            self.worker = ctypes.CFUNCTYPE(None, pointer)(start(text, "worker"))

    def grow(self, count: int) -> None:
        """Start workers until there are ``count``."""
        for number in range(len(self.workers) + 1, count + 1):
            # Daemon threads: the process may end while they sleep in native code.
            name = f"coregrad-cpu-{number}"
            thread = threading.Thread(target=_work, args=(self,), name=name, daemon=True)
            thread.start()
            self.workers.append(thread)

    def dismiss(self) -> None:
        """Tell the workers to end. Never waits: a garbage collection may call this anywhere."""
        self.slots[STOP] = 1
        self.publish(self.address, self.address, 0)
        if self.native_wait:
            self.wake(self.address)
        else:
            with self.condition:
                self.condition.notify_all()


def _work(crew: _Crew) -> None:
    """A worker's life. It holds the crew, but not the pool, which may be dropped meanwhile."""
    if crew.native_wait:
        crew.worker(crew.address)
        return
    seen = 0  # no portable way to wait in native code: wait here
    while not crew.slots[STOP]:
        seen = crew.help(crew.address)
        with crew.condition:
            while crew.slots[GENERATION] == seen and not crew.slots[STOP]:
                crew.condition.wait()


class Pool:
    """``threads`` - 1 native workers and the calling thread. One run at a time: hold ``lock``."""

    def __init__(self, compiler: Compiler, threads: int, native_wait: bool | None = None) -> None:
        self.threads = threads
        self._compiler = compiler
        machine = platform.machine().lower()
        can_wait = sys.platform.startswith("linux") and machine in FUTEX_CALLS
        self._native_wait = can_wait if native_wait is None else native_wait
        self._reset([])
        if hasattr(os, "register_at_fork"):
            alive = weakref.ref(self)
            os.register_at_fork(after_in_child=lambda: _reset_in_child(alive))

    def _reset(self, kept: list[RunList]) -> None:
        """A pool without workers; in a forked child the parent's workers do not exist."""
        self.lock = threading.Lock()
        self._crew = _Crew(self._compiler, self._native_wait, kept)
        self._end = weakref.finalize(self, self._crew.dismiss)
        self._end.atexit = False  # at the end of the process see stop
        self._stopped = False

    def run(self, runlist: RunList) -> None:
        """Carry out every record in order. The caller holds ``lock`` and the buffers."""
        crew = self._crew
        if not runlist.is_shared and len(crew.buried) < BURIED:
            crew.alone(runlist.address, runlist.length)
            return
        if len(crew.workers) < self.threads - 1 and not self._stopped:
            crew.grow(self.threads - 1)
        buried = len(crew.buried)
        if self._native_wait:
            crew.submit(crew.address, runlist.address, runlist.length)
        else:
            crew.publish(crew.address, runlist.address, runlist.length)
            with crew.condition:
                crew.condition.notify_all()
            crew.help(crew.address)
        if buried and not crew.slots[INSIDE]:  # whoever looked at an older list has left
            for _ in range(buried):
                crew.buried.popleft()

    def keep(self, runlist: RunList) -> None:
        """Let a list live as long as the workers do."""
        self._crew.kept.append(runlist)

    def bury(self, runlist: RunList) -> None:
        """Let a list go once no thread can look at it any more. Never waits: see Arena.give."""
        self._crew.buried.append(runlist)

    def stop(self) -> None:
        """End the workers and wait for them; later runs use the calling thread alone."""
        with self.lock:
            self._stopped = True
            self._crew.dismiss()
            workers, self._crew.workers = self._crew.workers, []
        for worker in workers:
            worker.join()


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
        alive._end.detach()
        alive._reset(alive._crew.kept)
