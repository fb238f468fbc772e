"""Audits recordings: runs every attack that fits on every flow, and writes what the server learns as JSON, CSV and one page."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import sys
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import torch

from cleave_split.errors import Error
from cleave_split.runs import Run

from . import measures, page
from .epochs import occurrences
from .recording import Recording
from .scores import MIN_SAMPLES, Score
from .table import ATTACKS, Attack, Case, Model, Outcome

Path = Union[str, os.PathLike]
Row = Dict[str, Any]

MAX_SAMPLES = 1000  # per flow, so that the suite takes minutes
MAX_VALUES = 1 << 25  # of a flow's tensor that the suite uses
_COLUMNS = ("recording", "run", "codec", "flow", "epochs", "attack", "finds", "knows", "metric", "value", "low", "high", "baseline", "advantage", "succeeds",
            "samples", "seconds")  # fmt: skip


def audit(recordings: Sequence[Path], output: Path, *, model: Optional[Model] = None, runs: Sequence[Path] = (), known: float = 0.5,
          attacks: Sequence[str] = (), max_samples: int = MAX_SAMPLES, bar: bool = True) -> Dict[str, Any]:  # fmt: skip
    """Audits recordings made with --record-inputs, and writes audit.json, audit.csv and index.html into the folder `output`.

    model        what the attacker knows of the model; None: nothing
    runs         the folders of the recorded runs; needed for those that are no longer where they were recorded
    known        the share of the samples that the attacker knows
    attacks      the names of the attacks to run; default: all that fit
    max_samples  the number of samples per flow
    bar          whether to show the progress on stderr

    If interrupted, the same call resumes. Nothing leaves this machine. Returns the content of audit.json."""
    model = model or Model()
    chosen = _chosen(attacks)
    if not 0 < known < 1:
        raise Error("wrong-use", f"the share of known samples is {known}", "give a share between 0 and 1")
    if not recordings:
        raise Error("wrong-use", "there is no recording to audit", "give the folder of train --record-traffic")
    opened = [Recording(folder) for folder in recordings]
    used = [_run_of(recording, runs) for recording in opened]
    cases = [each for recording, run in zip(opened, used) for each in _cases(recording, run, model, known, max_samples)]
    work = [(about, case, attack) for about, case in cases for attack in chosen if attack.fits(case)]
    _check_chosen(chosen if attacks else [], work)
    stored = pathlib.Path(output) / "results"
    stored.mkdir(parents=True, exist_ok=True)
    rows: List[Row] = []
    shown: List[page.Figure] = []
    for done, (about, case, attack) in enumerate(work):
        if bar:
            _show(done, len(work), f"{about['flow']} {attack.name}")
        row, reconstruction = _result(stored, about, case, attack)
        rows.append(row)
        if reconstruction is not None:
            shown.append(page.Figure(row, *_beside(case, attack, *reconstruction), decode=model.decode))
    if bar:
        _show(len(work), len(work), "done\n")
    flows = [_verdict(about, case, rows, chosen) for about, case in cases]
    result = {"recordings": [_description(recording, run) for recording, run in zip(opened, used)], "flows": flows,
              "across_epochs": _across_epochs(flows), "rows": rows}  # fmt: skip
    _write(pathlib.Path(output), result, shown)
    return result


# ---- What there is to attack ----


def _chosen(names: Sequence[str]) -> List[Attack]:
    known = {attack.name: attack for attack in ATTACKS}
    for name in names:
        if name not in known:
            raise Error("wrong-use", f"there is no attack {name!r}", "list them: python -m cleave_split.privacy attacks")
    return [known[name] for name in names] if names else list(ATTACKS)


def _check_chosen(attacks: Sequence[Attack], work: Sequence[Tuple[Row, Case, Attack]]) -> None:
    for attack in attacks:
        if all(each is not attack for _, _, each in work):
            raise Error("no-attack", f"the attack {attack.name} fits no flow of these recordings: it needs {attack.needs}",
                        "define what it needs in the file of --model: docs/privacy.md")  # fmt: skip


def _run_of(recording: Recording, folders: Sequence[Path]) -> Run:
    """The recorded run. Throws Error "other-run" if its folder is neither where the recording says nor one of `folders`."""
    candidates = [*folders, str(recording.about.get("run_folder", ""))]
    for folder in candidates:
        file = pathlib.Path(folder) / "run.json"
        if file.is_file() and json.loads(file.read_text(encoding="utf-8")).get("run") == recording.run:
            return Run(folder)
    raise Error("other-run", f"{recording.folder} is a recording of the run {recording.run}, which is not in {' or '.join(map(str, candidates))}",
                "give the folder of its run: --run DIR")  # fmt: skip


def _cases(recording: Recording, run: Run, model: Model, known: float, max_samples: int) -> List[Tuple[Row, Case]]:
    """A description and a Case per flow and, if samples occur several times, per kind of occurrence."""
    inputs, target, numbers = recording.inputs()
    last_cut = max(_cut(flow) for flow in recording.flows)
    values = {flow: recording.read(flow) for flow in recording.flows}
    own_inputs = {name: occurrences(value, numbers)["first"] for name, value in inputs.items()}
    own_target = occurrences(target, numbers)["first"]
    cases = []
    for flow, (traffic, own) in values.items():
        if not torch.equal(own, numbers):
            raise Error("bad-recording", f"{recording.folder}: {flow} has other samples than the inputs", "record the run again")
        if not traffic.is_floating_point():
            continue  # a mask
        activation = values.get(f"activation/{_cut(flow)}") if flow.startswith("gradient") else None
        matching = occurrences(activation[0], numbers) if activation else {}
        for kind, tensor in occurrences(traffic, numbers).items():
            most = min(max_samples, max(2 * MIN_SAMPLES, MAX_VALUES // max(1, tensor[0].numel())))
            rows = torch.randperm(len(tensor), generator=torch.Generator().manual_seed(1))[:most]
            split = int(known * len(rows))
            if min(split, len(rows) - split) < MIN_SAMPLES:
                raise Error("too-few-samples", f"{recording.folder} has {len(tensor)} samples, of which an audit uses {len(rows)}: {split} that the attacker "
                            f"knows and {len(rows) - split} others, but {MIN_SAMPLES} of each are needed", "record more steps: --record-steps N")  # fmt: skip
            case = Case(tensor[rows].float(), torch.arange(split), torch.arange(split, len(rows)), flow, last_cut, model=model,
                        activation=matching[kind][rows].float() if matching else None)  # fmt: skip
            _add_truth(case, {name: value[rows] for name, value in own_inputs.items()}, own_target[rows])
            _check_model(case, recording)
            about = {"recording": recording.folder.name, "run": str(run.path), "flow": flow, "codec": recording.codec(flow), "epochs": kind}
            cases.append((about, case))
    return cases


def _cut(flow: str) -> int:
    return int(flow.split("/")[1].split(".")[0])


def _add_truth(case: Case, inputs: Dict[str, torch.Tensor], target: torch.Tensor) -> None:
    values = list(inputs.values())
    if len(values) == 1 and values[0].is_floating_point():
        case.inputs = values[0].float()
    ids = inputs.get("input_ids", values[0] if len(values) == 1 else None)
    if ids is not None and ids.dtype == torch.int64 and ids.dim() == 2:
        case.tokens, case.vocabulary = ids, int(ids.max()) + 1
    if target.dtype != torch.int64:
        return
    if target.dim() == 1 and int(target.min()) >= 0:
        case.labels, case.classes = target, int(target.max()) + 1
    if target.dim() == 2:
        case.targets, case.vocabulary = target, max(case.vocabulary, int(target.max()) + 1)


def _check_model(case: Case, recording: Recording) -> None:
    """Throws Error "other-model" unless the parts that the attacker knows fit the recorded tensors."""
    model, shape = case.model, tuple(case.traffic.shape[1:])

    def refuse(part: str, what: str) -> None:
        raise Error("other-model", f"{part} of --model {what}, but {case.flow} of {recording.folder} has {'x'.join(map(str, shape))} per sample",
                    f"define {part} of the model and the cut that was recorded")  # fmt: skip

    heads = {"head": model.head, "make_head()": model.make_head() if model.make_head else None}
    truth = case.inputs if case.inputs is not None else case.tokens
    for part, head in heads.items():
        if head is None or case.flow != "activation/0" or truth is None:
            continue
        try:
            with torch.no_grad():
                found = tuple(head(truth[:2]).shape[1:])
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            refuse(part, f"fails on an input of the recording ({str(error).splitlines()[0]})")
        if found != shape:
            refuse(part, f"gives {'x'.join(map(str, found))} per sample")
    if model.tail is not None and case.flow == f"activation/{case.last_cut}":
        try:
            with torch.no_grad():
                model.tail(case.traffic[:2])
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            refuse("tail", f"fails on an activation of the recording ({str(error).splitlines()[0]})")


# ---- Results ----


def _result(folder: pathlib.Path, about: Row, case: Case, attack: Attack) -> Tuple[Row, Optional[Tuple[torch.Tensor, torch.Tensor]]]:
    """The attack's row, and the rows that it reconstructed with their reconstructions: from the folder, or computed and stored there."""
    digest = hashlib.sha256(repr((sorted(about.items()), attack.name, attack.knows, len(case.known), case.model.causal)).encode())
    for tensor in (case.traffic, case.inputs, case.tokens, case.labels, case.targets, case.model.table, *_weights(case.model)):
        if tensor is not None:
            digest.update(tensor.detach().contiguous().numpy().tobytes())
    name = re.sub(r"\W+", "-", f"{about['recording']}-{about['flow']}-{about['epochs']}-{attack.name}")
    path = folder / f"{name}-{digest.hexdigest()[:12]}.pt"
    if path.exists():
        stored = torch.load(path, weights_only=True)
        return stored["row"], stored["reconstruction"]
    begin = time.monotonic()
    with torch.random.fork_rng(devices=[]):  # a head may have dropout
        torch.manual_seed(case.seed)
        outcome = attack.run(case)
    row = {**about, "attack": attack.name, "finds": attack.finds, "knows": attack.knows, **_fields(outcome.score),
           "seconds": round(time.monotonic() - begin, 2)}  # fmt: skip
    reconstruction = None if outcome.reconstruction is None else (outcome.rows.clone(), outcome.reconstruction.detach().clone())
    temporary = path.with_suffix(".part")
    torch.save({"row": row, "reconstruction": reconstruction}, temporary)
    os.replace(temporary, path)
    return row, reconstruction


def _weights(model: Model) -> List[torch.Tensor]:
    parts = [part for part in (model.head, model.body, model.tail) if isinstance(part, torch.nn.Module)]
    return [tensor.float() for part in parts for tensor in part.state_dict().values()]


def _fields(score: Score) -> Row:
    rounded = {name: round(getattr(score, name), 4) for name in ("value", "low", "high", "baseline", "advantage")}
    return {"metric": score.metric, **rounded, "baselines": score.baselines, "succeeds": score.succeeds, "samples": score.samples}


def _beside(case: Case, attack: Attack, rows: torch.Tensor, reconstruction: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """The originals of the reconstructions, and these."""
    if attack.finds == "input":
        return case.inputs[rows], reconstruction
    if attack.name == "gradient inversion":
        return case.targets[rows], reconstruction
    positions = reconstruction.shape[1]
    return case.tokens[rows][:, -positions:], reconstruction


_NOUNS = {"label": "labels", "input": "inputs", "token": "tokens"}


def _verdict(about: Row, case: Case, rows: Sequence[Row], attacks: Sequence[Attack]) -> Row:
    """The worst attack of each kind on the flow, as one sentence, and measures that need no attacker."""
    own = [row for row in rows if all(row[key] == about[key] for key in about)]
    ran = {row["attack"] for row in own}
    result = {**about, "attacks": len(own), "left_out": [attack.name for attack in attacks if attack.name not in ran], "worst": None}
    if case.inputs is not None and case.kind == "activation":
        result["distance_correlation"] = round(measures.distance_correlation(case.traffic, case.inputs), 4)
        if case.model.head is not None and case.cut == 0:
            result["certified_noise"] = round(_certified_noise(case), 4)
    successes = [row for row in own if row["succeeds"]]
    if own:
        result["worst"] = max((row["advantage"] for row in successes), default=0.0)
    found = []
    for finds, noun in _NOUNS.items():
        by_kind = [row for row in successes if row["finds"] == finds]
        if by_kind:
            worst = max(by_kind, key=lambda row: row["advantage"])
            found.append(f"{noun} ({worst['metric']} {worst['value']:.2f}, 95 % interval {worst['low']:.2f} to {worst['high']:.2f}; "
                         f"{worst['baseline']:.2f} without the traffic) with the attack {worst['attack']}, which knows {worst['knows']}")  # fmt: skip
    if found:
        result["verdict"] = f"The server learns {', and '.join(found)}."
    elif own:
        result["verdict"] = f"No attack of {len(own)} does better than a guess without the traffic, which does not prove that none can."
    elif case.flow == "gradient/0":
        result["verdict"] = "Not attacked: the server computes this flow from the others."
    else:
        result["verdict"] = "Not attacked: no attack fits what is known of this flow."
    return result


def _certified_noise(case: Case) -> float:
    """The standard deviation of Gaussian noise on the activation from which on no unbiased attacker has a smaller mean square error than the mean
    of the inputs has."""
    head = case.model.head
    was_training = isinstance(head, torch.nn.Module) and head.training
    if isinstance(head, torch.nn.Module):
        head.eval()
    trace, _ = measures.dfil(head, case.inputs[case.unknown[:MIN_SAMPLES]], 1.0, case.generator())
    if was_training:
        head.train()
    return float((trace.mean() * case.inputs.var(0).mean()).sqrt())


def _across_epochs(flows: Sequence[Row]) -> List[Row]:
    """Per flow whose samples occur several times: the worst advantage of the first epoch, of the last one, and of all together."""
    grouped: Dict[Tuple[str, str], Dict[str, Row]] = {}
    for flow in flows:
        grouped.setdefault((flow["recording"], flow["flow"]), {})[flow["epochs"]] = flow
    return [{"recording": recording, "flow": flow, "codec": kinds["first"]["codec"], **{kind: kinds[kind]["worst"] for kind in ("first", "last", "all")}}
            for (recording, flow), kinds in grouped.items() if "all" in kinds]  # fmt: skip


def _description(recording: Recording, run: Run) -> Row:
    summary = run.summary
    return {"recording": str(recording.folder), "run": str(run.path), "ended": recording.about.get("ended"),
            "codecs": {flow: recording.codec(flow) for flow in recording.flows}, "eval": summary.get("eval"), "steps": summary.get("steps"),
            "bytes_up": summary.get("bytes_up"), "bytes_down": summary.get("bytes_down")}  # fmt: skip


# ---- Output ----


def _write(folder: pathlib.Path, result: Row, shown: "List[page.Figure]") -> None:
    def replace(name: str, content: str) -> None:
        temporary = folder / f"{name}.part"
        temporary.write_text(content, encoding="utf-8")
        os.replace(temporary, folder / name)

    replace("audit.json", json.dumps(result, indent=2) + "\n")
    temporary = folder / "audit.csv.part"
    with open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(result["rows"])
    os.replace(temporary, folder / "audit.csv")
    replace("index.html", page.render(result, shown))


def _show(done: int, total: int, what: str) -> None:
    filled = 24 * done // max(1, total)
    sys.stderr.write(f"\r\x1b[K{'█' * filled}{'░' * (24 - filled)} {done} of {total}  {what}")
    sys.stderr.flush()
