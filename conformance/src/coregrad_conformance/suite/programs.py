"""Programs of several ops through the tensor API: fused, unfused, and in NumPy.

``exact`` programs hold only ops that are exact or correctly rounded: fused and unfused must give
NumPy's bits. ``smooth`` ones also hold transcendental functions and sums: fused and unfused must
both be near float64. What is drawn is fixed by the number in a row's id.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import coregrad as cg
from coregrad import Tensor
from coregrad.dtypes import DType
from coregrad_conformance import oracle
from coregrad_conformance.drawing import Program, draw, programs
from coregrad_conformance.row import Failure, Outcome, Row

if TYPE_CHECKING:
    from coregrad_conformance.target import Target

GROUP = "programs"
SEEDS = {"standard": range(8), "extended": range(8, 64)}
PER_SEED = 2  # programs of one row: unfused, each is a dozen kernels for a driver to compile
LONGEST = 12  # steps
MOST = 1500  # elements: a step that would make more is left out
RESULTS = 3
FUSION = "COREGRAD_FUSION"
NEAR = 1e-4  # of the largest value: 12 steps, each within a few ulp (6e-8) times its condition
Step = Callable[[Any, Any, int], Any]
Array = np.ndarray[Any, np.dtype[Any]]


def rows() -> Iterator[Row]:
    """The rows of this file."""
    for kind in ("integers", "floats", "smooth"):
        summary = f"{PER_SEED} random programs of {kind}: fused, unfused and in NumPy."
        for level, seeds in SEEDS.items():
            for seed in seeds:
                run = partial(RUNS[kind], seed)
                yield Row(f"programs/{kind}/{seed:02}", level, GROUP, run, summary=summary)


@contextmanager
def fusion(on: bool) -> Iterator[None]:
    """Compile with or without fusion inside the block."""
    before = os.environ.get(FUSION)
    os.environ[FUSION] = "1" if on else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[FUSION]
        else:
            os.environ[FUSION] = before


# ---- words: what a step does, to tensors and to arrays -----------------------------------------


def _fit(a: Any, b: Any) -> Any:
    """``b``, or its first element where the shapes differ."""
    return b if a.shape == b.shape else b.reshape((-1,))[:1]


def _axis(x: Any, detail: int) -> int:
    return detail % len(x.shape)


def _both(function: Step) -> tuple[Step, Step]:
    """The same words for tensors and arrays."""
    return function, function


def _shifted(x: Any, detail: int) -> Any:
    axis = _axis(x, detail)
    return x[(slice(None),) * axis + (slice(1, None),)] if x.shape[axis] > 1 else x


def _reshaped(x: Any, detail: int) -> Any:
    n = int(np.prod(x.shape))
    fits = [k for k in (1, 2, 3, 4, 5, 7, 8) if n % k == 0]
    return x.reshape((fits[detail % len(fits)], -1))


def _order(x: Any, detail: int) -> tuple[int, ...]:
    axes = list(range(len(x.shape)))
    turn = detail % len(axes)
    return tuple([*axes[turn:], *axes[:turn]][:: 1 if detail % 2 else -1])


def _pad(x: Tensor, detail: int) -> Tensor:
    return x.pad((1 + detail % 2, detail % 3))


def _np_pad(x: Array, detail: int) -> Array:
    widths = [(0, 0)] * (x.ndim - 1) + [(1 + detail % 2, detail % 3)]
    return np.pad(x, widths)


def _windows(x: Tensor, detail: int) -> Tensor:
    size = min(2 + detail % 2, x.shape[-1])
    return x.unfold(-1, size, 1 + detail % 2).amax(-1)


def _np_windows(x: Array, detail: int) -> Array:
    size = min(2 + detail % 2, x.shape[-1])
    views = np.lib.stride_tricks.sliding_window_view(x, size, -1)
    largest: Array = views[..., :: 1 + detail % 2, :].max(-1)
    return largest


MOVEMENT: dict[str, tuple[Step, Step]] = {
    "reshape": _both(lambda a, b, d: _reshaped(a, d)),
    "permute": (
        lambda a, b, d: a.permute(_order(a, d)),
        lambda a, b, d: a.transpose(_order(a, d)),
    ),
    "flip": (lambda a, b, d: a.flip(_axis(a, d)), lambda a, b, d: np.flip(a, _axis(a, d))),
    "shrink": _both(lambda a, b, d: _shifted(a, d)),
    "pad": (lambda a, b, d: _pad(a, d), lambda a, b, d: _np_pad(a, d)),
    "cat": (
        lambda a, b, d: cg.cat([a, a.flip(_axis(a, d))], _axis(a, d)),
        lambda a, b, d: np.concatenate([a, np.flip(a, _axis(a, d))], _axis(a, d)),
    ),
    "windows": (lambda a, b, d: _windows(a, d), lambda a, b, d: _np_windows(a, d)),
    "spread": (
        lambda a, b, d: a.unsqueeze(0).expand(2, *a.shape),
        lambda a, b, d: np.broadcast_to(a, (2, *a.shape)),
    ),
    "stride": _both(lambda a, b, d: a[..., :: 1 + d % 3]),
}


def _np_sum(a: Array, detail: int) -> Array:
    total: Array = a.sum(_axis(a, detail), dtype=np.int64).astype(np.int32)
    return total if total.ndim else total.reshape(1)


def _sum(a: Tensor, detail: int) -> Tensor:
    total = a.sum(_axis(a, detail)).to(cg.int32)
    return total if total.shape else total.reshape(1)


def _argmax(a: Tensor, detail: int) -> Tensor:
    return a.argmax(_axis(a, detail), keepdim=True).to(cg.int32)


def _np_argmax(a: Array, detail: int) -> Array:
    places: Array = np.argmax(a, _axis(a, detail), keepdims=True).astype(np.int32)
    return places


def _gather(a: Tensor, b: Tensor) -> Tensor:
    flat = a.reshape(-1)
    return flat[(b & 0xFFFF) % flat.shape[0]]


def _np_gather(a: Array, b: Array) -> Array:
    flat = a.reshape(-1)
    taken: Array = flat[(b & 0xFFFF) % flat.shape[0]]
    return taken


def _scatter(a: Tensor, b: Tensor) -> Tensor:
    flat, values = a.reshape(-1), b.reshape(-1)
    places = ((values & 0xFFF) % flat.shape[0]).to(cg.int64)
    return flat.scatter_add(0, places, values)


def _np_scatter(a: Array, b: Array) -> Array:
    flat: Array = a.reshape(-1).copy()
    values = b.reshape(-1)
    np.add.at(flat, (values & 0xFFF) % flat.shape[0], values)
    return flat


INTEGERS: dict[str, tuple[Step, Step]] = {
    **MOVEMENT,
    "add": _both(lambda a, b, d: a + _fit(a, b)),
    "mul": _both(lambda a, b, d: a * _fit(a, b)),
    "xor": _both(lambda a, b, d: a ^ _fit(a, b)),
    "and": _both(lambda a, b, d: a & _fit(a, b)),
    "shift-left": _both(lambda a, b, d: a << (d % 31)),
    "shift-right": _both(lambda a, b, d: a >> (d % 31)),
    "divide": _both(lambda a, b, d: a // (d % 9 + 1)),
    "remainder": _both(lambda a, b, d: a % (d % 9 + 1)),
    "max": (
        lambda a, b, d: cg.maximum(a, _fit(a, b)),
        lambda a, b, d: np.maximum(a, _fit(a, b)),
    ),
    "where": (
        lambda a, b, d: cg.where(a < _fit(a, b), a, a + 3),
        lambda a, b, d: np.where(a < _fit(a, b), a, a + np.int32(3)),
    ),
    "sum": (lambda a, b, d: _sum(a, d), lambda a, b, d: _np_sum(a, d)),
    "argmax": (lambda a, b, d: _argmax(a, d), lambda a, b, d: _np_argmax(a, d)),
    "gather": (lambda a, b, d: _gather(a, b), lambda a, b, d: _np_gather(a, b)),
    "scatter": (lambda a, b, d: _scatter(a, b), lambda a, b, d: _np_scatter(a, b)),
}


def _whole(x: Array) -> Array:
    """float32 to int32 and back, saturated, NaN to 0."""
    got = oracle.cast(np.ascontiguousarray(x).reshape(-1), cg.float32, cg.int32).values
    return got.reshape(x.shape).astype(np.float32)


def _halved(x: Array) -> Array:
    return x.astype(np.float16).astype(np.float32)


def _max(a: Tensor, detail: int) -> Tensor:
    return a.amax(_axis(a, detail), keepdim=True)


FLOATS: dict[str, tuple[Step, Step]] = {
    **MOVEMENT,
    "add": _both(lambda a, b, d: a + _fit(a, b)),
    "sub": _both(lambda a, b, d: a - _fit(a, b)),
    "mul": _both(lambda a, b, d: a * _fit(a, b)),
    "mul-add": _both(lambda a, b, d: a * a + _fit(a, b)),  # must not be fused into one rounding
    "scale": _both(lambda a, b, d: a * np.float32(0.1).item() + d % 3),
    "negate": _both(lambda a, b, d: -a),
    "max": (
        lambda a, b, d: cg.maximum(a, _fit(a, b)),
        lambda a, b, d: np.maximum(a, _fit(a, b)),
    ),
    "where": (
        lambda a, b, d: cg.where(a < _fit(a, b), a, _fit(a, b) * a),
        lambda a, b, d: np.where(a < _fit(a, b), a, _fit(a, b) * a),
    ),
    "trunc": (lambda a, b, d: a.trunc(), lambda a, b, d: np.trunc(a)),
    "whole": (
        lambda a, b, d: a.to(cg.int32).to(cg.float32),
        lambda a, b, d: _whole(a),
    ),
    "largest": (
        lambda a, b, d: _max(a, d),
        lambda a, b, d: np.max(a, _axis(a, d), keepdims=True),
    ),
}
HALVES = {
    "half": (lambda a, b, d: a.to(cg.float16).to(cg.float32), lambda a, b, d: _halved(a)),
}


def _np_softmax(a: Array) -> Array:
    powers = np.exp(a - a.max(-1, keepdims=True))
    shares: Array = powers / powers.sum(-1, keepdims=True)
    return shares


SMOOTH: dict[str, tuple[Step, Step]] = {
    "add": _both(lambda a, b, d: a + _fit(a, b)),
    "halve": _both(lambda a, b, d: a * 0.5 - 0.25),
    "product": _both(lambda a, b, d: a * _fit(a, b) * 0.25),
    "sin": (lambda a, b, d: a.sin(), lambda a, b, d: np.sin(a)),
    "bell": (lambda a, b, d: (-a * a).exp(), lambda a, b, d: np.exp(-a * a)),
    "log": (lambda a, b, d: (a * a + 1).log(), lambda a, b, d: np.log(a * a + 1)),
    "sqrt": (lambda a, b, d: (a * a + 1).sqrt(), lambda a, b, d: np.sqrt(a * a + 1)),
    "quotient": _both(lambda a, b, d: a / (_fit(a, b) * _fit(a, b) + 1)),
    "tanh": (lambda a, b, d: a.tanh(), lambda a, b, d: np.tanh(a)),
    "mean": (
        lambda a, b, d: a.mean(_axis(a, d), keepdim=True),
        lambda a, b, d: a.mean(_axis(a, d), keepdims=True),
    ),
    "centred": (
        lambda a, b, d: a - a.mean(-1, keepdim=True),
        lambda a, b, d: a - a.mean(-1, keepdims=True),
    ),
    "softmax": (lambda a, b, d: a.softmax(-1), lambda a, b, d: _np_softmax(a)),
    "permute": MOVEMENT["permute"],
    "pad": MOVEMENT["pad"],
    "matmul": (
        lambda a, b, d: a.reshape(-1, a.shape[-1]) @ a.reshape(-1, a.shape[-1]).T * 0.125,
        lambda a, b, d: a.reshape(-1, a.shape[-1]) @ a.reshape(-1, a.shape[-1]).T * 0.125,
    ),
}


# ---- running -----------------------------------------------------------------------------------


def interpret(program: Program, words: Any, side: int, values: Sequence[Any]) -> list[Any]:
    """The last results, of tensors (side 0) or arrays (side 1)."""
    known = list(values)
    for step in program.steps:
        a, b = known[step.left % len(known)], known[step.right % len(known)]
        made = words[step.name][side](a, b, step.detail)
        if int(np.prod(made.shape)) <= MOST and len(made.shape) <= 5:
            known.append(made)
    return known[-RESULTS:]


def computed(
    program: Program, words: Any, arrays: Sequence[Array], device: str, fused: bool
) -> list[Array]:
    """The program's results from the device."""
    with fusion(fused):
        tensors = [Tensor(a, device=device) for a in arrays]
        results = interpret(program, words, 0, tensors)
        return [np.asarray(result.numpy()) for result in results]


def _inputs(program: Program, dtype: DType) -> list[Array]:
    rng = np.random.default_rng(program.seed)
    arrays = []
    for _ in range(program.inputs):
        drawn: Array = rng.standard_normal(program.shape) * 2
        if not dtype.is_float:
            drawn = rng.integers(-50, 50, program.shape)
        arrays.append(drawn.astype(dtype.storage))
    return arrays


def _drawn(kind: str, words: Any, seed: int) -> list[Program]:
    return draw(programs(tuple(words), LONGEST), seed, PER_SEED)


def _exact(words: Any, dtype: DType, kind: str, seed: int, target: Target) -> Outcome:
    target.require(dtype)
    if kind == "floats" and target.supports(cg.float16):
        words = words | HALVES
    compared = 0
    for program in _drawn(kind, words, seed):
        arrays = _inputs(program, dtype)
        with np.errstate(all="ignore"):
            want = interpret(program, words, 1, arrays)
        for fused in (True, False):
            got = computed(program, words, arrays, target.name, fused)
            for mine, theirs in zip(got, want, strict=True):
                compared += _identical(mine, theirs, program, fused)
    return Outcome(compared)


def _identical(got: Array, want: Array, program: Program, fused: bool) -> int:
    how = "fused" if fused else "unfused"
    if got.shape != want.shape or got.dtype != want.dtype:
        raise Failure(f"{how}: {got.dtype}{got.shape}, not {want.dtype}{want.shape} in {program}")
    same = got == want
    if got.dtype.kind == "f":
        same = (same & (np.signbit(got) == np.signbit(want))) | (np.isnan(got) & np.isnan(want))
        same |= (got == 0) & (want == 0) & _has_max(program)  # of two zeros max may choose either
    if not same.all():
        at = tuple(np.argwhere(~same)[0])
        raise Failure(f"{how}: element {at} is {got[at]!r}, expected {want[at]!r} in {program}")
    return got.size


def _has_max(program: Program) -> bool:
    return any(step.name in ("max", "largest", "windows") for step in program.steps)


def _smooth(seed: int, target: Target) -> Outcome:
    compared = 0
    for program in _drawn("smooth", SMOOTH, seed):
        arrays = _inputs(program, cg.float32)
        want = interpret(program, SMOOTH, 1, [a.astype(np.float64) for a in arrays])
        for fused in (True, False):
            got = computed(program, SMOOTH, arrays, target.name, fused)
            for mine, exact in zip(got, want, strict=True):
                compared += near(mine, exact, f"{'fused' if fused else 'unfused'}: {program}")
    return Outcome(compared)


def near(got: Array, exact: Array, what: str, tolerance: float = NEAR) -> int:
    """How many values were compared; none is off by more than ``tolerance`` of the largest."""
    if got.shape != exact.shape:
        raise Failure(f"{what}: shape {got.shape}, not {exact.shape}")
    allowed = tolerance * max(1.0, float(np.abs(exact).max(initial=0.0)))
    off = np.abs(got.astype(np.float64) - exact)
    if not (off <= allowed).all():
        at = np.unravel_index(int(np.argmax(np.nan_to_num(off, nan=np.inf))), off.shape)
        raise Failure(f"{what}: element {at} is {got[at]!r}, expected {exact[at]!r}")
    return got.size


RUNS: dict[str, Any] = {
    "integers": partial(_exact, INTEGERS, cg.int32, "integers"),
    "floats": partial(_exact, FLOATS, cg.float32, "floats"),
    "smooth": _smooth,
}
