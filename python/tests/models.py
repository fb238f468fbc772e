"""Models of torchvision and transformers, in small configurations, for the tests.

Each entry: (name, function that makes the model, example inputs, output, two modules to cut after).
Dropout is off: Cleave's random numbers are not those of PyTorch.
"""

import torch
import torchvision
import transformers
from torch import nn

IMAGE = torch.Size([4, 3, 64, 64])


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


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.lstm = nn.LSTM(8, 16, 2, batch_first=True)
        self.last = nn.Linear(16, 16)
        self.classifier = nn.Linear(16, 4)

    def forward(self, x):
        return self.classifier(torch.relu(self.last(self.lstm(torch.relu(self.first(x)))[0][:, -1])))


def vision(name, **options):
    return getattr(torchvision.models, name)(num_classes=10, **options)


def no_stochastic_depth(model):
    for module in model.modules():
        if isinstance(module, torchvision.ops.StochasticDepth):
            module.p = 0.0
    return model


MODELS = [
    ("mobilenet_v2", lambda: vision("mobilenet_v2", dropout=0.0), images(), None, ["features.3", "features.18"]),
    ("resnet18", lambda: vision("resnet18"), images(), None, ["maxpool", "layer3.0.conv1"]),
    ("vit_b_16", lambda: torchvision.models.VisionTransformer(image_size=32, patch_size=8, num_layers=3, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=10),
     images(32), None, ["encoder.dropout", "encoder.layers.encoder_layer_1"]),
    ("efficientnet_b0", lambda: no_stochastic_depth(vision("efficientnet_b0", dropout=0.0)), images(), None, ["features.1", "features.8"]),
    ("convnext_tiny", lambda: no_stochastic_depth(vision("convnext_tiny")), images(), None, ["features.0", "features.5"]),
    ("swin_t", lambda: no_stochastic_depth(vision("swin_t")), images(), None, ["features.0", "features.5"]),
    ("roberta", lambda: transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**SMALL, **NO_DROPOUT)), text(), "logits",
     ["roberta.embeddings", "roberta.encoder.layer.1"]),
    ("bert", lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL, **NO_DROPOUT)), text(), "logits",
     ["bert.embeddings", "bert.encoder.layer.1"]),
    ("gpt2", lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=100, n_embd=32, n_layer=3, n_head=2, n_positions=40, resid_pdrop=0.0,
                                                                          embd_pdrop=0.0, attn_pdrop=0.0)), text(masked=False), "logits",
     ["transformer.drop", "transformer.h.1"]),
    ("llama", lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)), text(masked=False), "logits",
     ["model.embed_tokens", "model.layers.1"]),
    ("deberta", lambda: transformers.DebertaV2ForSequenceClassification(transformers.DebertaV2Config(**SMALL, **NO_DROPOUT)), text(), "logits",
     ["deberta.embeddings", "deberta.encoder.layer.1"]),
    ("lstm", Lstm, torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(3)), None, ["first", "lstm"]),
]
# Cuts for several servers: some of the bodies pass on a mask that a later one needs.
MORE_CUTS = {
    "mobilenet_v2": [["features.3", "features.7", "features.18"]],
    "bert": [["bert.embeddings", "bert.encoder.layer.0", "bert.encoder.layer.1"]],
    "gpt2": [["transformer.drop", "transformer.h.0", "transformer.h.1"]],
    "deberta": [["deberta.embeddings", "deberta.encoder.layer.0", "deberta.encoder.layer.1"]],
}
