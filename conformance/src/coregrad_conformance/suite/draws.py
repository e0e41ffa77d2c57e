"""Random numbers: the same bits on every device, by the definition of the generator.

The oracle is threefry2x32-20 (Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1,
2, 3", SC11) on Python integers, and what each distribution makes of its words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import coregrad as cg
from coregrad import Tensor
from coregrad.dtypes import FLOATS, DType
from coregrad_conformance import ulp
from coregrad_conformance.row import Failure, Outcome, Row
from coregrad_conformance.suite.functions import to_stored
from coregrad_conformance.suite.programs import near

if TYPE_CHECKING:
    from coregrad_conformance.target import Target

GROUP = "draws"
COUNT = 257
# Of the largest number: a logarithm, a root and a cosine, each within 4 ulp of the dtype and times
# a condition that is large where the logarithm is small.
SINGLE = 1e-5
DOUBLE = 1e-12
SEED = 20240229
WORD = 0xFFFFFFFF
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)


def rows() -> Iterator[Row]:
    """The rows of this file."""
    for dtype in FLOATS:
        yield _row(f"uniform/{dtype.name}", partial(_uniform, dtype), "Uniform numbers, all bits.")
    for dtype in (cg.float32, cg.float64):
        yield _row(f"normal/{dtype.name}", partial(_normal, dtype), "Normal numbers, near float64.")
    for high in (7, 1000, 1 << 31, 1 << 33):
        yield _row(f"integers/{high}", partial(_integers, high), f"Integers below {high}.")
    yield _row("sequence", _sequence, "Every draw has a key of its own, in the order of the calls.")
    yield _row("permutation", _permutation, "A permutation holds every number once.")


def _row(name: str, run: Callable[..., Any], summary: str) -> Row:
    return Row(f"draws/{name}", "standard", GROUP, run, summary=summary)


# ---- the generator -----------------------------------------------------------------------------


def threefry(counter: tuple[int, int], key: tuple[int, int]) -> tuple[int, int]:
    """Two words of random bits.

    >>> [hex(word) for word in threefry((0, 0), (0, 0))]
    ['0x6b200159', '0x99ba4efe']
    """
    keys = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    a, b = (counter[0] + keys[0]) & WORD, (counter[1] + keys[1]) & WORD
    for step in range(20):
        a = (a + b) & WORD
        turn = ROTATIONS[step % 8]
        b = (b << turn | b >> (32 - turn)) & WORD ^ a
        if step % 4 == 3:
            group = step // 4 + 1
            a = (a + keys[group % 3]) & WORD
            b = (b + keys[(group + 1) % 3] + group) & WORD
    return a, b


def words(draw: int, count: int, stream: int = 0) -> list[tuple[int, int]]:
    """The words of the elements of a draw under SEED."""
    key = threefry((draw, 0), (SEED & WORD, SEED >> 32))
    return [threefry((i, stream << 31), key) for i in range(count)]


# ---- rows --------------------------------------------------------------------------------------


def _uniform(dtype: DType, target: Target) -> Outcome:
    """Multiples of 2**-digits: the upper bits of the words."""
    target.require(dtype)
    cg.manual_seed(SEED)
    got = to_stored(cg.rand(COUNT, dtype=dtype, device=target.name))
    digits = ulp.FORMATS[dtype].digits
    if dtype is cg.float64:
        want = [((a >> 5) * 2**26 + (b >> 6)) * 2.0**-53 for a, b in words(0, COUNT)]
    else:
        want = [(a >> (32 - digits)) * 2.0**-digits for a, _ in words(0, COUNT)]
    return _equal(ulp.decode(got, dtype).tolist(), want)


def _equal(got: list[Any], want: list[Any]) -> Outcome:
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if a != b:
            raise Failure(f"element {i} is {a!r}, expected {b!r}")
    return Outcome(len(want))


def _normal(dtype: DType, target: Target) -> Outcome:
    """Box and Muller's method, 1958."""
    target.require(dtype)
    cg.manual_seed(SEED)
    got = np.asarray(cg.randn(COUNT, dtype=dtype, device=target.name).numpy())
    if dtype is cg.float64:
        pairs = zip(words(0, COUNT), words(0, COUNT, stream=1), strict=True)
        want = [_box(_wide(*low) + 2.0**-54, _wide(*high)) for low, high in pairs]
        return Outcome(near(got, np.array(want), "randn", DOUBLE))
    want = [_box((a + 0.5) * 2.0**-32, (b >> 8) * 2.0**-24) for a, b in words(0, COUNT)]
    return Outcome(near(got, np.array(want), "randn", SINGLE))


def _wide(a: int, b: int) -> float:
    return ((a >> 5) * 2**26 + (b >> 6)) * 2.0**-53


def _box(distance: float, turn: float) -> float:
    return math.sqrt(-2 * math.log(distance)) * math.cos(2 * math.pi * turn)


def _integers(high: int, target: Target) -> Outcome:
    """The upper part of 64 random bits times the range; beyond 32 bits the remainder."""
    cg.manual_seed(SEED)
    got = cg.randint(COUNT, high=high, dtype=cg.int64, device=target.name).tolist()
    if high <= 1 << 32:
        want = [((a << 32 | b) * high) >> 64 for a, b in words(0, COUNT)]
    else:
        want = [(a << 32 | b) % high for a, b in words(0, COUNT)]
    return _equal(got, want)


def _sequence(target: Target) -> Outcome:
    """Evaluated in the opposite order, and one of them twice."""
    cg.manual_seed(SEED)
    drawn = [cg.rand(n, device=target.name) for n in (5, 33, 4)]
    values = [x.tolist() for x in reversed(drawn)][::-1]
    again = drawn[1].tolist()
    for number, got in enumerate([*values, again]):
        draw = number if number < 3 else 1
        want = [(a >> 8) * 2.0**-24 for a, _ in words(draw, len(got))]
        _equal(got, want)
    return Outcome(5 + 33 + 4 + 33)


def _permutation(target: Target) -> Outcome:
    cg.manual_seed(SEED)
    x: Tensor = cg.randperm(1000, device=target.name)
    got = x.tolist()
    if got == list(range(1000)):
        raise Failure("randperm left everything in place")
    return _equal(sorted(got), list(range(1000)))
