"""What a user waits for before the first result."""

from workload import Fresh

FIRST = """
import time
import numpy as np
{load}
array = np.arange(-8, 8, dtype=np.float32).reshape(4, 4)
start = time.perf_counter()
result = ({tensor}(array) * 2 + 1).relu().sum(1).numpy()
print(time.perf_counter() - start)
print(result.tolist())
"""

Fresh(
    "import",
    "import, beyond that of NumPy",
    programs={
        "coregrad": "import numpy, coregrad",
        "torch": "import numpy, torch",
        "tinygrad": "import numpy, tinygrad",
    },
    baseline="import numpy",
    limit=0.05,
)
# A first training step as a new process has it. The model and its data are made before the clock
# starts; what is timed is everything that the first step compiles, and the step.
STEP = """
import os, sys, time
sys.path.insert(0, os.environ["BENCH"])
from libraries import COLUMNS
from workload import load
library = COLUMNS["{column}"](int(os.environ["OMP_NUM_THREADS"]))
step = load()["mnist_step"].builder("{column}", type(library))(library)
start = time.perf_counter()
results = step()
print(time.perf_counter() - start)
print([float(value) for value in results[0]])
"""
SLOW = {"torch-compile": 40.0, "tinygrad": 40.0}

for warm in (False, True):
    Fresh(
        f"mnist_first_step_{'warm' if warm else 'cold'}",
        "the first step of beautiful_mnist's network in a new process, "
        + ("with compiled code on disk" if warm else "nothing cached"),
        programs={
            column: STEP.format(column=column)
            for column in ("coregrad", "coregrad-jit", "torch", "torch-compile", "tinygrad")
        },
        limit=0.5 if warm else 4.0,
        warm=warm,
        rounds=2,
        rtol=1e-2,
        slow=SLOW,
    )
Fresh(
    "first_result",
    "first result after import, nothing cached: relu(x * 2 + 1).sum(1), 4 x 4",
    programs={
        "coregrad": FIRST.format(load="from coregrad import Tensor", tensor="Tensor"),
        "torch": FIRST.format(load="import torch", tensor="torch.from_numpy"),
        "tinygrad": FIRST.format(load="from tinygrad import Tensor", tensor="Tensor"),
    },
    limit=0.3,
)
