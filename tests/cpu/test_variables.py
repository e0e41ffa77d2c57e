"""Variables: one compiled program for every length, position and number up to a maximum.

The oracle is NumPy in float64, computed with arrays of the very length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from workgroups import NAMES, Groups64, Registers, register

from coregrad import PartialTensor, Tensor, Variable, jit, plugins
from coregrad.errors import CaptureError, IndexRangeError, ShapeError
from coregrad.ir import ops
from coregrad.ir.kernel import INDEX, Instr, Kernel, Loop

HEADS, CAPACITY, SIZE = 3, 64, 16
PLACE = Variable("place", 0, CAPACITY - 1)
N = Variable("n", 1, 8)


def floats(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ---- decoding ------------------------------------------------------------------------------------


class Decoder:
    """Attention of one query over a cache that grows by a token per call."""

    def __init__(self, device: str, capacity: int = CAPACITY) -> None:
        self.embedding = Tensor(table(capacity), device=device)
        unknown = np.full((1, HEADS, capacity, SIZE), np.nan, np.float32)  # never to be seen
        self.keys, self.values = (Tensor(unknown, device=device) for _ in range(2))

    def step(self, x: Tensor, n: Any) -> tuple[Tensor, Tensor, Tensor]:
        x = x + self.embedding[n]
        q = x.reshape(1, HEADS, 1, SIZE)
        self.keys[:, :, n : n + 1] = q * 0.5
        self.values[:, :, n : n + 1] = q * 2
        keys, values = self.keys[:, :, : n + 1], self.values[:, :, : n + 1]
        weights = ((q @ keys.transpose(-1, -2)) * SIZE**-0.5).softmax(-1)
        out = (weights @ values).reshape(1, HEADS * SIZE)
        return out, weights.argmax(-1), out * (n + 1)


def table(capacity: int) -> Any:
    """What is added to a token at each place."""
    return floats(capacity, HEADS * SIZE, seed=5)


def wanted_of(past: list[Any], x: Any) -> tuple[Any, Any]:
    """What the decoder should say to a token, of which ``past`` is told."""
    q = (x.astype(np.float64) + table(CAPACITY)[len(past)]).reshape(HEADS, SIZE)
    past.append(q)
    known = np.stack(past, 1)
    scores = np.einsum("hd,hnd->hn", q, 0.5 * known) * SIZE**-0.5
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    return np.einsum("hn,hnd->hd", weights, 2 * known), weights.argmax(-1)


def decode(device: str, lengths: Sequence[int]) -> Any:
    """Decode token after token, comparing each with the oracle; the captured function."""
    decoder = Decoder(device)
    step = jit(decoder.step)
    past: list[Any] = []
    for n in lengths:
        x = floats(1, HEADS * SIZE, seed=n)
        out, best, scaled = step(Tensor(x, device=device), PLACE.bind(n))
        wanted, first = wanted_of(past, x)
        np.testing.assert_allclose(out.numpy().reshape(HEADS, SIZE), wanted, rtol=1e-3, atol=1e-5)
        np.testing.assert_array_equal(best.numpy().reshape(HEADS), first)
        np.testing.assert_allclose(scaled.numpy(), out.numpy() * (n + 1), rtol=1e-6)
    return step


def test_one_program_decodes_every_length(device: str, compiled: list[int]) -> None:
    step = decode(device, range(CAPACITY))
    assert (step.captures, len(compiled)) == (1, 1)


@pytest.fixture(params=[NAMES[Groups64], NAMES[Registers]])
def grouped(request: pytest.FixtureRequest) -> Iterator[str]:
    """Devices of many threads, with and without local memory."""
    register()
    yield request.param
    for name in NAMES.values():
        plugins.unregister(name)


def test_devices_of_many_threads_decode_alike(grouped: str) -> None:
    assert decode(grouped, range(5)).captures == 1


def test_a_plain_loop_compiles_as_little(device: str, compiled: list[int]) -> None:
    x = floats(4, 8)
    data = Tensor(x, device=device)
    counts = []
    for i in range(1, 9):
        n = N.bind(i)
        got = (data[:, :n] * n).sum(1).numpy()
        np.testing.assert_allclose(got, (x[:, :i] * np.float64(i)).sum(1), rtol=1e-5, atol=1e-5)
        counts.append(len(compiled))
    assert counts == [1] * 8


# ---- what it costs -------------------------------------------------------------------------------


def operations(kernel: Kernel, numbers: dict[Any, int]) -> int:
    """How many values a kernel computes when its integer inputs hold ``numbers`` (by parameter),
    its loops being walked as they are written."""

    def number(instr: Instr, at: dict[Any, int]) -> Any:
        args = [number(a, at) for a in instr.args]
        if instr.op is ops.CONST:
            return instr.attr - (1 << 64 if instr.attr >> 63 else 0)
        if instr.op is ops.LOAD:
            return numbers[instr.attr[0]]
        if instr.op is INDEX:
            return instr.attr.evaluate(at)
        if instr.op is ops.CAST:
            return args[0]
        if instr.op is ops.WHERE:
            return args[1] if args[0] else args[2]
        assert instr.op.python is not None
        return instr.op.python(*args)

    def block(body: Sequence[Any], at: dict[Any, int]) -> int:
        total = 0
        for stmt in body:
            if isinstance(stmt, Loop):
                end = stmt.var.extent
                if stmt.limit is not None:
                    end = min(end, max(0, number(stmt.limit, at)))
                total += sum(block(stmt.body, {**at, stmt.var: i}) for i in range(end))
            else:
                total += isinstance(stmt, Instr)
        return total

    return block(kernel.body, {})


def test_the_cost_of_attention_follows_the_length(kernels: list[Kernel]) -> None:
    """By the loops of the kernels that look at the cache: a cache of 1024 that holds 8 elements
    costs a small part of a full one."""
    capacity = 1024
    decoder = Decoder("cpu", capacity)
    place = Variable("place", 0, capacity - 1)

    def attention(q: Tensor, n: Any) -> Tensor:
        keys, values = decoder.keys[:, :, : n + 1], decoder.values[:, :, : n + 1]
        return ((q @ keys.transpose(-1, -2)) * SIZE**-0.5).softmax(-1) @ values

    q = Tensor(floats(1, HEADS, 1, SIZE), device="cpu")
    jit(attention)(q, place.bind(7))
    costs = {}
    for n in (8, 1024):
        total = 0
        for kernel in kernels:
            given = {p: n - 1 for p in kernel.params if p.dtype.is_int and p.size == 1}
            total += operations(kernel, given)
        costs[n] = total
    assert costs[1024] > 1024 * HEADS * SIZE * 2 * 3  # two products: loads, masks and sums
    assert costs[8] * 8 < costs[1024]
    limited = [s for k in kernels for s in _loops(k.body) if s.limit is not None]
    assert len(limited) >= 4  # scores, their maximum, the sum of powers, the weighted sum


def _loops(body: Sequence[Any]) -> Iterator[Loop]:
    for stmt in body:
        if isinstance(stmt, Loop):
            yield stmt
            yield from _loops(stmt.body)


# ---- what parts of varying length can do ---------------------------------------------------------

FOLDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "sum": (lambda x: x.sum(1), lambda x: x.sum(1)),
    "sum of everything": (lambda x: x.sum(), lambda x: x.sum()),
    "sum of another axis": (lambda x: x.sum(0).amax(), lambda x: x.sum(0).max()),
    "mean": (lambda x: x.mean(1), lambda x: x.mean(1)),
    "mean of everything": (lambda x: x.mean(), lambda x: x.mean()),
    "amax": (lambda x: x.amax(1, True), lambda x: x.max(1, keepdims=True)),
    "amin": (lambda x: x.amin(1), lambda x: x.min(1)),
    "argmax": (lambda x: x.argmax(1), lambda x: x.argmax(1)),
    "product": (lambda x: x @ x.T, lambda x: x @ x.T),
    "product to a varying size": (lambda x: (x.T @ x).amax(), lambda x: (x.T @ x).max()),
    "arithmetic": (lambda x: (2 - x * 3 + x / 4).exp().sum(1),
                   lambda x: np.exp(2 - x * 3 + x / 4).sum(1)),
    "a column beside it": (lambda x: (x - x.mean(1, True)).square().sum(1),
                           lambda x: np.square(x - x.mean(1, keepdims=True)).sum(1)),
    "a new axis": (lambda x: x.unsqueeze(1).permute(2, 0, 1).sum(0), lambda x: x.sum(1)[:, None]),
    "a comparison": (lambda x: (x > 0).sum(1), lambda x: (x > 0).sum(1)),
    "log_softmax": (lambda x: x.log_softmax(1).sum(1),
                    lambda x: (x - np.log(np.exp(x).sum(1, keepdims=True))).sum(1)),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDS)
def test_what_is_folded_is_what_is_there(device: str, name: str) -> None:
    ours, numpys = FOLDS[name]
    x = floats(5, 8)
    x[:, 4:] = np.inf  # beyond the longest length that is used: never to be seen
    data = Tensor(x, device=device)
    captured = jit(lambda data, n: ours(data[:, :n]))
    for i in (1, 3, 4):
        got = captured(data, N.bind(i)).numpy()
        wanted = numpys(x[:, :i].astype(np.float64))
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    assert captured.captures == 1


def test_the_elements_that_are_there_can_be_read(device: str) -> None:
    x = floats(4, 12)
    part = Tensor(x, device=device)[1:3, 2 : N.bind(3) + 4] * 2
    assert isinstance(part, PartialTensor)
    assert str(part.shape) == "(2, n + 2)"
    assert (part.ndim, part.dtype, part.device) == (2, Tensor(x).dtype, device)
    np.testing.assert_array_equal(part.numpy(), x[1:3, 2:7] * 2)
    np.testing.assert_allclose(part.softmax(1).numpy().sum(1), [1, 1], rtol=1e-6)


def test_writes_at_a_variable_leave_the_rest(device: str, compiled: list[int]) -> None:
    x = floats(10, 4)
    data = Tensor(x, device=device)

    @jit
    def write(n: Any) -> None:
        data[n, 1:3] = data[n + 1, 1:3] + n

    for i in (1, 5, 8):
        write(N.bind(i))
        x[i, 1:3] = x[i + 1, 1:3] + i
        np.testing.assert_allclose(data.numpy(), x, rtol=1e-6)
    assert (write.captures, len(compiled)) == (1, 1)


def test_gradients_pass_through_a_part(device: str) -> None:
    x, seed = floats(3, 8), floats(3, 8, seed=1)
    for i in (2, 7):
        n = N.bind(i)
        parameter = Tensor(x, device=device, requires_grad=True)
        weights = parameter[:, :n].softmax(1)
        (weights * Tensor(seed, device=device)[:, :n]).sum().backward()
        powers = np.exp(x[:, :i].astype(np.float64))
        p = powers / powers.sum(1, keepdims=True)
        wanted = np.zeros((3, 8))
        wanted[:, :i] = p * (seed[:, :i] - (p * seed[:, :i]).sum(1, keepdims=True))
        assert parameter.grad is not None
        np.testing.assert_allclose(parameter.grad.numpy(), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_attention_to_keys_whose_number_varies(device: str, dtype: str) -> None:
    q, k, v = floats(2, 3, 4), floats(2, 8, 4, seed=1), floats(2, 8, 5, seed=2)
    k[:, 6:], v[:, 6:] = np.nan, np.inf
    keys, values = (Tensor(x, device=device).cast(dtype) for x in (k, v))
    query = Tensor(q, device=device).cast(dtype)

    @jit
    def attend(query: Tensor, n: Any) -> Tensor:
        return query.scaled_dot_product_attention(keys[:, :n], values[:, :n])

    for i in (1, 4, 6):
        scores = np.exp(np.einsum("bqd,bkd->bqk", q, k[:, :i].astype(np.float64)) / 2)
        wanted = scores / scores.sum(-1, keepdims=True) @ v[:, :i]
        got = attend(query, N.bind(i))
        assert got.dtype is query.dtype
        tolerance = 1e-4 if dtype == "float32" else 1e-2
        np.testing.assert_allclose(got.float().numpy(), wanted, rtol=tolerance, atol=tolerance)
    assert attend.captures == 1
    with pytest.raises(ShapeError, match="take no attn_mask"):
        query.scaled_dot_product_attention(keys[:, : N.bind(3)], values, is_causal=True)
    with pytest.raises(ShapeError, match="are of one length"):
        query.scaled_dot_product_attention(keys[:, : N.bind(3)], values)


def test_numbers_stand_in_arithmetic(device: str) -> None:
    x = floats(4)
    table: list[tuple[Callable[[Any, Any], Any], Callable[[Any, int], Any]]] = [
        (lambda t, n: t * n + 1, lambda a, n: a * n + 1),
        (lambda t, n: n - t, lambda a, n: n - a),
        (lambda t, n: t / (n + 1), lambda a, n: a / (n + 1)),
        (lambda t, n: n / t, lambda a, n: n / a),
        (lambda t, n: t < n, lambda a, n: a < n),
        (lambda t, n: n <= t, lambda a, n: n <= a),
        (lambda t, n: (t * 0 + 3) == n, lambda a, n: (a * 0 + 3) == n),
        (lambda t, n: (t * 0 + 3) != n, lambda a, n: (a * 0 + 3) != n),
    ]
    for ours, numpys in table:
        captured = jit(ours)
        for i in (1, 3, 8):
            got = captured(Tensor(x, device=device), N.bind(i)).numpy()
            np.testing.assert_allclose(got, numpys(x.astype(np.float64), i), rtol=1e-5)
        assert captured.captures == 1


# ---- what raises ---------------------------------------------------------------------------------


def test_values_and_ranges_are_checked() -> None:
    with pytest.raises(IndexRangeError, match="9 is no value of n, which goes from 1 to 8"):
        N.bind(9)
    with pytest.raises(IndexRangeError, match="begin at 0 or more"):
        Variable("m", -1, 3)
    x = Tensor(floats(6, 4))
    n = N.bind(2)
    with pytest.raises(IndexRangeError, match="1 to 8, do not lie inside axis 0 of 6"):
        x[n]
    with pytest.raises(IndexRangeError, match="axis 0 of 6"):
        x[:n]
    with pytest.raises(ShapeError, match="no length that is known"):
        x[n:]
    with pytest.raises(ShapeError, match="has a length that varies"):
        Tensor(floats(8))[:n] = 1.0


@pytest.mark.parametrize(
    "use",
    [
        lambda part: part.reshape(-1),
        lambda part: part[0],
        lambda part: len(part),
        lambda part: part.var(),
        lambda part: part.flip(1),
        lambda part: part.cumsum(1),
        lambda part: part.sort(1),
        lambda part: part.numel(),
        lambda part: Tensor(floats(4, 8)) + part,
        lambda part: part * Tensor(floats(8)),
        lambda part: Tensor(floats(2, 8)) @ part.T,
        lambda part: Tensor(floats(4, 8)).add(part),
        lambda part: part.mul(part),
        lambda part: Tensor(part),
        lambda part: part.std(1),
        lambda part: part.norm(),
        lambda part: part.chunk(2),
        lambda part: part.flatten(),
    ],
)
def test_what_would_show_absent_elements_raises(use: Callable[[Any], Any]) -> None:
    with pytest.raises(ShapeError):
        use(Tensor(floats(4, 8))[:, : N.bind(3)])


def test_a_part_is_no_result_and_no_argument_of_a_captured_function() -> None:
    x = Tensor(floats(8))
    with pytest.raises(ShapeError, match="whose length varies, cannot be used here"):
        jit(lambda x, n: x[:n])(x, N.bind(2))
    with pytest.raises(ShapeError, match="whose length varies, cannot be used here"):
        jit(lambda part: part.sum())(x[: N.bind(2)])


def test_a_captured_function_uses_the_variables_it_is_given() -> None:
    x = Tensor(floats(8))
    n = N.bind(2)
    with pytest.raises(CaptureError, match="uses n, which it has not been given"):
        jit(lambda x: x[:n].sum())(x)
    with pytest.raises(CaptureError, match="given two values of n"):
        jit(lambda x, a, b: x[:a].sum() + x[:b].sum())(x, n, N.bind(3))
    with pytest.raises(CaptureError, match="looks at the value of n"):
        jit(lambda x, n: x * int(n))(x, n)
    with pytest.raises(CaptureError, match="looks at a value"):
        jit(lambda x, n: x * float(x[:n].numpy()[0]))(x, n)


def test_a_variable_of_another_range_is_another_capture() -> None:
    x = Tensor(floats(8))
    captured = jit(lambda x, n: x[:n].sum())
    for variable in (N, Variable("n", 1, 5), Variable("m", 1, 8)):
        got = captured(x, variable.bind(4)).item()
        np.testing.assert_allclose(got, floats(8)[:4].sum(), rtol=1e-5)
    assert captured.captures == 3
