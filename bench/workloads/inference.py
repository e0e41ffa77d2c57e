"""Models that answer: small ones, ResNet-50, GPT-2 and an LSTM. No gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from libraries import Library
from models import gpt2, lstm, mnist, perceptron, resnet
from models.weights import equal_start
from workload import SEED, Results, Steady, Step


def answers(make: Callable[[Library], Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """For every library: the model applied to one input of this shape."""

    def build(library: Library) -> Step:
        model = equal_start(library, make(library))
        if library.name != "tinygrad":
            model.eval()
        x = np.random.default_rng(SEED).standard_normal(shape, np.float32)

        def compute(_: Library, *given: Any) -> Any:
            with library.quiet():
                return model(*given)

        return library.stepper(compute, [library.tensor(x)])

    return dict.fromkeys(("coregrad", "torch", "tinygrad"), build)


for batch, target in ((1, 0.2), (32, None)):
    Steady(
        name=f"mlp_b{batch}",
        about=f"a perceptron 784-128-64-10 on {batch} image{'s' * (batch > 1)}",
        build=answers(perceptron.perceptron, (batch, 784)),
        targets={} if target is None else {"torch": target},
        captured=batch == 1,
        flops=perceptron.products(batch),
        bytes=2 * perceptron.products(1) + 4.0 * batch * 794,
        rtol=1e-3,
    )
Steady(
    name="mnist_b512",
    about="beautiful_mnist's network on 512 images",
    build=answers(mnist.mnist, (512, 1, 28, 28)),
    flops=2.0 * 512 * mnist.PRODUCTS,
    bytes=0.0,
    rtol=1e-3,
    atol=1e-3,
)
Steady(
    name="resnet50_b1",
    about="ResNet-50 on one image of 224 x 224",
    build=answers(resnet.resnet50, (1, 3, 224, 224)),
    targets={"torch": 0.95},
    flops=2 * resnet.PRODUCTS,
    bytes=4 * 25.6e6,
    rtol=1e-3,
    atol=1e-3,
    slow={"tinygrad": 30.0, "torch-compile": 40.0},
)
Steady(
    name="lstm_400",
    about=f"an LSTM of {lstm.STEPS} steps, {lstm.BATCH} sequences, {lstm.HIDDEN} units",
    build=answers(lstm.lstm, (lstm.STEPS, lstm.BATCH, lstm.INPUTS)),
    flops=lstm.products(),
    bytes=0.0,
    without={"tinygrad": "400 unrolled steps; its compile time grows with the square of a chain"},
    slow={"coregrad": 30.0, "coregrad-jit": 30.0, "torch-compile": 30.0},
)

# ---- GPT-2 -------------------------------------------------------------------------------------

PROMPT, TOKENS = 128, 16
CONTEXT = 256  # positions that a cache has
MODEL = {"rtol": 1e-2, "atol": 1e-3, "bytes": 4.0 * gpt2.EVERY}


def _tokens() -> Any:
    rng = np.random.default_rng(SEED)
    return rng.integers(0, gpt2.WORDS, (1, PROMPT)), rng.integers(0, gpt2.WORDS, TOKENS)


def _model(library: Library) -> tuple[Any, Any]:
    model, caches = gpt2.gpt2(library, CONTEXT)
    model = equal_start(library, model)
    if library.name != "tinygrad":
        model.eval()
    return model, caches


def prompt(library: Library) -> Step:
    """A prompt at once: the logits after its last token. The caches are filled."""
    model, caches = _model(library)
    tokens, _ = _tokens()
    places = np.arange(PROMPT)[None]

    def compute(_: Library, *given: Any) -> Any:
        with library.quiet():
            return model(*given, caches)

    return library.stepper(compute, [library.tensor(tokens), library.tensor(places)])


def decode(library: Library) -> Step:
    """TOKENS tokens after a prompt, each with its own call; the tokens are given, so that a
    rounding cannot choose another text."""
    model, caches = _model(library)
    tokens, following = _tokens()
    places = np.arange(PROMPT)[None]
    with library.quiet():
        started = model(library.tensor(tokens), library.tensor(places), caches)
        library.array(started)
        if library.name == "coregrad":
            for cache in caches:
                cache.keys.realize(cache.values)
    one = DECODERS[library.name](library, model, caches)

    def step() -> Results:
        return [one(int(t), PROMPT + i) for i, t in enumerate(following)][-1:]

    return step


def coregrad_decoder(library: Library, model: Any, caches: Any) -> Any:
    Tensor = library.module.Tensor
    places = library.module.Variable("position", 1, CONTEXT - 1)

    @library.captured
    def next_logits(token: Any, place: Any, position: Any) -> Any:
        with library.quiet():
            return model(token, place, caches, position)

    def one(token: int, position: int) -> Any:
        given = Tensor([[token]]), Tensor([[position]])
        logits = next_logits(*given, places.bind(position))
        return logits.realize(*(t for c in caches for t in (c.keys, c.values)))

    return one


def torch_decoder(library: Library, model: Any, caches: Any) -> Any:
    torch = library.module

    def one(token: int, position: int) -> Any:
        with library.quiet():
            given = torch.tensor([[token]]), torch.tensor([[position]])
            return model(*given, caches, position)

    return one


def tinygrad_decoder(library: Library, model: Any, caches: Any) -> Any:
    tinygrad = library.module
    places = tinygrad.Variable("position", 1, CONTEXT - 1)

    @tinygrad.TinyJit
    def next_logits(token: Any, place: Any, position: Any) -> Any:
        return model(token, place, caches, position).realize()

    def one(token: int, position: int) -> Any:
        given = library.tensor(np.array([[token]])), library.tensor(np.array([[position]]))
        logits = next_logits(*given, places.bind(position))
        library.finish()  # type: ignore[attr-defined]
        return logits

    return one


DECODERS = {"coregrad": coregrad_decoder, "torch": torch_decoder, "tinygrad": tinygrad_decoder}

Steady(
    name="gpt2_prompt",
    about=f"GPT-2 small: a prompt of {PROMPT} tokens, the logits after it",
    build=dict.fromkeys(DECODERS, prompt),
    targets={"torch": 0.9},
    flops=2.0 * (PROMPT * gpt2.STACK + gpt2.WORDS * gpt2.WIDTH) + gpt2.scores(PROMPT),
    calls=3,
    slow={"tinygrad": 30.0, "torch-compile": 60.0},
    **MODEL,
)
Steady(
    name="gpt2_decode",
    about=f"GPT-2 small: {TOKENS} tokens one by one, after {PROMPT}, with a cache",
    build=dict.fromkeys(DECODERS, decode),
    targets={"torch": 0.9},
    captured=True,
    flops=TOKENS * 2.0 * gpt2.EVERY,
    calls=2,
    without={"torch-compile": "recompiles for every position"},
    slow={"tinygrad": 60.0},
    **{**MODEL, "bytes": TOKENS * 4.0 * gpt2.EVERY},
)
