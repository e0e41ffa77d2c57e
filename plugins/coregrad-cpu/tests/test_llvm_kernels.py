"""Hand-made kernels on the LLVM device, against NumPy and exact rational arithmetic."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import Builder, hooks_of

from coregrad import dtypes
from coregrad.dtypes import ALL, FLOATS, INTS, DType, bfloat16, bool_, float16, float32, float64
from coregrad.ir.emit import emit
from coregrad.ir.index import constant
from coregrad.ir.kernel import Kernel

pytest.importorskip("llvmlite")

from coregrad_cpu.llvm.backend import Backend
from coregrad_cpu.llvm.device import Device

BACKEND = Backend()
HOOKS = hooks_of(BACKEND)
LANES = (1, 16)
rng = np.random.default_rng(0)
BITS = (bool_, *INTS)
NUMBERS = (*INTS, *FLOATS)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """NumPy warns of every overflow and NaN, which are what is tested."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@pytest.fixture(scope="module")
def cpu() -> Device:
    return opened()


@functools.cache
def opened() -> Device:
    """One device for all tests here, which leaves the user's cache alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COREGRAD_CACHE", "0")
        return BACKEND.open_device(0)


def run(device: Device, kernel: Kernel, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What the kernel's outputs hold after a launch; untouched bytes are 0xCD."""
    compiled = device.compile(emit(kernel, BACKEND, HOOKS, device.limits))
    buffers = []
    for param in kernel.params:
        nbytes = max(1, param.size) * param.dtype.itemsize
        data = np.full(nbytes, 0xCD, np.uint8)
        if param.name in inputs:
            data = np.ascontiguousarray(inputs[param.name], param.dtype.storage).view(np.uint8)
        buffers.append(device.allocate(nbytes))
        device.copy_in(buffers[-1], memoryview(data))
    device.launch(compiled, buffers, kernel.grid)
    out = {}
    for param, buffer in zip(kernel.params, buffers, strict=True):
        if param.role != "in":
            data = np.empty(param.size * param.dtype.itemsize, np.uint8)
            device.copy_out(buffer, memoryview(data))
            out[param.name] = data.view(param.dtype.storage)
        device.free(buffer)
    return out


def apply(
    device: Device,
    op: str,
    dtype: DType,
    result: DType,
    lanes: int,
    *operands: Any,
    attr: Any = None,
) -> Any:
    """``op`` on stored arrays of ``dtype`` (the first one bool for where), in one vector loop."""
    b = Builder()
    n = len(operands[0])
    out = b.param("o", result, n, "out")
    of = [bool_, dtype, dtype] if op == "where" else [dtype] * len(operands)
    params = [b.param(f"x{i}", d, n) for i, d in enumerate(of[: len(operands)])]
    with b.loop(n, "grid", lanes) as i:
        loads = [b.load(p, i) for p in params]
        b.store(out, i, b.op(op, *loads, dtype=result, attr=attr))
    given_ = {p.name: operand for p, operand in zip(params, operands, strict=True)}
    return run(device, b.kernel(), given_)["o"]


# ---- numbers -----------------------------------------------------------------------------------


def widened(x: Any, dtype: DType) -> Any:
    """Stored numbers as NumPy can compute with them."""
    return (x.astype(np.uint32) << 16).view(np.float32) if dtype is bfloat16 else x


def stored(x: Any, dtype: DType) -> Any:
    """Float32 numbers as bfloat16 words, rounded to nearest even; others in their own dtype."""
    if dtype is not bfloat16:
        return np.asarray(x).astype(dtype.storage)
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    upper = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), upper)


def specials(dtype: DType) -> Any:
    """The values where things go wrong, in stored form."""
    if dtype is bool_:
        return np.array([False, True])
    if dtype.is_int:
        lo, hi = int(dtype.min), int(dtype.max)
        some = {lo, lo + 1, -2, -1, 0, 1, 2, 3, 7, 100, hi // 2, hi - 1, hi}
        return np.array(sorted(v for v in some if lo <= v <= hi), dtype.storage)
    base = np.float32 if dtype is bfloat16 else np.dtype(dtype.storage)
    info = np.finfo(base)
    values = [0.0, 1.0, 1.5, 2.0, 0.1, math.pi, 100.25, math.inf, math.nan]
    values += [info.max, info.tiny, info.smallest_subnormal, 1 + info.eps, 1 - info.epsneg, 65519.9]
    both = np.array(values + [-v for v in values], base)
    return np.unique(stored(both, dtype)) if dtype is bfloat16 else both


def pairs(dtype: DType) -> tuple[Any, Any]:
    """All pairs of special values, and random ones, an odd number in all."""
    a, b = (grid.ravel() for grid in np.meshgrid(specials(dtype), specials(dtype)))
    x, y = random(dtype, 101), random(dtype, 101)
    keep = (len(a) + 101) % 2 == 0
    return np.concatenate([a, x])[keep:], np.concatenate([b, y])[keep:]


def random(dtype: DType, n: int) -> Any:
    if dtype is bool_:
        return rng.random(n) < 0.5
    if dtype.is_int:
        return rng.integers(int(dtype.min), int(dtype.max), n, dtype.storage, endpoint=True)
    return stored(rng.standard_normal(n) * 10.0 ** rng.integers(-3, 4, n), dtype)


def assert_same(got: Any, want: Any, dtype: DType, zeros: bool = True) -> None:
    """Equal bits, any NaN being like any other; ``zeros``: the sign of zero counts."""
    got, want = widened(got, dtype), widened(np.asarray(want, dtype.storage), dtype)
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, want)
        return
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got[~nan], want[~nan])
    if zeros:
        np.testing.assert_array_equal(np.signbit(got[~nan]), np.signbit(want[~nan]))


def rounded(value: Fraction, dtype: DType) -> float:
    """The number of a float dtype nearest to an exact one, ties to even: by the definition."""
    digits, lowest, highest = {
        float16: (11, -24, 16),
        bfloat16: (8, -133, 128),
        float32: (24, -149, 128),
        float64: (53, -1074, 1024),
    }[dtype]
    if value == 0:
        return 0.0
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    while abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** max(exponent - digits + 1, lowest)
    nearest = round(value / unit) * unit  # Python rounds ties to even
    if abs(nearest) >= Fraction(2) ** highest:
        return math.inf  # the caller sees to the sign
    return float(nearest)


# ---- element-wise ------------------------------------------------------------------------------

ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "div": np.divide,
    "mod": np.fmod,
    "lt": np.less,
    "ne": np.not_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
DOMAINS = {
    "add": NUMBERS, "mul": NUMBERS, "max": NUMBERS, "div": FLOATS, "mod": FLOATS,
    "lt": ALL, "ne": ALL, "and": BITS, "or": BITS, "xor": BITS,
}  # fmt: skip
CASES = [(op, dtype) for op, domain in DOMAINS.items() for dtype in domain]


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize(("op", "dtype"), CASES, ids=lambda v: getattr(v, "name", v))
def test_a_binary_op_is_numpys(cpu: Device, op: str, dtype: DType, lanes: int) -> None:
    a, b = pairs(dtype)
    result = bool_ if op in ("lt", "ne") else dtype
    got = apply(cpu, op, dtype, result, lanes, a, b)
    want = ARITHMETIC[op](widened(a, dtype), widened(b, dtype))
    assert_same(got, stored(want, result), result, zeros=op != "max")


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", INTS, ids=lambda d: d.name)
def test_integer_division_truncates(cpu: Device, dtype: DType, lanes: int) -> None:
    a, b = pairs(dtype)
    legal = (b != 0) & ~((b.astype(object) == -1) & (a == a.dtype.type(dtype.min)))
    a, b = a[legal], b[legal]
    exact = [
        (abs(x) // abs(y)) * (1 if (x < 0) == (y < 0) else -1)
        for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    got = apply(cpu, "idiv", dtype, dtype, lanes, a, b)
    assert got.tolist() == exact
    rest = apply(cpu, "mod", dtype, dtype, lanes, a, b)
    assert rest.tolist() == [
        x - q * y for x, y, q in zip(a.tolist(), b.tolist(), exact, strict=True)
    ]


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", INTS, ids=lambda d: d.name)
def test_shifts_lose_high_bits_and_copy_the_sign(cpu: Device, dtype: DType, lanes: int) -> None:
    a, b = pairs(dtype)
    b = (b.astype(np.uint64) % dtype.bits).astype(dtype.storage)
    assert_same(apply(cpu, "shl", dtype, dtype, lanes, a, b), a << b, dtype)
    assert_same(apply(cpu, "shr", dtype, dtype, lanes, a, b), a >> b, dtype)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_where_selects_bit_for_bit(cpu: Device, dtype: DType, lanes: int) -> None:
    a, b = pairs(dtype)
    condition = random(bool_, len(a))
    got = apply(cpu, "where", dtype, dtype, lanes, condition, a, b)
    assert got.tobytes() == np.where(condition, a, b).tobytes()


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_sqrt_and_trunc_are_exact(cpu: Device, dtype: DType, lanes: int) -> None:
    x = np.concatenate([specials(dtype), random(dtype, 1001)])
    for op, function in (("sqrt", np.sqrt), ("trunc", np.trunc)):
        want = stored(function(widened(x, dtype)), dtype)
        assert_same(apply(cpu, op, dtype, dtype, lanes, x), want, dtype)


FUNCTIONS: list[tuple[str, int | None, Callable[[Any], Any]]] = [
    ("exp", None, np.exp),
    ("log", None, np.log),
    ("sin", 0, np.sin),
    ("sin", 1, np.cos),
    ("sin", 2, lambda x: -np.sin(x)),
    ("sin", 3, lambda x: -np.cos(x)),
]


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("case", FUNCTIONS, ids=lambda c: f"{c[0]}{c[1] or ''}")
def test_functions_stay_within_the_contract(
    cpu: Device, case: tuple[str, int | None, Callable[[Any], Any]], dtype: DType, lanes: int
) -> None:
    op, quarter, function = case
    x = np.concatenate([specials(dtype), random(dtype, 1001)])
    got = widened(apply(cpu, op, dtype, dtype, lanes, x, attr=quarter), dtype).astype(np.longdouble)
    want = function(widened(x, dtype).astype(np.longdouble))
    largest = float(dtypes.from_bits(MAX_BITS[dtype], dtype))
    beyond = np.abs(want) > largest
    digits, lowest = {float16: (11, -24), bfloat16: (8, -133), float32: (24, -149),
                      float64: (53, -1074)}[dtype]  # fmt: skip
    _, exponent = np.frexp(np.where(np.isfinite(want) & (want != 0), want, 1))
    unit = np.ldexp(np.longdouble(1), np.maximum(exponent - digits, lowest))
    plain = np.isfinite(want) & ~beyond
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(got[np.isinf(want)], want[np.isinf(want)])
    assert (np.abs(got[beyond & np.isfinite(want)]) >= largest).all()
    error = np.abs(got - want)[plain] / unit[plain]
    assert error.max() <= (1.0 if dtype.bits == 16 else 4.0)


MAX_BITS = {float16: 0x7BFF, bfloat16: 0x7F7F, float32: 0x7F7FFFFF, float64: (0x7FF << 52) - 1}


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("target", ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("source", ALL, ids=lambda d: d.name)
def test_a_cast_rounds_once_and_saturates(
    cpu: Device, source: DType, target: DType, lanes: int
) -> None:
    x = np.concatenate([specials(source), random(source, 201), near_ties(source)])
    got = apply(cpu, "cast", source, target, lanes, x, attr=source)
    values = widened(x, source).tolist()
    want = [cast(v, source, target) for v in values]
    if target.is_float:
        np.testing.assert_array_equal(widened(got, target).astype(np.float64), want)
        zero = np.array(want) == 0
        assert (np.signbit(widened(got, target))[zero] == np.signbit(want)[zero]).all()
    else:
        assert got.tolist() == want


def near_ties(source: DType) -> Any:
    """Numbers around halfway points of the shorter formats, where rounding twice goes wrong."""
    if source.bits < 32:
        return specials(source)
    if source.is_int:
        ties = [(2 * m + 1) << e for m in (128, 129, 1024, 1025) for e in (8, 14, 30, 46)]
        near = [t + d for t in ties for d in (-1, 0, 1) if t + d <= source.max]
        return np.array(near, source.storage)
    ties = [math.ldexp(2 * m + 1, e) for m in (128, 129, 1024, 1025) for e in (-140, -30, -26, 0)]
    ulp = np.finfo(source.storage).eps
    return np.array([t * (1 + d * ulp) for t in ties for d in (-1, 0, 1)], source.storage)


def cast(value: Any, source: DType, target: DType) -> Any:
    """What the contract says, by definition."""
    if target is bool_:
        return value != 0
    if target.is_float:
        if source.is_float and (not math.isfinite(value) or value == 0):
            return value
        return math.copysign(rounded(Fraction(value), target), value)
    if source.is_float:
        if math.isnan(value):
            return 0
        whole = value if math.isinf(value) else math.trunc(value)
        return int(min(max(whole, target.min), target.max))
    wrapped = int(value) & ((1 << target.bits) - 1)
    return wrapped - (1 << target.bits) if wrapped > target.max else wrapped


@pytest.mark.parametrize("lanes", LANES)
def test_a_bitcast_keeps_every_bit(cpu: Device, lanes: int) -> None:
    for source in ALL:
        for target in ALL:
            if source.bits != target.bits or bool_ in (source, target):
                continue
            x = np.concatenate([specials(source), random(source, 37)])
            got = apply(cpu, "bitcast", source, target, lanes, x, attr=source)
            assert got.tobytes() == x.tobytes(), (source, target)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_constants_are_exact(cpu: Device, dtype: DType, lanes: int) -> None:
    values = specials(dtype)
    b = Builder()
    out = b.param("o", dtype, len(values) * 19, "out")
    numbers = [b.const(v, dtype) for v in widened(values, dtype).tolist()]
    with b.loop(19, "grid", lanes) as i:
        for k, number in enumerate(numbers):
            b.store(out, i + 19 * k, number)
    got = run(cpu, b.kernel(), {})["o"].reshape(len(values), 19)
    for lane in range(19):
        assert_same(got[:, lane], values, dtype)


# ---- memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [0, 1, -1, 2, 3, -5])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_a_strided_load_reads_its_lanes_and_nothing_where_gated_off(
    cpu: Device, dtype: DType, gated: bool, stride: int
) -> None:
    n = 50
    x = random(dtype, abs(stride) * (n - 1) + 1)
    gate = rng.random(n) < 0.6
    base = -stride * (n - 1) if stride < 0 else 0
    # Closed gates point to addresses that no process has.
    shift = 1 << 40
    for lanes in (1, 4, 16):
        b = Builder()
        out = b.param("o", dtype, n, "out")
        px, pg = b.param("x", dtype, len(x)), b.param("g", bool_, n)
        with b.loop(n, "grid", lanes) as i:
            if gated:
                open_ = b.load(pg, i)
                far = b.op("where", open_, b.const(0, dtypes.int64), b.const(shift, dtypes.int64))
                far_index = b.opaque(far, 0, shift)
                index = i * stride + base
                moved = b.load(px, index + far_index, open_)
                value = b.op("or", b.load(px, index, open_), moved) if dtype in BITS else moved
            else:
                value = b.load(px, i * stride + base)
            b.store(out, i, value)
        got = run(cpu, b.kernel(), {"x": x, "g": gate})["o"]
        want = x[np.arange(n) * stride + base]
        if gated:
            want = np.where(gate, want, np.zeros(1, want.dtype))
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_a_gather_and_a_scatter_go_where_the_index_says(
    cpu: Device, dtype: DType, gated: bool
) -> None:
    n, m = 50, 91
    x, index = random(dtype, m), rng.permutation(m)[:n]
    gate = rng.random(n) < 0.6 if gated else np.ones(n, bool)
    for lanes in (1, 4, 16):
        b = Builder()
        out, back = b.param("o", dtype, n, "out"), b.param("s", dtype, m, "out")
        px, pi = b.param("x", dtype, m), b.param("i", dtypes.int32, n)
        pg = b.param("g", bool_, n)
        with b.loop(n, "grid", lanes) as i:
            at = b.opaque(b.load(pi, i), 0, m - 1)
            open_ = b.load(pg, i) if gated else None
            value = b.load(px, at, open_)
            b.store(out, i, value)
            b.store(back, at, value, open_)
        got = run(cpu, b.kernel(), {"x": x, "i": index, "g": gate})
        want = np.where(gate, x[index], np.zeros(1, x.dtype))
        assert got["o"].tobytes() == want.tobytes()
        whole = np.full(m * dtype.itemsize, 0xCD, np.uint8).view(x.dtype)
        whole[index[gate]] = x[index[gate]]
        assert got["s"].tobytes() == whole.tobytes()


@pytest.mark.parametrize("stride", [1, 2, -1])
@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_a_gated_store_leaves_the_rest_alone(cpu: Device, dtype: DType, stride: int) -> None:
    n = 50
    x, gate = random(dtype, n), rng.random(n) < 0.5
    base = n - 1 if stride < 0 else 0
    for lanes in (1, 16):
        b = Builder()
        out = b.param("o", dtype, abs(stride) * n, "out")
        px, pg = b.param("x", dtype, n), b.param("g", bool_, n)
        with b.loop(n, "grid", lanes) as i:
            b.store(out, i * stride + base, b.load(px, i), b.load(pg, i))
        got = run(cpu, b.kernel(), {"x": x, "g": gate})["o"]
        want = np.full(abs(stride) * n * dtype.itemsize, 0xCD, np.uint8).view(x.dtype)
        want[(np.arange(n) * stride + base)[gate]] = x[gate]
        assert got.tobytes() == want.tobytes()


def test_a_large_output_is_streamed_and_complete(cpu: Device) -> None:
    n = (16 << 20) // 4 + 5
    b = Builder()
    out, x = b.param("o", float32, n, "out"), b.param("x", float32, n)
    with b.loop(n, "grid", 16) as i:
        b.store(out, i, b.op("add", b.load(x, i), b.load(x, i)))
    kernel = b.kernel()
    assert "!nontemporal" in emit(kernel, BACKEND, HOOKS, cpu.limits)
    values = np.arange(n, dtype=np.float32)
    np.testing.assert_array_equal(run(cpu, kernel, {"x": values})["o"], values + values)


@pytest.mark.parametrize(("width", "streams"), [(4096, True), (4104, False)])
def test_rows_are_streamed_where_each_begins_with_a_line(
    cpu: Device, width: int, streams: bool
) -> None:
    rows, lanes = (16 << 20) // 4 // 4096 + 1, 16
    b = Builder()
    out, x = b.param("o", float32, rows * width, "out"), b.param("x", float32, rows)
    with b.loop(rows, "grid") as i:
        scale = b.load(x, i)
        with b.loop(width, "serial", lanes) as j:
            b.store(out, i * width + j, b.op("mul", scale, b.cast(b.index(j), float32)))
    kernel = b.kernel()
    assert ("!nontemporal" in emit(kernel, BACKEND, HOOKS, cpu.limits)) is streams
    values = random(float32, rows)
    got = run(cpu, kernel, {"x": values})["o"].reshape(rows, width)
    np.testing.assert_array_equal(got, values[:, None] * np.arange(width, dtype=np.float32))


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("stride", [1, -1])
def test_a_gate_that_all_lanes_share_reads_nothing_where_it_is_closed(
    cpu: Device, dtype: DType, stride: int
) -> None:
    rows, width = 7, 50
    x, gate = random(dtype, rows * width), np.arange(rows) % 3 == 1
    for lanes in (1, 8, 16, 64):
        b = Builder()
        out = b.param("o", dtype, rows * width, "out")
        px, pg = b.param("x", dtype, rows * width), b.param("g", bool_, rows)
        with b.loop(rows, "grid") as i:
            open_ = b.load(pg, i)
            with b.loop(width, "serial", lanes) as j:
                at = i * width + (j if stride > 0 else j * -1 + (width - 1))
                b.store(out, i * width + j, b.load(px, at, open_))
        got = run(cpu, b.kernel(), {"x": x, "g": gate})["o"].reshape(rows, width)
        want = np.where(gate[:, None], x.reshape(rows, width)[:, ::stride], np.zeros(1, x.dtype))
        assert got.tobytes() == want.tobytes()


def test_scratch_memory_belongs_to_one_iteration(cpu: Device) -> None:
    rows, columns = 300, 37
    b = Builder()
    out, x = b.param("o", float32, rows * columns, "out"), b.param("x", float32, rows * columns)
    with b.loop(rows, "grid") as i:
        row = b.array("row", float32, columns)
        with b.loop(columns, "serial", 16) as j:
            b.store(row, j, b.load(x, i * columns + j))
        with b.loop(columns, "serial", 16) as j:
            b.store(out, i * columns + j, b.load(row, j * -1 + (columns - 1)))
    values = random(float32, rows * columns)
    got = run(cpu, b.kernel(), {"x": values})["o"].reshape(rows, columns)
    np.testing.assert_array_equal(got, values.reshape(rows, columns)[:, ::-1])


# ---- reductions --------------------------------------------------------------------------------

REDUCED = [(k, d) for k in ("add", "mul", "max") for d in NUMBERS if dtypes.accumulator(d) is d]


@pytest.mark.parametrize("lanes", [1, 16, 64])
@pytest.mark.parametrize("n", [1, 63, 300])
@pytest.mark.parametrize(("kind", "dtype"), REDUCED, ids=lambda v: getattr(v, "name", v))
def test_a_reduction_of_rows(cpu: Device, kind: str, dtype: DType, n: int, lanes: int) -> None:
    rows = 5
    x = rng.integers(-2, 3, (rows, n)).astype(dtype.storage)
    if kind == "mul":
        x = np.where(rng.random((rows, n)) < 0.05, x, np.ones(1, x.dtype)) * np.array(1, x.dtype)
    got = run(cpu, reduction(kind, dtype, rows, n, lanes), {"x": x})["o"]
    function = {"add": np.sum, "mul": np.prod, "max": np.max}[kind]
    np.testing.assert_array_equal(
        got, function(x, axis=1, dtype=x.dtype) if kind != "max" else function(x, axis=1)
    )


def reduction(kind: str, dtype: DType, rows: int, n: int, lanes: int) -> Kernel:
    b = Builder()
    out, x = b.param("o", dtype, rows, "out"), b.param("x", dtype, rows * n)
    with b.loop(rows, "grid") as i:
        acc = b.acc(kind, dtype)
        with b.loop(n, "serial", lanes) as j:
            b.update(acc, b.load(x, i * n + j))
        b.store(out, i, b.result(acc, used=[i]))
    return b.kernel()


@pytest.mark.parametrize("kind", ["add", "max"])
@pytest.mark.parametrize("lanes", LANES)
def test_a_reduction_keeps_nan_and_infinity(cpu: Device, kind: str, lanes: int) -> None:
    x = np.ones((3, 100), np.float32)
    x[0, 3] = np.nan
    x[1, 97] = np.inf
    x[2, 50] = -np.inf
    got = run(cpu, reduction(kind, float32, 3, 100, lanes), {"x": x})["o"]
    np.testing.assert_array_equal(got, (np.sum if kind == "add" else np.max)(x, axis=1))


@pytest.mark.parametrize("dtype", [float32, float64], ids=lambda d: d.name)
def test_a_sum_of_products_stays_within_its_error_bound(cpu: Device, dtype: DType) -> None:
    n = 1000
    b = Builder()
    out = b.param("o", dtype, 1, "out")
    px, py = b.param("x", dtype, n), b.param("y", dtype, n)
    acc = b.acc("add", dtype)
    with b.loop(n, "serial", 16) as j:
        b.update(acc, b.op("mul", b.load(px, j), b.load(py, j)))
    b.store(out, 0, b.result(acc))
    x, y = (rng.standard_normal(n).astype(dtype.storage) for _ in range(2))
    kernel = b.kernel()
    assert "fmul contract" in emit(kernel, BACKEND, HOOKS, cpu.limits)
    products = [Fraction(a) * Fraction(c) for a, c in zip(x.tolist(), y.tolist(), strict=True)]
    got = Fraction(run(cpu, kernel, {"x": x, "y": y})["o"].tolist()[0])
    unit = Fraction(np.finfo(dtype.storage).eps.item()) / 2
    assert abs(got - sum(products)) <= n * unit * sum(map(abs, products))


def test_a_product_outside_a_sum_is_never_fused(cpu: Device) -> None:
    n = 256
    b = Builder()
    out, total = b.param("o", float32, n, "out"), b.param("t", float32, 1, "out")
    px = b.param("x", float32, n)
    acc = b.acc("add", float32)
    minus = b.const(-1, float32)
    with b.loop(n, "serial", 16) as j:
        x = b.load(px, j)
        square = b.op("mul", x, x)
        b.update(acc, square)  # may be fused here
        b.store(out, j, b.op("add", square, b.op("mul", b.op("mul", x, minus), x)))  # not here
    b.store(total, 0, b.result(acc))
    x = rng.standard_normal(n).astype(np.float32)
    got = run(cpu, b.kernel(), {"x": x})
    assert not got["o"].any()
    np.testing.assert_allclose(got["t"], np.square(x.astype(np.float64)).sum(), rtol=1e-5)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda d: d.name)
def test_argmax_takes_the_first_of_equals_and_nan_above_all(
    cpu: Device, dtype: DType, lanes: int
) -> None:
    rows, n = 40, 77
    x = rng.integers(0, 4, (rows, n)).astype(np.float32)
    if dtype.is_float:
        x[rng.random((rows, n)) < 0.01] = np.nan
        x[0] = -np.inf
    else:
        x[0] = float(dtype.min)
    x = stored(x, dtype)
    b = Builder()
    out, px = b.param("o", dtypes.int64, rows, "out"), b.param("x", dtype, rows * n)
    with b.loop(rows, "grid") as i:
        acc = b.acc("argmax", dtype)
        with b.loop(n, "serial", lanes) as j:
            b.update(acc, b.load(px, i * n + j), b.index(j))
        b.store(out, i, b.result(acc, 1, used=[i]))
    got = run(cpu, b.kernel(), {"x": x})["o"]
    np.testing.assert_array_equal(got, np.argmax(widened(x, dtype), axis=1))


def test_lanes_along_the_output_keep_a_sum_per_lane(cpu: Device) -> None:
    rows, columns = 50, 83
    b = Builder()
    out, x = b.param("o", float32, columns, "out"), b.param("x", float32, rows * columns)
    with b.loop(columns, "grid", 16) as j:
        acc = b.acc("add", float32)
        with b.loop(rows) as i:
            b.update(acc, b.load(x, i * columns + j))
        b.store(out, j, b.result(acc, used=[j]))
    values = rng.integers(-9, 9, (rows, columns)).astype(np.float32)
    np.testing.assert_array_equal(run(cpu, b.kernel(), {"x": values})["o"], values.sum(0))


# ---- loops -------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    lanes=st.sampled_from([1, 2, 4, 8, 16, 32]),
    kind=st.sampled_from(["serial", "unroll"]),
    flip=st.booleans(),
)
def test_nested_loops_visit_every_index_once(
    rows: int, columns: int, lanes: int, kind: str, flip: bool
) -> None:
    b = Builder()
    out = b.param("o", dtypes.int32, rows * columns, "out")
    with b.loop(rows, "grid") as i, b.loop(columns, kind, lanes) as j:
        place = i * -columns + (rows - 1) * columns + j if flip else i * columns + j
        value = i * 1000 + (j // 3) * 7 + j % 5
        b.store(out, place, b.index(value, dtypes.int32))
    got = run(opened(), b.kernel(), {})["o"].reshape(rows, columns)
    row, column = np.arange(rows)[:, None], np.arange(columns)
    want = row * 1000 + column // 3 * 7 + column % 5
    np.testing.assert_array_equal(got, want[::-1] if flip else want)


def test_a_kernel_without_a_grid_loop_runs_once(cpu: Device) -> None:
    b = Builder()
    out = b.param("o", float32, 1, "out")
    b.store(out, constant(0), b.const(4.5, float32))
    assert run(cpu, b.kernel(), {})["o"].tolist() == [4.5]


def test_equal_programs_have_equal_texts_whatever_their_names_and_sizes(cpu: Device) -> None:
    def text(name: str, n: int) -> str:
        b = Builder(name)
        out, x = b.param(f"{name}_o", float32, n, "out"), b.param(f"{name}_x", float32, n)
        with b.loop(n, "grid", 16) as i:
            b.store(out, i, b.op("add", b.load(x, i), b.load(x, i)))
        program: str = emit(b.kernel(), BACKEND, HOOKS, cpu.limits)
        return program

    assert text("a", 160) == text("b", 1600)
    assert text("a", 160) != text("a", 161)  # this one has a rest
