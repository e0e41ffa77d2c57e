"""A backend that meets the contract in form: hooks that write down what they were asked.

It leaves out the optional exp, log, sin and trunc.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from coregrad import dtypes
from coregrad.errors import OutOfMemory
from coregrad.hookspecs import CONTRACT_VERSION, BackendInfo, Header, Limits, hookimpl


def healthy_info() -> BackendInfo:
    return BackendInfo("healthy", CONTRACT_VERSION, "zoo_healthy:Backend", "cpu", "does no sums")


def cpu_info() -> BackendInfo:
    return BackendInfo("cpu", CONTRACT_VERSION, "zoo_healthy:Backend", "cpu", "a stand-in")


def numpy_info() -> BackendInfo:
    return BackendInfo("numpy", CONTRACT_VERSION, "zoo_healthy:Backend", "reference", "a stand-in")


class Frame:
    def loop(self, name: str, extent: int, kind: str, lanes: int, resume: bool) -> Iterator[Any]:
        yield name

    def declare(self, name: str, dtype: Any, initial: Any, lanes: int) -> None:
        return None

    def read(self, name: str) -> Any:
        return name

    def assign(self, name: str, value: Any) -> None:
        return None

    def allocate(self, array: Any) -> None:
        return None

    def barrier(self) -> None:
        return None

    def broadcast(self, value: Any, dtype: Any, lanes: int) -> Any:
        return value

    def ramp(self, base: Any, stride: int, dtype: Any, lanes: int) -> Any:
        return base

    def split(self, value: Any, dtype: Any, lanes: int) -> tuple[Any, Any]:
        return value, value

    def finish(self) -> Any:
        return ""


class Device:
    def __init__(self, name: str) -> None:
        self.name = name
        self.limits = Limits(dtypes=frozenset(dtypes.ALL))

    def allocate(self, nbytes: int) -> bytearray:
        if nbytes > 1 << 30:
            raise OutOfMemory(f"{nbytes} bytes")
        return bytearray(nbytes)

    def free(self, buffer: bytearray) -> None:
        buffer.clear()

    def copy_in(self, buffer: bytearray, data: memoryview) -> None:
        buffer[: len(data)] = data

    def copy_out(self, buffer: bytearray, into: memoryview) -> None:
        into[:] = buffer[: len(into)]

    def compile(self, program: Any) -> Any:
        return program

    def launch(self, compiled: Any, buffers: Sequence[Any], grid: int) -> None:
        return None

    def synchronize(self) -> None:
        return None


class Backend:
    style = "render"

    def device_count(self) -> int:
        return 2

    def open_device(self, index: int) -> Device:
        return Device(f"healthy:{index}")

    def begin_kernel(self, header: Header, buffers: Sequence[Any] | None) -> Frame:
        return Frame()

    @hookimpl
    def lower_load(self, frame, buffer, index, stride, gate, dtype, lanes):
        return ("load", buffer, index, stride, gate)

    @hookimpl
    def lower_store(self, frame, buffer, index, stride, value, gate, dtype, lanes):
        return None

    @hookimpl
    def lower_const(self, frame, value, dtype, lanes):
        return ("const", value)

    @hookimpl
    def lower_reduce(self, frame, kind, accumulator, value, dtype, lanes):
        return ("reduce", kind, accumulator, value)

    @hookimpl
    def lower_cast(self, frame, x, source, dtype, lanes):
        return ("cast", x)

    @hookimpl
    def lower_bitcast(self, frame, x, source, dtype, lanes):
        return ("bitcast", x)

    @hookimpl
    def lower_sqrt(self, frame, x, dtype, lanes):
        return ("sqrt", x)

    @hookimpl
    def lower_add(self, frame, a, b, dtype, lanes):
        return ("add", a, b)

    @hookimpl
    def lower_mul(self, frame, a, b, dtype, lanes):
        return ("mul", a, b)

    @hookimpl
    def lower_div(self, frame, a, b, dtype, lanes):
        return ("div", a, b)

    @hookimpl
    def lower_idiv(self, frame, a, b, dtype, lanes):
        return ("idiv", a, b)

    @hookimpl
    def lower_mod(self, frame, a, b, dtype, lanes):
        return ("mod", a, b)

    @hookimpl
    def lower_max(self, frame, a, b, dtype, lanes):
        return ("max", a, b)

    @hookimpl
    def lower_lt(self, frame, a, b, dtype, lanes):
        return ("lt", a, b)

    @hookimpl
    def lower_ne(self, frame, a, b, dtype, lanes):
        return ("ne", a, b)

    @hookimpl
    def lower_and(self, frame, a, b, dtype, lanes):
        return ("and", a, b)

    @hookimpl
    def lower_or(self, frame, a, b, dtype, lanes):
        return ("or", a, b)

    @hookimpl
    def lower_xor(self, frame, a, b, dtype, lanes):
        return ("xor", a, b)

    @hookimpl
    def lower_shl(self, frame, a, b, dtype, lanes):
        return ("shl", a, b)

    @hookimpl
    def lower_shr(self, frame, a, b, dtype, lanes):
        return ("shr", a, b)

    @hookimpl
    def lower_where(self, frame, condition, a, b, dtype, lanes):
        return ("where", condition, a, b)
