"""How each library is started, fed and made to finish its work. It knows no workload.

Only the process that measures a library imports it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from workload import Array, Compute, Step


class Library:
    """What a workload may ask of a library."""

    name: str
    distribution: str

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.module: Any = importlib.import_module(self.name)

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

    def gradients(self, loss: Any, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """The gradients of ``loss``, inside a ``compute``."""
        raise NotImplementedError

    def kernels(self, step: Step) -> int | None:
        """How many kernels one step launches, where the library tells."""
        return None


class Torch(Library):
    """PyTorch, eager."""

    name = distribution = "torch"

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.module.set_num_threads(threads)

    def tensor(self, array: Array, requires_grad: bool = False) -> Any:
        return self.module.from_numpy(array.copy()).requires_grad_(requires_grad)

    def array(self, result: Any) -> Array:
        return np.asarray(result.detach() if hasattr(result, "detach") else result)

    def stepper(self, compute: Compute, tensors: Sequence[Any]) -> Step:
        return lambda: _sequence(compute(self, *tensors))

    def gradients(self, loss: Any, leaves: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(self.module.autograd.grad(loss, leaves))


class Coregrad(Library):
    """coregrad, with every result realised in the call that asks for it."""

    name = "coregrad"
    distribution = "coregrad-core"

    def tensor(self, array: Array, requires_grad: bool = False) -> Any:
        return self.module.Tensor(array, requires_grad=requires_grad or None)

    def array(self, result: Any) -> Array:
        return np.asarray(result.numpy() if hasattr(result, "numpy") else result)

    def stepper(self, compute: Compute, tensors: Sequence[Any]) -> Step:
        def step() -> Sequence[Any]:
            results = _sequence(compute(self, *tensors))
            results[0].realize(*results[1:])
            return results

        return step

    def gradients(self, loss: Any, leaves: Sequence[Any]) -> tuple[Any, ...]:
        for leaf in leaves:
            leaf.grad = None
        loss.backward()
        return tuple(leaf.grad for leaf in leaves)

    def kernels(self, step: Step) -> int | None:
        """A graph that is still held somewhere is not computed again: zero would tell."""
        engine = importlib.import_module("coregrad.engine")
        engine.launches = []
        step()
        count = len(engine.launches)
        engine.launches = None
        return count


class Tinygrad(Library):
    """tinygrad, with every step captured by TinyJit."""

    name = distribution = "tinygrad"

    def tensor(self, array: Array, requires_grad: bool = False) -> Any:
        return self.module.Tensor(array).realize()  # every floating tensor takes gradients

    def array(self, result: Any) -> Array:
        return np.asarray(result.numpy() if hasattr(result, "numpy") else result)

    def stepper(self, compute: Compute, tensors: Sequence[Any]) -> Step:
        def realised(*arguments: Any) -> Sequence[Any]:
            results = _sequence(compute(self, *arguments))
            self.module.Tensor.realize(*results)
            return results

        captured = self.module.TinyJit(realised)
        device = self.module.Device[self.module.Device.DEFAULT]

        def step() -> Sequence[Any]:
            results: Sequence[Any] = captured(*tensors)
            device.synchronize()
            return results

        return step

    def gradients(self, loss: Any, leaves: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(loss.gradient(*leaves))


LIBRARIES: dict[str, type[Library]] = {c.name: c for c in (Coregrad, Torch, Tinygrad)}


def environment(threads: int) -> dict[str, str]:
    """The variables that give every library the same number of threads."""
    names = (
        "COREGRAD_NUM_THREADS",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "NUM_CPU_THREADS",  # tinygrad
    )
    device = os.environ.get("COREGRAD_DEVICE", "cpu")  # named: one that is missing must not do
    return {"COREGRAD_DEVICE": device, **{name: str(threads) for name in names}}


def empty_caches(folder: str) -> dict[str, str]:
    """The variables that let every library keep what it compiles in ``folder``."""
    return {"COREGRAD_CACHE": folder, "CACHEDB": f"{folder}/tinygrad.db"}


def installed(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Which of the named libraries can be imported here, and which cannot."""
    here = [n for n in names if importlib.util.find_spec(n) is not None]
    return here, [n for n in names if n not in here]


def version_of(name: str) -> str:
    """The version of an installed library, without importing it."""
    return importlib.metadata.version(LIBRARIES[name].distribution)


def _sequence(result: Any) -> Sequence[Any]:
    return result if isinstance(result, (tuple, list)) else (result,)
