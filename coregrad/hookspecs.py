"""THE CONTRACT: what an accelerator must provide, as 25 documented hooks and three small protocols.

A backend is a class with one ``lower_*`` method per primitive op, each marked with ``@hookimpl``.
The hooks turn one scalar operation into the device's own form: a line of source text (style
``"render"``) or a computed array (style ``"eager"``). They are the only way a kernel becomes code.

How a kernel is built, for style ``"render"``::

    frame = backend.begin_kernel(header, None)      # header: name, params, grid
    for index in frame.loop("i0", 1024, "grid", 16, False):
        x = lower_load(frame, param, index, 1, None, float32, 16)
        y = lower_add(frame, x, x, float32, 16)
        lower_store(frame, out, index, 1, y, None, float32, 16)
    program = frame.finish()                        # text; Device.compile makes it callable

Values are opaque to the core: whatever a hook returns is handed to later hooks unchanged. Every
value has ``lanes`` elements (1 unless the device's limits declare more) and every hook works lane
by lane. A hook that a backend leaves out is a capability it lacks: the core rewrites the op with
others (``exp``, ``log``, ``sin``, ``sqrt``, ``trunc`` may be left out, and the float form of
``mod``).

Numbers: integers wrap around in two's complement. Floats are IEEE 754; nothing is contracted into
a fused multiply-add, reassociated or flushed, except inside ``reduce`` with kind ``add`` (the order
of a sum is free, and product plus accumulator may be fused). NaN payloads and the sign of NaN do
not matter. float16 and bfloat16 round after each op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pluggy

from coregrad.dtypes import DType
from coregrad.ir.kernel import Array, Param
from coregrad.ir.ops import CONTRACT_VERSION
from coregrad.ir.target import Frame, Header, Hooks, Limits

__all__ = [
    "CONTRACT_VERSION",
    "Backend",
    "BackendInfo",
    "BackendSpec",
    "Device",
    "Frame",
    "Header",
    "Hooks",
    "Limits",
    "hookimpl",
]

F = TypeVar("F", bound=Callable[..., Any])
PROJECT = "coregrad"
_spec = pluggy.HookspecMarker(PROJECT)
_impl = pluggy.HookimplMarker(PROJECT)


def hookspec(function: F) -> F:
    """Mark one hook of the contract; the first (only) backend's answer counts."""
    return _spec(firstresult=True)(function)


def hookimpl(function: F) -> F:
    """Mark a backend's implementation of a hook. Argument names and order are the spec's."""
    return _impl(function)


@dataclass(frozen=True)
class BackendInfo:
    """What a plugin says of itself without importing its driver.

    The entry point (group ``coregrad.backends``) names a function without arguments that returns
    one. ``impl`` is ``"module:Class"``, imported when the device is first used. ``rank`` places
    the backend in the automatic choice: ``"gpu"``, then ``"cpu"``, then ``"software"`` (a GPU API
    run by the CPU), then ``"reference"``. ``needs`` tells a user what to install when it fails.
    """

    name: str
    contract: tuple[int, int]
    impl: str
    rank: str
    summary: str = ""
    needs: str = ""


class Device(Protocol):
    """One device: memory and launches. Calls may come from any thread, one at a time; only ``free``
    may come in the middle of another call, from the garbage collector, and must not wait for it.

    Optional methods: ``sort(dtype, rows, length, count) -> (program, scratch bytes) | None`` offers
    a sort of the device's own. The program goes through ``compile`` and ``launch`` (grid 1) like
    any other, on three buffers: int32 places [rows, count] to be written, integer keys of ``dtype``
    [rows, length], and scratch memory of that many bytes, at least 1. In each row it writes where
    the ``count`` smallest keys stand, the smallest first and equal ones in their order. None: the
    core writes this one with the hooks, as it does for a device without the method.
    ``part(buffer, start, nbytes)`` is those bytes of a buffer as a buffer, as long as the whole
    one is there and never freed by itself: what belongs together is then computed in one place
    instead of copied there. ``replay``, ``elapsed`` and ``may_overwrite`` are described in
    docs/authoring.md.

    Optional attribute: ``fingerprint``, a str that tells what besides ``limits`` the texts of its
    kernels depend on (the processor, the number of threads). With it the plans of large expressions
    are kept on disk, and a new process compiles their texts without making them again.
    """

    name: str
    limits: Limits

    def allocate(self, nbytes: int) -> Any:
        """A buffer of at least ``nbytes`` > 0, contents undefined. Raises OutOfMemory."""

    def free(self, buffer: Any) -> None:
        """Give a buffer back; pending launches that use it still complete."""

    def copy_in(self, buffer: Any, data: memoryview) -> None:
        """Copy host bytes to the start of the buffer. The host may change ``data`` afterwards."""

    def copy_out(self, buffer: Any, into: memoryview) -> None:
        """Copy the start of the buffer to host bytes, after every launch so far has finished."""

    def compile(self, program: Any) -> Any:
        """Make a finished program callable. Raises CompileError with the compiler's words."""

    def launch(self, compiled: Any, buffers: Sequence[Any], grid: int) -> None:
        """Run ``compiled`` on ``buffers`` (the order of the header's params) over its grid."""

    def synchronize(self) -> None:
        """Return when every launch so far has finished."""


class Backend(Protocol):
    """What ``BackendInfo.impl`` names: a class made without arguments, carrying the hooks.

    Optional methods: ``contraction(kernel, emitter) -> program | None`` claims a kernel whose
    ``contraction`` is set and builds it in the backend's own way (fragments, that is prologues
    and epilogue, through ``emitter``, hence through the same hooks). ``rank() -> str`` corrects
    ``BackendInfo.rank`` once the driver can be asked: a GPU API with only a CPU is "software".
    """

    style: str  # "render" or "eager"

    def device_count(self) -> int:
        """How many devices can be opened. Raises BackendUnavailable with the reason for none."""

    def open_device(self, index: int) -> Device:
        """Open device ``index``."""

    def begin_kernel(self, header: Header, buffers: Sequence[Any] | None) -> Frame:
        """Start a kernel. Style eager: ``buffers`` are those of this launch, else None."""


class BackendSpec:
    """The 25 hooks. ``frame`` is the kernel under construction; ``lanes`` is 1 or more."""

    @hookspec
    def lower_load(
        self,
        frame: Frame,
        buffer: Param | Array,
        index: Any,
        stride: int | None,
        gate: Any | None,
        dtype: DType,
        lanes: int,
    ) -> Any:
        """Read ``buffer[index + lane*stride]``.

        ``stride`` 0 reads one element for all lanes, 1 is contiguous, n strided; None means that
        ``index`` has its own int64 value in every lane. Where ``gate`` (a bool value, or None)
        is false the result is 0 and *the address is not touched*: it may lie outside the buffer.
        bool is stored as a byte, 0 or 1. No alignment beyond the element's own is promised.
        """

    @hookspec
    def lower_store(
        self,
        frame: Frame,
        buffer: Param | Array,
        index: Any,
        stride: int | None,
        value: Any,
        gate: Any | None,
        dtype: DType,
        lanes: int,
    ) -> None:
        """Write ``value`` to ``buffer[index + lane*stride]``; nothing where ``gate`` is false.

        A store never accumulates. Two iterations of a parallel loop never store to one address.
        """

    @hookspec
    def lower_const(self, frame: Frame, value: float, dtype: DType, lanes: int) -> Any:
        """The Python number ``value`` (already representable in ``dtype``; NaN, infinities and
        -0.0 included) in every lane."""

    @hookspec
    def lower_reduce(
        self, frame: Frame, kind: str, accumulator: Any, value: Any, dtype: DType, lanes: int
    ) -> Any:
        """The accumulator with ``value`` folded in, for kind "add", "mul", "max" or "argmax".

        add and mul wrap for integers; an add of floats may be reassociated with the other adds
        of the same reduction, and fused with the product that feeds it. max is NaN once a NaN
        was met. For "argmax" ``accumulator`` and ``value`` are pairs (value, int64 index) and so
        is the result: the larger value wins, NaN beats every number, and of equals (and of two
        NaNs) the smaller index wins, whichever side it stands on.
        """

    @hookspec
    def lower_cast(self, frame: Frame, x: Any, source: DType, dtype: DType, lanes: int) -> Any:
        """``x`` (of dtype ``source``) as ``dtype``.

        float to int: truncated, saturated at the ends, NaN to 0. int to int: the low bits,
        sign- or zero-extended by the source's signedness. Anything to bool: ``x != 0``, so NaN
        is True. bool to number: 0 or 1. To a float: rounded to nearest even, too large is inf.
        """

    @hookspec
    def lower_bitcast(self, frame: Frame, x: Any, source: DType, dtype: DType, lanes: int) -> Any:
        """The bits of ``x`` read as ``dtype``, which has the same width."""

    @hookspec
    def lower_exp(self, frame: Frame, x: Any, dtype: DType, lanes: int) -> Any:
        """e to the x. exp(-inf) = 0, exp(inf) = inf, overflow gives inf, underflow is gradual."""

    @hookspec
    def lower_log(self, frame: Frame, x: Any, dtype: DType, lanes: int) -> Any:
        """Natural logarithm. log(±0) = -inf, log(x < 0) = NaN, log(inf) = inf."""

    @hookspec
    def lower_sin(self, frame: Frame, x: Any, quarter: int, dtype: DType, lanes: int) -> Any:
        """sin(x + quarter*pi/2) for quarter 0 to 3, so that quarter 1 is an exact cosine.

        Any finite x is reduced properly; ±inf gives NaN; sin(-0.0) is -0.0 for quarter 0.
        """

    @hookspec
    def lower_sqrt(self, frame: Frame, x: Any, dtype: DType, lanes: int) -> Any:
        """Square root. sqrt(-0.0) = -0.0, sqrt(x < 0) = NaN."""

    @hookspec
    def lower_trunc(self, frame: Frame, x: Any, dtype: DType, lanes: int) -> Any:
        """Round towards zero. The sign of zero is kept; infinities and NaN stay."""

    @hookspec
    def lower_add(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        """Sum. Integers wrap; floats are rounded to nearest even."""

    @hookspec
    def lower_mul(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        """Product. Integers wrap; floats are rounded to nearest even."""

    @hookspec
    def lower_div(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        """Quotient of floats. x/0 is ±inf, 0/0 is NaN."""

    @hookspec
    def lower_idiv(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        """Integer quotient, rounded towards zero. ``b`` is never 0, nor -1 with the smallest a."""

    @hookspec
    def lower_mod(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        """Remainder ``a - trunc(a/b)*b``, exact, with the sign of ``a``.

        For integers guarded like idiv. For floats (unless ``Limits.float_mod`` is false) it
        is C's fmod: NaN for b = 0 or infinite a; a for infinite b.
        """

    @hookspec
    def lower_max(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        """The larger; NaN if either is NaN; of +0.0 and -0.0 either."""

    @hookspec
    def lower_lt(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        """The bool ``a < b``; ``dtype`` is the operands'. False if either is NaN."""

    @hookspec
    def lower_ne(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        """The bool ``a != b``; ``dtype`` is the operands'. True if either is NaN."""

    @hookspec
    def lower_and(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        """Bitwise and, of integers or bools."""

    @hookspec
    def lower_or(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        """Bitwise or, of integers or bools."""

    @hookspec
    def lower_xor(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        """Bitwise exclusive or, of integers or bools."""

    @hookspec
    def lower_shl(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        """``a << b`` for 0 <= b < width; bits shifted out are lost."""

    @hookspec
    def lower_shr(self, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
        """``a >> b`` for 0 <= b < width; signed types copy the sign."""

    @hookspec
    def lower_where(
        self, frame: Frame, condition: Any, a: Any, b: Any, dtype: DType, lanes: int
    ) -> Any:
        """``a`` where the bool ``condition`` is true, else ``b``: both are computed."""
