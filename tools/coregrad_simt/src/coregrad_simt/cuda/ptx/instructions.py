"""What each instruction means, as C++. A table: opcode, the modifiers that are understood, and the
function that writes the statement. What is not in it is refused.

Approximating instructions (``ex2.approx`` and its like) are computed exactly by the C library: the
last bits of a GPU are not known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coregrad_simt.cuda.ptx import types
from coregrad_simt.cuda.ptx.parse import Instruction
from coregrad_simt.cuda.ptx.scope import Place, Scope
from coregrad_simt.errors import UnsupportedPTX

Writer = Callable[[Instruction, Scope], str]

ORDERED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
UNSIGNED_ORDERED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
UNORDERED = {f"{name}u": sign for name, sign in ORDERED.items()}
ROUNDINGS = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
LOGIC = {"and": "&", "or": "|", "xor": "^"}


@dataclass(frozen=True)
class Row:
    """An instruction's row in the table. ``waits``: whether threads meet there."""

    write: Writer
    modifiers: frozenset[str]
    waits: bool = False


TABLE: dict[str, Row] = {}


def row(opcodes: str, modifiers: str = "", waits: bool = False) -> Callable[[Writer], Writer]:
    """Put a writer into the table."""

    def put(write: Writer) -> Writer:
        for opcode in opcodes.split():
            TABLE[opcode] = Row(write, frozenset(modifiers.split()), waits)
        return write

    return put


def translate(it: Instruction, scope: Scope) -> str:
    """An instruction as a C++ statement. Raises UnsupportedPTX."""
    found = TABLE.get(it.opcode)
    if found is None or not found.modifiers.issuperset(it.modifiers):
        raise UnsupportedPTX(f"line {it.line}: {it.text}")
    try:
        statement = found.write(it, scope)
    except (UnsupportedPTX, KeyError, IndexError) as error:
        raise UnsupportedPTX(f"line {it.line}: {it.text}: {error}") from None
    if it.guard:
        return f"if ({scope.read(it.guard, 'pred')}) {{ {statement} }}"
    return f"{{ {statement} }}" if " " in statement and "goto" not in statement else statement


# ---- what many share -----------------------------------------------------------------------------


def values(it: Instruction, scope: Scope, kind: str | None = None) -> list[str]:
    """The operands after the first. ``.ftz`` takes denormals for zero."""
    kind = kind or it.type
    read = [scope.read(operand, kind) for operand in it.operands[1:]]
    return [f"flushed({x})" for x in read] if it.has("ftz") and kind == "f32" else read


def result(it: Instruction, scope: Scope, expression: str, kind: str | None = None) -> str:
    """The statement that keeps a result, flushed and clamped as the modifiers say."""
    kind = kind or it.type
    if it.has("sat") and kind in types.FLOATS:
        expression = f"clamped(({types.VALUES[kind]})({expression}))"
    if it.has("ftz") and kind == "f32":
        expression = f"flushed({expression})"
    return scope.write(it.operands[0], kind, expression)


def one(it: Instruction, *choices: str) -> str:
    """Which of the modifiers is there; the first is the default if it is empty."""
    found = [choice for choice in choices if choice and it.has(choice)]
    if len(found) == 1 or (not found and "" in choices):
        return found[0] if found else ""
    raise UnsupportedPTX(f"one of {', '.join(filter(None, choices))} is needed")


def function(name: str, kind: str) -> str:
    """The C library's function for a type; half precision is computed in single."""
    return f"__builtin_{name}" + ("" if kind == "f64" else "f")


# ---- arithmetic ----------------------------------------------------------------------------------

# Sums and the like keep nothing but their low bits, which are the same signed and unsigned.


@row("add sub", "rn rm rz rp ftz sat cc")
def _sum(it: Instruction, scope: Scope) -> str:
    sign = {"add": "+", "sub": "-"}[it.opcode]
    if it.type in types.FLOATS:
        a, b = values(it, scope)
        b_or_negative = b if sign == "+" else f"-{b}"
        directed = _directed(it, a, "1.0f", b_or_negative)
        return result(it, scope, directed or f"{a} {sign} {b}")
    if it.has("sat"):
        raise UnsupportedPTX("saturating integers")
    word = types.unsigned(it.type)
    a, b = values(it, scope, word)
    if it.has("cc"):
        return result(it, scope, f"{it.opcode}_carry<{word}>({a}, {b}, 0, carry)", word)
    return result(it, scope, f"{a} {sign} {b}", word)


@row("addc subc", "cc")
def _sum_with_carry(it: Instruction, scope: Scope) -> str:
    word = types.unsigned(it.type)
    a, b = values(it, scope, word)
    name = it.opcode[:3]
    if it.has("cc"):
        return result(it, scope, f"{name}_carry<{word}>({a}, {b}, carry, carry)", word)
    return result(it, scope, f"{name}_carry<{word}>({a}, {b}, carry)", word)


def _directed(it: Instruction, a: str, b: str, c: str) -> str:
    """a * b + c rounded down, up or to zero, if the instruction says so."""
    direction = one(it, "", "rn", "rm", "rz", "rp")
    if direction in ("", "rn"):
        return ""
    if it.type != "f32":
        raise UnsupportedPTX("directed rounding")
    return f"fused_{direction}({a}, {b}, {c})"


@row("mul", "lo hi wide rn rm rz rp ftz sat")
def _product(it: Instruction, scope: Scope) -> str:
    if it.type in types.FLOATS:
        a, b = values(it, scope)
        return result(it, scope, _directed(it, a, b, "-0.0f") or f"{a} * {b}")
    return _integer_product(it, scope, "")


@row("mad", "lo hi wide rn ftz sat cc")
def _product_and_sum(it: Instruction, scope: Scope) -> str:
    if it.type in types.FLOATS:
        return _fused(it, scope)
    return _integer_product(it, scope, it.operands[3])


def _integer_product(it: Instruction, scope: Scope, summand: str) -> str:
    """The low half, the high half or all of a product, plus a summand if there is one."""
    part = one(it, "lo", "hi", "wide")
    a, b = (scope.read(operand, it.type) for operand in it.operands[1:3])
    kind = f"{it.type[0]}{2 * types.bits(it.type)}" if part == "wide" else it.type
    word = types.unsigned(kind)
    if part == "lo":
        product = f"({word})({word}){a} * ({word}){b}"
    elif part == "hi":
        product = f"({word})high<{types.VALUES[it.type]}>({a}, {b})"
    else:
        product = f"({word})(({types.VALUES[kind]}){a} * ({types.VALUES[kind]}){b})"
    if it.has("cc"):
        total = f"add_carry<{word}>({product}, {scope.read(summand, word)}, 0, carry)"
        return result(it, scope, total, word)
    if summand:
        product = f"{product} + {scope.read(summand, word)}"
    return result(it, scope, product, word)


@row("madc", "lo hi cc")
def _product_and_sum_with_carry(it: Instruction, scope: Scope) -> str:
    word = types.unsigned(it.type)
    a, b = (scope.read(operand, it.type) for operand in it.operands[1:3])
    if one(it, "lo", "hi") == "lo":
        product = f"({word})({word}){a} * ({word}){b}"
    else:
        product = f"({word})high<{types.VALUES[it.type]}>({a}, {b})"
    out = ", carry" if it.has("cc") else ""
    total = f"add_carry<{word}>({product}, {scope.read(it.operands[3], word)}, carry{out})"
    return result(it, scope, total, word)


@row("fma", "rn rm rz rp ftz sat")
def _fused(it: Instruction, scope: Scope) -> str:
    a, b, c = values(it, scope)
    if it.has("rn"):
        name = {"f64": "__builtin_fma", "f32": "__builtin_fmaf"}.get(it.type, "fused_half")
        return result(it, scope, f"{name}({a}, {b}, {c})")
    return result(it, scope, _directed(it, a, b, c))


@row("div", "rn full approx ftz")
def _quotient(it: Instruction, scope: Scope) -> str:
    a, b = values(it, scope)
    if it.type in types.FLOATS:
        return result(it, scope, f"{a} / {b}")
    return result(it, scope, f"quotient<{types.VALUES[it.type]}>({a}, {b})")


@row("rem")
def _remainder(it: Instruction, scope: Scope) -> str:
    a, b = values(it, scope)
    return result(it, scope, f"remainder<{types.VALUES[it.type]}>({a}, {b})")


@row("rcp", "rn approx ftz")
def _reciprocal(it: Instruction, scope: Scope) -> str:
    (x,) = values(it, scope)
    if it.type == "f64" and it.has("approx"):
        return result(it, scope, f"coarse_reciprocal({x})")
    return result(it, scope, f"({types.VALUES[it.type]})1 / {x}")


@row("sqrt", "rn approx ftz")
def _square_root(it: Instruction, scope: Scope) -> str:
    (x,) = values(it, scope)
    return result(it, scope, f"{function('sqrt', it.type)}({x})")


@row("rsqrt", "approx ftz")
def _inverse_root(it: Instruction, scope: Scope) -> str:
    (x,) = values(it, scope)
    return result(it, scope, f"({types.VALUES[it.type]})1 / {function('sqrt', it.type)}({x})")


APPROXIMATED = {"ex2": "exp2", "lg2": "log2", "sin": "sin", "cos": "cos", "tanh": "tanh"}


@row("ex2 lg2 sin cos tanh", "approx ftz")
def _approximated(it: Instruction, scope: Scope) -> str:
    (x,) = values(it, scope)
    return result(it, scope, f"{function(APPROXIMATED[it.opcode], it.type)}({x})")


@row("abs neg", "ftz")
def _sign(it: Instruction, scope: Scope) -> str:
    (x,) = values(it, scope)
    if it.type in types.FLOATS:
        return result(it, scope, f"__builtin_fabs({x})" if it.opcode == "abs" else f"-{x}")
    negative = f"0 - ({types.unsigned(it.type)}){x}"
    return result(it, scope, f"{x} < 0 ? {negative} : {x}" if it.opcode == "abs" else negative)


@row("copysign")
def _copysign(it: Instruction, scope: Scope) -> str:
    sign, size = values(it, scope)
    return result(it, scope, f"{function('copysign', it.type)}({size}, {sign})")


@row("min max", "NaN ftz")
def _extreme(it: Instruction, scope: Scope) -> str:
    a, b = values(it, scope)
    name = ("lesser" if it.opcode == "min" else "greater") + ("_nan" if it.has("NaN") else "")
    return result(it, scope, f"{name}<{types.VALUES[it.type]}>({a}, {b})")


# ---- bits ----------------------------------------------------------------------------------------


@row("dp4a")
def _byte_products(it: Instruction, scope: Scope) -> str:
    """The sum of four products of bytes, each operand's signed or unsigned, and a summand."""
    kinds = [f"{kind[0]}8" for kind in it.types]
    a, b = (scope.read(operand, "u32") for operand in it.operands[1:3])
    c = scope.read(it.operands[3], "u32")
    products = f"byte_products<{kinds[0]}, {kinds[1]}>({a}, {b})"
    return scope.write(it.operands[0], "u32", f"{products} + {c}")


@row("dp2a", "lo hi")
def _word_products(it: Instruction, scope: Scope) -> str:
    """The sum of two products, 16-bit numbers by the low or the high bytes of the other operand."""
    first, second = it.types
    a, b = (scope.read(operand, "u32") for operand in it.operands[1:3])
    shift = 0 if one(it, "lo", "hi") == "lo" else 16
    products = f"word_products<{first[0]}16, {second[0]}8>({a}, {b} >> {shift})"
    return scope.write(it.operands[0], "u32", f"{products} + {scope.read(it.operands[3], 'u32')}")


@row("and or xor")
def _logic(it: Instruction, scope: Scope) -> str:
    a, b = values(it, scope)
    return result(it, scope, f"{a} {LOGIC[it.opcode]} {b}")


@row("not")
def _not(it: Instruction, scope: Scope) -> str:
    (x,) = values(it, scope)
    return result(it, scope, f"!{x}" if it.type == "pred" else f"~{x}")


@row("shl shr")
def _shift(it: Instruction, scope: Scope) -> str:
    a, count = scope.read(it.operands[1], it.type), scope.read(it.operands[2], "u32")
    name = "left" if it.opcode == "shl" else "right"
    return result(it, scope, f"shifted_{name}<{types.VALUES[it.type]}>({a}, {count})")


@row("shf", "l r clamp wrap")
def _funnel(it: Instruction, scope: Scope) -> str:
    low, high, count = values(it, scope, "u32")
    count = f"{count} & 31" if one(it, "wrap", "clamp") == "wrap" else f"lesser<u32>({count}, 32)"
    both = f"((u64){high} << 32 | {low})"
    shifted = f"{both} << ({count}) >> 32" if one(it, "l", "r") == "l" else f"{both} >> ({count})"
    return result(it, scope, shifted, "u32")


@row("bfe")
def _extract(it: Instruction, scope: Scope) -> str:
    a, start, length = scope.read(it.operands[1], it.type), *_bytes(it, scope, 2)
    return result(it, scope, f"extracted<{types.VALUES[it.type]}>({a}, {start}, {length})")


@row("bfi")
def _insert(it: Instruction, scope: Scope) -> str:
    a, b = (scope.read(operand, it.type) for operand in it.operands[1:3])
    start, length = _bytes(it, scope, 3)
    return result(it, scope, f"inserted<{types.VALUES[it.type]}>({a}, {b}, {start}, {length})")


def _bytes(it: Instruction, scope: Scope, first: int) -> list[str]:
    """Start and length of a field: the low bytes of two operands."""
    return [f"{scope.read(operand, 'u32')} & 255" for operand in it.operands[first : first + 2]]


@row("popc clz")
def _count(it: Instruction, scope: Scope) -> str:
    (x,) = values(it, scope)
    if it.opcode == "popc":
        return result(it, scope, f"__builtin_popcountl({x})", "u32")
    width = types.bits(it.type)
    return result(it, scope, f"{x} ? __builtin_clzl({x}) - {64 - width} : {width}", "u32")


@row("brev")
def _reverse(it: Instruction, scope: Scope) -> str:
    (x,) = values(it, scope)
    return result(it, scope, f"reversed<{types.VALUES[it.type]}>({x})")


@row("lop3")
def _any_logic(it: Instruction, scope: Scope) -> str:
    """A truth table of three bits: bit 4a + 2b + c of the number is the result."""
    names = [scope.read(operand, "b32") for operand in it.operands[1:4]]
    table = int(it.operands[4], 0)
    terms = []
    for i in range(8):
        if table >> i & 1:
            signs = ("" if i & 4 else "~", "" if i & 2 else "~", "" if i & 1 else "~")
            terms.append("(" + " & ".join(s + n for s, n in zip(signs, names, strict=True)) + ")")
    return result(it, scope, " | ".join(terms) or "0u")


@row("prmt")
def _permute(it: Instruction, scope: Scope) -> str:
    low, high, selector = values(it, scope, "u32")
    return result(it, scope, f"permuted({low}, {high}, {selector})")


# ---- comparisons and choices ---------------------------------------------------------------------


@row("setp", " ".join([*ORDERED, *UNSIGNED_ORDERED, *UNORDERED, *LOGIC, "num", "nan", "ftz"]))
def _compare(it: Instruction, scope: Scope) -> str:
    a, b = (scope.read(operand, it.type) for operand in it.operands[1:3])
    if it.has("ftz"):
        a, b = f"flushed({a})", f"flushed({b})"
    statement = f"const bool held = {_comparison(it, a, b)};"
    joint = one(it, "", *LOGIC)
    other = f" {LOGIC[joint]} {scope.read(it.operands[3], 'pred')}" if joint else ""
    first, _, second = it.operands[0].partition("|")
    statement += scope.write(first, "pred", f"held{other}")
    if second:
        statement += scope.write(second, "pred", f"!held{other}")
    return statement


def _comparison(it: Instruction, a: str, b: str) -> str:
    name = next(m for m in it.modifiers if m not in LOGIC and m != "ftz")
    if name in UNSIGNED_ORDERED:
        return f"{a} {UNSIGNED_ORDERED[name]} {b}"
    if it.type not in types.FLOATS:
        return f"{a} {ORDERED[name]} {b}"
    if name in ("num", "nan"):
        return ("!" if name == "num" else "") + f"unordered({a}, {b})"
    if name in UNORDERED:
        return f"unordered({a}, {b}) || {a} {UNORDERED[name]} {b}"
    return f"!unordered({a}, {b}) && {a} {ORDERED[name]} {b}"


@row("selp")
def _choose(it: Instruction, scope: Scope) -> str:
    a, b = (scope.read(operand, it.type) for operand in it.operands[1:3])
    return result(it, scope, f"{scope.read(it.operands[3], 'pred')} ? {a} : {b}")


@row("slct", "ftz")
def _choose_by_sign(it: Instruction, scope: Scope) -> str:
    kind, by = it.types
    a, b = (scope.read(operand, kind) for operand in it.operands[1:3])
    return scope.write(it.operands[0], kind, f"{scope.read(it.operands[3], by)} >= 0 ? {a} : {b}")


TESTS = {"nan": "isnan", "infinite": "isinf_sign", "finite": "isfinite", "normal": "isnormal"}


@row("testp", " ".join([*TESTS, "number"]))
def _test(it: Instruction, scope: Scope) -> str:
    name, x = it.modifiers[0], scope.read(it.operands[1], it.type)
    test = f"!__builtin_isnan({x})" if name == "number" else f"__builtin_{TESTS[name]}({x})"
    return scope.write(it.operands[0], "pred", f"{test} != 0")


# ---- moves and conversions -----------------------------------------------------------------------


@row("mov")
def _move(it: Instruction, scope: Scope) -> str:
    target, source = it.operands
    bits = types.bits(it.type) if it.type != "pred" else 0
    if target.startswith("{"):
        parts = target.strip("{} ").split(",")
        word, part = scope.read(source, f"b{bits}"), f"b{bits // len(parts)}"
        writes = [
            scope.write(name, part, f"word >> {i * bits // len(parts)}")
            for i, name in enumerate(parts)
            if name.strip() != "_"
        ]
        return f"const u64 word = {word}; " + " ".join(writes)
    if source.startswith("{"):
        parts = source.strip("{} ").split(",")
        part = f"b{bits // len(parts)}"
        words = [f"(u64){scope.read(name, part)}" for name in parts]
        words = [f"{word} << {i * bits // len(parts)}" for i, word in enumerate(words)]
        return scope.write(target, f"b{bits}", " | ".join(words))
    kind = it.type if it.type == "pred" else f"b{bits}"  # bits, whatever they are
    return scope.write(target, kind, scope.read(source, kind))


@row("cvta", "to global shared local const param")
def _convert_address(it: Instruction, scope: Scope) -> str:
    """Addresses are the CPU's everywhere but in shared memory, where they are offsets."""
    source = it.operands[1]
    address = scope.read(source, "u64")
    if it.has("shared"):
        address = f"{address} - shared_base()" if it.has("to") else f"{address} + shared_base()"
    return scope.write(it.operands[0], "u64", address)


@row("cvt", "rn rz rm rp rni rzi rmi rpi ftz sat")
def _convert(it: Instruction, scope: Scope) -> str:
    to, source = it.types
    if to in ("f16x2", "bf16x2"):
        half = to[:-2]
        high, low = (scope.read(operand, "f32") for operand in it.operands[1:])
        pair = f"(u32)bits_of(({half}){high}) << 16 | bits_of(({half}){low})"
        one(it, "rn")
        return scope.write(it.operands[0], "u32", pair)
    x = scope.read(it.operands[1], source)
    if it.has("ftz") and source == "f32":
        x = f"flushed({x})"
    if to in types.FLOATS:
        return result(it, scope, _to_float(it, x, source, to), to)
    if source in types.FLOATS:
        rounding = ROUNDINGS[one(it, *ROUNDINGS)]
        whole = f"__builtin_{rounding}((double){x})"
        # What PTX says of NaN: zero, unless the source is f64 or the result has 64 bits.
        top = "true" if types.bits(to) == 64 or source == "f64" else "false"
        number = f"saturated<{types.VALUES[to]}>({whole}, {top})"
        return scope.write(it.operands[0], to, number)
    if it.has("sat"):
        return scope.write(it.operands[0], to, f"limited<{types.VALUES[to]}>({x})")
    return scope.write(it.operands[0], to, x)


def _to_float(it: Instruction, x: str, source: str, to: str) -> str:
    if source in types.FLOATS and any(it.has(name) for name in ROUNDINGS):
        return f"__builtin_{ROUNDINGS[one(it, *ROUNDINGS)]}((double){x})"
    narrower = source not in types.FLOATS or types.size(to) < types.size(source)
    direction = one(it, "", "rn", "rz", "rm", "rp")
    if direction in ("rz", "rm", "rp") and narrower:
        if source != "f64" or to != "f32":
            raise UnsupportedPTX("directed rounding")
        return f"directed_{direction}({x})"
    if source not in types.FLOATS and to in ("f16", "bf16"):
        return f"half_of_integer<{to}>({x})"
    return f"narrowed<{to}>({x})" if source == "f64" and to in ("f16", "bf16") else x


# ---- memory --------------------------------------------------------------------------------------

SPACES = ("param", "global", "shared", "local", "const", "")
# How memory is cached and ordered: nothing to a machine that runs one thread at a time.
CACHING = (
    "weak volatile relaxed acquire release nc ca cg cs lu cv wb wt cta cluster gpu sys "
    "L1::no_allocate L1::evict_last L1::evict_first L1::evict_normal L1::evict_unchanged "
    "L2::64B L2::128B L2::256B"
)


def _place(it: Instruction, scope: Scope, operand: str, size: int) -> str:
    """The CPU's address of what an instruction reads or writes, checked."""
    address, named = scope.address(operand)
    space = one(it, *SPACES) or "generic"
    if space == "shared":
        return f"shared_at({address}, {size})"
    if named and named != space:
        raise UnsupportedPTX(f"memory of the space {named} read as {space}")
    return f"aligned({address}, {size})"


def _vector(it: Instruction, operand: str) -> list[str]:
    """The registers of a vector, or the one register."""
    count = {"v2": 2, "v4": 4, "v8": 8, "": 1}[one(it, "v2", "v4", "v8", "")]
    names = [name.strip() for name in operand.strip("{} ").split(",")]
    if len(names) != count:
        raise UnsupportedPTX(f"{count} registers are needed")
    return names


@row("ld", f"param global shared local const v2 v4 v8 {CACHING}")
def _load(it: Instruction, scope: Scope) -> str:
    names, size = _vector(it, it.operands[0]), types.size(it.type)
    place = _place(it, scope, it.operands[1], size * len(names))
    kind = types.VALUES[it.type]
    statement = f"const u64 place = {place};"
    load = "loaded_volatile" if it.has("volatile") else "loaded"
    for i, name in enumerate(names):
        statement += scope.write(name, it.type, f"{load}<{kind}>(place + {i * size})")
    return statement


@row("ldu", "global v2 v4")
def _load_uniform(it: Instruction, scope: Scope) -> str:
    return _load(it, scope)


@row("st", f"param global shared local v2 v4 v8 {CACHING}")
def _store(it: Instruction, scope: Scope) -> str:
    names, size = _vector(it, it.operands[1]), types.size(it.type)
    place = _place(it, scope, it.operands[0], size * len(names))
    kind = types.VALUES[it.type]
    statement = f"const u64 place = {place};"
    for i, name in enumerate(names):
        statement += f" stored<{kind}>(place + {i * size}, {scope.read(name, it.type)});"
    return statement


ATOMICS = {
    "add": "old + value", "and": "old & value", "or": "old | value", "xor": "old ^ value",
    "exch": "value", "min": "lesser<{kind}>(old, value)", "max": "greater<{kind}>(old, value)",
    "cas": "old == value ? other : old",
}  # fmt: skip


@row("atom red", f"global shared {' '.join(ATOMICS)} {CACHING}")
def _atomic(it: Instruction, scope: Scope) -> str:
    operands = it.operands if it.opcode == "atom" else ("_", *it.operands)
    kind, operation = types.VALUES[it.type], one(it, *ATOMICS)
    place = _place(it, scope, operands[1], types.size(it.type))
    statement = f"const u64 place = {place}; const {kind} old = loaded<{kind}>(place);"
    statement += f" const {kind} value = {scope.read(operands[2], it.type)};"
    if operation == "cas":
        statement += f" const {kind} other = {scope.read(operands[3], it.type)};"
    statement += f" stored<{kind}>(place, {ATOMICS[operation].format(kind=kind)});"
    return statement + scope.write(operands[0], it.type, "old")


@row("membar fence", "cta gl gpu sys sc acq_rel cluster")
def _fence(it: Instruction, scope: Scope) -> str:
    return ";"


@row("prefetch", "global local L1 L2")
def _prefetch(it: Instruction, scope: Scope) -> str:
    return ";"


# ---- control -------------------------------------------------------------------------------------


@row("bra", "uni")
def _branch(it: Instruction, scope: Scope) -> str:
    return f"goto {label(it.operands[0])};"


def label(name: str) -> str:
    """A label's name in C++."""
    return "at_" + name.replace("$", "_")


@row("ret exit", "uni")
def _return(it: Instruction, scope: Scope) -> str:
    return "return;"  # of the kernel; a function's `exit` is refused (translate.py)


@row("trap")
def _trap(it: Instruction, scope: Scope) -> str:
    return 'simt_fail("trap");'


@row("call", "uni")
def _call(it: Instruction, scope: Scope) -> str:
    """``call (result), name, (arguments)``: slots are passed by address."""
    lists = [operand for operand in it.operands if operand.startswith("(")]
    (name,) = [operand for operand in it.operands if not operand.startswith("(")]
    slots = [slot.strip() for part in lists for slot in part.strip("() ").split(",")]
    places = [scope.find(slot) for slot in slots if slot]
    if not all(isinstance(place, Place) for place in places):
        raise UnsupportedPTX("an argument that is no slot")
    return f"{function_name(name)}({', '.join(p.address for p in places if isinstance(p, Place))});"


def function_name(name: str) -> str:
    """A function's name in C++."""
    return "function_" + name.replace("$", "_")


@row("bar barrier", "sync cta aligned", waits=True)
def _barrier(it: Instruction, scope: Scope) -> str:
    if it.operands != ("0",):
        raise UnsupportedPTX("a barrier other than number 0 of all threads")
    return f"simt_block_barrier({it.line}, {it.line});"


@row("shfl", "sync up down bfly idx", waits=True)
def _shuffle(it: Instruction, scope: Scope) -> str:
    value, lane, clamp, mask = (scope.read(operand, "u32") for operand in it.operands[1:])
    first, _, second = it.operands[0].partition("|")
    mode = one(it, "up", "down", "bfly", "idx")
    call = f"shuffle_{mode}({value}, {lane}, {clamp}, {mask}, inside, {it.line})"
    statement = "bool inside; " + scope.write(first, "u32", call)
    return statement + (scope.write(second, "pred", "inside") if second else "")


@row("vote", "sync all any ballot", waits=True)
def _vote(it: Instruction, scope: Scope) -> str:
    x, mask = scope.read(it.operands[1], "pred"), scope.read(it.operands[2], "u32")
    mode = one(it, "all", "any", "ballot")
    if mode == "all":
        call = f"simt_ballot({mask}, !({x}), {it.line}, {it.line}) == 0"
        return scope.write(it.operands[0], "pred", call)
    call = f"simt_ballot({mask}, {x}, {it.line}, {it.line})"
    return scope.write(it.operands[0], "u32" if mode == "ballot" else "pred", call)


def _warp_barrier(it: Instruction, scope: Scope) -> str:
    return f"simt_warp_barrier({scope.read(it.operands[0], 'u32')}, {it.line}, {it.line});"


WARP_BARRIER = Row(_warp_barrier, frozenset({"warp", "sync"}), waits=True)
