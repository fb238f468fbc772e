"""Measures what checkpoints cost a run, and how soon a run resumes. First, it trains with and without checkpoints, in alternating order;
both sides wait instead of computing, so that only the checkpoints use the processors. Then it kills a server with SIGKILL, restarts it, and
measures the time until the run's next step is recorded. Called by scripts/bench.sh checkpoints."""

import argparse
import contextlib
import csv
import signal
import statistics
import subprocess
import tempfile
import time

from codec_step import Loopback, running_server
from machine import Others, conclude

COST = 1.02      # maximum wall time, relative to training without checkpoints
CONTINUES = 5.0  # s
WIDTH = 2048     # width of the model, whose body and optimizer state have 34 MB


def command(options, address, folder, steps, every):
    return [f"{options.programs}/cleave-client", "train", "--config", options.config, "--server", address, "--run-dir", folder, "--quiet",
            "--set", f"model.width={WIDTH}", "--set", "data.train.size=640", "--set", "train.epochs=100000", "--set", f"train.max_steps={steps}",
            "--set", "eval.every=0", "--set", "wait={F1: 5, T3: 5, B1: 5, F2: 5, B2: 5}", "--set", "codec=none",
            "--set", "threads={client: 1, server: 1}", "--set", f"checkpoint.every_seconds={every}"]  # fmt: skip


def train_seconds(options, address, folder, every):
    subprocess.run(command(options, address, folder, options.steps, every), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
                               "--set", "wait.allowed=true"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # fmt: skip
    for line in server.stdout:
        if " listens on " in line:
            return server, int(line.rsplit(":", 1)[1])
    raise SystemExit("checkpoints: the server did not start")


def train_rows(path):
    with contextlib.suppress(OSError), open(path) as file:
        return [row for row in csv.DictReader(file) if row["phase"] == "train" and row["seconds"]]
    return []


def continues(options):
    """Seconds from the restart of a killed server to the run's first new step."""
    with tempfile.TemporaryDirectory() as folder:
        server, port = start_server(options, f"{folder}/store", 0)
        client = subprocess.Popen(command(options, f"127.0.0.1:{port}", f"{folder}/run", 100000, 1), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while len(train_rows(f"{folder}/run/steps.csv")) < 80:
            time.sleep(0.1)
        server.kill()
        server.wait()
        before = len(train_rows(f"{folder}/run/steps.csv"))
        start = time.time()
        server, port = start_server(options, f"{folder}/store", port)
        while True:
            rows = train_rows(f"{folder}/run/steps.csv")
            if len(rows) > before and rows[-1]["generation"] != rows[before - 1]["generation"]:
                break
            time.sleep(0.05)
        again = next(row for row in rows[before:] if row["generation"] != rows[before - 1]["generation"])
        end = time.mktime(time.strptime(again["time"][:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone + float("0" + again["time"][19:-1])
        client.send_signal(signal.SIGKILL)
        client.wait()
        server.kill()
        server.wait()
        return end - start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--config", default="configs/synthetic.yaml")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400, help="steps per run")
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()
    others = Others()
    results = []
    for every in (5, 1):
        ratio = cost(options, every)
        results.append({"every_seconds": every, "ratio": ratio, "target": COST, "reached": ratio <= COST})
        print(f"a checkpoint every {every} s, 34 MB at the server: {ratio:.3f} times the time without checkpoints; limit {COST}", flush=True)
    seconds = [continues(options) for _ in range(options.rounds)]
    results.append({"continues": seconds, "target": CONTINUES, "reached": max(seconds) <= CONTINUES})
    print(f"from the restart of a killed server to the first new step: {', '.join(f'{each:.1f}' for each in seconds)} s; limit {CONTINUES} s")
    conclude(others.share(), results, options.json)


if __name__ == "__main__":
    main()
