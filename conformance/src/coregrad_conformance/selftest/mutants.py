"""Automatic mutants of the reference's source: one small change each, nobody's choice.

A mutant's id is its file, the function it is in, the operator and a number that counts within
these, so that a change elsewhere in the file leaves it alone.
"""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

PACKAGE = "coregrad_cpu"
FILES = ("formats", "folds", "memory", "turns", "reference")  # in the order of their imports
Apply: TypeAlias = Callable[[], None]
Site: TypeAlias = tuple[str, ast.AST, Apply, str]  # operator, where, what it does, in words


@dataclass(frozen=True)
class Mutant:
    """One changed copy of one file."""

    id: str
    file: str
    line: int
    text: str  # of the line, without its indentation
    becomes: str
    number: int  # of the site, as `sites` lists them

    @property
    def words(self) -> str:
        """Where, and what has changed."""
        return f"{self.file}.py:{self.line}: {self.text}  |  {self.becomes}"


@cache
def source(file: str) -> str:
    """The text of a file of the reference."""
    path = inspect.getsourcefile(import_module(f"{PACKAGE}.{file}"))
    assert path is not None
    return Path(path).read_text(encoding="utf-8")


@cache
def all_mutants() -> tuple[Mutant, ...]:
    """Every mutant of every file."""
    return tuple(mutant for file in FILES for mutant in _mutants(file))


def _mutants(file: str) -> Iterator[Mutant]:
    lines = source(file).splitlines()
    counts: Counter[str] = Counter()
    for number, (place, (operator, node, _, becomes)) in enumerate(sites(ast.parse(source(file)))):
        stem = f"{file}/{place}/{operator}"
        counts[stem] += 1
        line: int = node.lineno  # type: ignore[attr-defined]
        text = lines[line - 1].strip()
        yield Mutant(f"{stem}/{counts[stem]}", file, line, text, becomes, number)


def mutated(mutant: Mutant) -> ast.Module:
    """The file with the change."""
    tree = ast.parse(source(mutant.file))
    found = list(sites(tree))
    _, (_, _, apply, _) = found[mutant.number]
    apply()
    return ast.fix_missing_locations(tree)


# ---- where something can be changed ------------------------------------------------------------


def sites(tree: ast.Module) -> Iterator[tuple[str, Site]]:
    """Each possible change of a file, with the name of the function or class that it is in."""
    stack: list[tuple[ast.AST, str]] = [(tree, "")]
    while stack:
        node, place = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            place = f"{place}.{node.name}".strip(".")
        yield from ((place or "module", site) for site in _at(node))
        stack += [(child, place) for child in reversed(list(_children(node)))]


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """What runs: no annotations, no decorators, no imports, no words for people."""
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Raise | ast.JoinedStr):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args", "bases") and not isinstance(
            node, ast.Call
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_words(child):
                yield child


def _is_words(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _at(node: ast.AST) -> Iterator[Site]:
    for kind, function in OPERATORS:
        if isinstance(node, kind):
            yield from function(node)


def _set(node: ast.AST, name: str, value: Any) -> Apply:
    return lambda: setattr(node, name, value)


def _put(values: list[Any], at: int, value: Any) -> Apply:
    def apply() -> None:
        values[at] = value

    return apply


def _say(before: Any, after: Any) -> str:
    return f"{_text(before)} -> {_text(after)}"


def _text(node: Any) -> str:
    return ast.unparse(node) if isinstance(node, ast.AST) else str(node)


# ---- the operators -----------------------------------------------------------------------------

COMPARISONS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
NAMES: dict[str, tuple[str, ...]] = {
    "float64": ("float32",),
    "float32": ("float64",),
    "uint32": ("int32", "uint64"),
    "uint16": ("int16",),
    "bool_": ("int8",),
    "less": ("less_equal", "greater"),
    "not_equal": ("equal",),
    "maximum": ("fmax", "minimum"),
    "add": ("subtract",),
    "multiply": ("add",),
    "divide": ("multiply",),
    "fmod": ("remainder",),
    "exp": ("exp2",),
    "log": ("log2",),
    "sin": ("cos",),
    "cos": ("sin",),
    "sqrt": ("cbrt",),
    "trunc": ("floor", "rint"),
    "inf": ("nan",),
    "max": ("min",),
    "min": ("max",),
    "prod": ("sum",),
    "size": ("ndim",),
    "is_float": ("is_int",),
    "is_int": ("is_float",),
    "bfloat16": ("float32",),
    "computed_wide": ("computed",),
}


def _compare(node: ast.Compare) -> Iterator[Site]:
    for i, op in enumerate(node.ops):
        for other in COMPARISONS.get(type(op), ()):
            changed = ast.Compare(node.left, [*node.ops[:i], other(), *node.ops[i + 1 :]],
                                  node.comparators)  # fmt: skip
            yield "comparison", node, _put(node.ops, i, other()), _say(node, changed)


def _binary(node: ast.BinOp) -> Iterator[Site]:
    other = ARITHMETIC.get(type(node.op))
    if other is not None:
        changed = ast.BinOp(node.left, other(), node.right)
        yield "operator", node, _set(node, "op", other()), _say(node, changed)


def _logic(node: ast.BoolOp) -> Iterator[Site]:
    other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    yield "logic", node, _set(node, "op", other), _say(node, ast.BoolOp(other, node.values))


def _unary(node: ast.UnaryOp) -> Iterator[Site]:
    """-x and ~x without their sign: x twice over gives it back."""
    inner = node.operand
    changed = ast.UnaryOp(ast.Not(), inner) if isinstance(node.op, ast.Not) else inner
    double = ast.UnaryOp(node.op, inner)
    yield "sign", node, _set(node, "operand", double), _say(node, changed)


def _constant(node: ast.Constant) -> Iterator[Site]:
    for value in _other_constants(node.value):
        yield "constant", node, _set(node, "value", value), _say(node, repr(value))


def _other_constants(value: Any) -> tuple[Any, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (value + 1,) if value in (0, 1) else (value + 1, value - 1)
    if isinstance(value, float):
        return (value + 1.0, value * 2.0) if value else (1.0,)
    return NAMES.get(value, ()) if isinstance(value, str) else ()


def _attribute(node: ast.Attribute) -> Iterator[Site]:
    for other in NAMES.get(node.attr, ()):
        changed = ast.Attribute(node.value, other, node.ctx)
        yield "name", node, _set(node, "attr", other), _say(node, changed)


def _name(node: ast.Name) -> Iterator[Site]:
    if isinstance(node.ctx, ast.Load):
        for other in NAMES.get(node.id, ()):
            yield "name", node, _set(node, "id", other), _say(node, other)


def _branch(node: ast.If) -> Iterator[Site]:
    never = ast.Constant(value=False)
    always = ast.Constant(value=True)
    yield "condition", node, _set(node, "test", never), f"if {_text(node.test)} -> if False"
    yield "condition", node, _set(node, "test", always), f"if {_text(node.test)} -> if True"


def _choice(node: ast.IfExp) -> Iterator[Site]:
    for value in (True, False):
        taken = node.body if value else node.orelse
        yield "choice", node, _set(node, "test", ast.Constant(value=value)), _say(node, taken)


def _call(node: ast.Call) -> Iterator[Site]:
    for i in range(len(node.args) - 1):
        swapped = list(node.args)
        swapped[i], swapped[i + 1] = swapped[i + 1], swapped[i]
        if not any(isinstance(a, ast.Starred) for a in node.args[i : i + 2]):
            changed = ast.Call(node.func, swapped, node.keywords)
            yield "arguments", node, _set(node, "args", swapped), _say(node, changed)
    for i, keyword in enumerate(node.keywords):
        kept = [k for k in node.keywords if k is not keyword]
        changed = ast.Call(node.func, node.args, kept)
        yield "keyword", node, _set(node, "keywords", kept), f"{_say(node, changed)} ({i})"


def _return(node: ast.Return) -> Iterator[Site]:
    for inner in _operands(node.value):
        yield "result", node, _set(node, "value", inner), _say(node.value, inner)


def _assign(node: ast.Assign) -> Iterator[Site]:
    for inner in _operands(node.value):
        yield "value", node, _set(node, "value", inner), _say(node, inner)


def _operands(value: ast.expr | None) -> list[ast.expr]:
    """Parts of an expression that could stand for the whole of it."""
    if isinstance(value, ast.BinOp):
        return [value.left, value.right]
    if isinstance(value, ast.Call):
        parts = list(value.args)
        if isinstance(value.func, ast.Attribute):
            parts.append(value.func.value)
        return [part for part in parts if not _is_no_value(part)]
    return []


def _is_no_value(node: ast.expr) -> bool:
    """A function, a dtype, a module: whatever is done with it raises at once."""
    if isinstance(node, ast.Attribute):
        return _is_no_value(node.value)
    if isinstance(node, ast.Name):
        return node.id in ("np", "dtype", "ufunc", "function", "fold")
    return isinstance(node, ast.Starred | ast.Constant | ast.Lambda)


def _slice(node: ast.Slice) -> Iterator[Site]:
    if node.lower is not None:
        yield "slice", node, _set(node, "lower", None), _say(node, ast.Slice(None, node.upper))
    if node.upper is not None:
        yield "slice", node, _set(node, "upper", None), _say(node, ast.Slice(node.lower, None))


def _block(node: ast.AST) -> Iterator[Site]:
    """Statements left out. Not the last one of a block that would be empty, nor a return."""
    for name in ("body", "orelse"):
        body = getattr(node, name, None)
        if not isinstance(body, list):
            continue
        for i, stmt in enumerate(body):
            dropped = isinstance(stmt, ast.Expr | ast.Assign | ast.AnnAssign | ast.For | ast.With)
            if dropped and not _is_words(stmt) and getattr(stmt, "value", True) is not None:
                first = _text(stmt).splitlines()[0]
                yield (
                    "statement",
                    stmt,
                    _put(body, i, ast.copy_location(ast.Pass(), stmt)),
                    (f"left out: {first}"),
                )


OPERATORS: tuple[tuple[Any, Callable[[Any], Iterator[Site]]], ...] = (
    (ast.Compare, _compare),
    (ast.BinOp, _binary),
    (ast.BoolOp, _logic),
    (ast.UnaryOp, _unary),
    (ast.Constant, _constant),
    (ast.Attribute, _attribute),
    (ast.Name, _name),
    (ast.If, _branch),
    (ast.IfExp, _choice),
    (ast.Call, _call),
    (ast.Return, _return),
    (ast.Assign, _assign),
    (ast.Slice, _slice),
    (ast.Module | ast.FunctionDef | ast.ClassDef | ast.If | ast.For | ast.With | ast.Try, _block),
)
