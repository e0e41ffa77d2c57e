"""The device `numpy` as memory: what a backend must offer besides its hooks and its frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coregrad.dtypes import ALL
from coregrad.errors import OutOfMemory, UnsupportedOp
from coregrad.hookspecs import Limits


class ReferenceDevice:
    """Memory is NumPy arrays of bytes. A kernel runs while it is emitted: nothing is launched."""

    name = "numpy"
    limits = Limits(dtypes=frozenset(ALL), host_memory=True)

    def allocate(self, nbytes: int) -> Any:
        try:
            return np.empty(nbytes, np.uint8)
        except MemoryError as error:
            raise OutOfMemory(f"numpy: no room for {nbytes} bytes") from error

    def free(self, buffer: Any) -> None:
        """The array goes when its last user lets go of it."""

    def copy_in(self, buffer: Any, data: memoryview) -> None:
        source = np.frombuffer(data, np.uint8)
        buffer[: source.size] = source

    def copy_out(self, buffer: Any, into: memoryview) -> None:
        target = np.frombuffer(into, np.uint8)
        target[:] = buffer[: target.size]

    def compile(self, program: Any) -> Any:
        return program

    def launch(self, compiled: Any, buffers: Sequence[Any], grid: int) -> None:
        raise UnsupportedOp("launch: the numpy device has run a kernel once it is emitted")

    def synchronize(self) -> None:
        """Every call has finished when it returns."""
