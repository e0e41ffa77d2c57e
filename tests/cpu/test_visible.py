"""What is shown is what runs, and what is one expression is one kernel.

Kernels are counted where they arrive, at the device: `DEBUG` and the engine's own lists are what
is tested here, not what is believed.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coregrad import Tensor, dtypes, engine, nn, plugins
from coregrad.ir import emit, kernel
from coregrad.ir.target import Hooks

KERNEL_LINE = re.compile(
    r"(?P<device>\S+) +(?P<name>\S+) +(?P<us>[\d.]+) us +(?P<flops>[\d.]+) GFLOP/s"
    r" +(?P<bytes>[\d.]+) GB/s"
)
REALIZE_LINE = re.compile(r"\S+: \d+ kernels for \d+ results")


@dataclass
class Watched:
    """What reached a device: kernels given to its hooks, programs compiled, programs launched."""

    kernels: list[str] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)
    launched: list[str] = field(default_factory=list)
    allocated: list[int] = field(default_factory=list)

    @property
    def launches(self) -> int:
        return len(self.launched)


@pytest.fixture
def watched(device: str, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Records a device's work; every plan is made anew."""
    active = plugins.open_device(device)
    seen = Watched()
    texts: dict[int, tuple[Any, str]] = {}
    right = SimpleNamespace(
        emit=emit.emit,
        compile=active.device.compile,
        launch=active.device.launch,
        allocate=active.device.allocate,
    )

    def spy_emit(made: kernel.Kernel, backend: Any, hooks: Hooks, *rest: Any) -> Any:
        seen.kernels.append(str(made))
        if hooks.style == "eager":  # it runs while it is emitted
            seen.launched.append(str(made))
        return right.emit(made, backend, hooks, *rest)

    def spy_compile(program: Any) -> Any:
        seen.programs.append(program)
        compiled = right.compile(program)
        texts[id(compiled)] = compiled, program
        return compiled

    def spy_launch(compiled: Any, buffers: Any, grid: int) -> None:
        seen.launched.append(texts[id(compiled)][1])
        right.launch(compiled, buffers, grid)

    def spy_allocate(nbytes: int) -> Any:
        seen.allocated.append(nbytes)
        return right.allocate(nbytes)

    monkeypatch.setattr(engine, "_plans", {})
    monkeypatch.setattr(emit, "emit", spy_emit)
    monkeypatch.setattr(active.device, "compile", spy_compile)
    monkeypatch.setattr(active.device, "launch", spy_launch)
    monkeypatch.setattr(active.device, "allocate", spy_allocate)
    return seen


cpu_only = pytest.mark.parametrize("device", ["cpu"], indirect=True)


def normal(device: str, *shape: int, seed: int = 0) -> tuple[Tensor, Any]:
    """A tensor, and its values in double precision."""
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return Tensor(values, device=device), values.astype(np.float64)


# ---- one expression, one kernel ------------------------------------------------------------------


@cpu_only
def test_a_matrix_product_of_1024_spelled_out_is_one_kernel(device: str, watched: Watched) -> None:
    n = 1024
    (a, wide_a), (b, wide_b) = normal(device, n, n), normal(device, n, n, seed=1)
    watched.allocated.clear()
    c = (a.reshape(n, 1, n) * b.T.reshape(1, n, n)).sum(axis=2)
    found = c.numpy()
    assert watched.launches == 1
    assert watched.allocated == [n * n * 4]  # nothing but the result; the product has 4 GiB
    np.testing.assert_allclose(found, wide_a @ wide_b, rtol=1e-4, atol=1e-3)


def test_a_chain_of_elementwise_operations_is_one_kernel(device: str, watched: Watched) -> None:
    x, wide = normal(device, 300, 70)
    watched.allocated.clear()
    found = (x * 2 + 1).relu().numpy()
    assert watched.launches == 1
    assert watched.allocated == [found.nbytes]
    np.testing.assert_allclose(found, np.maximum(wide * 2 + 1, 0), rtol=1e-6, atol=1e-6)


def _wide_softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _wide_norm(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


SHAPES = [(40, 65), (2, 3, 4, 128), (1000,), (7, 1), (1, 4096), (512, 10)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_softmax_over_the_last_axis_is_one_kernel(
    device: str, watched: Watched, shape: tuple[int, ...]
) -> None:
    x, wide = normal(device, *shape)
    found = x.softmax(-1).numpy()
    assert watched.launches == 1
    np.testing.assert_allclose(found, _wide_softmax(wide), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layer_norm_over_the_last_axis_is_one_kernel(
    device: str, watched: Watched, shape: tuple[int, ...]
) -> None:
    x, wide = normal(device, *shape)
    found = x.layer_norm(shape[-1]).numpy()
    assert watched.launches == 1
    np.testing.assert_allclose(found, _wide_norm(wide), rtol=1e-4, atol=1e-5)


def _spelled_softmax(x: Tensor) -> Tensor:
    powers = (x - x.amax(axis=-1, keepdims=True)).exp()
    return powers / powers.sum(axis=-1, keepdims=True)


def _spelled_norm(x: Tensor) -> Tensor:
    centred = x - x.mean(axis=-1, keepdim=True)
    return centred / ((centred * centred).mean(axis=-1, keepdim=True) + 1e-5).sqrt()


def test_softmax_and_layer_norm_spelled_out_are_one_kernel_too(
    device: str, watched: Watched
) -> None:
    x, wide = normal(device, 33, 50)
    np.testing.assert_allclose(_spelled_softmax(x).numpy(), _wide_softmax(wide), rtol=1e-5)
    assert watched.launches == 1
    np.testing.assert_allclose(_spelled_norm(x).numpy(), _wide_norm(wide), rtol=1e-4, atol=1e-5)
    assert watched.launches == 2


def test_names_that_are_still_held_do_not_break_a_kernel(device: str, watched: Watched) -> None:
    x, wide = normal(device, 33, 50)
    largest = x.amax(axis=-1, keepdim=True)
    powers = (x - largest).exp()
    total = powers.sum(axis=-1, keepdim=True)
    np.testing.assert_allclose((powers / total).numpy(), _wide_softmax(wide), rtol=1e-5)
    assert watched.launches == 1
    mean = x.mean(axis=-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdim=True)
    norm = (x - mean) / (variance + 1e-5).sqrt()
    np.testing.assert_allclose(norm.numpy(), _wide_norm(wide), rtol=1e-4, atol=1e-5)
    assert watched.launches == 2
    np.testing.assert_array_equal(largest.numpy(), wide.max(-1, keepdims=True))
    np.testing.assert_allclose(variance.numpy(), wide.var(-1, keepdims=True), rtol=1e-4)


def test_a_matrix_product_that_is_still_held_is_not_done_again(
    device: str, watched: Watched
) -> None:
    (x, _), (w, _) = normal(device, 64, 32), normal(device, 32, 10, seed=1)
    scores = x @ w
    scores.log_softmax(-1).sum().realize()
    first = watched.launches
    scores.numpy()
    assert watched.launches == first


def test_the_layer_with_weight_and_bias_is_one_kernel(device: str, watched: Watched) -> None:
    layer = nn.LayerNorm(50, device=device)
    weight, wide_weight = normal(device, 50, seed=1)
    bias, wide_bias = normal(device, 50, seed=2)
    assert layer.weight is not None
    assert layer.bias is not None
    layer.weight.assign(weight)
    layer.bias.assign(bias)
    x, wide = normal(device, 33, 50)
    found = layer(x).numpy()
    assert watched.launches == 1
    wanted = _wide_norm(wide) * wide_weight + wide_bias
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_linear_layer_with_bias_and_relu_is_one_kernel(device: str, watched: Watched) -> None:
    (x, wide_x), (w, wide_w) = normal(device, 64, 48), normal(device, 32, 48, seed=1)
    b, wide_b = normal(device, 32, seed=2)
    found = x.linear(w, b).relu().numpy()
    assert watched.launches == 1
    wanted = np.maximum(wide_x @ wide_w.T + wide_b, 0)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", [5, 64, 100])
def test_a_matrix_product_has_one_kernel_however_it_is_written(
    device: str, watched: Watched, n: int
) -> None:
    (a, wide_a), (b, wide_b) = normal(device, n, n), normal(device, n, n, seed=1)
    ways: list[Callable[[], Tensor]] = [
        lambda: a @ b,
        lambda: a.matmul(b),
        lambda: (a.reshape(n, 1, n) * b.T.reshape(1, n, n)).sum(axis=2),
        lambda: (a.unsqueeze(2) * b.unsqueeze(0)).sum(axis=1),
        lambda: Tensor.einsum("ij,jk->ik", a, b),
    ]
    for way in ways:
        np.testing.assert_allclose(way().numpy(), wide_a @ wide_b, rtol=1e-4, atol=1e-4)
    assert watched.launches == len(ways)
    assert len(set(watched.launched)) == 1


# ---- fusion can be taken away, and is missed -----------------------------------------------------

EXPRESSIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "map": lambda x: (x * 2 + 1).relu(),
    "softmax": lambda x: x.softmax(-1),
    "layer norm": lambda x: x.layer_norm(x.shape[-1]),
    "matmul": lambda x: (x @ x.T).relu(),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_without_fusion_there_are_more_kernels_and_the_same_values(
    device: str, watched: Watched, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    x, _ = normal(device, 20, 30)
    fused = EXPRESSIONS[name](x).numpy()
    assert watched.launches == 1
    monkeypatch.setenv("COREGRAD_FUSION", "0")
    apart = EXPRESSIONS[name](x).numpy()
    assert watched.launches >= 1 + 2, "each operation should have had a kernel of its own"
    np.testing.assert_allclose(apart, fused, rtol=1e-5, atol=1e-6)


def test_without_fusion_an_elementwise_chain_keeps_every_bit(
    device: str, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, _ = normal(device, 1000)
    fused = ((x * 3 + x).exp() / 7).numpy()
    monkeypatch.setenv("COREGRAD_FUSION", "0")
    apart = ((x * 3 + x).exp() / 7).numpy()
    assert watched.launches == 1 + 4
    np.testing.assert_array_equal(fused, apart)


# ---- DEBUG ---------------------------------------------------------------------------------------


def _kernel_lines(text: str) -> list[dict[str, str]]:
    found = map(KERNEL_LINE.fullmatch, text.splitlines())
    return [match.groupdict() for match in found if match]


def test_debug_0_prints_nothing(
    device: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DEBUG", raising=False)
    (normal(device, 10)[0] * 2).numpy()
    assert capsys.readouterr() == ("", "")


def test_debug_2_prints_one_line_per_kernel(
    device: str,
    watched: Watched,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DEBUG", "2")
    monkeypatch.setenv("COREGRAD_FUSION", "0")
    x, _ = normal(device, 12, 34)
    for _ in range(2):  # the second time nothing is compiled, and the lines are there again
        watched.launched.clear()
        (x * 2 + 1).relu().numpy()
        lines = capsys.readouterr().err.splitlines()
        rows = _kernel_lines("\n".join(lines))
        assert len(rows) == watched.launches == 3
        assert all(row["device"] == device and "12x34" in row["name"] for row in rows)
        assert all(float(row["us"]) > 0 for row in rows)
        others = [line for line in lines if not KERNEL_LINE.fullmatch(line)]
        assert len(others) == 1
        assert REALIZE_LINE.fullmatch(others[0])


def test_debug_2_counts_operations_and_bytes_correctly(
    device: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    m, n, k = 120, 100, 110
    (a, _), (b, _) = normal(device, m, k), normal(device, k, n, seed=1)
    ticks = iter(float(i) / 1000 for i in range(1000))
    monkeypatch.setattr(engine, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    monkeypatch.setenv("DEBUG", "2")
    (a @ b).numpy()
    (row,) = _kernel_lines(capsys.readouterr().err)
    assert f"{m}x{n}" in row["name"]
    assert f"k{k}" in row["name"]
    assert float(row["us"]) == 1000
    assert float(row["flops"]) == pytest.approx(2 * m * n * k / 1e6, abs=0.01)
    assert float(row["bytes"]) == pytest.approx(4 * (m * k + k * n + m * n) / 1e6, abs=0.01)


def _program(x: Tensor) -> Tensor:
    """Two kernels: a row's softmax can be fused into neither matrix product."""
    return (x @ x.T).softmax(-1) @ x


def test_debug_3_shows_exactly_the_kernels_that_run(
    device: str,
    watched: Watched,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, _ = normal(device, 40, 50)
    monkeypatch.setenv("DEBUG", "3")
    _program(x).numpy()
    err = capsys.readouterr().err
    assert watched.launches >= 2
    shown = "".join(text + "\n" for text in watched.kernels)
    assert err.startswith(shown)
    assert len(_kernel_lines(err[len(shown) :])) == watched.launches
    assert "softmax" not in shown  # a kernel is made of ops and loops, not of names of functions
    assert all(word in shown for word in ("for i0 in 40", "exp %", "load in1[", "store out0["))


@cpu_only
def test_debug_4_shows_exactly_the_source_that_is_compiled_and_launched(
    device: str,
    watched: Watched,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, _ = normal(device, 40, 50)
    monkeypatch.setenv("DEBUG", "4")
    _program(x).numpy()
    err = capsys.readouterr().err
    both = zip(watched.kernels, watched.programs, strict=True)
    shown = "".join(f"{ir}\n{program}\n" for ir, program in both)
    assert err.startswith(shown)
    assert watched.launched == watched.programs
    assert "define" in shown


def test_debug_works_for_a_whole_program_and_leaves_its_output_alone() -> None:
    code = (
        "from coregrad import Tensor\n"
        "x = Tensor([[1.0, 2.0], [3.0, 4.0]])\n"
        "print((x * 2 + 1).relu().tolist())\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", code],
        env={**_environment(), "DEBUG": "3"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert child.stdout == "[[3.0, 5.0], [7.0, 9.0]]\n"
    assert len(_kernel_lines(child.stderr)) == 1
    assert "\n  for i0 in " in child.stderr


def _environment() -> dict[str, str]:
    """This process's environment, with its path to modules."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


# ---- what is computed once -----------------------------------------------------------------------


def test_a_loss_and_its_gradients_share_the_forward_pass(device: str, watched: Watched) -> None:
    x, wide = normal(device, 64, 32)
    w = Tensor(np.ones((32, 16), np.float32), device=device, requires_grad=True)
    loss = (x @ w).tanh().square().sum()
    loss.backward()
    assert w.grad is not None
    loss.realize(w.grad)
    first = watched.launches
    assert float(loss) == pytest.approx(np.square(np.tanh(wide @ np.ones((32, 16)))).sum(), 1e-4)
    w.grad.numpy()
    assert watched.launches == first  # both were there


def test_views_cost_no_kernel_and_no_memory(device: str, watched: Watched) -> None:
    x, wide = normal(device, 6, 8, 10)
    watched.allocated.clear()
    y = x.permute(2, 0, 1).reshape(5, 2, 48)[1:4].flip(0).unsqueeze(1) + 0.5
    found = y.numpy()
    assert watched.launches == 1
    large = [size for size in watched.allocated if size > 4]  # beside where the slice begins
    assert large == [math.prod(y.shape) * dtypes.float32.itemsize]
    wanted = wide.transpose(2, 0, 1).reshape(5, 2, 48)[1:4][::-1][:, None] + 0.5
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
