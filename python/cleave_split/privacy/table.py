"""The attacks: one row each, with what the attacker knows and what the attack needs."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from . import images, labels, scores, simulators, text

MAX_SEARCHED = 1 << 16  # positions x tokens of a greedy search, which runs the head so often per sample


@dataclasses.dataclass
class Model:
    """What an attacker may know of the model; None: unknown. `head`, `body` and `tail` are callables with weights: those of the run, initial or
    public ones. docs/privacy.md describes each."""

    head: Optional[Callable[[torch.Tensor], torch.Tensor]] = None
    body: Optional[Callable[[torch.Tensor], torch.Tensor]] = None  # the server's layers
    tail: Optional[Callable[[torch.Tensor], torch.Tensor]] = None  # logits per sample or per token
    make_head: Optional[Callable[[], torch.nn.Module]] = None  # a head with new weights
    make_tail: Optional[Callable[[], torch.nn.Module]] = None
    table: Optional[torch.Tensor] = None  # embeddings [tokens, width]
    causal: bool = False  # whether a position of `head` depends on no later one, and `tail` predicts the next token
    decode: Optional[Callable[[List[int]], str]] = None  # token ids to text, for the page


@dataclasses.dataclass
class Case:
    """A row per sample: the tensor of a flow as the server has it, and the truth. The attacker may use inputs, labels and tokens of the rows
    `known`; attacks are scored on the rows `unknown`."""

    traffic: torch.Tensor
    known: torch.Tensor
    unknown: torch.Tensor
    flow: str = "activation/0"
    last_cut: int = 1
    activation: Optional[torch.Tensor] = None  # of a gradient: the activation at the same cut
    inputs: Optional[torch.Tensor] = None  # numbers
    tokens: Optional[torch.Tensor] = None  # [samples, positions]
    targets: Optional[torch.Tensor] = None  # tokens [samples, positions]; negative: none
    labels: Optional[torch.Tensor] = None
    classes: int = 0
    vocabulary: int = 0
    model: Model = dataclasses.field(default_factory=Model)
    seed: int = 0
    found: Dict[str, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)  # results that several attacks use

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    @property
    def kind(self) -> str:
        return self.flow.split("/")[0]

    @property
    def cut(self) -> int:
        return int(self.flow.split("/")[1].split(".")[0])


@dataclasses.dataclass
class Outcome:
    score: scores.Score
    rows: Optional[torch.Tensor] = None  # of the case, which are shown beside their reconstructions
    reconstruction: Optional[torch.Tensor] = None


@dataclasses.dataclass(frozen=True)
class Attack:
    name: str
    finds: str  # "label", "input" or "token"
    knows: str
    needs: str
    fits: Callable[[Case], bool]
    run: Callable[[Case], Outcome]


# ---- What an attack needs ----


def _is_activation(case: Case) -> bool:
    return case.kind == "activation"


def _at_head(case: Case) -> bool:
    return _is_activation(case) and case.cut == 0


def _at_tail(case: Case) -> bool:
    return case.kind == "gradient" and case.cut == case.last_cut and case.labels is not None


def _has_linear_tail(case: Case) -> bool:
    return _at_tail(case) and case.activation is not None and case.activation[0].numel() == case.traffic[0].numel()


def _has_inputs(case: Case) -> bool:
    return _is_activation(case) and case.inputs is not None


def _knows(case: Case, *names: str) -> bool:
    return all(getattr(case.model, name) is not None for name in names)


def _may_simulate(case: Case) -> bool:
    return _at_head(case) and _has_inputs(case) and case.labels is not None and _knows(case, "make_head", "make_tail", "body")


def _per_token(case: Case) -> bool:
    return _is_activation(case) and case.tokens is not None and case.traffic.dim() == 3 and case.traffic.shape[:2] == case.tokens.shape


def _may_search(case: Case) -> bool:
    return (_per_token(case) and _at_head(case) and _knows(case, "head") and case.model.causal
            and case.traffic.shape[1] * case.vocabulary <= MAX_SEARCHED)  # fmt: skip


def _has_target_tokens(case: Case) -> bool:
    return (case.kind == "gradient" and case.cut == case.last_cut and case.activation is not None and case.targets is not None
            and _knows(case, "tail"))  # fmt: skip


# ---- Scores of guesses ----

_SHOWN = 8


def _labels(case: Case, guess: torch.Tensor) -> Outcome:
    """`guess`: of all rows."""
    return Outcome(scores.accuracy(guess[case.unknown], case.labels[case.unknown], case.classes))


def _clusters(case: Case, clusters: torch.Tensor) -> Outcome:
    return Outcome(scores.matched_accuracy(clusters[case.unknown], case.labels[case.unknown], case.classes))


def _inputs(case: Case, guess: torch.Tensor, rows: Optional[torch.Tensor] = None) -> Outcome:
    """`guess`: of `rows`, which default to the unknown ones."""
    rows = case.unknown if rows is None else rows
    return Outcome(scores.explained(guess, case.inputs[rows], case.inputs[case.known]), rows[:_SHOWN], guess[:_SHOWN])


def _tokens(case: Case, guess: torch.Tensor, truth: torch.Tensor, rows: torch.Tensor) -> Outcome:
    return Outcome(scores.accuracy(guess, truth, case.vocabulary), rows[:_SHOWN], guess[:_SHOWN])


def _searched(case: Case, count: int = 2 * scores.MIN_SAMPLES) -> torch.Tensor:
    """The rows for attacks that search per sample: as many as an interval needs."""
    return case.unknown[:count]


# ---- Attacks on labels ----


def _norm(case: Case) -> Outcome:
    rarer = int(case.labels.bincount(minlength=2).argmin())
    score = labels.gradient_norm(case.traffic[case.unknown])
    return Outcome(scores.area_under_curve(score, case.labels[case.unknown] == rarer))


def _direction(case: Case) -> Outcome:
    return _clusters(case, labels.direction_clusters(case.traffic, case.classes, case.generator()))


def _similarity(case: Case) -> Outcome:
    return _labels(case, labels.similarity(case.traffic, case.known, case.labels[case.known], case.classes))


def _unsplit_labels(case: Case) -> Outcome:
    return _clusters(case, labels.unsplit_labels(case.activation, case.traffic, case.classes, case.generator()))


def _probe(case: Case) -> Outcome:
    wanted = torch.nn.functional.one_hot(case.labels[case.known], case.classes).float()
    return _labels(case, images.ridge_inversion(case.traffic, case.known, wanted).argmax(1))


def _sdar(case: Case) -> Tuple[torch.Tensor, torch.Tensor]:
    if "sdar" not in case.found:
        model, known = case.model, case.known
        case.found["sdar"] = simulators.sdar(case.traffic[case.unknown], model.body, model.make_head, model.make_tail, case.inputs[known],
                                             case.labels[known], case.generator())  # fmt: skip
    return case.found["sdar"]


def _sdar_labels(case: Case) -> Outcome:
    return Outcome(scores.accuracy(_sdar(case)[1], case.labels[case.unknown], case.classes))


# ---- Attacks on inputs ----


def _ridge(case: Case) -> Outcome:
    return _inputs(case, images.ridge_inversion(case.traffic, case.known, case.inputs[case.known])[case.unknown])


def _decoder(case: Case) -> Outcome:
    return _inputs(case, images.decoder_inversion(case.traffic, case.known, case.inputs[case.known], case.generator())[case.unknown])


def _unsplit_inputs(case: Case) -> Outcome:
    rows, known = _searched(case), case.inputs[case.known]
    low, high = known.min(), known.max()
    guess = images.unsplit_inversion(case.traffic[rows].float(), case.model.make_head, known.shape[1:], (float(low), float(high)), case.generator())
    return _inputs(case, guess, rows)


def _white_box(case: Case) -> Outcome:
    rows, known = _searched(case), case.inputs[case.known]
    return _inputs(case, images.white_box_inversion(case.traffic[rows].float(), case.model.head, known.shape[1:], known.mean(0)), rows)


def _sdar_inputs(case: Case) -> Outcome:
    return _inputs(case, _sdar(case)[0])


def _fsha(case: Case) -> Outcome:
    return _inputs(case, simulators.fsha(case.model.make_head, case.inputs[case.unknown], case.inputs[case.known], case.generator()))


# ---- Attacks on texts ----


def _nearest(case: Case) -> Outcome:
    return _tokens(case, text.nearest_embedding(case.traffic[case.unknown], case.model.table), case.tokens[case.unknown], case.unknown)


def _public_tail(case: Case) -> Outcome:
    guess, truth = text.public_tail(case.traffic[case.unknown], case.model.tail), case.tokens[case.unknown]
    if case.model.causal:
        guess, truth = guess[:, :-1], truth[:, 1:]
    return _tokens(case, guess, truth, case.unknown)


def _mlp(case: Case) -> Outcome:
    guess = text.mlp_inverter(case.traffic, case.known, case.tokens[case.known], case.generator())
    return _tokens(case, guess[case.unknown], case.tokens[case.unknown], case.unknown)


def _greedy(case: Case) -> Outcome:
    rows = _searched(case, scores.MIN_SAMPLES)
    return _tokens(case, text.greedy_search(case.traffic[rows], case.model.head, case.vocabulary), case.tokens[rows], rows)


def _gradient_inversion(case: Case) -> Outcome:
    rows = _searched(case)
    return _tokens(case, text.gradient_inversion(case.activation[rows], case.traffic[rows], case.model.tail), case.targets[rows], rows)


_GRADIENT = "the gradient at the last cut, a label per sample"
_ACTIVATION = "activations, inputs that are numbers"
_TEXT = "activations per token"

ATTACKS = [
    Attack("gradient norm", "label", "nothing", f"{_GRADIENT}, two classes", lambda case: _at_tail(case) and case.classes == 2, _norm),
    Attack("gradient direction", "label", "the number of classes", _GRADIENT, _at_tail, _direction),
    Attack("gradient similarity", "label", "some samples with labels", _GRADIENT, _at_tail, _similarity),
    Attack("UnSplit labels", "label", "the tail's architecture", f"{_GRADIENT}, a tail of one linear layer", _has_linear_tail, _unsplit_labels),
    Attack("linear probe", "label", "some samples with labels", "activations, a label per sample",
           lambda case: _is_activation(case) and case.labels is not None, _probe),
    Attack("SDAR labels", "label", "the architecture of head and tail, the body, other samples with labels",
           "activation/0, a label per sample; make_head, make_tail, body", _may_simulate, _sdar_labels),
    Attack("ridge inversion", "input", "some samples", _ACTIVATION, _has_inputs, _ridge),
    Attack("decoder inversion", "input", "some samples", _ACTIVATION, _has_inputs, _decoder),
    Attack("UnSplit inversion", "input", "the head's architecture, the range of the inputs", "activation/0, inputs that are numbers; make_head",
           lambda case: _at_head(case) and _has_inputs(case) and _knows(case, "make_head"), _unsplit_inputs),
    Attack("white-box inversion", "input", "the head's weights, the mean of the inputs", "activation/0, inputs that are numbers; head",
           lambda case: _at_head(case) and _has_inputs(case) and _knows(case, "head"), _white_box),
    Attack("SDAR inputs", "input", "the architecture of head and tail, the body, other samples with labels",
           "activation/0, inputs that are numbers; make_head, make_tail, body", _may_simulate, _sdar_inputs),
    Attack("FSHA", "input", "the head's architecture, other samples; the server is malicious", "activation/0, inputs that are numbers; make_head",
           lambda case: _at_head(case) and _has_inputs(case) and _knows(case, "make_head"), _fsha),
    Attack("nearest embedding", "token", "the embedding table", f"activation/0, {_TEXT}; table",
           lambda case: _per_token(case) and _at_head(case) and _knows(case, "table") and case.model.table.shape[1] == case.traffic.shape[2], _nearest),
    Attack("public tail", "token", "the public model's tail", f"{_TEXT} at the last cut; tail",
           lambda case: _per_token(case) and case.cut == case.last_cut and _knows(case, "tail"), _public_tail),
    Attack("MLP inverter", "token", "some texts", _TEXT, _per_token, _mlp),
    Attack("greedy search", "token", "the head's weights", f"activation/0, {_TEXT}, at most {MAX_SEARCHED:,} positions x tokens; head, causal",
           _may_search, _greedy),
    Attack("gradient inversion", "token", "the tail's weights", "the gradient at the last cut, target tokens; tail", _has_target_tokens,
           _gradient_inversion),
]  # fmt: skip
