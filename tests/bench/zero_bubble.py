"""Compares the schedule zb with priority on 12 links, in simulated steps of MobileNetV2 at 224 x 224.

The times of the model's blocks are measured on this machine (`profile`). Each link is simulated with a server that is as fast as this machine
and with faster ones: all their times are the measured ones divided by a factor. Called by scripts/bench.sh zero-bubble."""

import argparse
import json
import os
import subprocess
import tempfile

from machine import Others, conclude

RATES = [100, 1000, 2500, 10000]  # Mbit/s
LATENCIES = [0.1, 10, 50]  # ms, one way
SPEEDS = [1, 4, 16]  # of the server, as multiples of the measured speed
CODEC = "block:bits=8"


def profiles(options, folder):
    """Paths of the profiles of the client and of servers of each speed."""
    client, server = os.path.join(folder, "client.json"), os.path.join(folder, "server.json")
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    subprocess.run([f"{options.programs}/cleave-client", "profile", "--config", "tests/bench/mobilenet_v2.yaml", "--set", f"codec={CODEC}",
                    "--set", f"train.batch={options.batch}", "--set", f"data.train.size={options.batch}", "--set", "threads.client=1",
                    "--output", client], **quiet)
    subprocess.run([f"{options.programs}/cleave-server", "profile", "--of", client, "--output", server, "--set", "threads=1"], **quiet)
    with open(server, encoding="utf-8") as file:
        measured = json.load(file)
    paths = {}
    for speed in SPEEDS:
        scaled = json.loads(json.dumps(measured))
        for size in scaled["sizes"]:
            for key in ("forward_seconds", "backward_seconds", "weights_seconds"):
                size[key] = [seconds / speed for seconds in size[key]]
        for codec in scaled["codecs"].values():
            for key in codec:
                codec[key] /= speed
        paths[speed] = os.path.join(folder, f"server{speed}.json")
        with open(paths[speed], "w", encoding="utf-8") as file:
            json.dump(scaled, file)
    return client, paths


def simulate(options, client, server, rate, latency):
    """Returns the step time of each schedule, in milliseconds, and the whole prediction."""
    done = subprocess.run(
        [f"{options.programs}/cleave-client", "simulate", "--config", "tests/bench/mobilenet_v2.yaml", "--set", f"codec={CODEC}",
         "--set", f"train.batch={options.batch}", "--set", f"data.train.size={options.batch}", "--set",
         f"train.micro_batches={options.micro_batches}", "--profile", client, "--server-profile", server, "--rate", f"{rate}Mbit/s",
         "--latency", f"{latency}ms", "--json"], check=True, stdout=subprocess.PIPE, text=True)
    case = json.loads(done.stdout)["cases"][0]
    return {name: 1e3 * each["seconds"] for name, each in case["schedules"].items()}, case


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--batch", type=int, default=32, help="samples per batch")
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()
    others, results = Others(), []
    with tempfile.TemporaryDirectory() as folder:
        client, servers = profiles(options, folder)
        print(f"MobileNetV2, batch {options.batch}, {options.micro_batches} micro-batches, {CODEC}; simulated ms per step")
        print(f"{'link':<24}{'server':>8}{'priority':>10}{'zb':>10}{'gain':>8}  bottleneck")
        for rate in RATES:
            for latency in LATENCIES:
                for speed, server in servers.items():
                    steps, case = simulate(options, client, server, rate, latency)
                    gain = steps["priority"] / steps["zb"] - 1
                    results.append({"rate": rate, "latency": latency, "speed": speed, "steps": steps, "gain": gain, "case": case})
                    print(f"{rate:>7} Mbit/s {latency:>5g} ms  {speed:>6} x{steps['priority']:>10.1f}{steps['zb']:>10.1f}{100 * gain:>7.1f} %"
                          f"  {case['bottleneck']}", flush=True)
    best = max(results, key=lambda each: each["gain"])
    print(f"largest gain: {100 * best['gain']:.1f} %")
    share = others.share()
    conclude(share, {"links": results}, options.json, others_share=share)


if __name__ == "__main__":
    main()
