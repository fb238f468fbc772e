"""Attacks on labels, by the gradient at the last cut: that of the loss with respect to what the tail receives."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def per_sample(gradient: torch.Tensor) -> torch.Tensor:
    """[samples, values]: gradients of tensors of any shape, each sample a row."""
    return gradient.reshape(len(gradient), -1).float()


def gradient_norm(gradient: torch.Tensor) -> torch.Tensor:
    """Needs nothing. The samples of the rarer of two classes have the larger gradients, while the model is unsure of them (Li et al., Label
    Leakage and Protection in Two-party Split Learning, ICLR 2022). Returns a score that is higher for the rarer class."""
    return per_sample(gradient).norm(dim=1)


def _directions(gradient: torch.Tensor) -> torch.Tensor:
    return F.normalize(per_sample(gradient), dim=1)


def direction_clusters(gradient: torch.Tensor, classes: int, generator: torch.Generator, restarts: int = 8, rounds: int = 30) -> torch.Tensor:
    """Needs the number of classes. Samples of one class have gradients of similar directions: spherical k-means. Returns a cluster per
    sample; which class a cluster is, the attacker learns from one known sample of each."""
    directions = _directions(gradient)
    best, best_fit = torch.zeros(len(directions), dtype=torch.int64), -torch.inf
    for _ in range(restarts):
        centres = directions[torch.randint(len(directions), (1,), generator=generator)]
        while len(centres) < classes:  # k-means++: the next centre is likely to be far from the others
            distance = (1 - (directions @ centres.T).max(1).values).clamp_min(0)
            weights = distance if float(distance.sum()) > 0 else torch.ones_like(distance)
            centres = torch.cat([centres, directions[torch.multinomial(weights, 1, generator=generator)]])
        for _ in range(rounds):
            fit, cluster = (directions @ centres.T).max(1)
            sums = torch.zeros_like(centres).index_add_(0, cluster, directions)
            centres = torch.where(sums.norm(dim=1, keepdim=True) > 0, F.normalize(sums, dim=1), centres)
        if float(fit.sum()) > best_fit:
            best, best_fit = cluster, float(fit.sum())
    return best


def similarity(gradient: torch.Tensor, known: torch.Tensor, known_labels: torch.Tensor, classes: int) -> torch.Tensor:
    """Needs some labels: the rows `known`. Guesses the class whose known gradients have the most similar mean direction."""
    directions = _directions(gradient)
    centres = torch.zeros(classes, directions.shape[1]).index_add_(0, known_labels, directions[known])
    return (directions @ F.normalize(centres, dim=1).T).argmax(1)


def unsplit_labels(activation: torch.Tensor, gradient: torch.Tensor, classes: int, generator: torch.Generator, steps: int = 400,
                   batch: int = 64) -> torch.Tensor:  # fmt: skip
    """Needs the tail's architecture, here one linear layer and cross entropy, and what the tail receives. Trains a copy of the tail until the
    gradients of its best labels are those received (Erdogan et al., UnSplit, WPES 2022). The copy starts from clusters of the gradients, since
    with random weights it often merges classes. Returns a class of the copy per sample: up to a renaming, which one known sample of each class
    settles."""
    inputs, target = activation.flatten(1).float(), per_sample(gradient)
    scale = target.norm(dim=1).mean().clamp_min(1e-20)
    target = target / scale  # the client's gradient has the unknown factor of its loss
    clusters = direction_clusters(gradient, classes, generator)
    counts = clusters.bincount(minlength=classes).clamp_min(1).unsqueeze(1)
    weight = (-torch.zeros(classes, target.shape[1]).index_add_(0, clusters, target) / counts).requires_grad_()
    bias = torch.zeros(classes, requires_grad=True)
    optimizer = torch.optim.Adam([weight, bias], lr=0.01)

    def distances(rows: torch.Tensor) -> torch.Tensor:
        """[rows, classes]: how far the gradient of each label is from the one received."""
        p = (inputs[rows] @ weight.T + bias).softmax(1)
        gradients = (p @ weight).unsqueeze(1) - weight  # of label c: W^T (p - e_c)
        return (gradients - target[rows].unsqueeze(1)).square().sum(2)

    for _ in range(steps):
        rows = torch.randint(len(inputs), (min(batch, len(inputs)),), generator=generator)
        optimizer.zero_grad()
        distances(rows).min(1).values.mean().backward()
        optimizer.step()
    with torch.no_grad():
        return torch.cat([distances(rows).argmin(1) for rows in torch.arange(len(inputs)).split(batch)])
