"""The hooks are the only way a kernel becomes code: a wrong hook gives a wrong result.

Each test runs a small program on a device of which one hook has been exchanged for a wrong one,
made of the backend's other hooks so that one table serves every backend. Wrong hooks keep to one
dtype, which is never that of index arithmetic: no memory is touched that was not meant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from coregrad import Tensor, dtypes, engine, plugins
from coregrad.dtypes import DType, float32, int32
from coregrad.hookspecs import Frame, Hooks
from coregrad.ir.emit import Emitter
from coregrad.ir.kernel import Kernel
from coregrad.ir.ops import CONTRACT_OPS, REDUCE_KINDS

Wrong = Callable[..., Any]  # (the right hooks, the arguments of the hook)
SIZE = 37  # whole vectors and a rest for every width up to 32


@dataclass(frozen=True)
class Mutant:
    """One wrong hook, active for ``dtype`` alone, and a program whose result shows it."""

    op: str
    dtype: DType
    wrong: Wrong
    program: Callable[[Tensor, Tensor], Tensor]  # of 37 floats and 37 integers around 0
    title: str = ""

    def __str__(self) -> str:
        return self.title or self.op


# ---- wrong hooks -------------------------------------------------------------------------------


def _one_more(op: str) -> Wrong:
    """The right result plus one."""

    def wrong(right: Hooks, frame: Frame, *args: Any) -> Any:
        *_, dtype, lanes = args
        one = right["const"](frame, 1, dtype, lanes)
        return right["add"](frame, right[op](frame, *args), one, dtype, lanes)

    return wrong


def _instead(other: str) -> Wrong:
    """Another hook of the same arguments."""

    def wrong(right: Hooks, frame: Frame, *args: Any) -> Any:
        return right[other](frame, *args)

    return wrong


def _unchanged(right: Hooks, frame: Frame, x: Any, dtype: DType, lanes: int) -> Any:
    return x


def _negative(right: Hooks, frame: Frame, x: Any, dtype: DType, lanes: int) -> Any:
    return right["mul"](frame, x, right["const"](frame, -1, dtype, lanes), dtype, lanes)


def _stored_negative(right: Hooks, frame: Frame, *args: Any) -> None:
    buffer, index, stride, value, gate, dtype, lanes = args
    value = _negative(right, frame, value, dtype, lanes)
    right["store"](frame, buffer, index, stride, value, gate, dtype, lanes)


def _next_number(right: Hooks, frame: Frame, value: float, dtype: DType, lanes: int) -> Any:
    return right["const"](frame, value + 1, dtype, lanes)


def _another_kind(right: Hooks, frame: Frame, kind: str, *args: Any) -> Any:
    """add for max and so on; an argmax whose index has been moved on."""
    if kind != "argmax":
        return right["reduce"](frame, {"add": "max", "max": "mul", "mul": "add"}[kind], *args)
    value, index = right["reduce"](frame, kind, *args)
    one = right["const"](frame, 1, dtypes.int64, args[-1])
    return value, right["add"](frame, index, one, dtypes.int64, args[-1])


def _negated(op: str) -> Wrong:
    def wrong(right: Hooks, frame: Frame, x: Any, dtype: DType, lanes: int) -> Any:
        return right[op](frame, _negative(right, frame, x, dtype, lanes), dtype, lanes)

    return wrong


def _difference(right: Hooks, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
    return right["add"](frame, a, _negative(right, frame, b, dtype, lanes), dtype, lanes)


def _next_quarter(
    right: Hooks, frame: Frame, x: Any, quarter: int, dtype: DType, lanes: int
) -> Any:
    return right["sin"](frame, x, (quarter + 1) % 4, dtype, lanes)


def _swapped(op: str) -> Wrong:
    """The last two operands exchanged."""

    def wrong(right: Hooks, frame: Frame, *args: Any) -> Any:
        *before, a, b, dtype, lanes = args
        return right[op](frame, *before, b, a, dtype, lanes)

    return wrong


def _not_less(right: Hooks, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
    true = right["const"](frame, True, dtypes.bool_, lanes)
    less = right["lt"](frame, a, b, dtype, lanes)
    return right["xor"](frame, less, true, dtypes.bool_, lanes)


def _smaller(right: Hooks, frame: Frame, a: Any, b: Any, dtype: DType, lanes: int) -> Any:
    less = right["lt"](frame, a, b, dtype, lanes)
    return right["where"](frame, less, a, b, dtype, lanes)


# fmt: off
MUTANTS = (
    Mutant("load", float32, _one_more("load"), lambda x, n: -x),
    Mutant("store", float32, _stored_negative, lambda x, n: x + x),
    Mutant("const", float32, _next_number, lambda x, n: x * 2),
    Mutant("reduce", float32, _another_kind, lambda x, n: x.sum(), "reduce add"),
    Mutant("reduce", float32, _another_kind, lambda x, n: (x + 5).prod(), "reduce mul"),
    Mutant("reduce", float32, _another_kind, lambda x, n: x.max(), "reduce max"),
    Mutant("reduce", float32, _another_kind, lambda x, n: x.argmax(), "reduce argmax"),
    Mutant("cast", float32, _one_more("cast"), lambda x, n: n.float()),
    Mutant("bitcast", int32, _one_more("bitcast"), lambda x, n: x.bitcast("int32")),
    Mutant("exp", float32, _negated("exp"), lambda x, n: x.exp()),
    Mutant("log", float32, _instead("exp"), lambda x, n: (x + 5).log()),
    Mutant("sin", float32, _next_quarter, lambda x, n: x.sin()),
    Mutant("sin", float32, _next_quarter, lambda x, n: x.cos(), "sin quarter"),
    Mutant("sqrt", float32, _unchanged, lambda x, n: (x + 5).sqrt()),
    Mutant("trunc", float32, _unchanged, lambda x, n: x.trunc()),
    Mutant("add", float32, _difference, lambda x, n: x + x * x),
    Mutant("mul", float32, _instead("add"), lambda x, n: x * x),
    Mutant("div", float32, _instead("mul"), lambda x, n: x / (x + 5)),
    Mutant("idiv", int32, _instead("mod"), lambda x, n: n // (n + 20)),
    Mutant("mod", int32, _instead("idiv"), lambda x, n: n % (n + 20)),
    Mutant("mod", float32, _instead("div"), lambda x, n: x.fmod(x + 5), "mod float"),
    Mutant("max", float32, _smaller, lambda x, n: x.maximum(x * x)),
    Mutant("lt", float32, _not_less, lambda x, n: x < x * x),
    Mutant("ne", int32, _instead("lt"), lambda x, n: n != 5),
    Mutant("and", int32, _instead("or"), lambda x, n: n & (n + 20)),
    Mutant("or", int32, _instead("xor"), lambda x, n: n | (n + 20)),
    Mutant("xor", int32, _instead("and"), lambda x, n: n ^ (n + 20)),
    Mutant("shl", int32, _instead("shr"), lambda x, n: n << (n & 7)),
    Mutant("shr", int32, _instead("shl"), lambda x, n: n >> (n & 7)),
    Mutant("where", float32, _swapped("where"), lambda x, n: x.where(n > 2, x * x)),
)
# fmt: on


# ---- a device with one wrong hook --------------------------------------------------------------


class Recorder:
    """A backend in front of another one, with the kernels that it claimed as contractions."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.claimed: list[Kernel] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def contraction(self, kernel: Kernel, emitter: Emitter) -> Any:
        claim = getattr(self._backend, "contraction", None)
        program = claim(kernel, emitter) if claim is not None else None
        if program is not None:
            self.claimed.append(kernel)
        return program


class Workshop:
    """Makes devices whose hooks are altered; a plan made for one never serves another."""

    def __init__(self, patch: pytest.MonkeyPatch, device: str) -> None:
        self.active = plugins.open_device(device)
        self.backend = Recorder(self.active.backend)
        self.called = 0
        self._patch = patch

    def right(self) -> str:
        """The device with every hook as it is."""
        return self._offer("right", self.active.hooks)

    def wrong(self, op: str, dtype: DType, wrong: Wrong) -> str:
        """The device with one wrong hook."""
        hooks = self.active.hooks

        def hook(frame: Frame, *args: Any) -> Any:
            if args[-2] is not dtype:
                return hooks[op](frame, *args)
            self.called += 1
            return wrong(hooks, frame, *args)

        return self._offer("wrong", Hooks(hooks.style, {**hooks.functions, op: hook}))

    def _offer(self, title: str, hooks: Hooks) -> str:
        name = f"{title}_{self.active.name}"
        made = replace(self.active, name=name, backend=self.backend, hooks=hooks)
        self._patch.setitem(plugins._registry._open, name, made)
        self._patch.setitem(plugins._registry._canonical, name, name)
        self._patch.setattr(engine, "_plans", {})
        return name


@pytest.fixture
def workshop(monkeypatch: pytest.MonkeyPatch, device: str) -> Workshop:
    return Workshop(monkeypatch, device)


def _result(mutant: Mutant, device: str) -> Any:
    x = Tensor(np.linspace(-2.9, 3.1, SIZE, dtype=np.float32), device=device)
    n = Tensor(np.arange(-18, SIZE - 18, dtype=np.int32), device=device)
    return mutant.program(x, n).numpy()


# ---- tests -------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", CONTRACT_OPS)
def test_every_op_of_the_contract_has_a_wrong_hook_here(op: str) -> None:
    assert any(m.op == op for m in MUTANTS), (
        f"no mutant of lower_{op}: give it a row in MUTANTS, so that a kernel that goes around "
        "this hook is found"
    )


def test_every_kind_of_reduction_has_a_wrong_hook_here() -> None:
    titles = {m.title for m in MUTANTS}
    assert {f"reduce {kind}" for kind in REDUCE_KINDS} <= titles


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_wrong_hook_changes_the_result(workshop: Workshop, mutant: Mutant) -> None:
    plain = _result(mutant, workshop.active.name)
    np.testing.assert_array_equal(_result(mutant, workshop.right()), plain)
    found = _result(mutant, workshop.wrong(mutant.op, mutant.dtype, mutant.wrong))
    assert workshop.called > 0, f"the program never comes to lower_{mutant.op}"
    assert not np.array_equal(found, plain, equal_nan=found.dtype.kind == "f")


# ---- contractions that the backend builds in its own way ---------------------------------------

# Prologue: what is done to an operand on its way in. Epilogue: what is done to the sum.
# fmt: off
FRAGMENTS: dict[str, tuple[str, Wrong, Callable[[Tensor, Tensor], Tensor]]] = {
    "prologue exp": ("exp", _negated("exp"), lambda a, b: a.exp() @ b),
    "prologue max": ("max", _smaller, lambda a, b: a.relu() @ b),
    "prologue of the other operand": ("max", _smaller, lambda a, b: a @ b.relu()),
    "prologue load": ("load", _one_more("load"), lambda a, b: a.relu() @ b.relu()),
    "prologue const": ("const", _next_number, lambda a, b: (a * 2) @ b),
    "epilogue max": ("max", _smaller, lambda a, b: (a @ b).relu()),
    "epilogue exp": ("exp", _negated("exp"), lambda a, b: (a @ b * 0.01).exp()),
    "epilogue add": ("add", _difference, lambda a, b: a @ b + b[0]),
    "epilogue load": ("load", _one_more("load"), lambda a, b: a @ b + b[0]),
    "store": ("store", _stored_negative, lambda a, b: a @ b),
}
# fmt: on


# What the backend's own multiply-add stands for: with a wrong hook it is not used.
PRODUCTS: dict[str, tuple[str, Wrong]] = {
    "mul": ("mul", _instead("add")),
    "reduce": ("reduce", _another_kind),
}


def _claimed(
    workshop: Workshop, device: str, program: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Any, Sequence[Kernel]]:
    """A program of two 96x96 matrices: its result, and the kernels claimed."""
    rng = np.random.default_rng(7)
    a, b = (Tensor(rng.standard_normal((96, 96), np.float32), device=device) for _ in range(2))
    workshop.backend.claimed.clear()
    return program(a, b).numpy(), list(workshop.backend.claimed)


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
@pytest.mark.parametrize("part", FRAGMENTS)
def test_prologue_and_epilogue_of_a_claimed_contraction_go_through_the_hooks(
    workshop: Workshop, part: str
) -> None:
    op, wrong, program = FRAGMENTS[part]
    plain, claimed = _claimed(workshop, workshop.right(), program)
    assert len(claimed) == 1, "the backend did not build this matrix product in its own way"
    found, claimed = _claimed(workshop, workshop.wrong(op, float32, wrong), program)
    assert len(claimed) == 1
    assert workshop.called > 0, f"the {part} never comes to lower_{op}"
    assert not np.allclose(found, plain, rtol=1e-2)


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
@pytest.mark.parametrize("part", PRODUCTS)
def test_a_contraction_is_not_claimed_where_its_product_or_sum_is_another(
    workshop: Workshop, part: str
) -> None:
    op, wrong = PRODUCTS[part]
    plain, claimed = _claimed(workshop, workshop.right(), lambda a, b: a @ b)
    assert len(claimed) == 1
    found, claimed = _claimed(workshop, workshop.wrong(op, float32, wrong), lambda a, b: a @ b)
    assert not claimed
    assert workshop.called > 0
    assert not np.allclose(found, plain, rtol=1e-2)
