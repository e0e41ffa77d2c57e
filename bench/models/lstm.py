"""An LSTM over a long sequence and a linear layer on its last output."""

from __future__ import annotations

from typing import Any

from libraries import Library

INPUTS, HIDDEN, STEPS, BATCH, CLASSES = 64, 128, 400, 16, 10


def lstm(library: Library) -> Any:
    """(STEPS, BATCH, INPUTS) to CLASSES logits."""
    nn = library.module.nn

    class Classifier(library.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            make = Walked if library.name == "tinygrad" else nn.LSTM
            self.lstm = make(library) if make is Walked else make(INPUTS, HIDDEN)
            self.last = nn.Linear(HIDDEN, CLASSES)

        def forward(self, x: Any) -> Any:
            output, _ = self.lstm(x)
            return self.last(output[-1])

    return Classifier()


class Walked:
    """tinygrad has no LSTM: the same weights, the same steps."""

    def __init__(self, library: Library) -> None:
        self.Tensor = library.module.Tensor
        self.weight_ih_l0 = self.Tensor.zeros(4 * HIDDEN, INPUTS)
        self.weight_hh_l0 = self.Tensor.zeros(4 * HIDDEN, HIDDEN)
        self.bias_ih_l0 = self.Tensor.zeros(4 * HIDDEN)
        self.bias_hh_l0 = self.Tensor.zeros(4 * HIDDEN)

    def __call__(self, x: Any) -> Any:
        gates = x @ self.weight_ih_l0.transpose(0, 1) + self.bias_ih_l0 + self.bias_hh_l0
        h = c = self.Tensor.zeros(x.shape[1], HIDDEN)
        outputs = []
        for t in range(x.shape[0]):
            step = gates[t] + h @ self.weight_hh_l0.transpose(0, 1)
            enter, keep, new, show = step.chunk(4, dim=-1)
            c = (keep.sigmoid() * c + enter.sigmoid() * new.tanh()).contiguous()
            h = (show.sigmoid() * c.tanh()).contiguous()
            outputs.append(h)
        return outputs, (h, c)


def products() -> float:
    """Floating-point operations of one pass."""
    return 2.0 * STEPS * BATCH * 4 * HIDDEN * (INPUTS + HIDDEN)
