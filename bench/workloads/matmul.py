"""Products of matrices."""

from workload import operation

operation(
    "matmul_1024",
    "a @ b, 1024 x 1024",
    [(1024, 1024), (1024, 1024)],
    lambda _, a, b: a @ b,
    targets={"torch": 1.5},
    atol=1e-3,
)
operation(
    "matmul_512",
    "a @ b, 512 x 512",
    [(512, 512), (512, 512)],
    lambda _, a, b: a @ b,
    atol=1e-3,
)
