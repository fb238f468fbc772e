"""How busy a server is with 1 to 16 members of a cohort, compared with the simulator's prediction from the times that the run records; and
how long a slow member delays the others, with both orders of a cohort.

Clients and server wait instead of computing, so that only codecs, sockets and cleave-link use the processors. The tensors are those of
MobileNetV2 at batch 64, 96 x 96, in micro-batches of one sample, since waits do not depend on the size of a micro-batch. The
members' shares of a batch vary. Each member has an emulated link of its own. The server
waits so long that the members' links together could carry 1.25 times what it uses. Prints tables and writes the figures as JSON. Called by
scripts/bench.sh cohort."""

import argparse
import contextlib
import csv
import json
import math
import pathlib
import statistics
import subprocess
import tempfile

from codec_step import Loopback, running_server, sleeping
from machine import Others, conclude
from pipeline import held_bytes, running_link, simulate

BATCH = MICRO_BATCHES = 64
# The bytes of the tensors of a batch in each direction, without a codec: activation/0 and gradient/1, activation/1 and gradient/0.
BATCH_BYTES = 4 * BATCH * (32 * 48 * 48 + 1280 * 3 * 3)
SPARE = 1.25
CLIENT = {"F1": 0.3, "T3": 0.1, "B1": 0.5}  # ms per micro-batch
COHORTS = [(1, 100), (2, 100), (4, 100), (8, 100), (16, 20)]  # members, and the rate of each one's link in Mbit/s
WARM_UP = 3


def waits(members, rate):
    """Waits with which the server computes a step while SPARE of it could cross the links."""
    step = 1e3 * BATCH_BYTES * SPARE / (125e3 * rate * members)
    return {**CLIENT, "F2": step / MICRO_BATCHES / 3, "B2": 2 * step / MICRO_BATCHES / 3}


def arguments(options, wait, names, name, more):
    given = {"data.shape": "[3, 96, 96]", "data.train.size": BATCH // len(names) * (WARM_UP + options.steps), "train.batch": BATCH,
             "train.micro_batches": MICRO_BATCHES, "eval.every": 0, "threads.client": 1, "metrics.error_every": 0, "train.epochs": 1,
             "checkpoint.every_seconds": 100000, "codec": "none", **more}
    if len(names) > 1:
        given |= {"cohort.id": "bench", "cohort.members": f"[{', '.join(names)}]", "cohort.member": name}
    return ["--config", "tests/bench/mobilenet_v2.yaml", "--log-level", "error", *sleeping("mobilenet_v2", wait),
            *[argument for key, value in given.items() for argument in ("--set", f"{key}={value}")]]


def names_of(members):
    return [f"m{n}" for n in range(members)]


def training_rows(path):
    with open(path) as file:
        return [row for row in csv.DictReader(file) if row["phase"] == "train"]


def train(options, folder, rates, wait, more, traced=False):
    """Runs a cohort with a link of one of these rates per member. Returns the server's rows of the steps that count, and the folder that has
    the members' traces, if they record them."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=folder))
    names = names_of(len(rates))
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running_server(options, Loopback(), folder, ["--set", "limits.sessions=32"]))
        clients = []
        for name, rate in zip(names, rates, strict=True):
            link = stack.enter_context(running_link(options, server, rate, options.latency))
            trace = ["--trace", f"{folder}/{name}.json", "--trace-steps", str(WARM_UP + options.steps)] if traced else []
            clients.append(subprocess.Popen([f"{options.programs}/cleave-client", "train", "--server", link, "--run-dir", f"{folder}/{name}",
                                             *arguments(options, wait, names, name, more), *trace], stdout=subprocess.DEVNULL))
        if any([client.wait() for client in clients]):
            raise SystemExit("bench cohort: a member has failed")
    (records,) = folder.glob("store/**/steps.csv")
    return training_rows(records)[WARM_UP:], folder


def predict(options, folder, members, rate, wait, rows, runs):
    """The prediction for the recorded times of actions: waits take longer than given, the more so if the processors are busy."""
    with running_server(options, Loopback(), tempfile.mkdtemp(dir=folder)) as server:
        done = subprocess.run([f"{options.programs}/cleave-client", "simulate", "--json", "--server", server, "--rate", f"{rate}Mbit/s",
                               "--latency", f"{options.latency}ms", "--queue", f"{held_bytes(options, rate):.0f}B",
                               *arguments(options, wait, names_of(members), "m0", {"data.train.size": BATCH})],
                              check=True, stdout=subprocess.PIPE, text=True)
    times = json.loads(done.stdout)["cases"][0]
    count = sum(int(row["micro_batches"]) for row in rows)
    of_clients = [row for name in names_of(members) for row in training_rows(runs / name / "steps.csv")[WARM_UP:]]
    # A member has no times for a step in which it has no samples.
    for action, steps in (("body_forward", rows), ("body_backward", rows), ("head_forward", of_clients), ("tail_step", of_clients),
                          ("head_backward", of_clients)):
        times[f"{action}_seconds"] = sum(float(row[f"{action}_seconds"] or 0) for row in steps) / count
    return simulate(options, times, rate, options.latency)


def busy(row):
    return float(row["body_forward_seconds"]) + float(row["body_backward_seconds"])


def measure(options, folder, members, rate):
    wait = waits(members, rate)
    cell = {"members": members, "rate": rate, "wait": wait}
    for staleness in (1, 0):
        rows, runs = train(options, folder, [rate] * members, wait, {"train.staleness": staleness})
        seconds = [float(row["seconds"]) for row in rows]
        cell[f"D={staleness}"] = {"seconds": statistics.median(seconds), "all": seconds, "busy": sum(map(busy, rows)) / sum(seconds)}
    predicted = predict(options, folder, members, rate, wait, rows, runs)
    cell["predicted"] = predicted["schedules"]["priority"]["seconds"]
    cell["bound"], cell["bottleneck"] = predicted["bound_seconds"], predicted["bottleneck"]
    return cell


def others_share(trace):
    """By step: when the server has computed the last backward of the other members, as a share of the time until that of all. `trace`: that
    of the slow member, whose own micro-batches it shows."""
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("cat") == "compute" and "micro_batch" in event["args"]]
    key = [(event["args"]["step"], event["args"]["micro_batch"]) for event in events]
    own = {k for k, event in zip(key, events, strict=True) if event["name"].startswith("HeadForward")}
    begins, others, ends = {}, {}, {}
    for (step, i), event in zip(key, events, strict=True):
        if event["name"].startswith("BodyForward"):
            begins[step] = min(begins.get(step, math.inf), event["ts"])
        elif event["name"].startswith("BodyBackward"):
            end = event["ts"] + event["dur"]
            ends[step] = max(ends.get(step, 0), end)
            if (step, i) not in own:
                others[step] = max(others.get(step, 0), end)
    return [(others[step] - begin) / (ends[step] - begin) for step, begin in sorted(begins.items())[WARM_UP:]]


def measure_slow(options, folder):
    """Three members, of which the first has a link of a third of the others' rate; the orders take turns."""
    wait = waits(3, 100)
    figures = {order: {"all": [], "others": []} for order in ("by-member", "global")}
    for _ in range(options.rounds):
        for order, figure in figures.items():
            rows, runs = train(options, folder, [100 / 3, 100, 100], wait, {"cohort.order": order}, traced=True)
            figure["all"] += [float(row["seconds"]) for row in rows]
            figure["others"] += others_share(runs / "m0.json")
    print("\nthree members, of which the first has a link of 33 Mbit/s, the others of 100 Mbit/s; medians")
    print(f"{'order':>11}{'step, ms':>11}  the others' last backward")
    for order, figure in figures.items():
        figure["seconds"] = statistics.median(figure["all"])
        print(f"{order:>11}{1e3 * figure['seconds']:>11.1f}  at {100 * statistics.median(figure['others']):.0f} % of the server's time for the step")
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--members", type=int, action="append", help="only this number of members; repeatable")
    parser.add_argument("--latency", type=float, default=1, help="of each link, ms one way (1)")
    parser.add_argument("--queue", help="queue of the links, such as 128KiB; default: 2 ms of data at the link's rate")
    parser.add_argument("--steps", type=int, default=8, help=f"steps per run, after {WARM_UP} that are not counted (8)")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each order with a slow member (2)")
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()

    others = Others()
    print(f"{'members':>8}{'each link':>13}{'step, ms':>11}{'predicted':>11}{'pred./step':>12}{'busy':>7}{'D = 1':>9}{'busy':>7}  bottleneck")
    cells = []
    with tempfile.TemporaryDirectory() as folder:
        for members, rate in COHORTS:
            if options.members is not None and members not in options.members:
                continue
            cell = measure(options, folder, members, rate)
            cells.append(cell)
            step, stale = cell["D=0"], cell["D=1"]
            print(f"{members:>8}{rate:>6} Mbit/s{1e3 * step['seconds']:>11.1f}{1e3 * cell['predicted']:>11.1f}"
                  f"{cell['predicted'] / step['seconds']:>12.3f}{100 * step['busy']:>6.0f}%{1e3 * stale['seconds']:>9.1f}"
                  f"{100 * stale['busy']:>6.0f}%  {cell['bottleneck']}", flush=True)
        slow = None if options.members else measure_slow(options, folder)
    share = others.share()
    conclude(share, {"cells": cells, "slow": slow}, options.json, others_share=share)


if __name__ == "__main__":
    main()
