"""cupy.cuda.graph: what a stream was given while it was captured, to be run again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coregrad_simt.fakes.cupy.machine import Captured, machine

if TYPE_CHECKING:
    from coregrad_simt.fakes.cupy.cuda.stream import Stream

__all__ = ["Graph"]


class Graph:
    """A graph knows addresses, not owners: memory that it uses must be there."""

    _works: list[Captured]

    def __init__(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("Graph can only be made by Stream.end_capture")

    @classmethod
    def _of(cls, works: list[Captured]) -> Graph:
        graph = object.__new__(cls)
        graph._works = works
        return graph

    def launch(self, stream: Stream | None = None) -> None:
        queue = stream._queue if stream else machine.current_queue()
        for work in self._works:
            work.push(queue)

    def upload(self, stream: Stream | None = None) -> None:
        pass
