"""Random tensors: distributions made of the bits of :mod:`threefry`, and starting weights.

The same seed gives the same numbers whatever is computed first, on every device: bits, uniform
numbers, integers and permutations exactly, normal ones within the precision of log, sqrt and sin.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad import dtypes, engine
from coregrad.api import host, threefry
from coregrad.api.base import Flag
from coregrad.api.creation import Creation
from coregrad.api.device import Device, check_dtype, default_int, host_memory
from coregrad.api.indexing import caller
from coregrad.api.movement import sizes
from coregrad.api.threefry import GENERATOR, Words
from coregrad.dtypes import DType
from coregrad.errors import CoregradError, DataError, DTypeError, ShapeError
from coregrad.ir import build, ops
from coregrad.ir.graph import Node, Shape

if TYPE_CHECKING:
    from typing_extensions import Self

# Random bits of a uniform number: as many as the dtype has digits, so that all are exact.
_DIGITS = {dtypes.float16: 11, dtypes.bfloat16: 8, dtypes.float32: 24, dtypes.float64: 53}


# ---- on nodes ----------------------------------------------------------------------------------


def uniform(bits: Words, dtype: DType) -> Node:
    """Multiples of 2**-digits in [0, 1), all equally likely."""
    digits = _DIGITS[dtype]
    if dtype is dtypes.float64:
        high = _times(build.cast(_shifted(bits[0], 5), dtype), 2.0**26)
        return _times(build.add(high, build.cast(_shifted(bits[1], 6), dtype)), 2.0**-53)
    return _times(build.cast(_shifted(bits[0], 32 - digits), dtype), 2.0**-digits)


def open_uniform(word: Node) -> Node:
    """float32 strictly between 0 and 1: odd multiples of 2**-24, so that log is never 0 or -inf."""
    digits = build.cast(_shifted(word, 9), dtypes.float32)
    return _times(build.add(digits, build.const_like(digits, 0.5)), 2.0**-23)


def normal(shape: Shape, key: Node, dtype: DType) -> Node:
    """Standard normal numbers: G. E. P. Box, M. E. Muller, "A Note on the Generation of Random
    Normal Deviates", 1958. Computed in float32 for the narrower dtypes."""
    wide = dtypes.accumulator(dtype)
    bits = threefry.words(shape, key)
    if wide is dtypes.float64:
        more = threefry.words(shape, key, stream=1)
        distance = build.add(uniform(bits, wide), build.const(2.0**-54, wide, shape))
        turn = uniform(more, wide)
    else:
        # All 32 bits count here: the smallest distance, 2**-33, is 6.8 standard deviations out.
        distance = _times(build.cast(bits[0], wide), 2.0**-32)
        distance = build.add(distance, build.const_like(distance, 2.0**-33))
        turn = uniform((bits[1], bits[1]), wide)
    radius = build.sqrt(_times(build.log(distance), -2.0))
    return build.cast(build.mul(radius, build.sin(_times(turn, 2.0 * math.pi), 1)), dtype)


def below(bits: Words, count: int, dtype: DType) -> Node:
    """Integers in [0, count): the upper part of bits * count, which no remainder makes uneven.

    Up to 2**32 it takes 32-bit arithmetic only, and no value is likelier than another by more
    than count / 2**64; beyond, the remainder of 64 bits is that close too.
    """
    a, b = bits
    if count > 1 << 32:
        wide = [build.cast(word, dtypes.uint64) for word in bits]
        joined = build.or_(build.shl(wide[0], build.const_like(wide[0], 32)), wide[1])
        if count < 1 << 64:
            joined = build.mod(joined, build.const_like(joined, count))
        return build.cast(joined, dtype)
    if count == 1 << 32:
        return build.cast(a, dtype)
    low = build.mul(a, build.const_like(a, count))
    carry = build.lt(build.add(low, _high_product(b, count)), low)
    return build.cast(build.add(_high_product(a, count), build.cast(carry, a.dtype)), dtype)


def _high_product(x: Node, n: int) -> Node:
    """The upper 32 bits of x * n, from products of 16-bit halves."""
    n_low, n_high = n & 0xFFFF, n >> 16
    x_low, x_high = build.and_(x, build.const_like(x, 0xFFFF)), _shifted(x, 16)
    lowest = _shifted(build.mul(x_low, build.const_like(x, n_low)), 16)
    one = build.add(build.mul(x_high, build.const_like(x, n_low)), lowest)
    two = build.mul(x_low, build.const_like(x, n_high))
    middle = build.add(build.and_(one, build.const_like(x, 0xFFFF)), two)
    highest = build.mul(x_high, build.const_like(x, n_high))
    return build.add(highest, build.add(_shifted(one, 16), _shifted(middle, 16)))


def _shifted(x: Node, count: int) -> Node:
    return build.shr(x, build.const_like(x, count))


def _times(x: Node, factor: float) -> Node:
    return build.mul(x, build.const_like(x, factor))


# ---- on tensors --------------------------------------------------------------------------------


class Random(Creation):
    """Methods that draw. Each takes its place in the sequence of draws when it is called."""

    @staticmethod
    def manual_seed(seed: int) -> None:
        """Start the sequence of draws again under ``seed`` (taken modulo 2**64).

        >>> Tensor.manual_seed(1)
        >>> a = Tensor.rand(2).tolist()
        >>> Tensor.manual_seed(1)
        >>> Tensor.rand(2).tolist() == a
        True
        """
        if not isinstance(seed, (int, np.integer)):
            raise TypeError(f"manual_seed: the seed must be an int, not {seed!r}")
        GENERATOR.seed(int(seed))

    @classmethod
    def rand(
        cls,
        *shape: Any,
        dtype: Any = None,
        device: Any = None,
        requires_grad: Flag = None,
    ) -> Self:
        """Uniform numbers in [0, 1): ``rand(2, 3)`` or ``rand((2, 3))``.

        Raises DTypeError for a dtype that is not floating.

        >>> Tensor.rand(2, 3).shape
        (2, 3)
        """
        where, kind, sizes = _place("rand", shape, dtype, device)
        node = uniform(threefry.words(sizes, GENERATOR.key_node(where)), kind)
        return cls._fresh(node, where, requires_grad)

    @classmethod
    def randn(
        cls,
        *shape: Any,
        dtype: Any = None,
        device: Any = None,
        requires_grad: Flag = None,
    ) -> Self:
        """Normal numbers with mean 0 and standard deviation 1.

        Raises DTypeError for a dtype that is not floating.

        >>> Tensor.randn(2, 3).shape
        (2, 3)
        """
        where, kind, sizes = _place("randn", shape, dtype, device)
        return cls._fresh(normal(sizes, GENERATOR.key_node(where), kind), where, requires_grad)

    @classmethod
    def uniform(
        cls,
        *shape: Any,
        low: float = 0.0,
        high: float = 1.0,
        dtype: Any = None,
        device: Any = None,
        requires_grad: Flag = None,
    ) -> Self:
        """Uniform numbers in [low, high).

        >>> bool((Tensor.uniform(100, low=2.0, high=3.0) >= 2.0).all())
        True
        """
        if low > high:
            raise ShapeError(f"uniform: there is no number in [{low}, {high}); swap the bounds?")
        where, kind, sizes = _place("uniform", shape, dtype, device)
        node = uniform(threefry.words(sizes, GENERATOR.key_node(where)), kind)
        node = build.add(_times(node, high - low), build.const_like(node, low))
        return cls._fresh(node, where, requires_grad)

    @classmethod
    def normal(
        cls,
        *shape: Any,
        mean: float = 0.0,
        std: float = 1.0,
        dtype: Any = None,
        device: Any = None,
        requires_grad: Flag = None,
    ) -> Self:
        """Normal numbers with the given mean and standard deviation.

        >>> Tensor.normal(3, mean=5.0, std=0.0).tolist()
        [5.0, 5.0, 5.0]
        """
        if std < 0:
            raise CoregradError(f"normal: std is {std}; it must be at least 0")
        where, kind, sizes = _place("normal", shape, dtype, device)
        node = normal(sizes, GENERATOR.key_node(where), kind)
        node = build.add(_times(node, std), build.const_like(node, mean))
        return cls._fresh(node, where, requires_grad)

    @classmethod
    def randint(
        cls,
        *shape: Any,
        low: int = 0,
        high: int | None = None,
        dtype: Any = None,
        device: Any = None,
    ) -> Self:
        """Integers in [low, high), int64 by default: ``randint(2, 3, high=10)``, or with PyTorch's
        order ``randint(10, (2, 3))`` and ``randint(0, 10, (2, 3))``.

        Raises ShapeError where there is no such integer and DTypeError where one does not fit.

        >>> int(Tensor.randint(100, high=10).max().item()) < 10
        True
        """
        if high is None:
            low, high, shape = _bounds(shape, low)
        where = Device.canonicalize(device)
        kind = default_int(where) if dtype is None else host.as_dtype(dtype)
        check_dtype("randint", kind, where)
        if not low < high:
            raise ShapeError(f"randint: there is no integer in [{low}, {high}); swap the bounds?")
        if not kind.is_int or low < kind.min or high - 1 > kind.max:
            raise DTypeError(f"randint: [{low}, {high}) does not fit {kind.name}; choose another")
        bits = threefry.words(_sizes("randint", shape), GENERATOR.key_node(where))
        node = below(bits, high - low, kind)
        # Wraps around as it should where low is far below 0.
        return cls._fresh(build.add(node, build.const_like(node, low)), where)

    @classmethod
    def randperm(cls, n: int, dtype: Any = None, device: Any = None) -> Self:
        """The integers 0 to n - 1 in random order, int64 by default.

        The order is that of n pairs of random words, sorted on the host when this is called.

        >>> sorted(Tensor.randperm(5).tolist())
        [0, 1, 2, 3, 4]
        """
        if n < 0:
            raise ShapeError(f"randperm: n is {n}; it must be at least 0")
        where = Device.canonicalize(device)
        kind = default_int(where) if dtype is None else host.as_dtype(dtype)
        high, low = threefry.words_host(n, GENERATOR.key())
        order = np.lexsort((low, high))  # by the last key first; stable, hence reproducible
        return cls(order, dtype=kind, device=where)

    def rand_like(self, dtype: Any = None, requires_grad: Flag = None) -> Self:
        """Uniform numbers in [0, 1) in this tensor's shape, on its device.

        >>> Tensor([[1.0, 2.0]]).rand_like().shape
        (1, 2)
        """
        kind = self.dtype if dtype is None else dtype
        return type(self).rand(
            self.shape, dtype=kind, device=self.device, requires_grad=requires_grad
        )

    def randn_like(self, dtype: Any = None, requires_grad: Flag = None) -> Self:
        """Standard normal numbers in this tensor's shape, on its device.

        >>> Tensor([[1.0, 2.0]]).randn_like().shape
        (1, 2)
        """
        kind = self.dtype if dtype is None else dtype
        return type(self).randn(
            self.shape, dtype=kind, device=self.device, requires_grad=requires_grad
        )

    def uniform_(self, low: float = 0.0, high: float = 1.0) -> Self:
        """Take numbers uniform in [low, high) as the new values; no gradient passes.

        >>> x = Tensor.zeros(3).uniform_(5, 6)
        >>> ((x >= 5) & (x < 6)).all().item()
        True
        """
        drawn = self.uniform(*self.shape, low=low, high=high, dtype=self.dtype, device=self.device)
        return self._update("uniform_", drawn.node)

    def normal_(self, mean: float = 0.0, std: float = 1.0) -> Self:
        """Take normal numbers as the new values; no gradient passes.

        >>> Tensor.zeros(3).normal_(5, 0).tolist()
        [5.0, 5.0, 5.0]
        """
        drawn = self.normal(*self.shape, mean=mean, std=std, dtype=self.dtype, device=self.device)
        return self._update("normal_", drawn.node)

    def bernoulli(self) -> Self:
        """1 with the probability that stands in each place of this tensor, else 0.

        >>> Tensor([0.0, 1.0]).bernoulli().tolist()
        [0.0, 1.0]
        """
        chances = self._floating("bernoulli")
        bits = threefry.words(self.shape, GENERATOR.key_node(self.device))
        drawn = uniform(bits, dtypes.float32)
        hits = build.lt(drawn, build.cast(build.detach(chances), dtypes.float32))
        return self._with(build.cast(hits, self.dtype), False)

    def multinomial(self, num_samples: int, replacement: bool = False) -> Self:
        """Indices drawn with probabilities in proportion to these weights, (n,) or (m, n).

        The result has shape (num_samples,) or (m, num_samples). An index of weight 0 is never
        drawn. Raises ShapeError for more samples than there are weights without ``replacement``,
        DataError for weights that are negative or not finite, or of which too few are positive
        (IndexRangeError when the result is computed, if the weights are not known before).

        >>> Tensor([0.0, 1.0, 0.0]).multinomial(1).tolist()
        [1]
        """
        weights = build.cast(build.detach(self._floating("multinomial")), dtypes.float32)
        if self.ndim not in (1, 2) or not self.numel():
            raise ShapeError(f"multinomial: weights of shape {self.shape}; give (n,) or (m, n)")
        n = self.shape[-1]
        if num_samples < 1 or (num_samples > n and not replacement):
            raise ShapeError(
                f"multinomial: {num_samples} samples of {n} without replacement; draw between 1 "
                f"and {n}, or pass replacement=True"
            )
        sound = self._drawable(1 if replacement else num_samples)
        # A race: the one with the largest weight / exponential is the first of them to arrive.
        races = num_samples if replacement else 1
        shape = (*self.shape[:-1], races, n)
        word, _ = threefry.words(shape, GENERATOR.key_node(self.device))
        waits = build.neg(build.log(open_uniform(word)))
        wide = build.expand(build.reshape(weights, (*self.shape[:-1], 1, n)), shape)
        speed = self._with(build.div(wide, waits), False)
        if replacement or num_samples == 1:
            found = speed.argmax(-1)
        else:
            found = speed.reshape(*self.shape).topk(num_samples).indices
        if sound is None:
            return found
        odd = found.where(sound.unsqueeze(-1), n)  # an index that no axis of n has
        return found._with(build.check(odd.node, n, caller()), False)

    def _drawable(self, needed: int) -> Self | None:
        """Whether each row of weights is sound and has ``needed`` positive ones. None: all are,
        which was looked up, as the weights are in reach."""
        finite = (self >= 0).logical_and(self < math.inf).all(-1)
        sound = finite.logical_and((self > 0).sum(-1) >= needed)
        in_reach = engine.resolve(self.node).op in (ops.BUFFER, ops.CONST)
        if not in_reach or not host_memory(self.device):
            return sound
        if not sound.all():
            raise DataError(
                f"multinomial: the weights must be finite and not negative, and at least {needed} "
                "of each row positive; mend them, or draw fewer samples"
            )
        return None

    # ---- starting weights ----------------------------------------------------------------------

    @classmethod
    def scaled_uniform(cls, *shape: Any, **kwargs: Any) -> Self:
        """Uniform in [-1, 1) divided by the root of the number of elements.

        >>> Tensor.scaled_uniform(4, 4).abs().max().item() <= 0.25
        True
        """
        bound = 1.0 / math.sqrt(math.prod(_sizes("scaled_uniform", shape)) or 1)
        return cls.uniform(*shape, low=-bound, high=bound, **kwargs)

    @classmethod
    def glorot_uniform(cls, *shape: Any, **kwargs: Any) -> Self:
        """Glorot and Bengio (2010): uniform with variance 2 / (fan-in + fan-out).

        Axis 0 counts as one fan, the product of the others as the other.

        >>> Tensor.glorot_uniform(3, 3).abs().max().item() <= 1.0
        True
        """
        sizes = _sizes("glorot_uniform", shape)
        fans = math.prod(sizes[:1]) + math.prod(sizes[1:])
        bound = math.sqrt(6.0 / max(fans, 1))
        return cls.uniform(*shape, low=-bound, high=bound, **kwargs)

    xavier_uniform = glorot_uniform

    @classmethod
    def kaiming_uniform(cls, *shape: Any, a: float = 0.01, **kwargs: Any) -> Self:
        """He et al. (2015): uniform with variance 2 / ((1 + a**2) * fan-in); ``a`` is leaky_relu's
        slope, fan-in the product of all axes but the first.

        >>> Tensor.kaiming_uniform(784, 128).shape
        (784, 128)
        """
        bound = math.sqrt(3.0) * _kaiming_deviation(_sizes("kaiming_uniform", shape), a)
        return cls.uniform(*shape, low=-bound, high=bound, **kwargs)

    @classmethod
    def kaiming_normal(cls, *shape: Any, a: float = 0.01, **kwargs: Any) -> Self:
        """He et al. (2015): normal with variance 2 / ((1 + a**2) * fan-in); see
        :meth:`kaiming_uniform`.

        >>> Tensor.kaiming_normal(8, 4).shape
        (8, 4)
        """
        std = _kaiming_deviation(_sizes("kaiming_normal", shape), a)
        return cls.normal(*shape, mean=0.0, std=std, **kwargs)


# ---- small pieces ------------------------------------------------------------------------------


def _place(name: str, shape: tuple[Any, ...], dtype: Any, device: Any) -> tuple[str, DType, Shape]:
    where = Device.canonicalize(device)
    kind = dtypes.float32 if dtype is None else host.as_dtype(dtype)
    if not kind.is_float:
        raise DTypeError(f"{name}: {kind.name} is no floating dtype; use randint or cast")
    check_dtype(name, kind, where)
    return where, kind, _sizes(name, shape)


def _sizes(name: str, shape: tuple[Any, ...]) -> Shape:
    """``(2, 3)`` from ``f(2, 3)``, ``f((2, 3))`` and ``f([2, 3])``."""
    found = sizes(name, shape)
    if any(n < 0 for n in found):
        raise ShapeError(f"{name}: shape {found} has a negative size")
    return found


def _bounds(given: tuple[Any, ...], low: int) -> tuple[int, int, tuple[Any, ...]]:
    """PyTorch's order: (high, size) or (low, high, size)."""
    if len(given) not in (2, 3) or not isinstance(given[-1], (tuple, list)):
        raise CoregradError(
            "randint: the upper bound is missing; write randint(2, 3, high=10) or "
            "randint(0, 10, (2, 3))"
        )
    if len(given) == 2:
        return low, int(given[0]), tuple(given[1])
    return int(given[0]), int(given[1]), tuple(given[2])


def _kaiming_deviation(shape: Shape, a: float) -> float:
    return math.sqrt(2.0 / ((1.0 + a * a) * max(math.prod(shape[1:]), 1)))
