#!/usr/bin/env python3
"""Checks the results of a run of scripts/compose.sh: the accuracy, and whether the link had the
configured rate and latency."""
import argparse
import csv
import pathlib
import re
import statistics
import sys

RATES = {"kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9, "MB/s": 8e6}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def quantity(text, units):
    match = re.fullmatch(r"([0-9.]+)\s*(\S*)", text)
    if match and match[1] == "0":
        return 0.0
    if not match or match[2] not in units:
        sys.exit(f"check_compose.py: '{text}' has none of the units {', '.join(units)}")
    return float(match[1]) * units[match[2]]


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def check(what, got, minimum, maximum, unit):
    print(f"check: {what}: {got:.4g} {unit}, allowed {minimum:.4g} to {maximum:.4g}")
    return minimum <= got <= maximum


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog="Example: check_compose.py runs/RUN --min-accuracy 60 "
                                                                 "--rate 100Mbit/s --latency 10ms")
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--min-accuracy", type=float, required=True, help="percent")
    parser.add_argument("--rate", required=True, help="rate of the link, or unlimited")
    parser.add_argument("--latency", required=True, help="latency of the link, one way")
    options = parser.parse_args()

    accuracy = [100 * float(row["eval_top1"]) for row in rows(options.run / "epochs.csv") if row["eval_top1"]][-1]
    good = [check("test accuracy", accuracy, options.min_accuracy, 100, "%")]

    # Use the minimum of ten round trips and the largest one-way transfer: with few cores, other figures include time in which the programs
    # wait for a processor.
    probe = rows(options.run / "probe.csv")
    latency = 1e3 * quantity(options.latency, TIMES)
    good.append(check("round trip", 1e3 * float(probe[0]["round_trip_seconds"]), 2 * latency, 2 * latency + 10, "ms"))
    if options.rate != "unlimited":
        rate = quantity(options.rate, RATES) / 1e6
        for direction in ("up", "down"):
            alone = [row for row in probe if row["direction"] == direction and row["both"] == "0"]
            largest = max(int(row["bytes"]) for row in alone)
            # The last byte arrives one latency after it was sent.
            best = max(8e-6 * largest / (float(row["seconds"]) - float(row["round_trip_seconds"]) / 2)
                       for row in alone if int(row["bytes"]) == largest)
            good.append(check(f"rate {direction}, {largest / 1e6:g} MB", best, 0.9 * rate, 1.03 * rate, "Mbit/s"))
        # During training, client, server and their codecs share the cores with the link.
        for direction in ("up", "down"):
            rates = [8e-6 * float(row[f"rate_{direction}"]) for row in rows(options.run / "steps.csv")
                     if row["phase"] == "train" and row[f"rate_{direction}"]]
            good.append(check(f"rate {direction} in training, median of {len(rates)} steps",
                              statistics.median(rates or [0]), 0.8 * rate, 1.2 * rate, "Mbit/s"))
    sys.exit(0 if all(good) else "check_compose.py: a value is outside its allowed range (above)")


main()
