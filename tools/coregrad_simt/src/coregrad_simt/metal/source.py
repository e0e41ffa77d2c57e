"""Generated Metal Shading Language executed as C++, which it is a dialect of.

Well-formed C++ that computes the right results is not yet what Apple's compiler accepts: that has
never been asked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from coregrad_simt import compiler, report, settings
from coregrad_simt.errors import CompileError
from coregrad_simt.kernel import Kernel, Parameter, shared_memory

ROUTE = "metal"
KERNEL = re.compile(
    r"(?:\[\[\s*max_total_threads_per_threadgroup\s*\(\s*(\d+)\s*\)\s*\]\]\s*)?"
    r"\bkernel\s+void\s+(\w+)\s*\("
)
PARAMETER = re.compile(r"\s*(.+?)\b(\w+)\s*\[\[\s*(\w+)(?:\s*\(\s*(\d+)\s*\))?\s*\]\]\s*", re.S)
ARRAY = re.compile(r"\bthreadgroup\s+(\w+\s+\w+\s*(?:\[[^\]]*\])+\s*;)")
WAITING = re.compile(r"\b(threadgroup_barrier|simdgroup_barrier|simd_\w+)\b")
# What C++ has and Metal has not, or not in version 2.3.
FORBIDDEN = re.compile(
    r"\b(double|long\s+long|goto|static|virtual|new|delete|try|throw|typeid|dynamic_cast|asm|"
    r"thread_local|bfloat|atomic_float|std)\b"
)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
# Numbers of a thread in a launch of one dimension: (of x, of y and z).
NUMBERS = {
    "thread_position_in_grid": (
        "simt_here.block_index.x * simt_here.block_size.x + simt_here.thread_index.x",
        "0",
    ),
    "thread_position_in_threadgroup": ("simt_here.thread_index.x", "0"),
    "thread_index_in_threadgroup": ("simt_here.thread_index.x", ""),
    "threadgroup_position_in_grid": ("simt_here.block_index.x", "0"),
    "threads_per_threadgroup": ("simt_here.block_size.x", "1"),
    "threadgroups_per_grid": ("simt_here.grid_size.x", "1"),
    "threads_per_grid": ("simt_here.grid_size.x * simt_here.block_size.x", "1"),
    "thread_index_in_simdgroup": ("simt_here.thread_index.x & 31", ""),
    "simdgroup_index_in_threadgroup": ("simt_here.thread_index.x >> 5", ""),
    "threads_per_simdgroup": ("32", ""),
}
BUFFERS, THREADS = 31, 1024  # Metal Feature Set Tables: buffers of a function, threads of a group
SHARED_BYTES = 32 << 10
FAST = ("-O2", "-ffast-math", "-fno-strict-aliasing", "-fno-tree-vectorize")


@dataclass(frozen=True)
class Argument:
    """A buffer that a kernel wants. ``size``: at least that many bytes, of a reference."""

    name: str
    type: str
    writable: bool
    size: int


@dataclass(frozen=True)
class Function:
    """A kernel and its buffers by index. ``pinned``: the group's size, or 0: the pipeline's."""

    kernel: Kernel
    buffers: dict[int, Argument]
    pinned: int


SIZES = {"int2": 8, "uint2": 8, "int4": 16, "long": 8, "ulong": 8}


def functions(text: str) -> dict[str, Function]:
    """Compile a text and return its kernels by name. Raises CompileError."""
    bare = COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    forbidden = FORBIDDEN.search(bare)
    if forbidden:
        line = bare.count("\n", 0, forbidden.start()) + 1
        raise CompileError(f"program_source:{line}: Metal has no {forbidden[0]}")
    found = [_signature(bare, match) for match in KERNEL.finditer(bare)]
    fast = settings.fast_math()
    flags = FAST if fast else compiler.STRICT
    include = ("-I", str(compiler.NATIVE / "msl"))
    path = compiler.shared_object(
        _complete(text, found), (*flags, *compiler.CHECKED, *compiler.POISONED, *include)
    )
    report.compiled(ROUTE, path.stem)
    library = compiler.load(path)
    begin, end = shared_memory(library)
    result = {}
    for it in found:
        kinds = tuple(Parameter(8, "p" if a.writable else "c") for a in it.buffers.values())
        kernel = Kernel(
            name=it.name,
            route=ROUTE,
            library=library,
            parameters=kinds,
            fibers=WAITING.search(bare) is not None,
            threads=it.pinned or THREADS,
            shared=(begin, end),
            shared_bytes=end - begin,
            flush=fast,
        )
        result[it.name] = Function(kernel, it.buffers, it.pinned)
    return result


@dataclass(frozen=True)
class _Signature:
    name: str
    pinned: int
    buffers: dict[int, Argument]
    call: tuple[str, ...]


def _signature(text: str, head: re.Match[str]) -> _Signature:
    """A kernel's parameters, each with its attribute."""
    end = _closing(text, head.end())
    buffers: dict[int, Argument] = {}
    call = []
    for part in re.split(r",(?![^\[]*\]\])", text[head.end() : end]):
        found = PARAMETER.fullmatch(part)
        if found is None:
            raise CompileError(f"program_source: {part.strip()!r} has no attribute")
        kind, name, attribute, index = found[1].strip(), found[2], found[3], found[4]
        if attribute == "buffer":
            call.append(_buffer(kind, name, int(index or -1), buffers))
        elif attribute in NUMBERS:
            call.append(_number(kind, attribute))
        else:
            raise CompileError(f"program_source: the attribute {attribute} is not known")
    return _Signature(head[2], int(head[1] or 0), buffers, tuple(call))


def _closing(text: str, position: int) -> int:
    depth = 1
    while depth:
        depth += {"(": 1, ")": -1}.get(text[position : position + 1], 0)
        position += 1
    return position - 1


def _buffer(kind: str, name: str, index: int, buffers: dict[int, Argument]) -> str:
    """What a buffer is passed as: the address, or what lies there."""
    if not 0 <= index < BUFFERS or index in buffers:
        raise CompileError(f"program_source: {name} has the buffer index {index}")
    if not re.search(r"\b(device|constant)\b", kind) or kind[-1] not in "*&":
        raise CompileError(f"program_source: {name} is neither in device nor in constant memory")
    writable = not re.search(r"\b(const|constant)\b", kind)
    word = re.findall(r"\w+", kind)[-1]
    size = SIZES.get(word, 4) if kind.endswith("&") else 1
    buffers[index] = Argument(name, kind, writable, size)
    if kind.endswith("&"):
        return f"*({kind[:-1]}*)arguments[{index}]"
    return f"({kind})arguments[{index}]"


def _number(kind: str, attribute: str) -> str:
    first, rest = NUMBERS[attribute]
    if kind in ("uint", "ushort"):
        return f"{kind}({first})"
    if kind == "uint3" and rest:
        return f"uint3{{{first}, {rest}, {rest}}}"
    raise CompileError(f"program_source: {attribute} cannot be a {kind}")


def _complete(text: str, found: list[_Signature]) -> str:
    """The text between the header and what the host calls."""
    text = ARRAY.sub(r"SIMT_SHARED \1", text)
    text = re.sub(r"\bthreadgroup\b", "", text)
    bodies = [
        f'extern "C" void simt_body_{it.name}(void** arguments) {{ {_call(it)}; }}' for it in found
    ]
    below = "\n".join([*bodies, "SIMT_MODULE"])
    return f'#include "metal.h"\n#line 1 "program_source"\n{text}\n{below}\n'


def _call(it: _Signature) -> str:
    return f"{it.name}({', '.join(it.call)})"
