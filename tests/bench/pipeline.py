"""Compares schedules on emulated links with the simulator's prediction, the best order found by its
search, and the bound.

Client and server sleep instead of computing (in ms per micro-batch, see below), so that only codecs, sockets and cleave-link use the
processors. The tensors are those of MobileNetV2 at batch 64, 224 x 224, 8 micro-batches, or of small_cnn on Fashion-MNIST at batch 128, 4
micro-batches. For each link and codec the schedules take turns within one process. Prints tables and writes the figures as JSON. Called by
scripts/bench.sh pipeline."""

import argparse
import contextlib
import json
import math
import statistics
import subprocess
import tempfile

from codec_step import Loopback, running_server, sleeping
from machine import Others, conclude

# MobileNetV2: F1 and B1 are similar to what `bench.sh codec-step` measures with one thread; the
# others are plausible for a fast server. small_cnn: measured by `cleave-client simulate` for
# configs/fashion_mnist.yaml with one thread per side.
MODELS = {
    "mobilenet_v2": {"name": "mobilenet_v2", "config": "tests/bench/mobilenet_v2.yaml", "batch": 64, "micro_batches": 8,
                     "wait": {"F1": 6, "T3": 1, "B1": 10.9, "F2": 2, "B2": 4}},
    "small_cnn": {"name": "small_cnn", "config": "tests/bench/small_cnn.yaml", "batch": 128, "micro_batches": 4,
                  "wait": {"F1": 0.9, "T3": 0.4, "B1": 0.7, "F2": 1.6, "B2": 2.8}},
}
SCHEDULES = ["priority", "gpipe", "1f1b"]
RATES = [100, 1000, 2000]  # Mbit/s
LATENCIES = [0.1, 10, 50]  # ms, one way
CODECS = ["none", "block:bits=8", "block:bits=4"]


@contextlib.contextmanager
def running_link(options, target, rate, latency):
    link = subprocess.Popen([f"{options.programs}/cleave-link", "--target", target, "--rate", f"{rate:.6g}Mbit/s", "--latency",
                             f"{latency:g}ms", "--log-level", "error", *(["--queue", options.queue] if options.queue else [])], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield link.stdout.readline().strip().rpartition(" ")[2]
    finally:
        link.terminate()
        link.wait()


def computation(model):
    """Seconds of client computation per step."""
    wait = model["wait"]
    return 1e-3 * model["micro_batches"] * (wait["F1"] + wait["T3"] + wait["B1"])


def run_steps(options, model, address, codec, variants, rounds, wait=None, settings=(), cuts=None):
    """Rows of measured steps by variant, and each variant's times for bench_simulate."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [argument for variant in variants for argument in ("--variant", variant)]
        arguments += [argument for setting in settings for argument in ("--set", setting)]
        if wait is not None:
            arguments += sleeping(model["name"], wait, cuts)
        done = subprocess.run(
            [f"{options.programs}/bench_step", "--config", model["config"], "--server", address, "--folder", folder, *arguments,
             "--set", f"codec={codec}", "--set", "metrics.error_every=0", "--rounds", str(rounds), "--warm-up", "1", "--steps", "1",
             "--log-level", "error"], check=True, stdout=subprocess.PIPE, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    steps = {variant: [row for row in rows if row.get("variant") == variant and row.get("warm_up") is False] for variant in variants}
    times = {row["variant"]: row["times"] for row in rows if "times" in row}
    return steps, times


def simulate(options, times, rate, latency):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(times, file)
        file.flush()
        done = subprocess.run([f"{options.programs}/bench_simulate", "--times", file.name, "--rate", f"{rate:.6g}Mbit/s",
                               "--latency", f"{latency:g}ms", "--separate-links", "--queue", f"{held_bytes(options, rate):.0f}B"], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def held_bytes(options, rate):
    """The bytes that cleave-link buffers per connection: its socket's buffer and its own queue."""
    own = min(max(125e3 * rate * 2e-3, 64 << 10), 1 << 20)
    return 2 * own


def rounds_for(seconds_per_step, options):
    return max(2, min(options.rounds, math.ceil(options.seconds / (2 * len(SCHEDULES) * seconds_per_step))))


def measure_cell(options, model, server, rate, latency, codec, guess):
    with running_link(options, server, rate, latency) as address:
        variants = [f"train.schedule={name}" for name in SCHEDULES]
        steps, times = run_steps(options, model, address, codec, variants, rounds_for(guess, options), model["wait"])
    predicted = simulate(options, times["train.schedule=priority"], rate, latency)
    cell = {"rate": rate, "latency": latency, "codec": codec, "bound": predicted["bound_seconds"],
            "bottleneck": predicted["bottleneck"], "best": predicted["best_order_seconds"], "times": times["train.schedule=priority"],
            "schedules": {}}
    for name in SCHEDULES:
        seconds = [row["seconds"] for row in steps[f"train.schedule={name}"]]
        cell["schedules"][name] = {"seconds": statistics.median(seconds), "all": seconds,
                                   "predicted": predicted["schedules"][name]["seconds"]}
    return cell


def print_cells(cells):
    print(f"{'link':<22}{'codec':<14}{'bound':>8}{'best order':>11}{'priority':>9}{'pred.':>7}{'gpipe':>8}{'pred.':>7}{'1f1b':>8}"
          f"{'pred.':>7}{'prio/best':>10}{'best/bound':>11}{'gpipe/prio':>11}  bottleneck")
    for cell in cells:
        columns = ""
        for name in SCHEDULES:
            one = cell["schedules"][name]
            columns += f"{1e3 * one['seconds']:>{9 if name == 'priority' else 8}.1f}{one['predicted'] / one['seconds']:>7.2f}"
        priority = cell["schedules"]["priority"]["seconds"]
        print(f"{cell['rate']:>6g} Mbit/s {cell['latency']:>5g} ms {cell['codec']:<14}{1e3 * cell['bound']:>8.1f}{1e3 * cell['best']:>11.1f}{columns}"
              f"{priority / cell['best']:>10.3f}{cell['best'] / cell['bound']:>11.3f}"
              f"{cell['schedules']['gpipe']['seconds'] / priority:>11.2f}  {cell['bottleneck']}", flush=True)


def compare_naive(options, model, server, cells):
    """Compares one micro-batch, which is naive model parallelism, with all of them, using the
    priority schedule."""
    print(f"\n{model['micro_batches']} micro-batches against 1 (naive model parallelism), priority; busiest: share of the step that the busiest "
          f"resource takes alone")
    results = []
    for cell in cells:
        many = cell["schedules"]["priority"]["seconds"]
        m = model["micro_batches"]
        wait = {key: m * value for key, value in model["wait"].items()}
        with running_link(options, server, cell["rate"], cell["latency"]) as address:
            steps, _ = run_steps(options, model, address, cell["codec"], ["train.micro_batches=1"], rounds_for(many, options), wait)
        one = statistics.median(row["seconds"] for row in steps["train.micro_batches=1"])
        flows = cell["times"]["flows"]
        up = m * (flows["activation/0"]["bytes"] + flows["gradient/1"]["bytes"]) / (125e3 * cell["rate"])
        down = m * (flows["activation/1"]["bytes"] + flows["gradient/0"]["bytes"]) / (125e3 * cell["rate"])
        server_seconds = 1e-3 * m * (model["wait"]["F2"] + model["wait"]["B2"])
        busiest = max(up, down, server_seconds, computation(model)) / many
        results.append({"rate": cell["rate"], "latency": cell["latency"], "codec": cell["codec"], "one": one, "many": many,
                        "gain": one / many, "busiest": busiest})
        print(f"{cell['rate']:>6g} Mbit/s {cell['latency']:>5g} ms {cell['codec']:<14}{1e3 * one:>9.1f} ms against {1e3 * many:>8.1f} ms: "
              f"{one / many:.2f} times; busiest {100 * busiest:.0f} %", flush=True)
    return results


def conv_insert(options, model, server, times):
    """Tests block:bits=4 on the link whose rate makes a step with raw tensors take 5.9 times as long as the client's computation."""
    compute = computation(model)
    low, high = 50.0, 20000.0
    for _ in range(30):
        middle = math.sqrt(low * high)
        longer = simulate(options, times, middle, 0.1)["schedules"]["priority"]["seconds"] > 5.9 * compute
        low, high = (middle, high) if longer else (low, middle)
    cells = {codec: measure_cell(options, model, server, low, 0.1, codec, 0.3) for codec in ("none", "block:bits=4")}
    # The client's measured waiting time, because sleeping takes slightly longer than requested.
    waited = {codec: model["micro_batches"] * sum(cell["times"][key] for key in ("head_forward_seconds", "tail_step_seconds",
                                                                                  "head_backward_seconds"))
              for codec, cell in cells.items()}
    result = {codec: cell["schedules"]["priority"]["seconds"] / waited[codec] for codec, cell in cells.items()}
    print(f"\nat {low:.0f} Mbit/s and 0.1 ms: none takes {result['none']:.2f} times the computation of {1e3 * waited['none']:.1f} ms, "
          f"block:bits=4 {result['block:bits=4']:.3f} times its {1e3 * waited['block:bits=4']:.1f} ms (target: at most 1.10)")
    return {"rate": low, **result}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--model", choices=list(MODELS), action="append", help="only this model; repeatable")
    parser.add_argument("--rate", type=float, action="append", help="only this rate, Mbit/s; repeatable")
    parser.add_argument("--latency", type=float, action="append", help="only this latency, ms one way; repeatable")
    parser.add_argument("--codec", action="append", help="only this codec; repeatable")
    parser.add_argument("--queue", help="queue of the link, such as 128KiB; default: 2 ms of data at the link's rate")
    parser.add_argument("--rounds", type=int, default=9, help="maximum turns of one step each, after one that is not counted")
    parser.add_argument("--seconds", type=float, default=20, help="approximate time per link and codec, but at least 2 rounds")
    parser.add_argument("--short", action="store_true", help="only the table: skips the single micro-batch and the 5.9 times slower link")
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()

    others = Others()
    results = {}
    with tempfile.TemporaryDirectory() as folder, running_server(options, Loopback(), folder) as server:
        for name in options.model or MODELS:
            model = MODELS[name]
            waits = ", ".join(f"{key} {value}" for key, value in model["wait"].items())
            print(f"\n{name}, {model['micro_batches']} micro-batches, waiting {waits} ms each; medians of a step in ms; pred.: predicted / measured")
            cells = []
            for rate in options.rate or RATES:
                for latency in options.latency or LATENCIES:
                    for codec in options.codec or CODECS:
                        guess = 1.0 if not cells else max(0.05, cells[-1]["schedules"]["gpipe"]["seconds"])
                        cells.append(measure_cell(options, model, server, rate, latency, codec, guess))
            print_cells(cells)
            results[name] = {"cells": cells}
            if not options.short:
                results[name]["naive"] = compare_naive(options, model, server, [c for c in cells if c["codec"] != "none" or c["rate"] > 100])
                raw = [cell for cell in cells if cell["codec"] == "none"]
                if name == "mobilenet_v2" and raw:
                    results[name]["conv_insert"] = conv_insert(options, model, server, raw[-1]["times"])
    share = others.share()
    conclude(share, results, options.json, others_share=share)


if __name__ == "__main__":
    main()
