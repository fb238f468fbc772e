"""Measures the time between training steps: small_cnn and MobileNetV2 are trained on image files over loopback, for four epochs without
evaluation, once with computation and once with waiting instead.

Both sides record the time from a step's last backward to the next step's first forward
(between_seconds in steps.csv). On the client, this includes the wait for BodyDone, Decide, Update, metrics, writing the step's row,
progress, and taking the next batch. The wait for BodyDone is part of the pipeline flush and cannot be measured separately, so the reported
share is an upper bound. The server waits for the client between steps; its own work, Update and its row, is hidden if it is shorter than
one HeadForward. Called by scripts/bench.sh between."""

import argparse
import csv
import glob
import statistics
import subprocess
import tempfile

from codec_step import Loopback, running_server, sleeping
from machine import Others, conclude
from made_data import cifar_data, idx_data
from pipeline import MODELS

TARGET = 0.02  # share of a step
EPOCHS = 4
MAKE_DATA = {"mobilenet_v2": cifar_data, "small_cnn": idx_data}


def steps_of(path):
    """The training steps that follow another training step, except the first of them."""
    with open(path, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["between_seconds"]][1:]
    keys = ["epoch", "seconds", "between_seconds", "update_seconds", "head_forward_seconds"]
    return [{key: float(row[key] or 0) for key in keys} for row in rows]


def measure(options, name, wait):
    model = MODELS[name]
    with tempfile.TemporaryDirectory() as folder, running_server(options, Loopback(), folder) as address:
        settings = {"data": MAKE_DATA[name](folder, model["batch"] * options.steps // EPOCHS), "train.epochs": EPOCHS,
                    "codec": options.codec, "metrics.error_every": 0}
        subprocess.run(
            [f"{options.programs}/cleave-client", "train", "--config", model["config"], "--server", address, "--run-dir",
             f"{folder}/client", "--log-level", "error", "--json", *(sleeping(name, wait) if wait else []),
             *[argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")]],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        client = steps_of(f"{folder}/client/steps.csv")
        server = steps_of(glob.glob(f"{folder}/store/local/*/steps.csv")[0])
    of = lambda rows, key: [row[key] for row in rows]
    firsts = [row for before, row in zip(client, client[1:]) if row["epoch"] != before["epoch"]]
    median = statistics.median
    shares = [row["between_seconds"] / row["seconds"] for row in client]
    return {"model": name, "waits": bool(wait), "steps": len(client), "step": median(of(client, "seconds")),
            "between": median(of(client, "between_seconds")), "least": min(of(client, "between_seconds")),
            "epochs_first": median(of(firsts, "between_seconds")), "update": median(of(client, "update_seconds")),
            "share": median(shares), "mean_share": sum(of(client, "between_seconds")) / sum(of(client, "seconds")),
            "reached": median(shares) <= TARGET, "head_forward": median(of(client, "head_forward_seconds")) / model["micro_batches"],
            "server_between": median(of(server, "between_seconds")), "server_update": median(of(server, "update_seconds"))}


def print_result(result):
    ms = lambda key: 1e3 * result[key]
    print(f"{result['model']:<14}{'waits' if result['waits'] else 'computes':<10}{result['steps']:>6}{ms('step'):>9.2f}{ms('between'):>9.3f}"
          f"{ms('least'):>8.3f}{ms('epochs_first'):>9.3f}{ms('update'):>8.3f}{100 * result['share']:>9.2f} %"
          f"{100 * result['mean_share']:>7.2f} %{ms('server_between'):>9.2f}{ms('server_update'):>8.3f}{ms('head_forward'):>9.2f}"
          f"{'yes' if result['reached'] else 'no':>8}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--model", choices=list(MODELS), action="append", help="only this model; repeatable")
    parser.add_argument("--only", choices=["computes", "waits"], help="only with computation, or only with waiting")
    parser.add_argument("--steps", type=int, default=80, help="steps in total, over four epochs")
    parser.add_argument("--codec", default="none")
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()

    others = Others()
    print(f"{'':<39}{'client, between two steps':>34}{'share of a step':>20}{'server:':>9}{'its':>8}{'one Head':>9}")
    print(f"{'ms; medians':<24}{'steps':>6}{'step':>9}{'':>9}{'min':>8}{'epochs':>9}{'Update':>8}{'median':>11}{'mean':>9}{'between':>9}"
          f"{'Update':>8}{'Forward':>9}{'<= 2 %':>8}")
    results = []
    for name in options.model or MODELS:
        for mode, wait in (("computes", None), ("waits", MODELS[name]["wait"])):
            if options.only in (None, mode):
                results.append(measure(options, name, wait))
                print_result(results[-1])
    conclude(others.share(), results, options.json, load=True)


if __name__ == "__main__":
    main()
