"""Products of a vector with a matrix, whose sums run across its rows or along them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coregrad import Tensor, engine


def values(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 1500),
    columns=st.integers(1, 700),
    shape=st.sampled_from(["vector", "row", "transposed", "column", "batch"]),
)
def test_a_vector_times_a_matrix_is_what_numpy_says(rows: int, columns: int, shape: str) -> None:
    w, v = values(rows, columns), values(rows, seed=1)
    wide, long = w.astype(np.float64), v.astype(np.float64)
    matrix, vector = Tensor(w, device="cpu"), Tensor(v, device="cpu")
    found, wanted = {
        "vector": lambda: (vector @ matrix, long @ wide),
        "row": lambda: (vector.reshape(1, rows) @ matrix + 1, (long @ wide)[None] + 1),
        "transposed": lambda: (matrix.T @ vector, long @ wide),
        "column": lambda: (matrix.T @ vector.reshape(rows, 1), (long @ wide)[:, None]),
        "batch": lambda: (
            vector.reshape(1, 1, rows) @ matrix.reshape(1, rows, columns),
            (long @ wide)[None, None],
        ),
    }[shape]()
    scale = np.abs(wide).sum(0).max() + 1
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-6 * scale)


@pytest.mark.parametrize("transposed", [False, True])
def test_the_rows_of_a_large_matrix_are_added_up_as_they_lie(transposed: bool) -> None:
    """A few rows at a time; a product along the rows needs one kernel."""
    matrix, vector = Tensor(values(1024, 1024), device="cpu"), Tensor(values(1024), device="cpu")
    product = matrix @ vector if transposed else vector @ matrix
    engine.launches = []
    try:
        product.realize()
        kernels = engine.launches
    finally:
        engine.launches = None
    assert len(kernels) == (1 if transposed else 2), kernels


def test_the_gradient_of_a_product_with_a_vector_is_right() -> None:
    w, v = values(900, 500), values(900, seed=1)
    matrix = Tensor(w, device="cpu", requires_grad=True)
    vector = Tensor(v, device="cpu", requires_grad=True)
    ((vector @ matrix) ** 2).sum().backward()
    wide, long = w.astype(np.float64), v.astype(np.float64)
    out = 2 * (long @ wide)
    assert matrix.grad is not None
    assert vector.grad is not None
    np.testing.assert_allclose(matrix.grad.numpy(), np.outer(long, out), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(vector.grad.numpy(), wide @ out, rtol=1e-3, atol=1e-2)
