"""Random bits as a pure function of a key and a counter, and the seeded numbering of draws.

threefry2x32 with 20 rounds: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel Random
Numbers: As Easy as 1, 2, 3", SC11. Every draw takes its own key when it is *made*, so its numbers
do not depend on what is evaluated first, nor on the device: there is nothing but 32-bit integer
arithmetic. This file makes bits and tosses coins; it never knows a tensor.
"""

from __future__ import annotations

import math
import os
import threading
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from coregrad import engine
from coregrad.api import capture
from coregrad.dtypes import bool_, uint32, uint64
from coregrad.ir import build
from coregrad.ir.graph import Node, Shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

Words = tuple[Node, Node]
HostWords: TypeAlias = "tuple[NDArray[np.uint32], NDArray[np.uint32]]"

# The rotations and the key parity word of the paper's table 2 and section 3.3 (32-bit words).
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
GROUPS = 5  # of four rounds each, a key being added after every group


# ---- on nodes ----------------------------------------------------------------------------------


def threefry(counter: Words, key: Words) -> Words:
    """Two words of random bits per element; ``key`` holds two 0-d uint32 nodes."""
    shape = counter[0].shape
    parity = build.xor(build.xor(*key), build.const(PARITY, uint32))
    keys = (*key, parity)
    a = build.add(counter[0], spread(keys[0], shape))
    b = build.add(counter[1], spread(keys[1], shape))
    for group in range(GROUPS):
        for count in ROTATIONS[group % 2]:
            a = build.add(a, b)
            b = build.xor(_rotate(b, count), a)
        number = build.const(group + 1, uint32)
        a = build.add(a, spread(keys[(group + 1) % 3], shape))
        b = build.add(b, spread(build.add(keys[(group + 2) % 3], number), shape))
    return a, b


def _rotate(x: Node, count: int) -> Node:
    left = build.shl(x, build.const_like(x, count))
    return build.or_(left, build.shr(x, build.const_like(x, 32 - count)))


def spread(scalar: Node, shape: Shape) -> Node:
    """A 0-d node in every element of ``shape``."""
    return build.expand(build.reshape(scalar, (1,) * len(shape)), shape)


def words(shape: Shape, key: Node, stream: int = 0) -> Words:
    """Two words per element of ``shape``: element number i counts i. ``key`` is uint32[2].

    ``stream`` 1 gives two more, from the upper half of the counter."""
    count = math.prod(shape)
    halves = tuple(build.reshape(build.shrink(key, ((i, i + 1),)), ()) for i in range(2))
    low = build.reshape(build.iota(count, uint32), shape)
    high = build.const(stream << 31, uint32, shape)
    if count > 1 << 32:
        wide = build.reshape(build.iota(count, uint64), shape)
        high = build.or_(high, build.cast(build.shr(wide, build.const_like(wide, 32)), uint32))
    return threefry((low, high), (halves[0], halves[1]))


def chance(probability: float, shape: Shape, key: Node) -> Node:
    """True with this probability (to 32 bits), decided on integers."""
    threshold = round(probability * 2**32)
    if threshold >= 1 << 32:
        return build.const(True, bool_, shape)
    bits, _ = words(shape, key)
    return build.lt(bits, build.const_like(bits, threshold))


# ---- on the host -------------------------------------------------------------------------------


def threefry_host(counter: HostWords, key: HostWords) -> HostWords:
    """The same function on NumPy arrays of uint32 (with an axis: NumPy's scalars would warn)."""
    keys = (*key, key[0] ^ key[1] ^ np.uint32(PARITY))
    a = counter[0] + keys[0]
    b = counter[1] + keys[1]
    for group in range(GROUPS):
        for count in ROTATIONS[group % 2]:
            a = a + b
            b = ((b << np.uint32(count)) | (b >> np.uint32(32 - count))) ^ a
        a = a + keys[(group + 1) % 3]
        b = b + keys[(group + 2) % 3] + np.uint32(group + 1)
    return a, b


def words_host(count: int, key: NDArray[np.uint32]) -> HostWords:
    """What :func:`words` gives for ``count`` elements, computed here."""
    index = np.arange(count, dtype=np.uint64)
    low, high = index.astype(np.uint32), (index >> np.uint64(32)).astype(np.uint32)
    return threefry_host((low, high), (key[:1], key[1:]))


def _split(number: int) -> HostWords:
    low, high = number & 0xFFFFFFFF, number >> 32 & 0xFFFFFFFF
    return np.array([low], np.uint32), np.array([high], np.uint32)


# ---- the numbering of draws --------------------------------------------------------------------


class Generator:
    """Hands out one key per draw: key = threefry(number of the draw) under the seed.

    Safe to use from several threads. While a function is captured its draws get stand-ins, which
    every replay fills with new keys.
    """

    def __init__(self, seed: int) -> None:
        self._lock = threading.Lock()
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Start again from draw 0 under ``seed`` (taken modulo 2**64)."""
        with self._lock:
            self._seed = seed % (1 << 64)
            self._draws = 0

    @property
    def state(self) -> tuple[int, int]:
        """(seed, number of draws so far): all there is to save."""
        with self._lock:
            return self._seed, self._draws

    @state.setter
    def state(self, state: tuple[int, int]) -> None:
        with self._lock:
            self._seed, self._draws = state

    def key(self) -> NDArray[np.uint32]:
        """The next draw's key, uint32[2]."""
        if capture.recorder is not None:
            capture.recorder.host_data("random", "a number drawn on the host")
        with self._lock:
            seed, draw = self._seed, self._draws
            self._draws += 1
        return np.concatenate(threefry_host(_split(draw), _split(seed)))

    def key_node(self, device: str) -> Node:
        """The next draw's key as a small buffer: data, so that all draws share one structure."""
        if capture.recorder is not None and capture.recorder.is_here():
            return capture.recorder.draw()
        return engine.from_host(self.key(), uint32, device)


GENERATOR = Generator(int.from_bytes(os.urandom(8), "little"))
