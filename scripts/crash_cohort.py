#!/usr/bin/env python3
"""Kills members of a cohort, and its server, at random times while they train. Members come back, some after the others have gone on without
them, and one may begin late. Then computes each run again in one process, from what its summary says about who took part, and compares the
models of all members that have finished with that, bit for bit. With --relay, the members take turns.

Example: scripts/crash_cohort.py --programs build/release/bin --runs 100 --seed 7
"""
import argparse
import hashlib
import json
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from crash import Daemons

MEMBERS = ("north", "south", "west")
CONFIG = """
run: {name: crash}
model: {name: mlp, width: 32, depth: 3, dropout: 0.1}
data: {format: synthetic, shape: [1, 8, 8], classes: 10, train: {size: 400}, test: {size: 64}}
train: {batch: 30, micro_batches: 4, epochs: 20, optimizer: {name: adam}, learning_rate: {schedule: cosine, peak: 0.01}}
eval: {batch: 64, every: 5}
codec: none
checkpoint: {every_steps: 10}
connect: {reconnect_seconds: 60}
cohort: {id: crash, members: [MEMBERS], wait_seconds: WAIT, MODE}
"""
PATIENCE = 180  # maximum seconds of a run without further kills
KILLS = 6


def tensors(run):
    """The tensors of a run's model, as a text that identifies them. Its metadata has the member's own description of its data."""
    file = (run / "model.safetensors").read_bytes()
    size = int.from_bytes(file[:8], "little")
    header = json.loads(file[8 : 8 + size])
    header.pop("__metadata__", None)
    return json.dumps(header, sort_keys=True) + hashlib.sha256(file[8 + size :]).hexdigest()


class Cohort:
    def __init__(self, daemons, folder, rng, is_relay):
        self.daemons, self.folder, self.rng, self.is_relay = daemons, folder, rng, is_relay
        self.processes = {}
        self.due = {}  # when a member that is not there begins, or comes back
        self.kills = 0
        self.told = 0
        while self.came_too_late():  # those of earlier runs
            pass

    def start(self, name):
        self.due.pop(name, None)
        self.processes[name] = self.daemons.start_client(
            self.folder / name, "--set", f"cohort.member={name}", "--set", f"data.train.size={300 + 50 * MEMBERS.index(name)}"
        )

    def came_too_late(self):
        """Whether one more member than at the last call has been told that the others are done."""
        told = (self.daemons.folder / "log.txt").read_text(errors="replace").count("error [cohort-done]")
        is_new = told > self.told
        self.told += is_new
        return is_new

    def kill(self):
        """Kills a member that is there, or the server, which starts again at once."""
        victim = self.rng.choice([*self.processes, "server"])
        self.kills += 1
        if victim == "server":
            self.daemons.kill_server()
            self.daemons.start_server()
            return
        process = self.processes.pop(victim)
        process.kill()
        process.wait()
        self.due[victim] = time.monotonic() + self.rng.choice((0, 1, 4))

    def run(self):
        """Returns the names of the members that have finished; None: the run failed."""
        late = self.rng.choice((None, *MEMBERS[1:]))
        mode = f"min_members: 2, begin_members: {2 if late else 0}"
        if self.is_relay:
            key = self.folder / "key"
            key.touch(0o600)
            key.write_text("5a" * 32)
            mode = f"mode: relay, turn_epochs: {self.rng.choice((1, 2))}, key_file: {key}"
        config = CONFIG.replace("MEMBERS", ", ".join(MEMBERS)).replace("MODE", mode).replace("id: crash", f"id: {self.folder.name}")
        (self.daemons.folder / "crash.yaml").write_text(config.replace("WAIT", str(self.rng.choice((0, 1)))))
        for name in MEMBERS:
            self.due[name] = time.monotonic() + (3 if name == late else 0)
        done = []
        next_kill = time.monotonic() + 1 + 2 * self.rng.random()
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for name, at in list(self.due.items()):
                # The others are done: nobody can continue with it. In a relay, it gets the model.
                if done and not self.is_relay:
                    del self.due[name]
                elif time.monotonic() >= at:
                    self.start(name)
            for name, process in list(self.processes.items()):
                code = process.poll()
                if code is None:
                    continue
                del self.processes[name]
                if code == 1 and self.came_too_late():
                    continue
                if code != 0:
                    print(f"crash: {name} ended with code {code}", file=sys.stderr)
                    return None
                done.append(name)
                if self.is_relay:
                    continue
                end = min(end, time.monotonic() + 10)  # a member that had just come back waits for the others, which are done
            if not self.processes and not self.due:
                break
            if not done and self.kills < KILLS and time.monotonic() >= next_kill:
                self.kill()
                next_kill = time.monotonic() + 0.2 + 3 * self.rng.random()
            time.sleep(0.02)
        for process in self.processes.values():
            process.kill()
            process.wait()
        return done or None


def check(programs, folder, done):
    """Returns what is wrong, or nothing, and the number of changes of who took part."""
    models = {tensors(folder / name) for name in done}
    if len(models) != 1:
        return "gave its members different models", 0
    command = [programs / "cleave-client", "verify", "--json", "--replay", *(folder / name for name in MEMBERS)]
    replayed = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if replayed.returncode != 0 or not json.loads(replayed.stdout)["equal"]:
        return "cannot be computed again", 0
    return "", len(json.loads((folder / done[0] / "summary.json").read_text())["cohort"]["attendance"]) - 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=pathlib.Path, required=True, help="folder with cleave-client and cleave-server")
    parser.add_argument("--runs", type=int, default=10, help="runs to disturb (10)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first run; further runs use consecutive seeds (1)")
    parser.add_argument("--relay", action="store_true", help="the members train one after the other")
    arguments = parser.parse_args()
    programs = arguments.programs.resolve()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="cleave-crash-"))
    daemons = Daemons(programs, folder)
    daemons.start_server()
    start = time.monotonic()
    kills, changes, finished = 0, 0, 0
    for number, seed in enumerate(range(arguments.seed, arguments.seed + arguments.runs)):
        if number % 10 == 0 and number > 0:
            print(f"crash: {number} of {arguments.runs} runs, {kills} kills, {changes} changes of who takes part", file=sys.stderr)
        run = folder / f"run{seed}"
        run.mkdir()
        cohort = Cohort(daemons, run, random.Random(seed), arguments.relay)
        done = cohort.run()
        why, changed = check(programs, run, done) if done else ("failed", 0)
        if why:
            print(f"crash: the run with seed {seed} {why}; its files: {run}, {folder}/log.txt", file=sys.stderr)
            print(f"  to repeat it: scripts/crash_cohort.py --programs {arguments.programs} --runs 1 --seed {seed}", file=sys.stderr)
            daemons.kill_server()
            raise SystemExit(1)
        kills, changes, finished = kills + cohort.kills, changes + changed, finished + len(done)
        shutil.rmtree(run)
    daemons.server.send_signal(signal.SIGTERM)
    daemons.server.wait()
    shutil.rmtree(folder)
    print(f"crash: {arguments.runs} cohorts of 3{' in turns' if arguments.relay else ''}, {kills} kills, {changes} changes of who takes part: the {finished} models are those of "
          f"computing the runs again ({time.monotonic() - start:.0f} s)")  # fmt: skip


if __name__ == "__main__":
    main()
