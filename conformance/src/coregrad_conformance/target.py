"""One opened device of a backend, and kernels run on it; it never judges a value.

What it does check is memory: outputs are filled with a pattern beforehand and followed by guard
bytes, and neither the guards nor an input may change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad import Tensor, plugins
from coregrad.errors import UnsupportedOp
from coregrad.ir.emit import emit
from coregrad.ir.legalize import legalize
from coregrad.ir.verify import verify_kernel
from coregrad_conformance.row import Failure, Unsupported
from coregrad_conformance.tables import CORE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coregrad.dtypes import DType
    from coregrad.hookspecs import Limits
    from coregrad.ir.kernel import Kernel, Param

POISON = 0xFF  # NaN in every float format, -1 or the largest number in every integer one
GUARD = 0xA5
GUARD_BYTES = 128  # two of the widest vectors that are in use (64 bytes)


class Target:
    """A device under test."""

    def __init__(self, name: str) -> None:
        self.active = plugins.open_device(name)

    @property
    def name(self) -> str:
        """The device's canonical name."""
        return self.active.name

    @property
    def limits(self) -> Limits:
        """What the device says of itself."""
        return self.active.device.limits

    @property
    def lanes(self) -> int:
        """Elements of a vector of the core's choice; 1 for a device without explicit lanes."""
        return max(1, self.limits.vector_bytes // 4)

    def supports(self, dtype: DType) -> bool:
        """Whether values on this device may be of ``dtype``."""
        return dtype in self.limits.dtypes

    def require(self, *wanted: DType) -> None:
        """Raise Unsupported for a dtype that the device declares it lacks, and indeed refuses."""
        for dtype in wanted:
            if self.supports(dtype):
                continue
            if dtype in CORE:
                raise Failure(f"{dtype.name} is missing, and it is required", "capability")
            try:
                Tensor([0], dtype=dtype, device=self.name)
            except UnsupportedOp as refusal:
                raise Unsupported(str(refusal)) from None
            raise Failure(f"{dtype.name} is not declared, but a tensor was made", "capability")

    def program(self, kernel: Kernel) -> Any:
        """What the backend makes of ``kernel``: what ``Device.compile`` takes. Of style eager: a
        function that runs it on a list of buffers."""
        active = self.active
        kernel = legalize(kernel, active.hooks, self.limits)
        verify_kernel(kernel, self.limits)
        if active.hooks.style == "eager":

            def launch(buffers: Sequence[Any]) -> None:
                emit(kernel, active.backend, active.hooks, self.limits, list(buffers))

            return launch
        return emit(kernel, active.backend, active.hooks, self.limits)

    def compiled(self, kernel: Kernel) -> Any:
        """``kernel`` as ``Device.launch`` takes it, or of style eager the function."""
        program = self.program(kernel)
        if self.active.hooks.style == "eager":
            return program
        return self.active.device.compile(program)

    def launch(self, compiled: Any, buffers: Sequence[Any], grid: int) -> None:
        """Run what `compiled` has made on device buffers."""
        if self.active.hooks.style == "eager":
            compiled(buffers)
        else:
            self.active.device.launch(compiled, buffers, grid)

    def prepare(self, kernel: Kernel) -> Callable[[Sequence[Any]], None]:
        """``kernel`` made callable: the function launches it on device buffers."""
        compiled = self.compiled(kernel)
        return lambda buffers: self.launch(compiled, buffers, kernel.grid)

    def run_kernel(self, kernel: Kernel, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Launch ``kernel`` once on fresh buffers.

        ``inputs`` fill the parameters of role in and inout, in order, as stored elements (bfloat16
        as uint16). Returned are the parameters of role out, inout and error, in order.
        """
        return self.runner(kernel)(*inputs)

    def runner(self, kernel: Kernel) -> Callable[..., list[NDArray[Any]]]:
        """A function that launches ``kernel``, made callable once, as `run_kernel` does."""
        return partial(self._run, kernel, self.prepare(kernel))

    def _run(
        self, kernel: Kernel, launch: Callable[[Sequence[Any]], None], *inputs: NDArray[Any]
    ) -> list[NDArray[Any]]:
        held: list[Buffer] = []
        left = iter(inputs)
        try:
            for param in kernel.params:
                held.append(Buffer(self, param, left))
            launch([buffer.raw for buffer in held])
            results = [buffer.result() for buffer in held]
        finally:
            for buffer in held:
                buffer.free()
        return [result for result in results if result is not None]


class Buffer:
    """Device memory for one parameter, with guard bytes behind it."""

    def __init__(self, target: Target, param: Param, inputs: Any) -> None:
        self.param = param
        self.device = target.active.device
        self.nbytes = param.size * param.dtype.itemsize
        self.before = np.full(self.nbytes + GUARD_BYTES, GUARD, np.uint8)
        self.before[: self.nbytes] = self._content(inputs)
        self.raw = self.device.allocate(self.before.size)
        self.device.copy_in(self.raw, bytes_of(self.before))

    def _content(self, inputs: Any) -> Any:
        if self.param.role == "out":
            return POISON
        if self.param.role == "error":
            return 0
        array = np.ascontiguousarray(next(inputs))
        stored = self.param.dtype.storage
        if array.dtype != np.dtype(stored) or array.size != self.param.size:
            raise ValueError(
                f"{self.param.name}: {array.size} elements of {array.dtype}; "
                f"it takes {self.param.size} of {stored}"
            )
        return array.reshape(-1).view(np.uint8)

    def result(self) -> NDArray[Any] | None:
        """The elements after the launch; None for an input, which must not have changed."""
        after = np.zeros_like(self.before)
        self.device.copy_out(self.raw, bytes_of(after))
        name = self.param.name
        if not np.array_equal(after[self.nbytes :], self.before[self.nbytes :]):
            where = np.flatnonzero(after[self.nbytes :] != GUARD)
            raise Failure(f"{name}: byte {where[0]} behind its end was overwritten", "memory")
        if self.param.role == "in":
            if not np.array_equal(after, self.before):
                where = np.flatnonzero(after != self.before)
                raise Failure(f"{name}: byte {where[0]} of an input was overwritten", "memory")
            return None
        return after[: self.nbytes].view(self.param.dtype.storage)

    def free(self) -> None:
        """Give the memory back."""
        self.device.free(self.raw)


def bytes_of(array: NDArray[Any]) -> memoryview:
    """The memory of a contiguous array, as the contract's copies take it."""
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
