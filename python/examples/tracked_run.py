"""Reads a run of Cleave for experiment trackers: from its folder, or from `cleave-client train --json-lines`.

docs/metrics.md defines the files and events; docs/tracking.md shows how to use this.
"""

import csv
import glob
import json
import os
import re

import yaml

ARTIFACTS = ("model.safetensors", "model.best.safetensors", "adapter", "adapter.best", "config.yaml", "summary.json", "report.html")


def parameters(folder):
    """The configuration as {"train.batch": 64, …}."""

    def flat(node, path):
        if not isinstance(node, dict):
            return {path: node}
        return {key: value for name, child in node.items() for key, value in flat(child, f"{path}.{name}" if path else name).items()}

    with open(os.path.join(folder, "config.yaml")) as file:
        return flat(yaml.safe_load(file), "")


def artifacts(folder):
    """The paths of the result's files and folders that the run has."""
    paths = [os.path.join(folder, name) for name in ARTIFACTS]
    return [path for path in paths if os.path.exists(path)]


def table(folder, name):
    """The rows of steps.csv or epochs.csv, with the parts of a rotated table in order."""
    parts = glob.glob(os.path.join(folder, f"{name}.*.csv"))
    parts.sort(key=lambda path: int(re.search(r"\.(\d+)\.csv$", path)[1]))
    for path in [*parts, os.path.join(folder, f"{name}.csv")]:
        with open(path, newline="") as file:
            yield from csv.DictReader(line for line in file if line.endswith("\n"))  # skips an incomplete last line


def numbers(row, leave_out=()):
    """The figures of a row or an event."""
    figures = {}
    for key, value in row.items():
        if key in leave_out or value in ("", None):
            continue
        try:
            figures[key] = float(value)
        except (TypeError, ValueError):  # not a number
            pass
    return figures


PLACE = ("step", "steps", "epochs", "session", "generation", "exit_code")


def from_folder(folder):
    """The events of a run, read from its files. If a step was repeated, its last row counts."""
    yield "begin", 0, folder
    steps = {int(row["step"]): row for row in table(folder, "steps") if row["phase"] == "train"}
    epochs = {int(row["epoch"]): row for row in table(folder, "epochs")}
    for step in sorted(steps):
        yield "step", step, numbers(steps[step], PLACE)
    step = 0
    for epoch in sorted(epochs):
        step += int(epochs[epoch]["steps"])
        yield "epoch", step, numbers(epochs[epoch], PLACE)
    yield "done", step, folder


def from_lines(lines):
    """The events of a run that is in progress, from the lines of `--json-lines`."""
    folder, step = None, 0
    for line in lines:
        event = json.loads(line)
        kind = event.pop("event")
        if kind == "begin":
            folder = event["folder"]
            yield kind, 0, folder
        elif kind in ("step", "epoch"):
            step = event.get("step", step)
            yield kind, step, numbers(event, PLACE)
        elif folder is not None:
            yield kind, step, folder  # done or failed


def events(source, lines):
    """Yields (kind, step, content): content is the run's folder for "begin", "done" and "failed", and figures for "step" and "epoch".

    `source`: the run's folder, or "-" for `lines`.
    """
    return from_lines(lines) if source == "-" else from_folder(source)
