"""Schedules of 1 to 6 servers in a row: simulated and measured steps beside the bound.

Each server waits 10 ms per BodyForward (--forward) and twice as long per BodyBackward instead of computing; the client takes no time, and the
tensors are those of a small mlp over loopback. So a step of M micro-batches takes at least 30 (M + S - 1) ms with S servers, or 30 M ms if
steps overlap (train.staleness). "Busy" is 30 M ms divided by the simulated step. A measured step is the median time between the ends of two steps of a run, without
its first ones. Prints a table and writes the figures as JSON. Called by scripts/bench.sh rows."""

import argparse
import contextlib
import csv
import datetime
import itertools
import json
import os
import statistics
import subprocess
import tempfile

from codec_step import Loopback, running_server, sleeping
from machine import Others, conclude

SCHEDULES = {True: ["gpipe", "priority", "1f1b"], False: ["priority", "1f1b"]}  # by whether steps do not overlap
WIDTH, BATCH = 32, 64


def simulated(options, servers, micro_batches, staleness):
    """Seconds per step by schedule, and their bound. The link is free."""
    body = {"body_forward_seconds": 1e-3 * options.forward, "body_backward_seconds": 2e-3 * options.forward, "body_weights_seconds": 0}
    nothing = {"bytes": 1, "encode_seconds": 0, "decode_seconds": 0}
    times = {"batch": BATCH, "micro_batches": micro_batches, "head_forward_seconds": 0, "tail_step_seconds": 0, "head_backward_seconds": 0,
             "update_seconds": 0, "bodies": [body] * servers,
             "flows": {f"{kind}/{cut}": nothing for kind in ("activation", "gradient") for cut in range(servers + 1)}}  # fmt: skip
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(times, file)
        file.flush()
        found = json.loads(subprocess.run(
            [f"{options.programs}/bench_simulate", "--times", file.name, "--rate", "unlimited", "--latency", "0ms", "--separate-links",
             "--staleness", str(staleness)], check=True, stdout=subprocess.PIPE, text=True).stdout)  # fmt: skip
    if staleness == 0:
        return {name: each["seconds"] for name, each in found["schedules"].items()}, found["bound_seconds"]
    return found["steady"], found["steady"]["bound"]


def measured(options, addresses, micro_batches, staleness, schedule):
    """Median seconds between the ends of two steps, after those of the warm-up."""
    servers = len(addresses)
    cuts = [1 + n for n in range(servers + 1)]
    of = {"width": WIDTH, "depth": servers + 1, "F1": 0, "T3": 0, "B1": 0, "F2": options.forward, "B2": 2 * options.forward}
    warm_up = 2 + 2 * staleness
    settings = {"data.format": "synthetic", "data.shape": "[1, 8, 8]", "data.classes": 10, "data.train.size": BATCH * 64, "data.test.size": 1,
                "train.batch": BATCH, "train.micro_batches": micro_batches, "train.staleness": staleness, "train.schedule": schedule,
                "train.max_steps": warm_up + options.steps + staleness, "train.epochs": 1, "train.learning_rate.peak": 0.01,
                "eval.every": 0, "codec": "none", "model.cuts": cuts}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [f"{options.programs}/cleave-client", "train", "--config", "tests/bench/mobilenet_v2.yaml", "--server", ",".join(addresses),
             "--run-dir", f"{folder}/run", "--log-level", "error", *sleeping("mlp", of, [2 + 2 * n for n in range(servers + 1)]),
             *[argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")]],
            check=True, stdout=subprocess.DEVNULL)  # fmt: skip
        with open(os.path.join(folder, "run", "steps.csv"), encoding="utf-8", newline="") as file:
            ends = [datetime.datetime.fromisoformat(row["time"]) for row in csv.DictReader(file) if row["phase"] == "train"]
    between = [(after - before).total_seconds() for before, after in zip(ends, ends[1:])]
    return statistics.median(between[warm_up:warm_up + options.steps])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--forward", type=float, default=10, help="ms per BodyForward (10); longer ones depend less on other programs")
    parser.add_argument("--servers", type=int, action="append", help="repeatable (1 to 6)")
    parser.add_argument("--micro-batches", type=int, action="append", help="repeatable (4, 8, 16)")
    parser.add_argument("--staleness", type=int, action="append", help="repeatable (0, 1, 3)")
    parser.add_argument("--steps", type=int, default=6, help="measured steps of a run (6); 0: only simulate")
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()

    others, cells = Others(), []
    print(f"{'servers':>7}{'M':>4}{'D':>3}{'bound':>8}  " + "".join(f"{name + ', simulated':>21}{'busy':>7}{'measured':>10}" for name in SCHEDULES[True]))
    with contextlib.ExitStack() as stack:
        # Each body has a process of its own, because the bodies of one process take turns.
        numbers = options.servers or range(1, 7)
        addresses = [stack.enter_context(running_server(options, Loopback(), stack.enter_context(tempfile.TemporaryDirectory())))
                     for _ in range(max(numbers) if options.steps > 0 else 0)]
        for servers, micro_batches, staleness in itertools.product(numbers, options.micro_batches or [4, 8, 16],
                                                                   options.staleness or [0, 1, 3]):
            predicted, bound = simulated(options, servers, micro_batches, staleness)
            cell = {"servers": servers, "micro_batches": micro_batches, "staleness": staleness, "bound": bound, "schedules": {}}
            line = f"{servers:>7}{micro_batches:>4}{staleness:>3}{1e3 * bound:>8.0f}  "
            for name in SCHEDULES[True]:
                if name not in SCHEDULES[staleness == 0]:
                    line += " " * 38
                    continue
                found = cell["schedules"][name] = {"simulated": predicted[name]}
                line += f"{1e3 * predicted[name]:>21.0f}{micro_batches * 3e-3 * options.forward / predicted[name]:>7.0%}"
                if options.steps > 0:
                    found["measured"] = measured(options, addresses[:servers], micro_batches, staleness, name)
                    line += f"{1e3 * found['measured']:>10.0f}"
                else:
                    line += " " * 10
            cells.append(cell)
            print(line.rstrip(), flush=True)
    conclude(others.share(), {"cells": cells}, options.json)


if __name__ == "__main__":
    main()
