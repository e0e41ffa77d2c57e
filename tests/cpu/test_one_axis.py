"""Convolution and pooling over one axis against plain loops, and PyTorch where it is installed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numeric import check, pooled

from coregrad import Tensor, nn
from coregrad.errors import DTypeError, ShapeError
from coregrad.nn import functional

few = settings(max_examples=20, deadline=None)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def transposed(x, w, stride, padding, extra, groups, dilation):
    """(N, C, L) with (C, O/groups, K), tap by tap."""
    n, c, length = x.shape
    depth, outs, kernel = c // groups, w.shape[1], w.shape[2]
    full = np.zeros((n, outs * groups, 60))
    for ci, co, i, k in np.ndindex(c, outs, length, kernel):
        full[:, ci // depth * outs + co, i * stride + k * dilation] += x[:, ci, i] * w[ci, co, k]
    size = (length - 1) * stride - 2 * padding + dilation * (kernel - 1) + extra + 1
    return full[:, :, padding : padding + size]


CONVOLUTIONS = [
    (1, 0, 0, 1, 1), (2, 0, 1, 1, 1), (2, 1, 1, 2, 1), (3, 2, 2, 2, 1), (1, 1, 0, 1, 2),
]  # fmt: skip


@pytest.mark.parametrize(("stride", "padding", "extra", "groups", "dilation"), CONVOLUTIONS)
def test_the_transposed_convolution_and_its_gradients(stride, padding, extra, groups, dilation):
    options = (stride, padding, extra, groups, dilation)
    check(
        lambda x, w, b: functional.conv_transpose1d(x, w, b, *options),
        lambda x, w, b: transposed(x, w, *options) + b[:, None],
        normal(2, 2, 4), normal(2, 4 // groups, 3, seed=1), normal(4, seed=2),
    )  # fmt: skip


@pytest.mark.parametrize(("stride", "padding", "extra", "groups", "dilation"), CONVOLUTIONS)
def test_the_layer_is_pytorchs(stride, padding, extra, groups, dilation):
    torch = pytest.importorskip("torch")
    options = (2, 4, 3, stride, padding, extra, groups, True, dilation)
    ours, theirs = nn.ConvTranspose1d(*options), torch.nn.ConvTranspose1d(*options)
    ours.load_state_dict({k: v.detach().numpy() for k, v in theirs.state_dict().items()})
    x = normal(2, 2, 5)
    want = theirs(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(ours(Tensor(x)).numpy(), want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours(Tensor(x[0])).numpy(), want[0], rtol=1e-4, atol=1e-5)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 1), st.integers(1, 2), st.booleans())
@few
def test_pooling_takes_pytorchs_windows(size, step, pad, gap, up):
    pad = min(pad, size // 2)
    x = np.round(normal(2, 2, 9) * 2)
    plane = x[:, :, None]

    def want(fold, dilation):
        sizes = (1, size), (1, step), (0, pad), (1, dilation)
        return pooled(plane, *sizes, up, fold)[:, :, 0]

    got = functional.max_pool1d(Tensor(x), size, step, pad, gap, up)
    np.testing.assert_array_equal(got.numpy(), want(np.max, gap))
    values, places = Tensor(x).max_pool1d(size, step, pad, gap, up, return_indices=True)
    np.testing.assert_array_equal(values.numpy(), got.numpy())
    np.testing.assert_array_equal(np.take_along_axis(x, places.numpy(), -1), got.numpy())
    got = functional.avg_pool1d(Tensor(x), size, step, pad, up, count_include_pad=False)
    np.testing.assert_allclose(got.numpy(), want(np.mean, 1), rtol=1e-5, atol=1e-6)


def test_pooling_has_gradients():
    spread = np.random.default_rng(0).permutation(14).reshape(1, 2, 7).astype(np.float32)
    sizes = (1, 3), (1, 2), (0, 1), (1, 1)
    check(
        lambda x: x.max_pool1d(3, 2, 1),
        lambda x: pooled(x[:, :, None], *sizes, False, np.max)[:, :, 0],
        spread,
    )
    check(
        lambda x: x.avg_pool1d(3, 2, 1),
        lambda x: pooled(np.pad(x, ((0, 0), (0, 0), (1, 1)))[:, :, None],
                         (1, 3), (1, 2), (0, 0), (1, 1), False, np.mean)[:, :, 0],
        normal(1, 2, 7),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("MaxPool1d", {"kernel_size": 3, "stride": 2, "padding": 1}),
        ("MaxPool1d", {"kernel_size": 2, "dilation": 2, "ceil_mode": True}),
        ("AvgPool1d", {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
        ("AvgPool1d", {"kernel_size": 2, "count_include_pad": False, "padding": 1}),
        ("Unflatten", {"dim": 2, "unflattened_size": (2, 4)}),
    ],
)
def test_layers_and_their_arguments_are_pytorchs(name, arguments):
    torch = pytest.importorskip("torch")
    x = normal(2, 3, 8)
    want = getattr(torch.nn, name)(**arguments)(torch.tensor(x)).numpy()
    np.testing.assert_allclose(
        getattr(nn, name)(**arguments)(Tensor(x)).numpy(), want, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: x.max_pool1d(9), ShapeError, "max_pool1d: a window that spans 9"),
        (lambda x: x.max_pool1d((2, 2)), ShapeError, "max_pool1d: kernel_size"),
        (lambda x: x.avg_pool1d(2, padding=2), ShapeError, "avg_pool1d: padding 2"),
        (lambda x: x.sum().avg_pool1d(), ShapeError, "avg_pool1d: shape"),
        (lambda x: x.long().avg_pool1d(), DTypeError, "avg_pool1d"),
        (lambda x: nn.ConvTranspose1d(2, 4, 3)(x), ShapeError, "conv_transpose1d"),
        (lambda x: nn.ConvTranspose1d(3, 4, 3, output_padding=1)(x), ShapeError, "output_padding"),
        (lambda x: nn.Unflatten(2, (3, 2))(x), ShapeError, "unflatten"),
    ],
)
def test_errors_name_the_function_of_one_axis(call, error, message):
    with pytest.raises(error, match=message):
        call(Tensor(normal(2, 3, 8)))
