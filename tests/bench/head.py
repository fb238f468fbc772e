"""Measures forward and backward of MobileNetV2's head: compares Cleave's process settings and memory order with stock LibTorch, in
interleaved rounds. Each measurement has a process of its own.

Prints a table and writes the figures as JSON. Called by scripts/bench.sh head."""

import argparse
import json
import os
import statistics
import subprocess

from machine import Others

SETTINGS = {"ours": [], "stock": ["--stock"]}


def run(program, arguments):
    # Both processes start without OMP_WAIT_POLICY; Cleave's variant sets it itself.
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_", "MALLOC_"))}
    done = subprocess.run([program, *arguments], check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return statistics.median(json.loads(done.stdout)["milliseconds"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    others = Others()

    times = {threads: {name: [] for name in SETTINGS} for threads in sorted({1, cores})}
    for _ in range(options.rounds):
        for threads, columns in times.items():
            for name, column in columns.items():
                column.append(run(f"{options.programs}/bench_head",
                                  [*SETTINGS[name], "--threads", str(threads), "--batch", str(options.batch),
                                   "--repetitions", str(options.repetitions)]))

    others = others.share()
    print(f"head forward + backward, batch {options.batch}, 224 x 224, {options.rounds} rounds of {options.repetitions}, "
          f"medians, {cores} cores, of which other programs used {100 * others:.0f} %")
    print(f"{'threads':<9}{'ours, ms':>10}{'stock, ms':>11}{'stock / ours':>14}{'min to max':>18}")
    for threads, columns in times.items():
        ours, stock = (statistics.median(columns[name]) for name in SETTINGS)
        ratios = [s / o for o, s in zip(columns["ours"], columns["stock"])]
        print(f"{threads:<9}{ours:>10.1f}{stock:>11.1f}{stock / ours:>14.2f}{f'{min(ratios):.2f} to {max(ratios):.2f}':>18}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"milliseconds": times, "cores": cores, "others": others}, file, indent=2)


if __name__ == "__main__":
    main()
