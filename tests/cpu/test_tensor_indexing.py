"""Brackets, gather and scatter against NumPy: reading, writing, gradients, errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numeric import check

from coregrad import Tensor, dtypes
from coregrad.errors import IndexRangeError

few = settings(max_examples=60, deadline=None)
shapes = hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4)


def numbered(shape):
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape) + 1


def lazy(array):
    return Tensor(array, device="numpy")


@st.composite
def basic_keys(draw, shape):
    """Numbers, slices of any step, None and an ellipsis."""
    key = []
    for n in shape[: draw(st.integers(0, len(shape)))]:
        if draw(st.integers(0, 5)) == 0:
            key.append(None)
        if draw(st.booleans()):
            key.append(draw(st.integers(-n, n - 1)))
        else:
            bound = st.none() | st.integers(-n - 2, n + 2)
            key.append(
                slice(draw(bound), draw(bound), draw(st.none() | st.integers(-3, 3).filter(bool)))
            )
    if draw(st.booleans()):
        key.insert(draw(st.integers(0, len(key))), Ellipsis)
    # what stands behind the ellipsis counts from the end: it must fit those axes
    if Ellipsis in key:
        behind = key[key.index(Ellipsis) + 1 :]
        axes = list(shape[len(shape) - sum(k is not None for k in behind) :])
        for k in behind:
            if k is None:
                continue
            n = axes.pop(0)
            if isinstance(k, int) and not -n <= k < n:
                key[key.index(k)] = 0
    return tuple(key)


@given(shapes, st.data())
@few
def test_numbers_and_slices_read_as_in_numpy(shape, data):
    a = numbered(shape)
    key = data.draw(basic_keys(shape))
    try:
        want = a[key]
    except IndexError:
        with pytest.raises(IndexRangeError):
            lazy(a)[key]
        return
    got = lazy(a)[key]
    assert got.shape == want.shape
    np.testing.assert_array_equal(got.numpy(), want)


@given(shapes, st.data())
@few
def test_numbers_and_slices_write_as_in_numpy(shape, data):
    a = numbered(shape)
    key = data.draw(basic_keys(shape))
    x = lazy(a)
    try:
        part = a[key].shape
    except IndexError:
        return
    value = -numbered([1 if data.draw(st.booleans()) else n for n in part])
    a[key] = value
    x[key] = lazy(value)
    np.testing.assert_array_equal(x.numpy(), a)
    a[key] = 5
    x[key] = 5
    np.testing.assert_array_equal(x.numpy(), a)


ADVANCED = [
    lambda i: ([0, 2, -1],),
    lambda i: (i([[0, 1], [2, -3]]),),
    lambda i: (slice(None), i([3, 0, 0])),
    lambda i: (..., i([1, -1])),
    lambda i: (i([0, 1]), i([2, 3])),
    lambda i: (i([[0], [2]]), i([[0, 3]])),
    lambda i: (slice(None), i([0, 1]), i([1, 0])),
    lambda i: (i([0, 1]), slice(None), i([1, 0])),
    lambda i: (i([0, 1]), slice(None, None, -1), slice(1, 3)),
    lambda i: (slice(0, 2), i([0, 1]), None),
    lambda i: (i(2),),
    lambda i: (i([], np.int64),),
    lambda i: (np.array([True, False, True]),),
    lambda i: (slice(None), np.array([True, False, False, True])),
    lambda i: (np.arange(12).reshape(3, 4) % 3 == 0,),
    lambda i: (np.zeros((3, 4), bool),),
    lambda i: (np.array([True, False, True]), slice(1, 3)),
]


def same_key(make, wrap):
    """The key for us, with tensors, and for NumPy, with arrays."""
    ours = make(lambda *a: wrap(np.asarray(*a)))
    ours = tuple(wrap(k) if isinstance(k, np.ndarray) else k for k in ours)
    return ours, make(lambda *a: np.asarray(*a))


@pytest.mark.parametrize("make", ADVANCED, ids=range(len(ADVANCED)))
def test_index_tensors_and_masks_read_and_write_as_in_numpy(make, device):
    a = numbered((3, 4, 4))
    ours, theirs = same_key(make, lambda k: Tensor(k, device=device))
    x = Tensor(a, device=device)
    want = a[theirs]
    got = x[ours]
    assert got.shape == want.shape
    np.testing.assert_array_equal(got.numpy(), want)
    value = -numbered(want.shape)
    flat_places = np.arange(a.size).reshape(a.shape)[theirs]
    if len(set(flat_places.flatten().tolist())) == flat_places.size:
        a[theirs] = value
        x[ours] = Tensor(value, device=device)
        np.testing.assert_array_equal(x.numpy(), a)
    a[theirs] = 0.5
    x[ours] = 0.5
    np.testing.assert_array_equal(x.numpy(), a)


def test_index_tensors_gather_gradients_of_duplicates():
    check(lambda x: x[Tensor([0, 2, 0, -1, 0])], lambda a: a[[0, 2, 0, -1, 0]], numbered((3, 2)))
    check(
        lambda x: x[:, Tensor([1, 1])] * x[Tensor([[0], [1]]), Tensor([0, 1])],
        lambda a: a[:, [1, 1]] * a[[[0], [1]], [0, 1]],
        numbered((2, 3)),
    )
    check(lambda x: x[Tensor([True, False, True])], lambda a: a[[0, 2]], numbered((3, 2)))


def test_the_last_value_written_to_a_place_stays():
    x = Tensor.zeros(3)
    x[Tensor([0, 2, 0])] = Tensor([1.0, 2.0, 3.0])
    assert x.tolist() == [3, 0, 2]


def test_integers_beside_an_index_tensor_are_applied_first_as_in_pytorch():
    a = numbered((2, 3, 4))
    assert Tensor(a)[0, :, [1, 2]].shape == (3, 2)
    np.testing.assert_array_equal(Tensor(a)[0, :, [1, 2]].numpy(), a[0][:, [1, 2]])


def test_masks_write_one_number_or_as_many_as_hold():
    a = numbered((3, 4))
    mask = a % 3 == 0
    x = Tensor(a)
    x[x % 3 == 0] = 0
    a[mask] = 0
    np.testing.assert_array_equal(x.numpy(), a)
    x[Tensor(mask)] = Tensor([9.0, 8.0, 7.0, 6.0])
    a[mask] = [9, 8, 7, 6]
    np.testing.assert_array_equal(x.numpy(), a)
    x[Tensor([True, False, True])] = Tensor([1.0, 2.0, 3.0, 4.0])
    a[[0, 2]] = [1, 2, 3, 4]
    np.testing.assert_array_equal(x.numpy(), a)


def test_written_values_are_cast_and_broadcast():
    x = Tensor([[1, 2], [3, 4]])
    x[0] = Tensor([1.9, -1.9])
    assert x.tolist() == [[1, -1], [3, 4]]
    x[:, 1] = 7
    assert x.tolist() == [[1, 7], [3, 7]]
    x[...] = [[5], [6]]
    assert x.tolist() == [[5, 5], [6, 6]]
    x[1] += 1
    x[:, 0] *= 2
    assert x.tolist() == [[10, 5], [14, 7]]
    flags = Tensor([False, False])
    flags[0] = True
    assert flags.tolist() == [True, False]


def test_writing_passes_gradients_to_the_value_and_what_is_left():
    def ours(x, v):
        y = x * 1
        y[1:, ::2] = v * v
        return y

    def theirs(a, v):
        b = a * 1
        b[1:, ::2] = v * v
        return b

    check(ours, theirs, numbered((3, 4)), numbered((2, 2)))

    def rows(x, v):
        y = x * 1
        y[Tensor([2, 0])] = v
        return y

    def rows_of(a, v):
        b = a * 1
        b[[2, 0]] = v
        return b

    check(rows, rows_of, numbered((3, 2)), numbered((2, 2)))


def test_iteration_ends_and_unpacks():
    a, b = Tensor([[1.0, 2.0], [3.0, 4.0]])
    assert a.tolist() == [1, 2]
    assert b.tolist() == [3, 4]
    assert [t.item() for t in Tensor([1, 2, 3])] == [1, 2, 3]


# ---- PyTorch's functions -------------------------------------------------------------------------


@given(shapes, st.data())
@few
def test_gather_is_take_along_axis(shape, data):
    a = numbered(shape)
    axis = data.draw(st.integers(-a.ndim, a.ndim - 1))
    count = data.draw(st.integers(0, 3))
    index_shape = list(shape)
    index_shape[axis] = count
    index = data.draw(
        hnp.arrays(np.int64, index_shape, elements=st.integers(-shape[axis], shape[axis] - 1))
    )
    want = np.take_along_axis(a, index, axis)
    np.testing.assert_array_equal(lazy(a).gather(axis, lazy(index)).numpy(), want)
    np.testing.assert_array_equal(lazy(a).take_along_dim(lazy(index), axis).numpy(), want)


def scattered(a, dim, index, src, fold):
    out = a.copy()
    for place in np.ndindex(index.shape):
        target = list(place)
        target[dim] = index[place]
        out[tuple(target)] = fold(out[tuple(target)], src[place])
    return out


@given(shapes, st.data())
@few
def test_scatter_and_scatter_add_follow_the_definition(shape, data):
    a = numbered(shape)
    dim = data.draw(st.integers(0, a.ndim - 1))
    index_shape = [data.draw(st.integers(0, n)) for n in shape]
    index = data.draw(hnp.arrays(np.int64, index_shape, elements=st.integers(0, shape[dim] - 1)))
    src = -numbered([n + 1 for n in index_shape])
    x, i, s = lazy(a), lazy(index), lazy(src)
    np.testing.assert_array_equal(
        x.scatter(dim, i, s).numpy(), scattered(a, dim, index, src, lambda old, new: new)
    )
    np.testing.assert_array_equal(
        x.scatter_add(dim, i, s).numpy(), scattered(a, dim, index, src, lambda old, new: old + new)
    )


def columns_of(array, index, src):
    """``array`` with ``src`` added in the order of its rows, as float32 and integers add up."""
    out = array.copy()
    rows, width = index.shape
    for row in range(rows):
        out[index[row], np.arange(width)] += src[row]
    return out


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
@pytest.mark.parametrize("width", [1, 7, 16, 31, 32, 33, 37, 48, 64, 80, 512])
def test_columns_that_threads_share_are_added_up_in_the_order_of_the_rows(device, width, dtype):
    rng = np.random.default_rng(width)
    index = rng.integers(0, 50, (400, width))
    a, src = (rng.standard_normal((n, width)) * 1000 for n in (50, 400))
    a, src = a.astype(dtype), src.astype(dtype)
    want = columns_of(a, index, src)
    x, s = Tensor(a, device=device), Tensor(src, device=device)
    known, computed = Tensor(index, device=device), Tensor(index - 1, device=device) + 1
    for i in (known, computed):
        for _ in range(3):
            np.testing.assert_array_equal(x.scatter_add(0, i, s).numpy(), want)
    narrow = width // 2
    want = a.copy()
    want[:, :narrow] = columns_of(a[:, :narrow], index[:, :narrow], src[:, :narrow])
    got = x.scatter_add(0, known[:, :narrow], s[:, :narrow])
    np.testing.assert_array_equal(got.numpy(), want)


def test_the_last_row_set_in_a_column_stays(device):
    rng = np.random.default_rng(0)
    index, src = rng.integers(0, 6, (300, 64)), rng.standard_normal((300, 64), np.float32)
    want = np.zeros((6, 64), np.float32)
    for row in range(300):
        want[index[row], np.arange(64)] = src[row]
    got = Tensor.zeros(6, 64, device=device).scatter(
        0, Tensor(index, device=device), Tensor(src, device=device)
    )
    np.testing.assert_array_equal(got.numpy(), want)


def test_middle_axes_and_rows_that_all_columns_share_are_added_up_in_order(device):
    rng = np.random.default_rng(1)
    index, src = rng.integers(0, 5, (3, 70, 48)), rng.standard_normal((3, 70, 48), np.float32)
    want = np.zeros((3, 5, 48), np.float32)
    for outer in range(3):
        want[outer] = columns_of(want[outer], index[outer], src[outer])
    x, i, s = (Tensor(a, device=device) for a in (np.zeros_like(want), index, src))
    np.testing.assert_array_equal(x.scatter_add(1, i, s).numpy(), want)
    same = Tensor(index[0, :, :1], device=device).expand(70, 48)
    want = columns_of(np.zeros((5, 48), np.float32), index[0, :, :1].repeat(48, 1), src[0])
    np.testing.assert_array_equal(x[0].scatter_add(0, same, s[0]).numpy(), want)


def test_an_index_out_of_range_in_any_column_raises(device):
    for column in (0, 17, 63):
        index = np.zeros((40, 64), np.int64)
        index[-1, column] = 9
        wrong = Tensor(index, device=device) + 1
        with pytest.raises(IndexRangeError):
            Tensor.zeros(10, 64, device=device).scatter_add(
                0, wrong, Tensor.ones(40, 64, device=device)
            ).numpy()


def test_an_index_that_was_looked_at_is_held_to_every_length_and_after_every_update(device):
    x, index = Tensor.arange(10, device=device), Tensor([3, 0, 7], device=device)
    assert x[index].tolist() == [3, 0, 7]
    with pytest.raises(IndexRangeError, match="index 7 is outside axis 0 of size 5"):
        x[:5][index]
    index[1] = -10
    assert x[index].tolist() == [3, 0, 7]
    index[1] = 10
    with pytest.raises(IndexRangeError, match="10"):
        x[index.realize()]
    index -= 8
    index.realize()
    assert x[index].tolist() == [5, 2, 9]


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce_folds(reduce, include_self):
    a = numbered((4, 3))
    index = np.array([[0, 1, 1], [0, 1, 3], [3, 1, 0]])
    src = np.array([[5, -2, 3], [7, 0.5, 1], [2, 4, -6]], np.float32)
    want = a.copy()
    for row in range(4):
        for column in range(3):
            found = [src[i, column] for i in range(3) if index[i, column] == row]
            values = ([a[row, column]] if include_self or not found else []) + found
            fold = {"sum": np.sum, "prod": np.prod, "mean": np.mean, "amax": np.max, "amin": np.min}
            want[row, column] = fold[reduce](values)
    got = Tensor(a).scatter_reduce(0, Tensor(index), Tensor(src), reduce, include_self=include_self)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)


def test_scatter_takes_numbers_and_works_in_place():
    x = Tensor.zeros(2, 3)
    assert x.scatter(1, Tensor([[0], [2]]), 5.0).tolist() == [[5, 0, 0], [0, 0, 5]]
    assert x.scatter(1, Tensor([[0, 0], [2, 2]]), 5.0, reduce="add").tolist() == [
        [10, 0, 0],
        [0, 0, 10],
    ]
    assert x.scatter_(1, Tensor([[1], [1]]), 1.0) is x
    assert x.scatter_add_(1, Tensor([[1], [1]]), Tensor([[2.0], [3.0]])).tolist() == [
        [0, 3, 0],
        [0, 4, 0],
    ]


def test_gradients_of_gather_and_scatter():
    index = Tensor([[0, 1, 0], [1, 1, 2]])
    places = np.array([[0, 1, 0], [1, 1, 2]])
    check(
        lambda x: x.gather(1, index), lambda a: np.take_along_axis(a, places, 1), numbered((2, 3))
    )
    check(
        lambda x, s: x.scatter_add(1, index, s),
        lambda a, s: scattered(a, 1, places, s, lambda old, new: old + new),
        numbered((2, 3)),
        numbered((2, 3)),
    )
    check(
        lambda x, s: x.scatter(1, index, s),
        lambda a, s: scattered(a, 1, places, s, lambda old, new: new),
        numbered((2, 3)),
        numbered((2, 3)),
    )


def test_selections_by_vectors_and_masks():
    a = numbered((3, 4))
    x = Tensor(a)
    np.testing.assert_array_equal(x.index_select(1, Tensor([3, 0])).numpy(), a[:, [3, 0]])
    np.testing.assert_array_equal(
        x.index_add(0, Tensor([2, 2]), Tensor(a[:2])).numpy(),
        a + np.array([[0] * 4, [0] * 4, a[0] + a[1]]),
    )
    np.testing.assert_array_equal(x.masked_select(x > 6).numpy(), a[a > 6])
    np.testing.assert_array_equal(
        x.masked_select(Tensor([True, False, False, True])).numpy(), a[:, [0, 3]].reshape(-1)
    )
    np.testing.assert_array_equal((x > 6).nonzero().numpy(), np.argwhere(a > 6))
    assert (x > 6).nonzero().dtype is dtypes.int64
    assert Tensor([0.0]).nonzero().shape == (0, 1)


# ---- indices out of range ------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [3, -4, 2**40])
def test_a_known_index_out_of_range_raises_at_the_call(bad):
    x = Tensor(numbered((3, 2)))
    for use in (
        lambda: x[bad],
        lambda: x[[0, bad]],
        lambda: x[Tensor([bad])],
        lambda: x[Tensor([bad]), 0],
        lambda: x.gather(0, Tensor([[bad, 0]])),
        lambda: x.scatter(0, Tensor([[bad]]), 1.0),
        lambda: x.index_select(0, Tensor([bad])),
    ):
        with pytest.raises(IndexRangeError, match=rf"{bad}.*axis 0"):
            use()


def test_a_computed_index_out_of_range_raises_when_it_is_computed(device):
    x = Tensor(numbered((3, 2)), device=device)
    index = Tensor([0.0, 3.0], device=device).long() + 0
    taken = x[index]
    with pytest.raises(IndexRangeError, match="test_tensor_indexing"):
        taken.numpy()
    x[index - 1] = 0.0  # 2 and -1: the last row
    np.testing.assert_array_equal(x.numpy()[2], [0, 0])


def test_an_empty_index_is_never_out_of_range():
    assert Tensor.zeros(0, 2)[Tensor([], dtype="int64")].shape == (0, 2)
    assert Tensor(numbered((3, 2)))[[]].shape == (0, 2)
