"""Small functions of every day against float64 NumPy, and PyTorch where it is installed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numeric import check

import coregrad
from coregrad import Tensor, dtypes
from coregrad.errors import DTypeError, IndexRangeError, ShapeError
from coregrad.nn import functional

few = settings(max_examples=20, deadline=None)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def unit(x, order, axis, eps):
    return x / np.maximum(np.linalg.norm(x, order, axis, keepdims=True), eps)


# ---- sums of products --------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 4), (4,), (1, 4)], ids=str)
def test_addcmul_and_addcdiv_and_their_gradients(shape):
    a, b, c = normal(*shape), normal(3, 4, seed=1), 2 + np.abs(normal(4, seed=2))
    check(lambda x, y, z: x.addcmul(y, z, value=-2), lambda x, y, z: x - 2 * y * z, a, b, c)
    check(lambda x, y, z: x.addcdiv(y, z, value=0.5), lambda x, y, z: x + 0.5 * y / z, a, b, c)
    check(coregrad.addcmul, lambda x, y, z: x + y * z, a, b, c)


def test_integers_are_multiplied_exactly():
    x, big = Tensor([2**53]), Tensor([2**27 + 1])
    assert x.addcmul(big, big, value=3).item() == 2**53 + 3 * (2**27 + 1) ** 2
    assert x.addcdiv(Tensor([1]), Tensor([2])).dtype is dtypes.float32


def test_baddbmm_and_its_gradients():
    check(
        lambda c, x, y: c.baddbmm(x, y, beta=0.5, alpha=2),
        lambda c, x, y: 0.5 * c + 2 * x @ y,
        normal(2, 3, 5), normal(2, 3, 4, seed=1), normal(2, 4, 5, seed=2),
    )  # fmt: skip
    check(coregrad.baddbmm, lambda c, x, y: c + x @ y, normal(5), normal(2, 3, 4), normal(2, 4, 5))
    with pytest.raises(ShapeError, match="bmm"):
        Tensor(normal(3, 5)).baddbmm(Tensor(normal(3, 4)), Tensor(normal(4, 5)))


@pytest.mark.parametrize(
    ("left", "right", "dims"),
    [
        ((2, 3, 4), (3, 4, 5), 2),
        ((2, 3), (3, 4), 1),
        ((2, 3), (4,), 0),
        ((2, 3, 4), (4, 3, 5), ([1, 2], [1, 0])),
        ((2, 3, 4), (5, 2), ([0], [-1])),
        ((2, 3, 4), (2, 5), (0, 0)),
        ((3, 4), (3, 4), ([0, 1], [0, 1])),
        ((0, 3), (3, 2), 1),
    ],
    ids=str,
)
def test_tensordot_and_its_gradients(left, right, dims):
    check(
        lambda a, b: a.tensordot(b, dims), lambda a, b: np.tensordot(a, b, dims),
        normal(*left), normal(*right, seed=1),
    )  # fmt: skip


@pytest.mark.parametrize("dims", [3, -1, ([0], [0]), ([1], [0, 1]), ([1, 1], [0, 0])], ids=str)
def test_tensordot_refuses_axes_that_do_not_fit(dims):
    with pytest.raises(ShapeError, match="tensordot"):
        Tensor(normal(2, 3)).tensordot(Tensor(normal(3, 3)), dims)


def test_functions_that_were_methods_only():
    a, b = normal(4), normal(4, seed=1)
    np.testing.assert_allclose(coregrad.dot(Tensor(a), Tensor(b)).item(), a @ b, rtol=1e-5)
    np.testing.assert_array_equal(coregrad.clip(Tensor(a), -0.5, 0.5).numpy(), a.clip(-0.5, 0.5))


# ---- differences, diagonals, roots -------------------------------------------------------------


@given(
    shape=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    n=st.integers(0, 3),
    axis=st.integers(-3, 2),
    before=st.integers(0, 2),
    after=st.integers(0, 2),
)
@few
def test_diff_is_numpys(shape, n, axis, before, after):
    axis = axis % len(shape)
    values = np.random.default_rng(0).integers(-9, 9, shape)
    edges = [np.ones([k if d == axis else size for d, size in enumerate(shape)], np.int64) * 7
             for k in (before, after)]  # fmt: skip
    wide = np.concatenate([edges[0], values, edges[1]], axis)
    for _ in range(n):
        wide = np.diff(wide, axis=axis)
    got = Tensor(values).diff(n, axis, prepend=Tensor(edges[0]), append=Tensor(edges[1]))
    np.testing.assert_array_equal(got.numpy(), wide)


def test_diff_has_gradients_and_compares_bools():
    check(lambda x: x.diff(2, dim=0), lambda x: np.diff(x, 2, 0), normal(5, 2))
    flags = np.array([True, True, False, True])
    np.testing.assert_array_equal(Tensor(flags).diff().numpy(), np.diff(flags))
    with pytest.raises(ShapeError, match="diff: n is -1"):
        Tensor([1, 2]).diff(-1)


@pytest.mark.parametrize("shape", [(3, 3), (2, 4), (4, 2), (0, 3)], ids=str)
def test_trace_and_its_gradient(shape):
    check(lambda x: x.trace(), np.trace, normal(*shape))
    with pytest.raises(ShapeError, match="trace"):
        Tensor(normal(2, *shape)).trace()


IN_PLACE = {"sqrt": np.sqrt, "exp": np.exp, "neg": np.negative}


@pytest.mark.parametrize("name", IN_PLACE)
def test_functions_in_place_give_the_name_a_new_value(name):
    values = np.abs(normal(4)) + 0.1
    x = Tensor(values)
    earlier = x * 1
    assert getattr(x, f"{name}_")() is x
    np.testing.assert_allclose(x.numpy(), IN_PLACE[name](values), rtol=1e-6)
    np.testing.assert_array_equal(earlier.numpy(), values)
    check(lambda t: getattr(t * 1, f"{name}_")(), IN_PLACE[name], values)


def test_a_root_in_place_needs_a_floating_tensor():
    with pytest.raises(DTypeError, match="sqrt_"):
        Tensor([4]).sqrt_()


# ---- directions and gates ----------------------------------------------------------------------


@pytest.mark.parametrize(("order", "dim"), [(2.0, 1), (1.0, 0), (3.0, -1)])
def test_normalize_and_its_gradient(order, dim):
    check(
        lambda x: functional.normalize(x, order, dim),
        lambda x: unit(x, order, dim, 1e-12),
        normal(3, 4),
    )


def test_normalize_of_nothing_is_nothing_and_its_gradient_finite():
    x = Tensor(np.zeros((1, 3), np.float32), requires_grad=True)
    out = x.normalize(eps=0.5)
    out.sum().backward()
    assert out.tolist() == [[0.0, 0.0, 0.0]]
    assert x.grad.tolist() == [[2.0, 2.0, 2.0]]
    with pytest.raises(DTypeError, match="normalize"):
        Tensor([[1, 2]]).normalize()


@pytest.mark.parametrize(("left", "right", "dim"), [((3, 4), (3, 4), 1), ((3, 4), (4,), -1),
                                                    ((2, 1, 4), (3, 4), 0)], ids=str)  # fmt: skip
def test_cosine_similarity_and_its_gradients(left, right, dim):
    def reference(a, b):
        a, b = np.broadcast_arrays(a, b)
        return (unit(a, 2, dim, 1e-8) * unit(b, 2, dim, 1e-8)).sum(dim)

    check(
        lambda a, b: functional.cosine_similarity(a, b, dim), reference,
        normal(*left), normal(*right, seed=1),
    )  # fmt: skip


def test_cosine_similarity_of_halves_does_not_overflow():
    x = Tensor(np.full((1, 4), 300.0, np.float16))
    assert (x.cosine_similarity(-x).item(), x.cosine_similarity(x).dtype) == (-1.0, dtypes.float16)
    with pytest.raises(DTypeError, match="cosine_similarity"):
        Tensor([[1, 2]]).cosine_similarity(Tensor([[1, 2]]))
    with pytest.raises(ShapeError, match="cosine_similarity"):
        Tensor(normal(2, 3)).cosine_similarity(Tensor(normal(2, 4)))


@pytest.mark.parametrize(("shape", "dim"), [((3, 4), -1), ((4, 3), 0), ((2, 6, 1), 1)], ids=str)
def test_glu_and_its_gradient(shape, dim):
    def reference(x):
        a, b = np.split(x, 2, dim)
        return a / (1 + np.exp(-b))

    check(lambda x: functional.glu(x, dim), reference, normal(*shape))
    with pytest.raises(ShapeError, match=r"glu: axis .* 3 elements"):
        Tensor(normal(3)).glu()
    with pytest.raises(DTypeError, match="glu"):
        Tensor([1, 2]).glu()


@pytest.mark.parametrize("padding", [1, -3])
def test_an_embedding_gives_its_padding_no_gradient(padding):
    table = normal(4, 2)
    weight = Tensor(table, requires_grad=True)
    indices = np.array([[1, 2], [-3, 2]])
    found = functional.embedding(Tensor(indices), weight, padding)
    np.testing.assert_array_equal(found.numpy(), table[indices])
    found.sum().backward()
    assert weight.grad.tolist() == [[0.0, 0.0], [0.0, 0.0], [2.0, 2.0], [0.0, 0.0]]
    with pytest.raises(IndexRangeError, match="padding_idx 4"):
        functional.embedding(Tensor(indices), weight, 4)


# ---- PyTorch's own answers ---------------------------------------------------------------------

TORCH = {
    "addcmul": lambda t, f, x, y: t.addcmul(x, x, y, value=3),
    "addcdiv": lambda t, f, x, y: t.addcdiv(x, x, y + 9, value=3),
    "baddbmm": lambda t, f, x, y: t.baddbmm(x[None] @ y.T, x[None], y.T[None], beta=2, alpha=3),
    "tensordot": lambda t, f, x, y: t.tensordot(x, y, dims=([0, 1], [0, 1])),
    "diff": lambda t, f, x, y: t.diff(x, n=1, dim=0, prepend=y, append=y),
    "trace": lambda t, f, x, y: t.trace(x @ y.T),
    "cosine_similarity": lambda t, f, x, y: t.cosine_similarity(x, y),
    "F.cosine_similarity": lambda t, f, x, y: f.cosine_similarity(x, y, dim=0, eps=0.1),
    "F.normalize": lambda t, f, x, y: f.normalize(x, p=1.0, dim=-1, eps=3.0),
    "F.glu": lambda t, f, x, y: f.glu(x, dim=1) + f.glu(y),
}


@pytest.mark.parametrize("name", TORCH)
def test_names_arguments_values_and_gradients_are_pytorchs(name):
    torch = pytest.importorskip("torch")
    arrays = normal(3, 4), normal(3, 4, seed=1)
    ours = [Tensor(a, requires_grad=True) for a in arrays]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    got = TORCH[name](coregrad, functional, *ours)
    want = TORCH[name](torch, torch.nn.functional, *theirs)
    assert got.shape == tuple(want.shape)
    np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=2e-5, atol=2e-5)
    (got * got).sum().backward()
    (want * want).sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        slopes = np.zeros((3, 4)) if b.grad is None else b.grad.numpy()
        found = np.zeros((3, 4)) if a.grad is None else a.grad.numpy()
        np.testing.assert_allclose(found, slopes, rtol=2e-4, atol=2e-4)
