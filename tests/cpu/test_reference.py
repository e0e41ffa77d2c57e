"""The device `numpy`: hand-made kernels against NumPy and exact integers."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import Builder, from_stored, run, to_stored

from coregrad import dtypes
from coregrad.dtypes import (
    ALL,
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    from_bits,
    int8,
    int32,
    int64,
    to_bits,
)
from coregrad.errors import UnsupportedOp, VerifyError
from coregrad_cpu import formats, reference
from coregrad_cpu.reference import Backend, ReferenceDevice

rng = np.random.default_rng(2)
FLOATS = (float16, bfloat16, float32, float64)
INTS = dtypes.INTS


def floats(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def apply(op: str, columns: list[object], source: DType, target: DType, attr: object = None):  # type: ignore[no-untyped-def]
    """One op on whole columns: a kernel with one grid loop; the stored result."""
    n = len(columns[0])  # type: ignore[arg-type]
    b = Builder(op)
    out = b.param("o", target, n, "out")
    dtype_of = [bool_, source, source] if op == "where" else [source] * len(columns)
    params = [b.param(f"x{k}", d, n) for k, d in enumerate(dtype_of)]
    with b.loop(n, "grid") as i:
        args = [b.load(p, i) for p in params]
        b.store(out, i, b.op(op, *args, dtype=target, attr=attr))
    return run(b.kernel(), {f"x{k}": c for k, c in enumerate(columns)})["o"]


# ---- special values and exactness --------------------------------------------------------------


def special(dtype: DType) -> list[float]:
    """Zeros, infinities, NaN, subnormals, extremes, powers of two and their neighbours."""
    if not dtype.is_float:
        low, high = dtype.min, dtype.max
        return sorted({low, high, 0, 1, high // 2, high - 1, low + 1, *([-1, -2] if low else [])})
    one, top = to_bits(1.0, dtype), to_bits(math.inf, dtype)
    bits = [0, 1, 2, one - 1, one, one + 1, to_bits(2.5, dtype), to_bits(0.5, dtype), top - 1, top]
    sign = 1 << (dtype.bits - 1)
    numbers = [from_bits(b | s, dtype) for b in bits for s in (0, sign)]
    return [*numbers, math.nan]


def nearest(value: Fraction | float, dtype: DType) -> float:
    """``value`` rounded once to nearest even: integer arithmetic only."""
    if not isinstance(value, Fraction):
        return value
    if value == 0:
        return 0.0
    precision = {float16: 11, bfloat16: 8, float32: 24, float64: 53}[dtype]
    smallest = {float16: -14, bfloat16: -126, float32: -126, float64: -1022}[dtype]
    size, sign = abs(value), -1.0 if value < 0 else 1.0
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, smallest) - precision + 1)
    rounded = round(size / unit) * unit  # Python rounds halves to even
    if rounded > Fraction(from_bits(to_bits(math.inf, dtype) - 1, dtype)):
        return sign * math.inf
    return sign * abs(float(rounded))


def exact_cast(x: float, source: DType, target: DType) -> float:
    if target is bool_:
        return float(x != 0)
    if target.is_float:
        if isinstance(x, float) and (x != x or math.isinf(x) or x == 0):
            return x
        return nearest(Fraction(x), target)
    if source.is_float:
        if x != x:
            return 0
        return int(min(max(x if math.isinf(x) else math.trunc(x), target.min), target.max))
    wrapped = int(x) & ((1 << target.bits) - 1)
    signed = target.kind == "int" and wrapped >> (target.bits - 1)
    return wrapped - (1 << target.bits) if signed else wrapped


def same(got: object, want: object) -> None:
    np.testing.assert_array_equal(got, want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


@pytest.mark.parametrize("target", ALL, ids=str)
@pytest.mark.parametrize("source", ALL, ids=str)
def test_casts_of_special_values_are_exact(source: DType, target: DType) -> None:
    values = special(source)
    if source.is_float:
        ends = [v for d in INTS for v in (d.min, d.max, d.max / 2, 2.0**31, -(2.0**31), 0.7, -1.5)]
        values += [from_bits(to_bits(float(v), source), source) for v in ends]
    elif source.bits == 64 and target.is_float:  # ties that a rounding through float64 would miss
        values += [2**62 + 2**54 + 1, 2**62 + 2**54, 2**62 + 2**38 + 1, 2**60 + 2**36 - 1]
    got = from_stored(apply("cast", [values], source, target, source), target)
    want = [exact_cast(x, source, target) for x in values]
    if target.is_float:
        same(got.astype(np.float64), np.array(want, np.float64))
    else:
        assert [int(v) for v in got] == [int(w) for w in want]


@given(st.lists(st.floats(width=64), min_size=1, max_size=20))
@settings(deadline=None)
def test_float64_is_rounded_once_to_bfloat16(values: list[float]) -> None:
    got = from_stored(apply("cast", [values], float64, bfloat16, float64), bfloat16)
    want = [exact_cast(x, float64, bfloat16) for x in values]
    same(got.astype(np.float64), np.array(want))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", ["add", "mul", "div"])
def test_float_arithmetic_is_correctly_rounded(op: str, dtype: DType) -> None:
    pairs = list(itertools.product(special(dtype), repeat=2))
    draws = rng.standard_normal((400, 2)) * 2.0 ** rng.integers(-12, 12, (400, 2))
    pairs += [tuple(from_bits(to_bits(v, dtype), dtype) for v in pair) for pair in draws]
    a, b = zip(*pairs, strict=True)
    got = from_stored(apply(op, [a, b], dtype, dtype), dtype).astype(np.float64)
    with np.errstate(all="ignore"):
        wide = {"add": np.add, "mul": np.multiply, "div": np.divide}[op](np.array(a), np.array(b))
    for k, (x, y) in enumerate(pairs):
        finite = math.isfinite(x) and math.isfinite(y)
        if not finite or wide[k] == 0 or (op == "div" and y == 0):
            continue  # float64 gives these exactly (or as the sign of a zero below)
        fx, fy = Fraction(x), Fraction(y)
        wide[k] = nearest(fx + fy if op == "add" else fx * fy if op == "mul" else fx / fy, dtype)
    same(got, wide)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_comparisons_and_selections_follow_ieee(dtype: DType) -> None:
    a, b = (grid.ravel() for grid in np.meshgrid(special(dtype), special(dtype)))
    np.testing.assert_array_equal(apply("lt", [a, b], dtype, bool_), a < b)
    np.testing.assert_array_equal(apply("ne", [a, b], dtype, bool_), a != b)
    largest = from_stored(apply("max", [a, b], dtype, dtype), dtype)
    np.testing.assert_array_equal(largest.astype(np.float64), np.maximum(a, b))
    chosen = from_stored(apply("where", [a < b, a, b], dtype, dtype), dtype)
    same(chosen.astype(np.float64), np.where(a < b, a, b))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_remainders_are_exact(dtype: DType) -> None:
    pairs = list(itertools.product(special(dtype), repeat=2))
    got = from_stored(apply("mod", list(zip(*pairs, strict=True)), dtype, dtype), dtype)
    for value, (x, y) in zip(got.astype(np.float64), pairs, strict=True):
        if math.isnan(x) or math.isnan(y) or math.isinf(x) or y == 0:
            assert math.isnan(value)
        else:
            assert value == math.fmod(x, y)
            assert math.copysign(1, value) == math.copysign(1, x)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integer_arithmetic_wraps(dtype: DType) -> None:
    def wrap(value: int) -> int:
        return int(exact_cast(value, int64, dtype))

    pairs = list(itertools.product(special(dtype), repeat=2))
    columns = list(zip(*pairs, strict=True))
    for op, exact in (("add", int.__add__), ("mul", int.__mul__), ("max", max)):
        want = [wrap(exact(x, y)) for x, y in pairs]
        assert apply(op, columns, dtype, dtype).tolist() == want, op
    for op, exact in (("and", int.__and__), ("or", int.__or__), ("xor", int.__xor__)):
        want = [wrap(exact(x, y)) for x, y in pairs]
        assert apply(op, columns, dtype, dtype).tolist() == want, op
    safe = [(x, y) for x, y in pairs if y not in (0, -1)]
    columns = list(zip(*safe, strict=True))
    quotients = [abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in safe]
    assert apply("idiv", columns, dtype, dtype).tolist() == quotients
    rests = [x - q * y for (x, y), q in zip(safe, quotients, strict=True)]
    assert apply("mod", columns, dtype, dtype).tolist() == rests
    counts = [(x, n) for x in special(dtype) for n in (0, 1, dtype.bits - 1)]
    columns = list(zip(*counts, strict=True))
    assert apply("shl", columns, dtype, dtype).tolist() == [wrap(x << n) for x, n in counts]
    assert apply("shr", columns, dtype, dtype).tolist() == [x >> n for x, n in counts]


@pytest.mark.parametrize("dtype", [float16, bfloat16, float32, float64], ids=str)
def test_bitcasts_keep_every_bit(dtype: DType) -> None:
    words = {16: dtypes.uint16, 32: dtypes.uint32, 64: dtypes.uint64}[dtype.bits]
    bits = [to_bits(v, dtype) for v in special(dtype) if v == v]
    assert apply("bitcast", [from_numbers(bits, dtype)], dtype, words, dtype).tolist() == bits
    assert apply("bitcast", [bits], words, dtype, words).view(words.storage).tolist() == bits


def from_numbers(bits: list[int], dtype: DType) -> list[float]:
    return [from_bits(b, dtype) for b in bits]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_transcendentals_are_within_an_ulp(dtype: DType) -> None:
    x = np.concatenate([rng.standard_normal(300) * 3, [0.0, -0.0, math.inf, -math.inf, math.nan]])
    x = from_stored(to_stored(x, dtype), dtype).astype(np.float64)
    one = {float16: 2.0**-10, bfloat16: 2.0**-7, float32: 2.0**-23, float64: 2.0**-52}[dtype]
    with np.errstate(all="ignore"):
        cases = [("exp", np.exp(x), None), ("log", np.log(x), None), ("sqrt", np.sqrt(x), None)]
        cases += [("trunc", np.trunc(x), None)]
        turned = [np.sin(x), np.cos(x), -np.sin(x), -np.cos(x)]
        cases += [("sin", value, quarter) for quarter, value in enumerate(turned)]
    for op, want, attr in cases:
        got = from_stored(apply(op, [x], dtype, dtype, attr), dtype).astype(np.float64)
        np.testing.assert_allclose(got, want, rtol=one, atol=2.0**-24 if dtype is float16 else 0)


def test_sine_of_negative_zero_keeps_its_sign() -> None:
    assert math.copysign(1, apply("sin", [[-0.0]], float32, float32, 0)[0]) == -1


# ---- kernels -----------------------------------------------------------------------------------


def test_axpy_fused_with_a_bfloat16_store_rounds_once_per_op() -> None:
    b = Builder()
    out, x, y = (b.param(n, bfloat16, 50, r) for n, r in (("o", "out"), ("x", "in"), ("y", "in")))
    a = b.const(3, bfloat16)
    with b.loop(50, "grid") as i:
        b.store(out, i, b.op("add", b.op("mul", a, b.load(x, i)), b.load(y, i)))
    xs, ys = (formats.unpacked(formats.packed(floats(50))) for _ in range(2))
    product = formats.unpacked(formats.packed(xs * np.float32(3)))
    got = run(b.kernel(), {"x": xs, "y": ys})["o"]
    np.testing.assert_array_equal(got, formats.packed(product + ys))


@pytest.mark.parametrize("block", [7, 64, 1 << 20])
@pytest.mark.parametrize(("kind", "fold"), [("add", np.add), ("max", np.maximum)])
def test_reductions_do_not_depend_on_the_block_size(
    kind: str, fold: np.ufunc, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "BLOCK", block)
    b = Builder()
    out, x = b.param("o", int64, 5, "out"), b.param("x", int64, 5 * 6 * 11)
    with b.loop(5, "grid") as i:
        acc = b.acc(kind, int64)
        with b.loop(6) as j, b.loop(11) as k:
            b.update(acc, b.load(x, i * 66 + j * 11 + k))
        b.store(out, i, b.result(acc, used=[i]))
    xs = rng.integers(-99, 99, (5, 66))
    np.testing.assert_array_equal(run(b.kernel(), {"x": xs})["o"], fold.reduce(xs, axis=1))


def test_a_long_sum_of_float32_is_pairwise() -> None:
    n = 1 << 20
    b = Builder()
    out, x = b.param("o", float32, 1, "out"), b.param("x", float32, n)
    acc = b.acc("add", float32)
    with b.loop(n) as r:
        b.update(acc, b.load(x, r))
    b.store(out, 0, b.result(acc))
    xs = rng.random(n).astype(np.float32)
    want = math.fsum(xs.tolist())
    assert abs(run(b.kernel(), {"x": xs})["o"][0] - want) < 1e-6 * want


def test_a_constant_in_a_reduction_counts_once_per_iteration() -> None:
    b = Builder()
    out = b.param("o", int32, 3, "out")
    one = b.const(1, int32)
    with b.loop(3, "grid") as i:
        acc = b.acc("add", int32)
        with b.loop(4), b.loop(5):
            b.update(acc, one)
        b.store(out, i, b.result(acc, used=[i]))
    assert run(b.kernel(), {})["o"].tolist() == [20, 20, 20]


@pytest.mark.parametrize("block", [3, 1 << 20])
@pytest.mark.parametrize("dtype", [float32, int32, float16], ids=str)
def test_argmax_takes_the_first_of_the_largest(
    dtype: DType, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "BLOCK", block)
    xs = rng.integers(-2, 3, (40, 9)).astype(dtype.storage)
    if dtype.is_float:
        xs[3, 4:6] = np.nan
        xs[4] = -np.inf
    b = Builder()
    out, x = b.param("o", int64, 40, "out"), b.param("x", dtype, 360)
    with b.loop(40, "grid") as i:
        acc = b.acc("argmax", dtype)
        with b.loop(9) as r:
            b.update(acc, b.load(x, i * 9 + r), b.index(r))
        b.store(out, i, b.result(acc, 1, used=[i]))
    got = run(b.kernel(), {"x": xs})["o"]
    np.testing.assert_array_equal(got, np.argmax(xs, axis=1))


def test_a_running_sum_is_stored_in_order() -> None:
    b = Builder()
    out, x = b.param("o", int32, 21, "out"), b.param("x", int32, 21)
    with b.loop(3, "grid") as i:
        acc = b.acc("add", int32)
        with b.loop(7) as r:
            b.update(acc, b.load(x, i * 7 + r))
            b.store(out, i * 7 + r, b.result(acc, used=[i, r]))
    xs = rng.integers(-9, 9, (3, 7))
    got = run(b.kernel(), {"x": xs})["o"].reshape(3, 7)
    np.testing.assert_array_equal(got, np.cumsum(xs, axis=1))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
@settings(deadline=None)
def test_scatter_adds_every_source_and_keeps_the_last_one_set(places: list[int]) -> None:
    n, width = len(places), 3
    values = np.arange(n * width, dtype=np.int32).reshape(n, width) + 1
    b = Builder()
    total, last = b.param("t", int32, 5 * width, "inout"), b.param("l", int32, 5 * width, "inout")
    x, k = b.param("x", int32, n * width), b.param("k", int64, n)
    with b.loop(n) as s:
        place = b.opaque(b.load(k, s), 0, 4)
        with b.loop(width) as d:
            value = b.load(x, s * width + d)
            b.store(total, place * width + d, b.op("add", b.load(total, place * width + d), value))
            b.store(last, place * width + d, value)
    start = np.full((5, width), 100, np.int32)
    got = run(b.kernel(), {"t": start, "l": start, "x": values, "k": places})
    want_total, want_last = start.copy(), start.copy()
    for place, value in zip(places, values, strict=True):
        want_total[place] += value
        want_last[place] = value
    np.testing.assert_array_equal(got["t"].reshape(5, width), want_total)
    np.testing.assert_array_equal(got["l"].reshape(5, width), want_last)


@pytest.mark.parametrize("block", [5, 1 << 20])
def test_every_grid_iteration_has_scratch_of_its_own(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "BLOCK", block)
    b = Builder()
    out, x = b.param("o", float32, 24, "out"), b.param("x", float32, 24)
    with b.loop(4, "grid") as i:
        row = b.array("row", float32, 6)
        with b.loop(6) as j:
            b.store(row, j, b.load(x, i * 6 + j))
        with b.loop(6) as j:
            b.store(out, i * 6 + j, b.load(row, j * -1 + 5))
    xs = floats(4, 6)
    got = run(b.kernel(), {"x": xs})["o"].reshape(4, 6)
    np.testing.assert_array_equal(got, xs[:, ::-1])


def test_a_work_group_shares_its_local_array() -> None:
    b = Builder()
    out, x = b.param("o", int32, 12, "out"), b.param("x", int32, 12)
    with b.loop(3, "grid") as i:
        shared = b.array("shared", int32, 4, "local")
        with b.loop(4, "local") as t:
            b.store(shared, t, b.load(x, i * 4 + t))
            b.barrier()
            b.store(out, i * 4 + t, b.load(shared, t * -1 + 3))
    xs = rng.integers(0, 99, (3, 4))
    got = run(b.kernel(), {"x": xs})["o"].reshape(3, 4)
    np.testing.assert_array_equal(got, xs[:, ::-1])


def test_a_gated_store_writes_only_where_its_gate_holds() -> None:
    b = Builder()
    out, x = b.param("o", int8, 6, "inout"), b.param("x", int8, 9)
    zero = b.const(0, int8)
    with b.loop(9, "grid") as i:
        value = b.load(x, i)
        b.store(out, i, value, b.op("lt", zero, value))
    xs = np.array([1, -1, 2, 0, -5, 6, -1, -1, 0])
    got = run(b.kernel(), {"x": xs, "o": np.full(6, 50)})["o"]
    assert got.tolist() == [1, 50, 2, 50, 50, 6]


def test_a_gated_load_from_an_empty_buffer_is_zero() -> None:
    b = Builder()
    out, x = b.param("o", float32, 4, "out"), b.param("x", float32, 0)
    never = b.const(0, bool_)
    with b.loop(4, "grid") as i:
        b.store(out, i, b.load(x, i, never))
    assert run(b.kernel(), {})["o"].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("shift", [-1, 1])
def test_an_access_outside_a_buffer_is_an_error(shift: int) -> None:
    b = Builder()
    out, x = b.param("o", float32, 4, "out"), b.param("x", float32, 4)
    with b.loop(4, "grid") as i:
        b.store(out, i, b.load(x, i + shift))
    with pytest.raises(VerifyError, match=r"x: index .* leaves its 4 elements"):
        run(b.kernel(), {"x": floats(4)})


def test_a_boolean_is_a_byte_of_zero_or_one() -> None:
    got = apply("cast", [[0.0, -0.0, 3.0, math.nan]], float32, bool_, float32)
    assert got.view(np.uint8).tolist() == [0, 0, 1, 1]


# ---- the device --------------------------------------------------------------------------------


def test_memory_is_copied_in_and_out() -> None:
    device = Backend().open_device(0)
    buffer = device.allocate(16)
    data = bytearray(range(10))
    device.copy_in(buffer, memoryview(data))
    data[0] = 99
    out = bytearray(10)
    device.copy_out(buffer, memoryview(out))
    device.synchronize()
    device.free(buffer)
    assert out == bytes(range(10))


def test_nothing_is_launched_on_an_eager_device() -> None:
    device = ReferenceDevice()
    with pytest.raises(UnsupportedOp, match="once it is emitted"):
        device.launch(device.compile(None), [], 1)
