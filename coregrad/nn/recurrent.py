"""Recurrent layers: RNN, LSTM, GRU and their cells, with PyTorch's names, layouts and results.

The input's share of the gates is one product for all steps; a step adds the state's share. Every
step reads tensors of its own, so that all steps are the same kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from coregrad.api.composed import composed
from coregrad.api.functions import cat, stack
from coregrad.api.tensor import Tensor
from coregrad.dtypes import DType
from coregrad.errors import CoregradError, ShapeError
from coregrad.nn.module import Module
from coregrad.nn.parameter import drawn, positive

State = tuple[Tensor, ...]  # h; or h and c


# ---- one step ----------------------------------------------------------------------------------


@composed
def _rnn_step(gates: Tensor, relu: bool) -> Tensor:
    return gates.relu() if relu else gates.tanh()


@composed
def _lstm_step(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The new (h, c); the gates stand in PyTorch's order: input, forget, cell, output."""
    enter, keep, new, show = gates.chunk(4, -1)
    c = keep.sigmoid() * c + enter.sigmoid() * new.tanh()
    return show.sigmoid() * c.tanh(), c


@composed
def _gru_step(ours: Tensor, theirs: Tensor, h: Tensor) -> Tensor:
    """The new h from the gates' shares of the input and of the state: reset, update, new."""
    reset, update, new = ours.chunk(3, -1)
    reset_h, update_h, new_h = theirs.chunk(3, -1)
    candidate = (new + (reset + reset_h).sigmoid() * new_h).tanh()
    kept = (update + update_h).sigmoid()
    return (1.0 - kept) * candidate + kept * h


class _Kind(Module):
    """What a layer and its cell share: how many gates and states, and the step."""

    gates = 1
    states = 1
    nonlinearity = "tanh"

    def _step(self, x: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
        """The next state, from the input's share of the gates; ``weight`` and ``bias`` are the
        state's."""
        return (_rnn_step(x + state[0].linear(weight, bias), self.nonlinearity == "relu"),)

    def _check_nonlinearity(self) -> None:
        if self.nonlinearity not in ("tanh", "relu"):
            raise CoregradError(
                f"{type(self).__name__}: nonlinearity {self.nonlinearity!r}; choose 'tanh' or "
                "'relu'"
            )


class _LSTM(_Kind):
    gates = 4
    states = 2

    def _step(self, x: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
        return _lstm_step(x + state[0].linear(weight, bias), state[1])


class _GRU(_Kind):
    gates = 3

    def _step(self, x: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
        return (_gru_step(x, state[0].linear(weight, bias), state[0]),)


# ---- cells -------------------------------------------------------------------------------------


class _Cell(_Kind):
    """One step on one layer: weights of shapes (gates * hidden, input or hidden)."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        positive(type(self).__name__, input_size=input_size, hidden_size=hidden_size)
        self.input_size = input_size
        self.hidden_size = hidden_size
        rows, bound = self.gates * hidden_size, 1.0 / math.sqrt(hidden_size)
        self.weight_ih = drawn(rows, input_size, bound=bound, device=device, dtype=dtype)
        self.weight_hh = drawn(rows, hidden_size, bound=bound, device=device, dtype=dtype)
        self.bias_ih: Tensor | None = None
        self.bias_hh: Tensor | None = None
        if bias:
            self.bias_ih = drawn(rows, bound=bound, device=device, dtype=dtype)
            self.bias_hh = drawn(rows, bound=bound, device=device, dtype=dtype)

    def _next(self, x: Tensor, hx: State | None) -> State:
        name = type(self).__name__
        if x.ndim not in (1, 2) or x.shape[-1] != self.input_size:
            raise ShapeError(
                f"{name}: an input of shape {x.shape}; give (N, {self.input_size}) or "
                f"({self.input_size},)"
            )
        shape = (*x.shape[:-1], self.hidden_size)
        _check_states(name, hx, self.states, [shape] * self.states)
        zeros = Tensor.zeros(*shape, dtype=x.dtype, device=x.device)
        state = (zeros,) * self.states if hx is None else hx
        return self._step(x.linear(self.weight_ih, self.bias_ih), state, *self._recurrent())

    def _recurrent(self) -> tuple[Tensor, Tensor | None]:
        return self.weight_hh, self.bias_hh

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{self.input_size}, {self.hidden_size}, bias={self.bias_ih is not None}"


class RNNCell(_Cell):
    """One step of :class:`RNN`: ``tanh(x @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh)``.

    ``nonlinearity`` is "tanh" or "relu". Raises ShapeError if input or state do not fit.

    >>> RNNCell(3, 5)(Tensor.ones(2, 3)).shape
    (2, 5)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.nonlinearity = nonlinearity
        self._check_nonlinearity()

    def forward(self, x: Tensor, hx: Tensor | None = None) -> Tensor:
        """(N, input_size), and a state (N, hidden_size) or zeros, to the next state."""
        return self._next(x, None if hx is None else (hx,))[0]


class LSTMCell(_LSTM, _Cell):
    """One step of :class:`LSTM`.

    Raises ShapeError if input or state do not fit.

    >>> h, c = LSTMCell(3, 5)(Tensor.ones(2, 3))
    >>> h.shape, c.shape
    ((2, 5), (2, 5))
    """

    def forward(self, x: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> State:
        """(N, input_size), and states (h, c) or zeros, to the next (h, c)."""
        return self._next(x, hx)


class GRUCell(_GRU, _Cell):
    """One step of :class:`GRU`.

    Raises ShapeError if input or state do not fit.

    >>> GRUCell(3, 5)(Tensor.ones(2, 3)).shape
    (2, 5)
    """

    def forward(self, x: Tensor, hx: Tensor | None = None) -> Tensor:
        """(N, input_size), and a state (N, hidden_size) or zeros, to the next state."""
        return self._next(x, None if hx is None else (hx,))[0]


# ---- layers ------------------------------------------------------------------------------------


class _Recurrent(_Kind):
    """Layers of steps over a sequence, forwards or both ways."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        name = type(self).__name__
        positive(name, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        if not 0.0 <= dropout <= 1.0:
            raise CoregradError(f"{name}: dropout is {dropout}; it lies between 0 and 1")
        if proj_size not in range(hidden_size):
            raise ShapeError(
                f"{name}: proj_size {proj_size} must be 0 (none) or smaller than hidden_size "
                f"{hidden_size}"
            )
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = dropout
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        width = self._width * self._directions
        for layer in range(num_layers):
            inputs = input_size if layer == 0 else width
            for suffix in self._suffixes(layer):
                self._add_weights(suffix, inputs, device, dtype)

    @property
    def _width(self) -> int:
        """The size of h."""
        return self.proj_size or self.hidden_size

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _suffixes(self, layer: int) -> list[str]:
        """PyTorch's endings of the names of a layer's weights, one per direction."""
        return [f"_l{layer}", f"_l{layer}_reverse"][: self._directions]

    def _add_weights(
        self, suffix: str, inputs: int, device: str | None, dtype: DType | None
    ) -> None:
        rows, bound = self.gates * self.hidden_size, 1.0 / math.sqrt(self.hidden_size)
        shapes: dict[str, tuple[int, ...]] = {
            "weight_ih": (rows, inputs),
            "weight_hh": (rows, self._width),
        }
        if self.bias:
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
        if self.proj_size:
            shapes["weight_hr"] = (self.proj_size, self.hidden_size)
        for name, shape in shapes.items():
            made = drawn(*shape, bound=bound, device=device, dtype=dtype)
            setattr(self, name + suffix, made)

    # ---- the walk ------------------------------------------------------------------------------

    def _run(self, x: Tensor, hx: State | None) -> tuple[Tensor, State]:
        """The outputs of the last layer, and the last states of all."""
        name = type(self).__name__
        if x.ndim not in (2, 3) or x.shape[-1] != self.input_size or 0 in x.shape:
            order = "N, L" if self.batch_first else "L, N"
            raise ShapeError(
                f"{name}: an input of shape {x.shape}; give ({order}, {self.input_size}) or "
                f"(L, {self.input_size}), with at least one step"
            )
        batched = x.ndim == 3
        if not batched:
            x = x.unsqueeze(1)
        elif self.batch_first:
            x = x.transpose(0, 1)
        starts = self._starts(name, x, hx, batched)
        ends: list[State] = []
        for layer in range(self.num_layers):
            if layer:
                x = x.dropout(self.dropout, training=self.training)
            x = self._layer(layer, x, starts, ends)
        last = tuple(stack([end[i] for end in ends]) for i in range(self.states))
        if not batched:
            return x.squeeze(1), tuple(state.squeeze(1) for state in last)
        return (x.transpose(0, 1) if self.batch_first else x), last

    def _starts(self, name: str, x: Tensor, hx: State | None, batched: bool) -> list[State]:
        """The first state of every layer and direction, in this order."""
        count = self.num_layers * self._directions
        batch = x.shape[1]
        widths = [self._width, self.hidden_size][: self.states]
        middle = (batch,) if batched else ()
        _check_states(name, hx, self.states, [(count, *middle, width) for width in widths])
        if hx is None:
            # Computed rather than a constant, so that the first step is like all others.
            zeros = tuple(
                Tensor.zeros(batch, width, dtype=x.dtype, device=x.device).contiguous()
                for width in widths
            )
            return [zeros] * count
        wide = [state.reshape(count, batch, -1) for state in hx]
        return [tuple(state[i].contiguous() for state in wide) for i in range(count)]

    def _layer(self, layer: int, x: Tensor, starts: list[State], ends: list[State]) -> Tensor:
        """One layer over all steps, in all directions; its last states go to ``ends``."""
        outputs = []
        for suffix in self._suffixes(layer):
            output, end = self._direction(suffix, x, starts[len(ends)])
            outputs.append(output)
            ends.append(end)
        return outputs[0] if len(outputs) == 1 else cat(outputs, -1)

    def _direction(self, suffix: str, x: Tensor, state: State) -> tuple[Tensor, State]:
        """The output of every step, (L, N, width), and the last state."""
        gates = x.linear(getattr(self, "weight_ih" + suffix), self._bias("bias_ih" + suffix))
        weight, bias = getattr(self, "weight_hh" + suffix), self._bias("bias_hh" + suffix)
        steps = gates.unbind(0)
        backwards = suffix.endswith("_reverse")
        outputs = []
        for step in reversed(steps) if backwards else steps:
            state = self._step(step.contiguous(), state, weight, bias)
            if self.proj_size:
                projected = state[0].linear(getattr(self, "weight_hr" + suffix))
                state = (projected, *state[1:])
            state = tuple(part.contiguous() for part in state)
            outputs.append(state[0])
        return stack(outputs[::-1] if backwards else outputs), state

    def _bias(self, name: str) -> Tensor | None:
        return getattr(self, name) if self.bias else None

    def extra_repr(self) -> str:
        """The sizes."""
        text = f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}"
        if self.proj_size:
            text += f", proj_size={self.proj_size}"
        return f"{text}, batch_first={self.batch_first}, bidirectional={self.bidirectional}"


class RNN(_Recurrent):
    """An Elman network: ``h = tanh(x @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh)``.

    The input is (L, N, input_size), with ``batch_first`` (N, L, input_size), or without a batch
    (L, input_size). ``dropout`` acts on the outputs of all layers but the last, in training. Packed
    sequences are not known. Raises ShapeError for inputs and states that do not fit.

    >>> output, h = RNN(3, 5, num_layers=2, nonlinearity="relu")(Tensor.ones(7, 2, 3))
    >>> output.shape, h.shape
    ((7, 2, 5), (2, 2, 5))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        self.nonlinearity = nonlinearity
        self._check_nonlinearity()
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            device=device, dtype=dtype,
        )  # fmt: skip

    def forward(self, x: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The outputs of all steps, and the last state (layers * directions, N, hidden)."""
        output, (h,) = self._run(x, None if hx is None else (hx,))
        return output, h


class GRU(_GRU, _Recurrent):
    """Gated recurrent units; shapes as in :class:`RNN`.

    Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", EMNLP 2014, with the
    reset gate after the product, as PyTorch and cuDNN have it.

    >>> output, h = GRU(3, 5, bidirectional=True)(Tensor.ones(7, 2, 3))
    >>> output.shape, h.shape
    ((7, 2, 10), (2, 2, 5))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            device=device, dtype=dtype,
        )  # fmt: skip

    def forward(self, x: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The outputs of all steps, and the last state (layers * directions, N, hidden)."""
        output, (h,) = self._run(x, None if hx is None else (hx,))
        return output, h


class LSTM(_LSTM, _Recurrent):
    """Long short-term memory; shapes as in :class:`RNN`.

    Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997, with forget gates. ``proj_size``
    makes h a linear map of that size of what the cell shows.

    >>> output, (h, c) = LSTM(3, 5, batch_first=True)(Tensor.ones(2, 7, 3))
    >>> output.shape, h.shape, c.shape
    ((2, 7, 5), (1, 2, 5), (1, 2, 5))
    """

    def forward(
        self, x: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The outputs of all steps, and the last (h, c), each (layers * directions, N, ...)."""
        output, (h, c) = self._run(x, hx)
        return output, (h, c)


def _check_states(
    name: str, hx: State | None, count: int, shapes: Sequence[tuple[int, ...]]
) -> None:
    """Raise unless the first states are what the layer needs."""
    if hx is None:
        return
    if not isinstance(hx, tuple | list) or len(hx) != count:
        raise ShapeError(f"{name}: the first state must be a pair of tensors (h, c)")
    found = [state.shape for state in hx]
    if found != list(shapes):
        raise ShapeError(f"{name}: first states of shapes {found}; give {list(shapes)}")
