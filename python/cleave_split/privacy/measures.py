"""Measures of what a tensor contains that need no attacker."""

from __future__ import annotations

import math
from typing import Callable, Tuple

import torch

from .scores import check_samples


def distance_correlation(first: torch.Tensor, second: torch.Tensor, samples: int = 1000) -> float:
    """Between 0 (independent) and 1 (equal up to rotation and scale), of the unbiased squared sample statistic (Szekely and Rizzo 2013), which
    is about 0 for independent tensors of any size. Uses the first `samples` rows."""
    check_samples(min(len(first), len(second)))
    centred = [_centred(torch.cdist(each, each)) for each in (first[:samples].flatten(1).double(), second[:samples].flatten(1).double())]
    count = len(centred[0])

    def product(a: torch.Tensor, b: torch.Tensor) -> float:
        return float((a * b).sum()) / (count * (count - 3))

    own = product(centred[0], centred[0]) * product(centred[1], centred[1])
    return math.sqrt(max(0.0, product(*centred) / math.sqrt(own))) if own > 0 else 0.0


def _centred(distances: torch.Tensor) -> torch.Tensor:
    """U-centred: every row sums to 0, without the diagonal."""
    count = len(distances)
    rows = distances.sum(1, keepdim=True)
    centred = distances - rows / (count - 2) - rows.T / (count - 2) + distances.sum() / ((count - 1) * (count - 2))
    return centred.fill_diagonal_(0)


def dfil(head: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor, noise: float, generator: torch.Generator,
         probes: int = 32) -> Tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """tr(J^T J) / (noise^2 d) per sample, by Hutchinson's estimator (2209.10119): J is the head's Jacobian, `noise` the standard deviation of
    Gaussian noise that the client adds to the activation, d the number of values of an input. The mean square error of any unbiased attacker,
    per value of the input, is at least 1 / dFIL. Returns the mean over probes and its standard error. `head` must treat samples apart: call
    eval() on it if it has a batch norm."""
    x = inputs.detach().clone().requires_grad_()
    output = head(x)
    d = x[0].numel()
    squares = []
    for _ in range(probes):
        probe = torch.randint(0, 2, output.shape, generator=generator).to(output) * 2 - 1
        (gradient,) = torch.autograd.grad(output, x, probe, retain_graph=True)
        squares.append(gradient.flatten(1).double().square().sum(1))
    stacked = torch.stack(squares) / (noise * noise * d)
    return stacked.mean(0), stacked.std(0) / math.sqrt(probes)
