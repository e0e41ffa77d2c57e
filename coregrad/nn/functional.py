"""PyTorch's ``torch.nn.functional`` names for what are methods of the tensor here; nothing else.

>>> from coregrad.nn import functional as F
>>> F.relu(Tensor([-1.0, 2.0])).tolist()
[0.0, 2.0]
"""

from coregrad.api.tensor import Tensor

# fmt: off
linear = Tensor.linear
conv1d, conv2d = Tensor.conv1d, Tensor.conv2d
conv_transpose1d, conv_transpose2d = Tensor.conv_transpose1d, Tensor.conv_transpose2d
max_pool1d, avg_pool1d = Tensor.max_pool1d, Tensor.avg_pool1d
max_pool2d, avg_pool2d = Tensor.max_pool2d, Tensor.avg_pool2d
adaptive_avg_pool2d, pad = Tensor.adaptive_avg_pool2d, Tensor.pad
relu, relu6, leaky_relu, elu = Tensor.relu, Tensor.relu6, Tensor.leaky_relu, Tensor.elu
celu, selu, gelu, silu, mish = Tensor.celu, Tensor.selu, Tensor.gelu, Tensor.silu, Tensor.mish
sigmoid, tanh, logsigmoid = Tensor.sigmoid, Tensor.tanh, Tensor.logsigmoid
softplus, softsign, hardtanh = Tensor.softplus, Tensor.softsign, Tensor.hardtanh
hardsigmoid, hardswish = Tensor.hardsigmoid, Tensor.hardswish
softmax, log_softmax, glu = Tensor.softmax, Tensor.log_softmax, Tensor.glu
normalize, cosine_similarity = Tensor.normalize, Tensor.cosine_similarity
layer_norm, group_norm, rms_norm = Tensor.layer_norm, Tensor.group_norm, Tensor.rms_norm
embedding, one_hot, dropout = Tensor.embedding, Tensor.one_hot, Tensor.dropout
cross_entropy, nll_loss, kl_div = Tensor.cross_entropy, Tensor.nll_loss, Tensor.kl_div
binary_cross_entropy = Tensor.binary_cross_entropy
binary_cross_entropy_with_logits = Tensor.binary_cross_entropy_with_logits
mse_loss, l1_loss = Tensor.mse_loss, Tensor.l1_loss
huber_loss, smooth_l1_loss = Tensor.huber_loss, Tensor.smooth_l1_loss
scaled_dot_product_attention = Tensor.scaled_dot_product_attention
# fmt: on
