"""The machine that the fake pretends: its devices, their streams' queues, and what is allocated.

Work waits in its stream's queue until somebody synchronises. It is the home of the fake's state,
and the place that decides when something runs; what runs is in the other modules.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from coregrad_simt import report, settings
from coregrad_simt.errors import Fault
from coregrad_simt.memory import Buffer

GRANULE = 512  # bytes that a pool hands out at least


class Allocation:
    """Device memory, from when it was made until its last use has run."""

    def __init__(self, size: int, device: int, queue: Queue) -> None:
        self.buffer = Buffer(size)
        self.device = device
        self.queue = queue  # of the stream that was current: a pool reuses memory in its order
        self.freed = 0  # the number of the moment, or 0

    def check(self, work: Work) -> None:
        """Whether work that runs now may still use it. Freed memory belongs to what comes later on
        its own stream; work on others has to have run before."""
        if self.freed and (work.queue is not self.queue or work.number > self.freed):
            raise report_fault(
                f"{work.name}: uses {self.buffer.size} bytes that were freed; keep memory until "
                "work on other streams no longer needs it"
            )


Action: TypeAlias = Callable[[Sequence[Allocation]], None]


@dataclass
class Work:
    """Something that a stream does. ``uses``: the memory it touches, which ``run`` is given."""

    name: str
    run: Action
    queue: Queue
    uses: Sequence[Allocation] = ()
    number: int = 0

    def execute(self) -> None:
        """Run it, unless its memory is another's by now."""
        for allocation in self.uses:
            allocation.check(self)
        self.run(self.uses)


@dataclass(frozen=True)
class Captured:
    """Work of a graph, which knows addresses and not whose they are."""

    name: str
    run: Action
    addresses: Sequence[int]

    def push(self, queue: Queue) -> None:
        """Give it to a stream. Raises a fault if the memory is not there any more."""
        uses = [machine.find(address) for address in self.addresses]
        if None in uses:
            raise report_fault(f"{self.name}: a graph uses memory that was freed")
        queue.push(self.name, self.run, [use for use in uses if use])


@dataclass(eq=False)
class Queue:
    """A stream's work in order. ``blocking``: it and the null stream wait for each other."""

    device: int
    null: bool = False
    blocking: bool = True
    waiting: deque[Work] = field(default_factory=deque)
    captured: list[Captured] | None = None
    invalid: bool = False  # the capture
    mode: int = 0

    def push(self, name: str, run: Action, uses: Sequence[Allocation] = ()) -> Work:
        """Give work to the stream, or to the graph that is being captured."""
        work = Work(name, run, self, uses)
        with machine.lock:
            work.number = machine.moment()
            if self.captured is None:
                self.waiting.append(work)
            else:
                addresses = [allocation.buffer.address for allocation in uses]
                self.captured.append(Captured(name, run, addresses))
        return work

    def run(self, number: int | None = None) -> None:
        """Run what waits, or what was given up to moment ``number``."""
        with machine.lock:
            last = machine.moment() if number is None else number
            while self.waiting and self.waiting[0].number <= last:
                work = self.waiting.popleft()
                for other in machine.partners(self):
                    other.run(work.number - 1)
                try:
                    work.execute()
                except BaseException:
                    machine.abandon(self.device)
                    raise


@dataclass
class DeviceState:
    """A device: its null stream, other queues, and the peers whose memory it may use."""

    null: Queue
    queues: list[Queue] = field(default_factory=list)
    peers: set[int] = field(default_factory=set)


class Machine:
    """All of it. ``reset`` makes a new one, reading the environment again."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.reset()

    def reset(self) -> None:
        """Forget all work and memory."""
        self._moments = itertools.count(1)
        self.count = settings.number("COREGRAD_SIMT_CUDA_DEVICES", 1)
        self.memory = settings.number("COREGRAD_SIMT_CUDA_MEMORY", 4 << 30)
        self.architecture = settings.number("COREGRAD_SIMT_CUDA_ARCH", 90)
        self.devices = [DeviceState(Queue(i, null=True)) for i in range(self.count)]
        self.allocated: dict[int, Allocation] = {}
        self.queues: dict[int, Queue] = {}  # by the number that a stream passes for
        self.local = threading.local()

    def moment(self) -> int:
        """The next number of a moment."""
        return next(self._moments)

    @property
    def current(self) -> int:
        """The calling thread's device."""
        device: int = getattr(self.local, "device", 0)
        return device

    def current_queue(self) -> Queue:
        """The queue of the calling thread's stream."""
        stream = self.local.__dict__.get("streams", {}).get(self.current)
        return stream._queue if stream else self.devices[self.current].null

    def partners(self, queue: Queue) -> Iterator[Queue]:
        """The queues that must have caught up before work of ``queue`` runs."""
        device = self.devices[queue.device]
        if queue.null:
            yield from (other for other in device.queues if other.blocking)
        elif queue.blocking:
            yield device.null

    def abandon(self, device: int) -> None:
        """A fault ends everything that waits on a device."""
        for queue in (self.devices[device].null, *self.devices[device].queues):
            queue.waiting.clear()

    def synchronize(self, device: int) -> None:
        """Run everything of a device."""
        state = self.devices[device]
        for queue in (state.null, *state.queues):
            queue.run()

    def allocate(self, size: int, queue: Queue) -> Allocation:
        """Device memory, poisoned."""
        allocation = Allocation(size, self.current, queue)
        self.allocated[allocation.buffer.address] = allocation
        return allocation

    def release(self, allocation: Allocation) -> None:
        """The last pointer to it is gone."""
        allocation.freed = self.moment()
        self.allocated.pop(allocation.buffer.address, None)

    def find(self, address: int) -> Allocation | None:
        """The memory that an address lies in."""
        found = self.allocated.get(address)
        if found is not None:
            return found
        for allocation in list(self.allocated.values()):
            if allocation.buffer.holds(address):
                return allocation
        return None

    def expect_idle(self, allocation: Allocation, what: str) -> None:
        """Raise a fault if a stream that was not waited for still has work with the memory."""
        for state in self.devices:
            for queue in (state.null, *state.queues):
                for work in queue.waiting:
                    if allocation in work.uses:
                        raise report_fault(
                            f"{what}: {work.name} waits in a stream that was not synchronised, "
                            "and uses the same memory"
                        )


def report_fault(message: str) -> Fault:
    """A fault of the host's program, which the report keeps as well."""
    report.fault(message)
    return Fault(message)


machine = Machine()
