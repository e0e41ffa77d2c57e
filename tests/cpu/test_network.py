"""Products, convolutions, pooling, normalisation, losses and attention against float64 NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numeric import check, convolution, pool_counts, pooled

from coregrad import Tensor, dtypes
from coregrad.errors import CoregradError, DTypeError, IndexRangeError, ShapeError

INF = math.inf
few = settings(max_examples=25, deadline=None)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integers(*shape, seed=0):
    return np.random.default_rng(seed).integers(-4, 5, shape)


# ---- products ----------------------------------------------------------------------------------

RANKS = [
    ((4,), (4,)),
    ((4,), (4, 3)),
    ((2, 4), (4,)),
    ((2, 4), (4, 3)),
    ((5, 2, 4), (4,)),
    ((4,), (5, 4, 3)),
    ((5, 2, 4), (5, 4, 3)),
    ((5, 1, 2, 4), (3, 4, 2)),
    ((1, 1), (1, 1)),
]


@pytest.mark.parametrize(("left", "right"), RANKS, ids=str)
def test_matmul_of_all_ranks_and_its_gradients(left, right):
    check(lambda a, b: a @ b, lambda a, b: a @ b, normal(*left), normal(*right, seed=1))


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
@pytest.mark.parametrize(("left", "right"), RANKS, ids=str)
def test_matmul_of_integers_is_exact_and_wraps(left, right, dtype):
    a, b = integers(*left).astype(dtype), integers(*right, seed=1).astype(dtype)
    got = (Tensor(a) @ Tensor(b)).numpy()
    np.testing.assert_array_equal(got, a @ b)
    assert got.dtype == dtype


@given(m=st.integers(0, 9), n=st.integers(0, 9), k=st.integers(0, 40), transposed=st.booleans())
@few
def test_matmul_of_any_size_and_of_transposed_operands(m, n, k, transposed):
    a, b = integers(m, k).astype(np.float32), integers(k, n, seed=2).astype(np.float32)
    right = Tensor(np.ascontiguousarray(b.T)).T if transposed else Tensor(b)
    np.testing.assert_array_equal((Tensor(a) @ right).numpy(), a @ b)


def test_matmul_of_halves_sums_in_float32():
    ones = Tensor(np.full((1, 4096), 1.0, np.float16))
    tenth = Tensor(np.full((4096, 1), 0.1, np.float16))
    assert (ones @ tenth).item() == np.float16(4096 * np.float64(np.float16(0.1)))
    big = Tensor(np.full((1, 2), 300.0, np.float16))
    difference = Tensor(np.array([[300.0], [-300.0]], np.float16))
    assert (big @ difference).item() == 0.0  # 300 * 300 alone is beyond float16


def test_matmul_that_does_not_fit_names_both_shapes():
    with pytest.raises(ShapeError, match=r"\(2, 3\) and \(4, 5\)"):
        Tensor(normal(2, 3)) @ Tensor(normal(4, 5))
    with pytest.raises(ShapeError, match="matmul"):
        Tensor(1.0) @ Tensor(normal(2))
    with pytest.raises(DTypeError, match=r"matmul: bools"):
        Tensor([[True]]) @ Tensor([[True]])
    with pytest.raises(ShapeError, match="broadcast"):
        Tensor(normal(2, 3, 4)) @ Tensor(normal(3, 4, 5))


def test_matmul_takes_host_data_on_either_side():
    a, b = normal(2, 3), normal(3, 2)
    np.testing.assert_allclose((Tensor(a) @ b).numpy(), a @ b, rtol=1e-5)
    left = a @ Tensor(b)
    assert isinstance(left, Tensor)
    np.testing.assert_allclose(left.numpy(), a @ b, rtol=1e-5)
    assert Tensor([1.0, 2.0]).matmul([3.0, 4.0]).item() == 11.0


def test_the_other_products():
    a, b = normal(3, 2, 4), normal(3, 4, 5, seed=1)
    check(lambda x, y: x.bmm(y), lambda x, y: x @ y, a, b)
    check(lambda x, y: x.outer(y), np.outer, normal(3), normal(2, seed=1))
    check(
        lambda c, x, y: c.addmm(x, y, beta=0.5, alpha=2),
        lambda c, x, y: 0.5 * c + 2 * (x @ y),
        normal(2, 3), normal(2, 4, seed=1), normal(4, 3, seed=2),
    )  # fmt: skip
    check(
        lambda x, w, c: x.linear(w, c),
        lambda x, w, c: x @ w.T + c,
        normal(2, 3, 4), normal(5, 4, seed=1), normal(5, seed=2),
    )  # fmt: skip
    assert Tensor(normal(4)).linear(Tensor(normal(5, 4))).shape == (5,)
    with pytest.raises(ShapeError, match=r"linear.*\(2, 3\).*\(5, 4\)"):
        Tensor(normal(2, 3)).linear(Tensor(normal(5, 4)))
    with pytest.raises(ShapeError, match="bmm"):
        Tensor(normal(2, 3)).bmm(Tensor(normal(3, 2)))
    with pytest.raises(ShapeError, match="outer"):
        Tensor(normal(2, 3)).outer(Tensor(normal(3)))


FORMULAS = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("...ij,...jk->...ik", (1, 2, 6), (3, 6, 4)),
    ("...ij,...jk->...ik", (5, 2, 6), (1, 6, 4)),
    ("...ij,...j->...i", (3, 1, 2, 5), (3, 6, 5)),
    ("ii->i", (4, 4)),
    ("ii", (4, 4)),
    ("abab->ba", (2, 3, 2, 3)),
    ("bii->b", (2, 3, 3)),
    ("ba", (3, 4)),
    ("ij->", (3, 4)),
    ("i...->...", (3, 4, 2)),
    ("i,j,k->kji", (2,), (3,), (4,)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
    ("a,ab,abc->abc", (2,), (2, 3), (2, 3, 4)),
    ("ij,ij->", (3, 4), (3, 4)),
    ("ab,cd->", (2, 3), (4, 5)),
]


@pytest.mark.parametrize(("formula", "shapes"), [(f, s) for f, *s in FORMULAS], ids=str)
def test_einsum_agrees_with_numpy(formula, shapes):
    arrays = [normal(*s, seed=i) for i, s in enumerate(shapes)]
    check(lambda *t: Tensor.einsum(formula, *t), lambda *a: np.einsum(formula, *a), *arrays)


def test_einsum_broadcasts_axes_of_size_1_and_sums_over_nothing():
    a, b = normal(1, 2, 6), normal(3, 6, 4)
    got = Tensor.einsum("bij,bjk->bik", Tensor(a), Tensor(b)).numpy()
    np.testing.assert_allclose(got, a @ b, rtol=1e-5, atol=1e-6)
    empty = Tensor.einsum("ij,jk->ik", Tensor(normal(2, 0)), Tensor(normal(0, 3)))
    assert empty.tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize(
    ("formula", "shapes", "message"),
    [
        ("ij,jk->ik", [(2, 3)], "2 operands, 1"),
        ("ij->ik", [(2, 3)], "'k' stands in the result"),
        ("ijk->i", [(2, 3)], "does not name the 2 axes"),
        ("ij,jk->ik", [(2, 3), (4, 5)], "both 3 and 4"),
        ("ii->i", [(2, 3)], "both 2 and 3"),
        ("ij->ii", [(2, 3)], "twice"),
        ("i1->i", [(2, 3)], "does not name"),
    ],
)
def test_einsum_says_what_does_not_fit(formula, shapes, message):
    with pytest.raises(ShapeError, match=message):
        Tensor.einsum(formula, *(Tensor(normal(*s)) for s in shapes))


def test_sequential_calls_one_after_the_other():
    assert Tensor([-1.0, 2.0]).sequential([Tensor.relu, lambda x: x * 3]).tolist() == [0.0, 6.0]


# ---- convolution -------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dilation", [1, (2, 1)], ids=str)
@pytest.mark.parametrize("padding", [0, 1, (1, 2)], ids=str)
@pytest.mark.parametrize("stride", [1, 2, (2, 1)], ids=str)
def test_conv2d_and_its_gradients(stride, padding, dilation, groups):
    steps, pads, gaps = ((v, v) if isinstance(v, int) else v for v in (stride, padding, dilation))
    check(
        lambda x, w, b: x.conv2d(w, b, stride, padding, dilation, groups),
        lambda x, w, b: (
            convolution(x, w, steps, [(p, p) for p in pads], gaps, groups) + b[:, None, None]
        ),
        normal(2, 2, 5, 4), normal(2, 2 // groups, 2, 3 if gaps[1] == 1 else 2, seed=1),
        normal(2, seed=2),
    )  # fmt: skip


def test_same_padding_keeps_the_size_and_puts_the_odd_element_last():
    x, w = normal(1, 1, 4, 5), normal(1, 1, 2, 3, seed=1)
    got = Tensor(x).conv2d(Tensor(w), padding="same").numpy()
    np.testing.assert_allclose(
        got, convolution(x, w, (1, 1), [(0, 1), (1, 1)], (1, 1), 1), rtol=1e-4, atol=1e-5
    )
    assert Tensor(x).conv2d(Tensor(w), padding="valid").shape == (1, 1, 3, 3)
    with pytest.raises(ShapeError, match="stride 1"):
        Tensor(x).conv2d(Tensor(w), stride=2, padding="same")
    with pytest.raises(ShapeError, match="'full'"):
        Tensor(x).conv2d(Tensor(w), padding="full")


def test_conv1d_and_inputs_without_a_batch_axis():
    x, w = normal(2, 3, 8), normal(4, 3, 3, seed=1)
    want = convolution(x[:, :, None], w[:, :, None], (1, 2), [(0, 0), (1, 1)], (1, 1), 1)[:, :, 0]
    np.testing.assert_allclose(
        Tensor(x).conv1d(Tensor(w), stride=2, padding=1).numpy(), want, rtol=1e-4, atol=1e-5
    )
    single = Tensor(x[0]).conv1d(Tensor(w), stride=2, padding=1).numpy()
    np.testing.assert_allclose(single, want[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "w", "options", "message"),
    [
        ((1, 3, 5, 5), (2, 4, 3, 3), {}, r"\(1, 3, 5, 5\).*\(2, 4, 3, 3\)"),
        ((1, 4, 5, 5), (3, 2, 3, 3), {"groups": 2}, "2 groups"),
        ((1, 3, 2, 5), (2, 3, 3, 3), {}, r"spans \(3, 3\)"),
        ((5, 5), (2, 3, 3, 3), {}, "axes"),
        ((1, 3, 5, 5), (2, 3, 3, 3), {"stride": 0}, "stride 0"),
        ((1, 3, 5, 5), (2, 3, 3, 3), {"padding": (1, 2, 3)}, "padding"),
        ((1, 3, 5, 5), (2, 3, 3, 3), {"bias": (3,)}, r"bias of shape \(3,\)"),
    ],
)
def test_convolutions_that_do_not_fit_say_so(x, w, options, message):
    if "bias" in options:
        options = {"bias": Tensor(normal(*options["bias"]))}
    with pytest.raises(ShapeError, match=message):
        Tensor(normal(*x)).conv2d(Tensor(normal(*w)), **options)


@pytest.mark.parametrize(
    ("stride", "padding", "extra", "groups", "dilation"),
    [
        (1, 0, 0, 1, 1),
        (2, 0, 0, 1, 1),
        (2, 1, 1, 1, 1),
        (2, 0, 1, 2, 1),
        (3, 2, 2, 2, 1),
        (1, 1, 0, 1, 2),
    ],
)
def test_the_transposed_convolution_is_the_adjoint(stride, padding, extra, groups, dilation):
    """<conv(y), x> = <y, conv_transpose(x)> for the weight with its channels swapped, for all y."""
    x, w = normal(2, 2, 3, 4), normal(2, 4 // groups, 3, 2, seed=1)
    got = Tensor(x).conv_transpose2d(
        Tensor(w), None, stride, padding, extra, groups, dilation
    ).numpy()  # fmt: skip
    y = normal(*got.shape, seed=2)
    there = convolution(
        y.astype(np.float64), w.astype(np.float64), (stride,) * 2, [(padding,) * 2] * 2,
        (dilation,) * 2, groups,
    )[:, :, : x.shape[2], : x.shape[3]]  # fmt: skip
    assert np.sum(there * x) == pytest.approx(np.sum(y * got), rel=1e-4)
    check(
        lambda a, b, c: a.conv_transpose2d(b, c, stride, padding, extra, groups, dilation),
        lambda a, b, c: transposed(a, b, stride, padding, extra, groups, dilation)
        + c[:, None, None],
        x[:1, :, :2, :2], w, normal(4, seed=3),
    )  # fmt: skip


def transposed(x, w, stride, padding, extra, groups, dilation):
    n, c, h, width = x.shape
    depth, outs, kh, kw = c // groups, w.shape[1], *w.shape[2:]
    full = np.zeros((n, outs * groups, 60, 60))
    for ci in range(c):
        for co in range(outs):
            target = ci // depth * outs + co
            for i, j, a, b in np.ndindex(h, width, kh, kw):
                place = (i * stride + a * dilation, j * stride + b * dilation)
                full[:, target, place[0], place[1]] += x[:, ci, i, j] * w[ci, co, a, b]
    sizes = [
        (m - 1) * stride - 2 * padding + dilation * (k - 1) + extra + 1
        for m, k in ((h, kh), (width, kw))
    ]
    return full[:, :, padding : padding + sizes[0], padding : padding + sizes[1]]


def test_an_output_padding_that_is_too_large_is_an_error():
    with pytest.raises(ShapeError, match="output_padding"):
        Tensor(normal(1, 1, 2, 2)).conv_transpose2d(
            Tensor(normal(1, 1, 2, 2)), stride=2, output_padding=2
        )


# ---- pooling -----------------------------------------------------------------------------------

POOLS = st.tuples(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 1), st.booleans()
)


@given(POOLS, st.integers(1, 2))
@few
def test_max_pool2d_takes_pytorchs_windows(pool, gap):
    size, step_h, step_w, pad, up = pool
    pad = min(pad, size // 2)
    x = np.round(normal(2, 2, 7, 6) * 2)
    window = ((size, size), (step_h, step_w), (pad, pad), (gap, gap), up)
    want = pooled(x, *window, np.max)
    got = Tensor(x).max_pool2d(size, (step_h, step_w), pad, gap, up)
    np.testing.assert_array_equal(got.numpy(), want)
    values, places = Tensor(x).max_pool2d(size, (step_h, step_w), pad, gap, up, True)
    flat = x.reshape(2, 2, 42)
    picked = np.take_along_axis(flat, places.numpy().reshape(2, 2, -1), 2).reshape(want.shape)
    np.testing.assert_array_equal(picked, want)
    np.testing.assert_array_equal(values.numpy(), want)


@given(POOLS, st.booleans())
@few
def test_avg_pool2d_divides_by_what_pytorch_counts(pool, include):
    size, step_h, step_w, pad, up = pool
    pad = min(pad, size // 2)
    x = normal(1, 2, 7, 6)
    window = ((size, size), (step_h, step_w), (pad, pad), (1, 1), up)
    want = pooled(x, *window, np.mean)
    if include:  # the divisor also counts padding, but nothing beyond it
        sums = pooled(x, *window, np.sum)
        counts = np.zeros(sums.shape[2:])
        for i, j in np.ndindex(counts.shape):
            ends = [min(p + size, n + 2 * pad) - p for p, n in ((i * step_h, 7), (j * step_w, 6))]
            counts[i, j] = ends[0] * ends[1]
        want = sums / counts
    got = Tensor(x).avg_pool2d(size, (step_h, step_w), pad, up, include)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)


def test_the_number_of_windows_with_ceil_mode_drops_those_that_start_in_the_padding():
    assert pool_counts(5, 2, 3, 1, 1, True) == 2
    assert Tensor(normal(1, 1, 5, 5)).max_pool2d(2, 3, 1, ceil_mode=True).shape[-1] == 2
    assert Tensor(normal(1, 1, 6, 6)).max_pool2d(3, 2, ceil_mode=True).shape[-1] == 3
    assert Tensor(normal(1, 1, 6, 6)).max_pool2d(3, 2).shape[-1] == 2


def test_pooling_has_gradients():
    x = np.arange(24, dtype=np.float32).reshape(1, 2, 4, 3)[:, :, ::-1].copy()
    check(
        lambda t: t.max_pool2d(2, 1),
        lambda a: pooled(a, (2, 2), (1, 1), (0, 0), (1, 1), False, np.max),
        x,
    )
    check(
        lambda t: t.avg_pool2d(2, 1, 1),
        lambda a: pooled(np.pad(a, [(0, 0), (0, 0), (1, 1), (1, 1)]), (2, 2), (1, 1), (0, 0),
                         (1, 1), False, np.mean),
        normal(1, 1, 3, 3),
    )  # fmt: skip


def test_the_gradient_of_max_pooling_goes_to_the_first_of_equals():
    x = Tensor(np.zeros((1, 1, 2, 2), np.float32), requires_grad=True)
    x.max_pool2d().sum().backward()
    assert x.grad.tolist() == [[[[1.0, 0.0], [0.0, 0.0]]]]


def test_max_pooling_pads_with_minus_infinity_and_keeps_nan_and_integers():
    low = Tensor(np.full((1, 1, 2, 2), -5.0, np.float32)).max_pool2d(2, 2, 1)
    assert low.tolist() == [[[[-5.0, -5.0], [-5.0, -5.0]]]]
    assert math.isnan(Tensor([[[[1.0, math.nan], [2.0, 3.0]]]]).max_pool2d().item())
    assert Tensor([[[[-3, -2], [-9, -4]]]]).max_pool2d(2, 2, 1).tolist() == [[[[-3, -2], [-9, -4]]]]


def test_adaptive_pooling_cuts_as_pytorch_does():
    x = normal(2, 2, 6, 7)
    for size in ((1, 1), (2, 3), (3, 7), (4, 5)):
        want = np.zeros((2, 2, *size))
        for i, j in np.ndindex(size):
            rows = slice(i * 6 // size[0], -(-(i + 1) * 6 // size[0]))
            columns = slice(j * 7 // size[1], -(-(j + 1) * 7 // size[1]))
            want[:, :, i, j] = x[:, :, rows, columns].mean((2, 3))
        got = Tensor(x).adaptive_avg_pool2d(size).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.max_pool2d(2, padding=2), "more than half"),
        (lambda x: x.max_pool2d(7), "does not fit 4 elements"),
        (lambda x: x.avg_pool2d((2, 2, 2)), "kernel_size"),
        (lambda x: x[0, 0, 0].max_pool2d(), "two axes"),
        (lambda x: x.adaptive_avg_pool2d(0), "output_size"),
    ],
)
def test_pools_that_do_not_fit_say_so(call, message):
    with pytest.raises(ShapeError, match=message):
        call(Tensor(normal(1, 1, 4, 4)))


# ---- normalisation -----------------------------------------------------------------------------


def standardised(x, axes, eps=1e-5):
    mean = x.mean(axes, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + eps)


def test_layer_norm_and_its_gradients():
    check(
        lambda x, w, b: x.layer_norm(4, w, b),
        lambda x, w, b: standardised(x, -1) * w + b,
        normal(3, 4), normal(4, seed=1), normal(4, seed=2),
    )  # fmt: skip
    check(
        lambda x, w, b: x.layer_norm((2, 3), w, b),
        lambda x, w, b: standardised(x, (1, 2)) * w + b,
        normal(2, 2, 3), normal(2, 3, seed=1), normal(2, 3, seed=2),
    )  # fmt: skip
    with pytest.raises(ShapeError, match=r"normalized_shape \(3,\).*\(2, 4\)"):
        Tensor(normal(2, 4)).layer_norm(3)


def test_group_norm_and_its_gradients():
    check(
        lambda x, w, b: x.group_norm(2, w, b),
        lambda x, w, b: standardised(x.reshape(2, 2, -1), -1).reshape(x.shape) * w[:, None]
        + b[:, None],
        normal(2, 4, 3), normal(4, seed=1), normal(4, seed=2),
    )  # fmt: skip
    with pytest.raises(ShapeError, match="3 groups"):
        Tensor(normal(2, 4)).group_norm(3)


def test_rms_norm_and_its_gradients():
    check(
        lambda x, w: x.rms_norm(4, w),
        lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + 2.0**-23) * w,
        normal(3, 4), normal(4, seed=1),
    )  # fmt: skip


def test_batch_norm_with_statistics_of_the_batch_and_its_gradients():
    axes = (0, 2)
    check(
        lambda x, w, b: x.batch_norm(x.mean(axes), x.var(axes, correction=0), w, b),
        lambda x, w, b: standardised(x, axes) * w[:, None] + b[:, None],
        normal(3, 2, 4), normal(2, seed=1), normal(2, seed=2),
    )  # fmt: skip
    with pytest.raises(ShapeError, match="axis 1"):
        Tensor(normal(2, 4)).batch_norm(Tensor(normal(3)), Tensor(normal(3)))


def test_norms_of_far_off_values_keep_their_digits():
    x = np.float32(1e3) + normal(4, 64)
    np.testing.assert_allclose(
        Tensor(x).layer_norm(64).numpy(), standardised(x.astype(np.float64), -1), atol=2e-3
    )


def test_norms_of_halves_are_computed_in_float32():
    x = np.full((1, 512), 200.0, np.float16)
    x[0, 0] = 201.0
    got = Tensor(x).layer_norm(512).numpy()
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, standardised(x.astype(np.float64), -1), rtol=2e-3, atol=1e-3)


# ---- lookup ------------------------------------------------------------------------------------


def test_embedding_adds_up_the_gradients_of_repeated_rows():
    weight = Tensor(normal(4, 2), requires_grad=True)
    index = np.array([[1, 1], [-1, 0]])
    got = Tensor(index).embedding(weight)
    np.testing.assert_array_equal(got.numpy(), weight.numpy()[index])
    got.sum().backward()
    assert weight.grad.numpy()[:, 0].tolist() == [1.0, 2.0, 0.0, 1.0]
    with pytest.raises(IndexRangeError):
        Tensor([4]).embedding(weight).numpy()
    with pytest.raises(IndexRangeError):
        (Tensor([2, 1]) * 2).embedding(weight).numpy()
    with pytest.raises(DTypeError, match="float32 indices"):
        Tensor([1.0]).embedding(weight)


def test_one_hot():
    labels = np.array([[0, 2], [1, 1]])
    np.testing.assert_array_equal(Tensor(labels).one_hot(4).numpy(), np.eye(4, dtype=int)[labels])
    assert Tensor(labels).one_hot().shape == (2, 2, 3)
    assert Tensor(labels).one_hot(3).dtype is dtypes.int64
    for bad in ([3], [-1]):
        with pytest.raises(IndexRangeError):
            Tensor(bad).one_hot(3).numpy()
    with pytest.raises(DTypeError, match="float32"):
        Tensor([1.0]).one_hot(3)


# ---- losses ------------------------------------------------------------------------------------


def log_probabilities(z):
    z = z - z.max(1, keepdims=True)
    return z - np.log(np.exp(z).sum(1, keepdims=True))


def cross_entropy(z, y, weight=None, ignore=-100, reduction="mean", smoothing=0.0):
    logs = log_probabilities(z)
    classes = z.shape[1]
    w = np.ones(classes) if weight is None else weight
    keep = y != ignore
    safe = np.where(keep, y, 0)
    picked = -np.take_along_axis(logs, safe[:, None], 1)[:, 0] * w[safe]
    smooth = -np.moveaxis(logs, 1, -1) @ w / classes
    loss = np.where(keep, (1 - smoothing) * picked + smoothing * smooth, 0.0)
    if reduction == "none":
        return loss
    return loss.sum() / (np.where(keep, w[safe], 0).sum() if reduction == "mean" else 1.0)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore", [-100, 1])
@pytest.mark.parametrize("extra", [(), (2,)], ids=str)
def test_cross_entropy_of_labels(reduction, smoothing, weighted, ignore, extra):
    labels = np.random.default_rng(3).integers(0, 3, (4, *extra))
    weight = np.array([0.5, 2.0, 1.0], np.float32) if weighted else None
    given_weight = None if weight is None else Tensor(weight)
    check(
        lambda z: z.cross_entropy(Tensor(labels), given_weight, ignore, reduction, smoothing),
        lambda z: cross_entropy(z, labels, weight, ignore, reduction, smoothing),
        normal(4, 3, *extra) * 2,
    )


def test_cross_entropy_of_probabilities():
    wanted = np.random.default_rng(1).random((4, 3)).astype(np.float32)
    wanted[0] = [1.0, 0.0, 0.0]
    check(
        lambda z: z.cross_entropy(Tensor(wanted)),
        lambda z: -(wanted * log_probabilities(z)).sum(1).mean(),
        normal(4, 3),
    )


def test_cross_entropy_selects_and_never_multiplies_by_zero():
    logits = Tensor([[0.0, -INF, 1.0]], requires_grad=True)
    loss = logits.cross_entropy(Tensor([0]))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(1 + math.e), rel=1e-6)
    assert np.isfinite(logits.grad.numpy()).all()
    assert Tensor([[0.0, -INF]]).cross_entropy(Tensor([[1.0, 0.0]])).item() == 0.0


def test_cross_entropy_of_large_logits_and_of_halves():
    assert Tensor([[1e4, 0.0]]).cross_entropy(Tensor([1])).item() == 1e4
    half = Tensor(np.zeros((2, 70_000), np.float16)).cross_entropy(Tensor([1, 2]))
    assert half.dtype is dtypes.float16
    assert half.item() == pytest.approx(math.log(70_000), rel=1e-3)


def test_a_single_sample_has_no_batch_axis_and_ignored_labels_leave_nan():
    assert Tensor([0.0, 0.0]).cross_entropy(Tensor(1)).item() == pytest.approx(math.log(2))
    assert math.isnan(Tensor([[0.0, 0.0]]).cross_entropy(Tensor([-100])).item())


def test_unsigned_labels_and_the_other_name_of_the_loss():
    logits = Tensor(normal(3, 4))
    labels = np.array([0, 3, 1])
    want = cross_entropy(normal(3, 4).astype(float), labels)
    for dtype in ("uint8", "int32", "int64"):
        got = logits.sparse_categorical_crossentropy(Tensor(labels.astype(dtype)))
        assert got.item() == pytest.approx(want, rel=1e-5)
    assert logits.cross_entropy(labels).item() == pytest.approx(want, rel=1e-5)
    logs = logits.log_softmax(1)
    assert logs.nll_loss(Tensor(labels)).item() == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("label", [3, -1, -2, 255])
def test_labels_outside_the_classes_are_an_error(label):
    logits = Tensor(normal(2, 3))
    with pytest.raises(IndexRangeError):
        logits.cross_entropy([0, label])
    with pytest.raises(IndexRangeError):
        logits.cross_entropy(Tensor([0, label]) + Tensor([0, 0])).item()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda z: z.cross_entropy(Tensor([0, 1])), r"\(3, 4\).*\(2,\)"),
        (lambda z: z.cross_entropy(Tensor([[0.5, 0.5]])), "probabilities"),
        (lambda z: z.cross_entropy([0, 1, 2], Tensor([1.0])), "4 classes"),
        (lambda z: z.mse_loss(Tensor([1.0])), r"\(3, 4\).*\(1,\)"),
        (lambda z: z.mse_loss(Tensor(normal(3, 4)), reduction="avg"), "'avg'"),
        (lambda z: z.cross_entropy([0, 1, 2], label_smoothing=2.0), "label_smoothing"),
    ],
)
def test_losses_that_do_not_fit_say_so(call, message):
    with pytest.raises(CoregradError, match=message):
        call(Tensor(normal(3, 4)))


ELEMENTWISE = {
    "mse_loss": lambda x, t: (x - t) ** 2,
    "l1_loss": lambda x, t: np.abs(x - t),
    "huber_loss": lambda x, t: np.where(np.abs(x - t) < 1, (x - t) ** 2 / 2, np.abs(x - t) - 0.5),
    "smooth_l1_loss": lambda x, t: np.where(
        np.abs(x - t) < 1, (x - t) ** 2 / 2, np.abs(x - t) - 0.5
    ),
}


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_losses(name, reduction):
    fold = {"mean": np.mean, "sum": np.sum, "none": lambda x: x}[reduction]
    check(
        lambda x, t: getattr(x, name)(t, reduction=reduction),
        lambda x, t: fold(ELEMENTWISE[name](x, t)),
        normal(3, 4), normal(3, 4, seed=1) * 2,
    )  # fmt: skip


def test_binary_cross_entropy_of_probabilities_and_of_logits():
    wanted = np.random.default_rng(2).random((3, 4)).astype(np.float32)
    p = np.random.default_rng(3).uniform(0.05, 0.95, (3, 4)).astype(np.float32)

    def loss(a):
        return -(wanted * np.log(a) + (1 - wanted) * np.log(1 - a)).mean()

    check(lambda x: x.binary_cross_entropy(Tensor(wanted)), loss, p)
    check(
        lambda x: x.binary_cross_entropy_with_logits(Tensor(wanted)),
        lambda x: loss(1 / (1 + np.exp(-x))),
        normal(3, 4) * 3,
    )
    certain = Tensor([0.0, 1.0], requires_grad=True)
    value = certain.binary_cross_entropy(Tensor([1.0, 0.0]), reduction="none")
    assert value.tolist() == [100.0, 100.0]
    value.sum().backward()
    assert np.isfinite(certain.grad.numpy()).all()


def test_the_slope_of_the_logit_loss_at_zero_is_a_half():
    x = Tensor([0.0], requires_grad=True)
    x.binary_cross_entropy_with_logits(Tensor([0.0])).backward()
    assert x.grad.item() == 0.5


def test_kl_div_is_zero_where_the_target_is_zero():
    logs = Tensor([[-INF, 0.0]], requires_grad=True)
    loss = logs.kl_div(Tensor([[0.0, 1.0]]), reduction="batchmean")
    loss.backward()
    assert loss.item() == 0.0
    assert logs.grad.tolist() == [[0.0, -1.0]]
    wanted = np.random.default_rng(2).random((3, 4)).astype(np.float32)
    check(
        lambda x: x.kl_div(Tensor(wanted)),
        lambda x: (wanted * (np.log(wanted) - x)).mean(),
        normal(3, 4),
    )


# ---- attention and dropout ---------------------------------------------------------------------


def attention(q, k, v, mask=None):
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


def test_attention_and_its_gradients():
    arrays = normal(2, 3, 4), normal(2, 5, 4, seed=1), normal(2, 5, 2, seed=2)
    check(lambda q, k, v: q.scaled_dot_product_attention(k, v), attention, *arrays)
    mask = np.tril(np.ones((3, 5), bool))
    check(
        lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True),
        lambda q, k, v: attention(q, k, v, mask),
        *arrays,
    )
    check(
        lambda q, k, v: q.scaled_dot_product_attention(k, v, Tensor(mask)),
        lambda q, k, v: attention(q, k, v, mask),
        *arrays,
    )
    added = Tensor(np.where(mask, 0.0, -np.inf).astype(np.float32))
    check(
        lambda q, k, v: q.scaled_dot_product_attention(k, v, added),
        lambda q, k, v: attention(q, k, v, mask),
        *arrays,
    )


def test_a_row_without_any_attention_gives_zero_with_gradient_zero():
    mask = np.array([[True, True], [False, False]])
    q, k, v = (Tensor(normal(2, 3, seed=i), requires_grad=True) for i in range(3))
    out = q.scaled_dot_product_attention(k, v, Tensor(mask))
    assert out.numpy()[1].tolist() == [0.0] * 3
    out.sum().backward()
    for tensor in (q, k, v):
        assert np.isfinite(tensor.grad.numpy()).all()
    assert q.grad.numpy()[1].tolist() == [0.0] * 3


def test_attention_that_does_not_fit_says_so():
    q = Tensor(normal(2, 3))
    with pytest.raises(ShapeError, match=r"\(2, 3\).*\(2, 4\)"):
        q.scaled_dot_product_attention(Tensor(normal(2, 4)), q)
    with pytest.raises(CoregradError, match="not both"):
        q.scaled_dot_product_attention(q, q, Tensor([[True, True]] * 2), is_causal=True)


def test_dropout_scales_what_it_keeps_and_masks_the_gradient_alike():
    Tensor.manual_seed(0)
    x = Tensor(np.ones((200, 200), np.float32), requires_grad=True)
    y = x.dropout(0.25)
    y.sum().backward()
    values = y.numpy()
    assert set(np.unique(values)) == {np.float32(0.0), np.float32(1 / 0.75)}
    assert abs((values == 0).mean() - 0.25) < 0.02
    np.testing.assert_array_equal(x.grad.numpy(), values)
    assert not np.array_equal(x.dropout(0.25).numpy(), values)


def test_dropout_outside_training_and_at_its_ends():
    x = Tensor([1.0, INF])
    assert x.dropout(0.5, training=False) is x
    assert x.dropout(0.0) is x
    assert x.dropout(1.0).tolist() == [0.0, 0.0]
    for p in (-0.1, 1.1, math.nan):
        with pytest.raises(CoregradError, match="probability"):
            x.dropout(p)
