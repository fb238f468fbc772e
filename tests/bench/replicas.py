"""Images per second with 1, 2 and more replicas of a body.

Client and servers wait instead of computing (in ms per micro-batch, below), so that only sockets, the sum of the gradients and the update use
the processors. The numbers of replicas take turns. Reads each run's trace, and prints the share of the computing time in which at least two
replicas compute. Called by scripts/bench.sh replicas."""

import argparse
import contextlib
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile

from codec_step import Loopback, running_server, sleeping
from machine import Others, conclude

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from free_ports import free_ports  # noqa: E402

BATCH, MICRO_BATCHES = 64, 8
WAIT = {"F1": 1, "T3": 1, "B1": 1, "F2": 20, "B2": 40}
WARM_UP = 3  # steps that are not counted


@contextlib.contextmanager
def running_replicas(options, count, folder):
    """The servers' addresses, as --server takes them."""
    hosts = json.dumps([f"127.0.0.1:{port}" for port in free_ports(count)])
    with contextlib.ExitStack() as stack:
        yield "+".join(stack.enter_context(running_server(
            options, Loopback(), f"{folder}/{count}-{rank}",
            ["--set", f"replicas.hosts={hosts}", "--set", f"replicas.rank={rank}"] if count > 1 else [])) for rank in range(count))  # fmt: skip


def overlap(path):
    """Of the time in which any server computes forwards or backwards, the share in which several do."""
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    servers = {event["pid"] for event in events if event["name"] == "process_name" and event["args"]["name"].startswith("server")}
    changes = []
    for event in events:
        if event["ph"] != "X" or event["pid"] not in servers or not event["name"].startswith(("BodyForward", "BodyBackward")):
            continue
        changes += [(event["ts"], 1), (event["ts"] + event["dur"], -1)]
    busy, before, any_busy, several_busy = 0, 0, 0, 0
    for time, change in sorted(changes):
        any_busy += (time - before) * (busy > 0)
        several_busy += (time - before) * (busy > 1)
        busy, before = busy + change, time
    return several_busy / any_busy


def measure(options, count, folder, turn):
    run, trace = f"{folder}/run-{count}-{turn}", f"{folder}/trace-{count}-{turn}.json"
    steps = options.steps + WARM_UP
    with running_replicas(options, count, folder) as server:
        subprocess.run([f"{options.programs}/cleave-client", "train", "--config", "configs/synthetic.yaml", "--server", server, "--run-dir", run,
                        "--quiet", "--set", f"model={{name: mlp, width: {options.width}}}", "--set", f"data.train.size={BATCH * steps}",
                        "--set", f"train.batch={BATCH}", "--set", f"train.micro_batches={MICRO_BATCHES}", "--set", "train.epochs=1",
                        "--set", "eval.every=0", "--set", "codec=none", "--set", "threads={client: 1, server: 1}",
                        "--set", "checkpoint.every_seconds=0", *sleeping("mlp", WAIT),
                        "--trace", trace, "--trace-steps", str(steps - 1)],
                       check=True, stdout=subprocess.DEVNULL)
    with open(f"{run}/steps.csv", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["phase"] == "train"][WARM_UP:]
    seconds = [float(row["seconds"]) + float(row["between_seconds"] or 0) for row in rows]
    return seconds, [float(row["reduce_seconds"] or 0) for row in rows], overlap(trace)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--replicas", type=int, action="append", help="number of replicas; repeatable (1, 2)")
    parser.add_argument("--width", type=int, default=1024, help="width of the mlp, which determines the size of the gradients (1024)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each number of replicas (3)")
    parser.add_argument("--steps", type=int, default=20, help=f"steps per turn, after {WARM_UP} that are not counted (20)")
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()

    others, counts = Others(), options.replicas or [1, 2]
    measured = {count: ([], [], []) for count in counts}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(options.rounds):
            for count in counts:
                seconds, reduction, overlapping = measure(options, count, folder, turn)
                measured[count][0].extend(seconds)
                measured[count][1].extend(reduction)
                measured[count][2].append(overlapping)
    print(f"mlp of width {options.width}, batch {BATCH}, {MICRO_BATCHES} micro-batches, waits in ms {WAIT}; medians")
    print(f"{'replicas':>8}{'step, ms':>10}{'images/s':>10}{'gain':>7}{'reduce, ms':>12}{'overlap':>9}")
    cells = []
    for count in counts:
        seconds, reduction, overlapping = measured[count]
        cell = {"replicas": count, "seconds": statistics.median(seconds), "reduce_seconds": statistics.median(reduction),
                "overlap": statistics.median(overlapping), "all": seconds}
        cell["gain"] = cells[0]["seconds"] / cell["seconds"] if cells else 1
        cells.append(cell)
        print(f"{count:>8}{1e3 * cell['seconds']:>10.1f}{BATCH / cell['seconds']:>10.1f}{cell['gain']:>7.2f}{1e3 * cell['reduce_seconds']:>12.1f}"
              f"{cell['overlap']:>9.2f}")
    conclude(others.share(), {"cells": cells}, options.json)


if __name__ == "__main__":
    main()
