"""Attacks on inputs that are numbers: images, signals and rows of tables."""

from __future__ import annotations

import math
from typing import Callable, Sequence, Tuple

import torch
from torch import nn


def seeded(make: Callable[[], nn.Module], generator: torch.Generator) -> nn.Module:
    """make(), with initial weights that depend on the generator alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
        return make()


def _standard(known: torch.Tensor, values: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """Both with the mean 0 and the standard deviation 1 of the known values, per element."""
    mean, std = known.mean(0), known.std(0)
    std = torch.where(std > 0, std, torch.ones_like(std))
    return (known - mean) / std, (values - mean) / std


def _trained(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, steps: int, generator: torch.Generator, batch: int = 64,
             rate: float = 1e-3) -> nn.Module:  # fmt: skip
    """The model, trained to the smallest square error."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3 * rate, total_steps=steps)
    model.train()
    for _ in range(steps):
        rows = torch.randint(len(inputs), (min(batch, len(inputs)),), generator=generator)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def ridge_inversion(activation: torch.Tensor, known: torch.Tensor, known_inputs: torch.Tensor) -> torch.Tensor:
    """Needs inputs of some samples (the rows `known`). Linear regression from activations to inputs, with as many coefficients as there are
    known samples; the ridge is the one of five that predicts a held-out fifth of them best."""
    source, goal = activation.flatten(1).double(), known_inputs.flatten(1).double()
    seen, all_rows = _standard(source[known], source)
    mean = goal.mean(0)

    def fit(rows: torch.Tensor, ridge: float) -> torch.Tensor:
        kernel = seen[rows] @ seen[rows].T / seen.shape[1]
        return torch.linalg.solve(kernel + ridge * torch.eye(len(rows), dtype=kernel.dtype), goal[rows] - mean)

    rows = torch.arange(len(known))
    inner, held = rows[rows % 5 > 0], rows[rows % 5 == 0]

    def error(ridge: float) -> float:
        guess = seen[held] @ seen[inner].T / seen.shape[1] @ fit(inner, ridge) + mean
        return float((guess - goal[held]).square().sum())

    best = min((1e-4, 1e-3, 1e-2, 1e-1, 1.0), key=error)
    guess = all_rows @ seen.T / seen.shape[1] @ fit(rows, best) + mean
    return guess.float().reshape(len(activation), *known_inputs.shape[1:])


def decoder_inversion(activation: torch.Tensor, known: torch.Tensor, known_inputs: torch.Tensor, generator: torch.Generator, steps: int = 800,
                      width: int = 512) -> torch.Tensor:  # fmt: skip
    """Needs inputs of some samples (the rows `known`). A network of two layers from activations to inputs, trained on them (He et al., Model
    Inversion Attacks against Collaborative Inference, ACSAC 2019: with queries instead of known samples)."""
    source, goal = activation.flatten(1).float(), known_inputs.flatten(1).float()
    seen, all_rows = _standard(source[known], source)
    model = seeded(lambda: nn.Sequential(nn.Linear(seen.shape[1], width), nn.GELU(), nn.Linear(width, goal.shape[1])), generator)
    mean = goal.mean(0)
    _trained(model, seen, goal - mean, steps, generator)
    with torch.no_grad():
        return (model(all_rows) + mean).reshape(len(activation), *known_inputs.shape[1:])


def variation(x: torch.Tensor) -> torch.Tensor:
    """Total variation of images; 0 for other inputs."""
    if x.dim() != 4:
        return x.new_zeros(())
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()


def unsplit_inversion(activation: torch.Tensor, make_head: Callable[[], nn.Module], input_shape: Sequence[int],
                      input_range: Tuple[float, float], generator: torch.Generator, rounds: int = 40, inner: int = 20,
                      smooth: float = 0.02) -> torch.Tensor:  # fmt: skip
    """Needs the head's architecture: make_head() returns one with new weights. In turn changes the inputs and the copy's weights until the
    copy's output is the activation (Erdogan et al., UnSplit, WPES 2022, Algorithm 1). Returns inputs in `input_range`."""
    low, high = input_range
    head = seeded(make_head, generator).train()
    logits = torch.zeros(len(activation), *input_shape, requires_grad=True)  # 0.5 after the sigmoid
    by_input, by_weight = torch.optim.Adam([logits], lr=0.05), torch.optim.Adam(head.parameters(), lr=1e-3)
    for _ in range(rounds):
        for optimizer in (by_input, by_weight):
            for _ in range(inner):
                by_input.zero_grad()
                by_weight.zero_grad()
                x = low + (high - low) * logits.sigmoid()
                loss = (head(x) - activation).square().mean()
                (loss + smooth * variation(x) if optimizer is by_input else loss).backward()
                optimizer.step()
    return low + (high - low) * logits.detach().sigmoid()


def white_box_inversion(activation: torch.Tensor, head: Callable[[torch.Tensor], torch.Tensor], input_shape: Sequence[int], start: torch.Tensor,
                        steps: int = 300, smooth: float = 1e-3) -> torch.Tensor:  # fmt: skip
    """Needs the head with its weights, such as initial or public ones. Changes inputs, from `start` (such as the mean of known ones), until the
    head's output is the activation."""
    x = start.expand(len(activation), *input_shape).clone().requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.05)
    unit = activation.square().mean().clamp_min(1e-20)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * (1 + math.cos(math.pi * step / steps)) / 2
        optimizer.zero_grad()
        ((head(x) - activation).square().mean() / unit + smooth * variation(x)).backward()
        optimizer.step()
    return x.detach()
