"""Exact rewriting of graphs: shorter ones with the same values, bit for bit, for every input.

Rules stand in a table keyed by op and look at one node whose sources are already simple. A rule
must hold for NaN, infinities, -0.0 and integer wrap-around in every dtype that it does not
exclude; what is true of real numbers only (``x - x``, ``x * 0`` or ``x + 0.0`` of floats) has no
rule. Only sums may be regrouped, as the contract allows. A realised node is never looked into.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from coregrad import dtypes
from coregrad.dtypes import DType, from_bits, to_bits
from coregrad.ir import build, ops
from coregrad.ir.graph import Node, intern, toposort
from coregrad.ir.ops import Op

Rule: TypeAlias = Callable[[Node], "Node | None"]
Number: TypeAlias = "int | float | bool"


def simplify(roots: Sequence[Node]) -> list[Node]:
    """Graphs with the values of ``roots``, in the same order."""
    done: dict[Node, Node] = {}
    for node in toposort(roots, _sources):
        done[node] = _apply(_rebuilt(node, done))
    return _merge_reductions([done[root] for root in roots])


def _rebuilt(node: Node, done: Mapping[Node, Node]) -> Node:
    """The node on what its sources have become."""
    src = tuple(done[source] for source in _sources(node))
    if src == node.src or node.buffer is not None:
        return node
    return intern(node.op, src, node.arg, node.dtype, node.shape)


def _apply(node: Node) -> Node:
    """The node after rules, until none fits. Its sources are simple already."""
    changed = True
    while changed and node.buffer is None:
        changed = False
        for rule in RULES.get(node.op, ()):
            better = rule(node)
            if better is not None:
                node, changed = better, True
                break
    return node


def _sources(node: Node) -> tuple[Node, ...]:
    return node.src if node.buffer is None else ()


# ---- looking at nodes --------------------------------------------------------------------------


def _number(node: Node) -> Number | None:
    """The Python number of a constant, None for any other node."""
    return from_bits(node.arg, node.dtype) if node.op is ops.CONST else None


def _is(node: Node, value: float) -> bool:
    """Whether ``node`` is the constant ``value``, bit for bit: 0.0 is not -0.0."""
    return node.op is ops.CONST and bool(node.arg == to_bits(value, node.dtype))


def _other(node: Node, value: float) -> Node | None:
    """The other operand of a commutative op one of whose operands is the constant ``value``."""
    a, b = node.src
    if _is(b, value):
        return a
    return b if _is(a, value) else None


def _with_const(node: Node) -> tuple[Node, Node] | None:
    """(x, constant) for a commutative op of a constant and something else."""
    a, b = node.src
    if (a.op is ops.CONST) == (b.op is ops.CONST):
        return None
    return (a, b) if b.op is ops.CONST else (b, a)


def _below(node: Node, op: Op) -> Node | None:
    """The only source, if it is an unrealised node of this op."""
    source = node.src[0]
    return source if source.op is op and source.buffer is None else None


def _constant(node: Node, value: float) -> Node:
    return build.const(value, node.dtype, node.shape)


def _wrapped(value: int, dtype: DType) -> int:
    """``value`` in two's complement of the width of ``dtype``."""
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if value > dtype.max else value


# ---- constants ---------------------------------------------------------------------------------


def _fold_exact(node: Node) -> Node | None:
    """An op on constant ints and bools; comparisons of constant floats."""
    numbers = [_number(source) for source in node.src]
    if None in numbers or node.op.python is None:
        return None
    if node.src[-1].dtype.is_float and node.op not in (ops.LT, ops.NE):
        return None
    if node.op in (ops.SHL, ops.SHR) and not 0 <= (numbers[1] or 0) < node.dtype.bits:
        return None
    value = node.op.python(*numbers)
    return _constant(node, _wrapped(value, node.dtype) if node.dtype.is_int else value)


def _fold_float(node: Node) -> Node | None:
    """add and mul of constant floats: a double rounded once more is the op's own rounding.

    For float16, bfloat16 and float32 because 53 >= 2*24 + 2 digits (Figueroa, "When is double
    rounding innocuous?", 1995), for float64 because Python's floats are doubles.
    """
    a, b = (_number(source) for source in node.src)
    if a is None or b is None or not node.dtype.is_float:
        return None
    return _constant(node, a + b if node.op is ops.ADD else a * b)


def _fold_cast(node: Node) -> Node | None:
    """A constant of any dtype, converted as the contract says."""
    value = _number(node.src[0])
    if value is None:
        return None
    if node.dtype.is_int:
        value = _to_int(value, node.dtype)
    return _constant(node, value != 0 if node.dtype is dtypes.bool_ else value)


def _to_int(value: Number, dtype: DType) -> int:
    if not isinstance(value, float):
        return _wrapped(int(value), dtype)
    if math.isnan(value):
        return 0
    return int(min(max(value, dtype.min), dtype.max))  # saturates; int() truncates


def _moved_const(node: Node) -> Node | None:
    """Any dtype: moving equal elements about leaves a constant, and bitcast keeps its bits."""
    source = node.src[0]
    if source.op is not ops.CONST:
        return None
    return intern(ops.CONST, (), source.arg, node.dtype, node.shape)


def _empty(node: Node) -> Node | None:
    """Any dtype: without elements every value is the same."""
    return _constant(node, 0) if 0 in node.shape else None


# ---- arithmetic --------------------------------------------------------------------------------


def _add(node: Node) -> Node | None:
    """x + -0.0 of floats, x + 0 of ints (x + 0.0 would turn -0.0 into 0.0)."""
    return _other(node, -0.0 if node.dtype.is_float else 0)


def _mul(node: Node) -> Node | None:
    """x * 1 of all numbers; x * 0 of ints."""
    if not node.dtype.is_float and _other(node, 0) is not None:
        return _constant(node, 0)
    return _other(node, 1)


def _regroup(node: Node) -> Node | None:
    """(x op c) op d of ints, which wrap: x op (c op d). Also (x * c) * -1 of floats: x * -c."""
    outer = _with_const(node)
    if outer is None or outer[0].op is not node.op or outer[0].buffer is not None:
        return None
    inner = _with_const(outer[0])
    if inner is None:
        return None
    if node.dtype.is_float and not (node.op is ops.MUL and _is(outer[1], -1)):
        return None
    folded = _apply(build.alu(node.op, inner[1], outer[1]))
    return build.alu(node.op, inner[0], folded)


def _div(node: Node) -> Node | None:
    """Floats by a power of two whose reciprocal is a normal number: x * (1/c), rounded alike."""
    a, b = node.src
    divisor = _number(b)
    if divisor is None or divisor == 0 or not math.isfinite(divisor):
        return None
    mantissa, exponent = math.frexp(divisor)
    if abs(mantissa) != 0.5 or abs(exponent - 1) > 14:
        return None  # 2**14 and 2**-14 are normal numbers of every float dtype, float16 included
    return build.mul(a, build.const_like(b, 1 / divisor))


def _idiv(node: Node) -> Node | None:
    """x // 1 of ints."""
    return node.src[0] if _is(node.src[1], 1) else None


def _mod(node: Node) -> Node | None:
    """x % 1 of ints."""
    return _constant(node, 0) if node.dtype.is_int and _is(node.src[1], 1) else None


def _max(node: Node) -> Node | None:
    """max(x, x) and max(x, smallest) of all numbers (-inf for floats: NaN stays NaN)."""
    a, b = node.src
    return a if a is b else _other(node, node.dtype.min)


def _max_of_largest(node: Node) -> Node | None:
    """max(x, largest) of ints."""
    if node.dtype.is_float or _other(node, node.dtype.max) is None:
        return None
    return _constant(node, node.dtype.max)


def _trunc(node: Node) -> Node | None:
    """Floats that are whole already: trunc(trunc(x)), trunc of a converted int or bool."""
    x = node.src[0]
    whole = x.op is ops.TRUNC or (x.op is ops.CAST and not x.src[0].dtype.is_float)
    return x if whole else None


def _shift(node: Node) -> Node | None:
    """Ints by 0."""
    return node.src[0] if _is(node.src[1], 0) else None


# ---- comparisons and bits ----------------------------------------------------------------------


def _lt(node: Node) -> Node | None:
    """x < x of any dtype (NaN is not below NaN); x < smallest and largest < x of ints and bools."""
    a, b = node.src
    if a is b:
        return _constant(node, False)
    if a.dtype.is_float:
        return None
    return _constant(node, False) if _is(b, a.dtype.min) or _is(a, a.dtype.max) else None


def _ne(node: Node) -> Node | None:
    """x != x of ints and bools; a bool != False is itself, != True its opposite."""
    a, b = node.src
    if a is b and not a.dtype.is_float:
        return _constant(node, False)
    if a.dtype is not dtypes.bool_:
        return None
    if _other(node, True) is not None:
        return build.xor(a, b)
    return _other(node, False)


def _ones(dtype: DType) -> int:
    return -1 if dtype.kind == "int" else int(dtype.max)


def _and(node: Node) -> Node | None:
    """Ints and bools: x & x, x & 0, x & ~0."""
    a, b = node.src
    if a is b:
        return a
    if _other(node, 0) is not None:
        return _constant(node, 0)
    return _other(node, _ones(node.dtype))


def _or(node: Node) -> Node | None:
    """Ints and bools: x | x, x | 0, x | ~0."""
    a, b = node.src
    if a is b:
        return a
    if _other(node, _ones(node.dtype)) is not None:
        return _constant(node, _ones(node.dtype))
    return _other(node, 0)


def _xor(node: Node) -> Node | None:
    """Ints and bools: x ^ x, x ^ 0, (x ^ a) ^ a."""
    a, b = node.src
    if a is b:
        return _constant(node, 0)
    for outer, inner in ((a, b), (b, a)):
        if inner.op is ops.XOR and inner.buffer is None and outer in inner.src:
            return inner.src[1] if inner.src[0] is outer else inner.src[0]
    return _other(node, 0)


def _where(node: Node) -> Node | None:
    """Any dtype: a known condition, equal branches, a negated or a repeated condition."""
    condition, a, b = node.src
    known = _number(condition)
    if known is not None:
        return a if known else b
    if a is b:
        return a
    if condition.op is ops.XOR and condition.buffer is None:
        plain = _other(condition, True)
        if plain is not None:
            return build.where(plain, b, a)
    if a.op is ops.WHERE and a.src[0] is condition and a.buffer is None:
        return build.where(condition, a.src[1], b)
    if b.op is ops.WHERE and b.src[0] is condition and b.buffer is None:
        return build.where(condition, a, b.src[2])
    return None


def _where_bool(node: Node) -> Node | None:
    """Bools: where(c, True, False) is c."""
    condition, a, b = node.src
    if node.dtype is not dtypes.bool_:
        return None
    return condition if _is(a, True) and _is(b, False) else None


# ---- conversions -------------------------------------------------------------------------------

_DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


def _cast(node: Node) -> Node | None:
    """cast(cast(x)) is one cast where the first loses nothing that the second would keep."""
    inner = _below(node, ops.CAST)
    if inner is None:
        return None
    source, middle, target = inner.src[0].dtype, inner.dtype, node.dtype
    if not (_keeps_low_bits(middle, target, source) or _is_lossless(source, middle, target)):
        return None
    return build.cast(inner.src[0], target)


def _keeps_low_bits(middle: DType, target: DType, source: DType) -> bool:
    """Ints only: the low bits that the second cast takes are untouched by the first."""
    return source.is_int and middle.is_int and target.is_int and target.bits <= middle.bits


def _is_lossless(source: DType, middle: DType, target: DType) -> bool:
    """Every value of ``source`` is one of ``middle``, from where it is converted alike."""
    if not _contains(middle, source):
        return False
    wraps = source.is_int and target.is_int  # while a float in the middle would saturate
    return not (wraps and middle.is_float) or _contains(target, source)


def _contains(wide: DType, narrow: DType) -> bool:
    """Whether each value of ``narrow`` is a value of ``wide``."""
    if narrow is wide or narrow is dtypes.bool_:
        return True
    if wide is dtypes.bool_:
        return False
    if narrow.is_float:
        return wide.is_float and wide.bits > narrow.bits
    if wide.is_float:
        return narrow.bits - (narrow.kind == "int") <= _DIGITS[wide.name]
    return wide.min <= narrow.min and narrow.max <= wide.max


def _bitcast(node: Node) -> Node | None:
    """Any dtype: bitcast(bitcast(x))."""
    inner = _below(node, ops.BITCAST)
    return None if inner is None else build.bitcast(inner.src[0], node.dtype)


# ---- movement (any dtype: no rule computes) ----------------------------------------------------


def _reshape(node: Node) -> Node | None:
    """Reshapes merge, and one to the same shape is nothing."""
    inner = _below(node, ops.RESHAPE)
    if inner is not None:
        return build.reshape(inner.src[0], node.shape)
    return node.src[0] if node.shape == node.src[0].shape else None


def _permute(node: Node) -> Node | None:
    inner = _below(node, ops.PERMUTE)
    if inner is not None:
        return build.permute(inner.src[0], tuple(inner.arg[a] for a in node.arg))
    return node.src[0] if node.arg == tuple(range(len(node.arg))) else None


def _expand(node: Node) -> Node | None:
    inner = _below(node, ops.EXPAND)
    if inner is not None:
        return build.expand(inner.src[0], node.shape)
    return node.src[0] if node.shape == node.src[0].shape else None


def _flip(node: Node) -> Node | None:
    inner = _below(node, ops.FLIP)
    if inner is not None:
        return build.flip(inner.src[0], tuple(set(inner.arg) ^ set(node.arg)))
    real = tuple(a for a in node.arg if node.shape[a] > 1)
    return build.flip(node.src[0], real) if real != node.arg else None


def _pad(node: Node) -> Node | None:
    """Borders of one value merge; a border of a constant's own value makes it larger."""
    widths, bits = node.arg
    inner = _below(node, ops.PAD)
    if inner is not None and inner.arg[1] == bits:
        pairs = zip(inner.arg[0], widths, strict=True)
        merged = tuple((a + c, b + d) for (a, b), (c, d) in pairs)
        return intern(ops.PAD, inner.src, (merged, bits), node.dtype, node.shape)
    source = node.src[0]
    return _moved_const(node) if source.op is ops.CONST and source.arg == bits else None


def _shrink(node: Node) -> Node | None:
    inner = _below(node, ops.SHRINK)
    if inner is not None:
        pairs = zip(inner.arg, node.arg, strict=True)
        return build.shrink(inner.src[0], tuple((a + c, a + d) for (a, _), (c, d) in pairs))
    return node.src[0] if node.shape == node.src[0].shape else None


def _shrink_of_pad(node: Node) -> Node | None:
    """What is kept of a border is a smaller border; a block of border only is a constant."""
    inner = _below(node, ops.PAD)
    if inner is None or 0 in node.shape:
        return None
    x, (widths, bits) = inner.src[0], inner.arg
    kept, borders = [], []
    for (start, stop), (before, _), n in zip(node.arg, widths, x.shape, strict=True):
        lo, hi = max(start - before, 0), min(stop - before, n)
        if lo >= hi:
            return intern(ops.CONST, (), bits, node.dtype, node.shape)
        kept.append((lo, hi))
        borders.append((lo + before - start, stop - before - hi))
    return build.pad(_apply(build.shrink(x, kept)), borders, from_bits(bits, node.dtype))


def _shrink_of_cat(node: Node) -> Node | None:
    """A block of one part only."""
    inner = _below(node, ops.CAT)
    if inner is None:
        return None
    axis, position = inner.arg, 0
    start, stop = node.arg[axis]
    for part in inner.src:
        if position <= start and stop <= position + part.shape[axis]:
            ranges = list(node.arg)
            ranges[axis] = (start - position, stop - position)
            return build.shrink(part, ranges)
        position += part.shape[axis]
    return None


def _window(node: Node) -> Node | None:
    """Windows of one element at every place: an axis of size 1."""
    _, size, stride, _ = node.arg
    return build.reshape(node.src[0], node.shape) if size == stride == 1 else None


def _cat(node: Node) -> Node | None:
    """Parts without elements drop out; equal constants are one; a cat inside joins the outer."""
    first = node.src[0]
    if first.op is ops.CONST and all(s.op is ops.CONST and s.arg == first.arg for s in node.src):
        return _moved_const(node)
    parts: list[Node] = []
    for source in node.src:
        nested = source.op is ops.CAT and source.arg == node.arg and source.buffer is None
        parts += source.src if nested else (source,)
    joined = build.cat(parts, node.arg)
    return joined if joined is not node else None


def _number_in_code(node: Node) -> Node:
    """A number that nobody gives at the launch (inside a formula, say) is a constant."""
    return _constant(node, node.arg[0])


def _fixed_starts(starts: Sequence[Node]) -> list[int] | None:
    numbers = [_number(start) for start in starts]
    return None if None in numbers else [int(n) for n in numbers if n is not None]


def _slice(node: Node) -> Node | None:
    """A block at a known place, of any dtype."""
    x, *starts = node.src
    axes, lengths = node.arg
    places = _fixed_starts(starts)
    if places is None:
        return _moved_const(node)
    ranges = [(0, n) for n in x.shape]
    for axis, start, length in zip(axes, places, lengths, strict=True):
        ranges[axis] = (start, start + length)
    return build.shrink(x, ranges)


def _update(node: Node) -> Node | None:
    """A block written to a known place, of any dtype."""
    base, value, *starts = node.src
    places = _fixed_starts(starts)
    if places is None:
        return None
    widths = [(0, 0)] * len(base.shape)
    for axis, start in zip(node.arg, places, strict=True):
        widths[axis] = (start, base.shape[axis] - start - value.shape[axis])
    inside = build.pad(build.const(True, dtypes.bool_, value.shape), widths, False)
    return build.where(inside, build.pad(value, widths), base)


# ---- reductions --------------------------------------------------------------------------------


def _reduce_of_nothing(node: Node) -> Node | None:
    """add and mul over an axis of size 0: the neutral element, in any dtype."""
    kind, _ = node.arg
    neutral = {"add": 0, "mul": 1}.get(kind)
    return _constant(node, neutral) if neutral is not None and 0 in node.src[0].shape else None


def _reduce_of_one(node: Node) -> Node | None:
    """Any dtype: over axes of size 1 the one element (its index, for argmax).

    A sum of floats starts at 0.0, which the element is added to: -0.0 alone sums to 0.0.
    """
    kind, axes = node.arg
    x = node.src[0]
    if any(x.shape[a] != 1 for a in axes):
        return None
    if kind == "argmax":
        return _constant(node, 0)
    alone = build.reshape(x, node.shape)
    return build.add(alone, _constant(node, 0)) if kind == "add" and x.dtype.is_float else alone


def _reduce_of_const(node: Node) -> Node | None:
    """The largest of equal elements, of any dtype; sum and product of constant ints, which wrap."""
    kind, axes = node.arg
    x = node.src[0]
    value = _number(x)
    if value is None or 0 in x.shape:
        return None
    if kind == "max":
        return _constant(node, value)
    if kind == "argmax":
        return _constant(node, 0)
    if x.dtype.is_float:
        return None
    count = math.prod(x.shape[a] for a in axes)
    whole = value * count if kind == "add" else pow(int(value), count, 1 << x.dtype.bits)
    return _constant(node, _wrapped(int(whole), node.dtype))


def _max_of_repeats(node: Node) -> Node | None:
    """max of any dtype: repeated elements count once."""
    kind, axes = node.arg
    inner = _below(node, ops.EXPAND)
    if kind != "max" or inner is None:
        return None
    x = inner.src[0]
    if not any(x.shape[a] != inner.shape[a] for a in axes):
        return None
    shape = tuple(x.shape[a] if a in axes else n for a, n in enumerate(inner.shape))
    return build.reduce("max", build.expand(x, shape), axes)


def _merge_reductions(roots: Sequence[Node]) -> list[Node]:
    """A reduction of a reduction nobody else uses is one reduction.

    max always; mul of ints, which wrap; add of ints, float32 and float64, whose order is free.
    Not of float16 and bfloat16: the inner sum is rounded, the accumulator is not.
    """
    order = toposort(roots, _sources)
    users: Counter[Node] = Counter(roots)
    for node in order:
        users.update(_sources(node))
    done: dict[Node, Node] = {}
    for node in order:
        made = _rebuilt(node, done)
        if made.op is ops.REDUCE and made.buffer is None and users[node.src[0]] == 1:
            made = _merged(made)
        done[node] = made
    return [done[root] for root in roots]


def _merged(node: Node) -> Node:
    inner = _below(node, ops.REDUCE)
    kind, outer = node.arg
    if inner is None or inner.arg[0] != kind or not _regroups(kind, node.dtype):
        return node
    left = [a for a in range(len(inner.src[0].shape)) if a not in inner.arg[1]]
    return build.reduce(kind, inner.src[0], (*inner.arg[1], *(left[a] for a in outer)))


def _regroups(kind: str, dtype: DType) -> bool:
    if kind == "add":
        return dtypes.accumulator(dtype) is dtype or not dtype.is_float
    return kind == "max" or (kind == "mul" and not dtype.is_float)


# ---- data-dependent ----------------------------------------------------------------------------


def _scatter_of_nothing(node: Node) -> Node | None:
    """No rows to write: the base."""
    base, _, value = node.src
    return base if 0 in value.shape else None


def _check(node: Node) -> Node | None:
    """An index known to be in range needs no check; one known to be negative is counted from 0."""
    length, _ = node.arg
    index = node.src[0]
    if index.op is ops.IOTA and index.shape[0] <= min(length, index.dtype.max + 1):
        return index
    value = _number(index)
    if value is None or not -length <= value < length:
        return None
    return _constant(node, value + length if value < 0 else value)


def _gathered_const(node: Node) -> Node | None:
    """Equal elements are equal wherever they are read, if no index can be out of range."""
    if node.src[0].op is not ops.CONST or any(n.op is ops.CHECK for n in toposort([node.src[1]])):
        return None
    return _moved_const(node)


def _gather_all(node: Node) -> Node | None:
    """All rows in order."""
    x, index = node.src
    whole = index.op is ops.IOTA and index.shape[0] == x.shape[0] <= index.dtype.max + 1
    return x if whole else None


# ---- the table ---------------------------------------------------------------------------------


def _rows(table: dict[Op, tuple[Rule, ...]]) -> dict[Op, tuple[Rule, ...]]:
    """The table with :func:`_empty` before each row."""
    return {op: (_empty, *rules) for op, rules in table.items()}


# fmt: off
RULES: dict[Op, tuple[Rule, ...]] = _rows({
    ops.REDUCE:     (_reduce_of_nothing, _reduce_of_one, _reduce_of_const, _max_of_repeats),
    ops.CAST:       (_fold_cast, _cast),
    ops.BITCAST:    (_moved_const, _bitcast),
    ops.EXP:        (),
    ops.LOG:        (),
    ops.SIN:        (),
    ops.SQRT:       (),
    ops.TRUNC:      (_trunc,),
    ops.ADD:        (_fold_exact, _fold_float, _add, _regroup),
    ops.MUL:        (_fold_exact, _fold_float, _mul, _regroup),
    ops.DIV:        (_div,),
    ops.IDIV:       (_fold_exact, _idiv),
    ops.MOD:        (_fold_exact, _mod),
    ops.MAX:        (_fold_exact, _max, _max_of_largest),
    ops.LT:         (_fold_exact, _lt),
    ops.NE:         (_fold_exact, _ne),
    ops.AND:        (_fold_exact, _and, _regroup),
    ops.OR:         (_fold_exact, _or, _regroup),
    ops.XOR:        (_fold_exact, _xor, _regroup),
    ops.SHL:        (_fold_exact, _shift),
    ops.SHR:        (_fold_exact, _shift),
    ops.WHERE:      (_where, _where_bool),
    ops.RESHAPE:    (_moved_const, _reshape),
    ops.PERMUTE:    (_moved_const, _permute),
    ops.EXPAND:     (_moved_const, _expand),
    ops.PAD:        (_pad,),
    ops.SHRINK:     (_moved_const, _shrink, _shrink_of_pad, _shrink_of_cat),
    ops.FLIP:       (_moved_const, _flip),
    ops.WINDOW:     (_moved_const, _window),
    ops.FOLD:       (),
    ops.CAT:        (_cat,),
    ops.NUMBER:     (_number_in_code,),
    ops.SLICE:      (_slice,),
    ops.UPDATE:     (_update,),
    ops.GATHER:     (_gathered_const, _gather_all),
    ops.SCATTER:    (_scatter_of_nothing,),
    ops.CHECK:      (_check,),
})
# fmt: on
