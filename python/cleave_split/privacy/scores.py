"""Scores of attacks. Each has the scores of guesses without the traffic, the baselines, and a 95 % interval."""

from __future__ import annotations

import dataclasses
import math
from typing import Callable, Dict, Tuple

import torch

from cleave_split.errors import Error

MIN_SAMPLES = 30  # fewer give no useful interval
_RESAMPLES = 1000


@dataclasses.dataclass
class Score:
    """How well an attack did on `samples` samples that it did not know."""

    metric: str  # "accuracy", "AUC", "R2"; of all, 1 is a perfect attack
    value: float
    low: float
    high: float
    baselines: Dict[str, float]  # by name: what a guess without the traffic scores
    samples: int

    @property
    def baseline(self) -> float:
        """The best of the baselines."""
        return max(self.baselines.values())

    @property
    def advantage(self) -> float:
        """0: no better than the best baseline; 1: perfect."""
        return min(1.0, max(0.0, (self.value - self.baseline) / max(1 - self.baseline, 1e-9)))

    @property
    def succeeds(self) -> bool:
        """Whether the interval is above the best baseline."""
        return self.low > self.baseline


def check_samples(count: int) -> None:
    """Throws Error "too-few-samples"."""
    if count < MIN_SAMPLES:
        raise Error("too-few-samples", f"{count} samples are too few for an interval, which needs {MIN_SAMPLES}", "record more steps: --record-steps N")


def wilson(right: int, count: int) -> Tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927)."""
    z, share = 1.959964, right / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))  # also after rounding


def resampled(statistic: Callable[[torch.Tensor], float], count: int, seed: int = 0) -> Tuple[float, float]:
    """The 95 % interval of statistic(rows) over random samples of the rows, with replacement (percentile bootstrap)."""
    generator = torch.Generator().manual_seed(seed)
    values = [statistic(torch.randint(count, (count,), generator=generator)) for _ in range(_RESAMPLES)]
    known = torch.tensor([value for value in values if not math.isnan(value)], dtype=torch.float64)
    return known.quantile(0.025).item(), known.quantile(0.975).item()


def accuracy(guess: torch.Tensor, truth: torch.Tensor, classes: int) -> Score:
    """Of guessed classes: [samples] or, for tokens, [samples, positions]. Places whose truth is negative do not count. The baselines guess at
    random, or always the most frequent class. Positions of one sample depend on each other, so the interval of tokens resamples samples."""
    check_samples(len(truth))
    counts = truth >= 0
    right, count = (guess == truth) & counts, int(counts.sum())
    if count == 0:
        raise Error("too-few-samples", "no position has a target", "record samples with targets")
    baselines = {"random": 1 / classes, "majority": truth[counts].bincount().max().item() / count}
    value = int(right.sum()) / count
    if truth.dim() == 1:
        return Score("accuracy", value, *wilson(int(right.sum()), count), baselines, len(truth))
    by_sample, of_sample = right.sum(1).double(), counts.sum(1).double()
    low, high = resampled(lambda rows: float(by_sample[rows].sum() / of_sample[rows].sum()), len(truth))
    return Score("accuracy", value, low, high, baselines, len(truth))


def matched_accuracy(clusters: torch.Tensor, truth: torch.Tensor, classes: int) -> Score:
    """Of clusters, each of which gets the class that it fits best (a one-to-one assignment). The baselines assign shuffled clusters, or guess
    always the most frequent class."""
    check_samples(len(truth))
    generator = torch.Generator().manual_seed(0)
    right = int((assign(clusters, truth, classes) == truth).sum())
    shuffled = [clusters[torch.randperm(len(truth), generator=generator)] for _ in range(20)]
    chance = sum(float((assign(each, truth, classes) == truth).float().mean()) for each in shuffled) / len(shuffled)
    baselines = {"random": chance, "majority": truth.bincount().max().item() / len(truth)}
    return Score("accuracy", right / len(truth), *wilson(right, len(truth)), baselines, len(truth))


def assign(clusters: torch.Tensor, truth: torch.Tensor, classes: int) -> torch.Tensor:
    """The class of each row's cluster, by the one-to-one assignment that takes the largest overlap first."""
    overlap = torch.zeros(classes, classes, dtype=torch.int64)
    overlap.index_put_((clusters, truth), torch.ones_like(truth), accumulate=True)
    names = torch.zeros(classes, dtype=torch.int64)
    for _ in range(classes):
        row, column = divmod(int(overlap.argmax()), classes)
        names[row] = column
        overlap[row, :], overlap[:, column] = -1, -1
    return names[clusters]


def area_under_curve(score: torch.Tensor, positive: torch.Tensor) -> Score:
    """Of a score that should be higher for the positive samples: the probability that it is, for two random samples. A random score has 0.5, and
    so has the same score for all."""
    check_samples(len(score))

    def auc(rows: torch.Tensor) -> float:
        values, is_positive = score[rows].double(), positive[rows].bool()
        first, second = int(is_positive.sum()), int((~is_positive).sum())
        if first == 0 or second == 0:
            return math.nan
        _, inverse, counts = values.unique(return_inverse=True, return_counts=True)
        ranks = (counts.cumsum(0) - (counts - 1) / 2)[inverse]  # ties share the mean of their ranks
        return float((ranks[is_positive].sum() - first * (first + 1) / 2) / (first * second))

    value = auc(torch.arange(len(score)))
    if math.isnan(value):
        raise Error("too-few-samples", "all samples have the same class", "record samples of both classes")
    return Score("AUC", value, *resampled(auc, len(score)), {"random": 0.5, "majority": 0.5}, len(score))


def explained(reconstruction: torch.Tensor, original: torch.Tensor, known: torch.Tensor) -> Score:
    """R2: the share of the original's variance that a reconstruction explains. The baselines are the mean of the samples `known` to the attacker,
    which scores 0, and a random one of them."""
    check_samples(len(original))
    wanted, mean = original.flatten(1).double(), known.flatten(1).double().mean(0)
    spread = (mean - wanted).square().sum(1)
    if float(spread.sum()) == 0:
        raise Error("too-few-samples", "all samples are the same", "record other samples")

    def share(guess: torch.Tensor, rows: torch.Tensor) -> float:
        error = (guess.flatten(1).double() - wanted).square().sum(1)
        return 1 - float(error[rows].sum() / spread[rows].sum().clamp_min(1e-30))

    every = torch.arange(len(original))
    others = known[torch.randint(len(known), (len(original),), generator=torch.Generator().manual_seed(0))]
    interval = resampled(lambda rows: share(reconstruction, rows), len(original))
    return Score("R2", share(reconstruction, every), *interval, {"mean": 0.0, "random": share(others, every)}, len(original))
