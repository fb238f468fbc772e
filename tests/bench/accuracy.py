"""Measures accuracy by codec: small_cnn on Fashion-MNIST, split at two cuts between client and server, with the codec on all four flows.

Trains on 50,000 images and evaluates on the 10,000 held out, for several seeds. Prints a table and
writes the figures as JSON. Ctrl-C prints the results so far. Called by scripts/bench.sh
accuracy."""

import argparse
import collections
import concurrent.futures
import csv
import json
import os
import statistics
import subprocess
import tempfile
import threading
import time

CODECS = ["none", "uniform:bits=8", "uniform:bits=4", "uniform:bits=2", "sort:q=6,s=2", "sort:q=3,s=1",
          "block:bits=8", "block:bits=4", "block:bits=2", "topk:ratio=0.5", "topk:ratio=0.1", "power",
          "kmeans:bits=4,iterations=20"]
# power sends flat samples raw, so its second cut is before the model's Flatten. The ranks are the lowest possible ones.
POWER = ["--set", "model.cuts=[4, 12]", "--set", "codec={activation/0: 'power:rank=2', gradient/0: 'power:rank=2', "
         "activation/1: 'power:rank=1', gradient/1: 'power:rank=1'}"]


class Training:
    """The runs of one invocation, each with its own folder in `folder`."""

    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.stopped = threading.Event()

    def run(self, codec, seed):
        """Returns the top-1 accuracy on the held-out images in %, and the raw and wire bytes per training step; or the reason why the run
        failed."""
        if self.stopped.is_set():
            return {"failed": "interrupted"}
        options = self.options
        settings = {"data.holdout": options.holdout, "data.holdout_from": "end", "train.epochs": options.epochs, "train.max_steps": options.steps,
                    "run.seed": seed, "eval.every": options.epochs, "metrics.error_every": 0,
                    "threads.client": 1, "threads.server": 1}
        folder = os.path.join(self.folder, f"{codec.replace('/', '_')}-{seed}")
        arguments = [f"{options.programs}/cleave-client", "train", "--config", options.config]
        for key, value in settings.items():
            arguments += ["--set", f"{key}={value}"]
        arguments += POWER if codec == "power" else ["--set", f"codec={codec}"]
        started = time.monotonic()
        done = subprocess.run([*arguments, "--run-dir", folder, "--log-level", "error", "--json"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            return {"failed": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"}
        seconds = time.monotonic() - started
        with open(os.path.join(folder, "epochs.csv"), newline="") as file:
            rows = list(csv.DictReader(file))
        with open(os.path.join(folder, "steps.csv"), newline="") as file:
            train = [row for row in csv.DictReader(file) if row["phase"] == "train"]
        total = lambda what: sum(int(row[f"{what}_{way}_bytes"] or 0) for row in train for way in ("up", "down"))
        return {"top1": 100 * float(rows[-1]["eval_top1"]), "raw_bytes": total("raw") / len(train),
                "wire_bytes": total("wire") / len(train), "steps": len(train), "seconds": seconds}


def show(results, options):
    reference = [run["top1"] for run in results.get("none", {}).values() if "top1" in run]
    print(f"{options.config}, held out {options.holdout}, {options.epochs} epoch(s)"
          + (f", at most {options.steps} steps" if options.steps else "") + f", {options.jobs} run(s) at once, "
          f"load {os.getloadavg()[0]:.1f} at the end; top-1 in %, spread: standard deviation")
    print(f"{'codec, on all four flows':<30}{'seeds':>6}{'mean':>8}{'spread':>8}{'- none':>8}{'kB/step':>11}{'ratio':>8}{'s/run':>9}")
    for codec, runs in results.items():
        good = [run for run in runs.values() if "top1" in run]
        for seed, run in runs.items():
            if "failed" in run and run["failed"] != "interrupted":
                print(f"{codec:<30} seed {seed}: {run['failed']}")
        if not good:
            continue
        top1 = [run["top1"] for run in good]
        mean = statistics.fmean(top1)
        spread = f"{statistics.stdev(top1):.2f}" if len(top1) > 1 else "-"
        behind = f"{mean - statistics.fmean(reference):+.2f}" if reference else "-"
        raw, wire, seconds = (statistics.fmean(run[what] for run in good) for what in ("raw_bytes", "wire_bytes", "seconds"))
        print(f"{codec:<30}{len(good):>6}{mean:>8.2f}{spread:>8}{behind:>8}{wire / 1e3:>11.1f}{wire / raw:>8.4f}{seconds:>9.0f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--config", default="configs/fashion_mnist.yaml")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 1…N for each codec")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=0, help="maximum steps per run; 0: all of the epochs")
    parser.add_argument("--holdout", type=int, default=10000, help="training images kept for evaluation; 0: the test set")
    parser.add_argument("--jobs", type=int, default=max(1, len(os.sched_getaffinity(0)) // 2), help="concurrent runs, with two threads each")
    parser.add_argument("--only", nargs="+", metavar="CODEC", default=CODECS, help="only these codecs, instead of the default list")
    parser.add_argument("--json", help="writes the figures to this file, after each run")
    options = parser.parse_args()

    results = collections.defaultdict(dict)  # codec -> seed -> Training.run
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        training = Training(options, folder)
        runs = {pool.submit(training.run, codec, seed): (codec, seed)
                for codec in options.only for seed in range(1, options.seeds + 1)}
        try:
            for run in concurrent.futures.as_completed(runs):
                codec, seed = runs[run]
                results[codec][seed] = run.result()
                if options.json:
                    with open(options.json, "w") as file:
                        json.dump({"epochs": options.epochs, "steps": options.steps, "holdout": options.holdout,
                                   "runs": results}, file, indent=2)
        except KeyboardInterrupt:
            training.stopped.set()
    show({codec: results[codec] for codec in options.only if codec in results}, options)


if __name__ == "__main__":
    main()
