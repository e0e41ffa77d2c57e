"""Chains of element-wise operations."""

from workload import operation

operation(
    "relu_chain_4096",
    "relu(x * 2 + 1), 4096 x 4096",
    [(4096, 4096)],
    lambda _, x: (x * 2 + 1).relu(),
    targets={"torch": 0.10},
)
operation(
    "relu_chain_1000",
    "relu(x * 2 + 1), 1000 x 1000",
    [(1000, 1000)],
    lambda _, x: (x * 2 + 1).relu(),
)
operation(
    "gelu_1000",
    "gelu by tanh, 1000 x 1000",
    [(1000, 1000)],
    lambda _, x: x.gelu(approximate="tanh"),
    torch=lambda lib, x: lib.module.nn.functional.gelu(x, approximate="tanh"),
    tinygrad=lambda _, x: x.gelu(),
)
operation(
    "add_16",
    "x + x, 16 elements: the cost of one call",
    [(16,)],
    lambda _, x: x + x,
)
