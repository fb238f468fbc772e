"""Measures what the process of a body costs: the step of a run whose body computes in a process of its own, compared with that of a server
that computes in its own process because its kernel refuses seccomp."""
import argparse
import csv
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parent))
from machine import machine, machine_text  # noqa: E402
from server import PROGRAMS, ROOT, Server  # noqa: E402

FIRST_STEPS = 5  # not measured


def refuse_seccomp():
    """Makes the kernel refuse new filters in this process and in those that it starts: for Linux on x86-64."""
    PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, FILTER_MODE, SECCOMP, PRCTL = 22, 38, 2, 317, 157
    LOAD, EQUAL, RETURN, ALLOW, EPERM = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050001
    program = [(LOAD, 0, 0, 0), (EQUAL, 3, 0, SECCOMP), (EQUAL, 0, 3, PRCTL), (LOAD, 0, 0, 16), (EQUAL, 0, 1, PR_SET_SECCOMP),
               (RETURN, 0, 0, EPERM), (RETURN, 0, 0, ALLOW)]  # fmt: skip

    class Instruction(ctypes.Structure):
        _fields_ = [("code", ctypes.c_ushort), ("then", ctypes.c_ubyte), ("other", ctypes.c_ubyte), ("value", ctypes.c_uint32)]

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(Instruction))]

    instructions = (Instruction * len(program))(*program)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(PR_SET_SECCOMP, FILTER_MODE, ctypes.byref(Program(len(program), instructions)), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def step_ms(server, options, folder):
    subprocess.run(
        [PROGRAMS / "cleave-client", "train", "--config", options.config, "--server", server.address, "--run-dir", folder, "--log-level", "error",
         "--set=codec=none", "--set=train.schedule=priority", "--set=eval.every=0", f"--set=train.max_steps={options.steps}",
         *(f"--set={one}" for one in options.set)], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)  # fmt: skip
    with open(folder / "steps.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["phase"] == "train"]
    if len(rows) <= FIRST_STEPS:
        raise SystemExit(f"process.py: the run has only {len(rows)} steps, of which the first {FIRST_STEPS} are not measured")
    return statistics.median(float(row["seconds"]) for row in rows[FIRST_STEPS:]) * 1e3


def main():
    parser = argparse.ArgumentParser(prog="bench.sh process", description=__doc__)
    parser.add_argument("--config", default=str(ROOT / "configs/fashion_mnist.yaml"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json")
    options = parser.parse_args()
    times = {"server's process": [], "own process": []}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        servers = dict(zip(times, (Server(folder / "a", "models.unconfined=true", preexec_fn=refuse_seccomp), Server(folder / "b")), strict=True))
        try:
            for i in range(options.rounds):
                for where in sorted(servers, reverse=i % 2 == 1):
                    times[where].append(step_ms(servers[where], options, folder / f"{i} {where}"))
        finally:
            for server in servers.values():
                server.end()
    for where, values in times.items():
        print(f"{where:<18}{statistics.median(values):8.2f} ms per step ({min(values):.2f} to {max(values):.2f})")
    ratios = [own / other for other, own in zip(*times.values(), strict=True)]
    print(f"ratio             {statistics.median(ratios):8.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    print(f"\n{options.rounds} pairs of {options.steps} steps; {len(os.sched_getaffinity(0))} cores; {machine_text()}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"times_ms": times, "ratios": ratios, "machine": machine()}, indent=2))


if __name__ == "__main__":
    main()
