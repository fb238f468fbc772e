#!/usr/bin/env python3
"""Trains for hours while faults happen, and checks that resident memory, descriptors, threads and step times do not grow. One server serves
two clients, each behind a relay of its own. Once per minute, the connection of `steady` is cut, and `killed` gets one fault: in four
of five minutes a cut, in the fifth a kill -9 and a resume. Parts of the models sleep instead of computing, so that a fault's cost does
not depend on the processors.

Example: scripts/soak.py --programs build/release/bin --minutes 60
"""
import argparse
import csv
import json
import pathlib
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

CONFIG = """
model: {name: mlp, width: 256, depth: 3, dropout: 0.1}
data: {format: synthetic, shape: [1, 16, 16], classes: 10, train: {size: 4096}, test: {size: 64}}
train: {batch: 64, micro_batches: 4, epochs: 100000, optimizer: {name: adam}}
eval: {batch: 64, every: 10}
codec: "block:bits=8"
checkpoint: {every_seconds: 5}
connect: {reconnect_seconds: 60}
metrics: {rotate: 64MB}
threads: {client: 1, server: 1}
"""
SLEEPS = {"F1": 10, "T3": 15, "B1": 10}  # ms: about 0.15 s per step
MAX_GROWTH = 0.01  # per hour
MAX_SLOWDOWN = 1.1
WARM_UP = 600  # s until memory pools reach their final size
QUIET = 10  # s without faults at the start


class Relay:
    """Forwards connections to the server, until cut() resets them."""

    def __init__(self, port):
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.open, self.lock = [], threading.Lock()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            with self.lock:
                self.open = [each for each in self.open if each.fileno() >= 0] + [client, server]
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self.forward, args=(source, target), daemon=True).start()

    @staticmethod
    def forward(source, target):
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            for each in (source, target):
                each.close()

    def cut(self):
        with self.lock:
            for each in self.open:
                try:
                    each.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
                each.close()
            self.open = []


class Client:
    def __init__(self, name, programs, folder, relay):
        self.run, self.programs, self.relay = folder / name, programs, relay
        self.log = open(folder / f"{name}.txt", "a")  # noqa: SIM115
        self.config = folder / "soak.yaml"
        self.start()

    def start(self):
        command = [self.programs / "cleave-client", "train", "--quiet", "--server", f"127.0.0.1:{self.relay.port}"]
        if (self.run / "run.json").exists():
            command += ["--resume", self.run]
        else:
            command += ["--config", self.config, "--run-dir", self.run]
            settings = {"name": "sleep", "of": "mlp", **SLEEPS}
            command += [argument for key, value in settings.items() for argument in ("--set", f"model.{key}={value}")]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self.log)
        processes.append(self.process)

    def restart(self):
        self.process.kill()
        self.process.wait()
        self.start()

    def rows(self):
        return step_seconds(self.run)

    def server_rows(self, store):
        run = json.loads((self.run / "run.json").read_text())["run"]
        return step_seconds(next(store.glob(f"*/{run}")))


def step_seconds(folder):
    """{step: seconds} of the training steps in one side's folder of a run; if a step was redone, the last row counts."""
    steps = {}
    for file in sorted(folder.glob("steps*.csv"), key=lambda path: path.stat().st_mtime):
        with open(file) as text:
            for row in csv.DictReader(text):
                if row["phase"] == "train" and row["seconds"]:
                    steps[int(row["step"])] = float(row["seconds"])
    return steps


def resources(process):
    """Resident KiB, descriptors and threads of the process, or None if it has ended."""
    folder = pathlib.Path(f"/proc/{process.pid}")
    try:
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        return int(status["VmRSS"].split()[0]), len(list((folder / "fd").iterdir())), int(status["Threads"])
    except (OSError, KeyError):
        return None


def growth(samples):
    """Slope per hour of the least-squares line through [(hours, value)], as a fraction of the mean value."""
    if len(samples) < 2:
        return 0.0
    x, y = zip(*samples)
    return statistics.linear_regression(x, y).slope / statistics.mean(y)


def step_growth(steps, step_hours, late):
    """Growth per hour of the step time, after `late` hours. Fits the lower decile of each 100 steps: a fault and other programs make
    some steps longer, but what a process adds to every step raises it too."""
    later = [(number * step_hours, seconds) for number, seconds in steps.items() if number * step_hours >= late]
    blocks = [later[i:i + 100] for i in range(0, len(later) - 99, 100)]
    return growth([(block[0][0], statistics.quantiles((seconds for _, seconds in block), n=10)[0]) for block in blocks])


processes = []


def main():
    try:
        return soak()
    finally:
        for process in processes:
            process.kill()
            process.wait()


def soak():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=pathlib.Path, required=True, help="folder with cleave-client and cleave-server")
    parser.add_argument("--minutes", type=float, default=60, help="duration (60)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the fault times (1)")
    parser.add_argument("--json", action="store_true", help="prints JSON")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    programs = arguments.programs.resolve()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="cleave-soak-"))
    (folder / "soak.yaml").write_text(CONFIG)
    server_log = open(folder / "server.txt", "a")  # noqa: SIM115
    command = [programs / "cleave-server", "serve", "--set", "listen.port=0", "--set", f"store={folder}/store", "--set", "threads=1",
               "--set", "models.allow=[sleep]"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=server_log, text=True)
    processes.append(server)
    port = next(int(line.rsplit(":", 1)[1]) for line in server.stdout if " listens on " in line)
    steady = Client("steady", programs, folder, Relay(port))
    killed = Client("killed", programs, folder, Relay(port))
    time.sleep(QUIET)
    done_before = max(killed.rows(), default=0)
    start = time.monotonic()
    samples = {"server": [], "steady client": []}
    cuts = kills = 0
    next_fault = start + 60 * rng.random()
    while time.monotonic() - start < arguments.minutes * 60:
        time.sleep(5)
        hours = (time.monotonic() - start) / 3600
        for name, process in (("server", server), ("steady client", steady.process)):
            if (found := resources(process)) is None:
                sys.exit(f"soak: the {name} has ended; see {folder}")
            samples[name].append((hours, found))
        if killed.process.poll() is not None:
            sys.exit(f"soak: the client `killed` exited unexpectedly with exit code {killed.process.returncode}; see {folder}")
        if time.monotonic() >= next_fault:
            next_fault += 60
            steady.relay.cut()
            if (cuts + kills) % 5 == 4:
                kills += 1
                killed.restart()
            else:
                cuts += 1
                killed.relay.cut()
    seconds = time.monotonic() - start
    done = max(killed.rows(), default=0) - done_before
    # The reference is `steady`'s median step time during the same run, because other programs may slow the machine. The median is not
    # affected by steps with faults.
    steps = steady.rows()
    undisturbed = statistics.median(steps.values())
    slowdown = seconds / (done * undisturbed) if done else float("inf")
    figures = {"minutes": seconds / 60, "cuts": cuts, "kills": kills, "steps": done, "undisturbed_step_seconds": undisturbed,
               "time_relative_to_undisturbed": slowdown, "growth_per_hour": {}}  # fmt: skip
    late = min(WARM_UP, seconds / 2) / 3600
    for name, all_of in samples.items():
        for i, what in enumerate(("resident", "descriptors", "threads")):
            figures["growth_per_hour"][f"{name}, {what}"] = growth([(h, values[i]) for h, values in all_of if h >= late])
    # The two sides of the run of `steady`, each with its own measurement of a step.
    for name, rows in (("steady client", steps), ("server", steady.server_rows(folder / "store"))):
        figures["growth_per_hour"][f"{name}, step"] = step_growth(rows, seconds / 3600 / max(steps), late)
    good = slowdown <= MAX_SLOWDOWN and all(each < MAX_GROWTH for each in figures["growth_per_hour"].values())
    if arguments.json:
        print(json.dumps(figures, indent=2))
    else:
        print(f"soak: {seconds / 60:.0f} minutes, {cuts} cuts, {kills} kills; {done} steps took {slowdown:.3f} times the time without faults")
        for name, each in figures["growth_per_hour"].items():
            print(f"soak: {name}: {each:+.3%} per hour")
    if good:
        shutil.rmtree(folder)
    else:
        print(f"soak: more than {MAX_SLOWDOWN} times the time, or growth of more than {MAX_GROWTH:.0%} per hour; see {folder}", file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
