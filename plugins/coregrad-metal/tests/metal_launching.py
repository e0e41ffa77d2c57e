"""Running kernels written by hand on an emulated GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hook_cases import Case
from kernels import hooks_of

from coregrad import config
from coregrad.ir.emit import emit
from coregrad.ir.kernel import Kernel
from coregrad_metal.backend import Backend

REQUIRED = "metal" in [name.strip() for name in config.get("COREGRAD_REQUIRE").split(",")]
if REQUIRED:
    import coregrad_simt  # noqa: F401  # without it every module here would be skipped


def missing(reason: str) -> None:
    if REQUIRED:
        pytest.fail(f"COREGRAD_REQUIRE names metal, but {reason}", pytrace=False)
    pytest.skip(reason)


BACKEND = Backend()
HOOKS = hooks_of(BACKEND)


def text_of(kernel: Kernel, device: Any) -> str:
    text: str = emit(kernel, BACKEND, HOOKS, device.limits)
    return text


def run(device: Any, case: Case) -> dict[str, Any]:
    """What the outputs of a case hold after a launch, in stored form."""
    kernel = case.kernel
    compiled = device.compile(text_of(kernel, device))
    buffers = []
    for param in kernel.params:
        data = case.inputs.get(param.name)
        if data is None:
            data = np.full(param.size * param.dtype.itemsize, 0xCD, np.uint8)
        data = np.ascontiguousarray(data).view(np.uint8)
        buffers.append(device.allocate(data.nbytes))
        device.copy_in(buffers[-1], memoryview(data))
    device.launch(compiled, buffers, kernel.grid)
    out = {}
    for param, buffer in zip(kernel.params, buffers, strict=True):
        if param.role != "in":
            raw = np.empty(param.size * param.dtype.itemsize, np.uint8)
            device.copy_out(buffer, memoryview(raw))
            out[param.name] = raw.view(param.dtype.storage)
        device.free(buffer)
    return out
