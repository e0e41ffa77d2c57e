"""Movement methods against NumPy, for random shapes, with gradients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numeric import check

import coregrad as cg
from coregrad import Tensor, dtypes
from coregrad.errors import ShapeError

few = settings(max_examples=40, deadline=None)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


def numbered(shape):
    """Every element another number."""
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def lazy(array):
    """The same on the reference device, where small graphs cost least."""
    return Tensor(array, device="numpy")


def agree(got, want):
    want = np.asarray(want)
    assert got.shape == want.shape
    np.testing.assert_array_equal(got.numpy(), want)


# ---- shapes --------------------------------------------------------------------------------------


@given(shapes, st.data())
@few
def test_permute_flip_and_roll(shape, data):
    a = numbered(shape)
    order = data.draw(st.permutations(range(a.ndim)))
    agree(lazy(a).permute(*order), a.transpose(order))
    agree(lazy(a).permute(tuple(d - a.ndim for d in order)), a.transpose(order))
    axes = tuple(order[: data.draw(st.integers(0, a.ndim))])
    agree(lazy(a).flip(axes), np.flip(a, axes))
    shifts = tuple(data.draw(st.integers(-5, 5)) for _ in axes)
    agree(lazy(a).roll(shifts, axes), np.roll(a, shifts, axes) if axes else a)
    agree(lazy(a).roll(3), np.roll(a, 3))
    agree(lazy(a).T, a.T)


@given(shapes, st.data())
@few
def test_reshape_infers_one_size(shape, data):
    a = numbered(shape)
    order = data.draw(st.permutations(shape))
    agree(lazy(a).reshape(*order) if order else lazy(a).reshape(()), a.reshape(order))
    agree(lazy(a).reshape(-1), a.reshape(-1))
    agree(lazy(a).flatten(), a.reshape(-1))
    if order and a.size:
        place = data.draw(st.integers(0, len(order) - 1))
        opened = [-1 if i == place else n for i, n in enumerate(order)]
        agree(lazy(a).view(opened), a.reshape(opened))


@given(shapes, st.data())
@few
def test_expand_repeat_and_tile(shape, data):
    a = numbered(shape)
    ones = numbered([1 if data.draw(st.booleans()) else n for n in shape])
    agree(lazy(ones).expand(2, *shape), np.broadcast_to(ones, (2, *shape)))
    agree(lazy(ones).expand(3, *([-1] * a.ndim)), np.broadcast_to(ones, (3, *ones.shape)))
    counts = [data.draw(st.integers(0, 3)) for _ in range(a.ndim + 1)]
    agree(lazy(a).repeat(*counts), np.tile(a, counts))
    if a.ndim:
        agree(lazy(a).tile(2), np.tile(a, 2))
        axis = data.draw(st.integers(-a.ndim, a.ndim - 1))
        agree(lazy(a).repeat_interleave(3, axis), np.repeat(a, 3, axis))
    agree(lazy(a).repeat_interleave(2), np.repeat(a, 2))


@given(shapes, st.data())
@few
def test_pad_cuts_and_fills(shape, data):
    a = numbered(shape)
    if not a.ndim:
        return
    widths = []
    for n in shape:
        before = data.draw(st.integers(-n, 3))
        widths.append((before, data.draw(st.integers(-(n + min(before, 0)), 3))))
    grown = np.pad(a, [(max(lo, 0), max(hi, 0)) for lo, hi in widths], constant_values=7)
    ranges = [
        slice(max(-lo, 0), n - max(-hi, 0)) for n, (lo, hi) in zip(grown.shape, widths, strict=True)
    ]
    flat = [size for pair in reversed(widths) for size in pair]
    agree(lazy(a).pad(flat, value=7), grown[tuple(ranges)])


@pytest.mark.parametrize(
    ("mode", "theirs"), [("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap")]
)
def test_borders_that_repeat_what_is_inside(mode, theirs):
    a = numbered((2, 3, 4))
    agree(Tensor(a).pad((2, 1, 0, 2), mode=mode), np.pad(a, [(0, 0), (0, 2), (2, 1)], theirs))
    check(
        lambda x: x.pad((2, 1, 1, 2), mode=mode),
        lambda v: np.pad(v, [(0, 0), (1, 2), (2, 1)], theirs),
        a,
    )


def test_axes_come_and_go():
    a = numbered((2, 1, 3, 1))
    x = Tensor(a)
    agree(x.squeeze(), a.squeeze())
    agree(x.squeeze(1), a.squeeze(1))
    agree(x.squeeze(0), a)
    agree(x.squeeze((1, -1)), a.squeeze((1, 3)))
    agree(x.unsqueeze(-1), a[..., None])
    agree(x.unsqueeze(2), a[:, :, None])
    agree(x.flatten(1, 2), a.reshape(2, 3, 1))
    agree(x.flatten(start_dim=1), a.reshape(2, 3))
    agree(x.unflatten(2, (3, -1)), a.reshape(2, 1, 3, 1, 1))
    agree(Tensor(3.0).flatten(), np.array([3.0]))
    agree(x.movedim(0, -1), np.moveaxis(a, 0, -1))
    agree(x.moveaxis((0, 2), (2, 1)), np.moveaxis(a, (0, 2), (2, 1)))
    agree(x.transpose(0, 2), a.swapaxes(0, 2))
    agree(x.swapaxes(-1, 0), a.swapaxes(-1, 0))
    agree(x.mT, a.swapaxes(-1, -2))
    agree(Tensor(a[0, 0]).t(), a[0, 0].T)
    agree(x.reshape_as(Tensor(a.reshape(6))), a.reshape(6))
    agree(Tensor([[1.0]]).expand_as(x[:, 0]), np.ones((2, 3, 1)))


def test_axis_is_another_word_for_dim():
    a = numbered((2, 3))
    x = Tensor(a)
    agree(x.unsqueeze(axis=0), a[None])
    agree(x.flip(axis=1), a[:, ::-1])
    agree(x.flip(dims=(0, 1)), a[::-1, ::-1])
    agree(x.permute(dims=(1, 0)), a.T)
    agree(x.roll(1, axis=1), np.roll(a, 1, 1))
    agree(cg.cat([x, x], axis=1), np.concatenate([a, a], 1))
    agree(cg.stack([x, x], axis=2), np.stack([a, a], 2))
    assert [p.shape for p in x.split(2, axis=1)] == [(2, 2), (2, 1)]
    assert x.size(axis=1) == 3


# ---- cuts and joins ------------------------------------------------------------------------------


def test_cuts():
    a = numbered((5, 4))
    x = Tensor(a)
    agree(x.shrink((None, (1, 3))), a[:, 1:3])
    agree(x.narrow(0, -3, 2), a[2:4])
    agree(x.select(1, -1), a[:, -1])
    for part, want in zip(x.split(2), [a[:2], a[2:4], a[4:]], strict=True):
        agree(part, want)
    for part, want in zip(x.split([1, 0, 3], dim=1), [a[:, :1], a[:, 1:1], a[:, 1:]], strict=True):
        agree(part, want)
    assert [p.shape[0] for p in x.chunk(3)] == [2, 2, 1]
    assert [p.shape[0] for p in Tensor.zeros(0, 2).chunk(3)] == [0]
    for part, want in zip(x.unbind(1), a.T, strict=True):
        agree(part, want)
    agree(x.unfold(0, 3, 2), np.stack([a[0:3].T, a[2:5].T]))


@pytest.mark.parametrize("offset", [-5, -2, -1, 0, 1, 3, 4, 9])
def test_diagonals_and_triangles(offset):
    a = numbered((2, 3, 4))
    x = Tensor(a)
    agree(x.tril(offset), np.tril(a, offset))
    agree(x.triu(offset), np.triu(a, offset))
    agree(x.diagonal(offset, 1, 2), a.diagonal(offset, 1, 2))
    agree(x.diagonal(offset, -1, 0), a.diagonal(offset, -1, 0))
    agree(Tensor(a[0]).diag(offset), np.diag(a[0], offset))
    agree(Tensor(a[0, 0]).diag(offset), np.diag(a[0, 0], offset))


def test_joins_promote_and_broadcast_nothing():
    a, b = numbered((2, 3)), np.ones((2, 1), np.int64)
    joined = cg.cat([Tensor(a), Tensor(b)], dim=1)
    agree(joined, np.concatenate([a, b], 1))
    assert joined.dtype is dtypes.float32
    agree(Tensor(a).cat(Tensor(a), dim=0), np.concatenate([a, a]))
    agree(cg.stack([Tensor(a[0]), Tensor(a[1])], dim=-1), a.T)
    agree(cg.cat([Tensor(np.zeros((0, 3), "f")), Tensor(a)]), a)
    for ours, theirs in zip(
        cg.meshgrid(Tensor(a[0]), Tensor(a[1, :2])),
        np.meshgrid(a[0], a[1, :2], indexing="ij"),
        strict=True,
    ):
        agree(ours, theirs)
    for ours, theirs in zip(
        cg.meshgrid(Tensor(a[0]), Tensor(a[1, :2]), indexing="xy"),
        np.meshgrid(a[0], a[1, :2]),
        strict=True,
    ):
        agree(ours, theirs)
    agree(cg.broadcast_tensors(Tensor(a), Tensor(b))[1], np.broadcast_to(b, (2, 3)))


def test_many_parts_join():
    parts = [numbered((2, i % 3)) + i for i in range(20)]
    agree(cg.cat([Tensor(p) for p in parts], 1), np.concatenate(parts, 1))


# ---- gradients -----------------------------------------------------------------------------------

MOVES = {
    "reshape": (lambda x: x.reshape(4, 3), lambda a: a.reshape(4, 3)),
    "permute": (lambda x: x.permute(2, 0, 1), lambda a: a.transpose(2, 0, 1)),
    "expand": (
        lambda x: x.unsqueeze(1).expand(-1, 3, -1, -1),
        lambda a: np.repeat(a[:, None], 3, 1),
    ),
    "flip": (lambda x: x.flip(0, 2), lambda a: np.flip(a, (0, 2))),
    "roll": (lambda x: x.roll((1, -1), (0, 2)), lambda a: np.roll(a, (1, -1), (0, 2))),
    "pad": (
        lambda x: x.pad((1, 2, -1, 1), value=3),
        lambda a: np.pad(a, [(0, 0), (0, 1), (1, 2)], constant_values=3)[:, 1:],
    ),
    "narrow": (lambda x: x.narrow(2, 1, 2), lambda a: a[:, :, 1:3]),
    "cat": (lambda x: cg.cat([x, x * 2, x], 1), lambda a: np.concatenate([a, 2 * a, a], 1)),
    "stack": (lambda x: cg.stack([x, x * x], 0), lambda a: np.stack([a, a * a])),
    "repeat": (lambda x: x.repeat(2, 1, 3), lambda a: np.tile(a, (2, 1, 3))),
    "interleave": (lambda x: x.repeat_interleave(2, 2), lambda a: np.repeat(a, 2, 2)),
    "unfold": (lambda x: x.unfold(2, 2, 1), lambda a: np.stack([a[..., :2], a[..., 1:]], 2)),
    "diagonal": (lambda x: x.diagonal(0, 1, 2), lambda a: a.diagonal(0, 1, 2)),
    "tril": (lambda x: x.tril(), np.tril),
    "triu": (lambda x: x.triu(1), lambda a: np.triu(a, 1)),
    "split": (
        lambda x: x.split(2, 2)[0] * x.split([1, 2], 2)[1],
        lambda a: a[..., :2] * a[..., 1:],
    ),
}


@pytest.mark.parametrize("name", MOVES)
def test_gradients_pass_back_to_where_elements_came_from(name):
    ours, theirs = MOVES[name]
    check(ours, theirs, np.random.default_rng(0).standard_normal((2, 2, 3)).astype(np.float32))


def test_a_result_is_a_value_whatever_its_source_becomes():
    x = Tensor(numbered((2, 3)))
    views = [x.T, x.reshape(6), x[0], x.expand(2, 2, 3), x.flip(0), x.unfold(1, 2, 1), x.detach()]
    before = [v.tolist() for v in views]
    x.fill_(9)
    assert [v.tolist() for v in views] == before


def test_sizes_may_be_anything_that_is_an_int():
    x = Tensor(numbered((2, 3)))
    assert x.reshape(np.int64(3), Tensor(2)).shape == (3, 2)
    assert x.reshape([3, 2]).shape == (3, 2)
    with pytest.raises(TypeError, match="ints"):
        x.reshape(1.5, 4)
    with pytest.raises(ShapeError):
        x.permute(0)


@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize("shape", [(128, 64), (129, 64), (130, 200), (3, 192, 48), (256, 2, 64)])
def test_large_transposed_copies_go_by_tiles_and_stay_exact(shape, device):
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    copied = Tensor(array, device=device).transpose(-1, -2) + 0
    np.testing.assert_array_equal(copied.numpy(), array.swapaxes(-1, -2))
    mixed = Tensor(array, device=device).transpose(0, -1) * 2 + Tensor(
        array.T.copy(), device=device
    )
    np.testing.assert_array_equal(mixed.numpy(), array.swapaxes(0, -1) * 2 + array.T)
