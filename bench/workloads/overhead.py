"""Many small operations: what a library costs beside the arithmetic."""

from typing import Any

import numpy as np
from libraries import Library
from workload import Array, Results, Steady, Step, operation

operation(
    "add_16",
    "x + x, 16 elements: the cost of one call",
    [(16,)],
    lambda _, x: x + x,
    bytes=0.0,
)


def tiny(_: Library, x: Any) -> Any:
    for _step in range(500):
        x = x * 0.999
        x = x + 0.001
    return x


operation(
    "tiny_ops_1000",
    "1000 operations on four numbers",
    [(4,)],
    tiny,
    captured=True,
    targets={"torch": 0.05},
    bytes=0.0,
    rtol=1e-3,
    slow={"tinygrad": 130.0},
)


def chain(lib: Library, x: Any, w: Any) -> Any:
    y = x
    for _ in range(50):
        y = y * 0.9
        y = y + w
        y = y.tanh()
        y = y - 0.01
    loss = y.sum()
    return loss, *lib.gradients(loss, [x, w])


operation(
    "backward_200",
    "200 operations on 4 x 4 and their gradients",
    [(4, 4), (4, 4)],
    chain,
    leaves=2,
    captured=True,
    bytes=0.0,
    rtol=1e-3,
    without={"tinygrad": "compiles for more than three minutes, with the square of the chain"},
)


# ---- Adam --------------------------------------------------------------------------------------

RATE = 0.001


def with_coregrad(library: Library, values: list[Array], slopes: list[Array]) -> Step:
    coregrad = library.module
    parameters = [coregrad.nn.Parameter(library.tensor(v)) for v in values]
    gradients = [library.tensor(g) for g in slopes]
    optim = coregrad.nn.optim.Adam(parameters, lr=RATE)

    @library.captured
    def move(*given: Any) -> None:
        for parameter, gradient in zip(parameters, given, strict=True):
            parameter.grad = gradient
        optim.step()

    def step() -> Results:
        move(*gradients)
        parameters[0].realize(*parameters[1:])
        return parameters[:1]

    return step


def with_torch(library: Library, values: list[Array], slopes: list[Array]) -> Step:
    torch = library.module
    parameters = [torch.nn.Parameter(library.tensor(v)) for v in values]
    for parameter, slope in zip(parameters, slopes, strict=True):
        parameter.grad = library.tensor(slope)
    fused = library.column == "torch-compile" or None  # the best a user of PyTorch can ask for
    optim = torch.optim.Adam(parameters, lr=RATE, fused=fused)

    def step() -> Results:
        optim.step()
        return [parameters[0].detach()]

    return step


def with_tinygrad(library: Library, values: list[Array], slopes: list[Array]) -> Step:
    tinygrad = library.module
    parameters = [library.tensor(v).is_param_(True) for v in values]
    gradients = [library.tensor(g) for g in slopes]
    optim = tinygrad.nn.optim.Adam(parameters, lr=RATE)

    @tinygrad.TinyJit
    def move(*given: Any) -> Any:
        with tinygrad.Context(TRAINING=1):
            for parameter, gradient in zip(parameters, given, strict=True):
                parameter.grad = gradient
            tinygrad.Tensor.realize(*optim.schedule_step())
            return parameters[0]

    def step() -> Results:
        result = move(*gradients)
        library.finish()  # type: ignore[attr-defined]
        return [result]

    return step


ADAM = {"coregrad": with_coregrad, "torch": with_torch, "tinygrad": with_tinygrad}


def adam(name: str, count: int, shape: tuple[int, ...], **options: Any) -> None:
    """Steps of Adam over ``count`` parameters of one shape."""

    def builder(make: Any) -> Any:
        def build(library: Library) -> Step:
            rng = np.random.default_rng(1)
            arrays = [rng.standard_normal(shape, np.float32) for _ in range(2 * count)]
            return make(library, arrays[:count], arrays[count:])

        return build

    total = count * int(np.prod(shape))
    Steady(
        name=name,
        about=f"a step of Adam on {count} parameters, {total:,} numbers (compiled: fused)",
        build={library: builder(make) for library, make in ADAM.items()},
        bytes=7.0 * 4 * total,
        rtol=1e-3,
        atol=1e-4,
        stateful=True,
        **options,
    )


adam("adam_100", 100, (64, 64), slow={"tinygrad": 30.0})
adam("adam_10M", 1, (10_000_000,), targets={"torch": 0.2})
