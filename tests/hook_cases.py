"""Test support: kernels that try every hook of a backend, with what they must compute.

Each :class:`Case` is one kernel with several outputs; what these must hold is computed here by
NumPy and Python alone, in float64 or wider and in exact integers. Whoever tests a backend runs the
kernels in its own way and hands the results to :func:`problems`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from kernels import Builder
from oracle import bfloat16_bits, from_bfloat16_bits

from coregrad import dtypes
from coregrad.dtypes import (
    ALL,
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint8,
)
from coregrad.ir.index import Index
from coregrad.ir.kernel import Instr, Kernel
from coregrad.ir.ops import CONTRACT_OPS

RANDOM = 60  # random operands beside the special ones
THREADS = 64  # of the work-groups here
SIN = {0: np.sin, 1: np.cos, 2: lambda x: -np.sin(x), 3: lambda x: -np.cos(x)}


@dataclass
class Want:
    """What an output must hold, in stored form; or exact numbers, and how far they may be off: some
    ulp, or some ``bound`` of each."""

    dtype: DType
    values: Any
    ulp: float = 0.0
    bound: Any = None


@dataclass
class Case:
    """A kernel, its inputs in stored form, and what must come out."""

    name: str
    kernel: Kernel
    inputs: dict[str, Any] = field(default_factory=dict)
    wants: dict[str, Want] = field(default_factory=dict)


@np.errstate(all="ignore")
def problems(case: Case, outputs: dict[str, Any]) -> list[str]:
    """What is wrong with the outputs (stored form) of a case; empty if nothing is."""
    out = []
    for name, want in case.wants.items():
        got = outputs[name]
        exact = want.ulp == 0.0 and want.bound is None
        good = _same(got, want) if exact else _close(got, want)
        if not good.all():
            i = int(np.argmin(good))
            given = ", ".join(
                f"{n}={widened(x, p.dtype)[i]!r}"
                for p in case.kernel.params
                if (n := p.name) in case.inputs and len(x := case.inputs[n]) == len(good)
            )
            a, b = (widened(np.asarray(x), want.dtype)[i] for x in (got, want.values))
            count = f"{int((~good).sum())} of {len(good)} are wrong"
            out.append(f"{case.name} {name}[{i}] of {given}: {a!r}, not {b!r} ({count})")
    return out


def _same(got: Any, want: Want) -> Any:
    """Bit for bit; any NaN is any other NaN, and max may give either zero."""
    a, b = widened(got, want.dtype), widened(np.asarray(want.values), want.dtype)
    if not want.dtype.is_float:
        return a == b
    return (np.isnan(a) & np.isnan(b)) | ((a == b) & (np.signbit(a) == np.signbit(b)))


def _close(got: Any, want: Want) -> Any:
    """Within some units of the last place of the exact number; the sign of a zero counts too."""
    a, exact = (
        widened(got, want.dtype).astype(np.longdouble),
        np.asarray(want.values, np.longdouble),
    )
    nearest = widened(rounded(exact, want.dtype), want.dtype).astype(np.longdouble)
    settled = (np.isnan(a) & np.isnan(exact)) | (
        (a == nearest) & (np.signbit(a) == np.signbit(exact))
    )
    bound = want.ulp * _unit(exact, want.dtype) if want.bound is None else want.bound
    return settled | (np.abs(a - exact) <= bound)


def _unit(exact: Any, dtype: DType) -> Any:
    """The distance of neighbouring numbers of ``dtype`` at ``exact``."""
    digits, lowest = {
        float16: (10, -14), bfloat16: (7, -126), float32: (23, -126), float64: (52, -1022),
    }[dtype]  # fmt: skip
    exponent = np.frexp(np.abs(exact))[1].astype(np.int64) - 1
    return np.ldexp(np.longdouble(1), np.maximum(exponent, lowest) - digits)


# ---- numbers -----------------------------------------------------------------------------------


def widened(x: Any, dtype: DType) -> Any:
    """Stored numbers as NumPy can compute with them."""
    return from_bfloat16_bits(x) if dtype is bfloat16 and x.dtype == np.uint16 else x


def rounded(x: Any, dtype: DType) -> Any:
    """Exact numbers in stored form, rounded once to nearest even."""
    if dtype is not bfloat16:
        return np.asarray(x).astype(dtype.storage)
    x = np.asarray(x)
    return bfloat16_bits(x.astype(np.float64) if x.dtype == np.longdouble else x)


def specials(dtype: DType) -> Any:
    """The values where things go wrong, in stored form."""
    if dtype is bool_:
        return np.array([False, True])
    if dtype.is_int:
        lo, hi = int(dtype.min), int(dtype.max)
        some = {lo, lo + 1, -129, -2, -1, 0, 1, 2, 7, 127, 255, 65537, hi // 2, hi - 1, hi}
        if hi.bit_length() > 53:  # what rounds otherwise by way of a double, or of a float32
            some |= {
                (1 << 53) + (1 << 29) + 1,
                (1 << 61) + (1 << 37) + 1,
                (1 << 61) + (1 << 53) + 1,
            }
        return np.array(sorted(v for v in some if lo <= v <= hi), dtype.storage)
    info = np.finfo(np.float32 if dtype is bfloat16 else dtype.storage)
    values = [0.0, 1.0, 1.5, 2.0, 0.1, math.pi, 88.0, math.inf, math.nan, 65504.0, 65519.9, 2.0**31]
    values += [info.max, info.tiny, info.smallest_subnormal, info.tiny * 0.75, 1 + info.eps]
    both = np.array(values + [-v for v in values], np.float64)
    return np.unique(rounded(both, dtype)) if dtype is bfloat16 else rounded(both, dtype)


def some(dtype: DType, count: int, seed: int = 0) -> Any:
    """Random numbers over the whole range, in stored form."""
    rng = np.random.default_rng(seed)
    if dtype is bool_:
        return rng.integers(0, 2, count).astype(bool)
    if dtype.is_int:
        wide = rng.integers(0, 1 << 63, count, np.uint64) * np.uint64(2)
        return (wide >> rng.integers(0, 64, count, np.uint64)).astype(dtype.storage)
    scale = {float16: 8.0, bfloat16: 60.0, float32: 60.0, float64: 400.0}[dtype]
    return rounded(rng.standard_normal(count) * np.exp2(rng.uniform(-scale, scale, count)), dtype)


def operands(dtype: DType) -> Any:
    """Special and random numbers, in stored form."""
    return np.concatenate([specials(dtype), some(dtype, RANDOM)])


def pairs(dtype: DType) -> tuple[Any, Any]:
    """All pairs of special values, and random ones."""
    a, b = (grid.ravel() for grid in np.meshgrid(specials(dtype), specials(dtype)))
    return (
        np.concatenate([a, some(dtype, RANDOM, 1)]),
        np.concatenate([b, some(dtype, RANDOM, 2)]),
    )


# ---- building ----------------------------------------------------------------------------------


class Bench:
    """A case under construction: one grid loop over all elements of its inputs."""

    def __init__(self, name: str, *inputs: tuple[DType, Any]) -> None:
        self.builder = Builder(name)
        self.case = Case(name, self.builder.kernel())
        self.size = len(inputs[0][1])
        self.params = []
        for i, (dtype, values) in enumerate(inputs):
            self.params.append(self.builder.param(f"x{i}", dtype, self.size))
            self.case.inputs[f"x{i}"] = values
        self._outputs: list[tuple[str, DType, Callable[..., Instr]]] = []

    def want(
        self, name: str, dtype: DType, values: Any, make: Callable[..., Instr], ulp: float = 0.0
    ) -> None:
        """An output; ``make`` gets the builder and the loaded operands."""
        self.case.wants[name] = Want(dtype, values, ulp)
        self._outputs.append((name, dtype, make))

    def done(self) -> Case:
        """The finished case."""
        b = self.builder
        outs = [b.param(name, dtype, self.size, "out") for name, dtype, _ in self._outputs]
        with b.loop(self.size, "grid") as i:
            loaded = [b.load(p, i) for p in self.params]
            for out, (_, _, make) in zip(outs, self._outputs, strict=True):
                b.store(out, i, make(b, *loaded))
        self.case.kernel = b.kernel()
        return self.case


def _op(name: str, dtype: DType | None = None, attr: Any = None) -> Callable[..., Instr]:
    return lambda b, *args: b.op(name, *args, dtype=dtype, attr=attr)


def cases(have: Iterable[DType] = ALL, lacking: Sequence[str] = ()) -> Iterator[Case]:
    """Every case for a backend with these dtypes and without these optional hooks."""
    have = tuple(have)
    with np.errstate(all="ignore"):
        for dtype in have:
            yield from _of_dtype(dtype, have, lacking)
        for group in (_memory_cases, _reduction_cases, group_cases):
            yield from group(have)


def _of_dtype(dtype: DType, have: Sequence[DType], lacking: Sequence[str]) -> Iterator[Case]:
    yield _casts(dtype, have)
    yield _bitcasts(dtype, have)
    yield _constants(dtype)
    yield _comparisons(dtype)
    if dtype.is_float:
        yield _functions(dtype, lacking)
        yield _known_operands(dtype, lacking)
        yield _float_arithmetic(dtype, lacking)
    else:
        yield _bits(dtype)
    if dtype.is_int:
        yield _integer_arithmetic(dtype)
        yield _divisions(dtype)


# ---- conversions and constants -----------------------------------------------------------------


def _casts(source: DType, have: Sequence[DType]) -> Case:
    x = operands(source)
    bench = Bench(f"cast_{source.name}", (source, x))
    for dtype in have:
        bench.want(dtype.name, dtype, converted(x, source, dtype), _op("cast", dtype, source))
    return bench.done()


def converted(x: Any, source: DType, dtype: DType) -> Any:
    """Stored numbers of one dtype as another, one Python number at a time."""
    if dtype is bool_:
        return widened(x, source) != 0
    values = [_converted(v, dtype) for v in widened(x, source).tolist()]
    if dtype.is_int:
        return np.array(values, dtype.storage)
    return np.concatenate([rounded(np.array([v], np.float64), dtype) for v in values])


def _converted(value: float | int | bool, dtype: DType) -> float | int:
    if dtype is float64:
        return float(value)
    if dtype.is_float:
        return _odd_double(value) if isinstance(value, int) else value
    if isinstance(value, float):
        if math.isfinite(value):
            return int(max(min(int(value), dtype.max), dtype.min))
        return 0 if math.isnan(value) else int(dtype.max if value > 0 else dtype.min)
    wrapped = int(value) & ((1 << dtype.bits) - 1)
    return wrapped - (1 << dtype.bits) if wrapped > dtype.max else wrapped


def _odd_double(value: int) -> float:
    """An integer as a double; float32 and narrower round it as they would round the integer."""
    excess = max(0, abs(int(value)).bit_length() - 53)
    kept = abs(int(value)) >> excess
    kept |= (kept << excess) != abs(int(value))
    return float(kept << excess) * (-1 if value < 0 else 1)


def _bitcasts(source: DType, have: Sequence[DType]) -> Case:
    x = operands(source)
    bench = Bench(f"bitcast_{source.name}", (source, x))
    for dtype in have:
        if dtype.bits == source.bits and bool_ not in (dtype, source):
            bench.want(dtype.name, dtype, x.view(dtype.storage), _op("bitcast", dtype, source))
    if source is bool_:
        bench.want("itself", bool_, x, lambda b, x: x)
    return bench.done()


def _constants(dtype: DType) -> Case:
    values = operands(dtype)[:40]
    bench = Bench(f"const_{dtype.name}", (int64, np.arange(3)))
    for i, value in enumerate(values):

        def make(b: Builder, x: Instr, value: Any = value) -> Instr:
            number = widened(np.asarray([value]), dtype)[0].item()
            return b.const(number, dtype)

        if i < 20:
            bench.want(f"c{i}", dtype, np.full(3, value, values.dtype), make)
    return bench.done()


# ---- comparisons, bits, selection --------------------------------------------------------------


def _comparisons(dtype: DType) -> Case:
    x, y = pairs(dtype)
    a, b = widened(x, dtype), widened(y, dtype)
    bench = Bench(f"compare_{dtype.name}", (dtype, x), (dtype, y))
    bench.want("lt", bool_, a < b, _op("lt"))
    bench.want("ne", bool_, a != b, _op("ne"))
    chosen = np.where(a < b, y, x)
    bench.want(
        "where", dtype, chosen, lambda k, x, y: k.op("where", k.op("lt", x, y), y, x, dtype=dtype)
    )
    if dtype is not bool_:
        # Of two zeros either may win: both are made +0 by adding it.
        zero = np.zeros(1, a.dtype)
        largest = np.maximum(a, b) + zero
        bench.want("max", dtype, rounded(largest, dtype), _max_plus_zero)
    return bench.done()


def _max_plus_zero(b: Builder, x: Instr, y: Instr) -> Instr:
    return b.op("add", b.op("max", x, y), b.const(0, x.dtype))


def _bits(dtype: DType) -> Case:
    x, y = pairs(dtype)
    bench = Bench(f"bits_{dtype.name}", (dtype, x), (dtype, y))
    bench.want("and", dtype, x & y, _op("and"))
    bench.want("or", dtype, x | y, _op("or"))
    bench.want("xor", dtype, x ^ y, _op("xor"))
    return bench.done()


# ---- arithmetic --------------------------------------------------------------------------------


def _wrapped(values: Iterable[int], dtype: DType) -> Any:
    return np.array([_converted(v, dtype) for v in values], dtype.storage)


def _integer_arithmetic(dtype: DType) -> Case:
    x, y = pairs(dtype)
    both = list(zip(x.tolist(), y.tolist(), strict=True))
    bench = Bench(f"arithmetic_{dtype.name}", (dtype, x), (dtype, y))
    bench.want("add", dtype, _wrapped((a + b for a, b in both), dtype), _op("add"))
    bench.want("mul", dtype, _wrapped((a * b for a, b in both), dtype), _op("mul"))
    return bench.done()


def _divisions(dtype: DType) -> Case:
    """Divisors as the core guards them, and counts of shifts within the width."""
    x, y = pairs(dtype)
    bad = (y == 0) | ((x == dtype.min) & (y == np.array(-1).astype(dtype.storage)))
    y = np.where(bad, 3, y).astype(dtype.storage)
    count = (np.arange(len(x)) % dtype.bits).astype(dtype.storage)
    both = list(zip(x.tolist(), y.tolist(), strict=True))
    shifts = list(zip(x.tolist(), count.tolist(), strict=True))
    quotients = [abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) for a, b in both]
    rests = [a - q * b for (a, b), q in zip(both, quotients, strict=True)]
    bench = Bench(f"divide_{dtype.name}", (dtype, x), (dtype, y), (dtype, count))
    bench.want("idiv", dtype, _wrapped(quotients, dtype), lambda b, x, y, n: b.op("idiv", x, y))
    bench.want("mod", dtype, _wrapped(rests, dtype), lambda b, x, y, n: b.op("mod", x, y))
    left, right = [a << n for a, n in shifts], [a >> n for a, n in shifts]
    bench.want("shl", dtype, _wrapped(left, dtype), lambda b, x, y, n: b.op("shl", x, n))
    bench.want("shr", dtype, _wrapped(right, dtype), lambda b, x, y, n: b.op("shr", x, n))
    return bench.done()


def _float_arithmetic(dtype: DType, lacking: Sequence[str]) -> Case:
    """Sums and products of two floats are exact in a type of twice the precision, and so rounded
    once; NumPy's own float64 arithmetic is the reference for float64."""
    x, y = pairs(dtype)
    a, b = widened(x, dtype), widened(y, dtype)
    wide = a.dtype if dtype in (float32, float64) else np.float64
    p, q = a.astype(wide), b.astype(wide)
    bench = Bench(f"arithmetic_{dtype.name}", (dtype, x), (dtype, y))
    bench.want("add", dtype, rounded(p + q, dtype), _op("add"))
    bench.want("mul", dtype, rounded(p * q, dtype), _op("mul"))
    ulp = CONTRACT_OPS["div"].ulp[dtype.name]
    quotient = a.astype(np.longdouble) / b.astype(np.longdouble)
    bench.want("div", dtype, quotient, _op("div"), ulp)
    if "fmod" not in lacking:
        bench.want("mod", dtype, rounded(np.fmod(p, q), dtype), _op("mod"))
    # A product and a sum that no one may make one operation of.
    both = rounded(widened(rounded(p * q, dtype), dtype).astype(wide) + q, dtype)
    bench.want("mul_add", dtype, both, lambda k, x, y: k.op("add", k.op("mul", x, y), y))
    return bench.done()


def _known_operands(dtype: DType, lacking: Sequence[str]) -> Case:
    """Functions of constants, which a compiler may compute by itself, NaN above all."""
    numbers = [math.nan, math.inf, -math.inf, 0.0, -2.5]
    bench = Bench(f"known_{dtype.name}", (dtype, rounded(np.array([7.5, -7.5, 0.25]), dtype)))
    functions = {"exp": np.exp, "log": np.log, "sqrt": np.sqrt, "trunc": np.trunc, "sin": np.sin}
    for name, function in functions.items():
        for i, number in enumerate(numbers):
            if name in lacking:
                continue
            value = np.full(3, function(np.longdouble(number)))
            attr = 0 if name == "sin" else None

            def make(
                b: Builder, x: Instr, op: str = name, c: float = number, a: Any = attr
            ) -> Instr:
                return b.op(op, b.const(c, dtype), attr=a)

            ulp = CONTRACT_OPS[name].ulp[dtype.name]
            bench.want(f"{name}_{i}", dtype, value, make, ulp)
    return bench.done()


def _functions(dtype: DType, lacking: Sequence[str]) -> Case:
    x = operands(dtype)
    near = np.random.default_rng(3).uniform(-100, 100, 60)
    x = np.concatenate([x, rounded(near, dtype), rounded(np.exp(near / 2), dtype)])
    wide = widened(x, dtype).astype(np.longdouble)
    bench = Bench(f"functions_{dtype.name}", (dtype, x))

    def want(name: str, values: Any, attr: Any = None, title: str = "") -> None:
        if name not in lacking:
            ulp = CONTRACT_OPS[name].ulp[dtype.name]
            bench.want(title or name, dtype, values, _op(name, dtype, attr), ulp)

    want("exp", np.exp(wide))
    want("log", np.log(wide))
    want("sqrt", np.sqrt(wide))
    for quarter, function in SIN.items():
        want("sin", function(wide), quarter, f"sin{quarter}")
    if "trunc" not in lacking:
        bench.want("trunc", dtype, rounded(np.trunc(wide), dtype), _op("trunc"))
    return bench.done()


# ---- memory and indices ------------------------------------------------------------------------


def _memory_cases(have: Sequence[DType]) -> Iterator[Case]:
    for dtype in have:
        yield _gated(dtype)
    yield _indices()
    yield _computed_index()
    yield _private()
    yield _scalar()
    yield _long_indices()


def _gated(dtype: DType) -> Case:
    """Loads and stores whose gate is false lie far outside."""
    x, n = operands(dtype)[:33], 33
    b = Builder(f"gated_{dtype.name}")
    p, keep = b.param("x0", dtype, n), b.param("x1", bool_, n)
    out, kept = b.param("loaded", dtype, n, "out"), b.param("stored", dtype, n, "inout")
    with b.loop(n, "grid") as i:
        gate = b.load(keep, i)
        far = i + b.opaque(_far(b, gate), 0, 1 << 40)
        value = b.load(p, far, gate)
        b.store(out, i, value)
        b.store(kept, far, value, gate)
    flags = np.arange(n) % 3 != 1
    old = np.concatenate([specials(dtype)] * n)[:n]
    case = Case(b.name, b.kernel(), {"x0": x, "x1": flags, "stored": old})
    case.wants["loaded"] = Want(dtype, np.where(flags, x, np.zeros(1, x.dtype)))
    case.wants["stored"] = Want(dtype, np.where(flags, x, old))
    return case


def _far(b: Builder, gate: Instr) -> Instr:
    return b.op("where", gate, b.const(0, int64), b.const(1 << 40, int64), dtype=int64)


def _indices() -> Case:
    """Quotients and remainders of negative and positive numbers, and an index as a value."""
    n = 60
    b = Builder("indices")
    x = b.param("x0", int32, 100)
    names = ("quotient", "remainder", "power", "walk", "flip")
    outs = {name: b.param(name, int64 if name != "flip" else int32, n, "out") for name in names}
    with b.loop(n, "grid") as i:
        from_zero = i - 30
        b.store(outs["quotient"], i, b.index(from_zero // 7))
        b.store(outs["remainder"], i, b.index(from_zero % 7))
        b.store(outs["power"], i, b.index(from_zero // 8 * 3 + from_zero % 16))
        b.store(outs["walk"], i, b.index(i * (1 << 33) - 5))
        b.store(outs["flip"], i, b.load(x, (i * -1 + 59) % 25 * 4))
    data = np.arange(100, dtype=np.int32) * 3 - 50
    case = Case("indices", b.kernel(), {"x0": data})
    at = np.arange(n)
    case.wants = {
        "quotient": Want(int64, (at - 30) // 7),
        "remainder": Want(int64, (at - 30) % 7),
        "power": Want(int64, (at - 30) // 8 * 3 + (at - 30) % 16),
        "walk": Want(int64, at * (1 << 33) - 5),
        "flip": Want(int32, data[(59 - at) % 25 * 4]),
    }
    return case


def _computed_index() -> Case:
    """An index loaded from memory, of an unsigned byte."""
    n = 50
    b = Builder("computed_index")
    x, index, out = (
        b.param("x0", float32, 256),
        b.param("x1", uint8, n),
        b.param("o", float32, n, "out"),
    )
    with b.loop(n, "grid") as i:
        b.store(out, i, b.load(x, b.opaque(b.load(index, i), 0, 255)))
    data, where = np.sqrt(np.arange(256, dtype=np.float32)), some(uint8, n)
    case = Case("computed_index", b.kernel(), {"x0": data, "x1": where})
    case.wants["o"] = Want(float32, data[where])
    return case


def _private() -> Case:
    """A row kept in scratch memory and read backwards, by an unrolled loop and a plain one."""
    b = Builder("private")
    x, out = b.param("x0", float16, 80), b.param("o", float16, 80, "out")
    with b.loop(10, "grid") as g:
        row = b.array("row", float16, 8)
        with b.loop(8, "unroll") as i:
            b.store(row, i, b.load(x, g * 8 + i))
        with b.loop(8) as i:
            b.store(out, g * 8 + i, b.load(row, i * -1 + 7))
    data = some(float16, 80)
    case = Case("private", b.kernel(), {"x0": data})
    case.wants["o"] = Want(float16, data.reshape(10, 8)[:, ::-1].ravel())
    return case


def _scalar() -> Case:
    """A kernel without a grid loop."""
    b = Builder("scalar")
    x, out = b.param("x0", float32, 1), b.param("o", float32, 1, "out")
    value = b.load(x, 0)
    b.store(out, 0, b.op("mul", value, value))
    case = Case("scalar", b.kernel(), {"x0": np.array([3.5], np.float32)})
    case.wants["o"] = Want(float32, np.array([12.25], np.float32))
    return case


def _long_indices() -> Case:
    """Integers of 64 bits that are known, and wrap around all the same."""
    n = 20
    b = Builder("long_values")
    out = b.param("o", int64, n, "out")
    with b.loop(n, "grid") as i:
        large = b.index(i * (1 << 58))
        b.store(out, i, b.op("mul", b.op("add", large, large), b.const(1 << 3, int64)))
    at = range(n)
    case = Case("long_values", b.kernel())
    case.wants["o"] = Want(int64, _wrapped(((i << 58) * 16 for i in at), int64))
    return case


# ---- reductions --------------------------------------------------------------------------------


def _reduction_cases(have: Sequence[DType]) -> Iterator[Case]:
    for dtype in have:
        if dtype is not bool_:
            yield _reduction(dtype)
            yield _argmax(dtype)


ROWS, COLUMNS = 12, 9


def _rows(dtype: DType) -> Any:
    """Rows of numbers, one of them with two NaNs, one of equal numbers, one of the least ones."""
    x = some(dtype, ROWS * COLUMNS, 4).reshape(ROWS, COLUMNS)
    x[3] = x[3, 0]
    x[5] = rounded(np.array(dtype.min), dtype) if dtype.is_float else dtype.min
    if dtype.is_float:
        x[1, 4] = x[1, 6] = rounded(np.array(np.nan), dtype)
        x[7, 8] = rounded(np.array(np.nan), dtype)
    return x


def _reduction(dtype: DType) -> Case:
    x, acc_dtype = _rows(dtype), dtypes.accumulator(dtype)
    b = Builder(f"reduce_{dtype.name}")
    p = b.param("x0", dtype, x.size)
    outs = {k: b.param(k, acc_dtype, ROWS, "out") for k in ("add", "mul", "max")}
    with b.loop(ROWS, "grid") as i:
        accs = {kind: b.acc(kind, acc_dtype) for kind in outs}
        with b.loop(COLUMNS) as j:
            value = b.load(p, i * COLUMNS + j)
            value = value if acc_dtype is dtype else b.cast(value, acc_dtype)
            for acc in accs.values():
                b.update(acc, value)
        for kind, out in outs.items():
            b.store(out, i, b.result(accs[kind], used=[i]))
    case = Case(b.name, b.kernel(), {"x0": x.ravel()})
    wide = widened(x, dtype)
    if not dtype.is_float:
        rows = x.tolist()
        case.wants["add"] = Want(acc_dtype, _wrapped(map(sum, rows), acc_dtype))
        case.wants["mul"] = Want(acc_dtype, _wrapped(map(math.prod, rows), acc_dtype))
        case.wants["max"] = Want(acc_dtype, np.array(list(map(max, rows)), acc_dtype.storage))
        return case
    product = np.ones(ROWS, acc_dtype.storage)
    for column in wide.T:  # in the order of the loop; a sum's order is free
        product = product * column.astype(product.dtype)
    exact = wide.astype(np.longdouble)
    bound = (COLUMNS - 1) * np.finfo(acc_dtype.storage).eps * np.abs(exact).sum(1)
    case.wants["add"] = Want(acc_dtype, exact.sum(1), bound=bound)
    case.wants["mul"] = Want(acc_dtype, product)
    case.wants["max"] = Want(acc_dtype, np.maximum.reduce(wide, 1).astype(acc_dtype.storage))
    return case


def _argmax(dtype: DType) -> Case:
    """Backwards through the row: of equals the smaller index wins all the same."""
    x = _rows(dtype)
    b = Builder(f"argmax_{dtype.name}")
    p = b.param("x0", dtype, x.size)
    best, index = b.param("best", dtype, ROWS, "out"), b.param("index", int64, ROWS, "out")
    with b.loop(ROWS, "grid") as i:
        acc = b.acc("argmax", dtype)
        with b.loop(COLUMNS) as j:
            at = j * -1 + (COLUMNS - 1)
            b.update(acc, b.load(p, i * COLUMNS + at), b.index(at))
        b.store(best, i, b.result(acc, 0, used=[i]))
        b.store(index, i, b.result(acc, 1, used=[i]))
    case = Case(b.name, b.kernel(), {"x0": x.ravel()})
    wide = widened(x, dtype)
    where = np.argmax(wide, 1)
    case.wants["best"] = Want(dtype, np.take_along_axis(x, where[:, None], 1).ravel())
    case.wants["index"] = Want(int64, where)
    return case


# ---- work-groups -------------------------------------------------------------------------------


def group_cases(have: Sequence[DType], threads: int = THREADS) -> Iterator[Case]:
    """Kernels with local memory and barriers."""
    for dtype in (float32, float16, int64, uint8, bool_):
        if dtype in have:
            yield _reversal(dtype, threads)
    yield _tree_sum(threads)
    yield _tree_argmax(threads)
    yield _tiled_product()


def _reversal(dtype: DType, threads: int) -> Case:
    """Every group turns its block around through local memory, twice over one array."""
    groups = 3
    b = Builder(f"group_reverse_{dtype.name}")
    x, out = (b.param(n, dtype, groups * threads, r) for n, r in (("x0", "in"), ("o", "out")))
    with b.loop(groups, "grid") as g:
        tile = b.array("tile", dtype, threads, "local")
        with b.loop(threads, "local") as t, b.loop(2) as r:
            b.store(tile, t, b.load(x, (g + r) % groups * threads + t))
            b.barrier()
            b.store(out, g * threads + t, b.load(tile, t * -1 + (threads - 1)))
            b.barrier()
    data = some(dtype, groups * threads, 5)
    case = Case(b.name, b.kernel(), {"x0": data})
    turned = data.reshape(groups, threads)[[1, 2, 0], ::-1]
    case.wants["o"] = Want(dtype, turned.ravel())
    return case


def _tree_sum(threads: int) -> Case:
    """A row per group: each thread adds a part, then halves are folded; thread 0 stores."""
    rows, per = 4, 5
    b = Builder("group_sum")
    x, out = b.param("x0", float32, rows * per * threads), b.param("o", float32, rows, "out")
    with b.loop(rows, "grid") as g:
        tile = b.array("tile", float32, threads, "local")
        with b.loop(threads, "local") as t:
            acc = b.acc("add", float32)
            with b.loop(per) as j:
                b.update(acc, b.load(x, g * (per * threads) + j * threads + t))
            b.store(tile, t, b.result(acc, used=[g, t]))
            b.barrier()
            half = threads // 2
            while half:
                within = b.op("lt", b.index(t), b.const(half, int64))
                upper = b.load(tile, t + half, within)
                b.store(tile, t, b.op("add", b.load(tile, t), upper), within)
                b.barrier()
                half //= 2
            first = b.op("lt", b.index(t), b.const(1, int64))
            b.store(out, g, b.load(tile, 0), first)
    data = np.random.default_rng(6).integers(-9, 9, rows * per * threads).astype(np.float32)
    case = Case(b.name, b.kernel(), {"x0": data})
    case.wants["o"] = Want(float32, data.reshape(rows, -1).sum(1))  # exact: small integers
    return case


def _tree_argmax(threads: int) -> Case:
    """Pairs of value and index in two local arrays."""
    rows = 3
    b = Builder("group_argmax")
    x, out = b.param("x0", float32, rows * threads), b.param("o", int64, rows, "out")
    with b.loop(rows, "grid") as g:
        values = b.array("values", float32, threads, "local")
        indices = b.array("indices", int64, threads, "local")
        with b.loop(threads, "local") as t:
            b.store(values, t, b.load(x, g * threads + t))
            b.store(indices, t, b.index(t))
            b.barrier()
            half = threads // 2
            while half:
                acc = b.acc("argmax", float32)
                within = b.op("lt", b.index(t), b.const(half, int64))
                for at in (t, t + half):
                    b.update(acc, b.load(values, at, within), b.load(indices, at, within))
                b.store(values, t, b.result(acc, 0, used=[g, t]), within)
                b.store(indices, t, b.result(acc, 1, used=[g, t]), within)
                b.barrier()
                half //= 2
            first = b.op("lt", b.index(t), b.const(1, int64))
            b.store(out, g, b.load(indices, 0), first)
    data = np.random.default_rng(7).integers(0, 9, rows * threads).astype(np.float32)
    data[threads + 5] = data[threads + 9] = np.nan
    case = Case(b.name, b.kernel(), {"x0": data})
    case.wants["o"] = Want(int64, np.argmax(data.reshape(rows, threads), 1))
    return case


def _tiled_product(tile: int = 8, blocks: int = 2, depth: int = 3) -> Case:
    """A matrix product by square tiles: two local arrays, two barriers in a serial loop."""
    n, inner, size = tile * blocks, tile * depth, tile * tile
    b = Builder("group_product")
    x, y = b.param("x0", float32, n * inner), b.param("x1", float32, inner * n)
    out = b.param("o", float32, n * n, "out")
    with b.loop(blocks * blocks, "grid") as g:
        left, right = (b.array(name, float32, size, "local") for name in ("left", "right"))
        with b.loop(size, "local") as t:
            row, column = _cell(g // blocks, t // tile, tile), _cell(g % blocks, t % tile, tile)
            acc = b.acc("add", float32)
            with b.loop(depth) as k:
                b.store(left, t, b.load(x, row * inner + (k * tile + t % tile)))
                b.store(right, t, b.load(y, (k * tile + t // tile) * n + column))
                b.barrier()
                with b.loop(tile) as j:
                    p = b.load(left, t // tile * tile + j)
                    q = b.load(right, j * tile + t % tile)
                    b.update(acc, b.op("mul", p, q))
                b.barrier()
            b.store(out, row * n + column, b.result(acc, used=[g, t]))
    rng = np.random.default_rng(8)
    p, q = (rng.integers(-9, 9, s).astype(np.float32) for s in ((n, inner), (inner, n)))
    case = Case(b.name, b.kernel(), {"x0": p.ravel(), "x1": q.ravel()})
    case.wants["o"] = Want(float32, (p @ q).ravel())  # exact: small integers
    return case


def _cell(block: Index, inside: Index, tile: int) -> Index:
    return block * tile + inside
