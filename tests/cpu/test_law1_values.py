"""Law 1: a tensor is a value with a name. Nothing that was built earlier changes."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coregrad import Tensor, no_grad
from coregrad.errors import GradientError

CHANGES = {
    "add_": lambda t: t.add_(1),
    "+=": lambda t: t.__iadd__(1),
    "mul_": lambda t: t.mul_(3),
    "fill_": lambda t: t.fill_(7),
    "zero_": lambda t: t.zero_(),
    "copy_": lambda t: t.copy_(Tensor.ones(2, 3)),
    "assign": lambda t: t.assign(t * 5),
    "setitem": lambda t: t.__setitem__(0, 9),
    "setitem of a mask": lambda t: t.__setitem__(t > 2, 0),
    "setitem of indices": lambda t: t.__setitem__([1, 0], Tensor([[1.0], [2.0]])),
    "masked_fill_": lambda t: t.masked_fill_(t > 2, -1),
    "scatter_": lambda t: t.scatter_(0, Tensor([[0, 1, 0]]), 8.0),
    "data": lambda t: setattr(t, "data", t * 2),
}
READERS = {
    "itself under another name": lambda t: t.detach(),
    "a clone": lambda t: t.clone(),
    "a slice": lambda t: t[0],
    "a transpose": lambda t: t.T,
    "a reshape": lambda t: t.reshape(3, 2),
    "the same shape": lambda t: t.reshape(2, 3),
    "an expression": lambda t: t * 2 + 1,
    "a sum": lambda t: t.sum(),
    "a cast": lambda t: t.to(t.dtype) * 1,
}
START = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


@pytest.mark.parametrize("realized", [False, True], ids=["pending", "computed"])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("change", CHANGES)
def test_what_was_built_earlier_does_not_change(change, reader, realized):
    x = Tensor(START)
    if realized:
        x.realize()
    earlier = READERS[reader](x)
    if realized:
        earlier.realize()
    want = np.array(READERS[reader](Tensor(START)).tolist())
    CHANGES[change](x)
    assert x.tolist() != START
    np.testing.assert_array_equal(earlier.numpy(), want)


@pytest.mark.parametrize("change", CHANGES)
def test_changing_a_view_does_not_change_its_source(change):
    x = Tensor(START)
    for view in (x.detach(), x.reshape(2, 3), x.expand(2, 3), x[:], x.clone(), x.flip(0).flip(0)):
        CHANGES[change](view)
    assert x.tolist() == START


def test_two_names_of_one_object_are_one_name():
    x = Tensor([1.0])
    y = x
    y += 1
    assert x.tolist() == [2]
    y = y + 1
    assert x.tolist() == [2]


def test_a_tensor_may_be_written_from_itself_shifted():
    x = Tensor(np.arange(6, dtype=np.float32))
    x.realize()
    x[1:] = x[:-1]
    assert x.tolist() == [0, 0, 1, 2, 3, 4]
    x += x.flip(0)
    assert x.tolist() == [4, 3, 3, 3, 3, 4]
    x[::2] = x[1::2] * 10
    assert x.tolist() == [30, 3, 30, 3, 40, 4]


def test_a_pending_update_runs_once():
    x = Tensor([1.0, 2.0, 3.0, 4.0])
    x[:3] *= 10
    x[1:] += 1
    for _ in range(3):
        assert x.tolist() == [10, 21, 31, 5]


def test_swapping_through_the_old_value():
    a, b = Tensor([1.0]), Tensor([2.0])
    old = a.clone()
    a.assign(b)
    b.assign(old)
    assert (a.tolist(), b.tolist()) == ([2], [1])
    a.assign(a)
    assert a.tolist() == [2]


def test_long_chains_of_updates_compute_themselves():
    counter = Tensor.zeros(2)
    history = []
    for i in range(1000):
        counter += 1
        if i % 250 == 0:
            history.append(counter.detach())
    depth, node = 0, counter.node
    while node.src:
        node, depth = node.src[0], depth + 1
    assert depth < 500
    assert counter.tolist() == [1000, 1000]
    assert [h.item() for h in [t[0] for t in history]] == [1, 251, 501, 751]


def test_a_training_loop_lets_go_of_its_past():
    w = Tensor(np.ones(3, np.float32), requires_grad=True)
    past = []
    for _ in range(6):
        past.append(weakref.ref(w.node))
        w.grad = None
        (w * w).sum().backward()
        with no_grad():
            w -= 0.1 * w.grad
        w.realize()
    w.grad = None
    gc.collect()
    assert [node() for node in past[:-1]] == [None] * 5


OPERATIONS = st.sampled_from(["add", "mul", "write", "read", "alias", "shift"])


@given(st.lists(OPERATIONS, max_size=12), st.booleans())
@settings(max_examples=40, deadline=None)
def test_any_sequence_of_updates_is_what_numpy_copies_would_be(operations, realize):
    x, a = Tensor(START, device="numpy"), np.array(START, np.float32)
    seen = []
    for number, operation in enumerate(operations):
        if operation == "add":
            x += number
            a = a + number
        elif operation == "mul":
            x.mul_(0.5)
            a = a * np.float32(0.5)
        elif operation == "write":
            x[:, 1:] = x[:, :2] + number
            a = a.copy()
            a[:, 1:] = a[:, :2] + number
        elif operation == "shift":
            x[0] = x[1]
            a = a.copy()
            a[0] = a[1]
        elif operation == "alias":
            seen.append((x[:, ::2], a[:, ::2].copy()))
        elif realize:
            np.testing.assert_array_equal(x.numpy(), a)
    seen.append((x, a))
    for ours, theirs in seen:
        np.testing.assert_array_equal(ours.numpy(), theirs)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.sub_(1.0),
        lambda data: data.zero_(),
        lambda data: data.copy_(Tensor([5.0, 6.0])),
        lambda data: data.normal_(),
        lambda data: data.assign(Tensor([5.0, 6.0])),
        lambda data: data.__setitem__(0, 5.0),
    ],
)
def test_an_in_place_method_on_data_is_an_error_as_it_would_change_nothing(change):
    w = Tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(GradientError, match=r"\.data is a value of its own"):
        change(w.data)
    assert w.tolist() == [1.0, 2.0]


def test_operators_in_place_on_data_change_the_tensor_or_the_name():
    w = Tensor([1.0, 2.0], requires_grad=True)
    w.data -= 0.5
    assert w.tolist() == [0.5, 1.5]
    assert w.requires_grad
    total = w.data
    total += 1
    total.mul_(2)
    assert (total.tolist(), w.tolist()) == ([3.0, 5.0], [0.5, 1.5])
    copy = w.data.clone()
    copy.zero_()
    assert (copy.tolist(), w.tolist()) == ([0.0, 0.0], [0.5, 1.5])
