#!/usr/bin/env python3
"""Measures what a server learns of Fashion-MNIST, per cut and codec: trains, records, audits, and writes results.csv and results.md.

If interrupted, the same command resumes. Needs PyTorch and the built programs. Example:

  .deps/python/bin/python scripts/privacy.py --programs build/release/bin --output privacy-results
"""

import argparse
import csv
import itertools
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))

import torch  # noqa: E402
from torch import nn  # noqa: E402

from cleave_split.privacy import Model, audit  # noqa: E402
from cleave_split.safetensors_file import read_safetensors  # noqa: E402

WIDTH = 8
CUTS = {"1": [1, 13], "4": [4, 13], "8": [8, 13]}  # after the first convolution, and at the ends of the first and the second group of layers
CODECS = {
    "none": "none",
    "block8": "block:bits=8",
    "block4": "block:bits=4",
    "block2": "block:bits=2",
    "sort8": "sort:q=6,s=2,select=exact",
    "sort4": "sort:q=3,s=1,select=exact",
    "topk": "topk:ratio=0.1",
    "power": "power:rank=2,iterations=2",
    "uniform2": "uniform:bits=2",
    "delta": "{activation/0: 'delta(block:bits=2)', activation/1: 'delta(block:bits=2)', gradient/0: 'block:bits=2', gradient/1: 'block:bits=2'}",
}
DEFENCES = {
    "noise 0.5": "{kind: noise, deviation: 0.5}",
    "noise 1": "{kind: noise, deviation: 1}",
    "noise 2": "{kind: noise, deviation: 2}",
    "noise 4": "{kind: noise, deviation: 4}",
    "distance correlation 1": "{kind: distance_correlation, weight: 1}",
    "distance correlation 10": "{kind: distance_correlation, weight: 10}",
    "max norm": "{kind: max_norm}",
    "gradient noise 0.5": "{kind: gradient_noise, deviation: 0.5}",
    "gradient noise 1": "{kind: gradient_noise, deviation: 1}",
    "gradient noise 3": "{kind: gradient_noise, deviation: 3}",
}
EPOCHS, BATCH, PER_CLASS = 4, 50, 100  # 80 steps with 1,000 samples
COLUMNS = ("cut", "codec", "defence", "flow", "epochs", "attack", "finds", "metric", "value", "low", "high", "baseline", "advantage", "samples", "top1", "bytes")


def layers(width=WIDTH):
    """The blocks of small_cnn with their names, up to flatten."""
    found = []
    for layer in range(3):
        channels = width << layer
        found += [(f"conv{layer + 1}", nn.Conv2d(1 if layer == 0 else channels // 2, channels, 3, padding=1)), (f"pool{layer + 1}", nn.MaxPool2d(2)),
                  (f"bn{layer + 1}", nn.BatchNorm2d(channels)), (f"relu{layer + 1}", nn.ReLU())]  # fmt: skip
    return [*found, ("flatten", nn.Flatten())]


def part(begin, end, weights=None):
    """Blocks begin to end, with new weights or those of a run."""
    module = nn.Sequential()
    for name, layer in layers()[begin:end]:
        module.add_module(name, layer)
    if weights:
        module.load_state_dict({name: weights[name] for name in module.state_dict()})
    return module.eval()


def train(programs, folder, cut, codec, defence):
    """A run with its recording; nothing if both are there."""
    if (folder / "run/summary.json").exists():
        return
    for name in ("run", "recording"):
        subprocess.run(["rm", "-rf", folder / name], check=True)
    settings = {"model.width": WIDTH, "model.cuts": CUTS[cut], "codec": CODECS[codec], "data.train.per_class": PER_CLASS, "train.batch": BATCH,
                "train.micro_batches": 2, "train.epochs": EPOCHS, "data.holdout": 500, "threads": "{client: 1, server: 1}"}  # fmt: skip
    if defence:
        key = folder / "key"
        key.write_text("7" * 64)
        key.chmod(0o600)
        settings |= {"privacy.defence": DEFENCES[defence], "privacy.key_file": key}
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    subprocess.run([programs / "cleave-client", "train", "--config", ROOT / "configs/fashion_mnist.yaml", *sets, "--run-dir", folder / "run", "--quiet",
                    "--record-traffic", folder / "recording", "--record-inputs"], check=True, stdout=subprocess.DEVNULL)  # fmt: skip


def rows_of(folder, cut, codec, defence, attacks):
    weights = read_safetensors(folder / "run/model.safetensors")
    begin, end = CUTS[cut]
    known = Model(head=part(0, begin, weights), body=part(begin, end, weights), make_head=lambda: part(0, begin),
                  make_tail=lambda: nn.Linear(36 * WIDTH, 10))  # fmt: skip
    result = audit([folder / "recording"], folder / "audit", model=known, runs=[folder / "run"], attacks=attacks)
    summary = json.loads((folder / "run/summary.json").read_text())
    run = {"cut": cut, "codec": codec, "defence": defence, "top1": summary["eval"]["top1"], "bytes": summary["tensor_bytes_up"] + summary["tensor_bytes_down"]}
    return [{**row, **run} for row in result["rows"]]


def worst(own, finds, epochs, flow=""):
    """The row of the attack with the greatest advantage, on flows whose names begin with `flow`; None without one."""
    chosen = [row for row in own if row["finds"] == finds and row["epochs"] == epochs and row["flow"].startswith(flow)]
    return max(chosen, key=lambda row: row["advantage"], default=None)


def cells(rows):
    """The rows of each cut, codec and defence, with the name of the last two."""
    which = ("cut", "codec", "defence")
    for cell in dict.fromkeys(tuple(row[each] for each in which) for row in rows):
        yield cell[0], cell[2] or cell[1], [row for row in rows if tuple(row[each] for each in which) == cell]


def chart(rows, file):
    """Draws what the worst attacks find against the accuracy of the model; the areas are the bytes that cross."""
    try:
        import matplotlib
    except ImportError:
        sys.exit("--chart needs matplotlib: pip install matplotlib")
    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, both = pyplot.subplots(1, 2, figsize=(12, 5.5), layout="constrained")
    colors = dict(zip(CUTS, ("tab:red", "tab:blue", "tab:green"), strict=True))
    for axes, (finds, title) in zip(both, (("label", "labels: accuracy of the server"), ("input", "inputs: R2 of the reconstruction")), strict=True):
        for cut, codec, own in cells(rows):
            found = worst(own, finds, "last")
            if found is None:
                continue
            x, y = 100 * own[0]["top1"], found["value"]
            axes.scatter(x, y, own[0]["bytes"] / 1e6 * 3, colors[cut], alpha=0.35)
            axes.vlines(x, found["low"], found["high"], colors[cut], linewidth=1)
            axes.annotate(codec, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7, color=colors[cut])
        axes.set_xlabel("top-1 of the model in %")
        axes.set_ylabel(title)
        axes.grid(linewidth=0.3)
    figure.legend(handles=[pyplot.Line2D([], [], color=color, marker="o", linestyle="", label=f"cut after block {cut}") for cut, color in colors.items()],
                  loc="outside upper center", ncols=len(colors))  # fmt: skip
    figure.savefig(file, metadata={"Date": None})


def table(rows):
    """Per cell: the worst attacks on labels, by what they use, and on inputs, with the traffic of the last epoch and of all epochs."""

    def text(found):
        return f"{found['value']:.2f} ({found['low']:.2f} to {found['high']:.2f})" if found else "none applies"

    lines = ["| Cut | Codec, or defence | Top-1 | MB | Labels, from gradients | Labels, from activations | Inputs, last epoch | Inputs, all epochs |",
             "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for cut, codec, own in cells(rows):
        first = own[0]
        lines.append(f"| {cut} | {codec} | {100 * first['top1']:.1f} % | {first['bytes'] / 1e6:.1f} | {text(worst(own, 'label', 'last', 'gradient'))} | "
                     f"{text(worst(own, 'label', 'last', 'activation'))} | {text(worst(own, 'input', 'last'))} | {text(worst(own, 'input', 'all'))} |")  # fmt: skip
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT / "build/release/bin", help="the folder of the programs")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("privacy-results"))
    parser.add_argument("--cut", action="append", choices=CUTS, help="only this cut; repeatable")
    parser.add_argument("--codec", action="append", choices=CODECS, help="only this codec; repeatable")
    parser.add_argument("--defence", action="append", choices=["none", *DEFENCES], help="with this defence instead of none; repeatable")
    parser.add_argument("--attack", action="append", default=[], help="only this attack; repeatable")
    parser.add_argument("--chart", metavar="FILE.svg", help="also draw the results; needs matplotlib")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for cut, codec, defence in itertools.product(options.cut or CUTS, options.codec or CODECS, [each.replace("none", "") for each in options.defence or ["none"]]):
        folder = (options.output / "-".join(filter(None, [f"cut{cut}", codec, defence.replace(" ", "-")]))).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        train(options.programs.resolve(), folder, cut, codec, defence)
        rows += rows_of(folder, cut, codec, defence, options.attack)
        with open(options.output / "results.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        (options.output / "results.md").write_text(table(rows))
    print(table(rows), end="")
    if options.chart:
        chart(rows, options.chart)


if __name__ == "__main__":
    main()
