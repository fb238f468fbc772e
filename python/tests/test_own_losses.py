"""Models that compute their own loss (train.loss: output) train as in PyTorch: per pixel, per token, per value.

PROGRAMS is the folder of cleave-client and cleave-server.
"""

import json
import os
import sys
import unittest

import torch
import torch.nn.functional as F
from torch import nn

import cleave_split
from test_training import Client

STEPS, RATE = 3, 0.05


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU())


class UNet(nn.Module):
    """Segmentation: one class per pixel, with the loss of transposed convolutions and skipped connections."""

    def __init__(self):
        super().__init__()
        self.first, self.pool, self.inner, self.up, self.last = block(3, 4), nn.MaxPool2d(2), block(4, 8), nn.ConvTranspose2d(8, 4, 2, 2), nn.Conv2d(8, 3, 1)

    def forward(self, image, mask):
        skipped = self.first(image)
        logits = self.last(torch.cat([skipped, self.up(self.inner(self.pool(skipped)))], 1))
        return F.cross_entropy(logits, mask, reduction="none", ignore_index=-100).flatten(1).mean(1)


class Tagger(nn.Module):
    """Token classification: one class per token, and -100 for tokens that do not count."""

    def __init__(self):
        super().__init__()
        self.embed, self.encoder, self.tags = nn.Embedding(50, 8), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), nn.Linear(8, 4)

    def forward(self, ids, tags):
        logits = self.tags(self.encoder(self.embed(ids)))
        return F.cross_entropy(logits.transpose(1, 2), tags, reduction="none").sum(1) / (tags != -100).sum(1)


class Several(nn.Module):
    """Two losses in one: boxes and a label for each of several classes."""

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.boxes, self.labels = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 3)

    def forward(self, x, box, label):
        y = torch.relu(self.inner(torch.relu(self.first(x))))
        boxes = F.smooth_l1_loss(self.boxes(y), box, reduction="none").mean(1)
        return boxes + F.binary_cross_entropy_with_logits(self.labels(y), label, reduction="none").mean(1)


def ids(*shape, high, seed=1):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def numbers(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def with_ignored(classes):
    classes[:, -1] = -100
    return classes


MODELS = [
    ("segmentation", UNet, {"image": numbers(8, 3, 8, 8), "mask": with_ignored(ids(8, 8, 8, high=3))}, "mask", ["first", "up"]),
    ("tokens", Tagger, {"ids": ids(8, 6, high=50), "tags": with_ignored(ids(8, 6, high=4))}, "tags", ["embed", "encoder"]),
    ("several", Several, {"x": numbers(8, 6), "box": numbers(8, 4), "label": ids(8, 3, high=2).float()}, "label", ["first", "inner"]),
]


class OwnLosses(Client):
    def test_they_train_as_in_pytorch(self):
        for name, make, data, target, cuts in MODELS:
            with self.subTest(name):
                model = make()
                before = {name: value.clone() for name, value in model.state_dict().items()}
                cleave_split.export(model, {name: value[:2] for name, value in data.items()}, self.path("model.pt2"))
                path = cleave_split.save_dataset({"train": data}, self.path(name))["train"]
                self.settings = {
                    "data": {"format": "tensors", "train": {"file": path}, "test": {"file": path}, "target": target},
                    "train": {"batch": 8, "micro_batches": 2, "epochs": STEPS, "loss": "output", "optimizer": {"name": "sgd", "momentum": 0}, "learning_rate": {"schedule": "constant", "peak": RATE}},
                    "codec": "none",
                }
                self.client("train", {"file": self.path("model.pt2"), "cuts": cuts})
                trained = self.weights()
                optimizer = torch.optim.SGD(model.parameters(), RATE)
                losses = []
                for _ in range(STEPS):
                    optimizer.zero_grad()
                    loss = model(**data).mean()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
                self.assertLess(losses[-1], losses[0])
                for key, value in model.state_dict().items():
                    self.assertFalse(torch.equal(trained[key], before[key]), key)
                    self.assertLess((trained[key] - value).abs().max().item(), 1e-5, key)


class IdsBeyondTheTable(Client):
    def model(self):
        model = nn.Sequential(nn.Embedding(6, 8), nn.Flatten(), nn.Linear(32, 8), nn.Linear(8, 2))
        cleave_split.export(model, {"input": ids(2, 4, high=6)}, self.path("model.pt2"))
        return {"file": self.path("model.pt2"), "cuts": ["1", "2"]}

    def test_an_id_is_named_before_the_run(self):
        data = {"input": ids(8, 4, high=6), "labels": ids(8, high=2)}
        data["input"][5, 2] = 77
        path = cleave_split.save_dataset({"train": data}, self.path("data"))["train"]
        self.settings = {"data": {"format": "tensors", "train": {"file": path}, "test": {"file": path}}, "train": {"batch": 8, "micro_batches": 1}}
        ended = self.run_client("train", self.model())
        self.assertEqual(ended.returncode, 2)
        self.assertRegex(ended.stderr, r"\[bad-index\].* the id 77 in input, which is beyond .*aten.embedding.default.* has 6 rows")

    def test_a_tokenizer_is_compared_with_the_table_before_the_run(self):
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film"]
        tokenizer = {
            "added_tokens": [{"id": 0, "content": "[PAD]", "special": True, "normalized": False}], "normalizer": {"type": "BertNormalizer", "lowercase": True},
            "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": {word: id for id, word in enumerate(words)}},
        }  # fmt: skip
        for name, text in (("tokenizer.json", json.dumps(tokenizer)), ("train.csv", "text,label\ngood film,a\nbad,b\ngood good,a\nbad bad,b\n")):
            with open(self.path(name), "w") as file:
                file.write(text)
        model = nn.Sequential(nn.Embedding(6, 8), nn.Flatten(), nn.Linear(32, 8), nn.Linear(8, 2))
        cleave_split.export(Named(model), {"input_ids": ids(2, 4, high=6)}, self.path("named.pt2"))
        self.settings = {"data": {"format": "text", "train": {"file": self.path("train.csv")}, "test": {"file": self.path("train.csv")},
                                  "tokenizer": self.path("tokenizer.json"), "length": 4}, "train": {"batch": 4, "micro_batches": 1}}  # fmt: skip
        ended = self.run_client("train", {"file": self.path("named.pt2"), "cuts": ["model.1", "model.2"]})
        self.assertEqual(ended.returncode, 2)
        for words in ("[bad-index]", "the id 6 in input_ids", "has 6 rows", "resize_token_embeddings"):
            self.assertIn(words, ended.stderr)
        self.assertFalse(os.path.exists(self.run_folder))


class Named(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids)


if __name__ == "__main__":
    sys.exit(unittest.main())
