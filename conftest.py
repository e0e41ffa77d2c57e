"""What every docstring example may use without importing it; nothing else."""

import numpy as np
import pytest

import coregrad


@pytest.fixture(autouse=True)
def example_names(doctest_namespace: dict[str, object]) -> None:
    """``Tensor`` and ``np`` in docstrings."""
    doctest_namespace["Tensor"] = coregrad.Tensor
    doctest_namespace["np"] = np
