#!/usr/bin/env python3
"""Writes the reference data for tests/common/model/model_test.cpp: tests/data/mobilenet_v2_tensors.txt
(torchvision's names and shapes) and tests/data/mobilenet_v2_logits.txt (torchvision's logits in
fp64, for the values of pattern()).

Needs torch and torchvision; no test runs it. Last used with torch 2.11.0 and torchvision 0.26.0.
Example: python3 tests/oracle/mobilenet_v2.py"""
import pathlib

import torch
import torchvision

CLASSES = 10
INPUT = (2, 3, 72, 56)


def pattern(name, shape):
    """Values in [0, 1) that depend only on name and position, and can be computed identically in any language."""
    key = sum((k + 1) * byte for k, byte in enumerate(name.encode()))
    count = 1
    for size in shape:
        count *= size
    j = torch.arange(count, dtype=torch.int64)
    return ((j * 7919 + key * 104729) % 2003).double().div(2003).reshape(shape)


def value(name, shape):
    v = pattern(name, shape)
    if name.endswith("num_batches_tracked"):
        return torch.zeros(shape, dtype=torch.int64)
    if len(shape) == 1 and name.endswith((".running_var", ".weight")):
        return v + 0.5
    if len(shape) > 1:
        fan_in = 1
        for size in shape[1:]:
            fan_in *= size
        return (v - 0.5) * 4 / fan_in**0.5
    return v - 0.5


data = pathlib.Path(__file__).parent.parent / "data"
published = torchvision.models.mobilenet_v2().state_dict()
with open(data / "mobilenet_v2_tensors.txt", "w") as file:
    for name, tensor in published.items():
        print(name, *tensor.shape, file=file)

model = torchvision.models.mobilenet_v2(num_classes=CLASSES).double().eval()
model.load_state_dict({name: value(name, tuple(t.shape)) for name, t in model.state_dict().items()})
with torch.no_grad(), open(data / "mobilenet_v2_logits.txt", "w") as file:
    logits = model((pattern("input", INPUT) - 0.5) * 4)
    for row in logits:
        print(*(f"{x:.9f}" for x in row), file=file)
