"""What the backend declares: it must be believable, usable to the end, and used.

An optional hook that is missing is no fault: the core writes the op with others. These rows run
both forms on the device, the hook's (if there is one) and the core's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coregrad import activation, dtypes
from coregrad.dtypes import DType
from coregrad.hookspecs import Header, Hooks, Limits
from coregrad.ir import ops
from coregrad.ir.ops import CONTRACT_OPS, ELEMENTWISE, Op
from coregrad_conformance import oracle, tables, ulp
from coregrad_conformance.builder import Builder, mapped
from coregrad_conformance.row import Failure, Outcome, Row
from coregrad_conformance.tables import CORE
from coregrad_conformance.target import Target

if TYPE_CHECKING:
    from coregrad.ir.kernel import Instr, Kernel

GROUP = "capabilities"
INT = dtypes.int32
OPTIONAL = (ops.EXP, ops.LOG, ops.SIN, ops.SQRT, ops.TRUNC, ops.MOD)
MOST = 1 << 20  # bytes of scratch memory that a row asks for, whatever is declared


def rows() -> Iterator[Row]:
    """The rows of this file."""
    yield _row("contract", _contract, "The backend meets the contract's signatures.")
    yield _row("limits", _limits, "The limits are possible ones.")
    for op in OPTIONAL:
        for dtype in (dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16):
            name = f"capabilities/composed/{op.name}/{dtype.name}"
            summary = f"{op.name} of {dtype.name} written by the core with the device's other ops."
            run = partial(_composed, op, dtype)
            yield Row(name, tables.level(dtype), GROUP, run, op.name, dtype.name, summary)
    yield _row("hooks-used", _used, "Every hook that is there is what computes its op.")
    yield _row("private-memory", _private, "All of the declared scratch memory can be used.")
    yield _row("local-memory", _local, "All of the declared local memory can be used.")
    yield _row("threads", _threads, "A work-group of the declared size counts its threads.")


def _row(name: str, run: Callable[[Target], Outcome], summary: str) -> Row:
    return Row(f"capabilities/{name}", "core", GROUP, run, summary=summary)


def _contract(target: Target) -> Outcome:
    active = target.active
    frame = active.backend.begin_kernel(Header("contract", (), 1), [])
    problems = [
        *activation.check_info(active.info, target.name.partition(":")[0]),
        *activation.check_backend(active.backend),
        *activation.check_device(active.device),
        *activation.check_frame(frame),
    ]
    if problems:
        raise Failure("; ".join(problems), "capability")
    hooks = [op for op in CONTRACT_OPS if op in active.hooks]
    return Outcome(len(hooks), detail=f"{len(hooks)} hooks, style {active.hooks.style}")


def _limits(target: Target) -> Outcome:
    limits = target.limits
    lacking = [d.name for d in CORE if d not in limits.dtypes]
    wide = limits.vector_bytes
    checks = {
        f"dtypes lacks {', '.join(lacking)}": not lacking,
        f"vector_bytes {wide} is no power of two of at least 8": wide == 0
        or (wide >= 8 and wide & (wide - 1) == 0),
        f"max_buffers {limits.max_buffers} is below 8": limits.max_buffers >= 8,
        f"threads {limits.threads} is below 1": limits.threads >= 1,
        f"local_bytes {limits.local_bytes} is negative": limits.local_bytes >= 0,
        "threads without local memory": limits.threads == 1 or limits.local_bytes >= 1024,
        f"private_bytes {limits.private_bytes} is below 64": limits.private_bytes >= 64,
        f"index_bits {limits.index_bits} is neither 32 nor 64": limits.index_bits in (32, 64),
    }
    problems = [problem for problem, fine in checks.items() if not fine]
    if problems:
        raise Failure("; ".join(problems), "capability")
    return Outcome(len(checks), detail=str(replace(limits, dtypes=frozenset())))


# ---- optional hooks ----------------------------------------------------------------------------


def _composed(op: Op, dtype: DType, target: Target) -> Outcome:
    """The op without its hook: what the core makes of it must hold on this device too."""
    target.require(dtype)
    rng = tables.generator(f"composed/{op.name}/{dtype.name}")
    if op is ops.MOD:
        operands = [tables.mixed(rng, dtype, 255) for _ in range(2)]
    else:
        drawn = tables.DOMAINS[op.name](rng, dtype, 255)
        operands = [np.concatenate([drawn, tables.specials(dtype)])]
    n = operands[0].size
    attr = 0 if op is ops.SIN else None
    kernel = mapped(f"composed_{op.name}_{dtype.name}", op.name, [dtype] * len(operands), dtype, n,
                    "grid", target.lanes, attr)  # fmt: skip
    (got,) = without(target, op).run_kernel(kernel, operands)
    expected = oracle.elementwise(op.name, dtype, operands, attr)
    shown = [ulp.decode(x, dtype) for x in operands]
    return oracle.compare(got, expected, dtype, shown, ulp.limit(op.name, dtype))


class Altered(Target):
    """A target with other hooks or limits than its backend has."""

    def __init__(self, target: Target, hooks: Hooks, limits: Limits) -> None:
        self.active = replace(target.active, hooks=hooks)
        self._limits = limits

    @property
    def limits(self) -> Limits:
        """What is to be believed of the device."""
        return self._limits


def without(target: Target, op: Op) -> Target:
    """The target as if its backend lacked an optional op."""
    hooks = target.active.hooks
    if op is ops.MOD:
        return Altered(target, hooks, replace(target.limits, float_mod=False))
    kept = {name: f for name, f in hooks.functions.items() if name != op.name}
    return Altered(target, Hooks(hooks.style, kept), target.limits)


def _used(target: Target) -> Outcome:
    """Hooks that count, in a kernel of all ops: each op asks its own hook, once or more."""
    calls: dict[str, int] = {}

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def hook(*args: Any) -> Any:
            calls[name] = calls.get(name, 0) + 1
            return function(*args)

        return hook

    active = target.active
    table = {name: counted(name, f) for name, f in active.hooks.functions.items()}
    probe = Altered(target, Hooks(active.hooks.style, table), target.limits)
    probe.run_kernel(_all_ops(target), [np.ones(4, np.float32), np.ones(4, np.int32)])
    idle = [name for name in active.hooks.functions if not calls.get(name)]
    if idle:
        raise Failure(f"hooks that nothing calls: {', '.join(idle)}", "capability")
    return Outcome(len(calls), detail=f"{sum(calls.values())} calls")


def _all_ops(target: Target) -> Kernel:
    """A kernel in which every op that the device has occurs."""
    n = 4
    build = Builder("all_ops")
    outs = {d: build.out(d, 32 * n) for d in (dtypes.float32, INT, dtypes.bool_)}
    sources = {d: build.into(d, n) for d in (dtypes.float32, INT)}
    total = build.accumulator("add", INT)
    with build.loop(n) as i:
        build.update(total, build.load(sources[INT], i))
    build.store(outs[INT], 31 * n, build.result(total))
    with build.loop(n) as i:
        loaded = {d: build.load(source, i) for d, source in sources.items()}
        for k, op in enumerate(sorted(ELEMENTWISE, key=lambda op: op.name)):
            if op.name in target.active.hooks:
                value = _applied(build, op, loaded)
                build.store(outs[value.dtype], i + k * n, value)
    return build.kernel()


def _applied(build: Builder, op: Op, loaded: dict[DType, Instr]) -> Instr:
    """The op on operands of its domain."""
    dtype = INT if op.domain in ("int", "bits") else dtypes.float32
    operands = [loaded[dtype]] * len(op.args)
    if op is ops.WHERE:
        operands[0] = build.op("lt", *operands[1:])
    result = INT if op in (ops.CAST, ops.BITCAST) else None
    attr = {ops.CAST: dtype, ops.BITCAST: dtype, ops.SIN: 0}.get(op)
    return build.op(op.name, *operands, dtype=result, attr=attr)


# ---- scratch memory and threads ----------------------------------------------------------------


def _private(target: Target) -> Outcome:
    """An array of all the bytes (of int32), filled and read backwards."""
    size = min(target.limits.private_bytes, MOST) // 4
    count = 3
    build = Builder(f"private_{size}")
    out = build.out(INT, count * 3)
    with build.loop(count, "grid") as r:
        scratch = build.array(INT, size)
        with build.loop(size) as j:
            build.store(scratch, j, build.index(j * 3 + r, INT))
        for k, place in enumerate((0, size // 2, size - 1)):
            build.store(out, r * 3 + k, build.load(scratch, place))
    (got,) = target.run_kernel(build.kernel(), [])
    places = (0, size // 2, size - 1)
    want = [3 * place + r for r in range(count) for place in places]
    outcome = oracle.compare(got, oracle.integers(want, INT), INT)
    return Outcome(outcome.compared, detail=f"{size * 4} bytes")


def _local(target: Target) -> Outcome:
    """Every thread fills its share of all the bytes and reads its neighbour's."""
    limits = target.limits
    if limits.threads == 1:
        return Outcome(0, detail="one thread per work-group: there is no local memory")
    threads = min(limits.threads, 32)
    each = min(limits.local_bytes, MOST) // 4 // threads
    groups = 3
    build = Builder(f"local_{each * threads}")
    out = build.out(INT, groups * threads)
    with build.loop(groups, "grid") as g:
        shared = build.array(INT, each * threads, "local")
        with build.loop(threads, "local") as t:
            with build.loop(each) as j:
                build.store(shared, t * each + j, build.index(t * each + j + g, INT))
            build.barrier()
            acc = build.accumulator("add", INT)
            with build.loop(each) as j:
                neighbour = t * -each + ((threads - 1) * each) + j
                build.update(acc, build.load(shared, neighbour))
            build.store(out, g * threads + t, build.result(acc, g, t))
    (got,) = target.run_kernel(build.kernel(), [])
    want = [
        sum(place + group for place in range(thread * each, (thread + 1) * each))
        for group in range(groups)
        for thread in reversed(range(threads))
    ]
    outcome = oracle.compare(got, oracle.integers(want, INT), INT)
    return Outcome(outcome.compared, detail=f"{each * threads * 4} bytes")


def _threads(target: Target) -> Outcome:
    """As many threads as are declared, each storing its number."""
    n = target.limits.threads
    if n == 1:
        return Outcome(0, detail="one thread per work-group")
    groups = 5
    build = Builder(f"threads_{n}")
    out = build.out(INT, groups * n)
    with build.loop(groups, "grid") as g, build.loop(n, "local") as t:
        build.store(out, g * n + t, build.index(g * n + t, INT))
    (got,) = target.run_kernel(build.kernel(), [])
    return oracle.compare(got, oracle.integers(list(range(groups * n)), INT), INT)
