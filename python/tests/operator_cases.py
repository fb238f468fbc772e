"""One small function for each operator, for the comparison with PyTorch in test_operators.py.

Each case: (name, shape of one sample, function of the batch [samples, …]). The function returns a tensor whose first dimension is the
samples, and computes with differentiable numbers around 0 unless it moves them.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


def per_sample(value):
    """[samples] or [samples, …]: the mean of each sample."""
    return value.flatten(1).mean(1) if value.dim() > 1 else value


def scalar(function):
    """For functions that reduce the whole batch to one number."""
    return lambda x: function(x) + x


def pooled(pool, unpool):
    def function(x):
        values, indices = pool(x)
        return unpool(values, indices)

    return function


def classes(x, count):
    """Class ids from a float tensor [samples, …, count], without a gradient."""
    return x.detach().argmax(-1) % count


def changed(x, change):
    """x.clone() after an assignment to a part of it."""
    y = x.clone()
    change(y)
    return y


def sequence(x):
    return x.transpose(0, 1)


MODULES = [
    # activations
    ("nn.ELU", [6], nn.ELU()), ("nn.CELU", [6], nn.CELU()), ("nn.SELU", [6], nn.SELU()), ("nn.GELU", [6], nn.GELU()),
    ("nn.GELU tanh", [6], nn.GELU("tanh")), ("nn.SiLU", [6], nn.SiLU()), ("nn.Mish", [6], nn.Mish()), ("nn.Hardshrink", [6], nn.Hardshrink()),
    ("nn.Hardsigmoid", [6], nn.Hardsigmoid()), ("nn.Hardtanh", [6], nn.Hardtanh()), ("nn.Hardswish", [6], nn.Hardswish()),
    ("nn.LeakyReLU", [6], nn.LeakyReLU()), ("nn.LogSigmoid", [6], nn.LogSigmoid()), ("nn.PReLU", [6], nn.PReLU(6)), ("nn.ReLU", [6], nn.ReLU()),
    ("nn.ReLU6", [6], nn.ReLU6()), ("nn.Sigmoid", [6], nn.Sigmoid()),
    ("nn.Softplus", [6], nn.Softplus()), ("nn.Softshrink", [6], nn.Softshrink()), ("nn.Softsign", [6], nn.Softsign()), ("nn.Tanh", [6], nn.Tanh()),
    ("nn.Tanhshrink", [6], nn.Tanhshrink()), ("nn.Threshold", [6], nn.Threshold(0.1, 0.3)), ("nn.GLU", [6], nn.GLU()),
    ("nn.Softmin", [6], nn.Softmin(1)), ("nn.Softmax", [6], nn.Softmax(1)), ("nn.Softmax2d", [3, 4, 4], nn.Softmax2d()),
    ("nn.LogSoftmax", [6], nn.LogSoftmax(1)),
    ("nn.ELU inplace", [6], lambda x: F.elu_(x.clone())), ("nn.Threshold inplace", [6], lambda x: F.threshold_(x.clone(), 0.1, 0.3)),
    ("nn.CELU inplace", [6], lambda x: F.celu_(x.clone())), ("nn.SELU inplace", [6], lambda x: F.selu_(x.clone())),
    ("nn.Mish inplace", [6], lambda x: F.mish(x.clone(), inplace=True)),
    # convolutions
    ("nn.Conv1d", [3, 8], nn.Conv1d(3, 4, 3, padding=1)), ("nn.Conv2d", [3, 8, 8], nn.Conv2d(3, 4, 3, stride=2)),
    ("nn.Conv3d", [2, 4, 4, 4], nn.Conv3d(2, 3, 3)), ("nn.Conv3d same", [2, 4, 4, 4], nn.Conv3d(2, 3, 3, padding="same")),
    ("nn.Conv2d same", [3, 8, 8], nn.Conv2d(3, 4, 3, padding="same")), ("nn.Conv2d reflect", [3, 8, 8], nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")),
    ("nn.Conv1d circular", [3, 8], nn.Conv1d(3, 4, 3, padding=1, padding_mode="circular")),
    ("nn.ConvTranspose1d", [3, 8], nn.ConvTranspose1d(3, 4, 3)), ("nn.ConvTranspose2d", [3, 4, 4], nn.ConvTranspose2d(3, 4, 2, stride=2)),
    ("nn.ConvTranspose3d", [2, 3, 3, 3], nn.ConvTranspose3d(2, 3, 2, stride=2)),
    ("nn.Unfold", [2, 6, 6], nn.Unfold(3, padding=1)), ("nn.Fold", [18, 16], nn.Fold((6, 6), 3)), ("nn.Linear", [6], nn.Linear(6, 4)),
    
    # pooling
    ("nn.MaxPool1d", [2, 8], nn.MaxPool1d(2)), ("nn.MaxPool2d", [2, 8, 8], nn.MaxPool2d(2)), ("nn.MaxPool3d", [2, 4, 4, 4], nn.MaxPool3d(2)),
    ("nn.MaxPool2d ceil", [2, 7, 7], nn.MaxPool2d(3, 2, 1, ceil_mode=True)),
    ("nn.AvgPool1d", [2, 8], nn.AvgPool1d(2)), ("nn.AvgPool2d", [2, 8, 8], nn.AvgPool2d(2)), ("nn.AvgPool3d", [2, 4, 4, 4], nn.AvgPool3d(2)),
    ("nn.LPPool1d", [2, 8], lambda x: F.lp_pool1d(x.abs() + 1, 2, 2)), ("nn.LPPool2d", [2, 8, 8], lambda x: F.lp_pool2d(x.abs() + 1, 2, 2)),
    ("nn.LPPool3d", [2, 4, 4, 4], lambda x: F.lp_pool3d(x.abs() + 1, 2, 2)),
    ("nn.AdaptiveMaxPool1d", [2, 8], nn.AdaptiveMaxPool1d(3)), ("nn.AdaptiveMaxPool2d", [2, 8, 8], nn.AdaptiveMaxPool2d(3)),
    ("nn.AdaptiveMaxPool3d", [2, 4, 4, 4], nn.AdaptiveMaxPool3d(2)), ("nn.AdaptiveAvgPool1d", [2, 8], nn.AdaptiveAvgPool1d(3)),
    ("nn.AdaptiveAvgPool2d", [2, 8, 8], nn.AdaptiveAvgPool2d(3)), ("nn.AdaptiveAvgPool3d", [2, 4, 4, 4], nn.AdaptiveAvgPool3d(2)),
    ("nn.MaxUnpool1d", [2, 8], pooled(lambda x: F.max_pool1d(x, 2, return_indices=True), lambda v, i: F.max_unpool1d(v, i, 2))),
    ("nn.MaxUnpool2d", [2, 8, 8], pooled(lambda x: F.max_pool2d(x, 2, return_indices=True), lambda v, i: F.max_unpool2d(v, i, 2))),
    ("nn.MaxUnpool3d", [2, 4, 4, 4], pooled(lambda x: F.max_pool3d(x, 2, return_indices=True), lambda v, i: F.max_unpool3d(v, i, 2))),
    ("adaptive_max_pool2d indices", [2, 8, 8], lambda x: F.adaptive_max_pool2d(x, 3, return_indices=True)[0]),
    # padding
    ("nn.ReflectionPad1d", [2, 8], nn.ReflectionPad1d(2)), ("nn.ReflectionPad2d", [2, 8, 8], nn.ReflectionPad2d(2)),
    ("nn.ReflectionPad3d", [2, 4, 4, 4], nn.ReflectionPad3d(1)), ("nn.ReplicationPad1d", [2, 8], nn.ReplicationPad1d(2)),
    ("nn.ReplicationPad2d", [2, 8, 8], nn.ReplicationPad2d(2)), ("nn.ReplicationPad3d", [2, 4, 4, 4], nn.ReplicationPad3d(2)),
    ("nn.ZeroPad2d", [2, 8, 8], nn.ZeroPad2d(2)), ("nn.ConstantPad1d", [2, 8], nn.ConstantPad1d(2, 0.5)),
    ("nn.CircularPad2d", [2, 8, 8], nn.CircularPad2d(2)), ("F.pad circular", [2, 8], lambda x: F.pad(x, (2, 1), mode="circular")),
    # norms
    ("nn.LayerNorm", [6], nn.LayerNorm(6)), ("nn.GroupNorm", [6, 4], nn.GroupNorm(2, 6)), ("nn.RMSNorm", [6], nn.RMSNorm(6)),
    ("nn.InstanceNorm1d", [3, 8], nn.InstanceNorm1d(3, affine=True)), ("nn.InstanceNorm2d", [3, 4, 4], nn.InstanceNorm2d(3)),
    ("nn.InstanceNorm3d", [2, 4, 4, 4], nn.InstanceNorm3d(2)), ("nn.LocalResponseNorm", [6, 4, 4], nn.LocalResponseNorm(2)),
    ("nn.LocalResponseNorm 1d", [6, 4], nn.LocalResponseNorm(2)), ("F.normalize", [6], lambda x: F.normalize(x, dim=1)),
    ("nn.BatchNorm1d no statistics", [6], nn.BatchNorm1d(6, track_running_stats=False)), ("weight_norm", [6], nn.utils.parametrizations.weight_norm(nn.Linear(6, 4))),
    # upsampling
    ("upsample nearest 1d", [2, 6], nn.Upsample(scale_factor=2)), ("upsample nearest 2d", [2, 4, 4], nn.Upsample(scale_factor=2)),
    ("upsample nearest 3d", [2, 3, 3, 3], nn.Upsample(scale_factor=2)), ("upsample linear", [2, 6], nn.Upsample(scale_factor=2, mode="linear")),
    ("upsample bilinear", [2, 4, 4], nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)),
    ("upsample bicubic", [2, 4, 4], nn.Upsample(size=(7, 9), mode="bicubic")), ("upsample trilinear", [2, 3, 3, 3], nn.Upsample(scale_factor=2, mode="trilinear")),
    ("upsample nearest-exact 1d", [2, 6], nn.Upsample(size=9, mode="nearest-exact")), ("upsample nearest-exact 2d", [2, 4, 4], nn.Upsample(size=9, mode="nearest-exact")),
    ("upsample nearest-exact 3d", [2, 3, 3, 3], nn.Upsample(size=5, mode="nearest-exact")),
    ("upsample antialias bilinear", [2, 8, 8], lambda x: F.interpolate(x, size=(3, 5), mode="bilinear", antialias=True)),
    ("upsample antialias bicubic", [2, 8, 8], lambda x: F.interpolate(x, size=(3, 5), mode="bicubic", antialias=True)),
    ("interpolate area", [2, 8, 8], lambda x: F.interpolate(x, size=(4, 4), mode="area")), ("interpolate area 1d", [2, 8], lambda x: F.interpolate(x, size=4, mode="area")),
    ("interpolate area 3d", [2, 4, 4, 4], lambda x: F.interpolate(x, size=(2, 2, 2), mode="area")),
    ("interpolate to another tensor", [2, 8, 8], lambda x: F.interpolate(x[:, :, ::2, ::2], size=x.shape[2:], mode="bilinear") + x),
    ("nn.PixelShuffle", [8, 3, 3], nn.PixelShuffle(2)), ("nn.PixelUnshuffle", [2, 4, 4], nn.PixelUnshuffle(2)), ("nn.ChannelShuffle", [6, 3, 3], nn.ChannelShuffle(2)),
    ("affine_grid", [2, 5, 5], lambda x: F.grid_sample(x, F.affine_grid(torch.eye(2, 3).expand(x.shape[0], 2, 3) + x.mean((1, 2, 3))[:, None, None], list(x.shape), align_corners=False), align_corners=False)),
    ("grid_sample border", [2, 5, 5], lambda x: F.grid_sample(x, x.permute(0, 2, 3, 1), padding_mode="border", align_corners=True)),
    ("grid_sample bicubic", [2, 5, 5], lambda x: F.grid_sample(x, x.permute(0, 2, 3, 1), mode="bicubic", padding_mode="reflection", align_corners=True)),
    ("grid_sample 3d", [3, 4, 4, 4], lambda x: F.grid_sample(x, x.permute(0, 2, 3, 4, 1), mode="nearest", align_corners=False) + F.grid_sample(x, x.permute(0, 2, 3, 4, 1), align_corners=False)),
    # recurrent layers and attention
    ("nn.RNN tanh", [5, 4], lambda x, layer=nn.RNN(4, 4, batch_first=True): layer(x)[0]), ("nn.RNN relu", [5, 4], lambda x, layer=nn.RNN(4, 4, nonlinearity="relu", batch_first=True): layer(x)[0]),
    ("nn.LSTM", [5, 4], lambda x, layer=nn.LSTM(4, 4, 2, batch_first=True, bidirectional=True): layer(x)[0]), ("nn.GRU", [5, 4], lambda x, layer=nn.GRU(4, 4, batch_first=True): layer(x)[0]),
    ("nn.LSTM projected", [5, 4], lambda x, layer=nn.LSTM(4, 6, proj_size=3, batch_first=True): layer(x)[0]),
    ("nn.RNNCell", [4], nn.RNNCell(4, 4)), ("nn.RNNCell relu", [4], nn.RNNCell(4, 4, nonlinearity="relu")), ("nn.LSTMCell", [4], lambda x, layer=nn.LSTMCell(4, 4): layer(x)[0]), ("nn.GRUCell", [4], nn.GRUCell(4, 4)),
    ("nn.MultiheadAttention", [5, 4], lambda x, layer=nn.MultiheadAttention(4, 2, batch_first=True): layer(x, x, x)[0]),
    ("nn.TransformerEncoderLayer", [5, 4], nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)),
    ("nn.TransformerDecoderLayer", [5, 4], lambda x, layer=nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0, batch_first=True): layer(x, x)),
    ("scaled_dot_product_attention causal", [2, 5, 4], lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True)),
    # embeddings
    ("nn.Embedding", [5], lambda x, layer=nn.Embedding(7, 4): layer(classes(x[:, :, None] * torch.arange(7.0), 7)) + x[:, :, None]),
    ("nn.EmbeddingBag", [5], lambda x, layer=nn.EmbeddingBag(7, 4): layer(classes(x[:, :, None] * torch.arange(7.0), 7)) + x[:, :4]),
    ("nn.EmbeddingBag sum", [5], lambda x, layer=nn.EmbeddingBag(7, 4, mode="sum"): layer(classes(x[:, :, None] * torch.arange(7.0), 7)) + x[:, :4]),
    ("nn.EmbeddingBag max", [5], lambda x, layer=nn.EmbeddingBag(7, 4, mode="max"): layer(classes(x[:, :, None] * torch.arange(7.0), 7)) + x[:, :4]),
    ("nn.EmbeddingBag padding", [5], lambda x, layer=nn.EmbeddingBag(7, 4, padding_idx=0): layer(classes(x[:, :, None] * torch.arange(7.0), 7)) + x[:, :4]),
    ("one_hot", [5], lambda x: F.one_hot(classes(x, 5), 5).float() * x),
    # distances
    ("nn.CosineSimilarity", [6], lambda x: nn.CosineSimilarity()(x, x.flip(1) + 0.1)), ("nn.PairwiseDistance", [6], lambda x: nn.PairwiseDistance()(x, x.flip(1) + 0.3)),
    ("cdist", [4, 3], lambda x: torch.cdist(x, x.flip(1) + 0.3)), ("cdist p=1", [4, 3], lambda x: torch.cdist(x, x.flip(1) + 0.3, p=1.0)),
    ("cdist large", [26, 3], lambda x: torch.cdist(x, x.flip(1) + 0.3)), ("torch.dist", [4], scalar(lambda x: torch.dist(x, x.flip(1)))), 
]

LOSSES = [
    ("cross_entropy", [5], lambda x: F.cross_entropy(x, classes(x.roll(1, 1), 5), reduction="none")),
    ("cross_entropy smoothed", [5], lambda x: F.cross_entropy(x, classes(x.roll(1, 1), 5), weight=torch.arange(1.0, 6.0), label_smoothing=0.1, reduction="none")),
    ("cross_entropy per pixel", [5, 4, 4], lambda x: per_sample(F.cross_entropy(x, x.detach().roll(1, 1).argmax(1), reduction="none", ignore_index=2))),
    ("cross_entropy per pixel smoothed", [5, 4, 4], lambda x: per_sample(F.cross_entropy(x, x.detach().roll(1, 1).argmax(1), reduction="none", label_smoothing=0.1))),
    ("cross_entropy per token", [6, 5], lambda x: per_sample(F.cross_entropy(x.transpose(1, 2), classes(x.roll(1, 2), 5), reduction="none"))),
    ("cross_entropy flat", [6, 5], lambda x: F.cross_entropy(x.flatten(0, 1), classes(x.roll(1, 2), 5).flatten(), reduction="none").view(x.shape[0], -1).mean(1)),
    
    ("nll_loss", [5], lambda x: F.nll_loss(x.log_softmax(1), classes(x.roll(1, 1), 5), reduction="none")),
    ("nll_loss per pixel", [5, 4, 4], lambda x: per_sample(F.nll_loss(x.log_softmax(1), x.detach().roll(1, 1).argmax(1), reduction="none"))),
    ("nll_loss per token", [5, 4], lambda x: per_sample(F.nll_loss(x.log_softmax(1), x.detach().roll(1, 1).argmax(1), reduction="none"))),
    ("mse_loss", [5], lambda x: per_sample(F.mse_loss(x, x.flip(1), reduction="none"))), ("l1_loss", [5], lambda x: per_sample(F.l1_loss(x, x.flip(1), reduction="none"))),
    ("mse_loss weighted", [5], lambda x: per_sample(F.mse_loss(x, x.flip(1), reduction="none", weight=x.detach().abs()))),
    ("smooth_l1_loss", [5], lambda x: per_sample(F.smooth_l1_loss(x, x.flip(1), reduction="none"))), ("huber_loss", [5], lambda x: per_sample(F.huber_loss(x, x.flip(1), reduction="none"))),
    ("binary_cross_entropy", [5], lambda x: per_sample(F.binary_cross_entropy(x.sigmoid(), (x > 0).float(), reduction="none"))),
    ("binary_cross_entropy_with_logits", [5], lambda x: per_sample(F.binary_cross_entropy_with_logits(x, (x.flip(1) > 0).float(), reduction="none", pos_weight=torch.ones(5) * 2))),
    ("kl_div", [5], lambda x: per_sample(F.kl_div(x.log_softmax(1), x.flip(1).softmax(1), reduction="none"))), ("kl_div log", [5], lambda x: per_sample(F.kl_div(x.log_softmax(1), x.flip(1).log_softmax(1), reduction="none", log_target=True))),
    ("margin_ranking_loss", [5], lambda x: per_sample(F.margin_ranking_loss(x, x.flip(1), x.sign().detach(), margin=0.1, reduction="none"))),
    ("hinge_embedding_loss", [5], lambda x: per_sample(F.hinge_embedding_loss(x, x.flip(1).sign().detach(), reduction="none"))),
    ("cosine_embedding_loss", [5], lambda x: F.cosine_embedding_loss(x, x.flip(1) + 0.1, x[:, 0].sign().detach(), reduction="none")),
    ("triplet_margin_loss", [5], lambda x: F.triplet_margin_loss(x, x.flip(1), x.roll(1, 1), reduction="none")),
    ("triplet_margin_with_distance_loss", [5], lambda x: F.triplet_margin_with_distance_loss(x, x.flip(1), x.roll(1, 1), reduction="none")),
    ("multi_margin_loss", [5], lambda x: F.multi_margin_loss(x, classes(x.roll(1, 1), 5), reduction="none")),
    ("multilabel_margin_loss", [5], lambda x: F.multilabel_margin_loss(x, classes(x.roll(1, 1), 5)[:, None].expand(-1, 5), reduction="none")),
    ("multilabel_soft_margin_loss", [5], lambda x: F.multilabel_soft_margin_loss(x, (x.flip(1) > 0).float(), reduction="none")),
    ("soft_margin_loss", [5], lambda x: per_sample(F.soft_margin_loss(x, x.flip(1).sign().detach(), reduction="none"))),
    ("poisson_nll_loss", [5], lambda x: per_sample(F.poisson_nll_loss(x, x.flip(1).abs(), full=True, reduction="none"))),
    
    ("dice", [3, 4, 4], lambda x: 1 - (2 * (x.softmax(1) * F.one_hot(x.detach().argmax(1), 3).permute(0, 3, 1, 2)).sum((2, 3)) / (x.softmax(1).sum((2, 3)) + 1)).mean(1)),
    ("focal", [5], lambda x: (1 - x.softmax(1).gather(1, classes(x, 5)[:, None]).squeeze(1)) ** 2 * F.cross_entropy(x, classes(x, 5), reduction="none")),
]


def unary(name, move=lambda x: x):
    return ("torch." + name, [6], lambda x: getattr(torch, name)(move(x)))


def positive(x):
    return x.abs() + 0.5


def small(x):
    return x.tanh() * 0.9


POINTWISE = [
    *(unary(name) for name in ("abs", "absolute", "arctan", "atan", "ceil", "cos", "cosh", "deg2rad", "erf", "erfc", "exp", "exp2", "expm1", "fix", "floor", "frac", "neg", "negative", "positive",
                               "rad2deg", "round", "sigmoid", "sgn", "sign", "sin", "sinc", "sinh", "square", "tan", "tanh", "trunc", "asinh", "arcsinh", "relu", "selu", "nan_to_num")),
    *(unary(name, positive) for name in ("log", "log2", "log10", "log1p", "rsqrt", "sqrt", "reciprocal", "digamma", "lgamma")),
    *(unary(name, small) for name in ("asin", "acos", "arcsin", "arccos", "atanh", "arctanh", "erfinv")),
    ("acosh", [6], lambda x: torch.acosh(positive(x) + 1)), ("logit", [6], lambda x: torch.logit(x.sigmoid(), eps=1e-6)), ("special.expit", [6], torch.special.expit),
    ("special.xlog1py", [6], lambda x: torch.special.xlog1py(x, positive(x))), ("special.entr", [6], lambda x: torch.special.entr(positive(x))), ("special.ndtr", [6], torch.special.ndtr),
    ("special.log_softmax", [6], lambda x: torch.special.log_softmax(x, 1)), 
    ("special.softmax", [6], lambda x: torch.special.softmax(x, 1)), ("special.logsumexp", [6], lambda x: torch.special.logsumexp(x, 1, keepdim=True)),
    ("clip", [6], lambda x: x.clip(-0.5, 0.5)), ("clip tensor", [6], lambda x: x.clip(x - 1, x.flip(1))), ("clip_", [6], lambda x: x.clone().clip_(-0.5, 0.5)), ("clamp", [6], lambda x: x.clamp(min=-0.5)),
    ("clamp tensor", [6], lambda x: x.clamp(min=x.flip(1))), ("clamp_min tensor", [6], lambda x: torch.clamp_min(x, x.flip(1))), ("clamp_max tensor", [6], lambda x: torch.clamp_max(x, x.flip(1))),
    ("clamp_max_", [6], lambda x: x.clone().clamp_max_(0.5)), ("clamp_ tensor", [6], lambda x: x.clone().clamp_(x - 1, x.flip(1))),
    ("atan2", [6], lambda x: torch.atan2(x, x.flip(1))), ("hypot", [6], lambda x: torch.hypot(x, x.flip(1) + 0.1)), ("logaddexp", [6], lambda x: torch.logaddexp(x, x.flip(1))),
    ("logaddexp2", [6], lambda x: torch.logaddexp2(x, x.flip(1))), ("xlogy", [6], lambda x: torch.xlogy(x, positive(x))), ("xlogy scalar", [6], lambda x: torch.xlogy(x, 2.0) + torch.xlogy(2.0, positive(x))),
    ("fmod", [6], lambda x: torch.fmod(x, 0.3)), ("fmod tensor", [6], lambda x: torch.fmod(x, x.flip(1).abs() + 0.3)), ("remainder", [6], lambda x: torch.remainder(x, 0.3)),
    ("remainder tensor", [6], lambda x: torch.remainder(x, x.flip(1).abs() + 0.3)), ("% operator", [6], lambda x: x % 0.3 + 3 % positive(x).detach()), ("// operator", [6], lambda x: (x.detach() // 0.3) + x.detach() // positive(x.detach()) + x),
    ("fmax fmin", [6], lambda x: torch.fmax(x, x.flip(1)) - torch.fmin(x, -x)), ("maximum minimum", [6], lambda x: torch.maximum(x, x.flip(1)) - torch.minimum(x, -x)),
    ("lerp", [6], lambda x: torch.lerp(x, x.flip(1), 0.3)), ("lerp tensor", [6], lambda x: torch.lerp(x, x.flip(1), x.sigmoid())), ("lerp_", [6], lambda x: x.clone().lerp_(x.flip(1), 0.3)),
    ("addcmul", [6], lambda x: torch.addcmul(x, x, x.flip(1), value=0.5)), ("addcdiv", [6], lambda x: torch.addcdiv(x, x, positive(x.flip(1)), value=0.5)), ("addcdiv_", [6], lambda x: x.clone().addcdiv_(x, positive(x), value=0.5)),
    ("copysign", [6], lambda x: torch.copysign(x, x.flip(1))), ("copysign scalar", [6], lambda x: torch.copysign(x, -1.0)), ("float_power", [6], lambda x: torch.float_power(positive(x), 2).float()),
    ("heaviside", [6], lambda x: torch.heaviside(x.detach(), torch.tensor(0.5)) + x), ("ldexp", [6], lambda x: torch.ldexp(x, torch.tensor(2))), ("signbit", [6], lambda x: torch.signbit(x) * x),
    ("pow", [6], lambda x: x**2 + 2**x + positive(x) ** x), ("pow_", [6], lambda x: x.clone().pow_(2)), ("rsub", [6], lambda x: torch.rsub(x, x.flip(1)) + (1 - x)), ("subtract", [6], lambda x: torch.subtract(x, x.flip(1), alpha=2)),
    ("multiply divide", [6], lambda x: torch.multiply(x, x) + torch.divide(x, positive(x)) + torch.true_divide(x, 2)), ("true_divide_", [6], lambda x: x.clone().true_divide_(2).multiply_(3).subtract_(1).divide_(2)),
    ("div rounding", [6], lambda x: torch.div(x, 0.3, rounding_mode="floor") + torch.div(x, positive(x), rounding_mode="trunc") + x), ("div_ rounding", [6], lambda x: x.clone().div_(0.3, rounding_mode="floor") + x),
    ("comparisons", [6], lambda x: ((x > 0) & (x < 1) | (x.flip(1) >= 0.2) ^ (x <= 0.1)) * x + (x == x.flip(1)) * x + (x != 0.5) * x),
    ("comparisons by name", [6], lambda x: (torch.greater(x, 0).logical_and(torch.less(x, 1)).logical_xor(torch.greater_equal(x, x.flip(1))).logical_or(torch.less_equal(x, 0)).logical_not() * x + torch.not_equal(x, 0) * x)),
    ("isclose", [6], lambda x: torch.isclose(x, x.round()) * x + torch.isposinf(x) * x + torch.isneginf(x) * x + torch.isnan(x) * x + x), ("isin", [6], lambda x: torch.isin(x.detach().round(), torch.tensor([0.0, 1.0])) * x + x),
    ("integers", [6], lambda x: ((x.detach() * 8).long() % 5 + ((x.detach() * 8).long() << 1) - ((x.detach() * 8).long() >> 1) + ((x.detach() * 8).long() & 3) + ((x.detach() * 8).long() | 4) + ((x.detach() * 8).long() ^ 1)) * x),
    ("bool", [6], lambda x: (~(x > 0)).float() * x + (x.bool() & (x > 1).bool()) * x + (x > 0).int() * x + (x > 0).double().float()), ("type conversions", [6], lambda x: x.double().float() + x.half().float() + x.bfloat16().float() + x.to(torch.float64).to(x.dtype)),
    ("where", [6], lambda x: torch.where(x > 0, x, 0.0) + torch.where(x > 0, 1.0, x.flip(1)) + torch.where(x < 0, x, x.flip(1))), ("masked_fill", [6], lambda x: x.masked_fill(x > 0, 0.5) + x.clone().masked_fill_(x < 0, -1)),
    ("masked_scatter", [6], lambda x: x.masked_scatter(x > 0, x.flip(1))), ("masked_fill infinity", [6], lambda x: x.masked_fill(x > x.mean(), float("-inf")).softmax(1)), ("relu6 hardtanh", [6], lambda x: F.relu6(x) + F.hardtanh(x, -0.3, 0.3)),
    ("nan_to_num values", [6], lambda x: torch.nan_to_num(x.masked_fill(x > 0.5, float("inf")).masked_fill(x < -0.5, float("nan")), nan=0.1, posinf=1.0, neginf=-1.0)), 
    ("quantize by rounding", [6], lambda x: (x + ((x * 4).round() / 4 - x).detach())), ("gradient reversal", [6], lambda x: -x + (2 * x).detach()), ("zeros_like and others", [6], lambda x: x + torch.zeros_like(x) + torch.ones_like(x) + torch.full_like(x, 0.5) + x.new_tensor([1.0])),
]

REDUCTIONS = [
    ("sum", [3, 4], lambda x: x.sum((1, 2)) + x.sum(-1).sum(1) + x.sum()), ("mean", [3, 4], lambda x: x.mean((1, 2)) + x.mean(-1).mean(1) + x.mean()), ("prod", [3, 4], lambda x: x.prod(1).prod(1, keepdim=True) + x.prod()),
    ("std", [6], scalar(torch.std)), ("std dim", [6], lambda x: x.std(1) + x.std(dim=(1,), unbiased=False) + x.std(dim=1, correction=0)), ("std unbiased", [6], scalar(lambda x: x.std(unbiased=False))),
    ("var", [6], scalar(torch.var)), ("var dim", [6], lambda x: x.var(1) + x.var(dim=(1,), unbiased=False) + x.var(dim=1, correction=0)), ("var unbiased", [6], scalar(lambda x: x.var(False))),
    ("std_mean", [6], lambda x: sum(torch.std_mean(x, 1)) + sum(torch.std_mean(x, 1, correction=0))), ("var_mean", [6], lambda x: sum(torch.var_mean(x, 1)) + sum(torch.var_mean(x)) + sum(torch.var_mean(x, dim=1, correction=0))),
    ("std_mean all", [6], scalar(lambda x: sum(torch.std_mean(x)))), ("amax amin", [6], lambda x: x.amax(1) - x.amin(1)), ("aminmax", [6], lambda x: sum(torch.aminmax(x.detach(), dim=1)) + x.mean(1)), ("max min", [6], lambda x: x.max(1)[0] - x.min(1)[0] + x.max() - x.min()),
    ("max other", [6], lambda x: torch.max(x, x.flip(1)) - torch.min(x, -x)), ("median", [5], lambda x: x.median(1)[0]), ("median all", [5], scalar(torch.median)), ("nanmedian", [5], lambda x: x.nanmedian(1)[0]), ("mode", [5], lambda x: x.mode(1)[0]),
    ("kthvalue", [5], lambda x: x.kthvalue(2, 1)[0]), 
    ("logsumexp", [6], lambda x: x.logsumexp(1)), ("logcumsumexp", [6], lambda x: x.logcumsumexp(1)), ("cumsum", [6], lambda x: x.cumsum(1)), ("cumprod", [6], lambda x: x.cumprod(1)), ("cummax", [6], lambda x: x.cummax(1)[0] - x.cummin(1)[0]),
    ("cumulative_trapezoid", [6], lambda x: torch.cumulative_trapezoid(x, dim=1)), ("trapezoid", [6], lambda x: torch.trapezoid(x, dim=1)), ("trapz", [6], lambda x: torch.trapz(x, dim=1)), ("diff", [6], lambda x: x.diff(dim=1)), ("diff prepend", [6], lambda x: x.diff(dim=1, prepend=x[:, :1])),
    ("nansum", [6], lambda x: x.nansum(1) + x.nansum()), ("nanmean", [6], lambda x: x.nanmean(1)), ("norm", [6], lambda x: x.norm(dim=1) + x.norm() + x.norm(p=1, dim=1)), ("norm dims", [3, 4], lambda x: x.norm(dim=(1, 2)) + torch.norm(x, 1, (1, 2))),
    ("norm keepdim", [6], lambda x: x / x.norm(p=2, dim=-1, keepdim=True)), ("frobenius", [3, 4], lambda x: torch.norm(x, "fro", dim=(1, 2))), 
    ("linalg.norm", [6], lambda x: torch.linalg.norm(x, dim=1) + torch.linalg.norm(x) + torch.linalg.norm(x, 1, dim=1)), ("linalg.vector_norm", [6], lambda x: torch.linalg.vector_norm(x, 3, dim=1)), 
    ("argmax", [6], lambda x: x.argmax(1).float() + x.argmin(1) + x.mean(1)), ("all any", [6], lambda x: (x > 0).all(1) * x.sum(1) + (x > 0).any(1) * x.sum(1) + (x > 0).all() * x.sum(1) + (x > 5).any() * x.sum(1)), ("count_nonzero", [6], lambda x: x.detach().round().count_nonzero(1) + x.mean(1)),
    ("all any dims", [3, 4], lambda x: (x > 0).all(dim=(1, 2)) * x.sum((1, 2)) + (x > 0).any(dim=(1, 2)) * x.sum((1, 2))), ("topk", [6], lambda x: x.topk(3, 1)[0]), ("topk mask", [6], lambda x: x * torch.zeros_like(x).scatter(1, x.topk(3, 1)[1], 1.0)), ("sort", [6], lambda x: x.sort(1)[0] + torch.sort(x, dim=1, descending=True)[0]),
    ("sort stable", [6], lambda x: torch.sort(x, stable=True, dim=1)[0]), ("argsort", [6], lambda x: x.gather(1, x.argsort(1)) + x.gather(1, x.argsort(dim=1, descending=True))), ("argsort stable", [6], lambda x: x.gather(1, torch.argsort(x, stable=True, dim=1))), 
    ("bucketize", [6], lambda x: torch.bucketize(x.detach(), torch.tensor([-1.0, 0.0, 1.0])) * x), ("searchsorted", [6], lambda x: torch.searchsorted(torch.tensor([-1.0, 0.0, 1.0]), x.detach()) * x), ("equal values", [6], lambda x: x.eq(x.flip(1)).sum(1) + x.mean(1)),
    ("softmax", [6], lambda x: x.softmax(1) + x.log_softmax(-1) + F.softmax(x, dim=1, dtype=torch.float64).float()), ("gumbel shape", [6], lambda x: (x - x.max(dim=-1, keepdim=True)[0]).softmax(-1)), 
]

SHAPES = [
    ("T", [4], lambda x: x.T.mT), ("t", [4], lambda x: x.t().t()), ("mT", [3, 4], lambda x: x.mT), ("mH", [3, 4], lambda x: x.mH), ("H", [4], lambda x: x.H.t()), ("adjoint", [3, 4], lambda x: x.adjoint()), ("numpy_T 3d", [3, 4], lambda x: x.T.permute(2, 0, 1)),
    ("reshape_as", [3, 4], lambda x: x.flatten(1).reshape_as(x)), ("view_as", [3, 4], lambda x: x.flatten(1).view_as(x)), ("expand_as", [3, 4], lambda x: x[:, :1].expand_as(x)), ("type_as", [4], lambda x: x.type_as(x)), ("to other", [4], lambda x: x.to(x)),
    ("swapdims", [3, 4], lambda x: x.swapdims(1, 2)), ("swapaxes", [3, 4], lambda x: x.swapaxes(1, 2)), ("moveaxis", [3, 4], lambda x: x.moveaxis(1, 2)), ("movedim", [3, 4], lambda x: x.movedim((1, 2), (2, 1))), ("transpose", [3, 4], lambda x: x.transpose(1, 2)), ("permute", [3, 4], lambda x: x.permute(0, 2, 1)),
    ("flatten", [3, 4], lambda x: x.flatten(1)), ("unflatten", [6], lambda x: x.unflatten(1, (2, 3))), ("nn.Unflatten", [6], nn.Unflatten(1, (2, 3))), ("nn.Flatten", [3, 4], nn.Flatten()), ("ravel", [4], lambda x: x.ravel().view(-1, 4)), ("squeeze", [1, 4], lambda x: x.squeeze() + x.squeeze(1) + x.squeeze((1,))), ("unsqueeze", [4], lambda x: x.unsqueeze(1).unsqueeze(-1)),
    ("squeeze_", [1, 4], lambda x: x.clone().squeeze_(1).unsqueeze_(1).transpose_(1, 2)), ("t_", [4], lambda x: x.clone().t_().t()), ("view dtype", [4], lambda x: x.view(x.shape[0], 2, 2)), ("narrow", [6], lambda x: x.narrow(1, 1, 3)), ("select", [6, 2], lambda x: x.select(1, 2)), ("unfold method", [8], lambda x: x.unfold(1, 3, 2)),
    ("chunk", [6], lambda x: x.chunk(2, 1)[0] - x.chunk(2, 1)[1]), ("split", [6], lambda x: x.split(3, 1)[0] - x.split([2, 4], 1)[1][:, :3]), ("tensor_split", [6], lambda x: x.tensor_split(2, 1)[0] + x.tensor_split((3,), 1)[1]), ("hsplit", [6], lambda x: x.hsplit(2)[0] + torch.hsplit(x, (3,))[1]), ("vsplit", [6], lambda x: x.t().vsplit(2)[0].t() + x.t().vsplit((3,))[1].t()),
    ("dsplit", [2, 6], lambda x: x.dsplit(2)[0] + x.dsplit((3,))[1]), ("unbind", [3, 4], lambda x: sum(x.unbind(1))), ("unsafe_chunk", [6], lambda x: x.unsafe_chunk(2, 1)[0] + x.unsafe_split(3, 1)[1]), ("unsafe_split_with_sizes", [6], lambda x: torch.unsafe_split_with_sizes(x, [2, 4], 1)[1]),
    ("cat", [4], lambda x: torch.cat([x, x.flip(1)], 1) + torch.concat([x, x], 1) + torch.concatenate([x, x], -1)), ("stack", [4], lambda x: torch.stack([x, x.flip(1)], 1)), ("hstack", [4], lambda x: torch.hstack([x, x])), ("vstack", [4], lambda x: torch.vstack([x.t(), x.t()]).t()), ("dstack", [3, 4], lambda x: torch.dstack([x, x])),
    ("column_stack", [4], lambda x: torch.column_stack([x, x])), ("row_stack", [4], lambda x: torch.row_stack([x.t(), x.t()]).t()), ("atleast", [4], lambda x: torch.atleast_1d(x) + torch.atleast_2d(x) + torch.atleast_3d(x)[:, :, 0]),
    ("tile", [4], lambda x: x.tile((1, 2)) + torch.tile(x, (1, 2))), ("repeat", [4], lambda x: x.repeat(1, 2)), ("repeat_interleave", [4], lambda x: x.repeat_interleave(2, 1)), ("expand", [1, 4], lambda x: x.expand(-1, 3, 4)), ("broadcast_to", [1, 4], lambda x: torch.broadcast_to(x, (x.shape[0], 3, 4))),
    ("broadcast_tensors", [3, 4], lambda x: torch.broadcast_tensors(x, x[:, :1])[1]), ("meshgrid", [4], lambda x: torch.meshgrid(x[0], torch.arange(3.0), indexing="ij")[0].sum() + x), 
    ("roll", [6], lambda x: x.roll(1, 1) + x.roll((1,), (1,))), ("rot90", [4, 4], lambda x: x.rot90(1, (1, 2)) + x.rot90(0, (1, 2)) + x.rot90(2, (1, 2))), ("flip", [3, 4], lambda x: x.flip(1) + x.flip((1, 2)) + x.fliplr()), ("flipud", [4], lambda x: x.t().flipud().t()), ("tril triu", [4, 4], lambda x: x.tril() - x.triu(1)), ("tril_", [4, 4], lambda x: x.clone().tril_().triu_(-1)),
    ("diag", [4], lambda x: torch.diag(x[0]) @ x.t() @ torch.ones(x.shape[0], 1) + x.sum() if False else torch.diag(x[0]).sum() + x), ("diagonal", [4, 4], lambda x: x.diagonal(dim1=1, dim2=2)), ("diag_embed", [4], lambda x: torch.diag_embed(x)), ("trace", [4, 4], lambda x: x[0].trace() + x), ("linalg.diagonal", [4, 4], lambda x: torch.linalg.diagonal(x)),
    ("tril_indices", [4, 4], lambda x: x[:, torch.tril_indices(4, 4)[0], torch.tril_indices(4, 4)[1]]), ("triu_indices", [4, 4], lambda x: x[:, torch.triu_indices(4, 4)[0], torch.triu_indices(4, 4)[1]]),
    ("numel", [4], lambda x: x / x.numel() + x.sum() / x[0].numel()), ("numel of a batch", [4], lambda x: x * (x.numel() // 4)), ("sizes", [3, 4], lambda x: x.reshape(x.size(0) * x.size(1), -1).reshape(x.shape[0], -1) / x.shape[0]), ("size of a sum", [4], lambda x: torch.cat([x, x])[: x.shape[0]] + torch.ones(x.shape[0] + 1)[0] + torch.zeros(2 * x.shape[0] - 1)[0]),
    ("square root of a size", [4], lambda x: x / math.sqrt(x.shape[-1])), ("arange of a batch", [4], lambda x: x + torch.arange(x.shape[0])[:, None]), ("arange of a batch, floats", [4], lambda x: x + torch.arange(x.shape[0], dtype=torch.float32)[:, None] / x.size(0)), ("batch to float", [4], lambda x: x * float(x.shape[1])),
    ("ellipsis", [3, 4], lambda x: x[..., 1:3] + x[:, :, None, ::2][:, :, 0]), ("contiguous", [3, 4], lambda x: x.transpose(1, 2).contiguous().view(x.shape[0], -1)), ("channels_last", [3, 4, 4], lambda x: x.contiguous(memory_format=torch.channels_last)), ("new_ functions", [4], lambda x: x + x.new_zeros(4) + x.new_ones(4) + x.new_full((4,), 0.5)), ("empty then fill", [4], lambda x: torch.empty_like(x).fill_(1.0) + x + x.new_empty(x.shape).zero_()),
    ("constants", [4], lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.ones(4) + torch.zeros(4) + torch.full((4,), 2.0) + torch.eye(4)[0] + torch.linspace(0, 1, 4) + torch.logspace(0, 1, 4) + torch.arange(4) + torch.arange(1, 9, 2)), ("windows", [8], lambda x: x * torch.hann_window(8) + torch.hamming_window(8) + torch.blackman_window(8) + torch.bartlett_window(8)),
]

INDEXING = [
    ("x[:, i] = number", [6], lambda x: changed(x, lambda y: y.__setitem__((slice(None), 1), 0.5))), ("x[:, a:b] = tensor", [6], lambda x: changed(x, lambda y: y.__setitem__((slice(None), slice(1, 3)), x[:, :2]))), ("x[:, list] = number", [6], lambda x: changed(x, lambda y: y.__setitem__((slice(None), [0, 2]), 0.5))),
    ("x[mask] = number", [6], lambda x: changed(x, lambda y: y.__setitem__(x > 0, 0.5))), ("x[:, list] += tensor", [6], lambda x: changed(x, lambda y: y.__setitem__((slice(None), [0, 2]), y[:, [0, 2]] + x[:, :2]))), ("x[..., 0] *= 2", [3, 4], lambda x: changed(x, lambda y: y[..., 0].mul_(2))), ("x[:, 0] = x[:, 1]", [6], lambda x: changed(x, lambda y: y.__setitem__((slice(None), 0), y[:, 1] * 2))),
    ("x[rows, columns]", [6], lambda x: x[torch.arange(x.shape[0]), classes(x, 6)]), ("x[:, index]", [6], lambda x: x[:, torch.tensor([0, 2, 2])]), ("x[:, mask]", [4], lambda x: x[:, torch.tensor([0, 2])] + x[:, None, 1]), ("index_put accumulate", [6], lambda x: x.index_put((torch.arange(x.shape[0]), classes(x, 6)), x[:, 0], accumulate=True)), ("index_put_", [6], lambda x: x.clone().index_put_((torch.arange(x.shape[0]), classes(x, 6)), x[:, 0])),
    ("index_select", [6], lambda x: x.index_select(1, torch.tensor([0, 2]))), ("index_add", [6], lambda x: x.index_add(1, torch.tensor([0, 2]), x[:, :2]) + x.clone().index_add_(1, torch.tensor([0, 2]), x[:, :2], alpha=2)), ("index_copy", [6], lambda x: x.index_copy(1, torch.tensor([0, 2]), x[:, 3:5]) + x.clone().index_copy_(1, torch.tensor([0, 2]), x[:, 3:5])),
    ("index_fill", [6], lambda x: x.index_fill(1, torch.tensor([0, 2]), 0.5) + x.clone().index_fill_(1, torch.tensor([0, 2]), 0.5)), ("index_fill tensor", [6], lambda x: x.index_fill(1, torch.tensor([0, 2]), torch.tensor(0.5))), ("index_reduce", [6], lambda x: x.index_reduce(1, torch.tensor([0, 2]), x[:, 3:5], "mean")), ("gather", [6], lambda x: x.gather(1, x.argsort(1)[:, :3])), 
    ("take_along_dim all", [6], lambda x: torch.take_along_dim(x, x.flatten().argsort().view_as(x)).view_as(x)), ("take", [6], lambda x: x.take(torch.tensor([0, 5])).sum() + x), ("scatter", [6], lambda x: x.scatter(1, x.argsort(1)[:, :2], x[:, :2]) + x.scatter(1, x.argsort(1)[:, :2], 0.5)), ("scatter_", [6], lambda x: x.clone().scatter_(1, x.argsort(1)[:, :2], x[:, :2]) + x.clone().scatter_(1, x.argsort(1)[:, :2], 0.5)),
    ("scatter reduce argument", [6], lambda x: x + x.detach().scatter(1, x.argsort(1)[:, :2], 2.0, reduce="add")), ("scatter_add", [6], lambda x: torch.zeros_like(x).scatter_add(1, x.argsort(1), x) + torch.zeros_like(x).scatter_add_(1, x.argsort(1), x)), ("scatter_reduce", [6], lambda x: x.scatter_reduce(1, x.argsort(1)[:, :2], x[:, :2], reduce="amax") + x.scatter_reduce(1, x.argsort(1)[:, :2], x[:, :2], reduce="mean")),
    ("scatter_reduce_", [6], lambda x: x.clone().scatter_reduce_(1, x.argsort(1)[:, :2], x[:, :2], reduce="sum")), ("scatter of a dimension", [6], lambda x: torch.slice_scatter(x, x[:, :2], 1, 1, 3) + torch.select_scatter(x, x[:, 0], 1, 2)), ("diagonal_scatter", [4, 4], lambda x: torch.diagonal_scatter(x, x[:, 0], dim1=1, dim2=2)), ("fill_", [4], lambda x: x * x.clone().fill_(2.0) + x.detach().clone().zero_()),
    ("slice fill", [6], lambda x: changed(x, lambda y: y[:, 1:3].fill_(2.0))), ("slice copy", [6], lambda x: changed(x, lambda y: y[:, 1:3].copy_(x[:, 4:]))), 
]

PRODUCTS = [
    ("matmul", [3, 4], lambda x: x @ x.transpose(1, 2)), ("mm", [4], lambda x: x.mm(x.t()).mm(x)), ("bmm", [3, 4], lambda x: x.bmm(x.transpose(1, 2))), ("mv", [4], lambda x: x.mv(x[0])), ("dot", [4], scalar(lambda x: x[0].dot(x[1]))), ("inner", [4], lambda x: torch.inner(x, x[0])), ("outer", [4], lambda x: torch.outer(x[:, 0], x[0]) + torch.ger(x[:, 0], x[0])),
    ("vdot", [4], scalar(lambda x: torch.vdot(x[0], x[1]) + torch.linalg.vecdot(x[0], x[1]))), ("addmm", [4], lambda x: torch.addmm(x, x, torch.eye(4), beta=0.5)), ("addmm_", [4], lambda x: x.clone().addmm_(x, torch.eye(4))), ("addmv", [4], lambda x: torch.addmv(x[:, 0], x, x[0])), ("addr", [4], lambda x: torch.addr(x, x[:, 0], x[0])), ("addbmm", [3, 4], lambda x: torch.addbmm(torch.zeros(3, 3), x, x.transpose(1, 2)) + x[:, :, :1]),
    ("baddbmm", [3, 4], lambda x: torch.baddbmm(torch.zeros(x.shape[0], 3, 3), x, x.transpose(1, 2))), ("baddbmm_", [3, 3], lambda x: x.clone().baddbmm_(x, x)), ("einsum", [3, 4], lambda x: torch.einsum("bij,bkj->bik", x, x)), ("tensordot", [3, 4], lambda x: torch.tensordot(x, torch.ones(3, 4, 2), dims=2)),
    ("cross", [3], lambda x: torch.cross(x, x.flip(1), dim=1) + torch.linalg.cross(x, x.flip(1))), ("matrix_power", [3, 3], lambda x: torch.linalg.matrix_power(x, 3)), ("det", [3, 3], lambda x: torch.linalg.det(x) + torch.det(x)), ("slogdet", [3, 3], lambda x: torch.linalg.slogdet(x)[1]), ("inverse", [3, 3], lambda x: torch.linalg.inv(x + 3 * torch.eye(3)) + torch.inverse(x + 3 * torch.eye(3))),
    ("solve", [3, 3], lambda x: torch.linalg.solve(x + 3 * torch.eye(3), x)), ("cholesky", [3, 3], lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(3))), ("solve_triangular", [3, 3], lambda x: torch.linalg.solve_triangular(x.tril() + 3 * torch.eye(3), x, upper=False)), ("bilinear product", [4], lambda x: x * (x @ torch.ones(4, 1))), ("linear without bias", [4], lambda x: F.linear(x, torch.ones(2, 4))),
    ("householder-like", [4], lambda x: x - 2 * x * (x * x).sum(1, keepdim=True)), ("conv functional", [3, 6], lambda x: F.conv1d(x, torch.ones(2, 3, 3), stride=2)), ("conv1d of the batch", [6], lambda x: F.conv1d(x[:, None], torch.ones(1, 1, 3))[:, 0]), ("dropout eval", [4], lambda x: F.dropout(x, 0.5, training=False) + F.alpha_dropout(x, 0.5, training=False) + F.dropout2d(x[:, :, None, None], 0.5, False)[:, :, 0, 0]), ("feature_alpha_dropout eval", [4], lambda x: F.feature_alpha_dropout(x, 0.5, training=False)), ("dropout3d eval", [4, 2, 2, 2], lambda x: F.dropout3d(x, 0.5, training=False)),
]

aten = torch.ops.aten


def in_place(name, move=lambda x: x, *arguments):
    return (f"aten.{name}", [6], lambda x: getattr(aten, name)(move(x).clone(), *arguments) + x)


def with_other(name, other, move=lambda x: x):
    """An operator in place with a second tensor."""
    return (f"aten.{name} tensor", [6], lambda x: getattr(aten, name)(move(x).clone(), other(x)) + x)


def whole(x):
    return (x.detach() * 8).long()


# Operators that Python's functions do not reach, or reach rarely.
DIRECT = [
    *(in_place(name) for name in ("absolute_", "cosh_", "erfc_", "fix_", "floor_", "frac_", "hardsigmoid_", "hardswish_", "hardtanh_", "leaky_relu_", "negative_", "relu6_", "relu_", "sgn_", "sign_", "silu_", "squeeze_")),
    *(in_place(name, positive) for name in ("sqrt_", "log_", "log2_", "log10_", "rsqrt_", "reciprocal_", "log1p_")),
    *(in_place(name) for name in ("exp_", "abs_", "neg_", "sin_", "cos_", "tanh_", "sigmoid_", "square_", "round_", "expm1_", "erf_", "exp2_", "ceil_", "trunc_", "atan_", "sinh_", "tan_", "nan_to_num_")),
    *(in_place(name, small) for name in ("acos_", "asin_", "erfinv_")), in_place("logit_", torch.sigmoid), in_place("clamp_", torch.sin, -0.5, 0.5), in_place("clamp_min_", torch.sin, -0.5),
    in_place("copysign_", torch.sin, -1.0), in_place("cumprod_", torch.sin, 1), in_place("cumsum_", torch.sin, 1), in_place("squeeze_", torch.sin, [1]), in_place("swapdims_", torch.sin, 1, 1), in_place("swapaxes_", torch.sin, 1, 1),
    *(in_place(name, torch.sin, 2.0) for name in ("add_", "sub_", "subtract_", "mul_", "multiply_", "div_", "divide_", "true_divide_")), *(in_place(name, torch.exp, 0.7) for name in ("fmod_", "remainder_")),
    *(in_place(name, torch.sin, 0.5, False) for name in ("alpha_dropout_", "dropout_", "feature_dropout_")), ("rrelu", [6], lambda x: F.rrelu(x, training=False) + F.rrelu_(x.clone(), training=False)),
    *(with_other(name, positive) for name in ("atan2_", "hypot_", "fmod_", "remainder_", "copysign_", "clamp_max_", "clamp_min_", "clip_", "div_", "sub_", "add_")), with_other("pow_", torch.sin, positive), with_other("xlogy_", positive),
    ("aten.Scalar", [6], lambda x: aten.add.Scalar(x, 1.0) + aten.sub.Scalar(x, 1.0) + aten.subtract.Scalar(x, 1.0) + aten.mul.Scalar(x, 2.0) * aten.multiply.Scalar(x, 2.0) + aten.div.Scalar(x, 2.0) + aten.divide.Scalar(x, 2.0) + aten.true_divide.Scalar(x, 2.0)),
    ("aten.Scalar_mode", [6], lambda x: x + aten.div.Scalar_mode(x, 0.3, rounding_mode="floor") + aten.divide.Scalar_mode(x, 0.3, rounding_mode="trunc") + aten.divide.Tensor_mode(x, positive(x), rounding_mode="floor") + aten.floor_divide.Scalar(x.detach(), 0.3) + aten.floor_divide_.Scalar(x.detach().clone(), 0.3) + aten.floor_divide_.Tensor(x.detach().clone(), positive(x.detach()))),
    ("aten.Scalar_", [6], lambda x: aten.div_.Scalar(aten.mul_.Scalar(aten.sub_.Scalar(aten.add_.Scalar(x.clone(), 1.0), 2.0), 3.0), 2.0) + aten.true_divide_.Scalar(aten.multiply_.Scalar(aten.subtract_.Scalar(x.clone(), 2.0), 3.0), 2.0) + aten.divide_.Scalar(x.clone(), 2.0)),
    ("aten.div_.Scalar_mode", [6], lambda x: aten.div_.Scalar_mode(x.clone(), 0.3, rounding_mode="floor") + x), ("aten.integers", [6], lambda x: x * (aten.bitwise_left_shift.Tensor(whole(x), whole(x) & 1) + aten.bitwise_right_shift.Tensor(whole(x), whole(x) & 1) + aten.bitwise_left_shift.Tensor_Scalar(whole(x), 1) + aten.bitwise_right_shift.Tensor_Scalar(whole(x), 1))),
    ("aten.shifts", [6], lambda x: x * (aten.__lshift__.Tensor(whole(x), whole(x) & 1) + aten.__rshift__.Tensor(whole(x), whole(x) & 1))), ("aten.bitwise", [6], lambda x: x * (aten.bitwise_and.Scalar(whole(x), 3) + aten.bitwise_or.Scalar(whole(x), 3) + aten.bitwise_xor.Scalar(whole(x), 3) + aten.bitwise_and.Tensor(whole(x), whole(-x)) + aten.bitwise_or.Tensor(whole(x), whole(-x)) + aten.bitwise_xor.Tensor(whole(x), whole(-x)))),
    ("aten.bitwise_", [6], lambda x: x * (aten.bitwise_and_.Tensor(whole(x), whole(-x)) + aten.bitwise_or_.Tensor(whole(x), whole(-x)) + aten.bitwise_not_.default(whole(x)) + aten.__iand__.Tensor(whole(x), whole(-x)) + aten.__ior__.Tensor(whole(x), whole(-x)) + aten.__ixor__.Tensor(whole(x), whole(-x)))),
    ("aten.logical_", [6], lambda x: x * (aten.logical_and_(x > 0, x < 1).long() + aten.logical_or_(x > 0, x < 1) + aten.logical_not_(x > 0))), ("aten.comparisons", [6], lambda x: x * sum(getattr(aten, name).Tensor(x, x.flip(1)).long() for name in ("ge", "le", "lt", "ne", "greater", "less", "less_equal", "not_equal"))),
    ("aten.comparisons with numbers", [6], lambda x: x * (aten.eq.Scalar(x, 0.5).long() + aten.greater_equal.Scalar(x, 0.5) + aten.isin.Tensor_Scalar(x.detach().round(), 1.0) + aten.isfinite(x) + aten.isinf(x)) + aten.eq_.Scalar(x.detach().clone(), 0.5) + aten.ne_.Scalar(x.detach().clone(), 0.5)),
    ("aten.clamp_max", [6], lambda x: aten.clamp_max(x, 0.5)), ("aten.addcmul_", [6], lambda x: x.clone().addcmul_(x, x)), ("aten.addmv_", [6], lambda x: x[:, 0].clone().addmv_(x, x[0])), ("aten.addr_", [6], lambda x: x.clone().addr_(x[:, 0], x[0])), ("aten.addbmm_", [4, 4], lambda x: x + x[0].clone().addbmm_(x, x)),
    ("aten.alias", [6], lambda x: aten.alias(x) + aten.resolve_conj(x) + aten.resolve_neg(x)), ("aten.arccosh", [6], lambda x: torch.arccosh(positive(x) + 1) + torch.arctan2(x, positive(x))), ("aten.atleast lists", [6], lambda x: torch.atleast_1d(x, x)[1] + torch.atleast_2d(x, x)[1] + torch.atleast_3d(x, x)[1][:, :, 0]),
    ("aten.bilinear", [6], lambda x, layer=nn.Bilinear(6, 6, 4): layer(x, x.flip(1))), ("aten.windows", [8], lambda x: x * aten.hann_window.periodic(8, False) + aten.hamming_window.periodic(8, False) + aten.blackman_window.periodic(8, False)), ("aten.matrices", [4], lambda x: x + torch.chain_matmul(x[:1], torch.eye(4), x[:1].t()) + torch.linalg.multi_dot([x[:1], torch.eye(4), x[:1].t()])),
    ("aten.constant_pad_nd", [6], lambda x: aten.constant_pad_nd(x, [1, 1], 0.5)), ("aten.reflection_pad2d", [2, 4, 4], lambda x: aten.reflection_pad2d(x, [1, 1, 1, 1]) + aten.replication_pad2d(x, [1, 1, 1, 1])), ("nn.Conv1d same", [3, 8], nn.Conv1d(3, 4, 3, padding="same")), ("aten.count_nonzero", [3, 4], lambda x: x.detach().round().count_nonzero((1, 2)) + x.mean((1, 2))),
    ("aten.trapezoid", [6], lambda x: torch.trapezoid(x, torch.arange(6.0), dim=1) + torch.trapz(x, torch.arange(6.0), dim=1) + torch.cumulative_trapezoid(x, torch.arange(6.0), dim=1).sum(1)), ("aten.empty", [6], lambda x: torch.empty(6).fill_(2.0) * x), ("aten.fill", [6], lambda x: aten.fill.Scalar(x, 2.0) + aten.fill.Tensor(x, torch.tensor(2.0)) + x),
    ("aten.fill_diagonal_", [4, 4], lambda x: x + x.transpose(0, 1).flatten(0, 0).new_zeros(4, 4).fill_diagonal_(1.0)), ("aten.float_power", [6], lambda x: (torch.float_power(2.0, x) + torch.float_power(positive(x), x)).float()), ("aten.frobenius_norm", [3, 4], lambda x: aten.frobenius_norm.dim(x, [1, 2])), ("aten.linalg_norm", [3, 4], lambda x: torch.linalg.norm(x, "fro", dim=(1, 2)) + torch.linalg.matrix_norm(x) + torch.linalg.matrix_norm(x[0], 1)),
    ("aten.index_", [6], lambda x: x.clone().index_fill_(1, torch.tensor([0, 2]), torch.tensor(0.5)) + x.clone().index_reduce_(1, torch.tensor([0, 2]), x[:, 3:5], "amax")), ("aten.kron", [4], lambda x: x + torch.kron(x[0], torch.ones(2))[:4]), ("aten.lerp_", [6], lambda x: x.clone().lerp_(x.flip(1), x.sigmoid())), ("aten.linalg_matmul", [3, 4], lambda x: torch.linalg.matmul(x, x.mT) + torch.matrix_power(x @ x.mT, 2)),
    ("aten.masked", [6], lambda x: x.masked_fill(x > 0, torch.tensor(0.5)) + x.clone().masked_fill_(x < 0, torch.tensor(0.5)) + x.clone().masked_scatter_(x > 0, x.flip(1))), ("aten.meshgrid", [6], lambda x: x + aten.meshgrid([x[0], torch.arange(3.0)])[0].sum()), ("aten.move", [3, 4], lambda x: torch.moveaxis(x, (1, 2), (2, 1)) + x.movedim(1, 2)), ("aten.nanmedian", [6], lambda x: x + x.nanmedian()),
    ("aten.norm", [3, 4], lambda x: x + aten.norm.Scalar(x, 2) + aten.norm.ScalarOpt_dim(x, 2, [1, 2], True) + aten.norm.ScalarOpt_dim_dtype(x, 2, [1, 2], True, dtype=torch.float64) + aten.norm.ScalarOpt_dtype(x, 2, dtype=torch.float64)), ("aten.scatter_ reduce", [6], lambda x: x + aten.scatter_.value_reduce(x.detach().clone(), 1, x.argsort(1)[:, :2], 2.0, reduce="add")), ("aten.scalar_tensor", [6], lambda x: x * aten.scalar_tensor(2.0)),
    ("torch.special", [6], lambda x: sum(getattr(torch.special, name)(small(x)) for name in ("erf", "erfc", "erfinv", "exp2", "expm1", "log1p", "sinc")) + torch.special.logit(x.sigmoid()) + torch.special.xlogy(x, positive(x))), ("aten.std_mean", [6], lambda x: x + sum(aten.std_mean.default(x)) + sum(aten.var_mean.default(x))), ("aten.to", [6], lambda x: aten.to.dtype_layout(x, dtype=torch.float64) + aten.to.other(x, x.double())),
    ("aten._softmax", [6], lambda x: aten._softmax(x, 1, False)), ("aten.where", [6], lambda x: x * torch.where(x > 0, 2.0, 3.0)),
]
# These draw random numbers, which depend on the run's seed, and test_random_operators_draw_numbers covers them.
RANDOM = {
    "bernoulli.default": torch.bernoulli, "bernoulli.p": lambda x: torch.bernoulli(x, 0.5), "bernoulli_.float": lambda x: x.clone().bernoulli_(0.5), "exponential_.default": lambda x: torch.empty_like(x).exponential_(),
    "normal_.default": lambda x: x.detach().clone().normal_(), "normal_functional.default": lambda x: aten.normal_functional(x), "rand.default": lambda x: torch.rand(x.shape), "rand_like.default": torch.rand_like, "randn.default": lambda x: torch.randn(x.shape),
    "randn_like.default": torch.randn_like, "randint.default": lambda x: torch.randint(100, x.shape), "randint.low": lambda x: torch.randint(5, 100, x.shape), "randint_like.default": lambda x: torch.randint_like(x, 100), "randperm.default": lambda x: torch.randperm(50).expand(x.shape[0], -1), "uniform_.default": lambda x: x.detach().clone().uniform_(),
}
NOT_COMPARED = set(RANDOM)

CASES = [*MODULES, *LOSSES, *POINTWISE, *REDUCTIONS, *SHAPES, *INDEXING, *PRODUCTS, *DIRECT]
