#!/usr/bin/env python3
"""Runs an experiment of docs/results.md with all its codecs and seeds, and prints its table.

    python3 configs/experiments/results.py efficientnet
    python3 configs/experiments/results.py reviews --jobs 2

Run it in the repository's root, after a build and `pip install ./python`. If interrupted, rerun the same command to resume. Data and
models are written to experiments/, the runs to sweeps/. The step times at 100 Mbit/s are measured last, one run at a time, and are
meaningful only if nothing else runs on the machine meanwhile.
"""

import argparse
import concurrent.futures
import csv
import os
import subprocess
import sys

PREPARE = {
    "efficientnet/model.pt2": ["efficientnet.py", "--output", "experiments/efficientnet"],
    "efficientnet/scratch.pt2": ["efficientnet.py", "--output", "experiments/efficientnet", "--from-scratch"],
    "reviews/model.pt2": ["reviews.py", "--output", "experiments/reviews"],
}
SORT = {bits: f"sort:q={q},s={s},select=exact" for bits, q, s in ((16, 12, 4), (12, 9, 3), (8, 6, 2), (4, 3, 1), ("1:1", 4, 4))}
HEADLINE = ["none", SORT[8], "block:bits=4"]
POWER = "{activation/0: power:rank=3, activation/1: power:rank=7, gradient/1: power:rank=7, gradient/0: power:rank=3}"
VISION = [SORT[16], SORT[12], SORT[4], SORT["1:1"], "fast:q=6,s=2,boundaries=first", "fast:q=6,s=2,boundaries=all", "uniform:bits=16",
          "uniform:bits=8", "uniform:bits=4", "topk:ratio=0.5", "topk:ratio=0.2", "topk:ratio=0.1", "kmeans:bits=4", "svd:rank=3", POWER,
          "block:bits=8", "block:bits=2"]
TEXT = [SORT[16], SORT[12], SORT[4], "block:bits=8", "block:bits=2", "kmeans:bits=6", "power:rank=8", "svd:rank=8", "uniform:bits=8",
        "uniform:bits=6"]

# Per experiment: rows of the table with the same name and settings. A sweep's folder is its name, and "-more" for codecs without `none`.
THREE, ONE = (1, 2, 3), (1,)
SWEEPS = {
    "efficientnet": [
        ("f1l1", {}, VISION, ONE),
        ("f1l1", {}, HEADLINE, THREE),
        ("f2l2", {"model.cuts": "[net._blocks.0, net._blocks.15]"}, HEADLINE, THREE),
        ("f4l3", {"model.cuts": "[net._blocks.2, net._blocks.14]"}, HEADLINE, THREE),
        ("from scratch", {"model.file": "experiments/efficientnet/scratch.pt2"}, ["none", "uniform:bits=16", "topk:ratio=0.5"], THREE),
    ],
    "reviews": [
        ("f2l2", {}, HEADLINE, THREE),
        ("f2l2", {}, TEXT, THREE),
        ("f1l1", {"model.cuts": "[bert.embeddings, bert.encoder.layer.5]"}, HEADLINE, THREE),
        ("LoRA", {"model.lora.rank": "8", "model.lora.alpha": "16", "model.lora.targets": "[query, value]",
                  "train.freeze": "['!classifier.*']", "train.learning_rate.peak": "1.0e-3"}, ["none"], THREE),
        ("bf16", {"precision.client": "bf16", "precision.server": "bf16"}, ["none"], THREE),
        # A processor without fp16 arithmetic takes about 12 times as long.
        ("fp16", {"precision.client": "fp16", "precision.server": "fp16"}, ["none"], ONE),
        ("fp16, loss not scaled", {"precision.client": "fp16", "precision.server": "fp16", "precision.scale_loss": "false"}, ["none"], ONE),
    ],
}
METRIC = {"efficientnet": "top1", "reviews": "metric"}


def prepare(experiment):
    for file, (script, *arguments) in PREPARE.items():
        if file.startswith(experiment + "/") and not os.path.exists(os.path.join("experiments", file)):
            subprocess.run([sys.executable, os.path.join("configs/experiments", script), *arguments], check=True)


def folder(experiment, row, what):
    name, _, codecs, _ = row
    return os.path.join("sweeps", experiment, f"{what}-{name.replace(',', '').replace(' ', '-')}{'' if 'none' in codecs else '-more'}")


def sweep(program, experiment, row, what, more):
    """Runs or resumes one sweep, and returns its exit code."""
    name, settings, codecs, seeds = row
    command = [program, "sweep", "--config", f"configs/experiments/{experiment}.yaml", "--folder", folder(experiment, row, what)]
    for key, value in {"threads.client": "1", "threads.server": "1", **settings, **more}.items():
        command += ["--set", f"{key}={value}"]
    for seed in seeds if what == "accuracy" else ONE:
        command += ["--grid", f"run.seed={seed}"]
    for codec in codecs:
        command += ["--grid", f"codec={codec}"]
    if what == "speed":
        command += ["--grid", "link.rate=100Mbit/s"]
    with open(os.path.join("sweeps", experiment, "log.txt"), "a", encoding="utf-8") as log:
        return subprocess.run(command, stdout=log, stderr=log).returncode


def groups(experiment, row, what):
    """The rows of a sweep's groups.csv by codec; empty if the sweep has not run."""
    file = os.path.join(folder(experiment, row, what), "groups.csv")
    if not os.path.exists(file):
        return {}
    with open(file, encoding="utf-8", newline="") as text:
        return {each["codec"]: each for each in csv.DictReader(text) if int(each["seeds"]) > 0}


def markdown(lines):
    """A table in Markdown; the first line is its head."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |"
                     for line in [lines[0], ["-" * width for width in widths], *lines[1:]])


def table(experiment, rows):
    metric = METRIC[experiment]
    title = {"top1": "Accuracy", "metric": "Matthews"}[metric]
    lines = [["Rows", "Codec", "Bytes, share of fp32", title, "Std", "Seeds", "Step at 100 Mbit/s"]]
    for row in rows:
        speeds = groups(experiment, row, "speed")
        for codec, each in groups(experiment, row, "accuracy").items():
            seconds = speeds.get(codec, {}).get("step_seconds")
            spread = each[metric + "_std"]
            lines.append([row[0], f"`{codec}`", f"{float(each['ratio']):.3f}", f"{float(each[metric]):.4f}",
                          f"{float(spread):.4f}" if spread else "", each["seeds"], f"{float(seconds):.3f} s" if seconds else ""])
    return markdown(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", choices=SWEEPS)
    parser.add_argument("--programs", default="build/release/bin", help="folder of cleave-client; default: build/release/bin")
    parser.add_argument("--jobs", type=int, default=1, help="sweeps at the same time, each with one thread per side; default: 1")
    parser.add_argument("--table", action="store_true", help="only print the table of the runs that are done")
    parser.add_argument("--only", action="append", help="only the rows of this name, such as LoRA; repeatable; default: all")
    parser.add_argument("--no-speed", action="store_true", help="do not measure the step times")
    options = parser.parse_args()
    program = os.path.join(options.programs, "cleave-client")
    names = list(dict.fromkeys(row[0] for row in SWEEPS[options.experiment]))
    for name in options.only or []:
        if name not in names:
            parser.error(f"--only: {options.experiment} has no rows '{name}'; choose from {', '.join(names)}")
    rows = [row for row in SWEEPS[options.experiment] if options.only is None or row[0] in options.only]
    codes = []
    if not options.table:
        os.makedirs(os.path.join("sweeps", options.experiment), exist_ok=True)
        prepare(options.experiment)
        pool = concurrent.futures.ThreadPoolExecutor(options.jobs)
        try:
            codes += pool.map(lambda row: sweep(program, options.experiment, row, "accuracy", {}), rows)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)  # the sweeps under way have received the signal too
            sys.exit("interrupted; rerun the same command to resume")
        if not options.no_speed:
            short = {"train.max_steps": "12", "eval.every": "0", "keep": "{}"}
            codes += [sweep(program, options.experiment, row, "speed", short) for row in rows]
    print(table(options.experiment, rows))
    if any(codes):
        sys.exit(f"some runs failed or were interrupted: see sweeps/{options.experiment}/log.txt")


if __name__ == "__main__":
    main()
