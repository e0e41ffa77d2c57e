"""The contract's door: which OpenCL devices there are, and the hooks in OpenCL C."""

from __future__ import annotations

from coregrad.cstyle import CStyle
from coregrad_opencl import driver
from coregrad_opencl.device import Device
from coregrad_opencl.words import WORDS


class Backend(CStyle):
    """The hooks are the C family's; the devices those of every platform, best first."""

    words = WORDS

    def device_count(self) -> int:
        """How many devices can be opened; raises BackendUnavailable with the reason for none."""
        return len(driver.chosen())

    def open_device(self, index: int) -> Device:
        """Open a device of the order that driver.py describes."""
        return Device(driver.chosen()[index], f"opencl:{index}" if index else "opencl")

    def rank(self) -> str:
        """Where the first device belongs in the automatic choice: a CPU run through OpenCL is
        better served by the device `cpu`."""
        return "software" if driver.chosen()[0].is_cpu else "gpu"
