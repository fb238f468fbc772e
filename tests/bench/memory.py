"""Measures how a client's peak memory depends on the number of micro-batches and on how many of them may be in flight: MobileNetV2's head
and tail at 224 x 224, mostly with 8 samples per micro-batch. The server waits 2 ms per forward and 4 ms per backward instead of computing.

Only the inputs may grow with the batch. The client holds the inputs of two batches, the current one and the next; their size is printed
too. Memory is the process's peak resident set (ru_maxrss). Called by scripts/bench.sh memory."""

import argparse
import os
import subprocess
import tempfile

from codec_step import WAIT, Loopback, running_server, sleeping
from machine import Others, conclude
from made_data import cifar_data

MIB = 2**20
SAMPLE = 4 * 3 * 224 * 224  # bytes per input
CONFIG = "tests/bench/mobilenet_v2.yaml"
# Samples, micro-batches, in flight. The last rows divide one batch of 64 differently.
CASES = [(64, 8, 4), (128, 16, 4), (256, 32, 4), (64, 8, 8), (256, 32, 8), (64, 32, 4), (64, 32, 16)]


def peak(options, case):
    """Peak memory in bytes."""
    batch, micro_batches, in_flight = case
    with tempfile.TemporaryDirectory() as folder, running_server(options, Loopback(), folder) as address:
        settings = {"data": cifar_data(folder, batch * options.steps), "train.batch": batch, "train.micro_batches": micro_batches,
                    "train.in_flight": in_flight, "codec": options.codec}
        client = subprocess.Popen(
            [f"{options.programs}/cleave-client", "train", "--config", CONFIG, "--server", address, "--run-dir", f"{folder}/client",
             "--log-level", "error", "--json", *sleeping("mobilenet_v2", WAIT),
             *[argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")]],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(client.pid, 0)
        client.returncode = os.waitstatus_to_exitcode(status)
        if client.returncode != 0:
            raise subprocess.CalledProcessError(client.returncode, client.args)
        return usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()

    others = Others()
    print(f"client's peak resident set in MiB: the maximum of {options.rounds} runs of {options.steps} steps; codec {options.codec}")
    print(f"{'samples':>8}{'M':>5}{'in flight':>11}{'peak':>8}{'two batches':>13}{'rest':>8}{'min peak':>12}")
    results = []
    for case in CASES:
        batch, micro_batches, in_flight = case
        peaks = [peak(options, case) for _ in range(options.rounds)]
        inputs = 2 * batch * SAMPLE
        results.append({"samples": batch, "micro_batches": micro_batches, "in_flight": in_flight, "peaks": peaks, "inputs": inputs})
        print(f"{batch:>8}{micro_batches:>5}{in_flight:>11}{max(peaks) / MIB:>8.0f}{inputs / MIB:>13.0f}"
              f"{(max(peaks) - inputs) / MIB:>8.0f}{min(peaks) / MIB:>12.0f}", flush=True)
    conclude(others.share(), results, options.json)


if __name__ == "__main__":
    main()
