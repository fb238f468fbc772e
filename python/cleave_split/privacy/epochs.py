"""What the traffic of several epochs reveals together: delta codecs and error feedback send, epoch by epoch, what they left out before."""

from __future__ import annotations

from typing import Dict

import torch


def occurrences(traffic: torch.Tensor, numbers: torch.Tensor) -> Dict[str, torch.Tensor]:
    """Tensors with a row per sample, in the order of the samples' numbers: of its "first" and its "last" occurrence, and the mean of "all" of
    them; if no sample occurs twice, only "first". With the codec delta, the server gets the numbers of the samples; with other codecs, an
    attacker must first find out which rows belong to one sample, so "all" is what it reveals at most."""
    order = numbers.argsort(stable=True)
    ordered = numbers[order]
    edge, differs = torch.ones(1, dtype=torch.bool), ordered[1:] != ordered[:-1]
    is_first, is_last = torch.cat([edge, differs]), torch.cat([differs, edge])
    first = order[is_first]
    if len(first) == len(numbers):
        return {"first": traffic[first]}
    sample = is_first.cumsum(0) - 1
    total = torch.zeros(len(first), *traffic.shape[1:], dtype=torch.float64).index_add_(0, sample, traffic[order].double())
    count = sample.bincount().reshape(-1, *[1] * (traffic.dim() - 1))
    return {"first": traffic[first], "last": traffic[order[is_last]], "all": (total / count).float()}
