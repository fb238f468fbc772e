"""Compares the plans of `cleave-client plan` for two and three servers with random settings, in simulated steps.

MobileNetV2's profile is measured on this machine with one thread. Each of --profiles noisy profiles multiplies every block's seconds by a random factor (the
exponential of a normal variable with a deviation of 0.3, 0.8 or 1.2); its servers are 1, 2 or 4 times as fast as the client, and link rates and
latencies are random too. For each of --settings random settings (number of servers, cuts, micro-batches), `simulate` predicts the step of all schedules. "Ratio" is
the plan's step divided by that of the fastest of these; the planner chooses among plans at most 3 % slower than the fastest that it found. Nothing is run.
Prints a table and writes the figures as JSON. Called by scripts/bench.sh plan-search."""

import argparse
import copy
import json
import math
import os
import random
import subprocess
import tempfile

from machine import Others, conclude

RATES, LATENCIES = ["100Mbit/s", "1Gbit/s", "10Gbit/s", "unlimited"], ["0.1ms", "5ms"]
SPREADS = [0.3, 0.8, 1.2]
MICRO_BATCHES = [4, 8, 16]
FIRST_CUT = 3  # before it, the head has no parameters
SETTINGS = ["train.batch=32", "data.shape=[3, 96, 96]", "codec=none"]


def client(options, command, *arguments):
    """The JSON that a command of cleave-client prints."""
    done = subprocess.run([f"{options.programs}/cleave-client", command, "--config", "tests/bench/mobilenet_v2.yaml", "--json", "--log-level", "error",
                           *(part for each in SETTINGS for part in ("--set", each)), *arguments], check=True, stdout=subprocess.PIPE, text=True)  # fmt: skip
    return json.loads(done.stdout)


def noisy(profile, of_blocks, speed, generator):
    """A copy of the profile whose blocks take these times as long, divided by `speed`, and with 10 % of further noise."""
    copied = copy.deepcopy(profile)
    factors = [factor / speed * math.exp(generator.gauss(0, 0.1)) for factor in of_blocks]
    for size in copied["sizes"]:
        for key in ("forward_seconds", "backward_seconds", "weights_seconds"):
            size[key] = [seconds * factor for seconds, factor in zip(size[key], factors)]
    return copied


def server_profiles(files):
    return [part for file in files for part in ("--server-profile", file)]


def compared(options, number, profile, folder):
    """The plan for one noisy profile, and the fastest of the random settings."""
    generator = random.Random(number)
    blocks = len(profile["sizes"][0]["forward_seconds"])
    servers = 2 + number % 2
    of_blocks = [math.exp(generator.gauss(0, SPREADS[number % len(SPREADS)])) for _ in range(blocks)]
    files = []
    for each in range(servers + 1):
        files.append(f"{folder}/{number}-{each}.json")
        with open(files[-1], "w") as file:
            json.dump(noisy(profile, of_blocks, generator.choice([1, 2, 4]) if each else 1, generator), file)
    rate, latency = generator.choice(RATES), generator.choice(LATENCIES)
    common = ["--profile", files[0], "--rate", rate, "--latency", latency, "--separate-links"]
    plan = client(options, "plan", *common, *server_profiles(files[1:]))["plans"][0]
    best = {"seconds": math.inf}
    for _ in range(options.settings):
        used = generator.randint(1, servers)
        cuts = sorted(generator.sample(range(FIRST_CUT, blocks), used + 1))
        micro_batches = generator.choice(MICRO_BATCHES)
        found = client(options, "simulate", *common, *server_profiles(files[1:used + 1]), "--set", f"model.cuts={cuts}",
                       "--micro-batches", str(micro_batches))  # fmt: skip
        for name, schedule in found["cases"][0]["schedules"].items():
            if schedule["seconds"] < best["seconds"]:
                best = {"seconds": schedule["seconds"], "cuts": cuts, "micro_batches": micro_batches, "schedule": name}
    return {"servers": servers, "rate": rate, "latency": latency, "plan": plan, "best": best, "ratio": plan["seconds"] / best["seconds"]}


def main():
    parser = argparse.ArgumentParser(prog="bench.sh plan-search", description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--profiles", type=int, default=10)
    parser.add_argument("--settings", type=int, default=40)
    parser.add_argument("--json")
    options = parser.parse_args()
    others = Others()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        own = os.path.join(folder, "client.json")
        client(options, "profile", "--set", "threads.client=1", "--output", own)
        with open(own) as file:
            profile = json.load(file)
        print(f"{'servers':>7} {'rate':>10} {'latency':>8} {'plan':>9} {'best of ' + str(options.settings):>11} {'ratio':>6}  cuts of the plan", flush=True)
        for number in range(options.profiles):
            row = compared(options, number, profile, folder)
            rows.append(row)
            print(f"{row['servers']:>7} {row['rate']:>10} {row['latency']:>8} {1000 * row['plan']['seconds']:>6.1f} ms {1000 * row['best']['seconds']:>8.1f} ms "
                  f"{row['ratio']:>6.3f}  {row['plan']['cuts']}", flush=True)  # fmt: skip
    print(f"\nthe plan takes at most {max(row['ratio'] for row in rows):.3f} times as long as the best random setting")
    conclude(others.share(), rows, options.json)


if __name__ == "__main__":
    main()
