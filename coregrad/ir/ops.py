"""The one table of ops: a row per op, used by both levels; it knows no gradient and no backend.

The 25 *contract* rows are what an accelerator must meet (`coregrad/hookspecs.py` has one hook per
row, with the same argument names). The *graph* rows exist only between tensors: lowering turns
them into loops and index arithmetic, so that no backend ever sees one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

CONTRACT_VERSION = (1, 0)


@dataclass(frozen=True, eq=False)
class Op:
    """One row. ``args`` are value operands, ``attrs`` what is known when the kernel is compiled."""

    name: str
    args: tuple[str, ...]
    attrs: tuple[str, ...] = ()
    domain: str = "any"  # operand dtypes: any, number, float, int, bits (ints and bool)
    result: str = "same"  # "same" as the operands, "bool", "attr" (given), or "none"
    ulp: dict[str, float] = field(default_factory=dict)  # worst allowed error per float dtype
    summary: str = ""
    python: Callable[..., Any] | None = None  # exact reference on Python ints and bools

    def __repr__(self) -> str:
        return self.name


def _truncated_div(a: int, b: int) -> int:
    if b == 0:
        return 0
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


EXACT = {"float16": 0.5, "bfloat16": 0.5, "float32": 0.5, "float64": 0.5}
TRANSCENDENTAL = {"float16": 1.0, "bfloat16": 1.0, "float32": 4.0, "float64": 4.0}
TWO = ("a", "b")
ATTRS = ("dtype", "lanes")

# fmt: off
CONTRACT_OPS: dict[str, Op] = {op.name: op for op in (
    Op("load",    ("buffer", "index", "gate"), ("stride", *ATTRS), "any", "attr",
       summary="buffer[index + lane*stride]; 0 and no access where the gate is false"),
    Op("store",   ("buffer", "index", "value", "gate"), ("stride", *ATTRS), "any", "none",
       summary="buffer[index + lane*stride] = value; nothing where the gate is false"),
    Op("const",   (), ("value", *ATTRS), "any", "attr", summary="a number known at compile time"),
    Op("reduce",  ("accumulator", "value"), ("kind", *ATTRS), "number", "same",
       summary="one step of a reduction: add, mul, max, or argmax on (value, index) pairs"),
    Op("cast",    ("x",), ("source", *ATTRS), "any", "attr", EXACT,
       summary="float to int truncates, saturates, NaN to 0; int to int wraps; to bool is x != 0"),
    Op("bitcast", ("x",), ("source", *ATTRS), "any", "attr", summary="same bits, another dtype"),
    Op("exp",     ("x",), ATTRS, "float", ulp=TRANSCENDENTAL, summary="e to the x"),
    Op("log",     ("x",), ATTRS, "float", ulp=TRANSCENDENTAL, summary="natural logarithm"),
    Op("sin",     ("x",), ("quarter", *ATTRS), "float", ulp=TRANSCENDENTAL,
       summary="sin(x + quarter*pi/2) for any finite x"),
    Op("sqrt",    ("x",), ATTRS, "float", ulp={"float16": 1.0, "bfloat16": 1.0, "float32": 3.0,
                                               "float64": 3.0}, summary="square root"),
    Op("trunc",   ("x",), ATTRS, "float", ulp=EXACT, summary="round towards zero, keeping -0.0"),
    Op("add",     TWO, ATTRS, "number", ulp=EXACT, summary="sum; ints wrap",
       python=lambda a, b: a + b),
    Op("mul",     TWO, ATTRS, "number", ulp=EXACT, summary="product; ints wrap",
       python=lambda a, b: a * b),
    Op("div",     TWO, ATTRS, "float", ulp={"float16": 1.0, "bfloat16": 1.0, "float32": 2.5,
                                            "float64": 2.5}, summary="quotient of floats"),
    Op("idiv",    TWO, ATTRS, "int", summary="truncating quotient; the core guards 0 and MIN / -1",
       python=_truncated_div),
    Op("mod",     TWO, ATTRS, "number", ulp=EXACT,
       summary="remainder with the dividend's sign; the float form is optional",
       python=lambda a, b: a - b * _truncated_div(a, b) if b else 0),
    Op("max",     TWO, ATTRS, "number", ulp=EXACT,
       summary="larger; NaN if either is NaN; either zero for +0.0 and -0.0", python=max),
    Op("lt",      TWO, ATTRS, "any", "bool", summary="a < b; false with NaN",
       python=lambda a, b: a < b),
    Op("ne",      TWO, ATTRS, "any", "bool", summary="a != b; true with NaN",
       python=lambda a, b: a != b),
    Op("and",     TWO, ATTRS, "bits", summary="bitwise and", python=lambda a, b: a & b),
    Op("or",      TWO, ATTRS, "bits", summary="bitwise or", python=lambda a, b: a | b),
    Op("xor",     TWO, ATTRS, "bits", summary="bitwise exclusive or", python=lambda a, b: a ^ b),
    Op("shl",     TWO, ATTRS, "int", summary="shift left; the core guards counts >= width",
       python=lambda a, b: a << b),
    Op("shr",     TWO, ATTRS, "int", summary="shift right, arithmetic if signed; guarded alike",
       python=lambda a, b: a >> b),
    Op("where",   ("condition", "a", "b"), ATTRS, "any",
       summary="a where the condition is true, else b",
       python=lambda c, a, b: a if c else b),
)}

GRAPH_OPS: dict[str, Op] = {op.name: op for op in (
    # sources
    Op("iota",       (), ("dtype",), result="attr", summary="0, 1, 2, ... along one axis"),
    Op("buffer",     (), ("storage",), result="attr", summary="values in a device's memory"),
    Op("number",     (), ("value", "bound"), "int", "attr",
       summary="an integer in 0 .. bound that is given at every launch"),
    # movement: no arithmetic, only other indices
    Op("reshape",    ("x",), ("shape",), summary="the same elements in row-major order"),
    Op("permute",    ("x",), ("axes",), summary="axes in another order"),
    Op("expand",     ("x",), ("shape",), summary="axes of size 1 repeated"),
    Op("pad",        ("x",), ("widths", "bits"), summary="a border of one constant"),
    Op("shrink",     ("x",), ("ranges",), summary="a contiguous block"),
    Op("flip",       ("x",), ("axes",), summary="axes reversed"),
    Op("window",     ("x",), ("axis", "size", "stride", "dilation"),
       summary="out[..o.., k] = x[..o*stride + k*dilation..]"),
    Op("fold",       ("x",), ("axis", "length", "stride", "dilation"), domain="number",
       summary="adjoint of window: out[..p..] = sum of x[..o.., k] with o*stride + k*dilation = p"),
    Op("cat",        ("parts",), ("axis",), summary="tensors one after the other along an axis"),
    Op("scan",       ("x",), ("kind", "axis"), domain="number",
       summary="the running sum, product or maximum along one axis"),
    Op("argsort",    ("x",), ("count",), "int", "attr",
       summary="where the count smallest of the last axis stand, equal ones in their order"),
    # movement by numbers: one kernel for every place
    Op("slice",      ("x", "starts"), ("axes", "lengths"),
       summary="a block whose start on each of some axes is a number"),
    Op("update",     ("base", "value", "starts"), ("axes",),
       summary="base with such a block replaced by value"),
    # data-dependent
    Op("gather",     ("x", "index"), (), summary="x[index] along axis 0; index is in range"),
    Op("scatter",    ("base", "index", "value"), ("kind",),
       summary="base with base[index] set to, or increased by, value, in source order"),
    Op("check",      ("index",), ("bound",), "int",
       summary="the index counted from 0; one outside [-length, length) is an error"),
    # boundaries and markers
    Op("contiguous", ("x",), (), summary="has a buffer of its own"),
    Op("copy",       ("x",), ("device",), summary="the same values on another device"),
    Op("leaf",       ("x",), ("tag",), summary="marker: a tensor that may receive a gradient"),
    Op("detach",     ("x",), (), summary="marker: no gradient passes"),
    Op("custom",     ("x", "inputs"), ("rule",), summary="marker: x, with its own gradient rule"),
    Op("call",       ("arguments",), ("formula",), summary="an expression that is written once"),
)}
# fmt: on

OPS: dict[str, Op] = CONTRACT_OPS | GRAPH_OPS

LOAD, STORE, CONST, REDUCE, CAST, BITCAST = (
    OPS[name] for name in ("load", "store", "const", "reduce", "cast", "bitcast")
)
EXP, LOG, SIN, SQRT, TRUNC = (OPS[name] for name in ("exp", "log", "sin", "sqrt", "trunc"))
ADD, MUL, DIV, IDIV, MOD, MAX = (OPS[name] for name in ("add", "mul", "div", "idiv", "mod", "max"))
LT, NE, AND, OR, XOR, SHL, SHR = (
    OPS[name] for name in ("lt", "ne", "and", "or", "xor", "shl", "shr")
)
WHERE, IOTA, BUFFER = OPS["where"], OPS["iota"], OPS["buffer"]
RESHAPE, PERMUTE, EXPAND, PAD, SHRINK, FLIP = (
    OPS[name] for name in ("reshape", "permute", "expand", "pad", "shrink", "flip")
)
WINDOW, FOLD, CAT = OPS["window"], OPS["fold"], OPS["cat"]
SCAN, ARGSORT = OPS["scan"], OPS["argsort"]
NUMBER, SLICE, UPDATE = OPS["number"], OPS["slice"], OPS["update"]
GATHER, SCATTER, CHECK = OPS["gather"], OPS["scatter"], OPS["check"]
CONTIGUOUS, COPY, LEAF, DETACH, CUSTOM, CALL = (
    OPS[name] for name in ("contiguous", "copy", "leaf", "detach", "custom", "call")
)

ELEMENTWISE = frozenset(
    op for op in CONTRACT_OPS.values() if op not in (LOAD, STORE, CONST, REDUCE)
)
UNARY_MATH = frozenset((EXP, LOG, SIN, SQRT, TRUNC))
BINARY = frozenset(op for op in ELEMENTWISE if op.args == TWO)
MOVEMENT = frozenset((RESHAPE, PERMUTE, EXPAND, PAD, SHRINK, FLIP, WINDOW))
MARKERS = frozenset((LEAF, DETACH, CUSTOM))
REDUCE_KINDS = ("add", "mul", "max", "argmax")
SCAN_KINDS = ("add", "mul", "max")
