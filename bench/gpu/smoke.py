"""A few kernels of each shape on the device, against NumPy.

With the argument ``three``: a chain, sums by work-groups and a tiled product alone, as they are run
under compute-sanitizer.
"""

from __future__ import annotations

import os
import sys

import numpy as np

from coregrad import Tensor, plugins

os.environ.setdefault("COREGRAD_CUDA_MATMUL", "kernels")  # our own product, not cuBLAS's


THREE = ("element-wise", "sum of columns", "product")


def main(which: str) -> int:
    print(plugins.open_device("cuda").device.title)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((97, 300)).astype(np.float32)
    w = rng.standard_normal((300, 65)).astype(np.float32)
    a, b = Tensor(x, device="cuda"), Tensor(w, device="cuda")
    powers = np.exp(x - x.max(1, keepdims=True))
    results = {
        "element-wise": ((a * 2 + 1).relu(), np.maximum(x * 2 + 1, 0)),
        "softmax": (a.softmax(1), powers / powers.sum(1, keepdims=True)),
        "sum of columns": (a.sum(0), x.sum(0)),
        "product": (a @ b, x @ w),
        "float16": (a.half().float(), x.astype(np.float16).astype(np.float32)),
        "running sum": (a.cumsum(1), x.cumsum(1)),
    }
    wrong = 0
    for name in THREE if which == "three" else results:
        got, want = results[name]
        error = float(np.abs(got.numpy() - want).max() / np.abs(want).max())
        wrong += not error < 1e-5
        print(f"{name}: {error:.1e} {'' if error < 1e-5 else 'WRONG'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[-1]))
