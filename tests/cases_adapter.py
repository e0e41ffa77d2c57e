"""coregrad for the runner of small inputs from public bug reports; it has no cases of its own.

The runner's folder is named by COREGRAD_CASES. Most names are PyTorch's and are inherited: here is
only what is spelled differently, and what coregrad does not have, which is said and never imitated.

Law 1 (a tensor is a value with a name; views never alias): the cases read every result through the
name that was written, where PyTorch's aliasing and our values agree, so no answer is bent here.
"""

import os
import sys

sys.path.insert(0, os.environ["COREGRAD_CASES"])

from adapters import Torch

import coregrad
from coregrad import Tensor

DTYPES = (
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"
)  # fmt: skip


class Coregrad(Torch):
    """The names that cases use, as coregrad spells them."""

    name = "coregrad"
    import_name = "coregrad"
    plugin_group = "coregrad.backends"
    device_env = "COREGRAD_DEVICE"
    lazy = True

    def __init__(self):
        self.m = coregrad
        self.F = Tensor  # PyTorch's functions of tensors are methods
        self.bool = coregrad.bool_
        for name in DTYPES:
            setattr(self, name, getattr(coregrad, name))

    # ---- spelled differently -------------------------------------------------------------------

    def numpy(self, x):
        return x.numpy()

    def bitcast(self, x, d):
        return x.bitcast(d)

    def norm(self, x):
        return x.norm()

    def pad(self, x, p, value=0.0):
        return x.pad(p, value=value)

    def sdpa(self, q, k, v, mask=None, is_causal=False):
        return q.scaled_dot_product_attention(k, v, attn_mask=mask, is_causal=is_causal)

    def grad(self, y, xs, create_graph=False):
        return list(coregrad.grad(y, xs, create_graph=create_graph))

    def set_grad(self, x, a):
        x.grad = Tensor(a, dtype=x.dtype)

    def clip_grad_norm(self, ps, n, error_if_nonfinite=False):
        if error_if_nonfinite:
            self._lacks("error_if_nonfinite in clip_grad_norm_")
        return coregrad.nn.optim.clip_grad_norm_(ps, n)

    def SGD(self, ps, lr, momentum=0.0, weight_decay=0.0, nesterov=False):  # noqa: N802
        return coregrad.nn.optim.SGD(
            ps, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov
        )

    def Adam(self, ps, lr, eps=1e-8, weight_decay=0.0):  # noqa: N802
        return coregrad.nn.optim.Adam(ps, lr=lr, eps=eps, weight_decay=weight_decay)

    def AdamW(self, ps, lr, weight_decay=0.01):  # noqa: N802
        return coregrad.nn.optim.AdamW(ps, lr=lr, weight_decay=weight_decay)

    def realize(self, *xs):
        coregrad.realize(*xs)

    def set_lr(self, opt, v):
        opt.lr = v

    def save_safetensors(self, d, path, metadata=None):
        coregrad.nn.state.safe_save(d, path, metadata)

    def load_safetensors(self, path):
        return coregrad.nn.state.safe_load(path)

    def sort(self, x, dim=-1):
        return tuple(x.sort(dim=dim, stable=True))

    def argsort(self, x, dim=-1):
        return x.argsort(dim=dim, stable=True)

    def topk(self, x, k):
        return tuple(x.topk(k))

    def jit(self, fn):
        return coregrad.jit(fn)

    # ---- not there -----------------------------------------------------------------------------

    def _lacks(self, what):
        raise self.Unsupported(f"coregrad has no {what}")

    def load_pt(self, path):
        self._lacks("reader of PyTorch's pickled files")

    def onnx_run(self, path, inputs):
        self._lacks("ONNX importer")
