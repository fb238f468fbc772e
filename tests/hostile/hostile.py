#!/usr/bin/env python3
"""Attacks a cleave-server with the cases in cases.py while honest clients train. Each attack must end in time, with an expected code,
without increasing the server's memory use, and the server must count it. The honest clients' weights must be the same as without attacks.
With --memory, the attacks are those on a session's memory limit (memory_cases.py), and the server's memory use must not exceed the bound
that it prints. With --replicas, the attacks are on one of two replicas (replica_cases.py), which the honest clients use too. With --graphs,
the attacks are graphs that the server runs (graph_cases.py)."""
import argparse
import collections
import contextlib
import hashlib
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unicodedata

import cases
import graph_cases
import memory_cases
import replica_cases
import wire as w
from processes import children, memory_kib

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from free_ports import free_ports  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The deadlines are shorter than the defaults, to reduce waiting. The limits have room for all connections from this single address.
LIMITS = {
    "sessions": 32, "connections": 2000, "connections_per_address": 2000, "handshakes": 100000, "handshakes_burst": 100000,
    "handshakes_per_address": 100000, "hello_seconds": 1, "frame_seconds": 1, "frame_kib_per_second": 1024, "ping_seconds": 1,
    "ping_timeout_seconds": 2, "idle_seconds": 8, "runs_per_hour": 1000000,
}  # fmt: skip
# The limits are so small that an attack that exceeds its session's share also exceeds the total bound.
MAX_SESSION_KIB = 160 << 10  # granted to the largest run of memory_cases.py
MEMORY_LIMITS = {**LIMITS, "memory_mib": 1024, "sessions": 4, "connections": 64, "connections_per_address": 64}
HONEST = ["threads={client: 1, server: 1}", "data.train.size=512", "data.test.size=64", "train.epochs=4", "codec=block:bits=8"]
KIB_PER_CONNECTION = 1024
NOISE_KIB = 1024  # variation caused by the honest client, per case
MAX_GROWTH_KIB = 16 << 10  # maximum growth over all cases


class Tls:
    """Certificates of the server, the hostile peers and the honest clients."""

    def __init__(self, programs, folder):
        self.folder = folder / "certs"
        for arguments in (["init", "--name", "127.0.0.1"], ["client", "hostile"], ["client", "honest"]):
            subprocess.run([programs / "cleave-server", "certs", *arguments, "--folder", self.folder], check=True, stdout=subprocess.DEVNULL)
        self.server_settings = ["--set=tls.enabled=true", f"--set=tls.folder={self.folder}"]
        self.client_settings = ["--tls", self.folder / "clients/honest"]
        self.hostile = w.tls_context(self.folder / "clients/hostile")


class Plain:
    server_settings = client_settings = ()
    hostile = None


class Server:
    def __init__(self, programs, folder, transport, limits, more=()):
        settings = [*transport.server_settings, *(f"--set=limits.{key}={value}" for key, value in limits.items()), *more]
        self.process = subprocess.Popen(
            [programs / "cleave-server", "serve", "--config", ROOT / "configs/server.yaml", "--set=listen.port=0",
             "--set=models.allow=[mlp, small_cnn, mobilenet_v2, graph]", "--set=edges.accept=true",
             f"--set=store={folder}/store", *settings],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")  # fmt: skip
        self.log = []
        line = self.process.stdout.readline()
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr))
        self.reader.start()
        self.port = int(line.rsplit(":", 1)[1])
        self.address = f"127.0.0.1:{self.port}"  # that honest clients use

    def memory_kib(self, name):
        return memory_kib(self.process.pid, name)

    def stages_kib(self):
        """Memory of the stage server and its processes, which share most of it until they write to it."""
        total = 0
        for stage_server in children(self.process.pid):
            shared = memory_kib(stage_server, "RssAnon")
            total += memory_kib(stage_server, "VmRSS")
            total += sum(max(0, memory_kib(one, "RssAnon") - shared) + memory_kib(one, "RssShmem") for one in children(stage_server))
        return total

    def forget_peak(self):
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def bound_kib(self):
        """The memory bound that the server prints at startup."""
        for _ in range(100):  # the log is read by a separate thread
            if found := re.search(r"(\d+) MiB of memory at most", "".join(self.log)):
                return int(found[1]) << 10
            time.sleep(0.1)
        raise AssertionError("the server printed no memory bound")

    def listening_ports(self):
        """The TCP ports on which the process listens."""
        process = pathlib.Path(f"/proc/{self.process.pid}")
        own = set()
        for link in (process / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed since it was listed
                own.add(str(link.readlink()))
        rows = [row.split() for row in (process / "net/tcp").read_text().splitlines()[1:]]
        return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        self.reader.join()
        return code


class StagesPeak(threading.Thread):
    """Measures the peak of a server's stages_kib() while its `with` block runs."""

    def __init__(self, server):
        super().__init__()
        self.server = server
        self.kib = server.stages_kib()
        self.ended = threading.Event()

    def run(self):
        while not self.ended.wait(0.02):
            self.kib = max(self.kib, self.server.stages_kib())

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join()


class World:
    """The environment in which a case acts."""

    def __init__(self, servers, tls, group_port):
        self.servers = servers  # the first one is attacked; the others are its replicas
        self.tls = tls
        self.identity = b"hostile" if tls else b"local"
        self.group_port = group_port
        self.runs = 0
        self.refused = []  # further peers of a case, with the codes that they received
        self.learned = {}  # what learn() found out, by codec
        self.expected = collections.Counter()  # number of refusals that the server must count, by reason
        self.untold = []  # the possible reasons of each connection that was closed without a message

    def connect(self, receive_buffer=None, rank=0):
        return w.Peer(self.servers[rank].port, receive_buffer, self.tls)

    def run_id(self):
        self.runs += 1
        self.last_run_id = f"hostile-{self.runs}"
        return self.last_run_id

    def run(self, spec=None, **more):
        return self.connect().open(self.run_id(), spec, **more)

    def leave(self, peer):
        peer.send(w.frame(w.BYE, w.message((1, "done"))))
        peer.wait_for_close()
        peer.close()


class Honest(threading.Thread):
    """An honest client that trains repeatedly until it is stopped."""

    def __init__(self, programs, folder, server, transport, wanted):
        super().__init__()
        self.arguments = (programs, folder, server, transport)
        self.wanted = wanted
        self.enough = False
        self.rounds = 0
        self.wrong = []

    def run(self):
        while not self.wrong and (not self.enough or self.rounds == 0):
            self.rounds += 1
            digest, output = train(*self.arguments, f"honest-{self.rounds}")
            if digest != self.wanted:
                self.wrong.append(output or f"round {self.rounds}: other weights")


def train(programs, folder, server, transport, name):
    """Trains once. Returns (SHA-256 of the weights or None, errors)."""
    run = folder / name
    ended = subprocess.run(
        [programs / "cleave-client", "train", "--config", ROOT / "configs/synthetic.yaml", "--server", server.address,
         "--run-dir", run, *transport.client_settings, *(f"--set={setting}" for setting in HONEST)],
        capture_output=True, text=True, timeout=300, check=False)  # fmt: skip
    if ended.returncode != 0:
        return None, ended.stderr
    resumes = json.loads((run / "summary.json").read_text())["resumes"]
    if resumes > 0:
        return None, f"the run was resumed {resumes} times: {ended.stderr}"
    return hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest(), ""


def attack(case, world, server, bound_kib):
    """Runs a case. Returns the faults found (empty if none), the seconds, and the code. `bound_kib`: bound of the server's memory with its
    stages; None: the allowance for the case's connections."""
    server.forget_peak()
    before = server.memory_kib("VmRSS")
    try:
        with StagesPeak(server) as stages:
            stages_before = stages.kib
            peer = case.act(world)
            seconds = peer.wait_for_close() if peer else 0
    except (AssertionError, OSError, TypeError) as error:
        return f"{type(error).__name__}: {error}", 0, None
    code = (peer.code or "") if peer else ""
    if peer:
        peer.close()
    for one in world.refused:
        world.expected[one.code] += 1
        one.close()
    world.refused.clear()
    if code and not case.uncounted:
        world.expected[code] += 1
    elif not case.uncounted:
        world.untold.append(case.untold)
    peak = server.memory_kib("VmHWM")
    growth = peak - before
    most = KIB_PER_CONNECTION * case.connections + NOISE_KIB
    faults = []
    if peer and code not in case.codes:
        faults.append(f"ended with '{code}' ({peer.sentence}) instead of {' or '.join(sorted(case.codes))}")
    if seconds > case.deadline:
        faults.append(f"closed after {seconds:.1f} s")
    if bound_kib is not None:
        peak += stages.kib
        growth += stages.kib - stages_before
        print(f"        peak {peak >> 10} MiB of {bound_kib >> 10} MiB, {growth >> 10} MiB of it new")
        if peak > bound_kib or growth > MAX_SESSION_KIB:
            faults.append(f"the server used {peak} KiB, {growth} KiB of it new, but printed a bound of {bound_kib} KiB")
    elif growth > most:
        faults.append(f"the server grew by {growth} KiB")
    if server.process.poll() is not None:
        faults.append(f"the server exited with {server.process.returncode}")
    return "; ".join(faults), seconds, code


def counted(server):
    """The refusals that the server reports when it exits."""
    for line in server.log:
        if "refused or ended because of a client error: " in line:
            pairs = line.rsplit(": ", 1)[1].strip().split(", ")
            return collections.Counter({code: int(number) for number, code in (pair.split(" ") for pair in pairs)})
    return collections.Counter()


def unprintable(text):
    """Returns the first character that controls a terminal or hides text."""
    return next((c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")), None)


def raw_texts(server, store):
    """Returns the places in the server's log and its runs' files of text that have characters which a peer must not be able to write."""
    texts = {"the log": "".join(server.log)}
    files = [path for path in store.rglob("*") if path.is_file() and path.suffix != ".safetensors"]
    texts.update({str(path): path.read_text(errors="replace") for path in files})
    return [f"{name} has {unprintable(text)!r}" for name, text in texts.items() if unprintable(text)]


def replica_settings(rank, ports):
    hosts = ", ".join(f'"127.0.0.1:{port}"' for port in ports)
    return [f"--set=replicas.hosts=[{hosts}]", f"--set=replicas.rank={rank}", f"--set=replicas.timeout_seconds={replica_cases.TIMEOUT}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog="Example: tests/hostile/hostile.py --only segment")
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT / "build/release/bin", help="folder of the programs")
    parser.add_argument("--only", default="", help="only cases whose name contains this text")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only one case in N")
    parser.add_argument("--memory", action="store_true", help="runs the attacks on the memory of a server with a low limit")
    parser.add_argument("--replicas", action="store_true", help="runs the attacks on a server that has a replica")
    parser.add_argument("--tls", action="store_true", help="uses TLS for all connections; hostile peers have a certificate")
    parser.add_argument("--graphs", action="store_true", help="runs the attacks by graphs")
    options = parser.parse_args()
    table = memory_cases if options.memory else replica_cases if options.replicas else graph_cases if options.graphs else cases
    chosen = [case for case in table.CASES if options.only in case.name][:: options.every]
    with tempfile.TemporaryDirectory(prefix="cleave-hostile-") as name:
        folder = pathlib.Path(name)
        transport = Tls(options.programs, folder) if options.tls else Plain()
        limits = MEMORY_LIMITS if options.memory else LIMITS
        if options.replicas:  # while a case waits for one replica, it does not answer the Pings of the other one
            limits = {**limits, "ping_timeout_seconds": 20, "idle_seconds": 40}
        if options.graphs:
            limits = {**MEMORY_LIMITS, "action_seconds": graph_cases.ACTION_SECONDS}
        servers, ports = [], free_ports(replica_cases.REPLICAS) if options.replicas else [None]
        try:
            for rank, port in enumerate(ports):
                more = replica_settings(rank, ports) if port else []
                if options.graphs:
                    more = ["--set=threads=1"]  # so that graphs that take too long do so on any machine
                servers.append(Server(options.programs, folder / str(rank), transport, limits, more))
            servers[0].address = "+".join(server.address for server in servers)
            world = World(servers, transport.hostile, ports[0])
            return run_all(chosen, options.programs, folder, servers[0], world, transport, options.memory or options.graphs)
        finally:
            for server in servers:
                server.process.kill()  # also ends an honest client, because its run fails


def run_all(chosen, programs, folder, server, world, transport, memory):
    failed = 0
    bound_kib = server.bound_kib() if memory else None
    alone, errors = train(programs, folder, server, transport, "alone")
    if alone is None:
        print(f"the honest client failed without attacks: {errors}")
        return 1
    honest = Honest(programs, folder, server, transport, alone)
    honest.start()
    probe = world.connect().open("", b"", f1=w.PROBE, f4=None, f5=None)  # the first session allocates memory that all sessions share
    world.leave(probe)
    start, fresh = time.monotonic(), server.memory_kib("VmRSS")
    for case in chosen:
        fault, seconds, code = attack(case, world, server, bound_kib)
        print(f"{'FAILED' if fault else 'ok':6}  {seconds:5.2f} s  {code or '-':20}  {case.name}" + (f": {fault}" if fault else ""), flush=True)
        failed += bool(fault)
    growth = server.memory_kib("VmRSS") - fresh
    honest.enough = True
    honest.join()
    code = server.stop()
    faults = [*honest.wrong, *raw_texts(server, folder / "0/store")]
    if code != 0:
        faults.append(f"the server exited with {code}: " + "".join(server.log[-20:]))
    if not memory and growth > MAX_GROWTH_KIB:
        faults.append(f"the server grew by {growth} KiB over all cases")
    # These reasons are not caused by a peer's fault, or are caused by a peer that closes. Their counts depend on timing.
    closed = {"non-finite", "connection-closed", "connection-lost"}
    found = counted(server)
    for reasons in sorted(world.untold, key=len):
        world.expected[max(reasons, key=lambda reason: found[reason] - world.expected[reason])] += 1
    for reason in sorted({*found, *world.expected} - closed):
        # An honest client retries if the server is full.
        full = reason == "too-many-sessions" and found[reason] > world.expected[reason]
        if found[reason] != world.expected[reason] and not full:
            faults.append(f"the server counted {found[reason]} {reason}, but there were {world.expected[reason]}")
    for fault in faults:
        print(f"FAILED  {fault}")
    print(f"{len(chosen)} cases, {failed + len(faults)} failed, in {time.monotonic() - start:.0f} s; the server grew by {growth} KiB; "
          f"{honest.rounds} honest training runs at the same time, all with the weights of an undisturbed run: {not honest.wrong}")  # fmt: skip
    return 1 if failed or faults else 0


if __name__ == "__main__":
    sys.exit(main())
