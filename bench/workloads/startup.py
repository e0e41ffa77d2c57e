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
