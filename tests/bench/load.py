"""Opens many connections to one server: silent peers, clients that send a Hello within TLS, clients that train, and clients that do not
read. Prints the server's memory use, and the effect on an honest client."""
import argparse
import datetime
import json
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests/hostile"), str(ROOT / "tests/bench")]
import wire as w  # noqa: E402
from machine import machine_text  # noqa: E402
from processes import children, processor_seconds  # noqa: E402

PROGRAMS = ROOT / "build/release/bin"
SYNTHETIC = ROOT / "configs/synthetic.yaml"
# All connections come from one address, which by default is limited to 256 connections and 50 new
# ones per second.
LIMITS = {"connections": 8192, "connections_per_address": 8192, "handshakes": 100000, "handshakes_burst": 100000,
          "handshakes_per_address": 100000, "sessions": 512, "sessions_per_identity": 10000, "runs_per_hour": 1000000}  # fmt: skip
# The honest client sleeps instead of computing, so that an attacker on the same machine does not take its processor time.
HONEST = ["model={name: sleep, of: mlp, width: 32, depth: 2, F1: 2, T3: 1, B1: 2, F2: 2, B2: 2}",
          "eval.every=0", "train.epochs=10000", "data.train.size=256", "data.test.size=32"]


class Server:
    def __init__(self, folder, limits, tls=None):
        settings = [f"--set=limits.{key}={value}" for key, value in {**LIMITS, **limits}.items()]
        if tls:
            settings += ["--set=tls.enabled=true", f"--set=tls.folder={tls}"]
        self.errors = open(folder / "server.log", "w+")
        self.process = subprocess.Popen(
            [PROGRAMS / "cleave-server", "serve", "--config", ROOT / "configs/server.yaml", "--set=listen.port=0",
             f"--set=store={folder}/store", "--set=models.allow=[mlp, small_cnn, mobilenet_v2, graph, sleep]", *settings],
            stdout=subprocess.PIPE, stderr=self.errors, text=True)  # fmt: skip
        line = self.process.stdout.readline()
        self.port = int(line.rsplit(":", 1)[1])
        self.bound_mib = self._bound_mib()

    def _bound_mib(self):
        while True:  # the log may lag behind
            found = re.search(r"(\d+) MiB of memory at most", pathlib.Path(self.errors.name).read_text())
            if found:
                return int(found[1])
            time.sleep(0.01)

    def mib(self, name="VmRSS"):
        return int(re.search(rf"{name}:\s+(\d+)", pathlib.Path(f"/proc/{self.process.pid}/status").read_text())[1]) / 1024

    def processor_seconds(self):
        """Of the server, its stage server, and the processes of its runs, including those that have ended."""
        stage_servers = children(self.process.pid)
        running = [one for stage_server in stage_servers for one in children(stage_server)]
        return sum(processor_seconds(one) for one in [self.process.pid, *stage_servers, *running])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.errors.close()


def client(server, run, settings):
    return subprocess.Popen(
        [PROGRAMS / "cleave-client", "train", "--config", SYNTHETIC, "--server", f"127.0.0.1:{server.port}", "--run-dir", run,
         "--set=codec=block:bits=8", *(f"--set={setting}" for setting in settings)],
        stdout=subprocess.DEVNULL, stderr=open(f"{run}.log", "w"))  # fmt: skip


def steps_between(run, first, last):
    """Steps per second between two wall-clock times, from the client's steps.csv."""
    header, *rows = (line.split(",") for line in (run / "steps.csv").read_text().splitlines())
    times = [datetime.datetime.fromisoformat(row[header.index("time")].rstrip("Z")) for row in rows
             if row[header.index("phase")] == "train"]  # fmt: skip
    zone = datetime.timezone.utc
    return sum(first <= at.replace(tzinfo=zone).timestamp() < last for at in times) / (last - first)


def wait_for_steps(run):
    while not (run / "steps.csv").exists() or (run / "steps.csv").stat().st_size < 4096:
        time.sleep(0.05)


# ---- Silent peers ----


def idle(options, folder):
    """Opens connections that never send a Hello. Measures how quickly they are closed, and how fast an honest client is in the meantime."""
    with Server(folder, {}) as server:
        run = folder / "honest"
        honest = client(server, run, HONEST)
        wait_for_steps(run)
        time.sleep(2)
        begin = time.time()
        time.sleep(options.seconds)
        before, alone_until, busy = server.mib(), time.time(), server.processor_seconds()
        attackers = subprocess.Popen([sys.executable, __file__, "strangers", str(server.port), str(options.idle), str(options.slow)],
                                     stdout=subprocess.PIPE, text=True)  # fmt: skip
        most = before
        while attackers.poll() is None:
            most = max(most, server.mib())
            time.sleep(0.1)
        end, busy = time.time(), server.processor_seconds() - busy
        told = json.loads(attackers.stdout.read())
        honest.send_signal(signal.SIGINT)
        honest.wait(30)
    alone, beside = steps_between(run, begin, alone_until), steps_between(run, alone_until, end)
    return {"connections": options.idle + options.slow, "connected": told["connected"], "closed after s": round(told["last_gone"], 1),
            "server grew MiB": round(most - before, 1), "KiB per connection": round((most - before) * 1024 / max(1, told["connected"]), 1),
            "server's processor s": round(busy, 2), "honest steps/s alone": round(alone, 1), "honest steps/s beside": round(beside, 1), "kept": round(beside / alone, 3)}  # fmt: skip


def strangers(port, idle_count, slow_count):
    """Runs in a separate process: connects, and waits until all connections are closed. Each
    connection's time counts from its own start."""
    os.nice(5)  # the peers represent other machines, and should not use this machine's processors
    poller, begun, sockets = select.epoll(), {}, {}
    for number in range(idle_count + slow_count):
        one = socket.socket()
        try:
            one.connect(("127.0.0.1", port))
        except OSError:
            continue
        one.setblocking(False)
        begun[one.fileno()] = time.monotonic()
        sockets[one.fileno()] = one
        poller.register(one, select.EPOLLIN | select.EPOLLHUP)
        if number % 50 == 0:
            time.sleep(0.01)  # limits the loop to a few thousand connections per second
    connected = len(sockets)
    slow = dict.fromkeys(list(sockets)[:slow_count], 0)
    hello = w.hello("slow")
    last_gone, next_byte = 0.0, time.monotonic()
    while sockets and time.monotonic() - max(begun.values()) < 60:
        if time.monotonic() >= next_byte:
            next_byte += 1
            for file in list(slow):
                try:
                    sockets[file].send(hello[slow[file] : slow[file] + 1])
                    slow[file] += 1
                except OSError:
                    pass
        for file, _ in poller.poll(0.1):
            try:
                gone = not sockets[file].recv(65536)
            except ConnectionError:
                gone = True
            except BlockingIOError:
                gone = False
            if gone:
                last_gone = max(last_gone, time.monotonic() - begun[file])
                poller.unregister(file)
                sockets.pop(file).close()
                slow.pop(file, None)
    print(json.dumps({"connected": connected, "left": len(sockets), "last_gone": last_gone if not sockets else float("inf")}))


# ---- Clients that send a Hello ----


def certificates(folder):
    """A server's certs/ and an SSL context for a client."""
    folder = folder / "certs"
    for arguments in (["init", "--name", "127.0.0.1"], ["client", "load"]):
        subprocess.run([PROGRAMS / "cleave-server", "certs", *arguments, "--folder", folder], check=True, stdout=subprocess.DEVNULL)
    return folder, w.tls_context(folder / "clients/load")


def hellos(options, folder):
    """Runs clients that connect with TLS, send a Hello and receive an answer. Each client keeps its session until all clients have one."""
    certs, context = certificates(folder)
    failures, peers, lock = [], [], threading.Lock()
    with Server(folder, {"sessions": options.hellos + 1}, certs) as server:
        before, start = server.mib(), time.monotonic()
        numbers = iter(range(options.hellos))

        def connect():
            for _ in numbers:
                try:
                    peer = w.Peer(server.port, tls=context).open("", b"", f3="probe", f4=None, f5=None)
                    with lock:
                        peers.append(peer)
                except (OSError, AssertionError) as error:
                    failures.append(str(error))

        threads = [threading.Thread(target=connect) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds, held = time.monotonic() - start, server.mib()
        for peer in peers:
            peer.close()
    return {"clients": options.hellos, "failures": len(failures), "first": (failures or [""])[0],
            "seconds": round(seconds, 1), "per second": round(options.hellos / seconds),
            "KiB per session": round((held - before) * 1024 / options.hellos, 1)}  # fmt: skip


# ---- Clients that train ----


def training(options, folder):
    """Runs clients that train a small model, all at the same time."""
    with Server(folder, {"sessions": options.clients, "memory_mib": 256}) as server:
        before, start = server.mib(), time.monotonic()
        runs = [client(server, folder / f"run-{i}", ["train.epochs=1", "threads={client: 1, server: 1}"]) for i in range(options.clients)]
        most = before
        while any(run.poll() is None for run in runs):
            most = max(most, server.mib("VmHWM"))
            time.sleep(0.1)
        failed = [i for i, run in enumerate(runs) if run.returncode != 0]
    first = (folder / f"run-{failed[0]}.log").read_text() if failed else ""
    return {"clients": options.clients, "failures": len(failed), "first": first[-300:], "seconds": round(time.monotonic() - start, 1),
            "server before MiB": round(before), "server peak MiB": round(most), "server bound MiB": server.bound_mib}  # fmt: skip


# ---- Clients that do not read ----


def unread(options, folder):
    """Runs clients that do not read. Half of them request a long transfer, and half train."""
    with Server(folder, {"sessions": options.unread + 2, "park_seconds": 0}) as server:
        for number in range(4):  # the first sessions allocate memory that all sessions share
            w.Peer(server.port).open(f"warm-{number}").close()
        time.sleep(1)
        before, peers = server.mib(), []
        for number in range(options.unread):
            peer = w.Peer(server.port, receive_buffer=4096)
            if number % 2:
                peer.open("", b"", f3="probe", f4=None, f5=None).send(w.fetch("probe", 10**9))
            else:
                peer.open(f"unread-{number}")
                for i in range(w.MICRO_BATCHES):
                    peer.send(w.tensor(stream=1 + i, micro_batch=i))
            peers.append(peer)
        most, start = before, time.monotonic()
        while len(list(pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir())) > 40 and time.monotonic() - start < 90:
            most = max(most, server.mib())
            time.sleep(0.2)
        gone = time.monotonic() - start
        for peer in peers:
            peer.close()
    return {"clients": options.unread, "server before MiB": round(before, 1), "grew by MiB": round(most - before, 1),
            "KiB per client": round((most - before) * 1024 / options.unread, 1), "closed after s": round(gone, 1)}  # fmt: skip


PARTS = {"idle": idle, "hellos": hellos, "training": training, "unread": unread}


def main():
    if sys.argv[1:2] == ["strangers"]:
        return strangers(*map(int, sys.argv[2:]))
    parser = argparse.ArgumentParser(description=__doc__, epilog="Example: ./scripts/bench.sh load --only idle")
    parser.add_argument("--only", choices=PARTS, help="only this part")
    parser.add_argument("--idle", type=int, default=5000, help="idle connections (5000)")
    parser.add_argument("--slow", type=int, default=500, help="connections that send one byte per second (500)")
    parser.add_argument("--seconds", type=float, default=15, help="seconds to measure the honest client alone (15)")
    parser.add_argument("--hellos", type=int, default=1000, help="clients that send a Hello within TLS (1000)")
    parser.add_argument("--clients", type=int, default=64, help="clients that train (64)")
    parser.add_argument("--unread", type=int, default=50, help="clients that do not read (50)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="writes the figures to this file")
    options = parser.parse_args()
    print(machine_text())
    print("limits: " + ", ".join(f"{key}: {value}" for key, value in LIMITS.items()))
    results = {}
    for name in [options.only] if options.only else PARTS:
        with tempfile.TemporaryDirectory(prefix="cleave-load-") as folder:
            results[name] = PARTS[name](options, pathlib.Path(folder))
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in results[name].items() if value != ""), flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
