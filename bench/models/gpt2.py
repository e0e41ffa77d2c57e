"""GPT-2 small, with a cache of keys and values: a prompt at once, then token by token.

Every library writes and reads the cache in its own best way, which is what ``Cache`` is for:

- PyTorch writes a row and attends to the rows so far, with a Python number for the position;
- coregrad and tinygrad do the same with a variable, one captured program for all positions.
"""

from __future__ import annotations

from typing import Any

from libraries import Library

from models.spelling import attention, gelu

WORDS, WIDTH, HEADS, LAYERS, POSITIONS = 50257, 768, 12, 12, 1024
SIZE = WIDTH // HEADS
STACK = 12 * WIDTH * WIDTH * LAYERS  # weights of the layers' products
EVERY = STACK + WORDS * WIDTH  # and of the head


def gpt2(library: Library, context: int) -> Any:
    """A model whose caches hold ``context`` positions."""
    nn = library.module.nn
    kinds = {"coregrad": Varying, "torch": Sliced, "tinygrad": Symbolic}

    class Block(library.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.attn, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.fc, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any, cache: Any, position: Any) -> Any:
            count = x.shape[1]
            joined = self.attn(self.ln_1(x)).reshape(1, count, 3, HEADS, SIZE)
            q, k, v = (joined[:, :, i].transpose(1, 2) for i in range(3))
            if position is None:
                cache.fill(k, v)
                y = attention(library, q, k, v, causal=True)
            else:
                y = cache.attend(q, k, v, position)
            x = x + self.proj(y.transpose(1, 2).reshape(1, count, WIDTH))
            return x + self.out(gelu(library, self.fc(self.ln_2(x))))

    class GPT2(library.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.wte = nn.Embedding(WORDS, WIDTH)
            self.wpe = nn.Embedding(POSITIONS, WIDTH)
            self.blocks = library.parts([Block() for _ in range(LAYERS)])
            self.ln_f = nn.LayerNorm(WIDTH)

        def forward(self, tokens: Any, places: Any, caches: Any, position: Any = None) -> Any:
            """The logits after the last of the tokens."""
            x = self.wte(tokens) + self.wpe(places)
            for block, cache in zip(self.blocks, caches, strict=True):
                x = block(x, cache, position)
            return self.ln_f(x[:, -1]) @ self.wte.weight.transpose(0, 1)

    model = GPT2()
    return model, [kinds[library.name](library, context) for _ in range(LAYERS)]


class Sliced:
    """PyTorch: rows of memory that is there already."""

    def __init__(self, library: Library, context: int) -> None:
        self.library = library
        self.keys, self.values = library.module.zeros(2, 1, HEADS, context, SIZE)

    def fill(self, k: Any, v: Any) -> None:
        """Take over the keys and values of a prompt."""
        self.keys[:, :, : k.shape[2]], self.values[:, :, : k.shape[2]] = k, v

    def attend(self, q: Any, k: Any, v: Any, position: int) -> Any:
        """Add one key and value, and attend to all so far."""
        self.keys[:, :, position : position + 1] = k
        self.values[:, :, position : position + 1] = v
        keys, values = self.keys[:, :, : position + 1], self.values[:, :, : position + 1]
        return attention(self.library, q, keys, values)


class Symbolic:
    """tinygrad: the same, at a position that is a symbol."""

    def __init__(self, library: Library, context: int) -> None:
        self.library = library
        zeros = library.module.Tensor.zeros(2, 1, HEADS, context, SIZE)
        self.rows = zeros.contiguous().realize()

    def fill(self, k: Any, v: Any) -> None:
        """Take over the keys and values of a prompt."""
        both = self.library.module.Tensor.stack(k, v)
        self.rows[:, :, :, : k.shape[2]].assign(both).realize()

    def attend(self, q: Any, k: Any, v: Any, position: Any) -> Any:
        """Add one key and value, and attend to all so far."""
        both = self.library.module.Tensor.stack(k, v)
        self.rows[:, :, :, position : position + 1].assign(both).realize()
        seen = self.rows[:, :, :, : position + 1]
        return q.scaled_dot_product_attention(seen[0], seen[1])


class Varying:
    """coregrad: the same, at a position that is a variable."""

    def __init__(self, library: Library, context: int) -> None:
        self.library = library
        Tensor = library.module.Tensor
        self.keys = Tensor.zeros(1, HEADS, context, SIZE).contiguous().realize()
        self.values = Tensor.zeros(1, HEADS, context, SIZE).contiguous().realize()

    def fill(self, k: Any, v: Any) -> None:
        """Take over the keys and values of a prompt."""
        self.keys[:, :, : k.shape[2]], self.values[:, :, : k.shape[2]] = k, v

    def attend(self, q: Any, k: Any, v: Any, position: Any) -> Any:
        """Add one key and value, and attend to all so far."""
        self.keys[:, :, position : position + 1] = k
        self.values[:, :, position : position + 1] = v
        keys, values = self.keys[:, :, : position + 1], self.values[:, :, : position + 1]
        return attention(self.library, q, keys, values)


def scores(count: int) -> float:
    """Floating-point operations of the attention of a prompt of ``count`` tokens."""
    return 4.0 * LAYERS * count * count * WIDTH
