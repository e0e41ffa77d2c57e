"""Functions that the core composes of primitive ops, against mpmath.

Their limits follow from the contract's: a device whose primitives are as inexact as it allows must
still pass. float16 and bfloat16 are computed in float32 and rounded once, so that they must be
nearly correctly rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import mpmath
import numpy as np

import coregrad as cg
from coregrad import Tensor
from coregrad.dtypes import DType
from coregrad_conformance import oracle, tables, ulp
from coregrad_conformance.oracle import Expected
from coregrad_conformance.row import Outcome, Row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coregrad_conformance.target import Target

GROUP = "functions"
COUNT = 300
NARROW = 1.0  # ulp of a 16-bit format: half of one, and float32's error where two are equally near


@dataclass(frozen=True)
class Function:
    """A function, its exact value, where it is tried, and its limit in ulp for float32.

    ``ulp``: 4 for each exponential, logarithm or sine on the way to a result of its size, and half
    of one for every other rounding; a sum in which digits cancel is not counted twice.
    """

    name: str
    ours: Callable[[Tensor], Tensor]
    exact: Callable[[Any], Any]
    low: float
    high: float
    ulp: float
    extra: tuple[float, ...] = ()


def _softplus(x: Any) -> Any:
    return mpmath.log1p(mpmath.exp(x))


# fmt: off
FUNCTIONS = (
    Function("exp2", lambda x: x.exp2(), lambda x: mpmath.mpf(2)**x, -150, 130, 6, (-149, 0.5, 3)),
    Function("log2", lambda x: x.log2(), lambda x: mpmath.log(x, 2), 1e-3, 50, 8, (8, 1, 1e30)),
    Function("log10", lambda x: x.log10(), mpmath.log10, 1e-3, 50, 8, (1000, 1, 1e-30)),
    Function("log1p", lambda x: x.log1p(), mpmath.log1p, -0.9, 9, 8, (1e-10, -1e-6, 1e20)),
    Function("expm1", lambda x: x.expm1(), mpmath.expm1, -20, 20, 8, (1e-10, -1e-6, 1e-3)),
    Function("cos", lambda x: x.cos(), mpmath.cos, -20, 20, 4, (1e5, 1e10)),
    Function("tan", lambda x: x.tan(), mpmath.tan, -20, 20, 10, (1e-10, 1.5707964, 1e5)),
    Function("asin", lambda x: x.asin(), mpmath.asin, -1, 1, 6, (1, -1, 1e-10, 0.9999999)),
    Function("acos", lambda x: x.acos(), mpmath.acos, -1, 1, 6, (-1, 0, 0.9999999)),
    Function("atan", lambda x: x.atan(), mpmath.atan, -20, 20, 6, (1e-10, 1e20, 1)),
    Function("sinh", lambda x: x.sinh(), mpmath.sinh, -80, 80, 8, (1e-10, 88.9, -0.1)),
    Function("cosh", lambda x: x.cosh(), mpmath.cosh, -80, 80, 8, (1e-10, 88.9, -0.1)),
    Function("tanh", lambda x: x.tanh(), mpmath.tanh, -12, 12, 8, (1e-10, 0.3, 30)),
    Function("asinh", lambda x: x.asinh(), mpmath.asinh, -20, 20, 8, (1e-10, 1e30)),
    Function("acosh", lambda x: x.acosh(), mpmath.acosh, 1, 20, 8, (1.000001, 1e30)),
    Function("atanh", lambda x: x.atanh(), mpmath.atanh, -0.99, 0.99, 8, (1e-10, 0.999999)),
    Function("sigmoid", lambda x: x.sigmoid(), lambda x: 1 / (1 + mpmath.exp(-x)), -90, 20, 8),
    Function("softplus", lambda x: x.softplus(), _softplus, -80, 19, 10),
    Function("silu", lambda x: x.silu(), lambda x: x / (1 + mpmath.exp(-x)), -80, 20, 10),
    Function("erf", lambda x: x.erf(), mpmath.erf, -4, 4, 8, (1e-10, 0.5, 6)),
    Function("erfc", lambda x: x.erfc(), mpmath.erfc, -4, 9, 16, (1e-10, 0.5)),
    Function("rsqrt", lambda x: x.rsqrt(), lambda x: 1 / mpmath.sqrt(x), 1e-3, 50, 6, (1e-30, 4)),
    Function("pow-2.5", lambda x: x.pow(2.5), lambda x: x**mpmath.mpf(2.5), 1e-3, 50, 10, (4, 1)),
    Function("pow-minus-3", lambda x: x.pow(-3), lambda x: x**-3, -9, 9, 6, (2, -1)),
    Function("pow-of-1.5", lambda x: 1.5**x, lambda x: mpmath.mpf(1.5)**x, -80, 80, 10, (2, 3)),
)
# fmt: on


def rows() -> Iterator[Row]:
    """The rows of this file."""
    for function in FUNCTIONS:
        for dtype in (cg.float32, cg.float64, cg.float16, cg.bfloat16):
            run = partial(_function, function, dtype)
            name = f"functions/{function.name}/{dtype.name}"
            summary = f"{function.name} of {dtype.name} against mpmath."
            yield Row(name, "standard", GROUP, run, dtype=dtype.name, summary=summary)


def _function(function: Function, dtype: DType, target: Target) -> Outcome:
    target.require(dtype)
    x = _arguments(function, dtype)
    numbers = ulp.decode(x, dtype)
    with mpmath.workprec(oracle.DIGITS):
        parts = [oracle.split(function.exact(mpmath.mpf(v))) for v in numbers.tolist()]
    values, rest = (np.array(p) for p in zip(*parts, strict=True))
    result = function.ours(from_stored(x, dtype, target.name))
    expected = Expected(values, rest, values == 0)
    limit = NARROW if dtype.bits == 16 else function.ulp
    return oracle.compare(to_stored(result), expected, dtype, [numbers], limit)


def _arguments(function: Function, dtype: DType) -> NDArray[Any]:
    """Numbers of all sizes within the range, and the extra ones; no subnormal ones."""
    rng = tables.generator(f"functions/{function.name}/{dtype.name}")
    drawn = rng.uniform(function.low, function.high, COUNT)
    smaller = drawn * 10.0 ** rng.uniform(-4, 0, COUNT)
    rounded = ulp.nearest(np.concatenate([drawn, smaller]), dtype)
    kept = rounded[(rounded >= function.low) & (rounded <= function.high)]
    x = np.concatenate([kept, ulp.nearest(np.array(function.extra), dtype)])
    normal = np.isfinite(x) & (np.abs(x) >= 2.0 ** ulp.FORMATS[dtype].emin)
    return ulp.encode(x[normal], dtype)


def from_stored(x: NDArray[Any], dtype: DType, device: str) -> Tensor:
    """A tensor of these stored elements."""
    if dtype is cg.bfloat16:
        return Tensor(x.view(np.int16), device=device).bitcast(cg.bfloat16)
    return Tensor(x, device=device)


def to_stored(x: Tensor) -> NDArray[Any]:
    """A tensor's stored elements."""
    if x.dtype is cg.bfloat16:
        return np.asarray(x.bitcast(cg.int16).numpy()).view(np.uint16)
    return np.asarray(x.numpy())
