"""Measures what a run adds to the memory of a server: of its own process, and of the run's process. Requires root, because no other user
may read the memory map of a run's process."""
import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests/hostile"), str(ROOT / "tests/bench")]
from machine import machine, machine_text  # noqa: E402
from processes import children, memory_kib  # noqa: E402
from server import PROGRAMS, Server  # noqa: E402

MODELS = {
    "mlp": ["--config", ROOT / "configs/synthetic.yaml", "--set=train.epochs=100000"],
    "small_cnn, batch 256": ["--config", ROOT / "tests/bench/small_cnn.yaml", "--set=train.batch=256", "--set=data.train.size=256", "--set=train.epochs=100000"],
}
IDLE_SECONDS = 3  # the server returns memory after 1 s, and ends a connection after about 40 s


def own_mib(process):
    """The process's resident memory without files; what it shares with others is divided among them."""
    text = pathlib.Path(f"/proc/{process}/smaps_rollup").read_text()
    return sum(int(re.search(rf"{kind}:\s+(\d+)", text)[1]) for kind in ("Pss_Anon", "Pss_Shmem")) / 1024


class MeasuredServer(Server):
    def runs(self):
        (stage_server,) = children(self.process.pid)
        return children(stage_server)

    def mib(self):
        (stage_server,) = children(self.process.pid)
        everyone = [str(self.process.pid), stage_server, *self.runs()]
        tables = sum(memory_kib(one, "VmPTE") for one in everyone) / 1024
        return sum(own_mib(one) for one in everyone) + tables


class Client:
    def __init__(self, server, arguments, run):
        self.run = run
        self.process = subprocess.Popen(
            [PROGRAMS / "cleave-client", "train", *arguments, "--server", server.address, "--run-dir", run, "--set=codec=none",
             "--set=eval.every=0", "--set=threads={client: 1, server: 1}", "--log-level", "error"],
            stdout=subprocess.DEVNULL, cwd=ROOT)  # fmt: skip

    def steps(self):
        path = self.run / "steps.csv"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def send(self, which):
        self.process.send_signal(which)

    def end(self):
        self.process.kill()
        self.process.wait()


def measure(arguments, count, folder):
    server = MeasuredServer(folder / "store", "limits.sessions_per_identity=100")
    clients = []

    def start(number):
        for _ in range(number):
            clients.append(Client(server, arguments, folder / f"run{len(clients)}"))
        while any(one.steps() < 20 for one in clients):
            time.sleep(0.1)

    def idle_mib():
        for one in clients:
            one.send(signal.SIGSTOP)
        time.sleep(IDLE_SECONDS)
        mib = server.mib()
        for one in clients:
            one.send(signal.SIGCONT)
        return mib

    start(1)
    idle_first, busy_first = idle_mib(), server.mib()
    start(count)
    busy = max(server.mib() for _ in range(10))
    idle = idle_mib()
    if len(server.runs()) != count + 1:
        raise SystemExit("run_memory.py: a run has ended")
    for one in clients:
        one.end()
    server.end()
    return {"busy_mib": (busy - busy_first) / count, "idle_mib": (idle - idle_first) / count}


def main():
    parser = argparse.ArgumentParser(prog="bench.sh run-memory", description=__doc__)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--json")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("run_memory.py: this needs root: sudo ./scripts/bench.sh run-memory")
    results = {}
    print(f"{'model':<24}{'MiB per run while it trains':>28}{'after an idle second':>24}")
    for model, arguments in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            results[model] = measure(arguments, options.runs, pathlib.Path(folder))
        print(f"{model:<24}{results[model]['busy_mib']:>28.1f}{results[model]['idle_mib']:>24.1f}", flush=True)
    print(f"\n{options.runs} runs beside another one; {len(os.sched_getaffinity(0))} cores; {machine_text()}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"results": results, "runs": options.runs, "machine": machine()}, indent=2))


if __name__ == "__main__":
    main()
