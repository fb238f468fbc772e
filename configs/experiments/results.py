#!/usr/bin/env python3
"""Runs an experiment of docs/results.md with all its codecs and seeds, and prints its table.

    python3 configs/experiments/results.py efficientnet
    python3 configs/experiments/results.py reviews --jobs 2
    python3 configs/experiments/results.py rte --server SERVER:4800 --set device=cuda
    python3 configs/experiments/results.py staleness

Run it in the repository's root, after a build and `pip install ./python` (staleness needs no Python package). The experiments rte and cola
need GLUE's files in data/glue. If interrupted, rerun the same command to resume. Data and models are written to experiments/, the runs to
sweeps/. The step times over an emulated link are measured last, one run at a time, and are meaningful only if nothing else runs on the
machine meanwhile.
"""

import argparse
import concurrent.futures
import csv
import itertools
import os
import statistics
import subprocess
import sys

# Per experiment, the files that it needs, and the scripts that make them.
GLUE = "data/glue"  # GLUE's tasks, as they are distributed
COLA = {"experiments/cola/model.pt2": ["glue.py", "--task", "cola", "--glue", f"{GLUE}/CoLA", "--output", "experiments/cola"]}
PREPARE = {
    "efficientnet": {
        "experiments/efficientnet/model.pt2": ["efficientnet.py", "--output", "experiments/efficientnet"],
        "experiments/efficientnet/scratch.pt2": ["efficientnet.py", "--output", "experiments/efficientnet", "--from-scratch"],
    },
    "reviews": {"experiments/reviews/model.pt2": ["reviews.py", "--output", "experiments/reviews"]},
    "rte": {"experiments/rte/model.pt2": ["glue.py", "--task", "rte", "--glue", f"{GLUE}/RTE", "--output", "experiments/rte"]},
    "cola": COLA,
    "cola_fairseq": COLA,
    "cola_lora": COLA,
    "staleness": {},
}
CONFIGS = {"staleness": "configs/fashion_mnist.yaml"}  # of the other experiments: configs/experiments/EXPERIMENT.yaml
# The link of the step times: its name, and its settings.
SLOW_LINK = ("100 Mbit/s", {"link.rate": "100Mbit/s"})
LINKS = {"staleness": ("1 Gbit/s, 50 ms", {"link.rate": "1Gbit/s", "link.latency": "50ms"})}
SORT = {bits: f"sort:q={q},s={s},select=exact" for bits, q, s in ((16, 12, 4), (12, 9, 3), (8, 6, 2), (4, 3, 1), ("1:1", 4, 4))}
HEADLINE = ["none", SORT[8], "block:bits=4"]
POWER = "{activation/0: power:rank=3, activation/1: power:rank=7, gradient/1: power:rank=7, gradient/0: power:rank=3}"
VISION = [SORT[16], SORT[12], SORT[4], SORT["1:1"], "fast:q=6,s=2,boundaries=first", "fast:q=6,s=2,boundaries=all", "uniform:bits=16",
          "uniform:bits=8", "uniform:bits=4", "topk:ratio=0.5", "topk:ratio=0.2", "topk:ratio=0.1", "kmeans:bits=4", "svd:rank=3", POWER,
          "block:bits=8", "block:bits=2"]
TEXT = [SORT[16], SORT[12], SORT[4], "block:bits=8", "block:bits=2", "kmeans:bits=6", "power:rank=8", "svd:rank=8", "uniform:bits=8",
        "uniform:bits=6"]

# The last cut only; the factors of rank 48, 32 and 16 of 128 x 768 values have 0.4375, 0.29 and 0.146 of the bytes.
KMEANS_LAST = "{activation/0: none, activation/1: kmeans:bits=6, gradient/1: kmeans:bits=6, gradient/0: none}"
RTE = ["none", SORT[16], SORT[12], SORT[8], SORT[4], "sort:q=4,s=2,select=exact", "uniform:bits=8", "uniform:bits=6", KMEANS_LAST, "svd:rank=128",
       "svd:rank=64", "svd:rank=48", "svd:rank=32", "power:rank=48", "power:rank=32", "power:rank=16"]  # fmt: skip
COLA_CODECS = ["none", SORT[16], SORT[12], SORT[8], SORT[4], "kmeans:bits=6", "power:rank=32", "power:rank=16", "topk:ratio=0.5", "uniform:bits=16",
               "uniform:bits=10", "uniform:bits=8"]  # fmt: skip
PARTITIONS = {
    "partition 2": {"model.cuts": "[roberta.encoder.layer.0.attention, roberta.encoder.layer.10]"},
    "partition 3": {"model.cuts": "[roberta.encoder.layer.0.attention, roberta.encoder.layer.11]"},
    "partition 4": {"model.cuts": "[roberta.encoder.layer.0, roberta.encoder.layer.11]"},
}
INSERT = {**PARTITIONS["partition 3"], "insert": "[{cut: 1, kind: linear, rank: 50}]"}


def precision(name, **more):
    return {"precision.client": name, "precision.server": name, **more}


THREE, ONE = (1, 2, 3), (1,)


def stale(steps, warmup, nesterov):
    """A sweep of the experiment staleness: the recipe of its configuration, with or without warm-up and Nesterov's momentum."""
    parts = [f"D = {steps}", *([] if warmup else ["no warm-up"]), *([] if nesterov else ["plain momentum"])]
    settings = {"train.staleness": str(steps), "train.optimizer.nesterov": str(int(nesterov)), **({} if warmup else {"train.learning_rate.warmup_epochs": "0"})}
    return ", ".join(parts), settings, ["none"], THREE


# Per experiment, its sweeps: (name of the table's rows, settings, codecs, seeds). Of two sweeps with the same name, one lacks the codec
# `none`; its folder ends in "-more".
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
        ("bf16", precision("bf16"), ["none"], THREE),
        # A processor without fp16 arithmetic takes about 12 times as long.
        ("fp16", precision("fp16"), ["none"], THREE),
        ("fp16, loss not scaled", precision("fp16", **{"precision.scale_loss": "false"}), ["none"], THREE),
    ],
    "rte": [
        ("partition 1", {}, RTE, THREE),
        *((name, cuts, ["none"], THREE) for name, cuts in PARTITIONS.items()),
        ("fp16", precision("fp16"), ["none"], THREE),
        ("fp16, loss not scaled", precision("fp16", **{"precision.scale_loss": "false"}), ["none"], THREE),
        ("linear insert", INSERT, ["none"], THREE),
    ],
    "cola": [
        ("partition 1", {}, COLA_CODECS, THREE),
        *((name, cuts, ["none"], THREE) for name, cuts in PARTITIONS.items()),
        ("fp32", precision("fp32"), ["none"], THREE),
        ("linear insert", INSERT, ["none"], THREE),
    ],
    "cola_fairseq": [("partition 1", {}, ["none", SORT[16], SORT[12], SORT[8], SORT[4]], THREE)],
    "cola_lora": [("partition 1", {}, ["none"], THREE)],
    "staleness": [
        *(stale(steps, warmup, nesterov) for warmup, nesterov in itertools.product((True, False), repeat=2) for steps in (0, 1, 3)),
        *((f"D = {steps}, peak 0.03", {"train.staleness": str(steps), "train.learning_rate.peak": "0.03"}, ["none"], THREE) for steps in (0, 1, 3)),
    ],
}
# The main metric, which decides a run's best epoch, and the second metric; the other experiments
# report the last epoch.
MATTHEWS = ("eval_matthews", "eval_top1")
METRICS = {"reviews": MATTHEWS, "rte": ("eval_top1",), "cola": MATTHEWS, "cola_fairseq": MATTHEWS, "cola_lora": MATTHEWS}
TITLES = {"eval_matthews": "Matthews", "eval_top1": "Accuracy"}


def prepare(experiment):
    for file, (script, *arguments) in PREPARE[experiment].items():
        if not os.path.exists(file):
            subprocess.run([sys.executable, os.path.join("configs/experiments", script), *arguments], check=True)


def folder(experiment, row, what):
    name, _, codecs, _ = row
    return os.path.join("sweeps", experiment, f"{what}-{name.replace(',', '').replace(' = ', '').replace(' ', '-')}{'' if 'none' in codecs else '-more'}")


def sweep(options, row, what, more):
    """Runs or resumes one sweep, and returns its exit code."""
    experiment = options.experiment
    _, settings, codecs, seeds = row
    config = CONFIGS.get(experiment, f"configs/experiments/{experiment}.yaml")
    command = [os.path.join(options.programs, "cleave-client"), "sweep", "--config", config, "--folder", folder(experiment, row, what)]
    if options.server:
        command += ["--server", options.server]
    for key, value in {"threads.client": "1", "threads.server": "1", **settings, **more}.items():
        command += ["--set", f"{key}={value}"]
    for assignment in options.set:
        command += ["--set", assignment]
    for seed in seeds if what == "accuracy" else ONE:
        command += ["--grid", f"run.seed={seed}"]
    for codec in codecs:
        command += ["--grid", f"codec={codec}"]
    for key, value in LINKS.get(experiment, SLOW_LINK)[1].items() if what == "speed" else ():
        command += ["--grid", f"{key}={value}"]
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


def epochs(experiment, row, codec):
    """Per seed of a codec, the rows of epochs.csv, one per epoch; without rows that a resume has replaced."""
    where = folder(experiment, row, "accuracy")
    with open(os.path.join(where, "results.csv"), encoding="utf-8", newline="") as text:
        points = [each["point"] for each in csv.DictReader(text) if each["codec"] == codec and each["status"] == "done"]
    runs = []
    for point in points:
        with open(os.path.join(where, point, "epochs.csv"), encoding="utf-8", newline="") as text:
            runs.append(list({each["epoch"]: each for each in csv.DictReader(text)}.values()))
    return runs


def titles(experiment):
    if experiment not in METRICS:
        return ["Accuracy", "Std"]
    main, *others = [TITLES[name] for name in METRICS[experiment]]
    return [main, "Std", *others, "Best epochs"]


def cells(experiment, row, codec, group):
    """The cells under titles(): means over the seeds, in each run's best epoch."""
    if experiment not in METRICS:
        return [f"{float(group['top1']):.4f}", f"{float(group['top1_std']):.4f}" if group["top1_std"] else ""]
    main, *others = METRICS[experiment]
    best = [max(run, key=lambda each: float(each[main])) for run in epochs(experiment, row, codec)]
    of = {name: [float(each[name]) for each in best] for name in METRICS[experiment]}
    return [f"{statistics.mean(of[main]):.4f}", f"{statistics.stdev(of[main]):.4f}" if len(best) > 1 else "",
            *(f"{statistics.mean(of[name]):.4f}" for name in others), ", ".join(each["epoch"] for each in best)]  # fmt: skip


def epoch_table(experiment, rows):
    """The metrics after each epoch, as means over the seeds."""
    names = METRICS.get(experiment, ("eval_top1",))
    lines = [["Rows", "Codec", "Epoch", *(TITLES[name] for name in names)]]
    for row in rows:
        for codec in groups(experiment, row, "accuracy"):
            for of_seeds in zip(*epochs(experiment, row, codec)):
                means = (statistics.mean(float(each[name]) for each in of_seeds) for name in names)
                lines.append([row[0], f"`{codec}`", of_seeds[0]["epoch"], *(f"{mean:.4f}" for mean in means)])
    return markdown(lines)


def table(experiment, rows):
    lines = [["Rows", "Codec", "Bytes, share of fp32", *titles(experiment), "Seeds", f"Step at {LINKS.get(experiment, SLOW_LINK)[0]}"]]
    for row in rows:
        speeds = groups(experiment, row, "speed")
        for codec, group in groups(experiment, row, "accuracy").items():
            seconds = speeds.get(codec, {}).get("step_seconds")
            lines.append([row[0], f"`{codec}`", f"{float(group['ratio']):.3f}", *cells(experiment, row, codec, group), group["seeds"],
                          f"{float(seconds):.3f} s" if seconds else ""])
    return markdown(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", choices=SWEEPS)
    parser.add_argument("--programs", default="build/release/bin", help="folder of cleave-client; default: build/release/bin")
    parser.add_argument("--jobs", type=int, default=1, help="sweeps at the same time, each with one thread per side; default: 1")
    parser.add_argument("--server", metavar="HOST:PORT", help="trains through this server; default: each run starts one on this machine")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="sets a key in all runs, such as device=cuda; repeatable")
    parser.add_argument("--table", action="store_true", help="only print the table of the runs that are done")
    parser.add_argument("--per-epoch", action="store_true", help="also print the metrics after each epoch")
    parser.add_argument("--only", action="append", help="only the rows of this name, such as LoRA; repeatable; default: all")
    parser.add_argument("--no-speed", action="store_true", help="do not measure the step times")
    options = parser.parse_args()
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
            codes += pool.map(lambda row: sweep(options, row, "accuracy", {}), rows)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)  # the sweeps under way have received the signal too
            sys.exit("interrupted; rerun the same command to resume")
        if not options.no_speed:
            short = {"train.max_steps": "12", "eval.every": "0", "keep": "{}"}
            codes += [sweep(options, row, "speed", short) for row in rows]
    print(table(options.experiment, rows))
    if options.per_epoch:
        print("\n" + epoch_table(options.experiment, rows))
    if any(codes):
        sys.exit(f"some runs failed or were interrupted: see sweeps/{options.experiment}/log.txt")


if __name__ == "__main__":
    main()
