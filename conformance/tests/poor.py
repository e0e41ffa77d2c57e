"""A device that lacks what may be lacking: the reference with fewer dtypes, and work-groups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from coregrad import dtypes, plugins
from coregrad.hookspecs import BackendInfo, Limits
from coregrad_cpu import reference

ABSENT = frozenset((dtypes.float64, dtypes.float16, dtypes.int8, dtypes.uint16))


class Device(reference.ReferenceDevice):
    """The reference's device with other limits."""

    name = "poor"
    limits = Limits(
        dtypes=frozenset(dtypes.ALL) - ABSENT, threads=64, local_bytes=32768, max_buffers=8
    )


class Backend(reference.Backend):
    """Runs the threads of a work-group as it runs every loop: a statement for all at a time."""

    def open_device(self, index: int) -> Device:
        return Device()


@contextmanager
def registered() -> Iterator[str]:
    """The device by its name, inside the block."""
    plugins.register(BackendInfo("poor", (1, 0), "poor:Backend", "software"))
    try:
        yield "poor"
    finally:
        plugins.unregister("poor")
