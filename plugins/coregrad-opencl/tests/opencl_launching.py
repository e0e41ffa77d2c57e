"""Running the cases of tests/hook_cases.py on an OpenCL device; as a program, on the one chosen.

The tests run it in a process of its own on Oclgrind, which watches every access.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from hook_cases import Case, cases, group_cases, problems
from kernels import Builder, hooks_of

from coregrad.dtypes import ALL, float32
from coregrad.ir.emit import emit
from coregrad.ir.kernel import Kernel
from coregrad_opencl.backend import Backend

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


def planted(kind: str) -> Case:
    """A kernel with a mistake that only a checker sees: its result may well be right."""
    b = Builder(f"planted_{kind}")
    x, out = b.param("x0", float32, 61), b.param("o", float32, 61, "out")
    with b.loop(1, "grid"):
        tile = b.array("tile", float32, 61, "local")
        with b.loop(61, "local") as t:
            if kind != "uninitialised":
                b.store(tile, t, b.load(x, t + (kind == "outside") * 1))
            if kind != "race":
                b.barrier()
            b.store(out, t, b.load(tile, t * -1 + 60))
    return Case(b.name, b.kernel(), {"x0": np.ones(61, np.float32)})


def main(what: str) -> int:
    device = BACKEND.open_device(0)
    if what.startswith("planted_"):
        run(device, planted(what.removeprefix("planted_")))
        return 0
    tried = [*cases(ALL), *group_cases(ALL, 256)]
    wrong = [problem for case in tried for problem in problems(case, run(device, case))]
    sys.stdout.write("\n".join([device.title, *wrong, f"{len(tried)} cases"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
