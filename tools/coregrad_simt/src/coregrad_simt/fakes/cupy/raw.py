"""cupy.RawModule and RawKernel: they compile late, for the current device, with -ftz=true."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coregrad_simt.fakes.cupy.cuda import nvrtc, runtime
from coregrad_simt.fakes.cupy.cuda.compiler import CompileException
from coregrad_simt.fakes.cupy.cuda.device import Device
from coregrad_simt.fakes.cupy.cuda.function import Function, Module

__all__ = ["RawKernel", "RawModule"]


class RawModule:
    """A text whose kernels can be asked for by name."""

    def __init__(
        self,
        code: str | None = None,
        *,
        path: str | None = None,
        options: tuple[str, ...] = (),
        backend: str = "nvrtc",
        translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False,
        name_expressions: Sequence[str] | None = None,
        jitify: bool | None = None,
    ) -> None:
        unknown = path, translate_cucomplex, enable_cooperative_groups, name_expressions, jitify
        if code is None or any(unknown) or backend != "nvrtc":
            raise NotImplementedError("the fake compiles a text by NVRTC, without extras")
        if not isinstance(options, tuple):
            raise TypeError("options are a tuple of strings")
        self.code, self.options, self.backend = code, options, backend
        self._modules: dict[int, Module] = {}

    def compile(self, log_stream: Any = None) -> None:
        self._module()

    def get_function(self, name: str) -> RawKernel:
        return RawKernel._of(self, name)

    def _module(self) -> Module:
        device = runtime.getDevice()
        if device not in self._modules:
            self._modules[device] = self._compiled()
        return self._modules[device]

    def _compiled(self) -> Module:
        architecture = f"-arch=sm_{Device().compute_capability}"
        options = (*self.options, architecture, "-ftz=true")
        program = nvrtc.createProgram(self.code, "kernel.cu", (), ())
        try:
            nvrtc.compileProgram(program, options)
            cubin = nvrtc.getCUBIN(program)
        except nvrtc.NVRTCError:
            log = nvrtc.getProgramLog(program)
            raise CompileException(log, self.code, "kernel.cu", options) from None
        finally:
            nvrtc.destroyProgram(program)
        module = Module()
        module.load(cubin)
        return module


class RawKernel:
    """A kernel of a text, launched as (grid, block, args)."""

    def __init__(
        self, code: str, name: str, options: tuple[str, ...] = (), backend: str = "nvrtc"
    ) -> None:
        self._raw = RawModule(code, options=options, backend=backend)
        self.name = name

    @classmethod
    def _of(cls, raw: RawModule, name: str) -> RawKernel:
        kernel = object.__new__(cls)
        kernel._raw, kernel.name = raw, name
        kernel.kernel  # noqa: B018  # cupy compiles here, too
        return kernel

    @property
    def code(self) -> str:
        return self._raw.code

    @property
    def kernel(self) -> Function:
        return self._raw._module().get_function(self.name)

    @property
    def max_threads_per_block(self) -> int:
        return self.kernel._kernel.threads

    @property
    def shared_size_bytes(self) -> int:
        return self.kernel._kernel.shared_bytes

    def compile(self, log_stream: Any = None) -> None:
        self._raw.compile()

    def __call__(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        *,
        shared_mem: int = 0,
        stream: Any = None,
    ) -> None:
        self.kernel(grid, block, args, shared_mem, stream)
