"""CUDA's part of what tests/accelerators.py does for every backend of GPUs."""

from functools import partial

import accelerators
from accelerators import Launcher

from coregrad_cuda.backend import Backend

accelerators.require("cuda", "coregrad_simt")

launcher = Launcher(Backend())
missing = partial(accelerators.missing, "cuda")
