"""A captured function computes what the function computes, in every call (law 5)."""

import gc
import itertools
import random
import subprocess
import sys
import textwrap
import threading
import weakref
from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coregrad import Tensor, engine, grad, jit, nn, no_grad
from coregrad.errors import CaptureError, GradientError, IndexRangeError, ShapeError


def array(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def rounds(count=4, shape=(3,)):
    """Inputs that differ in every call."""
    return [array(*shape, seed=i) for i in range(count)]


# ---- arguments and results ---------------------------------------------------------------------


def test_every_call_uses_its_own_arguments():
    f = jit(lambda x, y: (x * y).sum())
    for i, x in enumerate(rounds()):
        y = array(3, seed=10 + i)
        np.testing.assert_allclose(f(Tensor(x), Tensor(y)).item(), (x * y).sum(), rtol=1e-5)
    assert f.captures == 1


def test_tensors_in_lists_tuples_and_dicts_are_arguments():
    f = jit(lambda group: {"sum": group["a"][0] + group["b"], "pair": (group["b"], 3)})
    for x in rounds():
        out = f({"a": [Tensor(x)], "b": Tensor(x * 2)})
        np.testing.assert_allclose(out["sum"].numpy(), x * 3, rtol=1e-6)
        np.testing.assert_array_equal(out["pair"][0].numpy(), x * 2)
        assert out["pair"][1] == 3


def test_named_tuples_come_back_as_they_are():
    Pair = namedtuple("Pair", "first second")
    f = jit(lambda x: Pair(x + 1, x - 1))
    for x in rounds():
        out = f(Tensor(x))
        assert type(out) is Pair
        np.testing.assert_array_equal(out.second.numpy(), x - 1)


def test_an_argument_that_is_returned_is_the_callers_own():
    f = jit(lambda x: (x, x * 2))
    for x in map(Tensor, rounds()):
        same, double = f(x)
        assert same is x
        np.testing.assert_array_equal(double.numpy(), x.numpy() * 2)


@pytest.mark.parametrize("other", [4, 2.5, True, None, "text"])
def test_another_python_value_is_another_capture(other):
    @jit
    def f(x, factor):
        return x * 2 if factor is None or isinstance(factor, str) else x * factor

    x = Tensor([1.0, 2.0])
    for factor in (3, other, 3, other):
        want = 2 if factor is None or isinstance(factor, str) else factor
        np.testing.assert_allclose(f(x, factor).numpy(), np.array([1.0, 2.0]) * want)
    assert f.captures == 2


@given(st.lists(st.sampled_from([(2,), (3,), (2, 3), (1,)]), min_size=1, max_size=6))
def test_another_shape_is_another_capture(shapes):
    f = jit(lambda x: x.sum() + x.numel())
    for i, shape in enumerate(shapes):
        x = array(*shape, seed=i)
        assert f(Tensor(x)).item() == pytest.approx(x.sum() + x.size, rel=1e-5, abs=1e-5)


def test_the_same_tensor_twice_is_not_two_tensors():
    f = jit(lambda x, y: x * 2 + y)
    a, b = Tensor([1.0]), Tensor([10.0])
    assert [f(a, a).item(), f(a, b).item(), f(b, b).item()] == [3.0, 12.0, 30.0]


def test_results_that_are_still_held_are_not_overwritten():
    f = jit(lambda x: x * 2)
    held = [(x, f(Tensor(x))) for x in rounds(6)]
    for x, out in held:
        np.testing.assert_array_equal(out.numpy(), x * 2)


def test_results_may_be_the_next_arguments():
    f = jit(lambda window, new: window[1:].cat(new))
    window, want = Tensor(np.zeros((4, 2), "float32")), np.zeros((4, 2), "float32")
    for i in range(8):
        new = np.full((1, 2), i, "float32")
        window, want = f(window, Tensor(new)), np.concatenate([want[1:], new])
        np.testing.assert_array_equal(window.numpy(), want)


def test_a_numpy_array_is_refused():
    with pytest.raises(CaptureError, match=r"pass Tensor\(array\)"):
        jit(lambda x: Tensor(x) * 2)(array(3))


def test_an_error_of_the_function_is_the_callers_and_changes_nothing():
    f = jit(lambda x, y: x + y)
    x = Tensor([1.0, 2.0, 3.0])
    with pytest.raises(ShapeError):
        f(x, Tensor([1.0, 2.0]))
    assert x.tolist() == [1.0, 2.0, 3.0]
    assert f(x, x).tolist() == [2.0, 4.0, 6.0]


# ---- state -------------------------------------------------------------------------------------


def test_a_tensor_of_the_surroundings_is_read_anew():
    w = Tensor([1.0])
    f = jit(lambda x: x * w)
    x = Tensor([3.0])
    assert f(x).item() == 3.0
    w.assign(Tensor([5.0]))
    assert f(x).item() == 15.0
    w += 1
    assert f(x).item() == 18.0
    assert f.captures == 1


def test_another_tensor_under_the_same_name_is_noticed():
    layer = nn.Linear(2, 2)
    f = jit(lambda x: layer(x))
    x = Tensor([[1.0, 2.0]])
    f(x)
    layer.weight, layer.bias = Tensor([[1.0, 0.0], [0.0, 1.0]]), None
    np.testing.assert_array_equal(f(x).numpy(), x.numpy())


def test_state_is_written_in_every_call():
    total = Tensor([0.0])

    @jit
    def add(x):
        total.assign(total + x)
        return total * 10

    for i in range(1, 5):
        assert add(Tensor([1.0])).item() == 10.0 * i
        assert total.item() == i


def test_an_argument_may_be_updated_in_place():
    f = jit(lambda p: p.assign(p * 0.5))
    w, other = Tensor([1.0]), Tensor([8.0])
    for _ in range(5):
        assert f(w) is w
    f(other)
    assert (w.item(), other.item()) == (1 / 32, 4.0)


def test_an_argument_that_is_state_as_well_is_noticed():
    w = Tensor([2.0])
    f = jit(lambda x: x * w)
    assert [f(w).item(), f(Tensor([5.0])).item(), f(w).item()] == [4.0, 10.0, 4.0]


def test_a_pending_tensor_of_the_surroundings_is_state():
    base = Tensor([1.0])
    pending = base + 1
    f = jit(lambda x: x * pending)
    assert [f(Tensor([v])).item() for v in (1.0, 2.0)] == [2.0, 4.0]


def test_python_values_of_the_surroundings_are_watched():
    class Scale(nn.Module):
        def __init__(self):
            self.factors = [2.0]

        def forward(self, x):
            return x * self.factors[0]

    module = Scale()
    f = jit(module)
    x = Tensor([1.0])
    assert f(x).item() == 2.0
    module.factors[0] = 7.0
    assert f(x).item() == 7.0
    offset = 1.0
    g = jit(lambda x: x + offset)
    assert g(x).item() == 2.0
    offset = 5.0
    assert g(x).item() == 6.0


def test_training_and_evaluation_are_different_captures():
    net = nn.Sequential(nn.BatchNorm(3), nn.Dropout(0.5))
    f = jit(lambda x: net(x))
    x = Tensor(array(8, 3))
    f(x)
    net.eval()
    norm = net[0]
    want = (x.numpy() - norm.running_mean.numpy()) / np.sqrt(norm.running_var.numpy() + 1e-5)
    np.testing.assert_allclose(f(x).numpy(), want, rtol=1e-4, atol=1e-5)


def test_running_statistics_follow_every_batch():
    def means(step, norm):
        for x in rounds(5, (16, 3)):
            step(Tensor(x))
        return norm.running_mean.numpy(), norm.num_batches_tracked.item()

    captured, plain = nn.BatchNorm(3), nn.BatchNorm(3)
    (a, n), (b, m) = means(jit(captured), captured), means(plain, plain)
    assert n == m == 5
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


# ---- training ----------------------------------------------------------------------------------


def network(seed=0):
    Tensor.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), Tensor.tanh, nn.Linear(8, 3))


def trainer(make, seed=0):
    net = network(seed)
    optim = make(net)

    def step(x, y):
        optim.zero_grad()
        loss = net(x).cross_entropy(y)
        loss.backward()
        optim.step()
        return loss

    return step, net, optim


OPTIMISERS = {
    "sgd": lambda net: nn.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "damped": lambda net: nn.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, dampening=0.3),
    "adam": lambda net: nn.optim.Adam(net.parameters(), lr=0.01),
    "adamw": lambda net: nn.optim.AdamW(net.parameters(), lr=0.01),
    "rmsprop": lambda net: nn.optim.RMSprop(net.parameters(), lr=0.01, momentum=0.5),
}


def batches(count=6):
    labels = np.random.default_rng(3).integers(0, 3, (count, 5))
    return [(Tensor(array(5, 6, seed=i)), Tensor(labels[i])) for i in range(count)]


@pytest.mark.parametrize("make", OPTIMISERS.values(), ids=OPTIMISERS)
def test_a_captured_training_step_trains_as_the_step_itself(make):
    plain, net, _ = trainer(make)
    captured, twin, _ = trainer(make)
    captured = jit(captured)
    for x, y in batches():
        assert captured(x, y).item() == pytest.approx(plain(x, y).item(), rel=1e-6)
    assert captured.captures == 1
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6, atol=1e-7)


def test_the_learning_rate_may_change_between_calls():
    results = []
    for wrap in (jit, lambda f: f):
        step, net, optim = trainer(OPTIMISERS["adam"])
        step = wrap(step)
        for i, (x, y) in enumerate(batches()):
            optim.lr = 0.01 / (1 + i)
            step(x, y)
        results.append(net[0].weight.numpy())
        assert getattr(step, "captures", 1) == 1
    np.testing.assert_allclose(*results, rtol=1e-6)


def test_gradients_add_up_over_calls_and_start_anew_when_they_are_gone():
    w = Tensor([2.0], requires_grad=True)
    f = jit(lambda x: (w * x).sum().backward())
    f(Tensor([3.0]))
    f(Tensor([4.0]))
    assert w.grad.item() == 7.0
    w.grad = None
    f(Tensor([5.0]))
    assert w.grad.item() == 5.0
    w.grad = Tensor([100.0])
    f(Tensor([1.0]))
    assert w.grad.item() == 101.0


def test_a_result_refuses_a_gradient_that_would_be_lost():
    w = Tensor([2.0], requires_grad=True)
    f = jit(lambda x: x * w)
    out = f(Tensor([3.0]))
    assert out.item() == 6.0
    with pytest.raises(GradientError, match="captured by @jit"):
        out.sum().backward()


def test_a_gradient_that_does_not_pass_the_result_is_not_disturbed():
    w = Tensor([2.0], requires_grad=True)
    prepared = jit(lambda x: x * 2)(Tensor([3.0]))
    (prepared * w).sum().backward()
    assert w.grad.item() == 6.0


def test_gradients_as_functions_are_captured():
    f = jit(grad(lambda x: (x**3).sum()))
    for x in rounds():
        np.testing.assert_allclose(f(Tensor(x)).numpy(), 3 * x**2, rtol=1e-5)


def test_a_captured_step_runs_without_gradients_too():
    net = network()
    f = jit(lambda x: net(x))
    x = Tensor(array(2, 6))
    with no_grad():
        inside = f(x)
    assert inside.requires_grad is False
    np.testing.assert_array_equal(f(x).numpy(), inside.numpy())
    assert f.captures == 2


# ---- randomness --------------------------------------------------------------------------------


def test_random_numbers_are_those_of_the_function_itself():
    def draws(function):
        Tensor.manual_seed(7)
        return [function(Tensor(np.zeros(8, "float32"))).tolist() for _ in range(5)]

    def noisy(x):
        return (x + Tensor.rand(8)).dropout(0.3) + Tensor.randn(8)

    plain, captured = draws(noisy), draws(jit(noisy))
    assert captured == plain
    assert len({tuple(row) for row in captured}) == 5


def test_numbers_drawn_on_the_host_are_refused():
    with pytest.raises(CaptureError, match="make the tensor outside"):
        jit(lambda x: x[Tensor.randperm(3)])(Tensor([1.0, 2.0, 3.0]))


OWN = np.random.default_rng(0)


def drawing_by(draw, source):
    return lambda: draw(source)


DRAWS = {
    "random": random.random,
    "random, by a function of its module": lambda: random.randint(0, 9),
    "numpy.random": lambda: float(np.random.rand()),
    "a global Generator": lambda: float(OWN.random()),
    "a Generator": drawing_by(lambda g: float(g.random()), np.random.default_rng(0)),
    "a method of a Generator": drawing_by(lambda m: float(m()), np.random.default_rng(0).random),
    "a RandomState": drawing_by(lambda s: float(s.rand()), np.random.RandomState(0)),
    "a BitGenerator": drawing_by(lambda b: b.random_raw() % 7, np.random.PCG64(0)),
    "a Random": drawing_by(lambda g: g.gauss(0, 1), random.Random(0)),
    "a count": drawing_by(next, itertools.count()),
    "an iterator of a list": drawing_by(next, iter([1, 2, 3])),
    "an iterator of a dict": drawing_by(next, iter({1: 2}.values())),
    "its __next__": drawing_by(lambda method: method(), iter([1, 2, 3]).__next__),
    "enumerate": drawing_by(lambda items: next(items)[1], enumerate([5, 6])),
    "zip": drawing_by(lambda items: next(items)[1], zip([5, 6], [7, 8], strict=True)),
    "a generator function": drawing_by(next, (i for i in [5, 6])),
    "one that is exhausted": drawing_by(sum, (i for i in [5])),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_drawing_outside_the_graph_is_an_error_not_a_frozen_number(draw):
    with pytest.raises(CaptureError, match=r"draws from .*Tensor\.rand.*argument"):
        jit(lambda x: x + draw())(Tensor([1.0]))


def test_a_generator_among_the_arguments_may_not_be_drawn_from():
    with pytest.raises(CaptureError, match="draws from"):
        jit(lambda x, g: x * g.random())(Tensor([1.0]), np.random.default_rng(1))


def test_a_generator_stays_where_the_function_left_it():
    ours, theirs = np.random.default_rng(3), np.random.default_rng(3)
    with pytest.raises(CaptureError, match="draws from ours"):
        jit(lambda x: x + ours.random())(Tensor([1.0]))
    theirs.random()
    assert ours.random() == theirs.random()


def test_generators_and_iterators_that_nobody_draws_from_do_no_harm():
    generator, numbers, left = np.random.default_rng(0), itertools.count(), iter([1, 2])
    before = random.getstate(), np.random.get_state()[1].tolist()

    @jit
    def f(x):
        items = iter([1, 2])
        fresh = np.random.default_rng(0).integers(1, 2)  # the same in every call
        used = [generator, numbers, left, range(3)]
        return x * len(used) + next(items) + int(fresh)

    assert [f(Tensor([i])).item() for i in range(3)] == [2, 6, 10]
    assert f.captures == 1
    generator.random()  # by the caller, between calls
    assert next(numbers) == 0
    assert f(Tensor([3])).item() == 14
    assert f.captures == 1
    assert before == (random.getstate(), np.random.get_state()[1].tolist())


@pytest.mark.parametrize("drawn", ["default_rng(0).integers(1, 2)", "rand()"])
def test_numpys_module_may_be_imported_first_inside_a_captured_function(drawn):
    code = f"""
        import numpy as np
        from coregrad import Tensor, jit
        from coregrad.errors import CaptureError
        try:
            print(jit(lambda x: x + float(np.random.{drawn}))(Tensor([1.0])).item())
        except CaptureError as error:
            print(error)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    wanted = "draws from numpy.random" if drawn == "rand()" else "2.0"
    assert wanted in done.stdout, done.stderr


def test_a_message_says_that_another_thread_may_have_drawn():
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        with pytest.raises(CaptureError, match=r"draws from random \(or another thread"):
            jit(lambda x: x + random.random())(Tensor([1.0]))
    finally:
        end.set()
        thread.join()


# ---- what cannot be captured -------------------------------------------------------------------


def test_looking_at_a_value_is_an_error():
    for look in (lambda x: x.item(), lambda x: x.numpy(), lambda x: x if x.sum() > 0 else -x):
        with pytest.raises(CaptureError, match="looks at a value"):
            jit(look)(Tensor([1.0]))


def test_rebinding_an_attribute_is_an_error():
    class Memory(nn.Module):
        def __init__(self):
            self.state = Tensor([0.0])

        def forward(self, x):
            self.state = self.state + x
            return self.state

    memory = Memory()
    with pytest.raises(CaptureError, match=r"state.*assign"):
        jit(memory)(Tensor([1.0]))


@pytest.mark.parametrize("kind", ["count", "list"])
def test_side_effects_that_a_replay_would_miss_are_errors(kind):
    log = {"count": 0, "list": []}

    def f(x):
        if kind == "count":
            log["count"] += 1
        else:
            log["list"].append(1)
        return x * 2

    with pytest.raises(CaptureError, match="changes"):
        jit(f)(Tensor([1.0]))


def test_host_arrays_that_enter_are_an_error():
    table = array(3)
    with pytest.raises(CaptureError, match="NumPy array"):
        jit(lambda x: x + Tensor(table))(Tensor([1.0, 2.0, 3.0]))
    with pytest.raises(CaptureError, match="NumPy array"):
        jit(lambda x: x + table)(Tensor([1.0, 2.0, 3.0]))


def test_a_failed_capture_leaves_everything_as_it_was():
    w = Tensor([1.0], requires_grad=True)

    def f(x):
        (w * x).sum().backward()
        with no_grad():
            w.assign(w * 2)
        return x.item()

    with pytest.raises(CaptureError):
        jit(f)(Tensor([1.0]))
    assert w.item() == 1.0
    assert w.grad is None
    (w * 3).sum().backward()
    assert w.grad.item() == 3.0


def test_an_index_out_of_range_raises_in_every_replay():
    table = Tensor(array(4, 2))
    f = jit(lambda i: table[i])
    np.testing.assert_array_equal(f(Tensor([0, 3])).numpy(), table.numpy()[[0, 3]])
    for _ in range(2):
        with pytest.raises(IndexRangeError, match="axis of 4"):
            f(Tensor([0, 4]))
    np.testing.assert_array_equal(f(Tensor([1, -1])).numpy(), table.numpy()[[1, -1]])
    assert f.captures == 1


@pytest.mark.parametrize("wrong", [(0, 0), (1, 13), (2, 31), (3, 36)])
def test_one_wrong_index_among_many_that_are_checked_together_raises(wrong):
    x = array(4, 37)
    index = np.tile(np.arange(37), (4, 1))[:, ::-1].copy()
    known, more = Tensor(x), Tensor(array(37, 37))
    gathered = jit(lambda i: known.gather(1, i))
    added = jit(lambda i: known.index_add(0, i, more))
    np.testing.assert_array_equal(gathered(Tensor(index)).numpy(), x[:, ::-1])
    rows = np.arange(37) % 4
    want = x.copy()
    np.add.at(want, rows, array(37, 37))
    np.testing.assert_allclose(added(Tensor(rows)).numpy(), want, rtol=1e-6)
    index[wrong], rows[wrong[1]] = 37, 4
    with pytest.raises(IndexRangeError, match="axis of 37"):
        gathered(Tensor(index))
    with pytest.raises(IndexRangeError, match="axis of 4"):
        added(Tensor(rows))


# ---- methods and lifetimes ---------------------------------------------------------------------


class Counter:
    def __init__(self, start):
        self.total = Tensor([start])

    @jit
    def add(self, x):
        self.total.assign(self.total + x)
        return self.total * 1


def test_every_instance_has_captures_of_its_own():
    a, b = Counter(0.0), Counter(100.0)
    for i in range(1, 4):
        assert a.add(Tensor([1.0])).item() == i
        assert b.add(Tensor([2.0])).item() == 100 + 2 * i
    assert a.add.captures == b.add.captures == 1


def test_an_instance_and_its_captures_go_together():
    counter = Counter(0.0)
    counter.add(Tensor([1.0]))
    gone = weakref.ref(counter)
    del counter
    gc.collect()
    assert gone() is None


def test_arguments_are_not_kept_alive():
    f = jit(lambda x: x * 2)
    x = Tensor(array(1000))
    f(x)
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None


def test_captured_functions_call_each_other():
    inner = jit(lambda x: x + 1)
    outer = jit(lambda x: inner(x) * 2)
    assert [outer(Tensor([v])).item() for v in (1.0, 2.0)] == [4.0, 6.0]


def test_two_functions_of_one_text_stay_apart():
    def times(k):
        return jit(lambda x: x * k)

    double, triple = times(2.0), times(3.0)
    for i in range(4):
        assert double(Tensor([float(i)])).item() == 2.0 * i
        assert triple(Tensor([float(i)])).item() == 3.0 * i


# ---- what a replay costs -----------------------------------------------------------------------


class Calls:
    """The device, counting calls."""

    def __init__(self, device):
        self.device, self.launches, self.replays = device, 0, 0

    def __getattr__(self, name):
        return getattr(self.device, name)

    def launch(self, *args):
        self.launches += 1
        self.device.launch(*args)

    def replay(self, launches):
        made = self.device.replay(launches)
        run = made.run

        def counted(buffers):
            self.replays += 1
            run(buffers)

        made.run = counted
        return made


def test_a_replay_on_the_cpu_is_one_native_call(monkeypatch):
    from coregrad import plugins

    active = plugins.open_device("cpu")
    calls = Calls(active.device)
    monkeypatch.setattr(
        plugins, "open_device", lambda name, o=plugins.open_device: _counted(o(name), calls)
    )
    step, _, _ = trainer(OPTIMISERS["adam"])
    step = jit(step)
    data = batches()
    step(*data[0])
    calls.launches = calls.replays = 0
    for x, y in data[1:]:
        step(x, y)
    assert (calls.launches, calls.replays) == (0, len(data) - 1)
    assert step.kernels > 5


def _counted(active, calls):
    import dataclasses

    return dataclasses.replace(active, device=calls) if active.name == "cpu" else active


def test_temporaries_share_an_arena():
    def chain(x):
        for _ in range(12):
            x = (x @ x).contiguous()
        return x

    f = jit(chain)
    f(Tensor(np.eye(64, dtype="float32")))
    program = next(iter(f._captures.values()))[0]._program
    assert program.kernels == 12
    assert program.arena_bytes <= 3 * 64 * 64 * 4


def test_no_nodes_are_built_by_a_replay_but_for_its_results():
    from coregrad.ir import graph

    f = jit(lambda x: (x * 2).exp().sum())
    x = Tensor(array(8))
    f(x)
    gc.collect()
    before = graph.alive()
    out = [f(x) for _ in range(10)]
    assert graph.alive() - before <= 2 * len(out)


def test_engine_records_launches_of_replays():
    f = jit(lambda x: (x * 2).sum())
    x = Tensor(array(8))
    f(x)
    engine.launches = []
    try:
        f(x)
        assert len(engine.launches) == f.kernels
    finally:
        engine.launches = None


def test_a_capture_takes_in_no_tensor_that_only_the_engine_looks_at():
    unrelated = Tensor(array(8)) * 3

    def f(x):
        engine._waiting()  # as happens now and then when tensors are made
        return x * 2

    captured = jit(f)
    captured(Tensor(array(8)))
    made = next(iter(captured._captures.values()))[0]
    assert len(made._sources) == 1
    np.testing.assert_array_equal(unrelated.numpy(), array(8) * 3)
