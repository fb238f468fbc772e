#!/usr/bin/env python3
"""Kills clients and servers at random times while they train, and continues the runs. Checks that no committed step is repeated, and
compares the final weights with those of an undisturbed run, bit for bit.

Example: scripts/crash.py --programs build/release/bin --runs 100 --kill both --seed 7 --model graph
"""
import argparse
import csv
import datetime
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

# The run uses everything that has a state: dropout, batch statistics, Adam, a codec with power iteration.
CONFIG = """
run: {name: crash}
model: MODEL
data: {format: synthetic, shape: [1, 8, 8], classes: 10, train: {size: 1024}, test: {size: 256}}
train: {batch: 32, micro_batches: 4, epochs: 12, optimizer: {name: adam}, learning_rate: {schedule: cosine, peak: 0.01}}
eval: {batch: 128}
codec: {activation/0: "power:rank=4", activation/1: "block:bits=8", gradient/1: "power:rank=4", gradient/0: "block:bits=8"}
checkpoint: {every_steps: INTERVAL}
connect: {reconnect_seconds: 60}
"""
# An exported model with a residual block. Its runs also resume adapters, batch norms, a loss scale, parameter groups and frozen parameters.
GRAPH = """{name: graph, file: "ROOT/tests/data/tiny.pt2", cuts: [norm, dropout], lora: {rank: 2, dropout: 0.1, targets: [classifier]}}
precision: {client: fp16, server: fp16}
keep: {best: top1}"""
MODELS = {"mlp": "{name: mlp, width: 64, depth: 3, dropout: 0.1}", "graph": GRAPH}
FREEZE = "freeze: ['*', '!block.*', '!norm.*'], groups: ['*.bias:learning_rate=2,weight_decay=0'], "
INTERVAL = 15  # steps between two checkpoints
PATIENCE = 120  # maximum seconds of an undisturbed run
ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "passive"}  # otherwise each program re-executes itself, and takes twice as long to start


class Daemons:
    def __init__(self, programs, folder):
        self.programs, self.folder = programs, folder
        self.log = open(folder / "log.txt", "a")  # noqa: SIM115
        self.port = 0
        self.server = None

    def start_server(self):
        command = [self.programs / "cleave-server", "serve", "--set", f"listen.port={self.port}", "--set", f"store={self.folder}/store"]
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True, env=ENVIRONMENT)
        for line in self.server.stdout:
            if " listens on " in line:
                self.port = int(line.rsplit(":", 1)[1])
                return
        raise SystemExit(f"crash: the server did not start; see {self.folder}/log.txt")

    def start_client(self, run, *more):
        begin = ["--config", self.folder / "crash.yaml", "--server", f"127.0.0.1:{self.port}", "--run-dir", run, *more]
        resume = ["--resume", run, "--server", f"127.0.0.1:{self.port}"]
        command = [self.programs / "cleave-client", "train", "--quiet", *(resume if (run / "run.json").exists() else begin)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self.log, env=ENVIRONMENT)

    def kill_server(self):
        self.server.kill()
        self.server.wait()


def digest(run):
    return hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()


def steps_redone(run):
    return json.loads((run / "summary.json").read_text())["steps_redone"]


def committed(run):
    """The step of the run's newest commit; 0: none."""
    try:
        return max((entry["step"] for entry in json.loads((run / "checkpoints/commits.json").read_text())), default=0)
    except FileNotFoundError:
        return 0


def repeated_needlessly(run, kills):
    """Describes the first step that was repeated although it was committed when something was killed; empty: none. `kills`: (time, newest
    commit) of each."""
    with open(run / "steps.csv", encoding="utf-8", newline="") as file:
        steps = [(datetime.datetime.fromisoformat(row["time"].replace("Z", "+00:00")).timestamp(), int(row["step"]))
                 for row in csv.DictReader(file) if row["phase"] == "train"]  # fmt: skip
    for at, commit in kills:
        first = min((step for time, step in steps if time > at), default=commit + 1)
        if first <= commit:
            return f"repeated step {first}, although step {commit} was committed"
    return ""


def crash_run(daemons, run, kill, seconds, rng):
    """Returns the (time, committed step) of each kill, or None if the run failed."""
    kills = []
    client = daemons.start_client(run)
    while True:
        try:
            code = client.wait(timeout=0.2 + rng.random() * seconds * 0.6 if len(kills) < 12 else PATIENCE)
        except subprocess.TimeoutExpired:
            if len(kills) >= 12:
                client.kill()
                return None
            side = rng.choice(["client", "server", "both"]) if kill == "both" else kill
            if side != "server":
                client.kill()
                client.wait()
            kills.append((time.time(), committed(run)))
            if side != "client":
                daemons.kill_server()
                daemons.start_server()
            if side != "server":
                client = daemons.start_client(run)
            continue
        # A client that is killed after the run is complete also counts as successful.
        return kills if code == 0 or (run / "summary.json").exists() else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=pathlib.Path, required=True, help="folder with cleave-client and cleave-server")
    parser.add_argument("--runs", type=int, default=10, help="runs to disturb (10)")
    parser.add_argument("--kill", choices=["client", "server", "both"], default="both", help="what is killed (both)")
    parser.add_argument("--model", choices=list(MODELS), default="mlp", help="mlp, or an exported model that is fine-tuned (mlp)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first run; further runs use consecutive seeds (1)")
    arguments = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="cleave-crash-"))
    root = pathlib.Path(__file__).resolve().parent.parent
    config = CONFIG.replace("MODEL", MODELS[arguments.model]).replace("ROOT", str(root)).replace("INTERVAL", str(INTERVAL))
    if arguments.model == "graph":
        config = config.replace("train: {batch", "train: {" + FREEZE + "batch")
    (folder / "crash.yaml").write_text(config)
    daemons = Daemons(arguments.programs.resolve(), folder)
    daemons.start_server()
    start = time.monotonic()
    if daemons.start_client(folder / "whole").wait(PATIENCE) != 0:
        raise SystemExit(f"crash: the undisturbed run failed; see {folder}/log.txt")
    seconds = time.monotonic() - start
    expected = digest(folder / "whole")
    total, most_redone = 0, 0  # most_redone: per kill
    for done, seed in enumerate(range(arguments.seed, arguments.seed + arguments.runs)):
        if done % 10 == 0 and done > 0:
            print(f"crash: {done} of {arguments.runs} runs, {total} kills", file=sys.stderr)
        run = folder / f"run{seed}"
        kills = crash_run(daemons, run, arguments.kill, seconds, random.Random(seed))
        why = ""
        if kills is None:
            why = "failed"
        elif digest(run) != expected:
            why = "has different weights"
        else:
            why = repeated_needlessly(run, kills)
        if why:
            print(f"crash: the run with seed {seed} {why}; its files: {run}, {folder}/log.txt", file=sys.stderr)
            print(f"  to repeat it: scripts/crash.py --programs {arguments.programs} --runs 1 --kill {arguments.kill} "
                  f"--seed {seed} --model {arguments.model}", file=sys.stderr)  # fmt: skip
            daemons.kill_server()
            raise SystemExit(1)
        total += len(kills)
        most_redone = max(most_redone, steps_redone(run) / max(len(kills), 1))
        shutil.rmtree(run)
    daemons.server.send_signal(signal.SIGTERM)
    daemons.server.wait()
    shutil.rmtree(folder)
    print(f"crash: {arguments.runs} runs, {total} kills: the same weights each time, at most {most_redone:.1f} steps redone per kill "
          f"({time.monotonic() - start:.0f} s)")  # fmt: skip


if __name__ == "__main__":
    main()
