"""OpenCL's part of what tests/accelerators.py does for every backend of GPUs; as a program, it runs
all cases on the device that is chosen.

The tests run it in a process of its own on Oclgrind, which watches every access.
"""

from __future__ import annotations

import sys

import numpy as np
from accelerators import Launcher
from hook_cases import Case, problems
from kernels import Builder

from coregrad.dtypes import float32
from coregrad_opencl.backend import Backend

launcher = Launcher(Backend())


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
    device = launcher.backend.open_device(0)
    if what.startswith("planted_"):
        launcher.run(device, planted(what.removeprefix("planted_")))
        return 0
    tried = launcher.cases
    wrong = [problem for case in tried for problem in problems(case, launcher.run(device, case))]
    sys.stdout.write("\n".join([device.title, *wrong, f"{len(tried)} cases"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
