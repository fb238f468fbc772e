"""Models of torchvision and transformers, in small configurations, for the tests.

Each entry: (name, function that makes the model, example inputs, output, two modules to cut after).
The function's argument is the probability of dropout and of stochastic depth. It is 0 if results
are compared with PyTorch's, because Cleave's random numbers are not those of PyTorch.
"""

import os

import torch
import torchvision
import transformers
from torch import nn

IMAGE = torch.Size([4, 3, 64, 64])


def some(cases):
    """With EVERY=N in the environment, each Nth case, from number PART on; else all."""
    return list(cases)[int(os.environ.get("PART", 0)) :: int(os.environ.get("EVERY", 1))]


def images(size=64):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 3, size, size, generator=generator)


def text(masked=True):
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, 100, (4, 16), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 10:] = 0
    mask[3, 5:] = 0
    return {"input_ids": ids, "attention_mask": mask} if masked else {"input_ids": ids}


SMALL = dict(vocab_size=100, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64,
             max_position_embeddings=40)
NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=3)


def classifier(p):
    return dict(SMALL, hidden_dropout_prob=p, attention_probs_dropout_prob=p, num_labels=3)


class Lstm(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.lstm = nn.LSTM(8, 16, 2, batch_first=True, dropout=p)
        self.last = nn.Linear(16, 16)
        self.classifier = nn.Linear(16, 4)

    def forward(self, x):
        return self.classifier(torch.relu(self.last(self.lstm(torch.relu(self.first(x)))[0][:, -1])))


def vision(name, **options):
    return getattr(torchvision.models, name)(num_classes=10, **options)


def efficientnet(p):
    blocks = [torchvision.models.efficientnet.MBConvConfig(expansion, kernel, stride, channels_in, channels_out, 1)
              for expansion, kernel, stride, channels_in, channels_out in ((1, 3, 1, 16, 8), (6, 3, 2, 8, 16), (6, 5, 1, 16, 16))]
    return torchvision.models.EfficientNet(blocks, p, num_classes=10, last_channel=64)


def convnext():
    blocks = [torchvision.models.convnext.CNBlockConfig(*channels, 1) for channels in ((16, 24), (24, 32), (32, None))]
    return torchvision.models.ConvNeXt(blocks, num_classes=10)


def swin(p):
    return torchvision.models.SwinTransformer([4, 4], 16, [2, 2], [1, 2], [4, 4], dropout=p, attention_dropout=p, num_classes=10)


def stochastic_depth(model, p):
    for module in model.modules():
        if isinstance(module, torchvision.ops.StochasticDepth):
            module.p = p
    return model


MODELS = [
    ("mobilenet_v2", lambda p=0.0: vision("mobilenet_v2", dropout=p), images(), None, ["features.3", "features.18"]),
    ("resnet18", lambda p=0.0: vision("resnet18"), images(), None, ["maxpool", "layer3.0.conv1"]),
    ("vit_b_16", lambda p=0.0: torchvision.models.VisionTransformer(image_size=32, patch_size=8, num_layers=3, num_heads=2, hidden_dim=16, mlp_dim=32,
                                                                    num_classes=10, dropout=p, attention_dropout=p),
     images(32), None, ["encoder.dropout", "encoder.layers.encoder_layer_1"]),
    ("efficientnet", lambda p=0.0: stochastic_depth(efficientnet(p), p), images(), None, ["features.1", "features.3"]),
    ("convnext", lambda p=0.0: stochastic_depth(convnext(), p), images(), None, ["features.0", "features.3"]),
    ("swin", lambda p=0.0: stochastic_depth(swin(p), p), images(), None, ["features.0", "features.1"]),
    ("roberta", lambda p=0.0: transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**classifier(p))), text(), "logits",
     ["roberta.embeddings", "roberta.encoder.layer.1"]),
    ("bert", lambda p=0.0: transformers.BertForSequenceClassification(transformers.BertConfig(**classifier(p))), text(), "logits",
     ["bert.embeddings", "bert.encoder.layer.1"]),
    ("gpt2", lambda p=0.0: transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=100, n_embd=32, n_layer=3, n_head=2, n_positions=40, resid_pdrop=p,
                                                                                embd_pdrop=p, attn_pdrop=p)), text(masked=False), "logits",
     ["transformer.drop", "transformer.h.1"]),
    ("llama", lambda p=0.0: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, attention_dropout=p)), text(masked=False), "logits",
     ["model.embed_tokens", "model.layers.1"]),
    ("deberta", lambda p=0.0: transformers.DebertaV2ForSequenceClassification(transformers.DebertaV2Config(**classifier(p))), text(), "logits",
     ["deberta.embeddings", "deberta.encoder.layer.1"]),
    ("lstm", lambda p=0.0: Lstm(p), torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(3)), None, ["first", "lstm"]),
]
# Cuts for several servers: some of the bodies pass on a mask that a later one needs.
MORE_CUTS = {
    "mobilenet_v2": [["features.3", "features.7", "features.18"]],
    "bert": [["bert.embeddings", "bert.encoder.layer.0", "bert.encoder.layer.1"]],
    "gpt2": [["transformer.drop", "transformer.h.0", "transformer.h.1"]],
    "deberta": [["deberta.embeddings", "deberta.encoder.layer.0", "deberta.encoder.layer.1"]],
}
