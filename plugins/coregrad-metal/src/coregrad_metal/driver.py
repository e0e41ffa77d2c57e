"""metalcompute, as far as the backend needs it: the only file that calls it. Another binding of
Metal can take its place, and so can a fake.

It knows buffers, texts and launches; nothing of kernels, of pools or of what the core wants.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from coregrad import drivers
from coregrad.errors import BackendUnavailable, CoregradError, DeviceError, OutOfMemory

# metalcompute keeps something of every launch, and looks through all of it when one is done. Not
# more than this many are left unawaited.
PENDING = 256


def library() -> Any:
    """metalcompute. Raises BackendUnavailable with the reason why it is not there."""
    return drivers.library("metal", "metalcompute", "metalcompute")


def devices() -> list[Any]:
    """What metalcompute says of each GPU. Raises BackendUnavailable with the reason for none."""
    metal = library()
    try:
        found = list(metal.get_devices())
    except metal.error as error:
        raise BackendUnavailable(f"metal: {error}") from error
    if not found:
        raise BackendUnavailable("metal: there is no GPU that Metal knows")
    return found


class Driver:
    """One GPU, whose launches happen in order."""

    def __init__(self, index: int) -> None:
        self._metal = library()
        about = devices()[index]
        self.name = str(about.deviceName)
        self.memory = int(about.recommendedWorkingSetSize)
        self._device = self._metal.Device(index)
        # A launch is awaited when its handle goes. Buffers are kept with it.
        self._handles: deque[tuple[Any, Sequence[Any]]] = deque()

    @contextmanager
    def errors(self, title: str, doing: str) -> Iterator[None]:
        """Turn what metalcompute raises into coregrad's errors, naming the device and the call."""
        try:
            yield
        except CoregradError:
            raise
        except (self._metal.error, RuntimeError) as error:
            raise DeviceError(f"{title}: {doing}: {error}") from error

    def buffer(self, nbytes: int) -> Any:
        """Memory of the GPU and the host. Raises OutOfMemory."""
        try:
            if nbytes > self.memory:
                raise self._metal.error(f"the GPU's share of memory is {self.memory} bytes")
            return self._device.buffer(nbytes)
        except self._metal.error as error:
            raise OutOfMemory(f"{self.name}: {nbytes} bytes: {error}; free tensors") from error

    @staticmethod
    def view(buffer: Any) -> Any:
        """A buffer's bytes themselves."""
        return np.frombuffer(buffer, np.uint8)

    def function(self, text: str, name: str) -> Any:
        """A text's kernel. Raises ValueError with the compiler's words."""
        try:
            return self._device.kernel(text).function(name)
        except self._metal.error as error:
            raise ValueError(str(error)) from error

    def launch(self, function: Any, count: int, buffers: Sequence[Any]) -> None:
        """Start a kernel of ``count`` threads, in groups of the size that it pins."""
        if len(self._handles) >= PENDING:
            self.synchronize()
        self._handles.append((function(count, *buffers), buffers))

    @property
    def pending(self) -> int:
        """How many launches have not been awaited."""
        return len(self._handles)

    def synchronize(self) -> None:
        """Wait for every launch: let go of its handle."""
        while self._handles:
            self._handles.popleft()
