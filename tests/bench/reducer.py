"""Compares the sum of gradients over two replicas of one process on the loopback interface with Gloo's
allreduce, in interleaved rounds. Ratios are between measurements of the same round. Called by
scripts/bench.sh reducer."""

import argparse
import json
import statistics
import subprocess

from codec_step import median_limits
from machine import Others, conclude


def measure(options):
    """Bytes per second, and processor seconds per byte, of each round, by MiB and function."""
    done = subprocess.run([f"{options.programs}/bench_replicas", f"--benchmark_repetitions={options.rounds}",
                           "--benchmark_enable_random_interleaving=true", "--benchmark_format=json"],
                          check=True, stdout=subprocess.PIPE, text=True)
    rows = [row for row in json.loads(done.stdout)["benchmarks"] if row["run_type"] == "iteration"]
    cells = {}
    for row in sorted(rows, key=lambda row: row["repetition_index"]):
        function, size = row["name"].split("/")[:2]
        rates, costs = cells.setdefault(int(size), {}).setdefault(function, ([], []))
        rates.append(row["bytes_per_second"])
        costs.append(1e-3 * row["cpu_time"] / (int(size) << 20))  # of both replicas
    return cells


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()
    others = Others()
    cells = measure(options)
    others = others.share()
    median = statistics.median
    print(f"medians of {options.rounds} rounds, with 95 % limits for the ratio; values of one replica\n"
          f"{'':<10}{'GB/s':^48}{'processor seconds per GB':^28}\n"
          f"{'values':<10}{'ours':>10}{'Gloo':>10}{'ours / Gloo':>28}{'ours':>14}{'Gloo':>14}")
    for size, cell in sorted(cells.items()):
        (ours, our_costs), (gloo, gloo_costs) = cell["sumByReducer"], cell["sumByAllreduce"]
        ratios = [a / b for a, b in zip(ours, gloo)]
        low, high = median_limits(ratios)
        print(f"{f'{size} MiB':<10}{1e-9 * median(ours):>10.2f}{1e-9 * median(gloo):>10.2f}"
              f"{f'{median(ratios):.2f} ({low:.2f} to {high:.2f})':>28}"
              f"{1e9 * median(our_costs):>14.2f}{1e9 * median(gloo_costs):>14.2f}")
    conclude(others, cells, options.json)


if __name__ == "__main__":
    main()
