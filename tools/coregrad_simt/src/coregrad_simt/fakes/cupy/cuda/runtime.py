"""cupy.cuda.runtime: devices, copies by address, versions. Errors are the runtime's."""

from __future__ import annotations

import ctypes
from typing import Any

from coregrad_simt.fakes.cupy.machine import Allocation, Queue, machine
from coregrad_simt.fakes.cupy.statuses import RUNTIME

__all__ = [
    "CUDA_R_16BF",
    "CUDA_R_16F",
    "CUDA_R_32F",
    "CUDA_R_64F",
    "CUDARuntimeError",
    "deviceCanAccessPeer",
    "deviceEnablePeerAccess",
    "deviceSynchronize",
    "driverGetVersion",
    "getDevice",
    "getDeviceCount",
    "getDeviceProperties",
    "is_hip",
    "memGetInfo",
    "memcpy",
    "memcpyAsync",
    "memcpyDefault",
    "memcpyDeviceToDevice",
    "memcpyDeviceToHost",
    "memcpyHostToDevice",
    "memcpyHostToHost",
    "memcpyPeer",
    "memcpyPeerAsync",
    "memset",
    "memsetAsync",
    "runtimeGetVersion",
    "setDevice",
    "streamCaptureModeGlobal",
    "streamCaptureModeRelaxed",
    "streamCaptureModeThreadLocal",
    "streamSynchronize",
]

VERSION = 13000
is_hip = False
memcpyHostToHost, memcpyHostToDevice, memcpyDeviceToHost = 0, 1, 2
memcpyDeviceToDevice, memcpyDefault = 3, 4
CUDA_R_32F, CUDA_R_64F, CUDA_R_16F, CUDA_R_16BF = 0, 1, 2, 14
streamCaptureModeGlobal, streamCaptureModeThreadLocal, streamCaptureModeRelaxed = 0, 1, 2
BLOCK, BLOCK_Z, GRID_X, GRID_YZ = 1024, 64, 2**31 - 1, 65535
SHARED_BYTES = 48 << 10  # of a block without opting in


class CUDARuntimeError(RuntimeError):
    """An error of the CUDA runtime, by its number."""

    def __init__(self, status: int, detail: str = "") -> None:
        self.status = status
        super().__init__(RUNTIME[status] + (f" ({detail})" if detail else ""))


def getDeviceCount() -> int:
    if machine.count == 0:
        raise CUDARuntimeError(100)
    return machine.count


def getDevice() -> int:
    getDeviceCount()
    return machine.current


def setDevice(device: int) -> None:
    if not 0 <= device < getDeviceCount():
        raise CUDARuntimeError(101, f"device {device} of {machine.count}")
    machine.local.device = device


def getDeviceProperties(device: int) -> dict[str, Any]:
    if not 0 <= device < getDeviceCount():
        raise CUDARuntimeError(101, f"device {device} of {machine.count}")
    return {
        "name": b"Simulated GPU (coregrad_simt)",
        "totalGlobalMem": machine.memory,
        "sharedMemPerBlock": SHARED_BYTES,
        "sharedMemPerBlockOptin": SHARED_BYTES,
        "sharedMemPerMultiprocessor": 100 << 10,
        "regsPerBlock": 65536,
        "warpSize": 32,
        "maxThreadsPerBlock": BLOCK,
        "maxThreadsDim": (BLOCK, BLOCK, BLOCK_Z),
        "maxGridSize": (GRID_X, GRID_YZ, GRID_YZ),
        "maxThreadsPerMultiProcessor": 2048,
        "multiProcessorCount": 8,
        "l2CacheSize": 8 << 20,
        "major": machine.architecture // 10,
        "minor": machine.architecture % 10,
        "totalConstMem": 65536,
        "memoryBusWidth": 256,
        "unifiedAddressing": 1,
        "concurrentKernels": 1,
        "integrated": 0,
        "canMapHostMemory": 1,
        "managedMemory": 1,
        "ECCEnabled": 0,
        "pciBusID": device,
        "pciDeviceID": 0,
        "pciDomainID": 0,
        "uuid": bytes([device]) * 16,
    }


def runtimeGetVersion() -> int:
    return VERSION


def driverGetVersion() -> int:
    return VERSION


def memGetInfo() -> tuple[int, int]:
    mine = [a for a in machine.allocated.values() if a.device == getDevice()]
    used = sum(allocation.buffer.size for allocation in mine)
    return machine.memory - used, machine.memory


# ---- peers ---------------------------------------------------------------------------------------


def deviceCanAccessPeer(device: int, peerDevice: int) -> int:
    for number in (device, peerDevice):
        if not 0 <= number < getDeviceCount():
            raise CUDARuntimeError(101, f"device {number} of {machine.count}")
    return int(device != peerDevice)


def deviceEnablePeerAccess(peerDevice: int) -> None:
    peers = machine.devices[getDevice()].peers
    if not deviceCanAccessPeer(getDevice(), peerDevice):
        raise CUDARuntimeError(101, "a device is not its own peer")
    if peerDevice in peers:
        raise CUDARuntimeError(704)
    peers.add(peerDevice)


# ---- synchronising -------------------------------------------------------------------------------


def queue_of(stream: int) -> Queue:
    """The queue of a stream that is given by its number."""
    if stream == 0:
        return machine.devices[getDevice()].null
    try:
        return machine.queues[stream]
    except KeyError:
        raise CUDARuntimeError(400, f"no stream has the number {stream}") from None


def forbid_capture(*queues: Queue) -> None:
    """Raise if one of them, or any of this device in global mode, is being captured."""
    here = machine.devices[getDevice()].queues if machine.count else []
    captured = [q for q in here if q.captured is not None and q.mode == streamCaptureModeGlobal]
    for queue in (*captured, *(q for q in queues if q.captured is not None)):
        queue.invalid = True
        raise CUDARuntimeError(900)


def streamSynchronize(stream: int) -> None:
    queue = queue_of(stream)
    forbid_capture(queue)
    queue.run()


def deviceSynchronize() -> None:
    getDeviceCount()
    forbid_capture(*machine.devices[machine.current].queues)
    machine.synchronize(machine.current)


# ---- copies --------------------------------------------------------------------------------------


def memory_at(address: int, size: int, what: str) -> Allocation:
    """The device memory that ``size`` bytes at ``address`` lie in."""
    found = machine.find(address)
    if found is None:
        raise CUDARuntimeError(1, f"{what}: {address:#x} is no device memory")
    if address + size > found.buffer.address + found.buffer.size:
        raise CUDARuntimeError(1, f"{what}: {size} bytes reach beyond {found.buffer.size}")
    return found


def _copied(dst: int, src: int, size: int, kind: int) -> list[Allocation]:
    if kind not in range(5):
        raise CUDARuntimeError(21, f"kind {kind}")
    to_device = kind in (memcpyHostToDevice, memcpyDeviceToDevice)
    from_device = kind in (memcpyDeviceToHost, memcpyDeviceToDevice)
    uses = []
    for address, expected in ((dst, to_device), (src, from_device)):
        if expected or (kind == memcpyDefault and machine.find(address)):
            uses.append(memory_at(address, size, "memcpy"))
        elif machine.find(address):
            raise CUDARuntimeError(21, f"{address:#x} is device memory, kind is {kind}")
    return uses


def memcpy(dst: int, src: int, size: int, kind: int) -> None:
    if size == 0:
        return
    uses = _copied(dst, src, size, kind)
    null = machine.devices[getDevice()].null
    forbid_capture(*machine.devices[machine.current].queues)
    null.push("memcpy", lambda _: None)
    null.run()
    for allocation in uses:
        machine.expect_idle(allocation, "memcpy")
    ctypes.memmove(dst, src, size)


def memcpyAsync(dst: int, src: int, size: int, kind: int, stream: int) -> None:
    if size:
        uses = _copied(dst, src, size, kind)
        queue_of(stream).push("memcpyAsync", lambda _: _move(dst, src, size), uses)


def memcpyPeer(dst: int, dstDevice: int, src: int, srcDevice: int, size: int) -> None:
    _expect_on(dst, dstDevice, src, srcDevice, size)
    memcpy(dst, src, size, memcpyDeviceToDevice)


def memcpyPeerAsync(
    dst: int, dstDevice: int, src: int, srcDevice: int, size: int, stream: int
) -> None:
    _expect_on(dst, dstDevice, src, srcDevice, size)
    memcpyAsync(dst, src, size, memcpyDeviceToDevice, stream)


def memset(ptr: int, value: int, size: int) -> None:
    memsetAsync(ptr, value, size, 0)
    streamSynchronize(0)


def memsetAsync(ptr: int, value: int, size: int, stream: int) -> None:
    if size:
        uses = [memory_at(ptr, size, "memset")]
        queue_of(stream).push("memset", lambda _: _fill(ptr, value, size), uses)


def _expect_on(dst: int, dst_device: int, src: int, src_device: int, size: int) -> None:
    for address, device in ((dst, dst_device), (src, src_device)):
        if memory_at(address, size, "memcpyPeer").device != device:
            raise CUDARuntimeError(1, f"memcpyPeer: {address:#x} is not on device {device}")


def _move(dst: int, src: int, size: int) -> None:
    ctypes.memmove(dst, src, size)


def _fill(ptr: int, value: int, size: int) -> None:
    ctypes.memset(ptr, value, size)
