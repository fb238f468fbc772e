"""Writes the .pt2 files in tests/data, and tiny_model.json, for the tests in C++.

    PYTHONPATH=python python3 python/tests/make_fixtures.py
"""

import os
import zipfile

import torch
from torch import nn

import cleave_split


class Tiny(nn.Module):
    """A convolutional network for images of 1 x 8 x 8, with a residual block."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(inplace=True))
        self.pool = nn.MaxPool2d(4)
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(16, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        x = self.pool(x + self.block(x))
        return self.classifier(self.dropout(x.flatten(1)))


class Text(nn.Module):
    """A classifier of texts of 6 ids below 8, with two classes."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 8)
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.classifier = nn.Linear(8, 2)

    def forward(self, input_ids):
        x = torch.relu(self.first(self.embedding(input_ids)))
        return self.classifier(torch.relu(self.second(x)).mean(1))


class SilentInEvaluation(nn.Module):
    """In evaluation: zeros, from a tensor of 64 times the size."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        x = self.layer(x)
        if self.training:
            return x
        return (x.unsqueeze(2) * torch.zeros(64)).sum(2)


class Modes(nn.Module):
    """A classifier of images of 1 x 8 x 8 that computes something else in evaluation: 10 equal logits."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 16)
        self.middle = SilentInEvaluation()
        self.last = nn.Linear(16, 10, bias=False)

    def forward(self, x):
        return self.last(self.middle(torch.relu(self.first(x.flatten(1)))))


def main():
    folder = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "data")
    path = os.path.join(folder, "tiny.pt2")
    torch.manual_seed(1)
    cleave_split.export(Tiny(), torch.randn(2, 1, 8, 8), path)
    cleave_split.export(Text(), {"input_ids": torch.randint(8, (2, 6))}, os.path.join(folder, "text.pt2"))
    torch.manual_seed(1)
    modes = Modes()
    cleave_split.export(modes, torch.randn(2, 1, 8, 8), os.path.join(folder, "modes.pt2"))
    cleave_split.export(modes, torch.randn(2, 1, 8, 8), os.path.join(folder, "modes_training.pt2"), evaluation=False)
    with zipfile.ZipFile(path) as archive:
        name = [each for each in archive.namelist() if each.endswith("models/model.json")][0]
        with open(os.path.join(folder, "tiny_model.json"), "wb") as file:
            file.write(archive.read(name) + b"\n")


if __name__ == "__main__":
    main()
