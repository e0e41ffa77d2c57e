"""Ops that a backend leaves out, written with the others: accuracy, special values, the walk."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from kernels import LIMITS, Builder, LaneBackend, from_stored, hooks_of, run, to_stored

from coregrad.dtypes import DType, bfloat16, float16, float32, float64, from_bits, int64, to_bits
from coregrad.hookspecs import Hooks
from coregrad.ir.kernel import Contraction, Instr, Kernel, Loop, Store, Update, walk
from coregrad.ir.legalize import legalize
from coregrad.ir.ops import CONST, MUL
from coregrad.ir.verify import verify_kernel
from coregrad_cpu.reference import Backend

OPTIONAL = ("exp", "log", "sin", "sqrt", "trunc")
NO_MOD = replace(LIMITS, float_mod=False)
rng = np.random.default_rng(3)


def poor_hooks() -> Hooks:
    """The reference's hooks without the optional ones."""
    table = hooks_of(Backend()).functions
    return Hooks("eager", {name: f for name, f in table.items() if name not in OPTIONAL})


def apply(op: str, dtype: DType, *columns: np.ndarray, attr: int | None = None) -> np.ndarray:
    """The op on stored columns, through its rewriting; as float64 numbers."""
    n = len(columns[0])
    b = Builder(op)
    out = b.param("o", dtype, n, "out")
    params = [b.param(f"x{k}", dtype, n) for k in range(len(columns))]
    with b.loop(n, "grid") as i:
        b.store(out, i, b.op(op, *(b.load(p, i) for p in params), attr=attr))
    kernel = legalize(b.kernel(), poor_hooks(), NO_MOD)
    verify_kernel(kernel)
    used = {s.op.name for s in walk(kernel.body) if isinstance(s, Instr)}
    assert not used & set(OPTIONAL)
    inputs = {f"x{k}": c for k, c in enumerate(columns)}
    stored = run(kernel, inputs, hooks=poor_hooks())["o"]
    return wide(from_stored(stored, dtype))


def wide(x: np.ndarray) -> np.ndarray:
    """As float64; NumPy warns of signalling NaNs."""
    with np.errstate(invalid="ignore"):
        return x.astype(np.float64)


def column(values: object, dtype: DType) -> np.ndarray:
    return from_stored(to_stored(values, dtype), dtype)


def ulps(got: np.ndarray, exact: np.ndarray, dtype: DType) -> float:
    """The largest error in units of the last place of the exact result (OpenCL's definition)."""
    precision, smallest = {
        float16: (11, -14), bfloat16: (8, -126), float32: (24, -126), float64: (53, -1022),
    }[dtype]  # fmt: skip
    infinite = np.isinf(column(exact, dtype))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
    np.testing.assert_array_equal(got[infinite], column(exact, dtype)[infinite])
    kept = ~(infinite | np.isnan(exact))
    _, exponent = np.frexp(exact[kept])
    unit = np.ldexp(1.0, np.maximum(exponent - 1, smallest) - precision + 1)
    return float(np.max(np.abs(got[kept] - exact[kept]) / unit, initial=0))


SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, 2.0, 1.5, -2.5]


def everywhere(dtype: DType, n: int = 4000) -> np.ndarray:
    """Random bit patterns: every exponent, subnormals, infinities and NaN; and special values."""
    words = rng.integers(0, 1 << dtype.bits, n, f"uint{dtype.bits}")
    stored = words.view(dtype.storage)
    return np.concatenate([from_stored(stored, dtype), column(SPECIAL, dtype)])


# Where double precision itself is measured, the C library is the oracle: it stays below one ulp.
ALLOWED = {
    "exp": {float32: 2.0, float64: 3.0},
    "log": {float32: 2.0, float64: 3.0},
    "sin": {float32: 3.0, float64: 3.0},
    "sqrt": {float32: 0.51, float64: 1.0},
}
DTYPES = [float16, bfloat16, float32, float64]
ORACLES = {"exp": np.exp, "log": np.log, "sqrt": np.sqrt}
RANGES = {"exp": (-110, 95), "log": (0.01, 20), "sqrt": (0, 100)}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ["exp", "log", "sqrt"])
def test_functions_are_within_the_contract(op: str, dtype: DType) -> None:
    x = np.concatenate([everywhere(dtype), column(rng.uniform(*RANGES[op], 4000), dtype)])
    if dtype is float64 and op == "exp":
        x = np.concatenate([x, rng.uniform(-750, 712, 4000)])
    with np.errstate(all="ignore"):
        exact = ORACLES[op](wide(x))
        got = apply(op, dtype, x)
        assert ulps(got, exact, dtype) <= ALLOWED[op].get(dtype, 0.51)
    zeros = exact == 0
    if op == "sqrt":
        np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(x[zeros]))


@pytest.mark.parametrize("quarter", range(4))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sine_is_reduced_for_every_argument(dtype: DType, quarter: int) -> None:
    near = np.arange(-3000, 3000) * (math.pi / 2)  # where the result is close to 0, 1 or -1
    small = rng.uniform(-4, 4, 3000)
    x = np.concatenate([everywhere(dtype), column(near, dtype), column(small, dtype)])
    if dtype is float32:
        # Kahan's worst case of single precision, and other arguments next to multiples of pi/2.
        x = np.concatenate([x, column([16367173.0 * 2.0**72, 1.5707964, 3.1415927, 1e22], float32)])
    angle = wide(x)
    with np.errstate(all="ignore"):
        exact = np.cos(angle) if quarter % 2 else np.sin(angle)
        exact = -exact if quarter >= 2 else exact
        got = apply("sin", dtype, x, attr=quarter)
        assert ulps(got, exact, dtype) <= ALLOWED["sin"].get(dtype, 0.51)
    if quarter == 0:
        zeros = angle == 0
        np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(angle[zeros]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_trunc_is_exact(dtype: DType) -> None:
    x = np.concatenate([everywhere(dtype), column(rng.uniform(-300, 300, 3000), dtype)])
    with np.errstate(invalid="ignore"):
        want = np.trunc(wide(x))
    got = apply("trunc", dtype, x)
    np.testing.assert_array_equal(got, want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_remainder_of_floats_is_exact(dtype: DType) -> None:
    a, b = everywhere(dtype, 1500), everywhere(dtype, 1500)
    grid_a, grid_b = np.meshgrid(column(SPECIAL, dtype), column(SPECIAL, dtype))
    a = np.concatenate([a, grid_a.ravel(), column(rng.uniform(-99, 99, 1000), dtype)])
    b = np.concatenate([b, grid_b.ravel(), column(rng.uniform(-9, 9, 1000), dtype)])
    largest, smallest = from_bits(to_bits(math.inf, dtype) - 1, dtype), from_bits(3, dtype)
    a, b = np.append(a, column([largest], dtype)), np.append(b, column([smallest], dtype))
    with np.errstate(all="ignore"):
        want = np.fmod(wide(a), wide(b))
    got = apply("mod", dtype, a, b)
    np.testing.assert_array_equal(got, want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))


# ---- the walk ----------------------------------------------------------------------------------


def test_a_kernel_that_lacks_nothing_is_the_same_object() -> None:
    b = Builder()
    out, x = b.param("o", float32, 4, "out"), b.param("x", float32, 4)
    with b.loop(4, "grid") as i:
        b.store(out, i, b.op("exp", b.load(x, i)))
    kernel = b.kernel()
    assert legalize(kernel, hooks_of(Backend()), LIMITS) is kernel
    assert legalize(kernel, poor_hooks(), LIMITS) is not kernel


def test_an_integer_remainder_is_left_alone() -> None:
    b = Builder()
    out, x = b.param("o", int64, 4, "out"), b.param("x", int64, 4)
    with b.loop(4, "grid") as i:
        b.store(out, i, b.op("mod", b.load(x, i), b.const(3, int64)))
    kernel = b.kernel()
    assert legalize(kernel, poor_hooks(), NO_MOD) is kernel


def test_rewritten_values_reach_gates_indices_reductions_and_stores() -> None:
    n = 6
    b = Builder()
    out, x = b.param("o", float32, n, "out"), b.param("x", float32, n)
    table = b.param("t", float32, n)
    one = b.const(1, float32)
    with b.loop(n, "grid") as i:
        root = b.op("sqrt", b.load(x, i))
        place = b.opaque(b.cast(root, int64), 0, n - 1)
        picked = b.load(table, place, b.op("lt", root, b.const(4, float32)))
        acc = b.acc("add", float32)
        with b.loop(3):
            b.update(acc, b.op("exp", b.op("mul", root, b.const(0, float32))))
        total = b.op("add", b.result(acc, used=[i]), picked)
        b.store(out, i, b.op("add", total, root), b.op("lt", one, b.op("exp", root)))
    kernel = legalize(b.kernel(), poor_hooks(), LIMITS)
    verify_kernel(kernel)
    xs = np.array([0.5, 1, 4, 9, 16, 25], np.float32)
    ts = rng.standard_normal(n).astype(np.float32)
    got = run(kernel, {"x": xs, "t": ts}, hooks=poor_hooks())["o"]
    root = np.sqrt(xs)
    want = 3 + np.where(root < 4, ts[root.astype(int)], 0) + root
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_the_trees_of_a_contraction_are_rewritten_too() -> None:
    b = Builder()
    out = b.param("o", float32, 6, "out")
    x, y = b.param("x", float32, 8), b.param("y", float32, 12)
    with b.loop(2, "grid") as i, b.loop(3) as j:
        acc = b.acc("add", float32)
        with b.loop(4) as r:
            left, right = b.op("exp", b.load(x, i * 4 + r)), b.load(y, j * 4 + r)
            b.update(acc, b.op("mul", left, right))
        result = b.result(acc, used=[i, j])
        b.store(out, i * 3 + j, b.op("sqrt", result))
    m, n, k = (s.var for s in walk(b.body) if isinstance(s, Loop))
    stores = tuple(s for s in walk(b.body) if isinstance(s, Store))
    whole = Contraction((), (m,), (n,), (k,), left, right, acc, result, stores)
    kernel = Kernel("c", tuple(b.params), b.body, whole)
    made = legalize(kernel, poor_hooks(), LIMITS)
    verify_kernel(made)
    assert made.contraction is not None
    (update,) = (s for s in walk(made.body) if isinstance(s, Update))
    assert update.values[0].op is MUL
    assert update.values[0].args == (made.contraction.a, made.contraction.b)
    assert made.contraction.stores == tuple(s for s in walk(made.body) if isinstance(s, Store))
    assert made.contraction.b is right


@pytest.mark.parametrize("op", OPTIONAL)
def test_rewritten_ops_have_the_same_bits_in_lanes(op: str) -> None:
    n = 21
    kernels = []
    for lanes in (1, 8):
        b = Builder()
        out, x = b.param("o", float32, n, "out"), b.param("x", float32, n)
        with b.loop(n, "grid", lanes) as i:
            b.store(out, i, b.op(op, b.load(x, i), attr=1 if op == "sin" else None))
        kernels.append(legalize(b.kernel(), poor_hooks(), NO_MOD))
    xs = rng.uniform(0, 30, n).astype(np.float32)
    single, several = (run(k, {"x": xs}, LaneBackend())["o"].view(np.uint32) for k in kernels)
    np.testing.assert_array_equal(single, several)


def test_constants_are_made_once_at_the_top() -> None:
    b = Builder()
    out, x = b.param("o", float32, 4, "out"), b.param("x", float32, 4)
    with b.loop(4, "grid") as i:
        b.store(out, i, b.op("exp", b.op("exp", b.load(x, i))))
    kernel = legalize(b.kernel(), poor_hooks(), LIMITS)
    constants = [s for s in walk(kernel.body) if isinstance(s, Instr) and s.op is CONST]
    assert constants == kernel.body[: len(constants)]
    assert len({(c.dtype, c.attr) for c in constants}) == len(constants)
