"""Compares a Connection, plain and within TLS, with a raw socket, Gloo and Asio's ssl::stream over
loopback, in interleaved rounds. Then measures how quickly an urgent tensor arrives if queued behind
a large one on a slow link (tools/link).

Each round is a separate process that measures all transports for all sizes; every other round
reverses the order. Ratios are between measurements of the same round. Prints tables and writes the
figures as JSON. Called by scripts/bench.sh transport."""

import argparse
import json
import math
import os
import statistics
import subprocess

from codec_step import median_limits
from machine import Others, machine, machine_text

# The compared transports, and the minimum ratio to achieve.
COMPARISONS = [("connection", "raw", 0.95), ("connection-checksum", "raw", 0.85), ("connection", "gloo", 1.15),
               ("connection-tls", "asio-tls", 2)]
RATE, LATENCY = 100e6 / 8, 1e-3  # rate and one-way latency of the slow link
URGENT_BYTES, SEGMENTS_BEFORE = 100_000, 4  # segments ahead: one on the wire, one unsent in the kernel, two in cleave-link


def segment_bytes(rate):
    return min(max(rate * 2e-3, 64 << 10), 1 << 20)


URGENT_LIMIT = (URGENT_BYTES + SEGMENTS_BEFORE * segment_bytes(RATE)) / RATE + LATENCY


def rows(text):
    return [json.loads(line) for line in text.splitlines()]


def measure_throughput(options):
    """Figures by (MB, both ways) and transport: bytes per second of each round, and processor seconds per byte."""
    cells = {}
    for number in range(options.rounds):
        arguments = ["--total", str(options.total)] + (["--backwards"] if number % 2 else [])
        done = subprocess.run([f"{options.programs}/bench_transport", "throughput", *arguments], check=True,
                              stdout=subprocess.PIPE, text=True)
        for row in rows(done.stdout):
            cell = cells.setdefault((row["megabytes"], row["both_ways"]), {})
            rates, costs = cell.setdefault(row["transport"], ([], []))
            rates.append(row["bytes_per_second"])
            costs.append(row["processor_seconds_per_byte"])
    return cells


def compare(cell):
    results = []
    for ours, other, least in COMPARISONS:
        ratios = [a / b for a, b in zip(cell[ours][0], cell[other][0])]
        ratio = statistics.median(ratios)
        results.append({"ours": ours, "other": other, "ratio": ratio, "limits": median_limits(ratios), "target": least,
                        "reached": ratio >= least})
    return results


def print_throughput(cells):
    names = ["raw", "connection", "connection-checksum", "gloo", "connection-tls", "asio-tls"]
    titles = ["raw", "ours", "checksum", "Gloo", "TLS", "Asio TLS"]
    median = statistics.median
    print(f"\nGB/s (both ways: the sum), medians{'':<56}processor seconds per GB, both ends, medians")
    print(f"{'tensor':<10}{'ways':<6}" + "".join(f"{title:>10}" for title in titles) +
          "  " + "".join(f"{title:>10}" for title in titles))
    for (megabytes, both_ways), cell in cells.items():
        print(f"{f'{megabytes} MB':<10}{'both' if both_ways else 'one':<6}" +
              "".join(f"{1e-9 * median(cell[name][0]):>10.2f}" for name in names) + "  " +
              "".join(f"{1e9 * median(cell[name][1]):>10.3f}" for name in names))
    print(f"\nratios: medians of the rounds, with 95 % limits\n{'tensor':<10}{'ways':<6}" +
          "".join(f"{f'{title} >= {least}':>32}" for title, (_, _, least) in
                  zip(["ours / raw", "checksum / raw", "ours / Gloo", "TLS / Asio TLS"], COMPARISONS)))
    for (megabytes, both_ways), cell in cells.items():
        line = f"{f'{megabytes} MB':<10}{'both' if both_ways else 'one':<6}"
        for result in compare(cell):
            low, high = result["limits"]
            text = f"{result['ratio']:.3f} ({low:.2f} to {high:.2f})" if math.isfinite(low) else f"{result['ratio']:.3f}"
            line += f"{text + (' yes' if result['reached'] else ' no '):>32}"
        print(line)


def measure_urgent(options):
    program = subprocess.Popen([f"{options.programs}/bench_transport", "urgent", "--repetitions", str(options.repetitions),
                                "--urgent-bytes", str(URGENT_BYTES)],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    link = None
    try:
        port = json.loads(program.stdout.readline())["port"]
        link = subprocess.Popen([f"{options.programs}/cleave-link", "--listen", "127.0.0.1:0", "--target", f"127.0.0.1:{port}",
                                 "--rate", f"{8e-6 * RATE:g}Mbit/s", "--latency", f"{1e3 * LATENCY:g}ms", "--log-level", "warn"],
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        output, _ = program.communicate(link.stdout.readline().strip().rpartition(":")[2] + "\n")
        if program.returncode != 0:
            raise subprocess.CalledProcessError(program.returncode, program.args)
        return rows(output)
    finally:
        for process in (program, link):
            if process and process.poll() is None:
                process.terminate()
                process.wait()


def print_urgent(measured):
    behind, alone = (sorted(row[name] for row in measured) for name in ("seconds", "alone_seconds"))
    high = lambda values: values[math.ceil(0.95 * len(values)) - 1]
    print(f"\n{1e-3 * URGENT_BYTES:g} kB, urgent, behind 12 MB for {8e-6 * RATE:g} Mbit/s with {1e3 * LATENCY:g} ms; "
          f"{len(measured)} repetitions, ms until arrival")
    print(f"{'':<12}{'median':>10}{'95th percentile':>18}{'at most':>10}{'reached':>9}")
    print(f"{'behind 12 MB':<12}{1e3 * statistics.median(behind):>10.1f}{1e3 * high(behind):>18.1f}{1e3 * URGENT_LIMIT:>10.1f}"
          f"{'yes' if high(behind) <= URGENT_LIMIT and all(row['overtook'] for row in measured) else 'no':>9}")
    print(f"{'alone':<12}{1e3 * statistics.median(alone):>10.1f}{1e3 * high(alone):>18.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--total", type=int, default=256, help="MB per measurement in each direction")
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--only", choices=["throughput", "urgent"])
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    others = Others()

    cells = measure_throughput(options) if options.only != "urgent" else {}
    urgent = measure_urgent(options) if options.only != "throughput" else []
    others = others.share()

    print(f"{options.rounds} rounds, {options.total} MB per measurement and direction; {cores} cores, of which other programs used "
          f"{100 * others:.0f} %\n{machine_text()}")
    if cells:
        print_throughput(cells)
    if urgent:
        print_urgent(urgent)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"throughput": [{"megabytes": megabytes, "both_ways": both_ways, "comparisons": compare(cell),
                                       "transports": {name: {"bytes_per_second": rates, "processor_seconds_per_byte": costs}
                                                      for name, (rates, costs) in cell.items()}}
                                      for (megabytes, both_ways), cell in cells.items()],
                       "urgent": {"limit": URGENT_LIMIT, "repetitions": urgent}, "others": others, "machine": machine()},
                      file, indent=2)


if __name__ == "__main__":
    main()
