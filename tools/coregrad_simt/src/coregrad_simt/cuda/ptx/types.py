"""PTX's types: how wide they are, and which C++ type holds a register or a value of each."""

from __future__ import annotations

# A register is kept as its bits, in an unsigned integer of its width; what reads it says as what.
WIDTHS = {"8": 1, "16": 2, "32": 4, "64": 8}
UNSIGNED = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}  # the names of ptx.h
VALUES = {
    "pred": "bool",
    **{f"{kind}{bits}": f"u{bits}" for kind in "bu" for bits in WIDTHS},
    **{f"s{bits}": f"s{bits}" for bits in WIDTHS},
    "f16": "f16",
    "bf16": "bf16",
    "f32": "float",
    "f64": "double",
    "f16x2": "u32",
    "bf16x2": "u32",
}
FLOATS = ("f16", "bf16", "f32", "f64")


def size(name: str) -> int:
    """How many bytes a value has.

    >>> size("f64"), size("bf16"), size("f16x2"), size("pred")
    (8, 2, 4, 1)
    """
    if name == "pred":
        return 1
    return 4 if name.endswith("x2") else WIDTHS[name.lstrip("bfsu")]


def bits(name: str) -> int:
    """How many bits a value has."""
    return 8 * size(name)


def storage(name: str) -> str:
    """The C++ type of a register declared with this type."""
    return "bool" if name == "pred" else UNSIGNED[size(name)]


def unsigned(name: str) -> str:
    """The unsigned type of the same width: what wraps."""
    return f"u{bits(name)}"


def is_type(word: str) -> bool:
    """Whether a part of an instruction's name is a type.

    >>> is_type("s32"), is_type("lo")
    (True, False)
    """
    return word in VALUES
