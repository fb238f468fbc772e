"""Measures what checkpoints cost a run, and how soon a run continues after a fault. First, it trains with and without checkpoints, in
alternating order; both sides wait instead of computing, so that only the checkpoints use the processors. Then it kills a server with SIGKILL,
restarts it, and measures the time until the run's next step is recorded. Last, it kills the emulated link between client and server, starts
it again at once, and measures the time until the next tensor has arrived. Called by scripts/bench.sh checkpoints."""

import argparse
import calendar
import contextlib
import csv
import os
import statistics
import subprocess
import tempfile
import time

from codec_step import ALLOWED, Loopback, running_server, sleeping
from machine import Others, conclude

COST = 1.02      # maximum wall time, relative to training without checkpoints
RESTART = 5.0    # s, from a server's restart to the next step
CUT = 1.0        # s, from a cut to the next tensor, in addition to a round trip
LATENCIES = {"loopback": 0, "an emulated link with a round trip of 50 ms": 25}  # ms each way
# Both sides wait in the first; its body and optimizer state have 34 MB. Both compute in the second.
MODELS = {"mlp of width 2048": ["--config", "configs/synthetic.yaml", "--set", "model.width=2048",
                                *sleeping("mlp", {part: 5 for part in ("F1", "T3", "B1", "F2", "B2")})],
          "small_cnn": ["--config", "tests/bench/small_cnn.yaml"]}  # fmt: skip


def command(options, model, address, folder, steps, every):
    return [f"{options.programs}/cleave-client", "train", *MODELS[model], "--server", address, "--run-dir", folder, "--quiet",
            "--set", "data.train.size=640", "--set", "train.epochs=100000", "--set", f"train.max_steps={steps}",
            "--set", "eval.every=0", "--set", "codec=none",
            "--set", "threads={client: 1, server: 1}", "--set", f"checkpoint.every_seconds={every}"]  # fmt: skip


def train_seconds(options, address, folder, every):
    subprocess.run(command(options, "mlp of width 2048", address, folder, options.steps, every), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(f"{folder}/steps.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["phase"] == "train"]
    return sum(float(row["seconds"]) + float(row["between_seconds"] or 0) for row in rows[5:])


def cost(options, every):
    seconds = {"without": [], "with": []}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        address = stack.enter_context(running_server(options, Loopback(), folder))
        for round in range(options.rounds):
            for name in sorted(seconds, reverse=round % 2 == 1):
                seconds[name].append(train_seconds(options, address, f"{folder}/{name}-{round}", every if name == "with" else 0))
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    return medians["with"] / medians["without"]


def start_server(options, store, port):
    server = subprocess.Popen([f"{options.programs}/cleave-server", "serve", "--set", f"listen.port={port}", "--set", f"store={store}",
                               "--set", f"models.allow={ALLOWED}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # fmt: skip
    for line in server.stdout:
        if " listens on " in line:
            return server, int(line.rsplit(":", 1)[1])
    raise SystemExit("checkpoints: the server did not start")


def start_link(options, port, latency, listen=0):
    """An emulated link to the server's port. Returns its process and its own port."""
    link = subprocess.Popen([f"{options.programs}/cleave-link", "--target", f"127.0.0.1:{port}", "--latency", f"{latency}ms",
                             "--listen", f"127.0.0.1:{listen}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # fmt: skip
    return link, int(link.stdout.readline().rsplit(":", 1)[1])


def rows_of(path):
    """The complete rows of a table that is being written."""
    with contextlib.suppress(OSError), open(path, newline="") as file:
        text = file.read()
        return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))
    return []


def generation_of(rows):
    return max((int(row["generation"]) for row in rows), default=0)


def utc(text):
    return calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")) + float("0" + text[19:-1])


def wait_until_trains(folder):
    """Waits for a checkpoint and a few steps."""
    while not os.path.exists(f"{folder}/checkpoints/commits.json") or len(rows_of(f"{folder}/steps.csv")) < 20:
        time.sleep(0.1)


def next_row(path, generation, is_wanted):
    """The first row of a later connection for which `is_wanted` is true."""
    while True:
        for row in rows_of(path):
            if int(row["generation"]) > generation and is_wanted(row):
                return row
        time.sleep(0.05)


def restart_seconds(options, model):
    """Seconds from the restart of a killed server to the run's next step."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        run = f"{folder}/run"
        server, port = start_server(options, f"{folder}/store", 0)
        client = subprocess.Popen(command(options, model, f"127.0.0.1:{port}", run, 100000, 1), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(end, client)
        wait_until_trains(run)
        end(server)
        generation = generation_of(rows_of(f"{run}/steps.csv"))
        start = time.time()
        server, port = start_server(options, f"{folder}/store", port)
        stack.callback(end, server)
        row = next_row(f"{run}/steps.csv", generation, lambda row: row["phase"] == "train" and row["seconds"])
        return utc(row["time"]) - start


def cut_seconds(options, latency):
    """Seconds from each cut of the link to the next tensor that has arrived, at either side."""
    seconds = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        run = f"{folder}/run"
        server, port = start_server(options, f"{folder}/store", 0)
        stack.callback(end, server)
        link, own_port = start_link(options, port, latency)
        client = subprocess.Popen(command(options, "mlp of width 2048", f"127.0.0.1:{own_port}", run, 100000, 1),
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        stack.callback(end, client)
        wait_until_trains(run)
        for _ in range(options.rounds):
            time.sleep(2)
            generation = generation_of(rows_of(f"{run}/transfers.csv"))
            cut = time.time()
            end(link)
            link, _ = start_link(options, port, latency, own_port)
            row = next_row(f"{run}/transfers.csv", generation, lambda row: row["wire_seconds"])
            seconds.append(utc(row["time"]) - cut)
        end(link)
    return seconds


def end(process):
    process.kill()
    process.wait()


def texts(values, digits):
    return ", ".join(f"{value:.{digits}f}" for value in values)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400, help="steps per run")
    parser.add_argument("--only", choices=["cost", "restart", "cut"], help="only this measurement")
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()
    others = Others()
    results = []
    if options.only in (None, "cost"):
        for every in (5, 1):
            ratio = cost(options, every)
            results.append({"every_seconds": every, "ratio": ratio, "target": COST, "reached": ratio <= COST})
            print(f"a checkpoint every {every} s, 34 MB at the server: {ratio:.3f} times the time without checkpoints; limit {COST}", flush=True)
    if options.only in (None, "restart"):
        for model in MODELS:
            seconds = [restart_seconds(options, model) for _ in range(options.rounds)]
            results.append({"restart": seconds, "model": model, "target": RESTART, "reached": max(seconds) <= RESTART})
            print(f"from the restart of a killed server to the next step, {model}: {texts(seconds, 1)} s; limit {RESTART} s", flush=True)
    if options.only in (None, "cut"):
        for link, latency in LATENCIES.items():
            seconds = cut_seconds(options, latency)
            limit = CUT + 2 * latency / 1000
            results.append({"cut": seconds, "link": link, "target": limit, "reached": max(seconds) <= limit})
            print(f"from a cut to the next tensor, {link}: {texts(seconds, 2)} s; limit {limit:.2f} s", flush=True)
    conclude(others.share(), results, options.json)


if __name__ == "__main__":
    main()
