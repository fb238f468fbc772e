"""Measures forward and backward of a MobileNetV2 that was exported from PyTorch and is run by Cleave. Compares it with Cleave's own model
in the same process, and with PyTorch in Python.

Prints the ratios. Called by scripts/bench.sh graph; needs the environment of scripts/test_python.sh."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from machine import Others, conclude

EXPORT = """
import sys, torch, torchvision
sys.path.insert(0, "python")
import cleave_split
cleave_split.export(torchvision.models.mobilenet_v2(num_classes=10), torch.randn(2, 3, {size}, {size}), {path!r})
"""

# Prints the milliseconds of each step.
EAGER = """
import json, time, torch, torchvision
torch.set_num_threads({threads})
model = torchvision.models.mobilenet_v2(num_classes=10).to(memory_format=torch.channels_last).train()
images = torch.randn({batch}, 3, {size}, {size}).to(memory_format=torch.channels_last)
labels = torch.arange({batch}) % 10
times = []
for round in range(2 + {rounds}):
    start = time.perf_counter()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    model.zero_grad()
    times.append(1e3 * (time.perf_counter() - start))
print(json.dumps(times[2:]))
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--python", default=".deps/python/bin/python")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", help="writes the figures to this file")
    options = parser.parse_args()
    if not os.path.exists(options.python):
        sys.exit(f"graph.py: there is no {options.python}: run scripts/test_python.sh first")
    others = Others()
    values = {"batch": options.batch, "size": options.size, "threads": options.threads, "rounds": options.rounds}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/mobilenet_v2.pt2"
        subprocess.run([options.python, "-W", "ignore", "-c", EXPORT.format(path=path, **values)], check=True)
        arguments = [f"--{name}={value}" for name, value in values.items()]
        done = subprocess.run([f"{options.programs}/bench_graph", path, *arguments], check=True, stdout=subprocess.PIPE, text=True)
        times = json.loads(done.stdout)
    done = subprocess.run([options.python, "-W", "ignore", "-c", EAGER.format(**values)], check=True, stdout=subprocess.PIPE, text=True)
    times["eager"] = json.loads(done.stdout)
    own, graph, eager = (statistics.median(times[name]) for name in ("own", "graph", "eager"))
    print(f"MobileNetV2, forward + backward, batch {options.batch}, {options.size} x {options.size}, {options.threads} thread(s), "
          f"medians of {options.rounds}")
    print(f"Cleave's own {own:.1f} ms; exported {graph:.1f} ms: {graph / own:.3f} times; PyTorch in Python {eager:.1f} ms: "
          f"exported takes {graph / eager:.3f} times as long")
    conclude(others.share(), {"milliseconds": times, **values}, options.json)


if __name__ == "__main__":
    main()
