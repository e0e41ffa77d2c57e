"""Sums, softmax and normalisation."""

from workload import operation

operation(
    "softmax_1024",
    "softmax over rows, 1024 x 1024",
    [(1024, 1024)],
    lambda _, x: x.softmax(-1),
    targets={"torch": 0.7},
)
operation(
    "layer_norm_4096x1024",
    "layer norm over rows without weights, 4096 x 1024",
    [(4096, 1024)],
    lambda _, x: x.layer_norm(1024),
    targets={"torch": 0.7},
    torch=lambda lib, x: lib.module.nn.functional.layer_norm(x, (1024,)),
    tinygrad=lambda _, x: x.layernorm(),
)
operation(
    "sum_all_4096",
    "sum of all, 4096 x 4096",
    [(4096, 4096)],
    lambda _, x: x.sum(),
    atol=0.5,  # of 16.8 million normal numbers, whose sum is of the order of 4096
)
operation(
    "sum_axis0_1024",
    "sum over rows, 1024 x 1024",
    [(1024, 1024)],
    lambda _, x: x.sum(0),
    atol=1e-3,
)
operation(
    "sum_axis1_1024",
    "sum over columns, 1024 x 1024",
    [(1024, 1024)],
    lambda _, x: x.sum(1),
    atol=1e-3,
)
