"""Test support: NumPy devices of many threads, which check every access between two barriers.

The reference's frame runs a local loop as an axis of its arrays: each statement for all threads,
then the next one, so that a missing barrier would go unnoticed. Here each access of local memory is
written down with its thread. At a barrier, an element that one thread wrote and another one touched
is a race. So is an output that is stored twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coregrad import plugins
from coregrad.dtypes import DType
from coregrad.errors import VerifyError
from coregrad.hookspecs import CONTRACT_VERSION, BackendInfo, Header, Limits, hookimpl
from coregrad.ir.kernel import Array, Param
from coregrad_cpu.memory import ReferenceDevice
from coregrad_cpu.reference import Backend, ReferenceFrame

GROUPS = 1 << 12  # at a time: with a few hundred threads each that many elements fit an array


class Race(VerifyError):
    """Two threads touched one element, and one of them wrote it."""


class CheckedFrame(ReferenceFrame):
    """Knows which axis the threads are, and what they did since the last barrier."""

    def __init__(self, header: Header, buffers: Sequence[Any]) -> None:
        super().__init__(header, buffers)
        self.threads: tuple[int, Any] | None = None  # the axis of the local loop, and its numbers
        self.touched: dict[Array, list[tuple[bool, Any, Any]]] = {}
        self.written = {p: np.zeros(p.size, bool) for p in header.params if p.role == "out"}

    def loop(self, name: str, extent: int, kind: str, lanes: int, resume: bool) -> Iterator[Any]:
        if kind == "grid" and extent > GROUPS:
            yield from self._in_parts(name, extent)
            return
        for index in super().loop(name, extent, kind, lanes, resume):
            if kind == "local":
                assert np.size(index) == extent, "the threads of a group do not run together"
                self.threads = len(self.sizes) - 1, index
            yield index
            if kind == "local":
                self._check()
                self.threads = None

    def _in_parts(self, name: str, extent: int) -> Iterator[Any]:
        for start in range(0, extent, GROUPS):
            for index in super().loop(name, min(GROUPS, extent - start), "grid", 1, False):
                yield index + start

    def barrier(self) -> None:
        assert self.threads is not None
        assert len(self.sizes) == self.threads[0] + 1, "a barrier for several iterations at once"
        self._check()

    def touch(self, buffer: Param | Array, index: Any, gate: Any, writes: bool) -> None:
        """Write down an access."""
        if isinstance(buffer, Param):
            if writes and buffer in self.written:
                self._write_once(buffer, index, gate)
            return
        if buffer.space != "local" or self.threads is None:
            return
        at = self.memory[buffer][1] + index
        gate = np.True_ if gate is None else gate
        at, thread, gate = np.broadcast_arrays(at, self.threads[1], gate)
        self.touched.setdefault(buffer, []).append((writes, at[gate], thread[gate]))

    def _write_once(self, buffer: Param, index: Any, gate: Any) -> None:
        gate = np.True_ if gate is None else gate
        index, gate, _ = np.broadcast_arrays(index, gate, np.empty(self.shape, bool))
        at = index[gate]
        if self.written[buffer][at].any() or np.unique(at).size < at.size:
            raise Race(f"{buffer.name}: an element is stored twice")
        self.written[buffer][at] = True

    def _check(self) -> None:
        for array, accesses in self.touched.items():
            size = self.memory[array][0].size
            first, last = np.full(size, 1 << 30), np.full(size, -1)
            written = np.zeros(size, bool)
            for writes, at, thread in accesses:
                np.minimum.at(first, at, thread)
                np.maximum.at(last, at, thread)
                if writes:
                    written[at] = True
            if (written & (first < last)).any():
                raise Race(f"{array.name}: threads touch an element that another one writes")
        self.touched.clear()


class CheckedBackend(Backend):
    """The reference with the limits of a device of many threads."""

    limits = replace(ReferenceDevice.limits, threads=256, local_bytes=32768, private_bytes=4096)

    def open_device(self, index: int) -> ReferenceDevice:
        device = ReferenceDevice()
        device.limits = self.limits
        device.name = NAMES[type(self)]
        return device

    def begin_kernel(self, header: Header, buffers: Sequence[Any] | None) -> CheckedFrame:
        return CheckedFrame(header, buffers or ())

    @hookimpl
    def lower_load(
        self,
        frame: CheckedFrame,
        buffer: Param | Array,
        index: Any,
        stride: int | None,
        gate: Any | None,
        dtype: DType,
        lanes: int,
    ) -> Any:
        frame.touch(buffer, index, gate, False)
        return super().lower_load(frame, buffer, index, stride, gate, dtype, lanes)

    @hookimpl
    def lower_store(
        self,
        frame: CheckedFrame,
        buffer: Param | Array,
        index: Any,
        stride: int | None,
        value: Any,
        gate: Any | None,
        dtype: DType,
        lanes: int,
    ) -> None:
        frame.touch(buffer, index, gate, True)
        super().lower_store(frame, buffer, index, stride, value, gate, dtype, lanes)


def _limited(**changes: Any) -> type[CheckedBackend]:
    limits: Limits = replace(CheckedBackend.limits, **changes)
    return type("Limited", (CheckedBackend,), {"limits": limits})


Groups256 = CheckedBackend
Groups64 = _limited(threads=64)
Groups16 = _limited(threads=16, local_bytes=4096)
Registers = _limited(fast_local=False)  # a CPU's OpenCL
Alone = _limited(local_bytes=0)
NAMES = {
    Groups256: "groups256",
    Groups64: "groups64",
    Groups16: "groups16",
    Registers: "registers",
    Alone: "alone",
}


def register() -> list[str]:
    """Make the devices known to this process; return their names."""
    for backend, name in NAMES.items():
        variable = next(key for key, value in globals().items() if value is backend)
        info = BackendInfo(name, CONTRACT_VERSION, f"workgroups:{variable}", "reference")
        plugins.register(info)
    return list(NAMES.values())
