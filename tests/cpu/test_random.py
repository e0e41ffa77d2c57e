"""Random tensors: fixed by seed and place in the sequence, and distributed as they claim."""

from __future__ import annotations

import math

import numpy as np
import pytest

from coregrad import Tensor, dtypes, no_grad
from coregrad.api.threefry import GENERATOR
from coregrad.errors import CoregradError, DTypeError, ShapeError

N = 40_000


def six_sigma(values, mean, deviation):
    """The mean of N numbers is off by six of its standard deviations once in 500 million runs."""
    return abs(np.mean(values, dtype=np.float64) - mean) < 6 * deviation / math.sqrt(len(values))


@pytest.fixture(autouse=True)
def _seeded():
    Tensor.manual_seed(1234)


DRAWS = {
    "rand": lambda: Tensor.rand(5),
    "randn": lambda: Tensor.randn(5),
    "randint": lambda: Tensor.randint(5, high=1000),
    "randperm": lambda: Tensor.randperm(7),
    "uniform": lambda: Tensor.uniform(5, low=-1.0, high=2.0),
    "bernoulli": lambda: Tensor.full((50,), 0.5).bernoulli(),
    "multinomial": lambda: Tensor([1.0, 2.0, 3.0]).multinomial(9, replacement=True),
    "dropout": lambda: Tensor.ones(50).dropout(0.5),
    "kaiming_uniform": lambda: Tensor.kaiming_uniform(4, 3),
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_seed_fixes_the_numbers(name):
    one, two = DRAWS[name]().numpy(), DRAWS[name]().numpy()
    Tensor.manual_seed(1234)
    np.testing.assert_array_equal(DRAWS[name]().numpy(), one)
    np.testing.assert_array_equal(DRAWS[name]().numpy(), two)
    Tensor.manual_seed(1235)
    assert not np.array_equal(DRAWS[name]().numpy(), one)


def test_numbers_do_not_depend_on_the_order_of_evaluation():
    def drawn(order):
        Tensor.manual_seed(7)
        tensors = [draw() for draw in DRAWS.values()]
        values = {i: tensors[i].numpy() for i in order(range(len(tensors)))}
        return [values[i] for i in range(len(tensors))]

    for a, b in zip(drawn(list), drawn(reversed), strict=True):
        np.testing.assert_array_equal(a, b)


def test_one_draw_used_twice_is_one_draw():
    x = Tensor.rand(1000)
    assert not (x - x).numpy().any()
    np.testing.assert_array_equal(x.numpy(), x.numpy())
    assert len(np.unique(x.numpy())) > 990


def test_these_numbers_are_the_same_for_ever():
    # Uniform numbers are the upper 24 bits of threefry words: seed 0, first draw, elements 0 to 2.
    Tensor.manual_seed(0)
    key = GENERATOR.key().tolist()
    assert key == [0x6B200159, 0x99BA4EFE]  # the known answer for counter 0 under key 0
    Tensor.manual_seed(0)
    got = Tensor.rand(3).numpy() * 2**24
    assert got.tolist() == [float(w >> 8) for w in reference_words(key, 3)]


def reference_words(key, count):
    """The first word of threefry2x32-20 for counters 0 to count - 1, in Python's integers."""

    def rotate(x, n):
        return ((x << n) | (x >> (32 - n))) & 0xFFFFFFFF

    keys = [*key, key[0] ^ key[1] ^ 0x1BD11BDA]
    out = []
    for i in range(count):
        a, b = (i + keys[0]) & 0xFFFFFFFF, keys[1]
        for step in range(20):
            a = (a + b) & 0xFFFFFFFF
            b = rotate(b, (13, 15, 26, 6, 17, 29, 16, 24)[step % 8]) ^ a
            if step % 4 == 3:
                group = step // 4 + 1
                a = (a + keys[group % 3]) & 0xFFFFFFFF
                b = (b + keys[(group + 1) % 3] + group) & 0xFFFFFFFF
        out.append(a)
    return out


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_uniform_numbers_have_the_moments_of_the_uniform_distribution(dtype):
    x = Tensor.rand(N, dtype=dtype).numpy().astype(np.float64)
    step = {"float16": 2**-11, "bfloat16": 2**-8}.get(dtype, 0.0)  # they are rounded down
    assert x.min() >= 0.0
    assert x.max() < 1.0
    assert six_sigma(x + step / 2, 0.5, math.sqrt(1 / 12))
    assert six_sigma((x + step / 2 - 0.5) ** 2, (1 - step * step) / 12, math.sqrt(1 / 180))
    assert six_sigma((x[1:] - 0.5) * (x[:-1] - 0.5), 0.0, 1 / 12 * 1.05) or step


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_normal_numbers_have_the_moments_of_the_normal_distribution(dtype):
    x = Tensor.randn(N, dtype=dtype).numpy().astype(np.float64)
    assert six_sigma(x, 0.0, 1.0)
    assert six_sigma(x**2, 1.0, math.sqrt(2)) or dtype == "bfloat16"
    assert abs((x**2).mean() - 1.0) < 0.06
    assert six_sigma(x**3, 0.0, math.sqrt(15))
    assert abs((x**4).mean() - 3.0) < 0.4
    assert np.isfinite(x).all()
    assert abs((np.abs(x) < 1).mean() - 0.6827) < 0.02


def test_normal_and_uniform_take_their_parameters():
    x = Tensor.normal(N, mean=3.0, std=0.5).numpy()
    assert six_sigma(x, 3.0, 0.5)
    u = Tensor.uniform(N, low=-2.0, high=4.0).numpy()
    assert six_sigma(u, 1.0, 6 / math.sqrt(12))
    assert u.min() >= -2.0
    assert u.max() <= 4.0


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3, 4), (0, 10), (5, 261)])
def test_integers_hit_every_value_about_equally_often(low, high):
    x = Tensor.randint(N, low=low, high=high).numpy()
    counts = np.bincount(x - low, minlength=high - low)
    expected = N / (high - low)
    assert x.min() >= low
    assert x.max() < high
    chi_square = ((counts - expected) ** 2 / expected).sum()
    freedom = high - low - 1
    assert chi_square < freedom + 6 * math.sqrt(2 * freedom) + 20


@pytest.mark.parametrize("high", [2**32, 2**33, 2**62])
def test_integers_of_wide_ranges_fill_them(high):
    x = Tensor.randint(N, high=high).numpy().astype(np.float64) / high
    assert six_sigma(x, 0.5, math.sqrt(1 / 12))
    assert Tensor.randint(3, low=-(2**63), high=2**63 - 1).dtype is dtypes.int64


def test_integers_take_pytorchs_order_of_arguments():
    assert Tensor.randint(10, (2, 3)).shape == (2, 3)
    assert Tensor.randint(5, 10, (4,)).shape == (4,)
    assert Tensor.randint(2, 3, high=10, dtype="int16").dtype is dtypes.int16


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Tensor.randint(3, low=5, high=5), ShapeError, r"\[5, 5\)"),
        (lambda: Tensor.randint(3, high=300, dtype="uint8"), DTypeError, "uint8"),
        (lambda: Tensor.randint(3), CoregradError, "upper bound"),
        (lambda: Tensor.rand(3, dtype="int32"), DTypeError, "int32"),
        (lambda: Tensor.rand(-1), ShapeError, "negative"),
        (lambda: Tensor([1.0, 1.0]).multinomial(3), ShapeError, "without replacement"),
        (lambda: Tensor([1, 1]).multinomial(1), DTypeError, "int64"),
    ],
)
def test_draws_that_cannot_be_say_so(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("n", [0, 1, 2, 100, 5000])
def test_permutations_hold_every_number_once(n):
    x = Tensor.randperm(n).numpy()
    assert sorted(x.tolist()) == list(range(n))
    if n >= 100:
        assert x.tolist() != sorted(x.tolist())


def test_permutations_are_all_equally_likely():
    seen = {}
    for _ in range(600):
        order = tuple(Tensor.randperm(3).tolist())
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == 6
    assert max(seen.values()) < 160


def test_bernoulli_keeps_its_probability():
    x = Tensor.full((N,), 0.3).bernoulli()
    assert x.requires_grad is False
    assert six_sigma(x.numpy(), 0.3, math.sqrt(0.21))
    assert Tensor([0.0, 1.0]).bernoulli().tolist() == [0.0, 1.0]


def test_multinomial_never_draws_what_has_no_weight():
    weights = np.zeros((5000, 3), np.float32)
    weights[:, 1] = 1e-30
    assert (Tensor(weights).multinomial(1).numpy() == 1).all()
    x = Tensor([0.0, 1.0, 3.0, 0.0]).multinomial(8000, replacement=True).numpy()
    counts = np.bincount(x, minlength=4)
    assert counts[0] == counts[3] == 0
    assert abs(counts[2] / 8000 - 0.75) < 0.03


def test_multinomial_without_replacement_draws_each_at_most_once():
    x = Tensor(np.ones((50, 6), np.float32)).multinomial(6).numpy()
    assert (np.sort(x, 1) == np.arange(6)).all()
    firsts = Tensor(np.tile(np.float32([1.0, 3.0]), (4000, 1))).multinomial(2).numpy()[:, 0]
    assert abs(firsts.mean() - 0.75) < 0.04


def test_starting_weights_have_the_variance_they_claim():
    fan_in = 784
    for draw in (Tensor.kaiming_uniform, Tensor.kaiming_normal):
        w = draw(64, fan_in, a=0.0).numpy()
        assert w.shape == (64, fan_in)
        assert abs(w.var() * fan_in / 2 - 1) < 0.05
    g = Tensor.glorot_uniform(100, 300).numpy()
    assert abs(g.var() * (100 + 300) / 2 - 1) < 0.05
    s = Tensor.scaled_uniform(100, 100).numpy()
    assert np.abs(s).max() <= 0.01


def test_like_takes_shape_dtype_and_kind():
    x = Tensor(np.zeros((2, 3), np.float16))
    assert x.rand_like().shape == (2, 3)
    assert x.randn_like().dtype is dtypes.float16
    assert Tensor.rand(2, requires_grad=True).is_leaf


def test_an_empty_draw_takes_its_place_in_the_sequence():
    Tensor.manual_seed(0)
    Tensor.rand(0, 3)
    after = Tensor.rand(2).tolist()
    Tensor.manual_seed(0)
    Tensor.rand(5)
    assert Tensor.rand(2).tolist() == after


def test_numbers_in_place_are_those_of_the_functions_and_keep_the_flag():
    for method, function in (("uniform_", Tensor.uniform), ("normal_", Tensor.normal)):
        Tensor.manual_seed(4)
        wanted = function(2, 3).tolist()
        Tensor.manual_seed(4)
        w = Tensor.zeros(2, 3, requires_grad=True)
        with no_grad():
            assert getattr(w, method)() is w
        assert (w.tolist(), w.requires_grad) == (wanted, True)
    with pytest.raises(DTypeError, match="int32"):
        Tensor([1], dtype="int32").normal_()
