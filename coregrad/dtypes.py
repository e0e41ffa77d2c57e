"""One row per dtype and the rules of promotion; it knows nothing of shapes, tensors or devices."""

from __future__ import annotations

import functools
import math
import struct
from dataclasses import dataclass

from coregrad.errors import DTypeError


@dataclass(frozen=True, eq=False)
class DType:
    """A number format. Compare with ``is`` or ``==``: there is one object per dtype.

    >>> float16.itemsize, float16.is_float, int8.min, int8.max
    (2, True, -128, 127)
    """

    name: str
    kind: str  # "bool", "uint", "int" or "float"
    bits: int  # storage width; bool is stored in 8
    storage: str  # the NumPy dtype name of the stored bytes (bfloat16 has no NumPy dtype: uint16)
    code: str  # struct code of one stored element

    def __repr__(self) -> str:
        return f"coregrad.{self.name}"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return by_name, (self.name,)

    @property
    def itemsize(self) -> int:
        """Bytes of one stored element."""
        return self.bits // 8

    @functools.cached_property
    def is_float(self) -> bool:
        """True for float16, bfloat16, float32, float64."""
        return self.kind == "float"

    @property
    def is_floating_point(self) -> bool:
        """PyTorch's name for :attr:`is_float`."""
        return self.kind == "float"

    @property
    def is_int(self) -> bool:
        """True for signed and unsigned integers, False for bool."""
        return self.kind in ("int", "uint")

    @property
    def min(self) -> int | float:
        """The smallest value (-inf for floats)."""
        if self.kind == "float":
            return -math.inf
        return -(1 << (self.bits - 1)) if self.kind == "int" else 0

    @property
    def max(self) -> int | float:
        """The largest value (inf for floats)."""
        if self.kind == "float":
            return math.inf
        if self.kind == "bool":
            return 1
        return (1 << (self.bits - (self.kind == "int"))) - 1


# fmt: off
bool_    = DType("bool",     "bool",  8,  "bool",    "?")
uint8    = DType("uint8",    "uint",  8,  "uint8",   "B")
uint16   = DType("uint16",   "uint",  16, "uint16",  "H")
uint32   = DType("uint32",   "uint",  32, "uint32",  "I")
uint64   = DType("uint64",   "uint",  64, "uint64",  "Q")
int8     = DType("int8",     "int",   8,  "int8",    "b")
int16    = DType("int16",    "int",   16, "int16",   "h")
int32    = DType("int32",    "int",   32, "int32",   "i")
int64    = DType("int64",    "int",   64, "int64",   "q")
float16  = DType("float16",  "float", 16, "float16", "e")
bfloat16 = DType("bfloat16", "float", 16, "uint16",  "H")
float32  = DType("float32",  "float", 32, "float32", "f")
float64  = DType("float64",  "float", 64, "float64", "d")
# fmt: on

ALL: tuple[DType, ...] = (
    bool_, uint8, uint16, uint32, uint64, int8, int16, int32, int64,
    float16, bfloat16, float32, float64,
)  # fmt: skip
FLOATS = tuple(d for d in ALL if d.is_float)
INTS = tuple(d for d in ALL if d.is_int)
_BY_NAME = {d.name: d for d in ALL} | {
    "half": float16, "float": float32, "double": float64,
    "short": int16, "int": int32, "long": int64,
}  # fmt: skip


def by_name(name: str) -> DType:
    """The dtype called ``name`` (PyTorch's aliases "half", "float", "double", "long" included).

    >>> by_name("long")
    coregrad.int64
    """
    if name not in _BY_NAME:
        raise DTypeError(f"dtype {name!r} is unknown; choose one of: {', '.join(_BY_NAME)}")
    return _BY_NAME[name]


def accumulator(dtype: DType) -> DType:
    """The dtype a reduction over ``dtype`` runs in (contract, op ``reduce``)."""
    if dtype in (float16, bfloat16):
        return float32
    if dtype in (int8, int16, uint8, uint16):
        return int32 if dtype.kind == "int" else uint32
    return dtype


def promote(a: DType, b: DType) -> DType:
    """The dtype of ``a op b`` for two tensors: PyTorch's ``promote_types``.

    >>> promote(int64, float16), promote(uint8, int8), promote(float16, bfloat16)
    (coregrad.float16, coregrad.int16, coregrad.float32)
    """
    if a is b:
        return a
    if a.kind == "bool" or b.kind == "bool":
        return b if a.kind == "bool" else a
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.is_float:
        return float32 if a.bits == b.bits else (a if a.bits > b.bits else b)
    if a.kind == b.kind:
        return a if a.bits > b.bits else b
    signed, unsigned = (a, b) if a.kind == "int" else (b, a)
    if signed.bits > unsigned.bits:
        return signed
    if unsigned.bits == 64:
        raise DTypeError(
            f"promote: {signed.name} and uint64 have no common integer type; cast one of them"
        )
    return {8: int16, 16: int32, 32: int64}[unsigned.bits]


def to_bits(value: float | bool, dtype: DType) -> int:
    """The stored bits of ``value`` rounded to nearest even; integers must fit (else DTypeError)."""
    if dtype is bool_:
        return int(bool(value))
    if dtype.is_float:
        return _float_bits(_as_double(value, dtype), dtype)
    if not dtype.min <= value <= dtype.max or value != int(value):
        raise DTypeError(
            f"{value!r} does not fit {dtype.name} ({dtype.min} .. {dtype.max}); "
            "cast the tensor to a wider dtype first"
        )
    return int(value) & ((1 << dtype.bits) - 1)


def _as_double(value: float | bool, dtype: DType) -> float:
    """``value`` as a double that rounds to the same number of ``dtype`` as ``value`` itself."""
    if isinstance(value, int) and dtype is not float64:
        excess = max(0, abs(value).bit_length() - 53)
        odd = abs(value) >> excess
        odd |= (odd << excess) != abs(value)  # to odd: rounding again is then the same as once
        value = (odd << excess) * (-1 if value < 0 else 1)
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _float_bits(number: float, dtype: DType) -> int:
    if dtype is bfloat16:
        return _bfloat16_bits(number)
    try:
        data = struct.pack("<" + dtype.code, number)
    except OverflowError:  # rounds to infinity, as IEEE 754 says and struct refuses
        data = struct.pack("<" + dtype.code, math.copysign(math.inf, number))
    return int.from_bytes(data, "little")


def _bfloat16_bits(number: float) -> int:
    if math.isnan(number):
        return 0x7FC0
    word = _float_bits(number, float32)
    single = from_bits(word, float32)
    if single != number and word % 2 == 0:  # to odd: rounding again is then the same as once
        word += 1 if abs(single) < abs(number) else -1
    return ((word + 0x7FFF + ((word >> 16) & 1)) >> 16) & 0xFFFF


def from_bits(bits: int, dtype: DType) -> int | float | bool:
    """The Python number whose stored bits in ``dtype`` are ``bits``."""
    if dtype is bfloat16:
        return from_bits(bits << 16, float32)
    data = bits.to_bytes(dtype.itemsize, "little")
    value: int | float | bool = struct.unpack("<" + dtype.code, data)[0]
    return value
