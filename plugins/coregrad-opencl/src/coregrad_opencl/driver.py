"""Which OpenCL devices there are, in which order they are offered, and what their errors mean.

It opens nothing: no context is made here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyopencl as cl

from coregrad import config
from coregrad.errors import BackendUnavailable, DeviceError, OutOfMemory

OCLGRIND = "Oclgrind"  # a simulator: thousands of times slower, and it calls itself a GPU
NO_ROOM = (
    cl.status_code.INVALID_BUFFER_SIZE,  # more than the device can ever hold
    cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE,
    cl.status_code.OUT_OF_RESOURCES,
    cl.status_code.OUT_OF_HOST_MEMORY,
)


@dataclass(frozen=True)
class Found:
    """A device of some platform, and what decides its place in the order."""

    platform: cl.Platform
    device: cl.Device
    title: str
    rank: tuple[int, int]

    @property
    def is_simulator(self) -> bool:
        """Whether this is Oclgrind."""
        return self.platform.name == OCLGRIND

    @property
    def is_cpu(self) -> bool:
        """Whether kernels run on the host's processor."""
        return self.is_simulator or not self.device.type & (
            cl.device_type.GPU | cl.device_type.ACCELERATOR
        )


@dataclass
class Survey:
    """All devices in order, and for each platform that failed what it said."""

    found: list[Found] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def survey() -> Survey:
    """Look at every platform. One that is broken is noted, and hides no other."""
    out = Survey()
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:  # so does the loader say that there is none
        out.problems.append(f"no OpenCL platform is installed ({error})")
        return out
    for platform in platforms:
        try:
            out.found += [_found(platform, device) for device in platform.get_devices()]
        except cl.Error as error:
            out.problems.append(f"the platform {_name(platform)} failed: {error}")
    out.found.sort(key=lambda f: f.rank)
    return out


def chosen() -> list[Found]:
    """The devices offered, best first; raises BackendUnavailable with the reason for none.

    COREGRAD_OPENCL_DEVICE chooses by position among all devices, or by a part of the title
    "platform: device". The simulator has no position, and is found by its own name alone.
    """
    everything = survey()
    wish = config.get("COREGRAD_OPENCL_DEVICE").strip()
    found = _wished(everything.found, wish)
    if found:
        return found
    usual = [f for f in everything.found if not f.is_simulator]
    lines = [f"{i}: {f.title}" for i, f in enumerate(usual)]
    lines += [f"by name only: {f.title}" for f in everything.found if f.is_simulator]
    asked = f"COREGRAD_OPENCL_DEVICE={wish} fits none of" if wish else "no device; there is"
    advice = (
        "; COREGRAD_OPENCL_DEVICE=oclgrind asks for the simulator" if lines and not wish else ""
    )
    raise BackendUnavailable(
        "\n  - ".join(
            [f"opencl: {asked}:{advice}", *(lines or ["(nothing)"]), *everything.problems]
        )
    )


def _wished(found: list[Found], wish: str) -> list[Found]:
    text = wish.lower()
    if OCLGRIND.lower() not in text:
        found = [f for f in found if not f.is_simulator]
    if wish.isdecimal():
        return found[int(wish) : int(wish) + 1]
    return [f for f in found if text in f.title.lower()]


def _found(platform: cl.Platform, device: cl.Device) -> Found:
    """GPUs, then accelerators, then CPUs; of one kind the one with the most units and cycles."""
    title = f"{platform.name.strip()}: {device.name.strip()}"
    kinds = (cl.device_type.GPU, cl.device_type.ACCELERATOR, cl.device_type.CPU)
    kind = next((i for i, k in enumerate(kinds) if device.type & k), len(kinds))
    if platform.name == OCLGRIND:
        kind = len(kinds) + 1
    return Found(
        platform, device, title, (kind, -device.max_compute_units * device.max_clock_frequency)
    )


def _name(platform: cl.Platform) -> str:
    try:
        return str(platform.name)
    except cl.Error:
        return "without a name"


@contextmanager
def errors_of(title: str, doing: str) -> Iterator[None]:
    """Turn what the driver raises into coregrad's errors, naming the device and the call."""
    try:
        yield
    except cl.Error as error:
        text = f"{title}: {doing}: {error}"
        if error.code in NO_ROOM:
            raise OutOfMemory(f"{text}; free tensors, or use smaller ones") from error
        raise DeviceError(text) from error
