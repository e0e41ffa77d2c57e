"""Optimisers against their published formulas in float64 NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from coregrad import Tensor, dtypes, engine, jit, nn
from coregrad.errors import CoregradError, DataError, DTypeError, GradientError, ShapeError
from coregrad.nn import optim

SHAPES = [(3, 2), (4,), ()]


def gradients(step):
    rng = np.random.default_rng(step)
    return [rng.standard_normal(shape) for shape in SHAPES]


def start():
    rng = np.random.default_rng(99)
    return [rng.standard_normal(shape) for shape in SHAPES]


def sgd(lr, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False):
    def run(p, grads, rates):
        velocity = None
        for g, rate in zip(grads, rates, strict=True):
            g = g + weight_decay * p
            if momentum:
                velocity = g if velocity is None else momentum * velocity + (1 - dampening) * g
                g = g + momentum * velocity if nesterov else velocity
            p = p - rate * g
        return p

    return run


def adam(lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, decoupled=False):
    def run(p, grads, rates):
        m = v = 0.0
        for t, (g, rate) in enumerate(zip(grads, rates, strict=True), start=1):
            if decoupled:
                p = p - rate * weight_decay * p
            else:
                g = g + weight_decay * p
            m = betas[0] * m + (1 - betas[0]) * g
            v = betas[1] * v + (1 - betas[1]) * g * g
            p = p - rate * (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
        return p

    return run


def rmsprop(lr, alpha=0.99, eps=1e-8, weight_decay=0.0, momentum=0.0):
    def run(p, grads, rates):
        v = velocity = 0.0
        for g, rate in zip(grads, rates, strict=True):
            g = g + weight_decay * p
            v = alpha * v + (1 - alpha) * g * g
            change = g / (np.sqrt(v) + eps)
            velocity = momentum * velocity + change
            p = p - rate * velocity
        return p

    return run


CASES = {
    "sgd": (optim.SGD, sgd, {}),
    "sgd momentum": (optim.SGD, sgd, {"momentum": 0.9}),
    "sgd nesterov": (optim.SGD, sgd, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "sgd dampening": (optim.SGD, sgd, {"momentum": 0.9, "dampening": 0.3}),
    "adam": (optim.Adam, adam, {}),
    "adam epsilon": (optim.Adam, adam, {"eps": 0.5, "weight_decay": 0.1}),
    "adam betas": (optim.Adam, adam, {"betas": (0.0, 0.5)}),
    "adamw": (
        optim.AdamW,
        lambda lr, **kw: adam(lr, decoupled=True, **kw),
        {"betas": (0.8, 0.95), "weight_decay": 0.1},
    ),
    "rmsprop": (optim.RMSprop, rmsprop, {}),
    "rmsprop momentum": (optim.RMSprop, rmsprop, {"momentum": 0.9, "weight_decay": 0.1}),
}


def stepped(params, make, grads_of, steps, rates):
    opt = make(params)
    for step in range(steps):
        opt.zero_grad()
        opt.lr = rates[step]
        for p, g in zip(params, grads_of(step), strict=True):
            (p * Tensor(g.astype(np.float32))).sum().backward()
        opt.step()
    return opt


@pytest.mark.parametrize("name", CASES)
def test_optimisers_follow_their_formulas_also_when_the_rate_changes(name):
    kind, formula, options = CASES[name]
    rates = [0.1, 0.1, 0.02, 0.02, 0.02, 0.1]
    params = [Tensor(p.astype(np.float32), requires_grad=True) for p in start()]
    stepped(params, lambda ps: kind(ps, lr=0.5, **options), gradients, len(rates), rates)
    run = formula(0.5, **options)
    for i, (p, value) in enumerate(zip(params, start(), strict=True)):
        want = run(value, [gradients(s)[i] for s in range(len(rates))], rates)
        np.testing.assert_allclose(p.numpy(), want, rtol=2e-5, atol=2e-6)


def test_adams_bias_correction_keeps_its_digits():
    """1 - 0.999 in float32 is off in the fifth digit; a constant gradient moves by lr exactly."""
    p = Tensor([0.0], requires_grad=True)
    opt = optim.Adam([p], lr=1.0, eps=0.0)
    for step in range(1, 4):
        opt.zero_grad()
        (p * Tensor([3.0])).sum().backward()
        opt.step()
        assert p.item() == pytest.approx(-step, rel=2e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_parameters_keep_their_state_in_float32(dtype):
    p = Tensor(np.ones(3, np.float32)).cast(dtype).requires_grad_()
    opt = optim.Adam([p], lr=0.125)
    (p * Tensor([1e-3, -1e-3, 1e-3]).cast(dtype)).sum().backward()
    opt.step()
    assert p.dtype.name == dtype
    np.testing.assert_allclose(p.numpy().astype(float), [0.875, 1.125, 0.875], rtol=1e-2)
    assert opt.state_dict()["square.0"].dtype is dtypes.float32


def test_a_parameter_without_a_gradient_is_skipped():
    a, b = Tensor([1.0], requires_grad=True), Tensor([5.0], requires_grad=True)
    opt = optim.SGD([a, b], lr=0.5)
    (a * 2.0).sum().backward()
    opt.step()
    assert (a.item(), b.item()) == (0.0, 5.0)


def test_stepping_before_backward_is_an_error():
    opt = optim.Adam([Tensor([1.0], requires_grad=True)])
    with pytest.raises(GradientError, match=r"backward\(\)"):
        opt.step()


def test_a_step_computes_everything_in_one_realize(monkeypatch):
    params = [Tensor(p.astype(np.float32), requires_grad=True) for p in start()]
    opt = optim.Adam(params)
    for p in params:
        (p * p).sum().backward()
    calls = []
    realize = engine.realize

    def counted(nodes, device):
        calls.append(len(nodes))
        realize(nodes, device)

    monkeypatch.setattr(engine, "realize", counted)
    opt.step()
    assert len(calls) == 1
    assert calls[0] >= 3 * len(params)


def test_old_values_are_not_changed_by_a_step():
    p = Tensor([1.0], requires_grad=True)
    before = p.detach()
    pending = p * 10
    (p * 3.0).sum().backward()
    optim.SGD([p], lr=1.0).step()
    assert (p.item(), before.item(), pending.item()) == (-2.0, 1.0, 10.0)


def test_parameters_that_said_nothing_are_made_to_require_gradients():
    p = Tensor([1.0])
    frozen = Tensor([1.0], requires_grad=False)
    optim.SGD([p, frozen], lr=0.1)
    assert p.requires_grad is True
    assert frozen.requires_grad is False


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda p: optim.SGD([], 0.1), CoregradError, "empty"),
        (lambda p: optim.SGD(p, 0.1), CoregradError, "one tensor"),
        (lambda p: optim.SGD([p, p], 0.1), CoregradError, "twice"),
        (lambda p: optim.SGD([Tensor([1])], 0.1), DTypeError, "parameter 0.*int64"),
        (lambda p: optim.SGD([1.0], 0.1), CoregradError, "float, not a Tensor"),
        (lambda p: optim.SGD([p], -0.1), CoregradError, "lr is -0.1"),
        (lambda p: optim.SGD([p], math.nan), CoregradError, "lr is nan"),
        (lambda p: optim.SGD([p], 0.1, momentum=-1), CoregradError, "momentum"),
        (lambda p: optim.SGD([p], 0.1, nesterov=True), CoregradError, "nesterov"),
        (lambda p: optim.Adam([p], betas=(0.9, 1.0)), CoregradError, "betas"),
        (lambda p: optim.Adam([p], eps=-1e-8), CoregradError, "eps"),
        (lambda p: optim.AdamW([p], weight_decay=-1), CoregradError, "weight_decay"),
        (lambda p: optim.SGD([p], "fast"), CoregradError, "lr is 'fast'; it must be a number"),
        (lambda p: optim.SGD([p], dampening=math.inf), CoregradError, "dampening is inf"),
        (lambda p: optim.Adam([p], betas=0.9), CoregradError, "betas is 0.9; give two"),
        (lambda p: optim.Adam([p], betas=("a", 0.9)), CoregradError, "betas is 'a'"),
        (lambda p: optim.RMSprop([p], momentum=None), CoregradError, "momentum is None"),
    ],
)
def test_constructors_check_what_they_are_given(make, error, message):
    with pytest.raises(error, match=message):
        make(Tensor([1.0], requires_grad=True))


def test_the_learning_rate_can_be_read_and_checked():
    opt = optim.SGD([Tensor([1.0])], lr=0.1)
    opt.lr = 0.25
    assert opt.lr == 0.25
    with pytest.raises(CoregradError, match="lr is -1"):
        opt.lr = -1
    with pytest.raises(CoregradError, match="lr is 'x'; it must be a number"):
        opt.lr = "x"
    assert opt.lr == 0.25


@pytest.mark.parametrize(
    ("kind", "setting", "value"),
    [
        (optim.SGD, "momentum", "much"),
        (optim.SGD, "dampening", math.nan),
        (optim.SGD, "weight_decay", -1),
        (optim.Adam, "eps", None),
        (optim.AdamW, "betas", (0.9, 1.0)),
        (optim.RMSprop, "alpha", [0.9]),
    ],
)
def test_other_settings_are_checked_when_they_are_assigned(kind, setting, value):
    opt = kind([Tensor([1.0])])
    before = getattr(opt, setting)
    with pytest.raises(CoregradError, match=rf"{kind.__name__}: {setting}"):
        setattr(opt, setting, value)
    assert getattr(opt, setting) == before


def stepping(opt, p):
    opt.zero_grad()
    (p * p).sum().backward()
    opt.step()


@pytest.mark.parametrize(
    ("make", "setting", "value"),
    [
        (lambda p: optim.SGD([p]), "momentum", 0.9),
        (lambda p: optim.SGD([p], momentum=0.9), "dampening", 0.5),
        (lambda p: optim.RMSprop([p]), "momentum", 0.9),
    ],
)
def test_a_setting_that_needs_state_cannot_be_turned_on_later(make, setting, value):
    p = Tensor([1.0, 2.0], requires_grad=True)
    opt = make(p)
    setattr(opt, setting, value)
    with pytest.raises(CoregradError, match=f"step: {setting} was changed.*{setting}={value}"):
        stepping(opt, p)
    assert p.tolist() == [1.0, 2.0]


def test_momentum_and_nesterov_may_change_between_steps():
    p = Tensor([1.0, 2.0], requires_grad=True)
    opt = optim.SGD([p], lr=0.1, momentum=0.9)
    value, velocity = np.array([1.0, 2.0]), np.zeros(2)
    for momentum in (0.9, 0.5, 0.0, 0.8):
        opt.momentum = momentum
        stepping(opt, p)
        grad = 2 * value
        if momentum:  # without it the velocity rests, as in PyTorch
            velocity = momentum * velocity + grad
        value = value - 0.1 * (velocity if momentum else grad)
        np.testing.assert_allclose(p.numpy(), value, rtol=1e-5)
    opt.nesterov, opt.momentum = True, 0.0
    with pytest.raises(CoregradError, match="nesterov needs momentum > 0"):
        stepping(opt, p)


def test_a_captured_step_notices_another_momentum():
    p = Tensor([1.0, 2.0], requires_grad=True)
    opt = optim.SGD([p], lr=0.1, momentum=0.9)
    captured = jit(lambda: stepping(opt, p))
    value, velocity = np.array([1.0, 2.0]), np.zeros(2)
    for momentum in (0.9, 0.9, 0.5):
        opt.momentum = momentum
        captured()
        velocity = momentum * velocity + 2 * value
        value = value - 0.1 * velocity
        np.testing.assert_allclose(p.numpy(), value, rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_a_saved_state_goes_on_where_it_stopped(name):
    kind, _, options = CASES[name]

    def make(params):
        return kind(params, lr=0.1, **options)

    rates = [0.1] * 3
    once = [Tensor(p.astype(np.float32), requires_grad=True) for p in start()]
    opt = stepped(once, make, gradients, 3, rates)
    saved = {k: v.numpy() for k, v in opt.state_dict().items()}
    values = [p.numpy() for p in once]
    copies = [Tensor(v, requires_grad=True) for v in values]
    other = make(copies)
    other.load_state_dict({k: Tensor(v) for k, v in saved.items()})
    for o, params in ((opt, once), (other, copies)):
        o.zero_grad()
        for p, g in zip(params, gradients(7), strict=True):
            (p * Tensor(g.astype(np.float32))).sum().backward()
        o.step()
    for a, b in zip(once, copies, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_a_state_that_does_not_fit_is_refused():
    opt = optim.Adam([Tensor([1.0, 2.0])])
    state = opt.state_dict()
    with pytest.raises(DataError, match="bias1"):
        opt.load_state_dict({k: v for k, v in state.items() if k != "bias1"})
    with pytest.raises(ShapeError, match=r"mean.0"):
        opt.load_state_dict({**state, "mean.0": Tensor([1.0])})


def test_clipping_scales_all_gradients_by_their_common_norm():
    a, b = Tensor([0.0, 0.0], requires_grad=True), Tensor([0.0], requires_grad=True)
    without = Tensor([0.0], requires_grad=True)
    ((a * Tensor([3.0, 0.0])).sum() + (b * Tensor([4.0])).sum()).backward()
    assert optim.clip_grad_norm_([a, b, without], 1.0).item() == 5.0
    np.testing.assert_allclose(a.grad.numpy(), [0.6, 0.0], rtol=1e-5)
    np.testing.assert_allclose(b.grad.numpy(), [0.8], rtol=1e-5)
    optim.clip_grad_norm_([a, b], 10.0)
    np.testing.assert_allclose(b.grad.numpy(), [0.8], rtol=1e-5)
    assert optim.clip_grad_norm_([without], 1.0).item() == 0.0
    assert optim.clip_grad_norm_(a, 1.0, math.inf).item() == pytest.approx(0.6, rel=1e-5)


def test_clipping_by_value_moves_every_element():
    p, q = Tensor([1.0, 1.0, 1.0], requires_grad=True), Tensor([1.0], requires_grad=True)
    (p * Tensor([5.0, -7.0, 0.25])).sum().backward()
    optim.clip_grad_value_([p, q], 2)
    assert p.grad.tolist() == [2.0, -2.0, 0.25]
    assert q.grad is None
    optim.clip_grad_value_(p, 0.5)
    assert p.grad.tolist() == [0.5, -0.5, 0.25]
    with pytest.raises(CoregradError, match="clip_value is -1"):
        optim.clip_grad_value_(p, -1)


def test_training_a_small_network_reaches_its_data():
    Tensor.manual_seed(0)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 3)).astype(np.float32)
    y = np.sin(x.sum(1, keepdims=True)).astype(np.float32)
    net = nn.Sequential(nn.Linear(3, 16), Tensor.tanh, nn.Linear(16, 1))
    opt = optim.Adam(net.parameters(), lr=0.03)
    first = last = 0.0
    for step in range(60):
        opt.zero_grad()
        loss = net(Tensor(x)).mse_loss(Tensor(y))
        loss.backward()
        opt.step()
        last = loss.item()
        first = last if step == 0 else first
    assert last < first / 5
