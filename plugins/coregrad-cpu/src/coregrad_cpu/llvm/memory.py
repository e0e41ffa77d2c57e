"""Loads and stores: contiguous, strided, gathered, gated. It never knows what is computed."""

from __future__ import annotations

from collections.abc import Iterable

from coregrad.dtypes import DType, bool_
from coregrad.ir.kernel import Array, Param
from coregrad_cpu.llvm.frame import ZEROS, Frame
from coregrad_cpu.llvm.words import mangle, splat_text, stored, vector

# Outputs from this size on are written past the caches: they would push out what others need.
# Measured on a CPU with 32 MiB of last-level cache: 20-30 % faster for outputs beyond it, slower
# for a smaller one that the next kernel reads.
STREAM_BYTES = 16 << 20
LINE = 64  # bytes


def load(
    frame: Frame,
    buffer: Param | Array,
    index: str,
    stride: int | None,
    gate: str | None,
    dtype: DType,
    lanes: int,
) -> str:
    """``buffer[index + lane*stride]``, 0 where the gate is false."""
    frame.charge(1)
    element = stored(dtype)
    if lanes == 1:
        bits = _load_one(frame, buffer, index, gate, dtype)
    elif stride == 0:
        bits = _load_same(frame, buffer, index, gate, dtype, lanes)
    elif stride in (1, -1):
        bits = _load_block(frame, buffer, index, stride, gate, dtype, lanes)
    elif stride is not None and gate is None:
        bits = _load_apart(frame, buffer, index, stride, dtype, lanes)
    elif stride is not None and gate is not None:
        bits = _load_mostly(frame, buffer, index, stride, gate, dtype, lanes)
    else:
        bits = _gather(frame, buffer, _spread(frame, index, stride, lanes), gate, dtype, lanes)
    if dtype is not bool_:
        return bits
    return frame.op(f"icmp ne {vector(element, lanes)} {bits}, {splat_text('i8', lanes, '0')}")


def store(
    frame: Frame,
    buffer: Param | Array,
    index: str,
    stride: int | None,
    value: str,
    gate: str | None,
    dtype: DType,
    lanes: int,
) -> None:
    """``buffer[index + lane*stride] = value`` where the gate is true."""
    frame.charge(2)
    if dtype is bool_:
        value = frame.op(f"zext {vector('i1', lanes)} {value} to {vector('i8', lanes)}")
    if lanes == 1:
        _store_one(frame, buffer, index, value, gate, dtype)
    elif stride == 1:
        _store_block(frame, buffer, index, value, gate, dtype, lanes)
    elif stride == 0 and gate is not None:  # an error word: hardly ever does a lane write it
        for _ in frame.condition(_any(frame, gate, lanes)):
            addresses = _spread(frame, index, stride, lanes)
            _scatter(frame, buffer, addresses, value, gate, dtype, lanes)
    else:
        addresses = _spread(frame, index, stride, lanes)
        _scatter(frame, buffer, addresses, value, gate, dtype, lanes)


def address(frame: Frame, buffer: Param | Array, index: str, dtype: DType, inbounds: bool) -> str:
    """Where the element stands. Only an access that surely happens may promise to be inside."""
    word = "getelementptr inbounds" if inbounds else "getelementptr"
    return frame.op(f"{word} {stored(dtype)}, ptr {frame.names[buffer.name]}, i64 {index}")


def _load_one(
    frame: Frame, buffer: Param | Array, index: str, gate: str | None, dtype: DType
) -> str:
    at = address(frame, buffer, index, dtype, gate is None)
    if gate is not None:  # no branch: a closed gate reads a zero that is always there
        at = frame.op(f"select i1 {gate}, ptr {at}, ptr {frame.zero()}")
    return frame.op(f"load {stored(dtype)}, ptr {at}, align {dtype.itemsize}")


def _load_same(
    frame: Frame, buffer: Param | Array, index: str, gate: str | None, dtype: DType, lanes: int
) -> str:
    if gate is None:
        return _repeat(frame, _load_one(frame, buffer, index, None, dtype), stored(dtype), lanes)
    mask, kind = vector("i1", lanes), vector(stored(dtype), lanes)
    one = _load_one(frame, buffer, index, _any(frame, gate, lanes), dtype)
    same = _repeat(frame, one, stored(dtype), lanes)
    return frame.op(f"select {mask} {gate}, {kind} {same}, {kind} zeroinitializer")


def _any(frame: Frame, gate: str, lanes: int) -> str:
    """Whether the gate of some lane is true."""
    name = f"llvm.vector.reduce.or.{mangle('i1', lanes)}"
    return frame.call("i1", name, (vector("i1", lanes), gate))


def _load_block(
    frame: Frame,
    buffer: Param | Array,
    index: str,
    stride: int,
    gate: str | None,
    dtype: DType,
    lanes: int,
) -> str:
    """Contiguous lanes; backwards ones are read forwards, then reversed."""
    kind, backwards = vector(stored(dtype), lanes), stride == -1
    if backwards:
        index = frame.op(f"sub i64 {index}, {lanes - 1}")
    at = address(frame, buffer, index, dtype, gate is None)
    shared = frame.scalar(gate) if gate is not None and lanes * dtype.itemsize <= ZEROS else None
    if shared is not None:  # all lanes or none
        at = frame.op(f"select i1 {shared}, ptr {at}, ptr {frame.zero()}")
    if gate is None or shared is not None:
        bits = frame.op(f"load {kind}, ptr {at}, align {dtype.itemsize}")
    else:
        if backwards:
            gate = _reversed(frame, gate, "i1", lanes)
        word = vector(f"i{dtype.bits}", lanes)
        bits = frame.call(
            word,
            f"llvm.masked.load.{mangle(f'i{dtype.bits}', lanes)}.p0",
            ("ptr", at),
            ("i32", str(dtype.itemsize)),
            (vector("i1", lanes), gate),
            (word, "zeroinitializer"),
        )
        bits = _as_type(frame, bits, word, kind)
    return _reversed(frame, bits, stored(dtype), lanes) if backwards else bits


def _load_apart(
    frame: Frame, buffer: Param | Array, index: str, stride: int, dtype: DType, lanes: int
) -> str:
    """Strided lanes, one load each: no slower than a gather, and no vector of addresses."""
    first = address(frame, buffer, index, dtype, True)
    word = f"getelementptr inbounds {stored(dtype)}, ptr {first}, i64"
    return _one_by_one(
        frame, (frame.op(f"{word} {lane * stride}") for lane in range(lanes)), dtype, lanes
    )


def _one_by_one(frame: Frame, places: Iterable[str], dtype: DType, lanes: int) -> str:
    """A vector of the elements at these addresses."""
    element, kind = stored(dtype), vector(stored(dtype), lanes)
    bits = "poison"
    for lane, at in enumerate(places):
        one = frame.op(f"load {element}, ptr {at}, align {dtype.itemsize}")
        bits = frame.op(f"insertelement {kind} {bits}, {element} {one}, i64 {lane}")
    return bits


def _load_mostly(
    frame: Frame,
    buffer: Param | Array,
    index: str,
    stride: int,
    gate: str,
    dtype: DType,
    lanes: int,
) -> str:
    """Strided lanes behind a gate, which as a rule is open to all of them: only padding's edges
    need a gather, which takes several times as long."""
    kind = vector(stored(dtype), lanes)
    whole = frame.call(
        "i1", f"llvm.vector.reduce.and.{mangle('i1', lanes)}", (vector("i1", lanes), gate)
    )
    found = frame.entry(f"alloca {kind}", "%lanes")
    for _ in frame.condition(whole):
        bits = _load_apart(frame, buffer, index, stride, dtype, lanes)
        frame.line(f"store {kind} {bits}, ptr {found}")
    for _ in frame.condition(frame.op(f"xor i1 {whole}, true")):
        bits = _gather(frame, buffer, _spread(frame, index, stride, lanes), gate, dtype, lanes)
        frame.line(f"store {kind} {bits}, ptr {found}")
    return frame.op(f"load {kind}, ptr {found}")


def _gather(
    frame: Frame, buffer: Param | Array, index: str, gate: str | None, dtype: DType, lanes: int
) -> str:
    """Lanes from anywhere. Without a gate one load each, as above: 0.8 of a gather's time."""
    frame.charge(lanes)
    if gate is None:
        singles = (frame.extract(index, f"<{lanes} x i64>", lane) for lane in range(lanes))
        places = (address(frame, buffer, one, dtype, True) for one in singles)
        return _one_by_one(frame, places, dtype, lanes)
    word = vector(f"i{dtype.bits}", lanes)
    mask = vector("i1", lanes)
    bits = frame.call(
        word,
        f"llvm.masked.gather.{mangle(f'i{dtype.bits}', lanes)}.v{lanes}p0",
        (f"<{lanes} x ptr>", _addresses(frame, buffer, index, dtype, lanes)),
        ("i32", str(dtype.itemsize)),
        (mask, gate),
        (word, "zeroinitializer"),
    )
    return _as_type(frame, bits, word, vector(stored(dtype), lanes))


def _store_one(
    frame: Frame, buffer: Param | Array, index: str, value: str, gate: str | None, dtype: DType
) -> None:
    def write() -> None:
        at = address(frame, buffer, index, dtype, True)
        frame.line(f"store {stored(dtype)} {value}, ptr {at}, align {dtype.itemsize}")

    if gate is None:
        write()
        return
    for _ in frame.condition(gate):
        write()


def _store_block(
    frame: Frame,
    buffer: Param | Array,
    index: str,
    value: str,
    gate: str | None,
    dtype: DType,
    lanes: int,
) -> None:
    kind = vector(stored(dtype), lanes)
    at = address(frame, buffer, index, dtype, gate is None)
    if gate is None:
        align, how = dtype.itemsize, ""
        if _may_stream(frame, buffer, index, dtype, lanes):
            frame.streams = True
            align, how = min(LINE, lanes * dtype.itemsize), ", !nontemporal !0"
        frame.line(f"store {kind} {value}, ptr {at}, align {align}{how}")
        return
    word = vector(f"i{dtype.bits}", lanes)
    frame.call(
        "void",
        f"llvm.masked.store.{mangle(f'i{dtype.bits}', lanes)}.p0",
        (word, _as_type(frame, value, kind, word)),
        ("ptr", at),
        ("i32", str(dtype.itemsize)),
        (vector("i1", lanes), gate),
    )


def _may_stream(frame: Frame, buffer: Param | Array, index: str, dtype: DType, lanes: int) -> bool:
    """A large output written once, by whole aligned vectors, which fill a line of the cache or
    follow each other.

    Buffers start at multiples of 64 bytes.
    """
    width = lanes * dtype.itemsize
    return (
        isinstance(buffer, Param)
        and buffer.role == "out"
        and buffer.size * dtype.itemsize >= STREAM_BYTES
        and frame.multiple(index) % lanes == 0
        and lanes & (lanes - 1) == 0
        and (width % LINE == 0 or (index == frame.grid_index and width >= 16))
    )


def _scatter(
    frame: Frame,
    buffer: Param | Array,
    index: str,
    value: str,
    gate: str | None,
    dtype: DType,
    lanes: int,
) -> None:
    frame.charge(lanes)
    word = vector(f"i{dtype.bits}", lanes)
    frame.call(
        "void",
        f"llvm.masked.scatter.{mangle(f'i{dtype.bits}', lanes)}.v{lanes}p0",
        (word, _as_type(frame, value, vector(stored(dtype), lanes), word)),
        (f"<{lanes} x ptr>", _addresses(frame, buffer, index, dtype, lanes)),
        ("i32", str(dtype.itemsize)),
        (vector("i1", lanes), gate or splat_text("i1", lanes, "true")),
    )


def _spread(frame: Frame, index: str, stride: int | None, lanes: int) -> str:
    """The index of every lane."""
    if stride is None:
        return index
    from_lane = ", ".join(f"i64 {lane * stride}" for lane in range(lanes))
    same = _repeat(frame, index, "i64", lanes)
    return frame.op(f"add <{lanes} x i64> {same}, <{from_lane}>")


def _addresses(frame: Frame, buffer: Param | Array, index: str, dtype: DType, lanes: int) -> str:
    base = frame.names[buffer.name]
    return frame.op(f"getelementptr {stored(dtype)}, ptr {base}, <{lanes} x i64> {index}")


def _repeat(frame: Frame, value: str, scalar: str, lanes: int) -> str:
    if not value.startswith("%"):
        return splat_text(scalar, lanes, value)
    kind = vector(scalar, lanes)
    first = frame.op(f"insertelement {kind} poison, {scalar} {value}, i64 0")
    return frame.shuffle(first, "poison", kind, [0] * lanes)


def _reversed(frame: Frame, value: str, scalar: str, lanes: int) -> str:
    return frame.shuffle(value, "poison", vector(scalar, lanes), list(range(lanes))[::-1])


def _as_type(frame: Frame, value: str, old: str, new: str) -> str:
    return value if old == new else frame.op(f"bitcast {old} {value} to {new}")
