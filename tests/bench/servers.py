"""Steps with 1, 2 and 3 servers in a row, compared with the bound and with the simulator's prediction.

Client and servers wait instead of computing (in ms per micro-batch, below), so that only codecs, sockets and cleave-link use the processors.
The tensors are those of MobileNetV2 at batch 64, 224 x 224, 8 micro-batches. Each body has an emulated link of its own, and an equal
share of the body's waits; one server process has all of them. For each link the numbers of servers take turns. Prints a table and writes the figures as JSON. Called by
scripts/bench.sh servers."""

import argparse
import contextlib
import json
import statistics
import tempfile

from codec_step import Loopback, running_server
from machine import Others, conclude
from pipeline import MODELS, run_steps, running_link, simulate

MODEL = MODELS["mobilenet_v2"]
CUTS = {1: [4, 13], 2: [4, 7, 13], 3: [4, 7, 10, 13]}
SCHEDULE = "train.schedule=priority"


def wait_of(servers):
    """Each server's waits: the body's, divided by the number of servers."""
    body = {key: MODEL["wait"][key] / servers for key in ("F2", "B2")}
    return {**MODEL["wait"], **body}


def measure(options, server, rate, latency, servers, rounds):
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(running_link(options, server, rate, latency)) for _ in range(servers)]
        steps, times = run_steps(options, MODEL, ",".join(links), options.codec, [SCHEDULE], rounds, wait_of(servers),
                                 [f"model.cuts={[1 + n for n in range(servers + 1)]}"], CUTS[servers])
    return [row["seconds"] for row in steps[SCHEDULE]], times[SCHEDULE]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--rate", type=float, default=1000, help="of each link, Mbit/s (1000)")
    parser.add_argument("--latency", type=float, action="append", help="ms one way; repeatable (0.1, 10)")
    parser.add_argument("--codec", default="none", help="codec of all flows (none)")
    parser.add_argument("--queue", help="queue of the link, such as 128KiB; default: 2 ms of data at the link's rate")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each number of servers (3)")
    parser.add_argument("--steps", type=int, default=5, help="steps per turn, after one that is not counted (5)")
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()

    others = Others()
    cells = []
    print(f"MobileNetV2, {MODEL['micro_batches']} micro-batches, codec {options.codec}; medians of a step in ms")
    print(f"{'link':<24}{'servers':>8}{'step':>9}{'bound':>9}{'step/bound':>12}{'predicted':>11}{'pred./step':>12}  bottleneck")
    with tempfile.TemporaryDirectory() as folder, running_server(options, Loopback(), folder) as server:
        for latency in options.latency or [0.1, 10]:
            seconds, times = {n: [] for n in CUTS}, {}
            for _ in range(options.rounds):
                for servers in CUTS:
                    more, times[servers] = measure(options, server, options.rate, latency, servers, options.steps)
                    seconds[servers] += more
            for servers in CUTS:
                predicted = simulate(options, times[servers], options.rate, latency)
                cell = {"rate": options.rate, "latency": latency, "servers": servers, "all": seconds[servers],
                        "seconds": statistics.median(seconds[servers]), "bound": predicted["bound_seconds"],
                        "bottleneck": predicted["bottleneck"], "predicted": predicted["schedules"]["priority"]["seconds"]}
                cells.append(cell)
                print(f"{cell['rate']:>6g} Mbit/s {latency:>6g} ms  {servers:>7}{1e3 * cell['seconds']:>9.1f}{1e3 * cell['bound']:>9.1f}"
                      f"{cell['seconds'] / cell['bound']:>12.3f}{1e3 * cell['predicted']:>11.1f}{cell['predicted'] / cell['seconds']:>12.3f}"
                      f"  {cell['bottleneck']}", flush=True)
    share = others.share()
    conclude(share, {"cells": cells}, options.json, others_share=share)


if __name__ == "__main__":
    main()
