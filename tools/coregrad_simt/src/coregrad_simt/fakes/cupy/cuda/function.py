"""cupy.cuda.function: modules, and launches whose arguments must fit the kernel's parameters."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from coregrad_simt import cuda, kernel
from coregrad_simt.errors import CompileError
from coregrad_simt.fakes.cupy.cuda import nvrtc, runtime
from coregrad_simt.fakes.cupy.cuda.driver import CUDADriverError
from coregrad_simt.fakes.cupy.cuda.memory import MemoryPointer
from coregrad_simt.fakes.cupy.cuda.stream import Stream, get_current_stream
from coregrad_simt.fakes.cupy.machine import Allocation, machine, report_fault
from coregrad_simt.kernel import Kernel, Parameter

__all__ = ["Function", "Module"]

KINDS = {"i": "iuc", "u": "iuc", "f": "f", "b": "b"}  # of NumPy scalars, for a parameter's kind


class Module:
    """The kernels of a cubin."""

    def __init__(self) -> None:
        self._kernels: dict[str, Kernel] = {}

    def load(self, cubin: bytes) -> None:
        if not isinstance(cubin, bytes):
            raise TypeError(f"Expected bytes, got {type(cubin).__name__}")
        try:
            text, options, architecture = nvrtc.unpacked(cubin)
        except ValueError as error:
            raise CUDADriverError(200, str(error)) from None
        _expect_runs(architecture, machine.architecture)
        try:
            self._kernels = cuda.kernels(text, options)
        except CompileError as error:
            raise CUDADriverError(200, str(error)) from None

    def load_file(self, filename: str) -> None:
        with open(filename, "rb") as file:
            self.load(file.read())

    def get_function(self, name: str) -> Function:
        if name not in self._kernels:
            raise CUDADriverError(500, f"{name!r}; there are {', '.join(self._kernels)}")
        return Function._of(self, self._kernels[name])


def _expect_runs(architecture: str, device: int) -> None:
    """A cubin runs on devices of its own major number, the same minor or a later one; PTX on all
    later devices."""
    kind, _, number = architecture.partition("_")
    made = int(number.rstrip("af"))
    same = made // 10 == device // 10 or kind == "compute"
    if made > device or not same:
        raise CUDADriverError(209, f"{architecture} on a device of sm_{device}")


class Function:
    """A kernel."""

    module: Module
    _kernel: Kernel

    @classmethod
    def _of(cls, module: Module, kernel: Kernel) -> Function:
        function = cls()
        function.module, function._kernel = module, kernel
        return function

    def __call__(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        shared_mem: int = 0,
        stream: Stream | None = None,
        enable_cooperative_groups: bool = False,
    ) -> None:
        if shared_mem or enable_cooperative_groups:
            raise NotImplementedError("the fake has no dynamic shared memory and no grid barriers")
        it = self._kernel
        geometry = _geometry(it, grid, block)
        uses: list[Allocation] = []
        values = _arguments(it, args, uses)

        def run(memory: Sequence[Allocation]) -> None:
            buffers = list({id(use): use.buffer for use in memory}.values())
            kernel.launch(it, values, buffers, *geometry)

        (stream or get_current_stream())._queue.push(it.name, run, uses)

    def linear_launch(
        self,
        size: int,
        args: Sequence[Any],
        shared_mem: int = 0,
        block_max_size: int = 128,
        stream: Stream | None = None,
        enable_cooperative_groups: bool = False,
    ) -> None:
        block = min(block_max_size, size)
        self((-(-size // block),), (block,), args, shared_mem, stream, enable_cooperative_groups)


def _geometry(it: Kernel, grid: Sequence[int], block: Sequence[int]) -> tuple[Any, Any]:
    """Three sizes each. cupy takes sizes below 1 for 1; a launch of nothing is an error here."""
    sizes = []
    for name, given in (("grid", grid), ("block", block)):
        if not 1 <= len(given) <= 3 or any(n < 1 for n in given):
            raise CUDADriverError(1, f"{it.name}: {name} {tuple(given)}")
        sizes.append((*map(int, given), 1, 1)[:3])
    (x, y, z), (bx, by, bz) = sizes
    threads = bx * by * bz
    if x > runtime.GRID_X or max(y, z) > runtime.GRID_YZ:
        raise CUDADriverError(1, f"{it.name}: grid {x, y, z}")
    if threads > runtime.BLOCK or bz > runtime.BLOCK_Z:
        raise CUDADriverError(1, f"{it.name}: block {bx, by, bz}")
    if threads > it.threads:
        raise CUDADriverError(701, f"{it.name}: {threads} threads, bounds are {it.threads}")
    if it.shared_bytes > runtime.SHARED_BYTES:
        raise CUDADriverError(1, f"{it.name}: {it.shared_bytes} bytes of shared memory")
    return sizes[0], sizes[1]


def _arguments(it: Kernel, args: Sequence[Any], uses: list[Allocation]) -> list[Any]:
    """The arguments as ctypes objects; the memory they point to is appended to ``uses``."""
    if len(args) != len(it.parameters):
        raise report_fault(
            f"{it.name}: {len(args)} arguments for {len(it.parameters)} parameters; CUDA would "
            "read whatever lies there"
        )
    values: list[Any] = []
    for i, (given, parameter) in enumerate(zip(args, it.parameters, strict=True)):
        name = f"{it.name}: argument {i}"
        if parameter.kind in "pc" or isinstance(given, MemoryPointer):
            values.append(ctypes.c_void_p(_pointer(name, given, parameter, uses)))
        else:
            values.append(_scalar(name, given, parameter))
    _expect_alone(it, values)
    return values


def _expect_alone(it: Kernel, values: Sequence[Any]) -> None:
    """What __restrict__ promises: nothing that is written is an argument twice."""
    pointers = [i for i, p in enumerate(it.parameters) if p.kind in "pc"]
    for i in pointers:
        for j in pointers:
            written = it.parameters[i].kind == "p" and it.parameters[i].alone
            if i != j and written and values[i].value == values[j].value:
                raise report_fault(
                    f"{it.name}: arguments {i} and {j} are the same memory, and the text says "
                    "__restrict__"
                )


def _pointer(name: str, given: Any, parameter: Parameter, uses: list[Allocation]) -> int:
    if isinstance(given, bool) or not isinstance(given, (MemoryPointer, int, np.int64, np.uint64)):
        raise report_fault(f"{name}: {given!r} given, the parameter is {parameter}")
    if parameter.size != ctypes.sizeof(ctypes.c_void_p):
        raise report_fault(f"{name}: a pointer given, the parameter is {parameter}")
    address = int(given)
    allocation = machine.find(address)
    if allocation is None:
        raise report_fault(f"{name}: {address:#x} is no device memory (freed, or never was)")
    device = runtime.getDevice()
    if allocation.device != device and allocation.device not in machine.devices[device].peers:
        raise report_fault(f"{name}: memory of device {allocation.device}, run on {device}")
    uses.append(allocation)
    return address


def _scalar(name: str, given: Any, parameter: Parameter) -> Any:
    """cupy turns Python's integers into int64, its floats into float64."""
    convert = {bool: np.bool_, int: np.int64, float: np.float64}
    scalar: Any = convert[type(given)](given) if type(given) in convert else given
    if not isinstance(scalar, np.generic):
        raise TypeError(f"Unsupported type {type(given)}")
    if scalar.dtype.itemsize != parameter.size or (
        parameter.kind != "w" and scalar.dtype.kind not in KINDS.get(parameter.kind, "")
    ):
        raise report_fault(f"{name}: {scalar.dtype} given, the parameter is {parameter}")
    return (ctypes.c_char * parameter.size).from_buffer_copy(scalar.tobytes())
