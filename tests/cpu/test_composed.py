"""Composed functions are one node per call, and mean what their text means."""

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coregrad import Tensor, engine, no_grad
from coregrad.api import composed as room
from coregrad.api.composed import composed
from coregrad.errors import ShapeError
from coregrad.ir import ops
from coregrad.ir.graph import toposort


@composed
def mixed(x, y, slope=2.0, double=False):
    """A softmax of a linear map, and a detached part."""
    scaled = (x * slope + y).softmax(-1)
    return scaled * y.detach() * 2 if double else scaled * y.detach()


def plain(x, y, slope=2.0, double=False):
    return mixed.__wrapped__(x, y, slope, double)


def leaves(seed=0, shape=(3, 4)):
    draw = np.random.default_rng(seed)
    arrays = [draw.normal(size=shape).astype("float32") for _ in range(2)]
    return [Tensor(a, requires_grad=True) for a in arrays]


def calls(tensor):
    return [n for n in toposort([tensor.node]) if n.op is ops.CALL]


def test_a_call_is_one_node_over_its_arguments():
    x, y = leaves()
    out = mixed(x, y)
    assert calls(out) == [out.node]
    assert out.node.src == (x.node, y.node)


@pytest.mark.parametrize("name", ["relu", "abs", "mean", "softmax"])
def test_what_most_networks_use_is_one_node_and_so_is_its_gradient(name):
    x, _ = leaves()
    out = getattr(x, name)()
    assert calls(out) == [out.node]
    out.sum().backward()
    assert len(calls(x.grad)) <= 2  # the gradient's, and the result that it may use


def test_the_value_is_that_of_the_plain_function_bit_for_bit():
    x, y = leaves()
    assert mixed(x, y).numpy().tobytes() == plain(x, y).numpy().tobytes()


def gradients(function, x, y):
    x.grad = y.grad = None
    (function(x, y) ** 2).sum().backward()
    return x.grad.numpy(), y.grad.numpy()


def test_gradients_are_those_of_the_plain_function():
    x, y = leaves()
    for got, want in zip(gradients(mixed, x, y), gradients(plain, x, y), strict=True):
        np.testing.assert_array_equal(got, want)
    assert np.abs(gradients(mixed, x, y)[1]).max() > 0


def test_no_gradient_passes_a_detach_inside():
    @composed
    def product(a, b):
        return a * b.detach()

    x, y = leaves()
    product(x, y).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.numpy())
    assert not y.grad.numpy().any()


def test_gradients_of_gradients_pass_through_calls():
    x = Tensor([0.3, -0.7], requires_grad=True)
    x.tanh().sum().backward(create_graph=True)
    first, x.grad = x.grad, None
    first.sum().backward()
    t = np.tanh(np.array([0.3, -0.7]))
    np.testing.assert_allclose(x.grad.numpy(), -2 * t * (1 - t * t), rtol=1e-5)


@given(st.sampled_from([0.0, -0.0, 1.0, 2.5]), st.sampled_from([True, 1, 1.0]))
def test_arguments_that_compare_equal_are_told_apart(slope, factor):
    @composed
    def ratio(x, a, b):
        kind = {bool: 1.0, int: 2.0, float: 3.0}[type(b)]
        return (x * a).reciprocal() * kind

    x = Tensor([4.0])
    with np.errstate(divide="ignore"):
        want = np.float32({bool: 1.0, int: 2.0, float: 3.0}[type(factor)]) / np.float32(4 * slope)
    for _ in range(2):
        assert ratio(x, slope, factor).item() == pytest.approx(want)
        assert ratio(x, -slope, factor).item() == pytest.approx(-want)


def test_shapes_and_dtypes_have_formulas_of_their_own():
    for shape in ((2,), (3,), (2, 3)):
        for dtype in ("float32", "float64"):
            data = np.linspace(-1, 1, np.prod(shape)).reshape(shape).astype(dtype)
            np.testing.assert_allclose(Tensor(data).tanh().numpy(), np.tanh(data), rtol=1e-6)


def test_several_results_use_only_what_each_needs():
    @composed
    def pair(a, b):
        return a + 1, a * b

    x, y = leaves()
    first, second = pair(x, y)
    assert first.node.src == (x.node,)
    assert second.node.src == (x.node, y.node)
    np.testing.assert_array_equal(first.numpy(), x.numpy() + 1)
    np.testing.assert_array_equal(second.numpy(), x.numpy() * y.numpy())


def test_an_argument_that_is_returned_comes_back():
    @composed
    def same(a):
        return a

    (x, _) = leaves()
    assert same(x).node is x.node


def test_a_mistake_raises_at_every_call():
    for _ in range(2):
        with pytest.raises(ShapeError, match="linear"):
            Tensor.ones(2, 3).linear(Tensor.ones(4, 5))


def test_a_function_with_values_of_its_own_is_no_formula_and_stays_right():
    outside = Tensor([1.0, 2.0])

    @composed
    def captured(x):
        return x + outside

    x = Tensor([10.0, 20.0])
    assert captured(x).tolist() == [11.0, 22.0]
    outside.assign(Tensor([5.0, 6.0]))
    assert captured(x).tolist() == [15.0, 26.0]


@pytest.mark.parametrize("target", [2.0, 3, (1.0, 4.0), [1.0, 4.0], np.array([1.0, 4.0])], ids=str)
def test_a_loss_takes_targets_that_are_no_tensors(target):
    x = Tensor([1.0, 3.0])
    for _ in range(2):
        want = np.mean((np.array([1.0, 3.0]) - np.asarray(target)) ** 2)
        if np.ndim(target):
            assert x.mse_loss(target).item() == pytest.approx(want)
        else:
            with pytest.raises(ShapeError):
                x.mse_loss(target)


def test_attention_draws_new_dropout_each_time():
    q = Tensor.ones(1, 8, 4)
    a, b = (q.scaled_dot_product_attention(q, q, dropout_p=0.5).numpy() for _ in range(2))
    assert (a != b).any()


def test_a_known_result_is_not_computed_again_for_its_gradient():
    x = Tensor(np.linspace(0.1, 0.9, 8, dtype="float32"), requires_grad=True)
    y = x.softmax(0)
    y.realize()
    (y * y).sum().backward()
    nodes = toposort([x.grad.node])
    assert not any(n.op is ops.EXP for n in nodes)
    s = y.numpy().astype("float64")
    np.testing.assert_allclose(x.grad.numpy(), s * (2 * s - 2 * (s * s).sum()), rtol=1e-5)


def test_a_gradients_own_rule_is_part_of_the_formula_whoever_calls_first():
    plane = np.zeros((1, 1, 2, 2), "float32")
    with no_grad():
        Tensor(plane, requires_grad=True).max_pool2d()
    Tensor(plane, requires_grad=False).max_pool2d()
    x = Tensor(plane, requires_grad=True)
    x.max_pool2d().sum().backward()  # to the first of equals, not in parts to all
    assert x.grad.tolist() == [[[[1.0, 0.0], [0.0, 0.0]]]]


def test_without_gradients_a_call_keeps_no_history():
    x, y = leaves()
    with no_grad():
        out = mixed(x, y)
    assert out.requires_grad is False


def test_tensors_that_share_work_with_a_call_are_computed_along():
    weight = Tensor(np.ones((64, 64), "float32"))
    h = Tensor(np.ones((64, 64), "float32")).linear(weight)
    out = h.relu().sum()
    out.item()
    assert engine.resolve(h.node).op is ops.BUFFER


def test_formulas_are_forgotten_when_there_are_many(monkeypatch):
    monkeypatch.setattr(room, "FORMULAS", len(room._traced) + 2)
    for n in range(1, 8):
        assert Tensor.ones(n).tanh().shape == (n,)
    gc.collect()
    assert len(room._traced) <= room.FORMULAS


@composed
def divided(x, scales):
    return x / scales[0]


def test_a_tuple_of_floats_is_told_apart_from_its_equal():
    """0.0 equals -0.0, and has the same hash."""
    x = Tensor([1.0])
    assert divided(x, (0.0,)).item() != divided(x, (-0.0,)).item()
