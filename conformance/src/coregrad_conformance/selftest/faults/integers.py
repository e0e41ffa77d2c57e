"""Integers of the wrong width or sign, and those that go by way of floats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from coregrad_conformance.selftest.device import Change, changed
from coregrad_conformance.selftest.fault import Fault

SIGNED = {"uint8": np.int8, "uint16": np.int16, "uint32": np.int32, "uint64": np.int64}
UNSIGNED = {"int8": np.uint8, "int16": np.uint16, "int32": np.uint32, "int64": np.uint64}


def faults() -> Iterator[Fault]:
    """All of this file."""
    for op, dtype, name, says, change in WIDTHS:
        yield _fault("integer width", op, dtype, name, says, change)
    for op, dtype, name, says, change in SIGNS:
        yield _fault("integer sign", op, dtype, name, says, change)


def _fault(kind: str, op: str, dtype: str, name: str, says: str, change: Change) -> Fault:
    words = "literals" if op == "const" else op
    by = f"{op}/{dtype}/special-{'values' if op == 'const' else 'pairs'}"
    return Fault(f"integers/{op}-{dtype}-{name}", kind, op, dtype,
                 f"{words} of {dtype}: {says}", by, changed(op, dtype, change))  # fmt: skip


def _double(x: Any) -> Any:
    return np.asarray(x).astype(np.float64)


def _as(x: Any, right: Any) -> Any:
    """Numbers as the dtype of the right result, those out of range at its ends."""
    limits = np.iinfo(right.dtype)
    beyond = np.asarray(x) >= float(limits.max)
    inside = np.where(beyond, 0, x).astype(right.dtype)
    return np.where(beyond, limits.max, inside)


def _signed(x: Any) -> Any:
    return x.view(SIGNED[str(x.dtype)])


def _unsigned(x: Any) -> Any:
    return x.view(UNSIGNED[str(x.dtype)])


def _low(x: Any, bits: int) -> Any:
    """The low bits alone."""
    return x & np.array((1 << bits) - 1, x.dtype)


def _saturated_sum(right: Any, a: Any, b: Any) -> Any:
    limits = np.iinfo(right.dtype)
    exact = _double(a) + _double(b)
    return np.where(exact > limits.max, limits.max, np.where(exact < limits.min, limits.min, right))


def _truncated(a: Any, b: Any) -> Any:
    return np.trunc(_double(a) / np.where(b == 0, 1, b))


# fmt: off
WIDTHS: tuple[tuple[str, str, str, str, Change], ...] = (
    ("add", "int32", "saturates", "sums saturate", _saturated_sum),
    ("add", "uint8", "saturates", "sums saturate", _saturated_sum),
    ("add", "int64", "by-double", "sums are taken in float64",
     lambda right, a, b: np.where(np.abs(_double(right)) > 2.0**53,
                                  _as(_double(a) + _double(b), right), right)),
    ("add", "int64", "no-carry", "no carry from the lower to the upper half",
     lambda right, a, b: (((a >> 32) + (b >> 32)) << 32) | _low(right, 32)),
    ("mul", "int64", "by-double", "products are taken in float64",
     lambda right, a, b: np.where(np.abs(_double(a) * _double(b)) < 2.0**63,
                                  _as(_double(a) * _double(b), right), right)),
    ("mul", "int32", "24-bits", "products of the low 24 bits",
     lambda right, a, b: (((a << 8) >> 8) * ((b << 8) >> 8))),
    ("mul", "uint32", "16-bits", "products of the low 16 bits",
     lambda right, a, b: _low(a, 16) * _low(b, 16)),
    ("mul", "uint8", "saturates", "products saturate",
     lambda right, a, b: np.where(_double(a) * _double(b) > 255, 255, right).astype(np.uint8)),
    ("idiv", "int32", "by-single", "quotients are taken in float32",
     lambda right, a, b: _as(np.trunc(a.astype(np.float32) / b.astype(np.float32)), right)),
    ("idiv", "int64", "by-double", "quotients are taken in float64",
     lambda right, a, b: _as(_truncated(a, b), right)),
    ("idiv", "uint32", "of-31-bits", "the top bit of the dividend is lost",
     lambda right, a, b: _low(a, 31) // b),
    ("mod", "int64", "by-double", "remainders are taken in float64",
     lambda right, a, b: _as(np.fmod(_double(a), _double(b)), right)),
    ("mod", "uint32", "power-of-two", "a remainder is a bitwise and with the divisor less one",
     lambda right, a, b: a & (b - np.uint32(1))),
    ("shl", "int64", "counts-of-32", "counts are taken modulo 32",
     lambda right, a, b: a << (b & 31)),
    ("shl", "uint8", "counts-of-4", "counts are taken modulo 4",
     lambda right, a, b: a << (b & np.uint8(3))),
    ("shr", "int64", "low-half", "the lower half alone is shifted",
     lambda right, a, b: np.where(b < 32, (a >> 32 << 32) | (_low(a, 32) >> b), right)),
    ("shr", "uint32", "rounds", "shifts to the right round up",
     lambda right, a, b: right + np.where(b > 0, (a >> (np.maximum(b, 1) - np.uint32(1)))
                                          & np.uint32(1), 0).astype(np.uint32)),
    ("lt", "int64", "by-double", "compared as float64",
     lambda right, a, b: _double(a) < _double(b)),
    ("lt", "int64", "low-half", "the lower halves are compared",
     lambda right, a, b: _low(a, 32) < _low(b, 32)),
    ("lt", "int32", "by-difference", "compared by the sign of the difference, which overflows",
     lambda right, a, b: (a - b) < 0),
    ("lt", "uint32", "by-single", "compared as float32",
     lambda right, a, b: a.astype(np.float32) < b.astype(np.float32)),
    ("ne", "int64", "by-double", "compared as float64",
     lambda right, a, b: _double(a) != _double(b)),
    ("ne", "int64", "low-half", "the lower halves are compared",
     lambda right, a, b: _low(a, 32) != _low(b, 32)),
    ("ne", "int32", "by-single", "compared as float32",
     lambda right, a, b: a.astype(np.float32) != b.astype(np.float32)),
    ("max", "int64", "by-double", "compared as float64, the first of equals is taken",
     lambda right, a, b: np.where(_double(a) >= _double(b), a, b)),
    ("and", "int64", "low-half", "the upper half is that of the first operand",
     lambda right, a, b: (a >> 32 << 32) | _low(right, 32)),
    ("or", "int64", "low-half", "the upper half is that of the first operand",
     lambda right, a, b: (a >> 32 << 32) | _low(right, 32)),
    ("xor", "int64", "low-half", "the upper half is that of the first operand",
     lambda right, a, b: (a >> 32 << 32) | _low(right, 32)),
    ("and", "uint8", "logical", "1 or 0, as of truth values",
     lambda right, a, b: ((a != 0) & (b != 0)).astype(np.uint8)),
    ("or", "int32", "by-sum", "a sum instead, which carries", lambda right, a, b: a + b),
    ("xor", "uint32", "by-difference", "a difference instead", lambda right, a, b: a - b),
    ("xor", "bool", "or", "or instead", lambda right, a, b: a | b),
    ("or", "bool", "xor", "exclusive or instead", lambda right, a, b: a ^ b),
    ("and", "bool", "first", "the first operand", lambda right, a, b: a | np.zeros_like(b)),
    ("lt", "bool", "ne", "different instead of less", lambda right, a, b: a != b),
    ("where", "int64", "by-double", "what is chosen goes by way of float64",
     lambda right, c, a, b: _as(_double(right), right)),
    ("where", "uint8", "seven-bits", "the top bit of what is chosen is lost",
     lambda right, c, a, b: _low(right, 7)),
    ("const", "int64", "by-double", "written as float64",
     lambda right, value: _as(_double(right), right)),
    ("const", "uint32", "31-bits", "literals beyond 31 bits saturate",
     lambda right, value: np.minimum(right, np.uint32(0x7FFFFFFF))),
)
SIGNS: tuple[tuple[str, str, str, str, Change], ...] = (
    ("idiv", "int32", "rounds-down", "quotients round down",
     lambda right, a, b: a // b),
    ("idiv", "int64", "rounds-down", "quotients round down",
     lambda right, a, b: a // b),
    ("idiv", "uint32", "signed", "divided as signed numbers",
     lambda right, a, b: _as_unsigned(_double(_signed(a)), _double(_signed(b)), np.uint32)),
    ("idiv", "uint8", "signed", "divided as signed numbers",
     lambda right, a, b: _as_unsigned(_double(_signed(a)), _double(_signed(b)), np.uint8)),
    ("mod", "int32", "of-divisor", "a remainder has the sign of the divisor",
     lambda right, a, b: np.mod(a, b)),
    ("mod", "int64", "of-divisor", "a remainder has the sign of the divisor",
     lambda right, a, b: np.mod(a, b)),
    ("mod", "uint32", "signed", "divided as signed numbers",
     lambda right, a, b: np.fmod(_signed(a).astype(np.int64), _signed(b)).astype(np.uint32)),
    ("shr", "int32", "logical", "zeros are shifted in",
     lambda right, a, b: (_unsigned(a) >> _unsigned(b)).view(np.int32)),
    ("shr", "int64", "logical", "zeros are shifted in",
     lambda right, a, b: (_unsigned(a) >> _unsigned(b)).view(np.int64)),
    ("shr", "uint32", "arithmetic", "the top bit is shifted in",
     lambda right, a, b: (_signed(a) >> _signed(b)).view(np.uint32)),
    ("shr", "uint8", "arithmetic", "the top bit is shifted in",
     lambda right, a, b: (_signed(a) >> _signed(b)).view(np.uint8)),
    ("lt", "uint32", "signed", "compared as signed numbers",
     lambda right, a, b: _signed(a) < _signed(b)),
    ("lt", "uint8", "signed", "compared as signed numbers",
     lambda right, a, b: _signed(a) < _signed(b)),
    ("lt", "int32", "unsigned", "compared as unsigned numbers where both are far from 0",
     lambda right, a, b: np.where((np.abs(a >> 16) > 1) & (np.abs(b >> 16) > 1),
                                  _unsigned(a) < _unsigned(b), right)),
    ("max", "uint32", "signed", "compared as signed numbers",
     lambda right, a, b: np.where(_signed(a) > _signed(b), a, b)),
    ("max", "int32", "unsigned", "compared as unsigned numbers",
     lambda right, a, b: np.where(_unsigned(a) > _unsigned(b), a, b)),
    ("max", "uint8", "signed", "compared as signed numbers",
     lambda right, a, b: np.where(_signed(a) > _signed(b), a, b)),
)
# fmt: on


def _as_unsigned(a: Any, b: Any, dtype: Any) -> Any:
    return np.trunc(a / np.where(b == 0, 1, b)).astype(np.int64).astype(dtype)
