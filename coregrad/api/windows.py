"""Convolution and pooling on nodes: windows slide over the last axes, then something is summed.

``build.window`` makes windows an index map, so that a convolution is one contraction over an input
read in place; its adjoint ``build.fold`` gives the transposed convolution and all gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from coregrad import dtypes
from coregrad.api.base import expand
from coregrad.api.reduction import chosen, scaled, spread, total, wide
from coregrad.errors import ShapeError
from coregrad.ir import build, ops
from coregrad.ir.graph import Node, Shape

Sizes = int | Sequence[int]
Pair = tuple[int, int]


# ---- sizes -------------------------------------------------------------------------------------


def sizes(name: str, what: str, value: Sizes, axes: int, least: int = 1) -> Shape:
    """One size per axis, from one number or from as many as there are axes."""
    found = (value,) * axes if isinstance(value, int) else tuple(value)
    if len(found) == 1:
        found *= axes
    if len(found) != axes or any(n < least for n in found):
        raise ShapeError(
            f"{name}: {what} {value} does not fit {axes} axes; give a number >= {least}, or {axes}"
        )
    return found


def paddings(
    name: str, padding: Sizes | str, kernel: Shape, stride: Shape, dilation: Shape
) -> list[Pair]:
    """(before, after) per axis of a convolution."""
    if not isinstance(padding, str):
        return [(n, n) for n in sizes(name, "padding", padding, len(kernel), 0)]
    if padding == "valid":
        return [(0, 0)] * len(kernel)
    if padding != "same":
        raise ShapeError(f"{name}: padding {padding!r} is neither 'same', 'valid' nor a size")
    if any(n != 1 for n in stride):
        raise ShapeError(f"{name}: padding 'same' needs stride 1, not {stride}; give sizes instead")
    spans = [gap * (size - 1) for size, gap in zip(kernel, dilation, strict=True)]
    return [(span // 2, span - span // 2) for span in spans]


def pool_paddings(
    name: str, shape: Shape, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape, up: bool
) -> list[Pair]:
    """(before, after) per axis so that the windows are those PyTorch takes: with ``up`` (ceil_mode)
    a last, incomplete window too, unless it would start in the padding after the data."""
    pads = []
    for n, size, step, pad, gap in zip(shape, kernel, stride, padding, dilation, strict=True):
        if pad > size // 2:
            raise ShapeError(
                f"{name}: padding {pad} is more than half of the kernel size {size}; a window "
                "could lie in the padding alone"
            )
        span = gap * (size - 1) + 1
        room = n + 2 * pad - span
        count = (room + (step - 1 if up else 0)) // step + 1
        if up and (count - 1) * step >= n + pad:
            count -= 1
        if count < 1 or n == 0:
            raise ShapeError(
                f"{name}: a window that spans {span} does not fit {n} elements padded by {pad}"
            )
        pads.append((pad, max((count - 1) * step + span - n - pad, 0)))
    return pads


# ---- windows -----------------------------------------------------------------------------------


def border(x: Node, pads: Sequence[Pair], value: float = 0) -> Node:
    """The last axes padded."""
    return build.pad(x, [(0, 0)] * (len(x.shape) - len(pads)) + list(pads), value)


def windows(x: Node, kernel: Shape, stride: Shape, dilation: Shape) -> Node:
    """Windows over the last axes, which keep their places; the kernel's axes follow, in order."""
    first = len(x.shape) - len(kernel)
    for i, (size, step, gap) in enumerate(zip(kernel, stride, dilation, strict=True)):
        x = build.window(x, first + i, size, step, gap)
    return x


def flat_windows(x: Node, kernel: Shape, stride: Shape, dilation: Shape) -> Node:
    """The same with the kernel's axes in one."""
    taken = windows(x, kernel, stride, dilation)
    return build.reshape(taken, (*taken.shape[: len(x.shape)], math.prod(kernel)))


# ---- convolution -------------------------------------------------------------------------------


def convolve(
    name: str, x: Node, w: Node, stride: Shape, pads: Sequence[Pair], dilation: Shape, groups: int
) -> Node:
    """(N, C, *S) with (O, C/groups, *K) to (N, O, *S')."""
    kernel = w.shape[2:]
    axes = len(kernel)
    padded = border(x, pads)
    spans = [gap * (size - 1) + 1 for size, gap in zip(kernel, dilation, strict=True)]
    if any(span > n for span, n in zip(spans, padded.shape[2:], strict=True)):
        raise ShapeError(
            f"{name}: a kernel of shape {kernel} with dilation {dilation} spans {tuple(spans)}, "
            f"more than the padded input's {padded.shape[2:]} (input {x.shape}); pad more"
        )
    taken = windows(padded, kernel, stride, dilation)
    batch, out = taken.shape[0], taken.shape[2 : 2 + axes]
    depth, width = w.shape[1], w.shape[0] // groups
    rows = build.reshape(taken, (batch, groups, 1, depth, *out, *kernel))
    # (N, g, 1, *S', C/g, *K) against (1, g, O/g, 1..., C/g, *K)
    rows = build.permute(rows, (0, 1, 2, *range(4, 4 + axes), 3, *range(4 + axes, 4 + 2 * axes)))
    taps = build.reshape(w, (1, groups, width, *(1,) * axes, depth, *kernel))
    shape = (batch, groups, width, *out, depth, *kernel)
    product = build.mul(expand(wide(rows), shape), expand(wide(taps), shape))
    sums = total(product, tuple(range(3 + axes, len(shape))))
    return build.cast(build.reshape(sums, (batch, groups * width, *out)), x.dtype)


def convolve_transposed(
    x: Node,
    w: Node,
    stride: Shape,
    padding: Shape,
    extra: Shape,
    dilation: Shape,
    groups: int,
) -> Node:
    """The adjoint of :func:`convolve`: (N, C, *S) with (C, O/groups, *K) to (N, O, *S').

    ``padding`` elements are cut off on both sides and ``extra`` more are kept after the last."""
    kernel, out = w.shape[2:], x.shape[2:]
    axes = len(kernel)
    batch, depth, width = x.shape[0], x.shape[1] // groups, w.shape[1]
    # Every input spreads over one window: (N, g, C/g, 1, *S, 1...) times (1, g, C/g, O/g, 1..., *K)
    rows = build.reshape(x, (batch, groups, depth, 1, *out, *(1,) * axes))
    taps = build.reshape(w, (1, groups, depth, width, *(1,) * axes, *kernel))
    shape = (batch, groups, depth, width, *out, *kernel)
    product = build.mul(expand(wide(rows), shape), expand(wide(taps), shape))
    y = total(product, (2,))
    lengths = []
    for i in reversed(range(axes)):
        length = (out[i] - 1) * stride[i] + dilation[i] * (kernel[i] - 1) + 1
        y = build.fold(y, 3 + i, length, stride[i], dilation[i])
        lengths.append(length)
    y = build.reshape(y, (batch, groups * width, *reversed(lengths)))
    y = border(y, [(0, max(n - pad, 0)) for n, pad in zip(extra, padding, strict=True)])
    ranges = [
        (pad, length - pad + n)
        for pad, length, n in zip(padding, reversed(lengths), extra, strict=True)
    ]
    return build.cast(build.shrink(y, [(0, y.shape[0]), (0, y.shape[1]), *ranges]), x.dtype)


# ---- pooling -----------------------------------------------------------------------------------


def largest(taken: Node) -> tuple[Node, Node]:
    """(values, place in the window) of the largest element along the last axis."""
    last = (len(taken.shape) - 1,)
    return build.reduce("max", taken, last), build.reduce("argmax", taken, last)


def to_chosen(g: Node, index: Node, taken: Node) -> Node:
    """The gradient ``g`` of a maximum at the one element that ``index`` names."""
    last = len(taken.shape) - 1
    hit = chosen(index, taken, last)
    return build.where(hit, spread(g, taken, (last,)), build.const_like(taken, 0))


def at_chosen(index: Node, taken: Node) -> Node:
    """The element along the last axis that ``index`` names."""
    last = len(taken.shape) - 1
    hit = chosen(index, taken, last)
    return total(build.where(hit, taken, build.const_like(taken, 0)), (last,))


def average(
    x: Node,
    kernel: Shape,
    stride: Shape,
    pads: Sequence[Pair],
    counted: Node,
    divisor: int | None,
) -> Node:
    """Window sums over the last axes, divided by ``divisor`` or by how many ones of ``counted``,
    which has the padded shape of those axes, each window holds."""
    once = (1,) * len(kernel)
    taken = wide(flat_windows(border(x, pads), kernel, stride, once))
    sums = total(taken, (len(taken.shape) - 1,))
    if divisor is not None or counted.op is ops.CONST:
        return build.cast(scaled(sums, divisor or math.prod(kernel)), x.dtype)
    ones = flat_windows(build.cast(counted, sums.dtype), kernel, stride, once)
    counts = total(ones, (len(ones.shape) - 1,))
    return build.cast(build.div(sums, expand(counts, sums.shape)), x.dtype)


def ones_inside(shape: Shape, pads: Sequence[Pair]) -> Node:
    """Ones in the places that count, zeros around them."""
    return build.pad(build.const(1, dtypes.float32, shape), pads)
