"""The contract's door: which GPUs there are, and the hooks in the Metal Shading Language."""

from __future__ import annotations

from coregrad import drivers
from coregrad.cstyle import CStyle
from coregrad_metal import driver
from coregrad_metal.device import Device
from coregrad_metal.words import WORDS


class Backend(CStyle):
    """The hooks are the C family's, without a mod of floats."""

    words = WORDS

    def device_count(self) -> int:
        """How many GPUs there are; raises BackendUnavailable with the reason for none."""
        return len(driver.devices())

    def open_device(self, index: int) -> Device:
        """Open a GPU."""
        return Device(driver.Driver(index), f"metal:{index}" if index else "metal")

    def rank(self) -> str:
        """An emulated GPU is no reason to prefer this backend."""
        driver.devices()
        return "software" if drivers.is_emulated("metal") else "gpu"
