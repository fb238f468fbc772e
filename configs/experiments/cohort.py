#!/usr/bin/env python3
"""Compares ways in which 10 clients can train on Fashion-MNIST, with similar and with different data.

    python3 configs/experiments/cohort.py --output experiments/cohort

  joint    one model, as a cohort: docs/joint.md
  average  each member trains a copy for an epoch, then the weights are averaged by numbers of samples, as in FedAvg
  turns    the model goes from member to member, which train it for an epoch each, as a cohort with cohort.mode: relay
  alone    a model each; the mean of their accuracies

The members have 12,000 images, the same in all rows: divided at random (iid), or with shares of each class drawn from a Dirichlet
distribution (skewed). The model is a small CNN, with batch norm or with group norm, or EfficientNet-Lite0 with its ImageNet weights, which
efficientnet.py has written. All members evaluate the test set of 10,000 images, or parts of it that add up to it. Needs the packages
cleave_split (python/), torch and safetensors. Finished runs are kept in the folder, and are not repeated.

    python3 configs/experiments/cohort.py --output experiments/cohort-efficientnet --model efficientnet --samples 2000 --test-samples 2000 --epochs 3 --rate 0.02
"""

import argparse
import concurrent.futures
import contextlib
import csv
import gzip
import json
import pathlib
import secrets
import shutil
import statistics
import subprocess
import sys

import numpy
import safetensors.torch
import torch

import cleave_split

IMAGES = "/usr/share/datasets/fashion-mnist"
MEMBERS, CLASSES = 10, 10
MIN_SHARE = 1 / 190  # minimum share of all samples per member
WAYS = ("joint", "average", "turns", "alone")
EFFICIENTNET = "experiments/efficientnet/model.pt2"
MODELS = ("group", "batch", "efficientnet")
CUTS = {"efficientnet": "[net._bn0, net._bn1]"}
INPUTS = {"efficientnet": "image"}  # the names of the models' inputs


class Net(torch.nn.Module):
    def __init__(self, norm):
        super().__init__()
        sizes = [(1, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2)]
        self.convs = torch.nn.ModuleList(torch.nn.Conv2d(a, b, 3, stride, 1, bias=False) for a, b, stride in sizes)
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(b) if norm == "batch" else torch.nn.GroupNorm(4, b) for _, b, _ in sizes)
        self.relus = torch.nn.ModuleList(torch.nn.ReLU() for _ in sizes)
        self.pool = torch.nn.AdaptiveAvgPool2d(1)
        self.flatten = torch.nn.Flatten()
        self.head = torch.nn.Linear(64, CLASSES)

    def forward(self, x):
        for conv, norm, relu in zip(self.convs, self.norms, self.relus, strict=True):
            x = relu(norm(conv(x)))
        return self.head(self.flatten(self.pool(x)))


def model_file(root, model):
    return pathlib.Path(EFFICIENTNET) if model == "efficientnet" else root / f"{model}.pt2"


def read_idx(name, offset):
    with gzip.open(f"{IMAGES}/{name}-ubyte.gz") as file:
        return numpy.frombuffer(file.read()[offset:], numpy.uint8)


def images(name, model, samples):
    """As many images of each class, as the model takes them."""
    values, labels = read_idx(f"{name}-images-idx3", 16).reshape(-1, 1, 28, 28), read_idx(f"{name}-labels-idx1", 8).astype("int64")
    chosen = numpy.concatenate([numpy.flatnonzero(labels == each)[: samples // CLASSES] for each in range(CLASSES)])
    values = values[chosen] / 255
    if model != "efficientnet":
        return ((values - 0.2860) / 0.3530).astype("float32"), labels[chosen]
    return torch.nn.functional.interpolate(torch.from_numpy(values.astype("float32")), size=64, mode="bilinear").numpy(), labels[chosen]


def parts(labels, alpha, seed):
    """The images of each member. Draws again until each has enough."""
    random = numpy.random.default_rng(seed)
    while True:
        members = [[] for _ in range(MEMBERS)]
        if alpha is None:
            members = numpy.array_split(random.permutation(len(labels)), MEMBERS)
        else:
            for each in range(CLASSES):
                of_class = random.permutation(numpy.flatnonzero(labels == each))
                ends = (numpy.cumsum(random.dirichlet([alpha] * MEMBERS))[:-1] * len(of_class)).astype(int)
                for member, part in zip(members, numpy.split(of_class, ends), strict=True):
                    member.extend(part)
        if min(map(len, members)) >= MIN_SHARE * len(labels):
            return [numpy.array(member) for member in members]


def data_folder(root, model):
    return root / ("data-efficientnet" if model == "efficientnet" else "data")


def write_arrays(folder, name, values, labels):
    folder.mkdir(parents=True, exist_ok=True)
    numpy.save(folder / f"{name}.npy", values)
    numpy.save(folder / "labels.npy", labels)


def prepare(options):
    """Writes the models and the members' data, once."""
    root = pathlib.Path(options.output)
    root.mkdir(parents=True, exist_ok=True)
    if not (root / "key").exists():
        (root / "key").touch(0o600)
        (root / "key").write_text(secrets.token_hex(32))
    for model in options.model:
        path = model_file(root, model)
        if model == "efficientnet" and not path.exists():
            sys.exit(f"{path} is missing; run configs/experiments/efficientnet.py --output {path.parent}")
        if not path.exists():
            torch.manual_seed(1)
            cleave_split.export(Net(model).train(), {"x": torch.rand(2, 1, 28, 28)}, str(path))
        name, folder = INPUTS.get(model, "x"), data_folder(root, model)
        train, test = images("train", model, options.samples), images("t10k", model, options.test_samples)
        write_arrays(folder / "test", name, *test)
        for m in range(MEMBERS):
            write_arrays(folder / f"test{m}", name, *(each[m::MEMBERS] for each in test))
        for data, alpha in (("iid", None), ("skewed", options.alpha)):
            for seed in options.seed:
                for m, part in enumerate(parts(train[1], alpha, seed)):
                    write_arrays(folder / f"{data}-{seed}/{m}", name, *(each[part] for each in train))
    return root


class Group:
    """The members in one setting: model, data, seed."""

    def __init__(self, options, root, model, data, seed):
        self.options, self.root, self.model, self.seed = options, root, model, seed
        self.tests = data_folder(root, model)
        self.data = self.tests / f"{data}-{seed}"
        self.runs = root / f"{model}-{data}-{seed}"
        self.samples = [len(numpy.load(self.data / f"{m}/labels.npy")) for m in range(MEMBERS)]

    def command(self, *words, **settings):
        settings = {"model.file": model_file(self.root, self.model), **settings}
        if self.model in CUTS:
            settings["model.cuts"] = CUTS[self.model]
        return [f"{self.options.programs}/cleave-client", *map(str, words), "--config", "configs/experiments/cohort.yaml", "--log-level", "error",
                *[argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")]]  # fmt: skip

    def start(self, run, m, test, batch, epochs, more, evaluates):
        settings = {"data.train.file": self.data / str(m), "data.test.file": self.tests / test, "train.batch": batch, "train.epochs": epochs,
                    "run.seed": self.seed, "eval.every": epochs if evaluates else 0, "train.learning_rate.peak": self.options.rate,
                    "threads.client": 1, "threads.server": 1, **more}  # fmt: skip
        return subprocess.Popen(self.command("train", "--run-dir", run, **settings), stdout=subprocess.DEVNULL)

    def accuracy(self, run):
        with open(run / "epochs.csv") as file:
            return 100 * float(list(csv.DictReader(file))[-1]["eval_top1"])

    def local(self, run, m, epochs, weights=None, evaluates=False):
        """Trains on the data of one member. Returns the run's folder."""
        if not (run / "summary.json").exists():
            shutil.rmtree(run, ignore_errors=True)
            more = {} if weights is None else {"weights.file": weights}
            if self.start(run, m, "test", min(32, self.samples[m]), epochs, more, evaluates).wait() != 0:
                raise SystemExit(f"{run}: the run has failed")
        return run

    def cohort(self, folder, batch, more):
        """Trains as a cohort. Returns the run's folder of the first member."""
        runs = [folder / f"m{m}" for m in range(MEMBERS)]
        if not all((run / "summary.json").exists() for run in runs):
            shutil.rmtree(folder, ignore_errors=True)
            with running_server(self.options, folder) as server:
                names = ", ".join(run.name for run in runs)
                shared = {"cohort.id": self.runs.name, "cohort.members": f"[{names}]", "servers": f"[{server}]", **more}
                clients = [self.start(run, m, f"test{m}", batch, self.options.epochs, {**shared, "cohort.member": run.name}, True)
                           for m, run in enumerate(runs)]
                if any([client.wait() for client in clients]):
                    raise SystemExit(f"{folder}: a member has failed")
        return runs[0]

    def joint(self):
        return self.accuracy(self.cohort(self.runs / "joint", 100, {"train.micro_batches": MEMBERS}))

    def all(self, train):
        """The results of train() for all members, some of which run at once."""
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            return list(pool.map(train, range(MEMBERS)))

    def average(self):
        weights = None
        for epoch in range(1, self.options.epochs + 1):
            runs = self.all(lambda m, epoch=epoch, weights=weights: self.local(self.runs / f"average/{epoch}/m{m}", m, 1, weights))
            weights = self.runs / f"average/{epoch}.safetensors"
            models = [safetensors.torch.load_file(run / "model.safetensors") for run in runs]
            shares = [count / sum(self.samples) for count in self.samples]
            mean = {name: sum(share * model[name].double() for share, model in zip(shares, models, strict=True)).to(value.dtype)
                    for name, value in models[0].items()}
            safetensors.torch.save_file(mean, weights)
        return self.evaluated(weights)

    def turns(self):
        first = self.cohort(self.runs / "relay", 32, {"cohort.mode": "relay", "cohort.key_file": self.root / "key"})
        return self.evaluated(first / "model.safetensors")

    def evaluated(self, weights):
        """The accuracy of these weights on all test images."""
        command = self.command("eval", weights, "--json", **{"data.train.file": self.data / "0", "data.test.file": self.tests / "test"})
        result = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        return 100 * json.loads(result.stdout)["metrics"]["top1"]

    def alone(self):
        runs = self.all(lambda m: self.local(self.runs / f"alone/m{m}", m, self.options.epochs, evaluates=True))
        return statistics.mean(map(self.accuracy, runs))


@contextlib.contextmanager
def running_server(options, folder):
    server = subprocess.Popen([f"{options.programs}/cleave-server", "serve", "--log-level", "error", "--set", "listen.port=0", "--set",
                               f"store={folder}/store", "--set", f"limits.sessions={MEMBERS}", "--set", "models.allow=[graph]"],
                              stdout=subprocess.PIPE, text=True)
    try:
        yield server.stdout.readline().strip().rpartition(" ")[2]
    finally:
        server.terminate()
        server.wait()


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, help="folder for data and runs")
    parser.add_argument("--programs", default="build/release/bin", help="folder of the programs; default: build/release/bin")
    parser.add_argument("--alpha", type=float, default=0.1, help="of the Dirichlet distribution; default: 0.1")
    parser.add_argument("--epochs", type=int, default=5, help="default: 5")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate; default: 0.05")
    parser.add_argument("--jobs", type=int, default=2, help="members that train at once on their own; default: 2")
    parser.add_argument("--seed", type=int, action="append", help="repeatable; default: 1, 2 and 3")
    parser.add_argument("--model", choices=MODELS, action="append", help="group and batch: a small CNN with that norm; repeatable; default: these two")
    parser.add_argument("--samples", type=int, default=12000, help="training images; default: 12000")
    parser.add_argument("--test-samples", type=int, default=10000, help="default: 10000")
    parser.add_argument("--way", choices=WAYS, action="append", help="repeatable; default: all")
    parser.add_argument("--chart", metavar="FILE.svg", help="also draw the means; needs matplotlib")
    options = parser.parse_args(arguments)
    options.seed, options.model, options.way = options.seed or [1, 2, 3], options.model or ["group", "batch"], options.way or WAYS
    root = prepare(options)
    print(f"| Model        | Data   | {' | '.join(f'{way:<13}' for way in options.way)} |")
    print(f"|--------------|--------|{'|'.join('-' * 15 for _ in options.way)}|", flush=True)
    rows = {}
    for model in options.model:
        for data in ("iid", "skewed"):
            print(f"| {model:<12} | {data:<6} |", end="", flush=True)
            for way in options.way:
                values = [getattr(Group(options, root, model, data, seed), way)() for seed in options.seed]
                rows.setdefault((model, data), []).append(values)
                print(f" {shown(values):<13} |", end="", flush=True)
            print(flush=True)
    print(f"top-1 in %, {options.epochs} epochs, mean ± standard deviation of seeds {', '.join(map(str, options.seed))}")
    if options.chart:
        chart(options.way, rows, options.chart)
    return 0


def shown(values):
    return f"{statistics.mean(values):.2f}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def chart(ways, rows, file):
    """Draws a group of bars per row, and the result of each seed."""
    try:
        import matplotlib
    except ImportError:
        sys.exit("--chart needs matplotlib: pip install matplotlib")
    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    width = 0.8 / len(ways)
    for w, way in enumerate(ways):
        places = [row + (w - (len(ways) - 1) / 2) * width for row in range(len(rows))]
        axes.bar(places, [statistics.mean(values[w]) for values in rows.values()], 0.9 * width, label=way)
        for place, values in zip(places, rows.values(), strict=True):
            axes.plot([place] * len(values[w]), values[w], ".", color="black", markersize=4)
    axes.axhline(100 / CLASSES, color="gray", linewidth=0.8, linestyle=":", label="chance")
    axes.set_xticks(range(len(rows)), [f"{model if model == 'efficientnet' else model + ' norm'}, {data}" for model, data in rows])
    axes.set_ylabel("top-1 in %")
    figure.legend(loc="outside upper center", ncols=len(ways) + 1)
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main())
