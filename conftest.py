"""What every docstring example may use without importing it, and how Hypothesis draws.

A run draws the same cases each time, so that it fails for a change and not by chance;
``--hypothesis-profile=explore`` looks for new ones.
"""

import numpy as np
import pytest
from hypothesis import settings

import coregrad

settings.register_profile("same", derandomize=True, database=None)
settings.register_profile("explore", derandomize=False)
settings.load_profile("same")

pytest.register_assert_rewrite("accelerators")  # a file of tests/ whose asserts others inherit


@pytest.fixture(autouse=True)
def example_names(doctest_namespace: dict[str, object]) -> None:
    """``Tensor`` and ``np`` in docstrings."""
    doctest_namespace["Tensor"] = coregrad.Tensor
    doctest_namespace["np"] = np
