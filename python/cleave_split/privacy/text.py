"""Attacks on texts: which token is at each position. Tokens are [samples, positions]; activations [samples, positions, width]."""

from __future__ import annotations

from typing import Callable

import torch
import torch.nn.functional as F
from torch import nn

from .images import seeded


def nearest_embedding(activation: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Needs the embedding table. The token whose embedding has the most similar direction."""
    table, rows = F.normalize(table.float(), dim=1), activation.flatten(0, -2).float()
    guess = [(F.normalize(each, dim=1) @ table.T).argmax(1) for each in rows.split(1024)]
    return torch.cat(guess).reshape(activation.shape[:-1])


def public_tail(activation: torch.Tensor, tail: Callable[[torch.Tensor], torch.Tensor], batch: int = 16) -> torch.Tensor:
    """Needs the public model's tail, which gives logits per position: runs it on activation/1. Of a causal model, the guess at position p is of
    the token at p + 1."""
    with torch.no_grad():
        return torch.cat([tail(each).argmax(-1) for each in activation.float().split(batch)])


def mlp_inverter(activation: torch.Tensor, known: torch.Tensor, known_tokens: torch.Tensor, generator: torch.Generator, steps: int = 1000,
                 width: int = 512, batch: int = 256, rate: float = 2e-3) -> torch.Tensor:  # fmt: skip
    """Needs texts of the same kind whose activations it sees (the rows `known`). A network of two layers from the activation at a position to
    the token there, of those that occur in the known texts; positions and samples are alike to it."""
    source = activation.float()
    vocabulary, goal = known_tokens.flatten().unique(return_inverse=True)
    seen = source[known].flatten(0, 1)
    mean, std = seen.mean(0), seen.std(0).clamp_min(1e-6)
    model = seeded(lambda: nn.Sequential(nn.Linear(seen.shape[1], width), nn.GELU(), nn.Linear(width, len(vocabulary))), generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for _ in range(steps):
        rows = torch.randint(len(seen), (min(batch, len(seen)),), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model((seen[rows] - mean) / std), goal[rows]).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return vocabulary[torch.cat([model((each - mean) / std).argmax(-1) for each in source.split(16)])]


def greedy_search(activation: torch.Tensor, head: Callable[[torch.Tensor], torch.Tensor], tokens: int, batch: int = 256) -> torch.Tensor:
    """Needs a causal head with its weights. Position by position, tries every token after the ones found, and takes the one whose output is
    nearest to the activation (2505.18332, Algorithm 1). Takes positions x tokens runs of the head per sample."""
    found = torch.zeros(activation.shape[:2], dtype=torch.int64)
    with torch.no_grad():
        for sample, wanted in enumerate(activation.float()):
            for position in range(activation.shape[1]):
                prefix = found[sample, :position]
                best, best_distance = 0, torch.inf
                for candidates in torch.arange(tokens).split(batch):
                    ids = torch.cat([prefix.expand(len(candidates), position), candidates[:, None]], dim=1)
                    distance = (head(ids)[:, position] - wanted[position]).square().sum(1)
                    if float(distance.min()) < best_distance:
                        best, best_distance = int(candidates[distance.argmin()]), float(distance.min())
                found[sample, position] = best
    return found


def gradient_inversion(activation: torch.Tensor, gradient: torch.Tensor, tail: Callable[[torch.Tensor], torch.Tensor],
                       rounds: int = 10) -> torch.Tensor:  # fmt: skip
    """Needs the tail with its weights, which gives logits [samples, positions, tokens]. Searches the target tokens whose cross entropy has the
    gradient received. That gradient is J^T (p - y), where J is the Jacobian of the logits, p their softmax and y the one-hot targets: linear in
    y, up to the unknown factor of the loss. So the search starts with the tokens whose logits rise most if the activation moves against the
    gradient, J (-g), and improves them by projected gradient steps with exact line search. Positions may depend on each other."""
    found = [_invert(*rows, tail, rounds) for rows in zip(activation.float().split(1), gradient.float().split(1))]
    return torch.cat(found)


def _invert(activation: torch.Tensor, gradient: torch.Tensor, tail: Callable[[torch.Tensor], torch.Tensor], rounds: int) -> torch.Tensor:
    x = activation.detach().clone().requires_grad_()
    logits = tail(x)
    p = logits.detach().softmax(-1)
    dual = torch.zeros_like(logits, requires_grad=True)
    (pulled,) = torch.autograd.grad(logits, x, dual, create_graph=True)  # J^T dual, so its gradient in `dual` is J

    def pull(values: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(logits, x, values, retain_graph=True)[0]

    def push(direction: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(pulled, dual, direction, retain_graph=True)[0]

    best = tokens = push(-gradient).argmax(-1)
    smallest = torch.inf
    for _ in range(rounds):
        y = F.one_hot(tokens, logits.shape[-1]).to(p)
        own = pull(p - y)
        factor = (own * gradient).sum() / own.square().sum().clamp_min(1e-30)  # of the loss
        if float(factor) <= 0:
            break
        missing = own - gradient / factor
        error = float(missing.square().sum() / own.square().sum().clamp_min(1e-30))
        if error < smallest:
            best, smallest = tokens, error
        step = push(missing)
        change = pull(step)
        y = y + step * ((missing * change).sum() / change.square().sum().clamp_min(1e-30))
        if torch.equal(y.argmax(-1), tokens):
            break
        tokens = y.argmax(-1)
    return best
