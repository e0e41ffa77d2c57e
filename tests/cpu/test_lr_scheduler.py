"""Learning rates against their published formulas and, where it is installed, PyTorch's."""

from __future__ import annotations

import math

import pytest

from coregrad import Tensor
from coregrad.errors import CoregradError, DataError
from coregrad.nn import optim
from coregrad.nn.optim import lr_scheduler

BASE = 0.3
STEPS = 13

# name, arguments, and the rate after n steps
CASES = {
    "StepLR": ({"step_size": 3, "gamma": 0.5}, lambda n: BASE * 0.5 ** (n // 3)),
    "MultiStepLR": (
        {"milestones": [7, 2, 2], "gamma": 0.5},
        lambda n: BASE * 0.5 ** (2 * (n >= 2) + (n >= 7)),
    ),
    "ExponentialLR": ({"gamma": 0.9}, lambda n: BASE * 0.9**n),
    "LinearLR": (
        {"start_factor": 0.25, "end_factor": 0.75, "total_iters": 4},
        lambda n: BASE * (0.25 + 0.5 * min(n, 4) / 4),
    ),
    "CosineAnnealingLR": (
        {"T_max": 5, "eta_min": 0.01},
        lambda n: 0.01 + (BASE - 0.01) * (1 + math.cos(math.pi * n / 5)) / 2,
    ),
    "LambdaLR": ({"lr_lambda": lambda n: 1 / (1 + n)}, lambda n: BASE / (1 + n)),
}


def sgd():
    return optim.SGD([Tensor([1.0])], lr=BASE)


@pytest.mark.parametrize("name", CASES)
def test_a_scheduler_sets_the_rate_of_its_formula(name):
    arguments, formula = CASES[name]
    optimizer = sgd()
    scheduler = getattr(lr_scheduler, name)(optimizer, **arguments)
    for n in range(STEPS):
        assert optimizer.lr == pytest.approx(formula(n), rel=1e-12, abs=1e-15)
        assert scheduler.get_last_lr() == [optimizer.lr]
        scheduler.step()


@pytest.mark.parametrize("name", CASES)
def test_a_scheduler_sets_the_rates_of_pytorch(name):
    torch = pytest.importorskip("torch")
    arguments, _ = CASES[name]
    ours, theirs = sgd(), torch.optim.SGD([torch.ones(1)], lr=BASE)
    scheduler = getattr(lr_scheduler, name)(ours, **arguments)
    reference = getattr(torch.optim.lr_scheduler, name)(theirs, **arguments)
    for _ in range(STEPS):
        assert ours.lr == pytest.approx(reference.get_last_lr()[0], rel=1e-9, abs=1e-12)
        theirs.step()
        scheduler.step()
        reference.step()


@pytest.mark.parametrize("name", CASES)
def test_a_saved_scheduler_goes_on_where_it_stopped(name):
    arguments, formula = CASES[name]
    first = getattr(lr_scheduler, name)(sgd(), **arguments)
    for _ in range(4):
        first.step()
    optimizer = optim.SGD([Tensor([1.0])], lr=9.0)
    second = getattr(lr_scheduler, name)(optimizer, **arguments)
    second.load_state_dict(first.state_dict())
    assert optimizer.lr == pytest.approx(formula(4), rel=1e-12)
    second.step()
    assert optimizer.lr == pytest.approx(formula(5), rel=1e-12)
    with pytest.raises(DataError, match=f"{name}.load_state_dict"):
        second.load_state_dict({"last_epoch": 1})


def test_the_step_that_follows_uses_the_rate():
    p = Tensor([1.0], requires_grad=True)
    optimizer = optim.SGD([p], lr=1.0)
    scheduler = lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    value = 1.0
    for rate in (1.0, 0.5, 0.25):
        optimizer.zero_grad()
        (p * 3).sum().backward()
        optimizer.step()
        scheduler.step()
        value -= 3 * rate
        assert p.item() == value


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("StepLR", {"step_size": 0}, "step_size is 0"),
        ("StepLR", {"step_size": 2, "gamma": "x"}, "gamma is 'x'"),
        ("ExponentialLR", {"gamma": math.nan}, "gamma is nan"),
        ("LinearLR", {"start_factor": -1}, "start_factor is -1"),
        ("CosineAnnealingLR", {"T_max": 2.5}, "T_max is 2.5"),
        ("LambdaLR", {"lr_lambda": 0.5}, "lr_lambda is a float"),
    ],
)
def test_a_scheduler_checks_what_it_is_given(name, arguments, message):
    optimizer = sgd()
    with pytest.raises(CoregradError, match=f"{name}: {message}"):
        getattr(lr_scheduler, name)(optimizer, **arguments)
    assert optimizer.lr == BASE
