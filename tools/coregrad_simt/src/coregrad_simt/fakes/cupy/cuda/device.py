"""cupy.cuda.device: choosing a device."""

from __future__ import annotations

from typing import Any

from coregrad_simt.fakes.cupy.cuda import runtime
from coregrad_simt.fakes.cupy.machine import machine

__all__ = ["Device", "get_compute_capability", "get_cublas_handle", "get_device_id"]

CUBLAS_HANDLE = 0xB1A5  # plus the device's number


class Device:
    """A device by its number, which is looked at only when it is used."""

    def __init__(self, device: int | Device | None = None) -> None:
        if device is None:
            device = runtime.getDevice()
        self.id: int = int(device)
        self._previous: list[int] = []

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def use(self) -> None:
        runtime.setDevice(self.id)

    def __enter__(self) -> Device:
        self._previous.append(runtime.getDevice())
        self.use()
        return self

    def __exit__(self, *_: object) -> None:
        runtime.setDevice(self._previous.pop())

    def synchronize(self) -> None:
        with self:
            runtime.deviceSynchronize()

    @property
    def compute_capability(self) -> str:
        runtime.getDeviceProperties(self.id)
        return str(machine.architecture)

    @property
    def mem_info(self) -> tuple[int, int]:
        with self:
            return runtime.memGetInfo()

    @property
    def attributes(self) -> dict[str, Any]:
        properties = runtime.getDeviceProperties(self.id)
        return {
            "MaxThreadsPerBlock": properties["maxThreadsPerBlock"],
            "MaxSharedMemoryPerBlock": properties["sharedMemPerBlock"],
            "MultiProcessorCount": properties["multiProcessorCount"],
            "WarpSize": properties["warpSize"],
            "ComputeCapabilityMajor": properties["major"],
            "ComputeCapabilityMinor": properties["minor"],
        }

    @property
    def pci_bus_id(self) -> str:
        return f"0000:{self.id:02X}:00.0"

    @property
    def cublas_handle(self) -> int:
        return CUBLAS_HANDLE + self.id


def get_device_id() -> int:
    return runtime.getDevice()


def get_compute_capability() -> str:
    return Device().compute_capability


def get_cublas_handle() -> int:
    return CUBLAS_HANDLE + runtime.getDevice()
