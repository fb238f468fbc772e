"""Compares the demo's split training with the same model in one process on the same cores, in
interleaved rounds.

Prints a table and writes the figures as JSON. Called by scripts/bench.sh split."""

import argparse
import csv
import json
import os
import statistics
import subprocess
import tempfile

COMPUTE = ["head_forward_seconds", "tail_step_seconds", "head_backward_seconds", "update_seconds"]
BODY = ["body_forward_seconds", "body_backward_seconds"]


def run(arguments):
    done = subprocess.run(arguments, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def step_means(folder):
    """The mean seconds per step at the client, at the server, and from step to step, without the first ten steps."""
    with open(os.path.join(folder, "steps.csv"), newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["phase"] == "train"][10:]
    mean = lambda columns: statistics.fmean(sum(float(row[c] or 0) for c in columns) for row in rows)
    return mean(COMPUTE), mean(BODY), mean(["seconds"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--config", default="configs/fashion_mnist.yaml")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    common = ["--config", options.config, "--set", f"train.max_steps={options.steps}", "--set", "codec=none",
              "--set", "train.schedule=priority"]

    split, whole, times = [], {1: [], cores: []}, []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            run_folder = os.path.join(folder, str(number))
            result = run([f"{options.programs}/cleave-client", "train", *common, "--set", "eval.every=0",
                          "--run-dir", run_folder, "--log-level", "warn", "--json"])
            split.append(result["images_per_second"])
            times.append(step_means(run_folder))
            for threads in whole:
                result = run([f"{options.programs}/bench_whole", *common, "--threads", str(threads)])
                whole[threads].append(result["images_per_second"])

    median = statistics.median
    client, server, step = (median(column) * 1e3 for column in zip(*times))
    print(f"{options.config}, {options.steps} steps per round, {options.rounds} rounds, medians, {cores} cores")
    print(f"{'':<44}{'images/s':>10}{'ratio':>8}")
    print(f"{'split: client 1/2, server 1/2 of the cores':<44}{median(split):>10.0f}{1:>8.2f}")
    for threads, values in whole.items():
        print(f"{f'whole in one process, {threads} thread(s)':<44}{median(values):>10.0f}{median(split) / median(values):>8.2f}")
    print(f"a step of the split: {step:.2f} ms; client computes {client:.2f} ms, server {server:.2f} ms; "
          f"the busier one is idle for {100 * (1 - max(client, server) / step):.0f} % of it")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"split": split, "whole": whole, "step_ms": step, "client_ms": client, "server_ms": server,
                       "cores": cores}, file, indent=2)


if __name__ == "__main__":
    main()
