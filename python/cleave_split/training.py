"""Trains with cleave-client, and reports each event as it happens."""

from __future__ import annotations

import json
import logging
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

from cleave_split.errors import Error, Interrupted, error_in, error_of
from cleave_split.programs import Config, ConfigFile, Path, Process, Servers, connection_options, set_options
from cleave_split.progress import ProgressBar
from cleave_split.runs import Run

Event = Dict[str, Any]
OnProgress = Callable[[Event], None]

log = logging.getLogger("cleave_split")


class Callback:
    """What to do during a run: override any of these, and pass an instance as `on_progress`.

    An exception that a method raises interrupts the run, which makes a checkpoint first, and is raised by train(). docs/python.md
    compares the methods with those of Lightning and Hugging Face; docs/metrics.md describes the events.
    """

    def on_begin(self, run: Run, event: Event) -> None:
        """Before the first step. The event has `folder`, `server`, `codec` and `steps`."""

    def on_step(self, run: Run, event: Event) -> None:
        """After each training step: `step`, `epoch`, `loss`, `learning_rate`, `seconds` and more."""

    def on_epoch(self, run: Run, event: Event) -> None:
        """After each epoch and its evaluation: `epoch`, `train_loss`, `eval_loss`, `eval_top1` and more."""

    def on_done(self, run: Run, event: Event) -> None:
        """At the end: the summary."""

    def on_failed(self, run: Optional[Run], event: Event) -> None:
        """At the end of a run that has failed or was interrupted: `code`, `sentence`, `hint`. `run` is None if it had not begun."""


Observer = Union[Callback, OnProgress]


def train(config: Config, *, server: Servers = None, tls: Optional[Path] = None,
          settings: Optional[Mapping[str, Any]] = None, run_dir: Optional[Path] = None,
          on_progress: Union[Observer, Sequence[Observer], None] = None, bar: bool = True) -> Run:  # fmt: skip
    """Trains a model, and returns its run when it is done.

    config       the path of a YAML file, or a dict such as {"model": {"name": "mlp"}, "data": {…}}: docs/configuration.md. Paths in it
                 are relative to the current folder.
    server       "HOST:PORT", a Server, or a list with one of these per body; None: the client starts a server of its own
    tls          the folder of the client's certificates; connects with TLS
    settings     replaces values of the configuration: {"train.epochs": 3, "codec": "block:bits=4"}
    run_dir      the run's folder, which must not exist; default: runs/<run id>
    on_progress  a function that receives each event as a dict, a Callback, or a list of these
    bar          shows a progress bar in a terminal or a notebook

    Raises Error, and Interrupted after Ctrl-C.

        run = cleave_split.train("photos.yaml", server="train.example.org:4800", tls="certs")
        run.epochs.plot(x="epoch", y="eval_top1")
    """
    with ConfigFile(config) as arguments:
        arguments += connection_options(server, tls) + set_options(settings)
        if run_dir is not None:
            arguments += ["--run-dir", str(run_dir)]
        return follow(arguments, on_progress, bar)


def follow(arguments: List[str], on_progress: Union[Observer, Sequence[Observer], None], bar: bool) -> Run:
    """Runs `cleave-client train` with these arguments, and passes its events on."""
    several: Sequence[Any] = on_progress if isinstance(on_progress, (list, tuple)) else [on_progress]
    observers: List[Observer] = [each for each in several if each is not None]
    if bar:
        observers.append(ProgressBar())
    process = Process("cleave-client", ["train", "--json-lines", "--quiet", *arguments])
    run: Optional[Run] = None
    last: Event = {}
    try:
        for line in process.lines():
            last = json.loads(line)
            if last["event"] == "begin":
                run = Run(last["folder"])
            _notify(observers, run, last)
        code = process.wait()
    except KeyboardInterrupt:
        process.interrupt()
        how = f"; to continue it: cleave_split.Run({str(run.path)!r}).resume()" if run else ""
        raise Interrupted(f"the run was interrupted{how}", run) from None
    except BaseException:
        process.interrupt()
        raise
    if last.get("event") == "done" and code == 0 and run is not None:
        return run
    raise error_of(last) if last.get("event") == "failed" else error_in(process.log_text(), code, "cleave-client")


def _notify(observers: Sequence[Observer], run: Optional[Run], event: Event) -> None:
    for observer in observers:
        if not isinstance(observer, Callback):
            observer(event)
        elif run is not None or event["event"] == "failed":
            getattr(observer, f"on_{event['event']}")(run, event)


__all__ = ["Callback", "Error", "train"]
