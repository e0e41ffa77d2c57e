# ruff: noqa: E501 (the table has a line per mistake)
"""User mistakes: the error comes at the call, names what was given, and says what to do."""

from __future__ import annotations

import numpy as np
import pytest

import coregrad as cg
from coregrad import Device, Tensor, plugins
from coregrad.errors import (
    CoregradError,
    DeviceError,
    DTypeError,
    GradientError,
    IndexRangeError,
    ShapeError,
)


def matrix():
    return Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


LIST = [1, 2, 3]

# fmt: off
MISTAKES = {
    "shapes that do not broadcast":  (lambda: matrix() + Tensor.ones(4, 5), ShapeError, ["(2, 3)", "(4, 5)"]),
    "a string as operand":           (lambda: matrix() + "text", TypeError, ["str"]),
    "a string for a method":         (lambda: matrix().add("text"), TypeError, ["str"]),
    "a list as operand":             (lambda: matrix() + LIST, TypeError, ["list"]),
    "an int beyond the dtype":       (lambda: Tensor([1], dtype="uint8") + 256, DTypeError, ["256", "uint8"]),
    "a negative int for unsigned":   (lambda: Tensor([1], dtype="uint8") * -1, DTypeError, ["-1", "uint8"]),
    "a difference of bools":         (lambda: Tensor([True]) - Tensor([True]), DTypeError, ["sub", "bool"]),
    "a negative of bools":           (lambda: -Tensor([True]), DTypeError, ["neg", "bool"]),
    "bits of floats":                (lambda: matrix() & 1, DTypeError, ["float32"]),
    "no common integer type":        (lambda: Tensor([1]) + Tensor([1], dtype="uint64"), DTypeError, ["uint64"]),
    "a negative integer power":      (lambda: Tensor([2]) ** -1, DTypeError, ["pow", "-1"]),
    "a condition that is not bool":  (lambda: matrix().where(matrix(), 0), DTypeError, ["where", "float32"]),
    "reshape to another size":       (lambda: matrix().reshape(4), ShapeError, ["(2, 3)", "(4,)"]),
    "reshape with a wrong -1":       (lambda: matrix().reshape(4, -1), ShapeError, ["(4, -1)", "6"]),
    "reshape with two -1":           (lambda: matrix().reshape(-1, -1), ShapeError, ["-1"]),
    "permute twice the same":        (lambda: matrix().permute(0, 0), ShapeError, ["permute", "(2, 3)"]),
    "permute an axis too many":      (lambda: matrix().permute(0, 2), ShapeError, ["2", "(2, 3)"]),
    "an axis that is not there":     (lambda: matrix().unsqueeze(4), ShapeError, ["4", "(2, 3)"]),
    "an axis that is no int":        (lambda: matrix().unsqueeze(1.5), TypeError, ["1.5"]),
    "expand an axis of size 2":      (lambda: matrix().expand(3, 3), ShapeError, ["(2, 3)", "(3, 3)"]),
    "expand to fewer axes":          (lambda: matrix().expand(3), ShapeError, ["(2, 3)"]),
    "cat of other sizes":            (lambda: cg.cat([matrix(), Tensor.ones(2, 4)]), ShapeError, ["(2, 3)", "(2, 4)"]),
    "cat of nothing":                (lambda: cg.cat([]), ShapeError, ["cat"]),
    "cat of no tensors":             (lambda: cg.cat([1, 2]), TypeError, ["int"]),
    "cat of the class":              (lambda: Tensor.cat([matrix(), matrix()]), DTypeError, ["cat: list is no tensor; write coregrad.cat([a, b])"]),
    "stack of the class":            (lambda: Tensor.stack((matrix(), matrix()), dim=1), DTypeError, ["stack: tuple is no tensor; write coregrad.stack([a, b])"]),
    "meshgrid of the class":         (lambda: Tensor.meshgrid([Tensor(LIST), Tensor(LIST)]), DTypeError, ["meshgrid: list is no tensor; write coregrad.meshgrid(a, b)"]),
    "realize of the class":          (lambda: Tensor.realize([matrix()]), DTypeError, ["realize: list is no tensor; write coregrad.realize(a, b)"]),
    "where of the class":            (lambda: Tensor.where(True, matrix(), 0), DTypeError, ["where: bool is no tensor; write coregrad.where(condition, a, b)"]),
    "cat of an array":               (lambda: Tensor.cat(np.ones(3), matrix()), DTypeError, ["ndarray", "coregrad.cat([a, b])"]),
    "cat of what is no list":        (lambda: cg.cat(2.0), DTypeError, ["cat: float is no list; write coregrad.cat([a, b])"]),
    "realize of a list":             (lambda: cg.realize([matrix()]), DTypeError, ["list", "coregrad.realize(a, b)"]),
    "realize of a list, too":        (lambda: cg.realize(matrix(), [matrix()]), DTypeError, ["list", "coregrad.realize(a, b)"]),
    "broadcast_tensors of a list":   (lambda: cg.broadcast_tensors([matrix()]), DTypeError, ["list", "coregrad.broadcast_tensors(a, b)"]),
    "where of numbers only":         (lambda: cg.where(True, 1.0, 2.0), DTypeError, ["bool", "coregrad.where(Tensor(condition), a, b)"]),
    "stack of other shapes":         (lambda: cg.stack([matrix(), Tensor.ones(3)]), ShapeError, ["(2, 3)", "(3,)"]),
    "split into wrong sizes":        (lambda: matrix().split([1, 1], dim=1), ShapeError, ["3", "[1, 1]"]),
    "both dim and axis":             (lambda: matrix().flatten(start_dim=0).unsqueeze(dim=0, axis=0), TypeError, ["dim", "axis"]),
    "an odd number of paddings":     (lambda: matrix().pad((1, 2, 3)), ShapeError, ["pad", "(2, 3)"]),
    "a pad mode that is none":       (lambda: matrix().pad((1, 1), mode="mirror"), ValueError, ["mirror"]),
    "reflecting too far":            (lambda: matrix().pad((3, 0), mode="reflect"), ShapeError, ["reflect", "2"]),
    "unfold beyond the end":         (lambda: matrix().unfold(1, 4, 1), ShapeError, ["4", "3"]),
    "a slice of floats":             (lambda: matrix()[0.5:], TypeError, ["slice"]),
    "a float as index":              (lambda: matrix()[0.5], TypeError, ["float"]),
    "an index out of range":         (lambda: matrix()[5], IndexRangeError, ["5", "axis 0", "2"]),
    "an index out of axis 1":        (lambda: matrix()[:, -4], IndexRangeError, ["-4", "axis 1", "3"]),
    "too many indices":              (lambda: matrix()[0, 0, 0], IndexRangeError, ["3", "(2, 3)"]),
    "two ellipses":                  (lambda: matrix()[..., ...], IndexRangeError, ["..."]),
    "a list out of range":           (lambda: matrix()[[0, 2]], IndexRangeError, ["2", "axis 0"]),
    "a mask of another shape":       (lambda: matrix()[Tensor([True, False, True])], ShapeError, ["(3,)", "(2, 3)"]),
    "a float tensor as index":       (lambda: matrix()[Tensor([0.0])], DTypeError, ["float32"]),
    "a value that does not fit":     (lambda: matrix().__setitem__(0, Tensor.ones(2)), ShapeError, ["(2,)", "(3,)"]),
    "a number that does not fit":    (lambda: Tensor([1, 2]).__setitem__(0, 1.5), DTypeError, ["1.5", "int64"]),
    "gather of other ranks":         (lambda: matrix().gather(0, Tensor([0])), ShapeError, ["(1,)", "(2, 3)"]),
    "gather out of range":           (lambda: matrix().gather(0, Tensor([[2]])), IndexRangeError, ["2"]),
    "scatter of another dtype":      (lambda: matrix().scatter(0, Tensor([[0]]), Tensor([[1]])), DTypeError, ["int64", "float32"]),
    "assign of another shape":       (lambda: matrix().assign(Tensor.ones(3)), ShapeError, ["[3]", "[2, 3]"]),
    "assign of another dtype":       (lambda: Tensor([1.0]).assign(Tensor([1])), DTypeError, ["int64", "float32"]),
    "in place, growing":             (lambda: Tensor([1.0]).add_(matrix()), ShapeError, ["add_", "in-place"]),
    "in place, float into int":      (lambda: Tensor([1]).mul_(1.5), DTypeError, ["mul_", "float32", "int64"]),
    "a grad for integers":           (lambda: Tensor([1], requires_grad=True), DTypeError, ["int64"]),
    "backward of many elements":     (lambda: matrix().backward(), GradientError, ["(2, 3)", "gradient"]),
    "backward of integers":          (lambda: Tensor([1]).backward(), GradientError, ["int64"]),
    "backward of a constant":        (lambda: Tensor([1.0], requires_grad=False).backward(), GradientError, ["requires_grad"]),
    "a seed of another shape":       (lambda: matrix().backward(Tensor([1.0])), ShapeError, ["[1]", "[2, 3]"]),
    "an input that is not used":     (lambda: cg.grad(matrix().relu()[0, 0], [matrix()]), GradientError, ["input 0"]),
    "gelu of another kind":          (lambda: matrix().gelu("sigmoid"), ValueError, ["sigmoid"]),
    "clamp without bounds":          (lambda: matrix().clamp(), ValueError, ["clamp"]),
    "tensors on two devices":        (lambda: Tensor([1.0], device="cpu") + Tensor([1.0], device="numpy"), DeviceError, ["cpu", "numpy"]),
    "a device nobody offers":        (lambda: Tensor([1.0], device="abacus"), DeviceError, ["abacus"]),
    "a plugin that is missing":      (lambda: Device["abacus:3"], DeviceError, ["abacus"]),
}
# fmt: on


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_errors_at_the_call(name):
    call, error, words = MISTAKES[name]
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_every_error_of_ours_has_one_root():
    with pytest.raises(CoregradError):
        matrix().reshape(4)


def test_cuda_without_a_plugin_names_what_to_install():
    if any(row.name == "cuda" for row in plugins.describe()):
        pytest.skip("the plugin is installed")
    with pytest.raises(DeviceError, match="pip install coregrad-cuda"):
        Tensor([1.0]).cuda()


def test_an_index_known_only_later_names_the_line_that_used_it():
    index = Tensor([1.0, 5.0]).long() + 0
    x = matrix()[:, index]
    with pytest.raises(IndexRangeError, match=r"test_tensor_errors\.py:"):
        x.numpy()
    assert matrix()[:, index - 3].tolist() == [[2.0, 3.0], [5.0, 6.0]]
