"""Metal's part of what tests/accelerators.py does for every backend of GPUs."""

import accelerators
from accelerators import Launcher

from coregrad.dtypes import ALL, float64
from coregrad_metal.backend import Backend

accelerators.require("metal", "coregrad_simt")

launcher = Launcher(Backend(), [dtype for dtype in ALL if dtype is not float64], ("fmod",))
