"""Products of matrices: square, skinny, in batches, with a vector; a layer with activation."""

from typing import Any

from libraries import Library
from workload import operation

EXACT = {"rtol": 1e-3, "atol": 1e-3}
ALONE = "a product alone has nothing that compiling could fuse"


def product(_: Library, a: Any, b: Any) -> Any:
    return a @ b


def into(lib: Any, a: Any, b: Any) -> Any:
    shape = (*a.shape[:-1], b.shape[-1])
    return lib.module.matmul(a, b, out=lib.kept("out", shape))


for size, target in ((512, None), (1024, 0.95), (2048, None)):
    operation(
        f"matmul_{size}",
        f"a @ b, {size} x {size}",
        [(size, size), (size, size)],
        product,
        out=into,
        targets={} if target is None else {"torch": target},
        flops=2.0 * size**3,
        without={"torch-compile": ALONE},
        slow={"tinygrad": 5.0 if size < 2000 else 45.0},
        **EXACT,
    )
operation(
    "matmul_skinny",
    "256 x 784 @ 784 x 128",
    [(256, 784), (784, 128)],
    product,
    out=into,
    flops=2.0 * 256 * 784 * 128,
    without={"torch-compile": ALONE},
    **EXACT,
)
operation(
    "matmul_batched",
    "32 products of 256 x 64 @ 64 x 256",
    [(32, 256, 64), (32, 64, 256)],
    product,
    out=into,
    targets={"torch": 0.85},
    flops=2.0 * 32 * 256 * 64 * 256,
    without={"torch-compile": ALONE},
    **EXACT,
)
operation(
    "matvec",
    "1 x 768 @ 768 x 3072",
    [(1, 768), (768, 3072)],
    product,
    out=into,
    targets={"torch": 0.4},
    flops=2.0 * 768 * 3072,
    without={"torch-compile": ALONE},
    **EXACT,
)


def linear(_: Library, x: Any, w: Any) -> Any:
    return x.linear(w)


def torch_linear(lib: Library, x: Any, w: Any) -> Any:
    return lib.module.nn.functional.linear(x, w)


for width in (3072, 50257):
    operation(
        f"linear_row_{width}",
        f"a linear layer 768 to {width} on one row, as in decoding",
        [(1, 768), (width, 768)],
        linear,
        torch=torch_linear,
        tinygrad=lambda _, x, w: x @ w.transpose(0, 1),
        targets={"torch": 0.4} if width == 3072 else {},
        flops=2.0 * 768 * width,
        **EXACT,
    )
operation(
    "linear_gelu_512",
    "gelu(linear(x)), 512 x 768 to 3072",
    [(512, 768), (3072, 768), (3072,)],
    lambda _, x, w, b: x.linear(w, b).gelu(approximate="tanh"),
    torch=lambda lib, x, w, b: lib.module.nn.functional.gelu(
        lib.module.nn.functional.linear(x, w, b), approximate="tanh"
    ),
    tinygrad=lambda _, x, w, b: (x @ w.transpose(0, 1) + b).gelu(),
    flops=2.0 * 512 * 768 * 3072,
    **EXACT,
)
