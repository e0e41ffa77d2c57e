"""Both routes compute what NumPy computes: every operation and dtype that kernels use."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

C = {"f4": "float", "f8": "double", "i4": "int", "i8": "long long", "u4": "unsigned"}
C |= {"i2": "short", "u2": "unsigned short", "i1": "signed char", "u1": "unsigned char"}
C |= {"u8": "unsigned long long", "b1": "bool"}

rng = np.random.default_rng(7)
F = (rng.standard_normal(300) * 4).astype("f4")
G = (rng.standard_normal(300) * 4).astype("f4")
P = np.abs(F) + np.float32(0.125)
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1e38, 1.5, -2.5], "f4")
D, E, Q = F.astype("f8"), G.astype("f8"), P.astype("f8")
I = rng.integers(-(2**31), 2**31, 300).astype("i4")  # noqa: E741
J = rng.integers(1, 1000, 300).astype("i4")
L = rng.integers(-(2**62), 2**62, 300)
M = L[::-1].copy() | 1
U = rng.integers(0, 2**32, 300).astype("u4")
UL = rng.integers(0, 2**63, 300).astype("u8")
S = rng.integers(0, 31, 300).astype("i4")
B8, B16 = I.astype("i1"), I.astype("i2")
BIG = (F * np.float32(1e5)).astype("f4")


@dataclass
class Case:
    """``out[i] = expression`` of a and b. ``ulp``: how far the result may be from ``want``, which
    is computed with more digits where it is a float."""

    name: str
    expression: str
    a: Any
    want: Any
    b: Any = None
    out: str = ""
    ulp: float = 0
    route: str = "ab"


def trunc_div(a: Any, b: Any) -> Any:
    return [
        math.trunc(abs(int(x)) // abs(int(y))) * (1 if (x < 0) == (y < 0) else -1)
        for x, y in zip(a, b, strict=True)
    ]


def trunc_mod(a: Any, b: Any) -> Any:
    return [int(x) - int(y) * q for x, y, q in zip(a, b, trunc_div(a, b), strict=True)]


def high(a: Any, b: Any, bits: int) -> Any:
    return [(int(x) * int(y)) >> bits for x, y in zip(a, b, strict=True)]


def single(name: str, function: Any, ulp: float, x: Any = F) -> Case:
    with np.errstate(all="ignore"):
        return Case(f"{name} f32", f"{name}f(a)", x, function(x.astype("f8")), ulp=ulp)


def double(name: str, function: Any, ulp: float, x: Any = D) -> Case:
    return Case(f"{name} f64", f"{name}(a)", x, function(x), ulp=ulp)


erf = np.vectorize(math.erf)
with np.errstate(all="ignore"):
    CASES = [
        # float32: the four operations and the roots are exact to the last bit
        Case("add f32", "a + b", F, F + G, G),
        Case("sub f32", "a - b", F, F - G, G),
        Case("mul f32", "a * b", F, F * G, G),
        Case("div f32", "a / b", F, F / G, G),
        Case("mul add f32 apart", "a * b + a", F, F * G + F, G),
        Case("fma f32", "fmaf(a, b, a)", F, (D * E + D).astype("f4"), G, ulp=1),
        Case("sqrt f32", "sqrtf(a)", P, np.sqrt(P)),
        Case("specials f32", "a * 1.0f", SPECIAL, SPECIAL),
        Case("sum of specials f32", "a + b", SPECIAL, SPECIAL + SPECIAL[::-1], SPECIAL[::-1].copy()),
        Case("neg abs f32", "-fabsf(a)", SPECIAL, -np.abs(SPECIAL)),
        single("exp", np.exp, 2),
        single("exp2", np.exp2, 2),
        single("expm1", np.expm1, 2),
        single("log", np.log, 2, P),
        single("log2", np.log2, 2, P),
        single("log1p", np.log1p, 2, P),
        single("sin", np.sin, 2),
        single("cos", np.cos, 2),
        single("tan", np.tan, 4),
        single("sin", np.sin, 2, BIG),
        single("cos", np.cos, 2, (BIG * np.float32(1e6)).astype("f4")),
        single("tanh", np.tanh, 2),
        single("sinh", np.sinh, 3),
        single("atan", np.arctan, 2),
        single("erf", erf, 2),
        single("rsqrt", lambda x: 1 / np.sqrt(x), 2, P),
        Case("pow f32", "powf(a, b)", P, Q**E, G, ulp=8),
        Case("fmod f32", "fmodf(a, b)", F, np.fmod(F, G), G),
        Case("floor f32", "floorf(a)", F, np.floor(F)),
        Case("ceil f32", "ceilf(a)", F, np.ceil(F)),
        Case("trunc f32", "truncf(a)", F, np.trunc(F)),
        Case("rint f32", "rintf(a)", F, np.rint(F)),
        Case("max of NaN f32", "fmaxf(a, b)", SPECIAL, np.fmax(SPECIAL, F[:10]), F[:10].copy()),
        Case("greater or NaN", "a > b || a != a ? a : b", SPECIAL, np.maximum(SPECIAL, F[:10]), F[:10].copy()),
        Case("lt f32", "a < b", SPECIAL, G[:10] > SPECIAL, G[:10].copy(), out="u1"),
        Case("ne f32", "a != a", SPECIAL, np.isnan(SPECIAL), out="u1"),
        # float64
        Case("add mul f64", "a * b + a", D, D * E + D, E),
        Case("div f64", "a / b", D, D / E, E),
        Case("sqrt f64", "sqrt(a)", Q, np.sqrt(Q)),
        Case("fma f64", "fma(a, a, -(a * a))", D, [float(Fraction(x) ** 2 - Fraction(x * x)) for x in D.tolist()]),
        double("exp", np.exp, 2),
        double("log", np.log, 2, Q),
        double("sin", np.sin, 2),
        double("sin", np.sin, 2, D * 1e12),
        double("cos", np.cos, 2, D * 1e200),
        double("tanh", np.tanh, 2),
        double("atan", np.arctan, 2),
        Case("pow f64", "pow(a, b)", Q, Q**E, E, ulp=2),
        Case("fmod f64", "fmod(a, b)", D, np.fmod(D, E), E),
        # integers
        Case("add mul i32 unsigned", "(int)((unsigned)a * 3u + (unsigned)b)", I, I * np.int32(3) + J, J),
        Case("div i32", "a / b", I, trunc_div(I, J), J),
        Case("mod i32", "a % b", I, trunc_mod(I, J), J),
        Case("shl i32", "(int)((unsigned)a << b)", I, I << S, S),
        Case("shr i32", "a >> b", I, I >> S, S),
        Case("max i32", "a > b ? a : b", I, np.maximum(I, J), J),
        Case("hash u32", "(a ^ (a >> 7)) * 2654435761u", U, (U ^ (U >> 7)) * np.uint32(2654435761)),
        Case("rotate u32", "(a << 13) | (a >> 19)", U, (U << 13) | (U >> 19)),
        Case("div u32", "a / 7u + a % 10u", U, U // 7 + U % 10),
        Case("mulhi u32", "__umulhi(a, a)", U, high(U, U, 32)),
        Case("mulhi i32", "__mulhi(a, b)", I, high(I, J, 32), J),
        Case("popc clz", "__popc(a) + __clz(b)", I, [bin(int(x) & 0xFFFFFFFF).count("1") + 32 - int(y).bit_length() for x, y in zip(I, J, strict=True)], J),
        Case("mul add i64", "(long long)((unsigned long long)a * 3 + 7)", L, L * 3 + 7),
        Case("div i64", "a / b", L, trunc_div(L, M), M),
        Case("mod i64", "a % b", L, trunc_mod(L, M), M),
        Case("shr i64", "a >> 40", L, L >> 40),
        Case("div u64", "a / 1000000007ull", UL, UL // 1000000007),
        Case("mulhi u64", "__umul64hi(a, a)", UL, high(UL, UL, 64)),
        Case("and or xor i64", "(a & b) | (a ^ 255)", L, (L & M) | (L ^ 255), M),
        Case("i8", "a + b", B8, B8.astype("i4") + B8[::-1], B8[::-1].copy(), out="i4"),
        Case("i16 mul", "a * b", B16, B16.astype("i4") * B16[::-1], B16[::-1].copy(), out="i4"),
        Case("u8 wraps", "(unsigned char)(a + 200)", B8.view("u1"), B8.view("u1") + np.uint8(200)),
        # conversions
        Case("f32 to i32", "(int)a", BIG, BIG.astype("i4"), out="i4"),
        Case("f32 to i64", "(long long)a", BIG, BIG.astype("i8"), out="i8"),
        Case("f64 to i64", "(long long)a", D * 1e10, (D * 1e10).astype("i8"), out="i8"),
        Case("f32 to u8", "(unsigned char)a", P, P.astype("u1"), out="u1"),
        Case("i32 to f32", "(float)a", I, I.astype("f4"), out="f4"),
        Case("i64 to f32", "(float)a", L, L.astype("f4"), out="f4"),
        Case("u64 to f64", "(double)a", UL, UL.astype("f8"), out="f8"),
        Case("f64 to f32", "(float)a", D / 3, (D / 3).astype("f4"), out="f4"),
        Case("f32 to i32 saturates", "(int)a", SPECIAL, [0, 0, 2**31 - 1, -(2**31), 0, 0, 0, 2**31 - 1, 1, -2], out="i4", route="b"),
        Case("f32 to u32 saturates", "(unsigned)a", SPECIAL, [0, 0, 2**32 - 1, 0, 0, 0, 0, 2**32 - 1, 1, 0], out="u4", route="b"),
        Case("bits f32", "__float_as_uint(a) + 1u", F, F.view("u4") + np.uint32(1), out="u4"),
        Case("bits f64", "__double_as_longlong(a)", D, D.view("i8"), out="i8"),
        Case("bits i32", "__int_as_float(a)", J, J.view("f4"), out="f4"),
        Case("where f32", "b > 0.0f ? a : -1.0f", F, np.where(G > 0, F, -1), G),
        Case("bool", "(bool)(a != 0 && b > 500)", I % 3, (I % 3 != 0) & (J > 500), J, out="b1"),
        Case("vector load", "((const float4*)x)[i / 4].y", F, np.repeat(F[1::4], 4)),
    ]  # fmt: skip


def ulps(got: Any, want: Any) -> float:
    """The largest distance in units of the last place of the result's dtype."""
    got, want = np.asarray(got), np.asarray(want, "f8")
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(all="ignore"):
        unit = np.spacing(np.abs(want).astype(got.dtype)).astype("f8")
        distance = np.abs(got.astype("f8") - want) / unit
    return float(np.where(same, 0, distance).max())


def text_of(case: Case, count: int, out: str) -> str:
    a, b = C[case.a.dtype.str[1:]], C[(case.a if case.b is None else case.b).dtype.str[1:]]
    return f"""
extern "C" __global__ void __launch_bounds__(64) k({C[out]}* o, const {a}* x, const {b}* y) {{
  const int i = blockIdx.x * 64 + threadIdx.x;
  if (i < {count}) {{
    const {a} a = x[i];
    const {b} b = y[i];
    o[i] = {case.expression};
  }}
}}
"""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_operation_computes_what_numpy_computes(
    case: Case, route: str, run: Callable[..., list[Any]]
) -> None:
    if route not in case.route:
        pytest.skip("C++ does not define it; route A reports it (test_planted_bugs.py)")
    out = case.out or case.a.dtype.str[1:]
    count = len(case.a)
    got = run(
        text_of(case, count, out),
        np.zeros(count, out),
        case.a,
        case.a if case.b is None else case.b,
        route=route,
        grid=-(-count // 64),
        options=["-fmad=false"],
    )[0]
    if got.dtype.kind == "f":
        assert ulps(got, case.want) <= case.ulp + (0.5 if case.ulp else 0)
    else:
        np.testing.assert_array_equal(got, np.asarray(case.want).astype(out))


@pytest.mark.parametrize("architecture", [75, 80, 90, 100, 120])
def test_each_architectures_ptx_computes_the_same(
    has_nvrtc: None, architecture: int, run: Callable[..., list[Any]]
) -> None:
    """NVRTC writes PTX in another style from compute_100 on."""
    case = next(case for case in CASES if case.name == "pow f32")
    got = run(
        text_of(case, 300, "f4"),
        np.zeros(300, "f4"),
        case.a,
        case.b,
        route="b",
        grid=5,
        options=[f"-arch=compute_{architecture}"],
    )[0]
    assert ulps(got, case.want) <= 8


def test_half_by_inline_ptx(route: str, run: Callable[..., list[Any]]) -> None:
    text = """
static __device__ float unpack(unsigned short h) {
  float x;
  asm("{ cvt.f32.f16 %0, %1; }" : "=f"(x) : "h"(h));
  return x;
}
static __device__ unsigned short pack(float x) {
  unsigned short h;
  asm volatile("cvt.rn.f16.f32 %0, %1;\\n" : "=h"(h) : "f"(x));
  return h;
}
extern "C" __global__ void __launch_bounds__(64) k(unsigned short* o, const unsigned short* x) {
  const int i = blockIdx.x * 64 + threadIdx.x;
  o[i] = pack(unpack(x[i]) * 3.0f + 1.0f);
}
"""
    every = np.arange(65536, dtype=np.uint16)
    got = run(text, np.zeros(65536, "u2"), every, route=route, grid=1024)[0].view("f2")
    with np.errstate(all="ignore"):
        want = (every.view("f2").astype("f4") * np.float32(3) + np.float32(1)).astype("f2")
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    number = ~np.isnan(want)
    np.testing.assert_array_equal(got.view("u2")[number], want.view("u2")[number])


def test_bfloat16_by_inline_ptx(route: str, run: Callable[..., list[Any]]) -> None:
    text = """
extern "C" __global__ void __launch_bounds__(64) k(unsigned short* o, const float* x) {
  const int i = blockIdx.x * 64 + threadIdx.x;
  unsigned short h;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x[i]));
  o[i] = h;
}
"""
    x = np.concatenate([F, SPECIAL, BIG])[:576].copy()
    got = run(text, np.zeros(576, "u2"), x, route=route, grid=9)[0]
    bits = x.view("u4").astype("u8")
    want = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("u2")
    want[np.isnan(x)] = 0x7FFF
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("instruction", "function"),
    [
        ("fma.rm.f32 %0, %1, %2, %3", "floor"),
        ("fma.rp.f32 %0, %1, %2, %3", "ceil"),
        ("fma.rz.f32 %0, %1, %2, %3", "trunc"),
    ],
)
def test_directed_rounding_is_exact(
    instruction: str, function: str, route: str, run: Callable[..., list[Any]]
) -> None:
    text = f"""
extern "C" __global__ void __launch_bounds__(64) k(float* o, const float* x, const float* y) {{
  const int i = threadIdx.x;
  float r;
  asm("{instruction};" : "=f"(r) : "f"(x[i]), "f"(y[i]), "f"(x[63 - i]));
  o[i] = r;
}}
"""
    x, y = F[:64].copy(), G[:64].copy()
    got = run(text, np.zeros(64, "f4"), x, y, route=route)[0]
    for i, value in enumerate(got):
        exact = Fraction(float(x[i])) * Fraction(float(y[i])) + Fraction(float(x[63 - i]))
        below, above = (
            np.nextafter(value, np.float32(-np.inf)),
            np.nextafter(value, np.float32(np.inf)),
        )
        down = function == "floor" or (function == "trunc" and exact > 0)
        if down:
            assert Fraction(float(value)) <= exact < Fraction(float(above))
        else:
            assert Fraction(float(below)) < exact <= Fraction(float(value))
