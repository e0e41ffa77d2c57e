"""Memory and launches: copies, separate buffers, order, reuse, leaks."""

from __future__ import annotations

import gc
import importlib
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad import dtypes, plugins
from coregrad.ir.kernel import Kernel
from coregrad_conformance import oracle, tables
from coregrad_conformance.builder import Builder
from coregrad_conformance.row import Failure, Outcome, Row
from coregrad_conformance.target import POISON, Target, bytes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

resource: Any = None
if platform.system() != "Windows":
    resource = importlib.import_module("resource")

GROUP = "memory"
INT = dtypes.int32
MIB = 1 << 20
LONG = 1 << 13  # elements of a launch that may still be running when the next call comes


def rows() -> Iterator[Row]:
    """The rows of this file."""
    yield _row("open", _open, "The device opens, twice as the same one.")
    yield _row("copy/every-byte", _every_byte, "Every byte and every 16-bit pattern comes back.")
    yield _row("copy/sizes", _sizes, "Buffers of all sizes come back whole.")
    yield _row("copy/partial", _partial, "Copies that are shorter than their buffer.")
    yield _row("copy/read-only", _read_only, "Host memory that cannot be written is copied in.")
    yield _row("copy/source-reused", _source_reused, "The host may change what it has copied in.")
    yield _row("copy/on-device", _on_device, "A kernel copies NaNs and everything else.")
    yield _row("allocate/distinct", _distinct, "No two living buffers share memory.")
    yield _row("allocate/reused", _reused, "Freed memory that is used again shows nothing stale.")
    yield _row("allocate/many", _many, "Thousands of small buffers at a time.")
    yield _row("launch/chain", _chain, "Launches that depend on one another, without waiting.")
    yield _row("launch/overwritten", _overwritten, "An input overwritten right after a launch.")
    yield _row("launch/freed", _freed, "A buffer freed right after a launch that uses it.")
    yield _row("launch/again", _again, "One compiled kernel on ever other buffers.")
    yield _row("launch/same-buffer-twice", _twice, "One buffer as two inputs.")
    yield _row("launch/untouched", _untouched, "What a kernel does not store stays as it was.")
    yield _row("launch/synchronize", _synchronize, "synchronize may be called at any time.")
    yield _row("kernel/names", _names, "Kernels of one name that differ in dtype or size.")
    yield _row("kernel/constants", _constants, "Kernels that differ in the sign of a zero.")
    yield _row("kernel/attributes", _attributes, "Kernels that differ in a cast's source dtype.")
    yield _row("kernel/concurrent-programs", _interleaved, "Two kernels built, then run in turn.")
    yield _row("devices", _devices, "Every device of the backend holds its own memory.")
    yield _row("leak/buffers", _leak_buffers, "Memory that is freed can be had again.")
    yield _row("leak/launches", _leak_launches, "A launch keeps nothing.")


def _row(name: str, run: Any, summary: str) -> Row:
    return Row(f"memory/{name}", "core", GROUP, run, summary=summary)


# ---- buffers -----------------------------------------------------------------------------------


def _in(target: Target, data: NDArray[Any]) -> Any:
    """A new buffer with these bytes."""
    raw = target.active.device.allocate(data.nbytes)
    target.active.device.copy_in(raw, bytes_of(data))
    return raw


def _out(target: Target, raw: Any, like: NDArray[Any]) -> NDArray[Any]:
    """As many bytes of a buffer as ``like`` has, as the same dtype."""
    into = np.full(like.nbytes, 0x33, np.uint8)
    target.active.device.copy_out(raw, bytes_of(into))
    return into.view(like.dtype)


def _free(target: Target, *raws: Any) -> None:
    for raw in raws:
        target.active.device.free(raw)


def _same(got: NDArray[Any], want: NDArray[Any], what: str, kind: str = "value") -> int:
    """How many bytes were compared; Failure for the first that differs."""
    a, b = got.reshape(-1).view(np.uint8), want.reshape(-1).view(np.uint8)
    if not np.array_equal(a, b):
        at = int(np.flatnonzero(a != b)[0])
        raise Failure(f"{what}: byte {at} is {a[at]:#x}, expected {b[at]:#x}", kind)
    return a.size


def _random(name: str, n: int) -> NDArray[Any]:
    return tables.bits(tables.generator(name), INT, n)


def _open(target: Target) -> Outcome:
    again = plugins.open_device(target.name)
    if again.device is not target.active.device:
        raise Failure("opened twice, it is two devices", "capability")
    return Outcome(1, detail=target.name)


# ---- copies ------------------------------------------------------------------------------------


def _every_byte(target: Target) -> Outcome:
    """Among them the NaNs of all float formats, which copies must not touch."""
    data = np.arange(1 << 16, dtype=np.uint16)
    single = np.array([0x7F800001, 0xFFC12345, 0x7FC00000, 0x80000001], np.uint32)
    double = np.array([0x7FF0000000000001, 0xFFF8123456789ABC, 1], np.uint64)
    compared = 0
    for array in (data, single, double):
        raw = _in(target, array)
        compared += _same(_out(target, raw, array), array, "a copy there and back")
        _free(target, raw)
    return Outcome(compared)


def _sizes(target: Target) -> Outcome:
    compared = 0
    for n in (*tables.SIZES, 4096, 65536, MIB + 3):
        data = tables.bits(tables.generator(f"copy/{n}"), dtypes.uint8, n)
        raw = _in(target, data)
        compared += _same(_out(target, raw, data), data, f"{n} bytes")
        _free(target, raw)
    return Outcome(compared)


def _partial(target: Target) -> Outcome:
    """Copying fewer bytes leaves the rest of the buffer, and of the host's memory, alone."""
    device = target.active.device
    first, second = (tables.bits(tables.generator(n), dtypes.uint8, 1025) for n in ("a", "b"))
    compared = 0
    raw = _in(target, first)
    want = first.copy()
    for n in (1025, 1023, 64, 33, 4, 3, 1, 0):
        device.copy_in(raw, bytes_of(second[:n]))
        want[:n] = second[:n]
        compared += _same(_out(target, raw, want), want, f"after {n} bytes were copied in")
        into = np.full(1025, 0x77, np.uint8)
        device.copy_out(raw, bytes_of(into[:n]))
        compared += _same(into[:n], want[:n], f"{n} bytes copied out")
        compared += _same(into[n:], np.full(1025 - n, 0x77, np.uint8), f"host bytes behind {n}")
        device.copy_in(raw, bytes_of(first))
        want = first.copy()
    _free(target, raw)
    return Outcome(compared)


def _read_only(target: Target) -> Outcome:
    data = bytes(range(256)) * 5
    raw = target.active.device.allocate(len(data))
    target.active.device.copy_in(raw, memoryview(data))
    want = np.frombuffer(data, np.uint8)
    compared = _same(_out(target, raw, want), want, "read-only bytes")
    _free(target, raw)
    return Outcome(compared)


def _source_reused(target: Target) -> Outcome:
    compared = 0
    for n in (16, 1025, 1 << 18):
        data = _random(f"source/{n}", n)
        want = data.copy()
        raw = _in(target, data)
        data[:] = 0
        compared += _same(_out(target, raw, want), want, "after the host changed its copy")
        _free(target, raw)
    return Outcome(compared)


def _on_device(target: Target) -> Outcome:
    x = _random("on-device", 1025)
    (got,) = target.run_kernel(_adding("plain_copy", 1025, 0), [x])
    return Outcome(_same(got, x, "a kernel's copy"))


# ---- allocation --------------------------------------------------------------------------------


def _distinct(target: Target) -> Outcome:
    sizes = [1, 2, 3, 4, 7, 31, 32, 33, 64, 100, 255, 256, 257, 1023, 1025, 4096, 4099]
    contents = [np.full(n, i + 1, np.uint8) for i, n in enumerate(sizes * 4)]
    raws = [_in(target, content) for content in contents]
    compared = 0
    for raw, content in zip(raws, contents, strict=True):
        compared += _same(_out(target, raw, content), content, "a buffer among others", "memory")
    for i in range(0, len(raws), 2):  # the others stay whole when every second one goes
        _free(target, raws[i])
        contents[i] = np.full(contents[i].size, 200 + i % 50, np.uint8)
        raws[i] = _in(target, contents[i])
    for raw, content in zip(raws, contents, strict=True):
        compared += _same(_out(target, raw, content), content, "a buffer among others", "memory")
    _free(target, *raws)
    return Outcome(compared)


def _reused(target: Target) -> Outcome:
    """Contents, sizes and launches change with every turn; a pool must not mix them up."""
    compared = 0
    for turn in range(24):
        n = (257, 256, 300, 31)[turn % 4]
        x = _random(f"reused/{turn}", n)
        (got,) = target.run_kernel(_adding(f"add_{n}", n, n), [x])
        want = oracle.integers([int(v) + n for v in x], INT)
        compared += oracle.compare(got, want, INT).compared
    return Outcome(compared)


def _many(target: Target) -> Outcome:
    values = [np.array([i, -i], np.int32) for i in range(2000)]
    raws = [_in(target, value) for value in values]
    compared = 0
    for raw, value in zip(raws[::7], values[::7], strict=True):
        compared += _same(_out(target, raw, value), value, "one of 2000 buffers", "memory")
    _free(target, *raws)
    return Outcome(compared)


# ---- launches ----------------------------------------------------------------------------------


def _adding(name: str, n: int, number: int) -> Kernel:
    """out = in + number."""
    build = Builder(name)
    out, source = build.out(INT, n), build.into(INT, n)
    with build.loop(n, "grid") as i:
        build.store(out, i, build.op("add", build.load(source, i), build.const(number, INT)))
    return build.kernel()


def _scaling(name: str, n: int) -> Kernel:
    """out = 3*in + i."""
    build = Builder(name)
    out, source = build.out(INT, n), build.into(INT, n)
    with build.loop(n, "grid") as i:
        tripled = build.op("mul", build.load(source, i), build.const(3, INT))
        build.store(out, i, build.op("add", tripled, build.index(i, INT)))
    return build.kernel()


def _scaled(x: NDArray[Any], times: int = 1) -> NDArray[Any]:
    for _ in range(times):
        exact = 3 * x.astype(np.int64) + np.arange(x.size)
        x = (exact & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
    return x


def _chain(target: Target) -> Outcome:
    n, steps = 1021, 41
    x = _random("chain", n)
    launch = target.prepare(_scaling("chain", n))
    here, there = _in(target, x), _in(target, np.zeros_like(x))
    for _ in range(steps):
        launch([there, here])
        here, there = there, here
    compared = _same(_out(target, here, x), _scaled(x, steps), f"after {steps} launches")
    _free(target, here, there)
    return Outcome(compared)


def _overwritten(target: Target) -> Outcome:
    n = LONG
    x = _random("overwritten", n)
    launch = target.prepare(_scaling("overwritten", n))
    source, out = _in(target, x), _in(target, np.zeros_like(x))
    compared = 0
    for turn in range(4):
        launch([out, source])
        later = _random(f"overwritten/{turn}", n)
        target.active.device.copy_in(source, bytes_of(later))
        compared += _same(_out(target, out, x), _scaled(x), "the input was overwritten later")
        x = later
    _free(target, source, out)
    return Outcome(compared)


def _freed(target: Target) -> Outcome:
    n = LONG
    launch = target.prepare(_scaling("freed", n))
    compared = 0
    for turn in range(4):
        x = _random(f"freed/{turn}", n)
        source, out = _in(target, x), _in(target, np.zeros_like(x))
        launch([out, source])
        _free(target, source)
        other = _in(target, np.full(n, -1, np.int32))  # likely the memory that was just freed
        compared += _same(_out(target, out, x), _scaled(x), "an input was freed after the launch")
        _free(target, out, other)
    return Outcome(compared)


def _again(target: Target) -> Outcome:
    n = 33
    launch = target.prepare(_scaling("again", n))
    xs = [_random(f"again/{i}", n) for i in range(20)]
    sources = [_in(target, x) for x in xs]
    outs = [_in(target, np.zeros_like(x)) for x in xs]
    for out, source in zip(outs, sources, strict=True):
        launch([out, source])
    compared = sum(
        _same(_out(target, out, x), _scaled(x), "one of 20 launches")
        for out, x in zip(outs, xs, strict=True)
    )
    _free(target, *sources, *outs)
    return Outcome(compared)


def _twice(target: Target) -> Outcome:
    n = 77
    x = _random("twice", n)
    build = Builder("twice")
    out, a, b = build.out(INT, n), build.into(INT, n), build.into(INT, n)
    with build.loop(n, "grid") as i:
        backwards = build.load(b, i * -1 + (n - 1))
        build.store(out, i, build.op("add", build.load(a, i), backwards))
    launch = target.prepare(build.kernel())
    raw, result = _in(target, x), _in(target, np.zeros_like(x))
    launch([result, raw, raw])
    want = oracle.integers([int(p) + int(q) for p, q in zip(x, x[::-1], strict=True)], INT)
    compared = oracle.compare(_out(target, result, x), want, INT).compared
    _free(target, raw, result)
    return Outcome(compared)


def _untouched(target: Target) -> Outcome:
    """Every third element of the first half is stored; under a gate that holds for few."""
    n = 300
    x = _random("untouched", n)
    build = Builder("untouched")
    out, source = build.out(INT, n), build.into(INT, n)
    with build.loop(50, "grid") as i:
        value = build.load(source, i * 3)
        few = build.op("lt", build.op("and", value, build.const(7, INT)), build.const(3, INT))
        build.store(out, i * 3, value, few)
    (got,) = target.run_kernel(build.kernel(), [x])
    want = np.full(4 * n, POISON, np.uint8).view(np.int32)
    stored = [k for k in range(0, 150, 3) if (int(x[k]) & 7) < 3]
    want[stored] = x[stored]
    return Outcome(_same(got, want, "an output that is stored in part", "memory"))


def _synchronize(target: Target) -> Outcome:
    device = target.active.device
    device.synchronize()
    x = _random("synchronize", 64)
    launch = target.prepare(_scaling("synchronize", 64))
    source, out = _in(target, x), _in(target, np.zeros_like(x))
    launch([out, source])
    device.synchronize()
    device.synchronize()
    compared = _same(_out(target, out, x), _scaled(x), "after synchronize")
    _free(target, source, out)
    device.synchronize()
    return Outcome(compared)


# ---- kernels -----------------------------------------------------------------------------------


def _names(target: Target) -> Outcome:
    """A cache that goes by name, or by the sizes of buffers, returns the wrong one of these."""
    compared = 0
    used = [d for d in (INT, dtypes.uint32, dtypes.float32, dtypes.int64) if target.supports(d)]
    for _ in range(2):
        for dtype in used:
            for n in (8, 9):
                x = np.arange(-4, n - 4).astype(dtype.storage)
                build = Builder("same_name")
                out, source = build.out(dtypes.bool_, n), build.into(dtype, n)
                with build.loop(n, "grid") as i:
                    value = build.load(source, i)
                    build.store(out, i, build.op("lt", value, build.const(0, dtype)))
                (got,) = target.run_kernel(build.kernel(), [x])
                want = oracle.Expected(np.array([v < 0 for v in x.tolist()]))
                compared += oracle.compare(got, want, dtypes.bool_).compared
    return Outcome(compared)


def _constants(target: Target) -> Outcome:
    """Numbers that are equal, or unequal to themselves, and yet other constants."""
    compared = 0
    float32 = dtypes.float32
    x = np.array([1.0, -2.0, 0.0, -0.0], np.float32)
    for number in (0.0, -0.0, float("nan"), 0.0, 1.0, -0.0, float("inf"), -float("inf")):
        build = Builder("constant")
        out, source = build.out(float32, 4), build.into(float32, 4)
        with build.loop(4, "grid") as i:
            value = build.op("mul", build.load(source, i), build.const(number, float32))
            build.store(out, i, value)
        (got,) = target.run_kernel(build.kernel(), [x])
        want = oracle.elementwise("mul", float32, [x, np.full(4, number, np.float32)])
        compared += oracle.compare(got, want, float32).compared
    return Outcome(compared, 0.0)


def _attributes(target: Target) -> Outcome:
    compared = 0
    for source in (dtypes.int32, dtypes.uint32):
        x = np.array([-1, 1, 5, -7], np.int32).view(source.storage)
        build = Builder("attribute")
        out, buffer = build.out(dtypes.float32, 4), build.into(source, 4)
        with build.loop(4, "grid") as i:
            build.store(out, i, build.cast(build.load(buffer, i), dtypes.float32))
        (got,) = target.run_kernel(build.kernel(), [x])
        want = oracle.cast(x, source, dtypes.float32)
        compared += oracle.compare(got, want, dtypes.float32).compared
    return Outcome(compared, 0.0)


def _interleaved(target: Target) -> Outcome:
    n = 40
    x = _random("interleaved", n)
    launches = [target.prepare(_adding("interleaved", n, k)) for k in range(4)]
    source, out = _in(target, x), _in(target, np.zeros_like(x))
    compared = 0
    for k in (3, 0, 2, 1, 3, 1):
        launches[k]([out, source])
        want = oracle.integers([int(v) + k for v in x], INT)
        compared += oracle.compare(_out(target, out, x), want, INT).compared
    _free(target, source, out)
    return Outcome(compared)


# ---- devices -----------------------------------------------------------------------------------


def _devices(target: Target) -> Outcome:
    """Up to four devices at a time; the results of one must not turn up on another."""
    base = target.name.partition(":")[0]
    count = min(target.active.backend.device_count(), 4)
    targets = [Target(f"{base}:{i}") for i in range(count)]
    if len({id(t.active.device) for t in targets}) != count:
        raise Failure(f"{count} devices are declared, but some are the same", "capability")
    n = 100
    xs = [_random(f"device/{i}", n) for i in range(count)]
    sources = [_in(t, x) for t, x in zip(targets, xs, strict=True)]
    outs = [_in(t, np.zeros_like(x)) for t, x in zip(targets, xs, strict=True)]
    for t, out, source in zip(targets, outs, sources, strict=True):
        t.prepare(_scaling("devices", n))([out, source])
    compared = 0
    for t, out, source, x in zip(targets, outs, sources, xs, strict=True):
        compared += _same(_out(t, out, x), _scaled(x), f"on {t.name}")
        _free(t, out, source)
    return Outcome(compared, detail=f"{count} devices")


# ---- leaks -------------------------------------------------------------------------------------


def _leak_buffers(target: Target) -> Outcome:
    """40 rounds of 16 MiB; a device that keeps a tenth of that grows by as much as is allowed."""
    data = np.full(4096, 1, np.uint8)

    def once() -> None:
        large = target.active.device.allocate(16 * MIB)
        small = _in(target, data)  # little is written: a simulator may take note of every byte
        _free(target, large, small)

    return steady(once, rounds=40, allowed=64 * MIB)


def _leak_launches(target: Target) -> Outcome:
    """Small launches that write to buffers of 4 MiB."""
    build = Builder("leak")
    out, source = build.out(INT, MIB), build.into(INT, 64)
    with build.loop(64, "grid") as i:
        build.store(out, i, build.load(source, i))
    launch = target.prepare(build.kernel())
    x = _random("leak", 64)

    def once() -> None:
        source, out = _in(target, x), target.active.device.allocate(4 * MIB)
        launch([out, source])
        target.active.device.synchronize()
        _free(target, source, out)

    return steady(once, rounds=40, allowed=64 * MIB)


def steady(once: Callable[[], None], rounds: int, allowed: int) -> Outcome:
    """Run something again and again: this process may not grow.

    That sees memory of the host, where most devices keep at least a shadow of theirs.
    """
    for _ in range(4):
        once()
    gc.collect()
    before = _size()
    for _ in range(rounds):
        once()
    gc.collect()
    grown = _size() - before
    if grown > allowed:
        raise Failure(f"after {rounds} rounds this process has grown by {grown >> 20} MiB", "leak")
    return Outcome(rounds, detail=f"grown by {max(grown, 0) >> 10} KiB")


def _size() -> int:
    """Bytes that this process has asked for (on Linux), or the most it ever had in memory."""
    if platform.system() == "Linux":
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    if resource is None:
        return 0
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024
