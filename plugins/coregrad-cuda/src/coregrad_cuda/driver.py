"""CuPy, as far as the backend needs it: the only file that calls it. A fake can stand beneath.

It knows addresses and bytes, launches and products of matrices; nothing of kernels' texts, of
pools' policies or of what the core wants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from coregrad import drivers
from coregrad.errors import BackendUnavailable, CoregradError, DeviceError, OutOfMemory

# Numbers of CUDA's and cuBLAS's C headers (library_types.h, cublas_api.h).
TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
NORMAL, TRANSPOSED = 0, 1
COMPUTE = {"float32": 68, "float64": 70, "tf32": 77}
ALGORITHM = -1  # cuBLAS chooses
PEER_ALREADY = 704  # cudaErrorPeerAccessAlreadyEnabled (driver_types.h)
ONE: dict[str, Any] = {"float32": np.ones(1, np.float32), "float64": np.ones(1, np.float64)}
ZERO: dict[str, Any] = {"float32": np.zeros(1, np.float32), "float64": np.zeros(1, np.float64)}
# Texts are compiled by IEEE's rules, which CuPy's own compilation does not keep (-ftz=true).
IEEE = ("--std=c++17", "--ftz=false", "--fmad=false", "--prec-div=true", "--prec-sqrt=true")


def library() -> Any:
    """CuPy. Raises BackendUnavailable with the reason why it is not there."""
    return drivers.library("cuda", "cupy", "CuPy")


def device_count() -> int:
    """How many GPUs there are. Raises BackendUnavailable with the reason for none."""
    cupy = library()
    if cupy.cuda.runtime.is_hip:
        raise BackendUnavailable(
            "cuda: this CuPy is for AMD's ROCm, which nobody has tried; install coregrad-opencl"
        )
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except RuntimeError as error:  # no driver, one that is too old, or no GPU
        raise BackendUnavailable(f"cuda: {error}") from error
    try:
        cupy.cuda.nvrtc.getVersion()
    except Exception as error:  # the loader's own classes
        raise BackendUnavailable(
            f"cuda: CuPy finds no NVRTC, NVIDIA's compiler: {error}; install coregrad-cuda[cuda13] "
            "(or [cuda12]), which brings it"
        ) from error
    return count


def has_cublas() -> bool:
    """Whether CuPy finds cuBLAS; it is a library of its own, and large."""
    try:
        return hasattr(library().cuda.cublas, "gemmStridedBatchedEx")
    except (ImportError, AttributeError):  # CuPy loads it when it is first looked at
        return False


class Driver:
    """One GPU with the one stream in which everything happens, in order."""

    def __init__(self, index: int) -> None:
        self.cupy = library()
        self._cuda = self.cupy.cuda
        self._runtime = self._cuda.runtime
        self.index = index
        self._device = self._cuda.Device(index)
        with self._device:
            self._stream = self._cuda.Stream(non_blocking=True)
        self._pool = self._cuda.MemoryPool()
        self.properties: dict[str, Any] = self._runtime.getDeviceProperties(index)
        self.name = self.properties["name"].decode()
        self._blas: int | None = None
        self._peers: set[int] = {index}

    @contextmanager
    def _here(self) -> Iterator[None]:
        """The calling thread uses this GPU and its stream; afterwards what it used before."""
        with self._device, self._stream:
            yield

    @contextmanager
    def errors(self, title: str, doing: str) -> Iterator[None]:
        """Turn what CuPy raises into coregrad's errors, naming the device and the call."""
        try:
            yield
        except CoregradError:
            raise
        except self._cuda.memory.OutOfMemoryError as error:
            raise OutOfMemory(f"{title}: {doing}: {error}; free tensors, or use smaller") from error
        except RuntimeError as error:  # the runtime's, the driver's and cuBLAS's errors
            raise DeviceError(f"{title}: {doing}: {error}") from error

    # -- memory --------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> Any:
        """Memory; it goes back to the pool with the last reference, in the stream's order. If there
        is none, what the pool keeps is given back, and asked for once more."""
        with self._here():
            try:
                return self._pool.malloc(nbytes)
            except self._cuda.memory.OutOfMemoryError:
                self._stream.synchronize()
                self._pool.free_all_blocks()
                return self._pool.malloc(nbytes)

    def pinned(self, nbytes: int) -> Any:
        """Host memory that the GPU reads by itself."""
        return self._cuda.alloc_pinned_memory(nbytes)

    def copy_in(self, target: int, host: int, nbytes: int) -> None:
        """Queue a copy from the host's address; what lies there must stay until it is done."""
        self._copy(target, host, nbytes, self._runtime.memcpyHostToDevice)

    def copy_out(self, host: int, source: int, nbytes: int) -> None:
        """Queue a copy to the host's address."""
        self._copy(host, source, nbytes, self._runtime.memcpyDeviceToHost)

    def _copy(self, target: int, source: int, nbytes: int, kind: int) -> None:
        with self._here():
            self._runtime.memcpyAsync(target, source, nbytes, kind, self._stream.ptr)

    def copy_peer(self, target: int, other: Driver, source: int, nbytes: int) -> None:
        """Queue a copy from another GPU, after what that has been given so far."""
        event = other.mark()
        with self._here():
            self._open_way_to(other.index)
            self._stream.wait_event(event)
            numbers = target, self.index, source, other.index, nbytes
            self._runtime.memcpyPeerAsync(*numbers, self._stream.ptr)

    def _open_way_to(self, other: int) -> None:
        """Let this GPU read another's memory, where it can; else copies pass through the host."""
        if other in self._peers:
            return
        self._peers.add(other)
        if self._runtime.deviceCanAccessPeer(self.index, other):
            try:
                self._runtime.deviceEnablePeerAccess(other)
            except self._runtime.CUDARuntimeError as error:
                if error.status != PEER_ALREADY:  # CuPy may have done it
                    raise

    # -- kernels -------------------------------------------------------------------------------

    @property
    def architecture(self) -> str:
        """What to compile for: this GPU's machine code, or, if the compiler is older than the GPU,
        the newest intermediate code it knows, which the driver translates."""
        own = int(self._device.compute_capability)
        known = self._cuda.nvrtc.getSupportedArchs()
        if own in known:
            return f"sm_{own}"
        return f"compute_{max(a for a in known if a < own)}"

    @property
    def versions(self) -> str:
        """Of everything that a compiled text depends on."""
        major, minor = self._cuda.nvrtc.getVersion()
        return f"CuPy {self.cupy.__version__}, NVRTC {major}.{minor}"

    def compiled(self, text: str, options: Sequence[str]) -> bytes:
        """A text's machine code. Raises ValueError with the compiler's words."""
        nvrtc = self._cuda.nvrtc
        program = nvrtc.createProgram(text, "kernel.cu", (), ())
        try:
            nvrtc.compileProgram(program, tuple(options))
            real = any(option.endswith(self.architecture) for option in options)
            binary = real and self.architecture.startswith("sm_")
            return bytes(nvrtc.getCUBIN(program) if binary else nvrtc.getPTX(program))
        except nvrtc.NVRTCError as error:
            raise ValueError(f"{error}\n{nvrtc.getProgramLog(program)}") from error
        finally:
            nvrtc.destroyProgram(program)

    def function(self, code: bytes, name: str) -> Any:
        """A kernel of some machine code, loaded."""
        with self._here():
            module = self._cuda.function.Module()
            module.load(code)
            return module.get_function(name)

    def launch(self, function: Any, groups: int, threads: int, addresses: Sequence[int]) -> None:
        """Queue a kernel. Addresses are Python integers, which CuPy passes as 64 bits."""
        with self._here():
            function((groups,), (threads,), tuple(addresses), 0, self._stream)

    def multiply(self, dtypes: tuple[str, str], compute: str, numbers: Sequence[int]) -> None:
        """Queue cuBLAS's product of columns: C = op(A) op(B), ``count`` times. ``dtypes`` are those
        of A and B, and of C; ``numbers``: op(A), op(B), m, n, k; address, leading dimension and
        stride of A, of B and of C; count."""
        cublas = self._cuda.cublas
        turn_a, turn_b, m, n, k, a, lda, step_a, b, ldb, step_b, c, ldc, step_c, count = numbers
        wide = "float64" if compute == "float64" else "float32"
        one, zero = ONE[wide].ctypes.data, ZERO[wide].ctypes.data
        kind, out = (TYPES[dtype] for dtype in dtypes)
        with self._here():
            if self._blas is None:
                self._blas = cublas.create()
                cublas.setStream(self._blas, self._stream.ptr)
            cublas.gemmStridedBatchedEx(
                self._blas, turn_a, turn_b, m, n, k,
                one, a, kind, lda, step_a, b, kind, ldb, step_b, zero, c, out, ldc, step_c,
                count, COMPUTE[compute], ALGORITHM,
            )  # fmt: skip

    # -- time ----------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Wait for the stream."""
        self._stream.synchronize()

    def mark(self) -> Any:
        """An event after everything so far."""
        with self._here():
            return self._stream.record()

    def seconds(self, first: Any, last: Any) -> float:
        """Between two events, once the last is reached."""
        last.synchronize()
        return float(self._cuda.get_elapsed_time(first, last)) * 1e-3

    def capture(self, work: Callable[[], None]) -> Any:
        """A graph of what ``work`` queues; nothing of it is done."""
        with self._here():
            self._stream.begin_capture()
            try:
                work()
            finally:
                graph = self._stream.end_capture()
            return graph

    def replay(self, graph: Any) -> None:
        """Queue a graph."""
        with self._here():
            graph.launch(self._stream)
