"""Reads what `cleave-client train --record-traffic` has written: docs/privacy.md describes the files."""

from __future__ import annotations

import csv
import json
import os
import pathlib
import struct
from typing import Dict, List, Optional, Sequence, Tuple, Union

import torch

from cleave_split.errors import Error
from cleave_split.safetensors_file import read_safetensors

_FORMAT = 1
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError, MemoryError, struct.error)


def _tensors(path: pathlib.Path, names: Optional[Sequence[str]] = None) -> Dict[str, torch.Tensor]:
    """The tensors of a recording's file. Throws Error "bad-recording"."""
    try:
        return read_safetensors(path, names)
    except FileNotFoundError as error:
        raise Error("bad-recording", f"{path} is missing", "record the run again, or copy the whole folder") from error
    except _DAMAGE as error:
        raise Error("bad-recording", f"{path} is damaged: {error}", "record the run again, or copy the whole file") from error


class Recording:
    """A recording's folder. Tensors of a flow are joined over batches: a row per occurrence of a sample, in the order of the steps."""

    def __init__(self, folder: Union[str, os.PathLike]):
        self.folder = pathlib.Path(folder)
        try:
            self.about = json.loads((self.folder / "recording.json").read_text(encoding="utf-8"))
            with open(self.folder / "index.csv", newline="", encoding="utf-8") as file:
                self.rows = [row for row in csv.DictReader(file) if row["codec"] is not None]
            format_, self.run = self.about["format"], self.about["run"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Error("bad-recording", f"{folder} is not a recording: {error}", "make one: cleave-client train --record-traffic DIR") from error
        if format_ != _FORMAT:
            raise Error("bad-recording", f"{folder} has the format {format_}, not {_FORMAT}", "install the version of this package with which it was recorded")
        if not self.rows:
            raise Error("bad-recording", f"{folder} has no complete batch", "record at least one training step")

    @property
    def flows(self) -> List[str]:
        """The names of the recorded flows, such as "activation/0"."""
        return sorted({row["flow"] for row in self.rows})

    def codec(self, flow: str) -> str:
        """The codec of the flow in its first recorded tensor. If its level was another than its own, the level follows in parentheses."""
        row = next(row for row in self.rows if row["flow"] == flow)
        return row["codec"] if row["codec_level"] == "own" else f"{row['codec']} ({row['codec_level']})"

    @property
    def has_inputs(self) -> bool:
        return bool(self.about.get("inputs"))

    def files(self, phase: str = "train") -> List[str]:
        """The names of the phase's files, in the order of their steps."""
        return sorted({row["file"] for row in self.rows if row["phase"] == phase})

    def read(self, flow: str, phase: str = "train") -> Tuple[torch.Tensor, torch.Tensor]:
        """The flow's tensor and the numbers of its samples in the data: a row per sample."""
        by_file: Dict[str, List[Tuple[int, str]]] = {}
        for row in self.rows:
            if row["flow"] == flow and row["phase"] == phase:
                by_file.setdefault(row["file"], []).append((int(row["micro_batch"]), row["tensor"]))
        tensors, numbers = [], []
        for name, parts in sorted(by_file.items()):
            wanted = [each for i, tensor in sorted(parts) for each in (tensor, f"samples:{i}")]
            stored = list(_tensors(self.folder / "traffic" / name, wanted).values())
            tensors += stored[::2]
            numbers += stored[1::2]
        if not tensors:
            raise Error("bad-recording", f"{self.folder} has no tensor of {flow} in the phase {phase}", f"choose one of {', '.join(self.flows)}")
        return torch.cat(tensors), torch.cat(numbers)

    def inputs(self, phase: str = "train") -> Tuple[Dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
        """The inputs by name, the targets, and the numbers of the samples, in the rows of read()."""
        if not self.has_inputs:
            raise Error("no-inputs", f"{self.folder} has no inputs to compare a reconstruction with", "record the run again with --record-inputs")
        batches = [_tensors(self.folder / "inputs" / name) for name in self.files(phase)]
        if not batches:
            raise Error("bad-recording", f"{self.folder} has no batch of the phase {phase}", "record at least one training step")
        joined = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
        numbers, target = joined.pop("samples"), joined.pop("target")
        return {name[len("input:"):]: value for name, value in joined.items()}, target, numbers
