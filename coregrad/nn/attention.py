"""Attention and the encoder built from it, with PyTorch's names, layouts and results."""

from __future__ import annotations

import copy
from collections.abc import Callable

from coregrad.api.functions import cat
from coregrad.api.tensor import Tensor
from coregrad.dtypes import DType
from coregrad.errors import CoregradError, ShapeError
from coregrad.nn import init
from coregrad.nn.layers import Dropout, LayerNorm, Linear
from coregrad.nn.module import Module
from coregrad.nn.parameter import Parameter, filled, positive

Activation = Callable[[Tensor], Tensor]


class MultiheadAttention(Module):
    """Attention by ``num_heads`` heads of embed_dim / num_heads features each.

    Vaswani et al., "Attention Is All You Need", 2017. Inputs are (L, N, E), with ``batch_first``
    (N, L, E), or without a batch (L, E). In the masks True forbids, and floats are added to the
    scores, as in PyTorch's layer (in :meth:`Tensor.scaled_dot_product_attention` True allows). A
    query that may look at nothing gets zeros from the heads, with weights 0, not NaN.

    Raises ShapeError for sizes, inputs and masks that do not fit.

    >>> attention = MultiheadAttention(8, 2, batch_first=True)
    >>> x = Tensor.ones(3, 5, 8)
    >>> output, weights = attention(x, x, x)
    >>> output.shape, weights.shape
    ((3, 5, 8), (3, 5, 5))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        positive("MultiheadAttention", embed_dim=embed_dim, num_heads=num_heads)
        if embed_dim % num_heads:
            raise ShapeError(
                f"MultiheadAttention: {num_heads} heads do not divide embed_dim {embed_dim}"
            )
        if not 0.0 <= dropout <= 1.0:
            raise CoregradError(f"MultiheadAttention: dropout is {dropout}; it is within 0 and 1")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.add_zero_attn = add_zero_attn
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.batch_first = batch_first
        self.in_proj_weight: Tensor | None = None
        if self.kdim == self.vdim == embed_dim:
            self.in_proj_weight = self._weight(3 * embed_dim, embed_dim, device, dtype)
        else:
            self.q_proj_weight = self._weight(embed_dim, embed_dim, device, dtype)
            self.k_proj_weight = self._weight(embed_dim, self.kdim, device, dtype)
            self.v_proj_weight = self._weight(embed_dim, self.vdim, device, dtype)
        self.in_proj_bias: Tensor | None = None
        if bias:
            self.in_proj_bias = filled(3 * embed_dim, value=0.0, device=device, dtype=dtype)
        self.bias_k: Tensor | None = None
        self.bias_v: Tensor | None = None
        if add_bias_kv:
            for name in ("bias_k", "bias_v"):
                empty = filled(1, 1, embed_dim, value=0.0, device=device, dtype=dtype)
                setattr(self, name, init.xavier_normal_(empty))
        self.out_proj = Linear(embed_dim, embed_dim, bias, device, dtype)
        if bias:
            self.out_proj.bias = filled(embed_dim, value=0.0, device=device, dtype=dtype)

    @staticmethod
    def _weight(rows: int, columns: int, device: str | None, dtype: DType | None) -> Tensor:
        return init.xavier_uniform_(filled(rows, columns, value=0.0, device=device, dtype=dtype))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The attended values like ``query``, and the weights or None.

        ``key_padding_mask`` is (N, S), ``attn_mask`` (L, S) or (N * num_heads, L, S). The weights
        are (N, L, S), the mean over the heads, or (N, num_heads, L, S) with
        ``average_attn_weights=False``. ``is_causal`` says that ``attn_mask`` is the causal mask.
        """
        if is_causal and attn_mask is None:
            raise CoregradError(
                "MultiheadAttention: is_causal is only a hint about attn_mask; give the mask too"
            )
        batched = query.ndim == 3
        query, key, value = self._batch_first(query, key, value, key_padding_mask)
        q, k, v = self._projected(query, key, value)
        padding = None if key_padding_mask is None else key_padding_mask.reshape(k.shape[:2])
        added = self._mask(q, k, padding, attn_mask)
        k, v, added = self._extended(k, v, added)
        q, k, v = self._heads(q), self._heads(k), self._heads(v)
        if self.add_zero_attn:  # a key and a value of zeros at the end, which all may see
            k, v = k.pad((0, 0, 0, 1)), v.pad((0, 0, 0, 1))
            added = None if added is None else added.pad((0, 1))
        output, weights = self._attend(q, k, v, added, need_weights)
        output = self.out_proj(output.transpose(1, 2).reshape(query.shape))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return (output if self.batch_first else output.transpose(0, 1)), weights

    # ---- inputs --------------------------------------------------------------------------------

    def _batch_first(
        self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None
    ) -> tuple[Tensor, ...]:
        """The inputs as (N, length, features), their shapes checked."""
        ranks = {x.ndim for x in (query, key, value)}
        given = [x.shape for x in (query, key, value)]
        made = (query, key, value)
        if ranks == {2}:
            made = (query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0))
        elif ranks == {3} and not self.batch_first:
            made = (query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1))
        wanted = [self.embed_dim, self.kdim, self.vdim]
        fits = ranks in ({2}, {3}) and [x.shape[-1] for x in made] == wanted
        fits = fits and made[1].shape[:2] == made[2].shape[:2]
        if not fits or made[0].shape[0] != made[1].shape[0]:
            raise ShapeError(
                f"MultiheadAttention: query, key and value of shapes {given} do not fit each "
                f"other or the sizes {wanted}"
            )
        wide = made[1].shape[:2] if ranks == {3} else made[1].shape[1:2]
        if padding is not None and padding.shape != wide:
            raise ShapeError(
                f"MultiheadAttention: key_padding_mask has shape {padding.shape}; give {wide}"
            )
        return made

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values of embed_dim features, one product for all if they are one."""
        if self.in_proj_weight is not None and query is key is value:
            return query.linear(self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3, 0)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases: tuple[Tensor | None, ...] = (None, None, None)
        if self.in_proj_bias is not None:
            biases = self.in_proj_bias.chunk(3, 0)
        inputs = (query, key, value)
        return tuple(x.linear(w, b) for x, w, b in zip(inputs, weights, biases, strict=True))

    def _mask(
        self, q: Tensor, k: Tensor, padding: Tensor | None, attn_mask: Tensor | None
    ) -> Tensor | None:
        """What is added to the scores, broadcast to (N, heads, L, S)."""
        batch, rows, columns = q.shape[0], q.shape[1], k.shape[1]
        added = None
        if attn_mask is not None:
            shapes = [(rows, columns), (batch * self.num_heads, rows, columns)]
            if attn_mask.shape not in shapes:
                raise ShapeError(
                    f"MultiheadAttention: attn_mask has shape {attn_mask.shape}; give {shapes[0]} "
                    f"or {shapes[1]}"
                )
            whole = (batch, self.num_heads, rows, columns)
            added = _added(attn_mask, q.dtype)
            added = added.reshape(whole if attn_mask.ndim == 3 else (1, 1, rows, columns))
        if padding is not None:
            ignored = _added(padding, q.dtype).reshape(batch, 1, 1, columns)
            added = ignored if added is None else added + ignored
        return added

    def _extended(
        self, k: Tensor, v: Tensor, added: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """With the learnt extra key and value, which every query may see."""
        if self.bias_k is None or self.bias_v is None:
            return k, v, added
        shape = (k.shape[0], 1, self.embed_dim)
        k = cat([k, self.bias_k.expand(*shape)], 1)
        v = cat([v, self.bias_v.expand(*shape)], 1)
        return k, v, None if added is None else added.pad((0, 1))

    def _heads(self, x: Tensor) -> Tensor:
        """(N, length, embed_dim) to (N, heads, length, features of a head)."""
        split = x.reshape(*x.shape[:2], self.num_heads, self.embed_dim // self.num_heads)
        return split.transpose(1, 2)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        p = self.dropout if self.training else 0.0
        if not need_weights:
            return q.scaled_dot_product_attention(k, v, added, p), None
        weights = q.attention_weights(k, added).dropout(p)
        return weights.matmul(v), weights

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{self.embed_dim}, {self.num_heads}, batch_first={self.batch_first}"


def _added(mask: Tensor, dtype: DType) -> Tensor:
    """A mask as numbers to add: -inf where a bool mask is True."""
    if mask.dtype.is_float:
        return mask.cast(dtype)
    zeros = Tensor.zeros(*mask.shape, dtype=dtype, device=mask.device)
    return zeros.masked_fill(mask.cast("bool"), float("-inf"))


# ---- the encoder -------------------------------------------------------------------------------

_ACTIVATIONS: dict[str, Activation] = {"relu": Tensor.relu, "gelu": Tensor.gelu}


class TransformerEncoderLayer(Module):
    """Self-attention and a network of two layers, each with a residual and a layer norm.

    The norms stand after the sums, with ``norm_first`` before each part. ``activation`` is "relu",
    "gelu" or a function. Inputs are as in :class:`MultiheadAttention`; raises what that raises.

    >>> layer = TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    >>> layer(Tensor.ones(3, 5, 8)).shape
    (3, 5, 8)
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        if isinstance(activation, str) and activation not in _ACTIVATIONS:
            raise CoregradError(
                f"TransformerEncoderLayer: activation {activation!r}; choose one of: "
                f"{', '.join(_ACTIVATIONS)}, or give a function"
            )
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout, bias, batch_first=batch_first, device=device, dtype=dtype
        )
        self.linear1 = Linear(d_model, dim_feedforward, bias, device, dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, device, dtype)
        self.norm_first = norm_first
        options = {"eps": layer_norm_eps, "bias": bias, "device": device, "dtype": dtype}
        self.norm1 = LayerNorm(d_model, **options)  # type: ignore[arg-type]
        self.norm2 = LayerNorm(d_model, **options)  # type: ignore[arg-type]
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        self.activation = _ACTIVATIONS[activation] if isinstance(activation, str) else activation

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """(L, N, d_model), or (N, L, d_model) with ``batch_first``, to the same shape."""

        def attended(x: Tensor) -> Tensor:
            made, _ = self.self_attn(
                x, x, x, src_key_padding_mask, False, src_mask, is_causal=is_causal
            )
            return self.dropout1(made)  # type: ignore[no-any-return]

        def transformed(x: Tensor) -> Tensor:
            inner = self.dropout(self.activation(self.linear1(x)))
            return self.dropout2(self.linear2(inner))  # type: ignore[no-any-return]

        if self.norm_first:
            src = src + attended(self.norm1(src))
            return src + transformed(self.norm2(src))
        src = self.norm1(src + attended(src))
        return self.norm2(src + transformed(src))  # type: ignore[no-any-return]


class TransformerEncoder(Module):
    """``num_layers`` copies of an encoder layer, which start from its weights, and a last norm.

    >>> layer = TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    >>> TransformerEncoder(layer, 2)(Tensor.ones(3, 5, 8)).shape
    (3, 5, 8)
    """

    def __init__(
        self,
        encoder_layer: TransformerEncoderLayer,
        num_layers: int,
        norm: Module | None = None,
    ) -> None:
        positive("TransformerEncoder", num_layers=num_layers)
        self.layers = [_copied(encoder_layer) for _ in range(num_layers)]
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Through all layers; masks as in :class:`MultiheadAttention`."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return src if self.norm is None else self.norm(src)


def _copied(layer: TransformerEncoderLayer) -> TransformerEncoderLayer:
    """A layer of its own with the same weights."""
    shared = {id(p): Parameter(p.detach(), p.requires_grad is True) for p in layer.parameters()}
    return copy.deepcopy(layer, shared)
