"""Single PTX instructions against oracles written from NVIDIA's PTX ISA manual, in Python integers.

They stand in ``asm`` statements: route A translates them by itself, route B gets them from NVRTC.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

MASK = 0xFFFFFFFF
rng = np.random.default_rng(3)
EDGES = [0, 1, 2, 31, 32, 33, 255, 256, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFF00FF00]
A = np.array(EDGES * 4 + rng.integers(0, 2**32, 16).tolist(), np.uint32)
B = np.array(rng.integers(0, 2**32, 52).tolist() + EDGES, np.uint32)
D = np.array(rng.integers(0, 40, 32).tolist() + rng.integers(0, 2**32, 32).tolist(), np.uint32)


def signed(x: int, bits: int = 32) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def bfe(a: int, start: int, length: int, sign: bool) -> int:
    start, length = start & 255, length & 255
    if length == 0:
        return 0
    last = a >> min(start + length - 1, 31) & 1
    fill = last if sign else 0
    bits = [a >> (start + i) & 1 if i < length and start + i < 32 else fill for i in range(32)]
    return sum(bit << i for i, bit in enumerate(bits))


def bfi(a: int, b: int, start: int, length: int) -> int:
    start, length = start & 255, length & 255
    for i in range(length):
        if start + i < 32:
            b = b & ~(1 << (start + i)) | (a >> i & 1 if i < 32 else 0) << (start + i)
    return b


def prmt(a: int, b: int, selector: int) -> int:
    both = [(b << 32 | a) >> 8 * i & 255 for i in range(8)]
    result = 0
    for i in range(4):
        which = selector >> 4 * i & 15
        byte = both[which & 7]
        result |= ((255 if byte & 128 else 0) if which & 8 else byte) << 8 * i
    return result


def lop3(a: int, b: int, c: int, table: int) -> int:
    bits = [table >> (4 * (a >> i & 1) + 2 * (b >> i & 1) + (c >> i & 1)) & 1 for i in range(32)]
    return sum(bit << i for i, bit in enumerate(bits))


def dp4a(a: int, b: int, c: int) -> int:
    return c + sum(signed(a >> i, 8) * signed(b >> i, 8) for i in range(0, 32, 8))


def dp2a(a: int, b: int, c: int, start: int) -> int:
    return c + (a & 0xFFFF) * (b >> start & 255) + (a >> 16) * (b >> start + 8 & 255)


@dataclass(frozen=True)
class Case:
    """``asm("instruction" : "=r"(d) : "r"(a), "r"(b), "r"(c))`` on three words."""

    instruction: str
    want: Callable[[int, int, int], int]


CASES = [
    Case("bfe.u32 %0, %1, %3, 7", lambda a, b, c: bfe(a, c, 7, False)),
    Case("bfe.u32 %0, %1, 3, %3", lambda a, b, c: bfe(a, 3, c, False)),
    Case("bfe.s32 %0, %1, %3, 5", lambda a, b, c: bfe(a, c, 5, True)),
    Case("bfe.s32 %0, %1, 3, %3", lambda a, b, c: bfe(a, 3, c, True)),
    Case("bfi.b32 %0, %1, %2, %3, 9", lambda a, b, c: bfi(a, b, c, 9)),
    Case("bfi.b32 %0, %1, %2, 4, %3", lambda a, b, c: bfi(a, b, 4, c)),
    Case("prmt.b32 %0, %1, %2, %3", prmt),
    Case("lop3.b32 %0, %1, %2, %3, 0xE8", lambda a, b, c: lop3(a, b, c, 0xE8)),
    Case("lop3.b32 %0, %1, %2, %3, 0x1D", lambda a, b, c: lop3(a, b, c, 0x1D)),
    Case("shf.l.wrap.b32 %0, %1, %2, %3", lambda a, b, c: (b << 32 | a) << (c & 31) >> 32),
    Case("shf.l.clamp.b32 %0, %1, %2, %3", lambda a, b, c: (b << 32 | a) << min(c, 32) >> 32),
    Case("shf.r.wrap.b32 %0, %1, %2, %3", lambda a, b, c: (b << 32 | a) >> (c & 31)),
    Case("shf.r.clamp.b32 %0, %1, %2, %3", lambda a, b, c: (b << 32 | a) >> min(c, 32)),
    Case("shl.b32 %0, %1, %3", lambda a, b, c: a << c if c < 32 else 0),
    Case("shr.u32 %0, %1, %3", lambda a, b, c: a >> c if c < 32 else 0),
    Case("shr.s32 %0, %1, %3", lambda a, b, c: signed(a) >> min(c, 31)),
    Case("brev.b32 %0, %1", lambda a, b, c: int(f"{a:032b}"[::-1], 2)),
    Case("popc.b32 %0, %1", lambda a, b, c: a.bit_count()),
    Case("clz.b32 %0, %1", lambda a, b, c: 32 - a.bit_length()),
    Case("mul.hi.s32 %0, %1, %2", lambda a, b, c: signed(a) * signed(b) >> 32),
    Case("mul.hi.u32 %0, %1, %2", lambda a, b, c: a * b >> 32),
    Case("mad.lo.s32 %0, %1, %2, %3", lambda a, b, c: a * b + c),
    Case("mad.hi.u32 %0, %1, %2, %3", lambda a, b, c: (a * b >> 32) + c),
    Case("min.s32 %0, %1, %2", lambda a, b, c: min(signed(a), signed(b))),
    Case("max.u32 %0, %1, %2", lambda a, b, c: max(a, b)),
    Case("abs.s32 %0, %1", lambda a, b, c: abs(signed(a))),
    Case("neg.s32 %0, %1", lambda a, b, c: -a),
    Case("not.b32 %0, %1", lambda a, b, c: ~a),
    Case("slct.u32.s32 %0, %1, %2, %3", lambda a, b, c: a if signed(c) >= 0 else b),
    Case("dp4a.s32.s32 %0, %1, %2, %3", dp4a),
    Case("dp2a.lo.u32.u32 %0, %1, %2, %3", lambda a, b, c: dp2a(a, b, c, 0)),
    Case("dp2a.hi.u32.u32 %0, %1, %2, %3", lambda a, b, c: dp2a(a, b, c, 16)),
    Case("cvt.sat.s8.s32 %0, %1", lambda a, b, c: max(-128, min(127, signed(a)))),
    Case("cvt.sat.u16.s32 %0, %1", lambda a, b, c: max(0, min(65535, signed(a)))),
    Case("{ .reg .pred p; setp.lo.u32 p, %1, %2; selp.b32 %0, 1, 0, p; }", lambda a, b, c: a < b),
    Case(
        "{ .reg .pred p, q; setp.ge.s32 q, %3, 40; setp.lt.and.s32 p, %1, %2, q; "
        "selp.b32 %0, 1, 0, p; }",
        lambda a, b, c: signed(a) < signed(b) and signed(c) >= 40,
    ),
    Case(
        "{ .reg .pred p, q; setp.eq.s32 p|q, %1, %2; selp.b32 %0, 5, 9, q; }",
        lambda a, b, c: 5 if a != b else 9,
    ),
    Case("{ .reg .b32 t; add.cc.u32 t, %1, %2; addc.u32 %0, 0, 0; }", lambda a, b, c: a + b >> 32),
    Case(
        "{ .reg .b32 t; sub.cc.u32 t, %1, %2; subc.u32 %0, %3, 0; }",
        lambda a, b, c: c - (a < b),
    ),
    Case(
        "{ .reg .b32 t; mad.lo.cc.u32 t, %1, %2, %3; madc.hi.u32 %0, %1, %2, 0; }",
        lambda a, b, c: a * b + c >> 32,
    ),
    Case(
        "{ .reg .b64 t; .reg .b32 u; mov.b64 t, {%1, %2}; shr.u64 t, t, 12; mov.b64 {%0, u}, t; }",
        lambda a, b, c: (b << 32 | a) >> 12,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.instruction)
def test_an_instruction_on_integers(case: Case, route: str, run: Callable[..., list[Any]]) -> None:
    text = f"""
extern "C" __global__ void __launch_bounds__(64)
k(unsigned* o, const unsigned* a, const unsigned* b, const unsigned* c) {{
  const int i = threadIdx.x;
  unsigned d;
  asm("{case.instruction};" : "=r"(d) : "r"(a[i]), "r"(b[i]), "r"(c[i]));
  o[i] = d;
}}
"""
    got = run(text, np.zeros(64, np.uint32), A, B, D, route=route)[0]
    triples = zip(A.tolist(), B.tolist(), D.tolist(), strict=True)
    assert got.tolist() == [int(case.want(*triple)) & MASK for triple in triples]


NAN, INF = float("nan"), float("inf")
X = np.array(
    [0.0, -0.0, 1.5, -2.5, NAN, INF, -INF, 1e-40, 0.5, -0.25, 3.0, 1e30, -1e30, 2.0, 7.9, -7.9]
)
Y = X[[1, 0, 4, 2, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 4, 15]]


def saturated(x: float, low: int, high: int, nan: int) -> int:
    if x != x:
        return nan
    return low if x <= low else high if x >= high else int(x)


@pytest.mark.parametrize(
    ("instruction", "want"),
    [
        ("min.f32 %0, %1, %2", lambda x, y: y if x != x else x if y != y else min(x, y, key=lambda v: (v, np.copysign(1, v)))),
        ("max.f32 %0, %1, %2", lambda x, y: y if x != x else x if y != y else max(x, y, key=lambda v: (v, np.copysign(1, v)))),
        ("min.NaN.f32 %0, %1, %2", lambda x, y: NAN if x != x or y != y else min(x, y, key=lambda v: (v, np.copysign(1, v)))),
        ("copysign.f32 %0, %1, %2", lambda x, y: np.copysign(y, x)),
        ("add.sat.f32 %0, %1, %2", lambda x, y: 0 if x + y != x + y else max(0, min(1, np.float32(x) + np.float32(y)))),
        ("mul.ftz.f32 %0, %1, 0f3F800000", lambda x, y: x if abs(x) >= 2**-126 or x != x else np.copysign(0, x)),
        ("abs.f32 %0, %1", lambda x, y: abs(x)),
        ("cvt.rni.f32.f32 %0, %1", lambda x, y: np.rint(x)),
        ("cvt.rmi.f32.f32 %0, %1", lambda x, y: np.floor(x)),
    ],
)  # fmt: skip
def test_an_instruction_on_floats(
    instruction: str, want: Any, route: str, run: Callable[..., list[Any]]
) -> None:
    text = f"""
extern "C" __global__ void __launch_bounds__(64) k(float* o, const float* a, const float* b) {{
  const int i = threadIdx.x;
  float d;
  asm("{instruction};" : "=f"(d) : "f"(a[i]), "f"(b[i]));
  o[i] = d;
}}
"""
    x, y = X.astype("f4"), Y.astype("f4")
    got = run(text, np.zeros(16, "f4"), x, y, route=route, block=16)[0]
    with np.errstate(all="ignore"):
        expected = np.array([want(a, b) for a, b in zip(x, y, strict=True)], "f4")
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(got.view("u4")[number], expected.view("u4")[number])


@pytest.mark.parametrize(
    ("kind", "nan"),
    [("s32", 0), ("u32", 0), ("s16", 0), ("s64", 1 << 63), ("u64", 1 << 63)],
)
def test_floats_become_integers_saturated_and_nan_as_the_manual_says(
    kind: str, nan: int, route: str, run: Callable[..., list[Any]]
) -> None:
    text = f"""
extern "C" __global__ void __launch_bounds__(64) k(unsigned long long* o, const float* a) {{
  const int i = threadIdx.x;
  unsigned long long d;
  asm("{{ .reg .{kind} t; cvt.rzi.{kind}.f32 t, %1; cvt.{kind[0]}64.{kind} %0, t; }}"
      : "=l"(d) : "f"(a[i]));
  o[i] = d;
}}
"""
    bits = int(kind[1:])
    low, high = (
        (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
    )
    x = np.append(X[:15], 70000.0).astype("f4")
    got = run(text, np.zeros(16, "u8"), x, route=route, block=16)[0]
    assert got.tolist() == [saturated(float(v), low, high, nan) & (1 << 64) - 1 for v in x]


# ---- warps ---------------------------------------------------------------------------------------

LANES = list(range(64))


def source(mode: str, lane: int, by: int, width: int) -> int:
    """The lane that a shuffle reads, by the CUDA C++ guide."""
    first, last = lane // width * width, lane // width * width + width - 1
    other = {"up": lane - by, "down": lane + by, "xor": lane ^ by, "idx": first + by % width}[mode]
    if mode == "up":
        return other if other >= first else lane
    return other if other <= last else lane


@pytest.mark.parametrize("width", [32, 16, 8])
@pytest.mark.parametrize("by", [1, 5, 16])
@pytest.mark.parametrize("mode", ["up", "down", "xor", "idx"])
def test_shuffles(
    mode: str, by: int, width: int, route: str, run: Callable[..., list[Any]]
) -> None:
    name = {"idx": "__shfl_sync"}.get(mode, f"__shfl_{mode}_sync")
    text = f"""
extern "C" __global__ void __launch_bounds__(64) k(int* o) {{
  o[threadIdx.x] = {name}(~0u, (int)threadIdx.x * 10, {by}, {width});
}}
"""
    got = run(text, np.zeros(64, "i4"), route=route)[0]
    assert got.tolist() == [10 * (t // 32 * 32 + source(mode, t % 32, by, width)) for t in LANES]


def test_votes(route: str, run: Callable[..., list[Any]]) -> None:
    text = """
extern "C" __global__ void __launch_bounds__(64) k(unsigned* o) {
  const int t = threadIdx.x;
  const unsigned ballot = __ballot_sync(~0u, t % 3 == 0);
  const int some = __any_sync(~0u, t == 40), all = __all_sync(~0u, t < 40);
  unsigned half = 0;
  if (t % 32 < 8) half = __ballot_sync(0xffu, t & 1);
  o[4 * t] = ballot;
  o[4 * t + 1] = some;
  o[4 * t + 2] = all;
  o[4 * t + 3] = half;
}
"""
    got = run(text, np.zeros(256, "u4"), route=route)[0].reshape(64, 4)
    for t in LANES:
        warp = t // 32 * 32
        ballot = sum(((warp + i) % 3 == 0) << i for i in range(32))
        assert got[t].tolist() == [ballot, warp == 32, warp == 0, 0xAA if t % 32 < 8 else 0]


def test_atomics_do_not_depend_on_the_order(route: str, run: Callable[..., list[Any]]) -> None:
    text = """
extern "C" __global__ void __launch_bounds__(64) k(unsigned* o) {
  const unsigned i = blockIdx.x * 64 + threadIdx.x;
  atomicAdd(o, i);
  atomicMax(o + 1, i);
  atomicMin(o + 2, i + 5);
  atomicOr(o + 3, 1u << i % 16);
  atomicXor(o + 4, i);
}
"""
    start = np.array([0, 0, 1000, 0, 0], "u4")
    got = run(text, start, route=route, grid=3)[0]
    numbers = np.arange(192)
    xor = int(np.bitwise_xor.reduce(numbers))
    assert got.tolist() == [numbers.sum(), 191, 5, 0xFFFF, xor]
