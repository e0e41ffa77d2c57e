"""Modules, layers, state and safetensors files."""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coregrad import Tensor, dtypes, nn
from coregrad.errors import CoregradError, DataError, ShapeError
from coregrad.nn import state


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Net(nn.Module):
    """Parameters wherever they may stand."""

    def __init__(self):
        self.layers = [nn.Linear(4, 3), Tensor.relu, nn.BatchNorm(3)]
        self.pair = (nn.Linear(3, 2),)
        self.named = {"drop": nn.Dropout(0.5), "scale": nn.Parameter([1.0, 1.0])}
        self.steps = Tensor(0)

    def forward(self, x):
        x = x.sequential(self.layers)
        return self.named["drop"](self.pair[0](x)) * self.named["scale"]


class Bare:
    """No Module at all."""

    def __init__(self):
        self.l1 = Tensor.kaiming_uniform(4, 3)
        self.l2 = [Tensor.zeros(3)]
        self.count = Tensor(1)
        self.frozen = Tensor([1.0], requires_grad=False)
        self.activation = Tensor.relu
        self.itself = self


PARAMETERS = [
    "layers.0.weight", "layers.0.bias", "layers.2.weight", "layers.2.bias", "pair.0.weight",
    "pair.0.bias", "named.scale",
]  # fmt: skip


# ---- modules -----------------------------------------------------------------------------------


def test_parameters_are_found_in_lists_tuples_and_dicts():
    net = Net()
    assert [name for name, _ in net.named_parameters()] == PARAMETERS
    assert [t.shape for t in net.parameters()][:2] == [(3, 4), (3,)]
    assert all(t.requires_grad is True for t in net.parameters())
    extra = ["layers.2.running_mean", "layers.2.running_var", "layers.2.num_batches_tracked"]
    assert set(net.state_dict()) == {*PARAMETERS, *extra, "steps"}


def test_a_bare_class_works_too():
    bare = Bare()
    assert list(state.get_state_dict(bare)) == ["l1", "l2.0", "count", "frozen"]
    assert state.get_parameters(bare) == [bare.l1, bare.l2[0]]
    assert state.get_parameters([bare, {"again": bare}]) == [bare.l1, bare.l2[0]]


def test_a_shared_parameter_is_one_parameter_with_two_names():
    net = nn.Module()
    net.a = nn.Linear(2, 2, bias=False)
    net.b = nn.Linear(2, 2, bias=False)
    net.b.weight = net.a.weight
    assert len(list(net.parameters())) == 1
    assert list(net.state_dict()) == ["a.weight", "b.weight"]
    nn.optim.SGD(net.parameters(), lr=0.1)


def test_training_and_evaluation_mode_reach_every_module():
    net = Net()
    modules = [net, net.layers[0], net.layers[2], net.pair[0], net.named["drop"]]
    assert all(m.training for m in modules)
    assert net.eval() is net
    assert not any(m.training for m in modules)
    net.train()
    assert all(m.training for m in modules)
    assert [name for name, _ in net.named_modules()] == [
        "", "layers.0", "layers.2", "pair.0", "named.drop",
    ]  # fmt: skip


def test_a_call_runs_forward_and_a_module_may_define_call_itself():
    class Direct(nn.Module):
        def __call__(self, x):
            return x + 1

    assert Direct()(Tensor([1.0])).tolist() == [2.0]
    with pytest.raises(CoregradError, match=r"Module: has no forward"):
        nn.Module()(Tensor([1.0]))


def test_freezing_and_forgetting_gradients():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    net(Tensor(normal(3, 2))).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())
    net[0].requires_grad_(False)
    net(Tensor(normal(3, 2))).sum().backward()
    assert [p.grad is None for p in net.parameters()] == [True, True, False, False]
    assert len(list(net.parameters())) == 4
    net.requires_grad_()
    assert all(p.requires_grad for p in net.parameters())


def test_to_changes_floating_tensors_and_keeps_their_kind():
    net = Net()
    net.pair = list(net.pair)
    net.named["tied"] = net.named["scale"]
    before = net.layers[0].weight.numpy()
    assert net.to("float64") is net
    assert net.layers[0].weight.dtype is dtypes.float64
    assert isinstance(net.layers[0].weight, nn.Parameter)
    assert net.layers[2].running_mean.requires_grad is False
    assert net.steps.dtype is dtypes.int64
    assert net.named["tied"] is net.named["scale"]
    np.testing.assert_array_equal(net.layers[0].weight.numpy(), before)


def test_the_text_of_a_module_shows_its_parts():
    text = repr(nn.Sequential(nn.Linear(3, 4), Tensor.relu, nn.Dropout(0.1)))
    assert "0: Linear(3, 4, bias=True)" in text
    assert "2: Dropout(p=0.1)" in text
    assert "layers.2: BatchNorm(3" in repr(Net())


# ---- layers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "shape", "result"),
    [
        (lambda: nn.Linear(4, 3), (2, 5, 4), (2, 5, 3)),
        (lambda: nn.Conv1d(4, 6, 3, groups=2), (2, 4, 8), (2, 6, 6)),
        (lambda: nn.Conv2d(4, 6, (3, 1), stride=2, padding=1), (2, 4, 8, 8), (2, 6, 4, 5)),
        (lambda: nn.Conv2d(1, 2, 3, padding="same", bias=False), (1, 5, 6), (2, 5, 6)),
        (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1), (2, 4, 8, 8), (2, 6, 16, 16)),
        (lambda: nn.BatchNorm1d(4), (3, 4), (3, 4)),
        (lambda: nn.BatchNorm2d(4), (3, 4, 2, 2), (3, 4, 2, 2)),
        (lambda: nn.LayerNorm((4, 2)), (3, 4, 2), (3, 4, 2)),
        (lambda: nn.GroupNorm(2, 4), (3, 4, 2), (3, 4, 2)),
        (lambda: nn.RMSNorm(4), (3, 4), (3, 4)),
        (lambda: nn.MaxPool2d(2, ceil_mode=True), (1, 1, 5, 5), (1, 1, 3, 3)),
        (lambda: nn.AvgPool2d(2), (1, 1, 5, 5), (1, 1, 2, 2)),
        (lambda: nn.Flatten(), (2, 3, 4), (2, 12)),
        (lambda: nn.Softmax(), (2, 3), (2, 3)),
        (lambda: nn.GELU("tanh"), (2, 3), (2, 3)),
        (lambda: nn.ReLU(), (2, 3), (2, 3)),
        (lambda: nn.Sigmoid(), (2, 3), (2, 3)),
        (lambda: nn.Tanh(), (2, 3), (2, 3)),
        (lambda: nn.Identity(), (2, 3), (2, 3)),
        (lambda: nn.Dropout(0.5), (2, 3), (2, 3)),
    ],
    ids=lambda value: type(value()).__name__ if callable(value) else str(value),
)
def test_layers_give_the_right_shape_and_all_their_parameters_a_gradient(layer, shape, result):
    made = layer()
    out = made(Tensor(normal(*shape)))
    assert out.shape == result
    if list(made.parameters()):
        out.sum().backward()
        for name, p in made.named_parameters():
            assert p.grad is not None, name
            assert p.grad.shape == p.shape


def test_linear_and_embedding_compute_what_they_say():
    linear = nn.Linear(3, 2)
    x = normal(4, 3)
    want = x @ linear.weight.numpy().T + linear.bias.numpy()
    np.testing.assert_allclose(linear(Tensor(x)).numpy(), want, rtol=1e-5, atol=1e-6)
    table = nn.Embedding(5, 3)
    np.testing.assert_array_equal(table(Tensor([[4, 0]])).numpy(), table.weight.numpy()[[[4, 0]]])


def test_starting_values_are_pytorchs():
    linear = nn.Linear(400, 300)
    for values in (linear.weight.numpy(), linear.bias.numpy()):
        assert np.abs(values).max() <= 1 / math.sqrt(400)
        assert abs(values.mean()) < 0.01
    assert abs(linear.weight.numpy().var() * 400 * 3 - 1) < 0.05
    conv = nn.Conv2d(8, 16, 5)
    assert np.abs(conv.weight.numpy()).max() <= 1 / math.sqrt(8 * 25)
    norm = nn.BatchNorm(3)
    assert norm.weight.tolist() == [1.0] * 3
    assert norm.bias.tolist() == norm.running_mean.tolist() == [0.0] * 3
    assert norm.running_var.tolist() == [1.0] * 3


@pytest.mark.parametrize("momentum", [0.1, 0.5, None])
def test_batch_norm_tracks_the_mean_and_the_unbiased_variance(momentum):
    norm = nn.BatchNorm(3, momentum=momentum)
    mean, var = np.zeros(3), np.ones(3)
    for step in range(1, 4):
        x = normal(4, 3, 2, 2, seed=step) * 2 + 5
        y = norm(Tensor(x)).numpy()
        m, v = x.mean((0, 2, 3)), x.var((0, 2, 3))
        wide = (1, 3, 1, 1)
        np.testing.assert_allclose(
            y, (x - m.reshape(wide)) / np.sqrt(v.reshape(wide) + 1e-5), atol=1e-4
        )
        share = 1 / step if momentum is None else momentum
        mean = (1 - share) * mean + share * m
        var = (1 - share) * var + share * v * 16 / 15
    np.testing.assert_allclose(norm.running_mean.numpy(), mean, rtol=1e-4)
    np.testing.assert_allclose(norm.running_var.numpy(), var, rtol=1e-4)
    assert norm.num_batches_tracked.item() == 3
    norm.eval()
    x = normal(2, 3, 2, 2, seed=9)
    want = (x - mean.reshape(1, 3, 1, 1)) / np.sqrt(var.reshape(1, 3, 1, 1) + 1e-5)
    for _ in range(2):
        np.testing.assert_allclose(norm(Tensor(x)).numpy(), want, rtol=1e-4, atol=1e-4)
    assert norm.num_batches_tracked.item() == 3


def test_batch_norm_of_one_value_per_channel_is_an_error_in_training_only():
    norm = nn.BatchNorm(2)
    x = Tensor(np.float32([[[[1.0]], [[2.0]]]]))
    with pytest.raises(ShapeError, match="1 value per channel"):
        norm(x)
    assert np.isfinite(norm.eval()(x).numpy()).all()
    with pytest.raises(ShapeError, match="2 channels on axis 1"):
        norm(Tensor(normal(2, 5)))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.BatchNorm1d, (2, 3, 4, 4)),
        (nn.BatchNorm2d, (2, 3)),
        (nn.BatchNorm2d, (2, 3, 4)),
        (nn.InstanceNorm1d, (2, 3, 4, 4)),
        (nn.InstanceNorm2d, (2, 3, 4)),
    ],
)
def test_a_norm_of_one_rank_refuses_others(layer, shape):
    with pytest.raises(ShapeError, match=f"{layer.__name__}.*has {len(shape)} axes"):
        layer(3)(Tensor.ones(*shape))


def test_every_public_name_of_nn_is_there():
    assert [name for name in nn.__all__ if not hasattr(nn, name)] == []
    assert nn.functional.relu(Tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]


def test_batch_norm_without_tracking_uses_the_batch_also_in_evaluation():
    norm = nn.BatchNorm(3, affine=False, track_running_stats=False).eval()
    y = norm(Tensor(normal(50, 3) * 3 + 1)).numpy()
    np.testing.assert_allclose(y.mean(0), 0, atol=1e-5)
    assert norm.state_dict() == {}


def test_sequential_counts_indexes_and_iterates():
    net = nn.Sequential(nn.Linear(3, 4), Tensor.relu, nn.Linear(4, 2))
    assert (len(net), net[1], net[-1].out_features) == (3, Tensor.relu, 2)
    assert [name for name, _ in net.named_parameters()] == [
        "0.weight", "0.bias", "2.weight", "2.bias",
    ]  # fmt: skip
    x = normal(2, 3)
    by_hand = net[2](net[0](Tensor(x)).relu())
    np.testing.assert_array_equal(net(Tensor(x)).numpy(), by_hand.numpy())
    with pytest.raises(CoregradError, match="layer 1 is a int"):
        nn.Sequential(nn.Linear(1, 1), 3)


def test_loss_modules_are_the_losses():
    z, y = Tensor(normal(4, 3)), Tensor([0, 2, 1, 1])
    assert nn.CrossEntropyLoss()(z, y).item() == z.cross_entropy(y).item()
    weight = Tensor([1.0, 2.0, 0.5])
    weighted = nn.CrossEntropyLoss(weight, label_smoothing=0.1)
    assert weighted(z, y).item() == z.cross_entropy(y, weight, label_smoothing=0.1).item()
    assert list(weighted.parameters()) == []
    t = Tensor(normal(4, 3, seed=1))
    assert nn.MSELoss("sum")(z, t).item() == z.mse_loss(t, "sum").item()


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(0, 3),
        lambda: nn.Conv2d(3, 4, 3, groups=2),
        lambda: nn.GroupNorm(3, 4),
        lambda: nn.Embedding(0, 3),
    ],
)
def test_layers_that_cannot_be_say_so(make):
    with pytest.raises(ShapeError):
        make()


def test_starting_values_can_be_drawn_again():
    w = nn.Parameter(Tensor.zeros(64, 32, 3, 3))
    nn.init.kaiming_uniform_(w)
    assert abs(w.numpy().var() * 32 * 9 / 2 - 1) < 0.05
    nn.init.xavier_normal_(w)
    assert abs(w.numpy().var() * (32 + 64) * 9 / 2 - 1) < 0.05
    nn.init.constant_(w, 0.5)
    assert (w.numpy() == 0.5).all()
    assert w.requires_grad is True
    with pytest.raises(ShapeError, match="fan-in"):
        nn.init.kaiming_normal_(Tensor.zeros(3))
    with pytest.raises(CoregradError, match="choose one of"):
        nn.init.calculate_gain("swish")


# ---- state -------------------------------------------------------------------------------------


def test_a_state_is_taken_over_by_name():
    one, two = Net(), Net()
    one.layers[2].running_mean.assign([1.0, 2.0, 3.0])
    two.load_state_dict(one.state_dict())
    for name, tensor in one.state_dict().items():
        np.testing.assert_array_equal(two.state_dict()[name].numpy(), tensor.numpy())
    assert all(p.requires_grad for p in two.parameters())
    two.layers[0].weight.assign(two.layers[0].weight * 0)
    assert one.layers[0].weight.numpy().any()


def test_a_state_dict_keeps_the_values_it_was_made_with():
    net = nn.Linear(2, 1)
    saved = net.state_dict()
    before = saved["weight"].numpy()
    net.weight.assign(net.weight + 1)
    np.testing.assert_array_equal(saved["weight"].numpy(), before)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda s: s.pop("bias"), DataError, "missing in the state: bias"),
        (lambda s: s.update(extra=Tensor([1.0])), DataError, "not in the model: extra"),
        (lambda s: s.update(weight=Tensor.ones(2, 4)), ShapeError, r"weight is \(2, 3\)"),
        (lambda s: s.update(weight=Tensor.ones(1, 3)), ShapeError, r"\(1, 3\) in the state"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_name_and_changes_nothing(change, error, message):
    net = nn.Linear(3, 2)
    before = net.state_dict()
    given_state = {name: tensor + 1 for name, tensor in before.items()}
    change(given_state)
    with pytest.raises(error, match=message):
        net.load_state_dict(given_state)
    for name, tensor in before.items():
        np.testing.assert_array_equal(net.state_dict()[name].numpy(), tensor.numpy())


def test_a_loose_load_takes_what_is_on_both_sides():
    net = nn.Linear(3, 2)
    net.load_state_dict({"bias": np.float64([1.0, 2.0]), "other": np.zeros(1)}, strict=False)
    assert net.bias.tolist() == [1.0, 2.0]
    assert net.bias.dtype is dtypes.float32


# ---- safetensors -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda d: d.name)
def test_every_dtype_survives_a_file(dtype, tmp_path):
    array = np.array([[0, 1, 3], [2, 0, 5]])
    tensor = Tensor(array).cast(dtype)
    path = tmp_path / "a.safetensors"
    state.safe_save({"x": tensor, "scalar": Tensor(2.0), "nothing": Tensor.zeros(0, 3)}, path)
    got = state.safe_load(path)
    assert got["x"].dtype is dtype
    np.testing.assert_array_equal(got["x"].numpy(), tensor.numpy())
    assert got["scalar"].shape == ()
    assert got["nothing"].shape == (0, 3)


def test_views_are_saved_as_what_they_show(tmp_path):
    x = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    views = {"t": x.T, "e": x[:1].expand(4, 3), "s": x[:, 1:], "f": x.flip(0)}
    path = tmp_path / "v.safetensors"
    state.safe_save(views, path, metadata={"format": "pt"})
    for name, tensor in state.safe_load(path).items():
        np.testing.assert_array_equal(tensor.numpy(), views[name].numpy())


def test_the_file_has_the_published_layout(tmp_path):
    path = tmp_path / "a.safetensors"
    state.safe_save({"b": Tensor(np.int8([1])), "a": Tensor(np.float64([2.0]))}, path)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    assert header == {
        "a": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]},
        "b": {"dtype": "I8", "shape": [1], "data_offsets": [8, 9]},
    }
    assert data[8 + length :] == struct.pack("<db", 2.0, 1)


def written(path, header, body=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    path.write_bytes(struct.pack("<Q", size) + text + body)
    return path


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


HOSTILE = {
    "a zip file": (b"PK\x03\x04" + b"\0" * 40, b"", 2**60),
    "a wild length": ({"w": 1}, b"", 2**62),
    "a length just too long": ({"w": entry()}, b"\0" * 8, 200),
    "no JSON": (b"{not json", b"", None),
    "not UTF-8": (b'{"\xff": 1}', b"", None),
    "a list": (b"[]", b"", None),
    "deep nesting": (b"[" * 100_000, b"", None),
    "a name twice": (b'{"w": 1, "w": 2}', b"", None),
    "bytes to spare": ({"w": entry()}, b"\0" * 40, None),
    "an overlap": ({"w": entry(), "v": entry()}, b"\0" * 8, None),
    "a gap": ({"w": entry(), "v": entry(offsets=(12, 20))}, b"\0" * 20, None),
    "offsets beyond the end": ({"w": entry(offsets=(0, 80), shape=(20,))}, b"\0" * 8, None),
    "offsets backwards": ({"w": entry(offsets=(8, 0))}, b"\0" * 8, None),
    "a shape that needs more": ({"w": entry(shape=(3,))}, b"\0" * 8, None),
    "a negative size": ({"w": entry(shape=(-2, -1))}, b"\0" * 8, None),
    "a fractional size": ({"w": entry(shape=(2.0,))}, b"\0" * 8, None),
    "a true size": ({"w": entry(shape=(True, 2))}, b"\0" * 8, None),
    "an unknown dtype": ({"w": entry(dtype="F7")}, b"\0" * 8, None),
    "a dtype that is a list": ({"w": entry(dtype=["F32"])}, b"\0" * 8, None),
    "an entry that is a number": ({"w": 3}, b"", None),
    "a missing field": ({"w": {"dtype": "F32", "shape": [2]}}, b"\0" * 8, None),
    "metadata that is a number": ({"__metadata__": 3}, b"", None),
    "a bool that is 2": ({"w": entry("BOOL", (1,), (0, 1))}, b"\x02", None),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(name, tmp_path):
    header, body, length = HOSTILE[name]
    path = written(tmp_path / "x.safetensors", header, body, length)
    with pytest.raises(DataError, match=r"x\.safetensors is no intact safetensors file"):
        state.safe_load(path)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_any_cut_and_any_changed_header_byte_is_an_error_or_harmless(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("cut")
    path = folder / "good.safetensors"
    state.safe_save({"w": Tensor([[1.0, 2.0]]), "i": Tensor([3])}, path)
    good = path.read_bytes()
    bad = folder / "bad.safetensors"
    bad.write_bytes(good[: data.draw(st.integers(0, len(good) - 1))])
    with pytest.raises(DataError):
        state.safe_load(bad)
    place = data.draw(st.integers(0, len(good) - 1))
    bad.write_bytes(good[:place] + bytes([data.draw(st.integers(0, 255))]) + good[place + 1 :])
    with contextlib.suppress(DataError):  # any other exception fails the test
        state.safe_load(bad)


def test_a_missing_file_is_an_error_with_its_path(tmp_path):
    with pytest.raises(DataError, match="nowhere"):
        state.safe_load(tmp_path / "nowhere")


def test_saving_is_atomic_and_keeps_the_old_file_on_failure(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    state.safe_save({"w": Tensor([1.0])}, path)

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        state.safe_save({"w": Tensor([2.0])}, path)
    monkeypatch.undo()
    assert state.safe_load(path)["w"].tolist() == [1.0]
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]
    with pytest.raises(DataError, match="cannot write"):
        state.safe_save({}, tmp_path / "no folder" / "a.safetensors")
    with pytest.raises(DataError, match="__metadata__"):
        state.safe_save({"__metadata__": Tensor([1.0])}, path)
