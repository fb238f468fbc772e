#!/usr/bin/env python3
"""Runs an experiment of docs/results.md with all its codecs and seeds, and prints its table.

    python3 configs/experiments/results.py efficientnet
    python3 configs/experiments/results.py efficientnet_bytes --chart docs/images/efficientnet_bytes.svg
    python3 configs/experiments/results.py efficientnet_inserts
    python3 configs/experiments/results.py photographs --jobs 2
    python3 configs/experiments/results.py reviews --jobs 2
    python3 configs/experiments/results.py rte --server SERVER:4800 --set device=cuda
    python3 configs/experiments/results.py cifar10 --server SERVER:4800 --set device=cuda --no-speed
    python3 configs/experiments/results.py two_machines --server SERVER:4800 --steps 20
    python3 configs/experiments/results.py staleness

Run it in the repository's root, after a build and `pip install ./python` (staleness and the experiments on CIFAR need no Python package). An experiment
that needs data which cannot be downloaded here says what goes where. Before the first run, it estimates the time of all of them. two_machines and
parallelism are programs of their own: --help behind their name shows their options. If interrupted, rerun the same command to resume. Data and models are written to experiments/, the runs to
sweeps/. The step times over emulated links are measured last, one run at a time, and are meaningful only if nothing else runs on the
machine meanwhile: --no-speed leaves them out. --speed-only measures and prints nothing else, also for rows that have not been trained.

In a row with learned inserts, the file of `weights.file` is written by `cleave-client pretrain-inserts` if it is missing.
"""

import argparse
import concurrent.futures
import csv
import itertools
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from typing import NamedTuple

# Per experiment, the files that it needs, and the commands that make them.
GLUE = "data/glue"  # GLUE's tasks, as they are distributed
COLA = {"experiments/cola/model.pt2": ["glue.py", "--task", "cola", "--glue", f"{GLUE}/CoLA", "--output", "experiments/cola"]}
CIFAR10 = {"data/cifar-10-batches-bin": "unpack CIFAR-10's binary version into data/"}
MOBILENET = {"data/mobilenet_v2.safetensors": "save torchvision's MobileNet_V2_Weights.IMAGENET1K_V1 with safetensors.torch.save_file()"}
GLUE_FILES = "unpack GLUE's {} into data/glue/"
# Per experiment, what its user must provide, and how.
NEEDED = {
    **dict.fromkeys(("cifar10", "two_machines"), {**CIFAR10, **MOBILENET}),
    "cifar100": {"data/cifar-100-binary": "unpack CIFAR-100's binary version into data/", **MOBILENET},
    "food101": {"data/food-101/meta/train.txt": "unpack Food-101 into data/", **MOBILENET},
    "rte": {f"{GLUE}/RTE/train.tsv": GLUE_FILES.format("RTE")},
    **dict.fromkeys(("cola", "cola_fairseq", "cola_lora"), {f"{GLUE}/CoLA/train.tsv": GLUE_FILES.format("CoLA")}),
}
# Experiments that are programs of their own, because their tables are not of codecs.
PROGRAMS = {"two_machines": "two_machines.py", "parallelism": "parallelism.py"}
EFFICIENTNET = {"experiments/efficientnet/model.pt2": ["efficientnet.py", "--output", "experiments/efficientnet"]}
PREPARE = {
    "efficientnet": {
        **EFFICIENTNET,
        "experiments/efficientnet/scratch.pt2": ["efficientnet.py", "--output", "experiments/efficientnet", "--from-scratch"],
    },
    **dict.fromkeys(("efficientnet_bytes", "efficientnet_inserts"), EFFICIENTNET),
    "efficientnet_epochs": {
        **EFFICIENTNET,
        "experiments/efficientnet/frozen.pt2": ["efficientnet.py", "--output", "experiments/efficientnet", "--frozen-stem"],
    },
    **dict.fromkeys(("reviews", "reviews_bytes"), {"experiments/reviews/model.pt2": ["reviews.py", "--output", "experiments/reviews"]}),
    "rte": {"experiments/rte/model.pt2": ["glue.py", "--task", "rte", "--glue", f"{GLUE}/RTE", "--output", "experiments/rte"]},
    "cola": COLA,
    "cola_fairseq": COLA,
    "cola_lora": COLA,
    "gpt2_lora": {
        "experiments/gpt2/model.pt2": ["gpt2.py", "--output", "experiments/gpt2"],
        "experiments/gpt2/base/summary.json": ["cleave-client", "train", "--config", "configs/experiments/gpt2.yaml",
                                                  "--run-dir", "experiments/gpt2/base"],
    },
    "staleness": {},
    **dict.fromkeys(("cifar10", "cifar100"), {}),
    "food101": {"data/food-101/train.csv": ["food101.py", "--data", "data/food-101"]},
    "photographs": {
        "data/photographs/meta/train.txt": ["photographs.py", "--output", "data/photographs"],
        "data/photographs/train.csv": ["food101.py", "--data", "data/photographs"],
        "experiments/photographs/model.pt2": ["efficientnet.py", "--output", "experiments/photographs", "--channels", "3"],
    },
}
# Of the other experiments: configs/experiments/EXPERIMENT.yaml
CONFIGS = {"staleness": "configs/fashion_mnist.yaml",
           **dict.fromkeys(("efficientnet_bytes", "efficientnet_epochs", "efficientnet_inserts"), "configs/experiments/efficientnet.yaml"),
           "reviews_bytes": "configs/experiments/reviews.yaml"}


class Link(NamedTuple):
    """An emulated link on which step times are measured."""
    name: str
    settings: dict
    steps: int  # of a run; the first is not counted


LINKS = [Link("10 Mbit/s", {"link.rate": "10Mbit/s"}, 4), Link("100 Mbit/s", {"link.rate": "100Mbit/s"}, 12), Link("1 Gbit/s", {"link.rate": "1Gbit/s"}, 12)]
LINKS_OF = {  # of the others: LINKS
    "staleness": [Link("1 Gbit/s, 50 ms", {"link.rate": "1Gbit/s", "link.latency": "50ms"}, 12)],
    "efficientnet_epochs": [link._replace(steps=6) for link in LINKS],
}
# Further settings of the step times' short runs. With two steps per epoch, of 60 images each, one of the five counted steps is in the first
# epoch, as in the whole run, and `delta` encodes changes in the others.
SHORT = {"efficientnet_epochs": {"data.train.per_class": "12", "train.batch": "60"}}
SORT = {bits: f"sort:q={q},s={s},select=exact" for bits, q, s in ((16, 12, 4), (12, 9, 3), (8, 6, 2), (4, 3, 1), ("1:1", 4, 4))}
HEADLINE = ["none", SORT[8], "block:bits=4"]
POWER = "{activation/0: power:rank=3, activation/1: power:rank=7, gradient/1: power:rank=7, gradient/0: power:rank=3}"
VISION = [SORT[16], SORT[12], SORT[4], SORT["1:1"], "fast:q=6,s=2,boundaries=first", "fast:q=6,s=2,boundaries=all", "uniform:bits=16",
          "uniform:bits=8", "uniform:bits=4", "topk:ratio=0.5", "topk:ratio=0.2", "topk:ratio=0.1", "kmeans:bits=4", "svd:rank=3", POWER,
          "block:bits=8", "block:bits=2"]
TEXT = [SORT[16], SORT[12], SORT[4], "block:bits=8", "block:bits=2", "kmeans:bits=6", "power:rank=8", "svd:rank=8", "uniform:bits=8",
        "uniform:bits=6"]

# The last cut only; the factors of rank 48, 32 and 16 of 128 x 768 values have 0.4375, 0.29 and 0.146 of the bytes.
KMEANS_LAST = "{activation/0: none, activation/1: kmeans:bits=6, gradient/1: kmeans:bits=6, gradient/0: none}"
RTE = ["none", SORT[16], SORT[12], SORT[8], SORT[4], "sort:q=4,s=2,select=exact", "uniform:bits=8", "uniform:bits=6", KMEANS_LAST, "svd:rank=128",
       "svd:rank=64", "svd:rank=48", "svd:rank=32", "power:rank=48", "power:rank=32", "power:rank=16"]  # fmt: skip
COLA_CODECS = ["none", SORT[16], SORT[12], SORT[8], SORT[4], "kmeans:bits=6", "power:rank=32", "power:rank=16", "topk:ratio=0.5", "uniform:bits=16",
               "uniform:bits=10", "uniform:bits=8"]  # fmt: skip
PARTITIONS = {
    "partition 2": {"model.cuts": "[roberta.encoder.layer.0.attention, roberta.encoder.layer.10]"},
    "partition 3": {"model.cuts": "[roberta.encoder.layer.0.attention, roberta.encoder.layer.11]"},
    "partition 4": {"model.cuts": "[roberta.encoder.layer.0, roberta.encoder.layer.11]"},
}
INSERT = {**PARTITIONS["partition 3"], "insert": "[{cut: 1, kind: linear, rank: 50}]"}


def flows(activations, gradients):
    """A codec for the activations at both cuts, and one for the gradients."""
    return f'{{activation/0: "{activations}", activation/1: "{activations}", gradient/1: "{gradients}", gradient/0: "{gradients}"}}'


F1L1, F1L2, F2L2, F4L3 = ({"model.cuts": cuts} for cuts in ("[net._bn0, net._bn1]", "[net._bn0, net._blocks.15]",
                                                           "[net._blocks.0, net._blocks.15]", "[net._blocks.2, net._blocks.14]"))
FROZEN = {"model.file": "experiments/efficientnet/frozen.pt2"}
# As many steps as one epoch of efficientnet.yaml, in which each image is used five times. `delta` needs the same pixels in each epoch.
EPOCHS = {**F1L2, "data.train.per_class": "240", "train.epochs": "5", "data.augment": "{flip: false}", "eval.every": "5"}
# Of residual inserts; the others are solved in closed form.
ADAM = {"train.optimizer": "{name: adam, weight_decay: 0}", "train.learning_rate.peak": "0.01"}
PRETRAINING = {
    **dict.fromkeys(("efficientnet_bytes", "efficientnet_epochs"), {**ADAM, "data.train.per_class": "240", "train.epochs": "15"}),
    **dict.fromkeys(("reviews_bytes", "gpt2_lora"), {**ADAM, "train.epochs": "3"}),
}
# The outputs of the token embedding, which is frozen, never change; those of transformer.drop do, by dropout.
WTE = {"model.cuts": "[transformer.wte, transformer.h.2]"}
# The client has the embeddings and the classifier. The server has the pooler, which selects the first token, so little crosses the second cut.
FROZEN_EMBEDDINGS = {"model.cuts": "[bert.embeddings.LayerNorm, bert.pooler]", "train.freeze": "['bert.embeddings.*']"}
CONV = "[{cut: 0, kind: conv, channels: 20, kernel: 4}, {cut: 1, kind: conv, channels: 320}]"


def once(bits, activation, gradient=None):
    """Codecs for a frozen head: its activations are sent in the first epoch only, with this many bits. The others are those of the last cut; without
    one for the gradients, they have that of the activations."""
    return f'{{activation/0: "rans(delta:first_bits={bits},skip=1(block:bits=1))", activation/1: "{activation}", gradient/1: "{gradient or activation}"}}'


# Changes since the last epoch, and codecs with about as many bytes.
CHANGES = ["block:bits=4", "block:bits=3", flows("rans(delta:first_bits=8(block:bits=4))", "block:bits=4"),
           flows("rans(delta:first_bits=4(block:bits=2))", "block:bits=4"), flows("rans(delta:first_bits=8,skip=0.1(block:bits=4))", "block:bits=4"),
           flows("block:bits=4", "block:bits=2"),
           "randtopk:ratio=0.1,alpha=0.1", POWER, "adaptive:bits=2", flows("rans(delta:first_bits=4(block:bits=2))", "rans(adaptive:bits=1)")]  # fmt: skip


def inserted(inserts, pretrained=None):
    """Settings with learned inserts; those that are pre-trained have a file of this name in experiments/."""
    return {"insert": inserts, **({"weights.file": f"experiments/{pretrained}.safetensors"} if pretrained else {})}


# With the learning rate of the other layers, training with pre-trained inserts diverges.
SLOW_INSERTS = {"train.groups": "['insert.*:learning_rate=0.1']"}
LINEAR, RESIDUAL = (f"[{{cut: 0, kind: {kind}, rank: 8}}, {{cut: 1, kind: {kind}, rank: 48}}]" for kind in ("linear", "residual"))
# To a half of the features after each of the first two epochs.
DECAYING = "[{cut: 0, kind: decaying, rank: 32, every_steps: 38, min_rank: 8}, {cut: 1, kind: decaying, rank: 192, every_steps: 38, min_rank: 48}]"
SMALL_CONV = "[{cut: 0, kind: conv, channels: 20, kernel: 4}, {cut: 1, kind: conv, channels: 96}]"
FROZEN_INSERT = {**inserted("[{cut: 0, kind: conv, channels: 64, kernel: 4}]", "efficientnet/conv64"), "train.freeze": "[insert.0.*]"}


def corrected(channels, second=None, experiment="efficientnet"):
    """Frozen inserts from principal components, with corrections of the gradient: at the first cut, and at the second one if it has channels."""
    inserts = [(0, f"channels: {channels}, kernel: 4"), *([(1, f"channels: {second}")] if second else [])]
    name = "-".join([f"{experiment}/frozen{channels}", *([str(second)] if second else [])])
    text = ", ".join(f"{{cut: {cut}, kind: conv, {sizes}, correction: 4.0e-5}}" for cut, sizes in inserts)
    return {**inserted(f"[{text}]", name), "train.freeze": "[insert.*]"}


def nested():
    """Two sets of frozen inserts: those of corrected(20, 320), and inside the link a second one at each cut."""
    sizes = ((0, "channels: 20, kernel: 4"), (1, "channels: 320"), (0, "channels: 40, kernel: 2"), (1, "channels: 200"))
    text = ", ".join(f"{{cut: {cut}, kind: conv, {each}, correction: 4.0e-5}}" for cut, each in sizes)
    return {**inserted(f"[{text}]", "efficientnet/frozen20-320-40-200"), "train.freeze": "[insert.*]"}


def tracked(channels, second=None, experiment="efficientnet"):
    """An insert that tracks its basis at the first cut; at the second one, whose basis would be too large, a frozen one as in corrected()."""
    frozen = f", {{cut: 1, kind: conv, channels: {second}, correction: 4.0e-5}}" if second else ""
    name = "-".join([f"{experiment}/pca{channels}", *([str(second)] if second else [])])
    freeze = {"train.freeze": "[insert.1.*]"} if second else {}
    return {**inserted(f"[{{cut: 0, kind: pca, channels: {channels}, kernel: 4}}{frozen}]", name), **freeze}


def of_features(kind, rank, cuts, experiment):
    """Inserts for the features of tokens: `pca`, or frozen linear ones with corrections of the gradient."""
    sizes = {"pca": f"channels: {rank}", "linear": f"rank: {rank}, correction: 1.0e-3"}[kind]
    text = ", ".join(f"{{cut: {cut}, kind: {kind}, {sizes}}}" for cut in cuts)
    return {**inserted(f"[{text}]", f"{experiment}/fitted-{kind}{rank}"), **({"train.freeze": "[insert.*]"} if kind == "linear" else {})}


def decaying(rate, steps, experiment="cola", rank=768):
    """Linear inserts at both cuts of a transformer with this many features, of full rank at first."""
    sizes = f"kind: decaying, rank: {rank}, decay: {rate}, every_steps: {steps}, min_rank: {rank // 16}"
    return inserted(f"[{{cut: 0, {sizes}}}, {{cut: 1, {sizes}}}]", f"{experiment}/decaying{rank}")


def precision(name, **more):
    return {"precision.client": name, "precision.server": name, **more}


FIVE, THREE, ONE = (1, 2, 3, 4, 5), (1, 2, 3), (1,)
BITS = ["none", "block:bits=8", "block:bits=4"]


def stale(steps, warmup, nesterov):
    """A sweep of the experiment staleness: the recipe of its configuration, with or without warm-up and Nesterov's momentum."""
    recipe = "".join([*([] if warmup else [", no warm-up"]), *([] if nesterov else [", plain momentum"])])
    settings = {"train.staleness": str(steps), "train.optimizer.nesterov": str(int(nesterov)), **({} if warmup else {"train.learning_rate.warmup_epochs": "0"})}
    return f"D = {steps}{recipe}", settings, ["none"], THREE, f"D = 0{recipe}"


class Row(NamedTuple):
    """A sweep: its codecs and seeds with the same settings. The rows of the table are its codecs."""
    name: str
    settings: dict
    codecs: list
    seeds: tuple
    base: str = ""  # the name of the rows whose `none` this one is compared with, in bytes and accuracy; default: its own


# Per experiment, its sweeps, as the fields of a Row. Several sweeps may have the same name; the first one has the codec `none`.
SWEEPS = {
    "cifar10": [
        ("finetuned", {}, ["none", SORT[16], SORT[12], SORT[8], SORT[4], "uniform:bits=16", "uniform:bits=12", "uniform:bits=11", "uniform:bits=10",
                           "topk:ratio=0.5", "topk:ratio=0.2", "topk:ratio=0.1"], THREE),
        ("from scratch", {"weights": '""'}, ["none", "uniform:bits=16", "topk:ratio=0.5", "topk:ratio=0.1"], THREE),
        *((f"conv inserts, {channels} channels", corrected(channels, 320, "cifar10"), ["none"], THREE, "finetuned") for channels in (32, 20)),
    ],
    "cifar100": [("finetuned", {}, ["none", SORT[16], SORT[12], SORT[8], SORT["1:1"]], THREE)],
    "food101": [
        ("finetuned", {}, ["none", SORT[16], SORT[12]], THREE),
        # Photographs have more detail in a window than the other data sets.
        *((f"{channels} tracked and 320 frozen channels", tracked(channels, 320, "food101"), BITS, THREE, "finetuned") for channels in (32, 20)),
    ],
    "efficientnet": [
        ("f1l1", {}, [*HEADLINE, *VISION], THREE),
        ("f2l2", F2L2, HEADLINE, THREE),
        ("f4l3", F4L3, HEADLINE, THREE),
        ("from scratch", {"model.file": "experiments/efficientnet/scratch.pt2"}, ["none", "uniform:bits=16", "topk:ratio=0.5"], THREE),
    ],
    "efficientnet_bytes": [
        ("f2l2", F2L2, ["none", "rans(block:bits=2)"], THREE),
        ("f1l1", F1L1, ["none"], THREE),
        ("f1l1, conv inserts", {**F1L1, **inserted(CONV, "efficientnet/conv20-320"), **SLOW_INSERTS}, ["block:bits=8"], THREE, "f1l1"),
        ("f1l1, conv inserts, full learning rate", {**F1L1, **inserted(CONV, "efficientnet/conv20-320")}, ["block:bits=8"], THREE, "f1l1"),
    ],
    "efficientnet_epochs": [
        ("f1l2", EPOCHS, ["none"], FIVE),
        ("f1l2", EPOCHS, CHANGES, THREE),
        ("f1l2, by channel", EPOCHS, ["channels(adaptive:bits=2)", "rans(channels(adaptive:bits=1))", "channels(block:bits=4)"], THREE, "f1l2"),
        *((f"f1l2, {name} inserts", {**EPOCHS, **inserted(*inserts), **SLOW_INSERTS}, codecs, THREE, "f1l2") for name, inserts, codecs in (
            ("linear", (LINEAR, "efficientnet/linear8-48"), ["block:bits=8", "block:bits=4"]), ("residual", (RESIDUAL, "efficientnet/residual8-48"), ["block:bits=8"]),
            ("decaying", (DECAYING, "efficientnet/decaying32-192"), ["rans(channels(block:bits=8))"]), ("conv", (SMALL_CONV, "efficientnet/conv20-96"), ["block:bits=8"]))),
        ("f1l2, linear insert at the first cut", {**EPOCHS, **inserted("[{cut: 0, kind: linear, rank: 8}]", "efficientnet/linear8"), **SLOW_INSERTS},
         ['{activation/0: "channels(adaptive:bits=3)", activation/1: "block:bits=4", gradient/1: "block:bits=4", gradient/0: "channels(adaptive:bits=1)"}'],
         THREE, "f1l2"),
        ("f1l2, frozen stem", {**EPOCHS, **FROZEN}, ["none", once(8, "block:bits=8"), once(4, "block:bits=4")], FIVE, "f1l2"),
        ("f1l2, frozen stem and insert", {**EPOCHS, **FROZEN, **FROZEN_INSERT}, [once(8, "block:bits=8"), once(8, "block:bits=4")], FIVE, "f1l2"),
    ],
    "efficientnet_inserts": [
        ("f1l1", {**EPOCHS, **F1L1}, ["none"], FIVE),
        ("f1l2", EPOCHS, ["none"], FIVE),
        # 10 and 200 channels have the publication's share of 0.038 for two sets of inserts; so have two sets, with windows of 8 x 8.
        *((f"f1l1, {first} and {second} channels", {**EPOCHS, **F1L1, **corrected(first, second)}, BITS, FIVE, "f1l1")
          for first, second in ((32, 320), (20, 320), (10, 200))),
        ("f1l1, two sets of inserts", {**EPOCHS, **F1L1, **nested()}, BITS, FIVE, "f1l1"),
        *((f"f1l2, {channels} channels", {**EPOCHS, **corrected(channels)}, BITS, FIVE, "f1l2") for channels in (32, 20)),
        *((f"f1l1, {channels} tracked and 320 frozen channels", {**EPOCHS, **F1L1, **tracked(channels, 320)}, BITS, FIVE, "f1l1") for channels in (32, 20)),
        *((f"f1l2, {channels} tracked channels", {**EPOCHS, **tracked(channels)}, BITS, FIVE, "f1l2") for channels in (32, 20)),
        # One epoch of 12,000 images.
        ("f1l1, one epoch", F1L1, ["none"], FIVE),
        *((f"f1l1, {channels} and 320 channels, one epoch", {**F1L1, **corrected(channels, 320)}, BITS, FIVE, "f1l1, one epoch") for channels in (32, 20)),
    ],
    "reviews": [
        ("f2l2", {}, [*HEADLINE, *TEXT], THREE),
        ("f1l1", {"model.cuts": "[bert.embeddings, bert.encoder.layer.5]"}, HEADLINE, THREE),
        ("LoRA", {"model.lora.rank": "8", "model.lora.alpha": "16", "model.lora.targets": "[query, value]",
                  "train.freeze": "['!classifier.*']", "train.learning_rate.peak": "1.0e-3"}, ["none"], THREE),
        ("bf16", precision("bf16"), ["none"], THREE),
        # A processor without fp16 arithmetic takes about 12 times as long.
        ("fp16", precision("fp16"), ["none"], THREE),
        ("fp16, loss not scaled", precision("fp16", **{"precision.scale_loss": "false"}), ["none"], THREE),
    ],
    "reviews_bytes": [
        ("f2l2", {}, ["none", "block:bits=4", flows("rans(delta:first_bits=8(block:bits=4))", "block:bits=4"),
                      flows("block:bits=3,rotation=hadamard", "adaptive:bits=2"), flows("block:bits=2,rotation=hadamard", "adaptive:bits=1"),
                      "randtopk:ratio=0.1,alpha=0.1"], THREE),
        *(("f2l2, " + kind + " inserts", inserted(f"[{{cut: 0, kind: {kind}, rank: 96}}, {{cut: 1, kind: {kind}, rank: 96}}]", f"reviews/{kind}96"),
           ["block:bits=8", "block:bits=4"], THREE, "f2l2") for kind in ("linear", "residual")),
        *((f"f2l2, {name} inserts of {rank} features", of_features(kind, rank, (0, 1), "reviews"), ["block:bits=8", "block:bits=4"], THREE, "f2l2")
          for kind, name, rank in (("pca", "tracked", 48), ("linear", "frozen linear", 96), ("linear", "frozen linear", 48))),
        # As in CoLA, where the mean rank was 0.387 of the features: here it is 0.387, 0.390 and 0.408, over 250 steps.
        *((f"f2l2, decaying inserts, {rate} every {steps} steps", decaying(rate, steps, "reviews", 384), ["rans(channels(block:bits=8))"], THREE, "f2l2")
          for rate, steps in ((0.83, 18), (0.89, 12), (0.95, 6))),
        ("frozen embeddings", FROZEN_EMBEDDINGS, ["none", once(8, "block:bits=8"), once(4, "block:bits=4"), once(3, "block:bits=4")], THREE, "f2l2"),
    ],
    "rte": [
        ("partition 1", {}, RTE, THREE),
        *((name, cuts, ["none"], THREE) for name, cuts in PARTITIONS.items()),
        ("fp16", precision("fp16"), ["none"], THREE),
        ("fp16, loss not scaled", precision("fp16", **{"precision.scale_loss": "false"}), ["none"], THREE),
        ("linear insert", INSERT, ["none"], THREE, "partition 3"),
    ],
    "cola": [
        ("partition 1", {}, COLA_CODECS, THREE),
        *((name, cuts, ["none"], THREE) for name, cuts in PARTITIONS.items()),
        ("fp32", precision("fp32"), ["none"], THREE),
        ("linear insert", INSERT, ["none"], THREE, "partition 3"),
        *((f"decaying inserts, {rate} every {steps} steps", decaying(rate, steps), ["rans(channels(block:bits=8))"], THREE, "partition 1")
          for rate, steps in ((0.83, 400), (0.89, 250), (0.95, 100))),
    ],
    "cola_fairseq": [("partition 1", {}, ["none", SORT[16], SORT[12], SORT[8], SORT[4]], THREE)],
    "cola_lora": [("partition 1", {}, ["none"], THREE)],
    "gpt2_lora": [
        ("LoRA", {}, ["none", SORT[16], SORT[12], SORT[8], SORT[4], "block:bits=8", "block:bits=4", "block:bits=3", "block:bits=2",
                      "block:bits=2,rotation=hadamard", "adaptive:bits=2", "kmeans:bits=4", "power:rank=8", "topk:ratio=0.1", "randtopk:ratio=0.1,alpha=0.1",
                      flows("block:bits=4", "block:bits=2")], THREE),
        ("LoRA, cut after the embedding", WTE, [once(4, "block:bits=4,rotation=hadamard"), once(4, "block:bits=3,rotation=hadamard"),
                                               once(4, "block:bits=2,rotation=hadamard"), once(4, "block:bits=4,rotation=hadamard", "adaptive:bits=1"),
                                               once(4, "rans(delta:first_bits=8(block:bits=4))", "block:bits=4")], THREE, "LoRA"),
        *((f"LoRA, {kind} insert", {**WTE, **inserted(f"[{{cut: 1, kind: {kind}, rank: 32}}]", f"gpt2/{kind}32")},
           [once(4, "block:bits=8"), once(4, "block:bits=4")], THREE, "LoRA") for kind in ("linear", "residual")),
        ("LoRA, residual insert of rank 16", {**WTE, **inserted("[{cut: 1, kind: residual, rank: 16}]", "gpt2/residual16")},
         [once(4, "block:bits=4"), once(2, "block:bits=4")], THREE, "LoRA"),
        *((f"LoRA, {name} insert", {**WTE, **of_features(kind, 32, (1,), "gpt2")}, [once(4, "block:bits=8"), once(4, "block:bits=4")], THREE, "LoRA")
          for kind, name in (("pca", "tracked"), ("linear", "frozen linear"))),
        # To the rank of the linear insert in the second of the three epochs.
        ("LoRA, decaying insert", {**WTE, **inserted("[{cut: 1, kind: decaying, rank: 96, every_steps: 40, min_rank: 32}]", "gpt2/decaying96")},
         [once(4, "rans(channels(block:bits=8))")], THREE, "LoRA"),
    ],
    # Windows of photographs have more detail than those of Fashion-MNIST, whose images are enlarged.
    "photographs": [
        ("f1l1", {}, ["none", "block:bits=8"], FIVE),
        *((f"f1l1, {first} and {second} channels", corrected(first, second, "photographs"), ["none", "block:bits=8"], FIVE, "f1l1")
          for first, second in ((64, 320), (32, 320), (20, 320))),
        *((f"f1l1, {channels} tracked and 320 frozen channels", tracked(channels, 320, "photographs"), ["none", "block:bits=8"], FIVE, "f1l1")
          for channels in (32, 20)),
    ],
    "staleness": [
        *(stale(steps, warmup, nesterov) for warmup, nesterov in itertools.product((True, False), repeat=2) for steps in (0, 1, 3)),
        *((f"D = {steps}, peak 0.03", {"train.staleness": str(steps), "train.learning_rate.peak": "0.03"}, ["none"], THREE, "D = 0, peak 0.03")
          for steps in (0, 1, 3)),
    ],
}
# The main metric, and the second metric; of the other experiments, accuracy.
MATTHEWS = ("eval_matthews", "eval_top1")
METRICS = {"reviews": MATTHEWS, "reviews_bytes": MATTHEWS, "cola": MATTHEWS, "cola_fairseq": MATTHEWS, "cola_lora": MATTHEWS, "gpt2_lora": ("eval_perplexity",)}
TITLES = {"eval_matthews": "Matthews", "eval_top1": "Accuracy", "eval_perplexity": "Perplexity"}
LOWER_IS_BETTER = ("eval_perplexity",)
# The experiments that report the best epoch by the main metric; the others report the last epoch.
BEST_EPOCH = ("cifar10", "cifar100", "food101", "reviews", "reviews_bytes", "rte", "cola", "cola_fairseq", "cola_lora")


ROWS = {experiment: [Row(*fields) for fields in sweeps] for experiment, sweeps in SWEEPS.items()}


def client(options, command, settings):
    """A command line of cleave-client with the experiment's configuration and these settings."""
    config = CONFIGS.get(options.experiment, f"configs/experiments/{options.experiment}.yaml")
    assignments = [*(f"{key}={value}" for key, value in {"threads.client": "1", **settings}.items()), *options.set]
    return [os.path.join(options.programs, "cleave-client"), command, "--config", config, *(part for each in assignments for part in ("--set", each))]


def require(experiment, files):
    """Ends with a message if the experiment's user must provide some of these files first; `files` says how."""
    missing = {file: how for file, how in files.items() if not os.path.exists(file)}
    if missing:
        sys.exit("\n".join(f"{experiment} needs {file}: {how}" for file, how in missing.items()))


def prepare(options):
    """Makes the files that the experiment needs, unless they exist. Ends with a message if the user must provide some first."""
    made = PREPARE[options.experiment]
    is_made = made and all(map(os.path.exists, made))
    require(options.experiment, {file: how for file, how in NEEDED.get(options.experiment, {}).items() if not (is_made and file.startswith(GLUE))})
    for file, (program, *arguments) in PREPARE[options.experiment].items():
        if not os.path.exists(file):
            command = [os.path.join(options.programs, program)] if program == "cleave-client" else [sys.executable, f"configs/experiments/{program}"]
            subprocess.run([*command, *arguments], check=True)


def pretrain(options, row):
    """Writes the weights of a row with pre-trained inserts, unless they exist, and prints what the inserts lose on the data."""
    settings = dict(row.settings)
    file = settings.pop("weights.file", None)
    if "insert" in settings and file and not os.path.exists(file):
        os.makedirs(os.path.dirname(file), exist_ok=True)
        command = [*client(options, "pretrain-inserts", {**settings, **PRETRAINING.get(options.experiment, {}), "run.seed": "1"}), "--output", file]
        with open(log_file(options.experiment), "a", encoding="utf-8") as log:
            ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True)
        if ended.returncode:
            sys.exit(f"pretrain-inserts failed: see {log_file(options.experiment)}")
        errors = (line for line in ended.stdout.splitlines() if line.startswith("cut "))
        print("\n".join((f"results: {file}", *errors)), file=sys.stderr, flush=True)


def log_file(experiment):
    return os.path.join("sweeps", experiment, "log.txt")


# Settings of runs whose steps are measured, and nothing else.
UNMEASURED = ["eval.every=0", "keep={}", "train.stop={}"]


def run_seconds(train, server=()):
    """How long a run of this train command takes at the speed of three steps, without evaluations. Ends with the program's error if it cannot run."""
    plan = subprocess.run([*train, "--dry-run", "--json"], capture_output=True, text=True)
    if plan.returncode:
        sys.exit(plan.stderr.strip())
    with tempfile.TemporaryDirectory() as temporary:
        run = os.path.join(temporary, "run")
        short = [*(part for each in ("train.max_steps=3", *UNMEASURED) for part in ("--set", each)), "--run-dir", run, "--quiet"]
        measured = subprocess.run([*train, *short, *server], capture_output=True, text=True)
        steps = [float(each["seconds"]) for each in read(os.path.join(run, "steps.csv")) if each["phase"] == "train"]
    if measured.returncode or not steps:
        sys.exit(measured.stderr.strip())
    return json.loads(plan.stdout)["steps"] * min(steps)


def say_estimate(program, left, seconds):
    """Prints how long the runs that are left will take, before the first of them."""
    duration = f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{max(seconds / 60, 1):.0f} min"
    print(f"{program}: {left} runs are left, about {duration} with codec none's step time and without evaluations", file=sys.stderr, flush=True)


def estimate(options, rows):
    """Prints how long the runs that are left will take."""
    seconds, left = 0.0, 0
    server = ["--server", options.server] if options.server else []
    for row in rows:
        done = sum(len(runs(options.experiment, row, codec).keys() & set(row.seeds)) for codec in row.codecs)
        count = len(row.codecs) * len(row.seeds) - done
        if count:
            seconds += count * run_seconds(client(options, "train", {**row.settings, "codec": "none"}), server)
            left += count
    if left:
        say_estimate("results", left, seconds / options.jobs)


def folder(experiment, row, what):
    number = [each for each in ROWS[experiment] if each.name == row.name].index(row)
    name = row.name.replace(",", "").replace(" = ", "").replace(" ", "-")
    return os.path.join("sweeps", experiment, f"{what}-{name}{('', '-more')[number]}")


def sweep(options, row, what, grid, more):
    """Runs or resumes one sweep, and returns its exit code."""
    # Without checks, no run falls back to other codecs. The codecs that `once` leaves out are `auto`, with which checks are the default.
    command = [*client(options, "sweep", {"threads.server": "1", "quality.every": "0", **row.settings, **more}), "--folder", folder(options.experiment, row, what)]
    if options.server:
        command += ["--server", options.server]
    for key, values in grid.items():
        for value in values:
            command += ["--grid", f"{key}={value}"]
    with open(log_file(options.experiment), "a", encoding="utf-8") as log:
        return subprocess.run(command, stdout=log, stderr=log).returncode


def train(options, row):
    """Trains a row with all its codecs and seeds, and returns the sweep's exit code."""
    return sweep(options, row, "accuracy", {"run.seed": row.seeds, "codec": row.codecs}, {})


def measure(options, row, link):
    """Measures the step times of a row's codecs over a link, and returns the sweep's exit code."""
    short = {**SHORT.get(options.experiment, {}), "train.max_steps": link.steps, **dict(each.split("=") for each in UNMEASURED)}
    grid = {"run.seed": ONE, "codec": row.codecs, **{key: [value] for key, value in link.settings.items()}}
    return sweep(options, row, speed(link), grid, short)


def speed(link):
    return "speed-" + link.name.replace(",", "").replace("/", "").replace(" ", "-")


def links(experiment):
    return LINKS_OF.get(experiment, LINKS)


def read(file):
    """The rows of a CSV file; none if it does not exist."""
    if not os.path.exists(file):
        return []
    with open(file, encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def runs(experiment, row, codec):
    """The folders of the finished runs of a codec, by seed."""
    where = folder(experiment, row, "accuracy")
    return {int(each["run.seed"]): os.path.join(where, each["point"]) for each in read(os.path.join(where, "results.csv"))
            if each["codec"] == codec and each["status"] == "done"}  # fmt: skip


def epochs(run):
    """The rows of a run's epochs.csv, one per epoch; without rows that a resume has replaced."""
    return list({each["epoch"]: each for each in read(os.path.join(run, "epochs.csv"))}.values())


def sent(run, phase="train"):
    """The bytes of a run's steps, both ways: tensors and control messages."""
    steps = {each["step"]: each for each in read(os.path.join(run, "steps.csv")) if each["phase"] == phase}
    return sum(int(each[f"{kind}_{way}_bytes"]) for each in steps.values() for kind in ("wire", "control") for way in ("up", "down"))


def weights(run):
    """The bytes of the model that a run has sent and received."""
    with open(os.path.join(run, "summary.json"), encoding="utf-8") as text:
        summary = json.load(text)
    return summary.get("model_bytes_up", 0) + summary.get("model_bytes_down", 0)


def published(experiment, row, codec):
    """The published figure of a row's codec, as its sweep has compared it."""
    quantity = "best Matthews" if metrics(experiment)[0] == "eval_matthews" else "best top-1"
    return ", ".join(f"{float(each['theirs']):.2f}" + (f" ± {float(each['theirs_std']):.2f}" if each["theirs_std"] else "")
                     for each in read(os.path.join(folder(experiment, row, "accuracy"), "comparison.csv"))
                     if each["codec"] == codec and each["quantity"] == quantity)  # fmt: skip


def metrics(experiment):
    """The main metric, and the others."""
    return METRICS.get(experiment, ("eval_top1",))


def value(name, epoch):
    """A metric in a row of epochs.csv: a percentage, or the perplexity."""
    return float(epoch[name]) * (1 if name == "eval_perplexity" else 100)


def result(experiment, run):
    """The row of epochs.csv that the experiment reports."""
    main = metrics(experiment)[0]
    evaluated = [each for each in epochs(run) if each[main]]
    return max(evaluated, key=lambda each: float(each[main])) if experiment in BEST_EPOCH else evaluated[-1]


def compared_with(experiment, row):
    """The finished runs, by seed, that a row is compared with."""
    first = next(each for each in ROWS[experiment] if each.name == (row.base or row.name))
    return runs(experiment, first, "none")


# Two-sided 95 % quantiles of Student's t, by degrees of freedom.
QUANTILES = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def interval(differences):
    """The mean of paired differences with its 95 % interval; empty for fewer than three."""
    count = len(differences)
    if count < 3:
        return ""
    half = QUANTILES[count - 1] * statistics.stdev(differences) / math.sqrt(count)
    return f"{statistics.mean(differences):+.2f} ± {half:.2f}"


class Measured(NamedTuple):
    """What the runs of one codec of a row have measured."""
    row: Row
    codec: str
    share: float  # of the bytes of `none`
    weights: float  # bytes of the model, sent and received
    evaluation: float  # bytes of evaluation steps
    values: list  # the main metric, per seed; percentages
    others: list  # means of the other metrics
    best_epochs: list
    differences: list  # of the main metric from that of `none` with the same seed


def measured(experiment, rows):
    """What has been measured so far, in the table's order."""
    main, *others = metrics(experiment)
    found = []
    for row, codec in ((row, codec) for row in rows for codec in row.codecs):
        done, reference = runs(experiment, row, codec), compared_with(experiment, row)
        if not done or not reference:
            continue
        results = {seed: result(experiment, run) for seed, run in done.items()}
        values = {seed: value(main, each) for seed, each in results.items()}
        base = {seed: value(main, result(experiment, run)) for seed, run in reference.items()}
        pairs = sorted(values.keys() & base.keys()) if done != reference else []
        found.append(Measured(row, codec, statistics.mean(map(sent, done.values())) / statistics.mean(map(sent, reference.values())),
                              statistics.mean(map(weights, done.values())), statistics.mean(sent(run, "eval") for run in done.values()), list(values.values()),
                              [statistics.mean(value(name, each) for each in results.values()) for name in others],
                              [each["epoch"] for each in results.values()], [values[seed] - base[seed] for seed in pairs]))  # fmt: skip
    return found


def shown(codec):
    """A codec as the table shows it; of several, each with its flows."""
    if not codec.startswith("{"):
        return f"`{codec}`"
    flows_of = {}
    for flow, spec in re.findall(r'(\w+/\d): "?([^"}]+?)"?(?:, (?=\w+/\d)|})', codec):
        flows_of.setdefault(spec, []).append(flow)
    return "; ".join(f"{', '.join(names)}: `{spec}`" for spec, names in flows_of.items())


def markdown(lines):
    """A table in Markdown; the first line is its head."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |"
                     for line in [lines[0], ["-" * width for width in widths], *lines[1:]])


def epoch_table(experiment, rows):
    """The metrics after each epoch, as means over the seeds."""
    names = metrics(experiment)
    lines = [["Rows", "Codec", "Epoch", *(TITLES[name] for name in names)]]
    for row, codec in ((row, codec) for row in rows for codec in row.codecs):
        for of_seeds in zip(*(epochs(run) for run in runs(experiment, row, codec).values())):
            if all(each[name] for each in of_seeds for name in names):
                means = (statistics.mean(value(name, each) for each in of_seeds) for name in names)
                lines.append([row.name, shown(codec), of_seeds[0]["epoch"], *(f"{mean:.2f}" for mean in means)])
    return markdown(lines)


def step_seconds(experiment, row, codec, link):
    groups = read(os.path.join(folder(experiment, row, speed(link)), "groups.csv"))
    return next((f"{float(each['step_seconds']):.3f} s" for each in groups if each["codec"] == codec and each["step_seconds"]), "")


def table(experiment, rows):
    main, *others = (TITLES[name] for name in metrics(experiment))
    best = ["Best epochs"] if experiment in BEST_EPOCH else []
    found = measured(experiment, rows)
    theirs = [published(experiment, each.row, each.codec) for each in found]
    beside = ["Published"] if any(theirs) else []
    lines = [["Rows", "Codec", "Bytes, share of fp32", "Weights, MB", "Evaluation, MB", main, *beside, "Std", "Difference from `none`", *others, *best,
              "Seeds", *(f"Step at {link.name}" for link in links(experiment))]]
    for each, figure in zip(found, theirs):
        lines.append([each.row.name, shown(each.codec), f"{each.share:.4f}", f"{each.weights / 1e6:.1f}", f"{each.evaluation / 1e6:.1f}",
                      f"{statistics.mean(each.values):.2f}", *([figure] if beside else []),
                      f"{statistics.stdev(each.values):.2f}" if len(each.values) > 1 else "", interval(each.differences),
                      *(f"{other:.2f}" for other in each.others), *([", ".join(each.best_epochs)] if best else []), str(len(each.values)),
                      *(step_seconds(experiment, each.row, each.codec, link) for link in links(experiment))])
    return markdown(lines)


def speed_table(experiment, rows):
    """The step times, also of rows that have not been trained."""
    lines = [["Rows", "Codec", *(f"Step at {link.name}" for link in links(experiment))]]
    for row, codec in ((row, codec) for row in rows for codec in row.codecs):
        lines.append([row.name, shown(codec), *(step_seconds(experiment, row, codec, link) for link in links(experiment))])
    return markdown(lines)


def chart(experiment, rows, file):
    """Draws the main metric against the share of bytes, with the Pareto front. Points that are far worse than the others are at the edge."""
    try:
        import matplotlib
    except ImportError:
        sys.exit("--chart needs matplotlib: pip install matplotlib")
    matplotlib.use("svg")
    from matplotlib import pyplot

    main = metrics(experiment)[0]
    better = min if main in LOWER_IS_BETTER else max
    points = sorted(((each.share, statistics.mean(each.values), f"{each.row.name}: {shown(each.codec).replace('`', '')}")
                     for each in measured(experiment, rows)))  # fmt: skip
    front = [(share, value) for share, value, _ in points if value == better(each for of, each, _ in points if of <= share)]
    best = better(value for _, value, _ in points)
    distances = [abs(value - best) for _, value, _ in points]
    edge = 6 * statistics.median(distances) if len(points) > 2 else max(distances)
    figure, axes = pyplot.subplots(figsize=(11, 5 + 0.17 * len(points)), layout="constrained")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.step(*zip(*front), where="post", color="tab:blue", linewidth=1)
    for number, (share, value, name) in enumerate(points, 1):
        color = "tab:blue" if (share, value) in front else "tab:gray"
        is_far = abs(value - best) > edge > 0
        worse = best + edge if better is min else best - edge
        height = worse if is_far else value
        marker = ("^" if better is min else "v") if is_far else "o"
        axes.plot(share, height, marker, color=color, markersize=5, label=f"{number}  {name}" + (f" ({value:.4g})" if is_far else ""))
        axes.annotate(str(number), (share, height), xytext=(4, 4), textcoords="offset points", color=color)
    axes.set_xlabel("bytes of training, share of fp32")
    axes.set_ylabel(TITLES[main])
    axes.grid(which="both", linewidth=0.3)
    figure.legend(loc="outside lower left", fontsize=7, handlelength=1)
    os.makedirs(os.path.dirname(file) or ".", exist_ok=True)
    figure.savefig(file)


def main():
    if len(sys.argv) > 1 and sys.argv[1] in PROGRAMS:
        program = os.path.join(os.path.dirname(__file__), PROGRAMS[sys.argv[1]])
        sys.exit(subprocess.run([sys.executable, program, *sys.argv[2:]]).returncode)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="Example: python3 configs/experiments/results.py rte --only 'partition 1'")
    parser.add_argument("experiment", choices=[*SWEEPS, *PROGRAMS])
    parser.add_argument("--programs", default="build/release/bin", help="folder of cleave-client; default: build/release/bin")
    parser.add_argument("--jobs", type=int, default=1, help="sweeps at the same time, each with one thread per side; default: 1")
    parser.add_argument("--server", metavar="HOST:PORT", help="trains through this server; default: each run starts one on this machine")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="sets a key in all runs, such as device=cuda; repeatable")
    parser.add_argument("--table", action="store_true", help="only print the table of the runs that are done")
    parser.add_argument("--chart", metavar="FILE.svg", help="also draw accuracy against bytes; needs matplotlib")
    parser.add_argument("--per-epoch", action="store_true", help="also print the metrics after each epoch")
    parser.add_argument("--only", action="append", help="only the rows of this name, such as LoRA; repeatable; default: all")
    speeds = parser.add_mutually_exclusive_group()
    speeds.add_argument("--no-speed", action="store_true", help="do not measure the step times")
    speeds.add_argument("--speed-only", action="store_true", help="only measure and print the step times, also of rows that have not been trained")
    options = parser.parse_args()
    experiment = options.experiment
    names = list(dict.fromkeys(row.name for row in ROWS[experiment]))
    for name in options.only or []:
        if name not in names:
            parser.error(f"--only: {experiment} has no rows '{name}'; choose from {'; '.join(names)}")
    rows = [row for row in ROWS[experiment] if options.only is None or row.name in options.only]
    codes = []
    if not options.table:
        os.makedirs(os.path.join("sweeps", experiment), exist_ok=True)
        prepare(options)
        for row in rows:
            pretrain(options, row)
        if not options.speed_only:
            estimate(options, rows)
        pool = concurrent.futures.ThreadPoolExecutor(options.jobs)
        try:
            if not options.speed_only:
                codes += pool.map(lambda row: train(options, row), rows)
            if not options.no_speed:
                codes += [measure(options, row, link) for row in rows for link in links(experiment)]
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)  # the sweeps under way have received the signal too
            sys.exit("interrupted; rerun the same command to resume")
    print(speed_table(experiment, rows) if options.speed_only else table(experiment, rows))
    if options.per_epoch:
        print("\n" + epoch_table(experiment, rows))
    if options.chart:
        chart(experiment, rows, options.chart)
    if any(codes):
        sys.exit(f"some runs failed or were interrupted: see {log_file(experiment)}")


if __name__ == "__main__":
    main()
