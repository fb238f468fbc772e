"""Measures an honest client while another client occupies the server without breaking its rules: with a
codec that takes half a minute per tensor, or with actions of many seconds. Prints the honest client's steps per second beside each of these
attackers, beside an ordinary client, and alone, and how quickly the server answers the Hello of a new client in the meantime."""
import argparse
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests/hostile"), str(ROOT / "tests/bench")]
import wire as w  # noqa: E402
from load import HONEST, PROGRAMS, SYNTHETIC, Server, steps_between, wait_for_steps  # noqa: E402
from machine import machine_text  # noqa: E402

KEPT = 0.4  # minimum steps per second, relative to those beside an ordinary client
HELLO_SECONDS = 1
MAX_STARTS = 5  # an attacker is started again when an action or tensor has exceeded the limit
BUILDS = "builds"
FOR_EVER = ["eval.every=0", "train.epochs=10000", "data.test.size=32", "train.micro_batches=1", "model.width=2048"]


def hogs(options):
    """Settings of each attacker. Only the model of the attacker `wait` sleeps."""
    slow = '"zstd:level=19(none)"'
    codec = f"codec={{activation/0: none, gradient/1: none, activation/1: {slow}, gradient/0: {slow}}}"
    return {
        # Tensors of 64 MiB, encoded only by the server.
        "codec": [*FOR_EVER, *heavy(8192, 4), codec],
        "wait": [*FOR_EVER, "model.name=sleep", "model.of=mlp", *[f"model.{part}={1000 * options.action:.0f}" for part in ("F2", "B2")]],
        "model": [*FOR_EVER, *heavy(options.batch, 8), "codec=none"],
        "builds": BUILDS,
    }  # fmt: skip


def heavy(batch, depth):
    """An epoch has 32 steps, because at its end the client writes the model to this machine's disk, while a real attacker has its own
    disk."""
    return [f"data.train.size={32 * batch}", f"train.batch={batch}", f"model.depth={depth}"]


def large_model():
    """The spec of a run whose body takes the server seconds to build."""
    width, depth = 8192, 4
    return w.run_spec(parameters={"width": str(width), "depth": str(depth)}, cut1=depth + 2, max_batch=4, micro_batches=1, in_flight=1)


class Builder(threading.Thread):
    """Opens runs with a large body one after the other, and leaves each while the body is being built."""

    def __init__(self, server):
        super().__init__()
        self.port = server.port
        self.stopping = False
        self.runs = 0
        self.start()

    def run(self):
        while not self.stopping:
            peer = w.Peer(self.port)
            try:
                peer.open(f"builder-{self.runs}", large_model())
                self.runs += 1
                time.sleep(0.3)  # the build has begun, and cannot be interrupted
            except AssertionError:  # the memory of the last one is not free yet
                time.sleep(0.05)
            peer.close()

    def stop(self):
        self.stopping = True
        self.join()


class Client(threading.Thread):
    """A cleave-client that is restarted whenever it ends, until stopped."""

    def __init__(self, server, run, settings):
        super().__init__()
        self.server, self.run_path, self.settings = server, run, settings
        self.stopping = False
        self.process = None
        self.runs = 0
        self.start()

    def run(self):
        while not self.stopping:
            self.runs += 1
            with open(f"{self.run_path}-{self.runs}.log", "w") as log:
                self.process = subprocess.Popen(
                    [PROGRAMS / "cleave-client", "train", "--config", SYNTHETIC, "--server", f"127.0.0.1:{self.server.port}",
                     "--run-dir", f"{self.run_path}-{self.runs}", "--set=codec=block:bits=8", *(f"--set={setting}" for setting in self.settings)],
                    stdout=subprocess.DEVNULL, stderr=log)  # fmt: skip
                self.process.wait()

    @property
    def folder(self):
        return pathlib.Path(f"{self.run_path}-{self.runs}")

    def stop(self):
        self.stopping = True
        self.process.send_signal(signal.SIGKILL)
        self.join()


def hello_seconds(server, name):
    """Seconds until the Hello of a new client is answered."""
    start = time.monotonic()
    peer = w.Peer(server.port).open(name)
    seconds = time.monotonic() - start
    peer.close()
    return seconds


def measure(options, folder, settings):
    """Runs an honest client beside another client with these settings (None: alone). Returns its steps per second, the longest wait for a
    HelloOk, how often the other client was started, and how many processors the server used on average."""
    folder.mkdir()
    with Server(folder, {}) as server:
        honest = Client(server, folder / "honest", HONEST)
        wait_for_steps(honest.folder)
        builds = settings == BUILDS
        other = Builder(server) if builds else Client(server, folder / "other", settings) if settings else None
        hello = 0.0
        time.sleep(options.warm_up)  # until the other client is working
        begin, busy = time.time(), server.processor_seconds()
        while time.time() < begin + options.seconds:
            hello = max(hello, hello_seconds(server, f"newcomer-{time.time_ns()}"))
            time.sleep(1)
        end, busy = time.time(), server.processor_seconds() - busy
        rate = steps_between(honest.folder, begin, end)
        crashed = honest.runs > 1
        starts = other.runs if other else 0
        if other:
            other.stop()
        # A client that is refused or ends immediately occupies nothing.
        worked = any(len(path.read_text().splitlines()) > 1 for path in folder.glob("other-*/transfers.csv"))
        if other and not builds and (not worked or starts > MAX_STARTS):
            sys.exit(f"fairness.py: the other client did no work in {starts} starts: {(folder / 'other-1.log').read_text()[-500:]}")
        honest.stop()
    if crashed:
        sys.exit(f"fairness.py: the honest client exited: {(folder / 'honest-1.log').read_text()[-500:]}")
    return {"steps/s": round(rate, 2), "hello s": round(hello, 3), "starts": starts, "processors": round(busy / (end - begin), 2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog="Example: ./scripts/bench.sh fairness --short")
    parser.add_argument("--seconds", type=float, help="seconds per measurement (120)")
    parser.add_argument("--action", type=float, help="duration of the actions that wait, in seconds (15)")
    parser.add_argument("--batch", type=int, help="batch of the heavy model, which determines how long its actions take (4096)")
    parser.add_argument("--short", action="store_true", help="30 s each, actions of 4 s, a batch of 1024")
    parser.add_argument("--only", choices=["codec", "wait", "model", "builds"], help="only this attacker")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="writes the figures to this file")
    options = parser.parse_args()
    options.seconds = options.seconds or (30 if options.short else 120)
    options.action = options.action or (4 if options.short else 15)
    options.batch = options.batch or (1024 if options.short else 4096)
    options.warm_up = 10
    print(machine_text())
    attackers = {name: settings for name, settings in hogs(options).items() if options.only in (None, name)}
    cases = {"alone": None, "ordinary": HONEST, **attackers}
    results, failed = {}, False
    with tempfile.TemporaryDirectory(prefix="cleave-fairness-") as name:
        print(f"{'beside':<10}{'steps/s':>9}{'kept':>8}{'hello s':>9}{'starts':>8}{'processors':>12}")
        for case, settings in cases.items():
            result = results[case] = measure(options, pathlib.Path(name) / case, settings)
            kept = ""
            if "ordinary" in results:
                result["kept"] = round(result["steps/s"] / results["ordinary"]["steps/s"], 3)
                kept = f"{100 * result['kept']:.0f} %"
                failed |= result["kept"] < KEPT
            failed |= result["hello s"] > HELLO_SECONDS
            print(f"{case:<10}{result['steps/s']:>9.2f}{kept:>8}{result['hello s']:>9.3f}{result['starts']:>8}{result['processors']:>12.2f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    print(f"limits: at least {100 * KEPT:.0f} % of the steps per second beside an ordinary client, a Hello within {HELLO_SECONDS} s: "
          f"{'FAILED' if failed else 'ok'}")  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
