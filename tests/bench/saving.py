"""Measures what saving the model after each epoch costs per step: trains once with a server that allows clients to fetch the body's
weights, and once with one that does not, in alternating order. Both sides wait instead of computing: 5 ms per action. The emulated
link has the same rate in both directions; a model is saved as often as it can be fetched, so that the body is being sent over the link
nearly all the time. Called by scripts/bench.sh saving."""

import argparse
import contextlib
import csv
import statistics
import subprocess
import tempfile

from codec_auto import EmulatedLink
from codec_step import Loopback, running_server, sleeping
from machine import Others, conclude

TARGET = 1.05
WIDTH = 1024          # width of the model, whose body has 4.2 MB
LINKS = [1, 10, 100]  # Mbit/s
UNCOUNTED = 5         # number of first steps of a run that are not counted


def train(options, address, folder):
    """Seconds of the run's steps, with the pause before each."""
    times = {part: 5 for part in ("F1", "T3", "B1", "F2", "B2")}
    subprocess.run(
        [f"{options.programs}/cleave-client", "train", "--config", options.config, "--server", address, "--run-dir", folder, "--quiet",
         "--set", f"model.width={WIDTH}", "--set", "data.train.size=640", "--set", "train.epochs=1000", "--set", f"train.max_steps={options.steps}",
         "--set", "eval.every=0", *sleeping("mlp", times), "--set", "codec=block:bits=8", "--set", "threads={client: 1, server: 1}"],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(f"{folder}/steps.csv") as file:
        steps = [float(row["seconds"]) + float(row["between_seconds"] or 0) for row in csv.DictReader(file) if row["phase"] == "train"]
    with open(f"{folder}/transfers.csv") as file:
        saved = sum(row["flow"] == "weights/body" for row in csv.DictReader(file))
    return {"step": statistics.mean(steps[UNCOUNTED:]), "longest": max(steps[UNCOUNTED:]), "saved": saved}


def measure(options, megabits):
    runs = {"kept": [], "saved": []}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        address = {}
        for name, allowed in (("kept", "false"), ("saved", "true")):
            server = stack.enter_context(running_server(options, Loopback(), f"{folder}/{name}", ["--set", f"weights.fetch={allowed}"]))
            address[name] = stack.enter_context(EmulatedLink(megabits).between(options, server))
        for round in range(options.rounds):
            for name in sorted(runs, reverse=round % 2 == 1):
                runs[name].append(train(options, address[name], f"{folder}/{name}-{round}"))
    means = {name: statistics.median(run["step"] for run in all_runs) for name, all_runs in runs.items()}
    ratio = means["saved"] / means["kept"]
    return {"megabits": megabits, "steps": means, "ratio": ratio, "models": statistics.median(run["saved"] for run in runs["saved"]),
            "longest": {name: statistics.median(run["longest"] for run in all_runs) for name, all_runs in runs.items()},
            "target": TARGET, "reached": ratio <= TARGET}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--config", default="configs/synthetic.yaml")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60, help="steps per run")
    parser.add_argument("--rate", type=float, action="append", metavar="MBITS", help="only these links (1, 10 and 100 Mbit/s)")
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()
    others = Others()
    results = []
    print(f"mlp of width {WIDTH}, 20 steps per epoch, both sides waiting 5 ms per action; {options.rounds} runs of {options.steps} steps each; "
          "medians of a run's mean step and of its longest, in ms")
    print(f"{'link, Mbit/s':<14}{'not saved':>11}{'saved':>9}{'ratio':>8}{'at most':>9}{'reached':>9}{'longest':>10}{'longest, saved':>16}{'models saved':>14}")
    for megabits in options.rate or LINKS:
        row = measure(options, megabits)
        results.append(row)
        print(f"{megabits:<14g}{1e3 * row['steps']['kept']:>11.1f}{1e3 * row['steps']['saved']:>9.1f}{row['ratio']:>8.3f}{TARGET:>9.2f}"
              f"{'yes' if row['reached'] else 'no':>9}{1e3 * row['longest']['kept']:>10.1f}{1e3 * row['longest']['saved']:>16.1f}{row['models']:>14.0f}", flush=True)
    conclude(others.share(), results, options.json)


if __name__ == "__main__":
    main()
