"""How each library is started, fed and made to finish its work, in each of the ways it is timed.

A *column* of the table is a library in one way of use: coregrad as it is and captured by ``@jit``,
PyTorch eager, compiled and with results written into reused memory, tinygrad captured by TinyJit.
No workload is known here. Only the process that measures a column imports its library.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from workload import Array, Compute, Step


class Called:
    """The base of a model's parts in a library that has none: a call runs ``forward``."""

    def __call__(self, *args: Any) -> Any:
        return self.forward(*args)  # type: ignore[attr-defined]


class Library:
    """What a workload may ask of a column."""

    column: ClassVar[str]
    name: ClassVar[str]  # of the module; workloads are written by this name
    distribution: ClassVar[str]
    special = False  # runs only what is written for this very column
    Module: Any = Called

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.module: Any = importlib.import_module(self.name)
        self.inputs = 0  # bytes that a step reads, where the workload tells

    @classmethod
    def variables(cls) -> dict[str, str]:
        """The environment of its process, beyond that of all."""
        return {}

    def finish(self) -> None:
        """Wait until everything that was launched is done."""

    def version(self) -> str:
        """The version that is installed."""
        return importlib.metadata.version(self.distribution)

    def tensor(self, array: Array, requires_grad: bool = False) -> Any:
        """A tensor with these values, in memory and not pending."""
        raise NotImplementedError

    def array(self, result: Any) -> Array:
        """A result as an array."""
        raise NotImplementedError

    def stepper(self, compute: Compute, tensors: Sequence[Any]) -> Step:
        """The step that calls ``compute`` on the tensors as a user's loop would."""
        raise NotImplementedError

    def captured(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of tensors, captured or compiled where this column does that."""
        return function

    def gradients(self, loss: Any, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """The gradients of ``loss``, inside a ``compute``."""
        raise NotImplementedError

    def quiet(self) -> contextlib.AbstractContextManager[Any]:
        """Without gradients."""
        return contextlib.nullcontext()

    def parts(self, modules: Sequence[Any]) -> Any:
        """A list of modules inside a module."""
        return list(modules)

    def load(self, model: Any, weights: Mapping[str, Array]) -> Any:
        """Give a model these weights by name; other state keeps its start. Returns the model."""
        raise NotImplementedError

    def shapes(self, model: Any) -> dict[str, tuple[int, ...]]:
        """The parameters of a model by name, in an order that all libraries share."""
        raise NotImplementedError

    def kernels(self, step: Step) -> int | None:
        """How many kernels one step launches, where the library tells."""
        return None


# ---- PyTorch -----------------------------------------------------------------------------------


class Torch(Library):
    """PyTorch, eager."""

    column = name = distribution = "torch"

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.module.set_num_threads(threads)
        self.Module = self.module.nn.Module

    def tensor(self, array: Array, requires_grad: bool = False) -> Any:
        return self.module.from_numpy(array.copy()).requires_grad_(requires_grad)

    def array(self, result: Any) -> Array:
        return np.asarray(result.detach() if hasattr(result, "detach") else result)

    def stepper(self, compute: Compute, tensors: Sequence[Any]) -> Step:
        run = self.captured(lambda *given: compute(self, *given))
        return lambda: _sequence(run(*tensors))

    def gradients(self, loss: Any, leaves: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(self.module.autograd.grad(loss, leaves))

    def quiet(self) -> contextlib.AbstractContextManager[Any]:
        made: contextlib.AbstractContextManager[Any] = self.module.no_grad()
        return made

    def parts(self, modules: Sequence[Any]) -> Any:
        return self.module.nn.ModuleList(modules)

    def load(self, model: Any, weights: Mapping[str, Array]) -> Any:
        state = {name: self.tensor(array) for name, array in weights.items()}
        model.load_state_dict(state, strict=False)
        return model

    def shapes(self, model: Any) -> dict[str, tuple[int, ...]]:
        return {name: tuple(p.shape) for name, p in model.named_parameters()}


class TorchCompile(Torch):
    """PyTorch with ``torch.compile``."""

    column = "torch-compile"

    def captured(self, function: Callable[..., Any]) -> Callable[..., Any]:
        made: Callable[..., Any] = self.module.compile(function)
        return made


class TorchOut(Torch):
    """PyTorch with every result written into memory that is there already."""

    column = "torch-out"
    special = True

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self._kept: dict[str, Any] = {}

    def kept(self, name: str, shape: Sequence[int]) -> Any:
        """A tensor that is made once."""
        if name not in self._kept:
            self._kept[name] = self.module.empty(*shape)
        return self._kept[name]


# ---- coregrad ----------------------------------------------------------------------------------


class Coregrad(Library):
    """coregrad, with every result realised in the call that asks for it."""

    column = name = "coregrad"
    distribution = "coregrad-core"

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.Module = self.module.nn.Module

    @classmethod
    def variables(cls) -> dict[str, str]:
        return {"COREGRAD_DEVICE": "cpu"}  # named: one that is missing must not do

    def tensor(self, array: Array, requires_grad: bool = False) -> Any:
        return self.module.Tensor(array, requires_grad=requires_grad or None)

    def array(self, result: Any) -> Array:
        return np.asarray(result.numpy() if hasattr(result, "numpy") else result)

    def stepper(self, compute: Compute, tensors: Sequence[Any]) -> Step:
        def step() -> Sequence[Any]:
            results = _sequence(compute(self, *tensors))
            results[0].realize(*results[1:])
            self.finish()
            return results

        return step

    def gradients(self, loss: Any, leaves: Sequence[Any]) -> tuple[Any, ...]:
        for leaf in leaves:
            leaf.grad = None
        loss.backward()
        return tuple(leaf.grad for leaf in leaves)

    def quiet(self) -> contextlib.AbstractContextManager[Any]:
        made: contextlib.AbstractContextManager[Any] = self.module.no_grad()
        return made

    def load(self, model: Any, weights: Mapping[str, Array]) -> Any:
        model.load_state_dict(weights, strict=False)
        return model

    def shapes(self, model: Any) -> dict[str, tuple[int, ...]]:
        return {name: p.shape for name, p in model.named_parameters()}

    def kernels(self, step: Step) -> int | None:
        """A graph that is still held somewhere is not computed again: zero would tell."""
        engine: Any = importlib.import_module("coregrad.engine")
        engine.launches = []
        step()
        count = len(engine.launches)
        engine.launches = None
        return count


class CoregradJit(Coregrad):
    """coregrad with the step captured by ``@jit``."""

    column = "coregrad-jit"

    def captured(self, function: Callable[..., Any]) -> Callable[..., Any]:
        made: Callable[..., Any] = self.module.jit(function)
        return made

    def stepper(self, compute: Compute, tensors: Sequence[Any]) -> Step:
        run = self.captured(lambda *given: tuple(_sequence(compute(self, *given))))

        def step() -> Sequence[Any]:
            results = _sequence(run(*tensors))
            self.finish()
            return results

        return step

    def kernels(self, step: Step) -> int | None:
        return None  # a replay is one call; what it computes is compared all the same


# ---- tinygrad ----------------------------------------------------------------------------------


class Tinygrad(Library):
    """tinygrad, with every step captured by TinyJit."""

    column = name = distribution = "tinygrad"

    def tensor(self, array: Array, requires_grad: bool = False) -> Any:
        narrow = array.astype(np.int32) if array.dtype == np.int64 else array
        return self.module.Tensor(narrow).realize()  # every floating tensor takes gradients

    def array(self, result: Any) -> Array:
        return np.asarray(result.numpy() if hasattr(result, "numpy") else result)

    def captured(self, function: Callable[..., Any]) -> Callable[..., Any]:
        made: Callable[..., Any] = self.module.TinyJit(function)
        return made

    def stepper(self, compute: Compute, tensors: Sequence[Any]) -> Step:
        def realised(*arguments: Any) -> Sequence[Any]:
            results = _sequence(compute(self, *arguments))
            self.module.Tensor.realize(*results)
            return results

        run = self.captured(realised)

        def step() -> Sequence[Any]:
            results: Sequence[Any] = run(*tensors)
            self.finish()
            return results

        return step

    def finish(self) -> None:
        """Wait until everything that was launched is done."""
        self.module.Device[self.module.Device.DEFAULT].synchronize()

    def gradients(self, loss: Any, leaves: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(loss.gradient(*leaves))

    def load(self, model: Any, weights: Mapping[str, Array]) -> Any:
        state = {name: self.module.Tensor(array) for name, array in weights.items()}
        self.module.nn.state.load_state_dict(model, state, strict=False, verbose=False)
        return model

    def shapes(self, model: Any) -> dict[str, tuple[int, ...]]:
        state = self.module.nn.state.get_state_dict(model)
        kept = ("running_mean", "running_var", "num_batches_tracked")
        return {n: tuple(t.shape) for n, t in state.items() if not n.endswith(kept)}


# ---- on OpenCL ---------------------------------------------------------------------------------


def pocl() -> dict[str, str]:
    """The variables that let every library find PoCL where pyopencl's wheel has it, and no other
    platform; none if it is not there: then the system's is used."""
    spec = importlib.util.find_spec("pyopencl")
    home = Path(spec.origin).parent if spec is not None and spec.origin else Path()
    loaders, drivers = (sorted(home.glob(f".libs/{name}*")) for name in ("libOpenCL", "libpocl"))
    if not loaders or not drivers:
        return {}
    return {
        "OPENCL_PATH": str(loaders[0]),  # tinygrad's name
        "PYOPENCL_HOME": str(home),
        "OCL_ICD_VENDORS": str(drivers[0]),
    }


class CoregradOpenCL(Coregrad):
    """coregrad on the OpenCL device."""

    column = "coregrad-opencl"

    @classmethod
    def variables(cls) -> dict[str, str]:
        return {"COREGRAD_DEVICE": "opencl", **pocl()}

    def finish(self) -> None:
        importlib.import_module("coregrad.plugins").open_device("opencl").device.synchronize()


class CoregradOpenCLJit(CoregradJit):
    """coregrad on the OpenCL device, captured by ``@jit``."""

    column = "coregrad-opencl-jit"

    @classmethod
    def variables(cls) -> dict[str, str]:
        return CoregradOpenCL.variables()

    def finish(self) -> None:
        CoregradOpenCL.finish(self)  # type: ignore[arg-type]


class TinygradCL(Tinygrad):
    """tinygrad on the same OpenCL device."""

    column = "tinygrad-cl"

    @classmethod
    def variables(cls) -> dict[str, str]:
        return {"DEV": "CL", **pocl()}


CPU = (Coregrad, CoregradJit, Torch, TorchCompile, TorchOut, Tinygrad)
OPENCL = (CoregradOpenCL, CoregradOpenCLJit, TinygradCL)
COLUMNS: dict[str, type[Library]] = {c.column: c for c in (*CPU, *OPENCL)}
OURS = ("coregrad", "coregrad-opencl")  # uncaptured; the captured column adds "-jit"


def environment(threads: int) -> dict[str, str]:
    """The variables that give every library the same number of threads."""
    names = (
        "COREGRAD_NUM_THREADS",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "NUM_CPU_THREADS",  # tinygrad
        "POCL_MAX_PTHREAD_COUNT",
    )
    return {name: str(threads) for name in names}


def empty_caches(folder: str) -> dict[str, str]:
    """The variables that let every library keep what it compiles in ``folder``."""
    return {
        "COREGRAD_CACHE": f"{folder}/coregrad",
        "CACHEDB": f"{folder}/tinygrad.db",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "POCL_CACHE_DIR": f"{folder}/pocl",
    }


def installed(columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """Which of the columns can be run here, and which cannot."""
    found = {c: importlib.util.find_spec(COLUMNS[c].name) is not None for c in columns}
    return [c for c in columns if found[c]], [c for c in columns if not found[c]]


def version_of(column: str) -> str:
    """The version of an installed library, without importing it."""
    return importlib.metadata.version(COLUMNS[column].distribution)


def _sequence(result: Any) -> Sequence[Any]:
    return result if isinstance(result, (tuple, list)) else (result,)
