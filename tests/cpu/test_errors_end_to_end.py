"""Bad input: the mistake is named at the call that made it, with its values and what to do.

A row is the user's line, the exception, and what its message has to contain: the operation, the
values that do not fit, and a word of the advice. Nothing is read or printed to bring the error out,
except where the data itself is wrong and lies on a device.
"""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import coregrad
from coregrad import Tensor, engine, nn
from coregrad.errors import (
    BackendUnavailable,
    CoregradError,
    DataError,
    DeviceError,
    DTypeError,
    GradientError,
    IndexRangeError,
    ShapeError,
)


@dataclass(frozen=True)
class Mistake:
    """One line of a user's program that is wrong."""

    line: str
    error: type[Exception]
    words: tuple[str, ...]

    def __str__(self) -> str:
        return self.line


def _row(line: str, error: type[Exception], *words: str) -> Mistake:
    return Mistake(line, error, words)


def names() -> dict[str, Any]:
    """What the lines may use."""
    return {
        "Tensor": Tensor,
        "nn": nn,
        "np": np,
        "coregrad": coregrad,
        "copy": copy,
        "f34": Tensor(np.arange(12, dtype=np.float32).reshape(3, 4)),
        "v3": Tensor([1.0, 2.0, 3.0]),
        "i22": Tensor([[1, 2], [3, 4]]),
        "image": Tensor(np.ones((2, 3, 8, 8), np.float32)),
        "w": Tensor([1.0, 2.0], requires_grad=True),
        "far": Tensor(np.ones((3, 4), np.float32), device="numpy"),
        "number": Tensor(1.0),
    }


SHAPES = (
    _row("f34 + Tensor.ones(3, 5)", ShapeError, "add", "(3, 4)", "(3, 5)", "equal or 1"),
    _row("f34 * v3", ShapeError, "mul", "(3, 4)", "(3,)"),
    _row("f34.maximum(v3)", ShapeError, "maximum", "(3, 4)", "(3,)"),
    _row("f34 @ Tensor.ones(3, 5)", ShapeError, "matmul", "(3, 4)", "(3, 5)", "last axis"),
    _row("f34 @ number", ShapeError, "matmul", "(3, 4)", "()"),
    _row("v3.dot(Tensor([1.0, 2.0]))", ShapeError, "(3,)", "(2,)"),
    _row("f34.bmm(f34)", ShapeError, "bmm", "(3, 4)", "(b, m, k)"),
    _row("f34.outer(v3)", ShapeError, "outer", "(3, 4)", "vectors"),
    _row("f34.reshape(5, 2)", ShapeError, "reshape", "(3, 4)", "12", "(5, 2)", "10"),
    _row("f34.reshape(-1, 5)", ShapeError, "reshape", "-1", "(-1, 5)", "12"),
    _row("f34.reshape(-1, -1)", ShapeError, "reshape", "(-1, -1)", "one size"),
    _row("f34.expand(3, 5)", ShapeError, "expand", "(3, 4)", "(3, 5)", "size 1"),
    _row("f34.unflatten(1, (3, 2))", ShapeError, "unflatten", "(3, 4)", "(3, 2)"),
    _row("coregrad.cat([f34, Tensor.ones(3, 5)])", ShapeError, "cat", "(3, 4)", "(3, 5)", "axis 0"),
    _row("coregrad.cat([])", ShapeError, "cat", "at least one"),
    _row("coregrad.stack([f34, v3])", ShapeError, "stack", "(3, 4)", "(3,)", "cat"),
    _row("f34.split([1, 1])", ShapeError, "split", "[1, 1]", "3"),
    _row("f34.pad((1,))", ShapeError, "pad", "(3, 4)", "pair"),
    _row("f34.repeat(2)", ShapeError, "repeat", "(2,)", "(3, 4)", "every axis"),
    _row("f34.narrow(0, 2, 5)", ShapeError, "narrow", "5", "axis 0", "(3, 4)"),
    _row("f34.unfold(0, 5, 1)", ShapeError, "unfold", "5", "(3, 4)"),
    _row("Tensor([[1, 2], [3]])", ShapeError, "Tensor", "ragged", "same length"),
    _row("Tensor.zeros(2, -1)", ShapeError, "zeros", "(2, -1)", "negative"),
    _row("Tensor.randn(-3)", ShapeError, "randn", "(-3,)", "negative"),
    _row("Tensor.randperm(-1)", ShapeError, "randperm", "-1", "at least 0"),
    _row("f34.item()", ShapeError, "item", "(3, 4)", "12", "tolist"),
    _row("bool(f34)", ShapeError, "bool", "(3, 4)", ".any()"),
    _row("float(f34)", ShapeError, "float", "(3, 4)", "tolist"),
    _row("f'{f34:.2f}'", ShapeError, "(3, 4)", "12"),
    _row("Tensor.ones(0, 3).max()", ShapeError, "max", "(0, 3)", "no element"),
    _row("Tensor.ones(3, 0).argmax(1)", ShapeError, "argmax", "(3, 0)", "axes (1,)"),
    _row("image.conv2d(Tensor.ones(4, 2, 3, 3))", ShapeError, "conv2d", "(4, 2, 3, 3)", "groups"),
    _row("f34.conv2d(Tensor.ones(4, 2, 3, 3))", ShapeError, "conv2d", "(3, 4)", "(N, C, ...)"),
    _row("image.conv2d(Tensor.ones(4, 3, 9, 9))", ShapeError, "conv2d", "(9, 9)", "(8, 8)", "pad"),
    _row("image.max_pool2d(9)", ShapeError, "max_pool2d", "9", "8"),
    _row("f34.linear(Tensor.ones(2, 5))", ShapeError, "linear", "(3, 4)", "(2, 5)", "(out, in)"),
    _row("nn.Linear(5, 2)(f34)", ShapeError, "linear", "(3, 4)", "(2, 5)"),
    _row("nn.BatchNorm2d(4)(image)", ShapeError, "BatchNorm2d", "(2, 3, 8, 8)", "4 channels"),
    _row("nn.LayerNorm(5)(f34)", ShapeError, "layer_norm", "(5,)", "(3, 4)"),
    _row("nn.Conv2d(3, 5, 3, groups=2)", ShapeError, "Conv2d", "2 groups", "3 and 5"),
    _row("nn.Conv2d(3, 5, 0)", ShapeError, "Conv2d", "kernel_size", "0", "at least 1"),
    _row("nn.Linear(0, 2)", ShapeError, "Linear", "in_features", "0", "at least 1"),
    _row("f34.mse_loss(v3)", ShapeError, "mse_loss", "(3, 4)", "(3,)", "reshape"),
    _row("f34.cross_entropy(Tensor([0, 1]))", ShapeError, "cross_entropy", "(3, 4)", "(2,)"),
    _row("coregrad.einsum('ij,jk->ik', f34, f34)", ShapeError, "einsum", "'j'", "4 and 3"),
    _row("coregrad.einsum('ij->iz', f34)", ShapeError, "einsum", "'z'"),
    _row("v3.assign(Tensor([1.0]))", ShapeError, "assign", "[1]", "[3]", "keep"),
    _row("v3.add_(Tensor.ones(2, 3))", ShapeError, "add_", "[2, 3]", "[3]", "in-place"),
    _row("f34.__setitem__(0, Tensor.ones(3))", ShapeError, "setitem", "(3,)", "(4,)"),
    _row("(w * 2).backward(Tensor([1.0]))", ShapeError, "backward", "[1]", "[2]"),
)

AXES = (
    _row("f34.sum(axis=2)", ShapeError, "sum", "axis 2", "(3, 4)", "-2 to 1"),
    _row("f34.mean(dim=-3)", ShapeError, "mean", "axis -3", "(3, 4)", "-2 to 1"),
    _row("f34.sum(axis=(0, -2))", ShapeError, "sum", "(0, -2)", "twice"),
    _row("f34.softmax(3)", ShapeError, "softmax", "axis 3", "-2 to 1"),
    _row("f34.argmax(5)", ShapeError, "argmax", "axis 5", "-2 to 1"),
    _row("f34.cumsum(5)", ShapeError, "cumsum", "axis 5", "-2 to 1"),
    _row("f34.permute(0, 0)", ShapeError, "permute", "(0, 0)", "each axis once"),
    _row("f34.permute(0, 2)", ShapeError, "permute", "axis 2", "-2 to 1"),
    _row("f34.transpose(0, 2)", ShapeError, "transpose", "axis 2", "-2 to 1"),
    _row("f34.squeeze(2)", ShapeError, "squeeze", "axis 2", "-2 to 1"),
    _row("f34.unsqueeze(4)", ShapeError, "unsqueeze", "axis 4", "-3 to 2"),
    _row("f34.flip(2)", ShapeError, "flip", "axis 2", "-2 to 1"),
    _row("f34.size(2)", ShapeError, "size", "axis 2", "-2 to 1"),
    _row("coregrad.cat([f34, f34], dim=2)", ShapeError, "cat", "axis 2", "-2 to 1"),
    _row("number.unbind()", ShapeError, "unbind", "0-d", "reshape"),
    _row("number.narrow(0, 0, 1)", ShapeError, "narrow", "0-d", "reshape"),
    _row("f34.sum(axis='rows')", TypeError, "sum", "'rows'", "int"),
    _row("f34.sum(dim=0, axis=1)", TypeError, "sum", "dim or axis", "not both"),
    _row("len(number)", TypeError, "len", "0-d", "item()"),
    _row("list(number)", TypeError, "iter", "0-d", "item()"),
)

DTYPES = (
    _row("i22.mean()", DTypeError, "mean", "int64", ".float()"),
    _row("i22.softmax(-1)", DTypeError, "softmax", "int64", ".float()"),
    _row("Tensor([300], dtype='uint8')", DTypeError, "300", "uint8", "255", "wider"),
    _row("Tensor([2**63])", DTypeError, "9223372036854775808", "int64"),
    _row("Tensor([1], dtype='uint8') + 300", DTypeError, "300", "uint8", "cast"),
    _row("Tensor.full((2,), -129, dtype='int8')", DTypeError, "-129", "int8", "-128"),
    _row("Tensor.full((2,), 'a')", TypeError, "full", "'a'", "number"),
    _row("Tensor([1], dtype='float3')", DTypeError, "float3", "float32"),
    _row("f34.cast(list)", DTypeError, "list", "float32"),
    _row("Tensor(['a', 'b'])", DTypeError, "Tensor", "numbers"),
    _row("Tensor(None)", DTypeError, "Tensor", "None", "numbers"),
    _row("Tensor(1j)", DTypeError, "Tensor", "complex", "numbers"),
    _row("f34 & 1", DTypeError, "and", "float32", "cast"),
    _row("f34 << 1", DTypeError, "shl", "float32", "cast"),
    _row("f34.bitcast('int64')", DTypeError, "bitcast", "float32", "int64", "cast"),
    _row("coregrad.where(f34, f34, f34)", DTypeError, "where", "float32", "bool", "compare"),
    _row("-(f34 > 0)", DTypeError, "neg", "bool", "logical_not"),
    _row("(f34 > 0) - (f34 > 0)", DTypeError, "sub", "bool", "logical_xor"),
    _row("i22 ** -1", DTypeError, "pow", "-1", "float"),
    _row("f34[v3]", DTypeError, "index", "float32", "int64", "mask"),
    _row("f34.gather(0, f34)", DTypeError, "gather", "float32", "int64"),
    _row("nn.Embedding(4, 2)(v3)", DTypeError, "embedding", "float32", "integers"),
    _row("i22.add_(1.5)", DTypeError, "add_", "float32", "int64", "cast"),
    _row("v3.assign(Tensor([1, 2, 3]))", DTypeError, "assign", "int64", "float32"),
    _row("Tensor([1], requires_grad=True)", DTypeError, "requires_grad", "int64", "floating"),
    _row("nn.optim.Adam([Tensor([1])])", DTypeError, "Adam", "int64", "floating"),
    _row("f34.add('a')", TypeError, "add", "str", "number"),
    _row("f34.conv2d('a')", TypeError, "conv2d", "'a'", "Tensor(...)"),
    _row("f34.masked_select(3)", TypeError, "masked_select", "3", "Tensor(...)"),
    _row("f34.reshape(3.0, 4)", TypeError, "reshape", "ints", "3.0"),
    _row("[1, 2, 3][v3[0]]", TypeError, "index", "float32", "cast"),
    _row("Tensor.manual_seed('a')", TypeError, "manual_seed", "'a'", "int"),
)

INDICES = (
    _row("f34[3]", IndexRangeError, "3", "axis 0", "(3, 4)"),
    _row("f34[0, -5]", IndexRangeError, "-5", "axis 1", "4 elements"),
    _row("f34[0, 0, 0]", IndexRangeError, "3 axes", "(3, 4)"),
    _row("f34[..., ...]", IndexRangeError, "index", "more than one"),
    _row("f34[[0, 5]]", IndexRangeError, "5", "axis 0", "-3 to 2"),
    _row("f34[np.array([-4])]", IndexRangeError, "-4", "-3 to 2"),
    _row("f34[Tensor([0, 7])]", IndexRangeError, "7", "axis 0", "-3 to 2"),
    _row("f34[Tensor([0, 1]), Tensor([0, 1, 2])]", ShapeError, "index", "(2,)", "(3,)"),
    _row("f34[Tensor([True, False])]", ShapeError, "mask", "(2,)", "(3, 4)"),
    _row("f34[::0]", ShapeError, "slice", "step 0"),
    _row("f34[1.5]", TypeError, "index", "float", "slices"),
    _row("f34['a']", TypeError, "index", "str", "slices"),
    _row("f34[0.5:]", TypeError, "slice", "0.5"),
    _row("f34.select(0, 9)", IndexRangeError, "select", "9", "axis 0", "3 elements"),
    _row("f34.select(0, 1.5)", TypeError, "select", "1.5", "int"),
    _row("f34.gather(0, Tensor([[5]]))", IndexRangeError, "gather", "5", "-3 to 2"),
    _row("f34.gather(0, Tensor([0]))", ShapeError, "gather", "(1,)", "(3, 4)"),
    _row("f34.scatter(0, Tensor([[7]]), 1.0)", IndexRangeError, "scatter", "7", "-3 to 2"),
    _row("f34.index_select(0, Tensor([3]))", IndexRangeError, "3", "axis 0", "-3 to 2"),
    _row("f34.__setitem__(3, 1.0)", IndexRangeError, "3", "axis 0"),
    _row("f34.__setitem__(Tensor([9]), 1.0)", IndexRangeError, "9", "-3 to 2"),
)

LABELS = (
    _row("f34.cross_entropy(Tensor([0, 1, 4]))", IndexRangeError, "label 4", "4 classes", "0 to 3"),
    _row("f34.cross_entropy(Tensor([0, 1, -1]))", IndexRangeError, "label -1", "4 classes"),
    _row(
        "f34.sparse_categorical_crossentropy(Tensor([0, 1, 9]))",
        IndexRangeError,
        "label 9",
        "4 classes",
    ),
    _row("f34.nll_loss(Tensor([0, 7, 1]))", IndexRangeError, "nll_loss", "label 7", "0 to 3"),
    _row("Tensor([0, 5]).one_hot(3)", IndexRangeError, "one_hot", "label 5", "0 to 2"),
    _row("nn.Embedding(4, 2)(Tensor([4]))", IndexRangeError, "embedding", "4", "3"),
)

DEVICES = (
    _row("f34.to('nowhere')", DeviceError, "nowhere", "cpu", "numpy"),
    _row("Tensor([1], device='tpu')", DeviceError, "tpu", "choose one of"),
    _row("Tensor([1], device='numpy:7')", BackendUnavailable, "numpy:7", "1 device"),
    _row("coregrad.Device('')", DeviceError, "device ''", "cuda:1"),
    _row("f34 + far", DeviceError, "add", "'cpu'", "'numpy'", ".to("),
    _row("f34 @ far.T", DeviceError, "matmul", "'cpu'", "'numpy'", ".to("),
    _row("coregrad.cat([f34, far])", DeviceError, "cat", "'cpu'", "'numpy'", ".to("),
    _row("f34.mse_loss(far)", DeviceError, "'cpu'", "'numpy'", ".to("),
    _row("f34.assign(far)", DeviceError, "assign", "'cpu'", "'numpy'", ".to("),
    _row("f34[far[0].cast('int64')]", DeviceError, "index", "'cpu'", "'numpy'"),
)

OTHERS = (
    _row("(w * 2).backward()", GradientError, "backward", "(2,)", "gradient=", "sum"),
    _row("i22.sum().backward()", GradientError, "backward", "int64"),
    _row(
        "Tensor([1.0], requires_grad=False).sum().backward()",
        GradientError,
        "backward",
        "requires_grad=True",
    ),
    _row("w.add_(1)", GradientError, "add_", "no_grad"),
    _row("(w * 2).register_hook(print)", GradientError, "register_hook", "requires_grad=True"),
    _row("copy.deepcopy(w * 2)", GradientError, "deepcopy", "detach"),
    _row("f34.dropout(1.5)", CoregradError, "dropout", "1.5", "between 0 and 1"),
    _row("nn.Dropout(-0.1)", CoregradError, "Dropout", "-0.1", "between 0 and 1"),
    _row("f34.mse_loss(f34, reduction='avg')", CoregradError, "mse_loss", "'avg'", "'mean'"),
    _row("nn.optim.SGD([], lr=0.1)", CoregradError, "SGD", "empty", "parameters()"),
    _row("nn.optim.SGD([w], lr=-1)", CoregradError, "SGD", "lr", "-1"),
    _row("nn.optim.SGD(w, lr=0.1)", CoregradError, "SGD", "list of tensors"),
    _row("nn.optim.SGD([w], lr=0.1).step()", GradientError, "SGD.step", "backward()"),
    _row("Tensor.arange(0, 5, 0)", ValueError, "arange", "step", "0"),
    _row("Tensor.randint(3, low=5, high=5)", ShapeError, "randint", "[5, 5)"),
    _row("f34.clamp()", ValueError, "clamp", "min", "max"),
    _row("nn.Linear(2, 2).load_state_dict({})", DataError, "missing", "weight", "strict=False"),
    _row("nn.state.safe_load('no such file')", DataError, "safe_load", "no such file"),
)

MISTAKES = (*SHAPES, *AXES, *DTYPES, *INDICES, *LABELS, *DEVICES, *OTHERS)


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_a_mistake_raises_at_its_call_and_says_what_to_do(mistake: Mistake) -> None:
    scope = names()
    engine.launches = []
    try:
        with pytest.raises(mistake.error) as caught, coregrad.Device("cpu"):
            eval(mistake.line, scope)
        launched = list(engine.launches)
    finally:
        engine.launches = None
    message = str(caught.value)
    missing = [word for word in mistake.words if word not in message]
    assert not missing, f"{message!r} does not say {missing}"
    assert type(caught.value) is not AssertionError
    assert not launched, "the mistake was found only by computing"


def test_every_error_of_the_tables_is_a_builtin_error_too() -> None:
    builtin = (ValueError, TypeError, IndexError, RuntimeError, CoregradError)
    assert all(issubclass(m.error, builtin) for m in MISTAKES)


# ---- data that is wrong on the device ------------------------------------------------------------

# Indices that are the result of a computation: nobody has seen them at the call.
LATE = (
    "x[i * 5]",
    "x.gather(0, (i * 5).reshape(2, 1))",
    "x.index_select(0, i - 7)",
    "x.take_along_dim((i * 5).reshape(2, 1), 0)",
    "x.scatter(0, (i * 5).reshape(2, 1), 1.0)",
    "Tensor.ones(3, 4, device=x.device)[i * 5]",
    "x[i].cross_entropy(i * 5)",
    "(i * 5).one_hot(3)",
    "x[i * 5].relu().sum()",
    "x[2, i * 5]",
)


@pytest.mark.parametrize("line", LATE)
def test_a_computed_index_out_of_range_raises_when_it_is_used(device: str, line: str) -> None:
    scope: dict[str, Any] = {
        "Tensor": Tensor,
        "x": Tensor(np.ones((3, 4), np.float32), device=device),
        "i": Tensor([0, 1], device=device),
    }
    value = eval(line, scope)
    with pytest.raises(IndexRangeError, match=r"outside .*-\d+, \d+\)") as caught:
        value.numpy()
    place = re.search(r"used at (.*):\d+", str(caught.value))
    assert place, "the message does not name the line that used the index"
    assert not place[1].startswith(os.path.dirname(coregrad.__file__))
    with pytest.raises(IndexRangeError):  # the second reading is not a number either
        value.numpy()
    np.testing.assert_array_equal(scope["x"].numpy(), np.ones((3, 4)))


def test_a_loop_over_a_tensor_ends(device: str) -> None:
    assert [row.tolist() for row in Tensor([[1, 2], [3, 4]], device=device)] == [[1, 2], [3, 4]]


# ---- integer division ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint32", "uint64"])
def test_integer_division_by_zero_is_zero(device: str, dtype: str) -> None:
    info = np.iinfo(dtype)
    values = np.array([info.min, 0, 1, 7, info.max], dtype)
    x, zero = Tensor(values, device=device), Tensor(np.zeros(5, dtype), device=device)
    for result in (x // zero, x % zero, x // 0, x % 0, x.fmod(zero)):
        np.testing.assert_array_equal(result.numpy(), np.zeros(5))
        assert result.dtype.name == dtype
    assert x.div(zero, rounding_mode="trunc").tolist() == [0] * 5


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_the_smallest_integer_divided_by_minus_one_wraps(device: str, dtype: str) -> None:
    smallest = np.iinfo(dtype).min
    x = Tensor(np.array([smallest, 6], dtype), device=device)
    y = Tensor(np.array([-1, -1], dtype), device=device)
    assert (x // y).tolist() == [smallest, -6]
    assert (x % y).tolist() == [0, 0]


@pytest.mark.parametrize("count", [-1, 31, 32, 33, 1000])
def test_shifts_by_more_than_the_width_lose_all_bits(device: str, count: int) -> None:
    x = Tensor(np.array([1, -1], np.int32), device=device)
    n = Tensor(np.full(2, count, np.int32), device=device)
    inside = 0 <= count < 32
    assert (x << n).tolist() == ([-(2**31), -(2**31)] if inside else [0, 0])
    assert (x >> n).tolist() == ([0, -1] if inside or count < 0 or count > 31 else [1, -1])


# ---- no crash ------------------------------------------------------------------------------------


def test_no_mistake_ends_the_process() -> None:
    """All lines, one after the other, in a process of their own, which then still computes."""
    code = (
        "import sys, types\n"
        "source = open(sys.argv[1]).read()\n"
        "module = types.ModuleType('mistakes')\n"
        "sys.modules['mistakes'] = module\n"
        "exec(compile(source, sys.argv[1], 'exec'), module.__dict__)\n"
        "count = 0\n"
        "for mistake in module.MISTAKES:\n"
        "    try:\n"
        "        eval(mistake.line, module.names())\n"
        "    except mistake.error:\n"
        "        count += 1\n"
        "print(count, (module.Tensor([1.0, 2.0]) * 2).tolist())\n"
    )
    child = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code, __file__],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert child.stdout == f"{len(MISTAKES)} [2.0, 4.0]\n", child.stderr


def _junk() -> list[tuple[Any, ...]]:
    return [(), ("a",), (None,), (-1,), (1.5,), ([1, 2],), (0, 0), (1, 2, 3)]


CALLABLE = sorted(
    name
    for name in dir(Tensor)
    if not name.startswith("_") and name not in ("manual_seed", "node", "data", "grad")
)


def _refusals(name: str) -> list[Exception]:
    """What a method raises for arguments that make no sense; other exceptions pass through."""
    found: list[Exception] = []
    for shape in ((), (2, 3), (0, 3)):
        for arguments in _junk():
            try:
                member = getattr(Tensor(np.ones(shape, np.float32)), name)
                result = member(*arguments) if callable(member) else member
                if isinstance(result, Tensor):
                    result.realize()
            except (CoregradError, TypeError, ValueError, IndexError, AttributeError) as error:
                found.append(error)
    return found


@pytest.mark.parametrize("name", CALLABLE)
def test_a_method_given_nonsense_answers_or_raises_an_ordinary_error(name: str) -> None:
    with coregrad.Device("numpy"):
        for error in _refusals(name):
            assert not isinstance(error, AssertionError), error  # a VerifyError would be our bug
            assert str(error)
