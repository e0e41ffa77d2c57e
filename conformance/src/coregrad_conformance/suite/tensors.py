"""The tensor API on the device: each dtype there and back, empty tensors, products, windows,
in-place changes, copies between devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import coregrad as cg
from coregrad import Tensor, plugins
from coregrad.dtypes import ALL, DType, accumulator
from coregrad_conformance import oracle, tables, ulp
from coregrad_conformance.row import Failure, Outcome, Row
from coregrad_conformance.suite.functions import from_stored, to_stored

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coregrad_conformance.target import Target

GROUP = "tensors"
REFERENCE = "numpy"  # of coregrad-cpu, without which a backend can be checked as well
PRODUCTS = ((1, 1, 1), (3, 5, 4), (1, 33, 7), (17, 1, 19), (33, 17, 65), (32, 32, 32))
LARGER = ((64, 64, 64), (130, 257, 67), (1, 1025, 1), (255, 3, 257))


def rows() -> Iterator[Row]:
    """The rows of this file."""
    for dtype in ALL:
        name = f"tensors/{dtype.name}/round-trip"
        summary = f"A tensor of {dtype.name} holds what it was made of."
        run = partial(_round_trip, dtype)
        yield Row(name, tables.level(dtype), GROUP, run, dtype=dtype.name, summary=summary)
    for dtype in (cg.float32, cg.int32, cg.float64, cg.float16, cg.bfloat16):
        for name, shapes in (("small", PRODUCTS), ("larger", LARGER)):
            level = tables.level(dtype) if name == "small" else "standard"
            run = partial(_matmul, dtype, shapes)
            summary = f"Matrix products of {dtype.name}, {name} ones."
            id_ = f"tensors/{dtype.name}/matmul-{name}"
            yield Row(id_, level, GROUP, run, dtype=dtype.name, summary=summary)
    yield _row("matmul-special", _special_products, "Infinities and NaN in a matrix product.")
    yield _row("matmul-transposed", _transposed, "Products with transposed and batched operands.")
    yield _row("convolution", _convolution, "Convolutions with strides, padding and dilation.")
    yield _row("empty", _empty, "Tensors without elements.")
    yield _row("scalar", _scalars, "Tensors without axes.")
    yield _row("in-place", _in_place, "A tensor changed in place does not change its past.")
    yield _row("copy", _copy, "Copies from and to another device.")
    yield _row("shared-reduction", _shared, "Several results of one expression.")
    yield _row("long-chain", _chain, "A thousand dependent additions.")
    yield _row("index-error", _index_error, "A wrong index raises, and computes nothing.")


def _row(name: str, run: Callable[[Target], Outcome], summary: str) -> Row:
    return Row(f"tensors/{name}", "core", GROUP, run, summary=summary)


def equal(got: Any, want: Any, what: str = "") -> int:
    """The number of things compared; raises Failure where shapes or elements differ."""
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape:
        raise Failure(f"{what}: shape {got.shape}, not {want.shape}")
    if not np.array_equal(got, want):
        at = tuple(np.argwhere(got != want)[0])
        raise Failure(f"{what}: element {at} is {got[at]!r}, expected {want[at]!r}")
    return int(want.size) + 1  # the shape is compared as well


def _round_trip(dtype: DType, target: Target) -> Outcome:
    target.require(dtype)
    x = np.concatenate([tables.specials(dtype), tables.bits(tables.generator("t"), dtype, 255)])
    got = to_stored(from_stored(x, dtype, target.name))
    words = f"u{dtype.itemsize}"
    return Outcome(equal(got.view(words), x.view(words), "there and back"))


# ---- products ----------------------------------------------------------------------------------


def _matmul(dtype: DType, shapes: tuple[tuple[int, int, int], ...], target: Target) -> Outcome:
    target.require(dtype)
    rng = tables.generator(f"matmul/{dtype.name}")
    compared = 0
    for m, k, n in shapes:
        a, b = (_operand(rng, dtype, shape) for shape in ((m, k), (k, n)))
        got = to_stored(from_stored(a, dtype, target.name) @ from_stored(b, dtype, target.name))
        if got.shape != (m, n):
            raise Failure(f"{(m, k)} @ {(k, n)} has the shape {got.shape}")
        compared += check_product(got, a, b, dtype)
    return Outcome(compared)


def _operand(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> NDArray[Any]:
    if not dtype.is_float:
        return tables.bits(rng, dtype, int(np.prod(shape))).reshape(shape)
    return tables.numbers(rng.standard_normal(shape), dtype)


def check_product(got: NDArray[Any], a: NDArray[Any], b: NDArray[Any], dtype: DType) -> int:
    """``got`` (stored) against the product of two matrices, exact for integers, else bounded."""
    x, y = ulp.decode(a, dtype), ulp.decode(b, dtype)
    if not dtype.is_float:
        with np.errstate(over="ignore"):
            want = x.astype(np.int64) @ y.astype(np.int64)
        return equal(got, want.astype(dtype.storage), "product")
    interval = _product_interval(x, y, dtype)
    return oracle.within(got, interval, dtype).compared


def _product_interval(x: NDArray[Any], y: NDArray[Any], dtype: DType) -> oracle.Interval:
    exact, size = x @ y, np.abs(x) @ np.abs(y)
    extra = 2 * x.shape[1] if dtype is cg.float64 else 0  # the oracle's own roundings
    return oracle.bounded(exact, size, x.shape[1] + extra, accumulator(dtype), dtype)


def _special_products(target: Target) -> Outcome:
    """A product of 0 and infinity is NaN, also where a kernel pads its tiles."""
    a = np.ones((5, 7), np.float32)
    b = np.ones((7, 6), np.float32)
    a[0, 0], a[1, 2], a[2, 3], a[2, 4] = np.nan, np.inf, np.inf, -np.inf
    a[3, 1], b[1, 4] = 0.0, np.inf
    with np.errstate(all="ignore"):
        want = a @ b
    got = (Tensor(a, device=target.name) @ Tensor(b, device=target.name)).numpy()
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    if not same.all():
        at = tuple(np.argwhere(~same)[0])
        raise Failure(f"element {at} is {got[at]!r}, expected {want[at]!r}")
    return Outcome(want.size)


def _transposed(target: Target) -> Outcome:
    rng = tables.generator("transposed")
    a, b = (rng.integers(-9, 9, s).astype(np.int32) for s in ((3, 11, 5), (3, 7, 11)))
    x, y = Tensor(a, device=target.name), Tensor(b, device=target.name)
    compared = equal(
        (x.transpose(1, 2) @ y.transpose(1, 2)).numpy(), a.swapaxes(1, 2) @ b.swapaxes(1, 2), "both"
    )
    compared += equal((x[0].T @ y[0].T).numpy(), a[0].T @ b[0].T, "two of them")
    compared += equal((y @ x).numpy(), b @ a, "batched")
    compared += equal((y[:1] @ x).numpy(), b[:1] @ a, "one for all")
    compared += equal(((y @ x) * 2 + 1).numpy(), (b @ a) * 2 + 1, "with an epilogue")
    compared += equal(((y + 1) @ (x * 3)).numpy(), (b + 1) @ (a * 3), "with prologues")
    compared += equal((y[0] @ x[0, :, 0]).numpy(), b[0] @ a[0, :, 0], "with a vector")
    return Outcome(compared)


def _convolution(target: Target) -> Outcome:
    """Whole numbers, so that float32 is exact in any order."""
    rng = tables.generator("convolution")
    compared = 0
    for size, stride, pad, gap in (
        (3, 1, 0, 1),
        (3, 2, 1, 1),
        (2, 1, 1, 2),
        (1, 1, 0, 1),
        (5, 3, 2, 1),
    ):
        x = rng.integers(-4, 5, (2, 3, 11, 9)).astype(np.float32)
        w = rng.integers(-4, 5, (4, 3, size, size)).astype(np.float32)
        padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        reach = (size - 1) * gap + 1
        views = np.lib.stride_tricks.sliding_window_view(padded, (reach, reach), (2, 3))
        views = views[:, :, ::stride, ::stride, ::gap, ::gap]
        want = np.einsum("nchwij,ocij->nohw", views, w)
        a, b = Tensor(x, device=target.name), Tensor(w, device=target.name)
        got = a.conv2d(b, stride=stride, padding=pad, dilation=gap).numpy()
        compared += equal(got, want, f"kernel {size}, stride {stride}, padding {pad}, gap {gap}")
    return Outcome(compared)


# ---- corners -----------------------------------------------------------------------------------


def _empty(target: Target) -> Outcome:
    x = Tensor(np.zeros((0, 3), np.float32), device=target.name)
    y = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3), device=target.name)
    compared = equal((x * 2 + 1).numpy(), np.zeros((0, 3)), "arithmetic")
    compared += equal(x.sum(0).numpy(), np.zeros(3), "the sum of nothing")
    compared += equal(x.sum(1).numpy(), np.zeros(0), "no sums")
    compared += equal(x.prod(0).numpy(), np.ones(3), "the product of nothing")
    compared += equal(cg.cat([x, y, x]).numpy(), y.numpy(), "joined with nothing")
    compared += equal((y[:, :0] @ x[:, :2]).numpy(), np.zeros((2, 2)), "a product over nothing")
    compared += equal(y[2:].numpy(), np.zeros((0, 3)), "no rows")
    compared += equal(y[Tensor(np.zeros(0, np.int64), device=target.name)].numpy(),
                       np.zeros((0, 3)), "gathered rows")  # fmt: skip
    compared += equal(x.reshape(3, 0, 5).numpy(), np.zeros((3, 0, 5)), "reshaped")
    return Outcome(compared)


def _scalars(target: Target) -> Outcome:
    x = Tensor(np.array(5, np.int32), device=target.name)
    y = Tensor(np.arange(4, dtype=np.int32), device=target.name)
    compared = equal((x * x - 7).numpy(), np.array(18), "a number")
    compared += equal((x + y).numpy(), np.arange(4) + 5, "a number and a row")
    compared += equal(y.sum().numpy(), np.array(6), "a sum")
    compared += equal(y.argmax().numpy(), np.array(3), "an argmax")
    return Outcome(compared)


def _in_place(target: Target) -> Outcome:
    a = np.arange(10, dtype=np.int32)
    x = Tensor(a.copy(), device=target.name)
    before = x + 1
    x += 100
    x[2:5] = -1
    x[Tensor(np.array([7, 9]), device=target.name)] = 0
    want = a + 100
    want[2:5] = -1
    want[[7, 9]] = 0
    compared = equal(before.numpy(), a + 1, "what was made before")
    compared += equal(x.numpy(), want, "the changed tensor")
    a[:] = 0
    compared += equal(before.numpy(), np.arange(1, 11), "after the host's array changed")
    return Outcome(compared)


def _copy(target: Target) -> Outcome:
    """With the host in between; the other device is the reference, or else the host itself."""
    a = np.arange(33, dtype=np.float32)
    x = Tensor(a, device=target.name) * 2
    try:
        plugins.open_device(REFERENCE)
    except cg.errors.BackendUnavailable:
        back = Tensor(x.numpy() * 3, device=target.name)
        return Outcome(equal((back - 1).numpy(), a * 6 - 1, "to the host and back"))
    other = x.to(REFERENCE)
    compared = equal((other + 1).numpy(), a * 2 + 1, "elsewhere")
    back = (other * 3).to(target.name)
    if back.device != target.name:
        raise Failure(f"a copy to {target.name} is on {back.device}")
    return Outcome(compared + equal((back - 1).numpy(), a * 6 - 1, "and back"))


def _shared(target: Target) -> Outcome:
    a = np.arange(60, dtype=np.int32).reshape(5, 12)
    x = Tensor(a, device=target.name)
    rows = (x * 3).sum(1)
    columns = (x * 3).sum(0)
    largest = (x * 3).amax(1)
    spread = x * 3 - largest.unsqueeze(1)
    cg.realize(rows, columns, largest, spread)
    tripled = a * 3
    compared = equal(rows.numpy(), tripled.sum(1), "row sums")
    compared += equal(columns.numpy(), tripled.sum(0), "column sums")
    compared += equal(largest.numpy(), tripled.max(1), "maxima")
    return Outcome(compared + equal(spread.numpy(), tripled - tripled.max(1)[:, None], "rest"))


def _chain(target: Target) -> Outcome:
    a = np.arange(7, dtype=np.int32)
    x = Tensor(a, device=target.name)
    total = x
    for step in range(1000):
        total = total + (x ^ step)
    want = a.copy()
    for step in range(1000):
        want = want + (a ^ step)
    return Outcome(equal(total.numpy(), want, "the end of the chain"))


def _index_error(target: Target) -> Outcome:
    """By the error word: what is wrong is seen on the device alone."""
    x = Tensor(np.arange(5, dtype=np.int32), device=target.name)
    compared = 0
    for places, fits in (([0, 4, -5], True), ([0, 5], False), ([-6], False), ([4, 1 << 40], False)):
        index = Tensor(np.array(places, np.int64), device=target.name) + 0
        try:
            got = x[index].numpy()
        except cg.errors.IndexRangeError:
            if fits:
                raise Failure(f"the indices {places} were refused", "exception") from None
            compared += 1
            continue
        if not fits:
            raise Failure(f"the indices {places} of 5 elements raised nothing", "exception")
        compared += equal(got, np.arange(5)[places], "in range")
    return Outcome(compared)
