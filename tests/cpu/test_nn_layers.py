"""Layers beyond the first ones: recurrent, attention, normalisation, activations, losses.

Oracles are loops of NumPy in float64 and, where it is installed, PyTorch with the same weights.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from coregrad import Tensor, Variable, dtypes, jit, nn
from coregrad.errors import CoregradError, IndexRangeError, ShapeError
from coregrad.nn import functional

INF = math.inf


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(found, wanted, tol=2e-5):
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=tol, atol=tol)


def wide(module):
    """The weights as float64 arrays."""
    return {name: t.numpy().astype(np.float64) for name, t in module.state_dict().items()}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def named(value):
    return value if isinstance(value, str) else ""


# ---- recurrent layers against loops ------------------------------------------------------------


def lstm_step(x, h, c, w, end):
    gates = x @ w["weight_ih" + end].T + h @ w["weight_hh" + end].T
    gates = gates + w.get("bias_ih" + end, 0) + w.get("bias_hh" + end, 0)
    i, f, g, o = np.split(gates, 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    return (h @ w["weight_hr" + end].T if "weight_hr" + end in w else h), c


def gru_step(x, h, w, end):
    ours = x @ w["weight_ih" + end].T + w.get("bias_ih" + end, 0)
    theirs = h @ w["weight_hh" + end].T + w.get("bias_hh" + end, 0)
    (r, z, n), (rh, zh, nh) = np.split(ours, 3, -1), np.split(theirs, 3, -1)
    update = sigmoid(z + zh)
    return (1 - update) * np.tanh(n + sigmoid(r + rh) * nh) + update * h


def rnn_step(x, h, w, end, relu=False):
    total = x @ w["weight_ih" + end].T + h @ w["weight_hh" + end].T
    total = total + w.get("bias_ih" + end, 0) + w.get("bias_hh" + end, 0)
    return np.maximum(total, 0) if relu else np.tanh(total)


def walked(kind, layer, x, starts):
    """Outputs and last states of (L, N, C) by a loop; a state is a list of arrays."""
    w, ends = wide(layer), []
    for number in range(layer.num_layers):
        outputs = []
        for end in [f"_l{number}", f"_l{number}_reverse"][: 2 if layer.bidirectional else 1]:
            state = [part[len(ends)] for part in starts]
            steps = list(range(len(x)))
            made = {}
            for t in steps[::-1] if end.endswith("reverse") else steps:
                if kind == "LSTM":
                    state = list(lstm_step(x[t], *state, w, end))
                elif kind == "GRU":
                    state = [gru_step(x[t], *state, w, end)]
                else:
                    state = [rnn_step(x[t], *state, w, end, layer.nonlinearity == "relu")]
                made[t] = state[0]
            outputs.append(np.stack([made[t] for t in steps]))
            ends.append(state)
        x = np.concatenate(outputs, -1)
    return x, [np.stack(part) for part in zip(*ends, strict=True)]


LAYERS = [
    ("RNN", {}),
    ("RNN", {"nonlinearity": "relu", "bias": False}),
    ("LSTM", {}),
    ("LSTM", {"num_layers": 2, "bidirectional": True, "proj_size": 2}),
    ("GRU", {"bias": False}),
    ("GRU", {"num_layers": 2, "bidirectional": True}),
]


@pytest.mark.parametrize(("kind", "options"), LAYERS, ids=named)
def test_a_recurrent_layer_is_its_loop(kind, options):
    Tensor.manual_seed(1)
    layer = getattr(nn, kind)(3, 4, **options)
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    x = normal(5, 2, 3)
    shapes = [(count, 2, options.get("proj_size", 4)), (count, 2, 4)][: 2 if kind == "LSTM" else 1]
    starts = [normal(*shape, seed=i + 1) for i, shape in enumerate(shapes)]
    given = [Tensor(s) for s in starts]
    for hx, first in ((None, [s * 0 for s in starts]), (given, starts)):
        wanted, states = walked(kind, layer, x.astype(np.float64), first)
        start = hx if hx is None else (tuple(hx) if kind == "LSTM" else hx[0])
        output, last = layer(Tensor(x), start)
        close(output.numpy(), wanted)
        for found, state in zip(last if kind == "LSTM" else (last,), states, strict=True):
            close(found.numpy(), state)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_the_batch_may_stand_first_or_be_missing(kind):
    layer = getattr(nn, kind)(3, 4)
    x = normal(2, 5, 3)
    ours, _ = layer(Tensor(x.swapaxes(0, 1)))
    layer.batch_first = True
    close(layer(Tensor(x))[0].numpy(), ours.numpy().swapaxes(0, 1))
    single, last = layer(Tensor(x[1]))
    close(single.numpy(), ours.numpy()[:, 1])
    states = last if kind == "LSTM" else (last,)
    assert [state.shape for state in states] == [(1, 4)] * len(states)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_a_cell_is_one_step_of_its_layer(kind):
    layer, cell = getattr(nn, kind)(3, 4), getattr(nn, kind + "Cell")(3, 4)
    cell.load_state_dict({name[:-3]: t for name, t in layer.state_dict().items()})
    assert list(cell.state_dict()) == ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
    x = normal(2, 2, 3)
    output, _ = layer(Tensor(x))
    state = None
    for t in range(2):
        state = cell(Tensor(x[t]), state)
        h = state[0] if kind == "LSTM" else state
        close(h.numpy(), output.numpy()[t])
    one = cell(Tensor(x[0, 0]))
    close((one[0] if kind == "LSTM" else one).numpy(), output.numpy()[0, 0])


def test_every_step_of_a_recurrent_layer_passes_a_gradient():
    layer = nn.LSTM(2, 3)
    x = Tensor(normal(3, 1, 2), requires_grad=True)
    output, _ = layer(x)
    weights = normal(3, 1, 3, seed=5)
    (output * Tensor(weights)).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())

    def loss(values):
        zeros = [np.zeros((1, 1, 3))] * 2
        return (walked("LSTM", layer, values, zeros)[0] * weights).sum()

    base, step = x.numpy().astype(np.float64), 1e-6
    numeric = np.zeros_like(base)
    for place in np.ndindex(base.shape):
        for sign in (1, -1):
            moved = base.copy()
            moved[place] += sign * step
            numeric[place] += sign * loss(moved) / (2 * step)
    close(x.grad.numpy(), numeric, 1e-4)


def test_dropout_between_layers_acts_in_training_only():
    layer = nn.GRU(3, 4, num_layers=2, dropout=0.5)
    x = Tensor(normal(6, 2, 3))
    first, second = (layer(x)[0].numpy() for _ in range(2))
    assert not np.array_equal(first, second)
    layer.eval()
    first, second = (layer(x)[0].numpy() for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: nn.LSTM(0, 4), ShapeError, "input_size is 0"),
        (lambda: nn.LSTM(3, 4, proj_size=4), ShapeError, "proj_size 4"),
        (lambda: nn.GRU(3, 4, dropout=2.0), CoregradError, "dropout is 2.0"),
        (lambda: nn.RNN(3, 4, nonlinearity="sin"), CoregradError, "'sin'"),
        (lambda: nn.RNNCell(3, 4, nonlinearity="sin"), CoregradError, "'sin'"),
        (lambda: nn.LSTM(3, 4)(Tensor.ones(5, 2, 2)), ShapeError, r"\(5, 2, 2\)"),
        (lambda: nn.LSTM(3, 4)(Tensor.ones(0, 2, 3)), ShapeError, "at least one step"),
        (lambda: nn.GRU(3, 4)(Tensor.ones(5, 2, 3), Tensor.ones(2, 4)), ShapeError, r"\(1, 2, 4\)"),
        (lambda: nn.LSTM(3, 4)(Tensor.ones(5, 2, 3), Tensor.ones(1, 2, 4)), ShapeError, "pair"),
        (lambda: nn.GRUCell(3, 4)(Tensor.ones(2, 2)), ShapeError, r"\(N, 3\)"),
        (lambda: nn.LSTMCell(3, 4)(Tensor.ones(2, 3), (Tensor.ones(4),) * 2), ShapeError, "states"),
        (lambda: nn.MultiheadAttention(8, 3), ShapeError, "3 heads"),
        (lambda: nn.TransformerEncoderLayer(8, 2, activation="x"), CoregradError, "'x'"),
        (lambda: nn.Embedding(3, 2, padding_idx=3), IndexRangeError, "padding_idx 3"),
        (lambda: nn.InstanceNorm1d(3)(Tensor.ones(2, 3, 1)), ShapeError, "1 value per channel"),
        (lambda: nn.InstanceNorm(3)(Tensor.ones(2, 3)), ShapeError, "an axis after it"),
        (lambda: nn.InstanceNorm1d(3)(Tensor.ones(2, 3)), ShapeError, "has 2 axes, not 3"),
        (lambda: nn.PReLU(3)(Tensor.ones(2, 2)), ShapeError, "3 channels"),
    ],
)
def test_what_does_not_fit_is_said_at_the_call(make, error, message):
    with pytest.raises(error, match=message):
        make()


# ---- attention ---------------------------------------------------------------------------------


def heads_of(x, heads):
    n, length, width = x.shape
    return x.reshape(n, length, heads, width // heads).transpose(0, 2, 1, 3)


def attended(w, q, k, v, heads, added=0.0):
    """(output, weights) of batch-first inputs by NumPy in float64."""
    size = q.shape[-1]
    parts = [w["in_proj_weight"][i * size : (i + 1) * size] for i in range(3)]
    biases = [w["in_proj_bias"][i * size : (i + 1) * size] for i in range(3)]
    qh, kh, vh = (
        heads_of(x @ p.T + b, heads) for x, p, b in zip((q, k, v), parts, biases, strict=True)
    )
    scores = qh @ kh.swapaxes(-1, -2) / math.sqrt(size // heads) + added
    top = np.max(scores, -1, keepdims=True)
    powers = np.exp(scores - np.where(np.isfinite(top), top, 0))
    sums = powers.sum(-1, keepdims=True)
    weights = powers / np.where(sums == 0, 1, sums)
    joined = (weights @ vh).transpose(0, 2, 1, 3).reshape(q.shape)
    return joined @ w["out_proj.weight"].T + w["out_proj.bias"], weights


def attention(**options):
    made = nn.MultiheadAttention(8, 2, batch_first=True, **options)
    if made.in_proj_bias is not None:
        nn.init.uniform_(made.in_proj_bias, -1, 1)
        nn.init.uniform_(made.out_proj.bias, -1, 1)
    return made


INPUTS = normal(3, 4, 8), normal(3, 5, 8, seed=1), normal(3, 5, 8, seed=2)


@pytest.mark.parametrize("masked", ["no", "bool", "float", "padding", "per head", "both"])
def test_attention_of_several_heads_is_its_formula(masked):
    layer = attention()
    rng = np.random.default_rng(3)
    attn = padding = None
    added = np.zeros((1, 1, 4, 5))
    if masked in ("bool", "both"):
        attn = rng.random((4, 5)) < 0.4
        added = added + np.where(attn, -INF, 0.0)
    if masked == "per head":
        attn = rng.random((6, 4, 5)) < 0.4
        added = np.where(attn, -INF, 0.0).reshape(3, 2, 4, 5)
    if masked == "float":
        attn = rng.standard_normal((4, 5)).astype(np.float32)
        added = added + attn
    if masked in ("padding", "both"):
        padding = np.arange(5) >= np.array([[5], [3], [1]])
        added = added + np.where(padding, -INF, 0.0)[:, None, None, :]
    wanted, weights = attended(wide(layer), *(x.astype(np.float64) for x in INPUTS), 2, added)
    q, k, v = (Tensor(x) for x in INPUTS)
    masks = {
        "attn_mask": None if attn is None else Tensor(attn),
        "key_padding_mask": None if padding is None else Tensor(padding),
    }
    output, found = layer(q, k, v, **masks)
    close(output.numpy(), wanted)
    close(found.numpy(), weights.mean(1))
    _, found = layer(q, k, v, average_attn_weights=False, **masks)
    close(found.numpy(), weights)
    output, found = layer(q, k, v, need_weights=False, **masks)
    close(output.numpy(), wanted)
    assert found is None


def test_attention_to_itself_of_other_layouts_and_without_a_batch():
    layer = attention()
    x = INPUTS[0]
    wanted, weights = layer(Tensor(x), Tensor(x), Tensor(x))
    same = Tensor(x)
    close(layer(same, same, same)[0].numpy(), wanted.numpy())
    one = Tensor(x[0])
    output, found = layer(one, one, one)
    close(output.numpy(), wanted.numpy()[0])
    close(found.numpy(), weights.numpy()[0])
    layer.batch_first = False
    turned = Tensor(x.swapaxes(0, 1))
    close(layer(turned, turned, turned)[0].numpy(), wanted.numpy().swapaxes(0, 1))


def test_a_query_that_may_see_nothing_gets_zeros_and_finite_gradients():
    for need_weights in (True, False):
        layer = attention()
        x = Tensor(INPUTS[0], requires_grad=True)
        mask = Tensor(np.arange(4)[:, None] == np.full((4, 4), 2))
        output, weights = layer(x, x, x, attn_mask=mask, need_weights=need_weights)
        close(output.numpy()[:, 2], np.broadcast_to(layer.out_proj.bias.numpy(), (3, 8)))
        if weights is not None:
            assert not weights.numpy()[:, 2].any()
        output.sum().backward()
        assert np.isfinite(x.grad.numpy()).all()


def test_attention_says_what_does_not_fit():
    layer = attention()
    q, k, v = (Tensor(x) for x in INPUTS)
    with pytest.raises(ShapeError, match=r"\(3, 4, 8\).*\(3, 4, 8\)"):
        layer(q, k, q)
    with pytest.raises(ShapeError, match=r"attn_mask.*\(4, 5\)"):
        layer(q, k, v, attn_mask=Tensor.zeros(5, 4))
    with pytest.raises(ShapeError, match=r"key_padding_mask.*\(3, 5\)"):
        layer(q, k, v, key_padding_mask=Tensor.zeros(3, 4))
    with pytest.raises(CoregradError, match="hint"):
        layer(q, k, v, is_causal=True)
    with pytest.raises(ShapeError, match="one value for each key"):
        functional.scaled_dot_product_attention(q, k, q)
    with pytest.raises(ShapeError, match="a mask of shape"):
        functional.scaled_dot_product_attention(q, k, v, Tensor.zeros(5, 4))
    with pytest.raises(ShapeError, match="share heads"):
        functional.scaled_dot_product_attention(q, k[:2], v[:2], enable_gqa=True)


def test_grouped_queries_share_keys_and_values():
    q, k, v = normal(2, 4, 3, 5), normal(2, 2, 6, 5, seed=1), normal(2, 2, 6, 5, seed=2)
    grouped = functional.scaled_dot_product_attention(Tensor(q), Tensor(k), Tensor(v),
                                                      enable_gqa=True)  # fmt: skip
    plain = Tensor(q).scaled_dot_product_attention(Tensor(k.repeat(2, 1)), Tensor(v.repeat(2, 1)))
    np.testing.assert_array_equal(grouped.numpy(), plain.numpy())


def test_attention_to_as_many_keys_as_a_variable_says_is_captured_once():
    q, k, v = normal(2, 1, 4), normal(2, 6, 4, seed=1), normal(2, 6, 4, seed=2)
    place = Variable("place", 1, 5)

    @jit
    def attend(q, k, v, n):
        return functional.scaled_dot_product_attention(q, k[:, : n + 1], v[:, : n + 1])

    for n in range(1, 6):
        found = attend(Tensor(q), Tensor(k), Tensor(v), place.bind(n))
        wanted = Tensor(q).scaled_dot_product_attention(*(Tensor(x[:, : n + 1]) for x in (k, v)))
        close(found.numpy(), wanted.numpy())
    assert attend.captures == 1
    with pytest.raises(CoregradError, match="no mask fits"):
        Tensor(q).attention_weights(Tensor(k)[:, : place.bind(2)], is_causal=True)


@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_layer_is_attention_and_a_network_with_norms(norm_first):
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=norm_first
    )
    x = Tensor(INPUTS[0])
    attend = lambda t: layer.self_attn(t, t, t)[0]  # noqa: E731
    feed = lambda t: layer.linear2(layer.linear1(t).gelu())  # noqa: E731
    if norm_first:
        y = x + attend(layer.norm1(x))
        wanted = y + feed(layer.norm2(y))
    else:
        y = layer.norm1(x + attend(x))
        wanted = layer.norm2(y + feed(y))
    close(layer(x).numpy(), wanted.numpy())


def test_the_layers_of_an_encoder_start_alike_and_learn_apart():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8)).eval()
    x = Tensor(INPUTS[0])
    layer.eval()
    close(encoder(x).numpy(), encoder.norm(layer(layer(x))).numpy())
    assert len({id(p) for p in encoder.parameters()}) == 2 * len(list(layer.parameters())) + 2
    encoder(x).square().sum().backward()
    first, second = (part.linear1.weight.grad.numpy() for part in encoder.layers)
    assert not np.array_equal(first, second)
    assert layer.linear1.weight.grad is None


# ---- the others --------------------------------------------------------------------------------


def test_the_vector_of_padding_is_zero_and_gets_no_gradient():
    table = nn.Embedding(5, 3, padding_idx=1)
    assert table.weight.numpy()[1].tolist() == [0.0] * 3
    table(Tensor([1, 2, 1, 4])).sum().backward()
    assert table.weight.grad.numpy()[:, 0].tolist() == [0.0, 0.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize("momentum", [0.1, None])
def test_instance_norm_and_its_running_statistics(momentum):
    plain = nn.InstanceNorm2d(3)
    x = normal(2, 3, 4, 5) * 3 + 1
    mean, var = x.mean((2, 3), keepdims=True), x.var((2, 3), keepdims=True)
    wanted = (x - mean) / np.sqrt(var + 1e-5)
    close(plain(Tensor(x)).numpy(), wanted, 1e-4)
    close(plain.eval()(Tensor(x)).numpy(), wanted, 1e-4)
    tracking = nn.InstanceNorm2d(3, affine=True, track_running_stats=True, momentum=momentum)
    close(tracking(Tensor(x)).numpy(), wanted, 1e-4)
    share = 1.0 if momentum is None else momentum
    means = share * x.mean((2, 3)).mean(0)
    vars_ = 1 - share + share * x.var((2, 3), ddof=1).mean(0)
    close(tracking.running_mean.numpy(), means, 1e-4)
    close(tracking.running_var.numpy(), vars_, 1e-4)
    along = (1, 3, 1, 1)
    wanted = (x - means.reshape(along)) / np.sqrt(vars_.reshape(along) + 1e-5)
    close(tracking.eval()(Tensor(x)).numpy(), wanted, 1e-4)


def test_a_list_of_modules_has_their_names_and_grows():
    parts = nn.ModuleList([nn.Linear(2, 3)])
    parts.append(nn.Linear(3, 4)).extend([nn.ReLU()])
    assert len(parts) == 3
    assert isinstance(parts[-1], nn.ReLU)
    assert [name for name, _ in nn.Sequential(*parts).named_parameters()] == [
        name for name, _ in parts.named_parameters()
    ]
    assert len(parts[:2]) == len(list(parts)) - 1


def test_the_text_of_an_activation_shows_its_numbers():
    assert repr(nn.Softplus(2.0)) == "Softplus(beta=2.0, threshold=20.0)"
    assert repr(nn.SiLU()) == "SiLU()"
    assert nn.LSTM(3, 4, dtype=dtypes.float64).weight_ih_l0.dtype is dtypes.float64


# ---- against PyTorch ---------------------------------------------------------------------------


def twins(name, *args, **options):
    """Our module and PyTorch's, with the weights of the latter."""
    torch = pytest.importorskip("torch")
    theirs = getattr(torch.nn, name)(*args, **options)
    ours = getattr(nn, name)(*args, **options)
    state = {key: value.numpy() for key, value in theirs.state_dict().items()}
    assert list(ours.state_dict()) == list(state)
    ours.load_state_dict(state)
    return torch, ours, theirs


ACTIVATIONS = [
    ("CELU", (0.5,)), ("ELU", (0.5,)), ("GELU", ()), ("SELU", ()), ("Hardsigmoid", ()),
    ("Hardswish", ()), ("Hardtanh", (-0.5, 2.0)), ("LeakyReLU", (0.2,)), ("LogSigmoid", ()),
    ("LogSoftmax", (1,)), ("Mish", ()), ("PReLU", (3,)), ("ReLU", ()), ("ReLU6", ()),
    ("Sigmoid", ()), ("SiLU", ()), ("Softmax", (0,)), ("Softplus", (2.0, 3.0)), ("Softsign", ()),
    ("Tanh", ()),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "args"), ACTIVATIONS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_activations_are_pytorchs_with_their_gradients(name, args):
    torch, ours, theirs = twins(name, *args)
    x = normal(4, 3) * 3
    mine, other = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    found, wanted = ours(mine), theirs(other)
    close(found.numpy(), wanted.detach().numpy())
    found.square().sum().backward()
    wanted.square().sum().backward()
    close(mine.grad.numpy(), other.grad.numpy(), 1e-4)


@pytest.mark.parametrize(
    ("name", "args", "target"),
    [
        ("BCEWithLogitsLoss", (), "share"),
        ("HuberLoss", ("sum", 0.5), "normal"),
        ("KLDivLoss", ("sum",), "share"),
        ("L1Loss", (), "normal"),
        ("MSELoss", (), "normal"),
        ("NLLLoss", (), "labels"),
        ("CrossEntropyLoss", (), "labels"),
        ("SmoothL1Loss", (), "normal"),
    ],
)
def test_losses_are_pytorchs(name, args, target):
    torch = pytest.importorskip("torch")
    x = normal(4, 3)
    options = {} if not args else {"reduction": args[0], **({"delta": 0.5} if args[1:] else {})}
    targets = {
        "normal": normal(4, 3, seed=1),
        "share": np.random.default_rng(2).random((4, 3), np.float32),
        "labels": np.array([0, 2, 1, 2]),
    }
    y = targets[target]
    wanted = getattr(torch.nn, name)(**options)(torch.tensor(x), torch.tensor(y))
    close(getattr(nn, name)(**options)(Tensor(x), Tensor(y)).numpy(), wanted.numpy())


def test_binary_cross_entropy_of_probabilities_is_pytorchs():
    torch = pytest.importorskip("torch")
    x, y = np.random.default_rng(2).random((2, 4, 3), np.float32)
    wanted = torch.nn.BCELoss()(torch.tensor(x), torch.tensor(y))
    close(nn.BCELoss()(Tensor(x), Tensor(y)).numpy(), wanted.numpy())


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(("kind", "options"), LAYERS[1::2], ids=named)
def test_recurrent_layers_are_pytorchs_with_their_gradients(kind, options):
    torch, ours, theirs = twins(kind, 3, 4, **options)
    x = normal(3, 2, 3)
    mine, other = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    found, wanted = ours(mine)[0], theirs(other)[0]
    close(found.numpy(), wanted.detach().numpy())
    found.square().sum().backward()
    wanted.square().sum().backward()
    close(mine.grad.numpy(), other.grad.numpy(), 1e-4)
    gradients = {name: p.grad.numpy() for name, p in ours.named_parameters()}
    for name, p in theirs.named_parameters():
        close(gradients[name], p.grad.numpy(), 1e-4)


@pytest.mark.parametrize(
    "options",
    [{}, {"bias": False}, {"add_bias_kv": True, "add_zero_attn": True}, {"kdim": 6, "vdim": 5}],
)
def test_attention_is_pytorchs(options):
    torch, ours, theirs = twins("MultiheadAttention", 8, 2, **options)
    sizes = 8, options.get("kdim", 8), options.get("vdim", 8)
    arrays = [normal(4 + (i > 0), 3, size, seed=i) for i, size in enumerate(sizes)]
    attn = np.arange(4)[:, None] < np.arange(5) - 1
    padding = np.arange(5) >= np.array([[5], [4], [3]])
    wanted, weights = theirs(
        *map(torch.tensor, arrays), attn_mask=torch.tensor(attn),
        key_padding_mask=torch.tensor(padding),
    )  # fmt: skip
    found, shares = ours(
        *map(Tensor, arrays), attn_mask=Tensor(attn), key_padding_mask=Tensor(padding)
    )
    close(found.numpy(), wanted.detach().numpy())
    close(shares.numpy(), weights.detach().numpy())


def test_the_encoder_is_pytorchs():
    torch, ours, theirs = twins("TransformerEncoderLayer", 8, 2, 16, 0.0, batch_first=True)
    x = normal(3, 4, 8)
    mask = np.triu(np.ones((4, 4), bool), 1)
    wanted = theirs(torch.tensor(x), src_mask=torch.tensor(mask))
    close(ours(Tensor(x), Tensor(mask)).numpy(), wanted.detach().numpy())
    both = torch.nn.TransformerEncoder(theirs, 2, enable_nested_tensor=False)
    assert list(nn.TransformerEncoder(ours, 2).state_dict()) == list(both.state_dict())


@pytest.mark.parametrize(
    ("width", "heads", "batch", "length"),
    [(8, 2, 2, 5), (16, 4, 2, 7), (16, 4, 1, 3), (32, 2, 4, 2)],
)
@pytest.mark.parametrize("wanted", [False, True])
def test_attention_whose_weights_are_held_trains(width, heads, batch, length, wanted):
    """The kernels of such a step once waited for each other."""
    layer = nn.MultiheadAttention(width, heads, batch_first=True)
    optim = nn.optim.SGD(layer.parameters(), lr=0.1)
    x = Tensor(np.ones((batch, length, width), np.float32), requires_grad=wanted)
    losses = []
    for _ in range(3):
        found, weights = layer(x, x, x)
        loss = found.mean()
        optim.zero_grad()
        loss.backward()
        optim.step()
        losses.append(loss.item())
    assert losses[0] > losses[1] > losses[2]
    np.testing.assert_allclose(weights.numpy().sum(-1), 1.0, rtol=1e-5)
