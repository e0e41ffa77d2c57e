"""Gradients as a user sees them: who receives one, hooks, modes, grad(), custom functions."""

from __future__ import annotations

import gc
import math
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coregrad as cg
from coregrad import Function, Tensor, grad, no_grad, value_and_grad
from coregrad.errors import DTypeError, GradientError
from coregrad.ir import ops
from coregrad.ir.graph import toposort


def leaf(*values):
    return Tensor(list(values), requires_grad=True)


# ---- who receives a gradient ---------------------------------------------------------------------


def test_only_tensors_that_say_true_receive_one_if_there_are_any():
    w, x, y = leaf(1.0, 2.0), Tensor([3.0, 4.0]), Tensor([5.0, 6.0], requires_grad=False)
    (w * x * y).sum().backward()
    assert w.grad.tolist() == [15, 24]
    assert x.grad is None
    assert y.grad is None


def test_without_any_all_floating_leaves_that_do_not_say_false_receive_one():
    w, x, y = Tensor([1.0, 2.0]), Tensor.ones(2), Tensor([5.0, 6.0], requires_grad=False)
    n = Tensor([1, 2])
    (w * x * y * n).sum().backward()
    assert w.grad.tolist() == [5, 12]
    assert x.grad.tolist() == [5, 24]
    assert y.grad is None
    assert n.grad is None


def test_a_clone_is_a_leaf_of_its_own_and_passes_gradients_on():
    a = Tensor.eye(2)
    b = a.clone()
    (b * b).sum().backward()
    assert a.grad.tolist() == b.grad.tolist() == [[2, 0], [0, 2]]
    w = leaf(3.0)
    (w.clone() * 2).sum().backward()
    assert w.grad.tolist() == [2]


def test_two_leaves_of_one_value_are_two_leaves():
    a, b = leaf(2.0), leaf(2.0)
    (a * b * b).sum().backward()
    assert (a.grad.item(), b.grad.item()) == (4, 8)
    x, y = Tensor(3.0, requires_grad=True), Tensor(3.0, requires_grad=True)
    (x * y + x).backward()
    assert (x.grad.item(), y.grad.item()) == (4, 3)


def test_gradients_accumulate_until_they_are_cleared():
    w = leaf(1.0, 2.0)
    kept = []
    for i in (1, 2, 3):
        (w * w).sum().backward()
        kept.append(w.grad)
        assert w.grad.tolist() == [2 * i, 4 * i]
    assert kept[0].tolist() == [2, 4]  # Law 1: the old gradient is a value
    w.zero_grad()
    assert w.grad is None


def test_a_gradient_has_no_history_unless_asked():
    w = leaf(2.0)
    (w * w * w).sum().backward()
    assert w.grad.requires_grad is False
    w.grad = None
    (w * w * w).sum().backward(create_graph=True)
    assert w.grad.requires_grad is True
    first = w.grad
    w.grad = None
    first.sum().backward()
    assert w.grad.tolist() == [12.0]


def test_a_seed_weighs_the_elements():
    w = leaf(1.0, 2.0)
    (w * 3).backward(Tensor([1.0, 10.0]))
    assert w.grad.tolist() == [3, 30]
    w.grad = None
    (w[0] * 3).backward()
    assert w.grad.tolist() == [3, 0]


def test_leaves_that_are_gone_cost_nothing():
    def model():
        return Tensor([2.0]) * leaf(3.0)

    with pytest.raises(GradientError, match="gone"):
        model().sum().backward()


def test_a_gradient_that_is_zero_everywhere_is_zeros():
    w = leaf(1.5, 2.5)
    (w.floor() + w * 0).sum().backward()
    assert w.grad.tolist() == [0, 0]


def test_integers_take_no_gradient():
    with pytest.raises(DTypeError, match="int64"):
        Tensor([1, 2]).requires_grad_()
    w = leaf(1.7)
    assert (w > 1).requires_grad is False
    assert w.long().requires_grad is False
    assert w.half().requires_grad is True


def test_the_flag_of_results():
    w, x, y = leaf(1.0), Tensor([1.0]), Tensor([1.0], requires_grad=False)
    assert (w * x).requires_grad is True
    assert (x * y).requires_grad is None
    assert (y * 2).requires_grad is False
    assert (w.is_leaf, (w * 2).is_leaf, w.detach().is_leaf) == (True, False, True)


def test_flags_can_be_changed_for_what_is_built_later():
    w = Tensor([2.0])
    before = w * w
    w.requires_grad_()
    (w * 5).sum().backward()
    assert w.grad.tolist() == [5]
    with pytest.raises(GradientError):
        before.sum().backward()
    w.requires_grad = False
    assert (w * 5).requires_grad is False
    with pytest.raises(GradientError, match="detach"):
        (leaf(1.0) * 2).requires_grad_(False)


def test_a_long_chain_is_not_recursed_over():
    w = leaf(1.0)
    y = w
    for _ in range(10_000):
        y = y + 0.0001 * w
    y.sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), [2.0], rtol=1e-3)


def test_reading_a_value_does_not_cut_its_gradient():
    w = leaf(2.0, 3.0)
    h = w * w
    loss = h.sum()
    assert loss.item() == 13
    assert h.realize().tolist() == [4, 9]
    loss.backward()
    assert w.grad.tolist() == [4, 6]


# ---- modes, detach, hooks ------------------------------------------------------------------------


def test_no_grad_as_context_and_decorator():
    w = leaf(2.0)

    @no_grad()
    def double(x):
        return x * 2

    with no_grad():
        y = w * 3
        with cg.enable_grad():
            z = w * 3
        with cg.set_grad_enabled(False):
            assert not cg.is_grad_enabled()
    assert cg.is_grad_enabled()
    assert (y.requires_grad, z.requires_grad, double(w).requires_grad) == (False, True, False)
    (w * y * double(w)).sum().backward()
    assert w.grad.tolist() == [24]


def test_no_grad_is_undone_by_an_exception():
    with pytest.raises(RuntimeError), cg.inference_mode():
        raise RuntimeError
    assert cg.is_grad_enabled()


def test_detach_cuts_the_gradient_and_keeps_the_value():
    a, b = leaf(2.0), leaf(3.0)
    p = a * b
    (p * p.detach() + a).sum().backward()
    assert (a.grad.item(), b.grad.item()) == (19, 12)


def test_hooks_see_and_replace_gradients():
    w, seen = leaf(1.0, 2.0), []
    remove = w.register_hook(lambda g: seen.append(g.tolist()))
    w.register_hook(lambda g: g.clamp(max=3))
    (w * w).sum().backward()
    assert seen == [[2, 4]]
    assert w.grad.tolist() == [2, 3]
    remove()
    (w * w).sum().backward()
    assert seen == [[2, 4]]
    with pytest.raises(GradientError, match="register_hook"):
        (w * 2).register_hook(print)
    w.register_hook(lambda g: g.sum())
    with pytest.raises(GradientError, match="hook"):
        (w * w).sum().backward()


# ---- in place ------------------------------------------------------------------------------------


def test_parameters_move_under_no_grad_and_stay_leaves():
    w = leaf(1.0, 2.0)
    for _ in range(3):
        (w * w).sum().backward()
        with no_grad():
            w -= 0.25 * w.grad
        w.grad = None
    np.testing.assert_allclose(w.numpy(), [0.125, 0.25])
    assert (w.requires_grad, w.is_leaf) == (True, True)


def test_parameters_that_say_nothing_move_without_no_grad():
    w = Tensor([1.0, 2.0])
    for _ in range(2):
        (w * w).sum().backward()
        w.assign(w - 0.25 * w.grad)
        w.grad = None
        (w * w).sum().backward()
        w -= 0.25 * w.grad
        w.grad = None
    np.testing.assert_allclose(w.numpy(), [1 / 16, 1 / 8])


def test_working_in_place_on_a_parameter_is_an_error():
    w = leaf(1.0)
    for change in (lambda: w.add_(1), lambda: w.__setitem__(0, 5.0), w.zero_):
        with pytest.raises(GradientError, match="no_grad"):
            change()
    assert w.tolist() == [1]


def test_in_place_results_are_differentiable():
    w, x = leaf(2.0, 3.0), Tensor.zeros(2)
    x += w * w
    x[0] = 5 * w[1]
    x.mul_(10)
    x.sum().backward()
    assert w.grad.tolist() == [0, 50 + 60]
    assert x.grad is None


def test_old_expressions_keep_the_old_value_and_its_gradient():
    w = leaf(3.0)
    loss = (w * w).sum()
    with no_grad():
        w.fill_(100)
    loss.backward()
    assert w.grad.tolist() == [6]


# ---- grad() --------------------------------------------------------------------------------------


def test_grad_of_a_function_can_be_taken_again():
    f = lambda x: (x**4).sum()  # noqa: E731
    x = Tensor(1.5)
    for order, want in ((1, 4 * 1.5**3), (2, 12 * 1.5**2), (3, 24 * 1.5), (4, 24.0)):
        g = f
        for _ in range(order):
            g = grad(g)
        assert g(x).item() == pytest.approx(want, rel=1e-5)
    assert x.grad is None


def test_grad_for_several_arguments_and_numbers():
    def f(a, b, scale):
        return (a * b * b).sum() * scale

    a, b = Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
    da, db = grad(f, argnums=(0, 1))(a, b, 10)
    assert (da.tolist(), db.tolist()) == ([90, 160], [60, 160])
    assert grad(f, 1)(a, b, scale=1).tolist() == [6, 16]
    value, slope = value_and_grad(lambda x: x * x)(3.0)
    assert (value.item(), slope.item()) == (9, 6)
    assert grad(lambda x, y: (y * 2).sum())(a, b).tolist() == [0, 0]
    with no_grad():
        assert grad(lambda x: (x * x).sum())(a).tolist() == [2, 4]


def test_grad_mixes_with_backward():
    w = leaf(2.0)
    slope = grad(lambda x: (x * x * w).sum())(Tensor([3.0]))
    slope.sum().backward()
    assert w.grad.tolist() == [6]


def test_grad_of_tensors_leaves_dot_grad_alone():
    x, y = leaf(2.0), leaf(3.0)
    h = x * y
    out = h * h
    dx, dh = grad(out.sum(), [x, h])
    assert (dx.tolist(), dh.tolist()) == ([36], [12])
    assert x.grad is None
    assert dx.requires_grad is False
    (ddx,) = grad(grad(out.sum(), x, create_graph=True)[0].sum(), [x])
    assert ddx.tolist() == [18]
    assert grad(out, x, grad_outputs=Tensor([2.0]))[0].tolist() == [72]
    assert grad([out, h], [y], grad_outputs=[None, Tensor([1.0])])[0].tolist() == [24 + 2]
    assert grad(h.sum(), [x, leaf(1.0)], allow_unused=True)[1] is None


def test_grad_names_what_is_wrong():
    with pytest.raises(GradientError, match="str"):
        grad(lambda x: "text")(Tensor(1.0))
    with pytest.raises(GradientError, match="int64"):
        grad(lambda x: x.sum())(Tensor([1]))
    with pytest.raises(GradientError, match=r"\(2,\)"):
        grad(lambda x: x * 2)(Tensor([1.0, 2.0]))
    with pytest.raises(GradientError, match="2 grad_outputs"):
        grad(leaf(1.0), leaf(1.0), grad_outputs=[None, None])


# ---- second order --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "second"),
    [
        ("exp", math.exp),
        ("log", lambda x: -1 / x**2),
        ("tanh", lambda x: -2 * math.tanh(x) / math.cosh(x) ** 2),
        ("sigmoid", lambda x: (s := 1 / (1 + math.exp(-x))) * (1 - s) * (1 - 2 * s)),
        ("sqrt", lambda x: -0.25 * x**-1.5),
        ("rsqrt", lambda x: 0.75 * x**-2.5),
        ("sin", lambda x: -math.sin(x)),
        ("log1p", lambda x: -1 / (1 + x) ** 2),
        ("expm1", math.exp),
        ("reciprocal", lambda x: 2 / x**3),
        ("erf", lambda x: -4 * x * math.exp(-x * x) / math.sqrt(math.pi)),
        ("exp2", lambda x: math.log(2) ** 2 * 2**x),
        ("atan", lambda x: -2 * x / (1 + x * x) ** 2),
        ("cosh", math.cosh),
        ("relu", lambda x: 0.0),
        ("gelu", lambda x: (2 - x * x) * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)),
    ],
)
def test_second_derivatives(name, second):
    for at in (0.3, 1.0, 2.0):
        got = grad(grad(lambda x: getattr(x, name)()))(Tensor(at, dtype="float64")).item()
        assert got == pytest.approx(second(at), rel=1e-9, abs=1e-12)


def test_second_derivatives_of_powers_in_both_arguments():
    x, y = Tensor(1.7, dtype="float64"), Tensor(2.3, dtype="float64")
    f = lambda a, b: a**b  # noqa: E731
    assert grad(grad(f))(x, y).item() == pytest.approx(2.3 * 1.3 * 1.7**0.3, rel=1e-9)
    assert grad(grad(f, 1), 1)(x, y).item() == pytest.approx(
        1.7**2.3 * math.log(1.7) ** 2, rel=1e-9
    )
    mixed = 1.7**1.3 * (1 + 2.3 * math.log(1.7))
    assert grad(grad(f), 1)(x, y).item() == pytest.approx(mixed, rel=1e-9)
    assert grad(grad(f, 1))(x, y).item() == pytest.approx(mixed, rel=1e-9)


# ---- custom functions ----------------------------------------------------------------------------


class Cube(Function):
    def forward(self, x):
        self.x = x
        return x * x * x

    def backward(self, gradient):
        return gradient * 3 * self.x * self.x


class Exp(Function):
    @staticmethod
    def forward(ctx, x):
        out = x.exp()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, gradient):
        (out,) = ctx.saved_tensors
        return gradient * out


class KeepsItsResult(Function):
    def forward(self, x):
        self.out = x.exp()
        return self.out

    def backward(self, gradient):
        return gradient * self.out


@pytest.mark.parametrize("function", [Exp, KeepsItsResult])
def test_a_saved_result_works_to_any_order(function):
    g = function.apply
    for _ in range(3):
        assert g(Tensor(0.5)).item() == pytest.approx(math.exp(0.5), rel=1e-5)
        g = grad(g)


def test_an_instance_style_function_works_to_any_order():
    assert Cube.apply(Tensor(2.0)).item() == 8
    assert grad(Cube.apply)(Tensor(2.0)).item() == 12
    assert grad(grad(Cube.apply))(Tensor(2.0)).item() == 12
    w = leaf(1.0, 2.0)
    Cube.apply(w * 2).sum().backward()
    assert w.grad.tolist() == [24, 96]


class Affine(Function):
    @staticmethod
    def forward(ctx, x, weight, power, label):
        ctx.save_for_backward(x, weight)
        ctx.power = power
        assert label == "text"
        return (x * weight) ** power, x + weight

    @staticmethod
    def backward(ctx, g, h):
        x, weight = ctx.saved_tensors
        assert ctx.needs_input_grad == (True, True, False, False)
        inner = g * ctx.power * (x * weight) ** (ctx.power - 1)
        return inner * weight + h, inner * x + h, None, None


def test_several_arguments_and_results():
    x, w = leaf(2.0), leaf(3.0)
    a, b = Affine.apply(x, w, 2, "text")
    (a + 10 * b).sum().backward()
    assert (x.grad.item(), w.grad.item()) == (2 * 6 * 3 + 10, 2 * 6 * 2 + 10)
    x.grad = w.grad = None
    Affine.apply(x, w, 2, "text")[1].sum().backward()
    assert (x.grad.item(), w.grad.item()) == (1, 1)


def test_a_custom_function_does_not_keep_its_results_alive():
    w = leaf(1.0)
    out = KeepsItsResult.apply(w)
    gone = weakref.ref(out.node)
    gc.collect()
    gc.disable()
    try:
        del out
        assert gone() is None
    finally:
        gc.enable()


def test_wrong_gradients_are_named():
    class TooMany(Function):
        def forward(self, x):
            return x * 1

        def backward(self, gradient):
            return gradient, gradient

    class Misshapen(TooMany):
        def backward(self, gradient):
            return gradient.sum()

    class NoTensor(TooMany):
        def forward(self, x):
            return 1.0

    w = leaf(1.0, 2.0)
    with pytest.raises(GradientError, match=r"TooMany.*2 gradients for 1 argument"):
        TooMany.apply(w).sum().backward()
    with pytest.raises(GradientError, match=r"\(2,\)"):
        Misshapen.apply(w).sum().backward()
    with pytest.raises(TypeError, match="NoTensor"):
        NoTensor.apply(leaf(1.0))
    with pytest.raises(NotImplementedError, match="forward"):
        Function.apply(leaf(1.0))


# ---- many parts of one tensor --------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(
    axis=st.integers(0, 1),
    parts=st.lists(st.tuples(st.integers(0, 11), st.integers(1, 4)), min_size=1, max_size=12),
    computed=st.booleans(),
    whole=st.booleans(),
)
def test_the_gradient_of_many_parts_is_the_sum_of_theirs(axis, parts, computed, whole):
    """Parts that lie apart, that meet, that overlap, and that are taken twice."""
    x = Tensor(np.ones((16, 16), np.float32), requires_grad=True)
    source = x * 2 if computed else x
    loss, wanted = Tensor(0.0), np.zeros((16, 16))
    for number, (start, length) in enumerate(parts, 1):
        key = (slice(None),) * axis + (slice(start, start + length),)
        loss = loss + (source[key] * number).sum()
        wanted[key] += number * (2 if computed else 1)
    if whole:
        loss, wanted = loss + (source * 0.5).sum(), wanted + 0.5 * (2 if computed else 1)
    loss.backward()
    np.testing.assert_array_equal(x.grad.numpy(), wanted)


@pytest.mark.parametrize("computed", [False, True])
def test_the_gradients_of_many_parts_are_put_side_by_side(computed):
    """Each padded to full length, they would take a time that grows with the square."""
    x = Tensor(np.ones((40, 4), np.float32), requires_grad=True).realize()
    rows = (x.exp() if computed else x).unbind(0)
    total = sum((row * row).sum() for row in rows[::-1])
    (gradient,) = grad(total, [x])
    ops_used = [node.op for node in toposort([gradient.node])]
    assert ops.CAT in ops_used
    assert ops.PAD not in ops_used
    assert ops.UPDATE not in ops_used
    e = np.exp(1) if computed else 1.0
    np.testing.assert_allclose(gradient.numpy(), np.full((40, 4), 2 * e * e), rtol=1e-6)
