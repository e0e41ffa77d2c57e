"""What a tensor remembers of how it was made, once it has been computed."""

import gc

import numpy as np

from coregrad import Tensor, no_grad
from coregrad.engine import Storage


def live_bytes() -> int:
    gc.collect()
    return sum(o.nbytes for o in gc.get_objects() if type(o) is Storage)


def test_reading_a_value_before_backward_does_not_cut_its_history() -> None:
    for flag in (None, True):
        x = Tensor([1.0, 2.0], requires_grad=flag)
        middle = (x * x).realize()
        loss = (middle * 3.0).sum()
        assert loss.item() == 15.0
        loss.backward()
        assert x.grad is not None
        np.testing.assert_array_equal(x.grad.numpy(), [6.0, 12.0])


def test_a_computed_result_takes_no_gradient_of_its_own() -> None:
    x = Tensor([1.0, 2.0])
    middle = (x * x).realize()
    (middle * 3.0).sum().backward()
    assert middle.grad is None


def test_two_ways_into_a_computed_value_both_count() -> None:
    x = Tensor([1.0, 2.0])
    before = x * x
    left = before * 2.0
    before.realize()
    (left + before * 3.0).sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), [10.0, 20.0])


def test_a_loop_that_computes_every_step_keeps_only_the_last_ones() -> None:
    x = Tensor(np.zeros(1000, np.float32))
    x = (x + 1.0).realize()
    start = live_bytes()
    for _ in range(50):
        x = (x + 1.0).realize()
    assert live_bytes() <= start + 2 * 4000
    assert x.numpy()[0] == 51.0


def test_updates_under_no_grad_keep_only_the_last_value() -> None:
    w = Tensor(np.ones(1000, np.float32), requires_grad=True)
    sizes = []
    for _ in range(20):
        (w * w).sum().backward()
        with no_grad():
            w.assign(w - w.grad * 0.1)
        w.realize()
        w.grad = None
        sizes.append(live_bytes())
    assert sizes[-1] <= sizes[2]
