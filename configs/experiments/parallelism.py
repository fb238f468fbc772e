#!/usr/bin/env python3
"""Compares pipelines with data parallelism: samples per second, memory per device and bytes per sample, for three models.

    ./scripts/test_python.sh --install                                # installs torch, torchvision and transformers into .deps/python
    .deps/python/bin/python configs/experiments/parallelism.py
    .deps/python/bin/python configs/experiments/parallelism.py --device-speed 10 --rate 1Gbit/s
    CLEAVE_PIPEDREAM=FOLDER .deps/python/bin/python configs/experiments/parallelism.py --only bytes --only pipedream

Run it in the repository's root, after a build. A device is --threads threads of this machine. Measurements are kept in --folder, so that
another run only adds what is missing: if interrupted, rerun the same command to resume. The published profiles of PipeDream are included if
CLEAVE_PIPEDREAM names their folder: cleave-client plan --workers divides them, and its plans are listed beside those of the paper.

Measured figures are those of processes on this machine, connected over loopback. A row is measured if the machine has enough cores and
memory, if a step and its warm-up are expected to end within --max-seconds, and if --device-speed is 1. Data parallel is torch's
DistributedDataParallel over Gloo (data_parallel.py). A pipeline is cleave-client with one cleave-server for each further device.

Predicted figures are for devices that are --device-speed times as fast, each with one link of --rate in both directions and --latency one
way.

  data parallel  A step takes f + max(b, s) + u seconds on R devices, and f + b + s + u without overlap. f, b and u are the seconds of
                 forward, backward and update, measured in one process with torch; f and b are scaled to batch / R samples. Sending takes
                 s = 2 (R - 1) / R x gradient bytes / rate + buckets x 2 (R - 1) x latency, with buckets of 25 MiB. Sources: for the ring
                 all-reduce, Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009; for the
                 buckets and the overlap with the backward, Li et al., "PyTorch Distributed", VLDB 2020.
  pipeline       cleave-client simulate, with the times of cleave-client profile. Servers have direct links (connect.direct), each with a
                 rate of its own. ResNet-101 uses train.recompute, as torchgpipe does.

Memory per device is estimated from shapes: weights, gradients, optimizer state, and what autograd keeps for the micro-batches in flight; in
data parallel also the buckets, which have the size of the gradients. Programs, data and the buffers of links are excluded. Measured memory
is a process's resident memory, which includes them. Top-1 and the second "Published" columns are the publications'; learning rates are proportional
to the batch, as theirs are.

Bytes per sample are the bytes that all devices send, divided by the samples of the batch. In a pipeline, these are the activations and
gradients at the cuts in fp32. In data parallel, they are 2 (R - 1) / R x gradient bytes / samples per device.
"""

import argparse
import collections
import csv
import itertools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

import parallel_costs as costs
from data_parallel import learning_rate
from results import markdown

HERE = os.path.dirname(os.path.abspath(__file__))
MIB, GIB = 1 << 20, 1 << 30
WARM_UP, MAX_STEPS = 1, 2
SCHEDULE = "priority"
MAX_BUSY_CORES = 0.3  # of other work: more makes measurements unreliable

# cuts: per name, the positions or modules where the model is cut; the client has the parts before the first and after the last cut. With
# "balanced", all devices have about as much computation. slots: values that the optimizer keeps per parameter. profiled and alone:
# samples with which cleave-client profile and one process are measured.
Model = collections.namedtuple("Model", "title exported cuts optimizer slots profiled alone recompute")
SGD = {"name": "sgd", "momentum": 0.1}
MODELS = {
    "mobilenet_v2": Model("MobileNetV2", False, {"f1l1": [2, 21], "f2l2": [4, 20], "f4l3": [6, 19], "balanced": [4, 5, 7, 15]}, SGD, 1, 16, 32,
                          recompute=False),
    "roberta_base": Model(
        "RoBERTa-base, RTE", True,
        {"f1l1": ["roberta.embeddings", "roberta"], "f2l2": ["roberta.encoder.layer.0", "roberta.encoder.layer.10"],
         "f4l3": ["roberta.encoder.layer.2", "roberta.encoder.layer.9"],
         "balanced": [f"roberta.encoder.layer.{layer}" for layer in (1, 4, 7, 10)]},
        {"name": "adamw"}, 2, 8, 8, recompute=False),
    "resnet101": Model(
        "ResNet-101", True,
        {"f1l1": ["bn1", "layer4"], "f2l2": ["layer1.0", "layer4.1"], "f4l3": ["layer1", "layer4.0"],
         "balanced": ["layer2.0", "layer3.4", "layer3.13", "layer3"],
         "balanced 8": ["layer1.1", "layer2.2", "layer3.2", "layer3.6", "layer3.10", "layer3.15", "layer3.19", "layer4.0"]},
        SGD, 1, 8, 8, recompute=True),
}  # fmt: skip

# A row of the tables. cuts: "" for data parallel; chunks: micro-batches; in_flight: 0 for all of them; published: its id in reference.csv.
Row = collections.namedtuple("Row", "model devices batch cuts chunks in_flight published", defaults=("", 0, 0, ""))


def rows_of_resnet(batch):
    """With micro-batches of 32."""
    published = {(256, 2, ""): "resnet101-parallel-2", (1024, 8, ""): "resnet101-parallel-8", (256, 2, "f4l3"): "resnet101-pipeline-2",
                 (1024, 8, "balanced 8"): "resnet101-pipeline-8", (4096, 8, "balanced 8"): "resnet101-pipeline-8-4k"}  # fmt: skip
    pipelines = [(2, "f1l1", 4), (2, "f2l2", 4), (2, "f4l3", 4), (4, "balanced", 8), (8, "balanced 8", 16)]
    return [*(Row("resnet101", devices, batch, published=published.get((batch, devices, ""), "")) for devices in (2, 4, 8)),
            *(Row("resnet101", devices, batch, cuts, batch // 32, min(in_flight, batch // 32), published.get((batch, devices, cuts), ""))
              for devices, cuts, in_flight in pipelines if batch == 256 or cuts not in ("f1l1", "f2l2"))]  # fmt: skip


# The first row of a model is the reference of its speed-ups.
ROWS = [
    Row("mobilenet_v2", 2, 64, published="throughput-cifar10-parallel-2"),
    Row("mobilenet_v2", 4, 256, published="throughput-cifar10-parallel-4"),
    Row("mobilenet_v2", 2, 64, "f1l1", 4, 0, "throughput-cifar10-pipeline-2"),
    Row("mobilenet_v2", 2, 64, "f2l2", 4),
    Row("mobilenet_v2", 2, 64, "f4l3", 4, 0, "throughput-cifar10-pipeline-f4l3"),
    Row("mobilenet_v2", 4, 256, "balanced", 4, 0, "throughput-cifar10-pipeline-4-chunks-4"),
    Row("mobilenet_v2", 4, 256, "balanced", 8, 0, "throughput-cifar10-pipeline-4-chunks-8"),
    Row("roberta_base", 2, 32, published="throughput-rte-parallel-2"),
    Row("roberta_base", 4, 64, published="throughput-rte-parallel-4"),
    Row("roberta_base", 2, 32, "f1l1", 4),
    Row("roberta_base", 2, 32, "f2l2", 4, 0, "throughput-rte-pipeline-2"),
    Row("roberta_base", 2, 32, "f4l3", 4),
    Row("roberta_base", 2, 64, "f2l2", 4, 0, "throughput-rte-pipeline-2-batch-64"),
    Row("roberta_base", 4, 64, "balanced", 2, 0, "throughput-rte-pipeline-4-chunks-2"),
    Row("roberta_base", 4, 64, "balanced", 4, 0, "throughput-rte-pipeline-4-chunks-4"),
    *(row for batch in (256, 1024, 4096) for row in rows_of_resnet(batch)),
]

# The published profiles: samples per batch, which follow from the sizes of its tensors, and the model in reference.csv.
PROFILES = {"vgg16": (64, "vgg16"), "alexnet": (256, "alexnet"), "resnet50": (128, "resnet50"), "gnmt": (32, "gnmt8"),
            "gnmt_large": (128, "gnmt16")}  # fmt: skip
# The paper's clusters: rate between machines, and inside a machine: of PCIe in cluster A, of NVLink in B.
CLUSTERS = {"a": ("10Gbit/s", "40Gbit/s"), "b": ("25Gbit/s", "100Gbit/s")}


class Failure(Exception):
    """An error for the user. `code` is the exit code: 1 for a failed run, 2 for wrong use."""

    def __init__(self, what, hint, code=1):
        super().__init__(what)
        self.hint, self.code = hint, code


class Missing(Exception):
    """With --table, a measurement that has not been made."""


def say(text):
    print(f"parallelism: {text}", file=sys.stderr, flush=True)


def run(command, what):
    """Returns the command's output."""
    ended = subprocess.run([str(each) for each in command], capture_output=True, text=True)
    if ended.returncode != 0:
        raise Failure(f"{what} failed with exit code {ended.returncode}:\n" + "\n".join(ended.stderr.strip().splitlines()[-8:]),
                      "correct the cause, and rerun the same command to resume")  # fmt: skip
    return ended.stdout


def read_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def write_json(path, value):
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
    os.replace(path + ".part", path)


def cuts_of(row):
    return MODELS[row.model].cuts[row.cuts]


def rate_of(text):
    """Bytes per second of "10Gbit/s" or "20MB/s"."""
    found = re.fullmatch(r"([0-9.]+)(kbit|Mbit|Gbit|MB)/s", text)
    if not found or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a rate such as 200Mbit/s, 10Gbit/s or 20MB/s")
    return float(found[1]) * {"kbit": 125, "Mbit": 125e3, "Gbit": 125e6, "MB": 1e6}[found[2]]


def seconds_of(text):
    """Seconds of "100us" or "10ms"."""
    found = re.fullmatch(r"([0-9.]+)(us|ms|s)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"'{text}' is not a time such as 100us or 10ms")
    return float(found[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1}[found[2]]


# ---- Measurements ----

def export(model, file, tokens):
    """Exports a model with random weights. `tokens`: the folder for random samples of text, or None."""
    sys.path[:0] = [os.path.join(HERE, "..", "..", "python")]
    import cleave_split
    import data_parallel

    built, inputs, classes = data_parallel.build(model)
    if tokens:
        batches = {split: data_parallel.random_batch(inputs, classes, samples) for split, samples in (("train", 256), ("test", 16))}
        cleave_split.save_dataset({split: {**batch, "labels": labels} for split, (batch, labels) in batches.items()}, tokens)
    cleave_split.export(built, inputs, file, output="logits" if tokens else None)


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(each) for each in file.read().split()]


def family_of(pid):
    """The process and its descendants."""
    return [pid, *(each for child in children_of(pid) for each in family_of(child))]


def resident_so_far(pid):
    """The maximum resident bytes so far of the process and of each of its children, by pid. For a child with descendants, which is a server, they are those
    of the largest of these processes: the one that computes the run."""
    peaks = {}
    for device, family in [(pid, [pid]), *((child, family_of(child)) for child in children_of(pid))]:
        for each in family:
            with open(f"/proc/{each}/status", encoding="ascii") as file:
                resident = [1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM:")]
            peaks[device] = max([peaks.get(device, 0), *resident])
    return peaks


def resident_peaks(process):
    """Waits until a process has ended. Returns the maximum resident bytes of the process and of each of its children."""
    peaks = {}
    while process.poll() is None:
        try:
            peaks = {**peaks, **{pid: max(bytes_, peaks.get(pid, 0)) for pid, bytes_ in resident_so_far(process.pid).items()}}
        except OSError:
            pass  # a process has just ended
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            pass
    return [peaks[pid] for pid in sorted(peaks)]


def busy_cores():
    """Cores that are busy now, on average over one second."""
    def ticks():
        with open("/proc/stat", encoding="ascii") as file:
            values = [int(each) for each in file.readline().split()[1:9]]
        return sum(values), values[3] + values[4]  # all, idle

    before = ticks()
    time.sleep(1)
    total, idle = (after - earlier for after, earlier in zip(ticks(), before))
    return os.cpu_count() * (1 - idle / max(1, total))


def available_memory():
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))


class Lab:
    """The measurements in the output folder. What is missing is measured when it is first needed."""

    def __init__(self, options):
        self.options = options
        self.busy_cores = 0  # maximum over the measurements that were used
        self.folder = os.path.join(options.folder, f"threads-{options.threads}" + ("-cuda" if options.device == "cuda" else ""))
        os.makedirs(self.folder, exist_ok=True)

    def path(self, name):
        return os.path.join(self.folder, re.sub(r"[^\w.-]+", "_", name) + ".json")

    def kept(self, name, measure, duration=""):
        """The JSON of this name, which `measure` returns. "busy_cores" is added: those with other work just before the measurement."""
        if not os.path.exists(self.path(name)):
            if self.options.table:
                raise Missing(name)
            say(name + duration)
            write_json(self.path(name), {"busy_cores": busy_cores(), **measure()})
        found = read_json(self.path(name))
        self.busy_cores = max(self.busy_cores, found["busy_cores"])
        return found

    def client(self, command, model, settings):
        return [os.path.join(self.options.programs, "cleave-client"), command, "--config", self.config(model),
                *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))]

    def config(self, model):
        """The file of the model's configuration. Exports the model if that has not been done."""
        path = os.path.join(self.options.folder, model + ".yaml")
        if os.path.exists(path):
            return path
        file, tokens = (os.path.join(self.options.folder, name) for name in (model + ".pt2", "tokens"))
        is_text = model == "roberta_base"
        if MODELS[model].exported:
            say(f"export {model}")
            export(model, file, tokens if is_text else None)
        data = {"format": "synthetic", "shape": [3, 224, 224], "classes": 10, "train": {"size": 4096}, "test": {"size": 16}}
        if is_text:
            data = {"format": "tensors", **{split: {"file": f"{tokens}/{split}.safetensors"} for split in ("train", "test")}}
        write_json(path, {  # YAML includes JSON
            "run": {"name": f"parallelism-{model}"},
            "model": {"name": "graph", "file": file, "cuts": MODELS[model].cuts["f1l1"]} if MODELS[model].exported else {"name": model},
            "data": data,
            "train": {"batch": 64, "micro_batches": 4, "epochs": 1000, "recompute": MODELS[model].recompute,
                      "optimizer": MODELS[model].optimizer, "learning_rate": {"peak": learning_rate(model, 64)}},
            "eval": {"batch": 16, "every": 0},
            "codec": "none",
        })  # fmt: skip
        return path

    def settings(self, row):
        """The settings of a row of a pipeline."""
        threads = self.options.threads
        return {"model.cuts": json.dumps(cuts_of(row)), "train.batch": row.batch, "train.micro_batches": row.chunks, "device": self.options.device,
                "train.learning_rate.peak": learning_rate(row.model, row.batch), "train.in_flight": row.in_flight, "train.schedule": SCHEDULE, "threads.client": threads, "threads.server": threads,
                "connect.direct": json.dumps(row.devices > 2)}  # fmt: skip

    def plan(self, row):
        """The JSON of a dry run."""
        return json.loads(run([*self.client("train", row.model, self.settings(row)), "--dry-run", "--json"], "cleave-client train --dry-run"))

    def profile(self, model, cuts):
        """The JSON of cleave-client profile. A built-in model has the same profile with any cuts."""
        def measure():
            settings = {"model.cuts": json.dumps(cuts), "train.batch": MODELS[model].profiled, "train.micro_batches": 1, "train.recompute": "false",
                        "threads.client": self.options.threads}  # fmt: skip
            with tempfile.TemporaryDirectory() as folder:
                output = os.path.join(folder, "profile.json")
                run([*self.client("profile", model, settings), "--repeat", "1", "--output", output], "cleave-client profile")
                return read_json(output)

        return self.kept(f"profile {model} {' '.join(cuts)}" if MODELS[model].exported else f"profile {model}", measure)

    def data_parallel(self, row, steps):
        return json.loads(run([sys.executable, os.path.join(HERE, "data_parallel.py"), "--model", row.model, "--devices", row.devices, "--batch",
                               row.batch, "--threads", self.options.threads, "--steps", steps, "--device", self.options.device], "data_parallel.py"))  # fmt: skip

    def alone(self, model):
        """The figures of one process that trains the whole model."""
        return self.kept(f"one process {model}", lambda: self.data_parallel(Row(model, 1, MODELS[model].alone), 2))

    def pipeline(self, row, steps):
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            settings = {**self.settings(row), "train.max_steps": WARM_UP + steps}
            command = [*self.client("train", row.model, settings), "--run-dir", os.path.join(folder, "run"), "--quiet"]
            with open(os.path.join(folder, "errors"), "w+", encoding="utf-8") as errors:
                process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
                try:
                    peaks = resident_peaks(process)
                finally:
                    process.terminate()  # after Ctrl-C
                    process.wait()
                errors.seek(0)
                if process.returncode != 0:
                    raise Failure(f"cleave-client train failed with exit code {process.returncode}:\n{errors.read()[-2000:]}",
                                  "correct the cause, and rerun the same command to resume")  # fmt: skip
            with open(os.path.join(folder, "run", "steps.csv"), encoding="utf-8", newline="") as file:
                taken = [float(each["seconds"]) for each in csv.DictReader(file) if each["phase"] == "train"][WARM_UP:]
        return {"seconds": statistics.median(taken), "steps": steps, "peak_bytes": peaks}

    def measured(self, row, memory, expected):
        """The measured figures of a row, or None. `expected`: seconds per step, as predicted."""
        name, may_measure = self.measurement(row)
        steps = min(MAX_STEPS, int(self.options.max_seconds / expected) - WARM_UP)
        is_measurable = may_measure and sum(memory) < available_memory() and steps >= 1
        if self.options.device_speed != 1 or not (is_measurable or os.path.exists(self.path(name))):
            return None
        return self.kept(name, lambda: (self.pipeline if row.cuts else self.data_parallel)(row, steps),
                         f", about {(WARM_UP + steps) * expected:.0f} s")  # fmt: skip

    def measurement(self, row):
        """The name of a row's measurement, and whether options and cores allow it to be made."""
        in_flight = f" {row.in_flight} in flight" if row.in_flight else ""
        method = f"pipeline {row.cuts} {row.chunks} chunks{in_flight} {SCHEDULE}" if row.cuts else "data parallel"
        options = self.options
        may_measure = row.devices * options.threads <= len(os.sched_getaffinity(0)) and not (options.predict or options.table)
        return f"measured {row.model} {row.devices} devices batch {row.batch} {method}", may_measure and options.device_speed == 1

    def say_estimate(self, rows):
        """Prints how long the measurements that are left will take at most, before the first of them."""
        missing = [not os.path.exists(self.path(name)) for name, may_measure in map(self.measurement, rows) if may_measure]
        if any(missing):
            say(f"measures up to {sum(missing)} rows, in up to about {max(1, sum(missing) * self.options.max_seconds / 60):.0f} min. Before that, it "
                f"measures parts and single processes, from which the other rows are predicted.")  # fmt: skip

    # ---- Predictions ----

    def simulate(self, row, speed):
        """The seconds of a step of a pipeline that cleave-client simulate predicts."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "profile.json")
            write_json(path, costs.scaled(self.profile(row.model, cuts_of(row)), 1 / speed))
            link = self.options.link
            found = json.loads(run([*self.client("simulate", row.model, self.settings(row)), "--profile", path, "--rate", link["rate"],
                                    "--latency", link["latency"], "--in-flight", row.in_flight or row.chunks, "--json"],
                                   "cleave-client simulate"))  # fmt: skip
        return found["cases"][0]["schedules"][SCHEDULE]["seconds"]

    def parts(self, row):
        """The costs of the pipeline's parts for one micro-batch: head, bodies, tail."""
        profile = self.profile(row.model, cuts_of(row))
        names = [block["name"] for block in profile["blocks"]]  # of an exported model: those of the cuts
        ends = [cut if isinstance(cut, int) else names.index(cut) + 1 for cut in cuts_of(row)]
        samples = costs.largest_part(row.batch, row.chunks)
        return [costs.part_of(profile, *blocks, samples) for blocks in itertools.pairwise([0, *ends, len(names)])]

    def predicted(self, row, speed):
        """The seconds of a step on devices of this speed: {"seconds", "by", …}."""
        if row.cuts:
            return {"seconds": self.simulate(row, speed), "by": "cleave-client simulate"}
        alone, link = costs.scaled(self.alone(row.model), 1 / speed), (self.options.rate, self.options.latency)
        seconds = {overlaps: costs.data_parallel_seconds(alone, row.devices, row.batch, *link, overlaps) for overlaps in (True, False)}
        return {"seconds": seconds[True], "seconds_without_overlap": seconds[False], "by": "formula"}

    def memory(self, row):
        """The estimated bytes of memory per device: of each process, or of the client and each server."""
        slots, recompute = MODELS[row.model].slots, MODELS[row.model].recompute
        if not row.cuts:
            parts = self.parts(Row(row.model, 2, row.batch, "f1l1", 1))
            return [costs.data_parallel_memory(parts, slots, costs.largest_part(row.batch, row.devices))] * row.devices
        samples = costs.largest_part(row.batch, row.chunks)
        return costs.pipeline_memory(self.parts(row), slots, samples, row.in_flight or row.chunks, recompute)


# ---- Tables ----

def published_rows():
    """The rows of reference.csv that have a throughput, by their ids."""
    with open(os.path.join(HERE, "reference.csv"), encoding="utf-8", newline="") as file:
        return {each["id"]: each for each in csv.DictReader(file) if each["images_per_second"]}


def figures(lab, row, memory_bytes):
    """The figures of a row, as in the JSON."""
    memory = lab.memory(row)
    out = {**row._asdict(), "method": "pipeline" if row.cuts else "data parallel", "memory_bytes": memory,
           "out_of_memory": max(memory) > memory_bytes}  # fmt: skip
    if out["out_of_memory"]:
        return out
    predicted = lab.predicted(row, lab.options.device_speed)
    out["predicted"] = {**predicted, "samples_per_second": row.batch / predicted["seconds"]}
    if "seconds_without_overlap" in predicted:
        out["predicted"]["samples_per_second_without_overlap"] = row.batch / predicted["seconds_without_overlap"]
    measured = lab.measured(row, memory, predicted["seconds"])
    if measured:
        out["measured"] = {**measured, "samples_per_second": row.batch / measured["seconds"]}
    return out


def add_speed_ups(rows, published):
    """Adds speed-ups relative to the first row of the same model: measured if both rows are measured, otherwise predicted."""
    first = {}
    for row in rows:
        reference = first.setdefault(row["model"], row)
        for basis in ("measured", "predicted"):
            if basis in row and basis in reference:
                row["speed_up"] = row[basis]["samples_per_second"] / reference[basis]["samples_per_second"]
                row["speed_up_is"] = basis
                break
        if row["published"]:
            own, base = (published[each["published"]] for each in (row, reference))
            row["published_samples_per_second"] = float(own["images_per_second"])
            row["published_speed_up"] = float(own["images_per_second"]) / float(base["images_per_second"])
            if own["accuracy_percent"]:
                row["published_accuracy"] = own["accuracy_percent"] + (f" ± {own['accuracy_std']}" if own["accuracy_std"] else "")


def mib(sizes):
    """"1200" if all sizes are equal, otherwise "1200, 3400"."""
    texts = [f"{size / MIB:.0f}" for size in sizes]
    return texts[0] if len(set(texts)) == 1 else ", ".join(texts)


def rate_text(value):
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def speed_table(rows):
    lines = [["Method", "Devices", "Batch", "Cuts", "Chunks", "Learning rate", "Top-1, published", "Samples/s, measured", "Samples/s, predicted",
              "Samples/s, published", "Speed-up", "Speed-up, published", "Memory, MiB", "Measured, MiB"]]  # fmt: skip
    for row in rows:
        predicted, measured = row.get("predicted"), row.get("measured")
        cell = "out of memory" if row["out_of_memory"] else rate_text(predicted["samples_per_second"])
        if predicted and "samples_per_second_without_overlap" in predicted:
            cell += f" ({rate_text(predicted['samples_per_second_without_overlap'])} without overlap)"
        lines.append([row["method"], str(row["devices"]), str(row["batch"]), row["cuts"], str(row["chunks"] or ""),
                      f"{learning_rate(row['model'], row['batch']):g}", row.get("published_accuracy", ""),
                      rate_text(measured["samples_per_second"]) if measured else "", cell,
                      f"{row['published_samples_per_second']:g}" if "published_samples_per_second" in row else "",
                      f"{row['speed_up']:.2f} {row['speed_up_is']}" if "speed_up" in row else "",
                      f"{row['published_speed_up']:.2f}" if "published_speed_up" in row else "",
                      mib(row["memory_bytes"]), mib(measured["peak_bytes"]) if measured else ""])  # fmt: skip
    return markdown(lines)


def bytes_of_pipeline(lab, row):
    """The row's bytes per sample, from the shapes of its dry run."""
    plan = lab.plan(row)
    gradients = sum(part["parameter_bytes"] for part in plan["parts"])
    pipeline = sum(plan["step"].values()) / row.batch
    parallel = row.devices * costs.ring_bytes(gradients, row.devices) / row.batch
    return {"model": row.model, "devices": row.devices, "batch": row.batch, "partition": row.cuts, "pipeline_bytes": pipeline,
            "data_parallel_bytes": parallel, "ratio": pipeline / parallel}  # fmt: skip


def plan_workers(options, path, workers, cluster, *more):
    """The plan of cleave-client plan --workers, as JSON."""
    rate, inside = CLUSTERS[cluster]
    return json.loads(run([os.path.join(options.programs, "cleave-client"), "plan", "--workers", workers, "--profile", path, "--rate", rate,
                           "--inside-rate", inside, "--json", *more], "cleave-client plan"))  # fmt: skip


def plans_of_profiles(options, folder):
    """A row for each published figure of the published profiles: the paper's configuration and speed-up, and those of the plan."""
    with open(os.path.join(HERE, "reference.csv"), encoding="utf-8", newline="") as file:
        published = [row for row in csv.DictReader(file) if row["id"].startswith("pipedream-")]
    rows = []
    for name, (batch, model) in PROFILES.items():
        path = os.path.join(folder, name + ".txt")
        if not os.path.exists(path):
            raise Failure(f"CLEAVE_PIPEDREAM: {path} does not exist", "name a folder with PipeDream's profiles, or unset CLEAVE_PIPEDREAM", 2)
        for each in (row for row in published if row["model"] == model):
            # Such as "VGG-16, ImageNet to 68 %; 4x4 A, 15-1; …".
            workers, cluster, configuration = re.search(r"; (\d+x\d+) ([A-Z]), ([\w-]+)", each["experiment"]).groups()
            plan = plan_workers(options, path, workers, cluster.lower())
            row = {"model": name, "topology": workers, "cluster": cluster, "batch": batch, "published": configuration,
                   "published_speed_up": float(each["speed_up"]), "published_accuracy_speed_up": float(each["accuracy_speed_up"]) if each["accuracy_speed_up"] else None, **plan}  # fmt: skip
            if configuration == "straight" and plan["configuration"] != "straight":
                layers = sum(stage["layers"] for stage in plan["stages"])
                straight = plan_workers(options, path, workers, cluster.lower(), "--replicas", "1") if layers >= plan["workers"] else None
                row["speed_up_of_published"] = straight and straight["speed_up"]
            rows.append(row)
    return rows


def plans_table(rows):
    lines = [["Profile", "Workers", "Published", "Plan", "Speed-up, published", "Speed-up, plan", "Speed-up, published configuration",
              "Speed-up to accuracy, published"]]  # fmt: skip
    for row in rows:
        same = row["published"] == row["configuration"]
        of_data_parallel = 1 if row["published"] == str(row["workers"]) else None
        of_published = row["speed_up"] if same else row.get("speed_up_of_published", of_data_parallel)
        lines.append([row["model"], f"{row['topology']} {row['cluster']}", row["published"], row["configuration"],
                      f"{row['published_speed_up']:.2f}", f"{row['speed_up']:.2f}", f"{of_published:.2f}" if of_published else "",
                      f"{row['published_accuracy_speed_up']:.2f}" if row["published_accuracy_speed_up"] else ""])  # fmt: skip
    return markdown(lines)


def bytes_of_profiles(rows):
    """The same for the published profiles on the first cluster, with the plans' partitions. Their stages may be replicated."""
    found = {}
    for row in rows:
        parallel = row["data_parallel"]["bytes_per_batch"]
        found.setdefault(row["model"], {
            "model": row["model"], "devices": row["workers"], "batch": row["batch"] * row["workers"], "partition": row["configuration"],
            "pipeline_bytes": row["bytes_per_batch"] / row["batch"], "data_parallel_bytes": parallel / row["batch"],
            "ratio": row["bytes_per_batch"] / parallel})  # fmt: skip
    return list(found.values())


def bytes_table(rows):
    lines = [["Model", "Devices", "Batch", "Partition", "Pipeline, MB/sample", "Data parallel, MB/sample", "Ratio"]]
    for row in rows:
        title = MODELS[row["model"]].title if row["model"] in MODELS else row["model"]
        lines.append([title, str(row["devices"]), str(row["batch"]), row["partition"], f"{row['pipeline_bytes'] / 1e6:.3g}",
                      f"{row['data_parallel_bytes'] / 1e6:.3g}", f"{row['ratio']:.3f}"])  # fmt: skip
    return markdown(lines)


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    return f"{len(os.sched_getaffinity(0))} cores of {names[0] if names else platform.machine()}"


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[*MODELS, "bytes", "pipedream"],
                        help="only this model's table, the bytes of all models, or the plans of PipeDream's profiles; repeatable; default: everything")
    parser.add_argument("--rate", default="10Gbit/s", help="rate of each device's link; default: 10Gbit/s, as in PipeDream's cluster of 16 GPUs")
    parser.add_argument("--latency", default="100us", help="one-way latency of each link; default: 100us")
    parser.add_argument("--device-speed", type=float, default=1, metavar="X",
                        help="predict for devices that compute X times as fast as those measured; default: 1")
    parser.add_argument("--memory-gib", type=float, default=24, metavar="GIB", help="memory of a device; default: 24")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu",
                        help="cuda: data parallelism has a GPU per device, with NCCL; in a pipeline, all parts share the first GPU; default: cpu")
    parser.add_argument("--threads", type=int, default=1, help="threads of a device; default: 1")
    parser.add_argument("--max-seconds", type=float, default=60, metavar="S",
                        help="measure a row only if a step and its warm-up are expected to take at most S seconds; default: 60")
    parser.add_argument("--predict", action="store_true", help="measure no rows; predictions still measure single parts and processes")
    parser.add_argument("--table", action="store_true", help="measure nothing: only print the rows that the measurements in --folder allow")
    parser.add_argument("--folder", default="experiments/parallelism", help="folder of models and measurements; default: experiments/parallelism")
    parser.add_argument("--programs", default="build/release/bin", help="folder of cleave-client and cleave-server; default: build/release/bin")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the tables")
    options = parser.parse_args(arguments)
    options.link = {"rate": options.rate, "latency": options.latency}
    try:
        options.rate, options.latency = rate_of(options.rate), seconds_of(options.latency)
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    if options.device_speed <= 0 or options.memory_gib <= 0 or options.threads < 1:
        parser.error("--device-speed, --memory-gib and --threads must be positive")
    return options


def check_requirements(options):
    for name in ("cleave-client", "cleave-server"):
        if not os.access(os.path.join(options.programs, name), os.X_OK):
            raise Failure(f"{options.programs} has no {name}", "build the programs, or name their folder with --programs", 2)
    if options.table:
        return
    for name in ("torch", "torchvision", "transformers"):
        if subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True).returncode != 0:
            raise Failure(f"{sys.executable} cannot import {name}",
                          "run ./scripts/test_python.sh --install, and then this file with .deps/python/bin/python", 2)  # fmt: skip


def compare(options):
    """All figures, as in the JSON."""
    lab = Lab(options)
    only = options.only or [*MODELS, "bytes", "pipedream"]
    wanted = [each for each in ROWS if each.model in only]
    lab.say_estimate(wanted)
    rows = []
    for row in wanted:
        try:
            rows.append(figures(lab, row, options.memory_gib * GIB))
        except Missing as missing:
            say(f"skips a row, because this is not measured: {missing}")
    add_speed_ups(rows, published_rows())
    plans = []
    if "bytes" in only or "pipedream" in only:
        folder = os.environ.get("CLEAVE_PIPEDREAM")
        if folder:
            plans = plans_of_profiles(options, folder)
        else:
            say("the published profiles are skipped, because CLEAVE_PIPEDREAM is not set")
    sizes = []
    if "bytes" in only:
        pipelines = {}  # of each partition, the row with the smallest batch
        for row in (each for each in ROWS if each.cuts):
            pipelines.setdefault((row.model, row.cuts), row)
        sizes = [*(bytes_of_pipeline(lab, row) for row in pipelines.values()), *bytes_of_profiles(plans)]
    if lab.busy_cores > MAX_BUSY_CORES:
        say(f"warning: the seconds and speed-ups are unreliable, because up to {lab.busy_cores:.1f} cores had other work during the measurements. To "
            f"repeat them, remove {lab.folder}")  # fmt: skip
    return {"machine": machine(), "threads_per_device": options.threads, "device_speed": options.device_speed, "link": options.link,
            "busy_cores": lab.busy_cores, "memory_gib": options.memory_gib, "rows": rows, "bytes": sizes,
            "pipedream": plans if "pipedream" in only else []}  # fmt: skip


def print_tables(found):
    speed = "" if found["device_speed"] == 1 else f", predicted for devices {found['device_speed']:g} times as fast"
    threads = found["threads_per_device"]
    print(f"Machine: {found['machine']}. Device: {threads} thread{'' if threads == 1 else 's'} of it{speed}, with {found['memory_gib']:g} GiB.\n"
          f"Link of each device: {found['link']['rate']}, {found['link']['latency']} one way; measured figures: loopback.\n"
          f"Other work just before the measurements: up to {found['busy_cores']:.1f} cores.")  # fmt: skip
    for model in dict.fromkeys(row["model"] for row in found["rows"]):
        print(f"\n{MODELS[model].title}\n\n{speed_table([row for row in found['rows'] if row['model'] == model])}")
    if found["pipedream"]:
        print(f"\nPipeDream's profiles\n\n{plans_table(found['pipedream'])}")
    if found["bytes"]:
        small = sorted({row["model"] for row in found["bytes"] if row["ratio"] <= 0.1})
        print(f"\nBytes per sample\n\n{bytes_table(found['bytes'])}\n\nA pipeline sends at most 1/10 of data parallel's bytes for {len(small)} of "
              f"{len({row['model'] for row in found['bytes']})} models: {', '.join(small) or 'none'}.")  # fmt: skip


def main():
    options = parse(None)
    try:
        check_requirements(options)
        found = compare(options)
    except Failure as failure:
        print(f"parallelism: error: {failure}\nparallelism: hint: {failure.hint}", file=sys.stderr)
        sys.exit(failure.code)
    except KeyboardInterrupt:
        sys.exit("parallelism: interrupted; rerun the same command to resume")
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print_tables(found)


if __name__ == "__main__":
    main()
