"""Tiled contractions against NumPy in float64: every role, prologue, epilogue and edge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coregrad import dtypes
from coregrad.dtypes import DType, float16, float32, float64, int32, to_bits
from coregrad.hookspecs import Header, Hooks
from coregrad.ir import index as ix
from coregrad.ir import ops
from coregrad.ir.emit import Emitter
from coregrad.ir.index import Index, Opaque, Var
from coregrad.ir.kernel import (
    INDEX,
    RESULT,
    Accumulator,
    Contraction,
    Instr,
    Kernel,
    Param,
    Store,
)
from coregrad.ir.ops import CONTRACT_OPS, Op

pytest.importorskip("llvmlite")

from coregrad_cpu.llvm.backend import Backend
from coregrad_cpu.llvm.contraction import Machine, contraction, tree
from coregrad_cpu.llvm.contraction import plan as planning
from coregrad_cpu.llvm.contraction.plan import Plan, choose
from coregrad_cpu.llvm.target import vector_bytes

BACKEND = Backend()
HOOKS = Hooks("render", {op: getattr(BACKEND, f"lower_{op}") for op in CONTRACT_OPS})
DEVICE = BACKEND.open_device(0)
MACHINE = Machine(vector_bytes(), 32 if vector_bytes() != 32 else 16, 2)


@pytest.fixture(autouse=True, scope="module")
def small_products_too() -> Iterator[None]:
    """Small products are left to the loops as a rule; here they are quick to check."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("LEAST_STEPS", "LEAST_PRODUCT", "LEAST_WORK", "LEAST_ROWS"):
            patch.setattr(planning, name, 0)
        yield


# ---- a small language for kernels ---------------------------------------------------------------


def instr(op: Op, dtype: DType, *args: Instr, attr: Any = None) -> Instr:
    free = frozenset().union(*(a.vars for a in args))
    if op is ops.LOAD:
        free |= attr[1].vars
    if op is INDEX:
        free |= attr.vars
    return Instr(op, dtype, args, attr, free)


def load(param: Param, index: Index, gate: Instr | None = None) -> Instr:
    return instr(ops.LOAD, param.dtype, *((gate,) if gate else ()), attr=(param, index))


def const(value: float, dtype: DType = float32) -> Instr:
    return instr(ops.CONST, dtype, attr=to_bits(value, dtype))


def relu(x: Instr) -> Instr:
    negative = instr(ops.LT, dtypes.bool_, x, const(0, x.dtype))
    return instr(ops.WHERE, x.dtype, negative, const(0, x.dtype), x)


def add(a: Instr, b: Instr) -> Instr:
    return instr(ops.ADD, a.dtype, a, b)


def mul(a: Instr, b: Instr) -> Instr:
    return instr(ops.MUL, a.dtype, a, b)


def inside(index: Index, length: int) -> Instr:
    value = instr(INDEX, dtypes.int64, attr=index)
    low = instr(ops.LT, dtypes.bool_, const(-1, dtypes.int64), value)
    high = instr(ops.LT, dtypes.bool_, value, const(length, dtypes.int64))
    return instr(ops.AND, dtypes.bool_, low, high)


def flat(shape: tuple[int, ...], *indices: Index | Var) -> Index:
    return ix.flatten([ix.variable(i) if isinstance(i, Var) else i for i in indices], shape)


def param(name: str, shape: tuple[int, ...], dtype: DType = float32, role: str = "in") -> Param:
    return Param(name, dtype, int(np.prod(shape)), role)


def product(
    batch: tuple[Var, ...],
    m: tuple[Var, ...],
    n: tuple[Var, ...],
    k: tuple[Var, ...],
    a: Instr,
    b: Instr,
    dtype: DType = float32,
) -> tuple[Contraction, Instr]:
    """A contraction without stores, and the RESULT for them."""
    acc = Accumulator("a0", "add", dtype)
    result = Instr(RESULT, dtype, (), (acc, 0), frozenset((*batch, *m, *n)))
    return Contraction(batch, m, n, k, a, b, acc, result, ()), result


def storing(c: Contraction, *stores: Store) -> Contraction:
    return Contraction(c.batch, c.m, c.n, c.k, c.a, c.b, c.acc, c.result, stores)


@dataclass
class Run:
    outputs: dict[str, np.ndarray]
    plan: Plan
    text: str


def run(c: Contraction, arrays: dict[str, np.ndarray], machine: Machine = MACHINE) -> Run:
    """Compile and launch; arrays by parameter name, outputs start as NaN."""
    params: list[Param] = [s.target for s in c.stores if isinstance(s.target, Param)]
    seen = [c.a, c.b, *(s.value for s in c.stores), *(s.gate for s in c.stores if s.gate)]
    for at in tree.walk(seen):
        if at.op is ops.LOAD and at.attr[0] not in params:
            params.append(at.attr[0])
    kernel = Kernel("contraction", tuple(params), [], c)
    frame = BACKEND.begin_kernel(Header(kernel.name, kernel.params, 1), None)
    text = contraction(kernel, Emitter(HOOKS, frame, DEVICE.limits), machine)
    assert text is not None
    compiled = DEVICE.compile(text)
    buffers = []
    for p in params:
        data = arrays.get(p.name)
        if data is None:
            data = np.full(p.size, np.nan, p.dtype.storage)
        buffer = DEVICE.allocate(max(data.nbytes, 1))
        DEVICE.copy_in(buffer, memoryview(np.ascontiguousarray(data)).cast("B"))
        buffers.append(buffer)
    DEVICE.launch(compiled, buffers, 1)
    outputs = {}
    for p, buffer in zip(params, buffers, strict=True):
        if p.role != "in":
            outputs[p.name] = np.empty(p.size, p.dtype.storage)
            DEVICE.copy_out(buffer, memoryview(outputs[p.name]).cast("B"))
        DEVICE.free(buffer)
    plan = choose(c, machine)
    assert plan is not None
    return Run(outputs, plan, text)


def close(got: np.ndarray, wanted: np.ndarray, terms: int, eps: float = 1.2e-7) -> None:
    """Within the error that a float sum of ``terms`` products of normal numbers may have."""
    error = np.abs(got.reshape(wanted.shape).astype(np.float64) - wanted).max()
    assert error <= 16 * eps * max(1.0, np.sqrt(terms)) * max(1.0, np.log2(terms + 1))


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


# ---- matrix products -----------------------------------------------------------------------------


def matmul(
    batch: int, m: int, n: int, k: int, ta: bool = False, tb: bool = False, dtype: DType = float32
) -> tuple[Contraction, Instr, tuple[Var, ...], Param]:
    b_, m_, n_, k_ = Var("b", batch), Var("m", m), Var("n", n), Var("k", k)
    a_param = param("a", (batch, m, k), dtype)
    b_param = param("b", (batch, k, n), dtype)
    a = load(a_param, flat((batch, k, m), b_, k_, m_) if ta else flat((batch, m, k), b_, m_, k_))
    b = load(b_param, flat((batch, n, k), b_, n_, k_) if tb else flat((batch, k, n), b_, k_, n_))
    outer = (b_,) if batch > 1 else ()
    c, result = product(outer, (m_,), (n_,), (k_,), a, b, dtype)
    return c, result, (b_, m_, n_), param("out", (batch, m, n), dtype, "out")


def check_matmul(batch: int, m: int, n: int, k: int, ta: bool, tb: bool) -> Plan:
    c, result, axes, out = matmul(batch, m, n, k, ta, tb)
    c = storing(c, Store(out, flat((batch, m, n), *axes), result))
    a, b = normal(batch, m, k, seed=1), normal(batch, k, n, seed=2)
    arrays = {"a": a.swapaxes(1, 2) if ta else a, "b": b.swapaxes(1, 2) if tb else b}
    done = run(c, arrays)
    close(done.outputs["out"], a.astype(np.float64) @ b.astype(np.float64), k)
    return done.plan


@pytest.mark.parametrize("ta", [False, True], ids=["A", "At"])
@pytest.mark.parametrize("tb", [False, True], ids=["B", "Bt"])
@pytest.mark.parametrize("shape", [(33, 65, 129), (128, 96, 64), (200, 10, 64), (5, 300, 31)])
def test_every_way_round_gives_the_product(shape: tuple[int, int, int], ta: bool, tb: bool) -> None:
    check_matmul(1, *shape, ta, tb)


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 3),
    m=st.integers(2, 70),
    n=st.integers(2, 70),
    k=st.integers(2, 90),
    ta=st.booleans(),
    tb=st.booleans(),
)
def test_any_small_shape_gives_the_product(
    batch: int, m: int, n: int, k: int, ta: bool, tb: bool
) -> None:
    check_matmul(batch, m, n, k, ta, tb)


@pytest.mark.parametrize("ta", [False, True], ids=["A", "At"])
def test_a_long_sum_is_cut_into_blocks(ta: bool) -> None:
    plan = check_matmul(1, 50, 70, 9001, ta, not ta)
    assert plan.k.total > 1


def test_bias_and_relu_are_fused_into_the_store() -> None:
    m, n, k = 70, 45, 33
    c, result, axes, out = matmul(1, m, n, k)
    bias = param("bias", (n,))
    value = relu(add(result, load(bias, ix.variable(axes[2]))))
    done = run(
        storing(c, Store(out, flat((1, m, n), *axes), value)),
        arrays := {"a": normal(m, k), "b": normal(k, n), "bias": normal(n)},
    )
    wanted = arrays["a"].astype(np.float64) @ arrays["b"] + arrays["bias"]
    close(done.outputs["out"], np.maximum(wanted, 0), k)


def test_several_outputs_and_a_residual_share_one_sum() -> None:
    m, n, k = 40, 50, 60
    c, result, axes, out = matmul(1, m, n, k)
    other = param("other", (n, m), role="out")
    residual = param("residual", (m, n))
    position = flat((1, m, n), *axes)
    c = storing(
        c,
        Store(out, position, add(result, load(residual, position))),
        Store(other, flat((n, m), axes[2], axes[1]), mul(result, const(2))),
    )
    arrays = {"a": normal(m, k), "b": normal(k, n), "residual": normal(m, n)}
    done = run(c, arrays)
    wanted = arrays["a"].astype(np.float64) @ arrays["b"]
    close(done.outputs["out"], wanted + arrays["residual"], k)
    close(done.outputs["other"], 2 * wanted.T, k)


@pytest.mark.parametrize("n", [50, 64, 83])
def test_an_element_that_is_also_read_is_stored_once(n: int) -> None:
    m, k = 37, 20
    c, result, axes, _ = matmul(1, m, n, k)
    both = param("both", (m, n), role="inout")
    position = flat((1, m, n), *axes)
    c = storing(c, Store(both, position, add(result, load(both, position))))
    arrays = {"a": normal(m, k), "b": normal(k, n), "both": normal(m, n)}
    done = run(c, arrays)
    close(done.outputs["both"], arrays["a"].astype(np.float64) @ arrays["b"] + arrays["both"], k)


@pytest.mark.parametrize("ta", [False, True], ids=["A", "At"])
@pytest.mark.parametrize("tb", [False, True], ids=["B", "Bt"])
@pytest.mark.parametrize("shape", [(64, 40, 50), (300, 10, 784), (19, 130, 2000)])
def test_prologues_of_both_operands_are_applied(
    shape: tuple[int, int, int], ta: bool, tb: bool
) -> None:
    m, n, k = shape
    c, result, axes, out = matmul(1, m, n, k, ta, tb)
    c = Contraction((), c.m, c.n, c.k, relu(c.a), mul(c.b, add(c.b, const(1))), c.acc, c.result, ())
    a, b = normal(m, k), normal(k, n)
    done = run(
        storing(c, Store(out, flat((1, m, n), *axes), result)),
        {"a": a.T if ta else a, "b": b.T if tb else b},
    )
    assert done.plan.read.copied
    wide = b.astype(np.float64)
    close(done.outputs["out"], np.maximum(a, 0).astype(np.float64) @ (wide * (wide + 1)), 16 * k)


def test_float64_products_are_exact_to_float64() -> None:
    m, n, k = 45, 61, 100
    c, result, axes, out = matmul(1, m, n, k, dtype=float64)
    a, b = normal(m, k).astype(np.float64), normal(k, n).astype(np.float64)
    done = run(storing(c, Store(out, flat((1, m, n), *axes), result)), {"a": a, "b": b})
    close(done.outputs["out"], a @ b, k, 2.3e-16)


def test_half_operands_are_summed_in_float32() -> None:
    m, n, k = 45, 61, 100
    c, _, axes, _ = matmul(1, m, n, k, dtype=float16)
    c, result = product((), c.m, c.n, c.k, c.a, c.b, float32)
    out = param("out", (m, n), role="out")
    a, b = normal(m, k).astype(np.float16), normal(k, n).astype(np.float16)
    done = run(storing(c, Store(out, flat((1, m, n), *axes), result)), {"a": a, "b": b})
    close(done.outputs["out"], a.astype(np.float64) @ b.astype(np.float64), k)


def test_integer_and_small_products_are_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    c, result, axes, out = matmul(1, 40, 40, 40, dtype=int32)
    assert choose(storing(c, Store(out, flat((1, 40, 40), *axes), result)), MACHINE) is None
    c, result, axes, out = matmul(1, 20, 20, 20)
    c = storing(c, Store(out, flat((1, 20, 20), *axes), result))
    assert choose(c, MACHINE) is not None
    monkeypatch.setattr(planning, "LEAST_WORK", 32768)
    assert choose(c, MACHINE) is None


def test_rows_chosen_by_a_loaded_index_are_multiplied() -> None:
    """An embedding fused into the product that follows it."""
    m, n, k, rows = 37, 40, 50, 11
    c, result, axes, out = matmul(1, m, n, k)
    ids, table = param("ids", (m,), dtypes.int64), param("table", (rows, k))
    row = load(ids, ix.variable(axes[1]))
    atom = Opaque("row", row, (0, rows - 1), row.vars)
    a = load(table, ix.variable(atom) * k + ix.variable(c.k[0]))
    c = Contraction((), c.m, c.n, c.k, a, c.b, c.acc, c.result, ())
    arrays = {
        "ids": np.random.default_rng(0).integers(0, rows, m),
        "table": normal(rows, k),
        "b": normal(k, n),
    }
    done = run(storing(c, Store(out, flat((1, m, n), *axes), result)), arrays)
    wanted = arrays["table"].astype(np.float64)[arrays["ids"]] @ arrays["b"]
    close(done.outputs["out"], wanted, k)


def test_infinities_and_nan_reach_the_right_elements() -> None:
    c, result, axes, out = matmul(1, 20, 20, 20)
    a, b = normal(20, 20), normal(20, 20)
    a[3, 7], a[11, 0] = np.inf, np.nan
    done = run(storing(c, Store(out, flat((1, 20, 20), *axes), result)), {"a": a, "b": b})
    got = done.outputs["out"].reshape(20, 20)
    assert np.isnan(got[11]).all()
    assert np.isinf(got[3]).all()
    assert np.isfinite(np.delete(got, [3, 11], axis=0)).all()


@pytest.mark.parametrize("machine", [Machine(16, 32, 2), Machine(32, 16, 4)], ids=["128", "256"])
def test_other_register_files_give_the_product(machine: Machine) -> None:
    c, result, axes, out = matmul(1, 50, 33, 70)
    a, b = normal(50, 70), normal(70, 33)
    done = run(storing(c, Store(out, flat((1, 50, 33), *axes), result)), {"a": a, "b": b}, machine)
    close(done.outputs["out"], a.astype(np.float64) @ b, 70)


def test_equal_contractions_have_equal_texts() -> None:
    texts = []
    for _ in range(2):
        c, result, axes, out = matmul(1, 50, 33, 70)
        c = storing(c, Store(out, flat((1, 50, 33), *axes), result))
        texts.append(run(c, {"a": normal(50, 70), "b": normal(70, 33)}).text)
    assert texts[0] == texts[1]


# ---- convolutions --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Conv:
    """Sizes of a convolution; ``ho`` and ``wo`` follow from them."""

    batch: int
    ci: int
    h: int
    w: int
    co: int
    kernel: int
    stride: int = 1
    pad: int = 0
    dilation: int = 1

    def out(self, size: int) -> int:
        return (size + 2 * self.pad - self.dilation * (self.kernel - 1) - 1) // self.stride + 1

    @property
    def x_shape(self) -> tuple[int, ...]:
        return (self.batch, self.ci, self.h, self.w)

    @property
    def w_shape(self) -> tuple[int, ...]:
        return (self.co, self.ci, self.kernel, self.kernel)

    @property
    def y_shape(self) -> tuple[int, ...]:
        return (self.batch, self.co, self.out(self.h), self.out(self.w))

    def vars(self) -> dict[str, Var]:
        sizes = (self.batch, self.co, *self.y_shape[2:], self.ci, self.kernel, self.kernel)
        names = ("b", "co", "y", "x", "ci", "ky", "kx")
        return {name: Var(name, size) for name, size in zip(names, sizes, strict=True)}

    def windows(self, x: np.ndarray) -> np.ndarray:
        """x as [b, ci, y, x, ky, kx] in float64."""
        p, s, d = self.pad, self.stride, self.dilation
        padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (p, p), (p, p)))
        span = d * (self.kernel - 1) + 1
        view = np.lib.stride_tricks.sliding_window_view(padded, (span, span), axis=(2, 3))
        return view[:, :, ::s, ::s, ::d, ::d]


def spatial(v: Var, tap: Var, conv: Conv) -> Index:
    return ix.variable(v) * conv.stride + ix.variable(tap) * conv.dilation - conv.pad


def image(conv: Conv, v: dict[str, Var], x: Param) -> Instr:
    """The input under a tap: gated where there is padding."""
    row, column = spatial(v["y"], v["ky"], conv), spatial(v["x"], v["kx"], conv)
    gate = None
    if conv.pad:
        gate = instr(ops.AND, dtypes.bool_, inside(row, conv.h), inside(column, conv.w))
    return load(x, flat(conv.x_shape, v["b"], v["ci"], row, column), gate)


def used(*axes: Var) -> tuple[Var, ...]:
    return tuple(v for v in axes if v.extent > 1)


CONVS = [
    Conv(2, 1, 28, 28, 32, 5),
    Conv(3, 6, 20, 24, 32, 5),
    Conv(4, 8, 10, 10, 20, 3),
    Conv(2, 5, 9, 13, 17, 3, pad=1),
    Conv(2, 4, 17, 15, 16, 3, stride=2, pad=1),
    Conv(2, 4, 14, 14, 24, 3, dilation=2, pad=2),
    Conv(1, 64, 8, 8, 64, 3),
]


@pytest.mark.parametrize("conv", CONVS, ids=str)
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_convolution_forward(conv: Conv, fused: bool) -> None:
    """Fused: relu before, bias and relu after."""
    v = conv.vars()
    x, w, y = (
        param("x", conv.x_shape),
        param("w", conv.w_shape),
        param("y", conv.y_shape, role="out"),
    )
    a = image(conv, v, x)
    if fused:
        a = relu(a)
    b = load(w, flat(conv.w_shape, v["co"], v["ci"], v["ky"], v["kx"]))
    c, result = product(
        (), used(v["b"], v["y"], v["x"]), used(v["co"]), used(v["ci"], v["ky"], v["kx"]), a, b
    )
    value = result
    if fused:
        value = relu(add(result, load(param("bias", (conv.co,)), ix.variable(v["co"]))))
    done = run(
        storing(c, Store(y, flat(conv.y_shape, v["b"], v["co"], v["y"], v["x"]), value)),
        {
            "x": (xs := normal(*conv.x_shape)),
            "w": (ws := normal(*conv.w_shape)),
            "bias": (bias := normal(conv.co)),
        },
    )
    source = np.maximum(xs, 0) if fused else xs
    wanted = np.einsum("bcyxij,ocij->boyx", conv.windows(source), ws.astype(np.float64))
    if fused:
        wanted = np.maximum(wanted + bias[:, None, None], 0)
    close(done.outputs["y"], wanted, conv.ci * conv.kernel**2)


@pytest.mark.parametrize("conv", CONVS, ids=str)
def test_convolution_backward_to_the_weight(conv: Conv) -> None:
    v = conv.vars()
    x, dy = param("x", conv.x_shape), param("dy", conv.y_shape)
    dw = param("dw", conv.w_shape, role="out")
    a = image(conv, v, x)
    b = load(dy, flat(conv.y_shape, v["b"], v["co"], v["y"], v["x"]))
    c, result = product(
        (), used(v["ci"], v["ky"], v["kx"]), used(v["co"]), used(v["b"], v["y"], v["x"]), a, b
    )
    done = run(
        storing(c, Store(dw, flat(conv.w_shape, v["co"], v["ci"], v["ky"], v["kx"]), result)),
        {"x": (xs := normal(*conv.x_shape)), "dy": (dys := normal(*conv.y_shape))},
    )
    wanted = np.einsum("bcyxij,boyx->ocij", conv.windows(xs), dys.astype(np.float64))
    close(done.outputs["dw"], wanted, int(np.prod(conv.y_shape)) // conv.co)


@pytest.mark.parametrize("both", [False, True], ids=["one masked", "both masked"])
@pytest.mark.parametrize("conv", [c for c in CONVS if c.stride == 1 and c.ci > 1], ids=str)
def test_convolution_backward_to_the_input(conv: Conv, both: bool) -> None:
    """dx[p] = sum over taps of dy[p - k*dilation + pad] * w[k], gated at the border."""
    v = conv.vars()
    b_, ci, co = v["b"], v["ci"], v["co"]
    py, px = Var("py", conv.h), Var("px", conv.w)
    dy, w, dx = (
        param("dy", conv.y_shape),
        param("w", conv.w_shape),
        param("dx", conv.x_shape, role="out"),
    )
    row = ix.variable(py) - ix.variable(v["ky"]) * conv.dilation + conv.pad
    column = ix.variable(px) - ix.variable(v["kx"]) * conv.dilation + conv.pad
    gate = instr(
        ops.AND, dtypes.bool_, inside(row, conv.y_shape[2]), inside(column, conv.y_shape[3])
    )
    a = load(dy, flat(conv.y_shape, b_, co, row, column), gate)
    b = load(w, flat(conv.w_shape, co, ci, v["ky"], v["kx"]), gate if both else None)
    batch, m = (used(py, px), used(b_)) if both else ((), used(b_, py, px))
    c, result = product(batch, m, used(ci), used(co, v["ky"], v["kx"]), a, b)
    c = storing(c, Store(dx, flat(conv.x_shape, b_, ci, py, px), result))
    done = run(c, {"dy": (dys := normal(*conv.y_shape)), "w": (ws := normal(*conv.w_shape))})
    windows = np.einsum("boyx,ocij->bcyxij", dys.astype(np.float64), ws.astype(np.float64))
    wanted = np.zeros((*conv.x_shape[:2], conv.h + 2 * conv.pad, conv.w + 2 * conv.pad))
    for i in range(conv.kernel):
        for j in range(conv.kernel):
            rows = slice(i * conv.dilation, i * conv.dilation + conv.y_shape[2])
            columns = slice(j * conv.dilation, j * conv.dilation + conv.y_shape[3])
            wanted[:, :, rows, columns] += windows[..., i, j]
    inner = (
        slice(None),
        slice(None),
        slice(conv.pad, conv.pad + conv.h),
        slice(conv.pad, conv.pad + conv.w),
    )
    close(done.outputs["dx"], wanted[inner], conv.co * conv.kernel**2)


@st.composite
def convolutions(draw: st.DrawFn) -> Conv:
    kernel, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    pad = draw(st.integers(0, kernel - 1))
    smallest = max(2, dilation * (kernel - 1) + 1 - 2 * pad)
    return Conv(
        batch=draw(st.integers(1, 3)),
        ci=draw(st.integers(2, 18)),
        h=draw(st.integers(smallest, 12)),
        w=draw(st.integers(smallest, 20)),
        co=draw(st.integers(2, 35)),
        kernel=kernel,
        stride=draw(st.integers(1, 2)),
        pad=pad,
        dilation=dilation,
    )


@settings(max_examples=15, deadline=None)
@given(conv=convolutions(), flag=st.booleans())
def test_any_small_convolution_and_its_gradients(conv: Conv, flag: bool) -> None:
    if int(np.prod([conv.batch, *conv.y_shape[2:]])) > 1:
        test_convolution_forward(conv, flag)
        test_convolution_backward_to_the_weight(conv)
    if conv.stride == 1:
        test_convolution_backward_to_the_input(conv, flag)
