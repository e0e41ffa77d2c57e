"""cupy.cuda.stream: streams whose work runs only when somebody waits for it; events; capture."""

from __future__ import annotations

import itertools
import time
from typing import Any

from coregrad_simt.fakes.cupy.cuda import runtime
from coregrad_simt.fakes.cupy.cuda.graph import Graph
from coregrad_simt.fakes.cupy.machine import Queue, machine

__all__ = ["Event", "Stream", "get_current_stream", "get_elapsed_time"]

_numbers = itertools.count(0x1000, 0x10)


class Event:
    """A mark in a stream. It is reached when the stream's work before it has run."""

    def __init__(
        self, block: bool = False, disable_timing: bool = False, interprocess: bool = False
    ) -> None:
        runtime.getDeviceCount()
        self._timed = not disable_timing
        self._reached: float | None = None
        self._queue: Queue | None = None
        self._number = 0
        self._asked = False

    def record(self, stream: Stream | None = None) -> None:
        queue = (stream or get_current_stream())._queue
        self._reached, self._queue, self._asked = None, queue, False
        self._number = queue.push("event", self._reach).number

    def _reach(self, _: Any) -> None:
        self._reached = time.perf_counter()

    def synchronize(self) -> None:
        if self._queue is not None:
            runtime.forbid_capture(self._queue)
            self._queue.run(self._number)

    @property
    def done(self) -> bool:
        """Not when asked for the first time; then the work runs, so that polling ends."""
        if self._queue is None or self._reached is not None:
            return True
        if self._asked:
            self.synchronize()
        self._asked = True
        return self._reached is not None


class Stream:
    """A queue of work. The null stream waits for the others, and they for it, unless one is
    ``non_blocking``."""

    null: Stream

    def __init__(
        self,
        null: bool = False,
        non_blocking: bool = False,
        ptds: bool = False,
        priority: int | None = None,
    ) -> None:
        if ptds:
            raise NotImplementedError("the fake has no per-thread default streams")
        self.ptr = 0
        self.is_non_blocking = non_blocking
        self._own: Queue | None = None
        self._previous: list[Stream | None] = []
        if not null:
            self.ptr = next(_numbers)
            self._own = Queue(runtime.getDevice(), blocking=not non_blocking)
            machine.devices[self._own.device].queues.append(self._own)
            machine.queues[self.ptr] = self._own

    @property
    def _queue(self) -> Queue:
        return machine.devices[runtime.getDevice()].null if self._own is None else self._own

    def use(self) -> Stream:
        _set_current(self)
        return self

    def __enter__(self) -> Stream:
        self._previous.append(get_current_stream())
        return self.use()

    def __exit__(self, *_: object) -> None:
        _set_current(self._previous.pop())

    def synchronize(self) -> None:
        runtime.forbid_capture(self._queue)
        self._queue.run()

    @property
    def done(self) -> bool:
        return not self._queue.waiting

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        queue, number = event._queue, event._number
        if queue is None:
            return
        if queue is self._queue:
            return  # a stream keeps its order anyway
        if (queue.captured is None) != (self._queue.captured is None):
            raise runtime.CUDARuntimeError(900, "an event of a stream that is not captured with it")
        self._queue.push("wait_event", lambda _: queue.run(number))

    def begin_capture(self, mode: int | None = None) -> None:
        queue = self._queue
        if queue.null or queue.captured is not None:
            raise runtime.CUDARuntimeError(900, "the null stream, or one that is being captured")
        queue.mode = runtime.streamCaptureModeRelaxed if mode is None else mode
        queue.captured, queue.invalid = [], False

    def end_capture(self) -> Graph:
        queue = self._queue
        if queue.captured is None:
            raise runtime.CUDARuntimeError(1, "no capture has begun")
        works, queue.captured = queue.captured, None
        if queue.invalid:
            raise runtime.CUDARuntimeError(901)
        return Graph._of(works)

    def is_capturing(self) -> bool:
        return self._queue.captured is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.ptr == other.ptr

    def __hash__(self) -> int:
        return hash(self.ptr)


Stream.null = Stream(null=True)


def get_current_stream(device_id: int = -1) -> Stream:
    """The calling thread's stream of its device."""
    device = runtime.getDevice() if device_id < 0 else device_id
    streams: dict[int, Stream] = getattr(machine.local, "streams", {})
    return streams.get(device, Stream.null)


def _set_current(stream: Stream | None) -> None:
    streams = machine.local.__dict__.setdefault("streams", {})
    streams[runtime.getDevice()] = stream or Stream.null


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Milliseconds between two events that have been reached."""
    times: list[Any] = []
    for event in (start_event, end_event):
        if not event._timed or event._queue is None:
            raise runtime.CUDARuntimeError(400, "an event that takes no time, or not recorded")
        if event._reached is None:
            raise runtime.CUDARuntimeError(600)
        times.append(event._reached)
    return float(times[1] - times[0]) * 1e3
