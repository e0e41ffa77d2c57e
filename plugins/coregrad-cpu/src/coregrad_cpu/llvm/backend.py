"""The 25 hooks of the contract in LLVM IR; loops are the frame's, memory and casts stand apart."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from math import gcd
from typing import Any

from coregrad.dtypes import DType, float32, float64, int64
from coregrad.hookspecs import Header, hookimpl
from coregrad.ir.emit import Emitter
from coregrad.ir.kernel import Array, Kernel, Param
from coregrad_cpu.llvm import cast, contraction, math, memory, target
from coregrad_cpu.llvm.device import Device
from coregrad_cpu.llvm.frame import Frame
from coregrad_cpu.llvm.processors import thread_count
from coregrad_cpu.llvm.quotient import emit_quotient
from coregrad_cpu.llvm.words import mangled, vector


class Backend:
    """The contract's door: opens the device, starts kernels, and turns every op into IR.

    An operand is a string. float16 and bfloat16 arithmetic is done in float32 and rounded after
    each op, which rounds as once because float32 has more than twice their precision plus two.
    """

    style = "render"

    def device_count(self) -> int:
        """One, or BackendUnavailable with the reason."""
        target.require()
        return 1

    def open_device(self, index: int) -> Device:
        """The CPU."""
        return Device(f"cpu:{index}" if index else "cpu")

    def begin_kernel(self, header: Header, buffers: Sequence[Any] | None) -> Frame:
        """Start a kernel's text."""
        return Frame(header, target.attributes())

    def contraction(self, kernel: Kernel, emitter: Emitter) -> str | None:
        """A sum over products as a register-tiled kernel, where that is faster.

        Its multiply-add is `lower_mul` and `lower_reduce` of this class in one instruction: with
        other hooks than these it would compute something else, and the loops are taken.
        """
        for op, ours in (("mul", Backend.lower_mul), ("reduce", Backend.lower_reduce)):
            if getattr(emitter.hooks[op], "__func__", None) is not ours:
                return None
        return contraction.contraction(kernel, emitter, _machine())

    # -- memory --------------------------------------------------------------------------------

    @hookimpl
    def lower_load(
        self,
        frame: Frame,
        buffer: Param | Array,
        index: str,
        stride: int | None,
        gate: str | None,
        dtype: DType,
        lanes: int,
    ) -> str:
        return memory.load(frame, buffer, index, stride, gate, dtype, lanes)

    @hookimpl
    def lower_store(
        self,
        frame: Frame,
        buffer: Param | Array,
        index: str,
        stride: int | None,
        value: str,
        gate: str | None,
        dtype: DType,
        lanes: int,
    ) -> None:
        memory.store(frame, buffer, index, stride, value, gate, dtype, lanes)

    @hookimpl
    def lower_const(self, frame: Frame, value: float, dtype: DType, lanes: int) -> str:
        return frame.splat(dtype, lanes, value)

    # -- reductions ----------------------------------------------------------------------------

    @hookimpl
    def lower_reduce(
        self, frame: Frame, kind: str, accumulator: Any, value: Any, dtype: DType, lanes: int
    ) -> Any:
        if kind == "argmax":
            return _argmax(frame, accumulator, value, dtype, lanes)
        if kind == "max":
            return _max(frame, accumulator, value, dtype, lanes)
        word = "mul" if kind == "mul" else "add"
        flags = ""
        if kind == "add" and dtype.is_float:
            # The order of a sum is free and its products may be fused: the contract's one licence.
            flags = "reassoc contract "
            frame.allow_fusion(value)
        return _arithmetic(frame, word, accumulator, value, dtype, lanes, flags)

    # -- conversions ---------------------------------------------------------------------------

    @hookimpl
    def lower_cast(self, frame: Frame, x: str, source: DType, dtype: DType, lanes: int) -> str:
        return cast.cast(frame, x, source, dtype, lanes)

    @hookimpl
    def lower_bitcast(self, frame: Frame, x: str, source: DType, dtype: DType, lanes: int) -> str:
        return cast.bitcast(frame, x, source, dtype, lanes)

    # -- functions of one float ----------------------------------------------------------------

    @hookimpl
    def lower_exp(self, frame: Frame, x: str, dtype: DType, lanes: int) -> str:
        return _in_float(frame, dtype, lanes, (x,), math.emit_exp)

    @hookimpl
    def lower_log(self, frame: Frame, x: str, dtype: DType, lanes: int) -> str:
        return _in_float(frame, dtype, lanes, (x,), math.emit_log)

    @hookimpl
    def lower_sin(self, frame: Frame, x: str, quarter: int, dtype: DType, lanes: int) -> str:
        def emit(frame: Frame, x: str, wide: DType, lanes: int) -> str:
            return math.emit_sin(frame, x, quarter, wide, lanes)

        return _in_float(frame, dtype, lanes, (x,), emit)

    @hookimpl
    def lower_sqrt(self, frame: Frame, x: str, dtype: DType, lanes: int) -> str:
        return _in_float(frame, dtype, lanes, (x,), _intrinsic("llvm.sqrt"))

    @hookimpl
    def lower_trunc(self, frame: Frame, x: str, dtype: DType, lanes: int) -> str:
        return _in_float(frame, dtype, lanes, (x,), _intrinsic("llvm.trunc"))

    # -- arithmetic ----------------------------------------------------------------------------

    @hookimpl
    def lower_add(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        return _arithmetic(frame, "add", a, b, dtype, lanes)

    @hookimpl
    def lower_mul(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        return _arithmetic(frame, "mul", a, b, dtype, lanes)

    @hookimpl
    def lower_div(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        shared = frame.scalar(b) if dtype in (float32, float64) else None
        if shared is not None:
            return emit_quotient(frame, a, b, shared, dtype, lanes)
        return _arithmetic(frame, "div", a, b, dtype, lanes)

    @hookimpl
    def lower_idiv(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        frame.charge(10 * lanes)
        return frame.op(f"{_signed(dtype)}div {frame.type(dtype, lanes)} {a}, {b}")

    @hookimpl
    def lower_mod(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        frame.charge(10 * lanes)
        if dtype.is_float:  # fmod of the C library
            return _arithmetic(frame, "rem", a, b, dtype, lanes)
        return frame.op(f"{_signed(dtype)}rem {frame.type(dtype, lanes)} {a}, {b}")

    @hookimpl
    def lower_max(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        return _max(frame, a, b, dtype, lanes)

    # -- comparisons, bits and selection ---------------------------------------------------------

    @hookimpl
    def lower_lt(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        return _compare(frame, "lt", a, b, dtype, lanes)

    @hookimpl
    def lower_ne(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        return _compare(frame, "ne", a, b, dtype, lanes)

    @hookimpl
    def lower_and(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        return frame.op(f"and {frame.type(dtype, lanes)} {a}, {b}")

    @hookimpl
    def lower_or(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        return frame.op(f"or {frame.type(dtype, lanes)} {a}, {b}")

    @hookimpl
    def lower_xor(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        return frame.op(f"xor {frame.type(dtype, lanes)} {a}, {b}")

    @hookimpl
    def lower_shl(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        return frame.op(f"shl {frame.type(dtype, lanes)} {a}, {b}")

    @hookimpl
    def lower_shr(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        word = "ashr" if dtype.kind == "int" else "lshr"
        return frame.op(f"{word} {frame.type(dtype, lanes)} {a}, {b}")

    @hookimpl
    def lower_where(
        self, frame: Frame, condition: str, a: str, b: str, dtype: DType, lanes: int
    ) -> str:
        kind, mask = frame.type(dtype, lanes), vector("i1", lanes)
        return frame.op(f"select {mask} {condition}, {kind} {a}, {kind} {b}")


@functools.cache
def _machine() -> contraction.Machine:
    """What tiling depends on. 32 vector registers: AVX-512 and 64-bit ARM; 16: AVX2."""
    registers = 16 if target.is_x86() and target.vector_bytes() < 64 else 32
    return contraction.Machine(target.vector_bytes(), registers, thread_count())


def _signed(dtype: DType) -> str:
    return "s" if dtype.kind == "int" else "u"


def _in_float(
    frame: Frame, dtype: DType, lanes: int, operands: Sequence[str], emit: Callable[..., str]
) -> str:
    """``emit(frame, *operands, dtype, lanes)`` in float32 for the halves, else in ``dtype``."""
    if dtype not in cast.HALVES:
        return emit(frame, *operands, dtype, lanes)
    wide = [cast.widen(frame, x, dtype, lanes) for x in operands]
    return cast.narrow(frame, emit(frame, *wide, float32, lanes), dtype, lanes)


def _intrinsic(name: str) -> Callable[..., str]:
    """A function that calls an LLVM intrinsic whose operands and result have one type."""

    def emit(frame: Frame, x: str, dtype: DType, lanes: int) -> str:
        kind = frame.type(dtype, lanes)
        return frame.call(kind, f"{name}.{mangled(dtype, lanes)}", (kind, x))

    return emit


def _arithmetic(
    frame: Frame, word: str, a: str, b: str, dtype: DType, lanes: int, flags: str = ""
) -> str:
    """``add``, ``mul``, ``div`` or ``rem``; without flags floats keep IEEE's every rounding."""
    if not dtype.is_float:
        value = frame.op(f"{word} {frame.type(dtype, lanes)} {a}, {b}")
        if dtype is int64 and lanes == 1:
            together = gcd if word == "add" else operator.mul
            frame.note_multiple(value, together(frame.multiple(a), frame.multiple(b)))
        return value

    def emit(frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        return frame.op(f"f{word} {flags}{frame.type(dtype, lanes)} {a}, {b}")

    return _in_float(frame, dtype, lanes, (a, b), emit)


def _max(frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
    if not dtype.is_float:
        kind = frame.type(dtype, lanes)
        name = f"llvm.{_signed(dtype)}max.{mangled(dtype, lanes)}"
        return frame.call(kind, name, (kind, a), (kind, b))

    def emit(frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        kind = frame.type(dtype, lanes)
        name = f"llvm.maximum.{mangled(dtype, lanes)}"
        return frame.call(kind, name, (kind, a), (kind, b), flags="nsz")

    return _in_float(frame, dtype, lanes, (a, b), emit)


def _compare(frame: Frame, word: str, a: str, b: str, dtype: DType, lanes: int) -> str:
    kind = frame.type(dtype, lanes)
    if not dtype.is_float:
        word = "ne" if word == "ne" else f"{_signed(dtype)}lt"
        return frame.op(f"icmp {word} {kind} {a}, {b}")
    a, b = (cast.widen(frame, x, dtype, lanes) for x in (a, b))
    kind = frame.type(float64 if dtype is float64 else float32, lanes)
    return frame.op(f"fcmp {'une' if word == 'ne' else 'olt'} {kind} {a}, {b}")


def _argmax(
    frame: Frame,
    accumulator: tuple[str, str],
    candidate: tuple[str, str],
    dtype: DType,
    lanes: int,
) -> tuple[str, str]:
    """The pair (value, index) that wins: larger, or NaN; of equals the smaller index."""
    (best, best_index), (value, index) = accumulator, candidate
    kind, word, mask = frame.type(dtype, lanes), vector("i64", lanes), vector("i1", lanes)
    larger, same = _ranks(frame, best, value, dtype, lanes)
    earlier = frame.op(f"icmp slt {word} {index}, {best_index}")
    take = frame.op(f"or {mask} {larger}, {frame.op(f'and {mask} {same}, {earlier}')}")
    return (
        frame.op(f"select {mask} {take}, {kind} {value}, {kind} {best}"),
        frame.op(f"select {mask} {take}, {word} {index}, {word} {best_index}"),
    )


def _ranks(frame: Frame, best: str, value: str, dtype: DType, lanes: int) -> tuple[str, str]:
    """Whether ``value`` beats ``best``, and whether they rank the same, NaN above all."""
    kind, mask = frame.type(dtype, lanes), vector("i1", lanes)
    if not dtype.is_float:
        larger = frame.op(f"icmp {_signed(dtype)}gt {kind} {value}, {best}")
        return larger, frame.op(f"icmp eq {kind} {value}, {best}")
    best, value = (cast.widen(frame, x, dtype, lanes) for x in (best, value))
    kind = frame.type(float64 if dtype is float64 else float32, lanes)
    settled = frame.op(f"fcmp uno {kind} {best}, {best}")
    nan = frame.op(f"fcmp uno {kind} {value}, {value}")
    larger = frame.op(f"fcmp ugt {kind} {value}, {best}")
    equal = frame.op(f"fcmp oeq {kind} {value}, {best}")
    never = "zeroinitializer" if lanes > 1 else "false"
    larger = frame.op(f"select {mask} {settled}, {mask} {never}, {mask} {larger}")
    return larger, frame.op(f"select {mask} {settled}, {mask} {nan}, {mask} {equal}")
