"""Index arithmetic: exact integer expressions of loop variables, with value ranges.

An :class:`Index` is a canonical sum ``c0 + c1*atom1 + c2*atom2 ...``; an atom is a loop variable, a
floor division or remainder by a positive constant, or an opaque integer (a loaded index). Every
operation returns an expression that is equal for *all* values of its variables within their
ranges. Movement ops become functions on tuples of indices; there is no strided view.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd, prod
from typing import Any, TypeAlias


@dataclass(frozen=True, eq=False)
class Var:
    """A loop variable: 0 <= var < extent."""

    name: str
    extent: int

    @property
    def key(self) -> str:
        """What terms are ordered by."""
        return self.name

    @cached_property
    def range(self) -> tuple[int, int]:
        """Smallest and largest value."""
        return 0, self.extent - 1

    @property
    def vars(self) -> frozenset[Var]:
        """The loop variables this depends on."""
        return frozenset((self,))


@dataclass(frozen=True, eq=False)
class Opaque:
    """An integer computed by the kernel (``value`` is an Instr), known to lie in ``range``."""

    name: str
    value: Any
    range: tuple[int, int]
    vars: frozenset[Var]

    @property
    def key(self) -> str:
        """What terms are ordered by."""
        return "~" + self.name


@dataclass(frozen=True)
class Quotient:
    """``x // divisor``, rounding down."""

    x: Index
    divisor: int

    @cached_property
    def key(self) -> str:
        """What terms are ordered by."""
        return f"({self.x.key})//{self.divisor}"

    @cached_property
    def range(self) -> tuple[int, int]:
        """Smallest and largest value."""
        return self.x.lo // self.divisor, self.x.hi // self.divisor

    @cached_property
    def vars(self) -> frozenset[Var]:
        """The loop variables this depends on."""
        return self.x.vars


@dataclass(frozen=True)
class Remainder:
    """``x % divisor``, in 0 .. divisor - 1."""

    x: Index
    divisor: int

    @cached_property
    def quotient(self) -> Index:
        """``x // divisor``: what a sum must contain to be rid of the remainder."""
        return self.x // self.divisor

    @cached_property
    def key(self) -> str:
        """What terms are ordered by."""
        return f"({self.x.key})%{self.divisor}"

    @cached_property
    def range(self) -> tuple[int, int]:
        """Smallest and largest value."""
        return 0, self.divisor - 1

    @cached_property
    def vars(self) -> frozenset[Var]:
        """The loop variables this depends on."""
        return self.x.vars


Atom: TypeAlias = Var | Opaque | Quotient | Remainder


@dataclass(frozen=True)
class Index:
    """``const + sum(coefficient * atom)``, in canonical order, with its range of values."""

    terms: tuple[tuple[Atom, int], ...]
    const: int
    lo: int
    hi: int
    vars: frozenset[Var] = field(compare=False)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # an index is asked for it far more often than it is made
        return hash((self.terms, self.const, self.lo, self.hi))

    @cached_property
    def key(self) -> str:
        """What atoms that contain this are ordered by."""
        return "+".join([f"{c}*{atom.key}" for atom, c in self.terms] + [str(self.const)])

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return self if other == 0 else _sum(dict(self.terms), self.const + other)
        terms = dict(self.terms)
        for atom, coefficient in other.terms:
            terms[atom] = terms.get(atom, 0) + coefficient
        return _sum(terms, self.const + other.const)

    def __mul__(self, factor: int) -> Index:
        if factor == 1:
            return self
        return _sum({atom: c * factor for atom, c in self.terms}, self.const * factor)

    def __sub__(self, other: Index | int) -> Index:
        return self + other * -1

    def __floordiv__(self, divisor: int) -> Index:
        return _floordiv(self, divisor)

    def __mod__(self, divisor: int) -> Index:
        return _mod(self, divisor)

    def __str__(self) -> str:
        return self.show({})

    @property
    def is_const(self) -> bool:
        """True when no variable is left."""
        return not self.terms

    def assume(self, lo: int, hi: int) -> Index:
        """The same expression, known (by a gate) to lie in ``lo .. hi``."""
        lo, hi = max(lo, self.lo), min(hi, self.hi)
        if lo > hi or (lo, hi) == (self.lo, self.hi):
            return self
        return Index(self.terms, self.const, lo, hi, self.vars)

    def coefficient(self, var: Var) -> int | None:
        """How much the value grows per step of ``var``; None where it does not grow evenly."""
        total = 0
        for atom, coefficient in self.terms:
            if atom is var:
                total += coefficient
            elif var in atom.vars:
                return None
        return total

    def substitute(self, values: Mapping[Var, Index]) -> Index:
        """The expression with variables replaced; ranges are recomputed."""
        if not self.vars & values.keys():
            return self
        total = constant(self.const)
        for atom, coefficient in self.terms:
            total = total + _substitute(atom, values) * coefficient
        return total

    def rebuilt(self, leaf: Callable[[Var | Opaque], Index]) -> Index:
        """The expression made anew of what ``leaf`` gives for each variable and each value that it
        computes. What a gate told of its range stays true."""
        total = constant(self.const)
        for atom, coefficient in self.terms:
            if isinstance(atom, Quotient):
                made = atom.x.rebuilt(leaf) // atom.divisor
            elif isinstance(atom, Remainder):
                made = atom.x.rebuilt(leaf) % atom.divisor
            else:
                made = leaf(atom)
            total = total + made * coefficient
        return total.assume(self.lo, self.hi)

    def computed(self) -> list[Any]:
        """The values that the kernel computes for this expression, wherever they stand in it."""
        found: list[Any] = []
        for atom, _ in self.terms:
            if isinstance(atom, Opaque):
                found.append(atom.value)
            elif isinstance(atom, Quotient | Remainder):
                found += atom.x.computed()
        return found

    def evaluate(self, values: Mapping[Var, int]) -> int:
        """The value for given loop variables (no opaque atoms)."""
        return self.const + sum(c * _evaluate(atom, values) for atom, c in self.terms)

    def show(self, names: Mapping[Any, str]) -> str:
        """The expression as text; ``names`` names the values inside opaque atoms."""
        parts = [
            _show(atom, names) if c == 1 else _show_scaled(atom, c, names) for atom, c in self.terms
        ]
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts).replace("+ -", "- ")


def constant(value: int) -> Index:
    """The index that is always ``value``."""
    return Index((), value, value, value, frozenset())


def variable(atom: Atom) -> Index:
    """The index that is one atom. A loop of extent 1 is the constant 0."""
    lo, hi = atom.range
    if lo == hi:
        return constant(lo)
    return Index(((atom, 1),), 0, lo, hi, atom.vars)


def flatten(indices: Sequence[Index], shape: Sequence[int]) -> Index:
    """The row-major position of an element of a tensor of ``shape``."""
    terms: dict[Atom, int] = {}
    const, stride = 0, 1
    for index, size in zip(reversed(indices), reversed(shape), strict=True):
        const += index.const * stride
        for atom, coefficient in index.terms:
            terms[atom] = terms.get(atom, 0) + coefficient * stride
        stride *= size
    return _sum(terms, const)


def unflatten(position: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """The indices of the element at a row-major position: the inverse of :func:`flatten`."""
    if not shape or 0 in shape:
        return (constant(0),) * len(shape)
    position = position.assume(0, prod(shape) - 1)
    if len(shape) == 1:
        return (position,)
    out = []
    for size in reversed(shape[1:]):
        out.append(position % size)
        position = position // size
    out.append(position)
    return tuple(reversed(out))


def reshape(
    indices: Sequence[Index], shape: Sequence[int], source: Sequence[int]
) -> tuple[Index, ...]:
    """Where element ``indices`` of a tensor of ``shape`` stands in one of shape ``source``.

    Axes are matched in groups of equal size first, so that only what was really merged or
    split pays for a division.
    """
    out: list[Index] = []
    i = j = 0
    while i < len(shape) or j < len(source):
        i0, j0 = i, j
        left = right = 1
        while True:
            if left <= right and i < len(shape):
                left *= shape[i]
                i += 1
            elif j < len(source):
                right *= source[j]
                j += 1
            else:
                left *= shape[i]
                i += 1
            if left == right and i > i0 and j > j0:
                break
            if i == len(shape) and j == len(source):
                break
        out += unflatten(flatten(indices[i0:i], shape[i0:i]), source[j0:j])
    return tuple(out)


def _sum(terms: dict[Atom, int], const: int) -> Index:
    if 0 in terms.values():
        terms = {atom: c for atom, c in terms.items() if c}
    for atom in terms:
        if isinstance(atom, Remainder):
            merged = _recombine(terms, atom)
            if merged is not None:
                return merged + const
    ordered = list(terms.items())
    if len(ordered) > 1:
        ordered.sort(key=lambda item: item[0].key)
    lo = hi = const
    used: frozenset[Var] = frozenset()
    for atom, c in ordered:
        low, high = atom.range
        lo += c * (low if c > 0 else high)
        hi += c * (high if c > 0 else low)
        used |= atom.vars
    return Index(tuple(ordered), const, lo, hi, used)


def _recombine(terms: dict[Atom, int], rest: Remainder) -> Index | None:
    """``c*d*(x//d) + c*(x%d)`` is ``c*x``."""
    c = terms[rest]
    quotient = rest.quotient
    scale = c * rest.divisor
    if not quotient.terms or any(terms.get(a) != k * scale for a, k in quotient.terms):
        return None
    left = {a: k for a, k in terms.items() if a is not rest and a != rest}
    for a, _ in quotient.terms:
        del left[a]
    total = rest.x * c - quotient.const * scale
    for a, k in left.items():
        total = total + variable(a) * k
    return total


def _split(x: Index, unit: int) -> tuple[Index, Index]:
    """``x`` as ``unit * whole + rest``, whole taking every term that ``unit`` divides."""
    whole = {a: c // unit for a, c in x.terms if c % unit == 0}
    rest = {a: c for a, c in x.terms if c % unit}
    rest_sum = _sum(rest, x.const % unit)
    if not whole:  # nothing was taken out but the constant: keep what a gate told us
        shift = x.const - x.const % unit
        rest_sum = rest_sum.assume(x.lo - shift, x.hi - shift)
    return _sum(whole, x.const // unit), rest_sum


def _floordiv(x: Index, d: int) -> Index:
    if d <= 0:
        raise ValueError(f"index division by {d}: the divisor must be positive")
    if d == 1:
        return x
    if x.lo // d == x.hi // d:
        return constant(x.lo // d)
    whole, rest = _split(x, d)
    if rest.lo // d == rest.hi // d:
        return whole + rest.lo // d
    for unit in _units(rest, d):
        high, low = _split(rest, unit)
        if low.lo >= 0 and low.hi < unit:
            return whole + _floordiv(high, d // unit)
    if len(rest.terms) == 1 and rest.const == 0 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if isinstance(atom, Quotient):
            return whole + _floordiv(atom.x, atom.divisor * d)
        if isinstance(atom, Remainder) and atom.divisor % d == 0:
            return whole + _mod(_floordiv(atom.x, d), atom.divisor // d)
    return whole + variable(Quotient(rest, d))


def _mod(x: Index, d: int) -> Index:
    if d <= 0:
        raise ValueError(f"index remainder by {d}: the divisor must be positive")
    if d == 1:
        return constant(0)
    if x.lo // d == x.hi // d:
        return x - x.lo // d * d
    _, rest = _split(x, d)
    if rest.lo // d == rest.hi // d:
        return rest - rest.lo // d * d
    for unit in _units(rest, d):
        high, low = _split(rest, unit)
        if low.lo >= 0 and low.hi < unit:
            return _mod(high, d // unit) * unit + low
    if len(rest.terms) == 1 and rest.const == 0 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if isinstance(atom, Remainder) and atom.divisor % d == 0:
            return _mod(atom.x, d)
    return variable(Remainder(rest, d))


def _units(x: Index, d: int) -> list[int]:
    """Common divisors of ``d`` and a coefficient, largest first: candidates for :func:`_split`."""
    return sorted({g for _, c in x.terms if (g := gcd(c, d)) > 1}, reverse=True)


def _substitute(atom: Atom, values: Mapping[Var, Index]) -> Index:
    if isinstance(atom, Var):
        return values.get(atom) or variable(atom)
    if isinstance(atom, Quotient):
        return atom.x.substitute(values) // atom.divisor
    if isinstance(atom, Remainder):
        return atom.x.substitute(values) % atom.divisor
    return variable(atom)


def _evaluate(atom: Atom, values: Mapping[Var, int]) -> int:
    if isinstance(atom, Var):
        return values[atom]
    if isinstance(atom, Quotient):
        return atom.x.evaluate(values) // atom.divisor
    if isinstance(atom, Remainder):
        return atom.x.evaluate(values) % atom.divisor
    raise ValueError(f"index {atom.name} is computed by the kernel and has no value here")


def _show(atom: Atom, names: Mapping[Any, str]) -> str:
    if isinstance(atom, Var):
        return atom.name
    if isinstance(atom, Opaque):
        return names.get(atom.value, atom.name)
    sign = "//" if isinstance(atom, Quotient) else "%"
    x = atom.x.show(names)
    return f"{x}{sign}{atom.divisor}" if x.isidentifier() else f"({x}){sign}{atom.divisor}"


def _show_scaled(atom: Atom, factor: int, names: Mapping[Any, str]) -> str:
    text = _show(atom, names)
    return f"{factor}*({text})" if isinstance(atom, Quotient | Remainder) else f"{factor}*{text}"
