"""A run's folder: its tables, its models, and what can be done with them."""

from __future__ import annotations

import html
import io
import json
import os
import pathlib
import re
import tempfile
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Union

from cleave_split import programs
from cleave_split.errors import Error
from cleave_split.programs import Path, Servers, connection_options, set_options
from cleave_split.tables import last_rows, pandas_module, table

if TYPE_CHECKING:
    import pandas
    import torch

    from cleave_split.training import Observer


class Run:
    """A run, in progress or ended. docs/metrics.md describes its files and every column."""

    def __init__(self, path: Path):
        """path: the run's folder, or its ID, for a folder in runs/."""
        folder = pathlib.Path(path)
        self.path = folder if folder.is_dir() or len(folder.parts) > 1 else pathlib.Path("runs") / folder
        """The run's folder."""
        if not (self.path / "config.yaml").exists():
            raise Error("no-run", f"{self.path} is not a run: it has no config.yaml", "give the folder that train() printed, such as runs/photos-1f3a")

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    # ---- what it has recorded ----

    @property
    def steps(self) -> pandas.DataFrame:
        """steps.csv: a row per batch of training and evaluation. Of a step that was computed again, only the last row."""
        rows = self.rows("steps")
        rows = last_rows(rows[rows["phase"].isin(["train", "eval"])], ["phase", "step"])
        return rows.astype(dict.fromkeys(("step", "epoch", "samples", "micro_batches"), "int64"))

    @property
    def epochs(self) -> pandas.DataFrame:
        """epochs.csv: a row per epoch. Of an epoch that was continued, only the last row."""
        return last_rows(self.rows("epochs"), ["epoch"])

    @property
    def transfers(self) -> pandas.DataFrame:
        """transfers.csv: a row per tensor. Of a tensor that was sent again, only the rows of the last connection."""
        rows = self.rows("transfers")
        key = ["phase", "step", "micro_batch", "flow", "role"]
        is_last = rows["generation"] == rows.groupby(key, dropna=False)["generation"].transform("max")
        return rows[is_last | (rows["step"] == 0)].reset_index(drop=True)  # step 0: the model's own transfers

    def rows(self, name: str) -> pandas.DataFrame:
        """All rows of a table ("steps", "epochs", "transfers"), with those of lost steps: what was spent. Rotated files are joined."""
        return table(self.path, name)

    @property
    def summary(self) -> Dict[str, Any]:
        """summary.json; empty until the run is done."""
        file = self.path / "summary.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}

    # ---- what can be done with it ----

    def resume(self, epochs: Optional[int] = None, *, settings: Optional[Mapping[str, Any]] = None,
               server: Servers = None, tls: Optional[Path] = None, from_start: bool = False,
               allow_inexact: bool = False, take_over: bool = False, on_progress: Union[Observer, Sequence[Observer], None] = None,
               bar: bool = True) -> Run:  # fmt: skip
        """Continues the run from its newest checkpoint; with `epochs`, until it has this many. Returns this run.

        settings       changes values that a run may change: docs/reliability.md
        from_start     starts over from step 0
        allow_inexact  continues on another processor, device, PyTorch or number of threads; the results may then not be bit-identical
        take_over      continues a folder restored from a backup
        The rest is as for train().
        """
        from cleave_split.training import follow

        changes = {**(settings or {}), **({} if epochs is None else {"train.epochs": epochs})}
        flags = {"--from-start": from_start, "--allow-inexact": allow_inexact, "--take-over": take_over}
        return follow(["--resume", str(self.path), *connection_options(server, tls), *set_options(changes),
                       *(flag for flag, is_set in flags.items() if is_set)], on_progress, bar)  # fmt: skip

    def evaluate(self, *, best: bool = False, settings: Optional[Mapping[str, Any]] = None,
                 server: Servers = None, tls: Optional[Path] = None) -> Dict[str, Any]:  # fmt: skip
        """Evaluates the model on the test set, as `cleave-client eval` does: loss, metrics, per class, confusion matrix.

        best      the model that `keep.best` kept, instead of the last one
        settings  such as {"data.test.folder": "other-photos/"}
        """
        return programs.run_json("cleave-client", "eval", str(self.path), *_best(best), *set_options(settings), *connection_options(server, tls))

    def predict(self, data: Any = None, *, best: bool = False, raw: bool = False, settings: Optional[Mapping[str, Any]] = None) -> pandas.DataFrame:
        """The model's predictions, a row per sample: `sample`, `class`, `probability`, `p CLASS`…, or the outputs (docs/take_home.md).

        data  files or folders in the data format of the run, without labels; a DataFrame with the columns of its tables; an array with the
              samples in the first dimension, or a dict of arrays by name; None: the test set
        best  the model that `keep.best` kept, instead of the last one
        raw   the model's outputs with all digits instead of classes and probabilities
        """
        pandas = pandas_module()
        with tempfile.TemporaryDirectory(prefix="cleave-") as folder:
            inputs = [word for path in self._input_files(data, folder) for word in ("--input", path)]
            output = os.path.join(folder, "predictions.csv")
            programs.run_json("cleave-client", "predict", str(self.path), *_best(best), *(["--raw"] if raw else []), *set_options(settings), *inputs,
                         "--output", output)  # fmt: skip
            with open(output, "rb") as file:
                return pandas.read_csv(io.BytesIO(file.read()), dtype={"sample": str, "class": str})

    def load(self, model: torch.nn.Module, *, best: bool = False) -> torch.nn.Module:
        """Loads the trained weights into `model`, with strict=True, and returns it. Adapters (LoRA) are merged into their layers.

        best  the model that `keep.best` kept, instead of the last one
        A model with learned inserts needs cleave_split.add_inserts: docs/take_home.md.
        """
        from cleave_split.safetensors_file import read_safetensors

        with tempfile.TemporaryDirectory(prefix="cleave-") as folder:
            file = os.path.join(folder, "model.safetensors")
            programs.run_json("cleave-client", "export", str(self.path), *_best(best), "--output", file)
            model.load_state_dict(read_safetensors(file), strict=True)
        return model

    def report(self) -> Page:
        """Writes report.html, the page with the run's charts, and returns it: a notebook shows it."""
        programs.run("cleave-client", "report", str(self.path), "--log-level", "warn")
        return Page(self.path / "report.html")

    # ---- inputs of predict ----

    def _input_files(self, data: Any, folder: str) -> List[str]:
        if data is None:
            return []
        if isinstance(data, (str, os.PathLike)):
            return [os.fspath(data)]
        if hasattr(data, "to_csv"):
            return [self._table_file(data, folder)]
        if isinstance(data, (list, tuple)) and data and all(isinstance(each, (str, os.PathLike)) for each in data):
            return [os.fspath(each) for each in data]
        from cleave_split.datasets import save_dataset

        arrays = dict(data) if isinstance(data, Mapping) else {"x": data}
        return [save_dataset({"arrays": arrays}, folder)["arrays"]]

    def _table_file(self, frame: pandas.DataFrame, folder: str) -> str:
        """A DataFrame as a CSV file. Paths in a list of images are relative to the list's folder, hence made absolute."""
        if self._data_format() == "list" and "path" in frame:
            frame = frame.assign(path=[os.path.abspath(path) for path in frame["path"]])
        file = os.path.join(folder, "table.csv")
        frame.to_csv(file, index=False)
        return file

    def _data_format(self) -> str:
        """`data.format` in config.yaml, which the client has written."""
        found = re.search(r"^data:\n(?:  .*\n)*?  format: (\w+)$", (self.path / "config.yaml").read_text(encoding="utf-8"), re.M)
        return found[1] if found else ""


class Page:
    """An HTML file, which a notebook shows inline."""

    HEIGHT_PIXELS = 900

    def __init__(self, path: pathlib.Path):
        self.path = path

    def __repr__(self) -> str:
        return f"Page({str(self.path)!r})"

    def _repr_html_(self) -> str:
        text = html.escape(self.path.read_text(encoding="utf-8"))
        return f'<iframe srcdoc="{text}" style="width: 100%; height: {self.HEIGHT_PIXELS}px; border: 0"></iframe>'


def _best(best: bool) -> List[str]:
    return ["--best"] if best else []
