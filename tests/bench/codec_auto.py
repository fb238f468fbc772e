"""Compares training with `codec: auto` to training with each codec that `auto` chooses from:
MobileNetV2 at 96 x 96, 8 micro-batches, one compute thread per side.

Measures over plain loopback, and between two network namespaces connected by a veth pair whose ends
are rate-limited by a token bucket (tc tbf), with TLS, which needs root. With --link-program, or
without root, cleave-link replaces the veth pair. Each round trains once with each codec, in
alternating order. Prints a table, and for each link how much longer a step took with auto than with
the best codec. Called by scripts/bench.sh codec-auto."""

import argparse
import contextlib
import csv
import json
import os
import statistics
import subprocess
import tempfile

from codec_step import Loopback, ShapedLink, certificates, running_server
from machine import Others, conclude

CODECS = ["auto", "none", "block:bits=8", "block:bits=4"]
TARGET = 1.05
RATES = [1000, 100]  # Mbit/s, in addition to loopback
UNCOUNTED = 2        # number of first steps of a run that are not counted


class EmulatedLink(Loopback):
    def __init__(self, megabits):
        self.megabits, self.name = megabits, f"cleave-link, {megabits:g} Mbit/s"

    @contextlib.contextmanager
    def between(self, options, target):
        link = subprocess.Popen([f"{options.programs}/cleave-link", "--target", target, "--rate", f"{self.megabits:g}Mbit/s",
                                 "--log-level", "error"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            yield link.stdout.readline().strip().rpartition(" ")[2]
        finally:
            link.terminate()
            link.wait()


def links_of(options, stack):
    links = [Loopback()]
    for rate in RATES:
        try:
            if options.link_program:
                raise OSError("cleave-link was requested")
            links.append(ShapedLink(rate, stack.enter_context(contextlib.ExitStack())))
        except (OSError, subprocess.CalledProcessError):
            links.append(EmulatedLink(rate))
    return [link for link in links if not options.link or any(text in link.name for text in options.link)]


def train(options, link, address, tls, codec, folder):
    """A run's summary, plus the median step from its steps.csv."""
    run = f"{folder}/{len(os.listdir(folder))}"
    subprocess.run(
        [*link.client, f"{options.programs}/cleave-client", "train", "--config", options.config, "--server", address, "--run-dir", run,
         "--json", "--quiet", *tls, "--set", f"codec={codec}", "--set", "data.shape=[3, 96, 96]", "--set", f"data.train.size={options.batch}",
         "--set", f"train.batch={options.batch}", "--set", f"train.max_steps={options.steps}", "--set", f"train.epochs={options.steps}",
         "--set", f"train.micro_batches={options.micro_batches}", "--set", "threads={client: 1, server: 1}", "--set", "metrics.error_every=0",
         *[argument for setting in options.set for argument in ("--set", setting)]], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(f"{run}/summary.json") as file:
        summary = json.load(file)
    with open(f"{run}/steps.csv") as file:
        steps = [float(row["seconds"]) + float(row["between_seconds"] or 0) for row in csv.DictReader(file) if row["phase"] == "train"]
    return {"step": statistics.median(steps[UNCOUNTED:]), "seconds": summary["seconds"], "codec": summary["codec"],
            "choice": summary.get("codec_choice")}


def measure(options, link):
    """The runs of one round by codec, in the order of execution."""
    runs = {codec: [] for codec in CODECS}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        os.mkdir(f"{folder}/client")
        server_tls, client_tls = certificates(options, link, folder) if isinstance(link, ShapedLink) else ([], [])
        address = stack.enter_context(running_server(options, link, folder, server_tls))
        if isinstance(link, EmulatedLink):
            address = stack.enter_context(link.between(options, address))
        for round in range(options.rounds):
            for codec in CODECS if round % 2 == 0 else reversed(CODECS):
                runs[codec].append(train(options, link, address, client_tls, codec, f"{folder}/client"))
    return runs


def compare(runs):
    steps = {codec: statistics.median(run["step"] for run in runs[codec]) for codec in CODECS}
    best = min(CODECS[1:], key=lambda codec: steps[codec])
    # Compares runs of the same round, so that a drift of the machine cancels out.
    ratios = [own["step"] / min(runs[codec][number]["step"] for codec in CODECS[1:]) for number, own in enumerate(runs["auto"])]
    ratio = steps["auto"] / steps[best]
    return {"steps": steps, "best": best, "ratio": ratio, "paired_ratio": statistics.median(ratios), "target": TARGET, "reached": ratio <= TARGET}


def short(codecs):
    """The chosen codec of each flow as none, 8 or 4, in the order activation/0, gradient/1 (up), activation/1, gradient/0 (down)."""
    names = [codecs[flow].replace("block:bits=", "") for flow in ("activation/0", "gradient/1", "activation/1", "gradient/0")]
    return names[0] if len(set(names)) == 1 else "/".join(names)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--config", default="tests/bench/mobilenet_v2.yaml")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=60, help="steps per run")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--link", action="append", help="only links whose name contains this text: loopback, 1000, 100 Mbit")
    parser.add_argument("--link-program", action="store_true", help="uses cleave-link instead of network namespaces")
    parser.add_argument("--short", action="store_true", help="3 rounds of 25 steps")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed to cleave-client")
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()
    if options.short:
        options.rounds, options.steps = min(options.rounds, 3), min(options.steps, 25)

    others = Others()
    results = []
    print(f"MobileNetV2 at 96 x 96, batch {options.batch}, {options.micro_batches} micro-batches, one thread per side; {options.rounds} runs of "
          f"{options.steps} steps each; medians of a run's median step, in ms")
    print(f"{'link':<24}" + "".join(f"{codec:>14}" for codec in CODECS) + f"{'auto / best':>13}{'paired':>8}{'at most':>9}{'reached':>9}  chose (trial, s)")
    with contextlib.ExitStack() as stack:
        for link in links_of(options, stack):
            runs = measure(options, link)
            result = compare(runs)
            results.append({"link": link.name, **result, "runs": runs})
            chosen = ", ".join(f"{short(run['codec'])} ({run['choice']['seconds']:.1f})" for run in runs["auto"])
            print(f"{link.name:<24}" + "".join(f"{1e3 * result['steps'][codec]:>14.1f}" for codec in CODECS) +
                  f"{result['ratio']:>13.3f}{result['paired_ratio']:>8.3f}{TARGET:>9.2f}{'yes' if result['reached'] else 'no':>9}  {chosen}", flush=True)
    conclude(others.share(), results, options.json)


if __name__ == "__main__":
    main()
