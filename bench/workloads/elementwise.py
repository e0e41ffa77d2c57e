"""Chains of element-wise operations, broadcasts, masks and copies."""

from typing import Any

from libraries import Library
from workload import operation

LARGE, SMALL = (4096, 4096), (1000, 1000)


def gelu(_: Library, x: Any) -> Any:
    return x.gelu(approximate="tanh")


def torch_gelu(lib: Library, x: Any) -> Any:
    return lib.module.nn.functional.gelu(x, approximate="tanh")


def relu_out(lib: Any, x: Any) -> Any:
    out = lib.module.mul(x, 2, out=lib.kept("out", x.shape))
    return out.add_(1).relu_()


def product_out(lib: Any, a: Any, b: Any, c: Any) -> Any:
    return lib.module.mul(a, b, out=lib.kept("out", a.shape)).add_(c)


def broadcast_out(lib: Any, x: Any, row: Any, column: Any) -> Any:
    return lib.module.add(x, row, out=lib.kept("out", x.shape)).mul_(column)


for name, shape in (("4096", LARGE), ("1000", SMALL)):
    large = shape == LARGE
    operation(
        f"relu_chain_{name}",
        f"relu(x * 2 + 1), {name} x {name}",
        [shape],
        lambda _, x: (x * 2 + 1).relu(),
        out=relu_out,
        targets={"torch": 0.08, "torch-out": 0.7} if large else {},
    )
    operation(
        f"gelu_{name}",
        f"gelu by tanh, {name} x {name}",
        [shape],
        gelu,
        torch=torch_gelu,
        tinygrad=lambda _, x: x.gelu(),
        targets={"torch": 0.08} if large else {},
    )
operation(
    "product_sum_4096",
    "a * b + c, 4096 x 4096",
    [LARGE] * 3,
    lambda _, a, b, c: a * b + c,
    out=product_out,
)
operation(
    "broadcast_4096",
    "(x + row) * column, 4096 x 4096",
    [LARGE, (4096,), (4096, 1)],
    lambda _, x, row, column: (x + row) * column,
    out=broadcast_out,
)
operation(
    "where_1000",
    "where(x > 0, x, y), 1000 x 1000",
    [SMALL] * 2,
    lambda _, x, y: x.where(x > 0, y),
    torch=lambda lib, x, y: lib.module.where(x > 0, x, y),
    tinygrad=lambda _, x, y: (x > 0).where(x, y),
)
operation(
    "masked_fill_1000",
    "x where it is not positive, else 0, 1000 x 1000",
    [SMALL],
    lambda _, x: x.masked_fill(x > 0, 0.0),
    targets={"torch": 0.5},
)


def masked_write(_: Library, x: Any) -> Any:
    y = x * 1
    y[x > 0] = 0.0
    return y


operation(
    "masked_write_1000",
    "y = x * 1; y[x > 0] = 0, 1000 x 1000",
    [SMALL],
    masked_write,
    tinygrad=lambda _, x: (x > 0).where(0.0, x * 1),
    targets={"torch": 0.5},
)
operation(
    "cat4_1024",
    "four matrices of 1024 x 1024 side by side",
    [(1024, 1024)] * 4,
    lambda lib, *parts: lib.module.cat(parts, 1),
    tinygrad=lambda _, a, b, c, d: a.cat(b, c, d, dim=1),
)
operation(
    "transpose_copy_2048",
    "a transposed copy, 2048 x 2048",
    [(2048, 2048)],
    lambda _, x: x.transpose(0, 1).contiguous(),
)
