#!/usr/bin/env python3
"""Trains MobileNetV2 on CIFAR-10 through a server with each codec or insert and number of micro-batches, and prints a table of bandwidths and
seconds.

    python3 configs/experiments/two_machines.py --server SERVER:4800 --steps 20
    python3 configs/experiments/two_machines.py --server SERVER:4800            # all 40 epochs, for the accuracies

Run it in the repository's root, after a build. If interrupted, rerun the same command to resume. The published figures of reference.csv are
printed below ours. The columns, with bytes and seconds per batch of 64 images:

    ratio        bytes on the wire divided by those of fp32 without an insert
    accuracy     top-1 of the best epoch; empty with --steps
    average      bytes of one direction (the mean of both) divided by the computation seconds
    peak client  largest bandwidth at which the client sends, as its kernel estimates it for each tensor
    peak server  largest bandwidth of one of the client's tensors, measured where the server receives it
    peak down    the same, of the server's tensors, measured where the client receives them; not in the publication
    computation  seconds in which client, server or both compute, from a trace of both
    total        duration of a step, in seconds

Bandwidths are in MiB/s. Without --server, both sides run on this machine. Inserts are pre-trained to reproduce their input before the first run.
--chart draws peak and average bandwidth by codec and micro-batches, as the publication does; it needs matplotlib.
"""

import argparse
import csv
import json
import os
import re
import statistics
import subprocess
import sys

from results import NEEDED, POWER, UNMEASURED, corrected, markdown, require, run_seconds, say_estimate

# Conv inserts: 4 x 4 windows with a stride of 4 at the first cut, and 1280 to 320 channels at the second one.
CODECS = {"none": {"codec": "none"}, "conv insert, 32 channels": {"codec": "none", **corrected(32, 320)},
          "conv insert, 20 channels": {"codec": "none", **corrected(20, 320)}, "power (3,7)": {"codec": POWER}}  # fmt: skip
MICRO_BATCHES = [1, 4, 8]
DEFAULT_CONFIG = "configs/experiments/cifar10.yaml"
MIB = 1 << 20
COLUMNS = ["Codec", "Ratio", "Accuracy", "Average", "Peak client", "Peak server", "Peak down", "Computation", "Total", "Micro-batches"]
PUBLISHED = {"none": "none", "power:rank=3,iterations=2": "power (3,7)"}
TRACED = 20  # steps at most


def rows_of(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def point_folder(options, codec, micro_batches):
    return os.path.join(options.folder, f"{re.sub(r'[^a-z0-9]+', '-', codec).strip('-')}-{micro_batches}")


def settings_of(options, codec):
    """A codec's settings. With inserts, makes the file in which these reproduce their input, unless it exists."""
    settings = CODECS[codec]
    if "insert" not in settings:
        return settings
    file = os.path.join(options.folder, re.sub(r"[^a-z0-9]+", "-", codec) + ".safetensors")
    if not os.path.exists(file):
        command = [os.path.join(options.programs, "cleave-client"), "pretrain-inserts", "--config", options.config, "--output", file]
        for setting in [f"insert={settings['insert']}", f"train.freeze={settings['train.freeze']}", *options.set]:
            command += ["--set", setting]
        ended = subprocess.run(command, stdout=sys.stderr)
        if ended.returncode:
            sys.exit(f"two_machines: pretrain-inserts failed with exit code {ended.returncode}; correct the cause, and rerun the same command to resume")
    return {**settings, "weights.file": file}


def train_command(options, settings):
    """A command line that trains with these settings, without the server."""
    command = [os.path.join(options.programs, "cleave-client"), "train", "--config", options.config]
    assignments = [*(f"{key}={value}" for key, value in settings.items()), *options.set]
    if options.steps:
        assignments += [f"train.max_steps={options.steps}", *UNMEASURED]
    return [*command, *(part for each in assignments for part in ("--set", each))]


def server_options(options):
    return [*(["--server", options.server] if options.server else []), *(["--tls", options.tls] if options.tls else [])]


def is_done(options, codec, micro_batches):
    return os.path.exists(os.path.join(point_folder(options, codec, micro_batches), "summary.json"))


def train(options, codec, micro_batches):
    """Trains one point unless it is done. Returns the exit code."""
    if is_done(options, codec, micro_batches):
        return 0
    folder = point_folder(options, codec, micro_batches)
    if os.path.exists(os.path.join(folder, "run.json")):
        command = [os.path.join(options.programs, "cleave-client"), "train", "--resume", folder]
    else:
        command = [*train_command(options, {**settings_of(options, codec), "train.micro_batches": micro_batches}), "--run-dir", folder,
                   "--trace", folder + ".trace", "--trace-steps", str(min(TRACED, options.steps or TRACED)), *server_options(options)]  # fmt: skip
    print(f"two_machines: {codec}, {micro_batches} micro-batches", file=sys.stderr, flush=True)
    return subprocess.run([*command, "--quiet"], stdout=subprocess.DEVNULL).returncode


def computation_seconds(trace):
    """Per step of the trace, the seconds in which at least one side computes."""
    with open(trace, encoding="utf-8") as file:
        events = [each for each in json.load(file)["traceEvents"] if each.get("ph") == "X" and each.get("cat") == "compute"]
    steps = len({each["args"]["step"] for each in events})
    busy, end = 0.0, 0.0
    for begin, duration in sorted((each["ts"], each["dur"]) for each in events):
        busy += max(0.0, begin + duration - max(begin, end))
        end = max(end, begin + duration)
    return busy / steps * 1e-6


def training_steps(folder):
    """The rows of the steps, without the first one, which is a warm-up."""
    steps = [row for row in rows_of(os.path.join(folder, "steps.csv")) if row["phase"] == "train"]
    return steps[1:] or steps


def direction_bytes(steps):
    """Bytes of one direction per step, the mean of both."""
    return statistics.mean((float(row["wire_up_bytes"]) + float(row["wire_down_bytes"])) / 2 for row in steps)


def figures(options, codec, micro_batches):
    """The point's row, or None if it is not done."""
    folder, without = point_folder(options, codec, micro_batches), point_folder(options, "none", micro_batches)
    if not (is_done(options, codec, micro_batches) and is_done(options, "none", micro_batches)):
        return None
    with open(os.path.join(folder, "summary.json"), encoding="utf-8") as file:
        summary = json.load(file)
    steps = training_steps(folder)
    bytes_ = direction_bytes(steps)
    ratio = bytes_ / direction_bytes(training_steps(without))
    peaks = {"send": 0.0, "recv": 0.0}  # by what the client does, measured at the receiver
    sending = 0.0
    for row in rows_of(os.path.join(folder, "transfers.csv")):
        if row["phase"] == "train" and row["flow"].split("/")[0] in ("activation", "gradient") and row["wire_seconds"]:
            seconds = float(row["wire_seconds"])
            if seconds > 0:
                peaks[row["role"]] = max(peaks[row["role"]], float(row["wire_bytes"]) / seconds)
            if row["role"] == "send" and row["delivery_rate"]:
                sending = max(sending, float(row["delivery_rate"]))
    trace = folder + ".trace"
    computation = computation_seconds(trace) if os.path.exists(trace) else None
    accuracy = summary.get("eval", {}).get("best_top1")
    return [codec, f"{ratio:.3f}", f"{100 * accuracy:.2f} %" if accuracy is not None else "",
            f"{bytes_ / computation / MIB:.1f}" if computation else "", f"{sending / MIB:.0f}", f"{peaks['send'] / MIB:.0f}", f"{peaks['recv'] / MIB:.0f}",
            f"{computation:.3f} s" if computation else "", f"{statistics.mean(float(row['seconds']) for row in steps):.3f} s",
            str(micro_batches)]


def published():
    """The rows of the publication's table."""
    rows = []
    for row in rows_of(os.path.join(os.path.dirname(__file__), "reference.csv")):
        if row["id"].startswith("two-machines-"):
            rows.append([row["codec"].split(" (")[0] if row["insert"] else PUBLISHED[row["codec_cut0"]], row["ratio"], row["accuracy_percent"] + " %",
                         row["average_mib_s"], row["peak_client_mib_s"], row["peak_server_mib_s"], "", row["computation_seconds"] + " s",
                         row["step_seconds"] + " s", row["micro_batches"]])
    return rows


def chart(ours, theirs, file):
    """Draws peak and average bandwidth by codec, a bar per number of micro-batches; the published ones beside them."""
    try:
        import matplotlib
    except ImportError:
        sys.exit("--chart needs matplotlib: pip install matplotlib")
    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 2, figsize=(11, 7), sharey="row", layout="constrained")
    for line, (column, title) in enumerate(((COLUMNS.index("Peak server"), "Peak"), (COLUMNS.index("Average"), "Average"))):
        for axes, rows, whose in zip(panels[line], (ours, theirs), ("this run", "published")):
            for number, micro_batches in enumerate(MICRO_BATCHES):
                heights = [next((float(row[column]) for row in rows if row[0] == codec and row[-1] == str(micro_batches) and row[column]), 0.0)
                           for codec in CODECS]
                axes.bar([c + 0.28 * (number - 1) for c in range(len(CODECS))], heights, 0.26, label=f"{micro_batches} micro-batches")
            axes.set_xticks(range(len(CODECS)), CODECS, fontsize=8)
            axes.set_title(f"{title} bandwidth, {whose}", fontsize=10)
            axes.grid(axis="y", linewidth=0.3)
        panels[line][0].set_ylabel("MiB/s")
    panels[0][0].legend(fontsize=8)
    os.makedirs(os.path.dirname(file) or ".", exist_ok=True)
    figure.savefig(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default="build/release/bin", help="folder of cleave-client; default: build/release/bin")
    parser.add_argument("--server", help="HOST:PORT; default: the client starts its own")
    parser.add_argument("--tls", help="folder of the client's certificates")
    parser.add_argument("--config", default=DEFAULT_CONFIG, help=f"default: {DEFAULT_CONFIG}")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="replaces one value of the configuration; repeatable")
    parser.add_argument("--steps", type=int, help="only this many steps per point, without evaluation")
    parser.add_argument("--folder", help="folder of the runs; default: sweeps/two-machines, with -speed if --steps is given")
    parser.add_argument("--table", action="store_true", help="only print the table of the points that are done")
    parser.add_argument("--chart", metavar="FILE.svg", help="also draw the bandwidths; needs matplotlib")
    options = parser.parse_args()
    options.folder = options.folder or "sweeps/two-machines" + ("-speed" if options.steps else "")
    os.makedirs(options.folder, exist_ok=True)
    points = [(codec, number) for codec in CODECS for number in MICRO_BATCHES]
    failed = 0
    if not options.table:
        left = sum(not is_done(options, *point) for point in points)
        if options.config == DEFAULT_CONFIG and not options.set:
            require("two_machines", NEEDED["two_machines"])
        try:
            if left:
                say_estimate("two_machines", left, left * run_seconds(train_command(options, CODECS["none"]), server_options(options)))
            failed = sum(train(options, *point) != 0 for point in points)
        except KeyboardInterrupt:
            sys.exit("two_machines: interrupted; rerun the same command to resume")
    ours = [row for row in (figures(options, *point) for point in points) if row]
    theirs = published()
    print(markdown([COLUMNS, *ours, *theirs]) + f"\nThe first {len(ours)} rows are ours, the others published.")
    if options.chart:
        chart(ours, theirs, options.chart)
    if failed:
        sys.exit(f"two_machines: {failed} points failed; rerun the command to resume")


if __name__ == "__main__":
    main()
