"""What must be refused, with which exception, and that the device works on afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from coregrad import Tensor, dtypes, plugins
from coregrad.dtypes import ALL
from coregrad.errors import CompileError, DeviceError, OutOfMemory, UnsupportedOp
from coregrad.ir.emit import emit
from coregrad_conformance import oracle
from coregrad_conformance.builder import mapped
from coregrad_conformance.row import Failure, Outcome, Row

if TYPE_CHECKING:
    from coregrad_conformance.target import Target

GROUP = "errors"
FLOAT = dtypes.float32
NONSENSE = "\nthis is no program of any language ~~~\n"


def rows() -> Iterator[Row]:
    """The rows of this file."""
    for name, run, summary in (
        ("out-of-memory", _out_of_memory, "An absurd size raises OutOfMemory."),
        ("out-of-memory-tensor", _large_tensor, "So does a tensor of that size."),
        ("compile", _compile, "A program with senseless text behind it raises CompileError."),
        ("no-such-device", _no_such_device, "A device too many is refused with a DeviceError."),
        ("absent-dtypes", _absent, "A dtype that is not declared raises UnsupportedOp."),
    ):
        yield Row(f"errors/{name}", "core", GROUP, run, summary=summary)


def _raises(call: Callable[[], object], wanted: type[Exception], what: str) -> None:
    try:
        call()
    except wanted:
        return
    except Exception as error:
        raise Failure(f"{what} raised {error!r}, not {wanted.__name__}", "exception") from error
    raise Failure(f"{what} raised nothing, not {wanted.__name__}", "exception")


def _still_works(target: Target) -> int:
    x = np.arange(33, dtype=np.float32)
    kernel = mapped("after_error", "add", [FLOAT, FLOAT], FLOAT, 33)
    (got,) = target.run_kernel(kernel, [x, x])
    return oracle.compare(got, oracle.Expected(2.0 * x), FLOAT).compared


def _out_of_memory(target: Target) -> Outcome:
    for nbytes in (1 << 62, 1 << 50):
        call = lambda n=nbytes: target.active.device.allocate(n)  # noqa: E731
        _raises(call, OutOfMemory, f"allocate({nbytes})")
    return Outcome(_still_works(target))


def _large_tensor(target: Target) -> Outcome:
    def call() -> None:
        Tensor.zeros(1 << 50, device=target.name).contiguous().realize()

    _raises(call, OutOfMemory, "a tensor of four pebibytes")
    return Outcome(_still_works(target))


def _compile(target: Target) -> Outcome:
    if target.active.hooks.style == "eager":
        return Outcome(_still_works(target), detail="style eager: there is no compiler")
    kernel = mapped("spoilt", "add", [FLOAT, FLOAT], FLOAT, 7)
    program = emit(kernel, target.active.backend, target.active.hooks, target.limits)
    spoilt = program + NONSENSE if isinstance(program, str) else NONSENSE
    _raises(lambda: target.active.device.compile(spoilt), CompileError, "compile of nonsense")
    return Outcome(_still_works(target))


def _no_such_device(target: Target) -> Outcome:
    base = target.name.partition(":")[0]
    name = f"{base}:{target.active.backend.device_count()}"
    _raises(lambda: plugins.open_device(name), DeviceError, f"opening {name}")
    return Outcome(_still_works(target))


def _absent(target: Target) -> Outcome:
    """From the host, as zeros, and by a cast of what is there."""
    absent = [dtype for dtype in ALL if not target.supports(dtype)]
    for dtype in absent:
        ways: list[Callable[[], object]] = [
            lambda d=dtype: Tensor([1], dtype=d, device=target.name),  # type: ignore[misc]
            lambda d=dtype: Tensor.zeros(3, dtype=d, device=target.name),  # type: ignore[misc]
            lambda d=dtype: Tensor([1.0], device=target.name).to(d),  # type: ignore[misc]
        ]
        for way in ways:
            _raises(way, UnsupportedOp, f"a tensor of {dtype.name}")
    names = ", ".join(d.name for d in absent)
    return Outcome(_still_works(target), detail=f"absent: {names or 'none'}")
