"""Measures time, memory and bytes of a training step by precision, recomputation and frozen parts: MobileNetV2 on generated images of 96 x
96, with the first six blocks and the classifier on the client, client and server on this machine, codec none.

A step's time is the median over all steps except the first two. Memory is the peak resident set (VmHWM) of each program. The variants
alternate. Called by scripts/bench.sh tuning."""

import argparse
import csv
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

from machine import Others, conclude

MIB = 2**20
CONFIG = {
    "model": {"name": "mobilenet_v2", "cuts": [6, 21]},
    "data": {"format": "synthetic", "shape": [3, 96, 96], "train": {"size": 1024}, "test": {"size": 64}},
    "train": {"batch": 64, "micro_batches": 4, "learning_rate": 0.01},
    "eval": {"every": 0},
    "checkpoint": {"every_seconds": 0},
    "codec": "none",
}
VARIANTS = {
    "fp32": [],
    "recompute": ["train.recompute=true"],
    "bf16": ["precision={client: bf16, server: bf16}"],
    "head frozen": ["train.freeze=[features.0.*, features.1.*, features.2.*, features.3.*]"],
    "head and body frozen": ["train.freeze=['*', '!classifier.*']"],
}


def peak_of(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def measure(options, name, folder):
    config = pathlib.Path(folder) / "run.yaml"
    config.write_text(json.dumps(CONFIG))
    run = tempfile.mkdtemp(dir=folder)
    server = subprocess.Popen([f"{options.programs}/cleave-server", "serve", "--set", "listen.port=0", "--set", f"store={run}/store"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    address = next(line.split()[-1] for line in server.stdout if " listens on " in line)
    sets = [*VARIANTS[name], f"train.max_steps={options.steps}"]
    client = subprocess.Popen([f"{options.programs}/cleave-client", "train", "--config", config, "--server", address, "--run-dir", f"{run}/run", "--json",
                               "--log-level", "error", *[f"--set={each}" for each in sets]], stdout=subprocess.PIPE, text=True)
    output = client.stdout.read()
    _, status, usage = os.wait4(client.pid, 0)
    memory = peak_of(server.pid)
    server.terminate()
    server.wait()
    if status != 0:
        raise SystemExit(f"tuning: {name} failed")
    with open(f"{run}/run/steps.csv") as file:
        seconds = [float(row["seconds"]) for row in csv.DictReader(file) if row["phase"] == "train"][2:]
    summary = json.loads(output)
    return {"seconds": statistics.median(seconds), "client": usage.ru_maxrss * 1024, "server": memory,
            "up": summary["bytes_up"] / options.steps, "down": summary["bytes_down"] / options.steps}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()
    others = Others()
    results = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for name in VARIANTS:
                results[name].append(measure(options, name, folder))
    print(f"{'variant':<22}{'step ms':>9}{'x fp32':>8}{'client MiB':>12}{'server MiB':>12}{'MB up':>8}{'MB down':>9}")
    base = statistics.median(one["seconds"] for one in results["fp32"])
    rows = []
    for name, runs in results.items():
        row = {key: statistics.median(one[key] for one in runs) for key in runs[0]}
        rows.append({"variant": name, **row})
        print(f"{name:<22}{1e3 * row['seconds']:>9.1f}{row['seconds'] / base:>8.2f}{row['client'] / MIB:>12.0f}{row['server'] / MIB:>12.0f}"
              f"{row['up'] / 1e6:>8.2f}{row['down'] / 1e6:>9.2f}")
    conclude(others.share(), rows, options.json)


if __name__ == "__main__":
    main()
