"""The device `webgpu`: a kernel becomes a WGSL module; a hook writes one line of it.

Every value is a `let` of its own, so that no two literals meet in one expression: WGSL computes
those when the module is made, and an overflow there is an error instead of wrapping around.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

from coregrad import dtypes
from coregrad.dtypes import DType
from coregrad.errors import OutOfMemory
from coregrad.hookspecs import Header, hookimpl
from coregrad.ir.kernel import Array, Param

from coregrad_webgpu import driver, wgsl
from coregrad_webgpu.device import GROUPS, Device

THREADS = 64  # of a work-group whose threads work each on its own
PAIR_HOOKS = {"uint": "u64", "int": "i64"}  # endings in prelude.wgsl where the sign matters


def own(name: str) -> str:
    """A name of the kernel as one of its text, where it cannot meet a word of the language."""
    return f"{name}_"


class Rounded(str):
    """A float32 value that no compiler can merge with others; ``raw`` is the one that it can.

    The contract allows that within the sum of a reduction, and with the product that feeds it.
    """

    raw: str

    def __new__(cls, name: str, raw: str) -> Self:
        value = super().__new__(cls, name)
        value.raw = raw
        return value


class Frame:
    """The text of a kernel as it grows; `finish` puts what has become known before it."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.lines: list[str] = []
        self.globals = [_binding(i, p) for i, p in enumerate(header.params)]
        self.depth = 1
        self.count = 0
        self.variables: dict[str, DType] = {}
        self.gridded = False
        self.group = 0  # threads of the local loop, if there is one

    def line(self, text: str) -> None:
        """Add a line within the open blocks."""
        self.lines.append("  " * self.depth + text)

    def value(self, text: str) -> str:
        """Give what ``text`` computes a name."""
        self.count += 1
        self.line(f"let v{self.count} = {text};")
        return f"v{self.count}"

    def loop(self, name: str, extent: int, kind: str, lanes: int, resume: bool) -> Iterator[str]:
        index = own(name)
        if kind == "local":
            self.group = extent
            self.line(f"let {index} = i32(thread.x);")
            yield index
            return
        if kind == "grid":
            self.gridded = True
            self.line(f"if (item < {extent}u) {{")
        else:
            self.line(f"for (var {index} = 0i; {index} < {extent}i; {index}++) {{")
        self.depth += 1
        if kind == "grid":
            self.line(f"let {index} = i32(item);")
        yield index
        self.depth -= 1
        self.line("}")

    def declare(self, name: str, dtype: DType, initial: str, lanes: int) -> None:
        self.variables[name] = dtype
        self.line(f"var {own(name)} = {initial};")

    def read(self, name: str) -> str:
        copy = self.value(own(name))  # the variable may change before the value is used
        if self.variables[name] is not dtypes.float32:
            return copy
        return Rounded(self.value(f"keep({copy})"), copy)

    def rounded(self, text: str, dtype: DType) -> str:
        """Give a result, fitted to its dtype, a name; a sum may still take it as it was before."""
        if dtype is not dtypes.float32:
            return self.value(wgsl.fit(text, dtype))
        raw = self.value(text)
        return Rounded(self.value(wgsl.fit(raw, dtype)), raw)

    def assign(self, name: str, value: str) -> None:
        self.line(f"{own(name)} = {value};")

    def allocate(self, array: Array) -> None:
        if array.space != "local":
            self.line(f"var {own(array.name)}: array<{wgsl.word(array.dtype)}, {array.size}>;")
        elif wgsl.packed(array.dtype):
            words = -(-array.size * array.dtype.itemsize // 4)
            self.globals.append(f"var<workgroup> {own(array.name)}: array<atomic<u32>, {words}>;")
        else:
            kind = f"array<{wgsl.word(array.dtype)}, {array.size}>"
            self.globals.append(f"var<workgroup> {own(array.name)}: {kind};")

    def barrier(self) -> None:
        self.line("workgroupBarrier();")

    def broadcast(self, value: str, dtype: DType, lanes: int) -> str:
        return value  # `Limits.vector_bytes` is 0: every value has one lane

    def ramp(self, base: str, stride: int, dtype: DType, lanes: int) -> str:
        return base

    def split(self, value: str, dtype: DType, lanes: int) -> tuple[str, str]:
        raise NotImplementedError("split: values have one lane")

    def finish(self) -> str:
        largest = max(p.size for p in self.header.params)
        if largest >= 1 << 31:
            raise OutOfMemory(f"webgpu: {largest} elements; a buffer's index has 32 bits")
        threads = self.group or (THREADS if self.gridded else 1)
        each = 1 if self.group else threads  # iterations of the grid loop that a group runs
        groups = -(-self.header.grid // each)
        group = "group.x" if groups <= GROUPS else f"(group.y * {GROUPS}u + group.x)"
        item = group if each == 1 else f"{group} * {each}u + thread.x"
        main = [
            f"// {self.header.name}: {each} per group",
            *self.globals,
            "var<private> zero: u32;",
            f"@compute @workgroup_size({threads})",
            "fn main(@builtin(workgroup_id) group: vec3<u32>,",
            "        @builtin(local_invocation_id) thread: vec3<u32>) {",
            "  zero = group.z; // which is 0, as launches are flat; see prelude.wgsl",
            *([f"  let item = {item};"] if self.gridded else []),
            *self.lines,
            "}",
        ]
        body = "\n".join([*main, ""])
        return body + "".join(["\n", functions] if (functions := wgsl.prelude(body)) else [])


def raw(value: str) -> str:
    """The value as a sum may take it."""
    return value.raw if isinstance(value, Rounded) else value


def _binding(position: int, param: Param) -> str:
    kind, access = wgsl.element(param.dtype), "read"
    if param.role != "in":
        access = "read_write"
        kind = f"atomic<{kind}>" if wgsl.packed(param.dtype) else kind
    where = f"@group(0) @binding({position}) var<storage, {access}>"
    return f"{where} {own(param.name)}: array<{kind}>;"


def _word(buffer: Param | Array, index: str) -> tuple[str, str]:
    """The word that holds a packed element, and the element's first bit in it."""
    width = buffer.dtype.bits
    shift = {8: 2, 16: 1}[width]
    return (
        f"{own(buffer.name)}[u32({index}) >> {shift}u]",
        f"((u32({index}) & {(1 << shift) - 1}u) * {width}u)",
    )


def _is_packed(buffer: Param | Array) -> bool:
    shared = isinstance(buffer, Param) or buffer.space == "local"
    return shared and wgsl.packed(buffer.dtype)


class Backend:
    """The hooks that WebGPU does rightly; exp, log and sin are the core's."""

    style = "render"

    def device_count(self) -> int:
        return len(driver.adapters())

    def open_device(self, index: int) -> Device:
        return Device(driver.adapters()[index], index)

    def rank(self) -> str:
        return "software" if driver.is_software(driver.adapters()[0]) else "gpu"

    def begin_kernel(self, header: Header, buffers: Sequence[Any] | None) -> Frame:
        return Frame(header)

    # ---- memory --------------------------------------------------------------------------------

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
        if _is_packed(buffer):
            place, bit = _word(buffer, index)
            read_only = isinstance(buffer, Param) and buffer.role == "in"
            bits = place if read_only else f"atomicLoad(&{place})"
            text = wgsl.from_bits(f"extractBits({bits}, {bit}, {dtype.bits}u)", dtype)
        else:
            text = f"{own(buffer.name)}[{index}]"
        if gate is None:
            return frame.value(text)
        frame.count += 1  # the 0 is not left to WGSL: Naga forgets it from a loop's second turn on
        frame.line(f"var v{frame.count} = {wgsl.word(dtype)}();")
        frame.line(f"if ({gate}) {{ v{frame.count} = {text}; }}")
        return f"v{frame.count}"

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
        if _is_packed(buffer):  # other threads own the word's other bits
            place, bit = _word(buffer, index)
            mask = f"{(1 << dtype.bits) - 1:#x}u << {bit}"
            bits = f"{wgsl.to_bits(value, dtype)} << {bit}"
            text = f"atomicAnd(&{place}, ~({mask})); atomicOr(&{place}, {bits});"
        else:
            text = f"{own(buffer.name)}[{index}] = {value};"
        frame.line(text if gate is None else f"if ({gate}) {{ {text} }}")

    @hookimpl
    def lower_const(self, frame: Frame, value: float, dtype: DType, lanes: int) -> str:
        return frame.value(wgsl.literal(value, dtype))

    @hookimpl
    def lower_reduce(
        self, frame: Frame, kind: str, accumulator: Any, value: Any, dtype: DType, lanes: int
    ) -> Any:
        if kind == "add" and dtype is dtypes.float32:
            return frame.value(f"{raw(accumulator)} + {raw(value)}")
        if kind != "argmax":
            fold = {"add": self.lower_add, "mul": self.lower_mul, "max": self.lower_max}[kind]
            return fold(frame, accumulator, value, dtype, lanes)
        (a, i), (b, j) = accumulator, value
        less, more = self._less(a, b, dtype), self._less(b, a, dtype)
        if dtype.is_float:  # NaN beats every number; two NaNs are equal
            less = f"({less} || (!nan({a}) && nan({b})))"
            more = f"({more} || (nan({a}) && !nan({b})))"
        tie = f"!{more} && lt_i64({j}, {i})"
        second = frame.value(f"{less} || ({tie})")
        best = frame.value(f"select({a}, {b}, {second})")
        return best, frame.value(f"select({i}, {j}, {second})")

    # ---- conversions ---------------------------------------------------------------------------

    @hookimpl
    def lower_cast(self, frame: Frame, x: str, source: DType, dtype: DType, lanes: int) -> str:
        return frame.value(wgsl.cast(x, source, dtype))

    @hookimpl
    def lower_bitcast(self, frame: Frame, x: str, source: DType, dtype: DType, lanes: int) -> str:
        if dtype in wgsl.PAIRS:
            return x
        return frame.value(wgsl.from_bits(wgsl.to_bits(x, source), dtype))

    # ---- functions -----------------------------------------------------------------------------

    @hookimpl
    def lower_sqrt(self, frame: Frame, x: str, dtype: DType, lanes: int) -> str:
        return frame.value(wgsl.fit(f"sqrt_f32({x})", dtype))

    @hookimpl
    def lower_trunc(self, frame: Frame, x: str, dtype: DType, lanes: int) -> str:
        return frame.value(f"trunc({x})")

    # ---- arithmetic ----------------------------------------------------------------------------

    @hookimpl
    def lower_add(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        if dtype in wgsl.PAIRS:
            return frame.value(f"add_u64({a}, {b})")
        return frame.value(wgsl.fit(f"{a} + {b}", dtype))

    @hookimpl
    def lower_mul(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        if dtype in wgsl.PAIRS:
            return frame.value(f"mul_u64({a}, {b})")
        return frame.rounded(f"{a} * {b}", dtype)

    @hookimpl
    def lower_div(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        return frame.value(wgsl.fit(f"{a} / {b}", dtype))

    @hookimpl
    def lower_idiv(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        if dtype in wgsl.PAIRS:
            return frame.value(f"idiv_{PAIR_HOOKS[dtype.kind]}({a}, {b})")
        return frame.value(f"{a} / {b}")

    @hookimpl
    def lower_mod(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        if dtype in wgsl.PAIRS:
            return frame.value(f"mod_{PAIR_HOOKS[dtype.kind]}({a}, {b})")
        if dtype.kind == "int":  # GLSL leaves % of negative numbers open, and Naga hands it on
            return frame.value(f"{a} - {a} / {b} * {b}")
        return frame.value(f"{a} % {b}")

    @hookimpl
    def lower_max(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        if dtype.is_float:
            return frame.value(f"max_f32({a}, {b})")
        return frame.value(f"select({a}, {b}, {self._less(a, b, dtype)})")

    @hookimpl
    def lower_lt(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        return frame.value(self._less(a, b, dtype))

    @hookimpl
    def lower_ne(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        if dtype.is_float:
            return frame.value(f"ne_f32({a}, {b})")
        return frame.value(f"any({a} != {b})" if dtype in wgsl.PAIRS else f"{a} != {b}")

    @hookimpl
    def lower_and(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        return frame.value(f"{a} & {b}")

    @hookimpl
    def lower_or(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        return frame.value(f"{a} | {b}")

    @hookimpl
    def lower_xor(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        return frame.value(f"{a} != {b}" if dtype is dtypes.bool_ else f"{a} ^ {b}")

    @hookimpl
    def lower_shl(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        if dtype in wgsl.PAIRS:
            return frame.value(f"shl_u64({a}, {b}.x)")
        return frame.value(wgsl.fit(f"{a} << u32({b})", dtype))

    @hookimpl
    def lower_shr(self, frame: Frame, a: str, b: str, dtype: DType, lanes: int) -> str:
        if dtype in wgsl.PAIRS:
            return frame.value(f"shr_{PAIR_HOOKS[dtype.kind]}({a}, {b}.x)")
        return frame.value(f"{a} >> u32({b})")

    @hookimpl
    def lower_where(
        self, frame: Frame, condition: str, a: str, b: str, dtype: DType, lanes: int
    ) -> str:
        return frame.value(f"select({b}, {a}, {condition})")

    def _less(self, a: str, b: str, dtype: DType) -> str:
        if dtype is dtypes.bool_:
            return f"(!{a} && {b})"
        if dtype in wgsl.PAIRS:
            return f"lt_{PAIR_HOOKS[dtype.kind]}({a}, {b})"
        return f"lt_f32({a}, {b})" if dtype.is_float else f"({a} < {b})"
