"""What these tests share: a cache of their own, a fresh machine each, and a way to run a text."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from coregrad_simt import report
from coregrad_simt.cuda import nvrtc, ptx, ptxas, source
from coregrad_simt.errors import MissingTool
from coregrad_simt.fakes.cupy.machine import machine
from coregrad_simt.kernel import Kernel, launch
from coregrad_simt.memory import Buffer

REQUIRED = {"cuda", "emulated-cuda"} & set(os.environ.get("COREGRAD_REQUIRE", "").split(","))


def missing(error: Exception) -> None:
    if REQUIRED:
        pytest.fail(f"COREGRAD_REQUIRE names cuda, but {error}", pytrace=False)
    pytest.skip(str(error))


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The cache of all these tests."""
    return os.environ.get("COREGRAD_SIMT_CACHE") or str(tmp_path_factory.mktemp("simt"))


@pytest.fixture(scope="module", autouse=True)
def _cache(kept: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:  # tests of other folders may run in between
        patch.setenv("COREGRAD_SIMT_CACHE", kept)
        yield


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("ORDERS", "ROUTE", "TEXTS", "REPORT", "CUDA_DEVICES", "CUDA_MEMORY", "CUDA_ARCH"):
        monkeypatch.delenv(f"COREGRAD_SIMT_{name}", raising=False)
    report.reset()
    machine.reset()
    yield
    report.reset()
    machine.reset()


@pytest.fixture(scope="session")
def has_nvrtc() -> None:
    try:
        nvrtc.library()
    except MissingTool as error:
        missing(error)


@pytest.fixture(scope="session")
def has_ptxas(has_nvrtc: None) -> None:
    try:
        ptxas.assembler()
    except MissingTool as error:
        missing(error)


@pytest.fixture(params=["a", "b"])
def route(request: pytest.FixtureRequest) -> str:
    """Both routes; without NVRTC only the first."""
    name: str = request.param
    if name == "b":
        request.getfixturevalue("has_nvrtc")
    return name


@pytest.fixture
def compiled() -> Callable[..., dict[str, Kernel]]:
    def kernels(text: str, route: str, options: Sequence[str] = ()) -> dict[str, Kernel]:
        if route == "a":
            return source.kernels(text, options)
        return ptx.kernels(text, ["-arch=compute_90", *options])

    return kernels


@pytest.fixture
def run(compiled: Callable[..., dict[str, Kernel]]) -> Callable[..., list[Any]]:
    """Run kernel k of a text: arrays are copied to guarded buffers, and returned as they are."""

    def execute(
        text: str,
        *arguments: Any,
        route: str = "a",
        grid: int = 1,
        block: int = 64,
        options: Sequence[str] = (),
    ) -> list[Any]:
        kernel = compiled(text, route, options)["k"]
        buffers, values = [], []
        for argument in arguments:
            if isinstance(argument, np.ndarray):
                buffer = Buffer(argument.nbytes)
                buffer.data[:] = np.frombuffer(argument.tobytes(), np.uint8)
                buffers.append((buffer, argument))
                values.append(ctypes.c_void_p(buffer.address))
            else:
                values.append((ctypes.c_char * argument.nbytes)(*argument.tobytes()))
        launch(kernel, values, [b for b, _ in buffers], (grid, 1, 1), (block, 1, 1))
        return [b.data.view(a.dtype).reshape(a.shape).copy() for b, a in buffers]

    return execute
